"""Orders in which a graph is walked: the tree of single linkage, and centers each farthest from the earlier."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Bool, Float64, Int32, Int64

__all__ = ["farthest_first", "large_sets_merge", "lowest_marked", "merge_edges", "sort_edges", "sum_upwards"]

# 16 leading bits of a float: its power of two in sixteenths.
CLASSES = 1 << 16


@kernel()
def sort_edges(
    indptr: npt.NDArray[Any], indices: npt.NDArray[Any], bits: npt.NDArray[np.uint64]
) -> tuple[Int32, Int64]:
    """Return the rows and the places of the entries above the diagonal, from the largest class to the smallest.

    ``bits`` are those of the entries, which are not negative. A counting sort: two passes over the entries.
    """
    ends = np.zeros(CLASSES + 1, dtype=np.int64)
    for row in range(indptr.size - 1):
        for place in range(indptr[row], indptr[row + 1]):
            if indices[place] > row:
                ends[CLASSES - 1 - (bits[place] >> np.uint64(48)) + 1] += 1
    for c in range(CLASSES):
        ends[c + 1] += ends[c]
    rows, places = np.empty(ends[CLASSES], dtype=np.int32), np.empty(ends[CLASSES], dtype=np.int64)
    for row in range(indptr.size - 1):
        for place in range(indptr[row], indptr[row + 1]):
            if indices[place] > row:
                c = CLASSES - 1 - (bits[place] >> np.uint64(48))
                rows[ends[c]], places[ends[c]] = row, place
                ends[c] += 1
    return rows, places


@kernel()
def large_sets_merge(
    rows: Int32, places: Int64, indices: npt.NDArray[Any], masses: Float64, least: float, parent: Int64
) -> bool:
    """Return whether an edge ever joins two sets that both have at least this mass.

    ``parent`` begins as the numbers of the points; it and ``masses`` are overwritten.
    """
    most = 0.0
    for i in range(masses.size):
        most += masses[i]
    most -= least
    for e in range(rows.size):
        first, second = np.int64(rows[e]), np.int64(indices[places[e]])
        while parent[first] != first:
            parent[first] = parent[parent[first]]
            first = parent[first]
        while parent[second] != second:
            parent[second] = parent[parent[second]]
            second = parent[second]
        if first != second:
            if masses[first] >= least and masses[second] >= least:
                return True
            if masses[first] > masses[second]:
                first, second = second, first
            parent[first] = second
            masses[second] += masses[first]
            if masses[second] > most:  # too little is left for another
                return False
    return False


@kernel()
def merge_edges(
    rows: Int32,
    places: Int64,
    indices: npt.NDArray[Any],
    data: Float64,
    bits: npt.NDArray[np.uint64],
    root: Float64,
    up: Int64,
    level: Int64,
    inside: Float64,
    sets: Int64,
) -> int:
    """Join the ends of each edge in turn; return the number of nodes of the tree.

    The first ``root.size`` nodes are points, further ones the sets that two nodes become when an edge joins them.
    Written are ``up``, the node that a node becomes part of (-1: none), ``level``, the class of the edge that made it,
    and to ``inside`` of the smallest node that holds both ends twice the weight of every edge is added: the entry times
    ``root`` at both ends. ``sets`` (4, n_points) is changed: for each point its parent, at first itself, the size of
    its set, at first 1, its node, at first itself, and the node made when it got a parent, at first ``up.size``.
    """
    # Union by size without shortened paths: paths stay below log2(n), and remember when their links were made.
    parent, size, node, linked = sets[0], sets[1], sets[2], sets[3]
    count = root.size
    for e in range(rows.size):
        first, second, made = np.int64(rows[e]), np.int64(indices[places[e]]), np.int64(-1)
        weight = data[places[e]] * root[first] * root[second]
        while first != second:
            # The older link first: the last one climbed is the one that joined the two.
            if linked[first] > linked[second]:
                first, second = second, first
            if linked[first] == up.size:
                break
            made = linked[first]
            first = parent[first]
        if first != second:
            if size[first] > size[second]:
                first, second = second, first
            up[node[first]] = up[node[second]] = count
            level[count] = bits[places[e]] >> np.uint64(48)
            parent[first] = second
            size[second] += size[first]
            linked[first] = node[second] = count
            made = np.int64(count)
            count += 1
        inside[made] += 2 * weight
    return count


@kernel()
def sum_upwards(up: Int64, values: Float64) -> None:
    """Add the row of each node in ``values`` (n_nodes, n_values) to that of the node above; parts come first."""
    for node in range(up.size):
        if up[node] >= 0:
            for column in range(values.shape[1]):
                values[up[node], column] += values[node, column]


@kernel()
def lowest_marked(up: Int64, marked: Bool, top: Int64) -> None:
    """Write the lowest marked node at or above each node, or the highest one if none is.

    ``top`` begins as the numbers of the nodes.
    """
    for node in range(up.size - 1, -1, -1):
        if up[node] >= 0 and not marked[node]:
            top[node] = top[up[node]]


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
