"""All benchmarks at small size, one table: what `make bench` prints. The figures of record come from the full sizes."""

from __future__ import annotations

import argparse

import compact
import l1
import numpy as np
import race_swissroll
import scaling
from rivals import required
from scipy.spatial.distance import squareform


def accuracy_and_time() -> list[tuple[str, str, str]]:
    figures = race_swissroll.race(*race_swissroll.SMALL)
    ours = figures.pop("heatmover")

    def beside(figure: str, form: str) -> str:
        return "; ".join(f"{name} {row[figure]:{form}}" for name, row in figures.items()) or "no rival installed"

    return [
        ("swiss roll, P@10", f"{ours['P@10']:.3f}", beside("P@10", ".3f")),
        ("swiss roll, Spearman", f"{ours['Spearman']:.3f}", beside("Spearman", ".3f")),
        ("swiss roll, points to all pairs", f"{ours['total']:.2f} s", beside("total", ".2f")),
    ]


def all_pairs() -> list[tuple[str, str, str]]:
    rows = []
    for shape, repeats in l1.SMALL_SHAPES.items():
        data = np.random.default_rng(0).normal(size=shape)
        best, results = l1.race(l1.contenders(data, None), repeats)
        truth = squareform(results["scipy pdist"])
        difference = l1.relative_difference(results["heatmover float32"], truth)
        ratio = best["scipy pdist"] / best["heatmover float32"]
        rows.append(
            (f"L1, {shape[0]} x {shape[1]:,}", f"{ratio:.1f} x faster", f"scipy pdist; difference {difference:.0e}")
        )
    return rows


def compactness() -> list[tuple[str, str, str]]:
    figures = compact.study(*compact.SMALL)
    full, small = figures[False], figures[0.1]
    return [
        (
            "compact embedding (compress=0.1)",
            f"{small['features']:,.0f} features",
            f"full: {full['features']:,.0f}; P@10 {small['P@10']:.3f} against {full['P@10']:.3f}",
        )
    ]


def growth() -> list[tuple[str, str, str]]:
    points, measures, scales = [2_000, 6_000, 20_000], [16, 64, 256], [4, 6, 8]
    by_points = [scaling.measure(n, 16, 8) for n in points]
    by_measures = [scaling.measure(5_000, m, 8) for m in measures]
    by_scale = [scaling.measure(5_000, 64, k) for k in scales]
    in_scale = scaling.exponent([2**k for k in scales], by_scale, "embedding")
    return [
        (
            "peak memory",
            f"{by_points[-1]['peak / (embedding + graph)']:.1f} x",
            "embedding + graph, 20,000 points, 16 measures",
        ),
        ("cost in points", f"n^{scaling.exponent(points, by_points, 'total'):.2f}", "2,000 to 20,000 points"),
        ("cost in measures", f"m^{scaling.exponent(measures, by_measures, 'embedding'):.2f}", "16 to 256 measures"),
        ("cost in the largest scale", f"2^({in_scale:.2f} K)", "K = 4 to 8"),
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    rows = [*accuracy_and_time(), *all_pairs(), *compactness(), *growth()]
    print(f"\n{'figure':34s} {'heatmover':>14s}   beside it")
    for figure, ours, beside in rows:
        print(f"{figure:34s} {ours:>14s}   {beside}")


if __name__ == "__main__":
    main()
