"""Give distances real units by fitting a model to a few exact EMDs, for users, studies, atlases, `tl`; touch no files.

The L1 distance of an embedding orders measures well, but its value has no unit, and it saturates. If the heat of two
measures does not overlap at a scale, this scale contributes its maximum of 2, however far apart the measures are. The
exact distances of some pairs of measures, computed with POT, determine weights and a curve for the whole cohort.

weights
    The weights of the scales, and the largest scale. With non-negative weights the distance remains an L1 distance of
    one embedding. The weights are shrunk toward the weights of the input model, because 64 pairs carry little
    information about ten weights.
curve
    An increasing function from the L1 distance to the unit of the ground distance, which reverses the saturation.

Weights alone are not enough. The contribution of every scale is a concave function of the distance between two
measures, and so is every sum of contributions with non-negative weights. Weights alone, fitted to ALL pairs of eight
shapes with ground truth, leave a median error of 5% to 14%. Weights alone also distort the order of the distances,
because the fit puts most weight on the coarsest scales. An increasing curve does not change the order of the distances.
`docs/decisions/0027-units.md` has the figures.
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
from heatmover.statistics.metrics import centered_ranks
from heatmover.transport.exact import GroundCosts, check_costs, check_paths, exact_pairs, masses_on_supports

Ground: TypeAlias = str | npt.ArrayLike

# Number of values of the largest scale to try below and above the value of the input model. On eight shapes and three
# cohorts, the best largest scale was between three below and two above that value.
FINER, COARSER = 3, 3
# Pairs are chosen among at most this many measures (32,640 pairs), with an embedding of at most this many bytes.
CANDIDATES, MEMORY = 256, 2**30
# Measures with more points are reduced to this many random points, because the exact solution would take seconds per
# pair. The limit is lower for shortest paths, which need a search of the whole graph for each point.
LARGEST, LARGEST_GEODESIC = 1_000, 200
# Number of pairs that are solved again with twice as many points, to estimate the bias of drawing points.
DOUBLED = 4
# Number of points from which shortest paths are computed at a time: 32 take 256 MB on a million nodes.
SOURCES = 32
# Penalties on the squared relative deviation of a weight from the model's weight, in units of the squared relative
# error of the distances. Infinity keeps the model's weights.
SHRINKAGE = (np.inf, 1e-2, 1e-4)
FOLDS = 5
# Number of knots of the curve (with equally many pairs between neighboring knots), penalty on changes of the slope, and
# smallest slope in units of the mean slope. The smallest slope makes the curve increase, so the order of distances does
# not change.
KNOTS, SMOOTH, LEAST_SLOPE = 6, 1e-3, 0.02
#: Smallest number of measures for a calibration.
FEWEST = 16
# Share of the largest weight that replaces a weight of zero. Smaller weights change distances by less than float32
# rounding.
NEXT_TO_NOTHING = 1e-9


# Description of the unit of distances for each ground distance.
MEANINGS = {
    "euclidean": "in the unit of the features, along straight lines between points",
    "geodesic": "in the unit of the features, along shortest paths in the graph",
    "cost": "in the unit of the costs",
}
METRIC = "in the unit of the metric between points"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


@final
@dataclass(frozen=True, eq=False)
class Curve(ReadOnlyArrays):
    """An increasing, piecewise linear function from L1 distances to real units, with ``curve(0) == 0``.

    Attributes
    ----------
    knots
        ``(n_knots,)``: L1 distances, ascending from 0. Beyond the last knot the curve continues linearly.
    values
        ``(n_knots,)``: distances in real units at the knots.

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
        """Convert L1 distances of any shape to real units."""
        at = np.asarray(distances, dtype=np.float64)
        slope = (self.values[-1] - self.values[-2]) / (self.knots[-1] - self.knots[-2])
        beyond = np.maximum(at - self.knots[-1], 0)
        return np.asarray(np.interp(at, self.knots, self.values) + slope * beyond)

    def to_record(self) -> Record:
        """Return the curve as a record that can be saved to disk."""
        return Record(arrays={"knots": self.knots, "values": self.values})

    @classmethod
    def from_record(cls, record: Record) -> Curve:
        """Return the curve stored in a record, or raise an error if the record is not a curve."""
        knots = record.floats("knots", (None,))
        values = record.floats("values", (knots.size,))
        if knots.size < 2 or not (np.all(np.diff(knots) > 0) and np.all(np.diff(values) > 0)):
            raise InvalidInputError("a stored curve that increases", "another")
        return cls(knots, values)

    def inverse(self, units: npt.ArrayLike) -> Float64:
        """Convert distances in real units to L1 distances."""
        return Curve(self.values, self.knots)(units)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Calibration(ReadOnlyArrays):
    """A model whose distances have a unit, and the estimated errors of these distances, as returned by `calibrate`.

    All errors are estimated by nested cross-validation: the weights, scale and curve that predict a pair are chosen
    without this pair.

    Attributes
    ----------
    model
        A fitted `DiffusionEMD` with calibrated weights. The L1 distances between rows of its embedding have the right
        median size and the same order as the calibrated distances. Small and large L1 distances are biased; `curve`
        corrects the bias.
    curve
        Function from L1 distances to real units; `distances` applies it.
    shrinkage
        Strength of the shrinkage of the weights toward the weights of the input model; infinity keeps these weights.
    ground
        Ground distance: ``"euclidean"`` or another metric, ``"geodesic"`` or ``"cost"``.
    pairs
        ``(n_pairs, 2)``: pairs of measures with exact distances, as row indices.
    exact
        ``(n_pairs,)``: exact distances of the pairs.
    predicted
        ``(n_pairs,)``: distance of each pair, predicted by a fit without this pair.
    median_error, error_90
        Median and 90th percentile of ``|predicted / exact - 1|``.
    linear_error
        Median error of the L1 distances alone, without the curve.
    spearman, spearman_uncalibrated
        Rank correlation of the exact distances of the pairs with the predicted distances, and with the distances of the
        input model.
    n_drawn
        Number of measures in the pairs that were reduced to randomly drawn points because of their size.
    drawing_bias
        Share by which the exact distance between reduced measures exceeds the exact distance with twice as many points
        (median over some pairs); 0 if no measure was reduced. Weights and curve do not inherit this bias, because they
        are fitted to embeddings of the same reduced measures.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.sphere(12, points_per_measure=25)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
    >>> calibration = hm.calibrate(model, data.measures(), points=data.points, ground="geodesic")
    >>> calibration
    Calibration(64 pairs with exact distances, geodesic: median error ...%, 90% of pairs within ...%; Spearman ...)
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

    @property
    def guess_error(self) -> float:
        """Return the median relative error of a guess: the median of the exact distances, for every pair."""
        return float(np.median(np.abs(np.median(self.exact) / self.exact - 1)))

    def distances(self, distances: npt.ArrayLike) -> Float64:
        """Convert L1 distances of ``model`` to real units.

        Parameters
        ----------
        distances
            L1 distances of any shape, from `heatmover.pairwise_distances`, `heatmover.nearest`, an explanation or a
            loss.

        Returns
        -------
        ndarray
            Distances in real units, in the same shape and with the same order, so neighbors stay neighbors.

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
            raise InvalidInputError("distances of at least 0", "negative distances or NaN")
        return self.curve(values)

    def describe(self) -> str:
        """Return sentences that describe the unit and the errors.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.gaussians(12, points_per_measure=25)
        >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10))
        >>> hm.calibrate(model, data.measures(), points=data.points).describe()
        'Distances are in the unit of the features, along straight lines between points (euclidean). The exact ...'
        """
        return (
            f"Distances are {MEANINGS.get(self.ground, METRIC)} ({self.ground}). "
            f"The exact distances of {counted(len(self.pairs), 'pair')} of samples were computed. Cross-validated "
            f"predictions differ from the exact distances by a median of {_percent(self.median_error)}, and for 90% of "
            f"the pairs by at most {_percent(self.error_90)}. A guess of the median distance for every pair differs by "
            f"a median of {_percent(self.guess_error)}."
        )

    def plain(self) -> dict[str, Any]:
        """Return a summary as plain values for JSON: unit, number of pairs with exact distances, errors."""
        errors = ("median_error", "error_90", "guess_error", "linear_error", "spearman", "spearman_uncalibrated")
        names = ("ground", *errors, "n_drawn", "drawing_bias")
        return {name: getattr(self, name) for name in names} | {"n_pairs": len(self.pairs)}

    def __repr__(self) -> str:
        return (
            f"Calibration({counted(len(self.pairs), 'pair')} with exact distances, {self.ground}: median error "
            f"{_percent(self.median_error)}, 90% of pairs within {_percent(self.error_90)}; "
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
    """Calibrate distances of a model to real units with exact distances of some pairs; needs the extra ``exact``.

    Parameters
    ----------
    model
        A `DiffusionEMD`, fitted or not; it is not changed. The search starts from its weights.
    mu
        Measures ``(n_measures, n_points)`` from which the pairs are chosen.
    points
        Coordinates ``(n_points, n_dimensions)``; not needed if ``ground`` is a matrix.
    ground
        Cost of moving a unit of mass. ``"euclidean"``: the straight-line distance between points. Another metric of
        `Graph.from_points` by its name, such as ``"cosine"``. ``"geodesic"``: the length of the shortest path along the
        edges of the graph, where an edge is as long as the straight line between its ends. Or a matrix of costs
        ``(n_points, n_points)``: symmetric, non-negative, with a zero diagonal.
    n_pairs
        Number of pairs whose exact distances are computed. The chosen pairs are near and far pairs of as many different
        measures as possible.
    random_state
        Seed for drawing the pairs and, from measures with more than 1,000 points (200 for shortest paths), the points.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.
    progress
        Receives the progress of the stage "calibrate units", in pairs.

    Returns
    -------
    Calibration
        The curve, the estimated errors, and the model whose distances have a unit.

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
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError(
            f"{argument('model')} to be a DiffusionEMD", type(model).__name__, "for a Comparison, pass comparison.model"
        )
    model.check_parameters()
    base = model
    n_threads, rng = check_threads(n_jobs), check_random_state(random_state)
    graph = base.graph if base.graph is not None else getattr(base, "graph_", None)
    n_points = None if graph is None else graph.n_points
    masses = masses_on_supports(mu, n_points=n_points, normalize=base.normalize)
    costs = _check_ground(ground, points, masses.shape[1])
    if not hasattr(base, "prepared_"):
        base = clone(base).fit(masses)
    fewest = max(FEWEST, 2 * base.n_scales_)
    if check_integer("n_pairs", n_pairs, minimum=1) < fewest:
        raise InvalidInputError(
            f"{argument('n_pairs')} of at least {fewest} (the larger of {FEWEST} and two per scale)",
            f"{n_pairs}",
            "64 pairs are enough for most data",
        )
    pairs = _choose_pairs(base, masses, n_pairs, rng)
    largest = LARGEST_GEODESIC if isinstance(ground, str) and ground == "geodesic" else LARGEST
    progress.stage("calibrate units", len(pairs))
    solved = _solve_pairs(base.graph_, masses, pairs, costs, largest, rng, n_threads, progress)
    if solved.exact.size < fewest:
        raise InvalidInputError(
            f"at least {counted(fewest, 'pair')} of measures with a positive exact distance",
            f"{solved.exact.size} of {len(pairs)}",
            "zero costs between different points carry no information",
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


# --- input checks

Costs: TypeAlias = Callable[[Graph, sp.csr_array, Int64], GroundCosts]


def _check_ground(ground: Ground, points: npt.ArrayLike | None, n_points: int) -> Costs:
    """Return the function that computes costs between the points of pairs of measures."""
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
            f"{argument('points')} (n_points, n_dimensions), which define the unit",
            "none",
            f"pass {argument('points')}, or pass costs as {argument('ground')}",
        )
    places = np.asarray(check_matrix("points", points), dtype=np.float64)
    if len(places) != n_points:
        raise InvalidInputError(
            f"{argument('points')} of shape ({n_points}, n_dimensions), one point for each column of the measures",
            f"shape {places.shape}",
        )
    if ground == "geodesic":
        return lambda graph, masses, pairs: _geodesic_costs(graph, places, masses, pairs)
    metric = METRICS[known]
    placed = metric.place(places)
    return lambda _graph, _masses, _pairs: lambda rows, columns: metric.between(placed[rows], placed[columns])


def _check_costs(ground: npt.ArrayLike, n_points: int) -> Float64:
    costs = check_costs("ground", ground, (n_points, n_points), "give the cost of every pair")
    largest = float(costs.max())
    # A metric such as the angle may give 3e-8 instead of 0, because the inner product of equal unit vectors is rounded.
    if np.abs(costs.diagonal()).max() > 1e-6 * largest:
        raise InvalidInputError(
            "costs with a zero diagonal", f"up to {costs.diagonal().max():g}", "mass that does not move costs nothing"
        )
    for start in range(0, n_points, SOURCES):  # in strips, because there may be no memory for a second matrix
        apart = float(np.abs(costs[start : start + SOURCES] - costs[:, start : start + SOURCES].T).max())
        if apart > 1e-6 * largest:
            raise InvalidInputError(
                "symmetric costs",
                f"costs of the two directions that differ by up to {apart:g}",
                "use (cost + cost.T) / 2 if that is meant",
            )
    return costs


# --- pairs and their exact distances


def _choose_pairs(base: DiffusionEMD, masses: sp.csr_array, n_pairs: int, rng: np.random.Generator) -> Int64:
    """Return pairs ``(n_pairs, 2)``, half of them evenly spaced in uncalibrated distance, the others in its rank."""
    count = masses.shape[0]
    if count * (count - 1) // 2 < n_pairs:
        fewest = next(m for m in range(count, 2 * n_pairs + 2) if m * (m - 1) // 2 >= n_pairs)
        raise InvalidInputError(
            f"at least {counted(fewest, 'measure')}, because {argument('n_pairs', n_pairs)} needs {n_pairs} different "
            "pairs",
            f"{count}",
            f"lower {argument('n_pairs')}, or split measures into halves",
        )
    room = base.prepared_.measures_within(MEMORY, check_threads(base.n_jobs))
    kept = np.sort(rng.permutation(count)[: max(min(CANDIDATES, room), 2)])
    distances = np.asarray(pairwise_distances(base.transform(masses[kept]), n_jobs=base.n_jobs), dtype=np.float64)
    first, second = np.triu_indices(len(kept), 1)
    values = distances[first, second]
    order = np.argsort(values, kind="stable")
    # Smaller distances are rounding errors of float32.
    order = order[values[order] > 1e-6 * values.max(initial=0.0)]
    if order.size < n_pairs:
        raise InvalidInputError(
            f"at least {counted(n_pairs, 'pair')} of different measures",
            "identical measures" if order.size == 0 else counted(order.size, "such pair"),
            f"lower {argument('n_pairs')}, or remove duplicates" if order.size else "",
        )
    chosen = _spread(values, order, np.column_stack([first, second]), n_pairs, rng)
    return np.asarray(np.column_stack([kept[first[chosen]], kept[second[chosen]]]), dtype=np.int64)


def _spread(values: Float64, order: IntArray, ends: IntArray, n_pairs: int, rng: np.random.Generator) -> list[int]:
    """Choose one pair per stratum, preferring measures that occur in the fewest chosen pairs."""
    by_rank = n_pairs // 2
    cuts = np.linspace(0, order.size, by_rank + 1).astype(int)
    steps = np.linspace(values[order[0]], values[order[-1]], n_pairs - by_rank + 1)[1:-1]
    strata = np.split(order, cuts[1:-1]) + np.split(order, np.searchsorted(values[order], steps))
    times, chosen = np.zeros(int(ends.max()) + 1), dict[int, None]()
    # For every empty stratum, a pair is drawn from all pairs.
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
class _ExactPairs:
    """Pairs with positive exact distances, and the measures from which these distances were computed.

    Attributes
    ----------
    pairs
        ``(n_pairs, 2)``: the pairs as row indices of all measures.
    rows
        ``(n_pairs, 2)``: the pairs as row indices of ``masses``.
    exact
        ``(n_pairs,)``: exact distances.
    masses
        The measures of the pairs; large measures are reduced to randomly drawn points.
    n_drawn
        Number of reduced measures.
    bias
        Relative bias of the exact distances that the reduction to drawn points causes.
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
) -> _ExactPairs:
    used, places = np.unique(pairs, return_inverse=True)
    rows = np.asarray(places, dtype=np.int64).reshape(pairs.shape)
    whole = sp.csr_array(masses[used])

    def solve(measures: sp.csr_array, which: Int64, progress: Progress = SILENT) -> Float64:
        pair_list = [(int(i), int(j)) for i, j in which]
        between = costs(graph, measures, which)

        def costs_and_progress(rows: IntArray, columns: IntArray) -> Float64:
            progress.advance()
            return between(rows, columns)

        return exact_pairs(measures, pair_list, costs_and_progress, n_threads=n_threads)

    drawn = _drawn(whole, largest, rng)
    exact = solve(drawn, rows, progress)
    positive = exact > 0
    reduced = np.diff(whole.indptr) > largest
    touched = np.flatnonzero(reduced[rows].any(axis=1) & positive)
    some = touched[:: max(-(-touched.size // DOUBLED), 1)]
    bias = 0.0
    if some.size:
        double = solve(_drawn(whole, 2 * largest, rng), rows[some])
        bias = float(np.median(exact[some] / np.maximum(double, 1e-3 * exact[some]) - 1))
    return _ExactPairs(pairs[positive], rows[positive], exact[positive], drawn, int(np.count_nonzero(reduced)), bias)


def _drawn(masses: sp.csr_array, largest: int, rng: np.random.Generator) -> sp.csr_array:
    """Reduce measures with more than ``largest`` points to ``largest`` equal masses, by systematic sampling."""
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
    """Return lengths of shortest paths, computed only between the points of pairs of measures."""
    from scipy.sparse.csgraph import dijkstra

    supports = np.split(masses.indices, masses.indptr[1:-1])
    # An edge is as long as the straight line between its ends. SciPy would ignore an edge of length zero.
    affinity, ends = graph.node_affinity.tocoo(), places[graph.first]
    straight = np.linalg.norm(ends[affinity.row] - ends[affinity.col], axis=1)
    straight = np.maximum(straight, np.finfo(np.float64).tiny)
    lengths = sp.csr_array((straight, (affinity.row, affinity.col)), shape=affinity.shape)
    node = np.arange(graph.n_points) if graph.place is None else graph.place
    advice = f"{in_python('see graph.diagnose(); ')}use more neighbors, or {argument('ground', 'euclidean')}"
    known: dict[tuple[bytes, bytes], Float64] = {}
    for source in np.unique(pairs[:, 0]):
        starts, partners = node[supports[source]], pairs[pairs[:, 0] == source, 1]
        blocks: list[list[Float64]] = [[] for _ in partners]
        for begin in range(0, starts.size, SOURCES):
            paths = dijkstra(lengths, directed=True, indices=starts[begin : begin + SOURCES])
            for block, partner in zip(blocks, partners, strict=True):
                block.append(paths[:, node[supports[partner]]])
        for block, partner in zip(blocks, partners, strict=True):
            known[supports[source].tobytes(), supports[partner].tobytes()] = check_paths(np.vstack(block), advice)
    return lambda rows, columns: known[rows.tobytes(), columns.tobytes()]


# --- contribution of each scale to each pair


@final
@dataclass(frozen=True, eq=False)
class _Start:
    """Starting point of a fit: largest scale, weights of the input model, and distances of all pairs in each block.

    Attributes
    ----------
    max_scale
        Largest scale K.
    weights
        ``(n_scales,)``: weights that the input model has with this K; the last weight belongs to K.
    design
        ``(n_pairs, n_scales)``: unweighted L1 distance of each pair in each block.
    """

    max_scale: int
    weights: Float64
    design: Float64

    def distances(self, weights: Float64, rows: Any = slice(None)) -> Float64:
        return np.asarray(self.design[rows] @ weights)


def _starts(base: DiffusionEMD, masses: sp.csr_array, pairs: Int64, n_threads: int) -> list[_Start]:
    """Return a starting point for each largest scale to try; one diffusion is enough for ``norm="levels"``."""
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
    # The blocks of the other norms depend on the coarsest scale, so every K has its own blocks. Scales coarser than the
    # model's own are not tried, because the precision of the model may not suffice.
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
    """Return the first of ``tops`` that can be computed, and the L1 norm of every block for every pair."""
    settings = {"n_scales": None, "compress": False if base.compress_ is None else base.compress_}
    for top in tops:
        wide: DiffusionEMD = clone(base).set_params(
            graph=base.graph_, max_scale=top, weights=np.ones(top + 1), **settings
        )
        try:
            prepared = _fit_again(wide, masses).prepared_
            break
        except InvalidInputError:
            # The model's precision may not suffice for coarser scales than its own.
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
    """Weights of the blocks, scaled to real units, and the curve from the weighted distances to exact distances."""

    start: _Start
    shrinkage: float
    weights: Float64
    curve: Curve


def _fit(start: _Start, shrinkage: float, exact: Float64, rows: Any = slice(None)) -> _FittedWeights:
    """Fit the curve, then fit weights to exact distances mapped back through the curve, then fit the curve again."""
    design, weights = start.design[rows], start.weights
    curve = _fit_curve(design @ weights, exact)
    if np.isfinite(shrinkage):
        # One round is enough: a second round took 50% more time and changed the errors by 1% of their size.
        weights = _fit_weights(design, start.weights, curve.inverse(exact), shrinkage)
        curve = _fit_curve(design @ weights, exact)
    unit = float(np.median(exact / (design @ weights)))
    return _FittedWeights(start, shrinkage, weights * unit, Curve(curve.knots * unit, curve.values))


def _fit_weights(design: Float64, start: Float64, target: Float64, shrinkage: float) -> Float64:
    """Return the non-negative weights with the smallest relative squared error, shrunk toward their starting values."""
    n_pairs, n_scales = design.shape
    pull = np.sqrt(shrinkage / n_scales)
    relative = design * start / (target[:, None] * np.sqrt(n_pairs))
    matrix = np.vstack([relative, pull * np.eye(n_scales)])
    weights = _non_negative(matrix, np.append(np.full(n_pairs, 1 / np.sqrt(n_pairs)), np.full(n_scales, pull))) * start
    # Keep the starting weights if a pair would have distance zero because it differs only at scales of zero weight.
    return weights if np.all(design @ weights > 0) else start


def _fit_curve(distances: Float64, exact: Float64) -> Curve:
    """Return the increasing curve with the smallest relative squared error and a penalty on changes of the slope."""
    # Interpolation takes a tenth of the time of np.quantile, and thousands of curves are fitted.
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
    """Return the fit to the pairs ``rows`` whose choice of largest scale and shrinkage best predicts held-out pairs.

    The score is the geometric mean of the mean relative error and of one minus the rank correlation. Fits with a lower
    rank correlation than the input model are ranked last.
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
            # Fits with a lower rank correlation than the input model come last, sorted by their rank correlation.
            score = np.sqrt(error * max(order, 0.0)) if order <= own_order * (1 + 1e-9) else 1e6 + order
            if score < least:
                best, least = (start, shrinkage), score
    return _fit(*best, truth, kept)


def _cross_validate(starts: Sequence[_Start], own: _Start, exact: Float64) -> tuple[Float64, Float64]:
    """Return the cross-validated predictions for the pairs with and without the curve, ``(n_pairs,)`` each."""
    predicted, linear = np.empty(exact.size), np.empty(exact.size)
    for train, test in _folds(exact):
        fit = _choose(starts, own, exact, train)
        linear[test] = fit.start.distances(fit.weights, test)
        predicted[test] = fit.curve(linear[test])
    return predicted, linear


def _folds(exact: Float64) -> list[tuple[IntArray, IntArray]]:
    """Return the pairs to fit and the pairs to predict of each fold; every fold has near and far pairs."""
    fold = np.empty(exact.size, dtype=np.intp)
    fold[np.argsort(exact, kind="stable")] = np.arange(exact.size) % FOLDS
    return [(np.flatnonzero(fold != part), np.flatnonzero(fold == part)) for part in range(FOLDS)]


def _rank_correlation(a: Float64, b: Float64) -> float:
    """Return Spearman's correlation; 0 if either argument is constant."""
    first, second = centered_ranks(a[None])[0], centered_ranks(b[None])[0]
    norm = np.sqrt((first @ first) * (second @ second))
    return float(first @ second / norm) if norm > 0 else 0.0


def _fitted_model(base: DiffusionEMD, fit: _FittedWeights, masses: sp.csr_array) -> DiffusionEMD:
    """Return the model with the fitted weights; scales of zero weight at either end are dropped."""
    weights, top = fit.weights, fit.start.max_scale
    positive = np.flatnonzero(weights)
    if base.norm == "levels":  # blocks of other norms depend on the coarsest scale, whatever its weight
        top -= weights.size - 1 - int(positive[-1])
        weights = weights[: positive[-1] + 1]
    # A scale of zero weight between other scales would give a block of zeros, in which noise and signal cannot be
    # distinguished.
    weights = np.where(weights > 0, weights, NEXT_TO_NOTHING * weights.max())
    settings: dict[str, Any] = {"graph": base.graph_, "max_scale": top, "n_scales": None}
    model: DiffusionEMD = clone(base).set_params(**settings, weights=tuple(weights[positive[0] :].tolist()))
    return _fit_again(model, masses)


def _fit_again(model: DiffusionEMD, masses: sp.csr_array) -> DiffusionEMD:
    """Fit a model with other weights, without repeating the warnings of the first fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        warnings.simplefilter("ignore", EmbeddingWarning)
        return model.fit(masses)
