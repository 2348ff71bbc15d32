"""Outliers: homogeneous cohorts rarely have one, and a foreign sample is found."""

from __future__ import annotations

import numpy as np
import pytest

from heatmover.statistics.outliers import FAR, outlyingness

COHORTS = 400


def far_apart(places):
    return np.abs(places[:, None] - places).sum(axis=-1)


@pytest.mark.parametrize(("n_samples", "n_groups", "n_dimensions"), [(10, 1, 3), (16, 2, 2), (30, 3, 2), (60, 1, 20)])
def test_homogeneous_cohorts_rarely_have_an_outlier_and_a_foreign_sample_is_found(n_samples, n_groups, n_dimensions):
    rng = np.random.default_rng(0)
    groups = np.arange(n_samples) % n_groups
    false, found = 0, 0
    for _ in range(COHORTS):
        # Groups lie in different places and are unequally spread.
        places = (1 + groups[:, None]) * rng.normal(size=(n_samples, n_dimensions)) + 5 * groups[:, None]
        false += (outlyingness(far_apart(places), groups) > FAR).any()
        places[0] += 14 / np.sqrt(n_dimensions) * rng.choice([-1, 1], n_dimensions)
        found += outlyingness(far_apart(places), groups)[0] > FAR
    assert false / COHORTS <= 0.05
    assert found / COHORTS >= 0.9


def test_too_few_samples_and_small_groups_are_not_judged():
    rng = np.random.default_rng(0)
    assert np.isnan(outlyingness(far_apart(rng.normal(size=(9, 2))))).all()
    assert np.isnan(outlyingness(np.zeros((12, 12)))).all()
    far = outlyingness(far_apart(rng.normal(size=(14, 2))), ["many"] * 11 + ["few"] * 3)
    assert np.isnan(far).tolist() == [False] * 11 + [True] * 3
