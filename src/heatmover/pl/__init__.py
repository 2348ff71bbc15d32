"""Pictures of samples: a map, a clustered heatmap of distances, scales, smoothness of variables, and cell types."""

from heatmover.pl.cells import abundance_state, composition, drivers
from heatmover.pl.plots import distance_heatmap, sample_map, scales, smoothness

__all__ = ["abundance_state", "composition", "distance_heatmap", "drivers", "sample_map", "scales", "smoothness"]


def __dir__() -> list[str]:
    return sorted(__all__)
