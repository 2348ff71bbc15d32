"""Pictures of samples: a map, a clustered heatmap of distances, scales, smoothness of variables, and composition."""

from heatmover.pl.cells import composition
from heatmover.pl.plots import distance_heatmap, sample_map, scales, smoothness

__all__ = ["composition", "distance_heatmap", "sample_map", "scales", "smoothness"]
