"""What all pictures share: a variable to draw, colors, text, new axes and files; matplotlib is imported to draw."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._base.types import Bool, Float64, Intp
from heatmover._base.validation import LabelNames, import_extra, in_order
from heatmover._base.words import naturally
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing

__all__ = [
    "DrawnVariable",
    "bare",
    "color_bar",
    "color_map",
    "color_of",
    "distance_map",
    "head",
    "name_ticks",
    "new_axes",
    "read_variable",
    "room",
    "save",
    "shape_of",
    "shortened",
]

# Okabe and Ito's colors, which people with any color vision tell apart; shapes say the same once more.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
SHAPES = ("o", "^", "s", "D", "v", "P", "X", "h")
# The numbers of colors and shapes have no common divisor, so every pair occurs before one repeats.
MOST_GROUPS = len(COLORS) * len(SHAPES)
# Of the ten commonest cell types; after Tol's muted scheme, which people with any color vision tell apart. All others
# are grey.
TYPE_COLORS = (
    "#332288", "#88CCEE", "#117733", "#DDCC77", "#CC6677", "#AA4499", "#44AA99", "#882255", "#999933", "#D55E00",
)  # fmt: skip
# Of what the number of cells adds to a distance, and of what their state adds.
NUMBER_AND_STATE = ("#117733", "#AA4499")
# From near, dark, to far, light, in the report and in pl alike: groups of alike samples stand out, on paper and on a
# dark screen.
NEAR_TO_FAR = ("#08306b", "#1d5a9b", "#4a8fc3", "#8fc0de", "#cfe1ef", "#f4f7fa")
INK, QUIET, FAINT, MISSING = "#2B2B2B", "#6E6E6E", "#D9D9D9", "#BDBDBD"
SIZE_INCHES, DOTS_PER_INCH = (8.0, 6.0), 150
NAME_LETTERS = 24

Palette = Mapping[str, Any] | str | None


def new_axes(size: tuple[float, float] = SIZE_INCHES) -> Any:
    """Return new axes, shown where pyplot shows its figures."""
    pyplot = import_extra("matplotlib.pyplot", package="matplotlib", extra="cohort")
    return pyplot.subplots(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")[1]


def save(draw: Any, path: Path) -> None:
    """Let ``draw(axes)`` draw into new axes and write them as PNG of 1200 x 900 pixels, without a display."""
    figures = import_extra("matplotlib.figure", package="matplotlib", extra="cohort")
    figure = figures.Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    draw(figure.add_subplot())
    figure.savefig(path, format="png")


def color_of(code: int, group: str, palette: Palette = None) -> Any:
    """Return the color of a group: the palette's, if it has one."""
    own = palette.get(group) if isinstance(palette, Mapping) else None
    return COLORS[code % len(COLORS)] if own is None else own


def shape_of(code: int) -> str:
    """Return the marker of a group."""
    return SHAPES[code % len(SHAPES)]


def color_map(palette: Palette = None) -> Any:
    """Return the color map of numbers: viridis, which is as even for the color-blind and in print."""
    matplotlib = import_extra("matplotlib", package="matplotlib", extra="cohort")
    name = palette if isinstance(palette, str) else "viridis"
    if name not in matplotlib.colormaps:
        raise InvalidInputError("palette to be a colour map of matplotlib, or a mapping of groups", repr(palette))
    return matplotlib.colormaps[name]


def distance_map() -> Any:
    """Return the color map of distances, near first."""
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    return colors.LinearSegmentedColormap.from_list("near to far", NEAR_TO_FAR)


def bare(axes: Any, *, sides: tuple[str, ...] = ("left", "bottom")) -> None:
    """Leave of the frame only some sides, in a quiet color."""
    axes.tick_params(colors=QUIET, labelsize=9, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in sides)
        spine.set_color(FAINT)


def head(axes: Any, title: str, note: str = "", *, pad: float = 26) -> None:
    """Write a title, and a quiet note below it."""
    axes.set_title(title, loc="left", color=INK, fontsize=14, pad=pad, parse_math=False)
    if note:
        axes.annotate(
            note, (0, 1), xycoords="axes fraction", xytext=(0, 11), textcoords="offset points", fontsize=9.5,
            color=QUIET,
        )  # fmt: skip


def color_bar(axes: Any, drawn: Any, label: str, **where: Any) -> None:
    """Draw the color bar of what was drawn into axes, without a frame."""
    bar = axes.figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.02, **where)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=QUIET, labelsize=9, length=3)
    bar.set_label(shortened(label, 40), color=INK, fontsize=11, parse_math=False)


def name_ticks(axis: Any, places: Any, names: Sequence[str], most: int = NAME_LETTERS, **how: Any) -> None:
    """Write names at the ticks of an axis, which has no marks: a name with two dollar signs is no formula."""
    axis.set_ticks(places, [shortened(name, most) for name in names], parse_math=False, **how)
    axis.set_tick_params(length=0)


def room(axes: Any, n_names: float, *, across: bool = True) -> float:
    """Return the points that each of so many names has along a side of axes as they are laid out."""
    figure = axes.figure.canvas.figure  # the whole one, also from a part of it
    figure.draw_without_rendering()
    extent = axes.get_window_extent()
    return float((extent.width if across else extent.height) / figure.dpi * 72 / n_names)


def shortened(name: str, most: int = NAME_LETTERS) -> str:
    """Return a name on one line, cut if it is long."""
    line = " ".join(name.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def legend_label(group: str, n_samples: int) -> str:
    """Return a group and its size for a legend."""
    return inert_label(f"{shortened(group)} ({n_samples})", NAME_LETTERS + 20)


def inert_label(name: str, most: int = NAME_LETTERS) -> str:
    """Return a name for a legend; Matplotlib would leave out one that begins with an underscore, or is empty."""
    label = shortened(name, most)
    return f" {label}" if label.startswith("_") or not label else label


def inert(legend: Any) -> Any:
    """Show the text of a legend as it is: a name with two dollar signs is no formula."""
    for text in [*legend.get_texts(), legend.get_title()]:
        text.set_parse_math(False)
    return legend


@final
@dataclass(frozen=True, eq=False)
class DrawnVariable:
    """One value for each sample.

    Attributes
    ----------
    name
        For legends; may be empty.
    numbers
        ``(n_samples,)``, NaN where missing; None for groups.
    codes
        ``(n_samples,)``: position in ``groups``, -1 where missing; for numbers too, where they all are -1.
    groups
        Names of the groups: in the order of their categories, else in natural order. Empty for numbers.
    """

    name: str
    numbers: Float64 | None
    codes: Intp
    groups: tuple[str, ...]

    @property
    def missing(self) -> Bool:
        """``(n_samples,)``: where there is no value."""
        return np.asarray(np.isnan(self.numbers) if self.numbers is not None else self.codes < 0)

    @property
    def sizes(self) -> Intp:
        """``(n_groups,)``: samples in each group."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.groups))


def read_variable(values: Any, names: Sequence[str], name: str = "") -> DrawnVariable:
    """Return what is to be drawn.

    Parameters
    ----------
    values
        ``(n_samples,)`` in the order of ``names``; or a mapping or pandas Series from names to values.
    names
        Of the samples.
    name
        Of the variable; default that of a Series.
    """
    name = name or str(getattr(values, "name", None) or "")
    categories = getattr(getattr(values, "cat", values), "categories", None)
    ordered = in_order(values, names, repr(name) if name else "values")
    missing = np.array([is_missing(value) for value in ordered])
    if categories is None and _all_numbers(ordered, missing) and not missing.all():
        return DrawnVariable(name, _numbers(ordered, missing), np.full(len(ordered), -1), ())
    known = iter(LabelNames(name or "values").add_all(v for v, gap in zip(ordered, missing, strict=True) if not gap))
    texts = ["" if gap else next(known) for gap in missing]
    present = {text for text, gap in zip(texts, missing, strict=True) if not gap}
    order = naturally(present) if categories is None else [str(c) for c in categories if str(c) in present]
    place = {text: code for code, text in enumerate(order)}
    codes = np.array([-1 if gap else place[text] for gap, text in zip(missing, texts, strict=True)], dtype=np.intp)
    return DrawnVariable(name, None, codes, tuple(order))


def _all_numbers(values: Sequence[Any], missing: Bool) -> bool:
    known = [value for value, gap in zip(values, missing, strict=True) if not gap]
    return all(isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) for value in known)


def _numbers(values: Sequence[Any], missing: Bool) -> Float64:
    floats = np.array([np.nan if gap else float(value) for gap, value in zip(missing, values, strict=True)])
    # No color and no length is infinite.
    return np.where(np.isfinite(floats), floats, np.nan)
