"""Fitted models on disk: whatever was fitted embeds to the same bits afterwards."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import block_diag

import heatmover as hm
from heatmover._base.storage import Record, Store
from heatmover.embedding.estimator import MODEL_SCHEMA
from heatmover.errors import InvalidInputError

KINDS = {
    "default": {"max_scale": 9},
    "exact": {"method": "exact", "max_scale": "auto"},
    "spectral": {"method": "spectral", "max_scale": 9},
    "interpolative": {"method": "interpolative", "max_scale": 9},
    "chebyshev": {"method": "chebyshev", "dtype": "float64", "max_scale": 6},
    "table": {"compress": 0.1, "max_scale": 4},
    "centers": {"compress": 0.1, "compress_by": "centers", "max_scale": 8, "n_scales": 3},
    "function": {"density": "function", "norm": "increments", "normalize": True, "max_scale": 5},
    "weights": {"max_scale": 5, "weights": np.array([1, 2, 3.5]), "random_state": None, "n_jobs": 1},
    "coarsest": {"norm": "coarsest", "max_scale": 7, "n_scales": np.int64(3)},
}


@cache
def data():
    return hm.datasets.ring(6, points_per_measure=50)


@cache
def graph():
    points = data().points
    return hm.Graph.from_points(np.vstack([points, points[:7]]), n_neighbors=12)


@cache
def measures():
    rng = np.random.default_rng(3)
    return rng.dirichlet(np.full(307, 0.1), size=5)


@pytest.fixture(autouse=True)
def unsynchronised(monkeypatch):
    """To bring each file onto a busy disk would take most of the time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def fitted(kind: str) -> hm.DiffusionEMD:
    # Tables are made where no measures are known.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hm.GraphWarning)
        return hm.DiffusionEMD(graph(), **KINDS[kind]).fit(measures() if kind != "table" else None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_embeds_to_the_same_bits(tmp_path, kind):
    model = fitted(kind)
    assert (model.prepared_.table is not None) == (kind == "table")
    model.save(tmp_path / "it")
    found = hm.load(tmp_path / "it")
    before, after = model.transform(measures()), found.transform(measures())
    assert before.dtype == after.dtype
    np.testing.assert_array_equal(before, after)
    features = np.random.default_rng(0).normal(size=(2, before.shape[1]))
    np.testing.assert_array_equal(model.apply_transpose(features), found.apply_transpose(features))
    np.testing.assert_array_equal(model.error_bound_, found.error_bound_)
    np.testing.assert_array_equal(model.decay_, found.decay_)
    np.testing.assert_array_equal(model.n_regions_, found.n_regions_)
    assert found.prepared_.describe() == model.prepared_.describe()
    assert list(found.get_feature_names_out()) == list(model.get_feature_names_out())
    for name, value in model.get_params().items():
        if name != "graph":
            np.testing.assert_array_equal(np.asarray(found.get_params()[name]), np.asarray(value))
    # And once more: what was read is written to the same bytes.
    found.save(tmp_path / "again")
    assert (tmp_path / "again" / "manifest.json").read_bytes() == (tmp_path / "it" / "manifest.json").read_bytes()


def test_the_graph_comes_back_with_its_story(tmp_path):
    fitted("default").save(tmp_path / "it")
    found = hm.load(tmp_path / "it").graph_
    assert repr(found) == repr(graph())
    assert dict(found.construction) == dict(graph().construction)
    np.testing.assert_array_equal(found.place, graph().place)
    assert (found.affinity != graph().affinity).nnz == 0
    assert not found.node_affinity.data.flags.writeable


@pytest.mark.filterwarnings("ignore:.*bipartite:heatmover.GraphWarning")
def test_a_walk_a_grid_of_its_own_and_named_points_are_kept(tmp_path):
    uneven = sp.diags_array([10.0 ** -np.arange(0, 40, 2.0)] * 2, offsets=[1, -1], shape=(21, 21))
    walk = hm.DiffusionEMD(hm.Graph.from_affinity(sp.csr_array(uneven), lazy=False), max_scale=3).fit()
    assert walk.method_ == "walk"
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.eye(21)[:3], columns=[f"bin{i}" for i in range(21)])
    grid = hm.DiffusionEMD().fit(frame)
    for name, model, rows in (("walk", walk, np.eye(21)), ("grid", grid, frame)):
        model.save(tmp_path / name)
        found = hm.load(tmp_path / name)
        np.testing.assert_array_equal(found.transform(rows), model.transform(rows))
        assert (found.graph is None) == (model.graph is None)
    assert list(hm.load(tmp_path / "grid").feature_names_in_) == list(frame.columns)
    assert hm.load(tmp_path / "grid").graph_.construction["shape"] == (21,)


def test_components_are_kept(tmp_path):
    affinity = block_diag(np.ones((3, 3)), np.ones((2, 2)), np.zeros((1, 1)))
    with pytest.warns(hm.GraphWarning, match="3 components"):
        model = hm.DiffusionEMD(hm.Graph.from_affinity(affinity), method="exact", max_scale=2).fit()
    model.save(tmp_path / "it")
    np.testing.assert_array_equal(hm.load(tmp_path / "it").transform(np.eye(6)), model.transform(np.eye(6)))


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        hm.DiffusionEMD().save(tmp_path / "it")
    model = hm.DiffusionEMD(hm.Graph.from_grid((9,))).fit()
    with pytest.raises(InvalidInputError, match="fit the model again"):
        model.set_params(graph=hm.Graph.from_grid((9,))).save(tmp_path / "it")
    model = hm.DiffusionEMD(hm.Graph.from_grid((9,)), random_state=np.random.default_rng(0)).fit()
    with pytest.raises(InvalidInputError, match="a seed or None"):
        model.save(tmp_path / "it")
    assert list(tmp_path.iterdir()) == []


def test_overwriting_is_asked_for(tmp_path):
    model = hm.DiffusionEMD(hm.Graph.from_grid((9,))).fit()
    model.save(tmp_path / "it")
    with pytest.raises(InvalidInputError, match="overwrite=True replaces it"):
        model.save(tmp_path / "it")
    hm.DiffusionEMD(hm.Graph.from_grid((7,))).fit().save(tmp_path / "it", overwrite=True)
    assert hm.DiffusionEMD.load(tmp_path / "it").n_features_in_ == 7


def swap(record: Record, path: str, **arrays) -> Record:
    """The record with other arrays in one of its parts."""
    head, _, rest = path.partition("/")
    if not head:
        return replace(record, arrays={**record.arrays, **arrays})
    return replace(record, parts={**record.parts, head: swap(record.parts[head], rest, **arrays)})


@pytest.mark.parametrize(
    ("part", "arrays"),
    [
        ("prepared/operator", {"order": np.zeros(9, np.int64)}),
        ("prepared/operator", {"component": np.full(9, 5, np.int32)}),
        ("prepared/operator", {"degree": np.full(9, -1.0)}),
        ("prepared/operator", {"degree": np.ones(8)}),
        ("prepared/operator/symmetric", {"indices": np.full(35, 40, np.int32)}),
        ("prepared/layout", {"matrix": np.eye(2)}),
        ("graph/affinity", {"data": np.full(39, np.nan)}),
        ("graph", {"place": np.zeros(9, np.int64)}),
    ],
)
def test_a_forged_model_is_refused(tmp_path, part, arrays):
    """The checksums fit: whoever writes a store can make them so."""
    model = hm.DiffusionEMD(hm.Graph.from_grid((9,)), method="chebyshev").fit()
    forged = swap(model.to_record(), part, **arrays).part_of_store()
    Store.create(tmp_path / "it", MODEL_SCHEMA, 1, [forged])
    with pytest.raises(InvalidInputError, match="stored"):
        hm.load(tmp_path / "it")


def test_a_model_with_other_parameters_is_refused(tmp_path):
    record = hm.DiffusionEMD(hm.Graph.from_grid((9,))).fit().to_record()
    for change, match in (({"alpha": 3}, "alpha"), ({"unknown": 1}, "1 unknown")):
        values = {**record.values, "parameters": {**record.values["parameters"], **change}}
        path = tmp_path / match.replace(" ", "")
        Store.create(path, MODEL_SCHEMA, 1, [replace(record, values=values).part_of_store()])
        with pytest.raises(InvalidInputError, match=match):
            hm.load(path)


def test_a_loaded_model_serves_in_a_pipeline_of_scikit_learn(tmp_path):
    from sklearn.frozen import FrozenEstimator
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline

    model = hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit()
    model.save(tmp_path / "it")
    bumps = np.exp(-((np.arange(30) - np.arange(3, 27)[:, None]) ** 2) / 4.0)
    measures, sides = bumps / bumps.sum(axis=1, keepdims=True), np.arange(24) < 12
    nearest = KNeighborsClassifier(3, metric="manhattan")
    pipeline = make_pipeline(FrozenEstimator(hm.load(tmp_path / "it")), nearest)
    pipeline.fit(measures[::2], sides[::2])
    assert (pipeline.predict(measures[1::2]) == sides[1::2]).mean() > 0.9
