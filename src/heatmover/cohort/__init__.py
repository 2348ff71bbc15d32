"""Cohorts: cells of many samples with variables of the samples, read from the files biologists have."""

from heatmover.cohort.cohort import Cohort
from heatmover.cohort.read import read_cohort
from heatmover.cohort.source import Source

__all__ = ["Cohort", "Source", "read_cohort"]


def __dir__() -> list[str]:
    return sorted(__all__)
