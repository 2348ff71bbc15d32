"""Weights in place of powers of two: the same blocks, scaled, for every way to diffuse and every user of a model."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

import heatmover as hm
from heatmover.embedding.definition import block_weights

RNG = np.random.default_rng(7)
POINTS = RNG.normal(size=(120, 2))
GRAPH = hm.Graph.from_points(POINTS, n_neighbors=10)
MEASURES = RNG.random((5, 120)) ** 6
MEASURES /= MEASURES.sum(axis=1, keepdims=True)
WEIGHTS = (0.0, 2.0, 0.5, 0.0, 3.0)


def fitted(weights=WEIGHTS, max_scale=6, **settings):
    return hm.DiffusionEMD(GRAPH, max_scale=max_scale, weights=weights, dtype="float64", **settings).fit(MEASURES)


@pytest.mark.parametrize("method", ["exact", "chebyshev", "spectral", "interpolative"])
@pytest.mark.parametrize(
    "settings", [{}, {"norm": "increments"}, {"norm": "coarsest", "density": "function"}, {"compress": 0.1}], ids=str
)
def test_weights_scale_the_blocks(method, settings):
    plain = fitted(np.ones(5), method=method, **settings)
    weighed = fitted(method=method, **settings)
    assert weighed.scales_.tolist() == [2, 3, 4, 5, 6]
    expected = plain.transform(MEASURES) * np.repeat(WEIGHTS, plain.n_regions_)
    np.testing.assert_allclose(weighed.transform(MEASURES), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["levels", "increments", "coarsest"])
def test_the_weights_of_alpha_give_the_same_bits(norm):
    plain = hm.DiffusionEMD(GRAPH, max_scale=5, n_scales=4, alpha=0.3, norm=norm).fit(MEASURES)
    same = hm.DiffusionEMD(GRAPH, max_scale=5, norm=norm, weights=block_weights(range(2, 6), 0.3, norm)).fit(MEASURES)
    np.testing.assert_array_equal(same.transform(MEASURES), plain.transform(MEASURES))


@pytest.mark.parametrize("settings", [{}, {"compress": 0.1}], ids=str)
def test_the_transpose_is_the_transpose(settings):
    model = fitted(**settings)
    rows = model.transform(MEASURES)
    features = np.random.default_rng(1).normal(size=(3, rows.shape[1]))
    np.testing.assert_allclose(model.apply_transpose(features) @ MEASURES.T, features @ rows.T, atol=1e-12)


def test_explanation_and_barycenter_work_in_the_same_units():
    model = fitted()
    rows = model.transform(MEASURES)
    explained = hm.explain(model, MEASURES[0], MEASURES[1])
    distance = np.abs(rows[0] - rows[1]).sum()
    assert explained.distance == pytest.approx(distance, rel=1e-6)
    assert explained.contributions.sum() == pytest.approx(distance, rel=1e-6)
    middle = hm.barycenter(model, MEASURES[:2], n_iterations=60, tol=0.2)
    assert distance / 2 * (1 - 1e-6) <= middle.objective <= distance


def test_the_loss_has_the_same_weights():
    torch = pytest.importorskip("torch")
    from heatmover.differentiable import DiffusionEMDLoss

    rows = fitted(tol=1e-6, norm="increments").transform(MEASURES)
    loss = DiffusionEMDLoss(GRAPH, max_scale=6, weights=WEIGHTS, norm="increments", tol=1e-6)
    one, other = torch.tensor(MEASURES[:2])
    assert float(loss(one, other)) == pytest.approx(np.abs(rows[0] - rows[1]).sum(), rel=1e-5)
    np.testing.assert_allclose(loss.weights, WEIGHTS)
    assert "weights=[0.0, 2.0" in repr(loss)


def test_models_with_weights_are_cloned_and_kept():
    model = fitted()
    assert clone(model).weights == WEIGHTS
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(MEASURES), model.transform(MEASURES))
    assert clone(fitted(np.array(WEIGHTS))).fit(MEASURES).n_scales_ == 5


def test_a_comparison_with_weights_says_so_and_can_be_written(tmp_path):
    labels = np.arange(120) % 6
    result = hm.compare(GRAPH, labels, model=hm.DiffusionEMD(max_scale=6, weights=WEIGHTS))
    result.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "the weights (0, 2, 0.5, 0, 3, finest scale first)" in page


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights": [1, -1]}, "finite, non-negative weights, found 1 of 2"),
        ({"weights": [1, np.nan]}, "finite, non-negative weights, found 1 of 2"),
        ({"weights": [np.inf, 1]}, "finite, non-negative weights, found 1 of 2"),
        ({"weights": [0, 0]}, "at least one of the weights to be positive, found zeros only"),
        ({"weights": []}, r"weights to be numbers \(n_scales,\), found shape \(0,\)"),
        ({"weights": [[1, 2]]}, r"weights to be numbers \(n_scales,\), found shape \(1, 2\)"),
        ({"weights": "even"}, r"weights to be numbers \(n_scales,\)"),
        ({"weights": np.ones(8)}, "at most 7 weights, one per scale from 0 to 6, found 8"),
        ({"weights": [1, 2], "n_scales": 3}, r"as many weights as scales \(n_scales=3\), found 2"),
        ({"weights": [1, 2], "max_scale": "auto"}, "max_scale to be a whole number if weights are given"),
        ({"weights": [1, 2], "max_scale": 0.25}, "max_scale to be a whole number if weights are given"),
    ],
)
def test_contradictions_are_refused(settings, said):
    with pytest.raises(hm.InvalidInputError, match=said):
        hm.DiffusionEMD(GRAPH, **{"max_scale": 6, **settings}).fit(MEASURES)


def test_the_paper_has_no_weights_of_its_own():
    assert hm.DiffusionEMD.from_paper(GRAPH).weights is None
