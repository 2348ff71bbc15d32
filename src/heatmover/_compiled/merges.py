"""The tree of single linkage over the edges of a graph, with the weight that lies inside each of its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._compiled.jit import kernel
from heatmover._typing import Bool, Float64, Int32, Int64

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
