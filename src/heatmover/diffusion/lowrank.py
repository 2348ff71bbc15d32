"""Coarse scales from a small basis: there the powers of the operator have small numerical rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64, FloatArray, Intp
from heatmover.diffusion.base import Block, Diffuser
from heatmover.diffusion.chebyshev import ChebyshevDiffuser, power_coefficients, rounding
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.recurrence import Recurrence, in_columns
from heatmover.errors import InvalidInputError
from heatmover.storage import Record

__all__ = ["COARSEST_FACTOR", "ROUNDING_STEPS", "Factor", "LowRankDiffuser", "deflated_power"]


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
    from heatmover._compiled.lowrank import coordinates

    inner = np.empty((factor.rank, block.shape[1]))
    coordinates(factor.basis, block, inner)
    return inner


def _from_coordinates(factor: Factor, inner: Float64, dtype: npt.DTypeLike) -> Block:
    """Return basis @ core @ inner."""
    from heatmover._compiled.lowrank import combine

    weights = np.empty_like(inner)
    combine(factor.core, inner, weights)
    result = np.empty((len(factor.basis), inner.shape[1]), dtype=dtype)
    combine(factor.basis, weights.astype(dtype), result)
    return result
