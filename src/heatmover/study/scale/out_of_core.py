"""Compare samples out of core by landmarks; for users (`hm.scale`), `atlas`, `cli`; reads cells, writes checkpoints.

The cells are read from the files of a cohort, and a checkpoint is written on request.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from heatmover._base.files import plain, readable
from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Intp
from heatmover._base.validation import check_memory, check_threads, check_truth
from heatmover._base.version import __version__
from heatmover._base.words import counted, find_all
from heatmover.cohort import Cohort
from heatmover.cohort import read_cohort as read_whole_cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.cohort.subsample import EqualDraw, draw_bytes
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, argument, the_argument
from heatmover.graphs import Landmarks
from heatmover.measures import Measures, measures_from_weights
from heatmover.study.cautions import MOST_CELLS, look_at
from heatmover.study.cell_types import Annotation
from heatmover.study.comparers import Compared, draw_equally
from heatmover.study.comparison import (
    LANDMARKS,
    Approximation,
    Comparison,
    check_all_pairs,
    check_model,
    check_units,
    compare_nodes,
)
from heatmover.study.genes import average_genes
from heatmover.study.parameters import COMPARED, StudyParameters, descriptions
from heatmover.study.scale.landmarks import (
    CellCounts,
    CellsDrawn,
    count_cells,
    draw_cells,
    find_centers,
    make_budget,
    seekable,
)
from heatmover.study.scale.stages import Stages, check_checkpoint, executor, open_checkpoint
from heatmover.study.study import Study
from heatmover.study.study import study_cohort as study_with

# By default, there are at least this many cells per landmark; with fewer cells, landmarks would save nothing.
CELLS_PER_LANDMARK = 10
# Inputs up to this number of bytes are identified by a checksum of all bytes, which takes some seconds. Larger inputs
# are identified by size and modification time, so a copy of such an input counts as a different input.
CHECKSUM_UP_TO = 8_000_000_000


def read_cohort(path: str | os.PathLike[str] | Any, **how: Any) -> Cohort:
    r"""Read the cells of many samples for an out-of-core comparison, without a separate pass to check values.

    `compare_cohort` and the other functions of `heatmover.scale` check every value while they draw cells, and raise the
    same errors as `heatmover.read_cohort`. An invalid value, such as NaN, therefore raises an error only after the
    first pass over the cells. ``standardize``, ``n_components``, ``on_missing="drop"`` and tables of text need a
    separate pass.

    Parameters
    ----------
    path
        As in `heatmover.read_cohort`.
    **how
        Options of `heatmover.read_cohort` by name.

    Returns
    -------
    Cohort
        The cohort. Its values are checked when they are read.

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
    """Comparer for cells that do not fit into memory: landmarks approximate the cells, which are read in blocks.

    The distances are bit-identical for any memory budget and any number of threads or workers, also after an
    interruption. Pass an object of this class to `heatmover.study_cohort` as ``comparer``.

    Attributes
    ----------
    memory
        Memory budget of this process, or of each worker on a cluster, in bytes or as text such as ``"4 GB"``. The
        memory of the interpreter and its libraries is not included. Block sizes are chosen to fit the budget; a budget
        that is too small raises an error at once.
    client
        A `distributed.Client`, or the address of a scheduler, to run on a Dask cluster; None to run in threads of this
        process.
    checkpoint
        Path of a folder that stores the results of finished tasks; None for no checkpoint.
    resume
        Continue the checkpoint if it exists, otherwise start a new one. A checkpoint that was begun with a different
        input or different settings raises an error.
    n_jobs
        Number of threads of this process; None for all cores.

    Examples
    --------
    >>> InPieces(memory="2 GB").record()
    {'how': 'out of core', 'memory': '2 GB'}
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
        """Raise if landmarks are disabled, or if the checkpoint exists although ``resume`` is false."""
        if parameters.landmarks is None:
            raise InvalidInputError(
                f"{argument('landmarks')} for cells that stay on disk",
                f"{argument('landmarks', None)}",
                f"leave out either {argument('landmarks', None)} or {the_argument('memory')}",
            )
        check_units(parameters.units)
        check_checkpoint(self.checkpoint, resume=self.resume)

    def compare(
        self, cohort: Cohort, kept: Intp, annotation: Annotation | None, parameters: StudyParameters, progress: Progress
    ) -> Compared:
        """Find landmarks, count the cells at each landmark (by type if annotated), and compare the samples."""
        model = check_model(None, random_state=parameters.random_state, n_jobs=self.n_jobs)
        return Request(cohort, self, parameters, progress, model, annotation).compare(kept)

    def record(self) -> Mapping[str, Any]:
        """Return a description of the method, without cluster and checkpoint, as plain values for JSON."""
        return {"how": "out of core", "memory": self.memory}


@final
@dataclass(frozen=True, eq=False)
class Request:
    """Request to count cells at landmarks, and to compare samples by these counts.

    Attributes
    ----------
    cohort, pieces
        The cells, and the settings of the out-of-core run.
    parameters
        Parameters of the study or of the comparison. ``landmarks="auto"``: 4,000, or a tenth of the cells if there are
        fewer than 40,000 cells.
    progress
        Receives the progress of every stage.
    model
        Model without a graph; None if samples are only counted, not embedded.
    annotation
        Type of each cell, to count types separately; None to count all types together.
    drawn
        Random draw of the same number of cells from every sample; None if all cells are used.
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
                "hm.scale.read_cohort makes a Cohort from a file, without loading the file",
            )
        if self.pieces.client is not None and not self.cohort.source.path:
            raise InvalidInputError(
                "cells in a file, which workers can read",
                "an AnnData object in memory",
                "write the AnnData to a .zarr first",
            )
        if self.n_landmarks <= self.parameters.n_neighbors:
            raise InvalidInputError(
                f"more landmarks than {argument('n_neighbors', self.parameters.n_neighbors)}",
                f"{counted(self.n_landmarks, 'landmark')} for {counted(self.cohort.n_cells, 'cell')}",
                "use fewer neighbors, or compare the cells in memory, which needs no landmarks for few cells",
            )

    @property
    def n_landmarks(self) -> int:
        """Number of landmarks."""
        count = self.parameters.landmarks
        assert count is not None
        return count if count != "auto" else max(1, min(LANDMARKS, self.cohort.n_cells // CELLS_PER_LANDMARK))

    @property
    def n_types(self) -> int:
        """Number of cell types that are counted separately; 1 without an annotation."""
        return 1 if self.annotation is None else len(self.annotation.types)

    def compare(self, kept: Intp) -> Compared:
        """Find landmarks, count the cells at each landmark (by type if annotated), and compare the ``kept`` samples."""
        request, kept = self._drawn_equally(kept)
        memory = check_memory(self.pieces.memory) // 2
        genes = average_genes(
            request.cohort, kept, request.annotation, self.parameters.genes, self.progress, memory=memory
        )
        with cells_counted(request) as cells:
            comparison = _compare(request, kept, cells)
        some = slice(None, None, -(-len(cells.drawn.points) // MOST_CELLS))
        look = look_at(cells.drawn.points[some], cells.drawn.copies[some])
        if request.annotation is None:
            return Compared(comparison, look=look)
        annotation, masses = cells.histograms.by_type(request.annotation, kept)
        if genes is not None:
            return Compared(comparison, annotation, masses, genes, genes.features, look)
        # Use the features of the landmark for each cell; reading the features of the cells would need another pass.
        values = cells.histograms.landmarks.centers[masses.nodes]
        return Compared(comparison, annotation, masses, values, self.cohort.features, look)

    def _drawn_equally(self, kept: Intp) -> tuple[Request, Intp]:
        """Draw the same number of cells from every sample if requested; return the new request and sample indices."""
        need, budget = draw_bytes(self.cohort), check_memory(self.pieces.memory)
        if self.parameters.equal_cells is not False and need > budget:
            raise InvalidInputError(
                f"{argument('memory')} of at least {need / 1e6:,.0f} MB for {argument('equal_cells')}, to draw from "
                f"{counted(self.cohort.n_cells, 'cell')}",
                f"{budget / 1e6:,.0f} MB",
                "allow more",
            )
        cohort, kept, annotation, drawn = draw_equally(
            self.cohort, kept, self.annotation, self.parameters, self.progress
        )
        if drawn is None:
            return self, kept
        # Drop the row numbers of the drawn cells: they take much memory and are not needed here.
        return replace(self, cohort=cohort, annotation=annotation, drawn=replace(drawn, rows=None)), kept

    def manifest(self) -> dict[str, Any]:
        """Return everything on which the result depends; threads and memory budget are left out."""
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
    """Stages of the run, cells drawn for k-means and for the agreement, and counts of all cells at landmarks."""

    stages: Stages
    drawn: CellsDrawn
    for_agreement: CellsDrawn
    histograms: CellCounts


@contextmanager
def cells_counted(request: Request) -> Iterator[CellsCounted]:
    """Draw cells, find landmarks, and count all cells at the landmarks; yield the results and the stages of the run.

    If the first pass finds invalid values in an unchecked file, the error is the same as in `heatmover.read_cohort`.
    """
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
                try:
                    drawn, for_agreement = draw_cells(cells, budget, stages, seed)
                except InvalidInputError:
                    try:
                        cohort.checked(request.progress)
                    except InvalidInputError as error:
                        # Remove the checkpoint of a rejected file: the checkpoint would not match the corrected file.
                        store.discard()
                        raise error from None
                    raise
                centers = find_centers(drawn, budget, stages, seed=seed, n_threads=n_threads)
                types = None if request.annotation is None else request.annotation.codes
                counts = count_cells(centers, drawn, cells, budget, stages, n_threads, types)
            yield CellsCounted(stages, drawn, for_agreement, counts)


def _compare(request: Request, kept: Intp, cells: CellsCounted) -> Comparison:
    """Compare the samples in ``kept`` by their histograms over landmarks."""
    assert request.model is not None
    cohort, asked, marks = request.cohort, request.parameters, cells.histograms.landmarks
    names = [cohort.names[i] for i in kept]
    measures = measures_from_weights(cells.histograms.counts[kept].astype(np.float64), names=names)
    counts = cells.for_agreement.counts
    drawn = measures_from_weights(counts[np.flatnonzero(np.diff(counts.indptr))])
    return compare_nodes(
        marks.centers, measures, cohort.sizes[kept], request.model,
        Approximation(marks, cells.for_agreement.points, drawn),
        drawn=request.drawn, n_neighbors=asked.n_neighbors, bias=asked.bias, n_bootstrap=asked.n_bootstrap,
        units=asked.units, random_state=asked.random_state, progress=cells.stages.progress,
    )  # fmt: skip


# --- identity of the input, for checkpoints ---


def describe_input(cohort: Cohort) -> dict[str, Any]:
    """Return plain values that identify the cells of a cohort, the samples and the projection."""
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
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _projection(cohort: Cohort) -> str:
    """Return a checksum of the projection and the batch shifts, which convert values of the file to points."""
    reader: Any = cohort.reader
    steps: list[Any] = [cohort.projection.mean, cohort.projection.scale, cohort.projection.components]
    while reader is not None:
        if isinstance(reader, ShiftedReader):
            projection = reader.projection
            steps += [projection.mean, projection.scale, projection.components, reader.batches, reader.shifts]
        reader = reader.inner
    total = hashlib.sha256()
    for step in steps:
        total.update(b"none" if step is None else np.ascontiguousarray(step).data)
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
    cohort: Cohort, *, model: DiffusionEMD | None = None, progress: Progress = SILENT, **options: Any
) -> Comparison:
    r"""Compare samples whose cells do not fit into memory: landmarks approximate the cells, which are read in blocks.

    The distances are bit-identical for any memory budget and any number of threads or workers, also after an
    interruption.

    Parameters
    ----------
    cohort
        Cohort from `heatmover.scale.read_cohort`. A cohort from `heatmover.read_cohort` also works, but takes one more
        pass over the file. On a cluster, every worker needs access to the files under the same path.
    model
        As in `heatmover.compare`.
    progress
        Receives the progress of every stage; stages that read cells report the number of cells.
    **options
        Attributes of `InPieces`: ``memory``, ``client``, ``checkpoint``, ``resume`` and ``n_jobs``. Attributes of
        `StudyParameters`: ``n_neighbors``, ``landmarks`` (``"auto"``: 4,000, or a tenth of the cells if there are fewer
        than 40,000), ``min_cells``, ``equal_cells``, ``bias`` (``"raw"`` by default, as in `heatmover.compare`),
        ``n_bootstrap``, ``units`` and ``random_state``.

    Returns
    -------
    Comparison
        Comparison as returned by `heatmover.compare`, with landmarks and their agreement, which is measured on about
        10,000 cells.

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
    pieces, changes = _divide(options, (*COMPARED, "min_cells"))
    parameters = StudyParameters(**{"bias": "raw", **changes})
    settings = check_model(model, random_state=parameters.random_state, n_jobs=pieces.n_jobs)
    pieces = replace(pieces, n_jobs=settings.n_jobs)
    pieces.check(parameters)
    request, min_cells = Request(cohort, pieces, parameters, progress, settings), parameters.min_cells or 1
    kept = np.flatnonzero(cohort.sizes >= min_cells)
    if len(kept) < 2:
        raise InvalidInputError(
            "at least two samples to compare",
            f"{counted(len(kept), 'sample')} with at least {counted(min_cells, 'cell')}",
        )
    check_all_pairs(
        len(kept), "hm.scale.histograms, hm.scale.embed and hm.scale.nearest find the nearest samples of each sample"
    )
    return request.compare(kept).comparison


def study_cohort(
    cohort: Cohort, parameters: StudyParameters | None = None, *, progress: Progress = SILENT, **options: Any
) -> Study:
    r"""Compare samples whose cells do not fit into memory, and test sample metadata.

    This function is a shortcut for `heatmover.study_cohort` with the comparer `InPieces`.

    Parameters
    ----------
    cohort
        Cohort from `heatmover.study.scale.read_cohort`.
    parameters, progress
        As in `heatmover.study_cohort`.
    **options
        Attributes of `InPieces`, such as ``memory`` and ``checkpoint``, and attributes of `StudyParameters`.

    Returns
    -------
    Study
        The study, which `heatmover.report` renders.

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
    pieces, changes = _divide(options, descriptions(StudyParameters))
    return study_with(cohort, parameters, comparer=pieces, progress=progress, **changes)


def _divide(options: Mapping[str, Any], parameters: Collection[str]) -> tuple[InPieces, dict[str, Any]]:
    """Split options into an `InPieces` and study parameters; raise for an unknown name."""
    own = [each.name for each in fields(InPieces)]
    find_all(options, (*own, *parameters), "an option of an out-of-core run", most=len(own) + len(parameters))
    pieces = InPieces(**{name: options[name] for name in own if name in options})
    return pieces, {name: value for name, value in options.items() if name not in own}


def histograms(cohort: Cohort, *, progress: Progress = SILENT, **options: Any) -> tuple[Landmarks, Measures]:
    r"""Find landmarks and count the cells of every sample at each landmark, without loading the cells.

    `compare_cohort` begins with these steps. Unlike `compare_cohort`, this function accepts any number of samples.

    Parameters
    ----------
    cohort, progress
        As in `compare_cohort`.
    **options
        As in `compare_cohort`: attributes of `InPieces`, ``landmarks`` and ``random_state``.

    Returns
    -------
    landmarks : Landmarks
        Landmarks of the cells; their ``graph()`` is the graph for a model.
    measures : Measures
        Samples as masses on the landmarks, ``(n_samples, n_landmarks)``.

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
    pieces, changes = _divide(options, ("landmarks", "random_state"))
    parameters = StudyParameters(n_neighbors=1, **changes)
    pieces.check(parameters)
    with cells_counted(Request(cohort, pieces, parameters, progress)) as cells:
        counts = cells.histograms.counts.astype(np.float64)
        return cells.histograms.landmarks, measures_from_weights(counts, names=cohort.names)
