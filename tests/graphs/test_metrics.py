"""Metrics of points: each against plain distances of all pairs."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import haversine_distances

from heatmover.errors import InvalidInputError
from heatmover.graphs.graph import Graph
from heatmover.graphs.metrics import METRICS


def points_for(metric, n_points=90):
    rng = np.random.default_rng(3)
    if metric == "haversine":
        return np.stack([rng.uniform(-1.5, 1.5, n_points), rng.uniform(-3.1, 3.1, n_points)], axis=1)
    return rng.normal(size=(n_points, 5)) + 0.5


def plain_distances(points, metric):
    if metric == "haversine":
        return haversine_distances(points)
    return cdist(points, points, {"manhattan": "cityblock"}.get(metric, metric))


def plain_affinity(distances, k, bandwidth_factor=1.5):
    """The Gaussian kernel on the k nearest of each point, either way, by sorting all distances."""
    far = distances + np.diag(np.full(len(distances), np.inf))
    ascending = np.sort(far, axis=1)
    width = bandwidth_factor * np.median(ascending[:, k // 2 - 1])
    joined = far <= ascending[:, k - 1 : k]
    joined |= joined.T
    return np.where(joined, np.exp(-((distances / width) ** 2)), 0.0) + np.eye(len(distances))


@pytest.mark.parametrize("metric", METRICS)
def test_affinities_are_the_kernel_of_the_metric_s_distances(metric):
    points = points_for(metric)
    graph = Graph.from_points(points, 8, metric=metric)
    assert np.allclose(graph.affinity.toarray(), plain_affinity(plain_distances(points, metric), 8), atol=1e-10)
    assert graph.construction["metric"] == metric


@pytest.mark.parametrize("metric", METRICS)
def test_all_within_a_radius_of_the_metric_are_joined(metric):
    points = points_for(metric)
    distances = plain_distances(points, metric)
    radius = float(np.quantile(distances, 0.1))
    graph = Graph.from_points(points, metric=metric, radius=radius, kernel="box")
    assert np.array_equal(graph.affinity.toarray() > 0, distances <= radius)


@pytest.mark.parametrize(("order", "metric"), [(1, "manhattan"), (np.inf, "chebyshev")])
def test_ties_under_other_norms_are_neighbors_too(order, metric):
    points = np.stack(np.meshgrid(np.arange(7), np.arange(7)), axis=-1).reshape(-1, 2).astype(float)
    graph = Graph.from_points(points, 3, metric=metric, kernel="box")
    lengths = np.linalg.norm(points[:, None] - points, ord=order, axis=2)
    third = np.sort(lengths, axis=1)[:, 3:4]
    joined = lengths <= third
    assert np.array_equal(graph.affinity.toarray() > 0, joined | joined.T)
    moved = np.random.default_rng(0).permutation(49)
    assert np.array_equal(
        Graph.from_points(points[moved], 3, metric=metric, kernel="box").affinity.toarray(),
        graph.affinity.toarray()[np.ix_(moved, moved)],
    )


def test_points_of_one_direction_are_one_node():
    points = np.array([[1.0, 2.0], [2.0, 4.0], [0.0, 1.0], [3.0, 1.0], [0.0, 8.0]])
    assert Graph.from_points(points, 2, metric="cosine").nodes.tolist() == [0, 0, 1, 2, 1]


def test_the_same_graph_in_any_unit_and_by_any_search():
    points = points_for("cosine", 1_500)
    graphs = [Graph.from_points(points, 10, metric="cosine", neighbors=way) for way in ("tree", "exact")]
    graphs.append(Graph.from_points(points * 1e100, 10, metric="cosine"))
    for other in graphs[1:]:
        assert abs(graphs[0].affinity - other.affinity).max() < 1e-12


def test_the_usual_other_names_of_a_metric():
    points = points_for("manhattan")
    assert repr(Graph.from_points(points, 8, metric="l1")).endswith("by tree, manhattan distance)")
    assert repr(Graph.from_points(points, 8, metric="l2")) == repr(Graph.from_points(points, 8))


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        ([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]], {"metric": "cosine"}, r"1 row that is zero \(first: row 1\)"),
        ([[0.3, 0.3], [0.0, 1.0], [1.0, 0.0]], {"metric": "correlation"}, "constant"),
        ([[0.3], [0.1], [0.2]], {"metric": "haversine"}, "1 column"),
        ([[52.0, 13.0], [48.0, 2.0], [41.0, 12.0]], {"metric": "haversine"}, "np.radians"),
        ([[0.3], [0.1], [0.2]], {"metric": "mahalanobis"}, "Graph.from_distances"),
        ([[0.3], [0.1], [0.2]], {"metric": None}, "metric to be one of"),
        ([[0.3], [0.1], [0.2]], {"metric": "manhattan", "neighbors": "approximate"}, "neighbors='tree'"),
    ],
)
def test_what_has_no_meaning_under_a_metric_is_refused(points, options, message):
    with pytest.raises(InvalidInputError, match=message):
        Graph.from_points(points, 1, **options)
