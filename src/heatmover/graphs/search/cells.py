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
from heatmover._typing import Float64, Int32, Int64

__all__ = ["Cells", "Found", "Plan"]

Float32 = npt.NDArray[np.float32]

# Members of a cell, on average.
CELL = 128
# A cell with more is cut into several with the same middle.
LARGEST = 8 * CELL
# Moves of the middles of a cell, and points per cell that they look at.
MOVES, PER_CELL = 3, 20
# Vectors of eight: a cell takes a multiple of so many places.
LANES = 8
# Candidates kept in float32 beyond those wanted: where its rounding swaps near ties, all of them are still there.
SPARE = 2
# Points, or cells, of a piece of work.
PIECE = 65_536
CELLS_AT_ONCE = 64
# Scores of middles at once (16 MB).
MOST_SCORES = 2**22
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
    def from_points(cls, points: Float64, k: int, *, strict: bool, n_threads: int) -> Cells:
        """Put points ``(n_points, n_dimensions)`` into cells for a search of k neighbours."""
        from heatmover._compiled.cells import fill_blocks

        points = np.ascontiguousarray(points)
        member, middles = _members(points, max(CELL, 4 * k), strict, n_threads)
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

    def plan(self, k: int, recall: float, n_probes: int) -> Plan:
        """Find the share of the reach that finds a share of all true neighbours, from points spread over all."""
        rows = np.linspace(0, len(self.order) - 1, min(n_probes, len(self.order))).astype(np.int64)
        found = self.search_everywhere(rows, k)
        place = np.empty(len(self.order), dtype=np.int32)
        place[self.order] = np.arange(len(self.order), dtype=np.int32)
        sizes = np.diff(self.starts)
        borders, reaches = np.empty((rows.size, self.n_cells)), found.distances[:, -1]
        ranks = np.empty((rows.size, self.n_cells))
        for i, row in enumerate(rows):
            own = self.member[row]
            apart = np.sqrt(((self.middles - self.middles[own]) ** 2).sum(axis=1))
            square = ((self.middles - self.points[row]) ** 2).sum(axis=1)
            with np.errstate(divide="ignore", invalid="ignore"):
                borders[i] = np.where(apart > 0, (square - square[own]) / (2 * apart), 0)
            ranks[i, np.argsort(apart)] = np.arange(self.n_cells)
        theirs = self.member[place[found.indices]].astype(np.intp)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.take_along_axis(borders, theirs, axis=1) / reaches[:, None]
        share = float(np.quantile(np.where(ratios > 0, ratios, 0), recall))
        n_candidates = float(((borders <= share * reaches[:, None]) @ sizes).mean())
        n_around = int(np.quantile(np.take_along_axis(ranks, theirs, axis=1), 0.999)) + 1
        return Plan(share, min(max(n_around, k + SPARE + 1), self.n_cells - 1), n_candidates)

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
            for whole, few in zip(found, part, strict=True):
                whole[self.order[here]] = few

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


def _members(points: Float64, size: int, strict: bool, n_threads: int) -> tuple[Int32, Float64]:
    """Return the cell of each point and the cells' middles; cells of about a size, by k-means in two steps."""
    n_cells = max(1, round(len(points) / size))
    n_groups = max(1, round(n_cells**0.5))
    groups = _centers(points, n_groups)
    member = _nearest(points, groups, n_threads)
    order = np.argsort(member, kind="stable")
    edges = np.r_[0, np.cumsum(np.bincount(member, minlength=n_groups))]

    def cut(group: int) -> tuple[Int32, Float64]:
        here = points[order[edges[group] : edges[group + 1]]]
        if len(here) == 0:
            return np.empty(0, np.int32), np.empty((0, points.shape[1]))
        middles = _centers(here, max(1, round(len(here) / size)))
        return (np.empty(0, np.int32) if strict else _nearest(here, middles, 1)), middles

    parts = in_threads(cut, range(n_groups), n_threads)
    middles = np.concatenate([part[1] for part in parts])
    if strict:
        return _nearest(points, middles, n_threads), middles
    offset = 0
    for group, (here, centers) in enumerate(parts):
        member[order[edges[group] : edges[group + 1]]] = offset + here
        offset += len(centers)
    return member, middles


def _centers(points: Float64, count: int) -> Float64:
    from heatmover._compiled.cells import centers_of

    some = np.ascontiguousarray(points[:: max(1, len(points) // (PER_CELL * count))])
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
