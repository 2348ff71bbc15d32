"""Calibration against plain oracles: bounded least squares, shortest paths, exact distances, one scale at a time."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import lsq_linear
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import cdist

import heatmover as hm
from heatmover.embedding.definition import block_weights
from heatmover.transport import calibration
from heatmover.transport.calibration import Calibration, Curve

pytest.importorskip("ot")

DATA = hm.datasets.sphere(14, points_per_measure=20, random_state=1)
MEASURES = DATA.measures()
MODEL = hm.DiffusionEMD(hm.Graph.from_points(DATA.points, n_neighbors=12), n_jobs=1).fit(MEASURES)
N_PAIRS = 30


def calibrated(model=MODEL, mu=MEASURES, points=DATA.points, **settings):
    return hm.calibrate(model, mu, points, **{"n_pairs": N_PAIRS, "n_jobs": 1, **settings})


@pytest.fixture(scope="module")
def euclidean():
    return calibrated()


def test_the_pairs_are_solved_exactly(euclidean):
    truth = hm.baselines.exact_emd(DATA.points, MEASURES)
    first, second = euclidean.pairs.T
    assert len({tuple(sorted(pair)) for pair in euclidean.pairs.tolist()}) == N_PAIRS
    assert len(np.unique(euclidean.pairs)) == len(MEASURES)
    np.testing.assert_allclose(euclidean.exact, truth[first, second], rtol=1e-9)
    apart = truth[np.triu_indices(len(truth), 1)]
    assert euclidean.exact.min() <= np.quantile(apart, 0.1)
    assert euclidean.exact.max() >= np.quantile(apart, 0.9)


def test_distances_come_in_real_units(euclidean):
    truth = hm.baselines.exact_emd(DATA.points, MEASURES)
    linear = hm.pairwise_distances(euclidean.model.transform(MEASURES))
    distances = euclidean.distances(linear)
    others = np.triu_indices(len(truth), 1)
    assert np.median(np.abs(distances[others] / truth[others] - 1)) < 0.08
    assert distances[0, 0] == 0
    before = hm.pairwise_distances(MODEL.transform(MEASURES))
    assert hm.metrics.spearman(truth, distances) >= hm.metrics.spearman(truth, before) - 0.005
    # A curve that increases keeps the order of the embedding.
    assert hm.metrics.spearman(linear, distances) == pytest.approx(1)


def test_what_it_says_follows_from_what_it_predicts(euclidean):
    errors = np.abs(euclidean.predicted / euclidean.exact - 1)
    assert euclidean.median_error == np.median(errors)
    assert euclidean.error_90 == np.quantile(errors, 0.9)
    guess = np.median(np.abs(np.median(euclidean.exact) / euclidean.exact - 1))
    assert euclidean.guess_error == euclidean.plain()["guess_error"] == guess > euclidean.median_error
    assert euclidean.describe().endswith(
        f"A guess of the median distance for every pair differs by a median of {100 * guess:.1f}%."
    )
    from scipy.stats import spearmanr

    before = hm.pairwise_distances(MODEL.transform(MEASURES))[tuple(euclidean.pairs.T)]
    assert euclidean.spearman == pytest.approx(spearmanr(euclidean.predicted, euclidean.exact)[0])
    assert euclidean.spearman_uncalibrated == pytest.approx(spearmanr(before, euclidean.exact)[0], abs=0.01)
    assert "30 pairs with exact distances, euclidean: median error" in repr(euclidean)
    assert (euclidean.n_drawn, euclidean.drawing_bias) == (0, 0)
    assert not euclidean.exact.flags.writeable
    assert isinstance(euclidean, Calibration)


def test_half_of_the_pairs_lie_above_the_l1_distance(euclidean):
    linear = hm.pairwise_distances(euclidean.model.transform(MEASURES))[tuple(euclidean.pairs.T)]
    assert np.median(euclidean.exact / linear) == pytest.approx(1, abs=1e-4)


def test_the_model_that_came_in_stays_as_it_is(euclidean):
    assert MODEL.weights is None
    assert euclidean.model is not MODEL
    assert euclidean.model.n_scales_ == len(euclidean.model.weights)
    assert min(euclidean.model.weights[0], euclidean.model.weights[-1]) > 0


def test_same_seed_same_bits_whatever_the_threads_and_whether_fitted(euclidean):
    again = calibrated(hm.DiffusionEMD(MODEL.graph), n_jobs=2)
    np.testing.assert_array_equal(again.predicted, euclidean.predicted)
    assert again.model.weights == euclidean.model.weights


def test_a_cost_matrix_is_the_ground(euclidean):
    same = calibrated(points=None, ground=1000 * cdist(DATA.points, DATA.points))
    np.testing.assert_allclose(same.predicted, 1000 * euclidean.predicted, rtol=1e-6)
    np.testing.assert_allclose(same.model.weights, 1000 * np.array(euclidean.model.weights), rtol=1e-6)
    np.testing.assert_allclose(same.curve.values, 1000 * euclidean.curve.values, rtol=1e-6)
    assert same.ground == "cost"


def test_geodesic_costs_are_shortest_paths_also_between_equal_points():
    points = np.vstack([DATA.points, DATA.points[:20]])
    graph = hm.Graph.from_points(points, n_neighbors=12)
    assert graph.n_nodes == len(DATA.points)
    masses = sp.csr_array(hm.measures_from_labels(np.append(DATA.labels, np.full(20, 14))).masses)
    pairs = np.array([[0, 1], [2, 1], [3, 14], [0, 14]])
    found = calibration._geodesic_costs(graph, points, masses, pairs)
    nodes = points[graph.first]
    lengths = np.where(graph.node_affinity.toarray() > 0, cdist(nodes, nodes), 0)
    oracle = shortest_path(lengths, method="D")[np.ix_(graph.place, graph.place)]
    for i, j in pairs:
        rows, columns = masses[[i]].indices, masses[[j]].indices
        np.testing.assert_allclose(found(rows, columns), oracle[np.ix_(rows, columns)], atol=1e-12)


def test_geodesic_ground(euclidean):
    found = calibrated(ground="geodesic")
    assert found.ground == "geodesic"
    np.testing.assert_array_equal(found.pairs, euclidean.pairs)
    assert np.all(found.exact >= euclidean.exact)
    assert found.median_error < 0.15


def test_the_design_is_one_scale_at_a_time():
    pairs = np.array([[0, 1], [2, 5], [3, 4]])
    masses = sp.csr_array(MEASURES.masses)
    starts = calibration._starts(MODEL, masses, pairs, 1)
    assert [start.max_scale for start in starts] == list(range(MODEL.max_scale_ - 3, MODEL.max_scale_ + 4))
    for start in starts[::3]:
        for position, scale in enumerate(range(start.max_scale + 1 - start.weights.size, start.max_scale + 1)):
            alone = hm.DiffusionEMD(MODEL.graph, max_scale=scale, weights=[1.0]).fit(MEASURES).transform(MEASURES)
            expected = np.abs(alone[pairs[:, 0]] - alone[pairs[:, 1]]).sum(axis=1)
            np.testing.assert_allclose(start.design[:, position], expected, rtol=2e-3)
        kept = range(start.max_scale + 1 - start.weights.size, start.max_scale + 1)
        np.testing.assert_array_equal(start.weights, block_weights(kept, 0.5, "levels"))
    own = next(start for start in starts if start.max_scale == MODEL.max_scale_)
    rows = MODEL.transform(MEASURES)
    np.testing.assert_allclose(
        own.distances(own.weights), np.abs(rows[pairs[:, 0]] - rows[pairs[:, 1]]).sum(axis=1), rtol=2e-3
    )


@pytest.mark.parametrize("shrinkage", [1e-4, 1e-2, 1.0, 1e6])
def test_weights_are_bounded_least_squares(shrinkage):
    rng = np.random.default_rng(0)
    design, start = rng.random((25, 6)), np.array([0.2, 0.3, 0.5, 0.7, 0.9, 1.0])
    target = design @ np.array([0, 0.5, 0.1, 0, 1.2, 0.8]) + 0.1
    found = calibration._fit_weights(design, start, target, shrinkage)
    # In units of the start, with the pull as further rows.
    rows = np.vstack([design * start / target[:, None] / 5, np.sqrt(shrinkage / 6) * np.eye(6)])
    aim = np.append(np.full(25, 0.2), np.full(6, np.sqrt(shrinkage / 6)))
    expected = lsq_linear(rows, aim, bounds=(0, np.inf), tol=1e-14).x * start
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if shrinkage == 1e6:
        np.testing.assert_allclose(found, start, rtol=1e-4)


def test_the_curve_finds_a_bend_and_always_increases():
    distances = np.linspace(0.5, 3, 60)
    curve = calibration._fit_curve(distances, np.expm1(distances))
    assert np.median(np.abs(curve(distances) / np.expm1(distances) - 1)) < 0.05
    wild = calibration._fit_curve(distances, np.random.default_rng(0).permutation(distances))
    for each in (curve, wild):
        assert each(0.0) == 0
        assert np.all(np.diff(each(np.linspace(0, 10, 300))) > 0)
        np.testing.assert_allclose(each.inverse(each(distances)), distances)


def test_equal_distances_make_a_straight_curve():
    curve = calibration._fit_curve(np.full(20, 2.0), np.linspace(1, 2, 20))
    assert curve.knots.tolist() == [0, 2]
    assert 1 < curve(2.0) < 2


def test_a_curve_goes_on_straight():
    curve = Curve(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 4.0]))
    np.testing.assert_allclose(curve([[0.5, 3.0]]), [[0.5, 7.0]])
    np.testing.assert_allclose(curve.inverse([7.0, 2.5]), [3.0, 1.5])


def test_a_distance_that_is_a_weighted_sum_is_found():
    """Where weights alone explain everything, hardly an error is left, and the pairs left out say so."""
    rng = np.random.default_rng(3)
    design = np.sort(rng.random((48, 5)), axis=1)[:, ::-1]
    start = calibration._Start(4, block_weights(range(5), 0.5, "levels"), design)
    exact = 7 * design @ (start.weights * np.array([1, 0.2, 2, 1, 0.5]))
    predicted, _ = calibration._cross_validate([start], start, exact)
    assert np.median(np.abs(predicted / exact - 1)) < 0.03


def test_errors_are_honest_where_nothing_can_be_learnt():
    rng = np.random.default_rng(4)
    design = rng.random((48, 5)) + 0.1
    start = calibration._Start(4, block_weights(range(5), 0.5, "levels"), design)
    exact = rng.permutation(np.geomspace(1, 30, 48))
    predicted, _ = calibration._cross_validate([start], start, exact)
    assert np.median(np.abs(predicted / exact - 1)) > 0.4
    assert np.isfinite(predicted).all()


def test_large_measures_are_drawn_from_and_the_bias_is_told(monkeypatch):
    monkeypatch.setattr(calibration, "LARGEST", 8)
    found = calibrated()
    assert found.n_drawn == len(MEASURES)
    assert found.drawing_bias > 0
    assert np.all(found.exact > 0)


def test_drawing_keeps_masses_on_average():
    rng = np.random.default_rng(0)
    masses = rng.random((2, 50))
    masses[0, 5:] = 0
    masses /= masses.sum(axis=1, keepdims=True)
    draws = [calibration._drawn(sp.csr_array(masses), 10, rng).toarray() for _ in range(300)]
    for drawn in draws[:20]:
        np.testing.assert_allclose(drawn.sum(axis=1), 1)
        assert np.count_nonzero(drawn[1]) <= 10
        np.testing.assert_array_equal(drawn[0], masses[0])
    np.testing.assert_allclose(np.mean(draws, axis=0)[1], masses[1], atol=0.02)


@pytest.mark.parametrize(
    "settings",
    [{"norm": "increments"}, {"norm": "coarsest", "density": "function"}, {"compress": 0.1, "n_scales": 4}],
    ids=str,
)
def test_other_models_are_calibrated_too(settings):
    found = calibrated(hm.DiffusionEMD(MODEL.graph, **settings))
    assert found.median_error < 0.15
    linear = hm.pairwise_distances(found.model.transform(MEASURES))[tuple(found.pairs.T)]
    assert np.median(np.abs(found.distances(linear) / found.exact - 1)) < 0.1
    assert {name: getattr(found.model, name) for name in settings if name != "n_scales"} == {
        name: value for name, value in settings.items() if name != "n_scales"
    }


def test_a_calibrated_model_can_be_calibrated_again(euclidean):
    again = calibrated(euclidean.model)
    assert again.model.max_scale_ <= euclidean.model.max_scale_
    assert again.median_error < 0.1


def test_bins_in_a_row_need_no_graph():
    bins = np.exp(-((np.arange(40) - np.linspace(5, 34, 12)[:, None]) ** 2) / 18)
    bins /= bins.sum(axis=1, keepdims=True)
    found = hm.calibrate(hm.DiffusionEMD(), bins, np.arange(40.0)[:, None], n_pairs=40)
    truth = np.abs(np.cumsum(bins[found.pairs[:, 0]] - bins[found.pairs[:, 1]], axis=1)).sum(axis=1)
    np.testing.assert_allclose(found.exact, truth, rtol=1e-9)
    assert found.median_error < 0.1


def test_copies_of_measures_are_no_pairs():
    masses = sp.csr_array(np.vstack([MEASURES.toarray(), MEASURES.toarray()[:3]]))
    pairs = calibration._choose_pairs(MODEL, masses, 130, np.random.default_rng(0))
    assert len({tuple(sorted(pair)) for pair in pairs.tolist()}) == 130
    assert not any(tuple(sorted(pair)) in {(0, 14), (1, 15), (2, 16)} for pair in pairs.tolist())


COSTS = cdist(DATA.points, DATA.points)
ASYMMETRIC = COSTS.copy()
ASYMMETRIC[3, 5] += 1
DIAGONAL = COSTS + np.eye(len(COSTS))
WITH_NAN = COSTS.copy()
WITH_NAN[0, 1] = WITH_NAN[1, 0] = np.nan


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "swiss"}, "model to be a DiffusionEMD, found str"),
        ({"points": None}, "points .* which define the unit, found none"),
        ({"points": DATA.points[:-1]}, r"points of shape \(280, n_dimensions\)"),
        ({"points": DATA.points[:, 0]}, "2-d"),
        ({"ground": "mahalanobis"}, "ground to be .geodesic., .euclidean., .cosine., .* or costs"),
        ({"ground": COSTS[:5, :5]}, r"costs of shape \(280, 280\), found shape \(5, 5\)"),
        ({"ground": -COSTS}, "non-negative costs, found a smallest value of -"),
        ({"ground": ASYMMETRIC}, "symmetric costs, found costs of the two directions that differ by up to 1"),
        ({"ground": DIAGONAL}, "costs with a zero diagonal, found up to 1"),
        ({"ground": WITH_NAN}, "ground without NaN"),
        ({"ground": np.zeros_like(COSTS)}, "16 pairs of measures with a positive exact distance, found 0 of 30"),
        ({"n_pairs": 10}, r"n_pairs of at least 1. \(the larger of 16 and two per scale\), found 10"),
        ({"n_pairs": "many"}, "n_pairs to be a whole number"),
        ({"n_pairs": 100}, "at least 15 measures, because n_pairs=100 needs 100 different pairs, found 14"),
        ({"mu": np.tile(MEASURES.toarray()[:1], (12, 1))}, "different measures, found identical measures"),
        (
            {"mu": np.tile(MEASURES.toarray()[:2], (5, 1))},
            "at least 30 pairs of different measures, found 25 such pairs",
        ),
        ({"mu": MEASURES.toarray()[:, :-1]}, "280"),
    ],
)
def test_bad_input_is_one_sentence(settings, said):
    with pytest.raises(hm.InvalidInputError, match=said):
        calibrated(**settings)


def test_geodesics_need_one_component():
    far = DATA.points + np.where(DATA.labels < 7, 100.0, 0.0)[:, None]
    with pytest.warns(hm.GraphWarning, match="2 components"):
        model = hm.DiffusionEMD(hm.Graph.from_points(far, n_neighbors=12)).fit(MEASURES)
    with pytest.raises(hm.InvalidInputError, match=r"one connected component .* no path connects"):
        calibrated(model, points=far, ground="geodesic")
    # The straight line does not ask for a path.
    assert np.isfinite(calibrated(model, points=far).predicted).all()


def test_a_solver_that_stops_early_is_an_error(monkeypatch):
    from heatmover.transport import exact

    monkeypatch.setattr(exact, "MAX_PIVOTS", 1)
    with pytest.raises(hm.HeatmoverError, match="found that POT stopped early"):
        calibrated()


def test_distances_are_checked(euclidean):
    with pytest.raises(hm.InvalidInputError, match="distances of at least 0"):
        euclidean.distances([-1.0])
    with pytest.raises(hm.InvalidInputError, match="distances of at least 0"):
        euclidean.distances(np.nan)


@pytest.mark.parametrize("metric", ["cosine", "l1", "chebyshev"])
def test_the_metrics_of_graphs_are_grounds(metric):
    """The same as their costs, which SciPy finds, as a matrix."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 4)) + 3
    mu = hm.measures_from_labels(rng.integers(0, 20, 200))
    names = {"l1": "cityblock"}
    costs = cdist(points, points, names.get(metric, metric))
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=10, metric=metric), max_scale=5)
    named = hm.calibrate(model, mu, points=points, ground=metric)
    given = hm.calibrate(model, mu, ground=costs)
    np.testing.assert_allclose(named.exact, given.exact, rtol=1e-6)
    assert "in the unit of the metric" in named.describe()


def test_costs_may_have_a_diagonal_of_rounding():
    rng = np.random.default_rng(1)
    places = rng.normal(size=(120, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    arcs = np.arccos(np.clip(places @ places.T, -1, 1))
    assert 1e-9 < arcs.diagonal().max() < 1e-7
    model = hm.DiffusionEMD(hm.Graph.from_points(places, n_neighbors=10), max_scale=5)
    hm.calibrate(model, hm.measures_from_labels(np.arange(120) % 20), ground=arcs)
    with pytest.raises(hm.InvalidInputError, match="zero diagonal"):
        hm.calibrate(model, hm.measures_from_labels(np.arange(120) % 20), ground=arcs + 1e-3)
