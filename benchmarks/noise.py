"""Few cells against many: what the correction of distances is worth where the truth is known.

    python benchmarks/noise.py --runs 100                        # simulated cohorts, about ten minutes of one core
    python benchmarks/noise.py --runs 1000 --data FOLDER --record # also cells of one melanoma cohort, drawn anew

False positives: samples of few and of many cells from ONE distribution, in two groups; how often PERMANOVA calls them
different at 5 %. The first row of each kind has all runs, the others a tenth of them. With the same shares all samples
come from one distribution; with their own every sample has its own mixture of the kinds of cells, whatever its group.

Kinds of data: samples of 10 to 1,000 cells, drawn from known distributions over the points of one graph. Spearman of
the distances with the true ones, and of the number of cells with the distance to the nearest sample; and how often the
95 % interval of a pair holds the true distance, in pairs that share no sample.
"""

from __future__ import annotations

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from provenance import add_record, write_table
from scipy.stats import spearmanr
from sklearn.cluster import KMeans

import heatmover as hm
from heatmover.statistics import permanova

DESIGNS = ((10, 10), (5, 15), (15, 5))
FEW, MANY = 50, 500
N_SAMPLES, LARGE = 40, 50
CONCENTRATIONS = {"none": None, "small": 100.0, "large": 20.0, "one direction": 20.0}


def mixture(n_cells, rng, kinds=5, dimensions=5, spread=3.0):
    """Return cells around some centres, and the kind of each."""
    centres = spread * rng.normal(size=(kinds, dimensions))
    kind = rng.integers(0, kinds, n_cells)
    return centres[kind] + rng.normal(size=(n_cells, dimensions)), kind


def curve(n_cells, rng):
    """Return cells along a curve, in twenty stretches."""
    place = rng.random(n_cells)
    points = np.column_stack([4 * np.cos(3 * place), 4 * np.sin(3 * place), 3 * place])
    return points + 0.4 * rng.normal(size=(n_cells, 3)), np.minimum((20 * place).astype(int), 19)


def two_clouds(n_cells, rng):
    kind = rng.integers(0, 2, n_cells)
    return rng.normal(size=(n_cells, 2)) + 2.5 * kind[:, None], kind


def melanoma(n_cells, rng, path):
    """Return cells of a cohort, with twelve clusters of k-means as kinds."""
    cells = np.load(path)["X"].astype(float)
    cells = cells[rng.choice(len(cells), n_cells, replace=False)]
    return cells, KMeans(12, n_init=1, random_state=0).fit_predict(cells)


def kinds_of_data(folder):
    """Return makers of cells by name."""
    found = {
        "five clusters in R^5": mixture,
        "thirty clusters in R^8": partial(mixture, kinds=30, dimensions=8, spread=1.5),
        "a curve": curve,
        "two clouds in the plane": two_clouds,
    }
    if folder is not None:
        found["melanoma, drawn anew"] = partial(melanoma, path=folder / "melanoma_sadefeldman48.npz")
    return found


def own_shares(kind, n_samples, concentration, rng):
    """Return the share of each kind in each sample, ``(n_samples, n_kinds)``; None for the same in all."""
    base = np.bincount(kind) / len(kind)
    return np.tile(base, (n_samples, 1)) if concentration is None else rng.dirichlet(concentration * base, n_samples)


def null_p_values(make, design, concentration, run):
    """Return p of raw and of corrected distances in one cohort whose groups differ in their numbers of cells only."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(run)
    few, many = design
    sizes = np.repeat([FEW, MANY], [few, many])
    points, kind = make(int(1.5 * sizes.sum()), rng)
    left = [rng.permutation(np.flatnonzero(kind == k)) for k in range(kind.max() + 1)]
    shares = own_shares(kind, len(sizes), concentration, rng)
    rows, labels = [], []
    for sample, size in enumerate(sizes):
        for k, count in enumerate(rng.multinomial(size, shares[sample])):
            rows.append(left[k][:count])
            left[k] = left[k][count:]
            labels += [f"{sample:03}"] * len(rows[-1])
    result = hm.compare(points[np.concatenate(rows)], labels, bias="corrected", n_jobs=1, random_state=run)
    groups = np.repeat(["few", "many"], [few, many])
    tested = (result.uncertainty.distances, result.test_distances)
    return [permanova(distances, groups, n_permutations=199, random_state=run).p_value for distances in tested]


def trial(make, how, run):
    """Return what one cohort with known distributions shows: figures by name, and disjoint pairs with their size."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(1000 + run)
    points, kind = make(5000, rng)
    concentration = CONCENTRATIONS[how]
    if how == "one direction":
        base, along = np.bincount(kind) / len(kind), rng.normal(size=kind.max() + 1)
        shares = base * np.exp(0.5 * np.outer(rng.normal(size=N_SAMPLES), along))
        shares /= shares.sum(axis=1, keepdims=True)
    else:
        shares = own_shares(kind, N_SAMPLES, concentration, rng)
    true = (shares / np.bincount(kind))[:, kind]
    true /= true.sum(axis=1, keepdims=True)
    sizes = np.exp(rng.uniform(np.log(10), np.log(1000), N_SAMPLES)).astype(int)
    drawn = np.stack([rng.multinomial(size, row) for size, row in zip(sizes, true, strict=True)]) / sizes[:, None]
    model = hm.DiffusionEMD(hm.Graph.from_points(points), n_jobs=1).fit(drawn)
    embedding = model.transform(drawn)
    found = hm.uncertainty(model, drawn, sizes, embedding=embedding, random_state=run, n_jobs=1)
    corrected = hm.pairwise_distances(found.correct(embedding))
    truth = hm.pairwise_distances(model.transform(true)).astype(float)
    truth[truth < 1e-5] = 0  # rounding
    one, other = rng.permutation(N_SAMPLES).reshape(2, -1)
    held = (found.lower[one, other] <= truth[one, other]) & (truth[one, other] <= found.upper[one, other])
    several = {"raw": found.distances, "corrected": corrected, "true": truth}
    return {
        "order": [agreement(several[name], truth) for name in ("raw", "corrected")],
        "size": [by_size(sizes, several[name]) for name in several],
        "mean": [matrix.mean() for matrix in several.values()],
        "held": held.tolist(),
        "smaller": np.minimum(sizes[one], sizes[other]).tolist(),
    }


def agreement(distances, truth):
    pairs = np.triu_indices(len(truth), 1)
    return spearmanr(distances[pairs], truth[pairs])[0] if truth.any() else np.nan


def by_size(sizes, distances):
    """Return Spearman of sizes with nearest distances; 0 where all distances are zero."""
    apart = np.asarray(distances, dtype=float).copy()
    np.fill_diagonal(apart, np.inf)
    nearest = apart.min(axis=1)
    return spearmanr(sizes, nearest)[0] if nearest.max() > nearest.min() else 0.0


def tests_table(makers, runs, pool):
    rows = []
    for name, make in makers.items():
        for words, concentration in (("same", None), ("own", 100.0)):
            for number, design in enumerate(DESIGNS):
                count = runs if number == 0 and concentration is None else max(runs // 10, 1)
                p = np.array(list(pool.map(partial(null_p_values, make, design, concentration), range(count))))
                raw, corrected = (p <= 0.05).mean(axis=0)
                samples = f"{design[0]} of {FEW}, {design[1]} of {MANY}"
                rows.append([name, words, samples, count, f"{raw:.3f}", f"{corrected:.3f}"])
                print(rows[-1], flush=True)
    return rows


def kinds_table(makers, runs, pool):
    rows = []
    for name, make in makers.items():
        for how in CONCENTRATIONS:
            found = list(pool.map(partial(trial, make, how), range(runs)))
            order, size, mean = (np.mean([one[what] for one in found], axis=0) for what in ("order", "size", "mean"))
            held, smaller = (np.concatenate([one[what] for one in found]) for what in ("held", "smaller"))
            rows.append(
                [name, how, *("" if np.isnan(value) else f"{value:.2f}" for value in order),
                 *(f"{value:.2f}" for value in size), *(f"{value:.2f}" for value in mean),
                 f"{held[smaller < LARGE].mean():.3f}", f"{held[smaller >= LARGE].mean():.3f}"]
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=100, help="cohorts of the first design (100)")
    arguments.add_argument("--cohorts", type=int, default=10, help="cohorts of every kind of data (10)")
    arguments.add_argument("--only", choices=("kinds", "tests"), help="one of the two tables")
    arguments.add_argument("--data", type=Path, help="folder with melanoma")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (as many as cores)")
    add_record(arguments)
    args = arguments.parse_args()
    kinds = kinds_of_data(args.data)
    tested = {name: kinds[name] for name in ("five clusters in R^5", "melanoma, drawn anew") if name in kinds}
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        if args.only != "tests":
            write_kinds(kinds_table(kinds, args.cohorts, pool), args)
        if args.only != "kinds":
            heads = ["cells", "shares", "samples", "cohorts", "raw", "corrected"]
            note = (
                "The level is 0.05; all samples of one distribution, or of distributions of their own that do not "
                "depend on the group."
            )
            write_table("noise_tests", heads, tests_table(tested, args.runs, pool), note, folder=args.record)


def write_kinds(rows, args):
    heads = [
        "data", "true differences", "order, raw", "corrected", "size and nearest, raw", "corrected", "true",
        "mean distance, raw", "corrected", "true", f"coverage, a sample below {LARGE} cells", "both above",
    ]  # fmt: skip
    note = (
        f"{args.cohorts} cohorts of {N_SAMPLES} samples of 10 to 1,000 cells of each kind. Order: Spearman of "
        f"distances with the true ones. Coverage: of {args.cohorts * N_SAMPLES // 2} pairs that share no sample."
    )
    write_table("noise", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
