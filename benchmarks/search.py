"""Search among stored measures: exact and approximate, its growth, its recall, re-ranking, and stores under attack.

    python benchmarks/search.py million                        # 10^4 to 10^6 samples of 512 features
    python benchmarks/search.py digits --data mnist.npz        # 70,000 digits on a sphere
    python benchmarks/search.py rerank --data mnist.npz        # P@10 against the exact EMD
    python benchmarks/search.py kills                          # appends that are killed
    python benchmarks/search.py damage                         # stores that are damaged

What `million` simulates, each kind with 512 features:

- cohort: samples of 2,000 cells in 24 cell types, whose shares follow 6 hidden variables, counted at 128 landmarks and
  embedded by DiffusionEMD at four scales. Counting is noise in 127 directions, as in real cohorts.
- groups: the same, but 500 measurements of each of so many patients, which differ by their counts alone.
- curved: 8 hidden variables, of which every feature is a cosine.

Queries are new samples, not stored ones. A process that searches does nothing else, so that its peak memory is that of
the search. Times are CPU seconds, unless a head says otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from contenders import peak_megabytes
from kills import RENEWED, killed
from provenance import PACKAGES, add_record, write_table

import heatmover as hm
from heatmover._base.storage import Samples, Store
from heatmover.atlas.index.search import recall
from heatmover.errors import EmbeddingWarning, InvalidInputError

# Of digits: other programs on the machine only ever add to the work.
ROUNDS = 3
SIZES, SMALL_SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000), (2_000, 6_000, 20_000)
KINDS = ("cohort", "groups", "curved")
N_QUERIES, N_SINGLE, K = 1_000, 200, 10
N_FEATURES, N_LANDMARKS, N_TYPES, N_HIDDEN, N_CELLS, PER_PATIENT = 512, 128, 24, 6, 2_000, 500
BLOCK = 20_000
FAISS = (*PACKAGES, "faiss-cpu")

Blocks = Iterator[np.ndarray]


def cohort(n_rows: int, seed: int, per_patient: int = 1) -> Blocks:
    """Yield rows of a simulated cohort; the cells and the model are the same for every seed."""
    fixed = np.random.default_rng(0)
    types = np.arange(N_LANDMARKS) % N_TYPES
    points = 2.5 * fixed.normal(size=(N_TYPES, 10))[types] + fixed.normal(size=(N_LANDMARKS, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that cell types hang together by little, as they do
        model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=20), max_scale=7, n_scales=4).fit()
    profiles = np.exp(fixed.normal(size=(N_TYPES, N_LANDMARKS)) / 2) * (types == np.arange(N_TYPES)[:, None])
    profiles /= profiles.sum(axis=1, keepdims=True)
    loadings, level = 0.5 * fixed.normal(size=(N_HIDDEN, N_TYPES)), 0.7 * fixed.normal(size=N_TYPES)
    rng = np.random.default_rng(seed)
    for start in range(0, n_rows, BLOCK):
        size = min(BLOCK, n_rows - start)
        patients = -(-size // per_patient)
        shares = rng.normal(size=(patients, N_HIDDEN)) @ loadings + level + 0.3 * rng.normal(size=(patients, N_TYPES))
        shares = np.exp(shares)
        expected = (shares / shares.sum(axis=1, keepdims=True)) @ profiles
        counts = rng.poisson(N_CELLS * np.repeat(expected, per_patient, axis=0)[:size]).astype(float)
        yield model.transform(counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)


def curved(n_rows: int, seed: int) -> Blocks:
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    waves, phases = 0.7 * fixed.normal(size=(8, N_FEATURES)), fixed.uniform(0, 2 * np.pi, N_FEATURES)
    sizes = np.exp(0.8 * fixed.normal(size=N_FEATURES))
    for start in range(0, n_rows, BLOCK):
        inner = rng.normal(size=(min(BLOCK, n_rows - start), 8))
        yield (sizes * np.cos(inner @ waves + phases)).astype(np.float32)


def simulated(kind: str, n_rows: int, seed: int) -> Blocks:
    if kind == "curved":
        return curved(n_rows, seed)
    # New queries of patients that are stored: the same draws of shares, other counts, would need the same stream; new
    # patients are the harder case.
    return cohort(n_rows, seed, PER_PATIENT if kind == "groups" else 1)


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a process of its own, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def grow(place: str, kind: str, n_rows: int) -> None:
    """Bring a store up to so many rows."""
    path = Path(place)
    index = hm.MeasureIndex.open(path) if path.exists() else None
    done = 0
    for block in simulated(kind, n_rows, seed=1):
        first, done = done, done + len(block)
        if index is None:
            index = hm.MeasureIndex.from_embedding(block, path=path)
        elif first >= index.n_rows:
            index.add(block)
        elif done > index.n_rows:
            index.add(block[index.n_rows - first :])


def queries_of(kind: str, count: int) -> np.ndarray:
    return np.vstack(list(simulated(kind, count, seed=2)))


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, CPU seconds and wall seconds."""
    clock, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.process_time() - cpu, time.perf_counter() - clock


def approximate(place: str, kind: str, threads: int | None) -> dict[str, float]:
    """Build and search in a fresh process."""
    index = hm.MeasureIndex.open(place)
    queries = queries_of(kind, N_QUERIES)
    _, build, build_clock = timed(lambda: index.build(n_jobs=threads))
    index.nearest(queries[:10], K, method="approximate")  # compiled and warm
    found, batch, _ = timed(lambda: index.nearest(queries, K, method="approximate", n_jobs=threads))
    _, single, single_clock = timed(
        lambda: [index.nearest(queries[i : i + 1], K, method="approximate", n_jobs=1) for i in range(N_SINGLE)]
    )
    peak = peak_megabytes()
    truth, exact, _ = timed(lambda: index.nearest(queries, K, method="exact", n_jobs=threads))
    return {
        "build": build,
        "build clock": build_clock,
        "batch": batch / N_QUERIES,
        "single": single / N_SINGLE,
        "single clock": single_clock / N_SINGLE,
        "exact": exact / N_QUERIES,
        "recall": recall(found.rows, truth.rows),
        "peak": peak / 1024,
    }


def streamed(place: str, kind: str, threads: int | None) -> dict[str, float]:
    """Search exactly through a store of which 64 MB may be in memory."""
    index = hm.MeasureIndex.open(place, memory="64 MB")
    queries = queries_of(kind, 100)
    index.nearest(queries[:1], K, method="exact", n_jobs=threads)  # compiled, and every shard checked
    before = peak_megabytes()
    _, many, many_clock = timed(lambda: index.nearest(queries, K, method="exact", n_jobs=threads))
    _, _, one_clock = timed(lambda: index.nearest(queries[:1], K, method="exact", n_jobs=threads))
    return {
        "rows": index.n_rows,
        "work": many,
        "clock": many_clock,
        "one": one_clock,
        "peak": max(before, peak_megabytes()) / 1024,
    }


def million(args: argparse.Namespace) -> None:
    sizes = tuple(args.sizes or (SMALL_SIZES if args.small else SIZES))
    rows, streams, exponents = [], [], []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for kind in args.kind or KINDS:
            place, costs = str(Path(folder) / kind), []
            for size in sizes:
                in_a_process(grow, place, kind, size)
                result = in_a_process(approximate, place, kind, args.threads)
                costs.append(result["batch"])
                rows.append(
                    [
                        kind,
                        f"{size:,}",
                        f"{result['recall']:.4f}",
                        f"{1e3 * result['batch']:.3f}",
                        f"{1e3 * result['single']:.3f}",
                        f"{1e3 * result['single clock']:.3f}",
                        f"{1e3 * result['exact']:.2f}",
                        f"{result['exact'] / result['batch']:.0f}",
                        f"{result['build']:.0f}",
                        f"{result['build clock'] / 60:.1f}",
                        f"{result['peak']:.2f}",
                    ]
                )
                print(*rows[-1], flush=True)
            exponent = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
            exponents.append(f"{kind} {exponent:.2f}")
            stream = in_a_process(streamed, place, kind, args.threads)
            streams.append(
                [
                    kind,
                    f"{stream['rows']:,}",
                    f"{stream['clock']:.2f}",
                    f"{100 * stream['rows'] / stream['clock'] / 1e6:.0f}",
                    f"{stream['one']:.2f}",
                    f"{stream['peak']:.2f}",
                ]
            )
            print(*streams[-1], flush=True)
            shutil.rmtree(place)
    heads = ["", "samples", "recall@10", "ms per query, of 1,000", "one by one", "wall time", "exact, of 1,000"]
    heads += ["times as fast", "s to build", "wall minutes", "peak GB"]
    note = (
        f"{N_FEATURES} features; {N_QUERIES:,} new queries are asked at once, or {N_SINGLE} queries one by one. The "
        "time of a query grows as a power of the number of samples. The exponents, fitted over all sizes, are: "
        f"{', '.join(exponents)}. "
        '"Peak" is the peak memory of a process that opens the store, builds the graph and searches.'
    )
    write_table("search_million", heads, rows, note, packages=FAISS, folder=args.record, threads=args.threads)
    heads = ["", "samples", "s for 100 queries", "million pairs per second", "s for one", "peak GB"]
    note = (
        "Exact search in a store on disk, of which at most 64 MB are in memory at a time. Times are wall time and do "
        "not include the first check of each shard."
    )
    write_table("search_stream", heads, streams, note, folder=args.record, threads=args.threads)


def embedded_digits(args: argparse.Namespace, count: int | None) -> tuple[Any, np.ndarray]:
    """Return digits on the sphere and their embedding by the default model."""
    sys.path.append(str(Path(__file__).resolve().parent / "paper"))
    from mnist import load_mnist, spherical_mnist

    images, _ = load_mnist(args.data)
    if count is not None:
        images = images[np.sort(np.random.default_rng(0).permutation(len(images))[:count])]
    data = spherical_mnist(images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmbeddingWarning)  # that it was made compact, as it has to be
        model = hm.DiffusionEMD(hm.Graph.from_points(data.points), n_jobs=args.threads).fit(data.masses)
    return data, model.transform(data.masses)


def digits(args: argparse.Namespace) -> None:
    _, embedding = embedded_digits(args, 7_000 if args.small else None)
    n_test = len(embedding) // 7
    index = hm.MeasureIndex.from_embedding(embedding[:-n_test])
    test = embedding[-n_test:].copy()
    del embedding
    _, build, _ = timed(lambda: index.build(n_jobs=args.threads))
    rows = []
    for words, queries, step, count in (("all at once", test, len(test), n_test), ("one by one", test, 1, 200)):
        results, costs = {}, {}
        for method in ("exact", "approximate"):
            asked = count if method == "approximate" or step > 1 else 20

            def search(method: str = method, asked: int = asked, step: int = step) -> np.ndarray:
                parts = [
                    index.nearest(test[i : min(i + step, asked)], K, method=method, n_jobs=args.threads).rows  # type: ignore[arg-type]
                    for i in range(0, asked, step)
                ]
                return np.vstack(parts)

            search(asked=min(asked, 10))
            rounds = [timed(search) for _ in range(ROUNDS)]
            results[method], costs[method] = rounds[0][0], min(work for _, work, _ in rounds) / asked
        shared = min(map(len, results.values()))
        found = recall(results["approximate"][:shared], results["exact"][:shared])
        ratio = costs["exact"] / costs["approximate"]
        milliseconds = [f"{1e3 * costs[method]:.3f}" for method in ("exact", "approximate")]
        rows.append([words, f"{len(queries) if step > 1 else count:,}", *milliseconds, f"{ratio:.1f}", f"{found:.4f}"])
    heads = ["queries", "number", "exact, ms per query", "approximate", "times as fast", "recall@10"]
    note = (
        f"Queries are {n_test:,} test digits; the index holds {index.n_rows:,} other digits with {index.n_features:,} "
        f"features; k = 10. Times are CPU time of all threads, the minimum of {ROUNDS} rounds. Building the search "
        f"graph took {build:.1f} s. For single queries, the exact search is timed on 20 queries, and recall is "
        "measured on these 20 queries."
    )
    write_table("search_digits", heads, rows, note, packages=FAISS, folder=args.record, threads=args.threads)


class Truth:
    """The ten nearest by exact EMD among all images, with most images left out by lower bounds that are certain.

    The solution of one pair has a dual: a function of slope at most one whose integrals over the two measures differ by
    their distance. Its integral over any other image bounds that image's distance from below. Images are solved in the
    order of their bounds until no bound is below the tenth distance.
    """

    def __init__(self, data: Any, threads: int | None) -> None:
        import ot

        self.ot, self.data, self.threads = ot, data, threads or os.cpu_count()
        self.nodes = np.unique(data.masses.indices)
        self.masses = np.ascontiguousarray(data.masses[:, self.nodes].toarray())
        self.costs = data.geodesic(self.nodes, self.nodes)

    def solve(self, query: int, other: int) -> tuple[float, np.ndarray]:
        """Return the distance of two images and a function of slope one that shows it, over all nodes."""
        a, b = self.masses[query], self.masses[other]
        here, there = np.flatnonzero(a), np.flatnonzero(b)
        matrix = np.ascontiguousarray(self.costs[np.ix_(here, there)])
        value, log = self.ot.emd2(a[here], b[there], matrix, numItermax=10**7, log=True, return_matrix=False)
        # Of slope one whatever the dual is, for costs are distances.
        return float(value), (self.costs[:, there] - log["v"]).min(axis=1)

    def nearest(self, query: int, first: np.ndarray) -> tuple[np.ndarray, dict[int, float]]:
        """Return the ten nearest of an image, and all distances that were solved, of ``first`` among them."""
        bounds = np.zeros(len(self.masses))
        solved: dict[int, float] = {query: np.inf}
        batch = [int(other) for other in first]
        while batch:
            with ThreadPoolExecutor(self.threads) as pool:  # POT lets go of the interpreter while it solves
                results = list(pool.map(lambda other: self.solve(query, other), batch))
            solved.update(zip(batch, (value for value, _ in results), strict=True))
            duals = np.array([potential for _, potential in results])
            gains = (duals @ self.masses[query])[:, None] - duals @ self.masses.T
            bounds = np.maximum(bounds, gains.max(axis=0))
            tenth = np.partition(list(solved.values()), K - 1)[K - 1]
            bounds[list(solved)] = np.inf
            left = np.flatnonzero(bounds <= tenth * (1 + 1e-9))
            batch = left[np.argsort(bounds[left], kind="stable")][:8].tolist()
        order = sorted(solved, key=lambda other: (solved[other], other))
        return np.array(order[:K]), solved


def rerank(args: argparse.Namespace) -> None:
    n_images, n_asked = (600, 10) if args.small else (10_000, args.asked)
    data, embedding = embedded_digits(args, n_images)
    index = hm.MeasureIndex.from_embedding(embedding)
    truth = Truth(data, args.threads)
    asked = np.sort(np.random.default_rng(1).permutation(n_images)[:n_asked])
    shortlist = index.nearest([str(image) for image in asked], 50)
    start, right, n_solved = time.perf_counter(), [], 0
    for place, image in enumerate(asked.tolist()):
        best, solved = truth.nearest(image, shortlist.rows[place])
        right.append(best)
        n_solved += len(solved) - 1
        if place % 10 == 9:
            print(f"{place + 1} of {n_asked}: {n_solved / (place + 1):.0f} solved each", flush=True)
    print(f"truth: {time.perf_counter() - start:.0f} s")
    measures = data.measures()
    distance = hm.index.exact_emd(measures, data.measures(asked), data.geodesic, n_jobs=args.threads)
    rows = [["none", f"{recall(shortlist.rows[:, :K], np.array(right)):.4f}", ""]]
    for count in (20, 30, 50):
        short = hm.index.Nearest(shortlist.distances[:, :count], shortlist.rows[:, :count], shortlist.names, exact=True)
        again, work, _ = timed(lambda short=short: index.rerank(short, distance, K))
        rows.append([f"{count}", f"{recall(again.rows, np.array(right)):.4f}", f"{1e3 * work / n_asked:.0f}"])
    note = (
        f"The queries are {n_asked} digits, searched among {n_images:,} digits. The ten nearest digits by exact EMD "
        f"on the sphere are proven: {n_solved / n_asked:.0f} pairs of each query were solved exactly, and dual "
        "solutions prove that all other digits are farther."
    )
    heads = ["candidates re-ranked", "P@10 against exact EMD", "CPU ms per query"]
    write_table(
        "search_rerank", heads, rows, note, packages=(*PACKAGES, "POT"), folder=args.record, threads=args.threads
    )


def append_for_ever(say: Connection, path: Path) -> None:
    """Append 50 rows after another to a store, and send the number of rows after each append."""
    from heatmover._base.storage import Table

    store = Samples(Store.open(path))
    while True:
        first = store.n_rows
        names = [f"n{row}" for row in range(first, first + 50)]
        store = store.append(Table.checked(np.full((50, 64), first, dtype=np.float32), names))
        say.send(store.n_rows)


def kills(args: argparse.Namespace) -> None:
    """Kill appends at random moments; afterwards everything that was reported as appended is there."""
    count, rng = 5 if args.small else args.number, random.Random(0)
    lost = torn = appended = committed = 0
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        place = Path(folder) / "store"
        rows = np.zeros((50, 64), dtype=np.float32)
        for turn in range(count):
            if turn % RENEWED == 0:
                appended, place = appended + committed // 50, Path(folder) / f"{turn}.store"
                hm.MeasureIndex.from_embedding(rows, names=[f"n{row}" for row in range(50)], path=place)
            sent = killed(append_for_ever, (place,), rng)
            found = Samples(Store.open(place))
            found.store.verify()
            values = np.vstack([block for _, block in found.blocks()])
            right = np.repeat(np.arange(0, found.n_rows, 50), 50)
            whole = (values == right[:, None]).all() and list(found.names) == [f"n{i}" for i in range(found.n_rows)]
            lost += found.n_rows < sent
            torn += not whole
            committed = found.n_rows
    appended += committed // 50
    rows_ = [[f"{count:,}", f"{appended:,}", f"{lost}", f"{torn}"]]
    heads = ["kills", "appends committed", "stores that lost a committed append", "stores with half an append"]
    note = (
        "A process that repeatedly appends 50 samples is killed (SIGKILL) at a random moment, and a new process "
        f"continues. After every {RENEWED} kills a new store begins."
    )
    write_table("search_kills", heads, rows_, note, folder=args.record, threads=1)


def damage(args: argparse.Namespace) -> None:
    """Damage stores at random: each is refused, or reads as it was."""
    count, rng = 200 if args.small else 10_000, np.random.default_rng(0)
    outcomes = {"rejected": 0, "read as it was": 0, "read wrongly": 0}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        place = Path(folder) / "store"
        rows = rng.normal(size=(40, 8)).astype(np.float32)
        variables = {"age": rng.normal(size=40), "sex": ["m", None] * 20}
        parts = [{key: values[part] for key, values in variables.items()} for part in (slice(30), slice(30, 40))]
        index = hm.MeasureIndex.from_embedding(rows[:30], variables=parts[0], path=place)
        index.add(rows[30:], variables=parts[1])
        files = sorted(path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
        whole = {path: path.read_bytes() for path in files}
        right = seen(place)
        for _ in range(count):
            path = files[rng.integers(len(files))]
            damage_one(path, files, rng)
            try:
                outcomes["read as it was" if seen(place) == right else "read wrongly"] += 1
            except InvalidInputError:
                outcomes["rejected"] += 1
            for each, data in whole.items():
                if not each.exists() or each.read_bytes() != data:
                    each.write_bytes(data)
    note = (
        "In each trial, one file of a store, drawn at random, has a bit flipped, is truncated, is deleted, or is "
        "swapped with another file. Then all contents are read. If the contents are read as before, the damage "
        "affected only descriptions for other zarr readers, which heatmover does not need, or two equal files were "
        "swapped."
    )
    write_table(
        "search_damage", ["damaged stores", *outcomes], [[f"{count:,}", *map(str, outcomes.values())]], note,
        folder=args.record, threads=1,
    )  # fmt: skip


def damage_one(path: Path, files: list[Path], rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    how = rng.integers(4)
    if how == 0:
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
    elif how == 1:
        os.truncate(path, int(rng.integers(len(data))))
    elif how == 2:
        path.unlink()
    else:
        other = files[rng.integers(len(files))]
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)


def seen(place: Path) -> tuple[Any, ...]:
    """Return all that a reader sees."""
    found = Samples(Store.open(place))
    columns = {
        name: [None if value != value else value for value in values] for name, values in found.variables.items()
    }
    return list(found.names), columns, np.vstack([block for _, block in found.blocks()]).tobytes()


PARTS = {"million": million, "digits": digits, "rerank": rerank, "kills": kills, "damage": damage}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", help="an .npz with images and labels, or a folder of idx files")
    parser.add_argument("--kind", nargs="+", choices=KINDS, help="of samples to simulate (all)")
    parser.add_argument("--sizes", nargs="+", type=int, help="numbers of samples, ascending (10^4 to 10^6)")
    parser.add_argument("--asked", type=int, default=100, help="digits that are searched for when re-ranking (100)")
    parser.add_argument("--number", type=int, default=1_000, help="of kills (1,000)")
    parser.add_argument("--folder", help="where stores are made, some 3 GB (the system's folder for temporary files)")
    parser.add_argument("--small", action="store_true", help="small sizes: a minute instead of many")
    parser.add_argument("--threads", type=int, help="threads for heatmover (every core)")
    add_record(parser)
    args = parser.parse_args()
    if args.part in ("digits", "rerank") and args.data is None:
        print("left out: it needs MNIST, named with --data")
        return 0
    PARTS[args.part](args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
