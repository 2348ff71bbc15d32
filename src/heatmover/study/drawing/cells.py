"""Cells and their types: composition of samples, parts of a distance, features within types, and cells on a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heatmover._base.types import Bool, Float64, Int64, Intp
from heatmover._base.validation import import_extra
from heatmover._base.words import counted
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.style import INK, MISSING, QUIET

__all__ = ["PartBars", "arranged", "draw_composition", "draw_drivers", "draw_parts", "draw_points"]

# Between groups of samples, in bars.
GAP = 1.0
# A name needs so many points of width, turned by a right angle, to be read.
LEAST_NAME_POINTS, LARGEST_NAME_POINTS = 6.0, 9.0
# Width of a letter of a group's name over its bars, in points.
LETTER_POINTS = 6.0
# Bars of so many samples touch each other: gaps would be thinner than a dot.
MOST_APART = 120
# Of a bar that may be chance; it keeps its edge.
PALE = 0.3
# Colors reach their end at this share of the points: a few extreme ones would leave all others pale.
SATURATED = 0.99


def arranged(tree: Int64, codes: Intp | None = None) -> tuple[Int64, list[int]]:
    """Return samples group by group, in each in the order of a tree, and where each group begins.

    Parameters
    ----------
    tree
        ``(n_samples,)``: samples in the order of the leaves.
    codes
        ``(n_samples,)``: group of each sample, -1 for none, which come last; None for all in one.

    Examples
    --------
    >>> order, begins = arranged(np.array([2, 0, 3, 1]), np.array([1, 0, 1, 0]))
    >>> order.tolist(), begins
    ([3, 1, 2, 0], [0, 2])
    """
    if codes is None:
        return tree, [0]
    of_tree = np.where(codes < 0, codes.max(initial=0) + 1, codes)[tree]
    order = tree[np.argsort(of_tree, kind="stable")]
    ordered = np.sort(of_tree)
    return order, [0, *(int(i) + 1 for i in np.flatnonzero(np.diff(ordered)))]


def draw_composition(
    axes: Any,
    names: Sequence[str],
    types: Sequence[str],
    shares: Float64,
    groups: Sequence[tuple[str, int]] = (),
    *,
    rest: bool = False,
    title: str = "",
    legend: str = "",
) -> Any:
    """Draw stacked bars of shares into matplotlib axes and return them.

    Parameters
    ----------
    axes
        Matplotlib axes.
    names, types
        Of the samples and of the cell types, in the order in which they are drawn: the first type at the bottom.
    shares
        ``(n_samples, n_types)``; every row sums to 1.
    groups
        Name and first sample of every group; a gap separates them and the name stands above.
    rest
        Whether the last type stands for all that have no color of their own; it is grey.
    title, legend
        Headings.
    """
    starts = [start for _, start in groups] or [0]
    places = np.arange(len(names)) + GAP * (np.searchsorted(starts, np.arange(len(names)), side="right") - 1)
    bottoms = np.cumsum(shares, axis=1) - shares
    apart = len(names) <= MOST_APART
    for kind, name in enumerate(types):
        grey = kind >= len(picture.TYPE_COLORS) or (rest and kind == len(types) - 1)
        axes.bar(
            places, shares[:, kind], width=0.86 if apart else 1.0, bottom=bottoms[:, kind],
            color=MISSING if grey else picture.TYPE_COLORS[kind], label=picture.inert_label(name),
            edgecolor="white", linewidth=0.4 if apart else 0.0,
        )  # fmt: skip
    axes.set_xlim(places[0] - 0.8, places[-1] + 0.8)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylabel("share of the cells", color=INK, fontsize=11)
    axes.set_xticks([])
    picture.head(axes, title, pad=26 if groups else 10)
    picture.bare(axes, sides=("left",))
    _draw_legend(axes, legend)
    _write_groups(axes, groups, places)
    _write_names(axes, names, places)
    return axes


def _draw_legend(axes: Any, title: str) -> None:
    handles, labels = axes.get_legend_handles_labels()
    # From top to bottom as the bars are stacked; beside them, where it hides nothing.
    legend = axes.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1.0, handleheight=1.0, title=picture.shortened(title), title_fontsize=10,
        alignment="left",
    )  # fmt: skip
    picture.inert(legend)


def _write_groups(axes: Any, groups: Sequence[tuple[str, int]], places: Float64) -> None:
    """Write the name of each group above its bars, cut to the room that it has; nothing where that is too little."""
    wide = picture.room(axes, places[-1] - places[0] + 1.6)
    stops = [begin for _, begin in groups[1:]] + [len(places)] * bool(groups)
    for (name, start), stop in zip(groups, stops, strict=True):
        first, last = places[start], places[stop - 1]
        letters = int(wide * (last - first + 1 + GAP) / LETTER_POINTS)
        short = picture.shortened(name)
        if letters < min(4, len(short)):
            continue
        axes.annotate(
            picture.shortened(name, min(letters, picture.NAME_LETTERS)), ((first + last) / 2, 1), xytext=(0, 5),
            textcoords="offset points", ha="center", va="bottom", fontsize=10, color=INK, annotation_clip=False,
            parse_math=False,
        )  # fmt: skip


def _write_names(axes: Any, names: Sequence[str], places: Float64) -> None:
    """Write the names below, if there is room for letters that can be read."""
    room = picture.room(axes, places[-1] - places[0] + 1.6)
    if room < LEAST_NAME_POINTS:
        axes.set_xlabel(counted(len(names), "sample"), color=INK, fontsize=11)
        return
    size = min(room * 0.9, LARGEST_NAME_POINTS)
    picture.name_ticks(axes.xaxis, places, names, 20, rotation=90, fontsize=size)
    axes.tick_params(axis="x", colors=QUIET, pad=2)


class PartBars(NamedTuple):
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


def draw_parts(axes: Any, parts: PartBars, *, title: str = "", xlabel: str = "") -> Any:
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
    picture.name_ticks(axes.yaxis, rows, parts.names, 40)
    axes.set_xlabel(xlabel, color=INK, fontsize=11)
    picture.head(axes, title)
    picture.bare(axes, sides=("bottom",))
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    _draw_part_legend(axes)
    return axes


def _shade(color: str, sure: bool) -> Any:
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    return colors.to_rgba(color, 1.0 if sure else PALE)


def _draw_part_legend(axes: Any) -> None:
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
        ``(n_types, n_features)``: differences in standard deviations; colors are even on both sides of zero.
    sure
        ``(n_types, n_features)``: where to draw a dot.
    title
        Heading.
    """
    largest = float(np.abs(sizes).max(initial=0.0)) or 1.0
    # Orange is more, as in the report, and purple is less: the color-blind tell them apart.
    image = axes.imshow(sizes, cmap="PuOr_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    rows, columns = np.nonzero(sure)
    axes.scatter(columns, rows, s=16, color=INK, edgecolor="white", linewidth=0.5, zorder=3)
    picture.name_ticks(axes.xaxis, range(len(features)), features, 24, rotation=90)
    picture.name_ticks(axes.yaxis, range(len(types)), types, 30)
    picture.head(axes, title, "a dot: surely different, the number of cells aside")
    picture.bare(axes, sides=())
    axes.tick_params(length=0, colors=INK)
    picture.color_bar(axes, image, "difference (standard deviations)")
    return axes


def draw_points(axes: Any, places: Float64, values: Float64, label: str) -> Any:
    """Draw points in colors that are white at zero, the strongest on top, and return the axes.

    Parameters
    ----------
    axes
        Matplotlib axes.
    places, values
        ``(n_points, 2)`` and ``(n_points,)``.
    label
        Of the color bar.
    """
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
    picture.bare(axes, sides=())
    return axes
