"""Draw the map of samples and place their names, for `pl`, reports and `Comparison.plot`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.style import FAINT, INK, MISSING, QUIET, DrawnVariable

NAME_POINTS = 8
GAP_POINTS = 6.0
# Largest number of samples whose names are written. With more samples, few names would fit, and the time to search for
# space grows with the square of the number: 1.2 s for 634 samples.
MOST_NAMES = 1_000
# Largest number of samples for which the margin of the map is wide enough for all names.
FEW = 100
# Area of a marker in square points, and number of samples up to which this area is used. With more samples, the area is
# inversely proportional to the square root of their number. With areas inversely proportional to the number, the 634
# samples of a real cohort became specks without a recognizable shape.
MARKER, ROOMY = 62.0, 60
# Width in points of the title, of a legend symbol, and of a letter in a legend. A legend that does not fit next to the
# title is drawn next to the map, in columns of ``LEGEND_ROWS`` rows.
TITLE_POINTS, ENTRY_POINTS, LETTER_POINTS, LEGEND_ROWS = 190, 26, 6.2, 24
# Horizontal and vertical positions of a name around its point, best first.
SIDES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)], dtype=np.float64)
# Factor of the gap for names at a corner. Such names may be nearer, because only one letter is near the point.
AT_CORNERS = 0.7


@final
@dataclass(frozen=True, eq=False)
class SampleMap:
    """Content of a sample map.

    Attributes
    ----------
    names
        Name of each sample.
    coordinates
        ``(n_samples, 2)``: positions of the samples.
    labels
        Labels of the two axes.
    nearest
        ``(n_samples,)``: index of the sample nearest to each sample.
    variable
        Variable that the colors show; None for a single color.
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
        """Draw the map into matplotlib axes, and return the axes."""
        if self.variable is not None:
            self.variable.check_groups()
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
        style: dict[str, Any] = {
            "s": self._marker,
            "edgecolor": "white",
            "linewidth": 0.115 * math.sqrt(self._marker),
            "zorder": 3,
        }
        if self.variable is None:
            axes.scatter(*self.coordinates.T, color=picture.COLORS[0], **style)
            return
        gaps = self.variable.missing
        if gaps.any():
            label = f"missing ({int(gaps.sum())})"
            axes.scatter(*self.coordinates[gaps].T, color=MISSING, label=label, **{**style, "zorder": 2})
        if self.variable.numbers is not None:
            # Draw edges, because light colors would be invisible on white.
            style |= {"edgecolor": QUIET, "linewidth": 0.4 * style["linewidth"]}
            style |= {"c": self.variable.numbers[~gaps], "cmap": picture.color_map(self.palette)}
            drawn = axes.scatter(*self.coordinates[~gaps].T, **style)
            picture.color_bar(axes, drawn, self.variable.name, aspect=28, shrink=0.8)
            return
        # Draw smaller groups in front, because hundreds of other samples would hide them.
        front = np.argsort(np.argsort(-self.variable.sizes, kind="stable")) / 100
        for code, (group, size) in enumerate(zip(self.variable.groups, self.variable.sizes, strict=True)):
            style["zorder"] = 3 + front[code]
            axes.scatter(
                *self.coordinates[self.variable.codes == code].T,
                color=picture.color_of(code, group, self.palette),
                marker=picture.SHAPES[code % len(picture.SHAPES)],
                label=picture.legend_label(group, int(size)),
                **style,
            )

    def _draw_frame(self, axes: Any, title: str) -> None:
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.12 if len(self.names) <= FEW else 0.05)
        picture.head(axes, title, "a line joins each sample with its nearest sample")
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
        # Place the legend above the axes, or to the right if the legend is long, so that it covers no sample.
        width = axes.get_window_extent().width / axes.figure.canvas.figure.dpi * 72
        above = TITLE_POINTS + sum(ENTRY_POINTS + LETTER_POINTS * len(label) for label in labels) < width
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
    """Return the labels of the two axes of a map, with the share of the variation on each axis, if available."""
    if basis == "mds":
        notes = ["", ""] if shares is None else [f" ({100 * share:.0f}% of the variation)" for share in shares[:2]]
        return f"axis 1{notes[0]}", f"axis 2{notes[1]}"
    word = {"diffusion": "diffusion", "phate": "PHATE", "umap": "UMAP"}.get(basis, basis)
    return f"{word} 1", f"{word} 2"


def _draw_nearest(axes: Any, coordinates: Float64, nearest: Int64) -> None:
    # Draw one line with gaps, because hundreds of lines would make a vector file slow.
    gaps = np.full(len(nearest), np.nan)
    x, y = (
        np.column_stack([axis, axis[nearest], gaps]).ravel() for axis in np.asarray(coordinates, dtype=np.float64).T
    )
    crowded = len(nearest) > 2 * ROOMY
    axes.plot(x, y, color=FAINT, linewidth=0.5 if crowded else 1.0, alpha=0.7 if crowded else 1.0, zorder=1)


def _draw_names(axes: Any, names: tuple[str, ...], coordinates: Float64, marker: float) -> None:
    """Write each name where it hides nothing and is nearest to its own sample; omit names that do not fit."""
    effects = import_extra("matplotlib.patheffects", package="matplotlib", extra="cohort")
    figure = axes.figure.canvas.figure  # the whole figure, even if the axes are in a subfigure
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
    # Use one renderer for all texts. Otherwise matplotlib makes a renderer for each text, which takes 8 s for 634
    # texts.
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
    """Return the offset of the middle of each name from its point; NaN for names that do not fit.

    Names are placed one after the other, each at the first of eight positions that satisfies three conditions: the name
    is within the axes, covers no point or other name, and is nearer to its own point than to any other point, so that
    readers assign it to the correct point.

    Parameters
    ----------
    centers
        ``(n_points, 2)``: positions of the points, in pixels.
    sizes
        ``(n_points, 2)``: width and height of each name.
    radius
        Half side of the square around a point that names must not cover.
    gap
        Distance between the middle of a point and its name.
    frame
        Left, bottom, right and top edge of the area for names, in pixels.

    Returns
    -------
    ndarray of shape (n_points, 2)
        Offsets in pixels.

    Examples
    --------
    >>> centers, sizes = np.array([[50.0, 50.0], [50.0, 58.0]]), np.full((2, 2), [30.0, 8.0])
    >>> place_names(centers, sizes, radius=3, gap=6, frame=(0, 0, 100, 100))
    array([[  0., -10.],
           [  0.,  10.]])
    """
    count = len(centers)
    # Occupied boxes: all points, followed by the names placed so far.
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
        overlaps = ((left[:, None] < high[:taken]) & (low[:taken] < right[:, None])).all(axis=2).any(axis=1)
        # If several points are equally near, argmin returns the first.
        outside = np.maximum(np.maximum(left[:, None] - centers, centers - right[:, None]), 0)
        free = inside & ~overlaps & ((outside**2).sum(axis=2).argmin(axis=1) == own)
        if free.any():
            side = int(free.argmax())
            offsets[own] = steps[side]
            low[taken], high[taken] = left[side], right[side]
            taken += 1
    return offsets
