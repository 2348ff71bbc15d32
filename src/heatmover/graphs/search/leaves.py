"""Centres in leaves of a tree of cuts, in coordinates along which they spread most; what single precision can tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Bool, Float64, FloatArray, Int32, Int64, Intp

__all__ = ["LARGEST", "LEAST", "Float32", "Found", "Frame", "Leaves", "center_tiles"]

Float32 = npt.NDArray[np.float32]

# Up to so many dimensions points are rotated, which takes as many products for a point as it has dimensions, squared;
# in more dimensions boxes hardly leave anything out, rotated or not.
MOST_ROTATED = 64
# Norms beyond which squares may leave the range of single precision. Such points are compared with all centres.
FAR = 1e15
# Sizes whose squares, and small parts of them, are within the range of double precision.
LEAST, LARGEST = 1e-140, 1e150
# Half the square of a centre that is not there.
NOWHERE = np.float32(3e38)


@final
@dataclass(frozen=True, eq=False)
class Frame:
    """Where centres are and how large: how points become coordinates of single precision.

    Attributes
    ----------
    origin, unit
        ``(n_dimensions,)`` and a power of two, so that nothing is rounded.
    """

    origin: Float64
    unit: float

    @classmethod
    def around(cls, centers: Float64) -> Frame:
        """Return that of centres ``(n_centers, n_dimensions)``."""
        # Of many equal values around a few remote ones the median is near to the many, whose digits count.
        origin = np.median(centers, axis=0)
        largest = float(np.abs(centers - origin).max()) or 1.0
        return cls(origin, float(np.exp2(np.ceil(np.log2(largest)))))

    @property
    def stride(self) -> int:
        """Coordinates of a point with padding, whole vectors."""
        from heatmover._compiled.assign import WIDTH

        return -(-len(self.origin) // WIDTH) * WIDTH

    @property
    def scale(self) -> float:
        """What differences from the origin are multiplied by."""
        with np.errstate(over="ignore"):
            return float(np.float64(1.0) / self.unit)

    @cached_property
    def rounding(self) -> Float32:
        """Factors of the error of half a square in single precision, see decision 0033."""
        epsilon = float(np.finfo(np.float32).eps)
        return np.array([(len(self.origin) + 8) * epsilon, 2 * epsilon], dtype=np.float32)

    def tells(self, sizes: Float32) -> Bool:
        """Return for which points, by their norms, neither precision leaves its range."""
        if not LEAST < self.unit < LARGEST:
            return np.zeros(sizes.size, dtype=np.bool_)
        return np.asarray(sizes < min(FAR, LARGEST / self.unit))


@final
@dataclass(frozen=True, eq=False)
class Found:
    """What single precision found.

    Attributes
    ----------
    nearest
        ``(n_points,)``: the nearest centre, or one of the nearest.
    unsure
        Rows in which another centre may be as near or nearer, in the order of their leaves.
    points, norms, bounds
        ``(n_unsure, stride)``, ``(n_unsure,)`` and ``(3, n_unsure)``: those rows in the coordinates of the leaves, and
        bounds of half the least square.
    far
        Rows about which single precision says nothing.
    n_looked_at
        Pairs of a point and a leaf that were looked at.
    """

    nearest: Int64
    unsure: Intp
    points: Float32
    norms: Float32
    bounds: Float32
    far: Intp
    n_looked_at: int


@final
@dataclass(frozen=True, eq=False)
class Leaves:
    """Centres by leaves of neighbours, each with a box around it.

    Attributes
    ----------
    order
        ``(n_leaves * LANES,)``: the number of the centre in each place; -1 where there is none.
    frame, rotation
        How points become coordinates; the rotation is ``(stride, stride)``, zeros beyond, or empty for none.
    parts
        Tiles, boxes and radii, see `heatmover._compiled.assign`.
    cuts
        Dimensions, values and children of the cuts, from the first cut on.
    """

    order: Int64
    frame: Frame
    rotation: Float64
    parts: tuple[Float32, Float32, Float32]
    cuts: tuple[Int32, Float32, Int32]

    @classmethod
    def from_centers(cls, centers: Float64) -> Leaves:
        """Put centres ``(n_centers, n_dimensions)`` into leaves."""
        from heatmover._compiled.assign import LANES

        frame = Frame.around(centers)
        scaled, stride = (centers - frame.origin) / frame.unit, frame.stride
        rotation = _axes(scaled, stride)
        placed = np.pad(scaled, ((0, 0), (0, stride - centers.shape[1])))
        placed = placed @ rotation if rotation.size else placed
        members, cuts = _cut(placed, LANES)
        parts = _parts(placed, members, centers.shape[1], LANES)
        return cls(_places(members, LANES), frame, rotation, parts, cuts)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return len(self.parts[0])

    def nearest(self, block: FloatArray) -> Found:
        """Return the nearest centre of each point of a block ``(n_points, n_dimensions)``."""
        from heatmover._compiled.assign import find_leaves, nearest_by_leaves, rotate

        n_points = len(block)
        points, sizes = np.empty((n_points, self.parts[1].shape[2]), dtype=np.float32), np.empty(n_points, np.float32)
        rotate(block, self.frame.origin, self.frame.scale, self.rotation, points, sizes)
        known = self.frame.tells(sizes)
        own = np.zeros(n_points, dtype=np.int32)
        if len(self.cuts[0]):
            find_leaves(points, *self.cuts, own)
        order = np.argsort(own.astype(np.int16) if self.n_leaves < 2**15 else own, kind="stable")
        if not known.all():
            order = order[known[order]]
        points, norms, own = points[order], sizes[order], own[order]
        places, bounds = np.empty(len(order), dtype=np.int64), np.full((3, len(order)), np.inf, dtype=np.float32)
        looked_at = nearest_by_leaves(points, norms, own, *self.parts, self.frame.rounding, places, bounds)
        nearest = np.zeros(n_points, dtype=np.int64)
        nearest[order] = self.order[places]
        unsure = np.flatnonzero(bounds[2] <= bounds[0])
        doubt = (order[unsure], points[unsure], norms[unsure], np.ascontiguousarray(bounds[:, unsure]))
        return Found(nearest, *doubt, np.flatnonzero(~known), int(looked_at))

    def candidates(self, found: Found, most: int) -> Iterator[tuple[Intp, Int64]]:
        """Yield rows and centres of which one may be the nearest, about ``most`` pairs or all of a row at a time."""
        from heatmover._compiled.assign import candidates_by_leaves

        centers = np.flatnonzero(self.order >= 0)
        most = max(most, self.order.size)
        which, places = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
        done = 0
        while done < len(found.unsure):
            left = (found.points[done:], found.norms[done:], np.ascontiguousarray(found.bounds[:, done:]))
            n_pairs, n_points = candidates_by_leaves(*left, *self.parts, self.frame.rounding, which, places)
            yield found.unsure[done + which[:n_pairs]], self.order[places[:n_pairs]]
            done += n_points
        everyone = np.sort(self.order[centers])
        step = max(1, most // everyone.size)
        for start in range(0, len(found.far), step):
            rows = found.far[start : start + step]
            yield np.repeat(rows, everyone.size), np.tile(everyone, rows.size)


def _axes(scaled: Float64, stride: int) -> Float64:
    """Return the principal axes of points ``(n_points, n_dimensions)`` as columns; nothing in many dimensions."""
    n_dimensions = scaled.shape[1]
    if n_dimensions > MOST_ROTATED:
        return np.empty((0, 0))
    centred = scaled - scaled.mean(axis=0)
    axes = np.zeros((stride, stride))
    axes[:n_dimensions, :n_dimensions] = np.linalg.eigh(centred.T @ centred)[1][:, ::-1]
    return axes


def _cut(placed: Float64, size: int) -> tuple[list[Intp], tuple[Int32, Float32, Int32]]:
    """Cut points across their widest direction until at most ``size`` are left; all leaves but few are full."""
    members: list[Intp] = []
    dimensions: list[int] = []
    values: list[float] = []
    children: list[list[int]] = []

    def cut(rows: Intp) -> int:
        if rows.size <= size:
            members.append(rows)
            return -len(members)
        dimension = int(placed[rows].var(axis=0).argmax())
        half = -(-rows.size // size) // 2 * size
        along = placed[rows, dimension]
        parts = np.argpartition(along, half)
        number = len(values)
        dimensions.append(dimension)
        values.append(float(along[parts[half]]))
        children.append([0, 0])
        children[number][:] = cut(rows[parts[:half]]), cut(rows[parts[half:]])
        return number

    cut(np.arange(len(placed)))
    cuts = (np.array(dimensions, dtype=np.int32), np.array(values, dtype=np.float32))
    return members, (*cuts, np.array(children, dtype=np.int32).reshape(-1, 2))


def _places(members: list[Intp], size: int) -> Int64:
    order = np.full((len(members), size), -1, dtype=np.int64)
    for leaf, rows in enumerate(members):
        order[leaf, : rows.size] = rows
    return order.ravel()


def _parts(placed: Float64, members: list[Intp], n_dimensions: int, size: int) -> tuple[Float32, Float32, Float32]:
    """Return tiles, boxes and radii of leaves in single precision; bounds are rounded outward."""
    n_leaves, stride = len(members), placed.shape[1]
    tiles = np.empty((n_leaves, n_dimensions + 1, size), dtype=np.float32)
    boxes, radii = np.empty((n_leaves, 3, stride), dtype=np.float32), np.empty(n_leaves, dtype=np.float32)
    for leaf, rows in enumerate(members):
        own = placed[rows]
        boxes[leaf, 0] = np.nextafter(own.min(axis=0).astype(np.float32), np.float32(-np.inf))
        boxes[leaf, 1] = np.nextafter(own.max(axis=0).astype(np.float32), np.float32(np.inf))
        boxes[leaf, 2] = np.median(own, axis=0)  # one remote centre does not take it away from the others
        offsets = (own - boxes[leaf, 2]).astype(np.float32)
        tiles[leaf] = center_tiles(offsets[:, :n_dimensions], size)
        norm = np.sqrt(np.square(offsets.astype(np.float64)).sum(axis=1).max())
        radii[leaf] = np.nextafter(np.float32(norm), np.float32(np.inf))
    return tiles.reshape(n_leaves, -1), boxes, radii


def center_tiles(offsets: Float32, size: int) -> Float32:
    """Return a leaf of centres ``(n_centers, n_dimensions)``: negative, then half their squares, and nothing beyond."""
    n_dimensions = offsets.shape[1]
    tile = np.zeros((n_dimensions + 1, size), dtype=np.float32)
    tile[n_dimensions] = NOWHERE
    tile[:n_dimensions, : len(offsets)] = -offsets.T
    tile[n_dimensions, : len(offsets)] = np.square(offsets.astype(np.float64)).sum(axis=1) / 2
    return tile
