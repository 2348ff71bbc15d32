"""The definition of Diffusion EMD: difference, weigh, stack. It stands here and nowhere else.

With densities mu^(t) at the dyadic times t = 2^k, the distance between two measures is one of

levels      sum_{k<=K} 2^(-(K-k) a) || mu^(2^k) - nu^(2^k) ||_1
increments  sum_{k<K} 2^(-(K-k-1) a) || D_k (mu - nu) ||_1 + || (mu - nu)^(2^K) ||_1,  D_k mu = mu^(2^(k+1)) - mu^(2^k)
coarsest    sum_{k<K} 2^(-(K-k) a) || (mu - nu)^(2^k) - (mu - nu)^(2^K) ||_1 + || (mu - nu)^(2^K) ||_1

(the paper's Eq. 7-8 is "increments"). Each is linear in the densities before the norm is taken, so each is one small
matrix: its rows are the blocks of the embedding, its columns the densities.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._progress import SILENT, Progress
from heatmover.diffusion.base import LANES, Diffuser
from heatmover.diffusion.recurrence import WIDEST_BLOCK

__all__ = ["NORMS", "combination", "embed"]

Float64 = npt.NDArray[np.float64]


def _levels(weights: Float64) -> Float64:
    return np.diag(weights)


def _increments(weights: Float64) -> Float64:
    matrix = np.diag(np.ones(weights.size - 1), 1) - np.eye(weights.size)
    matrix[-1, -1] = 1.0
    # The difference from 2^k to 2^(k+1) weighs as much as the coarser of the two.
    return np.asarray(matrix * np.append(weights[1:], 1.0)[:, None])


def _coarsest(weights: Float64) -> Float64:
    matrix = np.diag(weights)
    matrix[:-1, -1] = -weights[:-1]
    return matrix


NORMS: dict[str, Callable[[Float64], Float64]] = {
    "levels": _levels,
    "increments": _increments,
    "coarsest": _coarsest,
}


def combination(scales: range, *, alpha: float, norm: str) -> Float64:
    """Return the matrix that turns densities into blocks of the embedding.

    Parameters
    ----------
    scales
        The scales k kept; the last one is K.
    alpha
        Balance between far and near.
    norm
        ``"levels"``, ``"increments"`` or ``"coarsest"``.

    Returns
    -------
    ndarray
        ``(n_scales, n_scales)``: block b is the sum over k of ``matrix[b, k]`` times the density at ``2**k``.

    Examples
    --------
    >>> combination(range(3), alpha=0.5, norm="increments").round(3)
    array([[-0.707,  0.707,  0.   ],
           [ 0.   , -1.   ,  1.   ],
           [ 0.   ,  0.   ,  1.   ]])
    """
    return NORMS[norm](scale_weights(scales, alpha))


def scale_weights(scales: range, alpha: float) -> Float64:
    """Return the weight 2^(-(K-k) alpha) of every scale, ``(n_scales,)``; the coarsest weighs 1."""
    return np.asarray(2.0 ** (-alpha * (scales[-1] - np.asarray(scales))))


def embed(
    diffuser: Diffuser,
    rows: Any,
    scales: range,
    matrix: Float64,
    *,
    dtype: npt.DTypeLike,
    n_threads: int,
    progress: Progress = SILENT,
) -> npt.NDArray[np.floating[Any]]:
    """Embed measures so that Diffusion EMD is the plain L1 distance between rows.

    Parameters
    ----------
    diffuser
        The way to diffuse.
    rows
        Measures ``(n_measures, n_points)``, dense or CSR.
    scales
        The scales to compare.
    matrix
        From `combination`.
    dtype, n_threads, progress
        Of the result; to use; to report to (one step per measure).

    Returns
    -------
    ndarray
        ``(n_measures, n_scales * n_points)``, block after block, points in the graph's order.
    """
    n_measures, n_points = rows.shape
    embedding = np.zeros((n_measures, len(matrix) * n_points), dtype=dtype)

    def fill(block: slice) -> None:
        part = rows[block]
        masses = np.asarray(part.toarray() if sp.issparse(part) else part).T
        for column, density in zip(matrix.T, diffuser.diffuse(masses, scales), strict=True):
            for position in np.flatnonzero(column):
                target = embedding[block, position * n_points : (position + 1) * n_points]
                target += density.T * column[position].astype(density.dtype)
        progress.advance(masses.shape[1])

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(fill, _blocks(n_measures, n_threads)))
    return embedding


def _blocks(n_measures: int, n_threads: int) -> list[slice]:
    """Cut the measures into blocks of whole vector registers, equal to within one.

    At least two blocks per thread, so that no more than about half of the embedding is ever in the making; else as
    few as the widest block allows.
    """
    units = -(-n_measures // LANES)
    fewest = -(-n_measures // WIDEST_BLOCK)
    rounds = max(2, -(-fewest // n_threads))
    count = min(rounds * n_threads, units)
    edges = [min(LANES * (units * i // count), n_measures) for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]
