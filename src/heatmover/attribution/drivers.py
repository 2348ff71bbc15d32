"""Test which features differ within cell types between two groups of samples; for `attribution`, `study`; no files."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Bool, Float64
from heatmover._base.validation import as_array, import_extra
from heatmover._base.words import counted, quoted, verb
from heatmover.attribution.cell_types import HALF_KNOWN, LEAST_SAMPLES
from heatmover.attribution.contrast import SampleContrast
from heatmover.attribution.pseudobulk import Pseudobulk
from heatmover.errors import InvalidInputError
from heatmover.statistics.moderation import FOR_PRIOR, allow_for_sides, degrees_left, moderated_t, residuals
from heatmover.statistics.permutations import within_reach
from heatmover.statistics.regression import column_differences, controlled, smallest_p, two_sided, weigh

Method = Literal["permutation", "moderated t"]
PERMUTATION: Method = "permutation"
MODERATED: Method = "moderated t"
# False discovery rate at which a feature is called different.
LEVEL = 0.1
# Files list all features called different, and at least this number of features per type.
LISTED = 100
# Largest number of types in a summary.
NAMED = 6
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
        ``(n_types, n_features)``: studentized differences, p-values, and q-values over all types and features that
        could be significant. Scores are 0 and p- and q-values are 1 where a feature was not tested.
    tested
        ``(n_types, n_features)``: False if too few samples have cells of the type, or if too few cells express a gene.
    method
        ``"permutation"`` of the samples, if permutations can reach significance with so many tests; otherwise
        ``"moderated t"``, an empirical Bayes t-test of pseudobulk means.
    kind, scale
        ``"gene"`` or ``"feature"``, and the scale of the values in words.
    left_out
        Sentences that name the features that were left out; empty if there are none.

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
    tested: Bool
    method: Method
    kind: Literal["feature", "gene"] = "feature"
    scale: str = ""
    left_out: str = ""

    def table(self, most: int | None = None) -> Any:
        """Return a pandas DataFrame with one row per type and feature, the most significant features first.

        Parameters
        ----------
        most
            Number of features of each type, if fewer are called different (false discovery rate 10%); None: all.
        """
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        return pandas.DataFrame(self.rows(most))

    def rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of the table as dictionaries of plain values; see `table`."""
        columns = ("in_group", "in_reference", "differences", "standardized", "scores", "p_values", "q_values")
        heads = ("in_group", "in_reference", "difference", "standardized", "score", "p_value", "q_value")
        return [
            {"cell_type": name, "feature": self.features[place], "test": self.method}
            | {head: float(getattr(self, column)[row, place]) for head, column in zip(heads, columns, strict=True)}
            for row, name in enumerate(self.types)
            for place in self._order(row)[: None if most is None else max(most, self.n_called(row))]
        ]

    def n_called(self, row: int | None = None) -> int:
        """Return the number of features called different in a type, or in all types."""
        return int(((self.q_values if row is None else self.q_values[row]) <= LEVEL).sum())

    def _order(self, row: int) -> Any:
        return np.argsort(-np.abs(self.scores[row]), kind="stable")

    def describe(self) -> str:
        """Describe the test in a sentence."""
        name = counted(int(self.tested.any(axis=0).sum()), self.kind)
        how = (
            "permutations of the samples"
            if self.method == PERMUTATION
            else "moderated t-tests of pseudobulk means (Smyth, 2004; limma-trend)"
        )
        scale = f" ({self.scale})" if self.scale else ""
        sentence = (
            f"Within cell types, {name}{scale} {verb(int(self.tested.any(axis=0).sum()), 'was', 'were')} compared by "
            f"{how}. The p-values of {counted(int(self.tested.sum()), 'test')} were adjusted for the false discovery "
            "rate (Benjamini and Hochberg, 1995)."
        )
        return " ".join(filter(None, (sentence, self.left_out)))

    def summary(self) -> str:
        """Name the test, the number of features called different, and the most significant ones of each type."""
        top, called = self.top(), int((self.q_values <= LEVEL).any(axis=0).sum())
        if not top:
            return f"{self} Test: {self.method}."
        named = "; ".join(f"{quoted(name)}: {', '.join(features)}" for name, features in list(top.items())[:NAMED])
        more = f"; and {counted(len(top) - NAMED, 'more type')}" if len(top) > NAMED else ""
        return (
            f"{counted(called, self.kind)} {verb(called, 'differs', 'differ')} within cell types ({self.method}, false "
            f"discovery rate {LEVEL:.0%}). {named}{more}."
        )

    def top(self, count: int = 3, *, level: float = LEVEL) -> dict[str, list[str]]:
        """Return the most significant features of each type, with their signs: ``{"B": ["+CD19", "-CD20"]}``."""
        features = {}
        for row, name in enumerate(self.types):
            order = [i for i in self._order(row) if self.q_values[row, i] <= level]
            if order:
                features[name] = [f"{'+' if self.scores[row, i] > 0 else '-'}{self.features[i]}" for i in order[:count]]
        return features

    def ordered(self, types: tuple[str, ...]) -> Drivers:
        """Return the drivers with the types in the given order."""
        order = [self.types.index(name) for name in types]
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays: Any = {name: value[order] for name, value in values.items() if isinstance(value, np.ndarray)}
        return replace(self, types=types, **arrays)

    def __str__(self) -> str:
        top = self.top()
        if not top:
            return f"None of {counted(len(self.features), self.kind)} differs significantly within a cell type."
        return "\n".join(f"{name}: {', '.join(features)}" for name, features in top.items())

    def __repr__(self) -> str:
        return f"Drivers({counted(len(self.features), self.kind)} in {counted(len(self.types), 'type')})"


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


def find_drivers(design: SampleContrast, bulk: Pseudobulk) -> Drivers:
    """Test every feature within every type.

    Parameters
    ----------
    design
        The two sides of the contrast and their permutations.
    bulk
        Features averaged over the cells of each type in each sample, for the samples of the design.
    """
    sizes = bulk.counts.sum(axis=0)[design.chosen]
    squares = design.average.multiply(design.average)
    cells = bulk.counts[:, design.chosen] / sizes @ design.average.T / np.asarray(squares @ (1 / sizes)).ravel()
    weights = cells / (cells + HALF_KNOWN)
    shape = bulk.tested.shape
    in_group, in_reference, differences, variances, scores = np.zeros((5, *shape))
    p_values, smallest = np.ones(shape), np.ones(shape)
    able, degrees = np.zeros(shape, dtype=bool), [degrees_left(design.nuisance, own) for own in weights]
    observed = [weigh(design.regressors[:1], design.nuisance, own) for own in weights]
    for kind, regression in enumerate(observed):
        able[kind] = bulk.tested[kind] & (regression.least_side >= LEAST_SAMPLES and degrees[kind] >= 1)
    method = choose_method(design.smallest_p, int(able.sum()))
    for kind, weight in enumerate(weights):
        places = np.flatnonzero(able[kind])
        regression = observed[kind] if method == MODERATED else weigh(design.regressors, design.nuisance, weight)
        if method == MODERATED and places.size >= FOR_PRIOR:
            some = places[:: max(1, places.size // COLUMNS_AT_ONCE)]
            columns = _unit_means(design, bulk, kind, slice(None))[:, some]
            weight = allow_for_sides(columns, regression, weight, degrees[kind])
            regression = weigh(design.regressors[:1], design.nuisance, weight)
        for start in range(0, shape[1], COLUMNS_AT_ONCE):
            part = slice(start, start + COLUMNS_AT_ONCE)
            means = _unit_means(design, bulk, kind, part)
            in_group[kind, part], in_reference[kind, part] = (_average(means, weight * side) for side in design.sides)
            own = places[(places >= part.start) & (places < part.stop)]
            if not own.size:
                continue
            columns = means[:, own - start]
            if method == MODERATED:
                fitted = residuals(columns, regression, weight, degrees[kind])
                differences[kind, own], variances[kind, own] = fitted
                continue
            tested = column_differences(columns, regression)
            statistics = tested.values / tested.errors
            differences[kind, own], scores[kind, own] = tested.values[0], statistics[0]
            p_values[kind, own], smallest[kind, own] = two_sided(statistics), smallest_p(statistics)
        if method == MODERATED and places.size:
            levels = ((in_group + in_reference) / 2)[kind, places]
            factor = 1 / float(weight @ regression.contrasts[0] ** 2)
            tests = moderated_t(differences[kind, places], variances[kind, places], levels, factor, degrees[kind])
            scores[kind, places], p_values[kind, places] = tests
            smallest[kind, places] = 0
    pooled = np.stack([_average(own, count) for own, count in zip(bulk.means, bulk.counts, strict=True)])
    deviations = np.sqrt(np.maximum(bulk.squares - pooled**2, 0))
    standardized = np.divide(differences, deviations, out=np.zeros(shape), where=deviations > 0)
    q_values = controlled(p_values.ravel(), smallest.ravel()).reshape(shape)
    return Drivers(
        bulk.types, bulk.features, in_group, in_reference, differences, standardized, scores, p_values, q_values,
        able, method, bulk.kind, bulk.scale, bulk.left_out,
    )  # fmt: skip


def choose_method(smallest: float, n_tests: int) -> Method:
    """Return how to test, which depends on the design and on the number of tests, but not on the values.

    Permutations are used if the smallest p-value that they allow can stay significant after a correction for all tests.

    Parameters
    ----------
    smallest
        Smallest p-value that the permutations allow.
    n_tests
        Number of tests of all features in all types.

    Examples
    --------
    >>> choose_method(2 / 2**8, 12), choose_method(2 / 2**8, 9_000), choose_method(0.001, 9_000)
    ('permutation', 'moderated t', 'moderated t')
    """
    return PERMUTATION if within_reach(smallest) and smallest * n_tests <= LEVEL else MODERATED


def _unit_means(design: SampleContrast, bulk: Pseudobulk, kind: int, part: slice) -> Float64:
    """Return the means of some features over the cells of a type in each permutation unit, ``(n_units, n_part)``."""
    means = bulk.means[kind][design.chosen, part]
    shares = (bulk.counts[kind] / bulk.counts.sum(axis=0))[design.chosen]
    weighed = design.average.multiply(shares).tocsr()
    totals = np.asarray(weighed.sum(axis=1)).ravel()
    return np.asarray(weighed @ means) / np.where(totals > 0, totals, 1)[:, None]


def _average(values: Any, weights: Float64) -> Float64:
    """Return weighted means over rows, ``(n_columns,)``; zero where all weights are zero."""
    return np.asarray(weights @ values / max(float(weights.sum()), np.finfo(float).tiny))
