"""Search nearest neighbors among clusters of points, called parts; only `graphs.neighbors` calls it.

Candidates are found in float32, and the best candidates are compared in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Float64, FloatArray, Int32, Int64

# Allow the compiler to reorder sums and fuse products, because otherwise the loops could not use vector registers.
REORDER = {"contract", "reassoc", "nsz"}
# Practically infinite squared distance: the limit of a candidate list that is not full yet.
BEYOND = np.float32(3e38)
# Relative rounding error of a float32.
ROUNDING = 2.0**-24
# Number of halvings of the interval that contains the squared distance of the last neighbor. Selecting 32 of 128
# candidates takes 290 ns by halving and took 1,400 ns by exchanges.
HALVINGS = 14
# Number of candidates that a list may keep in addition to the requested number, so that the halving can stop early.
LOOSE = 4


# Number of points that are compared with a part at the same time.
ROWS = 4
# Number of values that are skipped together if all exceed the limit.
WIDTH = 8


# Loops below access long arrays by unsigned positions instead of slices: a slice is reference-counted, which costs more
# than a short loop, and an index that might be negative prevents vector code.
ONE, TWO, FOUR = np.uint64(1), np.uint64(2), np.uint64(4)


@kernel(fastmath=REORDER)
def squares(query: FloatArray, block: FloatArray, begin: int, size: int, out: FloatArray) -> None:
    """Write the squared distances of a point from ``size`` other points, whose coordinates begin at ``begin``."""
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


@kernel()
def _count(values: Any, begin: int, size: int, limit: Any) -> Any:
    hits, first = np.int32(0), np.uint64(begin)
    for j in range(np.uint64(size)):
        hits += np.int32(values[first + j] <= limit)
    return hits


@kernel(fastmath=REORDER)
def tile_squares(queries: Any, blocks: Any, begin: int, sizes: Any, limits: Any, out: Any) -> Any:
    """Write the squared distances of ROWS points from a part; return a bit mask of points that have hits.

    A hit is a square that does not exceed the limit of the point. Squares are computed for two points at a time, so
    that each member of the part is read once per two points.

    Parameters
    ----------
    queries
        Coordinates of the query points, flattened in row-major order.
    blocks, begin
        Coordinates of the parts, with one row per coordinate, and the position where this part begins.
    sizes
        ``(n_dimensions, size of the part, stride of out)``.
    limits
        Largest relevant square of each point, ``(ROWS,)``.
    out
        Receives the squares, ``(ROWS * stride,)``.
    """
    size, hits = np.uint64(sizes[1]), np.int64(0)
    width, stride = np.uint64(sizes[0]), np.uint64(sizes[2])
    for row in range(0, ROWS, 2):
        a, b = np.uint64(row) * stride, np.uint64(row + 1) * stride
        for j in range(size):
            out[a + j], out[b + j] = 0, 0
        first, here, there = np.uint64(begin), np.uint64(row) * width, np.uint64(row + 1) * width
        for _ in range(sizes[0] // 2):
            second = first + size
            p, q, r, s = queries[here], queries[here + ONE], queries[there], queries[there + ONE]
            for j in range(size):
                x, y, z, w = (
                    blocks[first + j] - p,
                    blocks[second + j] - q,
                    blocks[first + j] - r,
                    blocks[second + j] - s,
                )
                out[a + j] += x * x + y * y
                out[b + j] += z * z + w * w
            first, here, there = second + size, here + TWO, there + TWO
        if width % TWO:
            p, r = queries[here], queries[there]
            for j in range(size):
                x, z = blocks[first + j] - p, blocks[first + j] - r
                out[a + j] += x * x
                out[b + j] += z * z
        for i in range(row, row + 2):
            hits |= np.int64(_count(out, i * sizes[2], sizes[1], limits[i]) > 0) << i
    return hits


@kernel()
def _append(
    values: Any, place: int, size: int, limit: Any, name: int, scores: Any, names: Int32, begin: int, count: int
) -> int:
    """Append all values that do not exceed the limit, and their names, to a list; return the new length of the list.

    Most vectors contain only values above the limit and are skipped. All other vectors are written without a branch.
    """
    free = np.uint64(begin + count)
    for group in range(0, size, WIDTH):
        if _count(values, place + group, WIDTH, limit) == 0:
            continue
        first = np.uint64(place + group)
        for j in range(np.uint64(WIDTH)):
            value = values[first + j]
            scores[free], names[free] = value, np.int32(name + group) + np.int32(j)
            free += np.uint64(value <= limit)
    return int(free) - begin


@kernel()
def _tighten(scores: Any, names: Int32, begin: int, count: int, width: int, limit: Any) -> Any:
    """Keep the ``width`` smallest scores of a list, or a few more; return their number and the largest."""
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
        # Many scores are equal, so no limit separates exactly ``width`` of them from the rest.
        high, kept = _trim(scores, names, begin, kept, width), width
    return kept, high


@kernel()
def _trim(scores: Any, names: Int32, begin: int, count: int, width: int) -> Any:
    """Keep exactly ``width`` of the smallest scores; return the largest of these."""
    for i in range(begin, begin + width):
        least = i
        for j in range(i + 1, begin + count):
            if scores[j] < scores[least]:
                least = j
        scores[i], scores[least] = scores[least], scores[i]
        names[i], names[least] = names[least], names[i]
    return scores[begin + width - 1]


@kernel(fastmath=REORDER)
def _relative(points: Float64, point: int, middles: Float64, part: int, scale: float, queries: Any, row: int) -> Any:
    """Write the offset of a point from the center of a part as a row of queries; return its squared length."""
    total, begin = np.float32(0), np.uint64(row * points.shape[1])
    here, there = np.uint64(point), np.uint64(part)
    for f in range(np.uint64(points.shape[1])):
        step = np.float32((points[here, f] - middles[there, f]) * scale)
        queries[begin + f] = step
        total += step * step
    return total


@kernel()
def _widest(places: Int64) -> int:
    widest = 0
    for part in range(places.size - 1):
        widest = max(widest, places[part + 1] - places[part])
    return widest


@kernel()
def search_everywhere(
    rows: Int64,
    parts: tuple[Float64, Int32, Int64, Int64, Any, Float64, Float64],
    scale: float,
    width: int,
    distances: Float64,
    indices: Int32,
) -> None:
    """Search every part, and write the nearest neighbors of the points ``rows`` (positions in the order of parts).

    Parameters are described at `search_parts`. Row i of the results belongs to ``rows[i]``. Every row has its own list
    of candidates, so memory grows with the number of rows.
    """
    points, order, starts, places, blocks, middles, _ = parts
    n_dimensions, widest = points.shape[1], _widest(places)
    squared, queries = np.empty(ROWS * widest, np.float32), np.empty(ROWS * n_dimensions, np.float32)
    limits, counts, tops = np.empty(ROWS, np.float32), np.zeros(rows.size, np.int64), np.full(rows.size, BEYOND)
    room = 2 * width + widest + 1
    scores, names = np.empty(rows.size * room, np.float32), np.empty(rows.size * room, np.int32)
    exact = np.empty(room)
    for part in range(places.size - 1):
        size = places[part + 1] - places[part]
        for tile in range(0, rows.size, ROWS):
            for r in range(ROWS):
                m = min(tile + r, rows.size - 1)
                _relative(points, rows[m], middles, part, scale, queries, r)
                limits[r] = tops[m]
            hits = tile_squares(
                queries, blocks, n_dimensions * places[part], (n_dimensions, size, widest), limits, squared
            )
            for r in range(min(ROWS, rows.size - tile)):
                m = tile + r
                if starts[part] <= rows[m] < starts[part + 1]:
                    squared[r * widest + rows[m] - starts[part]] = np.inf
                if hits >> r & 1:
                    counts[m], tops[m] = _take(
                        squared, r * widest, size, starts[part], scores, names, m * room, counts[m], width, tops[m]
                    )
    for m in range(rows.size):
        _write(points, rows[m], order, names, m * room, counts[m], exact, m, distances, indices)


@kernel()
def search_parts(
    first: int,
    parts: tuple[Float64, Int32, Int64, Int64, Any, Float64, Float64],
    near: Int32,
    apart: Any,
    limits: tuple[float, int, Any, Any],
    distances: Float64,
    indices: Int32,
    seen: Any,
) -> None:
    """Write the nearest neighbors of all members of some parts, in ascending order.

    Parameters
    ----------
    first
        First of the consecutive parts.
    parts
        Arrays of `Partition`: points, order, starts, places, blocks, middles, radii.
    near, apart
        Other parts around each part, nearest first, and the scaled distances between the centers, ``(n_parts, n_near)``
        each.
    limits
        Scale of the blocks, number of candidates to keep, share of the reach within which the border of a part must lie
        for the part to be searched, and relative rounding error of a border.
    distances, indices
        Receive the neighbors, ``(n_members, k)``; infinite and -1 where fewer than k were found.
    seen
        Receives the number of points examined, and a lower bound of the distances of all points that were examined and
        discarded, ``(n_members, 2)``.
    """
    points, order, starts, places, blocks, middles, radii = parts
    scale, width, share, slack = limits
    n_dimensions, n_near, widest = points.shape[1], near.shape[1], _widest(places)
    queries, middle = np.empty(ROWS * n_dimensions, np.float32), np.empty(n_dimensions, np.float32)
    squared, tile_tops = np.empty(ROWS * widest, np.float32), np.empty(ROWS, np.float32)
    away, inwards, within = np.empty(widest, np.float32), np.empty(widest, np.float32), np.empty(widest, np.int64)
    counts, tops, reaches = np.empty(widest, np.int64), np.empty(widest, np.float32), np.empty(widest, np.float32)
    looked, furthest = np.empty(widest, np.int64), np.empty(widest, np.float32)
    error = np.float32(4 * ROUNDING)
    # Each member has a list of candidates, of which usually only the first places are used.
    room = 2 * width + widest + 1
    scores, names, exact = np.empty(widest * room, np.float32), np.empty(widest * room, np.int32), np.empty(room)
    for row in range(near.shape[0]):
        own = first + row
        n_members = starts[own + 1] - starts[own]
        for m in range(n_members):
            counts[m], tops[m], looked[m], furthest[m] = 0, BEYOND, 0, 0
        beyond = np.float32(0)
        for i in range(-1, n_near):
            n_within = n_members
            if i < 0:  # the part itself is searched first
                other = own
                for m in range(n_members):
                    within[m] = m
            else:
                if i % 16 == 0:
                    beyond = np.float32(0)
                    for m in range(n_members):
                        beyond = max(beyond, reaches[m] + np.sqrt(inwards[m]) * (1 + slack))
                # No border with this part or with a later part is within the reach of a member.
                if np.float32(0.5) * apart[row, i] > beyond:
                    break
                other = near[row, i]
                for f in range(n_dimensions):
                    middle[f] = (middles[other, f] - middles[own, f]) * scale
                squares(middle, blocks, n_dimensions * places[own], places[own + 1] - places[own], away)
                half = np.float32(0.5) / apart[row, i] if apart[row, i] > 0 else np.float32(0)
                n_within = _near_border(away, inwards, reaches, n_members, half, slack, within)
            size, radius = places[other + 1] - places[other], np.float32(radii[other] * scale)
            for tile in range(0, n_within, ROWS):
                for r in range(ROWS):
                    m = within[min(tile + r, n_within - 1)]
                    length = _relative(points, starts[own] + m, middles, other, scale, queries, r)
                    furthest[m] = max(furthest[m], np.sqrt(length) + radius)
                    tile_tops[r] = tops[m]
                    if i < 0:
                        inwards[m] = length
                hits = tile_squares(
                    queries, blocks, n_dimensions * places[other], (n_dimensions, size, widest), tile_tops, squared
                )
                for r in range(min(ROWS, n_within - tile)):
                    m = within[tile + r]
                    looked[m] += size
                    if i < 0:
                        squared[r * widest + m] = np.inf
                    if hits >> r & 1:
                        counts[m], tops[m] = _take(
                            squared, r * widest, size, starts[other], scores, names, m * room, counts[m], width, tops[m]
                        )
                    reaches[m] = share * (np.sqrt(tops[m]) + error * furthest[m])
        for m in range(n_members):
            to, count, top = starts[own] + m - starts[first], counts[m], tops[m]
            if count > width + LOOSE:
                count, top = _tighten(scores, names, m * room, count, width, top)
            bound = np.sqrt(np.float64(top)) * (1 - (n_dimensions + 8) * ROUNDING) - error * furthest[m]
            seen[to, 0], seen[to, 1] = looked[m], np.inf if top >= BEYOND else bound / scale
            _write(points, starts[own] + m, order, names, m * room, count, exact, to, distances, indices)


@kernel()
def _near_border(away: Any, inwards: Any, reaches: Any, n_members: int, half: Any, slack: Any, within: Int64) -> int:
    """Write the members whose reach extends to the border with another part; return the number of these members."""
    count = 0
    for m in range(n_members):
        # Distance of the point from the plane between the two centers, reduced by the rounding error.
        border = (away[m] * (1 - slack) - inwards[m] * (1 + slack)) * half
        within[count] = m
        count += not border > reaches[m]
    return count


@kernel()
def _take(
    values: Any,
    place: int,
    size: int,
    name: int,
    scores: Any,
    names: Int32,
    begin: int,
    count: int,
    width: int,
    limit: Any,
) -> Any:
    """Append all values that do not exceed the limit to a candidate list.

    If the list is too long, keep only the smallest values and lower the limit. Return the length and the limit of the
    list.
    """
    count = _append(values, place, size, limit, name, scores, names, begin, count)
    if count >= width + (width >> 1) or (limit >= BEYOND and count >= width):
        return _tighten(scores, names, begin, count, width, limit)
    return count, limit


@kernel()
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
    """Write the nearest candidates of a list, sorted by their distances in float64 and then by index."""
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
