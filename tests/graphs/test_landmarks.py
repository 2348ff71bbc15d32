"""Landmarks: exact nearest centers, plain histograms, and the same bits for any threads and chunks."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph, Landmarks
from heatmover.graphs import centers as module
from heatmover.measures import measures_from_labels


def gaussian(n_points=600, n_dimensions=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n_points, n_dimensions))


def brute_force(points, centers):
    """The first of the nearest centers."""
    return np.array([np.square(point - centers).sum(axis=1).argmin() for point in points])


def test_landmarks_are_means_of_their_points_and_count_them():
    points = np.r_[gaussian(100), 50 + gaussian(200, seed=1), -50 + gaussian(50, seed=2)]
    landmarks = Landmarks.from_points(points, 20, n_iterations=100)
    assignment_ = landmarks.assign(points)
    np.testing.assert_array_equal(assignment_, brute_force(points, landmarks.centers))
    np.testing.assert_array_equal(landmarks.counts, np.bincount(assignment_))
    for number in range(landmarks.n_landmarks):  # settled: Lloyd's fixed point
        np.testing.assert_allclose(landmarks.centers[number], points[assignment_ == number].mean(axis=0), atol=1e-12)
    assert landmarks.distortion == pytest.approx(np.square(points - landmarks.centers[assignment_]).sum(axis=1).mean())


def test_iterations_lower_the_distortion():
    points = gaussian(2000)
    drawn, moved = (Landmarks.from_points(points, 100, n_iterations=n).distortion for n in (0, 5))
    assert moved < 0.85 * drawn


@pytest.mark.parametrize("n_dimensions", [2, 12])
def test_a_seed_gives_the_same_landmarks_on_any_number_of_threads(n_dimensions, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 100)
    points = gaussian(3000, n_dimensions)
    found = [Landmarks.from_points(points, 200, n_jobs=n, random_state=3) for n in (1, 2, 5)]
    for other in found[1:]:
        np.testing.assert_array_equal(other.centers, found[0].centers)
        np.testing.assert_array_equal(other.counts, found[0].counts)
        assert other.distortion == found[0].distortion
    assert not np.array_equal(Landmarks.from_points(points, 200, random_state=4).centers, found[0].centers)


def test_a_generator_is_as_good_as_a_seed():
    points = gaussian()
    a, b = (Landmarks.from_points(points, 30, random_state=state) for state in (5, np.random.default_rng(5)))
    np.testing.assert_array_equal(a.centers, b.centers)


def test_every_landmark_has_points_even_among_duplicates():
    places = gaussian(40, 2)
    points = places[np.random.default_rng(0).integers(0, 40, 5000)]
    landmarks = Landmarks.from_points(points, 40)
    assert landmarks.distortion < 1e-20
    assert landmarks.counts.min() > 0
    assert landmarks.counts.sum() == 5000
    np.testing.assert_allclose(np.unique(landmarks.centers.round(9), axis=0), np.unique(places.round(9), axis=0))


def test_more_landmarks_than_different_points_are_refused_with_advice():
    with pytest.raises(InvalidInputError, match="found 3 points; use at most 3 landmarks"):
        Landmarks.from_points(gaussian(3), 4)
    with pytest.raises(InvalidInputError, match="5,000 points, 2 of them distinct; use at most 2"):
        Landmarks.from_points(np.arange(5000)[:, None] % 2, 3)


def test_single_precision_points_are_assigned_like_their_doubles():
    points = gaussian().astype(np.float32)
    a, b = Landmarks.from_points(points, 30), Landmarks.from_points(points.astype(float), 30)
    np.testing.assert_array_equal(a.centers, b.centers)
    np.testing.assert_array_equal(a.assign(points), b.assign(points.astype(float)))


@pytest.mark.parametrize(
    ("points", "n_landmarks", "message"),
    [
        ([[0.0], [np.nan]], 1, "without NaN"),
        ([[0.0], [1e200]], 1, "rescale"),
        ([1.0, 2.0], 1, "2-d array"),
        ([["a"], ["b"]], 1, "points"),
        ([[0.0], [1.0]], 0, "at least 1"),
        ([[0.0], [1.0]], 1.5, "whole number"),
        (np.empty((0, 2)), 1, "at least one row"),
    ],
)
def test_bad_points_are_refused(points, n_landmarks, message):
    with pytest.raises(InvalidInputError, match=message):
        Landmarks.from_points(points, n_landmarks)


def test_assign_refuses_another_space():
    with pytest.raises(InvalidInputError, match="4 dimensions of the landmarks, found 3"):
        Landmarks.from_points(gaussian(), 10).assign(gaussian(5, 3))


def plain_histograms(labels, places, n_landmarks):
    counts = Counter(zip(labels, places, strict=True))
    names = sorted(set(labels))
    rows = np.array([[counts[name, place] for place in range(n_landmarks)] for name in names], dtype=float)
    return names, rows / rows.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def labeled():
    points = gaussian(500)
    labels = np.random.default_rng(2).choice(["b", "a", "zz", "c"], 500)
    return points, labels, Landmarks.from_points(points, 25)


def test_histograms_are_counts_of_a_plain_loop(labeled):
    points, labels, landmarks = labeled
    places = landmarks.assign(points)
    measures = landmarks.measures(labels, places)
    names, expected = plain_histograms(labels.tolist(), places.tolist(), 25)
    assert list(measures.names) == names
    np.testing.assert_allclose(measures.toarray(), expected, rtol=1e-15)


@given(edges=st.lists(st.integers(1, 499), max_size=6, unique=True))
@settings(max_examples=25, deadline=None)
def test_chunks_give_the_whole_to_the_bit(labeled, edges):
    points, labels, landmarks = labeled
    histograms = landmarks.histograms()
    for chunk in np.split(np.arange(500), sorted(edges)):
        histograms.add(points[chunk], labels[chunk])
    whole = landmarks.measures(labels, landmarks.assign(points))
    parts = histograms.measures()
    assert parts.names == whole.names
    np.testing.assert_array_equal(parts.toarray(), whole.toarray())
    assert histograms.n_points == 500
    assert histograms.distortion == pytest.approx(landmarks.distortion)


@pytest.mark.parametrize("labels", [[10, 9, 2, 9], ["10", "9", "2", "9"], pd.Categorical(["x", "y", "x", "z"])])
def test_samples_come_in_the_order_of_measures_from_labels(labeled, labels):
    measures = labeled[2].measures(labels, [0, 1, 2, 3])
    assert measures.names == measures_from_labels(labels).names


def test_labels_without_a_common_order_are_sorted_by_name(labeled):
    histograms = labeled[2].histograms().add_assigned([0], [10]).add_assigned([1], ["9"]).add_assigned([2], [10])
    assert histograms.measures().names == ("10", "9")
    assert histograms.measures().toarray()[0, [0, 2]].tolist() == [0.5, 0.5]


def test_weighted_measures_move_to_the_landmarks(labeled):
    points, labels, landmarks = labeled
    places = landmarks.assign(points)
    np.testing.assert_allclose(
        landmarks.measures(measures_from_labels(labels), places).toarray(),
        landmarks.measures(labels, places).toarray(),
        rtol=1e-12,
    )
    with pytest.raises(InvalidInputError, match="found 500 points"):
        landmarks.measures(measures_from_labels(labels), places[:4])


def test_a_refused_chunk_changes_nothing(labeled):
    points, labels, landmarks = labeled
    histograms = landmarks.histograms().add(points[:9], labels[:9])
    before = histograms.measures().toarray()
    for bad in (
        lambda: histograms.add(points[:5], labels[:4]),
        lambda: histograms.add(points[:2], ["a", None]),
        lambda: histograms.add([[np.nan] * 4], ["new"]),
        lambda: histograms.add_assigned([25], ["new"]),
        lambda: histograms.add_assigned([0.5], ["new"]),
    ):
        with pytest.raises(InvalidInputError):
            bad()
    np.testing.assert_array_equal(histograms.measures().toarray(), before)
    assert histograms.n_points == 9


def test_empty_histograms_say_so(labeled):
    assert np.isnan(labeled[2].histograms().distortion)
    with pytest.raises(InvalidInputError, match="none added"):
        labeled[2].histograms().measures()


def test_the_graph_is_that_of_the_centers():
    landmarks = Landmarks.from_points(gaussian(), 80)
    graph = landmarks.graph(8, kernel="adaptive")
    expected = Graph.from_points(landmarks.centers, 8, kernel="adaptive")
    np.testing.assert_array_equal(graph.affinity.toarray(), expected.affinity.toarray())
    with pytest.raises(InvalidInputError, match="use n_neighbors of at most 79"):
        landmarks.graph(80)


def test_landmarks_do_not_change_and_survive_a_pickle():
    landmarks = Landmarks.from_points(gaussian(), 30)
    again = pickle.loads(pickle.dumps(landmarks))
    np.testing.assert_array_equal(again.assign(gaussian(50, seed=9)), landmarks.assign(gaussian(50, seed=9)))
    assert repr(again) == repr(landmarks)
    assert dict(again.how) == dict(landmarks.how)
    for found in (landmarks, again):
        with pytest.raises(ValueError, match="read-only"):
            found.centers[0] = 0
