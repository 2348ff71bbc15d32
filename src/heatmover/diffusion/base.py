"""What every way to diffuse can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover.diffusion.operator import DiffusionOperator
from heatmover.storage import Record

__all__ = ["LANES", "Block", "Diffuser", "aligned_zeros"]

# Columns of a block that a vector register of the machine holds: widths that are multiples of it waste nothing.
LANES = 8

# Bytes of a line of the cache. A vector that reaches over two lines takes two loads: from NumPy's own arrays, which
# begin 16 bytes behind a line, products with the operator took a fifth longer.
CACHE_LINE = 64

Block = npt.NDArray[np.floating[Any]]


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Block:
    """Return zeros that begin where a line of the cache does.

    Examples
    --------
    >>> aligned_zeros((3, 8), np.float32).ctypes.data % 64
    0
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


class Diffuser(ABC):
    """Pushes blocks of measures through powers of one diffusion operator.

    A diffuser is built once for an operator and a tolerance and then applied to any number of blocks, from any
    number of threads: it holds no state that a call changes.

    Attributes
    ----------
    operator
        The diffusion operator.
    """

    operator: DiffusionOperator

    @abstractmethod
    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities of ``masses`` at times ``2**k`` for every k in ``scales``.

        Parameters
        ----------
        masses
            ``(n_points, width)``, columns are measures.
        scales
            Consecutive non-negative scales.

        Yields
        ------
        ndarray
            ``(n_points, width)``, once per scale.
        """

    def shared_by(self, n_threads: int) -> Diffuser | None:  # noqa: ARG002
        """Return this way with steps that threads share by rows, the same bits; None if only columns can be shared."""
        return None

    @abstractmethod
    def to_record(self) -> Record:
        """Return what a store must hold beside the operator and the density; its value "kind" names the way."""

    @abstractmethod
    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities ``(n_points, width)`` at times ``2**0, 2**1, ...`` until the caller stops."""

    @abstractmethod
    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the transpose of `diffuse`: the sum over scales of the transposed operator on one block each.

        Parameters
        ----------
        blocks
            ``(n_points, width)``, once per scale, in order; each may be changed.
        scales
            Consecutive non-negative scales, at least one.

        Returns
        -------
        ndarray
            ``(n_points, width)``: its product with any measure is the sum over scales of the products of the blocks
            with the densities of that measure.
        """

    @abstractmethod
    def error_bound(self, scales: range) -> npt.NDArray[np.float64]:
        """Return, per scale, the largest error of an eigenvalue's power, ``(n_scales,)``.

        It bounds the error of a density f relative to its measure in the operator's own norm:
        ``sqrt(sum(error**2 / pi)) <= bound * sqrt(sum(mass**2 / pi))`` for densities of the adjoint (pi is the
        stationary law), with ``* pi`` in place of ``/ pi`` for ``density="function"``.
        """
