"""Mirror images of sparse matrices, their union, and symmetric matrices in another order."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._compiled.jit import kernel
from heatmover._typing import Float64, Int64


@kernel()
def mirror(starts: Any, columns: Any, values: Float64, ends: Int64, new_columns: Any, new_values: Float64) -> None:
    """Write the mirror image of a CSR matrix, each row ascending.

    ``ends`` (n_columns + 1,) gets where the rows of the image begin.
    """
    n_rows, n_columns = starts.size - 1, ends.size - 1
    ends[:] = 0
    for place in range(columns.size):
        ends[columns[place] + 1] += 1
    for column in range(n_columns):
        ends[column + 1] += ends[column]
    # Each row's start moves on while it fills, up to the start of the next one.
    for row in range(n_rows):
        for place in range(starts[row], starts[row + 1]):
            to = ends[columns[place]]
            new_columns[to], new_values[to] = row, values[place]
            ends[columns[place]] = to + 1
    for column in range(n_columns, 0, -1):
        ends[column] = ends[column - 1]
    ends[0] = 0


@kernel()
def sort_rows(first: int, last: int, starts: Any, columns: Any, values: Float64) -> None:
    """Sort some rows of a CSR matrix by their columns, in place (Shell 1959; short rows by insertion)."""
    for row in range(first, last):
        gap = 1
        while 16 * gap < starts[row + 1] - starts[row]:
            gap = 3 * gap + 1
        while gap > 0:
            for i in range(starts[row] + gap, starts[row + 1]):
                column, value, j = columns[i], values[i], i
                while j >= starts[row] + gap and columns[j - gap] > column:
                    columns[j], values[j] = columns[j - gap], values[j - gap]
                    j -= gap
                columns[j], values[j] = column, value
            gap //= 3


@kernel()
def label_components(starts: Any, columns: Any, labels: Any) -> int:
    """Write the connected component of each row of a symmetric matrix, by first rows; return how many there are."""
    n_rows, count = starts.size - 1, 0
    waiting = np.empty(n_rows, np.int64)
    labels[:] = -1
    for first in range(n_rows):
        if labels[first] >= 0:
            continue
        # First come, first served: rows near each other are looked at one after the other.
        labels[first], waiting[0], n_seen, n_known = count, first, 0, 1
        while n_seen < n_known:
            row = waiting[n_seen]
            n_seen += 1
            for place in range(starts[row], starts[row + 1]):
                other = columns[place]
                if labels[other] < 0:
                    labels[other] = count
                    waiting[n_known] = other
                    n_known += 1
        count += 1
    return count


@kernel()
def join_rows(
    first: int,
    last: int,
    one: tuple[Any, Any, Float64],
    other: tuple[Any, Any, Float64],
    begins: Int64,
    columns: Any,
    values: Float64,
) -> None:
    """Write the larger entry of two matrices and ones on the diagonal, for some rows, without zeros.

    ``one`` and ``other`` are the starts, columns and values of matrices without a diagonal, each row ascending. With
    no ``columns``, only the number of entries of each row is written, to ``begins[1:]``; else ``begins`` tells where
    the rows begin.
    """
    starts_a, columns_a, values_a = one
    starts_b, columns_b, values_b = other
    writes = columns.size > 0
    for row in range(first, last):
        a, end_a, b, end_b = starts_a[row], starts_a[row + 1], starts_b[row], starts_b[row + 1]
        count, is_past = np.int64(0), False
        while a < end_a or b < end_b or not is_past:
            column_a = columns_a[a] if a < end_a else starts_a.size
            column_b = columns_b[b] if b < end_b else starts_a.size
            column, value = min(column_a, column_b), 0.0
            if not is_past and row < column:
                column, value, is_past = row, 1.0, True
            else:
                if column_a == column:
                    value = values_a[a]
                    a += 1
                if column_b == column:
                    value = max(value, values_b[b])
                    b += 1
            if value > 0:
                if writes:
                    columns[begins[row] + count], values[begins[row] + count] = column, value
                count += 1
        if not writes:
            begins[row + 1] = count


@kernel()
def reorder(
    starts: Any, columns: Any, values: Float64, order: Any, place: Any, begins: Any, to_columns: Any, to_values: Float64
) -> None:
    """Write a symmetric matrix with rows and columns in another order, each row ascending.

    ``order`` names the old row of each new one, ``place`` the new row of each old one. ``begins`` is changed on the
    way.
    """
    n_rows = order.size
    begins[0] = 0
    for row in range(n_rows):
        begins[row + 1] = begins[row] + starts[order[row] + 1] - starts[order[row]]
    # A column of a symmetric matrix is its row: what is written column after column is sorted.
    for column in range(n_rows):
        for at in range(starts[order[column]], starts[order[column] + 1]):
            row = place[columns[at]]
            to_columns[begins[row]], to_values[begins[row]] = column, values[at]
            begins[row] += 1
    for row in range(n_rows, 0, -1):
        begins[row] = begins[row - 1]
    begins[0] = 0
