"""Spatial medians and distances freed of the places of groups, against coordinates and a general minimizer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from heatmover.statistics import dispersion
from heatmover.statistics.tests import _left_out_medians, score_distances, spatial_medians


def squared(places):
    return cdist(places, places, "sqeuclidean")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_points", [3, 4, 9])
def test_the_spatial_median_has_the_least_sum_of_distances(n_points, seed):
    rng = np.random.default_rng(seed)
    places, weights = rng.normal(size=(n_points, 2)), rng.uniform(0.5, 2, size=n_points)
    found = spatial_medians(squared(places), weights[None])[0]
    assert found.sum() == pytest.approx(1)

    def cost(place):
        return weights @ np.linalg.norm(places - place, axis=1)

    best = minimize(cost, places.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).fun
    assert cost(found @ places) <= best * (1 + 1e-7)


def test_a_median_that_is_a_point_is_that_point():
    places = np.array([[0.0, 0], [0, 0], [0, 0], [1, 0], [5, 5]])
    found = spatial_medians(squared(places), np.ones((1, 5)))[0]
    assert set(found) == {0.0, 1.0}
    assert found @ places == pytest.approx([0, 0], abs=0)


def test_a_remote_point_hardly_moves_the_median():
    places = np.random.default_rng(0).normal(size=(11, 2))
    without = spatial_medians(squared(places[:10]), np.ones((1, 10)))[0] @ places[:10]
    places[10] = [1e5, 0]
    with_it = spatial_medians(squared(places), np.ones((1, 11)))[0] @ places
    assert np.linalg.norm(with_it - without) < 0.3


def test_medians_are_found_by_rows_of_weights():
    places = np.array([[0.0], [1], [2], [10], [11], [12]])
    weights = np.kron(np.eye(2), np.ones(3))
    assert (spatial_medians(squared(places), weights) @ places).ravel().tolist() == [1, 11]


def scored(places, codes, **more):
    n = len(codes)
    options = {"unit_of": np.arange(n), "block_of": None} | more
    return score_distances(cdist(places, places), codes, **options)[0]


def test_groups_far_apart_are_moved_onto_each_other():
    rng = np.random.default_rng(0)
    codes, places = np.repeat([0, 1], 30), rng.normal(size=(60, 2))
    near, far = scored(places, codes), scored(places + 1000 * codes[:, None], codes)
    inside = codes[:, None] == codes
    np.testing.assert_allclose(far[inside], near[inside], rtol=1e-6)
    # Between groups as within them: about a half, as the unit is the median.
    assert far[~inside].mean() == pytest.approx(far[inside & ~np.eye(60, dtype=bool)].mean(), rel=0.1)


def test_groups_in_one_place_stay_as_they_are():
    """Medians that differ by less than their own uncertainty are taken for equal."""
    codes, places = np.repeat([0, 1], 4), np.tile([[0.0, 0], [1, 0], [0, 1], [1, 1.5]], (2, 1))
    distances = cdist(places, places)
    unit = np.median(distances[(codes[:, None] == codes) & (distances > 0)])
    np.testing.assert_array_equal(scored(places, codes), distances / unit / (distances / unit + 1))


def test_blocks_are_not_mistaken_for_groups():
    """A shift between batches with unequal shares of the groups moves no group."""
    rng = np.random.default_rng(1)
    codes, block = np.repeat([0, 1, 0, 1], [20, 10, 10, 20]), np.repeat([0, 1], 30)
    places = rng.normal(size=(60, 2)) + 50 * block[:, None]
    inside = (codes[:, None] != codes) & (block[:, None] == block)
    knowing, ignorant = scored(places, codes, block_of=block), scored(places, codes)
    distances = cdist(places, places)
    unit = np.median(distances[(codes[:, None] == codes) & (distances > 0)])
    true = distances / (distances + unit)
    assert abs(knowing[inside] - true[inside]).mean() < 0.1 * abs(ignorant[inside] - true[inside]).mean()


def test_a_unit_counts_once():
    places, codes = np.random.default_rng(2).normal(size=(8, 2)), np.repeat([0, 1], 4)
    unit_of = np.repeat(np.arange(8), [1, 2, 3, 1, 1, 2, 1, 4])
    np.testing.assert_allclose(
        scored(places[unit_of], codes[unit_of], unit_of=unit_of)[0, 1] > 0, scored(places, codes)[0, 1] > 0
    )
    assert scored(places[unit_of], codes[unit_of], unit_of=unit_of).shape == (8, 8)


def test_distances_of_rounding_are_zero():
    places = np.array([[0.0], [0], [1e-15], [5], [0], [1e-15], [0], [7]])
    noisy, clean = scored(places, np.repeat([0, 1], 4)), scored(places.round(9), np.repeat([0, 1], 4))
    np.testing.assert_allclose(noisy, clean, atol=1e-12)


def test_large_groups_are_tested_as_small_ones_are(monkeypatch):
    rng = np.random.default_rng(0)
    places = rng.normal(size=(80, 4)) * np.repeat([1.0, 1.25], 40)[:, None]
    places[40:] += 2
    distances, groups = cdist(places, places), np.repeat(["a", "b"], 40)
    exact = dispersion(distances, groups)
    monkeypatch.setattr("heatmover.statistics.tests.MOST_LEFT_OUT", 39)
    near = dispersion(distances, groups)
    assert near.statistic == exact.statistic
    assert near.p_value == pytest.approx(exact.p_value, abs=0.01)
    assert (near.null != exact.null).any()
    np.testing.assert_allclose(near.null, exact.null, atol=0.1 * exact.null.max())


def test_left_out_medians_are_those_without_the_unit():
    rng = np.random.default_rng(2)
    distances = squared(rng.normal(size=(30, 2)))
    codes, unit_of = np.arange(30) % 3, np.arange(30) // 6 * 3 + np.arange(30) % 3
    medians = _left_out_medians(distances, codes, unit_of, 1 / np.bincount(unit_of)[unit_of])
    for row, median in enumerate(medians):
        others = (codes == codes[row]) & (unit_of != unit_of[row])
        np.testing.assert_allclose(median, spatial_medians(distances, others[None].astype(float))[0], atol=1e-10)
