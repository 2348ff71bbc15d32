"""Moderated t-statistics: Smyth's formulas written out, uniform p-values without an effect, and few columns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from heatmover.statistics.moderation import (
    allow_for_sides,
    degrees_left,
    moderated_t,
    residuals,
    smooth_basis,
    variance_prior,
)
from heatmover.statistics.regression import block_columns, weigh


def slow_moderated_t(columns, design, weights, levels):
    """Return t and p of the last column of a design by weighted least squares, gene by gene, and Smyth (2004)."""
    n_units, n_columns = columns.shape
    root = np.sqrt(weights)
    covariance = np.linalg.inv((design * root[:, None]).T @ (design * root[:, None]))
    degrees = n_units - design.shape[1]
    coefficients, variances = [], []
    for values in columns.T:
        solution = covariance @ (design * weights[:, None]).T @ values
        coefficients.append(solution[-1])
        variances.append(float(weights @ (values - design @ solution) ** 2) / degrees)
    variances = np.array(variances)
    # Section 6.2: z = log s^2, e = z - psi(d / 2) + log(d / 2), trigamma(d0 / 2) = var(e) - trigamma(d / 2).
    logs = np.log(variances) - special.digamma(degrees / 2) + np.log(degrees / 2)
    basis = smooth_basis(levels)
    trend = basis @ np.linalg.solve(basis.T @ basis, basis.T @ logs)
    excess = ((logs - trend) ** 2).sum() / (n_columns - basis.shape[1]) - special.polygamma(1, degrees / 2)
    low, high = 1e-3, 1e6
    for _ in range(200):  # bisection, because trigamma decreases
        middle = np.sqrt(low * high)
        low, high = (middle, high) if special.polygamma(1, middle) > excess else (low, middle)
    prior_degrees = 2 * low
    prior = np.exp(trend + special.digamma(prior_degrees / 2) - np.log(prior_degrees / 2))
    posterior = (prior_degrees * prior + degrees * variances) / (prior_degrees + degrees)
    statistics = np.array(coefficients) / np.sqrt(posterior * covariance[-1, -1])
    return statistics, 2 * stats.t.sf(np.abs(statistics), prior_degrees + degrees), prior_degrees


def moderated(columns, groups, nuisance, weights, levels):
    regression, degrees = weigh(groups[None], nuisance, weights), degrees_left(nuisance, weights)
    coefficients, variances = residuals(columns, regression, weights, degrees)
    factor = 1 / float(weights @ regression.contrasts[0] ** 2)
    statistics, p_values = moderated_t(coefficients, variances, levels, factor, degrees)
    return statistics, p_values, variance_prior(variances, levels, degrees)[1]


@pytest.mark.parametrize("paired", [False, True])
def test_it_is_smyths_moderated_t(paired):
    rng = np.random.default_rng(1)
    groups = np.tile([0.0, 1.0], 4)
    levels = rng.uniform(0, 5, size=400)
    spread = np.sqrt(np.exp(-levels / 2) * 8 / rng.chisquare(8, size=400))
    columns = levels + rng.normal(size=(8, 400)) * spread
    weights = rng.uniform(0.2, 1, size=8)
    nuisance = block_columns(np.arange(8) // 2) if paired else np.column_stack([np.ones(8), rng.normal(size=8)])
    found = moderated(columns, groups, nuisance, weights, levels)
    expected = slow_moderated_t(columns, np.column_stack([nuisance, groups]), weights, levels)
    for own, slow in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, slow, rtol=1e-6)


@pytest.mark.parametrize("paired", [False, True])
def test_p_values_are_uniform_without_an_effect(paired):
    rng = np.random.default_rng(2)
    groups, n = np.tile([0.0, 1.0], 3), 20_000
    levels = rng.uniform(0, 5, size=n)
    spread = np.sqrt(np.exp(-levels) * 6 / rng.chisquare(6, size=n))
    weights = np.array([0.9, 0.3, 0.8, 0.6, 0.5, 0.7])
    # The variance of a unit is inverse to its weight.
    columns = levels + rng.normal(size=(6, n)) * spread / np.sqrt(weights)[:, None]
    pairs = np.arange(6) // 2
    if paired:
        columns += rng.normal(size=(3, n))[pairs]
    nuisance = block_columns(pairs) if paired else np.ones((6, 1))
    p_values = moderated(columns, groups, nuisance, weights, levels)[1]
    for level in (0.5, 0.05, 0.005):
        assert (p_values <= level).mean() == pytest.approx(level, abs=4 * np.sqrt(level / n))


def test_the_mean_of_the_prior_follows_the_level():
    rng = np.random.default_rng(3)
    levels = np.sort(rng.uniform(0, 4, size=5_000))
    true = np.exp(np.sin(levels))
    prior, degrees = variance_prior(true * rng.chisquare(5, size=levels.size) / 5, levels, 5)
    assert (degrees > 100).all()
    np.testing.assert_allclose(prior, true, rtol=0.15)


def test_the_prior_counts_less_at_levels_where_variances_vary():
    rng = np.random.default_rng(6)
    levels = rng.uniform(0, 4, size=5_000)
    freedom = np.where(levels > 2, 4, 1_000)
    true = freedom / rng.chisquare(freedom)
    _, degrees = variance_prior(true * rng.chisquare(5, size=levels.size) / 5, levels, 5)
    assert np.median(degrees[levels > 3]) < 8
    # Never more than the degrees of freedom of all columns together.
    assert degrees.max() == pytest.approx(degrees[levels < 0.5].min())


def test_few_columns_have_the_plain_t_test():
    rng = np.random.default_rng(4)
    columns, groups = rng.normal(size=(8, 3)), np.tile([0.0, 1.0], 4)
    statistics, p_values, prior_degrees = moderated(columns, groups, np.ones((8, 1)), np.ones(8), columns.mean(axis=0))
    plain = stats.ttest_ind(columns[1::2], columns[::2])
    np.testing.assert_allclose(statistics, plain.statistic)
    np.testing.assert_allclose(p_values, plain.pvalue)
    assert (prior_degrees == 0).all()


def test_columns_without_variance_are_finite():
    columns = np.zeros((6, 40))
    columns[:, 20:] = np.random.default_rng(5).normal(size=(6, 20))
    statistics = moderated(columns, np.tile([0.0, 1.0], 3), np.ones((6, 1)), np.ones(6), columns.mean(axis=0))[0]
    assert np.isfinite(statistics).all()
    assert (statistics[:20] == 0).all()


@pytest.mark.parametrize(("sizes", "spread"), [((5, 11), 3.0), ((5, 15), 1 / 3), ((4, 4), 3.0), ((8, 8), 1.0)])
def test_the_level_holds_if_one_side_varies_more(sizes, spread):
    """The t-test with one variance has 17% false positives in the first design, and 0.4% in the second."""
    group = np.repeat([1.0, 0.0], sizes)
    nuisance, weights = np.ones((group.size, 1)), np.full(group.size, 0.9)
    rates = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scale = np.where(group == 1, spread, 1.0)[:, None] * np.sqrt(8 / rng.chisquare(8, 500))
        columns = scale * rng.normal(size=(group.size, 500))
        regression, degrees = weigh(group[None], nuisance), degrees_left(nuisance, weights)
        found = allow_for_sides(columns, regression, weights, degrees)
        regression = weigh(group[None], nuisance, found)
        fit = residuals(columns, regression, found, degrees)
        factor = 1 / float(found @ regression.contrasts[0] ** 2)
        rates.append((moderated_t(*fit, np.zeros(500), factor, degrees)[1] <= 0.05).mean())
    assert np.mean(rates) == pytest.approx(0.05, abs=0.012)


def test_pairs_do_not_tell_which_side_varies_more():
    rng = np.random.default_rng(0)
    blocks, group = np.repeat(np.arange(6), 2), np.tile([1.0, 0.0], 6)
    nuisance, weights = (blocks[:, None] == np.arange(6)).astype(float), np.ones(12)
    columns = rng.normal(size=(12, 200)) * np.where(group == 1, 5.0, 1.0)[:, None]
    found = allow_for_sides(columns, weigh(group[None], nuisance), weights, degrees_left(nuisance, weights))
    np.testing.assert_allclose(found, found[0])
