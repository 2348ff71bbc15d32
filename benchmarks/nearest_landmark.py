"""The nearest of many landmarks for each of many cells: heatmover against faiss's IndexFlatL2, side by side.

Cells are simulated as in cohort22m.py, a tree of curved branches with noise in every direction, or drawn from a
Gaussian, where hardly any landmark can be left out; landmarks come from one move of k-means. Both get float32 and as
many threads, in one process. Every repetition runs both in turn, and the least of each counts: wall seconds,
and CPU seconds, which tell more on a machine that does other things. heatmover's result is
compared with a plain loop in double precision on some of the cells, to the bit; faiss's with heatmover's.

    python benchmarks/nearest_landmark.py            # 3 minutes
    python benchmarks/nearest_landmark.py --small    # seconds

Without faiss (pip install faiss-cpu) its columns say so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from cohort22m import N_TYPES, cells_of_sample
from provenance import PACKAGES, add_record, usable_cores, write_table

from heatmover.graphs.centers import CenterSearch, k_means

DIMENSIONS, LANDMARKS = (8, 14, 30, 50), (1_000, 4_000, 27_000)
# Pairs of a cell and a landmark in one run.
PAIRS, SMALL_PAIRS = 4e8, 4e7
# Cells at least: for fewer, faiss 1.15 takes ten times as long for each in up to 16 dimensions, 120 microseconds.
LEAST_CELLS = 60_000
# More dimensions take longer, and faiss has one way there.
WIDE, LEAST_WIDE = 16, 15_000
# Cells of the plain loop.
LOOKED_AT = 200
# Points per landmark for the move of k-means.
PER_LANDMARK = 8

Run = Callable[[], np.ndarray]


def simulated(n_cells: int, n_dimensions: int, rng: np.random.Generator) -> np.ndarray:
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((n_dimensions, n_dimensions))).Q[:3]
    return cells_of_sample(np.full(N_TYPES, 1 / N_TYPES), n_cells, basis, 0.05, rng)[0]


def gaussian(n_cells: int, n_dimensions: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((n_cells, n_dimensions), dtype=np.float32)


def case(
    make: Callable[[int, int, np.random.Generator], np.ndarray], n_dimensions: int, n_landmarks: int, pairs: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return cells and landmarks."""
    rng = np.random.default_rng([n_dimensions, n_landmarks])
    drawn = make(PER_LANDMARK * n_landmarks, n_dimensions, rng)
    landmarks = k_means(drawn, np.ones(len(drawn), dtype=np.int64), n_landmarks, 1, rng, usable_cores())[0]
    least = LEAST_CELLS if n_dimensions <= WIDE else LEAST_WIDE
    return make(max(least, int(pairs / n_landmarks)), n_dimensions, rng), landmarks


def runs(cells: np.ndarray, landmarks: np.ndarray, threads: int) -> Iterator[tuple[str, Run]]:
    search = CenterSearch(landmarks)
    yield "heatmover", lambda: search.nearest(cells, threads)[0]
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatL2(cells.shape[1])
    index.add(landmarks.astype(np.float32))
    yield "faiss", lambda: index.search(cells, 1)[1][:, 0]


def race(contenders: dict[str, Run], repeats: int) -> tuple[dict[str, tuple[float, float]], dict[str, np.ndarray]]:
    """Return the smallest wall and CPU seconds of each method, and the landmarks that it found."""
    best = dict.fromkeys(contenders, (np.inf, np.inf))
    found = {}
    for _ in range(repeats):
        for name, run in contenders.items():
            clock, work = time.perf_counter(), time.process_time()
            found[name] = run()
            took = time.perf_counter() - clock, time.process_time() - work
            best[name] = (min(best[name][0], took[0]), min(best[name][1], took[1]))
    return best, found


def plain(cells: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
    return np.array([np.square(cell - landmarks).sum(axis=1).argmin() for cell in cells])


def report(name: str, cells: np.ndarray, landmarks: np.ndarray, threads: int, repeats: int) -> list[str]:
    """Return one row of the table."""
    best, found = race(dict(runs(cells, landmarks, threads)), repeats)
    ours = found["heatmover"]
    some = np.random.default_rng(0).choice(len(cells), LOOKED_AT, replace=False)
    same = int((plain(cells[some], landmarks) == ours[some]).sum())
    row = [name, str(cells.shape[1]), f"{len(landmarks):,}", f"{len(cells):,}"]
    row += [f"{value / len(cells) * 1e6:.2f}" for value in best["heatmover"]] + [f"{same} of {LOOKED_AT}"]
    if "faiss" not in found:
        return [*row, "not installed", "", "", "", ""]
    row += [f"{value / len(cells) * 1e6:.2f}" for value in best["faiss"]]
    row += [f"{theirs / mine:.1f}" for mine, theirs in zip(best["heatmover"], best["faiss"], strict=True)]
    return [*row, f"{100 * float((found['faiss'] == ours).mean()):.3f}%"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="fewer cells, 14 dimensions: seconds instead of minutes")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of which the best counts (5)")
    parser.add_argument("--threads", type=int, help="of both (every core)")
    add_record(parser)
    args = parser.parse_args()
    threads = args.threads or usable_cores()
    rows = []
    for name, make in (("simulated cells", simulated), ("Gaussian", gaussian)):
        for n_dimensions in (14,) if args.small else DIMENSIONS:
            for n_landmarks in LANDMARKS:
                cells, landmarks = case(make, n_dimensions, n_landmarks, SMALL_PAIRS if args.small else PAIRS)
                rows.append(report(name, cells, landmarks, threads, args.repeats))
                print(*rows[-1], sep="  ", flush=True)
    heads = [
        "", "dimensions", "landmarks", "cells", "µs per cell", "CPU µs", "as a plain loop",
        "faiss, µs per cell", "CPU µs", "times as fast", "by CPU time", "faiss agrees",
    ]  # fmt: skip
    note = (
        "heatmover and faiss run alternately, in float32 and with equally many threads, and the table shows the "
        'fastest repetition. Times are wall time and CPU time per cell, in microseconds. "As a plain loop" is the '
        "number of checked cells for which heatmover finds the landmark that a loop in double precision finds."
    )
    write_table(
        "nearest_landmark", heads, rows, note, folder=args.record, packages=(*PACKAGES, "faiss-cpu"), threads=threads
    )


if __name__ == "__main__":
    main()
