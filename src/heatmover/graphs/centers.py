"""Find nearest centers exactly, run k-means, draw by mass; for `graphs`, `study`, `atlas`; arrays only.

Distances are first computed in single precision. Where rounding could change which center is nearest, the few possible
centers are compared again in double precision, so the result equals the result of a plain loop over all centers. A tree
groups neighboring centers into leaves, each inside a box, and most boxes are too far from a point to be searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._base.threads import in_threads
from heatmover._base.types import Bool, Float64, FloatArray, Int32, Int64, IntArray, Intp
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError, in_python

Float32 = npt.NDArray[np.float32]

# Largest numbers of points and of values per block. In large blocks more points share a leaf; small blocks take less
# memory (40 MB with copies).
BLOCK, BLOCK_VALUES = 2**15, 2**22
# Smallest number of points in a block that is worth a thread of its own.
LEAST_BLOCK = 2**12
# Number of rows whose squared distances are computed at once; they fit the cache.
SQUARED = 2**12
# Number of coordinates of point-center pairs that are compared at once in double precision (two arrays of 8 MB).
PAIR_VALUES = 2**20
# Largest number of dimensions in which points are rotated; the cost per point grows with the square of the dimension.
# In more dimensions boxes exclude hardly any center, rotated or not.
MOST_ROTATED = 64
# Points with a larger norm are compared with all centers, because their squares may exceed the range of single
# precision.
FAR = 1e15
# Between these bounds, the square of a number and small fractions of this square are in the range of double precision.
LEAST, LARGEST = 1e-140, 1e150
# Value stored as half the squared norm in unused places of a leaf, so that an unused place is never nearest.
NOWHERE = np.float32(3e38)


# Number of points per landmark that k-means uses. With 2,000 landmarks on flow cytometry data (three seeds), 10, 25, 50
# and 75 points per landmark gave mean squared distances of 13,500, 12,500, 11,800 and 11,400, but nearly equal Spearman
# correlations of .978, .978, .979 and .979.
PER_LANDMARK = 50
# Number of k-means iterations, starting from points drawn at random. Spearman correlations with the distances on the
# graph over all points, after 0, 1, 3 and 10 iterations (2,000 landmarks, fixed scale, two seeds): melanoma .994 .996
# .996 .995, kidney .977 .983 .984 .985, flow cytometry .986 .985 .985 .981. In flow cytometry, outliers attract more
# landmarks with every iteration. A start by k-means++ places landmarks at outliers at once and is worse on all three
# data sets: .993, .981 and .957 after 3 iterations.
ITERATIONS = 3


@final
class CenterSearch:
    """Exact search for the nearest of fixed centers.

    If several centers are at the same distance in float64, the first of them counts as the nearest.

    Parameters
    ----------
    centers
        ``(n_centers, n_dimensions)``, float64.

    Examples
    --------
    >>> search = CenterSearch(np.array([[0.0], [1.0], [1.0]]))
    >>> search.nearest(np.array([[0.2], [7.0], [0.5]]), 1)
    (array([0, 1, 0]), array([ 0.04, 36.  ,  0.25]))
    """

    def __init__(self, centers: Float64) -> None:
        self.centers = centers
        self._leaves = Leaves.from_centers(centers)

    def nearest(self, points: npt.NDArray[Any], n_threads: int) -> tuple[Int64, Float64]:
        """Return the nearest center of each point and its squared distance.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``, finite.
        n_threads
            Number of threads.

        Returns
        -------
        indices, squares
            Index of the nearest center and squared distance, ``(n_points,)`` each. The values of a point do not depend
            on the other points.
        """
        indices, squares = np.empty(len(points), dtype=np.int64), np.empty(len(points))
        most = max(1, min(BLOCK, BLOCK_VALUES // points.shape[1]))
        # Every thread processes the same number of equal blocks, but no block is smaller than LEAST_BLOCK.
        n_blocks = n_threads * -(-len(points) // (n_threads * most))
        size = min(most, max(LEAST_BLOCK, -(-len(points) // max(1, n_blocks))))
        precision: type[np.floating[Any]] = np.float32 if points.dtype in (np.float16, np.float32) else np.float64

        def work(start: int) -> None:
            block: FloatArray = np.ascontiguousarray(points[start : start + size], dtype=precision)
            guess = self._leaves.nearest(block)
            nearest = guess.nearest
            for rows, centers in self._leaves.candidates(guess, PAIR_VALUES // block.shape[1]):
                # All pairs of a row are in one batch; among centers at the same distance the first is taken.
                apart = self._squares(block[rows], centers)
                first = np.lexsort((centers, apart, rows))
                first = first[np.diff(rows[first], prepend=-1) > 0]
                nearest[rows[first]] = centers[first]
            indices[start : start + size] = nearest
            for first_row in range(0, len(block), SQUARED):
                part = slice(first_row, first_row + SQUARED)
                to = slice(start + first_row, start + first_row + len(block[part]))
                squares[to] = self._squares(block[part], nearest[part])

        in_threads(work, range(0, len(points), size), n_threads)
        return indices, squares

    def _squares(self, points: FloatArray, centers: Int64) -> Float64:
        """Return the squared distance of each point from its own center, ``(n_points,)``."""
        with np.errstate(over="ignore"):
            differences = points - self.centers[centers]
            return np.asarray(np.square(differences, out=differences).sum(axis=1))


@final
@dataclass(frozen=True, eq=False)
class Guess:
    """Nearest centers of a block of points, computed in single precision.

    Attributes
    ----------
    nearest
        Nearest center of each point, or for an unsure point a center that may be nearest, ``(n_points,)``.
    unsure
        Indices of the points for which another center may be as near or nearer, ordered by leaf.
    points, norms, bounds
        Unsure points in the coordinates of the leaves, their norms, and bounds on half of their squared distances,
        ``(n_unsure, stride)``, ``(n_unsure,)`` and ``(3, n_unsure)``.
    far
        Indices of the points that are outside the range of single precision.
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
    """Centers in the leaves of a tree; neighboring centers share a leaf, and a box surrounds each leaf.

    Attributes
    ----------
    order
        Index of the center in each place of a leaf, ``(n_leaves * LANES,)``; -1 in unused places.
    origin, unit, rotation
        Transformation of points to the coordinates of the leaves: subtract ``origin`` ``(n_dimensions,)``, divide by
        ``unit``, and multiply by ``rotation``, padded with zeros to ``(stride, stride)``. The unit is a power of two,
        so the division is exact. An empty ``rotation`` keeps the axes.
    parts
        Tiles, boxes and radii, see `heatmover._base.compiled.centers`.
    cuts
        Dimension, value and two children of each cut of the tree, the root first.
    """

    order: Int64
    origin: Float64
    unit: float
    rotation: Float64
    parts: tuple[Float32, Float32, Float32]
    cuts: tuple[Int32, Float32, Int32]

    @classmethod
    def from_centers(cls, centers: Float64) -> Leaves:
        """Build the leaves from centers ``(n_centers, n_dimensions)``."""
        from heatmover._base.compiled.centers import LANES, WIDTH

        # Subtract the median: a few remote centers would move the mean away from the other centers, and digits would be
        # lost.
        origin = np.median(centers, axis=0)
        largest = float(np.abs(centers - origin).max()) or 1.0
        unit = float(np.exp2(np.ceil(np.log2(largest))))
        scaled, stride = (centers - origin) / unit, -(-len(origin) // WIDTH) * WIDTH  # whole vectors
        rotation = _axes(scaled, stride)
        placed = np.pad(scaled, ((0, 0), (0, stride - centers.shape[1])))
        placed = placed @ rotation if rotation.size else placed
        members, cuts = _cut(placed, LANES)
        parts = _parts(placed, members, centers.shape[1], LANES)
        order = np.full((len(members), LANES), -1, dtype=np.int64)
        for leaf, rows in enumerate(members):
            order[leaf, : rows.size] = rows
        return cls(order.ravel(), origin, unit, rotation, parts, cuts)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return len(self.parts[0])

    @cached_property
    def _rounding(self) -> Float32:
        """Factors that bound the rounding error of half a squared distance in single precision, see decision 0033."""
        epsilon = float(np.finfo(np.float32).eps)
        return np.array([(len(self.origin) + 8) * epsilon, 2 * epsilon], dtype=np.float32)

    def _in_range(self, sizes: Float32) -> Bool:
        """Return whether the norm of each point is in the range of single and double precision."""
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
        """Yield batches of about ``most`` pairs of a point and a center that may be nearest, point by point."""
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
    """Return the principal axes of points ``(n_points, n_dimensions)`` as columns; empty for too many dimensions."""
    n_dimensions = scaled.shape[1]
    if n_dimensions > MOST_ROTATED:
        return np.empty((0, 0))
    centered = scaled - scaled.mean(axis=0)
    axes = np.zeros((stride, stride))
    axes[:n_dimensions, :n_dimensions] = np.linalg.eigh(centered.T @ centered)[1][:, ::-1]
    return axes


def _cut(placed: Float64, size: int) -> tuple[list[Intp], tuple[Int32, Float32, Int32]]:
    """Divide points repeatedly along their widest dimension into mostly full leaves of at most ``size`` points."""
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


def _parts(placed: Float64, members: list[Intp], n_dimensions: int, size: int) -> tuple[Float32, Float32, Float32]:
    """Return tiles, boxes and radii of leaves in single precision, with bounds rounded outward."""
    n_leaves, stride = len(members), placed.shape[1]
    tiles = np.zeros((n_leaves, n_dimensions + 1, size), dtype=np.float32)
    tiles[:, n_dimensions] = NOWHERE
    boxes, radii = np.empty((n_leaves, 3, stride), dtype=np.float32), np.empty(n_leaves, dtype=np.float32)
    for leaf, rows in enumerate(members):
        own = placed[rows]
        boxes[leaf, 0] = np.nextafter(own.min(axis=0).astype(np.float32), np.float32(-np.inf))
        boxes[leaf, 1] = np.nextafter(own.max(axis=0).astype(np.float32), np.float32(np.inf))
        boxes[leaf, 2] = np.median(own, axis=0)  # one remote center would move the mean away from the others
        offsets = (own - boxes[leaf, 2]).astype(np.float32)
        squares = np.square(offsets.astype(np.float64)).sum(axis=1)
        tiles[leaf, :n_dimensions, : rows.size] = -offsets[:, :n_dimensions].T
        tiles[leaf, n_dimensions, : rows.size] = squares / 2
        radii[leaf] = np.nextafter(np.float32(np.sqrt(squares.max())), np.float32(np.inf))
    return tiles.reshape(n_leaves, -1), boxes, radii


def k_means(
    nodes: FloatArray, counts: Int64, n_centers: int, n_iterations: int, rng: np.random.Generator, n_threads: int
) -> tuple[Float64, int]:
    """Find centers by k-means on a random sample of the points.

    Parameters
    ----------
    nodes, counts
        Distinct points, sorted, and the number of copies of each, ``(n_nodes, n_dimensions)`` and ``(n_nodes,)``.
        Fewer nodes than ``n_centers`` raise an error.
    n_centers, n_iterations
        Number of centers, and of k-means iterations.
    rng, n_threads
        Random generator that draws the points, and number of threads.

    Returns
    -------
    centers
        ``(n_centers, n_dimensions)``. Some centers may be nearest to no point.
    n_looked_at
        Number of points drawn.
    """
    if n_centers > len(nodes):
        raise InvalidInputError(
            f"at least {counted(n_centers, 'distinct point')}, one per landmark",
            counted(int(counts.sum()), "point") + (f", {len(nodes):,} of them distinct" if counts.max() > 1 else ""),
            f"use at most {counted(len(nodes), 'landmark')}"
            + in_python(", or build the graph without landmarks: Graph.from_points(points)"),
        )
    # Draw arrival times from exponential distributions whose rates are the numbers of copies. The points that arrive
    # first are a weighted sample without replacement.
    first = np.argsort(rng.exponential(size=len(nodes)) / counts, kind="stable")[:n_centers]
    centers = np.asarray(nodes[first], dtype=np.float64)
    looked_at = draw_by_mass(counts, PER_LANDMARK * n_centers, rng)
    chosen = np.flatnonzero(looked_at)
    sample, weights = nodes[chosen], looked_at[chosen].astype(np.float64)
    for _ in range(n_iterations):
        centers = _move(sample, weights, centers, n_threads)
    return centers, int(looked_at.sum())


def _move(sample: FloatArray, weights: Float64, centers: Float64, n_threads: int) -> Float64:
    """Return the mean of the points nearest to each center; a center without points moves to a remote point."""
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
        Nearest center of each point, ``(n_points,)``.
    centers
        ``(n_centers, n_dimensions)``.
    weights
        Weight of each point, at least 1, ``(n_points,)``; None for weights of 1.

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
    """Divide sums ``(n_centers, n_dimensions)`` by sizes ``(n_centers,)``; a center of size 0 stays in place."""
    means = sums / np.maximum(sizes, 1)[:, None]
    return np.where(sizes[:, None] > 0, means, centers)


def draw_by_mass(masses: npt.NDArray[Any], count: int, rng: np.random.Generator) -> Int64:
    """Draw a systematic sample: the number of draws of a place is proportional to its mass, rounded up or down.

    If all masses are equal, each place is drawn at most once. A common factor of the masses does not change the sample.
    If there are at most ``count`` places, nothing is drawn at random, and the masses are returned as integers.

    Parameters
    ----------
    masses
        ``(n_places,)``, positive.
    count
        Number of draws.
    rng
        Random generator that orders the places and chooses the first draw. The draws are equally spaced in mass.

    Returns
    -------
    ndarray of shape (n_places,)
        Number of times that each place was drawn.

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
