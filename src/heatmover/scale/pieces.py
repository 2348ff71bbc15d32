"""Samples compared in pieces: landmarks stand for cells that do not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import numpy as np

from heatmover._files import plain
from heatmover._progress import SILENT, Progress
from heatmover._typing import FloatArray, Intp
from heatmover._validation import check_integer, check_memory, check_option, check_threads, check_truth
from heatmover._version import __version__
from heatmover._words import counted
from heatmover.analysis import study
from heatmover.analysis.cautions import MOST_CELLS, look_at
from heatmover.analysis.cell_types import Annotation
from heatmover.analysis.comparers import Compared, draw_equally
from heatmover.analysis.comparison import BIASES, Comparison, check_all_pairs, check_model, in_units, without_bias
from heatmover.analysis.landmarking import LANDMARKS, LandmarkAgreement, landmark_agreement
from heatmover.analysis.parameters import StudyParameters
from heatmover.analysis.units import Units, calibrated, check_units
from heatmover.cohort import Cohort
from heatmover.cohort.draw import EqualDraw, check_equal_cells, draw_bytes
from heatmover.embedding import DiffusionEMD, pairwise_distances
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Graph, Landmarks
from heatmover.measures import Measures, measures_from_weights
from heatmover.scale.checkpoint import (
    Arrays,
    NoCheckpoint,
    check_place,
    describe_input,
    digest,
    is_begun,
    open_checkpoint,
)
from heatmover.scale.chunks import AGREEMENT_POINTS, Plan, make_plan, seekable
from heatmover.scale.execute import Executor, Stages, executor
from heatmover.scale.landmarks import DRAWING, Draw, Histogrammed, count, draw, find_centers, gather
from heatmover.scale.tiles import SAMPLES_AT_ONCE, embedding_tasks, same

__all__ = ["InPieces", "Request", "cells_counted", "compare_cohort", "compare_samples", "histograms", "study_cohort"]

# Fewer cells per landmark than this leave nothing to save.
CELLS_PER_LANDMARK = 10


def compare_samples(request: Request, kept: Intp, found: Histogrammed, drawn: Draw, stages: Stages) -> Comparison:
    """Compare samples by their histograms.

    Parameters
    ----------
    request
        What was asked for, with a model.
    kept
        Which samples of its cohort to compare.
    found, drawn
        Histograms over landmarks; cells that tell how well the landmarks stand for all of them.
    stages
        Runs what is left to do.
    """
    assert request.model is not None
    cohort, model, seed, progress = request.cohort, request.model, request.seed, stages.progress
    measures = measures_from_weights(found.counts[kept].astype(np.float64), names=[cohort.names[i] for i in kept])
    progress.stage("find neighbours", 1)
    graph = found.landmarks.graph(request.n_neighbors, random_state=seed, n_jobs=model.n_jobs)
    progress.advance()
    progress.stage("choose scales", 1)
    fitted = own = model.set_params(graph=graph).fit(measures)
    progress.advance()
    calibration = None
    if request.units is not None:
        centers = found.landmarks.centers
        calibration = calibrated(own, measures, centers, request.units, random_state=seed, progress=progress)
        fitted = calibration.model
    embedding = _embed(fitted, measures, stages)

    def distances() -> Arrays:
        return {"distances": np.asarray(pairwise_distances(embedding, n_jobs=fitted.n_jobs), dtype=np.float64)}

    apart = stages.once("compare", distances)["distances"]
    agreement = _agreement(found, drawn, graph, own, stages, seed)
    result = Comparison(
        measures.names, cohort.sizes[kept], apart, embedding, graph, fitted, measures, found.landmarks, agreement,
        drawn=request.drawn,
    )  # fmt: skip
    result = without_bias(result, request.bias, request.n_bootstrap, random_state=seed, progress=progress)
    return in_units(result, calibration)


def _embed(fitted: DiffusionEMD, measures: Measures, stages: Stages) -> FloatArray:
    """Embed the samples, a few per task."""
    prepared = fitted.prepared_
    result = np.empty((len(measures), prepared.layout.n_features), dtype=prepared.precision)

    def fold(number: int, part: Arrays) -> None:
        start = number * SAMPLES_AT_ONCE
        result[start : start + len(part["embedding"])] = part["embedding"]

    tasks, weights = embedding_tasks(fitted, measures)
    stages.each("diffuse measures", tasks, weights, fold, partial(same, prepared))
    return result


def _agreement(
    found: Histogrammed, drawn: Draw, graph: Graph, fitted: DiffusionEMD, stages: Stages, seed: int
) -> LandmarkAgreement:
    def make() -> Arrays:
        samples = np.flatnonzero(np.diff(drawn.agreement.counts.indptr))
        agreement = landmark_agreement(
            found.landmarks, drawn.agreement.points, measures_from_weights(drawn.agreement.counts[samples]),
            n_points=AGREEMENT_POINTS, graph=graph, model=fitted, random_state=seed,
        )  # fmt: skip
        figures = [
            agreement.spearman,
            agreement.unexplained,
            agreement.n_points,
            agreement.n_samples,
            agreement.n_landmarks,
        ]
        return {"figures": np.array(figures, dtype=np.float64)}

    spearman, unexplained, *numbers = stages.once("measure the agreement", make)["figures"].tolist()
    return LandmarkAgreement(spearman, unexplained, *(int(number) for number in numbers))


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
        check_units(parameters.units)
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
            bias=parameters.bias, n_bootstrap=parameters.n_bootstrap, units=parameters.units,
        )  # fmt: skip
        request, kept = request.equally(kept, parameters.equal_cells)
        annotation = request.annotation
        with cells_counted(request) as (stages, drawn, found):
            comparison = compare_samples(request, kept, found, drawn, stages)
            some = slice(None, None, -(-len(drawn.landmarks.points) // MOST_CELLS))
            look = look_at(drawn.landmarks.points[some], drawn.landmarks.copies[some])
        if annotation is None:
            return Compared(comparison, look=look)
        annotation, cells = found.by_type(annotation, kept)
        # A cell has the values of its landmark; its own would take another pass.
        return Compared(comparison, annotation, cells, found.landmarks.centers[cells.nodes], cohort.features, look)

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
    bias, n_bootstrap, units
        As in `heatmover.compare`.
    drawn
        Which cells these are, if equally many of every sample were drawn.
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
    bias: str = "raw"
    n_bootstrap: int = 0
    units: Units = None
    drawn: EqualDraw | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cohort, Cohort):
            raise InvalidInputError(
                "a Cohort",
                type(self.cohort).__name__,
                "heatmover.scale.read_cohort makes one from a file, without loading it",
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
                f"{self.n_landmarks} for {counted(self.cohort.n_cells, 'cell')}",
                "use fewer neighbours, or compare the cells in memory, which needs no landmarks for few cells",
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
        return 1 if self.annotation is None else len(self.annotation.types)

    def equally(self, kept: Intp, equal_cells: bool | int) -> tuple[Request, Intp]:
        """Return what to count, and which samples of it, if equally many cells of every sample are drawn.

        Parameters
        ----------
        kept
            Samples to compare.
        equal_cells
            As `heatmover.cohort.draw.check_equal_cells` returns it; with False nothing is drawn.
        """
        need, budget = draw_bytes(self.cohort), check_memory(self.pieces.memory)
        if equal_cells is not False and need > budget:
            raise InvalidInputError(
                f"{argument('memory')} of at least {need / 1e6:,.0f} MB to draw {argument('equal_cells')} from "
                f"{counted(self.cohort.n_cells, 'cell')}",
                f"{budget / 1e6:,.0f} MB",
                "allow more",
            )
        part, kept, annotation, drawn = draw_equally(
            self.cohort, kept, self.annotation, equal_cells, random_state=self.seed, progress=self.progress
        )
        if drawn is None:
            return self, kept
        # The list of cells takes more than their samples do, and nobody asks for it here.
        return replace(self, cohort=part, annotation=annotation, drawn=replace(drawn, rows=None)), kept

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
        if self.drawn is not None:
            settings["equal_cells"] = self.drawn.n_cells
        if self.units is not None:
            settings["units"] = self.units
        parameters = {} if self.model is None else self.model.get_params(deep=False)
        model = {f"model {key}": value for key, value in parameters.items() if key not in {"graph", "n_jobs"}}
        return {
            "heatmover": {"version": __version__},
            "input": describe_input(self.cohort),
            "settings": plain(settings | model),
        }


@contextmanager
def cells_counted(request: Request) -> Iterator[tuple[Stages, Draw, Histogrammed]]:
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
        early = _draw_unchecked(request, plan, where)
        manifest = {} if pieces.checkpoint is None else request.manifest()
        with open_checkpoint(pieces.checkpoint, manifest, resume=pieces.resume, need=plan.checkpoint_bytes) as store:
            stages = Stages(where, store, request.progress)
            stages.keep(DRAWING, early)
            with seekable(cohort, store.folder, request.progress, block_rows=plan.block_rows) as cells:
                drawn = gather(early or draw(cells, plan, stages, seed), len(cohort.names))
                centers = find_centers(
                    drawn.landmarks, cells, plan, stages, passes=pieces.passes, seed=seed, n_threads=n_threads
                )  # fmt: skip
                types = None if request.annotation is None else request.annotation.codes
                found = count(centers, drawn.landmarks, cells, plan, stages, n_threads, types)
            yield stages, drawn, found


def _draw_unchecked(request: Request, plan: Plan, where: Executor) -> dict[int, Arrays]:
    """Draw the cells of a cohort at whose values nobody has looked yet; nothing if a checkpoint shows that one has.

    A checkpoint begins when all values are known to be finite: one of a file that is refused would stand in the way of
    the file that was mended.
    """
    pieces, cohort = request.pieces, request.cohort
    if not cohort.unchecked or is_begun(pieces.checkpoint, resume=pieces.resume, need=plan.checkpoint_bytes):
        return {}
    with _refused_as_read(cohort, request.progress):
        return draw(cohort, plan, Stages(where, NoCheckpoint(), request.progress), request.seed)


@contextmanager
def _refused_as_read(cohort: Cohort, progress: Progress) -> Iterator[None]:
    """Say of a file what `read_cohort` would have said, which knows all of its values and not one piece."""
    try:
        yield
    except InvalidInputError:
        try:
            cohort.checked(progress)
        except InvalidInputError as error:
            raise error from None
        raise


def compare_cohort(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
    passes: int = 0,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    min_cells: int = 1,
    n_neighbors: int = 30,
    model: DiffusionEMD | None = None,
    equal_cells: bool | int = False,
    bias: Literal["raw", "corrected"] = "raw",
    n_bootstrap: int = 0,
    units: Units = None,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    r"""Compare samples whose cells do not fit into memory: landmarks stand for the cells, which are read in pieces.

    The distances are the same to the bit for any budget of memory, any number of threads or workers, and whether the
    run was interrupted or not.

    Parameters
    ----------
    cohort
        From `heatmover.scale.read_cohort`, or from `heatmover.read_cohort`, which takes one pass over the file more. On
        a cluster every worker must see its files under the same path.
    landmarks
        How many; ``"auto"``: 4,000, or a tenth of the cells if these are few.
    passes, memory, client, checkpoint, resume, n_jobs
        As in `InPieces`.
    min_cells
        Leave out samples with fewer cells from the comparison.
    n_neighbors, model, equal_cells, bias, n_bootstrap, units
        As in `heatmover.compare`.
    random_state
        Seed of all draws.
    progress
        Told of the stages, those over cells with the number of cells.

    Returns
    -------
    Comparison
        As `heatmover.compare` returns it, with landmarks and their agreement as measured on 10,000 cells.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from heatmover.cohort import read_cohort
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(6, cells_per_sample=300)
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = [",".join([label, *map(str, point)]) for label, point in zip(data.labels, data.points)]
    >>> header = "sample," + ",".join(f"x{i}" for i in range(10))
    >>> _ = (folder / "cells.csv").write_text("\n".join([header, *rows]))
    >>> result = compare_cohort(read_cohort(folder / "cells.csv", sample_key="sample"), landmarks=100, memory="1 GB")
    >>> result.distances.shape, result.landmarks
    ((6, 6), Landmarks(100 for 1,800 points; root mean square distance ...))
    """
    check_option("bias", bias, BIASES)
    check_integer("n_bootstrap", n_bootstrap, minimum=0)
    check_units(units)
    settings = check_model(model, random_state=random_state, n_jobs=n_jobs)
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, passes=passes, n_jobs=settings.n_jobs
    )  # fmt: skip
    watcher = SILENT if progress is None else progress
    request = Request(
        cohort, pieces, landmarks, n_neighbors, random_state, watcher, min_cells, settings,
        bias=bias, n_bootstrap=n_bootstrap, units=units,
    )  # fmt: skip
    kept = np.flatnonzero(cohort.sizes >= min_cells)
    if len(kept) < 2:
        raise InvalidInputError(
            "at least two samples to compare", f"{len(kept)} of at least {counted(min_cells, 'cell')}"
        )
    check_all_pairs(len(kept), "histograms, embed and nearest of heatmover.scale find the nearest of each")
    request, kept = request.equally(kept, check_equal_cells(equal_cells))
    with cells_counted(request) as (stages, drawn, found):
        return compare_samples(request, kept, found, drawn, stages)


def study_cohort(
    cohort: Cohort,
    parameters: StudyParameters | None = None,
    *,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    passes: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> study.Study:
    r"""Compare samples whose cells do not fit into memory, and test what goes with the distances.

    Parameters
    ----------
    cohort
        From `heatmover.read_cohort`.
    memory, client, checkpoint, resume, passes, n_jobs
        As in `InPieces`.
    parameters, progress, **changes
        As in `heatmover.study_cohort`.

    Returns
    -------
    Study
        Give it to `heatmover.report`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from heatmover.cohort import read_cohort
    >>> rng = np.random.default_rng(0)
    >>> rows = [f"s{s},{'case' if s % 2 else 'control'},{x + 3 * (s % 2)},{y}"
    ...         for s in range(8) for x, y in rng.normal(size=(100, 2))]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,condition,x,y", *rows]))
    >>> result = study_cohort(read_cohort(path, sample_key="sample"), variables=["condition"], landmarks=100)
    >>> result.findings[0].groups
    {'case': 4, 'control': 4}
    """
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, passes=passes, n_jobs=n_jobs
    )  # fmt: skip
    return study.study_cohort(cohort, parameters, comparer=pieces, progress=progress, **changes)


def histograms(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
    passes: int = 0,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[Landmarks, Measures]:
    r"""Find landmarks and count the cells of every sample by its nearest, without loading the cells.

    The first half of `compare_cohort`, for any number of samples.

    Parameters
    ----------
    cohort, landmarks, passes, memory, client, checkpoint, resume, random_state, n_jobs, progress
        As in `compare_cohort`.

    Returns
    -------
    landmarks : Landmarks
        Their ``graph()`` is that for the model.
    measures : Measures
        ``(n_samples, n_landmarks)``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> from heatmover.cohort import read_cohort
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> rows = [f"s{i % 3},{i % 7}.5,{i % 11}.5" for i in range(700)]
    >>> _ = path.write_text("\n".join(["sample,x,y", *rows]))
    >>> landmarks, measures = histograms(read_cohort(path, sample_key="sample"), landmarks=40)
    >>> measures
    Measures(3 measures on 40 points: s0, s1, s2)
    """
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, passes=passes, n_jobs=n_jobs
    )  # fmt: skip
    watcher = SILENT if progress is None else progress
    with cells_counted(Request(cohort, pieces, landmarks, 1, random_state, watcher)) as (_, _, found):
        return found.landmarks, measures_from_weights(found.counts.astype(np.float64), names=cohort.names)
