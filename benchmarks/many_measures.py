"""Very many sparse measures on one graph: cost per measure and memory as their number grows.

Measures of 50 random points each, around random centers of a swiss roll; each number of them runs in a process of its
own. The model is fitted once and the measures stream through `transform_blocks`; each block is used and dropped.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse as sp
from contenders import in_fresh_process, peak_megabytes, start_of_peak
from provenance import add_record, write_table

N_POINTS = 5_000
MEMORY = "256 MB"


def random_measures(order: np.ndarray, n_measures: int, rng: np.random.Generator) -> sp.csr_array:
    """Each measure: 50 of the 400 points that follow a random one in ``order``."""
    starts = rng.integers(0, len(order) - 400, size=n_measures)
    places = starts[:, None] + rng.integers(0, 400, size=(n_measures, 50))
    indptr = np.arange(0, 50 * n_measures + 1, 50)
    matrix = sp.csr_array((np.full(50 * n_measures, 1 / 50), order[places].ravel(), indptr), (n_measures, len(order)))
    matrix.sum_duplicates()
    return matrix


def _child(sender, n_measures: int) -> None:
    import heatmover as hm

    data = hm.datasets.swiss_roll(50, points_per_measure=N_POINTS // 50, random_state=0)
    order = np.argsort(data.coordinates[:, 0])
    graph = hm.Graph.from_points(data.points)
    measures = random_measures(order, n_measures, np.random.default_rng(0))
    hm.DiffusionEMD(graph, max_scale=3, compress=0.5).fit().transform(measures[:2])  # compile
    before = start_of_peak()
    start = time.perf_counter()
    model = hm.DiffusionEMD(graph, compress=0.1).fit(measures)
    fitted = time.perf_counter()
    total = sum(float(block.sum()) for block in model.transform_blocks(measures, memory=MEMORY))
    done = time.perf_counter()
    sender.send(
        {
            "fit": fitted - start,
            "microseconds": 1e6 * (done - fitted) / n_measures,
            "features": model.n_regions_.sum(),
            "peak MB": peak_megabytes() - before,
            "check": total / n_measures,
            "reason": repr(model).splitlines()[-1],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="up to 20,000 measures")
    add_record(parser)
    args = parser.parse_args()
    rows = []
    for n_measures in (1_000, 5_000, 20_000) if args.small else (1_000, 5_000, 20_000, 100_000, 300_000):
        row = in_fresh_process(_child, n_measures)
        figures = f"{row['fit']:.2f}", f"{row['microseconds']:.0f}", f"{row['peak MB']:.0f}"
        rows.append([f"{n_measures:,}", f"{row['features']:,}", *figures])
        print(*rows[-1], row["reason"], sep="  ", flush=True)
    heads = ["measures", "features", "fit, s", "a measure, µs", "peak MB"]
    note = f"{N_POINTS:,} points, 50 in each measure, compress=0.1, blocks within {MEMORY}; one run of each."
    print()
    write_table("many_measures", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
