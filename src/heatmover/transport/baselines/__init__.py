"""Compute distances by alternatives to Diffusion EMD, with one calling convention, for users; touch no files.

``method(points or graph, measures, *, options)`` returns the distances between all measures. If the distance is an L1
distance between features, ``method.embed`` returns the features for the same arguments. If the method is iterative,
``method.solve`` also returns the convergence. `METHODS` lists all methods by name, with their properties.
"""

from __future__ import annotations

from typing import Any

from heatmover.transport.baselines.embeddings import diffusion_emd, mean_distance, sliced_wasserstein
from heatmover.transport.baselines.method import EmbeddingMethod, IterativeMethod, Method, PairMethod, Solution
from heatmover.transport.baselines.pot import exact_emd, sinkhorn
from heatmover.transport.baselines.trees import cluster_tree, grid_emd, quad_tree

#: All methods by name, for property tests and benchmarks.
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
