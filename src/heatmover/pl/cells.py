"""Plot compositions of samples, contributions of cell types to a distance, and differing cells; for users, as `pl`.

Users call the functions with studies, comparisons, explanations or AnnData. The functions draw into matplotlib axes and
change nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64
from heatmover._base.validation import as_array, check_integer, check_option, import_extra
from heatmover._base.words import counted, quoted
from heatmover.attribution import Drivers, Explanation, GroupContrast
from heatmover.attribution.cell_types import LEVEL
from heatmover.errors import InvalidInputError
from heatmover.pl.plots import read_data
from heatmover.study.cell_types import SampleComposition, annotate, shares_of
from heatmover.study.comparison import Comparison
from heatmover.study.contrasts import CellContrast
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.heatmap import leaf_order
from heatmover.study.drawing.style import INK, MISSING, QUIET, TYPE_COLORS, DrawnVariable, new_axes, shortened
from heatmover.study.study import Study
from heatmover.tl.layout import KEY, composed, unpack

# Gap between groups of samples, as a multiple of the width of a bar.
GAP = 1.0
# Smallest width in points at which a vertical name is legible, and largest font size of names.
LEAST_NAME_POINTS, LARGEST_NAME_POINTS = 6.0, 9.0
# Width of a letter of a group name above the bars, in points.
LETTER_POINTS = 6.0
# Largest number of samples whose bars have gaps between them. With more samples, gaps would be thinner than a pixel, so
# the bars touch.
MOST_APART = 120
# Opacity of a bar that is not significant; its edge stays opaque.
PALE = 0.3
# Values above this quantile have the same saturated color. Otherwise, a few extreme values would make all other values
# pale.
SATURATED = 0.99


def composition(
    data: Any, cells: Any = None, *, color: Any = None, most: int = 10, key: str = KEY, ax: Any = None
) -> Any:
    """Draw the cell type composition of each sample as stacked bars.

    Samples are sorted like the leaves of the tree in `distance_heatmap`, so that similar samples are adjacent. With
    ``color``, samples are first sorted by group.

    Parameters
    ----------
    data
        A `Study` with cell types (in memory or out of core), an AnnData of cells after
        `heatmover.tl.sample_distances`, or a `Comparison`.
    cells
        For an AnnData: the column of ``.obs`` with the type of each cell. For a `Comparison`: the type of each point of
        the graph, ``(n_points,)``. For a `Study`: None, because a study already has cell types.
    color
        Variable by which samples are grouped, or sorted if the variable is numeric: a name or values, as in
        `sample_map`.
    most
        Number of types with a color, at most 10; all other types are combined as "other".
    key
        Key of ``.uns`` under which `sample_distances` stored its results, if ``data`` is an AnnData of cells.
    ax
        Axes to draw into, with space for a legend to the right of the axes. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with one bar for each sample.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import composition
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> result = hm.compare(data.points, data.labels)
    >>> axes = composition(result, data.coordinates[:, 0].astype(int), color=data.annotations["condition"])
    >>> axes.get_title(loc="left")
    'Composition of 8 samples'
    """
    if most > len(TYPE_COLORS):
        raise InvalidInputError(
            f"the argument most to be at most {len(TYPE_COLORS)}", repr(most), "more colors cannot be distinguished"
        )
    every = _read(data, cells, key)
    shown = every.largest(most)
    plotted = read_data(data, key)
    order, groups = _order(plotted.distances, None if color is None else plotted.variable(color))
    return _draw_composition(
        new_axes((8.0, 4.6)) if ax is None else ax,
        [plotted.names[i] for i in order],
        shown.types,
        shown.shares[order],
        groups,
        rest=len(shown.types) < len(every.types),
        title=f"Composition of {counted(len(order), 'sample')}",
        legend=shown.annotation,
    )


def _read(data: Any, cells: Any, key: str) -> SampleComposition:
    """Return the shares of cell types in samples, or raise an error that names what is missing."""
    if isinstance(data, Study):
        if data.composition is None or cells is not None:
            if data.composition is None:
                raise InvalidInputError("a study with cell types", "none", "pass cells= when you create the study")
            raise InvalidInputError("the cell types of the study", "other types", "leave out the argument cells")
        return data.composition
    if cells is None:
        raise InvalidInputError("the type of each cell", "none", "pass cells=")
    if isinstance(data, Comparison):
        annotation = annotate(str(getattr(cells, "name", None) or ""), cells, data.graph.n_points)
        return shares_of(annotation, data.measures.masses)
    if not isinstance(cells, str):
        raise InvalidInputError("the argument cells to be the name of a column of obs", type(cells).__name__)
    if "distances" in getattr(data, "obsp", ()):
        raise InvalidInputError(
            f"an AnnData of cells, with the column {quoted(cells)} in obs",
            "an AnnData of samples",
            "pass the AnnData that was passed to hm.tl.sample_distances",
        )
    return composed(data, key, cells)


def _order(distances: Any, variable: DrawnVariable | None) -> tuple[Any, list[tuple[str, int]]]:
    """Return the indices of the samples in the order of the bars, and the name and first position of every group."""
    tree = leaf_order(distances)
    if variable is None:
        return tree, []
    if variable.numbers is not None:
        # Sort by number, with missing numbers last; equal numbers are in the order of the tree.
        return tree[np.argsort(variable.numbers[tree], kind="stable")], []
    # Sort by group, with missing groups last; samples of a group are in the order of the tree.
    codes = np.where(variable.codes < 0, len(variable.groups), variable.codes)[tree]
    order, codes = tree[np.argsort(codes, kind="stable")], np.sort(codes)
    begins = np.flatnonzero(np.diff(codes, prepend=-1)).tolist()
    return order, [((*variable.groups, "missing")[codes[start]], start) for start in begins]


def abundance_state(data: Any, *, most: int = 20, key: str = KEY, key_added: str = "explain", ax: Any = None) -> Any:
    """Draw the contribution of each cell type to the distance between two groups, split into abundance and state.

    The bars sum to 100% of the distance. Saturated bars are significant at a false-discovery rate of 10%; pale bars are
    not. A negative bar means that the type changed against the overall trend.

    Parameters
    ----------
    data
        A `Study` with cell types, its ``contrast``, or an AnnData of cells after
        ``heatmover.tl.explain(annotation=...)``.
    most
        Largest number of types to draw; types with the largest contributions are drawn.
    key, key_added
        Keys under which `sample_distances` and `explain` stored their results, if ``data`` is an AnnData.
    ax
        Axes to draw into; default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with two bars for each type; the type with the largest contribution is on top.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import abundance_state
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> condition = {"condition": data.annotations["condition"]}
    >>> branch = {"branch": data.coordinates[:, 0].astype(int)}
    >>> study = hm.study_comparison(hm.compare(data.points, data.labels), condition, cells=branch)
    >>> axes = abundance_state(study)
    >>> axes.get_yticklabels()[0].get_text()
    '4'
    """
    count = check_integer("the argument most", most, minimum=1)
    names, columns, groups = _contrast(data, key, key_added)
    whole = float(columns["abundance"].sum() + columns["state"].sum()) or 1.0
    shown = slice(0, count)
    parts = np.array([columns["abundance"][shown], columns["state"][shown]]) / whole
    significant = np.array([columns["abundance_q"][shown], columns["state_q"][shown]]) <= LEVEL
    left = len(names) - len(names[shown])
    return _draw_parts(
        new_axes((6.4, 1.9 + 0.5 * len(names[shown]))) if ax is None else ax,
        names[shown],
        parts,
        significant,
        title=f"Abundance and state of cell types{groups}",
        xlabel="share of the distance (%)" + (f"; {counted(left, 'further type')} not shown" if left else ""),
    )


def drivers(data: Any, *, most: int = 15, ax: Any = None) -> Any:
    r"""Draw the differences of features, such as markers or genes, within cell types between two groups.

    Parameters
    ----------
    data
        A `Study` with cell types, its ``contrast``, or the ``drivers`` of the contrast.
    most
        Largest number of features to draw; features with the strongest evidence in any type are drawn.
    ax
        Axes to draw into; default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with a row for each cell type (the largest contribution to the distance is on top) and a column for each
        feature. Colors show the difference between the groups, in standard deviations of the cells of the type. Dots
        mark significant differences (false-discovery rate 10%).

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import heatmover as hm
    >>> from heatmover.pl import drivers
    >>> rng = np.random.default_rng(0)
    >>> rows = ["sample,group,type,x,y"]
    >>> for s in range(8):
    ...     for i in range(40):
    ...         x, y = rng.normal(size=2) + [3 * (i % 2), 2 * (s % 2) * (i % 2)]
    ...         rows.append(f"s{s},{'ab'[s % 2]},{'BT'[i % 2]},{x},{y}")
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(rows))
    >>> study = hm.study_cohort(hm.read_cohort(path, sample_key="sample"), variables=["group"], cells="type")
    >>> axes = drivers(study)
    >>> sorted(label.get_text() for label in axes.get_xticklabels())
    ['x', 'y']
    """
    count = check_integer("the argument most", most, minimum=1)
    contrast = data.contrast if isinstance(data, Study) else data
    table = contrast if isinstance(contrast, Drivers) else getattr(contrast, "drivers", None)
    if not isinstance(table, Drivers):
        raise InvalidInputError(
            "a contrast of cell types with the features of their cells, from hm.study_cohort with cells=",
            "a study without such a contrast" if isinstance(data, Study) else type(data).__name__,
        )
    title = f"{table.kind.capitalize()}s within cell types"
    if isinstance(contrast, CellContrast):
        title += f": {shortened(contrast.group)} against {shortened(contrast.reference)}"
    top = np.argsort(-np.abs(table.scores).max(axis=0), kind="stable")[:count]
    return _draw_drivers(
        new_axes((2.6 + 0.32 * len(top), 2.4 + 0.32 * len(table.types))) if ax is None else ax,
        table.types,
        [table.features[place] for place in top],
        table.standardized[:, top],
        table.q_values[:, top] <= LEVEL,
        title=title,
    )


def explanation(
    data: Explanation | GroupContrast,
    coordinates: npt.ArrayLike,
    *,
    of: Literal["witness", "surplus", "contributions"] = "witness",
    level: float = 0.1,
    ax: Any = None,
) -> Any:
    """Draw an explanation on a map of the points.

    Points are red where the first measure, or the group, is denser, and blue where the second measure, or the
    reference, is denser. If contributions are drawn, red points increase the distance.

    Parameters
    ----------
    data
        Result of `heatmover.explain` or `heatmover.explain_groups`.
    coordinates
        Coordinates of the points on a map, ``(n_points, 2)``.
    of
        Values that the colors show, for an explanation of two measures.
    level
        For an explanation of two groups: false-discovery rate up to which points are colored; all other points are
        white. 1: color all points.
    ax
        Axes to draw into; default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with the points.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import explanation
    >>> data = hm.datasets.cohort(6, cells_per_sample=60, effect=4.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> result = hm.explain(model, "case-01", "control-01", measures=measures)
    >>> len(explanation(result, data.points[:, :2]).collections)
    1
    """
    check_option("the argument of", of, ("witness", "surplus", "contributions"))
    if isinstance(data, GroupContrast):
        values = np.where(data.q_values <= level, data.log_ratios, 0.0)
        label = f"natural logarithm of density in {data.group} over {data.reference}"
    elif isinstance(data, Explanation):
        values = getattr(data, of)
        label = "contribution to the distance" if of == "contributions" else f"{of}: {data.names[1]} to {data.names[0]}"
    else:
        raise InvalidInputError("the result of hm.explain or hm.explain_groups", type(data).__name__)
    places = as_array("coordinates", coordinates, dtype=np.float64)
    if places.ndim != 2 or places.shape[0] != values.size or places.shape[1] < 2:
        raise InvalidInputError(f"coordinates of shape ({values.size}, 2)", f"shape {places.shape}")
    return _draw_points(new_axes((7.0, 5.5)) if ax is None else ax, places[:, :2], values, label)


def _contrast(data: Any, key: str, key_added: str) -> tuple[list[str], dict[str, Any], str]:
    """Return the names of the cell types, their columns by name, and the groups in words, or raise an error."""
    contrast = data.contrast if isinstance(data, Study) else data
    wanted = ("abundance", "state", "abundance_q", "state_q")
    if isinstance(contrast, CellContrast):
        columns = {name: np.array([getattr(each, name) for each in contrast.types]) for name in wanted}
        groups = f": {shortened(contrast.group)} and {shortened(contrast.reference)}"
        return [each.name for each in contrast.types], columns, groups
    if contrast is None or not hasattr(contrast, "uns"):
        raise InvalidInputError(
            "a contrast of cell types: a Study with cells=, or an AnnData after hm.tl.explain",
            "a study without such a contrast" if isinstance(data, Study) else type(data).__name__,
        )
    stored = unpack(contrast, key).get(key_added)
    if stored is None or "types" not in stored:
        raise InvalidInputError(
            f"a contrast of cell types in uns[{key!r}][{key_added!r}]", "none", "call hm.tl.explain(annotation=...)"
        )
    table = stored["types"]
    columns = {name: table[name].to_numpy(dtype=np.float64) for name in wanted}
    return [str(name) for name in table.index], columns, ""


# Drawing of plain arrays.


def _draw_composition(
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
    """Draw stacked bars of shares into matplotlib axes, and return the axes.

    Parameters
    ----------
    axes
        Matplotlib axes.
    names, types
        Names of the samples and of the cell types, in the order of drawing; the first type is at the bottom.
    shares
        ``(n_samples, n_types)``: shares of the cells; every row sums to 1.
    groups
        Name of every group, and position of its first sample. Groups are separated by gaps, and their names are written
        above the bars.
    rest
        Whether the last type combines all types without a color; it is drawn in gray.
    title, legend
        Title of the axes, and title of the legend.
    """
    starts = [start for _, start in groups] or [0]
    places = np.arange(len(names)) + GAP * (np.searchsorted(starts, np.arange(len(names)), side="right") - 1)
    bottoms = np.cumsum(shares, axis=1) - shares
    apart = len(names) <= MOST_APART
    for kind, name in enumerate(types):
        gray = kind >= len(TYPE_COLORS) or (rest and kind == len(types) - 1)
        axes.bar(
            places, shares[:, kind], width=0.86 if apart else 1.0, bottom=bottoms[:, kind],
            color=MISSING if gray else TYPE_COLORS[kind], label=picture.inert_label(name),
            edgecolor="white", linewidth=0.4 if apart else 0.0,
        )  # fmt: skip
    axes.set_xlim(places[0] - 0.8, places[-1] + 0.8)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.set_ylabel("share of cells", color=INK, fontsize=11)
    axes.set_xticks([])
    picture.head(axes, title, pad=26 if groups else 10)
    picture.bare(axes, sides=("left",))
    handles, labels = axes.get_legend_handles_labels()
    # Place the legend to the right of the axes, where it hides nothing, with types in the order of the bars from top to
    # bottom.
    drawn = axes.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1.0, handleheight=1.0, title=shortened(legend), title_fontsize=10,
        alignment="left",
    )  # fmt: skip
    picture.inert(drawn)
    room = picture.room(axes, places[-1] - places[0] + 1.6)
    _write_groups(axes, groups, places, room)
    if room < LEAST_NAME_POINTS:
        axes.set_xlabel(counted(len(names), "sample"), color=INK, fontsize=11)
    else:
        size = min(room * 0.9, LARGEST_NAME_POINTS)
        picture.name_ticks(axes.xaxis, places, names, 20, rotation=90, fontsize=size)
        axes.tick_params(axis="x", colors=QUIET, pad=2)
    return axes


def _write_groups(axes: Any, groups: Sequence[tuple[str, int]], places: Float64, wide: float) -> None:
    """Write the name of each group above its bars, shortened to fit; omit it if there is too little space."""
    stops = [begin for _, begin in groups[1:]] + [len(places)] * bool(groups)
    for (name, start), stop in zip(groups, stops, strict=True):
        first, last = places[start], places[stop - 1]
        letters = int(wide * (last - first + 1 + GAP) / LETTER_POINTS)
        short = shortened(name)
        if letters < min(4, len(short)):
            continue
        axes.annotate(
            shortened(name, min(letters, picture.NAME_LETTERS)), ((first + last) / 2, 1), xytext=(0, 5),
            textcoords="offset points", ha="center", va="bottom", fontsize=10, color=INK, annotation_clip=False,
            parse_math=False,
        )  # fmt: skip


def _draw_parts(
    axes: Any, names: Sequence[str], parts: Float64, sure: Bool, *, title: str = "", xlabel: str = ""
) -> Any:
    """Draw two bars for each cell type into matplotlib axes, and return the axes.

    Parameters
    ----------
    axes
        Matplotlib axes.
    names
        Names of the types, from top to bottom.
    parts
        ``(2, n_types)``: contributions of abundance and state, as shares of the distance; may be negative.
    sure
        ``(2, n_types)``: whether each difference is significant.
    title, xlabel
        Title of the axes, and label of the horizontal axis.
    """
    colors = import_extra("matplotlib.colors", package="matplotlib", extra="cohort")
    patches = import_extra("matplotlib.patches", package="matplotlib", extra="cohort")
    rows = np.arange(len(names))
    handles = []
    for color, label, shift, values, full in zip(
        picture.NUMBER_AND_STATE, ("abundance", "cell state"), (-0.2, 0.2), parts, sure, strict=True
    ):
        shades = [colors.to_rgba(color, 1.0 if each else PALE) for each in full]
        axes.barh(rows + shift, 100 * values, height=0.34, color=shades, edgecolor=color, linewidth=0.8, zorder=2)
        handles.append(patches.Patch(facecolor=color, edgecolor=color, label=label))
    handles.append(patches.Patch(facecolor=colors.to_rgba(INK, PALE), edgecolor=INK, label="pale: not significant"))
    axes.axvline(0, color=QUIET, linewidth=0.8, zorder=3)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    picture.name_ticks(axes.yaxis, rows, names, 40)
    axes.set_xlabel(xlabel, color=INK, fontsize=11)
    picture.head(axes, title)
    picture.bare(axes, sides=("bottom",))
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=3, frameon=False, fontsize=9,
        labelcolor=INK, handlelength=1.0, handleheight=1.0,
    )  # fmt: skip
    return axes


def _draw_drivers(
    axes: Any, types: Sequence[str], features: Sequence[str], sizes: Float64, sure: Bool, *, title: str = ""
) -> Any:
    """Draw differences of features within cell types into matplotlib axes, and return the axes.

    Parameters
    ----------
    axes
        Matplotlib axes.
    types, features
        Names of the cell types (rows) and of the features (columns).
    sizes
        ``(n_types, n_features)``: differences in standard deviations; colors are symmetric around zero.
    sure
        ``(n_types, n_features)``: whether a difference is significant and gets a dot.
    title
        Title of the axes.
    """
    largest = float(np.abs(sizes).max(initial=0.0)) or 1.0
    # As in the report, orange means higher and purple means lower; color-blind readers can distinguish these colors.
    image = axes.imshow(sizes, cmap="PuOr_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    rows, columns = np.nonzero(sure)
    axes.scatter(columns, rows, s=16, color=INK, edgecolor="white", linewidth=0.5, zorder=3)
    picture.name_ticks(axes.xaxis, range(len(features)), features, 24, rotation=90)
    picture.name_ticks(axes.yaxis, range(len(types)), types, 30)
    picture.head(axes, title, "dot: significant difference, independent of abundance")
    picture.bare(axes, sides=())
    axes.tick_params(length=0, colors=INK)
    picture.color_bar(axes, image, "difference (standard deviations)")
    return axes


def _draw_points(axes: Any, places: Float64, values: Float64, label: str) -> Any:
    """Draw points in colors that are white at zero, with the largest absolute values in front, and return the axes.

    Parameters
    ----------
    axes
        Matplotlib axes.
    places, values
        Coordinates ``(n_points, 2)`` and values ``(n_points,)`` of the points.
    label
        Label of the color bar.
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
        # A faint edge makes white points (values near zero) visible.
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
