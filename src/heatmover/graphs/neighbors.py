"""Find the nearest neighbors of points, exactly if this is fast and else approximately; only `graphs.graph` calls it.

The search works by clusters, called parts. k-means divides the points into parts, and every point is compared with all
members of the parts whose border is near. The border between two parts is the plane halfway between their centers. A
neighbor within some distance can lie in another part only if the border is nearer than this distance. The reach of a
point is the distance of the last neighbor found so far. So a search is exact if it visits all parts whose border is
within the reach. But few neighbors lie in the direction of any one border, and in many dimensions hardly any neighbor
lies behind a border at more than half of the reach. So an approximate search visits only parts whose border is within a
smaller distance, a share of the reach. A sample of points with known true neighbors shows which share yields the
required recall with high confidence, and what the search will cost.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial import cKDTree
from scipy.special import ndtr

from heatmover._base.threads import in_threads, one_blas_thread
from heatmover._base.types import Float64, Int32, Int64, Intp
from heatmover._base.words import counted
from heatmover.graphs.centers import CenterSearch, move_centers
from heatmover.graphs.distinct import mixed
from heatmover.graphs.kernels import TIE, Neighbors, Search, middle_of_rows, narrow

Float32 = npt.NDArray[np.float32]

# Mean number of members of a part, unless four times the number of neighbors is larger.
PART = 128
# Largest number of members of a part; a larger part is cut into several parts with the same center.
LARGEST = 8 * PART
# Number of k-means iterations that place the centers of the parts, and number of points per part that they use. After 8
# iterations a search examines 12% fewer points than after 3 (300,000 points in 8 dimensions), and the iterations take
# 2% of the search time.
MOVES, PER_PART = 8, 20
# Number of nearby groups of parts with which each point is compared to choose its part. On 300,000 points in 8
# dimensions, a neighbor search examines 3,900 points if all groups are compared and 4,900 points if one group is
# compared.
GROUPS_AROUND = 8
# Members of a part are padded to a multiple of two vectors of eight values.
LANES = 16
# Number of extra candidates kept in float32, so that near ties stay in the list if rounding swaps them.
SPARE = 2
# Number of points, and of parts, that are processed at once.
PIECE = 65_536
PARTS_AT_ONCE = 64
# Number of scores between centers of parts that are computed at once (16 MB).
MOST_SCORES = 2**22
# Number of probes: points with known true neighbors, used to plan the search. With 200 probes the recall had a standard
# error of 0.003 on clustered points in 50 dimensions, where a few points miss nearly all neighbors. This error is a
# third of the share of neighbors that a search may miss.
PROBES = 1_000
# Number of probes that estimate the cost. The cost varies less between points than the recall, but each of these probes
# stores one number per part.
COSTED = 200
# Number of probes compared with all points together; their candidate lists fit the second-level cache.
PROBES_AT_ONCE = 64
# Share of the true neighbors that must lie in the parts a search may visit.
FARTHEST = 0.999
# Confidence of a plan in standard deviations: one search in a hundred finds less than planned.
CONFIDENT = 2.33
# Share of the reach for an exact search, slightly above 1 so that no part is skipped because of rounding.
EXACT = 1 + 1e-6
# Share of the reach that includes every part. (If all neighbors of a point are copies, its reach is zero, and infinity
# times zero would be NaN.)
EVERYWHERE = 1e30


class NeighborLists(NamedTuple):
    """Neighbors of some points, nearest first.

    Attributes
    ----------
    distances, indices
        Distance and index of each neighbor, ``(n_rows, k)``; infinite and -1 where fewer than k were found.
    seen
        Number of points examined, and a lower bound on the distances of all points that were examined and discarded,
        ``(n_rows, 2)``.
    """

    distances: Float64
    indices: Int32
    seen: Float64


class SearchPlan(NamedTuple):
    """Plan of a neighbor search.

    Attributes
    ----------
    share
        Share of the reach within which the border of a part must lie for the part to be searched.
    n_around
        Number of parts around each part that may be searched.
    n_candidates
        Mean number of points with which each point is compared.
    """

    share: float
    n_around: int
    n_candidates: float


def least_recall(recalls: Float64, n_points: int, deviations: float = CONFIDENT) -> float:
    """Return a lower confidence bound of the recall from a sample of points.

    Most points miss no neighbor and a few miss many, so the sample mean is skewed. The bound inverts the t statistic of
    Johnson (1978), which is corrected for skewness by the third central moment. Even if no point of a sample misses a
    neighbor, a small share of all points could miss all neighbors.

    Parameters
    ----------
    recalls
        Share of its true neighbors found for each point of a sample, ``(n_sample,)``.
    n_points
        Number of points from which the sample was drawn; if the sample contains all of them, the recall is exact.
    deviations
        Confidence in standard deviations of a normal distribution; 0 returns the mean itself.
    """
    missed, count = 1 - recalls, int(recalls.size)
    mean, variance = float(missed.mean()), float(missed.var())
    if deviations == 0:
        return 1 - mean
    unknown = 1 - count / n_points
    skewed = float(((missed - mean) ** 3).mean()) / variance if variance > 0 else 0.0
    doubt = deviations * math.sqrt(variance * unknown / count) + skewed * unknown * (1 + 2 * deviations**2) / (
        6 * count
    )
    unseen = (1 - math.pow(float(ndtr(-deviations)), 1 / count)) * unknown
    return 1 - max(mean + doubt, unseen)


@final
@dataclass(frozen=True, eq=False)
class Probe:
    """A sample of points, the probes, with their true neighbors, used to plan a search.

    Attributes
    ----------
    numbers
        Indices of the probes among all points, ``(n_probes,)``.
    distances
        Distances of the true neighbors, ascending, ``(n_probes, k)``.
    needed
        Distance to the border of each neighbor's part as a share of the reach, ``(n_probes, k)``. A search must cover
        this share to find the neighbor.
    ranks
        Rank of each neighbor's part by the distance of its center from the center of the probe's part,
        ``(n_probes, k)``.
    borders
        For some probes: distance from the border of each part, divided by the distance of the probe's last neighbor,
        ``(n_costed, n_parts)``.
    sizes
        Number of members of each part, ``(n_parts,)``.
    """

    numbers: Int32
    distances: Float64
    needed: Float64
    ranks: Intp
    borders: Float64
    sizes: Int64

    def n_candidates(self, share: float) -> float:
        """Return the mean number of candidates per point if borders must lie within a share of the reach."""
        return float(((self.borders <= share) @ self.sizes).mean()) if len(self.borders) else float(self.sizes.sum())

    def plan(self, recall: float, *, confident: bool = False) -> SearchPlan:
        """Plan a search with this recall on the probes or, if ``confident``, with at least this recall on all points.

        The reach of a point shrinks during a search, so the search finds at least the planned share.
        """
        everything = SearchPlan(EVERYWHERE, self.sizes.size - 1, float(self.sizes.sum()))
        if len(self.needed) == 0:
            return everything
        # Enough parts to fill a list even if each has only one member.
        n_around = max(int(np.quantile(self.ranks, FARTHEST)) + 1, 2 * self.distances.shape[1])
        needed = np.where(self.ranks <= n_around, self.needed, np.inf)
        n_points, deviations = int(self.sizes.sum()), CONFIDENT if confident else 0.0
        shares = np.unique(needed)
        place = bisect_left(
            shares,
            x=True,
            key=lambda share: least_recall((needed <= share).mean(axis=1), n_points, deviations) >= recall,
        )
        if place == shares.size or not np.isfinite(shares[place]):
            return everything
        share = max(float(shares[place]), 0.0)
        return SearchPlan(share, min(n_around, self.sizes.size - 1), self.n_candidates(share))

    def recalls(self, distances: Float64) -> Float64:
        """Return the share of its true neighbors that a search found for each probe, ``(n_probes,)``.

        Parameters
        ----------
        distances
            Distances of the neighbors found for all points, ``(n_points, k)``. A neighbor as near as the last true
            neighbor counts as true.
        """
        return np.asarray((distances[self.numbers] <= self.distances[:, -1:] * (1 + TIE)).mean(axis=1))

    def dimension(self) -> float:
        """Estimate the dimension of the data from how distances grow with rank (Levina and Bickel 2004).

        Only the farther half of the neighbors is used, because near copies carry no information about the dimension.
        """
        k = self.distances.shape[1]
        first = (k - 1) // 2
        distances = self.distances[self.distances[:, first] > 0, first:]
        if len(distances) == 0:
            return 0.0
        if k == 1:
            return np.inf
        growth = float(np.log(distances[:, -1:] / distances[:, :-1]).mean())
        # In one dimension the logarithm of the distance grows by 1 / i from neighbor i to the next, on average.
        expected = np.cumsum(1 / np.arange(k - 1, first, -1.0)).mean()
        return float(expected / growth) if growth > 0 else np.inf


@final
@dataclass(frozen=True, eq=False)
class Partition:
    """Points divided into clusters (parts), sorted by part.

    Attributes
    ----------
    points
        Points ``(n_points, n_dimensions)``, part after part.
    order, member
        Original index of each point, and its part, ``(n_points,)`` each.
    starts, places
        First row of each part in ``points``, and its first column in ``blocks``, ``(n_parts + 1,)`` each.
    blocks
        Points relative to the center of their part and multiplied by ``scale``, in float32: for each part a block with
        one row per coordinate.
    middles, radii
        Center and radius of a ball around each part, ``(n_parts, n_dimensions)`` and ``(n_parts,)``.
    scale
        Inverse of the median radius, so that squares stay within the range of float32.
    is_strict
        Whether every point was compared with the centers of all parts, so that borders separate parts without
        exception.
    """

    points: Float64
    order: Int32
    member: Int32
    starts: Int64
    places: Int64
    blocks: Float32
    middles: Float64
    radii: Float64
    scale: float
    is_strict: bool

    @classmethod
    def from_points(
        cls, points: Float64, k: int, rng: np.random.Generator, *, strict: bool, n_threads: int
    ) -> Partition:
        """Divide points into parts for a search of k neighbors.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``, finite, more than ``k``.
        k
            Number of neighbors.
        rng
            Random generator that chooses the starting points of k-means.
        strict
            If True, compare every point with the centers of all parts. This makes an exact search possible and takes a
            time that grows with the square of the number of points.
        n_threads
            Number of threads; the parts do not depend on it.
        """
        points = np.ascontiguousarray(points)
        member, middles = _members(points, max(PART, 4 * k), rng, strict, n_threads)
        order = np.argsort(member, kind="stable").astype(np.int32)
        starts, middles = _without_empty(member, middles)
        ordered = points[order]
        sizes = np.diff(starts)
        away = np.empty(len(points))
        parts = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
        for start in range(0, len(points), PIECE):
            some = slice(start, start + PIECE)
            away[some] = np.sqrt(((ordered[some] - middles[parts[some]]) ** 2).sum(axis=1))
        radii = np.maximum.reduceat(away, starts[:-1])
        places = np.r_[0, np.cumsum(-(-sizes // LANES) * LANES)]
        scale = 1 / (float(np.median(radii)) or float(radii.max()) or 1.0)
        blocks = np.full(places[-1] * points.shape[1], np.inf, dtype=np.float32)
        with np.errstate(over="ignore"):
            for part, size in enumerate(sizes.tolist()):
                block = blocks[points.shape[1] * places[part] : points.shape[1] * places[part + 1]]
                members = ordered[starts[part] : starts[part + 1]]
                block.reshape(points.shape[1], -1)[:, :size] = ((members - middles[part]) * scale).T
        return cls(ordered, order, parts, starts, places, blocks, middles, radii, scale, strict)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return int(self.radii.size)

    def probe(self, k: int, n_threads: int, n_probes: int = PROBES) -> Probe:
        """Find the true neighbors of points spread over all parts, and the distances to the borders of their parts."""
        n_points = len(self.order)
        rows = np.linspace(0, n_points - 1, min(n_probes, n_points)).astype(np.int64)
        lists = self.search_everywhere(rows, k, n_threads)
        # A point whose list is not full is too remote for float32 and not representative of the others.
        full = lists.indices[:, -1] >= 0
        rows, distances, indices = rows[full], lists.distances[full], lists.indices[full]
        place = np.empty(n_points, dtype=np.int32)
        place[self.order] = np.arange(n_points, dtype=np.int32)
        theirs = self.member[place[indices]].astype(np.intp)
        needed, ranks = np.empty(theirs.shape), np.empty(theirs.shape, dtype=np.intp)
        every = -(-rows.size // COSTED)
        borders = np.empty((len(range(0, rows.size, every or 1)), self.n_parts))
        for i, row in enumerate(rows.tolist()):
            relative, apart = self._borders(row, distances[i, -1])
            needed[i] = relative[theirs[i]]
            ranks[i] = np.searchsorted(np.sort(apart), apart[theirs[i]], side="right") - 1
            if i % every == 0:
                borders[i // every] = relative
        return Probe(self.order[rows], distances, needed, ranks, borders, np.diff(self.starts))

    def _borders(self, row: int, reach: float) -> tuple[Float64, Float64]:
        """Return the distances of a point from the borders of all parts, and of its part's center from all centers.

        The distances from borders are relative to ``reach``.
        """
        own = self.member[row]
        apart = np.sqrt(((self.middles - self.middles[own]) ** 2).sum(axis=1))
        squares = ((self.middles - self.points[row]) ** 2).sum(axis=1)
        # Parts with the same center, into which a large part was cut, have no border.
        borders = np.divide(squares - squares[own], 2 * apart, out=np.zeros_like(apart), where=apart > 0)
        with np.errstate(over="ignore"):  # the reach is zero if all neighbors are duplicates
            return borders / max(reach, np.finfo(float).tiny), apart

    def everything(self) -> SearchPlan:
        """Return the plan of an exact search, which requires strict parts."""
        return SearchPlan(EXACT, self.n_parts - 1, np.nan)

    def search_everywhere(self, rows: Int64, k: int, n_threads: int) -> NeighborLists:
        """Find the k nearest neighbors of some rows of ``points`` by comparing these rows with all points."""
        from heatmover._base.compiled.neighbors import search_everywhere

        lists = _empty(rows.size, k)

        def work(start: int) -> None:
            some = slice(start, start + PROBES_AT_ONCE)
            search_everywhere(
                rows[some], self._arrays, self.scale, self._width(k), lists.distances[some], lists.indices[some]
            )

        in_threads(work, range(0, rows.size, PROBES_AT_ONCE), n_threads)
        return lists

    def k_nearest(self, k: int, plan: SearchPlan, n_threads: int) -> NeighborLists:
        """Find the k nearest neighbors of each point, exactly if the share is `EXACT` and the parts are strict."""
        from heatmover._base.compiled.neighbors import search_parts

        lists, limits = _empty(len(self.order), k), self._limits(k, plan.share)

        def work(some: tuple[int, int]) -> None:
            here = slice(self.starts[some[0]], self.starts[some[1]])
            near, apart = self._around(*some, plan.n_around)
            own = _empty(here.stop - here.start, k)
            search_parts(some[0], self._arrays, near, apart, limits, *own)
            to = self.order[here]
            lists.distances[to], lists.indices[to], lists.seen[to] = own

        edges = [*range(0, self.n_parts, PARTS_AT_ONCE), self.n_parts]
        with one_blas_thread():
            in_threads(work, pairwise(edges), n_threads)
        return lists

    @property
    def _arrays(self) -> tuple[Float64, Int32, Int64, Int64, Float32, Float64, Float64]:
        return self.points, self.order, self.starts, self.places, self.blocks, self.middles, self.radii

    def _width(self, k: int) -> int:
        return min(k + SPARE, len(self.order) - 1)

    def _limits(self, k: int, share: float) -> tuple[float, int, np.float32, np.float32]:
        slack = np.float32((self.points.shape[1] + 8) * 2.0**-23)
        return self.scale, self._width(k), np.float32(share), slack

    def _around(self, first: int, last: int, count: int) -> tuple[Int32, Float32]:
        """Return the parts around parts ``first`` to ``last``, nearest first, and the scaled distances to them."""
        near = np.empty((last - first, count), dtype=np.int32)
        origin = self.middles[first]
        there = (self.middles - origin) * self.scale
        with np.errstate(over="ignore", invalid="ignore"):
            there32 = np.clip(there, -1e18, 1e18).astype(np.float32)
            norms = np.einsum("ij,ij->i", there32, there32)
        size = max(1, MOST_SCORES // self.n_parts)
        for start in range(first, last, size):
            some = np.arange(start, min(start + size, last))
            scores = norms - 2 * (there32[some] @ there32.T)
            scores[np.arange(some.size), some] = np.inf
            if count < self.n_parts:
                near[some - first] = np.argpartition(scores, count - 1, axis=1)[:, :count]
        apart = np.empty(near.shape)
        for i in range(last - first):
            lengths = np.sqrt(((self.middles[near[i]] - self.middles[first + i]) ** 2).sum(axis=1)) * self.scale
            sorting = np.argsort(lengths, kind="stable")
            near[i], apart[i] = near[i, sorting], lengths[sorting]
        return near, np.minimum(apart, 1e38).astype(np.float32)


def _empty(n_rows: int, k: int) -> NeighborLists:
    return NeighborLists(np.empty((n_rows, k)), np.empty((n_rows, k), dtype=np.int32), np.empty((n_rows, 2)))


def _members(
    points: Float64, size: int, rng: np.random.Generator, strict: bool, n_threads: int
) -> tuple[Int32, Float64]:
    """Divide points into parts of about ``size`` members by two levels of k-means; return members and centers."""
    n_groups = max(1, round((len(points) / size) ** 0.5))
    start = float(rng.random())
    centers = _centers(points, n_groups, start)
    group = _nearest(points, centers, n_threads)
    order = np.argsort(group, kind="stable")
    edges = np.r_[0, np.cumsum(np.bincount(group, minlength=n_groups))]

    def cut(group: int) -> Float64:
        here = points[order[edges[group] : edges[group + 1]]]
        return _centers(here, max(1, round(len(here) / size)), start) if len(here) else here

    cuts = in_threads(cut, range(n_groups), n_threads)
    middles = np.concatenate(cuts)
    if strict:
        return _nearest(points, middles, n_threads), middles
    # A point near the edge of its group may belong to a part of a neighboring group.
    member = np.empty(len(points), dtype=np.int32)
    begins = np.r_[0, np.cumsum([len(cut) for cut in cuts])]

    def join(group: int) -> None:
        away = ((centers - centers[group]) ** 2).sum(axis=1)
        around = np.sort(np.argsort(away, kind="stable")[:GROUPS_AROUND])
        names = np.concatenate([np.arange(begins[other], begins[other + 1]) for other in around])
        rows = order[edges[group] : edges[group + 1]]
        member[rows] = names[_nearest(points[rows], middles[names], 1)]

    in_threads(join, range(n_groups), n_threads)
    return member, middles


def _centers(points: Float64, count: int, start: float) -> Float64:
    """Return the centers of a short k-means on every n-th point; ``start`` in [0, 1) chooses the first point."""
    step = max(1, len(points) // (PER_PART * count))
    some = points[int(start * step) :: step]
    centers = np.asarray(some[np.arange(count) * len(some) // count], dtype=np.float64)
    for _ in range(MOVES):
        centers = move_centers(some, CenterSearch(centers).nearest(some, 1)[0], centers)
    return centers


def _nearest(points: Float64, centers: Float64, n_threads: int) -> Int32:
    return CenterSearch(centers).nearest(points, n_threads)[0].astype(np.int32)


def _without_empty(member: Int32, middles: Float64) -> tuple[Int64, Float64]:
    """Drop empty parts and cut large ones; return the first row and the center of each part."""
    sizes = np.bincount(member, minlength=len(middles))
    pieces = -(-sizes // LARGEST)
    part = np.repeat(np.arange(len(middles)), pieces)
    within = np.arange(part.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = (np.cumsum(sizes) - sizes)[part] + within * LARGEST
    return np.r_[begins, len(member)].astype(np.int64), middles[part]


SEARCHES = ("auto", "tree", "exact", "approximate")

Integers = npt.NDArray[np.integer[Any]]
Lists = tuple[Float64, Integers]

# Times below are CPU time per point in microseconds, for 30 neighbors of Gaussian points, on a shared machine.
# Largest intrinsic dimension of the data at which a k-d tree is used. The share of the points that a tree visits grows
# exponentially with this dimension. A tree took 15 microseconds in 3 dimensions (100,000 points), 37 in 5 dimensions
# and 128 in 6 dimensions (200,000 points). An exact search by parts took 9, 13 and 28 microseconds. For more points
# than an exact search by parts accepts, an approximate search took 9 microseconds in 5 dimensions, with a recall of
# 0.998.
TREE_DIMENSION = 4.0
# Largest number of coordinates per point that an exact search by parts may examine; this takes about 50 microseconds.
# With 200,000 Gaussian points in 8 dimensions, 224,000 coordinates took 57 microseconds. In a simulated cohort of
# 100,000 points in 8 dimensions, 48,000 coordinates took 16 microseconds.
MOST_IN_REACH = 250_000.0
# Largest number of points for an exact search by parts, which first compares every point with the centers of all parts:
# this cost grows with the square of the number of points.
EXACT_UP_TO = 200_000
# Up to this many points a tree takes at most 0.1 s in any dimension (Gaussian in 50 dimensions), and a search by parts
# takes seconds to compile when first used after installation. On 5,000 points a tree takes 0.5 s, and a search by parts
# takes 0.2 s.
TREE_UP_TO = 2_000
# Up to this many points any exact search takes less than a second.
EXACT_BELOW = 10_000
# Share of the true neighbors that an approximate search is planned to find, with confidence.
WANTED = 0.99
# Points tied with the last neighbor are neighbors too, up to this multiple of the requested number. On lattices many
# points are tied: in 3 dimensions, the 24 points after the first 32 neighbors are equally far, and among words of 14
# bits, so are the 91 points after the first 14 neighbors.
MOST_TIED = 4
# Number of points with ties that are processed at once; with 120 neighbors each they take 100 MB.
TIED_AT_ONCE = 50_000
# Number of points processed at once if they have more ties than may be joined, because each may be tied with all
# others.
CROWDED_AT_ONCE = 1_000


def k_nearest(
    points: Float64,
    k: int,
    *,
    algorithm: str = "auto",
    rng: np.random.Generator,
    n_threads: int = 1,
    order: float = 2.0,
) -> Neighbors:
    """Find the k nearest neighbors of every point, without the point itself, and all points tied with the last.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite, all distinct, more than ``k``.
    k
        Number of neighbors; 0 for a single point.
    algorithm
        One of `SEARCHES`. All exact searches join the same points; "approximate" ignores ties.
    rng
        Random generator that samples points to choose the algorithm, and that the approximate search uses.
    n_threads
        Number of threads.
    order
        Order of the norm: 2, 1 or infinity. Only the tree supports orders other than 2, so "auto" then uses the tree.
    """
    n_points = len(points)
    if k == 0:
        return Neighbors(sp.csr_array((n_points, n_points)), np.zeros(n_points), Search("tree", 1.0, "a single point"))
    if order != 2:
        distances, indices = _by_tree(points, np.arange(n_points), min(k + 1, n_points - 1), n_threads, order)
        search = Search("tree", 1.0, "the only search for this metric")
        return _with_ties(points, k, distances, indices, search, n_threads, order)
    search, prepared = Search(algorithm, 1.0, "as requested"), _PartitionProbe()
    if algorithm == "auto":
        search, prepared = _choose(points, k, rng, n_threads)
    if search.algorithm == "approximate":
        return _approximate(points, k, search, prepared, rng, n_threads)
    # One neighbor more than requested shows whether the last is tied.
    count = min(k + 1, n_points - 1)
    if search.algorithm == "exact":
        distances, indices = _by_parts(points, count, prepared.partition, rng, n_threads)
    else:
        distances, indices = _by_tree(points, np.arange(n_points), count, n_threads)
    return _with_ties(points, k, distances, indices, search, n_threads)


class _PartitionProbe(NamedTuple):
    """Parts and probes that were computed to choose a search algorithm, and that the search reuses."""

    partition: Partition | None = None
    probe: Probe | None = None


def _approximate(
    points: Float64, k: int, search: Search, prepared: _PartitionProbe, rng: np.random.Generator, n_threads: int
) -> Neighbors:
    """Find nearly all k nearest neighbors by parts; if "auto" chose this and it finds too few, search exactly."""
    n_points = len(points)
    partition = prepared.partition or Partition.from_points(points, k, rng, strict=False, n_threads=n_threads)
    probe = prepared.probe or partition.probe(k, n_threads)
    lists: Lists = partition.k_nearest(k, probe.plan(WANTED, confident=True), n_threads)[:2]
    distances, indices = lists
    short = np.flatnonzero(indices[:, -1] < 0)
    if short.size:  # points whose neighbors are too remote for float32 or lie in small parts
        distances[short], indices[short] = _by_tree(points, short, k, n_threads)
    recalls = probe.recalls(distances)
    result = replace(search, recall=float(recalls.mean()) if recalls.size else 1.0)
    if np.isnan(search.recall) and recalls.size and least_recall(recalls, n_points) < WANTED:
        # The planned recall is reached unless rounding in single precision prevents it.
        distances, indices = _by_parts(points, k, None, rng, n_threads)
        result = Search("exact", 1.0, f"{search.reason}; an approximate search found too few neighbors")
    part = _NeighborRows(np.arange(n_points), np.full(n_points, k), distances.ravel(), indices.ravel())
    return Neighbors(_matrix(n_points, [part]), _middle(distances, k), result)


def _by_parts(points: Float64, k: int, partition: Partition | None, rng: np.random.Generator, n_threads: int) -> Lists:
    """Find the k nearest neighbors exactly: in float32, and by a tree in float64 where float32 could be wrong."""
    partition = partition or Partition.from_points(points, k, rng, strict=True, n_threads=n_threads)
    distances, indices, seen = partition.k_nearest(k, partition.everything(), n_threads)
    unsure = np.flatnonzero((indices[:, -1] < 0) | ~(seen[:, 1] >= distances[:, -1] * (1 + TIE)))
    if unsure.size:
        distances[unsure], indices[unsure] = _by_tree(points, unsure, k, n_threads)
    return distances, indices


def _by_tree(points: Float64, rows: Intp, k: int, n_threads: int, order: float = 2.0) -> Lists:
    """Find the k nearest neighbors of the points ``rows`` by a k-d tree."""
    distances, indices = cKDTree(points).query(points[rows], k=k + 1, p=order, workers=n_threads)
    own = indices == rows[:, None]
    own[~own.any(axis=1), -1] = True  # the point itself is missing if k + 1 others are at distance zero
    return distances[~own].reshape(-1, k), indices[~own].reshape(-1, k)


class _NeighborRows(NamedTuple):
    """Neighbors of the points ``rows``: their number per point, and their distances and indices, point after point."""

    rows: Intp
    counts: Int64
    distances: Float64
    indices: Integers


def _with_ties(
    points: Float64, k: int, distances: Float64, indices: Integers, search: Search, n_threads: int, order: float = 2.0
) -> Neighbors:
    """Return the k nearest neighbors of each point and all points tied with the last, up to `MOST_TIED` times k.

    ``distances`` and ``indices`` hold ``k + 1`` neighbors per point, or k if there are no more.
    """
    n_points = len(points)
    tied = distances[:, -1] <= distances[:, k - 1] * (1 + TIE) if distances.shape[1] > k else np.zeros(n_points, bool)
    rest = np.flatnonzero(~tied)
    parts = [_NeighborRows(rest, np.full(rest.size, k), distances[rest, :k].ravel(), indices[rest, :k].ravel())]
    width = min(MOST_TIED * k + 1, n_points - 1)
    for some in _blocks(np.flatnonzero(tied), TIED_AT_ONCE):
        lengths, names = _by_tree(points, some, width, n_threads, order)
        counts = (lengths <= lengths[:, k - 1 : k] * (1 + TIE)).sum(axis=1)
        if width < n_points - 1:
            crowded = np.flatnonzero(counts == width)  # points with more ties than may be joined
            counts[crowded] = k
            for at in _blocks(crowded, CROWDED_AT_ONCE):
                lengths[at, :k], names[at, :k] = _some_of_tied(
                    points, some[at], k, lengths[at, k - 1], n_threads, order
                )
        inside = np.arange(width) < counts[:, None]
        parts.append(_NeighborRows(some, counts, lengths[inside], names[inside]))
    return Neighbors(_matrix(n_points, parts), _middle(distances, k), search)


def _some_of_tied(points: Float64, rows: Intp, k: int, last: Float64, n_threads: int, order: float) -> Lists:
    """Return the k nearest neighbors of some points; among points tied with the last, a hash of both indices chooses.

    If the smallest index decided, the first of many tied points would become the neighbor of all others.
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


def _matrix(n_points: int, parts: list[_NeighborRows]) -> sp.csr_array:
    """Combine the neighbors of all points into one CSR matrix ``(n_points, n_points)``."""
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
    """Join all points within ``radius`` of each other in the norm of order ``order``; a point may have no neighbor."""
    pairs = cKDTree(points).query_pairs(radius, p=order, output_type="ndarray")
    lengths = np.tile(np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], ord=order, axis=1), 2)
    rows, columns = np.r_[pairs[:, 0], pairs[:, 1]], np.r_[pairs[:, 1], pairs[:, 0]]
    ascending = np.lexsort((columns, lengths, rows))
    counts = np.bincount(rows, minlength=len(points))
    offsets = np.r_[0, np.cumsum(counts)]
    matrix = sp.csr_array((lengths[ascending], columns[ascending], offsets), shape=(len(points), len(points)))
    return Neighbors(matrix, middle_of_rows(matrix, counts), Search("radius", 1.0, f"all pairs within {radius:g}"))


def _middle(distances: Float64, k: int) -> Float64:
    """Return `Neighbors.middle` from the distances of the k nearest of each point, ascending."""
    # Distinct points may be so close that the square of their distance is zero.
    zeros = (distances[:, :k] == 0).sum(axis=1)
    place = np.minimum(np.maximum(k // 2 - 1, zeros), k - 1)
    return np.asarray(distances[np.arange(len(distances)), place])


def _choose(points: Float64, k: int, rng: np.random.Generator, n_threads: int) -> tuple[Search, _PartitionProbe]:
    n_points, n_dimensions = points.shape
    if n_points <= TREE_UP_TO:
        return Search("tree", 1.0, f"{counted(n_points, 'point')}: an exact tree is fast"), _PartitionProbe()
    is_small = n_points <= EXACT_UP_TO
    partition = Partition.from_points(points, k, rng, strict=is_small, n_threads=n_threads)
    if n_points <= EXACT_BELOW:
        return Search("exact", 1.0, f"{counted(n_points, 'point')}: exact search is fast"), _PartitionProbe(partition)
    probe = partition.probe(k, n_threads)
    if is_small:
        share = probe.n_candidates(1.0) / n_points
        if share * n_points * n_dimensions <= MOST_IN_REACH:
            reason = f"{share:.0%} of {counted(partition.n_parts, 'cluster')} within reach: exact search is fast"
            return Search("exact", 1.0, reason), _PartitionProbe(partition)
    dimension = n_dimensions if n_dimensions <= 3 else min(probe.dimension(), n_dimensions)
    looks = f"the data look {dimension:.1f}-dimensional"
    if dimension <= TREE_DIMENSION:
        return Search("tree", 1.0, f"{looks}: an exact tree is fast"), _PartitionProbe()
    reason = f"{counted(n_points, 'point')} that look {dimension:.1f}-dimensional: exact search is slow"
    return Search("approximate", np.nan, reason), _PartitionProbe(partition, probe)


def _blocks(indices: Intp, size: int) -> list[Intp]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]
