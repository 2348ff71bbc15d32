"""The nearest of many centres: in single precision, leaf by leaf of neighbouring centres, with bounds of its rounding.

Points and centres lie in rotated coordinates, see `heatmover.graphs.search.assign`. A leaf holds ``LANES`` centres. Its
products are taken from its own middle, so that rounding is small beside the distances that matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from heatmover._typing import Bool, Float64, FloatArray, Int32, Int64

Float32 = npt.NDArray[np.float32]

# Points of a tile, floats of a vector, and vectors of centres at a time. 6 x 2 sums, two vectors of centres and one
# value of a point fill 15 of the 16 registers of AVX2. Points x vectors, 14 and 50 dimensions, 10^9 products per second
# on one core of a busy Zen 4 whose limit is about 50: see docs/decisions/0033-nearest-landmark.md.
ROWS, WIDTH, VECTORS = 6, 8, 2
# Centres of a leaf.
LANES = 128
# Sums may be reordered and products fused, else nothing vectorises. There is no NaN: points that are not finite in
# single precision never come here.
REORDER = {"reassoc", "contract", "nsz", "nnan"}
# Points that look at the leaves together; as columns of 14 dimensions they fill half of the first cache.
TOGETHER = 256


@intrinsic  # type: ignore[misc]
def add_products(
    typing: Any, rows: Any, stride: Any, leaf: Any, start: Any, n_dimensions: Any, limits: Any, out: Any, least: Any
) -> Any:
    """Write ``start[j] + sum_k rows[p, k] leaf[k, j]`` to ``out[p, j]``; return where one is within its limit, as bits.

    All are flat arrays of float32: ``rows`` (ROWS, stride), ``leaf`` (n_dimensions, LANES), ``start`` (LANES,),
    ``limits`` (ROWS,), ``out`` (ROWS, LANES), ``least`` (ROWS, WIDTH): ``least[p, i]`` gets the least of ``out[p, i]``,
    ``out[p, i + WIDTH]``, ... Bit p of the result tells whether any ``out[p, j]`` is at most ``limits[p]``.

    This is the one kernel that is written in vectors. As a loop over centres it reached half of this speed, for it loads
    and stores every sum for every second dimension; and numba does not turn scalars into vectors.
    """
    signature = types.int64(rows, stride, leaf, start, n_dimensions, limits, out, least)
    return signature, _emit


@intrinsic  # type: ignore[misc]
def subtract(typing: Any, rows: Any, row: Any, middle: Any, stride: Any, out: Any, place: Any) -> Any:
    """Write ``rows[row] - middle`` to ``out[place]`` and return the sum of its squares.

    All are flat arrays of float32: ``rows`` and ``out`` (n, stride), ``middle`` (stride,); stride is a multiple of WIDTH,
    which a loop does not know: for 16 values numba's was as slow as 200 products.
    """
    return types.float32(rows, row, middle, stride, out, place), _emit_difference


def _emit_difference(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit one loop over vectors, and the sum across a vector."""
    rows, middle, out = (
        context.make_array(signature.args[place])(context, builder, arguments[place]).data for place in (0, 2, 4)
    )
    stride, vector = arguments[3], ir.VectorType(ir.FloatType(), WIDTH)
    begin, end = builder.mul(arguments[1], stride), builder.mul(arguments[5], stride)

    def place(array: Any, index: Any) -> Any:
        return builder.bitcast(builder.gep(array, [index]), vector.as_pointer())

    total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * WIDTH))
    builder.store(ir.Constant(vector, [0.0] * WIDTH), total)
    with cgutils.for_range(builder, builder.udiv(stride, ir.Constant(stride.type, WIDTH))) as steps:
        k = builder.mul(steps.index, ir.Constant(stride.type, WIDTH))
        here = builder.load(place(rows, builder.add(begin, k)), align=4)
        away = builder.fsub(here, builder.load(place(middle, k), align=4))
        builder.store(away, place(out, builder.add(end, k)), align=4)
        square = builder.fmul(away, away, flags=("contract",))
        builder.store(builder.fadd(builder.load(total), square, flags=("contract",)), total)
    result = builder.load(total)
    parts = [builder.extract_element(result, ir.Constant(ir.IntType(32), i)) for i in range(WIDTH)]
    while len(parts) > 1:
        parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loops over vectors of centres and over dimensions."""

    def data(place: int) -> Any:
        return context.make_array(signature.args[place])(context, builder, arguments[place]).data

    rows, leaf, start, limits, out, least = (data(place) for place in (0, 2, 3, 5, 6, 7))
    stride, n_dimensions = arguments[1], arguments[4]
    vector = ir.VectorType(ir.FloatType(), WIDTH)

    def number(value: int) -> Any:
        return ir.Constant(n_dimensions.type, value)

    def place(array: Any, index: Any) -> Any:
        return builder.bitcast(builder.gep(array, [index]), vector.as_pointer())

    def read(array: Any, index: Any) -> Any:
        return builder.load(place(array, index), align=4)

    for p in range(ROWS):
        builder.store(ir.Constant(vector, [float("inf")] * WIDTH), place(least, number(p * WIDTH)), align=4)
    with cgutils.for_range(builder, number(LANES // (WIDTH * VECTORS))) as lanes:
        first = builder.mul(lanes.index, number(WIDTH * VECTORS))
        firsts = [builder.add(first, number(WIDTH * v)) for v in range(VECTORS)]
        sums = [[cgutils.alloca_once(builder, vector) for _ in range(VECTORS)] for _ in range(ROWS)]
        for v in range(VECTORS):
            begun = read(start, firsts[v])
            for p in range(ROWS):
                builder.store(begun, sums[p][v])
        with cgutils.for_range(builder, n_dimensions) as dimensions:
            k = dimensions.index
            row = builder.mul(k, number(LANES))
            centers = [read(leaf, builder.add(row, firsts[v])) for v in range(VECTORS)]
            for p in range(ROWS):
                index = builder.add(builder.mul(stride, number(p)), k)
                value = _spread(builder, builder.load(builder.gep(rows, [index])), vector)
                for v in range(VECTORS):
                    product = builder.fmul(value, centers[v], flags=("contract",))
                    total = builder.fadd(builder.load(sums[p][v]), product, flags=("contract",))
                    builder.store(total, sums[p][v])
        for p in range(ROWS):
            lowest = read(least, number(p * WIDTH))
            for v in range(VECTORS):
                total = builder.load(sums[p][v])
                builder.store(total, place(out, builder.add(number(p * LANES), firsts[v])), align=4)
                lowest = builder.select(builder.fcmp_ordered("<", total, lowest), total, lowest)
            builder.store(lowest, place(least, number(p * WIDTH)), align=4)
    bits = number(0)
    for p in range(ROWS):
        limit = _spread(builder, builder.load(builder.gep(limits, [number(p)])), vector)
        within = builder.fcmp_ordered("<=", read(least, number(p * WIDTH)), limit)
        found = builder.icmp_unsigned("!=", builder.bitcast(within, ir.IntType(WIDTH)), ir.Constant(ir.IntType(WIDTH), 0))
        bits = builder.or_(bits, builder.shl(builder.zext(found, ir.IntType(64)), number(p)))
    return bits


def _spread(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector with one value throughout."""
    nothing = ir.Constant(vector, ir.Undefined)
    alone = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(alone, nothing, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH))


@njit(cache=True, nogil=True)
def rotate(points: FloatArray, origin: Float64, unit: float, rotation: Float64, out: Float32, norms: Float64) -> None:
    """Write ``(points - origin) / unit @ rotation`` and the norms of its rows; sums are in double precision.

    ``points`` (n_points, n_dimensions), ``rotation`` (n_dimensions, stride), ``out`` (n_points, stride).
    """
    sums = np.empty(out.shape[1])
    for p in range(points.shape[0]):
        sums[:] = 0.0
        for k in range(points.shape[1]):
            value = (np.float64(points[p, k]) - origin[k]) / unit
            row = rotation[k]
            for i in range(sums.size):
                sums[i] += value * row[i]
        square = 0.0
        for i in range(sums.size):
            square += sums[i] * sums[i]
            out[p, i] = sums[i]
        norms[p] = np.sqrt(square)


@njit(cache=True, nogil=True)
def find_leaves(points: Float32, dimensions: Int32, values: Float32, children: Int32, leaves: Int32) -> None:
    """Write the leaf on whose side of all cuts each point is; a child below zero is leaf ``-1 - child``."""
    for p in range(points.shape[0]):
        node = 0
        while node >= 0:
            node = children[node, 1 if points[p, dimensions[node]] >= values[node] else 0]
        leaves[p] = -1 - node


@njit(cache=True, nogil=True)
def nearest_by_leaves(
    points: Float32,
    norms: Float32,
    own: Int32,
    leaves: Any,
    rounding: tuple[float, float],
    nearest: Int64,
    limits: Float32,
    unsure: Bool,
) -> int:
    """Write the nearest centre of each point, as a place in the leaves, and where rounding may have chosen it.

    Parameters
    ----------
    points, norms, own
        ``(n_points, stride)``, ``(n_points,)`` and ``(n_points,)``: points in the order of their own leaves.
    leaves
        ``columns`` (n_leaves, n_dimensions * LANES), negative; ``halves`` (n_leaves, LANES), half their squares;
        ``middles``, ``low`` and ``high`` (n_leaves, stride); ``radii`` (n_leaves,).
    rounding
        Factors of the error, see `_tile`.
    nearest, limits, unsure
        ``(n_points,)`` each: found, an upper bound of half its square, and whether another may be as near.

    Returns
    -------
    int
        Pairs of a point and a leaf that were looked at.
    """
    columns, halves, middles, low, high, radii = leaves
    n_leaves, stride = middles.shape
    n_dimensions = columns.shape[1] // LANES
    across = np.empty((n_dimensions, TOGETHER), dtype=np.float32)
    gaps, reach = np.empty(TOGETHER, dtype=np.float32), np.empty(TOGETHER, dtype=np.float32)
    rows, order, keys = (
        np.empty(TOGETHER, dtype=np.int64),
        np.empty(n_leaves, dtype=np.int64),
        np.empty(n_leaves, dtype=np.float32),
    )
    lows, second = np.empty(TOGETHER, dtype=np.float32), np.empty(TOGETHER, dtype=np.float32)
    work = _work(stride)
    looked_at = 0
    for start in range(0, points.shape[0], TOGETHER):
        stop = min(start + TOGETHER, points.shape[0])
        count = stop - start
        here, sizes, own_here = points[start:stop], norms[start:stop], own[start:stop]
        state = (nearest[start:stop], limits[start:stop], lows[:count], second[:count])
        state[1][:] = np.inf
        state[2][:] = np.inf
        state[3][:] = np.inf
        for k in range(n_dimensions):
            for p in range(count):
                across[k, p] = here[p, k]
        begin = 0
        while begin < count:
            end = begin + 1
            while end < count and own_here[end] == own_here[begin]:
                end += 1
            for p in range(begin, end):
                rows[p - begin] = p
            g = own_here[begin]
            leaf = (columns[g], halves[g], middles[g], radii[g])
            _look(here, sizes, rows[: end - begin], leaf, g, rounding, work, state)
            looked_at += end - begin
            begin = end
        found = _leaves_in_reach(here, _reach(sizes, state[1], reach), middles, low, high, n_dimensions, order, keys)
        for i in range(found):
            g = order[i]
            _reach(sizes, state[1], reach)
            n_rows = _points_in_reach(across, count, low[g], high[g], reach, own_here, g, gaps, rows)
            if n_rows > 0:
                leaf = (columns[g], halves[g], middles[g], radii[g])
                _look(here, sizes, rows[:n_rows], leaf, g, rounding, work, state)
                looked_at += n_rows
        for p in range(count):
            unsure[start + p] = state[3][p] <= state[1][p]
    return looked_at


@njit(cache=True, nogil=True)
def candidates_by_leaves(
    points: Float32,
    norms: Float32,
    limits: Float32,
    leaves: Any,
    rounding: tuple[float, float],
    which: Int64,
    places: Int64,
) -> tuple[int, int]:
    """Write pairs of a point and a centre that may be its nearest; return how many, and of how many points.

    It stops before the first point whose pairs do not fit any more; those of one point fit always.
    """
    columns, halves, middles, low, high, radii = leaves
    n_leaves, stride = middles.shape
    n_dimensions = columns.shape[1] // LANES
    rows, reach = np.zeros(1, dtype=np.int64), np.empty(1, dtype=np.float32)
    work = _work(stride)
    _, squares, errors, _, out, _ = work
    count = 0
    for p in range(points.shape[0]):
        before = count
        reach_here = _reach(norms[p : p + 1], limits[p : p + 1], reach)
        for g in range(n_leaves):
            gap = np.float32(0)
            for k in range(n_dimensions):
                side = max(low[g, k] - points[p, k], points[p, k] - high[g, k], np.float32(0))
                gap += side * side
            if gap > reach_here:
                continue
            leaf = (columns[g], halves[g], middles[g], radii[g])
            if _tile(points[p : p + 1], norms[p : p + 1], limits[p : p + 1], rows, leaf, rounding, work) == 0:
                continue
            for j in range(LANES):
                if squares[0] + out[j] - errors[0] <= limits[p]:
                    if count == which.size:
                        return before, p
                    which[count], places[count] = p, g * LANES + j
                    count += 1
    return count, points.shape[0]


@njit(cache=True, nogil=True)
def _work(stride: int) -> Any:
    """Return room for a tile: points from a leaf's middle, their half squares, errors and limits, products, least."""
    return (
        np.empty(ROWS * stride, dtype=np.float32),
        np.empty(ROWS, dtype=np.float32),
        np.empty(ROWS, dtype=np.float32),
        np.empty(ROWS, dtype=np.float32),
        np.empty(ROWS * LANES, dtype=np.float32),
        np.empty(ROWS * WIDTH, dtype=np.float32),
    )


@njit(cache=True, nogil=True, fastmath=REORDER)
def _tile(
    points: Float32,
    norms: Float32,
    largest: Float32,
    rows: Int64,
    leaf: Any,
    rounding: tuple[float, float],
    work: Any,
) -> int:
    """Let up to ROWS points look at a leaf from its middle; return, as bits, which of them may find their nearest there.

    With a the distance of a point from the middle, r the leaf's radius and x the point's norm, half a square is wrong by
    at most ``rounding[0] (a + r)^2 + rounding[1] (a + r) x``: what sums of products lose, and what the point lost when
    it became single.
    """
    columns, halves, middle, radius = leaf
    values, squares, errors, limits, out, least = work
    stride = middle.size
    for i in range(ROWS):
        p = rows[min(i, rows.size - 1)]
        square = subtract(points, p, middle, stride, values, i)
        reach = np.sqrt(square) + radius
        error = reach * (rounding[0] * reach + rounding[1] * norms[p])
        squares[i], errors[i] = square * np.float32(0.5), error
        limits[i] = largest[p] - square * np.float32(0.5) + error
    return add_products(values, stride, columns, halves, columns.size // LANES, limits, out, least)  # type: ignore[no-any-return]


@njit(cache=True, nogil=True, fastmath=REORDER)
def _look(
    points: Float32, norms: Float32, rows: Int64, leaf: Any, number: int, rounding: Any, work: Any, state: Any
) -> None:
    """Let some points look at a leaf; ``state``: nearest, its largest and least half square, the least of all others."""
    _, squares, errors, limits, out, least = work
    nearest, largest, lowest, second = state
    for first in range(0, rows.size, ROWS):
        some = rows[first : first + ROWS]
        hits = _tile(points, norms, largest, some, leaf, rounding, work)
        if hits == 0:
            continue
        for i in range(some.size):
            if not (hits >> i) & 1:
                continue
            p, square, error, limit = some[i], squares[i], errors[i], limits[i]
            for j in range(WIDTH):  # others of the same leaf that are farther than both errors cannot be nearest
                limit = min(limit, least[i * WIDTH + j] + np.float32(2.1) * error)
            for j in range(LANES):
                if out[i * LANES + j] <= limit:
                    half = square + out[i * LANES + j]
                    if half + error < largest[p]:
                        second[p] = min(second[p], lowest[p])
                        largest[p], lowest[p], nearest[p] = half + error, half - error, number * LANES + j
                    else:
                        second[p] = min(second[p], half - error)


@njit(cache=True, nogil=True, fastmath=REORDER)
def _reach(norms: Float32, largest: Float32, reach: Float32) -> float:
    """Write squared distances beyond which a box cannot hold a nearer centre; return the largest.

    A gap g between a point of norm x, in single precision, and a box is too large by at most 2^-23 x, which takes less
    than 0.001 g^2 + 2e-11 x^2 off its square; another 0.001 g^2 is for sums.
    """
    most = np.float32(0)
    for p in range(norms.size):
        reach[p] = (np.float32(2) * largest[p] + np.float32(2e-11) * norms[p] * norms[p]) * np.float32(1.003)
        most = max(most, reach[p])
    return most


@njit(cache=True, nogil=True, fastmath=REORDER)
def _points_in_reach(
    across: Float32,
    count: int,
    low: Float32,
    high: Float32,
    reach: Float32,
    own: Int32,
    number: int,
    gaps: Float32,
    rows: Int64,
) -> int:
    """Write the points, of other leaves, in whose reach a box is; return how many."""
    gaps[:count] = 0
    for k in range(across.shape[0]):
        column = across[k, :count]
        bottom, top = low[k], high[k]
        for p in range(count):
            below, above = bottom - column[p], column[p] - top
            side = below if below > above else above
            side = side if side > 0 else np.float32(0)
            gaps[p] += side * side
    found = 0
    for p in range(count):
        rows[found] = p
        found += (gaps[p] <= reach[p]) & (own[p] != number)
    return found


@njit(cache=True, nogil=True, fastmath=REORDER)
def _leaves_in_reach(
    points: Float32,
    reach: float,
    middles: Float32,
    low: Float32,
    high: Float32,
    n_dimensions: int,
    order: Int64,
    keys: Float32,
) -> int:
    """Write the leaves that any of some points may need, the nearest to their mean first; return how many."""
    bottom, top, mean = points[0].copy(), points[0].copy(), np.zeros(n_dimensions, dtype=np.float32)
    for p in range(points.shape[0]):
        for k in range(n_dimensions):
            value = points[p, k]
            bottom[k] = value if value < bottom[k] else bottom[k]
            top[k] = value if value > top[k] else top[k]
            mean[k] += value
    for k in range(n_dimensions):
        mean[k] /= np.float32(points.shape[0])
    count = 0
    for g in range(middles.shape[0]):
        gap, away = np.float32(0), np.float32(0)
        for k in range(n_dimensions):
            below, above = low[g, k] - top[k], bottom[k] - high[g, k]
            side = below if below > above else above
            side = side if side > 0 else np.float32(0)
            gap += side * side
            away += (mean[k] - middles[g, k]) * (mean[k] - middles[g, k])
        if gap <= reach:
            i = count
            while i > 0 and keys[i - 1] > away:
                keys[i], order[i] = keys[i - 1], order[i - 1]
                i -= 1
            keys[i], order[i] = away, g
            count += 1
    return count
