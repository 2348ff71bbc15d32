"""Check affinities and distances that users pass to `Graph`, turn them into neighbors; only `graphs.graph` calls it.

`looks_like_distances` decides from the pattern of small and large values. In an affinity matrix large values are
transitive: if two of the three pairs of a triangle have large values, the third pair has a large value too. In a
distance matrix small values are transitive, by the triangle inequality. Random values have neither property. A matrix
is therefore treated as distances if its values satisfy the triangle inequality and a random permutation of these values
violates the inequality many times. A matrix of negative type, such as a matrix of Euclidean, L1 or cosine distances, is
treated as distances too. In a sparse matrix, points that share neighbors have large affinities, but small distances.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import check_finite, check_integer, check_matrix, check_real, check_sparse
from heatmover._base.words import counted, verb
from heatmover.errors import GraphWarning, InvalidInputError, argument
from heatmover.graphs.kernels import TIE, Neighbors, Search, middle_of_rows

# Advice to users who pass distances as affinities.
AFFINITY_OF_DISTANCES = "use Graph.from_distances(distances), or Graph.from_points(points) on the points themselves"

Verdict = Literal["no", "probably", "certainly"]

# Number of points examined in a full matrix; numbers of points, and of neighbors per point, examined in a sparse
# matrix.
FULL_SAMPLE, SPARSE_SAMPLE, AROUND = 300, 200, 40
# Number of points among which all triangles are examined.
CORNERS = 120
# A matrix counts as full if it stores this share of all pairs. Distances between equal points are zero and not stored.
FULL = 0.9
# Fewer points than FEWEST give no evidence. Below FEWEST_SPARSE points, shared neighbors may be due to chance.
FEWEST, FEWEST_SPARSE = 8, 50
# The triangle inequality is evidence only if the same values in random order violate it in at least this many
# triangles.
BROKEN = 12
# Tolerated errors of distances: PRINTED relative to the largest distance, as in numbers printed with two decimals, and
# ROUNDING relative to each distance, as in float32.
PRINTED, ROUNDING = 1e-2, 1e-5
# Largest absolute ratio of the most negative to the largest eigenvalue that these errors may cause in distances of
# negative type.
NEGATIVE = 1e-2
# Smallest absolute ratio of the largest to the most negative eigenvalue of distances, after removing point effects u_i
# + u_j. Sums of point effects are metrics too, and affinities from a random walk of four steps in 50 dimensions
# resemble such sums. 420 full affinity matrices of 12 to 400 points had ratios of at most 1.2. Distances between more
# points than dimensions had ratios of at least 1.5.
DISTANT = 1.5
# Sparse values count as distances only if the rank correlation between the value of a pair and the pair's share of
# common neighbors is at most this. The correlation was between -0.3 and -0.9 for distances to 6 or 15 nearest neighbors
# in 1 to 50 dimensions, at least 0 for affinities of the same points (Gaussian, UMAP, shared neighbors), and at least
# -0.26 for random weights. Affinities divided by the square roots of their row and column sums had correlations down to
# -0.57, but these affinities violate the triangle inequality.
FEWER_SHARED = -0.3


def looks_like_distances(matrix: sp.csr_array) -> Verdict:
    """Decide whether a matrix that should hold affinities holds distances.

    Parameters
    ----------
    matrix
        ``(n_points, n_points)``, symmetric and non-negative, without explicit zeros.

    Examples
    --------
    >>> points = np.random.default_rng(0).normal(size=(40, 3))
    >>> distances = np.linalg.norm(points[:, None] - points, axis=2)
    >>> looks_like_distances(sp.csr_array(distances)), looks_like_distances(sp.csr_array(np.exp(-distances)))
    ('certainly', 'no')
    """
    n_points = matrix.shape[0]
    # The distance from a point to itself is zero.
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
    return "certainly" if _of_negative_type(dense) or _keeps_triangles(*triangles, rng) else "no"


def _far_from_each_other(dense: Float64) -> bool:
    """Return whether positive eigenvalues dominate without point effects, as in distances in few dimensions."""
    n_points = len(dense)
    if n_points < 4:
        return False
    # Fit u_i + u_j to all pairs by least squares. The diagonal contains no pairs, so it is set to 2 u_i.
    sums = dense.sum(axis=1)
    own = (sums - sums.sum() / (2 * (n_points - 1))) / (n_points - 2)
    values = _eigenvalues(dense + np.diag(2 * own))
    return bool(values[-1] > max(-DISTANT * values[0], ROUNDING))


def _of_negative_type(dense: Float64) -> bool:
    values = _eigenvalues(dense)
    return bool(values[0] >= -NEGATIVE * values[-1])


def _eigenvalues(dense: Float64) -> Float64:
    """Return the eigenvalues of -J D J, where J removes constants; for Euclidean distances none is negative."""
    centered = dense - dense.mean(axis=0)
    return np.linalg.eigvalsh(-(centered - centered.mean(axis=1, keepdims=True)))


def _all_triangles(dense: Float64) -> tuple[Float64, Intp]:
    """Return the values of all pairs, and each triangle's sides as positions of pairs, ``(n_triangles, 3)``."""
    n_points = len(dense)
    place = np.zeros(dense.shape, dtype=np.intp)
    rows, columns = np.triu_indices(n_points, 1)
    place[rows, columns] = place[columns, rows] = np.arange(rows.size)
    i, j, k = np.nonzero(np.fromfunction(lambda a, b, c: (a < b) & (b < c), (n_points,) * 3, dtype=np.int16))
    return dense[rows, columns], np.stack([place[i, j], place[j, k], place[i, k]], axis=1)


def _keeps_triangles(values: Float64, triangles: Intp, rng: np.random.Generator) -> bool:
    """Return whether the values satisfy triangle inequalities that a random permutation of the values violates."""
    return not _broken(values, triangles) and _broken(rng.permutation(values), triangles) >= BROKEN


def _broken(values: Float64, triangles: Intp) -> int:
    sides = values[triangles]
    largest = sides.max(axis=1, initial=0.0)
    return int((largest > (sides.sum(axis=1) - largest) * (1 + ROUNDING) + PRINTED * values.max()).sum())


def _judge_sparse(matrix: sp.csr_array, rng: np.random.Generator) -> Verdict:
    centers = rng.choice(matrix.shape[0], min(SPARSE_SAMPLE, matrix.shape[0]), replace=False)
    around = [rng.permutation(np.arange(matrix.indptr[i], matrix.indptr[i + 1]))[:AROUND] for i in centers]
    if _shared_neighbors(matrix, centers, around) > FEWER_SHARED:
        return "no"
    triangles = _triangles(matrix, around)
    if _broken(matrix.data, triangles):
        return "no"
    if _keeps_triangles(matrix.data, triangles, rng):
        return "certainly"
    return "probably" if matrix.shape[0] >= FEWEST_SPARSE else "no"


def _triangles(matrix: sp.csr_array, around: list[Intp]) -> Intp:
    """Return the positions in ``matrix.data`` of the sides of triangles that have a corner at a sampled point."""
    places = sp.csr_array((np.arange(1, matrix.nnz + 1), matrix.indices, matrix.indptr), shape=matrix.shape)
    triples = [np.empty((0, 3), dtype=np.intp)]
    for own in around:
        near = matrix.indices[own]
        among = sp.coo_array(sp.triu(places[near][:, near], 1))
        triples.append(np.stack([own[among.coords[0]], own[among.coords[1]], among.data - 1], axis=1))
    return np.concatenate(triples)


def _shared_neighbors(matrix: sp.csr_array, centers: Intp, around: list[Intp]) -> float:
    """Return the rank correlation, within each point, between values of pairs and their shares of common neighbors."""
    from scipy.stats import rankdata  # the import takes a third of a second

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


# Default number of neighbors for full matrices, the same as in `Graph.from_points`.
NEIGHBORS = 30
# Number of distances per block, 64 MB.
AT_ONCE = 2**23


def given_neighbors(distances: Any, n_neighbors: int | None) -> tuple[Neighbors, Intp]:
    """Return the neighbors of every node, and the node of each point; points at distance zero share one node.

    Parameters
    ----------
    distances
        ``(n_points, n_points)``, dense or sparse; pairs that a sparse matrix does not store are not neighbors.
    n_neighbors
        Number of neighbors. None: 30 for a dense matrix, and all stored neighbors for a sparse matrix.
    """
    sparse = sp.issparse(distances)
    matrix = _check_stored(distances) if sparse else _check_full(distances)
    zero = _zeros(matrix)
    n_nodes, place = sp.csgraph.connected_components(zero, directed=False)
    place = _in_order_of_points(place, n_nodes)
    if n_neighbors is not None:
        check_count(n_neighbors, matrix.shape[0])
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
        _reject_asymmetry(float(off.max()))
    return matrix


def _check_stored(distances: Any) -> sp.coo_array:
    """Return valid sparse distances with their stored zeros, without the diagonal."""
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
        _reject_asymmetry(float(off.max()))
    return sp.coo_array((values, (rows, columns)), shape=entries.shape)


def _epsilon(distances: Any) -> float:
    dtype = np.dtype(getattr(distances, "dtype", np.float64))
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise InvalidInputError("a square matrix of distances (n_points, n_points)", f"shape {shape}")


def _check_range(values: Float64, diagonal: Float64) -> None:
    if values.size and values.min() < 0:
        raise InvalidInputError("non-negative distances", f"a smallest value of {values.min():g}")
    if values.size and values.max() > 1e150:  # the square must stay in the range of a float
        raise InvalidInputError("distances below 1e150", f"a largest value of {values.max():g}", "rescale them")
    if diagonal.any():
        raise InvalidInputError(
            "distances, which are zero from a point to itself",
            f"values up to {np.abs(diagonal).max():g} on the diagonal",
            "use Graph.from_affinity for affinities",
        )


def _reject_asymmetry(off: float) -> None:
    raise InvalidInputError(
        "a symmetric distance",
        f"entries that differ from their mirror image by up to {off:g}",
        "for a neighbor graph, store each pair once; for a full matrix, use (D + D.T) / 2 if appropriate",
    )


def check_count(n_neighbors: object, n_points: int) -> int:
    """Return the number of neighbors if it is valid for this number of points, or raise an error."""
    count = check_integer("n_neighbors", n_neighbors, minimum=1)
    if count >= n_points:
        raise InvalidInputError(
            f"more points than {argument('n_neighbors', count)}",
            counted(n_points, "point"),
            f"use {argument('n_neighbors')} of at most {n_points - 1}" if n_points > 1 else "give at least two points",
        )
    return count


def _zeros(matrix: Any) -> sp.coo_array:
    """Return the pairs of points at distance zero."""
    if sp.issparse(matrix):
        equal = matrix.data == 0
        rows, columns = (part[equal] for part in matrix.coords)
    else:
        rows, columns = np.nonzero(matrix == 0)
    return sp.coo_array((np.ones(rows.size), (rows, columns)), shape=matrix.shape)


def _in_order_of_points(place: Any, n_nodes: int) -> Intp:
    """Renumber nodes in the order of their first points and return the node of each point."""
    first = np.full(n_nodes, len(place))
    np.minimum.at(first, place, np.arange(len(place)))
    rank = np.empty(n_nodes, dtype=np.intp)
    rank[np.argsort(first)] = np.arange(n_nodes)
    return np.asarray(rank[place])


def _between_nodes(matrix: sp.coo_array, place: Intp, n_nodes: int) -> sp.csr_array:
    """Return the smallest stored distance between any two nodes, each row in ascending order."""
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
            f"at least {counted(n_neighbors, 'stored distance')} for every point ({argument('n_neighbors')})",
            f"{counted(few.size, 'point')} with fewer (the fewest: {int(counts.min())})",
            f"lower {argument('n_neighbors')}, or omit it to use all stored distances",
        )
    last = matrix.data[matrix.indptr[:-1] + n_neighbors - 1]
    row = np.repeat(np.arange(counts.size), counts)
    kept = matrix.data <= last[row] * (1 + TIE)
    offsets = np.r_[0, np.cumsum(np.bincount(row[kept], minlength=counts.size))]
    middle = middle_of_rows(matrix, np.full(counts.size, n_neighbors))
    return sp.csr_array((matrix.data[kept], matrix.indices[kept], offsets), shape=matrix.shape), middle


def _of_full(matrix: Float64, k: int) -> tuple[sp.csr_array, Float64]:
    """Return the k nearest neighbors of each point and all points tied with the last, each row in ascending order."""
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


def check_affinity(affinity: Any) -> sp.csr_array:
    """Return a copy of an affinity matrix as symmetric CSR in float64, or raise an error if the matrix is invalid."""
    if not sp.issparse(affinity):
        affinity = check_matrix("affinity", affinity, finite=False)
    check_sparse("affinity", affinity)
    if affinity.ndim != 2 or affinity.shape[0] != affinity.shape[1]:
        raise InvalidInputError("a square affinity (n_points, n_points)", f"shape {affinity.shape}")
    if affinity.shape[0] == 0:
        raise InvalidInputError("an affinity of at least one point", "shape (0, 0)")
    matrix = sp.csr_array(affinity, dtype=check_real("affinity", affinity.dtype), copy=True)
    matrix.sum_duplicates()
    check_finite("affinity", matrix)
    if matrix.nnz and matrix.data.min() < 0:
        raise InvalidInputError("a non-negative affinity", f"a smallest value of {matrix.data.min():g}")
    if matrix.nnz and matrix.data.max() > 1e300 / affinity.shape[0]:
        raise InvalidInputError("an affinity with finite sums", f"values up to {matrix.data.max():g}", "rescale it")
    matrix = _check_symmetry(matrix, affinity.dtype)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    _check_faintest(matrix)
    _check_kind(matrix)
    return matrix


def _check_kind(matrix: sp.csr_array) -> None:
    """Raise an error if a symmetric matrix certainly contains distances, and warn if it probably does."""
    verdict = looks_like_distances(matrix)
    if verdict == "certainly":
        raise InvalidInputError(
            "affinities, which are large between nearby points",
            "values that must be distances: zero on the diagonal, and small between points that are near a third point",
            AFFINITY_OF_DISTANCES,
        )
    if verdict == "probably":
        warnings.warn(
            "Expected affinities, which are large between nearby points, found values that are small between points "
            f"with common neighbors, as distances are; if the values are distances, {AFFINITY_OF_DISTANCES}.",
            GraphWarning,
            stacklevel=4,
        )


def _check_faintest(matrix: sp.csr_array) -> None:
    """Raise an error if even the largest affinity of a point is too small for full precision."""
    largest = matrix.max(axis=1).toarray().ravel()
    faint = np.flatnonzero((largest > 0) & (largest < np.finfo(np.float64).tiny))
    if faint.size:
        raise InvalidInputError(
            "affinities that float64 holds at full precision",
            f"{counted(faint.size, 'point')} whose largest affinity is below 2.2e-308 (first: point {faint[0]})",
            "multiply all affinities by one large constant, which does not change any result",
        )


def _without_zeros(matrix: Any) -> sp.csr_array:
    result = sp.csr_array(matrix)
    result.eliminate_zeros()
    return result


def _check_symmetry(matrix: sp.csr_array, precision: np.dtype[Any]) -> sp.csr_array:
    """Return the mean of a matrix and its transpose, or raise an error if they differ by more than rounding errors."""
    difference = sp.coo_array(abs(matrix - matrix.T))
    if difference.nnz == 0:
        return matrix
    # Differences are judged relative to the largest entries of both rows, so that asymmetry among tiny affinities is
    # detected too.
    scale = np.sqrt(matrix.max(axis=1).toarray().ravel())
    rounding = max(1e-10, 100 * np.finfo(precision).eps if precision.kind == "f" else 0)
    rows, columns = difference.coords
    if (difference.data > rounding * scale[rows] * scale[columns]).any():
        # Stored distances to nearest neighbors are asymmetric too, and averaging them would not make an affinity.
        _check_kind(_without_zeros(matrix.maximum(matrix.T)))
        raise InvalidInputError(
            "a symmetric affinity",
            f"entries that differ from their mirror image by up to {difference.data.max():g}",
            "use (A + A.T) / 2 or the maximum of both",
        )
    return sp.csr_array((matrix + matrix.T) / 2)
