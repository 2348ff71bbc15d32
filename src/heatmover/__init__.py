"""Earth Mover's Distances between many distributions on one data graph, by heat diffusion."""

__version__ = "0.1.0"
