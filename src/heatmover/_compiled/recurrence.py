"""Steps of the Chebyshev recurrence on a block of columns, fused with the accumulation of all scales."""

from __future__ import annotations

import numpy as np

from heatmover._compiled.jit import inner, kernel
from heatmover._compiled.vectors import LANES, add_rows

__all__ = ["add_known", "advance", "advance_pairs", "known_parts", "project", "retreat"]


# Rows whose terms are added to the sums together: the terms are still in the innermost cache, and every call for a sum
# has some thousand numbers.
ROWS = 16


# "contract" alone: fused multiply-adds, but no reordering, so that a column's bits do not depend on the block
# it is computed in.
@kernel({"contract"})
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
    for start in range(rows[0], rows[1], ROWS):
        stop = min(start + ROWS, rows[1])
        for i in range(start, stop):
            _weighted_sum(indptr[i], indptr[i + 1], data, indices, current, row)
            here, there = current[i], previous[i]
            for k in range(width):
                there[k] = slope * row[k] + offset * here[k] - there[k]
        old, new = current[start:stop].reshape(-1), previous[start:stop].reshape(-1)
        for s in range(n_fine):
            _add_two(fine[s, start:stop].reshape(-1), shares[s, 0], old, shares[s, 1], new)
        for s in range(coarse.shape[0]):
            share = shares[n_fine + s]
            _add_two(coarse[s, start:stop].reshape(-1), share[0], old, share[1], new)


@inner({"contract"})
def _weighted_sum(first, last, data, indices, block, row):  # type: ignore[no-untyped-def]
    """Write the sum of some rows of ``block``, each times its entry of ``data``, into ``row``."""
    add_rows(first, last, data, indices, block, row)
    width = row.size
    for k in range(width - width % LANES, width):
        total = row.dtype.type(0)
        for entry in range(first, last):
            total += data[entry] * block[indices[entry], k]
        row[k] = total


@inner({"contract"})
def _add_two(total, a, x, b, y):  # type: ignore[no-untyped-def]
    """Add ``a x + b y`` to ``total``."""
    for k in range(total.size):
        total[k] += a * x[k] + b * y[k]


@kernel({"contract"})
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
    pair = np.empty((shares.shape[0], 2), shares.dtype)
    for step in range(0, shares.shape[1], 2):
        part = number(0.5) if is_start and step == 0 else number(1)
        pair[:] = shares[:, step : step + 2]
        advance(
            rows, indptr, indices, data, even, odd, part * slope, part * offset, pair[:0], fine[:0], coarse[:0]
        )  # fmt: skip
        advance(rows, indptr, indices, data, odd, even, slope, offset, pair, fine, coarse)


@kernel({"contract"})
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
        _weighted_sum(indptr[i], indptr[i + 1], data, indices, current, row)
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


@kernel({"contract"})
def known_parts(block, unit, component, result):  # type: ignore[no-untyped-def]
    """Write each column's part in every component's top eigenvector; arguments as in `project`."""
    result[:] = 0
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            result[component[i], k] += unit[i] * block[i, k]


@kernel({"contract"})
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


@kernel({"contract"})
def add_known(block, unit, component, known, factor):  # type: ignore[no-untyped-def]
    """Add a known part along every component's top eigenvector, then multiply row i by factor[i].

    Arguments as in `project`; ``known`` is added whatever part the block has already.
    """
    for i in range(block.shape[0]):
        for k in range(block.shape[1]):
            block[i, k] = (block[i, k] + unit[i] * known[component[i], k]) * factor[i]
