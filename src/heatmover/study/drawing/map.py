"""The map of samples: points by group or number, a line to the nearest, and names where they fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.style import FAINT, INK, MISSING, QUIET, DrawnVariable

__all__ = ["SampleMap", "axis_labels", "place_names"]

NAME_POINTS = 8
GAP_POINTS = 6.0
# Of more samples few names would find room, and the search for it grows with the square of their number: 1.2 s for 634.
MOST_NAMES = 1_000
# Up to so many samples there is room at the edge for the names of all.
FEW = 100
# Area of a marker, in square points, up to so many samples. Beyond it shrinks with the root of their number: in full
# proportion the 634 samples of a real cohort were specks without a shape.
MARKER, ROOMY = 62.0, 60
# Room for the title, and in a legend for the symbol of a group and for a letter of its name, in points. A legend that
# does not fit beside the title stands beside the map, in columns of so many rows.
TITLE_POINTS, ENTRY_POINTS, LETTER_POINTS, LEGEND_ROWS = 190, 26, 6.2, 24
# Where a name may stand around its point, best first: horizontally, vertically.
SIDES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)], dtype=np.float64)
# At a corner a name may be nearer: its box touches the point at one letter only.
AT_CORNERS = 0.7


@final
@dataclass(frozen=True, eq=False)
class SampleMap:
    """What the picture of a sample map shows.

    Attributes
    ----------
    names
        Name of each sample.
    coordinates
        ``(n_samples, 2)``.
    labels
        Of the two axes.
    nearest
        ``(n_samples,)``: index of the sample nearest to each.
    variable
        What the colors show, or None.
    palette
        Colors of groups, or the name of a color map for numbers.
    """

    names: tuple[str, ...]
    coordinates: Float64
    labels: tuple[str, str]
    nearest: Int64
    variable: DrawnVariable | None = None
    palette: picture.Palette = None

    def draw(self, axes: Any, *, with_names: bool | None = None, title: str | None = None) -> Any:
        """Draw into matplotlib axes and return them."""
        groups = () if self.variable is None else self.variable.groups
        if len(groups) > picture.MOST_GROUPS:
            raise InvalidInputError(
                f"at most {counted(picture.MOST_GROUPS, 'group')} to tell apart",
                f"{len(groups)}",
                "join rare ones; numbers that are stored as text become a colour bar as numbers",
            )
        _draw_nearest(axes, self.coordinates, self.nearest)
        self._draw_samples(axes)
        self._draw_frame(axes, f"Map of {counted(len(self.names), 'sample')}" if title is None else title)
        if with_names or (with_names is None and len(self.names) <= MOST_NAMES):
            _draw_names(axes, self.names, self.coordinates, self._marker)
        return axes

    @property
    def _marker(self) -> float:
        return MARKER * min(1.0, math.sqrt(ROOMY / len(self.names)))

    def _draw_samples(self, axes: Any) -> None:
        style = {"s": self._marker, "edgecolor": "white", "linewidth": 0.115 * math.sqrt(self._marker), "zorder": 3}
        if self.variable is None:
            axes.scatter(*self.coordinates.T, color=picture.COLORS[0], **style)
            return
        gaps = self.variable.missing
        if gaps.any():
            label = f"missing ({int(gaps.sum())})"
            axes.scatter(*self.coordinates[gaps].T, color=MISSING, label=label, **{**style, "zorder": 2})
        if self.variable.numbers is not None:
            self._draw_numbers(axes, self.variable.numbers, style)
            return
        # The smaller a group, the further in front: hundreds of others would hide it.
        front = np.argsort(np.argsort(-self.variable.sizes, kind="stable")) / 100
        for code, (group, size) in enumerate(zip(self.variable.groups, self.variable.sizes, strict=True)):
            style["zorder"] = 3 + front[code]
            axes.scatter(
                *self.coordinates[self.variable.codes == code].T,
                color=picture.color_of(code, group, self.palette),
                marker=picture.shape_of(code),
                label=picture.legend_label(group, int(size)),
                **style,
            )

    def _draw_numbers(self, axes: Any, numbers: Float64, style: dict[str, Any]) -> None:
        known = ~np.isnan(numbers)
        # The light end of a color map would vanish on white without an edge.
        style = style | {"edgecolor": QUIET, "linewidth": 0.4 * style["linewidth"]}
        drawn = axes.scatter(
            *self.coordinates[known].T, c=numbers[known], cmap=picture.color_map(self.palette), **style
        )
        assert self.variable is not None
        picture.color_bar(axes, drawn, self.variable.name, aspect=28, shrink=0.8)

    def _draw_frame(self, axes: Any, title: str) -> None:
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.12 if len(self.names) <= FEW else 0.05)
        picture.head(axes, title, "a line joins each sample with its nearest")
        for axis, label in zip((axes.xaxis, axes.yaxis), self.labels, strict=True):
            axis.set_label_text(label, color=INK, fontsize=11)
        picture.bare(axes)
        axes.locator_params(nbins=6)
        if axes.get_legend_handles_labels()[1]:
            self._draw_legend(axes)

    def _draw_legend(self, axes: Any) -> None:
        handles, labels = axes.get_legend_handles_labels()
        if self.variable is not None and self.variable.missing.any():
            handles, labels = [*handles[1:], handles[0]], [*labels[1:], labels[0]]
        # Outside the axes, where it cannot cover a sample: above, or beside if there are many.
        above = TITLE_POINTS + sum(ENTRY_POINTS + LETTER_POINTS * len(label) for label in labels) < _width(axes)
        place = (
            {"loc": "lower right", "bbox_to_anchor": (1.0, 1.02), "ncols": len(labels)}
            if above
            else {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "ncols": -(-len(labels) // LEGEND_ROWS)}
        )
        legend = axes.legend(
            handles,
            labels,
            frameon=False,
            fontsize=11 if above else 9,
            labelcolor=INK,
            handletextpad=0.2,
            columnspacing=1.2,
            markerscale=min(2.0, math.sqrt(MARKER / self._marker)),
            **place,
        )
        if self.variable is not None and self.variable.name and not above:
            legend.set_title(picture.shortened(self.variable.name), prop={"size": 10})
            legend.set_alignment("left")
        picture.inert(legend)


def axis_labels(basis: str, shares: Any = None) -> tuple[str, str]:
    """Return the labels of the two axes of a map, with the share of the variation that each shows, if known."""
    if basis == "mds":
        told = ["", ""] if shares is None else [f" ({100 * share:.0f} % of the variation)" for share in shares[:2]]
        return f"axis 1{told[0]}", f"axis 2{told[1]}"
    word = {"diffusion": "diffusion", "phate": "PHATE", "umap": "UMAP"}.get(basis, basis)
    return f"{word} 1", f"{word} 2"


def _width(axes: Any) -> float:
    """Return the width of axes in points."""
    return float(axes.get_window_extent().width / axes.figure.canvas.figure.dpi * 72)


def _draw_nearest(axes: Any, coordinates: Float64, nearest: Int64) -> None:
    # One line with gaps: hundreds of lines would make a vector file slow.
    gaps = np.full(len(nearest), np.nan)
    x, y = (
        np.column_stack([axis, axis[nearest], gaps]).ravel() for axis in np.asarray(coordinates, dtype=np.float64).T
    )
    crowded = len(nearest) > 2 * ROOMY
    axes.plot(x, y, color=FAINT, linewidth=0.5 if crowded else 1.0, alpha=0.7 if crowded else 1.0, zorder=1)


def _draw_names(axes: Any, names: tuple[str, ...], coordinates: Float64, marker: float) -> None:
    """Write each name where it hides nothing and is nearest to its own sample; leave it out if there is no room."""
    effects = import_extra("matplotlib.patheffects", package="matplotlib", extra="cohort")
    figure = axes.figure.canvas.figure  # the whole one, also from a part of it
    figure.draw_without_rendering()
    pixels = figure.dpi / 72
    texts = [
        axes.annotate(
            picture.shortened(name),
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
        for name, place in zip(names, coordinates, strict=True)
    ]
    # One for all: without it matplotlib makes a new one for every text, 8 s for 634 of them.
    agg = import_extra("matplotlib.backends.backend_agg", package="matplotlib", extra="cohort")
    renderer = agg.RendererAgg(1, 1, figure.dpi)
    extents = [text.get_window_extent(renderer) for text in texts]
    frame = axes.get_window_extent()
    offsets = place_names(
        axes.transData.transform(coordinates),
        np.array([(extent.width, extent.height) for extent in extents]),
        radius=5 / math.sqrt(MARKER) * math.sqrt(marker) * pixels,
        gap=GAP_POINTS * pixels,
        frame=(frame.x0, frame.y0, frame.x1, frame.y1),
    )
    for text, offset in zip(texts, offsets, strict=True):
        if np.isnan(offset[0]):
            text.remove()
        else:
            text.set_position(offset / pixels)


def place_names(
    centers: Float64, sizes: Float64, *, radius: float, gap: float, frame: tuple[float, float, float, float]
) -> Float64:
    """Return where the middle of each name is relative to its point, NaN where there is no room.

    Names are placed in their order, each on the first of eight sides where it is within the frame, covers no point
    and no name, and is nearer to its own point than to any other: beside another it would be read as that one's.

    Parameters
    ----------
    centers
        ``(n_points, 2)``: where the points are, in pixels.
    sizes
        ``(n_points, 2)``: width and height of each name.
    radius
        Of a point: a square of this half side is kept free.
    gap
        Between the middle of a point and its name.
    frame
        Left, bottom, right, top.

    Returns
    -------
    ndarray of shape (n_points, 2)

    Examples
    --------
    >>> centers, sizes = np.array([[50.0, 50.0], [50.0, 58.0]]), np.full((2, 2), [30.0, 8.0])
    >>> place_names(centers, sizes, radius=3, gap=6, frame=(0, 0, 100, 100))
    array([[  0., -10.],
           [  0.,  10.]])
    """
    count = len(centers)
    # Boxes that are taken: all points, then the names that were placed.
    low, high = np.empty((2 * count, 2)), np.empty((2 * count, 2))
    low[:count], high[:count] = centers - radius, centers + radius
    taken = count
    offsets = np.full((count, 2), np.nan)
    near = gap * np.where(SIDES.all(axis=1), AT_CORNERS, 1.0)[:, None]
    edges = np.asarray(frame, dtype=np.float64)
    for own in range(count):
        steps = SIDES * (sizes[own] / 2 + near)
        left, right = centers[own] + steps - sizes[own] / 2, centers[own] + steps + sizes[own] / 2
        inside = (left >= edges[:2]).all(axis=1) & (right <= edges[2:]).all(axis=1)
        free = inside & ~_overlaps(left, right, low[:taken], high[:taken]) & _is_nearest(own, left, right, centers)
        if free.any():
            side = int(free.argmax())
            offsets[own] = steps[side]
            low[taken], high[taken] = left[side], right[side]
            taken += 1
    return offsets


def _overlaps(left: Float64, right: Float64, low: Float64, high: Float64) -> Bool:
    """Return which boxes overlap any of others, ``(n_boxes,)``."""
    both = (left[:, None] < high) & (low < right[:, None])
    return np.asarray((both[..., 0] & both[..., 1]).any(axis=1), dtype=bool)


def _is_nearest(own: int, left: Float64, right: Float64, centers: Float64) -> Bool:
    """Return which boxes have no point nearer than their own; of equally near ones the first counts."""
    outside = np.maximum(np.maximum(left[:, None] - centers, centers - right[:, None]), 0)
    return np.asarray((outside**2).sum(axis=2).argmin(axis=1) == own)
