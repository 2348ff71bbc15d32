"""Table 2 of the paper: how multiscale methods bin the points, as alternatives.py declares it.

The last column is measured: features of 50 measures on a swiss roll of 1,500 points with each method's defaults.
"""

from __future__ import annotations

import numpy as np
from alternatives import METHODS, TRAITS
from exhibit import LOOKS, Exhibit, exhibit, parser

import heatmover as hm

# Rows that the paper's table has, as printed there: scales, bins per scale, centers, smooth, geodesic.
PAPER = {
    "grid_emd": ("Dyadic", "d^(2^k)", "No", "No", "No"),
    "wavelet_emd": ("Dyadic", "d^(2^k)", "No", "Yes", "No"),
    "sliced_wasserstein": ("n", "1", "Yes", "No", "No"),
    "cluster_tree": ("Specified", "C^k", "Yes", "No", "No"),
    "diffusion_emd": ("Dyadic", "Rank Dependent", "Yes", "Yes", "Yes"),
}


def yes(value: bool) -> str:
    return "yes" if value else "no"


def differs(name: str) -> str:
    """Return how the declared yes and no differ from the paper's."""
    if name not in PAPER:
        return "not in the paper's table"
    traits = TRAITS[name]
    declared = [yes(value) for value in (traits.centers_from_data, traits.smooth_bins, traits.geodesic)]
    return "as printed" if declared == [word.lower() for word in PAPER[name][2:]] else f"paper: {PAPER[name][2:]}"


def run(show: Exhibit) -> None:
    data = hm.datasets.swiss_roll(50, points_per_measure=30, n_dimensions=3, random_state=show.seed)
    rows = []
    for name, traits in TRAITS.items():
        method = METHODS[name]
        options = {"compress": 0.1} if name == "diffusion_emd" else {}
        features = method.embed(data.points, data.measures(), **options)
        moved = np.asarray(abs(features).sum(axis=0)).ravel() > 0
        rows.append(
            [
                LOOKS[name][2],
                method.reference.split(",")[0],
                traits.scales,
                traits.bins_per_scale,
                yes(traits.centers_from_data),
                yes(traits.smooth_bins),
                yes(traits.geodesic),
                differs(name),
                f"{int(moved.sum()):,}",
            ]
        )
    heads = ["method", "from", "scales", "bins per scale k", "centers from data", "smooth bins", "geodesic", "paper"]
    note = (
        "In the formulas, d is the number of dimensions and C is the number of clusters. The paper prints d^(2^k) "
        "bins for grids and wavelets; a dyadic grid in d dimensions has 2^(d k) cells at scale k. Diffusion EMD runs "
        "with compress=0.1."
    )
    show.table([*heads, "features"], rows, note=note)


if __name__ == "__main__":
    run(exhibit("table_multiscale", parser(__doc__).parse_args()))
