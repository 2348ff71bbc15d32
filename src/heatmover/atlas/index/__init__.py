"""Find stored measures nearest to a query, exactly or approximately, in memory or on disk; for users, `atlas`."""

from heatmover.atlas.index.index import MeasureIndex, Nearest, Within, exact_emd

__all__ = ["MeasureIndex", "Nearest", "Within", "exact_emd"]


def __dir__() -> list[str]:
    return sorted(__all__)
