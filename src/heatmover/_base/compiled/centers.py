"""The nearest of many centers: in single precision, leaf by leaf of neighboring centers, with bounds of its rounding.

Points and centers lie in rotated coordinates, see `heatmover.graphs.centers`. A leaf holds ``LANES`` centers. Its
products are taken from its own middle, so that rounding is small beside the distances that matter.

``tiles`` (n_leaves, (n_dimensions + 1) * LANES) holds a leaf's centers from its middle, negative, dimension by
dimension, and then half of their squares; ``boxes`` (n_leaves, 3, stride) its least and largest coordinates and its
middle; ``radii`` (n_leaves,) the distance of its farthest center from the middle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Float64, FloatArray, Int32, Int64

Float32 = npt.NDArray[np.float32]

# Points of a tile, a multiple of three, and columns of centers in which the least is looked for.
ROWS, WIDTH = 6, 8
# Centers of a leaf. In microseconds a point, for leaves of 64 and 128: 27,000 centers of the simulated cells 1.7 and
# 1.5, of a Gaussian in 8, 14, 30 and 50 dimensions 3.1 and 2.4, 11.3 and 9.8, 32 and 27, 47 and 45. Smaller leaves
# leave out more, but each takes the time of 20 products to see a point from its middle.
LANES = 128
# Points that look at the leaves together. 128, 256 and 512 are within 5 % of each other.
TOGETHER = 256
# What a tile writes, in one array: products (ROWS, LANES), the least of every eighth (ROWS, WIDTH), limits, half
# squares of the distances from the middle and errors (ROWS,), and points from the middle (ROWS, stride).
LEAST = ROWS * LANES
LIMITS = LEAST + ROWS * WIDTH
SQUARES = LIMITS + ROWS
ERRORS = SQUARES + ROWS
VALUES = ERRORS + ROWS
# Bounds of a point: of half the square of the nearest so far, the largest and the least it may be; the least of others.
LARGEST, LOWEST, SECOND = 0, 1, 2
# More than what products and their sums lose below the range of single precision, which ends at 1e-38.
LEAST_ERROR = np.float32(1e-35)
# Unsigned, as places.
ONE, LANE = np.uint64(1), np.uint64(LANES)
# Sums may be reordered and products fused, else nothing vectorises. There is no NaN: points that are not finite in
# single precision never come here.
REORDER = {"reassoc", "contract", "nsz", "nnan"}


@kernel(fastmath=REORDER)
def _add_products(work: Float32, stride: int, tiles: Float32, leaf: int, n_dimensions: int) -> Any:
    """Write the products of a tile's points with a leaf's centers; return which have one within their limit, as bits.

    ``out[p, j] = halves[j] + sum_k values[p, k] columns[k, j]``. Bit p tells whether any ``out[p, j]`` is at most
    ``limits[p]``. Then ``least[p, i] = min(out[p, i], out[p, i + WIDTH], ...)``. Three points at a time, so that each
    center is read once for all of them. Places are unsigned: an index that might be negative prevents vectors.
    """
    hits, flat, start = 0, tiles.reshape(-1), np.uint64(leaf * tiles.shape[1])
    for p in range(0, ROWS, 3):
        first = np.uint64(p * LANES)
        second, third = first + LANE, first + LANE + LANE
        a = np.uint64(VALUES + p * stride)
        b, c = a + np.uint64(stride), a + np.uint64(2 * stride)
        at = start + np.uint64(n_dimensions * LANES)
        for j in range(LANE):
            half = flat[at + j]
            work[first + j], work[second + j], work[third + j] = half, half, half
        at = start
        for _ in range(n_dimensions // 2):
            here, there = ONE + ONE, at + LANE
            u, v, w = work[a], work[b], work[c]
            x, y, z = work[a + ONE], work[b + ONE], work[c + ONE]
            for j in range(LANE):
                m, n = flat[at + j], flat[there + j]
                work[first + j] += u * m + x * n
                work[second + j] += v * m + y * n
                work[third + j] += w * m + z * n
            at, a, b, c = there + LANE, a + here, b + here, c + here
        if n_dimensions % 2:
            u, v, w = work[a], work[b], work[c]
            for j in range(LANE):
                m = flat[at + j]
                work[first + j] += u * m
                work[second + j] += v * m
                work[third + j] += w * m
        for row in range(p, p + 3):
            least, first = np.float32(np.inf), np.uint64(row * LANES)
            for j in range(LANE):
                least = min(least, work[first + j])
            if least <= work[LIMITS + row]:
                hits |= 1 << row
                for i in range(WIDTH):
                    least = work[row * LANES + i]
                    for j in range(i, LANES, WIDTH):
                        least = min(least, work[row * LANES + j])
                    work[LEAST + row * WIDTH + i] = least
    return hits


@kernel(fastmath=REORDER)
def _subtract(points: Float32, point: int, boxes: Float32, leaf: int, stride: int, work: Float32, row: int) -> Any:
    """Write a point as seen from a leaf's middle to a row of a tile, and return the square of its distance."""
    here, there, to = points[point], boxes[leaf, 2], np.uint64(VALUES + row * stride)
    total = np.float32(0)
    for k in range(np.uint64(stride)):
        away = here[k] - there[k]
        work[to + k] = away
        total += away * away
    return total


@kernel(fastmath=REORDER - {"nnan"})
def rotate(points: FloatArray, origin: Float64, scale: float, rotation: Float64, out: Float32, norms: Float32) -> None:
    """Write ``scale (points - origin) @ rotation`` and the norms of its rows; sums are in double precision.

    ``points`` (n_points, n_dimensions), ``rotation`` (stride, stride) with zeros beyond, or empty to leave the axes as
    they are, ``out`` (n_points, stride).
    """
    n_points, n_dimensions = points.shape
    stride = out.shape[1]
    sums, values = np.empty(stride), np.zeros(stride)
    n_turned = n_dimensions if rotation.size else 0
    for p in range(n_points):
        for k in range(n_dimensions):
            values[k] = (np.float64(points[p, k]) - origin[k]) * scale
        for i in range(stride):
            sums[i] = 0.0 if rotation.size else values[i]
        for k in range(0, n_turned, 4):  # four dimensions a pass, for each pass reads the sums
            a, b, c, d = values[k], values[k + 1], values[k + 2], values[k + 3]
            for i in range(stride):
                sums[i] += (a * rotation[k, i] + b * rotation[k + 1, i]) + (
                    c * rotation[k + 2, i] + d * rotation[k + 3, i]
                )
        square = 0.0
        for i in range(stride):
            square += sums[i] * sums[i]
            out[p, i] = sums[i]
        norms[p] = np.sqrt(square)


@kernel()
def find_leaves(points: Float32, dimensions: Int32, values: Float32, children: Int32, leaves: Int32) -> None:
    """Write the leaf on whose side of all cuts each point is; a child below zero is leaf ``-1 - child``."""
    for p in range(points.shape[0]):
        node = 0
        while node >= 0:
            node = children[node, 1 if points[p, dimensions[node]] >= values[node] else 0]
        leaves[p] = -1 - node


@kernel()
def nearest_by_leaves(
    points: Float32,
    norms: Float32,
    own: Int32,
    tiles: Float32,
    boxes: Float32,
    radii: Float32,
    rounding: Float32,
    nearest: Int64,
    bounds: Float32,
) -> None:
    """Write the nearest center of each point, as a place in the leaves.

    Parameters
    ----------
    points, norms, own
        ``(n_points, stride)``, ``(n_points,)`` and ``(n_points,)``: points in the order of their own leaves.
    tiles, boxes, radii
        The leaves.
    rounding
        ``(2,)``: factors of the error, see `_error`.
    nearest, bounds
        ``(n_points,)``, and ``(3, n_points)``, infinite at first. Where the second is not above the largest, another
        center may be as near.
    """
    n_leaves, _, stride = boxes.shape
    across = np.empty((stride, TOGETHER), dtype=np.float32)
    gaps, reach = np.empty(TOGETHER, dtype=np.float32), np.empty(TOGETHER, dtype=np.float32)
    rows, order = np.empty(TOGETHER, dtype=np.int64), np.empty(n_leaves, dtype=np.int64)
    keys, work = np.empty(n_leaves, dtype=np.float32), np.empty(VALUES + ROWS * stride, dtype=np.float32)
    for start in range(0, points.shape[0], TOGETHER):
        stop = min(start + TOGETHER, points.shape[0])
        for k in range(stride):
            for p in range(start, stop):
                across[k, p - start] = points[p, k]
        for turn in range(2):  # each point at its own leaf, and then at those in reach
            if turn == 0:
                n_visits = _own_leaves(own, start, stop, order)
            else:
                most = _reach(norms, bounds, start, stop, reach)
                n_visits = _leaves_in_reach(across, stop - start, most, boxes, order, keys)
            for visit in range(n_visits):
                leaf = order[visit]
                if turn == 1:
                    _reach(norms, bounds, start, stop, reach)
                    _gaps(across, stop - start, boxes, leaf, gaps)
                n_rows = _rows(own, start, stop, leaf, turn == 0, gaps, reach, rows)
                _look(points, norms, rows, n_rows, leaf, tiles, boxes, radii, rounding, work, nearest, bounds)


@kernel()
def candidates_by_leaves(
    points: Float32,
    norms: Float32,
    bounds: Float32,
    tiles: Float32,
    boxes: Float32,
    radii: Float32,
    rounding: Float32,
    which: Int64,
    places: Int64,
) -> tuple[int, int]:
    """Write pairs of a point and a center that may be its nearest; return how many, and of how many points.

    It stops before the first point whose pairs do not fit any more; those of one point fit always.
    """
    n_leaves, _, stride = boxes.shape
    rows, reach = np.empty(1, dtype=np.int64), np.empty(1, dtype=np.float32)
    work = np.empty(VALUES + ROWS * stride, dtype=np.float32)
    count = 0
    for p in range(points.shape[0]):
        before, rows[0] = count, p
        _reach(norms, bounds, p, p + 1, reach)
        for leaf in range(n_leaves):
            gap = np.float32(0)
            for k in range(stride):
                side = max(boxes[leaf, 0, k] - points[p, k], points[p, k] - boxes[leaf, 1, k], np.float32(0))
                gap += side * side
            if gap > reach[0]:
                continue
            if (
                _tile(points, norms, rows, np.int64(0), np.int64(1), leaf, tiles, boxes, radii, rounding, work, bounds)
                == 0
            ):
                continue
            for j in range(LANES):
                half, product = work[SQUARES], work[j]
                if half + product - work[ERRORS] > bounds[LARGEST, p]:
                    continue
                if half + product - _own_error(half, tiles, leaf, j, norms[p], rounding) <= bounds[LARGEST, p]:
                    if count == which.size:
                        return before, p
                    which[count], places[count] = p, leaf * LANES + j
                    count += 1
    return count, points.shape[0]


@kernel(fastmath=REORDER)
def _error(reach: float, norm: float, rounding: Float32) -> Any:
    """Return by how much half a square may be wrong.

    With a and r the distances of a point and of a center from the middle of a leaf, ``reach`` their sum, and x the
    point's norm, it is ``rounding[0] (a + r)^2 + rounding[1] (a + r) x`` and what is below the range of single
    precision: what sums of products lose, and what the point lost when it became single.
    """
    return reach * (rounding[0] * reach + rounding[1] * norm) + LEAST_ERROR


@kernel(fastmath=REORDER)
def _own_error(half: float, tiles: Float32, leaf: int, lane: int, norm: float, rounding: Float32) -> Any:
    """Return the error for one center, which in a leaf with a remote one is much less than that for all of them."""
    other = tiles[leaf, tiles.shape[1] - LANES + lane]
    return _error(np.sqrt(np.float32(2) * half) + np.sqrt(np.float32(2) * other), norm, rounding)


@kernel(fastmath=REORDER, inline="always")
def _tile(
    points: Float32,
    norms: Float32,
    rows: Int64,
    first: int,
    n_rows: int,
    leaf: int,
    tiles: Float32,
    boxes: Float32,
    radii: Float32,
    rounding: Float32,
    work: Float32,
    bounds: Float32,
) -> Any:
    """Let up to ROWS points look at a leaf from its middle; return, as bits, which may have their nearest there."""
    stride = boxes.shape[2]
    for i in range(ROWS):
        p = rows[min(first + i, n_rows - 1)]
        square = _subtract(points, p, boxes, leaf, stride, work, i)
        error = _error(np.sqrt(square) + radii[leaf], norms[p], rounding)
        work[SQUARES + i], work[ERRORS + i] = square * np.float32(0.5), error
        work[LIMITS + i] = bounds[LARGEST, p] - square * np.float32(0.5) + error
    return _add_products(work, stride, tiles, leaf, tiles.shape[1] // LANES - 1)


@kernel(fastmath=REORDER)
def _look(
    points: Float32,
    norms: Float32,
    rows: Int64,
    n_rows: int,
    leaf: int,
    tiles: Float32,
    boxes: Float32,
    radii: Float32,
    rounding: Float32,
    work: Float32,
    nearest: Int64,
    bounds: Float32,
) -> None:
    """Let some points look at a leaf, and change their nearest and its bounds."""
    for first in range(0, n_rows, ROWS):
        hits = _tile(points, norms, rows, first, n_rows, leaf, tiles, boxes, radii, rounding, work, bounds)
        if hits == 0:
            continue
        for i in range(min(ROWS, n_rows - first)):
            if not (hits >> i) & 1:
                continue
            p, half, error, limit = rows[first + i], work[SQUARES + i], work[ERRORS + i], work[LIMITS + i]
            for j in range(WIDTH):  # others of the same leaf that are farther than both errors cannot be nearest
                limit = min(limit, work[LEAST + i * WIDTH + j] + np.float32(2.1) * error)
            for column in range(WIDTH):
                if work[LEAST + i * WIDTH + column] > limit:
                    continue
                for j in range(column, LANES, WIDTH):
                    product = work[i * LANES + j]
                    if product > limit:
                        continue
                    error = _own_error(half, tiles, leaf, j, norms[p], rounding)
                    if half + product + error < bounds[LARGEST, p]:
                        bounds[SECOND, p] = min(bounds[SECOND, p], bounds[LOWEST, p])
                        bounds[LARGEST, p], bounds[LOWEST, p] = half + product + error, half + product - error
                        nearest[p] = leaf * LANES + j
                    else:
                        bounds[SECOND, p] = min(bounds[SECOND, p], half + product - error)


@kernel()
def _rows(
    own: Int32, start: int, stop: int, leaf: int, at_home: bool, gaps: Float32, reach: Float32, rows: Int64
) -> int:
    """Write the points that are at home in a leaf, or the others that have it in reach; return how many."""
    count = 0
    for p in range(start, stop):
        rows[count] = p
        count += (own[p] == leaf) == at_home and (at_home or gaps[p - start] <= reach[p - start])
    return count


@kernel()
def _own_leaves(own: Int32, start: int, stop: int, order: Int64) -> int:
    """Write the leaves of some points, which are in the order of their leaves; return how many there are."""
    count = 0
    for p in range(start, stop):
        if count == 0 or order[count - 1] != own[p]:
            order[count] = own[p]
            count += 1
    return count


@kernel(fastmath=REORDER)
def _reach(norms: Float32, bounds: Float32, start: int, stop: int, reach: Float32) -> Any:
    """Write squared distances beyond which a box cannot hold a nearer center; return the largest.

    A gap g between a point of norm x, in single precision, and a box is too large by at most 2^-23 x, which takes less
    than 0.001 g^2 + 2e-11 x^2 off its square; another 0.001 g^2 is for sums.
    """
    most = np.float32(0)
    for p in range(start, stop):
        here = (np.float32(2) * bounds[LARGEST, p] + np.float32(2e-11) * norms[p] * norms[p]) * np.float32(1.003)
        reach[p - start] = here
        most = max(most, here)
    return most


@kernel(fastmath=REORDER)
def _gaps(across: Float32, count: int, boxes: Float32, leaf: int, gaps: Float32) -> None:
    """Write the squared distances of points, columns of ``across``, from a box."""
    for p in range(count):
        gaps[p] = 0
    for k in range(across.shape[0]):
        low, high = boxes[leaf, 0, k], boxes[leaf, 1, k]
        for p in range(count):
            below, above = low - across[k, p], across[k, p] - high
            side = below if below > above else above
            side = side if side > 0 else np.float32(0)
            gaps[p] += side * side


@kernel(fastmath=REORDER)
def _leaves_in_reach(across: Float32, count: int, reach: float, boxes: Float32, order: Int64, keys: Float32) -> int:
    """Write the leaves that any of some points may need, the nearest to their mean first; return how many."""
    n_leaves, _, stride = boxes.shape
    low, high, mean = np.empty(stride, np.float32), np.empty(stride, np.float32), np.empty(stride, np.float32)
    for k in range(stride):
        least, most, total = across[k, 0], across[k, 0], np.float32(0)
        for p in range(count):
            least, most, total = min(least, across[k, p]), max(most, across[k, p]), total + across[k, p]
        low[k], high[k], mean[k] = least, most, total / np.float32(count)
    count_near = 0
    for leaf in range(n_leaves):
        gap, away = np.float32(0), np.float32(0)
        for k in range(stride):
            below, above = boxes[leaf, 0, k] - high[k], low[k] - boxes[leaf, 1, k]
            side = below if below > above else above
            side = side if side > 0 else np.float32(0)
            gap += side * side
            away += (mean[k] - boxes[leaf, 2, k]) * (mean[k] - boxes[leaf, 2, k])
        if gap > reach:
            continue
        i = count_near
        while i > 0 and keys[i - 1] > away:
            keys[i], order[i] = keys[i - 1], order[i - 1]
            i -= 1
        keys[i], order[i] = away, leaf
        count_near += 1
    return count_near
