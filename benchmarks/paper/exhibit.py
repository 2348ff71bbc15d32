"""What all exhibits share: arguments, one look for all figures, and where figures and numbers go.

A full run writes docs/results/<name>.png and docs/results/numbers/<name>.md, which docs/results/index.md shows;
a quick one writes to benchmarks/output/paper, so that rough figures never replace those of record.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

# The scripts here are started as files, so that only their own folder is searched for modules.
sys.path.append(str(Path(__file__).resolve().parents[1]))
from provenance import PACKAGES, ROOT, write_table
from rivals import required as required

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

# Okabe and Ito's colors, told apart by every kind of color vision; each method keeps its color, marker and name.
LOOKS = {
    "diffusion_emd": ("#D55E00", "o", "Diffusion EMD"),
    "from_paper": ("#8C3B00", "d", "Diffusion EMD (from_paper)"),
    "cluster_tree": ("#0072B2", "s", "ClusterTree"),
    "quad_tree": ("#009E73", "^", "QuadTree"),
    "grid_emd": ("#56B4E9", "v", "grid EMD"),
    "sliced_wasserstein": ("#CC79A7", "D", "sliced Wasserstein"),
    "wavelet_emd": ("#E69F00", "P", "wavelet EMD"),
    "convolutional_sinkhorn": ("#000000", "X", "Convolutional Sinkhorn (as published)"),
    "stored_sinkhorn": ("#882255", "p", "Convolutional Sinkhorn (stored kernel)"),
    "sinkhorn": ("#7F7F7F", "*", "Sinkhorn"),
    "exact_emd": ("#332288", "h", "exact EMD"),
    "mean_distance": ("#B3A200", "<", "mean distance"),
}

# The same distance computed in two ways: heat applied anew in every iteration, plain, which is the method as published,
# and the kernel between the supports stored once, debiased, which is heatmover's own quicker and more accurate form.
PUBLISHED = {"kernel": "applied", "debias": False}
STORED = {"kernel": "stored", "debias": True}
FORMS = {"convolutional_sinkhorn": PUBLISHED, "stored_sinkhorn": STORED}

STYLE = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Exhibit:
    """One figure or table: where its parts are written, and whether the run is a quick one."""

    name: str
    out: Path
    quick: bool
    seed: int

    def save(self, figure: Figure, suffix: str = "") -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.name}{suffix}.png"
        figure.savefig(path)
        plt.close(figure)
        print(f"wrote {path}")

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        note: str = "",
        suffix: str = "",
        packages: Sequence[str] = (*PACKAGES, "POT"),
    ) -> None:
        """Write a Markdown table that ends with its provenance, and print the same numbers."""
        write_table(f"{self.name}{suffix}", heads, rows, note, folder=self.out / "numbers", packages=packages)


def parser(description: str) -> argparse.ArgumentParser:
    """The arguments that every exhibit takes."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="smaller sizes and fewer runs: about a minute")
    arguments.add_argument(
        "--out", type=Path, help="folder for figures and numbers (docs/results; quick: benchmarks/output/paper)"
    )
    arguments.add_argument("--seed", type=int, default=0, help="seed of the data and of all random methods (0)")
    return arguments


def exhibit(name: str, arguments: argparse.Namespace) -> Exhibit:
    default = ROOT / "benchmarks/output/paper" if arguments.quick else ROOT / "docs/results"
    plt.rcParams.update(STYLE)
    return Exhibit(name, arguments.out or default, arguments.quick, arguments.seed)


def paper_settings(options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the parameters of the preset, for the convention of the baselines."""
    from heatmover import DiffusionEMD

    settings = DiffusionEMD.from_paper(**(options or {})).get_params()
    return {key: value for key, value in settings.items() if key not in ("graph", "n_jobs")}


def method_named(name: str) -> Callable[..., np.ndarray]:
    """Return the baseline of this name; the preset and the two forms of convolutional Sinkhorn have one each."""
    from alternatives import METHODS

    if name == "from_paper":
        return partial(METHODS["diffusion_emd"], **paper_settings())
    if name in FORMS:
        return partial(METHODS["convolutional_sinkhorn"], **FORMS[name])
    return METHODS[name]


def timed(function: Callable[[], T], *, repeats: int = 1, long: float = float("inf")) -> tuple[T, float]:
    """Return the result of a function and the least work it took: seconds of all cores together.

    Wall seconds would tell of other work on the machine as well, and of the number of cores. A first run that
    takes longer than ``long`` is the only one.
    """
    times: list[float] = []
    while len(times) < repeats and not (times and times[0] > long):
        start = time.process_time()
        result = function()
        times.append(time.process_time() - start)
    return result, min(times)


@contextmanager
def stage(words: str) -> Iterator[None]:
    """Say what is going on and how long it took."""
    print(f"{words} ...", end=" ", flush=True)
    start = time.perf_counter()
    yield
    print(f"{time.perf_counter() - start:.1f} s", flush=True)
