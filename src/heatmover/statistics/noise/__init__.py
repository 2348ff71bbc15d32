"""How much of a distance is luck of the draw, what is left without it, and how sure that is."""

from heatmover.statistics.noise.assessment import Uncertainty, assess, check_cells, uncertainty

__all__ = ["Uncertainty", "assess", "check_cells", "uncertainty"]
