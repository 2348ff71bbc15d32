"""Compact embeddings: how many cells each scale needs, and when an embedding is made compact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.rank import DensityOfStates
from heatmover.diffusion.regions import Cells, nested_cells

__all__ = ["DEFAULT_DELTA", "LARGEST_FULL", "Compression", "cells_of_scales", "choose_compression", "fewest_cells"]

# An embedding that would take more memory than this (2 GiB) is made compact unless compress=False.
LARGEST_FULL = 2 * 2**30
# The threshold of rank then used. On the swiss roll of 10,000 points it leaves 3,350 of 100,000 features, and distances
# within 0.2 % (median) of the full ones.
DEFAULT_DELTA = 0.1
# A density of rank r is determined by r numbers, but the L1 norm is not: |f| has kinks between them. With as many cells
# as the rank (15 at the coarsest scale of the swiss roll) Spearman fell by 0.004, with 64 by 0.0004, with 256 by less
# than 0.0001. Smaller thresholds ask for more, so that the worst pair improves too: on 6,000 points of the swiss roll,
# at 1e-4, from 5.4 % to 1.8 %.
FEWEST_CELLS = 256


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
    full = f"the full embedding of {shape[0]:,} measures"
    if size <= LARGEST_FULL:
        return Compression(None, f"{full} takes {size / 1e9:.2g} GB, at most {LARGEST_FULL / 1e9:.2g} GB")
    reason = f"{full} would take {size / 1e9:.2g} GB, more than {LARGEST_FULL / 1e9:.2g} GB"
    return Compression(DEFAULT_DELTA, reason, by_itself=True)


def cells_of_scales(
    operator: DiffusionOperator, states: DensityOfStates, scales: range, delta: float, rng: np.random.Generator
) -> tuple[Cells, ...]:
    """Return the cells of every scale: as many as the rank of S^(2^scale) at ``delta``, and not too few."""
    counts = [max(states.rank(scale, delta), fewest_cells(delta)) for scale in scales]
    return tuple(nested_cells(operator, counts, rng))


def fewest_cells(delta: float) -> int:
    """Return the least number of cells of a scale: 256 for thresholds down to 0.1, 512 at 1e-4.

    Examples
    --------
    >>> fewest_cells(0.1), fewest_cells(1e-4)
    (256, 512)
    """
    return round(FEWEST_CELLS * float(np.sqrt(max(1.0, -np.log10(delta)))))
