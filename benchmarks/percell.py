"""Which single cells differ, without cell types: heatmover beside Milo (pertpy, edgeR) and CNA.

Simulated cohorts whose truth is known per cell, of six kinds:

trajectory  a curve in 10 dimensions; cases have 2.5 times as many cells in one segment
rare        six types and a population of 1.5% of the cells, three times as large in cases
clusters    eight separate types; one twice, one half as large in cases
batch       the trajectory; a second segment differs between two batches, and 70% of the cases are in one of them
unequal     the trajectory in 60 samples of 40 to 600 cells
none        the trajectory without an effect

All methods get the same points and the same samples. A cell is called by heatmover if its q-value is at most 0.1, by
Milo if it is in a neighborhood whose SpatialFDR is at most 0.1, by CNA if its FDR is at most 0.1. A call is false if
the cell is not in the changed region, or has the wrong sign. Reported as means over cohorts:

power         share of the cells of the changed regions that are called
false         share of false calls among the calls; a cohort without a call counts as 0
at 10% false  the largest power of any threshold at which at most 10% of the calls are in fact false
any           share of cohorts with a call
seconds, GB   from the points to the calls, without imports, and the peak memory of the process

Peers are left out if they are not installed: pip install pertpy cna "rpy2<3.6", and R with edgeR. With --million, one
study of 1,000,000 cells in 60 samples through `study_cohort`.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from provenance import PACKAGES, add_record, write_table

LEVEL = 0.1
KINDS = ("trajectory", "rare", "clusters", "batch", "unequal", "none")
SEGMENT, OTHER = (0.55, 0.70), (0.15, 0.30)
# No cohort that was looked at when the method was chosen has a seed from here on.
FIRST_SEED = 50_000
DIMENSIONS, SAMPLES, CELLS = 10, 20, 500
HEADS = ["kind", "method", "power", "false", "at 10% false", "any", "seconds", "GB"]


@dataclass(frozen=True)
class Simulated:
    """Points, the sample of each, the truth per cell (-1, 0, 1), and the condition and batch of each sample."""

    points: np.ndarray
    samples: np.ndarray
    truth: np.ndarray
    case: np.ndarray
    batch: np.ndarray | None = None


def simulate(kind: str, seed: int, n_samples: int = SAMPLES, cells: int = CELLS) -> Simulated:
    """Return a cohort of one kind."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    if kind == "unequal":
        n_samples = 60
    case = rng.permutation(np.arange(n_samples) % 2 == 0)
    sizes = np.full(n_samples, cells)
    if kind == "unequal":
        sizes = np.clip(rng.lognormal(np.log(120), 0.8, n_samples), 40, 600).astype(int)
    if kind in ("rare", "clusters"):
        return _types(kind, rng, case, sizes)
    batch = None
    if kind == "batch":
        batch = np.zeros(n_samples, dtype=int)
        for group, share in ((case, 0.7), (~case, 0.3)):
            members = np.flatnonzero(group)
            batch[members[: round(share * members.size)]] = 1
    return _curve(rng, case, sizes, batch, 1.0 if kind == "none" else 2.5)


def _curve(
    rng: np.random.Generator, case: np.ndarray, sizes: np.ndarray, batch: np.ndarray | None, change: float
) -> Simulated:
    grid = (np.arange(2_000) + 0.5) / 2_000
    waves = np.cos(np.pi * np.arange(1, 7)[:, None] * grid)
    inside = (grid > SEGMENT[0]) & (grid < SEGMENT[1])
    times, samples = [], []
    for i, size in enumerate(sizes):
        density = np.exp(0.25 * rng.normal(size=6) @ waves)
        if case[i]:
            density[inside] *= change
        if batch is not None and batch[i]:
            density[(grid > OTHER[0]) & (grid < OTHER[1])] *= 2.5
        times.append(rng.choice(grid, size, p=density / density.sum()))
        samples.append(np.full(size, i))
    t = np.concatenate(times)
    angles = np.pi * t[:, None] * np.array([1, 1, 2, 2, 1.5])
    curve = np.c_[np.cos(angles), np.sin(angles)]
    points = curve + 0.1 * rng.normal(size=curve.shape)
    truth = ((t > SEGMENT[0]) & (t < SEGMENT[1])).astype(int) if change != 1 else np.zeros(t.size, dtype=int)
    return Simulated(points, np.concatenate(samples), truth, case, batch)


def _types(kind: str, rng: np.random.Generator, case: np.ndarray, sizes: np.ndarray) -> Simulated:
    if kind == "rare":
        shares, factors = np.r_[np.full(6, 0.985 / 6), 0.015], np.r_[np.ones(6), 3.0]
    else:
        shares, factors = np.full(8, 1 / 8), np.array([1, 1, 1, 2, 1, 0.5, 1, 1])
    centers = 1.6 * rng.normal(size=(len(shares), DIMENSIONS))
    points, samples, truth = [], [], []
    for i, size in enumerate(sizes):
        # The standard deviation of every log-share is 0.3 between samples.
        own = shares * np.exp(0.3 * rng.normal(size=len(shares))) * (factors if case[i] else 1)
        codes = rng.choice(len(shares), size, p=own / own.sum())
        points.append(centers[codes] + 0.5 * rng.normal(size=(size, DIMENSIONS)))
        samples.append(np.full(size, i))
        truth.append(np.sign(np.log(factors))[codes].astype(int))
    return Simulated(np.concatenate(points), np.concatenate(samples), np.concatenate(truth), case)


@dataclass(frozen=True)
class Calls:
    """Calls of one method: q-value, sign and evidence (larger is stronger) of each cell."""

    q_values: np.ndarray
    signs: np.ndarray
    evidence: np.ndarray


def by_heatmover(data: Simulated) -> Calls:
    import heatmover as hm

    measures = hm.measures_from_labels(data.samples)
    model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    order = np.argsort(np.array(measures.names, dtype=int))
    found = hm.explain_groups(
        model, measures.masses[order], np.where(data.case, "case", "control"), group="case", blocks=data.batch
    )
    return Calls(found.q_values, np.sign(found.scores), np.abs(found.scores))


def _annotated(data: Simulated, n_neighbors: int) -> Any:
    import anndata
    import scanpy

    obs = pd.DataFrame(
        {"sample": [f"s{i:03d}" for i in data.samples]}, index=[f"c{i}" for i in range(len(data.samples))]
    )
    obs["condition"] = np.where(data.case, "case", "acontrol")[data.samples]
    if data.batch is not None:
        obs["batch"] = np.where(data.batch, "b2", "b1")[data.samples]
    cells = anndata.AnnData(data.points.astype(np.float32), obs=obs, obsm={"X_pca": data.points.astype(np.float32)})
    scanpy.pp.neighbors(cells, use_rep="X_pca", n_neighbors=n_neighbors)
    return cells


def by_milo(data: Simulated) -> Calls:
    import pertpy

    milo = pertpy.tl.Milo()
    # Milo's authors: the number of neighbors grows with the samples, so that neighborhoods have cells of every sample.
    loaded = milo.load(_annotated(data, int(np.clip(3 * data.case.size, 30, 150))))
    milo.make_nhoods(loaded["rna"], prop=0.1)
    loaded = milo.count_nhoods(loaded, sample_col="sample")
    milo.da_nhoods(loaded, design="~condition" if data.batch is None else "~batch+condition", solver="edger")
    result = loaded["milo"].var
    member = loaded["rna"].obsm["nhoods"].tocsc()
    p_values, q_values, sign = (result[name].to_numpy(float) for name in ("PValue", "SpatialFDR", "logFC"))
    n_cells = member.shape[0]
    q, p, signs = np.ones(n_cells), np.ones(n_cells), np.zeros(n_cells)
    # The strongest neighborhood of a cell decides.
    for j in np.argsort(-p_values, kind="stable"):
        rows = member.indices[member.indptr[j] : member.indptr[j + 1]]
        q[rows], p[rows], signs[rows] = q_values[j], p_values[j], np.sign(sign[j])
    return Calls(np.nan_to_num(q, nan=1.0), signs, -np.log(np.maximum(p, 1e-300)))


def by_cna(data: Simulated) -> Calls:
    import cna

    cells = _annotated(data, 15)  # scanpy's default, as in the tutorial of CNA
    cells.obsp["connectivities"] = sp.csr_matrix(cells.obsp["connectivities"])  # CNA does not read sparse arrays
    names = [f"s{i:03d}" for i in range(data.case.size)]
    covariates = None if data.batch is None else pd.DataFrame({"batch": data.batch.astype(float)}, index=names)
    cna.tl.association(cells, pd.Series(data.case.astype(float), index=names), "sample", covs=covariates)
    values = cells.obs["coef"].fillna(0).to_numpy()
    return Calls(cells.obs["coef_fdr"].fillna(1).to_numpy(), np.sign(values), np.abs(values))


METHODS: dict[str, tuple[Callable[[Simulated], Calls], str]] = {
    "heatmover": (by_heatmover, "heatmover"),
    "Milo": (by_milo, "pertpy"),
    "CNA": (by_cna, "cna"),
}


def score(calls: Calls, truth: np.ndarray) -> tuple[float, float, float, float]:
    """Return power and false calls at the nominal rate, power at 10% false calls, and if any cell is called."""
    right = (calls.signs * truth) > 0
    called = (calls.q_values <= LEVEL) & (calls.signs != 0)
    total = max(int((truth != 0).sum()), 1)
    false = float((called & ~right).sum() / max(called.sum(), 1))
    order = np.argsort(-calls.evidence, kind="stable")
    hits = np.cumsum(right[order])
    kept = 1 - hits / np.arange(1, hits.size + 1) <= LEVEL
    best = float(hits[kept].max(initial=0) / total)
    return float((called & right).sum() / total), false, best, float(called.any())


def run(method: str, kind: str, cohorts: int, cells: int) -> np.ndarray:
    """Run a method on cohorts of a kind; return scores, seconds and peak memory in GB, ``(n_cohorts, 6)``."""
    logging.disable(logging.WARNING)
    call, rows = METHODS[method][0], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(simulate(kind, 1, cells=100))  # imports and compiled loops
        for seed in range(FIRST_SEED, FIRST_SEED + cohorts):
            data = simulate(kind, seed, cells=cells)
            start = time.perf_counter()
            calls = call(data)
            seconds = time.perf_counter() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            rows.append((*score(calls, data.truth), seconds, peak))
    return np.array(rows)


def compared(kinds: list[str], methods: list[str], cohorts: int, cells: int) -> list[list[str]]:
    """Return the rows of the table, one for each kind and method."""
    rows = []
    for kind in kinds:
        for method in methods:
            # A process of its own, for the peak memory.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                table = pool.submit(run, method, kind, cohorts, cells).result()
            power, false, best, called, seconds, _ = table.mean(axis=0)
            error = table[:, 1].std() / np.sqrt(cohorts)
            text = [f"{100 * power:.0f}%", f"{100 * false:.1f}% ± {100 * error:.1f}", f"{100 * best:.0f}%"]
            if kind == "none":
                text[0] = text[2] = ""
            rows.append([kind, method, *text, f"{100 * called:.0f}%", f"{seconds:.2f}", f"{table[:, -1].max():.2f}"])
            print(*rows[-1], sep="  ", flush=True)
    return rows


def million(n_cells: int, n_samples: int) -> list[list[str]]:
    """Return the wall time and the peak memory of one study of many cells, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        seconds, memory, sentence = pool.submit(_million, n_cells, n_samples).result()
    print(sentence)
    return [[f"{n_cells:,}", str(n_samples), f"{seconds:.0f}", f"{memory:.2f}"]]


def _million(n_cells: int, n_samples: int) -> tuple[float, float, str]:
    import anndata

    import heatmover as hm

    data = simulate("trajectory", FIRST_SEED, n_samples, n_cells // n_samples)
    names = np.array([f"s{i:03d}" for i in range(n_samples)])
    obs = pd.DataFrame({"sample": pd.Categorical(names[data.samples])}, index=np.arange(len(data.samples)).astype(str))
    obs["condition"] = pd.Categorical(np.where(data.case, "case", "control")[data.samples])
    path = Path(tempfile.mkdtemp()) / "cells.h5ad"
    anndata.AnnData(data.points.astype(np.float32), obs=obs).write_h5ad(path)
    start = time.perf_counter()
    study = hm.study_cohort(hm.read_cohort(path, sample_key="sample"), variables=["condition"], cell_map="pca")
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, str(study.cell_calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--cohorts", type=int, default=20, help="cohorts per kind (20)")
    parser.add_argument("--cells", type=int, default=CELLS, help=f"cells per sample ({CELLS})")
    parser.add_argument("--million", type=float, metavar="CELLS", help="only one study of this many cells")
    add_record(parser)
    options = parser.parse_args()
    if options.million:
        rows = million(int(options.million), 60)
        note = "The time is from the file to the study, with a map of the cells and a call for every cell."
        write_table("percell_million", ["cells", "samples", "seconds", "GB"], rows, note, folder=options.record)
        return
    methods = [name for name in options.methods if importlib.util.find_spec(METHODS[name][1])]
    rows = compared(options.kinds, methods, options.cohorts, options.cells)
    note = (
        f"Means over {options.cohorts} cohorts of {SAMPLES} samples of {options.cells} cells (kind unequal: 60 samples "
        "of 40 to 600 cells) ± standard error, at a nominal false discovery rate of 10%."
    )
    write_table("percell", HEADS, rows, note, folder=options.record, packages=(*PACKAGES, "pertpy", "cna", "rpy2"))


if __name__ == "__main__":
    main()
