"""Diffuse by a dense eigendecomposition, or step by step; embeddings and scales call it; it touches no files.

`ExactDiffuser` is slow and simple. It is the reference for all other methods.

`WalkDiffuser` is for graphs whose affinities vary so much that polynomials of S lose all precision. Polynomials and
eigenvectors use the coordinates of S, where mass is divided by the square root of the stationary distribution. If these
square roots differ by a larger factor than a float can resolve, the rounding error at points of small probability
exceeds all mass at the other points. `WalkDiffuser` takes the steps of the random walk one by one, and only adds
products of non-negative numbers. So every entry of a density is accurate to a few units of rounding per step, however
small the entry is. Scale k costs 2^k products with the operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._base.storage.record import Record
from heatmover._base.types import Float64, Intp
from heatmover.diffusion.operator import Block, Diffuser, DiffusionOperator, rounding
from heatmover.errors import InvalidInputError

# Largest number of points of `ExactDiffuser`, whose memory is 8 n^2 bytes and whose time grows with n^3: 10,000 points
# take 800 MB and a few minutes.
LARGEST = 10_000


# The rounding error of LAPACK's eigenpairs is at most SOLVER + SOLVER_ROOT * sqrt(n_points) times the rounding error of
# S. The measured errors ||V L V' - S|| and ||V V' - 1|| were at most half of this on 12 to 1,500 points.
SOLVER, SOLVER_ROOT = 8, 4


@final
class ExactDiffuser(Diffuser):
    """Diffusion by all eigenvalues of S, component by component, in float64.

    Parameters
    ----------
    operator
        Diffusion operator on at most 10,000 points.
    adjoint
        True for densities of the adjoint, False for the paper's literal P^t.
    parts
        Eigenpairs of the components if they are already computed.
    """

    def __init__(
        self, operator: DiffusionOperator, *, adjoint: bool, parts: Sequence[_Component] | None = None
    ) -> None:
        if operator.n_points > LARGEST:
            raise InvalidInputError(
                f"at most {LARGEST} points for method='exact'",
                f"{operator.n_points}",
                "use method='chebyshev', whose error is certified too",
            )
        self.operator = operator
        self._top = operator.top
        self._parts = (
            [_Component.of(operator, rows) for rows in _joined_rows(operator)] if parts is None else list(parts)
        )
        self._outward = (self._top if adjoint else 1 / self._top)[:, None]

    def to_record(self) -> Record:
        """Return the diffuser as a record, without ``operator`` and ``adjoint``."""
        parts = {
            f"part_{number}": Record(
                arrays={"rows": part.rows.astype(np.int64, copy=False), "values": part.values, "vectors": part.vectors}
            )
            for number, part in enumerate(self._parts)
        }
        return Record({"kind": "exact", "n_parts": len(parts)}, parts=parts)

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> ExactDiffuser:
        """Return the diffuser that a record holds, or raise an error if the record is invalid."""
        parts = []
        for number in range(record.integer("n_parts")):
            stored = record.part(f"part_{number}")
            rows = stored.places("rows", np.int64, (None,), operator.n_points).astype(np.intp, copy=False)
            values, vectors = stored.floats("values", (rows.size,)), stored.floats("vectors", (rows.size, rows.size))
            parts.append(_Component(rows, values, vectors))
        return cls(operator, adjoint=adjoint, parts=parts)

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        start = np.ascontiguousarray(masses[self.operator.order] / self._outward)
        known, spectra = self._known(start), [part.spectrum(start) for part in self._parts]
        for scale in scales:
            yield self._in_graph_order(self._outward * self._power(known, spectra, scale))

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities at 2^0, 2^1, ... steps; see `Diffuser.diffuse_progressively`."""
        return (density for scale in count() for density in self.diffuse(masses, range(scale, scale + 1)))

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Apply the transpose of `diffuse`; see `Diffuser.collect`."""
        values: Block | None = None
        for scale, block in zip(scales, blocks, strict=True):
            start = np.ascontiguousarray(block[self.operator.order] * self._outward)
            power = self._power(self._known(start), [part.spectrum(start) for part in self._parts], scale)
            values = power if values is None else values + power
        assert values is not None
        return self._in_graph_order(values / self._outward)

    def error_bound(self, scales: range) -> Float64:
        """Return a bound on the rounding error, the only error of this method, ``(n_scales,)``."""
        return solver_rounding(self.operator.n_points) * np.array([rounding(2**k, np.float64) for k in scales])

    def _known(self, start: Block) -> Block:
        """Return the projection of each column on the top eigenvectors; powers of S do not change this projection."""
        from heatmover._base.compiled.recurrence import known_parts

        shares = np.empty((self.operator.n_components, start.shape[1]))
        known_parts(start, self._top, self.operator.component, shares)
        return np.asarray(self._top[:, None] * shares[self.operator.component])

    def _power(self, known: Block, spectra: Sequence[Block], scale: int) -> Block:
        result = known.copy()
        for part, spectrum in zip(self._parts, spectra, strict=True):
            result[part.rows] += part.power(spectrum, scale)
        return result

    def _in_graph_order(self, block: Block) -> Block:
        result = np.empty_like(block)
        result[self.operator.order] = block
        return result


def solver_rounding(n_points: int) -> float:
    """Return the rounding error of the eigenpairs of a graph, as a multiple of the rounding error of S."""
    return float(SOLVER + SOLVER_ROOT * np.sqrt(n_points))


@final
@dataclass(frozen=True, eq=False)
class _Component:
    """Eigenpairs of S on one component, without the top eigenvector."""

    rows: Intp  # (n_rows,)
    values: Float64  # (n_rows,)
    vectors: Float64  # (n_rows, n_rows)

    @classmethod
    def of(cls, operator: DiffusionOperator, rows: Intp) -> _Component:
        top = operator.top[rows]
        values, vectors = np.linalg.eigh(operator.symmetric[rows][:, rows].toarray() - np.outer(top, top))
        return cls(rows, np.clip(values, -1, 1), np.ascontiguousarray(vectors))

    # NumPy's matrix products are avoided, because their rounding of a column depends on the number of columns.
    def spectrum(self, start: Block) -> Float64:
        from heatmover._base.compiled.lowrank import coordinates

        result = np.empty((self.values.size, start.shape[1]))
        coordinates(self.vectors, start[self.rows], result)
        return result

    def power(self, spectrum: Block, scale: int) -> Block:
        from heatmover._base.compiled.lowrank import combine

        result = np.empty_like(spectrum)
        combine(self.vectors, self.values[:, None] ** float(2**scale) * spectrum, result)
        return result


def _joined_rows(operator: DiffusionOperator) -> list[Intp]:
    """Return the rows of each component with at least two points; the mass of a single point never moves."""
    sizes = np.bincount(operator.component, minlength=operator.n_components)
    groups = np.split(np.argsort(operator.component, kind="stable"), np.cumsum(sizes)[:-1])
    return [group for group in groups if group.size > 1]


# Largest scale that is computed step by step: 2^18 steps on 1,000 points with 10 neighbors take 3 s per measure.
LONGEST = 18

# Number of roundings per entry and step, in addition to one rounding per term of the entry's sum.
ROUNDINGS = 10


@final
class WalkDiffuser(Diffuser):
    """Diffusion step by step, with one sparse product per step, in float64.

    Parameters
    ----------
    operator
        Diffusion operator in float64.
    adjoint
        True for densities of the adjoint, False for the paper's literal P^t.
    """

    def __init__(self, operator: DiffusionOperator, *, adjoint: bool) -> None:
        self.operator = operator
        place = np.argsort(operator.order)
        matrix = operator.symmetric[place][:, place]
        root = (operator.top if adjoint else 1 / operator.top)[place]
        ratio = np.repeat(root, np.diff(matrix.indptr)) / root[matrix.indices]
        self._forward, self._backward = (
            sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
            for data in (matrix.data * ratio, matrix.data / ratio)
        )

    def to_record(self) -> Record:
        """Return the diffuser as a record, without ``operator`` and ``adjoint``."""
        return Record({"kind": "walk"})

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> WalkDiffuser:
        """Return the diffuser that a record holds, or raise an error if the record is invalid."""
        record.text("kind", ("walk",))
        return cls(operator, adjoint=adjoint)

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        density: Block = np.asarray(masses, dtype=np.float64)
        steps = 0
        for scale in scales:
            density, steps = _walk(self._forward, density, 2**scale - steps), 2**scale
            yield density

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities at 2^0, 2^1, ... steps; see `Diffuser.diffuse_progressively`."""
        density = next(self.diffuse(masses, range(1)))
        for scale in count():
            yield density
            density = _walk(self._forward, density, 2**scale)

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Apply the transpose of `diffuse`, from the coarsest scale to the finest; see `Diffuser.collect`."""
        inputs = [np.asarray(block, dtype=np.float64) for block in blocks]
        total: Block = np.zeros_like(inputs[-1])
        for scale, block in zip(reversed(scales), reversed(inputs), strict=True):
            finer = 2 ** (scale - 1) if scale > scales.start else 0
            total = _walk(self._backward, total + block, 2**scale - finer)
        return total

    def error_bound(self, scales: range) -> Float64:
        """Return a bound on the rounding error, ``(n_scales,)``; sums of non-negative terms lose no digits."""
        per_step = (int(np.diff(self._forward.indptr).max()) + ROUNDINGS) * np.finfo(np.float64).eps
        return np.array([2**scale * per_step for scale in scales])


def _walk(matrix: sp.csr_array, block: Block, steps: int) -> Block:
    """Return ``matrix ** steps @ block``; SciPy sums each column separately, in the order of the entries."""
    for _ in range(steps):
        block = matrix @ block
    return block
