"""Calls of single cells in a study: in memory and by landmarks, adjusted, along a number, and in words."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.attribution import explain_groups
from heatmover.study import study_comparison
from heatmover.study.cell_calls import call_cells


@pytest.fixture(scope="module")
def cohort():
    data = hm.datasets.cohort(16, cells_per_sample=100, effect=6.0)
    return data, hm.compare(data.points, data.labels)


def test_a_study_calls_what_explain_groups_calls(cohort):
    data, comparison = cohort
    condition = data.annotations["condition"]
    study = study_comparison(comparison, {"condition": condition}, n_permutations=99)
    calls = study.cell_calls
    found = explain_groups(comparison.model, comparison.measures, condition, n_permutations=99)
    np.testing.assert_allclose(calls.q_values, found.q_values)
    branch = data.coordinates[:, 0] == 4
    assert (calls.signs[branch] == 1).mean() > 0.7
    assert calls.more == pytest.approx((calls.signs == 1).mean())
    assert calls.less == pytest.approx((calls.signs == -1).mean())
    start = f"{100 * calls.more:.0f}% of the cells are in neighborhoods that are denser in 'case'"
    assert calls.describe().startswith(start)
    assert study.plain()["cell_calls"]["sentence"] == str(calls)


def test_landmarks_call_the_same_cells(cohort):
    data, comparison = cohort
    condition = data.annotations["condition"]
    by_landmarks = hm.compare(data.points, data.labels, landmarks=400)
    calls = call_cells(by_landmarks, condition, "condition")
    of_cells = calls.signs[by_landmarks.landmarks.assign(data.points)]
    # The shares are those of cells, not of landmarks.
    assert calls.more == pytest.approx((of_cells == 1).mean())
    assert (of_cells == call_cells(comparison, condition, "condition").signs).mean() > 0.9


def test_covariates_and_numbers(cohort):
    data, comparison = cohort
    condition = data.annotations["condition"]
    sex = np.tile(["f", "m"], 8)
    study = study_comparison(comparison, {"condition": condition, "sex": sex}, adjust=["sex"], n_permutations=99)
    assert study.cell_calls.adjusted == ("sex",)
    assert "adjusted for 'sex'" in study.cell_calls.describe()
    dose = np.where(condition == "case", 3.0, 0.0) + np.arange(16) / 16
    along = study_comparison(comparison, {"dose": dose}, n_permutations=199).cell_calls
    assert along.trend
    assert (along.signs[data.coordinates[:, 0] == 4] == 1).mean() > 0.5
    assert "denser with higher dose" in along.describe()


def test_a_study_says_why_no_cell_is_called():
    data = hm.datasets.cohort(6, cells_per_sample=60, effect=6.0)
    comparison = hm.compare(data.points, data.labels)
    calls = study_comparison(comparison, {"condition": data.annotations["condition"]}).cell_calls
    assert (calls.more, calls.less) == (0, 0)
    assert "cannot reach 0.05. No cell is called." in calls.describe()
    same = call_cells(comparison, ["a", "b"] * 3, "label", n_permutations=19)
    assert same.variable == "label"
    alone = study_comparison(comparison, {"one": ["a", *"bbbbb"]}, n_permutations=19)
    assert alone.cell_calls is None
