"""Neighbours from distances that somebody else has computed: of all pairs, or to the nearest of each point."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import check_finite, check_integer, check_matrix, check_real, check_sparse
from heatmover._base.words import counted, verb
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs.neighbors import Neighbors, Search, middle_of_rows
from heatmover.graphs.partition import TIE

__all__ = ["given_neighbors"]

# Neighbours of each point among distances of all pairs, as many as among points.
NEIGHBORS = 30
# Distances of a block that are looked at together, 64 MB.
AT_ONCE = 2**23


def given_neighbors(distances: Any, n_neighbors: int | None) -> tuple[Neighbors, Intp]:
    """Return the neighbours of every node, and the node of each point: points at a distance of zero are one node.

    Parameters
    ----------
    distances
        ``(n_points, n_points)``: dense, or sparse with what is not stored being far.
    n_neighbors
        How many of them; None for 30 of all, or for all that are stored.
    """
    sparse = sp.issparse(distances)
    matrix = _check_stored(distances) if sparse else _check_full(distances)
    zero = _zeros(matrix)
    n_nodes, place = sp.csgraph.connected_components(zero, directed=False)
    place = _in_order_of_points(place, n_nodes)
    if n_neighbors is not None:
        _check_count(n_neighbors, matrix.shape[0])
    if sparse:
        nearest, middle = _of_stored(_between_nodes(matrix, place, n_nodes), n_neighbors)
    else:
        first = np.unique(place, return_index=True)[1]
        nodes = matrix if n_nodes == len(matrix) else matrix[np.ix_(first, first)]
        nearest, middle = _of_full(nodes, min(n_neighbors or NEIGHBORS, n_nodes - 1))
    return Neighbors(nearest, middle, Search("given", 1.0, "distances were given")), place


def _check_full(distances: Any) -> Float64:
    matrix = np.asarray(check_matrix("distances", distances), dtype=np.float64)
    _check_square(matrix.shape)
    _check_range(matrix, np.diagonal(matrix))
    scale = matrix.max()
    rounding = max(1e-10, 100 * _epsilon(distances))
    off = np.abs(matrix - matrix.T)
    if off.max() > rounding * scale:
        _refuse_asymmetry(float(off.max()))
    return matrix


def _check_stored(distances: Any) -> sp.coo_array:
    """Return distances with explicit zeros, but without those of points to themselves."""
    check_sparse("distances", distances)
    _check_square(distances.shape)
    entries = sp.coo_array(distances)
    values = entries.data.astype(check_real("distances", entries.dtype))
    rows, columns = (part.astype(np.int64) for part in entries.coords)
    check_finite("distances", sp.csr_array(distances))
    _check_range(values, values[rows == columns])
    keys = rows * entries.shape[0] + columns
    order = np.argsort(keys, kind="stable")
    order = order[(rows != columns)[order]]
    rows, columns, values, keys = rows[order], columns[order], values[order], keys[order]
    if (np.diff(keys) == 0).any():
        twice = int((np.diff(keys) == 0).sum())
        raise InvalidInputError(
            "every pair of points once", f"{counted(twice, 'pair')} that {verb(twice, 'is', 'are')} stored twice"
        )
    mirrored = columns * entries.shape[0] + rows
    at = np.minimum(np.searchsorted(keys, mirrored), max(keys.size - 1, 0))
    both = keys[at] == mirrored if keys.size else np.zeros(0, dtype=bool)
    off = np.abs(values - values[at])[both] if keys.size else np.zeros(0)
    if off.size and off.max() > max(1e-10, 100 * _epsilon(distances)) * values.max():
        _refuse_asymmetry(float(off.max()))
    return sp.coo_array((values, (rows, columns)), shape=entries.shape)


def _epsilon(distances: Any) -> float:
    dtype = np.dtype(getattr(distances, "dtype", np.float64))
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise InvalidInputError("a square matrix of distances (n_points, n_points)", f"shape {shape}")


def _check_range(values: Float64, diagonal: Float64) -> None:
    if values.size and values.min() < 0:
        raise InvalidInputError("non-negative distances", f"a smallest of {values.min():g}")
    if values.size and values.max() > 1e150:  # its square must stay in the range of a float
        raise InvalidInputError("distances below 1e150", f"a largest of {values.max():g}", "rescale them")
    if diagonal.any():
        raise InvalidInputError(
            "distances, which are zero from a point to itself",
            f"up to {np.abs(diagonal).max():g} on the diagonal",
            "use Graph.from_affinity for affinities",
        )


def _refuse_asymmetry(off: float) -> None:
    raise InvalidInputError(
        "a symmetric distance",
        f"entries that differ from their mirror image by up to {off:g}",
        "of neighbours leave out one of both; of all pairs use (D + D.T) / 2 if that is what you mean",
    )


def _check_count(n_neighbors: object, n_points: int) -> None:
    count = check_integer("n_neighbors", n_neighbors, minimum=1)
    if count >= n_points:
        raise InvalidInputError(
            f"more points than {argument('n_neighbors', count)}", f"{counted(n_points, 'point')}", "use fewer"
        )


def _zeros(matrix: Any) -> sp.coo_array:
    """Return the pairs at a distance of zero."""
    if sp.issparse(matrix):
        equal = matrix.data == 0
        rows, columns = (part[equal] for part in matrix.coords)
    else:
        rows, columns = np.nonzero(matrix == 0)
    return sp.coo_array((np.ones(rows.size), (rows, columns)), shape=matrix.shape)


def _in_order_of_points(place: Any, n_nodes: int) -> Intp:
    """Return the node of each point, nodes in the order of their first points."""
    first = np.full(n_nodes, len(place))
    np.minimum.at(first, place, np.arange(len(place)))
    rank = np.empty(n_nodes, dtype=np.intp)
    rank[np.argsort(first)] = np.arange(n_nodes)
    return np.asarray(rank[place])


def _between_nodes(matrix: sp.coo_array, place: Intp, n_nodes: int) -> sp.csr_array:
    """Return the smallest stored distance between every two nodes, each row ascending."""
    rows, columns = (place[part] for part in matrix.coords)
    order = np.lexsort((matrix.data, columns, rows))
    order = order[(rows != columns)[order]]
    rows, columns, values = rows[order], columns[order], matrix.data[order]
    new = np.ones(rows.size, dtype=bool)
    new[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    rows, columns, values = rows[new], columns[new], values[new]
    order = np.lexsort((columns, values, rows))
    offsets = np.r_[0, np.cumsum(np.bincount(rows, minlength=n_nodes))]
    return sp.csr_array((values[order], columns[order], offsets), shape=(n_nodes, n_nodes))


def _of_stored(matrix: sp.csr_array, n_neighbors: int | None) -> tuple[sp.csr_array, Float64]:
    counts: Int64 = np.diff(matrix.indptr).astype(np.int64)
    if n_neighbors is None:
        return matrix, middle_of_rows(matrix, counts)
    few = np.flatnonzero(counts < n_neighbors)
    if few.size:
        raise InvalidInputError(
            f"at least {counted(n_neighbors, 'stored distance')} of every point ({argument('n_neighbors')})",
            f"{counted(few.size, 'point')} with fewer (the fewest: {int(counts.min())})",
            f"lower {argument('n_neighbors')}, or leave it out to use all that are stored",
        )
    last = matrix.data[matrix.indptr[:-1] + n_neighbors - 1]
    row = np.repeat(np.arange(counts.size), counts)
    kept = matrix.data <= last[row] * (1 + TIE)
    offsets = np.r_[0, np.cumsum(np.bincount(row[kept], minlength=counts.size))]
    middle = middle_of_rows(matrix, np.full(counts.size, n_neighbors))
    return sp.csr_array((matrix.data[kept], matrix.indices[kept], offsets), shape=matrix.shape), middle


def _of_full(matrix: Float64, k: int) -> tuple[sp.csr_array, Float64]:
    """Return the k nearest others of every point and all that are as far as the last of them, each row ascending."""
    n_points = len(matrix)
    if k == 0:
        return sp.csr_array(matrix.shape), np.zeros(n_points)
    rows, columns, values = [], [], []
    for start in range(0, n_points, max(1, AT_ONCE // n_points)):
        block = matrix[start : start + max(1, AT_ONCE // n_points)].copy()
        own = np.arange(len(block))
        block[own, start + own] = np.inf
        last = np.partition(block, k - 1, axis=1)[:, k - 1 : k]
        row, column = np.nonzero(block <= last * (1 + TIE))
        rows.append(row + start)
        columns.append(column)
        values.append(block[row, column])
    row, column, value = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
    order = np.lexsort((column, value, row))
    offsets = np.r_[0, np.cumsum(np.bincount(row, minlength=n_points))]
    nearest = sp.csr_array((value[order], column[order], offsets), shape=matrix.shape)
    return nearest, middle_of_rows(nearest, np.full(n_points, k))
