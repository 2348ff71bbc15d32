"""All-pairs L1 distances: heatmover against scipy and scikit-learn, side by side in one process.

Each repetition runs every contender once, in turn, so that a disturbance of the machine meets all of them;
the best time of each counts. scipy and scikit-learn get float64, which is what they compute in. "difference"
is the largest relative difference from scipy's pdist.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from provenance import add_record, write_table
from scipy.spatial.distance import cdist, pdist, squareform
from sklearn.metrics.pairwise import manhattan_distances

from heatmover.embedding.distances import pairwise_distances

# Repetitions by shape: a time of ten milliseconds needs more of them than one of ten seconds.
SHAPES = {(100, 60_000): 20, (300, 20_000): 10, (1_000, 20_000): 4}
SMALL_SHAPES = {(100, 6_000): 20, (300, 3_000): 10}

Contenders = dict[str, Callable[[], np.ndarray]]


def contenders(rows: np.ndarray, threads: int | None) -> Contenders:
    single = rows.astype(np.float32)
    return {
        "scipy pdist": lambda: pdist(rows, "cityblock"),
        "scipy cdist": lambda: cdist(rows, rows, "cityblock"),
        "scikit-learn manhattan": lambda: manhattan_distances(rows),
        "heatmover float64": lambda: pairwise_distances(rows, n_jobs=threads),
        "heatmover float32": lambda: pairwise_distances(single, n_jobs=threads),
        "heatmover float32, 1 thread": lambda: pairwise_distances(single, n_jobs=1),
    }


def race(runs: Contenders, repeats: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    best = dict.fromkeys(runs, np.inf)
    results = {}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            results[name] = run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best, results


def relative_difference(found: np.ndarray, truth: np.ndarray) -> float:
    square = squareform(found) if found.ndim == 1 else found
    apart = truth > 0
    return float((np.abs(square - truth)[apart] / truth[apart]).max())


def report(shape: tuple[int, int], repeats: int, threads: int | None, seed: int) -> list[list[str]]:
    """Return one row of a table for each contender."""
    rows = np.random.default_rng(seed).normal(size=shape)
    best, results = race(contenders(rows, threads), repeats)
    truth = squareform(results["scipy pdist"])
    pairs = shape[0] * (shape[0] - 1) // 2
    return [
        [
            name,
            f"{shape[0]:,} x {shape[1]:,}",
            f"{seconds:.4f}",
            f"{pairs / seconds:,.0f}",
            f"{best['scipy pdist'] / seconds:.1f}",
            f"{relative_difference(results[name], truth):.0e}",
            f"{repeats}",
        ]
        for name, seconds in best.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small shapes: seconds instead of minutes")
    parser.add_argument("--repeats", type=int, help="repetitions of which the best counts (4 to 20)")
    parser.add_argument("--threads", type=int, help="threads for heatmover (every core)")
    parser.add_argument("--seed", type=int, default=0, help="of the random rows (0)")
    add_record(parser)
    args = parser.parse_args()
    warm_up = np.zeros((2, 2))
    start = time.perf_counter()
    pairwise_distances(warm_up)
    pairwise_distances(warm_up.astype(np.float32))
    print(f"compilation, or loading what an earlier run compiled: {time.perf_counter() - start:.1f} s")
    rows = []
    for shape, repeats in (SMALL_SHAPES if args.small else SHAPES).items():
        rows += report(shape, args.repeats or repeats, args.threads, args.seed)
    heads = ["", "rows x features", "seconds", "pairs per second", "times as fast as pdist", "difference", "runs"]
    note = (
        "The rows are random. The methods run alternately, and the table shows the fastest run of each. SciPy and "
        "scikit-learn compute in float64 with one thread: pdist and cdist have no other option, and "
        'manhattan_distances is called without arguments. "Difference" is the largest relative difference from pdist.'
    )
    write_table("l1", heads, rows, note, folder=args.record, threads=args.threads)


if __name__ == "__main__":
    main()
