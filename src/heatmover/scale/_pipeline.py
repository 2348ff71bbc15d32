"""What every way through a cohort begins with: options checked, cells drawn, landmarks found, cells counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from heatmover import __version__
from heatmover._progress import SILENT, Progress
from heatmover._validation import check_integer, check_memory, check_threads
from heatmover.analysis.landmarking import LANDMARKS
from heatmover.cohort import Cohort
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.scale._checkpoint import open_checkpoint
from heatmover.scale._execute import executor
from heatmover.scale._input import describe_input, plain
from heatmover.scale._landmarks import Draw, Histogrammed, count, draw, find_centers
from heatmover.scale._plan import make_plan
from heatmover.scale._spool import seekable
from heatmover.scale._stages import Stages

__all__ = ["Request", "counted"]

# Fewer cells per landmark than this leave nothing to save.
CELLS_PER_LANDMARK = 10


@final
@dataclass(frozen=True, eq=False)
class Request:
    """What was asked for, checked when it is made: the arguments of `compare_cohort`."""

    cohort: Cohort
    landmarks: int | str
    passes: int
    memory: int | float | str
    client: Any
    checkpoint: str | os.PathLike[str] | None
    resume: bool
    n_neighbors: int
    random_state: int
    n_jobs: int | None
    progress: Progress | None
    min_cells: int = 1
    # Without its graph; None where no samples are embedded.
    model: DiffusionEMD | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cohort, Cohort):
            raise InvalidInputError(
                "a Cohort",
                type(self.cohort).__name__,
                "heatmover.cohort.read_cohort makes one from a file, without loading it",
            )
        if self.client is not None and not self.cohort.source.path:
            raise InvalidInputError(
                "cells in a file, which workers can read", "an AnnData object in memory", "write it to a .zarr first"
            )
        for name, minimum in {"passes": 0, "n_neighbors": 1, "random_state": 0, "min_cells": 1}.items():
            check_integer(name, getattr(self, name), minimum=minimum)
        check_memory(self.memory)
        check_threads(self.n_jobs)
        if self.n_landmarks <= self.n_neighbors:
            raise InvalidInputError(
                f"more landmarks than n_neighbors={self.n_neighbors}",
                f"{self.n_landmarks} for {self.cohort.n_cells} cells",
                "use fewer neighbours, or hm.compare, which needs no landmarks for few cells",
            )

    @property
    def n_landmarks(self) -> int:
        """How many landmarks."""
        if not isinstance(self.landmarks, str):
            return check_integer("landmarks", self.landmarks, minimum=1)
        if self.landmarks != "auto":
            raise InvalidInputError("landmarks to be a whole number or 'auto'", repr(self.landmarks))
        return max(1, min(LANDMARKS, self.cohort.n_cells // CELLS_PER_LANDMARK))

    def manifest(self) -> dict[str, Any]:
        """Return what the result depends on; the number of threads and the budget are not among it."""
        names = ("passes", "n_neighbors", "random_state", "min_cells")
        settings = {"landmarks": self.n_landmarks} | {name: getattr(self, name) for name in names}
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
    cohort, seed, n_threads = request.cohort, request.random_state, check_threads(request.n_jobs)
    watcher = SILENT if request.progress is None else request.progress
    with executor(request.client, n_threads) as where:
        plan = make_plan(
            cohort,
            request.n_landmarks,
            request.n_neighbors,
            memory=check_memory(request.memory),
            n_workers=where.n_workers,
        )
        manifest = {} if request.checkpoint is None else request.manifest()
        with open_checkpoint(
            request.checkpoint, manifest, resume=request.resume, need=plan.checkpoint_bytes
        ) as store:  # fmt: skip
            stages = Stages(where, store, watcher)
            with seekable(cohort, store.folder, watcher, block_rows=plan.block_rows) as cells:
                drawn = draw(cells, plan, stages, seed)
                centers = find_centers(
                    drawn.landmarks, cells, plan, stages, passes=request.passes, seed=seed, n_threads=n_threads
                )  # fmt: skip
                found = count(centers, drawn.landmarks, cells, plan, stages, n_threads)
            yield stages, drawn, found
