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
# Of a float32.
ROUNDING = 2.0**-24
# Halvings of the interval in which the last neighbour's square lies; 290 ns for 128 candidates, of which 32 stay, where
# a selection by exchanges took 1,400 ns.
HALVINGS = 14
# The interval need not be closed: so many more than wanted may stay.
LOOSE = 4


# Loops below reach into long arrays by unsigned places, not by slices: a slice counts its uses, which costs more than a
# short loop, and an index that might be negative keeps a loop from using vectors.
ONE, FOUR = np.uint64(1), np.uint64(4)


@njit(cache=True, nogil=True, fastmath=REORDER)
def squares(query: FloatArray, block: FloatArray, begin: int, size: int, out: FloatArray) -> None:
    """Write the squared distances of a point from ``size`` others, which begin at ``begin``, one coordinate a row."""
    count, f, n_dimensions = np.uint64(size), np.uint64(0), np.uint64(query.size)
    first = np.uint64(begin)
    for j in range(count):
        out[j] = 0
    while f + FOUR <= n_dimensions:
        q0, q1, q2, q3 = query[f], query[f + ONE], query[f + ONE + ONE], query[f + FOUR - ONE]
        second = first + count
        third = second + count
        fourth = third + count
        for j in range(count):
            a, b, c, d = block[first + j] - q0, block[second + j] - q1, block[third + j] - q2, block[fourth + j] - q3
            out[j] += (a * a + b * b) + (c * c + d * d)
        first = fourth + count
        f += FOUR
    while f < n_dimensions:
        q0 = query[f]
        for j in range(count):
            a = block[first + j] - q0
            out[j] += a * a
        first += count
        f += ONE


@njit(cache=True, nogil=True)
def nearest_of(points: Float64, centers: Float64, first: int, last: int, member: Int32) -> None:
    """Write the nearest of ``centers`` (n_centers, n_dimensions) of the points ``first`` to ``last``."""
    count, n_dimensions = centers.shape
    block, out = np.empty(count * n_dimensions), np.empty(count)
    for j in range(count):
        for f in range(n_dimensions):
            block[f * count + j] = centers[j, f]
    for p in range(first, last):
        squares(points[p], block, 0, count, out)
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
        for f in range(n_dimensions):  # a whole row at once would take two seconds to compile
            centers[j, f] = points[j * n_points // count, f]
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
def _count(values: Any, begin: int, size: int, limit: Any) -> Any:
    hits, first = np.int32(0), np.uint64(begin)
    for j in range(np.uint64(size)):
        hits += np.int32(values[first + j] <= limit)
    return hits


@njit(cache=True, nogil=True)
def _append(values: Any, size: int, limit: Any, name: int, scores: Any, names: Int32, begin: int, count: int) -> int:
    """Append the values up to a limit and their names to a list, without a branch; return how many it has now."""
    free = np.uint64(begin + count)
    for j in range(np.uint64(size)):
        scores[free], names[free] = values[j], np.int32(name) + np.int32(j)
        free += np.uint64(values[j] <= limit)
    return int(free) - begin


@njit(cache=True, nogil=True)
def _tighten(scores: Any, names: Int32, begin: int, count: int, width: int, limit: Any) -> Any:
    """Keep the smallest scores of a list, at least ``width`` of them and few more; return how many and up to which."""
    low, high, inside = np.float32(0), limit, np.int32(count)
    first = np.uint64(begin)
    if limit >= BEYOND:
        high = np.float32(0)
        for j in range(np.uint64(count)):
            high = max(high, scores[first + j])
    for _ in range(HALVINGS):
        if inside <= width + LOOSE:
            break
        middle = np.float32(0.5) * (low + high)
        below = _count(scores, begin, count, middle)
        if below >= width:
            high, inside = middle, below
        else:
            low = middle
    free = first
    for j in range(np.uint64(count)):
        score = scores[first + j]
        scores[free], names[free] = score, names[first + j]
        free += np.uint64(score <= high)
    kept = int(free) - begin
    if kept > 2 * width:
        # So many are equal that no limit parts them.
        high, kept = _trim(scores, names, begin, kept, width), width
    return kept, high


@njit(cache=True, nogil=True)
def _trim(scores: Any, names: Int32, begin: int, count: int, width: int) -> Any:
    """Keep ``width`` of the smallest scores; return the largest of them."""
    for i in range(begin, begin + width):
        least = i
        for j in range(i + 1, begin + count):
            if scores[j] < scores[least]:
                least = j
        scores[i], scores[least] = scores[least], scores[i]
        names[i], names[least] = names[least], names[i]
    return scores[begin + width - 1]


@njit(cache=True, nogil=True)
def _relative(points: Float64, point: int, middles: Float64, cell: int, scale: float, query: Any) -> Any:
    """Write a point relative to the middle of a cell; return the square of its distance from it."""
    total = np.float32(0)
    for f in range(query.size):
        query[f] = (points[point, f] - middles[cell, f]) * scale
        total += query[f] * query[f]
    return total


@njit(cache=True, nogil=True)
def _widest(places: Int64) -> int:
    widest = 0
    for cell in range(places.size - 1):
        widest = max(widest, places[cell + 1] - places[cell])
    return widest


@njit(cache=True, nogil=True)
def search_everywhere(
    rows: Int64,
    cells: tuple[Float64, Int32, Int64, Int64, Any, Float64, Float64],
    scale: float,
    width: int,
    distances: Float64,
    indices: Int32,
) -> None:
    """Write the nearest of the points ``rows``, places in the cells' order, after a look at every cell.

    Parameters are those of `search_cells`; row i of the results belongs to ``rows[i]``.
    """
    points, order, starts, places, blocks, middles, _ = cells
    widest = _widest(places)
    squared, query = np.empty(widest, np.float32), np.empty(points.shape[1], np.float32)
    room = 2 * width + widest + 1
    scores, names, exact = np.empty(room, np.float32), np.empty(room, np.int32), np.empty(room)
    for i in range(rows.size):
        point, count, limit = rows[i], 0, BEYOND
        for cell in range(places.size - 1):
            _relative(points, point, middles, cell, scale, query)
            size = places[cell + 1] - places[cell]
            squares(query, blocks, query.size * places[cell], size, squared)
            if starts[cell] <= point < starts[cell + 1]:
                squared[point - starts[cell]] = np.inf
            if _count(squared, 0, size, limit) > 0:
                count = _append(squared, size, limit, starts[cell], scores, names, 0, count)
                if count >= width + (width >> 1) or (limit >= BEYOND and count >= width):
                    count, limit = _tighten(scores, names, 0, count, width, limit)
        _write(points, point, order, names, 0, count, exact, i, distances, indices)


@njit(cache=True, nogil=True)
def search_cells(
    first: int,
    cells: tuple[Float64, Int32, Int64, Int64, Any, Float64, Float64],
    near: Int32,
    apart: Any,
    limits: tuple[float, int, Any, Any],
    distances: Float64,
    indices: Int32,
    seen: Any,
) -> None:
    """Write the nearest of all members of some cells, ascending.

    Parameters
    ----------
    first
        The first of the cells.
    cells
        Of `Cells`: points, order, starts, places, blocks, middles, radii.
    near, apart
        Cells around each of the cells, nearest first, ``(n_cells, n_near)``, without itself, and the distances of
        their middles, in units of the blocks.
    limits
        Scale (blocks per coordinate), how many candidates to keep, share of the reach within which a border must lie,
        and what rounding may do to a border, relatively.
    distances, indices
        ``(n_members, k)``. Infinite and -1 where too few were found.
    seen
        ``(n_members, 2)``: candidates looked at; a distance beyond which all lie that are not among those kept.
    """
    points, order, starts, places, blocks, middles, radii = cells
    scale, width, share, slack = limits
    n_dimensions, n_near, widest = points.shape[1], near.shape[1], _widest(places)
    query, middle = np.empty(n_dimensions, np.float32), np.empty(n_dimensions, np.float32)
    squared, away, inwards = np.empty(widest, np.float32), np.empty(widest, np.float32), np.empty(widest, np.float32)
    counts, tops, reaches = np.empty(widest, np.int64), np.empty(widest, np.float32), np.empty(widest, np.float32)
    looked, furthest = np.empty(widest, np.int64), np.empty(widest, np.float32)
    error = np.float32(4 * ROUNDING)
    # A list for each member; only its first places are used, as a rule.
    room = 2 * width + widest + 1
    scores, names, exact = np.empty(widest * room, np.float32), np.empty(widest * room, np.int32), np.empty(room)
    for row in range(near.shape[0]):
        own = first + row
        n_members, size = starts[own + 1] - starts[own], places[own + 1] - places[own]
        for m in range(n_members):
            inwards[m] = _relative(points, starts[own] + m, middles, own, scale, query)
            squares(query, blocks, n_dimensions * places[own], size, squared)
            squared[m] = np.inf
            count, top = _append(squared, size, BEYOND, starts[own], scores, names, m * room, 0), BEYOND
            if count >= width:
                count, top = _tighten(scores, names, m * room, count, width, top)
            furthest[m] = np.sqrt(inwards[m]) + np.float32(radii[own] * scale)
            counts[m], tops[m], looked[m] = count, top, n_members
            reaches[m] = share * (np.sqrt(top) + error * furthest[m])
        beyond = np.float32(0)
        for i in range(n_near):
            if i % 16 == 0:
                beyond = np.float32(0)
                for m in range(n_members):
                    beyond = max(beyond, reaches[m] + np.sqrt(inwards[m]) * (1 + slack))
            # Neither this cell's border nor that of a later one is within anyone's reach.
            if np.float32(0.5) * apart[row, i] > beyond:
                break
            other = near[row, i]
            for f in range(n_dimensions):
                middle[f] = (middles[other, f] - middles[own, f]) * scale
            squares(middle, blocks, n_dimensions * places[own], size, away)
            half = np.float32(0.5) / apart[row, i] if apart[row, i] > 0 else np.float32(0)
            size_there = places[other + 1] - places[other]
            for m in range(n_members):
                # How far the point is from the plane between the two middles, or a little less.
                if (away[m] * (1 - slack) - inwards[m] * (1 + slack)) * half > reaches[m]:
                    continue
                length = np.sqrt(_relative(points, starts[own] + m, middles, other, scale, query))
                furthest[m] = max(furthest[m], length + np.float32(radii[other] * scale))
                looked[m] += size_there
                squares(query, blocks, n_dimensions * places[other], size_there, squared)
                if _count(squared, 0, size_there, tops[m]) == 0:
                    continue
                count = _append(squared, size_there, tops[m], starts[other], scores, names, m * room, counts[m])
                if count >= width + (width >> 1) or (tops[m] >= BEYOND and count >= width):
                    count, tops[m] = _tighten(scores, names, m * room, count, width, tops[m])
                    reaches[m] = share * (np.sqrt(tops[m]) + error * furthest[m])
                counts[m] = count
        for m in range(n_members):
            to, count, top = starts[own] + m - starts[first], counts[m], tops[m]
            if count > width + LOOSE:
                count, top = _tighten(scores, names, m * room, count, width, top)
            bound = np.sqrt(np.float64(top)) * (1 - (n_dimensions + 8) * ROUNDING) - error * furthest[m]
            seen[to, 0], seen[to, 1] = looked[m], np.inf if top >= BEYOND else bound / scale
            _write(points, starts[own] + m, order, names, m * room, count, exact, to, distances, indices)


@njit(cache=True, nogil=True)
def _write(
    points: Float64,
    point: int,
    order: Int32,
    names: Int32,
    begin: int,
    count: int,
    exact: Float64,
    to: int,
    distances: Float64,
    indices: Int32,
) -> None:
    """Write a list's nearest by their distances in float64, equal ones by their own numbers."""
    for i in range(count):
        name, square = names[begin + i], 0.0
        for f in range(points.shape[1]):
            step = points[name, f] - points[point, f]
            square += step * step
        j = i
        while j > 0 and (
            exact[j - 1] > square or (exact[j - 1] == square and order[names[begin + j - 1]] > order[name])
        ):
            exact[j], names[begin + j] = exact[j - 1], names[begin + j - 1]
            j -= 1
        exact[j], names[begin + j] = square, name
    for j in range(distances.shape[1]):
        if j < count:
            distances[to, j], indices[to, j] = np.sqrt(exact[j]), order[names[begin + j]]
        else:
            distances[to, j], indices[to, j] = np.inf, -1


@njit(cache=True, nogil=True)
def write_lists(
    points: Float64, order: Int32, lists: Int32, start: int, stop: int, distances: Float64, indices: Int32
) -> None:
    """Write the lists of the points ``start`` to ``stop`` by distances in float64; -1 in a list is no point."""
    k = lists.shape[1]
    names, exact = np.empty(k, np.int32), np.empty(k)
    for point in range(start, stop):
        count = 0
        for j in range(k):
            names[count] = lists[point, j]
            count += lists[point, j] >= 0
        _write(points, point, order, names, 0, count, exact, point - start, distances, indices)
