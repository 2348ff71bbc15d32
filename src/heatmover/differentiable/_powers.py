"""Apply powers of the operator, or build it from points, under autograd; for `differentiable._loss` only; no files.

Let y_k = sum_j c_kj T_j(X) x, with gradients g_k on the y_k. The adjoint of the recurrence is the same recurrence, run
from the last term to the first with sources: b_j = sum_k c_kj g_k + 2 X b_{j+1} - b_{j+2} (Clenshaw). This recurrence
does not need the terms T_j, and b_0 is the gradient on x. The gradient on X, b_1 T_0^T + 2 sum_j b_{j+1} T_j^T, needs
the terms. The terms are recomputed from the last two terms, because the recurrence also runs backward: T_{j-1} = 2 X
T_j - T_{j+1}.

`operator_at` computes S as a function of the points for a fixed pattern of neighbors, with the Gaussian kernel and both
normalizations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch.autograd.function import once_differentiable

from heatmover._base.types import Float64
from heatmover._base.words import counted
from heatmover.diffusion.operator import WIDEST_BLOCK, csr_structure, power_coefficients, row_pool
from heatmover.errors import GraphWarning

# Smallest number of entries of S for which threads share a step. The number is estimated from 2 ns per entry and 0.1 ms
# to hand a step to threads; it is not tuned.
SHARED_ABOVE = 200_000

Array = npt.NDArray[np.floating[Any]]


@final
@dataclass(frozen=True, eq=False)
class Expansion:
    """Expansion of the powers 2^k of S on [lowest, 1] in Chebyshev polynomials; a loss never changes its expansion.

    Attributes
    ----------
    table
        Coefficients c_kj, ``(n_scales, degree + 1)``; zero where a scale needs no more terms.
    missing
        One minus the sum of each row, ``(n_scales,)``: the share of the top eigenvectors that truncation removes.
    slope, offset
        Coefficients of the map to the Chebyshev interval: 2 X = slope S + offset.
    """

    table: Float64
    missing: Float64
    slope: float
    offset: float

    @classmethod
    def of_scales(cls, scales: range, *, lowest: float, tol: float) -> Expansion:
        """Return the expansion of the powers of S at these scales with errors of at most ``tol``."""
        parts = [power_coefficients(2**scale, lowest, tol)[0] for scale in scales]
        table = np.zeros((len(parts), max(2, *(len(part) for part in parts))))
        for row, part in zip(table, parts, strict=True):
            row[: len(part)] = part
        slope = 4 / (1 - lowest)
        return cls(table, 1 - table.sum(axis=1), slope, 2 - slope)

    def active(self, degree: int) -> int:
        """Return the finest scale that has a term of at least this degree; coarser scales need more terms."""
        return int(np.argmax(self.table[:, degree:].any(axis=1)))


@final
class SparsityPattern:
    """Positions of the possible entries of S in CSR form, with the rows divided among threads.

    Parameters
    ----------
    matrix
        Any CSR matrix with this pattern, ``(n_points, n_points)``.
    order
        Index of the point of each row, ``(n_points,)``.
    n_threads
        Number of threads that share the rows of every step.
    """

    def __init__(self, matrix: sp.csr_array, order: npt.NDArray[np.intp], n_threads: int) -> None:
        (self.indptr, self.indices), self.order = csr_structure(matrix), order
        parts = n_threads if self.indices.size > SHARED_ABOVE else 1
        cuts = np.searchsorted(self.indptr, np.linspace(0, self.indptr[-1], parts + 1)[1:-1])
        self._rows = list(pairwise([0, *(int(cut) for cut in cuts), matrix.shape[0]]))

    @cached_property
    def rows(self) -> npt.NDArray[np.int32]:
        """Row of each entry, ``(n_entries,)``."""
        return np.repeat(np.arange(self.order.size, dtype=np.int32), np.diff(self.indptr))

    @contextmanager
    def in_threads(self) -> Iterator[Callable[..., None]]:
        """Yield a function that runs ``kernel(rows, ...)`` on all rows; all steps of a recurrence share one pool."""
        with row_pool(len(self._rows)) as run:
            yield lambda kernel, *arguments: run(lambda rows: kernel(rows, *arguments), self._rows)


def powers(start: torch.Tensor, data: torch.Tensor, support: SparsityPattern, expansion: Expansion) -> torch.Tensor:
    """Apply all powers of S to a block; gradients flow to the block and, if requested, to the entries of S.

    Parameters
    ----------
    start
        Block ``(n_points, width)``, on the CPU.
    data
        Entries of S at the positions in ``support``, ``(n_entries,)``, with the type of the block. S must be symmetric.
    support, expansion
        Sparsity pattern of S, and the polynomials.

    Returns
    -------
    Tensor
        Powers of S applied to the block, ``(n_scales, n_points, width)``.
    """
    # Wide blocks do not fit the cache; see `WIDEST_BLOCK`.
    parts = [_Powers.apply(part, data, support, expansion) for part in start.split(WIDEST_BLOCK, dim=1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


class _Powers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, start: Any, data: Any, support: SparsityPattern, expansion: Expansion) -> Any:
        block = np.array(start.detach().numpy(), order="C")
        sums, last = _forward(block, data.detach().numpy(), support, expansion)
        ctx.support, ctx.expansion = support, expansion
        # Only a gradient on S needs the last two terms.
        ctx.last = last if data.requires_grad else None
        ctx.save_for_backward(data)
        return torch.from_numpy(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        (data,) = ctx.saved_tensors
        sources = gradient.contiguous().numpy()
        on_start, on_data = _backward(sources, ctx.last, data.detach().numpy(), ctx.support, ctx.expansion)
        return torch.from_numpy(on_start), None if on_data is None else torch.from_numpy(on_data), None, None


def _forward(
    block: Array, data: Array, support: SparsityPattern, expansion: Expansion
) -> tuple[Array, tuple[Array, Array]]:
    """Return the sums at all scales and the last two terms of the recurrence."""
    from heatmover._base.compiled.recurrence import TERMS, advance

    number = data.dtype.type
    degree = expansion.table.shape[1] - 1
    table = expansion.table.astype(data.dtype)
    sums = block * table[:, 0, None, None]
    terms = np.zeros((TERMS, *block.shape), data.dtype)
    terms[0] = block
    group = np.zeros((len(table), TERMS), data.dtype)
    with support.in_threads() as run:
        for j in range(1, degree + 1):
            half, place = 2 if j == 1 else 1, (j - 1) % TERMS
            group[:, place], group[:, place + 1 :] = table[:, j], 0
            # Add TERMS terms at a time, and the remaining terms at the end.
            first = expansion.active(j - place) if place == TERMS - 1 or j == degree else len(sums)
            factors = number(expansion.slope / half), number(expansion.offset / half)
            run(
                advance, support.indptr, support.indices, data, terms, j, *factors,
                group[first:], sums[first:], sums[:0],
            )  # fmt: skip
    return sums, (terms[degree % TERMS].copy(), terms[(degree - 1) % TERMS].copy())


def _backward(
    sources: Array, last: tuple[Array, Array] | None, data: Array, support: SparsityPattern, expansion: Expansion
) -> tuple[Array, Array | None]:
    """Return the gradient on the block and, if ``last`` is not None, the gradient on the entries of S."""
    from heatmover._base.compiled.adjoint import retrace
    from heatmover._base.compiled.recurrence import retreat

    number = data.dtype.type
    table = expansion.table.astype(data.dtype)
    degree, width = table.shape[1] - 1, sources.shape[2]
    zeros, on_data = np.zeros(sources.shape[1:], data.dtype), None
    kernel, current, other, further = retreat, zeros, zeros.copy(), []
    if last is not None:
        # Start with T_{J-1} and b_J, and with T_J and b_{J+1} = 0.
        top = np.tensordot(table[:, degree], sources, axes=1).astype(data.dtype, copy=False)
        current, other = np.concatenate([last[1], top], axis=1), np.concatenate([last[0], zeros], axis=1)
        on_data = np.zeros_like(data)
        kernel, degree, further = retrace, degree - 1, [on_data]
    with support.in_threads() as run:
        for j in range(degree, -1, -1):
            half = 2 if j == 0 else 1
            first = expansion.active(j)
            factors = number(expansion.slope / half), number(expansion.offset / half)
            shares = np.ascontiguousarray(table[first:, j])
            pattern = support.indptr, support.indices, data
            run(kernel, *pattern, current, other, *factors, shares, sources[first:], *further)
            current, other = other, current
    return np.ascontiguousarray(current[:, -width:]), on_data


def operator_at(points: torch.Tensor, support: SparsityPattern, width: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the operator S and the degrees d in float64 as functions of the points, to which gradients flow.

    Parameters
    ----------
    points
        Positions ``(n_points, n_dimensions)``, float64, on the CPU.
    support
        Pattern of the neighbors of each point, including the point itself.
    width
        Width of the kernel ``exp(-d^2 / width^2)``.

    Returns
    -------
    data, degree
        Entries of S, ``(n_entries,)``, and d, ``(n_points,)``.
    """
    return _Operator.apply(points, support, width)  # type: ignore[no-any-return]


class _Operator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Any, support: SparsityPattern, width: float) -> tuple[Any, Any]:
        places, rows, columns = points.detach().numpy(), support.rows, support.indices
        square = np.zeros(columns.size)
        with np.errstate(over="ignore"):  # a distance that overflows gives the correct affinity 0
            for values in places.T:
                # Divide before squaring, so that the square of a small distance does not underflow.
                square += ((values[rows] - values[columns]) / width) ** 2
        affinity = np.exp(-square)
        density = np.bincount(rows, affinity, support.order.size)
        # Points whose affinity to every neighbor is smaller than the rounding error of their affinity to themselves.
        lost = support.order[(np.diff(support.indptr) > 1) & (density == 1)]
        if lost.size:
            warnings.warn(
                f"Expected every point near one of its neighbors, found {counted(lost.size, 'point')} far from all "
                f"neighbors (first: point {lost.min()}). Mass at such points cannot move, and their gradient is zero; "
                "call rebuild(points).",
                GraphWarning,
                stacklevel=2,
            )
        normed = affinity / (density[rows] * density[columns])
        degree = np.bincount(rows, normed, support.order.size)
        data = normed / np.sqrt(degree[rows] * degree[columns])
        ctx.support, ctx.width = support, width
        ctx.arrays = (places, affinity, density, degree) if points.requires_grad else None
        return torch.from_numpy(data), torch.from_numpy(degree)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_data: Any, on_degree: Any) -> tuple[Any, ...]:
        # Chain rule S -> M -> K -> points (supplement of the paper). K is symmetric, so entry (i, l) is also entry (l,
        # i).
        places, affinity, density, degree = ctx.arrays
        rows, columns, width = ctx.support.rows, ctx.support.indices, ctx.width

        def at_both_ends(values: Float64) -> Float64:
            return np.asarray(np.bincount(rows, values, degree.size) + np.bincount(columns, values, degree.size))

        densities = density[rows] * density[columns]
        # S_il = M_il / sqrt(d_i d_l), where d_i and d_l depend on M.
        on_normed = on_data.numpy() / np.sqrt(degree[rows] * degree[columns])
        on_degree = on_degree.numpy() - at_both_ends(affinity / densities * on_normed / 2) / degree
        # M_il = K_il / (q_i q_l), and d_i is the sum of row i of M.
        on_affinity = (on_normed + on_degree[rows]) / densities
        on_density = -at_both_ends(affinity * on_affinity) / density
        # K_il = exp(-|x_i - x_l|^2 / width^2), and q_i is the sum of row i of K.
        force = -2 * affinity * (on_affinity + on_density[rows]) / width
        result = np.empty_like(places)
        for column, values in enumerate(places.T):
            push = force * ((values[rows] - values[columns]) / width)
            result[:, column] = np.bincount(rows, push, degree.size) - np.bincount(columns, push, degree.size)
        return torch.from_numpy(result), None, None
