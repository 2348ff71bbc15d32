"""Nearest neighbours by cells: every point looks at the cells whose border is near, all members of a cell at once.

Points are put into the cells of a k-means. The border between two cells is the plane halfway between their middles, and
a point within some distance can lie in another cell only if the border with it is nearer than that. So a search that
looks at all cells whose border is within reach, the distance of the last neighbour found so far, is exact. But few
neighbours lie in the direction of any one border: in many dimensions hardly one is beyond half of the reach. A sample
of points with their true neighbours tells which share of the reach finds as many as wanted, and at what cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads, one_blas_thread
from heatmover._typing import Float64, Int32, Int64, Intp

__all__ = ["EXACT", "Cells", "Found", "Plan", "Probe"]

Float32 = npt.NDArray[np.float32]

# Members of a cell, on average.
CELL = 128
# A cell with more is cut into several with the same middle.
LARGEST = 8 * CELL
# Moves of the middles of a cell, and points per cell that they look at. After 8 moves a search looks at 12 % fewer
# points than after 3 (300,000 in 8 dimensions), and they take a fiftieth of its time.
MOVES, PER_CELL = 8, 20
# Groups of cells in which a point may find its cell: its own and those around. With all cells (300,000 points in 8
# dimensions) a search looks at 3,900 points, with one group at 4,900.
GROUPS_AROUND = 8
# Vectors of eight: a cell takes a multiple of so many places.
LANES = 8
# Candidates kept in float32 beyond those wanted: where its rounding swaps near ties, all of them are still there.
SPARE = 2
# Points, or cells, of a piece of work.
PIECE = 65_536
CELLS_AT_ONCE = 64
# Scores of middles at once (16 MB).
MOST_SCORES = 2**22
# Points with their true neighbours that tell how to search.
PROBES = 200
# Share of the neighbours that the cells around must hold.
FARTHEST = 0.999
# Cells around a cell at most (at 10^6 points they take 64 MB with their distances).
MOST_AROUND = 1_024
# Relative to the reach; beyond it every border is looked at that rounding could have moved.
EXACT = 1 + 1e-6


class Found(NamedTuple):
    """Neighbours of some points, nearest first.

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


class Plan(NamedTuple):
    """How to search.

    Attributes
    ----------
    share
        Of the reach within which the border of a cell must lie.
    n_around
        Cells around each cell that may come into question.
    n_candidates
        Points that a point will look at, on average.
    """

    share: float
    n_around: int
    n_candidates: float


@final
@dataclass(frozen=True, eq=False)
class Probe:
    """Some points with their true neighbours.

    Attributes
    ----------
    distances
        Of the neighbours, ``(n_probes, k)``.
    borders
        How far each cell's border is from each probe, relative to its last neighbour, ``(n_probes, n_cells)``.
    sizes
        Members of each cell, ``(n_cells,)``.
    theirs
        The cells of the neighbours, ``(n_probes, k)``.
    ranks
        Which cell each is, by its distance from the probe's own, ``(n_probes, n_cells)``.
    """

    distances: Float64
    borders: Float64
    sizes: Int64
    theirs: Intp
    ranks: Float64

    def n_candidates(self, share: float) -> float:
        """Return at how many points a point looks if borders must lie within a share of the reach, on average."""
        return float(((self.borders <= share) @ self.sizes).mean()) if len(self.borders) else float(self.sizes.sum())

    def plan(self, recall: float) -> Plan:
        """Return the share of the reach that finds a share of all true neighbours."""
        if len(self.borders) == 0:
            return Plan(1.0, min(MOST_AROUND, self.sizes.size - 1), self.n_candidates(1.0))
        ratios = np.take_along_axis(self.borders, self.theirs, axis=1)
        share = float(np.quantile(np.maximum(ratios, 0), recall))
        around = np.quantile(np.take_along_axis(self.ranks, self.theirs, axis=1), FARTHEST)
        # One member each would fill a list.
        n_around = max(int(around) + 1, 2 * self.distances.shape[1])
        return Plan(share, min(n_around, MOST_AROUND, self.sizes.size - 1), self.n_candidates(share))

    def dimension(self) -> float:
        """Estimate the dimension of the data from how distances grow with rank (Levina and Bickel 2004)."""
        distances = self.distances[self.distances[:, 0] > 0]
        if len(distances) == 0 or distances.shape[1] == 1:
            return 0.0
        growth = float(np.log(distances[:, -1:] / distances[:, :-1]).mean())
        return 1 / growth if growth > 0 else np.inf


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """Points in the order of their cells.

    Attributes
    ----------
    points
        ``(n_points, n_dimensions)``, cell after cell.
    order, member
        ``(n_points,)``: the number that each point has outside, and its cell.
    starts, places
        ``(n_cells + 1,)``: where each cell begins, and where in ``blocks``.
    blocks
        The points relative to the middle of their cell, in units of ``1 / scale``.
    middles, radii
        ``(n_cells, n_dimensions)`` and ``(n_cells,)``: a ball around each cell.
    scale
        Makes half of the cells smaller than 1, so that squares in float32 stay within its range.
    is_strict
        Whether every point has been compared with all middles, so that borders part cells without exception.
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
    def from_points(cls, points: Float64, k: int, rng: np.random.Generator, *, strict: bool, n_threads: int) -> Cells:
        """Put points ``(n_points, n_dimensions)`` into cells for a search of k neighbours.

        Parameters
        ----------
        points
            Finite, more than ``k``.
        k
            Number of neighbours.
        rng
            Chooses the points that the k-means begins with.
        strict
            Compare every point with all middles, which takes a time that grows with the square of the points, and makes
            an exact search possible.
        n_threads
            Threads; nothing depends on them.
        """
        from heatmover._compiled.cells import fill_blocks

        points = np.ascontiguousarray(points)
        member, middles = _members(points, max(CELL, 4 * k), rng, strict, n_threads)
        order = np.argsort(member, kind="stable").astype(np.int32)
        starts, middles = _without_empty(member, middles)
        ordered = points[order]
        sizes = np.diff(starts)
        away = np.empty(len(points))
        cells = np.repeat(np.arange(sizes.size, dtype=np.int32), sizes)
        for start in range(0, len(points), PIECE):
            some = slice(start, start + PIECE)
            away[some] = np.sqrt(((ordered[some] - middles[cells[some]]) ** 2).sum(axis=1))
        radii = np.maximum.reduceat(away, starts[:-1])
        places = np.r_[0, np.cumsum(-(-sizes // LANES) * LANES)]
        scale = 1 / (float(np.median(radii)) or float(radii.max()) or 1.0)
        blocks = np.empty(places[-1] * points.shape[1], dtype=np.float32)
        with np.errstate(over="ignore"):
            fill_blocks(ordered, starts, places, middles, scale, blocks)
        return cls(ordered, order, cells, starts, places, blocks, middles, radii, scale, strict)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self.radii.size)

    def probe(self, k: int, n_probes: int = PROBES) -> Probe:
        """Find the true neighbours of points spread over all, and how far the borders of all cells are from them."""
        rows = np.linspace(0, len(self.order) - 1, min(n_probes, len(self.order))).astype(np.int64)
        found = self.search_everywhere(rows, k)
        # A list that is not full belongs to a point too far for a float32, which tells nothing about the others.
        full = found.indices[:, -1] >= 0
        rows, distances, indices = rows[full], found.distances[full], found.indices[full]
        borders, ranks = np.empty((rows.size, self.n_cells)), np.empty((rows.size, self.n_cells))
        for i, row in enumerate(rows):
            own = self.member[row]
            apart = np.sqrt(((self.middles - self.middles[own]) ** 2).sum(axis=1))
            squares = ((self.middles - self.points[row]) ** 2).sum(axis=1)
            # Cells with the same middle, into which a large one was cut, have no border.
            borders[i] = np.divide(squares - squares[own], 2 * apart, out=np.zeros_like(apart), where=apart > 0)
            ranks[i, np.argsort(apart, kind="stable")] = np.arange(self.n_cells)
        place = np.empty(len(self.order), dtype=np.int32)
        place[self.order] = np.arange(len(self.order), dtype=np.int32)
        theirs = self.member[place[indices]].astype(np.intp)
        with np.errstate(over="ignore"):  # beside neighbours that are all copies
            borders /= np.maximum(distances[:, -1:], np.finfo(float).tiny)
        return Probe(distances, borders, np.diff(self.starts), theirs, ranks)

    def everything(self) -> Plan:
        """Return the plan that finds the true neighbours, if the cells are strict."""
        return Plan(EXACT, self.n_cells - 1, np.nan)

    def search_everywhere(self, rows: Int64, k: int) -> Found:
        """Compare some points, by their places, with all others."""
        from heatmover._compiled.cells import search_everywhere

        found = _empty(rows.size, k)
        search_everywhere(rows, self._parts, self.scale, self._width(k), found.distances, found.indices)
        return found

    def k_nearest(self, k: int, plan: Plan, n_threads: int) -> Found:
        """Find about the k nearest others of each point; all of them if the share is `EXACT` and the cells strict."""
        from heatmover._compiled.cells import search_cells

        found, limits = _empty(len(self.order), k), self._limits(k, plan.share)

        def work(some: tuple[int, int]) -> None:
            here = slice(self.starts[some[0]], self.starts[some[1]])
            near, apart = self._around(*some, plan.n_around)
            part = _empty(here.stop - here.start, k)
            search_cells(some[0], self._parts, near, apart, limits, *part)
            to = self.order[here]
            found.distances[to], found.indices[to], found.seen[to] = part

        edges = [*range(0, self.n_cells, CELLS_AT_ONCE), self.n_cells]
        with one_blas_thread():
            in_threads(work, pairwise(edges), n_threads)
        return found

    @property
    def _parts(self) -> tuple[Float64, Int32, Int64, Int64, Float32, Float64, Float64]:
        return self.points, self.order, self.starts, self.places, self.blocks, self.middles, self.radii

    def _width(self, k: int) -> int:
        return min(k + SPARE, len(self.order) - 1)

    def _limits(self, k: int, share: float) -> tuple[float, int, np.float32, np.float32]:
        slack = np.float32((self.points.shape[1] + 8) * 2.0**-23)
        return self.scale, self._width(k), np.float32(share), slack

    def _around(self, first: int, last: int, count: int) -> tuple[Int32, Float32]:
        """Return the cells around some, nearest first, and the distances of their middles in units of the blocks."""
        near = np.empty((last - first, count), dtype=np.int32)
        origin = self.middles[first]
        there = (self.middles - origin) * self.scale
        with np.errstate(over="ignore", invalid="ignore"):
            there32 = np.clip(there, -1e18, 1e18).astype(np.float32)
            norms = np.einsum("ij,ij->i", there32, there32)
        size = max(1, MOST_SCORES // self.n_cells)
        for start in range(first, last, size):
            some = np.arange(start, min(start + size, last))
            scores = norms - 2 * (there32[some] @ there32.T)
            scores[np.arange(some.size), some] = np.inf
            if count < self.n_cells:
                near[some - first] = np.argpartition(scores, count - 1, axis=1)[:, :count]
        apart = np.empty(near.shape)
        for i in range(last - first):
            lengths = np.sqrt(((self.middles[near[i]] - self.middles[first + i]) ** 2).sum(axis=1)) * self.scale
            sorting = np.argsort(lengths, kind="stable")
            near[i], apart[i] = near[i, sorting], lengths[sorting]
        return near, np.minimum(apart, 1e38).astype(np.float32)


def _empty(n_rows: int, k: int) -> Found:
    return Found(np.empty((n_rows, k)), np.empty((n_rows, k), dtype=np.int32), np.empty((n_rows, 2)))


def _members(
    points: Float64, size: int, rng: np.random.Generator, strict: bool, n_threads: int
) -> tuple[Int32, Float64]:
    """Return the cell of each point and the cells' middles; cells of about a size, by k-means in two steps."""
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
    # A point near the edge of its group may lie in a cell of the next one.
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
    """Return the centres of a short k-means of some of the points, of which ``start`` in [0, 1) is the first."""
    from heatmover._compiled.cells import centers_of

    step = max(1, len(points) // (PER_CELL * count))
    some = np.ascontiguousarray(points[int(start * step) :: step])
    return np.asarray(centers_of(some, count, MOVES, np.empty(len(some), dtype=np.int32)))


def _nearest(points: Float64, centers: Float64, n_threads: int) -> Int32:
    from heatmover._compiled.cells import nearest_of

    member = np.empty(len(points), dtype=np.int32)
    edges = [*range(0, len(points), PIECE), len(points)]
    in_threads(lambda piece: nearest_of(points, centers, *piece, member), pairwise(edges), n_threads)
    return member


def _without_empty(member: Int32, middles: Float64) -> tuple[Int64, Float64]:
    """Return where each cell that has members begins, and its middle; large ones are cut."""
    sizes = np.bincount(member, minlength=len(middles))
    pieces = -(-sizes // LARGEST)
    cell = np.repeat(np.arange(len(middles)), pieces)
    within = np.arange(cell.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = (np.cumsum(sizes) - sizes)[cell] + within * LARGEST
    return np.r_[begins, len(member)].astype(np.int64), middles[cell]
