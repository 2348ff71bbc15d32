"""Table 2 compares every column with the paper, and the number of centers with ranks of powers that are computed."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def table(script):
    return script("table_multiscale")


def test_ranks_are_those_of_the_explicit_powers(table):
    points = np.random.default_rng(0).normal(size=(40, 2))
    affinity = np.exp(-np.square(points[:, None] - points[None]).sum(axis=2))
    Q = np.diag(1 / affinity.sum(axis=1))
    normalized = Q @ affinity @ Q
    D = np.diag(normalized.sum(axis=1) ** -0.5)
    M, expected = D @ normalized @ D, []
    for k in range(6):
        singular = np.linalg.svd(np.linalg.matrix_power(M, 2**k), compute_uv=False)
        expected.append(int((singular / singular[0] >= 1e-4).sum()))
    assert len(set(expected)) > 4
    assert table.ranks_of_powers(affinity, 1e-4, range(6)) == expected


@pytest.mark.parametrize(
    ("centers", "ranks", "follows"),
    [
        ([1000, 93, 21], [152, 89, 21], True),
        ([1000, 93, 21], [60, 89, 21], False),  # all points, where the rank is small
        ([500, 93, 21], [152, 89, 21], False),
        ([256, 256, 256], [152, 89, 21], False),  # the floor of the defaults
        ([1000, 93, 25], [152, 89, 21], True),
        ([1000, 93, 27], [152, 89, 21], False),
    ],
)
def test_centers_follow_the_ranks(table, centers, ranks, follows):
    assert table.follows_ranks(centers, ranks, 1000) is follows


def test_every_column_is_compared(table, monkeypatch):
    assert table.differs("diffusion_emd") == "as printed"
    assert table.differs("grid_emd") == "bins per scale: paper d^(2^k)"
    assert table.differs("quad_tree") == "not in the paper's table"
    for field, value in (("scales", "three"), ("bins_per_scale", "256"), ("smooth_bins", False), ("geodesic", False)):
        changed = {**table.TRAITS, "diffusion_emd": table.TRAITS["diffusion_emd"]._replace(**{field: value})}
        monkeypatch.setattr(table, "TRAITS", changed)
        assert table.differs("diffusion_emd") != "as printed"
        monkeypatch.undo()
