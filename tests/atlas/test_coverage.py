"""Coverage: the ranks are those of a plain computation, strangers are found, the reference's like are let pass."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from heatmover.atlas import coverage
from heatmover.atlas.coverage import Support, find_support


def samples(rng: np.random.Generator, n_samples: int, n_cells: int, strangers: int = 0) -> np.ndarray:
    """``(n_samples, n_cells, 4)``: two populations, one of them three times as wide, and strangers between them."""
    kind = rng.integers(0, 2, size=(n_samples, n_cells))
    kind[:, :strangers] = 2
    centers = np.array([[0.0, 0, 0, 0], [12, 0, 0, 0], [0, 7, 0, 0]])
    widths = np.array([1.0, 3.0, 0.5])
    return centers[kind] + widths[kind][..., None] * rng.normal(size=(n_samples, n_cells, 4))


def support_of(cells: np.ndarray) -> Support:
    n_samples, n_cells, n_dimensions = cells.shape
    codes = np.repeat(np.arange(n_samples), n_cells)
    found = find_support(cells.reshape(-1, n_dimensions), codes, n_samples, np.random.default_rng(0))
    assert found is not None
    return found


def test_scores_are_distances_from_other_samples_over_what_is_usual():
    cells = samples(np.random.default_rng(0), 4, 12)
    points, codes = cells.reshape(-1, 4), np.repeat(np.arange(4), 12)
    between = cdist(points, points)
    elsewhere = np.where(codes[:, None] == codes, np.inf, between)
    distances, nearest = elsewhere.min(axis=1), elsewhere.argmin(axis=1)
    # A graph joins two cells if either is among the other's 30 nearest.
    near = between.argsort(axis=1).argsort(axis=1) <= coverage.AROUND
    usual = np.array([distances[row].mean() for row in near | near.T])
    found = support_of(cells)
    np.testing.assert_allclose(found.widths, usual)
    scores = distances / usual[nearest]
    np.testing.assert_allclose(found.scores, np.sort(scores))
    far = (1 + (scores[:, None] <= scores[None]).sum(axis=1)) / (1 + scores.size) <= coverage.FAR
    assert found.n_far.tolist() == np.bincount(codes[far], minlength=4).tolist()
    new = np.random.default_rng(1).normal(size=(5, 4))
    apart = cdist(new, points)
    ranks = [(1 + (scores >= row.min() / usual[row.argmin()]).sum()) / (1 + scores.size) for row in apart]
    np.testing.assert_allclose(found.judge(new), ranks)


def test_the_same_cells_as_nodes_give_the_same_p_values():
    found = support_of(samples(np.random.default_rng(0), 5, 20))
    nodes = found.cells[np.random.default_rng(1).permutation(len(found.cells))]
    moved = found.at(nodes)
    assert moved.cells is nodes
    new = np.random.default_rng(2).normal(size=(30, 4))
    np.testing.assert_array_equal(moved.judge(new), found.judge(new))
    assert found.at(nodes[:-1]) is found
    assert found.at(nodes + 1) is found


def judged(support: Support, cells: np.ndarray) -> coverage.Coverage:
    n_samples, n_cells, n_dimensions = cells.shape
    codes = np.repeat(np.arange(n_samples), n_cells)
    return support.verdict(support.judge(cells.reshape(-1, n_dimensions)), codes, n_samples)


def test_strangers_are_found_and_the_like_pass():
    rng = np.random.default_rng(3)
    support = support_of(samples(rng, 30, 60))
    like, unlike = judged(support, samples(rng, 40, 60)), judged(support, samples(rng, 40, 60, strangers=6))
    assert np.mean([not covered for covered in like.covered]) <= 0.05
    assert np.mean([not covered for covered in unlike.covered]) >= 0.95
    assert unlike.p_values.max() <= coverage.LEVEL
    assert 0.005 < like.expected < 0.015
    np.testing.assert_array_equal(like.shares, like.n_far / 60)


def test_samples_that_vary_are_given_more_room():
    """Ten far cells are less of a surprise where reference samples have none or many."""
    cells, far = np.full(20, 100), np.r_[np.zeros(15, dtype=np.int64), np.full(5, 8)]
    nothing = np.zeros((1, 1)), np.ones(1), np.ones(1)
    even = Support(*nothing, cells, np.full(20, 2))
    uneven = Support(*nothing, cells, far)
    assert even.expected == uneven.expected
    ten = np.array([100]), np.array([10])
    assert even.chances(*ten)[0] < 1e-3 < 0.01 < uneven.chances(*ten)[0]
    # With no overdispersion it is the binomial tail.
    tail = sum(_binomial(100, k, 0.02) for k in range(10, 101))
    np.testing.assert_allclose(even.chances(*ten)[0], tail, rtol=1e-9)
    assert uneven.ranks(np.array([0.08, 0.0, 0.2])).tolist() == [6 / 21, 1.0, 1 / 21]


def _binomial(n: int, k: int, p: float) -> float:
    from math import comb

    return comb(n, k) * p**k * (1 - p) ** (n - k)


def test_few_reference_samples_give_no_verdict_and_one_no_support():
    rng = np.random.default_rng(4)
    found = judged(support_of(samples(rng, 4, 30)), samples(rng, 2, 30))
    assert found.covered == (None, None)
    assert find_support(np.zeros((5, 2)), np.zeros(5, dtype=np.intp), 1, rng) is None


def test_copies_only_leave_no_doubt():
    cells = np.zeros((6, 10, 2))
    found = support_of(cells)
    assert found.judge(np.zeros((1, 2)))[0] == 1
    assert found.judge(np.full((1, 2), 0.1))[0] == 1 / 61


def test_large_references_are_drawn_from_equally(monkeypatch):
    monkeypatch.setattr(coverage, "SUPPORT", 60)
    sizes = [50, 10, 200]
    codes = np.repeat(np.arange(3), sizes)
    points = np.random.default_rng(5).normal(size=(codes.size, 2))
    found = find_support(points, codes, 3, np.random.default_rng(0))
    assert found.n_cells.tolist() == [25, 10, 25]
    assert found.cells.shape == (60, 2)
