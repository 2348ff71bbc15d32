"""Regular grids in any dimension."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import check_integer, check_number
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError

__all__ = ["grid_affinity"]


def grid_affinity(
    shape: Sequence[int],
    *,
    spacing: float | Sequence[float],
    periodic: bool,
    bandwidth: float,
    reach: int | None,
) -> tuple[sp.csr_array, dict[str, Any]]:
    """Return the Gaussian affinity of a grid, CSR ``(n_points, n_points)``, and how it was built."""
    sizes = _check_shape(shape)
    if not isinstance(periodic, bool | np.bool_):
        raise InvalidInputError("periodic to be True or False", repr(periodic))
    steps = _check_spacing(spacing, len(sizes))
    width = check_number("bandwidth", bandwidth, above=0) * steps.min()
    span = (2 if len(sizes) <= 2 else 1) if reach is None else check_integer("reach", reach, minimum=1)
    if periodic and min(sizes) <= 2 * span:
        # A shorter ring would meet the same neighbour from both sides.
        raise InvalidInputError(
            f"periodic axes longer than {counted(2 * span, 'node')}", f"shape {sizes}", "use a smaller reach"
        )
    coordinates = np.indices(sizes).reshape(len(sizes), -1)
    offsets = [np.array(offset) for offset in product(range(-span, span + 1), repeat=len(sizes))]
    pieces = [_edges(coordinates, offset, sizes, periodic=periodic) for offset in offsets]
    weights = [np.exp(-((offset * steps / width) ** 2).sum()) for offset in offsets]
    values = np.concatenate([np.full(len(rows), w) for (rows, _), w in zip(pieces, weights, strict=True)])
    rows = np.concatenate([rows for rows, _ in pieces])
    columns = np.concatenate([columns for _, columns in pieces])
    n_points = int(np.prod(sizes))
    affinity = sp.csr_array((values, (rows, columns)), shape=(n_points, n_points))
    affinity.eliminate_zeros()  # a narrow kernel underflows, and an edge without weight is none
    affinity.sort_indices()
    return affinity, {
        "source": "grid",
        "shape": sizes,
        "periodic": bool(periodic),
        "bandwidth": float(width),
        "reach": span,
    }


def _edges(
    coordinates: Int64,
    offset: Int64,
    sizes: tuple[int, ...],
    *,
    periodic: bool,
) -> tuple[Int64, Int64]:
    """Return all nodes that have a neighbour at ``offset``, and those neighbours."""
    target = coordinates + offset[:, None]
    limits = np.array(sizes)[:, None]
    if periodic:
        target %= limits
    inside = ((target >= 0) & (target < limits)).all(axis=0)
    return np.flatnonzero(inside), np.ravel_multi_index(tuple(target[:, inside]), sizes)


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    # A bare number is a grid with one axis; the check of the axes says whether it is a whole number.
    sizes = tuple(shape) if np.iterable(shape) else (shape,)
    if not sizes:
        raise InvalidInputError("the shape of a grid with at least one axis", repr(shape))
    return tuple(check_integer("every axis of shape", size, minimum=1) for size in sizes)


def _check_spacing(spacing: float | Sequence[float], n_axes: int) -> Float64:
    steps = list(spacing) if isinstance(spacing, Sequence | np.ndarray) else [spacing] * n_axes
    if len(steps) != n_axes:
        raise InvalidInputError(f"one spacing or one per axis ({n_axes})", repr(spacing))
    return np.array([check_number("spacing", step, above=0) for step in steps])
