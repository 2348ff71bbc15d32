from __future__ import annotations

import warnings
from itertools import combinations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heatmover.errors import InvalidInputError
from heatmover.statistics.metrics import laplacian_smoothness, precision_at_k, spearman

# Few distinct values, so that most rows hold ties; no symmetry, which the metrics do not need.
TIED = st.integers(3, 9).flatmap(lambda n: hnp.arrays(np.int64, (2, n, n), elements=st.integers(0, 4)))
SETTINGS = settings(deadline=None, max_examples=60)


def k_nearest(distances, i, k):
    """The k nearest of measure i: itself left out, the smaller index first among equals."""
    others = [j for j in range(len(distances)) if j != i]
    return sorted(others, key=lambda j: (distances[i][j], j))[:k]


def edges(distances, k):
    """Pairs of which one is among the k nearest of the other, or as far as the k-th."""
    pairs = set()
    for i in range(len(distances)):
        others = [j for j in range(len(distances)) if j != i]
        farthest = sorted(distances[i][j] for j in others)[k - 1]
        pairs |= {frozenset((i, j)) for j in others if distances[i][j] <= farthest}
    return pairs


def line_distances(*positions):
    return np.abs(np.subtract.outer(positions, positions)).astype(float)


@SETTINGS
@given(TIED, st.data())
def test_precision_counts_common_neighbors(pair, data):
    truth, distances = pair
    n = len(truth)
    k = data.draw(st.integers(1, n - 1))
    shares = [len({*k_nearest(truth, i, k)} & {*k_nearest(distances, i, k)}) / k for i in range(n)]
    assert precision_at_k(truth, distances, k) == pytest.approx(np.mean(shares), abs=1e-12)


def test_precision_ignores_the_diagonal():
    truth = line_distances(0, 1, 3, 7)
    distances = truth + np.diag([9.0, -9.0, 9.0, 0.0])
    assert precision_at_k(truth, distances, k=1) == 1.0


def test_precision_of_unrelated_distances_is_that_of_guessing():
    rng = np.random.default_rng(0)
    truth, distances = rng.random((2, 400, 400))
    # 400 rows with a hypergeometric count each: the standard error is below 0.005.
    assert precision_at_k(truth, distances, k=10) == pytest.approx(10 / 399, abs=0.02)


@SETTINGS
@given(TIED)
def test_spearman_is_the_mean_of_the_rows(pair):
    truth, distances = pair
    values = []
    for i in range(len(truth)):
        a, b = np.delete(truth[i], i), np.delete(distances[i], i)
        constant = len(set(a)) == 1 or len(set(b)) == 1
        values.append(0.0 if constant else scipy.stats.spearmanr(a, b).statistic)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spearman(truth, distances) == pytest.approx(np.mean(values), abs=1e-12)


def test_spearman_is_the_formula_of_the_supplement():
    """rho = 1 - 6 sum d_i^2 / (n (n^2 - 1)) for ranks without ties, over the others of each measure."""
    rng = np.random.default_rng(3)
    truth, distances = (part + part.T for part in rng.random((2, 15, 15)))
    values = []
    for i in range(15):
        a, b = (np.delete(part[i], i).argsort().argsort() for part in (truth, distances))
        n = len(a)
        values.append(1 - 6 * np.sum((a - b) ** 2) / (n * (n**2 - 1)))
    assert spearman(truth, distances) == pytest.approx(np.mean(values), abs=1e-12)


def test_spearman_sees_only_the_order():
    truth = line_distances(0, 1, 3, 7, 20)
    assert spearman(truth, truth**3) == pytest.approx(1)
    assert spearman(truth, -truth) == pytest.approx(-1)
    assert spearman(truth, truth + np.diag([50.0, 40, 30, 20, 10])) == pytest.approx(1)


def test_spearman_of_distances_that_are_all_equal_is_zero():
    assert spearman(line_distances(0, 1, 3, 7), np.ones((4, 4))) == 0.0


@SETTINGS
@given(TIED, st.data())
def test_smoothness_sums_squared_differences_over_the_edges(pair, data):
    distances = pair[0]
    n = len(distances)
    k = data.draw(st.integers(1, n - 1))
    signal = data.draw(hnp.arrays(np.float64, n, elements=st.integers(-5, 5)))
    expected = sum((signal[i] - signal[j]) ** 2 for i, j in map(tuple, edges(distances, k)))
    value = laplacian_smoothness(distances, signal, k)
    assert isinstance(value, float)
    assert value == pytest.approx(expected)


def test_smoothness_is_the_quadratic_form_of_the_laplacian():
    rng = np.random.default_rng(0)
    distances, signal = rng.random((20, 20)), rng.normal(size=20)
    adjacency = np.zeros((20, 20))
    for i, j in map(tuple, edges(distances, 3)):
        adjacency[i, j] = adjacency[j, i] = 1
    laplacian = np.diag(adjacency.sum(axis=1)) - adjacency
    assert laplacian_smoothness(distances, signal, k=3) == pytest.approx(signal @ laplacian @ signal)


def test_smoothness_of_several_signals():
    rng = np.random.default_rng(0)
    distances, signals = rng.random((20, 20)), rng.normal(size=(20, 3))
    values = laplacian_smoothness(distances, signals, k=4)
    assert values.shape == (3,)
    np.testing.assert_allclose(values, [laplacian_smoothness(distances, column, k=4) for column in signals.T])
    assert laplacian_smoothness(distances, signals[:, :1], k=4).shape == (1,)


def test_normalized_smoothness_is_relative_to_all_shuffles():
    distances, signal = line_distances(0, 1, 3, 7, 12, 13), np.array([0, 0, 1, 2, 2, 5.0])
    joined = edges(distances, 2)
    # Every pair of measures is equally often an edge, over all shuffles.
    average = np.mean([(signal[i] - signal[j]) ** 2 for i, j in combinations(range(6), 2)]) * len(joined)
    expected = laplacian_smoothness(distances, signal, 2) / average
    assert laplacian_smoothness(distances, signal, 2, normalize=True) == pytest.approx(expected)


@pytest.mark.parametrize("unit", [1e-200, 1e-3, 1e200])
def test_normalized_smoothness_does_not_depend_on_the_unit(unit):
    rng = np.random.default_rng(0)
    distances, signal = rng.random((20, 20)), rng.normal(size=20)
    plain = laplacian_smoothness(distances, signal, 3, normalize=True)
    assert laplacian_smoothness(distances, unit * signal, 3, normalize=True) == pytest.approx(plain)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_constant_signal_is_perfectly_smooth(value, normalize):
    assert laplacian_smoothness(line_distances(0, 1, 3, 7), [value] * 4, 2, normalize=normalize) == 0.0


def test_a_signal_that_follows_the_distances_is_smoother():
    positions = np.arange(30.0)
    follows, shuffled = positions, np.random.default_rng(0).permutation(positions)
    distances = line_distances(*positions)
    assert laplacian_smoothness(distances, follows) < 0.5 * laplacian_smoothness(distances, shuffled)


GOOD = line_distances(0, 1, 3, 7)


@pytest.mark.parametrize(
    ("truth", "distances", "k", "message"),
    [
        (GOOD[:3], GOOD, 1, "truth to be square.*found shape \\(3, 4\\)"),
        (GOOD, GOOD[0], 1, "distances to be a 2-d array"),
        (GOOD, GOOD[:3, :3], 1, "the same shape, found \\(4, 4\\) and \\(3, 3\\)"),
        (GOOD, GOOD * np.nan, 1, "distances without NaN"),
        (GOOD, GOOD, 0, "k to be a whole number of at least 1"),
        (GOOD, GOOD, 4, "k of at most 3, found 4; a measure"),
        (GOOD, GOOD, 1.5, "k to be a whole number"),
    ],
)
def test_bad_input_to_precision(truth, distances, k, message):
    with pytest.raises(InvalidInputError, match=message):
        precision_at_k(truth, distances, k)


@pytest.mark.parametrize(
    ("truth", "distances", "message"),
    [
        (GOOD, GOOD[:3, :3], "the same shape"),
        (GOOD + np.inf, GOOD, "truth without NaN or infinity"),
        (GOOD[:2, :2], GOOD[:2, :2], "at least 3 measures, found 2"),
    ],
)
def test_bad_input_to_spearman(truth, distances, message):
    with pytest.raises(InvalidInputError, match=message):
        spearman(truth, distances)


@pytest.mark.parametrize(
    ("signal", "k", "message"),
    [
        (["a", "b", "a", "b"], 1, "a signal of numbers.*encode each category"),
        ([1, 2, 3], 1, "a signal of shape \\(4,\\) or \\(4, n_signals\\), found shape \\(3,\\)"),
        (np.zeros((4, 2, 2)), 1, "found shape \\(4, 2, 2\\)"),
        ([1, 2, 3, np.nan], 1, "signal without NaN"),
        (np.zeros((4, 0)), 1, "signal to have at least one row and one column"),
        ([1e200, 0, 0, 0], 1, "squared differences are finite"),
        ([1, 2, 3, 4], 4, "k of at most 3"),
        (5.0, 1, "found shape \\(\\)"),
    ],
)
def test_bad_input_to_smoothness(signal, k, message):
    with pytest.raises(InvalidInputError, match=message):
        laplacian_smoothness(GOOD, signal, k)
