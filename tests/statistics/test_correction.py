"""Correction of samples against plain formulas, and what it does where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from heatmover.statistics.correction import (
    STANDS_OUT,
    Sketch,
    correction_of,
    even_distances,
    exchangeable,
    heterogeneity,
    mean_deviation,
    variance_between,
)

N_PROBES = 300


def sketch_of(means, halves, sizes):
    """A sketch of one scale, whose last row, all blocks added up, is the same."""
    means = np.stack([means - means.mean(axis=0)] * 2)
    nothing = np.zeros((2, len(sizes)))
    return Sketch(sizes, means, nothing, halves[None], np.empty((0, N_PROBES)), np.zeros(1, int), np.ones(1))


def simulate(n_samples, *, rank, between=1.0, seed=0):
    """True places of a given rank, noise in all directions by the number of cells, and places with noise."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log(10), np.log(1000), n_samples)).astype(int)
    noise = 60 / sizes
    scores = rng.normal(size=(n_samples, rank)) * np.sqrt(between / max(rank, 1))
    basis = np.linalg.qr(rng.normal(size=(N_PROBES, max(rank, 1))))[0][:, :rank] * np.sqrt(N_PROBES)
    true = scores @ basis.T
    means, halves = (rng.normal(size=(n_samples, N_PROBES)) * np.sqrt(noise)[:, None] for _ in range(2))
    return true, sketch_of(true + means, halves, sizes), noise[None]


def squared(places):
    return ((places[:, None] - places) ** 2).mean(axis=2)


def test_variance_between_samples_solves_its_equation():
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.1, 2, size=30)
    values = rng.normal(size=(30, 400)) * np.sqrt(1.5 + noise)[:, None]
    between, excess = variance_between(values, noise)
    assert between == pytest.approx(1.5, rel=0.1)
    assert excess > 0
    weights = 1 / (between + noise)
    center = weights @ values / weights.sum()
    assert weights @ ((values - center) ** 2).mean(axis=1) == pytest.approx(29, rel=1e-9)


def test_excess_of_noise_alone_has_mean_zero():
    rng = np.random.default_rng(1)
    noise = rng.uniform(0.1, 2, size=12)
    found = []
    for _ in range(400):
        values = rng.normal(size=(12, 5)) * np.sqrt(noise)[:, None]
        found.append(variance_between(values, noise))
    between, excess = np.array(found).T
    assert abs(excess.mean()) < 3 * excess.std() / 20
    assert (between >= 0).all()
    assert (between[excess <= 0] == 0).all()


def test_deviations_become_exchangeable():
    """With unequal variances the covariance of the deviations is that of deviations from a mean, to the last digit."""
    variance = np.array([4.0, 1.0, 1.0, 0.25, 0.04])
    # The map is linear in the samples, so its matrix comes from unit vectors.
    matrix = exchangeable(np.eye(5), variance)[1]
    covariance = matrix @ np.diag(variance) @ matrix.T
    np.testing.assert_allclose(covariance, np.eye(5) - 1 / 5, atol=1e-12)


def test_mean_deviation_of_a_poisson_law():
    from scipy.stats import poisson

    for variance in (0.002, 0.1, 0.7, 3.0, 50.0):
        counts = np.arange(3000)
        truth = np.sum(poisson.pmf(counts, 1 / variance) * np.abs(counts - 1 / variance)) * variance
        assert mean_deviation(np.array([variance]))[0] == pytest.approx(truth, rel=2e-3)


def test_one_direction_is_found_and_the_rest_is_noise():
    true, sketch, noise = simulate(60, rank=1)
    found = correction_of(sketch, noise)
    assert found.directions[0].any(axis=0).sum() == 1
    assert found.between[0] == pytest.approx(true.var(axis=0).sum() / N_PROBES, rel=0.35)
    along, rest = found.factors[0, :, 0], found.factors[0, :, -1]
    assert (along > 0.9).mean() > 0.9  # a three-hundredth of the noise is in one direction
    assert np.median(rest**2) < 0.1
    corrected = found.apply(sketch.means[0], 0, 1e9)
    pairs = np.triu_indices(60, 1)
    truth = squared(true)[pairs]
    assert spearmanr(squared(corrected)[pairs], truth)[0] > spearmanr(squared(sketch.means[0])[pairs], truth)[0] + 0.1
    nearest = squared(corrected) + np.diag(np.full(60, np.inf))
    assert abs(spearmanr(sketch.sizes, nearest.min(axis=1))[0]) < 0.3


def test_noise_has_no_direction():
    """Nothing but noise: whatever its luck, hardly a direction stands out, and hardly any difference is left."""
    for seed in range(20):
        _, sketch, noise = simulate(30, rank=0, seed=seed)
        found = correction_of(sketch, noise)
        assert not found.directions.any()
        assert found.between[0] < 0.2 * np.median(noise)


def test_noise_alone_passes_for_a_difference_as_rarely_as_it_says():
    """At a twentieth: ten of 200 cohorts of noise, give or take; small differences are seen in nearly all of 30."""
    by_chance = [heterogeneity(*simulate(20, rank=0, seed=seed)[1:]) for seed in range(200)]
    seen = [heterogeneity(*simulate(20, rank=4, between=0.05, seed=seed)[1:]) for seed in range(30)]
    assert 2 <= np.sum(np.array(by_chance) <= 0.05) <= 18
    assert 0.4 < np.mean(by_chance) < 0.6  # p-values of the null hypothesis are uniform
    assert np.sum(np.array(seen) <= 0.05) >= 27


def test_samples_of_noise_alone_nearly_coincide_and_keep_their_order():
    for seed in range(5):
        _, sketch, noise = simulate(20, rank=0, seed=seed)
        found = correction_of(sketch, noise)
        assert 0 < found.between[0] < 0.05 * np.median(noise)
        moved = squared(found.apply(sketch.means[0], 0, 1e9))[np.triu_indices(20, 1)]
        assert 0 < np.median(moved) < 0.1 * np.median(squared(sketch.means[0])[np.triu_indices(20, 1)])


def test_a_difference_without_noise_is_one():
    sketch = sketch_of(np.arange(4.0)[:, None] * np.ones(N_PROBES), np.zeros((4, N_PROBES)), np.full(4, 5))
    assert heterogeneity(sketch, np.zeros((1, 4))) == 0


def test_many_equal_directions_move_as_one():
    """Where no direction stands out a sample moves by one factor, the root of the share that is no noise."""
    _, sketch, noise = simulate(40, rank=39, between=0.5)
    found = correction_of(sketch, noise)
    assert not found.directions.any()
    share = found.between[0] / (found.between[0] + noise[0])
    np.testing.assert_allclose(found.factors[0, :, -1], np.sqrt(share), rtol=1e-6)
    center, deviations = exchangeable(sketch.means[0], found.variance[0])
    moved = center + np.sqrt(found.between[0]) * deviations
    np.testing.assert_allclose(found.apply(sketch.means[0], 0, 1e9), moved, rtol=1e-3, atol=1e-9)


def test_correction_is_the_plain_formula():
    """Each sample along each direction, one by one."""
    _, sketch, noise = simulate(45, rank=3, between=3.0, seed=4)
    found = correction_of(sketch, noise)
    center, deviations = exchangeable(sketch.means[0], found.variance[0])
    left, sizes, right = np.linalg.svd(deviations, full_matrices=False)
    by_noise = np.linalg.svd(sketch.halves[0] / np.sqrt(found.variance[0])[:, None])[1][0]
    kept = np.flatnonzero(sizes**2 > STANDS_OUT * by_noise**2)
    assert kept.tolist() == [0, 1, 2]
    expected = np.zeros_like(deviations)
    for i in range(45):
        rest = deviations[i].copy()
        for number, k in enumerate(kept):
            part = left[i, k] * sizes[k] * right[k]
            rest -= part
            expected[i] += found.factors[0, i, number] * part
        expected[i] += found.factors[0, i, -1] * rest
    expected = center + np.sqrt(found.variance[0])[:, None] * expected
    np.testing.assert_allclose(found.apply(sketch.means[0], 0, 1e9), expected, rtol=1e-3, atol=1e-9)


def test_samples_for_tests_vary_alike():
    """Whatever their numbers of cells, samples of one distribution have equal mean squared distances to the others."""
    total = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        sizes = np.repeat([30, 300], [5, 15])
        means = rng.normal(size=(20, N_PROBES)) / np.sqrt(sizes)[:, None]
        total = total + even_distances(sketch_of(means, means, sizes), 1 / sizes[None]) ** 2
    few, many = total[:5].mean(), total[5:].mean()
    assert few == pytest.approx(many, rel=0.03)


def test_equal_samples_stay_equal():
    sketch = sketch_of(np.ones((4, N_PROBES)), np.zeros((4, N_PROBES)), np.array([5, 5, 9, 9]))
    found = correction_of(sketch, np.zeros((1, 4)))
    assert not found.between.any()
    assert (found.apply(np.ones((4, 3)), 0, 1.0) == 1).all()
    assert not even_distances(sketch, np.zeros((1, 4))).any()
