"""Cohorts larger than memory, and past one machine: the pipeline through landmarks as dask graphs over chunks."""

from heatmover.scale._compare import compare_cohort, histograms, study_cohort
from heatmover.scale._embed import embed
from heatmover.scale._execute import connected
from heatmover.scale._pipeline import InPieces
from heatmover.scale._tiles import distances, nearest

__all__ = [
    "InPieces",
    "compare_cohort",
    "connected",
    "distances",
    "embed",
    "histograms",
    "nearest",
    "study_cohort",
]
