"""Plot samples: their map, distances, the compared scales, and the smoothness of variables; for users, as `pl`.

Users call the functions with studies, comparisons or AnnData. The functions draw into matplotlib axes and change
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._base.types import Bool, Float64
from heatmover._base.validation import RandomState, as_array, check_option
from heatmover._base.words import counted, find, quoted
from heatmover.diffusion.scales import MIXED
from heatmover.errors import InvalidInputError
from heatmover.statistics.manifold import classical_scaling
from heatmover.statistics.manifold import smoothness as test_smoothness
from heatmover.statistics.permutations import TestResult
from heatmover.study.comparison import Comparison
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.heatmap import draw_heatmap
from heatmover.study.drawing.map import SampleMap, axis_labels
from heatmover.study.drawing.style import FAINT, INK, QUIET, DrawnVariable, Palette, new_axes, read_variable
from heatmover.study.study import Study
from heatmover.tl.layout import KEY, MAPS, compute_map, samples, scale_summary


@final
@dataclass(frozen=True, eq=False)
class PlotData:
    """The samples to draw.

    Attributes
    ----------
    names
        Names of the samples.
    distances
        Distances between the samples, ``(n_samples, n_samples)``.
    source
        The `Comparison`, or the AnnData with samples as rows.
    table
        DataFrame of sample metadata; None for a comparison, which has no metadata.
    """

    names: tuple[str, ...]
    distances: Float64
    source: Any
    table: Any = None

    @property
    def alike(self) -> Bool | None:
        """True for pairs that do not differ significantly, ``(n_samples, n_samples)``; None without intervals."""
        if isinstance(self.source, Comparison):
            intervals = self.source.intervals
            return None if intervals is None else ~intervals.distinguishable
        stored = self.source.uns[KEY].get("intervals")
        return None if stored is None else np.asarray(stored["lower"]) <= 0

    def variable(self, color: Any) -> DrawnVariable:
        """Return the variable to draw, given by the name of a column of obs or by values."""
        if not isinstance(color, str):
            return read_variable(color, self.names)
        if self.table is None:
            raise InvalidInputError(
                "values for the samples",
                f"the name {quoted(color)}",
                "a Comparison has no sample metadata; pass an array",
            )
        if not isinstance(self.source, Comparison) and color in list(self.source.uns[KEY].get("varying", ())):
            raise InvalidInputError(
                f"{quoted(color)} to be constant within each sample",
                "that it varies within samples",
                "choose sample metadata, not an annotation of cells",
            )
        columns = [str(name) for name in self.table.columns]
        column = self.table[find(color, columns, "the name of a column of sample metadata")]
        return read_variable(column, self.names, color)

    def variables(self, color: Any) -> list[DrawnVariable]:
        """Return the variables to draw, given by a name, a list of names, a mapping from names to values, or values."""
        if color is None:
            return []
        # A mapping contains either whole variables or the values of single samples.
        if isinstance(color, Mapping) and all(
            hasattr(values, "__len__") and not isinstance(values, str) for values in color.values()
        ):
            return [read_variable(values, self.names, str(name)) for name, values in color.items()]
        if self._are_columns(color):
            return [self.variable(name) for name in color]
        return [self.variable(color)]

    def _are_columns(self, color: Any) -> bool:
        """Return whether a list contains names of columns instead of one value per sample."""
        if self.table is None or isinstance(color, str) or not isinstance(color, Sequence):
            return False
        words = all(isinstance(each, str) for each in color)
        return words and (len(color) != len(self.names) or set(color) <= set(self.table.columns))

    def coordinates(self, basis: str) -> tuple[Float64, tuple[str, str]]:
        """Return the coordinates of a map, ``(n_samples, 2)``, and the labels of its axes."""
        if isinstance(self.source, Comparison):
            check_option("basis", basis, MAPS)
            if basis == "mds":
                scaling, ratios = classical_scaling(self.distances, 2)
                return scaling, axis_labels(basis, ratios)
            return _two(compute_map(basis, self.distances, 2, 10)), axis_labels(basis)
        stored = [name.removeprefix("X_") for name in self.source.obsm]
        name = find(basis.removeprefix("X_"), stored, "the argument basis to be the name of a map in obsm")
        places = self.source.obsm[f"X_{name}" if f"X_{name}" in self.source.obsm else name]
        places = as_array(f"obsm[{name!r}]", places, dtype=np.float64)[:, :2]
        shares = self.source.uns.get("mds", {}).get("variance_ratio") if name == "mds" else None
        return _two(places), axis_labels(name, shares)


def read_data(data: Any, key: str = KEY, *, maps: Sequence[str] = ()) -> PlotData:
    """Return the samples to draw from a study, a comparison or an AnnData."""
    if isinstance(data, Study):
        compared = data.comparison
        return PlotData(compared.names, compared.distances, compared, data.variables)
    if isinstance(data, Comparison):
        return PlotData(data.names, data.distances, data)
    if not (hasattr(data, "obs") and hasattr(data, "obsp")):
        raise InvalidInputError(
            "a Comparison, or an AnnData after hm.tl.sample_distances", type(data).__name__, "see hm.tl.samples"
        )
    note = data.uns.get(KEY)
    if not (hasattr(note, "keys") and "varying" in note and "distances" in data.obsp):
        data = samples(data, key, maps=[name for name in maps if name in MAPS])
    if data.n_obs < 2:
        raise InvalidInputError("at least two samples", f"{data.n_obs}")
    distances = np.asarray(data.obsp["distances"], dtype=np.float64)
    return PlotData(tuple(map(str, data.obs_names)), distances, data, data.obs)


def _two(places: Float64) -> Float64:
    """Return the first two columns, with zeros for a missing second column."""
    return places if places.shape[1] > 1 else np.column_stack([places[:, 0], np.zeros(len(places))])


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
    """Draw a map of the samples, colored by any variable.

    A thin line connects each sample to its nearest sample, because a map in two dimensions may show near samples far
    apart.

    Parameters
    ----------
    data
        A `Comparison`, the AnnData of `heatmover.tl.samples`, or an AnnData of cells after
        `heatmover.tl.sample_distances`.
    color
        Variable to show: a column of ``.obs``, values in the order of the samples, or a mapping or Series from sample
        names to values. Numbers have a color bar; groups have colors and shapes. Samples with a missing value are gray.
    basis
        Name of the map: ``"mds"``, ``"diffusion"``, ``"phate"``, ``"umap"``, or another map in ``.obsm``.
    palette
        For groups, a mapping from groups to colors; for numbers, the name of a color map. The defaults, Okabe and Ito's
        colors and viridis, are color-blind safe.
    names
        Whether to write the names of the samples; names that do not fit are left out. Default: true for up to 1,000
        samples.
    key
        Key of ``.uns`` under which `sample_distances` stored its results, if ``data`` is an AnnData of cells.
    ax
        Axes to draw into; default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with the map.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import sample_map
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> axes = sample_map(hm.compare(data.points, data.labels), data.annotations["condition"])
    >>> axes.get_title(loc="left")
    'Map of 8 samples'
    """
    plotted = read_data(data, key, maps=[basis])
    variable = None if color is None else plotted.variable(color)
    places, labels = plotted.coordinates(basis)
    others = plotted.distances.copy()
    np.fill_diagonal(others, np.inf)
    drawn = SampleMap(plotted.names, places, labels, others.argmin(axis=1), variable, palette)
    return drawn.draw(new_axes() if ax is None else ax, with_names=names)


def distance_heatmap(
    data: Any, color: Any = None, *, palette: Palette = None, key: str = "heatmover", ax: Any = None
) -> dict[str, Any]:
    """Draw a clustered heatmap of the distances between samples, with variables as strips.

    Samples are clustered by average linkage. For up to 1,000 samples, the leaves of the tree are ordered so that
    adjacent samples are as near as possible. Names of samples are shown if they would be legible. The color scale spans
    the 1st to the 99th percentile of the distances. If ``data`` has confidence intervals (``n_bootstrap``), pairs that
    do not differ significantly are hatched.

    Parameters
    ----------
    data
        As in `sample_map`.
    color
        Variables for strips above the heatmap: a column of ``.obs``, a list of columns, a mapping from names of
        variables to values, or values for the samples.
    palette
        A mapping from groups to colors, for all strips.
    key
        Key of ``.uns`` under which `sample_distances` stored its results, if ``data`` is an AnnData of cells.
    ax
        Axes to draw into, with space for the tree and the strips above them, and for legends to the right. Default: new
        axes.

    Returns
    -------
    dict of str to matplotlib.axes.Axes
        Axes ``"heatmap"``, ``"dendrogram"``, ``"colorbar"`` and, with variables, ``"strips"``.

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
    plotted = read_data(data, key)
    variables = plotted.variables(color)
    axes = new_axes((8.0, 7.0)) if ax is None else ax
    return draw_heatmap(axes, plotted.names, plotted.distances, variables, palette, alike=plotted.alike)


def scales(data: Any, *, key: str = "heatmover", ax: Any = None) -> Any:
    """Draw the contribution of each scale to the distances, and how the largest scale was chosen.

    Bars show the share of each scale in the mean distance between samples. The line shows, for each scale, the total
    variation between the diffused masses of two cells, averaged over pairs of cells. The automatic choice is the first
    scale at which this average is at most about one half.

    Parameters
    ----------
    data
        As in `sample_map`.
    key
        Key of ``.uns`` under which `sample_distances` stored its results, if ``data`` is an AnnData of cells.
    ax
        Axes to draw into; default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with the bars and the line.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import scales
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> axes = scales(hm.compare(data.points, data.labels))
    >>> axes.get_xlabel()
    'diffusion steps'
    """
    source = read_data(data, key).source
    shares = scale_summary(source) if isinstance(source, Comparison) else source.uns[KEY]["scales"]
    axes = picture.new_axes((6.4, 4.0)) if ax is None else ax
    scale, share, decay = (np.asarray(shares[name]) for name in ("scale", "share", "decay"))
    largest = int(shares["max_scale"])
    axes.bar(scale, share, width=0.72, color=picture.COLORS[0], label="share of the mean distance", zorder=2)
    if decay.size:
        _draw_decay(axes, decay, largest)
    ticks = np.arange(0 if decay.size else scale[0], max(largest, decay.size - 1) + 1)
    axes.set_xticks(ticks, [f"$2^{{{k}}}$" for k in ticks])
    axes.set_ylim(0, 1.04 if decay.size else None)
    axes.set_xlabel("diffusion steps", color=INK, fontsize=11)
    axes.set_ylabel("fraction", color=INK, fontsize=11)
    axes.set_title("Scales compared", loc="left", color=INK, fontsize=14, pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.bare(axes)
    return axes


def _draw_decay(axes: Any, decay: Any, largest: int) -> None:
    orange = picture.COLORS[1]
    axes.plot(
        np.arange(decay.size), decay, "o-", color=orange, markersize=5, linewidth=1.6, markeredgecolor="white",
        label="total variation between diffused cells", zorder=3,
    )  # fmt: skip
    axes.axhline(MIXED, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    if largest < decay.size:
        axes.annotate(
            "largest scale",
            (largest, decay[largest]),
            xytext=(-12, -12),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=9,
            color=INK,
        )
        axes.plot(largest, decay[largest], "o", markersize=9, color="none", markeredgecolor=INK, zorder=4)


def smoothness(
    data: Any,
    variables: Any,
    *,
    blocks: Any = None,
    k: int = 10,
    n_permutations: int = 999,
    random_state: RandomState = 0,
    key: str = "heatmover",
    ax: Any = None,
) -> Any:
    """Draw how smoothly each variable changes between neighboring samples; 1 is expected by chance, 0 is smooth.

    Each bar shows the Laplacian smoothness of a variable (`heatmover.manifold.smoothness`), divided by the mean
    smoothness over permutations of the samples. The gray band contains 95% of the permutations. The p-value of the
    permutation test is written next to the band. P-values are not corrected for the number of variables;
    `heatmover.statistics.false_discovery` corrects them.

    Parameters
    ----------
    data
        As in `sample_map`.
    variables
        Numeric or categorical variables: columns of ``.obs``, or a mapping from names of variables to values. Samples
        with a missing value are left out of the test of the variable; the label of the variable then states the number
        of tested samples.
    blocks
        Variables that identify dependent samples, such as the patient: a column of ``.obs``, a list of columns, a
        mapping from names of variables to values, or values for the samples. A variable that is constant within blocks
        is permuted between whole blocks, and samples of the same block do not count as neighbors. Any other variable is
        permuted within blocks.
    k
        Number of neighbors of each sample in the graph of samples, at most all other samples.
    n_permutations, random_state
        Number of permutations of each test, and seed of the permutations.
    key
        Key of ``.uns`` under which `sample_distances` stored its results, if ``data`` is an AnnData of cells.
    ax
        Axes to draw into; default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        Axes with one bar for each variable; the smoothest variable is on top.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import smoothness
    >>> data = hm.datasets.cohort(20, cells_per_sample=50, effect=4.0)
    >>> result = hm.compare(data.points, data.labels)
    >>> axes = smoothness(result, {"condition": data.annotations["condition"]}, k=5)
    >>> [label.get_text() for label in axes.get_yticklabels()]
    ['condition']
    """
    plotted = read_data(data, key)
    columns = plotted.variables(variables)
    if not columns:
        raise InvalidInputError("at least one variable", "none")
    tied = _blocks(plotted.variables(blocks))
    asked = {"n_permutations": n_permutations, "random_state": random_state}
    tests = [_test(plotted, variable, tied, k, asked) for variable in columns]
    tests.sort(key=lambda tested: -tested[1].statistic)
    axes = picture.new_axes((6.4, 1.6 + 0.42 * len(tests))) if ax is None else ax
    _draw(axes, tests)
    return axes


def _blocks(variables: list[DrawnVariable]) -> dict[str, Any]:
    """Return the block of every sample, by name of the block variable; raise if a value is missing."""
    for variable in variables:
        if variable.missing.any():
            raise InvalidInputError(
                f"a block in {variable.name or 'blocks'!r} for every sample",
                f"none for {int(variable.missing.sum())} of {counted(len(variable.missing), 'sample')}",
            )
    return {
        variable.name or "blocks": variable.codes if variable.numbers is None else variable.numbers
        for variable in variables
    }


def _test(
    plotted: PlotData, variable: DrawnVariable, tied: dict[str, Any], k: int, asked: dict[str, Any]
) -> tuple[str, TestResult]:
    known = np.flatnonzero(~variable.missing)
    total = len(plotted.names)
    if known.size < 3:
        raise InvalidInputError(f"values of {variable.name!r} for at least 3 samples", f"{known.size}")
    values = np.array(variable.groups, dtype=object)[variable.codes] if variable.numbers is None else variable.numbers
    result = test_smoothness(
        plotted.distances[np.ix_(known, known)],
        values[known],
        k=min(k, known.size - 1) if isinstance(k, int) else k,
        blocks={name: block[known] for name, block in tied.items()} or None,
        **asked,
    )
    name = picture.shortened(variable.name or "variable", 40)
    return (name if known.size == total else f"{name} ({known.size} of {total})"), result


def _draw(axes: Any, tests: list[tuple[str, TestResult]]) -> None:
    rows = np.arange(len(tests))
    low, high = np.array([np.quantile(result.null, [0.025, 0.975]) for _, result in tests]).T
    values = np.array([result.statistic for _, result in tests])
    axes.barh(rows, values, height=0.42, color=picture.COLORS[0], zorder=2, label="observed")
    axes.barh(rows, high - low, left=low, height=0.78, color=FAINT, zorder=1, label="95% of permutations")
    axes.axvline(1.0, color=QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    right = max(float(values.max()), float(high.max())) * 1.02
    for row, (_, result) in enumerate(tests):
        axes.annotate(
            f"p = {result.p_value:.2g}", (1.01, row), xycoords=("axes fraction", "data"), va="center",
            fontsize=9, color=INK,
        )  # fmt: skip
    axes.set_xlim(0, right)
    axes.set_ylim(-0.6, len(tests) - 0.4)
    axes.set_yticks(rows, [label for label, _ in tests])
    axes.set_xlabel("roughness between neighboring samples (1: by chance)", color=INK, fontsize=11)
    axes.set_title("Smoothness", loc="left", color=INK, fontsize=14, pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.bare(axes)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        label.set_color(INK)
        label.set_fontsize(10)
    axes.tick_params(axis="y", length=0)
