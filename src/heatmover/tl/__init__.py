"""Tools for AnnData: distances between the samples of a cohort, and the samples as an AnnData of their own."""

from heatmover.tl._distances import sample_distances
from heatmover.tl._samples import samples

__all__ = ["sample_distances", "samples"]
