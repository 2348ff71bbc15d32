"""How close every stage comes to what the machine can do: time, bytes, operations, and the share of the limit reached.

The machine is measured first, in the same run: a triad (a = b + s c, float64, three arrays counted) in arrays that fit
the second-level cache, the last-level cache, or neither, and a loop of fused multiply-adds in float32 that touches no
memory, each with one thread and with all. A stage's limit is the time that its bytes take at the speed of the cache
that holds what it works on, or its operations at the speed of multiply-adds, whichever is longer; the share reached is
the limit over the time on the clock. Bytes and operations are counted from sizes (see each stage), as what the
algorithm cannot do without: every input read once and every result written once per pass. For searches (neighbors,
nearest landmark, nearest rows in L1) the operations are those of comparing all pairs: a share above 100% says that
most pairs were left out. Each time is the best of several runs, after one that is not counted.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit
from provenance import add_record, usable_cores, write_table

import heatmover as hm
from heatmover.diffusion.lowrank import spectral_factors
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator
from heatmover.diffusion.scales import PROBES, SAMPLE, choose_max_scale
from heatmover.embedding.definition import FeatureTable, Layout, combination, embed
from heatmover.statistics import distance_correlation, permanova

# Where the system does not tell.
USUAL_CACHES = {2: 2**20, 3: 2**25}
# Bytes that a run of the triad moves: a tenth of a second of memory.
MOVED = 1e9
# Columns that diffuse together.
BLOCK = 64
INDEX, SINGLE, DOUBLE = 4, 4, 8


@njit(nogil=True, fastmath={"contract"})
def triad(out, left, right, factor, rounds):  # type: ignore[no-untyped-def]
    """Write left + factor * right, again and again."""
    for _ in range(rounds):
        for i in range(out.size):
            out[i] = left[i] + factor * right[i]


@njit(nogil=True, fastmath={"contract"})
def multiply_adds(values, factor, one, rounds, out):  # type: ignore[no-untyped-def]
    """Take 64 multiply-adds for each value, in eight chains that do not wait for each other."""
    for _ in range(rounds):
        for i in range(values.size):
            v = values[i]
            a, b, c, d = v, v + one, v - one, v * factor
            e, f, g, h = a * factor + one, b * factor, c * factor, d * factor
            for _ in range(8):  # so few that the compiler writes them out
                a = a * factor + v
                b = b * factor + v
                c = c * factor + v
                d = d * factor + v
                e = e * factor + v
                f = f * factor + v
                g = g * factor + v
                h = h * factor + v
            out[i] = a + b + c + d + e + f + g + h


def at_once(tasks: Sequence[Callable[[], None]]) -> float:
    """Return the seconds that tasks take, each in a thread of its own: the best of 15 times, after one."""
    best = np.inf
    with ThreadPoolExecutor(len(tasks)) as pool:
        for number in range(16):
            start = time.perf_counter()
            for future in [pool.submit(task) for task in tasks]:
                future.result()
            best = min(best, time.perf_counter() - start) if number else np.inf
    return best


def bandwidth(size: float, threads: int) -> float:
    """Return the bytes that the triad moves in a second, with arrays of ``size`` bytes in all for each thread."""
    count = int(size) // (3 * DOUBLE)
    rounds = max(1, round(MOVED / (3 * DOUBLE * count)))
    arrays = [tuple(np.ones(count) for _ in range(3)) for _ in range(threads)]
    seconds = at_once([partial(triad, *three, 0.5, rounds) for three in arrays])
    return threads * rounds * 3 * DOUBLE * count / seconds


def operations(threads: int) -> float:
    """Return the operations of a second, two for each multiply-add."""
    rounds, values = 4_000, np.ones(1024, dtype=np.float32)
    task = partial(multiply_adds, values, np.float32(0.5), np.float32(1), rounds)
    seconds = at_once([partial(task, np.empty_like(values)) for _ in range(threads)])
    return threads * rounds * 1024 * (2 * 64) / seconds


def caches() -> dict[int, int]:
    """Return the bytes of the second- and third-level cache of the first core."""
    found = dict(USUAL_CACHES)
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, size = (folder / "level").read_text().strip(), (folder / "size").read_text().strip()
        if int(level) in found and size.endswith("K"):
            found[int(level)] = 1024 * int(size[:-1])
    return found


@dataclass(frozen=True)
class Machine:
    """Bytes per second by what holds them, and operations per second."""

    threads: int
    caches: dict[int, int]
    speeds: dict[str, float]
    operations: float

    @classmethod
    def measure(cls, threads: int) -> Machine:
        sizes = caches()
        inside = {"L2": sizes[2] / 2, "L3": min(sizes[3] / 2 / threads, 8 * sizes[2]), "memory": 4 * sizes[3]}
        speeds = {name: bandwidth(size, threads) for name, size in inside.items()}
        return cls(threads, sizes, speeds, operations(threads))

    def holder(self, working: float) -> str:
        """Return what holds so many bytes, which all threads work on together."""
        if working <= self.threads * self.caches[2]:
            return "L2"
        return "L3" if working <= self.caches[3] else "memory"

    def row(self) -> list[str]:
        return [
            f"{self.threads}",
            *(f"{self.speeds[name] / 1e9:.0f}" for name in self.speeds),
            f"{self.operations / 1e9:.0f}",
        ]


@dataclass(frozen=True)
class Stage:
    """What is run, and what it has to do at least.

    Attributes
    ----------
    name, size
        In words.
    run
        The stage itself.
    moved, working
        Bytes read and written, and bytes worked on again and again, which decide where they are held.
    done
        Operations: additions and multiplications.
    double
        Whether they are in float64, of which a machine does half as many.
    """

    name: str
    size: str
    run: Callable[[], object]
    moved: float
    working: float
    done: float
    double: bool = False

    def row(self, machine: Machine, repeats: int) -> list[str]:
        clock, work = timed(self.run, repeats)
        holder = machine.holder(self.working)
        by_bytes = self.moved / machine.speeds[holder]
        by_operations = self.done * (2 if self.double else 1) / machine.operations
        limit = max(by_bytes, by_operations)
        decided = f"bandwidth of {holder}" if by_bytes >= by_operations else "operations"
        print(f"{self.name:28s} {clock:8.4f} s   limit {limit:8.4f} s   {100 * limit / clock:6.1f}%", flush=True)
        figures = f"{1e3 * clock:.1f}", f"{1e3 * work:.1f}", f"{self.moved / 1e6:,.0f}", f"{self.done / 1e6:,.0f}"
        return [self.name, self.size, *figures, decided, f"{1e3 * limit:.1f}", f"{100 * limit / clock:.0f}%"]


def timed(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return wall and CPU seconds of the fastest run."""
    run()
    best = np.inf, np.inf
    for _ in range(repeats):
        clock, work = time.perf_counter(), time.process_time()
        run()
        best = min(best, (time.perf_counter() - clock, time.process_time() - work))
    return best


class Problem:
    """One graph of a swiss roll, measures on it, and everything that stages start from."""

    def __init__(self, scale: float, threads: int) -> None:
        self.threads = threads
        self.rng = np.random.default_rng(0)
        self.n_measures, per_measure = 100, int(200 * scale)
        data = hm.datasets.swiss_roll(self.n_measures, points_per_measure=per_measure, random_state=0)
        self.points = data.points
        self.n_points, self.n_dimensions = data.points.shape
        self.graph = hm.Graph.from_points(data.points)
        self.operator = DiffusionOperator.from_graph(self.graph)
        self.n_edges = self.operator.symmetric.nnz
        self.rows = self.graph.gather(data.measures().masses)
        self.scales = range(self._choose().max_scale + 1)
        self.many = self._sparse_measures(int(20_000 * scale**0.5))

    def _choose(self):  # type: ignore[no-untyped-def]
        return choose_max_scale(self.operator, self.rows, np.random.default_rng(0), n_threads=self.threads)

    def _sparse_measures(self, count: int) -> sp.csr_array:
        """Each of 50 points that follow each other along the roll."""
        order = np.argsort(self.points[:, 0])
        starts = self.rng.integers(0, self.n_points - 400, size=count)
        places = order[starts[:, None] + np.sort(self.rng.integers(0, 400, size=(count, 50)), axis=1)]
        matrix = sp.csr_array((np.full(50 * count, 1 / 50), places.ravel(), np.arange(0, 50 * count + 1, 50)))
        matrix.resize((count, self.n_points))
        matrix.sum_duplicates()
        return matrix

    @cached_property
    def diffuser(self) -> ChebyshevDiffuser:
        return self.diffuser_of(adjoint=True)

    def diffuser_of(self, *, adjoint: bool) -> ChebyshevDiffuser:
        operator = self.operator.astype(np.float32)
        return ChebyshevDiffuser(operator, adjoint=adjoint, tol=1e-3, dtype=np.float32)

    @cached_property
    def model(self) -> hm.DiffusionEMD:
        """A compact embedding, looked up in a table."""
        return hm.DiffusionEMD(self.graph, max_scale=self.scales[-1], compress=0.1, n_jobs=self.threads).fit(self.many)

    @cached_property
    def embedding(self) -> np.ndarray:
        return self.model.transform(self.many)

    def recurrence(self, width: int, degrees: Sequence[int]) -> tuple[float, float, float]:
        """Return bytes, bytes worked on and operations of polynomials of such degrees on so many columns.

        Every step reads the matrix for each block of 64 columns, reads two blocks and writes one; every second step
        reads and writes the sum of each polynomial that is not complete.
        """
        n_blocks, longest, column = -(-width // BLOCK), max(degrees), self.n_points * SINGLE
        matrix = self.n_edges * (SINGLE + INDEX)
        moved = longest * (n_blocks * matrix + 3 * width * column) + sum(degrees) * width * column
        working = self.threads * min(width, BLOCK) * column * (2 + len(degrees)) + matrix
        done = width * (longest * (2 * self.n_edges + 3 * self.n_points) + 2 * sum(degrees) * self.n_points)
        return moved, working, done

    def stages(self) -> list[Stage]:
        return [
            self.neighbors(),
            self.making_operator(),
            self.choice(),
            self.diffusion(),
            self.basis(),
            self.table(),
            self.lookup(),
            *self.distances(),
            self.nearest_rows(),
            self.landmarks(),
            *self.tests(),
        ]

    def neighbors(self) -> Stage:
        lists = self.n_edges * (DOUBLE + INDEX)
        given = self.points.nbytes
        return Stage(
            "neighbors and affinities",
            f"{self.n_points:,} points, {self.n_dimensions}-D",
            lambda: hm.Graph.from_points(self.points, n_jobs=self.threads),
            given + lists,
            given,
            2.0 * self.n_dimensions * self.n_points**2,
            double=True,
        )

    def making_operator(self) -> Stage:
        matrix = self.n_edges * (DOUBLE + INDEX)
        size = f"{self.n_edges:,} affinities"
        return Stage(
            "operator", size, lambda: DiffusionOperator.from_graph(self.graph), 2 * matrix, 2 * matrix, 2 * self.n_edges
        )

    def choice(self) -> Stage:
        """The probes diffuse by one recurrence to the scale that is found."""
        width = SAMPLE + PROBES
        work = self.recurrence(width, [self.diffuser.degree(scale) for scale in self.scales])
        return Stage("choice of scales", f"{width} probes to 2^{self.scales[-1]}", self._choose, *work)

    def diffusion(self) -> Stage:
        layout = Layout(self.scales, combination(self.scales, alpha=0.5, norm="levels"), self.n_points)
        moved, working, done = self.recurrence(self.n_measures, [self.diffuser.degree(scale) for scale in self.scales])
        result = self.n_measures * layout.n_features * SINGLE

        def run() -> object:
            return embed(self.diffuser, self.rows, layout, dtype=np.float32, n_threads=self.threads)

        size = f"{self.n_measures} measures to 2^{self.scales[-1]}"
        return Stage("diffusion by the recurrence", size, run, moved + 2 * result, working, done + 2 * result / SINGLE)

    def basis(self) -> Stage:
        """Two passes: a filter, an orthonormal basis, its image, and the rotation to eigenvectors."""
        first = self.scales[-1]

        def factors(rank: int) -> Any:
            rng = np.random.default_rng(0)
            return spectral_factors(self.operator, first, rank, tol=1e-3, rng=rng, last=18, n_threads=self.threads)

        # As `fit` does, start with about as many vectors as there are in the end.
        width = factors(int(self.n_points**0.5))[0].rank
        steps = 2 * self.diffuser.degree(first)
        moved, working, done = self.recurrence(width, [steps])
        dense = 2 * (4 + 2 + 2) * self.n_points * width**2  # twice: orthonormal basis, small matrix, rotation
        size = f"{width} eigenvectors, 2^{first} to 2^18"
        return Stage("low-rank basis", size, lambda: factors(width), moved, working, done + dense)

    def table(self) -> Stage:
        """Every feature is one column that diffuses to its own scale."""
        layout, transposed = self.model.prepared_.layout, self.diffuser_of(adjoint=False)
        assert layout.regions is not None
        works = [
            self.recurrence(regions.count, [self.diffuser.degree(scale)])
            for regions, scale in zip(layout.regions, layout.scales, strict=True)
        ]
        moved, working, done = sum(w[0] for w in works), max(w[1] for w in works), sum(w[2] for w in works)

        def run() -> object:
            return FeatureTable(transposed, layout, dtype=np.float32, n_threads=self.threads)

        return Stage("table of features, made", f"{layout.n_features:,} features", run, moved, working, done)

    def lookup(self) -> Stage:
        """Every mass meets what its point has of every feature, and every row of the result is written."""
        table = self.model.prepared_.table
        assert table is not None
        masses = self.graph.gather(self.many)
        met = table.values_met(masses)
        moved = SINGLE * met + self.many.shape[0] * table.n_features * SINGLE
        size = f"{masses.shape[0]:,} measures of 50 points"
        return Stage(
            "table of features, used", size, lambda: table.rows(masses, n_threads=self.threads), moved, moved, 2.0 * met
        )

    def distances(self) -> list[Stage]:
        """A subtraction, an absolute value and an addition for each feature of each pair."""
        stages = []
        for n_rows, n_features in ((100, 60_000), (1_000, 20_000)):
            rows = self.rng.normal(size=(n_rows, n_features)).astype(np.float32)
            stages.append(
                Stage(
                    "L1, all pairs",
                    f"{n_rows:,} x {n_features:,}",
                    lambda rows=rows: hm.pairwise_distances(rows, n_jobs=self.threads),
                    rows.nbytes,
                    rows.nbytes,
                    1.5 * n_rows * (n_rows - 1) * n_features,
                )
            )
        return stages

    def nearest_rows(self) -> Stage:
        rows = self.embedding
        pairs = len(rows) * (len(rows) - 1) / 2
        size = f"{rows.shape[0]:,} x {rows.shape[1]:,}"
        return Stage(
            "L1, nearest", size, lambda: hm.nearest(rows, k=1, n_jobs=self.threads), rows.nbytes, rows.nbytes,
            3 * pairs * rows.shape[1],
        )  # fmt: skip

    def landmarks(self) -> Stage:
        n_landmarks, n_cells, n_markers = 2_000, 100_000, 14
        latent, mixing = self.rng.normal(size=(n_cells, 4)), self.rng.normal(size=(4, n_markers))
        cells = latent @ mixing + 0.1 * self.rng.normal(size=(n_cells, n_markers))
        found = hm.Landmarks(cells[:n_landmarks], np.ones(n_landmarks, dtype=np.int64), 0.0)
        return Stage(
            "nearest landmark",
            f"{n_cells:,} cells, {n_landmarks:,} landmarks, {n_markers}-D",
            lambda: found.assign(cells, n_jobs=self.threads),
            cells.nbytes + n_cells * DOUBLE,
            cells[:n_landmarks].nbytes,
            2.0 * n_markers * n_cells * n_landmarks,
            double=True,
        )

    def tests(self) -> list[Stage]:
        """Every permutation looks at every pair once: a multiplication and an addition."""
        n_samples, n_permutations = 600, 999
        place = self.rng.normal(size=(n_samples, 3))
        apart = np.sqrt(((place[:, None] - place) ** 2).sum(axis=2))
        groups, age = self.rng.integers(3, size=n_samples).astype(str), self.rng.normal(size=n_samples)
        done = float(n_samples) * (n_samples - 1) * n_permutations
        runs = {
            "PERMANOVA": lambda: permanova(apart, groups, n_permutations=n_permutations),
            "distance correlation": lambda: distance_correlation(apart, age, n_permutations=n_permutations),
        }
        size = f"{n_samples} samples, {n_permutations} permutations"
        return [Stage(name, size, run, apart.nbytes, apart.nbytes, done, double=True) for name, run in runs.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the points and measures")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the best counts (3)")
    parser.add_argument("--threads", type=int, help="threads (every core)")
    add_record(parser)
    args = parser.parse_args()
    threads = args.threads or usable_cores()
    one = Machine.measure(1)
    machine = Machine.measure(threads) if threads > 1 else one
    rows = [one.row(), machine.row()][: 1 + (threads > 1)]
    heads = ["threads", "L2, GB/s", "L3, GB/s", "memory, GB/s", "GFlop/s"]
    note = (
        "The speed of memory is measured with the triad a = b + s c in float64, which moves three arrays. The speed "
        "of arithmetic is measured with multiply-adds in float32, each counted as two operations. Values are the best "
        "of 15 runs."
    )
    write_table("limits_machine", heads, rows, note, folder=args.record, threads=threads)
    print()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = Problem(0.1 if args.small else 1.0, threads)
        stages = [stage.row(machine, args.repeats) for stage in problem.stages()]
    heads = ["stage", "size", "ms", "CPU ms", "MB moved", "10^6 operations", "limited by", "limit, ms", "share reached"]
    note = (
        "Bytes and operations are the minimum that the algorithm needs, counted from sizes. The limit is the longer "
        "of two times: the time to move these bytes, and the time to compute these operations, at speeds measured in "
        "the same run. For neighbors, nearest rows and nearest landmark, operations are counted for all pairs. A "
        "share of more than 100% therefore means that the stage skipped pairs. Times are the minimum of "
        f"{args.repeats} runs."
    )
    print()
    write_table("limits", heads, stages, note, folder=args.record, threads=threads)


if __name__ == "__main__":
    main()
