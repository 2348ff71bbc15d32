"""Nearest neighbors of all points among themselves: heatmover's searches against faiss, hnswlib and pynndescent.

Everyone looks for the 30 nearest others of every point, with as many threads, in a process of its own; compilation is
warmed up and not counted. What a peer may be set to, it is set to first: from cheap to dear, the first setting that
finds 0.99 of the true neighbors of a sample, or the dearest; finding it is not counted. So a peer takes the least
that its list of settings can for the recall that heatmover promises. "clustered" are cells of a simulated cohort,
"Gaussian" is plain noise, the hardest that data can be. The recall is that of another sample. Nobody gets more than
--limit seconds, the search for a setting included.

    python benchmarks/neighbors.py --small                                    # a minute
    python benchmarks/neighbors.py --points 100000 --record                   # some 10 minutes on two idle cores
    python benchmarks/neighbors.py --points 1000000 --dimensions 8 14         # heatmover, IVF and hnswlib
    python benchmarks/neighbors.py --points 10000000 --dimensions 8 --only heatmover
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from contenders import in_fresh_process, peak_megabytes, start_of_peak
from provenance import PACKAGES, add_record, usable_cores, write_table

K = 30
RECALL = 0.99
SAMPLE = 500
# Of more points only the peers are run that build in minutes.
MANY = 500_000
FOR_MANY = ("heatmover", "faiss IVF", "hnswlib")
LIMIT = 300
# The nearest of a point is the point itself.
WITH_SELF = K + 1

Points = np.ndarray
Answer = np.ndarray
Search = Callable[[np.ndarray, int], Answer]


@dataclass(frozen=True)
class Method:
    """A package to import, settings from coarse to fine, their name, and what builds a search.

    ``build(points, threads)`` returns a function of rows and a setting that returns their neighbors, ``(n_rows, K)``;
    if ``is_whole``, of all points whichever rows are given.
    """

    package: str
    settings: tuple[int, ...]
    word: str
    build: Callable[[Points, int], Search]
    is_whole: bool = False


def without_self(found: np.ndarray, rows: np.ndarray) -> Answer:
    """Drop each point from its own answer, or the last one where it is not in it."""
    mask = found != rows[:, None]
    mask[mask.all(axis=1), -1] = False
    return found[mask].reshape(len(found), -1)[:, :K]


def heatmover_search(points: Points, threads: int) -> Search:
    from heatmover.graphs.neighbors import k_nearest

    def search(_: np.ndarray, setting: int) -> Answer:
        algorithm = "approximate" if setting else "auto"
        support = k_nearest(points, K, algorithm=algorithm, rng=np.random.default_rng(0), n_threads=threads)
        return support.distances.indices[support.distances.indptr[:-1, None] + np.arange(K)]

    return search


def faiss_inverted(points: Points, threads: int) -> Search:
    import faiss

    faiss.omp_set_num_threads(threads)
    single = points.astype(np.float32)
    n_lists = round(4 * len(points) ** 0.5)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(points.shape[1]), points.shape[1], n_lists)
    index.train(single[np.random.default_rng(0).permutation(len(single))[: 50 * n_lists]])
    index.add(single)

    def search(rows: np.ndarray, setting: int) -> Answer:
        index.nprobe = setting
        return without_self(index.search(single[rows], WITH_SELF)[1], rows)

    return search


def faiss_graph(points: Points, threads: int) -> Search:
    import faiss

    faiss.omp_set_num_threads(threads)
    single = points.astype(np.float32)
    index = faiss.IndexHNSWFlat(points.shape[1], 16)
    index.hnsw.efConstruction = 100
    index.add(single)

    def search(rows: np.ndarray, setting: int) -> Answer:
        index.hnsw.efSearch = setting
        return without_self(index.search(single[rows], WITH_SELF)[1], rows)

    return search


def hnswlib_graph(points: Points, threads: int) -> Search:
    import hnswlib

    index = hnswlib.Index(space="l2", dim=points.shape[1])
    index.init_index(max_elements=len(points), M=16, ef_construction=100, random_seed=0)
    index.set_num_threads(threads)
    index.add_items(points)

    def search(rows: np.ndarray, setting: int) -> Answer:
        index.set_ef(setting)
        return without_self(index.knn_query(points[rows], WITH_SELF)[0].astype(np.int64), rows)

    return search


def pynndescent_graph(points: Points, threads: int) -> Search:
    import pynndescent

    def search(_: np.ndarray, setting: int) -> Answer:
        single = points.astype(np.float32)
        index = pynndescent.NNDescent(single, n_neighbors=setting, random_state=0, n_jobs=threads)
        return without_self(index.neighbor_graph[0], np.arange(len(points)))

    return search


METHODS = {
    "heatmover": Method("heatmover", (0,), "auto", heatmover_search, is_whole=True),
    "faiss IVF": Method("faiss", (4, 8, 16, 32, 64, 128, 256), "nprobe", faiss_inverted),
    "faiss HNSW": Method("faiss", (32, 64, 128, 256, 512), "efSearch", faiss_graph),
    "hnswlib": Method("hnswlib", (32, 64, 128, 256, 512), "ef", hnswlib_graph),
    "pynndescent": Method("pynndescent", (31, 40, 60, 90), "n_neighbors", pynndescent_graph, is_whole=True),
}


def make_points(kind: str, n_points: int, n_dimensions: int) -> Points:
    if kind == "Gaussian":
        return np.random.default_rng(0).normal(size=(n_points, n_dimensions))
    import heatmover as hm

    points = hm.datasets.cohort(16, cells_per_sample=-(-n_points // 16), n_dimensions=n_dimensions).points[:n_points]
    return np.random.default_rng(1).permutation(points)


def samples_of(n_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points that choose a setting, and others that tell the recall."""
    size = min(SAMPLE, n_points // 2)
    chosen = np.random.default_rng(1).choice(n_points, 2 * size, replace=False)
    return chosen[:size], chosen[size:]


def true_limits(sender, kind: str, n_points: int, n_dimensions: int) -> None:
    """Send the squared distance of the last true neighbor of both samples' points, in full precision."""
    points = make_points(kind, n_points, n_dimensions)
    norms = np.einsum("ij,ij->i", points, points)
    limits = []
    for row in np.concatenate(samples_of(n_points)):
        scores = norms - 2 * (points @ points[row])
        # A product loses digits, so that a few more are looked at again.
        near = np.argpartition(scores, 2 * K)[: 2 * K]
        squares = np.sort(((points[near[near != row]] - points[row]) ** 2).sum(axis=1))
        limits.append(squares[K - 1])
    sender.send(np.array(limits))


def recall(points: Points, rows: np.ndarray, answer: Answer, limits: np.ndarray) -> float:
    """Return the share of the true neighbors of some points that were found."""
    squares = ((points[answer] - points[rows][:, None]) ** 2).sum(axis=2)
    return float((squares <= limits[:, None] * (1 + 1e-9)).mean())


class Clock:
    """Adds up CPU seconds and wall seconds of what runs inside."""

    def __init__(self) -> None:
        self.cpu = self.clock = 0.0

    def __enter__(self) -> Clock:
        self.cpu -= sum(os.times()[:2])
        self.clock -= time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += sum(os.times()[:2])
        self.clock += time.perf_counter()


def measure(name: str, case: tuple[str, int, int], limits: np.ndarray, seconds: int) -> dict[str, object] | None:
    """Return what a method takes and finds; None if it was stopped."""
    try:
        return in_fresh_process(_child, name, case, limits, seconds)
    except EOFError:
        return None


def _child(sender, name: str, case: tuple[str, int, int], limits: np.ndarray, seconds: int) -> None:
    method, threads, n_points = METHODS[name], usable_cores(), case[1]
    points = make_points(*case)
    few = points[:: -(-n_points // 12_000)]
    for setting in (0, 1) if name == "heatmover" else method.settings[:1]:  # imports, and compiles
        method.build(few, threads)(np.arange(len(few)), setting)
    signal.alarm(seconds)  # it ends the process, whatever that computes
    before = start_of_peak()
    with Clock() as build:
        search = method.build(points, threads)
    everyone, (tuning, told) = np.arange(n_points), samples_of(n_points)
    for setting in method.settings:
        rows = everyone if method.is_whole else tuning
        with Clock() as work:
            answer = search(rows, setting)
        here = answer[tuning] if method.is_whole else answer
        if recall(points, tuning, here, limits[: tuning.size]) >= RECALL:
            break
    if not method.is_whole:
        with Clock() as work:
            answer = search(everyone, setting)
    sender.send(
        {
            "setting": method.word if len(method.settings) == 1 else f"{method.word} = {setting}",
            "cpu": build.cpu + work.cpu,
            "clock": build.clock + work.clock,
            "peak": peak_megabytes() - before,
            "recall": recall(points, told, answer[told], limits[tuning.size :]),
        }
    )


def cases(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    for n_points in args.points or ([20_000] if args.small else [100_000, 1_000_000]):
        for n_dimensions in args.dimensions or ([8, 30] if args.small else [8, 14, 30, 50]):
            yield "clustered", n_points, n_dimensions
    if not args.points and not args.dimensions:
        for n_dimensions in (8, 30):
            yield "Gaussian", 10_000 if args.small else 100_000, n_dimensions


def rows(args: argparse.Namespace) -> Iterator[list[str]]:
    for case in cases(args):
        kind, n_points, n_dimensions = case
        limits = in_fresh_process(true_limits, *case)
        for name in args.only or (METHODS if n_points < MANY else FOR_MANY):
            row = [kind, f"{n_dimensions}", f"{n_points:,}", name, *figures(name, case, limits, args.limit)]
            print(*row, sep="  ", flush=True)
            yield row


def figures(name: str, case: tuple[str, int, int], limits: np.ndarray, seconds: int) -> list[str]:
    """Return a method's setting, CPU seconds, seconds, recall and memory as words."""
    if importlib.util.find_spec(METHODS[name].package) is None:
        return ["not installed", *[""] * 4]
    found = measure(name, case, limits, seconds)
    if found is None:
        return [f"stopped after {seconds} s", *[""] * 4]
    times = f"{found['cpu']:.1f}", f"{found['clock']:.1f}"
    return [str(found["setting"]), *times, f"{found['recall']:.4f}", f"{found['peak']:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="up to 20,000 points: a minute")
    parser.add_argument("--points", type=int, nargs="+", help="how many points, instead of 100,000 and a million")
    parser.add_argument("--dimensions", type=int, nargs="+", help="of the clustered points, instead of 8, 14, 30, 50")
    parser.add_argument("--only", nargs="+", choices=METHODS, help="methods to run")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds for one method on one kind of points")
    add_record(parser)
    args = parser.parse_args()
    heads = ["data", "dimensions", "points", "method", "setting", "CPU s", "wall s", "recall", "peak MB"]
    note = (
        f"Time from the points to the {K} nearest other points of every point. For other libraries, the table shows "
        f"the cheapest setting in our list that reaches a recall of {RECALL} on a random subset of the points. If no "
        "setting reaches this recall, it shows the most expensive setting. faiss and hnswlib build HNSW with M = 16 "
        "and efConstruction = 100; IVF has 4 sqrt(n) lists. heatmover returns distances in float64."
    )
    packages = (*PACKAGES, "faiss-cpu", "hnswlib", "pynndescent")
    write_table("neighbors", heads, list(rows(args)), note, folder=args.record, packages=packages)


if __name__ == "__main__":
    main()
