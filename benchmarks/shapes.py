"""Accuracy on eight shapes with known truth, all settings automatic: heatmover against MultiscaleEMD.

60 measures of 100 points each (swiss roll: 100 of 100), mean over several seeds. No setting differs between shapes.
MultiscaleEMD runs on the graph of its documentation, and once more on ours. Accuracy only: all in one process.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from contenders import CONTENDERS, RIVAL_PACKAGES, present
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
    warnings.filterwarnings("ignore")  # the peer's dependencies deprecate things; nobody here can act on it
    names = present()
    rows, spread = [], np.zeros(2)
    for shape in args.shapes:
        scores = np.array([_scores(shape, seed, names) for seed in range(args.seeds)])
        spread = np.maximum(spread, scores.std(axis=0).max(axis=0))
        rows.append([shape.replace("_", " "), *(f"{near:.3f} / {rank:.3f}" for near, rank in scores.mean(axis=0))])
        print(*rows[-1], sep="  ", flush=True)
    heads = ["shape", *names]
    note = (
        "Each cell shows P@10 / Spearman, compared with the exact EMD along the manifold. The data are 60 measures of "
        f"100 points (swiss roll: 100 measures). Values are means over {args.seeds} seeds, with a standard deviation "
        f"of at most {spread[0]:.3f} / {spread[1]:.3f}. Both packages run with their defaults on all shapes. "
        "MultiscaleEMD runs on graphtools' default graph, as in its documentation, or on heatmover's default graph."
    )
    print()
    write_table("shapes", heads, rows, note, folder=args.record, packages=(*PACKAGES, *RIVAL_PACKAGES, "POT"))


def _scores(shape: str, seed: int, names: list[str]) -> list[tuple[float, float]]:
    data = getattr(datasets, shape)(random_state=seed)
    truth = data.exact_emd()
    found = [CONTENDERS[name](data.points, data.labels)[0] for name in names]
    return [(metrics.precision_at_k(truth, d), metrics.spearman(truth, d)) for d in found]


if __name__ == "__main__":
    main()
