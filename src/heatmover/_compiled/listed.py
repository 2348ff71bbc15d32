"""L1 distances of rows to lists of candidates, nearest first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from heatmover._compiled.l1 import l1_tile
from heatmover._typing import Float64, FloatArray, Int64


@njit(cache=True, nogil=True)
def nearest_listed(
    queries: FloatArray,
    rows: FloatArray,
    candidates: Int64,
    bounds: npt.NDArray[np.float32],
    unit: float,
    one: Any,
    left: FloatArray,
    right: FloatArray,
    distances: Float64,
    indices: Int64,
) -> None:
    """Merge the distances of every query to its candidates into sorted lists of the k smallest.

    Three candidates at a time go through ``l1_tile`` as three rows of a tile, so that a distance has the bits that it
    has in every other search. A candidate whose bound exceeds the k-th distance that was found is not compared.

    Parameters
    ----------
    queries
        ``(n_queries, n_features)``.
    rows
        ``(n_rows, n_features)``.
    candidates
        ``(n_queries, n_candidates)``: rows, or -1 for none; those with the smallest bounds first.
    bounds, unit
        ``(n_queries, n_candidates)``: times ``unit``, at most the distance.
    one
        1 in the type of the rows, see ``l1_tile``.
    left, right
        Room for three rows each, ``(3, n_features)``, writable.
    distances, indices
        ``(n_queries, k)``, full of infinity and of the largest number.
    """
    k = distances.shape[1]
    tile = np.empty((3, 3))
    waiting = np.empty(3, dtype=np.int64)
    for i in range(queries.shape[0]):
        for copy in range(3):
            left[copy, :] = queries[i]
        count = 0
        for j in range(candidates.shape[1] + 1):
            last = j == candidates.shape[1]
            if not last:
                if candidates[i, j] < 0 or unit * bounds[i, j] > distances[i, k - 1]:
                    continue
                waiting[count] = candidates[i, j]
                right[count, :] = rows[candidates[i, j]]
                count += 1
            if count == 3 or (last and count > 0):
                for copy in range(count, 3):
                    right[copy, :] = right[count - 1]
                l1_tile(left, right, one, False, tile)
                for found in range(count):
                    _insert(tile[0, found], waiting[found], distances[i], indices[i])
                count = 0


@njit(cache=True, nogil=True)
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
