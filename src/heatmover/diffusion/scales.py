"""Choose the dyadic diffusion times to compare, the coarsest from the data; for `embedding.preparation`; arrays only.

`choose_max_scale` is the default: the first scale at which the heat of two points overlaps by half on average.

`choose_mixed_scale` is the paper's Lemma 1. With t = 2^k steps, Delta_i(k) = 1/2 sum_j |P^t_ij - pi_j| is the distance
between the distribution of a random walk that starts at point i and the stationary distribution pi of the component. K
is the first k with Delta_i(k) < epsilon for all i; Delta_i never grows with k. In practice one point in a thousand may
violate this condition; see `STRAGGLERS`. The part B of S^t orthogonal to the top eigenvectors determines Delta, because
P^t_ij - pi_j = B_ij top_j / top_i with pi = top^2. A few sampled points show which scales are much too fine. At the
remaining scales all points are checked. By the Cauchy-Schwarz inequality Delta_i <= ||B_i|| / (2 top_i), and a basis of
few eigenvectors gives this bound for all points at once. If the bound exceeds epsilon, row i of B is summed, which
gives Delta_i itself.
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

# max_scale="auto" stops at the first scale where the heat of two points overlaps by half on average. Measured on eight
# shapes with ground truth and a cohort (docs/decisions/0010): with a threshold of 0.7 the swiss roll has a P@10 of only
# 0.85, because all remote measures still look equally far apart. With a threshold of 0.4 the long axis of the S-curve
# dominates (P@10 of 0.89 instead of 0.91).
MIXED = 0.5

# If n_scales is None, the finest scales that together have less than this share of all weights are dropped. These
# scales would cost memory and time, but change a distance by at most this share of its largest possible value.
NEGLIGIBLE_WEIGHT = 0.01
# Number of sampled points. The decay is an average over pairs of these points, and without a correction 32 points are
# too few: 80 random samples of melanoma (16,291 cells) led to the scales 5, 6 and 7. With 128 points all samples led to
# one scale, at four times the cost. A correction by 16 probes increases the cost by only half, and averages over 32
# corrected points vary less than averages over 128 points. The correction reduced the standard deviation from 0.07 to
# 0.02 on melanoma and from 0.029 to 0.008 on the swiss roll; see docs/decisions/0010.
SAMPLE = 32
PROBES = 16
# Number of points at which the probes are evaluated. The sampling error of 2,000 points is an eighth of the error of 32
# points and smaller than the other errors.
READ = 2_000
FLOW_TOL = 1e-3
# The average is corrected only if the variance of the surrogate, whose values lie between 0 and 1, is at least this
# value. In practice the variance is at least 1e-3.
LEAST_VARIANCE = 1e-6
# The coarsest scale to try: 2^18 steps cost 1,400 products per measure, and data that have not mixed by then are nearly
# disconnected.
COARSEST = 18
# From this scale on, computing one more scale by polynomials costs as much as a basis for all coarser scales may cost.
PATIENCE = 11


@dataclass(frozen=True)
class ScaleChoice:
    """The largest scale and the reason for choosing it.

    Attributes
    ----------
    max_scale
        Largest scale K: the coarsest diffusion time is ``2**K``.
    decay
        Mean total variation between the heat of two points at times ``2**0, 2**1, ...``, up to the last computed scale;
        empty if the user set ``max_scale``.
    limit
        Mean total variation after infinite time: zero on a connected graph.
    reason
        Reason for the choice, in words.
    """

    max_scale: int
    decay: Float64
    limit: float
    reason: str

    def to_record(self) -> Record:
        """Return the choice as a record that can be saved to disk."""
        # JSON has no NaN, which is the limit if the user set the scale.
        limit = float(self.limit) if np.isfinite(self.limit) else None
        values = {"max_scale": int(self.max_scale), "limit": limit, "reason": str(self.reason)}
        return Record(values, {"decay": np.asarray(self.decay, dtype=np.float64)})

    @classmethod
    def from_record(cls, record: Record) -> ScaleChoice:
        """Return the choice that a record holds, or raise an error if the record is invalid."""
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
    """Return the first scale at which the heat of two points, drawn from the measures, overlaps by half on average.

    Mixing is measured by the mean total variation between the heat of two points, which falls from 1 (no common mass)
    to a limit after infinite time (0 on a connected graph). Points are drawn instead of measures, because measures that
    overlap from the start, such as patients that share all cell types, would seem to have mixed.

    Parameters
    ----------
    operator
        The diffusion operator.
    rows
        Measures ``(n_measures, n_points)``, dense or CSR.
    rng
        Random generator that draws the points.
    coarse
        Function that returns a diffuser that is cheap at coarse scales, or None to continue with polynomials. The
        function is called at most once, if the heat has not mixed after 2^10 steps.
    n_threads
        Number of threads.
    """
    draw = _draw(operator, rows, rng)
    threshold = draw.limit + MIXED * (1 - draw.limit)
    decay: list[float] = []
    for scale, densities in enumerate(islice(_flow(operator, draw.sources, coarse, n_threads), COARSEST + 1)):
        decay.append(draw.variation(densities))
        if scale >= 1 and decay[-1] <= threshold:
            reason = (
                f"2^{scale} is the first number of steps after which the heat distributions of two points differ by at "
                f"most {threshold:.2f} on average (total variation: {decay[-1]:.2f})"
            )
            return ScaleChoice(scale, np.array(decay), draw.limit, reason)
    cause = "parts of the graph are nearly disconnected"
    if operator.alternates.any():
        cause = "heat alternates between two halves of the graph, which is bipartite or nearly so"
    reason = (
        f"after 2^{COARSEST} steps, the largest number tried, the heat distributions of two points still differ by "
        f"{decay[-1]:.2f} on average (total variation), because {cause}; see graph.diagnose()"
    )
    return ScaleChoice(COARSEST, np.array(decay), draw.limit, reason)


def _flow(
    operator: DiffusionOperator, sources: Block, coarse: Callable[[], Diffuser | None], n_threads: int
) -> Iterator[Block]:
    """Yield the densities of the sources at 2^0, 2^1, ... steps."""
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
    """Sampled points, as indicator functions, and probes: random functions that show how representative the points are.

    By chance, too many points of a small sample may lie at the rim or in one cluster, which biases the average.
    Computing the heat of all points is too expensive. But a random function smoothed by the same random walk has a
    value at every point, and two points have nearly equal values if their heat has mixed. The difference of these
    values between the sampled points and all points corrects the average (a control variate).
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
        # Points of different components have a total variation of 1 forever.
        return self.limit + (1 - self.limit) * within

    def _together(self, points: Intp) -> Float64:
        """Return 1 where a point and a sampled point share a component, else 0, ``(n_points, n_drawn)``."""
        return np.equal.outer(self.component[points], self.component[self.drawn]).astype(np.float64)

    def _by_probes(self, smoothed: Block, together: Float64) -> tuple[Float64, float | None]:
        """Return surrogate distances between sampled points, and their mean surrogate distance from all points."""
        drawn, read = (
            np.asarray(smoothed[at] / self.stationary[at, None], np.float64) for at in (self.drawn, self.read)
        )
        inside, across = cdist(drawn, drawn), cdist(read, drawn)
        # A total variation is at most 1, but distances of probe values are unbounded: a remote point would dominate.
        unit = np.median(inside[together > 0]) or 1.0
        shared = self._together(self.read)
        mean = float(np.sum(shared * across / (across + unit)) / shared.sum()) if shared.any() else None
        return inside / (inside + unit), mean


def _corrected(apart: Float64, surrogate: Float64, elsewhere: float | None, together: Float64) -> float:
    """Return the mean of ``apart`` over pairs within components, corrected by a surrogate with a known mean."""
    partners = together.sum(axis=1)
    means, surrogates = ((matrix * together).sum(axis=1) / np.maximum(partners, 1) for matrix in (apart, surrogate))
    share = partners / partners.sum()
    mean, expected = float(share @ means), float(share @ surrogates)
    spread = surrogates - expected
    variance = float(share @ spread**2)
    # With only two points, both have the same mean distance, and the slope would be a quotient of rounding errors.
    if elsewhere is None or variance < LEAST_VARIANCE:
        return mean
    slope = float(share @ (spread * (means - mean))) / variance
    # The factor is 2, because both points of a pair in `mean` are sampled, but only one point of a pair in `elsewhere`.
    return float(np.clip(mean + 2 * slope * (elsewhere - expected), 0, 1))


def _draw(operator: DiffusionOperator, rows: Any, rng: np.random.Generator) -> _Draw:
    """Draw distinct points in proportion to their mass in the mean measure, and probes unless all points are drawn."""
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
    # Use the precision of the sources, for which the kernel is compiled anyway. This precision suffices, because masses
    # are 0 or 1.
    together = operator.component_masses(sources[:, :n_drawn].T).T.astype(sources.dtype)
    limit = mean_total_variation(together)
    # Draw white noise in the coordinates of S: the adjoint returns the smoothed function times the stationary
    # distribution.
    sources[nodes, n_drawn:] = rng.normal(size=(operator.n_points, n_probes)) * np.sqrt(stationary[nodes])[:, None]
    return _Draw(sources, drawn, nodes[np.sort(read)], stationary, component, limit)


def _precision(operator: DiffusionOperator) -> npt.DTypeLike:
    # An average needs few digits, but on components that hardly mix the errors of all steps add up.
    return np.float32 if operator.tightening == 1 else np.float64


def finest_scale(weights: Float64) -> int:
    """Return the first scale to keep: all finer scales together have a negligible share of the weight.

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
    # Each pair occurs twice in the table.
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
    # numba compiles a kernel separately for read-only and writable arrays.
    rows.flags.writeable = False
    side = len(rows) + -len(rows) % REGISTER_ROWS
    tile = np.empty((side, side))
    l1_tile(rows, rows, rows.dtype.type(1), True, tile)
    # A total variation is half of an L1 distance.
    return tile[: len(rows), : len(rows)] / 2


# Share of the points that may remain unmixed (stragglers). If the kernel has the same width at all points, a few
# outliers are nearly isolated. On three swiss rolls of 10,000 points, 3 to 5 of 430 examined points were still 0.95 or
# more from the stationary distribution after 2^14 steps, and all other points were within 0.16; on the first swiss roll
# some points had not mixed at 2^18. With fewer than a thousand points no straggler is allowed, so the Lemma is applied
# literally.
STRAGGLERS = 1e-3
# With up to FEW points, every point is judged by a random walk of its own. With more points, a sample of DRAWN points
# is judged first, and a scale is skipped if more than DRAWN_STRAGGLERS of them have not mixed. The right scale is
# skipped with a probability of 1 in 200,000.
FEW, DRAWN, DRAWN_STRAGGLERS = 512, 32, 2
# Largest error of Delta: only a point whose Delta differs from epsilon by less than this error could be misjudged.
EXACTLY = 1e-6
# Number of points judged together: 256 rows of 100,000 points take 200 MB.
ROWS = 256
# Largest number of multiplications for the rows of B at one scale, about a minute of CPU time. If the undecided points
# would need more multiplications, K is the first scale at which the bound itself is below epsilon. This K may be one
# scale coarser, and `ScaleChoice.reason` reports the use of the bound.
MOST_WORK = 1e12
# Number of further scales for which one basis is used.
AHEAD = 2

SUMMED = "computed for every point"
BOUNDED = "bounded by the spectrum"
BOTH = "bounded by the spectrum, and computed where the bound is too loose"


def choose_mixed_scale(
    operator: DiffusionOperator, epsilon: float, rng: np.random.Generator, *, n_threads: int = 1
) -> ScaleChoice:
    """Return the first scale k at which Delta_i(k) < epsilon for every point i, except for one point in a thousand.

    Parameters
    ----------
    operator
        Diffusion operator in float64.
    epsilon
        Threshold of Delta, in (0, 1).
    rng
        Random generator that chooses the points to examine first and the starting block of the basis.
    n_threads
        Number of threads.

    Returns
    -------
    ScaleChoice
        Choice whose ``decay`` is the largest Delta of the examined points at every scale, without stragglers.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((8,)))
    >>> choose_mixed_scale(operator, 0.25, np.random.default_rng(0)).max_scale
    4
    """
    _reject_bipartite(operator, epsilon)
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
            late = verdict.stragglers
            points = f"all points but {late}" if late else "every point"
            reason = (
                f"2^{scale} is the first number of steps after which the random walk from {points} is within "
                f"{epsilon:g} of the stationary distribution, as in the paper's Lemma 1 (total variation, "
                f"{verdict.how})"
            )
            return ScaleChoice(scale, np.array(decay), 0.0, reason)
    raise InvalidInputError(
        f"a random walk that mixes to within {epsilon:g} in 2^{coarsest} steps, for {argument('max_scale', epsilon)}",
        f"points whose walk is still at a distance of {decay[-1]:.2g} from the stationary distribution",
        "see graph.diagnose() for nearly disconnected parts of the graph and join them, or give max_scale as a whole "
        "number",
    )


def _reject_bipartite(operator: DiffusionOperator, epsilon: float) -> None:
    """Raise an error if a component is bipartite, because even step counts end in the starting half."""
    halved, component = bipartite(operator.symmetric)
    count = np.unique(component[halved]).size
    if count:
        components = "a bipartite component" if count == 1 else f"{count} bipartite components"
        raise InvalidInputError(
            f"a random walk that mixes, for {argument('max_scale', epsilon)}",
            f"{components}, where an even number of steps never ends in the other half of the points",
            "use Graph.from_affinity(affinity, lazy=True), or give max_scale as a whole number",
        )


def _allowed_error(operator: DiffusionOperator) -> float:
    """Return an error of S^t in the spectral norm that changes no Delta by more than `EXACTLY`."""
    return max(2 * EXACTLY * float(operator.top.min()), 4 * rounding(2**COARSEST, np.float64))


def _diffuser(operator: DiffusionOperator, n_threads: int) -> Diffuser:
    if operator.is_uneven:
        return WalkDiffuser(operator, adjoint=True)
    return ChebyshevDiffuser(operator, adjoint=True, tol=_allowed_error(operator), n_threads=n_threads)


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
    rest = densities[operator.order] - (operator.top**2)[:, None] * own
    return np.asarray(np.abs(rest).sum(axis=0) / 2)


@final
@dataclass(frozen=True)
class _Verdict:
    """Judgment of one scale: are the points mixed, number of stragglers, largest Delta of all others, and method."""

    mixed: bool
    stragglers: int
    largest: float
    how: str

    @classmethod
    def of(cls, distances: Float64, epsilon: float, allowed: int, how: str) -> _Verdict:
        """Judge a scale by Delta of all points or by upper bounds on Delta, ``(n_points,)``."""
        late = int(np.count_nonzero(distances >= epsilon))
        largest = np.partition(distances, -1 - allowed)[-1 - allowed] if allowed else distances.max()
        return cls(late <= allowed, late, float(largest), how)


@final
@dataclass(frozen=True, eq=False)
class _Judge:
    """Check of all points at scales up to ``last``: by a basis of eigenvectors or, without a basis, by random walks."""

    operator: DiffusionOperator
    factors: dict[int, Factor]
    last: int
    n_threads: int

    @classmethod
    def of(cls, operator: DiffusionOperator, first: int, rng: np.random.Generator, n_threads: int) -> _Judge:
        last = min(first + AHEAD, COARSEST)
        factors = None
        if not operator.is_uneven:
            tol = _allowed_error(operator)
            factors = spectral_factors(operator, first, 32, tol=tol, rng=rng, last=last, n_threads=n_threads)
        return cls(operator, {factor.scale: factor for factor in factors or ()}, last, n_threads)

    def __call__(self, scale: int, epsilon: float) -> _Verdict:
        top, factor = self.operator.top, self.factors.get(scale)
        allowed = int(STRAGGLERS * top.size)
        if factor is None:
            distances = _until(allowed, epsilon, lambda rows: self._walked(rows, scale), np.full(top.size, np.inf))
            return _Verdict.of(distances, epsilon, allowed, SUMMED)
        weighted = factor.basis @ factor.core
        # The norms of these rows are the norms of the rows of B, because the basis is orthonormal.
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
    """Replace bounds by distances, largest bounds first, until no bound exceeds epsilon or too many distances do."""
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
