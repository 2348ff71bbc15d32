"""`tl.samples`: an AnnData of samples that scanpy can work with."""

from __future__ import annotations

import sys

import anndata
import matplotlib as mpl
import numba
import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.statistics.manifold import classical_scaling, diffusion_map, sample_graph
from heatmover.tl import sample_distances, samples

mpl.use("agg")


@pytest.fixture(scope="module")
def cells():
    data = hm.datasets.cohort(14, cells_per_sample=30, effect=4.0)
    names = data.measures().names
    obs = pd.DataFrame({"sample": pd.Categorical(data.labels)}, index=[f"cell-{i}" for i in range(420)])
    place = [names.index(label) for label in data.labels]
    obs["condition"] = pd.Categorical(
        data.annotations["condition"][place], categories=["control", "case", "unseen"], ordered=True
    )
    obs["age"] = np.arange(40, 54, dtype=np.int16)[place]
    obs["smoker"] = (np.arange(14) % 3 == 0)[place]
    obs["weight"] = np.where(np.arange(14) == 2, np.nan, 60.5)[place]
    obs["branch"] = data.coordinates[:, 0].astype(str)
    obs["partly"] = np.where(np.arange(420) == 7, np.nan, 1.0)
    adata = anndata.AnnData(data.points.astype(np.float32), obs=obs)
    adata.uns["condition_colors"] = np.array(["#111111", "#222222", "#333333"], dtype=object)
    adata.uns["branch_colors"] = np.array(["#111111"] * 5, dtype=object)
    sample_distances(adata, "sample")
    return adata


@pytest.fixture
def found(cells):
    return samples(cells)


def test_what_is_constant_is_carried_over_as_it_is(cells, found):
    assert list(found.obs.columns) == ["sample", "condition", "age", "smoker", "weight", "n_cells"]
    assert list(found.obs_names) == list(cells.uns["heatmover"]["names"])
    for column in ("sample", "condition", "age", "smoker", "weight"):
        assert found.obs[column].dtype == cells.obs[column].dtype
        by_hand = cells.obs.groupby("sample", observed=True)[column].first()
        pd.testing.assert_series_equal(
            found.obs[column], by_hand.reindex(found.obs_names), check_names=False, check_index_type=False,
            check_categorical=False,
        )  # fmt: skip
    assert found.obs["n_cells"].tolist() == [30] * 14
    assert list(found.uns["heatmover"]["varying"]) == ["branch", "partly"]


def test_colors_of_what_is_carried_over(found):
    assert list(found.uns["condition_colors"]) == ["#111111", "#222222", "#333333"]
    assert "branch_colors" not in found.uns


def test_maps_distances_and_graph(cells, found):
    distances = cells.uns["heatmover"]["distances"]
    np.testing.assert_array_equal(found.obsp["distances"], distances)
    np.testing.assert_allclose(found.obsp["connectivities"].toarray(), sample_graph(distances, k=10).toarray())
    coordinates, shares = classical_scaling(distances, 10)
    np.testing.assert_allclose(found.obsm["X_mds"], coordinates)
    np.testing.assert_allclose(found.uns["mds"]["variance_ratio"], shares)
    np.testing.assert_allclose(found.obsm["X_diffusion"], diffusion_map(distances, 10))
    embedding = found.obsm["X_heatmover"]
    np.testing.assert_allclose(np.abs(embedding[0] - embedding[1]).sum(), distances[0, 1], rtol=1e-5)
    assert found.n_vars == 0


def test_nothing_is_shared_with_the_cells(cells, found):
    found.obsp["distances"][0, 1] = -1
    found.uns["heatmover"]["scales"]["share"][0] = -1
    found.uns["condition_colors"][0] = "none"
    assert cells.uns["heatmover"]["distances"][0, 1] > 0
    assert cells.uns["heatmover"]["scales"]["share"][0] > 0
    assert cells.uns["condition_colors"][0] == "#111111"


def test_whole_samples_may_have_gone(cells):
    some = cells[cells.obs["sample"].isin(["case-01", "case-03", "control-02"])].copy()
    found = samples(some)
    assert list(found.obs_names) == ["case-01", "case-03", "control-02"]
    names = list(cells.uns["heatmover"]["names"])
    rows = [names.index(name) for name in found.obs_names]
    np.testing.assert_array_equal(found.obsp["distances"], cells.uns["heatmover"]["distances"][np.ix_(rows, rows)])


def test_two_samples_are_enough_and_one_is_not(cells):
    two = samples(cells[cells.obs["sample"].isin(["case-01", "control-02"])].copy())
    assert two.obsm["X_mds"].shape == (2, 2)
    with pytest.raises(hm.InvalidInputError, match="at least two samples"):
        samples(cells[cells.obs["sample"] == "case-01"].copy())


def test_distances_of_other_cells_are_out_of_date(cells):
    with pytest.raises(hm.InvalidInputError, match="other cells in 1 sample \\(first: 'case-01'\\)"):
        samples(cells[1:].copy() if cells.obs["sample"].iloc[0] == "case-01" else cells[:-1].copy())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "heatmoverr"}, "did you mean 'heatmover'"),
        ({"maps": "umap"}, "the argument maps to be a list of names"),
        ({"maps": ["tsne"]}, "every map to be one of"),
        ({"k": 0}, "k to be a whole number"),
        ({"n_components": 1}, "n_components to be a whole number of at least 2"),
    ],
)
def test_bad_input(cells, options, message):
    with pytest.raises(hm.InvalidInputError, match=message):
        samples(cells, **options)


def test_cells_without_distances(cells):
    bare = anndata.AnnData(np.zeros((3, 2), dtype=np.float32))
    with pytest.raises(hm.InvalidInputError, match=r"call hm\.tl\.sample_distances"):
        samples(bare)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently")
def test_samples_survive_h5ad_and_zarr(found, tmp_path):
    found.write_h5ad(tmp_path / "samples.h5ad")
    with anndata.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        found.write_zarr(tmp_path / "samples.zarr")
    for read in (anndata.read_h5ad(tmp_path / "samples.h5ad"), anndata.read_zarr(tmp_path / "samples.zarr")):
        np.testing.assert_array_equal(read.obsp["distances"], found.obsp["distances"])
        assert list(read.uns["heatmover"]["varying"]) == ["branch", "partly"]
        assert read.obs["condition"].cat.ordered


def modules_of_umap():
    return [name for name in sys.modules if name.partition(".")[0] in {"umap", "pynndescent"}]


@pytest.fixture
def plain_umap(monkeypatch):
    """UMAP without compilation, which takes half a minute in a new environment and seconds in any other."""
    pytest.importorskip("scanpy")  # whose own functions stay as they are
    for name in modules_of_umap():
        monkeypatch.delitem(sys.modules, name)
    # Looked at where a function is decorated, thus when umap is imported.
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    yield
    for name in modules_of_umap():  # nobody else gets what was imported here
        del sys.modules[name]


# What scanpy 1.11 and umap-learn 0.5 say of matplotlib 3.11, Tensorflow and threads; none of it concerns the samples.
@pytest.mark.filterwarnings("ignore:The set_bad function")
@pytest.mark.filterwarnings("ignore:Tensorflow not installed")
@pytest.mark.filterwarnings("ignore:n_jobs value 1 overridden")
@pytest.mark.usefixtures("plain_umap")
def test_scanpy_works_on_samples(found):
    scanpy = pytest.importorskip("scanpy")
    from matplotlib import pyplot

    axes = scanpy.pl.embedding(found, basis="mds", color=["condition", "age"], show=False)
    assert [each.get_title() for each in axes] == ["condition", "age"]
    scanpy.tl.umap(found)
    assert found.obsm["X_umap"].shape == (14, 2)
    assert np.isfinite(found.obsm["X_umap"]).all()
    scanpy.tl.diffmap(found, n_comps=12)
    found.uns["iroot"] = 0
    scanpy.tl.dpt(found)
    assert found.obs["dpt_pseudotime"].between(0, 1).all()
    scanpy.pl.umap(found, color="dpt_pseudotime", show=False)
    pyplot.close("all")


def test_maps_on_demand(cells, monkeypatch):
    """The map is that of `manifold.umap`, whose own test runs UMAP itself: it compiles for a minute in each process."""
    given = []

    def umap(distances, *, k, random_state):
        given.append((distances, k))
        return distances[:, :2] + 7

    monkeypatch.setattr("heatmover.tl.layout.umap", umap)
    found = samples(cells, maps=["umap"])
    ((distances, neighbors),) = given
    np.testing.assert_array_equal(distances, found.obsp["distances"])
    assert 1 <= neighbors <= 12
    np.testing.assert_array_equal(found.obsm["X_umap"], distances[:, :2] + 7)
    assert "X_diffusion" not in found.obsm
