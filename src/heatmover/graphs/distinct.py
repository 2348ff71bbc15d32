"""Merge equal points, add masses, order and hash nodes independently of input order; for all packages; arrays only."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import FloatArray, Intp

Real = TypeVar("Real", bound=np.floating[Any])
Points = npt.NDArray[Real]
UInt64 = npt.NDArray[np.uint64]

# Maximal number of rounds that distinguish nodes by their neighbors. With kernel weights one round usually suffices.
MOST_ROUNDS = 16


def distinct_points(points: Points[Real]) -> tuple[Points[Real], Intp]:
    """Return the distinct points, sorted by their coordinates, and the node of each row.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite.

    Returns
    -------
    nodes
        ``(n_nodes, n_dimensions)``, sorted by the first coordinate, ties by the second, and so on.
    place
        ``(n_points,)``: the node of each row.

    Examples
    --------
    >>> nodes, place = distinct_points(np.array([[2.0, 0.0], [1.0, 5.0], [2.0, 0.0]]))
    >>> nodes.tolist(), place.tolist()
    ([[1.0, 5.0], [2.0, 0.0]], [1, 0, 1])
    """
    order = _sorted(points)
    nodes = points[order]
    new = np.ones(len(points), dtype=bool)
    # Points usually differ in their first coordinate; only ties are compared in the others.
    same = np.flatnonzero(nodes[1:, 0] == nodes[:-1, 0])
    new[1 + same] = (nodes[1 + same] != nodes[same]).any(axis=1)
    place = np.empty(len(points), dtype=np.intp)
    place[order] = np.cumsum(new) - 1
    return (nodes if new.all() else nodes[new]), place


def _sorted(points: npt.NDArray[Any]) -> Intp:
    """Return the order that sorts rows by the first column, ties by the second, and so on."""
    order = np.argsort(points[:, 0], kind="stable")
    first = points[order, 0]
    tied = np.zeros(len(points) + 1, dtype=bool)
    tied[1:-1] = first[1:] == first[:-1]
    # A row is in a run of ties if its first coordinate equals the first coordinate of the row before or after it.
    runs = np.flatnonzero(tied[1:] | tied[:-1])
    if runs.size and points.shape[1] > 1:
        rows = order[runs]
        order[runs] = rows[np.lexsort(points[rows].T[::-1])]
    return order


def gather_masses(rows: Any, place: Intp, n_nodes: int) -> Any:
    """Add the masses of rows that share a node; the sums do not depend on the order of the rows.

    Parameters
    ----------
    rows
        ``(n_measures, n_points)``, dense or CSR.
    place
        ``(n_points,)``: the node of each row.
    n_nodes
        Number of nodes.

    Returns
    -------
    ndarray or csr_array
        ``(n_measures, n_nodes)``, dense or CSR like the input.

    Examples
    --------
    >>> gather_masses(np.array([[0.25, 0.5, 0.25]]), np.array([1, 0, 1]), 2)
    array([[0.5, 0.5]])
    """
    alone = place.size <= n_nodes and int(np.bincount(place, minlength=1).max()) == 1
    if not sp.issparse(rows):
        if alone:
            moved = np.zeros((len(rows), n_nodes), dtype=rows.dtype)
            moved[:, place] = rows
            return moved
        return gather_masses(sp.csr_array(rows), place, n_nodes).toarray()
    nodes = place.astype(rows.indices.dtype)[rows.indices]
    moved = sp.csr_array((rows.data, nodes, rows.indptr), shape=(rows.shape[0], n_nodes))
    # Two conversions sort the entries of every row by node and keep the order of entries at the same node. A sort of
    # all entries took twenty times as long.
    moved = moved.tocsc().tocsr()
    return moved if alone else _added(moved)


def _added(rows: sp.csr_array) -> sp.csr_array:
    """Add up entries of the same row and node, which are adjacent."""
    new = np.ones(rows.nnz, dtype=bool)
    new[1:] = rows.indices[1:] != rows.indices[:-1]
    new[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = True
    starts = np.flatnonzero(new)
    # Sort the masses of each node by value, because a floating-point sum depends on the order of its terms.
    shared = np.flatnonzero(~new | ~np.append(new[1:], True))
    data = rows.data.copy()
    data[shared] = data[shared[np.lexsort((data[shared], np.cumsum(new)[shared]))]]
    offsets = np.searchsorted(starts, rows.indptr)
    return sp.csr_array((_sums(data, starts), rows.indices[starts], offsets), shape=rows.shape)


def _sums(data: FloatArray, starts: Intp) -> FloatArray:
    """Return the sum of each run of sorted values; a run of equal values is multiplied, which rounds only once."""
    ends = np.append(starts, data.size)[1:]
    equal = data[starts] == data[ends - 1]
    return np.where(equal, data[starts] * (ends - starts), np.add.reduceat(data, starts))


def order_of_nodes(affinity: sp.csr_array) -> Intp:
    """Return an order of the nodes that depends only on their affinities, not on the input order.

    Nodes are distinguished by a hash of their affinities, then by the hashes of their neighbors, and so on (Weisfeiler
    and Leman 1968). Affinities are first rounded to float32, because a common factor changes the last digits of float64
    and should not change the order. Indistinguishable nodes, such as the nodes of a ring with equal weights, keep their
    input order.

    Parameters
    ----------
    affinity
        Symmetric CSR ``(n_nodes, n_nodes)`` with sorted indices; the largest affinity of each component is 1.

    Examples
    --------
    >>> path = np.array([[0, 1, 0], [1, 0, 2], [0, 2, 0]], dtype=float)
    >>> first, second = (order_of_nodes(sp.csr_array(path[which][:, which])) for which in ([0, 1, 2], [2, 0, 1]))
    >>> np.array_equal(first, np.array([2, 0, 1])[second])
    True
    """
    rounded = _hashes(affinity, np.float32)
    if np.unique(rounded).size == rounded.size:
        return np.argsort(rounded)
    return np.lexsort((_hashes(affinity, np.float64), rounded))


def _hashes(affinity: sp.csr_array, precision: npt.DTypeLike) -> UInt64:
    """Hash each node's affinities, rounded to a precision, together with the hashes of its neighbors."""
    bits, loops = (
        np.ascontiguousarray(values.astype(precision), dtype=np.float64).view(np.uint64)
        for values in (affinity.data, affinity.diagonal())
    )
    hashes, n_different = mixed(loops), 0
    for _ in range(MOST_ROUNDS):
        # Integer sums are the same in any order, even if they overflow.
        ends = np.r_[np.zeros(1, dtype=np.uint64), np.cumsum(mixed(bits ^ hashes[affinity.indices]))]
        hashes = mixed(hashes + (ends[affinity.indptr[1:]] - ends[affinity.indptr[:-1]]))
        n_before, n_different = n_different, np.unique(hashes).size
        if n_different in (n_before, hashes.size):
            break
    return hashes


def mixed(words: UInt64) -> UInt64:
    """Mix 64-bit words so that every output bit depends on all input bits (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
