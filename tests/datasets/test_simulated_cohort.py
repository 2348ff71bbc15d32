from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist

from heatmover.datasets import Effect, cohort
from heatmover.datasets.simulated_cohort import grow_tree
from heatmover.errors import InvalidInputError


def on_every_branch(n_branches, n_positions):
    """Coordinates at equal steps along every branch, both ends included."""
    positions = np.linspace(0, 1, n_positions)
    return np.column_stack([np.repeat(np.arange(n_branches), n_positions), np.tile(positions, n_branches)])


@pytest.mark.parametrize("n_branches", range(3, 16))
def test_the_geodesic_is_the_shortest_path_along_the_tree(n_branches):
    n_positions = 201
    tree = grow_tree(n_branches)
    coordinates = on_every_branch(n_branches, n_positions)
    points = tree.locate(coordinates)
    # Points follow each other along a branch, and one that begins where another ends is joined to it; which those
    # are is seen in space, not asked of the tree.
    index = np.arange(len(points)).reshape(n_branches, n_positions)
    steps = np.column_stack([index[:, :-1].ravel(), index[:, 1:].ravel()])
    starts, ends = index[:, 0], index[:, -1]
    joints = np.argwhere(cdist(points[ends], points[starts]) < 1e-9)
    edges = np.vstack([steps, np.column_stack([ends[joints[:, 0]], starts[joints[:, 1]]])])
    # An edge of length zero would be no edge for scipy.
    lengths = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1) + 1e-12
    graph = csr_array((lengths, edges.T), shape=(len(points), len(points)))
    some = np.arange(0, len(points), 67)
    paths = dijkstra(graph, directed=False, indices=some)
    # Straight pieces of length h of a unit circle are short by h^2 / 24, relatively: 1e-6.
    np.testing.assert_allclose(tree.distance(coordinates[some], coordinates), paths, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("n_branches", range(3, 16))
def test_branches_keep_apart(n_branches):
    tree = grow_tree(n_branches)
    coordinates = on_every_branch(n_branches, 21)
    points, truth = tree.locate(coordinates), tree.distance(coordinates, coordinates)
    assert (cdist(points, points) >= 0.38 * truth).all()


def test_the_shape_of_the_tree():
    np.testing.assert_array_equal(grow_tree(5).parents, [-1, 0, 0, 1, 1])
    np.testing.assert_array_equal(grow_tree(6).parents, [-1, 0, 0, 1, 1, 1])


def test_distances_on_the_default_tree_by_hand():
    # Trunk 0 splits into 1 and 2; 1 splits into 3 and 4.
    here = np.array([[3, 0.25]])
    there = np.array([[3, 0.75], [4, 0.5], [1, 0.5], [2, 0.5], [0, 0.5]])
    truth = cohort(2, cells_per_sample=1).ground_distance(here, there)
    np.testing.assert_allclose(truth, [[0.5, 0.75, 0.75, 1.75, 1.75]])


def test_names_and_annotations_belong_together():
    data = cohort(7, cells_per_sample=4)
    names = data.measures().names
    assert names == ("case-01", "case-02", "case-03", "control-01", "control-02", "control-03", "control-04")
    assert [name.split("-")[0] for name in names] == list(data.annotations["condition"])
    assert data.annotations["composition"].shape == (7, 5)
    assert (data.measures().masses.sum(axis=1) == 1).all()
    assert list(data.labels[::4]) == list(names)


def test_names_of_many_samples_sort_by_number():
    names = cohort(230, cells_per_sample=1).measures().names
    assert names[0] == "case-001"
    assert names[114:116] == ("case-115", "control-001")
    assert names[-1] == "control-115"


def test_cells_follow_the_composition_of_their_sample():
    data = cohort(10, cells_per_sample=2000)
    branch = data.coordinates[:, 0].reshape(10, 2000)
    found = (branch[:, :, None] == np.arange(5)).mean(axis=1)
    stated = data.annotations["composition"]
    np.testing.assert_allclose(stated.sum(axis=1), 1)
    assert (np.abs(found - stated) < 5 * np.sqrt(stated * (1 - stated) / 2000)).all()


def share_of_the_last_branch(effect, n_branches=5, n_samples=3000):
    """The mean over cases and over controls, and the larger of the two standard errors."""
    data = cohort(n_samples, cells_per_sample=1, effect=effect, n_branches=n_branches)
    last, case = data.annotations["composition"][:, -1], data.annotations["condition"] == "case"
    return last[case].mean(), last[~case].mean(), last.std() / np.sqrt(n_samples / 2)


@pytest.mark.parametrize("n_branches", [3, 5, 8])
@pytest.mark.parametrize("effect", [-0.5, 0, 0.5, 3])
def test_cases_are_enriched_in_the_last_branch_by_the_stated_effect(effect, n_branches):
    case, control, error = share_of_the_last_branch(effect, n_branches)
    odds = (1 + effect) / (n_branches - 1)
    assert case == pytest.approx(odds / (1 + odds), abs=4 * error)
    assert control == pytest.approx(1 / n_branches, abs=4 * error)


def test_no_effect_is_none():
    data = cohort(3000, cells_per_sample=1, effect=0)
    case = data.annotations["condition"] == "case"
    composition = data.annotations["composition"]
    gap = composition[case].mean(axis=0) - composition[~case].mean(axis=0)
    assert (np.abs(gap) < 4 * composition.std(axis=0) * np.sqrt(2 / 1500)).all()
    strong = share_of_the_last_branch(1.0)
    assert strong[0] - strong[1] > 20 * strong[2]


@pytest.mark.parametrize("progression", [0, 1, 4])
def test_cases_progress_along_the_last_branch_only(progression):
    data = cohort(20, cells_per_sample=2000, effect=Effect(enrichment=0, progression=progression))
    case = np.char.startswith(data.labels, "case")
    branch, position = data.coordinates.T
    for last in (True, False):
        for is_case in (True, False):
            chosen = position[((branch == 4) == last) & (case == is_case)]
            expected = (1 + progression) / (2 + progression) if last and is_case else 0.5
            assert chosen.mean() == pytest.approx(expected, abs=4 * chosen.std() / np.sqrt(chosen.size))
    assert position.min() >= 0
    assert position.max() <= 1


def test_a_number_is_an_enrichment():
    a, b = cohort(4, effect=2), cohort(4, effect=Effect(enrichment=2, progression=0))
    np.testing.assert_array_equal(a.points, b.points)


def test_the_condition_is_visible_in_the_exact_distances():
    data = cohort(12, cells_per_sample=60, effect=Effect(enrichment=4, progression=2))
    distances, case = data.exact_emd(), data.annotations["condition"] == "case"
    across = distances[case][:, ~case].mean()
    within = distances[case][:, case].sum() / 30, distances[~case][:, ~case].sum() / 30
    assert across > 1.2 * max(within)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 1}, "n_samples to be a whole number of at least 2, found 1"),
        ({"cells_per_sample": 0}, "cells_per_sample to be a whole number of at least 1"),
        ({"n_branches": 2}, "n_branches to be a whole number of at least 3"),
        ({"n_branches": 16}, "n_branches to be at most 15, found 16"),
        ({"effect": -1}, "enrichment to be a number in \\(-1, infinity\\), found -1"),
        ({"effect": np.nan}, "enrichment"),
        ({"effect": "large"}, "enrichment to be a number"),
        ({"noise": -1}, "noise to be a finite number of at least 0"),
        ({"random_state": "x"}, "random_state"),
        ({"n_samples": 5, "paired": True}, "an even n_samples, because each donor has two samples, found 5"),
        ({"paired": 1}, "paired to be True or False"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidInputError, match=message):
        cohort(**options)


def test_a_bad_progression():
    with pytest.raises(InvalidInputError, match="progression to be a finite number of at least 0"):
        Effect(progression=-0.5)


def test_paired_samples_share_their_donor():
    data = cohort(400, cells_per_sample=1, effect=0, paired=True)
    names, donors = data.measures().names, data.annotations["donor"]
    assert [name.split("-")[1] for name in names] == [donor.split("-")[1] for donor in donors]
    assert sorted(donors) == sorted(2 * [f"donor-{i:03}" for i in range(1, 201)])
    case, control = data.annotations["composition"][:200], data.annotations["composition"][200:]
    # Within a donor: two draws of variance p (1 - p) / 201; between donors also that of the donor.
    within = (case - control).std()
    apart = (case - np.roll(control, 1, axis=0)).std()
    assert within == pytest.approx(np.sqrt(2 * 0.2 * 0.8 / 201), rel=0.15)
    assert apart == pytest.approx(np.sqrt(2 * 0.2 * 0.8 / 201 + 2 * 0.2 * 0.8 / 31), rel=0.15)


def test_the_odds_of_paired_cases_grow_within_their_donor():
    data = cohort(2000, cells_per_sample=1, effect=3, paired=True)
    shares = data.annotations["composition"][:, -1]
    odds = shares / (1 - shares)
    assert np.median(odds[:1000] / odds[1000:]) == pytest.approx(4, rel=0.05)


def test_a_cohort_that_is_not_paired_is_as_it_was():
    data = cohort(6, cells_per_sample=5, random_state=0)
    assert "donor" not in data.annotations
    # As before there were pairs: examples and pages show these numbers.
    np.testing.assert_allclose(
        data.annotations["composition"][0],
        [0.16226820468403425, 0.20322526200276056, 0.11824861328373452, 0.2654955887301542, 0.2507623312993165],
    )
    assert data.coordinates[:6, 0].tolist() == [2, 1, 0, 3, 1, 4]
