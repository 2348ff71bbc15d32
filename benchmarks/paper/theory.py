"""The paper's theorem: on closed manifolds Diffusion EMD is equivalent to EMD with ground distance geodesic^(2 alpha).

Between two point masses EMD is the ground distance itself, so the ratio W / geodesic^(2 alpha) must stay between two
constants for all pairs while n grows. The distortion is its largest over its smallest value. Pairs are all those among
some random anchors, each one's neighbors of rank 1, 2, 4, 8, ... and its farthest point: from the spacing to the
diameter. Measures that are not points are compared with exact EMD of the same ground distance.

One rule for all n, from the theorem's terms (a step of diffusion time epsilon -> 0, and K ~ log2(1 / epsilon)): points
lie evenly; 8 neighbors and the library's own bandwidth, so that a step is about as long as the spacing; K is the first
scale with epsilon 2^K >= 8, where heat has mixed and the last term is gone; every scale is kept. See manifolds.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from matplotlib.ticker import NullLocator

import heatmover as hm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from manifolds import MANIFOLDS, Case, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SIZES = (500, 1000, 2000, 4000, 8000)
ALPHAS = (0.1, 0.3, 0.45, 0.5)
# The paper's Eq. 8, and the default of the library.
NORMS = ("increments", "levels")
# Largest distortion allowed on the ring, and how much it may grow from the smallest to the largest n, anywhere.
TARGETS = {("ring", 0.3): 4.0, ("ring", 0.45): 6.0}
MOST_GROWTH = 1.5

# All pairs of 1,000 points instead raise no distortion by more than 3% (sphere; ring and torus: 0).
ANCHORS = 24
POINTS_PER_MEASURE = 60
# Ring by Fourier series, far beyond what needs to be embedded.
FAR = (32_000, 128_000, 512_000)

COLORS = {0.1: "#009E73", 0.3: "#0072B2", 0.45: "#D55E00", 0.5: "#000000"}
MARKERS = {0.1: "^", 0.3: "s", 0.45: "o", 0.5: "X"}
RATIO = r"$W_{\alpha,K}$ / geodesic$^{2\alpha}$ of two points"


def scale_distances(case: Case, rows: sp.csr_array, norm: str) -> Floats:
    """Return the L1 distances of every scale without its weight, (n_scales, n_rows, n_rows): they serve all alphas."""
    model = hm.DiffusionEMD(
        case.graph,
        method="spectral",
        max_scale=case.max_scale,
        n_scales=case.max_scale + 1,
        tol=1e-6,
        compress=False,
        norm=norm,
        dtype="float64",
    )
    blocks = np.split(model.fit_transform(rows), model.n_scales_, axis=1)
    weights = case.weights(model.alpha, norm)
    return np.stack([hm.pairwise_distances(block) / weight for block, weight in zip(blocks, weights, strict=True)])


def chosen_points(case: Case, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return anchors, their neighbors of rank 1, 2, 4, ..., and their farthest points, as indices."""
    n = len(case.coordinates)
    anchors = rng.choice(n, ANCHORS, replace=False)
    order = np.argsort(case.manifold.geodesic(case.coordinates[anchors], case.coordinates), axis=1)
    ranks = [0, *(2 ** np.arange(int(np.log2(n - 1)) + 1)), n - 1]
    return np.unique(order[:, ranks])


def indicators(indices: npt.NDArray[np.int64], n: int) -> sp.csr_array:
    return sp.csr_array((np.ones(indices.size), (np.arange(indices.size), indices)), shape=(indices.size, n))


def clouds(case: Case, rng: np.random.Generator) -> sp.csr_array:
    """Draw ten clouds and ten mixtures, each of them twice: small differences as well as large ones."""
    rows = []
    # Apart, so that the densities are the same for all n.
    shapes, draws = rng.spawn(2)
    for parts in [1] * 10 + [2, 3, 4, 2, 3, 4, 2, 3, 4, 2]:
        squares = case.manifold.geodesic(case.manifold.random(parts, shapes), case.coordinates) ** 2
        bells = np.exp(-squares / (2 * shapes.uniform(0.2, 1, (parts, 1)) ** 2))
        density = shapes.dirichlet(np.ones(parts)) @ (bells / bells.sum(axis=1, keepdims=True))
        rows += [draws.multinomial(POINTS_PER_MEASURE, density / density.sum()) for _ in range(2)]
    return sp.csr_array(np.array(rows) / POINTS_PER_MEASURE)


@dataclass(frozen=True)
class Ratios:
    """Diffusion EMD over the truth, for all pairs of one case, alpha and norm."""

    distances: Floats
    values: Floats

    @property
    def distortion(self) -> float:
        return float(self.values.max() / self.values.min())

    @property
    def band(self) -> str:
        return f"[{self.values.min():.2f}, {self.values.max():.2f}]"

    def beyond(self, distance: float) -> Ratios:
        far = self.distances >= distance
        return Ratios(self.distances[far], self.values[far])


def ratios(case: Case, pairs: Floats, truth: Floats, alpha: float, norm: str) -> Ratios:
    """Weigh the distances of scales and divide by the truth, an EMD with ground distance geodesic^(2 alpha)."""
    found = np.tensordot(case.weights(alpha, norm), pairs, 1)
    upper = np.triu_indices(len(truth), 1)
    return Ratios(truth[upper] ** (1 / (2 * alpha)), found[upper] / truth[upper])


def point_ratios(case: Case, norm: str, rng: np.random.Generator) -> dict[float, Ratios]:
    indices = chosen_points(case, rng)
    places = case.coordinates[indices]
    geodesic = case.manifold.geodesic(places, places)
    pairs = scale_distances(case, indicators(indices, len(case.coordinates)), norm)
    return {alpha: ratios(case, pairs, geodesic ** (2 * alpha), alpha, norm) for alpha in ALPHAS}


def cloud_ratios(case: Case, rng: np.random.Generator) -> dict[tuple[str, float], Ratios]:
    measures = clouds(case, rng)
    pairs = {norm: scale_distances(case, measures, norm) for norm in NORMS}
    results = {}
    for alpha in ALPHAS[1:]:
        truth = hm.baselines.exact_emd(
            case.coordinates,
            measures,
            cost=lambda a, b: case.manifold.geodesic(a, b) ** (2 * alpha),  # noqa: B023
        )
        results |= {(norm, alpha): ratios(case, pairs[norm], truth, alpha, norm) for norm in NORMS}
    return results


def ring_by_fourier(n: int, offsets: npt.NDArray[np.int64]) -> dict[float, Ratios]:
    """Compute the same ratios ("increments") on the even ring from Fourier series alone, at any n."""
    case = Case.even(MANIFOLDS[0], n)
    row = case.graph.affinity[[0]].toarray()[0]
    values = np.fft.rfft(row / row.sum()).real
    densities = [np.fft.irfft(values ** (2.0**k), n) for k in range(case.max_scale + 1)]
    steps = [*np.diff(densities, axis=0), densities[-1]]
    pairs = np.array([[np.abs(step - np.roll(step, offset)).sum() for offset in offsets] for step in steps])
    lengths = 2 * np.pi * offsets / n
    return {a: Ratios(lengths, case.weights(a, "increments") @ pairs / lengths ** (2 * a)) for a in ALPHAS}


# By manifold, kind of pairs, alpha and n.
Results = dict[tuple[str, str, float, int], Ratios]
Fourier = dict[int, dict[float, Ratios]]


def all_points(sizes: Sequence[int], seed: int) -> tuple[Results, Results, Results]:
    """Return the ratios of points that lie evenly, of random points, and of clouds, by manifold, norm, alpha and n."""
    even, random, cloud = {}, {}, {}
    for manifold, n in product(MANIFOLDS, sizes):
        with stage(f"{manifold.name}, {n} points"):
            case, scattered = Case.even(manifold, n), Case.random(manifold, n, np.random.default_rng(seed))
            for norm in NORMS:
                for alpha, found in point_ratios(case, norm, np.random.default_rng(seed)).items():
                    even[manifold.name, norm, alpha, n] = found
            for alpha, found in point_ratios(scattered, NORMS[0], np.random.default_rng(seed)).items():
                random[manifold.name, "chosen pairs", alpha, n] = found
                random[manifold.name, "a step apart", alpha, n] = found.beyond(scattered.step)
            for (norm, alpha), found in cloud_ratios(case, np.random.default_rng(seed)).items():
                cloud[manifold.name, norm, alpha, n] = found
    return even, random, cloud


def verdict(name: str, alpha: float, distortion: float, growth: float) -> str:
    if alpha >= 0.5:
        return "none: drifts"
    limit = TARGETS.get((name, alpha), np.inf)
    met = distortion <= limit and growth <= MOST_GROWTH
    words = f"<= {limit:g}, growth <= {MOST_GROWTH}" if np.isfinite(limit) else f"growth <= {MOST_GROWTH}"
    return f"{words}: {'met' if met else 'MISSED'}"


def table_rows(results: Results, sizes: Sequence[int], *, judge: bool) -> Iterator[list[str]]:
    for name, kind, alpha in dict.fromkeys(key[:3] for key in results):
        found = [results[name, kind, alpha, n] for n in sizes]
        values = [one.distortion for one in found]
        growth = values[-1] / values[0]
        yield [
            f"{name}, {kind}",
            f"{alpha:g}",
            *(f"{value:.2f}" for value in values),
            f"{growth:.2f}",
            found[0].band,
            found[-1].band,
            *([verdict(name, alpha, max(values), growth)] if judge else []),
        ]


def write_tables(
    out: Exhibit, parts: tuple[Results, Results, Results], sizes: Sequence[int], notes: dict[str, str]
) -> None:
    for suffix, results in zip(("", "_random", "_measures"), parts, strict=True):
        judge = suffix == ""
        heads = ["points", "alpha", *(f"n = {n:,}" for n in sizes), "growth", f"band at {sizes[0]:,}"]
        heads += [f"band at {sizes[-1]:,}", *(["target"] if judge else [])]
        out.table(heads, list(table_rows(results, sizes, judge=judge)), note=notes[suffix], suffix=suffix)


def draw_ratios(ax: Axes, even: Results, name: str, alpha: float, sizes: Sequence[int]) -> None:
    """Draw the smallest and largest ratio in bins of distance, one band per n."""
    for n, shade in zip(sizes, plt.get_cmap("viridis_r")(np.linspace(0.15, 1, len(sizes))), strict=True):
        found = even[name, NORMS[0], alpha, n]
        edges = np.geomspace(found.distances.min() * 0.999, found.distances.max() * 1.001, 26)
        where = np.digitize(found.distances, edges)
        bins = np.unique(where)
        middle = [np.exp(np.log(found.distances[where == i]).mean()) for i in bins]
        low, high = ([f(found.values[where == i]) for i in bins] for f in (np.min, np.max))
        ax.fill_between(middle, low, high, color=shade, alpha=0.3, linewidth=0)
        ax.plot(middle, low, color=shade, lw=1, label=f"n = {n:,}")
        ax.plot(middle, high, color=shade, lw=1)
    first, last = (even[name, NORMS[0], alpha, n].distortion for n in (sizes[0], sizes[-1]))
    words = f"distortion {first:.1f} (n = {sizes[0]:,}) to {last:.1f} (n = {sizes[-1]:,})"
    ax.text(0.03, 0.04, words, transform=ax.transAxes, fontsize=8)
    ax.set(xscale="log", yscale="log", ylim=(0.25, 3.6), title=rf"{name}, $\alpha$ = {alpha:g}")
    ax.set(xlabel="geodesic distance [rad]")
    label_ticks(ax.xaxis, [0.001, 0.01, 0.1, 1] if name == "ring" else [0.1, 0.3, 1, 3])
    label_ticks(ax.yaxis, [0.3, 0.5, 1, 2, 3])


def label_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    low, high = axis.get_view_interval()
    shown = [tick for tick in ticks if low <= tick <= high]
    axis.set_ticks(shown, [f"{tick:,g}" if tick < 1e4 else f"{tick / 1000:g}k" for tick in shown])
    axis.set_minor_locator(NullLocator())


def draw_distortions(ax: Axes, even: Results, cloud: Results, name: str, sizes: Sequence[int]) -> None:
    for alpha in ALPHAS:
        look = {"color": COLORS[alpha], "marker": MARKERS[alpha]}
        ax.plot(sizes, [even[name, NORMS[0], alpha, n].distortion for n in sizes], **look)
        if (name, NORMS[0], alpha, sizes[0]) in cloud:
            values = [cloud[name, NORMS[0], alpha, n].distortion for n in sizes]
            ax.plot(sizes, values, ls=":", markerfacecolor="white", markersize=3.5, **look)
    # Not logarithmic: a straight line is growth with log n, as at alpha 1/2, where the theorem ends.
    ax.set(xscale="log", ylim=(1, 14 if name == "ring" else 7), title=f"{name}, distortion")
    ax.set_xlabel("number of points n")


def draw(out: Exhibit, even: Results, cloud: Results, far: Fourier, sizes: Sequence[int]) -> None:
    figure, axes = plt.subplots(3, 3, figsize=(10, 9.6))
    for column, manifold in zip(axes.T, MANIFOLDS, strict=True):
        draw_ratios(column[0], even, manifold.name, 0.3, sizes)
        draw_ratios(column[1], even, manifold.name, 0.45, sizes)
        draw_distortions(column[2], even, cloud, manifold.name, sizes)
        label_ticks(column[2].xaxis, sizes)
    draw_beyond(axes[2, 0], far)
    for row, words in zip(axes, [RATIO, RATIO, "largest / smallest ratio"], strict=True):
        row[0].set_ylabel(words)
    axes[0, 2].legend(loc="lower left", bbox_to_anchor=(0, 0.09), ncols=2)
    looks = [({"color": COLORS[a], "marker": MARKERS[a]}, rf"$\alpha$ = {a:g}") for a in reversed(ALPHAS)]
    lines = (("-", "two points"), (":", "clouds and mixtures"), ("--", "ring by Fourier series"))
    looks += [({"color": "#555555", "ls": line}, words) for line, words in lines]
    looks += [({"color": "#555555", "lw": 4, "alpha": 0.3}, "target")]
    handles = [plt.Line2D([], [], label=words, **look) for look, words in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    out.save(figure)


def draw_beyond(ax: Axes, far: Fourier) -> None:
    """Draw the ring by Fourier series, and the targets at the largest n they are set for."""
    for alpha in ALPHAS:
        ax.plot(list(far), [found[alpha].distortion for found in far.values()], color=COLORS[alpha], lw=0.9, ls="--")
    for (_, alpha), limit in TARGETS.items():
        ax.hlines(limit, SIZES[0], SIZES[-1], color=COLORS[alpha], lw=4, alpha=0.3)
    label_ticks(ax.xaxis, [500, 2000, 8000, 32_000, 128_000, 512_000])


def log_offsets(n: int) -> npt.NDArray[np.int64]:
    return np.unique(np.geomspace(1, n // 2, 40).round().astype(np.int64))


def agreement(even: Results, far: Fourier, sizes: Sequence[int]) -> float:
    """Return the largest relative difference of a ratio between the library and Fourier series, on the even ring."""
    worst = 0.0
    for n in sizes:
        for alpha, series in far[n].items():
            found = even["ring", "increments", alpha, n]
            for distance, value in zip(series.distances, series.values, strict=True):
                same = np.abs(found.distances - distance) < 1e-9
                worst = max(worst, np.abs(found.values[same] / value - 1).max(initial=0.0))
    return worst


def limit_of(far: Fourier, alpha: float) -> float:
    """Extrapolate the distortion on the ring to infinite n.

    Of the sum over scales, what n points still miss at the coarse end falls as n^-(1 - 2 alpha), at the fine end as
    n^-(2 alpha); the slower of the two counts.
    """
    (n, first), (m, last) = ((n, far[n][alpha].distortion) for n in list(far)[-2:])
    share = (n / m) ** min(2 * alpha, 1 - 2 * alpha)
    return (last - share * first) / (1 - share)


def notes(sizes: Sequence[int], far: Fourier, worst: float) -> dict[str, str]:
    last = list(far)[-1]
    beyond = ", ".join(f"{far[last][a].distortion:.2f} (limit {limit_of(far, a):.1f})" for a in ALPHAS if a < 0.5)
    return {
        "": (
            "Largest ratio divided by smallest ratio of W to geodesic^(2 alpha), between point masses on evenly "
            f'spaced points (torus: the nearest square grid). "Growth" is the value at n = {sizes[-1]:,} divided by '
            f"the value at n = {sizes[0]:,}. Fourier series on the ring agree with these values to {worst:.0e} and "
            f"give distortions at n = {last:,} and alpha {', '.join(f'{a:g}' for a in ALPHAS)}: {beyond}, "
            f"{far[last][0.5].distortion:.2f} (no limit)."
        ),
        "_random": (
            "Independent random points, Eq. 8. Two random points may nearly coincide, and no kernel distinguishes "
            "points closer than one step of the walk. The second row of each alpha therefore contains only pairs at "
            "least one step apart."
        ),
        "_measures": (
            "Ratio of Diffusion EMD to exact EMD with cost geodesic^(2 alpha), over pairs of 40 clouds and mixtures "
            f"of {POINTS_PER_MEASURE} points each, on evenly spaced points."
        ),
    }


def main() -> None:
    arguments = parser(__doc__).parse_args()
    out = exhibit("theory", arguments)
    sizes = SIZES[:3] if out.quick else SIZES
    parts = all_points(sizes, out.seed)
    with stage("ring by Fourier series"):
        further = FAR[:2] if out.quick else FAR
        far = {n: ring_by_fourier(n, log_offsets(n)) for n in (*sizes, *further)}
    even, _, cloud = parts
    write_tables(out, parts, sizes, notes(sizes, far, agreement(even, far, sizes)))
    draw(out, even, cloud, far, sizes)


if __name__ == "__main__":
    main()
