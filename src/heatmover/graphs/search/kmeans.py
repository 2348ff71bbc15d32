"""Centres of many points: the nearest centre of each point, and k-means on a sample.

Both are exact where they claim to be, and have the same bits for any blocks and any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads, one_blas_thread
from heatmover._typing import Bool, Float64, FloatArray, Int64
from heatmover.errors import InvalidInputError
from heatmover.graphs.distinct import draw_by_mass
from heatmover.graphs.search.groups import Groups
from heatmover.graphs.search.lloyd import move_centers
from heatmover.graphs.search.products import true_squares

__all__ = ["ITERATIONS", "PER_LANDMARK", "CenterSearch", "k_means"]

# Up to so many centres products are always as fast: 3 microseconds a point for 1,000.
PRODUCTS_UP_TO = 1_000
# Groups that hold this share of the centres in reach of a point cost as much as products over all of them, PER_SCORE
# dimensions' worth: a product takes about as long as its score takes to be written and searched twice. On one core and
# 27,000 centres of flow cytometry in 8 dimensions groups take 6 microseconds a point (a k-d tree 28, products 117), of
# a noisy tree in 14 dimensions 30 (147, 114); of 10,000 centres of a Gaussian in 14 dimensions, all in reach, 40 (180,
# 40).
PER_SCORE = 14.0
# Points that tell what share of the centres is in reach.
PROBE = 256
# Scores at once in a thread, 16 MB, and points of a block that is searched group by group.
MOST_SCORES = 2**22
BLOCK = 2**14
# Points per landmark that k-means looks at. Flow cytometry, 2,000 landmarks, three seeds: with 10, 25, 50 and 75 the
# mean squared distance falls (13,500, 12,500, 11,800, 11,400), and Spearman hardly moves (.978, .978, .979, .979).
PER_LANDMARK = 50
# Moves of k-means from points drawn at random. Spearman with the distances on the graph over all points, 2,000
# landmarks, fixed scale, two seeds, after 0, 1, 3 and 10 moves: melanoma .994 .996 .996 .995, kidney .977 .983 .984
# .985, flow cytometry .986 .985 .985 .981, whose outliers attract more landmarks with every move. A start by
# k-means++ sends landmarks there at once and is worse everywhere: after 3 moves .993, .981 and .957.
ITERATIONS = 3


@final
@dataclass(frozen=True, eq=False)
class CenterSearch:
    """Finds the nearest of fixed centres.

    Many centres are put into groups of neighbours, most of which are too far from a point to be looked at. Where that
    saves nothing, all distances come from matrix products. Both are exact: of centres at the same distance in float64
    the first is the nearest.

    Attributes
    ----------
    centers
        ``(n_centers, n_dimensions)``, float64.
    """

    centers: Float64
    _groups: Groups | None = field(init=False)
    _origin: Float64 = field(init=False)
    _unit: float = field(init=False)

    def __post_init__(self) -> None:
        origin = self.centers.mean(axis=0)
        count = round(len(self.centers) ** 0.5)  # about as many groups as a group has members
        grouped = Groups.from_points(self.centers, count) if len(self.centers) > PRODUCTS_UP_TO else None
        object.__setattr__(self, "_groups", grouped)
        object.__setattr__(self, "_origin", origin)
        object.__setattr__(self, "_unit", float(np.abs(self.centers - origin).max()) or 1.0)

    def nearest(self, points: npt.NDArray[Any], n_threads: int) -> tuple[Int64, Float64]:
        """Return the nearest centre of each point and its squared distance.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``, finite.
        n_threads
            Threads to use.

        Returns
        -------
        indices, squares
            ``(n_points,)`` each. A point's own do not depend on the other points.
        """
        indices, squares = np.empty(len(points), dtype=np.int64), np.empty(len(points))
        groups = self._groups if self._groups is not None and self._saves(self._groups, points) else None
        size = BLOCK if groups is not None else max(1, min(BLOCK, MOST_SCORES // len(self.centers)))

        def work(start: int) -> None:
            block = np.asarray(points[start : start + size], dtype=np.float64)
            nearest, unsure = self._by_products(block) if groups is None else groups.nearest(block)[:2]
            nearest[unsure] = self._by_differences(block[unsure])
            indices[start : start + size] = nearest
            squares[start : start + size] = np.square(block - self.centers[nearest]).sum(axis=1)

        with one_blas_thread():
            in_threads(work, range(0, len(points), size), n_threads)
        return indices, squares

    def _saves(self, groups: Groups, points: npt.NDArray[Any]) -> bool:
        """Return whether groups are faster than products, from points spread over all; either finds the same."""
        probe = np.asarray(points[:: max(1, len(points) // PROBE)][:PROBE], dtype=np.float64)
        share = groups.nearest(probe)[2] / (len(probe) * groups.radii.size)
        return bool(share * self.centers.shape[1] < PER_SCORE)

    def _by_products(self, block: Float64) -> tuple[Int64, Bool]:
        """Return the nearest centres by products, and where rounding may have chosen them."""
        nearest, unsure = self._by_scores(block, np.float32)
        places = np.flatnonzero(unsure)  # with a few far outliers nearly all: the others crowd at few digits
        if places.size:
            nearest[places], unsure[places] = self._by_scores(block[places], np.float64)
        return nearest, unsure

    def _by_scores(self, block: Float64, precision: type[Any]) -> tuple[Int64, Bool]:
        there = ((self.centers - self._origin) / self._unit).astype(precision)
        with np.errstate(over="ignore", invalid="ignore"):  # points far outside become infinite, and unsure
            here = ((block - self._origin) / self._unit).astype(precision)
            scores = np.einsum("ij,ij->i", there, there) - 2 * (here @ there.T)
            rows = np.arange(len(block))
            nearest = scores.argmin(axis=1)
            squares = np.einsum("ij,ij->i", here, here).astype(np.float64)
            best = scores[rows, nearest] + squares
            scores[rows, nearest] = np.inf
            second = scores.min(axis=1) + squares
            rounding = (squares, block.shape[1], precision)
            return nearest, ~(true_squares(second, *rounding)[0] > true_squares(best, *rounding)[1])

    def _by_differences(self, block: Float64) -> Int64:
        """Return the nearest centres by plain differences; of equals the first."""
        nearest = np.empty(len(block), dtype=np.int64)
        size = max(1, MOST_SCORES // self.centers.size)
        for start in range(0, len(block), size):
            differences = block[start : start + size, None] - self.centers
            nearest[start : start + size] = np.square(differences).sum(axis=2).argmin(axis=1)
        return nearest


def k_means(
    nodes: FloatArray, counts: Int64, n_centers: int, n_iterations: int, rng: np.random.Generator, n_threads: int
) -> tuple[Float64, int]:
    """Return centres and how many points were looked at to find them.

    Parameters
    ----------
    nodes, counts
        ``(n_nodes, n_dimensions)`` and ``(n_nodes,)``: the different points, sorted, and how many there are of each;
        at least ``n_centers``, or an error says so.
    n_centers, n_iterations
        How many centres, and how often they move.
    rng, n_threads
        Draws the points; to use.

    Returns
    -------
    centers
        ``(n_centers, n_dimensions)``. There may be some to which no point is nearest.
    n_looked_at
        Points drawn.
    """
    if n_centers > len(nodes):
        raise InvalidInputError(
            f"at least n_landmarks={n_centers} different points",
            f"{int(counts.sum())} points" + (f" of which {len(nodes)} differ" if counts.max() > 1 else ""),
            f"use at most {len(nodes)} landmarks, or join all points without any: Graph.from_points(points)",
        )
    # A race in which each runs as fast as there are copies of it: the first are drawn in proportion, without repeats.
    first = np.argsort(rng.exponential(size=len(nodes)) / counts, kind="stable")[:n_centers]
    centers = np.asarray(nodes[first], dtype=np.float64)
    looked_at = draw_by_mass(counts, PER_LANDMARK * n_centers, rng)
    chosen = np.flatnonzero(looked_at)
    sample, weights = np.asarray(nodes[chosen], dtype=np.float64), looked_at[chosen].astype(np.float64)
    for _ in range(n_iterations):
        centers = _move(sample, weights, centers, n_threads)
    return centers, int(looked_at.sum())


def _move(sample: Float64, weights: Float64, centers: Float64, n_threads: int) -> Float64:
    """Return the mean of the points nearest to each centre; one without points goes to a point far from its own."""
    nearest, squares = CenterSearch(centers).nearest(sample, n_threads)
    moved = move_centers(sample, nearest, centers, weights)
    empty = np.flatnonzero(np.bincount(nearest, minlength=len(centers)) == 0)
    if empty.size:
        farthest = np.argsort(-squares, kind="stable")[: empty.size]
        farthest = farthest[squares[farthest] > 0]
        moved[empty[: farthest.size]] = sample[farthest]
    return moved
