"""Compare or embed samples beyond memory, in threads or on Dask; for users, `atlas`, `cli`; write checkpoints, zarr."""

from heatmover.study.scale.out_of_core import InPieces, compare_cohort, histograms, read_cohort, study_cohort
from heatmover.study.scale.stages import connected
from heatmover.study.scale.tiles import distances, embed, nearest

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
