"""Compute L1 distances of dense or sparse rows, the k smallest distances, and weighted sums; for any package."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Float64, FloatArray, Int64, Intp

# Speeds below are in 10^9 feature pairs per second on a Zen 4 (AVX2), one thread, float32, with 20,000 features unless
# another number is given. The machine was shared, so differences below about 5% mean little.

# Number of rows of each side that one pass over the features compares; l1_tile is written for this number. 3 x 3 sums
# and their operands just fill the 16 vector registers of AVX2. Speeds with tiles of 32 rows, with or without the fused
# product below, whichever was faster:
#     3x3 22.2, 2x4 22.0, 4x2 21.5, 4x4 19.2, 1x8 18.8, 4x3 17.2, 2x3 16.9, 3x4 16.7, 2x6 15.7, 2x5 14.2
# Speeds in a second, interleaved measurement with tiles of 24 / 36 / 48 rows:
#     3x3 17.4 / 19.4 / 19.3, 2x4 15.4 / 18.8 / 18.2
REGISTER_ROWS = 3

# Number of features summed in the precision of the data; the sums of these chunks are added in float64. Longer chunks
# are faster: with 60,000 features and tiles of 48 rows, the speed is 17.0 for chunks of 512, 18.2 for 1024 and 19.2 for
# 2048. But in longer chunks each of the 8 float32 lanes adds more terms. With 1024 features a lane adds 128 terms,
# which bounds the relative error by 128 * 2^-24 = 8e-6 for any data (on ordinary data it is about 1e-7).
CHUNK = 1024

# Allow the compiler to reorder sums and fuse products, because otherwise the loops could not use vector registers. NaN
# and infinity keep their meaning, because callers detect invalid input by these values.
REORDER = {"reassoc", "contract", "nsz"}


@kernel(REORDER)
def l1_tile(rows: FloatArray, others: FloatArray, one: Any, upper: bool, tile: Float64) -> None:
    """Write the L1 distances between ``rows`` (n_rows, n_features) and ``others`` (n_others, n_features) to ``tile``.

    Both sides of ``tile`` are rounded up to multiples of ``REGISTER_ROWS``. Groups of rows at the edge of a tile repeat
    the last row, so every pair is computed by the same instructions, and the distance of a pair depends only on its two
    rows. If ``upper`` is True, both sides must be the same rows, and the lower triangle is copied instead of computed.

    ``one`` is 1 in the type of the data. Because the compiler does not know the value of an argument, it turns ``sum +
    one * term`` into a fused multiply-add, which is exact and runs on the multipliers of the processor while the adders
    subtract. For 2x4 rows the speed is 22.0, compared with 20.4 for plain additions.
    """
    n_rows, n_features = rows.shape
    n_others = others.shape[0]
    tile[:] = 0
    for start in range(0, n_features, CHUNK):
        stop = min(start + CHUNK, n_features)
        for j in range(0, n_others, 3):
            b0 = others[j, start:stop]
            b1 = others[min(j + 1, n_others - 1), start:stop]
            b2 = others[min(j + 2, n_others - 1), start:stop]
            for i in range(0, min(n_rows, j + 3) if upper else n_rows, 3):
                a0 = rows[i, start:stop]
                a1 = rows[min(i + 1, n_rows - 1), start:stop]
                a2 = rows[min(i + 2, n_rows - 1), start:stop]
                s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = one - one
                for f in range(stop - start):
                    s00 += one * abs(a0[f] - b0[f])
                    s01 += one * abs(a0[f] - b1[f])
                    s02 += one * abs(a0[f] - b2[f])
                    s10 += one * abs(a1[f] - b0[f])
                    s11 += one * abs(a1[f] - b1[f])
                    s12 += one * abs(a1[f] - b2[f])
                    s20 += one * abs(a2[f] - b0[f])
                    s21 += one * abs(a2[f] - b1[f])
                    s22 += one * abs(a2[f] - b2[f])
                tile[i, j] += s00
                tile[i, j + 1] += s01
                tile[i, j + 2] += s02
                tile[i + 1, j] += s10
                tile[i + 1, j + 1] += s11
                tile[i + 1, j + 2] += s12
                tile[i + 2, j] += s20
                tile[i + 2, j + 1] += s21
                tile[i + 2, j + 2] += s22
    if upper:
        for i in range(n_rows):
            for j in range(i):
                tile[i, j] = tile[j, i]


@kernel()
def keep_smallest(tile: Float64, first: int, distances: Float64, indices: Int64) -> None:
    """Merge the distances in ``tile`` (n_rows, n_candidates) into sorted lists of the k smallest distances.

    ``first`` is the index of the first candidate. The lists ``distances`` and ``indices`` have shape (n_rows, k), and
    distances are infinite at first. Candidates are ordered by distance, then by index, so the lists do not depend on
    the order of the tiles.
    """
    k = distances.shape[1]
    for row in range(tile.shape[0]):
        for column in range(tile.shape[1]):
            distance = tile[row, column]
            index = first + column
            place = k
            while place > 0 and (
                distance < distances[row, place - 1]
                or (distance == distances[row, place - 1] and index < indices[row, place - 1])
            ):
                place -= 1
                if place < k - 1:
                    distances[row, place + 1] = distances[row, place]
                    indices[row, place + 1] = indices[row, place]
            if place < k:
                distances[row, place] = distance
                indices[row, place] = index


@kernel(REORDER)
def sum_groups(rows: FloatArray, group: Intp, signs: Float64, out: Float64, sizes: Float64) -> None:
    """Write the signed sum of every group of columns, and the sum of each row's absolute values.

    Rows are read from left to right, four at a time, so that groups and signs are read once per four rows. Every sum
    follows the order of the columns and does not depend on the other rows.

    Parameters
    ----------
    rows
        ``(n_rows, n_features)``.
    group, signs
        Group of each column, numbered from 0, and sign of each column, 1 or -1, ``(n_features,)`` each.
    out, sizes
        Signed sums ``(n_rows, n_groups)``, and sums of absolute values ``(n_rows,)`` or, to skip them, ``(0,)``.
    """
    n_rows, n_features = rows.shape
    out[:] = 0
    whole = n_rows - n_rows % 4
    for i in range(0, whole, 4):
        row0, row1, row2, row3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        out0, out1, out2, out3 = out[i], out[i + 1], out[i + 2], out[i + 3]
        for f in range(n_features):
            g, sign = group[f], signs[f]
            out0[g] += sign * row0[f]
            out1[g] += sign * row1[f]
            out2[g] += sign * row2[f]
            out3[g] += sign * row3[f]
    for i in range(whole, n_rows):
        row, sums = rows[i], out[i]
        for f in range(n_features):
            sums[group[f]] += signs[f] * row[f]
    for i in range(sizes.size):
        row, size = rows[i], 0.0
        for f in range(n_features):
            size += abs(np.float64(row[f]))
        sizes[i] = size


# Sums keep their order, so that the distance between a row and its copy is exactly zero.
@kernel()
def subtract_shared(
    rows: tuple[int, int],
    left: tuple[npt.NDArray[Any], npt.NDArray[Any], Float64],
    columns: tuple[npt.NDArray[Any], npt.NDArray[Any], Float64],
    norms: Float64,
    other_norms: Float64,
    upper: bool,
    out: FloatArray,
) -> None:
    """Write ``|a| + |b| - 2 sum min(|a_f|, |b_f|)``, summed over features in which a and b have the same sign.

    ``left`` is CSR: offsets, features, values. ``columns`` holds the other rows by feature (CSC), with ascending row
    numbers. If ``upper`` is True, both sides must be the same rows, and only the entries of ``out`` above the diagonal
    are written.
    """
    offsets, features, values = left
    starts, numbers, others = columns
    shared = np.zeros(out.shape[1])
    for i in range(rows[0], rows[1]):
        first = i + 1 if upper else 0
        shared[first:] = 0
        for p in range(offsets[i], offsets[i + 1]):
            a = values[p]
            feature = features[p]
            q = starts[feature + 1] - 1
            while q >= starts[feature] and numbers[q] >= first:
                b = others[q]
                if a > 0 and b > 0:
                    shared[numbers[q]] += min(a, b)
                elif a < 0 and b < 0:
                    shared[numbers[q]] += min(-a, -b)
                q -= 1
        for j in range(first, out.shape[1]):
            out[i, j] = max(norms[i] + other_norms[j] - 2 * shared[j], 0.0)


# Number of rows of values that each pass over a row of weights uses; add_weighed_differences is written for this
# number.
NUMBER_ROWS = 4

# Number of weights that are combined with all rows of values before the next weights. 64 rows of 512 values are 256 KB
# and stay in the second-level cache. Time in microseconds for a row of 1,000 / 5,000 samples, on one thread of a Zen 4
# with 64 rows:
#     256 weights 60 / 1,727, 512 weights 65 / 1,587, 1,024 weights 64 / 1,726, all weights at once 63 / 1,905
WEIGHTS = 512


@kernel(REORDER)
def add_weighed_differences(weights: Float64, rows: Float64, sums: Float64) -> None:
    """Add ``sum over i < j of weights[i, j] * abs(row[i] - row[j])`` to the sum of each row.

    Only the upper triangle of ``weights`` (n_samples, n_samples) is read. The number of ``rows`` (n_rows, n_samples) is
    a multiple of ``NUMBER_ROWS``, so that every row is computed by the same instructions. ``sums`` is (n_rows,).
    """
    n_samples = weights.shape[0]
    for start in range(0, n_samples, WEIGHTS):
        stop = min(start + WEIGHTS, n_samples)
        for i in range(stop):
            begin = max(start, i + 1)
            weight = weights[i, begin:stop]
            for row in range(0, rows.shape[0], 4):
                a = rows[row, begin:stop]
                b = rows[row + 1, begin:stop]
                c = rows[row + 2, begin:stop]
                d = rows[row + 3, begin:stop]
                own_a, own_b, own_c, own_d = rows[row, i], rows[row + 1, i], rows[row + 2, i], rows[row + 3, i]
                sum_a = sum_b = sum_c = sum_d = 0.0
                for j in range(stop - begin):
                    sum_a += weight[j] * abs(own_a - a[j])
                    sum_b += weight[j] * abs(own_b - b[j])
                    sum_c += weight[j] * abs(own_c - c[j])
                    sum_d += weight[j] * abs(own_d - d[j])
                sums[row] += sum_a
                sums[row + 1] += sum_b
                sums[row + 2] += sum_c
                sums[row + 3] += sum_d
