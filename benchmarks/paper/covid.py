"""The paper's cohort: embeddings of 210 samples of 22 million cells, colored by outcome and by shares of cell types.

The paper's cells are of patients and not public. These are simulated, with the same numbers of cells, samples and graph
nodes, by `benchmarks/cohort22m.py`, which also runs everything from the store on disk to the report; here are the
pictures, the paper's smoothness of each signal over the 10-NN graph of samples, and what every stage took. The maps are
made by PHATE if it is installed (the paper's choice, extra `phate`), else by a diffusion map.

Full size is that of docs/results/scale.md; --quick has 100,000 cells.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from exhibit import LOOKS, Exhibit, exhibit, parser, stage
from swissroll_embed import picture

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from provenance import usable_cores

if TYPE_CHECKING:
    from cohort22m import Whole

FULL, QUICK = 22_000_000, 100_000
DIED, SURVIVED = "#D55E00", "#56B4E9"
NEEDED = ("zarr", "anndata")


def oriented(places: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """Mirror each axis of a map so that the signal grows along it: maps of several methods can then be compared."""
    signs = np.sign((places - places.mean(axis=0)).T @ (signal - signal.mean()))
    return places * np.where(signs == 0, 1, signs)


def draw(
    show: Exhibit,
    maps: dict[str, np.ndarray],
    signals: dict[str, np.ndarray],
    smooth: dict[str, dict[str, float]],
    how: str,
) -> None:
    figure, axes = plt.subplots(len(maps), len(signals), figsize=(2.3 * len(signals), 2.15 * len(maps)), squeeze=False)
    for row, (method, places) in zip(axes, maps.items(), strict=True):
        row[0].set_ylabel(LOOKS[method][2], fontweight="bold")
        for column, (axis, (name, signal)) in enumerate(zip(row, signals.items(), strict=True)):
            axis.set(xticks=[], yticks=[], xlabel=f"smoothness {smooth[method][name]:.3f}")
            axis.grid(False)
            axis.spines[:].set_visible(True)
            axis.spines[:].set_color("#CCCCCC")
            # A few extreme samples would leave all others in the dark half of the colors.
            low, high = np.percentile(signal, [2, 98])
            colors = {"c": signal, "cmap": "viridis", "vmin": low, "vmax": high}
            if name == "outcome":
                colors = {"c": np.where(signal > 0, DIED, SURVIVED)}
            shown = axis.scatter(*places.T, s=13, linewidths=0.3, edgecolors="white", **colors)
            if axis is axes[0, column]:
                axis.set_title(name)
            if axis is axes[-1, column]:
                beneath(figure, axes[:, column], shown, name)
    figure.suptitle(f"{how} of the samples; lower is smoother, 1 is chance", fontsize=9, color="#444444")
    show.save(figure)


def beneath(figure, column, shown, name: str) -> None:
    """Say under a column what its colors mean."""
    if name == "outcome":
        marks = [plt.Line2D([], [], marker="o", linestyle="", color=color) for color in (DIED, SURVIVED)]
        column[-1].legend(
            marks, ["died", "survived"], loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, handletextpad=0.1,
            columnspacing=1,
        )  # fmt: skip
        return
    bar = figure.colorbar(shown, ax=column, orientation="horizontal", fraction=0.03, pad=0.02, aspect=18, extend="both")
    bar.ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
    bar.outline.set_visible(False)


def run(show: Exhibit, folder: Path, n_cells: int) -> None:
    import cohort22m

    options = cohort22m.options_of(["--cells", str(n_cells), "--seed", str(show.seed)])
    begun = time.perf_counter()
    if not (folder / "samples.csv").exists():
        with stage(f"simulate {n_cells:,} cells of {options.samples} samples"):
            cohort22m.generate(folder, options)
    generated = time.perf_counter() - begun
    whole = cohort22m.whole_run(folder, options)
    signals = dict(sorted(cohort22m.signals_of(whole.cohort).items(), key=lambda item: item[0] != "outcome"))
    with stage("rivals"):
        methods = cohort22m.distances_by_method(whole.result)
    smooth = cohort22m.smoothness(methods, signals)
    by_phate = find_spec("phate") is not None
    if not by_phate:
        print("PHATE is not installed (extra phate): the maps are diffusion maps.")
    first = next(name for name in signals if name != "outcome")
    maps = {
        method: oriented(picture(distances, show.seed, by_phate=by_phate), signals[first])
        for method, distances in methods.items()
    }
    draw(show, maps, signals, smooth, "PHATE" if by_phate else "Diffusion map")
    tables(show, whole, smooth, generated)


def tables(show: Exhibit, whole: Whole, smooth: dict[str, dict[str, float]], generated: float) -> None:
    """Write the smoothness of every signal, and what every stage cost."""
    rows = [[LOOKS[method][2], *(f"{value:.3f}" for value in row.values())] for method, row in smooth.items()]
    cohort, landmarks = whole.cohort, whole.result.landmarks.n_landmarks
    size = f"{cohort.n_cells:,} simulated cells of {len(cohort.names)} samples, {landmarks:,} landmarks"
    note = f"Laplacian smoothness over the 10-NN graph of samples, relative to the value expected by chance. {size}."
    show.table(["method", *next(iter(smooth.values()))], rows, note=note)
    costs = (whole.stages | {"total": whole.total}).items()
    rows = [[name, f"{c.work:.1f}", f"{c.seconds:.1f}", f"{c.gigabytes:.2f} GB"] for name, c in costs]
    note = (
        f"{size}, from the store on disk to the report. CPU seconds are summed over all cores. Wall time was measured "
        f"on {usable_cores()} cores; the load at the end was {os.getloadavg()[0]:.1f}, to which this run contributes "
        f"about the number of cores. Counting processed {cohort.n_cells / whole.stages['count cells'].work:,.0f} "
        f"cells per CPU second. {whole.result.landmark_agreement}. {whole.study.headline()} Generating the store took "
        f"{generated:.0f} s."
    )
    show.table(["stage", "CPU seconds", "wall time", "resident memory"], rows, note=note, suffix="_stages")


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--folder", type=Path, help="where the cells are or will be kept; a temporary one if absent")
    chosen = arguments.parse_args()
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        print(f"The cohort is kept in a zarr store: install {' and '.join(missing)} (extra cohort).")
        return 0
    with tempfile.TemporaryDirectory(prefix="covid-") as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run(exhibit("covid", chosen), folder, QUICK if chosen.quick else FULL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
