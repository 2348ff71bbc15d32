"""Lemma 1's largest scale, against total variations from dense powers."""

from functools import cache

import numpy as np
import pytest

from heatmover.diffusion import scales as mixing
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import choose_mixed_scale
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph


@cache
def distances(graph, scale):
    """1/2 sum_j |P^(2^k)_ij - pi_j| on a connected graph, ``(n_points,)``."""
    affinity = graph.affinity.toarray()
    q = affinity.sum(axis=1)
    normed = affinity / q[:, None] / q[None, :]
    walk, stationary = normed / normed.sum(axis=1)[:, None], normed.sum(axis=1) / normed.sum()
    return np.abs(np.linalg.matrix_power(walk, 2**scale) - stationary).sum(axis=1) / 2


def choose(graph, epsilon, **options):
    return choose_mixed_scale(DiffusionOperator.from_graph(graph), epsilon, np.random.default_rng(0), **options)


@cache
def plane(n=700, seed=0):
    return Graph.from_points(np.random.default_rng(seed).random((n, 2)) * [3, 1], n_neighbors=12)


@cache
def with_outlier(n=1_000):
    """A point so far out that its walk hardly ever leaves it."""
    points = np.random.default_rng(1).random((n, 2))
    points[0] = 1.17
    return Graph.from_points(points, n_neighbors=12)


@pytest.fixture(params=["bounded and summed", "bounded only", "walked"])
def way(request, monkeypatch):
    """All points are judged by rows of a basis, by the bound alone, or by their own walks."""
    if request.param == "bounded only":
        monkeypatch.setattr(mixing, "MOST_WORK", 0)
    if request.param == "walked":
        monkeypatch.setattr(mixing, "spectral_factors", lambda *_, **__: None)
    return request.param


@pytest.mark.parametrize("epsilon", [0.05, 0.25, 0.5, 0.8])
def test_it_is_the_first_scale_at_which_all_have_mixed(way, epsilon):
    graph = plane()
    choice = choose(graph, epsilon)
    assert (distances(graph, choice.max_scale) < epsilon).all()
    # The bound alone may be late, never early.
    if way != "bounded only":
        assert distances(graph, choice.max_scale - 1).max() >= epsilon
        assert choice.decay[-1] == pytest.approx(distances(graph, choice.max_scale).max(), abs=2e-6) or (
            choice.decay[-1] < epsilon and "bounded" in choice.reason
        )
    assert len(choice.decay) == choice.max_scale + 1


def test_rows_are_summed_where_the_bound_leaves_them_open():
    graph = plane()
    operator = DiffusionOperator.from_graph(graph)
    judge = mixing._Judge.of(operator, 6, np.random.default_rng(0), 1)
    exact = distances(graph, 6).max()
    verdict = judge(6, exact * 1.01)
    assert verdict.mixed
    assert verdict.how == mixing.BOTH
    assert verdict.largest == pytest.approx(exact, rel=0.01)
    assert not judge(6, exact * 0.99).mixed


def test_one_point_in_a_thousand_may_straggle(monkeypatch):
    graph = with_outlier()
    choice = choose(graph, 0.25)
    apart = distances(graph, choice.max_scale)
    assert np.count_nonzero(apart >= 0.25) == 1
    assert np.count_nonzero(distances(graph, choice.max_scale - 1) >= 0.25) > 1
    assert "all points but 1 " in choice.reason
    monkeypatch.setattr(mixing, "STRAGGLERS", 0)
    with pytest.raises(InvalidInputError, match=r"mixes to within 0.25 in 2\^18 steps.*nearly disconnected"):
        choose(graph, 0.25)


def test_components_mix_by_themselves():
    affinity = np.zeros((13, 13))
    affinity[:5, :5], affinity[5:12, 5:12], affinity[12, 12] = 1, 1, 1
    assert choose(Graph.from_affinity(affinity), 0.25).max_scale == 0


def test_a_bipartite_graph_never_mixes():
    cycle = np.roll(np.eye(24), 1, axis=1) + np.roll(np.eye(24), -1, axis=1)
    with pytest.raises(InvalidInputError, match=r"a bipartite component, where an even number .* lazy=True"):
        choose(Graph.from_affinity(cycle, lazy=False), 0.25)
    assert choose(Graph.from_affinity(cycle, lazy=True), 0.25).max_scale > 0
    two = np.kron(np.eye(2), np.array([[0, 1], [1, 0]]))
    with pytest.raises(InvalidInputError, match="2 bipartite components"):
        choose(Graph.from_affinity(two, lazy=False), 0.25)


def test_an_odd_cycle_mixes():
    odd = np.roll(np.eye(7), 1, axis=1) + np.roll(np.eye(7), -1, axis=1)
    graph = Graph.from_affinity(odd)
    K = choose(graph, 0.25).max_scale
    assert (distances(graph, K) < 0.25).all()
    assert distances(graph, K - 1).max() >= 0.25


def test_the_order_of_the_draw_changes_nothing():
    graph = plane(900, 2)
    operator = DiffusionOperator.from_graph(graph)
    scales = {choose_mixed_scale(operator, 0.25, np.random.default_rng(seed)).max_scale for seed in range(5)}
    assert len(scales) == 1
