"""Fill feature rows from densities or tables, place region centers on a graph; only `embedding.definition` calls it."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from heatmover._base.compiled.jit import kernel

# Number of points transposed at a time, so that every cache line is read once and written completely.
TILE = 64


@kernel({"contract"})
def add_transposed(density, share, first, rows):  # type: ignore[no-untyped-def]
    """Add ``share`` times the density of each measure to the feature row of the measure.

    Parameters
    ----------
    density
        Densities ``(n_points, width)``, one column per measure.
    share
        Factor, in the precision of ``density``.
    first
        Column of ``rows`` for the first point.
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
def add_table_rows(indptr, indices, data, table, first, result):  # type: ignore[no-untyped-def]
    """Write, for every measure, the mass-weighted sum of the features of its points.

    Parameters
    ----------
    indptr, indices, data
        Measures in CSR form, ``(n_measures, n_points)``.
    table
        A group of features of every point, ``(n_points, width)``, narrow enough that the table stays in the cache.
    first
        Column of ``result`` for the first feature of the group.
    result
        ``(n_measures, n_features)``, of which ``width`` columns are written.
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
    """Write the mass of every measure times the background, plus the mass-weighted sum of its points' sparse rows.

    Parameters
    ----------
    indptr, indices, data
        Measures in CSR form, ``(n_measures, n_points)``.
    offsets, columns, values
        Differences between the features of each point and the background, in CSR form, ``(n_points, n_features)``.
    background
        Features common to all points, ``(n_features,)``.
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


@kernel()
def farthest_first(indptr, indices, lengths, first, counts, labels, centers):  # type: ignore[no-untyped-def]
    """Place each center at the point farthest from all earlier centers, and record the nearest center of each point.

    Parameters
    ----------
    indptr, indices, lengths
        Graph with non-negative edge lengths, CSR ``(n_points, n_points)``.
    first
        Point of the first center.
    counts
        Numbers of centers for which labels are recorded, ascending, ``(n_counts,)``.
    labels
        Receives the number of the nearest center of each point, ``(n_counts, n_points)``; -1 in a component without a
        center.
    centers
        Receives the points that are centers, in order, ``(counts[-1],)``.
    """
    n_points = indptr.size - 1
    distance = np.full(n_points, np.inf)
    owner = np.full(n_points, -1, np.int32)
    taken = np.zeros(n_points, np.bool_)
    # Heap of the farthest points. Keys are negative distances at the time of the push. Distances only decrease, so the
    # first point with an up-to-date key is the farthest; a point with an outdated key is pushed again with its current
    # distance. Among equal keys the point with the smallest index is first.
    far = [(-np.inf, point) for point in range(n_points)]
    done = 0
    for number in range(counts[-1]):
        center = first
        while number > 0:
            key, center = heappop(far)
            if taken[center]:
                continue
            if distance[center] == -key:
                break
            heappush(far, (-distance[center], center))
        centers[number] = center
        taken[center] = True
        distance[center] = 0.0
        owner[center] = number
        # Dijkstra's algorithm from the new center, restricted to points nearer to the new center than to all earlier
        # centers.
        near = [(0.0, center)]
        while len(near) > 0:
            key, point = heappop(near)
            if owner[point] != number or key > distance[point]:
                continue
            for entry in range(indptr[point], indptr[point + 1]):
                other = np.int64(indices[entry])
                reach = key + lengths[entry]
                if reach < distance[other]:
                    distance[other] = reach
                    owner[other] = number
                    heappush(near, (reach, other))
        while done < counts.size and counts[done] == number + 1:
            labels[done] = owner
            done += 1
