"""Checks of tensors at the door."""

from __future__ import annotations

from typing import Any

import torch

from heatmover.errors import InvalidInputError
from heatmover.measures import MASS_TOLERANCE

__all__ = ["check_masses", "check_points", "check_together"]


def check_tensor(name: str, values: object) -> None:
    """Raise unless this is a tensor of float32 or float64."""
    if not isinstance(values, torch.Tensor):
        raise InvalidInputError(f"{name} to be a torch.Tensor", type(values).__name__, "use torch.as_tensor")
    if values.dtype not in (torch.float32, torch.float64):
        advice = "integers have no gradient: call .float() or .double()"
        if values.dtype.is_floating_point:
            advice = "half precision cannot hold masses of many points: call .float()"
        raise InvalidInputError(f"{name} of type float32 or float64", str(values.dtype), advice)


def check_together(**tensors: torch.Tensor) -> None:
    """Raise unless all tensors have the same type and lie on the same device."""
    for what, advice in (("dtype", "call .to(dtype) on one of them"), ("device", "call .to(device) on one of them")):
        values = {name: getattr(tensor, what) for name, tensor in tensors.items()}
        if len(set(values.values())) > 1:
            words = " and ".join(f"{name} in {value}" for name, value in values.items())
            raise InvalidInputError(f"all tensors of one {what}", words, advice)


def check_masses(name: str, masses: Any, n_points: int, *, normalize: bool) -> torch.Tensor:
    """Return masses ``(n_points,)`` or ``(n_pairs, n_points)``, normalised if asked for, or raise."""
    check_tensor(name, masses)
    if masses.ndim not in (1, 2) or masses.shape[-1] != n_points or masses.numel() == 0:
        raise InvalidInputError(
            f"{name} of shape ({n_points},) or (n_pairs, {n_points})",
            f"shape {tuple(masses.shape)}",
            "rows are measures, columns are points of the graph",
        )
    values = masses.detach()
    total = values.sum(dim=-1)
    if not torch.isfinite(total).all():
        raise InvalidInputError(f"{name} without NaN or infinity", "a sum that is not finite")
    lacking = float(values.clamp(max=0).sum(dim=-1).min())
    if lacking < -MASS_TOLERANCE:
        raise InvalidInputError(
            f"non-negative {name}",
            f"a total of {lacking:.3g} below zero",
            "a step along the gradient leaves the simplex: optimise logits and pass torch.softmax(logits, -1)",
        )
    if normalize:
        return _normalized(name, masses, total)
    off = float((total - 1).abs().max())
    if off > MASS_TOLERANCE:
        raise InvalidInputError(
            f"{name} that sum to one",
            f"a sum that is off by {off:.3g}",
            "pass torch.softmax(logits, -1), or set normalize=True to divide by the sum",
        )
    return masses


def _normalized(name: str, masses: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    if float(total.min()) <= 0:
        raise InvalidInputError(f"{name} with mass in every row", f"a sum of {float(total.min()):.3g}")
    return masses / masses.sum(dim=-1, keepdim=True)


def check_points(name: str, points: Any, *, n_points: int | None = None, n_dimensions: int | None = None) -> None:
    """Raise unless this is a tensor of finite positions ``(..., n_points, n_dimensions)``."""
    check_tensor(name, points)
    rows, columns = n_points or "n_points", n_dimensions or "n_dimensions"
    wrong = points.ndim < 2 or points.numel() == 0
    wrong = wrong or (n_points is not None and (points.ndim != 2 or points.shape[0] != n_points))
    if wrong or (n_dimensions is not None and points.shape[-1] != n_dimensions):
        raise InvalidInputError(f"{name} of shape ({rows}, {columns})", f"shape {tuple(points.shape)}")
    bad = ~torch.isfinite(points.detach()).all(dim=-1)
    if bad.any():
        first = bad.nonzero()[0].tolist()[-1]
        raise InvalidInputError(f"finite {name}", f"{int(bad.sum())} that are not (first: point {first})")
