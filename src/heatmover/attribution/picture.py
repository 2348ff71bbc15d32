"""Points of a graph coloured by what they contribute. Matplotlib is imported when something is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._typing import Float64
from heatmover._validation import import_extra

__all__ = ["draw_points"]

SIZE_INCHES, DOTS_PER_INCH = (7.0, 5.5), 150
# Colours reach their end at this share of the points: a few extreme ones would leave all others pale.
SATURATED = 0.99


def draw_points(places: Float64, values: Float64, label: str, axes: Any | None) -> Any:
    """Draw points ``(n_points, 2)`` in colours that are white at zero, the strongest on top, and return the axes."""
    if axes is None:
        pyplot = import_extra("matplotlib.pyplot", package="matplotlib", extra="cohort")
        axes = pyplot.subplots(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")[1]
    sizes = np.abs(values)
    limit = float(np.quantile(sizes, SATURATED)) or float(sizes.max()) or 1.0
    order = np.argsort(sizes, kind="stable")
    drawn = axes.scatter(
        *places[order].T,
        c=values[order],
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        s=float(np.clip(40_000 / len(places), 2, 40)),
        # A faint edge keeps points near zero, which are white, visible.
        edgecolors="#BBBBBB",
        linewidths=0.2,
        rasterized=len(places) > 5_000,
    )
    axes.figure.colorbar(drawn, ax=axes, label=label, shrink=0.8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    for side in axes.spines.values():
        side.set_visible(False)
    return axes
