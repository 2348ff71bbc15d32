"""One step after the other: for graphs so uneven that polynomials of S lose every digit.

Polynomials and eigenvectors compute in the coordinates of S, where mass is divided by the root of the stationary law.
If that root varies by more than a float has digits, rounding at the faintest points is larger than all mass at the
others. The walk itself only adds products of numbers that are not negative: every entry of a density is right to
within a few units of rounding per step, however small it is, at the price of 2^k products for scale k.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._base.storage.record import Record
from heatmover._base.types import Float64
from heatmover.diffusion.operator import Block, Diffuser, DiffusionOperator

__all__ = ["LONGEST", "WalkDiffuser"]

# 2^18 steps of 1,000 points with 10 neighbours take 3 s per measure.
LONGEST = 18

# Roundings of an entry of the walk beside those of its two sums.
ROUNDINGS = 10


@final
class WalkDiffuser(Diffuser):
    """Powers of the walk by as many sparse products, float64 throughout.

    Parameters
    ----------
    operator
        The diffusion operator, in float64.
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
        """Return the diffuser as a record that a store can hold, its operator and density apart."""
        return Record({"kind": "walk"})

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> WalkDiffuser:
        """Return the diffuser of a record, or raise if it is none."""
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
        """Yield density after density; see `Diffuser.diffuse_progressively`."""
        density = next(self.diffuse(masses, range(1)))
        for scale in count():
            yield density
            density = _walk(self._forward, density, 2**scale)

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the sum of the transposed operators on one block each, coarsest first; see `Diffuser.collect`."""
        inputs = [np.asarray(block, dtype=np.float64) for block in blocks]
        total: Block = np.zeros_like(inputs[-1])
        for scale, block in zip(reversed(scales), reversed(inputs), strict=True):
            finer = 2 ** (scale - 1) if scale > scales.start else 0
            total = _walk(self._backward, total + block, 2**scale - finer)
        return total

    def error_bound(self, scales: range) -> Float64:
        """Return what rounding may do: nothing is cut off, and nothing is subtracted."""
        per_step = (int(np.diff(self._forward.indptr).max()) + ROUNDINGS) * np.finfo(np.float64).eps
        return np.array([2**scale * per_step for scale in scales])


def _walk(matrix: sp.csr_array, block: Block, steps: int) -> Block:
    """Return ``matrix ** steps @ block``; SciPy adds each column by itself, in the order of the entries."""
    for _ in range(steps):
        block = matrix @ block
    return block
