"""Names beside points: as many as fit, each where it hides nothing; the script of the report does the same."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Bool, Float64

__all__ = ["place_names"]

# Where a name may stand around its point, best first: horizontally, vertically.
SIDES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)], dtype=np.float64)
# At a corner a name may be nearer: its box touches the point at one letter only.
AT_CORNERS = 0.7


def place_names(
    centres: Float64, sizes: Float64, *, radius: float, gap: float, frame: tuple[float, float, float, float]
) -> Float64:
    """Return where the middle of each name is relative to its point, NaN where there is no room.

    Names are placed in their order, each on the first of eight sides where it is within the frame, covers no point
    and no name, and is nearer to its own point than to any other: beside another it would be read as that one's.

    Parameters
    ----------
    centres
        ``(n_points, 2)``: where the points are, in pixels.
    sizes
        ``(n_points, 2)``: width and height of each name.
    radius
        Of a point: a square of this half side is kept free.
    gap
        Between the middle of a point and its name.
    frame
        Left, bottom, right, top.

    Returns
    -------
    ndarray of shape (n_points, 2)

    Examples
    --------
    >>> centres, sizes = np.array([[50.0, 50.0], [50.0, 58.0]]), np.full((2, 2), [30.0, 8.0])
    >>> place_names(centres, sizes, radius=3, gap=6, frame=(0, 0, 100, 100))
    array([[  0., -10.],
           [  0.,  10.]])
    """
    count = len(centres)
    # Boxes that are taken: all points, then the names that were placed.
    low, high = np.empty((2 * count, 2)), np.empty((2 * count, 2))
    low[:count], high[:count] = centres - radius, centres + radius
    taken = count
    offsets = np.full((count, 2), np.nan)
    near = gap * np.where(SIDES.all(axis=1), AT_CORNERS, 1.0)[:, None]
    edges = np.asarray(frame, dtype=np.float64)
    for own in range(count):
        steps = SIDES * (sizes[own] / 2 + near)
        left, right = centres[own] + steps - sizes[own] / 2, centres[own] + steps + sizes[own] / 2
        inside = (left >= edges[:2]).all(axis=1) & (right <= edges[2:]).all(axis=1)
        free = inside & ~_overlaps(left, right, low[:taken], high[:taken]) & _is_nearest(own, left, right, centres)
        if free.any():
            side = int(free.argmax())
            offsets[own] = steps[side]
            low[taken], high[taken] = left[side], right[side]
            taken += 1
    return offsets


def _overlaps(left: Float64, right: Float64, low: Float64, high: Float64) -> Bool:
    """Return which boxes overlap any of others, ``(n_boxes,)``."""
    both = (left[:, None] < high) & (low < right[:, None])
    return np.asarray((both[..., 0] & both[..., 1]).any(axis=1), dtype=bool)


def _is_nearest(own: int, left: Float64, right: Float64, centres: Float64) -> Bool:
    """Return which boxes have no point nearer than their own; of equally near ones the first counts."""
    outside = np.maximum(np.maximum(left[:, None] - centres, centres - right[:, None]), 0)
    return np.asarray((outside**2).sum(axis=2).argmin(axis=1) == own)
