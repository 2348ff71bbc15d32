"""Alternatives to Diffusion EMD behind one convention: ``method(points or graph, measures, *, options)``.

Each returns the distances between all measures. A method that is an L1 embedding also has ``.embed``, with the
same arguments, for the features themselves; an iterative one has ``.solve``, which tells how well it converged.
`METHODS` holds them all by name, with what each declares about itself.
"""

from __future__ import annotations

from typing import Any

from heatmover.transport.baselines.embeddings import diffusion_emd, mean_distance, sliced_wasserstein
from heatmover.transport.baselines.method import EmbeddingMethod, IterativeMethod, Method, PairMethod, Solution
from heatmover.transport.baselines.pot import exact_emd, sinkhorn
from heatmover.transport.baselines.trees import cluster_tree, grid_emd, quad_tree

#: All methods by their names: what property tests and benchmarks run through.
METHODS: dict[str, Method[Any]] = {
    method.name: method
    for method in (
        exact_emd,
        sinkhorn,
        grid_emd,
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
    "cluster_tree",
    "diffusion_emd",
    "exact_emd",
    "grid_emd",
    "mean_distance",
    "quad_tree",
    "sinkhorn",
    "sliced_wasserstein",
]


def __dir__() -> list[str]:
    return sorted(__all__)
