"""What cell types add to a distance: how many cells there are beside what state they are in, as diverging bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heatmover._typing import Bool, Float64
from heatmover._validation import import_extra
from heatmover.drawing import style as picture
from heatmover.drawing.style import INK, QUIET

__all__ = ["Parts", "draw_parts"]

# Of a bar that may be chance; it keeps its edge.
PALE = 0.3


class Parts(NamedTuple):
    """Two parts of the distance for each cell type.

    Attributes
    ----------
    names
        Of the types, the one at the top first.
    numbers, states
        ``(n_types,)``: what the number of cells and their state add, as shares of the distance; may be below zero.
    sure_numbers, sure_states
        ``(n_types,)``: whether each surely differs.
    """

    names: Sequence[str]
    numbers: Float64
    states: Float64
    sure_numbers: Bool
    sure_states: Bool


def draw_parts(axes: Any, parts: Parts, *, title: str = "", xlabel: str = "") -> Any:
    """Draw two bars for each cell type into matplotlib axes and return them.

    Parameters
    ----------
    axes
        Matplotlib axes.
    parts
        What to draw.
    title, xlabel
        Headings.
    """
    rows = np.arange(len(parts.names))
    pairs = ((parts.numbers, parts.sure_numbers, -0.2), (parts.states, parts.sure_states, 0.2))
    for (values, sure, shift), color in zip(pairs, picture.NUMBER_AND_STATE, strict=True):
        axes.barh(
            rows + shift, 100 * values, height=0.34, color=[_shade(color, each) for each in sure], edgecolor=color,
            linewidth=0.8, zorder=2,
        )  # fmt: skip
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=3)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(rows, [picture.shortened(name, 40) for name in parts.names])
    axes.set_xlabel(xlabel, color=INK, fontsize=11)
    axes.set_title(title, loc="left", color=INK, fontsize=14, pad=26, parse_math=False)
    picture.bare(axes, sides=("bottom",))
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        label.set_color(INK)
    axes.tick_params(axis="y", length=0)
    _draw_legend(axes)
    return axes


def _shade(color: str, sure: bool) -> Any:
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    return colors.to_rgba(color, 1.0 if sure else PALE)


def _draw_legend(axes: Any) -> None:
    patches = import_extra("matplotlib.patches", package="matplotlib", extra="cohort")
    number, state = picture.NUMBER_AND_STATE
    handles = [
        patches.Patch(facecolor=number, edgecolor=number, label="how many"),
        patches.Patch(facecolor=state, edgecolor=state, label="in what state"),
        patches.Patch(facecolor=_shade(INK, False), edgecolor=INK, label="pale: may be chance"),
    ]
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=3, frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1.0, handleheight=1.0,
    )  # fmt: skip
