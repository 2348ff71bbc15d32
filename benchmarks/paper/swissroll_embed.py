"""The swiss roll unrolled: embeddings of 1,000 measures by several methods, all given the same time.

1,000 measures of 10 points, 10,000 points in 10-D. Diffusion EMD runs with its defaults; every rival repeats itself
(trees, directions) until it has taken as long. The distances become a picture by PHATE if it is installed (the paper's
choice, extra `phate`), else by a diffusion map; both look at near neighbors only. Classical scaling, which believes
all distances, is shown below. Colors are the two true coordinates of each measure's center.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import matplotlib.pyplot as plt
import numpy as np
from exhibit import LOOKS, Exhibit, exhibit, parser, stage, timed

import heatmover as hm
from heatmover.statistics.manifold import classical_scaling, diffusion_map, phate
from heatmover.statistics.metrics import precision_at_k, spearman
from heatmover.transport.baselines import METHODS

# Settings of the supplement; what is repeated until the time is up.
RIVALS = {
    "cluster_tree": ({"n_clusters": 3, "depth": 8}, "n_trees"),
    "quad_tree": ({"depth": 4}, "n_trees"),
    "sliced_wasserstein": ({}, "n_directions"),
}
AXES = ("along the roll", "across the roll")
# Of the kernel between measures whose diffusion map is drawn.
NEIGHBORS = 10


def fill_the_time(method: str, data: hm.datasets.Dataset, budget: float) -> tuple[np.ndarray, float, str]:
    """Return distances of a rival that repeats itself until it takes about as long as ``budget`` seconds."""
    options, repeated = RIVALS[method]
    count, seconds = 8, 0.0
    while seconds < 0.8 * budget:
        if seconds > 0:
            count = max(count + 1, min(4 * count, int(count * budget / seconds)))
        distances, seconds = timed(
            lambda n=count: METHODS[method](data.points, data.measures(), **options, **{repeated: n})
        )
    return distances, seconds, f"{count} {repeated.removeprefix('n_')}"


def picture(distances: np.ndarray, seed: int, *, by_phate: bool) -> np.ndarray:
    if not by_phate:
        return diffusion_map(distances, k=NEIGHBORS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return phate(distances, k=NEIGHBORS, random_state=seed)


def draw(
    show: Exhibit,
    local: dict[str, np.ndarray],
    whole: dict[str, np.ndarray],
    centers: np.ndarray,
    words: dict[str, str],
    how: str,
) -> None:
    rows = [(local, 0, how), (local, 1, how), (whole, 0, "classical scaling"), (whole, 1, "classical scaling")]
    figure, axes = plt.subplots(4, len(local), figsize=(2.4 * len(local), 9), squeeze=False)
    for row, (pictures, axis_shown, kind) in enumerate(rows):
        for axis, (name, places) in zip(axes[row], pictures.items(), strict=True):
            shown = axis.scatter(*places.T, c=centers[:, axis_shown], s=4, cmap="viridis", linewidths=0)
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(True)
            if row == 0:
                axis.set_title(f"{LOOKS[name][2]}\n{words[name]}", fontsize=8)
        axes[row, 0].set_ylabel(f"{kind}\ncolored {AXES[axis_shown]}")
        figure.colorbar(shown, ax=axes[row], label=f"true place {AXES[axis_shown]}", fraction=0.03, pad=0.01)
    show.save(figure)


def run(show: Exhibit, n_measures: int) -> None:
    data = hm.datasets.swiss_roll(n_measures, points_per_measure=10, random_state=show.seed)
    with stage("exact EMD on the sheet"):
        truth = data.exact_emd()
    METHODS["diffusion_emd"](data.points, data.measures())  # compiles
    distances, budget = timed(lambda: METHODS["diffusion_emd"](data.points, data.measures()), repeats=3)
    found = {"diffusion_emd": (distances, budget, "defaults")}
    for name in RIVALS:
        with stage(name):
            found[name] = fill_the_time(name, data, budget)
    by_phate = find_spec("phate") is not None
    with stage("pictures"):
        local = {name: picture(row[0], show.seed, by_phate=by_phate) for name, row in found.items()}
        whole = {name: classical_scaling(row[0])[0] for name, row in found.items()}
    rows, words = [], {}
    for name, (row, seconds, options) in found.items():
        scores = f"{precision_at_k(truth, row):.3f}", f"{spearman(truth, row):.3f}"
        words[name] = f"{options}, {seconds:.1f} s\nP@10 {scores[0]}, Spearman {scores[1]}"
        rows.append([LOOKS[name][2], options, f"{seconds:.2f}", *scores])
    draw(show, local, whole, data.annotations["center"], words, "PHATE" if by_phate else "diffusion map")
    note = (
        f"{n_measures:,} measures of 10 points, {10 * n_measures:,} points in 10-D. CPU seconds are summed over all "
        "cores. The paper shows pictures without numbers."
    )
    show.table(["method", "repeated", "CPU seconds", "P@10", "Spearman"], rows, note=note)


if __name__ == "__main__":
    arguments = parser(__doc__).parse_args()
    run(exhibit("swissroll_embed", arguments), n_measures=300 if arguments.quick else 1000)
