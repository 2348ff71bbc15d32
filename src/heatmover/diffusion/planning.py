"""Which way to diffuse: chosen from the number of points, measures and scales, and from the ranks of the powers.

Costs are counted in products of the operator with one column. Polynomials alone cost, per measure, the degree of the
coarsest scale, which grows with the root of the time. A basis for the coarse scales costs a block of vectors once, and
per measure only the degree of the scale where it takes over. Where the rank is small and the scale large, the basis
wins; where thousands of eigenvalues lie close to 1, it never does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from heatmover._base.words import counted
from heatmover.diffusion.chebyshev import power_coefficients, rounding
from heatmover.diffusion.interpolative import interpolative_factors
from heatmover.diffusion.lowrank import ROUNDING_STEPS, DensityOfStates, Factor, density_of_states, threshold
from heatmover.diffusion.operator import LANES, DiffusionOperator
from heatmover.diffusion.spectral import (
    BELOW,
    FIRST_GROWTH,
    OVERSAMPLING,
    TESTS,
    TESTS_OF_POWERS,
    second_growth,
    spectral_factors,
)

__all__ = ["METHODS", "Cut", "DiffusionPlan", "Workload", "plan_diffusion"]

METHODS = ("auto", "chebyshev", "spectral", "interpolative", "exact")

# A basis of more vectors than this takes more memory than the densities it saves, and its small dense problems begin to
# cost more than products with the operator.
MOST_VECTORS = 2_000
# Up to this many products with one column, polynomials are done before the ranks are known well enough to do better.
CHEAP = 10_000
# A basis must save this share of the cost of polynomials before "auto" uses it: the count leaves out small things.
WORTHWHILE = 0.8
# Beyond this scale ranks are small, and an exact one would change no decision; the estimate costs the root of the time.
FINELY = 11
# Scales at which a basis is tried, from the cheapest on: the rank is an estimate, and halves with each.
TRIALS = 3
# What a basis costs, fitted to swiss rolls. At 100,000 points, 136 to 280 columns, one pass, these numbers are within a
# twentieth of what it took; at 10,000 points they were up to a quarter too low, and a second pass doubles the cost.
# A product in the filter costs so much of one in a polynomial, which is also added to the sums of all scales: 1.7 and 2
# products of a filter on 40,000 and 10,000 points.
FILTERED = 0.55
# Orthogonalisation and Rayleigh-Ritz of a block, per squared column and pass; two passes are the usual number.
ORTHOGONALISATION, PASSES = 0.11, 2
# A product with a test vector: in float64, and few at a time.
TESTED = 1.65


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
@dataclass(frozen=True, eq=False)
class Workload:
    """What is to be diffused and how exactly; knows what each way would cost, in products with one column.

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
    """

    operator: DiffusionOperator
    method: str
    n_measures: int
    tol: float
    rng: np.random.Generator
    n_threads: int

    def estimate_states(self, coarsest: int, delta: float) -> DensityOfStates:
        """Return the density of states, fine enough for scales up to ``coarsest`` at this threshold."""
        return density_of_states(self.operator, self.rng, coarsest=coarsest, delta=delta, n_threads=self.n_threads)

    def degree(self, scale: int, tol: float | None = None) -> int:
        """Return the number of coefficients of the polynomial for ``2**scale`` steps."""
        return len(power_coefficients(2**scale, self.operator.lowest, tol or self.tol)[0])

    def polynomial_cost(self, max_scale: int) -> float:
        """Return what polynomials alone cost."""
        return self.n_measures * self.degree(max_scale) * self._precision_cost(max_scale)

    def basis_cost(self, first: int, rank: int) -> float:
        """Return what a basis of ``rank`` vectors costs that takes over at scale ``first``."""
        theta, lowest = threshold(first, self.tol / BELOW), self.operator.lowest
        per_degree = np.arccosh((2 - lowest - theta) / (theta - lowest))
        block = OVERSAMPLING * rank + LANES
        growth = FIRST_GROWTH + second_growth(self.operator.n_points)
        basis = block * FILTERED * growth / per_degree + PASSES * ORTHOGONALISATION * block**2
        tests = TESTED * (TESTS + TESTS_OF_POWERS) * self.degree(first, self.tol / 2**10)
        density = max(self.operator.symmetric.nnz / self.operator.n_points, 1.0)
        fine = self.degree(first - 1) * self._precision_cost(first - 1) + 4 * rank / density
        return float(basis + tests + self.n_measures * fine)

    def room(self) -> float:
        """Return what the products with a basis may add to its error, in the precision that ``tol`` allows."""
        single = rounding(ROUNDING_STEPS, np.float32)
        return single if single <= self.tol / 2 else rounding(ROUNDING_STEPS, np.float64)

    def _precision_cost(self, scale: int) -> float:
        return 1.0 if rounding(2**scale, np.float32) <= self.tol / 2 else 2.0


@final
@dataclass(frozen=True, eq=False)
class DiffusionPlan:
    """How to diffuse, and why; it also holds what was paid for on the way.

    Attributes
    ----------
    method, reason
        ``"walk"`` or one of `METHODS` other than ``"auto"``, and why, in words.
    factors
        The coarse scales that come from a basis, finest first; None where there is none or it is not used.
    states
        The density of states, if it was needed.
    basis
        The basis that was built, used or not: it may begin beyond the scales that this plan is for.
    planned_for
        The coarsest scale for which a basis was considered.
    hopeless
        Whether a basis would pay, but none was found.
    """

    method: str
    reason: str
    factors: list[Factor] | None = None
    states: DensityOfStates | None = None
    basis: list[Factor] | None = None
    planned_for: int = -1
    hopeless: bool = False

    @property
    def first(self) -> int:
        """The first scale computed from a basis; beyond all scales if none is used."""
        return self.factors[0].scale if self.factors else 10**6


def plan_diffusion(work: Workload, max_scale: int, earlier: DiffusionPlan | None = None) -> DiffusionPlan:
    """Decide how to diffuse up to ``2**max_scale`` steps, and build the basis if one is worth its cost.

    Nothing changes but the state of ``work.rng``.

    Parameters
    ----------
    work
        What is to be diffused.
    max_scale
        The coarsest scale.
    earlier
        A plan for the same work and other scales: what it paid for is not paid again, and a basis that was built for
        coarser scales serves finer ones too.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((32, 32)))
    >>> work = Workload(operator, "auto", 1000, 1e-3, np.random.default_rng(0), n_threads=1)
    >>> plan_diffusion(work, 3).reason
    'polynomials of degree 6 reach 2^3 steps at little cost'
    >>> plan_diffusion(work, 16).method
    'spectral'
    """
    if work.operator.is_uneven:
        return DiffusionPlan("walk", "affinities so uneven that only the walk itself, step by step, keeps its digits")
    if work.method in ("chebyshev", "exact"):
        return DiffusionPlan(work.method, "as asked for")
    plan = DiffusionPlan("chebyshev", "as asked for") if earlier is None else earlier
    if max_scale > plan.planned_for:
        plan = replace(_decide(work, max_scale, plan, try_basis=True), planned_for=max_scale)
    elif plan.basis is None and not plan.hopeless:
        plan = _decide(work, max_scale, plan, try_basis=False)
    if plan.basis is None:
        return plan
    first = plan.basis[0].scale
    if first > max_scale:
        reason = f"two points mix before the basis takes over at 2^{first}"
        return replace(plan, method="chebyshev", reason=reason, factors=None)
    method = "spectral" if work.method == "auto" else work.method
    return replace(plan, method=method, reason=_why_basis(work, max_scale, plan.basis[0]), factors=plan.basis)


def _decide(work: Workload, max_scale: int, known: DiffusionPlan, *, try_basis: bool) -> DiffusionPlan:
    if work.method == "auto" and work.n_measures * work.degree(max_scale) <= CHEAP:
        degree = work.degree(max_scale) - 1
        reason = f"polynomials of degree {degree} reach 2^{max_scale} steps at little cost"
        return replace(known, method="chebyshev", reason=reason, factors=None)
    states = known.states
    if states is None:
        states = work.estimate_states(min(max_scale, FINELY), work.tol / BELOW)
    cut = _cheapest_cut(work, states, max_scale)
    reason = _why_polynomials(work, max_scale, cut)
    plan = DiffusionPlan("chebyshev", reason, states=states, planned_for=known.planned_for)
    if cut is None or not try_basis or (work.method == "auto" and cut.cost > WORTHWHILE * cut.polynomial_cost):
        return plan
    for first in range(cut.first, min(cut.first + TRIALS, max_scale + 1)):
        basis = _build(work, states, first, max_scale)
        if basis is not None:
            return replace(plan, basis=basis)
    reason = f"no basis of up to {MOST_VECTORS:,} vectors reaches tol at 2^{cut.first} steps or somewhat later"
    return replace(plan, reason=reason, hopeless=True)


def _build(work: Workload, states: DensityOfStates, first: int, last: int) -> list[Factor] | None:
    build = interpolative_factors if work.method == "interpolative" else spectral_factors
    return build(
        work.operator,
        first,
        states.rank(first, work.tol / BELOW) - work.operator.n_components,
        tol=work.tol - work.room(),
        rng=work.rng,
        last=last,
        most=MOST_VECTORS,
        n_threads=work.n_threads,
    )


def _cheapest_cut(work: Workload, states: DensityOfStates, max_scale: int) -> Cut | None:
    """Return the scale where a basis of allowed size costs least, or None."""
    most = min(MOST_VECTORS - LANES, work.operator.n_points)
    alone = work.polynomial_cost(max_scale)
    cuts = []
    for first in range(1, max_scale + 1):
        rank = max(states.rank(first, work.tol / BELOW) - work.operator.n_components, 0)
        if OVERSAMPLING * rank <= most:
            cuts.append(Cut(first, rank, work.basis_cost(first, rank), alone))
    return min(cuts, key=lambda cut: cut.cost, default=None)


def _why_basis(work: Workload, max_scale: int, finest: Factor) -> str:
    vectors = counted(finest.rank, "skeleton point" if work.method == "interpolative" else "eigenvector")
    scales = f"2^{finest.scale} to 2^{max_scale}" if finest.scale < max_scale else f"2^{max_scale}"
    reason = f"{scales} steps come from {vectors}"
    if work.method != "auto":
        return f"as asked for; {reason}"
    share = work.basis_cost(finest.scale, finest.rank) / work.polynomial_cost(max_scale)
    if share > 1:
        return f"{reason}, which the search for max_scale needed"
    return f"{reason}, which costs {share:.0%} of polynomials alone for {counted(work.n_measures, 'measure')}"


def _why_polynomials(work: Workload, max_scale: int, cut: Cut | None) -> str:
    reason = f"polynomials of degree {work.degree(max_scale) - 1} reach 2^{max_scale} steps"
    if max_scale == 0:
        return f"{reason}; a single step needs no basis"
    if cut is None:
        return f"{reason}; the operator's powers have too large a rank for a basis"
    if cut.cost <= cut.polynomial_cost:
        return (
            f"{reason}, and a basis of {counted(cut.rank, 'vector')} would save little for "
            f"{counted(work.n_measures, 'measure')}"
        )
    return (
        f"{reason}; for {counted(work.n_measures, 'measure')} a basis of {counted(cut.rank, 'vector')} would cost "
        f"{cut.cost / cut.polynomial_cost:.1f} times as much"
    )
