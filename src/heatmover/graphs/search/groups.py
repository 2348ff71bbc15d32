"""Points by groups of neighbours, so that a search leaves out whole groups that are too far; exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._threads import in_threads, one_blas_thread
from heatmover._typing import Bool, Float64, Int64
from heatmover.graphs.search.lloyd import move_centers

__all__ = ["SLACK", "Groups"]


# What rounding may do to a bound, relatively. It is generous: too much only means looking at one more group.
SLACK = 1e-9
# Moves of the middles, and points per group that they look at.
MOVES, PER_GROUP = 3, 20
# Points of a block, and products at once (8 MB).
BLOCK, MOST_PRODUCTS = 2_048, 2**20


@final
@dataclass(frozen=True, eq=False)
class Groups:
    """Points in the order of their groups.

    Attributes
    ----------
    columns
        ``(n_dimensions, n_points)``: the points, group after group.
    starts
        ``(n_groups + 1,)``: where each group begins.
    order, member
        ``(n_points,)``: the number that each point has outside, and its group.
    middles, radii
        ``(n_dimensions, n_groups)`` and ``(n_groups,)``: a ball around each group.
    """

    columns: Float64
    starts: Int64
    order: Int64
    member: Int64
    middles: Float64
    radii: Float64

    @classmethod
    def from_points(cls, points: Float64, count: int) -> Groups:
        """Put points ``(n_points, n_dimensions)`` into at most ``count`` groups, by a short k-means."""
        middles = points[:: max(1, len(points) // count)][:count].copy()
        count = len(middles)
        some = points[:: max(1, len(points) // (PER_GROUP * count))]
        for _ in range(MOVES):
            middles = move_centers(some, _nearest(some, middles), middles)
        member = _nearest(points, middles)
        radii = np.zeros(count)
        np.maximum.at(radii, member, np.linalg.norm(points - middles[member], axis=1) * (1 + SLACK))
        order = np.argsort(member, kind="stable")
        starts = np.r_[0, np.cumsum(np.bincount(member, minlength=count))]
        columns = np.ascontiguousarray(points[order].T, dtype=np.float64)
        return cls(columns, starts, order, member[order], np.ascontiguousarray(middles.T), radii)

    def k_nearest(self, k: int, n_threads: int, rows: Bool | None = None) -> tuple[Float64, Int64]:
        """Return distances and numbers of the k nearest others of each point, or of some, ``(n_rows, k)`` each.

        Of others equally far, those come first that a hash of both points puts first.
        """
        wanted = np.ones(len(self.order), dtype=bool) if rows is None else rows
        row = np.cumsum(wanted) - 1
        distances, indices = np.empty((int(wanted.sum()), k)), np.empty((int(wanted.sum()), k), dtype=np.int64)
        work = self._searcher(k)

        def write(run: tuple[int, int]) -> None:
            squares, names, _ = work(*run)
            places = row[self.order[slice(*run)]]
            distances[places], indices[places] = np.sqrt(squares), names

        in_threads(write, _runs(wanted[self.order]), n_threads)
        return distances, indices

    def share_in_reach(self, k: int, n_probes: int) -> float:
        """Return which share of the groups a search for k neighbours looks at, from points spread over all."""
        work = self._searcher(k)
        probes = range(0, len(self.order), max(1, len(self.order) // n_probes))
        return sum(work(probe, probe + 1)[2] for probe in probes) / (len(probes) * self.radii.size)

    def _searcher(self, k: int) -> Callable[[int, int], tuple[Float64, Int64, int]]:
        from heatmover._compiled.groups import k_nearest_by_groups

        points = np.ascontiguousarray(self.columns.T)
        parts = (points, self.columns, self.starts, self.order, self.member, self.middles, self.radii)
        n_groups = self.radii.size
        width = max(n_groups, int(np.diff(self.starts).max()))

        def search(start: int, stop: int) -> tuple[Float64, Int64, int]:
            squares, names = np.full((stop - start, k), np.inf), np.full((stop - start, k), -1, dtype=np.int64)
            scratch, near = np.empty((3, width)), np.empty(n_groups, dtype=np.int64)
            looked_at = k_nearest_by_groups((start, stop), *parts, SLACK, squares, names, scratch, near)
            return squares, names, int(looked_at)

        return search


def _runs(wanted: Bool) -> list[tuple[int, int]]:
    """Return where runs of wanted places begin and end, in blocks."""
    edges = np.flatnonzero(np.diff(np.r_[False, wanted, False]))
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(at, min(at + BLOCK, stop)) for start, stop in runs for at in range(start, stop, BLOCK)]


def _nearest(points: Float64, middles: Float64) -> Int64:
    """Return a near middle of each point; whichever it is, a group's radius holds."""
    origin = middles.mean(axis=0)
    unit = float(np.abs(middles - origin).max()) or 1.0  # so that no square leaves the range of a float
    there = (middles - origin) / unit
    norms = np.einsum("ij,ij->i", there, there)
    nearest = np.empty(len(points), dtype=np.int64)
    size = max(1, MOST_PRODUCTS // len(middles))
    with one_blas_thread():  # thin products, for which more threads only wait
        for start in range(0, len(points), size):
            here = (np.asarray(points[start : start + size], dtype=np.float64) - origin) / unit
            nearest[start : start + size] = (norms - 2 * (here @ there.T)).argmin(axis=1)
    return nearest
