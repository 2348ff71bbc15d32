"""The nearest of many centres for each of many points: exact, in blocks, the same bits for any blocks and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from heatmover._typing import Bool, Float64, Int64
from heatmover.graphs.search.groups import Groups

__all__ = ["CenterSearch"]


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
            found, unsure = self._by_products(block) if groups is None else groups.nearest(block)[:2]
            found[unsure] = self._by_differences(block[unsure])
            indices[start : start + size] = found
            squares[start : start + size] = np.square(block - self.centers[found]).sum(axis=1)

        starts = range(0, len(points), size)
        with threadpool_limits(1, user_api="blas"):
            if n_threads == 1 or len(starts) == 1:
                for start in starts:
                    work(start)
            else:
                with ThreadPoolExecutor(n_threads) as pool:
                    list(pool.map(work, starts))
        return indices, squares

    def _saves(self, groups: Groups, points: npt.NDArray[Any]) -> bool:
        """Return whether groups are faster than products, from points spread over all; either finds the same."""
        probe = np.asarray(points[:: max(1, len(points) // PROBE)][:PROBE], dtype=np.float64)
        share = groups.nearest(probe)[2] / (len(probe) * groups.radii.size)
        return bool(share * self.centers.shape[1] < PER_SCORE)

    def _by_products(self, block: Float64) -> tuple[Int64, Bool]:
        """Return the nearest centres by products, and where rounding may have chosen them."""
        found, unsure = self._by_scores(block, np.float32)
        places = np.flatnonzero(unsure)  # with a few far outliers nearly all: the others crowd at few digits
        if places.size:
            found[places], unsure[places] = self._by_scores(block[places], np.float64)
        return found, unsure

    def _by_scores(self, block: Float64, precision: type[Any]) -> tuple[Int64, Bool]:
        there = ((self.centers - self._origin) / self._unit).astype(precision)
        with np.errstate(over="ignore", invalid="ignore"):  # points far outside become infinite, and unsure
            here = ((block - self._origin) / self._unit).astype(precision)
            scores = np.einsum("ij,ij->i", there, there) - 2 * (here @ there.T)
            rows = np.arange(len(block))
            found = scores.argmin(axis=1)
            squares = np.einsum("ij,ij->i", here, here).astype(np.float64)
            best = scores[rows, found] + squares
            scores[rows, found] = np.inf
            second = scores.min(axis=1) + squares
            # A square e estimated for a true square d^2 is off by at most g (|point| + |centre|)^2, thus by
            # g (8 |point|^2 + 2 d^2), with g the rounding of a sum of n_dimensions terms.
            rounding = (block.shape[1] + 8) * float(np.finfo(precision).eps)
            margin = 8 * rounding * squares + float(np.finfo(precision).tiny)
            return found, ~((second - margin) / (1 + 2 * rounding) > (best + margin) / (1 - 2 * rounding))

    def _by_differences(self, block: Float64) -> Int64:
        """Return the nearest centres by plain differences; of equals the first."""
        found = np.empty(len(block), dtype=np.int64)
        size = max(1, MOST_SCORES // self.centers.size)
        for start in range(0, len(block), size):
            differences = block[start : start + size, None] - self.centers
            found[start : start + size] = np.square(differences).sum(axis=2).argmin(axis=1)
        return found
