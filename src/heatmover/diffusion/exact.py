"""The plain way to diffuse: a dense eigendecomposition. Slow, obviously right, the oracle of all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover.diffusion.base import Block, Diffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.errors import InvalidInputError

__all__ = ["ExactDiffuser"]

# Memory is 8 n^2 bytes and time about n^3: 10,000 points take 800 MB and some minutes.
LARGEST = 10_000


@final
class ExactDiffuser(Diffuser):
    """Powers of S from all of its eigenvalues, float64 throughout.

    Parameters
    ----------
    operator
        At most 10,000 points.
    adjoint
        True for densities of the adjoint, False for the paper's literal P^t.
    """

    def __init__(self, operator: DiffusionOperator, *, adjoint: bool) -> None:
        if operator.n_points > LARGEST:
            raise InvalidInputError(
                f"at most {LARGEST} points for method='exact'",
                f"{operator.n_points}",
                "use method='chebyshev', which is certified to any tol",
            )
        self.operator = operator
        self._values, vectors = np.linalg.eigh(operator.symmetric.toarray())
        self._vectors = np.ascontiguousarray(vectors)
        # The eigenvalue 1, one per component, must stay 1 at any power for mass to stay; the solver rounds it.
        near_one = np.abs(self._values - 1) < 4 * operator.n_points * np.finfo(float).eps
        self._values = np.clip(np.where(near_one, 1.0, self._values), -1, 1)
        root = np.sqrt(operator.degree)[:, None]
        self._outward = root if adjoint else 1 / root

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        spectrum = self._spectrum(masses)
        for scale in scales:
            yield self._density(spectrum, scale)

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield density after density; see `Diffuser.diffuse_progressively`."""
        spectrum = self._spectrum(masses)
        return (self._density(spectrum, scale) for scale in count())

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the sum of the transposed operators on one block each; see `Diffuser.collect`."""
        from heatmover._compiled.lowrank import combine, coordinates

        spectrum: npt.NDArray[np.float64] | float = 0.0
        for scale, block in zip(scales, blocks, strict=True):
            start = np.ascontiguousarray(block[self.operator.order] * self._outward)
            part = np.empty_like(start)
            coordinates(self._vectors, start, part)
            spectrum = spectrum + self._values[:, None] ** float(2**scale) * part
        values = np.empty_like(spectrum)
        combine(self._vectors, spectrum, values)
        result = np.empty_like(values)
        result[self.operator.order] = values / self._outward
        return result

    def error_bound(self, scales: range) -> npt.NDArray[np.float64]:
        """Return zeros: nothing is cut off."""
        return np.zeros(len(scales))

    # Not by matrix products of numpy: how they round a column depends on how many there are.
    def _spectrum(self, masses: Block) -> npt.NDArray[np.float64]:
        from heatmover._compiled.lowrank import coordinates

        start = np.ascontiguousarray(masses[self.operator.order] / self._outward)
        spectrum = np.empty_like(start)
        coordinates(self._vectors, start, spectrum)
        return spectrum

    def _density(self, spectrum: npt.NDArray[np.float64], scale: int) -> Block:
        from heatmover._compiled.lowrank import combine

        block = np.empty_like(spectrum)
        combine(self._vectors, self._values[:, None] ** float(2**scale) * spectrum, block)
        density = np.empty_like(block)
        density[self.operator.order] = self._outward * block
        return density
