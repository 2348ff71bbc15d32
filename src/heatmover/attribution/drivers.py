"""Which features, such as markers or genes, differ within a type of cells between two groups of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64
from heatmover._base.validation import as_array, import_extra
from heatmover._base.words import counted
from heatmover.attribution.cell_types import HALF_KNOWN, LEAST_SAMPLES, TypedCells, effective_cells
from heatmover.attribution.contrast import TwoGroups, column_differences, controlled, smallest_p, two_sided, weigh
from heatmover.errors import InvalidInputError

__all__ = ["Drivers", "check_features", "find_drivers"]

# Features that are looked at together: 2,048 under 1,000 permutations take 16 MB for each array.
AT_ONCE = 2_048


@final
@dataclass(frozen=True, eq=False, repr=False)
class Drivers(ReadOnlyArrays):
    """Which features differ within each cell type, the number of its cells aside; ``print`` it.

    Attributes
    ----------
    types, features
        Their names.
    in_group, in_reference
        ``(n_types, n_features)``: mean over samples of the mean of a feature over the cells of a type; a sample with
        few such cells counts less.
    differences
        ``(n_types, n_features)``: group less reference, within blocks if there are any.
    standardized
        ``(n_types, n_features)``: differences in standard deviations of the cells of the type.
    scores, p_values, q_values
        ``(n_types, n_features)``: studentised differences, by permuting samples, and corrected for all types and
        features that could be found. Zero and 1 where too few samples have such cells.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=30)
    >>> comparison = hm.compare(data.points, data.labels)
    >>> branch = hm.study.annotate("branch", data.coordinates[:, 0].astype(int), 240)
    >>> condition = data.annotations["condition"]
    >>> found = hm.study.contrast_cells(comparison, branch, condition, features=data.points, n_permutations=19)
    >>> found.drivers.scores.shape == (5, data.points.shape[1])
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
        """Return a pandas DataFrame with one row for each type and feature, the surest features of a type first."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return the same as plain values by name."""
        columns = ("in_group", "in_reference", "differences", "standardized", "scores", "p_values", "q_values")
        heads = ("in_group", "in_reference", "difference", "standardized", "score", "p_value", "q_value")
        return [
            {"cell_type": name, "feature": self.features[place]}
            | {head: float(getattr(self, column)[row, place]) for head, column in zip(heads, columns, strict=True)}
            for row, name in enumerate(self.types)
            for place in np.argsort(-np.abs(self.scores[row]), kind="stable")
        ]

    def top(self, count: int = 3, *, level: float = 0.1) -> dict[str, list[str]]:
        """Return the surest features of each type that has any, with a sign: ``{"B": ["+CD19", "-CD20"]}``."""
        surest = {}
        for row, name in enumerate(self.types):
            order = [i for i in np.argsort(-np.abs(self.scores[row]), kind="stable") if self.q_values[row, i] <= level]
            if order:
                surest[name] = [f"{'+' if self.scores[row, i] > 0 else '-'}{self.features[i]}" for i in order[:count]]
        return surest

    def ordered(self, types: tuple[str, ...]) -> Drivers:
        """Return the same with the types in another order."""
        order = [self.types.index(name) for name in types]
        arrays = (
            self.in_group, self.in_reference, self.differences, self.standardized,
            self.scores, self.p_values, self.q_values,
        )  # fmt: skip
        return Drivers(types, self.features, *(array[order] for array in arrays))

    def __str__(self) -> str:
        surest = self.top()
        if not surest:
            return f"None of {counted(len(self.features), 'feature')} surely differs within a cell type."
        return "\n".join(f"{name}: {', '.join(features)}" for name, features in surest.items())

    def __repr__(self) -> str:
        return f"Drivers({counted(len(self.features), 'feature')} in {counted(len(self.types), 'type')})"


def check_features(features: Any, names: Any | None, n_cells: int) -> tuple[Any, tuple[str, ...]]:
    """Return finite values of features ``(n_cells, n_features)``, dense or CSR, and their names."""
    if names is None:
        names = getattr(features, "columns", None)
    values = sp.csr_array(features, dtype=np.float64) if sp.issparse(features) else as_array("features", features)
    if values.ndim != 2 or values.shape[0] != n_cells or values.dtype.kind not in "iufb":
        raise InvalidInputError(
            f"features: numbers of {counted(n_cells, 'cell')} in rows, ({n_cells}, n_features)",
            f"shape {values.shape} of {values.dtype}",
        )
    values = values if sp.issparse(values) else values.astype(np.float64)
    if not np.isfinite(values.data if sp.issparse(values) else values).all():
        raise InvalidInputError("features without NaN or infinity", "some", "leave these features out")
    named = [f"feature {i}" for i in range(values.shape[1])] if names is None else [str(name) for name in names]
    if len(named) != values.shape[1] or len(set(named)) != len(named):
        raise InvalidInputError(
            f"{counted(values.shape[1], 'different name')} of features", f"{len(set(named))} of {len(named)}"
        )
    return values, tuple(named)


def find_drivers(design: TwoGroups, cells: TypedCells, features: Any, names: tuple[str, ...]) -> Drivers:
    """Test every feature within every type.

    Parameters
    ----------
    design
        Of the groups.
    cells
        Of all samples, by type.
    features
        ``(n_cells, n_features)``, dense or CSR.
    names
        Of the features.
    """
    units, sizes = design.units(cells.masses), effective_cells(design, cells)
    n_units, n_types = units.shape[0], len(cells.names)
    entries = sp.coo_array(units)
    rows = entries.row.astype(np.int64) * n_types + cells.codes[entries.col]
    typed = sp.csr_array((entries.data, (rows, entries.col)), shape=(n_units * n_types, units.shape[1]))
    shares = np.asarray(typed.sum(axis=1)).ravel()
    own = sp.csr_array(sp.diags_array(1 / np.where(shares > 0, shares, 1)) @ typed)
    means = _dense(own @ features).reshape(n_units, n_types, len(names))
    squares = _dense(own @ (features.multiply(features) if sp.issparse(features) else features**2))
    squares = squares.reshape(means.shape)
    counts = shares.reshape(n_units, n_types) * sizes[:, None]
    shape = (n_types, len(names))
    columns = {name: np.zeros(shape) for name in ("group", "reference", "difference", "sd", "score")}
    p_values, smallest = np.ones(shape), np.ones(shape)
    inside = design.members[0]
    for kind in range(n_types):
        weights = counts[:, kind] / (counts[:, kind] + HALF_KNOWN)
        for name, which in (("group", inside), ("reference", ~inside)):
            total = weights[which].sum()
            if total > 0:
                columns[name][kind] = weights[which] @ means[which, kind] / total
        columns["sd"][kind] = _deviation(means[:, kind], squares[:, kind], counts[:, kind])
        weighed = weigh(design.members, design.blocks, weights)
        taking_part = inside[weighed.informative]
        if min(taking_part.sum(), (~taking_part).sum()) < LEAST_SAMPLES:
            continue
        for start in range(0, len(names), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            tested = column_differences(means[:, kind, part], weighed)
            statistics = tested.values / tested.errors
            columns["difference"][kind, part], columns["score"][kind, part] = tested.values[0], statistics[0]
            p_values[kind, part], smallest[kind, part] = two_sided(statistics), smallest_p(statistics)
    sd = columns["sd"]
    standardized = np.divide(columns["difference"], sd, out=np.zeros(shape), where=sd > 0)
    q_values = controlled(p_values.ravel(), smallest.ravel()).reshape(shape)
    return Drivers(
        cells.names, names, columns["group"], columns["reference"], columns["difference"], standardized,
        columns["score"], p_values, q_values,
    )  # fmt: skip


def _deviation(means: Float64, squares: Float64, counts: Float64) -> Float64:
    """Return the standard deviation of all cells of a type, ``(n_features,)``."""
    shares = counts / max(float(counts.sum()), np.finfo(float).tiny)
    return np.asarray(np.sqrt(np.maximum(shares @ squares - (shares @ means) ** 2, 0)))


def _dense(values: Any) -> Float64:
    return np.asarray(values.toarray() if sp.issparse(values) else values, dtype=np.float64)
