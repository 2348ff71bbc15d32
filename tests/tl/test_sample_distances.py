"""`tl.sample_distances`: what is written, when, and what is refused."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import heatmover as hm
from heatmover.errors import GraphWarning
from heatmover.tl import sample_distances, samples
from heatmover.tl.layout import scale_summary


@pytest.fixture(scope="module")
def data():
    return hm.datasets.cohort(8, cells_per_sample=40, effect=4.0)


@pytest.fixture
def adata(data):
    obs = pd.DataFrame({"sample": data.labels}, index=[f"cell-{i}" for i in range(len(data.points))])
    return anndata.AnnData(data.points.astype(np.float32), obs=obs)


@pytest.fixture(scope="module")
def expected(data):
    return hm.compare(data.points.astype(np.float32), data.labels)


def test_distances_are_those_of_compare(adata, expected):
    assert sample_distances(adata, "sample") is None
    written = adata.uns["heatmover"]
    np.testing.assert_array_equal(written["distances"], expected.distances)
    assert tuple(written["names"]) == expected.names
    assert written["sizes"].tolist() == [40] * 8
    np.testing.assert_array_equal(written["embedding"], expected.embedding)
    assert written["scales"]["max_scale"] == expected.model.max_scale_
    np.testing.assert_array_equal(written["scales"]["decay"], expected.model.decay_)
    assert written["params"]["use_rep"] == "X"
    assert written["params"]["sample_key"] == "sample"
    assert "graph" not in written["params"]["model"]


def test_a_copy_leaves_the_original_alone(adata, expected):
    result = sample_distances(adata, "sample", copy=True, key_added="mine")
    assert "mine" not in adata.uns
    np.testing.assert_array_equal(result.uns["mine"]["distances"], expected.distances)


def test_results_do_not_share_memory_with_the_comparison(adata):
    sample_distances(adata, "sample")
    adata.uns["heatmover"]["distances"][0, 1] = 7.0  # what is stored is the user's own


def test_principal_components_come_before_x(adata, data, expected):
    adata.obsm["X_pca"] = data.points.astype(np.float32)
    adata.X = np.zeros_like(adata.X)
    sample_distances(adata, "sample")
    np.testing.assert_array_equal(adata.uns["heatmover"]["distances"], expected.distances)
    assert adata.uns["heatmover"]["params"]["use_rep"] == "X_pca"


def test_standardized_features(adata, data):
    adata.X = adata.X * np.linspace(1, 100, 10, dtype=np.float32)
    sample_distances(adata, "sample", standardize=True)
    points = (data.points - data.points.mean(axis=0)) / data.points.std(axis=0)
    by_hand = hm.compare(points, data.labels)
    np.testing.assert_allclose(adata.uns["heatmover"]["distances"], by_hand.distances, rtol=1e-3)


def test_chosen_variables(adata, data):
    names = list(adata.var_names[:4])
    sample_distances(adata, "sample", use_rep=names)
    by_hand = hm.compare(data.points[:, :4].astype(np.float32), data.labels)
    np.testing.assert_allclose(adata.uns["heatmover"]["distances"], by_hand.distances, rtol=1e-6)
    assert list(adata.uns["heatmover"]["params"]["use_rep"]) == names


def test_connectivities_are_taken_as_they_are(adata, data):
    graph = hm.Graph.from_points(data.points, n_neighbors=12)
    without_loops = graph.affinity - sp.diags_array(graph.affinity.diagonal())
    adata.obsp["mine_connectivities"] = sp.csr_matrix(without_loops)
    adata.uns["mine"] = {"connectivities_key": "mine_connectivities"}
    del adata.X
    by_hand = hm.compare(hm.Graph.from_affinity(without_loops), data.labels)
    for key in ("mine", "mine_connectivities"):
        sample_distances(adata, "sample", neighbors_key=key)
        np.testing.assert_allclose(adata.uns["heatmover"]["distances"], by_hand.distances, rtol=1e-6)
    assert adata.uns["heatmover"]["params"]["neighbors_key"] == "mine_connectivities"
    assert "n_neighbors" not in adata.uns["heatmover"]["params"]


def test_landmarks_leave_their_loss(adata):
    sample_distances(adata, "sample", landmarks=100)
    loss = adata.uns["heatmover"]["landmarks"]
    assert loss["n_landmarks"] == 100
    assert 0.5 < loss["spearman"] < 1 + 1e-9


def test_a_large_embedding_is_left_out(adata, monkeypatch):
    monkeypatch.setattr("heatmover.tl.layout.LARGEST_EMBEDDING", 1000)
    sample_distances(adata, "sample")
    assert "embedding" not in adata.uns["heatmover"]
    assert "X_heatmover" not in samples(adata).obsm


@pytest.mark.parametrize(
    "relabel",
    [
        lambda labels: pd.Categorical(labels, categories=[*sorted(set(labels)), "nobody"]),
        lambda labels: pd.Series(labels).astype("string").to_numpy(),
        lambda labels: pd.factorize(labels, sort=True)[0],
    ],
    ids=["categories", "strings", "numbers"],
)
def test_labels_of_any_type(adata, data, expected, relabel):
    adata.obs["sample"] = relabel(data.labels)
    sample_distances(adata, "sample")
    np.testing.assert_array_equal(adata.uns["heatmover"]["distances"], expected.distances)
    assert len(adata.uns["heatmover"]["names"]) == 8


def test_a_sample_of_one_cell_is_named(adata):
    adata.obs["sample"] = np.where(np.arange(320) == 5, "lonely", adata.obs["sample"])
    with pytest.warns(UserWarning, match="1 sample has a single cell: 'lonely'"):
        sample_distances(adata, "sample")
    adata.obsp["connectivities"] = sp.csr_matrix(hm.Graph.from_points(adata.X).affinity)
    with pytest.warns(UserWarning, match="1 sample has a single cell: 'lonely'"):
        sample_distances(adata, "sample", neighbors_key="connectivities")


def test_a_view_becomes_an_object_of_its_own(adata):
    view = adata[adata.obs["sample"] != "case-01"]
    sample_distances(view, "sample")
    assert not view.is_view
    assert len(view.uns["heatmover"]["names"]) == 7
    assert "heatmover" not in adata.uns


BAD = {
    "key of samples": ({"sample_key": "Sampel"}, "did you mean 'sample'"),
    "representation": ({"use_rep": "X_pac"}, "use_rep to be 'X' or a key of obsm.*did you mean 'X_pca'"),
    "neighbors": ({"neighbors_key": "neighbours"}, "did you mean 'neighbors'"),
    "no neighbors": ({"neighbors_key": "other"}, "found 'other'; there are 'connectivities', 'neighbors'"),
    "two spaces": ({"use_rep": "X_pca", "neighbors_key": "neighbors"}, "use_rep and neighbors_key"),
    "two steps": ({"standardize": True, "neighbors_key": "neighbors"}, "standardize and neighbors_key"),
    "landmarks of a graph": ({"landmarks": 50, "neighbors_key": "neighbors"}, "from which landmarks are computed"),
    "place": ({"key_added": "a/b"}, "key_added to be a name"),
    "no place": ({"key_added": ""}, "key_added to be a name"),
    "model": ({"model": "best"}, "model to be a DiffusionEMD"),
    "one sample": ({"sample_key": "all"}, "at least two samples"),
    "missing labels": ({"sample_key": "holes"}, "a sample label for every cell in 'holes', found 3 of 320 missing"),
    "mixed labels": ({"sample_key": "mixed"}, "distinct labels to have distinct names"),
    "NaN": ({"use_rep": "X_nan"}, "without NaN"),
}


@pytest.mark.filterwarnings("ignore:There is only one sample")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_writes_nothing(adata, data, case):
    options, message = BAD[case]
    adata.obsm["X_pca"] = data.points
    adata.obsm["X_nan"] = np.where(np.arange(320)[:, None] == 3, np.nan, data.points)
    adata.obsp["connectivities"] = sp.csr_matrix(hm.Graph.from_points(data.points).affinity)
    adata.uns["neighbors"] = {"connectivities_key": "connectivities"}
    adata.uns["other"] = "a word"
    adata.obs["all"] = "the same"
    adata.obs["holes"] = np.where(np.arange(320) < 3, None, data.labels)
    adata.obs["mixed"] = pd.Series([1 if i % 2 else "1" for i in range(320)], dtype=object).to_numpy()
    before = set(adata.uns)
    with pytest.raises(hm.InvalidInputError, match=message):
        sample_distances(adata, **{"sample_key": "sample", **options})
    assert set(adata.uns) == before


def test_too_many_variables_ask_for_pca():
    adata = anndata.AnnData(
        np.ones((20, 101), dtype=np.float32),
        obs=pd.DataFrame({"s": ["a", "b"] * 10}).set_index(np.array([f"c{i}" for i in range(20)])),
    )
    with pytest.raises(hm.InvalidInputError, match="X with 101 variables; run PCA first"):
        sample_distances(adata, "s")
    with pytest.raises(hm.InvalidInputError, match="X with 101 variables"):
        sample_distances(adata, "s", use_rep="X")


@pytest.mark.parametrize(
    ("what", "message"),
    [("cells.h5ad", "found str; read the file first"), (np.ones((3, 2)), "found ndarray"), (None, "found NoneType")],
)
def test_only_anndata_is_taken(what, message):
    with pytest.raises(hm.InvalidInputError, match=f"an AnnData object, {message}"):
        sample_distances(what, "sample")


def test_a_graph_in_parts_warns(adata, data):
    parts = np.kron(np.eye(8), np.ones((40, 40)))
    adata.obsp["parts"] = sp.csr_matrix(parts)
    with pytest.warns(GraphWarning, match="8 components"):
        sample_distances(adata, "sample", neighbors_key="parts")


def test_shares_of_scales_are_those_of_all_pairs(expected):
    summary = scale_summary(expected)
    blocks = np.split(expected.embedding, len(expected.model.scales_), axis=1)
    sums = [sum(np.abs(a - b).sum() for a in block for b in block) for block in blocks]
    np.testing.assert_allclose(summary["share"], np.array(sums) / sum(sums), rtol=1e-4)
    assert summary["scale"].tolist() == expected.model.scales_.tolist()


def same(a, b):
    if hasattr(a, "keys"):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    return np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently")
@pytest.mark.parametrize("options", [{}, {"landmarks": 100}, {"model": hm.DiffusionEMD(max_scale=4)}])
def test_results_survive_h5ad_and_zarr(adata, tmp_path, options):
    sample_distances(adata, "sample", **options)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    with anndata.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        adata.write_zarr(tmp_path / "cells.zarr")
    for read in (anndata.read_h5ad(tmp_path / "cells.h5ad"), anndata.read_zarr(tmp_path / "cells.zarr")):
        assert same(adata.uns["heatmover"], read.uns["heatmover"])
        np.testing.assert_array_equal(samples(read).obsp["distances"], adata.uns["heatmover"]["distances"])


def test_cells_in_a_file_are_read_from_there(adata, tmp_path, expected):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    sample_distances(backed, "sample")
    np.testing.assert_array_equal(backed.uns["heatmover"]["distances"], expected.distances)
    with pytest.raises(hm.InvalidInputError, match="an AnnData in memory to copy"):
        sample_distances(backed, "sample", copy=True)
    backed.file.close()
