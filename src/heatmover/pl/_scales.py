"""`scales`."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover.diffusion.scales import MIXED
from heatmover.drawing import style as picture
from heatmover.drawing.style import INK, QUIET
from heatmover.pl._data import read_data

__all__ = ["scales"]


def scales(data: Any, *, key: str = "heatmover", ax: Any = None) -> Any:
    """Draw what each scale has of the distances, and how the largest scale was chosen.

    Bars: share of the mean distance between samples. Line: how much the heat of two cells still differs after so many
    steps (total variation); the automatic choice is the first scale at which it is at most a half.

    Parameters
    ----------
    data
        As in `sample_map`.
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With bars and line.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import scales
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> axes = scales(hm.compare(data.points, data.labels))
    >>> axes.get_xlabel()
    'steps of the heat'
    """
    found = read_data(data, key).scales()
    axes = picture.new_axes((6.4, 4.0)) if ax is None else ax
    scale, share, decay = (np.asarray(found[name]) for name in ("scale", "share", "decay"))
    largest = int(found["max_scale"])
    axes.bar(scale, share, width=0.72, color=picture.COLOURS[0], label="share of the mean distance", zorder=2)
    if decay.size:
        _draw_decay(axes, decay, largest)
    ticks = np.arange(0 if decay.size else scale[0], max(largest, decay.size - 1) + 1)
    axes.set_xticks(ticks, [f"$2^{{{k}}}$" for k in ticks])
    axes.set_ylim(0, 1.04 if decay.size else None)
    axes.set_xlabel("steps of the heat", color=INK, fontsize=11)
    axes.set_ylabel("fraction", color=INK, fontsize=11)
    axes.set_title("Scales compared", loc="left", color=INK, fontsize=14, pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.bare(axes)
    return axes


def _draw_decay(axes: Any, decay: Any, largest: int) -> None:
    orange = picture.COLOURS[1]
    axes.plot(
        np.arange(decay.size), decay, "o-", color=orange, markersize=5, linewidth=1.6, markeredgecolor="white",
        label="difference of the heat of two cells", zorder=3,
    )  # fmt: skip
    axes.axhline(MIXED, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    if largest < decay.size:
        axes.annotate(
            "largest scale",
            (largest, decay[largest]),
            xytext=(-12, -12),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=9,
            color=INK,
        )
        axes.plot(largest, decay[largest], "o", markersize=9, color="none", markeredgecolor=INK, zorder=4)
