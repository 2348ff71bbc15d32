"""Build and diagnose graphs over points, approximate points by landmarks; for users and most packages; no files."""

from heatmover.graphs.diagnosis import Diagnosis
from heatmover.graphs.graph import Graph
from heatmover.graphs.landmarks import Histograms, Landmarks

__all__ = ["Diagnosis", "Graph", "Histograms", "Landmarks"]


def __dir__() -> list[str]:
    return sorted(__all__)
