"""Use Diffusion EMD as a PyTorch loss (extra ``torch``) with gradients in masses, points and clouds; for users."""

from __future__ import annotations

from heatmover._base.validation import import_extra

import_extra("torch", package="torch", extra="torch")

from heatmover.differentiable._loss import DiffusionEMDLoss, diffusion_emd, embed  # noqa: E402

__all__ = ["DiffusionEMDLoss", "diffusion_emd", "embed"]


def __dir__() -> list[str]:
    return sorted(__all__)
