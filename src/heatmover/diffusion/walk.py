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

from heatmover._typing import Float64
from heatmover.diffusion.operator import Block, Diffuser, DiffusionOperator
from heatmover.storage import Record

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
        matrix, root = operator.symmetric, operator.top if adjoint else 1 / operator.top
        self._structure = operator.structure
        ratio = np.repeat(root, np.diff(matrix.indptr)) / root[matrix.indices]
        self._forward, self._backward = matrix.data * ratio, matrix.data / ratio

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
        block: Block = np.array(masses[self.operator.order], dtype=np.float64, order="C")
        steps = 0
        for scale in scales:
            block, steps = self._walk(self._forward, block, 2**scale - steps), 2**scale
            yield self._in_graph_order(block)

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield density after density; see `Diffuser.diffuse_progressively`."""
        density = next(self.diffuse(masses, range(1)))
        for scale in count():
            yield density
            block = np.ascontiguousarray(density[self.operator.order])
            density = self._in_graph_order(self._walk(self._forward, block, 2**scale))

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the sum of the transposed operators on one block each, coarsest first; see `Diffuser.collect`."""
        inputs = [np.array(block[self.operator.order], dtype=np.float64, order="C") for block in blocks]
        total: Block = np.zeros_like(inputs[-1])
        for scale, block in zip(reversed(scales), reversed(inputs), strict=True):
            finer = 2 ** (scale - 1) if scale > scales.start else 0
            total = self._walk(self._backward, total + block, 2**scale - finer)
        return self._in_graph_order(total)

    def error_bound(self, scales: range) -> Float64:
        """Return what rounding may do: nothing is cut off, and nothing is subtracted."""
        per_step = (int(np.diff(self._structure[0]).max()) + ROUNDINGS) * np.finfo(np.float64).eps
        return np.array([2**scale * per_step for scale in scales])

    def _walk(self, data: Float64, block: Block, steps: int) -> Block:
        from heatmover._compiled.heat import diffuse

        everywhere = np.zeros((2, self.operator.n_points), dtype=np.int64)
        return np.asarray(diffuse(*self._structure, data, block, np.zeros_like(block), steps, everywhere))

    def _in_graph_order(self, block: Block) -> Block:
        result = np.empty_like(block)
        result[self.operator.order] = block
        return result
