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
from provenance import add_record, write_table

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


def sweep(what: str, sizes: list[int], rows: list[Row], growth: str) -> list[list[str]]:
    """Return one row of a table for each size; the last one also says how the cost grows."""
    words = [""] * (len(rows) - 1) + [growth]
    return [
        [
            f"{what} = {size:,}",
            *(f"{row[stage]:.2f}" for stage in ("graph", "embedding", "total")),
            f"{row['peak MB']:.0f}",
            f"{row['peak / (embedding + graph)']:.2f}",
            word,
        ]
        for size, row, word in zip(sizes, rows, words, strict=True)
    ]


def plot(path: Path, curves: dict[str, tuple[list[int], list[Row]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.6), layout="constrained")
    for ax, (name, (sizes, rows)) in zip(axes, curves.items(), strict=True):
        x = np.array(sizes, dtype=float)
        for stage, color in (("graph", "#0072B2"), ("embedding", "#D55E00")):
            y = np.array([row[stage] for row in rows])
            if name == "largest scale K":
                ax.semilogy(x, y, "o-", color=color, label=stage)
            else:
                ax.loglog(x, y, "o-", color=color, label=f"{stage}, slope {exponent(sizes, rows, stage):.2f}")
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
    add_record(parser)
    args = parser.parse_args()
    points = [2_000, 6_000, 20_000] if args.small else [10_000, 30_000, 100_000, 300_000, 1_000_000]
    measures = [16, 64, 256] if args.small else [16, 64, 256, 1_024]
    scales = [4, 6, 8] if args.small else [6, 8, 10, 12, 14]
    n_fixed = 5_000 if args.small else 20_000
    by_points = [measure(n, 16, 8) for n in points]
    slopes = ", ".join(
        f"{stage} n^{exponent(points, by_points, stage):.2f}" for stage in ("graph", "embedding", "total")
    )
    table = sweep("points n", points, by_points, slopes)
    by_measures = [measure(n_fixed, m, 8) for m in measures]
    slope = f"embedding m^{exponent(measures, by_measures, 'embedding'):.2f}"
    table += sweep("measures m", measures, by_measures, slope)
    by_scale = [measure(n_fixed, 64, k) for k in scales]
    slope = f"embedding 2^({exponent([2**k for k in scales], by_scale, 'embedding'):.2f} K)"
    table += sweep("largest scale K", scales, by_scale, slope)
    heads = ["what grows", "graph, s", "embedding, s", "total, s", "peak MB", "peak / (embedding + graph)", "growth"]
    note = (
        f"Cells of a simulated cohort in 8-D; n grows with m = 16, K = 8; m with n = {n_fixed:,}, K = 8; K with n = "
        f"{n_fixed:,}, m = 64. One run of each; the degree of the polynomials grows like 2^(K/2)."
    )
    write_table("scaling", heads, table, note, folder=args.record)
    plot(
        args.out,
        {"points n": (points, by_points), "measures m": (measures, by_measures), "largest scale K": (scales, by_scale)},
    )


if __name__ == "__main__":
    main()
