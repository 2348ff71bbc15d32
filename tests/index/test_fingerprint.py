"""Fingerprints tell models apart by what defines their embedding, and by nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import heatmover as hm
from heatmover.index.fingerprint import fingerprint

POINTS = np.random.default_rng(0).normal(size=(80, 2))


def made(points=POINTS, **options):
    return hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=8), **{"max_scale": 5, **options}).fit()


def test_models_of_one_definition_share_it():
    base = fingerprint(made())
    for same in ({"method": "exact"}, {"n_jobs": 1}, {"tol": 1e-4, "dtype": "float32"}):
        assert fingerprint(made(**same)) == base


@pytest.mark.parametrize(
    "change",
    [
        {"max_scale": 6},
        {"alpha": 0.4},
        {"n_scales": 3},
        {"density": "function"},
        {"norm": "increments"},
        {"dtype": "float64"},
        {"compress": 0.3},
        {"weights": [1, 1, 1, 2]},
        {"points": POINTS[::-1]},
        {"points": POINTS + 1e-9 * POINTS**2},
    ],
)
def test_another_definition_has_another(change):
    assert fingerprint(made(**change)) != fingerprint(made())


def test_a_model_has_to_be_fitted():
    with pytest.raises(NotFittedError):
        fingerprint(hm.DiffusionEMD())
