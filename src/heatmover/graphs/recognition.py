"""Recognise distances that were given as affinities, by how small and large values lie together.

In an affinity strong ties are transitive: of three points, two strong ties make the third strong. In a distance small
values are: the triangle inequality. Values in no order at all are neither. So a matrix is taken for distances if it
keeps the triangle inequality where the same values in another order would break it many times, or if it is of negative
type, as distances in Euclidean space, sums of absolute differences and cosine distances are. Where few pairs have a
value, points that share neighbours have the large affinities, but the small distances.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64, Intp

__all__ = ["looks_like_distances"]

Verdict = Literal["no", "probably", "surely"]

# Points looked at, of a full matrix and of one with few entries, and neighbours of each.
FULL_SAMPLE, SPARSE_SAMPLE, NEIGHBORS = 300, 200, 40
# Points whose triangles are all looked at.
CORNERS = 120
# A matrix counts as full with this share of its pairs; equal points have a distance of zero.
FULL = 0.9
# Fewer points say nothing, and with fewer than FEWEST_SPARSE chance may decide what neighbours share.
FEWEST, FEWEST_SPARSE = 8, 50
# Triangles that the values in random order break, at the least, for the triangle inequality to say something.
BROKEN = 12
# What distances may be off: rounding, of the largest, as of numbers printed with two decimals, and of each in float32.
PRINTED, ROUNDING = 1e-2, 1e-5
# Most negative eigenvalue that this leaves of a distance of negative type, of the largest.
NEGATIVE = 1e-2
# Largest eigenvalue over the most negative one, once all that each point has by itself is taken out: sums of that are
# metrics too, and a walk of four steps in 50 dimensions is like one. 420 full affinities of 12 to 400 points had 1.2 at
# most, distances between more points than dimensions 1.5 and more.
DISTANT = 1.5
# Correlation between a value and the share of common neighbours. Distances to 6 or 15 nearest neighbours in 1 to 50
# dimensions had -0.3 to -0.9, affinities of the same points (Gaussian, UMAP, shared neighbours) 0 or more, random
# weights -0.26 or more; affinities over the roots of their sums down to -0.57, but these break triangles.
FEWER_SHARED = -0.3


def looks_like_distances(matrix: sp.csr_array) -> Verdict:
    """Return whether a matrix that should hold affinities holds distances.

    Parameters
    ----------
    matrix
        ``(n_points, n_points)``, symmetric and non-negative, without explicit zeros.

    Examples
    --------
    >>> points = np.random.default_rng(0).normal(size=(40, 3))
    >>> distances = np.linalg.norm(points[:, None] - points, axis=2)
    >>> looks_like_distances(sp.csr_array(distances)), looks_like_distances(sp.csr_array(np.exp(-distances)))
    ('surely', 'no')
    """
    n_points = matrix.shape[0]
    # The one thing that all distances have in common is zero from a point to itself.
    if n_points < FEWEST or matrix.nnz == 0 or matrix.diagonal().any():
        return "no"
    if matrix.data.max() <= matrix.data.min() * (1 + ROUNDING):
        return "no"
    rng = np.random.default_rng(0)
    if matrix.nnz >= FULL * n_points * (n_points - 1):
        return _judge_full(matrix, rng)
    return _judge_sparse(matrix, rng)


def _judge_full(matrix: sp.csr_array, rng: np.random.Generator) -> Verdict:
    chosen = rng.choice(matrix.shape[0], min(FULL_SAMPLE, matrix.shape[0]), replace=False)
    dense = np.asarray(matrix[chosen][:, chosen].toarray(), dtype=np.float64)
    dense /= dense.max()
    if not _far_from_each_other(dense):
        return "no"
    triangles = _all_triangles(dense[:CORNERS, :CORNERS])
    return "surely" if _of_negative_type(dense) or _keeps_triangles(*triangles, rng) else "no"


def _far_from_each_other(dense: Float64) -> bool:
    """Return whether points lie apart along a few directions, beside what each has by itself."""
    n_points = len(dense)
    if n_points < 4:
        return False
    # The least squares fit of u_i + u_j to the pairs, which then stands on the diagonal too.
    sums = dense.sum(axis=1)
    own = (sums - sums.sum() / (2 * (n_points - 1))) / (n_points - 2)
    values = _eigenvalues(dense + np.diag(2 * own))
    return bool(values[-1] > max(-DISTANT * values[0], ROUNDING))


def _of_negative_type(dense: Float64) -> bool:
    values = _eigenvalues(dense)
    return bool(values[0] >= -NEGATIVE * values[-1])


def _eigenvalues(dense: Float64) -> Float64:
    """Return those of -J D J, J being the projection beside the constants: none is negative for Euclidean distances."""
    centered = dense - dense.mean(axis=0)
    return np.linalg.eigvalsh(-(centered - centered.mean(axis=1, keepdims=True)))


def _all_triangles(dense: Float64) -> tuple[Float64, Intp]:
    """Return the values of all pairs, and the three pairs of each triangle, ``(n_triangles, 3)``."""
    n_points = len(dense)
    place = np.zeros(dense.shape, dtype=np.intp)
    rows, columns = np.triu_indices(n_points, 1)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    i, j, k = np.nonzero(np.fromfunction(lambda a, b, c: (a < b) & (b < c), (n_points,) * 3, dtype=np.int16))
    return dense[rows, columns], np.stack([place[i, j], place[j, k], place[i, k]], axis=1)


def _keeps_triangles(values: Float64, triangles: Intp, rng: np.random.Generator) -> bool:
    """Return whether no triangle is broken that the same values in another order would break."""
    return not _broken(values, triangles) and _broken(rng.permutation(values), triangles) >= BROKEN


def _broken(values: Float64, triangles: Intp) -> int:
    sides = values[triangles]
    largest = sides.max(axis=1, initial=0.0)
    return int((largest > (sides.sum(axis=1) - largest) * (1 + ROUNDING) + PRINTED * values.max()).sum())


def _judge_sparse(matrix: sp.csr_array, rng: np.random.Generator) -> Verdict:
    centers = rng.choice(matrix.shape[0], min(SPARSE_SAMPLE, matrix.shape[0]), replace=False)
    around = [rng.permutation(np.arange(matrix.indptr[i], matrix.indptr[i + 1]))[:NEIGHBORS] for i in centers]
    if _shared_neighbors(matrix, centers, around) > FEWER_SHARED:
        return "no"
    triangles = _triangles(matrix, around)
    if _broken(matrix.data, triangles):
        return "no"
    if _keeps_triangles(matrix.data, triangles, rng):
        return "surely"
    return "probably" if matrix.shape[0] >= FEWEST_SPARSE else "no"


def _triangles(matrix: sp.csr_array, around: list[Intp]) -> Intp:
    """Return the places of the three sides of triangles, two of which are among those around a point."""
    places = sp.csr_array((np.arange(1, matrix.nnz + 1), matrix.indices, matrix.indptr), shape=matrix.shape)
    triples = [np.empty((0, 3), dtype=np.intp)]
    for own in around:
        near = matrix.indices[own]
        among = sp.coo_array(sp.triu(places[near][:, near], 1))
        triples.append(np.stack([own[among.coords[0]], own[among.coords[1]], among.data - 1], axis=1))
    return np.concatenate(triples)


def _shared_neighbors(matrix: sp.csr_array, centers: Intp, around: list[Intp]) -> float:
    """Return the rank correlation, within points, between values and how many neighbours two points have in common."""
    from scipy.stats import rankdata  # takes a third of a second to import

    joined = sp.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
    degree = np.diff(matrix.indptr)
    product, squares = 0.0, np.zeros(2)
    for center, own in zip(centers, around, strict=True):
        near = matrix.indices[own]
        common = np.asarray((joined[near] @ joined[[center]].T).toarray()).ravel()
        shares = common / (degree[near] + degree[center] - common) if near.size else common
        both = np.stack([rankdata(shares), rankdata(matrix.data[own])])
        both -= (near.size + 1) / 2
        product += float(both[0] @ both[1])
        squares += (both**2).sum(axis=1)
    return float(product / np.sqrt(squares.prod())) if squares.all() else 0.0
