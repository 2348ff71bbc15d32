"""Types of points, such as cell types: which differ between two groups of samples in abundance, and which in state.

See `heatmover.attribution.witness` for the two parts of a type's share of a distance.

Shares of a sample sum to one: a type that grows makes all others shrink. A type counts as changed only if it is so in
two frames of reference, with one sign: in its share of the sample, and in the logarithm of its share relative to types
that are stable. The first is what a person counts and is right on average whatever the number of cells; the second
keeps types that only made room from being called. Stable are the types whose log-ratios to each other changed least:
the largest set that agrees on one common change, each type within its own error. It must hold most of the types whose
change would show; else nothing is known to be stable, and shares alone decide.

The cells that a sample has of one type are a distribution of their own, whatever their number. It is diffused over the
graph, and the groups' means of it are compared under permutations. The places of all samples and types are seen through
a few random probes, which are diffused once: means over probes of products of what they show are inner products of
embeddings, in the norm ``sum(f**2 / pi)`` that the operator has by itself (pi is the stationary law).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import in_threads
from heatmover._base.types import Bool, Float64, FloatArray, Int64
from heatmover._base.validation import check_threads, import_extra
from heatmover.attribution.contrast import (
    Differences,
    TwoGroups,
    column_differences,
    controlled,
    gram_statistics,
    smallest_p,
    two_sided,
    weigh,
)
from heatmover.attribution.witness import check_annotation, split
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation

__all__ = [
    "Abundance",
    "CellTypes",
    "State",
    "TypedCells",
    "compare_abundance",
    "compare_state",
    "contrast_types",
    "effective_cells",
    "log_counts",
    "places_of_types",
    "standardized",
    "typed_points",
]

COLUMNS = (
    "points", "contributions", "abundance", "state", "scores", "log_ratios", "abundance_p", "abundance_q",
    "state_scores", "state_p", "state_q",
)  # fmt: skip
# Added to the number of cells before the logarithm: the logarithm is then right on average to the first order
# (Haldane 1956, Anscombe 1956).
PSEUDO_COUNT = 0.5
# A type agrees with the change of another if they are within so many standard errors of their difference.
AGREES = 2.0
# A type says something of what is stable if a change by this factor would be seen in it.
WOULD_SHOW = 4.0
# Common changes that are tried are those of the largest so many types.
CANDIDATES = 64
# From this expected number on the mean logarithm is the logarithm of the mean, to a thousandth.
MANY = 25.0
# Values that are looked at together, for each array.
AT_ONCE = 4_000_000
# Probes, and how many are diffused together. A square seen by 64 of them is off by a sixth at most; all samples are
# seen by the same ones, so that a test stays as exact as its permutations.
PROBES, TOGETHER = 64, 32
# A sample in which a type has n cells counts n / (n + 10) there: a few cells say little of their distribution.
HALF_KNOWN = 10.0
# A group needs as many samples with cells of a type.
LEAST_SAMPLES = 2


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


def effective_cells(design: TwoGroups, cells: TypedCells) -> Float64:
    """Return of how many cells each unit consists, as if all weighed the same, ``(n_units,)``."""
    squares = design.average.multiply(design.average)
    return np.asarray(1 / (squares @ (1 / cells.sizes[design.chosen]))).ravel()


def contrast_types(
    model: DiffusionEMD, design: TwoGroups, cells: TypedCells, witness: Float64, rng: np.random.Generator
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
    cells_of_type = shares * sizes[:, None]
    places = places_of_types(model.prepared_, rows, cells_of_type, rng, threads)
    moved = compare_state(places, cells_of_type, design.members, design.blocks)
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


class Abundance(NamedTuple):
    """What was found of every type.

    Attributes
    ----------
    scores
        ``(n_types,)``: studentised difference, positive where the group has more, the less sure of both frames; zero
        where they disagree.
    log_ratios
        ``(n_types,)``: natural logarithm of how many times as many the group has, relative to the stable types, or of
        the ratio of shares if there are none.
    p_values, q_values
        ``(n_types,)``: by permutation, and corrected for the number of types that could be found.
    stable
        ``(n_types,)``: types that are the reference; none if nothing is known to be stable.
    """

    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64
    stable: Bool


def compare_abundance(shares: Float64, cells: Float64, members: Bool, blocks: Int64) -> Abundance:
    """Test every type by its shares, and relative to the types that are stable.

    Parameters
    ----------
    shares
        Of the cells of each unit, ``(n_units, n_types)``.
    cells
        Of how many cells each unit consists, ``(n_units,)``.
    members
        Which units are in the group, ``(n_orders, n_units)``, the observed order first.
    blocks
        Block of each unit, ``(n_units,)``.
    """
    weighed = weigh(members, blocks)
    plain = column_differences(standardized(shares, cells, blocks), weighed)
    statistics = plain.values / plain.errors
    # Words are about mean shares, and a test that says the opposite is no finding.
    same = statistics[0] * column_differences(shares, weighed).values[0] > 0
    scores, smallest = np.where(same, statistics[0], 0.0), smallest_p(statistics)
    plain_p = np.where(same, two_sided(statistics), 1.0)
    logs = log_counts(shares, cells)
    differences = _at_least_counted(column_differences(logs, weighed), shares, cells, members)
    weights, stable = _reference(differences, shares.mean(axis=0) / (1 / cells).mean())
    if not stable.any():
        return Abundance(scores, differences.values[0], plain_p, controlled(plain_p, smallest), stable)
    relative, relative_p, changes = _relative(logs, weights, members, blocks)
    agree = scores * relative > 0
    p_values = np.where(agree, np.maximum(plain_p, relative_p), 1.0)
    less_sure = np.where(agree, np.sign(scores) * np.minimum(np.abs(scores), np.abs(relative)), 0.0)
    return Abundance(less_sure, changes, p_values, controlled(p_values, smallest), stable)


def standardized(shares: Float64, cells: Float64, blocks: Int64) -> Float64:
    """Return how far shares are from the mean of their block, in standard deviations of their own unit.

    A share of few cells varies more than one of many, and for a rare type in jumps that only small samples make: where
    those are all of one group, permutations of plain shares call such a type too often (5 % are 12 % at 0.5 % of 60 and
    of 400 cells).

    Parameters
    ----------
    shares, cells, blocks
        As in `compare_abundance`.
    """
    mean = shares.mean(axis=0)
    counting = np.outer(1 / cells, mean * (1 - mean))
    beyond = np.maximum(shares.var(axis=0, ddof=1) - counting.mean(axis=0), 0)
    variance = counting + beyond
    weights = np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
    inside = (np.unique(blocks)[:, None] == blocks).astype(np.float64)
    total = inside @ weights
    centers = np.divide(inside @ (weights * shares), total, out=np.zeros_like(total), where=total > 0)
    return np.asarray((shares - inside.T @ centers) * np.sqrt(weights))


def log_counts(shares: Float64, cells: Float64) -> Float64:
    """Return logarithms of numbers of cells, less what they are on average where nothing changes.

    The mean logarithm of a few cells is not the logarithm of their mean, and where groups have unequal numbers of cells
    rare types would seem to change together.

    Parameters
    ----------
    shares
        Of the cells of each unit, ``(n_units, n_types)``.
    cells
        Of each unit, ``(n_units,)``.
    """
    expected = cells[:, None] * shares.mean(axis=0)
    few = np.minimum(expected, MANY)
    counts = np.arange(int(4 * MANY))
    logs = np.log(counts + PSEUDO_COUNT)
    chances = np.exp(counts * np.log(np.maximum(few, 1e-300))[..., None] - few[..., None] - gammaln(counts + 1))
    mean = np.where(expected < MANY, chances @ logs, np.log(np.maximum(expected, MANY)))
    return np.asarray(np.log(cells[:, None] * shares + PSEUDO_COUNT) - mean)


def _at_least_counted(differences: Differences, shares: Float64, cells: Float64, members: Bool) -> Differences:
    """Return differences of logarithms with errors not below those of counting cells: few samples may agree by luck."""
    counts = shares.mean(axis=0) / (1 / cells).mean() + PSEUDO_COUNT
    size = members[0].sum()
    counted = (1 / size + 1 / (members.shape[1] - size)) / counts
    return Differences(differences.values, np.sqrt(np.maximum(differences.errors**2, counted)))


def _reference(differences: Differences, counts: Float64) -> tuple[Float64, Bool]:
    """Return how much each type counts in the reference of every order, and which are stable in the observed one.

    Parameters
    ----------
    differences
        Differences of log-shares.
    counts
        Cells of each type in a typical unit, ``(n_types,)``.
    """
    candidates = np.argsort(-counts, kind="stable")[:CANDIDATES]
    n_orders, n_types = differences.values.shape
    agreeing = np.empty(differences.values.shape, dtype=bool)
    step = max(1, AT_ONCE // (n_types * candidates.size))
    for start in range(0, n_orders, step):
        part = slice(start, start + step)
        values, errors = differences.values[part], differences.errors[part]
        # A type with a large error agrees with everything and so decides nothing.
        together = np.sqrt(errors[:, None, :] ** 2 + errors[:, candidates, None] ** 2)
        distances = (values[:, None, :] - values[:, candidates, None]) / together
        best = np.exp(-(distances**2) / 2).sum(axis=2).argmax(axis=1)
        agreeing[part] = np.abs(distances[np.arange(len(best)), best]) <= AGREES
    # The log-share of a type with most of the cells hardly varies; it is no better a reference for that, and would be
    # all of it.
    typical = np.nanmedian(np.where(agreeing, differences.errors, np.nan), axis=1, keepdims=True)
    precision = np.where(agreeing, 1 / np.maximum(differences.errors, typical) ** 2, 0.0)
    telling = AGREES * differences.errors[0] <= np.log(WOULD_SHOW)
    stable = agreeing[0] & telling
    if stable.sum() < 2 or 2 * stable.sum() <= telling.sum():
        stable = np.zeros(n_types, dtype=bool)
    return precision / precision.sum(axis=1, keepdims=True), stable


def _relative(logs: Float64, weights: Float64, members: Bool, blocks: Int64) -> tuple[Float64, Float64, Float64]:
    """Return observed statistics of log-ratios to the reference, their p-values, and the log-ratios.

    A type that is part of the reference is compared with the rest of it: ``(l - r) / (1 - w)`` is that log-ratio, and
    studentising removes the factor.
    """
    weighed = weigh(members, blocks)
    centered = weighed.center @ logs
    reference = weights @ centered.T
    difference = weighed.coefficients @ centered
    shift = (weighed.coefficients * reference).sum(axis=1, keepdims=True)
    values = difference - shift
    errors, crossed = weighed.errors, weighed.errors * weighed.contrasts
    squares = errors @ centered**2 - 2 * (errors * reference) @ centered
    squares += (errors * reference**2).sum(axis=1, keepdims=True)
    products = crossed @ centered - (crossed * reference).sum(axis=1, keepdims=True)
    ends = (crossed * weighed.contrasts).sum(axis=1, keepdims=True)
    variance = squares - 2 * values * products + values**2 * ends
    least = 1e-10 * (centered**2).mean(axis=0) + np.finfo(float).tiny
    statistics = values / np.sqrt(np.maximum(variance, least))
    alone = np.maximum(1 - weights[0], 1e-9)
    return statistics[0], two_sided(statistics), np.where(weights[0] < 1, values[0] / alone, 0.0)


class State(NamedTuple):
    """What was found of every type: ``scores`` (not negative), p- and q-values, and whether it was ``tested``."""

    scores: Float64
    p_values: Float64
    q_values: Float64
    tested: Bool


def places_of_types(
    prepared: Preparation, rows: sp.csr_array, cells: Float64, rng: np.random.Generator, n_threads: int
) -> FloatArray:
    """Return where the cells of each type lie in each unit, ``(n_units, n_types, n_features)``, zero where it has none.

    Every scale counts by the spread of the cells.

    Parameters
    ----------
    prepared
        Of the model.
    rows
        Masses of the types of each unit at the nodes, ``(n_units * n_types, n_nodes)``, those of a unit together.
    cells
        How many cells each of them has, ``(n_units, n_types)``.
    rng
        Generator.
    n_threads
        Threads to use; the result does not depend on them.
    """
    n_units, n_types = cells.shape
    sums = np.asarray(rows.sum(axis=1)).ravel()
    own = sp.csr_array(sp.diags_array(1 / np.where(sums > 0, sums, 1)) @ rows)
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # Mass diffuses in the norm sum(f^2 / pi), functions in sum(f^2 pi).
    metric = law if prepared.adjoint else 1 / law
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    # In the operator's order, which does not depend on that of the points.
    signs[operator.order] = rng.choice(np.array([-1, 1], dtype=np.int8), size=signs.shape)
    n_scales, starts = len(layout.scales), range(0, PROBES, TOGETHER)
    means = np.empty((own.shape[0], n_scales, PROBES), dtype=dtype)
    squares = np.empty((len(starts), n_scales, own.shape[0]))
    masses = own.astype(dtype)
    everything = np.asarray(rows.sum(axis=0) / rows.sum(), dtype=dtype).ravel()

    def look(number: int) -> None:
        columns = slice(starts[number], starts[number] + TOGETHER)
        probes = (signs[:, columns] * np.sqrt(metric)[:, None]).astype(dtype)
        densities = prepared.diffuser.diffuse(probes, layout.scales)
        for scale, density in enumerate(densities):
            values = density / metric[:, None].astype(dtype)
            # What all cells have in common is most of a coarse density, and would be all that float32 holds.
            values -= everything @ values
            means[:, scale, columns] = masses @ values
            squares[number, scale] = np.sum(masses @ np.square(values), axis=1, dtype=np.float64)

    in_threads(look, range(len(starts)), n_threads)
    shown = means.reshape(n_units, n_types, n_scales, PROBES)
    spread = _spread(shown, squares.sum(axis=0).T.reshape(n_units, n_types, n_scales), cells)
    shown *= (1 / np.sqrt(spread)).astype(dtype)[None, :, :, None]
    shown[cells <= 0] = 0
    return shown.reshape(n_units, n_types, -1)


def _spread(means: FloatArray, squares: Float64, cells: Float64) -> Float64:
    """Return the variance of all cells of a type at every scale, ``(n_types, n_scales)``; one where there is none."""
    shares = cells / np.maximum(cells.sum(axis=0), np.finfo(float).tiny)
    center = np.einsum("ut,utsp->tsp", shares, means)
    variance = np.einsum("ut,uts->ts", shares, squares) - (center**2).sum(axis=2)
    least = 1e-6 * np.einsum("ut,uts->ts", shares, squares)
    return np.where(variance > least, variance, np.inf)


def compare_state(places: FloatArray, cells: Float64, members: Bool, blocks: Int64) -> State:
    """Test whether the cells of a type lie elsewhere in the group, type by type.

    Parameters
    ----------
    places
        From `places_of_types`.
    cells
        ``(n_units, n_types)``: how many cells, as if all of a unit weighed the same.
    members
        Which units are in the group, ``(n_orders, n_units)``, the observed order first.
    blocks
        Block of each unit, ``(n_units,)``.
    """
    n_types = cells.shape[1]
    scores, tested = np.zeros(n_types), np.zeros(n_types, dtype=bool)
    p_values, smallest = np.ones(n_types), np.ones(n_types)
    for kind in range(n_types):
        weighed = weigh(members, blocks, cells[:, kind] / (cells[:, kind] + HALF_KNOWN))
        taking_part = members[0][weighed.informative]
        if min(taking_part.sum(), (~taking_part).sum()) < LEAST_SAMPLES:
            continue
        shown = places[:, kind].astype(np.float64)
        statistics = np.sqrt(gram_statistics(shown @ shown.T, weighed))
        scores[kind], tested[kind] = statistics[0], True
        p_values[kind], smallest[kind] = two_sided(statistics), smallest_p(statistics)
    return State(scores, p_values, controlled(p_values, smallest), tested)
