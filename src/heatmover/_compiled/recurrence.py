"""Steps of the Chebyshev recurrence on a block of columns, fused with the accumulation of all scales."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["add_known", "advance", "advance_pairs", "known_parts", "project", "retreat"]


# "contract" alone: fused multiply-adds, but no reordering, so that a column's bits do not depend on the block
# it is computed in.
@njit(cache=True, nogil=True, fastmath={"contract"})
def advance(rows, indptr, indices, data, current, previous, slope, offset, shares, fine, coarse):  # type: ignore[no-untyped-def]
    """Overwrite T_{j-2} by T_j = slope S T_{j-1} + offset T_{j-1} - T_{j-2}; add T_{j-1} and T_j to every sum.

    Parameters
    ----------
    rows
        First row to work on, and the one after the last; threads may share a step by rows.
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    current, previous
        T_{j-1} and T_{j-2}, ``(n_points, width)``; ``previous`` becomes T_j.
    slope, offset
        Twice the affine map that takes the spectrum of S into [-1, 1].
    shares
        Shares of T_{j-1} and of T_j in each sum, ``(n_sums, 2)``. Two terms at a time halve the traffic of the sums,
        which took a third of the time: they are larger than the cache, and each term reads and writes all of them.
    fine, coarse
        The sums in two parts, ``(n_fine, n_points, width)`` and ``(n_sums - n_fine, n_points, width)``, changed in
        place.
    """
    n_fine = fine.shape[0]
    width = current.shape[1]
    row = np.empty(width, current.dtype)
    for i in range(rows[0], rows[1]):
        for k in range(width):
            row[k] = 0
        entry = indptr[i]
        end = indptr[i + 1]
        # Four neighbours per pass: the sum in `row` is loaded and stored once for four products, which took
        # the product from 18 to 20 GFlop/s at width 64 and from 7 to 9 at width 16.
        while entry + 4 <= end:
            w0, w1, w2, w3 = data[entry], data[entry + 1], data[entry + 2], data[entry + 3]
            t0, t1 = current[indices[entry]], current[indices[entry + 1]]
            t2, t3 = current[indices[entry + 2]], current[indices[entry + 3]]
            for k in range(width):
                row[k] += w0 * t0[k] + w1 * t1[k] + w2 * t2[k] + w3 * t3[k]
            entry += 4
        while entry < end:
            w0, t0 = data[entry], current[indices[entry]]
            for k in range(width):
                row[k] += w0 * t0[k]
            entry += 1
        for k in range(width):
            previous[i, k] = slope * row[k] + offset * current[i, k] - previous[i, k]
        for s in range(n_fine):
            older, newer = shares[s, 0], shares[s, 1]
            for k in range(width):
                fine[s, i, k] += older * current[i, k] + newer * previous[i, k]
        for s in range(coarse.shape[0]):
            older, newer = shares[n_fine + s, 0], shares[n_fine + s, 1]
            for k in range(width):
                coarse[s, i, k] += older * current[i, k] + newer * previous[i, k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def advance_pairs(rows, indptr, indices, data, even, odd, slope, offset, is_start, shares, fine, coarse):  # type: ignore[no-untyped-def]
    """Take two steps of `advance` for every two columns of ``shares``; on a small graph a call takes longer than they.

    Parameters
    ----------
    rows, indptr, indices, data, slope, offset, fine, coarse
        As in `advance`, and ``rows`` are all.
    even, odd
        The last term of even degree and the one before it, ``(n_points, width)``; the last two at the end.
    is_start
        Whether they are T_0 and nothing: T_1 = X T_0 is half of what the recurrence makes of them.
    shares
        Shares of the coming terms in each sum, ``(n_sums, n_steps)``.
    """
    number = shares.dtype.type
    for step in range(0, shares.shape[1], 2):
        part = number(0.5) if is_start and step == 0 else number(1)
        advance(
            rows, indptr, indices, data, even, odd, part * slope, part * offset, shares[:0, step : step + 2],
            fine[:0], coarse[:0],
        )  # fmt: skip
        advance(rows, indptr, indices, data, odd, even, slope, offset, shares[:, step : step + 2], fine, coarse)


@njit(cache=True, nogil=True, fastmath={"contract"})
def retreat(rows, indptr, indices, data, current, previous, slope, offset, shares, inputs):  # type: ignore[no-untyped-def]
    """Overwrite b_{j+2} by b_j = slope S b_{j+1} + offset b_{j+1} - b_{j+2} + the sum over s of shares[s] inputs[s].

    One step of Clenshaw's recurrence, the transpose of `advance`: what there goes out at a degree comes in here.

    Parameters
    ----------
    rows, indptr, indices, data, slope, offset
        As in `advance`.
    current, previous
        b_{j+1} and b_{j+2}, ``(n_points, width)``; ``previous`` becomes b_j.
    shares
        Share of every input at this degree, ``(n_inputs,)``.
    inputs
        ``(n_inputs, n_points, width)``.
    """
    width = current.shape[1]
    row = np.empty(width, current.dtype)
    for i in range(rows[0], rows[1]):
        for k in range(width):
            row[k] = 0
        entry = indptr[i]
        end = indptr[i + 1]
        while entry + 4 <= end:
            w0, w1, w2, w3 = data[entry], data[entry + 1], data[entry + 2], data[entry + 3]
            t0, t1 = current[indices[entry]], current[indices[entry + 1]]
            t2, t3 = current[indices[entry + 2]], current[indices[entry + 3]]
            for k in range(width):
                row[k] += w0 * t0[k] + w1 * t1[k] + w2 * t2[k] + w3 * t3[k]
            entry += 4
        while entry < end:
            w0, t0 = data[entry], current[indices[entry]]
            for k in range(width):
                row[k] += w0 * t0[k]
            entry += 1
        for k in range(width):
            row[k] = slope * row[k] + offset * current[i, k] - previous[i, k]
        for s in range(inputs.shape[0]):
            share = shares[s]
            # Powers of an operator with an eigenvalue near -1 have every second coefficient zero.
            if share != 0:
                for k in range(width):
                    row[k] += share * inputs[s, i, k]
        for k in range(width):
            previous[i, k] = row[k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def known_parts(block, unit, component, result):  # type: ignore[no-untyped-def]
    """Write each column's part in every component's top eigenvector; arguments as in `project`."""
    result[:] = 0
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            result[component[i], k] += unit[i] * block[i, k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def project(block, unit, component, target, factor):  # type: ignore[no-untyped-def]
    """Give each column its known part in every component's top eigenvector, then multiply row i by factor[i].

    Parameters
    ----------
    block
        ``(n_points, width)``, changed in place.
    unit
        Top eigenvectors of all components in one vector, each of length one on its component, ``(n_points,)``.
    component
        Component of each point, ``(n_points,)``.
    target
        The part each column must have, ``(n_components, width)``, float64.
    factor
        ``(n_points,)``.
    """
    missing = target.copy()
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            missing[component[i], k] -= unit[i] * block[i, k]
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            block[i, k] = (block[i, k] + unit[i] * missing[component[i], k]) * factor[i]


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_known(block, unit, component, known, factor):  # type: ignore[no-untyped-def]
    """Add a known part along every component's top eigenvector, then multiply row i by factor[i].

    Arguments as in `project`; ``known`` is added whatever part the block has already.
    """
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            block[i, k] = (block[i, k] + unit[i] * known[component[i], k]) * factor[i]
