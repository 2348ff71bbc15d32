"""Find nearest centers in single precision, with bounds on rounding errors; only `graphs.centers` calls it.

Points and centers are in rotated coordinates, see `heatmover.graphs.centers`. A leaf contains ``LANES`` centers.
Products are computed relative to the middle of the leaf, so that rounding errors are small compared with the relevant
distances.

``tiles`` (n_leaves, (n_dimensions + 1) * LANES) contains, for each leaf, the negative offsets of the centers from the
middle of the leaf, dimension by dimension, and then half of the squared lengths of these offsets. ``boxes`` (n_leaves,
3, stride) contains the smallest and largest coordinates and the middle of each leaf. ``radii`` (n_leaves,) contains the
distance from the middle to the farthest center of each leaf.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Float64, FloatArray, Int32, Int64

Float32 = npt.NDArray[np.float32]

# Number of points per tile, a multiple of three, and number of separate minima per point; see `_add_products`.
ROWS, WIDTH = 6, 8
# Number of centers per leaf. Time of the search in microseconds per point:
#     centers per leaf                            64    128
#     27,000 centers of the simulated cells      1.7    1.5
#     centers of a Gaussian in 8 dimensions      3.1    2.4
#     centers of a Gaussian in 14 dimensions    11.3    9.8
#     centers of a Gaussian in 30 dimensions      32     27
#     centers of a Gaussian in 50 dimensions      47     45
# Smaller leaves exclude more centers, but converting a point to coordinates relative to the middle of a leaf takes as
# long as 20 products.
LANES = 128
# Number of points whose leaves are searched together. Run times with 128, 256 and 512 points differ by at most 5%.
TOGETHER = 256
# Offsets of the results of a tile in one array: products (ROWS, LANES); minima of every eighth product (ROWS, WIDTH);
# limits, half squared distances from the middle, and errors (ROWS,) each; points relative to the middle (ROWS, stride).
LEAST = ROWS * LANES
LIMITS = LEAST + ROWS * WIDTH
SQUARES = LIMITS + ROWS
ERRORS = SQUARES + ROWS
VALUES = ERRORS + ROWS
# Rows of ``bounds``: for each point, the upper and the lower bound of half its squared distance from the nearest center
# so far, and the lower bound for all other centers.
LARGEST, LOWEST, SECOND = 0, 1, 2
# Upper bound of the error due to products and sums below the range of single precision, which ends at 1e-38.
LEAST_ERROR = np.float32(1e-35)
# These constants are unsigned, because they are used as array positions.
ONE, LANE = np.uint64(1), np.uint64(LANES)
# Allow the compiler to reorder sums and fuse products, because otherwise the loops could not use vector registers. NaN
# cannot occur, because callers exclude points that are not finite in single precision.
REORDER = {"reassoc", "contract", "nsz", "nnan"}


@kernel(fastmath=REORDER)
def _add_products(work: Float32, stride: int, tiles: Float32, leaf: int, n_dimensions: int) -> Any:
    """Write the products of a tile's points with a leaf's centers; return a bit mask of the points within limits.

    ``out[p, j] = halves[j] + sum_k values[p, k] columns[k, j]``. Bit p is set if any ``out[p, j]`` is at most
    ``limits[p]``. For these points only, the function also writes ``least[p, i] = min(out[p, i], out[p, i + WIDTH],
    ...)``. Three points are computed at a time, so that each center is read once for all three. Positions are unsigned,
    because an index that might be negative prevents vector code.
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
    """Write the offset of a point from a leaf's middle into a row of a tile; return its squared length."""
    here, there, to = points[point], boxes[leaf, 2], np.uint64(VALUES + row * stride)
    total = np.float32(0)
    for k in range(np.uint64(stride)):
        away = here[k] - there[k]
        work[to + k] = away
        total += away * away
    return total


@kernel(fastmath=REORDER - {"nnan"})
def rotate(points: FloatArray, origin: Float64, scale: float, rotation: Float64, out: Float32, norms: Float32) -> None:
    """Write ``scale (points - origin) @ rotation`` and the norms of its rows, with sums in double precision.

    ``points`` is (n_points, n_dimensions) and ``out`` is (n_points, stride). ``rotation`` is (stride, stride), padded
    with zeros, or empty to keep the axes.
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
        for k in range(0, n_turned, 4):  # four dimensions per pass, because every pass reads and writes the sums
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
    """Follow the cuts of the tree, and write the leaf of each point; a negative child c is the leaf ``-1 - c``."""
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
    """Write the nearest center of each point, as the place of this center in the leaves.

    Parameters
    ----------
    points, norms, own
        Points in the order of their leaves, their norms and their leaves, ``(n_points, stride)``, ``(n_points,)`` and
        ``(n_points,)``.
    tiles, boxes, radii
        Leaves, as described at the top of the module.
    rounding
        Factors of the error, see `_error`, ``(2,)``.
    nearest, bounds
        Receive the nearest center ``(n_points,)`` and the bounds ``(3, n_points)``, which must be infinite at first.
        If the bound SECOND is not above LARGEST, another center may be as near.
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
        for turn in range(2):  # each point searches its own leaf first, and then the leaves within reach
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
                _search_leaf(points, norms, rows, n_rows, leaf, tiles, boxes, radii, rounding, work, nearest, bounds)


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
    """Write pairs of a point and a center that may be its nearest; return the numbers of pairs and of points.

    The search stops before the first point whose pairs do not fit; the arrays have room for all pairs of one point.
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
    """Return a bound on the error of half a squared distance.

    Let a and r be the distances of a point and of a center from the middle of a leaf, ``reach`` their sum, and x the
    norm of the point. The bound is ``rounding[0] (a + r)^2``, for sums of products, plus ``rounding[1] (a + r) x``, for
    the conversion of the point to single precision, plus the error below the range of single precision.
    """
    return reach * (rounding[0] * reach + rounding[1] * norm) + LEAST_ERROR


@kernel(fastmath=REORDER)
def _own_error(half: float, tiles: Float32, leaf: int, lane: int, norm: float, rounding: Float32) -> Any:
    """Return the error bound for one center, which is much smaller than the bound for a leaf with a remote center."""
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
    """Compare up to ROWS points with a leaf; return a bit mask of points whose nearest center may be there."""
    stride = boxes.shape[2]
    for i in range(ROWS):
        p = rows[min(first + i, n_rows - 1)]
        square = _subtract(points, p, boxes, leaf, stride, work, i)
        error = _error(np.sqrt(square) + radii[leaf], norms[p], rounding)
        work[SQUARES + i], work[ERRORS + i] = square * np.float32(0.5), error
        work[LIMITS + i] = bounds[LARGEST, p] - square * np.float32(0.5) + error
    return _add_products(work, stride, tiles, leaf, tiles.shape[1] // LANES - 1)


@kernel(fastmath=REORDER)
def _search_leaf(
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
    """Search a leaf for some points, and update their nearest centers and bounds."""
    for first in range(0, n_rows, ROWS):
        hits = _tile(points, norms, rows, first, n_rows, leaf, tiles, boxes, radii, rounding, work, bounds)
        if hits == 0:
            continue
        for i in range(min(ROWS, n_rows - first)):
            if not (hits >> i) & 1:
                continue
            p, half, error, limit = rows[first + i], work[SQUARES + i], work[ERRORS + i], work[LIMITS + i]
            for j in range(WIDTH):  # exclude centers farther than the leaf's nearest center by more than both errors
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
    """Write the points of a leaf, or the other points that have this leaf within reach; return the number written."""
    count = 0
    for p in range(start, stop):
        rows[count] = p
        count += (own[p] == leaf) == at_home and (at_home or gaps[p - start] <= reach[p - start])
    return count


@kernel()
def _own_leaves(own: Int32, start: int, stop: int, order: Int64) -> int:
    """Write the distinct leaves of points that are sorted by leaf; return the number of leaves."""
    count = 0
    for p in range(start, stop):
        if count == 0 or order[count - 1] != own[p]:
            order[count] = own[p]
            count += 1
    return count


@kernel(fastmath=REORDER)
def _reach(norms: Float32, bounds: Float32, start: int, stop: int, reach: Float32) -> Any:
    """Write the squared distances beyond which no box can contain a nearer center; return the largest of them.

    In single precision, the gap g between a point of norm x and a box is overestimated by at most 2^-23 x. The square
    of the gap is therefore overestimated by less than 0.001 g^2 + 2e-11 x^2, and by another 0.001 g^2 due to sums.
    """
    most = np.float32(0)
    for p in range(start, stop):
        here = (np.float32(2) * bounds[LARGEST, p] + np.float32(2e-11) * norms[p] * norms[p]) * np.float32(1.003)
        reach[p - start] = here
        most = max(most, here)
    return most


@kernel(fastmath=REORDER)
def _gaps(across: Float32, count: int, boxes: Float32, leaf: int, gaps: Float32) -> None:
    """Write the squared distances of points, the columns of ``across``, from a box."""
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
    """Write the leaves within reach, sorted by distance from the mean of the points; return the number of leaves."""
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
