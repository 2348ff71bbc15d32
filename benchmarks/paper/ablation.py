"""The paper's ablation figure on the swiss roll: maximum scale, rank threshold, centers, scales, order and time.

100 Gaussians of 100 points each on the roll in 10 dimensions; the truth is exact EMD on the unrolled sheet. Mean and
deviation over ten draws of the data; one graph and one truth per draw serve all settings. All but panel (a) have the K
that max_scale="auto" finds. Both definitions: the library's "levels" with its density, and the paper's Eq. 8 with the
paper's, P^t mu.

Two settings go where the library does not, to see what it avoids: orders below those of tol = 0.5, the largest it
takes, and the paper's own number of centers, which is the rank and nothing more: in the library's cells, whose masses
are compared, and, at the supplement's threshold, as the paper has it, densities at the centers of the decomposition.

The preset `DiffusionEMD.from_paper` has a figure and a table of its own: six scales unless a panel varies them, and in
panels (b) and (c) Algorithm 1 at as many centers as the rank, as the paper prints it. With --preset, only these run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
from exhibit import LOOKS, Exhibit, exhibit, parser, stage, timed
from matplotlib.lines import Line2D

import heatmover as hm
from heatmover.embedding import preparation

# The library's definition and the paper's, by the name of the norm.
KINDS = {"levels": {}, "increments": {"norm": "increments", "density": "function"}}
NORMS = tuple(KINDS)
PRESET = "from_paper"
MAX_SCALES = (2, 4, 6, 8, 9, 10, 11, 12, 13, 16)
THRESHOLDS = (1e-6, 1e-3, 0.1, 0.9)
RANK_ONLY = (0.1, 0.9)
# The supplement's own setting: "top 6 largest scales", 1e-6, from 60,000 centers to fewer than 4,000.
PAPER_SCALES, PAPER_THRESHOLD = 6, 1e-6
TOLERANCES = (0.9, 0.7, 0.5, 0.2, 0.05, 1e-3, 1e-6, 1e-12)
LARGEST_TOLERANCE, FIRST_IN_DOUBLE = 0.5, 1e-6

PRECISION, SPEARMAN = LOOKS["diffusion_emd"][:2], LOOKS["cluster_tree"][:2]
LINES = {"levels": "-", "increments": "--"}
NAMES = {"levels": 'norm "levels" (default)', "increments": "Eq. 8 with the paper's density"}


@dataclass(frozen=True)
class Roll:
    """One draw of the data: what all settings share."""

    graph: hm.Graph
    measures: hm.Measures
    truth: np.ndarray
    max_scale: int

    @classmethod
    def draw(cls, n_measures: int, seed: int) -> Roll:
        data = hm.datasets.swiss_roll(n_measures, random_state=seed)
        graph, measures = hm.Graph.from_points(data.points), data.measures()
        return cls(graph, measures, data.exact_emd(), hm.DiffusionEMD(graph).fit(measures).max_scale_)

    def model(self, **options) -> hm.DiffusionEMD:
        return hm.DiffusionEMD(self.graph, **({"max_scale": self.max_scale} | options))

    def score(self, distances: np.ndarray, x: float, seconds: float = np.nan) -> Score:
        precision = hm.metrics.precision_at_k(self.truth, distances, k=10)
        return Score(x, precision, hm.metrics.spearman(self.truth, distances), seconds)


@dataclass(frozen=True)
class Score:
    """One run: where it stands on the x axis, and how well it did."""

    x: float
    precision: float
    spearman: float
    seconds: float


Setting = float | str | tuple[str, float]
Found = Iterator[tuple[str, Setting, Score]]
Runs = dict[tuple[str, str, Setting], list[Score]]


def by_max_scale(roll: Roll) -> Found:
    for max_scale in MAX_SCALES:
        for norm, kind in KINDS.items():
            embedding = roll.model(max_scale=max_scale, **kind).fit_transform(roll.measures)
            yield norm, max_scale, roll.score(hm.pairwise_distances(embedding), max_scale)


def by_threshold(roll: Roll) -> Found:
    """Yield no compression, the library's, the supplement's setting, its own centers, and as many cells as the rank."""

    def compact(setting: Setting, delta: float | bool, **options) -> Found:
        for norm, kind in KINDS.items():
            model = roll.model(compress=delta, **kind, **options)
            embedding = model.fit_transform(roll.measures)
            yield norm, setting, roll.score(hm.pairwise_distances(embedding), model.n_regions_.sum())

    yield from compact("full", delta=False)
    for delta in THRESHOLDS:
        yield from compact(delta, delta)
    yield from compact("paper", PAPER_THRESHOLD, n_scales=PAPER_SCALES)
    yield from compact("centers", PAPER_THRESHOLD, n_scales=PAPER_SCALES, compress_by="centers")
    # The library keeps at least 256 cells per scale; the paper keeps as many as the rank.
    with patch.object(preparation, "FEWEST_REGIONS", 1):
        for delta in RANK_ONLY:
            yield from compact(("rank only", delta), delta)


def by_n_scales(roll: Roll) -> Found:
    """Yield every number of scales from one embedding: with n of them, a distance is the sum over the last n blocks."""
    for norm, kind in KINDS.items():
        model = roll.model(n_scales=roll.max_scale + 1, compress=False, **kind)
        embedding = model.fit_transform(roll.measures)
        blocks = np.split(embedding, model.n_scales_, axis=1)
        distances = np.zeros_like(roll.truth)
        for n_scales, block in enumerate(reversed(blocks), 1):
            distances += hm.pairwise_distances(block)
            yield norm, n_scales, roll.score(distances, n_scales)


def by_order(roll: Roll) -> Found:
    for tol, (norm, kind) in product(TOLERANCES, KINDS.items()):
        model = roll.model(method="chebyshev", tol=min(tol, LARGEST_TOLERANCE), **kind).fit(roll.measures)
        # Past the door, which would refuse: an error of half a density and more is never what one wants.
        diffuser = model.prepared_.diffuser
        diffuser.tol = tol
        embedding, seconds = timed(lambda: model.transform(roll.measures))  # noqa: B023
        order = diffuser.degree(roll.max_scale)
        yield norm, tol, roll.score(hm.pairwise_distances(embedding), order, seconds)


def preset_by_max_scale(roll: Roll) -> Found:
    for max_scale in MAX_SCALES:
        model = hm.DiffusionEMD.from_paper(roll.graph, max_scale=max_scale, n_scales=min(PAPER_SCALES, max_scale + 1))
        embedding = model.fit_transform(roll.measures)
        yield PRESET, max_scale, roll.score(hm.pairwise_distances(embedding), max_scale)


def preset_by_threshold(roll: Roll) -> Found:
    """Yield the densities at all points, at the centers of each threshold, and with weights the paper does not have."""
    for delta in (None, *THRESHOLDS):
        model = hm.DiffusionEMD.from_paper(roll.graph, compress=delta)
        embedding = model.fit_transform(roll.measures)
        score = roll.score(hm.pairwise_distances(embedding), embedding.shape[1])
        yield PRESET, delta or "full", score
        if delta is not None:
            even = evenly_weighted(embedding, model.n_regions_, roll.graph.n_points)
            yield PRESET, ("n / r", delta), roll.score(hm.pairwise_distances(even), embedding.shape[1])


def evenly_weighted(embedding: np.ndarray, counts: np.ndarray, n_points: int) -> np.ndarray:
    """Return the blocks of an embedding, each times the number of points that one of its centers stands for."""
    return embedding * np.repeat(n_points / np.asarray(counts), counts)


def preset_by_n_scales(roll: Roll) -> Found:
    """Yield every number of scales, and all K + 1 of them."""
    model = hm.DiffusionEMD.from_paper(roll.graph, n_scales=None)
    embedding = model.fit_transform(roll.measures)
    distances = np.zeros_like(roll.truth)
    for n_scales, block in enumerate(reversed(np.split(embedding, model.n_scales_, axis=1)), 1):
        distances += hm.pairwise_distances(block)
        yield PRESET, n_scales, roll.score(distances, n_scales)
    yield PRESET, "every", roll.score(distances, embedding.shape[1])
    yield PRESET, "chosen", roll.score(distances, model.max_scale_)


STUDIES = {"scale": by_max_scale, "rank": by_threshold, "number": by_n_scales, "order": by_order}
PRESET_STUDIES = {"scale": preset_by_max_scale, "rank": preset_by_threshold, "number": preset_by_n_scales}


def study(n_runs: int, n_measures: int, seed: int, *, only_preset: bool = False) -> tuple[Runs, list[int]]:
    """Return all scores, and the K of every run."""
    runs: Runs = defaultdict(list)
    chosen = []
    studies = [*({} if only_preset else STUDIES).items(), *PRESET_STUDIES.items()]
    for draw in range(seed, seed + n_runs):
        with stage(f"draw {draw}"):
            roll = Roll.draw(n_measures, draw)
            chosen.append(roll.max_scale)
            for name, settings in studies:
                for norm, setting, score in settings(roll):
                    runs[name, norm, setting].append(score)
    # Draws of different K have different numbers of scales; keep those that all have.
    return {key: found for key, found in runs.items() if len(found) == n_runs}, chosen


def settings_of(runs: Runs, name: str, kind: str = "levels") -> list:
    """Return the plain settings of a study in order; those apart (names, pairs) are asked for by themselves."""
    return [key[2] for key in runs if key[0] == name and key[1] == kind and isinstance(key[2], int | float)]


def summary(runs: Runs, name: str, norm: str, setting: object, field: str) -> tuple[float, float]:
    values = [getattr(score, field) for score in runs[name, norm, setting]]
    return float(np.mean(values)), float(np.std(values))


def panel(axis, runs: Runs, name: str, settings: list, places: list[float]) -> None:
    """Draw P@10 and Spearman of both norms, with bands of one deviation."""
    for field, (color, marker) in {"precision": PRECISION, "spearman": SPEARMAN}.items():
        for norm, line in LINES.items():
            mean, deviation = np.array([summary(runs, name, norm, s, field) for s in settings]).T
            inside = color if norm == "levels" else "white"
            axis.plot(places, mean, color=color, marker=marker, linestyle=line, markerfacecolor=inside)
            axis.fill_between(places, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)


def rank_only(axis, runs: Runs, places: list[float]) -> None:
    """Mark what the paper's own number of centers gives."""
    for field, (color, _) in {"precision": PRECISION, "spearman": SPEARMAN}.items():
        for norm, marker in {"levels": "x", "increments": "+"}.items():
            mean, deviation = np.array([summary(runs, "rank", norm, ("rank only", s), field) for s in RANK_ONLY]).T
            axis.errorbar(places, mean, deviation, color=color, marker=marker, linestyle="", elinewidth=0.7)


def mean_x(runs: Runs, name: str, settings: list) -> list[float]:
    return [summary(runs, name, "levels", s, "x")[0] for s in settings]


def draw_scales(first, second, runs: Runs, chosen: list[int]) -> None:
    """Panels (a) and (d)."""
    panel(first, runs, "scale", list(MAX_SCALES), list(MAX_SCALES))
    first.axvline(np.median(chosen), color="black", linewidth=0.8, linestyle=":")
    first.annotate(' "auto"', (np.median(chosen), 0.02), xycoords=("data", "axes fraction"), fontsize=8)
    first.set(title="(a) maximum scale", xlabel="K (coarsest diffusion time is $2^K$ steps)", xticks=range(2, 17, 2))
    numbers = settings_of(runs, "number")
    panel(second, runs, "number", numbers, numbers)
    second.set(title="(d) number of scales", xlabel="scales kept, counted from the coarsest", xticks=numbers[::2])


def draw_ranks(first, second, runs: Runs) -> None:
    """Panels (b) and (c), from the same runs."""
    panel(first, runs, "rank", list(THRESHOLDS), list(THRESHOLDS))
    rank_only(first, runs, list(RANK_ONLY))
    first.set(title="(b) compression", xlabel=r"threshold of rank $\delta$ (compress)", xscale="log")
    panel(second, runs, "rank", list(THRESHOLDS), mean_x(runs, "rank", list(THRESHOLDS)))
    rank_only(second, runs, mean_x(runs, "rank", [("rank only", s) for s in RANK_ONLY]))
    (full,) = mean_x(runs, "rank", ["full"])
    for field, (color, marker) in {"precision": PRECISION, "spearman": SPEARMAN}.items():
        for norm in NORMS:
            mean, deviation = summary(runs, "rank", norm, "full", field)
            inside = color if norm == "levels" else "white"
            second.errorbar(full, mean, deviation, color=color, marker=marker, markerfacecolor=inside, elinewidth=0.7)
    second.annotate("full", (full, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    second.set(title="(c) centers", xlabel="features kept, all scales together", xscale="log")


def draw_orders(first, second, runs: Runs) -> None:
    """Panels (e) and (f), from the same runs."""
    orders = mean_x(runs, "order", list(TOLERANCES))
    panel(first, runs, "order", list(TOLERANCES), orders)
    mean, deviation = np.array([summary(runs, "order", "levels", s, "seconds") for s in TOLERANCES]).T
    second.errorbar(orders, mean, deviation, color="black", marker="o", elinewidth=0.7)
    # Tolerances that single precision cannot keep are computed in double, hence the kink.
    double = TOLERANCES.index(FIRST_IN_DOUBLE)
    second.annotate("float64", (orders[double], mean[double]), (8, -6), textcoords="offset points", fontsize=8)
    second.annotate("float32", (orders[double - 1], mean[double - 1]), (8, -6), textcoords="offset points", fontsize=8)
    first.set(title="(e) order", xscale="log")
    first.set_xticks((3, 10, 30, 100), ("3", "10", "30", "100"))
    second.set(title="(f) time", ylabel="CPU seconds to embed", ylim=(0, None))
    for axis in (first, second):
        left = axis.get_xlim()[0]
        axis.axvspan(left, orders[TOLERANCES.index(LARGEST_TOLERANCE)] * 0.93, color="#EDEDED", linewidth=0, zorder=0)
        axis.set(xlim=(left, None), xlabel="order at the coarsest scale")
    first.annotate("rejected by\nthe library", (0.03, 0.97), xycoords="axes fraction", fontsize=8, va="top")


def draw(runs: Runs, chosen: list[int]):
    figure, axes = plt.subplots(2, 3, figsize=(9, 5.6))
    (a, b, c), (d, e, f) = axes
    draw_scales(a, d, runs, chosen)
    draw_ranks(b, c, runs)
    draw_orders(e, f, runs)
    for axis in (a, b, c, d, e):
        axis.set_ylabel("P@10, Spearman")
        axis.set_ylim(top=1.005)
    handles = [
        Line2D([], [], color=PRECISION[0], marker=PRECISION[1], label="P@10"),
        Line2D([], [], color=SPEARMAN[0], marker=SPEARMAN[1], label="Spearman"),
        *(Line2D([], [], color="black", linestyle=line, label=NAMES[norm]) for norm, line in LINES.items()),
        Line2D([], [], color="black", marker="x", linestyle="", label="as many centers as the rank (+: Eq. 8)"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, columnspacing=1.2)
    return figure


def draw_preset(runs: Runs):
    """Panels (a) to (d) of the preset."""
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.9), sharey=True)
    scales, numbers = (settings_of(runs, name, PRESET) for name in ("scale", "number"))
    weighted = [("n / r", delta) for delta in THRESHOLDS]
    features = [summary(runs, "rank", PRESET, delta, "x")[0] for delta in ("full", *THRESHOLDS)]
    panels = [
        ("scale", scales, scales, "-"),
        ("rank", list(THRESHOLDS), list(THRESHOLDS), "-"),
        ("rank", ["full", *THRESHOLDS], features, "-"),
        ("number", numbers, numbers, "-"),
    ]
    for axis, (name, settings, places, line) in zip(axes, panels, strict=True):
        curve(axis, runs, name, settings, places, line)
    curve(axes[1], runs, "rank", weighted, list(THRESHOLDS), ":")
    curve(axes[2], runs, "rank", weighted, features[1:], ":")
    axes[0].set(title="(a) maximum scale", xlabel="K", ylabel="P@10, Spearman", ylim=(None, 1.005))
    axes[1].set(title="(b) compression", xlabel=r"threshold of rank $\delta$", xscale="log")
    axes[2].set(title="(c) centers", xlabel="features, all scales together", xscale="log")
    axes[3].set(title="(d) number of scales", xlabel="scales kept, counted from the coarsest")
    handles = [
        *(Line2D([], [], color=c, marker=m, label=w) for (c, m), w in ((PRECISION, "P@10"), (SPEARMAN, "Spearman"))),
        Line2D([], [], color="black", linestyle=":", label="each scale times n / r (not in the paper)"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def curve(axis, runs: Runs, name: str, settings: list, places: list[float], line: str) -> None:
    for field, (color, marker) in {"precision": PRECISION, "spearman": SPEARMAN}.items():
        mean, deviation = np.array([summary(runs, name, PRESET, setting, field) for setting in settings]).T
        axis.plot(places, mean, color=color, marker=marker, linestyle=line, mfc=color if line == "-" else "white")
        axis.fill_between(places, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)


def preset_rows(runs: Runs) -> list[list[str]]:
    """Return the rows of the preset's table, panel by panel."""

    def cells(name: str, setting: object, words: str) -> list[str]:
        found = []
        for field, digits in {"precision": 3, "spearman": 4}.items():
            mean, deviation = summary(runs, name, PRESET, setting, field)
            found.append(f"{mean:.{digits}f} ± {deviation:.{digits}f}")
        return [words, *found]

    def features(name: str, setting: object) -> str:
        return f"{summary(runs, name, PRESET, setting, 'x')[0]:,.0f} features"

    numbers = settings_of(runs, "number", PRESET)
    return [
        *(cells("scale", k, f"(a) K = {k}") for k in MAX_SCALES),
        cells("rank", "full", f"(b, c) all points, {features('rank', 'full')}"),
        *(cells("rank", s, f"(b, c) centers, δ = {s:g}, {features('rank', s)}") for s in THRESHOLDS),
        *(cells("rank", ("n / r", s), f"(b, c) centers, δ = {s:g}, each scale times n / r") for s in THRESHOLDS),
        *(cells("number", n, f"(d) {n} scale" + "s" * (n > 1)) for n in numbers),
        cells("number", "every", f"(d) all K + 1 scales, {features('number', 'every')}"),
    ]


def row(runs: Runs, name: str, setting: object, words: str) -> list[str]:
    cells = [words]
    for norm in NORMS:
        for field, digits in {"precision": 3, "spearman": 4}.items():
            mean, deviation = summary(runs, name, norm, setting, field)
            cells.append(f"{mean:.{digits}f} ± {deviation:.{digits}f}")
    return cells


def rows_of(runs: Runs) -> list[list[str]]:
    """Return the rows of the table, panel by panel."""

    def features(setting: object) -> str:
        return f"{summary(runs, 'rank', 'levels', setting, 'x')[0]:,.0f} features"

    def effort(tol: float) -> str:
        order, seconds = (summary(runs, "order", "levels", tol, field) for field in ("x", "seconds"))
        return f"{order[0]:.0f} (tol {tol:g}), {seconds[0]:.2f} ± {seconds[1]:.2f} s"

    number = settings_of(runs, "number")
    return [
        *(row(runs, "scale", k, f"(a) K = {k}") for k in MAX_SCALES),
        row(runs, "rank", "full", f"(b, c) not compressed, {features('full')}"),
        *(row(runs, "rank", s, f"(b, c) δ = {s:g}, {features(s)}") for s in THRESHOLDS),
        row(runs, "rank", "paper", f"(b, c) δ = {PAPER_THRESHOLD:g}, {PAPER_SCALES} scales, {features('paper')}"),
        row(
            runs,
            "rank",
            "centers",
            f"(b, c) δ = {PAPER_THRESHOLD:g}, {PAPER_SCALES} scales, densities at the centers, {features('centers')}",
        ),
        *(
            row(runs, "rank", ("rank only", s), f"(b, c) δ = {s:g}, as many as the rank, {features(('rank only', s))}")
            for s in RANK_ONLY
        ),
        *(row(runs, "number", n, f"(d) {n} scale" + "s" * (n > 1)) for n in number if n < 7 or n in (8, number[-1])),
        *(row(runs, "order", s, f"(e, f) order {effort(s)}") for s in TOLERANCES),
    ]


def run(show: Exhibit, n_runs: int, n_measures: int, *, only_preset: bool = False) -> None:
    runs, chosen = study(n_runs, n_measures, show.seed, only_preset=only_preset)
    write_preset(show, runs, n_measures)
    if only_preset:
        return
    show.save(draw(runs, chosen))
    heads = ["panel and setting", "P@10", "Spearman", "P@10, Eq. 8", "Spearman, Eq. 8"]
    note = (
        f'Means and standard deviations over {n_runs} draws of {n_measures} measures. max_scale="auto" chose K = '
        f"{' or '.join(map(str, sorted(set(chosen))))}. Seconds are CPU time, summed over all cores, to embed all "
        "measures; the graph and the fit are not included. With tol 1e-6 and less, heatmover computes in float64. In "
        'rows with "as many as the rank", the number of regions is the '
        "paper's number of centers; by default, heatmover keeps at least 256 regions per scale. heatmover rejects "
        "polynomial orders below the order for tol 0.5. The paper shows this figure without numbers."
    )
    show.table(heads, rows_of(runs), note=note)


def write_preset(show: Exhibit, runs: Runs, n_measures: int) -> None:
    show.save(draw_preset(runs), "_preset")
    chosen = [int(score.x) for score in runs["number", PRESET, "chosen"]]
    note = (
        f"Means and standard deviations over {len(chosen)} draws of {n_measures} measures. Except in (a), the preset "
        f"chose K = {' or '.join(map(str, sorted(set(chosen))))}. Except in (d), it compares the {PAPER_SCALES} "
        "coarsest scales. In (b, c), the preset reads densities at as many centers as the rank, with no minimum. The "
        "weight n / r is the number of points for each center of a scale; the paper does not have this weight."
    )
    show.table(["panel and setting", "P@10", "Spearman"], preset_rows(runs), note=note, suffix="_preset")


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--draws", type=int, default=10, help="draws of the data (10; quick: 3)")
    options.add_argument("--preset", action="store_true", help="only the preset, in its own figure and table")
    arguments = options.parse_args()
    sizes = (3, 30) if arguments.quick else (arguments.draws, 100)
    run(exhibit("ablation", arguments), *sizes, only_preset=arguments.preset)
