"""Nearest neighbors of points among themselves: exact where that is fast, approximate where it is not.

A search by parts: every point looks at the parts whose border is near, all members of a part at once. Points are put
into the parts of a k-means. The border between two parts is the plane halfway between their middles, and a point within
some distance can lie in another part only if the border with it is nearer than that. So a search that looks at all
parts whose border is within reach, the distance of the last neighbor found so far, is exact. But few neighbors lie in
the direction of any one border: in many dimensions hardly one is beyond half of the reach. A sample of points with
their true neighbors tells which share of the reach finds as many as wanted, with confidence, and at what cost.
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

__all__ = [
    "EXACT",
    "SEARCHES",
    "NeighborLists",
    "Partition",
    "Probe",
    "SearchPlan",
    "k_nearest",
    "least_recall",
    "within_radius",
]

Float32 = npt.NDArray[np.float32]

# Members of a part, on average.
PART = 128
# A part with more is cut into several with the same middle.
LARGEST = 8 * PART
# Moves of the middles of a part, and points per part that they look at. After 8 moves a search looks at 12 % fewer
# points than after 3 (300,000 in 8 dimensions), and they take a fiftieth of its time.
MOVES, PER_PART = 8, 20
# Groups of parts in which a point may find its part: its own and those around. With all parts (300,000 points in 8
# dimensions) a search looks at 3,900 points, with one group at 4,900.
GROUPS_AROUND = 8
# Two vectors of eight: a part takes a multiple of so many places.
LANES = 16
# Candidates kept in float32 beyond those wanted: where its rounding swaps near ties, all of them are still there.
SPARE = 2
# Points, or parts, of a piece of work.
PIECE = 65_536
PARTS_AT_ONCE = 64
# Scores of middles at once (16 MB).
MOST_SCORES = 2**22
# Points with their true neighbors that tell how to search. Of 200 the share of neighbors found has a standard error
# of 0.003 (clustered, 50 dimensions: a few points miss nearly all), which is a third of all that may be missed.
PROBES = 1_000
# Those that tell the cost: a mean over points that differ less, and each takes a number per part.
COSTED = 200
# Probes that are compared with all points together: their lists stay in the second cache.
PROBES_AT_ONCE = 64
# Share of the neighbors that the parts around must hold.
FARTHEST = 0.999
# How sure a plan is, in standard deviations: one search in a hundred finds less than is planned.
SURE = 2.33
# Relative to the reach; beyond it every border is looked at that rounding could have moved.
EXACT = 1 + 1e-6
# So many times the reach is everywhere. (Infinity times the reach of a point whose neighbors are all copies of it
# would be no number.)
EVERYWHERE = 1e30


class NeighborLists(NamedTuple):
    """Neighbors of some points, nearest first.

    Attributes
    ----------
    distances, indices
        ``(n_rows, k)``; infinite and -1 where too few were found.
    seen
        ``(n_rows, 2)``: points looked at; a distance beyond which all lie that were looked at and are not candidates
        any more.
    """

    distances: Float64
    indices: Int32
    seen: Float64


class SearchPlan(NamedTuple):
    """How to search.

    Attributes
    ----------
    share
        Of the reach within which the border of a part must lie.
    n_around
        Parts around each part that may come into question.
    n_candidates
        Points that a point will look at, on average.
    """

    share: float
    n_around: int
    n_candidates: float


def least_recall(recalls: Float64, n_points: int, deviations: float = SURE) -> float:
    """Return a lower confidence bound of a recall from that of some points.

    Most points miss nothing and a few miss a lot, so that the mean of a sample is skewed: the bound is that of Johnson
    (1978), which adds to the standard error what the third moment tells. Where a sample shows nothing at all, a share
    of points could still miss everything and not be in it.

    Parameters
    ----------
    recalls
        Share of its neighbors that each point of a sample has found, ``(n_sample,)``.
    n_points
        Points from which the sample was drawn; of all of them there is no doubt.
    deviations
        How sure, in standard deviations of a normal distribution; 0 for the mean itself.
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
    """Some points with their true neighbors.

    Attributes
    ----------
    numbers
        The points' own, ``(n_probes,)``.
    distances
        Of the neighbors, ``(n_probes, k)``.
    needed
        The share of the reach within which the border of each neighbor's part lies, ``(n_probes, k)``.
    ranks
        Which part each neighbor lies in, by its distance from the probe's own, ``(n_probes, k)``.
    borders
        How far each part's border is from some of the probes, relative to their last neighbor,
        ``(n_costed, n_parts)``.
    sizes
        Members of each part, ``(n_parts,)``.
    """

    numbers: Int32
    distances: Float64
    needed: Float64
    ranks: Intp
    borders: Float64
    sizes: Int64

    def n_candidates(self, share: float) -> float:
        """Return at how many points a point looks if borders must lie within a share of the reach, on average."""
        return float(((self.borders <= share) @ self.sizes).mean()) if len(self.borders) else float(self.sizes.sum())

    def plan(self, recall: float, *, surely: bool = False) -> SearchPlan:
        """Return how to find a share of all true neighbors: of the probes', or surely, with confidence of everyone's.

        While it lasts, a search has a larger reach than in the end, so that it finds at least what is planned.
        """
        everything = SearchPlan(EVERYWHERE, self.sizes.size - 1, float(self.sizes.sum()))
        if len(self.needed) == 0:
            return everything
        # One member each would fill a list.
        n_around = max(int(np.quantile(self.ranks, FARTHEST)) + 1, 2 * self.distances.shape[1])
        needed = np.where(self.ranks <= n_around, self.needed, np.inf)
        n_points, deviations = int(self.sizes.sum()), SURE if surely else 0.0
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
        """Return the share of its neighbors that each probe has found, from the distances of everyone's.

        ``(n_points, k)``, ascending; a neighbor as far as the last true one is one.
        """
        return np.asarray((distances[self.numbers] <= self.distances[:, -1:] * (1 + TIE)).mean(axis=1))

    def dimension(self) -> float:
        """Estimate the dimension of the data from how distances grow with rank (Levina and Bickel 2004).

        From the farther half of the neighbors: near copies say nothing about the space around them.
        """
        k = self.distances.shape[1]
        first = (k - 1) // 2
        distances = self.distances[self.distances[:, first] > 0, first:]
        if len(distances) == 0:
            return 0.0
        if k == 1:
            return np.inf
        growth = float(np.log(distances[:, -1:] / distances[:, :-1]).mean())
        # In one dimension the logarithm grows by 1 / i from neighbor i to the next, on average.
        expected = np.cumsum(1 / np.arange(k - 1, first, -1.0)).mean()
        return float(expected / growth) if growth > 0 else np.inf


@final
@dataclass(frozen=True, eq=False)
class Partition:
    """Points in the order of their parts.

    Attributes
    ----------
    points
        ``(n_points, n_dimensions)``, part after part.
    order, member
        ``(n_points,)``: the number that each point has outside, and its part.
    starts, places
        ``(n_parts + 1,)``: where each part begins, and where in ``blocks``.
    blocks
        The points relative to the middle of their part, in units of ``1 / scale``.
    middles, radii
        ``(n_parts, n_dimensions)`` and ``(n_parts,)``: a ball around each part.
    scale
        Makes half of the parts smaller than 1, so that squares in float32 stay within its range.
    is_strict
        Whether every point has been compared with all middles, so that borders separate parts without exception.
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
        """Put points ``(n_points, n_dimensions)`` into parts for a search of k neighbors.

        Parameters
        ----------
        points
            Finite, more than ``k``.
        k
            Number of neighbors.
        rng
            Chooses the points that the k-means begins with.
        strict
            Compare every point with all middles, which takes a time that grows with the square of the points, and makes
            an exact search possible.
        n_threads
            Threads; nothing depends on them.
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
        """Find the true neighbors of points spread over all parts, and how far the borders with theirs are."""
        n_points = len(self.order)
        rows = np.linspace(0, n_points - 1, min(n_probes, n_points)).astype(np.int64)
        lists = self.search_everywhere(rows, k, n_threads)
        # A list that is not full belongs to a point too far for a float32, which tells nothing about the others.
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
        """Return how far the borders of all parts are from a point, relative to a reach, and their middles apart."""
        own = self.member[row]
        apart = np.sqrt(((self.middles - self.middles[own]) ** 2).sum(axis=1))
        squares = ((self.middles - self.points[row]) ** 2).sum(axis=1)
        # Parts with the same middle, into which a large one was cut, have no border.
        borders = np.divide(squares - squares[own], 2 * apart, out=np.zeros_like(apart), where=apart > 0)
        with np.errstate(over="ignore"):  # beside neighbors that are all copies
            return borders / max(reach, np.finfo(float).tiny), apart

    def everything(self) -> SearchPlan:
        """Return the plan that finds the true neighbors, if the parts are strict."""
        return SearchPlan(EXACT, self.n_parts - 1, np.nan)

    def search_everywhere(self, rows: Int64, k: int, n_threads: int) -> NeighborLists:
        """Compare some points, by their places, with all others."""
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
        """Find about the k nearest others of each point; all of them if the share is `EXACT` and the parts strict."""
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
        """Return the parts around some, nearest first, and the distances of their middles in units of the blocks."""
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
    """Return the part of each point and the parts' middles; parts of about a size, by k-means in two steps."""
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
    # A point near the edge of its group may lie in a part of the next one.
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
    """Return the centers of a short k-means of some of the points, of which ``start`` in [0, 1) is the first."""
    step = max(1, len(points) // (PER_PART * count))
    some = points[int(start * step) :: step]
    centers = np.asarray(some[np.arange(count) * len(some) // count], dtype=np.float64)
    for _ in range(MOVES):
        centers = move_centers(some, CenterSearch(centers).nearest(some, 1)[0], centers)
    return centers


def _nearest(points: Float64, centers: Float64, n_threads: int) -> Int32:
    return CenterSearch(centers).nearest(points, n_threads)[0].astype(np.int32)


def _without_empty(member: Int32, middles: Float64) -> tuple[Int64, Float64]:
    """Return where each part that has members begins, and its middle; large ones are cut."""
    sizes = np.bincount(member, minlength=len(middles))
    pieces = -(-sizes // LARGEST)
    part = np.repeat(np.arange(len(middles)), pieces)
    within = np.arange(part.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = (np.cumsum(sizes) - sizes)[part] + within * LARGEST
    return np.r_[begins, len(member)].astype(np.int64), middles[part]


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


def k_nearest(
    points: Float64,
    k: int,
    *,
    algorithm: str = "auto",
    rng: np.random.Generator,
    n_threads: int = 1,
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
        Threads to use.
    order
        Of the norm: 2, or 1 and infinity, of which only the tree finds neighbors, and "auto" takes it.
    """
    n_points = len(points)
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
