"""Every method the paper compares with: `heatmover.baselines`, and the two that only the paper's figures need."""

from __future__ import annotations

from typing import Any, NamedTuple

from convolutional import convolutional_sinkhorn
from wavelet import wavelet_emd

from heatmover import baselines
from heatmover.transport.baselines import Method

METHODS: dict[str, Method[Any]] = {
    **baselines.METHODS,
    **{method.name: method for method in (convolutional_sinkhorn, wavelet_emd)},
}


class Traits(NamedTuple):
    """How a multiscale method bins the points: the columns of the paper's Table 2.

    Attributes
    ----------
    scales
        Which scales there are, in words.
    bins_per_scale
        How many bins scale k has, in words.
    centers_from_data
        Whether bins lie where the points lie.
    smooth_bins
        Whether a point that moves a little changes its features a little.
    geodesic
        Whether distances follow the shape of the data rather than the space around it.
    """

    scales: str
    bins_per_scale: str
    centers_from_data: bool
    smooth_bins: bool
    geodesic: bool


TRAITS = {
    "grid_emd": Traits("dyadic", "2^(d k)", centers_from_data=False, smooth_bins=False, geodesic=False),
    "wavelet_emd": Traits("dyadic", "2^(d k)", centers_from_data=False, smooth_bins=True, geodesic=False),
    "quad_tree": Traits("dyadic", "2^(d k)", centers_from_data=False, smooth_bins=False, geodesic=False),
    "cluster_tree": Traits("specified", "C^k", centers_from_data=True, smooth_bins=False, geodesic=False),
    "sliced_wasserstein": Traits("one per point", "1", centers_from_data=True, smooth_bins=False, geodesic=False),
    "diffusion_emd": Traits("dyadic", "rank of the scale", centers_from_data=True, smooth_bins=True, geodesic=True),
}
