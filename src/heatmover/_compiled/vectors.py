"""Weighted sums of rows that stay in vector registers: what the compiler does not make of a plain loop.

In a loop over neighbours and columns the sum of a row is an array that is read and written again every few neighbours,
and every pass over the columns begins with a test whether its arrays overlap. Half of the time of a product with the
operator went there (swiss roll of 10,000 points, 64 columns of float32, one core: 18 GFlop/s with four neighbours a
pass, 38 here). So this one function is written in the compiler's own language.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

__all__ = ["add_rows"]

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
