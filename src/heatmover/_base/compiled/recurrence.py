"""Chebyshev steps, forward and transposed, in generated vector code; projection on the top eigenvectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from heatmover._base.compiled.jit import inner, kernel

__all__ = ["TERMS", "add_known", "advance", "known_parts", "multiply", "project", "retreat"]


# Rows whose terms are added to the sums together: the terms are still in the innermost cache, and every call for a sum
# has some thousand numbers.
ROWS = 16


# Numbers of a term whose rows are added to the sums together where a block is narrow, in place of ROWS rows.
NUMBERS = 1024


# Terms that are kept, and added to the sums together. The sums are larger than the caches, and every addition reads and
# writes all of them: two terms at a time took a tenth longer (swiss roll of 10,000 points, 56 columns, eleven sums).
TERMS = 4


# In a loop over neighbors and columns the sum of a row is an array that is read and written again every few neighbors,
# and every pass over the columns begins with a test whether its arrays overlap. Half of the time of a product with the
# operator went there (swiss roll of 10,000 points, 64 columns of float32, one core: 18 GFlop/s with four neighbors a
# pass, 38 here). So `add_rows` is written in the compiler's own language.

# Columns of a vector; two registers of AVX2 for float64.
LANES = 8
# Vectors that are summed at a time, by bits of a number: 8 registers hold the sums, another one the weight.
MOST = {32: 8, 64: 4}
# Products and sums may be fused, but not reordered: a column's bits do not depend on the block it is computed in.
FUSED = ("contract",)


@intrinsic
def add_rows(_: Any, first: Any, last: Any, weights: Any, indices: Any, block: Any, result: Any) -> Any:  # noqa: ARG001
    """Write the sum of ``weights[e] * block[indices[e]]`` over e from ``first`` to ``last`` into ``result``.

    In the order of e. Columns beyond the last whole vector of 8 are left as they are.

    Parameters
    ----------
    first, last
        Of the entries; ``last`` is not included.
    weights, indices
        ``(n_entries,)``.
    block
        ``(n_rows, width)``, of the type of the weights.
    result
        ``(width,)``, of that type.
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
        # Panels of the same number of vectors, to within one.
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
    """Writes the code that sums some columns of all rows."""

    def __init__(
        self, context: Any, builder: Any, dtype: Any, entries: tuple[Any, Any], arrays: tuple[Any, ...]
    ) -> None:
        self.builder, self.entries = builder, entries
        self.weights, self.indices, self.block = arrays
        self.vector = ir.VectorType(context.get_value_type(dtype), LANES)
        self.alignment = dtype.bitwidth // 8

    def number(self, value: int) -> Any:
        """Return a whole number as the compiler knows it."""
        return ir.Constant(self.entries[0].type, value)

    def write(self, size: int, width: Any, column: Any, result: Any, done: Any) -> Any:
        """Write the sums of ``size`` vectors from ``column`` on; return the block in which the code begins."""
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
        """Return a value that is ``value`` if control comes from ``origin``."""
        either = self.builder.phi(value.type)
        either.add_incoming(value, origin)
        return either

    def _weight(self, entry: Any) -> Any:
        """Return the weight of an entry in all lanes."""
        builder, undefined = self.builder, ir.Constant(self.vector, ir.Undefined)
        weight = builder.load(builder.gep(self.weights, [entry], inbounds=True))
        lanes = ir.VectorType(ir.IntType(32), LANES)
        single = builder.insert_element(undefined, weight, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(single, undefined, ir.Constant(lanes, [0] * LANES))

    def _row(self, entry: Any, width: Any, column: Any) -> Any:
        """Return a pointer to the row of an entry, at ``column``."""
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


# "contract" alone: fused multiply-adds, but no reordering, so that a column's bits do not depend on the block
# it is computed in.
@kernel({"contract"})
def advance(rows, indptr, indices, data, terms, degree, slope, offset, shares, fine, coarse):  # type: ignore[no-untyped-def]
    """Overwrite T_{j-4} by T_j = slope S T_{j-1} + offset T_{j-1} - T_{j-2}; add the last four terms to every sum.

    Parameters
    ----------
    rows
        First row to work on, and the one after the last; threads may share a step by rows.
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    terms
        The last four terms, ``(4, n_points, width)``: T_j at ``j % 4``.
    degree
        j, that of the term to make.
    slope, offset
        Twice the affine map that takes the spectrum of S into [-1, 1].
    shares
        Of the terms in each sum, ``(n_sums, 4)``: those at places 1, 2, 3 and 0. Nothing is added without sums.
    fine, coarse
        The sums in two parts, ``(n_fine, n_points, width)`` and ``(n_sums - n_fine, n_points, width)``, changed in
        place.
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
        CSR form of the rows: ``(n_rows + 1,)``, and all entries of S.
    block
        ``(n_points, width)``.
    image
        ``(n_rows, width)``.
    """
    for i in range(image.shape[0]):
        _weighted_sum(indptr[i], indptr[i + 1], data, indices, block, image[i])


@inner({"contract"})
def _weighted_sum(first, last, data, indices, block, row):  # type: ignore[no-untyped-def]
    """Write the sum of some rows of ``block``, each times its entry of ``data``, into ``row``."""
    add_rows(first, last, data, indices, block, row)
    width = row.size
    for k in range(width - width % LANES, width):
        total = row.dtype.type(0)
        for entry in range(first, last):
            total += data[entry] * block[indices[entry], k]
        row[k] = total


@inner({"contract"})
def _advance_column(start, stop, indptr, indices, data, current, previous, new, slope, offset):  # type: ignore[no-untyped-def]
    """Take the rows from ``start`` to ``stop`` of a step of `advance` on a single column, to the same bits.

    Places without a sign: the look whether one counts from the end takes half of the time. Four rows side by side, so
    that one sum need not wait for its last product, are no faster: the processor looks ahead as far.
    """
    for i in range(start, stop):
        total = current.dtype.type(0)
        for entry in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            total += data[entry] * current[np.uint32(indices[entry])]
        new[i] = slope * total + offset * current[i] - previous[i]


@inner({"contract"})
def _add_terms(total, shares, terms, start, stop):  # type: ignore[no-untyped-def]
    """Add the rows from ``start`` to ``stop`` of all terms, each times its share, to ``total``."""
    a, b, c, d = shares[0], shares[1], shares[2], shares[3]
    w, x = terms[1, start:stop].reshape(-1), terms[2, start:stop].reshape(-1)
    y, z = terms[3, start:stop].reshape(-1), terms[0, start:stop].reshape(-1)
    for k in range(total.size):
        total[k] += (a * w[k] + b * x[k]) + (c * y[k] + d * z[k])


@kernel({"contract"})
def retreat(rows, indptr, indices, data, current, previous, slope, offset, shares, inputs):  # type: ignore[no-untyped-def]
    """Overwrite b_{j+2} by b_j = slope S b_{j+1} + offset b_{j+1} - b_{j+2} + the sum over s of shares[s] inputs[s].

    One step of Clenshaw's recurrence, the transpose of `advance`: what there goes out at a degree comes in here.

    Parameters
    ----------
    rows, indptr, indices, data, slope, offset
        As in `advance`.
    current, previous
        b_{j+1} and b_{j+2}, ``(n_points, width)``; ``previous`` becomes b_j.
    shares
        Share of every input at this degree, ``(n_inputs,)``.
    inputs
        ``(n_inputs, n_points, width)``.
    """
    width = current.shape[1]
    row = np.empty(width, current.dtype)
    for i in range(rows[0], rows[1]):
        _weighted_sum(indptr[i], indptr[i + 1], data, indices, current, row)
        for k in range(width):
            row[k] = slope * row[k] + offset * current[i, k] - previous[i, k]
        for s in range(inputs.shape[0]):
            share = shares[s]
            # Powers of an operator with an eigenvalue near -1 have every second coefficient zero.
            if share != 0:
                for k in range(width):
                    row[k] += share * inputs[s, i, k]
        for k in range(width):
            previous[i, k] = row[k]


@kernel({"contract"})
def known_parts(block, unit, component, result):  # type: ignore[no-untyped-def]
    """Write each column's part in every component's top eigenvector; arguments as in `project`."""
    result[:] = 0
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            result[component[i], k] += unit[i] * block[i, k]


@kernel({"contract"})
def project(block, unit, component, target, factor, order):  # type: ignore[no-untyped-def]
    """Give each column its known part in every component's top eigenvector, multiply row i by factor[i], and move it.

    In place, for fresh memory may cost more than all of this: the first touch of a page takes the system up to 20 us.

    Parameters
    ----------
    block
        ``(n_points, width)``, changed in place.
    unit
        Top eigenvectors of all components in one vector, each of length one on its component, ``(n_points,)``.
    component
        Component of each point, ``(n_points,)``.
    target
        The part each column must have, ``(n_components, width)``, float64.
    factor
        ``(n_points,)``.
    order
        Where each row goes, ``(n_points,)``.
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
        # Around the cycle that begins here: a row takes the place of the next one, which is held meanwhile.
        held[:] = block[first]
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
    """Add a known part along every component's top eigenvector, then multiply row i by factor[i].

    Arguments as in `project`; ``known`` is added whatever part the block has already.
    """
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            block[i, k] = (block[i, k] + unit[i] * known[component[i], k]) * factor[i]
