"""L1 distances of rows to candidates: lists of them, or the cells in which they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._compiled.jit import inner, kernel
from heatmover._compiled.l1 import CHUNK, REORDER, l1_tile
from heatmover._typing import Float64, FloatArray, Int64


@kernel(REORDER)
def nearest_listed(
    queries: FloatArray,
    threefold: Int64,
    rows: FloatArray,
    candidates: Int64,
    bounds: npt.NDArray[np.float32],
    unit: float,
    one: Any,
    tile: Float64,
    distances: Float64,
    indices: Int64,
) -> None:
    """Merge the distances of every query to its candidates into sorted lists of the k smallest.

    A candidate whose bound exceeds the k-th distance that was found is not compared. Three candidates at a time are
    compared by the loop of ``l1_tile``, as three rows of a tile whose other side is the query three times, so that a
    distance has the bits that it has in every other search. The compiler must not know that the three are one or that
    six sums are not needed, or it makes another loop of it. The loop is written out once more: as a function of its own
    it took ``l1_tile`` half of its speed. Candidates copied side by side for ``l1_tile`` took three times as long.

    Parameters
    ----------
    queries
        ``(n_queries, n_features)``.
    threefold
        ``(n_queries, 3)``: the number of every query, three times.
    rows
        ``(n_rows, n_features)``.
    candidates
        ``(n_queries, n_candidates)``: rows, or -1 for none; those with the smallest bounds first.
    bounds, unit
        ``(n_queries, n_candidates)``: times ``unit``, what the distance is taken to be at least.
    one
        1 in the type of the rows, see ``l1_tile``.
    tile
        Room for nine sums, ``(3, 3)``.
    distances, indices
        ``(n_queries, k)``, full of infinity and of the largest number.
    """
    k, n_features = distances.shape[1], queries.shape[1]
    waiting = np.empty(3, dtype=np.int64)
    for i in range(queries.shape[0]):
        count = 0
        for j in range(candidates.shape[1] + 1):
            last = j == candidates.shape[1]
            if not last:
                if candidates[i, j] < 0 or unit * bounds[i, j] > distances[i, k - 1]:
                    continue
                waiting[count] = candidates[i, j]
                count += 1
            if count == 3 or (last and count > 0):
                for copy in range(count, 3):
                    waiting[copy] = waiting[count - 1]
                tile[:] = 0
                for start in range(0, n_features, CHUNK):
                    stop = min(start + CHUNK, n_features)
                    b0 = rows[waiting[0], start:stop]
                    b1 = rows[waiting[1], start:stop]
                    b2 = rows[waiting[2], start:stop]
                    a0 = queries[threefold[i, 0], start:stop]
                    a1 = queries[threefold[i, 1], start:stop]
                    a2 = queries[threefold[i, 2], start:stop]
                    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = one - one
                    for f in range(stop - start):
                        s00 += one * abs(a0[f] - b0[f])
                        s01 += one * abs(a0[f] - b1[f])
                        s02 += one * abs(a0[f] - b2[f])
                        s10 += one * abs(a1[f] - b0[f])
                        s11 += one * abs(a1[f] - b1[f])
                        s12 += one * abs(a1[f] - b2[f])
                        s20 += one * abs(a2[f] - b0[f])
                        s21 += one * abs(a2[f] - b1[f])
                        s22 += one * abs(a2[f] - b2[f])
                    tile[0, 0] += s00
                    tile[0, 1] += s01
                    tile[0, 2] += s02
                    tile[1, 0] += s10
                    tile[1, 1] += s11
                    tile[1, 2] += s12
                    tile[2, 0] += s20
                    tile[2, 1] += s21
                    tile[2, 2] += s22
                for found in range(count):
                    _insert(tile[0, found], waiting[found], distances[i], indices[i])
                count = 0


@kernel(REORDER)
def nearest_in_cells(
    queries: FloatArray,
    asked: Int64,
    edges: Int64,
    sums: FloatArray,
    starts: Int64,
    rows: Int64,
    one: Any,
    some: FloatArray,
    room: Float64,
    distances: Float64,
    indices: Int64,
) -> None:
    """Merge the distances of queries to the rows of their cells into sorted lists of the smallest.

    Parameters
    ----------
    queries
        ``(n_queries, n_sums)``.
    asked, edges
        The queries of each cell, one cell after the other, and where cells begin and end there, ``(n_cells + 1,)``.
    sums, starts, rows
        ``(n_rows, n_sums)``, cell by cell; where cells begin and end; the numbers of the rows.
    one
        1 in the type of the sums, see ``l1_tile``.
    some, room
        Room for the queries of a tile ``(n, n_sums)``, and for the tile; multiples of three.
    distances, indices
        ``(n_queries, count)``, full of infinity and of the largest number.
    """
    most, width = some.shape[0], room.size // some.shape[0]
    n_kept = distances.shape[1]
    for cell in range(starts.size - 1):
        for first in range(edges[cell], edges[cell + 1], most):
            n_asked = min(most, edges[cell + 1] - first)
            for i in range(n_asked):
                some[i, :] = queries[asked[first + i]]
            for begin in range(starts[cell], starts[cell + 1], width):
                n_rows = min(width, starts[cell + 1] - begin)
                height, long = (n_asked + 2) // 3 * 3, (n_rows + 2) // 3 * 3
                tile = room[: height * long].reshape(height, long)
                l1_tile(some[:n_asked], sums[begin : begin + n_rows], one, False, tile)
                for i in range(n_asked):
                    query = asked[first + i]
                    for j in range(n_rows):
                        # The first of a heap is its largest.
                        if tile[i, j] <= distances[query, 0]:
                            _put_first(tile[i, j], rows[begin + j], distances[query], indices[query], n_kept)
    for query in range(distances.shape[0]):
        values, names = distances[query], indices[query]
        for count in range(n_kept - 1, 0, -1):
            value, name = values[count], names[count]
            values[count], names[count] = values[0], names[0]
            values[0], names[0] = np.inf, np.iinfo(np.int64).max
            _put_first(value, name, values, names, count)


@inner()
def _put_first(distance: float, index: int, distances: Float64, indices: Int64, count: int) -> None:
    """Put one candidate in the place of the largest of a heap of so many, if it is smaller."""
    if not _before(distance, index, distances[0], indices[0]):
        return
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        other = below + 1
        if other < count and _before(distances[below], indices[below], distances[other], indices[other]):
            below = other
        if not _before(distance, index, distances[below], indices[below]):
            break
        distances[place], indices[place] = distances[below], indices[below]
        place = below
    distances[place], indices[place] = distance, index


@inner()
def _before(distance: float, index: int, other: float, other_index: int) -> bool:
    return distance < other or (distance == other and index < other_index)


@inner()
def _insert(distance: float, index: int, distances: Float64, indices: Int64) -> None:
    """Put one candidate into a sorted list of the k smallest, by distance and then by index."""
    place = distances.size
    while place > 0 and (
        distance < distances[place - 1] or (distance == distances[place - 1] and index < indices[place - 1])
    ):
        place -= 1
        if place < distances.size - 1:
            distances[place + 1] = distances[place]
            indices[place + 1] = indices[place]
    if place < distances.size:
        distances[place] = distance
        indices[place] = index
