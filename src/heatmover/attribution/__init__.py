"""Why two samples, or two groups of samples, are far apart: which points make the distance."""

from heatmover.attribution._breakdown import Breakdown
from heatmover.attribution._groups import GroupContrast, explain_groups
from heatmover.attribution._pair import Explanation, explain

__all__ = ["Breakdown", "Explanation", "GroupContrast", "explain", "explain_groups"]
