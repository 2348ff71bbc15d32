"""Diffusion EMD behind the same convention as its rivals, so that one loop compares them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heatmover.baselines.ground import Ground, check_masses, graph_of
from heatmover.baselines.method import Declaration, Features, embedding_method
from heatmover.embedding.estimator import DiffusionEMD

__all__ = ["diffusion_emd"]


@embedding_method(
    Declaration(
        "either",
        "Tong et al. 2021, Diffusion Earth Mover's Distance and Distribution Embeddings",
    )
)
def diffusion_emd(ground: Ground, measures: Any, *, n_jobs: int | None = None, **settings: Any) -> Iterator[Features]:
    """Return Diffusion EMDs: `DiffusionEMD` in the calling convention of the baselines.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, of which ``Graph.from_points`` makes a graph, or a `Graph`.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_jobs
        Threads; None for all cores.
    **settings
        Of `DiffusionEMD`.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(8, points_per_measure=25)
    >>> hm.baselines.diffusion_emd(data.points, data.measures(), max_scale=6).shape
    (8, 8)
    """
    masses = check_masses(ground, measures)
    yield DiffusionEMD(graph_of(ground, n_jobs=n_jobs), n_jobs=n_jobs, **settings).fit_transform(masses)
