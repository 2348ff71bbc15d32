"""Pictures of samples: a map, a clustered heatmap of distances, the scales, and the smoothness of variables."""

from heatmover.pl.plots import distance_heatmap, sample_map, scales, smoothness

__all__ = ["distance_heatmap", "sample_map", "scales", "smoothness"]
