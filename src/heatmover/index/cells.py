"""Cells of near rows: how the candidates of many queries are found together.

A graph leads one query at a time to its candidates, from row to row all over the memory. Many queries are cheaper
together: rows lie in cells around centres, and every cell is compared with all queries that have its centre among
their nearest, tile by tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64, Int64
from heatmover.embedding.distances import pairwise_distances, readable
from heatmover.embedding.neighbors import nearest

__all__ = ["Arranged", "cells_of", "learn_centers"]

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

# Centres per root of the number of rows. 17,143 digits, 64 sums, rows and centres that a query is compared with until
# 99 % of the ten nearest are among them: 2,400 with 64 centres, 1,600 with 128, 1,290 with 256 and 512.
PER_ROOT = 2.0
# Rows per centre that centres are learnt from, and how often they move.
PER_CENTER, MOVES = 50, 4
# Times as many cells as usual that a query of a new kind may look into.
MORE = 4
# Queries and rows that are compared in one tile: multiples of the three of the kernel.
TILE_QUERIES, TILE_ROWS = 48, 192
# Queries whose distances from all centres are held at a time: 16 MB with the centres of a million rows.
RANKED_QUERIES = 1024


def learn_centers(sums: Float32, n_threads: int) -> Float32:
    """Return centres of rows of sums ``(n_rows, n_sums)`` in random order, by k-means with L1 distances."""
    count = min(len(sums), max(1, round(PER_ROOT * math.sqrt(len(sums)))))
    sample = sums[: PER_CENTER * count]
    centers = sample[:count].copy()
    for _ in range(MOVES):
        own = cells_of(sample, centers, n_threads)
        order = np.argsort(own, kind="stable")
        taken, starts = np.unique(own[order], return_index=True)
        totals = np.add.reduceat(sample[order].astype(np.float64), starts, axis=0)
        centers[taken] = totals / np.bincount(own)[taken, None]
    return centers


def cells_of(sums: Float32, centers: Float32, n_threads: int) -> Int32:
    """Return the cell of every row, ``(n_rows,)``: that of the nearest centre."""
    return nearest(sums, 1, centers, n_jobs=n_threads)[1][:, 0].astype(np.int32)


@final
@dataclass(frozen=True, eq=False)
class Arranged:
    """Rows of sums, cell by cell.

    Attributes
    ----------
    centers
        ``(n_cells, n_sums)``.
    starts
        Where the cells begin and end, ``(n_cells + 1,)``.
    rows, sums
        Numbers of the rows, ``(n_rows,)``, and their sums, ``(n_rows, n_sums)``.
    """

    centers: Float32
    starts: Int64
    rows: Int64
    sums: Float32

    @classmethod
    def make(cls, centers: Float32, rows: Int64, cells: Int32, sums: Float32) -> Arranged:
        """Arrange rows ``(n_rows,)`` by their cells."""
        order = np.lexsort((rows, cells))
        starts = np.searchsorted(cells[order], np.arange(len(centers) + 1))
        return cls(readable(centers, np.float32), starts, rows[order], readable(sums[order], np.float32))

    def candidates(self, queries: Float32, count: int, n_probes: int, reach: float) -> tuple[Int64, Float32]:
        """Return the rows with the nearest sums in the nearest cells of every query, -1 for none, and their distances.

        Parameters
        ----------
        queries
            ``(n_queries, n_sums)``.
        count, n_probes
            Of rows, and of cells.
        reach
            Up to ``MORE`` times as many cells are looked into while their centres are at most so many times as far as
            the nearest: a query of a new kind is about as far from all of them.

        Returns
        -------
        rows, distances : ndarray of shape (n_queries, count)
            Ascending.
        """
        from heatmover._compiled.listed import nearest_in_cells

        most = min(MORE * n_probes, len(self.centers))
        away, near = self.nearest_cells(queries, most)
        asked, places = np.nonzero((np.arange(most) < n_probes) | (away <= reach * away[:, :1]))
        probed = near[asked, places].astype(np.int32)
        order = np.argsort(probed, kind="stable")
        edges = np.searchsorted(probed[order], np.arange(len(self.centers) + 1))
        none = np.iinfo(np.int64).max
        distances, rows = np.full((len(queries), count), np.inf), np.full((len(queries), count), none)
        nearest_in_cells(
            readable(queries, np.float32),
            asked[order],
            edges,
            self.sums,
            self.starts,
            self.rows,
            np.float32(1),
            np.empty((TILE_QUERIES, queries.shape[1]), dtype=np.float32),
            np.empty(TILE_QUERIES * TILE_ROWS),
            distances,
            rows,
        )
        rows[rows == none] = -1
        return rows, distances.astype(np.float32)

    def nearest_cells(self, queries: Float32, n_cells: int) -> tuple[Float64, Int64]:
        """Return the distances of the nearest centres, ``(n_queries, n_cells)``, in order, and whose they are.

        Cells are many and centres few, so that all distances are taken and then divided: keeping the nearest 76 of 489
        as they come took three times as long.
        """
        parts = [queries[start : start + RANKED_QUERIES] for start in range(0, len(queries), RANKED_QUERIES)]
        found = [
            _smallest(pairwise_distances(part, self.centers, n_jobs=1).astype(np.float64), n_cells) for part in parts
        ]
        away, near = (np.concatenate(each) for each in zip(*found, strict=True))
        return away, near


def _smallest(distances: Float64, count: int) -> tuple[Float64, Int64]:
    """Return the smallest of each row in order, and their columns; of equal ones the first comes first."""
    columns = np.argpartition(distances, count - 1, axis=1)[:, :count]
    columns.sort(axis=1)
    kept = np.take_along_axis(distances, columns, axis=1)
    order = np.argsort(kept, axis=1, kind="stable")
    return np.take_along_axis(kept, order, axis=1), np.take_along_axis(columns, order, axis=1).astype(np.int64)
