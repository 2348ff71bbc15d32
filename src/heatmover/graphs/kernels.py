"""Turn neighbor distances into affinities by a kernel, and compute the affinity of a grid; only `graphs` calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import check_integer, check_number, check_option
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError

# Distances that differ by at most this share count as equal.
TIE = 1e-9

KernelName = Literal["gaussian", "adaptive", "box"]
Bandwidth = float | Literal["auto"]

# The default bandwidth is this factor times the median distance to the neighbor of middle rank. On the swiss roll, the
# S-curve and the star (one seed), accuracy hardly changes for factors between 1 and 2. With a factor of 4, heat leaks
# between the layers of the swiss roll, and the Spearman correlation falls from 0.99 to 0.93.
BANDWIDTH_FACTOR = 1.5


@dataclass(frozen=True)
class Search:
    """Description of a neighbor search: its algorithm, the reason for this algorithm, and its recall.

    Attributes
    ----------
    algorithm
        ``"tree"`` and ``"exact"`` (by clusters of points) find the true neighbors, ``"approximate"`` finds nearly all,
        ``"radius"`` finds all within a radius.
    recall
        Share of true neighbors found, measured on a sample; 1.0 for an exact search.
    reason
        Reason for this choice of algorithm, in words.
    """

    algorithm: str
    recall: float
    reason: str


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Neighbors of every point.

    Attributes
    ----------
    distances
        CSR ``(n_points, n_points)`` without the diagonal, each row in ascending order.
    middle
        Distance to the middle neighbor, ``(n_points,)``. If this distance is zero, the smallest positive distance to a
        neighbor; 0 if no neighbor has a positive distance.
    search
        Description of the search.
    """

    distances: sp.csr_array
    middle: Float64
    search: Search


def _gaussian(distances: sp.csr_array, widths: Float64) -> Float64:
    values: Float64 = distances.data
    with np.errstate(over="ignore"):  # the squared distance of an outlier may overflow; the affinity is then 0
        # Divide in place, because these arrays are among the largest of a run.
        np.divide(values, widths[0], out=values)
        np.square(values, out=values)
    np.negative(values, out=values)
    return np.exp(values, out=values)


def _adaptive(distances: sp.csr_array, widths: Float64) -> Float64:
    row = np.repeat(np.arange(distances.shape[0]), np.diff(distances.indptr))
    with np.errstate(over="ignore"):
        # Divide by one width at a time, because products of small numbers underflow, which would give 0 / 0.
        return np.asarray(np.exp(-(distances.data / widths[row]) * (distances.data / widths[distances.indices])))


def _box(distances: sp.csr_array, widths: Float64) -> Float64:  # noqa: ARG001
    values: Float64 = distances.data
    values.fill(1.0)
    return values


# Kernels may overwrite the distances.
KERNELS: dict[str, Callable[[sp.csr_array, Float64], Float64]] = {
    "gaussian": _gaussian,
    "adaptive": _adaptive,
    "box": _box,
}


def check_kernel(kernel: KernelName, bandwidth: Bandwidth) -> None:
    """Raise an error if the kernel or its bandwidth is invalid."""
    check_option("kernel", kernel, KERNELS)
    if isinstance(bandwidth, str):
        check_option("bandwidth", bandwidth, ["auto"])
    else:
        check_number("bandwidth", bandwidth, above=0)


def choose_bandwidth(middle: Float64, kernel: KernelName, bandwidth: Bandwidth) -> Float64:
    """Return the widths that a kernel uses: one number, or one per point for the adaptive kernel.

    Parameters
    ----------
    middle
        Distance of each point to its middle neighbor, ``(n_points,)``.
    kernel
        Name of the kernel.
    bandwidth
        ``"auto"`` or a positive number: the width itself for "gaussian", or a factor on the distance to the middle
        neighbor for "adaptive". "box" has no width.
    """
    if kernel == "adaptive":
        factor = 1.0 if bandwidth == "auto" else float(bandwidth)
        return factor * np.where(middle > 0, middle, _positive_median(middle))
    if bandwidth == "auto":
        return np.array([BANDWIDTH_FACTOR * _positive_median(middle)])
    return np.array([float(bandwidth)])


def _positive_median(middle: Float64) -> float:
    """Return the median of the positive distances, or 1 if every neighbor of every point is a duplicate."""
    positive = middle[middle > 0]
    return float(np.median(positive)) if positive.size else 1.0


def affinity_from_neighbors(
    distances: sp.csr_array, kernel: KernelName, widths: Float64, *, overwrite: bool = False
) -> sp.csr_array:
    """Turn distances to neighbors into a symmetric affinity with ones on the diagonal.

    Parameters
    ----------
    distances
        CSR ``(n_points, n_points)``; every stored entry is a neighbor, and a stored zero is a duplicate.
    kernel
        Name of the kernel.
    widths
        Widths from `choose_bandwidth`.
    overwrite
        If True, the distances are overwritten, which saves a copy of 12 bytes per neighbor.

    Returns
    -------
    csr_array
        ``(n_points, n_points)``. Two points are joined if either is a neighbor of the other.
    """
    matrix = narrow(distances if overwrite else distances.copy())
    matrix.data = KERNELS[kernel](matrix, widths)
    matrix.sort_indices()
    joined = sp.csr_array(matrix.maximum(matrix.T.tocsr()) + sp.eye_array(matrix.shape[0], format="csr"))
    joined.eliminate_zeros()
    return narrow(joined)


def narrow(matrix: sp.csr_array) -> sp.csr_array:
    """Return the matrix with 32-bit indices where they suffice, because SciPy keeps wider indices than necessary.

    Examples
    --------
    >>> narrow(sp.csr_array(([1.0], np.array([1]), np.array([0, 1, 1])), shape=(2, 2))).indices.dtype
    dtype('int32')
    """
    if max(matrix.nnz, *matrix.shape) > np.iinfo(np.int32).max:
        return matrix
    places = (part.astype(np.int32, copy=False) for part in (matrix.indices, matrix.indptr))
    return sp.csr_array((matrix.data, *places), shape=matrix.shape)


def middle_of_rows(matrix: sp.csr_array, counts: Int64) -> Float64:
    """Return `Neighbors.middle`, ``(n_points,)``, among the first ``counts`` entries of each ascending row."""
    offsets = matrix.indptr[:-1].astype(np.int64)
    row = np.repeat(np.arange(counts.size), np.diff(matrix.indptr))
    zeros = np.bincount(row[matrix.data == 0], minlength=counts.size)
    place = np.minimum(np.maximum(counts // 2 - 1, zeros), counts - 1)
    middle = np.zeros(counts.size)
    middle[counts > 0] = matrix.data[(offsets + place)[counts > 0]]
    return middle


def grid_affinity(
    shape: Sequence[int], *, spacing: float | Sequence[float], periodic: bool, bandwidth: float, reach: int | None
) -> tuple[sp.csr_array, dict[str, Any]]:
    """Return the Gaussian affinity of a grid, CSR ``(n_points, n_points)``, and a description of its construction."""
    sizes = _check_shape(shape)
    if not isinstance(periodic, bool | np.bool_):
        raise InvalidInputError("periodic to be True or False", repr(periodic))
    steps = _check_spacing(spacing, len(sizes))
    width = check_number("bandwidth", bandwidth, above=0) * steps.min()
    span = (2 if len(sizes) <= 2 else 1) if reach is None else check_integer("reach", reach, minimum=1)
    if periodic and min(sizes) <= 2 * span:
        # On a shorter ring a node would reach the same neighbor from both sides.
        raise InvalidInputError(
            f"periodic axes longer than {counted(2 * span, 'node')}", f"shape {sizes}", "use a smaller reach"
        )
    coordinates = np.indices(sizes).reshape(len(sizes), -1)
    offsets = [np.array(offset) for offset in product(range(-span, span + 1), repeat=len(sizes))]
    limits, parts = np.array(sizes)[:, None], []
    for offset in offsets:  # the nodes that have a neighbor at this offset, and the neighbor of each
        target = coordinates + offset[:, None]
        if periodic:
            target %= limits
        inside = ((target >= 0) & (target < limits)).all(axis=0)
        parts.append((np.flatnonzero(inside), np.ravel_multi_index(tuple(target[:, inside]), sizes)))
    weights = [np.exp(-((offset * steps / width) ** 2).sum()) for offset in offsets]
    values = np.concatenate([np.full(len(rows), w) for (rows, _), w in zip(parts, weights, strict=True)])
    rows = np.concatenate([rows for rows, _ in parts])
    columns = np.concatenate([columns for _, columns in parts])
    n_points = int(np.prod(sizes))
    affinity = sp.csr_array((values, (rows, columns)), shape=(n_points, n_points))
    affinity.eliminate_zeros()  # a narrow kernel underflows, and a zero weight means no edge
    affinity.sort_indices()
    return affinity, {
        "source": "grid",
        "shape": sizes,
        "periodic": bool(periodic),
        "bandwidth": float(width),
        "reach": span,
    }


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    # A single number describes a grid with one axis; check_integer rejects it if it is not a whole number.
    sizes = tuple(shape) if np.iterable(shape) else (shape,)
    if not sizes:
        raise InvalidInputError("the shape of a grid with at least one axis", repr(shape))
    return tuple(check_integer("every axis of shape", size, minimum=1) for size in sizes)


def _check_spacing(spacing: float | Sequence[float], n_axes: int) -> Float64:
    steps = list(spacing) if isinstance(spacing, Sequence | np.ndarray) else [spacing] * n_axes
    if len(steps) != n_axes:
        raise InvalidInputError(f"one spacing or one per axis ({n_axes})", repr(spacing))
    return np.array([check_number("spacing", step, above=0) for step in steps])
