"""What a large max_scale costs, and how well the ways to diffuse agree.

Work: seconds of all cores together for fit and transform with method "auto" at K = 10 and K = 16, in turn, the best of
some turns.
Agreement: distances by "spectral" and "interpolative" against certified polynomials, at tol = compress = 1e-4.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from provenance import add_record, write_table

import heatmover as hm

SMALL = [(2_000, 40)]
FULL = [(10_000, 100), (10_000, 1_000), (100_000, 100), (100_000, 1_000)]
DELTA = 1e-4


def seconds(graph: hm.Graph, measures: hm.Measures, **options: object) -> tuple[float, hm.DiffusionEMD]:
    start = time.process_time()
    model = hm.DiffusionEMD(graph, **options)
    model.fit_transform(measures)
    return time.process_time() - start, model


def growth(n_points: int, n_measures: int, turns: int) -> list[str]:
    data = hm.datasets.swiss_roll(n_measures, points_per_measure=n_points // n_measures, random_state=0)
    start = time.process_time()
    graph = hm.Graph.from_points(data.points)
    building = time.process_time() - start
    measures = data.measures()
    # Both embeddings full or both compact: at 100,000 points and 1,000 measures full ones would not fit.
    compress = 0.1 if n_points * n_measures > 2e7 else False
    best = {10: np.inf, 16: np.inf}
    models = {}
    for _ in range(turns):
        for scale in best:
            took, models[scale] = seconds(graph, measures, max_scale=scale, compress=compress)
            best[scale] = min(best[scale], took)
    methods = ", ".join(f"K={scale} {model.method_}" for scale, model in models.items())
    total = (building + best[16]) / (building + best[10])
    print(
        f"{n_points:9,d} {n_measures:9,d} {best[10]:8.2f} {best[16]:8.2f} {best[16] / best[10]:8.2f} {total:11.2f}   "
        f"{'compact' if compress else 'full'}; {methods}"
    )
    times = [f"{best[10]:.2f}", f"{best[16]:.2f}", f"{best[16] / best[10]:.2f}", f"{total:.2f}"]
    return [f"{n_points:,}", f"{n_measures:,}", *times, "compact" if compress else "full", methods]


def shapes(size: int) -> dict[str, tuple[hm.Graph, hm.Measures]]:
    m = 60
    roll = hm.datasets.swiss_roll(m, points_per_measure=size // m, random_state=0)
    sphere = hm.datasets.sphere(m, points_per_measure=size // m, random_state=0)
    cohort = hm.datasets.cohort(m, cells_per_sample=size // m, random_state=0)
    side = int(np.sqrt(size))
    masses = np.zeros((m, side, side))
    for mass, corner in zip(masses, np.random.default_rng(0).permutation((side - 5) ** 2), strict=False):
        x, y = divmod(int(corner), side - 5)
        mass[x : x + 5, y : y + 5] = 1 / 25
    found = {
        name: (hm.Graph.from_points(data.points), data.measures())
        for name, data in (("swiss roll", roll), ("sphere", sphere), ("cohort", cohort))
    }
    found["grid"] = (hm.Graph.from_grid((side, side)), hm.measures_from_weights(masses.reshape(m, -1)))
    return found


def agreement(size: int) -> None:
    print(f"\nChange of a distance against polynomials, {size:,} points, tol = {DELTA:g}: median / worst")
    heads = ("spectral", "interpolative", "spectral, compress", "interp., compress")
    print(f"{'':12s} {'K':>3s} " + " ".join(f"{head:>20s}" for head in heads))
    for name, (graph, measures) in shapes(size).items():
        scale = hm.DiffusionEMD(graph).fit(measures).max_scale_ + 2
        common = {"tol": DELTA, "max_scale": scale}
        full = hm.DiffusionEMD(graph, method="chebyshev", compress=False, **common).fit_transform(measures)
        truth = hm.pairwise_distances(full)
        upper = np.triu_indices(len(truth), 1)
        cells = []
        for compress in (False, DELTA):
            for method in ("spectral", "interpolative"):
                model = hm.DiffusionEMD(graph, method=method, compress=compress, **common)
                distances = hm.pairwise_distances(model.fit_transform(measures))
                change = np.abs(distances[upper] / truth[upper] - 1)
                mark = "" if model.method_ == method else "*"
                cells.append(f"{np.median(change):.3%} / {change.max():.2%}{mark}")
        print(f"{name:12s} {scale:3d} " + " ".join(f"{cell:>20s}" for cell in cells))
    print("* polynomials did it all: no basis reached tol")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2,000 points: seconds")
    add_record(parser)
    args = parser.parse_args()
    rows = []
    hm.DiffusionEMD(max_scale=16, compress=0.5).fit_transform(np.eye(600))  # compile
    print("Seconds of fit and transform by max_scale, method auto; the last ratio counts the graph too")
    print(f"{'points':>9s} {'measures':>9s} {'K=10':>8s} {'K=16':>8s} {'ratio':>8s} {'with graph':>11s}")
    for n_points, n_measures in SMALL if args.small else FULL:
        rows.append(growth(n_points, n_measures, turns=3 if n_points * n_measures <= 10**7 else 1))
    if args.record:
        heads = ["points", "measures", "K = 10, s", "K = 16, s", "ratio", "ratio with graph", "embedding", "methods"]
        note = 'CPU seconds, summed over all cores, to fit and transform measures on the swiss roll with method="auto".'
        write_table("coarse_scales", heads, rows, note, folder=args.record)
    agreement(1_500 if args.small else 6_000)


if __name__ == "__main__":
    main()
