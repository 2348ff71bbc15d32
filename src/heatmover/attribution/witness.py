"""`explain`: which points make the distance between two measures.

The embedding is linear, so the distance is W = || A d ||_1 with d = mu - nu, and it can be taken apart in two ways that
both sum to it. By where the diffused densities differ: each feature's share of the norm (`local`). By where mass must
move: with f = A' sign(A d), the witness, f . d = sign(A d) . A d = W, and every point contributes f_i d_i.

What a type of points adds is split once more. With shares a and b of the type in the two measures and its own
distributions A and B inside them, ``f.(aA - bB) = (a - b) f.(A + B)/2 + (a + b)/2 f.(A - B)``: how many of its points
there are (abundance), and where they lie (state). A constant added to f changes no sum and no state, but says what a
point is compared with; in contributions it is chosen so that f is zero on average over both measures. Abundance is then
told relative to the average point, and each measure contributes half of the distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import as_array, check_option, check_threads, import_extra
from heatmover._base.words import counted, find
from heatmover.diffusion.operator import LANES
from heatmover.embedding.definition import Layout
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures, check_measures
from heatmover.statistics.samples import check_labels

__all__ = [
    "Breakdown",
    "Explanation",
    "TypeParts",
    "check_annotation",
    "check_model",
    "explain",
    "explain_masses",
    "split",
    "summed",
]

# The smallest features that together make up this share of a distance are rounding, or what `tol` allows, and their
# signs mean nothing. On a path of 600 points, both measures near one end, they gave half of the largest witness at the
# other end; polynomials are rid of it with 1e-7, eigenvectors of the coarse scales with 1e-5.
ROUNDING = 1e-5
# Rows of a breakdown that are printed; its table has all.
SHOWN = 12


@final
@dataclass(frozen=True, eq=False, repr=False)
class Breakdown(ReadOnlyArrays):
    """What every type of point contributes to a distance, largest first; ``print`` it.

    Attributes
    ----------
    names
        Of the types.
    contributions
        ``(n_types,)``: they sum to the distance.
    shares
        ``(n_types,)``: contributions divided by the distance; zeros if that is zero.
    points
        ``(n_types,)``: number of points of each type.
    masses
        ``(n_types, 2)``: mass that the first and the second measure have in each type.
    between
        Names of the two measures.
    abundance, state
        ``(n_types,)``: the two parts of the contributions: how much of a type there is, relative to the average point,
        and where within the type it lies. A type that one measure has nothing of has no state. None for ``"local"``.

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
    """Which points make the distance between two measures; ``print`` it. `explain` makes one.

    Attributes
    ----------
    names
        Of the two measures.
    distance
        Between them.
    witness
        ``(n_points,)``: a function f of the points that tells the measures apart as well as any of its smoothness:
        its mean under the first measure exceeds that under the second by exactly the distance. It is an average of
        signs around a point, weighed over scales: the sum of the scales' weights where the first measure is denser
        everywhere around, minus that where the second is, zero on the border. (The distance does not change if a
        constant is added; this constant keeps that meaning.)
    scale_witnesses
        ``(n_scales, n_points)``: what every scale adds to the witness.
    contributions
        ``(n_points,)``: witness, less its mean over both measures, times the difference of masses. They sum to the
        distance, each measure's points to half of it; a point without mass contributes nothing, and a negative one lies
        on the other measure's side of the average point.
    differences
        ``(n_scales, n_points)``: weighed differences of the diffused densities, positive where the first
        measure is denser. Their absolute values sum to the distance.
    masses
        ``(2, n_points)``: the two measures.
    scales
        ``(n_scales,)``: the scales k; diffusion time is ``2**k``.

    Examples
    --------
    >>> import numpy as np
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain
    >>> graph = hm.Graph.from_grid((30,))
    >>> model = hm.DiffusionEMD(graph).fit(np.eye(30))
    >>> explanation = explain(model, np.eye(30)[5], np.eye(30)[20])
    >>> print(explanation)
    The distance between first and second is ...: half of it comes from 9 of 30 points.
    first is denser around 13 points and second around 17.
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
        """``(n_points,)``: how much the densities differ at each point, over all scales; sums to the distance."""
        return np.asarray(np.abs(self.differences).sum(axis=0))

    @property
    def surplus(self) -> Float64:
        """``(n_points,)``: the same with signs: positive where the first measure is denser, negative where the second.

        Scales that disagree cancel, so that its absolute values may sum to less than the distance.
        """
        return np.asarray(self.differences.sum(axis=0))

    def by(self, annotation: Any, *, of: Literal["contributions", "local"] = "contributions") -> Breakdown:
        """Return what every type of point, such as a cell type, contributes to the distance.

        Parameters
        ----------
        annotation
            Kind of each point, ``(n_points,)``: words or numbers, none missing.
        of
            ``"contributions"``: mass that must move, with its two parts, abundance and state. ``"local"``: where
            densities differ; never negative.
        """
        check_option("of", of, ("contributions", "local"))
        codes, names = check_annotation(annotation, self.witness.size)
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
            return f"The distance between {first} and {second} is zero.\nNothing needs to move."
        largest = np.cumsum(np.sort(self.local)[::-1])
        half = min(int(np.searchsorted(largest, self.distance / 2)) + 1, largest.size)
        positive, negative = int((self.witness > 0).sum()), int((self.witness < 0).sum())
        return (
            f"The distance between {first} and {second} is {self.distance:.4g}: half of it comes from {half:,} of "
            f"{counted(largest.size, 'point')}.\n"
            f"{first} is denser around {counted(positive, 'point')} and {second} around {negative:,}."
        )

    def __repr__(self) -> str:
        return f"Explanation({self.names[0]} against {self.names[1]}: distance {self.distance:.4g})"


def explain(model: DiffusionEMD, mu: Any, nu: Any, *, measures: Any | None = None) -> Explanation:
    """Explain the distance between two measures by the points of the graph.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    mu, nu
        The measures: masses ``(n_points,)`` or one row ``(1, n_points)``; with ``measures`` also a name or an index.
    measures
        `Measures` or rows ``(n_measures, n_points)`` that names and indices refer to.

    Returns
    -------
    Explanation
        Everything in it is in float64, and sums to the distance up to its rounding, whatever the model's precision.

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
    check_model(model)
    first, mu = one_measure(mu, "first", measures, model)
    second, nu = one_measure(nu, "second", measures, model)
    return explain_masses(model, np.stack([mu, nu]), (first, second))


def explain_masses(model: DiffusionEMD, masses: Float64, names: tuple[str, str]) -> Explanation:
    """Explain the distance between two checked measures ``(2, n_points)``."""
    graph, layout = model.graph_, model.prepared_.layout
    difference = masses[0] - masses[1]
    # At the nodes, so that sums do not depend on the order of the points.
    moved = graph.gather(difference[None])[0]
    # Normalised, so that for nearly equal measures the rounding is relative to their difference.
    size = float(np.abs(moved).sum())
    empty = np.zeros((len(layout.scales), layout.n_points))
    features = np.zeros(layout.n_features)
    if size > 0:
        features = _embedded(model, moved / size)
    signs = _signs(features)
    total = float(np.abs(features).sum())
    witnesses = _pulled_back(model, signs) if total else empty
    product = float(witnesses.sum(axis=0) @ (moved / size)) if total else 0.0
    if not 0.5 * total < product < 2 * total:
        # Nothing but rounding: the measures differ only where no diffused density does.
        size, total, witnesses, product = 0.0, 0.0, empty, 1.0
    # What rounding took, some 1e-5, is given back in proportion, so that everything sums to the distance.
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


def _embedded(model: DiffusionEMD, row: Float64) -> Float64:
    rows = model.prepared_.embed(row[None], n_threads=check_threads(model.n_jobs))
    return np.asarray(rows[0], dtype=np.float64)


def _signs(features: Float64) -> Float64:
    """Return the sign of every feature that is more than rounding, else zero."""
    sizes = np.abs(features)
    order = np.argsort(sizes)
    small = order[np.cumsum(sizes[order]) <= ROUNDING * sizes.sum()]
    signs: Float64 = np.sign(features)
    signs[small] = 0
    return signs


def _pulled_back(model: DiffusionEMD, signs: Float64) -> Float64:
    """Return the transpose of the embedding on the signs of each scale, ``(n_scales, n_nodes)``."""
    prepared = model.prepared_
    edges = prepared.layout.edges
    parts = []
    for start in range(0, len(edges) - 1, LANES):
        blocks = range(start, min(start + LANES, len(edges) - 1))
        rows = np.zeros((len(blocks), signs.size), dtype=prepared.precision)
        for row, block in zip(rows, blocks, strict=True):
            row[edges[block] : edges[block + 1]] = signs[edges[block] : edges[block + 1]]
        functions = prepared.embed_transposed(rows, n_threads=check_threads(model.n_jobs))
        parts.append(functions.astype(np.float64))
    return np.concatenate(parts)


def _on_nodes(features: Float64, layout: Layout) -> Float64:
    """Return features ``(n_features,)`` as ``(n_scales, n_nodes)``; that of a region is shared by its nodes."""
    if layout.regions is None:
        return features.reshape(len(layout.scales), layout.n_points).copy()
    blocks = np.split(features, layout.edges[1:-1])
    return np.stack(
        [
            # The last value is for nodes in no region, whose label is -1.
            np.append(block / np.bincount(regions.labels + 1, minlength=regions.count + 1)[1:], 0.0)[regions.labels]
            for block, regions in zip(blocks, layout.regions, strict=True)
        ]
    )


class TypeParts(NamedTuple):
    """What every type adds to a distance, ``(n_types,)``, with the ``masses`` of the two measures ``(n_types, 2)``."""

    contributions: Float64
    masses: Float64
    abundance: Float64
    state: Float64


def split(witness: Float64, masses: Float64, codes: Int64, n_types: int) -> TypeParts:
    """Take a distance apart by types of points, into abundance and state.

    Parameters
    ----------
    witness
        Of the distance, ``(n_points,)``.
    masses
        The two measures, ``(2, n_points)``.
    codes
        Type of each point, ``(n_points,)``.
    n_types
        How many there are.
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
    """Return sums over the points of each type, rounded once, so that they do not depend on the order of the points."""
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(1, n_types))
    return np.array([math.fsum(part) for part in np.split(values[order], cuts)])


def _breakdown(
    sums: Float64, codes: Int64, names: tuple[str, ...], between: tuple[str, str], masses: Float64, *parts: Float64
) -> Breakdown:
    """Put the types in the order of what they add."""
    total = math.fsum(sums)
    order = np.argsort(-sums, kind="stable")
    shares = sums / total if total else np.zeros_like(sums)
    points = np.bincount(codes, minlength=len(names))
    return Breakdown(
        tuple(names[i] for i in order), sums[order], shares[order], points[order], masses[order], between,
        *(part[order] for part in parts),
    )  # fmt: skip


def check_model(model: object) -> DiffusionEMD:
    """Return a fitted `DiffusionEMD`, or raise."""
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError(
            "a fitted DiffusionEMD", type(model).__name__, "a Comparison carries one as its attribute model"
        )
    check_is_fitted(model)
    return model


def one_measure(value: Any, which: str, measures: Any | None, model: DiffusionEMD) -> tuple[str, Float64]:
    """Return the name and the masses ``(n_points,)`` of a measure given as a row, or by name or index.

    Parameters
    ----------
    value
        Masses ``(n_points,)`` or ``(1, n_points)``; or, with ``measures``, a name or an index.
    which
        What the measure is called in messages, and its name if it has none.
    measures
        `Measures` or rows ``(n_measures, n_points)`` that names and indices refer to.
    model
        Says how many points there are.
    """
    by_name = isinstance(value, str)
    if by_name or (isinstance(value, int | np.integer) and not isinstance(value, bool)):
        if measures is None:
            raise InvalidInputError(
                f"{which} to be a row of masses", repr(value), "names and indices need measures= to refer to"
            )
        return _looked_up(value, which, measures, model)
    if isinstance(value, Measures) and len(value) == 1:
        which = value.names[0]
    row = value.masses if isinstance(value, Measures) else value
    # A row taken out of a sparse array has one dimension.
    row = sp.csr_array(row.reshape(1, -1)) if sp.issparse(row) and row.ndim == 1 else row
    if not sp.issparse(row):
        row = np.atleast_2d(as_array(which, row))
    if row.ndim != 2 or row.shape[0] != 1:
        raise InvalidInputError(
            f"{which} to be one measure, ({model.n_features_in_},) or (1, {model.n_features_in_})",
            f"shape {row.shape}",
            "pass one row, such as measures.masses[[0]]",
        )
    return which, _dense(check_measures(row, n_points=model.n_features_in_, normalize=model.normalize))


def _looked_up(value: Any, which: str, measures: Any, model: DiffusionEMD) -> tuple[str, Float64]:
    names: Sequence[str] | None = measures.names if isinstance(measures, Measures) else None
    rows = check_measures(measures, n_points=model.n_features_in_, normalize=model.normalize)
    if isinstance(value, str):
        if names is None:
            raise InvalidInputError(f"{which} to be an index", repr(value), "only Measures have names")
        index = names.index(find(value, names, f"{which} to name a measure"))
    else:
        index = int(value)
        if not -rows.shape[0] <= index < rows.shape[0]:
            raise InvalidInputError(f"{which} to be one of {counted(rows.shape[0], 'measure')}", f"index {index}")
        index %= rows.shape[0]
    return names[index] if names else str(index), _dense(rows[[index]])


def _dense(row: Any) -> Float64:
    return np.asarray(row.toarray() if sp.issparse(row) else row, dtype=np.float64).reshape(-1)


def check_annotation(annotation: Any, n_points: int) -> tuple[Int64, tuple[str, ...]]:
    """Return the type of each point as a whole number ``(n_points,)``, and the names of the types, sorted."""
    return check_labels("annotation", annotation, n_points, of="point")
