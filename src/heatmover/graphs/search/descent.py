"""Approximate nearest neighbours by descent: neighbours of neighbours are likely neighbours (Dong et al. 2011).

Random k-d cells give every point a first list of neighbours. Then each point looks at the lists of its neighbours, and
at the lists of the points that have it as a neighbour, until hardly anything changes. Cost grows linearly with the
number of points and with the dimension of the space, not exponentially with the dimension of the data.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from heatmover._threads import one_blas_thread
from heatmover._typing import Float64, Int32, Intp
from heatmover._validation import check_threads

__all__ = ["descend"]


# Measured on 50,000 points, 30 neighbours: four cells of 64 find 54 % in a noisy 8-D tree, 42 % in 8-D and 8 % in 30-D
# Gaussians, from which descent reaches 100 and 99.8 % in two rounds, and 94 % when it settles.
TREES = 4
CELL = 64
# So many points that have a point as a neighbour are looked at too: without them lists stay within their first cells.
REVERSE = 15
MOST_ROUNDS = 12
# Descent ends when a round changes less than this share of all entries.
SETTLED = 0.002
# Pieces of work: a fixed number, so that lists do not depend on the number of threads.
PIECES = 16


def descend(points: Float64, k: int, rng: np.random.Generator, *, n_threads: int | None = None) -> tuple[Float64, Intp]:
    """Find about the k nearest neighbours of every point, itself excluded.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite, more than ``k``.
    k
        Number of neighbours.
    rng
        Rotates the points before they are cut into cells.
    n_threads
        Threads; None for all cores. Lists do not depend on them.

    Returns
    -------
    distances, indices
        ``(n_points, k)`` each, nearest first.
    """
    # Points that lie close together in space lie close together in memory.
    order = cKDTree(points).indices
    return _in_full_precision(
        points, order, _settled_lists(_single_precision(points[order]), k, rng, check_threads(n_threads))
    )


def _settled_lists(points: npt.NDArray[np.float32], k: int, rng: np.random.Generator, n_threads: int) -> Int32:
    """Return each point's list ``(n_points, k)`` when hardly anything changes any more."""
    from heatmover._compiled.descent import improve, with_reverse

    n_points = len(points)
    squares = np.full((n_points, k), np.inf, dtype=np.float32)
    lists = np.full((n_points, k), -1, dtype=np.int32)
    nearby = np.empty((n_points, k + REVERSE), dtype=np.int32)
    edges = np.linspace(0, n_points, PIECES + 1).astype(int)
    # The last bits of a rotation depend on the threads of the linear algebra library, and with them the cells.
    with one_blas_thread(), ThreadPoolExecutor(n_threads) as pool:
        _first_lists(points, squares, lists, rng, pool)
        for _ in range(MOST_ROUNDS):
            with_reverse(lists, nearby)
            changes = pool.map(lambda piece: improve(points, nearby, *piece, squares, lists), pairwise(edges))
            if sum(changes) < SETTLED * lists.size:
                break
    return lists


def _single_precision(points: Float64) -> npt.NDArray[np.float32]:
    """Centre and scale, so that neither the offset nor the unit of the data costs digits or leaves the range."""
    centred = points - points.mean(axis=0)
    return np.asarray(centred / (np.abs(centred).max() or 1.0), dtype=np.float32)


def _first_lists(
    points: npt.NDArray[np.float32],
    squares: npt.NDArray[np.float32],
    lists: Int32,
    rng: np.random.Generator,
    pool: ThreadPoolExecutor,
) -> None:
    """Compare all points within the cells of a few k-d trees, each of the points rotated at random."""
    from heatmover._compiled.descent import join_cells

    n_points, n_dimensions = points.shape
    # Cells large enough that every list is full after the first tree.
    size = max(CELL, lists.shape[1] + 1)
    # The last cell takes what is left over, so that none is too small to fill a list.
    last = size * max(n_points // size - 1, 0)
    edges = size * np.linspace(0, last // size, PIECES + 1).astype(int)
    for _ in range(TREES):
        rotation, _ = np.linalg.qr(rng.standard_normal((n_dimensions, n_dimensions)))
        members = cKDTree(points @ rotation.astype(np.float32), leafsize=size).indices
        list(pool.map(lambda piece: join_cells(points, members, size, *piece, squares, lists), pairwise(edges)))  # noqa: B023
        join_cells(points, members[last:], n_points - last, 0, 1, squares, lists)


def _in_full_precision(points: Float64, order: Intp, lists: Int32) -> tuple[Float64, Intp]:
    """Undo the order and compute the distances again, in full; ties go to the smaller index."""
    n_points, k = lists.shape
    distances, indices = np.empty((n_points, k)), np.empty((n_points, k), dtype=np.intp)
    for start in range(0, n_points, 8192):
        here, near = order[start : start + 8192], order[lists[start : start + 8192]]
        lengths = np.zeros(near.shape)
        for axis in range(points.shape[1]):
            lengths += (points[near, axis] - points[here, axis, None]) ** 2
        sorting = np.lexsort((near, lengths), axis=1)
        distances[here] = np.sqrt(np.take_along_axis(lengths, sorting, axis=1))
        indices[here] = np.take_along_axis(near, sorting, axis=1)
    return distances, indices
