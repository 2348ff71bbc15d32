"""The nearest of many centres for each of many points: fast in single precision, exact in double.

Single precision decides wherever its proven error leaves no doubt. Where it does, the few centres that may be nearest
are compared by plain differences in double precision. The result is that of a plain loop over all centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads, one_blas_thread
from heatmover._typing import Bool, Float64, FloatArray, Int64
from heatmover.graphs.search.every import EveryCenter
from heatmover.graphs.search.leaves import LARGEST, LEAST, Leaves
from heatmover.graphs.search.products import true_squares

__all__ = ["CenterSearch"]

# Points of a block, and their values: more of them share leaves, fewer take less memory, 40 MB with copies.
BLOCK, BLOCK_VALUES = 2**15, 2**22
# Points that are worth a thread.
LEAST_BLOCK = 2**12
# Up to so many pairs of a point and a centre NumPy's products take at most 0.1 s, and leaves some seconds when they are
# compiled for the first time.
FEW_PAIRS = 2**25
# Scores at once in a thread, 16 MB.
MOST_SCORES = 2**22
# Rows whose squares are made at once, which then stay in the cache.
SQUARED = 2**12
# Of at least so many points some tell how to search, which takes up to 3 % of the time of the search.
LEAST_PROBED, PROBED = 2**15, 256
# From this share of leaves on, every point is compared with every centre instead, see decision 0033. Both are as fast
# at 0.6 in 8 dimensions and at 0.8 in 14 and 30, with 1,000 and 4,000 centres.
MOST_LEAVES = 0.65
# The others, which are searched twice, must be few; of a Gaussian 0.999 are sure.
SURE = 0.95
# Values of pairs of a point and a centre at once that are compared in double precision, 8 MB and as much again.
PAIR_VALUES = 2**20


@final
@dataclass(frozen=True, eq=False)
class CenterSearch:
    """Finds the nearest of fixed centres.

    Neighbouring centres share a leaf with a box around it, see `Leaves`; most boxes are too far from a point to be
    looked at. Where they are not, every point is compared with every centre, see `EveryCenter`. Where there is little
    to do, NumPy's products do it. It is exact: of centres at the same distance in
    float64 the first is the nearest.

    Attributes
    ----------
    centers
        ``(n_centers, n_dimensions)``, float64.

    Examples
    --------
    >>> search = CenterSearch(np.array([[0.0], [1.0], [1.0]]))
    >>> search.nearest(np.array([[0.2], [7.0], [0.5]]), 1)
    (array([0, 1, 0]), array([ 0.04, 36.  ,  0.25]))
    """

    centers: Float64

    @classmethod
    def for_many(cls, centers: Float64, n_points: int) -> CenterSearch:
        """Return a search that so many points will ask in all, however few at a time."""
        search = cls(centers)
        if n_points * len(centers) > FEW_PAIRS:
            _ = search._leaves
        return search

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
        few = len(points) * len(self.centers) <= FEW_PAIRS and "_leaves" not in self.__dict__
        most = max(1, min(BLOCK, BLOCK_VALUES // points.shape[1], MOST_SCORES // len(self.centers) if few else BLOCK))
        # No thread without work, unless there is little, and as much for each.
        n_blocks = n_threads * -(-len(points) // (n_threads * most))
        size = min(most, max(LEAST_BLOCK, -(-len(points) // max(1, n_blocks))))
        find = self._by_products if few else self._by_every if self._every_pays(points) else self._by_leaves

        def work(start: int) -> None:
            block = _in_floats(points[start : start + size])
            nearest = find(block)
            indices[start : start + size] = nearest
            for first in range(0, len(block), SQUARED):
                rows = slice(first, first + SQUARED)
                squares[start + first : start + first + len(block[rows])] = self._squares(block[rows], nearest[rows])

        with one_blas_thread():
            in_threads(work, range(0, len(points), size), n_threads)
        return indices, squares

    @cached_property
    def _leaves(self) -> Leaves:
        return Leaves.from_centers(self.centers)

    @cached_property
    def _every(self) -> EveryCenter:
        return EveryCenter.from_centers(self.centers)

    def _every_pays(self, points: npt.NDArray[Any]) -> bool:
        """Tell by some points whether most leaves must be looked at, and whether one origin for all leaves no doubt."""
        leaves = self._leaves  # made here, not by every thread
        if len(points) < LEAST_PROBED:
            return False
        some = _in_floats(points[:: len(points) // PROBED][:PROBED])
        with one_blas_thread():
            if leaves.nearest(some).n_looked_at < MOST_LEAVES * len(some) * leaves.n_leaves:
                return False
            return float(self._every.nearest(some)[1].mean()) >= SURE

    def _by_every(self, block: FloatArray) -> Int64:
        nearest, sure = self._every.nearest(block)
        places = np.flatnonzero(~sure)
        if places.size:
            nearest[places] = self._by_leaves(block[places])
        return nearest

    def _by_leaves(self, block: FloatArray) -> Int64:
        found = self._leaves.nearest(block)
        nearest = found.nearest
        for rows, centers in self._leaves.candidates(found, PAIR_VALUES // block.shape[1]):
            squares = self._squares(block[rows], centers)
            first = np.lexsort((centers, squares, rows))
            first = first[np.r_[True, np.diff(rows[first]) > 0]]
            nearest[rows[first]] = centers[first]
        return nearest

    def _by_products(self, block: FloatArray) -> Int64:
        nearest, unsure = self._by_scores(block, np.float32)
        places = np.flatnonzero(unsure)  # with a few far outliers nearly all: the others crowd at few digits
        if places.size:
            nearest[places], unsure[places] = self._by_scores(block[places], np.float64)
        places = np.flatnonzero(unsure)
        if places.size:
            nearest[places] = self._by_differences(block[places])
        return nearest

    def _by_scores(self, block: FloatArray, precision: type[np.floating[Any]]) -> tuple[Int64, Bool]:
        """Return the nearest centres by products, and where rounding may have chosen them."""
        origin, unit = self._frame
        there = ((self.centers - origin) / unit).astype(precision)
        with np.errstate(over="ignore", invalid="ignore"):  # points far outside become infinite, and unsure
            here = ((block - origin) / unit).astype(precision)
            scores = np.einsum("ij,ij->i", there, there) - 2 * (here @ there.T)
            rows = np.arange(len(block))
            nearest = scores.argmin(axis=1)
            squares = np.einsum("ij,ij->i", here, here).astype(np.float64)
            best = scores[rows, nearest] + squares
            scores[rows, nearest] = np.inf
            second = scores.min(axis=1) + squares
            rounding = (squares, block.shape[1], precision)
            sure = true_squares(second, *rounding)[0] > true_squares(best, *rounding)[1]
            return nearest, ~(sure & (LEAST < unit < LARGEST))

    def _by_differences(self, block: FloatArray) -> Int64:
        """Return the nearest centres by plain differences; of equals the first."""
        nearest = np.empty(len(block), dtype=np.int64)
        size = max(1, MOST_SCORES // self.centers.size)
        for start in range(0, len(block), size):
            with np.errstate(over="ignore"):
                differences = block[start : start + size, None] - self.centers
                nearest[start : start + size] = np.square(differences).sum(axis=2).argmin(axis=1)
        return nearest

    @cached_property
    def _frame(self) -> tuple[Float64, float]:
        """Where the centres are, and how large."""
        origin = self.centers.mean(axis=0)
        return origin, float(np.abs(self.centers - origin).max()) or 1.0

    def _squares(self, points: FloatArray, centers: Int64) -> Float64:
        """Return the squared distances of points from a centre each, ``(n_points,)``."""
        with np.errstate(over="ignore"):
            differences = points - self.centers[centers]
            return np.asarray(np.square(differences, out=differences).sum(axis=1))


def _in_floats(points: npt.NDArray[Any]) -> FloatArray:
    """Return points in single or double precision, whichever holds their values."""
    single = points.dtype in (np.float16, np.float32)
    return np.ascontiguousarray(points, dtype=np.float32 if single else np.float64)
