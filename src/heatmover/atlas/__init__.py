"""Atlases: a fitted model with its reference samples, saved on disk, onto which new samples are mapped."""

from heatmover.atlas.atlas import Atlas, Mapped, build_atlas, load, verify

__all__ = ["Atlas", "Mapped", "build_atlas", "load", "verify"]
