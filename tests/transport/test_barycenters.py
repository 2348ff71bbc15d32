"""Barycenters against a linear program, and their certificate."""

import numpy as np
import pytest
from scipy.optimize import linprog

import heatmover as hm
from heatmover.transport.barycenters import _Problem, barycenter


def small_model(**options):
    points = np.random.default_rng(0).normal(size=(25, 2))
    graph = hm.Graph.from_points(points, n_neighbors=6)
    return hm.DiffusionEMD(graph, max_scale=3, **{"dtype": "float64", **options}).fit()


def linear_program(model, rows, weights, allowed):
    """The smallest weighted mean distance, with one variable for every absolute value."""
    dense = model.transform(np.eye(rows.shape[1])).T.astype(np.float64)[:, allowed]
    n_features, n_points = dense.shape
    n_measures = len(rows)
    cost = np.concatenate([np.zeros(n_points), np.repeat(weights, n_features)])
    upper, bound = [], []
    for i, row in enumerate(rows):
        target = model.transform(row[None])[0].astype(np.float64)
        slack = np.zeros((n_features, n_measures * n_features))
        slack[:, i * n_features : (i + 1) * n_features] = np.eye(n_features)
        upper += [np.hstack([dense, -slack]), np.hstack([-dense, -slack])]
        bound += [target, -target]
    total = np.concatenate([np.ones(n_points), np.zeros(n_measures * n_features)])[None]
    return linprog(cost, np.vstack(upper), np.concatenate(bound), total, [1.0]).fun


@pytest.mark.parametrize("options", [{}, {"norm": "increments"}, {"density": "function"}, {"dtype": "float32"}])
def test_objective_and_bound_enclose_the_linear_program(options):
    model = small_model(**options)
    rows = np.random.default_rng(1).dirichlet(np.full(25, 0.2), 4)
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    best = linear_program(model, rows, weights, np.ones(25, dtype=bool))
    found = barycenter(model, rows, weights, tol=1e-3, n_iterations=5_000)
    assert found.converged
    assert found.lower_bound <= best * (1 + 1e-5)
    assert best * (1 - 1e-5) <= found.objective <= best * 1.001
    distances = np.abs(model.transform(rows) - model.transform(found.masses[None])).sum(axis=1)
    assert weights @ distances == pytest.approx(found.objective, rel=1e-5)


def test_a_support_is_kept():
    model = small_model()
    rows = np.random.default_rng(1).dirichlet(np.full(25, 0.2), 3)
    allowed = np.arange(25) % 3 == 0
    best = linear_program(model, rows, np.full(3, 1 / 3), allowed)
    found = barycenter(model, rows, support=allowed, tol=1e-3, n_iterations=5_000)
    assert not found.masses[~allowed].any()
    assert best * (1 - 1e-6) <= found.objective <= best * 1.001
    by_index = barycenter(model, rows, support=np.flatnonzero(allowed), tol=1e-3, n_iterations=5_000)
    np.testing.assert_array_equal(by_index.masses, found.masses)


def test_a_majority_is_its_own_barycenter():
    model = small_model()
    rows = np.random.default_rng(2).dirichlet(np.ones(25), 3)
    found = barycenter(model, rows, [0.6, 0.2, 0.2], tol=5e-3, n_iterations=5_000)
    assert np.abs(model.transform(found.masses[None]) - model.transform(rows[:1])).sum() < 0.05 * found.objective


def test_equal_measures_and_zero_weights():
    model = small_model(dtype="float32")
    rows = np.random.default_rng(3).dirichlet(np.ones(25), 2)
    for found in (barycenter(model, rows[[0, 0, 0]]), barycenter(model, rows, [1, 0])):
        assert found.converged
        assert found.n_iterations == 0
        np.testing.assert_allclose(found.masses, rows[0], atol=1e-12)
        assert found.objective < 1e-5


def test_history_improves_and_the_result_is_a_measure():
    rows = np.random.default_rng(1).dirichlet(np.full(25, 0.2), 5)
    found = barycenter(small_model(), rows, tol=1e-3, n_iterations=5_000)
    assert (np.diff(found.history[:, 0]) <= 0).all()
    assert (np.diff(found.history[:, 1]) >= 0).all()
    assert found.history[-1].tolist() == [found.objective, found.lower_bound]
    assert found.masses.min() >= 0
    assert found.masses.sum() == pytest.approx(1)
    assert "mean distance" in repr(found)
    with pytest.raises(ValueError, match="read-only"):
        found.masses[0] = 1


def test_too_few_steps_warn_and_still_bound():
    rows = np.random.default_rng(1).dirichlet(np.full(25, 0.2), 5)
    with pytest.warns(hm.ConvergenceWarning, match="after 3 steps"):
        found = barycenter(small_model(), rows, tol=1e-6, n_iterations=3)
    assert not found.converged
    assert found.n_iterations == 3
    assert 0 <= found.lower_bound <= found.objective


def test_the_dual_step_is_the_proximal_map():
    """By definition, over a fine grid: the step goes to v - length * argmin phi(a) + length / 2 (a - v / length)^2."""
    rng = np.random.default_rng(4)
    model = small_model()
    rows, shares = rng.dirichlet(np.ones(25), 3), np.array([0.5, 0.3, 0.2])
    problem = _Problem(model, model.graph_.gather(rows), shares, np.ones(25, dtype=bool))
    embedding = model.transform(rows)
    dual = rng.uniform(-1, 1, embedding.shape[1])
    features, length = embedding.mean(axis=0) + rng.normal(0, 0.02, dual.size), 20.0
    found = problem.dual_step(dual, features, length)
    grid = np.linspace(-0.5, 0.5, 20_001)[:, None]
    for j in range(0, dual.size, 7):
        v = dual[j] + length * features[j]
        values = np.abs(grid - embedding[:, j]) @ shares + length / 2 * (grid[:, 0] - v / length) ** 2
        assert found[j] == pytest.approx(v - length * grid[np.argmin(values), 0], abs=length * 1e-4)


BAD = {
    "weights": ({"weights": [1, 2]}, "one number for each measure"),
    "negative": ({"weights": [1, -1, 1]}, "non-negative"),
    "zero": ({"weights": [0, 0, 0]}, "not all zero"),
    "support": ({"support": [30]}, "indices below 25"),
    "empty": ({"support": np.zeros(25, dtype=bool)}, "at least one point"),
    "tol": ({"tol": 0}, "tol to be a number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    options, message = BAD[case]
    with pytest.raises(hm.InvalidInputError, match=message):
        barycenter(small_model(), np.full((3, 25), 1 / 25), **options)


def test_a_model_and_measures_of_its_width_are_needed():
    with pytest.raises(hm.InvalidInputError, match="a fitted DiffusionEMD"):
        barycenter("model", np.ones((1, 1)))
    with pytest.raises(hm.InvalidInputError, match="rows of width 2"):
        barycenter(small_model(), np.full((1, 2), 0.5))
