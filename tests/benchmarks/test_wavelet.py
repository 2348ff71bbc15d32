"""Wavelet EMD: coefficients against explicit basis vectors, distances against the exact EMD, and how they scale."""

from __future__ import annotations

import math
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import heatmover as hm
from heatmover.embedding.distances import pairwise_distances
from heatmover.errors import InvalidInputError, MissingExtraError
from heatmover.transport.baselines import exact_emd

pywt = pytest.importorskip("pywt")
PAPER = Path(__file__).resolve().parents[2] / "benchmarks" / "paper"
if not PAPER.exists():
    pytest.skip("the benchmarks are not here", allow_module_level=True)
sys.path.append(str(PAPER))
import wavelet as module  # noqa: E402
from wavelet import wavelet_emd  # noqa: E402


def random_measures(rng, n_measures, n_points):
    masses = rng.random((n_measures, n_points)) ** 4
    return masses / masses.sum(axis=1, keepdims=True)


def grid_points(*sides):
    return np.array(list(product(*(range(side) for side in sides))), dtype=float)


def filters_of_level(wavelet, level):
    """Scaling function and wavelet of a level on the finest grid, from the filters by the cascade alone."""
    low, high = (np.asarray(filters) for filters in pywt.Wavelet(wavelet).filter_bank[2:])
    scaling, wave = low, high
    for _ in range(level - 1):
        spread = [np.zeros(2 * len(part) - 1) for part in (scaling, wave)]
        spread[0][::2], spread[1][::2] = scaling, wave
        scaling, wave = (np.convolve(part, low) for part in spread)
    return scaling, wave


def basis_of_level(wavelet, level, n_nodes):
    """All translates by 2^level that touch nodes 0 .. n_nodes - 1, (n_translates, n_nodes): scaling and wavelet.

    Where translates begin is a convention. That of PyWavelets: each level begins, in nodes of the level before,
    the number of taps less two ahead of where that one began.
    """
    taps = pywt.Wavelet(wavelet).dec_len
    first = -(taps - 2) * (2**level - 1)
    found = []
    for function in filters_of_level(wavelet, level):
        rows = []
        for start in range(first, n_nodes, 2**level):
            row = np.zeros(n_nodes)
            for k, value in enumerate(function):
                if 0 <= start + k < n_nodes:
                    row[start + k] = value
            rows.append(row)
        found.append(np.array(rows))
    return found


def direct_distances(rasters, wavelet, width):
    """The weighted L1 distances from coefficients summed over basis vectors; rasters (n_measures, nodes ...)."""
    sides = rasters.shape[1:]
    n_levels = math.ceil(math.log2(max(sides))) + module.WIDER_LEVELS
    total = np.zeros((len(rasters), len(rasters)))
    for level in range(1, n_levels + 1):
        bases = [basis_of_level(wavelet, level, side) for side in sides]
        for band in product((0, 1), repeat=len(sides)):
            if not any(band) and level < n_levels:
                continue  # the approximation counts on the coarsest level only
            basis = np.ones((1, 1))
            for axis, kind in enumerate(band):
                basis = np.kron(basis, bases[axis][kind])
            coefficients = rasters.reshape(len(rasters), -1) @ basis.T
            weight = width * 2 ** (level * (1 + len(sides) / 2))
            total += weight * np.abs(coefficients[:, None] - coefficients).sum(axis=2)
    return total


@pytest.mark.parametrize("wavelet", ["haar", "db2", "sym5", "coif1"])
@pytest.mark.parametrize("sides", [(9,), (8,), (5, 4), (4, 3, 3)])
def test_distances_are_sums_over_explicit_basis_vectors(wavelet, sides):
    masses = random_measures(np.random.default_rng(0), 3, math.prod(sides))
    found = wavelet_emd(0.5 * grid_points(*sides), masses, n_bins=max(sides), wavelet=wavelet)
    expected = direct_distances(masses.reshape(3, *sides), wavelet, 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("n_dimensions", [1, 2, 3])
def test_a_point_shares_its_mass_so_that_its_mean_stays(n_dimensions):
    points = np.random.default_rng(1).random((50, n_dimensions)) * np.array([10.0, 3.0, 0.01])[:n_dimensions]
    width = np.ptp(points[:, 0]) / 6
    deposit, shape = module._deposit(points, width, 7)
    nodes = points.min(axis=0) + width * grid_points(*shape)
    assert deposit.min() >= 0
    np.testing.assert_allclose(deposit.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(deposit @ nodes, points, rtol=1e-12, atol=1e-12)
    assert (np.diff(deposit.indptr) == 2**n_dimensions).all()


def test_points_on_nodes_are_not_smeared():
    deposit, shape = module._deposit(grid_points(4, 3), 1.0, 4)
    assert shape == (4, 3)
    assert np.array_equal(deposit.toarray(), np.eye(12))


@pytest.mark.parametrize(("sides", "low", "high"), [((64,), 10, 45), ((12, 12), 30, 100)])
def test_stays_within_a_band_around_the_exact_emd(sides, low, high):
    pytest.importorskip("ot")
    points = grid_points(*sides)
    masses = random_measures(np.random.default_rng(2), 12, len(points))
    pairs = np.triu_indices(12, 1)
    ratios = wavelet_emd(points, masses)[pairs] / exact_emd(points, masses)[pairs]
    assert low < ratios.min()
    assert ratios.max() < high
    assert ratios.std() < 0.25 * ratios.mean()


def test_ranks_clouds_as_the_exact_emd_does():
    pytest.importorskip("ot")
    rng = np.random.default_rng(3)
    centers = 2 * rng.standard_normal((20, 1, 2))
    points = (centers + rng.uniform(0.3, 1.5, (20, 1, 2)) * rng.standard_normal((20, 30, 2))).reshape(-1, 2)
    measures = hm.measures_from_labels(np.repeat(np.arange(20), 30))
    assert hm.metrics.spearman(exact_emd(points, measures), wavelet_emd(points, measures)) > 0.96


def test_a_moving_point_mass_moves_away_about_linearly():
    places = np.linspace(0, 1, 65)
    distances = wavelet_emd(places[:, None], np.eye(65))[0]
    assert (np.maximum.accumulate(distances) - distances <= 0.01 * distances).all()
    rates = distances[1:] / places[1:]
    # Each coarser level adds the same for small moves: log2(64) levels between the smallest and the largest.
    assert rates.max() / rates.min() < 6
    # Moves below the spacing of the grid count, in proportion.
    tiny = wavelet_emd([[0.0], [1e-5], [2e-5], [1.0]], np.eye(4))[0]
    assert tiny[2] / tiny[1] == pytest.approx(2, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from([1e-100, 1e-3, 3.0, 1e100]))
def test_scaling_scales_and_translation_leaves(seed, n_dimensions, factor):
    rng = np.random.default_rng(seed)
    points, masses = rng.random((15, n_dimensions)), random_measures(rng, 3, 15)
    distances = wavelet_emd(points, masses, n_bins=8)
    assert np.array_equal(distances, distances.T)
    assert np.array_equal(np.diag(distances), np.zeros(3))
    np.testing.assert_allclose(wavelet_emd(points * factor, masses, n_bins=8), distances * factor, rtol=1e-9)
    np.testing.assert_allclose(wavelet_emd(points + 10, masses, n_bins=8), distances, rtol=1e-9)


def test_distances_of_two_measures_do_not_depend_on_the_others():
    rng = np.random.default_rng(4)
    points, masses = rng.random((30, 2)), random_measures(rng, 5, 30)
    masses[0, 10:], masses[1, :20] = 0, 0
    masses /= masses.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(wavelet_emd(points, masses[:2]), wavelet_emd(points, masses)[:2, :2], rtol=1e-12)


def test_axes_that_do_not_vary_do_not_count():
    rng = np.random.default_rng(5)
    points, masses = rng.random((20, 2)), random_measures(rng, 3, 20)
    in_five = np.full((20, 5), 0.7)
    in_five[:, [1, 4]] = points
    assert np.array_equal(wavelet_emd(in_five, masses), wavelet_emd(points, masses))


def test_blocks_sparse_features_and_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    points, masses = rng.random((40, 2)), sp.csr_array(random_measures(rng, 7, 40))
    whole = wavelet_emd(points, masses, n_jobs=2)
    assert np.array_equal(whole, wavelet_emd(points, masses, n_jobs=1))
    np.testing.assert_allclose(wavelet_emd(points, masses.toarray()), whole, rtol=1e-12)
    monkeypatch.setattr(module, "BLOCK_BINS", 1)
    assert np.array_equal(whole, wavelet_emd(points, masses))
    monkeypatch.setattr(module, "SPARSE", 2.0)
    features = wavelet_emd.embed(points, masses)
    assert sp.issparse(features)
    np.testing.assert_allclose(wavelet_emd(points, masses), whole, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pairwise_distances(features.toarray()), whole, rtol=1e-10)


def test_features_are_not_zero_for_all_and_have_the_distances_between_them():
    rng = np.random.default_rng(7)
    points, masses = rng.random((10, 3)), random_measures(rng, 4, 10)
    features = wavelet_emd.embed(points, masses)
    features = features.toarray() if sp.issparse(features) else features
    assert np.abs(features).max(axis=0).min() > 0
    between = np.abs(features[:, None] - features).sum(axis=2)
    np.testing.assert_allclose(between, wavelet_emd(points, masses), rtol=1e-10)


def test_few_far_points_on_a_fine_grid_give_sparse_features():
    points = grid_points(30, 30)
    measures = sp.eye_array(900, format="csr")[::30]
    assert any(sp.issparse(block) for block in wavelet_emd.function(points, measures, n_bins=600))


def test_identical_points_are_no_distance_apart():
    assert np.array_equal(wavelet_emd(np.full((3, 2), 0.3), [[1, 0, 0], [0.2, 0.3, 0.5]]), np.zeros((2, 2)))
    # The smallest distance there is cannot be divided.
    assert np.array_equal(wavelet_emd([[0.0], [5e-324]], np.eye(2)), np.zeros((2, 2)))


def test_one_measure_one_point_two_bins():
    assert np.array_equal(wavelet_emd([[0.0, 1.0], [2.0, 3.0]], [[0.5, 0.5]]), [[0.0]])
    assert np.array_equal(wavelet_emd([[0.0, 1.0]], [[1.0], [1.0]]), np.zeros((2, 2)))
    assert wavelet_emd([[0.0], [1.0]], np.eye(2), n_bins=2)[0, 1] > 0


def test_points_without_mass_are_only_part_of_the_cube():
    found = wavelet_emd([[0.0], [1.0], [2.0]], [[1, 0, 0], [0, 1, 0]])
    assert np.isfinite(found).all()
    assert found[0, 1] > 0


@pytest.mark.parametrize("options", [{"n_bins": 0}, {"n_bins": 1}, {"n_bins": 8.0}, {"n_bins": "many"}, {"n_jobs": 0}])
@pytest.mark.parametrize("points", [np.eye(2), np.zeros((2, 2))], ids=["two points", "identical"])
def test_bad_numbers(options, points):
    with pytest.raises(InvalidInputError, match=f"{next(iter(options))} to be a whole number"):
        wavelet_emd.embed(points, np.eye(2), **options)


@pytest.mark.parametrize("name", ["no such", "bior2.2", "mexh", None, 5])
def test_wavelets_that_are_not_orthogonal(name):
    with pytest.raises(InvalidInputError, match="orthogonal wavelet of PyWavelets, such as 'haar'"):
        wavelet_emd(np.eye(2), np.eye(2), wavelet=name)


def test_bad_ground_and_measures():
    with pytest.raises(InvalidInputError, match="needs coordinates"):
        wavelet_emd(hm.Graph.from_affinity(np.ones((2, 2))), np.eye(2))
    with pytest.raises(InvalidInputError, match=r"at most 3 dimensions, found 50; project .* by PCA"):
        wavelet_emd(np.random.default_rng(0).random((3, 50)), np.eye(3))
    with pytest.raises(InvalidInputError, match="NaN"):
        wavelet_emd([[0.0], [np.nan]], np.eye(2))
    with pytest.raises(InvalidInputError, match="2-d"):
        wavelet_emd([0.0, 1.0], np.eye(2))
    with pytest.raises(InvalidInputError):
        wavelet_emd([[0.0], [1.0]], [[1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(InvalidInputError, match="scale them down"):
        wavelet_emd([[-1.7e308], [1.7e308]], np.eye(2))


def test_a_grid_that_would_not_fit_is_refused():
    with pytest.raises(InvalidInputError, match="use a smaller n_bins"):
        wavelet_emd(grid_points(2, 2, 2), np.eye(8), n_bins=1000)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pywt", None)
    with pytest.raises(MissingExtraError, match=r"heatmover\[bench\]"):
        wavelet_emd(np.eye(2), np.eye(2))
