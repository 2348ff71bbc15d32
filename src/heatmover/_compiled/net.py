"""Farthest-first traversal of a graph: centers one by one, each where the earlier ones are farthest."""

from __future__ import annotations

import numpy as np

from heatmover._compiled.jit import kernel

__all__ = ["farthest_first"]


@kernel()
def _before(key, item, other_key, other_item):  # type: ignore[no-untyped-def]
    """Order of the heaps: by key, then by index, so that ties always fall the same way."""
    return key < other_key or (key == other_key and item < other_item)


@kernel()
def _push(keys, items, size, key, item):  # type: ignore[no-untyped-def]
    """Add to a binary heap held in two arrays; the smallest key is at 0. Returns nothing: the caller counts."""
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not _before(key, item, keys[parent], items[parent]):
            break
        keys[place], items[place] = keys[parent], items[parent]
        place = parent
    keys[place], items[place] = key, item


@kernel()
def _drop_first(keys, items, size):  # type: ignore[no-untyped-def]
    """Remove entry 0 of a heap of ``size`` entries."""
    last = size - 1
    key, item = keys[last], items[last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and _before(keys[child + 1], items[child + 1], keys[child], items[child]):
            child += 1
        if not _before(keys[child], items[child], key, item):
            break
        keys[place], items[place] = keys[child], items[child]
        place = child
    keys[place], items[place] = key, item


@kernel()
def farthest_first(indptr, indices, lengths, first, counts, labels, centers):  # type: ignore[no-untyped-def]
    """Place centers and record, at every wanted number of them, which is nearest to each point.

    Parameters
    ----------
    indptr, indices, lengths
        The graph with non-negative edge lengths, CSR, ``(n_points, n_points)``.
    first
        The first center.
    counts
        Wanted numbers of centers, ascending, ``(n_counts,)``.
    labels
        ``(n_counts, n_points)``: becomes the number of the nearest center. A point in a component without a center
        keeps -1.
    centers
        ``(counts[-1],)``: becomes the points that are centers, in order.
    """
    n_points = indptr.size - 1
    distance = np.full(n_points, np.inf)
    owner = np.full(n_points, -1, np.int32)
    taken = np.zeros(n_points, np.bool_)
    # Farthest points. Keys are negative distances as they were when pushed; distances only fall, so a point whose key
    # is still true is farthest, and any other goes back with its present distance.
    far_keys = np.full(n_points, -np.inf)
    far_items = np.arange(n_points)
    far_size = n_points
    near_keys = np.empty(indices.size + 1)
    near_items = np.empty(indices.size + 1, np.int64)
    done = 0
    for number in range(counts[-1]):
        if number == 0:
            center = first
        else:
            while True:
                center, key = far_items[0], -far_keys[0]
                _drop_first(far_keys, far_items, far_size)
                far_size -= 1
                if taken[center]:
                    continue
                if distance[center] == key:
                    break
                _push(far_keys, far_items, far_size, -distance[center], center)
                far_size += 1
        centers[number] = center
        taken[center] = True
        distance[center] = 0.0
        owner[center] = number
        # Dijkstra from the new center, only where it is nearer than every earlier one.
        near_keys[0], near_items[0], near_size = 0.0, center, 1
        while near_size > 0:
            key, point = near_keys[0], near_items[0]
            _drop_first(near_keys, near_items, near_size)
            near_size -= 1
            if owner[point] != number or key > distance[point]:
                continue
            for entry in range(indptr[point], indptr[point + 1]):
                other = indices[entry]
                reach = key + lengths[entry]
                if reach < distance[other]:
                    distance[other] = reach
                    owner[other] = number
                    _push(near_keys, near_items, near_size, reach, other)
                    near_size += 1
        while done < counts.size and counts[done] == number + 1:
            labels[done] = owner
            done += 1
