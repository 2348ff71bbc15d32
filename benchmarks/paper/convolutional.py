"""Convolutional Sinkhorn: entropic transport whose kernel is the heat of the graph, without any ground distance."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Float64
from heatmover._base.validation import check_integer, check_number, check_option, check_threads
from heatmover._base.words import counted
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.transport.baselines.ground import Ground, check_masses, graph_of
from heatmover.transport.baselines.method import Solution, iterative_method

__all__ = ["convolutional_sinkhorn"]

Rows = npt.NDArray[np.int64]

# The product makes 9.4 GFlop/s per core in float64 at 10,000 points and 32 columns against 6.7 at 16 and 9.5 at 64
# (medians of 25 interleaved runs on a busy machine); of equals the narrower one starts from fewer places at once.
WIDTH = 32

# Heat starts at 2^900 instead of one, and an entry is trusted down to 2^-900: what underflows on the way is then too
# little to matter. Smaller entries are computed again, column by column, with exponents of their own.
START = 2.0**900
LOG_START = 900 * np.log(2.0)
LEAST_TRUSTED = 2.0**-900

# Masses of two measures in one component may differ by rounding.
SAME_MASS = 1e-9


class Support(NamedTuple):
    """Where a measure has mass: rows of the walk, the masses, and the stationary law there; ``(n_support,)`` each."""

    rows: Rows
    masses: Float64
    stationary: Float64


@final
@dataclass(frozen=True, eq=False)
class Walk:
    """The walk on a graph, in an order of rows that keeps neighbors together.

    Attributes
    ----------
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    order
        Point of each row, ``(n_points,)``.
    stationary
        Stationary law of the walk that starts anywhere, of each row, ``(n_points,)``.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    data: Float64
    order: Rows
    stationary: Float64

    @classmethod
    def from_operator(cls, operator: DiffusionOperator) -> Walk:
        """Take S as the operator stores it, neighbors close together."""
        degree = operator.degree
        return cls(*operator.structure, operator.symmetric.data, operator.order, degree / degree.sum())

    @property
    def n_points(self) -> int:
        """Number of points."""
        return int(self.order.size)

    def supports(self, masses: sp.csr_array) -> list[Support]:
        """Return the supports of measures ``(n_measures, n_points)`` that are in the graph's order of points."""
        rows = sp.csr_array(masses)[:, self.order]
        rows.sort_indices()
        cuts = rows.indptr[1:-1]
        parts = zip(np.split(rows.indices.astype(np.int64), cuts), np.split(rows.data, cuts), strict=True)
        return [Support(where, np.asarray(mass, dtype=np.float64), self.stationary[where]) for where, mass in parts]


@final
@dataclass(frozen=True, eq=False)
class HeatKernel:
    """S^steps by as many sparse products: nothing is subtracted, so that tiny entries are as exact as large ones.

    The kernel between the points x and y is that divided by the roots of their stationary laws; with this law as
    the area of each point it is the density of a walk's two ends.
    """

    walk: Walk
    steps: int

    def apply(self, block: Float64, sources: Rows, targets: Rows) -> Float64:
        """Return S^steps applied to a block, in the rows ``targets``.

        Parameters
        ----------
        block
            ``(n_points, width)``, zero outside the rows ``sources``; it is used up.
        sources, targets
            Rows in any order.

        Returns
        -------
        ndarray
            ``(n_targets, width)``.
        """
        from heat_loops import diffuse

        walk = self.walk
        result = diffuse(
            walk.indptr, walk.indices, walk.data, block, np.zeros_like(block), self.steps, self._hops(sources, targets)
        )
        return np.asarray(result[targets])

    def log_columns(self, sources: Rows, targets: Rows, pool: Executor) -> Float64:
        """Return the logarithm of S^steps from each source to each target, ``(n_sources, n_targets)``."""
        result = np.empty((sources.size, targets.size))

        def fill(part: slice) -> None:
            result[part] = self._log_columns(sources[part], targets)

        list(pool.map(fill, [slice(at, at + WIDTH) for at in range(0, sources.size, WIDTH)]))
        return result

    def _log_columns(self, sources: Rows, targets: Rows) -> Float64:
        block = np.zeros((self.walk.n_points, sources.size))
        block[sources, np.arange(sources.size)] = START
        heat = np.ascontiguousarray(self.apply(block, sources, targets).T)
        faint = heat < LEAST_TRUSTED
        with np.errstate(divide="ignore"):
            logs = np.log(heat) - LOG_START
        for column in np.flatnonzero(faint.any(axis=1)):
            logs[column, faint[column]] = self._log_wide(sources[column], targets[faint[column]])
        return np.asarray(logs)

    def _log_wide(self, source: int, targets: Rows) -> Float64:
        from heat_loops import diffuse_wide

        walk, result = self.walk, np.empty(self.walk.n_points)
        hops = self._hops(np.array([source]), targets)
        if (hops[0, targets] > self.steps).all():  # nothing underflowed: there is no way
            return np.full(targets.size, -np.inf)
        diffuse_wide(walk.indptr, walk.indices, walk.data, source, self.steps, hops, result)
        result[hops[0] > self.steps] = -np.inf
        return np.asarray(result[targets])

    def _hops(self, sources: Rows, targets: Rows) -> npt.NDArray[np.int64]:
        from heat_loops import hops_from

        hops = np.empty((2, self.walk.n_points), dtype=np.int64)
        hops_from(self.walk.indptr, self.walk.indices, sources, self.steps, hops[0])
        hops_from(self.walk.indptr, self.walk.indices, targets, self.steps, hops[1])
        return hops


def check_components(operator: DiffusionOperator, masses: sp.csr_array) -> None:
    """Raise unless all measures have the same mass in each component of the graph: heat does not cross over."""
    if operator.n_components == 1:
        return
    from scipy.spatial.distance import pdist

    apart = pdist(operator.component_masses(masses), "chebyshev") > SAME_MASS
    if apart.any():
        raise InvalidInputError(
            "measures with equal mass in each connected component of the graph",
            f"{counted(operator.n_components, 'component')} and {int(apart.sum())} of {counted(apart.size, 'pair')} "
            f"of measures that differ",
            "see graph.diagnose(); use more neighbors, or compare the components one by one",
        )


def enough_steps(walk: Walk, supports: list[Support], steps: int | None, *, fewest: int, with_self: bool) -> int:
    """Return ``steps``, or raise if there are pairs of measures whose points cannot all reach each other in them.

    Parameters
    ----------
    walk
        The walk.
    supports
        Of all measures.
    steps
        None: the smallest number from ``fewest`` on that is enough.
    fewest
        See ``steps``.
    with_self
        Whether a measure must reach itself, which a walk without loops may not in an odd number of steps.
    """
    wanted = fewest if steps is None else steps
    missing: dict[int, int] = {}
    for count, number in _missing_pairs(walk, supports, wanted, with_self=with_self):
        missing[count] = number
        if number == 0:
            break
    if number == 0 and (steps is None or count == steps):
        return count
    raise InvalidInputError(
        "enough steps for every point of a measure to reach some point of every other measure",
        f"{counted(missing[wanted], 'pair')} of measures that cannot in {counted(wanted, 'step')}",
        f"use steps={count}, or 'auto'" if number == 0 else "no number of steps would do; give the graph loops",
    )


def _missing_pairs(walk: Walk, supports: list[Support], fewest: int, *, with_self: bool) -> Iterator[tuple[int, int]]:
    """Yield numbers of steps from ``fewest`` on, each with how many pairs it is too small for, while that changes."""
    from heat_loops import spread

    # Measures are bits, 64 to a word: a step of all of them costs less than that of a single column of heat.
    reached = np.zeros((walk.n_points, -(-len(supports) // 64)), dtype=np.uint64)
    for number, support in enumerate(supports):
        reached[support.rows, number // 64] |= np.uint64(1 << number % 64)
    earlier, count, still = np.zeros_like(reached), 0, 0
    # What can be reached in k steps can in k + 2: no change in two steps is no change ever.
    while still < 2 or count <= fewest:
        changed = spread(walk.indptr, walk.indices, reached, earlier)
        reached, earlier, count = earlier, reached, count + 1
        still = 0 if changed else still + 1
        if still >= 2 and count < fewest:
            count += (fewest - count) // 2 * 2
        if count >= fewest:
            yield count, _count_missing(reached, supports, with_self=with_self)


def _count_missing(reached: npt.NDArray[np.uint64], supports: list[Support], *, with_self: bool) -> int:
    """Count the pairs of which one has a point that the other does not reach."""
    words = np.stack([np.bitwise_and.reduce(reached[support.rows], axis=0) for support in supports])
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little")[:, : len(supports)]
    both = (bits & bits.T).astype(bool)
    return int(np.triu(~both, 0 if with_self else 1).sum())


Pair: TypeAlias = tuple[int, int]

# Steps of the walk in the experiments of the Diffusion EMD paper. "auto" takes as many, if heat has not mixed by then:
# 80 points in 50 dimensions mix in 2 steps, and after 50 all measures are the same.
USUAL_STEPS = 50

# Potentials of a wider range are left to the explicit kernel: their exponentials would underflow.
WIDEST_POTENTIAL = 600.0

# Numbers that an explicit kernel between supports may take at a time (128 MB; a pair in work takes up to five times
# the part between its own supports).
LARGEST_KERNEL = 16_000_000

# Iterations that a pair is expected to take where the cheaper of two ways is chosen: on swiss rolls of 30 and 100
# clouds pairs took 8 and 26 on average at the default tol.
EXPECTED_ITERATIONS = 20

# The transport of a measure to itself is done to this share of tol: it must not blur the difference it is subtracted
# from. Its error at least halves in an iteration if the kernel has no negative eigenvalue, as for even steps.
SELF_SHARE = 1e-3
SELF_ITERATIONS = 100

# A difference smaller than this share of its parts is rounding.
ROUNDING = 1e-13


class Limits(NamedTuple):
    """When an iteration ends."""

    max_iterations: int
    tol: float

    @property
    def of_self(self) -> Limits:
        """For the transport of a measure to itself."""
        return Limits(max(self.max_iterations, SELF_ITERATIONS), self.tol * SELF_SHARE)


class Balance(NamedTuple):
    """What one pair came to: its divergence in nats, its marginal error in L1, and the iterations."""

    divergence: float
    error: float
    n_iterations: int


Balances: TypeAlias = dict[Pair, Balance]
Way: TypeAlias = Callable[[HeatKernel, list[Support], list[Pair], Limits, Executor], Balances]
# Asks for the kernel's product with exp(potential) from one measure to another; is sent its logarithm.
Scaling: TypeAlias = Generator[tuple[int, Float64, int], Float64, Balance]


@iterative_method("either", "Solomon et al. 2015, Convolutional Wasserstein Distances")
def convolutional_sinkhorn(
    ground: Ground,
    measures: Any,
    *,
    steps: int | Literal["auto"] = "auto",
    max_iterations: int = 100,
    tol: float = 1e-3,
    debias: bool = True,
    kernel: Literal["auto", "stored", "applied"] = "auto",
    n_jobs: int | None = None,
) -> Solution:
    """Return Wasserstein-2 distances smoothed by entropy, whose kernel is the heat of the graph.

    Sinkhorn's iteration scales the heat kernel of the diffusion operator, t steps of its walk, until it moves one
    measure to the other. Heat falls off as ``exp(-d^2 / (t b^2))`` with the geodesic distance d and the kernel's
    bandwidth b, so that ``t b^2`` times the divergence of the plan from the walk is a squared distance; no distance
    between points is ever computed. A larger t blurs more and converges sooner.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, of which ``Graph.from_points`` makes a graph, or a `Graph`. The
        bandwidth b is the graph's if it knows one, else 1.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame. Each must have the same mass in
        each connected component of the graph.
    steps
        t. Heat moves by one edge in a step: ``"auto"`` takes 50, or as many as it takes for every point of a measure
        to reach some point of every other. Take fewer on a small or densely joined graph: once the walk has mixed,
        heat has forgotten where it came from, and distances vanish in rounding.
    max_iterations
        Iterations of a pair at most.
    tol
        A pair is done when its plan misplaces at most so much mass, of one.
    debias
        Subtract half of what each measure pays for being moved to itself, which is not zero, as entropy blurs (the
        Sinkhorn divergence): equal measures are then at distance zero, and distances are more accurate. On 100 clouds
        on a swiss roll the ten nearest are right in 96.5% of cases with it and in 92.5% without. False is the
        method as published: all distances carry what the blur costs, which depends on how concentrated measures are.
    kernel
        ``"applied"``: heat is applied anew in every iteration, one column for each pair, the method as published.
        ``"stored"``: the kernel between the supports is computed once, one column for each of their points, and
        iterations are cheap; better for small supports. ``"auto"``: the way with less work. The result is the same.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal. ``convolutional_sinkhorn.solve`` returns a `Solution`, which also tells how well
        each pair has converged.

    Notes
    -----
    Heat is computed in float64 on non-negative numbers, and what would underflow is computed with exponents of its
    own, so that pairs however far apart are right.

    Examples
    --------
    >>> import numpy as np
    >>> from convolutional import convolutional_sinkhorn
    >>> from heatmover.graphs import Graph
    >>> line = Graph.from_grid([40])
    >>> convolutional_sinkhorn(line, np.eye(40)[[10, 14, 22]]).round(1)
    array([[ 0. ,  4.3, 12.7],
           [ 4.3,  0. ,  8.4],
           [12.7,  8.4,  0. ]])
    """
    masses = check_masses(ground, measures)
    wanted = None if isinstance(steps, str) and steps == "auto" else check_integer("steps", steps, minimum=1)
    limits = Limits(check_integer("max_iterations", max_iterations, minimum=1), check_number("tol", tol, above=0))
    if not isinstance(debias, bool):
        raise InvalidInputError("debias to be True or False", repr(debias))
    check_option("kernel", kernel, ("auto", "stored", "applied"))
    n_threads = check_threads(n_jobs)
    n_measures = masses.shape[0]
    if n_measures == 1:
        return Solution(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 1), dtype=np.int64), limits.tol)
    graph = graph_of(ground, n_jobs=n_jobs)
    masses = graph.gather(masses)
    operator = DiffusionOperator.from_graph(graph)
    check_components(operator, masses)
    walk = Walk.from_operator(operator)
    supports = walk.supports(masses)
    fewest = _unmixed(graph) if wanted is None else wanted
    heat = HeatKernel(walk, enough_steps(walk, supports, wanted, fewest=fewest, with_self=debias))
    pairs = list(combinations(range(n_measures), 2)) + [(i, i) for i in range(n_measures) if debias]
    way = _cheaper_way(heat, supports, pairs, limits) if kernel == "auto" else WAYS[kernel]
    with ThreadPoolExecutor(n_threads) as pool:
        balances = way(heat, supports, pairs, limits, pool)
    # P^t is about exp(-d^2 / (t b^2)).
    scale = heat.steps * float(graph.construction.get("bandwidth") or 1) ** 2
    return _solution(balances, scale, limits, n_measures, debias=debias)


def _unmixed(graph: Graph) -> int:
    """Return the usual number of steps, or those after which heat has mixed if they are fewer."""
    return int(min(USUAL_STEPS, max(1 / max(graph.diagnose().spectral_gap, 1 / USUAL_STEPS), 1)))


def _cheaper_way(kernel: HeatKernel, supports: list[Support], pairs: list[Pair], limits: Limits) -> Way:
    """Return the way to balance all pairs that takes less work."""
    largest, column = LARGEST_KERNEL // kernel.walk.n_points, kernel.steps * kernel.walk.data.size
    n_columns = sum(sources.size for _, sources in _groups(supports, range(len(supports)), largest))
    n_products = 2 * min(limits.max_iterations, EXPECTED_ITERATIONS)
    between = sum(supports[i].rows.size * supports[j].rows.size for i, j in pairs)
    explicit = n_columns * column + n_products * between
    fits = max(support.rows.size for support in supports) <= largest
    return WAYS["stored" if fits and explicit <= n_products * len(pairs) * column else "applied"]


def balance_explicitly(
    kernel: HeatKernel, supports: list[Support], pairs: list[Pair], limits: Limits, pool: Executor
) -> Balances:
    """Balance pairs with the kernel between their supports at hand.

    It takes one column of heat for each point of a support, however many pairs and iterations there are.
    """
    # In the order of rows, the measures that come later lie on one side: heat need not flow to the other.
    rank = np.argsort(np.argsort([support.rows.mean() for support in supports], kind="stable"))
    asked: dict[int, list[Pair]] = {}
    for pair in pairs:
        asked.setdefault(min(pair, key=rank.__getitem__), []).append(pair)
    balances: Balances = {}
    order = sorted(asked, key=rank.__getitem__)
    for group, sources in _groups(supports, order, LARGEST_KERNEL // kernel.walk.n_points):
        members = [pair for i in group for pair in asked[i]]
        targets = _union(supports, {i for pair in members for i in pair})
        heat = kernel.log_columns(sources, targets, pool)

        def balance(pair: Pair, sources: Rows = sources, targets: Rows = targets, heat: Float64 = heat) -> Balance:
            i, j = pair
            first, second = sorted(pair, key=rank.__getitem__)
            rows = np.searchsorted(sources, supports[first].rows)
            between = heat[np.ix_(rows, np.searchsorted(targets, supports[second].rows))]
            if i == j:
                return _balance_self(between, supports[i], limits)
            return _balance(between if first == i else between.T, supports[i], supports[j], limits)

        balances.update(zip(members, pool.map(balance, members), strict=True))
    return balances


def _groups(supports: list[Support], order: Iterable[int], largest: int) -> Iterator[tuple[list[int], Rows]]:
    """Yield measures in groups with the rows of their supports, at most ``largest`` unless one alone has more."""
    group: list[int] = []
    rows = np.empty(0, dtype=np.int64)
    for i in order:
        more = np.union1d(rows, supports[i].rows)
        if group and more.size > largest:
            yield group, rows
            group, more = [], supports[i].rows
        group.append(i)
        rows = more
    if group:
        yield group, rows


def _union(supports: list[Support], members: Iterable[int]) -> Rows:
    return np.unique(np.concatenate([supports[i].rows for i in members]))


def _balance(heat: Float64, mu: Support, nu: Support, limits: Limits) -> Balance:
    from heat_loops import balance

    log_kernel = heat - (np.log(mu.stationary)[:, None] + np.log(nu.stationary)) / 2
    f, g = np.log(mu.masses), np.empty(nu.masses.size)
    n_iterations, error = balance(np.ascontiguousarray(log_kernel), mu.masses, nu.masses, *limits, f, g)
    return Balance(_divergence(mu, f) + _divergence(nu, g), error, n_iterations)


def _balance_self(heat: Float64, mu: Support, limits: Limits) -> Balance:
    from heat_loops import balance_with_itself

    log_kernel = heat - (np.log(mu.stationary)[:, None] + np.log(mu.stationary)) / 2
    f = np.log(mu.masses)
    n_iterations, error = balance_with_itself(np.ascontiguousarray(log_kernel), mu.masses, *limits.of_self, f)
    return Balance(2 * _divergence(mu, f), error, n_iterations)


def _divergence(support: Support, potential: Float64) -> float:
    """Return one measure's share in the divergence of the plan from the walk's own law of start and end."""
    return float(support.masses @ (potential - np.log(support.stationary)))


def balance_implicitly(
    kernel: HeatKernel, supports: list[Support], pairs: list[Pair], limits: Limits, pool: Executor
) -> Balances:
    """Balance pairs by applying the kernel to their potentials: a block of heat has one column for each pair.

    It takes two columns of heat for each iteration of each pair, however large the supports are.
    """
    parts = [pairs[at : at + 4 * WIDTH] for at in range(0, len(pairs), 4 * WIDTH)]
    balances: Balances = {}
    for part in pool.map(lambda part: _balance_block(kernel, supports, part, limits), parts):
        balances.update(part)
    # Products that have left the range of plain numbers; one by one, as supports may be large.
    for pair in pairs:
        if pair not in balances:
            balances |= balance_explicitly(kernel, supports, [pair], limits, pool)
    return balances


def _balance_block(kernel: HeatKernel, supports: list[Support], pairs: list[Pair], limits: Limits) -> Balances:
    """Balance pairs, WIDTH at a time: one that is done makes room for the next."""
    balances: Balances = {}
    waiting = iter(pairs)
    open_scalings: dict[Pair, Scaling] = {}
    asked: dict[Pair, tuple[int, Float64, int]] = {}
    while True:
        for pair in islice(waiting, WIDTH - len(open_scalings)):
            open_scalings[pair] = _scaling(supports, pair, limits)
            asked[pair] = next(open_scalings[pair])
        if not asked:
            return balances
        products = _products(kernel, supports, list(asked.values()))
        for pair, product in zip(list(asked), products, strict=True):
            try:
                if product is None:
                    del open_scalings[pair], asked[pair]
                else:
                    asked[pair] = open_scalings[pair].send(product)
            except StopIteration as end:
                balances[pair] = end.value
                del open_scalings[pair], asked[pair]


def _products(
    kernel: HeatKernel, supports: list[Support], asked: list[tuple[int, Float64, int]]
) -> list[Float64 | None]:
    """Return the logarithm of the kernel's product with each potential, or None if plain numbers cannot hold it."""
    block = np.zeros((kernel.walk.n_points, len(asked)))
    for k, (i, potential, _) in enumerate(asked):
        shifted = potential - np.log(supports[i].stationary) / 2
        block[supports[i].rows, k] = np.exp(shifted - shifted.max()) * START
    targets = _union(supports, {j for _, _, j in asked})
    heat = kernel.apply(block, _union(supports, {i for i, _, _ in asked}), targets)
    products: list[Float64 | None] = []
    for k, (i, potential, j) in enumerate(asked):
        shifted = potential - np.log(supports[i].stationary) / 2
        values = heat[np.searchsorted(targets, supports[j].rows), k]
        plain = values.min() >= LEAST_TRUSTED and np.ptp(shifted) <= WIDEST_POTENTIAL
        log = np.log(values) if plain else None
        products.append(
            log + (shifted.max() - LOG_START) - np.log(supports[j].stationary) / 2 if log is not None else None
        )
    return products


def _scaling(supports: list[Support], pair: Pair, limits: Limits) -> Scaling:
    """Return Sinkhorn's iteration for one pair, which asks for products with the kernel."""
    i, j = pair
    mu, nu = supports[i], supports[j]
    # What follows from a second potential of one all over the graph, as the kernel keeps the stationary law.
    f = np.log(mu.masses)
    if i == j:
        return (yield from _scaling_self(mu, i, f, limits.of_self))
    for n_iterations in range(1, limits.max_iterations + 1):
        g = np.log(nu.masses) - (yield i, f, j)
        product = yield j, g, i
        error = float(np.abs(np.exp(f + product) - mu.masses).sum())
        if error <= limits.tol or n_iterations == limits.max_iterations:
            break
        f = np.log(mu.masses) - product
    return Balance(_divergence(mu, f) + _divergence(nu, g), error, n_iterations)


def _scaling_self(mu: Support, i: int, f: Float64, limits: Limits) -> Scaling:
    error, n_iterations = np.inf, 0
    while error > limits.tol and n_iterations < limits.max_iterations:
        product = yield i, f, i
        n_iterations += 1
        error = float(np.abs(np.exp(f + product) - mu.masses).sum())
        # The step is taken also after the last look: the value is then that of a plan with one exact marginal.
        f = (f + np.log(mu.masses) - product) / 2
    return Balance(2 * _divergence(mu, f), error, n_iterations)


def _solution(balances: Balances, scale: float, limits: Limits, n_measures: int, *, debias: bool) -> Solution:
    """Put what the pairs came to into matrices; a pair is as far as it and its parts are."""
    table = np.zeros((3, n_measures, n_measures))
    for (i, j), balance in balances.items():
        table[:, i, j] = table[:, j, i] = balance
    divergences, errors, n_iterations = table
    values, rounding = divergences, np.abs(divergences)
    if debias:
        own, own_errors = divergences.diagonal(), errors.diagonal()
        values = divergences - (own[:, None] + own) / 2
        rounding = rounding + (np.abs(own)[:, None] + np.abs(own)) / 2
        # Of the measures' own problems only what is worse than they were asked for is an error of the pair.
        open_errors = np.where(own_errors > limits.of_self.tol, own_errors, 0)
        errors = np.maximum(errors, np.maximum(open_errors[:, None], open_errors))
    distances = np.sqrt(scale * np.where(values > ROUNDING * rounding, values, 0))
    for matrix in (distances, errors, n_iterations):
        np.fill_diagonal(matrix, 0)
    return Solution(distances, errors, n_iterations.astype(np.int64), limits.tol)


WAYS: dict[str, Way] = {"stored": balance_explicitly, "applied": balance_implicitly}
