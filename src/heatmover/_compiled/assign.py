"""The nearest of many centres: in single precision, leaf by leaf of neighbouring centres, with bounds of its rounding.

Points and centres lie in rotated coordinates, see `heatmover.graphs.search.assign`. A leaf holds ``LANES`` centres. Its
products are taken from its own middle, so that rounding is small beside the distances that matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from heatmover._typing import Bool, Float64, FloatArray, Int32, Int64

Float32 = npt.NDArray[np.float32]

# Points of a tile, floats of a vector, and vectors of centres at a time. 6 x 2 sums, two vectors of centres and one
# value of a point fill 15 of the 16 registers of AVX2.
ROWS, WIDTH, VECTORS = 6, 8, 2
# Centres of a leaf.
LANES = 128
# Sums may be reordered and products fused, else nothing vectorises. There is no NaN: points that are not finite in
# single precision never come here.
REORDER = {"reassoc", "contract", "nsz", "nnan"}
# More than what products and their sums lose below the range of single precision, which ends at 1e-38.
LEAST_ERROR = np.float32(1e-35)
# Points that look at the leaves together; as columns of 14 dimensions they fill half of the first cache.
TOGETHER = 256


@intrinsic
def add_products(
    _: Any, rows: Any, stride: Any, leaf: Any, start: Any, n_dimensions: Any, limits: Any, out: Any, least: Any
) -> Any:
    """Write ``start[j] + sum_k rows[p, k] leaf[k, j]`` to ``out[p, j]``; return where one is within its limit, as bits.

    All are flat arrays of float32: ``rows`` (ROWS, stride), ``leaf`` (n_dimensions, LANES), ``start`` (LANES,),
    ``limits`` (ROWS,), ``out`` (ROWS, LANES), ``least`` (ROWS, WIDTH): ``least[p, i]`` gets the least of ``out[p, i]``,
    ``out[p, i + WIDTH]``, ... Bit p of the result tells whether any ``out[p, j]`` is at most ``limits[p]``.

    It is written in vectors, for numba does not keep the sums of a tile in registers: loops over centres, which load
    and store every sum for every second dimension, reached half of its speed.
    """
    return types.int64(rows, stride, leaf, start, n_dimensions, limits, out, least), _emit_products


@intrinsic
def subtract(_: Any, rows: Any, row: Any, middle: Any, stride: Any, out: Any, place: Any) -> Any:
    """Write ``rows[row] - middle`` to ``out[place]`` and return the sum of its squares.

    All are flat arrays of float32: ``rows`` and ``out`` (n, stride), ``middle`` (stride,). That stride is a multiple of
    WIDTH no loop knows: for 14 dimensions it took three times as long.
    """
    return types.float32(rows, row, middle, stride, out, place), _emit_difference


class _Vectors:
    """Writes code for vectors of WIDTH floats; LLVM translates them for any processor."""

    def __init__(self, builder: Any) -> None:
        from llvmlite import ir

        self.ir, self.builder = ir, builder
        self.type = ir.VectorType(ir.FloatType(), WIDTH)

    def number(self, value: int, bits: int = 64) -> Any:
        return self.ir.Constant(self.ir.IntType(bits), value)

    def constant(self, value: float) -> Any:
        return self.ir.Constant(self.type, [value] * WIDTH)

    def place(self, array: Any, index: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(array, [index]), self.type.as_pointer())

    def read(self, array: Any, index: Any) -> Any:
        return self.builder.load(self.place(array, index), align=4)

    def write(self, vector: Any, array: Any, index: Any) -> None:
        self.builder.store(vector, self.place(array, index), align=4)

    def spread(self, array: Any, index: Any) -> Any:
        """Return a vector with one value of an array throughout."""
        nothing = self.ir.Constant(self.type, self.ir.Undefined)
        value = self.builder.load(self.builder.gep(array, [index]))
        alone = self.builder.insert_element(nothing, value, self.number(0, 32))
        return self.builder.shuffle_vector(alone, nothing, self.places(0, WIDTH, step=0))

    def add_product(self, total: Any, a: Any, b: Any) -> None:
        """Add a product to a variable, fused where the processor can."""
        product = self.builder.fmul(a, b, flags=("contract",))
        self.builder.store(self.builder.fadd(self.builder.load(total), product, flags=("contract",)), total)

    def sum(self, vector: Any) -> Any:
        """Return the sum of a vector's floats, half onto half."""
        width = WIDTH // 2
        while width:
            halves = (
                self.builder.shuffle_vector(
                    vector, self.ir.Constant(vector.type, self.ir.Undefined), self.places(first, width)
                )
                for first in (0, width)
            )
            vector, width = self.builder.fadd(*halves), width // 2
        return self.builder.extract_element(vector, self.number(0, 32))

    def places(self, first: int, count: int, step: int = 1) -> Any:
        vector = self.ir.VectorType(self.ir.IntType(32), count)
        return self.ir.Constant(vector, [first + step * i for i in range(count)])


def _data(context: Any, builder: Any, signature: Any, arguments: Any, places: tuple[int, ...]) -> list[Any]:
    """Return where the values of some arguments, which are arrays, begin."""
    return [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in places]


def _emit_products(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loops of `add_products`: over vectors of centres, and within over dimensions."""
    rows, leaf, start, limits, out, least = _data(context, builder, signature, arguments, (0, 2, 3, 5, 6, 7))
    stride, n_dimensions = arguments[1], arguments[4]
    to = _Vectors(builder)
    for p in range(ROWS):
        to.write(to.constant(float("inf")), least, to.number(p * WIDTH))
    with cgutils.for_range(builder, to.number(LANES // (WIDTH * VECTORS))) as lanes:
        first = builder.mul(lanes.index, to.number(WIDTH * VECTORS))
        firsts = [builder.add(first, to.number(WIDTH * v)) for v in range(VECTORS)]
        sums = [[cgutils.alloca_once(builder, to.type) for _ in firsts] for _ in range(ROWS)]
        for v, j in enumerate(firsts):
            for p in range(ROWS):
                builder.store(to.read(start, j), sums[p][v])
        with cgutils.for_range(builder, n_dimensions) as dimensions:
            column = builder.mul(dimensions.index, to.number(LANES))
            centers = [to.read(leaf, builder.add(column, j)) for j in firsts]
            for p in range(ROWS):
                value = to.spread(rows, builder.add(builder.mul(stride, to.number(p)), dimensions.index))
                for v in range(VECTORS):
                    to.add_product(sums[p][v], value, centers[v])
        for p in range(ROWS):
            lowest = to.read(least, to.number(p * WIDTH))
            for v, j in enumerate(firsts):
                total = builder.load(sums[p][v])
                to.write(total, out, builder.add(to.number(p * LANES), j))
                lowest = builder.select(builder.fcmp_ordered("<", total, lowest), total, lowest)
            to.write(lowest, least, to.number(p * WIDTH))
    bits = to.number(0)
    for p in range(ROWS):
        within = builder.fcmp_ordered("<=", to.read(least, to.number(p * WIDTH)), to.spread(limits, to.number(p)))
        found = builder.icmp_unsigned("!=", builder.bitcast(within, to.ir.IntType(WIDTH)), to.number(0, WIDTH))
        bits = builder.or_(bits, builder.shl(builder.zext(found, bits.type), to.number(p)))
    return bits


def _emit_difference(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loop of `subtract`."""
    rows, middle, out = _data(context, builder, signature, arguments, (0, 2, 4))
    _, row, _, stride, _, place = arguments
    to = _Vectors(builder)
    total = cgutils.alloca_once(builder, to.type)
    builder.store(to.constant(0.0), total)
    begin, end = builder.mul(row, stride), builder.mul(place, stride)
    with cgutils.for_range(builder, builder.udiv(stride, to.number(WIDTH))) as steps:
        k = builder.mul(steps.index, to.number(WIDTH))
        away = builder.fsub(to.read(rows, builder.add(begin, k)), to.read(middle, k))
        to.write(away, out, builder.add(end, k))
        to.add_product(total, away, away)
    return to.sum(builder.load(total))


@njit(cache=True, nogil=True)
def rotate(points: FloatArray, origin: Float64, unit: float, rotation: Float64, out: Float32, norms: Float64) -> None:
    """Write ``(points - origin) / unit @ rotation`` and the norms of its rows; sums are in double precision.

    ``points`` (n_points, n_dimensions), ``rotation`` (stride, stride) with zeros beyond, ``out`` (n_points, stride).
    """
    n_dimensions = points.shape[1]
    sums, values = np.empty(out.shape[1]), np.zeros(-(-n_dimensions // 4) * 4)
    for p in range(points.shape[0]):
        for k in range(n_dimensions):
            values[k] = (np.float64(points[p, k]) - origin[k]) / unit
        sums[:] = 0.0
        for k in range(0, values.size, 4):  # four dimensions a pass, for each pass reads the sums
            a, b, c, d = values[k], values[k + 1], values[k + 2], values[k + 3]
            to_a, to_b, to_c, to_d = rotation[k], rotation[k + 1], rotation[k + 2], rotation[k + 3]
            for i in range(sums.size):
                sums[i] += (a * to_a[i] + b * to_b[i]) + (c * to_c[i] + d * to_d[i])
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


@njit(cache=True, nogil=True, fastmath=REORDER, inline="always")
def _tile(
    points: Float32,
    norms: Float32,
    largest: Float32,
    rows: Int64,
    leaf: Any,
    rounding: tuple[float, float],
    work: Any,
) -> int:
    """Let up to ROWS points look at a leaf from its middle; return, as bits, which may have their nearest there.

    With a the distance of a point from the middle, r the leaf's radius and x the point's norm, half a square is wrong
    by at most ``rounding[0] (a + r)^2 + rounding[1] (a + r) x`` and what is below the range of single precision: what
    sums of products lose, and what the point lost when it became single.
    """
    columns, halves, middle, radius = leaf
    values, squares, errors, limits, out, least = work
    stride = middle.size
    for i in range(ROWS):
        p = rows[min(i, rows.size - 1)]
        square = subtract(points, p, middle, stride, values, i)
        reach = np.sqrt(square) + radius
        error = reach * (rounding[0] * reach + rounding[1] * norms[p]) + LEAST_ERROR
        squares[i], errors[i] = square * np.float32(0.5), error
        limits[i] = largest[p] - square * np.float32(0.5) + error
    return add_products(values, stride, columns, halves, columns.size // LANES, limits, out, least)  # type: ignore[no-any-return]


@njit(cache=True, nogil=True, fastmath=REORDER)
def _look(
    points: Float32, norms: Float32, rows: Int64, leaf: Any, number: int, rounding: Any, work: Any, state: Any
) -> None:
    """Let some points look at a leaf.

    ``state``: the nearest so far, the largest and the least that half its square may be, and the least of all others.
    """
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
            for column in range(WIDTH):
                if least[i * WIDTH + column] > limit:
                    continue
                for j in range(column, LANES, WIDTH):
                    if out[i * LANES + j] > limit:
                        continue
                    half = square + out[i * LANES + j]
                    if half + error < largest[p]:
                        second[p] = min(second[p], lowest[p])
                        largest[p], lowest[p], nearest[p] = half + error, half - error, number * LANES + j
                    else:
                        second[p] = min(second[p], half - error)


@njit(cache=True, nogil=True, fastmath=REORDER)
def _reach(norms: Float32, largest: Float32, reach: Float32) -> Any:
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
