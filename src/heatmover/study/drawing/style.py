"""Provide variables, colors, text, axes for figures of `drawing`, `pl`, reports, comparisons; `save` writes a PNG."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._base import words
from heatmover._base.types import Bool, Float64, Intp
from heatmover._base.validation import LabelNames, import_extra, in_order
from heatmover._base.words import counted, naturally
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing

# Okabe and Ito's colors, which people with any color vision can distinguish; shapes repeat the information.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
SHAPES = ("o", "^", "s", "D", "v", "P", "X", "h")
# The numbers of colors and shapes have no common divisor, so every combination occurs before one is repeated.
MOST_GROUPS = len(COLORS) * len(SHAPES)
# Colors of the ten most common cell types, after Tol's muted scheme, which people with any color vision can
# distinguish. All other types are gray.
TYPE_COLORS = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#AA4499", "#44AA99", "#882255", "#999933", "#D55E00",
)  # fmt: skip
# Colors of the contributions of cell abundance and of cell state to a distance.
NUMBER_AND_STATE = ("#117733", "#AA4499")
# Colors of distances from near (dark) to far (light), in the report and in `pl`. Groups of similar samples are visible
# on paper and on a dark screen.
NEAR_TO_FAR = ("#08306b", "#1d5a9b", "#4a8fc3", "#8fc0de", "#cfe1ef", "#f4f7fa")
INK, QUIET, FAINT, MISSING = "#2B2B2B", "#6E6E6E", "#D9D9D9", "#BDBDBD"
SIZE_INCHES, DOTS_PER_INCH = (8.0, 6.0), 150
NAME_LETTERS = 24

Palette = Mapping[str, Any] | str | None


def new_axes(size: tuple[float, float] = SIZE_INCHES) -> Any:
    """Return axes in a new pyplot figure."""
    pyplot = import_extra("matplotlib.pyplot", package="matplotlib", extra="cohort")
    return pyplot.subplots(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")[1]


def save(draw: Any, path: Path) -> None:
    """Call ``draw(axes)`` on new axes, and write them as a PNG of 1200 x 900 pixels, without a display."""
    figures = import_extra("matplotlib.figure", package="matplotlib", extra="cohort")
    figure = figures.Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    draw(figure.add_subplot())
    figure.savefig(path, format="png")


def color_of(code: int, group: str, palette: Palette = None) -> Any:
    """Return the color of a group, from the palette if it contains the group."""
    own = palette.get(group) if isinstance(palette, Mapping) else None
    return COLORS[code % len(COLORS)] if own is None else own


def color_map(palette: Palette = None) -> Any:
    """Return the color map for numbers; the default viridis is also uniform for color-blind readers and in print."""
    matplotlib = import_extra("matplotlib", package="matplotlib", extra="cohort")
    name = palette if isinstance(palette, str) else "viridis"
    if name not in matplotlib.colormaps:
        raise InvalidInputError(
            "the argument palette to be a color map of matplotlib, or a mapping from groups to colors", repr(palette)
        )
    return matplotlib.colormaps[name]


def distance_map() -> Any:
    """Return the color map of distances, from near to far."""
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    return colors.LinearSegmentedColormap.from_list("near to far", NEAR_TO_FAR)


def bare(axes: Any, *, sides: tuple[str, ...] = ("left", "bottom")) -> None:
    """Hide the frame of the axes except for ``sides``, which get a light color."""
    axes.tick_params(colors=QUIET, labelsize=9, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(FAINT)


def head(axes: Any, title: str, note: str = "", *, pad: float = 26) -> None:
    """Write a title, and a gray note below it."""
    axes.set_title(title, loc="left", color=INK, fontsize=14, pad=pad, parse_math=False)
    if note:
        axes.annotate(
            note, (0, 1), xycoords="axes fraction", xytext=(0, 11), textcoords="offset points", fontsize=9.5,
            color=QUIET,
        )  # fmt: skip


def color_bar(axes: Any, drawn: Any, label: str, **where: Any) -> None:
    """Draw a color bar without a frame for a matplotlib artist."""
    bar = axes.figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02, **where)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=QUIET, labelsize=9, length=3)
    bar.set_label(shortened(label, 40), color=INK, fontsize=11, parse_math=False)


def name_ticks(axis: Any, places: Any, names: Sequence[str], most: int = NAME_LETTERS, **how: Any) -> None:
    """Write names at the ticks of an axis, without tick marks; dollar signs do not start formulas."""
    axis.set_ticks(places, [shortened(name, most) for name in names], parse_math=False, **how)
    axis.set_tick_params(length=0)


def room(axes: Any, n_names: float, *, across: bool = True) -> float:
    """Return the space in points for each of ``n_names`` names along one side of the axes, after layout."""
    figure = axes.figure.canvas.figure  # the whole figure, even if the axes are in a subfigure
    figure.draw_without_rendering()
    extent = axes.get_window_extent()
    return float((extent.width if across else extent.height) / figure.dpi * 72 / n_names)


def shortened(name: str, most: int = NAME_LETTERS) -> str:
    """Return a name on one line, shortened if it is long."""
    return words.shortened(" ".join(name.split()), most)


def legend_label(group: str, n_samples: int) -> str:
    """Return the name and size of a group for a legend."""
    return inert_label(f"{shortened(group)} ({n_samples})", NAME_LETTERS + 20)


def inert_label(name: str, most: int = NAME_LETTERS) -> str:
    """Return a label that a legend shows: Matplotlib omits labels that are empty or begin with an underscore."""
    label = shortened(name, most)
    return f" {label}" if label.startswith("_") or not label else label


def inert(legend: Any) -> Any:
    """Show the text of a legend literally: dollar signs do not start formulas."""
    for text in [*legend.get_texts(), legend.get_title()]:
        text.set_parse_math(False)
    return legend


@final
@dataclass(frozen=True, eq=False)
class DrawnVariable:
    """A variable with one value for each sample.

    Attributes
    ----------
    name
        Name for legends; may be empty.
    numbers
        ``(n_samples,)``, NaN for missing values; None for groups.
    codes
        ``(n_samples,)``: index into ``groups``; -1 for missing values and for all values of a numeric variable.
    groups
        Names of the groups, in the order of the pandas categories if any, else in natural order; empty for numbers.
    """

    name: str
    numbers: Float64 | None
    codes: Intp
    groups: tuple[str, ...]

    def check_groups(self) -> None:
        """Raise if there are more groups than combinations of a color and a shape."""
        if len(self.groups) > MOST_GROUPS:
            raise InvalidInputError(
                f"at most {counted(MOST_GROUPS, 'group')} with distinct colors and shapes",
                f"{len(self.groups)}",
                "combine rare groups, or convert numbers stored as text to numbers, which get a color bar",
            )

    @property
    def missing(self) -> Bool:
        """Return which values are missing, ``(n_samples,)``."""
        return np.asarray(np.isnan(self.numbers) if self.numbers is not None else self.codes < 0)

    @property
    def sizes(self) -> Intp:
        """Return the number of samples in each group, ``(n_groups,)``."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.groups))


def read_variable(values: Any, names: Sequence[str], name: str = "") -> DrawnVariable:
    """Read the values of a variable as numbers or groups.

    Parameters
    ----------
    values
        ``(n_samples,)`` in the order of ``names``; or a mapping or pandas Series from names to values.
    names
        Names of the samples.
    name
        Name of the variable; default: the name of a Series.
    """
    name = name or str(getattr(values, "name", None) or "")
    categories = getattr(getattr(values, "cat", values), "categories", None)
    ordered = in_order(values, names, repr(name) if name else "values")
    missing = np.array([is_missing(value) for value in ordered])
    present = [value for value, gap in zip(ordered, missing, strict=True) if not gap]
    real = all(isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) for value in present)
    if categories is None and present and real:
        floats = np.array([np.nan if gap else float(value) for gap, value in zip(missing, ordered, strict=True)])
        # Infinite values cannot be drawn and become missing.
        floats = np.where(np.isfinite(floats), floats, np.nan)
        return DrawnVariable(name, floats, np.full(len(ordered), -1), ())
    texts = LabelNames(name or "values").add_all(present)
    order = naturally(set(texts)) if categories is None else [str(c) for c in categories if str(c) in set(texts)]
    place = {text: code for code, text in enumerate(order)}
    codes = np.full(len(ordered), -1, dtype=np.intp)
    codes[~missing] = [place[text] for text in texts]
    return DrawnVariable(name, None, codes, tuple(order))
