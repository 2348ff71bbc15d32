from __future__ import annotations

import copy
import pickle
import sys
from itertools import combinations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from heatmover.datasets import Dataset, cohort, line, sphere, star, torus
from heatmover.errors import HeatmoverError, InvalidInputError, MissingExtraError


def euclidean(a, b):
    return np.abs(a[:, None] - b[None]).sum(axis=2)


def on_a_line(positions, groups, **changed):
    positions = np.asarray(positions, dtype=float)[:, None]
    fields = {
        "name": "by hand",
        "points": positions,
        "labels": groups,
        "coordinates": positions,
        "annotations": {},
        "ground_distance": euclidean,
    }
    return Dataset(**(fields | changed))


def linear_program(costs):
    """The EMD between two uniform measures by its definition: the cheapest plan with the right margins."""
    n, m = costs.shape
    rows, columns = np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))
    margins = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    return scipy.optimize.linprog(costs.ravel(), A_eq=np.vstack([rows, columns]), b_eq=margins).fun


def test_emd_of_a_shifted_cloud_is_the_shift():
    cloud = np.random.default_rng(0).normal(size=40)
    data = on_a_line(np.concatenate([cloud, cloud + 0.7, cloud - 2]), np.repeat([0, 1, 2], 40))
    np.testing.assert_allclose(data.exact_emd(), [[0, 0.7, 2], [0.7, 0, 2.7], [2, 2.7, 0]], atol=1e-12)


def test_emd_on_the_line_agrees_with_the_closed_form():
    data = line(5, points_per_measure=30)
    clouds = [data.coordinates[data.labels == measure, 0] for measure in range(5)]
    expected = [[scipy.stats.wasserstein_distance(a, b) for b in clouds] for a in clouds]
    np.testing.assert_allclose(data.exact_emd(), expected, atol=1e-12)


@pytest.mark.parametrize("make", [sphere, torus, star])
def test_emd_agrees_with_a_linear_program(make):
    data = make(4, points_per_measure=5)
    distances = data.exact_emd()
    for i, j in combinations(range(4), 2):
        a, b = (np.flatnonzero(data.labels == measure) for measure in (i, j))
        assert distances[i, j] == pytest.approx(linear_program(data.geodesic(a, b)), abs=1e-9)


def test_emd_between_measures_of_different_sizes():
    rng = np.random.default_rng(0)
    labels = np.array([2, 0, 0, 1, 2, 2, 0, 1, 2, 5])
    data = on_a_line(rng.normal(size=10), labels)
    distances = data.exact_emd()
    clouds = [data.coordinates[labels == label, 0] for label in (0, 1, 2, 5)]
    expected = [[scipy.stats.wasserstein_distance(a, b) for b in clouds] for a in clouds]
    np.testing.assert_allclose(distances, expected, atol=1e-12)


def test_emd_of_named_measures_is_in_the_order_of_the_names():
    data = on_a_line([5, 0, 1], ["c", "a", "b"])
    assert data.measures().names == ("a", "b", "c")
    np.testing.assert_allclose(data.exact_emd(), [[0, 1, 5], [1, 0, 4], [5, 4, 0]])


def test_emd_is_symmetric_and_has_the_same_bits_for_any_number_of_threads():
    data = cohort(6, cells_per_sample=20)
    one = data.exact_emd(n_jobs=1)
    np.testing.assert_array_equal(one, data.exact_emd(n_jobs=3))
    np.testing.assert_array_equal(one, one.T)
    assert (one.diagonal() == 0).all()


def test_emd_of_a_single_measure():
    np.testing.assert_array_equal(on_a_line([1, 2], [0, 0]).exact_emd(), [[0.0]])


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_an_unfinished_solve_raises(monkeypatch, n_jobs):
    monkeypatch.setattr("heatmover.transport.exact.MAX_PIVOTS", 1)
    with pytest.raises(HeatmoverError, match="Expected an optimal transport plan between measures 0 and 1"):
        sphere(3, points_per_measure=30).exact_emd(n_jobs=n_jobs)


def test_without_pot_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(MissingExtraError, match=r"heatmover\[exact\]"):
        line(2, points_per_measure=2).exact_emd()


def test_geodesic_takes_points_by_index():
    data = on_a_line([0, 1, 3, 7], [0, 0, 1, 1])
    np.testing.assert_array_equal(data.geodesic([3, 0], [1, 2, 3]), [[6, 4, 0], [1, 3, 7]])
    assert data.geodesic([], [1, 2]).shape == (0, 2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 4], "indices from 0 to 3 in rows, found indices from 0 to 4"),
        ([-1], "indices from 0 to 3 in rows, found indices from -1 to -1"),
        ([0.5], "rows to be a list of point indices"),
        ([True, False, True, False], "rows to be a list of point indices"),
        (2, "rows to be a list of point indices, found an array of shape \\(\\)"),
    ],
)
def test_bad_indices(rows, message):
    with pytest.raises(InvalidInputError, match=message):
        on_a_line([0, 1, 3, 7], [0, 0, 1, 1]).geodesic(rows, [0])


def test_measures_are_uniform_over_their_points():
    np.testing.assert_allclose(on_a_line([0, 1, 2], [1, 0, 1]).measures().toarray(), [[0, 1, 0], [0.5, 0, 0.5]])


def arrays_of(data):
    return [data.points, data.labels, data.coordinates, *data.annotations.values()]


def test_nothing_can_be_changed():
    data = cohort(4, cells_per_sample=5)
    for array in arrays_of(data):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
    with pytest.raises(AttributeError):
        data.points = data.points + 1
    with pytest.raises(TypeError):
        data.annotations["condition"] = np.zeros(4)


def test_the_callers_arrays_stay_his_own():
    positions, extra = np.array([[0.0], [1.0]]), np.array([1.0, 2.0])
    data = on_a_line([0, 1], [0, 1], points=positions, annotations={"age": extra})
    positions[0] = extra[0] = 99
    assert data.points[0, 0] == 0
    assert data.annotations["age"][0] == 1


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
@pytest.mark.parametrize("make", [star, cohort])
def test_a_copy_is_the_same_dataset(make, duplicate):
    data = make(4)
    same = duplicate(data)
    for a, b in zip(arrays_of(data), arrays_of(same), strict=True):
        np.testing.assert_array_equal(a, b)
        assert not b.flags.writeable
    np.testing.assert_array_equal(data.geodesic([0, 1], [300, 5]), same.geodesic([0, 1], [300, 5]))


def test_repr():
    assert repr(on_a_line([0, 1, 2], [0, 0, 1])) == "Dataset('by hand', 2 measures, 3 points in 1 dimension)"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"points": [0, 1, 2]}, "points to be a 2-d array"),
        ({"points": [[0], [np.nan], [1]]}, "points without NaN"),
        (
            {"coordinates": [[0], [1]]},
            "as many points as coordinates and labels, found 3 points, 2 coordinates and 3 labels",
        ),
        ({"labels": [0, 1]}, "found 3 points, 3 coordinates and 2 labels"),
        ({"labels": [0.0, 1.0, 2.0]}, "labels \\(n_points,\\) of whole numbers or strings"),
        ({"labels": [[0], [1], [1]]}, "labels \\(n_points,\\)"),
        ({"annotations": {"age": [1, 2, 3]}}, "'age' to have one value per measure \\(2\\), found shape \\(3,\\)"),
        ({"annotations": {"age": 4}}, "'age' to have one value per measure"),
    ],
)
def test_bad_fields(changed, message):
    with pytest.raises(InvalidInputError, match=message):
        on_a_line([0, 1, 2], [0, 0, 1], **changed)
