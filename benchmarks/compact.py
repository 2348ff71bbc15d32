"""Compact embeddings of the swiss roll beside the full one: features, and accuracy against exact EMD."""

from __future__ import annotations

import argparse

import numpy as np
from provenance import PACKAGES, add_record, write_table
from rivals import required

import heatmover as hm

Row = dict[str, float]

# Measures, points per measure, seeds.
SMALL = (40, 60, 1)
DELTAS = (0.5, 0.1, 1e-2, 1e-4)


def study(n_measures: int, points_per_measure: int, n_seeds: int) -> dict[float | bool, Row]:
    """Return mean figures for the full embedding (key False) and for every threshold."""
    rows: dict[float | bool, list[Row]] = {key: [] for key in (False, *DELTAS)}
    for seed in range(n_seeds):
        data = hm.datasets.swiss_roll(n_measures, points_per_measure=points_per_measure, random_state=seed)
        truth, measures = data.exact_emd(), data.measures()
        graph = hm.Graph.from_points(data.points)
        full = None
        for key in rows:
            embedding = hm.DiffusionEMD(graph, compress=key).fit_transform(measures)
            distances = hm.pairwise_distances(embedding)
            full = distances if full is None else full
            upper = np.triu_indices(len(truth), 1)
            change = np.abs(distances[upper] / full[upper] - 1)
            k = min(10, len(truth) - 1)
            rows[key].append(
                {
                    "features": embedding.shape[1],
                    "P@10": hm.metrics.precision_at_k(truth, distances, k=k),
                    "Spearman": hm.metrics.spearman(truth, distances),
                    "median change": float(np.median(change)),
                    "worst change": float(change.max()),
                }
            )
    return {key: {name: float(np.mean([r[name] for r in found])) for name in found[0]} for key, found in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="40 measures of 60 points, one seed: seconds")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (5)")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    sizes = SMALL if args.small else (100, 100, args.seeds)
    figures = study(*sizes)
    rows = [
        [
            "full" if key is False else f"compress={key:g}",
            f"{row['features']:,.0f}",
            f"{row['P@10']:.3f}",
            f"{row['Spearman']:.4f}",
            f"{row['median change']:.2%}",
            f"{row['worst change']:.1%}",
        ]
        for key, row in figures.items()
    ]
    heads = ["embedding", "features", "P@10", "Spearman", "median change of a distance", "largest"]
    note = (
        f"Swiss roll, {sizes[0]} measures, {sizes[0] * sizes[1]:,} points in 10-D, mean of {sizes[2]} seeds. Other "
        "settings are defaults."
    )
    write_table("compact", heads, rows, note, folder=args.record, packages=(*PACKAGES, "POT"))


if __name__ == "__main__":
    main()
