"""Compiled kernels: plain loops, no policy. What to run on which block is decided by the callers."""
