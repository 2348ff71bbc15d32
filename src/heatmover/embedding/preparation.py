"""What `DiffusionEMD.fit` works out: scales, the way to diffuse, precision, what the columns are, and the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import Progress
from heatmover._validation import check_matrix
from heatmover.diffusion.base import Block, Diffuser
from heatmover.diffusion.chebyshev import ChebyshevDiffuser, check_single, rounding
from heatmover.diffusion.choice import COARSEST, choose_max_scale
from heatmover.diffusion.exact import ExactDiffuser, solver_rounding
from heatmover.diffusion.lowrank import LowRankDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.planning import Planner
from heatmover.diffusion.scales import ScaleChoice, finest_scale
from heatmover.diffusion.walk import LONGEST, WalkDiffuser
from heatmover.embedding.compression import Compression, cells_of_scales, choose_compression
from heatmover.embedding.definition import Layout, combination, embed, embed_transposed, measures_within, scale_weights
from heatmover.embedding.table import FeatureTable
from heatmover.errors import InvalidInputError

__all__ = ["Preparation", "Settings", "prepare"]

# Single precision is for graphs whose stationary law is even to within this factor (of its root): the certificate
# weighs errors by it, and on a path whose weights fall by 1e-3 from edge to edge float32 lost 2e-4 of the mass.
EVEN = 1e-3

# Measures to plan for when none are known.
MANY = 1_000
# A table of features may take this much memory.
LARGEST_TABLE = 2 * 2**30


@final
@dataclass(frozen=True)
class Settings:
    """The parameters of `DiffusionEMD` that decide what is computed, as they were when it was fitted."""

    method: str
    max_scale: int | str
    n_scales: int | None
    alpha: float
    tol: float
    compress: float | bool | None
    density: str
    norm: str
    dtype: str

    @property
    def adjoint(self) -> bool:
        """Whether mass diffuses, not functions."""
        return self.density == "adjoint"


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
    """

    choice: ScaleChoice
    method: str
    method_reason: str
    compression: Compression
    layout: Layout
    precision: np.dtype[Any]
    diffuser: Diffuser
    table: FeatureTable | None

    def embed(self, rows: Any, *, n_threads: int, progress: Progress) -> Block:
        """Embed checked measures ``(n_measures, n_points)`` -> ``(n_measures, n_features)``."""
        progress.stage("diffuse measures", rows.shape[0])
        if self.table is not None:
            return self.table.rows(rows, n_threads=n_threads, progress=progress)
        return embed(self.diffuser, rows, self.layout, dtype=self.precision, n_threads=n_threads, progress=progress)

    def embed_transposed(self, features: npt.ArrayLike, *, n_threads: int) -> Block:
        """Apply the transpose of `embed`: ``(n_rows, n_features)`` -> ``(n_rows, n_points)``, in its precision."""
        rows = check_matrix("features (n_rows, n_features)", features, dtype=self.precision)
        if rows.shape[1] != self.layout.n_features:
            raise InvalidInputError(f"{self.layout.n_features} features", f"rows of width {rows.shape[1]}")
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
        kind = "full" if self.layout.cells is None else "compact"
        lookup = "" if self.table is None else "; looked up in a table, which is cheapest for many measures"
        return (
            f"method: {self.method} ({self.method_reason})\n"
            f"max_scale: {self.choice.max_scale} ({self.choice.reason})\n"
            f"embedding: {kind}, {self.layout.n_features:,} features ({self.compression.reason}{lookup})"
        )


def prepare(
    operator: DiffusionOperator,
    rows: Any,
    settings: Settings,
    *,
    n_measures: int | None,
    rng: np.random.Generator,
    n_threads: int,
) -> Preparation:
    """Decide everything and pay for it.

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
    planner = Planner(operator, settings.method, n_measures or MANY, settings.tol * operator.tightening, rng, n_threads)
    choice = _choose_scale(planner, rows, settings.max_scale)
    _check_steps(chosen, choice.max_scale)
    planner.settle(choice.max_scale)
    scales = _kept_scales(choice.max_scale, settings)
    coarsest = min(choice.max_scale, planner.first - 1)
    _check_tolerance(operator, planner.chosen, settings.tol, coarsest)
    precision = _choose_precision(planner, settings, coarsest)
    shape = (n_measures or MANY, len(scales), operator.n_points)
    compression = choose_compression(settings.compress, shape, precision.itemsize)
    layout = _layout(planner, scales, settings, compression.delta)
    return Preparation(
        choice,
        planner.chosen,
        planner.reason,
        compression,
        layout,
        precision,
        _diffuser(planner, precision, adjoint=settings.adjoint),
        _table(planner, layout, settings, precision, n_measures),
    )


def _choose_scale(planner: Planner, rows: Any, max_scale: int | str) -> ScaleChoice:
    if max_scale != "auto":
        return ScaleChoice(int(max_scale), np.empty(0), np.nan, "as asked for")

    def coarse() -> Diffuser | None:
        factors = planner.settle(COARSEST)
        fine = ChebyshevDiffuser(planner.operator, adjoint=True, tol=planner.tol)
        return None if factors is None else LowRankDiffuser(fine, factors)

    return choose_max_scale(planner.operator, rows, planner.rng, coarse=coarse, n_threads=planner.n_threads)


def _kept_scales(max_scale: int, settings: Settings) -> range:
    everything = range(max_scale + 1)
    if settings.n_scales is None:
        return everything[finest_scale(scale_weights(everything, settings.alpha)) :]
    return everything[max(len(everything) - settings.n_scales, 0) :]


def _check_method(operator: DiffusionOperator, method: str) -> None:
    if operator.is_uneven and method != "auto":
        raise InvalidInputError(
            f"a graph that is even enough for method={method!r}",
            f"a stationary law whose root varies by {1 / operator.evenness:.0e} within a connected part",
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
            "lower max_scale, or remove the faintest points",
        )


def _choose_precision(planner: Planner, settings: Settings, coarsest: int) -> np.dtype[Any]:
    if settings.dtype == "auto":
        lost = rounding(2**coarsest, np.float32)
        single = lost <= planner.tol / 2 and planner.operator.evenness >= EVEN and planner.chosen != "walk"
        return np.dtype(np.float32 if single else np.float64)
    if settings.dtype == "float32" and planner.chosen != "exact":
        check_single(planner.operator, coarsest, "use dtype='auto' or 'float64'")
    return np.dtype(settings.dtype)


def _layout(planner: Planner, scales: range, settings: Settings, delta: float | None) -> Layout:
    matrix = combination(scales, alpha=settings.alpha, norm=settings.norm)
    if delta is None:
        return Layout(scales, matrix, planner.operator.n_points)
    states = planner.states(scales[-1], delta)
    cells = cells_of_scales(planner.operator, states, scales, delta, planner.rng)
    return Layout(scales, matrix, planner.operator.n_points, cells)


def _diffuser(planner: Planner, precision: npt.DTypeLike, *, adjoint: bool) -> Diffuser:
    if planner.chosen == "exact":
        return ExactDiffuser(planner.operator, adjoint=adjoint)
    if planner.chosen == "walk":
        return WalkDiffuser(planner.operator, adjoint=adjoint)
    # Only one copy of the operator stays, in the precision that diffuses.
    kept = planner.operator.astype(precision)
    fine = ChebyshevDiffuser(kept, adjoint=adjoint, tol=planner.tol, dtype=precision)
    return fine if planner.chosen == "chebyshev" else LowRankDiffuser(fine, planner.factors or [])


def _table(
    planner: Planner, layout: Layout, settings: Settings, precision: np.dtype[Any], n_measures: int | None
) -> FeatureTable | None:
    """Look features up in a table where that costs less than diffusing the measures."""
    few = n_measures is not None and n_measures < layout.n_features
    size = layout.n_points * layout.n_features * precision.itemsize
    if layout.cells is None or few or size > LARGEST_TABLE:
        return None
    transposed = _diffuser(planner, precision, adjoint=not settings.adjoint)
    return FeatureTable(transposed, layout, dtype=precision, n_threads=planner.n_threads)
