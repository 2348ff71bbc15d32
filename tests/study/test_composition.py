"""Shares of cell types in samples, counted cell by cell, in memory and in pieces alike."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.study.cell_types import SampleComposition
from heatmover.study.scale import InPieces


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 2)), columns=["x", "y"])
    frame["sample"] = [f"s{i}" for i in rng.integers(8, size=400)]
    frame["group"] = ["a" if int(name[1:]) % 2 else "b" for name in frame["sample"]]
    frame["type"] = np.where(frame["x"] > 0.5, "right", np.where(frame["y"] > 0, "up", "down"))
    frame.loc[::40, "type"] = None
    path = tmp_path_factory.mktemp("cells") / "cells.csv"
    frame.to_csv(path, index=False)
    return path, frame


@pytest.mark.parametrize("comparer", [None, InPieces(memory="1 GB")], ids=["in memory", "in pieces"])
def test_shares_are_those_that_one_counts(cells, comparer):
    path, frame = cells
    cohort = read_cohort(path, sample_key="sample")
    study = hm.study_cohort(
        cohort, variables=["group"], cells="type", comparer=comparer, landmarks=60, n_neighbors=10, n_permutations=9
    )
    found = study.composition
    assert found.annotation == "type"
    assert set(found.types) == {"right", "up", "down", "not annotated"}
    assert found.shares.mean(axis=0).tolist() == sorted(found.shares.mean(axis=0), reverse=True)
    for name, shares in zip(study.comparison.names, found.shares, strict=True):
        own = frame[frame["sample"] == name]["type"].where(lambda column: column.notna(), "not annotated")
        counted = Counter(own)
        np.testing.assert_allclose(shares, [counted[kind] / len(own) for kind in found.types], atol=1e-12)


def test_there_are_shares_without_groups_and_none_without_types(cells):
    cohort = read_cohort(cells[0], sample_key="sample")
    plain = {"n_neighbors": 10, "n_permutations": 9, "variables": []}
    study = hm.study_cohort(cohort, cells="type", **plain)
    assert study.contrast is None
    assert study.composition.shares.shape == (8, 4)
    assert hm.study_cohort(cohort, **plain).composition is None


def test_the_rare_are_put_together():
    shares = np.array([[0.5, 0.2, 0.15, 0.1, 0.05], [0.5, 0.3, 0.1, 0.05, 0.05]])
    found = SampleComposition("type", tuple("abcde"), shares)
    assert found.largest(4) is found  # one type by itself is called by its name
    two = found.largest(2)
    assert two.types == ("a", "b", "other (3 types)")
    np.testing.assert_allclose(two.shares, [[0.5, 0.2, 0.3], [0.5, 0.3, 0.2]])
    with pytest.raises(hm.InvalidInputError, match="most"):
        found.largest(0)
