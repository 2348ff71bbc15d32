"""Nearest neighbours of points among themselves: exact where that is fast, approximate where it is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial import cKDTree

from heatmover._validation import check_option, check_threads

__all__ = ["Search", "Support", "k_nearest", "within_radius"]

FloatPoints = npt.NDArray[np.floating[Any]]

# A k-d tree visits a share of the points that grows exponentially with the dimension of the data itself, not of
# the space. Measured (30 neighbours, 2 cores): it beats the blocked products up to about this dimension.
TREE_DIMENSION = 7.0
# Blocked products cost n^2: about 4 s for 20,000 points in 50 dimensions on 2 cores.
BLOCKED_BELOW = 20_000
SAMPLE = 1_000
BLOCK = 512


@dataclass(frozen=True)
class Search:
    """How neighbours were found.

    Attributes
    ----------
    algorithm
        ``"tree"`` and ``"blocked"`` are exact, ``"cells"`` is approximate, ``"radius"`` takes all within a radius.
    recall
        Share of true neighbours found, measured on a sample; 1.0 if exact.
    reason
        Why this algorithm, in plain words.
    """

    algorithm: str
    recall: float
    reason: str


@dataclass(frozen=True, eq=False)
class Support:
    """Neighbours of every point.

    Attributes
    ----------
    distances
        CSR ``(n_points, n_points)`` without the diagonal; explicit zeros are duplicates.
    middle
        Distance to the middle neighbour, ``(n_points,)``.
    search
        How they were found.
    """

    distances: sp.csr_array
    middle: npt.NDArray[np.float64]
    search: Search


def k_nearest(points: FloatPoints, k: int, *, algorithm: str = "auto", rng: np.random.Generator) -> Support:
    """Find the k nearest neighbours of every point, itself excluded.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite, more than ``k``.
    k
        Number of neighbours.
    algorithm
        ``"auto"``, ``"tree"``, ``"blocked"`` or ``"cells"``.
    rng
        Used by the sample that chooses the algorithm and by the cells.
    """
    check_option("neighbors", algorithm, ["auto", "tree", "blocked", "cells"])
    search = _choose(points, k, rng) if algorithm == "auto" else Search(algorithm, 1.0, "as asked for")
    if search.algorithm == "tree":
        distances, indices = _by_tree(points, points, k + 1)
    elif search.algorithm == "blocked":
        distances, indices = _by_blocks(points, k + 1)
    else:
        distances, indices = _by_cells(points, k + 1, rng)
    distances, indices = _without_self(distances, indices)
    if search.algorithm == "cells":
        search = Search("cells", _measure_recall(points, indices, rng), search.reason)
    n_points = len(points)
    offsets = np.arange(0, n_points * k + 1, k)
    matrix = sp.csr_array((distances.ravel(), indices.ravel().astype(np.int32), offsets), shape=(n_points, n_points))
    return Support(matrix, distances[:, max(k // 2 - 1, 0)].copy(), search)


def within_radius(points: FloatPoints, radius: float) -> Support:
    """Join all points within ``radius`` of each other; a point may have none."""
    tree = cKDTree(points)
    pairs = tree.query_pairs(radius, output_type="ndarray")
    lengths = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
    rows, columns = np.r_[pairs[:, 0], pairs[:, 1]], np.r_[pairs[:, 1], pairs[:, 0]]
    matrix = sp.csr_array((np.r_[lengths, lengths], (rows, columns)), shape=(len(points), len(points)))
    middle = np.full(len(points), radius / 2)
    return Support(matrix, middle, Search("radius", 1.0, f"all pairs within {radius:g}"))


def _choose(points: FloatPoints, k: int, rng: np.random.Generator) -> Search:
    n_points, n_dimensions = points.shape
    if n_points <= SAMPLE:
        return Search("tree", 1.0, f"{n_points} points: exact search is instant")
    dimension = n_dimensions if n_dimensions <= 3 else _intrinsic_dimension(points, k, rng)
    if dimension <= TREE_DIMENSION:
        return Search("tree", 1.0, f"the data look {dimension:.1f}-dimensional: an exact tree is fast")
    if n_points <= BLOCKED_BELOW:
        return Search("blocked", 1.0, f"the data look {dimension:.1f}-dimensional, {n_points} points: exact products")
    return Search("cells", np.nan, f"{n_points} points that look {dimension:.1f}-dimensional: exact search is slow")


def _intrinsic_dimension(points: FloatPoints, k: int, rng: np.random.Generator) -> float:
    """Estimate the dimension of the data from how distances grow with rank (Levina and Bickel 2004)."""
    some = points[np.sort(rng.choice(len(points), SAMPLE, replace=False))]
    distances, _ = _by_tree(some, some, min(k, 20) + 1)
    distances = distances[distances[:, 1] > 0, 1:]
    if len(distances) == 0:
        return 0.0
    logs = np.log(distances[:, -1:] / distances[:, :-1])
    growth = float(logs.mean())
    return 1 / growth if growth > 0 else float(points.shape[1])


def _by_tree(points: FloatPoints, queries: FloatPoints, k: int) -> tuple[Any, Any]:
    return cKDTree(points).query(queries, k=k, workers=check_threads(None))  # type: ignore[no-any-return]


def _by_blocks(points: FloatPoints, k: int) -> tuple[Any, Any]:
    """Compare every point with every other in blocks of one matrix product each."""
    everyone = np.arange(len(points))
    return _search_blocks(points, [(block, everyone) for block in _blocks(everyone)], k)


def _by_cells(points: FloatPoints, k: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Compare every point with the points of the cells nearest to its own cell's centre."""
    n_cells = int(np.sqrt(len(points)) / 2)
    centres = points[np.sort(rng.choice(len(points), n_cells, replace=False))].astype(np.float64)
    for _ in range(2):  # two rounds of k-means even the cells out; more did not raise the recall
        cell = _nearest_centre(points, centres)
        counts = np.bincount(cell, minlength=n_cells)
        for axis in range(points.shape[1]):
            sums = np.bincount(cell, weights=points[:, axis], minlength=n_cells)
            centres[:, axis] = np.where(counts > 0, sums / np.maximum(counts, 1), centres[:, axis])
    cell = _nearest_centre(points, centres)
    members = np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell, minlength=n_cells))[:-1])
    probes = min(n_cells, 24)
    _, nearby = _by_tree(centres, centres, probes)
    tasks = []
    for own, others in zip(members, np.atleast_2d(nearby), strict=True):
        if own.size:
            candidates = np.concatenate([members[other] for other in others])
            tasks += [(block, _at_least(candidates, k, len(points))) for block in _blocks(own)]
    return _search_blocks(points, tasks, k)


def _at_least(candidates: npt.NDArray[np.intp], k: int, n_points: int) -> npt.NDArray[np.intp]:
    """Fall back to all points where the cells hold too few."""
    return candidates if candidates.size >= k else np.arange(n_points)


def _nearest_centre(points: FloatPoints, centres: FloatPoints) -> npt.NDArray[np.intp]:
    nearest = np.empty(len(points), dtype=np.intp)
    half = (centres**2).sum(axis=1) / 2
    for block in _blocks(np.arange(len(points)), 4096):
        nearest[block] = np.argmin(half - points[block] @ centres.T, axis=1)
    return nearest


def _search_blocks(points: FloatPoints, tasks: list[tuple[Any, Any]], k: int) -> tuple[Any, Any]:
    """For each (queries, candidates) find the k nearest candidates of each query; indices into ``points``."""
    distances = np.empty((len(points), k))
    indices = np.empty((len(points), k), dtype=np.intp)
    # Products of centred float32 points find the candidates; their distances are then computed in full.
    centred = np.asarray(points - points.mean(axis=0), dtype=np.float32)
    squares = (centred**2).sum(axis=1)

    def search(task: tuple[Any, Any]) -> None:
        queries, candidates = task
        scores = squares[candidates] - 2 * (centred[queries] @ centred[candidates].T)
        kept = min(k + 4, candidates.size)  # a few more than needed: float32 may swap near ties
        near = candidates[np.argpartition(scores, kept - 1, axis=1)[:, :kept]]
        lengths = np.sqrt(((points[near] - points[queries][:, None]) ** 2).sum(axis=2, dtype=np.float64))
        order = np.lexsort((near, lengths), axis=1)[:, :k]
        distances[queries] = np.take_along_axis(lengths, order, axis=1)
        indices[queries] = np.take_along_axis(near, order, axis=1)

    with ThreadPoolExecutor(check_threads(None)) as pool:
        list(pool.map(search, tasks))
    return distances, indices


def _blocks(indices: npt.NDArray[np.intp], size: int = BLOCK) -> list[npt.NDArray[np.intp]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _without_self(distances: Any, indices: Any) -> tuple[Any, Any]:
    """Drop each point from its own k + 1 neighbours, or the last one where duplicates crowd it out."""
    n_points, count = indices.shape
    drop = indices == np.arange(n_points)[:, None]
    drop[~drop.any(axis=1), -1] = True
    return distances[~drop].reshape(n_points, count - 1), indices[~drop].reshape(n_points, count - 1)


def _measure_recall(points: FloatPoints, found: Any, rng: np.random.Generator) -> float:
    """Compare with exact search on a sample; neighbours at equal distance count as found."""
    sample = rng.choice(len(points), min(200, len(points)), replace=False)
    k = found.shape[1]
    hits = 0
    for query in sample:
        lengths = np.linalg.norm(points - points[query], axis=1)
        lengths[query] = np.inf
        radius = np.partition(lengths, k - 1)[k - 1]
        hits += int((lengths[found[query]] <= radius).sum())
    return float(hits / (k * len(sample)))
