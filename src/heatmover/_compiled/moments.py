"""Sums of columns and of their squares in twice the precision of a float, so that they do not depend on the order.

A number is a pair of floats, the second of which holds what the first cannot (Dekker 1971): some 106 bits. Sums of
millions are then known to 80 bits and more, and come out the same, rounded to 53, in whatever order they are added.

What is done once per column, not per value, is not here: every function costs a tenth of a second to compile.
"""

from __future__ import annotations

import numpy as np

from heatmover._compiled.jit import inner, kernel
from heatmover._typing import Float64, FloatArray, IntArray

# 2^27 + 1 cuts a float into two halves of 26 bits, whose products are exact.
SPLIT = 134217729.0


@kernel()
def add_rows(block: FloatArray, shift: Float64, sums: Float64, products: Float64) -> None:
    """Add rows, less ``shift`` ``(n_columns,)``, and their squares to pairs ``(2, n_columns)`` each."""
    for row in range(block.shape[0]):
        for column in range(block.shape[1]):
            value = np.float64(block[row, column])
            high = value - shift[column]
            part = high - value
            _add(sums, products, column, high, (value - (high - part)) + (-shift[column] - part))


@kernel()
def add_entries(data: FloatArray, indices: IntArray, sums: Float64, products: Float64) -> None:
    """Add the stored values of a CSR block, and their squares, to pairs ``(2, n_columns)`` each."""
    for entry in range(data.size):
        _add(sums, products, indices[entry], np.float64(data[entry]), 0.0)


@inner()
def _add(sums: Float64, products: Float64, column: int, high: float, low: float) -> None:
    """Add a pair and its square."""
    cut = SPLIT * high
    head = cut - (cut - high)
    tail = high - head
    square = high * high
    lost = ((head * head - square) + head * tail + tail * head) + tail * tail
    lost = lost + (high * low + low * high)
    total = square + lost
    _add_pair(sums, column, high, low)
    _add_pair(products, column, total, lost - (total - square))


@inner()
def _add_pair(sums: Float64, column: int, high: float, low: float) -> None:
    a, b = sums[0, column], sums[1, column]
    # Both sums with what their rounding lost.
    first = a + high
    part = first - a
    first_lost = (a - (first - part)) + (high - part)
    second = b + low
    part = second - b
    second_lost = (b - (second - part)) + (low - part)
    # Renormalised twice.
    rest = first_lost + second
    total = first + rest
    rest = (rest - (total - first)) + second_lost
    sums[0, column] = total + rest
    sums[1, column] = rest - (sums[0, column] - total)
