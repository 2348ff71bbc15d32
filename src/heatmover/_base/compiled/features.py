"""Sums of densities over regions, their transposes, and sums of table rows over the points of sparse measures."""

from __future__ import annotations

import numpy as np

from heatmover._base.compiled.jit import kernel

__all__ = [
    "add_columns",
    "add_region_sums",
    "add_region_values",
    "add_scattered_rows",
    "add_table_rows",
    "add_transposed",
]

# Points whose densities are turned from columns into rows at a time: their cache lines are read once and written whole.
TILE = 64


@kernel({"contract"})
def add_region_sums(density, labels, share, sums):  # type: ignore[no-untyped-def]
    """Add share times the density's sum over each region.

    Parameters
    ----------
    density
        ``(n_points, width)``.
    labels
        Region of each point, ``(n_points,)``; below zero for a point in none.
    share
        A number.
    sums
        ``(n_regions, width)``, float64, changed in place.
    """
    for i in range(density.shape[0]):
        region = labels[i]
        if region < 0:
            continue
        for k in range(density.shape[1]):
            sums[region, k] += share * density[i, k]


@kernel({"contract"})
def add_transposed(density, share, first, rows):  # type: ignore[no-untyped-def]
    """Add share times the density of each measure to its row.

    Parameters
    ----------
    density
        ``(n_points, width)``.
    share
        A number of the density's type.
    first
        Column of the rows where the first point goes.
    rows
        ``(width, n_features)``, changed in place.
    """
    n_points, width = density.shape
    for start in range(0, n_points, TILE):
        stop = min(start + TILE, n_points)
        for k in range(width):
            for i in range(start, stop):
                rows[k, first + i] += share * density[i, k]


@kernel({"contract"})
def add_columns(rows, share, first, block):  # type: ignore[no-untyped-def]
    """Add share times some columns of the rows to a block of columns: the transpose of `add_transposed`.

    Parameters
    ----------
    rows
        ``(width, n_features)``.
    share
        A number of the rows' type.
    first
        Column of the rows that belongs to the first point.
    block
        ``(n_points, width)``, changed in place.
    """
    n_points, width = block.shape
    for start in range(0, n_points, TILE):
        stop = min(start + TILE, n_points)
        for k in range(width):
            for i in range(start, stop):
                block[i, k] += share * rows[k, first + i]


@kernel({"contract"})
def add_region_values(values, labels, share, block):  # type: ignore[no-untyped-def]
    """Add share times the value of its region to every point: the transpose of `add_region_sums`.

    Parameters
    ----------
    values
        ``(n_regions, width)``.
    labels
        Region of each point, ``(n_points,)``; below zero for a point in none.
    share
        A number of the values' type.
    block
        ``(n_points, width)``, changed in place.
    """
    for i in range(block.shape[0]):
        region = labels[i]
        if region < 0:
            continue
        for k in range(block.shape[1]):
            block[i, k] += share * values[region, k]


@kernel({"contract"})
def add_table_rows(indptr, indices, data, table, first, result):  # type: ignore[no-untyped-def]
    """Write, for every measure, the sum of its points' table rows, weighed with their masses.

    Parameters
    ----------
    indptr, indices, data
        Measures in CSR form, ``(n_measures, n_points)``.
    table
        One group of features of every point, ``(n_points, width)``: few enough for the cache, so that the rows of many
        measures find them there.
    first
        Number of the first of these features.
    result
        ``(n_measures, n_features)``.
    """
    width = table.shape[1]
    row = np.empty(width, table.dtype)
    for i in range(indptr.size - 1):
        for k in range(width):
            row[k] = 0
        entry, end = indptr[i], indptr[i + 1]
        while entry + 4 <= end:
            w0, w1, w2, w3 = data[entry], data[entry + 1], data[entry + 2], data[entry + 3]
            t0, t1 = table[indices[entry]], table[indices[entry + 1]]
            t2, t3 = table[indices[entry + 2]], table[indices[entry + 3]]
            for k in range(width):
                row[k] += w0 * t0[k] + w1 * t1[k] + w2 * t2[k] + w3 * t3[k]
            entry += 4
        while entry < end:
            w0, t0 = data[entry], table[indices[entry]]
            for k in range(width):
                row[k] += w0 * t0[k]
            entry += 1
        for k in range(width):
            result[i, first + k] = row[k]


@kernel({"contract"})
def add_scattered_rows(indptr, indices, data, offsets, columns, values, background, result):  # type: ignore[no-untyped-def]
    """Write, for every measure, its mass times the background, and add its points' sparse values.

    Parameters
    ----------
    indptr, indices, data
        Measures in CSR form, ``(n_measures, n_points)``.
    offsets, columns, values
        What points have beyond the background, in CSR form, ``(n_points, n_features)``.
    background
        ``(n_features,)``.
    result
        ``(n_measures, n_features)``.
    """
    for i in range(indptr.size - 1):
        mass = 0.0
        for entry in range(indptr[i], indptr[i + 1]):
            mass += data[entry]
        share = result.dtype.type(mass)
        row = result[i]
        for k in range(row.size):
            row[k] = share * background[k]
        for entry in range(indptr[i], indptr[i + 1]):
            weight = data[entry]
            point = indices[entry]
            for q in range(offsets[point], offsets[point + 1]):
                row[columns[q]] += weight * values[q]
