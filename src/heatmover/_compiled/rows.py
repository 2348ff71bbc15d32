"""What is done to rows one by one, so that a row's result does not depend on the rows around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._compiled.jit import kernel
from heatmover._typing import Float64, Int32, IntArray

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
