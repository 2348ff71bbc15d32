"""How often the dispersion test errs and finds: equal spread of every shape, and unequal spread of Gaussians.

Under equal spread a good test at 5% is right in 95% of runs, whatever the shape of the data: with tails so heavy that
one sample outweighs the rest, with most samples equal, skewed, in groups of unequal size, far apart, in batches, and
with several samples of a patient. Where nearly all samples are equal, few permutations differ, and no test by
permutation can reach 5%: 10 against 10 with four samples that differ from the rest have a smallest p of 0.09.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from provenance import add_record, write_table
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from heatmover.statistics import dispersion

LEVEL = 0.05
Places = npt.NDArray[np.float64]
Shape = Callable[[np.random.Generator, int], Places]
FULL, SMALL = 1_000, 40


def gaussian(n_dimensions: int) -> Shape:
    return lambda rng, n: rng.normal(size=(n, n_dimensions))


def outlier(distance: float, n_dimensions: int = 2) -> Shape:
    """One sample, whichever, is far out."""

    def draw(rng: np.random.Generator, n: int) -> Places:
        places = rng.normal(size=(n, n_dimensions))
        places[rng.integers(n)] += distance
        return places

    return draw


def student(freedom: int, n_dimensions: int, *, radial: bool = False) -> Shape:
    def draw(rng: np.random.Generator, n: int) -> Places:
        if not radial:
            return rng.standard_t(freedom, size=(n, n_dimensions))
        return rng.normal(size=(n, n_dimensions)) / np.sqrt(rng.chisquare(freedom, size=(n, 1)) / freedom)

    return draw


def identical(share: float) -> Shape:
    """On average this share of the samples are copies of one."""
    return lambda rng, n: rng.normal(size=(n, 2)) * (rng.random((n, 1)) > share)


def rounded(rng: np.random.Generator, n: int) -> Places:
    return rng.normal(size=(n, 2)).round()


def lognormal(sigma: float, n_dimensions: int) -> Shape:
    return lambda rng, n: np.exp(sigma * rng.normal(size=(n, n_dimensions)))


def exponential(n_dimensions: int) -> Shape:
    return lambda rng, n: rng.exponential(size=(n, n_dimensions))


SHAPES: dict[str, Shape] = {
    "Gaussian, 1-D": gaussian(1),
    "Gaussian, 2-D": gaussian(2),
    "Gaussian, 50-D": gaussian(50),
    "one outlier, 30": outlier(30.0),
    "one outlier, 1e6": outlier(1e6),
    "one outlier, 30-D": outlier(100.0, 30),
    "Cauchy, 1-D": student(1, 1),
    "Cauchy, 2-D": student(1, 2),
    "Cauchy, radial 5-D": student(1, 5, radial=True),
    "Student t2, 2-D": student(2, 2),
    "half identical": identical(0.5),
    "70% identical": identical(0.7),
    "85% identical": identical(0.85),
    "rounded to integers": rounded,
    "lognormal 1, 2-D": lognormal(1.0, 2),
    "lognormal 1.5, 1-D": lognormal(1.5, 1),
    "exponential, 1-D": exponential(1),
    "exponential, 3-D": exponential(3),
}
# How the table groups them: the first words of their names.
KINDS = {
    "Gaussian in 1, 2 and 50 dimensions": ("Gaussian",),
    "one sample 30, 100 or a million out": ("one outlier",),
    "Cauchy, Student t2": ("Cauchy", "Student"),
    "lognormal, exponential": ("lognormal", "exponential"),
    "rounded to integers; half or 70% of the samples identical": ("rounded", "half", "70%"),
    "85% identical": ("85%",),
}
SIZES = {"10/10": (10, 10), "6/20": (6, 20), "5/10/20": (5, 10, 20), "15/15": (15, 15)}
# How far apart the groups lie, in units of the shapes; the last makes every group a world of its own.
SHIFTS = {"": 0.0, "near": 0.7, "apart": 5.0, "far": 100.0}


class Job(NamedTuple):
    shape: str
    sizes: tuple[int, ...]
    shift: float
    design: str
    widths: tuple[float, ...]
    metric: str
    seed: int


def simulate(job: Job) -> tuple[Places, npt.NDArray[np.int64], dict[str, Any]]:
    """Return distances, groups and the restriction of one run."""
    rng = np.random.default_rng([job.seed, 7])
    codes = np.repeat(np.arange(len(job.sizes)), job.sizes)
    options: dict[str, Any] = {}
    places = SHAPES[job.shape](rng, codes.size) * np.asarray(job.widths)[codes][:, None]
    if job.design == "batches":
        # Unequal shares of the groups in two batches, the second shifted.
        batch = (rng.random(codes.size) < np.where(codes == 0, 0.3, 0.6)).astype(int)
        places, options = places + 3.0 * batch[:, None], {"blocks": batch}
    elif job.design == "pairs":
        patient = np.concatenate([np.arange(size) for size in job.sizes])
        places, options = places + 3.0 * rng.normal(size=(codes.size, 1))[patient], {"blocks": patient}
    elif job.design == "patients":
        patient = np.repeat(np.arange(codes.size), 1 + rng.integers(3, size=codes.size))
        places, codes = places[patient], codes[patient]
        places, options = places + 0.2 * rng.normal(size=places.shape), {"blocks": patient}
    places[:, 0] += job.shift * codes
    return cdist(places, places, job.metric), codes, options


def p_value(job: Job) -> float:
    distances, codes, options = simulate(job)
    with threadpool_limits(1):
        return dispersion(distances, codes, n_permutations=199, random_state=job.seed + 1_000_000, **options).p_value


def designs() -> list[tuple[str, dict[str, Any]]]:
    """Return every design of equal spread by name."""
    found: list[tuple[str, dict[str, Any]]] = [
        (f"{name}; {sizes}", {"shape": name, "sizes": SIZES[sizes]}) for name in SHAPES for sizes in SIZES
    ]
    for name in ("Gaussian, 1-D", "Gaussian, 2-D", "Gaussian, 50-D", "one outlier, 1e6", "Cauchy, 2-D",
                 "70% identical", "lognormal 1, 2-D", "exponential, 1-D", "exponential, 3-D"):  # fmt: skip
        for shift in ("near", "apart", "far"):
            for sizes in ("10/10", "6/20"):
                options = {"shape": name, "sizes": SIZES[sizes], "shift": SHIFTS[shift]}
                found.append((f"{name}; {sizes}, {shift}", options))
    for design in ("batches", "pairs", "patients"):
        for name in ("Gaussian, 2-D", "one outlier, 1e6", "Cauchy, 2-D", "exponential, 3-D"):
            options = {"shape": name, "sizes": (15, 15), "design": design, "shift": 2.0}
            found.append((f"{name}; 15/15 in {design}, shifted", options))
    for name in ("Gaussian, 2-D", "Cauchy, 2-D", "exponential, 3-D"):
        options = {"shape": name, "sizes": (6, 20), "metric": "cityblock", "shift": 5.0}
        found.append((f"{name}; 6/20, apart, city block", options))
    return found


def summary(called: dict[str, float]) -> list[list[str]]:
    """Return one row for each kind of data: how often equal spread was called, by where the groups lie."""
    rows = []
    for kind, starts in KINDS.items():
        found: dict[str, list[float]] = {"equal": [], "apart": [], "blocks": []}
        for name, share in called.items():
            if name.startswith(starts):
                where = "blocks" if " in " in name else "apart" if "," in name.split("; ")[1] else "equal"
                found[where].append(share)
        rows.append([kind, *(span(shares) for shares in found.values())])
    return rows


def span(shares: list[float]) -> str:
    return f"{100 * min(shares):.1f} to {100 * max(shares):.1f}%" if shares else ""


def rate(options: dict[str, Any], runs: int, pool: ProcessPoolExecutor) -> float:
    base = {"shift": 0.0, "design": "", "widths": (1.0,) * len(options["sizes"]), "metric": "euclidean"} | options
    jobs = [Job(**base, seed=seed) for seed in range(runs)]
    return float(np.mean([p <= LEVEL for p in pool.map(p_value, jobs, chunksize=25)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=FULL, help="runs of each design")
    parser.add_argument("--small", action="store_true", help="few runs: whether it runs, not the figures")
    parser.add_argument("--only", default="", help="designs whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    add_record(parser)
    arguments = parser.parse_args()
    shares: dict[str, float] = {}
    runs = SMALL if arguments.small else arguments.runs
    start = time.perf_counter()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        print(f"{'equal spread':48s} called of {runs:,}")
        for name, options in designs():
            if arguments.only in name:
                called = rate(options, runs, pool)
                print(f"{name:48s} {called:8.1%}", flush=True)
                shares[name] = called
        print(f"\n{'unequal spread':48s} found of {runs:,}")
        for name, sizes, widths in (
            ("Gaussian, 2-D", (10, 10), (1.0, 2.0)), ("Gaussian, 2-D", (15, 15), (1.0, 1.6)),
            ("Gaussian, 50-D", (10, 10), (1.0, 1.1)), ("Gaussian, 2-D", (6, 20), (2.0, 1.0)),
            ("Gaussian, 2-D", (6, 20), (1.0, 2.0)), ("Gaussian, 2-D", (5, 10, 20), (1.0, 1.0, 2.0)),
            ("one outlier, 1e6", (10, 10), (1.0, 2.0)), ("Cauchy, 2-D", (15, 15), (1.0, 3.0)),
            ("70% identical", (15, 15), (1.0, 5.0)), ("exponential, 3-D", (15, 15), (1.0, 2.0)),
        ):  # fmt: skip
            title = f"{name}; {'/'.join(map(str, sizes))} widths {'/'.join(f'{width:g}' for width in widths)}"
            if arguments.only in title:
                found = rate({"shape": name, "sizes": sizes, "widths": widths, "shift": 5.0}, runs, pool)
                print(f"{title:48s} {found:8.2f}", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")
    if arguments.record:
        heads = ["data", "equal places", "groups apart", "in batches, pairs or patients, shifted"]
        note = (
            f"Share of data sets in which the test of dispersion is significant at a level of {100 * LEVEL:g}% "
            "although all groups have equal dispersion. The table shows the smallest and the largest share over "
            f"{len(shares)} designs, with {runs:,} runs of each and 199 permutations. The groups have "
            f"{', '.join(SIZES)} samples. In the column "
            '"groups apart", the centers of the groups are 0.7, 5 or 100 apart (10/10 and 6/20 samples). Designs with '
            "blocks have 15/15 samples."
        )
        write_table("dispersion", heads, summary(shares), note, folder=arguments.record)


if __name__ == "__main__":
    main()
