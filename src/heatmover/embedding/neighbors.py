"""Nearest measures: the rows of an embedding that are closest in L1, with most of the distances never computed.

Of any groups of columns and any signs, ``sum_g |sum_(c in g) s_c (a_c - b_c)|`` is at most the L1 distance of a and b.
Groups of columns that rise and fall together leave little room between the two: 64 sums in place of the 8,849 features
of 70,000 digits reach 92 % of a distance, and 0.04 % of all pairs remain to be compared in full. The groups are learned
from a few pairs of rows. Whatever they are, the result is bit-identical to the full search: rows are left out only
where the bound, less all that rounding can add to it, exceeds known distances.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import in_threads, one_blas_thread
from heatmover._base.types import Float64, FloatArray, Int64, Intp
from heatmover._base.validation import check_integer, check_threads
from heatmover._base.words import counted
from heatmover.embedding.distances import check_rows, for_each_tile, readable
from heatmover.errors import InvalidInputError

__all__ = ["Groups", "choose_groups", "learn_groups", "nearest", "nearest_by_groups", "sum_of_groups"]

# Bounds pay for many rows only. Compared with the full search, 3,000 rows of swiss roll, sphere and Gaussians took 2.0,
# 0.7 and 0.9 of the time, 8,000 rows 0.5, and the nearest of 20,000 rows for 2,000 a fifth.
FEWEST_PAIRS = 30_000_000


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
    near = _nearest_by_groups(rows, others, k, n_threads)
    return _nearest_of_all(rows, others, k, n_threads) if near is None else near


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
    from heatmover._base.compiled.l1 import keep_smallest

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


Float32 = npt.NDArray[np.float32]

# Numbers of groups that are tried, as long as the next promises to be cheaper.
SIZES = (32, 64, 128, 256)
# Pairs of rows that groups are learnt from, how often columns then look for a better group, and how many at a time.
N_PAIRS = 160
ROUNDS = 5
COLUMNS = 8192
# Rows, and others, that groups are tried on.
N_ROWS_TRIED = 24
N_OTHERS_TRIED = 2048

# Costs in units of one feature of a pair in the full search, 0.05 ns: adding a feature to its group (2.2 ns), a group
# of a pair (0.07), going through the bound of a pair (2.5), a feature of a pair that is compared on its own, its rows
# fetched from far away (0.65).
SUM_COST, GROUP_COST, PASS_COST, ALONE_COST = 40, 1.4, 50, 13
# The estimate comes from few rows: only a clear gain counts.
WORTH = 0.6

# Where the fewest groups leave more pairs than this, twice as many groups do not leave few.
HOPELESS = 0.5
# Rows whose groups are added up at a time.
SUMMED_ROWS = 256
# Rows whose bounds are held at a time, and the memory these may take; others that one tile compares with them. A
# multiple of the kernel's three rows and no power of two, at which the rows of a tile would share their cache lines.
BLOCK_ROWS = 96
BLOCK_BYTES = 2**25
TILE_OTHERS = 999
# Rows taken to be nearest by their bounds, besides the k asked for; their distances decide what is left out.
MORE = 3
# Rows then compared at a time, so that the nearer spare the others.
BATCH = 24
# Twice what a sum of 1,024 float32 can lose, in whatever order a processor adds it: of a distance and of a bound.
LOSS = 2**-13


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Columns that are added up.

    Attributes
    ----------
    columns, signs
        Features of the groups, one group after the other, and 1 or -1 for each, ``(n_features,)``.
    starts
        Where the groups begin and end in ``columns``, ``(n_groups + 1,)``.
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
        """The group and the sign of every column, ``(n_features,)`` each, in the order of the columns."""
        group, signs = np.empty_like(self.columns), np.empty_like(self.signs)
        group[self.columns] = np.repeat(np.arange(self.count), np.diff(self.starts))
        signs[self.columns] = self.signs
        return group, signs


def choose_groups(rows: FloatArray, others: FloatArray | None, k: int) -> Groups | None:
    """Return groups of columns with which the search for the k nearest is cheaper, or None if the full one is.

    Parameters
    ----------
    rows
        ``(n_rows, n_features)``.
    others
        ``(n_others, n_features)``, or None for a search among the rows themselves.
    k
        How many neighbours are sought.
    """
    targets = rows if others is None else others
    n_features = rows.shape[1]
    n_pairs = float(len(rows)) * len(targets)
    full = n_pairs * n_features / (2 if others is None else 1)
    best, least = None, WORTH * full
    trial: _Trial | None = None
    for size in SIZES:
        fixed = SUM_COST * n_features * (len(rows) + len(targets)) + n_pairs * (GROUP_COST * size + PASS_COST)
        if fixed >= least:
            break
        if trial is None:
            trial = _Trial.draw(rows, targets, k, within=others is None)
        groups = None if trial is None else trial.learn(size)
        if trial is None or groups is None:
            return None
        left = trial.share_left(groups)
        cost = fixed + ALONE_COST * n_pairs * n_features * left
        if cost < least:
            best, least = groups, cost
        elif best is not None or left > HOPELESS:
            break
    return best


def learn_groups(rows: FloatArray, n_groups: int) -> Groups | None:
    """Return groups of columns that rise and fall together; None if columns are no more than groups, or never change.

    Parameters
    ----------
    rows
        ``(n_rows, n_features)``, two at least.
    n_groups
        How many.
    """
    trial = _Trial.draw(rows, rows, 1, within=True)
    return None if trial is None else trial.learn(n_groups)


def sum_of_groups(rows: FloatArray, groups: Groups) -> Float64:
    """Return the sums of all groups, ``(n_rows, n_groups)``.

    The L1 distance of two rows of sums is at most that of the rows themselves.
    """
    return _sums(rows, groups, sizes=False)[0]


@final
@dataclass(frozen=True, eq=False)
class _Trial:
    """A few rows on which groups are learnt and tried.

    Attributes
    ----------
    differences
        Of random pairs, the largest about one, ``(n_features, n_pairs)``.
    rows, targets, among
        ``(n_rows, n_features)``; all others, and which of them are tried, ``(n_others,)``.
    distances
        Between them, infinite between a row and itself, ``(n_rows, n_others)``.
    rank
        The place among these others that the k-th of all may have.
    """

    differences: Float32
    rows: FloatArray
    targets: FloatArray
    among: Int64
    distances: Float64
    rank: int

    @classmethod
    def draw(cls, rows: FloatArray, targets: FloatArray, k: int, *, within: bool) -> _Trial | None:
        """Draw rows; None if their differences are zero or not finite."""
        rng = np.random.default_rng(0)  # whatever is drawn, the result of the search is the same
        here, there = (rng.integers(len(side), size=N_PAIRS) for side in (rows, targets))
        differences = _differences(rows, here, targets, there)
        if differences is None:
            return None
        chosen = np.unique(rng.integers(len(rows), size=N_ROWS_TRIED))
        among = np.unique(rng.integers(len(targets), size=N_OTHERS_TRIED))
        some = rows[chosen]
        distances = np.hstack([_tile(some, targets[part]) for part in _pieces(among)])
        if within:
            distances[chosen[:, None] == among] = np.inf
        return cls(differences, some, targets, among, distances, -(-k * len(among) // len(targets)))

    def learn(self, n_groups: int) -> Groups | None:
        """Return groups whose sums of differences are as large as can be; None if columns are no more than groups.

        The sum of all groups' absolute sums is convex in the groups' membership, so that putting every column where it
        adds most, the signs of the sums being what they are, never lowers it: k-means in L1.
        """
        n_features = len(self.differences)
        if n_features <= n_groups:
            return None
        weights = np.cumsum(np.abs(self.differences).sum(axis=1, dtype=np.float64))
        group = np.minimum(n_groups * weights / weights[-1], n_groups - 1).astype(np.intp)
        signs = np.ones(n_features, dtype=np.float32)
        with one_blas_thread():
            for _ in range(ROUNDS):
                members = sp.csr_array((signs, group, np.arange(n_features + 1)), shape=(n_features, n_groups))
                directions = np.sign(members.T @ self.differences).T
                for start in range(0, n_features, COLUMNS):
                    part = slice(start, start + COLUMNS)
                    gains = self.differences[part] @ directions
                    group[part] = np.abs(gains).argmax(axis=1)
                    signs[part] = np.where(np.take_along_axis(gains, group[part, None], axis=1)[:, 0] < 0, -1, 1)
        columns = np.argsort(group, kind="stable")
        starts = np.searchsorted(group[columns], np.arange(n_groups + 1))
        return Groups(columns, signs[columns].astype(np.float64), starts)

    def share_left(self, groups: Groups) -> float:
        """Return the share of pairs that the bounds leave to be compared."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = _sums(self.rows, groups)[0]
            bounds = np.hstack([_tile(sums, _sums(self.targets[part], groups)[0]) for part in _pieces(self.among)])
        limits = np.partition(self.distances, self.rank - 1, axis=1)[:, self.rank - 1]
        return float((bounds <= limits[:, None]).mean())


def _differences(rows: FloatArray, here: Int64, targets: FloatArray, there: Int64) -> Float32 | None:
    """Return differences of pairs in a unit that makes the largest one, ``(n_features, n_pairs)``; None if none is."""
    parts = [slice(start, start + COLUMNS) for start in range(0, rows.shape[1], COLUMNS)]
    result = np.empty((rows.shape[1], here.size), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # NumPy's maximum is NaN if anything is.
        largest = np.max([np.abs(rows[here, part] - targets[there, part]).max() for part in parts])
        if not 0 < largest < np.inf:
            return None
        for part in parts:
            result[part] = ((rows[here, part] - targets[there, part]) / largest).T
    return result


def _pieces(indices: Int64) -> list[Int64]:
    """Cut indices into pieces: so few rows at a time take little memory however wide they are."""
    return np.split(indices, range(BLOCK_ROWS, indices.size, BLOCK_ROWS))


def nearest_by_groups(
    rows: FloatArray, others: FloatArray | None, k: int, groups: Groups, *, n_threads: int
) -> tuple[Float64, Int64] | None:
    """Find the k nearest of the others, or of the rows themselves, for every row, to the bit as the full search does.

    Parameters
    ----------
    rows, others
        As `heatmover.embedding.distances.check_rows` returns them.
    k, groups, n_threads
        How many; what to add up; to use.

    Returns
    -------
    distances, indices : ndarray of shape (n_rows, k)
        Ascending; of equal distances the smaller index comes first. None if values are not finite, or so large or
        uneven that bounds mean nothing.
    """
    targets = rows if others is None else others
    sketch = _Sketch.make(targets, groups, n_threads)
    sketches = (sketch, sketch) if others is None or sketch is None else (sketch.like(rows, n_threads), sketch)
    if sketches[0] is None or sketches[1] is None:
        return None
    largest = float(np.finfo(rows.dtype).max)
    if not sketches[0].largest + sketches[1].largest < largest / 4:
        return None
    search = _Search(rows, targets, k, sketches[0], sketches[1], within=others is None)
    most = int(BLOCK_BYTES // (4 * len(targets)))
    size = min(BLOCK_ROWS, most, -(-len(rows) // (4 * n_threads)))
    size = max(3, size // 3 * 3)
    edges = [*range(0, len(rows), size), len(rows)]
    blocks = in_threads(search.block, [slice(*pair) for pair in pairwise(edges)], n_threads)
    return np.concatenate([distances for distances, _ in blocks]), np.concatenate([indices for _, indices in blocks])


@final
@dataclass(frozen=True, eq=False)
class _Sketch:
    """Sums of the groups of every row, in single precision, and what they may be wrong by.

    Attributes
    ----------
    groups
        What was added up.
    center, unit
        Sums that all rows have in common, ``(n_groups,)``, and a power of two: ``values`` are the sums less the center,
        in this unit.
    values
        ``(n_rows, n_groups)``.
    slack
        What rounding may have taken from, or added to, the L1 distance of a row's values to any others, ``(n_rows,)``.
    largest
        Largest sum of a row's absolute values.
    """

    groups: Groups
    center: Float64
    unit: float
    values: Float32
    slack: Float64
    largest: float

    @classmethod
    def make(cls, rows: FloatArray, groups: Groups, n_threads: int) -> _Sketch | None:
        """Add up the groups of all rows; None if not all values are finite, or a row is beyond all others."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums, sizes = _sums(rows[:: -(-len(rows) // N_PAIRS)], groups)
            center = sums.mean(axis=0)
        size = float(sizes.max())
        if not 0 < size < np.inf:
            return None
        unit = math.ldexp(1.0, min(math.frexp(size)[1], 1023))
        nothing = np.empty((0, groups.count), dtype=np.float32)
        empty = cls(groups, center, unit, nothing, np.empty(0), 0.0)
        return empty.like(rows, n_threads)

    def like(self, rows: FloatArray, n_threads: int) -> _Sketch | None:
        """Do the same to other rows."""
        values = np.empty((len(rows), self.groups.count), dtype=np.float32)
        slack, sizes = np.empty(len(rows)), np.empty(len(rows))

        def fill(part: slice) -> None:
            sums, sizes[part] = _sums(rows[part], self.groups)
            values[part] = (sums - self.center) / self.unit
            # Half a unit in the last place of every value, twice; the additions in float64, four times; and numbers
            # that are too small for float32.
            rounded = 2.0**-23 * np.abs(values[part]).sum(axis=1, dtype=np.float64)
            added = rows.shape[1] * 2.0**-51 * (sizes[part] / self.unit)
            slack[part] = rounded + added + self.groups.count * 2.0**-140

        with np.errstate(over="ignore", invalid="ignore"):
            edges = [*range(0, len(rows), SUMMED_ROWS), len(rows)]
            in_threads(fill, [slice(*pair) for pair in pairwise(edges)], n_threads)
            usable = np.isfinite(slack.sum())
        if not usable:
            return None
        largest = float(sizes.max())
        return _Sketch(self.groups, self.center, self.unit, readable(values, np.float32), slack, largest)


@final
@dataclass(frozen=True, eq=False)
class _Search:
    """What the search for the neighbours of a block of rows needs."""

    rows: FloatArray
    others: FloatArray
    k: int
    sketch: _Sketch
    other_sketch: _Sketch
    within: bool

    def block(self, block: slice) -> tuple[Float64, Int64]:
        """Return distances and indices of the k nearest of a block of rows."""
        bounds, seeds = self._bounds(block)
        near = []
        for row, own, first in zip(range(block.start, block.stop), bounds, seeds, strict=True):
            best = self._compared(row, first)
            own[first] = np.inf  # compared already
            candidates = np.flatnonzero(own <= self._limit(row, best[0][-1]))
            near.append(self._improved(row, candidates, own[candidates], best))
        return np.array([distances for distances, _ in near]), np.array([indices for _, indices in near])

    def _bounds(self, block: slice) -> tuple[Float32, Int64]:
        """Return the bounds of a block of rows, ``(n_rows, n_others)``, and where each row has its smallest ones."""
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
        """Return the bound above which no other row is as near as ``distance``."""
        slack = self.sketch.slack[row] + self.other_sketch.slack.max()
        return float((distance / self.sketch.unit * (1 + LOSS) + slack) * (1 + LOSS))

    def _compared(self, row: int, candidates: Int64 | Intp) -> tuple[Float64, Int64]:
        """Return distances to the candidates and their indices, the k nearest in order."""
        distances = _tile(self.rows[row : row + 1], self.others[candidates])[0]
        order = np.lexsort((candidates, distances))[: self.k]
        return distances[order], candidates[order]

    def _improved(
        self, row: int, candidates: Intp, bounds: Float32, near: tuple[Float64, Int64]
    ) -> tuple[Float64, Int64]:
        """Return the k nearest among those known and the candidates, the most promising looked at first."""
        order = np.argsort(bounds, kind="stable")
        for start in range(0, candidates.size, BATCH):
            batch = order[start : start + BATCH]
            batch = batch[bounds[batch] <= self._limit(row, near[0][-1])]
            if batch.size == 0:
                break
            more = self._compared(row, candidates[batch])
            distances, indices = (np.concatenate(pair) for pair in zip(near, more, strict=True))
            best = np.lexsort((indices, distances))[: self.k]
            near = distances[best], indices[best]
        return near


def _sums(rows: FloatArray, groups: Groups, *, sizes: bool = True) -> tuple[Float64, Float64]:
    """Return the sums of all groups, ``(n_rows, n_groups)``, and of absolute values, ``(n_rows,)`` or left out."""
    from heatmover._base.compiled.l1 import sum_groups

    sums, totals = np.empty((len(rows), groups.count)), np.empty(len(rows) if sizes else 0)
    sum_groups(readable(rows, rows.dtype), *groups.by_column, sums, totals)
    return sums, totals


def _tile(rows: FloatArray, others: FloatArray) -> Float64:
    """Return the L1 distances between a few rows and others, ``(n_rows, n_others)``, in C order."""
    from heatmover._base.compiled.l1 import REGISTER_ROWS, l1_tile

    shape = [-len(side) % REGISTER_ROWS + len(side) for side in (rows, others)]
    tile = np.empty(shape)
    l1_tile(*(readable(side, side.dtype) for side in (rows, others)), rows.dtype.type(1), False, tile)
    return np.ascontiguousarray(tile[: len(rows), : len(others)])
