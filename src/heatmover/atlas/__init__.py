"""Build atlases of reference samples, save them on disk, and map new samples onto them; for users, `tl` and the CLI."""

from heatmover.atlas.atlas import Atlas, Mapped, build_atlas, load, verify

__all__ = ["Atlas", "Mapped", "build_atlas", "load", "verify"]
