"""AnnData: representations, old files, matrices stored by columns, hostile names."""

from __future__ import annotations

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError

MARKERS = ["CD4", "CD8", "CD19"]
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'`,;\t\\",
    "x" * 5000,
    "Ångström 漢字 🧬",
    "../../etc",
    "{{ name }}",
    "nul\x07l",
]


@pytest.fixture
def adata(frame, make):
    return make.anndata(frame)


@pytest.fixture(params=["memory", "h5ad", "zarr"])
def stored(request, make, tmp_path):
    """A function that stores an AnnData object in each way."""

    def store(adata):
        if request.param == "memory":
            return adata
        if request.param == "zarr":
            return make.zarr(adata, tmp_path / "cells.zarr")
        adata.write_h5ad(tmp_path / "cells.h5ad")
        return tmp_path / "cells.h5ad"

    return store


def test_a_key_of_obsm(adata, stored):
    cohort = read_cohort(stored(adata), sample_key="sample", representation="X_twice")
    np.testing.assert_array_equal(cohort.points(), 2 * adata.X)
    assert cohort.features == ("X_twice 1", "X_twice 2", "X_twice 3")


def test_x_pca_is_the_default_if_there_is_one(adata, stored):
    adata.obsm["X_pca"] = adata.X[:, :2].astype(np.float32)
    cohort = read_cohort(stored(adata), sample_key="sample")
    assert cohort.features == ("X_pca 1", "X_pca 2")
    assert cohort.points().dtype == np.float32


@pytest.mark.parametrize("nullable", [False, True])
def test_a_table_in_obsm(nullable, adata, stored):
    """Its index is an array of texts, or a group of texts and a mask."""
    adata.obs_names = adata.obs_names.astype("string" if nullable else object)
    adata.obsm["proteins"] = pd.DataFrame(3 * adata.X[:, :2], index=adata.obs_names, columns=["a", "b"])
    with anndata.settings.override(allow_write_nullable_strings=nullable):
        path = stored(adata)
    cohort = read_cohort(path, sample_key="sample", representation="proteins")
    assert cohort.features == ("a", "b")
    np.testing.assert_array_equal(cohort.points(), 3 * adata.X[:, :2])


def test_a_matrix_stored_by_columns_is_told(adata, stored):
    dense = adata.X
    adata.X = sp.csc_matrix(dense)
    cohort = read_cohort(stored(adata), sample_key="sample")
    np.testing.assert_array_equal(np.vstack([points for points, _ in cohort.chunks(7)]), dense)
    assert "stored by columns" in cohort.warnings[0]


def test_whole_numbers_become_float(adata, stored):
    adata.X = sp.csr_matrix(np.arange(180, dtype=np.int64).reshape(60, 3))
    assert read_cohort(stored(adata), sample_key="sample").points().dtype == np.float64


def test_unused_categories_are_no_samples(adata, stored):
    adata.obs["sample"] = pd.Categorical(adata.obs["sample"], categories=["p1", "p2", "p3", "p4", "gone"])
    assert read_cohort(stored(adata), sample_key="sample").names == ("p1", "p2", "p3", "p4")


def test_nullable_columns(adata, stored):
    visits = adata.obs["sample"].map({"p1": 1, "p2": None, "p3": 3, "p4": 3})
    adata.obs["visits"] = pd.array(visits, dtype="Int64")
    adata.obs["treated"] = pd.array(visits == 3, dtype="boolean")
    cohort = read_cohort(stored(adata), sample_key="sample")
    assert cohort.variable("visits").tolist()[::2] == [1, 3]
    assert np.isnan(cohort.variable("visits")["p2"])
    assert cohort.variable("treated").tolist() == [False, False, True, True]


def test_a_backed_object_is_read_as_well(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    try:
        np.testing.assert_array_equal(read_cohort(backed, sample_key="sample").points(), adata.X)
    finally:
        backed.file.close()


def test_a_view_is_read_as_well(adata):
    view = adata[adata.obs["sample"] != "p2", ["CD19", "CD4"]]
    cohort = read_cohort(view, sample_key="sample")
    assert cohort.names == ("p1", "p3", "p4")
    np.testing.assert_array_equal(cohort.points(), view.X)


def test_categories_as_older_files_hold_them(adata, tmp_path):
    path = tmp_path / "cells.h5ad"
    adata.write_h5ad(path)
    with h5py.File(path, "a") as file:
        codes, categories = file["obs/sample/codes"][:], file["obs/sample/categories"][:]
        del file["obs/sample"]
        file["obs/__categories/sample"] = categories
        file["obs/sample"] = codes
        file["obs/sample"].attrs["categories"] = file["obs/__categories/sample"].ref
    assert read_cohort(path, sample_key="sample").labels().tolist() == adata.obs["sample"].tolist()


def test_chosen_variables_must_be_distinguishable(adata, stored):
    adata.var_names = ["CD4", "CD4", "CD19"]
    path = stored(adata)
    assert read_cohort(path, sample_key="sample", representation=["CD19"]).n_dimensions == 1
    with pytest.raises(InvalidInputError, match="'CD4' more than once"):
        read_cohort(path, sample_key="sample", representation=["CD4"])


def test_an_array_of_three_dimensions_is_no_representation(adata, stored):
    adata.obsm["images"] = np.zeros((60, 4, 4))
    with pytest.raises(InvalidInputError, match=r"images to be a matrix.*\(60, 4, 4\)"):
        read_cohort(stored(adata), sample_key="sample", representation="images")


def test_text_is_no_representation(adata, tmp_path):
    adata.obsm["words"] = np.array([["a", "b"]] * 60, dtype=object)
    with pytest.raises(InvalidInputError, match="not numbers"):
        read_cohort(adata, sample_key="sample", representation="words")


@pytest.mark.parametrize("kind", ["h5ad", "zarr", "memory", "csv", "parquet"])
def test_hostile_names_are_data(kind, frame, make, tmp_path):
    names = np.resize(HOSTILE, len(frame))
    frame["sample"], frame["condition"] = names, names[::-1]
    frame = frame.rename(columns={"age": "<b>age"})
    path, arguments = make.write(frame, kind, tmp_path)
    cohort = read_cohort(path, representation=MARKERS, **arguments)
    assert cohort.names == tuple(sorted(HOSTILE))
    assert cohort.labels().tolist() == names.tolist()
    assert len(repr(cohort)) < 200
    assert cohort.varying["<b>age"] > 0


@pytest.mark.parametrize("kind", ["h5ad", "csv"])
def test_hostile_names_do_not_fill_a_message(kind, frame, make, tmp_path):
    frame["sample"] = np.resize(HOSTILE, len(frame))
    frame.loc[2, "CD4"] = np.nan
    path, arguments = make.write(frame, kind, tmp_path)
    with pytest.raises(InvalidInputError, match=r"sample 'xxx.*\.\.\.x*'") as caught:
        read_cohort(path, **arguments)
    assert len(str(caught.value)) < 300
    with pytest.raises(InvalidInputError) as caught:
        read_cohort(path, sample_key="y" * 5000)
    assert len(str(caught.value)) < 500
