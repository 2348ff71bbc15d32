"""Diffuse heat on a graph: the operator, dyadic scales, one file per method; for `embedding` and `differentiable`."""
