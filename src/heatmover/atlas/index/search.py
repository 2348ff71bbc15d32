"""Search among the rows of an index: exactly, or among the candidates that a graph of faiss lists.

Sums of columns that rise and fall together keep most of an L1 distance (`heatmover.embedding.neighbors`): 64 of them
replace thousands of features. faiss links every row of sums to near ones (HNSW), and a search walks along these
links. How long it walks is measured when the graph is built: rows that are not in it yet are searched for, as new
samples will be, until 99% of their true neighbors are found. The candidates are then compared in full.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._base.files import replacing
from heatmover._base.storage import Samples, writing
from heatmover._base.threads import in_threads
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import import_extra
from heatmover.embedding.distances import for_each_tile, pairwise_distances
from heatmover.embedding.neighbors import Groups, learn_groups, nearest, sum_of_groups
from heatmover.errors import InvalidInputError

__all__ = ["RECALL", "CandidateGraph", "Rows", "read_cache", "recall", "write_cache"]

Float32 = npt.NDArray[np.float32]

# Of rows on disk, read at a time. Every block has to be worth learning its groups of columns (some 20 ms).
BLOCK_BYTES = 2**26
_NONE = np.empty(0, dtype=np.int64)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of an index at one generation.

    Attributes
    ----------
    n_rows
        Their number.
    resident
        ``(n_rows, n_features)`` in memory, or None.
    samples
        Where they are on disk, or None.
    """

    n_rows: int
    resident: FloatArray | None
    samples: Samples | None

    def blocks(self, start: int = 0) -> Iterator[tuple[int, FloatArray]]:
        """Yield the rows from ``start`` on, in order: number of the first, and ``(n, n_features)``."""
        if self.resident is not None:
            size = max(1, BLOCK_BYTES // (self.resident.itemsize * self.resident.shape[1]))
            for first in range(start, self.n_rows, size):
                yield first, self.resident[first : min(first + size, self.n_rows)]
            return
        assert self.samples is not None
        yield from self.samples.blocks(BLOCK_BYTES, start)

    def take(self, rows: Int64) -> FloatArray:
        """Return some rows, ``(n_taken, n_features)``."""
        if self.resident is not None:
            taken: FloatArray = self.resident[rows]
            return taken
        assert self.samples is not None
        return self.samples.take(rows)

    def nearest(self, queries: FloatArray, k: int, own: Int64 | None, n_threads: int) -> tuple[Float64, Int64]:
        """Return distances and rows of the k nearest of every query, but for the row ``own`` that is the query itself.

        Blocks are searched one after the other. A distance depends on its two rows alone, so that the result has the
        bits of a search in all rows at once.
        """
        wanted = k if own is None else min(k + 1, self.n_rows)
        best = np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64)
        for first, block in [(0, self.resident)] if self.resident is not None else self.blocks():
            distances, near = nearest(queries, min(wanted, len(block)), block, n_jobs=n_threads)
            best = _merged(best, (distances, near + first), wanted)
        return best if own is None else without(*best, own, k)

    def within(self, queries: FloatArray, radius: float, n_threads: int) -> list[tuple[Float64, Int64]]:
        """Return distances and rows of all that are at most ``radius`` from every query, in order."""
        # Lists grow from several threads; the order is made at the end.
        hits: list[tuple[Int64, Int64, Float64]] = [(_NONE, _NONE, np.empty(0))]
        for first, block in self.blocks():

            def keep(i: slice, j: slice, tile: Float64, first: int = first) -> None:
                near, place = np.nonzero(tile <= radius)
                hits.append((near + i.start, place + (first + j.start), tile[near, place]))

            for_each_tile(queries, block, keep, n_threads=n_threads, limit=float(np.finfo(np.float64).max))
        query, rows, distances = (np.concatenate(each) for each in zip(*hits, strict=True))
        order = np.lexsort((rows, distances, query))
        edges = np.searchsorted(query[order], np.arange(len(queries) + 1))
        parts = [order[start:stop] for start, stop in pairwise(edges.tolist())]
        return [(distances[part], rows[part]) for part in parts]


def _merged(one: tuple[Float64, Int64], other: tuple[Float64, Int64], k: int) -> tuple[Float64, Int64]:
    """Return the k nearest of two lists per query, by distance and then by row."""
    distances, rows = (np.hstack(pair) for pair in zip(one, other, strict=True))
    order = np.lexsort((rows, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


def without(distances: Float64, rows: Int64, own: Int64, k: int) -> tuple[Float64, Int64]:
    """Return the first k of every list once the query's own row, if it has one (else -1), is left out."""
    order = np.argsort(rows == own[:, None], axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


# Links of a row of sums at the lowest level, and rows that are looked at to find them. 50,000 samples of 100 patients,
# 48 candidates of queries from other patients: 98.5 % of the ten nearest with 120 rows looked at, 99.8 % with 200.
N_LINKS, BUILD_EFFORT = 16, 200
# Sums of a row, and bytes of the rows that they are learnt from. 50,000 rows of 512 features on a curved surface: 99 %
# of the ten nearest with 32 candidates by 128 sums, and 94 % by 64.
N_SUMS, SAMPLE_BYTES = 128, 2**26
# Rows that measure the recall, of how many neighbours, and what is asked of it: more than is promised, because 200 rows
# tell it to half a per cent.
N_TRIED, N_NEIGHBORS = 200, 10
ASKED, RECALL = 0.99, 0.98
# Candidates per query that are tried in turn. Fewer can do for rows like those that are stored, but not for new ones of
# another kind, such as the queries from other patients above.
EFFORTS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Sums are clipped here: what is farther is not near, and infinite differences would be NaN.
FARTHEST = 1e30
# Rows that are added up at a time, so that what lies between stays in the cache.
SUMMED_ROWS = 128


@final
@dataclass(eq=False)
class CandidateGraph:
    """A graph over the rows of an index that lists likely neighbours; `build` makes one.

    Attributes
    ----------
    groups
        Of columns that are added up; None if there are so few that every column is a sum.
    center, unit
        What is taken from sums, ``(n_sums,)``, and a power of two that they are divided by to stay within float32.
    graph
        Of faiss.
    rows
        Which row each node of the graph is, ``(n_rows,)``.
    effort
        Candidates per query for up to ten neighbours.
    recall
        Share of the ten nearest that this found for rows that were not in the graph.
    """

    groups: Groups | None
    center: Float64
    unit: float
    graph: Any
    rows: Int64 = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    effort: int = EFFORTS[0]
    recall: float = 0.0

    @property
    def n_rows(self) -> int:
        """Rows that are in it."""
        return self.rows.size

    @classmethod
    def build(cls, rows: Rows, n_threads: int) -> CandidateGraph:
        """Learn sums from a sample, link all rows and measure how far to search; all draws have a fixed seed."""
        drawn = np.random.default_rng(0).permutation(rows.n_rows)
        width = rows.take(drawn[:1]).nbytes
        sample = rows.take(np.sort(drawn[: max(4 * N_TRIED, SAMPLE_BYTES // width)]))
        groups = learn_groups(sample, N_SUMS)
        largest = float(np.abs(sample).sum(axis=1, dtype=np.float64).max())
        unit = math.ldexp(1.0, min(math.frexp(largest)[1], 1000)) if largest > 0 else 1.0
        center = _added(sample, groups).mean(axis=0)
        made = cls(groups, center, unit, _faiss().IndexHNSWFlat(center.size, N_LINKS, _faiss().METRIC_L1))
        made.graph.hnsw.efConstruction = BUILD_EFFORT
        # In a random order: rows of one kind are often neighbours in a file, and links between kinds come from rows
        # that were linked when there were few.
        sums = np.vstack([made._sums(block, n_threads) for _, block in rows.blocks()])
        tried = drawn[: min(N_TRIED, max(1, rows.n_rows // 10))]
        made._add(drawn[tried.size :], sums[drawn[tried.size :]])
        made._calibrate(rows, tried, n_threads)
        made._add(tried, sums[tried])
        return made

    def extend(self, rows: Rows, n_threads: int) -> None:
        """Put rows in that are not in it yet."""
        for first, block in rows.blocks(self.n_rows):
            self._add(np.arange(first, first + len(block)), self._sums(block, n_threads))

    def _add(self, rows: Int64, sums: Float32) -> None:
        with _threads_of_faiss(1):  # several would link rows in an order that chance decides
            self.graph.add(sums)
        self.rows = np.concatenate([self.rows, rows])

    def _calibrate(self, rows: Rows, tried: Int64, n_threads: int) -> None:
        """Find the fewest candidates with which enough of the neighbours of rows outside the graph are found."""
        k = min(N_NEIGHBORS, self.n_rows)
        queries = rows.take(tried)
        every = rows.nearest(queries, min(k + tried.size, rows.n_rows), None, n_threads)[1]
        truth = np.array([near[~np.isin(near, tried)][:k] for near in every])
        for self.effort in EFFORTS:
            self.recall = recall(self.nearest(rows, queries, k, None, n_threads)[1], truth)
            if self.recall >= ASKED or self.effort >= rows.n_rows:
                break

    def nearest(
        self, rows: Rows, queries: FloatArray, k: int, own: Int64 | None, n_threads: int
    ) -> tuple[Float64, Int64]:
        """Return distances and rows of k near rows of every query, as `Rows.nearest` does for the nearest.

        Distances have the same bits as there. Where fewer than k are found, all rows are searched.
        """
        wanted = k if own is None else k + 1
        count = min(math.ceil(self.effort * max(1.0, wanted / N_NEIGHBORS)), self.n_rows)
        sums = self._sums(queries, n_threads)
        with _threads_of_faiss(n_threads):
            nodes = self.graph.search(sums, count, params=_faiss().SearchParametersHNSW(efSearch=count))[1]
        distances, indices = np.empty((len(queries), wanted)), np.empty((len(queries), wanted), dtype=np.int64)

        def compare(part: range) -> None:
            for query in part:
                near = np.sort(self.rows[nodes[query][nodes[query] >= 0]])
                if near.size < wanted:
                    distances[[query]], indices[[query]] = rows.nearest(queries[[query]], wanted, None, 1)
                    continue
                away = pairwise_distances(queries[[query]], rows.take(near), n_jobs=1)[0]
                order = np.argsort(away, kind="stable")[:wanted]
                distances[query], indices[query] = away[order], near[order]

        size = -(-len(queries) // n_threads)
        in_threads(
            compare,
            [range(start, min(start + size, len(queries))) for start in range(0, len(queries), size)],
            n_threads,
        )
        return (distances, indices) if own is None else without(distances, indices, own, k)

    def _sums(self, rows: FloatArray, n_threads: int) -> Float32:
        """Return the sums of rows, ``(n_rows, n_sums)``."""
        short = np.empty((len(rows), self.center.size), dtype=np.float32)

        def fill(start: int) -> None:
            part = slice(start, start + SUMMED_ROWS)
            values = (_added(rows[part], self.groups) - self.center) / self.unit
            short[part] = np.clip(values, -FARTHEST, FARTHEST)

        in_threads(fill, range(0, len(rows), SUMMED_ROWS), n_threads)
        return short

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, from which `restored` makes it again."""
        groups = self.groups
        parts = {} if groups is None else {"columns": groups.columns, "signs": groups.signs, "starts": groups.starts}
        numbers = np.array([self.unit, self.effort, self.recall])
        graph = _faiss().serialize_index(self.graph)
        return {"graph": graph, "rows": self.rows, "center": self.center, "numbers": numbers, **parts}

    @classmethod
    def restored(cls, arrays: dict[str, npt.NDArray[Any]]) -> CandidateGraph:
        """Make it from arrays that were checked; `extend` makes it ready."""
        names = ("columns", "signs", "starts")
        groups = Groups(*(arrays[name] for name in names)) if "columns" in arrays else None
        unit, effort, share = arrays["numbers"].tolist()
        graph = _faiss().deserialize_index(arrays["graph"])
        return cls(groups, arrays["center"], unit, graph, arrays["rows"], int(effort), share)


def _added(rows: FloatArray, groups: Groups | None) -> Float64:
    return rows.astype(np.float64) if groups is None else sum_of_groups(rows, groups)


def recall(listed: Int64, truth: Int64) -> float:
    """Return the share of the true neighbours ``(n_queries, k)`` that were found."""
    return float(np.mean([np.isin(right, got).mean() for got, right in zip(listed, truth, strict=True)]))


def _faiss() -> Any:
    return import_extra("faiss", package="faiss-cpu", extra="search")


@contextmanager
def _threads_of_faiss(n_threads: int) -> Iterator[None]:
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(n_threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


# The graph of an index beside its samples, in one file: a SHA-256, and the arrays. It is made again if it is not whole.
CACHE, CACHE_VERSION = "search.npz", 4
DIGEST_BYTES = hashlib.sha256().digest_size


def read_cache(samples: Samples) -> CandidateGraph | None:
    """Return the graph that lies beside the samples, without rows that came later; None if it is missing or unsound.

    Nothing is given to faiss before its SHA-256 has been compared, because faiss trusts what it reads.
    """
    try:
        data = (samples.store.folder / CACHE).read_bytes()
        if hashlib.sha256(data[DIGEST_BYTES:]).digest() != data[:DIGEST_BYTES]:
            return None
        with np.load(io.BytesIO(data[DIGEST_BYTES:]), allow_pickle=False) as stored:
            arrays = dict(stored)
        version, lineage, n_rows = arrays.pop("version"), arrays.pop("lineage"), arrays["rows"].size
        if version != CACHE_VERSION or n_rows > samples.n_rows or lineage != samples.lineage(n_rows):
            return None
        return CandidateGraph.restored(arrays)
    # No cache, a damaged one, or one of another version: each is made again.
    except Exception:
        return None


def write_cache(samples: Samples, made: CandidateGraph) -> bool:
    """Write a graph beside the samples, and return whether that went; without room or permission, nothing changes."""
    origin = {"version": np.array(CACHE_VERSION), "lineage": np.array(samples.lineage(made.n_rows))}
    stored = io.BytesIO()
    np.savez(stored, **made.arrays(), **origin)  # type: ignore[arg-type]
    folder = samples.store.folder
    with suppress(InvalidInputError, OSError), writing(folder), replacing(folder / CACHE, "wb") as file:
        file.write(hashlib.sha256(stored.getbuffer()).digest())
        file.write(stored.getbuffer())
        return True
    return False
