"""Every dataset through one table of properties, then the closed forms of each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover import datasets
from heatmover.datasets import cohort, gaussians, line, ring, s_curve, sphere, star, swiss_roll, torus
from heatmover.errors import InvalidInputError

# A small version of each, and the dimensions it needs.
SMALL = {
    "line": (partial(line, 5, points_per_measure=6), 1),
    "ring": (partial(ring, 5, points_per_measure=6), 2),
    "swiss_roll": (partial(swiss_roll, 5, points_per_measure=6), 3),
    "s_curve": (partial(s_curve, 5, points_per_measure=6), 3),
    "sphere": (partial(sphere, 5, points_per_measure=6), 3),
    "torus": (partial(torus, 5, points_per_measure=6), 4),
    "gaussians": (partial(gaussians, 5, points_per_measure=6), 5),
    "star": (partial(star, 5, points_per_measure=6), 2),
    "cohort": (partial(cohort, 5, cells_per_sample=6, noise=0), 3),
}
MANIFOLDS = sorted(SMALL.keys() - {"cohort"})


@pytest.fixture(params=SMALL)
def small(request):
    return SMALL[request.param]


def geodesics(data):
    every = np.arange(len(data.points))
    return data.geodesic(every, every)


def test_the_table_is_complete():
    assert set(SMALL) | {"Dataset", "Effect"} == set(datasets.__all__)


def check_metric(data):
    truth = geodesics(data)
    assert (truth >= 0).all()
    assert (truth.diagonal() == 0).all()
    np.testing.assert_allclose(truth, truth.T, rtol=1e-13)
    detours = (truth[:, :, None] + truth[None, :, :]).min(axis=1)
    assert (truth <= detours * (1 + 1e-12) + 1e-12).all()


def check_not_shorter_than_a_straight_line(data):
    chords = cdist(data.points, data.points)
    assert (chords <= geodesics(data) * (1 + 1e-9) + 1e-7).all()


@pytest.mark.parametrize("name", MANIFOLDS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0, 5))
def test_the_truth_is_a_metric_and_no_shortcut(name, seed, spread):
    data = SMALL[name][0](random_state=seed, spread=spread)
    check_metric(data)
    check_not_shorter_than_a_straight_line(data)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n_branches=st.integers(3, 15))
def test_the_truth_of_the_cohort_is_a_metric_and_no_shortcut(seed, n_branches):
    data = SMALL["cohort"][0](random_state=seed, n_branches=n_branches)
    check_metric(data)
    check_not_shorter_than_a_straight_line(data)


def test_rotation_keeps_distances(small):
    make, own = small
    plain, rotated = make(n_dimensions=own), make(n_dimensions=own + 7)
    assert plain.points.shape == (30, own)
    assert rotated.points.shape == (30, own + 7)
    np.testing.assert_array_equal(plain.coordinates, rotated.coordinates)
    np.testing.assert_allclose(cdist(rotated.points, rotated.points), cdist(plain.points, plain.points), atol=1e-6)
    # Really rotated, not padded with zeros.
    assert np.abs(rotated.points).max(axis=0).min() > 1e-3


def test_noise_moves_points_and_not_the_truth(small):
    make, own = small
    clean, noisy = make(n_dimensions=own + 20, noise=0), make(n_dimensions=own + 20, noise=0.01)
    np.testing.assert_array_equal(clean.coordinates, noisy.coordinates)
    shift = noisy.points - clean.points
    # More than 600 numbers: their standard deviation is known to 3%.
    assert shift.std() == pytest.approx(0.01, rel=0.15)
    assert abs(shift.mean()) < 0.002


def test_same_seed_same_bits(small):
    make, _ = small
    a, b = make(random_state=3), make(random_state=np.random.default_rng(3))
    for field in ("points", "labels", "coordinates"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    assert (make(random_state=4).coordinates != a.coordinates).any()
    assert (make(random_state=None).coordinates != make(random_state=None).coordinates).any()


def test_a_generator_is_used_up(small):
    make, _ = small
    rng = np.random.default_rng(3)
    assert (make(random_state=rng).coordinates != make(random_state=rng).coordinates).any()


def test_the_default_size():
    assert line().points.shape == (6000, 1)
    assert swiss_roll().points.shape == (10_000, 10)
    assert cohort().measures().shape == (30, 6000)
    np.testing.assert_array_equal(ring().labels, np.repeat(np.arange(60), 100))


@pytest.mark.parametrize("name", MANIFOLDS)
def test_points_without_spread_sit_on_their_center(name):
    data = SMALL[name][0](spread=0)
    np.testing.assert_allclose(data.coordinates, data.annotations["center"][data.labels], atol=1e-15)


# A geodesic whose curvature in space is at most kappa spans a straight line of at least d - kappa^2 d^3 / 24. The
# spiral's curvature at the angle t, (t^2 + 2) / (t^2 + 1)^1.5, is at most 2.
@pytest.mark.parametrize(
    ("make", "kappa"),
    [
        (line, 0),
        (gaussians, 0),
        (ring, 1),
        (s_curve, 1),
        (sphere, 1),
        (torus, 1),
        (swiss_roll, 2),
        (partial(swiss_roll, spread=5.0), 2),
        (partial(s_curve, spread=3.0), 1),
    ],
)
def test_near_points_are_as_far_in_space_as_on_the_manifold(make, kappa):
    data = make(4, points_per_measure=150)
    truth, chords = geodesics(data), cdist(data.points, data.points)
    near = (truth > 0) & (truth < 1)
    assert near.sum() > 500
    d = truth[near]
    assert (chords[near] >= d - kappa**2 * d**3 / 24 - 1e-7).all()


def test_ring_wraps():
    truth = ring(2, points_per_measure=2).ground_distance
    angles = np.array([[0.0], [0.1], [np.pi], [2 * np.pi - 0.1]])
    expected = [[0, 0.1, np.pi, 0.1], [0.1, 0, np.pi - 0.1, 0.2]]
    np.testing.assert_allclose(truth(angles[:2], angles), expected, atol=1e-14)


def test_torus_wraps_both_ways():
    truth = torus(2, points_per_measure=2).ground_distance
    a = np.array([[0.1, 0.2]])
    b = np.array([[2 * np.pi - 0.2, 0.2], [0.1, 2 * np.pi - 0.2], [2 * np.pi - 0.2, 2 * np.pi - 0.2]])
    np.testing.assert_allclose(truth(a, b), [[0.3, 0.4, 0.5]], atol=1e-14)
    farthest = truth(np.zeros((1, 2)), np.full((1, 2), np.pi))
    assert farthest.item() == pytest.approx(np.pi * np.sqrt(2))


@pytest.mark.parametrize("angle", [1e-9, 1e-4, 0.5, np.pi / 2, 2.0, 3.0, np.pi - 1e-6, np.pi])
def test_sphere_measures_every_angle(angle):
    truth = sphere(2, points_per_measure=2).ground_distance
    a, b = np.array([[1.0, 0.0, 0.0]]), np.array([[np.cos(angle), np.sin(angle), 0.0]])
    assert truth(a, b).item() == pytest.approx(angle, rel=1e-12)


def test_sphere_points_are_on_the_sphere():
    data = sphere(3, points_per_measure=20)
    np.testing.assert_allclose(np.linalg.norm(data.points, axis=1), 1)


def test_swiss_roll_unrolls_by_arc_length():
    data = swiss_roll(4, points_per_measure=50, n_dimensions=3)
    x, height, z = data.points.T
    np.testing.assert_array_equal(height, data.coordinates[:, 1])
    # The length of the spiral up to each point's radius, as a sum of short straight pieces.
    radius = np.hypot(x, z)
    t = np.linspace(0, radius.max(), 200_001)
    pieces = np.hypot(np.diff(t * np.cos(t)), np.diff(t * np.sin(t)))
    length = np.interp(radius, t, np.append(0, np.cumsum(pieces)))
    np.testing.assert_allclose(data.coordinates[:, 0], length, rtol=1e-6)


def test_swiss_roll_and_s_curve_never_cross_themselves():
    assert swiss_roll(20, spread=10).coordinates[:, 0].min() >= 0
    assert np.abs(s_curve(20, spread=10).coordinates[:, 0]).max() <= 2 * np.pi


def test_s_curve_is_two_circles_that_turn_opposite_ways():
    data = s_curve(20, points_per_measure=20)
    x, _, z = data.points.T
    arc = data.coordinates[:, 0]
    np.testing.assert_allclose(np.hypot(x, z + np.sign(arc)), 1)
    assert (z * arc <= 0).all()
    assert (arc > 4).any()
    assert (arc < -4).any()


def test_star_goes_through_the_center():
    truth = star(2, points_per_measure=2).ground_distance
    here = np.array([[2.0, 0.5]])
    np.testing.assert_allclose(truth(here, np.array([[2, 0.2], [2, 0.9], [3, 0.2], [0, 0.0]])), [[0.3, 0.4, 0.7, 0.5]])


def test_star_passes_on_to_every_other_arm():
    data = star(1, points_per_measure=2000, spread=1.0, n_arms=6)
    arms, counts = np.unique(data.coordinates[:, 0], return_counts=True)
    home = int(data.annotations["center"][0, 0])
    np.testing.assert_array_equal(arms, np.arange(6))
    assert counts.argmax() == home
    others = np.delete(counts, home)
    passing = scipy.stats.norm.cdf(-data.annotations["center"][0, 1])
    assert others.sum() / 2000 == pytest.approx(passing, abs=5 * np.sqrt(passing * (1 - passing) / 2000))
    # Equal shares, within five standard deviations of a multinomial count.
    assert (np.abs(others - others.mean()) < 5 * np.sqrt(others.mean())).all()


def test_gaussians_have_their_mean_and_spread():
    data = gaussians(3, points_per_measure=4000, spread=0.7, n_coordinates=4, n_dimensions=6)
    for measure, center in enumerate(data.annotations["center"]):
        cloud = data.coordinates[data.labels == measure]
        np.testing.assert_allclose(cloud.mean(axis=0), center, atol=5 * 0.7 / np.sqrt(4000))
        np.testing.assert_allclose(cloud.std(axis=0), 0.7, rtol=0.06)
    assert data.points.shape[1] == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_measures": 0}, "n_measures to be a whole number of at least 1, found 0"),
        ({"n_measures": 2.5}, "n_measures to be a whole number"),
        ({"points_per_measure": 0}, "points_per_measure to be a whole number of at least 1"),
        ({"spread": -1}, "spread to be a finite number of at least 0, found -1"),
        ({"spread": np.nan}, "spread to be a finite number"),
        ({"spread": True}, "spread to be a finite number"),
        ({"spread": "wide"}, "spread to be a finite number"),
        ({"noise": -0.1}, "noise to be a finite number of at least 0"),
        ({"noise": np.inf}, "noise to be a finite number"),
        ({"n_dimensions": 0}, "n_dimensions to be a whole number of at least"),
        ({"random_state": -1}, "random_state to be a non-negative integer, .*found -1"),
        ({"random_state": "seed"}, "random_state"),
        ({"random_state": 1.5}, "random_state"),
    ],
)
@pytest.mark.parametrize("make", [line, ring, swiss_roll, s_curve, sphere, torus, gaussians, star])
def test_bad_options(make, options, message):
    with pytest.raises(InvalidInputError, match=message):
        make(**options)


@pytest.mark.parametrize("name", SMALL)
def test_too_few_dimensions(name):
    make, own = SMALL[name]
    with pytest.raises(InvalidInputError, match=f"n_dimensions to be a whole number of at least {own}"):
        make(n_dimensions=own - 1)


def test_bad_options_of_one_dataset():
    with pytest.raises(InvalidInputError, match="n_arms to be a whole number of at least 2"):
        star(n_arms=1)
    with pytest.raises(InvalidInputError, match="n_coordinates to be a whole number of at least 1"):
        gaussians(n_coordinates=0)


def test_points_that_overflow_are_refused():
    with np.errstate(over="ignore"), pytest.raises(InvalidInputError, match="without NaN or infinity"):
        line(spread=1e308)
