"""The embedding in which the L1 distance is the Diffusion Earth Mover's Distance, and distances in it."""

from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.kernel import LaplacianKernel
from heatmover.embedding.neighbors import nearest

__all__ = ["DiffusionEMD", "LaplacianKernel", "nearest", "pairwise_distances"]
