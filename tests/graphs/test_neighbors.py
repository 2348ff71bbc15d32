from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from heatmover.graphs import neighbors
from heatmover.graphs.neighbors import Partition, Probe, SearchPlan, k_nearest, within_radius

EXACT = ["tree", "exact"]
APPROXIMATE = ["approximate"]
ALL = [*EXACT, *APPROXIMATE]


def search(points, k, algorithm="auto", seed=0, n_threads=2):
    return k_nearest(points, k, algorithm=algorithm, rng=np.random.default_rng(seed), n_threads=n_threads)


def brute_force(points, k):
    """Distances to the k nearest others, ascending; which others is not unique where distances are equal."""
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    return np.sort(distances, axis=1)[:, :k]


def rows(support, k):
    """Distances and indices of neighbors, ``(n_points, k)`` each."""
    shape = support.distances.shape[0], k
    return support.distances.data.reshape(shape), support.distances.indices.reshape(shape)


def assert_valid(points, support, k):
    """Every point has k different neighbors, none of them itself, at the distances stated, ascending."""
    distances, indices = rows(support, k)
    assert (indices != np.arange(len(points))[:, None]).all()
    assert all(len(set(row)) == k for row in indices.tolist())
    assert indices.min() >= 0
    assert indices.max() < len(points)
    np.testing.assert_allclose(distances, np.linalg.norm(points[indices] - points[:, None], axis=2), rtol=1e-12)
    assert (np.diff(distances, axis=1) >= 0).all()


def assert_exact(points, support, k, rtol=1e-9):
    """Neighbors are the k nearest and all that are tied with the last, or k if these are more than 4 k."""
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    ascending = np.sort(distances, axis=1)
    last = ascending[:, k - 1]
    n_tied = (distances <= last[:, None] * (1 + 1e-9)).sum(axis=1)
    capped = (n_tied > 4 * k) & (n_tied < len(points) - 1)
    counts = np.diff(support.distances.indptr)
    np.testing.assert_array_equal(counts, np.where(capped, k, n_tied))
    row = np.repeat(np.arange(len(points)), counts)
    place = np.arange(row.size) - np.repeat(support.distances.indptr[:-1], counts)
    indices, lengths = support.distances.indices, support.distances.data
    assert (indices != row).all()
    assert np.unique(row * len(points) + indices).size == indices.size
    assert (np.diff(lengths)[np.diff(row) == 0] >= 0).all()
    np.testing.assert_allclose(lengths, distances[row, indices], rtol=rtol)
    np.testing.assert_allclose(lengths, ascending[row, place], rtol=rtol)


def joined_by(support):
    """The neighbors of every point, as sets."""
    return [set(row.tolist()) for row in np.split(support.distances.indices, support.distances.indptr[1:-1])]


def recall(points, support, k):
    """Share of neighbors found that are no further away than the k-th nearest is."""
    return float((rows(support, k)[0] <= brute_force(points, k)[:, -1:] * (1 + 1e-9)).mean())


def latent(n_points, n_latent=10, n_dimensions=50, seed=0):
    """A curved sheet with a little noise: the sort of data that is called high-dimensional and is not quite."""
    rng = np.random.default_rng(seed)
    sheet = np.tanh(rng.normal(size=(n_points, n_latent)) @ rng.normal(size=(n_latent, n_dimensions)) / 2)
    return sheet + 0.05 * rng.normal(size=(n_points, n_dimensions))


def gaussian(n_points, n_dimensions, seed=0):
    return np.random.default_rng(seed).normal(size=(n_points, n_dimensions))


# --- exact search


@pytest.mark.parametrize("algorithm", EXACT)
@pytest.mark.parametrize(("n_points", "n_dimensions", "k"), [(2, 1, 1), (7, 2, 6), (300, 3, 10), (1300, 30, 15)])
def test_exact_search_equals_brute_force(algorithm, n_points, n_dimensions, k):
    points = gaussian(n_points, n_dimensions)
    support = search(points, k, algorithm)
    assert_exact(points, support, k)
    assert support.search == neighbors.Search(algorithm, 1.0, "as requested")


def far_groups(separation):
    """Two groups in 20 dimensions, ``separation`` times further apart than a point is from its neighbors."""
    points = gaussian(600, 20)
    points[:300, 0] += separation
    return points


@pytest.mark.parametrize("separation", [1e2, 1e4, 1e6, 1e9, 1e12])
def test_exact_search_for_groups_far_apart(separation):
    """Products in float32 alone find half of the neighbors at 1e4 and none at 1e5."""
    points = far_groups(separation)
    assert_exact(points, search(points, 12, "exact"), 12)


@pytest.mark.parametrize("algorithm", EXACT)
@pytest.mark.parametrize("scale", [1e-140, 1e-25, 1e22, 1e140])
def test_exact_search_at_any_scale(algorithm, scale):
    """Squares of such coordinates leave the range of float32 or come near that of float64."""
    points = gaussian(600, 20) * scale
    assert_exact(points, search(points, 12, algorithm), 12)


@pytest.mark.parametrize("algorithm", EXACT)
def test_exact_search_with_one_outlier(algorithm):
    points = gaussian(600, 20)
    points[17] = 1e30
    support = search(points, 12, algorithm)
    assert_exact(np.delete(points, 17, axis=0), search(np.delete(points, 17, axis=0), 12, algorithm), 12)
    assert_valid(points, support, 12)
    others = np.arange(600) != 17
    np.testing.assert_allclose(rows(support, 12)[0][others], brute_force(np.delete(points, 17, axis=0), 12), rtol=1e-9)


@pytest.mark.parametrize("algorithm", EXACT)
def test_exact_search_far_from_the_origin(algorithm):
    points = gaussian(600, 20) + 1e7
    assert_exact(points, search(points, 12, algorithm), 12)


@pytest.mark.parametrize("algorithm", EXACT)
def test_exact_search_where_all_distances_are_tied(algorithm):
    """Corners of a cube: a point has 12 nearest corners, then 66 at the next distance: within 4 k or not."""
    points = np.random.default_rng(0).permutation(np.indices((2,) * 12).reshape(12, -1).T[:1500].astype(float))
    for k in (13, 20):
        assert_exact(points, search(points, k, algorithm), k)


def test_too_many_ties_make_no_hubs():
    """Of 400 points with the same distance between any two, none is everybody's neighbor."""
    support = search(np.eye(400), 10, "exact")
    assert (np.diff(support.distances.indptr) == 10).all()
    assert np.bincount(support.distances.indices, minlength=400).max() < 40


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 60), st.integers(1, 8), st.integers(0, 1000), st.booleans(), st.data())
def test_exact_searches_agree_on_anything(n_points, n_dimensions, seed, whole, data):
    points = gaussian(n_points, n_dimensions, seed)
    points = np.unique(np.round(points), axis=0) if whole else points
    if len(points) == 1:
        return
    k = data.draw(st.integers(1, len(points) - 1))
    found = {algorithm: search(points, k, algorithm) for algorithm in EXACT}
    for support in found.values():
        assert_exact(points, support, k)
        assert joined_by(support) == joined_by(found["exact"])
    for algorithm in APPROXIMATE:  # so few points are one part, and the search is exact
        distances, _ = rows(search(points, k, algorithm), k)
        np.testing.assert_allclose(distances, brute_force(points, k), rtol=1e-9)


# --- copies, which are one node in a graph; the search itself would find them at distance zero


@pytest.mark.parametrize("algorithm", ALL)
def test_more_copies_of_one_point_than_neighbors(algorithm):
    points = gaussian(700, 6)
    points[100:150] = points[99]
    support = search(points, 8, algorithm)
    for i, near in enumerate(joined_by(support)):
        assert i not in near
        assert near <= set(range(99, 150)) or i not in range(99, 150)
    assert (support.middle[99:150] == 0).all()


def test_a_single_point_has_no_neighbor():
    support = search(np.zeros((1, 3)), 0)
    assert (support.distances.nnz, support.middle.tolist()) == (0, [0.0])


# --- the middle neighbor


@pytest.mark.parametrize(("k", "place"), [(1, 0), (2, 0), (3, 0), (4, 1), (9, 3), (30, 14)])
def test_middle_neighbor(k, place):
    points = gaussian(60, 2)
    np.testing.assert_allclose(search(points, k).middle, brute_force(points, k)[:, place], rtol=1e-12)


def test_middle_neighbor_is_the_first_beyond_the_duplicates():
    """Every point in five copies: 4 of the 6 neighbors are at distance 0, so is the middle one."""
    points = np.repeat(gaussian(40, 2), 5, axis=0)
    nearest = brute_force(points, 6)
    assert (nearest[:, 3] == 0).all()
    np.testing.assert_allclose(search(points, 6).middle, nearest[:, 4], rtol=1e-12)


# --- approximate search


@pytest.mark.parametrize(
    "points",
    [latent(4000), gaussian(4000, 30) * np.arange(1, 31) ** -0.5, gaussian(4000, 8)],
    ids=["sheet", "decay", "8-D"],
)
@pytest.mark.parametrize("algorithm", APPROXIMATE)
def test_approximate_search_says_how_good_it_is(points, algorithm):
    support = search(points, 15, algorithm)
    assert_valid(points, support, 15)
    true_recall = recall(points, support, 15)
    assert true_recall >= 0.95
    assert support.search.recall == pytest.approx(true_recall, abs=0.01)  # measured on 1000 of 4000 points
    assert support.search.reason == "as requested"


def test_recall_is_reported_when_it_is_low(monkeypatch):
    """A search of the own part alone, in independent noise, finds few; the figure says so."""
    monkeypatch.setattr(Probe, "plan", lambda *_, **__: SearchPlan(0.0, 1, 10.0))
    points = gaussian(3000, 40)
    support = search(points, 10, "approximate")
    assert_valid(points, support, 10)
    true_recall = recall(points, support, 10)
    assert true_recall < 0.6
    assert support.search.recall == pytest.approx(true_recall, abs=0.06)


# --- the automatic choice


def test_few_points_are_searched_by_tree():
    result = search(gaussian(500, 40), 5).search
    assert (result.algorithm, result.recall) == ("tree", 1.0)
    assert result.reason == "500 points: an exact tree is fast"


@pytest.fixture
def small_thresholds(monkeypatch):
    monkeypatch.setattr(neighbors, "TREE_UP_TO", 300)
    monkeypatch.setattr(neighbors, "EXACT_BELOW", 800)
    monkeypatch.setattr(neighbors, "EXACT_UP_TO", 1000)
    monkeypatch.setattr(neighbors, "MOST_IN_REACH", 2000.0)


@pytest.mark.usefixtures("small_thresholds")
@pytest.mark.parametrize(
    ("points", "algorithm", "words"),
    [
        (gaussian(900, 3), "exact", "clusters within reach: exact search is fast"),
        (gaussian(1100, 3), "tree", "the data look 3.0-dimensional: an exact tree is fast"),
        (gaussian(900, 2) @ gaussian(2, 40), "tree", "-dimensional: an exact tree is fast"),
        (gaussian(700, 40), "exact", "700 points: exact search is fast"),
        (gaussian(900, 12), "approximate", "900 points that look"),
        (gaussian(900, 40), "approximate", "900 points that look"),
    ],
    ids=[
        "three dimensions",
        "more points",
        "a plane in forty",
        "high-dimensional",
        "many",
        "many and high-dimensional",
    ],
)
def test_choice_follows_size_and_dimension(points, algorithm, words):
    support = search(points, 10)
    assert support.search.algorithm == algorithm
    assert words in support.search.reason
    assert support.search.recall == 1 if algorithm not in APPROXIMATE else 0.9 < support.search.recall <= 1
    assert recall(points, support, 10) >= 0.9


@pytest.mark.usefixtures("small_thresholds")
@pytest.mark.parametrize("k", [1, 2, 250])
def test_choice_for_few_or_many_neighbors(k):
    points = gaussian(600, 5)
    assert_exact(points, search(points, k), k)


@pytest.mark.usefixtures("small_thresholds")
def test_choice_with_identical_points():
    support = search(np.ones((900, 10)), 5)
    assert support.search.algorithm == "tree"  # all are in one part, so that parts save nothing
    assert (support.distances.data == 0).all()


@pytest.mark.parametrize(("dimension", "low", "high"), [(1, 0.8, 1.3), (2, 1.6, 2.4), (5, 3.8, 5.6), (40, 12, 40)])
def test_dimension_is_that_of_the_data_not_of_the_space(dimension, low, high):
    flat = np.random.default_rng(1).uniform(size=(2000, dimension)) @ np.linalg.qr(gaussian(40, dimension))[0].T
    partition = Partition.from_points(flat, 20, np.random.default_rng(0), strict=False, n_threads=1)
    assert low < partition.probe(20, 1).dimension() < high


@pytest.mark.usefixtures("small_thresholds")
def test_where_an_approximate_search_finds_too_few_all_is_exact(monkeypatch):
    """Something that no plan has foreseen."""
    monkeypatch.setattr(Probe, "plan", lambda *_, **__: SearchPlan(0.0, 1, 10.0))
    points = gaussian(900, 12)
    support = search(points, 10)
    assert (support.search.algorithm, support.search.recall) == ("exact", 1.0)
    assert support.search.reason.endswith("an approximate search found too few neighbors")
    np.testing.assert_allclose(rows(support, 10)[0], brute_force(points, 10), rtol=1e-9)


def test_copies_do_not_make_data_look_flat():
    """Five of each in 30 dimensions: nearest neighbors are very near, but the others are as far as without copies."""
    points = np.repeat(gaussian(600, 30), 5, axis=0) + 1e-6 * gaussian(3000, 30, 1)
    partition = Partition.from_points(points, 20, np.random.default_rng(0), strict=False, n_threads=1)
    assert partition.probe(20, 1).dimension() > 8


# --- determinism


@pytest.mark.parametrize("algorithm", ALL)
def test_threads_do_not_change_a_bit(algorithm):
    points = np.vstack([latent(1200), latent(300, seed=1) + 5])
    points[200:240] = points[0]
    results = []
    for n_threads in (1, 2, 5):
        with threadpool_limits(limits=n_threads, user_api="blas"):
            results.append(search(points, 9, algorithm, n_threads=n_threads))
    for other in results[1:]:
        np.testing.assert_array_equal(other.distances.data, results[0].distances.data)
        np.testing.assert_array_equal(other.distances.indices, results[0].distances.indices)
        assert other.search == results[0].search


def test_same_seed_same_bits_and_another_seed_another_search():
    points = latent(3000)
    one, again, other = (search(points, 9, "approximate", seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.distances.data, again.distances.data)
    np.testing.assert_array_equal(one.distances.indices, again.distances.indices)
    assert one.search == again.search
    assert (one.distances.indices != other.distances.indices).any()


def test_points_are_not_changed():
    points = gaussian(300, 4)
    before = points.copy()
    for algorithm in ALL:
        search(points, 5, algorithm)
    within_radius(points, 1.0)
    np.testing.assert_array_equal(points, before)


# --- radius


def test_radius_joins_exactly_the_pairs_within():
    points = gaussian(150, 2)
    truth = cdist(points, points)
    np.fill_diagonal(truth, np.inf)
    support = within_radius(points, 0.3)
    joined = np.zeros((150, 150), dtype=bool)
    joined[support.distances.nonzero()] = True
    np.testing.assert_array_equal(joined, truth <= 0.3)
    np.testing.assert_allclose(support.distances.toarray()[joined], truth[joined], rtol=1e-12)
    assert (~joined.any(axis=1)).sum() > 0  # some are isolated
    assert support.search == neighbors.Search("radius", 1.0, "all pairs within 0.3")


def test_radius_includes_its_end_and_duplicates():
    support = within_radius(np.array([[0.0], [1.0], [1.0], [2.5]]), 1.0)
    assert support.distances.nnz == 6
    assert support.distances.toarray()[0].tolist() == [0, 1, 1, 0]


def test_radius_middle_neighbor():
    points = gaussian(150, 2)
    truth = cdist(points, points)
    np.fill_diagonal(truth, np.inf)
    expected = []
    for row in truth:
        inside = np.sort(row[row <= 0.3])
        expected.append(inside[max(inside.size // 2 - 1, 0)] if inside.size else 0)
    np.testing.assert_allclose(within_radius(points, 0.3).middle, expected, rtol=1e-12)


def test_radius_without_any_pair():
    support = within_radius(np.arange(4.0)[:, None], 0.5)
    assert support.distances.nnz == 0
    assert support.distances.shape == (4, 4)
    assert support.middle.tolist() == [0, 0, 0, 0]
