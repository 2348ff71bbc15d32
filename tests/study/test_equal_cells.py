"""Equally many cells from every sample: the same draw from every door, and what is said of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError
from heatmover.report import render

SIZES = [30, 45, 70, 160, 33, 52, 81, 140]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    names = np.repeat([f"s{i}" for i in range(8)], SIZES)
    table = pd.DataFrame({"sample": names, "group": np.where(names >= "s4", "late", "early")})
    table[["x", "y", "z"]] = rng.normal(size=(sum(SIZES), 3))
    table["type"] = rng.choice(["B", "T"], sum(SIZES))
    return table.sample(frac=1, random_state=0)


@pytest.fixture(scope="module")
def cohort(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("equal") / "cells.csv"
    frame.to_csv(path, index=False)
    return read_cohort(path, sample_key="sample", no_features=["type"])


@pytest.fixture(scope="module")
def result(frame):
    return hm.compare(frame[["x", "y", "z"]].to_numpy(), frame["sample"].tolist(), n_neighbors=8, equal_cells=True)


def test_the_cells_drawn_are_compared_as_if_there_were_no_others(frame, result):
    assert result.sizes.tolist() == [30] * 8
    assert result.graph.n_points == 240
    assert result.drawn.sizes.tolist() == SIZES
    alone = frame.iloc[result.drawn.rows]
    plain = hm.compare(alone[["x", "y", "z"]].to_numpy(), alone["sample"].tolist(), n_neighbors=8)
    np.testing.assert_array_equal(result.distances, plain.distances)


def test_the_order_of_points_does_not_matter(frame, result):
    turned = frame.iloc[::-1]
    again = hm.compare(turned[["x", "y", "z"]].to_numpy(), turned["sample"].tolist(), n_neighbors=8, equal_cells=True)
    np.testing.assert_array_equal(again.distances, result.distances)


def test_a_study_draws_the_same_cells(cohort, result):
    study = hm.study_cohort(cohort, equal_cells=True, n_neighbors=8, cells="type", bias="raw", n_permutations=19)
    np.testing.assert_array_equal(study.comparison.distances, result.distances)
    assert sum(found.cells for found in study.contrast.types) == 240
    assert study.record.parameters["equal_cells"] is True
    assert study.plain()["drawn"] == {"n_cells": 30, "fewest": 30, "most": 160, "drawn": 240, "of": sum(SIZES)}
    sentence = "30 cells were drawn from every sample, 240 of 611 cells in total (samples have 30 to 160 cells)"
    assert any(sentence in note for note in study.notes)
    assert render(study).count(sentence) >= 2


def test_a_number_with_small_samples_left_out(cohort):
    study = hm.study_cohort(cohort, equal_cells=50, min_cells=50, n_neighbors=8, n_permutations=19)
    assert study.comparison.names == ("s2", "s3", "s5", "s6", "s7")
    assert study.comparison.sizes.tolist() == [50] * 5


def test_landmarks_stand_for_the_cells_drawn(cohort):
    study = hm.study_cohort(cohort, equal_cells=True, n_neighbors=8, landmarks=40, cells="type", n_permutations=19)
    assert study.comparison.landmarks.counts.sum() == 240
    assert sum(found.cells for found in study.contrast.types) == 240


def test_noise_is_that_of_the_cells_drawn(frame):
    found = hm.compare(
        frame[["x", "y", "z"]].to_numpy(), frame["sample"].tolist(), n_neighbors=8, equal_cells=40 // 2,
        bias="corrected", n_bootstrap=20,
    )  # fmt: skip
    assert found.uncertainty.sizes.tolist() == [20] * 8


def test_a_graph_keeps_its_nodes(frame):
    points = frame[["x", "y", "z"]].to_numpy()
    graph = hm.Graph.from_points(points, n_neighbors=8)
    found = hm.compare(graph, frame["sample"].tolist(), equal_cells=True)
    assert found.graph is graph
    assert found.sizes.tolist() == [30] * 8
    assert found.measures.shape == (8, len(points))
    assert np.diff(found.measures.masses.indptr).tolist() == [30] * 8


def test_weights_are_refused(frame):
    points = frame[["x", "y", "z"]].to_numpy()
    weights = np.random.default_rng(0).random((2, len(points)))
    with pytest.raises(InvalidInputError, match=r"samples whose points have equal weight, .*found unequal weights in"):
        hm.compare(points, hm.measures_from_weights(weights, names=["a", "b"]), n_neighbors=8, equal_cells=True)


@pytest.mark.parametrize(("value", "message"), [(31, "fewer in 1 of 8"), (0, "at least 2"), ("all", "'all'")])
def test_what_cannot_be_drawn_is_told(cohort, value, message):
    with pytest.raises(InvalidInputError, match=message):
        hm.study_cohort(cohort, equal_cells=value)


def test_a_sample_of_one_cell_is_told():
    with pytest.raises(
        InvalidInputError, match=r"at least 2 cells in every sample.*\('b'\); leave smaller samples out"
    ):
        hm.compare(np.arange(12.0).reshape(6, 2), ["a"] * 5 + ["b"], n_neighbors=2, equal_cells=True)
