"""The nearest of many centres: in single precision, leaf by leaf of neighbouring centres, with bounds of its rounding.

Points and centres lie in rotated coordinates, see `heatmover.graphs.search.leaves`. A leaf holds ``LANES`` centres. Its
products are taken from its own middle, so that rounding is small beside the distances that matter.

``tiles`` (n_leaves, (n_dimensions + 1) * LANES) holds a leaf's centres from its middle, negative, dimension by
dimension, and then half of their squares; ``boxes`` (n_leaves, 3, stride) its least and largest coordinates and its
middle; ``radii`` (n_leaves,) the distance of its farthest centre from the middle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from heatmover._compiled.jit import kernel
from heatmover._typing import Bool, Float64, FloatArray, Int32, Int64

Float32 = npt.NDArray[np.float32]

# Points of a tile, floats of a vector, and vectors of centres at a time. 6 x 2 sums, two vectors of centres and one
# value of a point fill 15 of the 16 registers of AVX2.
ROWS, WIDTH, VECTORS = 6, 8, 2
# Centres of a leaf. In microseconds a point, for leaves of 64 and 128: 27,000 centres of the simulated cells 1.7 and
# 1.5, of a Gaussian in 8, 14, 30 and 50 dimensions 3.1 and 2.4, 11.3 and 9.8, 32 and 27, 47 and 45. Smaller leaves
# leave out more, but each takes the time of 20 products to see a point from its middle.
LANES = 128
# Points that look at the leaves together. 128, 256 and 512 are within 5 % of each other.
TOGETHER = 256
# Points that look at all leaves together: with what is known of them, and a leaf, they stay in 32 KB. A multiple of
# ROWS.
AT_ONCE = 96
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
# Sums may be reordered and products fused, else nothing vectorises. There is no NaN: points that are not finite in
# single precision never come here.
REORDER = {"reassoc", "contract", "nsz", "nnan"}


@intrinsic
def add_products(_: Any, work: Any, stride: Any, tiles: Any, leaf: Any, n_dimensions: Any) -> Any:
    """Write the products of a tile's points with a leaf's centres; return which have one within their limit, as bits.

    ``out[p, j] = halves[j] + sum_k values[p, k] columns[k, j]`` and ``least[p, i] = min(out[p, i], out[p, i + WIDTH],
    ...)``. Bit p tells whether any ``out[p, j]`` is at most ``limits[p]``.

    It is written in vectors, for numba does not keep the sums of a tile in registers: loops over centres, which load
    and store every sum for every second dimension, reached half of its speed.
    """
    return types.int64(work, stride, tiles, leaf, n_dimensions), _emit_products


@intrinsic
def least_products(
    _: Any,
    points: Any,
    first: Any,
    stride: Any,
    tiles: Any,
    leaf: Any,
    n_dimensions: Any,
    out: Any,
    row: Any,
    step: Any,
) -> Any:
    """Write the least products of ROWS points, from ``first`` on, with every eighth of a leaf's centres.

    As `add_products`, but the points are read where they are, and nothing else is written: WIDTH floats of each point
    to the place of the leaf in a row of ``out`` (n_rows, step), from ``row`` on.
    """
    return types.none(points, first, stride, tiles, leaf, n_dimensions, out, row, step), _emit_least


@intrinsic
def subtract(_: Any, points: Any, point: Any, boxes: Any, leaf: Any, stride: Any, work: Any, row: Any) -> Any:
    """Write a point as seen from a leaf's middle to a row of a tile, and return the square of its distance.

    That stride is a multiple of WIDTH no loop knows: for 14 dimensions it took three times as long.
    """
    return types.float32(points, point, boxes, leaf, stride, work, row), _emit_difference


class Vectors:
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
        return self.filled(self.builder.load(self.builder.gep(array, [index])))

    def filled(self, value: Any) -> Any:
        """Return a vector with one value throughout."""
        nothing = self.ir.Constant(self.type, self.ir.Undefined)
        alone = self.builder.insert_element(nothing, value, self.number(0, 32))
        return self.builder.shuffle_vector(alone, nothing, self.places(0, WIDTH, step=0))

    def add_product(self, total: Any, a: Any, b: Any) -> None:
        """Add a product to a variable, fused where the processor can."""
        product = self.builder.fmul(a, b, flags=("contract",))
        self.builder.store(self.builder.fadd(self.builder.load(total), product, flags=("contract",)), total)

    def least(self, a: Any, b: Any) -> Any:
        """Return the lesser of each; the second where one is no number."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

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


def data_of(context: Any, builder: Any, signature: Any, arguments: Any, places: tuple[int, ...]) -> list[Any]:
    """Return where the values of some arguments, which are arrays, begin."""
    return [context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in places]


def _emit_products(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loops of `add_products`, and the comparison with limits."""
    work, tiles = data_of(context, builder, signature, arguments, (0, 2))
    _, stride, _, leaf, n_dimensions = arguments
    to = Vectors(builder)
    for p in range(ROWS):
        to.write(to.constant(float("inf")), work, to.number(LEAST + p * WIDTH))

    def finish(firsts: list[Any], sums: list[list[Any]]) -> None:
        for p in range(ROWS):
            lowest = to.read(work, to.number(LEAST + p * WIDTH))
            for v, j in enumerate(firsts):
                total = builder.load(sums[p][v])
                to.write(total, work, builder.add(to.number(p * LANES), j))
                lowest = to.least(total, lowest)
            to.write(lowest, work, to.number(LEAST + p * WIDTH))

    _emit_sums(to, builder.gep(work, [to.number(VALUES)]), stride, tiles, leaf, n_dimensions, finish)
    bits = to.number(0)
    for p in range(ROWS):
        lowest, limit = to.read(work, to.number(LEAST + p * WIDTH)), to.spread(work, to.number(LIMITS + p))
        within = builder.bitcast(builder.fcmp_ordered("<=", lowest, limit), to.ir.IntType(WIDTH))
        found = builder.icmp_unsigned("!=", within, to.number(0, WIDTH))
        bits = builder.or_(bits, builder.shl(builder.zext(found, bits.type), to.number(p)))
    return bits


def _emit_least(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loops of `least_products`."""
    points, tiles, out = data_of(context, builder, signature, arguments, (0, 3, 6))
    _, first, stride, _, leaf, n_dimensions, _, row, step = arguments
    to = Vectors(builder)
    least = [cgutils.alloca_once(builder, to.type) for _ in range(ROWS)]
    for place in least:
        builder.store(to.constant(float("inf")), place)

    def finish(firsts: list[Any], sums: list[list[Any]]) -> None:
        for p in range(ROWS):
            lowest = builder.load(least[p])
            for v in range(len(firsts)):
                lowest = to.least(builder.load(sums[p][v]), lowest)
            builder.store(lowest, least[p])

    values = builder.gep(points, [builder.mul(first, stride)])
    _emit_sums(to, values, stride, tiles, leaf, n_dimensions, finish)
    for p, place in enumerate(least):
        start = builder.mul(builder.add(row, to.number(p)), step)
        to.write(builder.load(place), out, builder.add(start, builder.mul(leaf, to.number(WIDTH))))
    return context.get_dummy_value()


def _emit_sums(
    to: Vectors,
    values: Any,
    stride: Any,
    tiles: Any,
    leaf: Any,
    n_dimensions: Any,
    finish: Callable[[list[Any], list[list[Any]]], None],
) -> None:
    """Emit the sums of products of ROWS points with a leaf: loops over vectors of centres, and within over dimensions.

    ``finish`` emits what is done with the sums, by point, of some vectors of centres, whose places it is told.
    """
    builder = to.builder
    after = builder.mul(n_dimensions, to.number(LANES))
    columns = builder.gep(tiles, [builder.mul(leaf, builder.add(after, to.number(LANES)))])
    with cgutils.for_range(builder, to.number(LANES // (WIDTH * VECTORS))) as lanes:
        first = builder.mul(lanes.index, to.number(WIDTH * VECTORS))
        firsts = [builder.add(first, to.number(WIDTH * v)) for v in range(VECTORS)]
        sums = [[cgutils.alloca_once(builder, to.type) for _ in firsts] for _ in range(ROWS)]
        for v, j in enumerate(firsts):
            half = to.read(columns, builder.add(after, j))
            for p in range(ROWS):
                builder.store(half, sums[p][v])
        with cgutils.for_range(builder, n_dimensions) as dimensions:
            column = builder.mul(dimensions.index, to.number(LANES))
            centers = [to.read(columns, builder.add(column, j)) for j in firsts]
            for p in range(ROWS):
                row = builder.mul(stride, to.number(p))
                value = to.spread(values, builder.add(row, dimensions.index))
                for v in range(VECTORS):
                    to.add_product(sums[p][v], value, centers[v])
        finish(firsts, sums)


def _emit_difference(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Emit the loop of `subtract`."""
    points, boxes, work = data_of(context, builder, signature, arguments, (0, 2, 5))
    _, point, _, leaf, stride, _, row = arguments
    to = Vectors(builder)
    here = builder.mul(point, stride)
    middle = builder.mul(builder.add(builder.mul(leaf, to.number(3)), to.number(2)), stride)
    values = builder.add(to.number(VALUES), builder.mul(row, stride))
    total = cgutils.alloca_once(builder, to.type)
    builder.store(to.constant(0.0), total)
    with cgutils.for_range(builder, builder.udiv(stride, to.number(WIDTH))) as steps:
        k = builder.mul(steps.index, to.number(WIDTH))
        away = builder.fsub(to.read(points, builder.add(here, k)), to.read(boxes, builder.add(middle, k)))
        to.write(away, work, builder.add(values, k))
        to.add_product(total, away, away)
    return to.sum(builder.load(total))


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
) -> int:
    """Write the nearest centre of each point, as a place in the leaves; return how often a point looked at a leaf.

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
        centre may be as near.
    """
    n_leaves, _, stride = boxes.shape
    across = np.empty((stride, TOGETHER), dtype=np.float32)
    gaps, reach = np.empty(TOGETHER, dtype=np.float32), np.empty(TOGETHER, dtype=np.float32)
    rows, order = np.empty(TOGETHER, dtype=np.int64), np.empty(n_leaves, dtype=np.int64)
    keys, work = np.empty(n_leaves, dtype=np.float32), np.empty(VALUES + ROWS * stride, dtype=np.float32)
    looked_at = 0
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
                looked_at += n_rows
    return looked_at


@kernel()
def nearest_of_all(
    points: Float32,
    norms: Float32,
    tiles: Float32,
    columns: Float32,
    radius: float,
    rounding: Float32,
    nearest: Int64,
    sure: Bool,
) -> None:
    """Write the nearest of all centres, as a place in the leaves, and whether rounding cannot have chosen it.

    Parameters
    ----------
    points, norms
        ``(n_rows, stride)``, padded to a multiple of ROWS, and ``(n_points,)``; so small that no product overflows.
    tiles, radius
        The leaves, of which all have the origin for their middle; the largest norm of a centre.
    columns
        ``(n_leaves * WIDTH, n_dimensions + 1, LANES // WIDTH)``: the same by columns, each every eighth of a leaf.
    rounding
        ``(2,)``: factors of the error, see `_error`.
    nearest, sure
        ``(n_points,)`` each.
    """
    stride, n_leaves, n_dimensions = points.shape[1], tiles.shape[0], tiles.shape[1] // LANES - 1
    step = n_leaves * WIDTH
    least, products = np.empty((AT_ONCE, step), dtype=np.float32), np.empty((1, LANES // WIDTH), dtype=np.float32)
    for start in range(0, points.shape[0], AT_ONCE):
        for leaf in range(n_leaves):
            for first in range(start, min(start + AT_ONCE, points.shape[0]), ROWS):
                least_products(points, first, stride, tiles, leaf, n_dimensions, least, first - start, step)
        for p in range(start, min(start + AT_ONCE, nearest.size)):
            apart = np.float32(2.1) * _error(norms[p] + radius, norms[p], rounding)
            count, column = _near_least(least, p - start, apart)
            if count == 1:
                _products_of_column(points, p, columns, column, products)
                count, place = _near_least(products, 0, apart)
                nearest[p] = column // WIDTH * LANES + column % WIDTH + WIDTH * place
            sure[p] = count == 1


@kernel(fastmath=REORDER)
def _near_least(values: Float32, row: int, apart: float) -> Any:
    """Return how many values of a row are at most so far from the least, and where it is if there is one."""
    least = values[row, 0]
    for i in range(1, values.shape[1]):
        least = min(values[row, i], least)
    limit = least + apart
    count, place = np.int32(0), np.int32(0)
    for i in range(values.shape[1]):
        near = values[row, i] <= limit
        count = np.int32(count + near)  # in 32 bits, as the values
        place = np.int32(place + (np.int32(i) if near else np.int32(0)))
    return count, place


@kernel(fastmath=REORDER)
def _products_of_column(points: Float32, p: int, columns: Float32, column: int, products: Float32) -> None:
    """Write the products of a point with every eighth centre of a leaf."""
    n_dimensions = columns.shape[1] - 1
    for i in range(LANES // WIDTH):
        products[0, i] = columns[column, n_dimensions, i]
    for k in range(n_dimensions):
        value = points[p, k]
        for i in range(LANES // WIDTH):
            products[0, i] += value * columns[column, k, i]


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
    """Write pairs of a point and a centre that may be its nearest; return how many, and of how many points.

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

    With a and r the distances of a point and of a centre from the middle of a leaf, ``reach`` their sum, and x the
    point's norm, it is ``rounding[0] (a + r)^2 + rounding[1] (a + r) x`` and what is below the range of single
    precision: what sums of products lose, and what the point lost when it became single.
    """
    return reach * (rounding[0] * reach + rounding[1] * norm) + LEAST_ERROR


@kernel(fastmath=REORDER)
def _own_error(half: float, tiles: Float32, leaf: int, lane: int, norm: float, rounding: Float32) -> Any:
    """Return the error for one centre, which in a leaf with a remote one is much less than that for all of them."""
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
        square = subtract(points, p, boxes, leaf, stride, work, i)
        error = _error(np.sqrt(square) + radii[leaf], norms[p], rounding)
        work[SQUARES + i], work[ERRORS + i] = square * np.float32(0.5), error
        work[LIMITS + i] = bounds[LARGEST, p] - square * np.float32(0.5) + error
    return add_products(work, stride, tiles, leaf, tiles.shape[1] // LANES - 1)


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
    """Write squared distances beyond which a box cannot hold a nearer centre; return the largest.

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
    found = 0
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
        i = found
        while i > 0 and keys[i - 1] > away:
            keys[i], order[i] = keys[i - 1], order[i - 1]
            i -= 1
        keys[i], order[i] = away, leaf
        found += 1
    return found
