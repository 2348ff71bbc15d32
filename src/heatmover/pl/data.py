"""What a picture is made from: an AnnData of samples, one of cells with results, or a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._typing import Bool, Float64
from heatmover._validation import as_array, check_option
from heatmover._words import find, quoted
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.study import Study
from heatmover.drawing.map import axis_labels
from heatmover.drawing.variables import Variable, read_variable
from heatmover.errors import InvalidInputError
from heatmover.manifold import classical_scaling, diffusion_map, phate, umap
from heatmover.tl import samples
from heatmover.tl.layout import KEY, MAPS, scale_summary

__all__ = ["Pictured", "read_data"]


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
            found = self.source.intervals
            return None if found is None else ~found.told_apart
        stored = self.source.uns[KEY].get("intervals")
        return None if stored is None else np.asarray(stored["lower"]) <= 0

    def variable(self, color: Any) -> Variable:
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

    def variables(self, color: Any) -> list[Variable]:
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
