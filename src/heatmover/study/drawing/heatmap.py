"""Draw distances as a clustered heatmap with a tree, for `pl`; give the order of its samples to `pl` and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.style import INK, MISSING, QUIET, DrawnVariable, Palette

# Sizes and positions of the strips, tree and color bar, as shares of the side of the heatmap.
STRIP, GAP, TREE, TO_THE_RIGHT, BAR_BOTTOM = 0.03, 0.008, 0.14, 0.04, 0.72
# Distances below the first quantile get the darkest color; distances above the second quantile get the lightest color.
CONTRAST = (0.01, 0.99)
# Smallest height in points at which a name is legible, and largest font size.
LEAST_NAME_POINTS, LARGEST_NAME_POINTS = 5.0, 9.0
# Largest number of samples for which the leaves of the tree are ordered optimally. The time grows with the cube of the
# number: 1 s for 634 samples, 12 s for 2,000.
MOST_ORDERED = 1_000
# Hatch over pairs that are not distinguishable, and value on the color scale at which colors change from dark to light.
HATCH, HALFWAY = "////", 0.55
# Approximate side in pixels of the image of stripes. An image is used because hatches by matplotlib took 7 to 23 s for
# 600 samples.
PIXELS = 1_200
# Largest number of groups in a legend; a longer legend would not fit.
MOST_IN_LEGEND = 10


def draw_heatmap(
    axes: Any,
    names: Sequence[str],
    distances: Float64,
    variables: list[DrawnVariable],
    palette: Palette,
    *,
    alike: Bool | None = None,
) -> dict[str, Any]:
    """Draw distances between samples, ordered by clustering, with a tree and strips of variables above.

    Parameters
    ----------
    axes
        Matplotlib axes for the heatmap.
    names, distances
        Names of the samples, and their distances ``(n_samples, n_samples)``.
    variables
        Variables, each shown as a strip.
    palette
        Mapping from groups to colors, for all strips; None for the default colors.
    alike
        ``(n_samples, n_samples)``: true for pairs to hatch, which are not distinguishable. None if not assessed.

    Returns
    -------
    dict of str to matplotlib.axes.Axes
        Axes ``"heatmap"``, ``"dendrogram"``, ``"colorbar"`` and, with variables, ``"strips"``.
    """
    for variable in variables:
        variable.check_groups()
    shades = _shades(variables, palette)
    from scipy.cluster.hierarchy import dendrogram

    tree = dendrogram(_cluster(distances), no_plot=True)
    order = np.asarray(tree["leaves"])
    image = _draw_distances(axes, distances[np.ix_(order, order)])
    marked = None
    if alike is not None:
        marked = alike[np.ix_(order, order)] & ~np.eye(len(order), dtype=bool)
        _hatch(axes, marked, image)
    parts = {"heatmap": axes}
    bottom = 1 + GAP
    if variables:
        height = STRIP * len(variables)
        parts["strips"] = _draw_strips(axes.inset_axes([0, bottom, 1, height]), variables, order, shades)
        bottom += height + GAP
    parts["dendrogram"] = _draw_tree(axes.inset_axes([0, bottom, 1, TREE]), tree, len(order))
    parts["dendrogram"].set_title(
        f"Distances between {counted(len(order), 'sample')}", loc="left", color=INK, fontsize=14, pad=8
    )
    parts["colorbar"] = place = axes.inset_axes([1 + TO_THE_RIGHT, BAR_BOTTOM, 0.035, 1 - BAR_BOTTOM])
    bar = axes.figure.colorbar(image, cax=place, extend="both")
    bar.outline.set_visible(False)
    place.tick_params(colors=QUIET, labelsize=8, length=2)
    place.locator_params(nbins=5)
    place.set_title("distance", loc="left", fontsize=9, color=INK, pad=6)
    _draw_legends(axes, variables, shades, marked)
    _write_names(axes, [names[i] for i in order])
    return parts


def leaf_order(distances: Float64) -> Int64:
    """Return the order of the leaves of the heatmap's tree, with similar samples adjacent, ``(n_samples,)``."""
    from scipy.cluster.hierarchy import leaves_list

    return np.asarray(leaves_list(_cluster(distances)), dtype=np.int64)


def _cluster(distances: Float64) -> Float64:
    """Return the average-linkage tree as SciPy stores it, ``(n_samples - 1, 4)``."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    few = len(distances) <= MOST_ORDERED
    return np.asarray(linkage(squareform(distances, checks=False), "average", optimal_ordering=few))


def _draw_distances(axes: Any, matrix: Float64) -> Any:
    # Limit the color range by quantiles: with zero (the diagonal) and one outlier as limits, all other colors would
    # look alike.
    low, high = np.quantile(matrix[np.triu_indices(len(matrix), 1)], CONTRAST)
    image = axes.imshow(
        matrix,
        cmap=picture.distance_map(),
        vmin=low,
        vmax=high,
        aspect="equal",
        interpolation="nearest",
        rasterized=True,
    )
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])
    return image


def _shades(variables: list[DrawnVariable], palette: Palette) -> list[list[Any]]:
    """Return the color of each group of each variable, with as few repetitions as possible.

    After all colors have been used, lighter and then darker versions follow, because a strip cannot show groups by
    shape.
    """
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    shades, used = [], 0
    for variable in variables:
        own = []
        for code, group in enumerate(variable.groups, start=used):
            color = np.array(colors.to_rgb(picture.color_of(code, group, palette)))
            other, share = ((0.0, 0.0), (1.0, 0.55), (0.0, 0.45))[code // len(picture.COLORS) % 3]
            chosen = isinstance(palette, Mapping) and group in palette
            own.append(color if chosen else (1 - share) * color + share * other)
        shades.append(own)
        used += len(variable.groups)
    return shades


def _draw_strips(axes: Any, variables: list[DrawnVariable], order: Int64, shades: list[list[Any]]) -> Any:
    colors = np.array([_colors(*each)[order] for each in zip(variables, shades, strict=True)])
    axes.imshow(colors, aspect="auto", interpolation="nearest", rasterized=True)
    picture.name_ticks(axes.yaxis, range(len(variables)), [variable.name for variable in variables], 30)
    axes.set_xticks([])
    axes.tick_params(axis="y", labelsize=9, colors=INK, labelleft=True, pad=2)
    for spine in axes.spines.values():
        spine.set_visible(False)
    # White lines separate the strips.
    for edge in range(1, len(variables)):
        axes.axhline(edge - 0.5, color="white", linewidth=1.0)
    return axes


def _colors(variable: DrawnVariable, shades: list[Any]) -> Float64:
    """Return the color of each sample, ``(n_samples, 3)``."""
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    gray = colors.to_rgb(MISSING)
    if variable.numbers is not None:
        scaled = _norm(variable)(np.where(variable.missing, 0, variable.numbers))
        shown = np.asarray(picture.color_map("cividis")(np.ma.filled(scaled, 0)))[:, :3]
        return np.where(variable.missing[:, None], gray, shown)
    return np.array([*map(colors.to_rgb, shades), gray])[variable.codes]  # code -1 (missing) selects gray


def _norm(variable: DrawnVariable) -> Any:
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    assert variable.numbers is not None
    return colors.Normalize(np.nanmin(variable.numbers), np.nanmax(variable.numbers))


def _draw_tree(axes: Any, tree: dict[str, Any], n_samples: int) -> Any:
    collections = import_extra("matplotlib.collections", package="matplotlib", extra="cohort")
    # SciPy places leaves at 5, 15, 25, ...; the pixels of the heatmap are at 0, 1, 2, ...
    lines = [np.column_stack([(np.array(x) - 5) / 10, y]) for x, y in zip(tree["icoord"], tree["dcoord"], strict=True)]
    width = float(np.clip(60 / n_samples, 0.35, 1.0))
    axes.add_collection(collections.LineCollection(lines, colors=QUIET, linewidths=width, capstyle="projecting"))
    axes.set_xlim(-0.5, n_samples - 0.5)
    axes.set_ylim(0, max(line[:, 1].max() for line in lines) * 1.02 or 1.0)
    axes.set_axis_off()
    return axes


def _hatch(axes: Any, marked: Bool, image: Any) -> None:
    """Draw stripes over marked pairs, dark on light colors and light on dark colors."""
    if not marked.any():
        return
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    dark = np.asarray(image.norm(image.get_array())) < HALFWAY
    side = max(1, PIXELS // len(marked))
    at = np.arange(side * len(marked))
    stripes, square = (at[:, None] + at) % 8 < 2, np.ones((side, side), dtype=bool)
    pixels = np.zeros((at.size, at.size, 4), dtype=np.float32)
    for color, where in ((INK, marked & ~dark), ("white", marked & dark)):
        pixels[stripes & np.kron(where, square)] = colors.to_rgba(color)
    edge = len(marked) - 0.5
    axes.imshow(pixels, extent=(-0.5, edge, edge, -0.5), interpolation="nearest", rasterized=True, zorder=2)


def _draw_legends(axes: Any, variables: list[DrawnVariable], shades: list[list[Any]], marked: Bool | None) -> None:
    """Draw the legend of the hatching and, below it, the legends of the strips, to the right of the heatmap."""
    legends = [_legend(axes, *each) for each in zip(variables, shades, strict=True)]
    if marked is not None:
        patches = import_extra("matplotlib.patches", package="matplotlib", extra="cohort")
        handle = patches.Patch(facecolor=picture.NEAR_TO_FAR[1], edgecolor="white", hatch=HATCH, linewidth=0)
        n_pairs = len(marked) * (len(marked) - 1) // 2
        label = f"{int(marked.sum()) // 2:,} of {counted(n_pairs, 'pair')}"
        legends.insert(0, _add_legend(axes, [handle], [label], "not distinguishable", handletextpad=0.5))
    if not legends:
        return
    # Draw twice: legends have a size only after the first drawing, and the heatmap has its final size after the second.
    for _ in range(2):
        axes.figure.canvas.figure.draw_without_rendering()
        side = axes.get_window_extent().height
        top = BAR_BOTTOM - 0.07
        for legend in legends:
            legend.set_bbox_to_anchor((1 + TO_THE_RIGHT, top), transform=axes.transAxes)
            top -= legend.get_window_extent().height / side + 0.035


def _legend(axes: Any, variable: DrawnVariable, shades: list[Any]) -> Any:
    """Draw the legend of a strip."""
    if variable.numbers is not None:
        norm, colors = _norm(variable), picture.color_map("cividis")
        ticks = import_extra("matplotlib.ticker", package="matplotlib", extra="cohort").MaxNLocator(4)
        values = [value for value in ticks.tick_values(norm.vmin, norm.vmax) if norm.vmin <= value <= norm.vmax]
        values = values if len(values) > 1 else sorted({norm.vmin, norm.vmax})
        entries = [(colors(float(norm(value))), f"{value:.3g}") for value in values]
    else:
        order = np.argsort(-variable.sizes, kind="stable")
        shown = np.sort(order[:MOST_IN_LEGEND]) if len(order) > MOST_IN_LEGEND + 1 else np.arange(len(order))
        sizes = variable.sizes.tolist()
        entries = [(shades[i], picture.legend_label(variable.groups[i], sizes[i])) for i in shown.tolist()]
        if len(shown) < len(order):
            entries.append(("none", f"and {len(order) - len(shown)} more"))
    if variable.missing.any():
        entries.append((MISSING, f"missing ({int(variable.missing.sum())})"))
    lines = import_extra("matplotlib.lines", package="matplotlib", extra="cohort")
    handles = [lines.Line2D([], [], linestyle="", marker="s", markersize=6, color=color) for color, _ in entries]
    return _add_legend(axes, handles, [label for _, label in entries], picture.shortened(variable.name))


def _add_legend(axes: Any, handles: list[Any], labels: list[str], title: str, handletextpad: float = 0.1) -> Any:
    legends = import_extra("matplotlib.legend", package="matplotlib", extra="cohort")
    # axes.legend would register the last legend with the axes and draw it twice.
    legend = legends.Legend(
        axes, handles, labels, title=title, loc="upper left",
        bbox_to_anchor=(1, 1), frameon=False, fontsize=8, title_fontsize=9, labelcolor=INK, alignment="left",
        handletextpad=handletextpad, labelspacing=0.25, borderaxespad=0, borderpad=0,
    )  # fmt: skip
    axes.add_artist(picture.inert(legend))
    # By default, an artist is clipped to its axes, and the layout would reserve no space for the legend.
    legend.set_clip_on(False)
    return legend


def _write_names(axes: Any, names: list[str]) -> None:
    """Write the names of the samples to the left of the heatmap and below it, if there is space for legible letters."""
    room = picture.room(axes, len(names), across=False)
    if room < LEAST_NAME_POINTS:
        return
    size = min(room * 0.9, LARGEST_NAME_POINTS)
    for axis, angle in ((axes.xaxis, 90), (axes.yaxis, 0)):
        picture.name_ticks(axis, range(len(names)), names, 20, rotation=angle, fontsize=size)
    axes.tick_params(colors=QUIET, pad=2)
