"""Search among stored measures: the nearest, exactly or approximately, in memory or on disk."""

from heatmover.atlas.index.index import MeasureIndex, Nearest, Within, exact_emd

__all__ = ["MeasureIndex", "Nearest", "Within", "exact_emd"]


def __dir__() -> list[str]:
    return sorted(__all__)
