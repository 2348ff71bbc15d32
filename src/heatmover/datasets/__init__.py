"""Data with known truth: points on manifolds whose geodesic distances, and hence whose exact EMD, are known.

Generators return a `Dataset`: points, the measure each belongs to, and the true distance between points.
`spherical_mnist` puts images on a sphere and returns `SphericalImages`, which know the same; `load_mnist` reads MNIST.
"""

from heatmover.datasets._cohort import Effect, cohort
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._gaussians import gaussians
from heatmover.datasets._line import line
from heatmover.datasets._mnist_files import load_mnist
from heatmover.datasets._ring import ring
from heatmover.datasets._s_curve import s_curve
from heatmover.datasets._sphere import sphere
from heatmover.datasets._spherical_mnist import SphericalImages, spherical_mnist
from heatmover.datasets._star import star
from heatmover.datasets._swiss_roll import swiss_roll
from heatmover.datasets._torus import torus

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
