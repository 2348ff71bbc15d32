"""How cost grows with the number of points, of measures, and with the largest scale; fitted exponents and a plot.

Points are cells of a simulated cohort in 8-D. Each size runs in a process of its own, so that its peak memory is its
own; compilation is warmed up and not counted. Exponents are slopes of straight lines through the logarithms.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from contenders import in_fresh_process, peak_megabytes, start_of_peak

Row = dict[str, float]


def measure(n_points: int, n_measures: int, max_scale: int) -> Row:
    """Time one size in a fresh process."""
    return in_fresh_process(_child, n_points, n_measures, max_scale)


def _child(sender, n_points: int, n_measures: int, max_scale: int) -> None:
    import heatmover as hm

    def job(points: np.ndarray, labels: np.ndarray, scale: int) -> tuple[Row, float]:
        start = time.perf_counter()
        graph = hm.Graph.from_points(points)
        built = time.perf_counter()
        embedding = hm.DiffusionEMD(graph, max_scale=scale).fit_transform(hm.measures_from_labels(labels))
        embedded = time.perf_counter()
        matrix = graph.node_affinity
        size = embedding.nbytes + matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
        return {"graph": built - start, "embedding": embedded - built}, size / 2**20

    data = hm.datasets.cohort(n_measures, cells_per_sample=-(-n_points // n_measures), n_dimensions=8)
    points, labels = data.points[:n_points], data.labels[:n_points]
    job(points[::-1][:500], np.arange(500) % 3, 2)
    before = start_of_peak()
    row, size = job(points, labels, max_scale)
    peak = peak_megabytes() - before
    sender.send({**row, "total": sum(row.values()), "peak MB": peak, "peak / (embedding + graph)": peak / size})


def exponent(sizes: list[int], rows: list[Row], stage: str) -> float:
    return float(np.polyfit(np.log(sizes), np.log([row[stage] for row in rows]), 1)[0])


def sweep(title: str, sizes: list[int], rows: list[Row]) -> None:
    print(f"\n{title}")
    print(f"{'':>10s} {'graph s':>9s} {'embed s':>9s} {'total s':>9s} {'peak MB':>9s} {'peak/(emb+graph)':>17s}")
    for size, row in zip(sizes, rows, strict=True):
        values = list(row.values())
        print(f"{size:>10,d} {values[0]:9.2f} {values[1]:9.2f} {values[2]:9.2f} {values[3]:9.0f} {values[4]:17.2f}")


def plot(path: Path, curves: dict[str, tuple[list[int], list[Row]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.6), layout="constrained")
    for ax, (name, (sizes, rows)) in zip(axes, curves.items(), strict=True):
        x = np.array(sizes, dtype=float)
        for stage, colour in (("graph", "#0072B2"), ("embedding", "#D55E00")):
            y = np.array([row[stage] for row in rows])
            if name == "largest scale K":
                ax.semilogy(x, y, "o-", color=colour, label=stage)
            else:
                ax.loglog(x, y, "o-", color=colour, label=f"{stage}, slope {exponent(sizes, rows, stage):.2f}")
        ax.set(xlabel=name, ylabel="seconds")
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"\nplot: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="up to 20,000 points: under a minute")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "output" / "scaling.png")
    args = parser.parse_args()
    points = [2_000, 6_000, 20_000] if args.small else [10_000, 30_000, 100_000, 300_000, 1_000_000]
    measures = [16, 64, 256] if args.small else [16, 64, 256, 1_024]
    scales = [4, 6, 8] if args.small else [6, 8, 10, 12, 14]
    n_fixed = 5_000 if args.small else 20_000
    by_points = [measure(n, 16, 8) for n in points]
    sweep("points n (m = 16, K = 8, 8-D)", points, by_points)
    for stage in ("graph", "embedding", "total"):
        print(f"exponent in n, {stage}: {exponent(points, by_points, stage):.2f}")
    by_measures = [measure(n_fixed, m, 8) for m in measures]
    sweep(f"measures m (n = {n_fixed:,}, K = 8)", measures, by_measures)
    print(f"exponent in m, embedding: {exponent(measures, by_measures, 'embedding'):.2f}")
    by_scale = [measure(n_fixed, 64, k) for k in scales]
    sweep(f"largest scale K (n = {n_fixed:,}, m = 64)", scales, by_scale)
    growth = exponent([2**k for k in scales], by_scale, "embedding")
    print(f"embedding grows like 2^({growth:.2f} K); the degree of the polynomials like 2^(K/2)")
    plot(
        args.out,
        {
            "points n": (points, by_points),
            "measures m": (measures, by_measures),
            "largest scale K": (scales, by_scale),
        },
    )


if __name__ == "__main__":
    main()
