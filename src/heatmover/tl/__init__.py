"""Compute on AnnData, for users: distances, samples, differing cells, maps on atlases; write ``.uns`` and ``.obs``."""

from heatmover.tl._distances import sample_distances
from heatmover.tl._explain import explain
from heatmover.tl._map import map_samples
from heatmover.tl.layout import samples

__all__ = ["explain", "map_samples", "sample_distances", "samples"]


def __dir__() -> list[str]:
    return sorted(__all__)
