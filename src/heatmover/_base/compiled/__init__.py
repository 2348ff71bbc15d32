"""Compute on arrays in loops that numba compiles; all packages call them and choose the block to compute."""
