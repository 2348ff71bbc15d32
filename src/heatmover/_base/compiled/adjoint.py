"""Adjoints: of the Chebyshev recurrence in the operator, and of the operator in the points."""

from __future__ import annotations

import numpy as np

from heatmover._base.compiled.jit import kernel

__all__ = ["gaussian", "moves", "normalized", "retrace"]


# The sum over columns may be reordered ("reassoc"), or it could not use vector registers; nothing here promises
# bits that do not depend on the width of a block.
@kernel(fastmath={"contract", "reassoc"})
def retrace(rows, indptr, indices, data, current, other, slope, offset, shares, sources, gradient):  # type: ignore[no-untyped-def]
    """Step back from T_{j+1}, T_j to T_{j-1}, the adjoint from b_{j+2}, b_{j+1} to b_j, and add b_{j+1} T_j^T.

    T_{j-1} = slope S T_j + offset T_j - T_{j+1}, and the adjoint runs through the same recurrence with sources:
    b_j = slope S b_{j+1} + offset b_{j+1} - b_{j+2} + sum_s shares[s] sources[s]. Both lie side by side, so that a
    neighbour is fetched once for three uses.

    Parameters
    ----------
    rows
        First row to work on, and the one after the last; threads may share a step by rows.
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    current
        T_j and b_{j+1}, ``(n_points, 2 * width)``.
    other
        T_{j+1} and b_{j+2}, which become T_{j-1} and b_j.
    slope, offset
        Twice the affine map that takes the spectrum of S into [-1, 1]; half of it in the last step (j = 0).
    shares, sources
        Coefficients of T_j ``(n_sums,)`` and gradients of the sums ``(n_sums, n_points, width)``.
    gradient
        On the entries of S, ``(n_entries,)``, changed in place.
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


@kernel(fastmath={"contract"})
def gaussian(rows, indptr, indices, points, width, affinity, density):  # type: ignore[no-untyped-def]
    """Write K_il = exp(-|x_i - x_l|^2 / width^2) on the support, and q = K 1.

    Parameters
    ----------
    rows
        First row to work on, and the one after the last.
    indptr, indices
        The support in CSR form.
    points
        ``(n_points, n_dimensions)``.
    width
        Width of the kernel.
    affinity, density
        K ``(n_entries,)`` and q ``(n_points,)``, written.
    """
    for i in range(rows[0], rows[1]):
        density[i] = 0
        for entry in range(indptr[i], indptr[i + 1]):
            there = indices[entry]
            square = 0.0
            for c in range(points.shape[1]):
                # Divided before it is squared: a small distance in small units must not underflow.
                difference = (points[i, c] - points[there, c]) / width
                square += difference * difference
            affinity[entry] = np.exp(-square)
            density[i] += affinity[entry]


@kernel(fastmath={"contract"})
def normalized(indptr, indices, affinity, density, operator, degree):  # type: ignore[no-untyped-def]
    """Write S = d^-1/2 M d^-1/2 and d = M 1 with M = q^-1 K q^-1; names and shapes as in `gaussian` and `moves`."""
    for i in range(density.size):
        degree[i] = 0
        for entry in range(indptr[i], indptr[i + 1]):
            degree[i] += affinity[entry] / (density[i] * density[indices[entry]])
    for i in range(density.size):
        for entry in range(indptr[i], indptr[i + 1]):
            there = indices[entry]
            scale = density[i] * density[there] * np.sqrt(degree[i] * degree[there])
            operator[entry] = affinity[entry] / scale


@kernel(fastmath={"contract"})
def moves(indptr, indices, points, width, affinity, density, degree, on_operator, on_degree, result):  # type: ignore[no-untyped-def]
    """Add to ``result`` the gradient with respect to the points, from those with respect to S and d.

    The supplement's chain of S -> M -> K -> points, entry by entry. K is symmetric, so whatever stands at (i, l)
    also counts at (l, i).

    Parameters
    ----------
    indptr, indices, points, width, affinity, density
        As in `gaussian`.
    degree
        d, ``(n_points,)``.
    on_operator
        Gradient with respect to every entry of S, ``(n_entries,)``; used up.
    on_degree
        Gradient with respect to d where it is used outside S, ``(n_points,)``; used up.
    result
        ``(n_points, n_dimensions)``.
    """
    n_points = density.size
    # S_il = M_il / sqrt(d_i d_l): both factors fall as M grows.
    for i in range(n_points):
        for entry in range(indptr[i], indptr[i + 1]):
            there = indices[entry]
            on_operator[entry] /= np.sqrt(degree[i] * degree[there])
            share = affinity[entry] / (density[i] * density[there]) * on_operator[entry] / 2
            on_degree[i] -= share / degree[i]
            on_degree[there] -= share / degree[there]
    # M_il = K_il / (q_i q_l), and d_i is the sum of row i of M.
    on_density = np.zeros(n_points)
    for i in range(n_points):
        for entry in range(indptr[i], indptr[i + 1]):
            there = indices[entry]
            on_operator[entry] = (on_operator[entry] + on_degree[i]) / (density[i] * density[there])
            share = affinity[entry] * on_operator[entry]
            on_density[i] -= share / density[i]
            on_density[there] -= share / density[there]
    # K_il = exp(-|x_i - x_l|^2 / width^2), and q_i is the sum of row i of K.
    for i in range(n_points):
        for entry in range(indptr[i], indptr[i + 1]):
            there = indices[entry]
            force = -2 * affinity[entry] * (on_operator[entry] + on_density[i]) / width
            for c in range(points.shape[1]):
                push = force * ((points[i, c] - points[there, c]) / width)
                result[i, c] += push
                result[there, c] -= push
