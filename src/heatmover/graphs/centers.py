"""The nearest of many centers for each of many points, fast in single precision and exact in double; k-means.

Single precision decides wherever its proven error leaves no doubt. Where it does not, the few centers that may be
nearest are compared by plain differences in double precision. The result is that of a plain loop over all centers.
Neighboring centers share a leaf with a box around it, and most boxes are too far from a point to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from heatmover._base.threads import in_threads
from heatmover._base.types import Bool, Float64, FloatArray, Int32, Int64, IntArray, Intp
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError, in_python

__all__ = [
    "ITERATIONS",
    "PER_LANDMARK",
    "CenterSearch",
    "Leaves",
    "draw_by_mass",
    "k_means",
    "means_or_same",
    "move_centers",
]

Float32 = npt.NDArray[np.float32]

# Points of a block, and their values: more of them share leaves, fewer take less memory, 40 MB with copies.
BLOCK, BLOCK_VALUES = 2**15, 2**22
# Points that are worth a thread.
LEAST_BLOCK = 2**12
# Up to so many values of pairs of a point and a center plain differences take at most 0.1 s, and leaves some seconds
# when they are compiled for the first time.
FEW_VALUES = 2**26
# Squares at once in a thread, 16 MB.
MOST_SQUARES = 2**21
# Rows whose squares are made at once, which then stay in the cache.
SQUARED = 2**12
# Values of pairs of a point and a center at once that are compared in double precision, 8 MB and as much again.
PAIR_VALUES = 2**20
# Up to so many dimensions points are rotated, which takes as many products for a point as it has dimensions, squared;
# in more dimensions boxes hardly leave anything out, rotated or not.
MOST_ROTATED = 64
# Norms beyond which squares may leave the range of single precision. Such points are compared with all centers.
FAR = 1e15
# Sizes whose squares, and small parts of them, are within the range of double precision.
LEAST, LARGEST = 1e-140, 1e150
# Half the square of a center that is not there.
NOWHERE = np.float32(3e38)


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
    """Finds the nearest of fixed centers.

    By `Leaves`, or by plain differences where there is little to do. It is exact: of centers at the same distance in
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
        if n_points * centers.size > FEW_VALUES:
            _ = search._leaves
        return search

    def nearest(self, points: npt.NDArray[Any], n_threads: int) -> tuple[Int64, Float64]:
        """Return the nearest center of each point and its squared distance.

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
        few = len(points) * self.centers.size <= FEW_VALUES and "_leaves" not in self.__dict__
        most = max(1, min(BLOCK, BLOCK_VALUES // points.shape[1], MOST_SQUARES // len(self.centers) if few else BLOCK))
        # No thread without work, unless there is little, and as much for each.
        n_blocks = n_threads * -(-len(points) // (n_threads * most))
        size = min(most, max(LEAST_BLOCK, -(-len(points) // max(1, n_blocks))))
        if not few:
            _ = self._leaves  # made here, not by every thread
        find = self._by_differences if few else self._by_leaves

        def work(start: int) -> None:
            block = _in_floats(points[start : start + size])
            nearest = find(block)
            indices[start : start + size] = nearest
            for first in range(0, len(block), SQUARED):
                rows = slice(first, first + SQUARED)
                squares[start + first : start + first + len(block[rows])] = self._squares(block[rows], nearest[rows])

        in_threads(work, range(0, len(points), size), n_threads)
        return indices, squares

    @cached_property
    def _leaves(self) -> Leaves:
        return Leaves.from_centers(self.centers)

    def _by_leaves(self, block: FloatArray) -> Int64:
        guess = self._leaves.nearest(block)
        for rows, centers in self._leaves.candidates(guess, PAIR_VALUES // block.shape[1]):
            self._decide(block, rows, centers, guess.nearest)
        return guess.nearest

    def _by_differences(self, block: FloatArray) -> Int64:
        with np.errstate(over="ignore"):
            squares = cdist(block, self.centers, "sqeuclidean")
            # SciPy adds up in another order, so that rounding may part equal ones or swap them.
            limits = squares.min(axis=1, keepdims=True) * (1 + 4 * block.shape[1] * np.finfo(np.float64).eps)
        nearest: Int64 = squares.argmin(axis=1)
        near = squares <= limits
        near[near.sum(axis=1) == 1] = False
        rows, centers = np.nonzero(near)
        self._decide(block, rows, centers, nearest)
        return nearest

    def _decide(self, block: FloatArray, rows: Intp, centers: Int64, nearest: Int64) -> None:
        """Write the nearest of some centers for each of some rows, all pairs of a row together; of equals the first."""
        squares = self._squares(block[rows], centers)
        first = np.lexsort((centers, squares, rows))
        first = first[np.diff(rows[first], prepend=-1) > 0]
        nearest[rows[first]] = centers[first]

    def _squares(self, points: FloatArray, centers: Int64) -> Float64:
        """Return the squared distances of points from a center each, ``(n_points,)``."""
        with np.errstate(over="ignore"):
            differences = points - self.centers[centers]
            return np.asarray(np.square(differences, out=differences).sum(axis=1))


def _in_floats(points: npt.NDArray[Any]) -> FloatArray:
    """Return points in single or double precision, whichever holds their values."""
    single = points.dtype in (np.float16, np.float32)
    return np.ascontiguousarray(points, dtype=np.float32 if single else np.float64)


@final
@dataclass(frozen=True, eq=False)
class Guess:
    """What single precision says about a block of points.

    Attributes
    ----------
    nearest
        ``(n_points,)``: the nearest center, or one of the nearest.
    unsure
        Rows in which another center may be as near or nearer, in the order of their leaves.
    points, norms, bounds
        ``(n_unsure, stride)``, ``(n_unsure,)`` and ``(3, n_unsure)``: those rows in the coordinates of the leaves, and
        bounds of half the least square.
    far
        Rows about which single precision says nothing.
    """

    nearest: Int64
    unsure: Intp
    points: Float32
    norms: Float32
    bounds: Float32
    far: Intp


@final
@dataclass(frozen=True, eq=False)
class Leaves:
    """Centers by leaves of neighbors, each with a box around it.

    Attributes
    ----------
    order
        ``(n_leaves * LANES,)``: the number of the center in each place; -1 where there is none.
    origin, unit, rotation
        How points become coordinates of single precision: ``(n_dimensions,)``; a power of two, so that nothing is
        rounded; ``(stride, stride)``, zeros beyond, or empty for none.
    parts
        Tiles, boxes and radii, see `heatmover._base.compiled.centers`.
    cuts
        Dimensions, values and children of the cuts, from the first cut on.
    """

    order: Int64
    origin: Float64
    unit: float
    rotation: Float64
    parts: tuple[Float32, Float32, Float32]
    cuts: tuple[Int32, Float32, Int32]

    @classmethod
    def from_centers(cls, centers: Float64) -> Leaves:
        """Put centers ``(n_centers, n_dimensions)`` into leaves."""
        from heatmover._base.compiled.centers import LANES, WIDTH

        # Of many equal values around a few remote ones the median is near to the many, whose digits count.
        origin = np.median(centers, axis=0)
        largest = float(np.abs(centers - origin).max()) or 1.0
        unit = float(np.exp2(np.ceil(np.log2(largest))))
        scaled, stride = (centers - origin) / unit, -(-len(origin) // WIDTH) * WIDTH  # whole vectors
        rotation = _axes(scaled, stride)
        placed = np.pad(scaled, ((0, 0), (0, stride - centers.shape[1])))
        placed = placed @ rotation if rotation.size else placed
        members, cuts = _cut(placed, LANES)
        parts = _parts(placed, members, centers.shape[1], LANES)
        return cls(_places(members, LANES), origin, unit, rotation, parts, cuts)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return len(self.parts[0])

    @cached_property
    def _rounding(self) -> Float32:
        """Factors of the error of half a square in single precision, see decision 0033."""
        epsilon = float(np.finfo(np.float32).eps)
        return np.array([(len(self.origin) + 8) * epsilon, 2 * epsilon], dtype=np.float32)

    def _in_range(self, sizes: Float32) -> Bool:
        """Return for which points, by their norms, neither precision leaves its range."""
        if not LEAST < self.unit < LARGEST:
            return np.zeros(sizes.size, dtype=np.bool_)
        return np.asarray(sizes < min(FAR, LARGEST / self.unit))

    def nearest(self, block: FloatArray) -> Guess:
        """Return the nearest center of each point of a block ``(n_points, n_dimensions)``."""
        from heatmover._base.compiled.centers import find_leaves, nearest_by_leaves, rotate

        n_points = len(block)
        points, sizes = np.empty((n_points, self.parts[1].shape[2]), dtype=np.float32), np.empty(n_points, np.float32)
        with np.errstate(over="ignore"):
            scale = float(np.float64(1.0) / self.unit)
        rotate(block, self.origin, scale, self.rotation, points, sizes)
        known = self._in_range(sizes)
        own = np.zeros(n_points, dtype=np.int32)
        if len(self.cuts[0]):
            find_leaves(points, *self.cuts, own)
        order = np.argsort(own.astype(np.int16) if self.n_leaves < 2**15 else own, kind="stable")
        if not known.all():
            order = order[known[order]]
        points, norms, own = points[order], sizes[order], own[order]
        places, bounds = np.empty(len(order), dtype=np.int64), np.full((3, len(order)), np.inf, dtype=np.float32)
        nearest_by_leaves(points, norms, own, *self.parts, self._rounding, places, bounds)
        nearest = np.zeros(n_points, dtype=np.int64)
        nearest[order] = self.order[places]
        unsure = np.flatnonzero(bounds[2] <= bounds[0])
        doubt = (order[unsure], points[unsure], norms[unsure], np.ascontiguousarray(bounds[:, unsure]))
        return Guess(nearest, *doubt, np.flatnonzero(~known))

    def candidates(self, guess: Guess, most: int) -> Iterator[tuple[Intp, Int64]]:
        """Yield rows and centers of which one may be the nearest, about ``most`` pairs or all of a row at a time."""
        from heatmover._base.compiled.centers import candidates_by_leaves

        centers = np.flatnonzero(self.order >= 0)
        most = max(most, self.order.size)
        which, places = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
        done = 0
        while done < len(guess.unsure):
            left = (guess.points[done:], guess.norms[done:], np.ascontiguousarray(guess.bounds[:, done:]))
            n_pairs, n_points = candidates_by_leaves(*left, *self.parts, self._rounding, which, places)
            yield guess.unsure[done + which[:n_pairs]], self.order[places[:n_pairs]]
            done += n_points
        everyone = np.sort(self.order[centers])
        step = max(1, most // everyone.size)
        for start in range(0, len(guess.far), step):
            rows = guess.far[start : start + step]
            yield np.repeat(rows, everyone.size), np.tile(everyone, rows.size)


def _axes(scaled: Float64, stride: int) -> Float64:
    """Return the principal axes of points ``(n_points, n_dimensions)`` as columns; nothing in many dimensions."""
    n_dimensions = scaled.shape[1]
    if n_dimensions > MOST_ROTATED:
        return np.empty((0, 0))
    centered = scaled - scaled.mean(axis=0)
    axes = np.zeros((stride, stride))
    axes[:n_dimensions, :n_dimensions] = np.linalg.eigh(centered.T @ centered)[1][:, ::-1]
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
        boxes[leaf, 2] = np.median(own, axis=0)  # one remote center does not take it away from the others
        offsets = (own - boxes[leaf, 2]).astype(np.float32)
        tiles[leaf] = center_tiles(offsets[:, :n_dimensions], size)
        norm = np.sqrt(np.square(offsets.astype(np.float64)).sum(axis=1).max())
        radii[leaf] = np.nextafter(np.float32(norm), np.float32(np.inf))
    return tiles.reshape(n_leaves, -1), boxes, radii


def center_tiles(offsets: Float32, size: int) -> Float32:
    """Return a leaf of centers ``(n_centers, n_dimensions)``: negative, then half their squares, and nothing beyond."""
    n_dimensions = offsets.shape[1]
    tile = np.zeros((n_dimensions + 1, size), dtype=np.float32)
    tile[n_dimensions] = NOWHERE
    tile[:n_dimensions, : len(offsets)] = -offsets.T
    tile[n_dimensions, : len(offsets)] = np.square(offsets.astype(np.float64)).sum(axis=1) / 2
    return tile


def k_means(
    nodes: FloatArray, counts: Int64, n_centers: int, n_iterations: int, rng: np.random.Generator, n_threads: int
) -> tuple[Float64, int]:
    """Return centers and how many points were looked at to find them.

    Parameters
    ----------
    nodes, counts
        ``(n_nodes, n_dimensions)`` and ``(n_nodes,)``: the different points, sorted, and how many there are of each;
        at least ``n_centers``, or an error says so.
    n_centers, n_iterations
        How many centers, and how often they move.
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
            f"a different point for each of {n_centers:,} landmarks",
            counted(int(counts.sum()), "point") + (f" of which {len(nodes)} differ" if counts.max() > 1 else ""),
            f"use at most {counted(len(nodes), 'landmark')}"
            + in_python(", or join all points without any: Graph.from_points(points)"),
        )
    # A race in which each runs as fast as there are copies of it: the first are drawn in proportion, without repeats.
    first = np.argsort(rng.exponential(size=len(nodes)) / counts, kind="stable")[:n_centers]
    centers = np.asarray(nodes[first], dtype=np.float64)
    looked_at = draw_by_mass(counts, PER_LANDMARK * n_centers, rng)
    chosen = np.flatnonzero(looked_at)
    sample, weights = nodes[chosen], looked_at[chosen].astype(np.float64)
    for _ in range(n_iterations):
        centers = _move(sample, weights, centers, n_threads)
    return centers, int(looked_at.sum())


def _move(sample: FloatArray, weights: Float64, centers: Float64, n_threads: int) -> Float64:
    """Return the mean of the points nearest to each center; one without points goes to a point far from its own."""
    nearest, squares = CenterSearch(centers).nearest(sample, n_threads)
    moved = move_centers(sample, nearest, centers, weights)
    empty = np.flatnonzero(np.bincount(nearest, minlength=len(centers)) == 0)
    if empty.size:
        farthest = np.argsort(-squares, kind="stable")[: empty.size]
        farthest = farthest[squares[farthest] > 0]
        moved[empty[: farthest.size]] = sample[farthest]
    return moved


def move_centers(points: FloatArray, nearest: Int64, centers: Float64, weights: Float64 | None = None) -> Float64:
    """Return the mean of the points nearest to each center; a center without points stays.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    nearest
        ``(n_points,)``: the center of each.
    centers
        ``(n_centers, n_dimensions)``.
    weights
        ``(n_points,)``: how often each point counts, at least once; None for once.

    Examples
    --------
    >>> move_centers(np.array([[0.0], [2.0]]), np.array([1, 1]), np.array([[7.0], [8.0]])).tolist()
    [[7.0], [1.0]]
    """
    count = len(centers)
    sizes = np.bincount(nearest, weights, minlength=count)
    weighted = (column if weights is None else weights * column for column in points.T)
    sums = np.stack([np.bincount(nearest, column, minlength=count) for column in weighted], axis=1)
    return means_or_same(np.asarray(sums, dtype=np.float64), sizes, centers)


def means_or_same(sums: Float64, sizes: IntArray | Float64, centers: Float64) -> Float64:
    """Return the means from sums ``(n_centers, n_dimensions)`` and sizes ``(n_centers,)``; of no points, the center."""
    means = sums / np.maximum(sizes, 1)[:, None]
    return np.where(sizes[:, None] > 0, means, centers)


def draw_by_mass(masses: npt.NDArray[Any], count: int, rng: np.random.Generator) -> Int64:
    """Draw ``count`` times, each place as often as its share of the mass says, to within one (a systematic sample).

    Places of equal mass are drawn at most once each, and a common factor of the masses changes nothing. Where there are
    no more places than draws, nothing is drawn at random: the masses, as whole numbers, come back.

    Parameters
    ----------
    masses
        ``(n_places,)``, positive.
    count
        How many draws.
    rng
        Puts the places into a random order; then every so many-th unit of mass is drawn.

    Returns
    -------
    ndarray of shape (n_places,)
        How often each was drawn.

    Examples
    --------
    >>> int(draw_by_mass(np.array([1, 1, 2]), 2, np.random.default_rng(0)).sum())
    2
    """
    if masses.size <= count:
        return masses.astype(np.int64)
    order = rng.permutation(masses.size)
    reached = np.cumsum(masses[order]) / masses.sum()
    ticks = (np.arange(count) + rng.random()) / count
    hit = np.minimum(np.searchsorted(reached, ticks, side="right"), masses.size - 1)
    return np.bincount(order[hit], minlength=masses.size).astype(np.int64)
