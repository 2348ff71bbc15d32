"""Coarse scales from a small basis: there the powers of the operator have small numerical rank.

The ranks of all dyadic powers come from the density of states. The number of eigenvalues in an interval is the trace of
a step function of S. A polynomial approximates the step (its Chebyshev series, damped by the Jackson kernel against
ringing), and products with random signs the trace: E[w' f(S) w] = tr f(S). One recurrence gives the moments tr T_j(S)
for all intervals. The eigenvectors to eigenvalue 1, one per component, are known and left out of the estimate, so that
they are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._base.storage.record import Record
from heatmover._base.types import Float64, FloatArray, Intp
from heatmover.diffusion.chebyshev import ChebyshevDiffuser, Recurrence, in_columns, power_coefficients, rounding
from heatmover.diffusion.operator import Block, Diffuser, DiffusionOperator
from heatmover.errors import InvalidInputError

__all__ = [
    "COARSEST_FACTOR",
    "ROUNDING_STEPS",
    "DensityOfStates",
    "Factor",
    "LowRankDiffuser",
    "deflated_power",
    "density_of_states",
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
