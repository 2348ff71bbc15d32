from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from heatmover.graphs.search import descent
from heatmover.graphs.search.descent import descend


def run(points, k, seed=0):
    return descend(points, k, np.random.default_rng(seed))[:2]


def true_distances(points, k):
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    return np.sort(distances, axis=1)[:, :k]


def recall(points, distances):
    return float((distances <= true_distances(points, distances.shape[1])[:, -1:] * (1 + 1e-9)).mean())


def assert_valid(points, distances, indices):
    n_points, k = indices.shape
    assert ((indices >= 0) & (indices < n_points)).all()
    assert (indices != np.arange(n_points)[:, None]).all()
    assert all(len(set(row)) == k for row in indices.tolist())
    np.testing.assert_allclose(distances, np.linalg.norm(points[indices] - points[:, None], axis=2), rtol=1e-12)
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("n_points", "k"), [(2, 1), (3, 2), (17, 16), (63, 5), (64, 5), (65, 64), (129, 30), (200, 100), (1000, 200)]
)
def test_lists_are_full_whatever_the_sizes(n_points, k):
    """Cells hold 64 points or k + 1; what is left over joins the last one."""
    points = np.random.default_rng(0).normal(size=(n_points, 3))
    distances, indices = run(points, k)
    assert_valid(points, distances, indices)
    assert recall(points, distances) > 0.99


def test_descent_mends_what_the_cells_miss(monkeypatch):
    monkeypatch.setattr(descent, "FIRST_RECALLS", (0.5,))
    points = np.random.default_rng(0).normal(size=(3000, 10))
    after = recall(points, run(points, 10)[0])
    monkeypatch.setattr(descent, "MOST_ROUNDS", 0)
    before = recall(points, run(points, 10)[0])
    assert before < 0.7
    assert after > 0.97


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("scale", [1e-140, 1e-25, 1.0, 1e22, 1e140])
def test_any_unit_and_any_offset(scale, offset):
    points = (np.random.default_rng(0).normal(size=(800, 6)) + offset) * scale
    distances, indices = run(points, 10)
    assert_valid(points, distances, indices)
    assert recall(points, distances) > 0.98


def test_ties_go_to_the_smaller_index():
    points = np.array([[0.0], [1.0], [-1.0], [5.0]])
    distances, indices = run(points, 2)
    assert indices[0].tolist() == [1, 2]
    assert distances[0].tolist() == [1, 1]


def test_another_seed_is_another_search():
    points = np.random.default_rng(0).normal(size=(3000, 40))
    assert (run(points, 10, seed=0)[1] == run(points, 10, seed=0)[1]).all()
    assert (run(points, 10, seed=0)[1] != run(points, 10, seed=1)[1]).any()
