"""Generate points with known geodesic distances and exact EMD, and a cohort; for users, `cli`, tests; touch no files.

Generators return a `Dataset`: points, the measure to which each point belongs, and the true distances between points.
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
