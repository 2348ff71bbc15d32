"""The nearest of many centres for each of many points: fast in single precision, exact in double.

Single precision decides wherever its proven error leaves no doubt. Where it does, the few centres that may be nearest
are compared by plain differences in double precision. The result is that of a plain loop over all centres.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads
from heatmover._typing import Float64, FloatArray, Int64
from heatmover.graphs.search.leaves import Leaves

__all__ = ["CenterSearch"]

# Points of a block: more of them share leaves, fewer stay in the cache. 27,000 centres in 14 dimensions, microseconds a
# point: TODO
BLOCK = 2**15
# Rows whose squares are made at once, which then stay in the cache.
SQUARED = 2**12
# Pairs of a point and a centre at once that are compared in double precision, 8 MB at 14 dimensions with its copies.
MOST_PAIRS = 2**16


@final
@dataclass(frozen=True, eq=False)
class CenterSearch:
    """Finds the nearest of fixed centres.

    Neighbouring centres share a leaf with a box around it, see `Leaves`; most boxes are too far from a point to be
    looked at. It is exact: of centres at the same distance in float64 the first is the nearest.

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
    _leaves: Leaves = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_leaves", Leaves.from_centers(self.centers))

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

        def work(start: int) -> None:
            block = _in_floats(points[start : start + BLOCK])
            nearest = self._nearest(block)
            indices[start : start + BLOCK] = nearest
            for first in range(0, len(block), SQUARED):
                rows = slice(first, first + SQUARED)
                squares[start + first : start + first + len(block[rows])] = self._squares(block[rows], nearest[rows])

        in_threads(work, range(0, len(points), BLOCK), n_threads)
        return indices, squares

    def _nearest(self, block: FloatArray) -> Int64:
        found = self._leaves.nearest(block)
        nearest = found.nearest
        for rows, centers in self._leaves.candidates(found, MOST_PAIRS):
            squares = self._squares(block[rows], centers)
            first = np.lexsort((centers, squares, rows))
            first = first[np.r_[True, np.diff(rows[first]) > 0]]
            nearest[rows[first]] = centers[first]
        return nearest

    def _squares(self, points: FloatArray, centers: Int64) -> Float64:
        """Return the squared distances of points from a centre each, ``(n_points,)``."""
        with np.errstate(over="ignore"):
            differences = points - self.centers[centers]
            return np.asarray(np.square(differences, out=differences).sum(axis=1))


def _in_floats(points: npt.NDArray[Any]) -> FloatArray:
    """Return points in single or double precision, whichever holds their values."""
    single = points.dtype in (np.float16, np.float32)
    return np.ascontiguousarray(points, dtype=np.float32 if single else np.float64)
