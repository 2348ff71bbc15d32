"""The paper's rule for the largest scale, Lemma 1: the first at which the walk from every point has mixed.

With t = 2^k steps, Delta_i(k) = 1/2 sum_j |P^t_ij - pi_j| is how far the walk from point i is from the stationary law pi (of
its component), and K is the first k with Delta_i(k) < epsilon for all i; Delta_i never grows with k.

The part of S^t beside the top eigenvectors, B, says it all: P^t_ij - pi_j = B_ij top_j / top_i with pi = top^2. Points that
are drawn first show that a scale is too fine. Then all points are judged: by Cauchy and Schwarz Delta_i <= ||B_i|| / (2
top_i), which a basis of few eigenvectors gives for all of them at once, and where that does not settle it, the row of B is
summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import final

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._typing import Float64, Intp
from heatmover.diffusion.base import Diffuser
from heatmover.diffusion.chebyshev import ChebyshevDiffuser, rounding
from heatmover.diffusion.lowrank import Factor
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import COARSEST, ScaleChoice
from heatmover.diffusion.spectral import spectral_factors
from heatmover.diffusion.walk import LONGEST, WalkDiffuser
from heatmover.errors import InvalidInputError, argument

__all__ = ["choose_mixed_scale"]

# Up to this many points all are looked at from the first step on; of more, this many.
FEW, DRAWN = 512, 32
# Largest error of Delta. The decision is by a comparison with epsilon, and only a point closer to it could be misjudged.
EXACTLY = 1e-6
# Points judged together: 256 rows of 100,000 points take 200 MB.
ROWS = 256
# Additions and products spent on the rows of B at one scale, about a minute. Where all points that the bound leaves open
# would cost more (some 70,000 points, if it settles none), K is the first scale at which the bound itself is below
# epsilon: it may be one scale later, and the reason says so.
MOST_WORK = 1e12
# Scales that one basis serves: the next after the drawn points have mixed is nearly always enough.
AHEAD = 2


def choose_mixed_scale(
    operator: DiffusionOperator, epsilon: float, rng: np.random.Generator, *, n_threads: int = 1
) -> ScaleChoice:
    """Return the first scale k at which Delta_i(k) < epsilon for every point i.

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
        Its ``decay`` has, at every scale, the largest Delta among the points looked at.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((8,)))
    >>> choose_mixed_scale(operator, 0.25, np.random.default_rng(0)).max_scale
    5
    """
    _refuse_bipartite(operator, epsilon)
    looked = _look(operator, rng)
    coarsest = min(COARSEST, LONGEST) if operator.is_uneven else COARSEST
    decay: list[float] = []
    judge: _Judge | None = None
    for scale, drawn in enumerate(islice(_drawn_distances(operator, looked, n_threads), coarsest + 1)):
        decay.append(float(drawn.max()))
        if decay[-1] >= epsilon:
            continue
        how = "summed over all of them"
        if looked.size < operator.n_points:
            if judge is None or scale > judge.last:
                judge = _Judge.of(operator, scale, rng, n_threads)
            largest, how = judge.largest(scale, epsilon)
            decay[-1] = max(decay[-1], largest)
            if largest >= epsilon:
                continue
        reason = (
            f"at 2^{scale} steps the walk from every point is within {epsilon:g} of the stationary law (total variation; "
            f"{how}), the first such scale, as in the paper's Lemma 1"
        )
        return ScaleChoice(scale, np.array(decay), 0.0, reason)
    raise InvalidInputError(
        f"a walk that mixes to within {epsilon:g} from every point in 2^{coarsest} steps, for {argument('max_scale', epsilon)}",
        f"a point whose walk is still {decay[-1]:.2g} from the stationary law",
        "parts hang together by a thread, see graph.diagnose(); join them, or give max_scale as a whole number",
    )


def _refuse_bipartite(operator: DiffusionOperator, epsilon: float) -> None:
    """Raise if a component falls into two halves that every step changes: even numbers of steps never leave one."""
    pattern = operator.symmetric
    # In the double cover a bipartite component comes in two pieces, and any other in one.
    cover = sp.block_array([[None, pattern], [pattern.T, None]])
    bipartite = connected_components(cover, directed=False)[0] - operator.n_components
    if bipartite:
        raise InvalidInputError(
            f"a walk that mixes, for {argument('max_scale', epsilon)}",
            f"{bipartite} bipartite component{'s' if bipartite > 1 else ''}, of which 2, 4, 8, ... steps never leave one half",
            "give every point an affinity to itself, or max_scale as a whole number",
        )


def _look(operator: DiffusionOperator, rng: np.random.Generator) -> Intp:
    """Return the rows to look at first: all of them, or the faintest and some at random."""
    if operator.n_points <= FEW:
        return np.arange(operator.n_points)
    faint = np.argpartition(operator.degree, DRAWN // 2)[: DRAWN // 2]
    return np.unique(np.append(faint, rng.choice(operator.n_points, DRAWN // 2, replace=False)))


def _error_wanted(operator: DiffusionOperator) -> float:
    """Return the error of S^t, in the spectral norm, that moves no Delta by more than `EXACTLY`."""
    return max(2 * EXACTLY * float(operator.top.min()), 4 * rounding(2**COARSEST, np.float64))


def _diffuser(operator: DiffusionOperator, n_threads: int) -> Diffuser:
    if operator.is_uneven:
        return WalkDiffuser(operator, adjoint=True)
    return ChebyshevDiffuser(operator, adjoint=True, tol=_error_wanted(operator), n_threads=n_threads)


def _drawn_distances(operator: DiffusionOperator, rows: Intp, n_threads: int) -> Iterator[Float64]:
    """Yield Delta of some rows at 2^0, 2^1, ... steps, ``(n_rows,)``."""
    for densities in _diffuser(operator, n_threads).diffuse_progressively(_indicators(operator, rows)):
        yield _from_densities(operator, rows, densities)


def _indicators(operator: DiffusionOperator, rows: Intp) -> Float64:
    indicators = np.zeros((operator.n_points, rows.size))
    indicators[operator.order[rows], np.arange(rows.size)] = 1
    return indicators


def _from_densities(operator: DiffusionOperator, rows: Intp, densities: Float64) -> Float64:
    own = operator.component[:, None] == operator.component[rows]
    beside = densities[operator.order] - (operator.top**2)[:, None] * own
    return np.asarray(np.abs(beside).sum(axis=0) / 2)


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

    def largest(self, scale: int, epsilon: float) -> tuple[float, str]:
        """Return the largest Delta, or the first found that is not below epsilon; and how it was found."""
        factor, everyone = self.factors.get(scale), np.arange(self.operator.n_points)
        if factor is None:
            return self._walked(everyone, scale, epsilon), "summed over all of them"
        weighted = factor.basis @ factor.core
        bounds = (np.linalg.norm(weighted, axis=1) + factor.bound) / (2 * self.operator.top)
        settled = bounds < epsilon
        if settled.all():
            return float(bounds.max()), "bounded by the spectrum"
        open_rows = everyone[~settled][np.argsort(-bounds[~settled], kind="stable")]
        affordable = int(MOST_WORK / (self.operator.n_points * (factor.rank + 1)))
        largest = 0.0
        for part in _parts(open_rows[: max(affordable, ROWS)]):
            rows = np.abs(weighted[part] @ factor.basis.T) @ self.operator.top
            largest = max(largest, float((rows / (2 * self.operator.top[part])).max()))
            if largest >= epsilon:
                return largest, ""
        if open_rows.size > max(affordable, ROWS):
            # Too many to sum: not known to have mixed until the bound says so.
            return float(bounds.max()), ""
        return largest, "bounded by the spectrum, and summed where that leaves it open"

    def _walked(self, everyone: Intp, scale: int, epsilon: float) -> float:
        diffuser, largest = _diffuser(self.operator, self.n_threads), 0.0
        for part in _parts(everyone):
            densities = next(iter(diffuser.diffuse(_indicators(self.operator, part), range(scale, scale + 1))))
            largest = max(largest, float(_from_densities(self.operator, part, densities).max()))
            if largest >= epsilon:
                break
        return largest


def _parts(rows: Intp) -> Iterator[Intp]:
    return (rows[start : start + ROWS] for start in range(0, rows.size, ROWS))
