"""Kernels: from distances between neighbours to affinities."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from heatmover._threads import in_threads
from heatmover._typing import Float64
from heatmover._validation import check_number, check_option, check_threads

__all__ = [
    "KERNELS",
    "Bandwidth",
    "KernelName",
    "affinity_from_neighbors",
    "check_kernel",
    "choose_bandwidth",
    "narrow",
]

KernelName = Literal["gaussian", "adaptive", "box"]
Bandwidth = float | Literal["auto"]

# Bandwidth = this factor times the median distance to the middle neighbour. Measured on the swiss roll, the S-curve and
# the star (one seed): between 1 and 2 accuracy is flat; at 4 the swiss roll's layers leak into each other (Spearman
# 0.99 -> 0.93).
BANDWIDTH_FACTOR = 1.5
# Rows of a piece of work.
ROWS_AT_ONCE = 16_384


def _gaussian(distances: sp.csr_array, widths: Float64) -> Float64:
    with np.errstate(over="ignore"):  # the square of a far outlier may overflow; its affinity is 0
        # In place: these arrays are among the largest of all.
        values: Float64 = distances.data / widths[0]
        np.square(values, out=values)
    np.negative(values, out=values)
    return np.exp(values, out=values)


def _adaptive(distances: sp.csr_array, widths: Float64) -> Float64:
    row = np.repeat(np.arange(distances.shape[0]), np.diff(distances.indptr))
    with np.errstate(over="ignore"):
        # Divided one by one: squares and products of small numbers underflow to 0 / 0.
        return np.asarray(np.exp(-(distances.data / widths[row]) * (distances.data / widths[distances.indices])))


def _box(distances: sp.csr_array, widths: Float64) -> Float64:  # noqa: ARG001
    return np.ones(distances.nnz)


KERNELS: dict[str, Callable[[sp.csr_array, Float64], Float64]] = {
    "gaussian": _gaussian,
    "adaptive": _adaptive,
    "box": _box,
}


def check_kernel(kernel: KernelName, bandwidth: Bandwidth) -> None:
    """Raise unless this is a kernel and a width for it."""
    check_option("kernel", kernel, KERNELS)
    if isinstance(bandwidth, str):
        check_option("bandwidth", bandwidth, ["auto"])
    else:
        check_number("bandwidth", bandwidth, above=0)


def choose_bandwidth(middle: Float64, kernel: KernelName, bandwidth: Bandwidth) -> Float64:
    """Return the widths a kernel uses: one number, or one per point for the adaptive kernel.

    Parameters
    ----------
    middle
        Distance of each point to its middle neighbour, ``(n_points,)``.
    kernel
        Name of the kernel.
    bandwidth
        ``"auto"`` or a positive number: the width itself for "gaussian", a factor on the distance to the middle
        neighbour for "adaptive"; "box" has no width.
    """
    if kernel == "adaptive":
        factor = 1.0 if bandwidth == "auto" else float(bandwidth)
        return factor * np.where(middle > 0, middle, _positive_median(middle))
    if bandwidth == "auto":
        return np.array([BANDWIDTH_FACTOR * _positive_median(middle)])
    return np.array([float(bandwidth)])


def _positive_median(middle: Float64) -> float:
    """Return the median of the positive distances, or 1 where every neighbour of every point is a duplicate."""
    positive = middle[middle > 0]
    return float(np.median(positive)) if positive.size else 1.0


def affinity_from_neighbors(
    distances: sp.csr_array, kernel: KernelName, widths: Float64, *, n_threads: int | None = None
) -> sp.csr_array:
    """Turn distances to neighbours into a symmetric affinity with ones on the diagonal.

    Parameters
    ----------
    distances
        CSR ``(n_points, n_points)``; stored entries are neighbours, explicit zeros are duplicates.
    kernel
        Name of the kernel.
    widths
        From `choose_bandwidth`.
    n_threads
        Threads; None for all cores. Nothing depends on them.

    Returns
    -------
    csr_array
        ``(n_points, n_points)``. A pair is joined if either is a neighbour of the other.
    """
    directed = sp.csr_array((KERNELS[kernel](distances, widths), distances.indices, distances.indptr), distances.shape)
    mirrored = _mirrored(narrow(directed))
    # The mirror image of the image has its rows in order, which those of neighbours are not.
    directed = _mirrored(mirrored)
    pair = tuple((matrix.indptr, matrix.indices, matrix.data) for matrix in (directed, mirrored))
    return _joined(pair, distances.shape[0], check_threads(n_threads))


def _mirrored(matrix: sp.csr_array) -> sp.csr_array:
    """Return the mirror image of a square matrix, indices sorted."""
    from heatmover._compiled.mirror import mirror

    starts = np.empty(matrix.shape[0] + 1, dtype=np.int64)
    columns, values = np.empty_like(matrix.indices), np.empty_like(matrix.data)
    mirror(matrix.indptr, matrix.indices, matrix.data, starts, columns, values)
    return sp.csr_array((values, columns, starts.astype(columns.dtype, copy=False)), shape=matrix.shape)


def _joined(pair: tuple[Any, ...], n_points: int, n_threads: int) -> sp.csr_array:
    """Return the larger entry of two matrices, with ones on the diagonal and without zeros."""
    from heatmover._compiled.mirror import join_rows

    edges = [*range(0, n_points, ROWS_AT_ONCE), n_points]
    starts = np.zeros(n_points + 1, dtype=np.int64)
    nothing = np.empty(0, dtype=pair[0][1].dtype), np.empty(0)
    in_threads(lambda piece: join_rows(*piece, *pair, starts, *nothing), pairwise(edges), n_threads)
    np.cumsum(starts, out=starts)
    columns, values = np.empty(starts[-1], dtype=pair[0][1].dtype), np.empty(starts[-1])
    in_threads(lambda piece: join_rows(*piece, *pair, starts, columns, values), pairwise(edges), n_threads)
    return narrow(sp.csr_array((values, columns, starts), shape=(n_points, n_points)))


def narrow(matrix: sp.csr_array) -> sp.csr_array:
    """Return the same matrix with places of 32 bits where they suffice: SciPy makes them as wide as the widest given.

    Examples
    --------
    >>> narrow(sp.csr_array(([1.0], np.array([1]), np.array([0, 1, 1])), shape=(2, 2))).indices.dtype
    dtype('int32')
    """
    if max(matrix.nnz, *matrix.shape) > np.iinfo(np.int32).max:
        return matrix
    places = (part.astype(np.int32, copy=False) for part in (matrix.indices, matrix.indptr))
    return sp.csr_array((matrix.data, *places), shape=matrix.shape)
