"""Cohorts larger than memory, and past one machine: the pipeline through landmarks as dask graphs over chunks."""

from heatmover.scale._compare import compare_cohort
from heatmover.scale._embed import embed, histograms
from heatmover.scale._study import study_cohort
from heatmover.scale._tiles import distances, nearest

__all__ = ["compare_cohort", "distances", "embed", "histograms", "nearest", "study_cohort"]
