"""`study_cohort`: samples compared, their variables examined, and everything that a report needs to know."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Bool, Float64, FloatArray, Int32, Intp
from heatmover._base.validation import check_threads, import_extra, sample_columns
from heatmover._base.words import counted, find, find_all, listed, percent, quoted, verb
from heatmover.cohort import Cohort
from heatmover.cohort.draw import EqualDraw, draw_from, drawn_cohort, equal_count
from heatmover.cohort.values import block_rows
from heatmover.errors import EmbeddingWarning, GraphWarning, HeatmoverError, InvalidInputError, Sentence, argument
from heatmover.measures import is_missing, measures_from_weights
from heatmover.statistics import Design, DesignResult
from heatmover.statistics.designs import check_design
from heatmover.statistics.metrics import centered_ranks
from heatmover.study.batches import align_cohort, check_batches
from heatmover.study.cautions import (
    MOST_CELLS,
    NOISY,
    SMALL_SAMPLE,
    CellLook,
    cell_cautions,
    look_at,
    noise_sentences,
    table_cautions,
    unreliable,
)
from heatmover.study.cell_types import (
    Annotation,
    CellContrast,
    CellMasses,
    SampleComposition,
    annotate,
    check_reference,
    cluster_cells,
    cluster_note,
    clusters_wanted,
    contrast_cells,
    shares_of,
)
from heatmover.study.comparison import Comparison, check_all_pairs, check_enough_samples, check_units, compare
from heatmover.study.examination import (
    Finding,
    check_adjusted,
    design_of,
    examine,
    examine_design,
    out_of_reach,
)
from heatmover.study.parameters import COMPARED, StudyParameters
from heatmover.study.variables import as_groups, known_values, read_variables

__all__ = [
    "Clock",
    "Compared",
    "Comparer",
    "InMemory",
    "SampleDesign",
    "Study",
    "StudyRecord",
    "check_components",
    "check_study",
    "choose_variables",
    "draw_equally",
    "input_record",
    "study_cohort",
    "study_comparison",
    "versions",
]


class Compared(NamedTuple):
    """Samples compared, and their cells by type.

    Attributes
    ----------
    comparison
        Of the samples.
    annotation
        The type of each cell, or of each group of equal cells; None if none was asked for.
    cells
        The cells, or groups of cells, for which the points of the graph stand; None if they are the points.
    features, feature_names
        Values of the cells, or of the landmarks of groups of cells, ``(n_cells, n_features)``, and their names; None if
        they are not known.
    look
        Figures of some of the cells, for cautions; None if nobody looked.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(4, points_per_measure=30)
    >>> Compared(hm.compare(data.points, data.labels, n_neighbors=8)).annotation is None
    True
    """

    comparison: Comparison
    annotation: Annotation | None = None
    cells: CellMasses | None = None
    features: FloatArray | None = None
    feature_names: tuple[str, ...] = ()
    look: CellLook | None = None


class Comparer(Protocol):
    """Compares samples; a study calls `check` before anything is read and `compare` once.

    Examples
    --------
    Whatever has the three methods is a comparer. This one allows few landmarks only:

    >>> class Few:
    ...     def check(self, parameters):
    ...         if parameters.landmarks == "auto" or parameters.landmarks > 1000:
    ...             raise ValueError("at most 1,000 landmarks")
    ...     def compare(self, *given):
    ...         return InMemory().compare(*given)
    ...     def record(self):
    ...         return {"how": "with few landmarks"}
    >>> comparer: Comparer = Few()
    """

    def check(self, parameters: StudyParameters) -> None:
        """Raise if this comparer cannot do what is asked for."""

    def compare(
        self,
        cohort: Cohort,
        kept: Intp,
        annotation: Annotation | None,
        parameters: StudyParameters,
        progress: Progress,
    ) -> Compared:
        """Compare the samples of a cohort.

        Parameters
        ----------
        cohort
            From `heatmover.read_cohort`.
        kept
            Which of its samples, ascending.
        annotation
            The type of each cell of the cohort, ``(n_cells,)``; None if nobody asks for types.
        parameters
            Of the study.
        progress
            Told of all stages.
        """

    def record(self) -> Mapping[str, Any]:
        """Return how it compares, as plain values for JSON."""


def draw_equally(
    cohort: Cohort,
    kept: Intp,
    annotation: Annotation | None,
    parameters: StudyParameters,
    progress: Progress,
) -> tuple[Cohort, Intp, Annotation | None, EqualDraw | None]:
    """Return the cells to compare: all, or equally many of every sample if that is asked for.

    Parameters
    ----------
    cohort, kept, annotation, parameters, progress
        As in `Comparer.compare`.

    Returns
    -------
    cohort, kept, annotation
        Of the cells drawn.
    drawn : EqualDraw or None
        Which they are; None for all.
    """
    count = equal_count(parameters.equal_cells, cohort.sizes[kept], [cohort.names[i] for i in kept])
    if not count:
        return cohort, kept, annotation, None
    part, drawn = drawn_cohort(cohort, kept, count, random_state=parameters.random_state, progress=progress)
    own = None if annotation is None else annotation._replace(codes=annotation.codes[drawn.rows])
    return part, np.arange(len(kept)), own, drawn


def _some(points: FloatArray, codes: Int32, seed: int) -> FloatArray:
    """Return the cells that tell of all, those that `draw_cells` draws; in blocks, as hashes take memory."""
    if len(points) <= MOST_CELLS:
        return points
    size = block_rows(points.shape[1])
    blocks = ((points[i : i + size], codes[i : i + size]) for i in range(0, len(points), size))
    return draw_from(blocks, int(codes.max()) + 1, MOST_CELLS, seed)[0]


@final
@dataclass(frozen=True)
class InMemory:
    """Compares samples whose cells are all in memory at once.

    Attributes
    ----------
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Examples
    --------
    >>> InMemory(n_jobs=2).record()
    {'how': 'in memory'}
    """

    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_threads(self.n_jobs)

    def check(self, parameters: StudyParameters) -> None:
        """Raise if units are asked for and the package that solves pairs exactly is missing."""
        check_units(parameters.units)

    def compare(
        self,
        cohort: Cohort,
        kept: Intp,
        annotation: Annotation | None,
        parameters: StudyParameters,
        progress: Progress,
    ) -> Compared:
        """Read all cells and compare the samples, see `heatmover.compare`."""
        cohort, kept, annotation, drawn = draw_equally(cohort, kept, annotation, parameters, progress)
        place = np.full(len(cohort.names), -1)
        place[kept] = np.arange(len(kept))
        codes = place[cohort.codes]
        inside = codes >= 0
        points = cohort.points() if inside.all() else cohort.points()[inside]
        codes = codes[inside]
        look = look_at(_some(points, cohort.codes[inside], parameters.random_state))
        shape = (len(kept), codes.size)
        weights = sp.csr_array((np.ones(codes.size), (codes, np.arange(codes.size))), shape=shape)
        samples = measures_from_weights(weights, names=[cohort.names[i] for i in kept])
        # Cells were drawn already, so that types are those of the cells drawn.
        settings = {name: getattr(parameters, name) for name in COMPARED} | {"equal_cells": False}
        comparison = replace(compare(points, samples, n_jobs=self.n_jobs, progress=progress, **settings), drawn=drawn)
        if annotation is None:
            return Compared(comparison, look=look)
        annotation = annotation._replace(codes=annotation.codes[inside])
        marks = comparison.landmarks
        nodes = None if marks is None else marks.assign(points, n_jobs=self.n_jobs)
        cells = None if nodes is None else CellMasses(samples.masses, nodes)
        return Compared(comparison, annotation, cells, points, cohort.features, look)

    def record(self) -> Mapping[str, Any]:
        """Return how it compares, as plain values for JSON."""
        return {"how": "in memory"}


# What `study_comparison` takes of the parameters; the others are of the comparison.
TESTED = ("adjust", "formula", "reference", "numeric", "categorical", "n_permutations", "random_state")
PACKAGES = ("heatmover", "numpy", "scipy", "scikit-learn", "numba", "pandas", "anndata", "plotly")


@final
@dataclass(frozen=True)
class StudyRecord:
    """How a study was made.

    Attributes
    ----------
    input
        What was read: name, format, checksum, numbers of samples and cells, names of dimensions; None if nothing was.
    parameters
        What was asked for: `StudyParameters` by name.
    compared
        How the samples were compared: in memory, or in pieces.
    seconds
        That each stage took, by its name.
    versions
        Of Python and of packages, by name.

    Examples
    --------
    >>> StudyRecord(None, {"random_state": 0}, {"how": "before"}, {}, versions()).parameters["random_state"]
    0
    """

    input: Mapping[str, Any] | None
    parameters: Mapping[str, Any]
    compared: Mapping[str, Any]
    seconds: Mapping[str, float]
    versions: Mapping[str, str]


def input_record(cohort: Cohort) -> dict[str, Any]:
    """Return what the input was; its name without the folder, which is nobody else's business."""
    source = cohort.source
    return {
        "name": Path(source.path).name,
        "format": source.format,
        "checksum": source.checksum,
        "sample_sheet": Path(source.sample_sheet).name,
        "samples": len(cohort.names),
        "cells": cohort.n_cells,
        "dimensions": list(cohort.features),
        "varying": dict(cohort.varying),
        "unused": dict(cohort.unused),
        **({"measured": cohort.measured} if cohort.measured else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    known = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:  # an extra that this result did not need
            continue
    return known


@final
class Clock:
    """Progress that passes everything on and notes how long each stage took."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner
        self._begun = 0.0
        self._name = ""
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """What each stage took that has ended, to the millisecond."""
        return {name: round(value, 3) for name, value in self._seconds.items()}

    def stage(self, name: str, total: int) -> None:
        """Begin a stage."""
        self.end()
        self._name, self._begun = name, time.perf_counter()
        self._inner.stage(name, total)

    def advance(self, steps: int = 1) -> None:
        """Pass it on."""
        self._inner.advance(steps)

    def end(self) -> None:
        """End the stage that runs."""
        if self._name:
            self._seconds[self._name] = time.perf_counter() - self._begun
            self._name = ""


# Below this Spearman correlation of the size of samples with the distance to the nearest the reader is warned: two
# draws of few cells from one distribution differ by luck alone (kidney biopsies of 2 to 415 glomeruli: -0.8).
SIZE_MATTERS = -0.4
# A larger share of the cells outside the largest component is no accident of a few outliers: distances between
# components then say only that they are apart, not how far.
MOST_APART = 0.05


@final
@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """A comparison of samples and what it says of their variables; `study_cohort` makes one.

    Attributes
    ----------
    comparison
        Distances, embedding, graph and model.
    variables
        DataFrame with one row per sample in the order of ``comparison.names``.
    findings
        Of the variables examined, in the order asked for.
    notes
        What the reader should know before believing the result, in sentences.
    record
        How it was made: input with checksum, parameters, versions, seconds per stage.
    contrast
        Which cell types differ between the groups of the first such variable; None without an annotation of cells.
    about_noise
        How sure the distances are, in sentences; empty if their noise was not assessed.
    design
        What each term of the formula explains with the others held fixed; or what each covariate explains in turn, and
        then the first variable. None without covariates.
    composition
        What share of each sample's cells every type has; None without an annotation of cells.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> result = study_comparison(hm.compare(data.points, data.labels), {"condition": data.annotations["condition"]})
    >>> print(result.headline())
    'condition' goes with the distances between the 12 samples...
    """

    comparison: Comparison
    variables: Any
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    record: StudyRecord
    contrast: CellContrast | None = None
    about_noise: tuple[str, ...] = ()
    design: DesignResult | None = None
    composition: SampleComposition | None = None

    @property
    def block(self) -> str:
        """Name of the variable that ties samples together, several with "and" between them; empty for none."""
        block = self.record.parameters.get("block") or ""
        return block if isinstance(block, str) else " and ".join(block)

    def headline(self) -> str:
        """Return the answer in one sentence: of the first variable asked for that could be tested."""
        n_samples = len(self.comparison.names)
        tested = [finding for finding in self.findings if finding.answer is not None]
        if not tested:
            return f"{counted(n_samples, 'sample')} were compared; no variable of theirs could be tested."
        first = tested[0]
        answer = first.answer
        assert answer is not None
        name, p = quoted(first.variable), f"p = {answer.p_value:.2g}"
        within = (
            ""
            if first.pairs is None
            else f", {percent(first.pairs.explained)} of the variation within {first.pairs.noun}s"
        )
        size = f"it {first.size}{within}"
        between = f"the distances between the {counted(n_samples, 'sample')}{first.beside}"
        if first.undecided:
            cannot = out_of_reach(*first.limit, f"the test of {between}")
            return f"{cannot}: {name} {first.size}{within} ({p})."
        if first.sure:
            return f"{name} goes with {between}: {size} ({p})."
        if answer.p_value <= 0.05:
            return (
                f"{name} may go with {between}: {size} ({p}), which is not sure among "
                f"{counted(len(tested), 'variable')} tested."
            )
        return f"No sign that {name} goes with {between}: {size} ({p})."

    def reworded(self, words: Callable[[str], str]) -> Study:
        """Return the study with its notes in other words, such as those of the command line."""
        findings = tuple(replace(finding, note=words(finding.note)) for finding in self.findings)
        notes, noise = (tuple(map(words, sentences)) for sentences in (self.notes, self.about_noise))
        comparison = copy(self.comparison)
        diagnosis = comparison.diagnosis
        vars(comparison)["diagnosis"] = replace(diagnosis, advice=tuple(map(words, diagnosis.advice)))
        return replace(self, comparison=comparison, findings=findings, notes=notes, about_noise=noise)

    def plain(self) -> dict[str, Any]:
        """Return how it was made and what was found, as plain values for JSON; run.json holds them."""
        comparison, model = self.comparison, self.comparison.model
        settings = {
            name: value for name, value in model.get_params(deep=False).items() if name not in {"graph", "n_jobs"}
        }
        agreement, noise = comparison.landmark_agreement, comparison.uncertainty
        return {
            "input": self.record.input,
            "parameters": dict(self.record.parameters),
            "compared": dict(self.record.compared),
            "samples": len(comparison.names),
            "cells": int(comparison.sizes.sum()),
            "graph": dict(comparison.graph.construction),
            "model": settings | {"method_": model.method_, "method_reason_": model.method_reason_},
            "max_scale": {"value": int(model.max_scale_), "reason": comparison.max_scale_reason},
            "scale_shares": dict(zip(map(str, model.scales_.tolist()), comparison.scale_shares.tolist(), strict=True)),
            "landmarks": None if agreement is None else asdict(agreement),
            "drawn": None if comparison.drawn is None else comparison.drawn.plain(),
            "units": None if comparison.calibration is None else comparison.calibration.plain(),
            "uncertainty": None if noise is None else noise.plain(comparison.noise_floor),
            "diagnosis": asdict(comparison.diagnosis),
            "findings": [finding.plain() for finding in self.findings],
            "design": None if self.design is None else self.design.plain(),
            "contrast": None if self.contrast is None else self.contrast.plain(),
            "notes": list(self.notes),
            "seconds": dict(self.record.seconds),
            "versions": dict(self.record.versions),
        }

    def __repr__(self) -> str:
        return f"Study({self.headline()})"


class SampleDesign(NamedTuple):
    """What is asked of the samples: variables, those to examine, blocks by name, covariates, and notes so far."""

    table: Any
    chosen: Sequence[str]
    blocks: Mapping[str, Sequence[object]] | None
    covariates: Design | None
    notes: tuple[str, ...]


def study_cohort(
    cohort: Cohort,
    parameters: StudyParameters | None = None,
    *,
    comparer: Comparer | None = None,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> Study:
    r"""Compare the samples of a cohort and test what goes with the distances.

    Parameters
    ----------
    cohort
        From `heatmover.read_cohort`.
    parameters
        What is asked for; default `heatmover.study.StudyParameters` as they are.
    comparer
        How to compare; default all cells in memory, on ``n_jobs`` threads. `heatmover.scale.InPieces` compares cells
        that do not fit.
    n_jobs
        Threads of the default comparer; None for all cores.
    progress
        Told of all stages.
    **changes
        Parameters by their names: ``variables``, ``block``, ``adjust``, ``formula``, ``cells``, ``clusters``,
        ``reference``, ``numeric``, ``categorical``, ``min_cells``, ``allow_components``, ``n_neighbors``,
        ``landmarks``, ``equal_cells``, ``bias``, ``n_bootstrap``, ``units``, ``n_permutations``, ``random_state``; see
        `heatmover.study.StudyParameters`.

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
    ...         for s in range(8) for x, y in rng.normal(size=(30, 2))]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,condition,x,y", *rows]))
    >>> result = study_cohort(read_cohort(path, sample_key="sample"), variables=["condition"])
    >>> result.findings[0].groups
    {'case': 4, 'control': 4}
    """
    asked = StudyParameters.named(parameters, changes)
    if comparer is None:
        comparer = InMemory(n_jobs)
    elif n_jobs is not None:
        raise InvalidInputError("n_jobs in the comparer", f"n_jobs={n_jobs} beside it", "give it to the comparer alone")
    comparer.check(asked)
    watch = Clock(progress)
    kept, design = check_study(cohort, asked)
    assert design is not None
    aligned, moved = cohort, tuple[str, ...]()
    if asked.align_batch is not None:
        watch.stage("align batches", 1)
        aligned, alignment = align_cohort(cohort, kept, *_batches(design.table, asked), numeric=asked.numeric)
        moved = (alignment.describe(asked.align_batch),)
        watch.advance()
    annotation, told = _annotation(cohort, aligned, asked, getattr(comparer, "n_jobs", None), watch)
    with _quiet() as warned:
        compared = comparer.compare(aligned, kept, annotation, asked, watch)
    compact = [_text(warning) for warning in warned if issubclass(warning.category, EmbeddingWarning)]
    told = (*told, *moved, *cell_cautions(cohort, kept, asked, compared.look))
    notes = (*_left_out_notes(cohort, kept, asked.min_cells), *cohort.warnings, *compact, *told)
    watch.stage("diagnose graph", 1)
    if not asked.allow_components:
        _check_whole(compared.comparison)
    watch.advance()
    return _finish(
        compared, design._replace(notes=notes), watch, asked, source=input_record(cohort),
        parameters=asked.record() | {"variables": list(design.chosen)}, how=comparer.record(),
    )  # fmt: skip


def check_study(
    cohort: Cohort, asked: StudyParameters, refusals: list[str] | None = None
) -> tuple[Intp, SampleDesign | None]:
    """Return the samples to compare and what is asked of them, before any cell is read, or raise if that cannot be.

    Parameters
    ----------
    cohort, asked
        The samples, and the parameters of the study.
    refusals
        Every reason against the study is appended here instead of raised, so that a reader can fix all of them; the
        samples are then all, and their design None, where it is theirs that cannot be.
    """
    kept = np.arange(len(cohort.names))
    with _noted(refusals):
        kept = _enough_cells(cohort, asked.min_cells)
    with _noted(refusals):
        _check_noise(cohort, kept, asked)
    with _noted(refusals):
        equal_count(asked.equal_cells, cohort.sizes[kept], [cohort.names[i] for i in kept])
    if asked.units is not None:
        with _noted(refusals):
            check_units(asked.units)
        with _noted(refusals):
            check_enough_samples(len(kept))
    before, table, chosen = len(refusals or ()), cohort.samples.iloc[kept], list[str]()
    for name in (*asked.numeric, *asked.categorical):
        with _noted(refusals):
            cohort.variable(name)
    with _noted(refusals):
        table = read_variables(table, asked.numeric, asked.categorical)
    wanted = asked.variables if asked.formula is None else asked.design
    for names in (None,) if wanted is None else [[name] for name in dict.fromkeys(wanted)]:
        with _noted(refusals):
            chosen += choose_variables(cohort, table, names, (*asked.blocks, *asked.design))
    cells = asked.cells
    if refusals is not None and cells is not None and clusters_wanted(cohort, asked) is None:
        with _noted(refusals):
            annotate(cells, cohort.annotation(cells), cohort.n_cells)
    if asked.reference is not None and chosen:
        with _noted(refusals):
            check_reference(asked.reference, {name: table[name].tolist() for name in chosen})
    blocks: dict[str, Sequence[object]] = {}
    for name in asked.blocks:
        with _noted(refusals):
            blocks[name] = _check_block(cohort.variable(name).iloc[kept], name)
    if len(refusals or ()) > before:
        return kept, None
    covariates = None
    with _noted(refusals):
        for name in asked.design:
            cohort.variable(name)
        covariates = _covariates(table, blocks or None, asked)
    if asked.align_batch is not None:
        with _noted(refusals):
            for name in (asked.align_batch, asked.anchors or asked.align_batch):
                cohort.variable(name)
            check_batches(*_batches(table, asked), numeric=asked.numeric)
    return kept, SampleDesign(table, chosen, blocks or None, covariates, ())


@contextmanager
def _noted(refusals: list[str] | None) -> Iterator[None]:
    """Note an error among others, if there is a list of them, or let it pass."""
    try:
        yield
    except HeatmoverError as error:
        if refusals is None:
            raise
        refusals.append(error.sentence)


def _annotation(
    cohort: Cohort, aligned: Cohort, asked: StudyParameters, n_jobs: int | None, progress: Progress
) -> tuple[Annotation | None, tuple[str, ...]]:
    """Return the type of each cell, from the file or by clusters of the cells as they are compared, and what to say."""
    n_clusters = clusters_wanted(cohort, asked)
    if n_clusters is not None:
        clusters = cluster_cells(aligned, n_clusters, random_state=asked.random_state, n_jobs=n_jobs, progress=progress)
        return clusters, (cluster_note(clusters),)
    if asked.cells is None:
        return None, ()
    return annotate(asked.cells, cohort.annotation(asked.cells), cohort.n_cells), ()


def study_comparison(
    comparison: Comparison,
    variables: Mapping[str, Any] | Any | None = None,
    *,
    blocks: Mapping[str, Any] | Any | None = None,
    cells: Mapping[str, Any] | Any | None = None,
    source: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> Study:
    """Examine the variables of samples that were compared already.

    Parameters
    ----------
    comparison
        From `compare`.
    variables
        Values ``(n_samples,)`` by name, in the order of ``comparison.names``: a mapping, or a DataFrame (by its index
        if that holds the names). The most important first.
    cells
        Type of each point of the graph, ``(n_points,)``, such as that of each cell; in a mapping of one entry, or a
        Series, it has a name. With landmarks these are the points: `study_cohort` counts every cell for its own type.
    source
        What the samples were made from, for the record: ``"name"``, ``"format"``, ``"dimensions"`` and the like.
    blocks, progress
        As in `examine`.
    **changes
        Parameters by their names: ``adjust`` and ``formula`` of these variables, ``reference``, ``numeric``,
        ``categorical``, ``n_permutations``, ``random_state``; see `heatmover.study.StudyParameters`.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> comparison, condition = hm.compare(data.points, data.labels), data.annotations["condition"]
    >>> branch = {"branch": data.coordinates[:, 0].astype(int)}
    >>> study_comparison(comparison, {"condition": condition}, cells=branch).contrast
    CellContrast(case against control, 5 types of branch)
    """
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    names = list(comparison.names)
    watch = Clock(progress)
    columns = {} if variables is None else sample_columns(variables, names)
    # An order of categories is part of a column's type.
    given = {} if variables is None else variables
    kinds = {place: given[key].dtype for place, key in enumerate(given) if hasattr(given[key], "dtype")}
    # The text type of pandas 3 cannot hold a lone surrogate, so texts and names are objects, and names come last.
    index = pandas.Index(names, dtype=object, name="sample")
    kept = [object if any(isinstance(value, str) for value in column) else None for column in columns.values()]
    series = [pandas.Series(column, index, kind) for column, kind in zip(columns.values(), kept, strict=True)]
    table = pandas.DataFrame(dict(enumerate(series)), index=index)
    table = table.astype(kinds)
    table.columns = pandas.Index(list(columns), dtype=object)
    chosen = list(columns)
    annotation = None if cells is None else _named(cells, comparison.graph.n_points)
    tied = _named_blocks(blocks)
    find_all(changes, TESTED, "a parameter of tests")
    named = None if annotation is None else annotation.name or "cells"
    asked = StudyParameters(block=list(tied), cells=named, **changes)
    table = read_variables(table, asked.numeric, asked.categorical)
    for name in asked.design:
        find(name, chosen, f"a variable of the samples in {argument('adjust' if asked.formula is None else 'formula')}")
    chosen = list(asked.design) if asked.formula is not None else [name for name in chosen if name not in asked.adjust]
    if asked.reference is not None:
        check_reference(asked.reference, {name: table[name].tolist() for name in chosen})
    covariates = _covariates(table, tied or None, replace(asked, variables=None if asked.formula else chosen))
    record = asked.record() | {"variables": chosen}
    return _finish(
        Compared(comparison, annotation), SampleDesign(table, chosen, tied or None, covariates, ()), watch, asked,
        source=source, how={"how": "before"},
        parameters={name: record[name] for name in ("variables", "block", "cells", *TESTED)},
    )  # fmt: skip


def _named_blocks(blocks: Any) -> dict[str, Any]:
    """Return blocks by name; those of one variable without a name are called so."""
    if blocks is None:
        return {}
    if hasattr(blocks, "columns") or isinstance(blocks, Mapping):
        return {str(name): list(blocks[name]) for name in blocks}
    return {"blocks": list(blocks)}


def _finish(
    compared: Compared,
    design: SampleDesign,
    watch: Clock,
    asked: StudyParameters,
    *,
    source: Mapping[str, Any] | None,
    parameters: Mapping[str, Any],
    how: Mapping[str, Any],
) -> Study:
    """Examine the variables of samples that were compared, contrast their cells, and put the study together."""
    comparison = compared.comparison
    findings = examine(
        comparison.test_distances,
        {name: design.table[name].tolist() for name in design.chosen},
        blocks=design.blocks,
        adjust=design.covariates,
        shown=comparison.distances,
        numeric=[name for name in asked.numeric if name in design.chosen],
        categorical=[name for name in asked.categorical if name in design.chosen],
        progress=watch,
        **asked.tests,
    )
    terms, left_out = _terms(comparison, findings, design, asked)
    notes = (
        *design.notes,
        *table_cautions(
            design.table,
            design.chosen,
            comparison.sizes,
            asked,
            blocks=design.blocks,
            adjust=() if design.covariates is None else design.covariates.names,
            bias=comparison.bias,
        ),
        *left_out,
        *_comparison_notes(comparison),
    )
    contrast = None
    if compared.annotation is not None:
        watch.stage("contrast cells", 1)
        try:
            contrast = _contrast(compared, design, findings, asked)
        except InvalidInputError as error:
            why = error.sentence.marked
            notes = (*notes, Sentence(f"Which types of {quoted(compared.annotation.name)} differ: {why}"))
        watch.advance()
    watch.end()
    record = StudyRecord(source, parameters, how, watch.seconds, versions())
    composition = None
    if compared.annotation is not None:
        masses = comparison.measures.masses if compared.cells is None else compared.cells.masses
        composition = shares_of(compared.annotation, masses)
    noise = noise_sentences(comparison)
    return Study(comparison, design.table, findings, notes, record, contrast, noise, terms, composition)


def _terms(
    comparison: Comparison, findings: Sequence[Finding], design: SampleDesign, asked: StudyParameters
) -> tuple[DesignResult | None, tuple[str, ...]]:
    """Return what each term of the design explains, and a note if that cannot be told."""
    first = next((finding for finding in findings if finding.answer is not None), None)
    if design.covariates is None or first is None:
        return None, ()
    known, terms = np.ones(len(design.table), dtype=bool), design.covariates
    try:
        if asked.formula is None:
            known, terms = _after_covariates(design, first)
        blocks = {name: np.asarray(labels, object)[known] for name, labels in (design.blocks or {}).items()}
        part = np.ix_(known, known)
        result = examine_design(
            comparison.test_distances[part], terms, by="margin" if asked.formula else "terms",
            blocks=blocks or None, shown=comparison.distances[part], **asked.tests,
        )  # fmt: skip
    except InvalidInputError as error:
        return None, (Sentence(f"What each covariate explains: {error.sentence.marked}"),)
    return result, ()


def _after_covariates(design: SampleDesign, finding: Finding) -> tuple[Bool, Design]:
    """Return which samples have a value of a variable, and the covariates and then the variable as their design."""
    known, kept = known_values(design.table[finding.variable].tolist())
    assert design.covariates is not None
    held = design.covariates.take(known)
    tested = design_of({finding.variable: kept}, numeric=[finding.variable] if finding.kind == "number" else [])
    return known, Design((*held.terms, *tested.terms), held.n_samples)


def _contrast(
    compared: Compared,
    design: SampleDesign,
    findings: Sequence[Finding],
    asked: StudyParameters,
) -> CellContrast:
    """Return which cell types differ between the groups of the first variable that has groups, and the reference."""
    tested = [finding.variable for finding in findings if finding.kind == "groups" and finding.answer is not None]
    if asked.reference is not None and tested:
        tested = [check_reference(asked.reference, {name: design.table[name].tolist() for name in tested})]
    if not tested:
        raise InvalidInputError("a variable of the samples with groups that could be tested", "none")
    name = tested[0]
    unadjusted = next(finding.adjusted for finding in findings if finding.variable == name)
    assert compared.annotation is not None
    return contrast_cells(
        compared.comparison, compared.annotation, design.table[name], variable=name, reference=asked.reference,
        blocks=_one_or_several(design.blocks), cells=compared.cells, features=compared.features,
        feature_names=compared.feature_names, unadjusted=unadjusted, **asked.tests,
    )  # fmt: skip


def _one_or_several(blocks: Mapping[str, Any] | None) -> Any:
    return next(iter(blocks.values())) if blocks is not None and len(blocks) == 1 else blocks


def _named(cells: Any, n_points: int) -> Annotation:
    """Return the type of each point, with the name that it has."""
    if isinstance(cells, Mapping):
        if len(cells) != 1:
            raise InvalidInputError("cells: one annotation", f"{len(cells)}")
        ((name, values),) = cells.items()
        return annotate(str(name), values, n_points)
    name = getattr(cells, "name", None)
    return annotate("cell type" if name is None else str(name), cells, n_points)


def _enough_cells(cohort: Cohort, min_cells: int | None) -> Intp:
    """Return which samples to keep, or raise if they are too few, too small or too many."""
    least = min_cells or 1
    single = [name for name, size in zip(cohort.names, cohort.sizes, strict=True) if size < 2]
    if min_cells is None and single:
        raise InvalidInputError(
            "at least two cells in every sample",
            f"one in {len(single)} of {counted(len(cohort.names), 'sample')} ({listed(single)})",
            f"{argument('min_cells', 2)} leaves them out, {argument('min_cells', 1)} keeps them",
        )
    kept = np.flatnonzero(cohort.sizes >= least)
    if len(kept) < 2:
        raise InvalidInputError(
            f"at least two samples{f' of {least} cells' if least > 1 else ''} to compare",
            f"{len(kept)} of {len(cohort.names)}",
            f"lower {argument('min_cells')}" if len(cohort.names) > 1 else "check the column that names the samples",
        )
    check_all_pairs(len(kept))  # before the cells are read
    return kept


def _check_noise(cohort: Cohort, kept: Intp, asked: StudyParameters) -> None:
    """Raise, before any cell is read, if noise is to be assessed and every sample has a single cell."""
    if (asked.bias == "corrected" or asked.n_bootstrap) and cohort.sizes[kept].max() < 2:
        raise InvalidInputError(
            "a sample of at least two cells, to tell noise from difference",
            f"{counted(len(kept), 'sample')} of 1 cell",
            f"{argument('bias', 'raw')} compares them as they are",
        )


def choose_variables(
    cohort: Cohort, table: Any, variables: Sequence[str] | None, apart: str | Sequence[str] | None
) -> list[str]:
    """Return the variables to examine; those asked for by name must be there and vary.

    ``apart`` names those that nobody needs to ask for: blocks and covariates.
    """
    if variables is None:
        left = {apart} if isinstance(apart, str) else set(apart or ())
        return [str(name) for name in table.columns if name not in left and _varied(table[name])]
    for name in variables:
        values = cohort.variable(name).loc[table.index].dropna()
        if values.nunique() < 2:
            seen = f"only {quoted(values.iloc[0])}" if len(values) else "no value at all"
            raise InvalidInputError(
                f"{quoted(name)} to differ between samples", f"{seen} in all {len(table)}", "choose another variable"
            )
    return list(dict.fromkeys(variables))


def _covariates(table: Any, blocks: Any | None, asked: StudyParameters) -> Design | None:
    if not asked.design:
        return None
    columns = {name: table[name].tolist() for name in asked.design}
    for name, values in columns.items():
        _check_known(name, values, table, "to hold it fixed")
    if asked.align_batch in columns:  # numbers of batches are names
        columns[asked.align_batch] = list(as_groups(columns[asked.align_batch]))
    design = design_of(columns, formula=asked.formula, numeric=asked.numeric)
    asked_about = asked.variables or ()
    if asked.formula is not None:
        check_design(design, blocks=blocks)
        asked_about = asked.design[:1]  # of the others a finding tells
    for name in asked_about:
        check_adjusted(name, table[name].tolist(), design, blocks=blocks, numeric=name in asked.numeric)
    return design


def _batches(table: Any, asked: StudyParameters) -> tuple[list[Any], dict[str, list[Any]], list[Any] | None]:
    """Return the batch of each sample, what is kept, and the material of anchors, or None."""
    assert asked.align_batch is not None
    keep = {name: table[name].tolist() for name in asked.kept_variables} if asked.anchors is None else {}
    for name, values in {**keep, asked.align_batch: table[asked.align_batch].tolist()}.items():
        _check_known(name, values, table, "to align batches")
    anchors = None if asked.anchors is None else table[asked.anchors].tolist()
    return table[asked.align_batch].tolist(), keep, anchors


def _check_known(name: str, values: list[Any], table: Any, what: str) -> None:
    missing = [sample for sample, value in zip(table.index, values, strict=True) if is_missing(value)]
    if missing:
        raise InvalidInputError(
            f"a value of {quoted(name)} for every sample, {what}",
            f"none for {len(missing)} of {counted(len(values), 'sample')} ({listed(missing)})",
            "leave these samples out, or the variable",
        )


def _varied(column: Any) -> bool:
    """Return whether a variable that nobody asked for is worth a test: not one value, not a name for each sample."""
    known = column.dropna()
    different = known.nunique()
    numeric = known.dtype.kind in "iuf"
    return bool(different > 1 and len(known) > 3 and (numeric or different <= len(known) // 2))


def _check_block(values: Any, name: str) -> list[object]:
    """Return the block of every sample, or raise if one has none."""
    missing = int(values.isna().sum())
    if missing:
        raise InvalidInputError(
            f"a block in {quoted(name)} for every sample", f"none for {missing} of {counted(len(values), 'sample')}"
        )
    return list(values)


def _check_whole(comparison: Comparison) -> None:
    if comparison.diagnosis.n_components > 1:
        cells = comparison.sizes @ comparison.measures.masses
        check_components(comparison.graph.node_affinity, comparison.graph.gather(cells[None])[0])


def check_components(affinity: Any, cells: Float64) -> None:
    """Raise if too many cells are outside the largest component of the graph.

    Parameters
    ----------
    affinity
        Of the graph, ``(n_nodes, n_nodes)``.
    cells
        How many cells each node stands for, ``(n_nodes,)``: a landmark may stand for many.
    """
    n_components, component = connected_components(affinity, directed=False)
    inside = np.bincount(component, weights=cells)
    apart = 1 - float(inside.max() / inside.sum())
    if apart > MOST_APART:
        raise InvalidInputError(
            "a connected graph",
            f"{counted(n_components, 'component')}, with {apart:.0%} of the cells outside the largest",
            f"raise {argument('n_neighbors')}, remove outliers, or {argument('allow_components', True)} to go on: mass "
            "then never moves between components",
        )


def _left_out_notes(cohort: Cohort, kept: Intp, min_cells: int | None) -> Iterator[str]:
    names = [cohort.names[i] for i in np.setdiff1d(np.arange(len(cohort.names)), kept)]
    if names and min_cells is not None:
        yield (
            f"{counted(len(names), 'sample')} with fewer than {counted(min_cells, 'cell')} left out: {listed(names)}."
        )


def _comparison_notes(comparison: Comparison) -> Iterator[str]:
    """Yield which cells took part, how sure the distances are, their unit, and what landmarks cost."""
    if comparison.drawn is not None:
        yield f"{comparison.drawn}. The others took no part."
    yield from _size_notes(comparison)
    if comparison.uncertainty is not None:
        yield f"Noise: {comparison.uncertainty.describe(comparison.noise_floor)}"
        if unreliable(comparison):
            yield NOISY
    if comparison.calibration is not None:
        yield comparison.calibration.describe()
    if comparison.landmark_agreement is not None:
        yield f"Landmarks stood for the cells: {comparison.landmark_agreement}."


def _size_notes(comparison: Comparison) -> Iterator[str]:
    sizes = comparison.sizes
    if len(sizes) < 8 or sizes.min() == sizes.max():
        return
    nearest = comparison.nearest(1)[0][:, 0]
    if nearest.min() == nearest.max():
        return
    a, b = centered_ranks(np.stack([sizes.astype(np.float64), nearest]))
    correlation = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    if correlation < SIZE_MATTERS:
        small = int((sizes < SMALL_SAMPLE).sum())
        few = f"; {counted(small, 'sample')} {verb(small, 'has', 'have')} fewer than {SMALL_SAMPLE}" if small else ""
        remedy = f"{argument('bias', 'corrected')} removes it, " if comparison.bias == "raw" else ""
        yield Sentence(
            f"Small samples look far from all others: the fewer cells, the further the nearest sample (Spearman "
            f"{correlation:.2f}; {sizes.min()} to {counted(int(sizes.max()), 'cell')}{few}). Part of any difference "
            f"may be the number of cells; {remedy}{argument('equal_cells', True)} draws equally many from every "
            f"sample, {argument('min_cells')} leaves small samples out."
        )


def _text(warning: warnings.WarningMessage) -> str:
    """Return what was warned of, as it was said."""
    said: str = warning.message.args[0] if isinstance(warning.message, Warning) else warning.message
    return said


@contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Leave out what the diagnosis says again, at its place, and give what else was warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned
    for warning in warned:
        if not issubclass(warning.category, GraphWarning | EmbeddingWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
