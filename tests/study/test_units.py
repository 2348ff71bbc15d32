"""Distances of studies in real units: those of `calibrate`, noise and intervals carried over; what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError, MissingExtraError
from heatmover.report import render
from heatmover.study.comparison import check_enough_samples, check_units

FEATURES = ["w", "x", "y", "z"]


@pytest.fixture(scope="module")
def frame():
    data = hm.datasets.cohort(13, cells_per_sample=30, effect=4.0, n_dimensions=4)
    table = pd.DataFrame(data.points, columns=FEATURES)
    table.insert(0, "sample", data.labels)
    table["condition"] = table["sample"].str.split("-").str[0]
    table["branch"] = [f"branch {int(value)}" for value in data.coordinates[:, 0]]
    return table


@pytest.fixture(scope="module")
def cohort(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("units") / "cells.csv"
    frame.to_csv(path, index=False)
    return read_cohort(path, sample_key="sample", no_features=["branch"])


@pytest.fixture(scope="module")
def points(frame):
    return frame[FEATURES].to_numpy()


@pytest.fixture(scope="module")
def labels(frame):
    return frame["sample"].tolist()


@pytest.fixture(scope="module")
def study(cohort):
    return hm.study_cohort(
        cohort, units="euclidean", bias="corrected", n_bootstrap=30, n_neighbors=8, n_permutations=19, cells="branch"
    )


@pytest.mark.parametrize("units", ["euclidean", "geodesic"])
def test_distances_are_those_of_a_calibration(points, labels, units):
    result = hm.compare(points, labels, n_neighbors=8, units=units)
    measures = hm.measures_from_labels(labels)
    expected = hm.calibrate(
        hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=8), random_state=0), measures, points, ground=units
    )
    linear = hm.pairwise_distances(expected.model.transform(measures))
    np.testing.assert_allclose(result.distances, expected.distances(linear), rtol=1e-6)
    np.testing.assert_allclose(hm.pairwise_distances(result.embedding), linear, rtol=1e-5)
    assert result.model.weights == expected.model.weights
    assert result.calibration.plain() == expected.plain()
    assert result.max_scale_reason == "this value fits the exact distances of 64 pairs best"


def test_they_are_near_the_exact_ones(points, labels):
    result = hm.compare(points, labels, n_neighbors=8, units="euclidean")
    exact = hm.baselines.exact_emd(points, hm.measures_from_labels(labels)) + np.eye(13)
    off = np.abs(result.distances / exact - 1)[np.triu_indices(13, 1)]
    assert np.median(off) < 0.1


def test_intervals_and_floors_go_through_the_curve(study):
    comparison, curve = study.comparison, study.comparison.calibration.curve
    found = comparison.uncertainty
    np.testing.assert_array_equal(comparison.intervals.lower, curve(found.lower))
    np.testing.assert_array_equal(comparison.intervals.upper, curve(found.upper))
    np.testing.assert_array_equal(comparison.intervals.distinguishable, found.distinguishable)
    assert comparison.noise_floor(30) == curve(found.noise_floor(30))
    corrected = hm.pairwise_distances(comparison.embedding)
    np.testing.assert_allclose(comparison.distances, curve(corrected), rtol=1e-5)
    assert np.isfinite(comparison.distances).all()
    assert study.plain()["uncertainty"]["noise_floor"] == {"30": comparison.noise_floor(30)}
    floor = f"Sampling noise alone would put two identical samples of 30 cells {comparison.noise_floor(30):.2g} apart"
    assert any(floor in note for note in study.notes)


def test_a_scale_without_weight_leaves_numbers(points, labels):
    """Weights of zero between others would make a block of zeros, whose noise is none of all."""
    for seed in range(3):
        result = hm.compare(points, labels, n_neighbors=8, units="euclidean", bias="corrected", random_state=seed)
        assert min(result.model.weights) > 0
        assert np.isfinite(result.distances).all()


def test_parts_of_a_distance_have_its_unit(study):
    comparison = study.comparison
    contrast = study.contrast
    groups = np.array([name.split("-")[0] for name in comparison.names]) == contrast.group
    means = np.array([comparison.measures.toarray()[rows].mean(axis=0) for rows in (groups, ~groups)])
    embedded = comparison.model.transform(means)
    expected = float(comparison.calibration.curve(np.abs(np.diff(embedded, axis=0)).sum()))
    assert contrast.distance == pytest.approx(expected, rel=1e-4)
    assert sum(found.contribution for found in contrast.types) == pytest.approx(contrast.distance)
    assert comparison.unit_factor(0.0) == 1.0


def test_report_and_record_say_it(study):
    record, page = study.plain(), render(study)
    found = study.comparison.calibration
    assert record["units"] == found.plain()
    assert record["parameters"]["units"] == "euclidean"
    assert record["units"]["n_pairs"] == 64
    sentence = (
        f"The exact distances of 64 pairs of samples were computed. Cross-validated predictions differ from the exact "
        f"distances by a median of {100 * found.median_error:.1f}%, and for 90% of the pairs by at most "
        f"{100 * found.error_90:.1f}%."
    )
    assert any(sentence in note for note in study.notes)
    assert sentence in page
    assert f"the 90th percentile of the error was {100 * found.error_90:.1f}%" in page


def test_landmarks_are_the_points(points, labels):
    result = hm.compare(points, labels, n_neighbors=8, landmarks=80, units="euclidean")
    expected = hm.calibrate(
        hm.DiffusionEMD(result.graph, random_state=0), result.measures, result.landmarks.centers, ground="euclidean"
    )
    assert result.calibration.plain() == expected.plain()
    assert result.landmark_agreement.spearman > 0.7


def test_few_samples_use_all_pairs_and_fewer_are_refused(points, labels, frame):
    names = sorted(set(labels))
    few = frame["sample"].isin(names[:8]).to_numpy()
    result = hm.compare(points[few], frame["sample"][few].tolist(), n_neighbors=8, units="euclidean")
    assert result.calibration.plain()["n_pairs"] == 28
    fewer = frame["sample"].isin(names[:5]).to_numpy()
    with pytest.raises(
        InvalidInputError, match=r"at least \d samples for the argument units, .* found 5; leave out the argument units"
    ):
        hm.compare(points[fewer], frame["sample"][fewer].tolist(), n_neighbors=8, units="euclidean")
    assert check_enough_samples(7) == 21
    with pytest.raises(InvalidInputError, match="at least 7 samples"):
        check_enough_samples(6)


def test_a_graph_has_no_lengths(points, labels):
    with pytest.raises(InvalidInputError, match=r"points for units='geodesic', .*found a Graph"):
        hm.compare(hm.Graph.from_points(points, n_neighbors=8), labels, units="geodesic")


def test_no_path_leads_between_components(points, labels):
    apart = points.copy()
    apart[::15] += 1_000
    with pytest.warns(hm.errors.GraphWarning), pytest.raises(
        InvalidInputError, match=r"a connected graph for units='geodesic'.*found \d+ components; raise n_neighbors"
    ):  # fmt: skip
        hm.compare(apart, labels, n_neighbors=4, units="geodesic")


@pytest.mark.parametrize("units", ["miles", "Euclidean", 3, True])
def test_what_is_no_unit_is_told(cohort, points, labels, units):
    for call in (
        lambda: hm.compare(points, labels, units=units),
        lambda: hm.study_cohort(cohort, units=units),
        lambda: hm.scale.compare_cohort(cohort, units=units),
    ):
        with pytest.raises(InvalidInputError, match="units to be one of 'euclidean', 'geodesic', found"):
            call()


def test_without_pot_the_extra_is_named_before_any_work(monkeypatch, cohort):
    monkeypatch.setitem(sys.modules, "ot", None)
    check_units(None)

    def read(*_, **__):
        raise AssertionError("cells were read")

    monkeypatch.setattr(type(cohort), "points", read)
    monkeypatch.setattr(type(cohort), "chunks", read)
    for comparer in (None, hm.scale.InPieces(memory="1 GB")):
        with pytest.raises(MissingExtraError, match=r"heatmover\[exact\]"):
            hm.study_cohort(cohort, units="euclidean", comparer=comparer)


def test_weights_are_told_with_noise(points):
    weights = np.random.default_rng(0).random((12, len(points)))
    with pytest.raises(InvalidInputError, match="without weights on cells"):
        hm.compare(points, hm.measures_from_weights(weights), n_neighbors=8, units="euclidean", bias="corrected")


def test_stages_count_pairs_and_noise(cohort):
    seen = []

    class Seen:
        def stage(self, name, total):
            seen.append([name, total, 0])

        def advance(self, steps=1):
            seen[-1][2] += steps

    study = hm.study_cohort(
        cohort, units="euclidean", n_bootstrap=10, equal_cells=20, n_neighbors=8, n_permutations=19, n_jobs=1,
        progress=Seen(),
    )  # fmt: skip
    totals = {name: total for name, total, _ in seen}
    assert totals["calibrate units"] == 64
    assert totals["draw equally many"] == cohort.n_cells
    assert all(total == done for _, total, done in seen)
    names = [name for name, _, _ in seen]
    assert names == [
        "draw equally many", "find neighbors", "choose scales", "calibrate units", "diffuse measures",
        "assess noise", "compare", "diagnose graph", "test variables", "call cells",
    ]  # fmt: skip
    assert set(study.record.seconds) == set(names)
