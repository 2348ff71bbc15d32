"""The operator as a function of the points, on a fixed support: Gaussian kernel and both normalisations."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from heatmover.differentiable._powers import SparsityPattern
from heatmover.errors import GraphWarning

__all__ = ["operator_at"]


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
        from heatmover._compiled.adjoint import gaussian, normalized

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
        from heatmover._compiled.adjoint import moves

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
