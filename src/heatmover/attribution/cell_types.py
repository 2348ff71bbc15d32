"""Test which cell types differ in abundance, state and features between groups; for `attribution`, `study`; no files.

The module reads the graph and the diffusion of a fitted model. `heatmover.attribution.witness` explains how abundance
and state contribute to a distance.

The shares of a sample sum to one, so if one type grows, the shares of all other types shrink. A type is therefore
reported as different only if two tests are significant with the same sign: a test of its share, and a test of the
logarithm of its share relative to stable types. The share is easy to interpret, and it is unbiased for any number of
cells. The log-ratio prevents false reports of types whose share changed only because another type grew or shrank.
Stable types are the types whose log-ratios to each other changed least: the largest set of types that agree on one
common change, each within its own error. The set must contain most of the types in which a change would be visible.
Otherwise no type is treated as stable, and only shares are tested.

To test the state of a type, the cells of this type in a sample are treated as a distribution, whose total mass does not
depend on the number of cells. The distributions are diffused over the graph, and a permutation test compares their
means over the two groups. The embeddings of all samples and types are compared with a few random probes, which are
diffused once. The product of two probe values, averaged over probes, estimates the inner product of two embeddings, in
the operator's own norm ``sum(f**2 / pi)`` (pi is the stationary distribution).
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
from heatmover.attribution.contrast import SampleContrast
from heatmover.attribution.witness import split
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation
from heatmover.statistics.permutations import check_labels
from heatmover.statistics.regression import (
    Differences,
    Regression,
    column_differences,
    controlled,
    gram_statistics,
    nuisance_basis,
    smallest_p,
    two_sided,
    weigh,
)

COLUMNS = (
    "points", "contributions", "abundance", "state", "scores", "log_ratios", "abundance_p", "abundance_q",
    "state_scores", "state_p", "state_q",
)  # fmt: skip
# Added to the number of cells before taking the logarithm. The expectation of the logarithm is then correct to first
# order (Haldane 1956, Anscombe 1956).
PSEUDO_COUNT = 0.5
# The changes of two types agree if they differ by at most this many standard errors of their difference.
AGREES = 2.0
# Only types in which a change by this factor would be visible are used to decide whether enough types are stable.
WOULD_SHOW = 4.0
# Number of largest types whose changes are tried as the common change.
CANDIDATES = 64
# With at least this expected number of cells, the mean logarithm differs from the logarithm of the mean by at most
# 0.001.
MANY = 25.0
# Largest number of values in an array at a time.
AT_ONCE = 4_000_000
# Number of probes, and number of probes that are diffused at once. A squared norm estimated from 64 probes has an error
# of at most one sixth. All samples use the same probes, so this error does not affect the validity of the permutation
# test.
PROBES, TOGETHER = 64, 32
# A sample with n cells of a type has weight n / (n + 10) for this type, because few cells determine their distribution
# poorly.
HALF_KNOWN = 10.0
# Smallest number of samples with cells of a type in each group.
LEAST_SAMPLES = 2


@final
@dataclass(frozen=True, eq=False, repr=False)
class CellTypes(ReadOnlyArrays):
    """Differences in abundance and state of each cell type between two groups of samples.

    Attributes
    ----------
    names
        Names of the types, sorted.
    points
        ``(n_types,)``: number of points of each type.
    shares
        ``(n_types, 2)``: mean share of the type in the samples of the group, and in the samples of the reference.
    contributions
        ``(n_types,)``: contribution of each type to the distance between the means of the groups.
    abundance, state
        ``(n_types,)``: the parts of the contribution due to abundance and due to cell state. The state part is zero
        for a type that is absent from one group.
    scores
        ``(n_types,)``: studentized difference in abundance, positive if the type is more abundant in the group. The
        score is zero if the share and the log-ratio to the stable types change in opposite directions.
    log_ratios
        ``(n_types,)``: natural logarithm of the abundance in the group divided by the abundance in the reference,
        relative to the stable types.
    abundance_p, abundance_q
        ``(n_types,)``: p-value of the difference in abundance, by permuting samples, and q-value over all types.
    state_scores
        ``(n_types,)``: distance between the mean distributions of the type in the two groups, divided by its standard
        error.
    state_p, state_q
        ``(n_types,)``: p- and q-value of the difference in state; 1 if too few samples have cells of the type.
    state_tested
        ``(n_types,)``: True if both groups have at least two samples with cells of the type.
    stable
        ``(n_types,)``: True for the types that are the reference of the log-ratios, because their ratios to each other
        change least. If too few types are stable, none is marked, and only shares are tested.

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
    """Cells of samples by type; a point of the graph may represent cells of several types.

    Attributes
    ----------
    names
        Names of the types.
    codes
        ``(n_cells,)``: type of each cell, or of each set of cells with one type and one node.
    nodes
        ``(n_cells,)``: node, the point of the graph that represents each cell or set.
    masses
        ``(n_samples, n_cells)``: mass of each cell or set in each sample.
    counts
        ``(n_cells,)``: number of cells in each set; 1 for single cells.
    sizes
        ``(n_samples,)``: number of cells of each sample.
    """

    names: tuple[str, ...]
    codes: Int64
    nodes: Int64
    masses: sp.csr_array
    counts: Int64
    sizes: Float64


def typed_points(annotation: Any, rows: Any) -> TypedCells:
    """Return the masses of samples ``(n_samples, n_points)`` with the type of each point, ``(n_points,)``."""
    codes, names = check_labels("annotation", annotation, rows.shape[1], of="point")
    masses = sp.csr_array(rows)
    # Effective numbers of cells: the squared masses of n equal cells sum to 1 / n.
    sizes = 1 / np.asarray(masses.multiply(masses).sum(axis=1)).ravel()
    return TypedCells(names, codes, np.arange(codes.size), masses, np.ones(codes.size, dtype=np.int64), sizes)


def effective_cells(design: SampleContrast, cells: TypedCells) -> Float64:
    """Return the effective number of cells of each permutation unit, ``(n_units,)``."""
    squares = design.average.multiply(design.average)
    return np.asarray(1 / (squares @ (1 / cells.sizes[design.chosen]))).ravel()


def contrast_types(
    model: DiffusionEMD, design: SampleContrast, cells: TypedCells, witness: Float64, rng: np.random.Generator
) -> CellTypes:
    """Split the distance between the means of two groups by type, and test the abundance and state of each type.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    design
        The two groups and their permutations.
    cells
        Cells of all samples by type.
    witness
        Witness of the distance between the means of the groups, ``(n_points,)``.
    rng
        Generator of the probes.
    """
    parts = split(witness[cells.nodes], design.means(cells.masses), cells.codes, len(cells.names))
    units = design.units(cells.masses)
    rows = sp.csr_array(model.graph_.gather(by_type(cells, units, cells.nodes, model.graph_.n_points)))
    shares = np.asarray(rows.sum(axis=1)).reshape(units.shape[0], len(cells.names))
    sizes = effective_cells(design, cells)
    abundance = compare_abundance(shares, sizes, design.regressors, design.nuisance)
    threads = check_threads(model.n_jobs)
    cells_of_type = shares * sizes[:, None]
    places = places_of_types(model.prepared_, rows, cells_of_type, rng, threads)
    moved = compare_state(places, cells_of_type, design.regressors, design.nuisance)
    points = np.bincount(cells.codes, weights=cells.counts, minlength=len(cells.names)).astype(np.int64)
    return CellTypes(
        cells.names, points, parts.masses, parts.contributions, parts.abundance, parts.state,
        abundance.scores, abundance.log_ratios, abundance.p_values, abundance.q_values,
        moved.scores, moved.p_values, moved.q_values, moved.tested, abundance.stable,
    )  # fmt: skip


def by_type(cells: TypedCells, units: sp.csr_array, columns: Int64, n_columns: int) -> sp.csr_array:
    """Return the masses of all types in each permutation unit, ``(n_units * n_types, n_columns)``, unit after unit.

    Parameters
    ----------
    cells
        Cells of all samples by type.
    units
        Masses of the cells in each permutation unit, ``(n_units, n_cells)``.
    columns
        Column that receives the mass of each cell, ``(n_cells,)``.
    n_columns
        Number of columns.
    """
    entries, n_types = sp.coo_array(units), len(cells.names)
    places = (entries.row.astype(np.int64) * n_types + cells.codes[entries.col], columns[entries.col])
    return sp.csr_array((entries.data, places), shape=(units.shape[0] * n_types, n_columns))


class Abundance(NamedTuple):
    """Result of the test of the abundance of every type.

    Attributes
    ----------
    scores
        ``(n_types,)``: studentized difference, positive if the type is more abundant in the group. The difference of
        shares and the difference of log-ratios are both tested, and the less significant one is used; zero if their
        signs differ.
    log_ratios
        ``(n_types,)``: natural logarithm of the abundance ratio relative to the stable types. If no type is stable, the
        ratio is not relative to any type.
    p_values, q_values
        ``(n_types,)``: p-values by permutation, and q-values over the types that could be significant.
    stable
        ``(n_types,)``: True for the stable types, which are the reference of the log-ratios.
    """

    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64
    stable: Bool


def compare_abundance(shares: Float64, cells: Float64, regressors: Float64, nuisance: Float64) -> Abundance:
    """Test whether the abundance of each type differs between the groups, in its share and relative to stable types.

    Parameters
    ----------
    shares
        Share of each type among the cells of each permutation unit, ``(n_units, n_types)``.
    cells
        Number of cells of each unit, ``(n_units,)``.
    regressors, nuisance
        As in `heatmover.statistics.regression.weigh`.
    """
    regression = weigh(regressors, nuisance)
    plain = column_differences(standardized(shares, cells, nuisance), regression)
    statistics = plain.values / plain.errors
    # Results report mean shares. A test statistic whose sign contradicts the difference of mean shares is therefore
    # ignored.
    same = statistics[0] * column_differences(shares, regression).values[0] > 0
    scores, smallest = np.where(same, statistics[0], 0.0), smallest_p(statistics)
    plain_p = np.where(same, two_sided(statistics), 1.0)
    logs = log_counts(shares, cells)
    counts = shares.mean(axis=0) / (1 / cells).mean()
    values, errors = column_differences(logs, regression)
    # Standard errors are at least the errors of counting cells, because a few samples may agree by chance.
    least = (regression.coefficients[0] ** 2).sum() / (counts + PSEUDO_COUNT)
    differences = Differences(values, np.sqrt(np.maximum(errors**2, least)))
    weights, stable = _reference(differences, counts)
    if not stable.any():
        return Abundance(scores, differences.values[0], plain_p, controlled(plain_p, smallest), stable)
    relative, relative_p, changes = _relative(logs, weights, regression)
    agree = scores * relative > 0
    p_values = np.where(agree, np.maximum(plain_p, relative_p), 1.0)
    smaller = np.where(agree, np.sign(scores) * np.minimum(np.abs(scores), np.abs(relative)), 0.0)
    return Abundance(smaller, changes, p_values, controlled(p_values, smallest), stable)


def standardized(shares: Float64, cells: Float64, nuisance: Float64) -> Float64:
    """Return each share minus its fit on the nuisance columns, divided by the standard deviation of the unit.

    Shares in samples of few cells vary more than in samples of many cells, and the share of a rare type varies in large
    jumps. If all small samples are in one group, a permutation test of plain shares is significant too often for a rare
    type. For a share of 0.5% in samples of 60 and of 400 cells, this test was significant in 12% instead of 5% of
    simulations.

    Parameters
    ----------
    shares, cells, nuisance
        As in `compare_abundance`.
    """
    mean = shares.mean(axis=0)
    counting = np.outer(1 / cells, mean * (1 - mean))
    beyond = np.maximum(shares.var(axis=0, ddof=1) - counting.mean(axis=0), 0)
    variance = counting + beyond
    weights = np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
    left = shares * np.sqrt(weights)
    for kind, weight in enumerate(weights.T):
        basis = nuisance_basis(nuisance, weight)
        left[:, kind] -= basis @ (basis.T @ left[:, kind])
    return np.asarray(left)


def log_counts(shares: Float64, cells: Float64) -> Float64:
    """Return logarithms of numbers of cells, minus the logarithms that are expected if nothing changes.

    The mean logarithm of small numbers is not the logarithm of their mean. Without the subtraction, rare types would
    therefore seem to change together if the groups have unequal numbers of cells.

    Parameters
    ----------
    shares, cells
        As in `compare_abundance`.
    """
    expected = cells[:, None] * shares.mean(axis=0)
    few = np.minimum(expected, MANY)
    counts = np.arange(int(4 * MANY))
    logs = np.log(counts + PSEUDO_COUNT)
    chances = np.exp(counts * np.log(np.maximum(few, 1e-300))[..., None] - few[..., None] - gammaln(counts + 1))
    mean = np.where(expected < MANY, chances @ logs, np.log(np.maximum(expected, MANY)))
    return np.asarray(np.log(cells[:, None] * shares + PSEUDO_COUNT) - mean)


def _reference(differences: Differences, counts: Float64) -> tuple[Float64, Bool]:
    """Return the weights of the types in the reference, ``(n_orders, n_types)``, and the observed stable types.

    Parameters
    ----------
    differences
        Differences of log-shares between the groups.
    counts
        Number of cells of each type in a typical unit, ``(n_types,)``.
    """
    candidates = np.argsort(-counts, kind="stable")[:CANDIDATES]
    n_orders, n_types = differences.values.shape
    agreeing = np.empty(differences.values.shape, dtype=bool)
    step = max(1, AT_ONCE // (n_types * candidates.size))
    for start in range(0, n_orders, step):
        part = slice(start, start + step)
        values, errors = differences.values[part], differences.errors[part]
        # A type with a large error agrees with every change, so this type does not influence the choice of the common
        # change.
        together = np.sqrt(errors[:, None, :] ** 2 + errors[:, candidates, None] ** 2)
        distances = (values[:, None, :] - values[:, candidates, None]) / together
        best = np.exp(-(distances**2) / 2).sum(axis=2).argmax(axis=1)
        agreeing[part] = np.abs(distances[np.arange(len(best)), best]) <= AGREES
    # The log-share of a type with most of the cells hardly varies, so this type would get all the weight. A small
    # variance does not make a type a better reference, so the precision of every type is limited.
    typical = np.nanmedian(np.where(agreeing, differences.errors, np.nan), axis=1, keepdims=True)
    precision = np.where(agreeing, 1 / np.maximum(differences.errors, typical) ** 2, 0.0)
    telling = AGREES * differences.errors[0] <= np.log(WOULD_SHOW)
    stable = agreeing[0] & telling
    if stable.sum() < 2 or 2 * stable.sum() <= telling.sum():
        stable = np.zeros(n_types, dtype=bool)
    return precision / precision.sum(axis=1, keepdims=True), stable


def _relative(logs: Float64, weights: Float64, regression: Regression) -> tuple[Float64, Float64, Float64]:
    """Return observed statistics of log-ratios to the reference, their p-values, and the log-ratios.

    A type with log-share l and weight w in the reference r is compared with the rest of the reference. The log-ratio of
    this type is then ``(l - r) / (1 - w)``. Studentizing removes the factor ``1 / (1 - w)``.
    """
    centered = regression.center @ logs
    reference = weights @ centered.T
    difference = regression.coefficients @ centered
    shift = (regression.coefficients * reference).sum(axis=1, keepdims=True)
    values = difference - shift
    errors, crossed = regression.errors, regression.errors * regression.contrasts
    squares = errors @ centered**2 - 2 * (errors * reference) @ centered
    squares += (errors * reference**2).sum(axis=1, keepdims=True)
    products = crossed @ centered - (crossed * reference).sum(axis=1, keepdims=True)
    ends = (crossed * regression.contrasts).sum(axis=1, keepdims=True)
    variance = squares - 2 * values * products + values**2 * ends
    least = 1e-10 * (centered**2).mean(axis=0) + np.finfo(float).tiny
    statistics = values / np.sqrt(np.maximum(variance, least))
    alone = np.maximum(1 - weights[0], 1e-9)
    return statistics[0], two_sided(statistics), np.where(weights[0] < 1, values[0] / alone, 0.0)


class State(NamedTuple):
    """Result of the test of the state of every type, ``(n_types,)`` each; ``tested`` marks tested types."""

    scores: Float64
    p_values: Float64
    q_values: Float64
    tested: Bool


def places_of_types(
    prepared: Preparation, rows: sp.csr_array, cells: Float64, rng: np.random.Generator, n_threads: int
) -> FloatArray:
    """Return the position of each type in each unit, ``(n_units, n_types, n_features)``; zero for types without cells.

    Positions at every scale are divided by the standard deviation of the cells of the type.

    Parameters
    ----------
    prepared
        Preparation of the fitted model.
    rows
        Masses of the types of each unit at the nodes, ``(n_units * n_types, n_nodes)``, from `by_type`.
    cells
        Number of cells of each type in each unit, ``(n_units, n_types)``.
    rng
        Generator of the probes.
    n_threads
        Number of threads; the result does not depend on this number.
    """
    n_units, n_types = cells.shape
    sums = np.asarray(rows.sum(axis=1)).ravel()
    own = sp.csr_array(sp.diags_array(1 / np.where(sums > 0, sums, 1)) @ rows)
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # The squared norm is sum(f^2 / pi) for masses and sum(f^2 pi) for functions.
    metric = law if prepared.adjoint else 1 / law
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    # Draw in the order of the operator, which does not depend on the order of the points.
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
            # Subtract the mean of all cells, because this mean makes up most of a coarse density and float32 would lose
            # the differences.
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
    """Return the variance of all cells of a type at every scale, ``(n_types, n_scales)``; infinity instead of zero."""
    shares = cells / np.maximum(cells.sum(axis=0), np.finfo(float).tiny)
    center = np.einsum("ut,utsp->tsp", shares, means)
    variance = np.einsum("ut,uts->ts", shares, squares) - (center**2).sum(axis=2)
    least = 1e-6 * np.einsum("ut,uts->ts", shares, squares)
    return np.where(variance > least, variance, np.inf)


def compare_state(places: FloatArray, cells: Float64, regressors: Float64, nuisance: Float64) -> State:
    """Test for every type whether the state of its cells differs between the groups.

    Parameters
    ----------
    places
        Positions of the types in each unit, from `places_of_types`.
    cells
        Effective number of cells of each type in each unit, ``(n_units, n_types)``.
    regressors, nuisance
        As in `heatmover.statistics.regression.weigh`.
    """
    n_types = cells.shape[1]
    scores, tested = np.zeros(n_types), np.zeros(n_types, dtype=bool)
    p_values, smallest = np.ones(n_types), np.ones(n_types)
    for kind in range(n_types):
        regression = weigh(regressors, nuisance, cells[:, kind] / (cells[:, kind] + HALF_KNOWN))
        if regression.least_side < LEAST_SAMPLES:
            continue
        shown = places[:, kind].astype(np.float64)
        statistics = np.sqrt(gram_statistics(shown @ shown.T, regression))
        scores[kind], tested[kind] = statistics[0], True
        p_values[kind], smallest[kind] = two_sided(statistics), smallest_p(statistics)
    return State(scores, p_values, controlled(p_values, smallest), tested)
