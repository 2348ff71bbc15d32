"""Accuracy on eight shapes with known truth, everything automatic: heatmover against MultiscaleEMD.

60 measures of 100 points each (swiss roll: 100 of 100), mean over several seeds. No setting differs between shapes.
"""

from __future__ import annotations

import argparse

import numpy as np
from contenders import CONTENDERS, run

from heatmover import datasets, metrics

SHAPES = ["swiss_roll", "line", "ring", "s_curve", "sphere", "torus", "gaussians", "star"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES, help="which shapes (all)")
    args = parser.parse_args()
    print(f"mean of {args.seeds} seeds" + "".join(f"{name:>24s}" for name in CONTENDERS))
    print(f"{'':15s}" + "".join(f"{'P@10':>14s}{'Spearman':>10s}" for _ in CONTENDERS))
    for shape in args.shapes:
        table = np.array([_scores(shape, seed) for seed in range(args.seeds)]).mean(axis=0)
        print(f"{shape:15s}" + "".join(f"{p:14.3f}{s:10.4f}" for p, s in table), flush=True)


def _scores(shape: str, seed: int) -> list[tuple[float, float]]:
    data = getattr(datasets, shape)(random_state=seed)
    truth = data.exact_emd()
    found = [run(name, data.points, data.labels).distances for name in CONTENDERS]
    return [(metrics.precision_at_k(truth, d), metrics.spearman(truth, d)) for d in found]


if __name__ == "__main__":
    main()
