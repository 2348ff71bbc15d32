"""`distance_heatmap`."""

from __future__ import annotations

from typing import Any

from heatmover.drawing.heatmap import draw_heatmap
from heatmover.drawing.style import Palette, new_axes
from heatmover.pl._data import read_data

__all__ = ["distance_heatmap"]


def distance_heatmap(
    data: Any, color: Any = None, *, palette: Palette = None, key: str = "heatmover", ax: Any = None
) -> dict[str, Any]:
    """Draw all distances between samples, ordered by hierarchical clustering, with variables beside them.

    Samples are joined by average linkage; the tree is turned so that neighbours in the picture are as near as
    possible (up to 1,000 samples). Names are written if they can be read. Colours change between the 1st and the 99th
    percentile of the distances.

    Parameters
    ----------
    data
        As in `sample_map`.
    color
        Variables for strips above the heatmap: a column of ``.obs``, a list of columns, a mapping from names of
        variables to values, or values for the samples.
    palette
        A mapping from groups to colours, for all strips.
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; the tree and the strips stand above it and the legends to its right, so that it needs some
        room there. Default new ones.

    Returns
    -------
    dict of str to matplotlib.axes.Axes
        ``"heatmap"``, ``"dendrogram"``, ``"colorbar"``, and if there are variables ``"strips"``.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import distance_heatmap
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> result = hm.compare(data.points, data.labels)
    >>> axes = distance_heatmap(result, {"condition": data.annotations["condition"]})
    >>> sorted(axes)
    ['colorbar', 'dendrogram', 'heatmap', 'strips']
    """
    pictured = read_data(data, key)
    variables = pictured.variables(color)
    axes = new_axes((8.0, 7.0)) if ax is None else ax
    return draw_heatmap(axes, pictured.names, pictured.distances, variables, palette)
