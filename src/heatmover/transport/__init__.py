"""Give distances real units and compute barycenters, for users; submodules compute exact EMD and baselines."""

from heatmover.transport.barycenters import barycenter
from heatmover.transport.calibration import calibrate

__all__ = ["barycenter", "calibrate"]


def __dir__() -> list[str]:
    return sorted(__all__)
