"""Compare measures by EMD along random trees over points, as baselines for users; touch no files.

On a tree, mass moves up one branch and down another. The EMD is the sum over edges of the length of the edge times the
difference of the masses below the edge (Evans and Matsen 2012). The EMD on a tree is therefore an L1 distance with one
feature per node. Each method averages the EMD over random trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import RandomState, check_integer, check_random_state, check_threads
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.graphs.distinct import distinct_points
from heatmover.transport.baselines.ground import Ground, check_masses, points_of
from heatmover.transport.baselines.method import Features, embedding_method

# The interval [0, 1) can be halved 52 times; a finer grid cannot separate two floats.
DEEPEST_GRID = 52
# Number of dimensions whose bits fit into one integer. Each bit encodes in which half of a box a point lies.
BITS = 62


@final
@dataclass(frozen=True, eq=False)
class Tree:
    """A tree whose nodes below the root are sets of points.

    Attributes
    ----------
    nodes
        ``(n_levels, n_points)``: node that contains each point at each level, -1 below the end of its branch.
    parents
        ``(n_nodes,)``: parent of each node, -1 for the root.
    lengths
        ``(n_nodes,)``: length of the edge to the parent.
    """

    nodes: Int64
    parents: Int64
    lengths: Float64

    def embed(self, masses: sp.csr_array) -> sp.csr_array:
        """Return the mass below each edge times the length of the edge, CSR ``(n_measures, n_nodes)``."""
        per_point = self.nodes.T
        kept = per_point >= 0
        offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        columns = per_point[kept]
        below = sp.csr_array((self.lengths[columns], columns, offsets), shape=(len(per_point), self.lengths.size))
        return sp.csr_array(masses @ below)


def build_cluster_tree(
    points: Float64, rng: np.random.Generator, *, n_clusters: int, depth: int, n_lloyd: int = 0
) -> Tree:
    """Build a tree by splitting clusters around distant points; edge lengths are distances between cluster means."""
    from heatmover._base.compiled import trees

    n_points = len(points)
    # A cluster of several points has at least two children, so a tree of n points has fewer than 2 n nodes.
    room = 2 * n_points + n_clusters
    nodes = np.empty((depth, n_points), dtype=np.int64)
    parents, lengths = np.empty(room, dtype=np.int64), np.empty(room)
    draws = rng.random((depth, n_points))
    count = trees.cluster_tree(points, n_clusters, n_lloyd, draws, nodes, parents, lengths)
    return Tree(nodes, parents[:count], lengths[:count])


def build_grid_tree(points: Float64, rng: np.random.Generator, *, depth: int, identity: Int64 | None = None) -> Tree:
    """Build a tree by halving a randomly shifted cube in every dimension; an edge is as long as the side of its box.

    ``identity``, ``(n_points,)``, contains equal integers for copies of one point. A box that contains only copies of
    one point is not halved.
    """
    low = points.min(axis=0)
    extent = float((points.max(axis=0) - low).max())
    # The root is twice as wide as the points, so that it contains them for every shift.
    side = 2 * extent if extent > 0 else 1.0
    places = ((points - low) / side + rng.random(points.shape[1]) / 2) * 2.0**depth
    boxes = np.minimum(places, 2.0**depth - 1).astype(np.int64)
    nodes = np.full((depth, len(points)), -1)
    parents, lengths = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    node, active, count = np.full(len(points), -1), np.arange(len(points)), 0
    for level in range(depth):
        if identity is not None:
            active = active[~_alone(node[active], identity[active])]
        if active.size == 0:
            break
        code = _halves(boxes[active], depth - level - 1)
        _, first, key = np.unique(_pairs(node[active] + 1, code), return_index=True, return_inverse=True)
        parents.append(node[active][first])
        lengths.append(np.full(first.size, side * 0.5 ** (level + 1)))
        node[active] = nodes[level, active] = key + count
        count += first.size
    return Tree(nodes, np.concatenate(parents), np.concatenate(lengths))


def _halves(boxes: Int64, shift: int) -> Int64:
    """Return a small integer per point that encodes in which half of its box the point lies in every dimension."""
    bits = (boxes >> shift) & 1
    code = np.zeros(len(boxes), dtype=np.int64)
    for start in range(0, bits.shape[1], BITS):
        part = bits[:, start : start + BITS]
        packed = part @ (1 << np.arange(part.shape[1]))
        code = _ranks(_pairs(code, _ranks(packed)))
    return code


def _ranks(values: Int64) -> Int64:
    return np.asarray(np.unique(values, return_inverse=True)[1])


def _pairs(first: Int64, second: Int64) -> Int64:
    """Return a unique integer for each pair of small integers."""
    return np.asarray(first * (second.max() + 1) + second)


def _alone(node: Int64, identity: Int64) -> Bool:
    """Return True for points whose node contains only copies of the point."""
    size = int(node.max()) + 2
    lowest, highest = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    np.minimum.at(lowest, node + 1, identity)
    np.maximum.at(highest, node + 1, identity)
    return np.asarray((lowest == highest)[node + 1])


def _in_order(ground: Ground, measures: Any) -> tuple[Float64, sp.csr_array, Int64]:
    """Return sorted points, their masses, and one integer per point; only copies of a point have equal integers.

    Sorting makes the trees independent of the input order of the points.
    """
    points = points_of(ground)
    place = distinct_points(points)[1]
    order = np.argsort(place, kind="stable")
    return points[order], check_masses(points, measures)[:, order], place[order]


def _average_over_trees(
    masses: sp.csr_array,
    build: Callable[[np.random.Generator], Tree],
    n_trees: int,
    rng: np.random.Generator,
    n_jobs: int | None,
) -> Iterator[Features]:
    """Yield one block of features per tree; the L1 distances of the blocks add up to the mean over trees."""
    n_threads = min(check_threads(n_jobs), n_trees)
    generators, shares = rng.spawn(n_trees), masses / n_trees

    def block(generator: np.random.Generator) -> sp.csr_array:
        return build(generator).embed(shares)

    # Build only as many trees at a time as there are threads, because a block can be large.
    with ThreadPoolExecutor(n_threads) as pool:
        for start in range(0, n_trees, n_threads):
            yield from pool.map(block, generators[start : start + n_threads])


@embedding_method("points", "Indyk and Thaper 2003, Fast image retrieval via embeddings")
def grid_emd(
    ground: Ground,
    measures: Any,
    *,
    n_scales: int = 8,
    n_shifts: int = 10,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Iterator[Features]:
    """Return L1 distances between masses in boxes of randomly shifted grids, each twice as fine as the previous grid.

    The weight of a grid is the side of its boxes. The coarsest boxes are as wide as the bounding cube of the points.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_scales
        Number of grids, at most 52.
    n_shifts
        Number of random shifts to average over; all grids of one shift are nested.
    random_state
        Seed or generator of the random trees.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal. ``grid_emd.embed`` returns the features instead.

    Examples
    --------
    >>> from heatmover.transport.baselines import grid_emd
    >>> points, mu = [[0.0], [0.1], [1.0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    >>> near, far = grid_emd(points, mu, n_shifts=50)[0, 1:]
    >>> bool(near < far)
    True
    """
    depth = check_integer("n_scales", n_scales, minimum=1, maximum=DEEPEST_GRID)
    count = check_integer("n_shifts", n_shifts, minimum=1)
    points, masses, _ = _in_order(ground, measures)

    def build(rng: np.random.Generator) -> Tree:
        return build_grid_tree(points, rng, depth=depth)

    return _average_over_trees(masses, build, count, check_random_state(random_state), n_jobs)


@embedding_method("points", "Backurs et al. 2020, Scalable nearest neighbor search for optimal transport")
def quad_tree(
    ground: Ground,
    measures: Any,
    *,
    depth: int = 4,
    n_trees: int = 10,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Iterator[Features]:
    """Return EMDs along randomly shifted quadtrees, averaged over trees: QuadTree(D) of the paper.

    A box is halved in every dimension until it contains one point or the depth is reached. The edge to a box is as long
    as the side of the box.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    depth
        Number of levels below the root, at most 52. The root is twice as wide as the bounding cube of the points.
        Branches end at boxes with a single point, so very large depths give identical results.
    n_trees
        Number of trees.
    random_state
        Seed or generator of the random trees.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal. ``quad_tree.embed`` returns the features instead, one per node.

    Examples
    --------
    >>> from heatmover.transport.baselines import quad_tree
    >>> points, mu = [[0.0], [0.1], [1.0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    >>> near, far = quad_tree(points, mu, n_trees=50)[0, 1:]
    >>> bool(near < far)
    True
    """
    levels = check_integer("depth", depth, minimum=1, maximum=DEEPEST_GRID)
    count = check_integer("n_trees", n_trees, minimum=1)
    points, masses, identity = _in_order(ground, measures)

    def build(rng: np.random.Generator) -> Tree:
        return build_grid_tree(points, rng, depth=levels, identity=identity)

    return _average_over_trees(masses, build, count, check_random_state(random_state), n_jobs)


@embedding_method("points", "Le et al. 2019, Tree-sliced variants of Wasserstein distances")
def cluster_tree(
    ground: Ground,
    measures: Any,
    *,
    n_clusters: int = 3,
    depth: int = 5,
    n_trees: int = 10,
    n_lloyd: int = 0,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Iterator[Features]:
    """Return EMDs along trees of clusters, averaged over trees: ClusterTree(C, D) of the paper.

    Sets of points are clustered recursively by farthest-first traversal from a random point. The edge to a cluster is
    as long as the distance between its mean and the mean of its parent set.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_clusters
        Number of clusters per set, from 2 to the number of distinct points.
    depth
        Number of levels below the root. Branches end at clusters of a single point, so very large depths give identical
        results.
    n_trees
        Number of trees.
    n_lloyd
        Number of rounds of Lloyd's algorithm (k-means) that improve the clusters of each set.
    random_state
        Seed or generator of the random trees.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal. ``cluster_tree.embed`` returns the features instead, one per node.

    Examples
    --------
    >>> from heatmover.transport.baselines import cluster_tree
    >>> points, mu = [[0.0], [0.1], [1.0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    >>> near, far = cluster_tree(points, mu, n_clusters=2, n_trees=50)[0, 1:]
    >>> bool(near < far)
    True
    """
    levels = check_integer("depth", depth, minimum=1)
    clusters = check_integer("n_clusters", n_clusters, minimum=2)
    rounds = check_integer("n_lloyd", n_lloyd, minimum=0)
    count = check_integer("n_trees", n_trees, minimum=1)
    points, masses, identity = _in_order(ground, measures)
    n_distinct = int(identity.max()) + 1
    if clusters > n_distinct:
        raise InvalidInputError(
            "at most as many clusters as distinct points",
            f"n_clusters={clusters} with {counted(n_distinct, 'distinct point')}",
            "use fewer clusters" if n_distinct > 1 else "give at least two distinct points",
        )
    # No branch has more levels than needed to separate all points.
    reach = min(levels, n_distinct - 1)

    def build(rng: np.random.Generator) -> Tree:
        return build_cluster_tree(points, rng, n_clusters=clusters, depth=reach, n_lloyd=rounds)

    return _average_over_trees(masses, build, count, check_random_state(random_state), n_jobs)
