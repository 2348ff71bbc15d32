"""Convolutional Sinkhorn against a dense one in the log domain, on either way to it."""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.diffusion.operator import DiffusionOperator
from heatmover.errors import ConvergenceWarning, InvalidInputError
from heatmover.graphs import Graph

PAPER = Path(__file__).resolve().parents[2] / "benchmarks" / "paper"
if not PAPER.exists():
    pytest.skip("the benchmarks are not here", allow_module_level=True)
sys.path.append(str(PAPER))
import convolutional as module  # noqa: E402
from convolutional import (  # noqa: E402
    HeatKernel,
    Limits,
    Walk,
    balance_explicitly,
    balance_implicitly,
    convolutional_sinkhorn,
    enough_steps,
)


def line(n=40, weight=0.5):
    return np.eye(n) + weight * (np.eye(n, k=1) + np.eye(n, k=-1))


def ring(n=30):
    return np.eye(n) + 0.7 * (np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1))


def cloud(n=60):
    return Graph.from_points(np.random.default_rng(1).normal(size=(n, 2)), n_neighbors=6).affinity.toarray()


GRAPHS = {"line": line(), "ring": ring(), "cloud": cloud(), "two components": np.kron(np.eye(2), line(20))}
# Forty hops make 1e-480, sixty 1e-720, which is out of range even for heat that starts at 1e270.
FAINT = {"potentials too wide": (line(40, 1e-12), 41), "kernel underflows": (line(60, 1e-12), 60)}


def some_measures(n_points, n_measures=4, seed=0, support=5):
    """Sparse measures with half of the mass in each half of the points."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((n_measures, n_points))
    for row in rows:
        for half in (np.arange(n_points // 2), np.arange(n_points // 2, n_points)):
            where = rng.choice(half, size=support, replace=False)
            row[where] = rng.random(support)
            row[where] /= 2 * row[where].sum()
    return rows


def affinity_of(name):
    return GRAPHS[name] if name in GRAPHS else FAINT[name][0]


def measures_of(name):
    n_points = len(affinity_of(name))
    if name in GRAPHS:
        return some_measures(n_points)
    measures = np.zeros((4, n_points))
    measures[0, 0] = measures[1, -1] = 1
    measures[2, [0, -1]] = measures[3, [n_points // 2, -1]] = 0.25, 0.75
    return measures


def log_sum(values, axis):
    largest = values.max(axis=axis, keepdims=True)
    shifted = np.exp(values - np.where(np.isfinite(largest), largest, 0))
    with np.errstate(divide="ignore"):
        return np.log(shifted.sum(axis=axis)) + np.squeeze(largest, axis)


@cache
def log_kernel_of(name, steps):
    return dense_log_kernel(affinity_of(name), steps)


def dense_log_kernel(affinity, steps):
    """Logarithm of P^t diag(1 / pi), by products in the log domain."""
    q = affinity.sum(axis=1)
    normed = affinity / np.outer(q, q)
    degree = normed.sum(axis=1)
    with np.errstate(divide="ignore"):
        log_walk = np.log(normed / degree[:, None])
        power = np.log(np.eye(len(affinity)))
    for _ in range(steps):
        power = log_sum(power[:, :, None] + log_walk[None], axis=1)
    return power - np.log(degree / degree.sum()), np.log(degree / degree.sum())


def dense_sinkhorn(log_kernel, log_area, mu, nu, n_iterations):
    """Divergence and potentials after so many iterations, only on the supports."""
    here, there = np.flatnonzero(mu), np.flatnonzero(nu)
    kernel, mu, nu = log_kernel[np.ix_(here, there)], mu[here], nu[there]
    f = np.log(mu)
    for _ in range(n_iterations):
        g = np.log(nu) - log_sum(kernel + f[:, None], axis=0)
        error = np.abs(np.exp(f[:, None] + kernel + g).sum(axis=1) - mu).sum()
        before, f = f, np.log(mu) - log_sum(kernel + g, axis=1)
        if np.array_equal(f, before):  # all further iterations are this one
            break
    f = before
    return mu @ (f - log_area[here]) + nu @ (g - log_area[there]), error


@cache
def dense_answers(name, steps, n_iterations):
    """Divergence and error of every pair of the measures of a graph, for every way to be held against."""
    measures, kernel = measures_of(name), log_kernel_of(name, steps)
    pairs = combinations_with_replacement(range(len(measures)), 2)
    return {(i, j): dense_sinkhorn(*kernel, measures[i], measures[j], n_iterations) for i, j in pairs}


def balances(affinity, measures, steps, way, max_iterations=1000, tol=1e-13, n_threads=1, selves=True):
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
    walk = Walk.from_operator(operator)
    supports = walk.supports(module.check_masses(Graph.from_affinity(affinity), measures))
    pairs = [pair for pair in combinations_with_replacement(range(len(measures)), 2) if selves or pair[0] != pair[1]]
    with ThreadPoolExecutor(n_threads) as pool:
        return way(HeatKernel(walk, steps), supports, pairs, Limits(max_iterations, tol), pool)


WAYS = [balance_explicitly, balance_implicitly]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", GRAPHS)
def test_agrees_with_dense_sinkhorn(name, way):
    expected = dense_answers(name, 60, 1000)
    for pair, found in balances(affinity_of(name), measures_of(name), 60, way).items():
        assert found.divergence == pytest.approx(expected[pair][0], rel=1e-8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n_iterations", [1, 2, 7])
def test_every_iteration_is_that_of_dense_sinkhorn(way, n_iterations):
    affinity, measures = affinity_of("cloud"), measures_of("cloud")
    expected = dense_answers("cloud", 30, n_iterations)
    for pair, found in balances(affinity, measures, 30, way, n_iterations, selves=False).items():
        value, error = expected[pair]
        assert found.n_iterations == n_iterations
        assert found.divergence == pytest.approx(value, rel=1e-10)
        assert found.error == pytest.approx(error, rel=1e-8, abs=1e-13)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAINT)
def test_pairs_beyond_the_range_of_floats(name, way):
    affinity, steps = FAINT[name]
    assert log_kernel_of(name, steps)[0][0, -1] < -900
    expected = dense_answers(name, steps, 500)
    for pair, found in balances(affinity, measures_of(name), steps, way, 500).items():
        value, error = expected[pair]
        assert found.divergence == pytest.approx(value, rel=1e-8)
        assert found.error == pytest.approx(error, abs=1e-8)


def test_wide_kernel_is_the_plain_one_where_that_can_hold_it(monkeypatch):
    walk = Walk.from_operator(DiffusionOperator.from_graph(Graph.from_affinity(GRAPHS["cloud"])))
    rows = np.arange(60)
    with ThreadPoolExecutor(1) as pool:
        plain = HeatKernel(walk, 3).log_columns(rows, rows, pool)
        monkeypatch.setattr("convolutional.LEAST_TRUSTED", np.inf)
        wide = HeatKernel(walk, 3).log_columns(rows, rows, pool)
    assert np.isneginf(plain).any()
    np.testing.assert_allclose(wide, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_a_pair_does_not_depend_on_batch_or_threads(way, monkeypatch):
    affinity, measures = GRAPHS["cloud"], some_measures(60, 12)
    everything = balances(affinity, measures, 40, way, tol=1e-6)
    assert balances(affinity, measures, 40, way, tol=1e-6, n_threads=3) == everything
    alone = balances(affinity, measures[[2, 7]], 40, way, tol=1e-6)
    assert alone[0, 1] == everything[2, 7]
    monkeypatch.setattr(module, "WIDTH", 3)
    monkeypatch.setattr(module, "LARGEST_KERNEL", 60 * 25)
    for pair, found in balances(affinity, measures, 40, way, tol=1e-6).items():
        assert found == pytest.approx(everything[pair], rel=1e-12)


def test_distances_from_values_by_hand():
    graph, measures = Graph.from_affinity(affinity_of("line")), measures_of("line")
    value = {pair: divergence for pair, (divergence, _) in dense_answers("line", 50, 1000).items()}
    options = {"steps": 50, "tol": 1e-13, "max_iterations": 1000}
    biased = convolutional_sinkhorn.solve(graph, measures, debias=False, **options).distances
    debiased = convolutional_sinkhorn.solve(graph, measures, **options).distances
    for i, j in [(0, 1), (0, 2), (1, 3), (2, 3)]:
        assert biased[i, j] == pytest.approx(np.sqrt(50 * value[i, j]), rel=1e-8)
        rest = value[i, j] - (value[i, i] + value[j, j]) / 2
        assert debiased[i, j] == pytest.approx(np.sqrt(50 * rest), rel=1e-6)


def test_deltas_on_a_grid_are_as_far_apart_as_they_are():
    grid = Graph.from_grid([80])
    distances = convolutional_sinkhorn(grid, np.eye(80)[[30, 34, 42]], steps=200)
    np.testing.assert_allclose(distances, np.abs(np.subtract.outer([0, 4, 12], [0, 4, 12])), rtol=0.1)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_symmetric_and_zero_on_the_diagonal(seed, debias):
    measures = some_measures(40, 5, seed)
    solution = convolutional_sinkhorn.solve(Graph.from_affinity(line()), measures, debias=debias, n_jobs=1)
    assert np.isfinite(solution.distances).all()
    for matrix in (solution.distances, solution.marginal_errors, solution.n_iterations):
        np.testing.assert_array_equal(matrix, matrix.T)
        np.testing.assert_array_equal(matrix.diagonal(), 0)


@pytest.mark.parametrize("tol", [1e-3, 1e-10])
def test_equal_measures_are_at_zero(tol):
    measures = some_measures(40)[[0, 1, 0]]
    distances = convolutional_sinkhorn(Graph.from_affinity(line()), measures, tol=tol, max_iterations=1000)
    assert distances[0, 2] == 0
    assert distances[0, 1] == pytest.approx(distances[1, 2], rel=1e-3)


def test_convergence_is_reported():
    graph, measures = Graph.from_affinity(line()), some_measures(40)
    with pytest.warns(ConvergenceWarning, match="6 of 6 pairs"):
        convolutional_sinkhorn(graph, measures, max_iterations=1)
    early = convolutional_sinkhorn.solve(graph, measures, max_iterations=1)
    assert early.n_iterations[0, 1] == 1
    assert not early.converged[0, 1]
    late = convolutional_sinkhorn.solve(graph, measures, tol=1e-9, max_iterations=1000)
    assert late.converged.all()
    assert 1 < late.n_iterations[0, 1] < 1000
    assert late.marginal_errors.max() <= 1e-9


@pytest.mark.parametrize("steps", [7, 20])
def test_too_few_steps_are_an_error_that_tells_how_many_do(steps):
    graph, measures = Graph.from_affinity(line()), np.eye(40)[[0, 5, 26]]
    with pytest.raises(InvalidInputError, match=r"2 pairs .* use steps=26"):
        convolutional_sinkhorn(graph, measures, steps=steps)
    assert np.isfinite(convolutional_sinkhorn(graph, measures, steps=26)).all()


def test_auto_takes_as_many_steps_as_needed():
    walk = Walk.from_operator(DiffusionOperator.from_graph(Graph.from_affinity(line(90))))
    supports = walk.supports(module.check_masses(Graph.from_affinity(line(90)), np.eye(90)[[0, 71]]))
    assert enough_steps(walk, supports, None, fewest=50, with_self=True) == 71
    assert enough_steps(walk, supports, None, fewest=80, with_self=True) == 80
    assert enough_steps(walk, supports, 10**9, fewest=50, with_self=True) == 10**9


def test_without_loops_a_walk_is_even_or_odd():
    cycle = Graph.from_affinity(np.roll(np.eye(24), 1, axis=1) + np.roll(np.eye(24), -1, axis=1), lazy=False)
    with pytest.raises(InvalidInputError, match="no number of steps"):
        convolutional_sinkhorn(cycle, np.eye(24)[[0, 5]])
    with pytest.raises(InvalidInputError, match="use steps=52"):
        convolutional_sinkhorn(cycle, np.eye(24)[[0, 6]], steps=51)
    assert convolutional_sinkhorn(cycle, np.eye(24)[[0, 5]], steps=51, debias=False)[0, 1] > 0
    # All have a partner, yet there is no plan: half of the mass would have to change its parity.
    measures = np.zeros((2, 24))
    measures[0, [0, 1]], measures[1, [4, 5]] = (0.9, 0.1), (0.1, 0.9)
    solution = convolutional_sinkhorn.solve(cycle, measures, steps=50)
    assert np.isfinite(solution.distances).all()
    assert solution.marginal_errors[0, 1] > 0.5


def test_components_need_equal_masses():
    graph = Graph.from_affinity(GRAPHS["two components"])
    with pytest.raises(InvalidInputError, match="2 components and 2 of 3 pairs"):
        convolutional_sinkhorn(graph, np.eye(40)[[0, 5, 26]])
    assert convolutional_sinkhorn(graph, some_measures(40))[0, 1] > 0


@pytest.mark.parametrize(
    "options",
    [{"steps": bad} for bad in (0, -1, 1.5, True, "many")]
    + [{"max_iterations": bad} for bad in (0, 2.5)]
    + [{"tol": bad} for bad in (0, -1, np.nan)]
    + [{"n_jobs": 0}, {"debias": "yes"}],
    ids=str,
)
def test_bad_options(options):
    with pytest.raises(InvalidInputError):
        convolutional_sinkhorn(Graph.from_affinity(line()), some_measures(40), **options)


def test_bad_measures():
    with pytest.raises(InvalidInputError):
        convolutional_sinkhorn(Graph.from_affinity(line()), np.ones((2, 41)))


def test_one_measure():
    np.testing.assert_array_equal(convolutional_sinkhorn(Graph.from_affinity(line()), np.eye(40)[:1]), [[0]])


@pytest.mark.parametrize("n_dimensions", [1, 50])
def test_points_of_any_dimension(n_dimensions):
    points = np.random.default_rng(2).normal(size=(80, n_dimensions))
    rows = some_measures(80)
    given_points = convolutional_sinkhorn(points, rows, steps=6)
    given_graph = convolutional_sinkhorn(Graph.from_points(points), rows, steps=6, n_jobs=1)
    np.testing.assert_array_equal(given_points, given_graph)
    assert (given_points[np.triu_indices(4, 1)] > 0).all()


def test_hostile_graphs(graph, measures):
    """Every graph gives finite distances or a clear error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for debias in (True, False):
            try:
                distances = convolutional_sinkhorn(graph, measures, debias=debias)
            except InvalidInputError:
                assert graph.diagnose().n_components > 1 or graph.affinity.diagonal().max() == 0
            else:
                assert np.isfinite(distances).all()


def test_dense_measures_take_the_implicit_way(monkeypatch):
    graph, measures = Graph.from_affinity(cloud(60)), np.random.default_rng(4).dirichlet(np.ones(60), size=4)
    explicit = convolutional_sinkhorn.solve(graph, measures, tol=1e-9)
    monkeypatch.setattr(module, "LARGEST_KERNEL", 60)
    implicit = convolutional_sinkhorn.solve(graph, measures, tol=1e-9)
    assert (explicit.distances != implicit.distances).any()
    np.testing.assert_allclose(implicit.distances, explicit.distances, rtol=1e-9)


@pytest.mark.parametrize("kernel", ["stored", "applied"])
def test_either_kernel_gives_the_same_distances(kernel):
    points = np.random.default_rng(0).normal(size=(90, 2))
    masses = np.repeat(np.eye(6), 15, axis=1) / 15
    options = {"steps": 20, "max_iterations": 500, "tol": 1e-9}
    expected = convolutional_sinkhorn(points, masses, **options)
    np.testing.assert_allclose(convolutional_sinkhorn(points, masses, kernel=kernel, **options), expected, rtol=1e-6)


def test_an_unknown_kernel_is_refused():
    with pytest.raises(InvalidInputError, match="kernel to be one of 'auto', 'stored', 'applied', found 'dense'"):
        convolutional_sinkhorn(np.arange(40.0)[:, None], np.eye(40)[:3], kernel="dense")


def test_auto_steps_end_before_everything_is_mixed():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(80, 50))
    masses = np.repeat(np.eye(4), 20, axis=1) / 20
    distances = convolutional_sinkhorn(points, masses, max_iterations=1000)
    assert (distances[~np.eye(4, dtype=bool)] > 0.01 * np.linalg.norm(points, axis=1).mean()).all()
