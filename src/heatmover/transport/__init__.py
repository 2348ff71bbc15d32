"""Give distances real units, compute barycenters, exact EMD and baselines; for users and other packages; no files."""

from heatmover.transport.barycenters import barycenter
from heatmover.transport.calibration import calibrate

__all__ = ["barycenter", "calibrate"]


def __dir__() -> list[str]:
    return sorted(__all__)
