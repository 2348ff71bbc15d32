"""Diffuse at coarse scales with a small basis, which it computes in threads; for `diffusion`, `embedding`; no files.

`spectral_factors` computes leading eigenpairs from a filtered random block, for `method="spectral"`. A Chebyshev
polynomial that is at most 1 on [lowest, theta] and grows fast above theta turns random vectors toward the eigenvectors
above theta. Rayleigh-Ritz extracts these eigenvectors from the span of the block. ARPACK is slow here, because the
relevant eigenvalues cluster at 1 and ARPACK treats them one by one.

Test vectors bound the error. Let B = S^s be the power at the first coarse scale (without top eigenvectors), V the Ritz
vectors, L = Lambda^s, P = 1 - V V' and E = B - V L V'. Let D = V' E V be the error of the powers of the Ritz values,
and C = P E V the part that leaves the span of V. Gaussian test vectors bound e = ||E||, k = ||C L||,
h = ||D L|| and g = ||L D L||. All coarser scales are powers B^N, with error

    B^N - V L^N V' = sum_i B^(N-1-i) E V L^i V' + B^N P,    i = 0 .. N - 1.

Let l be at least ||B|| and ||L||. As B P = E P, ||B P|| <= e. As B V = V (L + D) + P C and B P = V C' + P E P,

    ||B V D|| <= h + 2 e^2,    ||B V D L|| <= g + 2 e h,    ||B^2 P|| <= q = k + 3 e^2.

So, for N >= 2, with E V = V D + P C:

    i = 0:          B^(N-1) (V D + P C)                at most (h + 3 e^2) l^(N-2)
    i = N - 1:      (V D + P C) L^(N-1)                at most (h + k) l^(N-2)
    between, in V:  B^(N-1-i) V D L^i                  at most g + 2 e h, times l^(N-3), N - 2 times
    between, off V: B^(N-1-i) P C L^i                  at most e k l^(N-3) once, else q k l^(N-4), N - 3 times
    off V:          B^N P                              at most q l^(N-2)

Only g is multiplied by N, and g is of second order: if eigenvectors have an error of size a, C is of size a, but D is
of size a^2. So float32 is accurate enough for the filter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from heatmover._base.storage.record import Record
from heatmover._base.threads import in_threads, one_blas_thread
from heatmover._base.types import Float64, FloatArray, Intp
from heatmover.diffusion.operator import (
    LANES,
    WIDEST_BLOCK,
    Block,
    ChebyshevDiffuser,
    Diffuser,
    DiffusionOperator,
    Recurrence,
    aligned_zeros,
    in_columns,
    power_coefficients,
    rounding,
    threshold,
)
from heatmover.errors import InvalidInputError

# Probability that a bound from test vectors is wrong.
FAILURE = 1e-10
# The largest scale that the estimator accepts, and the last scale of the factors.
COARSEST_FACTOR = 30

# Number of diffusion steps whose rounding error bounds the error of a product with a basis; see `rounding`.
ROUNDING_STEPS = 8


@final
@dataclass(frozen=True, eq=False)
class Factor:
    """Low-rank approximation ``basis @ core @ basis.T`` of S^(2^scale) without the top eigenvectors.

    Attributes
    ----------
    scale
        Scale k of the power 2^k.
    basis
        ``(n_points, rank)``, rows in the operator's order.
    core
        ``(rank, rank)``.
    bound
        Bound on the spectral norm of the error.
    skeleton
        Rows of the basis that form the identity, ``(rank,)``, if the basis interpolates between points; else None.
    """

    scale: int
    basis: FloatArray
    core: Float64
    bound: float
    skeleton: Intp | None = None

    def to_record(self) -> Record:
        """Return the factor as a record that can be saved to disk."""
        skeleton = {} if self.skeleton is None else {"skeleton": self.skeleton.astype(np.int64, copy=False)}
        values = {"scale": int(self.scale), "bound": float(self.bound)}
        return Record(values, {"basis": self.basis, "core": self.core, **skeleton})

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Factor:
        """Return the factor that a record holds, or raise an error if it is invalid or not on ``n_points`` points."""
        basis = record.floats("basis", (n_points, None))
        rank, skeleton = basis.shape[1], None
        if "skeleton" in record.arrays:
            skeleton = record.places("skeleton", np.int64, (rank,), n_points).astype(np.intp, copy=False)
        core = np.asarray(record.floats("core", (rank, rank)), dtype=np.float64)
        return cls(record.integer("scale"), basis, core, record.number("bound"), skeleton)

    @property
    def rank(self) -> int:
        """Number of columns of the basis."""
        return int(self.core.shape[0])


def deflated_power(operator: DiffusionOperator, block: Block, scale: int, tol: float, *, n_threads: int = 1) -> Block:
    """Apply S^(2^scale), without the top eigenvectors, to a block ``(n_points, width)``, in the precision of the block.

    The error of any eigenvalue's power is at most ``tol``.
    """
    recurrence = Recurrence(operator, block.dtype, n_threads=n_threads)
    coefficients = power_coefficients(2**scale, operator.lowest, tol)[0]
    start = block.copy()
    operator.remove_top(start)
    # There are only a few test vectors, so threads share rows instead of columns.
    result = in_columns(lambda part: next(recurrence.polynomials(part, [coefficients])), start, n_threads=1)
    # Rounding adds small multiples of the top eigenvectors, which later powers would never remove.
    operator.remove_top(result)
    return result


@final
class LowRankDiffuser(Diffuser):
    """Diffusion by Chebyshev polynomials at fine scales and by low-rank factors at coarse scales.

    Parameters
    ----------
    fine
        Diffuser for the scales before the first factor; it determines the kind of density and the precision.
    factors
        Factors of consecutive scales, up to the largest scale that is used.
    """

    def __init__(self, fine: ChebyshevDiffuser, factors: Sequence[Factor]) -> None:
        self.operator = fine.operator
        self._fine = fine
        self._factors = {
            factor.scale: replace(factor, basis=np.ascontiguousarray(factor.basis, dtype=fine.dtype))
            for factor in factors
        }
        self._nested = _are_nested(factors)
        self.first = factors[0].scale

    def to_record(self) -> Record:
        """Return the diffuser as a record, without ``operator`` and ``adjoint``."""
        factors = {f"factor_{scale}": factor.to_record() for scale, factor in self._factors.items()}
        return Record(
            {"kind": "lowrank", "scales": list(self._factors)}, parts={"fine": self._fine.to_record(), **factors}
        )

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> LowRankDiffuser:
        """Return the diffuser that a record holds, or raise an error if the record is invalid."""
        scales = record.values.get("scales")
        names = scales if isinstance(scales, list) and scales else [None]
        factors = [Factor.from_record(record.part(f"factor_{scale}"), operator.n_points) for scale in names]
        known = [factor.scale for factor in factors]
        if known != names or known != list(range(known[0], known[0] + len(known))):
            raise InvalidInputError("stored factors of consecutive scales", f"factors of scales {known}")
        return cls(ChebyshevDiffuser.from_record(record.part("fine"), operator, adjoint=adjoint), factors)

    @property
    def rank(self) -> int:
        """Rank of the first factor, which has the largest rank."""
        return self._factors[self.first].rank

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        fine = range(scales.start, min(scales.stop, self.first))
        if fine:
            yield from self._fine.diffuse(masses, fine)
        yield from self._coarse(masses, range(max(scales.start, self.first), scales.stop))

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities at 2^0, 2^1, ... steps up to the last factor; see `Diffuser.diffuse_progressively`."""
        for _, density in zip(range(self.first), self._fine.diffuse_progressively(masses), strict=False):
            yield density
        yield from self._coarse(masses, range(self.first, self.first + len(self._factors)))

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Apply the transpose of `diffuse`; see `Diffuser.collect`."""
        rest = iter(blocks)
        fine = range(scales.start, min(scales.stop, self.first))
        result: Block | None = None
        known: Float64 = np.zeros(1)
        width = 0
        if fine:
            inputs, known, width = self._fine.taken(islice(rest, len(fine)), len(fine))
            result = self._fine.transposed(inputs, fine)
            del inputs
        for scale, block in zip(range(max(scales.start, self.first), scales.stop), rest, strict=True):
            inputs, part, width = self._fine.taken([block], 1)
            factor = self._factors[scale]
            image = _apply(replace(factor, core=np.ascontiguousarray(factor.core.T)), inputs[0])
            result = image if result is None else result + image
            known = known + part
        assert result is not None
        return self._fine.released(result, known, width)

    def error_bound(self, scales: range) -> Float64:
        """Return the bounds of the polynomials at fine scales and of the factors at coarse scales, ``(n_scales,)``."""
        room = rounding(ROUNDING_STEPS, self._fine.dtype)
        return np.array(
            [
                self._fine.error_bound(range(scale, scale + 1))[0]
                if scale < self.first
                else self._factors[scale].bound + room
                for scale in scales
            ]
        )

    def _coarse(self, masses: Block, scales: range) -> Iterator[Block]:
        start = self._fine.inward(masses)
        target = self._fine.parts(start)
        inner = None
        for scale in scales:
            factor = self._factors[scale]
            if inner is None or not self._nested:
                inner = _coordinates(factor, start)
            density = _from_coordinates(factor, inner[: factor.rank], start.dtype)
            yield self._fine.outward(density, target, masses.shape[1])


def _are_nested(factors: Sequence[Factor]) -> bool:
    """Return whether each basis consists of the first columns of the previous basis; coordinates are then shared."""
    return all(
        coarse.rank <= fine.rank and np.array_equal(coarse.basis, fine.basis[:, : coarse.rank])
        for fine, coarse in pairwise(factors)
    )


def _apply(factor: Factor, block: Block) -> Block:
    """Return basis @ core @ basis.T @ block; each column of the result is independent of the other columns."""
    return _from_coordinates(factor, _coordinates(factor, block), block.dtype)


def _coordinates(factor: Factor, block: Block) -> Float64:
    """Return basis.T @ block; each row depends only on its own column of the basis."""
    from heatmover._base.compiled.lowrank import coordinates

    inner = np.empty((factor.rank, block.shape[1]))
    coordinates(factor.basis, block, inner)
    return inner


def _from_coordinates(factor: Factor, inner: Float64, dtype: npt.DTypeLike) -> Block:
    """Return basis @ core @ inner."""
    from heatmover._base.compiled.lowrank import combine

    weights = np.empty_like(inner)
    combine(factor.core, inner, weights)
    result = np.empty((len(factor.basis), inner.shape[1]), dtype=dtype)
    combine(factor.basis, weights.astype(dtype), result)
    return result


def spectral_norm(matrix: FloatArray) -> float:
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
    # The Gram matrix loses the digits of small singular values, but not of the largest one. For a sketch of 300 rows
    # and 10,000 columns, the Gram matrix is five times faster than a singular value decomposition.
    gram = scaled @ scaled.T
    last = len(gram) - 1
    value = eigvalsh(gram, subset_by_index=(last, last), check_finite=False)[0]
    return largest * float(np.sqrt(max(value, 0.0)))


def spectral_norm_from_sketch(rows: FloatArray, failure: float = FAILURE) -> float:
    """Bound the spectral norm of a matrix M from ``rows = W M``, where W is standard Gaussian and independent of M.

    Let u be the leading left singular vector. Then ``||W M|| >= ||W u|| ||M||``, and ``||W u||^2`` is chi-squared with
    one degree of freedom per row. Lemma 4.1 of Halko, Martinsson and Tropp (2011) uses only the longest row and is
    looser.

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


# Number of Gaussian test vectors. Their bound fails with a probability of 1e-10 and overstates the norm by a factor of
# about 6. With 32 vectors the factor is 3, at twice the cost.
TESTS = 16
# Number of test vectors for the errors of powers of the basis. The bounds overstate these errors by a factor of 24, but
# the errors are far below ``tol``.
TESTS_OF_POWERS = 8
# Eigenvectors are computed if the power of their eigenvalue at the first coarse scale is above tol / BELOW. The largest
# omitted eigenvalue dominates the bound, and the test vectors overstate a norm by a factor of about 6.
BELOW = 30.0
# Logarithm of the polynomial's growth at eigenvalue 1, in the first pass and in each later pass. The growth makes the
# columns of the block more alike, and float32 keeps the weakest required eigenvectors only if the growth is far below
# 2^24: on the swiss roll, a logarithm of 15 in one pass lost a tenth of these eigenvectors. Later passes filter Ritz
# vectors, which are already separated and tolerate more growth. The more points there are, the larger the share of
# unwanted eigenvectors in a random block. The swiss roll of 10,000 points needed a third pass if the logarithm in the
# second pass was 11 instead of 13; the swiss roll of 100,000 points needed a third pass if the logarithm was 14.
FIRST_GROWTH = 9.0
GROWTH = 9.2  # plus half of the logarithm of n_points
# Below this tol the whole filter runs in float64.
SINGLE_TOL = 1e-5
# Maximal number of passes. Two passes usually reach the bound; if the guess of the rank is far too small, every
# doubling of the block takes one more pass.
PASSES = 12
# If a pass does not reduce the bound to this share of the previous bound, rounding errors limit the bound. The next
# pass then uses float64. After a pass in float64, the search ends instead.
STALLED = 0.7
# Ratio of columns to the required rank, so that the weakest required vectors converge.
OVERSAMPLING = 1.25
# Up to this many points all eigenpairs are computed if half of them are required, or if some eigenvalues are far below
# zero.
SMALL = 1_000
# Number of rows of a dense product per task, fixed so that results are bit-identical for any number of threads. The
# threads of the linear algebra library wait for each other, so they are many times slower while another process runs.
ROWS_AT_ONCE = 8_192
# Directions of the filtered block weaker than this contain only rounding errors. A limit of 1e-11 was too large: on a
# ring of 1,500 points at tol 1e-6 this limit removed a quarter of the block, and doubling the block did not help. The
# degree of that filter was so low that rounding the degree up to an integer added 3 to the logarithm of the growth.
WEAKEST = 1e-13
# A block is orthonormalized in two steps if the ratio of its weakest to its strongest direction is below this value.
# On four graphs of a thousand points, with growths of 5 to 9, one step left errors of 3e-16 to 7e-16 divided by this
# ratio, so at most 7e-12.
ALIKE = 1e-4


@dataclass(frozen=True, eq=False)
class Ritz:
    """Approximate eigenpairs of S, largest absolute value first, orthogonal to the top eigenvectors.

    Attributes
    ----------
    values
        Eigenvalues, ``(rank,)``.
    vectors
        Eigenvectors ``(n_points, rank)``, orthonormal, in the operator's order.
    """

    values: Float64
    vectors: Float64


def spectral_factors(
    operator: DiffusionOperator,
    first: int,
    rank: int,
    *,
    tol: float,
    rng: np.random.Generator,
    last: int = COARSEST_FACTOR,
    most: int = 2_000,
    n_threads: int = 1,
) -> list[Factor] | None:
    """Return S^(2^k) for k from ``first`` to ``last`` in a basis of eigenvectors, each with an error within ``tol``.

    Parameters
    ----------
    operator
        Diffusion operator in float64.
    first, last
        First and last coarse scale.
    rank
        Guess of the number of eigenvalues that exceed ``tol / 30`` when raised to the power ``2**first``. The block
        starts with about 25% more columns than this number and grows until the bound holds.
    tol
        Requested bound on the error at every scale.
    rng
        Random generator for the block and the test vectors.
    most
        Largest number of columns of the block.
    n_threads
        Number of threads.

    Returns
    -------
    list of Factor, or None
        None if ``most`` columns do not reach the bound, if rounding errors exceed the bound, or if negative eigenvalues
        matter on a graph of more than 1,000 points.
    """
    scales = range(first, last + 1)
    # The block fills whole vector registers.
    width = -(-int(OVERSAMPLING * rank) // LANES) * LANES + LANES
    theta = threshold(first, tol / BELOW)
    # Powers of eigenvalues close to -1, as on a bipartite graph, stay as large as powers of eigenvalues close to 1, but
    # the filter would miss eigenvalues close to -1.
    two_sided = -operator.lowest >= theta
    if operator.n_points <= SMALL and (two_sided or operator.n_points <= 2 * width):
        factors = _factors(operator, _all_eigenpairs(operator), scales, tol, rng, n_threads)
        return factors if all(factor.bound <= tol for factor in factors) else None
    if two_sided:
        return None
    dtype: type[np.floating[Any]] = np.float32 if tol >= SINGLE_TOL else np.float64
    if width > most:
        return None
    block: Block = _random_block(operator, width, rng).astype(dtype, copy=False)
    fresh, worst = True, np.inf
    for _ in range(PASSES):
        if block.shape[1] > most:
            return None
        growth = FIRST_GROWTH if fresh else second_growth(operator.n_points)
        ritz = leading_eigenpairs(operator, block, theta, growth=growth, n_threads=n_threads)
        block = ritz.vectors
        if ritz.values.size and ritz.values[-1] > theta:
            # All eigenvalues found are above theta, so more eigenvalues above theta may exist.
            block, fresh = np.hstack([block, _random_block(operator, block.shape[1], rng)]), True
        elif fresh:
            # A block of random columns needs a second pass.
            fresh = False
        else:
            factors = _factors(operator, ritz, scales, tol, rng, n_threads)
            before, worst = worst, max(factor.bound for factor in factors)
            if worst <= tol:
                return factors
            if worst > STALLED * before:
                if dtype is np.float64:
                    return None
                dtype = np.float64
        block = block.astype(dtype, copy=False)
    return None


def second_growth(n_points: int) -> float:
    """Return the growth of every pass after the first; see `leading_eigenpairs`."""
    return float(GROWTH + np.log(n_points) / 2)


def leading_eigenpairs(
    operator: DiffusionOperator, start: Block, theta: float, *, growth: float = FIRST_GROWTH, n_threads: int = 1
) -> Ritz:
    """Filter a block ``(n_points, width)`` toward the eigenvectors above ``theta`` and extract them.

    The polynomial is at most 1 up to ``theta``, and ``growth`` is its logarithm at eigenvalue 1.
    """
    per_degree = np.arccosh((2 - operator.lowest - theta) / (theta - operator.lowest))
    degree = int(np.clip(np.ceil(growth / per_degree), 1, 4_000))
    block = np.empty(start.shape)
    recurrence = Recurrence(operator, start.dtype, highest=theta)

    def work(columns: slice) -> None:
        terms = recurrence.terms(start[:, columns])
        block[:, columns] = next(islice(terms, degree - 1, None))

    in_threads(work, _runs_of_columns(start.shape[1], n_threads), n_threads)
    operator.remove_top(block)
    return _rayleigh_ritz(operator, block, n_threads)


def _rayleigh_ritz(operator: DiffusionOperator, block: Float64, n_threads: int) -> Ritz:
    """Return the Ritz pairs of S in the span of the columns of a block."""
    whitening = _whitening(_inner_products(block, block, n_threads), len(block))
    if whitening.weakest < ALIKE:
        # In a single step, columns as similar as these would lose too many digits of the weak directions.
        block = _turned(block, whitening.turn, n_threads)
        operator.remove_top(block)
        whitening = _whitening(_inner_products(block, block, n_threads), len(block))
    small = whitening.turn.T @ _quadratic_form(operator, block, n_threads) @ whitening.turn
    pairs = _sorted(*_eigenpairs((small + small.T) / 2))
    return Ritz(pairs.values, _turned(block, whitening.turn @ pairs.vectors, n_threads))


def _quadratic_form(operator: DiffusionOperator, block: Float64, n_threads: int) -> Float64:
    """Return ``block' S block``, bit-identical for any number of threads."""
    from heatmover._base.compiled.recurrence import multiply

    indptr, indices = operator.structure

    def product(rows: slice) -> Float64:
        # Multiply S by the block a few rows at a time: the whole product would be another block to write and read.
        starts = indptr[rows.start : rows.stop + 1]
        image = aligned_zeros((len(starts) - 1, block.shape[1]), np.float64)
        multiply(starts, indices, operator.symmetric.data, block, image)
        return np.asarray(block[rows].T @ image)

    with one_blas_thread():
        return np.asarray(sum(in_threads(product, _runs_of_rows(len(block)), n_threads)))


def _all_eigenpairs(operator: DiffusionOperator) -> Ritz:
    dense = operator.symmetric.toarray().astype(np.float64)
    operator.remove_top(dense)
    values, vectors = _eigenpairs((dense + dense.T) / 2)
    # Remnants of the top eigenvectors have eigenvalue 0 and may mix with other eigenvectors of this eigenvalue.
    return _sorted(values, vectors)


def _sorted(values: Float64, vectors: Float64) -> Ritz:
    order = np.argsort(-np.abs(values), kind="stable")
    return Ritz(np.clip(values[order], -1, 1), np.ascontiguousarray(vectors[:, order]))


class Whitening(NamedTuple):
    """Matrix that makes columns orthonormal, ``(width, rank)``, and the strength of the weakest remaining direction."""

    turn: Float64
    weakest: float


def _whitening(gram: Float64, n_points: int) -> Whitening:
    """Return the matrix that maps columns with this Gram matrix to an orthonormal basis of their numerical span."""
    lengths = np.sqrt(np.diag(gram))
    scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > WEAKEST * np.sqrt(n_points))
    weights, turn = _eigenpairs(scale[:, None] * gram * scale)
    kept = weights > WEAKEST * len(gram)
    return Whitening(scale[:, None] * turn[:, kept] / np.sqrt(weights[kept]), float(weights[kept].min(initial=1.0)))


# Use one thread, because the threads of the linear algebra library spin while they wait for each other.
_eigenpairs = one_blas_thread()(np.linalg.eigh)


def _inner_products(a: Float64, b: Block, n_threads: int) -> Float64:
    """Return ``a' b``, bit-identical for any number of threads."""
    with one_blas_thread():
        return np.asarray(sum(in_threads(lambda rows: a[rows].T @ b[rows], _runs_of_rows(len(a)), n_threads)))


def _turned(block: Float64, turn: Float64, n_threads: int) -> Float64:
    """Return ``block @ turn``, bit-identical for any number of threads."""
    result = np.empty((len(block), turn.shape[1]))
    with one_blas_thread():
        in_threads(lambda rows: np.matmul(block[rows], turn, out=result[rows]), _runs_of_rows(len(block)), n_threads)
    return result


def _runs_of_columns(width: int, n_threads: int) -> list[slice]:
    """Divide columns into slices of whole vector registers, enough for all threads; results are bit-identical."""
    units = max(-(-width // LANES), 1)
    count = min(-(-units * LANES // (WIDEST_BLOCK * n_threads)) * n_threads, units)
    edges = [min(LANES * (units * i // count), width) for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def _runs_of_rows(count: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE)]


def _factors(
    operator: DiffusionOperator, ritz: Ritz, scales: range, tol: float, rng: np.random.Generator, n_threads: int
) -> list[Factor]:
    """Keep the eigenpairs whose powers are large enough to matter at each scale, and bound the errors."""
    vectors, powers = ritz.vectors, ritz.values ** float(2**scales.start)
    errors = _errors(operator, ritz, scales, tol, rng, n_threads)
    largest = min(1.0, float(np.abs(powers).max(initial=0.0)) + errors.everywhere)
    factors = []
    for scale in scales:
        weights = ritz.values ** float(2**scale)
        kept = int((np.abs(weights) > tol / (2 * BELOW)).sum())
        bound = _bound(errors, largest, 2.0 ** (scale - scales.start))
        cut = float(np.abs(weights[kept:]).max(initial=0.0))
        factors.append(Factor(scale, vectors[:, :kept], np.diag(weights[:kept]), bound + cut))
    return factors


class Errors(NamedTuple):
    """Bounds e, k, h and g of the errors of a basis, as defined at the top of the module."""

    everywhere: float
    leaving: float
    within: float
    on_powers: float


def _errors(
    operator: DiffusionOperator, ritz: Ritz, scales: range, tol: float, rng: np.random.Generator, n_threads: int
) -> Errors:
    """Bound the errors of the eigenpairs at the first scale by test vectors."""
    steps, vectors = 2**scales.start, ritz.vectors
    # Error of the polynomial p, small enough for all scales: repeated squaring multiplies g, which contains this error.
    blur = max(tol / max(256.0, 32 * 2.0 ** (len(scales) - 1)), 1e-13)
    weights = _polynomial(ritz.values, power_coefficients(steps, operator.lowest, blur)[0], operator.lowest)

    anywhere = rng.standard_normal((operator.n_points, TESTS))
    inside = _inner_products(vectors, anywhere, n_threads)
    powers = ritz.values[:, None] ** float(steps)
    drawn = powers * rng.standard_normal((len(weights), TESTS_OF_POWERS))
    starts = np.hstack([anywhere, _turned(vectors, drawn, n_threads)])
    images = deflated_power(operator, starts, scales.start, blur, n_threads=n_threads)
    # p(S) - V p(Lambda) V' differs from E by at most twice the blur. Use p(Lambda) and not L, because the test vectors
    # would overstate the blur too.
    images -= _turned(vectors, weights[:, None] * np.hstack([inside, drawn]), n_threads)
    errors, on_powers = np.hsplit(images, [TESTS])
    within = _inner_products(vectors, on_powers, n_threads)
    leaving = on_powers - _turned(vectors, within, n_threads)
    parts = errors, leaving, within, powers * within
    return Errors(*(spectral_norm_from_sketch(part.T) + 2 * blur for part in parts))


def _polynomial(values: Float64, coefficients: Float64, lowest: float) -> Float64:
    """Evaluate a Chebyshev series on [lowest, 1] at values in this interval."""
    mapped = np.clip((2 * values - 1 - lowest) / (1 - lowest), -1, 1)
    return np.asarray(np.polynomial.chebyshev.chebval(mapped, coefficients))


def _bound(errors: Errors, largest: float, repeats: float) -> float:
    """Bound the error of B^N for N = ``repeats``; the formulas are at the top of the module."""
    e, k, h, g = errors
    if repeats == 1:
        return e
    q = k + 3 * e**2
    bound = (2 * h + 3 * e**2 + k + q) * largest ** (repeats - 2)
    if repeats > 2:
        bound += ((repeats - 2) * (g + 2 * e * h) + e * k) * largest ** (repeats - 3)
    if repeats > 3:
        bound += (repeats - 3) * q * k * largest ** (repeats - 4)
    return float(bound)


def _random_block(operator: DiffusionOperator, width: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Draw Gaussian columns orthogonal to the top eigenvectors, ``width`` rounded up to whole vector registers."""
    block = rng.standard_normal((operator.n_points, -(-width // LANES) * LANES), dtype=np.float32)
    operator.remove_top(block)
    return block
