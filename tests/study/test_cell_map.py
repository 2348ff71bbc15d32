"""Cells on a map: the file's own embedding or a computed one, and where two groups differ."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import ClassVar

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest

from heatmover.cohort import read_cohort
from heatmover.datasets import cohort as simulated
from heatmover.errors import InvalidInputError, MissingExtraError
from heatmover.study import cell_map, study_cohort
from heatmover.study.scale import InPieces


def cells_of(n_samples=8, cells_per_sample=60, **obsm):
    data = simulated(n_samples, cells_per_sample=cells_per_sample, effect=4.0)
    names = np.asarray(data.labels).astype(str)
    condition = dict(zip(data.measures().names, data.annotations["condition"], strict=True))
    obs = pd.DataFrame({"sample": names, "condition": [condition[name] for name in names]}).astype(object)
    obs["branch"] = [f"branch {int(branch)}" for branch in data.coordinates[:, 0]]
    obs.index = [f"cell {i}" for i in range(len(names))]
    adata = anndata.AnnData(data.points.astype(np.float32), obs, obsm=dict(obsm))
    # The first coordinate is the row of the cell, so that a mix-up shows.
    adata.obsm["X_umap"] = np.c_[np.arange(len(names)), data.coordinates[:, 0]].astype(np.float32)
    return adata, data


@pytest.fixture(scope="module")
def adata():
    return cells_of()[0]


@pytest.mark.parametrize("where", ["memory", "h5ad", "zarr", "out of core"])
def test_cells_have_their_own_places_and_the_witness_of_their_points(adata, tmp_path, where):
    path = tmp_path / ("cells.zarr" if where == "zarr" else "cells.h5ad")
    if where != "memory":
        with warnings.catch_warnings():  # the writer warns that its own default will change
            warnings.simplefilter("ignore")
            (adata.write_zarr if where == "zarr" else adata.write_h5ad)(path)
    cohort = read_cohort(adata if where == "memory" else path, sample_key="sample")
    comparer = InPieces(memory="1 GB") if where == "out of core" else None
    study = study_cohort(cohort, variables=["condition"], cells="branch", n_permutations=19, comparer=comparer)
    shown = study.cell_map
    assert shown.title == "UMAP"
    assert shown.groups == ("case", "control")
    rows = shown.places[:, 0].astype(int)
    assert np.array_equal(np.sort(rows), np.arange(len(adata)))
    assert [study.comparison.names[i] for i in shown.samples] == adata.obs["sample"].iloc[rows].tolist()
    assert [shown.type_names[i] for i in shown.types] == adata.obs["branch"].iloc[rows].tolist()
    assert np.abs(shown.witness).max() <= 1
    assert ((shown.q_values <= 0.1) == (shown.signs != 0)).all()
    assert (shown.signs == 1).mean() == pytest.approx(study.cell_calls.more, abs=1e-9)
    # The last branch has more cells of cases, so that the witness is larger there than on average.
    assert shown.witness[adata.obs["branch"].iloc[rows] == "branch 4"].mean() > shown.witness.mean() + 0.1


def test_the_witness_separates_the_means_of_the_groups_by_their_distance(adata):
    study = study_cohort(read_cohort(adata, sample_key="sample"), variables=["condition"], n_permutations=19)
    group = adata.obs["condition"].iloc[study.cell_map.places[:, 0].astype(int)].to_numpy()
    values = study.cell_map.witness
    # All cells are shown and samples are of one size: means over cells are means over samples.
    gap = values[group == "case"].mean() - values[group == "control"].mean()
    comparison = study.comparison
    rows = comparison.measures.masses.toarray()
    cases = study.variables["condition"].to_numpy() == "case"
    witness = study.cell_calls.witness
    difference = rows[cases].mean(axis=0) - rows[~cases].mean(axis=0)
    assert gap == pytest.approx(float(witness @ difference), rel=1e-6)
    assert np.abs(witness).max() == pytest.approx(1)


def test_cells_are_drawn_from_the_samples_that_were_compared(adata, monkeypatch):
    monkeypatch.setattr(cell_map, "MOST_CELLS", 50)
    cohort = read_cohort(adata, sample_key="sample")
    first = study_cohort(cohort, variables=["condition"], equal_cells=30, n_permutations=19).cell_map
    assert len(first.places) == 50
    assert set(first.samples) == set(range(8))
    order = np.random.default_rng(1).permutation(len(adata))
    mixed = study_cohort(
        read_cohort(adata[order].copy(), sample_key="sample"),
        variables=["condition"],
        equal_cells=30,
        n_permutations=19,
    ).cell_map
    # The draw does not depend on the order of the cells.
    assert set(first.places[:, 0]) == set(mixed.places[:, 0])


def test_samples_that_were_left_out_are_not_on_the_map(adata):
    few = adata[(adata.obs["sample"] != "case-01") | (np.arange(len(adata)) % 20 == 0)].copy()
    study = study_cohort(
        read_cohort(few, sample_key="sample"), variables=["condition"], min_cells=30, n_permutations=19
    )
    rows = study.cell_map.places[:, 0].astype(int)
    assert "case-01" not in set(adata.obs["sample"].iloc[rows])
    assert len(study.comparison.names) == 7


def test_cells_without_coordinates_are_left_out():
    adata = cells_of()[0]
    adata.obsm["X_umap"][:7] = np.nan
    study = study_cohort(read_cohort(adata, sample_key="sample"), variables=["condition"], n_permutations=19)
    assert len(study.cell_map.places) == len(adata) - 7
    adata.obsm["X_umap"][:] = np.inf
    study = study_cohort(read_cohort(adata, sample_key="sample"), variables=["condition"], n_permutations=19)
    assert study.cell_map is None
    told = "The report has no map of the cells: Expected coordinates of cells in X_umap, found only NaN or infinity"
    assert any(note.startswith(told) for note in study.notes)


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_what_is_no_array_in_obsm_is_passed_over(tmp_path, kind):
    adata = cells_of()[0]
    adata.obsm["A_table"] = pd.DataFrame({"x": 1.0, "y": 2.0}, index=adata.obs_names)
    adata.obsm["A_wide"] = np.ones((len(adata), 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (adata.write_zarr if kind == "zarr" else adata.write_h5ad)(tmp_path / f"cells.{kind}")
    if kind == "h5ad":
        with h5py.File(tmp_path / "cells.h5ad", "a") as file:
            file["obsm"].create_group("A_ragged").attrs["encoding-type"] = "awkward-array"
    cohort = read_cohort(tmp_path / f"cells.{kind}", sample_key="sample")
    assert cohort.embeddings == ("X_umap",)


def test_an_embedding_of_other_length_costs_the_map_and_not_the_study(tmp_path):
    adata = cells_of()[0]
    adata.write_h5ad(tmp_path / "cells.h5ad")
    with h5py.File(tmp_path / "cells.h5ad", "a") as file:
        del file["obsm/X_umap"]
        file["obsm/X_umap"] = np.zeros((5, 2))
    study = study_cohort(read_cohort(tmp_path / "cells.h5ad", sample_key="sample"), n_permutations=19)
    assert study.cell_map is None
    assert any("480 rows in X_umap" in note for note in study.notes)


def test_a_computed_map_needs_nothing_in_the_file(adata):
    plain = adata.copy()
    del plain.obsm["X_umap"]
    cohort = read_cohort(plain, sample_key="sample")
    assert study_cohort(cohort, variables=["condition"], n_permutations=19).cell_map is None
    study = study_cohort(cohort, variables=["condition"], cell_map="pca", n_permutations=19)
    assert study.cell_map.places.shape == (len(adata), 2)
    # The variances of principal components fall, and components are not correlated.
    variance = np.cov(study.cell_map.places.T)
    assert variance[0, 0] > variance[1, 1] > 0
    assert abs(variance[0, 1]) < 1e-9 * variance[0, 0]
    assert study.plain()["cell_map"]["name"] == "pca"


class FakeUMAP:
    """Stands in for the real one, which compiles for ten seconds."""

    given: ClassVar = {}

    def __init__(self, **given):
        FakeUMAP.given = given

    def fit_transform(self, points):
        return np.asarray(points, dtype=np.float32)[:, :2]


def test_umap_is_asked_for_a_map_of_the_cells_drawn(adata, monkeypatch):
    package = ModuleType("umap")
    package.UMAP = FakeUMAP
    monkeypatch.setitem(sys.modules, "umap", package)
    cohort = read_cohort(adata, sample_key="sample")
    study = study_cohort(cohort, variables=["condition"], cell_map="umap", n_permutations=19)
    assert FakeUMAP.given == {"n_neighbors": 15, "random_state": 0, "n_jobs": 1}
    assert np.array_equal(study.cell_map.places, cohort.points()[:, :2])
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(MissingExtraError, match=r"heatmover\[umap\]"):
        study_cohort(cohort, cell_map="umap")


def test_no_map_without_groups_of_two(adata):
    cohort = read_cohort(adata, sample_key="sample")
    assert study_cohort(cohort, variables=["condition"], cell_map="none", n_permutations=19).cell_map is None
    alone = adata.copy()
    alone.obs["condition"] = np.where(alone.obs["sample"] == "case-01", "case", "control")
    study = study_cohort(read_cohort(alone, sample_key="sample"), n_permutations=19, variables=["condition"])
    assert study.cell_map.witness is None
    assert study.cell_map.groups == ()


def test_an_unknown_map_is_told_before_the_work(adata):
    cohort = read_cohort(adata, sample_key="sample")
    with pytest.raises(InvalidInputError, match=r"embedding of the file, .*'X_tsne'; the file has only 'X_umap'"):
        study_cohort(cohort, cell_map="X_tsne")
    table = adata.copy()
    table.obsm["X_pca"] = table.X
    del table.obsm["X_umap"]
    with pytest.raises(InvalidInputError, match=r"the file has no embedding with two columns"):
        study_cohort(read_cohort(table, sample_key="sample"), cell_map="X_pca")
