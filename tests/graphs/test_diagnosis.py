from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from heatmover.datasets import swiss_roll
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.diagnosis import diagnose


def dense_gap(affinity):
    """1 - the second largest eigenvalue of S of the largest component."""
    _, component = connected_components(affinity, directed=False)
    inside = component == np.argmax(np.bincount(component))
    part = affinity[np.ix_(inside, inside)]
    q = part.sum(axis=1)
    normed = part / np.outer(q, q)
    degree = normed.sum(axis=1)
    values = np.linalg.eigvalsh(normed / np.sqrt(np.outer(degree, degree)))
    return 1 - values[-2] if len(values) > 1 else 0.0


def test_figures_of_every_small_graph(affinity):
    result = Graph.from_affinity(affinity, lazy=False).diagnose()
    n_components, component = connected_components(affinity, directed=False)
    neighbors = (affinity > 0).sum(axis=1) - (np.diag(affinity) > 0)
    degree = affinity.sum(axis=1)
    assert result.n_points == len(affinity)
    assert result.n_edges == ((affinity > 0) & ~np.eye(len(affinity), dtype=bool)).sum() // 2
    assert result.n_components == n_components
    assert result.largest_component == np.bincount(component).max() / len(affinity)
    assert result.n_isolated == (neighbors == 0).sum()
    assert result.neighbors == (neighbors.min(), np.median(neighbors), neighbors.max())
    np.testing.assert_allclose(result.degree, [degree.min(), np.median(degree), degree.max()], rtol=1e-12)
    assert result.spectral_gap == pytest.approx(dense_gap(affinity), rel=1e-6, abs=1e-10)
    assert result.spectral_gap_error < 1e-6


def test_spectral_gap_of_a_larger_graph_lies_within_its_error():
    affinity = Graph.from_points(np.random.default_rng(0).normal(size=(250, 2)), 12).affinity
    result = diagnose(affinity)
    assert abs(result.spectral_gap - dense_gap(affinity.toarray())) <= result.spectral_gap_error + 1e-10


def test_spectral_gap_of_a_ring_in_closed_form():
    """Eigenvalues of a ring of n cells with weights 1, w, w^4 are sums of cosines."""
    n, w = 50, np.exp(-1 / 1.5**2)
    result = Graph.from_grid((n,), periodic=True).diagnose()
    angle = 2 * np.pi / n
    second = (1 + 2 * w * np.cos(angle) + 2 * w**4 * np.cos(2 * angle)) / (1 + 2 * w + 2 * w**4)
    assert result.spectral_gap == pytest.approx(1 - second, rel=1e-6)
    steps = 1 / (1 - second)
    assert f"mixes in about {steps:.0f} steps." in str(result)


def test_a_good_graph_needs_no_advice():
    result = Graph.from_grid((6, 6)).diagnose()
    assert result.advice == ()
    assert str(result).endswith("No problems found.")
    assert "36 points" in str(result)
    assert "one component" in str(result)
    assert "Neighbors per point: 8 to 24" in str(result)
    assert "Spectral gap about" in str(result)


def test_isolated_points():
    affinity = np.eye(6)
    affinity[:4, :4] = 1
    result = Graph.from_affinity(affinity).diagnose()
    assert (result.n_isolated, result.n_components) == (2, 3)
    assert len(result.advice) == 1
    assert result.advice[0].startswith("2 points have no neighbor: their mass never moves.")
    assert "3 components" in str(result)
    assert f"- {result.advice[0]}" in str(result)
    assert "No problems found" not in str(result)


def test_several_parts():
    result = Graph.from_affinity(np.kron(np.eye(2), np.ones((3, 3)))).diagnose()
    assert (result.n_isolated, result.n_components, result.largest_component) == (0, 2, 0.5)
    assert result.advice[0].startswith("2 components contain several points. The largest contains 3 of 6 points (50%).")


def test_components_and_isolated_points_together():
    affinity = np.zeros((7, 7))
    affinity[:3, :3] = affinity[3:6, 3:6] = 1
    result = Graph.from_affinity(affinity).diagnose()
    assert [line.split()[0] + line.split()[1] for line in result.advice] == ["1point", "2components"]
    assert result.largest_component == pytest.approx(3 / 7)


def test_weak_points():
    points = np.random.default_rng(0).normal(size=(80, 2))
    points[3] = [12, 0]
    points[4] = [0, 15]
    graph = Graph.from_points(points, 8, bandwidth=3.0)
    others = graph.affinity.toarray()
    np.fill_diagonal(others, 0)
    expected = (others.sum(axis=1) < 1e-4) & (others.sum(axis=1) > 0)
    result = graph.diagnose()
    assert result.n_weak == expected.sum() == 2
    assert "2 of 80 points (2.5%) are nearly disconnected: their mass" in str(result)
    assert "or make the graph with Graph.from_points(points, kernel='adaptive')." in str(result)
    one = Graph.from_points(np.delete(points, 4, axis=0), 8, bandwidth=3.0).diagnose()
    assert "1 of 79 points (1.3%) is nearly disconnected: its mass hardly moves. Remove it if it is" in str(one)


def test_a_graph_without_loops_has_no_weak_points():
    """A point without a loop passes all its mass on, however small its weights are."""
    affinity = np.array([[0, 1, 1e-9], [1, 0, 0], [1e-9, 0, 0]])
    result = Graph.from_affinity(affinity, lazy=False).diagnose()
    assert result.n_weak == 0
    assert not any("hardly moves" in line for line in result.advice)


@pytest.mark.parametrize("affinity", [np.array([[0, 1], [1, 0]]), np.eye(60, k=1) + np.eye(60, k=-1)])
def test_heat_that_never_settles_is_said(affinity):
    result = Graph.from_affinity(affinity, lazy=False).diagnose()
    assert result.lowest_eigenvalue == pytest.approx(-1)
    assert "Heat alternates" in str(result)
    assert "mixes" not in str(result)
    assert "Heat alternates" not in str(Graph.from_affinity(affinity, lazy=True).diagnose())


def test_a_graph_without_structure_is_said():
    noise = np.random.default_rng(0).poisson(1.0, size=(400, 500)).astype(float)
    assert "hardly any structure" in str(Graph.from_points(noise).diagnose())


def test_copies_are_one_node():
    points = np.vstack([np.zeros((40, 2)), np.random.default_rng(0).normal(size=(60, 2))])
    found = Graph.from_points(points, n_neighbors=10).diagnose()
    assert (found.n_points, found.n_copies) == (61, 39)
    assert str(found).startswith("61 different points of 100, ")
    assert "copies" not in str(Graph.from_points(points, n_neighbors=45).diagnose())


def test_parts_mix_each_for_itself():
    text = str(Graph.from_affinity(np.kron(np.eye(2), np.ones((4, 4)))).diagnose())
    assert "heat mixes in the largest component" in text


@pytest.mark.parametrize(("recall", "warned"), [(1.0, False), (0.9, False), (0.89, True)])
def test_low_recall_is_mentioned(recall, warned):
    result = diagnose(Graph.from_grid((9,)).affinity, recall=recall)
    assert any("approximate search found 89%" in line for line in result.advice) is warned


def test_recall_comes_from_the_construction():
    graph = Graph(Graph.from_grid((9,)).affinity, {"recall": 0.5})
    assert (
        "components first, or make the graph with Graph.from_points(points, neighbors='exact')."
        in graph.diagnose().advice[0]
    )


@pytest.mark.parametrize("affinity", [[[1.0]], [[0.0]]], ids=["with loop", "without"])
def test_single_point(affinity):
    result = Graph.from_affinity(affinity).diagnose()
    assert (result.n_points, result.n_edges, result.n_components, result.n_isolated) == (1, 0, 1, 1)
    assert result.spectral_gap == 0
    assert "Spectral gap" not in str(result)


def test_no_edges_at_all():
    result = Graph.from_affinity(np.zeros((5, 5))).diagnose()
    assert (result.n_isolated, result.n_components, result.spectral_gap) == (5, 5, 0)
    assert result.degree == (0, 0, 0)
    assert "5 points have no neighbor" in str(result)


def test_figures_do_not_depend_on_the_unit_of_the_affinity():
    affinity = Graph.from_points(np.random.default_rng(0).normal(size=(90, 2)), 8).affinity
    one, other = diagnose(affinity), diagnose(affinity * 1e-30)
    assert one.n_weak == other.n_weak
    assert other.spectral_gap == pytest.approx(one.spectral_gap, rel=1e-9)


def test_a_diagnosis_is_a_frozen_value():
    result = Graph.from_grid((4,)).diagnose()
    assert result == Graph.from_grid((4,)).diagnose()
    with pytest.raises(FrozenInstanceError):
        result.n_points = 5


@pytest.fixture(scope="module")
def nearly_cut():
    """A roll with 15 neighbors: 201 of its points hang on affinities of 5e-6."""
    return Graph.from_points(swiss_roll(10, points_per_measure=200, n_dimensions=3).points, n_neighbors=15)


def test_a_nearly_cut_graph_is_not_well(nearly_cut):
    result = nearly_cut.diagnose()
    assert (result.near_cuts[0].n_points, len(result.near_cuts)) == (201, 3)
    assert result.near_cuts[0].affinity == pytest.approx(5e-6, rel=0.02)
    assert result.near_cuts[0].conductance == pytest.approx(6.85e-8, rel=0.01)
    assert "No problems found" not in str(result)
    told = "2 groups of points are nearly disconnected from the rest. The largest has 201 of 2,000 points (10%). A"
    assert told in str(result)


def test_the_gap_of_a_nearly_cut_graph_is_a_bound_and_near_the_truth(nearly_cut):
    """Without the parts as guesses Lanczos gives 1.7e-5."""
    result, true = nearly_cut.diagnose(), dense_gap(nearly_cut.affinity.toarray())
    assert true == pytest.approx(7.48e-8, rel=1e-3)
    assert true * (1 - 1e-6) <= result.spectral_gap <= 1.01 * true
    assert not result.converged
    assert "Spectral gap at most 7.5e-08: heat mixes in 1.3e+07 steps or more." in str(result)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_gap_is_an_upper_bound_that_says_how_sure_it_is(seed):
    points = np.random.default_rng(seed).uniform(size=(1_200, 2)) * [1, [2, 400][seed]]
    affinity = Graph.from_points(points, 20).affinity
    result, true = diagnose(affinity), dense_gap(affinity.toarray())
    assert result.spectral_gap >= true * (1 - 1e-6)
    assert result.spectral_gap - true <= result.spectral_gap_error + 1e-12
    assert result.converged == (seed == 0)
    if result.converged:
        assert result.spectral_gap <= 1.2 * true


def test_parts_of_few_points_are_figures_but_no_advice():
    points = np.random.default_rng(0).normal(size=(500, 2))
    points[:2] = [[5.0, 5.0], [5.1, 5.0]]
    result = Graph.from_points(points, n_neighbors=20).diagnose()
    assert result.n_components == 1
    assert any(cut.n_points == 2 for cut in result.near_cuts)
    assert not any("thread" in line for line in result.advice)


def test_steps_are_a_whole_number(nearly_cut):
    with pytest.raises(InvalidInputError, match="steps"):
        nearly_cut.diagnose(steps=0)
