"""Merge equal points, add their masses and order nodes, independently of the order of the rows."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import FloatArray, Intp

__all__ = ["distinct_points", "gather_masses", "mixed", "order_of_nodes"]

Real = TypeVar("Real", bound=np.floating[Any])
Points = npt.NDArray[Real]
UInt64 = npt.NDArray[np.uint64]

# How often nodes are told apart by their neighbours. Weights of a kernel differ from node to node at the first look.
MOST_LOOKS = 16
# Masses put in order at a time, so that they stay in the cache: 12 million took 0.2 s, all at once 0.7 s.
AT_ONCE = 2**18


def distinct_points(points: Points[Real]) -> tuple[Points[Real], Intp]:
    """Return the different points, sorted by their coordinates, and where each row is among them.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite.

    Returns
    -------
    nodes
        ``(n_nodes, n_dimensions)``: sorted by the first coordinate, equal ones by the second, and so on.
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
    # Points without ties in their first coordinate, the usual case, are compared in no other.
    same = np.flatnonzero(nodes[1:, 0] == nodes[:-1, 0])
    new[1 + same] = (nodes[1 + same] != nodes[same]).any(axis=1)
    place = np.empty(len(points), dtype=np.intp)
    place[order] = np.cumsum(new) - 1
    return (nodes if new.all() else nodes[new]), place


def _sorted(points: npt.NDArray[Any]) -> Intp:
    """Return the order of rows by their coordinates, the first column first."""
    order = np.argsort(points[:, 0], kind="stable")
    first = points[order, 0]
    tied = np.zeros(len(points) + 1, dtype=bool)
    tied[1:-1] = first[1:] == first[:-1]
    # A row is in a run of ties if it equals the one before it or the one after.
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
        ``(n_measures, n_nodes)``, dense or CSR as it came.

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
    moved = _in_order(moved)
    return moved if alone else _added(moved)


def _in_order(rows: sp.csr_array) -> sp.csr_array:
    """Put the entries of every row in the order of their nodes; those of one node keep theirs."""
    indices, data = np.empty_like(rows.indices), np.empty_like(rows.data)
    n_entries = max(AT_ONCE, 8 * rows.shape[1])
    step = max(1, n_entries * rows.shape[0] // max(rows.nnz, 1))
    for start in range(0, rows.shape[0], step):
        offsets = rows.indptr[start : start + step + 1]
        part = slice(offsets[0], offsets[-1])
        shape = (offsets.size - 1, rows.shape[1])
        # There and back: two passes, where a sort of all entries took twenty times as long.
        block = sp.csr_array((rows.data[part], rows.indices[part], offsets - offsets[0]), shape=shape).tocsc().tocsr()
        indices[part], data[part] = block.indices, block.data
    return sp.csr_array((data, indices, rows.indptr), shape=rows.shape)


def _added(rows: sp.csr_array) -> sp.csr_array:
    """Add entries of the same row and node, which follow each other."""
    new = np.ones(rows.nnz, dtype=bool)
    new[1:] = rows.indices[1:] != rows.indices[:-1]
    new[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = True
    starts = np.flatnonzero(new)
    # By value within a node: a sum of floats depends on its order.
    shared = np.flatnonzero(~new | ~np.append(new[1:], True))
    data = rows.data.copy()
    data[shared] = data[shared[np.lexsort((data[shared], np.cumsum(new)[shared]))]]
    offsets = np.searchsorted(starts, rows.indptr)
    return sp.csr_array((_sums(data, starts), rows.indices[starts], offsets), shape=rows.shape)


def _sums(data: FloatArray, starts: Intp) -> FloatArray:
    """Return the sum of every run of sorted values; equal ones are multiplied, which rounds once."""
    ends = np.append(starts, data.size)[1:]
    equal = data[starts] == data[ends - 1]
    return np.where(equal, data[starts] * (ends - starts), np.add.reduceat(data, starts))


def order_of_nodes(affinity: sp.csr_array) -> Intp:
    """Return an order of the nodes that only their affinities decide, not the order in which they came.

    Nodes are told apart by a hash of their affinities, then by those of their neighbours, and so on (Weisfeiler and
    Leman 1968): rounded to float32 first, so that a common factor, which rounds each affinity anew, hardly ever changes
    the order. Only nodes between which this sees no difference, such as those of a ring with equal weights, keep the
    order in which they came.

    Parameters
    ----------
    affinity
        Symmetric CSR ``(n_nodes, n_nodes)``, indices sorted; the largest of each component is 1.

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
    """Return a number for each node that its affinities and those around it decide, rounded to a precision."""
    bits, loops = (
        np.ascontiguousarray(values.astype(precision), dtype=np.float64).view(np.uint64)
        for values in (affinity.data, affinity.diagonal())
    )
    hashes, n_different = mixed(loops), 0
    for _ in range(MOST_LOOKS):
        # Sums of whole numbers, which overflow the same way in any order.
        ends = np.r_[np.zeros(1, dtype=np.uint64), np.cumsum(mixed(bits ^ hashes[affinity.indices]))]
        hashes = mixed(hashes + (ends[affinity.indptr[1:]] - ends[affinity.indptr[:-1]]))
        n_before, n_different = n_different, np.unique(hashes).size
        if n_different in (n_before, hashes.size):
            break
    return hashes


def mixed(words: UInt64) -> UInt64:
    """Return words whose every bit depends on all of the given one's (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        words = words + np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
