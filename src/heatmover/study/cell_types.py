"""Types of cells: annotated or by clusters, their shares in samples, and which differ between two groups of samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, final

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64, Int32, Int64
from heatmover._base.validation import (
    LabelNames,
    as_array,
    check_integer,
    check_random_state,
    check_threads,
    import_extra,
)
from heatmover._base.words import counted, find, quoted, verb
from heatmover.attribution.cell_types import CellTypes, TypedCells, contrast_types
from heatmover.attribution.contrast import TwoGroups, choose_groups, first_of_order, set_up
from heatmover.attribution.drivers import Drivers, check_features, find_drivers
from heatmover.attribution.witness import explain_masses
from heatmover.cohort import Cohort
from heatmover.cohort.draw import draw_cells
from heatmover.cohort.samples import encode
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs.centers import CenterSearch
from heatmover.measures import is_missing
from heatmover.statistics.permutations import within_reach
from heatmover.study.comparison import Comparison
from heatmover.study.examination import label, out_of_reach
from heatmover.study.parameters import StudyParameters

__all__ = [
    "Annotation",
    "CellContrast",
    "CellType",
    "SampleComposition",
    "annotate",
    "check_reference",
    "cluster_cells",
    "cluster_note",
    "clusters_wanted",
    "contrast_cells",
    "shares_of",
]


# Of the types called different one in ten may be false, as everywhere in explanations.
LEVEL = 0.1
# More are not cell types but names of cells, or measurements.
MOST_TYPES = 1_000
UNKNOWN = "not annotated"
# Shares whose ratio is below this are called the same if they do not surely differ.
ALIKE = 1.25
# Variables with more groups are not searched for a name like the one that was not found.
MOST_GROUPS = 20
# Types that are told of in a sentence; tables have all.
TOLD = 3


class Annotation(NamedTuple):
    """The type of each cell: ``name`` of the column, ``codes`` ``(n_cells,)`` into ``types``."""

    name: str
    codes: Int32
    types: tuple[str, ...]


class CellMasses(NamedTuple):
    """Samples as masses of their cells, for which the points of the graph stand.

    Attributes
    ----------
    masses
        ``(n_samples, n_cells)``; a column may also hold all cells of one type at one point of the graph.
    nodes
        ``(n_cells,)``: the point of the graph that stands for each.
    counts
        ``(n_cells,)``: how many cells a column holds; None for one each.
    """

    masses: sp.csr_array
    nodes: Int64
    counts: Int64 | None = None


@final
@dataclass(frozen=True)
class CellType:
    """What is known of one cell type.

    Attributes
    ----------
    name
        Of the cell type.
    cells
        How many there are, in all samples.
    contribution, share
        What it adds to the distance between the means of the groups, and as a share of that. The shares of all types
        sum to 1. A share below zero: its cells changed against what is around them.
    abundance, state
        The two parts of the contribution: how many cells there are, relative to the average cell, and in what state.
    in_group, in_reference
        Mean share of the cells of a sample.
    score, log_ratio, abundance_p, abundance_q, state_p, state_q
        As in `heatmover.attribution.CellTypes`, whose ``scores`` and ``log_ratios`` these are.

    Examples
    --------
    >>> found = CellType(
    ...     "B", 120, 0.02, 0.4, 0.018, 0.002, 0.1, 0.05, score=3.1, log_ratio=0.7,
    ...     abundance_p=0.002, abundance_q=0.01, state_p=0.3, state_q=0.5,
    ... )
    >>> found.direction, round(found.ratio, 2), found.moved
    ('more', 2.0, False)
    >>> print(found)
    'B': 2 times as many (10 % against 5 % of the cells); 40 % of the distance
    """

    name: str
    cells: int
    contribution: float
    share: float
    abundance: float
    state: float
    in_group: float
    in_reference: float
    score: float
    log_ratio: float
    abundance_p: float
    abundance_q: float
    state_p: float
    state_q: float

    @property
    def direction(self) -> Literal["more", "less", ""]:
        """Whether the group surely has more or less of it, with a tenth of such findings false; else empty."""
        if self.abundance_q > LEVEL or self.score == 0:
            return ""
        return "more" if self.score > 0 else "less"

    @property
    def moved(self) -> bool:
        """Whether its cells are surely in another state, with a tenth of such findings false."""
        return self.state_q <= LEVEL

    @property
    def ratio(self) -> float:
        """Share of the cells in the group over that in the reference; infinite if the reference has none."""
        return self.in_group / self.in_reference if self.in_reference > 0 else float("inf")

    def number_words(self) -> str:
        """Return what is known of its number, in words that agree with the shares."""
        if not self.in_group or not self.in_reference:
            where = "only in the group" if self.in_group else "only in the reference"
            return where if self.direction else f"{where}, which may be chance"
        if self.direction:
            return f"{_times(self.ratio)} times as many"
        return "about the same share" if abs(np.log(self.ratio)) <= np.log(ALIKE) else "no sure change of number"

    def words(self) -> str:
        """Return what is known of its number and its state."""
        shares = " against ".join(_shares(self.in_group, self.in_reference)) + " of the cells"
        state = (", and in another state" if self.direction else ", other state") if self.moved else ""
        return f"{self.number_words()} ({shares}){state}"

    def __str__(self) -> str:
        return f"{quoted(self.name)}: {self.words()}; {100 * self.share:.0f} % of the distance"


@final
@dataclass(frozen=True, eq=False, repr=False)
class CellContrast:
    """Which cell types differ between two groups of samples; ``print`` it. `study_cohort` makes one.

    Attributes
    ----------
    annotation, variable
        Names of the annotation of cells and of the variable of samples.
    group, reference
        Names of the groups.
    n_samples
        Independent samples in each: blocks, if samples of a block are of one group.
    blocks
        How blocks counted, as in `Finding`.
    distance
        Between the mean of the group and the mean of the reference, in the unit of the distances.
    types
        The cell types, those that add most to the distance first.
    n_permutations
        Permutations of the samples that were tried.
    drivers
        Which features differ within each type, if features were given; types in the same order.
    stable
        Types whose ratios to each other did not change, against which numbers were compared; empty if too few are known
        to be stable, so that shares alone decided.
    no_calls
        Why no type and no feature is called different, in sentences: the study holds covariates fixed and these tests
        do not, or so few samples cannot reach a p-value of 0.05. All q-values are 1 then. Else empty.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> branch = [f"branch {int(b)}" for b in data.coordinates[:, 0]]
    >>> comparison = hm.compare(data.points, data.labels)
    >>> found = contrast_cells(comparison, annotate("branch", branch, 720), data.annotations["condition"])
    >>> print(found)
    Of the distance between 'case' and 'control', ... % is how many cells there are and ... % is their state...
    >>> round(sum(cell_type.share for cell_type in found.types), 6)
    1.0
    """

    annotation: str
    variable: str
    group: str
    reference: str
    n_samples: tuple[int, int]
    blocks: str
    distance: float
    types: tuple[CellType, ...]
    n_permutations: int
    stable: tuple[str, ...] = ()
    drivers: Drivers | None = None
    no_calls: str = ""

    @property
    def different(self) -> tuple[CellType, ...]:
        """The types that surely differ in number or in state, those that add most to the distance first."""
        return tuple(cell_type for cell_type in self.types if cell_type.direction or cell_type.moved)

    @property
    def abundance(self) -> float:
        """What numbers of cells add to the distance; with `state` it is the distance."""
        return math.fsum(cell_type.abundance for cell_type in self.types)

    @property
    def state(self) -> float:
        """What states of cells add to the distance."""
        return math.fsum(cell_type.state for cell_type in self.types)

    def describe(self) -> str:
        """Return what was found in plain sentences."""
        group = quoted(self.group)
        # These are no group's name but what `set_up` calls the rest.
        reference = self.reference if self.reference == "all others" else quoted(self.reference)
        if self.distance == 0:
            return f"The means of {group} and {reference} are the same."
        number = round(100 * min(max(self.abundance / self.distance, 0.0), 1.0))
        parts = (
            f"Of the distance between {group} and {reference}, {number} % is how many cells there are and "
            f"{100 - number} % is their state"
        )
        different = self.different
        if not different:
            most = self.types[0]
            adds = f"{quoted(most.name)} adds most ({100 * most.share:.0f} %)."
            if self.no_calls:
                return f"{parts}; {adds} {self.no_calls}"
            return f"{parts}; no cell type in {quoted(self.annotation)} surely differs, {adds}"
        told = ". ".join(str(cell_type) for cell_type in different[:TOLD])
        rest = len(different) - TOLD
        more = (
            f" {rest} more of {counted(len(self.types), 'type')} {verb(rest, 'differs', 'differ')}." if rest > 0 else ""
        )
        return f"{parts}. {told}.{more}{self._frame()}"

    def _frame(self) -> str:
        """Return what numbers were compared with, where it matters."""
        if self.stable or not any(cell_type.direction for cell_type in self.types):
            return ""
        return " No types are known to be stable: numbers are shares, and a type that grows makes others shrink."

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each type, those that add most to the distance first."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        index = pandas.Index([cell_type.name for cell_type in self.types], dtype=object, name="cell_type")
        return pandas.DataFrame(self.rows(), index=index)

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers of each type by name, without its name."""
        columns = [name for name in CellType.__dataclass_fields__ if name != "name"]
        return [
            {name: getattr(cell_type, name) for name in columns}
            | {"direction": cell_type.direction, "moved": cell_type.moved}
            for cell_type in self.types
        ]

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        named = ("annotation", "variable", "group", "reference", "n_samples", "blocks", "distance", "n_permutations")
        types = [{"name": cell_type.name} | row for cell_type, row in zip(self.types, self.rows(), strict=True)]
        sums = {
            "abundance": self.abundance,
            "state": self.state,
            "stable": list(self.stable),
            "no_calls": self.no_calls,
        }
        drivers = None if self.drivers is None else self.drivers.top()
        return {name: getattr(self, name) for name in named} | sums | {"types": types, "drivers": drivers}

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return (
            f"CellContrast({self.group} against {self.reference}, {counted(len(self.types), 'type')} of "
            f"{self.annotation})"
        )


def annotate(name: str, values: Any, n_cells: int) -> Annotation:
    """Return the type of each cell; cells without one are a type of their own, ``"not annotated"``.

    Parameters
    ----------
    name
        Of the annotation.
    values
        ``(n_cells,)``: words, numbers or categories; or codes with -1 for none, and names, as in `Cohort.annotation`.
    n_cells
        How many there must be.

    Examples
    --------
    >>> annotate("type", ["B", "T", None], 3).types
    ('B', 'T', 'not annotated')
    """
    codes, types = values if isinstance(values, tuple) else encode([_column(values)])
    if codes.size != n_cells:
        raise InvalidInputError(
            f"cells: one type for each of the {counted(n_cells, 'point')} of the graph",
            f"{codes.size}",
            "with landmarks these are the points; comparison.landmarks.assign(points) tells that of each cell",
        )
    if (codes < 0).any():
        unknown = UNKNOWN if UNKNOWN not in types else f"{UNKNOWN} (missing)"
        codes, types = np.where(codes < 0, len(types), codes).astype(np.int32), (*types, unknown)
    if not 2 <= len(types) <= MOST_TYPES:
        number = f"{len(types):,} in {quoted(name)}" + (f", only {quoted(types[0])}" if len(types) == 1 else "")
        raise InvalidInputError(
            f"cells: 2 to {MOST_TYPES:,} cell types", number, "choose an annotation such as a cell type"
        )
    return Annotation(name, codes, types)


def _column(values: Any) -> Any:
    column = values if hasattr(values, "dtype") else np.asarray(list(values), dtype=object)
    if isinstance(column, np.ma.MaskedArray):
        column = as_array("cells", column)
    if np.ndim(column) != 1:
        raise InvalidInputError("cells: one type for each cell", f"an array of shape {np.shape(column)}")
    return column


def check_reference(reference: str, variables: Mapping[str, Sequence[Any]]) -> str:
    """Return the first variable that has a group of this name, or raise with the nearest name of a group.

    Parameters
    ----------
    reference
        Name of a group.
    variables
        Values ``(n_samples,)`` by name.

    Examples
    --------
    >>> check_reference("ctrl", {"sex": ["f", "m"], "condition": ["ctrl", "stim"]})
    'condition'
    """
    groups = {
        name: {label(value) for value in values if not is_missing(value)} for name, values in variables.items()
    }  # fmt: skip
    variable = next((name for name, labels in groups.items() if reference in labels), None)
    if variable is None:
        every = sorted({one for labels in groups.values() if len(labels) <= MOST_GROUPS for one in labels})
        find(reference, every, f"{argument('reference')} to be a group of a variable that is examined")
        raise InvalidInputError(f"{argument('reference')} to be a group", quoted(reference))
    return variable


def contrast_cells(
    comparison: Comparison,
    annotation: Annotation,
    groups: Sequence[Any],
    *,
    variable: str = "group",
    group: str | None = None,
    reference: str | None = None,
    blocks: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
    cells: CellMasses | None = None,
    features: Any | None = None,
    feature_names: Sequence[str] | None = None,
    unadjusted: Sequence[str] = (),
    n_permutations: int = 999,
    random_state: int = 0,
) -> CellContrast:
    """Find the cell types that differ between two groups of samples, and what each adds to their distance.

    Shares of types in samples are exact, also where a landmark stands for cells of several types: a cell counts for its
    own type, with the value that the witness of the distance has at its landmark.

    Parameters
    ----------
    comparison
        From `compare`.
    annotation
        From `annotate`: the type of each cell, or of each point of the graph if ``cells`` is not given.
    groups
        ``(n_samples,)``; samples without one do not take part. May be an ordered pandas category.
    variable
        What the groups are called.
    group, reference
        Names. By default the reference is the group that is called so (control, healthy, untreated ...), else the first
        of an ordered category, and the group is the other one, or the largest of several; without such a hint the first
        by name of two groups is compared with the other, or the largest of more with all others.
    blocks
        ``(n_samples,)``: what ties samples together. If every block is of one group, its samples are averaged, else
        samples are compared within their block.
    cells
        The cells for which landmarks stand.
    features, feature_names
        ``(n_cells, n_features)``, dense or sparse, such as markers or genes, and their names: which of them differ
        within each type. One row for each cell of the annotation.
    unadjusted
        Names of covariates that the study holds fixed. These tests do not, so that nothing is called different.
    n_permutations, random_state
        As in `explain_groups`.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=30, effect=6.0)
    >>> branch = annotate("branch", data.coordinates[:, 0].astype(int), 240)
    >>> contrast_cells(hm.compare(data.points, data.labels), branch, data.annotations["condition"], n_permutations=19)
    CellContrast(case against control, 5 types of branch)
    """
    given = (None, ()) if features is None else check_features(features, feature_names, annotation.codes.size)
    values = list(groups)
    known = [i for i, value in enumerate(values) if not is_missing(value)]
    if not known:
        raise InvalidInputError("samples in at least two groups", "no sample with a group")
    labels = [label(values[i]) for i in known]
    group, reference = choose_groups(
        Counter(labels), group=group, reference=reference, first=first_of_order(groups)
    )  # fmt: skip
    tied = _tied(blocks, known)
    rng = check_random_state(random_state)
    design = set_up(
        labels, len(labels), group=group, reference=reference, blocks=tied, n_permutations=n_permutations, rng=rng
    )  # fmt: skip
    rows = sp.csr_array(comparison.measures.masses)[known]
    own = _typed(comparison, annotation, rows, None if cells is None else cells.masses[known], cells, known)
    explained = explain_masses(comparison.model, design.means(rows), design.names)
    witness = comparison.unit_factor(explained.distance) * explained.witness
    result = contrast_types(comparison.model, design, own, witness, rng)
    drivers = None if features is None else find_drivers(design, own, *given)
    no_calls = _no_calls(design, unadjusted)
    if no_calls:
        result = replace(result, abundance_q=np.ones_like(result.abundance_q), state_q=np.ones_like(result.state_q))
        drivers = None if drivers is None else replace(drivers, q_values=np.ones_like(drivers.q_values))
    types = tuple(_types(result))
    if drivers is not None:
        drivers = drivers.ordered(tuple(cell_type.name for cell_type in types))
    stable = tuple(name for name, kept in zip(result.names, result.stable, strict=True) if kept)
    return CellContrast(
        annotation.name, variable, *design.names, design.counts, design.how,
        math.fsum(result.contributions), types, len(design.members) - 1, stable, drivers, no_calls,
    )  # fmt: skip


def _no_calls(design: TwoGroups, unadjusted: Sequence[str]) -> str:
    """Return why nothing may be called different, or nothing."""
    reasons = []
    if unadjusted:
        names = " and ".join(map(quoted, unadjusted))
        reasons.append(f"The tests of cell types are not adjusted for {names}.")
    if not within_reach(design.smallest_p):
        reasons.append(f"{out_of_reach(design.evidence, design.smallest_p, 'a test of a cell type')}.")
    return " ".join([*reasons, "No cell type and no feature is called different."]) if reasons else ""


def _tied(blocks: Any | None, known: list[int]) -> Any | None:
    """Return the blocks of samples with a group as text; of several variables by name."""
    if blocks is None:
        return None
    if isinstance(blocks, Mapping):
        return {name: _tied(labels, known) for name, labels in blocks.items()}
    return LabelNames("blocks").add_all(blocks[i] for i in known)


def _typed(
    comparison: Comparison,
    annotation: Annotation,
    rows: sp.csr_array,
    own: sp.csr_array | None,
    cells: CellMasses | None,
    known: Sequence[int],
) -> TypedCells:
    """Return the cells of the samples by type."""
    codes = annotation.codes.astype(np.int64)
    each = np.ones(codes.size, dtype=np.int64) if cells is None or cells.counts is None else cells.counts
    nodes = np.arange(rows.shape[1]) if cells is None else cells.nodes
    sizes = comparison.sizes[list(known)].astype(np.float64)
    return TypedCells(annotation.types, codes, nodes, rows if own is None else own, each, sizes)


def _types(result: CellTypes) -> list[CellType]:
    total = math.fsum(result.contributions)
    columns = (
        result.contributions, result.contributions / total if total else np.zeros_like(result.contributions),
        result.abundance, result.state, *result.shares.T, result.scores, result.log_ratios,
        result.abundance_p, result.abundance_q, result.state_p, result.state_q,
    )  # fmt: skip
    return [
        CellType(result.names[i], int(result.points[i]), *(float(column[i]) for column in columns))
        for i in np.argsort(-result.contributions, kind="stable")
    ]


def _shares(first: float, second: float) -> tuple[str, str]:
    """Return two shares in per cent, with as many digits as tell them apart, but no more than three."""
    for digits in (2, 3):
        texts = tuple(f"{100 * share:.{digits}g} %" if share < 0.995 else "100 %" for share in (first, second))
        if texts[0] != texts[1] or first == second:
            break
    return texts[0], texts[1]


def _times(ratio: float) -> str:
    """Return a ratio to two digits, to three near one, where they matter."""
    return f"{ratio:.3g}" if 0.9 < ratio < 1.1 else f"{ratio:.2g}"


# How many clusters "auto" makes: enough to part the main types of a panel, few enough to read.
CLUSTERS = 10
# Cells that k-means looks at: seconds for any cohort, and 2,000 for each of ten clusters.
CELLS_LOOKED_AT = 20_000
STARTS, MOST_MOVES = 5, 100
# A cluster is named by the features in which its center is this many standard deviations from the mean of all cells.
DISTINCT, MOST_NAMED, LONGEST = 0.5, 3, 24


def clusters_wanted(cohort: Cohort, parameters: StudyParameters) -> int | None:
    """Return how many clusters stand for cell types, or None if there are to be none."""
    if parameters.clusters is not None:
        return parameters.clusters
    # A column may have this name.
    return CLUSTERS if parameters.cells == "auto" and "auto" not in cohort.varying else None


def cluster_cells(
    cohort: Cohort,
    n_clusters: int = CLUSTERS,
    *,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Annotation:
    r"""Put the cells of a cohort into clusters, by k-means on the features that the distances use.

    The centers are the best of five runs from k-means++ on up to 20,000 cells, drawn from all samples; then every cell
    goes to its nearest, in blocks. Nothing of the samples' variables is looked at, so that tests of the clusters keep
    their level. The result does not depend on blocks or threads.

    Parameters
    ----------
    cohort
        From `heatmover.read_cohort`.
    n_clusters
        How many; at least two.
    random_state
        Seed of the cells drawn and of the starts.
    n_jobs
        Threads; None for all cores.
    progress
        Told of the stage "cluster cells".

    Returns
    -------
    Annotation
        Named ``"cluster"``; the largest cluster is ``cluster 1``. A name goes on with up to three features of which the
        cluster has more (+) or less (-) than all cells, the most distinct first; not if the features are components.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from heatmover.cohort import read_cohort
    >>> rows = [f"s{i % 2},{9 * (i % 3 > 0) + i / 50},{i / 50}" for i in range(30)]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,CD4,CD8", *rows]))
    >>> cluster_cells(read_cohort(path, sample_key="sample"), 2).types
    ('cluster 1: CD4+', 'cluster 2: CD4-')
    """
    n_clusters = check_integer("clusters", n_clusters, minimum=2)
    threads = check_threads(n_jobs)
    progress.stage("cluster cells", cohort.n_cells)
    drawn = np.asarray(draw_cells(cohort, CELLS_LOOKED_AT, random_state)[0], dtype=np.float64)
    different = len(np.unique(drawn, axis=0))
    if different < n_clusters:
        raise InvalidInputError(
            f"{argument('clusters')} of at most {different}, the number of different cells", str(n_clusters)
        )
    centers = _centers(drawn, n_clusters, random_state)
    search, codes = CenterSearch.for_many(centers, cohort.n_cells), np.empty(cohort.n_cells, dtype=np.int32)
    done = 0
    for block, _ in cohort.chunks():
        codes[done : done + len(block)] = search.nearest(block, threads)[0]
        done += len(block)
        progress.advance(len(block))
    sizes = np.bincount(codes, minlength=n_clusters)
    order = np.lexsort((*centers.T[::-1], -sizes))
    place = np.empty(n_clusters, dtype=np.int32)
    place[order] = np.arange(n_clusters, dtype=np.int32)
    names = _names(cohort, centers[order], drawn)
    return annotate("cluster", (place[codes], names), cohort.n_cells)


def _centers(points: Float64, n_clusters: int, seed: int) -> Float64:
    """Return the centers of the best of several runs of k-means; on one thread, so that sums are always the same."""
    # Here, because it takes a while to import.
    from sklearn.cluster import KMeans

    random = np.random.RandomState(np.random.PCG64(seed))
    with threadpool_limits(1):
        clusters = KMeans(n_clusters, n_init=STARTS, max_iter=MOST_MOVES, tol=0, random_state=random).fit(points)
    return np.asarray(clusters.cluster_centers_)


def _names(cohort: Cohort, centers: Float64, drawn: Float64) -> tuple[str, ...]:
    numbers = [f"cluster {number}" for number in range(1, len(centers) + 1)]
    if not _measured(cohort):
        return tuple(numbers)
    spread = drawn.std(axis=0)
    scores = (centers - drawn.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return tuple(f"{number}{_distinct(cohort.features, row)}" for number, row in zip(numbers, scores, strict=True))


def _measured(cohort: Cohort) -> bool:
    """Tell whether features are measurements with names, not components without a meaning of their own."""
    return cohort.projection.components is None and getattr(cohort.reader.base, "representation", "X") == "X"


def _distinct(features: tuple[str, ...], scores: Float64) -> str:
    order = [int(i) for i in np.argsort(-np.abs(scores), kind="stable")[:MOST_NAMED] if abs(scores[i]) >= DISTINCT]
    signs = [f"{features[i][:LONGEST]}{'+' if scores[i] > 0 else '-'}" for i in order]
    return f": {' '.join(signs)}" if signs else ""


def cluster_note(annotation: Annotation) -> str:
    """Return what a reader should know of clusters that stand for cell types."""
    return (
        f"Nobody annotated the cells: k-means put them into {counted(len(annotation.types), 'cluster')}, whose names "
        "tell in which features they have more (+) or less (-) than all cells."
    )


@final
@dataclass(frozen=True, eq=False, repr=False)
class SampleComposition(ReadOnlyArrays):
    """Shares of cell types in samples; a study with ``cells`` has one.

    Attributes
    ----------
    annotation
        Name of the annotation of cells.
    types
        Names of the cell types, the commonest first: by their mean share over samples, then by name.
    shares
        ``(n_samples, n_types)``; every row sums to 1.

    Examples
    --------
    >>> import numpy as np
    >>> found = SampleComposition("type", ("T", "B", "NK"), np.array([[0.6, 0.3, 0.1], [0.7, 0.1, 0.2]]))
    >>> found.largest(1).types
    ('T', 'other (2 types)')
    >>> found.largest(1).shares
    array([[0.6, 0.4],
           [0.7, 0.3]])
    """

    annotation: str
    types: tuple[str, ...]
    shares: Float64

    def largest(self, most: int = 10) -> SampleComposition:
        """Return the commonest types, and all others as one if there are more.

        Parameters
        ----------
        most
            How many types keep their names; one more is kept rather than called other by itself.
        """
        count = check_integer("most", most, minimum=1)
        if len(self.types) <= count + 1:
            return self
        rest = f"other ({counted(len(self.types) - count, 'type')})"
        shares = np.column_stack([self.shares[:, :count], self.shares[:, count:].sum(axis=1)])
        return SampleComposition(self.annotation, (*self.types[:count], rest), shares)

    def __repr__(self) -> str:
        return (
            f"SampleComposition({counted(len(self.shares), 'sample')}, {counted(len(self.types), 'type')} "
            f"of {self.annotation})"
        )


def shares_of(annotation: Annotation, masses: sp.csr_array) -> SampleComposition:
    """Return the composition of samples.

    Parameters
    ----------
    annotation
        The type of each cell, or point; from `heatmover.study.annotate`.
    masses
        ``(n_samples, n_cells)``: how much of each cell every sample has.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.study import annotate
    >>> masses = sp.csr_array(np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
    >>> shares_of(annotate("type", ["B", "T", "T", "T"], 4), masses).shares
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    codes, n_types = annotation.codes, len(annotation.types)
    membership = sp.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, n_types))
    sums = np.asarray((masses @ membership).toarray(), dtype=np.float64)
    shares = sums / sums.sum(axis=1, keepdims=True)
    # Rounded, so that the order of cells in a file does not decide between equals.
    mean = shares.mean(axis=0).round(12)
    order = sorted(range(n_types), key=lambda code: (-mean[code], annotation.types[code]))
    return SampleComposition(annotation.name, tuple(annotation.types[code] for code in order), shares[:, order])
