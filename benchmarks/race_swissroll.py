"""Swiss roll race: heatmover with default settings against MultiscaleEMD, in one run.

Truth is the exact EMD on the unrolled sheet. Means over several seeds; both contenders run on every seed, in turn.
"""

from __future__ import annotations

import argparse

import numpy as np
from contenders import CONTENDERS, Run, run

from heatmover import datasets, metrics

# Measures, points per measure, seeds.
SMALL = (50, 100, 2)


def scores(truth: np.ndarray, result: Run) -> tuple[float, float]:
    k = min(10, len(truth) - 1)
    return metrics.precision_at_k(truth, result.distances, k=k), metrics.spearman(truth, result.distances)


def race(n_measures: int, points_per_measure: int, n_seeds: int) -> dict[str, dict[str, float]]:
    """Return the mean figures of each contender."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for seed in range(n_seeds):
        data = datasets.swiss_roll(n_measures, points_per_measure=points_per_measure, random_state=seed)
        truth = data.exact_emd()
        for name in CONTENDERS:
            result = run(name, data.points, data.labels)
            precision, rank = scores(truth, result)
            rows[name].append(
                {
                    "P@10": precision,
                    "Spearman": rank,
                    **result.seconds,
                    "total": result.total,
                    "peak MB": result.peak_megabytes,
                    "peak / (embedding + graph)": result.peak_megabytes / result.data_megabytes,
                }
            )
    return {name: {key: float(np.mean([r[key] for r in found])) for key in found[0]} for name, found in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="50 measures of 100 points, 2 seeds: seconds")
    parser.add_argument("--measures", type=int, default=100, help="number of measures (100)")
    parser.add_argument("--points", type=int, default=100, help="points per measure (100)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    args = parser.parse_args()
    if args.small:
        args.measures, args.points, args.seeds = SMALL
    figures = race(args.measures, args.points, args.seeds)
    n_points = args.measures * args.points
    print(f"\nSwiss roll, {args.measures} measures, {n_points:,} points in 10-D, mean of {args.seeds} seeds")
    heads = f"{'graph':>7s} {'embed':>7s} {'pairs':>7s} {'total s':>8s} {'peak MB':>8s}"
    print(f"{'':15s} {'P@10':>6s} {'Spearman':>9s} {heads}")
    for name, row in figures.items():
        print(
            f"{name:15s} {row['P@10']:6.3f} {row['Spearman']:9.4f} {row['graph']:7.2f} {row['embedding']:7.2f} "
            f"{row['all pairs']:7.2f} {row['total']:8.2f} {row['peak MB']:8.0f}"
        )
    ours, theirs = figures["heatmover"], figures["MultiscaleEMD"]
    print(f"time: {ours['total'] / theirs['total']:.2f} of the peer's")
    print(f"peak memory of heatmover: {ours['peak / (embedding + graph)']:.1f} x (embedding + graph)")


if __name__ == "__main__":
    main()
