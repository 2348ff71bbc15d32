"""Every method the paper compares with, behind one convention: ``method(points or graph, measures, *, options)``.

Each returns the distances between all measures. A method that is an L1 embedding also has ``.embed``, with the
same arguments, for the features themselves; an iterative one has ``.solve``, which tells how well it converged.
`METHODS` holds them all by name, with what each declares about itself.
"""

from __future__ import annotations

from typing import Any

from heatmover.baselines._method import EmbeddingMethod, IterativeMethod, Method, PairMethod, Solution, Traits
from heatmover.baselines.convolutional import convolutional_sinkhorn
from heatmover.baselines.diffusion import diffusion_emd
from heatmover.baselines.exact import exact_emd
from heatmover.baselines.mean import mean_distance
from heatmover.baselines.sinkhorn import sinkhorn
from heatmover.baselines.sliced import sliced_wasserstein
from heatmover.baselines.trees import cluster_tree, grid_emd, quad_tree
from heatmover.baselines.wavelet import wavelet_emd

#: All methods by their names: what property tests, benchmarks and the tables of the paper run through.
METHODS: dict[str, Method[Any]] = {
    method.name: method
    for method in (
        exact_emd,
        sinkhorn,
        convolutional_sinkhorn,
        grid_emd,
        wavelet_emd,
        quad_tree,
        cluster_tree,
        sliced_wasserstein,
        mean_distance,
        diffusion_emd,
    )
}

__all__ = [
    "METHODS",
    "EmbeddingMethod",
    "IterativeMethod",
    "Method",
    "PairMethod",
    "Solution",
    "Traits",
    "cluster_tree",
    "convolutional_sinkhorn",
    "diffusion_emd",
    "exact_emd",
    "grid_emd",
    "mean_distance",
    "quad_tree",
    "sinkhorn",
    "sliced_wasserstein",
    "wavelet_emd",
]


def __dir__() -> list[str]:
    return sorted(__all__)
