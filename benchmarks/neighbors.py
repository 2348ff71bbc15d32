"""Nearest neighbours of all points among themselves: heatmover's searches against faiss, hnswlib and pynndescent.

Everyone looks for the 30 nearest others of every point, with as many threads, in a process of its own; compilation is
warmed up and not counted. What a peer may be set to, it is set to first: from coarse to fine, the first setting that
finds the wanted share of the true neighbours of a sample, or the finest; finding it is not counted. "clustered" are
cells of a simulated cohort, "Gaussian" is plain noise, the hardest that data can be. The recall is that of another
sample.

    python benchmarks/neighbors.py --small       # a minute
    python benchmarks/neighbors.py --record      # 100,000 points and a million
    python benchmarks/neighbors.py --points 3000000 --dimensions 8 --only heatmover
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from contenders import in_fresh_process, peak_megabytes, start_of_peak
from provenance import PACKAGES, add_record, usable_cores, write_table

K = 30
RECALL = 0.99
SAMPLE = 500
# The nearest of a point is the point itself.
WITH_SELF = K + 1

Points = np.ndarray
Answer = np.ndarray
Search = Callable[[np.ndarray, int], Answer]


@dataclass(frozen=True)
class Method:
    """A package to import, settings from coarse to fine, their name, and what builds a search.

    ``build(points, threads)`` returns a function of rows and a setting that returns their neighbours, ``(n_rows, K)``;
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
    from heatmover.graphs.search.choose import k_nearest

    def search(_: np.ndarray, setting: int) -> Answer:
        algorithm = "descent" if setting else "auto"
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


def sample_of(points: Points, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(points), min(SAMPLE, len(points)), replace=False)


def recall(points: Points, rows: np.ndarray, answer: Answer) -> float:
    """Return the share of the true neighbours of some points that were found, in full precision."""
    hits = 0
    for row, found in zip(rows, answer, strict=True):
        squares = ((points - points[row]) ** 2).sum(axis=1)
        squares[row] = np.inf
        limit = np.partition(squares, K - 1)[K - 1]
        hits += int((squares[found] <= limit * (1 + 1e-9)).sum())
    return hits / (K * rows.size)


class Clock:
    """Adds up CPU seconds and seconds on the clock of what runs inside."""

    def __init__(self) -> None:
        self.cpu = self.clock = 0.0

    def __enter__(self) -> Clock:
        self.cpu -= sum(os.times()[:2])
        self.clock -= time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += sum(os.times()[:2])
        self.clock += time.perf_counter()


def measure(name: str, kind: str, n_points: int, n_dimensions: int) -> dict[str, object]:
    return in_fresh_process(_child, name, kind, n_points, n_dimensions)


def _child(sender, name: str, kind: str, n_points: int, n_dimensions: int) -> None:
    method, threads = METHODS[name], usable_cores()
    points = make_points(kind, n_points, n_dimensions)
    few = points[:: -(-n_points // 12_000)]
    for setting in (0, 1) if name == "heatmover" else method.settings[:1]:  # imports, and compiles
        method.build(few, threads)(np.arange(len(few)), setting)
    before = start_of_peak()
    with Clock() as build:
        search = method.build(points, threads)
    everyone, tuning = np.arange(n_points), sample_of(points, 1)
    for setting in method.settings:
        rows = everyone if method.is_whole else tuning
        with Clock() as work:
            answer = search(rows, setting)
        is_last = setting == method.settings[-1]
        if is_last or recall(points, tuning, answer[tuning] if method.is_whole else answer) >= RECALL:
            break
    if not method.is_whole:
        with Clock() as work:
            answer = search(everyone, setting)
    told = sample_of(points, 2)  # not the one that has chosen the setting
    sender.send(
        {
            "setting": method.word if len(method.settings) == 1 else f"{method.word} = {setting}",
            "cpu": build.cpu + work.cpu,
            "clock": build.clock + work.clock,
            "peak": peak_megabytes() - before,
            "recall": recall(points, told, answer[told]),
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
    for kind, n_points, n_dimensions in cases(args):
        for name in args.only or METHODS:
            title = [kind, f"{n_dimensions}", f"{n_points:,}", name]
            if importlib.util.find_spec(METHODS[name].package) is None:
                yield [*title, "not installed", *[""] * 4]
                continue
            found = measure(name, kind, n_points, n_dimensions)
            figures = [f"{found['cpu']:.1f}", f"{found['clock']:.1f}", f"{found['recall']:.4f}", f"{found['peak']:.0f}"]
            yield [*title, str(found["setting"]), *figures]
            print(*title, found["setting"], *figures, sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="up to 20,000 points: a minute")
    parser.add_argument("--points", type=int, nargs="+", help="how many points, instead of 100,000 and a million")
    parser.add_argument("--dimensions", type=int, nargs="+", help="of the clustered points, instead of 8, 14, 30, 50")
    parser.add_argument("--only", nargs="+", choices=METHODS, help="methods to run")
    add_record(parser)
    args = parser.parse_args()
    heads = ["data", "dimensions", "points", "method", "setting", "CPU s", "clock s", "recall", "peak MB"]
    note = (
        f"{K} nearest others of every point, all from the points to the answer; a peer's setting is the first of its "
        f"list with a recall of {RECALL} on a sample, or its last. faiss and hnswlib build HNSW with M = 16 and "
        "efConstruction = 100, IVF has 4 sqrt(n) lists. heatmover's answer comes with distances in float64."
    )
    packages = (*PACKAGES, "faiss-cpu", "hnswlib", "pynndescent")
    write_table("neighbors", heads, list(rows(args)), note, folder=args.record, packages=packages)


if __name__ == "__main__":
    main()
