"""Rows one by one: their products, hashes, and sums of columns that do not depend on the order of the rows.

A sum is a pair of floats, the second of which holds what the first cannot (Dekker 1971): some 106 bits. Sums of
millions are then known to 80 bits and more, and come out the same, rounded to 53, in whatever order they are added.
What is done once per column, not per value, is not here: every function costs a tenth of a second to compile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import inner, kernel
from heatmover._base.types import Float64, FloatArray, Int32, IntArray

__all__ = ["add_entries", "add_pairs", "add_rows", "hash_dense", "hash_sparse", "rows_times", "salt_hashes"]

UInt64 = npt.NDArray[np.uint64]


@kernel()
def rows_times(block: Float64, right: Float64, out: Float64) -> None:
    """Write ``block @ right``; a library's product sums in another order for the last rows of a block than for others.

    ``block`` is ``(n_rows, n_columns)``, ``right`` ``(n_columns, width)``.
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
    """Write a hash of each row: the sum over its columns of a hash of column and value, without those of zeros.

    ``bits`` is the same memory as ``values``, ``(n_rows, n_columns)``; ``columns`` a random number for each column.
    """
    for row in range(values.shape[0]):
        total = np.uint64(0)
        for column in range(values.shape[1]):
            if values[row, column] != 0.0:
                total += _mixed(bits[row, column] ^ columns[column])
        out[row] = total


@kernel()
def hash_sparse(
    values: Float64,
    bits: UInt64,
    indices: IntArray,
    indptr: IntArray,
    columns: UInt64,
    out: UInt64,
) -> None:
    """Write the same hash of each row of a CSR block without duplicate entries."""
    for row in range(out.size):
        total = np.uint64(0)
        for entry in range(indptr[row], indptr[row + 1]):
            if values[entry] != 0.0:
                total += _mixed(bits[entry] ^ columns[indices[entry]])
        out[row] = total


@kernel()
def salt_hashes(hashes: UInt64, codes: Int32, seed: np.uint64) -> None:
    """Mix the sample of each row and a seed into its hash, in place."""
    for row in range(hashes.size):
        salt = _mixed(np.uint64(codes[row]) + seed)
        hashes[row] = _mixed(hashes[row] ^ salt)


@kernel()
def _mixed(word: Any) -> Any:
    """Return a word whose every bit depends on all of the given one's (the finaliser of splitmix64)."""
    word += np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


# 2^27 + 1 cuts a float into two halves of 26 bits, whose products are exact.
SPLIT = 134217729.0


@kernel()
def add_rows(block: FloatArray, sums: Float64, products: Float64) -> None:
    """Add rows and their squares to pairs ``(2, n_columns)`` each."""
    for row in range(block.shape[0]):
        for column in range(block.shape[1]):
            _add(sums, products, column, np.float64(block[row, column]))


@kernel()
def add_entries(data: FloatArray, indices: IntArray, sums: Float64, products: Float64) -> None:
    """Add the stored values of a CSR block, and their squares, to pairs ``(2, n_columns)`` each."""
    for entry in range(data.size):
        _add(sums, products, indices[entry], np.float64(data[entry]))


@kernel()
def add_pairs(sums: Float64, others: Float64) -> None:
    """Add pairs to pairs, ``(2, n_columns)`` each."""
    for column in range(sums.shape[1]):
        _add_pair(sums, column, others[0, column], others[1, column])


@inner()
def _add(sums: Float64, products: Float64, column: int, value: float) -> None:
    """Add a value, and its square with what its rounding lost."""
    cut = SPLIT * value
    head = cut - (cut - value)
    tail = value - head
    square = value * value
    _add_pair(sums, column, value, 0.0)
    _add_pair(products, column, square, ((head * head - square) + head * tail + tail * head) + tail * tail)


@inner()
def _add_pair(sums: Float64, column: int, high: float, low: float) -> None:
    a, b = sums[0, column], sums[1, column]
    # Both sums with what their rounding lost.
    first = a + high
    part = first - a
    first_lost = (a - (first - part)) + (high - part)
    second = b + low
    part = second - b
    second_lost = (b - (second - part)) + (low - part)
    # Renormalised twice.
    rest = first_lost + second
    total = first + rest
    rest = (rest - (total - first)) + second_lost
    sums[0, column] = total + rest
    sums[1, column] = rest - (sums[0, column] - total)
