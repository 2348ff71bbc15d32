"""Powers of the operator for autograd: forward and backward are one recurrence each, and no term is stored.

With y_k = sum_j c_kj T_j(X) x and gradients g_k on the y_k, the adjoint of the recurrence is the recurrence itself,
run from the last term to the first with sources: b_j = sum_k c_kj g_k + 2 X b_{j+1} - b_{j+2} (Clenshaw). It needs no
T_j, and b_0 is the gradient on x. The gradient on X is b_1 T_0^T + 2 sum_j b_{j+1} T_j^T, which does need them: they
are found again from the last two, because T_{j-1} = 2 X T_j - T_{j+1} runs backwards as well as forwards.

`operator_at` is S as a function of the points, on a fixed support: Gaussian kernel and both normalizations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch.autograd.function import once_differentiable

from heatmover._base.types import Float64
from heatmover.diffusion.operator import WIDEST_BLOCK, csr_structure, power_coefficients, row_pool
from heatmover.errors import GraphWarning

__all__ = ["Expansion", "SparsityPattern", "operator_at", "powers"]

# Below this many entries of S a step is not handed to threads. Estimated (2 ns an entry, 0.1 ms a handover), untuned.
SHARED_ABOVE = 200_000

Array = npt.NDArray[np.floating[Any]]


@final
@dataclass(frozen=True, eq=False)
class Expansion:
    """The powers 2^k of S on [lowest, 1] as Chebyshev polynomials; constants of the loss.

    Attributes
    ----------
    table
        Coefficients c_kj ``(n_scales, degree + 1)``, zeros where a scale needs no more terms.
    missing
        What every row lacks to one, ``(n_scales,)``: the part of the top eigenvectors that was cut off.
    slope, offset
        2 X = slope S + offset.
    """

    table: Float64
    missing: Float64
    slope: float
    offset: float

    @classmethod
    def of_scales(cls, scales: range, *, lowest: float, tol: float) -> Expansion:
        """Expand to a tolerance."""
        parts = [power_coefficients(2**scale, lowest, tol)[0] for scale in scales]
        table = np.zeros((len(parts), max(2, *(len(part) for part in parts))))
        for row, part in zip(table, parts, strict=True):
            row[: len(part)] = part
        slope = 4 / (1 - lowest)
        return cls(table, 1 - table.sum(axis=1), slope, 2 - slope)

    def active(self, degree: int) -> int:
        """Return the first scale that still has a term of this degree or above; coarser scales need more."""
        return int(np.argmax(self.table[:, degree:].any(axis=1)))


@final
class SparsityPattern:
    """Where S may have entries, in CSR form, cut into rows for threads.

    Parameters
    ----------
    matrix
        Any CSR matrix with this pattern, ``(n_points, n_points)``.
    order
        Point of each row, ``(n_points,)``.
    n_threads
        Threads that share every step by rows.
    """

    def __init__(self, matrix: sp.csr_array, order: npt.NDArray[np.intp], n_threads: int) -> None:
        (self.indptr, self.indices), self.order = csr_structure(matrix), order
        parts = n_threads if self.indices.size > SHARED_ABOVE else 1
        cuts = np.searchsorted(self.indptr, np.linspace(0, self.indptr[-1], parts + 1)[1:-1])
        self._rows = list(pairwise([0, *(int(cut) for cut in cuts), matrix.shape[0]]))

    @property
    def n_points(self) -> int:
        """Number of points."""
        return int(self.indptr.size) - 1

    @contextmanager
    def in_threads(self) -> Iterator[Callable[..., None]]:
        """Lend a function that runs ``kernel(rows, ...)`` on all rows; one pool serves all steps of a recurrence."""
        with row_pool(len(self._rows)) as run:
            yield lambda kernel, *arguments: run(lambda rows: kernel(rows, *arguments), self._rows)


def powers(start: torch.Tensor, data: torch.Tensor, support: SparsityPattern, expansion: Expansion) -> torch.Tensor:
    """Apply all powers of S to a block; gradients flow to the block and, if asked for, to the entries of S.

    Parameters
    ----------
    start
        ``(n_points, width)``, on the CPU.
    data
        Entries of S on the support, ``(n_entries,)``, of the same type. S must be symmetric.
    support, expansion
        The pattern of S, and the polynomials.

    Returns
    -------
    Tensor
        ``(n_scales, n_points, width)``.
    """
    # Wide blocks leave the cache; see `WIDEST_BLOCK`.
    parts = [_Powers.apply(part, data, support, expansion) for part in start.split(WIDEST_BLOCK, dim=1)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


class _Powers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, start: Any, data: Any, support: SparsityPattern, expansion: Expansion) -> Any:
        block = np.array(start.detach().numpy(), order="C")
        sums, last = _forward(block, data.detach().numpy(), support, expansion)
        ctx.support, ctx.expansion = support, expansion
        # The last two terms are needed for a gradient on S only.
        ctx.last = last if data.requires_grad else None
        ctx.save_for_backward(data)
        return torch.from_numpy(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[Any, ...]:
        (data,) = ctx.saved_tensors
        sources = gradient.contiguous().numpy()
        if not ctx.needs_input_grad[1]:
            on_start = _clenshaw(sources, data.detach().numpy(), ctx.support, ctx.expansion)
            return torch.from_numpy(on_start), None, None, None
        on_start, on_data = _backward(sources, ctx.last, data.detach().numpy(), ctx.support, ctx.expansion)
        return torch.from_numpy(on_start), torch.from_numpy(on_data), None, None


def _forward(
    block: Array, data: Array, support: SparsityPattern, expansion: Expansion
) -> tuple[Array, tuple[Array, Array]]:
    """Return all sums and the last two terms."""
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
            # Some terms are added at a time, and the last ones when there are no more.
            first = expansion.active(j - place) if place == TERMS - 1 or j == degree else len(sums)
            factors = number(expansion.slope / half), number(expansion.offset / half)
            run(
                advance, support.indptr, support.indices, data, terms, j, *factors,
                group[first:], sums[first:], sums[:0],
            )  # fmt: skip
    return sums, (terms[degree % TERMS].copy(), terms[(degree - 1) % TERMS].copy())


def _clenshaw(sources: Array, data: Array, support: SparsityPattern, expansion: Expansion) -> Array:
    """Return the gradient on the block from those on the sums."""
    from heatmover._base.compiled.recurrence import retreat

    number = data.dtype.type
    table = expansion.table.astype(data.dtype)
    current, other = np.zeros(sources.shape[1:], data.dtype), np.zeros(sources.shape[1:], data.dtype)
    with support.in_threads() as run:
        for j in range(table.shape[1] - 1, -1, -1):
            half = 2 if j == 0 else 1
            first = expansion.active(j)
            factors = number(expansion.slope / half), number(expansion.offset / half)
            shares = np.ascontiguousarray(table[first:, j])
            run(retreat, support.indptr, support.indices, data, current, other, *factors, shares, sources[first:])
            current, other = other, current
    return current


def _backward(
    sources: Array, last: tuple[Array, Array], data: Array, support: SparsityPattern, expansion: Expansion
) -> tuple[Array, Array]:
    """Return the gradients on the block and on the entries of S."""
    from heatmover._base.compiled.adjoint import retrace

    number = data.dtype.type
    table = expansion.table.astype(data.dtype)
    degree = table.shape[1] - 1
    top = np.tensordot(table[:, degree], sources, axes=1).astype(data.dtype, copy=False)
    # T_{J-1} with b_J, and T_J with b_{J+1} = 0.
    current = np.concatenate([last[1], top], axis=1)
    other = np.concatenate([last[0], np.zeros_like(top)], axis=1)
    on_data = np.zeros_like(data)
    with support.in_threads() as run:
        for j in range(degree - 1, -1, -1):
            half = 2 if j == 0 else 1
            first = expansion.active(j)
            factors = number(expansion.slope / half), number(expansion.offset / half)
            shares = np.ascontiguousarray(table[first:, j])
            run(
                retrace, support.indptr, support.indices, data, current, other, *factors, shares, sources[first:],
                on_data,
            )  # fmt: skip
            current, other = other, current
    return np.ascontiguousarray(current[:, top.shape[1] :]), on_data


def operator_at(points: torch.Tensor, support: SparsityPattern, width: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return S and d at the given points, in float64; gradients flow to the points.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, float64, on the CPU.
    support
        Who is a neighbour of whom, itself included.
    width
        Of the kernel ``exp(-d^2 / width^2)``.

    Returns
    -------
    data, degree
        Entries of S ``(n_entries,)`` and d ``(n_points,)``.
    """
    return _Operator.apply(points, support, width)  # type: ignore[no-any-return]


class _Operator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Any, support: SparsityPattern, width: float) -> tuple[Any, Any]:
        from heatmover._base.compiled.adjoint import gaussian, normalized

        places = np.ascontiguousarray(points.detach().numpy())
        affinity, density = np.empty(support.indices.size), np.empty(support.n_points)
        with support.in_threads() as run:
            run(gaussian, support.indptr, support.indices, places, width, affinity, density)
        _warn_of_lost_points(support, density)
        data, degree = np.empty_like(affinity), np.empty_like(density)
        normalized(support.indptr, support.indices, affinity, density, data, degree)
        ctx.support, ctx.width = support, width
        ctx.arrays = (places, affinity, density, degree) if points.requires_grad else None
        return torch.from_numpy(data), torch.from_numpy(degree)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_data: Any, on_degree: Any) -> tuple[Any, ...]:
        from heatmover._base.compiled.adjoint import moves

        places, affinity, density, degree = ctx.arrays
        result = np.zeros_like(places)
        # Copies, because the kernel overwrites them and they belong to the caller.
        upstream = on_data.numpy().copy(), on_degree.numpy().copy()
        pattern = ctx.support.indptr, ctx.support.indices
        moves(*pattern, places, ctx.width, affinity, density, degree, *upstream, result)
        return torch.from_numpy(result), None, None


def _warn_of_lost_points(support: SparsityPattern, density: Any) -> None:
    """Name the points whose affinities to all their neighbours are lost in the rounding of that to themselves."""
    lost = support.order[(np.diff(support.indptr) > 1) & (density == 1)]
    if lost.size:
        warnings.warn(
            f"Expected every point near one of its neighbours, found {lost.size} that left them all (first: point "
            f"{lost.min()}); such a point keeps its mass and its gradient is zero. Call rebuild(points).",
            GraphWarning,
            stacklevel=2,
        )
