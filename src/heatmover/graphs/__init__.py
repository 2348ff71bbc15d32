"""Graphs: points that share an affinity, how to build them and how to judge them."""

from heatmover.graphs.diagnosis import Diagnosis
from heatmover.graphs.graph import Graph

__all__ = ["Diagnosis", "Graph"]
