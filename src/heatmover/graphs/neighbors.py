"""Nearest neighbors of points among themselves: exact where that is fast, approximate where it is not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial import cKDTree

from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import check_threads
from heatmover._base.words import counted
from heatmover.graphs.distinct import mixed
from heatmover.graphs.kernels import narrow
from heatmover.graphs.partition import TIE, Partition, Probe, least_recall

__all__ = ["SEARCHES", "Neighbors", "Search", "k_nearest", "middle_of_rows", "within_radius"]

SEARCHES = ("auto", "tree", "exact", "approximate")

Integers = npt.NDArray[np.integer[Any]]
Lists = tuple[Float64, Integers]

# Microseconds of computing per point below: 30 neighbors of Gaussians, on a shared machine.
# A k-d tree visits a share of the points that grows exponentially with the dimension of the data itself, not of the
# space: 15 at 3 dimensions (100,000 points), 37 at 5, 128 at 6 (200,000), where an exact search by parts takes 9, 13
# and 28. Of more points than that takes, an approximate search by parts finds 0.998 in 9 at 5 dimensions.
TREE_DIMENSION = 4.0
# An exact search by parts may look at so many coordinates per point, up to about 50 microseconds (a Gaussian, 200,000
# in 8 dimensions: 224,000 coordinates, 57; a simulated cohort, 100,000 in 8: 48,000, 16).
MOST_IN_REACH = 250_000.0
# Every point is compared with all middles first, a cost that grows with the square of their number.
EXACT_UP_TO = 200_000
# Up to here a tree takes at most 0.1 s in any dimension (a Gaussian in 50; of 5,000 points 0.5, where parts take 0.2),
# and parts take seconds to compile in the first search after installation.
TREE_UP_TO = 2_000
# Up to here any exact search takes less than a second.
EXACT_BELOW = 10_000
# Share of the true neighbors that an approximate search finds, with confidence.
WANTED = 0.99
# Points tied with the last neighbor are neighbors too, up to so many times as many as asked for. Shells of equal
# distances on a lattice: 24 beyond the first 32 neighbors in 3 dimensions, 91 beyond 14 for words of 14 bits.
MOST_TIED = 4
# Points with ties that are looked at together: with 120 neighbors each they take 100 MB.
TIED_AT_ONCE = 50_000
# Points with more ties than may be joined: each may be tied with all others.
CROWDED_AT_ONCE = 1_000


@dataclass(frozen=True)
class Search:
    """How neighbors were found.

    Attributes
    ----------
    algorithm
        ``"tree"`` and ``"exact"`` (by parts of the points) find the true neighbors, ``"approximate"`` nearly all,
        ``"radius"`` all within a radius.
    recall
        Share of true neighbors found, measured on a sample; 1.0 if exact.
    reason
        Why this algorithm, in plain words.
    """

    algorithm: str
    recall: float
    reason: str


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Neighbors of every point.

    Attributes
    ----------
    distances
        CSR ``(n_points, n_points)`` without the diagonal, each row ascending.
    middle
        Distance to the middle neighbor, ``(n_points,)``; where that is zero up to rounding, to the first neighbor
        at a larger distance; 0 if there is none.
    search
        How they were found.
    """

    distances: sp.csr_array
    middle: Float64
    search: Search


def k_nearest(
    points: Float64,
    k: int,
    *,
    algorithm: str = "auto",
    rng: np.random.Generator,
    n_threads: int | None = None,
    order: float = 2.0,
) -> Neighbors:
    """Find the k nearest neighbors of every point, itself excluded, and those as far as the last of them.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite, all different, more than ``k``.
    k
        Number of neighbors; 0 for a single point.
    algorithm
        One of `SEARCHES`. The exact ones join the same points; "approximate" looks for no ties.
    rng
        Used by the sample that chooses the algorithm and by the approximate search.
    n_threads
        Threads; None for all cores.
    order
        Of the norm: 2, or 1 and infinity, of which only the tree finds neighbors, and "auto" takes it.
    """
    n_threads, n_points = check_threads(n_threads), len(points)
    if k == 0:
        return Neighbors(sp.csr_array((n_points, n_points)), np.zeros(n_points), Search("tree", 1.0, "a single point"))
    if order != 2:
        distances, indices = _by_tree(points, np.arange(n_points), min(k + 1, n_points - 1), n_threads, order)
        search = Search("tree", 1.0, "the only search under this metric")
        return _with_ties(points, k, distances, indices, search, n_threads, order)
    search, prepared = Search(algorithm, 1.0, "as asked for"), _Prepared()
    if algorithm == "auto":
        search, prepared = _choose(points, k, rng, n_threads)
    if search.algorithm == "approximate":
        return _approximate(points, k, search, prepared, rng, n_threads)
    # One more than asked for tells whether the last is tied.
    count = min(k + 1, n_points - 1)
    if search.algorithm == "exact":
        distances, indices = _by_parts(points, count, prepared.partition, rng, n_threads)
    else:
        distances, indices = _by_tree(points, np.arange(n_points), count, n_threads)
    return _with_ties(points, k, distances, indices, search, n_threads)


class _Prepared(NamedTuple):
    """What the choice of a search has computed and the search can use."""

    partition: Partition | None = None
    probe: Probe | None = None


def _approximate(
    points: Float64, k: int, search: Search, prepared: _Prepared, rng: np.random.Generator, n_threads: int
) -> Neighbors:
    """Find about the k nearest by parts, and all of them if too few were found and the search was free to choose."""
    n_points = len(points)
    partition = prepared.partition or Partition.from_points(points, k, rng, strict=False, n_threads=n_threads)
    probe = prepared.probe or partition.probe(k, n_threads)
    lists: Lists = partition.k_nearest(k, probe.plan(WANTED, surely=True), n_threads)[:2]
    distances, indices = lists
    short = np.flatnonzero(indices[:, -1] < 0)
    if short.size:  # their neighbors are too far for a float32, or in parts of few points
        distances[short], indices[short] = _by_tree(points, short, k, n_threads)
    recalls = probe.recalls(distances)
    result = replace(search, recall=float(recalls.mean()) if recalls.size else 1.0)
    if np.isnan(search.recall) and recalls.size and least_recall(recalls, n_points) < WANTED:
        # What was planned is found, unless single precision spoils it.
        distances, indices = _by_parts(points, k, None, rng, n_threads)
        result = Search("exact", 1.0, f"{search.reason}; an approximate search found too few")
    part = _Part(np.arange(n_points), np.full(n_points, k), distances.ravel(), indices.ravel())
    return Neighbors(_matrix(n_points, [part]), _middle(distances, k), result)


def _by_parts(points: Float64, k: int, partition: Partition | None, rng: np.random.Generator, n_threads: int) -> Lists:
    """Find the k nearest exactly: in float32, and again by a tree in float64 where rounding could have decided."""
    partition = partition or Partition.from_points(points, k, rng, strict=True, n_threads=n_threads)
    distances, indices, seen = partition.k_nearest(k, partition.everything(), n_threads)
    unsure = np.flatnonzero((indices[:, -1] < 0) | ~(seen[:, 1] >= distances[:, -1] * (1 + TIE)))
    if unsure.size:
        distances[unsure], indices[unsure] = _by_tree(points, unsure, k, n_threads)
    return distances, indices


def _by_tree(points: Float64, rows: Intp, k: int, n_threads: int, order: float = 2.0) -> Lists:
    """Return the k nearest others of some points."""
    distances, indices = cKDTree(points).query(points[rows], k=k + 1, p=order, workers=n_threads)
    own = indices == rows[:, None]
    own[~own.any(axis=1), -1] = True  # points so close that their distance is zero crowd it out
    return distances[~own].reshape(-1, k), indices[~own].reshape(-1, k)


class _Part(NamedTuple):
    """Neighbors of some points: which, how many each has, and their distances and indices, point after point."""

    rows: Intp
    counts: Int64
    distances: Float64
    indices: Integers


def _with_ties(
    points: Float64, k: int, distances: Float64, indices: Integers, search: Search, n_threads: int, order: float = 2.0
) -> Neighbors:
    """Return the k nearest of each point and all that are tied with the last, unless these are too many.

    ``distances`` and ``indices`` are those of ``k + 1`` neighbors, or of all others if there are only k.
    """
    n_points = len(points)
    tied = distances[:, -1] <= distances[:, k - 1] * (1 + TIE) if distances.shape[1] > k else np.zeros(n_points, bool)
    rest = np.flatnonzero(~tied)
    parts = [_Part(rest, np.full(rest.size, k), distances[rest, :k].ravel(), indices[rest, :k].ravel())]
    width = min(MOST_TIED * k + 1, n_points - 1)
    for some in _blocks(np.flatnonzero(tied), TIED_AT_ONCE):
        lengths, names = _by_tree(points, some, width, n_threads, order)
        counts = (lengths <= lengths[:, k - 1 : k] * (1 + TIE)).sum(axis=1)
        if width < n_points - 1:
            crowded = np.flatnonzero(counts == width)  # more are tied than may be joined
            counts[crowded] = k
            for at in _blocks(crowded, CROWDED_AT_ONCE):
                lengths[at, :k], names[at, :k] = _some_of_tied(
                    points, some[at], k, lengths[at, k - 1], n_threads, order
                )
        inside = np.arange(width) < counts[:, None]
        parts.append(_Part(some, counts, lengths[inside], names[inside]))
    return Neighbors(_matrix(n_points, parts), _middle(distances, k), search)


def _some_of_tied(points: Float64, rows: Intp, k: int, last: Float64, n_threads: int, order: float) -> Lists:
    """Return the k nearest of some points; of those as far as the last, to a `TIE`, some that a hash of both chooses.

    By their numbers alone, the first of many tied points would become everybody's neighbor.
    """
    distances, indices = np.empty((rows.size, k)), np.empty((rows.size, k), dtype=np.intp)
    balls = cKDTree(points).query_ball_point(points[rows], last * (1 + TIE), p=order, workers=n_threads)
    for i, (own, ball) in enumerate(zip(rows.tolist(), balls, strict=True)):
        near = np.setdiff1d(np.array(ball, dtype=np.intp), own)
        lengths = np.linalg.norm(points[near] - points[own], ord=order, axis=1)
        pairs = np.minimum(near, own).astype(np.uint64) * np.uint64(len(points)) + np.maximum(near, own).astype("u8")
        chosen = np.lexsort((mixed(pairs), np.minimum(lengths, last[i] * (1 - TIE))))[:k]
        distances[i], indices[i] = lengths[chosen], near[chosen]
    return distances, indices


def _matrix(n_points: int, parts: list[_Part]) -> sp.csr_array:
    """Put the neighbors of all points together, CSR ``(n_points, n_points)``."""
    if len(parts) == 1:
        counts, values, columns = parts[0].counts, parts[0].distances, parts[0].indices.astype(np.int32, copy=False)
        return narrow(sp.csr_array((values, columns, np.r_[0, np.cumsum(counts)]), shape=(n_points, n_points)))
    counts = np.zeros(n_points, dtype=np.int64)
    for part in parts:
        counts[part.rows] = part.counts
    offsets = np.r_[0, np.cumsum(counts)]
    values, columns = np.empty(offsets[-1]), np.empty(offsets[-1], dtype=np.int32)
    for part in parts:
        within = np.arange(part.distances.size) - np.repeat(np.cumsum(part.counts) - part.counts, part.counts)
        at = np.repeat(offsets[part.rows], part.counts) + within
        values[at], columns[at] = part.distances, part.indices
    return narrow(sp.csr_array((values, columns, offsets), shape=(n_points, n_points)))


def within_radius(points: Float64, radius: float, *, order: float = 2.0) -> Neighbors:
    """Join all points within ``radius`` of each other, in the norm of this order; a point may have none."""
    pairs = cKDTree(points).query_pairs(radius, p=order, output_type="ndarray")
    lengths = np.tile(np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], ord=order, axis=1), 2)
    rows, columns = np.r_[pairs[:, 0], pairs[:, 1]], np.r_[pairs[:, 1], pairs[:, 0]]
    ascending = np.lexsort((columns, lengths, rows))
    counts = np.bincount(rows, minlength=len(points))
    offsets = np.r_[0, np.cumsum(counts)]
    matrix = sp.csr_array((lengths[ascending], columns[ascending], offsets), shape=(len(points), len(points)))
    return Neighbors(matrix, middle_of_rows(matrix, counts), Search("radius", 1.0, f"all pairs within {radius:g}"))


def middle_of_rows(matrix: sp.csr_array, counts: Int64) -> Float64:
    """Return `Neighbors.middle` of rows in ascending order, ``(n_points,)``, of the first so many entries of each."""
    offsets = matrix.indptr[:-1].astype(np.int64)
    row = np.repeat(np.arange(counts.size), np.diff(matrix.indptr))
    zeros = np.bincount(row[matrix.data == 0], minlength=counts.size)
    place = np.minimum(np.maximum(counts // 2 - 1, zeros), counts - 1)
    middle = np.zeros(counts.size)
    middle[counts > 0] = matrix.data[(offsets + place)[counts > 0]]
    return middle


def _middle(distances: Float64, k: int) -> Float64:
    """Return `Neighbors.middle` from the k nearest of each point, ascending."""
    # Different points may be so close that the square of their distance is zero.
    zeros = (distances[:, :k] == 0).sum(axis=1)
    place = np.minimum(np.maximum(k // 2 - 1, zeros), k - 1)
    return np.asarray(distances[np.arange(len(distances)), place])


def _choose(points: Float64, k: int, rng: np.random.Generator, n_threads: int) -> tuple[Search, _Prepared]:
    n_points, n_dimensions = points.shape
    if n_points <= TREE_UP_TO:
        return Search("tree", 1.0, f"{counted(n_points, 'point')}: an exact tree is fast"), _Prepared()
    is_small = n_points <= EXACT_UP_TO
    partition = Partition.from_points(points, k, rng, strict=is_small, n_threads=n_threads)
    if n_points <= EXACT_BELOW:
        return Search("exact", 1.0, f"{counted(n_points, 'point')}: exact search is fast"), _Prepared(partition)
    probe = partition.probe(k, n_threads)
    if is_small:
        share = probe.n_candidates(1.0) / n_points
        if share * n_points * n_dimensions <= MOST_IN_REACH:
            reason = f"{share:.0%} of {counted(partition.n_parts, 'part')} in reach: exact and fast"
            return Search("exact", 1.0, reason), _Prepared(partition)
    dimension = n_dimensions if n_dimensions <= 3 else min(probe.dimension(), n_dimensions)
    looks = f"the data look {dimension:.1f}-dimensional"
    if dimension <= TREE_DIMENSION:
        return Search("tree", 1.0, f"{looks}: an exact tree is fast"), _Prepared()
    reason = f"{counted(n_points, 'point')} that look {dimension:.1f}-dimensional: exact search is slow"
    return Search("approximate", np.nan, reason), _Prepared(partition, probe)


def _blocks(indices: Intp, size: int) -> list[Intp]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
