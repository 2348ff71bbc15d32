"""Coarse scales from a small basis: there the powers of the operator have small numerical rank.

The ranks of all dyadic powers come from the density of states. The number of eigenvalues in an interval is the trace of
a step function of S. A polynomial approximates the step (its Chebyshev series, damped by the Jackson kernel against
ringing), and products with random signs the trace: E[w' f(S) w] = tr f(S). One recurrence gives the moments tr T_j(S)
for all intervals. The eigenvectors to eigenvalue 1, one per component, are known and left out of the estimate, so that
they are counted exactly.

`spectral_factors` gets leading eigenpairs from a filtered random block, for `method="spectral"`. A Chebyshev polynomial
that is at most 1 on [lowest, theta] and grows fast above turns random vectors towards the eigenvectors above theta;
Rayleigh-Ritz finds them in what the block spans. ARPACK is no help here: the eigenvalues that matter cluster at 1, and
it treats them one by one.

The error is measured, not estimated. With B = S^s at the first coarse scale (top eigenvectors left out), Ritz vectors
V, L = Lambda^s, P = 1 - V V' and E = B - V L V', let D = V' E V (what powers of the Ritz values are off by) and C =
P E V (what leaves V). Gaussian test vectors bound e = ||E||, k = ||C L||, h = ||D L|| and g = ||L D L||. All coarser
scales are powers B^N, with error

    B^N - V L^N V' = sum_i B^(N-1-i) E V L^i V' + B^N P,    i = 0 .. N - 1.

Let l be at least ||B|| and ||L||. As B P = E P, ||B P|| <= e. As B V = V (L + D) + P C and B P = V C' + P E P,

    ||B V D|| <= h + 2 e^2,    ||B V D L|| <= g + 2 e h,    ||B^2 P|| <= q = k + 3 e^2.

So, for N >= 2, with E V = V D + P C:

    i = 0:          B^(N-1) (V D + P C)                at most (h + 3 e^2) l^(N-2)
    i = N - 1:      (V D + P C) L^(N-1)                at most (h + k) l^(N-2)
    between, in V:  B^(N-1-i) V D L^i                  at most g + 2 e h, times l^(N-3), N - 2 times
    between, off V: B^(N-1-i) P C L^i                  at most e k l^(N-3) once, else q k l^(N-4), N - 3 times
    beside V:       B^N P                              at most q l^(N-2)

Only g counts N times, and it is of second order: where eigenvectors are off by a, C is about a, but D about a^2. So the
filter may run in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from heatmover._base.storage.record import Record
from heatmover._base.threads import by_one_blas_thread, in_threads, one_blas_thread
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
)
from heatmover.errors import InvalidInputError

__all__ = [
    "COARSEST_FACTOR",
    "ROUNDING_STEPS",
    "DensityOfStates",
    "Factor",
    "LowRankDiffuser",
    "Ritz",
    "deflated_power",
    "density_of_states",
    "leading_eigenpairs",
    "spectral_factors",
    "spectral_norm",
    "spectral_norm_from_sketch",
    "threshold",
]

# How often a bound from test vectors may be wrong.
FAILURE = 1e-10
# Random vectors. The standard error of a count c is at most sqrt(2 c / PROBES): a tenth at a rank of 12.
PROBES = 16
# Smoothing widths (see `resolution`) that the angle of the coarsest threshold should span, and products to spend on it.
WIDTHS = 4
MOST_PRODUCTS = 256


def threshold(scale: int, delta: float) -> float:
    """Return the eigenvalue whose power ``2**scale`` is ``delta``."""
    return float(delta ** (2.0**-scale))


@final
@dataclass(frozen=True, eq=False)
class DensityOfStates:
    """How many eigenvalues of S lie where.

    Attributes
    ----------
    moments
        Estimates of tr T_j(S) from each random vector, without the known eigenvectors, ``(n_moments, n_probes)``.
    lowest
        Lower end of the interval that is mapped onto [-1, 1].
    n_points, n_components
        Of the graph; eigenvalue 1 has one eigenvector per component.
    """

    moments: Float64
    lowest: float
    n_points: int
    n_components: int

    @property
    def resolution(self) -> float:
        """Standard width of the smoothing, in the angle phi of an eigenvalue: cos(phi) maps [lowest, 1] to [-1, 1]."""
        return float(np.pi / (len(self.moments) + 1))

    def angle(self, eigenvalue: float) -> float:
        """Return the angle of an eigenvalue, 0 at 1 and pi at `lowest`."""
        mapped = (2 * eigenvalue - 1 - self.lowest) / (1 - self.lowest)
        return float(np.arccos(np.clip(mapped, -1, 1)))

    def rank(self, scale: int, delta: float) -> int:
        """Return the number of eigenvalues with ``|value| ** (2**scale) >= delta``, at least one per component.

        Its errors: thresholds are blurred by `resolution`, and counts have the `standard_error`.
        """
        count = self.n_components + float(self._counts(threshold(scale, delta)).mean())
        return int(np.clip(np.rint(count), self.n_components, self.n_points))

    def standard_error(self, scale: int, delta: float) -> float:
        """Return the standard error of `rank`, from the spread between the random vectors."""
        counts = self._counts(threshold(scale, delta))
        return float(counts.std(ddof=1) / np.sqrt(counts.size))

    def _counts(self, value: float) -> Float64:
        """Estimate, from each random vector, the eigenvalues at or above ``value`` and at or below ``-value``."""
        above = self._below_angle(self.angle(value))
        if -value <= self.lowest:
            return above
        return above + self._below_angle(np.pi) - self._below_angle(self.angle(-value))

    def _below_angle(self, angle: float) -> Float64:
        """Integrate the damped series of the density from angle 0, ``(n_probes,)``."""
        count = len(self.moments)
        j = np.arange(count)
        # The Jackson kernel: the positive damping of least width.
        turn = np.pi / (count + 1)
        damping = ((count - j + 1) * np.cos(turn * j) + np.sin(turn * j) / np.tan(turn)) / (count + 1)
        weights = np.full(count, angle)
        weights[1:] = 2 * np.sin(j[1:] * angle) / j[1:]
        return np.asarray((damping * weights) @ self.moments / np.pi)


def density_of_states(
    operator: DiffusionOperator,
    rng: np.random.Generator,
    *,
    coarsest: int,
    delta: float,
    n_threads: int = 1,
) -> DensityOfStates:
    """Estimate the density of states, finely enough for the rank at ``coarsest``.

    Parameters
    ----------
    operator
        The diffusion operator.
    rng
        Draws the signs.
    coarsest, delta
        The threshold of ``delta`` at this scale should lie four widths from the end of the spectrum; 256 products are
        the most that is spent on it (enough up to 2^15 at ``delta=1e-4``).
    n_threads
        Threads to use.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((20, 20)))
    >>> states = density_of_states(operator, np.random.default_rng(0), coarsest=8, delta=1e-3)
    >>> states.rank(30, 1e-3)  # after infinite time only the stationary law is left
    1
    """
    empty = DensityOfStates(np.zeros((1, 1)), operator.lowest, operator.n_points, operator.n_components)
    wanted = WIDTHS * np.pi / max(empty.angle(threshold(coarsest, delta)), 1e-9)
    products = int(np.clip(np.ceil(wanted / 2), 8, MOST_PRODUCTS))
    signs = rng.choice(np.array([-1.0, 1.0]), size=(operator.n_points, PROBES))
    operator.remove_top(signs)
    recurrence = Recurrence(operator, np.float32, n_threads=n_threads)
    moments = _moments(recurrence, signs.astype(np.float32), products)
    return DensityOfStates(moments, operator.lowest, operator.n_points, operator.n_components)


def _moments(recurrence: Recurrence, start: Block, products: int) -> Float64:
    """Return w' T_j(S) w for j < 2 products and each column w, ``(2 * products, width)``: T_i T_j gives two at once."""
    moments = np.empty((2 * products, start.shape[1]))
    moments[0] = _dot(start, start)
    previous = start
    for degree, (current, _) in enumerate(zip(recurrence.terms(start), range(products), strict=False), start=1):
        moments[2 * degree - 1] = 2 * _dot(current, previous)
        if degree < products:
            moments[2 * degree] = 2 * _dot(current, current)
        previous = current
    moments[3::2] -= moments[1] / 2
    moments[1] /= 2
    moments[2::2] -= moments[0]
    return moments


def _dot(one: Block, other: Block) -> Float64:
    return np.asarray(np.einsum("ij,ij->j", one, other, dtype=np.float64))


# The largest scale that the estimator accepts: factors reach up to it.
COARSEST_FACTOR = 30

# Steps whose rounding a product with a basis makes at most; see `rounding`.
ROUNDING_STEPS = 8


@final
@dataclass(frozen=True, eq=False)
class Factor:
    """S^(2^scale), less its part on the top eigenvectors, as ``basis @ core @ basis.T``.

    Attributes
    ----------
    scale
        The power is ``2**scale``.
    basis
        ``(n_points, rank)``, rows in the operator's order.
    core
        ``(rank, rank)``.
    bound
        Bound on the spectral norm of the error.
    skeleton
        Rows of the basis that are the identity, ``(rank,)``, where it interpolates between points; else None.
    """

    scale: int
    basis: FloatArray
    core: Float64
    bound: float
    skeleton: Intp | None = None

    def to_record(self) -> Record:
        """Return the factor as a record that a store can hold."""
        skeleton = {} if self.skeleton is None else {"skeleton": self.skeleton.astype(np.int64, copy=False)}
        values = {"scale": int(self.scale), "bound": float(self.bound)}
        return Record(values, {"basis": self.basis, "core": self.core, **skeleton})

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Factor:
        """Return the factor of a record on ``n_points`` points, or raise if it is none."""
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
    """Apply S^(2^scale), less its part on the top eigenvectors, to a block ``(n_points, width)``.

    The error of any eigenvalue's power is at most ``tol``; the precision is the block's.
    """
    recurrence = Recurrence(operator, block.dtype, n_threads=n_threads)
    coefficients = power_coefficients(2**scale, operator.lowest, tol)[0]
    start = block.copy()
    operator.remove_top(start)
    # Test vectors are few: threads share them by rows.
    result = in_columns(lambda part: next(recurrence.polynomials(part, [coefficients])), start, n_threads=1)
    # Rounding puts a little back there, which no power would ever remove.
    operator.remove_top(result)
    return result


@final
class LowRankDiffuser(Diffuser):
    """Fine scales by Chebyshev polynomials, coarse ones by factors of small rank: cost no longer grows with the scale.

    Parameters
    ----------
    fine
        Diffuses at the scales below the first factor's, and sets density and precision.
    factors
        Of consecutive scales, up to the largest that will be asked for.
    """

    def __init__(self, fine: ChebyshevDiffuser, factors: Sequence[Factor]) -> None:
        self.operator = fine.operator
        self._fine = fine
        self._factors = {factor.scale: _contiguous(factor, fine.dtype) for factor in factors}
        self._nested = _are_nested(factors)
        self.first = factors[0].scale

    def to_record(self) -> Record:
        """Return the diffuser as a record that a store can hold, its operator and density apart."""
        factors = {f"factor_{scale}": factor.to_record() for scale, factor in self._factors.items()}
        return Record(
            {"kind": "lowrank", "scales": list(self._factors)}, parts={"fine": self._fine.to_record(), **factors}
        )

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> LowRankDiffuser:
        """Return the diffuser of a record, or raise if it is none."""
        scales = record.values.get("scales")
        names = scales if isinstance(scales, list) and scales else [None]
        factors = [Factor.from_record(record.part(f"factor_{scale}"), operator.n_points) for scale in names]
        known = [factor.scale for factor in factors]
        if known != names or known != list(range(known[0], known[0] + len(known))):
            raise InvalidInputError("stored factors of consecutive scales", f"those of {known}")
        return cls(ChebyshevDiffuser.from_record(record.part("fine"), operator, adjoint=adjoint), factors)

    @property
    def rank(self) -> int:
        """Rank of the first factor, the largest."""
        return self._factors[self.first].rank

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        fine = range(scales.start, min(scales.stop, self.first))
        if fine:
            yield from self._fine.diffuse(masses, fine)
        yield from self._coarse(masses, range(max(scales.start, self.first), scales.stop))

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield density after density, up to the last factor; see `Diffuser.diffuse_progressively`."""
        for _, density in zip(range(self.first), self._fine.diffuse_progressively(masses), strict=False):
            yield density
        yield from self._coarse(masses, range(self.first, self.first + len(self._factors)))

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the sum of the transposed operators on one block each; see `Diffuser.collect`."""
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
        """Return the polynomial's bound at fine scales and the factor's at coarse ones; see `Diffuser.error_bound`."""
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


def _contiguous(factor: Factor, dtype: npt.DTypeLike) -> Factor:
    return replace(factor, basis=np.ascontiguousarray(factor.basis, dtype=dtype))


def _are_nested(factors: Sequence[Factor]) -> bool:
    """Return whether every basis is the first columns of the one before, so that its coordinates are the first too."""
    return all(
        coarse.rank <= fine.rank and np.array_equal(coarse.basis, fine.basis[:, : coarse.rank])
        for fine, coarse in pairwise(factors)
    )


def _apply(factor: Factor, block: Block) -> Block:
    """Return basis @ core @ basis.T @ block; a column's bits do not depend on the others."""
    return _from_coordinates(factor, _coordinates(factor, block), block.dtype)


def _coordinates(factor: Factor, block: Block) -> Float64:
    """Return basis.T @ block; bits of a row depend on its column of the basis alone."""
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
    # Squaring ruins small singular values, but the largest one keeps all of its digits, and this is five times faster
    # than the singular values of a sketch of 300 rows and 10,000 columns.
    gram = scaled @ scaled.T
    last = len(gram) - 1
    value = eigvalsh(gram, subset_by_index=(last, last), check_finite=False)[0]
    return largest * float(np.sqrt(max(value, 0.0)))


def spectral_norm_from_sketch(rows: FloatArray, failure: float = FAILURE) -> float:
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


# Gaussian test vectors. Their bound fails with a probability of 1e-10 and is some 6 times too large (32: 3 times, at
# twice the price).
TESTS = 16
# Test vectors for what powers of the basis do: 24 times too large, of numbers that are far below ``tol``.
TESTS_OF_POWERS = 8
# Eigenvectors are sought down to tol / BELOW at the first coarse scale: what lies below is what the bound sees first,
# and the test vectors overstate a norm by a factor of about 6.
BELOW = 30.0
# Growth (its logarithm) of the polynomial at eigenvalue 1, per pass: the block's columns become that much more alike,
# and float32 keeps the weakest wanted eigenvectors only if this is far from 2^24. Measured on the swiss roll: 15 in one
# pass lost a tenth of them. Ritz vectors are apart already and bear more; the more points there are, the more a random
# block has beside them. With 11 in the second pass instead of 13 the swiss roll of 10,000 points needed a third, and
# with 14 that of 100,000.
FIRST_GROWTH = 9.0
GROWTH = 9.2  # and half of the logarithm of n_points
# Below this tol the whole filter runs in float64.
SINGLE_TOL = 1e-5
# Two passes reach the bound in most cases; a guess of the rank that was far too small takes one more per doubling.
PASSES = 12
# A pass that does not improve the bound by a third has met rounding: of float32, or there is no more to gain.
STALLED = 0.7
# Columns beyond the wanted rank, which make the weakest wanted vectors converge.
OVERSAMPLING = 1.25
# Up to this many points all eigenpairs are computed if half of them are wanted, or some far below zero.
SMALL = 1_000
# Rows of a dense product that a thread takes at a time: fixed, so that bits do not depend on the threads. The linear
# algebra library's own threads wait for each other, which beside another process takes many times as long.
ROWS_AT_ONCE = 8_192
# Directions of the filtered block weaker than this carry only rounding. With 1e-11 a ring of 1,500 points, where the
# filter's degree is so low that rounding it up adds 3 to the growth, lost a quarter of the block at tol 1e-6, and no
# doubling brought it back.
WEAKEST = 1e-13
# A block whose directions differ more than this in strength is made orthonormal in two steps: one leaves errors of
# 3e-16 to 7e-16 over the weakest (four graphs of a thousand points, growths of 5 to 9), here 7e-12 at most.
ALIKE = 1e-4


@dataclass(frozen=True, eq=False)
class Ritz:
    """Approximate eigenpairs of S, farthest from zero first, orthogonal to the top eigenvectors.

    Attributes
    ----------
    values
        ``(rank,)``.
    vectors
        ``(n_points, rank)``, orthonormal, in the operator's order.
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
    """Return S^(2^k) for k from ``first`` to ``last`` in a basis of eigenvectors, each within ``tol``.

    Parameters
    ----------
    operator
        The diffusion operator, in float64.
    first, last
        The coarse scales.
    rank
        A guess of the number of eigenvalues whose power ``2**first`` exceeds ``tol / 30``; the block starts with
        somewhat more and grows until the bound holds.
    tol
        Bound asked for at every scale.
    rng
        Draws the block and the test vectors.
    most
        Columns that the block may grow to.
    n_threads
        Threads to use.

    Returns
    -------
    list of Factor, or None
        None if ``most`` columns do not reach the bound, if rounding exceeds it, or if negative eigenvalues matter too
        on a graph of more than 1,000 points.
    """
    scales = range(first, last + 1)
    # Whole vector registers.
    width = -(-int(OVERSAMPLING * rank) // LANES) * LANES + LANES
    theta = threshold(first, tol / BELOW)
    # Eigenvalues close to -1, as on a bipartite graph, grow like those close to 1; the filter would miss them.
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
            # Every vector found is wanted, so there are more of them.
            block, fresh = np.hstack([block, _random_block(operator, block.shape[1], rng)]), True
        elif fresh:
            # What began as random columns needs a second pass.
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
    """Filter a block ``(n_points, width)`` towards the eigenvectors above ``theta`` and extract them.

    ``growth`` is the logarithm of the polynomial at eigenvalue 1; it is at most 1 up to ``theta``.
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
    """Return the Ritz pairs of S in what the columns span."""
    whitening = _whitening(_inner_products(block, block, n_threads), len(block))
    if whitening.weakest < ALIKE:
        # Too much alike for one step: it would lose too many digits of the weak directions.
        block = _turned(block, whitening.turn, n_threads)
        operator.remove_top(block)
        whitening = _whitening(_inner_products(block, block, n_threads), len(block))
    small = whitening.turn.T @ _quadratic_form(operator, block, n_threads) @ whitening.turn
    pairs = _sorted(*_eigenpairs((small + small.T) / 2))
    return Ritz(pairs.values, _turned(block, whitening.turn @ pairs.vectors, n_threads))


def _quadratic_form(operator: DiffusionOperator, block: Float64, n_threads: int) -> Float64:
    """Return ``block' S block``, with the same bits for any number of threads."""
    from heatmover._base.compiled.recurrence import multiply

    indptr, indices = operator.structure

    def product(rows: slice) -> Float64:
        # Some rows of S block at a time: all of them would be another block to write and read.
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
    # What is left of the top eigenvectors has eigenvalue 0 and could be any mixture with others of that value.
    return _sorted(values, vectors)


def _sorted(values: Float64, vectors: Float64) -> Ritz:
    order = np.argsort(-np.abs(values), kind="stable")
    return Ritz(np.clip(values[order], -1, 1), np.ascontiguousarray(vectors[:, order]))


class Whitening(NamedTuple):
    """What makes columns orthonormal, ``(width, rank)``, and the weakest of their directions that is left."""

    turn: Float64
    weakest: float


def _whitening(gram: Float64, n_points: int) -> Whitening:
    """Return how to turn columns with these products into an orthonormal basis of what they span above rounding."""
    lengths = np.sqrt(np.diag(gram))
    scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > WEAKEST * np.sqrt(n_points))
    weights, turn = _eigenpairs(scale[:, None] * gram * scale)
    kept = weights > WEAKEST * len(gram)
    return Whitening(scale[:, None] * turn[:, kept] / np.sqrt(weights[kept]), float(weights[kept].min(initial=1.0)))


# In one thread: those of the library spin while they wait for each other.
_eigenpairs = by_one_blas_thread(np.linalg.eigh)


def _inner_products(a: Float64, b: Block, n_threads: int) -> Float64:
    """Return ``a' b``, with the same bits for any number of threads."""
    with one_blas_thread():
        return np.asarray(sum(in_threads(lambda rows: a[rows].T @ b[rows], _runs_of_rows(len(a)), n_threads)))


def _turned(block: Float64, turn: Float64, n_threads: int) -> Float64:
    """Return ``block @ turn``, with the same bits for any number of threads."""
    result = np.empty((len(block), turn.shape[1]))
    with one_blas_thread():
        in_threads(lambda rows: np.matmul(block[rows], turn, out=result[rows]), _runs_of_rows(len(block)), n_threads)
    return result


def _runs_of_columns(width: int, n_threads: int) -> list[slice]:
    """Return whole vector registers of columns, in blocks that keep the threads busy; bits do not depend on them."""
    units = max(-(-width // LANES), 1)
    count = min(-(-units * LANES // (WIDEST_BLOCK * n_threads)) * n_threads, units)
    edges = [min(LANES * (units * i // count), width) for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def _runs_of_rows(count: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE)]


def _factors(
    operator: DiffusionOperator, ritz: Ritz, scales: range, tol: float, rng: np.random.Generator, n_threads: int
) -> list[Factor]:
    """Cut the pairs at each scale where their powers no longer matter, and bound every error."""
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
    """Bounds e, k, h and g of the errors of a basis; see the top of the module."""

    everywhere: float
    leaving: float
    within: float
    on_powers: float


def _errors(
    operator: DiffusionOperator, ritz: Ritz, scales: range, tol: float, rng: np.random.Generator, n_threads: int
) -> Errors:
    """Measure what the pairs are off by at the first scale; the blur is chosen for all."""
    steps, vectors = 2**scales.start, ritz.vectors
    # What the polynomial p leaves out; repeated squaring multiplies g, and with it this.
    blur = max(tol / max(256.0, 32 * 2.0 ** (len(scales) - 1)), 1e-13)
    weights = _polynomial(ritz.values, power_coefficients(steps, operator.lowest, blur)[0], operator.lowest)

    anywhere = rng.standard_normal((operator.n_points, TESTS))
    inside = _inner_products(vectors, anywhere, n_threads)
    powers = ritz.values[:, None] ** float(steps)
    drawn = powers * rng.standard_normal((len(weights), TESTS_OF_POWERS))
    starts = np.hstack([anywhere, _turned(vectors, drawn, n_threads)])
    images = deflated_power(operator, starts, scales.start, blur, n_threads=n_threads)
    # p(S) - V p(Lambda) V', which differs from E by at most twice the blur; with L in place of p(Lambda) the tests
    # would overstate the blur like everything else.
    images -= _turned(vectors, weights[:, None] * np.hstack([inside, drawn]), n_threads)
    errors, on_powers = np.hsplit(images, [TESTS])
    within = _inner_products(vectors, on_powers, n_threads)
    leaving = on_powers - _turned(vectors, within, n_threads)
    parts = errors, leaving, within, powers * within
    return Errors(*(spectral_norm_from_sketch(part.T) + 2 * blur for part in parts))


def _polynomial(values: Float64, coefficients: Float64, lowest: float) -> Float64:
    """Return the sum of Chebyshev polynomials on [lowest, 1] at some values in it."""
    mapped = np.clip((2 * values - 1 - lowest) / (1 - lowest), -1, 1)
    return np.asarray(np.polynomial.chebyshev.chebval(mapped, coefficients))


def _bound(errors: Errors, largest: float, repeats: float) -> float:
    """Bound the error of the power ``repeats`` of B; the formulas are at the top of the module."""
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
    """Draw Gaussian columns orthogonal to the top eigenvectors, as many as fill whole vector registers."""
    block = rng.standard_normal((operator.n_points, -(-width // LANES) * LANES), dtype=np.float32)
    operator.remove_top(block)
    return block
