"""Graphs from distances: the same as from the points that the distances are between."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.neighbors import kneighbors_graph, radius_neighbors_graph

from heatmover.embedding import DiffusionEMD, pairwise_distances
from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs.graph import Graph

POINTS = np.random.default_rng(0).normal(size=(120, 4))
FULL = np.linalg.norm(POINTS[:, None] - POINTS, axis=2)


def gap(one, other):
    return abs(one.affinity - other.affinity).max()


@pytest.mark.parametrize("kernel", ["gaussian", "adaptive", "box"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine", "manhattan"])
def test_nearest_neighbors_of_scikit_learn_make_the_graph_of_the_points(kernel, metric):
    near = kneighbors_graph(POINTS, 9, mode="distance", metric=metric)
    graph = Graph.from_distances(near, kernel=kernel)
    same = Graph.from_points(POINTS, 9, kernel=kernel, metric=metric)
    assert gap(graph, same) < 1e-9
    if kernel == "gaussian":
        assert np.isclose(graph.construction["bandwidth"], same.construction["bandwidth"])


def test_distances_of_all_pairs_make_the_graph_of_the_points():
    assert gap(Graph.from_distances(FULL), Graph.from_points(POINTS)) < 1e-9
    assert gap(Graph.from_distances(FULL, 9, bandwidth=0.7), Graph.from_points(POINTS, 9, bandwidth=0.7)) < 1e-9
    assert gap(Graph.from_distances(FULL.tolist(), 9), Graph.from_points(POINTS, 9)) < 1e-9


def test_a_radius_graph_and_its_bandwidth_are_those_of_the_points():
    near = radius_neighbors_graph(POINTS, 1.2, mode="distance")
    assert gap(Graph.from_distances(near), Graph.from_points(POINTS, radius=1.2)) < 1e-9


def test_distances_of_scanpy_make_the_graph_of_the_points():
    sc = pytest.importorskip("scanpy")
    anndata = pytest.importorskip("anndata")
    adata = anndata.AnnData(POINTS.astype(np.float64))
    # Affinities are not looked at, and those of "umap", the default, compile for half a minute.
    sc.pp.neighbors(adata, n_neighbors=10, use_rep="X", transformer="sklearn", method="gauss")
    # scanpy counts a point among its own neighbors.
    assert gap(Graph.from_distances(adata.obsp["distances"]), Graph.from_points(POINTS, 9)) < 1e-5


def test_more_neighbors_than_are_wanted_may_be_stored():
    near = kneighbors_graph(POINTS, 20, mode="distance")
    assert gap(Graph.from_distances(near, 9), Graph.from_points(POINTS, 9)) < 1e-9


def test_any_sparse_format_one_way_or_both_ways_makes_one_graph():
    near = kneighbors_graph(POINTS, 9, mode="distance", include_self=False)
    both = near.maximum(near.T)
    upper = sp.triu(both)
    graph = Graph.from_distances(both, kernel="box")
    for same in (near, near.tocoo(), near.tocsc(), sp.csr_array(near), upper):
        assert gap(graph, Graph.from_distances(same, kernel="box")) == 0
    with_diagonal = kneighbors_graph(POINTS, 10, mode="distance", include_self=True)
    assert gap(Graph.from_distances(with_diagonal, kernel="box"), graph) == 0
    single = near.astype(np.float32)
    assert gap(Graph.from_distances(single), Graph.from_distances(near)) < 1e-5


def test_points_at_a_distance_of_zero_are_one_node():
    copies = np.r_[np.arange(120), [5, 5, 80]]
    points = POINTS[copies]
    full = FULL[np.ix_(copies, copies)]
    same = Graph.from_points(points, 9)
    graph = Graph.from_distances(full, 9)
    assert graph.n_points == 123
    assert graph.nodes.tolist() == same.nodes.tolist()
    assert gap(graph, same) < 1e-9
    near = kneighbors_graph(points, 9, mode="distance")
    assert (near.data == 0).any()
    assert Graph.from_distances(near).nodes.tolist() == same.nodes.tolist()
    assert Graph.from_distances(near).construction["n_copies"] == 3


def test_distances_between_measures_are_those_on_the_graph_of_the_points():
    measures = np.random.default_rng(1).dirichlet(np.ones(120), size=5)
    graphs = Graph.from_distances(kneighbors_graph(POINTS, 9, mode="distance")), Graph.from_points(POINTS, 9)
    one, two = (
        pairwise_distances(DiffusionEMD(graph, max_scale=5, tol=1e-6).fit_transform(measures)) for graph in graphs
    )
    assert np.allclose(one, two, rtol=1e-4)


def test_ties_are_neighbors_too():
    ring = np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
    ring = np.minimum(ring, 10 - ring)
    graph = Graph.from_distances(ring, 3, kernel="box")
    assert np.array_equal(graph.affinity.toarray() > 0, ring <= 2)


def test_several_components_are_legal_and_a_warning():
    apart = FULL + 1e3 * np.not_equal.outer(np.arange(120) < 60, np.arange(120) < 60)
    with pytest.warns(GraphWarning, match="2 components"):
        DiffusionEMD(Graph.from_distances(apart, 9), max_scale=3).fit(np.full((1, 120), 1 / 120))
    lonely = sp.csr_array(([1.0], ([0], [1])), shape=(3, 3))
    assert Graph.from_distances(lonely).diagnose().n_isolated == 1
    assert Graph.from_distances([[0.0]]).n_points == 1


@pytest.mark.parametrize(
    ("distances", "options", "message"),
    [
        (FULL[:5], {}, r"square .* found shape \(5, 120\)"),
        (np.where(FULL > 2, np.nan, FULL), {}, "without NaN or infinity"),
        (sp.csr_array(np.where(FULL > 2, np.inf, FULL)), {}, "without NaN or infinity"),
        (-FULL, {}, "non-negative distances"),
        (np.exp(-FULL), {}, "Graph.from_affinity"),
        (sp.csr_array(np.exp(-FULL)), {}, "Graph.from_affinity"),
        (np.triu(FULL), {}, "a symmetric distance"),
        (sp.csr_array(FULL * np.arange(1, 121)), {}, "a symmetric distance"),
        (FULL, {"n_neighbors": 120}, "more points than n_neighbors=120"),
        (FULL, {"n_neighbors": 0}, "n_neighbors"),
        (kneighbors_graph(POINTS, 5, mode="distance"), {"n_neighbors": 9}, "120 points with fewer .the fewest: 5"),
        (FULL * 1e160, {}, "rescale them"),
        (FULL, {"kernel": "cubic"}, "kernel"),
        (FULL > 1, {"bandwidth": -1}, "bandwidth"),
        (sp.coo_array(([1.0, 1.0], ([0, 0], [1, 1])), shape=(2, 2)), {}, "stored twice"),
        (FULL.astype(str), {}, "numbers"),
    ],
)
def test_what_are_no_distances_is_refused(distances, options, message):
    with pytest.raises(InvalidInputError, match=message):
        Graph.from_distances(distances, **options)


def test_the_matrix_that_was_given_is_not_changed():
    near = kneighbors_graph(POINTS, 9, mode="distance")
    before = near.copy()
    Graph.from_distances(near)
    assert (near != before).nnz == 0
    full = FULL.copy()
    Graph.from_distances(full)
    assert np.array_equal(full, FULL)
