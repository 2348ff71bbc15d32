"""AnnData files that contradict themselves or are damaged: refused before a value of theirs is used."""

from __future__ import annotations

import functools
import json
import shutil

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from heatmover import tl
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError

LARGE = 10**9


@pytest.fixture(scope="session")
def whole(make, tmp_path_factory):
    """A function that returns a whole file of each format and form of X; not to be changed."""

    @functools.cache
    def path(format, form):
        folder = tmp_path_factory.mktemp("whole")
        frame = make.frame()
        frame["sample"] = frame["sample"].astype("category")
        adata = make.anndata(frame)
        adata.X = form(adata.X)
        adata.obsm["X_sparse"] = sp.csr_matrix(adata.X)
        if format == "h5ad":
            adata.write_h5ad(folder / "cells.h5ad")
            return folder / "cells.h5ad"
        return make.zarr(adata, folder / "cells.zarr", 2 if format == "zarr2" else 3)

    return path


def copied(path, folder):
    copy = folder / path.name
    shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
    return copy


@pytest.fixture(params=["h5ad", "zarr"])
def damaged(request, whole, tmp_path):
    """A function that copies a file, changes arrays and attributes in it, and returns its path."""

    def damage(form, changes, *, attributes=()):
        path = copied(whole(request.param, form), tmp_path)
        if path.suffix == ".zarr":
            change(apart(path), changes, attributes)
        else:
            with h5py.File(path, "a") as file:
                change(file, changes, attributes)
        return path

    return damage


@pytest.fixture
def stored(whole, tmp_path):
    """A copy of an h5ad file with a dense X."""
    return copied(whole("h5ad", np.asarray), tmp_path)


def apart(path):
    """Open a store without the copy of all descriptions that its writer keeps at the top."""
    for name, key in (("zarr.json", "consolidated_metadata"), (".zmetadata", None)):
        if (path / name).exists():
            content = json.loads((path / name).read_text())
            content.pop(key, None)
            (path / name).write_text(json.dumps(content)) if key else (path / name).unlink()
    return zarr.open_group(path, mode="a", use_consolidated=False)


def array_of(root, name):
    """Return the name of an array; texts may be stored as a group of values and a mask."""
    return f"{name}/values" if hasattr(root[name], "keys") else name


def change(root, changes, attributes):
    for name, new in changes.items():
        name = array_of(root, name)
        values, kept = new(root[name][...]), dict(root[name].attrs)
        above, _, last = name.rpartition("/")
        holder = root[above] if above else root
        del holder[last]
        if isinstance(root, h5py.Group):
            holder[last] = values
        else:
            holder.create_array(last, data=values)
        holder[last].attrs.update(kept)
    for name, key, value in attributes:
        root[name].attrs[key] = value


def refused(path, *patterns, **options):
    with pytest.raises(InvalidInputError) as caught:
        read_cohort(path, **{"sample_key": "sample", "representation": "X", **options})
    for pattern in patterns:
        assert pattern in str(caught.value), str(caught.value)


def put(place, value):
    def new(values):
        values = values.astype(np.int64)
        values[place] = value
        return values

    return new


POINTERS = {
    "beyond": (put(2, LARGE), "indptr"),
    "back": (lambda p: np.concatenate([p[:2], p[1:2] - 1, p[3:]]), "indptr"),
    "below": (put(1, -4), "indptr"),
    "short": (lambda p: np.concatenate([p[:-1], p[-1:] - 2]), "pointers from 0 to"),
    "long": (put(-1, LARGE), "pointers from 0 to"),
    "begins late": (put(0, 2), "pointers from 0 to"),
    "few": (lambda p: p[:-3], "pointers, found an indptr of shape"),
    "no whole numbers": (lambda p: p.astype(float), "pointers of whole numbers"),
    "one line has all": (lambda p: np.where(np.arange(p.size) > 0, p[-1], 0), "between two pointers"),
}


@pytest.mark.parametrize("damage", POINTERS)
@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix])
def test_pointers_of_a_sparse_matrix_are_checked(form, damage, damaged):
    new, message = POINTERS[damage]
    refused(damaged(form, {"X/indptr": new}), message)


@pytest.mark.parametrize("value", [LARGE, -1, 60, 3])
@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix])
def test_indices_of_a_sparse_matrix_are_checked(form, value, damaged):
    path = damaged(form, {"X/indices": put(7, value)})
    if form is sp.csc_matrix and value == 3:  # a row that there is; row 7 of this column is then empty
        assert read_cohort(path, sample_key="sample").n_cells == 60
    else:
        refused(path, "X with indices in range")


@pytest.mark.parametrize("sides", [(60, 2), (60, 4), (59, 3), (LARGE, 3), (60, LARGE), (-1, 3), (60,)])
@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix])
def test_the_shape_of_a_sparse_matrix_is_checked(form, sides, damaged):
    refused(damaged(form, {}, attributes=[("X", "shape", list(sides))]))


@pytest.mark.parametrize("part", ["data", "indices"])
def test_values_that_are_not_all_there(part, damaged):
    refused(damaged(sp.csr_matrix, {f"X/{part}": lambda values: values[:-1]}), "as many indices as values")


def test_a_sparse_matrix_in_obsm_is_checked_as_well(damaged):
    path = damaged(np.asarray, {"obsm/X_sparse/indptr": put(5, LARGE)})
    refused(path, "X_sparse with at most 3 values", representation="X_sparse")
    assert read_cohort(path, sample_key="sample", representation="X").n_cells == 60


@pytest.mark.parametrize("form", [sp.csr_matrix, sp.csc_matrix, sp.csr_array])
def test_a_place_that_is_stored_twice_has_the_sum(form, damaged):
    """SciPy means it so; the moments of the columns did not."""

    def doubled(indices):
        indices[1] = indices[0]
        return indices

    path = damaged(form, {"X/indices": doubled})
    found = read_cohort(path, sample_key="sample", representation="X", standardize=True).points()
    raw = read_cohort(path, sample_key="sample", representation="X").points()
    assert not np.allclose(raw[0], 0)
    np.testing.assert_allclose(found, (raw - raw.mean(axis=0)) / raw.std(axis=0), atol=1e-12)
    adata = anndata.AnnData(form(raw.shape), obs=pd.DataFrame({"sample": ["a", "b"] * 30}, index=map(str, range(60))))
    adata.X = sp.csr_matrix((np.ones(4), [0, 0, 1, 2], [0, 2, 4, *[4] * 58]), shape=raw.shape)
    found = read_cohort(adata, sample_key="sample", standardize=True).points()
    dense = adata.X.toarray()
    np.testing.assert_allclose(found, (dense - dense.mean(axis=0)) / dense.std(axis=0), atol=1e-12)


@pytest.mark.parametrize("place", ["indptr", "indices"])
def test_a_sparse_matrix_in_memory_is_checked(place, frame, make):
    adata = make.anndata(frame, sparse=True)
    getattr(adata.X, place)[5] = 10**6
    refused(adata, "a consistent sparse matrix")
    with pytest.raises(InvalidInputError, match="a consistent sparse matrix"):
        tl.sample_distances(adata, "sample", use_rep="X")


@pytest.mark.parametrize("place", ["indptr", "indices"])
def test_connectivities_in_memory_are_checked(place, frame, make):
    adata = make.anndata(frame)
    rng = np.random.default_rng(0)
    affinity = sp.csr_array(rng.random((60, 60)) * (rng.random((60, 60)) < 0.3))
    adata.obsp["connectivities"] = (affinity + affinity.T).tocsr()
    getattr(adata.obsp["connectivities"], place)[5] = 10**6
    with pytest.raises(InvalidInputError, match="a consistent sparse matrix"):
        tl.sample_distances(adata, "sample", neighbors_key="connectivities")


def test_a_sparse_matrix_that_is_still_on_disk_is_checked(frame, make, tmp_path):
    make.anndata(frame, sparse=True).write_h5ad(tmp_path / "cells.h5ad")
    with h5py.File(tmp_path / "cells.h5ad", "a") as file:
        file["X/indptr"][5] = LARGE
    backed = anndata.read_h5ad(tmp_path / "cells.h5ad", backed="r")
    try:
        refused(backed, "indptr")
    finally:
        backed.file.close()


def longer(values):
    return np.concatenate([values, values[:20]])


@pytest.mark.parametrize(
    ("name", "new", "message"),
    [
        ("X", lambda values: values[:40], "60 rows in X, as in obs, found 40"),
        ("X", longer, "60 rows in X, as in obs, found 80"),
        ("X", lambda values: values[:, :2], "3 columns in X, one for each row of var, found 2"),
        ("X", lambda values: values[:, 0], "X to be a matrix"),
        ("obs/_index", longer, "80 rows in obs column"),
        ("var/_index", lambda values: values[:2], "2 columns in X"),
        ("obs/age", longer, "60 rows in obs column 'age', as in obs, found 80"),
        ("obs/age", lambda values: values[:, None], "'age', as in obs, found an array of shape (60, 1)"),
        ("obs/sample/codes", lambda values: values[:-1], "60 rows in obs column 'sample', as in obs"),
        ("obs/sample/codes", put(3, 4), "codes need to be between -1 and"),
        ("obs/sample/codes", lambda values: values.astype(float), "codes"),
        ("obs/sample/categories", lambda values: values[:2], "codes need to be between -1 and"),
        ("obsm/X_twice", longer, "60 rows in X_twice, as in obs, found 80"),
    ],
)
def test_lengths_that_contradict_each_other(name, new, message, stored):
    with h5py.File(stored, "a") as file:
        change(file, {name: new}, ())
    refused(stored, message, representation="X_twice" if "obsm" in name else "X")


def test_columns_of_a_table_in_obsm_that_are_shorter(frame, make, tmp_path):
    adata = make.anndata(frame)
    adata.obsm["proteins"] = pd.DataFrame(adata.X[:, :2], index=adata.obs_names, columns=["a", "b"])
    adata.write_h5ad(tmp_path / "cells.h5ad")
    with h5py.File(tmp_path / "cells.h5ad", "a") as file:
        change(file, {"obsm/proteins/b": lambda values: values[:50]}, ())
    refused(tmp_path / "cells.h5ad", "cells.h5ad' cannot be read", "length", representation="proteins")


def test_cells_without_names_are_counted_by_a_column(stored):
    """Names of millions of cells take more room than the cells, so that stores are written without."""
    expected = read_cohort(stored, sample_key="sample", representation="X").points()
    with h5py.File(stored, "a") as file:
        del file["obs/_index"], file["obs"].attrs["_index"]
    np.testing.assert_array_equal(read_cohort(stored, sample_key="sample", representation="X").points(), expected)
    with h5py.File(stored, "a") as file:
        change(file, {"X": longer}, ())
    refused(stored, "60 rows in X, as in obs, found 80")


def test_a_representation_of_a_billion_columns_is_refused_at_once(whole, tmp_path):
    path = tmp_path / "cells.h5ad"
    shutil.copy(whole("h5ad", sp.csr_matrix), path)
    with h5py.File(path, "a") as file:
        file["obsm/X_sparse"].attrs["shape"] = [60, LARGE]
    refused(path, "at most 1,000,000 columns in X_sparse, found 1,000,000,000", representation="X_sparse")


def test_variables_without_names_are_refused(stored):
    with h5py.File(stored, "a") as file:
        del file["var"].attrs["_index"]
    refused(stored, "_index")


def test_a_column_that_obs_lists_and_does_not_have(stored):
    with h5py.File(stored, "a") as file:
        del file["obs/age"]
    refused(stored, "age")


def test_a_column_of_an_unknown_type_is_left_out_and_told(stored):
    with h5py.File(stored, "a") as file:
        del file["obs/age"]
        file.create_group("obs/age").attrs["encoding-type"] = "awkward-array"
    cohort = read_cohort(stored, sample_key="sample")
    assert "were not read: 'age'" in cohort.warnings[0]
    assert "age" not in cohort.samples
    refused(stored, "obs column 'age' of a known type", annotations=["age"])


@pytest.mark.parametrize("version", [2, 3])
def test_a_chunk_that_is_not_there_is_told(version, whole, tmp_path):
    path = copied(whole("zarr2" if version == 2 else "zarr", np.asarray), tmp_path)
    before = read_cohort(path, sample_key="sample")
    assert before.warnings == ()
    change_chunks(apart(path), "X", (16, 2))
    assert read_cohort(path, sample_key="sample", annotations=[]).warnings == ()
    (path / "X" / ("c/1/0" if version == 3 else "1.0")).unlink()
    cohort = read_cohort(path, sample_key="sample", annotations=[])
    assert "X (1 of 8 chunks, fill value 0.0)" in cohort.warnings[0]
    assert not cohort.points()[16:32, :2].any()
    np.testing.assert_array_equal(cohort.points()[32:], before.points()[32:])


def change_chunks(root, name, chunks):
    values, kept = root[name][...], dict(root[name].attrs)
    del root[name]
    root.create_array(name, data=values, chunks=chunks, attributes=kept)


def test_labels_that_are_not_there_are_told(whole, tmp_path):
    path = copied(whole("zarr", np.asarray), tmp_path)
    (path / "obs" / "sample" / "codes" / "c" / "0").unlink()
    cohort = read_cohort(path, sample_key="sample")
    assert cohort.names == ("p1",)
    assert any("obs column 'sample' (1 of 1 chunk" in warning for warning in cohort.warnings)
    (path / "obs" / "sample" / "categories" / "c" / "0").unlink()
    refused(path, "categories")


@pytest.mark.parametrize("length", [10**12, 61])
@pytest.mark.parametrize("name", ["var/_index", "obs/sample/categories"])
def test_a_length_that_was_damaged_asks_for_no_memory(name, length, stored):
    with h5py.File(stored, "a") as file:
        name = array_of(file, name)
        values, kept = file[name][:], dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, data=values, chunks=(len(values),), maxshape=(None,)).resize((length,))
        file[name].attrs.update(kept)
    refused(stored)


@pytest.mark.parametrize("content", ["null", "[]", "3", '"x"'])
@pytest.mark.parametrize("name", ["zarr.json", "obs/zarr.json", "X/zarr.json"])
def test_descriptions_of_a_store_that_are_none(name, content, whole, tmp_path):
    path = copied(whole("zarr", np.asarray), tmp_path)
    apart(path)
    (path / name).write_text(content)
    refused(path, "cells.zarr")


def test_few_variables_of_a_wide_matrix_are_read_in_small_blocks(make, tmp_path):
    values = np.random.default_rng(0).normal(size=(60, 500))
    obs = pd.DataFrame({"sample": ["a", "b"] * 30}, index=[f"c{i}" for i in range(60)])
    adata = anndata.AnnData(values, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(500)]))
    adata.write_h5ad(tmp_path / "cells.h5ad")
    cohort = read_cohort(tmp_path / "cells.h5ad", sample_key="sample", representation=["g7", "g3"])
    sizes = [len(points) for points, _ in cohort.chunks(50)]
    assert max(sizes) == 1  # of 50 rows of two variables
    np.testing.assert_array_equal(cohort.points(), values[:, [7, 3]])


def test_rows_of_many_values_are_read_a_few_at_a_time(monkeypatch, frame, make, tmp_path):
    monkeypatch.setattr("heatmover.cohort.formats.anndata.STORED_VALUES", 7)
    adata = make.anndata(frame, sparse=True)
    adata.write_h5ad(tmp_path / "cells.h5ad")
    cohort = read_cohort(tmp_path / "cells.h5ad", sample_key="sample")
    assert max(len(points) for points, _ in cohort.chunks(50)) == 2
    np.testing.assert_array_equal(cohort.points(), adata.X.toarray())
