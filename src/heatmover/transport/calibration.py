"""Distances in real units: a few exact Earth Mover's Distances tell what those of an embedding mean.

The L1 distance of an embedding orders measures well, but its number means nothing by itself, and it flattens: where two
measures have no heat in common, a scale says 2, however far they are. Solving some pairs exactly gives two things that
the whole cohort shares.

weights
    of the scales, non-negative, so that the distance stays the L1 distance of one embedding, and the largest scale;
    shrunk towards the model's own, because 64 pairs know little of ten weights
curve
    an increasing function from that distance to the unit of the ground distance: it takes the flattening back

Weights alone cannot do it: every scale is a concave function of how far two measures are, and so is every sum of them
with non-negative weights. Fitted to ALL pairs of eight shapes with known truth, weights alone leave a median error of 5
to 14 % and spoil the order, because they buy range with the coarsest scales. An increasing curve leaves every order as
it is. `docs/decisions/0027-units.md` has the figures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage.record import Record
from heatmover._base.types import Float64, Int64, IntArray
from heatmover._base.validation import as_array, check_integer, check_matrix, check_random_state, check_threads
from heatmover._base.words import counted
from heatmover.embedding.definition import block_weights
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import kept_scales
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, argument, in_python
from heatmover.graphs.graph import Graph
from heatmover.graphs.metrics import ALIASES, METRICS
from heatmover.measures import check_measures
from heatmover.statistics.metrics import centered_ranks
from heatmover.transport.exact import GroundCosts, exact_pairs

__all__ = ["FEWEST", "Calibration", "Curve", "calibrate"]

Ground: TypeAlias = str | npt.ArrayLike

# Scales looked at below and above the model's own largest. On eight shapes and three cohorts the best lay between three
# below and two above.
FINER, COARSER = 3, 3
# Pairs are chosen among those of so many measures: 32,640 pairs, and an embedding of at most so many bytes.
CANDIDATES, MEMORY = 256, 2**30
# Of larger measures so many points are drawn, or the exact solution takes seconds per pair. Shortest paths cost a
# search of the whole graph for each of them.
LARGEST, LARGEST_GEODESIC = 1_000, 200
# Pairs that are solved again with twice as many points, to see what drawing costs.
DOUBLED = 4
# Shortest paths from so many points at a time: on a million nodes 256 MB.
SOURCES = 32
# Shares of the relative squared error that a weight's own relative distance from its start costs; infinity keeps the
# model's weights.
SHRINKAGE = (np.inf, 1e-2, 1e-4)
FOLDS = 5
# Knots of the curve, at even shares of the pairs; what a kink costs; and the least slope, in units of the mean one,
# that keeps the curve increasing and with it every order.
KNOTS, SMOOTH, LEAST_SLOPE = 6, 1e-3, 0.02
#: The fewest measures that a calibration can be learnt from.
FEWEST = 16
# Share of the largest weight that changes no distance by as much as float32 rounds it.
NEXT_TO_NOTHING = 1e-9


# What distances of a ground are, in words.
MEANINGS = {
    "euclidean": "in the unit of the features, straight lines between points",
    "geodesic": "in the unit of the features, shortest paths along the graph",
    "cost": "in the unit of the costs",
}
METRIC = "in the unit of the metric between points"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@final
@dataclass(frozen=True, eq=False)
class Curve(ReadOnlyArrays):
    """An increasing, piecewise linear function from L1 distances to real units, with ``curve(0) == 0``.

    Attributes
    ----------
    knots
        ``(n_knots,)``: L1 distances, ascending from 0. Beyond the last the curve goes on straight.
    values
        ``(n_knots,)``: what they are in real units.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.transport.calibration import Curve
    >>> curve = Curve(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 4.0]))
    >>> curve([0.5, 2.0, 3.0])
    array([0.5, 4. , 7. ])
    >>> curve.inverse(7.0)
    array(3.)
    """

    knots: Float64
    values: Float64

    def __call__(self, distances: npt.ArrayLike) -> Float64:
        """Return distances of any shape in real units."""
        return _interpolated(np.asarray(distances, dtype=np.float64), self.knots, self.values)

    def to_record(self) -> Record:
        """Return the curve as a record that a store can hold."""
        return Record(arrays={"knots": self.knots, "values": self.values})

    @classmethod
    def from_record(cls, record: Record) -> Curve:
        """Return the curve of a record, or raise if it is none."""
        knots = record.floats("knots", (None,))
        values = record.floats("values", (knots.size,))
        if knots.size < 2 or not (np.all(np.diff(knots) > 0) and np.all(np.diff(values) > 0)):
            raise InvalidInputError("a stored curve that increases", "another")
        return cls(knots, values)

    def inverse(self, units: npt.ArrayLike) -> Float64:
        """Return the L1 distances that correspond to distances in real units."""
        return _interpolated(np.asarray(units, dtype=np.float64), self.values, self.knots)


def _interpolated(at: Float64, knots: Float64, values: Float64) -> Float64:
    slope = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
    beyond = np.maximum(at - knots[-1], 0)
    return np.asarray(np.interp(at, knots, values) + slope * beyond)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Calibration(ReadOnlyArrays):
    """A model whose distances have a unit, and how well they keep it; `calibrate` makes one.

    All errors are those of pairs that were not looked at when the weights, the scale and the curve that predict them
    were chosen (nested cross-validation).

    Attributes
    ----------
    model
        A fitted `DiffusionEMD` with weights of its own. The L1 distance between rows of its embedding has the right
        size in the middle (half of the pairs lie above, half below) and the order of measures; near and far it is off
        by what `curve` corrects.
    curve
        From these L1 distances to real units; `distances` applies it.
    shrinkage
        How strongly the weights were held at those of the model that came in: infinity for wholly.
    ground
        ``"euclidean"`` or another metric, ``"geodesic"`` or ``"cost"``.
    pairs
        ``(n_pairs, 2)``: the measures solved exactly, by their rows.
    exact
        ``(n_pairs,)``: their exact distances.
    predicted
        ``(n_pairs,)``: what `distances` says of each pair if the pair is left out.
    median_error, error_90
        Median and 90th percentile of ``|predicted / exact - 1|``.
    linear_error
        Median error of the L1 distances alone, without the curve.
    spearman, spearman_uncalibrated
        Rank correlation with the exact distances over the pairs, as predicted and of the model that came in.
    n_drawn
        How many of the measures in pairs were so large that points were drawn from them.
    drawing_bias
        By how much, relative, the exact distance of such drawn measures exceeds that of twice as many points (median of
        some pairs); 0 if none was drawn. Weights and curve do not inherit it: they see the same drawn measures on both
        sides.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.sphere(12, points_per_measure=25)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
    >>> calibration = hm.calibrate(model, data.measures(), points=data.points, ground="geodesic")
    >>> calibration
    Calibration(64 exact pairs, geodesic: median error ... %, 90 % of pairs within ... %; Spearman ...)
    """

    model: DiffusionEMD
    curve: Curve
    shrinkage: float
    ground: str
    pairs: Int64
    exact: Float64
    predicted: Float64
    median_error: float
    error_90: float
    linear_error: float
    spearman: float
    spearman_uncalibrated: float
    n_drawn: int = 0
    drawing_bias: float = 0.0

    def distances(self, distances: npt.ArrayLike) -> Float64:
        """Return L1 distances of ``model`` in real units.

        Parameters
        ----------
        distances
            Of any shape: from `heatmover.pairwise_distances`, `heatmover.nearest`, an explanation or a loss.

        Returns
        -------
        ndarray
            Of the same shape. The order is kept, so that neighbours stay neighbours.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.sphere(12, points_per_measure=25)
        >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
        >>> calibration = hm.calibrate(model, data.measures(), points=data.points, ground="geodesic")
        >>> embedding = calibration.model.transform(data.measures())
        >>> calibration.distances(hm.pairwise_distances(embedding)).shape
        (12, 12)
        """
        values = as_array("distances", distances, dtype=np.float64)
        if not np.all(values >= 0):
            raise InvalidInputError("distances of at least 0", "negative ones or NaN")
        return self.curve(values)

    def describe(self) -> str:
        """Return what the unit is and how far to believe it, in a sentence.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.gaussians(12, points_per_measure=25)
        >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
        >>> hm.calibrate(model, data.measures(), points=data.points).describe()
        'Distances are in the unit of the features, straight lines between points (euclidean): 64 pairs ...'
        """
        return (
            f"Distances are {MEANINGS.get(self.ground, METRIC)} ({self.ground}): "
            f"{counted(len(self.pairs), 'pair')} of samples were solved exactly, and distances predicted "
            "without a pair differ from its exact one by "
            f"{_percent(self.median_error)} (median), 90 % of them by at most {_percent(self.error_90)}."
        )

    def plain(self) -> dict[str, Any]:
        """Return what describes it as plain values for JSON: unit, number of exact pairs, errors."""
        names = ("ground", "median_error", "error_90", "linear_error", "spearman", "spearman_uncalibrated")
        further = {"n_drawn": int(self.n_drawn), "drawing_bias": float(self.drawing_bias)}
        return {name: getattr(self, name) for name in names} | {"n_pairs": len(self.pairs)} | further

    def __repr__(self) -> str:
        return (
            f"Calibration({counted(len(self.pairs), 'exact pair')}, {self.ground}: median error "
            f"{_percent(self.median_error)}, 90 % of pairs within {_percent(self.error_90)}; "
            f"Spearman {self.spearman:.3f}, uncalibrated {self.spearman_uncalibrated:.3f})"
        )


def calibrate(
    model: DiffusionEMD,
    mu: Any,
    points: npt.ArrayLike | None = None,
    *,
    ground: Ground = "euclidean",
    n_pairs: int = 64,
    random_state: int | None = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Calibration:
    """Give the distances of a model a unit, from exact distances of some pairs; needs the extra ``exact`` (POT).

    Parameters
    ----------
    model
        A `DiffusionEMD`, fitted or not; it stays as it is. Its weights are where the search begins.
    mu
        Measures ``(n_measures, n_points)`` to choose the pairs from.
    points
        Coordinates ``(n_points, n_dimensions)``; not needed if ``ground`` is a matrix.
    ground
        What moving a unit of mass costs. ``"euclidean"``: the straight line between points; any other metric of
        `Graph.from_points` by its name, such as ``"cosine"``. ``"geodesic"``: the shortest path along the edges of the
        graph, each as long as the straight line between its ends. Or costs ``(n_points, n_points)``: symmetric,
        non-negative, with a zero diagonal.
    n_pairs
        Pairs to solve, from near to far and of as many different measures as possible.
    random_state
        Seed of what is drawn: the pairs, and the points of measures of more than 1,000 points (200 for shortest paths).
    n_jobs
        Threads; None for all cores. The result does not depend on it.
    progress
        Told of the stage "calibrate units", with the number of pairs.

    Returns
    -------
    Calibration
        The model with a unit, the curve, and the errors to expect.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(12, points_per_measure=25)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
    >>> calibration = hm.calibrate(model, data.measures(), points=data.points)
    >>> calibration.median_error < 0.2
    True
    >>> calibration.exact.shape, calibration.model.weights is not None
    ((64,), True)
    """
    base = _check_model(model)
    n_threads, rng = check_threads(n_jobs), check_random_state(random_state)
    graph = base.graph if base.graph is not None else getattr(base, "graph_", None)
    masses = _check_masses(mu, base, graph)
    costs = _check_ground(ground, points, masses.shape[1])
    if not _is_fitted(base):
        base = clone(base).fit(masses)
    fewest = max(FEWEST, 2 * base.n_scales_)
    if check_integer("n_pairs", n_pairs, minimum=1) < fewest:
        raise InvalidInputError(
            f"{argument('n_pairs')} of at least {fewest}, two for each of the {counted(base.n_scales_, 'scale')}",
            f"{n_pairs}",
            "64 are enough for most data",
        )
    pairs = _choose_pairs(base, masses, n_pairs, rng)
    largest = LARGEST_GEODESIC if isinstance(ground, str) and ground == "geodesic" else LARGEST
    progress.stage("calibrate units", len(pairs))
    solved = _solve_pairs(base.graph_, masses, pairs, costs, largest, rng, n_threads, progress)
    if solved.exact.size < fewest:
        raise InvalidInputError(
            f"at least {counted(fewest, 'pair')} of measures that cost something to turn into each other",
            f"{solved.exact.size} of {len(pairs)}",
            "costs of zero between different points say nothing",
        )
    starts, exact = _starts(base, solved.masses, solved.rows, n_threads), solved.exact
    own = next(start for start in starts if start.max_scale == base.max_scale_)
    predicted, linear = _cross_validate(starts, own, exact)
    fit = _choose(starts, own, exact)
    errors = np.abs(predicted / exact - 1)
    return Calibration(
        model=_fitted_model(base, fit, masses),
        curve=fit.curve,
        shrinkage=fit.shrinkage,
        ground=ALIASES.get(ground, ground) if isinstance(ground, str) else "cost",
        pairs=solved.pairs,
        exact=exact,
        predicted=predicted,
        median_error=float(np.median(errors)),
        error_90=float(np.quantile(errors, 0.9)),
        linear_error=float(np.median(np.abs(linear / exact - 1))),
        spearman=_rank_correlation(predicted, exact),
        spearman_uncalibrated=_rank_correlation(own.distances(own.weights), exact),
        n_drawn=solved.n_drawn,
        drawing_bias=solved.bias,
    )


# --- at the door


def _check_model(model: object) -> DiffusionEMD:
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError(
            f"{argument('model')} to be a DiffusionEMD",
            type(model).__name__,
            "a Comparison carries one as its attribute model",
        )
    model.check_parameters()
    return model


def _is_fitted(model: DiffusionEMD) -> bool:
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True


def _check_masses(mu: Any, model: DiffusionEMD, graph: Graph | None) -> sp.csr_array:
    """Return measures as CSR rows ``(n_measures, n_points)`` of positive masses."""
    n_points = None if graph is None else graph.n_points
    masses = sp.csr_array(check_measures(mu, n_points=n_points, normalize=model.normalize), copy=True)
    masses.eliminate_zeros()
    masses.sort_indices()
    return masses


Costs: TypeAlias = Callable[[Graph, sp.csr_array, Int64], GroundCosts]


def _check_ground(ground: Ground, points: npt.ArrayLike | None, n_points: int) -> Costs:
    """Return what makes the costs between the points of pairs of measures."""
    if not isinstance(ground, str):
        matrix = _check_costs(ground, n_points)
        return lambda _graph, _masses, _pairs: lambda rows, columns: matrix[np.ix_(rows, columns)]
    known = ALIASES.get(ground, ground)
    if known != "geodesic" and known not in METRICS:
        raise InvalidInputError(
            f"{argument('ground')} to be 'geodesic', {', '.join(map(repr, METRICS))} or costs (n_points, n_points)",
            repr(ground),
        )
    if points is None:
        raise InvalidInputError(
            f"{argument('points')} (n_points, n_dimensions), whose distances are the unit",
            "none",
            f"or give the costs as {argument('ground')}",
        )
    places = np.asarray(check_matrix("points", points), dtype=np.float64)
    if len(places) != n_points:
        raise InvalidInputError(
            f"{argument('points')} of shape ({n_points}, n_dimensions), one for each column of the measures",
            f"shape {places.shape}",
        )
    if ground == "geodesic":
        return lambda graph, masses, pairs: _geodesic_costs(graph, places, masses, pairs)
    metric = METRICS[known]
    placed = metric.place(places)
    return lambda _graph, _masses, _pairs: lambda rows, columns: metric.between(placed[rows], placed[columns])


def _check_costs(ground: npt.ArrayLike, n_points: int) -> Float64:
    costs = check_matrix("ground", ground, sparse="give the cost of every pair")
    if costs.shape != (n_points, n_points):
        raise InvalidInputError(f"costs of shape ({n_points}, {n_points})", f"shape {costs.shape}")
    if costs.min() < 0:
        raise InvalidInputError("non-negative costs", f"a smallest of {costs.min():g}")
    largest = float(costs.max())
    # The arc cosine of a product that is 1 but for its rounding is 3e-8.
    if np.abs(costs.diagonal()).max() > 1e-6 * largest:
        raise InvalidInputError(
            "costs with a zero diagonal", f"up to {costs.diagonal().max():g}", "mass that stays costs nothing"
        )
    for start in range(0, n_points, SOURCES):  # in strips: the matrix may be the largest thing in memory
        apart = float(np.abs(costs[start : start + SOURCES] - costs[:, start : start + SOURCES].T).max())
        if apart > 1e-6 * largest:
            raise InvalidInputError(
                "symmetric costs",
                f"two directions that differ by {apart:g}",
                "use (cost + cost.T) / 2 if that is meant",
            )
    return np.asarray(costs, dtype=np.float64)


# --- pairs and their exact distances


def _choose_pairs(base: DiffusionEMD, masses: sp.csr_array, n_pairs: int, rng: np.random.Generator) -> Int64:
    """Return pairs ``(n_pairs, 2)``: half at even ranks of the uncalibrated distances, half at even steps of them."""
    count = masses.shape[0]
    if count * (count - 1) // 2 < n_pairs:
        fewest = next(m for m in range(count, 2 * n_pairs + 2) if m * (m - 1) // 2 >= n_pairs)
        raise InvalidInputError(
            f"at least {counted(fewest, 'measure')}, for {argument('n_pairs', n_pairs)} different pairs",
            f"{count}",
            f"lower {argument('n_pairs')}, or cut measures into halves",
        )
    room = base.prepared_.measures_within(MEMORY, check_threads(base.n_jobs))
    kept = np.sort(rng.permutation(count)[: max(min(CANDIDATES, room), 2)])
    distances = np.asarray(pairwise_distances(base.transform(masses[kept]), n_jobs=base.n_jobs), dtype=np.float64)
    first, second = np.triu_indices(len(kept), 1)
    values = distances[first, second]
    order = np.argsort(values, kind="stable")
    # Less is rounding of float32.
    order = order[values[order] > 1e-6 * values.max(initial=0.0)]
    if order.size < n_pairs:
        raise InvalidInputError(
            f"at least {counted(n_pairs, 'pair')} of different measures",
            "identical measures" if order.size == 0 else counted(order.size, "such pair"),
            f"lower {argument('n_pairs')}, or leave copies out" if order.size else "",
        )
    chosen = _spread(values, order, np.column_stack([first, second]), n_pairs, rng)
    return np.asarray(np.column_stack([kept[first[chosen]], kept[second[chosen]]]), dtype=np.int64)


def _spread(values: Float64, order: IntArray, ends: IntArray, n_pairs: int, rng: np.random.Generator) -> list[int]:
    """Take a pair of every stratum, of those measures that were taken least."""
    by_rank = n_pairs // 2
    cuts = np.linspace(0, order.size, by_rank + 1).astype(int)
    steps = np.linspace(values[order[0]], values[order[-1]], n_pairs - by_rank + 1)[1:-1]
    strata = np.split(order, cuts[1:-1]) + np.split(order, np.searchsorted(values[order], steps))
    times, chosen = np.zeros(int(ends.max()) + 1), dict[int, None]()
    # What an empty stratum leaves free goes to pairs anywhere.
    for stratum in [*strata, *([order] * n_pairs)]:
        left = [pair for pair in rng.permutation(stratum)[:CANDIDATES] if pair not in chosen]
        if not left or len(chosen) == n_pairs:
            continue
        best = min(left, key=lambda pair: times[ends[pair]].sum())
        times[ends[best]] += 1
        chosen[int(best)] = None
    missing = (pair for pair in order if pair not in chosen)
    while len(chosen) < n_pairs:
        chosen[int(next(missing))] = None
    return list(chosen)


@final
@dataclass(frozen=True, eq=False)
class _Solved:
    """Pairs ``(n_pairs, 2)`` with exact distances ``(n_pairs,)`` above zero, and the measures as they were solved.

    ``rows`` are the pairs as rows of ``masses``, which has only the measures that are needed, large ones drawn from.
    """

    pairs: Int64
    rows: Int64
    exact: Float64
    masses: sp.csr_array
    n_drawn: int
    bias: float


def _solve_pairs(
    graph: Graph,
    masses: sp.csr_array,
    pairs: Int64,
    costs: Costs,
    largest: int,
    rng: np.random.Generator,
    n_threads: int,
    progress: Progress,
) -> _Solved:
    used, places = np.unique(pairs, return_inverse=True)
    rows = np.asarray(places, dtype=np.int64).reshape(pairs.shape)
    whole = sp.csr_array(masses[used])

    def solve(measures: sp.csr_array, which: Int64, told: Progress = SILENT) -> Float64:
        listed = [(int(i), int(j)) for i, j in which]
        between = costs(graph, measures, which)

        def counted(rows: IntArray, columns: IntArray) -> Float64:
            told.advance()
            return between(rows, columns)

        return exact_pairs(measures, listed, counted, n_threads=n_threads)

    drawn = _drawn(whole, largest, rng)
    exact = solve(drawn, rows, progress)
    told = exact > 0
    reduced = np.diff(whole.indptr) > largest
    touched = np.flatnonzero(reduced[rows].any(axis=1) & told)
    some = touched[:: max(-(-touched.size // DOUBLED), 1)]
    bias = 0.0
    if some.size:
        double = solve(_drawn(whole, 2 * largest, rng), rows[some])
        bias = float(np.median(exact[some] / np.maximum(double, 1e-3 * exact[some]) - 1))
    return _Solved(pairs[told], rows[told], exact[told], drawn, int(np.count_nonzero(reduced)), bias)


def _drawn(masses: sp.csr_array, largest: int, rng: np.random.Generator) -> sp.csr_array:
    """Return the measures; of those with more than ``largest`` points, so many equal parts drawn evenly."""
    rows = []
    for start, stop in zip(masses.indptr[:-1], masses.indptr[1:], strict=True):
        points, weights = masses.indices[start:stop], masses.data[start:stop]
        if points.size > largest:
            order = rng.permutation(points.size)
            ticks = (np.arange(largest) + rng.random()) / largest
            hit = order[np.minimum(np.searchsorted(np.cumsum(weights[order]), ticks), points.size - 1)]
            kept, counts = np.unique(hit, return_counts=True)
            points, weights = points[kept], counts / largest
        rows.append((points, weights))
    indptr = np.append(0, np.cumsum([points.size for points, _ in rows]))
    data = (np.concatenate([weights for _, weights in rows]), np.concatenate([points for points, _ in rows]), indptr)
    return sp.csr_array(data, shape=masses.shape)


def _geodesic_costs(graph: Graph, places: Float64, masses: sp.csr_array, pairs: Int64) -> GroundCosts:
    """Return shortest paths between the points of pairs of measures; nothing else is computed or kept."""
    from scipy.sparse.csgraph import dijkstra

    supports = np.split(masses.indices, masses.indptr[1:-1])
    lengths = _edge_lengths(graph, places)
    node = np.arange(graph.n_points) if graph.place is None else graph.place
    known: dict[tuple[bytes, bytes], Float64] = {}
    for source, partners in _cover(pairs, np.diff(masses.indptr)).items():
        targets = [node[supports[partner]] for partner in partners]
        wanted, back = np.unique(np.concatenate(targets), return_inverse=True)
        starts = node[supports[source]]
        paths = np.vstack(
            [
                dijkstra(lengths, directed=True, indices=starts[begin : begin + SOURCES])[:, wanted]
                for begin in range(0, starts.size, SOURCES)
            ]
        )
        if not np.isfinite(paths).all():
            raise InvalidInputError(
                "measures on one connected component of the graph",
                "a pair that no path joins, whose distance is infinite",
                f"{in_python('see graph.diagnose(); ')}use more neighbours, or {argument('ground', 'euclidean')}",
            )
        for partner, columns in zip(partners, np.split(back, np.cumsum([t.size for t in targets])[:-1]), strict=True):
            block = np.ascontiguousarray(paths[:, columns])
            known[supports[source].tobytes(), supports[partner].tobytes()] = block
            known[supports[partner].tobytes(), supports[source].tobytes()] = block.T
    return lambda rows, columns: np.ascontiguousarray(known[rows.tobytes(), columns.tobytes()])


def _edge_lengths(graph: Graph, places: Float64) -> sp.csr_array:
    """Return the straight lines along the edges, CSR ``(n_nodes, n_nodes)``."""
    affinity = graph.node_affinity.tocoo()
    nodes = places[graph.first]
    lengths = np.linalg.norm(nodes[affinity.row] - nodes[affinity.col], axis=1)
    # A length of exactly zero would be no edge at all for SciPy.
    lengths = np.maximum(lengths, np.finfo(np.float64).tiny)
    return sp.csr_array((lengths, (affinity.row, affinity.col)), shape=affinity.shape)


def _cover(pairs: Int64, sizes: IntArray) -> dict[int, list[int]]:
    """Return measures, each with partners, that make up all pairs with few points to start from (greedy)."""
    left = {(int(i), int(j)) for i, j in pairs}
    cover: dict[int, list[int]] = {}
    while left:
        counts = np.bincount(np.array(sorted(left)).ravel(), minlength=len(sizes))
        source = int(np.argmax(counts / sizes))
        touching = sorted(pair for pair in left if source in pair)
        cover[source] = [j if i == source else i for i, j in touching]
        left -= set(touching)
    return cover


# --- what each scale says of each pair


@final
@dataclass(frozen=True, eq=False)
class _Start:
    """Where a fit begins: a largest scale with the model's own weights, and what its blocks say of the pairs.

    Attributes
    ----------
    max_scale
        K.
    weights
        ``(n_scales,)``, by the model's own rule; the last belongs to K.
    design
        ``(n_pairs, n_scales)``: L1 distance of each pair in each block before it is weighed.
    """

    max_scale: int
    weights: Float64
    design: Float64

    def distances(self, weights: Float64, rows: Any = slice(None)) -> Float64:
        return np.asarray(self.design[rows] @ weights)


def _starts(base: DiffusionEMD, masses: sp.csr_array, pairs: Int64, n_threads: int) -> list[_Start]:
    """Return the starts around the model's own scale; levels of all scales come from one diffusion."""
    rows = base.node_masses(masses)
    differences = np.asarray((rows[pairs[:, 0]] - rows[pairs[:, 1]]).toarray())
    own = int(base.max_scale_)
    if base.weights is not None:
        weights = np.asarray(base.weights, dtype=np.float64)
        _, design = _blocks(base, [own], masses, differences, n_threads)
        return [_Start(own, weights, design[:, own + 1 - weights.size :])]
    lowest = max(own - FINER, 0)
    if base.norm == "levels":
        top, design = _blocks(base, range(own + COARSER, own - 1, -1), masses, differences, n_threads)
        return [_start(base, scale, design[:, : scale + 1]) for scale in range(lowest, top + 1)]
    # The blocks of the other norms look at the coarsest scale, so that each K has its own. None is tried that the
    # model's precision may not keep.
    return [
        _start(base, scale, _blocks(base, [scale], masses, differences, n_threads)[1])
        for scale in range(lowest, own + 1)
    ]


def _start(base: DiffusionEMD, max_scale: int, design: Float64) -> _Start:
    kept = kept_scales(max_scale, base.n_scales, base.alpha)
    return _Start(max_scale, block_weights(kept, base.alpha, base.norm), design[:, kept[0] :])


def _blocks(
    base: DiffusionEMD, tops: Sequence[int], masses: sp.csr_array, differences: Float64, n_threads: int
) -> tuple[int, Float64]:
    """Return the first of these largest scales that can be computed, and the L1 norm of every block of every pair."""
    settings = {"n_scales": None, "compress": False if base.compress_ is None else base.compress_}
    for top in tops:
        wide: DiffusionEMD = clone(base).set_params(
            graph=base.graph_, max_scale=top, weights=np.ones(top + 1), **settings
        )
        try:
            with warnings.catch_warnings():
                _ignore_known()
                prepared = wide.fit(masses).prepared_
            break
        except InvalidInputError:
            # Coarser scales than the model's own may be more than its precision keeps.
            if top == tops[-1]:
                raise
    width = prepared.measures_within(MEMORY, n_threads)
    edges = prepared.layout.edges
    parts = []
    for start in range(0, len(differences), width):
        features = np.abs(prepared.embed(differences[start : start + width], n_threads=n_threads))
        parts.append(np.add.reduceat(features, edges[:-1], axis=1, dtype=np.float64))
    return top, np.concatenate(parts)


# --- weights and curve


@final
@dataclass(frozen=True, eq=False)
class _FittedWeights:
    """Weights of a start's blocks and the curve over the distances that they give; both in real units."""

    start: _Start
    shrinkage: float
    weights: Float64
    curve: Curve


def _fit(start: _Start, shrinkage: float, exact: Float64, rows: Any = slice(None)) -> _FittedWeights:
    """Fit curve and weights in turn: the curve says how far the pairs should be, the weights are fitted to that."""
    design, weights = start.design[rows], start.weights
    curve = _fit_curve(design @ weights, exact)
    if np.isfinite(shrinkage):
        # Once is enough: a second round took half as long again and changed the errors by 1 % of their size.
        weights = _fit_weights(design, start.weights, curve.inverse(exact), shrinkage)
        curve = _fit_curve(design @ weights, exact)
    unit = float(np.median(exact / (design @ weights)))
    return _FittedWeights(start, shrinkage, weights * unit, Curve(curve.knots * unit, curve.values))


def _fit_weights(design: Float64, start: Float64, target: Float64, shrinkage: float) -> Float64:
    """Return non-negative weights for the least relative squared error, shrunk towards where they start."""
    n_pairs, n_scales = design.shape
    pull = np.sqrt(shrinkage / n_scales)
    relative = design * start / (target[:, None] * np.sqrt(n_pairs))
    matrix = np.vstack([relative, pull * np.eye(n_scales)])
    weights = _non_negative(matrix, np.append(np.full(n_pairs, 1 / np.sqrt(n_pairs)), np.full(n_scales, pull))) * start
    # A pair that only the dropped scales told apart would have no distance at all.
    return weights if np.all(design @ weights > 0) else start


def _fit_curve(distances: Float64, exact: Float64) -> Curve:
    """Return the increasing curve of least relative squared error, with slopes that change little from knot to knot."""
    # What np.quantile says, in a tenth of the time: thousands of curves are tried.
    ascending = np.sort(distances)
    quantiles = np.interp(np.linspace(0, distances.size - 1, KNOTS), np.arange(distances.size), ascending)
    knots = np.append(0.0, quantiles)
    knots = knots[np.append(True, knots[1:] - knots[:-1] > 1e-9 * knots[-1])]
    ratio = distances / exact
    slope = float(ratio.sum() / (ratio**2).sum())
    count, n_slopes = exact.size, knots.size - 1
    steps = knots[1:] - knots[:-1]
    matrix = np.zeros((count + n_slopes - 1, n_slopes))
    matrix[:count] = np.minimum(np.maximum(distances[:, None] - knots[:-1], 0), steps)
    matrix[:count] *= (slope / np.sqrt(count)) / exact[:, None]
    kink, kinks = np.sqrt(SMOOTH / max(n_slopes - 1, 1)), np.arange(n_slopes - 1)
    matrix[count + kinks, kinks], matrix[count + kinks, kinks + 1] = -kink, kink
    target = np.zeros(len(matrix))
    target[:count] = 1 / np.sqrt(count)
    slopes = LEAST_SLOPE + _non_negative(matrix, target - matrix.sum(axis=1) * LEAST_SLOPE)
    return Curve(knots, np.append(0.0, np.cumsum(slope * slopes * steps)))


def _non_negative(matrix: Float64, target: Float64) -> Float64:
    from scipy.optimize import nnls

    return np.asarray(nnls(matrix, target)[0])


def _choose(starts: Sequence[_Start], own: _Start, exact: Float64, rows: IntArray | None = None) -> _FittedWeights:
    """Return the fit to some of the pairs whose scale and shrinkage predict best the pairs that are left out.

    Judged by the mean relative error times one minus the rank correlation; an order worse than the model's own is out.
    """
    kept = np.arange(exact.size) if rows is None else rows
    truth = exact[kept]
    own_order = 1 - _rank_correlation(own.distances(own.weights, kept), truth)
    best, least = (own, np.inf), np.inf
    for start in starts:
        for shrinkage in SHRINKAGE:
            predicted = np.empty(truth.size)
            for train, test in _folds(truth):
                fit = _fit(start, shrinkage, truth[train], kept[train])
                predicted[test] = fit.curve(start.distances(fit.weights, kept[test]))
            order = 1 - _rank_correlation(predicted, truth)
            error = float(np.abs(predicted / truth - 1).mean())
            # Worse orders come last, by how much worse they are; the curve of the model's own is never far behind.
            score = np.sqrt(error * max(order, 0.0)) if order <= own_order * (1 + 1e-9) else 1e6 + order
            if score < least:
                best, least = (start, shrinkage), score
    return _fit(*best, truth, kept)


def _cross_validate(starts: Sequence[_Start], own: _Start, exact: Float64) -> tuple[Float64, Float64]:
    """Return what is predicted of each pair, ``(n_pairs,)``, when it took no part: with the curve, and without it."""
    predicted, linear = np.empty(exact.size), np.empty(exact.size)
    for train, test in _folds(exact):
        fit = _choose(starts, own, exact, train)
        linear[test] = fit.start.distances(fit.weights, test)
        predicted[test] = fit.curve(linear[test])
    return predicted, linear


def _folds(exact: Float64) -> list[tuple[IntArray, IntArray]]:
    """Return rows to fit and rows to predict; each part of the pairs has near and far ones."""
    fold = np.empty(exact.size, dtype=np.intp)
    fold[np.argsort(exact, kind="stable")] = np.arange(exact.size) % FOLDS
    return [(np.flatnonzero(fold != part), np.flatnonzero(fold == part)) for part in range(FOLDS)]


def _rank_correlation(a: Float64, b: Float64) -> float:
    """Return Spearman's correlation, 0 if one of the two is constant."""
    first, second = centered_ranks(a[None])[0], centered_ranks(b[None])[0]
    norm = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / norm) if norm > 0 else 0.0


def _fitted_model(base: DiffusionEMD, fit: _FittedWeights, masses: sp.csr_array) -> DiffusionEMD:
    """Return the model with the weights found; scales at either end that weigh nothing are left out."""
    weights, top = fit.weights, fit.start.max_scale
    positive = np.flatnonzero(weights)
    if base.norm == "levels":  # blocks of other norms look at the coarsest scale, whatever its own weight
        top -= weights.size - 1 - int(positive[-1])
        weights = weights[: positive[-1] + 1]
    # A scale between others that weighs nothing would be a block of zeros, of which nobody can tell noise from signal.
    weights = np.where(weights > 0, weights, NEXT_TO_NOTHING * weights.max())
    settings: dict[str, Any] = {"graph": base.graph_, "max_scale": top, "n_scales": None}
    model: DiffusionEMD = clone(base).set_params(**settings, weights=tuple(weights[positive[0] :].tolist()))
    with warnings.catch_warnings():
        _ignore_known()
        return model.fit(masses)


def _ignore_known() -> None:
    """Leave out what the model has warned of when it was fitted."""
    for kind in (GraphWarning, EmbeddingWarning):
        warnings.simplefilter("ignore", kind)
