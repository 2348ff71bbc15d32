"""Swiss roll race: heatmover with default settings against MultiscaleEMD, in one run.

Truth is the exact EMD on the unrolled sheet. Means over several seeds; both contenders run on every seed, in turn.
"""

from __future__ import annotations

import argparse

import numpy as np
from contenders import CONTENDERS, Run, run

from heatmover import datasets, metrics


def scores(truth: np.ndarray, result: Run) -> tuple[float, float]:
    k = min(10, len(truth) - 1)
    return metrics.precision_at_k(truth, result.distances, k=k), metrics.spearman(truth, result.distances)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="30 measures of 50 points, 2 seeds: seconds")
    parser.add_argument("--measures", type=int, default=100, help="number of measures (100)")
    parser.add_argument("--points", type=int, default=100, help="points per measure (100)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    args = parser.parse_args()
    if args.small:
        args.measures, args.points, args.seeds = 30, 50, 2
    runs: dict[str, list[tuple[Run, float, float]]] = {name: [] for name in CONTENDERS}
    for seed in range(args.seeds):
        data = datasets.swiss_roll(args.measures, points_per_measure=args.points, random_state=seed)
        truth = data.exact_emd()
        for name in CONTENDERS:
            result = run(name, data.points, data.labels)
            runs[name].append((result, *scores(truth, result)))
    n_points = args.measures * args.points
    print(f"\nSwiss roll, {args.measures} measures, {n_points:,} points in 10-D, mean of {args.seeds} seeds")
    heads = f"{'graph':>7s} {'embed':>7s} {'pairs':>7s} {'total s':>8s} {'peak MB':>8s}"
    print(f"{'':15s} {'P@10':>6s} {'Spearman':>9s} {heads}")
    totals = {}
    for name, results in runs.items():
        stages = np.mean([list(r.seconds.values()) for r, _, _ in results], axis=0)
        totals[name] = stages.sum()
        precision, rank = np.mean([(p, s) for _, p, s in results], axis=0)
        peak = np.mean([r.peak_megabytes for r, _, _ in results])
        print(
            f"{name:15s} {precision:6.3f} {rank:9.4f} {stages[0]:7.2f} {stages[1]:7.2f} {stages[2]:7.2f} "
            f"{totals[name]:8.2f} {peak:8.0f}"
        )
    ours = [r for r, _, _ in runs["heatmover"]]
    ratio = np.mean([r.peak_megabytes / r.data_megabytes for r in ours])
    print(f"time: {totals['heatmover'] / totals['MultiscaleEMD']:.2f} of the peer's")
    print(f"peak memory of heatmover: {ratio:.1f} x (embedding + graph)")


if __name__ == "__main__":
    main()
