"""Kernels: from distances between neighbours to affinities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64
from heatmover._base.validation import check_number, check_option

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


def _gaussian(distances: sp.csr_array, widths: Float64) -> Float64:
    values: Float64 = distances.data
    with np.errstate(over="ignore"):  # the square of a far outlier may overflow; its affinity is 0
        # In place: these arrays are among the largest of all.
        np.divide(values, widths[0], out=values)
        np.square(values, out=values)
    np.negative(values, out=values)
    return np.exp(values, out=values)


def _adaptive(distances: sp.csr_array, widths: Float64) -> Float64:
    row = np.repeat(np.arange(distances.shape[0]), np.diff(distances.indptr))
    with np.errstate(over="ignore"):
        # Divided one by one: squares and products of small numbers underflow to 0 / 0.
        return np.asarray(np.exp(-(distances.data / widths[row]) * (distances.data / widths[distances.indices])))


def _box(distances: sp.csr_array, widths: Float64) -> Float64:  # noqa: ARG001
    values: Float64 = distances.data
    values.fill(1.0)
    return values


# They may write over the distances.
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
    distances: sp.csr_array,
    kernel: KernelName,
    widths: Float64,
    *,
    overwrite: bool = False,
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
    overwrite
        Whether the distances are not needed any more and may be written over: a copy takes 12 bytes per neighbour.

    Returns
    -------
    csr_array
        ``(n_points, n_points)``. A pair is joined if either is a neighbour of the other.
    """
    matrix = narrow(distances if overwrite else distances.copy())
    matrix.data = KERNELS[kernel](matrix, widths)
    matrix.sort_indices()
    joined = sp.csr_array(matrix.maximum(matrix.T.tocsr()) + sp.eye_array(matrix.shape[0], format="csr"))
    joined.eliminate_zeros()
    return narrow(joined)


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
