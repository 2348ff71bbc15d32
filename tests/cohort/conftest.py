"""One small cohort, written in every format."""

from __future__ import annotations

import functools
import gzip
import shutil
import warnings
from types import SimpleNamespace

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from flowio import create_fcs

from heatmover.cohort import read_cohort

MARKERS = ["CD4", "CD8", "CD19"]


def make_frame(n_cells=60, seed=0):
    """Cells sorted by sample, so that a folder of files has them in the same order; values fit float32."""
    rng = np.random.default_rng(seed)
    sample = np.sort(rng.choice(["p1", "p2", "p3", "p4"], n_cells))
    values = rng.normal(size=(n_cells, 3)).astype(np.float32).astype(np.float64)
    frame = pd.DataFrame({"sample": sample})
    frame["condition"] = frame["sample"].map({"p1": "healthy", "p2": "ill", "p3": "healthy", "p4": "ill"})
    frame["age"] = frame["sample"].map({"p1": 50, "p2": 61, "p3": 47, "p4": 70})
    frame["dose"] = frame["sample"].map({"p1": 0.5, "p2": 1.25, "p3": 0.0, "p4": 2.0})
    frame["smoker"] = frame["sample"].map({"p1": True, "p2": False, "p3": True, "p4": True})
    frame["cluster"] = np.where(values[:, 0] > 0, "T", "B")
    frame[MARKERS] = values
    return frame


def make_anndata(frame, *, sparse=False):
    obs = frame.drop(columns=MARKERS).set_axis([f"cell{i}" for i in range(len(frame))])
    values = frame[MARKERS].to_numpy()
    matrix = sp.csr_matrix(values) if sparse else values
    var = pd.DataFrame(index=MARKERS)
    return anndata.AnnData(matrix, obs=obs, var=var, obsm={"X_twice": 2 * values})


def write_zarr(adata, path, version=3):
    previous = anndata.settings.zarr_write_format
    anndata.settings.zarr_write_format = version
    try:
        with warnings.catch_warnings():
            # The writer warns that its own default will change; only the reader is on trial.
            warnings.simplefilter("ignore")
            adata.write_zarr(path)
    finally:
        anndata.settings.zarr_write_format = previous
    return path


def write_fcs(path, values, channels, markers=None, metadata=None):
    with path.open("wb") as stream:
        create_fcs(stream, np.asarray(values, dtype=float).ravel().tolist(), channels, markers, metadata)
    return path


def write_folder(frame, folder):
    folder.mkdir()
    for name, rows in frame.groupby("sample"):
        time = np.arange(len(rows))[:, None]
        write_fcs(folder / f"{name}.fcs", np.hstack([time, rows[MARKERS]]), ["Time", *MARKERS])
    sheet = frame.drop(columns=[*MARKERS, "cluster"]).drop_duplicates()
    sheet.insert(0, "file", sheet["sample"] + ".fcs")
    # In another order than the files.
    sheet.iloc[::-1].to_csv(folder.parent / "sheet.csv", index=False)
    return folder


def write(frame, kind, folder):
    """Write ``frame`` in the format ``kind``; return the path and the arguments of read_cohort."""
    path, arguments = folder / f"cells.{kind}", {"sample_key": "sample"}
    if kind in ("csv", "csv.gz", "tsv"):
        text = frame.to_csv(index=False, sep="\t" if kind == "tsv" else ",").encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    elif kind == "parquet":
        frame.to_parquet(path, index=False, row_group_size=17)
    elif kind == "fcs":
        path = write_folder(frame, folder / "fcs")
        arguments["sample_sheet"] = folder / "sheet.csv"
    else:
        adata = make_anndata(frame, sparse="sparse" in kind)
        if kind.startswith("memory"):
            path = adata
        elif kind.startswith("h5ad"):
            path = folder / "cells.h5ad"
            adata.write_h5ad(path)
        else:
            path = write_zarr(adata, folder / "cells.zarr", 2 if "v2" in kind else 3)
    return path, arguments


FORMATS = [
    "h5ad",
    "h5ad sparse",
    "zarr",
    "zarr sparse",
    "zarr v2",
    "memory",
    "memory sparse",
    "csv",
    "csv.gz",
    "tsv",
    "parquet",
    "fcs",
]


@pytest.fixture(scope="session")
def copy(tmp_path_factory):
    """A function that writes the cohort, or one of another size, once in each format and copies it into a folder."""

    @functools.cache
    def first(kind, n_cells):
        return write(make_frame(n_cells), kind, tmp_path_factory.mktemp("first"))

    def copied(kind, folder, n_cells=60):
        path, arguments = first(kind, n_cells)
        shutil.copytree(path.parent, folder, dirs_exist_ok=True)
        moved = {"sample_sheet": folder / "sheet.csv"} if "sample_sheet" in arguments else {}
        return folder / path.name, arguments | moved

    return copied


@pytest.fixture(scope="session")
def make():
    """The functions above, for tests that write files of their own."""
    return SimpleNamespace(
        frame=make_frame, anndata=make_anndata, zarr=write_zarr, fcs=write_fcs, folder=write_folder, write=write
    )


@pytest.fixture
def frame():
    return make_frame()


@pytest.fixture(scope="session", params=FORMATS)
def written(request, tmp_path_factory):
    """Path and arguments of the cohort in each format; not to be changed."""
    return write(make_frame(), request.param, tmp_path_factory.mktemp("cohort"))


@pytest.fixture(scope="session")
def cohort(written):
    """The cohort read from each format."""
    path, arguments = written
    return read_cohort(path, **arguments)
