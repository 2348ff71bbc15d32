"""Pictures of samples: a map, a clustered heatmap of distances, the scales, and the smoothness of variables."""

from heatmover.pl._heatmap import distance_heatmap
from heatmover.pl._sample_map import sample_map
from heatmover.pl._scales import scales
from heatmover.pl._smoothness import smoothness

__all__ = ["distance_heatmap", "sample_map", "scales", "smoothness"]
