"""Noise of samples against cells embedded one by one; correction, intervals and tests where the truth is known."""

from __future__ import annotations

import json
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import spearmanr

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.statistics import permanova

SIZES = (12, 25, 60, 150, 400)


def draw(sizes, *, apart=0.0, seed=0):
    """Points of samples from a mixture of two clouds, whose shares differ from sample to sample by ``apart``."""
    rng = np.random.default_rng(seed)
    points, labels = [], []
    for number, size in enumerate(sizes):
        share = np.clip(0.5 + apart * rng.normal(), 0.02, 0.98)
        right = rng.random(size) < share
        points.append(rng.normal(size=(size, 2)) + np.where(right, 2.5, 0.0)[:, None])
        labels += [f"s{number:03}"] * size
    return np.concatenate(points), np.array(labels)


@cache
def fitted(sizes=SIZES, apart=0.15, seed=0, **settings):
    points, labels = draw(sizes, apart=apart, seed=seed)
    measures = hm.measures_from_labels(labels)
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=12), dtype="float64", **settings).fit(measures)
    return model, measures


def cells_of(model, measures):
    """Embeddings of single cells, each with the sample it belongs to."""
    everything = model.prepared_.embed(np.eye(model.graph_.n_nodes), n_threads=1)
    rows = sp.csr_array(model.node_masses(measures))
    return everything, [rows.indices[slice(*rows.indptr[i : i + 2])] for i in range(len(measures))]


@pytest.mark.parametrize("density", ["adjoint", "function"])
@pytest.mark.parametrize("norm", ["levels", "increments"])
def test_noise_is_the_variance_of_cells_over_their_number(norm, density):
    model, measures = fitted(norm=norm, density=density)
    cells, own = cells_of(model, measures)
    law = model.prepared_.diffuser.operator.stationary
    metric = np.tile(law if density == "adjoint" else 1 / law, model.n_scales_)
    found = hm.uncertainty(model, measures, n_bootstrap=0)
    edges = model.prepared_.layout.edges
    spreads = [np.add.reduceat(cells[nodes].var(axis=0, ddof=1) / metric, edges[:-1]) for nodes in own]
    every = np.average(spreads, axis=0, weights=[len(nodes) - 1 for nodes in own])
    truth = []
    for nodes, spread in zip(own, spreads, strict=True):
        share = len(nodes) / (len(nodes) + 10)  # what it tells itself
        truth.append((share * spread + (1 - share) * every) / len(nodes))
    # Probes see a variance in few directions less precisely.
    np.testing.assert_allclose(found.noise, truth, rtol=0.5)
    assert found.noise.sum() == pytest.approx(np.sum(truth), rel=0.2)


def test_correction_of_equal_sizes_keeps_the_order():
    model, measures = fitted((80,) * 12, apart=0.3)
    embedding = model.transform(measures)
    found = hm.uncertainty(model, measures, embedding=embedding, n_bootstrap=0)
    upper = np.triu_indices(12, 1)
    corrected = hm.pairwise_distances(found.correct(embedding))[upper]
    raw = hm.pairwise_distances(embedding)[upper]
    assert spearmanr(corrected, raw)[0] > 0.95
    assert corrected.mean() < raw.mean()


def both(places, labels, **options):
    """Raw distances of samples, and the comparison without their noise."""
    return hm.compare(places, labels, **options).distances, hm.compare(places, labels, bias="corrected", **options)


def test_small_samples_are_no_longer_far():
    """Forty samples of 10 to 500 cells, whose true places do not depend on their sizes."""
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.uniform(np.log(10), np.log(500), 40)).astype(int)
    raw, corrected = [], []
    for seed in range(3):
        points, labels = draw(sizes, apart=0.15, seed=seed)
        before, result = both(points, labels, n_neighbors=15)
        raw.append(spearmanr(result.sizes, before.mean(axis=1))[0])
        corrected.append(spearmanr(result.sizes, result.distances.mean(axis=1))[0])
    assert np.mean(raw) < -0.5
    assert abs(np.mean(corrected)) < 0.25


def test_compact_embeddings_are_corrected_as_full_ones():
    points, labels = draw((12, 25, 60, 150, 400, 30, 45, 200), apart=0.2)
    graph, upper = hm.Graph.from_points(points, n_neighbors=15), np.triu_indices(8, 1)
    full, compact = (
        hm.compare(graph, labels, model=hm.DiffusionEMD(compress=compress), bias="corrected").distances[upper]
        for compress in (False, 0.1)
    )
    np.testing.assert_allclose(compact, full, rtol=0.1, atol=0.02 * full.max())


def test_samples_of_one_distribution_come_to_nearly_zero():
    raw, corrected = [], []
    for seed in range(6):
        points, labels = draw((15, 30, 60, 120, 240, 480), seed=seed)
        before, result = both(points, labels, n_neighbors=15)
        assert result.uncertainty is not None
        raw.append(before[np.triu_indices(6, 1)].mean())
        corrected.append(result.distances[np.triu_indices(6, 1)].mean())
    assert np.mean(corrected) < 0.25 * np.mean(raw)


def test_noise_floor_is_what_two_samples_of_one_distribution_show():
    for size in (20, 200):
        shown, promised = [], []
        for seed in range(4):
            points, labels = draw((size, size, 200, 200), seed=seed)
            found = hm.compare(points, labels, n_neighbors=15, n_bootstrap=1).uncertainty
            shown.append(found.distances[0, 1])
            promised.append(found.noise_floor(size))
        assert np.mean(promised) == pytest.approx(np.mean(shown), rel=0.35)
    assert found.noise_floor(20) > found.noise_floor(20, 2000) > found.noise_floor(2000)


def test_unequal_numbers_of_cells_are_no_finding():
    """Five samples of 30 cells against fifteen of 300, from one distribution: raw distances call them different."""
    groups = np.repeat(["few", "many"], [5, 15])
    rejected = {"raw": 0, "corrected": 0, "welch": 0}
    for seed in range(8):
        points, labels = draw([30] * 5 + [200] * 15, seed=seed)
        before, result = both(hm.Graph.from_points(points, n_neighbors=8), labels)
        for bias, distances in (("raw", before), ("corrected", result.test_distances)):
            found = permanova(distances, groups, n_permutations=99, statistic="pseudo-F")
            rejected[bias] += found.p_value <= 0.05
        rejected["welch"] += permanova(result.test_distances, groups, n_permutations=99).p_value <= 0.05
    # Samples of few cells also vary more, which Welch's statistic allows for.
    assert rejected["raw"] >= 4
    assert max(rejected["corrected"], rejected["welch"]) <= 2


def test_intervals_hold_the_distance_of_many_cells():
    held, told = [], []
    for seed in range(5):
        model, measures = fitted((40, 40, 80, 80, 160, 160), apart=0.2, seed=seed)
        many = draw_again(model, seed)
        truth = hm.pairwise_distances(model.transform(many))
        found = hm.uncertainty(model, measures)
        upper = np.triu_indices(6, 1)
        held.append((found.lower[upper] <= truth[upper]) & (truth[upper] <= found.upper[upper]))
        told.append(found.distinguishable[upper])
    assert np.mean(held) > 0.8
    assert 0.05 < np.mean(told) < 1


def draw_again(model, seed, size=2000):
    """Two thousand cells of each sample of `fitted`, at their nearest points."""
    from scipy.spatial import cKDTree

    # The shares are drawn before each sample's cells, so the same generator gives them again.
    rng = np.random.default_rng(seed)
    points, rows = draw((40, 40, 80, 80, 160, 160), apart=0.2, seed=seed)[0], []
    tree, others = cKDTree(points), np.random.default_rng(seed + 1000)
    for cells in (40, 40, 80, 80, 160, 160):
        share = np.clip(0.5 + 0.2 * rng.normal(), 0.02, 0.98)
        rng.random(cells), rng.normal(size=(cells, 2))
        right = others.random(size) < share
        new = others.normal(size=(size, 2)) + np.where(right, 2.5, 0.0)[:, None]
        rows.append(np.bincount(tree.query(new)[1], minlength=len(points)) / size)
    assert model.n_features_in_ == len(points)
    return np.array(rows)


def test_intervals_are_symmetric_and_hold_their_estimate():
    model, measures = fitted()
    found = hm.uncertainty(model, measures)
    for bound in (found.lower, found.upper):
        assert bound.shape == (5, 5)
        assert np.isfinite(bound).all()
        np.testing.assert_allclose(bound, bound.T)
        assert (np.diag(bound) == 0).all()
    assert (found.lower <= found.upper).all()
    assert not found.distinguishable.diagonal().any()
    assert (found.standard_error >= 0).all()


def test_no_interval_is_sure_of_what_it_cannot_know():
    """Of twins that are nearer than noise allows for, the upper limit is still that of a pair at zero."""
    rng = np.random.default_rng(0)
    half = rng.normal(size=(40, 2))
    points = np.concatenate([half, half + 1e-3, rng.normal(size=(80, 2)), rng.normal(size=(80, 2)) + 1])
    measures = hm.measures_from_labels(np.repeat(["a", "b", "c", "d"], [40, 40, 80, 80]))
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=12)).fit(measures)
    found = hm.uncertainty(model, measures)
    assert found.lower[0, 1] == 0
    apart = ~np.eye(4, dtype=bool)
    assert (found.upper[apart] > 0.2 * found.distances[apart]).all()


def test_identical_samples_have_an_interval():
    points = np.random.default_rng(0).normal(size=(60, 2))
    graph = hm.Graph.from_points(points, n_neighbors=12)
    masses = np.zeros((3, 60))
    masses[:2, :30], masses[2, 30:] = 1 / 30, 1 / 30
    model = hm.DiffusionEMD(graph).fit(masses)
    found = hm.uncertainty(model, masses)
    assert found.lower[0, 1] == 0 < found.upper[0, 1] < 2 * found.upper[0, 2]


@pytest.mark.parametrize("seed", range(3))
def test_intervals_of_few_cells_do_not_collapse(seed):
    """Of one, two and three cells the noise is most skewed: an upper limit may not fall to zero."""
    points, labels = draw([1, 2, 3, 3] * 5 + [200] * 4, apart=0.2, seed=seed)
    found = hm.compare(points, labels, n_neighbors=12, bias="corrected", n_bootstrap=100).uncertainty
    apart = ~np.eye(24, dtype=bool)
    assert (found.upper[apart] > 0.05 * found.distances[apart]).all()


def test_samples_too_small_for_halves_say_nothing_of_them():
    points, labels = draw([2, 3, 3, 2, 3, 3], seed=1)
    result = hm.compare(points, labels, n_neighbors=5, bias="corrected")
    assert result.uncertainty.retrieval is None
    assert "half" not in str(result.uncertainty)
    assert result.uncertainty.plain()["retrieval"] is None
    study = hm.study_comparison(result, {"group": list("aabbab")}, n_permutations=9)
    assert not any("half" in note for note in study.notes)


def test_a_scale_that_weighs_nothing_stays_zero():
    model, measures = fitted()
    weights = np.ones(model.n_scales_)
    weights[1] = 0
    other = hm.DiffusionEMD(model.graph_, max_scale=int(model.max_scale_), weights=weights).fit(measures)
    embedding = other.transform(measures)
    corrected = hm.uncertainty(other, measures, embedding=embedding, n_bootstrap=0).correct(embedding)
    assert np.isfinite(corrected).all()
    start, stop = other.prepared_.layout.edges[1:3]
    assert not corrected[:, start:stop].any()


def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads():
    model, measures = fitted()
    first, second = (hm.uncertainty(model, measures, n_jobs=n_jobs, random_state=4) for n_jobs in (1, 2))
    for name in ("noise", "between", "lower", "upper"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_tied_cells_are_cells():
    """Three equal cells are three cells, given as points or as counts."""
    rng = np.random.default_rng(0)
    points = rng.integers(0, 6, size=(240, 2)).astype(float)
    labels = np.repeat(["a", "b", "c"], 80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = hm.compare(points, labels, n_neighbors=6, n_bootstrap=20)
    assert result.uncertainty.sizes.tolist() == [80, 80, 80]
    assert np.isfinite(result.uncertainty.upper).all()


def test_a_single_cell_borrows_its_spread():
    model, measures = fitted((1, 1, 30, 60))
    found = hm.uncertainty(model, measures, n_bootstrap=40)
    assert np.isfinite(found.noise).all()
    assert (found.noise[0] > found.noise[2]).all()
    assert np.isfinite(found.upper).all()
    assert not found.distinguishable[0, 1]


def test_identical_samples_are_not_distinguishable():
    points, _ = draw((60,))
    rows = np.full((3, 60), 1 / 60)
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=10)).fit(rows)
    found = hm.uncertainty(model, rows)
    assert found.p_value > 0.9
    assert not found.distinguishable.any()
    np.testing.assert_allclose(found.correct(model.transform(rows)), model.transform(rows), atol=1e-5)


@pytest.mark.parametrize("by_rule", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_what_a_permutation_test_finds_is_not_corrected_away(seed, by_rule):
    """Clouds like persistence diagrams: 20 to 60 points near a diagonal, and 0 to 3 far from it by the kind of cloud.

    Placed by a rule, the far points vary less than random draws would, so that the total variance between samples is
    below its expectation without differences.
    """
    rng = np.random.default_rng(seed)
    kinds, points, labels = np.arange(70) % 4, [], []
    for sample, kind in enumerate(kinds):
        birth, persistence = rng.uniform(size=(2, rng.integers(20, 61)))
        persistence = 0.05 * -np.log1p(-persistence) if by_rule else (0.05 + 0.02 * kind) * -np.log1p(-persistence)
        birth[:kind] = 0.3 if by_rule else birth[:kind]
        persistence[:kind] = rng.normal(0.6, 0.05, kind)
        points.append(np.column_stack([birth, birth + persistence]))
        labels += [f"{sample:02}"] * len(birth)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # far points may be nearly disconnected
        before, result = both(np.vstack(points), labels)
    raw = hm.statistics.permanova(before, kinds)
    corrected = hm.statistics.permanova(result.distances, kinds)
    assert raw.p_value <= 0.01
    assert corrected.p_value <= 0.01
    assert corrected.effect > 0.5 * raw.effect


def test_a_test_that_is_not_significant_says_what_was_tested():
    points, labels = draw((60, 60, 60, 60))
    found = hm.compare(points, labels, n_neighbors=8, bias="corrected").uncertainty
    assert found.p_value > 0.05
    assert f"test of the total variance between samples, p = {found.p_value:.2g}" in found.describe()
    apart = hm.compare(np.vstack([points, points + 1.5]), [*labels, *(f"{name}'" for name in labels)], bias="corrected")
    assert apart.uncertainty.p_value < 1e-6
    assert "No evidence" not in apart.uncertainty.describe()


def test_landmarks_and_pieces_count_cells():
    points, labels = draw((40, 80, 160, 320), apart=0.2)
    result = hm.compare(points, labels, n_neighbors=8, landmarks=100, bias="corrected", n_bootstrap=20)
    assert result.uncertainty.sizes.tolist() == [40, 80, 160, 320]
    assert result.bias == "corrected"
    np.testing.assert_allclose(hm.pairwise_distances(result.embedding), result.distances, atol=1e-5)


def test_a_comparison_without_it_is_as_before():
    points, labels = draw((40, 80))
    assert hm.compare(points, labels, n_neighbors=8).uncertainty is None


def test_what_a_study_says():
    points, labels = draw([20] * 6 + [200] * 6, apart=0.05)
    result = hm.compare(points, labels, n_neighbors=10, bias="corrected", n_bootstrap=20)
    study = hm.study_comparison(result, {"group": ["few"] * 6 + ["many"] * 6})
    notes = " ".join(study.notes)
    assert "The number of cells is associated with 'group'" in notes
    assert "Split-half retrieval" in notes
    plain = study.plain()["uncertainty"]
    json.dumps(plain, allow_nan=False)
    assert plain["pairs"] == 66


def test_equal_numbers_of_cells_are_no_note():
    points, labels = draw([30] * 8, apart=0.2)
    study = hm.study_comparison(hm.compare(points, labels, n_neighbors=10), {"group": ["a", "b"] * 4})
    assert not any("number of cells" in note for note in study.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes": [3, 4]}, "number of cells of each of the 5 samples"),
        ({"sizes": [12, 25, 60, 150, 401]}, "samples without weights on cells"),
        ({"sizes": [0, 25, 60, 150, 400]}, "samples without weights on cells"),
        ({"n_bootstrap": -1}, "n_bootstrap"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": "high"}, "confidence"),
    ],
)
def test_bad_input(change, words):
    model, measures = fitted()
    with pytest.raises(InvalidInputError, match=words):
        hm.uncertainty(model, measures, **change)


def test_more_bad_input():
    model, measures = fitted()
    weights = np.random.default_rng(0).dirichlet(np.ones(model.n_features_in_), size=3)
    with pytest.raises(InvalidInputError, match=r"without weights on cells.*found weights"):
        hm.uncertainty(model, weights)
    with pytest.raises(InvalidInputError, match="DiffusionEMD"):
        hm.uncertainty("model", measures)
    with pytest.raises(InvalidInputError, match="at least two cells"):
        hm.uncertainty(model, np.eye(model.n_features_in_)[:3])
    found = hm.uncertainty(model, measures, n_bootstrap=0)
    for name in ("distinguishable", "standard_error"):
        with pytest.raises(InvalidInputError, match="n_bootstrap=0"):
            getattr(found, name)
    with pytest.raises(InvalidInputError, match="an embedding of shape"):
        found.correct(np.zeros((2, 3)))
    points, labels = draw((40, 80))
    with pytest.raises(InvalidInputError, match="bias"):
        hm.compare(points, labels, bias="none")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_samples_without_any_spread_give_no_nan(dtype):
    """All cells of a sample at one point: no noise; and where all samples are there, nothing between them either."""
    graph = hm.Graph.from_grid((12,))
    for places in ([3, 3, 3], [3, 3, 8]):
        rows = np.eye(12)[places]
        model = hm.DiffusionEMD(graph, max_scale=4, dtype=dtype).fit(rows)
        found = hm.uncertainty(model, rows, [5, 5, 5], n_bootstrap=20)
        for array in (found.correct(model.transform(rows)), found.test_distances, found.lower, found.upper):
            assert np.isfinite(array).all()
        assert found.test_distances[0, 1] == 0
        assert (found.test_distances[0, 2] > 0) == (places[2] == 8)
