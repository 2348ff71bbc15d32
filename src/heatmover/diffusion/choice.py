"""Choosing the coarsest scale from the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover.diffusion.chebyshev import ChebyshevDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import MIXED, ScaleChoice, mean_total_variation

__all__ = ["choose_max_scale"]

# The curve is an average over pairs: 24 measures give 276 of them.
SAMPLE = 24
# 2^18 steps cost 1,400 products per measure. Data that have not mixed by then hang together by a thread.
COARSEST = 18


def choose_max_scale(operator: DiffusionOperator, rows: Any, rng: np.random.Generator) -> ScaleChoice:
    """Return the first scale at which two measures have, on average, half mixed.

    Mixing is judged by the mean total variation between the diffused measures, of a random sample if there are
    many, from its start at 1 (no common mass) to its limit after infinite time (0 on a connected graph).

    Parameters
    ----------
    operator
        The diffusion operator.
    rows
        Measures ``(n_measures, n_points)``, dense or CSR.
    rng
        Draws the sample.
    """
    masses, parts = _sample(operator, rows, rng)
    limit = mean_total_variation(parts.T)
    threshold = limit + MIXED * (1 - limit)
    decay: list[float] = []
    # An average needs no digits: a loose tolerance and single precision.
    diffuser = ChebyshevDiffuser(operator, adjoint=True, tol=1e-2, dtype=np.float32)
    for density in diffuser.diffuse_progressively(masses):
        decay.append(mean_total_variation(density))
        scale = len(decay) - 1
        if scale >= 1 and decay[-1] <= threshold:
            reason = (
                f"at 2^{scale} steps two measures differ by {decay[-1]:.2f} on average (total variation), "
                f"the first scale at or under {threshold:.2f}"
            )
            return ScaleChoice(scale, np.array(decay), limit, reason)
        if scale == COARSEST:
            break
    reason = (
        f"the measures still differ by {decay[-1]:.2f} on average at 2^{COARSEST} steps, where the search ends; "
        "parts of the graph hang together by a thread: see graph.diagnose()"
    )
    return ScaleChoice(COARSEST, np.array(decay), limit, reason)


def _sample(operator: DiffusionOperator, rows: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return a sample of measures as columns ``(n_points, n_sample)`` and their masses per component as rows."""
    n_measures = rows.shape[0]
    if n_measures > SAMPLE:
        rows = rows[np.sort(rng.choice(n_measures, SAMPLE, replace=False))]
    masses = np.asarray(rows.toarray() if sp.issparse(rows) else rows)
    parts = operator.component_masses(masses)
    if n_measures == 1:
        # A single measure is compared with what it becomes after infinite time.
        component = np.empty(operator.n_points, dtype=np.intp)
        component[operator.order] = operator.component
        masses = np.vstack([masses, operator.stationary * parts[0, component]])
        parts = np.vstack([parts, parts])
    return masses.T, parts
