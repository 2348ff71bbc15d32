"""Exact EMD and Sinkhorn against linear programs and dense iterations written out here."""

import sys

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

import heatmover as hm
from heatmover.errors import ConvergenceWarning, InvalidInputError, MissingExtraError
from heatmover.transport.baselines import exact_emd, mean_distance, sinkhorn

RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(12, 2))
MASSES = RNG.dirichlet(np.ones(12), size=4)


def program(a, b, costs):
    """The transport problem as a linear program, for SciPy's own solver."""
    n, m = costs.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    constraints = {"A_eq": np.vstack([rows, columns])[:-1], "b_eq": np.concatenate([a, b])[:-1]}
    return linprog(costs.ravel(), **constraints, method="highs").fun


def all_pairs(costs, masses=MASSES):
    return np.array([[program(a, b, costs) for b in masses] for a in masses])


def test_euclidean():
    np.testing.assert_allclose(exact_emd(POINTS, MASSES), all_pairs(cdist(POINTS, POINTS)), atol=1e-9)


@pytest.mark.parametrize(
    "cost",
    ["cityblock", lambda a, b: cdist(a, b, "cityblock"), cdist(POINTS, POINTS, "cityblock")],
    ids=["name", "function", "matrix"],
)
def test_any_cost(cost):
    expected = all_pairs(cdist(POINTS, POINTS, "cityblock"))
    np.testing.assert_allclose(exact_emd(POINTS, MASSES, cost=cost), expected, atol=1e-9)


def test_on_a_graph_mass_moves_along_shortest_paths():
    angles = np.linspace(0, 1.5 * np.pi, 40)
    arc = np.column_stack([np.cos(angles), np.sin(angles)])
    graph = hm.Graph.from_points(arc, n_neighbors=2)
    masses = np.random.default_rng(1).dirichlet(np.ones(40), size=3)
    chord = np.linalg.norm(arc[1] - arc[0])
    along = np.abs(np.subtract.outer(np.arange(40), np.arange(40))) * chord
    # The end points are joined with their second neighbor, which shortens some paths by a little.
    np.testing.assert_allclose(exact_emd(graph, masses), all_pairs(along, masses), rtol=0.01)
    assert exact_emd(graph, np.eye(40)[[0, 39]])[0, 1] > 1.9 * np.linalg.norm(arc[0] - arc[-1])


def test_paths_by_brute_force():
    points = np.random.default_rng(2).normal(size=(25, 2))
    graph = hm.Graph.from_points(points, n_neighbors=6)
    lengths = np.where(graph.affinity.toarray() > 0, cdist(points, points), np.inf)
    np.fill_diagonal(lengths, 0)
    for k in range(25):  # Floyd and Warshall
        lengths = np.minimum(lengths, lengths[:, k, None] + lengths[k])
    np.testing.assert_allclose(exact_emd(graph, np.eye(25)), lengths, rtol=1e-6)


def test_grids_have_lengths_too():
    graph = hm.Graph.from_grid((4, 5), spacing=2.0, reach=1)
    distances = exact_emd(graph, np.eye(20))
    assert distances[0, 4] == pytest.approx(8.0)
    assert distances[0, 6] == pytest.approx(2 * np.sqrt(2))


def test_copies_of_a_point_are_joined():
    points = np.array([[0.0], [0.0], [1.0], [2.0]])
    distances = exact_emd(hm.Graph.from_points(points, n_neighbors=2), np.eye(4))
    np.testing.assert_allclose(distances[0], [0, 0, 1, 2], atol=1e-6)


def test_dense_and_sparse_measures_agree_and_zeros_are_no_support():
    masses = np.where(MASSES > 0.05, MASSES, 0)
    masses /= masses.sum(axis=1, keepdims=True)
    stored = sp.csr_array(np.ones_like(masses))
    stored.data[:] = masses.ravel()
    np.testing.assert_allclose(exact_emd(POINTS, masses), exact_emd(POINTS, stored), rtol=1e-12)


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_threads_change_no_bit(n_jobs):
    assert np.array_equal(exact_emd(POINTS, MASSES, n_jobs=n_jobs), exact_emd(POINTS, MASSES))


def test_threads_import_nothing(monkeypatch):
    """POT's own check of masses would: numpy.testing, which a command loads late."""
    monkeypatch.delattr("numpy.testing.assert_almost_equal")
    np.testing.assert_allclose(exact_emd([[0.0], [3.0]], np.eye(2), n_jobs=2)[0, 1], 3.0)


def test_separate_components_are_refused():
    graph = hm.Graph.from_points(np.array([[0.0], [1.0], [100.0], [101.0]]), n_neighbors=1)
    with pytest.raises(InvalidInputError, match="one connected component of the graph, found two measures that"):
        exact_emd(graph, np.eye(4))


@pytest.mark.parametrize(
    ("ground", "cost", "message"),
    [
        (hm.Graph.from_affinity(np.ones((12, 12))), None, "a graph whose edges have lengths"),
        (hm.Graph.from_affinity(np.ones((12, 12))), "euclidean", r"points \(n_points, n_dimensions\), found a Graph"),
        (POINTS, "no such metric", "the name of a SciPy metric"),
        (POINTS, np.ones((3, 3)), r"costs of shape \(12, 12\), found shape \(3, 3\)"),
        (POINTS, -np.ones((12, 12)), "non-negative costs, found a smallest value of -1"),
        (POINTS, np.full((12, 12), np.nan), "cost without NaN"),
        (POINTS, lambda a, b: np.ones((1, 1)), "costs of shape"),
        (POINTS[:5], None, "measures over the graph's 5 points"),
        ([[np.nan]] * 12, None, "points without NaN"),
    ],
)
@pytest.mark.parametrize("method", [exact_emd, sinkhorn])
def test_unfit_ground_or_cost_is_refused(method, ground, cost, message):
    with pytest.raises(InvalidInputError, match=message):
        method(ground, MASSES, cost=cost)


@pytest.mark.parametrize("method", [exact_emd, sinkhorn])
def test_without_pot_the_extra_is_named(monkeypatch, method):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtraError, match=r"heatmover\[exact\]"):
        method(POINTS, MASSES)


def entropic(a, b, costs, weight):
    """Sinkhorn's iterations in plain numbers, run until nothing moves."""
    kernel = np.exp(-costs / weight)
    v = np.ones(len(b))
    for _ in range(20_000):
        u = a / (kernel @ v)
        v = b / (u @ kernel)
    return (u[:, None] * kernel * v * costs).sum()


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_sinkhorn_equals_plain_iterations(share):
    costs = cdist(POINTS, POINTS)
    weight = share * costs.sum() / (12 * 11)
    expected = [[entropic(a, b, costs, weight) * (i != j) for j, b in enumerate(MASSES)] for i, a in enumerate(MASSES)]
    found = sinkhorn(POINTS, MASSES, regularization=share, tol=1e-9, max_iterations=50_000)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sinkhorn_approaches_the_exact_distance_from_above():
    masses = np.zeros((4, 12))
    for row, start in enumerate([0, 3, 6, 9]):
        masses[row, start : start + 3] = 1 / 3
    exact = exact_emd(POINTS, masses)
    gaps = [sinkhorn(POINTS, masses, regularization=r, tol=1e-4, max_iterations=20_000) - exact for r in (0.3, 0.003)]
    assert min(gap.min() for gap in gaps) > -1e-3
    assert gaps[1].max() < 0.02 * exact.max() < gaps[0].max()


def test_sinkhorn_where_plain_numbers_underflow():
    points = np.vstack([np.zeros((5, 2)), np.full((5, 2), 1e4)]) + np.random.default_rng(3).normal(size=(10, 2))
    masses = np.zeros((2, 10))
    masses[0, :5] = masses[1, 5:] = 0.2
    found = sinkhorn(points, masses, regularization=1e-4, tol=1e-6, max_iterations=10_000)
    np.testing.assert_allclose(found, exact_emd(points, masses), rtol=1e-4)


def test_no_convergence_is_reported():
    solution = sinkhorn.solve(POINTS, MASSES, regularization=1e-3, max_iterations=1, tol=1e-6)
    assert not solution.converged[0, 1]
    assert solution.converged.diagonal().all()
    assert solution.marginal_errors[0, 1] > 1e-6
    assert np.isfinite(solution.distances).all()
    told = r"sinkhorn: 6 of 6 pairs did not converge: the marginal error is up to .* after 1 iteration \(tolerance"
    with pytest.warns(ConvergenceWarning, match=told):
        sinkhorn(POINTS, MASSES, regularization=1e-3, max_iterations=1, tol=1e-6)


def test_convergence_is_true():
    solution = sinkhorn.solve(POINTS, MASSES, tol=1e-4, regularization=0.1)
    assert solution.converged.all()
    assert solution.marginal_errors.max() <= 1e-4
    assert solution.n_iterations[0, 1] >= 1


def test_identical_points_cost_nothing():
    np.testing.assert_array_equal(sinkhorn(np.zeros((12, 2)), MASSES), np.zeros((4, 4)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regularization": 0}, "regularization to be a number in"),
        ({"tol": -1.0}, "tol to be a number in"),
        ({"max_iterations": 0}, "max_iterations to be a whole number of at least 1"),
    ],
)
def test_unfit_options_of_sinkhorn_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        sinkhorn(POINTS, MASSES, **options)


def test_means():
    expected = cdist(MASSES @ POINTS, MASSES @ POINTS)
    np.testing.assert_allclose(mean_distance(POINTS, MASSES), expected, atol=1e-12)
    np.testing.assert_allclose(mean_distance(POINTS, sp.csr_array(MASSES)), expected, atol=1e-12)
    assert (mean_distance(POINTS, MASSES) <= exact_emd(POINTS, MASSES) + 1e-12).all()


def test_means_need_coordinates():
    with pytest.raises(InvalidInputError, match="found a Graph; this method needs coordinates"):
        mean_distance(hm.Graph.from_points(POINTS, n_neighbors=3), MASSES)
