"""The functional form: a fitted `DiffusionEMD` as a differentiable function of masses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch.autograd.function import once_differentiable

from heatmover._validation import check_threads
from heatmover.differentiable._checks import check_masses, check_together
from heatmover.embedding.estimator import DiffusionEMD

__all__ = ["diffusion_emd", "embed"]


def embed(masses: torch.Tensor, model: DiffusionEMD) -> torch.Tensor:
    """Embed measures with a fitted model, differentiably: `DiffusionEMD.transform` for tensors.

    Parameters
    ----------
    masses
        ``(n_measures, n_points)``, float32 or float64, rows that sum to one (to 1e-4) unless the model normalises.
    model
        A fitted `DiffusionEMD`, with any method, full or compact.

    Returns
    -------
    Tensor
        ``(n_measures, n_features)``, of the type and on the device of ``masses``; computed on the CPU in the model's
        own precision (``DiffusionEMD(dtype="float64")`` if that matters).

    Examples
    --------
    >>> import torch
    >>> import heatmover as hm
    >>> from heatmover.differentiable import embed
    >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,)), max_scale=5).fit()
    >>> masses = torch.full((2, 30), 1 / 30, requires_grad=True)
    >>> embedding = embed(masses, model)
    >>> embedding.sum().backward()
    >>> tuple(embedding.shape) == (2, model.n_scales_ * 30), tuple(masses.grad.shape)
    (True, (2, 30))
    """
    check_is_fitted(model)
    rows = check_masses("masses", masses, model.n_features_in_, normalize=model.normalize)
    return _Embedding.apply(torch.atleast_2d(rows), model)


def diffusion_emd(first: torch.Tensor, second: torch.Tensor, model: DiffusionEMD) -> torch.Tensor:
    """Return the Diffusion Earth Mover's Distance between measures, differentiable in their masses.

    Parameters
    ----------
    first, second
        Masses ``(n_points,)`` or ``(n_pairs, n_points)``, float32 or float64, rows that sum to one (to 1e-4) unless
        the model normalises. One measure and many are compared with each of the many.
    model
        A fitted `DiffusionEMD`, with any method, full or compact.

    Returns
    -------
    Tensor
        ``()`` or ``(n_pairs,)``.

    Examples
    --------
    >>> import torch
    >>> import heatmover as hm
    >>> from heatmover.differentiable import diffusion_emd
    >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,)), max_scale=5, dtype="float64").fit()
    >>> logits = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    >>> target = torch.eye(30, dtype=torch.float64)[15]
    >>> diffusion_emd(torch.softmax(logits, 0), target, model).backward()
    >>> int(logits.grad.argmin())  # mass is wanted at the target
    15
    """
    check_is_fitted(model)
    one = check_masses("first", first, model.n_features_in_, normalize=model.normalize)
    other = check_masses("second", second, model.n_features_in_, normalize=model.normalize)
    check_together(first=one, second=other)
    difference = one - other
    return _Embedding.apply(torch.atleast_2d(difference), model).abs().sum(dim=1).reshape(difference.shape[:-1])


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, model: DiffusionEMD) -> Any:
        ctx.model, ctx.like = model, (rows.device, rows.dtype)
        masses = np.ascontiguousarray(rows.detach().cpu().numpy())
        values = model.prepared_.embed(model.graph_.gather(masses), n_threads=check_threads(model.n_jobs))
        return torch.from_numpy(values).to(*ctx.like)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return torch.from_numpy(ctx.model.apply_transpose(gradient.cpu().numpy())).to(*ctx.like), None
