"""The claim "two orders of magnitude faster than equally accurate methods": time to the same accuracy, as sizes grow.

Swiss rolls with m measures of p points, n = m p points in 10-D, truth the exact EMD on the unrolled sheet. Diffusion
EMD runs with its defaults and sets the mark, its P@10. Every rival that follows the shape of the data (convolutional
Sinkhorn; Sinkhorn and exact EMD with shortest paths on the same graph) runs its settings from the quickest to the most
careful until it reaches the mark; the time is that of the first that does, from points to all distances: the shortest
of three runs, or of one that takes more than two minutes, in work of all cores and on the clock. The preset
`DiffusionEMD.from_paper` runs as it is, whether it reaches the mark or not; with --preset, only the preset and the
defaults run, and have a table of their own. All use all cores;
pairs are solved in threads. A run that would take longer than --limit, by what the size before took, is left out. The
note says how much of the machine other programs had in the meantime.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from exhibit import LOOKS, Exhibit, exhibit, method_named, parser, required

import heatmover as hm
from heatmover.statistics.metrics import precision_at_k, spearman

# From the quickest to the most careful.
SETTINGS: dict[str, list[dict]] = {
    "convolutional_sinkhorn": [{"max_iterations": count} for count in (1, 3, 10)],
    "stored_sinkhorn": [{"max_iterations": count} for count in (1, 3, 10)],
    "sinkhorn": [{"regularization": share} for share in (0.1, 0.03)],
    "exact_emd": [{}],
}

REPEATS = 3
# Runs of more CPU seconds are not repeated.
LONG = 120.0


@dataclass(frozen=True)
class Run:
    seconds: float  # of work, all cores together
    clock: float
    precision: float
    rank: float
    options: str
    runs: int
    reached: bool = True


def judge(method: str, data: hm.datasets.Dataset, truth: np.ndarray, options: dict, mark: float = -1.0) -> Run:
    """Run one setting; if it reaches the mark, as often as is timed."""
    works, clocks = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hm.ConvergenceWarning)  # whether it is good enough shows in the accuracy
        while True:
            work, clock = time.process_time(), time.perf_counter()
            distances = method_named(method)(hm.Graph.from_points(data.points), data.measures(), **options)
            works.append(time.process_time() - work)
            clocks.append(time.perf_counter() - clock)
            precision = precision_at_k(truth, distances, k=min(10, len(truth) - 2))
            if len(works) == REPEATS or precision < mark or works[0] > LONG:
                break
    words = ", ".join(f"{key}={value}" for key, value in options.items()) or "-"
    return Run(min(works), min(clocks), precision, spearman(truth, distances), words, len(works))


def first_to_reach(method: str, data: hm.datasets.Dataset, truth: np.ndarray, mark: float) -> Run:
    """Return the first setting that reaches the mark, or the best of all."""
    runs = []
    for options in SETTINGS[method]:
        runs.append(judge(method, data, truth, options, mark))
        if runs[-1].precision >= mark:
            return runs[-1]
    best = max(range(len(runs)), key=lambda i: runs[i].precision)
    top = runs[best] if runs[best].seconds > LONG else judge(method, data, truth, SETTINGS[method][best])
    return replace(top, reached=False)


class Others:
    """How much of the machine other programs have had since this was made, in cores; None where it is not told."""

    def __init__(self) -> None:
        self._begun = self._state()

    @staticmethod
    def _state() -> tuple[float, float, float] | None:
        path = Path("/proc/stat")
        if not path.exists():
            return None
        user, nice, system, _, _, *others = map(int, path.read_text().split("\n", 1)[0].split()[1:])
        busy = (user + nice + system + sum(others[:3])) / os.sysconf("SC_CLK_TCK")
        return busy, time.process_time(), time.perf_counter()

    def words(self) -> str:
        now = self._state()
        if self._begun is None or now is None:
            return "What other programs did in the meantime is not known"
        busy, own, clock = (after - before for after, before in zip(now, self._begun, strict=True))
        return f"Other programs used {max(busy - own, 0) / clock:.2f} of {os.cpu_count()} cores during the runs"


def grow(
    sizes: list[tuple[int, int]], seed: int, limit: float, others: tuple[str, ...] = tuple(SETTINGS)
) -> dict[str, list[Run | None]]:
    """Return, for sizes (measures, points in each), what every method took."""
    found: dict[str, list[Run | None]] = {name: [] for name in ("diffusion_emd", "from_paper", *others)}
    for n_measures, per_measure in sizes:
        data = hm.datasets.swiss_roll(n_measures, points_per_measure=per_measure, random_state=seed)
        truth = data.exact_emd()
        ours = judge("diffusion_emd", data, truth, {})
        found["diffusion_emd"].append(ours)
        preset = judge("from_paper", data, truth, {})
        found["from_paper"].append(replace(preset, reached=preset.precision >= ours.precision))
        for name in others:
            before = [run.seconds for run in found[name] if run is not None]
            # Twice the measures and points are at least four times the work for each of these.
            too_long = found[name] and (found[name][-1] is None or 4 * before[-1] * len(SETTINGS[name]) ** 0.5 > limit)
            found[name].append(None if too_long else first_to_reach(name, data, truth, ours.precision))
            show = found[name][-1]
            print(f"{n_measures:5d} x {per_measure:4d} {name:24s}", show or "left out", flush=True)
    return found


def exponent(x: np.ndarray, runs: list[Run | None]) -> float:
    kept = [(a, run.seconds) for a, run in zip(x, runs, strict=True) if run is not None]
    return float(np.polyfit(*np.log(np.array(kept)).T, 1)[0]) if len(kept) > 1 else float("nan")


def draw(show: Exhibit, sweeps: dict[str, tuple[np.ndarray, dict[str, list[Run | None]]]]) -> None:
    figure, axes = plt.subplots(1, len(sweeps), figsize=(4.5 * len(sweeps), 3.6), sharey=True)
    for axis, (words, (x, found)) in zip(axes, sweeps.items(), strict=True):
        for name, runs in found.items():
            color, marker, label = LOOKS[name]
            kept = [(a, run) for a, run in zip(x, runs, strict=True) if run is not None]
            if name == "exact_emd":
                label = "exact EMD, shortest paths"
            elif name == "sinkhorn":
                label = "Sinkhorn, shortest paths"
            axis.loglog(
                [a for a, _ in kept],
                [run.seconds for _, run in kept],
                color=color,
                marker=marker,
                label=f"{label}, exponent {exponent(x, runs):.1f}",
            )
            missed = [(a, run.seconds) for a, run in kept if not run.reached]
            if missed:
                axis.scatter(*zip(*missed, strict=True), s=110, facecolors="none", edgecolors=color, zorder=3)
        axis.set(title=words, xlabel=words.split(",")[0])
        axis.set_xticks(x, [f"{value:,}" for value in x])
        axis.minorticks_off()
        axis.legend(loc="upper left", fontsize=7)
    axes[0].set_ylabel("CPU seconds to the P@10 of Diffusion EMD")
    axes[0].set_ylim(top=axes[0].get_ylim()[1] * 30)
    show.save(figure)


def run(show: Exhibit, limit: float, *, only_preset: bool = False) -> None:
    names = () if only_preset else tuple(SETTINGS)
    counts = [15, 30] if show.quick else [25, 50, 100]
    widths = [25, 50] if show.quick else [50, 100, 200]
    for name, options in {"diffusion_emd": [{}], "from_paper": [{}], **SETTINGS}.items():
        if name not in SETTINGS or name in names:
            judge(name, *warm_up(), options[0])
    others = Others()
    by_measures = grow([(count, 100) for count in counts], show.seed, limit, names)
    by_points = grow([(20, width) for width in widths], show.seed, limit, names)
    sweeps = {
        "number of measures m, 100 points in each": (np.array(counts), by_measures),
        "points in each of 20 measures": (np.array(widths), by_points),
    }
    if not only_preset:
        draw(show, sweeps)
    rows = []
    for words, (x, found) in sweeps.items():
        for name, runs in found.items():
            for size, result, ours in zip(x, runs, found["diffusion_emd"], strict=True):
                if result is not None:
                    times = "" if name == "diffusion_emd" else f"{multiple(result.seconds / ours.seconds)} x"
                    mark = "" if result.reached else " (short of it)"
                    scores = f"{result.precision:.3f}{mark}", f"{result.rank:.3f}"
                    rows.append(
                        [
                            LOOKS[name][2],
                            words,
                            size,
                            f"{result.seconds:.2f}",
                            f"{result.clock:.2f}",
                            times,
                            *scores,
                            result.options,
                            result.runs,
                        ]
                    )
    heads = [
        "method",
        "what grows",
        "size",
        "CPU seconds",
        "wall time",
        "relative to Diffusion EMD",
        "P@10",
        "Spearman",
        "options",
        "runs",
    ]
    note = (
        f"Times are the CPU seconds, summed over all cores, and the wall time of the fastest run. {others.words()}. "
        "Diffusion EMD runs with its defaults, and from_paper with the settings of the paper."
    )
    if not only_preset:
        note = (
            f"Rings in the figure mark settings that do not reach the P@10 of Diffusion EMD. {note} For every other "
            "method, the table shows the first setting in its list that reaches the P@10 of Diffusion EMD. The "
            f"settings are: {tried()}."
        )
    show.table(heads, rows, note=note, suffix="_preset" if only_preset else "")


def multiple(ratio: float) -> str:
    """Return a ratio of two times, with one decimal below ten."""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def tried() -> str:
    """Say in words which settings each rival has."""
    lists = {
        LOOKS[name][2]: [f"{key}={value}" for options in settings for key, value in options.items()]
        for name, settings in SETTINGS.items()
    }
    return "; ".join(f"{name}: {', '.join(words).replace('_', ' ') or 'no settings'}" for name, words in lists.items())


def warm_up() -> tuple[hm.datasets.Dataset, np.ndarray]:
    data = hm.datasets.swiss_roll(12, points_per_measure=5)
    return data, data.exact_emd()


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--limit", type=float, default=300, help="CPU seconds that one run may be expected to take (300)"
    )
    arguments.add_argument("--preset", action="store_true", help="only the preset and the defaults, in their own table")
    chosen = arguments.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    run(exhibit("speed", chosen), limit=30 if chosen.quick else chosen.limit, only_preset=chosen.preset)
