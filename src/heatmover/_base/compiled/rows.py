"""Multiply, hash and add up rows; results do not depend on order or blocks; only `cohort` calls it.

A sum is a pair of floats with about 106 bits in total: the second float contains the rounding error of the first
(Dekker 1971). A sum of millions of values is then accurate to at least 80 bits, so the sum rounded to 53 bits does not
depend on the order. Computations per value are compiled. Computations per column are not, because compiling a function
takes a tenth of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import inner, kernel
from heatmover._base.types import Float64, FloatArray, Int32, IntArray

UInt64 = npt.NDArray[np.uint64]


@kernel()
def rows_times(block: Float64, right: Float64, out: Float64) -> None:
    """Write ``block @ right`` with the same order of summation in every row.

    A product by NumPy sums the last rows of a block in a different order. ``block`` is ``(n_rows, n_columns)`` and
    ``right`` is ``(n_columns, width)``.
    """
    for row in range(block.shape[0]):
        result = out[row]
        result[:] = 0.0
        for column in range(block.shape[1]):
            value = block[row, column]
            if value != 0.0:
                factors = right[column]
                for k in range(factors.size):
                    result[k] += value * factors[k]


@kernel()
def hash_dense(values: Float64, bits: UInt64, columns: UInt64, out: UInt64) -> None:
    """Write a hash of each row: the sum of hashes of column and value, over all nonzero values.

    ``bits`` holds the bits of ``values`` ``(n_rows, n_columns)`` as integers; ``columns`` holds a random number per
    column.
    """
    for row in range(values.shape[0]):
        total = np.uint64(0)
        for column in range(values.shape[1]):
            if values[row, column] != 0.0:
                total += _mixed(bits[row, column] ^ columns[column])
        out[row] = total


@kernel()
def hash_sparse(
    values: Float64, bits: UInt64, indices: IntArray, indptr: IntArray, columns: UInt64, out: UInt64
) -> None:
    """Write the hash of `hash_dense` for each row of a CSR block without duplicate entries."""
    for row in range(out.size):
        total = np.uint64(0)
        for entry in range(indptr[row], indptr[row + 1]):
            if values[entry] != 0.0:
                total += _mixed(bits[entry] ^ columns[indices[entry]])
        out[row] = total


@kernel()
def salt_hashes(hashes: UInt64, codes: Int32, seed: np.uint64) -> None:
    """Mix the sample of each row and a seed into the hash of the row, in place."""
    for row in range(hashes.size):
        salt = _mixed(np.uint64(codes[row]) + seed)
        hashes[row] = _mixed(hashes[row] ^ salt)


@kernel()
def _mixed(word: Any) -> Any:
    """Mix a 64-bit word so that every output bit depends on all input bits (the finalizer of splitmix64)."""
    word += np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


# 2^27 + 1, which splits a float into two halves of 26 bits whose products are exact.
SPLIT = 134217729.0


@kernel()
def add_rows(block: FloatArray, sums: Float64, products: Float64) -> None:
    """Add rows to ``sums`` and their squares to ``products``; both hold pairs of floats, ``(2, n_columns)``."""
    for row in range(block.shape[0]):
        for column in range(block.shape[1]):
            _add(sums, products, column, np.float64(block[row, column]))


@kernel()
def add_entries(data: FloatArray, indices: IntArray, sums: Float64, products: Float64) -> None:
    """Add the stored values of a CSR block to ``sums`` and their squares to ``products``, pairs as in `add_rows`."""
    for entry in range(data.size):
        _add(sums, products, indices[entry], np.float64(data[entry]))


@kernel()
def add_pairs(sums: Float64, others: Float64) -> None:
    """Add the sums in ``others`` to ``sums``; both hold pairs of floats, ``(2, n_columns)``."""
    for column in range(sums.shape[1]):
        _add_pair(sums, column, others[0, column], others[1, column])


@inner()
def _add(sums: Float64, products: Float64, column: int, value: float) -> None:
    """Add a value to ``sums``, and its square, with the rounding error of the square, to ``products``."""
    cut = SPLIT * value
    head = cut - (cut - value)
    tail = value - head
    square = value * value
    _add_pair(sums, column, value, 0.0)
    _add_pair(products, column, square, ((head * head - square) + head * tail + tail * head) + tail * tail)


@inner()
def _add_pair(sums: Float64, column: int, high: float, low: float) -> None:
    a, b = sums[0, column], sums[1, column]
    # Compute both sums and their rounding errors.
    first = a + high
    part = first - a
    first_lost = (a - (first - part)) + (high - part)
    second = b + low
    part = second - b
    second_lost = (b - (second - part)) + (low - part)
    # Renormalize twice.
    rest = first_lost + second
    total = first + rest
    rest = (rest - (total - first)) + second_lost
    sums[0, column] = total + rest
    sums[1, column] = rest - (sums[0, column] - total)
