"""Earth Mover's Distances between many distributions on one data graph, by heat diffusion.

The public names load when they are first used, so that ``import heatmover`` costs little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Barycenter": "barycenters",
    "Breakdown": "attribution",
    "CellContrast": "cells",
    "Cohort": "cohort",
    "Comparison": "comparison",
    "ConvergenceWarning": "errors",
    "Diagnosis": "graphs",
    "DiffusionEMD": "estimator",
    "EmbeddingWarning": "errors",
    "Explanation": "attribution",
    "Finding": "examination",
    "Graph": "graphs",
    "GraphWarning": "errors",
    "GroupContrast": "attribution",
    "HeatmoverError": "errors",
    "Histograms": "graphs",
    "InvalidInputError": "errors",
    "LandmarkLoss": "landmarking",
    "Landmarks": "graphs",
    "Measures": "measures",
    "MissingExtraError": "errors",
    "Study": "study",
    "barycenter": "barycenters",
    "compare": "comparison",
    "examine": "examination",
    "explain": "attribution",
    "explain_groups": "attribution",
    "landmark_loss": "landmarking",
    "measures_from_labels": "measures",
    "measures_from_weights": "measures",
    "nearest": "neighbors",
    "pairwise_distances": "distances",
    "read_cohort": "cohort",
    "study_cohort": "study",
    "study_comparison": "study",
}
_MODULES = (
    "baselines",
    "cohort",
    "datasets",
    "differentiable",
    "errors",
    "manifold",
    "metrics",
    "pl",
    "report",
    "scale",
    "statistics",
    "tl",
)

__all__ = ["__version__", *sorted(_HOMES), *_MODULES]

if TYPE_CHECKING:
    from heatmover import baselines as baselines
    from heatmover import cohort as cohort
    from heatmover import datasets as datasets
    from heatmover import differentiable as differentiable
    from heatmover import errors as errors
    from heatmover import manifold as manifold
    from heatmover import metrics as metrics
    from heatmover import pl as pl
    from heatmover import report as report
    from heatmover import scale as scale
    from heatmover import statistics as statistics
    from heatmover import tl as tl
    from heatmover.attribution import Breakdown as Breakdown
    from heatmover.attribution import Explanation as Explanation
    from heatmover.attribution import GroupContrast as GroupContrast
    from heatmover.attribution import explain as explain
    from heatmover.attribution import explain_groups as explain_groups
    from heatmover.barycenters import Barycenter as Barycenter
    from heatmover.barycenters import barycenter as barycenter
    from heatmover.cells import CellContrast as CellContrast
    from heatmover.cohort import Cohort as Cohort
    from heatmover.cohort import read_cohort as read_cohort
    from heatmover.comparison import Comparison as Comparison
    from heatmover.comparison import compare as compare
    from heatmover.distances import pairwise_distances as pairwise_distances
    from heatmover.errors import ConvergenceWarning as ConvergenceWarning
    from heatmover.errors import EmbeddingWarning as EmbeddingWarning
    from heatmover.errors import GraphWarning as GraphWarning
    from heatmover.errors import HeatmoverError as HeatmoverError
    from heatmover.errors import InvalidInputError as InvalidInputError
    from heatmover.errors import MissingExtraError as MissingExtraError
    from heatmover.estimator import DiffusionEMD as DiffusionEMD
    from heatmover.examination import Finding as Finding
    from heatmover.examination import examine as examine
    from heatmover.graphs import Diagnosis as Diagnosis
    from heatmover.graphs import Graph as Graph
    from heatmover.graphs import Histograms as Histograms
    from heatmover.graphs import Landmarks as Landmarks
    from heatmover.landmarking import LandmarkLoss as LandmarkLoss
    from heatmover.landmarking import landmark_loss as landmark_loss
    from heatmover.measures import Measures as Measures
    from heatmover.measures import measures_from_labels as measures_from_labels
    from heatmover.measures import measures_from_weights as measures_from_weights
    from heatmover.neighbors import nearest as nearest
    from heatmover.study import Study as Study
    from heatmover.study import study_cohort as study_cohort
    from heatmover.study import study_comparison as study_comparison


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"heatmover.{name}")
    if name in _HOMES:
        return getattr(import_module(f"heatmover.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'heatmover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
