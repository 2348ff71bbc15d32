"""Multiply a tall basis by blocks, summing a column in the same order in any block; only `diffusion` calls it."""

from __future__ import annotations

import numpy as np

from heatmover._base.compiled.jit import kernel

# Number of rows summed in the precision of the data; the sums of these chunks are added in float64.
CHUNK = 256


@kernel(fastmath={"contract"})
def coordinates(basis, block, result):  # type: ignore[no-untyped-def]
    """Write basis' @ block.

    Parameters
    ----------
    basis
        ``(n_points, rank)``.
    block
        ``(n_points, width)``.
    result
        ``(rank, width)``, float64.
    """
    n_points, rank = basis.shape
    width = block.shape[1]
    part = np.empty((rank, width), block.dtype)
    result[:] = 0
    for start in range(0, n_points, CHUNK):
        stop = min(start + CHUNK, n_points)
        part[:] = 0
        i = start
        # Process four rows per pass, so that each partial sum is loaded and stored once per four products.
        while i + 4 <= stop:
            x0, x1, x2, x3 = block[i], block[i + 1], block[i + 2], block[i + 3]
            for j in range(rank):
                b0, b1, b2, b3 = basis[i, j], basis[i + 1, j], basis[i + 2, j], basis[i + 3, j]
                for k in range(width):
                    part[j, k] += b0 * x0[k] + b1 * x1[k] + b2 * x2[k] + b3 * x3[k]
            i += 4
        while i < stop:
            for j in range(rank):
                for k in range(width):
                    part[j, k] += basis[i, j] * block[i, k]
            i += 1
        result += part


@kernel(fastmath={"contract"})
def combine(basis, weights, result):  # type: ignore[no-untyped-def]
    """Write basis @ weights.

    Parameters
    ----------
    basis
        ``(n_rows, rank)``.
    weights
        ``(rank, width)``.
    result
        ``(n_rows, width)``.
    """
    rank, width = weights.shape
    for i in range(basis.shape[0]):
        for k in range(width):
            result[i, k] = 0
        j = 0
        while j + 4 <= rank:
            b0, b1, b2, b3 = basis[i, j], basis[i, j + 1], basis[i, j + 2], basis[i, j + 3]
            for k in range(width):
                result[i, k] += (
                    b0 * weights[j, k] + b1 * weights[j + 1, k] + b2 * weights[j + 2, k] + b3 * weights[j + 3, k]
                )
            j += 4
        while j < rank:
            for k in range(width):
                result[i, k] += basis[i, j] * weights[j, k]
            j += 1
