"""What `DiffusionEMD.fit` works out: scales, the way to diffuse, precision, what the columns are, and the table.

`plan_diffusion` chooses the way to diffuse from the number of points, measures and scales, and from the ranks of the
powers. Costs are counted in products of the operator with one column. Polynomials alone cost, per measure, the degree
of the coarsest scale, which grows with the root of the time. A basis for the coarse scales costs a block of vectors
once, and per measure only the degree of the scale where it takes over. Where the rank is small and the scale large, the
basis wins; where thousands of eigenvalues lie close to 1, it never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._base.progress import SILENT, Progress
from heatmover._base.storage.record import Record
from heatmover._base.validation import check_matrix
from heatmover._base.words import counted
from heatmover.diffusion.exact import LONGEST, ExactDiffuser, WalkDiffuser, solver_rounding
from heatmover.diffusion.interpolative import interpolative_factors, nested_skeletons, prescribed_ranks
from heatmover.diffusion.lowrank import (
    BELOW,
    FIRST_GROWTH,
    OVERSAMPLING,
    ROUNDING_STEPS,
    TESTS,
    TESTS_OF_POWERS,
    DensityOfStates,
    Factor,
    LowRankDiffuser,
    density_of_states,
    second_growth,
    spectral_factors,
    threshold,
)
from heatmover.diffusion.operator import (
    LANES,
    Block,
    ChebyshevDiffuser,
    Diffuser,
    DiffusionOperator,
    check_single,
    power_coefficients,
    rounding,
)
from heatmover.diffusion.scales import COARSEST, ScaleChoice, choose_max_scale, choose_mixed_scale, finest_scale
from heatmover.embedding.definition import (
    FeatureTable,
    Layout,
    Regions,
    combination,
    embed,
    embed_transposed,
    measures_within,
    nested_regions,
    sampled_points,
    sampled_scales,
    scale_weights,
)
from heatmover.errors import InvalidInputError, in_python

__all__ = [
    "DEFAULT_DELTA",
    "LARGEST_EMBEDDING",
    "METHODS",
    "Compression",
    "DiffusionPlan",
    "ModelParameters",
    "Preparation",
    "PreparedDiffusion",
    "Workload",
    "centers_of_scales",
    "choose_compression",
    "fewest_regions",
    "kept_scales",
    "lay_out",
    "plan_diffusion",
    "prepare_diffusion",
    "regions_of_scales",
    "skeleton_tolerance",
]

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
    cost, first, rank = _cheapest_cut(work, states, max_scale)
    relative = cost / work.polynomial_cost(max_scale)
    reason = _why_polynomials(work, max_scale, rank, relative)
    plan = DiffusionPlan("chebyshev", reason, states=states, planned_for=known.planned_for)
    if np.isinf(cost) or not try_basis or (work.method == "auto" and relative > WORTHWHILE):
        return plan
    for scale in range(first, min(first + TRIALS, max_scale + 1)):
        basis = _build(work, states, scale, max_scale)
        if basis is not None:
            return replace(plan, basis=basis)
    reason = f"no basis of up to {MOST_VECTORS:,} vectors reaches tol at 2^{first} steps or somewhat later"
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


def _cheapest_cut(work: Workload, states: DensityOfStates, max_scale: int) -> tuple[float, int, int]:
    """Return what a basis costs, its first scale and its rank, where it costs least; infinity if none is small enough.

    Costs are in products with one column.
    """
    most = min(MOST_VECTORS - LANES, work.operator.n_points)
    cuts = []
    for first in range(1, max_scale + 1):
        rank = max(states.rank(first, work.tol / BELOW) - work.operator.n_components, 0)
        if OVERSAMPLING * rank <= most:
            cuts.append((work.basis_cost(first, rank), first, rank))
    return min(cuts, default=(np.inf, 0, 0))


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


def _why_polynomials(work: Workload, max_scale: int, rank: int, relative: float) -> str:
    reason = f"polynomials of degree {work.degree(max_scale) - 1} reach 2^{max_scale} steps"
    if max_scale == 0:
        return f"{reason}; a single step needs no basis"
    if np.isinf(relative):
        return f"{reason}; the operator's powers have too large a rank for a basis"
    measures, basis = counted(work.n_measures, "measure"), f"a basis of {counted(rank, 'vector')}"
    if relative <= 1:
        return f"{reason}, and {basis} would save little for {measures}"
    return f"{reason}; for {measures} {basis} would cost {relative:.1f} times as much"


# Single precision is for graphs whose stationary law is even to within this factor (of its root): the certificate
# weighs errors by it, and on a path whose weights fall by 1e-3 from edge to edge float32 lost 2e-4 of the mass.
EVEN = 1e-3

# Measures to plan for when none are known.
MANY = 1_000

# An embedding that would take more memory than this, 2 GiB, is made compact unless compress=False; a table of features
# may take as much.
LARGEST_EMBEDDING = 2 * 2**30
# The threshold of rank then used. On the swiss roll of 10,000 points it leaves 3,350 of 100,000 features, and distances
# within 0.2 % (median) of the full ones.
DEFAULT_DELTA = 0.1
# A density of rank r is determined by r numbers, but the L1 norm is not: |f| has kinks between them. With as many
# regions as the rank (15 at the coarsest scale of the swiss roll) Spearman fell by 0.004, with 64 by 0.0004, with 256
# by less than 0.0001. Smaller thresholds ask for more, so that the worst pair improves too: at 1e-4, on 6,000 points of
# the swiss roll, from 5.4 % to 1.8 %.
FEWEST_REGIONS = 256
# Skeletons of R_delta points are exact to some deltas: what they cut off is about delta, which the density of states
# blurs, and test vectors overstate the rest about three times. Ten deltas held on every graph of the tests.
SKELETON_TOL = 10.0


@final
@dataclass(frozen=True)
class ModelParameters:
    """The parameters of `DiffusionEMD` that decide what is computed, as they were when it was fitted."""

    method: str
    max_scale: float | str
    n_scales: int | None
    alpha: float
    tol: float
    compress: float | bool | None
    density: str
    norm: str
    dtype: str
    compress_by: str = "regions"
    weights: tuple[float, ...] | None = None

    @property
    def adjoint(self) -> bool:
        """Whether mass diffuses, not functions."""
        return self.density == "adjoint"

    @property
    def of_diffusion(self) -> ModelParameters:
        """The same with the defaults of all that only weighs and stacks: models that agree in it diffuse alike."""
        return replace(self, n_scales=None, alpha=0.5, norm="levels", weights=None)


@final
@dataclass(frozen=True)
class Compression:
    """Whether an embedding is compact.

    Attributes
    ----------
    delta
        Threshold of the numerical rank, or None for a full embedding.
    reason
        One plain sentence.
    by_itself
        Whether this was decided by size, not by the user.
    """

    delta: float | None
    reason: str
    by_itself: bool = False


@final
@dataclass(frozen=True, eq=False)
class Preparation:
    """Everything that any number of measures needs to be embedded.

    Attributes
    ----------
    choice
        The largest scale, and why.
    method, method_reason
        The way to diffuse, and why.
    compression
        Whether the embedding is compact, and why.
    layout
        What its columns are.
    precision
        Its type.
    diffuser
        Diffuses measures.
    table
        The features of all points, or None where measures are diffused.
    adjoint
        Whether mass diffuses, not functions.
    """

    choice: ScaleChoice
    method: str
    method_reason: str
    compression: Compression
    layout: Layout
    precision: np.dtype[Any]
    diffuser: Diffuser
    table: FeatureTable | None
    adjoint: bool

    def to_record(self) -> Record:
        """Return all of it as a record that a store can hold."""
        values = {
            "method": self.method,
            "method_reason": str(self.method_reason),
            "compress": None if self.compression.delta is None else float(self.compression.delta),
            "compress_reason": str(self.compression.reason),
            "compress_by_itself": self.compression.by_itself,
            "precision": self.precision.name,
            "adjoint": bool(self.adjoint),
        }
        parts = {
            "choice": self.choice.to_record(),
            "layout": self.layout.to_record(),
            "operator": self.diffuser.operator.to_record(),
            "diffuser": self.diffuser.to_record(),
        }
        return Record(values, parts=parts if self.table is None else {**parts, "table": self.table.to_record()})

    @classmethod
    def from_record(cls, record: Record, n_nodes: int) -> Preparation:
        """Return the preparation of a record for a graph of ``n_nodes`` nodes, or raise if it is none."""
        adjoint, layout = record.truth("adjoint"), Layout.from_record(record.part("layout"), n_nodes)
        operator = DiffusionOperator.from_record(record.part("operator"), n_nodes)
        compression = Compression(
            record.optional_number("compress"), record.text("compress_reason"), record.truth("compress_by_itself")
        )
        table = FeatureTable.from_record(record.part("table"), layout) if "table" in record.parts else None
        return cls(
            ScaleChoice.from_record(record.part("choice")),
            record.text("method"),
            record.text("method_reason"),
            compression,
            layout,
            np.dtype(record.text("precision", ("float32", "float64"))),
            _stored_diffuser(record.part("diffuser"), operator, adjoint=adjoint),
            table,
            adjoint,
        )

    def embed(self, rows: Any, *, n_threads: int, progress: Progress = SILENT) -> Block:
        """Embed checked measures ``(n_measures, n_points)`` -> ``(n_measures, n_features)``."""
        progress.stage("diffuse measures", rows.shape[0])
        if self.table is not None:
            return self.table.rows(rows, n_threads=n_threads, progress=progress)
        return embed(self.diffuser, rows, self.layout, dtype=self.precision, n_threads=n_threads, progress=progress)

    def embed_transposed(self, features: npt.ArrayLike, *, n_threads: int) -> Block:
        """Apply the transpose of `embed`: ``(n_rows, n_features)`` -> ``(n_rows, n_points)``, in its precision."""
        rows = check_matrix("features (n_rows, n_features)", features, dtype=self.precision)
        if rows.shape[1] != self.layout.n_features:
            raise InvalidInputError(counted(self.layout.n_features, "feature"), f"rows of width {rows.shape[1]}")
        if self.table is not None:
            return self.table.transposed(rows)
        return embed_transposed(self.diffuser, rows, self.layout, dtype=self.precision, n_threads=n_threads)

    def measures_within(self, memory: int, n_threads: int) -> int:
        """Return how many measures can be embedded at a time within ``memory`` bytes, or raise if not even one can."""
        if self.table is not None:
            return self.table.measures_within(memory)
        return measures_within(memory, self.layout, self.precision, n_threads)

    def describe(self) -> str:
        """Return what was chosen and why, in three lines."""
        kind = "full" if self.layout.regions is None else "compact"
        lookup = "" if self.table is None else "; looked up in a table, which is cheapest for many measures"
        return (
            f"method: {self.method} ({self.method_reason})\n"
            f"max_scale: {self.choice.max_scale} ({self.choice.reason})\n"
            f"embedding: {kind}, {counted(self.layout.n_features, 'feature')} ({self.compression.reason}{lookup})"
        )


@final
@dataclass(frozen=True, eq=False)
class PreparedDiffusion:
    """The part of a preparation that depends neither on the number of scales nor on their weights.

    Attributes
    ----------
    operator
        The diffusion operator, in float64.
    choice
        The largest scale, and why.
    plan
        How to diffuse, and why.
    skeletons
        The nested skeletons, if the embedding is to be sampled at them.
    precision
        Of the embedding.
    diffuser
        Diffuses measures.
    n_measures
        How many measures are to be embedded, or None for any number.
    rng
        For what is left to choose.
    """

    operator: DiffusionOperator
    choice: ScaleChoice
    plan: DiffusionPlan
    skeletons: list[Factor] | None
    precision: np.dtype[Any]
    diffuser: Diffuser
    n_measures: int | None
    rng: np.random.Generator


def prepare_diffusion(
    operator: DiffusionOperator,
    rows: Any,
    settings: ModelParameters,
    *,
    n_measures: int | None,
    rng: np.random.Generator,
    n_threads: int,
) -> PreparedDiffusion:
    """Do what is the same for all parameters with the same ``settings.of_diffusion``.

    Parameters
    ----------
    operator
        The diffusion operator, in float64.
    rows
        Measures ``(n, n_points)`` that say where mass lies.
    settings
        What was asked for.
    n_measures
        How many measures are to be embedded, or None for any number.
    rng, n_threads
        For all random choices; to use.
    """
    _check_method(operator, settings.method)
    chosen = "walk" if operator.is_uneven else settings.method
    _check_tolerance(operator, chosen, settings.tol, 0)  # before anything is paid for
    work = _workload(operator, settings, n_measures, rng, n_threads)
    choice, plan = _choose_scale(work, rows, settings.max_scale)
    _check_steps(chosen, choice.max_scale)
    skeletons = _skeletons_asked_for(work, choice.max_scale, settings)
    if skeletons is not None and settings.method == "interpolative":
        plan = _plan_on_skeletons(work, choice.max_scale, skeletons)
    else:
        plan = plan_diffusion(work, choice.max_scale, plan)
    coarsest = min(choice.max_scale, plan.first - 1)
    _check_tolerance(operator, plan.method, settings.tol, coarsest)
    precision = _choose_precision(work, plan, settings, coarsest)
    diffuser = _diffuser(work, plan, precision, adjoint=settings.adjoint)
    return PreparedDiffusion(operator, choice, plan, skeletons, precision, diffuser, n_measures, rng)


def lay_out(diffusion: PreparedDiffusion, settings: ModelParameters, *, n_threads: int) -> Preparation:
    """Decide what is compared: the scales that are kept, their weights, the columns and the table.

    Parameters
    ----------
    diffusion
        From `prepare_diffusion`; nothing of it changes but the state of its generator.
    settings, n_threads
        As in `prepare_diffusion`.
    """
    n_measures, operator, plan = diffusion.n_measures, diffusion.operator, diffusion.plan
    work = _workload(operator, settings, n_measures, diffusion.rng, n_threads)
    n_scales = settings.n_scales if settings.weights is None else len(settings.weights)
    scales = kept_scales(diffusion.choice.max_scale, n_scales, settings.alpha)
    shape = (n_measures or MANY, len(scales), operator.n_points)
    compression = choose_compression(settings.compress, shape, diffusion.precision.itemsize)
    layout = _layout(work, plan, scales, settings, compression.delta, diffusion.skeletons)
    return Preparation(
        diffusion.choice,
        plan.method,
        plan.reason,
        compression,
        layout,
        diffusion.precision,
        diffusion.diffuser,
        _table(work, plan, layout, settings, diffusion.precision, n_measures),
        settings.adjoint,
    )


def _workload(
    operator: DiffusionOperator,
    settings: ModelParameters,
    n_measures: int | None,
    rng: np.random.Generator,
    n_threads: int,
) -> Workload:
    return Workload(operator, settings.method, n_measures or MANY, settings.tol * operator.tightening, rng, n_threads)


def _choose_scale(work: Workload, rows: Any, max_scale: float | str) -> tuple[ScaleChoice, DiffusionPlan | None]:
    """Return the largest scale and, if the search for it needed one, the plan for the coarsest of all."""
    if max_scale != "auto":
        if 0 < float(max_scale) < 1:
            return choose_mixed_scale(work.operator, float(max_scale), work.rng, n_threads=work.n_threads), None
        return ScaleChoice(int(max_scale), np.empty(0), np.nan, "as asked for"), None
    plans: list[DiffusionPlan] = []

    def coarse() -> Diffuser | None:
        plans.append(plan_diffusion(work, COARSEST))
        fine = ChebyshevDiffuser(work.operator, adjoint=True, tol=work.tol)
        return None if plans[0].factors is None else LowRankDiffuser(fine, plans[0].factors)

    choice = choose_max_scale(work.operator, rows, work.rng, coarse=coarse, n_threads=work.n_threads)
    return choice, plans[0] if plans else None


def kept_scales(max_scale: int, n_scales: int | None, alpha: float) -> range:
    """Return the scales that are compared: the coarsest ``n_scales``, or all that carry weight."""
    everything = range(max_scale + 1)
    first = finest_scale(scale_weights(everything, alpha)) if n_scales is None else len(everything) - n_scales
    return everything[max(first, 0) :]


def _check_method(operator: DiffusionOperator, method: str) -> None:
    if operator.is_uneven and method != "auto":
        raise InvalidInputError(
            f"a graph that is even enough for method={method!r}",
            f"a stationary law whose root varies by {1 / operator.evenness:.0e} within a component",
            "method='auto' takes such a walk step by step; or remove the faintest points",
        )


def _check_tolerance(operator: DiffusionOperator, chosen: str, asked: float, coarsest: int) -> None:
    """Raise if rounding in float64 alone may exceed ``tol`` at the coarsest scale that does not come from a basis."""
    if chosen == "walk":
        least = float(WalkDiffuser(operator, adjoint=True).error_bound(range(coarsest, coarsest + 1))[0])
    elif chosen == "exact":
        least = solver_rounding(operator.n_points) * rounding(2**coarsest, np.float64) / operator.tightening
    else:
        # What is cut off takes at least half.
        least = 2 * rounding(2**coarsest, np.float64) / operator.tightening
    if asked < least:
        raise InvalidInputError(
            f"tol of at least {1.05 * least:.1e}, which float64 can keep for 2^{coarsest} steps",
            f"{asked:g}",
            "raise tol or lower max_scale" if coarsest else "raise tol",
        )


def _check_steps(chosen: str, max_scale: int) -> None:
    if chosen == "walk" and max_scale > LONGEST:
        raise InvalidInputError(
            f"max_scale of at most {LONGEST} on a graph so uneven that it is walked step by step",
            f"{max_scale}",
            f"{in_python('lower max_scale, or ')}remove the faintest points",
        )


def _choose_precision(work: Workload, plan: DiffusionPlan, settings: ModelParameters, coarsest: int) -> np.dtype[Any]:
    if settings.dtype == "auto":
        lost = rounding(2**coarsest, np.float32)
        single = lost <= work.tol / 2 and work.operator.evenness >= EVEN and plan.method != "walk"
        return np.dtype(np.float32 if single else np.float64)
    if settings.dtype == "float32" and plan.method != "exact":
        check_single(work.operator, coarsest, "use dtype='auto' or 'float64'")
    return np.dtype(settings.dtype)


def _skeletons_asked_for(work: Workload, max_scale: int, settings: ModelParameters) -> list[Factor] | None:
    """Return the nested skeletons if the embedding is to be sampled at them at any size, else None."""
    if settings.compress_by != "centers" or settings.compress is None or settings.compress is False:
        return None
    return _skeletons(work, max_scale, float(settings.compress))


def _skeletons(work: Workload, max_scale: int, delta: float) -> list[Factor]:
    """Return the nested skeletons of all scales whose rank is below the paper's gamma."""
    if work.operator.is_uneven:
        raise InvalidInputError(
            "a graph that is even enough for compress_by='centers'",
            f"a stationary law whose root varies by {1 / work.operator.evenness:.0e} within a component",
            "use compress_by='regions', or remove the faintest points",
        )
    ranks = prescribed_ranks(work.estimate_states(max_scale, delta), max_scale, delta)
    tol = skeleton_tolerance(delta) * work.operator.tightening
    return nested_skeletons(work.operator, ranks, tol=tol, rng=work.rng, n_threads=work.n_threads) if ranks else []


def _plan_on_skeletons(work: Workload, max_scale: int, skeletons: list[Factor]) -> DiffusionPlan:
    """Diffuse on the skeletons that the embedding is sampled at, the paper's Algorithm 4, where they keep ``tol``."""
    if not skeletons:
        reason = f"no power up to 2^{max_scale} has a rank below a tenth of the points, where skeletons begin"
        return DiffusionPlan("chebyshev", reason)
    bound = max(factor.bound for factor in skeletons)
    if bound > work.tol - work.room():
        return DiffusionPlan(
            "chebyshev", f"skeletons of {counted(skeletons[0].rank, 'point')} are certified to {bound:.1e} only"
        )
    scales = f"2^{skeletons[0].scale} to 2^{max_scale}"
    reason = f"as asked for; {scales} steps come from the {counted(skeletons[0].rank, 'center')} and fewer"
    return DiffusionPlan("interpolative", reason, factors=skeletons)


def _layout(
    work: Workload,
    plan: DiffusionPlan,
    scales: range,
    settings: ModelParameters,
    delta: float | None,
    skeletons: list[Factor] | None,
) -> Layout:
    matrix = combination(scales, alpha=settings.alpha, norm=settings.norm, weights=settings.weights)
    if delta is None:
        return Layout(scales, matrix, work.operator.n_points)
    if settings.compress_by == "centers":
        if skeletons is None:
            skeletons = _skeletons(work, scales[-1], delta)
        blocks = sampled_scales(scales, settings.norm)
        return Layout(scales, matrix, work.operator.n_points, centers_of_scales(work.operator, skeletons, blocks))
    states = work.estimate_states(scales[-1], delta) if plan.states is None else plan.states
    regions = regions_of_scales(work.operator, states, scales, delta, work.rng)
    return Layout(scales, matrix, work.operator.n_points, regions)


def _diffuser(work: Workload, plan: DiffusionPlan, precision: npt.DTypeLike, *, adjoint: bool) -> Diffuser:
    if plan.method == "exact":
        return ExactDiffuser(work.operator, adjoint=adjoint)
    if plan.method == "walk":
        return WalkDiffuser(work.operator, adjoint=adjoint)
    # Only one copy of the operator stays, in the precision that diffuses.
    kept = work.operator.astype(precision)
    fine = ChebyshevDiffuser(kept, adjoint=adjoint, tol=work.tol, dtype=precision)
    return fine if plan.method == "chebyshev" else LowRankDiffuser(fine, plan.factors or [])


def _stored_diffuser(record: Record, operator: DiffusionOperator, *, adjoint: bool) -> Diffuser:
    ways: dict[str, Callable[..., Diffuser]] = {
        "chebyshev": ChebyshevDiffuser.from_record,
        "exact": ExactDiffuser.from_record,
        "lowrank": LowRankDiffuser.from_record,
        "walk": WalkDiffuser.from_record,
    }
    return ways[record.text("kind", ways)](record, operator, adjoint=adjoint)


def _table(
    work: Workload,
    plan: DiffusionPlan,
    layout: Layout,
    settings: ModelParameters,
    precision: np.dtype[Any],
    n_measures: int | None,
) -> FeatureTable | None:
    """Look features up in a table where that costs less than diffusing the measures."""
    few = n_measures is not None and n_measures < layout.n_features
    size = layout.n_points * layout.n_features * precision.itemsize
    if layout.regions is None or few or size > LARGEST_EMBEDDING:
        return None
    transposed = _diffuser(work, plan, precision, adjoint=not settings.adjoint)
    return FeatureTable(transposed, layout, dtype=precision, n_threads=work.n_threads)


def choose_compression(compress: float | bool | None, shape: tuple[int, int, int], itemsize: int) -> Compression:
    """Decide from the wish of the user and the size of the full embedding.

    Parameters
    ----------
    compress
        A threshold, False for never, None for only if the embedding would be too large.
    shape
        ``(n_measures, n_scales, n_points)``.
    itemsize
        Bytes per number.
    """
    if compress is False:
        return Compression(None, "as asked for")
    if compress is not None:
        return Compression(float(compress), "as asked for")
    size = float(np.prod(np.asarray(shape, dtype=np.float64))) * itemsize
    full = f"the full embedding of {counted(shape[0], 'measure')}"
    if size <= LARGEST_EMBEDDING:
        return Compression(None, f"{full} takes {size / 1e9:.2g} GB, at most {LARGEST_EMBEDDING / 1e9:.2g} GB")
    reason = f"{full} would take {size / 1e9:.2g} GB, more than {LARGEST_EMBEDDING / 1e9:.2g} GB"
    return Compression(DEFAULT_DELTA, reason, by_itself=True)


def regions_of_scales(
    operator: DiffusionOperator, states: DensityOfStates, scales: range, delta: float, rng: np.random.Generator
) -> tuple[Regions, ...]:
    """Return the regions of every scale: as many as the rank of S^(2^scale) at ``delta``, and not too few."""
    counts = [max(states.rank(scale, delta), fewest_regions(delta)) for scale in scales]
    return tuple(nested_regions(operator, counts, rng))


def centers_of_scales(
    operator: DiffusionOperator, skeletons: Sequence[Factor], scales: Sequence[int]
) -> tuple[Regions, ...]:
    """Return the points compared at every scale: its skeleton, or all points at a scale that has none."""
    known = {factor.scale: factor.skeleton for factor in skeletons}
    everything = sampled_points(operator.n_points, np.arange(operator.n_points))
    sampled = {
        scale: sampled_points(operator.n_points, operator.order[rows])
        for scale, rows in known.items()
        if rows is not None
    }
    return tuple(sampled.get(scale, everything) for scale in scales)


def skeleton_tolerance(delta: float) -> float:
    """Return the tolerance that skeletons of R_delta points keep.

    Examples
    --------
    >>> skeleton_tolerance(1e-6)
    1e-05
    """
    return min(float(f"{SKELETON_TOL * delta:.12g}"), 0.5)


def fewest_regions(delta: float) -> int:
    """Return the least number of regions of a scale: 256 for thresholds down to 0.1, 512 at 1e-4.

    Examples
    --------
    >>> fewest_regions(0.1), fewest_regions(1e-4)
    (256, 512)
    """
    return round(FEWEST_REGIONS * float(np.sqrt(max(1.0, -np.log10(delta)))))
