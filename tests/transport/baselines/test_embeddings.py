"""Sliced Wasserstein: each direction against SciPy, the mean against quadrature, the line against the exact EMD."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.stats import wasserstein_distance

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.transport.baselines.embeddings import sliced_wasserstein
from heatmover.transport.baselines.pot import exact_emd

SEEDS = st.integers(0, 2**32 - 1)


def weighted_measures(rng, n_measures, n_points):
    """Random masses, some of them zero."""
    masses = rng.random((n_measures, n_points)) * (rng.random((n_measures, n_points)) < 0.6)
    masses[:, 0] += 0.1
    return masses / masses.sum(axis=1, keepdims=True)


def uniform_measures(sizes):
    """Measures of equal masses on their own points: so many of each."""
    return hm.measures_from_labels(np.repeat(np.arange(len(sizes)), sizes)).toarray()


def directions_of(n_directions, n_dimensions, seed):
    directions = np.random.default_rng(seed).standard_normal((n_directions, n_dimensions))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


def mean_over(directions, points, masses):
    """The mean of SciPy's distances between the projected measures, pair by pair."""
    result = np.zeros((len(masses), len(masses)))
    for values in directions @ points.T:
        for i, j in np.ndindex(result.shape):
            result[i, j] += wasserstein_distance(values, values, masses[i], masses[j]) / len(directions)
    return result


@pytest.mark.parametrize("n_dimensions", [2, 3, 50])
@pytest.mark.parametrize(
    "masses",
    [
        weighted_measures(np.random.default_rng(0), 4, 30),
        uniform_measures([10, 10, 10]),
        uniform_measures([4, 6, 8, 12]),
        uniform_measures([7, 11, 12]),
    ],
    ids=["weighted", "equal sizes", "steps in common", "few steps in common"],
)
def test_is_the_mean_of_distances_along_directions(masses, n_dimensions):
    points = np.random.default_rng(1).standard_normal((masses.shape[1], n_dimensions))
    found = sliced_wasserstein(points, masses, n_directions=5, random_state=7)
    expected = mean_over(directions_of(5, n_dimensions, 7), points, masses)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("masses", [weighted_measures(np.random.default_rng(0), 5, 40), uniform_measures([10] * 4)])
def test_on_a_line_it_is_the_exact_emd_of_one_direction(masses):
    pytest.importorskip("ot")
    points = np.random.default_rng(2).standard_normal((40, 1)).round(1)  # with ties
    np.testing.assert_allclose(sliced_wasserstein(points, masses), exact_emd(points, masses), rtol=1e-9, atol=1e-12)
    assert len(list(sliced_wasserstein.function(points, masses))) == 1


def test_many_directions_approach_the_integral_over_all():
    rng = np.random.default_rng(3)
    points, masses = rng.standard_normal((25, 2)), weighted_measures(rng, 3, 25)
    angles = np.pi * (np.arange(400) + 0.5) / 400
    truth = mean_over(np.column_stack([np.cos(angles), np.sin(angles)]), points, masses)
    pairs = np.triu_indices(3, 1)
    found = [sliced_wasserstein(points, masses, n_directions=count)[pairs] for count in (10, 4000)]
    errors = [np.abs(distances / truth[pairs] - 1).max() for distances in found]
    assert errors[1] < 0.02 < errors[0]


def test_two_points_in_the_plane_keep_two_over_pi_of_their_distance():
    distances = sliced_wasserstein([[0.0, 0.0], [3.0, 4.0]], np.eye(2), n_directions=4000)
    assert distances[0, 1] == pytest.approx(5 * 2 / np.pi, rel=0.02)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(1, 4), st.sampled_from([1e-100, 1e-3, 2.0, 1e100]), st.booleans())
def test_invariants(seed, n_dimensions, factor, weighted):
    rng = np.random.default_rng(seed)
    masses = weighted_measures(rng, 3, 12) if weighted else uniform_measures([4, 4, 4])
    points = rng.standard_normal((12, n_dimensions))
    distances = sliced_wasserstein(points, masses, n_directions=4)
    assert np.array_equal(distances, distances.T)
    assert np.array_equal(np.diag(distances), np.zeros(3))
    scaled = sliced_wasserstein(points * factor, masses, n_directions=4)
    np.testing.assert_allclose(scaled, distances * factor, rtol=1e-9)
    np.testing.assert_allclose(sliced_wasserstein(points + 100, masses, n_directions=4), distances, rtol=1e-9)
    # A lower bound of the mean cost of any plan, here of the independent one.
    costs = np.linalg.norm(points[:, None] - points, axis=2)
    assert (distances <= masses @ costs @ masses.T + 1e-12).all()


def test_far_from_the_origin_digits_are_kept():
    rng = np.random.default_rng(4)
    points, masses = rng.integers(0, 1024, (30, 2)) / 1024, weighted_measures(rng, 3, 30)
    far = sliced_wasserstein(points + 2.0**40, masses)  # these coordinates are exact
    np.testing.assert_allclose(far, sliced_wasserstein(points, masses), rtol=1e-12)


def test_sparse_and_dense_measures_agree_and_threads_do_not_matter():
    rng = np.random.default_rng(5)
    points, masses = rng.standard_normal((50, 3)), weighted_measures(rng, 6, 50)
    one = sliced_wasserstein(points, masses, n_jobs=1)
    assert np.array_equal(one, sliced_wasserstein(points, masses, n_jobs=2))
    np.testing.assert_allclose(sliced_wasserstein(points, sp.csr_array(masses)), one, rtol=1e-12)


def test_the_seed_decides():
    rng = np.random.default_rng(6)
    points, masses = rng.standard_normal((20, 3)), weighted_measures(rng, 3, 20)
    first = sliced_wasserstein(points, masses, random_state=1)
    assert np.array_equal(first, sliced_wasserstein(points, masses, random_state=np.random.default_rng(1)))
    assert not np.array_equal(first, sliced_wasserstein(points, masses, random_state=2))


@pytest.mark.parametrize("masses", [weighted_measures(np.random.default_rng(0), 4, 40), uniform_measures([10] * 4)])
def test_features_have_the_distances_between_them(masses):
    points = np.random.default_rng(7).standard_normal((40, 2))
    features = sliced_wasserstein.embed(points, masses, n_directions=3)
    between = np.abs(features[:, None] - features).sum(axis=2)
    np.testing.assert_allclose(between, sliced_wasserstein(points, masses, n_directions=3), rtol=1e-12)


def test_measures_of_one_size_have_one_feature_per_point_of_theirs():
    points = np.random.default_rng(8).standard_normal((40, 2))
    assert sliced_wasserstein.embed(points, uniform_measures([10] * 4), n_directions=3).shape == (4, 3 * 10)
    # Steps at multiples of 1/2, 1/3 and 1/4 of the mass: six.
    masses = block_diag(*(np.full((1, n), 1 / n) for n in (2, 3, 4)))
    assert sliced_wasserstein.embed(points[:9], masses, n_directions=1).shape == (3, 6)


def test_points_without_mass_change_nothing():
    rng = np.random.default_rng(9)
    points, masses = rng.standard_normal((20, 2)), weighted_measures(rng, 3, 20)
    more = np.vstack([points, 50 + rng.standard_normal((5, 2))])
    found = sliced_wasserstein(more, np.hstack([masses, np.zeros((3, 5))]))
    np.testing.assert_allclose(found, sliced_wasserstein(points, masses), rtol=1e-12)
    assert sliced_wasserstein.embed(more, np.hstack([masses, np.zeros((3, 5))])).shape[1] <= 50 * 19


def test_equal_projections_share_one_feature():
    points = np.repeat([[0.0], [1.0], [3.0]], 4, axis=0)
    features = sliced_wasserstein.embed(points, weighted_measures(np.random.default_rng(10), 3, 12))
    assert features.shape == (3, 2)


@pytest.mark.parametrize("masses", [[[1, 0, 0], [0.2, 0.3, 0.5]], [[1, 0, 0], [0, 1, 0]]])
def test_identical_points_are_no_distance_apart(masses):
    assert np.array_equal(sliced_wasserstein(np.full((3, 2), 0.3), masses), np.zeros((2, 2)))


def test_one_measure_or_one_point():
    assert np.array_equal(sliced_wasserstein([[0.0, 1.0], [2.0, 3.0]], [[0.5, 0.5]]), [[0.0]])
    assert np.array_equal(sliced_wasserstein([[0.0, 1.0]], [[1.0], [1.0]]), np.zeros((2, 2)))


@pytest.mark.parametrize("options", [{"n_directions": 0}, {"n_directions": 2.5}, {"n_directions": True}, {"n_jobs": 0}])
@pytest.mark.parametrize("n_dimensions", [1, 2])
def test_bad_options(options, n_dimensions):
    with pytest.raises(InvalidInputError, match=f"{next(iter(options))} to be a whole number"):
        sliced_wasserstein.embed(np.zeros((2, n_dimensions)), np.eye(2), **options)


def test_bad_random_state():
    with pytest.raises(InvalidInputError, match="random_state"):
        sliced_wasserstein(np.eye(2), np.eye(2), random_state=-1)


def test_bad_ground_and_measures():
    with pytest.raises(InvalidInputError, match="needs coordinates"):
        sliced_wasserstein(hm.Graph.from_affinity(np.ones((2, 2))), np.eye(2))
    with pytest.raises(InvalidInputError, match="NaN"):
        sliced_wasserstein([[0.0], [np.nan]], np.eye(2))
    with pytest.raises(InvalidInputError, match="2-d"):
        sliced_wasserstein([0.0, 1.0], np.eye(2))
    with pytest.raises(InvalidInputError):
        sliced_wasserstein([[0.0], [1.0]], [[1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(InvalidInputError):
        sliced_wasserstein([[0.0], [1.0]], np.eye(3))
