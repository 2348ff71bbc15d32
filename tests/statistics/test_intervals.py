"""Intervals against laws that are known, and against truths that are."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import ndtri
from scipy.stats import ncx2

import heatmover as hm
from heatmover.statistics.correction import Sketch
from heatmover.statistics.noise import DistanceLaw, _noise_replicates, _replicates, _skewness

N_PROBES = 128


def law_of(eigenvalues, direction, level=0.05):
    """The law of one pair whose noise has these variances in its directions, and whose truth has these shares there."""
    eigenvalues, direction = np.asarray(eigenvalues, float), np.asarray(direction, float)
    second, third = (eigenvalues**2).sum(), (eigenvalues**3).sum()
    return DistanceLaw(
        np.array([2 * second]), np.array([eigenvalues @ direction**2]), np.sqrt(8) * third / second**1.5,
        np.zeros(1), level,
    )  # fmt: skip


@pytest.mark.parametrize("freedom", [5, 20, 100])
@pytest.mark.parametrize("distance", [0.0, 1.0, 10.0, 200.0])
def test_quantiles_are_those_of_a_noncentral_chi_square(freedom, distance):
    """With equal variances in all directions the squared distance is one, less its mean without any difference."""
    direction = np.eye(freedom)[0]
    law = law_of(np.ones(freedom), direction)
    deviation = np.sqrt(2 * freedom + 4 * distance)
    for tail, tolerance in {0.01: 0.15, 0.025: 0.15, 0.05: 0.1, 0.5: 0.05, 0.95: 0.03, 0.975: 0.03}.items():
        truth = ncx2.ppf(tail, freedom, distance + 1e-12) - freedom
        found = law.quantile(np.array([distance]), np.array([ndtri(tail)]))[0]
        assert found == pytest.approx(truth, abs=tolerance * deviation)


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 3.0, 10.0, 40.0])
@pytest.mark.parametrize("spectrum", [np.ones(30), 1 / np.arange(1, 60), 0.7 ** np.arange(20)])
def test_every_true_distance_is_left_out_as_rarely(spectrum, distance):
    """At zero, near it and far away: 95% by construction, as far as three moments tell the law."""
    rng = np.random.default_rng(0)
    direction = rng.normal(size=len(spectrum))
    direction /= np.linalg.norm(direction)
    squared = distance * np.sqrt(2 * (spectrum**2).sum())
    noise = rng.normal(size=(20_000, len(spectrum))) * np.sqrt(spectrum)
    estimates = ((np.sqrt(squared) * direction + noise) ** 2).sum(axis=1) - spectrum.sum()
    one = law_of(spectrum, direction)
    law = DistanceLaw(
        *(np.full(20_000, value) for value in (one.spread[0], one.along[0])), one.skewness, np.zeros(20_000), 0.05
    )
    lower, upper = law.limits(estimates)
    assert (lower <= upper).all()
    held = (lower <= squared) & (squared <= upper)
    assert held.mean() == pytest.approx(0.95, abs=0.015)
    if distance == 40:  # both tails alike
        assert (upper < squared).mean() == pytest.approx(0.025, abs=0.01)


def test_a_higher_confidence_is_a_wider_interval():
    estimates = np.linspace(-1, 20, 40)
    widths = []
    for level in (0.5, 0.1, 0.01, 0.001):
        one = law_of(np.ones(20), np.eye(20)[0], level)
        law = DistanceLaw(np.full(40, one.spread[0]), np.full(40, one.along[0]), one.skewness, np.full(40, 20.0), level)
        lower, upper = law.limits(estimates)
        assert np.isfinite(upper).all()
        widths.append(upper - lower)
    assert (np.diff(widths, axis=0) > 0).all()


def test_an_estimate_far_below_zero_has_an_interval():
    law = law_of(np.ones(20), np.eye(20)[0])
    for estimate in (-5.0, -20.0, -1e6):
        lower, upper = law.limits(np.array([estimate]))
        assert lower[0] == 0 < 0.1 < upper[0]


def sketch_of(sizes, spectrum, seed=0, most=32):
    """Samples without true differences, seen through probes that are coordinates; noise has this spectrum."""
    rng = np.random.default_rng(seed)
    means, parts, starts = [], [], [0]
    for size in sizes:
        cells = rng.normal(size=(size, N_PROBES)) * np.sqrt(spectrum)
        n_parts = min(size, most)
        parts += [cells[part::n_parts].mean(axis=0) for part in range(n_parts)]
        starts.append(starts[-1] + n_parts)
        means.append(cells.mean(axis=0))
    nothing = np.zeros((1, len(sizes)))
    return Sketch(
        np.array(sizes), np.array(means)[None], nothing, np.zeros((0, len(sizes), N_PROBES)), np.array(parts),
        np.array(starts), np.ones(0),
    )  # fmt: skip


def test_replicates_have_the_variance_of_the_noise():
    """Of few cells in many directions too: their own square alone would vary several times as much."""
    spectrum = np.concatenate([np.full(60, 1.0), np.full(N_PROBES - 60, 0.1)])
    sizes = [12] * 30 + [100] * 10
    found = []
    for seed in range(3):
        sketch = sketch_of(sizes, spectrum, seed)
        spread, _ = _replicates(sketch, sketch.means[0], 200, np.random.default_rng(seed))
        found.append([spread[0:30:2, 1:30:2].mean(), spread[30:, 30:][np.triu_indices(10, 1)].mean()])
    few, many = np.mean(found, axis=0)
    truth = 2 * ((2 * spectrum / N_PROBES) ** 2).sum()
    assert few == pytest.approx(truth / 12**2, rel=0.15)
    assert many == pytest.approx(truth / 100**2, rel=0.15)
    assert _skewness(sketch) == pytest.approx(np.sqrt(8) * (spectrum**3).sum() / (spectrum**2).sum() ** 1.5, rel=0.2)


@pytest.mark.parametrize("sizes", [[1, 2, 3], [1, 1, 2], [1, 4, 9], [5, 5, 5]])
def test_samples_without_halves_have_noise(sizes):
    sketch = sketch_of(sizes, np.ones(N_PROBES))
    rng, total = np.random.default_rng(0), 0
    for _ in range(50):
        for noise in _noise_replicates(sketch, rng):
            assert noise.shape == (3, N_PROBES)
            total = total + noise**2
    assert np.isfinite(total).all()
    assert (total.sum(axis=1) > 0).all()


@pytest.mark.parametrize(("how", "sizes"), [("none", (15, 200)), ("clear", (15, 200)), ("clear", (400, 500))])
def test_intervals_hold_the_truth(how, sizes):
    """Pairs of samples drawn from known shares of four clusters, few and many cells: 120 pairs that share no sample."""
    held = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        kind = rng.integers(4, size=800)
        points = 1.5 * rng.normal(size=(4, 3))[kind] + rng.normal(size=(800, 3))
        shares = np.full((40, 4), 0.25) if how == "none" else rng.dirichlet(np.full(4, 5.0), 40)
        true = (shares / np.bincount(kind))[:, kind]
        counts = np.tile(sizes, 20)
        drawn = np.stack([rng.multinomial(n, row / row.sum()) for n, row in zip(counts, true, strict=True)])
        model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=10), n_jobs=1).fit(true)
        found = hm.uncertainty(model, sp.csr_array(drawn / counts[:, None]), counts, n_jobs=1)
        truth = hm.pairwise_distances(model.transform(true)).astype(float)
        truth[truth < 1e-5] = 0  # rounding
        one, other = rng.permutation(40).reshape(2, -1)
        held.append((found.lower <= truth + 1e-9)[one, other] & (truth <= found.upper)[one, other])
    # Two and a half standard errors of 120 pairs around 95%.
    assert 0.90 <= np.mean(held) <= 0.995
