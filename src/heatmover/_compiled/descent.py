"""Loops of nearest-neighbour descent: lists of the k best so far, improved by looking at neighbours of neighbours."""

from __future__ import annotations

import numpy as np

from heatmover._compiled.jit import kernel

__all__ = ["improve", "refine", "with_reverse"]


@kernel()
def _insert(distances, indices, point, other, distance):  # type: ignore[no-untyped-def]
    """Put ``other`` into the sorted list of ``point``, unless it is there; the caller knows that it is near enough."""
    for position in range(indices.shape[1]):
        if indices[point, position] == other:
            return 0
    position = indices.shape[1] - 1
    while position > 0 and distances[point, position - 1] > distance:
        distances[point, position] = distances[point, position - 1]
        indices[point, position] = indices[point, position - 1]
        position -= 1
    distances[point, position] = distance
    indices[point, position] = other
    return 1


@kernel(fastmath={"contract", "reassoc", "nsz"})
def _squared_distance(points, first, second):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for axis in range(points.shape[1]):
        step = points[first, axis] - points[second, axis]
        total += step * step
    return total


@kernel()
def refine(points, start, stop, indices, distances):  # type: ignore[no-untyped-def]
    """Write the squared distances of the lists of ``start:stop`` and sort them by these; infinite where there is none.

    Parameters
    ----------
    points
        float32 ``(n_points, n_dimensions)``.
    start, stop
        The points whose lists to sort.
    indices, distances
        ``(n_points, k)``; -1 for no neighbour.
    """
    for point in range(start, stop):
        for rank in range(indices.shape[1]):
            other = indices[point, rank]
            distance = np.float32(np.inf) if other < 0 else _squared_distance(points, point, other)
            position = rank
            while position > 0 and distances[point, position - 1] > distance:
                distances[point, position] = distances[point, position - 1]
                indices[point, position] = indices[point, position - 1]
                position -= 1
            distances[point, position] = distance
            indices[point, position] = other


@kernel()
def with_reverse(indices, nearby):  # type: ignore[no-untyped-def]
    """Copy each point's list and append points whose lists it is in, closest ranks first; -1 where there are none.

    Parameters
    ----------
    indices
        ``(n_points, k)``; -1 for no neighbour yet.
    nearby
        Filled, ``(n_points, width)`` with width above k.
    """
    n_points, k = indices.shape
    filled = np.full(n_points, k, np.int64)
    nearby[:, :k] = indices
    for rank in range(k):
        for point in range(n_points):
            other = indices[point, rank]
            if other >= 0 and filled[other] < nearby.shape[1]:
                nearby[other, filled[other]] = point
                filled[other] += 1
    for point in range(n_points):
        nearby[point, filled[point] :] = -1


@kernel()
def improve(points, nearby, start, stop, distances, indices):  # type: ignore[no-untyped-def]
    """Offer to each point in ``start:stop`` its nearby points and theirs; return how many entered its list.

    Parameters
    ----------
    points
        float32 ``(n_points, n_dimensions)``.
    nearby
        From `with_reverse`, ``(n_points, width)``.
    start, stop
        The points to improve.
    distances, indices
        Sorted lists ``(n_points, k)``; only those of ``start:stop`` are read or changed.
    """
    last = indices.shape[1] - 1
    seen_by = np.full(len(points), -1, np.int32)
    changed = 0
    for point in range(start, stop):
        seen_by[point] = point
        for position in range(indices.shape[1]):
            if indices[point, position] >= 0:
                seen_by[indices[point, position]] = point
        for via in nearby[point]:
            if via < 0:
                continue
            if seen_by[via] != point:
                seen_by[via] = point
                distance = _squared_distance(points, point, via)
                if distance < distances[point, last]:
                    changed += _insert(distances, indices, point, via, distance)
            for other in nearby[via]:
                if other < 0 or seen_by[other] == point:
                    continue
                seen_by[other] = point
                distance = _squared_distance(points, point, other)
                if distance < distances[point, last]:
                    changed += _insert(distances, indices, point, other, distance)
    return changed
