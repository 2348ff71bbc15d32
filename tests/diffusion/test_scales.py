"""Mixing curves and the choice of the coarsest scale."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import COARSEST, SAMPLE, choose_max_scale, finest_scale, mean_total_variation
from heatmover.graphs import Graph


def rng():
    return np.random.default_rng(0)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(1, 12))
def test_mean_total_variation_is_the_mean_over_pairs(seed, n_measures, n_points):
    columns = np.random.default_rng(seed).dirichlet(np.ones(n_points), size=n_measures).T
    pairs = [
        np.abs(columns[:, i] - columns[:, j]).sum() / 2 for i in range(n_measures) for j in range(n_measures) if i != j
    ]
    assert mean_total_variation(columns) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_total_variation_of_one_measure_is_zero():
    assert mean_total_variation(np.ones((4, 1)) / 4) == 0


def test_the_choice_is_the_first_half_mixed_scale():
    """Against densities from the dense oracle; 10 points carry mass, so all of them are drawn."""
    graph = Graph.from_grid((60,))
    operator = DiffusionOperator.from_graph(graph)
    points = np.eye(60)[::6]
    choice = choose_max_scale(operator, points.reshape(2, 5, 60).mean(axis=1), rng())
    curve = [mean_total_variation(d) for d in ExactDiffuser(operator, adjoint=True).diffuse(points.T, range(14))]
    assert choice.max_scale == np.argmax(np.array(curve) <= 0.5)
    np.testing.assert_allclose(choice.decay, curve[: choice.max_scale + 1], atol=0.02)
    assert (np.diff(choice.decay) < 0.01).all()
    assert f"2^{choice.max_scale}" in choice.reason


def test_the_curve_is_true_on_every_graph(graph):
    """Errors of many steps add up on what never mixes; the choice must not be made by them."""
    operator = DiffusionOperator.from_graph(graph)
    points = np.eye(graph.n_points)[:SAMPLE]
    choice = choose_max_scale(operator, points, rng())
    scales = range(len(choice.decay))
    curve = [mean_total_variation(d) for d in ExactDiffuser(operator, adjoint=True).diffuse(points.T, scales)]
    np.testing.assert_allclose(choice.decay, curve, atol=0.02)


def test_a_longer_line_needs_a_coarser_scale():
    """Twice as long takes four times as many steps: two scales more."""
    scales = [
        choose_max_scale(DiffusionOperator.from_graph(Graph.from_grid((n,))), np.eye(n)[:: n // 10], rng()).max_scale
        for n in (100, 200, 400)
    ]
    assert np.diff(scales).tolist() == [2, 2]


def test_measures_in_different_components_are_judged_by_what_can_mix():
    block = Graph.from_grid((30,)).affinity
    graph = Graph.from_affinity(sp.block_diag([block, block]))
    together = choose_max_scale(DiffusionOperator.from_graph(Graph.from_grid((30,))), np.eye(30)[::5], rng())
    apart = choose_max_scale(DiffusionOperator.from_graph(graph), np.eye(60)[::5], rng())
    assert apart.limit == pytest.approx(np.mean([i // 6 != j // 6 for i in range(12) for j in range(12) if i != j]))
    assert abs(apart.max_scale - together.max_scale) <= 1


def test_the_choice_depends_on_where_the_mass_is_and_not_on_how_it_is_shared_out():
    """Patients that share every cell type overlap from the start; their cells have not mixed for that."""
    operator = DiffusionOperator.from_graph(Graph.from_grid((40,)))
    apart = choose_max_scale(operator, np.eye(40), rng())
    overlapping = choose_max_scale(operator, np.ones((5, 40)) / 40, rng())
    single = choose_max_scale(operator, np.ones((1, 40)) / 40, rng())
    assert apart.max_scale == overlapping.max_scale == single.max_scale > 4


def test_a_single_point_gives_the_smallest_choice():
    choice = choose_max_scale(DiffusionOperator.from_graph(Graph.from_grid((30,))), np.eye(30)[:1], rng())
    assert choice.max_scale == 1


def test_a_graph_that_is_nearly_disconnected_ends_the_search():
    affinity = np.kron(np.eye(2), np.ones((4, 4)))
    affinity[3, 4] = affinity[4, 3] = 1e-9
    rows = np.zeros((2, 8))
    rows[0, 0] = rows[1, 7] = 1
    choice = choose_max_scale(DiffusionOperator.from_graph(Graph.from_affinity(affinity)), rows, rng())
    assert choice.max_scale == COARSEST
    assert "nearly disconnected" in choice.reason


def test_a_bipartite_graph_ends_the_search_by_its_own_name():
    graph = Graph.from_affinity(np.eye(5, k=1) + np.eye(5, k=-1), lazy=False)
    choice = choose_max_scale(DiffusionOperator.from_graph(graph), np.eye(5), rng())
    assert choice.max_scale == COARSEST
    assert "heat alternates between two halves of the graph" in choice.reason
    assert "disconnected" not in choice.reason


@pytest.mark.usefixtures("eager_threads")
def test_many_points_are_sampled_reproducibly_whatever_the_threads():
    operator = DiffusionOperator.from_graph(Graph.from_grid((80,)))
    rows = np.eye(80)
    first, again = (choose_max_scale(operator, rows, np.random.default_rng(4), n_threads=n) for n in (1, 3))
    np.testing.assert_array_equal(first.decay, again.decay)
    other = choose_max_scale(operator, rows, np.random.default_rng(5))
    assert not np.array_equal(first.decay, other.decay)


@pytest.mark.parametrize(("alpha", "dropped"), [(0.5, True), (0.05, False)])
def test_scales_without_weight_are_dropped(alpha, dropped):
    weights = 2.0 ** (-alpha * np.arange(20)[::-1])
    first = finest_scale(weights)
    assert (first > 0) == dropped
    assert weights[:first].sum() <= 0.01 * weights.sum()
    assert weights[: first + 1].sum() >= 0.01 * weights.sum()


def lumpy():
    """A line whose middle holds most of the points: a draw that misses the ends seems mixed too early."""
    places = np.concatenate([np.linspace(0, 1, 60), np.linspace(0.45, 0.55, 60)])
    return Graph.from_affinity(np.exp(-((places[:, None] - places) ** 2) / 0.05**2))


def test_the_curve_of_a_few_points_is_near_that_of_all():
    """Against all 120 points by the dense oracle; the same points without probes are off by far more."""
    operator = DiffusionOperator.from_graph(lumpy())
    exact = list(ExactDiffuser(operator, adjoint=True).diffuse(np.eye(120), range(16)))
    truth = np.array([mean_total_variation(d) for d in exact])
    errors, plain = [], []
    for seed in range(20):
        choice = choose_max_scale(operator, np.ones((1, 120)) / 120, np.random.default_rng(seed))
        drawn = np.random.default_rng(seed).choice(120, SAMPLE, replace=False, p=np.full(120, 1 / 120))
        errors.append(choice.decay[-1] - truth[choice.max_scale])
        plain.append(mean_total_variation(exact[choice.max_scale][:, drawn]) - truth[choice.max_scale])
    assert np.sqrt(np.mean(np.square(errors))) < 0.5 * np.sqrt(np.mean(np.square(plain)))


def test_components_keep_the_limit_when_points_are_sampled():
    block = lumpy().affinity
    graph = Graph.from_affinity(sp.block_diag([block, block]))
    alone = choose_max_scale(DiffusionOperator.from_graph(lumpy()), np.ones((1, 120)), rng())
    both = choose_max_scale(DiffusionOperator.from_graph(graph), np.ones((1, 240)), rng())
    assert 0.4 < both.limit < 0.6
    assert (both.decay >= both.limit).all()
    assert (both.decay <= 1).all()
    assert abs(both.max_scale - alone.max_scale) <= 1


def test_points_that_never_meet_give_the_smallest_choice():
    choice = choose_max_scale(DiffusionOperator.from_graph(Graph.from_affinity(np.eye(50))), np.eye(50), rng())
    assert (choice.max_scale, choice.limit, choice.decay.tolist()) == (1, 1.0, [1.0, 1.0])


def test_pairs_of_points_are_not_corrected_by_rounding():
    """Two points that share a component have the same mean: there is no slope between them."""
    graph = Graph.from_affinity(np.kron(np.eye(40), np.ones((2, 2))))
    choice = choose_max_scale(DiffusionOperator.from_graph(graph), np.eye(80), rng())
    assert choice.max_scale == 1
    assert choice.decay[-1] == pytest.approx(choice.limit, abs=1e-6)
