"""Data with known truth: points on manifolds whose geodesic distances, and hence whose exact EMD, are known.

Generators return a `Dataset`: points, the measure each belongs to, and the true distance between points.
"""

from heatmover.datasets.dataset import Dataset
from heatmover.datasets.shapes import gaussians, line, ring, s_curve, sphere, star, swiss_roll, torus
from heatmover.datasets.simulated_cohort import Effect, cohort

__all__ = [
    "Dataset",
    "Effect",
    "cohort",
    "gaussians",
    "line",
    "ring",
    "s_curve",
    "sphere",
    "star",
    "swiss_roll",
    "torus",
]


def __dir__() -> list[str]:
    return sorted(__all__)
