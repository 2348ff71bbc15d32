"""Types of points, such as cell types: how many and in what state, and which differ between two groups of samples.

See `heatmover.attribution.witness` for the two parts of a type's share of a distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Bool, Float64, Int64
from heatmover._validation import check_threads, import_extra
from heatmover.attribution.abundance import compare_abundance
from heatmover.attribution.contrast import Design
from heatmover.attribution.state import compare_state, places_of_types
from heatmover.attribution.witness import check_annotation, split
from heatmover.embedding.estimator import DiffusionEMD

__all__ = ["CellTypes", "TypedCells", "contrast_types", "effective_cells", "typed_points"]

COLUMNS = (
    "points", "contributions", "abundance", "state", "scores", "log_ratios", "abundance_p", "abundance_q",
    "state_scores", "state_p", "state_q",
)  # fmt: skip


@final
@dataclass(frozen=True, eq=False, repr=False)
class CellTypes(ReadOnlyArrays):
    """Which types of points, such as cell types, differ between two groups of samples: in number, and in state.

    Attributes
    ----------
    names
        Of the types, sorted.
    points
        ``(n_types,)``: number of points of each.
    shares
        ``(n_types, 2)``: mean share of the samples of the group, and of those of the reference.
    contributions
        ``(n_types,)``: what each adds to the distance between the means of the groups.
    abundance, state
        ``(n_types,)``: the two parts of that: how many, and in what state. A type that one group has none of has no
        state.
    scores
        ``(n_types,)``: how surely the group has more (positive) or fewer of it: a studentised difference, zero where
        shares and log-ratios to the stable types disagree.
    log_ratios
        ``(n_types,)``: natural logarithm of how many times as many the group has, relative to the stable types.
    abundance_p, abundance_q
        ``(n_types,)``: of the number, by permuting samples, and corrected for the number of types.
    state_scores
        ``(n_types,)``: distance between the groups' means of the type's own distributions, in standard errors.
    state_p, state_q
        ``(n_types,)``: of the state; 1 where too few samples have such cells.
    state_tested
        ``(n_types,)``: whether both groups have two samples with such cells.
    stable
        ``(n_types,)``: types whose ratios to each other did not change, the reference of the log-ratios. None at all
        if too few are: then shares alone decide.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=30, effect=6.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> branch = data.coordinates[:, 0].astype(int)
    >>> groups = data.annotations["condition"]
    >>> types = hm.explain_groups(model, measures, groups, annotation=branch, n_permutations=19).types
    >>> bool(np.allclose(types.abundance + types.state, types.contributions))
    True
    """

    names: tuple[str, ...]
    points: Int64
    shares: Float64
    contributions: Float64
    abundance: Float64
    state: Float64
    scores: Float64
    log_ratios: Float64
    abundance_p: Float64
    abundance_q: Float64
    state_scores: Float64
    state_p: Float64
    state_q: Float64
    state_tested: Bool
    stable: Bool

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each type."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        columns = {name: getattr(self, name) for name in COLUMNS}
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="cell_type"))


class TypedCells(NamedTuple):
    """Cells of samples by type, where a point of the graph may stand for cells of several types.

    Attributes
    ----------
    names
        Of the types.
    codes
        ``(n_cells,)``: the type of each cell, or of each group of equal cells.
    nodes
        ``(n_cells,)``: the point of the graph that stands for it.
    masses
        ``(n_samples, n_cells)``.
    counts
        ``(n_cells,)``: how many cells a column holds.
    sizes
        ``(n_samples,)``: of how many cells each sample consists.
    """

    names: tuple[str, ...]
    codes: Int64
    nodes: Int64
    masses: sp.csr_array
    counts: Int64
    sizes: Float64


def typed_points(annotation: Any, rows: Any) -> TypedCells:
    """Return the points of samples ``(n_samples, n_points)`` by the type of each, ``(n_points,)``."""
    codes, names = check_annotation(annotation, rows.shape[1])
    masses = sp.csr_array(rows)
    # If all cells weighed the same: a sample of n cells has a sum of squares of 1 / n.
    sizes = 1 / np.asarray(masses.multiply(masses).sum(axis=1)).ravel()
    return TypedCells(names, codes, np.arange(codes.size), masses, np.ones(codes.size, dtype=np.int64), sizes)


def effective_cells(design: Design, cells: TypedCells) -> Float64:
    """Return of how many cells each unit consists, as if all weighed the same, ``(n_units,)``."""
    squares = design.average.multiply(design.average)
    return np.asarray(1 / (squares @ (1 / cells.sizes[design.chosen]))).ravel()


def contrast_types(
    model: DiffusionEMD, design: Design, cells: TypedCells, witness: Float64, rng: np.random.Generator
) -> CellTypes:
    """Take the distance between the means of two groups apart by type, and test every part.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    design
        Of the groups.
    cells
        Of all samples.
    witness
        Of the distance between the means of the groups, ``(n_points,)``.
    rng
        Generator.
    """
    parts = split(witness[cells.nodes], design.means(cells.masses), cells.codes, len(cells.names))
    units = design.units(cells.masses)
    rows = _by_type(model, cells, units)
    shares = np.asarray(rows.sum(axis=1)).reshape(units.shape[0], len(cells.names))
    sizes = effective_cells(design, cells)
    counted = compare_abundance(shares, sizes, design.members, design.blocks)
    threads = check_threads(model.n_jobs)
    places = places_of_types(model.prepared_, rows, shares * sizes[:, None], rng, threads)
    moved = compare_state(places, design.members, design.blocks)
    points = np.bincount(cells.codes, weights=cells.counts, minlength=len(cells.names)).astype(np.int64)
    return CellTypes(
        cells.names, points, parts.masses, parts.contributions, parts.abundance, parts.state,
        counted.scores, counted.log_ratios, counted.p_values, counted.q_values,
        moved.scores, moved.p_values, moved.q_values, moved.tested, counted.stable,
    )  # fmt: skip


def _by_type(model: DiffusionEMD, cells: TypedCells, units: sp.csr_array) -> sp.csr_array:
    """Return masses of the types of each unit at the nodes, ``(n_units * n_types, n_nodes)``."""
    entries, n_types = sp.coo_array(units), len(cells.names)
    kinds = cells.codes[entries.col]
    places = (entries.row.astype(np.int64) * n_types + kinds, cells.nodes[entries.col])
    shape = (units.shape[0] * n_types, model.graph_.n_points)
    return sp.csr_array(model.graph_.gather(sp.csr_array((entries.data, places), shape=shape)))
