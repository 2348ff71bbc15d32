"""Nearest neighbours of points among themselves: exact where that is fast, approximate where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial import cKDTree

from heatmover import _threads
from heatmover._typing import Bool, Float64, Int64, Intp
from heatmover._validation import check_threads
from heatmover._words import counted
from heatmover.graphs.kernels import narrow
from heatmover.graphs.search.cells import TIE, Cells, Probe, least_recall
from heatmover.graphs.search.groups import Groups
from heatmover.graphs.search.products import true_squares

__all__ = ["SEARCHES", "Neighbors", "Search", "k_nearest", "middle_of_rows", "within_radius"]

SEARCHES = ("auto", "tree", "groups", "blocked", "cells")

Integers = npt.NDArray[np.integer[Any]]
Found = tuple[Float64, Integers]
Task = TypeVar("Task")
Result = TypeVar("Result")

# Microseconds of computing per point below: 30 neighbours of Gaussians, on a shared machine.
# A k-d tree visits a share of the points that grows exponentially with the dimension of the data itself, not of the
# space: 15 at 3 dimensions (100,000 points), 37 at 5, 128 at 6 (200,000), where an exact search by cells takes 9, 13
# and 28. Of more points than that takes, an approximate search by cells finds 0.998 in 9 at 5 dimensions.
TREE_DIMENSION = 4.0
# An exact search by cells may look at so many coordinates per point, up to about 50 microseconds (a Gaussian, 200,000
# in 8 dimensions: 224,000 coordinates, 57; a simulated cohort, 100,000 in 8: 48,000, 16).
MOST_IN_REACH = 250_000.0
# Every point is compared with all middles first, a cost that grows with the square of their number.
GROUPS_UP_TO = 200_000
# Up to here any exact search takes less than a second: 10,000 points in 50 dimensions 92 by products, 56 by cells. But
# those take seconds to compile, in the first search after installation.
CELLS_ABOVE = 10_000
# In float64 and by balls, groups may look at so many coordinates per point before products are faster.
MOST_BY_BALLS = 125_000.0
# Share of the true neighbours that an approximate search finds, with confidence.
WANTED = 0.99
# Up to here a tree is instant in any dimension.
FEW = 1_000
# Queries of a block: at most MOST_SCORES scores at once (12 MB with their order), but enough queries to be worth the
# copy of all points that every block makes.
BLOCK = 512
LEAST_BLOCK = 16
MOST_SCORES = 2**20
# A few more candidates than needed: where float32 swaps near ties, all of them are still kept.
SPARE = 4
# Points tied with the last neighbour are neighbours too, up to so many times as many as asked for. Shells of equal
# distances on a lattice: 24 beyond the first 32 neighbours in 3 dimensions, 91 beyond 14 for words of 14 bits.
MOST_TIED = 4
# Points with ties that are looked at together: with 120 neighbours each they take 100 MB.
TIED_AT_ONCE = 50_000
# Points that tell which share of the groups is in reach, and the recall of an approximate search.
SAMPLE = 200


@dataclass(frozen=True)
class Search:
    """How neighbours were found.

    Attributes
    ----------
    algorithm
        ``"tree"``, ``"groups"`` and ``"blocked"`` are exact, ``"cells"`` is approximate, ``"radius"`` takes all within
        a radius.
    recall
        Share of true neighbours found, measured on a sample; 1.0 if exact.
    reason
        Why this algorithm, in plain words.
    """

    algorithm: str
    recall: float
    reason: str


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Neighbours of every point.

    Attributes
    ----------
    distances
        CSR ``(n_points, n_points)`` without the diagonal, each row ascending.
    middle
        Distance to the middle neighbour, ``(n_points,)``; where that is zero up to rounding, to the first neighbour
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
    """Find the k nearest neighbours of every point, itself excluded, and those as far as the last of them.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite, all different, more than ``k``.
    k
        Number of neighbours; 0 for a single point.
    algorithm
        One of `SEARCHES`. The exact ones join the same points; "cells" looks for no ties.
    rng
        Used by the sample that chooses the algorithm and by the approximate search.
    n_threads
        Threads; None for all cores.
    order
        Of the norm: 2, or 1 and infinity, of which only the tree finds neighbours, and "auto" takes it.
    """
    n_threads, n_points = check_threads(n_threads), len(points)
    if k == 0:
        return Neighbors(sp.csr_array((n_points, n_points)), np.zeros(n_points), Search("tree", 1.0, "a single point"))
    if order != 2:
        return _by_norm(points, k, order, n_threads)
    search, prepared = Search(algorithm, 1.0, "as asked for"), _Prepared()
    if algorithm == "auto":
        search, prepared = _choose(points, k, rng, n_threads)
    if search.algorithm == "cells":
        return _approximate(points, k, search, prepared, rng, n_threads)
    # One more than asked for tells whether the last is tied.
    count = min(k + 1, n_points - 1)
    if search.algorithm == "groups":
        distances, indices = _by_groups(points, count, prepared, rng, n_threads)
    elif search.algorithm == "tree":
        distances, indices = _without_self(*_by_tree(points, points, count + 1, n_threads))
    else:
        distances, indices = _without_self(*_by_blocks(points, np.arange(n_points), count + 1, n_threads))
    parts = [_Part(np.arange(n_points), np.full(n_points, k), distances[:, :k].ravel(), indices[:, :k].ravel())]
    if count > k:
        tied = distances[:, k] <= distances[:, k - 1] * (1 + TIE)
        if tied.any():
            rest = np.flatnonzero(~tied)
            parts = [_Part(rest, np.full(rest.size, k), distances[rest, :k].ravel(), indices[rest, :k].ravel())]
            parts += _with_ties(_grouped(points), k, np.flatnonzero(tied), n_threads)
    return Neighbors(_matrix(n_points, parts), _middle(distances, k), search)


def _by_norm(points: Float64, k: int, order: float, n_threads: int) -> Neighbors:
    """Find the k nearest under another norm than the Euclidean one, and those as far as the last of them, by a tree."""
    n_points = len(points)
    distances, indices = _without_self(*_by_tree(points, points, min(k + 1, n_points - 1) + 1, n_threads, order))
    counts = np.full(n_points, k)
    tied = np.flatnonzero(distances[:, -1] <= distances[:, k - 1] * (1 + TIE)) if distances.shape[1] > k else counts[:0]
    parts = [_Part(np.arange(n_points), counts, distances[:, :k].ravel(), indices[:, :k].ravel())]
    if tied.size:
        rest = np.setdiff1d(np.arange(n_points), tied)
        parts = [_Part(rest, counts[rest], distances[rest, :k].ravel(), indices[rest, :k].ravel())]
        width = min(MOST_TIED * k + 1, n_points - 1)
        for some in _blocks(tied, TIED_AT_ONCE):
            parts.append(_nearest_and_tied(points, k, width, some, order, n_threads))
    reason = "the only search under this metric"
    return Neighbors(_matrix(n_points, parts), _middle(distances, k), Search("tree", 1.0, reason))


def _nearest_and_tied(points: Float64, k: int, width: int, rows: Intp, order: float, n_threads: int) -> _Part:
    distances, indices = _by_tree(points, points[rows], width + 1, n_threads, order)
    own = indices == rows[:, None]
    distances, indices = distances[~own].reshape(-1, width), indices[~own].reshape(-1, width)
    counts = (distances <= distances[:, k - 1 : k] * (1 + TIE)).sum(axis=1)
    if width < len(points) - 1:
        counts[counts == width] = k  # more are tied than may be joined
    inside = np.arange(width) < counts[:, None]
    return _Part(rows, counts, distances[inside], indices[inside])


class _Prepared(NamedTuple):
    """What the choice of a search has computed and the search can use."""

    cells: Cells | None = None
    probe: Probe | None = None
    groups: Groups | None = None


def _approximate(
    points: Float64, k: int, search: Search, prepared: _Prepared, rng: np.random.Generator, n_threads: int
) -> Neighbors:
    """Find about the k nearest by cells, and all of them if too few were found and the search was free to choose."""
    n_points = len(points)
    cells = prepared.cells or Cells.from_points(points, k, rng, strict=False, n_threads=n_threads)
    probe = prepared.probe or cells.probe(k, n_threads)
    found: Found = cells.k_nearest(k, probe.plan(WANTED, surely=True), n_threads)[:2]
    distances, indices = found
    short = np.flatnonzero(indices[:, -1] < 0)
    if short.size:  # their neighbours are too far for a float32, or in cells of few points
        distances[short], indices[short] = _exactly(points, short, k, n_threads)
    recalls = probe.recalls(distances)
    result = replace(search, recall=float(recalls.mean()) if recalls.size else 1.0)
    if np.isnan(search.recall) and recalls.size and least_recall(recalls, n_points) < WANTED:
        # What was planned is found, unless single precision spoils it.
        distances, indices = _exactly(points, np.arange(n_points), k, n_threads)
        result = Search("groups", 1.0, f"{search.reason}; cells found too few")
    part = _Part(np.arange(n_points), np.full(n_points, k), distances.ravel(), indices.ravel())
    return Neighbors(_matrix(n_points, [part]), _middle(distances, k), result)


def _by_groups(points: Float64, k: int, prepared: _Prepared, rng: np.random.Generator, n_threads: int) -> Found:
    """Find the k nearest exactly: by cells in float32, and again in float64 where rounding could have decided."""
    if len(points) <= CELLS_ABOVE:
        return (prepared.groups or _grouped(points)).k_nearest(k, n_threads)
    cells = prepared.cells or Cells.from_points(points, k, rng, strict=True, n_threads=n_threads)
    distances, indices, seen = cells.k_nearest(k, cells.everything(), n_threads)
    unsure = np.flatnonzero((indices[:, -1] < 0) | ~(seen[:, 1] >= distances[:, -1] * (1 + TIE)))
    if unsure.size:
        distances[unsure], indices[unsure] = _exactly(points, unsure, k, n_threads)
    return distances, indices


def _exactly(points: Float64, rows: Intp, k: int, n_threads: int) -> Found:
    """Return the k nearest others of some points, in float64."""
    wanted = np.zeros(len(points), dtype=bool)
    wanted[rows] = True
    return _grouped(points).k_nearest(k, n_threads, wanted)


class _Part(NamedTuple):
    """Neighbours of some points: which, how many each has, and their distances and indices, point after point."""

    rows: Intp
    counts: Int64
    distances: Float64
    indices: Integers


def _with_ties(groups: Groups, k: int, rows: Intp, n_threads: int) -> list[_Part]:
    """Return the k nearest of some points and all that are tied with the last, unless these are too many."""
    n_points = len(groups.order)
    width = min(MOST_TIED * k + 1, n_points - 1)
    parts = []
    for some in _blocks(rows, TIED_AT_ONCE):
        wanted = np.zeros(n_points, dtype=bool)
        wanted[some] = True
        distances, indices = groups.k_nearest(width, n_threads, wanted)
        counts = (distances <= distances[:, k - 1 : k] * (1 + TIE)).sum(axis=1)
        if width < n_points - 1:
            counts[counts == width] = k  # more are tied than may be joined
        inside = np.arange(width) < counts[:, None]
        parts.append(_Part(some, counts, distances[inside], indices[inside]))
    return parts


def _matrix(n_points: int, parts: list[_Part]) -> sp.csr_array:
    """Put the neighbours of all points together, CSR ``(n_points, n_points)``."""
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
    if n_points <= FEW:
        return Search("tree", 1.0, f"{counted(n_points, 'point')}: exact search is instant"), _Prepared()
    if n_points <= CELLS_ABOVE:
        groups = _grouped(points)
        share = groups.share_in_reach(k, SAMPLE)
        reason = f"{share:.0%} of {counted(groups.radii.size, 'group')} in reach: exact "
        if share * n_points * n_dimensions <= MOST_BY_BALLS:
            return Search("groups", 1.0, reason + "and fast"), _Prepared(groups=groups)
        return Search("blocked", 1.0, reason + "products are faster"), _Prepared()
    is_small = n_points <= GROUPS_UP_TO
    cells = Cells.from_points(points, k, rng, strict=is_small, n_threads=n_threads)
    probe = cells.probe(k, n_threads)
    if is_small:
        share = probe.n_candidates(1.0) / n_points
        if share * n_points * n_dimensions <= MOST_IN_REACH:
            reason = f"{share:.0%} of {counted(cells.n_cells, 'group')} in reach: exact and fast"
            return Search("groups", 1.0, reason), _Prepared(cells)
    dimension = n_dimensions if n_dimensions <= 3 else min(probe.dimension(), n_dimensions)
    looks = f"the data look {dimension:.1f}-dimensional"
    if dimension <= TREE_DIMENSION:
        return Search("tree", 1.0, f"{looks}: an exact tree is fast"), _Prepared()
    reason = f"{counted(n_points, 'point')} that look {dimension:.1f}-dimensional: exact search is slow"
    return Search("cells", np.nan, reason), _Prepared(cells, probe)


def _grouped(points: Float64) -> Groups:
    """Put points into twice as many groups as a group has members: smaller ones fit the neighbours better."""
    return Groups.from_points(points, round(2 * len(points) ** 0.5))


def _by_tree(points: Float64, queries: Float64, k: int, n_threads: int, order: float = 2.0) -> Found:
    return cKDTree(points).query(queries, k=k, p=order, workers=n_threads)  # type: ignore[no-any-return]


def _by_blocks(points: Float64, queries: Intp, k: int, n_threads: int = 1) -> Found:
    """Compare every query with every point, a block of queries at a time."""
    distances, indices = np.empty((queries.size, k)), np.empty((queries.size, k), dtype=np.intp)
    everyone = np.arange(len(points))
    unsure = np.arange(queries.size)
    for precision in (np.float32, np.float64):
        blocks = _blocks(unsure, int(np.clip(MOST_SCORES // len(points), LEAST_BLOCK, BLOCK)))
        results = _in_threads(lambda block: _compare(points, queries[block], everyone, k, precision), blocks, n_threads)  # noqa: B023
        for block, (lengths, near, _) in zip(blocks, results, strict=True):
            distances[block], indices[block] = lengths, near
        unsure = unsure[~np.concatenate([sure for _, _, sure in results])]
        if unsure.size == 0:
            return distances, indices
    distances[unsure], indices[unsure] = _by_tree(points, points[queries[unsure]], k, n_threads)
    return distances, indices


def _compare(
    points: Float64, queries: Intp, candidates: Intp, k: int, precision: type[np.floating[Any]]
) -> tuple[Float64, Intp, Bool]:
    """Find the k nearest candidates of each query by one matrix product.

    Returns
    -------
    distances, indices
        ``(n_queries, k)`` each, indices into ``points``.
    sure
        Whether no candidate can be nearer than these, ``(n_queries,)``; products lose the digits of small
        distances between points that lie far from the origin.
    """
    origin = points[queries].mean(axis=0)
    there = points[candidates]
    there -= origin
    unit = np.abs(there).max() or 1.0  # float32 squares leave its range at 1e19
    there = (there / unit).astype(precision)
    here = ((points[queries] - origin) / unit).astype(precision)
    scores = np.einsum("ij,ij->i", there, there) - 2 * (here @ there.T)
    kept = min(k + SPARE, candidates.size)
    nearest = np.argpartition(scores, kept - 1, axis=1)[:, :kept]
    near = candidates[nearest]
    lengths = np.sqrt(((points[near] - points[queries][:, None]) ** 2).sum(axis=2))
    order = np.lexsort((near, lengths), axis=1)[:, :k]
    distances, indices = np.take_along_axis(lengths, order, axis=1), np.take_along_axis(near, order, axis=1)
    squares = np.einsum("ij,ij->i", here, here).astype(np.float64)
    left_out = np.take_along_axis(scores, nearest, axis=1).max(axis=1) + squares
    least, _ = true_squares(left_out, squares, points.shape[1], precision)
    furthest = (distances[:, -1] / unit) ** 2
    sure = (furthest == 0) | (least >= furthest * (1 - TIE)) | (kept == candidates.size)
    return distances, indices, sure


def _in_threads(work: Callable[[Task], Result], tasks: list[Task], n_threads: int) -> list[Result]:
    """Return the result of every task; its bits depend on the task alone."""
    # A product's last bits depend on the threads of the linear algebra library, and so would the choice among
    # duplicates; with a core for each task it has no use for more than one.
    with _threads.one_blas_thread():
        return _threads.in_threads(work, tasks, n_threads)


def _blocks(indices: Intp, size: int) -> list[Intp]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _without_self(distances: Float64, indices: Integers) -> Found:
    """Drop each point from its own k + 1 neighbours, or the last one where duplicates crowd it out."""
    n_points, count = indices.shape
    drop = indices == np.arange(n_points)[:, None]
    drop[~drop.any(axis=1), -1] = True
    return distances[~drop].reshape(n_points, count - 1), indices[~drop].reshape(n_points, count - 1)
