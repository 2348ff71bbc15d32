"""Atlases: a fitted model with its reference samples, saved on disk, onto which new samples are mapped."""

from heatmover.atlas.loading import load

__all__ = ["load"]
