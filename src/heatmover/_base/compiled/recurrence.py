"""Take Chebyshev steps in generated code, set top eigenvectors; only `diffusion` and `differentiable` call it."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from heatmover._base.compiled.jit import inner, kernel

# Number of rows whose terms are added to the sums together. With 16 rows the terms are still in the first-level cache,
# and every addition covers about a thousand values.
ROWS = 16


# In narrow blocks more than ROWS rows are added together: as many as contain about this number of values.
NUMBERS = 1024


# Number of terms that are kept and added to the sums together. The sums are larger than the caches, and every addition
# reads and writes all of them: with two terms at a time, a run with eleven sums took 10% longer (56 columns on a swiss
# roll of 10,000 points).
TERMS = 4


# In a plain loop over neighbors and columns, the sum of a row is an array that is read and written again every few
# neighbors, and every pass over the columns first tests whether its arrays overlap. Together this work takes half the
# time of a product with the operator. On a swiss roll of 10,000 points with 64 columns of float32 on one core, a plain
# loop with four neighbors per pass reached 18 GFlop/s, and the code below reaches 38 GFlop/s. So `add_rows` generates
# the compiler's intermediate code (LLVM IR).

# Number of columns per vector. A vector of float64 fills two AVX2 registers.
LANES = 8
# Number of vectors that are summed at a time, by the number of bits of a value: 8 registers hold the sums, and one more
# register holds the weight.
MOST = {32: 8, 64: 4}
# Products and sums may be fused, but not reordered, so that a column is bit-identical in any block.
FUSED = ("contract",)


@intrinsic
def add_rows(_: Any, first: Any, last: Any, weights: Any, indices: Any, block: Any, result: Any) -> Any:  # noqa: ARG001
    """Write the sum of ``weights[e] * block[indices[e]]`` over e from ``first`` to ``last`` into ``result``.

    Terms are added in the order of e. Columns after the last whole vector of 8 are not changed.

    Parameters
    ----------
    first, last
        First entry and end of the entries; ``last`` is not included.
    weights, indices
        Weights, and rows of ``block``, ``(n_entries,)`` each.
    block
        ``(n_rows, width)``, of the type of ``weights``.
    result
        ``(width,)``, of the type of ``weights``.
    """
    if any(array.layout != "C" for array in (weights, indices, block, result)):
        raise TypingError("add_rows takes contiguous arrays")
    if not weights.dtype == block.dtype == result.dtype:
        raise TypingError("add_rows takes one type of numbers")
    signature = types.void(types.intp, types.intp, weights, indices, block, result)
    return signature, _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    first, last, *values = arguments
    kinds = signature.args[2:]
    weights, indices, block, result = (
        context.make_array(kind)(context, builder, value) for kind, value in zip(kinds, values, strict=True)
    )
    panel = _Panel(context, builder, kinds[0].dtype, (first, last), (weights.data, indices.data, block.data))
    width, out = cgutils.unpack_tuple(builder, block.shape)[1], result.data
    most = MOST[kinds[0].dtype.bitwidth]
    whole = builder.sdiv(width, panel.number(LANES))
    count = builder.sdiv(builder.add(whole, panel.number(most - 1)), panel.number(most))
    with cgutils.for_range(builder, count, intp=first.type) as loop:
        # The numbers of vectors per panel differ by at most one.
        begin = builder.sdiv(builder.mul(whole, loop.index), count)
        end = builder.sdiv(builder.mul(whole, builder.add(loop.index, panel.number(1))), count)
        column = builder.mul(begin, panel.number(LANES))
        chosen, done = builder.block, builder.append_basic_block("done")
        cases = {size: panel.write(size, width, column, out, done) for size in range(1, most + 1)}
        builder.position_at_end(chosen)
        switch = builder.switch(builder.sub(end, begin), done)
        for size, case in cases.items():
            switch.add_case(panel.number(size), case)
        builder.position_at_end(done)
    return context.get_dummy_value()


class _Panel:
    """Writer of compiler code (LLVM IR) that adds up weighted rows in a panel, a group of adjacent columns."""

    def __init__(
        self, context: Any, builder: Any, dtype: Any, entries: tuple[Any, Any], arrays: tuple[Any, ...]
    ) -> None:
        self.builder, self.entries = builder, entries
        self.weights, self.indices, self.block = arrays
        self.vector = ir.VectorType(context.get_value_type(dtype), LANES)
        self.alignment = dtype.bitwidth // 8

    def number(self, value: int) -> Any:
        """Return a whole number as a constant of the compiler."""
        return ir.Constant(self.entries[0].type, value)

    def write(self, size: int, width: Any, column: Any, result: Any, done: Any) -> Any:
        """Write code that sums ``size`` vectors from ``column`` on; return the first block of this code."""
        builder, (first, last) = self.builder, self.entries
        begin, loop, end = (builder.append_basic_block(name) for name in ("begin", "entries", "end"))
        builder.position_at_end(begin)
        nothing = ir.Constant(self.vector, [0.0] * LANES)
        builder.cbranch(builder.icmp_signed("<", first, last), loop, end)
        builder.position_at_end(loop)
        entry = self._either(first, begin)
        sums = [self._either(nothing, begin) for _ in range(size)]
        weight, row = self._weight(entry), self._row(entry, width, column)
        added = [
            builder.fadd(builder.fmul(weight, self._load(row, place), flags=FUSED), before, flags=FUSED)
            for place, before in enumerate(sums)
        ]
        following = builder.add(entry, self.number(1))
        for value, later in zip([entry, *sums], [following, *added], strict=True):
            value.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, last), loop, end)
        builder.position_at_end(end)
        totals = [self._either(nothing, begin) for _ in range(size)]
        for total, value in zip(totals, added, strict=True):
            total.add_incoming(value, loop)
        out = builder.gep(result, [column], inbounds=True)
        for place, total in enumerate(totals):
            builder.store(total, self._pointer(out, place), align=self.alignment)
        builder.branch(done)
        return begin

    def _either(self, value: Any, origin: Any) -> Any:
        """Return a phi node that takes the value ``value`` if control comes from ``origin``."""
        either = self.builder.phi(value.type)
        either.add_incoming(value, origin)
        return either

    def _weight(self, entry: Any) -> Any:
        """Return a vector that holds the weight of an entry in every lane."""
        builder, undefined = self.builder, ir.Constant(self.vector, ir.Undefined)
        weight = builder.load(builder.gep(self.weights, [entry], inbounds=True))
        lanes = ir.VectorType(ir.IntType(32), LANES)
        single = builder.insert_element(undefined, weight, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(single, undefined, ir.Constant(lanes, [0] * LANES))

    def _row(self, entry: Any, width: Any, column: Any) -> Any:
        """Return a pointer to the row of an entry, starting at ``column``."""
        builder = self.builder
        index = builder.load(builder.gep(self.indices, [entry], inbounds=True))
        if index.type.width < width.type.width:
            index = builder.zext(index, width.type)
        return builder.gep(self.block, [builder.add(builder.mul(index, width), column)], inbounds=True)

    def _load(self, row: Any, place: int) -> Any:
        return self.builder.load(self._pointer(row, place), align=self.alignment)

    def _pointer(self, start: Any, place: int) -> Any:
        at = self.builder.gep(start, [self.number(place * LANES)], inbounds=True)
        return self.builder.bitcast(at, self.vector.as_pointer())


# Allow only "contract", which means fused multiply-adds but no reordering, so that a column is bit-identical in any
# block.
@kernel({"contract"})
def advance(rows, indptr, indices, data, terms, degree, slope, offset, shares, fine, coarse):  # type: ignore[no-untyped-def]
    """Overwrite T_{j-4} by T_j = slope S T_{j-1} + offset T_{j-1} - T_{j-2}; add the last four terms to every sum.

    Parameters
    ----------
    rows
        First row and end row of this call; several threads may compute a step, each for some of the rows.
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    terms
        The last four terms, ``(4, n_points, width)``, with T_j at ``j % 4``.
    degree
        Degree j of the new term.
    slope, offset
        Slope and offset of twice the affine map that takes the spectrum of S into [-1, 1].
    shares
        Coefficients of the terms at places 1, 2, 3 and 0 in each sum, ``(n_sums, 4)``; empty if no sum changes.
    fine, coarse
        Sums of the fine and of the coarse scales, ``(n_fine, n_points, width)`` and
        ``(n_sums - n_fine, n_points, width)``, changed in place.
    """
    n_fine = fine.shape[0]
    new, current, previous = terms[degree % TERMS], terms[(degree - 1) % TERMS], terms[(degree - 2) % TERMS]
    width = current.shape[1]
    row = np.empty(width, current.dtype)
    together = max(ROWS, NUMBERS // max(width, 1))
    for start in range(rows[0], rows[1], together):
        stop = min(start + together, rows[1])
        if width == 1:
            columns = current.reshape(-1), previous.reshape(-1), new.reshape(-1)
            _advance_column(start, stop, indptr, indices, data, *columns, slope, offset)
        else:
            for i in range(start, stop):
                _weighted_sum(indptr[i], indptr[i + 1], data, indices, current, row)
                here, there, result = current[i], previous[i], new[i]
                for k in range(width):
                    result[k] = slope * row[k] + offset * here[k] - there[k]
        for s in range(n_fine):
            _add_terms(fine[s, start:stop].reshape(-1), shares[s], terms, start, stop)
        for s in range(coarse.shape[0]):
            _add_terms(coarse[s, start:stop].reshape(-1), shares[n_fine + s], terms, start, stop)


@kernel({"contract"})
def multiply(indptr, indices, data, block, image):  # type: ignore[no-untyped-def]
    """Write the product of some rows of S with a block into ``image``.

    Parameters
    ----------
    indptr, indices, data
        CSR form of S: row pointers of the selected rows, ``(n_rows + 1,)``, and all entries.
    block
        ``(n_points, width)``.
    image
        ``(n_rows, width)``.
    """
    for i in range(image.shape[0]):
        _weighted_sum(indptr[i], indptr[i + 1], data, indices, block, image[i])


@inner({"contract"})
def _weighted_sum(first, last, data, indices, block, row):  # type: ignore[no-untyped-def]
    """Write the sum of rows of ``block``, each multiplied by its entry of ``data``, into ``row``."""
    add_rows(first, last, data, indices, block, row)
    width = row.size
    for k in range(width - width % LANES, width):
        total = row.dtype.type(0)
        for entry in range(first, last):
            total += data[entry] * block[indices[entry], k]
        row[k] = total


@inner({"contract"})
def _advance_column(start, stop, indptr, indices, data, current, previous, new, slope, offset):  # type: ignore[no-untyped-def]
    """Take a step of `advance` on a single column, for rows from ``start`` to ``stop``, with bit-identical results.

    Indices are unsigned, because a test for negative indices would take half of the time. Computing four rows at a time
    is not faster, because the processor already reorders instructions far enough ahead.
    """
    for i in range(start, stop):
        total = current.dtype.type(0)
        for entry in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            total += data[entry] * current[np.uint32(indices[entry])]
        new[i] = slope * total + offset * current[i] - previous[i]


@inner({"contract"})
def _add_terms(total, shares, terms, start, stop):  # type: ignore[no-untyped-def]
    """Add rows ``start`` to ``stop`` of all terms, each multiplied by its share, to ``total``."""
    a, b, c, d = shares[0], shares[1], shares[2], shares[3]
    w, x = terms[1, start:stop].reshape(-1), terms[2, start:stop].reshape(-1)
    y, z = terms[3, start:stop].reshape(-1), terms[0, start:stop].reshape(-1)
    for k in range(total.size):
        total[k] += (a * w[k] + b * x[k]) + (c * y[k] + d * z[k])


@kernel({"contract"})
def retreat(rows, indptr, indices, data, current, previous, slope, offset, shares, inputs):  # type: ignore[no-untyped-def]
    """Overwrite b_{j+2} by b_j = slope S b_{j+1} + offset b_{j+1} - b_{j+2} + the sum over s of shares[s] inputs[s].

    This is one step of Clenshaw's recurrence, the transpose of `advance`: inputs replace the sums.

    Parameters
    ----------
    rows, indptr, indices, data, slope, offset
        As in `advance`.
    current, previous
        b_{j+1} and b_{j+2}, ``(n_points, width)`` each; ``previous`` is overwritten by b_j.
    shares
        Coefficient of every input at this degree, ``(n_inputs,)``.
    inputs
        Inputs ``(n_inputs, n_points, width)``.
    """
    width = current.shape[1]
    row = np.empty(width, current.dtype)
    for i in range(rows[0], rows[1]):
        _weighted_sum(indptr[i], indptr[i + 1], data, indices, current, row)
        for k in range(width):
            row[k] = slope * row[k] + offset * current[i, k] - previous[i, k]
        for s in range(inputs.shape[0]):
            share = shares[s]
            # If the operator has an eigenvalue near -1, every second coefficient of its powers is zero.
            if share != 0:
                for k in range(width):
                    row[k] += share * inputs[s, i, k]
        for k in range(width):
            previous[i, k] = row[k]


@kernel({"contract"})
def known_parts(block, unit, component, result):  # type: ignore[no-untyped-def]
    """Write each column's coefficient on the top eigenvector of each component; see `project` for the arguments."""
    result[:] = 0
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            result[component[i], k] += unit[i] * block[i, k]


@kernel({"contract"})
def project(block, unit, component, target, factor, order):  # type: ignore[no-untyped-def]
    """Set the coefficients of each column on the top eigenvectors, multiply row i by factor[i], move it to order[i].

    The block is changed in place, because allocating memory may take longer than this function: the first access to a
    page takes the system up to 20 us.

    Parameters
    ----------
    block
        ``(n_points, width)``, changed in place.
    unit
        Top eigenvectors of all components in one vector, each of length one on its component, ``(n_points,)``.
    component
        Component of each point, ``(n_points,)``.
    target
        Coefficients that each column must have, ``(n_components, width)``, float64.
    factor
        Factor of each row, ``(n_points,)``.
    order
        New position of each row, ``(n_points,)``.
    """
    n_points, width = block.shape
    missing = target.copy()
    for i in range(n_points):
        for k in range(width):
            missing[component[i], k] -= unit[i] * block[i, k]
    is_done = np.zeros(n_points, np.bool_)
    held = np.empty(width, block.dtype)
    for first in range(n_points):
        if is_done[first]:
            continue
        # Follow the cycle of the permutation that begins here; the row that is overwritten next is kept in `held`.
        for k in range(width):  # not a slice, whose error message would take numba 1 s to compile
            held[k] = block[first, k]
        i = first
        while not is_done[i]:
            is_done[i] = True
            place = order[i]
            row, lacking = block[place], missing[component[i]]
            for k in range(width):
                value = (held[k] + unit[i] * lacking[k]) * factor[i]
                held[k] = row[k]
                row[k] = value
            i = place


@kernel({"contract"})
def add_known(block, unit, component, known, factor):  # type: ignore[no-untyped-def]
    """Add ``known`` times the top eigenvector of each component, then multiply row i by factor[i].

    See `project` for the arguments. Unlike `project`, this function adds to the existing coefficients of the block.
    """
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            block[i, k] = (block[i, k] + unit[i] * known[component[i], k]) * factor[i]
