"""Means and squared deviations of columns in twice the precision of a float, so that they do not depend on the order.

A number is a pair of floats, the second of which holds what the first cannot (Dekker 1971): some 106 bits. Sums of
millions are then known to 80 bits and more, and come out the same, rounded to 53, in whatever order they are added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from heatmover._typing import Float64, FloatArray, IntArray

Pair = Any

# 2^27 + 1 cuts a float into two halves of 26 bits, whose products are exact.
SPLIT = 134217729.0


@njit(cache=True, nogil=True)
def dense_moments(block: FloatArray, means: Float64, squares: Float64) -> None:
    """Write the mean and the sum of squared deviations of each column of ``block``, ``(2, n_columns)`` each."""
    n_rows, n_columns = block.shape
    shift = np.empty(n_columns)
    sums, products = np.zeros((2, n_columns)), np.zeros((2, n_columns))
    for column in range(n_columns):
        shift[column] = block[0, column]
    for row in range(n_rows):
        for column in range(n_columns):
            step = _plain_sum(np.float64(block[row, column]), -shift[column])
            _accumulate(sums, column, step)
            _accumulate(products, column, _product(step, step))
    for column in range(n_columns):
        _finish(column, (shift[column], 0.0), n_rows, sums, products, means, squares)


@njit(cache=True, nogil=True)
def sparse_moments(
    data: FloatArray,
    indices: IntArray,
    n_rows: int,
    means: Float64,
    squares: Float64,
) -> None:
    """Write the same for a CSR block, whose values that are not stored are zero."""
    n_columns = means.shape[1]
    sums, products = np.zeros((2, n_columns)), np.zeros((2, n_columns))
    for entry in range(data.size):
        value = (np.float64(data[entry]), 0.0)
        _accumulate(sums, indices[entry], value)
        _accumulate(products, indices[entry], _product(value, value))
    for column in range(n_columns):
        _finish(column, (0.0, 0.0), n_rows, sums, products, means, squares)


@njit(cache=True, nogil=True)
def merge_moments(
    means: Float64, squares: Float64, count: int, more_means: Float64, more_squares: Float64, more: int
) -> None:
    """Take the moments of ``more`` rows into those of ``count`` rows (Chan and others 1979), in place."""
    total = count + more
    for column in range(means.shape[1]):
        mean = (means[0, column], means[1, column])
        step = _sum((more_means[0, column], more_means[1, column]), (-mean[0], -mean[1]))
        moved = _sum(mean, _quotient(_product(step, (float(more), 0.0)), float(total)))
        between = _quotient(_product(_product(step, step), _product((float(count), 0.0), (float(more), 0.0))), total)
        inside = _sum((squares[0, column], squares[1, column]), (more_squares[0, column], more_squares[1, column]))
        both = _sum(inside, between)
        means[0, column], means[1, column] = moved[0], moved[1]
        squares[0, column], squares[1, column] = both[0], both[1]


@njit(cache=True, nogil=True)
def _finish(
    column: int, shift: Pair, n_rows: int, sums: Float64, products: Float64, means: Float64, squares: Float64
) -> None:
    total = (sums[0, column], sums[1, column])
    mean = _quotient(total, float(n_rows))
    taken = _product(mean, total)
    left = _sum((products[0, column], products[1, column]), (-taken[0], -taken[1]))
    moved = _sum(mean, shift)
    means[0, column], means[1, column] = moved[0], moved[1]
    squares[0, column], squares[1, column] = (left[0], left[1]) if left[0] > 0 else (0.0, 0.0)


@njit(cache=True, nogil=True)
def _accumulate(sums: Float64, column: int, value: Pair) -> None:
    total = _sum((sums[0, column], sums[1, column]), value)
    sums[0, column], sums[1, column] = total[0], total[1]


@njit(cache=True, nogil=True)
def _plain_sum(a: float, b: float) -> Pair:
    """Return a sum of two floats and what its rounding lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@njit(cache=True, nogil=True)
def _sum(a: Pair, b: Pair) -> Pair:
    high, low = _plain_sum(a[0], b[0])
    second, rest = _plain_sum(a[1], b[1])
    high, low = _renormalised(high, low + second)
    return _renormalised(high, low + rest)


@njit(cache=True, nogil=True)
def _renormalised(high: float, low: float) -> Pair:
    total = high + low
    return total, low - (total - high)


@njit(cache=True, nogil=True)
def _product(a: Pair, b: Pair) -> Pair:
    product = a[0] * b[0]
    cut = SPLIT * a[0]
    a_high = cut - (cut - a[0])
    a_low = a[0] - a_high
    cut = SPLIT * b[0]
    b_high = cut - (cut - b[0])
    b_low = b[0] - b_high
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return _renormalised(product, lost + (a[0] * b[1] + a[1] * b[0]))


@njit(cache=True, nogil=True)
def _quotient(a: Pair, divisor: float) -> Pair:
    first = a[0] / divisor
    back = _product((first, 0.0), (divisor, 0.0))
    rest = _sum(a, (-back[0], -back[1]))
    second = rest[0] / divisor
    back = _product((second, 0.0), (divisor, 0.0))
    rest = _sum(rest, (-back[0], -back[1]))
    high, low = _renormalised(first, second)
    return _renormalised(high, low + rest[0] / divisor)
