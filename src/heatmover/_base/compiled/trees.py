"""Split points into a tree of clusters around distant centers; only `transport.baselines` calls it."""

from __future__ import annotations

import numpy as np

from heatmover._base.compiled.jit import kernel
from heatmover._base.types import Float64, Int64


@kernel(fastmath={"contract"})
def _squared(points: Float64, i: int, center: Float64) -> float:
    total = 0.0
    for d in range(points.shape[1]):
        difference = points[i, d] - center[d]
        total += difference * difference
    return total


@kernel(fastmath={"contract"})
def _farthest_first(points: Float64, part: Int64, first: int, n_clusters: int, label: Int64, nearest: Float64) -> int:
    """Place centers, each at the point farthest from all earlier centers, and label points by their nearest center.

    Return the number of centers, which is below ``n_clusters`` if the part has fewer distinct points.
    """
    chosen = part[first]
    for cluster in range(n_clusters):
        farthest, largest = -1, 0.0
        for p in range(len(part)):
            distance = _squared(points, part[p], points[chosen])
            if cluster == 0 or distance < nearest[p]:
                nearest[p] = distance
                label[p] = cluster
            if nearest[p] > largest:
                farthest, largest = p, nearest[p]
        if farthest < 0:
            return cluster + 1
        chosen = part[farthest]
    return n_clusters


@kernel(fastmath={"contract"})
def _means(points: Float64, part: Int64, label: Int64, centers: Float64, counts: Int64) -> None:
    centers[:] = 0
    counts[:] = 0
    for p in range(len(part)):
        counts[label[p]] += 1
        for d in range(points.shape[1]):
            centers[label[p], d] += points[part[p], d]
    for cluster in range(len(counts)):
        if counts[cluster] > 0:
            centers[cluster] /= counts[cluster]


@kernel(fastmath={"contract"})
def _relabel(points: Float64, part: Int64, label: Int64, centers: Float64, counts: Int64) -> None:
    """Label every point by its nearest mean; a cluster without points stays empty."""
    for p in range(len(part)):
        best = np.inf
        for cluster in range(len(counts)):
            if counts[cluster] > 0:
                distance = _squared(points, part[p], centers[cluster])
                if distance < best:
                    best = distance
                    label[p] = cluster


@kernel(fastmath={"contract"})
def cluster_tree(
    points: Float64, n_clusters: int, n_lloyd: int, draws: Float64, nodes: Int64, parents: Int64, lengths: Float64
) -> int:
    """Split the points into a tree of clusters, level by level, and return the number of nodes.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    n_clusters, n_lloyd
        Largest number of children of a node, and number of rounds of Lloyd's algorithm after the farthest-first start.
    draws
        Uniform random numbers in [0, 1), ``(depth, n_points)``. ``draws[level, start]`` chooses the first center for
        splitting the cluster that begins at place ``start``.
    nodes
        Receives the node of every point at every level, ``(depth, n_points)``; -1 at levels below the last node of a
        point.
    parents
        Receives the parent of each node, -1 for the children of the root; long enough for all possible nodes.
    lengths
        Receives the distance from the mean of each node to the mean of its parent.
    """
    depth, n_points = draws.shape
    order = np.arange(n_points)
    label, nearest = np.empty(n_points, np.int64), np.empty(n_points)
    centers, counts = np.empty((n_clusters, points.shape[1])), np.empty(n_clusters, np.int64)
    places = np.empty(n_clusters, np.int64)
    # For each cluster of the current level: its range in `order`, its node and its mean.
    starts, stops, owners = np.zeros(1, np.int64), np.full(1, n_points), np.full(1, -1)
    means = np.empty((1, points.shape[1]))
    label[:] = 0
    _means(points, order, label, means, np.empty(1, np.int64))
    nodes[:] = -1
    n_nodes = 0
    for level in range(depth):
        room = min(len(starts) * n_clusters, n_points)
        new_starts, new_stops = np.empty(room, np.int64), np.empty(room, np.int64)
        new_owners, new_means = np.empty(room, np.int64), np.empty((room, points.shape[1]))
        n_new = 0
        for c in range(len(starts)):
            start, size = starts[c], stops[c] - starts[c]
            if size == 1:
                continue
            part = order[start : stops[c]].copy()
            first = int(draws[level, start] * size)
            n_centers = _farthest_first(points, part, first, n_clusters, label, nearest)
            if n_centers == 1:  # all members are copies of one point
                continue
            _means(points, part, label, centers, counts)
            for _ in range(n_lloyd):
                _relabel(points, part, label, centers, counts)
                _means(points, part, label, centers, counts)
            at = start
            for cluster in range(n_clusters):
                places[cluster] = at
                at += counts[cluster]
            for p in range(size):
                order[places[label[p]]] = part[p]
                places[label[p]] += 1
            for cluster in range(n_clusters):
                if counts[cluster] > 0:
                    stop = places[cluster]
                    new_starts[n_new], new_stops[n_new], new_owners[n_new] = stop - counts[cluster], stop, n_nodes
                    new_means[n_new] = centers[cluster]
                    parents[n_nodes] = owners[c]
                    distance = 0.0
                    for d in range(points.shape[1]):
                        distance += (centers[cluster, d] - means[c, d]) ** 2
                    lengths[n_nodes] = np.sqrt(distance)
                    for p in range(stop - counts[cluster], stop):
                        nodes[level, order[p]] = n_nodes
                    n_new += 1
                    n_nodes += 1
        starts, stops, owners, means = new_starts[:n_new], new_stops[:n_new], new_owners[:n_new], new_means[:n_new]
    return n_nodes
