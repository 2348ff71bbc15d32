"""Genes that differ within cell types: real pairs, simulated truth, and the time and memory of averaging.

    python benchmarks/genes.py --data FOLDER/kang_genes16.npz --record

kang        8 lupus donors, each control and stimulated with interferon-beta (Kang et al. 2018): genes called in each
            type by heatmover's rule, by permutations, and by plain paired t-tests on the same means; and how many of
            eight known interferon genes are called as up
simulated   counts of genes with their own variance between samples, in samples of 5 to 60 cells with unequal library
            sizes: false discoveries and power at a nominal rate of 10%
size        time and memory to average 20,000 genes of 200,000 cells by 48 samples and 20 types: in blocks as heatmover,
            and as a whole matrix
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from provenance import add_record, write_table
from scipy import stats

import heatmover as hm
from heatmover._base.progress import SILENT
from heatmover.attribution import drivers
from heatmover.attribution.contrast import SampleContrast, set_up
from heatmover.attribution.pseudobulk import FeatureSums, Pseudobulk
from heatmover.statistics import false_discovery, moderation
from heatmover.study import annotate
from heatmover.study.genes import average_genes, log_normalized

LEVEL = 0.1
KNOWN = ("IFIT1", "IFIT2", "IFIT3", "ISG15", "LY6E", "CXCL10", "TNFSF10", "MX1")
TYPES = ("CD14 Mono", "T", "CD8/NK", "B", "FCGR3A Mono", "DC")
N_CELLS, N_GENES, PER_CELL, N_SAMPLES, N_TYPES = 200_000, 20_000, 500, 48, 20
PERMUTATIONS = 999
SPLITS = 12


def plain_t(bulk: Pseudobulk, groups: np.ndarray, pairs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return signs and q-values of t-tests of the means of samples that have cells of the type."""
    signs, p_values = np.zeros(bulk.tested.shape), np.ones(bulk.tested.shape)
    for kind, means in enumerate(bulk.means):
        there = bulk.counts[kind] > 0
        if pairs is not None:
            whole = [pair for pair in np.unique(pairs) if there[pairs == pair].all()]
            first = means[[np.flatnonzero((pairs == pair) & (groups == 1))[0] for pair in whole]]
            second = means[[np.flatnonzero((pairs == pair) & (groups == 0))[0] for pair in whole]]
        else:
            first, second = means[there & (groups == 1)], means[there & (groups == 0)]
        if min(len(first), len(second)) < 2:
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            test = (stats.ttest_ind if pairs is None else stats.ttest_rel)(first.astype(float), second.astype(float))
        signs[kind] = np.sign(first.mean(axis=0) - second.mean(axis=0))
        p_values[kind] = np.where(bulk.tested[kind], np.nan_to_num(test.pvalue, nan=1.0), 1.0)
    q_values = np.ones_like(p_values)
    q_values[bulk.tested] = false_discovery(p_values[bulk.tested])
    return signs, q_values


def by_permutation(design: SampleContrast, bulk: Pseudobulk) -> drivers.Drivers:
    """Return the drivers by permutations, whatever the rule says."""
    rule = drivers.choose_method
    drivers.choose_method = lambda *_: drivers.PERMUTATION
    try:
        return drivers.find_drivers(design, bulk)
    finally:
        drivers.choose_method = rule


def contrast(groups: np.ndarray, pairs: np.ndarray | None) -> SampleContrast:
    return set_up(
        np.array(["ctrl", "stim"])[groups], groups.size, group="stim", reference="ctrl", blocks=pairs,
        n_permutations=PERMUTATIONS, rng=np.random.default_rng(0),
    )  # fmt: skip


def split_calls(bulk: Pseudobulk, groups: np.ndarray, least: int) -> int:
    """Return the number of random splits of the donors of one condition, 4 against 4, with a significant gene."""
    usual, moderation.FOR_DEGREES, calls = moderation.FOR_DEGREES, least, 0
    for side in range(2):
        own = bulk.of(np.flatnonzero(groups == side).tolist())
        for seed in range(SPLITS):
            split = np.random.default_rng(seed).permutation(8) % 2
            calls += bool((drivers.find_drivers(contrast(split, None), own).q_values <= LEVEL).any())
    moderation.FOR_DEGREES = usual
    return calls


def kang(path: Path, folder: Path | None) -> None:
    """Write the table of genes called in real pairs."""
    import anndata
    import pandas as pd

    with np.load(path, allow_pickle=False) as stored:
        counts = sp.csr_matrix((stored["data"], stored["indices"], stored["indptr"]), shape=tuple(stored["shape"]))
        labels = {name: stored[name].astype(str) for name in ("sample", "donor", "condition", "cell_type")}
        names, places = stored["genes"].astype(str), stored["X_pca"]
    obs = pd.DataFrame(labels, index=[f"c{i}" for i in range(counts.shape[0])])
    adata = anndata.AnnData(counts, obs=obs, var=pd.DataFrame(index=names))
    adata.obsm["X_pca"] = places
    with tempfile.TemporaryDirectory() as place:
        adata.write_h5ad(Path(place) / "kang.h5ad")
        cohort = hm.read_cohort(Path(place) / "kang.h5ad", sample_key="sample")
        annotation = annotate("cell_type", cohort.annotation("cell_type"), cohort.n_cells)
        bulk = average_genes(cohort, np.arange(16), annotation, "auto", SILENT)
        command = [sys.executable, "-m", "heatmover", "compare", Path(place) / "kang.h5ad", "-s", "sample", "--block"]
        command += ["donor", "--cells", "cell_type", "-c", "condition", "-o", Path(place) / "out"]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        table = pd.read_csv(Path(place) / "out" / "drivers.csv")
    assert bulk is not None
    groups = (cohort.samples["condition"] == "stim").to_numpy().astype(int)
    pairs = np.unique(cohort.samples["donor"], return_inverse=True)[1]
    called = table[table["q_value"] <= LEVEL]
    permuted = by_permutation(contrast(groups, pairs), bulk)
    signs, q_values = plain_t(bulk, groups, pairs)
    rows = []
    for name in TYPES:
        kind = bulk.types.index(name)
        own, known = called[called["cell_type"] == name], np.isin(bulk.features, KNOWN)
        up = set(own[own["difference"] > 0]["feature"]) & set(KNOWN)
        plain = q_values[kind] <= LEVEL
        by_t = f"{plain.sum():,} ({(plain & known & (signs[kind] > 0)).sum()})"
        orders = permuted.q_values[kind] <= LEVEL
        by_order = f"{orders.sum():,} ({(orders & known).sum()})"
        cells = f"{int(bulk.counts[kind].sum()):,}"
        rows.append([name, cells, f"{int(bulk.tested[kind].sum()):,}", f"{len(own):,} ({len(up)})", by_t, by_order])
    splits = [split_calls(bulk, groups, least) for least in (moderation.FOR_DEGREES, 10**9)]
    note = (
        f"Genes with q at most {LEVEL:g} in 8 donors (Kang et al. 2018); in parentheses, how many of "
        f"{', '.join(KNOWN)} are called as up after stimulation. All tests use the same means of log-normalized "
        f"counts. Of {2 * SPLITS} random splits of the donors of one condition into 4 against 4, {splits[0]} had a "
        f"significant gene; with the constant prior degrees of freedom of limma-trend, {splits[1]}."
    )
    heads = ["cell type", "cells", "genes tested", "heatmover (moderated t)", "plain paired t", "permutations"]
    write_table("genes_kang", heads, rows, note, folder=folder)


def simulate(
    rng: np.random.Generator, n_samples: int, paired: bool, n_true: int, n_genes: int = 1_000
) -> tuple[Pseudobulk, np.ndarray, np.ndarray | None, np.ndarray]:
    """Return means of simulated counts, groups, pairs, and which genes differ in which of two types (by a factor 2)."""
    groups, pairs = np.arange(n_samples) % 2, np.arange(n_samples) // 2
    base, deviation = rng.lognormal(-1, 1.5, n_genes), 0.15 / np.sqrt(rng.chisquare(6, n_genes) / 6)
    donors = rng.normal(scale=0.3 if paired else 0, size=(n_samples, n_genes))[pairs]
    truth, effect = np.zeros((2, n_genes), dtype=bool), np.zeros((2, n_genes))
    for kind in range(2):
        truth[kind, rng.choice(n_genes, n_true, replace=False)] = True
        effect[kind] = truth[kind] * np.log(2) * rng.choice([-1, 1], n_genes)
    sums = FeatureSums(2, n_samples, n_genes)
    for sample in range(n_samples):
        for kind in range(2):
            size = int(rng.integers(5, 60))
            levels = (
                np.log(base) + rng.normal(size=n_genes) * deviation + donors[sample] + effect[kind] * groups[sample]
            )
            depth = rng.lognormal(0, 0.3, (size, 1)) * rng.lognormal(0, 0.5)
            counts = rng.poisson(rng.gamma(2, 0.5, (size, n_genes)) * np.exp(levels) * depth).astype(float)
            place = (np.full(size, kind * n_samples + sample), np.arange(size))
            where = sp.csr_array((np.ones(size), place), shape=(2 * n_samples, size))
            sums.add(where, log_normalized(sp.csr_array(counts)))
    bulk = sums.finish(("a", "b"), tuple(map(str, range(n_genes))), least_cells=10, least_share=0.01)
    return bulk, groups, pairs if paired else None, truth


def simulated(count: int, folder: Path | None) -> None:
    """Write the table of false discoveries and power."""
    rows = []
    for n_samples, paired in ((4, False), (8, False), (8, True), (16, True)):
        design = f"{n_samples // 2} pairs" if paired else f"{n_samples // 2} against {n_samples // 2}"
        nulls, found = [], []
        for seed in range(count):
            rng = np.random.default_rng(50_000 + seed)
            bulk, groups, pairs, _ = simulate(rng, n_samples, paired, 0)
            p_values = drivers.find_drivers(contrast(groups, pairs), bulk).p_values[bulk.tested]
            nulls.append((p_values <= 0.05).mean())
            bulk, groups, pairs, truth = simulate(rng, n_samples, paired, 100)
            asked = contrast(groups, pairs)
            for q_values in (
                drivers.find_drivers(asked, bulk).q_values,
                plain_t(bulk, groups, pairs)[1],
                by_permutation(asked, bulk).q_values,
            ):
                called = q_values <= LEVEL
                false = (called & ~truth).sum() / max(called.sum(), 1)
                found.append((false, (called & truth).sum() / (truth & bulk.tested).sum()))
        rates = 100 * np.array(found).reshape(count, 3, 2)
        mean, error = rates.mean(axis=0), rates.std(axis=0) / np.sqrt(count)
        cells = [f"{mean[k, 0]:.1f}% ± {error[k, 0]:.1f}, {mean[k, 1]:.0f}%" for k in range(3)]
        null = f"{100 * np.mean(nulls):.1f}% ± {100 * np.std(nulls) / np.sqrt(count):.1f}"
        rows.append([design, null, *cells])
        print(rows[-1], flush=True)
    note = (
        f"{count} simulated data sets per row: 1,000 genes in 2 types, samples of 5 to 60 cells per type, library "
        f"sizes that differ by a factor of 1.6 between samples. False discoveries and power at q of at most {LEVEL:g}; "
        "100 genes per type differ by a factor of 2. Means ± standard errors."
    )
    heads = ["design", "p at most 0.05 without differences", "heatmover (moderated t)", "plain t", "permutations"]
    write_table("genes_simulated", heads, rows, note, folder=folder)


def make_file(path: Path) -> None:
    """Write 200,000 cells with counts of 500 of 20,000 genes each."""
    import anndata
    import pandas as pd

    rng = np.random.default_rng(0)
    # One gene in each of 500 ranges of 40 genes: sorted and without repeats.
    starts = np.arange(PER_CELL, dtype=np.int32) * (N_GENES // PER_CELL)
    indices = (starts + rng.integers(0, N_GENES // PER_CELL, (N_CELLS, PER_CELL), dtype=np.int32)).ravel()
    values = rng.geometric(0.5, indices.size).astype(np.float32)
    counts = sp.csr_matrix((values, indices, np.arange(N_CELLS + 1) * PER_CELL), shape=(N_CELLS, N_GENES))
    obs = {
        "sample": rng.integers(0, N_SAMPLES, N_CELLS).astype(str),
        "kind": rng.integers(0, N_TYPES, N_CELLS).astype(str),
    }
    adata = anndata.AnnData(counts, obs=pd.DataFrame(obs, index=np.arange(N_CELLS).astype(str)))
    adata.obsm["X_pca"] = rng.normal(size=(N_CELLS, 2)).astype(np.float32)
    adata.write_h5ad(path)


def in_blocks(path: Path) -> np.ndarray:
    cohort = hm.read_cohort(path, sample_key="sample")
    annotation = annotate("kind", cohort.annotation("kind"), cohort.n_cells)
    bulk = average_genes(cohort, np.arange(N_SAMPLES), annotation, "auto", SILENT)
    assert bulk is not None
    return bulk.means


def as_whole(path: Path) -> np.ndarray:
    import anndata

    adata = anndata.read_h5ad(path)
    values = log_normalized(sp.csr_array(adata.X, dtype=np.float64))
    names = [np.unique(adata.obs[column].astype(str), return_inverse=True) for column in ("kind", "sample")]
    order = np.argsort(np.argsort([int(name) for name in names[1][0]]))[names[1][1]]
    kinds = np.argsort(np.argsort([int(name) for name in names[0][0]]))[names[0][1]]
    place = (kinds * N_SAMPLES + order, np.arange(N_CELLS))
    where = sp.csr_array((np.ones(N_CELLS), place), shape=(N_TYPES * N_SAMPLES, N_CELLS))
    sums, squares = (where @ values).toarray(), (where @ values**2).toarray()
    counts = np.maximum(where.sum(axis=1), 1)[:, None]
    assert (squares >= 0).all()
    return (sums / counts).reshape(N_TYPES, N_SAMPLES, N_GENES)


WAYS = {"heatmover, in blocks": in_blocks, "whole matrix (anndata, scipy)": as_whole}


def size(folder: Path | None) -> None:
    """Write the table of time and memory."""
    rows, results = [], []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "cells.h5ad"
        subprocess.run([sys.executable, __file__, "--make", str(path)], check=True)
        for name in WAYS:
            out = Path(place) / "means.npy"
            told = subprocess.run(
                [sys.executable, __file__, "--one", name, str(path), str(out)],
                check=True,
                capture_output=True,
                text=True,
            )
            seconds, before, after = map(float, told.stdout.split())
            rows.append([name, f"{seconds:.1f} s", f"{(after - before) / 1e6:.2f} GB"])
            results.append(np.load(out))
    np.testing.assert_allclose(results[0], results[1], atol=1e-4)
    note = (
        f"{N_CELLS:,} cells with counts of {PER_CELL} of {N_GENES:,} genes each, in {N_SAMPLES} samples and {N_TYPES} "
        "types; the file is not compressed. Memory is the peak, less that of the imported packages."
    )
    write_table("genes_size", ["method", "time", "memory"], rows, note, folder=folder)


def one(name: str, path: str, out: str) -> None:
    """Run one way in this process and print its time, and the peak memory before and after, in kB."""
    import anndata  # noqa: F401

    before, start = peak(), time.perf_counter()
    means = WAYS[name](Path(path))
    seconds, after = time.perf_counter() - start, peak()
    np.save(out, means)
    print(seconds, before, after)


def peak() -> int:
    """Return the peak memory of this process in kB; unlike that of getrusage, it does not include the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="*", default=["kang", "simulated", "size"])
    arguments.add_argument("--data", type=Path, help="kang_genes16.npz; without it, the first table is left out")
    arguments.add_argument("--count", type=int, default=30, help="simulated data sets per row")
    arguments.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    add_record(arguments)
    options = arguments.parse_args()
    if options.make is not None:
        make_file(options.make)
        return
    if options.one:
        one(*options.one)
        return
    if "kang" in options.parts and options.data is not None:
        kang(options.data, options.record)
    if "simulated" in options.parts:
        simulated(options.count, options.record)
    if "size" in options.parts:
        size(options.record)


if __name__ == "__main__":
    main()
