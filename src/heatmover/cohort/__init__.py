"""Read cohorts (cells of samples) from single-cell and cytometry files; for users, `study`, `atlas`, `tl`, `cli`."""

from heatmover.cohort.cohort import Cohort, Source
from heatmover.cohort.formats.fcs import Logicle
from heatmover.cohort.read import read_cohort

__all__ = ["Cohort", "Logicle", "Source", "read_cohort"]


def __dir__() -> list[str]:
    return sorted(__all__)
