"""Turn coordinates or a graph into the points, masses and costs of a baseline; only `transport.baselines` calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Float64, IntArray
from heatmover._base.validation import check_matrix
from heatmover.errors import InvalidInputError
from heatmover.graphs.graph import Graph
from heatmover.transport.exact import GroundCosts, check_costs, check_paths, masses_on_supports

Ground: TypeAlias = npt.ArrayLike | Graph
Cost: TypeAlias = str | npt.ArrayLike | Callable[[Float64, Float64], Float64]

# Number of measures whose shortest paths are cached. Pairs are solved row by row, so two measures (current and next)
# would suffice.
KEPT_MEASURES = 4


def points_of(ground: Ground) -> Float64:
    """Return coordinates ``(n_points, n_dimensions)``, or raise an error for a graph, which has none."""
    if isinstance(ground, Graph):
        raise InvalidInputError("points (n_points, n_dimensions)", "a Graph", "this method needs coordinates")
    return np.asarray(check_matrix("points", ground), dtype=np.float64)


def graph_of(ground: Ground, *, n_jobs: int | None = None) -> Graph:
    """Return the graph, built from points with default settings if necessary."""
    return ground if isinstance(ground, Graph) else Graph.from_points(points_of(ground), n_jobs=n_jobs)


def check_masses(ground: Ground, measures: Any) -> sp.csr_array:
    """Return measures on the points as CSR rows of positive masses that sum to one, or raise an error."""
    n_points = ground.n_points if isinstance(ground, Graph) else len(points_of(ground))
    return masses_on_supports(measures, n_points=n_points)


def ground_costs(ground: Ground, cost: Cost | None) -> GroundCosts:
    """Return the function that computes costs between points from their indices.

    Parameters
    ----------
    ground
        Coordinates or a graph.
    cost
        The name of a SciPy metric, a function of coordinates, or a matrix ``(n_points, n_points)``. None: Euclidean
        distances for coordinates, and lengths of shortest paths for a graph.
    """
    if cost is None:
        return _geodesic_costs(ground) if isinstance(ground, Graph) else _metric_costs(points_of(ground), "euclidean")
    if isinstance(cost, str):
        return _metric_costs(points_of(ground), cost)
    if callable(cost):
        points, function = points_of(ground), cost
        return lambda rows, columns: check_costs(
            "cost", function(points[rows], points[columns]), (len(rows), len(columns))
        )
    n_points = ground.n_points if isinstance(ground, Graph) else len(points_of(ground))
    matrix = check_costs("cost", cost, (n_points, n_points))
    return lambda rows, columns: matrix[np.ix_(rows, columns)]


def edge_lengths(graph: Graph) -> sp.csr_array:
    """Return the edge lengths d that give the affinities ``exp(-d^2 / b^2)``, CSR ``(n_nodes, n_nodes)``."""
    how = graph.construction
    gaussian = how.get("source") == "grid" or how.get("kernel") == "gaussian"
    if not gaussian:
        raise InvalidInputError(
            "a graph whose edges have lengths: from a grid, or from points with the gaussian kernel",
            repr(graph),
            "pass cost= as a matrix, or the points themselves",
        )
    # SciPy would ignore an edge of length zero.
    lengths = how["bandwidth"] * np.sqrt(np.maximum(-np.log(graph.node_affinity.data), 0))
    lengths = np.maximum(lengths, np.finfo(np.float64).tiny)
    matrix = graph.node_affinity
    return sp.csr_array((lengths, matrix.indices, matrix.indptr), shape=matrix.shape)


def _metric_costs(points: Float64, metric: str) -> GroundCosts:
    from scipy.spatial.distance import cdist

    try:
        cdist(points[:1], points[:1], metric)
    except ValueError as error:
        raise InvalidInputError("cost to be the name of a SciPy metric, such as 'euclidean'", repr(metric)) from error
    return lambda rows, columns: np.asarray(cdist(points[rows], points[columns], metric))


def _geodesic_costs(graph: Graph) -> GroundCosts:
    from scipy.sparse.csgraph import dijkstra

    lengths, lock = edge_lengths(graph), Lock()

    @lru_cache(maxsize=KEPT_MEASURES)
    def from_points(rows: bytes, dtype: str) -> Float64:
        return np.asarray(dijkstra(lengths, directed=False, indices=np.frombuffer(rows, dtype=dtype)))

    def costs(rows: IntArray, columns: IntArray) -> Float64:
        if graph.place is not None:
            rows, columns = graph.place[rows], graph.place[columns]
        with lock:  # threads begin with pairs of the same measure; without the lock, each would compute the same paths
            paths = from_points(rows.tobytes(), rows.dtype.str)
        advice = "see graph.diagnose(); use more neighbors, or compare the components one by one"
        return check_paths(paths[:, columns], advice)

    return costs
