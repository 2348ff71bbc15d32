"""The smallest and largest ratios of Theorem 2, the dual norm and the limits of heat, against plain computations."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.optimize import linprog

import heatmover as hm

pytest.importorskip("ot")


@pytest.fixture
def extremes(script):
    return script("extremes")


@pytest.fixture
def ring(script):
    """Sixteen atoms: D_alpha, and the matrix whose product with a measure has the norm of Eq. 9."""
    series, extremes = script("series"), script("extremes")
    space = series.Torus(1, 16)
    costs = series.ground_distances(space, space.heat).total(0.3)
    return space, costs, extremes.parts(space, "increments", 0.3)


def plan_cost(g, costs):
    """Optimal transport by a plain linear program over all plans."""
    n = len(g)
    rows = np.kron(np.eye(n), np.ones(n))
    columns = np.kron(np.ones(n), np.eye(n))
    found = linprog(
        costs.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.r_[np.maximum(g, 0), np.maximum(-g, 0)], method="highs"
    )
    return found.fun


def heat_on_grid(g, time, fine=64):
    """Values of heat from atoms on a fine grid by a sum of Gaussian images, with the size of a cell."""
    n = len(g)
    places = 2 * np.pi * np.arange(n * fine) / (n * fine)
    away = places[:, None] - 2 * np.pi * np.arange(n) / n
    images = sum(np.exp(-((away + 2 * np.pi * turn) ** 2) / (4 * time)) for turn in range(-4, 5))
    return images @ g / np.sqrt(4 * np.pi * time) * 2 * np.pi / (n * fine)


@pytest.mark.parametrize("norm", ["increments", "coarsest", "levels"])
def test_the_matrix_has_the_norm_of_the_definition(script, extremes, norm):
    space, alpha = script("series").Torus(1, 8), 0.3
    g = np.random.default_rng(0).standard_normal(8)
    g -= g.mean()
    heat = [heat_on_grid(g, 2.0**-k) for k in range(space.terms + 1)]
    terms = {
        "increments": [b - a for a, b in pairwise(heat)],
        "coarsest": [a - heat[0] for a in heat[:-1]],
        "levels": heat[:-1],
    }[norm]
    weights = 2.0 ** (-alpha * np.arange(len(terms)))
    weights[-1] /= 1 - 2.0**-alpha
    expected = sum(weight * np.abs(term).sum() for weight, term in zip(weights, terms, strict=True))
    expected += 0 if norm == "levels" else np.abs(heat[0]).sum()
    assert np.abs(extremes.parts(space, norm, alpha) @ g).sum() == pytest.approx(expected, rel=5e-3)


def test_transport_has_the_cost_and_a_potential(ring, extremes):
    _, costs, _ = ring
    g = np.random.default_rng(1).standard_normal(len(costs))
    g -= g.mean()
    value, potential = extremes.transport(g, costs)
    assert value == pytest.approx(plan_cost(g, costs))
    assert potential @ g == pytest.approx(value)
    assert (np.abs(potential[:, None] - potential) <= costs + 1e-9).all()


def test_no_measure_is_below_the_smallest_ratio_and_two_points_attain_it(ring, extremes):
    space, costs, matrix = ring
    low = extremes.smallest(matrix, costs)
    points = [
        extremes.ratio(np.eye(space.n)[i] - np.eye(space.n)[j], matrix, costs) for i, j in combinations(range(16), 2)
    ]
    assert low == pytest.approx(min(points))
    drawn = np.random.default_rng(2).dirichlet(np.full(space.n, 0.3), (60, 2))
    assert min(extremes.ratio(a - b, matrix, costs) for a, b in drawn) > low


def test_the_climb_never_falls_and_its_end_has_its_ratio(ring, extremes):
    space, costs, matrix = ring
    rng = np.random.default_rng(3)
    for _ in range(5):
        g = rng.standard_normal(space.n)
        g -= g.mean()
        before = extremes.ratio(g, matrix, costs)
        after, end = extremes.ascend(g, matrix, costs)
        assert after > 1.05 * before  # noise is never the end
        assert extremes.ratio(end, matrix, costs) == pytest.approx(after, rel=1e-6)
    high, _, of_waves = extremes.largest(matrix, costs, np.zeros((0, space.n)), rng)
    assert high >= of_waves * (1 - 1e-9)
    drawn = rng.dirichlet(np.full(space.n, 0.3), (60, 2))
    assert max(extremes.ratio(a - b, matrix, costs) for a, b in drawn) < high


@pytest.mark.parametrize(("alpha", "frequency"), [(0.1, 1), (0.3, 2), (0.45, 3)])
def test_waves_have_their_closed_form(extremes, alpha, frequency):
    n = 240
    x = 2 * np.pi * (np.arange(n) + 0.5) / n
    away = np.abs(x[:, None] - x)
    distances = np.minimum(away, 2 * np.pi - away)
    costs = np.zeros((n, n))
    costs[distances > 0] = extremes.ground(alpha, distances[distances > 0])
    wave = np.cos(frequency * x)
    carried, _ = extremes.transport(wave * 2 * np.pi / n, costs)
    assert extremes.wave_transport(frequency, alpha) == pytest.approx(carried, rel=5e-3)

    def heat(time):
        return np.exp(-time * frequency**2) * wave

    norm = np.abs(heat(1.0)).sum() + sum(
        2.0 ** (-k * alpha) * np.abs(heat(2.0 ** -(k + 1)) - heat(2.0**-k)).sum() for k in range(60)
    )
    expected = carried / (norm * 2 * np.pi / n)
    assert extremes.wave_ratio("increments", alpha, frequency) == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("norm", ["increments", "coarsest", "levels"])
def test_waves_tend_to_their_limit(extremes, norm):
    fine = max(extremes.wave_ratio(norm, 0.3, 2.0 ** (18 + i / 16)) for i in range(8))
    assert extremes.wave_limit(norm, 0.3) == pytest.approx(fine, rel=5e-3)


def test_two_points_on_the_circle_have_the_ratio_of_a_fine_grid(extremes):
    distance, alpha, n = 0.5, 0.45, 2**13
    x = 2 * np.pi * np.arange(n) / n

    def heat(time):
        shift = np.round(distance * n / (2 * np.pi)) * 2 * np.pi / n
        bells = [
            sum(np.exp(-((x - place + 2 * np.pi * turn) ** 2) / (4 * time)) for turn in range(-4, 5))
            for place in (0, shift)
        ]
        return (bells[0] - bells[1]) / np.sqrt(4 * np.pi * time) * 2 * np.pi / n

    terms = 14  # beyond, the points have parted, and every term is the last one again
    powers = [heat(2.0**-k) for k in range(terms + 1)]
    weights = 2.0 ** (-alpha * np.arange(terms))
    weights[-1] /= 1 - 2.0**-alpha
    norm = np.abs(powers[0]).sum() + weights @ [np.abs(b - a).sum() for a, b in pairwise(powers)]
    ground = weights @ [np.abs(power).sum() for power in powers[:-1]]
    assert extremes.points_ratio(alpha, distance) == pytest.approx(ground / norm, rel=2e-3)
    assert extremes.points_limit(alpha) <= extremes.points_ratio(alpha, distance)
    assert extremes.points_limit(0.1) == pytest.approx(extremes.points_ratio(0.1, 1e-9), rel=2e-3)


def test_no_density_is_above_the_certified_bound(extremes):
    alpha, degree, n = 0.3, 3, 96
    x = 2 * np.pi * np.arange(n) / n
    distances = np.minimum(x, 2 * np.pi - x)
    table = np.append(0, extremes.ground(alpha, distances[1:]))
    costs = table[(np.arange(n)[:, None] - np.arange(n)) % n]
    bound = extremes.certified("increments", alpha, degree)
    j = np.arange(1, degree + 1)
    symbols = extremes.symbols("increments", alpha, j)
    rng = np.random.default_rng(4)
    for coefficients in [*np.eye(2 * degree), *rng.standard_normal((20, 2 * degree))]:
        a, b = np.split(coefficients, 2)
        terms = (symbols * a) @ np.cos(j[:, None] * x) + (symbols * b) @ np.sin(j[:, None] * x)
        g = a @ np.cos(j[:, None] * x) + b @ np.sin(j[:, None] * x)
        assert extremes.transport(g - g.mean(), costs)[0] / np.abs(terms).sum() < bound
    assert bound < 2 * extremes.wave_ratio("increments", alpha, degree)


def test_the_dual_norm_of_two_points(script):
    dual = script("dual_norm")
    rng = np.random.default_rng(5)
    points = rng.uniform(size=(9, 2))
    costs = 6 * np.linalg.norm(points[:, None] - points, axis=2) ** 0.6
    two = np.eye(9)[2] - np.eye(9)[7]
    assert dual.dual_norm(two, costs) == pytest.approx(costs[2, 7] / (1 + costs[2, 7] / 2))
    weights = rng.dirichlet(np.ones(9), 2)
    measure = weights[0] - weights[1]
    exact = plan_cost(measure, costs)
    assert dual.dual_norm(measure, costs, bounded=False) == pytest.approx(exact)
    value = dual.dual_norm(measure, costs)
    assert exact / (1 + costs.max() / 2) <= value < 0.9 * exact
    # No function of norm 1 gives more.
    for f in rng.uniform(-1, 1, (200, 9)):
        off = ~np.eye(9, dtype=bool)
        norm = np.abs(f).max() + (np.abs(f[:, None] - f)[off] / costs[off]).max()
        assert f @ measure / norm <= value + 1e-9


def test_the_norms_on_a_graph_are_those_of_the_definition(script):
    dual = script("dual_norm")
    graph = hm.Graph.from_points(np.linspace(0, 1, 10)[:, None] ** 1.5, n_neighbors=3)
    space = dual.graph_space("graph", graph, 0.3)
    affinity = graph.affinity.toarray()
    laplacian = np.eye(10) - affinity / affinity.sum(axis=1, keepdims=True)
    scale = 1 / sorted(np.linalg.eigvals(laplacian).real)[1]
    heat = [expm(-(2.0**-k) * scale * laplacian) for k in range(90)]
    expected = sum(2.0 ** (-0.3 * k) * np.abs(heat[k][3] - heat[k][8]).sum() for k in range(90))
    assert space.costs[3, 8] == pytest.approx(expected, rel=1e-5)
    measure = np.eye(10)[3] - np.eye(10)[8]
    first = np.abs(heat[0].T @ measure).sum() + sum(
        2.0 ** (-0.3 * k) * np.abs((heat[k + 1] - heat[k]).T @ measure).sum() for k in range(89)
    )
    assert np.abs(space.first @ measure).sum() == pytest.approx(first, rel=1e-5)
    second = np.abs(heat[0].T @ measure).sum() + sum(
        2.0 ** (-0.3 * k) * np.abs((heat[k] - heat[0]).T @ measure).sum() for k in range(90)
    )
    assert np.abs(space.second @ measure).sum() == pytest.approx(second, rel=1e-5)


def test_logarithms_of_heat_are_those_of_the_series_and_of_varadhan(script):
    limits = script("limits_of_theory")
    distances = np.array([0.1, 1.0, 3.0, np.pi])
    np.testing.assert_allclose(np.exp(limits.log_heat(distances, 0.2)), limits.heat_series(distances, 0.2), rtol=1e-8)
    # One image at a short time: -d^2 / 4t - log(4 pi t) / 2.
    found = limits.log_heat(np.array([0.5]), 1e-4)[0]
    assert found == pytest.approx(-(0.5**2) / 4e-4 - np.log(4e-4 * np.pi) / 2)
    errors = [abs(limits.varadhan(1.0, 2.0**-k) - 1) for k in (6, 10, 14, 18)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2e-4


def test_errors_of_powers_of_the_walk(script):
    """The paper's matrix on many even points to an integer power, against heat on the same points."""
    limits = script("limits_of_theory")
    n, epsilon, time = 512, 2.0**-4, 0.25
    angles = 2 * np.pi * np.arange(n) / n
    row = np.exp(-(2 - 2 * np.cos(angles)) / epsilon)
    walk = np.array([np.roll(row / row.sum(), i) for i in range(n)])
    power = np.linalg.matrix_power(walk, 16)  # 4 t / eps
    heat = sum(np.exp(-((angles + 2 * np.pi * turn) ** 2) / (4 * time)) for turn in range(-3, 4))
    heat *= 2 * np.pi / n / np.sqrt(4 * np.pi * time)
    multiplier, kernel = limits.step_errors(epsilon, time, 16)
    assert kernel == pytest.approx(np.abs(power[0] - heat).sum(), rel=1e-3)
    spectrum = np.fft.rfft(power[0] - heat)
    assert multiplier == pytest.approx(np.abs(spectrum).max(), rel=1e-3)


def test_two_thresholds_differ_by_one_scale():
    """The rank for 1e-6 is that for 1e-3 one scale finer, by all eigenvalues of a small sphere."""
    height = 1 - (2 * np.arange(300) + 1) / 300
    turn, radius = np.pi * (1 + np.sqrt(5)) * np.arange(300), np.sqrt(1 - height**2)
    affinity = hm.Graph.from_points(np.c_[radius * np.cos(turn), radius * np.sin(turn), height]).affinity.toarray()
    degree = np.sqrt(affinity.sum(axis=1))
    values = np.abs(np.linalg.eigvalsh(affinity / degree[:, None] / degree))
    ranks = {delta: [int((values ** (2.0**k) >= delta).sum()) for k in range(10)] for delta in (1e-6, 1e-3)}
    assert ranks[1e-6][1:] == ranks[1e-3][:-1]
    assert ranks[1e-6][5] > ranks[1e-3][5] > 1
