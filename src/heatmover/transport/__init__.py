"""Costs of moving mass: exact EMD, distances in units of it, barycenters, and methods to compare with."""

from heatmover.transport.barycenters import barycenter
from heatmover.transport.calibration import calibrate

__all__ = ["barycenter", "calibrate"]


def __dir__() -> list[str]:
    return sorted(__all__)
