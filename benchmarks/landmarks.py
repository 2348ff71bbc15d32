"""Landmarks beside the graph over all points: agreement of the distances, as it is and as it is measured, and time.

--data takes .npz files with points X (n_points, n_dimensions) and the sample of each point in `sample`; without it a
simulated cohort serves. Columns: Spearman over all pairs of samples and per sample (mean), the same after weighing
the edges by the points that each landmark stands for, what `landmark_agreement` tells, the scale K, and seconds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from provenance import add_record, write_table
from scipy.stats import spearmanr

import heatmover as hm

warnings.simplefilter("ignore", hm.GraphWarning)


def load(path: Path, standardize: bool) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        points, labels = file["X"].astype(np.float64), file["sample"]
    return ((points - points.mean(axis=0)) / points.std(axis=0) if standardize else points), labels


def simulated(small: bool) -> tuple[np.ndarray, np.ndarray]:
    data = hm.datasets.cohort(20 if small else 60, cells_per_sample=100 if small else 300)
    return data.points, data.labels


def agreement(full: np.ndarray, distances: np.ndarray) -> tuple[float, float]:
    upper = np.triu_indices(len(full), 1)
    return float(spearmanr(full[upper], distances[upper])[0]), hm.metrics.spearman(full, distances)


def weighed(graph: hm.Graph, counts: np.ndarray) -> hm.Graph:
    diagonal = sp.diags_array(counts.astype(float))
    return hm.Graph.from_affinity(diagonal @ graph.affinity @ diagonal)


def study(
    points: np.ndarray, labels: np.ndarray, full: np.ndarray, count: int, n_iterations: int, seed: int
) -> tuple[float, float, float]:
    start = time.perf_counter()
    landmarks = hm.Landmarks.from_points(points, count, n_iterations=n_iterations, random_state=seed)
    found = time.perf_counter()
    measures = landmarks.measures(labels, landmarks.assign(points))
    graph = landmarks.graph(random_state=seed)
    result = hm.compare(graph, measures, random_state=seed)
    compared = time.perf_counter()
    measured = hm.landmark_agreement(landmarks, points, labels, graph=graph, random_state=seed)
    judged = time.perf_counter()
    heavy = hm.compare(weighed(graph, landmarks.counts), measures, random_state=seed)
    pairs, per_sample = agreement(full, result.distances)
    print(
        f"{count:9,} {n_iterations:5d} {seed:4d} {pairs:8.4f} {per_sample:10.4f} "
        f"{agreement(full, heavy.distances)[0]:8.4f} {measured.spearman:7.4f} {measured.unexplained:11.3f} "
        f"{result.model.max_scale_:3d} {found - start:7.1f} {compared - found:8.1f} {judged - compared:6.1f}",
        flush=True,
    )
    return pairs, per_sample, measured.spearman


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help=".npz files with X and sample")
    parser.add_argument("--standardize", action="store_true", help="divide each column by its standard deviation")
    parser.add_argument("--landmarks", type=int, nargs="+", default=[500, 1000, 2000, 4000])
    parser.add_argument("--iterations", type=int, nargs="+", default=[3], help="moves of k-means (3)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--small", action="store_true", help="a small simulated cohort, one seed: seconds")
    add_record(parser)
    args = parser.parse_args()
    rows = []
    counts, seeds = ([200, 500], 1) if args.small else (args.landmarks, args.seeds)
    for path in args.data or [None]:
        points, labels = simulated(args.small) if path is None else load(path, args.standardize)
        start = time.perf_counter()
        full = hm.compare(points, labels, landmarks=None)
        took = time.perf_counter() - start
        name = "simulated cohort" if path is None else path.stem
        print(f"\n{name}: {len(points):,} points of {len(full.names)} samples; all points: {took:.1f} s, "
              f"K = {full.model.max_scale_}")  # fmt: skip
        print("landmarks moves seed    pairs per sample  weighed     own unexplained   K    find  compare  judge")
        for count in counts:
            for n_iterations in args.iterations:
                runs = [study(points, labels, full.distances, count, n_iterations, seed) for seed in range(seeds)]
                _, per_sample, told = np.array(runs).T
                figures = (*np.mean(runs, axis=0), np.abs(told - per_sample).max())
                rows.append([name, f"{count:,}", *(f"{value:.4f}" for value in figures)])
    if args.record:
        heads = [
            "data",
            "landmarks",
            "Spearman of pairs",
            "per sample",
            "estimated by the run",
            "largest error of the estimate",
        ]
        note = (
            f"Agreement between distances through landmarks and distances over all points, as means over {seeds} "
            'seeds. "Estimated by the run" is the agreement per sample that a run estimates on 10,000 points, '
            "averaged over the seeds. The last column shows the largest error of this estimate in any run."
        )
        write_table("landmarks", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
