"""Pictures of cells: what each sample is made of, what types add to a distance, and where on a map cells differ."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Intp
from heatmover._base.validation import as_array, check_integer, check_option
from heatmover._base.words import counted, quoted
from heatmover.attribution import Drivers, Explanation, GroupContrast
from heatmover.errors import InvalidInputError
from heatmover.pl.plots import read_data
from heatmover.study.cell_types import LEVEL, CellContrast, SampleComposition, annotate, shares_of
from heatmover.study.comparison import Comparison
from heatmover.study.drawing.cells import PartBars, arranged, draw_composition, draw_drivers, draw_parts, draw_points
from heatmover.study.drawing.heatmap import leaf_order
from heatmover.study.drawing.style import TYPE_COLORS, DrawnVariable, new_axes, shortened
from heatmover.study.study import Study
from heatmover.tl.layout import KEY, composed, unpack

__all__ = ["abundance_state", "composition", "drivers", "explanation"]


def composition(
    data: Any, cells: Any = None, *, color: Any = None, most: int = 10, key: str = KEY, ax: Any = None
) -> Any:
    """Draw what share of its cells each sample has of every cell type, as stacked bars.

    Samples stand in the order of the tree of `distance_heatmap`, like beside like; with ``color`` group by group, each
    in that order.

    Parameters
    ----------
    data
        A `Study` that knows the types of cells (in memory or in pieces), an AnnData of cells after
        `heatmover.tl.sample_distances`, or a `Comparison`.
    cells
        For an AnnData the column of ``.obs`` with the type of each cell; for a `Comparison` the type of each point of
        its graph, ``(n_points,)``; a `Study` has its own.
    color
        Groups of samples, or numbers to sort them by: a variable by its name, or values, as in `sample_map`.
    most
        How many types have a colour, at most 10; all others are one, "other".
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; the legend stands to their right. Default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With one bar for each sample.

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
        raise InvalidInputError(f"most of at most {len(TYPE_COLORS)}", repr(most), "more colours cannot be told apart")
    every = _read(data, cells, key)
    shown = every.largest(most)
    pictured = read_data(data, key)
    order, groups = _order(pictured.distances, None if color is None else pictured.variable(color))
    return draw_composition(
        new_axes((8.0, 4.6)) if ax is None else ax,
        [pictured.names[i] for i in order],
        shown.types,
        shown.shares[order],
        groups,
        rest=len(shown.types) < len(every.types),
        title=f"Composition of {counted(len(order), 'sample')}",
        legend=shown.annotation,
    )


def _read(data: Any, cells: Any, key: str) -> SampleComposition:
    """Return the shares of cell types in samples, or say what is not there."""
    if isinstance(data, Study):
        if data.composition is None or cells is not None:
            given = "a study without any" if data.composition is None else "others"
            raise InvalidInputError("the types of cells that the study was given", given, "give the study cells=")
        return data.composition
    if cells is None:
        raise InvalidInputError("the type of each cell", "none", "give cells=")
    if isinstance(data, Comparison):
        annotation = annotate(str(getattr(cells, "name", None) or ""), cells, data.graph.n_points)
        return shares_of(annotation, data.measures.masses)
    if not isinstance(cells, str):
        raise InvalidInputError("cells to be a column of obs", type(cells).__name__)
    if "distances" in getattr(data, "obsp", ()):
        raise InvalidInputError(
            f"an AnnData of cells with {quoted(cells)}", "one of samples", "pass the cells after hm.tl.sample_distances"
        )
    return composed(data, key, cells)


def _order(distances: Any, variable: DrawnVariable | None) -> tuple[Any, list[tuple[str, int]]]:
    """Return the samples in the order of their bars, and the name and the first of every group."""
    tree = leaf_order(distances)
    if variable is None:
        return tree, []
    if variable.numbers is not None:
        # The smallest first, those without a number last; equals as in the tree.
        return tree[np.argsort(variable.numbers[tree], kind="stable")], []
    codes: Intp = variable.codes
    order, begins = arranged(tree, codes)
    names = [variable.groups[codes[order[start]]] if codes[order[start]] >= 0 else "missing" for start in begins]
    return order, list(zip(names, begins, strict=True))


def abundance_state(data: Any, *, most: int = 20, key: str = KEY, key_added: str = "explain", ax: Any = None) -> Any:
    """Draw what each cell type adds to the distance between two groups: by its number, and by the state of its cells.

    Both bars of all types together make the distance, 100 %. A full bar is surely different, with a tenth of such
    findings false; a pale one may be chance. A bar below zero: the type changed against what is around it.

    Parameters
    ----------
    data
        A `Study` that knows the types of cells, its ``contrast``, or an AnnData of cells after
        ``heatmover.tl.explain(annotation=...)``.
    most
        Draw so many types, those that add most.
    key, key_added
        Where `sample_distances` and `explain` wrote, if ``data`` is an AnnData.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With two bars for each type, the one that adds most on top.

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
    count = check_integer("most", most, minimum=1)
    names, columns, groups = _contrast(data, key, key_added)
    whole = float(columns["abundance"].sum() + columns["state"].sum()) or 1.0
    shown = slice(0, count)
    parts = PartBars(
        names[shown],
        columns["abundance"][shown] / whole,
        columns["state"][shown] / whole,
        columns["abundance_q"][shown] <= LEVEL,
        columns["state_q"][shown] <= LEVEL,
    )
    left = len(names) - len(parts.names)
    return draw_parts(
        new_axes((6.4, 1.9 + 0.5 * len(parts.names))) if ax is None else ax,
        parts,
        title=f"Number and state of cells{groups}",
        xlabel="part of the distance (%)" + (f"; {counted(left, 'further type')} not shown" if left else ""),
    )


def drivers(data: Any, *, most: int = 15, ax: Any = None) -> Any:
    r"""Draw which features, such as markers or genes, differ within which cell types between two groups.

    Parameters
    ----------
    data
        A `Study` that knows the types of cells, its ``contrast``, or the ``drivers`` of that.
    most
        Draw so many features, those that differ most surely in any type.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With a row for each cell type, those that add most to the distance on top, and a column for each feature. The
        colour is the difference in standard deviations of the cells of that type; a dot is a sure one, with a tenth of
        such findings false.

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
    count = check_integer("most", most, minimum=1)
    contrast = data.contrast if isinstance(data, Study) else data
    table = contrast if isinstance(contrast, Drivers) else getattr(contrast, "drivers", None)
    if not isinstance(table, Drivers):
        raise InvalidInputError(
            "a contrast of cell types with the features of their cells, from hm.study_cohort with cells=",
            "a study without any" if isinstance(data, Study) else type(data).__name__,
        )
    types, title = table.types, "Features within cells"
    if isinstance(contrast, CellContrast):
        types = tuple(each.name for each in contrast.types)
        title += f": {shortened(contrast.group)} against {shortened(contrast.reference)}"
    rows = [table.types.index(name) for name in types]
    surest = np.argsort(-np.abs(table.scores).max(axis=0), kind="stable")[:count]
    part = np.ix_(np.array(rows), surest)
    return draw_drivers(
        new_axes((2.6 + 0.32 * len(surest), 2.4 + 0.32 * len(rows))) if ax is None else ax,
        types,
        [table.features[place] for place in surest],
        table.standardized[part],
        table.q_values[part] <= LEVEL,
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
    """Draw the points of an explanation, red where the first measure, or the group, is denser, blue where the other is.

    Parameters
    ----------
    data
        From `heatmover.explain` or `heatmover.explain_groups`.
    coordinates
        A map of the points, ``(n_points, 2)``.
    of
        What to colour by in an explanation of two measures.
    level
        Share of false discoveries allowed among the coloured points of two groups; all others are white. 1 colours all.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With the points.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import explanation
    >>> data = hm.datasets.cohort(6, cells_per_sample=60, effect=4.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> found = hm.explain(model, "case-01", "control-01", measures=measures)
    >>> len(explanation(found, data.points[:, :2]).collections)
    1
    """
    check_option("of", of, ("witness", "surplus", "contributions"))
    if isinstance(data, GroupContrast):
        values = np.where(data.q_values <= level, data.log_ratios, 0.0)
        label = f"natural logarithm of density in {data.group} over {data.reference}"
    elif isinstance(data, Explanation):
        values = getattr(data, of)
        label = "contribution to the distance" if of == "contributions" else f"{of}: {data.names[1]} to {data.names[0]}"
    else:
        raise InvalidInputError("what hm.explain or hm.explain_groups returns", type(data).__name__)
    places = as_array("coordinates", coordinates, dtype=np.float64)
    if places.ndim != 2 or places.shape[0] != values.size or places.shape[1] < 2:
        raise InvalidInputError(f"coordinates of shape ({values.size}, 2)", f"shape {places.shape}")
    return draw_points(new_axes((7.0, 5.5)) if ax is None else ax, places[:, :2], values, label)


def _contrast(data: Any, key: str, key_added: str) -> tuple[list[str], dict[str, Any], str]:
    """Return names of types, their columns and what was compared, or say what is not there."""
    contrast = data.contrast if isinstance(data, Study) else data
    wanted = ("abundance", "state", "abundance_q", "state_q")
    if isinstance(contrast, CellContrast):
        columns = {name: np.array([getattr(each, name) for each in contrast.types]) for name in wanted}
        groups = f": {shortened(contrast.group)} and {shortened(contrast.reference)}"
        return [each.name for each in contrast.types], columns, groups
    if contrast is None or not hasattr(contrast, "uns"):
        raise InvalidInputError(
            "a contrast of cell types: a Study with cells=, or an AnnData after hm.tl.explain",
            "a study without any" if isinstance(data, Study) else type(data).__name__,
        )
    stored = unpack(contrast, key).get(key_added)
    if stored is None or "types" not in stored:
        raise InvalidInputError(
            f"a contrast of cell types in uns[{key!r}][{key_added!r}]", "none", "call hm.tl.explain(annotation=...)"
        )
    table = stored["types"]
    columns = {name: table[name].to_numpy(dtype=np.float64) for name in wanted}
    return [str(name) for name in table.index], columns, ""
