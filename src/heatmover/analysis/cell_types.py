"""`contrast_cells`: which cell types differ between two groups of samples, and what each adds to their distance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._typing import Float64, Int32, Int64
from heatmover._validation import LabelNames, as_array, check_random_state, import_extra
from heatmover._words import quoted
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.examination import label
from heatmover.attribution.cell_types import CellTypes, Composition, contrast_types
from heatmover.attribution.contrast import Design, framed, set_up
from heatmover.attribution.witness import Breakdown, break_down, explain_masses
from heatmover.cohort.annotation import encode
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing

__all__ = ["Annotation", "CellContrast", "CellType", "annotate", "choose_group", "contrast_cells"]


# Of the types called different one in ten may be false, as everywhere in explanations.
LEVEL = 0.1
# More are not cell types but names of cells, or measurements.
MOST_TYPES = 1_000
UNKNOWN = "not annotated"


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
    in_group, in_reference
        Mean share of the cells of a sample.
    score, log_ratio, p_value, q_value
        As in `GroupContrast`.

    Examples
    --------
    >>> found = CellType("B", 120, 0.02, 0.4, 0.1, 0.05, score=3.1, log_ratio=0.7, p_value=0.002, q_value=0.01)
    >>> found.direction, round(found.ratio, 2)
    ('more', 2.01)
    """

    name: str
    cells: int
    contribution: float
    share: float
    in_group: float
    in_reference: float
    score: float
    log_ratio: float
    p_value: float
    q_value: float

    @property
    def direction(self) -> Literal["more", "less", ""]:
        """Whether the group surely has more or less of it, with a tenth of such findings false; else empty."""
        if self.q_value > LEVEL or self.score == 0:
            return ""
        return "more" if self.score > 0 else "less"

    @property
    def ratio(self) -> float:
        """How many times as many the group has as the reference, relative to most cells."""
        return float(np.exp(self.log_ratio))


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

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> branch = [f"branch {int(b)}" for b in data.coordinates[:, 0]]
    >>> comparison = hm.compare(data.points, data.labels)
    >>> found = contrast_cells(comparison, annotate("branch", branch, 720), data.annotations["condition"])
    >>> print(found)
    'branch 4' differs most between 'case' and 'control': 'case' has ... times as many, relative to most cells...
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

    @property
    def different(self) -> tuple[CellType, ...]:
        """The types that surely differ, the surest first."""
        return tuple(
            sorted(
                (cell_type for cell_type in self.types if cell_type.direction),
                key=lambda cell_type: -abs(cell_type.score),
            )
        )

    def describe(self) -> str:
        """Return what was found in plain sentences."""
        group = quoted(self.group)
        # These are no group's name but what `set_up` calls the rest.
        reference = self.reference if self.reference == "all others" else quoted(self.reference)
        if self.distance == 0:
            return f"The means of {group} and {reference} are the same."
        if not self.different:
            most = self.types[0]
            return (
                f"No cell type in {quoted(self.annotation)} surely differs between {group} and {reference}; "
                f"{quoted(most.name)} adds most to the distance between their means ({100 * most.share:.0f} %)."
            )
        most = self.different[0]
        count = len(self.different)
        others = "no other type surely differs" if count == 1 else f"{count} of {len(self.types)} types differ"
        return (
            f"{quoted(most.name)} differs most between {group} and {reference}: {group} has {most.ratio:.2g} times as "
            f"many, relative to most cells (q = {most.q_value:.2g}), and it makes {100 * most.share:.0f} % of the "
            f"distance between their means; {others}."
        )

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each type, those that add most to the distance first."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        index = pandas.Index([cell_type.name for cell_type in self.types], dtype=object, name="cell_type")
        return pandas.DataFrame(self.rows(), index=index)

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers of each type by name, without its name."""
        columns = [name for name in CellType.__dataclass_fields__ if name != "name"]
        return [
            {name: getattr(cell_type, name) for name in columns} | {"direction": cell_type.direction}
            for cell_type in self.types
        ]

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        named = ("annotation", "variable", "group", "reference", "n_samples", "blocks", "distance", "n_permutations")
        types = [{"name": cell_type.name} | row for cell_type, row in zip(self.types, self.rows(), strict=True)]
        return {name: getattr(self, name) for name in named} | {"types": types}

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"CellContrast({self.group} against {self.reference}, {len(self.types)} types of {self.annotation})"


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
            f"cells: one type for each of the {n_cells} points of the graph",
            f"{codes.size}",
            "with landmarks these are the points; comparison.landmarks.assign(points) tells that of each cell",
        )
    if (codes < 0).any():
        unknown = UNKNOWN if UNKNOWN not in types else f"{UNKNOWN} (missing)"
        codes, types = np.where(codes < 0, len(types), codes).astype(np.int32), (*types, unknown)
    if not 2 <= len(types) <= MOST_TYPES:
        found = f"{len(types):,} in {quoted(name)}" + (f", only {quoted(types[0])}" if len(types) == 1 else "")
        raise InvalidInputError(
            f"cells: 2 to {MOST_TYPES:,} cell types", found, "choose an annotation such as a cell type"
        )
    return Annotation(name, codes, types)


def _column(values: Any) -> Any:
    column = values if hasattr(values, "dtype") else np.asarray(list(values), dtype=object)
    if isinstance(column, np.ma.MaskedArray):
        column = as_array("cells", column)
    if np.ndim(column) != 1:
        raise InvalidInputError("cells: one type for each cell", f"an array of shape {np.shape(column)}")
    return column


def choose_group(counts: Mapping[str, int]) -> str:
    """Return the group to compare with the others: the first by name of two, the largest of more."""
    names = sorted(counts)
    return names[0] if len(names) == 2 else max(names, key=lambda name: counts[name])


def contrast_cells(
    comparison: Comparison,
    annotation: Annotation,
    groups: Sequence[Any],
    *,
    variable: str = "group",
    group: str | None = None,
    reference: str | None = None,
    blocks: Sequence[Any] | None = None,
    cells: CellMasses | None = None,
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
        ``(n_samples,)``; samples without one do not take part.
    variable
        What the groups are called.
    group, reference
        Names; by default the first by name of two groups, or the largest of more against all others.
    blocks
        ``(n_samples,)``: what ties samples together. If every block is of one group, its samples are averaged, else
        samples are compared within their block.
    cells
        The cells for which landmarks stand.
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
    known = [i for i, value in enumerate(groups) if not is_missing(value)]
    if not known:
        raise InvalidInputError("samples in at least two groups", "no sample with a group")
    labels = [label(groups[i]) for i in known]
    counts = Counter(labels)
    group = choose_group(counts) if group is None and reference is None and len(counts) > 1 else group
    tied = None if blocks is None else LabelNames("blocks").add_all(blocks[i] for i in known)
    rng = check_random_state(random_state)
    design = set_up(
        labels, len(labels), group=group, reference=reference, blocks=tied, n_permutations=n_permutations, rng=rng
    )  # fmt: skip
    rows = sp.csr_array(comparison.measures.masses)[known]
    own = rows if cells is None else cells.masses[known]
    nodes = np.arange(rows.shape[1]) if cells is None else cells.nodes
    modes = framed(comparison.model, design, rows, rng).modes
    each = np.ones(len(nodes), dtype=np.int64) if cells is None or cells.counts is None else cells.counts
    tests = contrast_types(design, _composition(annotation, own, each), modes)
    explained = explain_masses(comparison.model, design.means(rows), design.names)
    witness = comparison.unit_factor(explained.distance) * explained.witness
    parts = _parts(annotation, design, own, witness[nodes])
    types = tuple(_types(tests, parts, dict(zip(annotation.types, _totals(annotation, each), strict=True))))
    return CellContrast(
        annotation.name, variable, *design.names, design.counts, design.how, float(parts.contributions.sum()), types,
        len(design.members) - 1,
    )  # fmt: skip


def _composition(annotation: Annotation, masses: sp.csr_array, counts: Int64) -> Composition:
    codes, n_types = annotation.codes, len(annotation.types)
    membership = sp.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, n_types))
    return Composition(annotation.types, np.array(_totals(annotation, counts)), (masses @ membership).toarray())


def _totals(annotation: Annotation, counts: Int64) -> list[int]:
    """Return the number of cells of each type; whole numbers are exact in float64 up to 2^53."""
    totals = np.bincount(annotation.codes, weights=counts, minlength=len(annotation.types))
    return [int(total) for total in totals]


def _parts(annotation: Annotation, design: Design, masses: sp.csr_array, witness: Float64) -> Breakdown:
    """Take the distance apart by cell types: a cell adds its witness times the difference of its masses."""
    means = design.means(masses)
    contributions = witness * (means[0] - means[1])
    return break_down(contributions, annotation.codes.astype(np.int64), annotation.types, means, design.names)


def _types(tests: CellTypes, parts: Breakdown, totals: Mapping[str, int]) -> list[CellType]:
    place = {name: i for i, name in enumerate(tests.names)}
    found = []
    for row, name in enumerate(parts.names):
        i = place[name]
        tested = (tests.scores[i], tests.log_ratios[i], tests.p_values[i], tests.q_values[i])
        sums = (parts.contributions[row], parts.shares[row], *parts.masses[row])
        found.append(CellType(name, totals[name], *map(float, (*sums, *tested))))
    return found
