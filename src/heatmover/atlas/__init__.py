"""Atlases: a fitted model with its reference samples, saved on disk, onto which new samples are mapped."""

from heatmover.atlas.atlas import Atlas, build_atlas
from heatmover.atlas.loading import load, verify
from heatmover.atlas.mapped import Mapped

__all__ = ["Atlas", "Mapped", "build_atlas", "load", "verify"]
