"""Accuracy on eight shapes with known truth, all settings automatic: heatmover against MultiscaleEMD.

60 measures of 100 points each (swiss roll: 100 of 100), mean over several seeds. No setting differs between shapes.
MultiscaleEMD runs on the graph of its documentation, and once more on ours.
"""

from __future__ import annotations

import argparse

import numpy as np
from contenders import RIVAL_PACKAGES, present, run
from provenance import PACKAGES, add_record, write_table
from rivals import required

from heatmover import datasets, metrics

SHAPES = ["swiss_roll", "line", "ring", "s_curve", "sphere", "torus", "gaussians", "star"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES, help="which shapes (all)")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    names = present()
    rows = []
    for shape in args.shapes:
        scores = np.array([_scores(shape, seed, names) for seed in range(args.seeds)])
        mean, spread = scores.mean(axis=0), scores.std(axis=0)
        rows.append(
            [shape.replace("_", " "), *(cell for pair in zip(mean, spread, strict=True) for cell in _cells(*pair))]
        )
        print(*rows[-1], sep="  ", flush=True)
    heads = ["shape", *(f"{name}: {score}" for name in names for score in ("P@10", "Spearman"))]
    note = (
        f"60 measures of 100 points (swiss roll: 100), mean ± deviation over {args.seeds} seeds, against the exact EMD "
        "along the manifold. All settings are defaults and the same for all shapes; the graph of MultiscaleEMD is "
        "graphtools' default, as in its documentation, or heatmover's default."
    )
    print()
    write_table("shapes", heads, rows, note, folder=args.record, packages=(*PACKAGES, *RIVAL_PACKAGES, "POT"))


def _cells(mean: np.ndarray, spread: np.ndarray) -> tuple[str, str]:
    return f"{mean[0]:.3f} ± {spread[0]:.3f}", f"{mean[1]:.3f} ± {spread[1]:.3f}"


def _scores(shape: str, seed: int, names: list[str]) -> list[tuple[float, float]]:
    data = getattr(datasets, shape)(random_state=seed)
    truth = data.exact_emd()
    found = [run(name, data.points, data.labels).distances for name in names]
    return [(metrics.precision_at_k(truth, d), metrics.spearman(truth, d)) for d in found]


if __name__ == "__main__":
    main()
