"""Real cohorts: does `compare` find patients alike that are alike, beside exact EMD and cluster-level EMD?

--data is a folder with melanoma_sadefeldman48.npz (scRNA-seq, 48 samples of 32 patients, response to therapy) and
kidney_igan_glomeruli634.npz (shapes of glomeruli, 634 patients, eGFR class). Judged by 5-NN balanced accuracy, all
samples of the same patient left out, by the share of those neighbors that have the same class, and by PERMANOVA's R
squared. Intervals come from a bootstrap over patients with all predictions fixed. All methods run in turn; seconds are
those of work of all cores together, from points to all pairs: on the clock, other work on the machine would be in them.
A full run writes numbers to docs/results/numbers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from paper.exhibit import Exhibit, exhibit, parser, required
from scipy.stats import spearmanr
from sklearn.cluster import KMeans

import heatmover as hm
from heatmover.statistics import permanova
from heatmover.study import Comparison
from heatmover.transport.baselines import exact_emd, mean_distance

warnings.simplefilter("ignore", hm.GraphWarning)

NEIGHBORS = 5
RESAMPLES = 4000
CELLS = 300  # of each melanoma sample, for exact EMD
FEW = 10  # items of a kidney patient: 94 of 634 have fewer


@dataclass(frozen=True)
class Cohort:
    """Points with the sample of each; samples, sorted by name, with their class and their patient."""

    name: str
    points: np.ndarray
    labels: np.ndarray
    classes: np.ndarray
    patients: np.ndarray
    sizes: np.ndarray
    clusters: np.ndarray | None = None

    def __str__(self) -> str:
        counts = ", ".join(f"{c} {n}" for c, n in zip(*np.unique(self.classes, return_counts=True), strict=True))
        return (
            f"{self.name}: {len(self.points):,} points, {len(self.sizes)} samples of {self.sizes.min()} to "
            f"{self.sizes.max()}, {len(np.unique(self.patients))} patients; {counts}"
        )


@dataclass
class Entry:
    """Results of one method: distances and CPU seconds, one entry per seed."""

    name: str
    distances: list[np.ndarray] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    scales: list[int] = field(default_factory=list)


Method = Callable[[Cohort, int], "np.ndarray | Comparison"]


def load(path: Path, *, standardize: bool, patient: Callable[[str], str]) -> Cohort:
    with np.load(path, allow_pickle=False) as file:
        points, labels, condition = file["X"].astype(np.float64), file["sample"], file["condition"]
        clusters = file["cluster"] if "cluster" in file.files else None
    if standardize:
        points = (points - points.mean(axis=0)) / points.std(axis=0)
    names, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    patients = np.array([patient(name) for name in names])
    return Cohort(path.stem, points, labels, condition[first], patients, sizes, clusters)


# --- methods: from points and labels to all pairs


def heatmover(cohort: Cohort, seed: int) -> Comparison:
    return hm.compare(cohort.points, cohort.labels, random_state=seed)


def at_most(count: int, method: Method) -> Method:
    """The method on so many points of each sample, drawn at random; smaller samples keep all."""

    def run(cohort: Cohort, seed: int) -> np.ndarray | Comparison:
        rng = np.random.default_rng(seed)
        members = (np.flatnonzero(cohort.labels == name) for name in np.unique(cohort.labels))
        kept = np.concatenate([rng.permutation(m)[:count] for m in members])
        part = Cohort(
            cohort.name, cohort.points[kept], cohort.labels[kept], cohort.classes, cohort.patients, cohort.sizes
        )
        return method(part, seed)

    return run


def exact(cohort: Cohort, _seed: int) -> np.ndarray:
    return exact_emd(cohort.points, hm.measures_from_labels(cohort.labels))


def means(cohort: Cohort, _seed: int) -> np.ndarray:
    return mean_distance(cohort.points, hm.measures_from_labels(cohort.labels))


def cluster_level(cost: str, n_clusters: int | None = None) -> Method:
    """Exact EMD between histograms over clusters, as PILOT does; ground distance between their medians.

    Clusters are those that came with the data, or k-means.
    """

    def run(cohort: Cohort, seed: int) -> np.ndarray:
        found = cohort.clusters
        if n_clusters is not None:
            found = KMeans(n_clusters, n_init=1, random_state=seed).fit_predict(cohort.points)
        _, codes = np.unique(found, return_inverse=True)
        medians = np.array([np.median(cohort.points[codes == c], axis=0) for c in range(codes.max() + 1)])
        _, rows = np.unique(cohort.labels, return_inverse=True)
        histograms = np.zeros((rows.max() + 1, len(medians)))
        np.add.at(histograms, (rows, codes), 1)
        return exact_emd(medians, histograms / histograms.sum(axis=1, keepdims=True), cost=cost)

    return run


def race(cohort: Cohort, methods: dict[str, tuple[Method, int]], first_seed: int) -> list[Entry]:
    """Run all methods in turn, seed after seed, so that other work on the machine meets all of them alike."""
    entries = {name: Entry(name) for name in methods}
    for seed in range(max(n_seeds for _, n_seeds in methods.values())):
        for name, (method, n_seeds) in methods.items():
            if seed >= n_seeds:
                continue
            worked = time.process_time()
            found = method(cohort, first_seed + seed)
            entries[name].work.append(time.process_time() - worked)
            if isinstance(found, Comparison):
                entries[name].scales.append(found.model.max_scale_)
                found = found.distances
            entries[name].distances.append(found)
            print(f"  {name}, seed {first_seed + seed}: {entries[name].work[-1]:.2f} s of work", flush=True)
    return list(entries.values())


# --- judgement


def votes(distances: np.ndarray, cohort: Cohort, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each sample, whether 5-NN tells its class, and the share of its neighbors that have it.

    Samples of the same patient are no neighbors. Of samples equally far, chance decides which come first; of classes
    with equally many votes, the one of the nearest sample wins.
    """
    _, codes = np.unique(cohort.classes, return_inverse=True)
    shuffled = rng.permutation(len(codes))
    others = distances[:, shuffled].copy()
    others[cohort.patients[:, None] == cohort.patients[shuffled]] = np.inf
    near = codes[shuffled][np.argsort(others, axis=1, kind="stable")[:, :NEIGHBORS]]
    counts = (near[:, :, None] == np.arange(codes.max() + 1)).sum(axis=1)
    leading = np.take_along_axis(counts, near, axis=1)
    told = near[np.arange(len(near)), leading.argmax(axis=1)]
    return told == codes, counts[np.arange(len(codes)), codes] / NEIGHBORS


def class_means(values: np.ndarray, classes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean over classes of the weighed mean of values in each, for each row of weights."""
    found = [
        weights[:, classes == c] @ values[classes == c] / weights[:, classes == c].sum(axis=1)
        for c in np.unique(classes)
    ]
    return np.mean(found, axis=0)


def resampled(cohort: Cohort, rng: np.random.Generator) -> np.ndarray:
    """Return how often each sample counts if patients are drawn anew, ``(n_resamples, n_samples)``."""
    patients, of_sample = np.unique(cohort.patients, return_inverse=True)
    drawn = rng.multinomial(len(patients), np.full(len(patients), 1 / len(patients)), size=RESAMPLES)
    weights = drawn[:, of_sample].astype(float)
    complete = np.all([weights[:, cohort.classes == c].any(axis=1) for c in np.unique(cohort.classes)], axis=0)
    return weights[complete]


def judge(cohort: Cohort, entries: Sequence[Entry], seed: int) -> list[list[str]]:
    """Return rows of a table, the differences being those from the first entry."""
    weights = np.vstack([np.ones(len(cohort.sizes)), resampled(cohort, np.random.default_rng(seed))])
    rows, first = [], None
    for entry in entries:
        rng = np.random.default_rng(seed)
        told, shares = np.mean([votes(d, cohort, rng) for d in entry.distances], axis=0)
        accuracy = class_means(told, cohort.classes, weights)
        explained = np.mean([permanova(d, cohort.classes, n_permutations=1).effect for d in entry.distances])
        first = accuracy if first is None else first
        difference = first - accuracy
        low, high = np.percentile(difference[1:], [2.5, 97.5])
        over_seeds = [class_means(votes(d, cohort, rng)[0], cohort.classes, weights[:1])[0] for d in entry.distances]
        rows.append(
            [
                entry.name,
                f"{accuracy[0]:.3f} ± {accuracy[1:].std():.3f}",
                f"{np.std(over_seeds):.3f}" if len(over_seeds) > 1 else "",
                "" if first is accuracy else f"{difference[0]:+.3f} [{low:+.3f}, {high:+.3f}]",
                f"{class_means(shares, cohort.classes, weights[:1])[0]:.3f}",
                f"{explained:.3f}",
            ]
        )
    return rows


def size_bias(cohort: Cohort, distances: np.ndarray) -> float:
    others = distances + np.diag(np.full(len(distances), np.inf))
    return float(spearmanr(cohort.sizes, others.min(axis=1))[0])


def among(cohort: Cohort, kept: np.ndarray, entries: Sequence[Entry]) -> tuple[Cohort, list[Entry]]:
    """Return the cohort and what was found, of some samples only."""
    part = Cohort(
        cohort.name, cohort.points, cohort.labels, cohort.classes[kept], cohort.patients[kept], cohort.sizes[kept]
    )
    return part, [Entry(e.name, [d[np.ix_(kept, kept)] for d in e.distances], e.work, e.scales) for e in entries]


# --- exhibits

HEADS = ["method", "balanced accuracy", "over seeds", "heatmover ahead by", "neighbors alike", "R²"]
TIME_HEADS = ["CPU seconds", "relative to heatmover"]


def with_times(rows: list[list[str]], entries: Sequence[Entry]) -> list[list[str]]:
    means = [float(np.mean(entry.work)) for entry in entries]
    factors = ["", *(f"{mean / means[0]:.2f} x" for mean in means[1:])]
    return [[*row, f"{mean:.2f}", factor] for row, mean, factor in zip(rows, means, factors, strict=True)]


def note(cohort: Cohort, entries: Sequence[Entry]) -> str:
    seeds = ", ".join(f"{e.name} {len(e.work)}" for e in entries)
    return (
        f"{cohort}. ± is the standard deviation over resampled patients. Brackets are the interval that contains 95% "
        f"of the resamples. The scales K that heatmover chose with each seed are {entries[0].scales}. Number of runs: "
        f"{seeds}. CPU seconds are summed over all cores. heatmover runs with its defaults. We chose the numbers of "
        "cells and of clusters without tuning."
    )


def warm_up(cohort: Cohort) -> None:
    """Import and compile, on a few points."""
    some = np.random.default_rng(0).choice(len(cohort.points), 400, replace=False)
    hm.compare(cohort.points[some], np.arange(400) % 5)
    exact_emd(cohort.points[some], hm.measures_from_labels(np.arange(400) % 5))


def melanoma(show: Exhibit, path: Path) -> None:
    cohort = load(path, standardize=False, patient=lambda name: name.split("_")[1])
    print(f"\n{cohort}")
    n = 2 if show.quick else 5
    methods: dict[str, tuple[Method, int]] = {
        "heatmover": (heatmover, n),
        f"heatmover, {CELLS} cells": (at_most(CELLS, heatmover), n),
        f"exact EMD, {CELLS} cells": (at_most(CELLS, exact), n),
        "cluster EMD, k-means 14, cosine": (cluster_level("cosine", 14), n),
        "cluster EMD, k-means 14, Euclidean": (cluster_level("euclidean", 14), n),
        "cluster EMD, k-means 100, Euclidean": (cluster_level("euclidean", 100), n),
        "mean distance": (means, 1),
    }
    if not show.quick:
        methods["exact EMD, all cells"] = (exact, 1)
    warm_up(cohort)
    entries = race(cohort, methods, show.seed)
    rows = with_times(judge(cohort, entries, show.seed), entries)
    show.table([*HEADS, *TIME_HEADS], rows, note=note(cohort, entries), suffix="_melanoma")


def kidney(show: Exhibit, path: Path) -> None:
    cohort = load(path, standardize=True, patient=str)
    print(f"\n{cohort}")
    n = 1 if show.quick else 3
    methods: dict[str, tuple[Method, int]] = {
        "heatmover": (heatmover, n),
        "cluster EMD, given 14, cosine": (cluster_level("cosine"), 1),
        "cluster EMD, given 14, Euclidean": (cluster_level("euclidean"), 1),
        "mean distance": (means, 1),
        f"heatmover, {FEW} items": (at_most(FEW, heatmover), n),
    }
    warm_up(cohort)
    entries = race(cohort, methods, show.seed)
    rows = with_times(judge(cohort, entries, show.seed), entries)
    show.table([*HEADS, *TIME_HEADS], rows, note=note(cohort, entries), suffix="_kidney")
    part, restricted = among(cohort, np.flatnonzero(cohort.sizes >= FEW), entries)
    print(f"\nonly the {len(part.sizes)} patients with at least {FEW} items")
    bias = [
        [f"{size_bias(c, e.distances[0]):+.2f}" for c, e in ((cohort, all_), (part, some))]
        for all_, some in zip(entries, restricted, strict=True)
    ]
    rows = [[*row, *both] for row, both in zip(judge(part, restricted, show.seed), bias, strict=True)]
    heads = [*HEADS, "size and nearest, all", "size and nearest, these"]
    text = (
        f"Only the {len(part.sizes)} patients with at least {FEW} items are included. Neighbors are searched among "
        'these patients. "Size and nearest" is the Spearman correlation between the number of items of a patient '
        "and the distance to the "
        "nearest patient, for the first seed."
    )
    show.table(heads, rows, note=text, suffix="_kidney_large")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help="folder with the two .npz files")
    arguments.add_argument("--only", nargs="+", choices=["melanoma", "kidney"], default=["melanoma", "kidney"])
    args = arguments.parse_args()
    required("ot", "POT", "its exact EMD is in every rival")
    show = exhibit("cohorts", args)
    if "melanoma" in args.only:
        melanoma(show, args.data / "melanoma_sadefeldman48.npz")
    if "kidney" in args.only:
        kidney(show, args.data / "kidney_igan_glomeruli634.npz")


if __name__ == "__main__":
    main()
