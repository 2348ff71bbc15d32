"""h5ad files of samples: element by element what the package anndata writes, and read by it."""

from __future__ import annotations

import io

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from heatmover.report.stored import write_anndata


@pytest.fixture(autouse=True)
def texts_as_arrays():
    """Every version of the package reads these; the newest writes texts with a mask unless told otherwise."""
    with anndata.settings.override(allow_write_nullable_strings=False):
        yield


def parts():
    rng = np.random.default_rng(0)
    obs = pd.DataFrame(
        {
            "group": pd.Categorical(["b", "a", None], categories=["b", "a"]),
            "grade": pd.Categorical(["low", "high", "low"], categories=["low", "high"], ordered=True),
            "age": [31.5, np.nan, 60.0],
            "n_cells": [3, 4, 5],
            "died": [True, False, True],
        },
        index=["s1", "s ü", "3"],
    )
    return {
        "obs": obs,
        "obsm": {"X_mds": rng.normal(size=(3, 2)), "X_heatmover": rng.normal(size=(3, 4)).astype(np.float32)},
        "obsp": {"distances": np.ones((3, 3)), "connectivities": sp.csr_matrix(np.eye(3))},
        "uns": {
            "heatmover": {
                "params": {"variables": ["a", "b"], "none": [], "numbers": [1, 2], "bias": "raw", "k": 5, "tol": 1e-3},
                "flags": {"drawn": False, "numpy": np.float32(0.5), "truth": np.True_},
                "names": np.array(["x", "y"], dtype=object),
                "fixed": np.array(["x", "yz"]),
                "nothing": np.array([], dtype=object),
                "empty": {},
            }
        },
    }


def elements(file):
    """Every element's kind, attributes and values."""
    found = {}

    def look(name, element):
        attributes = {key: np.asarray(value).tolist() for key, value in element.attrs.items()}
        values = None
        if isinstance(element, h5py.Dataset):
            shape = element.shape
            values = (str(element.dtype), shape, np.asarray(element[()]).tolist())
        found[name] = (type(element).__name__, attributes, repr(values))

    look("/", file["/"])
    file.visititems(look)
    return found


def test_the_same_elements_as_the_package_writes():
    mine, theirs = h5py.File(io.BytesIO(), "w"), h5py.File(io.BytesIO(), "w")
    with mine, theirs:
        write_anndata(mine, parts())
        anndata.io.write_elem(theirs, "/", anndata.AnnData(**parts()))
        expected = elements(theirs)
        expected.pop("raw", None)  # newer versions say that there is none
        assert elements(mine) == expected


def test_the_package_reads_what_was_written(tmp_path):
    with h5py.File(tmp_path / "samples.h5ad", "w") as file:
        write_anndata(file, parts())
    found, given = anndata.read_h5ad(tmp_path / "samples.h5ad"), parts()
    pd.testing.assert_frame_equal(found.obs, given["obs"])
    assert found.shape == (3, 0)
    np.testing.assert_array_equal(found.obsm["X_heatmover"], given["obsm"]["X_heatmover"])
    np.testing.assert_array_equal(found.obsp["connectivities"].toarray(), np.eye(3))
    assert found.uns["heatmover"]["params"]["bias"] == "raw"


@pytest.mark.parametrize(
    ("name", "value"),
    [("obs", pd.DataFrame({"n": pd.array([1, None], dtype="Int64")}, index=["a", "b"])), ("uns", {"none": None})],
)
def test_what_is_not_known_here_is_left_to_the_package(name, value):
    given = {"obs": pd.DataFrame(index=["a", "b"]), "obsm": {}, "obsp": {}, "uns": {}, name: value}
    mine, theirs = h5py.File(io.BytesIO(), "w"), h5py.File(io.BytesIO(), "w")
    with mine, theirs:
        write_anndata(mine, given)
        anndata.io.write_elem(theirs, "/", anndata.AnnData(**given))
        expected = elements(theirs)
        expected.pop("raw", None)
        assert elements(mine) == expected
