"""Trees against their definition: cells recomputed from the coordinates, and transport along explicit paths."""

from itertools import pairwise

import numpy as np
import ot
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover.embedding.distances import l1_distances
from heatmover.errors import InvalidInputError
from heatmover.transport.baselines import cluster_tree, grid_emd, quad_tree
from heatmover.transport.baselines.trees import build_cluster_tree, build_grid_tree


def identity_of(points):
    return np.unique(points, axis=0, return_inverse=True)[1].ravel()


def cluster(points, rng, depth):
    return build_cluster_tree(points, rng, n_clusters=3, depth=depth)


def refined(points, rng, depth):
    return build_cluster_tree(points, rng, n_clusters=3, depth=depth, n_lloyd=4)


def grid(points, rng, depth):
    return build_grid_tree(points, rng, depth=depth)


def quad(points, rng, depth):
    return build_grid_tree(points, rng, depth=depth, identity=identity_of(points))


BUILDERS = {"cluster": cluster, "k-means": refined, "grid": grid, "quad": quad}


@pytest.fixture(params=BUILDERS)
def build(request):
    return BUILDERS[request.param]


POINTS = {
    "plane": np.random.default_rng(0).normal(size=(70, 2)),
    "line": np.linspace(0, 1, 50)[:, None],
    "50 dimensions": np.random.default_rng(1).normal(size=(60, 50)),
    "100 dimensions": np.random.default_rng(1).normal(size=(40, 100)),
    "copies": np.random.default_rng(2).integers(0, 3, size=(80, 2)).astype(float),
    "tiny": np.random.default_rng(3).normal(size=(40, 3)) * 1e-100,
    "far away": np.random.default_rng(4).normal(size=(40, 3)) + 1e8,
}


@pytest.fixture(params=POINTS)
def points(request):
    return POINTS[request.param]


def ancestors(tree, point):
    """The nodes that hold a point, from the top."""
    return [int(node) for node in tree.nodes[:, point] if node >= 0]


def path_length(tree, i, j):
    """Up from one leaf to the last common node and down to the other: every edge that holds just one of both."""
    return sum(tree.lengths[node] for node in set(ancestors(tree, i)) ^ set(ancestors(tree, j)))


def random_masses(n_measures, n_points, seed=0, share=0.4):
    rng = np.random.default_rng(seed)
    masses = rng.random((n_measures, n_points)) * (rng.random((n_measures, n_points)) < share) + 1e-9
    masses[masses < 1e-8] = 0
    masses[:, 0] += 0.1
    return masses / masses.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("depth", [1, 2, 6])
def test_every_node_lies_in_its_parent(build, points, depth):
    tree = build(points, np.random.default_rng(5), depth)
    for point in range(len(points)):
        chain = [-1, *ancestors(tree, point)]
        assert [tree.parents[node] for node in chain[1:]] == chain[:-1]
    used = np.unique(tree.nodes[tree.nodes >= 0])
    np.testing.assert_array_equal(used, np.arange(tree.lengths.size))
    assert tree.lengths.shape == tree.parents.shape
    assert (tree.lengths >= 0).all()


def test_a_branch_ends_once_and_for_all(build, points):
    ended = build(points, np.random.default_rng(6), 6).nodes < 0
    assert (np.diff(ended.astype(int), axis=0) >= 0).all()


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("depth", [1, 3, 7])
def test_grid_nodes_hold_exactly_the_points_of_their_cells(points, depth, single):
    identity = None if single else identity_of(points)
    tree = build_grid_tree(points, np.random.default_rng(7), depth=depth, identity=identity)
    shift = np.random.default_rng(7).random(points.shape[1]) / 2
    side = 2 * np.ptp(points, axis=0).max()
    relative = (points - points.min(axis=0)) / side + shift
    assert relative.min() >= 0
    assert relative.max() < 1
    for level in range(depth):
        cells = np.floor(relative * 2.0 ** (level + 1)).astype(np.int64)
        alive = np.flatnonzero(tree.nodes[level] >= 0)
        if single:
            assert alive.size == len(points)
        same_cell = (cells[alive, None] == cells[None, alive]).all(axis=2)
        same_node = tree.nodes[level][alive, None] == tree.nodes[level][None, alive]
        assert np.array_equal(same_cell, same_node)
        np.testing.assert_allclose(tree.lengths[tree.nodes[level, alive]], side / 2 ** (level + 1))


def test_quad_tree_halves_every_cell_with_two_different_points_and_no_other(points):
    tree = quad(points, np.random.default_rng(8), 6)
    whole = [np.zeros(len(points), dtype=int), *tree.nodes]
    for above, below in pairwise(whole):
        for node in np.unique(above[above >= 0]):
            members = np.flatnonzero(above == node)
            halved = (below[members] >= 0).all()
            assert halved == (len(np.unique(points[members], axis=0)) > 1)


@pytest.mark.parametrize("n_lloyd", [0, 5])
def test_cluster_edges_join_the_means(points, n_lloyd):
    tree = build_cluster_tree(points, np.random.default_rng(9), n_clusters=4, depth=4, n_lloyd=n_lloyd)
    mean = {-1: points.mean(axis=0)}
    for level in tree.nodes:
        mean |= {int(node): points[level == node].mean(axis=0) for node in np.unique(level[level >= 0])}
    expected = [np.linalg.norm(mean[node] - mean[int(tree.parents[node])]) for node in range(tree.lengths.size)]
    np.testing.assert_allclose(tree.lengths, expected, rtol=1e-6, atol=1e-12 * np.abs(points).max())


def test_clusters_are_the_cells_of_far_apart_points():
    points = POINTS["plane"]
    rng = np.random.default_rng(10)
    tree = build_cluster_tree(points, rng, n_clusters=4, depth=1)
    # Plain farthest-first traversal from the same first point.
    centers = [int(np.random.default_rng(10).random((1, len(points)))[0, 0] * len(points))]
    while len(centers) < 4:
        centers.append(int(cdist(points, points[centers]).min(axis=1).argmax()))
    np.testing.assert_array_equal(tree.nodes[0], cdist(points, points[centers]).argmin(axis=1))


def test_lloyd_makes_clusters_tighter():
    points = np.random.default_rng(11).normal(size=(400, 2))

    def spread(n_lloyd):
        tree = build_cluster_tree(points, np.random.default_rng(0), n_clusters=5, depth=1, n_lloyd=n_lloyd)
        cells = [points[tree.nodes[0] == node] for node in range(tree.lengths.size)]
        return sum(((cell - cell.mean(axis=0)) ** 2).sum() for cell in cells)

    assert spread(20) < 0.9 * spread(0)
    assert spread(20) < spread(1) < spread(0)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_the_distance_is_transport_along_the_tree(build, points, depth):
    tree = build(points, np.random.default_rng(12), depth)
    masses = random_masses(5, len(points))
    costs = np.array([[path_length(tree, i, j) for j in range(len(points))] for i in range(len(points))])
    expected = [[ot.emd2(a, b, costs / costs.max()) * costs.max() for b in masses] for a in masses]
    distances = l1_distances(tree.embed(sp.csr_array(masses)))
    np.testing.assert_allclose(distances, expected, rtol=1e-7, atol=1e-9 * costs.max())


@given(seed=st.integers(0, 2**31), n_points=st.integers(2, 40), n_dimensions=st.integers(1, 8), depth=st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_indicators_are_as_far_apart_as_their_path_is_long(seed, n_points, n_dimensions, depth):
    points = np.random.default_rng(seed).integers(0, 6, size=(n_points, n_dimensions)).astype(float)
    for build in BUILDERS.values():
        tree = build(points, np.random.default_rng(seed), depth)
        if tree.lengths.size == 0:
            assert len(np.unique(points, axis=0)) == 1
            continue
        distances = l1_distances(tree.embed(sp.eye_array(n_points, format="csr")))
        paths = [[path_length(tree, i, j) for j in range(n_points)] for i in range(n_points)]
        np.testing.assert_allclose(distances, paths, atol=1e-9)


@pytest.mark.parametrize("method", [cluster_tree, quad_tree, grid_emd])
def test_the_method_is_the_mean_over_its_trees(method):
    points, masses = POINTS["plane"], random_masses(6, 70)
    count = "n_shifts" if method is grid_emd else "n_trees"
    features = method.embed(points, masses, **{count: 7})
    assert sp.issparse(features)
    np.testing.assert_allclose(method(points, masses, **{count: 7}), l1_distances(features), rtol=1e-12)
    first = method.embed(points, masses, **{count: 1})
    np.testing.assert_allclose(first.toarray() / 7, features[:, : first.shape[1]].toarray(), rtol=1e-12)


def test_many_grids_approach_the_expected_distance():
    points = np.linspace(0, 1, 9)[:, None]
    # All grids at once: one after the other, which gives the same, took nearly twice as long.
    distances = l1_distances(grid_emd.embed(points, np.eye(9), n_scales=6, n_shifts=4000, n_jobs=1))[0]
    sides = 0.5 ** np.arange(6)
    # The chance that a shifted edge parts two points is their distance over the side; then both cells count.
    expected = (2 * sides * np.minimum(points / sides, 1)).sum(axis=1)
    np.testing.assert_allclose(distances, expected, atol=0.06)


@pytest.mark.parametrize("method", [cluster_tree, quad_tree])
def test_a_depth_beyond_the_data_changes_nothing(method):
    points, masses = POINTS["plane"], random_masses(4, 70)
    deep, deeper = method(points, masses, depth=45, n_trees=2), method(points, masses, depth=52, n_trees=2)
    np.testing.assert_allclose(deep, deeper, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (cluster_tree, {"n_clusters": 71}, "n_clusters=71 with 70 distinct points"),
        (cluster_tree, {"n_clusters": 1}, "n_clusters to be a whole number of at least 2"),
        (cluster_tree, {"depth": 0}, "depth to be a whole number of at least 1"),
        (cluster_tree, {"depth": 2.5}, "depth to be a whole number"),
        (cluster_tree, {"n_lloyd": -1}, "n_lloyd to be a whole number of at least 0"),
        (cluster_tree, {"n_trees": 0}, "n_trees to be a whole number of at least 1"),
        (quad_tree, {"depth": 53}, "depth to be at most 52, found 53"),
        (quad_tree, {"depth": 0}, "depth to be a whole number of at least 1"),
        (quad_tree, {"n_trees": True}, "n_trees to be a whole number"),
        (grid_emd, {"n_scales": 53}, "n_scales to be at most 52, found 53"),
        (grid_emd, {"n_shifts": 0}, "n_shifts to be a whole number of at least 1"),
        (grid_emd, {"random_state": "a"}, "random_state to be"),
    ],
)
def test_unfit_options_are_refused(method, options, message):
    with pytest.raises(InvalidInputError, match=message):
        method(POINTS["plane"], random_masses(3, 70), **options)


def test_a_single_distinct_point_cannot_be_clustered():
    with pytest.raises(InvalidInputError, match="2 with 1 distinct point; give at least two distinct points"):
        cluster_tree(np.zeros((4, 2)), random_masses(2, 4), n_clusters=2)
