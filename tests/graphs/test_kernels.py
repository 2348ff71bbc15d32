from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.kernels import affinity_from_neighbors, check_kernel, choose_bandwidth

KERNELS = ["gaussian", "adaptive", "box"]


def random_points(n_points=60, seed=0):
    return np.random.default_rng(seed).normal(size=(n_points, 2))


def plain_affinity(points, k, kernel, bandwidth):
    """The affinity of a neighbor graph, one pair at a time, from the words of the documentation."""
    n = len(points)
    distances = cdist(points, points)
    others = [sorted((distances[i, j], j) for j in range(n) if j != i)[:k] for i in range(n)]
    middle = [row[max(k // 2 - 1, 0)][0] for row in others]
    is_neighbor = {(i, j) for i in range(n) for _, j in others[i]}
    affinity = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i == j:
                affinity[i, j] = 1
            elif (i, j) in is_neighbor or (j, i) in is_neighbor:
                if kernel == "gaussian":
                    width = 1.5 * np.median(middle) if bandwidth == "auto" else bandwidth
                    affinity[i, j] = np.exp(-(distances[i, j] ** 2) / width**2)
                elif kernel == "adaptive":
                    factor = 1 if bandwidth == "auto" else bandwidth
                    widths = factor * middle[i], factor * middle[j]
                    affinity[i, j] = np.exp(-(distances[i, j] ** 2) / (widths[0] * widths[1]))
                else:
                    affinity[i, j] = 1
    return affinity


@pytest.mark.parametrize("k", [1, 2, 7, 59])
@pytest.mark.parametrize("bandwidth", ["auto", 0.5, 2])
@pytest.mark.parametrize("kernel", KERNELS)
def test_formula_entry_by_entry(kernel, bandwidth, k):
    points = random_points()
    graph = Graph.from_points(points, k, kernel, bandwidth)
    np.testing.assert_allclose(
        graph.affinity.toarray(), plain_affinity(points, k, kernel, bandwidth), rtol=1e-10, atol=1e-300
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("radius", [0.2, 1.0])
def test_radius_formula(kernel, radius):
    points = random_points()
    distances = cdist(points, points)
    joined = (distances <= radius) & ~np.eye(60, dtype=bool)
    inside = [np.sort(row[mask]) for row, mask in zip(distances, joined, strict=True)]
    middle = np.array([row[max(row.size // 2 - 1, 0)] if row.size else np.nan for row in inside])
    if kernel == "gaussian":
        weights = np.exp(-(distances**2) / (1.5 * np.nanmedian(middle)) ** 2)
    elif kernel == "adaptive":
        weights = np.exp(-(distances**2) / np.outer(middle, middle))
    else:
        weights = np.ones((60, 60))
    expected = np.where(joined, weights, np.eye(60))
    graph = Graph.from_points(points, kernel=kernel, radius=radius)
    np.testing.assert_allclose(graph.affinity.toarray(), expected, rtol=1e-10, atol=1e-300)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(KERNELS),
    st.integers(2, 40),
    st.integers(0, 100),
    st.sampled_from([1e-9, 1.0, 1e9]),
    st.booleans(),
    st.data(),
)
def test_every_kernel_graph_is_an_affinity(kernel, n_points, seed, scale, duplicated, data):
    points = np.random.default_rng(seed).standard_cauchy(size=(n_points, 3)) * scale
    if duplicated:
        points = points[np.random.default_rng(seed).integers(0, n_points, n_points)]
    k = data.draw(st.integers(1, n_points - 1))
    affinity = Graph.from_points(points, k, kernel).affinity
    assert (affinity - affinity.T).nnz == 0
    assert (affinity.diagonal() == 1).all()
    assert ((affinity.data > 0) & (affinity.data <= 1)).all()
    assert affinity.has_sorted_indices


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("scale", [1e-100, 1e-12, 1e12, 1e100])
def test_automatic_width_follows_the_unit_of_the_data(kernel, scale):
    points = random_points()
    np.testing.assert_allclose(
        Graph.from_points(points * scale, 9, kernel).affinity.toarray(),
        Graph.from_points(points, 9, kernel).affinity.toarray(),
        rtol=1e-9,
    )


def test_automatic_width_with_many_duplicates():
    """Every point in 20 copies: the width is that of the points without them."""
    for scale in (1.0, 1e6):
        points = random_points(40) * scale
        graph = Graph.from_points(np.repeat(points, 20, axis=0), 30)
        middle = np.sort(cdist(points, points), axis=1)[:, 15]
        assert graph.construction["bandwidth"] == pytest.approx(1.5 * np.median(middle))


@pytest.mark.parametrize("kernel", KERNELS)
def test_identical_points_are_one_node(kernel):
    assert Graph.from_points(np.zeros((12, 3)), 4, kernel).affinity.toarray().tolist() == [[1.0]]


def test_a_far_outlier_is_isolated_not_nan():
    points = random_points()
    points[5] = 1e6
    for kernel in KERNELS:
        affinity = Graph.from_points(points, 9, kernel).affinity
        assert np.isfinite(affinity.data).all()
        assert (affinity.data > 0).all()
        neighbors = np.diff(affinity.indptr)[5] - 1
        assert neighbors == (9 if kernel == "box" else 0)


def test_a_width_too_small_for_squares():
    affinity = Graph.from_points(random_points(), 9, bandwidth=1e-200).affinity
    np.testing.assert_array_equal(affinity.toarray(), np.eye(60))


def test_zero_distances_are_neighbors_not_gaps():
    distances = sp.csr_array((np.array([0.0, 0.0]), np.array([1, 0]), np.array([0, 1, 2])), shape=(2, 2))
    for kernel, widths in [("gaussian", [2.0]), ("adaptive", [2.0, 2.0]), ("box", [2.0])]:
        affinity = affinity_from_neighbors(distances, kernel, np.array(widths))
        np.testing.assert_array_equal(affinity.toarray(), np.ones((2, 2)))


def test_adaptive_widths_too_small_to_be_squared():
    points = random_points() * 1e-140
    points[:30] *= 1e-100  # their squares underflow, as would the products of their widths
    affinity = Graph.from_points(points, 9, "adaptive").affinity
    assert np.isfinite(affinity.data).all()


def test_choose_bandwidth():
    middle = np.array([0.0, 1.0, 2.0, 3.0])
    assert choose_bandwidth(middle, "gaussian", "auto").tolist() == [3.0]  # 1.5 x the median of 1, 2, 3
    assert choose_bandwidth(middle, "gaussian", 0.7).tolist() == [0.7]
    assert choose_bandwidth(middle, "adaptive", "auto").tolist() == [2.0, 1.0, 2.0, 3.0]
    assert choose_bandwidth(middle, "adaptive", 2).tolist() == [4.0, 2.0, 4.0, 6.0]
    assert choose_bandwidth(np.zeros(3), "gaussian", "auto").tolist() == [1.5]


@pytest.mark.parametrize(
    ("kernel", "bandwidth", "words"),
    [
        ("gausian", "auto", "kernel to be one of 'gaussian', 'adaptive', 'box', found 'gausian'"),
        (None, "auto", "kernel to be one of"),
        ("gaussian", "Auto", "bandwidth to be one of 'auto', found 'Auto'"),
        ("box", "x", "bandwidth to be one of 'auto', found 'x'"),
        ("gaussian", 0, r"bandwidth to be a number in \(0, infinity\), found 0"),
        ("adaptive", -1.0, "found -1.0"),
        ("gaussian", np.nan, "found nan"),
        ("gaussian", np.inf, "bandwidth to be finite"),
        ("gaussian", True, "found True"),
        ("gaussian", None, "found None"),
    ],
)
def test_check_kernel_refuses(kernel, bandwidth, words):
    with pytest.raises(InvalidInputError, match=words):
        check_kernel(kernel, bandwidth)


# --- the symmetric union


def random_neighbors(n_points, k, seed=0):
    """Distances to k others of every point, in no order; some are so far that a Gaussian of them vanishes."""
    rng = np.random.default_rng(seed)
    others = np.argsort(rng.random((n_points, n_points - 1)), axis=1)[:, :k]
    others += others >= np.arange(n_points)[:, None]
    distances = np.where(rng.random((n_points, k)) < 0.05, 1e30, rng.random((n_points, k)))
    parts = distances.ravel(), others.ravel(), np.arange(n_points + 1) * k
    return sp.csr_array(parts, shape=(n_points, n_points))


@pytest.mark.parametrize(("n_points", "k"), [(2, 1), (40, 3), (300, 250)])
def test_union_is_the_larger_of_both_directions(n_points, k):
    distances = random_neighbors(n_points, k)
    directed = distances.copy()
    directed.data = np.exp(-(directed.data**2))
    truth = np.maximum(directed.toarray(), directed.toarray().T)
    np.fill_diagonal(truth, 1)
    affinity = affinity_from_neighbors(distances, "gaussian", np.ones(1))
    np.testing.assert_array_equal(affinity.toarray(), truth)
    assert affinity.nnz == np.count_nonzero(truth)
    assert all((np.diff(row) > 0).all() for row in np.split(affinity.indices, affinity.indptr[1:-1]))


def test_union_leaves_the_distances_as_they_are():
    distances = random_neighbors(50, 5)
    before = distances.copy()
    affinity_from_neighbors(distances, "box", np.ones(1))
    np.testing.assert_array_equal(distances.indices, before.indices)
    np.testing.assert_array_equal(distances.data, before.data)


@pytest.mark.parametrize("kernel", KERNELS)
def test_union_is_the_same_if_it_may_overwrite_the_distances(kernel):
    widths = np.random.default_rng(1).uniform(0.5, 2, 50 if kernel == "adaptive" else 1)
    kept = affinity_from_neighbors(random_neighbors(50, 5), kernel, widths)
    written_over = affinity_from_neighbors(random_neighbors(50, 5), kernel, widths, overwrite=True)
    np.testing.assert_array_equal(kept.toarray(), written_over.toarray())


def test_places_are_narrow_whatever_a_graph_is_made_of():
    wide = sp.csr_array(([1.0, 1.0], np.array([1, 0]), np.array([0, 1, 2])), shape=(2, 2))
    assert wide.indices.dtype == np.int64
    for graph in (Graph.from_affinity(wide, lazy=False), Graph.from_points(random_points()), Graph.from_grid((4, 4))):
        assert graph.node_affinity.indices.dtype == graph.node_affinity.indptr.dtype == np.int32
