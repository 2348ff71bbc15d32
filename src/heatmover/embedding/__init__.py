"""Embed measures and compare the embeddings: estimator, distances, neighbors, kernel; for users and most packages."""

from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.kernel import LaplacianKernel
from heatmover.embedding.neighbors import nearest

__all__ = ["DiffusionEMD", "LaplacianKernel", "nearest", "pairwise_distances"]
