"""`sample_map`."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover.drawing.map import SampleMap
from heatmover.drawing.style import Palette, new_axes
from heatmover.pl._data import read_data

__all__ = ["sample_map"]


def sample_map(
    data: Any,
    color: Any = None,
    *,
    basis: str = "mds",
    palette: Palette = None,
    names: bool | None = None,
    key: str = "heatmover",
    ax: Any = None,
) -> Any:
    """Draw a map of the samples, coloured by any variable.

    A thin line joins each sample with its nearest one, which the map, being flat, may show too far away.

    Parameters
    ----------
    data
        The AnnData of `heatmover.tl.samples`, one of cells after `heatmover.tl.sample_distances`, or a `Comparison`.
    color
        A column of ``.obs``; or values in the order of the samples, or a mapping or Series from their names. Numbers
        get a colour bar, anything else colours and shapes; where values are missing the sample is grey.
    basis
        ``"mds"``, ``"diffusion"``, ``"phate"``, ``"umap"``, or another map in ``.obsm``.
    palette
        A mapping from groups to colours, or for numbers the name of a colour map. Default: Okabe and Ito's colours, and
        viridis, all safe for the colour-blind.
    names
        Write the names of samples where there is room; default up to 100 samples.
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With the map.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import sample_map
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> axes = sample_map(hm.compare(data.points, data.labels), data.annotations["condition"])
    >>> axes.get_title(loc="left")
    'Map of 8 samples'
    """
    pictured = read_data(data, key, maps=[basis])
    variable = None if color is None else pictured.variable(color)
    places, labels = pictured.coordinates(basis)
    others = pictured.distances.copy()
    np.fill_diagonal(others, np.inf)
    drawn = SampleMap(pictured.names, places, labels, others.argmin(axis=1), variable, palette)
    return drawn.draw(new_axes() if ax is None else ax, with_names=names)
