"""What landmarks cost is measured honestly, and `compare` uses them when asked or when points are many."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.study import comparison
from heatmover.study.comparison import LandmarkAgreement, _draw_points, quota


@pytest.fixture(scope="module")
def data():
    return hm.datasets.cohort(12, cells_per_sample=100, effect=4.0)


@pytest.fixture(scope="module")
def through(data):
    return hm.compare(data.points, data.labels, landmarks=300)


class Recorder:
    def __init__(self):
        self.stages = []

    def stage(self, name, total):
        self.stages.append([name, total, 0])

    def advance(self, steps=1):
        self.stages[-1][2] += steps


def test_compare_through_landmarks_is_what_the_single_calls_give(data, through):
    landmarks = hm.Landmarks.from_points(data.points, 300)
    plain = hm.compare(landmarks.graph(), landmarks.measures(data.labels, landmarks.assign(data.points)))
    np.testing.assert_array_equal(through.landmarks.centers, landmarks.centers)
    np.testing.assert_allclose(through.distances, plain.distances, rtol=1e-5)
    assert through.sizes.tolist() == [100] * 12
    assert through.graph.n_points == landmarks.n_landmarks


def test_the_result_says_that_landmarks_were_used_and_what_they_cost(data, through):
    assert through.landmark_agreement == hm.landmark_agreement(through.landmarks, data.points, data.labels)
    assert "approximated by 300 landmarks, Spearman 0." in repr(through)
    assert "on a graph over 1,200 points" in str(through.landmark_agreement)
    without = hm.compare(data.points, data.labels)
    assert (without.landmarks, without.landmark_agreement) == (None, None)
    assert "landmarks" not in repr(without)


def test_the_loss_on_all_points_is_the_agreement_with_the_full_graph(data, through):
    full = hm.compare(data.points, data.labels, landmarks=None)
    assert through.landmark_agreement.n_points == 1200
    assert through.landmark_agreement.spearman == pytest.approx(
        hm.metrics.spearman(full.distances, through.distances), abs=1e-3
    )


def test_points_that_are_their_own_landmarks_lose_nothing(data):
    landmarks = hm.Landmarks.from_points(data.points, len(data.points))
    loss = hm.landmark_agreement(landmarks, data.points, data.labels)
    assert loss.spearman > 0.99  # the nodes are numbered differently, and so other points choose the scales
    assert loss.unexplained < 1e-20


def test_few_landmarks_lose_more_than_many(data):
    losses = []
    for count in (31, 600):
        landmarks = hm.Landmarks.from_points(data.points, count)
        losses.append(hm.landmark_agreement(landmarks, data.points, data.labels))
    assert losses[0].spearman < losses[1].spearman
    assert losses[0].unexplained > 2 * losses[1].unexplained


def test_easy_data_lose_little():
    easy = hm.datasets.line(20, points_per_measure=100)
    loss = hm.landmark_agreement(hm.Landmarks.from_points(easy.points, 400), easy.points, easy.labels)
    assert loss.spearman > 0.99


def test_threads_change_no_bit(data, through):
    alone = hm.compare(data.points, data.labels, landmarks=300, n_jobs=1)
    np.testing.assert_array_equal(alone.distances, through.distances)
    assert alone.landmark_agreement == through.landmark_agreement


def test_landmarks_come_by_themselves_when_points_are_many(data, monkeypatch):
    monkeypatch.setattr(comparison, "LANDMARKS_ABOVE", 1199)
    monkeypatch.setattr(comparison, "LANDMARKS", 200)
    watcher = Recorder()
    assert hm.compare(data.points, data.labels, progress=watcher).landmarks.n_landmarks == 200
    assert [name for name, *_ in watcher.stages] == [
        "find landmarks",
        "find neighbors",
        "choose scales",
        "diffuse measures",
        "measure the agreement",
        "compare",
    ]
    assert all(total == done for _, total, done in watcher.stages)
    assert hm.compare(data.points, data.labels, landmarks=None).landmarks is None
    assert hm.compare(hm.Graph.from_points(data.points), data.labels).landmarks is None
    monkeypatch.setattr(comparison, "LANDMARKS_ABOVE", 1200)
    assert hm.compare(data.points, data.labels).landmarks is None


def test_many_points_on_few_places_are_joined_as_they_are(monkeypatch):
    monkeypatch.setattr(comparison, "LANDMARKS_ABOVE", 500)
    points = np.repeat(np.arange(60.0), 10)[:, None]
    result = hm.compare(points, np.repeat(["a", "b", "c"], 200))
    assert result.landmarks is None
    assert result.graph.n_points == 600


@pytest.mark.parametrize(
    ("landmarks", "message"),
    [
        ("many", "'auto' or none"),
        (0, "at least 1"),
        (2.5, "whole number"),
        (5000, "use at most 1,200"),
        (10, "use n_neighbors of at most 9"),
    ],
)
def test_bad_numbers_of_landmarks_are_refused(data, landmarks, message):
    with pytest.raises(InvalidInputError, match=message):
        hm.compare(data.points, data.labels, landmarks=landmarks)


def test_landmarks_of_a_graph_are_refused(data):
    with pytest.raises(InvalidInputError, match="found a Graph; give the points"):
        hm.compare(hm.Graph.from_points(data.points), data.labels, landmarks=100)


def test_two_samples_have_distances_without_ranks(data):
    chosen = np.isin(data.labels, np.unique(data.labels)[:2])
    result = hm.compare(data.points[chosen], np.asarray(data.labels)[chosen], landmarks=60)
    assert np.isnan(result.landmark_agreement.spearman)
    assert result.distances[0, 1] > 0


def test_labels_must_fit_the_points(data):
    landmarks = hm.Landmarks.from_points(data.points, 50)
    with pytest.raises(InvalidInputError, match="found 3 labels"):
        hm.landmark_agreement(landmarks, data.points, ["a", "b", "c"])


def test_the_draw_keeps_small_samples_whole_and_every_mass_in_place():
    labels = np.repeat(["a", "b", "c", "d"], [500, 10, 300, 60])
    masses = hm.measures_from_labels(labels).masses
    drawn, part = _draw_points(masses, 200, np.random.default_rng(0))
    assert np.diff(part.indptr).tolist() == [65, 10, 65, 60]
    assert (np.diff(drawn) > 0).all()
    np.testing.assert_array_equal(part.toarray() > 0, masses[:, drawn].toarray() > 0)
    for row in range(4):  # of equal masses, equal ones are drawn
        assert np.ptp(part.data[part.indptr[row] : part.indptr[row + 1]]) == 0


def test_heavy_points_are_drawn_with_their_mass():
    weights = np.r_[100.0, np.ones(300)]
    masses = hm.measures_from_weights([weights, weights[::-1]]).masses
    _, part = _draw_points(masses, 100, np.random.default_rng(0))
    shares = part.toarray() / part.sum(axis=1)[:, None]
    np.testing.assert_allclose(shares.max(axis=1), 0.25, atol=0.02)


def test_of_too_many_samples_some_are_drawn():
    masses = hm.measures_from_labels(np.repeat(np.arange(100), 60)).masses
    drawn, part = _draw_points(masses, 500, np.random.default_rng(0))
    assert part.shape == (10, 500)
    assert drawn.size == 500


@pytest.mark.parametrize(("sizes", "n_points", "expected"), [([5, 5], 100, 5), ([5, 50], 25, 20), ([9, 9, 9], 2, 1)])
def test_quota(sizes, n_points, expected):
    assert quota(np.array(sizes), n_points) == expected


def test_a_loss_reads_as_a_sentence():
    loss = LandmarkAgreement(spearman=0.9, unexplained=0.1, n_points=10, n_samples=3, n_landmarks=4)
    assert loss.describe() == "approximated by 4 landmarks, Spearman 0.900 with distances on 10 points"
