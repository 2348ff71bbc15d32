"""What every baseline costs: the swiss roll of the races, 10,000 points in 10-D, all pairs of 100 measures.

Seconds from points to distances, all cores, shortest of three runs after one that compiles, and as a ratio to Diffusion
EMD with its defaults in the same run. Trees also at the paper's largest setting: 150 cluster trees of depth 8.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from rivals import installed

import heatmover as hm

sys.path.append(str(Path(__file__).resolve().parent / "paper"))
from alternatives import METHODS

RUNS = (
    ("diffusion_emd", {}),
    ("cluster_tree", {"n_clusters": 3, "depth": 5, "n_trees": 10}),
    ("cluster_tree", {"n_clusters": 3, "depth": 8, "n_trees": 150}),
    ("quad_tree", {"depth": 4, "n_trees": 20}),
    ("quad_tree", {"depth": 4, "n_trees": 150}),
    ("grid_emd", {}),
    ("sliced_wasserstein", {}),
    ("wavelet_emd", {}),
    ("mean_distance", {}),
    ("exact_emd", {}),
)

NEEDS = {"exact_emd": ("ot", "POT"), "wavelet_emd": ("pywt", "PyWavelets")}


def seconds(method: str, points: np.ndarray, measures: hm.Measures, options: dict, repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        METHODS[method](points, measures, **options)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20 measures of 100 points: seconds")
    args = parser.parse_args()
    data = hm.datasets.swiss_roll(20 if args.small else 100)
    measures = data.measures()
    # The roll lies in three of the ten dimensions; wavelets need to be told.
    centered = data.points - data.points.mean(axis=0)
    reduced = centered @ np.linalg.svd(centered, full_matrices=False)[2][:3].T
    ours = None
    print(f"{'method':20s} {'options':42s} {'seconds':>8s} {'x Diffusion EMD':>16s}")
    for method, options in RUNS:
        if method in NEEDS and not installed(*NEEDS[method]):
            continue
        points = reduced if method == "wavelet_emd" else data.points
        took = seconds(method, points, measures, options, repeats=3)
        ours = took if ours is None else ours
        words = ", ".join(f"{key}={value}" for key, value in options.items()) or "defaults"
        print(f"{method:20s} {words:42s} {took:8.3f} {took / ours:16.3f}", flush=True)


if __name__ == "__main__":
    main()
