"""Every point with every centre, in single precision: for data of which no leaf can be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._typing import Bool, Float64, FloatArray, Int64
from heatmover.graphs.search.leaves import Float32, Frame, center_tiles

__all__ = ["EveryCenter"]


@final
@dataclass(frozen=True, eq=False)
class EveryCenter:
    """Centres in the order they have, all seen from one origin.

    Neither rotated nor sorted, and without bounds leaf by leaf, a point takes little beside its products. In return
    rounding is that of the whole extent of the centres: tight clusters far apart are all in doubt.

    Attributes
    ----------
    frame
        How points become coordinates.
    tiles, columns, radius
        See `heatmover._compiled.assign.nearest_of_all`.
    """

    frame: Frame
    tiles: Float32
    columns: Float32
    radius: np.float32

    @classmethod
    def from_centers(cls, centers: Float64) -> EveryCenter:
        """Put centres ``(n_centers, n_dimensions)`` into tiles."""
        from heatmover._compiled.assign import LANES, WIDTH

        frame = Frame.around(centers)
        placed = ((centers - frame.origin) / frame.unit).astype(np.float32)
        n_leaves = -(-len(placed) // LANES)
        tiles = np.stack([center_tiles(placed[i * LANES : (i + 1) * LANES], LANES) for i in range(n_leaves)])
        by_column = tiles.reshape(n_leaves, -1, LANES // WIDTH, WIDTH).transpose(0, 3, 1, 2)
        columns = np.ascontiguousarray(by_column).reshape(n_leaves * WIDTH, -1, LANES // WIDTH)
        norm = np.sqrt(np.square(placed.astype(np.float64)).sum(axis=1).max())
        radius = np.nextafter(np.float32(norm), np.float32(np.inf))
        return cls(frame, tiles.reshape(n_leaves, -1), columns, radius)

    def nearest(self, block: FloatArray) -> tuple[Int64, Bool]:
        """Return the nearest centre of each point ``(n_points, n_dimensions)``, and where that is beyond doubt."""
        from heatmover._compiled.assign import ROWS, nearest_of_all, rotate

        n_points, stride = len(block), self.frame.stride
        points = np.zeros((-(-n_points // ROWS) * ROWS, stride), dtype=np.float32)
        sizes = np.empty(n_points, dtype=np.float32)
        rotate(block, self.frame.origin, self.frame.scale, np.empty((0, 0)), points[:n_points], sizes)
        known = self.frame.tells(sizes)
        if not known.all():
            unknown = np.flatnonzero(~known)
            points[unknown], sizes[unknown] = 0, 0
        nearest, sure = np.zeros(n_points, dtype=np.int64), np.empty(n_points, dtype=np.bool_)
        rounding = self.frame.rounding
        nearest_of_all(points, sizes, self.tiles, self.columns, self.radius, rounding, nearest, sure)
        return nearest, sure & known
