"""Plot samples, cell types and cells with matplotlib: maps, heatmaps, bars, scales and smoothness; for users."""

from heatmover.pl.cells import abundance_state, composition, drivers, explanation
from heatmover.pl.plots import distance_heatmap, sample_map, scales, smoothness

__all__ = [
    "abundance_state",
    "composition",
    "distance_heatmap",
    "drivers",
    "explanation",
    "sample_map",
    "scales",
    "smoothness",
]


def __dir__() -> list[str]:
    return sorted(__all__)
