"""Which features differ within which cell types: a table of colours, with a dot where it is sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heatmover._typing import Bool, Float64
from heatmover.drawing import style as picture
from heatmover.drawing.style import INK, QUIET

__all__ = ["draw_drivers"]


def draw_drivers(
    axes: Any, types: Sequence[str], features: Sequence[str], sizes: Float64, sure: Bool, *, title: str = ""
) -> Any:
    """Draw differences of features within cell types into matplotlib axes and return them.

    Parameters
    ----------
    axes
        Matplotlib axes.
    types, features
        Names of rows and columns.
    sizes
        ``(n_types, n_features)``: differences in standard deviations; colours are even on both sides of zero.
    sure
        ``(n_types, n_features)``: where to draw a dot.
    title
        Heading.
    """
    largest = float(np.abs(sizes).max(initial=0.0)) or 1.0
    # Orange is more, as in the report, and purple is less: the colour-blind tell them apart.
    image = axes.imshow(sizes, cmap="PuOr_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    rows, columns = np.nonzero(sure)
    axes.scatter(columns, rows, s=16, color=INK, edgecolor="white", linewidth=0.5, zorder=3)
    axes.set_xticks(range(len(features)), [picture.shortened(name, 24) for name in features], rotation=90)
    axes.set_yticks(range(len(types)), [picture.shortened(name, 30) for name in types])
    axes.set_title(title, loc="left", color=INK, fontsize=14, pad=24, parse_math=False)
    axes.annotate(
        "a dot: surely different, the number of cells aside", (0, 1), xycoords="axes fraction", xytext=(0, 8),
        textcoords="offset points", fontsize=9.5, color=QUIET,
    )  # fmt: skip
    picture.bare(axes, sides=())
    axes.tick_params(length=0, colors=INK)
    for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
        label.set_parse_math(False)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label("difference (standard deviations)", color=INK, fontsize=10)
    bar.ax.tick_params(colors=QUIET, labelsize=9, length=3)
    return axes
