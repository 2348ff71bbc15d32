"""Coverage: the ranks are those of a plain computation, strangers are found, the reference's like are let pass."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import gamma

from heatmover.atlas import coverage
from heatmover.atlas.coverage import CellDraw, Law, Support, hold_out


def find_support(points, codes, n_samples, rng):
    draw = CellDraw.for_support(np.bincount(codes, minlength=n_samples), int(rng.integers(2**62)))
    draw.add(points, codes)
    return hold_out(*draw.cells(), n_samples)


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
    around = near | near.T
    usual = np.array([distances[row].mean() for row in around])
    found = support_of(cells)
    np.testing.assert_allclose(found.widths, usual)
    # A cell of the reference is judged as if the rest of its sample were not there.
    without = [distances[around[j] & (codes != codes[i])].mean() for i, j in enumerate(nearest)]
    scores = distances / without
    np.testing.assert_allclose(found.scores, np.sort(scores))
    own = np.array([(1 + (scores[codes != codes[i]] >= scores[i]).sum()) / 37 for i in range(48)])
    assert found.n_far.tolist() == np.bincount(codes[own <= coverage.FAR], minlength=4).tolist()
    evidence = np.maximum(np.log(0.05 / own), 0).reshape(4, 12)
    np.testing.assert_allclose(found.evidence, evidence.mean(axis=1))
    within = ((evidence - evidence.mean(axis=1, keepdims=True)) ** 2).sum() / 44
    np.testing.assert_allclose(found.spread, max(within, 0.05 * 1.95))
    new = np.random.default_rng(1).normal(size=(5, 4))
    apart = cdist(new, points)
    ranks = [(1 + (scores >= row.min() / usual[row.argmin()]).sum()) / (1 + scores.size) for row in apart]
    np.testing.assert_allclose(found.judge(new), ranks)


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


def support_with(evidence: np.ndarray, n_cells: int = 100, spread: float = 0.0975) -> Support:
    counts = np.full(evidence.size, n_cells)
    return Support(np.zeros((1, 1)), np.ones(1), np.ones(1), counts, np.zeros_like(counts), evidence, spread)


def law_with(evidence: np.ndarray) -> Law:
    return Law(np.full(evidence.size, 100), evidence, 0.0975)


def test_evidence_is_the_truncated_product():
    p_values = np.array([0.5, 0.05, 0.005, 0.02, 1.0])
    codes = np.array([0, 0, 0, 1, 1])
    found = support_of(samples(np.random.default_rng(6), 6, 10)).verdict(p_values, codes, 2)
    np.testing.assert_allclose(found.evidence, [np.log(10) / 3, np.log(2.5) / 2])
    assert found.n_far.tolist() == [1, 0]


def test_samples_that_vary_are_given_more_room():
    """The same evidence is less of a surprise where reference samples have none or much."""
    even, uneven = law_with(np.full(20, 0.05)), law_with(np.r_[np.zeros(15), np.full(5, 0.2)])
    asked = np.array([100]), np.array([0.25])
    assert even.chances(*asked)[0] < 1e-3 < 0.01 < uneven.chances(*asked)[0]
    # Without variance between samples it is the gamma law of the cells' variance, and of the mean's.
    variance = 0.0975 / 100 + 0.0975 / 2000
    tail = gamma(a=0.05**2 / variance, scale=variance / 0.05).sf(0.25)
    np.testing.assert_allclose(even.chances(*asked)[0], tail, rtol=1e-9)


def test_few_cells_are_given_more_room():
    found = law_with(np.full(20, 0.05)).chances(np.array([10, 100, 1000]), np.full(3, 0.15))
    assert found[0] > 0.05
    assert found[0] > found[1] > found[2]


def test_ranks_are_among_the_chances_of_the_reference_samples():
    support = support_with(np.r_[np.zeros(15), np.full(5, 0.2)])
    chances = support.chances(np.full(3, 100), np.array([0.2, 0.0, 0.3]), *[np.zeros(3, dtype=np.int64)] * 2)
    assert support.ranks(chances).tolist() == [6 / 21, 1.0, 1 / 21]


def test_false_alarms_keep_to_the_level_whatever_the_law():
    """Evidence with a heavy tail: of n + 1 samples alike each is the strangest with a chance of 1 in n + 1."""
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(300):
        evidence = 0.01 * rng.pareto(1.5, size=25)
        support = support_with(evidence[:24])
        chance = support.chances(np.array([100]), evidence[24:], *[np.zeros(1, dtype=np.int64)] * 2)
        alarms += chance[0] <= coverage.LEVEL and support.ranks(chance)[0] <= coverage.RANKED
    assert 0 < alarms <= 300 / 25 + 3 * np.sqrt(300 / 25)


def test_the_level_of_few_reference_samples_is_told():
    rng = np.random.default_rng(8)
    for n_samples, level in ((9, 0.1), (30, 0.05)):
        support = support_of(samples(rng, n_samples, 20))
        assert judged(support, samples(rng, 1, 20)).level == level


def test_few_reference_samples_give_no_verdict():
    rng = np.random.default_rng(4)
    found = judged(support_of(samples(rng, 4, 30)), samples(rng, 2, 30))
    assert found.covered == (None, None)


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
