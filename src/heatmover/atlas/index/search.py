"""Search an index exactly or with a faiss graph, cache the graph on disk; only `atlas.index.index` calls it.

Sums of correlated columns preserve most of an L1 distance (`heatmover.embedding.neighbors`), so 128 sums replace
thousands of features. faiss builds a graph (HNSW) over the rows of sums. A search follows the edges of the graph to a
list of candidates, and then computes the exact distances of the candidates. The number of candidates is calibrated when
the graph is built: the number is increased until a search finds 99% of the true neighbors of rows outside the graph,
because new samples are outside the graph, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._base.files import load_arrays, save_arrays
from heatmover._base.storage import CACHE, Samples, writing
from heatmover._base.threads import in_threads
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import import_extra
from heatmover.embedding.distances import for_each_tile, pairwise_distances
from heatmover.embedding.neighbors import Groups, learn_groups, nearest, sum_of_groups
from heatmover.errors import InvalidInputError

Float32 = npt.NDArray[np.float32]

_NONE = np.empty(0, dtype=np.int64)


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of an index at one point in time; later additions are not included.

    Attributes
    ----------
    source
        Rows ``(n_rows, n_features)`` in memory, or the stored samples on disk.
    """

    source: FloatArray | Samples

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.source.n_rows if isinstance(self.source, Samples) else len(self.source)

    def blocks(self, start: int = 0) -> Iterator[tuple[int, FloatArray]]:
        """Yield blocks of rows from ``start`` on, in order: the first row number and the rows ``(n, n_features)``."""
        if isinstance(self.source, Samples):
            yield from self.source.blocks(start)
        elif start < len(self.source):
            yield start, self.source[start:]

    def take(self, rows: Int64) -> FloatArray:
        """Return the rows with these numbers, ``(n_taken, n_features)``."""
        return self.source.take(rows) if isinstance(self.source, Samples) else self.source[rows]

    def nearest(self, queries: FloatArray, k: int, own: Int64 | None, n_threads: int) -> tuple[Float64, Int64]:
        """Return distances and row numbers of the k nearest rows of every query, without the row of the query itself.

        Blocks are searched one after the other. Each distance depends only on its two rows, so the result is
        bit-identical to a search of all rows at once.
        """
        wanted = k if own is None else min(k + 1, self.n_rows)
        best = np.empty((len(queries), 0)), np.empty((len(queries), 0), dtype=np.int64)
        for first, block in self.blocks():
            apart, near = nearest(queries, min(wanted, len(block)), block, n_jobs=n_threads)
            distances, rows = np.hstack([best[0], apart]), np.hstack([best[1], near + first])
            order = np.lexsort((rows, distances), axis=1)[:, :wanted]
            best = np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)
        return best if own is None else without(*best, own, k)

    def within(self, queries: FloatArray, radius: float, n_threads: int) -> list[tuple[Float64, Int64]]:
        """Return the distances and row numbers of all rows within ``radius`` of each query, sorted by distance."""
        # Several threads append to this list in any order; hits are sorted at the end.
        hits: list[tuple[Int64, Int64, Float64]] = [(_NONE, _NONE, np.empty(0))]
        for first, block in self.blocks():

            def keep(i: slice, j: slice, tile: Float64, first: int = first) -> None:
                near, place = np.nonzero(tile <= radius)
                hits.append((near + i.start, place + (first + j.start), tile[near, place]))

            for_each_tile(queries, block, keep, n_threads=n_threads, limit=float(np.finfo(np.float64).max))
        query, rows, distances = (np.concatenate(each) for each in zip(*hits, strict=True))
        order = np.lexsort((rows, distances, query))
        edges = np.searchsorted(query[order], np.arange(len(queries) + 1))
        orders = [order[start:stop] for start, stop in pairwise(edges.tolist())]
        return [(distances[own], rows[own]) for own in orders]


def without(distances: Float64, rows: Int64, own: Int64, k: int) -> tuple[Float64, Int64]:
    """Return the first k neighbors in every list, leaving out the row of the query itself."""
    order = np.argsort(rows == own[:, None], axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


# Number of edges per row in the lowest level of the graph, and number of rows that are compared to choose the edges. On
# 50,000 samples of 100 patients, with 48 candidates and queries from other patients, the search finds 98.5% of the ten
# nearest rows if 120 rows are compared, and 99.8% if 200 rows are compared.
N_LINKS, BUILD_EFFORT = 16, 200
# Number of sums per row, and number of bytes of the rows from which the column groups are learned. For 50,000 rows of
# 512 features on a curved surface, 32 candidates contain 99% of the ten nearest rows with 128 sums, and 94% with 64
# sums.
N_SUMS, SAMPLE_BYTES = 128, 2**26
# Number of rows on which recall is measured, and number of their neighbors. The target is higher than the documented
# recall, because 200 rows measure recall only to within half a percentage point.
N_TRIED, N_NEIGHBORS = 200, 10
TARGET_RECALL, RECALL = 0.99, 0.98
# Numbers of candidates per query that calibration tries in turn. Smaller numbers may suffice for queries similar to the
# stored rows, but not for other queries, such as the queries from other patients above.
EFFORTS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Sums are clipped at this value, which is larger than any realistic sum, because differences of infinite sums would be
# NaN.
FARTHEST = 1e30
# Number of rows that are aggregated at a time, so that intermediate values stay in the cache.
SUMMED_ROWS = 128


@final
@dataclass(eq=False)
class CandidateGraph:
    """A graph over the rows of an index that lists likely neighbors; `build` creates one.

    Attributes
    ----------
    groups
        Groups of columns that are added up; None if there are too few columns for groups.
    center, unit
        Center that is subtracted from the sums, ``(n_sums,)``, and power of two by which the sums are divided to fit
        float32.
    graph
        HNSW graph of faiss.
    rows
        Row number of each node of the graph, ``(n_rows,)``.
    effort
        Number of candidates per query for a search of up to ten neighbors.
    recall
        Share of the ten nearest rows that the search found during calibration, for rows that were not in the graph.
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
        """Number of rows in the graph."""
        return self.rows.size

    @classmethod
    def build(cls, rows: Rows, n_threads: int) -> CandidateGraph:
        """Learn column groups from a sample of rows, build the graph, and calibrate the number of candidates."""
        drawn = np.random.default_rng(0).permutation(rows.n_rows)
        width = rows.take(drawn[:1]).nbytes
        sample = rows.take(np.sort(drawn[: max(4 * N_TRIED, SAMPLE_BYTES // width)]))
        groups = learn_groups(sample, N_SUMS)
        largest = float(np.abs(sample).sum(axis=1, dtype=np.float64).max())
        unit = math.ldexp(1.0, min(math.frexp(largest)[1], 1000)) if largest > 0 else 1.0
        center = _added(sample, groups).mean(axis=0)
        made = cls(groups, center, unit, _faiss().IndexHNSWFlat(center.size, N_LINKS, _faiss().METRIC_L1))
        made.graph.hnsw.efConstruction = BUILD_EFFORT
        # Insert rows in random order. Similar rows are often adjacent in a file, but the graph also needs edges between
        # dissimilar rows. Such edges are created only while the graph has few rows.
        sums = np.vstack([made._sums(block, n_threads) for _, block in rows.blocks()])
        tried = drawn[: min(N_TRIED, max(1, rows.n_rows // 10))]
        made._add(drawn[tried.size :], sums[drawn[tried.size :]])
        made._calibrate(rows, tried, n_threads)
        made._add(tried, sums[tried])
        return made

    def extend(self, rows: Rows, n_threads: int) -> None:
        """Add all rows that are not yet in the graph."""
        for first, block in rows.blocks(self.n_rows):
            self._add(np.arange(first, first + len(block)), self._sums(block, n_threads))

    def _add(self, rows: Int64, sums: Float32) -> None:
        with _threads_of_faiss(1):  # with several threads, the order of insertion and the graph would vary
            self.graph.add(sums)
        self.rows = np.concatenate([self.rows, rows])

    def _calibrate(self, rows: Rows, tried: Int64, n_threads: int) -> None:
        """Choose the smallest number of candidates that reaches the target recall for rows outside the graph."""
        k = min(N_NEIGHBORS, self.n_rows)
        queries = rows.take(tried)
        every = rows.nearest(queries, min(k + tried.size, rows.n_rows), None, n_threads)[1]
        truth = np.array([near[~np.isin(near, tried)][:k] for near in every])
        for self.effort in EFFORTS:
            self.recall = recall(self.nearest(rows, queries, k, None, n_threads)[1], truth)
            if self.recall >= TARGET_RECALL or self.effort >= rows.n_rows:
                break

    def nearest(
        self, rows: Rows, queries: FloatArray, k: int, own: Int64 | None, n_threads: int
    ) -> tuple[Float64, Int64]:
        """Return the distances and row numbers of approximately the k nearest rows of every query; see `Rows.nearest`.

        The distances themselves are exact and bit-identical to distances from `Rows.nearest`. If the graph yields fewer
        than k candidates, all rows are searched.
        """
        wanted = k if own is None else k + 1
        count = min(math.ceil(self.effort * max(1.0, wanted / N_NEIGHBORS)), self.n_rows)
        sums = self._sums(queries, n_threads)
        with _threads_of_faiss(n_threads):
            nodes = self.graph.search(sums, count, params=_faiss().SearchParametersHNSW(efSearch=count))[1]
        distances, indices = np.empty((len(queries), wanted)), np.empty((len(queries), wanted), dtype=np.int64)

        def compare(query: int) -> None:
            near = np.sort(self.rows[nodes[query][nodes[query] >= 0]])
            if near.size < wanted:
                distances[[query]], indices[[query]] = rows.nearest(queries[[query]], wanted, None, 1)
                return
            away = pairwise_distances(queries[[query]], rows.take(near), n_jobs=1)[0]
            order = np.argsort(away, kind="stable")[:wanted]
            distances[query], indices[query] = away[order], near[order]

        in_threads(compare, range(len(queries)), n_threads)
        return (distances, indices) if own is None else without(distances, indices, own, k)

    def _sums(self, rows: FloatArray, n_threads: int) -> Float32:
        """Return the centered and scaled sums of rows, ``(n_rows, n_sums)``."""
        short = np.empty((len(rows), self.center.size), dtype=np.float32)

        def fill(start: int) -> None:
            block = slice(start, start + SUMMED_ROWS)
            values = (_added(rows[block], self.groups) - self.center) / self.unit
            short[block] = np.clip(values, -FARTHEST, FARTHEST)

        in_threads(fill, range(0, len(rows), SUMMED_ROWS), n_threads)
        return short

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the graph as arrays, from which `restored` rebuilds it."""
        groups = self.groups
        parts = {} if groups is None else {"columns": groups.columns, "signs": groups.signs, "starts": groups.starts}
        numbers = np.array([self.unit, self.effort, self.recall])
        graph = _faiss().serialize_index(self.graph)
        return {"graph": graph, "rows": self.rows, "center": self.center, "numbers": numbers, **parts}

    @classmethod
    def restored(cls, arrays: dict[str, npt.NDArray[Any]]) -> CandidateGraph:
        """Rebuild the graph from arrays whose checksum the caller has verified; `extend` adds later rows."""
        names = ("columns", "signs", "starts")
        groups = Groups(*(arrays[name] for name in names)) if "columns" in arrays else None
        unit, effort, share = arrays["numbers"].tolist()
        graph = _faiss().deserialize_index(arrays["graph"])
        return cls(groups, arrays["center"], unit, graph, arrays["rows"], int(effort), share)


def _added(rows: FloatArray, groups: Groups | None) -> Float64:
    return rows.astype(np.float64) if groups is None else sum_of_groups(rows, groups)


def recall(listed: Int64, truth: Int64) -> float:
    """Return the share of the true neighbors ``(n_queries, k)`` that ``listed`` contains."""
    return float(np.mean([np.isin(right, near).mean() for near, right in zip(listed, truth, strict=True)]))


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


# Text that the checksum of the stored graph covers in addition to its arrays.
SEAL = "heatmover search 5"


def read_cache(samples: Samples) -> CandidateGraph | None:
    """Return the graph stored next to the samples, or None if the graph is missing, damaged or built from other rows.

    The checksum is checked before faiss reads any byte, because faiss does not validate its input.
    """
    arrays = load_arrays(samples.store.folder / CACHE, SEAL)
    try:
        n_rows = 0 if arrays is None else arrays["rows"].size
        if arrays is None or n_rows > samples.n_rows or arrays.pop("lineage") != samples.lineage(n_rows):
            return None
        return CandidateGraph.restored(arrays)
    except Exception:  # written by another version of faiss, so the caller builds a new graph
        return None


def write_cache(samples: Samples, made: CandidateGraph) -> bool:
    """Write a graph next to the samples; return whether it was written. If an error occurs, nothing changes."""
    arrays = {**made.arrays(), "lineage": np.array(samples.lineage(made.n_rows))}
    with suppress(InvalidInputError, OSError), writing(samples.store.folder):
        save_arrays(samples.store.folder / CACHE, SEAL, arrays)
        return True
    return False
