"""Why two samples, or two groups of samples, are far apart: which points make the distance."""

from heatmover.attribution.groups import GroupContrast, explain_groups
from heatmover.attribution.witness import Breakdown, Explanation, explain

__all__ = ["Breakdown", "Explanation", "GroupContrast", "explain", "explain_groups"]
