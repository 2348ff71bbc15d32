"""Test which features differ within cell types between two groups of samples; for `attribution`, `study`; no files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64
from heatmover._base.validation import as_array, import_extra
from heatmover._base.words import counted
from heatmover.attribution.cell_types import HALF_KNOWN, LEAST_SAMPLES, TypedCells, by_type, effective_cells
from heatmover.attribution.contrast import SampleContrast
from heatmover.errors import InvalidInputError
from heatmover.statistics.regression import column_differences, controlled, smallest_p, two_sided, weigh

# Number of features tested at a time: 2,048 features with 1,000 permutations take 16 MB.
COLUMNS_AT_ONCE = 2_048


@final
@dataclass(frozen=True, eq=False, repr=False)
class Drivers(ReadOnlyArrays):
    """Differences of features within each cell type, independent of abundance; ``print`` it.

    Attributes
    ----------
    types, features
        Names of the types and of the features.
    in_group, in_reference
        ``(n_types, n_features)``: mean of a feature over the cells of a type, averaged over the samples of the group,
        and over the samples of the reference. Samples with few cells of the type have less weight.
    differences
        ``(n_types, n_features)``: group minus reference, within blocks if there are any.
    standardized
        ``(n_types, n_features)``: ``differences`` divided by the standard deviation over the cells of the type.
    scores, p_values, q_values
        ``(n_types, n_features)``: studentized differences, p-values by permuting samples, and q-values over all types
        and features that could be significant. If too few samples have cells of the type, scores are 0 and p- and
        q-values are 1.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=30)
    >>> comparison = hm.compare(data.points, data.labels)
    >>> branch = hm.study.annotate("branch", data.coordinates[:, 0].astype(int), 240)
    >>> condition = data.annotations["condition"]
    >>> contrast = hm.study.contrast_cells(comparison, branch, condition, features=data.points, n_permutations=19)
    >>> contrast.drivers.scores.shape == (5, data.points.shape[1])
    True
    """

    types: tuple[str, ...]
    features: tuple[str, ...]
    in_group: Float64
    in_reference: Float64
    differences: Float64
    standardized: Float64
    scores: Float64
    p_values: Float64
    q_values: Float64

    def table(self) -> Any:
        """Return a pandas DataFrame with one row per type and feature, the most significant features first."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table as dictionaries of plain values."""
        columns = ("in_group", "in_reference", "differences", "standardized", "scores", "p_values", "q_values")
        heads = ("in_group", "in_reference", "difference", "standardized", "score", "p_value", "q_value")
        return [
            {"cell_type": name, "feature": self.features[place]}
            | {head: float(getattr(self, column)[row, place]) for head, column in zip(heads, columns, strict=True)}
            for row, name in enumerate(self.types)
            for place in np.argsort(-np.abs(self.scores[row]), kind="stable")
        ]

    def top(self, count: int = 3, *, level: float = 0.1) -> dict[str, list[str]]:
        """Return the most significant features of each type, with their signs: ``{"B": ["+CD19", "-CD20"]}``."""
        features = {}
        for row, name in enumerate(self.types):
            order = [i for i in np.argsort(-np.abs(self.scores[row]), kind="stable") if self.q_values[row, i] <= level]
            if order:
                features[name] = [f"{'+' if self.scores[row, i] > 0 else '-'}{self.features[i]}" for i in order[:count]]
        return features

    def ordered(self, types: tuple[str, ...]) -> Drivers:
        """Return the drivers with the types in the given order."""
        order = [self.types.index(name) for name in types]
        arrays = [getattr(self, field.name) for field in fields(self)[2:]]
        return Drivers(types, self.features, *(array[order] for array in arrays))

    def __str__(self) -> str:
        top = self.top()
        if not top:
            return f"None of {counted(len(self.features), 'feature')} differs significantly within a cell type."
        return "\n".join(f"{name}: {', '.join(features)}" for name, features in top.items())

    def __repr__(self) -> str:
        return f"Drivers({counted(len(self.features), 'feature')} in {counted(len(self.types), 'type')})"


def check_features(features: Any, names: Any | None, n_cells: int) -> tuple[Any, tuple[str, ...]]:
    """Return the finite values of features, ``(n_cells, n_features)``, dense or CSR, and the names of the features."""
    if names is None:
        names = getattr(features, "columns", None)
    values = sp.csr_array(features, dtype=np.float64) if sp.issparse(features) else as_array("features", features)
    if values.ndim != 2 or values.shape[0] != n_cells or values.dtype.kind not in "iufb":
        raise InvalidInputError(
            f"features as numbers of shape ({n_cells}, n_features), one row for each cell",
            f"shape {values.shape} of {values.dtype}",
        )
    values = values if sp.issparse(values) else values.astype(np.float64)
    if not np.isfinite(values.data if sp.issparse(values) else values).all():
        raise InvalidInputError("features without NaN or infinity", "NaN or infinity", "leave these features out")
    named = [f"feature {i}" for i in range(values.shape[1])] if names is None else [str(name) for name in names]
    if len(named) != values.shape[1] or len(set(named)) != len(named):
        raise InvalidInputError(
            f"{counted(values.shape[1], 'different name')} of features",
            f"{len(set(named))} different among {counted(len(named), 'name')}",
        )
    return values, tuple(named)


def find_drivers(design: SampleContrast, cells: TypedCells, features: Any, names: tuple[str, ...]) -> Drivers:
    """Test every feature within every type.

    Parameters
    ----------
    design
        The two groups and their permutations.
    cells
        Cells of all samples by type.
    features
        Features of the cells, ``(n_cells, n_features)``, dense or CSR.
    names
        Names of the features.
    """
    units, sizes = design.units(cells.masses), effective_cells(design, cells)
    n_units, n_types = units.shape[0], len(cells.names)
    typed = by_type(cells, units, np.arange(units.shape[1]), units.shape[1])
    shares = np.asarray(typed.sum(axis=1)).ravel()
    own = sp.csr_array(sp.diags_array(1 / np.where(shares > 0, shares, 1)) @ typed)
    means = _dense(own @ features).reshape(n_units, n_types, len(names))
    squares = _dense(own @ (features.multiply(features) if sp.issparse(features) else features**2))
    squares = squares.reshape(means.shape)
    counts = shares.reshape(n_units, n_types) * sizes[:, None]
    weights = counts / (counts + HALF_KNOWN)
    in_group, in_reference = (_average(means, weights * side[:, None]) for side in design.sides)
    deviations = np.sqrt(np.maximum(_average(squares, counts) - _average(means, counts) ** 2, 0))
    shape = (n_types, len(names))
    differences, scores = np.zeros(shape), np.zeros(shape)
    p_values, smallest = np.ones(shape), np.ones(shape)
    for kind in range(n_types):
        regression = weigh(design.regressors, design.nuisance, weights[:, kind])
        if regression.least_side < LEAST_SAMPLES:
            continue
        for start in range(0, len(names), COLUMNS_AT_ONCE):
            part = slice(start, start + COLUMNS_AT_ONCE)
            tested = column_differences(means[:, kind, part], regression)
            statistics = tested.values / tested.errors
            differences[kind, part], scores[kind, part] = tested.values[0], statistics[0]
            p_values[kind, part], smallest[kind, part] = two_sided(statistics), smallest_p(statistics)
    standardized = np.divide(differences, deviations, out=np.zeros(shape), where=deviations > 0)
    q_values = controlled(p_values.ravel(), smallest.ravel()).reshape(shape)
    return Drivers(
        cells.names, names, in_group, in_reference, differences, standardized, scores, p_values, q_values
    )  # fmt: skip


def _average(values: Float64, weights: Float64) -> Float64:
    """Return weighted means over units, ``(n_types, n_features)``; zero where all weights are zero."""
    total = np.maximum(weights.sum(axis=0), np.finfo(float).tiny)
    return np.asarray(np.einsum("ut,utf->tf", weights, values) / total[:, None])


def _dense(values: Any) -> Float64:
    return np.asarray(values.toarray() if sp.issparse(values) else values, dtype=np.float64)
