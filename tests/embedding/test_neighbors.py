from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.neighbors import NearestNeighbors

from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.neighbors import nearest
from heatmover.errors import InvalidInputError


@pytest.fixture(autouse=True, scope="module")
def threads_for_any_work():
    """Use the threads asked for, however small the input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heatmover.embedding.distances.FEATURE_PAIRS_PER_THREAD", 1)
        yield


def random_rows(n_rows, n_features, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features)).astype(dtype)


def brute_force(rows, k, other=None):
    """Sort the whole matrix of distances, stably: of equal distances the smaller index comes first."""
    distances = pairwise_distances(rows, other)
    if other is None:
        np.fill_diagonal(distances, np.inf)
    indices = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, indices, axis=1), indices


def assert_same(found, expected):
    assert found[0].dtype == np.float64
    assert found[1].dtype == np.int64
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("algorithm", ["kd_tree", "ball_tree"])
def test_trees_of_scikit_learn_find_the_same_neighbors(algorithm):
    rows, others = random_rows(300, 12), random_rows(40, 12, seed=1)
    search = NearestNeighbors(n_neighbors=5, algorithm=algorithm, metric="manhattan").fit(rows)
    distances, indices = search.kneighbors(others)
    found = nearest(others, 5, rows)
    np.testing.assert_allclose(found[0], distances, rtol=1e-12)
    np.testing.assert_array_equal(found[1], indices)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_rows", "n_features"), [(2, 1), (50, 3), (130, 1500), (500, 2)])
def test_neighbors_within_one_embedding(n_rows, n_features, dtype):
    rows = random_rows(n_rows, n_features, dtype)
    for k in {1, min(7, n_rows - 1), n_rows - 1}:
        assert_same(nearest(rows, k), brute_force(rows, k))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_rows", "n_others"), [(1, 1), (1, 300), (300, 1), (60, 130)])
def test_neighbors_in_another_embedding(n_rows, n_others, dtype):
    rows, others = random_rows(n_rows, 20, dtype), random_rows(n_others, 20, dtype, seed=1)
    for k in {1, min(5, n_others), n_others}:
        assert_same(nearest(rows, k, others), brute_force(rows, k, others))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_ties_go_to_the_smaller_index(data):
    # Few different values, so that equal distances and equal rows abound.
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=30)
    rows = data.draw(hnp.arrays(np.float32, shapes, elements=st.integers(0, 2).map(float)))
    k = data.draw(st.integers(1, len(rows) - 1))
    assert_same(nearest(rows, k), brute_force(rows, k))
    assert_same(nearest(rows, k, rows), brute_force(rows, k, rows))


def test_ties_across_tiles_go_to_the_smaller_index():
    rows = np.random.default_rng(0).integers(0, 3, size=(700, 2)).astype(float)
    for n_jobs in (1, 4):
        assert_same(nearest(rows, 90, n_jobs=n_jobs), brute_force(rows, 90))


def test_a_duplicate_is_a_neighbor_and_the_row_itself_is_not():
    rows = np.array([[5.0, 5.0], [0.0, 0.0], [5.0, 5.0], [5.0, 5.0]])
    distances, indices = nearest(rows, k=2)
    np.testing.assert_array_equal(distances, [[0, 0], [10, 10], [0, 0], [0, 0]])
    np.testing.assert_array_equal(indices, [[2, 3], [0, 2], [0, 3], [0, 2]])


def test_in_another_embedding_an_equal_row_is_found():
    rows = random_rows(40, 5)
    distances, indices = nearest(rows, 1, rows)
    assert (distances == 0).all()
    np.testing.assert_array_equal(indices.ravel(), np.arange(40))


@pytest.mark.parametrize("other", [None, random_rows(200, 40, seed=1)], ids=["within", "other"])
def test_the_number_of_threads_changes_no_bit(other):
    rows = random_rows(300, 40)
    expected = nearest(rows, 9, other, n_jobs=1)
    for n_jobs in (None, 2, 3, 8):
        assert_same(nearest(rows, 9, other, n_jobs=n_jobs), expected)


def test_the_matrix_of_all_distances_is_never_held():
    rows = random_rows(2000, 8, np.float32)
    others = random_rows(2000, 8, np.float32, seed=1)
    for other in (None, others):
        nearest(rows, 5, other, n_jobs=2)
        tracemalloc.start()
        nearest(rows, 5, other, n_jobs=2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # The matrix would take 32 MB; the result takes 0.16 MB and a tile 0.3 MB.
        assert peak < 2_000_000


@pytest.mark.parametrize(
    ("k", "other", "message"),
    [
        (0, None, "k to be a whole number of at least 1, found 0"),
        (2.0, None, "k to be a whole number"),
        (True, None, "k to be a whole number"),
        (4, None, "k of at most 3, found 4; a row is not its own neighbor"),
        (3, np.zeros((2, 6)), "k of at most 2, found 3; other has no more rows"),
        (1, np.zeros((2, 5)), "as many columns as embedding, 6, found 5"),
        (1, [1.0], "other to be a 2-d array"),
        (1, [[np.nan] * 6], "other without NaN"),
    ],
)
def test_unfit_arguments_are_refused(k, other, message):
    with pytest.raises(InvalidInputError, match=message):
        nearest(random_rows(4, 6), k, other)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused(bad):
    rows = random_rows(150, 6)
    rows[149, 5] = bad
    with pytest.raises(InvalidInputError, match=r"embedding without NaN or infinity, found 1 .* row 149"):
        nearest(rows, 3)
