"""`InPieces`, and what every way through a cohort begins with: cells drawn, landmarks found, cells counted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from heatmover._progress import Progress
from heatmover._typing import Intp
from heatmover._validation import check_integer, check_memory, check_threads, check_truth
from heatmover._version import __version__
from heatmover.analysis.cell_types import Annotation
from heatmover.analysis.comparers import Compared
from heatmover.analysis.comparison import check_model
from heatmover.analysis.landmarking import LANDMARKS
from heatmover.analysis.parameters import StudyParameters
from heatmover.cohort import Cohort
from heatmover.embedding import DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.scale._checkpoint import check_place, open_checkpoint
from heatmover.scale._execute import executor
from heatmover.scale._input import describe_input, digest, plain
from heatmover.scale._landmarks import Draw, Histogrammed, count, draw, find_centers
from heatmover.scale._plan import make_plan
from heatmover.scale._samples import compare_samples
from heatmover.scale._spool import seekable
from heatmover.scale._stages import Stages

__all__ = ["InPieces", "Request", "counted"]

# Fewer cells per landmark than this leave nothing to save.
CELLS_PER_LANDMARK = 10


@final
@dataclass(frozen=True, kw_only=True)
class InPieces:
    """Compares samples whose cells do not fit into memory: landmarks stand for the cells, which are read in pieces.

    The distances are the same to the bit for any budget of memory, any number of threads or workers, and whether the
    run was interrupted or not. Give it to `heatmover.study_cohort` as its comparer.

    Attributes
    ----------
    memory
        What this process may take beside the interpreter and its libraries, in bytes or as ``"4 GB"``; on a cluster
        also each worker. Blocks are cut to fit; a budget that cannot hold the problem is refused at once.
    client
        None: dask's threads in this process. A `distributed.Client` or the address of a scheduler: that cluster.
    checkpoint
        Path of a zarr store that keeps everything finished; None keeps nothing.
    resume
        Go on with a checkpoint that is there; another input or setting is refused. If it is not there, begin it.
    passes
        Further moves of the landmarks, each over all cells. k-means looks at 50 cells per landmark; the rest
        moves the landmarks hardly at all, and each pass takes as long as counting the cells does.
    n_jobs
        Threads of this process; None for all cores.

    Examples
    --------
    >>> InPieces(memory="2 GB").record()
    {'how': 'in pieces', 'memory': '2 GB', 'passes': 0}
    """

    memory: int | float | str = "4 GB"
    client: Any = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    passes: int = 0
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_truth("resume", self.resume)
        check_integer("passes", self.passes, minimum=0)
        check_threads(self.n_jobs)

    def check(self, parameters: StudyParameters) -> None:
        """Raise if landmarks are forbidden, or if there is a checkpoint that is not to be resumed."""
        if parameters.landmarks is None:
            raise InvalidInputError(
                f"{argument('landmarks')} for cells that stay on disk",
                f"{argument('landmarks', None)}",
                f"leave {argument('landmarks')} out, or {argument('memory')}",
            )
        check_place(self.checkpoint, resume=self.resume)

    def compare(
        self,
        cohort: Cohort,
        kept: Intp,
        annotation: Annotation | None,
        parameters: StudyParameters,
        progress: Progress,
    ) -> Compared:
        """Find landmarks, count the cells at each, by type if asked for, and compare the samples."""
        assert parameters.landmarks is not None
        model = check_model(None, random_state=parameters.random_state, n_jobs=self.n_jobs)
        request = Request(
            cohort, self, parameters.landmarks, parameters.n_neighbors, parameters.random_state, progress,
            min_cells=parameters.min_cells or 1, model=model, annotation=annotation,
        )  # fmt: skip
        with counted(request) as (stages, drawn, found):
            comparison = compare_samples(cohort, kept, found, drawn, stages, model, request.n_neighbors, request.seed)
        if annotation is None:
            return Compared(comparison)
        return Compared(comparison, *found.by_type(annotation, kept))

    def record(self) -> Mapping[str, Any]:
        """Return how it compares, as plain values for JSON; where it runs and what it keeps changes no number."""
        return {"how": "in pieces", "memory": self.memory, "passes": self.passes}


@final
@dataclass(frozen=True, eq=False)
class Request:
    """What to count, checked when it is made.

    Attributes
    ----------
    cohort, pieces
        What, and how.
    landmarks
        How many; ``"auto"``: 4,000, or a tenth of the cells if these are few.
    n_neighbors, seed
        Of the graph over the landmarks; of all draws.
    progress
        Told of the stages.
    min_cells
        Samples with fewer are not compared.
    model
        Without its graph; None where no samples are embedded.
    annotation
        The type of each cell, if types are to be counted apart.
    """

    cohort: Cohort
    pieces: InPieces
    landmarks: int | str
    n_neighbors: int
    seed: int
    progress: Progress
    min_cells: int = 1
    model: DiffusionEMD | None = None
    annotation: Annotation | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cohort, Cohort):
            raise InvalidInputError(
                "a Cohort",
                type(self.cohort).__name__,
                "heatmover.cohort.read_cohort makes one from a file, without loading it",
            )
        if self.pieces.client is not None and not self.cohort.source.path:
            raise InvalidInputError(
                "cells in a file, which workers can read", "an AnnData object in memory", "write it to a .zarr first"
            )
        check_integer("n_neighbors", self.n_neighbors, minimum=1)
        check_integer("random_state", self.seed, minimum=0)
        check_integer("min_cells", self.min_cells, minimum=1)
        if self.n_landmarks <= self.n_neighbors:
            raise InvalidInputError(
                f"more landmarks than {argument('n_neighbors', self.n_neighbors)}",
                f"{self.n_landmarks} for {self.cohort.n_cells} cells",
                "use fewer neighbours, or hm.compare, which needs no landmarks for few cells",
            )

    @property
    def n_landmarks(self) -> int:
        """How many landmarks."""
        if not isinstance(self.landmarks, str):
            return check_integer("landmarks", self.landmarks, minimum=1)
        if self.landmarks != "auto":
            raise InvalidInputError(f"{argument('landmarks')} to be a whole number or 'auto'", repr(self.landmarks))
        return max(1, min(LANDMARKS, self.cohort.n_cells // CELLS_PER_LANDMARK))

    @property
    def n_types(self) -> int:
        """Cell types that are counted apart; 1 for none."""
        return 1 if self.annotation is None else len(self.annotation.kinds)

    def manifest(self) -> dict[str, Any]:
        """Return what the result depends on; the number of threads and the budget are not among it."""
        settings: dict[str, Any] = {
            "landmarks": self.n_landmarks,
            "passes": self.pieces.passes,
            "n_neighbors": self.n_neighbors,
            "random_state": self.seed,
            "min_cells": self.min_cells,
        }
        if self.annotation is not None:
            settings["cells"] = f"{self.annotation.name}, sha256:{digest(self.annotation.codes.data)}"
        parameters = {} if self.model is None else self.model.get_params(deep=False)
        model = {f"model {key}": value for key, value in parameters.items() if key not in {"graph", "n_jobs"}}
        return {
            "heatmover": {"version": __version__},
            "input": describe_input(self.cohort),
            "settings": plain(settings | model),
        }


@contextmanager
def counted(request: Request) -> Iterator[tuple[Stages, Draw, Histogrammed]]:
    """Give what runs further stages, the cells drawn, and the histograms over landmarks."""
    cohort, pieces, seed = request.cohort, request.pieces, request.seed
    n_threads = check_threads(pieces.n_jobs)
    with executor(pieces.client, n_threads) as where:
        plan = make_plan(
            cohort,
            request.n_landmarks,
            request.n_neighbors,
            memory=check_memory(pieces.memory),
            n_workers=where.n_workers,
            n_types=request.n_types,
        )
        manifest = {} if pieces.checkpoint is None else request.manifest()
        with open_checkpoint(pieces.checkpoint, manifest, resume=pieces.resume, need=plan.checkpoint_bytes) as store:
            stages = Stages(where, store, request.progress)
            with seekable(cohort, store.folder, request.progress, block_rows=plan.block_rows) as cells:
                drawn = draw(cells, plan, stages, seed)
                centers = find_centers(
                    drawn.landmarks, cells, plan, stages, passes=pieces.passes, seed=seed, n_threads=n_threads
                )  # fmt: skip
                types = None if request.annotation is None else request.annotation.codes
                found = count(centers, drawn.landmarks, cells, plan, stages, n_threads, types)
            yield stages, drawn, found
