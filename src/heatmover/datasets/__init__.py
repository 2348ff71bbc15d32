"""Data with known truth: points on manifolds whose geodesic distances, and hence whose exact EMD, are known.

Every function returns a `Dataset`: points, the measure each belongs to, and the true distance between points.
"""

from heatmover.datasets._cohort import Effect, cohort
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._gaussians import gaussians
from heatmover.datasets._line import line
from heatmover.datasets._ring import ring
from heatmover.datasets._s_curve import s_curve
from heatmover.datasets._sphere import sphere
from heatmover.datasets._star import star
from heatmover.datasets._swiss_roll import swiss_roll
from heatmover.datasets._torus import torus

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
