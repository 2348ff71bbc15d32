"""The interval of R squared holds the value of a very large cohort about as often as it claims."""

from __future__ import annotations

import numpy as np
import pytest

from heatmover.statistics import explained_variation
from heatmover.statistics.tests import explained_interval

COHORTS = 100


def far_apart(places):
    return np.abs(places[:, None] - places).sum(axis=-1)


def cohort(rng, n_samples, effect, blocks=None):
    groups = np.arange(n_samples) % 2
    places = rng.normal(size=(n_samples, 2))
    places[:, 0] += effect * groups
    if blocks is not None:
        places += rng.normal(size=(blocks.max() + 1, 2))[blocks]
    return far_apart(places), groups


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("effect", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("n_samples", [12, 20, 40])
def test_coverage(n_samples, effect, tied):
    rng = np.random.default_rng(0)
    many = np.arange(2_000)
    truth = explained_variation(*cohort(rng, 2_000, effect, many // 2 if tied else None)) if effect else 0.0
    blocks = np.arange(n_samples) // 2 if tied else None
    held = 0
    for _ in range(COHORTS):
        low, high = explained_interval(*cohort(rng, n_samples, effect, blocks), blocks=blocks)
        held += low <= truth <= high
    # Reached: 0.93 to 1.00 without blocks; in pairs 0.91 to 1.00, but 0.88 for six pairs and the largest effect.
    assert held / COHORTS >= (0.85 if tied else 0.9)


def test_no_interval_of_small_groups_and_of_few_blocks():
    rng = np.random.default_rng(0)
    assert explained_interval(*cohort(rng, 6, 1.0)) is None
    assert explained_interval(*cohort(rng, 12, 1.0), blocks=np.arange(12) // 4) is None
    assert explained_interval(np.zeros((12, 12)), list("ab") * 6) is None
