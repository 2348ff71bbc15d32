"""What alpha does: the local exponent d log W / d log d of Diffusion EMD between two points.

The theory promises geodesic^(2 alpha). That needs infinitely many scales on both sides of the distance; a fitted model
has some dozen. On an unbounded line a scale of time t contributes 2 erf(d / (4 sqrt t)), which gives the exponent in
closed form (series.heat_exponent). Here it stands beside the library on a ring, with its defaults and with all scales
that a ring of this size can have, and beside the order of distances on shapes with known truth.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

import heatmover as hm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from manifolds import MANIFOLDS, mean_square_step
from series import Floats, heat_exponent, heat_levels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALPHAS = (0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.75, 1.0)
N = 2000
# Scales on each side in "infinitely many": the missing ones change no exponent by 0.001 at alpha 0.1 to 0.4.
MANY = 120
PLACES = (0.03, 0.1, 0.3, 1, 2)
SHAPES = ("ring", "swiss_roll", "s_curve", "sphere", "torus", "star")


class Ring:
    """Points on a ring, the distances of one to others along it, and models of them."""

    def __init__(self, n: int) -> None:
        self.n = n
        points = MANIFOLDS[0].place(MANIFOLDS[0].even(n))
        self.graph = hm.Graph.from_points(points)
        # Heat for this time in one step: the variance along the ring is twice the time.
        self.time = mean_square_step(points, self.graph) / 2
        self.offsets = np.unique(np.geomspace(1, n // 2, 60).round().astype(int))
        self.distances = 2 * np.pi * self.offsets / n
        self.middle = np.sqrt(self.distances[1:] * self.distances[:-1])

    def measures(self) -> Floats:
        rows = np.zeros((self.offsets.size + 1, self.n))
        rows[0, 0] = 1
        rows[np.arange(1, len(rows)), self.offsets] = 1
        return rows

    def defaults(self, alpha: float) -> Curve:
        model = hm.DiffusionEMD(self.graph, alpha=alpha, compress=False, tol=1e-5, dtype="float64")
        embedding = model.fit_transform(self.measures())
        scales = np.asarray(model.prepared_.layout.scales)
        return Curve(self, scales, alpha, np.abs(embedding[1:] - embedding[0]).sum(axis=1))

    def all_scales(self) -> dict[float, Curve]:
        """Return the curves with every scale from one step until heat has mixed, one model for all alphas."""
        scales = np.arange(int(np.ceil(np.log2(8 / self.time))) + 1)
        model = hm.DiffusionEMD(
            self.graph,
            method="spectral",
            alpha=0.5,
            max_scale=scales[-1],
            n_scales=scales.size,
            compress=False,
            tol=1e-6,
            dtype="float64",
        )
        blocks = np.split(model.fit_transform(self.measures()), scales.size, axis=1)
        levels = np.array([np.abs(block[1:] - block[0]).sum(axis=1) for block in blocks])
        levels /= 2.0 ** (0.5 * (scales - scales[-1]))[:, None]
        return {alpha: Curve(self, scales, alpha, 2.0 ** (alpha * (scales - scales[-1])) @ levels) for alpha in ALPHAS}


@dataclass(frozen=True)
class Curve:
    """W of two points by their distance on the ring, for some scales and an alpha."""

    ring: Ring
    scales: npt.NDArray[np.int64]
    alpha: float
    values: Floats

    def closed_form(self) -> Floats:
        """Return the same W for heat on the circle by series, in place of the walk."""
        weights = 2.0 ** (self.alpha * (self.scales - self.scales[-1]))
        times = self.ring.time * 2.0**self.scales
        return weights @ np.array([heat_levels(time, self.ring.distances) for time in times])

    def exponents(self) -> Floats:
        return local_exponents(self.ring.distances, self.values)

    def exponent_at(self, place: float) -> float:
        return float(np.interp(np.log(place), np.log(self.ring.middle), self.exponents()))

    def agreement(self) -> float:
        """Return the largest difference of the exponent to heat on the circle, from three steps on."""
        closed = local_exponents(self.ring.distances, self.closed_form())
        return float(np.abs(self.exponents() - closed)[self.ring.middle >= 3 * np.sqrt(2 * self.ring.time)].max())


Curves = dict[float, Curve]
# Spearman and P@10 by alpha and shape.
Orders = dict[float, dict[str, tuple[float, float]]]


def local_exponents(distances: Floats, values: Floats) -> Floats:
    """Return the slope of log W over log d between neighboring distances."""
    return np.diff(np.log(values)) / np.diff(np.log(distances))


def fitted(distances: Floats, values: Floats) -> float:
    return float(np.polyfit(np.log(distances), np.log(values), 1)[0])


def on_line(alpha: float, reach: int) -> float:
    """Return the exponent on an unbounded line at d = 4 sqrt(t), with so many scales finer and coarser than t."""
    scales = np.arange(-reach, reach + 1.0)
    return float(heat_exponent(4.0, 2.0**scales, 2.0 ** (alpha * scales))[0])


def order_of_distances(alpha: float, data: Sequence[tuple[Any, Floats, hm.Graph]]) -> list[tuple[float, float]]:
    """Return Spearman and P@10 of the default model with this alpha on every shape."""
    scores = []
    for shape, truth, graph in data:
        embedding = hm.DiffusionEMD(graph, alpha=alpha).fit_transform(shape.measures())
        found = hm.pairwise_distances(embedding)
        scores.append((hm.metrics.spearman(truth, found), hm.metrics.precision_at_k(truth, found)))
    return scores


def draw_curves(ax: Axes, ring: Ring, curves: dict[float, Curve], title: str) -> None:
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.92, len(ALPHAS)))
    for alpha, color in zip(ALPHAS, colors, strict=True):
        ax.plot(ring.middle, curves[alpha].exponents(), color=color, label=rf"$\alpha$ = {alpha:g}")
        ax.plot(
            ring.middle, local_exponents(ring.distances, curves[alpha].closed_form()), color="#000000", ls=":", lw=0.8
        )
    ax.axvline(np.sqrt(2 * ring.time), color="#AAAAAA", lw=0.8, ls="--")
    ax.text(np.sqrt(2 * ring.time) * 1.08, 0.04, "one step", color="#777777", fontsize=8)
    ax.set(xscale="log", xlabel="geodesic distance d [rad]", ylim=(0, 1.1), title=title)


def draw(out: Exhibit, ring: Ring, default: Curves, full: Curves) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(10, 4.3))
    draw_curves(axes[0], ring, default, "ring, the library's defaults")
    draw_curves(axes[1], ring, full, "ring, all scales until heat has mixed")
    axes[0].set_ylabel(r"local exponent $d\,\log W\,/\,d\,\log d$")
    handles, words = axes[0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color="#000000", ls=":", lw=0.8))
    figure.legend(
        handles, [*words, "heat, closed form"], loc="outside lower center", ncols=9, columnspacing=1.0, handlelength=1.4
    )
    alphas, ax = np.linspace(0.02, 1, 99), axes[2]
    for reach, shade in zip((4, 8, 16, 32), plt.get_cmap("viridis_r")(np.linspace(0.1, 0.9, 4)), strict=True):
        ax.plot(alphas, [on_line(alpha, reach) for alpha in alphas], color=shade, label=f"{reach} scales on each side")
    ax.plot(alphas, np.minimum(2 * alphas, 1), color="#000000", ls="--", lw=1, label=r"limit: min(2$\alpha$, 1)")
    ax.set(xlabel=r"$\alpha$", ylim=(0, 1.1), title="unbounded line, closed form")
    ax.legend(loc="lower right")
    out.save(figure)


def main() -> None:
    out = exhibit("alpha", parser(__doc__).parse_args())
    ring = Ring(500 if out.quick else N)
    with stage(f"ring of {ring.n} points"):
        default, full = {alpha: ring.defaults(alpha) for alpha in ALPHAS}, ring.all_scales()
    with stage("shapes"):
        size = (20, 40) if out.quick else (60, 60)
        names = SHAPES[:2] if out.quick else SHAPES
        shapes = [
            getattr(hm.datasets, name)(size[0], points_per_measure=size[1], random_state=out.seed) for name in names
        ]
        data = [(shape, shape.exact_emd(), hm.Graph.from_points(shape.points)) for shape in shapes]
        orders = {alpha: dict(zip(names, order_of_distances(alpha, data), strict=True)) for alpha in ALPHAS}
    write(out, ring, default, full, orders, size)
    draw(out, ring, default, full)


def write(out: Exhibit, ring: Ring, default: Curves, full: Curves, orders: Orders, sizes: tuple[int, int]) -> None:
    step = np.sqrt(2 * ring.time)
    rows = []
    for alpha in ALPHAS:
        cells = [f"{alpha:g}", f"{min(2 * alpha, 1):g}"]
        for curve in (default[alpha], full[alpha]):
            cells += [f"{curve.scales.size}", f"{fitted(ring.distances, curve.values):.2f}"]
            cells += [f"{curve.exponent_at(place):.2f}" for place in PLACES]
        rows.append(cells)
    worst = max(curve.agreement() for curve in (*default.values(), *full.values()))
    parts = ["scales", "fitted", *(f"at {place:g}" for place in PLACES)]
    out.table(
        ["alpha", "limit", *(f"defaults: {part}" if part == "scales" else part for part in parts)]
        + [f"all scales: {part}" if part == "scales" else part for part in parts],
        rows,
        note=(
            f"Exponent of W as a function of the distance d between two of {ring.n:,} points on a ring of radius 1. "
            f'The norm is "levels". Opposite points of the ring are 3.14 apart, and one diffusion step is {step:.3f} '
            'long. "Fitted" is a single exponent fitted to all distances from the spacing of the points to 3.14. The '
            'columns "at ..." show the local exponent at the named distance. "Limit" is the exponent with infinitely '
            "many scales on both sides. Heat on the circle, computed by series with these scales, has a local "
            f"exponent that differs from the table by at most {worst:.3f} at distances of three steps or more."
        ),
    )
    reaches = (2, 4, 8, 16, 32, MANY)
    lines = [
        [f"{alpha:g}", *(f"{on_line(alpha, reach):.3f}" for reach in reaches), f"{min(2 * alpha, 1):g}"]
        for alpha in ALPHAS
    ]
    out.table(
        ["alpha", *(f"{reach} scales" for reach in reaches), "limit"],
        lines,
        note=(
            "Local exponent on an unbounded line, computed from the closed form at the distance d = 4 sqrt(t). The "
            "sum contains the scale of time t and, on either side, equally many finer and coarser scales."
        ),
        suffix="_line",
    )
    out.table(
        ["alpha", *next(iter(orders.values())), "mean Spearman", "mean P@10"],
        [
            [
                f"{alpha:g}",
                *(f"{rho:.3f} / {near:.3f}" for rho, near in found),
                *(f"{value:.3f}" for value in np.mean(found, axis=0)),
            ]
            for alpha, found in ((alpha, list(scores.values())) for alpha, scores in orders.items())
        ],
        note=(
            "Agreement of Diffusion EMD with exact EMD along the shape, for each alpha. Columns of shapes show the "
            f"Spearman correlation. Other settings are defaults. Each shape has {sizes[0]} measures of {sizes[1]} "
            "points."
        ),
        suffix="_order",
    )


if __name__ == "__main__":
    main()
