"""Which way to diffuse: chosen from the number of points, measures and scales, and from the ranks of the powers.

Costs are counted in products of the operator with one column. Polynomials alone cost, per measure, the degree of the
coarsest scale, which grows with the root of the time. A basis for the coarse scales costs a block of vectors once, and
per measure only the degree of the scale where it takes over. Where the rank is small and the scale large, the basis
wins; where thousands of eigenvalues lie close to 1, it never does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from heatmover.diffusion.base import LANES
from heatmover.diffusion.chebyshev import power_coefficients, rounding
from heatmover.diffusion.interpolative import interpolative_factors
from heatmover.diffusion.lowrank import ROUNDING_STEPS, Factor
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.rank import DensityOfStates, density_of_states, threshold
from heatmover.diffusion.spectral import (
    BELOW,
    FIRST_GROWTH,
    OVERSAMPLING,
    POLISH,
    TESTS,
    second_growth,
    spectral_factors,
)

__all__ = ["METHODS", "Cut", "Planner"]

METHODS = ("auto", "chebyshev", "spectral", "interpolative", "exact")

# A basis of more vectors than this takes more memory than the densities it saves, and its small dense problems begin to
# cost more than products with the operator.
MOST_VECTORS = 2_000
# Up to so many products with one column polynomials are done before the ranks are known well enough to do better.
CHEAP = 10_000
# A basis must save this share of the cost of polynomials before "auto" uses it: the count leaves out small things.
WORTHWHILE = 0.8
# Beyond this scale ranks are small, and an exact one would change no decision; the estimate costs the root of the time.
FINELY = 11
# Scales at which a basis is tried, from the cheapest on: the rank is an estimate, and halves with each.
TRIALS = 3
# Orthogonalisation and Rayleigh-Ritz of a block, in products per squared column and pass. From the operations alone it
# would be 0.03; on 10,000 points 128 columns took 0.07 s a pass, 80 half as much, and products 22 microseconds each.
ORTHOGONALISATION = 0.1


@final
@dataclass(frozen=True)
class Cut:
    """Where a basis would take over, and what it would cost.

    Attributes
    ----------
    first
        The first scale computed from a basis.
    rank
        Expected number of basis vectors.
    cost, polynomial_cost
        With the basis, and with polynomials alone, in products with one column.
    """

    first: int
    rank: int
    cost: float
    polynomial_cost: float


@final
@dataclass
class Planner:
    """Decides once how to diffuse, and pays for the basis at most once.

    Attributes
    ----------
    operator
        The diffusion operator, in float64.
    method
        One of `METHODS`.
    n_measures
        How many measures will be diffused, about.
    tol
        Largest error of any eigenvalue's power.
    rng
        For the density of states and the basis.
    n_threads
        Threads to use.
    factors
        The coarse scales, once `settle` has found a basis worth its cost.
    chosen, reason
        What `settle` decided, and why.
    """

    operator: DiffusionOperator
    method: str
    n_measures: int
    tol: float
    rng: np.random.Generator
    n_threads: int
    factors: list[Factor] | None = None
    chosen: str = "chebyshev"
    reason: str = "as asked for"
    _states: DensityOfStates | None = field(default=None, repr=False)
    _settled_for: int = -1
    _failed: bool = False

    def states(self, coarsest: int, delta: float) -> DensityOfStates:
        """Return the density of states, estimated once, with the resolution of the first request."""
        if self._states is None:
            self._states = density_of_states(
                self.operator, self.rng, coarsest=coarsest, delta=delta, n_threads=self.n_threads
            )
        return self._states

    def settle(self, max_scale: int) -> list[Factor] | None:
        """Decide for scales up to ``max_scale`` and return the factors of the coarse ones, if any.

        A basis that was built for coarser scales serves finer ones too.
        """
        if self.operator.is_uneven:
            self.chosen = "walk"
            self.reason = "affinities so uneven that only the walk itself, step by step, keeps its digits"
            return None
        if self.method in ("chebyshev", "exact"):
            self.chosen = self.method
            return None
        if max_scale > self._settled_for:
            self._decide(max_scale, try_basis=True)
            self._settled_for = max_scale
        elif self.factors is None and not self._failed:
            self._decide(max_scale, try_basis=False)
        if self.factors is None:
            return None
        if self.first > max_scale:
            self.chosen, self.reason = "chebyshev", f"two points mix before the basis takes over at 2^{self.first}"
            return None
        self.chosen = "spectral" if self.method == "auto" else self.method
        self.reason = self._why_basis(max_scale)
        return self.factors

    @property
    def first(self) -> int:
        """The first scale computed from a basis; beyond all scales if there is none."""
        return self.factors[0].scale if self.factors else 10**6

    def _decide(self, max_scale: int, *, try_basis: bool) -> None:
        products = self.n_measures * self._degree(max_scale)
        if self.method == "auto" and products <= CHEAP:
            self.chosen = "chebyshev"
            self.reason = (
                f"polynomials of degree {self._degree(max_scale) - 1} reach 2^{max_scale} steps at little cost"
            )
            return
        self.factors, self._failed = None, False
        cut = self._cheapest_cut(max_scale)
        self.chosen, self.reason = "chebyshev", self._why_polynomials(max_scale, cut)
        if cut is None or not try_basis or (self.method == "auto" and cut.cost > WORTHWHILE * cut.polynomial_cost):
            return
        for first in range(cut.first, min(cut.first + TRIALS, max_scale + 1)):
            self.factors = self._build(first, max_scale)
            if self.factors is not None:
                return
        self._failed = True
        self.reason = f"no basis of up to {MOST_VECTORS:,} vectors reaches tol at 2^{cut.first} steps or somewhat later"

    def _build(self, first: int, last: int) -> list[Factor] | None:
        build = interpolative_factors if self.method == "interpolative" else spectral_factors
        rank = (
            self.states(min(last, FINELY), self.tol / BELOW).rank(first, self.tol / BELOW) - self.operator.n_components
        )
        return build(
            self.operator,
            first,
            rank,
            tol=self.tol - self._room(),
            rng=self.rng,
            last=last,
            most=MOST_VECTORS,
            n_threads=self.n_threads,
        )

    def _cheapest_cut(self, max_scale: int) -> Cut | None:
        """Return the scale where a basis of allowed size costs least, or None."""
        states = self.states(min(max_scale, FINELY), self.tol / BELOW)
        most = min(MOST_VECTORS - LANES, self.operator.n_points)
        alone = self._polynomial_cost(max_scale)
        cuts = []
        for first in range(1, max_scale + 1):
            rank = max(states.rank(first, self.tol / BELOW) - self.operator.n_components, 0)
            if OVERSAMPLING * rank <= most:
                cuts.append(Cut(first, rank, self._cost(first, rank), alone))
        return min(cuts, key=lambda cut: cut.cost, default=None)

    def _polynomial_cost(self, max_scale: int) -> float:
        return self.n_measures * self._degree(max_scale) * self._precision_cost(max_scale)

    def _cost(self, first: int, rank: int) -> float:
        theta, lowest = threshold(first, self.tol / BELOW), self.operator.lowest
        per_degree = np.arccosh((2 - lowest - theta) / (theta - lowest))
        block = OVERSAMPLING * rank + LANES
        # The polish and the tests run in float64, which costs twice as much.
        basis = (
            block * (FIRST_GROWTH + second_growth(self.operator.n_points) + 2 * POLISH) / per_degree
            + 2 * ORTHOGONALISATION * block**2
        )
        tests = 2 * 2 * TESTS * self._degree(first, self.tol / 2**10)
        density = max(self.operator.symmetric.nnz / self.operator.n_points, 1.0)
        fine = self._degree(first - 1) * self._precision_cost(first - 1) + 4 * rank / density
        return float(basis + tests + self.n_measures * fine)

    def _degree(self, scale: int, tol: float | None = None) -> int:
        return len(power_coefficients(2**scale, self.operator.lowest, tol or self.tol)[0])

    def _precision_cost(self, scale: int) -> float:
        return 1.0 if rounding(2**scale, np.float32) <= self.tol / 2 else 2.0

    def _room(self) -> float:
        """Return what the products with a basis may add to its error, in the precision that ``tol`` allows."""
        single = rounding(ROUNDING_STEPS, np.float32)
        return single if single <= self.tol / 2 else rounding(ROUNDING_STEPS, np.float64)

    def _why_basis(self, max_scale: int) -> str:
        assert self.factors is not None
        rank = self.factors[0].rank
        vectors = "skeleton points" if self.chosen == "interpolative" else "eigenvectors"
        scales = f"2^{self.first} to 2^{max_scale}" if self.first < max_scale else f"2^{max_scale}"
        reason = f"{scales} steps come from {rank} {vectors}"
        if self.method != "auto":
            return f"as asked for; {reason}"
        share = self._cost(self.first, rank) / self._polynomial_cost(max_scale)
        if share > 1:
            return f"{reason}, which the search for max_scale needed"
        return f"{reason}, which costs {share:.0%} of polynomials alone for {self.n_measures:,} measures"

    def _why_polynomials(self, max_scale: int, cut: Cut | None) -> str:
        degree = self._degree(max_scale) - 1
        reason = f"polynomials of degree {degree} reach 2^{max_scale} steps"
        if max_scale == 0:
            return f"{reason}; a single step needs no basis"
        if cut is None:
            return f"{reason}; the operator's powers have too large a rank for a basis"
        if cut.cost <= cut.polynomial_cost:
            return f"{reason}, and a basis of {cut.rank} vectors would save little for {self.n_measures:,} measures"
        return (
            f"{reason}; for {self.n_measures:,} measures a basis of {cut.rank} vectors would cost "
            f"{cut.cost / cut.polynomial_cost:.1f} times as much"
        )
