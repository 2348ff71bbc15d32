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

If half of the types rise together, the data do not tell which half is stable: the composition is the same if the other
half falls. If a second set of types agrees on another common change and serves nearly as well as a reference, a change
in abundance is therefore significant only if it is significant relative to both sets.

To test the state of a type, the cells of this type in a sample are treated as a distribution, whose total mass does not
depend on the number of cells. The distributions are diffused over the graph, and a permutation test compares their
means over the two groups. The embeddings of all samples and types are compared with a few random probes, which are
diffused once. The product of two probe values, averaged over probes, estimates the inner product of two embeddings, in
the operator's own norm ``sum(f**2 / pi)`` (pi is the stationary distribution).
"""

from __future__ import annotations

from collections.abc import Sequence
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
from heatmover.statistics.permutations import check_labels, within_reach
from heatmover.statistics.regression import (
    TIE,
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
# A second set of types is an alternative reference if its support is at least this share of the support of the first
# set. Types that agree with both sets do not count. The share was chosen from simulations in which 2 to 6 of 12 types
# rise together (benchmarks/contrasts.py, half).
NEARLY = 0.6
# A reference is a set of at least this many types.
LEAST_REFERENCE = 2
# False discovery rate at which types are significant.
LEVEL = 0.1
# If the smallest p-value of random permutations times the number of tests exceeds CROWDED, the p-values of types with
# at most FEW more extreme permutations are estimated again, with REFINED times as many permutations (Besag and
# Clifford 1991). Without this step, 999 permutations of 100 types found one of four types.
CROWDED, FEW, REFINED = LEVEL / 5, 10, 20
# Largest number of permutations times units for the second estimate; an array then takes 64 MB.
MOST_ORDERS = 8_000_000
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
    alternative
        ``(n_types,)``: True for the types of a second set that would serve nearly as well as a reference. Changes in
        abundance are then significant only if they are significant relative to both sets.
    dependent
        ``(n_types,)``: True for types whose abundance differs relative to one of the two sets only.
    abundance_decidable, state_decidable
        ``(n_types,)``: False if even the smallest p-value that the permutations allow for this type would not be
        significant.

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
    alternative: Bool
    dependent: Bool
    abundance_decidable: Bool
    state_decidable: Bool

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
    model: DiffusionEMD,
    designs: Sequence[SampleContrast],
    cells: TypedCells,
    witnesses: Sequence[Float64],
    rng: np.random.Generator,
) -> list[CellTypes]:
    """Split the distance of each contrast by type, and test the abundance and state of each type.

    The q-values control the false-discovery rate over the types of all contrasts.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    designs
        The contrasts and their permutations.
    cells
        Cells of all samples by type.
    witnesses
        Witness of the distance between the two sides of each contrast, ``(n_points,)`` each.
    rng
        Generator of the probes.
    """
    probed, tests = probe_types(model, cells, rng), list[TypeTests]()
    n_tests, reach, floors = len(designs) * len(cells.names), [], []
    for design in designs:
        tested, drawn = run_tests(design, cells, probed), 1 + design.n_permutations
        doubtful = np.minimum(tested.abundance_p, tested.state_p) * drawn <= FEW + 1
        reach.append(np.ones(len(cells.names)))
        floors.append(0.0)
        if not design.complete and n_tests > CROWDED * drawn:
            finer = max(min(REFINED * drawn, MOST_ORDERS // len(design.blocks)), drawn)
            more = design.redrawn(finer - 1, rng)
            # Types that are not doubtful could have had p-values as small as those of the second estimate.
            reach[-1][~doubtful] = drawn / finer
            floors[-1] = more.smallest_p
            if doubtful.any():
                tested = tested.refined(run_tests(more, cells, probed, only=doubtful), doubtful)
        tests.append(tested)
    abundance_p, abundance_least, state_p, state_least = (
        np.stack([getattr(one, name) for one in tests])
        for name in ("abundance_p", "abundance_least", "state_p", "state_least")
    )
    abundance_q, state_q = _controlled(abundance_p, abundance_least), _controlled(state_p, state_least)
    floor = np.array(floors)[:, None]
    abundance_decidable = _decidable(abundance_p, abundance_q, np.maximum(abundance_least * reach, floor))
    state_decidable = _decidable(state_p, state_q, np.maximum(state_least * reach, floor))
    points = np.bincount(cells.codes, weights=cells.counts, minlength=len(cells.names)).astype(np.int64)
    results, none = [], np.zeros(len(cells.names), dtype=bool)
    for place, (design, tested, witness) in enumerate(zip(designs, tests, witnesses, strict=True)):
        parts = split(witness[cells.nodes], design.means(cells.masses), cells.codes, len(cells.names))
        stable, alternative, *_ = (*tested.sets, none, none)
        depends = none.copy()
        for alone in tested.one_reference:
            changed = abundance_p.copy()
            changed[place] = alone
            depends |= (_controlled(changed, abundance_least)[place] <= LEVEL) & (abundance_q[place] > LEVEL)
        results.append(
            CellTypes(
                cells.names, points, parts.masses, parts.contributions, parts.abundance, parts.state,
                tested.scores, tested.log_ratios, tested.abundance_p, abundance_q[place],
                tested.state_scores, tested.state_p, state_q[place], tested.state_tested, stable, alternative,
                depends, abundance_decidable[place], state_decidable[place],
            )
        )  # fmt: skip
    return results


class TypeTests(NamedTuple):
    """Tests of every type in one contrast, ``(n_types,)`` each.

    Attributes
    ----------
    scores, log_ratios, abundance_p
        As in `CellTypes`.
    one_reference
        P-values relative to each of two sets of reference types alone, ``(2, n_types)``; empty unless there are two.
    sets
        Sets of reference types, ``(n_references, n_types)``.
    state_scores, state_p, state_tested
        As in `CellTypes`.
    abundance_least, state_least
        Smallest p-values that the permutations allow.
    """

    scores: Float64
    log_ratios: Float64
    abundance_p: Float64
    one_reference: Float64
    sets: Bool
    state_scores: Float64
    state_p: Float64
    state_tested: Bool
    abundance_least: Float64
    state_least: Float64

    def refined(self, other: TypeTests, which: Bool) -> TypeTests:
        """Return the tests with the p-values of some types from more permutations."""
        names = ("abundance_p", "one_reference", "state_p", "abundance_least", "state_least")
        return self._replace(**{name: np.where(which, getattr(other, name), getattr(self, name)) for name in names})


def _statistics(
    design: SampleContrast, cells: TypedCells, probed: ProbedTypes, only: Bool | None = None
) -> tuple[Abundance, State]:
    shares, sizes = design.average @ probed.shares[design.chosen], effective_cells(design, cells)
    abundance = abundance_statistics(shares, sizes, design.regressors, design.nuisance)
    places, of_type = probed.places(design, shares), shares * sizes[:, None]
    return abundance, compare_state(places, of_type, design.regressors, design.nuisance, only)


def run_tests(design: SampleContrast, cells: TypedCells, probed: ProbedTypes, only: Bool | None = None) -> TypeTests:
    """Return the tests of abundance and state in one contrast; ``only`` restricts the tests of state to some types."""
    abundance, moved = _statistics(design, cells, probed, only)
    alone = [abundance.p_values(slice(place, place + 1)) for place in range(len(abundance.sets))]
    return TypeTests(
        abundance.scores, abundance.changes, abundance.p_values(),
        np.stack(alone) if len(alone) == 2 else np.zeros((0, len(abundance.changes))), abundance.sets,
        moved.scores, moved.p_values, moved.tested, smallest_p(abundance.plain), moved.smallest,
    )  # fmt: skip


def omnibus(
    designs: Sequence[SampleContrast], cells: TypedCells, probed: ProbedTypes
) -> tuple[Float64, Float64, Float64, Float64]:
    """Return p- and q-values of abundance, and of state, over several groups, ``(n_types,)`` each.

    The statistic of a type is its largest statistic over the groups, each compared with all other samples. The designs
    of the groups share their permutations.
    """
    found = [_statistics(design, cells, probed) for design in designs]
    # In every order the least significant of the statistics of abundance counts, as in the observed order.
    abundance = np.max([np.abs([one.plain, *one.relative]).min(axis=0) for one, _ in found], axis=0)
    state = np.max([one.statistics for _, one in found], axis=0)
    p_values = two_sided(abundance), two_sided(state)
    q_values = (controlled(p, smallest_p(each)) for p, each in zip(p_values, (abundance, state), strict=True))
    return p_values[0], next(q_values), p_values[1], next(q_values)


def _controlled(p_values: Float64, smallest: Float64) -> Float64:
    return controlled(p_values.ravel(), smallest.ravel()).reshape(p_values.shape)


def _decidable(p_values: Float64, q_values: Float64, smallest: Float64) -> Bool:
    """Return whether the smallest p-value that its permutations allow would make each type significant.

    All other p-values are kept. Types that cannot reach 0.05 have a q-value of 1, and are not counted.
    """
    able = within_reach(smallest)
    others = p_values[able]
    rank = np.array([(others <= least * (1 + TIE)).sum() for least in smallest.ravel()]).reshape(smallest.shape)
    rank = rank + (p_values > smallest * (1 + TIE))
    return np.asarray(able & ((q_values <= LEVEL) | (smallest * able.sum() / np.maximum(rank, 1) <= LEVEL)))


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
    """Statistics of the abundance of every type; the observed order is the first of ``n_orders``.

    Attributes
    ----------
    plain
        ``(n_orders, n_types)``: studentized differences of shares.
    relative
        ``(n_references, n_orders, n_types)``: studentized differences of log-ratios to each set of reference types. No
        set, one set, or two sets that serve nearly as well.
    changes
        ``(n_types,)``: natural logarithm of the abundance ratio relative to the first set. Without a set, the ratio is
        not relative to any type.
    same
        ``(n_types,)``: True if the statistic of shares has the sign of the difference of mean shares.
    sets
        ``(n_references, n_types)``: True for the types of each set.
    """

    plain: Float64
    relative: Float64
    changes: Float64
    same: Bool
    sets: Bool

    @property
    def scores(self) -> Float64:
        """Return the least significant of the observed statistics, ``(n_types,)``; zero if their signs differ."""
        every = np.concatenate([self.plain[None, 0], self.relative[:, 0]])
        agree = self.same & ((every > 0).all(axis=0) | (every < 0).all(axis=0))
        return np.where(agree, np.sign(every[0]) * np.abs(every).min(axis=0), 0.0)

    def p_values(self, references: slice = slice(None)) -> Float64:
        """Return the largest p-value of share and log-ratios, ``(n_types,)``; 1 if the signs differ."""
        every = [self.plain, *self.relative[references]]
        signs = np.sign([one[0] for one in every])
        agree = self.same & (np.abs(signs.sum(axis=0)) == len(every))
        return np.where(agree, np.max([two_sided(one) for one in every], axis=0), 1.0)


def abundance_statistics(shares: Float64, cells: Float64, regressors: Float64, nuisance: Float64) -> Abundance:
    """Return statistics of the abundance of each type, in its share and relative to stable types.

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
    differences = column_differences(standardized(shares, cells, nuisance), regression)
    plain = differences.values / differences.errors
    # Results report mean shares. A test statistic whose sign contradicts the difference of mean shares is therefore
    # ignored.
    same = plain[0] * column_differences(shares, regression).values[0] > 0
    logs = log_counts(shares, cells)
    counts = shares.mean(axis=0) / (1 / cells).mean()
    values, errors = column_differences(logs, regression)
    # Standard errors are at least the errors of counting cells, because a few samples may agree by chance.
    least = (regression.coefficients[0] ** 2).sum() / (counts + PSEUDO_COUNT)
    sets = _references(Differences(values, np.sqrt(np.maximum(errors**2, least))), counts)
    if not sets:
        none = np.zeros((0, *plain.shape))
        return Abundance(plain, none, values[0], same, np.zeros((0, plain.shape[1]), dtype=bool))
    relative, changes = zip(*(_relative(logs, one.weights, regression) for one in sets), strict=True)
    return Abundance(plain, np.stack(relative), changes[0], same, np.stack([one.types for one in sets]))


def standardized(shares: Float64, cells: Float64, nuisance: Float64) -> Float64:
    """Return each share minus its fit on the nuisance columns, divided by the standard deviation of the unit.

    Shares in samples of few cells vary more than in samples of many cells, and the share of a rare type varies in large
    jumps. If all small samples are in one group, a permutation test of plain shares is significant too often for a rare
    type. For a share of 0.5% in samples of 60 and of 400 cells, this test was significant in 12% instead of 5% of
    simulations.

    Parameters
    ----------
    shares, cells, nuisance
        As in `abundance_statistics`.
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
        As in `abundance_statistics`.
    """
    expected = cells[:, None] * shares.mean(axis=0)
    few = np.minimum(expected, MANY)
    counts = np.arange(int(4 * MANY))
    logs = np.log(counts + PSEUDO_COUNT)
    chances = np.exp(counts * np.log(np.maximum(few, 1e-300))[..., None] - few[..., None] - gammaln(counts + 1))
    mean = np.where(expected < MANY, chances @ logs, np.log(np.maximum(expected, MANY)))
    return np.asarray(np.log(cells[:, None] * shares + PSEUDO_COUNT) - mean)


class Reference(NamedTuple):
    """Reference types: their ``weights`` in every order, ``(n_orders, n_types)``, and observed ``types``."""

    weights: Float64
    types: Bool


def _references(differences: Differences, counts: Float64) -> list[Reference]:
    """Return the set of reference types, or two sets if a second set serves nearly as well, or none.

    Parameters
    ----------
    differences
        Differences of log-shares between the groups.
    counts
        Number of cells of each type in a typical unit, ``(n_types,)``.
    """
    candidates = np.argsort(-counts, kind="stable")[:CANDIDATES]
    n_orders, n_types = differences.values.shape
    apart = np.empty((2, n_orders, n_types))
    step = max(1, AT_ONCE // (n_types * candidates.size))
    for start in range(0, n_orders, step):
        part = slice(start, start + step)
        values, errors = differences.values[part], differences.errors[part]
        # A type with a large error agrees with every change, so this type does not influence the choice of the common
        # change.
        together = np.sqrt(errors[:, None, :] ** 2 + errors[:, candidates, None] ** 2)
        distances = (values[:, None, :] - values[:, candidates, None]) / together
        support, rows = np.exp(-(distances**2) / 2).sum(axis=2), np.arange(len(values))
        best = support.argmax(axis=1)
        # The second common change is the change with the largest support among types that disagree with the first.
        other = np.where(np.abs(distances[rows, best][:, candidates]) > AGREES, support, -1.0).argmax(axis=1)
        apart[:, part] = distances[rows, best], distances[rows, other]
    telling = AGREES * differences.errors[0] <= np.log(WOULD_SHOW)
    agree = np.abs(apart[:, 0]) <= AGREES
    closeness = np.exp(-(apart[:, 0] ** 2) / 2)
    support = np.maximum(closeness - closeness[::-1], 0)[:, telling].sum(axis=1)
    sets = agree & telling
    alternative = sets & ~agree[::-1]
    if alternative.sum(axis=1).min() >= LEAST_REFERENCE and support[1] >= NEARLY * support[0]:
        return [Reference(_weights(differences.errors, each), one) for each, one in zip(apart, sets, strict=True)]
    if sets[0].sum() < LEAST_REFERENCE or 2 * sets[0].sum() <= telling.sum():
        return []
    return [Reference(_weights(differences.errors, apart[0]), sets[0])]


def _weights(errors: Float64, apart: Float64) -> Float64:
    """Return the weights of types in a reference, from their studentized distances to the common change."""
    agreeing = np.abs(apart) <= AGREES
    # The log-share of a type with most of the cells hardly varies, so this type would get all the weight. A small
    # variance does not make a type a better reference, so the precision of every type is limited.
    typical = np.nanmedian(np.where(agreeing, errors, np.nan), axis=1, keepdims=True)
    precision = np.where(agreeing, 1 / np.maximum(errors, typical) ** 2, 0.0)
    return np.asarray(precision / precision.sum(axis=1, keepdims=True))


def _relative(logs: Float64, weights: Float64, regression: Regression) -> tuple[Float64, Float64]:
    """Return statistics of log-ratios to the reference, ``(n_orders, n_types)``, and the observed log-ratios.

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
    return statistics, np.where(weights[0] < 1, values[0] / alone, 0.0)


class ProbedTypes(NamedTuple):
    """Sums over the cells of each type in each sample, from which the state of any unit follows.

    Attributes
    ----------
    shares
        Share of each type, ``(n_samples, n_types)``.
    sums
        Sums of the diffused probes, ``(n_samples, n_types, n_scales, n_probes)``.
    squares
        Sums of the squared probes, summed over probes, ``(n_samples, n_types, n_scales)``.
    """

    shares: Float64
    sums: FloatArray
    squares: Float64

    def places(self, design: SampleContrast, shares: Float64) -> FloatArray:
        """Return the position of each type in each unit, ``(n_units, n_types, n_features)``; zero without cells.

        Positions at every scale are divided by the standard deviation of the cells of the type. ``shares`` are the
        shares of the types in the units, ``(n_units, n_types)``.
        """
        of_units = design.average.astype(self.sums.dtype), design.average
        chosen = (each[design.chosen].reshape(design.chosen.sum(), -1) for each in (self.sums, self.squares))
        means, squares = (average @ each for average, each in zip(of_units, chosen, strict=True))
        inverse = np.divide(1, shares, out=np.zeros_like(shares), where=shares > 0)
        shown = means.reshape(len(shares), *self.sums.shape[1:])
        shown *= inverse[:, :, None, None].astype(shown.dtype)
        spread = _spread(shown, squares.reshape(shown.shape[:3]) * inverse[:, :, None], shares)
        shown *= (1 / np.sqrt(spread)).astype(shown.dtype)[None, :, :, None]
        return np.asarray(shown.reshape(*shares.shape, -1))


def probe_types(model: DiffusionEMD, cells: TypedCells, rng: np.random.Generator) -> ProbedTypes:
    """Return sums of diffused random probes over the cells of each type in each sample.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`; its number of threads does not influence the result.
    cells
        Cells of all samples by type.
    rng
        Generator of the probes.
    """
    prepared, graph = model.prepared_, model.graph_
    rows = sp.csr_array(graph.gather(by_type(cells, cells.masses, cells.nodes, graph.n_points)))
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # The squared norm is sum(f^2 / pi) for masses and sum(f^2 pi) for functions.
    metric = law if prepared.adjoint else 1 / law
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    # Draw in the order of the operator, which does not depend on the order of the points.
    signs[operator.order] = rng.choice(np.array([-1, 1], dtype=np.int8), size=signs.shape)
    n_scales, starts = len(layout.scales), range(0, PROBES, TOGETHER)
    sums = np.empty((rows.shape[0], n_scales, PROBES), dtype=dtype)
    squares = np.empty((len(starts), n_scales, rows.shape[0]))
    masses = rows.astype(dtype)
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
            sums[:, scale, columns] = masses @ values
            squares[number, scale] = np.sum(masses @ np.square(values), axis=1, dtype=np.float64)

    in_threads(look, range(len(starts)), check_threads(model.n_jobs))
    shape = (cells.masses.shape[0], len(cells.names), n_scales)
    shares = np.asarray(rows.sum(axis=1)).reshape(shape[:2])
    return ProbedTypes(shares, sums.reshape(*shape, PROBES), squares.sum(axis=0).T.reshape(shape))


def _spread(means: FloatArray, squares: Float64, cells: Float64) -> Float64:
    """Return the variance of all cells of a type at every scale, ``(n_types, n_scales)``; infinity instead of zero."""
    shares = cells / np.maximum(cells.sum(axis=0), np.finfo(float).tiny)
    center = np.einsum("ut,utsp->tsp", shares, means)
    variance = np.einsum("ut,uts->ts", shares, squares) - (center**2).sum(axis=2)
    least = 1e-6 * np.einsum("ut,uts->ts", shares, squares)
    return np.where(variance > least, variance, np.inf)


class State(NamedTuple):
    """Result of the test of the state of every type.

    Attributes
    ----------
    statistics
        Studentized distances, ``(n_orders, n_types)``; zero for types that are not tested.
    p_values, smallest
        P-values and the smallest possible p-values, ``(n_types,)``.
    tested
        ``(n_types,)``: True for tested types.
    """

    statistics: Float64
    p_values: Float64
    smallest: Float64
    tested: Bool

    @property
    def scores(self) -> Float64:
        """Return the statistics of the observed order, ``(n_types,)``."""
        return np.asarray(self.statistics[0])


def compare_state(
    places: FloatArray, cells: Float64, regressors: Float64, nuisance: Float64, only: Bool | None = None
) -> State:
    """Test for every type whether the state of its cells differs between the groups.

    Parameters
    ----------
    places
        Positions of the types in each unit, from `ProbedTypes.places`.
    cells
        Effective number of cells of each type in each unit, ``(n_units, n_types)``.
    regressors, nuisance
        As in `heatmover.statistics.regression.weigh`.
    only
        ``(n_types,)``: True for types to test; None for all.
    """
    n_types = cells.shape[1]
    statistics, tested = np.zeros((len(regressors), n_types)), np.zeros(n_types, dtype=bool)
    for kind in range(n_types) if only is None else np.flatnonzero(only):
        regression = weigh(regressors, nuisance, cells[:, kind] / (cells[:, kind] + HALF_KNOWN))
        if regression.least_side < LEAST_SAMPLES:
            continue
        shown = places[:, kind].astype(np.float64)
        statistics[:, kind], tested[kind] = np.sqrt(gram_statistics(shown @ shown.T, regression)), True
    return State(statistics, two_sided(statistics), smallest_p(statistics), tested)
