"""The nearest of many centres for each of many points: exact, in blocks, the same bits for any blocks and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from threadpoolctl import threadpool_limits

from heatmover.graphs.neighbors import _intrinsic_dimension

__all__ = ["CenterSearch"]

Float64 = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

# Microseconds per point on one core, tree against bare products: 3 and 117 for 27,000 centres of flow cytometry in 8
# dimensions, 3 and 3 for 2,000; 63 and 24 for 10,000 centres of a Gaussian in 14 dimensions, 19 and 2 for 2,000.
# The search for a second nearest, for ties, makes products 3 to 4 times as slow at 2,000 (3 against 10).
TREE_DIMENSION = 8.0
TREE_ABOVE = 1_000
# Scores at once in a thread, 16 MB, and points of a block that a tree answers.
MOST_SCORES = 2**22
BLOCK = 2**14
# Centres whose distances from a point differ by less are compared again, in full precision and one order of sums.
TIE = 1e-12


@final
@dataclass(frozen=True, eq=False)
class CenterSearch:
    """Finds the nearest of fixed centres.

    Attributes
    ----------
    centers
        ``(n_centers, n_dimensions)``, float64.
    algorithm
        ``"tree"`` where the centres look low-dimensional, else ``"products"``. Both are exact: of centres at the
        same distance in float64 the first is the nearest.
    """

    centers: Float64
    algorithm: str = field(init=False)
    _tree: Any = field(init=False)
    _origin: Float64 = field(init=False)
    _unit: float = field(init=False)

    def __post_init__(self) -> None:
        use_tree = len(self.centers) > TREE_ABOVE and (
            self.centers.shape[1] <= 3 or _intrinsic_dimension(self.centers, np.random.default_rng(0)) <= TREE_DIMENSION
        )
        origin = self.centers.mean(axis=0)
        object.__setattr__(self, "algorithm", "tree" if use_tree else "products")
        object.__setattr__(self, "_tree", cKDTree(self.centers) if use_tree else None)
        object.__setattr__(self, "_origin", origin)
        object.__setattr__(self, "_unit", float(np.abs(self.centers - origin).max()) or 1.0)

    def nearest(self, points: npt.NDArray[Any], n_threads: int) -> tuple[Indices, Float64]:
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
        size = BLOCK if self._tree is not None else max(1, min(BLOCK, MOST_SCORES // len(self.centers)))

        def work(start: int) -> None:
            block = np.asarray(points[start : start + size], dtype=np.float64)
            found, unsure = self._by_tree(block) if self._tree is not None else self._by_products(block)
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

    def _by_tree(self, block: Float64) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """Return the nearest centres, and where the second is as near but for rounding."""
        distances, found = self._tree.query(block, k=2)
        return found[:, 0].astype(np.int64), distances[:, 1] <= distances[:, 0] * (1 + TIE)

    def _by_products(self, block: Float64) -> tuple[Indices, npt.NDArray[np.bool_]]:
        """Return the nearest centres by products, and where rounding may have chosen them."""
        found, unsure = self._by_scores(block, np.float32)
        places = np.flatnonzero(unsure)  # with a few far outliers nearly all: the others crowd at few digits
        if places.size:
            found[places], unsure[places] = self._by_scores(block[places], np.float64)
        return found, unsure

    def _by_scores(self, block: Float64, precision: type[Any]) -> tuple[Indices, npt.NDArray[np.bool_]]:
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

    def _by_differences(self, block: Float64) -> Indices:
        """Return the nearest centres by plain differences; of equals the first."""
        found = np.empty(len(block), dtype=np.int64)
        size = max(1, MOST_SCORES // self.centers.size)
        for start in range(0, len(block), size):
            differences = block[start : start + size, None] - self.centers
            found[start : start + size] = np.square(differences).sum(axis=2).argmin(axis=1)
        return found
