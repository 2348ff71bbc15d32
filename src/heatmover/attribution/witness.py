"""Explain which points contribute to a distance of two measures, for users, atlases, `attribution`, `study`; no files.

The embedding is linear, so the distance is W = || A d ||_1 with d = mu - nu. The distance can be decomposed over points
in two ways, each with terms that add up to W. The first decomposition shows where the diffused densities differ: each
feature contributes its absolute value to the norm (`local`). The second decomposition shows where mass must move. The
witness f = A' sign(A d) satisfies f . d = sign(A d) . A d = W, so point i contributes f_i d_i.

The contribution of a type of points is split further. Let a and b be the shares of the type in the two measures, and P
and Q the distributions of the type over its points. Then ``f.(aP - bQ) = (a - b) f.(P + Q)/2 + (a + b)/2 f.(P - Q)``.
The first term depends on the share of the type (abundance), and the second term depends on the location of its mass
(state). Adding a constant to f changes neither the sum nor the state terms, but shifts the abundance terms. The
constant is chosen such that f is zero on average over both measures. Abundance is then relative to the average point,
and each measure contributes half of the distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import as_array, check_option, check_threads, import_extra
from heatmover._base.words import counted, find
from heatmover.embedding.definition import Layout
from heatmover.embedding.estimator import DiffusionEMD, check_fitted
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures, check_measures
from heatmover.statistics.permutations import check_labels

# The smallest features, which together make up at most this share of a distance, are caused by rounding or by errors
# within `tol`, so their signs are meaningless. On a path of 600 points with both measures near one end, these signs
# made the witness at the other end half as large as the largest witness. A share of 1e-7 removes this artifact for
# polynomials, and a share of 1e-5 removes it for eigenvectors at coarse scales.
ROUNDING = 1e-5
# Number of rows of a breakdown that are printed; `Breakdown.table` returns all rows.
SHOWN = 12


@final
@dataclass(frozen=True, eq=False, repr=False)
class Breakdown(ReadOnlyArrays):
    """Contributions of the types of points to a distance, largest first; ``print`` it.

    Attributes
    ----------
    names
        Names of the types.
    contributions
        ``(n_types,)``: contribution of each type; contributions sum to the distance.
    shares
        ``(n_types,)``: contributions divided by the distance; zeros if the distance is zero.
    points
        ``(n_types,)``: number of points of each type.
    masses
        ``(n_types, 2)``: mass of each type in the first and in the second measure.
    between
        Names of the two measures.
    abundance, state
        ``(n_types,)``: the parts of the contributions due to abundance (the mass of the type, relative to the average
        point) and due to state (the location of this mass within the type). The state part is zero for a type that is
        absent from one measure. Both are None for ``"local"``.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain
    >>> data = hm.datasets.cohort(6, cells_per_sample=60, effect=4.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> explanation = explain(model, "case-01", "control-01", measures=measures)
    >>> parts = explanation.by(data.coordinates[:, 0].astype(int))
    >>> bool(np.isclose(parts.contributions.sum(), explanation.distance)), parts.masses.shape
    (True, (5, 2))
    >>> bool(np.allclose(parts.abundance + parts.state, parts.contributions))
    True
    """

    names: tuple[str, ...]
    contributions: Float64
    shares: Float64
    points: Int64
    masses: Float64
    between: tuple[str, str]
    abundance: Float64 | None = None
    state: Float64 | None = None

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each type."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        first, second = self.between
        split = {name: getattr(self, name) for name in ("abundance", "state") if getattr(self, name) is not None}
        columns = {
            "contribution": self.contributions,
            "share": self.shares,
            **split,
            "points": self.points,
            f"mass in {first}": self.masses[:, 0],
            f"mass in {second}": self.masses[:, 1],
        }
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="type"))

    def __str__(self) -> str:
        first, second = self.between
        width = max(4, *(len(name) for name in self.names[:SHOWN]))
        split = [] if self.abundance is None or self.state is None else [self.abundance, self.state]
        heads = "".join(f"  {name:>10}" for name in ("abundance", "state")[: len(split)])
        lines = [f"{'type':<{width}}  contribution  share{heads}  points  {first}  {second}"]
        for i, name in enumerate(self.names[:SHOWN]):
            parts = "".join(f"  {part[i]:10.3g}" for part in split)
            lines.append(
                f"{name:<{width}}  {self.contributions[i]:12.4g}  {self.shares[i]:5.0%}{parts}  {self.points[i]:6d}  "
                f"{self.masses[i, 0]:{len(first)}.1%}  {self.masses[i, 1]:{len(second)}.1%}"
            )
        if len(self.names) > SHOWN:
            lines.append(f"and {len(self.names) - SHOWN} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Breakdown({counted(len(self.names), 'type')}, {self.between[0]} against {self.between[1]})"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Explanation(ReadOnlyArrays):
    """Result of `explain`: contributions of the points to the distance between two measures; ``print`` shows a summary.

    Attributes
    ----------
    names
        Names of the two measures.
    distance
        Distance between the measures.
    witness
        ``(n_points,)``: a function f of the points that separates the measures as well as any equally smooth function.
        The mean of f under the first measure exceeds its mean under the second measure by exactly the distance. The
        value at a point is a mean of signs around the point, weighted over scales: positive where the first measure is
        denser, negative where the second is denser, and zero on the border. The absolute value is at most the sum of
        the weights of the scales.
    scale_witnesses
        ``(n_scales, n_points)``: contribution of every scale to the witness.
    contributions
        ``(n_points,)``: witness minus its mean over both measures, times the difference of masses. Contributions sum to
        the distance, and each measure contributes half of the distance. A point without mass contributes nothing. A
        contribution is negative if one measure has more mass at the point but the other measure is denser around the
        point.
    differences
        ``(n_scales, n_points)``: weighted differences of the diffused densities, positive where the first measure is
        denser. The absolute values of the differences sum to the distance.
    masses
        ``(2, n_points)``: the two measures.
    scales
        ``(n_scales,)``: the scales k, with diffusion times ``2**k``.

    Examples
    --------
    >>> import numpy as np
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain
    >>> graph = hm.Graph.from_grid((30,))
    >>> model = hm.DiffusionEMD(graph).fit(np.eye(30))
    >>> explanation = explain(model, np.eye(30)[5], np.eye(30)[20])
    >>> print(explanation)
    The distance between first and second is .... Half of the distance comes from 9 of 30 points.
    first is denser at 13 points, and second is denser at 17 points.
    """

    names: tuple[str, str]
    distance: float
    witness: Float64
    scale_witnesses: Float64
    contributions: Float64
    differences: Float64
    masses: Float64
    scales: Intp

    @property
    def local(self) -> Float64:
        """``(n_points,)``: absolute density differences, summed over scales; the sum over points is the distance."""
        return np.asarray(np.abs(self.differences).sum(axis=0))

    @property
    def surplus(self) -> Float64:
        """``(n_points,)``: differences of densities, summed over scales; positive where the first measure is denser.

        Differences of opposite sign at different scales cancel, so the absolute values may sum to less than the
        distance.
        """
        return np.asarray(self.differences.sum(axis=0))

    def by(self, annotation: Any, *, of: Literal["contributions", "local"] = "contributions") -> Breakdown:
        """Return the contribution of every type of point, such as a cell type, to the distance.

        Parameters
        ----------
        annotation
            Type of each point, text or numbers without missing values, ``(n_points,)``.
        of
            ``"contributions"``: where mass must move, split into abundance and state. ``"local"``: where densities
            differ; never negative.
        """
        check_option("of", of, ("contributions", "local"))
        codes, names = check_labels("annotation", annotation, self.witness.size, of="point")
        parts = split(self.witness, self.masses, codes, len(names))
        if of == "contributions":
            return _breakdown(parts.contributions, codes, names, self.names, parts.masses, parts.abundance, parts.state)
        return _breakdown(summed(self.local, codes, len(names)), codes, names, self.names, parts.masses)

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each point."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        columns = {name: getattr(self, name) for name in ("witness", "contributions", "local", "surplus")}
        return pandas.DataFrame(columns, index=pandas.RangeIndex(self.witness.size, name="point"))

    def __str__(self) -> str:
        first, second = self.names
        if self.distance == 0:
            return f"The distance between {first} and {second} is zero: no mass needs to move."
        largest = np.cumsum(np.sort(self.local)[::-1])
        half = min(int(np.searchsorted(largest, self.distance / 2)) + 1, largest.size)
        positive, negative = int((self.witness > 0).sum()), int((self.witness < 0).sum())
        return (
            f"The distance between {first} and {second} is {self.distance:.4g}. Half of the distance comes from "
            f"{half:,} of {counted(largest.size, 'point')}.\n"
            f"{first} is denser at {counted(positive, 'point')}, and {second} is denser at "
            f"{counted(negative, 'point')}."
        )

    def __repr__(self) -> str:
        return f"Explanation({self.names[0]} against {self.names[1]}: distance {self.distance:.4g})"


def explain(model: DiffusionEMD, mu: Any, nu: Any, *, measures: Any | None = None) -> Explanation:
    """Split the distance between two measures into contributions of the points of the graph.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    mu, nu
        The measures: masses ``(n_points,)`` or one row ``(1, n_points)``; with ``measures`` also a name or an index.
    measures
        `Measures` or rows ``(n_measures, n_points)`` to which names and indices refer.

    Returns
    -------
    Explanation
        Explanation with float64 arrays. Contributions sum to the distance up to rounding, whatever the precision of the
        model.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain
    >>> data = hm.datasets.cohort(6, cells_per_sample=60, effect=4.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> explanation = explain(model, "case-01", "control-01", measures=measures)
    >>> round(float(explanation.contributions.sum() / explanation.distance), 9)
    1.0
    >>> explanation.witness.shape, explanation.scale_witnesses.shape == (model.n_scales_, 360)
    ((360,), True)
    """
    check_fitted(model)
    first, mu = one_measure(mu, "first", measures, model)
    second, nu = one_measure(nu, "second", measures, model)
    return explain_masses(model, np.stack([mu, nu]), (first, second))


def explain_masses(model: DiffusionEMD, masses: Float64, names: tuple[str, str]) -> Explanation:
    """Explain the distance between two checked measures ``(2, n_points)``."""
    graph, layout = model.graph_, model.prepared_.layout
    difference = masses[0] - masses[1]
    # Sum at the nodes, so that results do not depend on the order of the points.
    moved = graph.gather(difference[None])[0]
    # Normalize, so that rounding errors are relative to the difference even for nearly equal measures.
    size = float(np.abs(moved).sum())
    empty = np.zeros((len(layout.scales), layout.n_points))
    features = np.zeros(layout.n_features)
    if size > 0:
        row = model.prepared_.embed(moved[None] / size, n_threads=check_threads(model.n_jobs))
        features = np.asarray(row[0], dtype=np.float64)
    signs = _signs(features)
    total = float(np.abs(features).sum())
    witnesses = _pulled_back(model, signs) if total else empty
    product = float(witnesses.sum(axis=0) @ (moved / size)) if total else 0.0
    if not 0.5 * total < product < 2 * total:
        # Only rounding errors are left: the diffused densities of both measures are equal.
        size, total, witnesses, product = 0.0, 0.0, empty, 1.0
    # Scale the witness by about 1 + 1e-5 to make up for the signs that were set to zero, so that contributions sum to
    # the distance.
    witnesses = witnesses * (total / product)
    witness = witnesses.sum(axis=0)
    distance = float((witness * moved).sum())
    witness, witnesses = graph.spread(witness), graph.spread(witnesses)
    differences = graph.share(_on_nodes(features * size if total else features * 0, layout))
    both = masses.sum(axis=0)
    center = math.fsum(witness * both) / math.fsum(both)
    return Explanation(
        names, distance, witness, witnesses, (witness - center) * difference, differences, masses,
        np.asarray(layout.scales),
    )  # fmt: skip


def _signs(features: Float64) -> Float64:
    """Return the sign of every feature; zero for features within the rounding error."""
    sizes = np.abs(features)
    order = np.argsort(sizes)
    small = order[np.cumsum(sizes[order]) <= ROUNDING * sizes.sum()]
    signs: Float64 = np.sign(features)
    signs[small] = 0
    return signs


def _pulled_back(model: DiffusionEMD, signs: Float64) -> Float64:
    """Apply the transpose of the embedding to the signs of each scale, ``(n_scales, n_nodes)``."""
    prepared = model.prepared_
    edges = prepared.layout.edges
    rows = np.zeros((len(edges) - 1, signs.size), dtype=prepared.precision)
    for row, (start, stop) in zip(rows, pairwise(edges), strict=True):
        row[start:stop] = signs[start:stop]
    return prepared.embed_transposed(rows, n_threads=check_threads(model.n_jobs)).astype(np.float64)


def _on_nodes(features: Float64, layout: Layout) -> Float64:
    """Return features ``(n_features,)`` as ``(n_scales, n_nodes)``: each feature is divided equally among its nodes."""
    if layout.regions is None:
        return features.reshape(len(layout.scales), layout.n_points).copy()
    blocks = np.split(features, layout.edges[1:-1])
    return np.stack(
        [
            # The last value is for nodes outside all regions, whose label is -1.
            np.append(block / np.bincount(regions.labels + 1, minlength=regions.count + 1)[1:], 0.0)[regions.labels]
            for block, regions in zip(blocks, layout.regions, strict=True)
        ]
    )


class TypeParts(NamedTuple):
    """Contributions of types to a distance, ``(n_types,)``, and their ``masses`` in both measures, ``(n_types, 2)``."""

    contributions: Float64
    masses: Float64
    abundance: Float64
    state: Float64


def split(witness: Float64, masses: Float64, codes: Int64, n_types: int) -> TypeParts:
    """Split a distance into contributions of types of points, and each contribution into abundance and state.

    Parameters
    ----------
    witness
        Witness of the distance, ``(n_points,)``.
    masses
        Masses of the two measures, ``(2, n_points)``.
    codes
        Type of each point as a code from 0 on, ``(n_points,)``.
    n_types
        Number of types.
    """
    both = masses.sum(axis=0)
    centered = witness - math.fsum(witness * both) / math.fsum(both)
    a, b = (summed(row, codes, n_types) for row in masses)
    of_a, of_b = (summed(centered * row, codes, n_types) for row in masses)
    mean_a, mean_b = (np.divide(f, s, out=np.zeros(n_types), where=s > 0) for f, s in ((of_a, a), (of_b, b)))
    shared = (a > 0) & (b > 0)
    state = np.where(shared, (a + b) / 2 * (mean_a - mean_b), 0.0)
    abundance = np.where(shared, (a - b) * (mean_a + mean_b) / 2, of_a - of_b)
    return TypeParts(abundance + state, np.column_stack([a, b]), abundance, state)


def summed(values: Float64, codes: Int64, n_types: int) -> Float64:
    """Return exactly rounded sums over the points of each type, independent of the order of the points."""
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(1, n_types))
    return np.array([math.fsum(part) for part in np.split(values[order], cuts)])


def _breakdown(
    sums: Float64, codes: Int64, names: tuple[str, ...], between: tuple[str, str], masses: Float64, *parts: Float64
) -> Breakdown:
    """Return the breakdown with the types sorted by contribution, largest first."""
    total = math.fsum(sums)
    order = np.argsort(-sums, kind="stable")
    shares = sums / total if total else np.zeros_like(sums)
    points = np.bincount(codes, minlength=len(names))
    return Breakdown(
        tuple(names[i] for i in order), sums[order], shares[order], points[order], masses[order], between,
        *(part[order] for part in parts),
    )  # fmt: skip


def one_measure(value: Any, which: str, measures: Any | None, model: DiffusionEMD) -> tuple[str, Float64]:
    """Return the name and the masses ``(n_points,)`` of a measure given as a row, or by name or index.

    Parameters
    ----------
    value
        Masses ``(n_points,)`` or ``(1, n_points)``; or, with ``measures``, a name or an index.
    which
        Word for the measure in error messages, and name of a measure without a name.
    measures
        `Measures` or rows ``(n_measures, n_points)`` to which names and indices refer.
    model
        Fitted model, which determines the number of points.
    """
    if isinstance(value, str | int | np.integer) and not isinstance(value, bool):
        if measures is None:
            raise InvalidInputError(
                f"the {which} measure as a row of masses", repr(value), "to use names or indices, also pass measures="
            )
        rows = check_measures(measures, n_points=model.n_features_in_, normalize=model.normalize)
        names = measures.names if isinstance(measures, Measures) else [str(place) for place in range(rows.shape[0])]
        if not isinstance(value, str):
            index = int(value)
            if not -rows.shape[0] <= index < rows.shape[0]:
                raise InvalidInputError(
                    f"the {which} measure to be one of {counted(rows.shape[0], 'measure')}", f"index {index}"
                )
        elif isinstance(measures, Measures):
            index = names.index(find(value, names, f"the name of the {which} measure"))
        else:
            raise InvalidInputError(f"the index of the {which} measure", repr(value), "names require Measures")
        return names[index], _dense(rows[[index]])
    if isinstance(value, Measures) and len(value) == 1:
        which = value.names[0]
    row = value.masses if isinstance(value, Measures) else value
    # One row of a sparse array has one dimension.
    row = sp.csr_array(row.reshape(1, -1)) if sp.issparse(row) and row.ndim == 1 else row
    if not sp.issparse(row):
        row = np.atleast_2d(as_array(which, row))
    if row.ndim != 2 or row.shape[0] != 1:
        raise InvalidInputError(
            f"the {which} measure to be one row, ({model.n_features_in_},) or (1, {model.n_features_in_})",
            f"shape {row.shape}",
            "pass one row, such as measures.masses[[0]]",
        )
    return which, _dense(check_measures(row, n_points=model.n_features_in_, normalize=model.normalize))


def _dense(row: Any) -> Float64:
    return np.asarray(row.toarray() if sp.issparse(row) else row, dtype=np.float64).reshape(-1)
