"""Nearest neighbours cell by cell: float32 squares of one point against all of a cell, then the best in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from heatmover._typing import Float64, FloatArray, Int32, Int64

# Sums may be reordered and products fused, else nothing vectorises.
REORDER = {"contract", "reassoc", "nsz"}
# Squares that are as good as infinite: a list of candidates that is not full yet takes all below.
BEYOND = np.float32(3e38)
# Cells whose border with a point's own cell is computed at once.
BORDERS = 64
# Halvings of the interval in which the last neighbour's square lies; 290 ns for 128 candidates, of which 32 stay, where
# a selection by exchanges took 1,400 ns.
HALVINGS = 14
# The interval need not be closed: so many more than wanted may stay.
LOOSE = 4


@njit(cache=True, nogil=True, fastmath=REORDER)
def squares(query: FloatArray, block: FloatArray, size: int, out: FloatArray) -> None:
    """Write the squared distances of a point from ``size`` others; row f of ``block`` is their coordinate f."""
    n_dimensions = query.size
    f = 0
    if n_dimensions >= 8:
        q0, q1, q2, q3, q4, q5, q6, q7 = (
            query[0],
            query[1],
            query[2],
            query[3],
            query[4],
            query[5],
            query[6],
            query[7],
        )
        # Slices, because an index that might be negative keeps the loop from using vectors.
        r0, r1, r2, r3 = block[:size], block[size : 2 * size], block[2 * size : 3 * size], block[3 * size : 4 * size]
        r4, r5 = block[4 * size : 5 * size], block[5 * size : 6 * size]
        r6, r7 = block[6 * size : 7 * size], block[7 * size : 8 * size]
        for j in range(size):
            a, b, c, d = r0[j] - q0, r1[j] - q1, r2[j] - q2, r3[j] - q3
            e, g, h, i = r4[j] - q4, r5[j] - q5, r6[j] - q6, r7[j] - q7
            out[j] = (a * a + b * b) + (c * c + d * d) + (e * e + g * g) + (h * h + i * i)
        f = 8
    else:
        out[:size] = 0
    while f + 4 <= n_dimensions:
        q0, q1, q2, q3 = query[f], query[f + 1], query[f + 2], query[f + 3]
        r0, r1 = block[f * size : (f + 1) * size], block[(f + 1) * size : (f + 2) * size]
        r2, r3 = block[(f + 2) * size : (f + 3) * size], block[(f + 3) * size : (f + 4) * size]
        for j in range(size):
            a, b, c, d = r0[j] - q0, r1[j] - q1, r2[j] - q2, r3[j] - q3
            out[j] += (a * a + b * b) + (c * c + d * d)
        f += 4
    while f < n_dimensions:
        q0 = query[f]
        r0 = block[f * size : (f + 1) * size]
        for j in range(size):
            a = r0[j] - q0
            out[j] += a * a
        f += 1


@njit(cache=True, nogil=True)
def nearest_of(points: Float64, centers: Float64, first: int, last: int, member: Int32) -> None:
    """Write the nearest of ``centers`` (n_centers, n_dimensions) of the points ``first`` to ``last``."""
    count = centers.shape[0]
    block = centers.T.copy().ravel()
    out = np.empty(count)
    for p in range(first, last):
        squares(points[p], block, count, out)
        best = 0
        least = out[0]
        for j in range(count):
            least = min(least, out[j])
        while out[best] > least:
            best += 1
        member[p] = best


@njit(cache=True, nogil=True)
def centers_of(points: Float64, count: int, moves: int, member: Int32) -> Any:
    """Return the centres ``(count, n_dimensions)`` of a short k-means, from points at even places as a start."""
    n_points, n_dimensions = points.shape
    centers = np.empty((count, n_dimensions))
    for j in range(count):
        centers[j] = points[j * n_points // count]
    for _ in range(moves):
        nearest_of(points, centers, 0, n_points, member)
        sums, sizes = np.zeros((count, n_dimensions)), np.zeros(count, np.int64)
        for p in range(n_points):
            sizes[member[p]] += 1
            for f in range(n_dimensions):
                sums[member[p], f] += points[p, f]
        for j in range(count):
            if sizes[j] > 0:
                for f in range(n_dimensions):
                    centers[j, f] = sums[j, f] / sizes[j]
    return centers


@njit(cache=True, nogil=True)
def fill_blocks(points: Float64, starts: Int64, places: Int64, middles: Float64, scale: float, blocks: Any) -> None:
    """Write the cells' members relative to their middle, coordinate after coordinate, with infinity in between."""
    n_dimensions = points.shape[1]
    for cell in range(starts.size - 1):
        size, count = places[cell + 1] - places[cell], starts[cell + 1] - starts[cell]
        for f in range(n_dimensions):
            row = blocks[n_dimensions * places[cell] + f * size : n_dimensions * places[cell] + (f + 1) * size]
            row[:] = np.inf
            for j in range(count):
                row[j] = (points[starts[cell] + j, f] - middles[cell, f]) * scale


@njit(cache=True, nogil=True)
def _count(values: Any, limit: Any) -> Any:
    hits = np.int32(0)
    for j in range(values.size):
        hits += np.int32(values[j] <= limit)
    return hits


@njit(cache=True, nogil=True)
def _append(values: Any, limit: Any, base: int, scores: Any, names: Int32, count: int) -> int:
    """Append the values up to a limit and their places, without a branch; return how many there are now."""
    for j in range(values.size):
        scores[count], names[count] = values[j], base + j
        count += values[j] <= limit
    return count


@njit(cache=True, nogil=True)
def _trim(scores: Any, names: Int32, count: int, width: int) -> Any:
    """Keep ``width`` of the smallest scores where so many are equal that no limit parts them; return the largest."""
    for i in range(width):
        least = i
        for j in range(i + 1, count):
            if scores[j] < scores[least]:
                least = j
        scores[i], scores[least] = scores[least], scores[i]
        names[i], names[least] = names[least], names[i]
    return scores[width - 1]


@njit(cache=True, nogil=True)
def _tighten(scores: Any, names: Int32, count: int, width: int, limit: Any) -> Any:
    """Keep the smallest scores, at least ``width`` of them and few more; return how many and up to which."""
    low, high, inside = np.float32(0), limit, np.int32(count)
    if limit >= BEYOND:
        high = np.float32(0)
        for j in range(count):
            high = max(high, scores[j])
    for _ in range(HALVINGS):
        if inside <= width + LOOSE:
            break
        middle = np.float32(0.5) * (low + high)
        below = _count(scores[:count], middle)
        if below >= width:
            high, inside = middle, below
        else:
            low = middle
    kept = 0
    for j in range(count):
        score = scores[j]
        scores[kept], names[kept] = score, names[j]
        kept += score <= high
    if kept > 2 * width:
        high, kept = _trim(scores, names, kept, width), width
    return kept, high


@njit(cache=True, nogil=True)
def search_cells(
    rows: Int64,
    cells: tuple[Float64, Int64, Int32, Int64, Int64, Any, Float64, Float64],
    near: Int32,
    apart: Any,
    first: int,
    limits: tuple[float, Any, float, int],
    distances: Float64,
    indices: Int32,
    seen: Any,
) -> None:
    """Write the nearest of the points ``rows``, which are places in the cells' order, ascending.

    Parameters
    ----------
    rows
        ``(n_rows,)``; those of one cell stand together.
    cells
        Of `Cells`: points, order, member, starts, places, blocks, middles, radii.
    near, apart, first
        Cells around each cell, nearest first, ``(n_cells, n_near)``, without itself, and the distances of
        their middles, in units of the blocks; row i belongs to cell ``first + i``. Without distances, ``(1, 1)``,
        a search that leaves out no cell of the only row.
    limits
        Scale (blocks per coordinate), share of the reach within which a border must lie, what rounding may do to a
        border, relatively, and how many candidates to keep.
    distances, indices
        ``(n_rows, k)``; row i belongs to ``rows[i]``. Indices are -1 where too few were found.
    seen
        ``(n_rows, 3)``: candidates looked at; how many cells around would have been needed; a distance beyond which
        all lie that are not among the candidates kept.
    """
    points, order, member, starts, places, blocks, middles, radii = cells
    scale, share, slack, width = limits
    n_dimensions, n_near, k = points.shape[1], near.shape[1], distances.shape[1]
    everywhere = apart.size < near.size
    widest = 0
    for cell in range(places.size - 1):
        widest = max(widest, places[cell + 1] - places[cell])
    out, borders = np.empty(max(widest, BORDERS), np.float32), np.empty(BORDERS, np.float32)
    scores, names = np.empty(3 * width + widest, np.float32), np.empty(3 * width + widest, np.int32)
    exact = np.empty(scores.size)
    query = np.empty(n_dimensions, np.float32)
    around = np.empty(n_dimensions * n_near, np.float32)
    last = -1
    unit = np.float32(2.0**-24)
    for i in range(rows.size):
        p = rows[i]
        own = member[p]
        if own != last:
            # The middles around, in tiles of BORDERS, so that a point need not look at all of them.
            for begin in range(0, 0 if everywhere else n_near, BORDERS):
                size = min(BORDERS, n_near - begin)
                for f in range(n_dimensions):
                    for j in range(size):
                        step = middles[near[own - first, begin + j], f] - middles[own, f]
                        around[n_dimensions * begin + f * size + j] = step * scale
            last = own
        for f in range(n_dimensions):
            query[f] = (points[p, f] - middles[own, f]) * scale
        radius = np.float32(0)
        for f in range(n_dimensions):
            radius += query[f] * query[f]
        limit, count, looked, needed = BEYOND, 0, 0, 0
        size = places[own + 1] - places[own]
        squares(query, blocks[n_dimensions * places[own] : n_dimensions * places[own + 1]], size, out)
        out[p - starts[own]] = np.inf
        count = _append(out[:size], limit, starts[own], scores, names, count)
        if count >= width:
            count, limit = _tighten(scores, names, count, width, limit)
        reach = share * np.sqrt(limit)
        inwards = np.sqrt(radius)
        furthest = inwards + radii[own] * scale
        stop = False
        for begin in range(0, n_near, BORDERS):
            if stop:
                break
            tile = min(BORDERS, n_near - begin)
            if everywhere:
                borders[:] = -np.inf
            else:
                squares(query, around[n_dimensions * begin : n_dimensions * (begin + tile)], tile, out)
                for j in range(tile):
                    apart_j = apart[own - first, begin + j]
                    if apart_j > 0:
                        # How far the point is from the plane between the two middles, or a little less.
                        between = out[j] * (1 - slack) - radius * (1 + slack)
                        borders[j] = np.float32(0.5) * between / apart_j
                    else:
                        borders[j] = -np.inf
            for j in range(tile):
                # No border of this cell or a later one is within reach.
                if not everywhere and np.float32(0.5) * apart[own - first, begin + j] - inwards * (1 + slack) > reach:
                    stop = True
                    break
                needed = begin + j + 1
                if borders[j] > reach:
                    continue
                other = near[0 if everywhere else own - first, begin + j]
                if other == own:
                    continue
                away = np.float32(0)
                for f in range(n_dimensions):
                    query[f] = (points[p, f] - middles[other, f]) * scale
                    away += query[f] * query[f]
                size = places[other + 1] - places[other]
                squares(query, blocks[n_dimensions * places[other] : n_dimensions * places[other + 1]], size, out)
                looked += size
                furthest = max(furthest, np.sqrt(away) + radii[other] * scale)
                if _count(out[:size], limit) == 0:
                    continue
                count = _append(out[:size], limit, starts[other], scores, names, count)
                if count >= width + (width >> 1) or (limit >= BEYOND and count >= width):
                    count, limit = _tighten(scores, names, count, width, limit)
                    reach = share * np.sqrt(limit)
            if not everywhere and not stop:
                # The tile's squares have overwritten the point relative to its own cell.
                for f in range(n_dimensions):
                    query[f] = (points[p, f] - middles[own, f]) * scale
        seen[i, 0], seen[i, 1] = looked, needed
        if count > width + LOOSE:
            count, limit = _tighten(scores, names, count, width, limit)
        bound = np.sqrt(np.float64(limit)) * (1 - (n_dimensions + 8) * unit) - 4 * unit * furthest
        seen[i, 2] = np.inf if limit >= BEYOND else bound / scale
        _sort_in_full(points, p, order, names, count, exact)
        for j in range(k):
            if j < count:
                distances[i, j], indices[i, j] = np.sqrt(exact[j]), order[names[j]]
            else:
                distances[i, j], indices[i, j] = np.inf, -1


@njit(cache=True, nogil=True)
def _sort_in_full(points: Float64, p: int, order: Int32, names: Int32, count: int, exact: Float64) -> None:
    """Sort candidates by their squared distances in float64, equal ones by their own numbers."""
    for i in range(count):
        name, square = names[i], 0.0
        for f in range(points.shape[1]):
            step = points[name, f] - points[p, f]
            square += step * step
        j = i
        while j > 0 and (exact[j - 1] > square or (exact[j - 1] == square and order[names[j - 1]] > order[name])):
            exact[j], names[j] = exact[j - 1], names[j - 1]
            j -= 1
        exact[j], names[j] = square, name
