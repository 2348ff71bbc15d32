"""L1 distances between sparse rows: only what two rows share has to be looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._compiled.jit import kernel
from heatmover._typing import Float64, FloatArray


# Sums keep their order: a row and its copy then cancel exactly.
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
    """Write ``|a| + |b| - 2 sum min(|a_f|, |b_f|)``, the sum over features in which a and b have the same sign.

    ``left`` is CSR: offsets, features, values. ``columns`` are the other rows by feature (CSC), numbers ascending.
    ``upper`` promises that both are the same rows: only the part of ``out`` right of the diagonal is written.
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
