"""Data with known truth: points on manifolds whose geodesic distances, and hence whose exact EMD, are known.

Generators return a `Dataset`: points, the measure each belongs to, and the true distance between points.
`spherical_mnist` puts images on a sphere and returns `SphericalImages`, which know the same; `load_mnist` reads MNIST.
"""

from heatmover.datasets.dataset import Dataset
from heatmover.datasets.mnist import SphericalImages, load_mnist, spherical_mnist
from heatmover.datasets.shapes import gaussians, line, ring, s_curve, sphere, star, swiss_roll, torus
from heatmover.datasets.simulated_cohort import Effect, cohort

__all__ = [
    "Dataset",
    "Effect",
    "SphericalImages",
    "cohort",
    "gaussians",
    "line",
    "load_mnist",
    "ring",
    "s_curve",
    "sphere",
    "spherical_mnist",
    "star",
    "swiss_roll",
    "torus",
]


def __dir__() -> list[str]:
    return sorted(__all__)
