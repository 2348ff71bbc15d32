"""The rows of an index, in memory or on disk, and the exact search among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from heatmover._typing import Float64, FloatArray, Int64
from heatmover.embedding.distances import for_each_tile
from heatmover.embedding.neighbors import nearest
from heatmover.storage import Samples

__all__ = ["Rows", "grown", "without"]

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
            distances, found = nearest(queries, min(wanted, len(block)), block, n_jobs=n_threads)
            best = _merged(best, (distances, found + first), wanted)
        return best if own is None else without(*best, own, k)

    def within(self, queries: FloatArray, radius: float, n_threads: int) -> list[tuple[Float64, Int64]]:
        """Return distances and rows of all that are at most ``radius`` from every query, in order."""
        # Lists grow from several threads; the order is made at the end.
        found: list[tuple[Int64, Int64, Float64]] = [(_NONE, _NONE, np.empty(0))]
        for first, block in self.blocks():

            def keep(i: slice, j: slice, tile: Float64, first: int = first) -> None:
                near, place = np.nonzero(tile <= radius)
                found.append((near + i.start, place + (first + j.start), tile[near, place]))

            for_each_tile(queries, block, keep, n_threads=n_threads, limit=float(np.finfo(np.float64).max))
        query, rows, distances = (np.concatenate(each) for each in zip(*found, strict=True))
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


def grown(rows: FloatArray, more: FloatArray) -> FloatArray:
    """Return rows with more behind them, in room that is kept for the next ones: many small additions stay cheap.

    ``rows`` still holds what it held. It has to be the last that was made of its room, or what came later is lost.
    """
    total, room = len(rows) + len(more), rows.base
    if not (isinstance(room, np.ndarray) and room.shape[1:] == rows.shape[1:] and len(room) >= total):
        room = np.empty((total + total // 4, rows.shape[1]), dtype=rows.dtype)
        room[: len(rows)] = rows
    room[len(rows) : total] = more
    return room[:total]
