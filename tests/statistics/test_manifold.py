"""Maps of samples against dense definitions, and smoothness with its permutation null."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import permutations
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover import manifold
from heatmover.errors import InvalidInputError, MissingExtraError
from heatmover.statistics.manifold import classical_scaling, diffusion_map, phate, sample_graph, smoothness, umap
from heatmover.statistics.metrics import laplacian_smoothness


def apart(points, metric="euclidean"):
    return cdist(points, points, metric)


def coordinates(n=12, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3)) * [3, 2, 1]


def on_a_line(n):
    positions = np.linspace(0, 1, n)
    return abs(positions[:, None] - positions)


def test_sample_graph_is_that_of_loops():
    distances, k = apart(coordinates()), 3
    n = len(distances)
    order = [sorted((j for j in range(n) if j != i), key=lambda j, i=i: distances[i, j])[:k] for i in range(n)]
    width = [distances[i, order[i][-1]] for i in range(n)]
    expected = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if j in order[i] or i in order[j]:
                expected[i, j] = np.exp(-(distances[i, j] ** 2) / (width[i] * width[j]))
    np.testing.assert_allclose(sample_graph(distances, k=k).toarray(), expected)


@given(seed=st.integers(0, 1000), unit=st.sampled_from([1e-180, 1e-3, 1e180]), k=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_sample_graph_is_symmetric_positive_and_without_unit(seed, unit, k):
    points = np.random.default_rng(seed).integers(0, 3, size=(9, 2)).astype(float)  # many copies
    graph = sample_graph(apart(points), k=k)
    dense = graph.toarray()
    assert (dense == dense.T).all()
    assert (graph.data > 0).all()
    assert (graph.data <= 1).all()
    assert (dense.diagonal() == 0).all()
    assert ((dense > 0).sum(axis=1) >= k).all()
    np.testing.assert_allclose(sample_graph(apart(points) * unit, k=k).toarray(), dense, rtol=1e-9)


def test_sample_graph_of_samples_that_all_coincide():
    assert (sample_graph(np.zeros((5, 5)), k=2).data == 1).all()


def test_the_edges_are_those_of_laplacian_smoothness():
    distances = apart(coordinates())
    adjacency = sample_graph(distances, k=4).toarray() > 0
    signal = coordinates(seed=1)[:, 0]
    by_hand = sum((signal[i] - signal[j]) ** 2 for i in range(12) for j in range(i) if adjacency[i, j])
    assert laplacian_smoothness(distances, signal, k=4) == pytest.approx(by_hand)


def walk(distances, k):
    """The random walk between samples, dense and by the definition, and its stationary law."""
    kernel = sample_graph(distances, k=k).toarray() + np.eye(len(distances))
    density = kernel.sum(axis=1)
    kernel = kernel / np.outer(density, density)
    degree = kernel.sum(axis=1)
    return kernel / degree[:, None], degree / degree.sum()


def test_distances_in_the_full_diffusion_map_are_diffusion_distances():
    distances = apart(coordinates())
    transition, stationary = walk(distances, 4)
    expected = [[np.sqrt(((a - b) ** 2 / stationary).sum()) for b in transition] for a in transition]
    np.testing.assert_allclose(apart(diffusion_map(distances, 11, k=4)), expected, atol=1e-10)


def test_diffusion_map_holds_the_slowest_modes_of_the_walk():
    distances = apart(coordinates())
    transition, stationary = walk(distances, 4)
    found = diffusion_map(distances, 3, k=4)
    values = np.sort(np.abs(np.linalg.eigvals(transition)))[::-1]
    for axis, value in zip(found.T, values[1:4], strict=True):
        np.testing.assert_allclose(np.abs(transition @ axis), np.abs(value * axis), atol=1e-10)
        assert stationary @ axis == pytest.approx(0, abs=1e-10)
        assert stationary @ axis**2 == pytest.approx(value**2)
        assert axis[np.abs(axis).argmax()] > 0


def test_diffusion_map_of_two_parts_sets_them_apart():
    points = np.concatenate([coordinates(7), coordinates(5, seed=1) + 1e4])
    first = diffusion_map(apart(points), 1, k=2)[:, 0]
    np.testing.assert_allclose(first[:7], first[0])
    np.testing.assert_allclose(first[7:], first[7])
    assert abs(first[0] - first[7]) > 1


@given(seed=st.integers(0, 1000), n=st.integers(2, 10))
@settings(max_examples=25, deadline=None)
def test_classical_scaling_of_flat_points_keeps_all_distances(seed, n):
    points = np.random.default_rng(seed).normal(size=(n, 3))
    found, shares = classical_scaling(apart(points), n)
    np.testing.assert_allclose(apart(found), apart(points), atol=1e-7)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-9)
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) <= 1e-12).all()
    variances = np.sort(np.linalg.eigvalsh(np.cov(points.T)))[::-1][: min(n, 3)]
    np.testing.assert_allclose(shares[:3], variances / variances.sum(), atol=1e-9)


def test_classical_scaling_beyond_what_is_needed_is_zero():
    found, shares = classical_scaling(on_a_line(2), 2)
    np.testing.assert_allclose(np.abs(found), [[0.5, 0], [0.5, 0]])
    np.testing.assert_allclose(shares, [1, 0])
    assert (classical_scaling(apart(coordinates()), 12)[0][:, 3:] == 0).all()
    found, shares = classical_scaling(np.zeros((3, 3)))
    assert (found == 0).all()
    assert (shares == 0).all()


@pytest.mark.parametrize("unit", [1e-180, 1e180])
def test_classical_scaling_is_in_the_unit_of_the_distances(unit):
    distances = apart(coordinates())
    np.testing.assert_allclose(classical_scaling(distances * unit)[0] / unit, classical_scaling(distances)[0])


def test_phate_orders_samples_along_a_line():
    pytest.importorskip("phate")
    distances = on_a_line(25)
    found = phate(distances, random_state=3)
    assert found.shape == (25, 2)
    assert abs(np.corrcoef(classical_scaling(apart(found), 1)[0][:, 0], np.arange(25))[0, 1]) > 0.9
    np.testing.assert_array_equal(found, phate(distances, random_state=3))


def test_phate_works_on_very_few_samples():
    pytest.importorskip("phate")
    assert np.isfinite(phate(apart(coordinates(4)), k=2)).all()
    with pytest.raises(InvalidInputError, match="k of at most 2"):
        phate(apart(coordinates(4)), k=3)


class FakeUMAP:
    given: dict[str, object]

    def __init__(self, **options):
        FakeUMAP.given = options

    def fit_transform(self, matrix):
        return np.asarray(matrix, dtype=np.float32)[:, : FakeUMAP.given["n_components"]]


def test_umap_is_asked_for_a_map_of_given_distances(monkeypatch):
    package = ModuleType("umap")
    package.UMAP = FakeUMAP
    monkeypatch.setitem(sys.modules, "umap", package)
    found = umap(on_a_line(6), 3, k=4, random_state=1)
    assert found.shape == (6, 3)
    assert found.dtype == np.float64
    assert FakeUMAP.given["metric"] == "precomputed"
    assert FakeUMAP.given["n_neighbors"] == 5
    assert FakeUMAP.given["init"] == "spectral"
    first = FakeUMAP.given["random_state"]
    umap(on_a_line(3), 2, k=1, random_state=1)
    assert FakeUMAP.given["init"] == "random"
    assert FakeUMAP.given["random_state"] == first
    with pytest.raises(InvalidInputError, match="k of at most 4"):
        umap(on_a_line(6))


@pytest.mark.parametrize("name", ["phate", "umap"])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"heatmover\[{name}\]"):
        getattr(manifold, name)(on_a_line(20))


UMAP_ITSELF = """
import sys
import numpy as np
from heatmover.statistics.manifold import umap

distances = np.load(sys.argv[1])
np.save(sys.argv[2], umap(distances, 2, k=5, random_state=3))
"""


def test_umap_itself_keeps_neighbors_along_a_line(tmp_path):
    """Without compilation, which UMAP would repeat in every process: a minute instead of seconds."""
    if find_spec("umap") is None:
        pytest.skip("needs umap-learn")
    # In no order that the rows would tell.
    places = np.random.default_rng(0).permutation(40).astype(float)
    np.save(tmp_path / "distances.npy", np.abs(places[:, None] - places))
    command = [sys.executable, "-c", UMAP_ITSELF, str(tmp_path / "distances.npy"), str(tmp_path / "map.npy")]
    subprocess.run(command, env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, check=True)
    found = np.load(tmp_path / "map.npy")
    assert found.shape == (40, 2)
    between = apart(found)
    np.fill_diagonal(between, np.inf)
    steps = np.abs(places[between.argmin(axis=1)] - places)
    assert np.mean(steps <= 3) > 0.9


def test_smoothness_is_the_metric_with_an_exact_p_value():
    distances, signal = apart(coordinates(6)), np.array([1.0, 1, 2, 5, 8, 9])
    result = smoothness(distances, signal, k=2)
    everything = [laplacian_smoothness(distances, order, k=2) for order in permutations(signal)]
    observed = laplacian_smoothness(distances, signal, k=2)
    assert result.complete
    assert result.statistic == pytest.approx(laplacian_smoothness(distances, signal, k=2, normalize=True))
    assert result.statistic == pytest.approx(observed / np.mean(everything))
    assert result.effect == 1 - result.statistic
    assert result.p_value == pytest.approx(np.mean(np.array(everything) <= observed + 1e-9))


def test_smoothness_of_two_labels_is_that_of_zero_and_one():
    distances, coded = apart(coordinates()), np.array([0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0])
    labeled = smoothness(distances, np.array(["no", "yes"])[coded], k=3)
    numeric = smoothness(distances, coded, k=3)
    assert labeled.groups == ("no", "yes")
    assert labeled.statistic == pytest.approx(numeric.statistic)
    assert labeled.p_value == numeric.p_value


def test_smoothness_of_labels_counts_edges_between_them():
    distances, labels = apart(coordinates(7)), np.array(list("aabbcca"))
    adjacency = np.triu(sample_graph(distances, k=2).toarray() > 0)

    def between(each):
        return (adjacency & (each[:, None] != each)).sum()

    everything = [between(labels[list(order)]) for order in permutations(range(7))]
    result = smoothness(distances, labels, k=2)
    assert result.statistic == pytest.approx(between(labels) / np.mean(everything))
    assert result.p_value == pytest.approx(np.mean(np.array(everything) <= between(labels)))


def test_smoothness_respects_blocks_and_units():
    rng = np.random.default_rng(0)
    batch = np.repeat([0, 1], 12)
    distances = apart(rng.normal(size=(24, 2)) + 20 * batch[:, None])
    # The signal goes with the batch and with nothing inside it.
    signal = batch + rng.normal(size=24) * 0.2
    assert smoothness(distances, signal, k=4).p_value == 0.001
    assert smoothness(distances, signal, k=4, blocks=batch).p_value > 0.05
    units = np.arange(24) // 2
    # Each unit has two samples that coincide: smooth by itself, not by its place among other units.
    points, of_unit = rng.normal(size=(12, 2)), rng.permutation(12)
    twice = apart(np.repeat(points, 2, axis=0))
    assert smoothness(twice, of_unit[units], k=1).p_value == 0.001
    assert smoothness(twice, of_unit[units], k=1, blocks=units).p_value > 0.05


@pytest.mark.parametrize("labeled", [False, True])
def test_smoothness_over_blocks_has_no_edges_inside_them(labeled):
    rng = np.random.default_rng(1)
    units, of_unit = np.repeat(np.arange(6), 2), np.array([0, 0, 1, 1, 2, 2])
    distances = apart(rng.normal(size=(6, 2))[units] + 0.01 * rng.normal(size=(12, 2)))
    others = np.where(units[:, None] == units, np.inf, distances)
    near = others <= np.sort(others, axis=1)[:, 1:2]
    edges = np.argwhere(np.triu(near | near.T))

    def rough(values):
        apart_by = (lambda a, b: float(a != b)) if labeled else (lambda a, b: float(a - b) ** 2)
        return sum(apart_by(values[i], values[j]) for i, j in edges)

    everything = [rough(np.array(order)[units]) for order in sorted(set(permutations(of_unit)))]
    signal = np.array(list("abc"))[of_unit][units] if labeled else of_unit[units]
    result = smoothness(distances, signal, k=2, blocks=units)
    assert len(everything) == 90
    assert len(result.null) == 89
    assert result.statistic == pytest.approx(rough(of_unit[units]) / np.mean(everything))
    assert result.p_value == pytest.approx(np.mean(np.array(everything) <= rough(of_unit[units]) + 1e-9))


def test_smoothness_over_few_blocks_takes_the_neighbors_there_are():
    distances = apart(coordinates(6))
    result = smoothness(distances, [0, 0, 1, 1, 2, 2], k=5, blocks=list("aabbcc"))
    assert result.statistic == pytest.approx(1)  # all pairs of blocks are joined, whatever their order
    assert result.p_value == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda d: sample_graph(d, k=2),
        lambda d: diffusion_map(d, 2, k=2),
        lambda d: classical_scaling(d, 2),
        lambda d: smoothness(d, [0, 1, 0, 1], k=2),
    ],
)
@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (np.triu(on_a_line(4)), "both directions"),
        (np.full((4, 4), np.nan), "without NaN"),
        (on_a_line(4)[:3], "shape (3, 4)"),
        (np.eye(4), "diagonal"),
        (-on_a_line(4), "at least zero"),
    ],
)
def test_distances_that_are_none_are_refused(call, distances, message):
    with pytest.raises(InvalidInputError) as error:
        call(distances)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: sample_graph(d), "k of at most 3"),
        (lambda d: sample_graph(d, k=0), "k"),
        (lambda d: diffusion_map(d, 4, k=2), "n_components of at most 3"),
        (lambda d: classical_scaling(d, 5), "n_components of at most 4"),
        (lambda d: classical_scaling(d, 1.5), "n_components"),
        (lambda d: smoothness(d, [0, 1, 0, 1]), "k of at most 3"),
        (lambda d: smoothness(d, [0, 0, 0, 0], k=2), "same value in all samples"),
        (lambda d: smoothness(d, [0, 1, np.nan, 0], k=2), "first: sample 2"),
        (lambda d: smoothness(d, ["a", None, "a", "b"], k=2), "first: sample 1"),
        (lambda d: smoothness(d, np.eye(4), k=2), "shape (4, 4)"),
        (lambda d: smoothness(d, [0, 1, 0], k=2), "shape (3,)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(InvalidInputError) as error:
        call(on_a_line(4))
    assert message in str(error.value)


def test_a_given_matrix_stays_as_it_is():
    distances = apart(coordinates())
    distances.flags.writeable = False
    before = distances.copy()
    sample_graph(distances, k=3)
    classical_scaling(distances)
    diffusion_map(distances, k=3)
    assert (distances == before).all()


@pytest.mark.parametrize("signal", ["labels", "numbers"])
def test_the_order_of_tied_samples_decides_nothing(signal):
    """Ties that the smaller index wins made sorted groups neighbors of themselves."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        places = rng.poisson(0.5, size=(16, 2)).astype(float)
        variable = np.repeat(["a", "b"], 8) if signal == "labels" else np.arange(16.0)
        order = rng.permutation(16)
        one = smoothness(apart(places), variable, k=3, n_permutations=1)
        other = smoothness(apart(places[order]), variable[order], k=3, n_permutations=1)
        assert other.statistic == pytest.approx(one.statistic)
        dense = sample_graph(apart(places), k=3).toarray()
        np.testing.assert_allclose(sample_graph(apart(places[order]), k=3).toarray(), dense[np.ix_(order, order)])
