"""Cohorts larger than memory, and past one machine: the pipeline through landmarks as dask graphs over chunks."""

from heatmover.scale.execute import connected
from heatmover.scale.pieces import InPieces, compare_cohort, histograms, study_cohort
from heatmover.scale.reading import read_cohort
from heatmover.scale.tiles import distances, embed, nearest

__all__ = [
    "InPieces",
    "compare_cohort",
    "connected",
    "distances",
    "embed",
    "histograms",
    "nearest",
    "read_cohort",
    "study_cohort",
]


def __dir__() -> list[str]:
    return sorted(__all__)
