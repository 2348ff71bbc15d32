"""Genes as drivers: which matrix is used, means by hand, the same means out of core, and bad input."""

from __future__ import annotations

import re
import warnings

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import heatmover as hm
from heatmover._base.progress import SILENT
from heatmover.errors import InvalidInputError
from heatmover.study import annotate, genes
from heatmover.study.genes import average_genes

GENES = [f"g{i}" for i in range(40)]
SETTINGS = {"cells": "kind", "variables": ["condition"], "n_permutations": 19}


def cells_of(n_samples: int = 8, per_sample: int = 40, seed: int = 0) -> anndata.AnnData:
    """Samples of two types; in cases, gene g3 of type b is higher. X is log-normalized and sparse."""
    rng = np.random.default_rng(seed)
    n_cells = n_samples * per_sample
    sample = np.repeat(np.arange(n_samples), per_sample)
    kind = np.where(rng.random(n_cells) < 0.5, "a", "b")
    rates = np.full((n_cells, len(GENES)), 1.0)
    rates[:, 0] = 100.0  # so that the total hardly depends on g3
    rates[(kind == "b") & (sample % 2 == 1), 3] = 4.0
    counts = sp.csr_matrix(rng.poisson(rates * rng.lognormal(0, 0.3, (n_cells, 1))).astype(np.float32))
    obs = pd.DataFrame(
        {"sample": [f"s{i}" for i in sample], "condition": np.where(sample % 2, "case", "control"), "kind": kind},
        index=[f"c{i}" for i in range(n_cells)],
    )
    adata = anndata.AnnData(sp.csr_matrix(by_hand(counts)), obs=obs, var=pd.DataFrame(index=GENES))
    adata.layers["counts"] = counts
    adata.obsm["X_pca"] = rng.normal(size=(n_cells, 3)) + 2.0 * (kind == "b")[:, None]
    return adata


def by_hand(counts):
    dense = counts.toarray().astype(np.float64)
    return np.log1p(1e4 * dense / np.maximum(dense.sum(axis=1, keepdims=True), 1e-300))


def cohort_of(adata, **further):
    return hm.read_cohort(adata, sample_key="sample", **further)


def bulk_of(adata, choice="auto", **further):
    cohort = cohort_of(adata)
    annotation = annotate("kind", cohort.annotation("kind"), cohort.n_cells)
    return average_genes(cohort, np.arange(len(cohort.names)), annotation, choice, SILENT, **further)


@pytest.fixture(scope="module")
def adata():
    return cells_of()


def test_means_are_those_of_log_normalized_counts(adata):
    bulk = bulk_of(adata)
    assert (bulk.types, bulk.features, bulk.kind) == (("a", "b"), tuple(GENES), "gene")
    assert bulk.scale == "log-normalized counts of layer 'counts'"
    values = by_hand(adata.layers["counts"])
    for row, kind in enumerate("ab"):
        own = (adata.obs["kind"] == kind).to_numpy()
        np.testing.assert_allclose(bulk.squares[row], (values[own] ** 2).mean(axis=0), rtol=1e-6)
        for place in range(8):
            inside = own & (adata.obs["sample"] == f"s{place}").to_numpy()
            assert bulk.counts[row, place] == inside.sum()
            np.testing.assert_allclose(bulk.means[row, place], values[inside].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("place", ["file", "zarr", "memory"])
def test_the_matrix_is_counts_then_raw_then_x(adata, place, tmp_path):
    def scale(data, choice="auto"):
        if place == "file":
            data.write_h5ad(tmp_path / "cells.h5ad")
            data = tmp_path / "cells.h5ad"
        elif place == "zarr":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the format of zarr
                data.write_zarr(tmp_path / "cells.zarr")
            data = tmp_path / "cells.zarr"
        found = bulk_of(data, choice)
        return None if found is None else found.scale

    full = adata.copy()
    full.raw = anndata.AnnData(full.layers["counts"], obs=full.obs, var=full.var)
    assert scale(full) == "log-normalized counts of layer 'counts'"
    assert scale(full, "raw") == "log-normalized counts of raw"
    assert scale(full, "X") == "values of X, as stored"
    assert scale(full, "none") is None
    del full.layers["counts"]
    assert scale(full) == "log-normalized counts of raw"
    del full.raw
    assert scale(full) == "values of X, as stored"


def test_x_is_not_used_twice(adata):
    plain = adata.copy()
    del plain.layers["counts"], plain.obsm["X_pca"]
    assert genes.genes_of(cohort_of(plain), "auto") is None
    assert genes.genes_of(cohort_of(plain, n_components=3), "auto").name == "X"
    assert genes.genes_of(cohort_of(plain), "X").name == "X"


def test_tables_keep_their_measurements(adata, tmp_path):
    table = pd.DataFrame(by_hand(adata.layers["counts"]), columns=GENES).assign(sample=adata.obs["sample"].to_numpy())
    table.to_csv(tmp_path / "cells.csv", index=False)
    cohort = hm.read_cohort(tmp_path / "cells.csv", sample_key="sample")
    assert genes.genes_of(cohort, "auto") is None
    reduced = hm.read_cohort(tmp_path / "cells.csv", sample_key="sample", n_components=3)
    found = genes.genes_of(reduced, "auto")
    assert (found.name, found.kind, found.reader.features) == ("the file", "feature", tuple(GENES))


def test_a_fraction_after_many_whole_numbers_means_that_values_are_no_counts(adata, monkeypatch):
    monkeypatch.setattr(genes, "LABEL_ROWS", 50)
    odd = with_layer(adata, put((300, 0), 0.5))
    bulk = bulk_of(odd)
    assert bulk.scale == "values of layer 'counts', as stored"
    own = (odd.obs["kind"] == "a").to_numpy() & (odd.obs["sample"] == "s2").to_numpy()
    expected = odd.layers["counts"][own].toarray().mean(axis=0)
    np.testing.assert_allclose(bulk.means[0, 2], expected, rtol=1e-6)


def test_a_study_finds_the_gene_in_memory_and_out_of_core(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    cohort = cohort_of(tmp_path / "cells.h5ad")
    study = hm.study_cohort(cohort, **SETTINGS)
    drivers = study.contrast.drivers
    assert (drivers.top(), drivers.method) == ({"b": ["+g3"]}, "moderated t")
    assert drivers.summary() == (
        "1 gene differs within cell types (moderated t, false discovery rate 10%). 'b': +g3."
    )  # fmt: skip
    assert "log-normalized counts of layer 'counts'" in drivers.describe()
    assert study.plain()["contrasts"][0]["drivers"] == {"b": ["+g3"]}
    pieces = hm.study_cohort(cohort, comparer=hm.scale.InPieces(memory="1 GB"), landmarks=30, n_neighbors=5, **SETTINGS)
    np.testing.assert_array_equal(
        pieces.contrast.drivers.ordered(drivers.types).scores, drivers.scores
    )  # fmt: skip
    none = hm.study_cohort(cohort, genes="none", **SETTINGS).contrast.drivers
    assert none.features == ("X_pca 1", "X_pca 2", "X_pca 3")


def test_equal_cells_are_the_cells_of_the_means(adata):
    study = hm.study_cohort(cohort_of(adata), equal_cells=20, **SETTINGS)
    rows = study.comparison.drawn.rows
    values, obs = by_hand(adata.layers["counts"])[rows], adata.obs.iloc[rows]
    row = study.contrast.drivers.types.index("a")
    means, counts = [], []
    for name in ("s1", "s3", "s5", "s7"):
        own = ((obs["kind"] == "a") & (obs["sample"] == name)).to_numpy()
        means.append(values[own].mean(axis=0))
        counts.append(own.sum())
    weights = np.array(counts) / (np.array(counts) + 10)
    expected = np.average(means, axis=0, weights=weights)
    np.testing.assert_allclose(study.contrast.drivers.in_group[row], expected, rtol=1e-5)


def test_genes_in_few_cells_are_left_out_if_memory_is_short(adata):
    rare = adata.copy()
    rare.layers["counts"] = sp.csr_matrix(rare.layers["counts"].multiply(np.r_[np.ones(30), np.zeros(10)]))
    rare = with_layer(rare, put((0, 35), 1))
    bulk = bulk_of(rare, memory=8 * 16 * 33)
    assert bulk.features == (*GENES[:30], "g35")
    assert "9 genes detected in fewer than 1 cell were left out, because the means of all" in bulk.left_out
    everything = bulk_of(rare)
    assert not everything.tested[:, 30:].any()  # in fewer than 10 cells of a type
    assert everything.tested[:, :30].all()


def with_layer(adata, change):
    changed = adata.copy()
    values = changed.layers["counts"].tolil()
    change(values)
    changed.layers["counts"] = values.tocsr()
    return changed


def put(place, value):
    return lambda values: values.__setitem__(place, value)


@pytest.mark.parametrize(
    ("change", "choice", "sentence"),
    [
        (put((7, 2), -1), "auto", "counts of at least 0 in layer 'counts', a matrix of whole numbers, found -1 in"),
        (put((9, 1), np.nan), "auto", "layer 'counts' without NaN or infinity, found such a value in row 9;"),
        (put((0, 0), 1), "count", "genes to be a layer, raw or X, if the file has it, found 'count' (did you mean"),
        (put((0, 0), 1), "raw", "genes to be a layer, raw or X, if the file has it, found 'raw'; there are"),
    ],
)
def test_bad_genes_are_one_sentence(adata, change, choice, sentence):
    with pytest.raises(InvalidInputError, match=re.escape(f"Expected {sentence}")):
        hm.study_cohort(cohort_of(with_layer(adata, change)), genes=choice, **SETTINGS)


def test_genes_of_the_same_name_are_refused(adata):
    twice = adata.copy()
    twice.var_names = ["g0", *GENES[:-1]]
    with pytest.raises(InvalidInputError, match=r"distinct names of the genes in layer 'counts', found 'g0' more than"):
        hm.study_cohort(cohort_of(twice), **SETTINGS)


def test_genes_of_other_cells_are_refused(adata, tmp_path):
    h5py = pytest.importorskip("h5py")
    adata.write_h5ad(tmp_path / "cells.h5ad")
    with h5py.File(tmp_path / "cells.h5ad", "r+") as file:
        layer = file["layers/counts"]
        layer.attrs["shape"] = (319, len(GENES))
        pointers = layer["indptr"][:-1]
        del layer["indptr"]
        layer["indptr"] = pointers
    with pytest.raises(InvalidInputError, match="320 rows in layers/counts, as in obs, found 319"):
        hm.study_cohort(cohort_of(tmp_path / "cells.h5ad"), **SETTINGS)


def test_means_do_not_depend_on_the_order_of_cells(adata):
    order = np.random.default_rng(1).permutation(adata.n_obs)
    for choice in ("counts", "X"):
        plain, shuffled = bulk_of(adata, choice), bulk_of(adata[order].copy(), choice)
        np.testing.assert_array_equal(plain.means, shuffled.means)


def test_genes_need_cell_types():
    with pytest.raises(InvalidInputError, match="cells together with genes='raw'"):
        hm.study.StudyParameters(genes="raw")
