"""The nearest of many centres, group by group of neighbouring centres: most groups are too far to be looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def nearest_by_groups(
    points: Float64,
    centers: Float64,
    starts: Int64,
    order: Int64,
    middles: Float64,
    radii: Float64,
    slack: tuple[float, float],
    found: Int64,
    unsure: npt.NDArray[np.bool_],
) -> int:
    """Write the nearest centre of each point, and where another is as near but for rounding; return groups looked at.

    Group g has the columns ``starts[g]`` to ``starts[g + 1]`` of ``centers`` (n_dimensions, n_centers), which stand for
    the centres ``order``, and lies within ``radii[g]`` of column g of ``middles``. ``slack``: what rounding may do to a
    bound, and to two squares that are equal, both relative.
    """
    n_groups = radii.size
    widest = 0
    for group in range(n_groups):
        widest = max(widest, starts[group + 1] - starts[group])
    squares = np.empty(widest)
    away, bounds, near = np.empty(n_groups), np.empty(n_groups), np.empty(n_groups, dtype=np.int64)
    looked_at = 0
    for p in range(points.shape[0]):
        point = points[p]
        _squares(point, middles, 0, n_groups, away)
        first = 0
        for group in range(n_groups):
            if away[group] < away[first]:
                first = group
        best, place, tied = _look(
            point, centers, starts[first], starts[first + 1], squares, (np.inf, 0, False), slack[1]
        )
        count = _groups_in_reach(away, radii, np.sqrt(best) * (1 + slack[0]), first, bounds, near)
        looked_at += 1
        for i in range(count):
            if bounds[i] > np.sqrt(best) * (1 + slack[0]):
                break
            begin, end = starts[near[i]], starts[near[i] + 1]
            best, place, tied = _look(point, centers, begin, end, squares, (best, place, tied), slack[1])
            looked_at += 1
        found[p], unsure[p] = order[place], tied
    return looked_at


@njit(cache=True, nogil=True)
def _squares(point: Float64, centers: Float64, begin: int, end: int, out: Float64) -> None:
    """Write the squared distances of a point from some columns; four dimensions a pass, for each pass reads ``out``."""
    count, n_dimensions = end - begin, point.size
    for j in range(count):
        out[j] = 0.0
    k = 0
    while k + 4 <= n_dimensions:
        a, b, c, d = point[k], point[k + 1], point[k + 2], point[k + 3]
        # Slices, because an index that might be negative keeps the loop from using vectors.
        to_a, to_b = centers[k, begin:end], centers[k + 1, begin:end]
        to_c, to_d = centers[k + 2, begin:end], centers[k + 3, begin:end]
        for j in range(count):
            e, f, g, h = a - to_a[j], b - to_b[j], c - to_c[j], d - to_d[j]
            out[j] += (e * e + f * f) + (g * g + h * h)
        k += 4
    while k < n_dimensions:
        a = point[k]
        to_a = centers[k, begin:end]
        for j in range(count):
            e = a - to_a[j]
            out[j] += e * e
        k += 1


@njit(cache=True, nogil=True)
def _look(
    point: Float64,
    centers: Float64,
    begin: int,
    end: int,
    squares: Float64,
    so_far: tuple[float, int, bool],
    slack: float,
) -> Any:
    """Return the nearest so far, after a look at one group: its square, its column, and whether there was a tie."""
    best, place, tied = so_far
    _squares(point, centers, begin, end, squares)
    limit = best * (1 + slack)
    hits = 0
    for j in range(end - begin):  # counting uses vectors, a search with its branches does not
        hits += squares[j] <= limit
    if hits == 0:
        return best, place, tied
    for j in range(end - begin):
        square = squares[j]
        if square <= best * (1 + slack):
            tied = square * (1 + slack) >= best
            if square < best:
                best, place = square, begin + j
    return best, place, tied


@njit(cache=True, nogil=True)
def _groups_in_reach(away: Float64, radii: Float64, reach: float, first: int, bounds: Float64, near: Int64) -> int:
    """Write the other groups that may hold a centre within reach, nearest bound first; return how many."""
    count = 0
    for group in range(radii.size):
        limit = reach + radii[group]
        if group != first and away[group] <= limit * limit:
            bound = np.sqrt(away[group]) - radii[group]
            i = count
            while i > 0 and bounds[i - 1] > bound:
                bounds[i], near[i] = bounds[i - 1], near[i - 1]
                i -= 1
            bounds[i], near[i] = bound, group
            count += 1
    return count
