"""Step back through the Chebyshev recurrence and add up the operator's gradient; only `differentiable` calls it."""

from __future__ import annotations

import numpy as np

from heatmover._base.compiled.jit import kernel


# The sum over columns may be reordered ("reassoc"), because otherwise the sum could not use vector registers. The last
# digits of gradients may therefore depend on the width of a block.
@kernel(fastmath={"contract", "reassoc"})
def retrace(rows, indptr, indices, data, current, other, slope, offset, shares, sources, gradient):  # type: ignore[no-untyped-def]
    """Step from T_{j+1}, T_j back to T_{j-1} and from b_{j+2}, b_{j+1} to b_j; add b_{j+1} T_j^T to the gradient.

    T_{j-1} = slope S T_j + offset T_j - T_{j+1}. The adjoints b follow the same recurrence with sources: b_j = slope S
    b_{j+1} + offset b_{j+1} - b_{j+2} + sum_s shares[s] sources[s]. T and b are columns of the same arrays, so that the
    row of a neighbor is loaded once and used three times.

    Parameters
    ----------
    rows
        First row and end row of this call; several threads may compute a step, each for some of the rows.
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    current
        T_j and b_{j+1}, ``(n_points, 2 * width)``.
    other
        T_{j+1} and b_{j+2}, ``(n_points, 2 * width)``, overwritten by T_{j-1} and b_j.
    slope, offset
        Slope and offset of twice the affine map that takes the spectrum of S into [-1, 1]. In the last step (j = 0):
        slope and offset of the map itself.
    shares, sources
        Coefficients of T_j ``(n_sums,)`` and gradients of the sums ``(n_sums, n_points, width)``.
    gradient
        Gradient of the entries of S, ``(n_entries,)``, to which the terms of this step are added.
    """
    double = current.shape[1]
    width = double // 2
    row = np.empty(double, current.dtype)
    for i in range(rows[0], rows[1]):
        here = current[i]
        for k in range(double):
            row[k] = 0
        for entry in range(indptr[i], indptr[i + 1]):
            weight, there = data[entry], current[indices[entry]]
            total = current.dtype.type(0)
            for k in range(double):
                row[k] += weight * there[k]
            for k in range(width):
                total += here[width + k] * there[k]
            gradient[entry] += slope * total
        for k in range(double):
            other[i, k] = slope * row[k] + offset * here[k] - other[i, k]
        for s in range(shares.size):
            for k in range(width):
                other[i, width + k] += shares[s] * sources[s, i, k]
