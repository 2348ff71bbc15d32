"""The paper's rule for the largest scale, Lemma 1: the first at which the walk from every point has mixed.

With t = 2^k steps, Delta_i(k) = 1/2 sum_j |P^t_ij - pi_j| is how far the walk from point i is from the stationary law
pi of its component, and K is the first k with Delta_i(k) < epsilon for all i; Delta_i never grows with k. On data, one
point in a thousand is left out; see `STRAGGLERS`.

The part of S^t beside the top eigenvectors, B, says it all: P^t_ij - pi_j = B_ij top_j / top_i with pi = top^2. A few
points show which scales are much too fine. Then all points are judged: by Cauchy and Schwarz Delta_i <= ||B_i|| / (2
top_i), which a basis of few eigenvectors gives for all of them at once, and where that does not settle it, the row of B
is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import final

import numpy as np

from heatmover._typing import Float64, Intp
from heatmover.diffusion.base import Block, Diffuser
from heatmover.diffusion.chebyshev import ChebyshevDiffuser, rounding
from heatmover.diffusion.lowrank import Factor
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import COARSEST, ScaleChoice
from heatmover.diffusion.spectral import spectral_factors
from heatmover.diffusion.walk import LONGEST, WalkDiffuser
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs.spectrum import bipartite

__all__ = ["STRAGGLERS", "choose_mixed_scale"]

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
    found, component = bipartite(operator.symmetric)
    count = np.unique(component[found]).size
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
