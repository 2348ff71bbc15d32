"""Pictures of samples: their map, their distances, scales, and how smooth a variable is over them."""

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
from heatmover.statistics.manifold import classical_scaling, diffusion_map, phate, umap
from heatmover.statistics.manifold import smoothness as test_smoothness
from heatmover.statistics.permutations import TestResult
from heatmover.study.comparison import Comparison
from heatmover.study.drawing import style as picture
from heatmover.study.drawing.heatmap import draw_heatmap
from heatmover.study.drawing.map import SampleMap, axis_labels
from heatmover.study.drawing.style import FAINT, INK, QUIET, DrawnVariable, Palette, new_axes, read_variable
from heatmover.study.study import Study
from heatmover.tl.layout import KEY, MAPS, samples, scale_summary

__all__ = ["Pictured", "distance_heatmap", "read_data", "sample_map", "scales", "smoothness"]


@final
@dataclass(frozen=True, eq=False)
class Pictured:
    """Samples to draw.

    Attributes
    ----------
    names
        Of the samples.
    distances
        ``(n_samples, n_samples)``.
    source
        The comparison, or the AnnData of samples.
    table
        Variables of the samples of a study, a DataFrame; None if ``source`` holds them or nobody does.
    """

    names: tuple[str, ...]
    distances: Float64
    source: Any
    table: Any = None

    @property
    def alike(self) -> Bool | None:
        """``(n_samples, n_samples)``: pairs that cannot be told apart; None without intervals."""
        if isinstance(self.source, Comparison):
            intervals = self.source.intervals
            return None if intervals is None else ~intervals.told_apart
        stored = self.source.uns[KEY].get("intervals")
        return None if stored is None else np.asarray(stored["lower"]) <= 0

    def variable(self, color: Any) -> DrawnVariable:
        """Return a column of obs by its name, or values as they are."""
        if not isinstance(color, str):
            return read_variable(color, self.names)
        if self.table is not None:
            columns = [str(name) for name in self.table.columns]
            return read_variable(self.table[find(color, columns, "the name of a variable of the samples")], self.names)
        if isinstance(self.source, Comparison):
            raise InvalidInputError(
                "values for the samples", f"the name {quoted(color)}", "a Comparison knows no variables; pass an array"
            )
        if color in list(self.source.uns[KEY].get("varying", ())):
            raise InvalidInputError(
                f"{quoted(color)} to be constant within each sample",
                "that it varies within samples",
                "choose a variable of samples, not of cells",
            )
        columns = list(self.source.obs.columns)
        column = self.source.obs[find(color, columns, "the name of a variable of the samples")]
        return read_variable(column, self.names, color)

    def variables(self, color: Any) -> list[DrawnVariable]:
        """Return several: a name, a list of names, a mapping from names to values, or values."""
        if color is None:
            return []
        # Each value of a mapping is a whole variable, or the value of one sample.
        if isinstance(color, Mapping) and all(_is_many(values) for values in color.values()):
            return [read_variable(values, self.names, str(name)) for name, values in color.items()]
        if self._are_columns(color):
            return [self.variable(name) for name in color]
        return [self.variable(color)]

    def _are_columns(self, color: Any) -> bool:
        """Tell a list of names of variables from a list of values, which has the length of the samples."""
        if isinstance(self.source, Comparison) or isinstance(color, str) or not isinstance(color, Sequence):
            return False
        words = all(isinstance(each, str) for each in color)
        return words and (len(color) != len(self.names) or set(color) <= set(self.source.obs.columns))

    def coordinates(self, basis: str) -> tuple[Float64, tuple[str, str]]:
        """Return a map ``(n_samples, 2)`` and the labels of its axes."""
        if isinstance(self.source, Comparison):
            return self._computed(basis)
        known = [name.removeprefix("X_") for name in self.source.obsm]
        name = find(basis.removeprefix("X_"), known, "basis to be a map in obsm")
        places = self.source.obsm[f"X_{name}" if f"X_{name}" in self.source.obsm else name]
        places = as_array(f"obsm[{name!r}]", places, dtype=np.float64)[:, :2]
        shares = self.source.uns.get("mds", {}).get("variance_ratio") if name == "mds" else None
        return _two(places), axis_labels(name, shares)

    def _computed(self, basis: str) -> tuple[Float64, tuple[str, str]]:
        check_option("basis", basis, MAPS)
        if basis == "mds":
            places, shares = classical_scaling(self.distances, 2)
            return places, axis_labels(basis, shares)
        n_samples = len(self.names)
        if basis == "diffusion":
            few = min(10, n_samples - 1)
            return _two(diffusion_map(self.distances, min(2, n_samples - 1), k=few)), axis_labels(basis)
        make, few = {"phate": (phate, 5), "umap": (umap, 10)}[basis]
        return _two(make(self.distances, k=max(1, min(few, n_samples - 2)))), axis_labels(basis)

    def scales(self) -> Mapping[str, Any]:
        """Return what each scale has of the distances, and why the largest is the largest."""
        if isinstance(self.source, Comparison):
            return scale_summary(self.source)
        stored: Mapping[str, Any] = self.source.uns[KEY]["scales"]
        return stored


def read_data(data: Any, key: str = KEY, *, maps: Sequence[str] = ()) -> Pictured:
    """Return the samples to draw."""
    if isinstance(data, Study):
        compared = data.comparison
        return Pictured(compared.names, compared.distances, compared, data.variables)
    if isinstance(data, Comparison):
        return Pictured(data.names, data.distances, data)
    if not (hasattr(data, "obs") and hasattr(data, "obsp")):
        raise InvalidInputError(
            "a Comparison, or an AnnData after hm.tl.sample_distances", type(data).__name__, "see hm.tl.samples"
        )
    if not _holds_samples(data):
        data = samples(data, key, maps=[name for name in maps if name in MAPS])
    if data.n_obs < 2:
        raise InvalidInputError("at least two samples", f"{data.n_obs}")
    distances = np.asarray(data.obsp["distances"], dtype=np.float64)
    return Pictured(tuple(map(str, data.obs_names)), distances, data)


def _holds_samples(data: Any) -> bool:
    note = data.uns.get(KEY)
    return hasattr(note, "keys") and "varying" in note and "distances" in data.obsp


def _is_many(values: Any) -> bool:
    return hasattr(values, "__len__") and not isinstance(values, str)


def _two(places: Float64) -> Float64:
    """Return two columns, of which the second is zero if there was none."""
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
        Write the names of samples where there is room, as many as fit; default up to 1,000 samples.
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


def distance_heatmap(
    data: Any, color: Any = None, *, palette: Palette = None, key: str = "heatmover", ax: Any = None
) -> dict[str, Any]:
    """Draw all distances between samples, ordered by hierarchical clustering, with variables beside them.

    Samples are joined by average linkage; the tree is turned so that neighbours in the picture are as near as
    possible (up to 1,000 samples). Names are written if they can be read. Colours change between the 1st and the 99th
    percentile of the distances. Pairs that cannot be told apart are hatched, if intervals are at hand
    (``n_bootstrap``).

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
    return draw_heatmap(axes, pictured.names, pictured.distances, variables, palette, alike=pictured.alike)


def scales(data: Any, *, key: str = "heatmover", ax: Any = None) -> Any:
    """Draw what each scale has of the distances, and how the largest scale was chosen.

    Bars: share of the mean distance between samples. Line: how much the heat of two cells still differs after so many
    steps (total variation); the automatic choice is the first scale at which it is at most a half.

    Parameters
    ----------
    data
        As in `sample_map`.
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With bars and line.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.pl import scales
    >>> data = hm.datasets.cohort(8, cells_per_sample=50)
    >>> axes = scales(hm.compare(data.points, data.labels))
    >>> axes.get_xlabel()
    'steps of the heat'
    """
    shares = read_data(data, key).scales()
    axes = picture.new_axes((6.4, 4.0)) if ax is None else ax
    scale, share, decay = (np.asarray(shares[name]) for name in ("scale", "share", "decay"))
    largest = int(shares["max_scale"])
    axes.bar(scale, share, width=0.72, color=picture.COLORS[0], label="share of the mean distance", zorder=2)
    if decay.size:
        _draw_decay(axes, decay, largest)
    ticks = np.arange(0 if decay.size else scale[0], max(largest, decay.size - 1) + 1)
    axes.set_xticks(ticks, [f"$2^{{{k}}}$" for k in ticks])
    axes.set_ylim(0, 1.04 if decay.size else None)
    axes.set_xlabel("steps of the heat", color=INK, fontsize=11)
    axes.set_ylabel("fraction", color=INK, fontsize=11)
    axes.set_title("Scales compared", loc="left", color=INK, fontsize=14, pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.bare(axes)
    return axes


def _draw_decay(axes: Any, decay: Any, largest: int) -> None:
    orange = picture.COLORS[1]
    axes.plot(
        np.arange(decay.size), decay, "o-", color=orange, markersize=5, linewidth=1.6, markeredgecolor="white",
        label="difference of the heat of two cells", zorder=3,
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
    """Draw how smooth variables are over near samples: less than 1 is smoother than chance.

    A bar is the Laplacian smoothness of a variable over what it has on average when permuted over the samples
    (`heatmover.manifold.smoothness`), a grey band where 95 % of the permuted ones lie, beside it the p-value of the
    permutation test. P-values are of each variable by itself; with many, see `heatmover.statistics.false_discovery`.

    Parameters
    ----------
    data
        As in `sample_map`.
    variables
        Columns of ``.obs``, or a mapping from names to values for the samples. Numbers or groups. A sample without a
        value is left out of the test of that variable, and the label says so.
    blocks
        What ties samples together, such as patients: a column of ``.obs``, a list of columns, a mapping from names to
        values, or values for the samples. A variable that is the same throughout every block is permuted by whole
        blocks, of which samples are not neighbours of each other; any other is permuted within blocks.
    k
        Neighbours of each sample in their graph; with fewer samples, all others.
    n_permutations, random_state
        Of the permutation tests.
    key
        Where `sample_distances` wrote, if ``data`` holds cells.
    ax
        Axes to draw into; default new ones.

    Returns
    -------
    matplotlib.axes.Axes
        With one bar for each variable, the smoothest on top.

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
    pictured = read_data(data, key)
    columns = pictured.variables(variables)
    if not columns:
        raise InvalidInputError("at least one variable", "none")
    tied = _blocks(pictured.variables(blocks))
    asked = {"n_permutations": n_permutations, "random_state": random_state}
    tests = [_test(pictured, variable, tied, k, asked) for variable in columns]
    tests.sort(key=lambda tested: -tested[1].statistic)
    axes = picture.new_axes((6.4, 1.6 + 0.42 * len(tests))) if ax is None else ax
    _draw(axes, tests)
    return axes


def _blocks(variables: list[DrawnVariable]) -> dict[str, Any]:
    """Return the block of every sample by the names of variables, or raise if a sample has none."""
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
    pictured: Pictured, variable: DrawnVariable, tied: dict[str, Any], k: int, asked: dict[str, Any]
) -> tuple[str, TestResult]:
    known = np.flatnonzero(~variable.missing)
    total = len(pictured.names)
    if known.size < 3:
        raise InvalidInputError(f"{variable.name!r} known of at least 3 samples", f"{known.size}")
    signal: Any = variable.numbers[known] if variable.numbers is not None else None
    if signal is None:
        signal = np.array(variable.groups, dtype=object)[variable.codes[known]]
    result = test_smoothness(
        pictured.distances[np.ix_(known, known)],
        signal,
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
    axes.barh(rows, high - low, left=low, height=0.78, color=FAINT, zorder=1, label="95 % of permutations")
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
    axes.set_xlabel("roughness over near samples (1: as by chance)", color=INK, fontsize=11)
    axes.set_title("Smoothness", loc="left", color=INK, fontsize=14, pad=26)
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    picture.bare(axes)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
        label.set_color(INK)
        label.set_fontsize(10)
    axes.tick_params(axis="y", length=0)
