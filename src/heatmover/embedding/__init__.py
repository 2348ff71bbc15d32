"""Embed measures and compare the embeddings, for users and all front ends: estimator, distances, neighbors, kernel."""

from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.kernel import LaplacianKernel
from heatmover.embedding.neighbors import nearest

__all__ = ["DiffusionEMD", "LaplacianKernel", "nearest", "pairwise_distances"]
