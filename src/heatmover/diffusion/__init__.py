"""Diffuse heat on a graph: the operator, its dyadic scales, one file per method; embeddings and atlases call it."""
