"""Where cells go on the nodes of an atlas: wholly to the nearest, or shared with the nodes around it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Float64, FloatArray, Int64, IntArray
from heatmover.graphs import Graph

__all__ = ["PLACEMENTS", "UNIT", "Placement", "around", "count_at", "share_among"]

Placement = Literal["nearest", "kernel"]
PLACEMENTS = ("nearest", "kernel")
# Shares of a cell are whole numbers of this unit: their sums depend neither on blocks nor on the order of cells, and
# four million cells at one node still fit into 64 bits.
UNIT = 2.0**-40
# Pairs of a cell and a node in memory at a time: four arrays of 8 MB.
PAIRS = 2**20


def around(graph: Graph) -> sp.csr_array:
    """Return which nodes share the cells that are nearest to each: itself and those joined to it."""
    joined = sp.csr_array(graph.affinity.astype(bool) + sp.eye_array(graph.n_nodes, dtype=bool, format="csr"))
    joined.sort_indices()
    return joined


def count_at(places: Int64, codes: IntArray, shape: tuple[int, int]) -> sp.csr_array:
    """Return how many cells of each sample are at each node, ``(n_samples, n_nodes)``, sorted."""
    keys, counts = np.unique(codes.astype(np.int64) * shape[1] + places, return_counts=True)
    rows, columns = np.divmod(keys, shape[1])
    return sp.csr_array((counts.astype(np.float64), (rows, columns)), shape=shape)


def share_among(
    joined: sp.csr_array, centers: Float64, points: FloatArray, places: Int64, codes: IntArray, n_samples: int
) -> sp.csr_array:
    """Return how many cells of each sample are at each node in units of `UNIT`, if nodes share cells by a kernel.

    A cell at distance d from its nearest node gives the weight exp(-r^2 / d^2) to a node at distance r, of that node
    and those joined to it. At a node it is wholly there, and near it nearly so.

    Parameters
    ----------
    joined
        From `around`.
    centers
        ``(n_nodes, n_dimensions)``.
    points, places, codes
        ``(n_cells, n_dimensions)``; ``(n_cells,)``: nearest node and sample of each.
    n_samples
        Their number.

    Returns
    -------
    csr_array of shape (n_samples, n_nodes)
        int64.
    """
    shape = (n_samples, len(centers))
    total = sp.csr_array(shape, dtype=np.int64)
    size = max(1, PAIRS // int(np.diff(joined.indptr).max()))
    for part in (slice(first, first + size) for first in range(0, len(places), size)):
        rows = joined[places[part]]
        widths = np.diff(rows.indptr)
        squares = _squares(points[part], centers, np.repeat(np.arange(widths.size), widths), rows.indices)
        nearest = squares[rows.indices == np.repeat(places[part], widths)]
        weights = _weights(squares, np.repeat(nearest, widths))
        shares = weights / np.repeat(np.add.reduceat(weights, rows.indptr[:-1]), widths)
        entries = np.rint(shares / UNIT).astype(np.int64)
        total = total + sp.csr_array((entries, (np.repeat(codes[part], widths), rows.indices)), shape=shape)
    total.eliminate_zeros()
    return total


def _squares(
    points: FloatArray, centers: Float64, cells: npt.NDArray[np.integer], nodes: npt.NDArray[np.integer]
) -> Float64:
    """Return squared distances of pairs, one dimension after the other, so that they do not depend on other pairs."""
    total = np.zeros(cells.size)
    for column, center in zip(points.T, centers.T, strict=True):
        total += (column[cells].astype(np.float64) - center[nodes]) ** 2
    return total


def _weights(squares: Float64, nearest: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        weights = np.exp(1 - squares / nearest)
    return np.where(nearest > 0, weights, (squares == 0).astype(np.float64))
