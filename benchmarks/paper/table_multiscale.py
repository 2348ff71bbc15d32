"""Table 2 of the paper: how multiscale methods bin the points, as alternatives.py declares it.

What alternatives.py declares is compared with the paper's table word by word. The paper says "Rank Dependent" for the
bins of Diffusion EMD: the number of centers of each scale is compared with the rank of the power, from all eigenvalues
of the dense operator. The last column is measured: features of 50 measures on a swiss roll of 1,500 points with each
method's defaults, and of Diffusion EMD with the preset at centers.
"""

from __future__ import annotations

from collections.abc import Sequence

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


# The paper's words, where alternatives.py has others for the same thing.
SAME_WORDS = {"n": "one per point", "rank dependent": "rank of the scale"}
COLUMNS = ("scales", "bins per scale", "centers", "smooth bins", "geodesic")
DELTA = 1e-6
# The number of centers is the rank as the density of states gives it, which is an estimate.
RANK_TOLERANCE, FEW = 0.25, 2


def differs(name: str) -> str:
    """Return where the declared properties differ from the paper's, in all five columns."""
    if name not in PAPER:
        return "not in the paper's table"
    traits = TRAITS[name]
    declared = [traits.scales, traits.bins_per_scale]
    declared += [yes(value) for value in (traits.centers_from_data, traits.smooth_bins, traits.geodesic)]
    printed = [SAME_WORDS.get(word.lower(), word) for word in PAPER[name]]
    found = [
        f"{column}: paper {word}"
        for column, word, own in zip(COLUMNS, printed, declared, strict=True)
        if word.lower() != own.lower()
    ]
    return "; ".join(found) or "as printed"


def ranks_of_powers(affinity: np.ndarray, delta: float, exponents: Sequence[int]) -> list[int]:
    """Return R_delta(M^(2^k)) for each k: the number of singular values of at least delta times the largest."""
    density = affinity.sum(axis=1)
    normalized = affinity / density[:, None] / density
    degree = np.sqrt(normalized.sum(axis=1))
    values = np.abs(np.linalg.eigvalsh(normalized / degree[:, None] / degree))
    return [int(np.count_nonzero((values / values.max()) ** 2.0**k >= delta)) for k in exponents]


def follows_ranks(centers: Sequence[int], ranks: Sequence[int], n_points: int) -> bool:
    """Whether each scale has about as many centers as its rank, or all points where the rank exceeds n / 10."""
    allowed = [max(FEW, RANK_TOLERANCE * rank) for rank in ranks]
    near = [abs(count - rank) <= most for count, rank, most in zip(centers, ranks, allowed, strict=True)]
    full = [
        count == n_points and rank + most >= n_points / 10
        for count, rank, most in zip(centers, ranks, allowed, strict=True)
    ]
    return all(one or other for one, other in zip(near, full, strict=True))


def compare_ranks(graph: hm.Graph, measures: hm.Measures) -> tuple[str, int]:
    """Return how the centers of the preset compare with the ranks of the powers, and the number of features."""
    model = hm.DiffusionEMD.from_paper(graph, compress=DELTA)
    embedding = model.fit_transform(measures)
    centers = [int(count) for count in model.n_regions_]
    # A difference is compared at the centers of its coarser scale.
    levels = [*(int(k) for k in model.scales_[1:]), model.max_scale_]
    ranks = ranks_of_powers(graph.affinity.toarray(), DELTA, levels)
    words = f"{', '.join(map(str, centers))} centers at ranks {', '.join(map(str, ranks))}"
    verdict = "as printed" if follows_ranks(centers, ranks, graph.n_points) else "paper: as many as the rank"
    return f"{verdict}: {words}", embedding.shape[1]


def run(show: Exhibit) -> None:
    data = hm.datasets.swiss_roll(50, points_per_measure=30, n_dimensions=3, random_state=show.seed)
    rows = []
    for name, traits in TRAITS.items():
        method = METHODS[name]
        verdict = differs(name)
        if name == "diffusion_emd":
            measured, n_features = compare_ranks(hm.Graph.from_points(data.points), data.measures())
            verdict = measured if verdict == "as printed" else f"{verdict}; {measured}"
        else:
            features = method.embed(data.points, data.measures())
            n_features = int(np.count_nonzero(np.asarray(abs(features).sum(axis=0)).ravel() > 0))
        rows.append(
            [
                LOOKS[name][2],
                method.reference.split(",")[0],
                traits.scales,
                traits.bins_per_scale,
                yes(traits.centers_from_data),
                yes(traits.smooth_bins),
                yes(traits.geodesic),
                verdict,
                f"{n_features:,}",
            ]
        )
    heads = ["method", "from", "scales", "bins per scale k", "centers from data", "smooth bins", "geodesic", "paper"]
    note = (
        "In the formulas, d is the number of dimensions and C is the number of clusters. The paper prints d^(2^k) "
        "bins for grids and wavelets; a dyadic grid in d dimensions has 2^(d k) cells at scale k. Diffusion EMD runs "
        "with from_paper(compress=1e-6), which keeps all points at a scale whose rank is at least n / 10. The defaults "
        "keep at least 256 regions per scale, so their number does not depend on small ranks."
    )
    show.table([*heads, "features"], rows, note=note)


if __name__ == "__main__":
    run(exhibit("table_multiscale", parser(__doc__).parse_args()))
