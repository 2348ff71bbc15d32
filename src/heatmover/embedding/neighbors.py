"""Nearest measures: the rows of an embedding that are closest in L1, without the matrix of all distances."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64, FloatArray, Int64
from heatmover._validation import check_integer, check_threads
from heatmover._words import counted
from heatmover.embedding.distances import check_rows, for_each_tile
from heatmover.embedding.sketch import choose_groups, nearest_by_groups
from heatmover.errors import InvalidInputError

__all__ = ["nearest"]

# Trying in vain whether most pairs can be left out took up to a tenth of the time of 16 million pairs, and of 2 million
# up to a third.
FEWEST_PAIRS = 5_000_000


def nearest(
    embedding: npt.ArrayLike, k: int, other: npt.ArrayLike | None = None, *, n_jobs: int | None = None
) -> tuple[Float64, Int64]:
    """Find the k nearest rows, in L1 distance, for each row of an embedding.

    The search is exact. It never holds the matrix of all distances, and where sums of columns show that most pairs are
    too far apart, it does not compute them: the nearest of 60,000 digits for 10,000 others take a thirtieth of it.

    Parameters
    ----------
    embedding
        Array (n_measures, n_features); types as in `heatmover.embedding.distances.pairwise_distances`.
    k
        How many neighbours to find for each row.
    other
        Array (n_others, n_features) in which to search. By default the search is in ``embedding`` itself, and
        a row is not its own neighbour; an equal row at another place is.
    n_jobs
        Threads to use; every available core for None or -1. The result has the same bits for any number.

    Returns
    -------
    distances : ndarray of shape (n_measures, k)
        float64, ascending in each row.
    indices : ndarray of shape (n_measures, k)
        int64, which row of ``other`` (or of ``embedding``). Of equal distances the smaller index comes first.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.embedding.neighbors import nearest
    >>> embedding = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
    >>> distances, indices = nearest(embedding, k=1)
    >>> distances.ravel(), indices.ravel()
    (array([1., 2., 1.]), array([2, 2, 0]))

    Where do new measures land among known ones?

    >>> nearest([[1.0, 1.5]], k=2, other=embedding)
    (array([[0.5, 1.5]]), array([[1, 2]]))
    """
    rows, others = check_rows(embedding, other)
    k = _check_k(k, rows, others)
    n_threads = check_threads(n_jobs)
    found = _nearest_by_groups(rows, others, k, n_threads)
    return _nearest_of_all(rows, others, k, n_threads) if found is None else found


def _nearest_by_groups(
    rows: FloatArray, others: FloatArray | None, k: int, n_threads: int
) -> tuple[Float64, Int64] | None:
    """Search with bounds, which gives the same bits, or return None where that does not pay."""
    if len(rows) * len(rows if others is None else others) < FEWEST_PAIRS:
        return None
    groups = choose_groups(rows, others, k)
    return None if groups is None else nearest_by_groups(rows, others, k, groups, n_threads=n_threads)


def _nearest_of_all(rows: FloatArray, others: FloatArray | None, k: int, n_threads: int) -> tuple[Float64, Int64]:
    """Compare all pairs."""
    distances = np.full((len(rows), k), np.inf)
    indices = np.full((len(rows), k), np.iinfo(np.int64).max)
    # Here, because numba takes most of a second to import.
    from heatmover._compiled.l1 import keep_smallest

    # A tile of one embedding holds candidates for both of its blocks, so two threads can meet at a block.
    locks: dict[int, threading.Lock] = {}

    def keep(block: slice, candidates: slice, tile: FloatArray) -> None:
        with locks.setdefault(block.start, threading.Lock()):
            # In C order always, or numba compiles the kernel for each layout.
            keep_smallest(np.ascontiguousarray(tile), candidates.start, distances[block], indices[block])

    def consume(i: slice, j: slice, tile: FloatArray) -> None:
        if others is None and i == j:
            # Never among the k: there are at least k finite candidates.
            np.fill_diagonal(tile, np.inf)
        keep(i, j, tile)
        if others is None and i != j:
            keep(j, i, tile.T)

    limit = float(np.finfo(np.float64).max)
    for_each_tile(rows, others, consume, n_threads=n_threads, limit=limit)
    return distances, indices


def _check_k(k: object, rows: FloatArray, others: FloatArray | None) -> int:
    count = check_integer("k", k, minimum=1)
    available = len(rows) - 1 if others is None else len(others)
    if count > available:
        raise InvalidInputError(
            f"k of at most {available}",
            f"k={count} with {counted(len(rows), 'row')} in embedding"
            if others is None
            else f"k={count} with {counted(len(others), 'row')} in other",
            "a row is not its own neighbour" if others is None else "",
        )
    return count
