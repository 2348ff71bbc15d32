"""Dyadic scales: which diffusion times are compared, and how far heat has mixed at each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heatmover._typing import Float64, FloatArray

__all__ = ["MIXED", "ScaleChoice", "finest_scale", "mean_total_variation", "total_variations"]

# max_scale="auto" stops at the first scale where the heat of two points overlaps by half on average. Measured on eight
# shapes with known truth and a cohort (docs/decisions/0010): 0.7 leaves the swiss roll at a P@10 of 0.85, because far
# measures still all look equally far; 0.4 lets the long axis of the S-curve dominate (0.89 instead of 0.91).
MIXED = 0.5

# Fine scales that together weigh less than this share of all weights are dropped when n_scales is None: they
# cost memory and time and cannot move a distance by more than this share of its largest possible value.
NEGLIGIBLE_WEIGHT = 0.01


@dataclass(frozen=True)
class ScaleChoice:
    """The largest scale and how it was found.

    Attributes
    ----------
    max_scale
        K: the coarsest diffusion time is ``2**K``.
    decay
        Mean total variation between the heat of two points at times ``2**0, 2**1, ...`` as far as it was
        computed; empty if ``max_scale`` was given.
    limit
        Its value after infinite time: zero on a connected graph.
    reason
        One plain sentence.
    """

    max_scale: int
    decay: Float64
    limit: float
    reason: str


def finest_scale(weights: Float64) -> int:
    """Return the first scale to keep so that all finer ones together carry a negligible share of the weight.

    Examples
    --------
    >>> finest_scale(np.array([0.001, 0.5, 1.0]))
    1
    """
    share = np.cumsum(weights) / weights.sum()
    return int(np.searchsorted(share, NEGLIGIBLE_WEIGHT))


def mean_total_variation(densities: FloatArray) -> float:
    """Return the mean total variation over all pairs of columns of ``densities`` ``(n_points, n_measures)``.

    Examples
    --------
    >>> mean_total_variation(np.array([[1.0, 0.0], [0.0, 1.0]]))
    1.0
    """
    count = densities.shape[1]
    # Each pair stands twice in the table.
    return float(total_variations(densities).sum() / (count * (count - 1))) if count > 1 else 0.0


def total_variations(densities: FloatArray) -> Float64:
    """Return the total variation between all columns of ``densities`` ``(n_points, n_measures)``.

    Examples
    --------
    >>> total_variations(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[0., 1.],
           [1., 0.]])
    """
    from heatmover._compiled.l1 import REGISTER_ROWS, l1_tile

    rows = np.ascontiguousarray(densities.T)
    # Read-only and writable arrays are two types for numba, which would compile the kernel twice.
    rows.flags.writeable = False
    side = len(rows) + -len(rows) % REGISTER_ROWS
    tile = np.empty((side, side))
    l1_tile(rows, rows, rows.dtype.type(1), True, tile)
    # A total variation is half of an L1 distance.
    return tile[: len(rows), : len(rows)] / 2
