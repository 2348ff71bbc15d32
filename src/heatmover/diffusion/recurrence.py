"""Chebyshev polynomials of the operator, applied to blocks of columns: what every way to diffuse is built on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice, pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads
from heatmover._typing import Float64
from heatmover.diffusion.base import LANES, Block
from heatmover.diffusion.operator import DiffusionOperator

__all__ = ["Recurrence", "in_columns"]

# Wide blocks amortise the reading of the operator over more columns; 64 float32 columns reach the peak
# of the compiled recurrence (20 GFlop/s per core against 9 at 16 and 5 at 8).
WIDEST_BLOCK = 64


@final
class Recurrence:
    """T_1 X, T_2 X, ... with the Chebyshev polynomials T_j of S on an interval, by the three-term recurrence.

    Parameters
    ----------
    operator
        The diffusion operator.
    dtype
        Precision of the recurrence.
    highest
        The interval is [operator.lowest, highest]; on eigenvalues above it the polynomials grow without bound.
    n_threads
        Threads that share every step by rows. One block of 32 columns takes two threads two thirds of the time of two
        blocks of 16; columns that fill a wide block for each thread are better shared by columns, see `in_columns`.
    """

    def __init__(
        self, operator: DiffusionOperator, dtype: npt.DTypeLike, *, highest: float = 1.0, n_threads: int = 1
    ) -> None:
        self._matrix = operator.symmetric
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._data = operator.symmetric.data.astype(self.dtype, copy=False)
        # slope * S + offset is twice the map of the interval onto [-1, 1].
        self._slope = 4 / (highest - operator.lowest)
        self._offset = 2 - self._slope * highest
        indptr = operator.symmetric.indptr
        cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], n_threads + 1)[1:-1])
        self._rows = list(pairwise([0, *(int(cut) for cut in cuts), operator.n_points]))

    def terms(self, start: Block) -> Iterator[Block]:
        """Yield T_1 X, T_2 X, ... for a block X ``(n_points, width)``; each is valid until two more were taken."""
        nothing = self._nothing(start)
        return self._advance(start.copy(), lambda _degree: nothing)

    def polynomials(self, start: Block, coefficients: Sequence[Float64]) -> Iterator[Block]:
        """Yield polynomials of S applied to one block, each as soon as it is complete.

        Parameters
        ----------
        start
            The block ``(n_points, width)``, of this recurrence's precision, which is used up: it holds something else
            afterwards. Widths in whole vector registers waste nothing.
        coefficients
            Of T_0, T_1, ... in each polynomial, from the shortest to the longest.

        Yields
        ------
        ndarray
            ``(n_points, width)``, once per polynomial, in order.
        """
        lengths = [len(part) for part in coefficients]
        # A pair of terms is added at a time: T_1 and T_2, T_3 and T_4, ...; zeros fill the last one up.
        table = np.zeros((len(lengths), max(lengths) + 1), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part
        # In two parts, so that the memory of the fine scales, which are done early, is free for what is made of them.
        n_fine = sum(3 * length <= lengths[-1] for length in lengths)
        fine: Block = start * table[:n_fine, 0, None, None]
        coarse: Block = start * table[n_fine:, 0, None, None]
        nothing = self._nothing(start)
        done = 0

        def shares(degree: int) -> tuple[Block, Block, Block]:
            if degree % 2:
                return nothing
            return table[done:, degree - 1 : degree + 1], fine[done:], coarse[max(done - n_fine, 0) :]

        terms = self._advance(start, shares)
        for degree in count(0, 2):
            while done < len(lengths) and lengths[done] <= degree + 1:
                yield fine[done] if done < n_fine else coarse[done - n_fine]
                done += 1
                if done == n_fine:
                    fine = nothing[1]
            if done == len(lengths):
                return
            next(islice(terms, 1, None))

    def transposed(self, inputs: Block, coefficients: Sequence[Float64]) -> Block:
        """Return the sum of polynomials of S, each applied to a block of its own, by one recurrence (Clenshaw).

        Parameters
        ----------
        inputs
            ``(n_polynomials, n_points, width)``, of this recurrence's precision.
        coefficients
            Of T_0, T_1, ... in each polynomial, from the shortest to the longest.

        Returns
        -------
        ndarray
            ``(n_points, width)``.
        """
        from heatmover._compiled.recurrence import retreat

        matrix, number = self._matrix, self.dtype.type
        lengths = np.array([len(part) for part in coefficients])
        table = np.zeros((len(lengths), int(lengths[-1])), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part

        def step(rows: tuple[int, int]) -> None:
            retreat(
                rows, matrix.indptr, matrix.indices, self._data, current, previous, number(slope), number(offset),
                shares, inputs[first:],
            )  # fmt: skip

        current: Block = inputs[-1] * table[-1, -1]
        previous = np.zeros_like(current)
        for other in np.flatnonzero(lengths[:-1] == lengths[-1]):
            current += inputs[other] * table[other, -1]
        with ThreadPoolExecutor(len(self._rows)) as pool:
            for degree in range(int(lengths[-1]) - 2, -1, -1):
                first = int(np.searchsorted(lengths, degree, side="right"))
                shares = np.ascontiguousarray(table[first:, degree])
                # The last step is half of the others: T_0 = 1, but T_1 = X T_0 and not 2 X T_0.
                half = 1.0 if degree else 0.5
                slope, offset = half * self._slope, half * self._offset
                list(pool.map(step, self._rows)) if len(self._rows) > 1 else step(self._rows[0])
                current, previous = previous, current
        return current

    def _nothing(self, start: Block) -> tuple[Block, Block, Block]:
        empty = np.empty((0, *start.shape), dtype=self.dtype)
        return np.empty((0, 2), dtype=self.dtype), empty, empty

    def _advance(self, start: Block, shares: Callable[[int], tuple[Block, Block, Block]]) -> Iterator[Block]:
        """Yield T_1 X, T_2 X, ..., overwriting X."""
        from heatmover._compiled.recurrence import advance

        matrix, number = self._matrix, self.dtype.type
        # T_1 = X T_0 is half of what the recurrence makes of T_{-1} = 0.
        current, previous, slope, offset = start, np.zeros_like(start), self._slope / 2, self._offset / 2

        def step(rows: tuple[int, int]) -> None:
            advance(
                rows, matrix.indptr, matrix.indices, self._data, current, previous, number(slope), number(offset),
                *parts,
            )  # fmt: skip

        with ThreadPoolExecutor(len(self._rows)) as pool:
            for degree in count(1):
                parts = shares(degree)
                list(pool.map(step, self._rows)) if len(self._rows) > 1 else step(self._rows[0])
                current, previous, slope, offset = previous, current, self._slope, self._offset
                yield current


def in_columns(
    function: Callable[[Block], Block], block: Block, *, n_threads: int, widest: int = WIDEST_BLOCK
) -> Block:
    """Apply ``function`` to groups of columns of ``block`` in threads and put the results side by side.

    Groups are whole vector registers of at most ``widest`` columns, enough of them to keep the threads busy.
    """
    units = -(-block.shape[1] // LANES)
    rounds = -(-units * LANES // (widest * n_threads))
    count = max(1, min(rounds * n_threads, units))
    edges = [LANES * (units * i // count) for i in range(1, count)]
    parts = [np.ascontiguousarray(part) for part in np.split(block, edges, axis=1)]
    return np.concatenate(in_threads(function, parts, n_threads), axis=1)
