"""Chebyshev polynomials of the operator, applied to blocks of columns: what every way to diffuse is built on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from itertools import count, pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._threads import in_threads
from heatmover._typing import Float64
from heatmover.diffusion.base import LANES, Block, aligned_zeros
from heatmover.diffusion.operator import DiffusionOperator

__all__ = ["Recurrence", "in_columns"]

# Wide blocks amortise the reading of the operator over more columns; 64 float32 columns reach the peak
# of the compiled recurrence (20 GFlop/s per core against 9 at 16 and 5 at 8).
WIDEST_BLOCK = 64

# Products of two numbers, a thread's part in a step, below which no further thread is worth while: to hand out a step
# takes 0.1 ms. On a graph of a hundred points two threads took twelve times as long as one.
PRODUCTS_PER_THREAD = 500_000
# Products in one call that takes many steps: on a graph of a hundred points a call takes longer than a step. One that
# took much longer than this, some milliseconds, could not be interrupted.
PRODUCTS_PER_CALL = 10_000_000


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
        Threads that share every step by rows, where it is long enough. One block of 32 columns takes two threads two
        thirds of the time of two blocks of 16; columns that fill a wide block for each thread are better shared by
        columns, see `in_columns`.
    """

    def __init__(
        self, operator: DiffusionOperator, dtype: npt.DTypeLike, *, highest: float = 1.0, n_threads: int = 1
    ) -> None:
        self._matrix = operator.symmetric
        self._structure = operator.structure
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._data = operator.symmetric.data.astype(self.dtype, copy=False)
        # slope * S + offset is twice the map of the interval onto [-1, 1].
        self._slope = 4 / (highest - operator.lowest)
        self._offset = 2 - self._slope * highest
        self._n_threads = n_threads

    def shared_by(self, n_threads: int) -> Recurrence:
        """Return the same recurrence, shared by so many threads; the numbers of the matrix are not copied."""
        shared = copy(self)
        shared._n_threads = n_threads
        return shared

    def terms(self, start: Block) -> Iterator[Block]:
        """Yield T_1 X, T_2 X, ... for a block X ``(n_points, width)``; each is valid until two more were taken."""
        n_points, width = start.shape
        terms = self._room(n_points, -(-width // LANES) * LANES)
        terms[0, :, :width] = start
        nothing = np.empty((0, len(terms)), dtype=self.dtype), terms[:0], terms[:0]
        with self._steps(terms.shape[2]) as step:
            for degree in count(1):
                step(terms, degree, *nothing)
                yield terms[degree % len(terms), :, :width]

    def _room(self, n_points: int, width: int) -> Block:
        """Return room for the last terms, all zero, ``(4, n_points, width)``."""
        from heatmover._compiled.recurrence import TERMS

        return aligned_zeros((TERMS, n_points, width), self.dtype)

    def polynomials(self, start: Block, coefficients: Sequence[Float64]) -> Iterator[Block]:
        """Yield polynomials of S applied to one block, each as soon as it is complete.

        Parameters
        ----------
        start
            The block ``(n_points, width)``, of this recurrence's precision. Widths in whole vector registers waste
            nothing.
        coefficients
            Of T_0, T_1, ... in each polynomial, from the shortest to the longest.

        Yields
        ------
        ndarray
            ``(n_points, width)``, once per polynomial, in order.
        """
        degrees = [len(part) - 1 for part in coefficients]
        table = np.zeros((len(degrees), degrees[-1] + 1), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part
        # In two parts, so that the memory of the fine scales, which are done early, is free for what is made of them.
        n_fine = sum(3 * degree < degrees[-1] for degree in degrees)
        fine, coarse = (_multiples(start, part) for part in (table[:n_fine, 0], table[n_fine:, 0]))
        terms, reached = self._room(*start.shape), 0
        terms[0] = start
        with self._groups_of_steps(start.shape[1]) as advance:
            for done, degree in enumerate(degrees):
                if done == n_fine:
                    fine = fine[:0].copy()
                if reached < degree:
                    # Whole groups of terms, but for the last.
                    last = min(-(-degree // len(terms)) * len(terms), degrees[-1])
                    shares = table[done:, reached + 1 : last + 1]
                    advance(terms, reached, shares, fine[done:], coarse[max(done - n_fine, 0) :])
                    reached = last
                yield fine[done] if done < n_fine else coarse[done - n_fine]

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

        (indptr, indices), number = self._structure, self.dtype.type
        lengths = np.array([len(part) for part in coefficients])
        table = np.zeros((len(lengths), int(lengths[-1])), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part

        def step(rows: tuple[int, int]) -> None:
            retreat(
                rows, indptr, indices, self._data, current, previous, number(slope), number(offset),
                shares, inputs[first:],
            )  # fmt: skip

        current, previous = (aligned_zeros(inputs.shape[1:], self.dtype) for _ in range(2))
        np.multiply(inputs[-1], table[-1, -1], out=current)
        for other in np.flatnonzero(lengths[:-1] == lengths[-1]):
            current += inputs[other] * table[other, -1]
        parts = self._parts(current.shape[1])
        with _pool(len(parts)) as share:
            for degree in range(int(lengths[-1]) - 2, -1, -1):
                first = int(np.searchsorted(lengths, degree, side="right"))
                shares = np.ascontiguousarray(table[first:, degree])
                # The last step is half of the others: T_0 = 1, but T_1 = X T_0 and not 2 X T_0.
                half = 1.0 if degree else 0.5
                slope, offset = half * self._slope, half * self._offset
                share(step, parts)
                current, previous = previous, current
        return current

    def _parts(self, width: int) -> list[tuple[int, int]]:
        """Return the rows that each thread takes of a block of ``width`` columns: the first, and the one after."""
        indptr = self._matrix.indptr
        products = int(indptr[-1]) * width
        count = max(1, min(self._n_threads, products // max(PRODUCTS_PER_THREAD, 1)))
        if count == 1:
            return [(0, len(indptr) - 1)]
        cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], count + 1)[1:-1])
        return list(pairwise([0, *(int(cut) for cut in cuts), len(indptr) - 1]))

    @contextmanager
    def _steps(self, width: int) -> Iterator[Callable[[Block, int, Block, Block, Block], None]]:
        """Lend a function that takes one step, whose rows the threads share; see `advance`."""
        from heatmover._compiled.recurrence import advance

        (indptr, indices), number, parts = self._structure, self.dtype.type, self._parts(width)

        def step(terms: Block, degree: int, *sums: Block) -> None:
            # T_1 = X T_0 is half of what the recurrence makes of T_{-1} = 0.
            half = 0.5 if degree == 1 else 1.0
            factors = number(half * self._slope), number(half * self._offset)

            def work(rows: tuple[int, int]) -> None:
                advance(rows, indptr, indices, self._data, terms, degree, *factors, *sums)

            share(work, parts)

        with _pool(len(parts)) as share:
            yield step

    @contextmanager
    def _groups_of_steps(self, width: int) -> Iterator[Callable[[Block, int, Block, Block, Block], None]]:
        """Lend a function that takes a step for every column of shares; see `advance_groups`."""
        from heatmover._compiled.recurrence import TERMS, advance_groups

        matrix, factors = self._matrix, (self.dtype.type(self._slope), self.dtype.type(self._offset))
        at_once = TERMS * (PRODUCTS_PER_CALL // (TERMS * width * matrix.nnz + 1))

        def many(terms: Block, degree: int, shares: Block, fine: Block, coarse: Block) -> None:
            for first in range(0, shares.shape[1], at_once):
                # Contiguous, for the kernel would be compiled once more for what is not.
                part = np.ascontiguousarray(shares[:, first : first + at_once])
                advance_groups(
                    (0, matrix.shape[0]), *self._structure, self._data, terms, degree + first, *factors,
                    part, fine, coarse,
                )  # fmt: skip

        def few(terms: Block, degree: int, shares: Block, fine: Block, coarse: Block) -> None:
            for first in range(0, shares.shape[1], TERMS):
                group = np.zeros((len(shares), TERMS), dtype=self.dtype)
                part = shares[:, first : first + TERMS]
                group[:, : part.shape[1]] = part
                for place in range(1, part.shape[1]):
                    step(terms, degree + first + place, group[:0], fine[:0], coarse[:0])
                step(terms, degree + first + part.shape[1], group, fine, coarse)

        if at_once > TERMS and len(self._parts(width)) == 1:
            yield many
            return
        with self._steps(width) as step:
            yield few


Rows = tuple[int, int]


def _multiples(block: Block, factors: Block) -> Block:
    """Return multiples of a block, ``(n_factors, n_points, width)``."""
    multiples = aligned_zeros((len(factors), *block.shape), block.dtype)
    return np.multiply(block, factors[:, None, None], out=multiples)


@contextmanager
def _pool(n_threads: int) -> Iterator[Callable[[Callable[[Rows], None], list[Rows]], None]]:
    """Lend a function that does some work on every part; threads wait for more of it, and one part needs none."""

    def alone(work: Callable[[Rows], None], parts: list[Rows]) -> None:
        for part in parts:
            work(part)

    def together(work: Callable[[Rows], None], parts: list[Rows]) -> None:
        list(pool.map(work, parts))

    if n_threads == 1:
        yield alone
        return
    with ThreadPoolExecutor(n_threads) as pool:
        yield together


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
