"""Samples compared out of core: landmarks approximate cells that do not fit into memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np

from heatmover._base.files import plain
from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import FloatArray, Intp
from heatmover._base.validation import check_memory, check_threads, check_truth
from heatmover._base.version import __version__
from heatmover._base.words import counted, readable
from heatmover.cohort import Cohort
from heatmover.cohort import read_cohort as read_whole_cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.cohort.draw import EqualDraw, draw_bytes
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Landmarks
from heatmover.measures import Measures, measures_from_weights
from heatmover.study.cautions import MOST_CELLS, look_at
from heatmover.study.cell_types import Annotation
from heatmover.study.comparison import (
    Comparison,
    check_all_pairs,
    check_model,
    check_units,
    compare_embedded,
    fit_samples,
)
from heatmover.study.landmarking import LANDMARKS, landmark_agreement
from heatmover.study.parameters import StudyParameters, Units
from heatmover.study.scale.landmarks import (
    AGREEMENT_POINTS,
    CellCounts,
    CellsDrawn,
    count_cells,
    draw_cells,
    find_centers,
    make_budget,
    seekable,
)
from heatmover.study.scale.stages import Arrays, Checkpoint, Stages, check_checkpoint, executor, open_checkpoint
from heatmover.study.scale.tiles import SAMPLES_AT_ONCE, embedding_tasks
from heatmover.study.study import Compared, Study, draw_equally
from heatmover.study.study import study_cohort as study_with

__all__ = [
    "InPieces",
    "Request",
    "cells_counted",
    "compare_cohort",
    "describe_input",
    "histograms",
    "read_cohort",
    "study_cohort",
]

# Fewer cells per landmark than this leave nothing to save.
CELLS_PER_LANDMARK = 10
# Up to so many bytes the whole input is read for its checksum, some seconds. Beyond, sizes and times of change tell
# whether it is the same: a copy of a larger file then counts as another one.
CHECKSUM_UP_TO = 8_000_000_000


def read_cohort(path: str | os.PathLike[str] | Any, **how: Any) -> Cohort:
    r"""Read the cells of many samples, to compare them out of core: no pass over the file only looks at the values.

    `compare_cohort` and the other functions of `heatmover.scale` look at every value while they draw cells, and then
    raise what `heatmover.read_cohort` raises. A NaN is reported after the first pass over the cells, not before.
    ``standardize``, ``n_components`` and ``on_missing="drop"`` need all values first, and take a pass of their own. So
    does a table of text.

    Parameters
    ----------
    path
        As in `heatmover.read_cohort`.
    **how
        Options of `heatmover.read_cohort` by their names.

    Returns
    -------
    Cohort
        Whatever reads its values looks at them.

    Examples
    --------
    >>> import anndata, numpy as np, pandas as pd
    >>> values = np.array([[0.0], [1.0], [np.nan], [3.0]])
    >>> cells = anndata.AnnData(values, obs=pd.DataFrame({"sample": list("aabb")}, index=list("wxyz")))
    >>> cohort = read_cohort(cells, sample_key="sample")
    >>> cohort.unchecked
    True
    >>> cohort.points()
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected features without NaN or infinity, found 1 such value in 1 cell ...
    """
    return read_whole_cohort(path, look_later=True, **how)


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
        Path of a folder that keeps everything finished; None keeps nothing.
    resume
        Go on with a checkpoint that is there; another input or setting is refused. If it is not there, begin it.
    n_jobs
        Threads of this process; None for all cores.

    Examples
    --------
    >>> InPieces(memory="2 GB").record()
    {'how': 'in pieces', 'memory': '2 GB'}
    """

    memory: int | float | str = "4 GB"
    client: Any = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_truth("resume", self.resume)
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
        check_checkpoint(self.checkpoint, resume=self.resume)

    def compare(
        self,
        cohort: Cohort,
        kept: Intp,
        annotation: Annotation | None,
        parameters: StudyParameters,
        progress: Progress,
    ) -> Compared:
        """Find landmarks, count the cells at each, by type if asked for, and compare the samples."""
        model = check_model(None, random_state=parameters.random_state, n_jobs=self.n_jobs)
        return Request(cohort, self, parameters, progress, model, annotation).compare(kept)

    def record(self) -> Mapping[str, Any]:
        """Return how it compares, as plain values for JSON; where it runs and what it keeps changes no number."""
        return {"how": "in pieces", "memory": self.memory}


@final
@dataclass(frozen=True, eq=False)
class Request:
    """Which cells to count, and how.

    Attributes
    ----------
    cohort, pieces
        What, and how.
    parameters
        Of the study or of the comparison; ``landmarks="auto"``: 4,000, or a tenth of the cells if these are few.
    progress
        Told of the stages.
    model
        Without its graph; None where no samples are embedded.
    annotation
        The type of each cell, if types are to be counted apart.
    drawn
        Which cells these are, if equally many of every sample were drawn.
    """

    cohort: Cohort
    pieces: InPieces
    parameters: StudyParameters
    progress: Progress
    model: DiffusionEMD | None = None
    annotation: Annotation | None = None
    drawn: EqualDraw | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.cohort, Cohort):
            raise InvalidInputError(
                "a Cohort",
                type(self.cohort).__name__,
                "hm.scale.read_cohort makes one from a file, without loading it",
            )
        if self.pieces.client is not None and not self.cohort.source.path:
            raise InvalidInputError(
                "cells in a file, which workers can read", "an AnnData object in memory", "write it to a .zarr first"
            )
        if self.n_landmarks <= self.parameters.n_neighbors:
            raise InvalidInputError(
                f"more landmarks than {argument('n_neighbors', self.parameters.n_neighbors)}",
                f"{self.n_landmarks} for {counted(self.cohort.n_cells, 'cell')}",
                "use fewer neighbours, or compare the cells in memory, which needs no landmarks for few cells",
            )

    @property
    def n_landmarks(self) -> int:
        """How many landmarks."""
        count = self.parameters.landmarks
        assert count is not None
        return count if count != "auto" else max(1, min(LANDMARKS, self.cohort.n_cells // CELLS_PER_LANDMARK))

    @property
    def n_types(self) -> int:
        """Cell types that are counted apart; 1 for none."""
        return 1 if self.annotation is None else len(self.annotation.types)

    def compare(self, kept: Intp) -> Compared:
        """Find landmarks, count the cells at each, by type if asked for, and compare the samples that are kept."""
        request, kept = self._drawn_equally(kept)
        with cells_counted(request) as cells:
            comparison = _compare(request, kept, cells)
        some = slice(None, None, -(-len(cells.drawn.points) // MOST_CELLS))
        look = look_at(cells.drawn.points[some], cells.drawn.copies[some])
        if request.annotation is None:
            return Compared(comparison, look=look)
        annotation, masses = cells.histograms.by_type(request.annotation, kept)
        # A cell has the values of its landmark; its own would take another pass.
        values = cells.histograms.landmarks.centers[masses.nodes]
        return Compared(comparison, annotation, masses, values, self.cohort.features, look)

    def _drawn_equally(self, kept: Intp) -> tuple[Request, Intp]:
        """Return what to count, and which samples of it, if equally many cells of every sample are drawn."""
        need, budget = draw_bytes(self.cohort), check_memory(self.pieces.memory)
        if self.parameters.equal_cells is not False and need > budget:
            raise InvalidInputError(
                f"{argument('memory')} of at least {need / 1e6:,.0f} MB to draw {argument('equal_cells')} from "
                f"{counted(self.cohort.n_cells, 'cell')}",
                f"{budget / 1e6:,.0f} MB",
                "allow more",
            )
        part, kept, annotation, drawn = draw_equally(self.cohort, kept, self.annotation, self.parameters, self.progress)
        if drawn is None:
            return self, kept
        # The list of cells takes more than their samples do, and nobody asks for it here.
        return replace(self, cohort=part, annotation=annotation, drawn=replace(drawn, rows=None)), kept

    def manifest(self) -> dict[str, Any]:
        """Return what the result depends on; the number of threads and the budget are not among it."""
        settings: dict[str, Any] = {
            "landmarks": self.n_landmarks,
            "n_neighbors": self.parameters.n_neighbors,
            "random_state": self.parameters.random_state,
            "min_cells": self.parameters.min_cells or 1,
        }
        if self.annotation is not None:
            settings["cells"] = f"{self.annotation.name}, sha256:{digest(self.annotation.codes.data)}"
        if self.drawn is not None:
            settings["equal_cells"] = self.drawn.n_cells
        if self.parameters.units is not None:
            settings["units"] = self.parameters.units
        parameters = {} if self.model is None else self.model.get_params(deep=False)
        model = {f"model {key}": value for key, value in parameters.items() if key not in {"graph", "n_jobs"}}
        return {
            "heatmover": {"version": __version__},
            "input": describe_input(self.cohort),
            "settings": plain(settings | model),
        }


class CellsCounted(NamedTuple):
    """Cells drawn and counted, and what runs further stages."""

    stages: Stages
    drawn: CellsDrawn
    for_agreement: CellsDrawn
    histograms: CellCounts


@contextmanager
def cells_counted(request: Request) -> Iterator[CellsCounted]:
    """Give the cells drawn, the histograms over landmarks, and what runs further stages."""
    cohort, pieces, seed = request.cohort, request.pieces, request.parameters.random_state
    n_threads = check_threads(pieces.n_jobs)
    with executor(pieces.client, n_threads) as where:
        budget = make_budget(
            cohort, request.n_landmarks, request.parameters.n_neighbors,
            memory=check_memory(pieces.memory), n_workers=where.n_workers, n_types=request.n_types,
        )  # fmt: skip
        manifest = {} if pieces.checkpoint is None else request.manifest()
        with open_checkpoint(pieces.checkpoint, manifest, resume=pieces.resume) as store:
            stages = Stages(where, store, request.progress)
            with seekable(cohort, store.folder, request.progress, block_rows=budget.block_rows) as cells:
                with _refused_as_read(cohort, store, request.progress):
                    drawn, for_agreement = draw_cells(cells, budget, stages, seed)
                centers = find_centers(drawn, budget, stages, seed=seed, n_threads=n_threads)
                types = None if request.annotation is None else request.annotation.codes
                counts = count_cells(centers, drawn, cells, budget, stages, n_threads, types)
            yield CellsCounted(stages, drawn, for_agreement, counts)


@contextmanager
def _refused_as_read(cohort: Cohort, store: Checkpoint, progress: Progress) -> Iterator[None]:
    """Raise for an unchecked file what `heatmover.read_cohort` would have raised, and leave no checkpoint.

    A checkpoint of a file that is rejected would be in the way of the file that was fixed.
    """
    try:
        yield
    except InvalidInputError:
        if cohort.unchecked:
            try:
                cohort.checked(progress)
            except InvalidInputError as error:
                store.discard()
                raise error from None
        raise


def _compare(request: Request, kept: Intp, cells: CellsCounted) -> Comparison:
    """Compare samples by their histograms: those of ``kept``."""
    assert request.model is not None
    cohort, stages, marks = request.cohort, cells.stages, cells.histograms.landmarks
    asked, seed = request.parameters, request.parameters.random_state
    names = [cohort.names[i] for i in kept]
    measures = measures_from_weights(cells.histograms.counts[kept].astype(np.float64), names=names)
    fitted = fit_samples(
        marks.centers, measures, request.model, n_neighbors=asked.n_neighbors, units=asked.units,
        random_state=seed, progress=stages.progress,
    )  # fmt: skip
    embedding = _embed(fitted.model, measures, stages)
    stages.progress.stage("measure the agreement", 1)
    samples = np.flatnonzero(np.diff(cells.for_agreement.counts.indptr))
    agreement = landmark_agreement(
        marks, cells.for_agreement.points, measures_from_weights(cells.for_agreement.counts[samples]),
        n_points=AGREEMENT_POINTS, graph=fitted.graph, model=fitted.fitted, random_state=seed,
    )  # fmt: skip
    stages.progress.advance()
    result = compare_embedded(
        fitted, measures, cohort.sizes[kept], embedding, bias=asked.bias, n_bootstrap=asked.n_bootstrap,
        random_state=seed, progress=stages.progress,
    )  # fmt: skip
    return replace(result, landmarks=marks, landmark_agreement=agreement, drawn=request.drawn)


def _embed(model: DiffusionEMD, measures: Measures, stages: Stages) -> FloatArray:
    """Embed the samples, a few per task."""
    prepared = model.prepared_
    result = np.empty((len(measures), prepared.layout.n_features), dtype=prepared.precision)

    def fold(number: int, part: Arrays) -> None:
        start = number * SAMPLES_AT_ONCE
        result[start : start + len(part["values"])] = part["values"]

    stages.each("diffuse measures", *embedding_tasks(model, measures), fold, prepared)
    return result


# --- what a checkpoint depends on ---


def describe_input(cohort: Cohort) -> dict[str, Any]:
    """Return what identifies the cells of a cohort, their samples and what is done to them, as plain values."""
    return {
        "cells": cohort.n_cells,
        "features": list(cohort.features),
        "samples": digest("\n".join(cohort.names).encode()),
        "labels": digest(np.ascontiguousarray(cohort.codes).data),
        "projection": _projection(cohort),
        "content": _content(cohort),
        **({"measured": cohort.measured} if cohort.measured else {}),
    }


def digest(data: Any) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def _projection(cohort: Cohort) -> str:
    projection = cohort.projection
    total = hashlib.sha256()
    for part in (projection.mean, projection.scale, projection.components):
        total.update(b"none" if part is None else np.ascontiguousarray(part).data)
    reader: Any = cohort.reader
    while reader is not None:
        if isinstance(reader, ShiftedReader):
            # What was moved is made of other values: those of the file, and how these became points.
            total.update(_projection(replace(cohort, reader=reader.inner, projection=reader.projection)).encode())
            for moved in (reader.batches, reader.shifts):
                total.update(np.ascontiguousarray(moved).data)
            break
        reader = reader.inner
    return total.hexdigest()


def _content(cohort: Cohort) -> str:
    source = cohort.source
    if not source.path:  # an object in memory
        total = hashlib.sha256()
        for points, _ in cohort.chunks():
            total.update(np.ascontiguousarray(points).data)
        return f"sha256:{total.hexdigest()}"
    top = Path(source.path)
    with readable(source.path, cohort.reader.kind):
        paths = [path for path in (sorted(top.rglob("*")) if top.is_dir() else [top]) if path.is_file()]
        files = [(path.relative_to(top).as_posix(), path.stat()) for path in paths]
        if sum(status.st_size for _, status in files) <= CHECKSUM_UP_TO:
            return source.checksum
    lines = "\n".join(f"{name} {status.st_size} {status.st_mtime_ns}" for name, status in files)
    return f"sizes and times, sha256:{digest(lines.encode('utf-8', 'surrogateescape'))}"


def compare_cohort(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
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
    memory, client, checkpoint, resume, n_jobs
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
    parameters = StudyParameters(
        landmarks=landmarks, min_cells=min_cells, n_neighbors=n_neighbors, equal_cells=equal_cells, bias=bias,
        n_bootstrap=n_bootstrap, units=units, random_state=random_state,
    )  # fmt: skip
    settings = check_model(model, random_state=random_state, n_jobs=n_jobs)
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, n_jobs=settings.n_jobs
    )  # fmt: skip
    pieces.check(parameters)
    request = Request(cohort, pieces, parameters, SILENT if progress is None else progress, settings)
    kept = np.flatnonzero(cohort.sizes >= min_cells)
    if len(kept) < 2:
        raise InvalidInputError(
            "at least two samples to compare", f"{len(kept)} of at least {counted(min_cells, 'cell')}"
        )
    check_all_pairs(len(kept), "histograms, embed and nearest of hm.scale find the nearest of each")
    return request.compare(kept).comparison


def study_cohort(
    cohort: Cohort, parameters: StudyParameters | None = None, *, progress: Progress = SILENT, **options: Any
) -> Study:
    r"""Compare samples whose cells do not fit into memory, and test what is associated with the distances.

    A short name for `heatmover.study_cohort` with `InPieces` as its comparer.

    Parameters
    ----------
    cohort
        From `heatmover.study.scale.read_cohort`.
    parameters, progress
        As in `heatmover.study_cohort`.
    **options
        Attributes of `InPieces`, such as ``memory`` and ``checkpoint``, and those of `StudyParameters`.

    Returns
    -------
    Study
        Give it to `heatmover.report`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> rng = np.random.default_rng(0)
    >>> rows = [f"s{s},{'case' if s % 2 else 'control'},{x + 3 * (s % 2)},{y}"
    ...         for s in range(8) for x, y in rng.normal(size=(100, 2))]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,condition,x,y", *rows]))
    >>> result = study_cohort(read_cohort(path, sample_key="sample"), variables=["condition"], landmarks=100)
    >>> result.findings[0].groups
    {'case': 4, 'control': 4}
    """
    own = {each.name: options.pop(each.name) for each in fields(InPieces) if each.name in options}
    return study_with(cohort, parameters, comparer=InPieces(**own), progress=progress, **options)


def histograms(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
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
    cohort, landmarks, memory, client, checkpoint, resume, random_state, n_jobs, progress
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
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, n_jobs=n_jobs
    )  # fmt: skip
    parameters = StudyParameters(landmarks=landmarks, n_neighbors=1, random_state=random_state)
    pieces.check(parameters)
    with cells_counted(Request(cohort, pieces, parameters, SILENT if progress is None else progress)) as cells:
        counts = cells.histograms.counts.astype(np.float64)
        return cells.histograms.landmarks, measures_from_weights(counts, names=cohort.names)
