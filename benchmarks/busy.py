"""What a busy neighbor costs: each stage alone, and beside a process that keeps one core busy.

Of two cores such a process takes half of one, so that work which shares both fairly takes 1.33 times as long, and work
on one core up to twice. More than about 2.5 says that threads wait for each other: with a core busy, the last to arrive
at every meeting waits for a time slice.

    python benchmarks/busy.py                # all stages, alone and beside, in turn
    python benchmarks/busy.py --only tests   # those whose names hold the word
    python benchmarks/busy.py --small        # sizes for a first look
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import numpy as np
from provenance import add_record, write_table
from scipy.spatial.distance import cdist

import heatmover as hm

MOST = 2.5
# Ends by itself, should nobody end it.
NEIGHBOR = "import time; end = time.monotonic() + 600\nwhile time.monotonic() < end: pass"

Stage = Callable[[], object]


def tests_of_variables(n_samples: int) -> Stage:
    rng = np.random.default_rng(0)
    places = rng.normal(size=(n_samples, 8))
    distances = cdist(places, places)
    variables = {
        "group": rng.choice(list("ab"), n_samples).tolist(),
        "site": rng.choice(list("abcd"), n_samples).tolist(),
        "age": rng.normal(size=n_samples).tolist(),
        "dose": rng.gamma(2.0, size=n_samples).tolist(),
    }
    return lambda: hm.examine(distances, variables)


def adjusted_tests(n_samples: int) -> Stage:
    rng = np.random.default_rng(1)
    places = rng.normal(size=(n_samples, 8))
    distances, age = cdist(places, places), rng.normal(size=n_samples).tolist()
    variables = {"group": rng.choice(list("ab"), n_samples).tolist(), "dose": rng.normal(size=n_samples).tolist()}
    return lambda: hm.examine(distances, variables, adjust={"age": age})


def maps(n_samples: int) -> Stage:
    places = np.random.default_rng(4).normal(size=(n_samples, 8))
    distances = cdist(places, places)
    return lambda: (hm.manifold.classical_scaling(distances), hm.manifold.diffusion_map(distances))


def comparison(n_cells: int) -> Stage:
    data = hm.datasets.cohort(20, cells_per_sample=n_cells // 20, random_state=0)
    return lambda: hm.compare(data.points, data.labels, bias="corrected")


def nearest_landmark(n_cells: int, n_landmarks: int) -> Stage:
    points = np.random.default_rng(2).normal(size=(n_cells, 8))
    landmarks = hm.Landmarks.from_points(points[: 20 * n_landmarks], n_landmarks, random_state=0)
    return lambda: landmarks.assign(points)


def graph(n_points: int) -> Stage:
    points = np.random.default_rng(3).normal(size=(n_points, 8))
    return lambda: hm.Graph.from_points(points)


def stages(*, small: bool) -> dict[str, Callable[[], Stage]]:
    """Return what makes each stage, by name: the data of one are gone before those of the next are made."""
    part = 10 if small else 1
    return {
        "tests of 4 variables, 200 samples": lambda: tests_of_variables(200),
        "tests of 4 variables, 1,000 samples": lambda: tests_of_variables(1_000 // part),
        "tests of 2 variables adjusted for a third, 200 samples": lambda: adjusted_tests(200),
        "maps of 300 samples": lambda: maps(300),
        "compare 20 samples of 10,000 cells": lambda: comparison(10_000 // part),
        "nearest of 2,000 landmarks, 200,000 cells": lambda: nearest_landmark(200_000 // part, 2_000 // part),
        "graph of 50,000 points": lambda: graph(50_000 // part),
    }


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy."""
    neighbor = subprocess.Popen([sys.executable, "-c", NEIGHBOR])
    try:
        time.sleep(0.3)  # until it is
        yield
    finally:
        neighbor.kill()
        neighbor.wait()


def seconds(run: Stage) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(run: Stage, rounds: int) -> tuple[float, float, float]:
    """Return the median seconds alone and beside, rounds of both in turn, and the CPU seconds of one run."""
    run()  # compiles, and fills the caches
    alone, beside = [], []
    for _ in range(rounds):
        alone.append(seconds(run))
        with busy_core():
            beside.append(seconds(run))
    before = time.process_time()
    run()
    return median(alone), median(beside), time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="stages whose names hold this")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts (5)")
    parser.add_argument("--small", action="store_true", help="small sizes: whether it runs, not the figures")
    add_record(parser)
    args = parser.parse_args()
    rows = []
    for name, make in stages(small=args.small).items():
        if args.only not in name:
            continue
        alone, beside, work = measure(make(), args.rounds)
        verdict = "" if beside / alone <= MOST else "waits"
        rows.append([name, f"{alone:.3f}", f"{work:.3f}", f"{beside:.3f}", f"{beside / alone:.2f}", verdict])
        print(" | ".join(rows[-1]), flush=True)
    heads = ["stage", "seconds alone", "CPU seconds", "next to a busy core", "ratio", f"above {MOST}"]
    note = (
        f"Medians of {args.rounds} rounds. In each round, each stage ran first alone and then while another process "
        "kept one core busy. CPU seconds are summed over all cores."
    )
    write_table("busy", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
