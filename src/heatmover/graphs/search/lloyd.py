"""One move of k-means (Lloyd 1982): every centre goes to the mean of the points nearest to it."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64, FloatArray, Int64, IntArray

__all__ = ["means_or_same", "move_centers"]


def move_centers(points: FloatArray, nearest: Int64, centers: Float64, weights: Float64 | None = None) -> Float64:
    """Return the mean of the points nearest to each centre; a centre without points stays.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    nearest
        ``(n_points,)``: the centre of each.
    centers
        ``(n_centers, n_dimensions)``.
    weights
        ``(n_points,)``: how often each point counts, at least once; None for once.

    Examples
    --------
    >>> move_centers(np.array([[0.0], [2.0]]), np.array([1, 1]), np.array([[7.0], [8.0]])).tolist()
    [[7.0], [1.0]]
    """
    count = len(centers)
    sizes = np.bincount(nearest, weights, minlength=count)
    weighted = (column if weights is None else weights * column for column in points.T)
    sums = np.stack([np.bincount(nearest, column, minlength=count) for column in weighted], axis=1)
    return means_or_same(np.asarray(sums, dtype=np.float64), sizes, centers)


def means_or_same(sums: Float64, sizes: IntArray | Float64, centers: Float64) -> Float64:
    """Return the means from sums ``(n_centers, n_dimensions)`` and sizes ``(n_centers,)``; of no points, the centre."""
    means = sums / np.maximum(sizes, 1)[:, None]
    return np.where(sizes[:, None] > 0, means, centers)
