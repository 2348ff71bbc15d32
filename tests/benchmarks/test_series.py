"""The closed forms that benchmarks/paper measures the paper's theory with, against sums and integrals written out."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import eval_legendre, ive

import heatmover as hm

FOLDER = Path(__file__).parents[2] / "benchmarks" / "paper"
NAMES = ("manifolds", "series")


@pytest.fixture(scope="module")
def scripts():
    """The modules of the exhibits, which find each other by name; nothing of them stays behind."""
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not here")
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def series(scripts):
    return scripts["series"]


def wrapped(density, x, turns):
    """A density on the line, wrapped around the circle."""
    return sum(density(x + 2 * np.pi * turn) for turn in range(-turns, turns + 1))


def l1_of_two(density, distance, turns, n=20_000):
    x = 2 * np.pi * (np.arange(n) + 0.5) / n
    return np.abs(wrapped(density, x, turns) - wrapped(density, x - distance, turns)).sum() * 2 * np.pi / n


def gaussian(time):
    return lambda x: np.exp(-(x**2) / (4 * time)) / np.sqrt(4 * np.pi * time)


def cauchy(time):
    return lambda x: time / (np.pi * (time**2 + x**2))


@pytest.mark.parametrize("distance", [0.01, 0.4, 3.0])
def test_heat_of_two_points_on_a_line(series, distance):
    x = np.linspace(-30, 30, 600_001)
    expected = np.abs(gaussian(0.7)(x) - gaussian(0.7)(x - distance)).sum() * (x[1] - x[0])
    assert series.heat_levels_on_line(distance, 0.7) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("time", [1.0, 0.1, 2.0**-6 * 1.001, 2.0**-6, 0.001])
def test_heat_of_two_points_on_the_circle(series, time):
    distances = [0.02, 1.0, 3.0, np.pi]
    expected = [l1_of_two(gaussian(time), distance, 4) for distance in distances]
    np.testing.assert_allclose(series.heat_levels(time, distances), expected, rtol=1e-5)


def test_poisson_kernel_of_two_points_on_the_circle(series):
    distances = [0.05, 1.0, 3.0]
    # Tails beyond 200 turns are missing from the sum, alike for both points.
    expected = [l1_of_two(cauchy(0.2), distance, 200) for distance in distances]
    np.testing.assert_allclose(series.poisson_levels(0.2, distances), expected, rtol=1e-4)
    summed = series.circle_levels(np.exp(-0.2 * np.arange(400.0)), distances)
    np.testing.assert_allclose(series.poisson_levels(0.2, distances), summed, rtol=1e-12)


@pytest.mark.parametrize("angle", [0.1, 1.0, np.pi])
def test_heat_of_two_points_on_the_sphere(series, angle):
    time, degrees = 0.05, np.arange(40)
    multipliers = np.exp(-time * degrees * (degrees + 1))
    height, weight = np.polynomial.legendre.leggauss(300)
    around = 2 * np.pi * (np.arange(600) + 0.5) / 600
    # One point is the pole, the other lies at the angle.
    other = np.cos(angle) * height[:, None] + np.sin(angle) * np.sqrt(1 - height**2)[:, None] * np.cos(around)

    def heat(cosine):
        return sum((2 * d + 1) / (4 * np.pi) * multipliers[d] * eval_legendre(d, cosine) for d in degrees)

    expected = (np.abs(heat(height)[:, None] - heat(other)) * weight[:, None]).sum() * 2 * np.pi / 600
    assert series.sphere_levels(multipliers, angle) == pytest.approx(expected, rel=1e-4)


def test_the_walk_on_the_ring_has_ratios_of_bessel_functions(series):
    """The paper's matrix on many even points, Eq. 4 and 5, against the closed form."""
    n, epsilon = 400, 0.05
    angles = 2 * np.pi * np.arange(n) / n
    row = np.exp(-(2 - 2 * np.cos(angles)) / epsilon)
    expected = np.fft.rfft(row / row.sum()).real[:30]
    found = np.exp(series.log_bessel_ratio(np.arange(30.0), 0.0, 2 / epsilon))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-15)
    # One step is heat for time eps / 4.
    assert found[1] == pytest.approx(np.exp(-epsilon / 4), rel=2e-4)


def test_the_walk_on_the_sphere(series):
    concentration = 2 / 0.05
    expected = 1 / np.tanh(concentration) - 1 / concentration
    found = series.Sphere(50).walk(0.05)(0.05 / 4)
    assert found[1] == pytest.approx(expected, rel=1e-10)
    assert found[1] == pytest.approx(np.exp(-2 * 0.05 / 4), rel=1e-3)


def test_bessel_ratios_where_they_underflow(series):
    orders = np.array([1990.0, 2010.0, 2500.0])
    expected = np.log(ive(orders, 2e4) / ive(0, 2e4))
    np.testing.assert_allclose(series.log_bessel_ratio(orders, 0.0, 2e4), expected, rtol=1e-9)
    # I_(v-1) - I_(v+1) = (2 v / x) I_v, far below what float64 holds.
    below, at, above = series.log_bessel_ratio(np.array([999.0, 1000.0, 1001.0]), 0.0, 8.0)
    assert at < -1000
    assert np.exp(below - at) - np.exp(above - at) == pytest.approx(2 * 1000 / 8, rel=1e-3)


@pytest.fixture(scope="module", params=["ring", "torus", "sphere"])
def space(request, series):
    return {"ring": series.Torus(1, 16), "torus": series.Torus(2, 6), "sphere": series.Sphere(30)}[request.param]


def test_levels_of_point_masses_are_the_ground_distance(series, space):
    levels = series.norm_terms(space, np.eye(space.n), space.heat)["levels"]
    ground = series.ground_distances(space, space.heat)
    assert levels.scales.shape == ground.scales.shape == (space.terms, space.n, space.n)
    np.testing.assert_allclose(levels.scales, ground.scales, atol=0.02)
    np.testing.assert_allclose(ground.scales[-1][~np.eye(space.n, dtype=bool)], 2, atol=0.02)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.45])
def test_theorem_2_on_a_small_scale(series, space, alpha):
    pytest.importorskip("ot")
    from heatmover.transport.exact import exact_distances

    rng = np.random.default_rng(0)
    rows = np.vstack([np.eye(space.n)[:4], rng.dirichlet(np.full(space.n, 0.2), 6)])
    ground = series.ground_distances(space, space.heat).total(alpha)
    truth = exact_distances(sp.csr_array(rows), lambda i, j: ground[np.ix_(i, j)], n_threads=1)
    terms = series.norm_terms(space, rows, space.heat)
    upper = np.triu_indices(len(rows), 1)
    ratio = {norm: truth[upper] / found.total(alpha)[upper] for norm, found in terms.items()}
    assert ratio["levels"].min() > 0.99  # never above W, by the triangle inequality
    assert ratio["levels"].max() < 2.5
    for norm in ("increments", "coarsest"):
        assert 0.5 < ratio[norm].min() < ratio[norm].max() < 5


def test_the_last_term_repeats_for_ever(series):
    terms = series.Terms(np.ones((2, 2)), np.full((5, 2, 2), 3.0))
    weights = 2.0 ** (-0.3 * np.arange(2000))
    np.testing.assert_allclose(terms.total(0.3), 1 + 3 * weights.sum())
    np.testing.assert_allclose(terms.total(0.3, 4), 1 + 3 * weights[:4].sum())


def w_on_line(series, distance, scales, alpha):
    return sum(2.0 ** (alpha * k) * series.heat_levels_on_line(distance, 2.0**k) for k in scales)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 1.0])
def test_local_exponent_is_the_slope(series, alpha):
    scales, distance, step = np.arange(-6, 9.0), 2.3, 1e-5
    low, high = (w_on_line(series, distance * np.exp(s), scales, alpha) for s in (-step, step))
    found = series.heat_exponent(distance, 2.0**scales, 2.0 ** (alpha * scales))
    assert found[0] == pytest.approx(np.log(high / low) / (2 * step), rel=1e-6)
    assert 0 < found[0] < 1


def test_the_exponent_tends_to_twice_alpha_and_to_no_more_than_one(series):
    scales, places = np.arange(-300, 301.0), np.geomspace(0.5, 8, 9)

    def exponents(alpha):
        return series.heat_exponent(places, 2.0**scales, 2.0 ** (alpha * scales))

    for alpha in (0.1, 0.2, 0.3, 0.4):
        np.testing.assert_allclose(exponents(alpha), 2 * alpha, atol=1e-3)
        # Twice the time is sqrt(2) times the distance.
        assert w_on_line(series, np.sqrt(2), scales, alpha) == pytest.approx(
            2**alpha * w_on_line(series, 1, scales, alpha)
        )
    for alpha in (0.75, 1.0):
        np.testing.assert_allclose(exponents(alpha), 1, atol=1e-6)
    # At 1/2 the approach is logarithmic: 1 - 1 / log(reach / d), here with 300 coarser scales, half of log 2 each.
    np.testing.assert_allclose(1 - exponents(0.5), 2 / (300 * np.log(2)), rtol=0.1)


def test_length_of_a_step_is_in_the_order_of_the_points(scripts):
    n = 300
    angles = 2 * np.pi * np.random.default_rng(0).permutation(n) / n
    points = np.column_stack([np.cos(angles), np.sin(angles)])
    graph = hm.Graph.from_points(points, n_neighbors=8)
    row = graph.affinity[[0]].toarray()[0]
    expected = row @ ((points - points[0]) ** 2).sum(axis=1) / row.sum()
    assert scripts["manifolds"].mean_square_step(points, graph) == pytest.approx(expected, rel=1e-6)
