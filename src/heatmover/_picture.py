"""The sample map as a picture. Matplotlib is imported here and nowhere else, when something is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._validation import import_extra
from heatmover.errors import InvalidInputError

__all__ = ["SampleMap", "new_axes", "save"]

# Okabe and Ito's colours, which people with any colour vision tell apart; shapes say the same once more.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
SHAPES = ("o", "^", "s", "D", "v", "P", "X", "h")
INK, QUIET, FAINT = "#2B2B2B", "#6E6E6E", "#D9D9D9"
SIZE_INCHES, DOTS_PER_INCH = (8.0, 6.0), 150
NAME_POINTS, NAME_LETTERS = 8, 24
# Where a name may stand around its sample, best first: horizontally, vertically.
SIDES = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))
GAP_POINTS = 6.0
# Of more names few would find room, and the search for it grows with the square of their number.
MOST_NAMES = 200


@final
@dataclass(frozen=True)
class SampleMap:
    """What the picture of a sample map shows.

    Attributes
    ----------
    names
        Name of each sample.
    coordinates
        ``(n_samples, 2)``.
    shares
        ``(2,)``: share of the variation that each axis shows.
    nearest
        ``(n_samples,)``: index of the sample nearest to each.
    codes, groups
        Group of each sample, ``(n_samples,)`` as an index into the names of the groups; None for no groups.
    """

    names: tuple[str, ...]
    coordinates: npt.NDArray[np.float64]
    shares: npt.NDArray[np.float64]
    nearest: npt.NDArray[np.int64]
    codes: npt.NDArray[np.intp] | None
    groups: tuple[str, ...]

    def draw(self, axes: Any) -> Any:
        """Draw into matplotlib axes and return them."""
        most = len(COLOURS) * len(SHAPES)
        if len(self.groups) > most:
            raise InvalidInputError(f"at most {most} groups to tell apart", f"{len(self.groups)}")
        _draw_nearest(axes, self.coordinates, self.nearest)
        self._draw_samples(axes)
        self._draw_frame(axes)
        if len(self.names) <= MOST_NAMES:
            _draw_names(axes, self.names, self.coordinates)
        return axes

    def _draw_samples(self, axes: Any) -> None:
        codes = np.zeros(len(self.names), dtype=np.intp) if self.codes is None else self.codes
        for code in range(codes.max() + 1):
            x, y = self.coordinates[codes == code].T
            axes.scatter(
                x,
                y,
                s=62,
                color=COLOURS[code % len(COLOURS)],
                # The numbers of colours and shapes have no common divisor, so every pair occurs before one repeats.
                marker=SHAPES[code % len(SHAPES)],
                edgecolor="white",
                linewidth=0.9,
                zorder=3,
                label=_legend_label(self.groups[code], x.size) if self.groups else None,
            )

    def _draw_frame(self, axes: Any) -> None:
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.12)
        axes.set_title(f"Map of {len(self.names)} samples", loc="left", color=INK, fontsize=14, pad=26)
        axes.annotate(
            "a line joins each sample with its nearest",
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 11),
            textcoords="offset points",
            fontsize=9.5,
            color=QUIET,
        )
        for axis, number, share in zip((axes.xaxis, axes.yaxis), (1, 2), self.shares, strict=True):
            axis.set_label_text(f"axis {number} ({share:.0%} of the variation)", color=INK, fontsize=11)
        axes.tick_params(colors=QUIET, labelsize=9, length=3)
        axes.locator_params(nbins=6)
        for side, spine in axes.spines.items():
            spine.set_visible(side in {"left", "bottom"})
            spine.set_color(FAINT)
        if self.groups:
            _draw_legend(axes, columns=min(len(self.groups), 4))


def new_axes() -> Any:
    """Return new axes for a sample map, shown where pyplot shows its figures."""
    pyplot = import_extra("matplotlib.pyplot", package="matplotlib", extra="cohort")
    return pyplot.subplots(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")[1]


def save(draw: Any, path: Path) -> None:
    """Let ``draw(axes)`` draw into new axes and write them as PNG of 1200 x 900 pixels, without a display."""
    figures = import_extra("matplotlib.figure", package="matplotlib", extra="cohort")
    figure = figures.Figure(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    draw(figure.add_subplot())
    figure.savefig(path, format="png")


def _draw_nearest(axes: Any, coordinates: npt.NDArray[np.float64], nearest: npt.NDArray[np.int64]) -> None:
    for start, end in zip(coordinates, coordinates[nearest], strict=True):
        axes.plot(*zip(start, end, strict=True), color=FAINT, linewidth=1.0, zorder=1)


def _legend_label(group: str, n_samples: int) -> str:
    label = f"{_shortened(group)} ({n_samples})"
    # Matplotlib leaves out what begins with an underscore.
    return f" {label}" if label.startswith("_") else label


def _draw_legend(axes: Any, columns: int) -> None:
    # Above the axes, where it cannot cover a sample.
    legend = axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.02),
        ncols=columns,
        frameon=False,
        fontsize=11,
        labelcolor=INK,
        handletextpad=0.2,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_names(axes: Any, names: tuple[str, ...], coordinates: npt.NDArray[np.float64]) -> None:
    """Write each name where it hides nothing and is nearest to its own sample; leave it out if there is no room."""
    effects = import_extra("matplotlib.patheffects", package="matplotlib", extra="cohort")
    figure = axes.figure.canvas.figure  # the whole one, also from a part of it
    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    centres = axes.transData.transform(coordinates)
    taken = [(*(centre - 5 * pixels), *(centre + 5 * pixels)) for centre in centres]
    frame = axes.get_window_extent()
    for own, (name, centre, place) in enumerate(zip(names, centres, coordinates, strict=True)):
        text = axes.annotate(
            _shortened(name),
            place,
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=NAME_POINTS,
            color=QUIET,
            zorder=4,
            parse_math=False,
            path_effects=[effects.withStroke(linewidth=2.5, foreground="white")],
        )
        extent = text.get_window_extent()
        size = np.array([extent.width, extent.height])
        for side in SIDES:
            offset = np.array(side) * (size / 2 + GAP_POINTS * pixels * (0.7 if all(side) else 1.0))
            box = (*(centre + offset - size / 2), *(centre + offset + size / 2))
            inside = frame.x0 <= box[0] and box[2] <= frame.x1 and frame.y0 <= box[1] and box[3] <= frame.y1
            if inside and _nearest(box, centres) == own and not any(_overlap(box, other) for other in taken):
                text.set_position(offset / pixels)
                taken.append(box)
                break
        else:
            text.remove()


def _nearest(box: tuple[float, ...], centres: npt.NDArray[np.float64]) -> int:
    """Return which sample is nearest to a box: a name beside another sample would be read as that one's."""
    outside = np.maximum(np.maximum(np.array(box[:2]) - centres, centres - np.array(box[2:])), 0)
    return int((outside**2).sum(axis=1).argmin())


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _shortened(name: str) -> str:
    line = " ".join(name.split())
    return line if len(line) <= NAME_LETTERS else line[: NAME_LETTERS - 3] + "..."
