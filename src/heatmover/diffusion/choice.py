"""Choosing the coarsest scale from the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover.diffusion.base import Block, Diffuser
from heatmover.diffusion.chebyshev import SINGLE_RANGE, ChebyshevDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import MIXED, ScaleChoice, mean_total_variation

__all__ = ["choose_max_scale"]

# The curve is an average over pairs of points: 32 give 496 of them, and another draw rarely gives another scale.
SAMPLE = 32
# 2^18 steps cost 1,400 products per measure. Data that have not mixed by then hang together by a thread.
COARSEST = 18
# From here on the next scale costs as much as a basis that serves all coarser ones may cost; see `Planner`.
PATIENCE = 11


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
    sources = _draw(operator, rows, rng)
    limit = mean_total_variation(operator.component_masses(sources.T).T)
    threshold = limit + MIXED * (1 - limit)
    decay: list[float] = []
    for scale, densities in enumerate(islice(_flow(operator, sources, coarse, n_threads), COARSEST + 1)):
        decay.append(mean_total_variation(densities))
        if scale >= 1 and decay[-1] <= threshold:
            reason = (
                f"at 2^{scale} steps the heat of two points differs by {decay[-1]:.2f} on average "
                f"(total variation), the first scale at or under {threshold:.2f}"
            )
            return ScaleChoice(scale, np.array(decay), limit, reason)
    reason = (
        f"the heat of two points still differs by {decay[-1]:.2f} on average at 2^{COARSEST} steps, where the search "
        "ends; parts of the graph hang together by a thread: see graph.diagnose()"
    )
    return ScaleChoice(COARSEST, np.array(decay), limit, reason)


def _flow(
    operator: DiffusionOperator,
    sources: Block,
    coarse: Callable[[], Diffuser | None],
    n_threads: int,
) -> Iterator[Block]:
    """Yield the densities of the sources at 2^0, 2^1, ..."""
    # An average needs few digits, but the errors of all steps add up on what never mixes.
    precision = np.float32 if operator.top.min() > SINGLE_RANGE else np.float64
    diffuser = ChebyshevDiffuser(operator, adjoint=True, tol=1e-3, dtype=precision, n_threads=n_threads)
    flow = diffuser.diffuse_progressively(sources)
    yield from islice(flow, PATIENCE)
    basis = coarse()
    for scale in count(PATIENCE):
        yield next(flow if basis is None else basis.diffuse(sources, range(scale, scale + 1)))


def _draw(operator: DiffusionOperator, rows: Any, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Draw different points, each as likely as its mass in the mean measure; indicators ``(n_points, n_drawn)``."""
    mean = np.asarray(rows.sum(axis=0), dtype=np.float64).ravel()
    mean /= mean.sum()
    count = min(SAMPLE, int(np.count_nonzero(mean)))
    drawn = np.sort(rng.choice(mean.size, count, replace=False, p=mean))
    sources = np.zeros((operator.n_points, count), dtype=np.float32)
    sources[drawn, np.arange(count)] = 1
    return sources
