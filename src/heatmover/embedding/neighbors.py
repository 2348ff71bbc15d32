"""Find the nearest rows of an embedding in L1 without computing most distances, for users and the atlas index.

For any groups g of columns and any signs s, ``sum_g |sum_(c in g) s_c (a_c - b_c)|`` is a lower bound of the L1
distance of a and b. The bound is tight for groups of correlated columns. For 70,000 images of digits with 8,849
features, the bound from 64 groups reaches 92% of the distance, and full distances are computed for only 0.04% of all
pairs. The groups are learned from a few pairs of rows. Whatever the groups are, the result is bit-identical to the full
search: a row is skipped only if its bound, minus the largest possible rounding error, exceeds the k-th smallest
distance computed so far.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import in_threads, one_blas_thread
from heatmover._base.types import Float64, FloatArray, Int64, Intp
from heatmover._base.validation import check_at_most, check_threads
from heatmover.embedding.distances import check_rows, for_each_tile, readable

# Smallest number of pairs for which bounds are used. Time with bounds divided by the time of the full search: 2.0 on
# the swiss roll, 0.7 on the sphere and 0.9 on Gaussians for 3,000 rows; 0.5 for 8,000 rows; 0.2 for the neighbors of
# 2,000 rows among 20,000 other rows.
FEWEST_PAIRS = 30_000_000


def nearest(
    embedding: npt.ArrayLike, k: int, other: npt.ArrayLike | None = None, *, n_jobs: int | None = None
) -> tuple[Float64, Int64]:
    """Find the k nearest rows in L1 distance for each row of an embedding.

    The search is exact. It never stores the matrix of all distances, and it skips pairs that a lower bound shows to be
    too far apart. With 60,000 images of digits to search and 10,000 other images as queries, it takes a thirtieth of
    the time that the full search takes.

    Parameters
    ----------
    embedding
        Array (n_measures, n_features); types as in `heatmover.embedding.distances.pairwise_distances`.
    k
        Number of neighbors of each row.
    other
        Array (n_others, n_features) to search. Default: ``embedding`` itself; then a row is not its own neighbor, but
        duplicates of the row are.
    n_jobs
        Number of threads; None or -1 for all available cores. The result is bit-identical for any number.

    Returns
    -------
    distances : ndarray of shape (n_measures, k)
        Distances to the neighbors, float64, ascending in each row.
    indices : ndarray of shape (n_measures, k)
        Rows of the neighbors in ``other`` (or in ``embedding``), int64. Equal distances are sorted by index.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.embedding.neighbors import nearest
    >>> embedding = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
    >>> distances, indices = nearest(embedding, k=1)
    >>> distances.ravel(), indices.ravel()
    (array([1., 2., 1.]), array([2, 2, 0]))

    Find the measures of an embedding that are nearest to a new measure:

    >>> nearest([[1.0, 1.5]], k=2, other=embedding)
    (array([[0.5, 1.5]]), array([[1, 2]]))
    """
    rows, others = check_rows(embedding, other)
    available = len(rows) - 1 if others is None else len(others)
    reason = "a row is not its own neighbor" if others is None else "other has no more rows"
    k = check_at_most("k", k, available, reason)
    n_threads = check_threads(n_jobs)
    if len(rows) * len(rows if others is None else others) >= FEWEST_PAIRS:
        groups = choose_groups(rows, others, k)
        near = None if groups is None else nearest_by_groups(rows, others, k, groups, n_threads=n_threads)
        if near is not None:
            return near
    return _nearest_of_all(rows, others, k, n_threads)


def _nearest_of_all(rows: FloatArray, others: FloatArray | None, k: int, n_threads: int) -> tuple[Float64, Int64]:
    """Find the nearest rows by comparing all pairs."""
    distances = np.full((len(rows), k), np.inf)
    indices = np.full((len(rows), k), np.iinfo(np.int64).max)
    # Imported here because numba takes most of a second to import.
    from heatmover._base.compiled.l1 import keep_smallest

    # Within one embedding, a tile has candidates for both of its blocks, so two threads may update the same block.
    locks: dict[int, threading.Lock] = {}

    def keep(block: slice, candidates: slice, tile: FloatArray) -> None:
        with locks.setdefault(block.start, threading.Lock()):
            # Use C order, because numba would compile the kernel again for another memory layout.
            keep_smallest(np.ascontiguousarray(tile), candidates.start, distances[block], indices[block])

    def consume(i: slice, j: slice, tile: FloatArray) -> None:
        if others is None and i == j:
            # A row itself is never among the k nearest, because there are at least k finite candidates.
            np.fill_diagonal(tile, np.inf)
        keep(i, j, tile)
        if others is None and i != j:
            keep(j, i, tile.T)

    limit = float(np.finfo(np.float64).max)
    for_each_tile(rows, others, consume, n_threads=n_threads, limit=limit)
    return distances, indices


Float32 = npt.NDArray[np.float32]

# Largest number of groups, and smallest number of columns per group. With fewer columns per group, bounds cost as much
# as full distances.
N_GROUPS, COLUMNS_PER_GROUP = 64, 8
# Number of pairs of rows from which groups are learned, number of rounds in which columns change their group, and
# number of columns processed at a time.
N_PAIRS = 160
ROUNDS = 5
COLUMNS = 8192
# Numbers of rows from which the benefit of groups is estimated: rows whose neighbors are sought, and rows to search.
N_ROWS_TRIED = 24
N_OTHERS_TRIED = 2048

# Costs in units of one feature of one pair in the full search (0.05 ns). SUM_COST: adding a feature to its group sum
# (2.2 ns). GROUP_COST: comparing one group sum of a pair (0.07 ns). PASS_COST: checking the bound of a pair (2.5 ns).
# ALONE_COST: one feature of a pair that is compared individually, with rows from distant memory (0.65 ns).
SUM_COST, GROUP_COST, PASS_COST, ALONE_COST = 40, 1.4, 50, 13
# Groups are used only if the estimated cost is below this share of the full search, because the estimate is rough.
WORTH = 0.6

# Number of rows whose group sums are computed at a time.
SUMMED_ROWS = 256
# Number of rows whose bounds are computed at a time, memory limit of these bounds in bytes, and number of searched rows
# in a tile. Tiles have a multiple of three rows, as the kernel needs. The number of searched rows is not a power of
# two, because with a power of two the rows of a tile would share cache lines.
BLOCK_ROWS = 96
BLOCK_BYTES = 2**25
TILE_OTHERS = 999
# Number of candidates, in addition to k, that are compared first. They have the smallest bounds, and their distances
# decide which rows are skipped.
MORE = 3
# Number of remaining candidates compared at a time. A near row in one batch allows later candidates to be skipped.
BATCH = 24
# Twice the largest relative rounding error of a sum of 1,024 float32 values in any order: one error of the distance and
# one of the bound.
LOSS = 2**-13


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of columns; the sum of a group adds or subtracts each column by its sign.

    Attributes
    ----------
    columns, signs
        Columns of the groups, one group after the other, and the sign (1 or -1) of each column, ``(n_features,)``.
    starts
        Positions in ``columns`` where the groups begin and end, ``(n_groups + 1,)``.
    """

    columns: Intp
    signs: Float64
    starts: Intp

    @property
    def count(self) -> int:
        """Number of groups."""
        return self.starts.size - 1

    @cached_property
    def by_column(self) -> tuple[Intp, Float64]:
        """Group and sign of every column, in the order of the columns, ``(n_features,)`` each."""
        group, signs = np.empty_like(self.columns), np.empty_like(self.signs)
        group[self.columns] = np.repeat(np.arange(self.count), np.diff(self.starts))
        signs[self.columns] = self.signs
        return group, signs


def choose_groups(rows: FloatArray, others: FloatArray | None, k: int) -> Groups | None:
    """Return groups of columns that make the search for the k nearest cheaper, or None if the full search is cheaper.

    Parameters
    ----------
    rows
        Rows whose neighbors are sought, ``(n_rows, n_features)``.
    others
        Rows to search, ``(n_others, n_features)``, or None for a search among the rows themselves.
    k
        Number of neighbors.
    """
    targets = rows if others is None else others
    n_features, n_pairs = rows.shape[1], float(len(rows)) * len(targets)
    n_groups = min(N_GROUPS, n_features // COLUMNS_PER_GROUP)
    worth = WORTH * n_pairs * n_features / (2 if others is None else 1)
    cost = SUM_COST * n_features * (len(rows) + len(targets)) + n_pairs * (GROUP_COST * n_groups + PASS_COST)
    groups = learn_groups(rows, n_groups, targets) if n_groups and cost < worth else None
    if groups is None:
        return None
    cost += ALONE_COST * n_pairs * n_features * _share_left(rows, others, k, groups)
    return groups if cost < worth else None


def learn_groups(rows: FloatArray, n_groups: int, targets: FloatArray | None = None) -> Groups | None:
    """Learn groups of correlated columns from differences between random pairs of rows.

    The method is k-means in L1. In each round the signs of the group sums are fixed, and every column moves to the
    group where the column adds most to the bound. The bound is convex in the membership of columns, so these moves
    never lower it.

    Parameters
    ----------
    rows
        At least two rows, ``(n_rows, n_features)``.
    n_groups
        Number of groups.
    targets
        Rows from which the second row of each pair is drawn, ``(n_others, n_features)``; by default ``rows``.

    Returns
    -------
    Groups or None
        None if there are no more columns than groups, or if the differences are all zero or not all finite.
    """
    n_features = rows.shape[1]
    differences = _differences(rows, rows if targets is None else targets)
    if differences is None or n_features <= n_groups:
        return None
    weights = np.cumsum(np.abs(differences).sum(axis=1, dtype=np.float64))
    group = np.minimum(n_groups * weights / weights[-1], n_groups - 1).astype(np.intp)
    signs = np.ones(n_features, dtype=np.float32)
    with one_blas_thread():
        for _ in range(ROUNDS):
            members = sp.csr_array((signs, group, np.arange(n_features + 1)), shape=(n_features, n_groups))
            directions = np.sign(members.T @ differences).T
            for start in range(0, n_features, COLUMNS):
                part = slice(start, start + COLUMNS)
                gains = differences[part] @ directions
                group[part] = np.abs(gains).argmax(axis=1)
                signs[part] = np.where(np.take_along_axis(gains, group[part, None], axis=1)[:, 0] < 0, -1, 1)
    columns = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[columns], np.arange(n_groups + 1))
    return Groups(columns, signs[columns].astype(np.float64), starts)


def _differences(rows: FloatArray, targets: FloatArray) -> Float32 | None:
    """Return differences of random pairs, scaled to a maximum of one, ``(n_features, n_pairs)``.

    The result is None if the differences are all zero or not all finite.
    """
    rng = np.random.default_rng(0)  # the result of the search does not depend on the draws
    here, there = (rng.integers(len(side), size=N_PAIRS) for side in (rows, targets))
    parts = [slice(start, start + COLUMNS) for start in range(0, rows.shape[1], COLUMNS)]
    result = np.empty((rows.shape[1], N_PAIRS), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # NumPy's maximum is NaN if any value is NaN.
        largest = np.max([np.abs(rows[here, part] - targets[there, part]).max() for part in parts])
        if not 0 < largest < np.inf:
            return None
        for part in parts:
            result[part] = ((rows[here, part] - targets[there, part]) / largest).T
    return result


def _share_left(rows: FloatArray, others: FloatArray | None, k: int, groups: Groups) -> float:
    """Estimate, from a few rows, the share of all pairs that the bounds do not exclude."""
    rng = np.random.default_rng(0)
    targets = rows if others is None else others
    tried = np.unique(rng.integers(len(rows), size=N_ROWS_TRIED))
    among = np.unique(rng.integers(len(targets), size=N_OTHERS_TRIED))
    # Processing a few rows at a time takes little memory for any number of features.
    parts = np.split(among, range(BLOCK_ROWS, among.size, BLOCK_ROWS))
    distances = np.hstack([_tile(rows[tried], targets[part]) for part in parts])
    if others is None:
        distances[tried[:, None] == among] = np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        sums = _sums(rows[tried], groups)[0]
        bounds = np.hstack([_tile(sums, _sums(targets[part], groups)[0]) for part in parts])
    # Expected rank, within this subset, of the k-th nearest of all rows.
    rank = -(-k * among.size // len(targets))
    limits = np.partition(distances, rank - 1, axis=1)[:, rank - 1]
    return float((bounds <= limits[:, None]).mean())


def sum_of_groups(rows: FloatArray, groups: Groups) -> Float64:
    """Return the sums of all groups, ``(n_rows, n_groups)``.

    The L1 distance of two rows of sums is at most the L1 distance of the rows themselves.
    """
    return _sums(rows, groups, sizes=False)[0]


def nearest_by_groups(
    rows: FloatArray, others: FloatArray | None, k: int, groups: Groups, *, n_threads: int
) -> tuple[Float64, Int64] | None:
    """Find the k nearest rows with bounds from groups of columns; the result is bit-identical to the full search.

    Parameters
    ----------
    rows, others
        Rows whose neighbors are sought, and rows to search (None: among ``rows``), both from
        `heatmover.embedding.distances.check_rows`.
    k, groups, n_threads
        Number of neighbors, groups of columns, and number of threads.

    Returns
    -------
    distances, indices : ndarray of shape (n_rows, k)
        Distances and indices of the neighbors, ascending; equal distances are sorted by index. The function returns
        None if values are not finite, or so large or uneven that the bounds are useless.
    """
    targets = rows if others is None else others
    with np.errstate(over="ignore", invalid="ignore"):
        sums, sizes = _sums(targets[:: -(-len(targets) // N_PAIRS)], groups)
        center = sums.mean(axis=0)
    size = float(sizes.max())
    if not 0 < size < np.inf:
        return None
    unit = math.ldexp(1.0, min(math.frexp(size)[1], 1023))
    other_sketch = _sketch(targets, groups, center, unit, n_threads)
    sketch = other_sketch if others is None else _sketch(rows, groups, center, unit, n_threads)
    if not sketch.largest + other_sketch.largest < float(np.finfo(rows.dtype).max) / 4:
        return None
    search = _BlockSearch(rows, targets, k, unit, sketch, other_sketch, within=others is None)
    most = int(BLOCK_BYTES // (4 * len(targets)))
    size_of_block = min(BLOCK_ROWS, most, -(-len(rows) // (4 * n_threads)))
    size_of_block = max(3, size_of_block // 3 * 3)
    edges = [*range(0, len(rows), size_of_block), len(rows)]
    blocks = in_threads(search.block, [slice(*pair) for pair in pairwise(edges)], n_threads)
    return np.concatenate([distances for distances, _ in blocks]), np.concatenate([indices for _, indices in blocks])


class _RowSketch(NamedTuple):
    """Group sums of every row, minus a common center and scaled to a common unit, in float32.

    Attributes
    ----------
    values
        Centered and scaled sums, ``(n_rows, n_groups)``.
    slack
        Largest rounding error that a row contributes to an L1 distance between values, ``(n_rows,)``.
    largest
        Largest sum of the absolute features of a row; infinity if values are not finite.
    """

    values: Float32
    slack: Float64
    largest: float


def _sketch(rows: FloatArray, groups: Groups, center: Float64, unit: float, n_threads: int) -> _RowSketch:
    """Return the sums of the groups of all rows, with bounds of their rounding errors."""
    values = np.empty((len(rows), groups.count), dtype=np.float32)
    slack, sizes = np.empty(len(rows)), np.empty(len(rows))

    def fill(part: slice) -> None:
        sums, sizes[part] = _sums(rows[part], groups)
        values[part] = (sums - center) / unit
        # The slack is a sum of three terms: twice the rounding error of every value, four times the errors of additions
        # in float64, and the underflow of numbers too small for float32.
        rounded = 2.0**-23 * np.abs(values[part]).sum(axis=1, dtype=np.float64)
        added = rows.shape[1] * 2.0**-51 * (sizes[part] / unit)
        slack[part] = rounded + added + groups.count * 2.0**-140

    with np.errstate(over="ignore", invalid="ignore"):
        edges = [*range(0, len(rows), SUMMED_ROWS), len(rows)]
        in_threads(fill, [slice(*pair) for pair in pairwise(edges)], n_threads)
        largest = float(sizes.max()) if np.isfinite(slack.sum()) else np.inf
    return _RowSketch(readable(values, np.float32), slack, largest)


@final
@dataclass(frozen=True, eq=False)
class _BlockSearch:
    """Search for the neighbors of one block of rows at a time."""

    rows: FloatArray
    others: FloatArray
    k: int
    unit: float
    sketch: _RowSketch
    other_sketch: _RowSketch
    within: bool

    def block(self, block: slice) -> tuple[Float64, Int64]:
        """Return distances and indices of the k nearest neighbors of a block of rows."""
        bounds, seeds = self._bounds(block)
        results = []
        for row, own, first in zip(range(block.start, block.stop), bounds, seeds, strict=True):
            near = self._nearest(row, first, (np.empty(0), np.empty(0, dtype=np.int64)))
            own[first] = np.inf  # already compared
            candidates = np.flatnonzero(own <= self._limit(row, near[0][-1]))
            # Compare the candidates with the smallest bounds first.
            candidates = candidates[np.argsort(own[candidates], kind="stable")]
            for batch in np.split(candidates, range(BATCH, candidates.size, BATCH)):
                left = batch[own[batch] <= self._limit(row, near[0][-1])]
                if left.size == 0:
                    break
                near = self._nearest(row, left, near)
            results.append(near)
        return np.array([distances for distances, _ in results]), np.array([indices for _, indices in results])

    def _bounds(self, block: slice) -> tuple[Float32, Int64]:
        """Return the bounds of a block, ``(n_rows, n_others)``, and the indices of the smallest bounds of each row."""
        from heatmover._base.compiled.l1 import keep_smallest

        n_rows, n_others = block.stop - block.start, len(self.others)
        bounds = np.empty((n_rows, n_others), dtype=np.float32)
        shape = (n_rows, min(self.k + MORE, n_others - self.within))
        smallest, seeds = np.full(shape, np.inf), np.full(shape, np.iinfo(np.int64).max)
        for start in range(0, n_others, TILE_OTHERS):
            part = slice(start, min(start + TILE_OTHERS, n_others))
            tile = _tile(self.sketch.values[block], self.other_sketch.values[part])
            if self.within:
                own = np.arange(max(block.start, part.start), min(block.stop, part.stop))
                tile[own - block.start, own - part.start] = np.inf
            keep_smallest(tile, start, smallest, seeds)
            bounds[:, part] = tile
        return bounds, seeds

    def _limit(self, row: int, distance: float) -> float:
        """Return the largest bound that is consistent with ``distance``; a row with a larger bound is farther away."""
        slack = self.sketch.slack[row] + self.other_sketch.slack.max()
        return float((distance / self.unit * (1 + LOSS) + slack) * (1 + LOSS))

    def _nearest(self, row: int, candidates: Int64 | Intp, near: tuple[Float64, Int64]) -> tuple[Float64, Int64]:
        """Compare candidates and merge them into ``near``; return distances and indices of the k nearest, ascending."""
        compared = _tile(self.rows[row : row + 1], self.others[candidates])[0]
        distances, indices = np.concatenate([near[0], compared]), np.concatenate([near[1], candidates])
        best = np.lexsort((indices, distances))[: self.k]
        return distances[best], indices[best]


def _sums(rows: FloatArray, groups: Groups, *, sizes: bool = True) -> tuple[Float64, Float64]:
    """Return the sums of groups, ``(n_rows, n_groups)``, and of absolute values, ``(n_rows,)`` or empty."""
    from heatmover._base.compiled.l1 import sum_groups

    sums, totals = np.empty((len(rows), groups.count)), np.empty(len(rows) if sizes else 0)
    sum_groups(readable(rows, rows.dtype), *groups.by_column, sums, totals)
    return sums, totals


def _tile(rows: FloatArray, others: FloatArray) -> Float64:
    """Return the L1 distances between a few rows and other rows in C order, ``(n_rows, n_others)``."""
    from heatmover._base.compiled.l1 import REGISTER_ROWS, l1_tile

    shape = [-len(side) % REGISTER_ROWS + len(side) for side in (rows, others)]
    tile = np.empty(shape)
    l1_tile(*(readable(side, side.dtype) for side in (rows, others)), rows.dtype.type(1), False, tile)
    return np.ascontiguousarray(tile[: len(rows), : len(others)])
