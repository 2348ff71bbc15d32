"""Trees over points, and EMD along them: a mass moves up its branch and down another, edge by edge.

On a tree the EMD is the sum over edges of the edge's length times the difference of the masses below it
(Evans and Matsen 2012), an L1 distance with one feature per node. A method builds random trees and averages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import (
    RandomState,
    check_integer,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.graphs.distinct import distinct_points
from heatmover.transport.baselines.ground import Ground, check_masses, points_of
from heatmover.transport.baselines.method import Declaration, Features, embedding_method

__all__ = ["Tree", "build_cluster_tree", "build_grid_tree", "cluster_tree", "grid_emd", "quad_tree"]

Builder = Callable[[np.random.Generator], "Tree"]

# A coordinate in [0, 1) has 52 halvings; below, a grid tells no two floats apart.
DEEPEST_GRID = 52
# One bit per dimension says in which half of a cell a point lies; so many bits fit into a whole number.
BITS = 62


@final
@dataclass(frozen=True, eq=False)
class Tree:
    """A tree whose nodes below the root are sets of points.

    Attributes
    ----------
    nodes
        ``(n_levels, n_points)``: the node that holds each point at each level, -1 where its branch has ended.
    parents
        ``(n_nodes,)``: each node's parent, -1 for the root.
    lengths
        ``(n_nodes,)``: length of the edge to the parent.
    """

    nodes: Int64
    parents: Int64
    lengths: Float64

    def embed(self, masses: sp.csr_array) -> sp.csr_array:
        """Return the mass below each edge times its length, CSR ``(n_measures, n_nodes)``."""
        per_point = self.nodes.T
        kept = per_point >= 0
        offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        columns = per_point[kept]
        below = sp.csr_array((self.lengths[columns], columns, offsets), shape=(len(per_point), self.lengths.size))
        return sp.csr_array(masses @ below)


def build_cluster_tree(
    points: Float64, rng: np.random.Generator, *, n_clusters: int, depth: int, n_lloyd: int = 0
) -> Tree:
    """Split every cell into clusters around far apart points; an edge is as long as the way between the means."""
    from heatmover._base.compiled import baselines as trees

    n_points = len(points)
    # A cell with several points has at least two children, so that n points make fewer than 2 n nodes.
    room = 2 * n_points + n_clusters
    nodes = np.empty((depth, n_points), dtype=np.int64)
    parents, lengths = np.empty(room, dtype=np.int64), np.empty(room)
    draws = rng.random((depth, n_points))
    count = trees.cluster_tree(points, n_clusters, n_lloyd, draws, nodes, parents, lengths)
    return Tree(nodes, parents[:count], lengths[:count])


def build_grid_tree(points: Float64, rng: np.random.Generator, *, depth: int, identity: Int64 | None = None) -> Tree:
    """Halve a randomly shifted cube around the points in every dimension; an edge is as long as its cell's side.

    With ``identity`` (n_points,), equal for copies of one point, a cell that holds copies only is not halved.
    """
    low = points.min(axis=0)
    extent = float((points.max(axis=0) - low).max())
    # The root has twice the extent, so that it holds the points wherever in its half they are shifted to.
    side = 2 * extent if extent > 0 else 1.0
    places = ((points - low) / side + rng.random(points.shape[1]) / 2) * 2.0**depth
    cells = np.minimum(places, 2.0**depth - 1).astype(np.int64)
    nodes = np.full((depth, len(points)), -1)
    parents, lengths = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    node, active, count = np.full(len(points), -1), np.arange(len(points)), 0
    for level in range(depth):
        if identity is not None:
            active = active[~_alone(node[active], identity[active])]
        if active.size == 0:
            break
        code = _halves(cells[active], depth - level - 1)
        _, first, key = np.unique(_pairs(node[active] + 1, code), return_index=True, return_inverse=True)
        parents.append(node[active][first])
        lengths.append(np.full(first.size, side * 0.5 ** (level + 1)))
        node[active] = nodes[level, active] = key + count
        count += first.size
    return Tree(nodes, np.concatenate(parents), np.concatenate(lengths))


def _halves(cells: Int64, shift: int) -> Int64:
    """Return, as one small whole number per point, in which half of its cell it lies in every dimension."""
    bits = (cells >> shift) & 1
    code = np.zeros(len(cells), dtype=np.int64)
    for start in range(0, bits.shape[1], BITS):
        part = bits[:, start : start + BITS]
        packed = part @ (1 << np.arange(part.shape[1]))
        code = _ranks(_pairs(code, _ranks(packed)))
    return code


def _ranks(values: Int64) -> Int64:
    return np.asarray(np.unique(values, return_inverse=True)[1])


def _pairs(first: Int64, second: Int64) -> Int64:
    """Return one whole number per pair of small ones."""
    return np.asarray(first * (second.max() + 1) + second)


def _alone(node: Int64, identity: Int64) -> Bool:
    """Return which points share their node with no other point but copies of themselves."""
    size = int(node.max()) + 2
    lowest, highest = np.full(size, np.iinfo(np.int64).max), np.full(size, -1)
    np.minimum.at(lowest, node + 1, identity)
    np.maximum.at(highest, node + 1, identity)
    return np.asarray((lowest == highest)[node + 1])


def _average_over_trees(
    ground: Ground, measures: Any, prepare: Callable[[Float64], Builder], n_trees: int, rng: Any, n_jobs: int | None
) -> Iterator[Features]:
    """Yield one block of features per tree; the L1 distances of all blocks together are the mean over trees."""
    points = points_of(ground)
    # Sorted, so that the trees do not depend on the order in which the points came.
    order = np.argsort(distinct_points(points)[1], kind="stable")
    masses = check_masses(points, measures)[:, order] / n_trees
    build = prepare(points[order])
    generators = rng.spawn(n_trees)
    n_threads = min(check_threads(n_jobs), n_trees)

    def block(generator: np.random.Generator) -> sp.csr_array:
        return build(generator).embed(masses)

    # No more trees than threads wait to be used: a block can be large.
    with ThreadPoolExecutor(n_threads) as pool:
        for start in range(0, n_trees, n_threads):
            yield from pool.map(block, generators[start : start + n_threads])


@embedding_method(
    Declaration(
        "points",
        "Indyk and Thaper 2003, Fast image retrieval via embeddings",
    )
)
def grid_emd(
    ground: Ground,
    measures: Any,
    *,
    n_scales: int = 8,
    n_shifts: int = 10,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Iterator[Features]:
    """Return distances by masses in the cells of randomly shifted grids, each grid half as wide as the one before.

    Every scale counts with the side of its cells. The coarsest cells are as wide as the points' bounding cube.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_scales
        Number of grids, at most 52.
    n_shifts
        Random shifts to average over; all scales of one shift are nested.
    random_state
        Seed or generator.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal. ``grid_emd.embed`` returns the features instead.

    Examples
    --------
    >>> from heatmover.transport.baselines import grid_emd
    >>> points, mu = [[0.0], [0.1], [1.0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    >>> near, far = grid_emd(points, mu, n_shifts=50)[0, 1:]
    >>> bool(near < far)
    True
    """
    depth = _check_grid_depth("n_scales", n_scales)
    count = check_integer("n_shifts", n_shifts, minimum=1)

    def prepare(points: Float64) -> Builder:
        return lambda rng: build_grid_tree(points, rng, depth=depth)

    return _average_over_trees(ground, measures, prepare, count, check_random_state(random_state), n_jobs)


@embedding_method(
    Declaration(
        "points",
        "Backurs et al. 2020, Scalable nearest neighbor search for optimal transport",
    )
)
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

    A cell is halved in every dimension until it holds one point or the depth is reached; the edge to a cell is as
    long as the cell's side.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    depth
        Levels below the root, which is twice as wide as the points' bounding cube; at most 52. Branches end where
        a point is alone, so that a depth beyond the data changes nothing.
    n_trees
        Number of trees.
    random_state
        Seed or generator.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal. ``quad_tree.embed`` returns the features instead, one per node.

    Examples
    --------
    >>> from heatmover.transport.baselines import quad_tree
    >>> points, mu = [[0.0], [0.1], [1.0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    >>> near, far = quad_tree(points, mu, n_trees=50)[0, 1:]
    >>> bool(near < far)
    True
    """
    levels = _check_grid_depth("depth", depth)
    count = check_integer("n_trees", n_trees, minimum=1)

    def prepare(points: Float64) -> Builder:
        identity = _ranks_of_rows(points)
        return lambda rng: build_grid_tree(points, rng, depth=levels, identity=identity)

    return _average_over_trees(ground, measures, prepare, count, check_random_state(random_state), n_jobs)


@embedding_method(
    Declaration(
        "points",
        "Le et al. 2019, Tree-sliced variants of Wasserstein distances",
    )
)
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

    A cell is clustered by farthest-first traversal from a random point, again and again; the edge to a cluster is as
    long as the distance between its mean and that of the cell it was cut from.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_clusters
        Clusters that a cell is cut into, 2 to the number of distinct points.
    depth
        Levels below the root. Branches end where a point is alone, so that a depth beyond the data changes nothing.
    n_trees
        Number of trees.
    n_lloyd
        Rounds of Lloyd's algorithm (k-means) that improve the clusters of each cell.
    random_state
        Seed or generator.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal. ``cluster_tree.embed`` returns the features instead, one per node.

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

    def prepare(points: Float64) -> Builder:
        n_distinct = int(_ranks_of_rows(points).max()) + 1
        if clusters > n_distinct:
            raise InvalidInputError(
                "at most as many clusters as distinct points",
                f"n_clusters={clusters} with {counted(n_distinct, 'distinct point')}",
                "use fewer clusters" if n_distinct > 1 else "give at least two distinct points",
            )
        # No branch is longer than there are points to part.
        reach = min(levels, n_distinct - 1)
        return lambda rng: build_cluster_tree(points, rng, n_clusters=clusters, depth=reach, n_lloyd=rounds)

    return _average_over_trees(ground, measures, prepare, count, check_random_state(random_state), n_jobs)


def _check_grid_depth(name: str, depth: object) -> int:
    levels = check_integer(name, depth, minimum=1)
    if levels > DEEPEST_GRID:
        raise InvalidInputError(
            f"{name} of at most {DEEPEST_GRID}", f"{levels}", "finer grids cannot tell any two numbers apart"
        )
    return levels


def _ranks_of_rows(points: Float64) -> Int64:
    """Return a whole number per point, equal for copies and only for them."""
    return np.asarray(np.unique(points, axis=0, return_inverse=True)[1]).ravel()
