"""Compute Earth Mover's Distances between many distributions on one data graph, by heat diffusion; the public package.

Public names are loaded when they are first used, so ``import heatmover`` is fast. The types that functions return are
documented in the packages that define them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heatmover._base.handed import hand_in
from heatmover._base.version import __version__

__all__ = [
    "Atlas",
    "ConvergenceWarning",
    "DiffusionEMD",
    "EmbeddingWarning",
    "Graph",
    "GraphWarning",
    "HeatmoverError",
    "InvalidInputError",
    "Landmarks",
    "LaplacianKernel",
    "MeasureIndex",
    "Measures",
    "MissingExtraError",
    "__version__",
    "barycenter",
    "baselines",
    "build_atlas",
    "calibrate",
    "cohort",
    "compare",
    "datasets",
    "differentiable",
    "errors",
    "examine",
    "explain",
    "explain_groups",
    "graphs",
    "index",
    "landmark_agreement",
    "load",
    "manifold",
    "measures_from_labels",
    "measures_from_weights",
    "metrics",
    "nearest",
    "pairwise_distances",
    "pl",
    "read_cohort",
    "report",
    "scale",
    "statistics",
    "study",
    "study_cohort",
    "study_comparison",
    "tl",
    "uncertainty",
]

if TYPE_CHECKING:
    from heatmover import cohort, datasets, differentiable, errors, graphs, pl, report, statistics, study, tl
    from heatmover.atlas import Atlas, build_atlas, index, load
    from heatmover.atlas.index import MeasureIndex
    from heatmover.attribution import explain, explain_groups
    from heatmover.cohort import read_cohort
    from heatmover.embedding import DiffusionEMD, LaplacianKernel, nearest, pairwise_distances
    from heatmover.errors import (
        ConvergenceWarning,
        EmbeddingWarning,
        GraphWarning,
        HeatmoverError,
        InvalidInputError,
        MissingExtraError,
    )
    from heatmover.graphs import Graph, Landmarks
    from heatmover.measures import Measures, measures_from_labels, measures_from_weights
    from heatmover.statistics import manifold, metrics
    from heatmover.statistics.noise import uncertainty
    from heatmover.study import compare, examine, landmark_agreement, scale, study_cohort, study_comparison
    from heatmover.transport import barycenter, baselines, calibrate

# Public names that each module defines. All other names of `__all__`, except `__version__`, are modules.
_HOMES = {
    "atlas": ("Atlas", "build_atlas", "load"),
    "atlas.index": ("MeasureIndex",),
    "attribution": ("explain", "explain_groups"),
    "cohort": ("read_cohort",),
    "embedding": ("DiffusionEMD", "LaplacianKernel", "nearest", "pairwise_distances"),
    "errors": tuple(name for name in __all__ if name.endswith(("Error", "Warning"))),
    "graphs": ("Graph", "Landmarks"),
    "measures": ("Measures", "measures_from_labels", "measures_from_weights"),
    "statistics.noise": ("uncertainty",),
    "study": ("compare", "examine", "landmark_agreement", "study_cohort", "study_comparison"),
    "transport": ("barycenter", "calibrate"),
}
# Modules inside a package that are also available as attributes of heatmover.
_INSIDE = {
    "baselines": "transport.baselines",
    "index": "atlas.index",
    "manifold": "statistics.manifold",
    "metrics": "statistics.metrics",
    "scale": "study.scale",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


# Register functions of `report`, so that comparisons and mapped samples can call them without importing `report`.
hand_in("report_comparison", lambda: import_module("heatmover.report").report_comparison)
hand_in("report_mapped", lambda: import_module("heatmover.report.mapped").report_mapped)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"heatmover.{_HOME_OF[name]}"), name)
    if name in __all__:
        return import_module(f"heatmover.{_INSIDE.get(name, name)}")
    raise AttributeError(f"module 'heatmover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
