"""Shortlists: likely neighbours from a graph over sums of columns, which a search then compares in full.

Sums of columns that rise and fall together keep most of an L1 distance (`heatmover.embedding.sketch`): 64 of them take
the place of thousands of features. faiss links every row of sums to near ones, level by level (HNSW), and a search
walks along these links. How long it walks is measured when the graph is built: rows that are held out of the graph are
searched for, as new samples will be, until 99 % of their true neighbours are found. Where features are thousands, a
second, finer set of sums orders the candidates, so that hardly more than are asked for have to be compared in full.
Many queries at once find their candidates in cells of near rows instead (`heatmover.index.cells`).

Chance has no part in it. Sums, rows held out and the order of the rows in the graph depend on the rows that are there
when it is built. Later ones enter it in blocks of a fixed size, whatever the steps in which they were added, by one
thread. Rows that do not fill a block yet, and those held out, are compared one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads
from heatmover._typing import Float64, FloatArray, Int64
from heatmover._validation import import_extra
from heatmover.embedding.distances import pairwise_distances, readable
from heatmover.embedding.sketch import Groups, learn_groups, sum_of_groups
from heatmover.index.cells import Arranged, cells_of, learn_centers
from heatmover.index.rows import Rows, grown

__all__ = ["RECALL", "Shortlist"]

Float32 = npt.NDArray[np.float32]

# Links of a row of sums at the lowest level, and rows that are looked at to find them. 40,000 rows in 80 tight groups,
# 32 candidates for each of 200 queries from other groups: 97.2 % of the ten nearest with 60 rows looked at, 98.8 % with
# 200; and 94.9 % with 32 links, which make for fewer levels. Rows in the order of their groups: 95.2 %.
N_LINKS, BUILD_EFFORT = 16, 120
# Numbers of sums that are tried on a sample: rows searched for, and bytes of those searched in. Not 32: a sample is
# sparser than all rows; of 17,143 digits, lists of 46 by 32 sums hold 99 % of the ten nearest, and lists of 23 by 64.
N_SUMS = (64, 128, 256)
N_TRIED, TRIED_BYTES, MOST_TRIED = 64, 2**26, 20_000
# Microseconds that a candidate costs: at all, per sum, and per feature once it is compared. Measured with 60,000 digits
# of 8,853 features: candidates cost 1.29, 1.70, 1.84 and 3.16 microseconds with 32, 64, 128 and 256 sums.
CANDIDATE_COST, SUM_COST, FEATURE_COST = 1.0, 0.0083, 4e-4
# Rows that enter the graph together.
BLOCK = 1024
# Rows that are held out of the graph to measure the recall, of how many neighbours, and what is asked of it: more than
# is promised, because 200 rows tell it to half a per cent.
N_HELD_OUT, N_NEIGHBORS = 200, 10
ASKED, RECALL = 0.99, 0.98
# Candidates per query that are tried in turn. Fewer than 32 can do for rows like those that are stored, such as those
# held out, but not for new ones of another kind: 94 % for the queries from other groups above.
EFFORTS = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
# Finer sums, and how many times as many features have to be there for them: 2 KB are read in place of a whole row.
N_FINE, WIDE = 512, 4
# A candidate is left out if its sums say that it is farther than the k-th found. They reach at most this share of what
# 99.5 % of the neighbours of rows held out reach; sure bounds, which assume that they reach all, leave out
# fewer.
REACHED = 0.995
# Queries per cell from which on cells are used: their work is shared by the queries that look into one cell.
MANY = 1
# Cells that are looked into: those with 99 % of the neighbours of the rows held out, at least so many for queries of
# another kind, and more until the recall is right; at most this share of all, or the graph is better.
PROBED, FEWEST_PROBES, MOST_PROBED = 0.99, 8, 0.25
# More cells are looked into as far as the usual number reaches for this share of the rows held out. New patients among
# 20,000 samples in tight groups: 93.7 % of the ten nearest with no more cells, 99.9 % with 0.25 and with 0.5.
USUAL = 0.25
# Sums are clipped here: what is farther is not near, and infinite differences would be NaN.
FARTHEST = 1e30
# Rows that are added up at a time, so that what lies between stays in the cache.
SUMMED_ROWS = 128
# Queries whose distances to the rows outside the graph are held at a time.
QUERIES = 256
# Queries that are compared with cells together.
QUERIES_TOGETHER = 8192


@final
@dataclass(frozen=True, eq=False)
class Sums:
    """Rows made short: sums of groups of columns less a centre, in a unit that keeps them within float32.

    Attributes
    ----------
    groups
        Of columns; None if there are too few to add up, so that every column is a sum.
    centre
        ``(n_sums,)``.
    unit
        A power of two; L1 distances between sums, times the unit, are at most those between rows.
    """

    groups: Groups | None
    centre: Float64
    unit: float

    @classmethod
    def learnt(cls, sample: FloatArray, count: int) -> Sums:
        """Learn groups from some rows."""
        groups = learn_groups(sample, count)
        sums = _added(sample, groups)
        largest = float(np.abs(sample).sum(axis=1, dtype=np.float64).max())
        unit = math.ldexp(1.0, min(math.frexp(largest)[1], 1000)) if largest > 0 else 1.0
        return cls(groups, sums.mean(axis=0), unit)

    @property
    def count(self) -> int:
        """Number of sums."""
        return self.centre.size

    def of(self, rows: FloatArray) -> Float32:
        """Return the sums of rows, ``(n_rows, n_sums)``."""
        short = np.empty((len(rows), self.count), dtype=np.float32)
        for start in range(0, len(rows), SUMMED_ROWS):
            part = slice(start, start + SUMMED_ROWS)
            values = _added(rows[part], self.groups)
            values -= self.centre
            values /= self.unit
            short[part] = np.clip(values, -FARTHEST, FARTHEST, out=values)
        return short


def _added(rows: FloatArray, groups: Groups | None) -> Float64:
    return rows.astype(np.float64) if groups is None else sum_of_groups(rows, groups)


@final
class Shortlist:
    """A graph over the rows of an index that lists likely neighbours; `build` makes one.

    Attributes
    ----------
    sums
        How rows are made short.
    fine
        More sums, that order candidates; None if there are few features.
    effort
        Candidates per query for up to ten neighbours.
    n_probes
        Cells that are looked into for up to ten neighbours of each of many queries; 0 if the graph is better.
    reach
        Times the distance of the nearest centre up to which more cells are looked into.
    tightness
        What the distance of the last sums before the features reaches of the distance of near rows, at most.
    recall
        Share of the ten nearest that this found for the rows held out.
    n_rows
        Rows that are in it.
    """

    def __init__(self, sums: Sums, fine: Sums | None, graph: Any, inside: Int64, held: Int64) -> None:
        self.sums, self.fine = sums, fine
        self.effort, self.n_probes, self.reach = EFFORTS[0], 0, 1.0
        self.tightness, self.recall = 1.0, 0.0
        self._graph, self._inside, self._held = graph, inside, held
        self._fine_sums = np.empty((0, 0 if fine is None else fine.count), dtype=np.float32)
        self._centers = np.empty((0, sums.count), dtype=np.float32)
        self._cells = np.empty(0, dtype=np.int32)
        self._arranged: Arranged | None = None
        self._tail = np.empty(0, dtype=np.int64)
        self._tail_sums = np.empty((0, sums.count), dtype=np.float32)
        self.n_rows = 0

    @classmethod
    def build(cls, rows: Rows, n_threads: int) -> Shortlist:
        """Learn sums from a sample, link all rows and measure how far to search.

        The sample and the rows held out are drawn with a fixed seed.
        """
        faiss = _faiss()
        rng = np.random.default_rng(0)
        drawn = rng.permutation(rows.n_rows)
        sums, fine = _choose_sums(rows, drawn)
        held = np.sort(drawn[: min(N_HELD_OUT, max(1, rows.n_rows // 10))])
        graph = faiss.IndexHNSWFlat(sums.count, N_LINKS, faiss.METRIC_L1)
        graph.hnsw.efConstruction = BUILD_EFFORT
        made = cls(sums, fine, graph, np.empty(0, dtype=np.int64), held)
        # In a random order: rows of one kind are often neighbours in a file, and links between kinds come from rows
        # that were linked when there were few.
        made._tail = drawn[held.size :]
        every = np.vstack([made._sums_of(block, n_threads) for _, block in rows.blocks()])
        made._tail_sums = every[made._tail]
        made._centers = learn_centers(made._tail_sums, n_threads)
        made._cells = cells_of(every, made._centers, n_threads)
        made.n_rows = rows.n_rows
        made._link()
        made._settle(rows)
        made._calibrate(rows, n_threads)
        return made

    def extend(self, rows: Rows, n_threads: int) -> None:
        """Put rows in that are not in it yet."""
        if len(self._tail_sums) < self._tail.size:  # restored without them
            self._tail_sums = self._short(rows.take(self._tail))[0]
        for first, block in rows.blocks(self.n_rows):
            sums = self._sums_of(block, n_threads)
            self._tail = np.concatenate([self._tail, np.arange(first, first + len(block))])
            self._tail_sums = np.vstack([self._tail_sums, sums])
            self._cells = np.concatenate([self._cells, cells_of(sums, self._centers, n_threads)])
            self._link()
        self.n_rows = rows.n_rows
        self._settle(rows)

    def _settle(self, rows: Rows) -> None:
        """Prepare what every search needs: the sums of rows outside the graph, and which row each node is."""
        held = self._short(rows.take(self._held))[0]
        self._others = readable(np.vstack([held, self._tail_sums]), np.float32)
        # The last stands for no row.
        self._numbers = np.concatenate([self._inside, self._held, self._tail, [-1]])
        self._arranged = None

    def _short(self, rows: FloatArray) -> tuple[Float32, Float32 | None]:
        """Return the sums of rows, and the finer ones that these are sums of."""
        if self.fine is None:
            return self.sums.of(rows), None
        fine = self.fine.of(rows)
        return self.sums.of(fine), fine

    def _sums_of(self, block: FloatArray, n_threads: int) -> Float32:
        """Return the sums of the next rows, and keep the finer ones."""
        parts = [block[start : start + BLOCK] for start in range(0, len(block), BLOCK)]
        found = in_threads(self._short, parts, n_threads)
        if self.fine is not None:
            self._fine_sums = grown(self._fine_sums, np.vstack([fine for _, fine in found if fine is not None]))
        return np.vstack([sums for sums, _ in found])

    def _link(self) -> None:
        """Move full blocks of the rows outside into the graph."""
        faiss = _faiss()
        n_blocks = self._tail.size // BLOCK
        if n_blocks == 0:
            return
        before, added = self._inside.size, BLOCK * n_blocks
        levels = _levels(faiss, self._graph.hnsw, before + added)
        with _one_thread(faiss):
            for start in range(0, added, BLOCK):
                # Levels that are there already are taken; those that faiss draws are forgotten when it is saved.
                faiss.copy_array_to_vector(levels[: before + start + BLOCK], self._graph.hnsw.levels)
                self._graph.add(np.ascontiguousarray(self._tail_sums[start : start + BLOCK]))
        self._inside = np.concatenate([self._inside, self._tail[:added]])
        self._tail, self._tail_sums = self._tail[added:].copy(), self._tail_sums[added:].copy()

    def _calibrate(self, rows: Rows, n_threads: int) -> None:
        """Find the fewest candidates with which enough of the neighbours of the rows held out are found."""
        k = min(N_NEIGHBORS, rows.n_rows - 1)
        queries = rows.take(self._held)
        distances, truth = rows.nearest(queries, k, self._held, n_threads)
        self.tightness = self._reached(rows, queries, truth, distances)
        for self.effort in EFFORTS:
            _, found = self.nearest(rows, queries, k, self._held, n_threads)
            self.recall = recall(found, truth)
            if self.recall >= ASKED or self.effort >= rows.n_rows:
                break
        self._calibrate_cells(rows, queries, truth, n_threads)

    def _calibrate_cells(self, rows: Rows, queries: FloatArray, truth: Int64, n_threads: int) -> None:
        """Find the fewest cells with which as many neighbours are found as by the graph; none if those are many."""
        n_cells, k = len(self._centers), truth.shape[1]
        self._arrange()
        assert self._arranged is not None
        away, order = self._arranged.nearest_cells(self._short(queries)[0], n_cells)
        places = np.empty_like(order)
        np.put_along_axis(places, order, np.arange(n_cells)[None], axis=1)
        needed = np.take_along_axis(places, self._cells[truth].astype(np.int64), axis=1) + 1
        n_probes = max(FEWEST_PROBES, int(np.quantile(needed, PROBED, method="higher")))
        while n_probes <= MOST_PROBED * n_cells:
            self.n_probes = n_probes
            nearest = np.maximum(away[:, 0], np.finfo(np.float64).tiny)
            self.reach = float(np.quantile(away[:, n_probes - 1] / nearest, USUAL))
            _, found = self.nearest(rows, queries, k, self._held, n_threads, many=True)
            if recall(found, truth) >= min(ASKED, self.recall):
                return
            n_probes += max(1, n_probes // 8)
        self.n_probes = 0

    def _reached(self, rows: Rows, queries: FloatArray, near: Int64, distances: Float64) -> float:
        """Return the largest share of distances ``(n_queries, k)`` that sums reach, or nearly the largest."""
        last = self.sums if self.fine is None else self.fine
        ours, theirs = last.of(queries), last.of(rows.take(near.ravel())).reshape(*near.shape, -1)
        reached = last.unit * np.abs(ours[:, None] - theirs).sum(axis=2, dtype=np.float64)
        apart = distances > 0
        if not apart.any():
            return 1.0
        return min(1.0, float(np.quantile(reached[apart] / distances[apart], REACHED, method="higher")))

    def nearest(
        self,
        rows: Rows,
        queries: FloatArray,
        k: int,
        own: Int64 | None,
        n_threads: int,
        *,
        many: bool | None = None,
    ) -> tuple[Float64, Int64]:
        """Return distances and rows of k near rows of every query, as `Rows.nearest` does for the nearest.

        Distances have the same bits as there. Where fewer than k are found, all rows are searched. Candidates come from
        cells if there are ``many`` queries, which their number tells unless it is said, and else from the graph.
        """
        wanted = k if own is None else k + 1
        more = max(1.0, wanted / N_NEIGHBORS)
        count = min(math.ceil(self.effort * more), self.n_rows)
        n_probes = 0
        if self.n_probes and (len(queries) >= MANY * len(self._centers) if many is None else many):
            n_probes = min(math.ceil(self.n_probes * more), len(self._centers))
            self._arrange()
        size = max(1, min(QUERIES_TOGETHER if n_probes else QUERIES, -(-len(queries) // n_threads)))
        parts = [slice(start, min(start + size, len(queries))) for start in range(0, len(queries), size)]
        found = in_threads(lambda part: self._block(rows, queries[part], wanted, count, n_probes), parts, n_threads)
        distances, indices = (np.concatenate(each) for each in zip(*found, strict=True))
        missed = np.flatnonzero(~np.isfinite(distances[:, -1]))
        if missed.size:
            distances[missed], indices[missed] = rows.nearest(queries[missed], wanted, None, n_threads)
        if own is None:
            return distances, indices
        order = np.argsort(indices == own[:, None], axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, order, axis=1), np.take_along_axis(indices, order, axis=1)

    def _block(self, rows: Rows, queries: FloatArray, k: int, count: int, n_probes: int) -> tuple[Float64, Int64]:
        """Return what `nearest` does for some queries: by the graph, or, with ``n_probes``, by cells."""
        sums, fine = self._short(queries)
        if n_probes:
            assert self._arranged is not None
            candidates, bounds = self._arranged.candidates(sums, count, n_probes, self.reach)
        else:
            candidates, bounds = self.candidates(sums, count)
        unit, order = self.sums.unit, self._by_cells(candidates)
        if fine is not None:
            assert self.fine is not None
            # None is left out by its bound: all are to be in order.
            reached, candidates = _nearest_listed(fine, self._fine_sums, candidates, bounds, 0.0, count, order)
            bounds, unit = reached.astype(np.float32), self.fine.unit
        unit /= self.tightness
        if rows.resident is not None:
            return _nearest_listed(queries, rows.resident, candidates, bounds, unit, k, order)
        taken, inverse = np.unique(candidates, return_inverse=True)
        places = inverse.reshape(candidates.shape) - int((taken < 0).any())
        distances, indices = _nearest_listed(queries, rows.take(taken[taken >= 0]), places, bounds, unit, k, order)
        known = indices >= 0
        indices[known] = taken[taken >= 0][indices[known]]
        return distances, indices

    def _by_cells(self, candidates: Int64) -> Int64:
        """Return an order of queries in which neighbours come together, so that what they read is still at hand."""
        return np.argsort(self._cells[candidates[:, 0]], kind="stable")

    def _arrange(self) -> None:
        """Bring the sums of all rows into the order of their cells."""
        if self._arranged is None:
            numbers, n_inside = self._numbers[:-1], self._inside.size
            inside = self._graph.reconstruct_n(0, n_inside) if n_inside else self._others[:0]
            sums = np.vstack([inside, self._others])
            self._arranged = Arranged.make(self._centers, numbers, self._cells[numbers], sums)

    def candidates(self, sums: Float32, count: int) -> tuple[Int64, Float32]:
        """Return rows that may be near to every query, -1 for none, and the distances of their sums, ascending.

        By the graph. Queries are given by their sums; both results are ``(n_queries, count)``.
        """
        from heatmover._compiled.l1 import REGISTER_ROWS, keep_smallest, l1_tile

        faiss = _faiss()
        distances = np.full((len(sums), count), np.inf)
        nodes = np.full((len(sums), count), np.iinfo(np.int64).max)
        n_inside = self._inside.size
        if n_inside:
            with _one_thread(faiss):
                settings = faiss.SearchParametersHNSW(efSearch=count)
                values, places = self._graph.search(sums, min(count, n_inside), params=settings)
            reached = places >= 0
            distances[:, : values.shape[1]] = np.where(reached, values, np.inf)
            nodes[:, : values.shape[1]] = np.where(reached, places, np.iinfo(np.int64).max)
        if len(self._others):
            shape = [-(-len(side) // REGISTER_ROWS) * REGISTER_ROWS for side in (sums, self._others)]
            tile = np.empty(shape)
            l1_tile(readable(sums, np.float32), self._others, np.float32(1), False, tile)
            outside = np.ascontiguousarray(tile[: len(sums), : len(self._others)])
            keep_smallest(outside, n_inside, distances, nodes)
        return self._numbers[np.minimum(nodes, self._numbers.size - 1)], distances.astype(np.float32)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as arrays, from which `restored` makes it again."""
        return {
            "graph": _faiss().serialize_index(self._graph),
            "inside": self._inside,
            "held": self._held,
            "tail": self._tail,
            **_arrays_of(self.sums, ""),
            **({} if self.fine is None else _arrays_of(self.fine, "fine_")),
            "fine_sums": self._fine_sums,
            "centers": self._centers,
            "cells": self._cells,
            "numbers": np.array([self.effort, self.n_probes, self.reach, self.tightness, self.recall, self.n_rows]),
        }

    @classmethod
    def restored(cls, arrays: dict[str, npt.NDArray[Any]]) -> Shortlist:
        """Make it from arrays that were checked; `extend` makes it ready."""
        fine = _sums_in(arrays, "fine_") if "fine_centre" in arrays else None
        graph = _faiss().deserialize_index(arrays["graph"])
        made = cls(_sums_in(arrays, ""), fine, graph, arrays["inside"], arrays["held"])
        effort, n_probes, made.reach, made.tightness, made.recall, n_rows = arrays["numbers"].tolist()
        made.effort, made.n_probes, made.n_rows = int(effort), int(n_probes), int(n_rows)
        made._tail, made._fine_sums = arrays["tail"], arrays["fine_sums"]
        made._centers, made._cells = arrays["centers"], arrays["cells"]
        return made


def _arrays_of(sums: Sums, prefix: str) -> dict[str, npt.NDArray[Any]]:
    groups, nothing = sums.groups, np.empty(0, dtype=np.int64)
    return {
        f"{prefix}columns": nothing if groups is None else groups.columns.astype(np.int64),
        f"{prefix}signs": np.empty(0) if groups is None else groups.signs,
        f"{prefix}starts": nothing if groups is None else groups.starts.astype(np.int64),
        f"{prefix}centre": sums.centre,
        f"{prefix}unit": np.array([sums.unit]),
    }


def _sums_in(arrays: dict[str, npt.NDArray[Any]], prefix: str) -> Sums:
    columns, signs, starts, centre, unit = (
        arrays[f"{prefix}{name}"] for name in ("columns", "signs", "starts", "centre", "unit")
    )
    groups = Groups(columns.astype(np.intp), signs, starts.astype(np.intp)) if columns.size else None
    return Sums(groups, centre, float(unit[0]))


def _nearest_listed(
    queries: FloatArray,
    rows: FloatArray,
    candidates: Int64,
    bounds: Float32,
    unit: float,
    k: int,
    order: Int64,
) -> tuple[Float64, Int64]:
    """Return distances and rows of the k nearest candidates of every query; infinity and -1 where there are fewer.

    Parameters
    ----------
    queries, rows
        ``(n_queries, n_features)`` and ``(n_rows, n_features)``.
    candidates, bounds
        ``(n_queries, n_candidates)``: rows, or -1 for none. One whose bound times ``unit`` exceeds the k-th distance
        may be left out.
    order
        In which queries are looked at, ``(n_queries,)``.
    """
    from heatmover._compiled.listed import nearest_listed

    shape, none = (len(queries), k), np.iinfo(np.int64).max
    distances, indices = np.full(shape, np.inf), np.full(shape, none)
    dtype = rows.dtype.newbyteorder("=")
    nearest_listed(
        readable(queries, dtype),
        np.repeat(order, 3).reshape(-1, 3),
        readable(rows, dtype),
        np.ascontiguousarray(candidates[order], dtype=np.int64),
        bounds[order],
        unit,
        dtype.type(1),
        np.empty((3, 3)),
        distances,
        indices,
    )
    indices[indices == none] = -1
    back = np.argsort(order)
    return distances[back], indices[back]


def recall(found: Int64, truth: Int64) -> float:
    """Return the share of the true neighbours ``(n_queries, k)`` that were found."""
    hits = [np.isin(right, got).mean() for got, right in zip(found, truth, strict=True)]
    return float(np.mean(hits))


def _choose_sums(rows: Rows, drawn: Int64) -> tuple[Sums, Sums | None]:
    """Return as many sums as make a shortlist that holds the nearest cost least, tried on a sample; and finer ones."""
    resident = rows.take(drawn[:1])
    most = max(4 * N_TRIED, min(MOST_TRIED, TRIED_BYTES // resident.nbytes))
    sample = rows.take(np.sort(drawn[:most]))
    n_tried = min(N_TRIED, max(1, len(sample) // 4))
    # Every so many-th row, for the sample is in the order of the rows.
    places = np.linspace(0, len(sample) - 1, n_tried).astype(np.int64)
    queries, targets = sample[places], np.delete(sample, places, axis=0)
    k = min(N_NEIGHBORS, len(targets))
    truth = np.argsort(pairwise_distances(queries, targets), axis=1, kind="stable")[:, :k]
    fine = Sums.learnt(sample, N_FINE) if sample.shape[1] >= WIDE * N_FINE else None
    if fine is not None:
        sample, queries, targets = (fine.of(part) for part in (sample, queries, targets))
    best, least = None, math.inf
    for count in N_SUMS:
        sums = Sums.learnt(sample, count)
        needed = _needed(sums, queries, targets, truth)
        cost = max(needed, EFFORTS[0]) * (CANDIDATE_COST + SUM_COST * sums.count + FEATURE_COST * sample.shape[1])
        if cost < least:
            best, least = sums, cost
        if sums.groups is None:
            break
    assert best is not None
    return best, fine


def _needed(sums: Sums, queries: FloatArray, targets: FloatArray, truth: Int64) -> int:
    """Return how long a list by sums has to be to hold the share of the neighbours that is asked for."""
    distances = pairwise_distances(sums.of(queries), sums.of(targets))
    order = np.argsort(distances, axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None], axis=1)
    ranks = np.take_along_axis(place, truth, axis=1)
    return int(np.quantile(ranks, ASKED, method="higher")) + 1


def _levels(faiss: Any, graph: Any, count: int) -> npt.NDArray[np.int32]:
    """Return the number of levels of the first nodes: each higher one has a sixteenth of the nodes."""
    most = faiss.vector_to_array(graph.assign_probas).size
    drawn = 1 - np.random.default_rng(1).random(count)  # in (0, 1]; the first are the same for any count
    levels: npt.NDArray[np.int32] = np.minimum(1 + np.floor(-np.log(drawn) / math.log(N_LINKS)), most).astype(np.int32)
    return levels


def _faiss() -> Any:
    return import_extra("faiss", package="faiss-cpu", extra="search")


@contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    """Let faiss use this thread alone: several would link rows in an order that chance decides."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
