"""Heat diffusion on a graph: the operator, its dyadic scales, and one file per way to compute its powers."""
