"""Dyadic scales: which diffusion times are compared, and how the coarsest is chosen from the data.

`choose_max_scale` is the default: the first scale at which two points have half mixed.

`choose_mixed_scale` is the paper's Lemma 1. With t = 2^k steps, Delta_i(k) = 1/2 sum_j |P^t_ij - pi_j| is how far the
walk from point i is from the stationary law pi of its component, and K is the first k with Delta_i(k) < epsilon for all
i; Delta_i never grows with k. On data, one point in a thousand is left out; see `STRAGGLERS`. The part of S^t beside
the top eigenvectors, B, says it all: P^t_ij - pi_j = B_ij top_j / top_i with pi = top^2. A few points show which scales
are much too fine. Then all points are judged: by Cauchy and Schwarz Delta_i <= ||B_i|| / (2 top_i), which a basis of
few eigenvectors gives for all of them at once, and where that does not settle it, the row of B is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from heatmover._base.storage.record import Record
from heatmover._base.types import Float64, FloatArray, Int32, Intp
from heatmover.diffusion.exact import LONGEST, WalkDiffuser
from heatmover.diffusion.lowrank import Factor, spectral_factors
from heatmover.diffusion.operator import Block, ChebyshevDiffuser, Diffuser, DiffusionOperator, rounding
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs.spectrum import bipartite

__all__ = [
    "COARSEST",
    "MIXED",
    "STRAGGLERS",
    "ScaleChoice",
    "choose_max_scale",
    "choose_mixed_scale",
    "finest_scale",
    "mean_total_variation",
    "total_variations",
]

# max_scale="auto" stops at the first scale where the heat of two points overlaps by half on average. Measured on eight
# shapes with known truth and a cohort (docs/decisions/0010): 0.7 leaves the swiss roll at a P@10 of 0.85, because far
# measures still all look equally far; 0.4 lets the long axis of the S-curve dominate (0.89 instead of 0.91).
MIXED = 0.5

# Fine scales that together weigh less than this share of all weights are dropped when n_scales is None: they
# cost memory and time and cannot move a distance by more than this share of its largest possible value.
NEGLIGIBLE_WEIGHT = 0.01
# The curve is an average over pairs of points. 32 points alone are too few: 80 draws on melanoma (16,291 cells) gave
# the scales 5, 6 and 7. 128 gave one scale, but cost four times as much. With the correction by 16 probes, half as much
# again, 32 vary less than 128 do (standard deviation on melanoma 0.07 without it and 0.02 with it, on the swiss roll
# 0.029 and 0.008); see docs/decisions/0010.
SAMPLE = 32
PROBES = 16
# Points at which probes are read. They leave an eighth of the deviation of 32 points, which is less than the rest.
READ = 2_000
FLOW_TOL = 1e-3
# Of the surrogate, which lies between 0 and 1; data have 1e-3 and more.
LEAST_VARIANCE = 1e-6
# 2^18 steps cost 1,400 products per measure. Data that have not mixed by then are nearly disconnected.
COARSEST = 18
# From here on the next scale costs as much as a basis that serves all coarser ones may cost.
PATIENCE = 11


@dataclass(frozen=True)
class ScaleChoice:
    """The largest scale and how it was found.

    Attributes
    ----------
    max_scale
        K: the coarsest diffusion time is ``2**K``.
    decay
        Mean total variation between the heat of two points at times ``2**0, 2**1, ...`` as far as it was
        computed; empty if ``max_scale`` was given.
    limit
        Its value after infinite time: zero on a connected graph.
    reason
        One plain sentence.
    """

    max_scale: int
    decay: Float64
    limit: float
    reason: str

    def to_record(self) -> Record:
        """Return the choice as a record that a store can hold."""
        # NaN, where there was nothing to choose, is not a number of JSON.
        limit = float(self.limit) if np.isfinite(self.limit) else None
        values = {"max_scale": int(self.max_scale), "limit": limit, "reason": str(self.reason)}
        return Record(values, {"decay": np.asarray(self.decay, dtype=np.float64)})

    @classmethod
    def from_record(cls, record: Record) -> ScaleChoice:
        """Return the choice of a record, or raise if it is none."""
        limit = record.optional_number("limit")
        decay = record.array("decay", np.float64, (None,))
        return cls(record.integer("max_scale"), decay, np.nan if limit is None else limit, record.text("reason"))


def choose_max_scale(
    operator: DiffusionOperator,
    rows: Any,
    rng: np.random.Generator,
    *,
    coarse: Callable[[], Diffuser | None] = lambda: None,
    n_threads: int = 1,
) -> ScaleChoice:
    """Return the first scale at which two points, drawn from the measures, have half mixed on average.

    Mixing is judged by the mean total variation between the heat that started at each point, from its start at 1
    (no common mass) to its limit after infinite time (0 on a connected graph). Points are drawn, not measures, so
    that measures which overlap from the start, such as patients that share all cell types, are not taken for mixed.

    Parameters
    ----------
    operator
        The diffusion operator.
    rows
        Measures ``(n_measures, n_points)``, dense or CSR.
    rng
        Draws the points.
    coarse
        Called once if the points have not mixed after 2^10 steps: a way to diffuse that is cheap at coarse scales, or
        None to go on with polynomials.
    n_threads
        Threads to use.
    """
    draw = _draw(operator, rows, rng)
    threshold = draw.limit + MIXED * (1 - draw.limit)
    decay: list[float] = []
    for scale, densities in enumerate(islice(_flow(operator, draw.sources, coarse, n_threads), COARSEST + 1)):
        decay.append(draw.variation(densities))
        if scale >= 1 and decay[-1] <= threshold:
            reason = (
                f"at 2^{scale} steps the heat of two points differs by {decay[-1]:.2f} on average "
                f"(total variation), the first scale at or under {threshold:.2f}"
            )
            return ScaleChoice(scale, np.array(decay), draw.limit, reason)
    cause = "parts of the graph are nearly disconnected"
    if operator.alternates.any():
        cause = "heat alternates between two halves of the graph, which is bipartite or nearly so"
    reason = (
        f"the heat of two points still differs by {decay[-1]:.2f} on average at 2^{COARSEST} steps, where the search "
        f"ends; {cause}: see graph.diagnose()"
    )
    return ScaleChoice(COARSEST, np.array(decay), draw.limit, reason)


def _flow(
    operator: DiffusionOperator,
    sources: Block,
    coarse: Callable[[], Diffuser | None],
    n_threads: int,
) -> Iterator[Block]:
    """Yield the densities of the sources at 2^0, 2^1, ..."""
    if operator.is_uneven:
        yield from WalkDiffuser(operator, adjoint=True).diffuse_progressively(sources)
        return
    tol, dtype = FLOW_TOL * operator.tightening, _precision(operator)
    diffuser = ChebyshevDiffuser(operator, adjoint=True, tol=tol, dtype=dtype, n_threads=n_threads)
    flow = diffuser.diffuse_progressively(sources)
    yield from islice(flow, PATIENCE)
    basis = coarse()
    for scale in count(PATIENCE):
        yield next(flow if basis is None else basis.diffuse(sources, range(scale, scale + 1)))


@dataclass(frozen=True)
class _Draw:
    """Points drawn, as indicators, and probes: random functions that tell where the points lie among all.

    The few points that are drawn may lie more at the rim, or more in one cluster, than all points do, and their average
    is then off. The heat of all points is too expensive, but a random function smoothed by the same walk has a value at
    every point, and two points have nearly the same values where their heat has mixed. Comparing the drawn points with
    all points by these values corrects the average (a control variate).
    """

    sources: Block  # (n_points, n_drawn + n_probes)
    drawn: Intp  # (n_drawn,)
    read: Intp  # (n_read,), empty if all points were drawn
    stationary: Float64  # (n_points,)
    component: Int32  # (n_points,)
    limit: float

    def variation(self, densities: Block) -> float:
        """Return the mean total variation between the heat of two points, from densities of the sources."""
        if self.read.size == 0 or self.limit == 1:
            return mean_total_variation(densities[:, : self.drawn.size])
        together = self._together(self.drawn)
        np.fill_diagonal(together, 0)
        apart = total_variations(densities[:, : self.drawn.size])
        within = _corrected(apart, *self._by_probes(densities[:, self.drawn.size :], together), together)
        # Points of different components stay wholly apart.
        return self.limit + (1 - self.limit) * within

    def _together(self, points: Intp) -> Float64:
        """Return 1 where a point and a drawn one share a component, else 0: ``(n_points, n_drawn)``."""
        return np.equal.outer(self.component[points], self.component[self.drawn]).astype(np.float64)

    def _by_probes(self, smoothed: Block, together: Float64) -> tuple[Float64, float | None]:
        """Return how far drawn points are from each other by the probes, and all points from them on average."""
        drawn, read = (
            np.asarray(smoothed[at] / self.stationary[at, None], np.float64) for at in (self.drawn, self.read)
        )
        inside, across = cdist(drawn, drawn), cdist(read, drawn)
        # A total variation is at most 1; distances of probes have no largest, and a remote point would decide for all.
        unit = np.median(inside[together > 0]) or 1.0
        shared = self._together(self.read)
        mean = float(np.sum(shared * across / (across + unit)) / shared.sum()) if shared.any() else None
        return inside / (inside + unit), mean


def _corrected(
    apart: Float64,
    surrogate: Float64,
    elsewhere: float | None,
    together: Float64,
) -> float:
    """Return the mean of ``apart`` over pairs that are together, corrected by a surrogate whose mean is known."""
    partners = together.sum(axis=1)
    means, surrogates = ((matrix * together).sum(axis=1) / np.maximum(partners, 1) for matrix in (apart, surrogate))
    share = partners / partners.sum()
    mean, expected = float(share @ means), float(share @ surrogates)
    spread = surrogates - expected
    variance = float(share @ spread**2)
    # Two partners only have the same mean; the slope between them would be rounding over rounding.
    if elsewhere is None or variance < LEAST_VARIANCE:
        return mean
    slope = float(share @ (spread * (means - mean))) / variance
    # A point that is drawn moves the average by both ends of its pairs, but the mean `elsewhere` by one only.
    return float(np.clip(mean + 2 * slope * (elsewhere - expected), 0, 1))


def _draw(operator: DiffusionOperator, rows: Any, rng: np.random.Generator) -> _Draw:
    """Draw different points, each as likely as its mass in the mean measure, and probes if these are not all."""
    mean = np.asarray(rows.sum(axis=0), dtype=np.float64).ravel()
    mean /= mean.sum()
    n_charged = int(np.count_nonzero(mean))
    n_drawn = min(SAMPLE, n_charged)
    n_probes = PROBES if n_drawn < n_charged else 0
    nodes, chances = operator.nodes, mean[operator.nodes]
    drawn = nodes[np.sort(rng.choice(mean.size, n_drawn, replace=False, p=chances))]
    read = rng.choice(mean.size, min(READ, n_charged), replace=False, p=chances) if n_probes else np.empty(0, np.intp)
    stationary, component = operator.stationary, np.empty_like(operator.component)
    component[operator.order] = operator.component
    sources = np.zeros((operator.n_points, n_drawn + n_probes), dtype=_precision(operator))
    sources[drawn, np.arange(n_drawn)] = 1
    # In their own precision, for which the kernel is compiled anyway: masses are 0 or 1.
    together = operator.component_masses(sources[:, :n_drawn].T).T.astype(sources.dtype)
    limit = mean_total_variation(together)
    # White noise for S: the adjoint then returns the smoothed function times the stationary law.
    sources[nodes, n_drawn:] = rng.normal(size=(operator.n_points, n_probes)) * np.sqrt(stationary[nodes])[:, None]
    return _Draw(sources, drawn, nodes[np.sort(read)], stationary, component, limit)


def _precision(operator: DiffusionOperator) -> npt.DTypeLike:
    # An average needs few digits, but the errors of all steps add up on what never mixes.
    return np.float32 if operator.tightening == 1 else np.float64


def finest_scale(weights: Float64) -> int:
    """Return the first scale to keep so that all finer ones together carry a negligible share of the weight.

    Examples
    --------
    >>> finest_scale(np.array([0.001, 0.5, 1.0]))
    1
    """
    share = np.cumsum(weights) / weights.sum()
    return int(np.searchsorted(share, NEGLIGIBLE_WEIGHT))


def mean_total_variation(densities: FloatArray) -> float:
    """Return the mean total variation over all pairs of columns of ``densities`` ``(n_points, n_measures)``.

    Examples
    --------
    >>> mean_total_variation(np.array([[1.0, 0.0], [0.0, 1.0]]))
    1.0
    """
    count = densities.shape[1]
    # Each pair stands twice in the table.
    return float(total_variations(densities).sum() / (count * (count - 1))) if count > 1 else 0.0


def total_variations(densities: FloatArray) -> Float64:
    """Return the total variation between all columns of ``densities`` ``(n_points, n_measures)``.

    Examples
    --------
    >>> total_variations(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[0., 1.],
           [1., 0.]])
    """
    from heatmover._base.compiled.l1 import REGISTER_ROWS, l1_tile

    rows = np.ascontiguousarray(densities.T)
    # Read-only and writable arrays are two types for numba, which would compile the kernel twice.
    rows.flags.writeable = False
    side = len(rows) + -len(rows) % REGISTER_ROWS
    tile = np.empty((side, side))
    l1_tile(rows, rows, rows.dtype.type(1), True, tile)
    # A total variation is half of an L1 distance.
    return tile[: len(rows), : len(rows)] / 2


# The share of points that need not have mixed. With a kernel of one width a few outliers of a sample are nearly
# isolated: of 430 points looked at on each of three swiss rolls of 10,000 points, 3 to 5 were still 0.95 or more from
# the stationary law after 2^14 steps, and all others within 0.16; on the first one some points had not mixed at 2^18.
# Fewer than a thousand points have no stragglers: there the Lemma is literal.
STRAGGLERS = 1e-3
# Up to this many points all are judged by their own walks. Of more, this many are drawn, and a scale at which more than
# a few of these have not mixed is passed over: if it were the one, that would happen once in 200,000 times.
FEW, DRAWN, DRAWN_STRAGGLERS = 512, 32, 2
# Largest error of Delta: only a point that is closer to epsilon than this could be misjudged.
EXACTLY = 1e-6
# Points judged together: 256 rows of 100,000 points take 200 MB.
ROWS = 256
# Products spent on the rows of B at one scale, about a minute's work. Where the points that the bound leaves open would
# cost more, K is the first scale at which the bound itself is below epsilon: it may be a scale later, and the reason
# says so.
MOST_WORK = 1e12
# Scales that one basis serves after its first.
AHEAD = 2

SUMMED = "summed for all of them"
BOUNDED = "bounded by the spectrum"
BOTH = "bounded by the spectrum, and summed where that leaves it open"


def choose_mixed_scale(
    operator: DiffusionOperator, epsilon: float, rng: np.random.Generator, *, n_threads: int = 1
) -> ScaleChoice:
    """Return the first scale k at which Delta_i(k) < epsilon for every point i, but for one in a thousand.

    Parameters
    ----------
    operator
        The diffusion operator, in float64.
    epsilon
        In (0, 1).
    rng
        Draws points to look at first, and the start of the basis.
    n_threads
        Threads to use.

    Returns
    -------
    ScaleChoice
        Its ``decay`` has, at every scale, the largest Delta of the points looked at, stragglers left out.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((8,)))
    >>> choose_mixed_scale(operator, 0.25, np.random.default_rng(0)).max_scale
    4
    """
    _refuse_bipartite(operator, epsilon)
    n_points = operator.n_points
    few = n_points <= FEW
    rows = np.arange(n_points) if few else np.sort(rng.choice(n_points, DRAWN, replace=False))
    coarsest = min(COARSEST, LONGEST) if operator.is_uneven else COARSEST
    decay: list[float] = []
    judge: _Judge | None = None
    for scale, distances in enumerate(islice(_distances(operator, rows, n_threads), coarsest + 1)):
        verdict = _Verdict.of(distances, epsilon, 0 if few else DRAWN_STRAGGLERS, SUMMED)
        if verdict.mixed and not few:
            if judge is None or scale > judge.last:
                judge = _Judge.of(operator, scale, rng, n_threads)
            verdict = judge(scale, epsilon)
        decay.append(verdict.largest)
        if verdict.mixed:
            points = f"every point but {verdict.stragglers}" if verdict.stragglers else "every point"
            reason = (
                f"at 2^{scale} steps the walk from {points} is within {epsilon:g} of the stationary law (total "
                f"variation, {verdict.how}), the first such scale, as in the paper's Lemma 1"
            )
            return ScaleChoice(scale, np.array(decay), 0.0, reason)
    raise InvalidInputError(
        f"a walk that mixes to within {epsilon:g} in 2^{coarsest} steps, for {argument('max_scale', epsilon)}",
        f"points from which it is still {decay[-1]:.2g} from the stationary law",
        "parts of the graph are nearly disconnected, see graph.diagnose(); join them, or give max_scale as a whole "
        "number",
    )


def _refuse_bipartite(operator: DiffusionOperator, epsilon: float) -> None:
    """Raise if a component falls into two halves that every step changes: even numbers of steps never leave one."""
    halved, component = bipartite(operator.symmetric)
    count = np.unique(component[halved]).size
    if count:
        components = "a bipartite component" if count == 1 else f"{count} bipartite components"
        raise InvalidInputError(
            f"a walk that mixes, for {argument('max_scale', epsilon)}",
            f"{components}, where 2, 4, 8, ... steps never reach the other half of the points",
            "use Graph.from_affinity(affinity, lazy=True), or give max_scale as a whole number",
        )


def _error_wanted(operator: DiffusionOperator) -> float:
    """Return the error of S^t, in the spectral norm, that moves no Delta by more than `EXACTLY`."""
    return max(2 * EXACTLY * float(operator.top.min()), 4 * rounding(2**COARSEST, np.float64))


def _diffuser(operator: DiffusionOperator, n_threads: int) -> Diffuser:
    if operator.is_uneven:
        return WalkDiffuser(operator, adjoint=True)
    return ChebyshevDiffuser(operator, adjoint=True, tol=_error_wanted(operator), n_threads=n_threads)


def _distances(operator: DiffusionOperator, rows: Intp, n_threads: int) -> Iterator[Float64]:
    """Yield Delta of some rows at 2^0, 2^1, ... steps, ``(n_rows,)``."""
    for densities in _diffuser(operator, n_threads).diffuse_progressively(_indicators(operator, rows)):
        yield _from_densities(operator, rows, densities)


def _indicators(operator: DiffusionOperator, rows: Intp) -> Float64:
    indicators = np.zeros((operator.n_points, rows.size))
    indicators[operator.order[rows], np.arange(rows.size)] = 1
    return indicators


def _from_densities(operator: DiffusionOperator, rows: Intp, densities: Block) -> Float64:
    own = operator.component[:, None] == operator.component[rows]
    beside = densities[operator.order] - (operator.top**2)[:, None] * own
    return np.asarray(np.abs(beside).sum(axis=0) / 2)


@final
@dataclass(frozen=True)
class _Verdict:
    """Whether all points but few have mixed, how many have not, the largest Delta of the others, how it is known."""

    mixed: bool
    stragglers: int
    largest: float
    how: str

    @classmethod
    def of(cls, distances: Float64, epsilon: float, allowed: int, how: str) -> _Verdict:
        """Judge by Delta of all points, or by upper bounds on it, ``(n_points,)``."""
        late = int(np.count_nonzero(distances >= epsilon))
        largest = np.partition(distances, -1 - allowed)[-1 - allowed] if allowed else distances.max()
        return cls(late <= allowed, late, float(largest), how)


@final
@dataclass(frozen=True, eq=False)
class _Judge:
    """Judges all points at scales up to ``last``: by a basis of eigenvectors, or, without one, by their own walks."""

    operator: DiffusionOperator
    factors: dict[int, Factor]
    last: int
    n_threads: int

    @classmethod
    def of(cls, operator: DiffusionOperator, first: int, rng: np.random.Generator, n_threads: int) -> _Judge:
        last = min(first + AHEAD, COARSEST)
        factors = None
        if not operator.is_uneven:
            tol = _error_wanted(operator)
            factors = spectral_factors(operator, first, 32, tol=tol, rng=rng, last=last, n_threads=n_threads)
        return cls(operator, {factor.scale: factor for factor in factors or ()}, last, n_threads)

    def __call__(self, scale: int, epsilon: float) -> _Verdict:
        top, factor = self.operator.top, self.factors.get(scale)
        allowed = int(STRAGGLERS * top.size)
        if factor is None:
            distances = _until(allowed, epsilon, lambda rows: self._walked(rows, scale), np.full(top.size, np.inf))
            return _Verdict.of(distances, epsilon, allowed, SUMMED)
        weighted = factor.basis @ factor.core
        # The basis is orthonormal.
        bounds = (np.linalg.norm(weighted, axis=1) + factor.bound) / (2 * top)
        verdict = _Verdict.of(bounds, epsilon, allowed, BOUNDED)
        cost = float(np.count_nonzero(bounds >= epsilon)) * top.size * (factor.rank + 1)
        if verdict.mixed or cost > MOST_WORK:
            return verdict

        def summed(rows: Intp) -> Float64:
            return np.asarray(np.abs(weighted[rows] @ factor.basis.T) @ top / (2 * top[rows]))

        return _Verdict.of(_until(allowed, epsilon, summed, bounds), epsilon, allowed, BOTH)

    def _walked(self, rows: Intp, scale: int) -> Float64:
        flow = _diffuser(self.operator, self.n_threads).diffuse(
            _indicators(self.operator, rows), range(scale, scale + 1)
        )
        return _from_densities(self.operator, rows, next(iter(flow)))


def _until(allowed: int, epsilon: float, distances: Callable[[Intp], Float64], bounds: Float64) -> Float64:
    """Replace bounds by distances, the largest first, until all are below epsilon or too many are not."""
    result = bounds.copy()
    late = 0
    undecided = np.argsort(-bounds, kind="stable")[: np.count_nonzero(bounds >= epsilon)]
    for start in range(0, undecided.size, ROWS):
        rows = undecided[start : start + ROWS]
        result[rows] = distances(rows)
        late += int(np.count_nonzero(result[rows] >= epsilon))
        if late > allowed:
            break
    return result
