"""Differences of numbers between samples, weighed and summed, for many orders of the numbers at once."""

from __future__ import annotations

from heatmover._compiled.jit import kernel
from heatmover._compiled.l1 import REORDER
from heatmover._typing import Float64

# Rows of numbers that one pass over a row of weights compares; add_weighed_differences spells them out.
ROWS = 4

# Weights of a row that meet all rows of numbers before the next weights: 64 rows of them are 256 KB and stay in the
# second cache. Microseconds per row, one thread of a Zen 4, 64 rows, for 1,000 / 5,000 samples: 256 weights 60 / 1,727,
# 512 65 / 1,587, 1,024 64 / 1,726, all at once 63 / 1,905.
CHUNK = 512


@kernel(REORDER)
def add_weighed_differences(weights: Float64, rows: Float64, sums: Float64) -> None:
    """Add ``sum over i < j of weights[i, j] * abs(row[i] - row[j])`` to the sum of each row.

    ``weights`` (n_samples, n_samples), of which the upper triangle is read; ``rows`` (n_rows, n_samples), n_rows a
    multiple of ``ROWS``, so that every row goes through the same instructions; ``sums`` (n_rows,).
    """
    n_samples = weights.shape[0]
    for start in range(0, n_samples, CHUNK):
        stop = min(start + CHUNK, n_samples)
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
