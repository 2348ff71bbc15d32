"""The search with bounds finds what the comparison of all pairs finds, to the bit, whatever the groups are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heatmover.embedding import neighbors
from heatmover.embedding.distances import check_rows, pairwise_distances
from heatmover.embedding.neighbors import Groups, choose_groups, learn_groups, nearest, nearest_by_groups, sum_of_groups
from heatmover.errors import InvalidInputError


def brute_force(rows, k, other=None):
    """Sort the whole matrix of distances, stably: of equal distances the smaller index comes first."""
    distances = pairwise_distances(rows, other)
    if other is None:
        np.fill_diagonal(distances, np.inf)
    indices = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, indices, axis=1), indices


def any_groups(n_features, n_groups, seed=0):
    """Columns in groups at random, some groups empty, and random signs."""
    rng = np.random.default_rng(seed)
    group = np.sort(rng.integers(n_groups, size=n_features))
    starts = np.searchsorted(group, np.arange(n_groups + 1))
    return Groups(rng.permutation(n_features), rng.choice([-1.0, 1.0], size=n_features), starts)


def assert_found(rows, k, other=None, groups=None, n_threads=1):
    left, right = check_rows(rows, other)
    groups = any_groups(left.shape[1], 3) if groups is None else groups
    found = nearest_by_groups(left, right, k, groups, n_threads=n_threads)
    assert found is not None
    assert found[0].dtype == np.float64
    assert found[1].dtype == np.int64
    for here, there in zip(found, brute_force(rows, k, other), strict=True):
        np.testing.assert_array_equal(here, there)


def smooth_rows(n_rows, n_features=300, dtype=np.float64, seed=0):
    """Rows of five numbers, each shared by many columns: as an embedding of few degrees of freedom."""
    rng = np.random.default_rng(seed)
    loadings = np.abs(np.random.default_rng(99).normal(size=(5, n_features))) * np.eye(5)[np.arange(n_features) % 5].T
    return (rng.normal(size=(n_rows, 5)) @ loadings + 0.01 * rng.normal(size=(n_rows, n_features))).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_others", [None, 1, 7, 130])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_nearest_are_those_of_all_pairs(dtype, n_others, n_threads):
    rows = smooth_rows(101, dtype=dtype)
    others = None if n_others is None else smooth_rows(n_others, dtype=dtype, seed=1)
    for k in {1, min(10, n_others or 10), n_others or 100}:
        assert_found(rows, k, others, n_threads=n_threads)


@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_ties_go_to_the_smaller_index(data):
    # Few different values, so that equal distances and equal rows abound.
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=30)
    rows = data.draw(hnp.arrays(np.float32, shapes, elements=st.integers(0, 2).map(float)))
    if not rows.any():
        return
    k = data.draw(st.integers(1, len(rows) - 1))
    groups = any_groups(rows.shape[1], data.draw(st.integers(1, 5)), data.draw(st.integers(0, 9)))
    assert_found(rows, k, groups=groups)
    assert_found(rows, k, rows, groups)


@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_any_magnitudes(data):
    """Bounds are in single precision: what is too small for it, or beyond it, is never left out for that."""
    powers = data.draw(st.lists(st.integers(-320, 300), min_size=4, max_size=12))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows = rng.normal(size=(len(powers), 6)) * 10.0 ** np.array(powers)[:, None]
    left, _ = check_rows(rows, None)
    found = nearest_by_groups(left, None, 2, any_groups(6, 2), n_threads=1)
    if found is not None:
        for here, there in zip(found, brute_force(rows, 2), strict=True):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("power", [-40, -12, 0, 12, 34])
def test_a_common_factor_changes_no_neighbor(power):
    rows = (smooth_rows(60) * 10.0**power).astype(np.float32)
    assert_found(rows, 3)


def test_rows_far_from_zero_and_near_each_other():
    """Their sums are large and their differences small: rounding of the sums must not decide."""
    rows = 1e6 + smooth_rows(80)
    assert_found(rows, 3)
    assert_found(rows.astype(np.float32), 3)


def test_where_nothing_can_be_left_out_all_are_compared():
    assert_found(np.random.default_rng(0).normal(size=(60, 40)), 2)


def test_bounds_are_held_for_as_many_rows_as_memory_allows(monkeypatch):
    monkeypatch.setattr(neighbors, "BLOCK_BYTES", 1000)
    assert_found(smooth_rows(60), 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
def test_values_that_bounds_cannot_hold_are_left_to_the_full_search(bad):
    rows = smooth_rows(50)
    rows[49, 5] = bad
    groups = any_groups(rows.shape[1], 3)
    assert nearest_by_groups(check_rows(rows, None)[0], None, 1, groups, n_threads=1) is None
    zeros = check_rows(np.zeros((5, 20)), None)[0]
    assert nearest_by_groups(zeros, None, 1, any_groups(20, 2), n_threads=1) is None


@pytest.fixture
def for_any_work(monkeypatch):
    """Look for groups however small the input."""
    monkeypatch.setattr(neighbors, "FEWEST_PAIRS", 1)
    monkeypatch.setattr(neighbors, "SUM_COST", 0)
    monkeypatch.setattr(neighbors, "PASS_COST", 0)


@pytest.mark.usefixtures("for_any_work")
@pytest.mark.parametrize("within", [True, False])
def test_groups_are_chosen_where_they_pay(within):
    rows = smooth_rows(400)
    others = None if within else smooth_rows(300, seed=1)
    groups = choose_groups(rows, others, 1)
    assert groups is not None
    np.testing.assert_array_equal(np.sort(groups.columns), np.arange(300))
    assert (np.diff(groups.starts) >= 0).all()
    # Columns that are multiples of one another are in one group: each bound is nearly the distance.
    for group in np.split(groups.columns, groups.starts[1:-1]):
        assert np.unique(group % 5).size <= 1
    for here, there in zip(nearest(rows, 3, others), brute_force(rows, 3, others), strict=True):
        np.testing.assert_array_equal(here, there)


@pytest.mark.usefixtures("for_any_work")
def test_no_groups_where_columns_have_nothing_in_common():
    rows = np.random.default_rng(0).normal(size=(400, 300))
    assert choose_groups(rows, None, 1) is None
    for here, there in zip(nearest(rows, 3), brute_force(rows, 3), strict=True):
        np.testing.assert_array_equal(here, there)


def test_no_groups_for_little_work_or_few_columns():
    assert choose_groups(smooth_rows(400), None, 1) is None
    assert choose_groups(smooth_rows(400, n_features=20), None, 1) is None


@pytest.mark.usefixtures("for_any_work")
def test_equal_rows_and_bad_values_are_left_to_the_full_search():
    assert choose_groups(np.ones((50, 300)), None, 1) is None
    rows = smooth_rows(150)
    rows[149, 5] = np.nan
    with pytest.raises(InvalidInputError, match=r"embedding without NaN or infinity, found 1 .* row 149"):
        nearest(rows, 3)


@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 5, 9])
def test_sums_of_a_row_do_not_depend_on_the_others(n_rows):
    rows = np.random.default_rng(0).normal(size=(n_rows, 300)).astype(np.float32)
    groups = learn_groups(np.random.default_rng(1).normal(size=(50, 300)).astype(np.float32), 8)
    sums = sum_of_groups(rows, groups)
    for row, found in zip(rows, sums, strict=True):
        assert np.array_equal(sum_of_groups(row[None], groups)[0], found)
        for group in range(8):
            part = slice(groups.starts[group], groups.starts[group + 1])
            right = (groups.signs[part] * row[groups.columns[part]].astype(np.float64)).sum()
            assert found[group] == pytest.approx(right, abs=1e-12)
