"""Build the single-linkage tree of a graph and sum values over its branches; only `graphs.diagnosis` calls it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Bool, Float64, Int32, Int64


@kernel()
def large_sets_merge(
    rows: Int32, places: Int64, indices: npt.NDArray[Any], masses: Float64, least: float, parent: Int64
) -> bool:
    """Join sets along the edges in order; return whether an edge joins two sets of mass ``least`` or more.

    On entry, ``parent[i]`` must be ``i`` for every point. Both ``parent`` and ``masses`` are overwritten.
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
            if masses[second] > most:  # the remaining mass is too small for a second large set
                return False
    return False


@kernel()
def merge_edges(
    rows: Int32,
    places: Int64,
    indices: npt.NDArray[Any],
    data: Float64,
    classes: npt.NDArray[np.uint16],
    root: Float64,
    up: Int64,
    level: Int64,
    inside: Float64,
    sets: Int64,
) -> int:
    """Build the single-linkage tree by joining the ends of each edge in turn; return its number of nodes.

    The first ``root.size`` nodes are the points. Every further node is the union of two nodes that an edge joins.

    Parameters
    ----------
    rows, places
        Row of each edge, and its position in ``indices`` and ``data``, heaviest class first.
    indices, data, classes
        Columns, values and classes of all entries of S.
    root
        Square root of the degree of each point, ``(n_points,)``. The weight of an edge is its entry of S times the
        ``root`` of both ends.
    up
        Receives the parent of each node, -1 for roots.
    level
        Receives the class of the edge that created each node.
    inside
        Sum of weights per node. Twice the weight of every edge is added at the smallest node that contains both ends.
    sets
        ``(4, n_points)``, overwritten. For each point: its parent in the union-find forest, the size of its set, the
        node of its set, and the node created when the point got its parent. Initial values: the point itself, 1, the
        point itself, and ``up.size``.
    """
    # Union by size without path compression: paths are at most log2(n) long and record when their links were created.
    parent, size, node, linked = sets[0], sets[1], sets[2], sets[3]
    count = root.size
    for e in range(rows.size):
        first, second, made = np.int64(rows[e]), np.int64(indices[places[e]]), np.int64(-1)
        weight = data[places[e]] * root[first] * root[second]
        while first != second:
            # Follow the older link first, so that the last link followed is the link that joined both ends.
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
            level[count] = classes[places[e]]
            parent[first] = second
            size[second] += size[first]
            linked[first] = node[second] = count
            made = np.int64(count)
            count += 1
        inside[made] += 2 * weight
    return count


@kernel()
def sum_upwards(up: Int64, values: Float64) -> None:
    """Add the row of each node in ``values`` (n_nodes, n_values) to the row of its parent; children precede parents."""
    for node in range(up.size):
        if up[node] >= 0:
            for column in range(values.shape[1]):
                values[up[node], column] += values[node, column]


@kernel()
def lowest_marked(up: Int64, marked: Bool, top: Int64) -> None:
    """Write the lowest marked node at or above each node into ``top``, or its root if none is marked.

    ``top`` must contain the index of each node.
    """
    for node in range(up.size - 1, -1, -1):
        if up[node] >= 0 and not marked[node]:
            top[node] = top[up[node]]
