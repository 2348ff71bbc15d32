"""Interpolative decomposition: a few columns of a matrix, and how to interpolate all others between them.

The paper's Algorithms 2 and 3. A column-pivoted QR, A P = Q [R11 R12; 0 R22], gives everything: the first pivots are
the skeleton, R11^-1 R12 interpolates, and the error ||A - A[:, I] T|| is exactly ||R22||. No search for equal columns
is needed. A strong rank-revealing QR would guarantee ||R22|| <= sqrt(1 + r (n - r)) sigma_{r+1} (Cheng, Gimbutas,
Martinsson and Rokhlin 2005); plain pivoting obeys it on all but matrices made to break it, and since ||R22|| is at
hand, the error reported is that of the matrix given, not of the worst one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._readonly import ReadOnlyArrays
from heatmover._validation import check_integer, check_matrix, check_number
from heatmover._words import counted
from heatmover.errors import InvalidInputError

__all__ = [
    "Skeleton",
    "cut_skeleton",
    "interpolative_decomposition",
    "randomised_interpolative_decomposition",
    "spectral_norm",
    "spectral_norm_from_sketch",
]

Matrix = npt.NDArray[np.floating[Any]]

# Rows of a sketch beyond the rank: the chance of a poor draw falls like exp(-rows) (Halko, Martinsson and Tropp 2011,
# Corollary 10.9), and the paper takes eight.
OVERSAMPLING = 8
# Rows held back to measure the error. On powers of a swiss roll's operator the bound was 14 times the error with 10
# rows, 6 times with 16, 3 times with 32 and twice with 64; Lemma 4.1 of the same paper gave 14 to 21 times with 10.
TEST_ROWS = 32
# How often a bound from a sketch may be wrong.
FAILURE = 1e-10
FIRST_SKETCH = 32


@dataclass(frozen=True, eq=False)
class Skeleton(ReadOnlyArrays):
    """Columns that stand for all: ``matrix`` is close to ``matrix[:, indices] @ interpolation``.

    Attributes
    ----------
    indices
        The skeleton in the order of the pivots, ``(rank,)``: the first ones matter most.
    interpolation
        ``(rank, n_columns)``; exactly the identity at ``indices``.
    bound
        The spectral norm of what is left over: its value for a deterministic decomposition, an upper bound that
        fails with probability 1e-10 for a randomised one; both to rounding.
    """

    indices: npt.NDArray[np.intp]
    interpolation: Matrix
    bound: float

    @property
    def rank(self) -> int:
        """Number of columns in the skeleton."""
        return int(self.indices.size)


def interpolative_decomposition(
    matrix: npt.ArrayLike, *, delta: float | None = None, rank: int | None = None
) -> Skeleton:
    """Choose columns by a pivoted QR (the paper's Algorithm 2).

    Parameters
    ----------
    matrix
        ``(n_rows, n_columns)``; float32 stays float32.
    delta
        In (0, 1): the rank is the smallest whose error is at most ``delta`` times the spectral norm.
    rank
        Largest rank; columns that the others explain to rounding are left out even so. At least one of ``delta`` and
        ``rank`` is needed.

    Examples
    --------
    >>> skeleton = interpolative_decomposition([[1.0, 2.0, 4.0], [1.0, 2.0, 0.0]], rank=2)
    >>> skeleton.indices.tolist(), np.abs(skeleton.interpolation).round(12).tolist()
    ([2, 1], [[0.0, 0.0, 1.0], [0.5, 1.0, 0.0]])
    """
    array, delta, rank = _checked(matrix, delta, rank)
    return cut_skeleton(array, _threshold(array, delta), rank)


def randomised_interpolative_decomposition(
    matrix: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    delta: float | None = None,
    rank: int | None = None,
    oversampling: int = OVERSAMPLING,
) -> Skeleton:
    """Choose columns by a pivoted QR of a Gaussian sketch of the rows (the paper's Algorithm 3).

    The sketch is doubled until it has ``oversampling`` rows more than the rank it shows. Where it would need as many
    rows as the matrix, the matrix itself is decomposed. Rows held back from the sketch bound the error.

    Parameters
    ----------
    matrix
        ``(n_rows, n_columns)``; float32 stays float32.
    rng
        Draws the sketch.
    delta
        In (0, 1): the rank is the smallest that leaves of the sketch at most ``delta`` times its norm. What is left
        of the matrix is commonly a few times as much; see ``bound``.
    rank
        Largest rank, as in `interpolative_decomposition`.
    oversampling
        Rows of the sketch beyond the rank.

    Examples
    --------
    >>> matrix = np.outer(np.arange(1.0, 101), [1, 3, 2])
    >>> skeleton = randomised_interpolative_decomposition(matrix, np.random.default_rng(0), delta=1e-6)
    >>> skeleton.indices.tolist(), skeleton.bound < 1e-10
    ([1], True)
    """
    array, delta, rank = _checked(matrix, delta, rank)
    oversampling = check_integer("oversampling", oversampling, minimum=1)
    n_rows = array.shape[0]
    tests = _gaussian_rows(rng, TEST_ROWS, array)
    sketch = array[:0]
    width = oversampling + (FIRST_SKETCH if rank is None or delta is not None else rank)
    while width + TEST_ROWS < n_rows:
        sketch = np.vstack([sketch, _gaussian_rows(rng, width - len(sketch), array)])
        cut = cut_skeleton(sketch, _threshold(sketch, delta), rank)
        if cut.rank + oversampling <= width:
            residual = tests - tests[:, cut.indices] @ cut.interpolation
            return Skeleton(cut.indices, cut.interpolation, spectral_norm_from_sketch(residual))
        width *= 2
    return cut_skeleton(array, _threshold(array, delta), rank)


def cut_skeleton(matrix: Matrix, threshold: float, rank: int | None = None) -> Skeleton:
    """Choose the fewest pivots, at most ``rank``, that leave a spectral norm of at most ``threshold``.

    Examples
    --------
    >>> cut_skeleton(np.diag([3.0, 2.0, 1.0]), 1.5).indices.tolist()
    [0, 1]
    """
    from scipy.linalg import qr, solve_triangular

    triangle, pivots = qr(matrix, mode="r", pivoting=True, check_finite=False)
    triangle, pivots = triangle[: min(matrix.shape)], pivots.astype(np.intp)
    count = _cut(triangle, threshold, len(triangle) if rank is None else rank)
    interpolation = np.zeros((count, matrix.shape[1]), dtype=matrix.dtype)
    interpolation[np.arange(count), pivots[:count]] = 1
    if 0 < count < matrix.shape[1]:
        others = solve_triangular(triangle[:count, :count], triangle[:count, count:], check_finite=False)
        interpolation[:, pivots[count:]] = others
    return Skeleton(pivots[:count].copy(), interpolation, spectral_norm(triangle[count:, count:]))


def spectral_norm(matrix: Matrix) -> float:
    """Return the largest singular value, zero for an empty matrix.

    Examples
    --------
    >>> spectral_norm(np.array([[3.0, 0.0], [4.0, 0.0]]))
    5.0
    """
    from scipy.linalg import eigvalsh

    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0:
        return 0.0
    scaled = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T).astype(np.float64) / largest
    # Squaring ruins small singular values, but the largest one keeps all of its digits, and this is five times faster
    # than the singular values of a sketch of 300 rows and 10,000 columns.
    gram = scaled @ scaled.T
    last = len(gram) - 1
    value = eigvalsh(gram, subset_by_index=(last, last), check_finite=False)[0]
    return largest * float(np.sqrt(max(value, 0.0)))


def spectral_norm_from_sketch(rows: Matrix, failure: float = FAILURE) -> float:
    """Bound the spectral norm of a matrix M from ``rows = W M``, W being standard Gaussian and independent of M.

    With u the leading left singular vector, ``||W M|| >= ||W u|| ||M||``, and ``||W u||^2`` is chi-squared with as many
    degrees of freedom as there are rows. Lemma 4.1 of Halko, Martinsson and Tropp (2011) does the same from the
    longest single row and is looser.

    Parameters
    ----------
    rows
        ``(n_rows, n_columns)``.
    failure
        Probability that the bound is wrong.

    Examples
    --------
    >>> rows = np.random.default_rng(0).standard_normal((16, 50)) @ np.eye(50)
    >>> 1 < spectral_norm_from_sketch(rows) < 20
    True
    """
    from scipy.special import gammaincinv

    return spectral_norm(rows) / float(np.sqrt(2 * gammaincinv(len(rows) / 2, failure)))


def _checked(matrix: npt.ArrayLike, delta: float | None, rank: int | None) -> tuple[Matrix, float | None, int | None]:
    array = check_matrix("matrix", matrix)
    if array.dtype != np.float32:
        array = array.astype(np.float64, copy=False)
    if delta is None and rank is None:
        raise InvalidInputError("delta or rank", "neither", "delta=1e-4 leaves an error of 1e-4 of the norm")
    if delta is not None and check_number("delta", delta, above=0, at_most=1) == 1:
        raise InvalidInputError("delta to be below 1", "1", "delta=1e-4 leaves an error of 1e-4 of the norm")
    if rank is not None and check_integer("rank", rank, minimum=0) > array.shape[1]:
        raise InvalidInputError(f"rank to be at most the {counted(array.shape[1], 'column')}", str(rank))
    return array, delta, rank


def _threshold(matrix: Matrix, delta: float | None) -> float:
    return 0.0 if delta is None else delta * spectral_norm(matrix)


def _gaussian_rows(rng: np.random.Generator, count: int, matrix: Matrix) -> Matrix:
    rows: Matrix = rng.standard_normal((count, matrix.shape[0])).astype(matrix.dtype, copy=False) @ matrix
    return rows


def _cut(triangle: Matrix, threshold: float, most: int) -> int:
    """Return the fewest leading pivots that leave at most ``threshold``, or ``most``."""
    diagonal = np.abs(np.diagonal(triangle))
    # Pivots below the rounding of the first are rounding themselves, and R11 would be singular with them.
    largest = float(diagonal.max(initial=0.0))
    regular = np.count_nonzero(diagonal > diagonal.size * np.finfo(triangle.dtype).eps * largest)
    most = min(most, int(regular))
    # The Frobenius norms of all trailing blocks come in one pass and bracket their spectral norms, which fall with the
    # rank because each block contains the next.
    scale = largest or 1.0
    squares = np.square(triangle / scale, dtype=np.float64).sum(axis=1)
    frobenius = scale * np.sqrt(np.append(np.cumsum(squares[::-1])[::-1], 0.0))
    blocks = np.sqrt(np.arange(len(triangle), -1, -1).clip(1))
    low = min(int(np.argmax(frobenius / blocks <= threshold)), most)
    high = min(int(np.argmax(frobenius <= threshold)), most)
    return bisect_left(range(most), True, low, high, key=lambda r: spectral_norm(triangle[r:, r:]) <= threshold)
