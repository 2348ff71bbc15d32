"""What measures live on: coordinates or a graph, each turned into what a method needs."""

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
from heatmover.measures import check_measures
from heatmover.transport.exact import GroundCosts

__all__ = ["Cost", "Ground", "check_masses", "edge_lengths", "graph_of", "ground_costs", "points_of"]

Ground: TypeAlias = npt.ArrayLike | Graph
Cost: TypeAlias = str | npt.ArrayLike | Callable[[Float64, Float64], Float64]

# Distances from the points of so many measures are kept: pairs come row by row, so that two, now and next, would do.
KEPT_MEASURES = 4

# Costs that are not stored would become zero.
ALL_COSTS = "give the cost of every pair, or a Graph, whose costs are those of the shortest paths"


def points_of(ground: Ground) -> Float64:
    """Return coordinates ``(n_points, n_dimensions)``, or raise if there are none."""
    if isinstance(ground, Graph):
        raise InvalidInputError("points (n_points, n_dimensions)", "a Graph", "this method needs coordinates")
    return np.asarray(check_matrix("points", ground), dtype=np.float64)


def graph_of(ground: Ground, *, n_jobs: int | None = None) -> Graph:
    """Return the graph, made of points with default settings if it is not there yet."""
    return ground if isinstance(ground, Graph) else Graph.from_points(points_of(ground), n_jobs=n_jobs)


def check_masses(ground: Ground, measures: Any) -> sp.csr_array:
    """Return measures over the ground's points as CSR rows of positive masses that sum to one, or raise."""
    n_points = ground.n_points if isinstance(ground, Graph) else len(points_of(ground))
    masses = sp.csr_array(check_measures(measures, n_points=n_points))
    if masses.nnz and masses.data.min() == 0:  # stored zeros: points without mass are no part of a support
        masses = masses.copy()
        masses.eliminate_zeros()
    return masses


def ground_costs(ground: Ground, cost: Cost | None) -> GroundCosts:
    """Return the costs between points by their indices.

    Parameters
    ----------
    ground
        Coordinates or a graph.
    cost
        None: Euclidean between coordinates, along shortest paths on a graph. A name of a SciPy metric; a function
        of coordinates; or a matrix ``(n_points, n_points)``.
    """
    if cost is None:
        return _geodesic_costs(ground) if isinstance(ground, Graph) else _metric_costs(points_of(ground), "euclidean")
    if isinstance(cost, str):
        return _metric_costs(points_of(ground), cost)
    if callable(cost):
        points, function = points_of(ground), cost
        return lambda rows, columns: _check_costs(function(points[rows], points[columns]), (len(rows), len(columns)))
    n_points = ground.n_points if isinstance(ground, Graph) else len(points_of(ground))
    matrix = _check_costs(check_matrix("cost", cost, sparse=ALL_COSTS), (n_points, n_points))
    return lambda rows, columns: matrix[np.ix_(rows, columns)]


def edge_lengths(graph: Graph) -> sp.csr_array:
    """Return the length of every edge, CSR ``(n_nodes, n_nodes)``: the kernel ``exp(-d^2 / b^2)`` solved for d."""
    how = graph.construction
    gaussian = how.get("source") == "grid" or how.get("kernel") == "gaussian"
    if not gaussian:
        raise InvalidInputError(
            "a graph whose edges have lengths: from a grid, or from points with the gaussian kernel",
            repr(graph),
            "pass cost= as a matrix, or the points themselves",
        )
    # A length of exactly zero would be no edge at all for SciPy.
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
        with lock:  # threads begin with pairs of one measure, and each would find the same paths
            paths = from_points(rows.tobytes(), rows.dtype.str)
        matrix = paths[:, columns]
        if not np.isfinite(matrix).all():
            raise InvalidInputError(
                "measures on one connected component of the graph",
                "a pair that no path joins, whose distance is infinite",
                "see graph.diagnose(); use more neighbours, or compare the components one by one",
            )
        return matrix

    return costs


def _check_costs(values: Any, shape: tuple[int, int]) -> Float64:
    costs = np.asarray(check_matrix("cost", values, sparse=ALL_COSTS), dtype=np.float64)
    if costs.shape != shape:
        raise InvalidInputError(f"costs of shape {shape}", f"shape {costs.shape}")
    if costs.min() < 0:
        raise InvalidInputError("non-negative costs", f"a smallest of {costs.min():g}")
    return costs
