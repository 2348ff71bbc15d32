"""Choose scales, method, precision, columns, table, then embed; for `DiffusionEMD`, `transport.calibration`; no files.

`plan_diffusion` chooses the diffusion method from the number of points, measures and scales, and from the ranks of the
powers. The unit of cost is one product of the operator with one column. Without a basis, each measure takes as many
products as the degree of the polynomial for the coarsest scale, which grows with the square root of the diffusion time.
A basis for the coarse scales has to be built once, which takes products with a block of vectors. Each measure then
takes only as many products as the degree of the polynomial for the scale where the basis takes over. A basis is cheaper
if the rank is small and the scale large. It is never cheaper if thousands of eigenvalues are close to 1.
"""

from __future__ import annotations

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
    Factor,
    LowRankDiffuser,
    second_growth,
    spectral_factors,
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
    threshold,
)
from heatmover.diffusion.ranks import DensityOfStates, density_of_states
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

METHODS = ("auto", "chebyshev", "spectral", "interpolative", "exact")

# Largest number of vectors of a basis. More vectors take more memory than the densities they replace, and dense linear
# algebra with them begins to cost more than products with the operator.
MOST_VECTORS = 2_000
# Up to this many products with one column, polynomials take less time than finding out whether a basis is cheaper.
CHEAP = 10_000
# "auto" uses a basis only if its estimated cost is at most this share of the cost of polynomials, because the estimate
# leaves out small costs.
WORTHWHILE = 0.8
# Coarsest scale for which ranks are estimated precisely. At coarser scales ranks are small, so precision would change
# no decision, and the cost of the estimate grows with the square root of the time.
FINELY = 11
# Number of consecutive scales at which building a basis is tried, beginning with the cheapest scale. The rank is only
# an estimate, and it halves from scale to scale.
TRIALS = 3
# Costs of a basis, fitted to swiss rolls. At 100,000 points (136 to 280 columns, one pass) the estimates were within 5%
# of the measured cost. At 10,000 points the estimates were up to 25% too low, and a second pass doubles the cost.
# Cost of a product in the filter relative to the cost of a product in a polynomial. A product in a polynomial is also
# added to the sums of all scales, so it costs as much as 1.7 (40,000 points) or 2 (10,000 points) products in the
# filter.
FILTERED = 0.55
# Cost of orthogonalization and Rayleigh-Ritz of a block, per pass and per squared number of columns, and the usual
# number of passes.
ORTHOGONALIZATION, PASSES = 0.11, 2
# Relative cost of a product with a test vector. It is above 1 because the product uses float64 and few vectors at a
# time.
TESTED = 1.65


@final
@dataclass(frozen=True, eq=False)
class Workload:
    """A diffusion to plan: operator, number of measures, tolerance, and the estimated cost of each method.

    The unit of cost is one product of the operator with one column.

    Attributes
    ----------
    operator
        The diffusion operator, in float64.
    method
        One of `METHODS`.
    n_measures
        Approximate number of measures to diffuse.
    tol
        Largest error of a power of any eigenvalue.
    rng
        Generator for the density of states and the basis.
    n_threads
        Number of threads.
    """

    operator: DiffusionOperator
    method: str
    n_measures: int
    tol: float
    rng: np.random.Generator
    n_threads: int

    def estimate_states(self, coarsest: int, delta: float) -> DensityOfStates:
        """Return the density of states, precise enough for scales up to ``coarsest`` at the threshold ``delta``."""
        return density_of_states(self.operator, self.rng, coarsest=coarsest, delta=delta, n_threads=self.n_threads)

    def degree(self, scale: int, tol: float | None = None) -> int:
        """Return the number of coefficients of the polynomial for ``2**scale`` steps."""
        return len(power_coefficients(2**scale, self.operator.lowest, tol or self.tol)[0])

    def polynomial_cost(self, max_scale: int) -> float:
        """Return the cost of diffusing with polynomials alone."""
        return self.n_measures * self.degree(max_scale) * self._precision_cost(max_scale)

    def basis_cost(self, first: int, rank: int) -> float:
        """Return the cost of diffusing with a basis of ``rank`` vectors from scale ``first`` on."""
        theta, lowest = threshold(first, self.tol / BELOW), self.operator.lowest
        per_degree = np.arccosh((2 - lowest - theta) / (theta - lowest))
        block = OVERSAMPLING * rank + LANES
        growth = FIRST_GROWTH + second_growth(self.operator.n_points)
        basis = block * FILTERED * growth / per_degree + PASSES * ORTHOGONALIZATION * block**2
        tests = TESTED * (TESTS + TESTS_OF_POWERS) * self.degree(first, self.tol / 2**10)
        density = max(self.operator.symmetric.nnz / self.operator.n_points, 1.0)
        fine = self.degree(first - 1) * self._precision_cost(first - 1) + 4 * rank / density
        return float(basis + tests + self.n_measures * fine)

    def room(self) -> float:
        """Return the rounding error that products with a basis may add, in the precision that ``tol`` allows."""
        single = rounding(ROUNDING_STEPS, np.float32)
        return single if single <= self.tol / 2 else rounding(ROUNDING_STEPS, np.float64)

    def _precision_cost(self, scale: int) -> float:
        return 1.0 if rounding(2**scale, np.float32) <= self.tol / 2 else 2.0


@final
@dataclass(frozen=True, eq=False)
class DiffusionPlan:
    """Chosen diffusion method and its reason, with the basis and the density of states computed for the choice.

    Attributes
    ----------
    method, reason
        ``"walk"`` (step-by-step diffusion) or one of `METHODS` other than ``"auto"``, and the reason for the choice.
    factors
        Coarse scales that are computed from a basis, finest first; None if no basis is used.
    states
        Density of states, or None if it was not needed.
    basis
        Basis that was built, or None. It is not used if its first scale is coarser than all scales of this plan.
    hopeless
        True if a basis would have been cheaper, but no basis within the limits reached the tolerance.
    """

    method: str
    reason: str
    factors: list[Factor] | None = None
    states: DensityOfStates | None = None
    basis: list[Factor] | None = None
    hopeless: bool = False

    @property
    def first(self) -> int:
        """First scale that is computed from a basis; larger than any scale if no basis is used."""
        return self.factors[0].scale if self.factors else 10**6


def plan_diffusion(work: Workload, max_scale: int, earlier: DiffusionPlan | None = None) -> DiffusionPlan:
    """Choose how to diffuse up to ``2**max_scale`` steps, and build a basis if the basis is worth its cost.

    The function changes nothing but the state of ``work.rng``.

    Parameters
    ----------
    work
        The diffusion to plan.
    max_scale
        The coarsest scale.
    earlier
        Plan for the same work up to a coarser scale. Its density of states and its basis are reused.

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
        return DiffusionPlan(
            "walk", "affinities vary so much that diffusion is accurate only if computed one step at a time"
        )
    if work.method in ("chebyshev", "exact"):
        return DiffusionPlan(work.method, "as requested")
    if earlier is None:
        plan = _decide(work, max_scale, None, try_basis=True)
    elif earlier.basis is None and not earlier.hopeless:
        plan = _decide(work, max_scale, earlier.states, try_basis=False)
    else:
        plan = earlier
    if plan.basis is None:
        return plan
    first = plan.basis[0].scale
    if first > max_scale:
        reason = f"max_scale is below {first}, the first scale at which a basis is accurate enough"
        return replace(plan, method="chebyshev", reason=reason, factors=None)
    method = "spectral" if work.method == "auto" else work.method
    return replace(plan, method=method, reason=_why_basis(work, max_scale, plan.basis[0]), factors=plan.basis)


def _decide(work: Workload, max_scale: int, states: DensityOfStates | None, *, try_basis: bool) -> DiffusionPlan:
    if work.method == "auto" and work.n_measures * work.degree(max_scale) <= CHEAP:
        degree = work.degree(max_scale) - 1
        reason = f"polynomials of degree {degree} reach 2^{max_scale} steps at little cost"
        return DiffusionPlan("chebyshev", reason, states=states)
    if states is None:
        states = work.estimate_states(min(max_scale, FINELY), work.tol / BELOW)
    cost, first, rank = _cheapest_cut(work, states, max_scale)
    relative = cost / work.polynomial_cost(max_scale)
    reason = _why_polynomials(work, max_scale, rank, relative)
    plan = DiffusionPlan("chebyshev", reason, states=states)
    if np.isinf(cost) or not try_basis or (work.method == "auto" and relative > WORTHWHILE):
        return plan
    for scale in range(first, min(first + TRIALS, max_scale + 1)):
        build = interpolative_factors if work.method == "interpolative" else spectral_factors
        basis = build(
            work.operator,
            scale,
            states.rank(scale, work.tol / BELOW) - work.operator.n_components,
            tol=work.tol - work.room(),
            rng=work.rng,
            last=max_scale,
            most=MOST_VECTORS,
            n_threads=work.n_threads,
        )
        if basis is not None:
            return replace(plan, basis=basis)
    reason = f"no basis of up to {MOST_VECTORS:,} vectors reaches tol at 2^{first} steps or the next scales"
    return replace(plan, reason=reason, hopeless=True)


def _cheapest_cut(work: Workload, states: DensityOfStates, max_scale: int) -> tuple[float, int, int]:
    """Return cost, first scale and rank of the cheapest basis; the cost is infinite if every basis is too large."""
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
    reason = f"{scales} steps are computed from {vectors}"
    if work.method != "auto":
        return f"as requested; {reason}"
    share = work.basis_cost(finest.scale, finest.rank) / work.polynomial_cost(max_scale)
    if share > 1:
        return f"{reason}, already computed to choose max_scale"
    return f"{reason}, at {share:.0%} of the cost of polynomials alone for {counted(work.n_measures, 'measure')}"


def _why_polynomials(work: Workload, max_scale: int, rank: int, relative: float) -> str:
    reason = f"polynomials of degree {work.degree(max_scale) - 1} reach 2^{max_scale} steps"
    if max_scale == 0:
        return f"{reason}; a single step needs no basis"
    if np.isinf(relative):
        return f"{reason}; the rank of the operator's powers is too large for a basis"
    measures, basis = counted(work.n_measures, "measure"), f"a basis of {counted(rank, 'vector')}"
    if relative <= 1:
        return f"{reason}, and {basis} would save little for {measures}"
    return f"{reason}; for {measures} {basis} would cost {relative:.1f} times as much"


# Diffusers by the names in their records.
DIFFUSERS: dict[str, Any] = {
    "chebyshev": ChebyshevDiffuser,
    "exact": ExactDiffuser,
    "lowrank": LowRankDiffuser,
    "walk": WalkDiffuser,
}

# Smallest evenness of an operator (`DiffusionOperator.evenness`) at which single precision is used. Certified errors
# are weighted by the stationary distribution, so in an uneven graph they permit a large loss of mass. On a path whose
# weights fall by a factor of 1e-3 from edge to edge, float32 lost a share of 2e-4 of the mass.
EVEN = 1e-3

# Number of measures to plan for if the true number is unknown.
MANY = 1_000

# An embedding larger than this (2 GiB) becomes compact unless compress=False. A table of features has the same limit.
LARGEST_EMBEDDING = 2 * 2**30
# Rank threshold of embeddings that are compressed because of their size. On the swiss roll of 10,000 points, this
# threshold keeps 3,350 of 100,000 features, and distances differ from the distances in the full embedding by 0.2%
# (median).
DEFAULT_DELTA = 0.1
# Smallest number of regions of a scale. The values at r centers determine a density of rank r, but not its L1 norm,
# because |f| has kinks between the centers. With as many regions as the rank (15 at the coarsest scale of the swiss
# roll) the Spearman correlation fell by 0.004, with 64 regions by 0.0004, with 256 regions by less than 0.0001. Smaller
# thresholds use more regions, to reduce the error of the worst pair too. With the threshold 1e-4, on 6,000 points of
# the swiss roll, more regions reduced that error from 5.4% to 1.8%.
FEWEST_REGIONS = 256
# Tolerance of skeletons of R_delta points, in units of delta. The error of a skeleton is about delta, but R_delta is
# only estimated from the density of states, and test vectors overestimate the error about threefold. Skeletons met a
# tolerance of ten deltas on every graph of the tests.
SKELETON_TOL = 10.0


@final
@dataclass(frozen=True)
class ModelParameters:
    """Parameters of `DiffusionEMD` that determine its results, with their values at the time of the fit."""

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
        """True if mass diffuses, False if functions diffuse."""
        return self.density == "adjoint"

    @property
    def of_diffusion(self) -> ModelParameters:
        """Copy with defaults for parameters that only combine densities; models with equal copies share densities."""
        return replace(self, n_scales=None, alpha=0.5, norm="levels", weights=None)


@final
@dataclass(frozen=True)
class Compression:
    """Choice of a compact or a full embedding.

    Attributes
    ----------
    delta
        Threshold of the numerical rank, or None for a full embedding.
    reason
        Reason for the choice, in plain words.
    by_itself
        True if the embedding was compressed because of its size, not at the user's request.
    """

    delta: float | None
    reason: str
    by_itself: bool = False


@final
@dataclass(frozen=True, eq=False)
class Preparation:
    """Everything needed to embed any number of measures.

    Attributes
    ----------
    choice
        The largest scale and the reason for it.
    method, method_reason
        The diffusion method and the reason for it.
    compression
        Choice of a compact or a full embedding, and the reason for it.
    layout
        Columns of the embedding.
    precision
        Data type of the embedding.
    diffuser
        Diffuser of the measures.
    table
        Features of all points, or None if measures are diffused.
    adjoint
        True if mass diffuses, False if functions diffuse.
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
        """Return the preparation as a record that can be saved to disk."""
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
        """Return the preparation stored in a record, or raise an error if it is invalid for ``n_nodes`` nodes."""
        adjoint, layout = record.truth("adjoint"), Layout.from_record(record.part("layout"), n_nodes)
        operator = DiffusionOperator.from_record(record.part("operator"), n_nodes)
        compression = Compression(
            record.optional_number("compress"), record.text("compress_reason"), record.truth("compress_by_itself")
        )
        table = FeatureTable.from_record(record.part("table"), layout) if "table" in record.parts else None
        stored = record.part("diffuser")
        diffuser = DIFFUSERS[stored.text("kind", DIFFUSERS)].from_record(stored, operator, adjoint=adjoint)
        return cls(
            ScaleChoice.from_record(record.part("choice")),
            record.text("method"),
            record.text("method_reason"),
            compression,
            layout,
            np.dtype(record.text("precision", ("float32", "float64"))),
            diffuser,
            table,
            adjoint,
        )

    def embed(self, rows: Any, *, n_threads: int, progress: Progress = SILENT) -> Block:
        """Embed checked measures ``(n_measures, n_points)`` as rows ``(n_measures, n_features)``."""
        progress.stage("diffuse measures", rows.shape[0])
        if self.table is not None:
            return self.table.rows(rows, n_threads=n_threads, progress=progress)
        return embed(self.diffuser, rows, self.layout, dtype=self.precision, n_threads=n_threads, progress=progress)

    def embed_transposed(self, features: npt.ArrayLike, *, n_threads: int) -> Block:
        """Apply the transpose of `embed`: map ``(n_rows, n_features)`` to ``(n_rows, n_points)``, in `precision`."""
        rows = check_matrix("features (n_rows, n_features)", features, dtype=self.precision)
        if rows.shape[1] != self.layout.n_features:
            raise InvalidInputError(counted(self.layout.n_features, "feature"), f"rows of width {rows.shape[1]}")
        if self.table is not None:
            return self.table.transposed(rows)
        return embed_transposed(self.diffuser, rows, self.layout, dtype=self.precision, n_threads=n_threads)

    def measures_within(self, memory: int, n_threads: int) -> int:
        """Return the number of measures that can be embedded at once within ``memory`` bytes; raise an error if 0."""
        if self.table is not None:
            return self.table.measures_within(memory)
        return measures_within(memory, self.layout, self.precision, n_threads)

    def describe(self) -> str:
        """Return three lines that describe the choices and their reasons."""
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
    """The part of a preparation that is independent of the number and the weights of scales.

    Attributes
    ----------
    operator
        The diffusion operator, in float64.
    choice
        The largest scale and the reason for it.
    plan
        The diffusion method and the reason for it.
    skeletons
        Nested skeletons at which the embedding is sampled, or None.
    precision
        Data type of the embedding.
    diffuser
        Diffuser of the measures.
    n_measures
        Number of measures to embed, or None for any number.
    rng
        Generator for the remaining random draws.
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
    """Prepare everything that depends only on ``settings.of_diffusion``.

    Parameters
    ----------
    operator
        The diffusion operator, in float64.
    rows
        Measures ``(n, n_points)`` from which scales are chosen.
    settings
        Parameters of the estimator.
    n_measures
        Number of measures to embed, or None for any number.
    rng, n_threads
        Generator of all random choices, and number of threads.
    """
    if operator.is_uneven and settings.method != "auto":
        raise InvalidInputError(
            f"a graph whose affinities vary less, for method={settings.method!r}",
            "a stationary distribution whose square root varies by a factor of "
            f"{1 / operator.evenness:.0e} within a component",
            "use method='auto', which then computes one step at a time, or remove the points with the smallest "
            "affinities",
        )
    chosen = "walk" if operator.is_uneven else settings.method
    _check_tolerance(operator, chosen, settings.tol, 0)  # before any expensive step
    work = _workload(operator, settings, n_measures, rng, n_threads)
    choice, plan = _choose_scale(work, rows, settings.max_scale)
    if chosen == "walk" and choice.max_scale > LONGEST:
        raise InvalidInputError(
            f"max_scale of at most {LONGEST}, because affinities vary so much that diffusion must be computed one step "
            "at a time",
            f"{choice.max_scale}",
            f"{in_python('lower max_scale, or ')}remove the points with the smallest affinities",
        )
    skeletons = None
    if settings.compress_by == "centers" and not (settings.compress is None or settings.compress is False):
        skeletons = _skeletons(work, choice.max_scale, float(settings.compress))
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
    """Choose the scales to compare, their weights, the columns and the table.

    Parameters
    ----------
    diffusion
        Result of `prepare_diffusion`; only the state of its generator changes.
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
    table = None  # unless lookup costs less than diffusing the measures
    few = n_measures is not None and n_measures < layout.n_features
    size = layout.n_points * layout.n_features * diffusion.precision.itemsize
    if layout.regions is not None and not few and size <= LARGEST_EMBEDDING:
        transposed = _diffuser(work, plan, diffusion.precision, adjoint=not settings.adjoint)
        table = FeatureTable(transposed, layout, dtype=diffusion.precision, n_threads=work.n_threads)
    return Preparation(
        diffusion.choice,
        plan.method,
        plan.reason,
        compression,
        layout,
        diffusion.precision,
        diffusion.diffuser,
        table,
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
    """Return the largest scale and, if the search for it needed a plan, the plan for the coarsest possible scale."""
    if max_scale != "auto":
        if 0 < float(max_scale) < 1:
            return choose_mixed_scale(work.operator, float(max_scale), work.rng, n_threads=work.n_threads), None
        return ScaleChoice(int(max_scale), np.empty(0), np.nan, "as requested"), None
    plans: list[DiffusionPlan] = []

    def coarse() -> Diffuser | None:
        plans.append(plan_diffusion(work, COARSEST))
        fine = ChebyshevDiffuser(work.operator, adjoint=True, tol=work.tol)
        return None if plans[0].factors is None else LowRankDiffuser(fine, plans[0].factors)

    choice = choose_max_scale(work.operator, rows, work.rng, coarse=coarse, n_threads=work.n_threads)
    return choice, plans[0] if plans else None


def kept_scales(max_scale: int, n_scales: int | None, alpha: float) -> range:
    """Return the scales to compare: the coarsest ``n_scales``, or all scales with noticeable weight."""
    everything = range(max_scale + 1)
    first = finest_scale(scale_weights(everything, alpha)) if n_scales is None else len(everything) - n_scales
    return everything[max(first, 0) :]


def _check_tolerance(operator: DiffusionOperator, chosen: str, tol: float, coarsest: int) -> None:
    """Raise an error if float64 rounding may exceed ``tol`` at the coarsest scale that needs no basis."""
    if chosen == "walk":
        least = float(WalkDiffuser(operator, adjoint=True).error_bound(range(coarsest, coarsest + 1))[0])
    elif chosen == "exact":
        least = solver_rounding(operator.n_points) * rounding(2**coarsest, np.float64) / operator.tightening
    else:
        # The truncated terms use up at least half of the tolerance.
        least = 2 * rounding(2**coarsest, np.float64) / operator.tightening
    if tol < least:
        raise InvalidInputError(
            f"tol of at least {1.05 * least:.1e}, the accuracy of float64 after 2^{coarsest} steps",
            f"{tol:g}",
            "raise tol or lower max_scale" if coarsest else "raise tol",
        )


def _choose_precision(work: Workload, plan: DiffusionPlan, settings: ModelParameters, coarsest: int) -> np.dtype[Any]:
    if settings.dtype == "auto":
        lost = rounding(2**coarsest, np.float32)
        single = lost <= work.tol / 2 and work.operator.evenness >= EVEN and plan.method != "walk"
        return np.dtype(np.float32 if single else np.float64)
    if settings.dtype == "float32" and plan.method != "exact":
        check_single(work.operator, coarsest, "use dtype='auto' or 'float64'")
    return np.dtype(settings.dtype)


def _skeletons(work: Workload, max_scale: int, delta: float) -> list[Factor]:
    """Return the nested skeletons of all scales whose rank is below the paper's threshold gamma."""
    if work.operator.is_uneven:
        raise InvalidInputError(
            "a graph whose affinities vary less, for compress_by='centers'",
            "a stationary distribution whose square root varies by a factor of "
            f"{1 / work.operator.evenness:.0e} within a component",
            "use compress_by='regions', or remove the points with the smallest affinities",
        )
    ranks = prescribed_ranks(work.estimate_states(max_scale, delta), max_scale, delta)
    tol = skeleton_tolerance(delta) * work.operator.tightening
    return nested_skeletons(work.operator, ranks, tol=tol, rng=work.rng, n_threads=work.n_threads) if ranks else []


def _plan_on_skeletons(work: Workload, max_scale: int, skeletons: list[Factor]) -> DiffusionPlan:
    """Plan to diffuse on the skeletons of the embedding (the paper's Algorithm 4) if their error is within ``tol``."""
    if not skeletons:
        reason = (
            f"skeletons need a power of rank below 10% of the points, but no power up to 2^{max_scale} has such a rank"
        )
        return DiffusionPlan("chebyshev", reason)
    bound = max(factor.bound for factor in skeletons)
    if bound > work.tol - work.room():
        return DiffusionPlan(
            "chebyshev",
            f"the certified error of skeletons of {counted(skeletons[0].rank, 'point')}, {bound:.1e}, exceeds tol",
        )
    scales = f"2^{skeletons[0].scale} to 2^{max_scale}"
    reason = f"as requested; {scales} steps are computed from at most {counted(skeletons[0].rank, 'center')}"
    return DiffusionPlan("interpolative", reason, factors=skeletons)


def _layout(
    work: Workload,
    plan: DiffusionPlan,
    scales: range,
    settings: ModelParameters,
    delta: float | None,
    skeletons: list[Factor] | None,
) -> Layout:
    n_points, order, regions = work.operator.n_points, work.operator.order, None
    if delta is not None and settings.compress_by == "centers":
        if skeletons is None:
            skeletons = _skeletons(work, scales[-1], delta)
        # A scale without a skeleton is sampled at all points.
        everything = sampled_points(n_points, np.arange(n_points))
        sampled = {
            factor.scale: sampled_points(n_points, order[factor.skeleton])
            for factor in skeletons
            if factor.skeleton is not None
        }
        regions = tuple(sampled.get(scale, everything) for scale in sampled_scales(scales, settings.norm))
    elif delta is not None:
        states = work.estimate_states(scales[-1], delta) if plan.states is None else plan.states
        regions = regions_of_scales(work.operator, states, scales, delta, work.rng)
    matrix = combination(scales, alpha=settings.alpha, norm=settings.norm, weights=settings.weights)
    return Layout(scales, matrix, n_points, regions)


def _diffuser(work: Workload, plan: DiffusionPlan, precision: npt.DTypeLike, *, adjoint: bool) -> Diffuser:
    if plan.method == "exact":
        return ExactDiffuser(work.operator, adjoint=adjoint)
    if plan.method == "walk":
        return WalkDiffuser(work.operator, adjoint=adjoint)
    # Store only one copy of the operator, in the precision of the diffusion.
    kept = work.operator.astype(precision)
    fine = ChebyshevDiffuser(kept, adjoint=adjoint, tol=work.tol, dtype=precision)
    return fine if plan.method == "chebyshev" else LowRankDiffuser(fine, plan.factors or [])


def choose_compression(compress: float | bool | None, shape: tuple[int, int, int], itemsize: int) -> Compression:
    """Choose a compact or a full embedding from ``compress`` and the size of the full embedding.

    Parameters
    ----------
    compress
        Rank threshold; False for a full embedding; None to compress only if the full embedding would be too large.
    shape
        ``(n_measures, n_scales, n_points)``.
    itemsize
        Number of bytes per value.
    """
    if compress is False:
        return Compression(None, "as requested")
    if compress is not None:
        return Compression(float(compress), "as requested")
    size = float(np.prod(np.asarray(shape, dtype=np.float64))) * itemsize
    full = f"the full embedding of {counted(shape[0], 'measure')}"
    if size <= LARGEST_EMBEDDING:
        return Compression(
            None, f"{full} takes {size / 1e9:.2g} GB, within the limit of {LARGEST_EMBEDDING / 1e9:.2g} GB"
        )
    reason = f"{full} would take {size / 1e9:.2g} GB, above the limit of {LARGEST_EMBEDDING / 1e9:.2g} GB"
    return Compression(DEFAULT_DELTA, reason, by_itself=True)


def regions_of_scales(
    operator: DiffusionOperator, states: DensityOfStates, scales: range, delta: float, rng: np.random.Generator
) -> tuple[Regions, ...]:
    """Return the regions of every scale: as many as the rank of S^(2^scale) at ``delta``, at least `fewest_regions`."""
    counts = [max(states.rank(scale, delta), fewest_regions(delta)) for scale in scales]
    return tuple(nested_regions(operator, counts, rng))


def skeleton_tolerance(delta: float) -> float:
    """Return the tolerance that skeletons of R_delta points can meet.

    Examples
    --------
    >>> skeleton_tolerance(1e-6)
    1e-05
    """
    return min(float(f"{SKELETON_TOL * delta:.12g}"), 0.5)


def fewest_regions(delta: float) -> int:
    """Return the smallest number of regions of a scale: 256 for thresholds down to 0.1, 512 at 1e-4.

    Examples
    --------
    >>> fewest_regions(0.1), fewest_regions(1e-4)
    (256, 512)
    """
    return round(FEWEST_REGIONS * float(np.sqrt(max(1.0, -np.log10(delta)))))
