"""Swiss roll race: heatmover with default settings against MultiscaleEMD, on its own graph and on ours, in one run.

Truth is the exact EMD on the unrolled sheet. Means over several seeds; all contenders run on every seed, in turn.
Clouds are narrow, or with --broad have a standard deviation of 3 in the angle and 7 in the height: all of them overlap.
"""

from __future__ import annotations

import argparse

import numpy as np
from contenders import RIVAL_PACKAGES, Run, present, run
from provenance import PACKAGES, add_record, write_table
from rivals import required

from heatmover import datasets, metrics

# Measures, points per measure, seeds.
SMALL = (50, 100, 2)
# Standard deviations of the angle and of the height within a cloud.
BROAD = {"spread": 3.0, "height_spread": 7.0}


def scores(truth: np.ndarray, result: Run) -> tuple[float, float]:
    k = min(10, len(truth) - 1)
    return metrics.precision_at_k(truth, result.distances, k=k), metrics.spearman(truth, result.distances)


def race(n_measures: int, points_per_measure: int, n_seeds: int, *, broad: bool = False) -> dict[str, dict[str, float]]:
    """Return the mean figures of each contender."""
    spread = BROAD if broad else {}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in present()}
    for seed in range(n_seeds):
        data = datasets.swiss_roll(n_measures, points_per_measure=points_per_measure, random_state=seed, **spread)
        truth = data.exact_emd()
        for name in rows:
            # Discarded: what only these data compile (some seeds take a path of low rank) is then on disk.
            run(name, data.points, data.labels)
            result = run(name, data.points, data.labels)
            precision, rank = scores(truth, result)
            rows[name].append(
                {
                    "P@10": precision,
                    "Spearman": rank,
                    **result.seconds,
                    "total": result.total,
                    "elapsed": result.elapsed,
                    "choice": result.choice,
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
    parser.add_argument("--broad", action="store_true", help="clouds that overlap: 3 in the angle, 7 in the height")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    if args.small:
        args.measures, args.points, args.seeds = SMALL
    figures = race(args.measures, args.points, args.seeds, broad=args.broad)
    rows = [
        [
            name,
            f"{row['P@10']:.3f}",
            f"{row['Spearman']:.4f}",
            *(f"{row[stage]:.2f}" for stage in ("graph", "embedding", "all pairs", "total")),
            f"{row['elapsed']:.2f}",
            f"{figures['heatmover']['total'] / row['total']:.2f}",
            f"{figures['heatmover']['elapsed'] / max(row['elapsed'], 1e-9):.2f}",
            f"{row['peak MB']:.0f}",
        ]
        for name, row in figures.items()
    ]
    heads = ["", "P@10", "Spearman", "graph, s", "embedding, s", "all pairs, s", "total, s", "wall time, s"]
    heads += ["our CPU time / theirs", "our wall time / theirs", "peak MB"]
    ours = figures["heatmover"]
    note = (
        f"{args.measures} measures and {args.measures * args.points:,} points in 10-D; means of {args.seeds} seeds. "
        "All settings are defaults. MultiscaleEMD runs on graphtools' default graph, as in its documentation, or on "
        "heatmover's default graph; SciPy's pdist computes all pairs of MultiscaleEMD, as in the examples of the "
        'package. Times are CPU seconds, summed over all cores, except for the column "wall time". heatmover and '
        "graphtools (n_jobs=-1) use all cores; the other steps of MultiscaleEMD, and pdist, have no setting for the "
        f"number of cores. The choice of the largest scale takes {ours['choice']:.2f} s of heatmover's CPU time, "
        f"{ours['choice'] / ours['total']:.0%}."
    )
    if args.broad:
        note = "The clouds are broad: their standard deviation is 3 in the angle and 7 in the height. " + note
    print()
    packages = (*PACKAGES, *RIVAL_PACKAGES, "POT")
    write_table(
        "race_swissroll_broad" if args.broad else "race_swissroll",
        heads,
        rows,
        note,
        folder=args.record,
        packages=packages,
    )
    print(f"peak memory of heatmover: {ours['peak / (embedding + graph)']:.1f} x (embedding + graph)")


if __name__ == "__main__":
    main()
