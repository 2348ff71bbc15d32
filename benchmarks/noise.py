"""Few cells against many: what the correction of distances is worth where the truth is known.

    python benchmarks/noise.py --runs 100                        # simulated cohorts, about ten minutes of one core
    python benchmarks/noise.py --runs 1000 --data FOLDER --record # also cells of one melanoma cohort, drawn anew

False positives: samples of few and of many cells from ONE distribution, in two groups; how often PERMANOVA calls them
different at 5%. The first row of each kind has all runs, the others a tenth of them. With the same shares all samples
come from one distribution; with their own every sample has its own mixture of the kinds of cells, whatever its group.

Kinds of data: samples of 10 to 1,000 cells, drawn from known distributions over the points of one graph. Spearman of
the distances with the true ones, and of the number of cells with the distance to the nearest sample, also of samples
that were moved in the best way that knows the truth; and how often the 95% interval of a pair holds the true distance.
On the kinds that are held out no constant and no rule was chosen.
"""

from __future__ import annotations

import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from provenance import add_record, write_table
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

import heatmover as hm
from heatmover.statistics import permanova

DESIGNS = ((10, 10), (5, 15), (15, 5))
FEW, MANY = 50, 500
N_SAMPLES, LARGE = 40, 50
CONCENTRATIONS = {"none": None, "small": 100.0, "large": 20.0, "one direction": 20.0}
SHIFTS = {"none": 0.0, "small": 0.1, "large": 0.25, "one direction": 0.25}


def mixture(n_cells, rng, kinds=5, dimensions=5, spread=3.0):
    """Return cells around some centers, and the kind of each."""
    centers = spread * rng.normal(size=(kinds, dimensions))
    kind = rng.integers(0, kinds, n_cells)
    return centers[kind] + rng.normal(size=(n_cells, dimensions)), kind


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


def heavy_tails(n_cells, rng, kinds=12, dimensions=10):
    """Return cells with Student tails around centers, half of them of the first kind and hardly any of the last."""
    shares = 0.7 ** np.arange(kinds)
    kind = rng.choice(kinds, size=n_cells, p=shares / shares.sum())
    centers = 2.5 * rng.normal(size=(kinds, dimensions))
    return centers[kind] + rng.standard_t(3, size=(n_cells, dimensions)), kind


def tree(n_cells, rng, branches=7, dimensions=6):
    """Return cells along the branches of a tree, in three stretches each; a branch begins on an earlier one."""
    starts, ends = np.zeros((branches, dimensions)), np.zeros((branches, dimensions))
    for branch in range(branches):
        if branch:
            earlier = rng.integers(branch)
            starts[branch] = starts[earlier] + rng.uniform(0.3, 1) * (ends[earlier] - starts[earlier])
        ends[branch] = starts[branch] + 3 * rng.normal(size=dimensions)
    branch, place = rng.integers(branches, size=n_cells), rng.random(n_cells)
    points = starts[branch] + place[:, None] * (ends - starts)[branch]
    return points + 0.5 * rng.normal(size=points.shape), 3 * branch + np.minimum((3 * place).astype(int), 2)


def counts(n_cells, rng, kinds=8, genes=200):
    """Return ten principal components of the logarithms of counts, negative binomial with depths of their own."""
    levels = rng.gamma(0.5, 2, size=genes) * np.exp(0.8 * rng.normal(size=(kinds, genes)) * (rng.random(genes) < 0.3))
    kind = rng.integers(0, kinds, n_cells)
    means = levels[kind] * np.exp(0.4 * rng.normal(size=(n_cells, 1)))
    seen = np.log1p(rng.negative_binomial(2, 2 / (2 + means)))
    return PCA(10, random_state=0).fit_transform(seen), kind


def one_cloud(n_cells, rng):
    """Return a normal cloud, whose samples are shifted in all directions instead of mixed of kinds."""
    return rng.normal(size=(n_cells, 6)), None


def flow(n_cells, rng, path):
    """Return standardised cells of fifteen patients, who are the kinds: a sample is a mixture of patients."""
    data = np.load(path)
    chosen = rng.choice(len(data["X"]), n_cells, replace=False)
    cells = StandardScaler().fit_transform(data["X"][chosen].astype(float))
    return cells, np.unique(data["sample"][chosen], return_inverse=True)[1]


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
    # No constant and no rule was chosen on these.
    found |= {
        "heavy tails in R^10, rare kinds (held out)": heavy_tails,
        "a branching tree (held out)": tree,
        "principal components of counts (held out)": counts,
        "shifts of one cloud in R^6 (held out)": one_cloud,
    }
    if folder is not None:
        found["mixtures of flow patients (held out)"] = partial(flow, path=folder / "flow_itn15.npz")
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
    cells = points[np.concatenate(rows)]
    raw, result = (hm.compare(cells, labels, bias=bias, n_jobs=1, random_state=run) for bias in ("raw", "corrected"))
    groups = np.repeat(["few", "many"], [few, many])
    tested = (raw.distances, result.test_distances)
    return [permanova(distances, groups, n_permutations=199, random_state=run).p_value for distances in tested]


def mixed(kind, how, rng):
    """Return true samples that differ in their shares of kinds, ``(n_samples, n_points)``."""
    if how == "one direction":
        base, along = np.bincount(kind) / len(kind), rng.normal(size=kind.max() + 1)
        shares = base * np.exp(0.5 * np.outer(rng.normal(size=N_SAMPLES), along))
        shares /= shares.sum(axis=1, keepdims=True)
    else:
        shares = own_shares(kind, N_SAMPLES, CONCENTRATIONS[how], rng)
    true = (shares / np.bincount(kind))[:, kind]
    return true / true.sum(axis=1, keepdims=True)


def shifted(points, how, rng):
    """Return true samples that are shifts of a normal cloud: masses exp(a x) take its center to a."""
    dimensions = points.shape[1]
    shifts = SHIFTS[how] * rng.normal(size=(N_SAMPLES, dimensions))
    if how == "one direction":
        along = rng.normal(size=dimensions)
        shifts = shifts[:, :1] * along / np.linalg.norm(along)
    true = np.exp(shifts @ points.T)
    return true / true.sum(axis=1, keepdims=True)


def trial(make, how, run):
    """Return what one cohort with known distributions shows: figures by name, and disjoint pairs with their size."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(1000 + run)
    points, kind = make(5000, rng)
    true = shifted(points, how, rng) if kind is None else mixed(kind, how, rng)
    sizes = np.exp(rng.uniform(np.log(10), np.log(1000), N_SAMPLES)).astype(int)
    drawn = np.stack([rng.multinomial(size, row) for size, row in zip(sizes, true, strict=True)]) / sizes[:, None]
    model = hm.DiffusionEMD(hm.Graph.from_points(points), n_jobs=1).fit(drawn)
    embedding = model.transform(drawn)
    found = hm.uncertainty(model, drawn, sizes, embedding=embedding, random_state=run, n_jobs=1)
    corrected = hm.pairwise_distances(found.correct(embedding))
    truth = hm.pairwise_distances(model.transform(true)).astype(float)
    truth[truth < 1e-5] = 0  # rounding
    one, other = np.triu_indices(N_SAMPLES, 1)
    held = (found.lower[one, other] <= truth[one, other]) & (truth[one, other] <= found.upper[one, other])
    several = {"raw": found.distances, "corrected": corrected, "true": truth}
    return {
        "order": [agreement(several[name], truth) for name in ("raw", "corrected")],
        "size": [by_size(sizes, several[name]) for name in several],
        "known": by_size(sizes, best_known(model, embedding, model.transform(true), sizes)) if truth.any() else np.nan,
        "mean": [matrix.mean() for matrix in several.values()],
        "held": held.tolist(),
        "smaller": np.minimum(sizes[one], sizes[other]).tolist(),
    }


def best_known(model, embedding, true, sizes):
    """Return distances of samples moved by linear maps that know what no method knows.

    At every scale, with the true covariance of samples S and that of the noise C / n, each sample is moved by the map
    that takes a normal law with the covariance S + C / n nearest to itself into one with S: whatever its size, it then
    varies as true samples do, in every direction.
    """
    moved = []
    law = np.sqrt(model.prepared_.diffuser.operator.stationary)
    for start, stop in pairwise(model.prepared_.layout.edges):
        seen, place = ((rows[:, start:stop].astype(float) / law) for rows in (embedding, true))
        center = place.mean(axis=0)
        values, left = np.linalg.eigh((place - center) @ (place - center).T)
        kept = values > 1e-6 * values.max()
        basis = (left[:, kept].T @ (place - center)) / np.sqrt(values[kept])[:, None]
        noise = (seen - place) @ basis.T
        noise = (noise * sizes[:, None]).T @ noise / len(sizes)
        root = np.diag(np.sqrt(values[kept] / (len(sizes) - 1)))
        rows = [root @ inverse_root(root @ (root**2 + noise / n) @ root) @ root @ basis @ (row - center)
                for row, n in zip(seen, sizes, strict=True)]  # fmt: skip
        moved.append((np.array(rows) @ basis + center) * law)
    return hm.pairwise_distances(np.concatenate(moved, axis=1))


def inverse_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors / np.sqrt(np.maximum(values, 1e-12 * values.max())) @ vectors.T


def agreement(distances, truth):
    """Return Spearman with the truth: 0 where all distances are zero, none where all true ones are."""
    pairs = np.triu_indices(len(truth), 1)
    if not truth.any():
        return np.nan
    return spearmanr(distances[pairs], truth[pairs])[0] if np.ptp(distances[pairs]) else 0.0


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
            size = [*size[:2], np.mean([one["known"] for one in found]), size[2]]
            held, smaller = (np.concatenate([one[what] for one in found]) for what in ("held", "smaller"))
            rows.append(
                [name, how, *("" if np.isnan(value) else f"{value:.2f}" for value in order),
                 *("" if np.isnan(value) else f"{value:.2f}" for value in size), *(f"{value:.2f}" for value in mean),
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
                "The tests have a level of 0.05. In each row, either all samples come from one distribution, or each "
                "sample has its own distribution, which does not depend on the group."
            )
            write_table("noise_tests", heads, tests_table(tested, args.runs, pool), note, folder=args.record)


def write_kinds(rows, args):
    heads = [
        "data", "true differences", "order, raw", "corrected", "size and nearest, raw", "corrected", "by the truth",
        "true",
        "mean distance, raw", "corrected", "true", f"coverage, a sample below {LARGE} cells", "both above",
    ]  # fmt: skip
    note = (
        f'Each row shows {args.cohorts} cohorts of {N_SAMPLES} samples with 10 to 1,000 cells. "Order" is the '
        'Spearman correlation between distances and true distances. "Size and nearest" is the Spearman correlation '
        'between the number of cells of a sample and the distance to the nearest sample. For "by the truth", samples '
        "are shrunk by the best linear maps, computed from the true covariances of samples and noise. The coverage of "
        f"95% intervals is computed over all {N_SAMPLES * (N_SAMPLES - 1) // 2} pairs of every cohort. Because pairs "
        'share samples, the standard error of the coverage in a row is 0.01 to 0.02. "Held out" marks data that we '
        "did not use to choose any constant or rule."
    )
    write_table("noise", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
