"""Compute distances between samples from points; for users, `study`, `atlas`, front ends; writes CSV and reports."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from sklearn.base import clone

from heatmover._base.handed import handed
from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Bool, Float64, FloatArray, Int64
from heatmover._base.validation import (
    LabelNames,
    as_array,
    check_at_most,
    check_integer,
    check_matrix,
    check_option,
    check_random_state,
    check_threads,
    import_extra,
    in_order,
)
from heatmover._base.words import counted
from heatmover.cohort.subsample import (
    EqualDraw,
    cell_hashes,
    check_equal_cells,
    equal_count,
    hash_seed,
    sample_salt,
    smallest,
)
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, argument, the_argument
from heatmover.graphs import Diagnosis, Graph, Landmarks
from heatmover.graphs.centers import ITERATIONS, draw_by_mass
from heatmover.graphs.distinct import distinct_points, gather_masses
from heatmover.graphs.landmarks import find_landmarks
from heatmover.measures import Measures, is_missing, measures_from_labels, measures_from_weights
from heatmover.statistics.manifold import classical_scaling
from heatmover.statistics.metrics import spearman
from heatmover.statistics.noise import Uncertainty, assess, check_cells
from heatmover.statistics.tests import Separation, separate
from heatmover.study.parameters import BIASES, UNITS, Units, check_landmarks
from heatmover.study.tables import write_table
from heatmover.transport.calibration import FEWEST, Calibration, calibrate

# Number of points above which landmarks are used, and number of landmarks. On flow cytometry (15 samples, 2 shared
# cores), a comparison took 9 s for 50,000 points, and 60 s and 0.9 GB for 150,000 points. With 4,000 landmarks, a
# comparison took 5 s, plus 2 s to measure the agreement of the landmarks.
LANDMARKS_ABOVE = 100_000
LANDMARKS = 4_000
# Smallest number of points per sample to measure the agreement of landmarks. With fewer points, distances are mostly
# sampling noise.
LEAST_PER_SAMPLE = 50
# Largest number of sample pairs whose exact distance is computed, as by default in `calibrate`.
PAIRS = 64
# Largest number of samples for which the distances of all pairs are computed; the distances then take 3 GB.
MOST_SAMPLES = 20_000
NEAREST_INSTEAD = (
    "in Python, embed the samples with DiffusionEMD(graph).fit_transform, and find nearest samples with hm.nearest"
)
# Masses of the points of a sample count as equal if their relative difference is at most this rounding error.
ALIKE = 1e-9
# Number of columns to sort at a time; sorting all columns would copy a large embedding.
COLUMNS_AT_ONCE = 4_096

Groups = Sequence[object] | npt.NDArray[Any] | Mapping[str, object]


def check_units(units: object) -> None:
    """Raise if ``units`` is invalid, or if units are requested but the exact solver (POT) is not installed."""
    if units is not None:
        check_option("units", units, UNITS)
        # Packages that POT imports may print to standard output, which is reserved for the results of a command.
        with redirect_stdout(io.StringIO()):
            import_extra("ot", package="POT", extra="exact")


def check_enough_samples(n_samples: int, n_scales: int = 1) -> int:
    """Return the number of pairs whose exact distance is computed; raise if samples are too few to calibrate units.

    Parameters
    ----------
    n_samples
        Number of samples to compare.
    n_scales
        Number of scales of the model; each scale needs two pairs. The default 1 is for checks before the scales are
        chosen.
    """
    fewest, n_pairs = max(FEWEST, 2 * n_scales), n_samples * (n_samples - 1) // 2
    if n_pairs < fewest:
        least = next(m for m in range(2, 2 * fewest) if m * (m - 1) // 2 >= fewest)
        raise InvalidInputError(
            f"at least {counted(least, 'sample')} for {the_argument('units')}, which needs the exact distances of at "
            f"least {counted(fewest, 'pair')}",
            f"{n_samples}",
            f"leave out {the_argument('units')}",
        )
    return min(PAIRS, n_pairs)


class Intervals(NamedTuple):
    """Pointwise confidence intervals of the distances of all pairs.

    Attributes
    ----------
    lower, upper
        ``(n_samples, n_samples)``: bounds of the interval of each distance.
    distinguishable
        ``(n_samples, n_samples)``: whether a pair is distinguishable, False on the diagonal.
    confidence
        Confidence level of each interval, such as 0.95.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(6, points_per_measure=40)
    >>> intervals = hm.compare(data.points, data.labels, n_neighbors=10, n_bootstrap=50).intervals
    >>> bool((intervals.lower <= intervals.upper).all()), intervals.confidence
    (True, 0.95)
    """

    lower: Float64
    upper: Float64
    distinguishable: Bool
    confidence: float


@final
@dataclass(frozen=True)
class LandmarkAgreement:
    """Agreement between distances computed with landmarks and distances on a graph over points; ``print`` shows it.

    Attributes
    ----------
    spearman
        Rank correlation between the two kinds of distances: computed for the distances of each sample to all others,
        then averaged over samples (`metrics.spearman`). NaN for two samples, because a single distance has no rank.
    unexplained
        Mean squared distance of a point from its landmark, divided by the variance of the points.
    n_points, n_samples
        Number of points and number of samples that were compared.
    n_landmarks
        Number of landmarks.

    Examples
    --------
    >>> print(LandmarkAgreement(spearman=0.987, unexplained=0.04, n_points=10000, n_samples=48, n_landmarks=2000))
    Spearman 0.987 between distances of 48 samples on a graph over 2,000 landmarks and on a graph over 10,000 points
    """

    spearman: float
    unexplained: float
    n_points: int
    n_samples: int
    n_landmarks: int

    def describe(self) -> str:
        """Describe the agreement in a few words."""
        agreement = f"Spearman {self.spearman:.3f} with distances on {counted(self.n_points, 'point')}"
        return f"approximated by {counted(self.n_landmarks, 'landmark')}, {agreement}"

    def __str__(self) -> str:
        return (
            f"Spearman {self.spearman:.3f} between distances of {counted(self.n_samples, 'sample')} on a graph over "
            f"{counted(self.n_landmarks, 'landmark')} and on a graph over {counted(self.n_points, 'point')}"
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ReadOnlyArrays):
    """Distances between samples, with embedding, graph and model; `compare` returns one.

    Attributes
    ----------
    names
        Name of each sample; all rows and columns below are in this order.
    sizes
        ``(n_samples,)``: number of points of each sample.
    distances
        ``(n_samples, n_samples)``, float64, symmetric, zero on the diagonal. Without ``calibration`` the unit is
        arbitrary, so that only ratios of distances are meaningful.
    embedding
        ``(n_samples, n_features)``: the L1 distance between two rows is the distance between the samples. With
        ``calibration``, an increasing curve additionally converts L1 distances to ``distances``.
    graph
        The graph over the points, or over the landmarks.
    model
        The fitted `DiffusionEMD`, which can embed further samples; the attributes of the model state its scales and
        weights.
    landmarks, landmark_agreement
        The landmarks that approximate the points, and their agreement with the points; None without landmarks.
    bias
        ``"raw"``: distances are not corrected. ``"corrected"``: small-sample bias was removed from distances and
        embedding.
    uncertainty
        Sampling noise in the unit of the embedding; None if noise was not assessed. `intervals` and `noise_floor` are
        in the unit of the distances.
    measures
        The samples as masses over the points of the graph, ``(n_samples, n_points)``.
    drawn
        Random draw of the same number of cells from every sample; None if all cells are used.
    calibration
        Conversion of the distances to real units: pairs with their exact distances, errors and curve; None without
        units.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=50, effect=4.0)
    >>> result = hm.compare(data.points, data.labels)
    >>> result
    Comparison(12 samples of 50 points; distances ... to ...; scales up to 2^... steps)
    >>> distances, indices = result.nearest(3)
    >>> [result.names[i] for i in indices[0]]
    ['case-...', ...]
    >>> result.separation(data.annotations["condition"]).agreement > 0.8
    True
    """

    names: tuple[str, ...]
    sizes: Int64
    distances: Float64
    embedding: FloatArray
    graph: Graph
    model: DiffusionEMD
    measures: Measures
    landmarks: Landmarks | None = None
    landmark_agreement: LandmarkAgreement | None = None
    bias: str = "raw"
    uncertainty: Uncertainty | None = None
    drawn: EqualDraw | None = None
    calibration: Calibration | None = None

    @property
    def intervals(self) -> Intervals | None:
        """Return the interval of every distance, in the unit of the distances; None without bootstrap replicates."""
        noise = self.uncertainty
        if noise is None or noise.lower is None or noise.upper is None:
            return None
        return Intervals(
            self._in_units(noise.lower), self._in_units(noise.upper), noise.distinguishable, noise.confidence
        )

    def noise_floor(self, n_cells: float, other: float | None = None) -> float:
        """Return the expected distance between two samples from one distribution, due to sampling noise alone.

        Parameters
        ----------
        n_cells, other
            Numbers of cells of the two samples; ``other`` defaults to ``n_cells``.
        """
        if self.uncertainty is None:
            raise InvalidInputError(
                "a comparison that assessed sampling noise",
                "that this comparison did not",
                f"compare with {argument('n_bootstrap', 200)} or {argument('bias', 'corrected')}",
            )
        return float(self._in_units(np.array(self.uncertainty.noise_floor(n_cells, other))))

    def unit_factor(self, distance: float) -> float:
        """Return the factor that converts contributions from the unit of the embedding to the unit of ``distances``."""
        if self.calibration is None or not distance > 0:
            return 1.0
        return float(self._in_units(np.array(distance))) / distance

    def _in_units(self, distances: Float64) -> Float64:
        return distances if self.calibration is None else self.calibration.distances(distances)

    @property
    def test_distances(self) -> Float64:
        """Return distances for permutation tests, ``(n_samples, n_samples)``.

        If distances are corrected, the samples are first scaled to equal variance, so that tests do not depend on the
        numbers of cells.
        """
        corrected = self.bias == "corrected" and self.uncertainty is not None
        return self.uncertainty.test_distances if corrected else self.distances  # type: ignore[union-attr]

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Return the diagnosis of the graph, with advice; it is computed at the first access."""
        return self.graph.diagnose(steps=2**self.model.max_scale_)

    @cached_property
    def scale_shares(self) -> Float64:
        """Return the contribution of each scale to the mean distance, ``(n_scales,)``, finest first."""
        edges = np.cumsum([0, *self.model.n_regions_])
        sums = np.array([_sum_of_distances(self.embedding[:, low:high]) for low, high in pairwise(edges)])
        return sums / (sums.sum() or 1.0)

    @property
    def max_scale_reason(self) -> str:
        """Return the reason why the model chose its largest scale."""
        calibration = self.calibration
        return (
            self.model.max_scale_reason_
            if calibration is None
            else f"this value fits the exact distances of {counted(len(calibration.pairs), 'pair')} best"
        )

    def nearest(self, k: int = 10) -> tuple[Float64, Int64]:
        """Return the k nearest samples of each sample.

        Parameters
        ----------
        k
            Number of neighbors, at most ``n_samples - 1``, because a sample is not its own neighbor.

        Returns
        -------
        distances : ndarray of shape (n_samples, k)
            Distances to the nearest samples, ascending in each row.
        indices : ndarray of shape (n_samples, k)
            Indices of the nearest samples in ``names``. Among equal distances, the smaller index comes first.
        """
        n_samples = len(self.names)
        k = check_at_most("k", k, n_samples - 1, f"there are {counted(n_samples, 'sample')}")
        candidates = self.distances.copy()
        np.fill_diagonal(candidates, np.inf)
        # For k = 1, skip sorting, which takes long for thousands of samples.
        order = candidates.argmin(axis=1)[:, None] if k == 1 else np.argsort(candidates, axis=1, kind="stable")
        indices = order[:, :k]
        return np.take_along_axis(candidates, indices, axis=1), indices

    def coordinates(self, n: int = 2) -> Float64:
        """Return a map of the samples: classical multidimensional scaling of the distances.

        The axes are centered at zero and sorted by decreasing variance. The sign of each axis is chosen so that
        the coordinate of largest magnitude is positive.

        Parameters
        ----------
        n
            Number of axes; at most ``n_samples - 1``.

        Returns
        -------
        ndarray of shape (n_samples, n)
            Coordinates in the unit of the distances; axes without variance are zero.
        """
        n_samples = len(self.names)
        n = check_at_most("n", n, n_samples - 1, f"there are {counted(n_samples, 'sample')}")
        return classical_scaling(self.distances, n)[0]

    def separation(self, groups: Groups) -> Separation:
        """Describe how well a grouping of the samples explains the distances.

        This is not a test: with few samples, a difference may well arise by chance.

        Parameters
        ----------
        groups
            ``(n_samples,)``: the group of each sample in the order of ``names``, or a mapping (or pandas Series) from
            names to groups. There must be at least two groups, and at least one group must have two or more samples.
        """
        values = as_array("groups", in_order(groups, self.names, "groups"), dtype=object)
        missing = [name for name, value in zip(self.names, values, strict=True) if is_missing(value)]
        if missing:
            raise InvalidInputError("a group for every sample", f"none for {', '.join(map(repr, missing[:5]))}")
        codes = np.unique(LabelNames("groups").add_all(values), return_inverse=True)[1]
        return separate(self.distances, codes)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the distances as CSV, with names in the first row and the first column.

        Numbers are written with all digits. An apostrophe is written before a name that a spreadsheet would read as a
        formula; `heatmover.study.tables.plain_text` removes the apostrophe. The file is written atomically.

        Parameters
        ----------
        path
            Path of the file; an existing file is replaced.
        """
        rows = ([name, *row.tolist()] for name, row in zip(self.names, self.distances, strict=True))
        write_table(path, ["sample", *self.names], rows)

    def intervals_to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the confidence interval of every distance as CSV: one row for each pair, with all digits.

        The columns are named sample, other, distance, lower, upper and distinguishable (true or false). Names are
        written as in `to_csv`.

        Parameters
        ----------
        path
            Path of the file; an existing file is replaced.
        """
        intervals = self.intervals
        if intervals is None:
            raise InvalidInputError("intervals", "none", f"compare with {argument('n_bootstrap', 200)}")
        first, second = np.triu_indices(len(self.names), 1)
        columns = [values[first, second].tolist() for values in (self.distances, intervals.lower, intervals.upper)]
        apart = ["true" if each else "false" for each in intervals.distinguishable[first, second].tolist()]
        names = ([self.names[i] for i in places] for places in (first.tolist(), second.tolist()))
        header = ["sample", "other", "distance", "lower", "upper", "distinguishable"]
        write_table(path, header, zip(*names, *columns, apart, strict=True))

    def plot(self, groups: Groups | None = None, ax: Any = None) -> Any:
        """Draw the map of the samples; needs matplotlib (extra ``cohort``).

        A thin line joins each sample with its nearest sample, because two dimensions may show near samples far apart.

        Parameters
        ----------
        groups
            Group of each sample, as in `separation`, shown by color and shape; samples without a group are gray. Or a
            number for each sample, shown by color with a color bar.
        ax
            Matplotlib axes to draw into. None: new axes.

        Returns
        -------
        matplotlib.axes.Axes
            Axes with the map.
        """
        from heatmover.study.drawing.map import SampleMap, axis_labels
        from heatmover.study.drawing.style import new_axes, read_variable

        variable = None if groups is None else read_variable(groups, self.names)
        coordinates, shares = classical_scaling(self.distances, 2)
        sample_map = SampleMap(self.names, coordinates, axis_labels("mds", shares), self.nearest(1)[1][:, 0], variable)
        return sample_map.draw(new_axes() if ax is None else ax)

    def report(
        self,
        path: str | os.PathLike[str],
        variables: Mapping[str, Any] | Any | None = None,
        *,
        blocks: Sequence[object] | None = None,
        cells: Mapping[str, Any] | Any | None = None,
        title: str | None = None,
        extra_sections: Sequence[Any] = (),
        n_permutations: int = 999,
        random_state: int = 0,
    ) -> Any:
        """Test sample metadata and write a report: one HTML page that opens offline in any browser.

        This method needs plotly and jinja2 (extra ``cohort``).

        Parameters
        ----------
        path
            Path of the page; an existing file is replaced atomically.
        variables
            Values ``(n_samples,)`` by name, in the order of ``names``: a mapping, or a DataFrame (aligned by its index,
            if the index holds the names). The most important variable comes first.
        blocks
            Block of each sample, ``(n_samples,)``: samples with equal values are dependent, such as samples of one
            patient, batch or pair.
        cells
            Cell type of each point of the graph, ``(n_points,)``, to find the cell types that differ; see
            `heatmover.study_comparison`.
        title, extra_sections
            Heading of the page, and further sections; see `heatmover.report.render`.
        n_permutations, random_state
            Number of permutations of every test, and seed of the permutations.

        Returns
        -------
        heatmover.study.Study
            The study that the report shows.
        """
        return handed("report_comparison")(
            self, path, variables, blocks=blocks, cells=cells, title=title, extra_sections=extra_sections,
            n_permutations=n_permutations, random_state=random_state,
        )  # fmt: skip

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        size = f"{low}" if low == high else f"{low} to {high}"
        agreement = "" if self.landmark_agreement is None else f"; {self.landmark_agreement.describe()}"
        apart = self.distances[np.triu_indices(len(self.names), 1)]
        return (
            f"Comparison({counted(len(self.names), 'sample')} of {size} points; distances {apart.min():.3g} to "
            f"{apart.max():.3g}; scales up to 2^{self.model.max_scale_} steps{agreement})"
        )


def compare(
    points: npt.ArrayLike | Graph,
    labels: npt.ArrayLike | Measures,
    *,
    n_neighbors: int = 30,
    landmarks: int | Literal["auto"] | None = "auto",
    model: DiffusionEMD | None = None,
    equal_cells: bool | int = False,
    bias: Literal["raw", "corrected"] = "raw",
    n_bootstrap: int = 0,
    units: Units = None,
    random_state: int | None = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compute the distances between all samples, from points and the sample of each point.

    The points become the nodes of a nearest-neighbor graph, and each sample becomes a measure on the graph. The
    measures are embedded and compared, with the defaults of `Graph.from_points` and `DiffusionEMD`.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite; or an existing `Graph` over the points.
    labels
        ``(n_points,)``: sample of each point; or `Measures`, to name or select samples, or to weight their points. At
        least two samples.
    n_neighbors
        Number of neighbors of each point in the graph; a given `Graph` is not changed.
    landmarks
        Number of landmarks (centers of k-means) that approximate the points; see `Landmarks`. None for no landmarks.
        ``"auto"``: 4,000 for more than 100,000 points, otherwise none. The attribute ``landmark_agreement`` of the
        result reports the loss of accuracy.
    model
        A `DiffusionEMD` without a graph, to change its settings. The model is copied and stays unfitted.
    equal_cells
        Number of points to draw from every sample, without replacement; True for the size of the smallest sample.
        Samples of equal size have equal noise, so drawing removes the effect of unequal sizes exactly, at the cost of
        discarded points. Discarded points are used only as nodes of a given `Graph`.
    bias
        ``"raw"``: keep small-sample bias, which makes samples of few cells distant from all others. ``"corrected"``:
        remove the bias (see `heatmover.uncertainty`); all cells of a sample must have equal weight.
    n_bootstrap
        Number of bootstrap replicates for confidence intervals, in ``intervals`` of the result; 0 for no intervals.
    units
        ``"euclidean"`` or ``"geodesic"``: return distances in the unit of the points, with mass moved along straight
        lines or along paths in the graph. The exact distances of up to 64 pairs of samples are computed (see
        `heatmover.calibrate`), which needs points and the extra ``exact`` (POT). None: the unit is arbitrary.
    random_state
        Seed of the draw, of the search for neighbors and, unless ``model`` is given, of the choice of scales.
    n_jobs
        Number of threads; None for the setting of ``model``, whose default is all cores. Results do not depend on this
        number.
    progress
        Receives the stages "find neighbors", "choose scales", "diffuse measures" and "compare". Landmarks add "find
        landmarks" and "measure the agreement", units add "calibrate units", and ``bias`` or ``n_bootstrap`` add "assess
        noise".

    Returns
    -------
    Comparison
        Distances, embedding, graph and fitted model, with methods that find nearest samples, draw a map and write CSV.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(6, points_per_measure=40)
    >>> result = hm.compare(data.points, data.labels, n_neighbors=10)
    >>> result.names, result.distances.shape
    (('0', '1', '2', '3', '4', '5'), (6, 6))

    Pass a graph and a model to change other settings:

    >>> graph = hm.Graph.from_points(data.points, n_neighbors=10, kernel="adaptive")
    >>> hm.compare(graph, data.labels, model=hm.DiffusionEMD(max_scale=6)).model.max_scale_
    6
    """
    check_option("bias", bias, BIASES)
    check_integer("n_bootstrap", n_bootstrap, minimum=0)
    wanted = check_equal_cells(equal_cells)
    check_units(units)
    measures = labels if isinstance(labels, Measures) else measures_from_labels(labels)
    if len(measures) < 2:
        raise InvalidInputError("at least two samples to compare", f"one, {measures.names[0]!r}")
    check_all_pairs(len(measures))
    places: Any = points if isinstance(points, Graph) else check_matrix("points", points)
    n_points = places.n_points if isinstance(places, Graph) else len(places)
    if n_points != measures.shape[1]:
        raise InvalidInputError(
            f"one label for each of the {counted(n_points, 'point')}", counted(measures.shape[1], "label")
        )
    copy = check_model(model, random_state=random_state, n_jobs=n_jobs)
    watcher = SILENT if progress is None else progress
    drawn = None
    if wanted is not False:
        places, measures, drawn = _draw_equally(places, measures, wanted, random_state)

    placed = place_landmarks(
        places, measures, landmarks, random_state=random_state, n_jobs=copy.n_jobs, progress=watcher
    )
    nodes, masses = (places, measures) if placed is None else (placed[0].centers, placed[1])
    return compare_nodes(
        nodes, masses, np.diff(measures.masses.indptr).astype(np.int64), copy,
        None if placed is None else Approximation(placed[0], places, measures),
        drawn=drawn, n_neighbors=n_neighbors, bias=bias, n_bootstrap=n_bootstrap, units=units,
        random_state=random_state, progress=watcher,
    )  # fmt: skip


class Approximation(NamedTuple):
    """Landmarks, and the points from which the agreement of landmarks is measured.

    Attributes
    ----------
    landmarks
        Landmarks whose centers are the nodes of the graph.
    points, measures
        Points ``(n_points, n_dimensions)`` that the landmarks approximate, and samples as masses over these points.
    """

    landmarks: Landmarks
    points: FloatArray
    measures: Measures


def compare_nodes(
    nodes: Any,
    measures: Measures,
    sizes: Int64,
    settings: DiffusionEMD,
    approximation: Approximation | None,
    *,
    drawn: EqualDraw | None,
    n_neighbors: int,
    bias: str,
    n_bootstrap: int,
    units: Units,
    random_state: int | None,
    progress: Progress,
) -> Comparison:
    """Compare samples over nodes: fit the model, embed, measure the agreement of landmarks, assess noise, compare.

    Parameters
    ----------
    nodes, measures, settings
        As in `fit_samples`.
    sizes
        ``(n_samples,)``: number of cells of each sample.
    approximation
        Landmarks and the points that they approximate; None if the nodes are the points themselves.
    drawn
        Random draw of the same number of cells from every sample; None if all cells are used.
    n_neighbors, bias, n_bootstrap, units, random_state, progress
        As in `compare`.
    """
    fitted = fit_samples(
        nodes, measures, settings, n_neighbors=n_neighbors, units=units, random_state=random_state, progress=progress
    )
    model, n_threads, noise, raw, agreement = fitted.model, check_threads(fitted.model.n_jobs), None, None, None
    embedding = model.prepared_.embed(fitted.rows, n_threads=n_threads, progress=progress)
    if approximation is not None:
        progress.stage("measure the agreement", 1)
        agreement = landmark_agreement(
            *approximation, graph=fitted.graph, model=fitted.fitted, random_state=random_state
        )
        progress.advance()
    if bias == "corrected" or n_bootstrap:
        progress.stage("assess noise", 1)
        if n_bootstrap:  # intervals are computed from raw distances
            raw = _distances(embedding, model)
        noise = assess(
            model, check_cells(measures, fitted.rows, sizes), raw,
            n_bootstrap=n_bootstrap, random_state=random_state, n_threads=n_threads,
        )  # fmt: skip
        if bias == "corrected":
            embedding = noise.correct(embedding)
        progress.advance()
    progress.stage("compare", 1)
    distances = raw if raw is not None and bias == "raw" else _distances(embedding, model)
    progress.advance()
    result = Comparison(
        measures.names, sizes, distances, embedding, fitted.graph, model, measures,
        None if approximation is None else approximation.landmarks, agreement, bias, noise, drawn,
    )  # fmt: skip
    return in_units(result, fitted.calibration)


class FittedSamples(NamedTuple):
    """A model fitted on samples.

    Attributes
    ----------
    graph
        Graph over the nodes.
    rows
        Masses of the samples on the nodes, ``(n_samples, n_nodes)``, the input of the embedding.
    fitted
        Fitted model with the scales and weights that it chose from the samples.
    model
        Model that embeds the samples: the calibrated model if units are requested, otherwise ``fitted``.
    calibration
        Calibration of the embedding to real units; None without units.
    """

    graph: Graph
    rows: Any
    fitted: DiffusionEMD
    model: DiffusionEMD
    calibration: Calibration | None


def fit_samples(
    nodes: Any,
    measures: Measures,
    settings: DiffusionEMD,
    *,
    n_neighbors: int,
    units: Units,
    random_state: int | None,
    progress: Progress,
) -> FittedSamples:
    """Build a graph over the nodes, choose the scales of a model, and calibrate the model if units are requested.

    Parameters
    ----------
    nodes
        ``(n_points, n_dimensions)``: points or landmarks; or a `Graph` over them.
    measures
        The samples, ``(n_samples, n_points)``.
    settings
        Unfitted model from `check_model`; this function fits it.
    n_neighbors, units, random_state, progress
        As in `compare`; the stages are "find neighbors", "choose scales" and "calibrate units".
    """
    if isinstance(nodes, Graph):
        graph = nodes
    else:
        progress.stage("find neighbors", 1)
        graph = Graph.from_points(nodes, n_neighbors, random_state=random_state, n_jobs=settings.n_jobs)
        progress.advance()
    progress.stage("choose scales", 1)
    fitted: DiffusionEMD = settings.set_params(graph=graph)
    rows = fitted.fit_masses(measures)
    progress.advance()
    if units is None:
        return FittedSamples(graph, rows, fitted, fitted, None)
    if isinstance(nodes, Graph):
        raise InvalidInputError(
            f"points for {argument('units', units)}, because units come from distances between points",
            "a Graph, which has affinities only",
            "give the points, or call hm.calibrate with costs",
        )
    n_pairs = check_enough_samples(len(measures), fitted.n_scales_)
    n_components = connected_components(graph.node_affinity, directed=False)[0] if units == "geodesic" else 1
    if n_components > 1:
        raise InvalidInputError(
            f"a connected graph for {argument('units', 'geodesic')}, because no path joins different components",
            counted(n_components, "component"),
            f"raise {argument('n_neighbors')}, remove outliers, or use {argument('units', 'euclidean')}",
        )
    calibration = calibrate(
        fitted, measures, nodes, ground=units, n_pairs=n_pairs, random_state=random_state, n_jobs=fitted.n_jobs,
        progress=progress,
    )  # fmt: skip
    return FittedSamples(graph, rows, fitted, calibration.model, calibration)


def _draw_equally(
    places: Any, measures: Measures, equal_cells: bool | int, random_state: int | None
) -> tuple[Any, Measures, EqualDraw]:
    """Draw the same number of points from every sample; return points or graph, measures over them, and the draw."""
    masses, seed = measures.masses, hash_seed(random_state)
    sizes = np.diff(masses.indptr).astype(np.int64)
    count = equal_count(equal_cells, sizes, measures.names, can_leave_out=False)
    values = places
    if isinstance(places, Graph):
        # The nodes of a graph are not numbered in the order of the points.
        order = np.arange(places.n_points) if places.place is None else places.place
        values = order.astype(np.float64)[:, None]
    columns = []
    for name, start, stop in zip(measures.names, masses.indptr[:-1], masses.indptr[1:], strict=True):
        weights, own = masses.data[start:stop], masses.indices[start:stop]
        if weights.max() > weights.min() * (1 + ALIKE):
            raise InvalidInputError(
                f"samples whose points have equal weight, as {argument('equal_cells')} requires",
                f"unequal weights in {name!r}",
                f"give labels, or leave {argument('equal_cells')} out",
            )
        salts = np.full(own.size, sample_salt(name), dtype=np.int32)
        columns.append(own[smallest(cell_hashes(values[own], salts, seed), count)])
    drawn = sp.csr_array(
        (np.ones(count * len(sizes)), np.concatenate(columns), count * np.arange(len(sizes) + 1)), shape=masses.shape
    )
    rows = np.unique(np.concatenate(columns)).astype(np.int64)
    draw = EqualDraw(count, sizes, rows)
    if isinstance(places, Graph):
        return places, measures_from_weights(drawn, names=measures.names), draw
    return places[rows], measures_from_weights(drawn[:, rows], names=measures.names), draw


def in_units(comparison: Comparison, calibration: Calibration | None) -> Comparison:
    """Return the comparison with distances in the unit of the calibration; without calibration, change nothing.

    Parameters
    ----------
    comparison
        Comparison by the calibrated model, with L1 distances.
    calibration
        Calibration, whose increasing curve converts distances and intervals to real units; or None.
    """
    if calibration is None:
        return comparison
    return replace(comparison, distances=calibration.distances(comparison.distances), calibration=calibration)


def _distances(embedding: FloatArray, model: DiffusionEMD) -> Float64:
    return np.asarray(pairwise_distances(embedding, n_jobs=model.n_jobs), dtype=np.float64)


def _sum_of_distances(block: FloatArray) -> float:
    """Return the sum of the L1 distances between all pairs of rows.

    In a sorted column of m numbers, number i (from 0) is added i times and subtracted m - 1 - i times, so that sorting
    avoids the computation of all pairs.
    """
    signs = 2.0 * np.arange(len(block)) - len(block) + 1
    starts = range(0, block.shape[1], COLUMNS_AT_ONCE)
    return float(sum((signs @ np.sort(block[:, i : i + COLUMNS_AT_ONCE], axis=0)).sum() for i in starts))


def check_all_pairs(n_samples: int, instead: str = NEAREST_INSTEAD) -> None:
    """Raise if the distances of all pairs would need too much memory; the error message suggests ``instead``."""
    if n_samples > MOST_SAMPLES:
        raise InvalidInputError(
            f"at most {MOST_SAMPLES:,} samples for the distances of all pairs",
            f"{n_samples:,}, whose distances would take {8 * n_samples**2 / 1e9:,.0f} GB",
            instead,
        )


def check_model(model: object, *, random_state: int | None, n_jobs: int | None) -> DiffusionEMD:
    """Return an unfitted copy of the model, or the default model, with checked parameters."""
    check_threads(n_jobs)
    if model is None:
        model = DiffusionEMD(random_state=random_state)
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError("the argument model to be a DiffusionEMD", type(model).__name__)
    if model.graph is not None:
        raise InvalidInputError("a model without a graph", repr(model.graph), "pass the graph instead of the points")
    copy: DiffusionEMD = clone(model)
    if n_jobs is not None:
        copy.set_params(n_jobs=n_jobs)
    copy.check_parameters()
    return copy


def landmark_agreement(
    landmarks: Landmarks,
    points: npt.ArrayLike,
    labels: npt.ArrayLike | Measures,
    *,
    n_points: int = 10_000,
    graph: Graph | None = None,
    model: DiffusionEMD | None = None,
    random_state: int | None = 0,
) -> LandmarkAgreement:
    """Measure how well distances computed with landmarks agree with distances on a graph over the points.

    The same number of points, at least 50, is drawn from every sample; smaller samples contribute all their points. If
    there are too many samples, only a random selection of them is used. The drawn points are compared twice: on a graph
    over these points, and with their landmarks. A difference is therefore due to the landmarks and not to chance.

    The result measures the loss relative to a graph over the drawn points. It does not measure the loss relative to a
    graph over all points, which would be finer.

    Parameters
    ----------
    landmarks
        Landmarks to evaluate.
    points
        ``(n_points, n_dimensions)``.
    labels
        ``(n_points,)``: sample of each point; or `Measures` over the points.
    n_points
        Approximate number of points to draw.
    graph
        Graph over the landmarks; default: ``landmarks.graph()``. The graph of the drawn points has the same kernel and
        number of neighbors.
    model
        A `DiffusionEMD` without a graph, to change its settings.
    random_state
        Seed of the draw.

    Returns
    -------
    LandmarkAgreement
        Agreement of the two kinds of distances; ``print`` shows a summary.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=200, effect=4.0)
    >>> landmarks = hm.Landmarks.from_points(data.points, 500)
    >>> hm.landmark_agreement(landmarks, data.points, data.labels).spearman > 0.9
    True
    """
    array = landmarks.check_points(points)
    measures = labels if isinstance(labels, Measures) else measures_from_labels(labels)
    if measures.shape[1] != len(array):
        raise InvalidInputError(
            f"one label for each of the {counted(len(array), 'point')}", counted(measures.shape[1], "label")
        )
    rng = check_random_state(random_state)
    nodes_here, place = distinct_points(array)
    masses = gather_masses(measures.masses, place, len(nodes_here))
    drawn, masses = _draw_points(masses, check_integer("n_points", n_points, minimum=2), rng)
    settings = DiffusionEMD(random_state=random_state) if model is None else model
    nodes = landmarks.graph(n_jobs=settings.n_jobs) if graph is None else graph
    here = np.asarray(nodes_here[drawn], dtype=np.float64)
    places, squares = landmarks.nearest(here, n_jobs=settings.n_jobs)
    samples = measures_from_weights(masses)
    how = nodes.construction
    n_neighbors = min(how.get("n_neighbors") or 30, len(here) - 1)
    kernel: Any = how.get("kernel") or "gaussian"
    metric = how.get("metric") or "euclidean"
    with warnings.catch_warnings():  # users should not see warnings about this auxiliary graph
        warnings.simplefilter("ignore", GraphWarning)
        warnings.simplefilter("ignore", EmbeddingWarning)
        of_points = Graph.from_points(here, n_neighbors, kernel=kernel, n_jobs=settings.n_jobs, metric=metric)
        own, through = (
            _distances(clone(settings).set_params(graph=graph).fit_transform(measures), settings)
            for graph, measures in ((of_points, samples), (nodes, landmarks.measures(samples, places)))
        )
    variance = float(here.var(axis=0).sum())
    return LandmarkAgreement(
        spearman=spearman(own, through) if len(own) > 2 else float("nan"),
        unexplained=float(squares.mean()) / variance if variance else 0.0,
        n_points=drawn.size,
        n_samples=len(own),
        n_landmarks=landmarks.n_landmarks,
    )


def place_landmarks(
    points: Any,
    measures: Measures,
    landmarks: object,
    *,
    random_state: int | None,
    n_jobs: int | None,
    progress: Progress,
) -> tuple[Landmarks, Measures] | None:
    """Find landmarks; return them, and the samples as masses over them. Return None if landmarks are not used.

    Parameters
    ----------
    points
        Checked points ``(n_points, n_dimensions)``, or a `Graph`.
    measures
        Samples as masses over the points.
    landmarks
        Number of landmarks, ``"auto"``, or None for no landmarks.
    random_state, n_jobs, progress
        As in `compare`.
    """
    automatic = isinstance(landmarks, str) and landmarks == "auto"
    if landmarks is None or (automatic and (isinstance(points, Graph) or len(points) <= LANDMARKS_ABOVE)):
        return None
    count = LANDMARKS if automatic else check_landmarks("landmarks", landmarks)
    if isinstance(points, Graph):
        raise InvalidInputError(
            "points, from which landmarks are computed",
            "a Graph",
            f"give the points, or leave out {the_argument('landmarks')}",
        )
    progress.stage("find landmarks", 1)
    try:
        centers, assignment = find_landmarks(
            points, count, n_iterations=ITERATIONS, random_state=random_state, n_jobs=n_jobs
        )
    except InvalidInputError:
        if automatic:  # with fewer distinct points than landmarks, landmarks would save nothing
            return None
        raise
    progress.advance()
    return centers, centers.measures(measures, assignment)


def _draw_points(masses: sp.csr_array, n_points: int, rng: np.random.Generator) -> tuple[Int64, sp.csr_array]:
    """Draw points; return their indices, ascending, and the masses of the drawn samples on these points."""
    rows, per_sample = samples_to_draw(np.diff(masses.indptr), n_points, rng)
    entries, weights = [], []
    for row in rows:
        own = masses.data[masses.indptr[row] : masses.indptr[row + 1]]
        drawn_here = own if own.size <= per_sample else draw_by_mass(own, per_sample, rng).astype(np.float64)
        entries.append(masses.indptr[row] + np.flatnonzero(drawn_here))
        weights.append(drawn_here[drawn_here > 0])
    offsets = np.r_[0, np.cumsum([entry.size for entry in entries])]
    drawn, columns = np.unique(masses.indices[np.concatenate(entries)], return_inverse=True)
    drawn_masses = sp.csr_array((np.concatenate(weights), columns, offsets), shape=(rows.size, drawn.size))
    return drawn.astype(np.int64), drawn_masses


def samples_to_draw(
    sizes: npt.NDArray[np.integer], n_points: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.integer], int]:
    """Return the ascending indices of the samples from which to draw, and the largest number of points per sample.

    Parameters
    ----------
    sizes
        ``(n_samples,)``: number of points of each sample.
    n_points
        Approximate total number of points to draw. If this number is too small for `LEAST_PER_SAMPLE` points per
        sample, only a random selection of samples is used.
    rng
        Generator of the draw of samples.
    """
    rows, most = np.arange(sizes.size), max(n_points // LEAST_PER_SAMPLE, 3)
    if rows.size > most:
        rows = np.sort(rng.choice(rows, most, replace=False))
    return rows, quota(sizes[rows], n_points)


def quota(sizes: npt.NDArray[np.integer], n_points: int) -> int:
    """Return the largest number of points per sample, at least 1, such that the total is at most ``n_points``."""
    low, high = 1, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(sizes, middle).sum() <= n_points:
            low = middle
        else:
            high = middle - 1
    return low
