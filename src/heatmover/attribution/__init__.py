"""Explain which points and types make samples or groups differ; for users, `study`, `atlas`, `tl`; touch no files."""

from heatmover.attribution.cell_types import CellTypes
from heatmover.attribution.drivers import Drivers
from heatmover.attribution.groups import GroupContrast, explain_groups
from heatmover.attribution.witness import Breakdown, Explanation, explain

__all__ = ["Breakdown", "CellTypes", "Drivers", "Explanation", "GroupContrast", "explain", "explain_groups"]
