"""`compare`: one call from points and labels to the distances between samples, in real units if these are asked for."""

from __future__ import annotations

import io
import os
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
from heatmover._base.types import Bool, Float64, FloatArray, Int64, Intp
from heatmover._base.validation import (
    LabelNames,
    as_array,
    check_integer,
    check_matrix,
    check_option,
    check_threads,
    import_extra,
    in_order,
)
from heatmover._base.words import counted
from heatmover.cohort.draw import (
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
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Diagnosis, Graph, Landmarks
from heatmover.measures import Measures, is_missing, measures_from_labels, measures_from_weights
from heatmover.statistics.manifold import classical_scaling
from heatmover.statistics.noise import Uncertainty, assess, check_cells
from heatmover.statistics.tests import Separation, separate
from heatmover.study.landmarking import LandmarkAgreement, landmark_agreement, place_landmarks
from heatmover.study.parameters import BIASES, UNITS, Units
from heatmover.study.tables import write_table
from heatmover.transport.calibration import FEWEST, Calibration, calibrate

__all__ = [
    "Comparison",
    "Intervals",
    "Separation",
    "calibrated",
    "check_all_pairs",
    "check_enough_samples",
    "check_model",
    "check_units",
    "compare",
    "compare_embedded",
    "fit_samples",
    "in_units",
]

# As many as `calibrate` takes by default; of few samples all pairs.
PAIRS = 64


def check_units(units: object) -> None:
    """Raise unless these are units, or None; or if the package is missing that solves pairs exactly."""
    if units is not None:
        check_option("units", units, UNITS)
        # What POT loads may greet on standard output, where the results of a command are.
        with redirect_stdout(io.StringIO()):
            import_extra("ot", package="POT", extra="exact")


def check_enough_samples(n_samples: int, n_scales: int = 1) -> int:
    """Return how many pairs to solve exactly, or raise if samples have too few pairs for units.

    Parameters
    ----------
    n_samples
        To compare.
    n_scales
        Of the model, if it is known: each needs two pairs.
    """
    fewest, n_pairs = max(FEWEST, 2 * n_scales), n_samples * (n_samples - 1) // 2
    if n_pairs < fewest:
        least = next(m for m in range(2, 2 * fewest) if m * (m - 1) // 2 >= fewest)
        raise InvalidInputError(
            f"at least {counted(least, 'sample')} for {argument('units')}, which come from "
            f"{counted(fewest, 'exact pair')} or more",
            f"{n_samples}",
            f"leave {argument('units')} out",
        )
    return min(PAIRS, n_pairs)


def calibrated(
    model: DiffusionEMD,
    measures: Measures,
    points: Any,
    units: Literal["euclidean", "geodesic"],
    *,
    random_state: int | None,
    progress: Progress,
) -> Calibration:
    """Return the calibration of a fitted model, or raise if its graph has no lengths.

    Parameters
    ----------
    model
        Fitted.
    measures
        The samples.
    points
        ``(n_points, n_dimensions)``: of the nodes that the measures are over, landmarks or cells; a `Graph` has none.
    units, random_state, progress
        As in `heatmover.compare`; the stage is "calibrate units".
    """
    if isinstance(points, Graph):
        raise InvalidInputError(
            f"points for {argument('units', units)}, which come from distances between them",
            "a Graph, which knows affinities only",
            "give the points, or call hm.calibrate with costs",
        )
    n_pairs = check_enough_samples(len(measures), model.n_scales_)
    if units == "geodesic":
        _check_connected(model.graph_)
    return calibrate(
        model, measures, points, ground=units, n_pairs=n_pairs, random_state=random_state, n_jobs=model.n_jobs,
        progress=progress,
    )  # fmt: skip


def _check_connected(graph: Graph) -> None:
    n_components = int(connected_components(graph.node_affinity, directed=False)[0])
    if n_components > 1:
        raise InvalidInputError(
            f"a connected graph for {argument('units', 'geodesic')}: no path leads from one component to another",
            counted(n_components, "component"),
            f"raise {argument('n_neighbors')}, remove outliers, or use {argument('units', 'euclidean')}",
        )


# Their distances take 3 GB; with more samples one wants the nearest, not all pairs.
MOST_SAMPLES = 20_000
NEAREST_INSTEAD = (
    "in Python, embed them with DiffusionEMD(graph).fit_transform and ask hm.nearest for the nearest of each"
)
# Masses of the points of a sample that differ by less are rounded ones.
ALIKE = 1e-9
# Columns sorted at a time, so that a copy of a large embedding is never needed.
COLUMNS_AT_ONCE = 4_096

Groups = Sequence[object] | npt.NDArray[Any] | Mapping[str, object]


class Intervals(NamedTuple):
    """Intervals of all distances: what infinitely many cells would show lies between, for each pair by itself.

    Attributes
    ----------
    lower, upper
        ``(n_samples, n_samples)``.
    told_apart
        ``(n_samples, n_samples)``: whether a pair differs by more than noise, False on the diagonal.
    confidence
        How sure each is, such as 0.95.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(6, points_per_measure=40)
    >>> found = hm.compare(data.points, data.labels, n_neighbors=10, n_bootstrap=50).intervals
    >>> bool((found.lower <= found.upper).all()), found.confidence
    (True, 0.95)
    """

    lower: Float64
    upper: Float64
    told_apart: Bool
    confidence: float


@final
@dataclass(frozen=True, eq=False, repr=False)
class Comparison(ReadOnlyArrays):
    """Distances between samples, with everything they were made from; `compare` makes one.

    Attributes
    ----------
    names
        Name of each sample, in the order of all rows and columns below.
    sizes
        ``(n_samples,)``: number of points of each sample.
    distances
        ``(n_samples, n_samples)``, float64, symmetric, zero on the diagonal. Without ``calibration`` the unit is
        arbitrary: compare distances with each other.
    embedding
        ``(n_samples, n_features)``: the L1 distance between two rows is the distance between the samples, but for the
        increasing curve of ``calibration``, if there is one.
    graph
        The graph over the points, or over the landmarks.
    model
        The fitted `DiffusionEMD`: it embeds further samples, and its attributes explain what it chose.
    landmarks, landmark_agreement
        The landmarks that stood for the points, and what they cost as measured; None where there were none.
    bias
        ``"raw"``: distances as they are. ``"corrected"``: distances and embedding without the noise of few cells.
    uncertainty
        Noise of the samples, if it was asked for, in the unit of the embedding; `intervals` and `noise_floor` have that
        of the distances.
    measures
        The samples as masses over the points of the graph, ``(n_samples, n_points)``.
    drawn
        Which cells were drawn, if equally many of every sample were; None if all take part.
    calibration
        What gives the distances their unit, if one was asked for: exact pairs, errors, and a curve.

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
        """Of every distance, in the unit of the distances; None unless replicates were asked for."""
        noise = self.uncertainty
        if noise is None or noise.lower is None or noise.upper is None:
            return None
        return Intervals(self._in_units(noise.lower), self._in_units(noise.upper), noise.told_apart, noise.confidence)

    def noise_floor(self, n_cells: float, other: float | None = None) -> float:
        """Return the expected distance between two samples of one distribution, in the unit of the distances.

        Parameters
        ----------
        n_cells, other
            Cells of the two samples; as many in both if only one number is given.
        """
        if self.uncertainty is None:
            raise InvalidInputError(
                "noise that was assessed", "none", f"compare with {argument('n_bootstrap', 200)} or bias='corrected'"
            )
        return float(self._in_units(np.array(self.uncertainty.noise_floor(n_cells, other))))

    def unit_factor(self, distance: float) -> float:
        """Return what turns contributions to an L1 distance of the embedding into the unit of the distances."""
        if self.calibration is None or not distance > 0:
            return 1.0
        return float(self._in_units(np.array(distance))) / distance

    def _in_units(self, distances: Float64) -> Float64:
        return distances if self.calibration is None else self.calibration.distances(distances)

    @property
    def test_distances(self) -> Float64:
        """``(n_samples, n_samples)``: those for permutation tests; corrected ones have equal noise in all samples."""
        corrected = self.bias == "corrected" and self.uncertainty is not None
        return self.uncertainty.test_distances if corrected else self.distances  # type: ignore[union-attr]

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What the graph looks like to the heat, and advice; computed at the first request."""
        return self.graph.diagnose(steps=2**self.model.max_scale_)

    @cached_property
    def scale_shares(self) -> Float64:
        """``(n_scales,)``: the share of the mean distance between samples that each scale makes, finest first."""
        edges = np.cumsum([0, *self.model.n_regions_])
        sums = np.array([_sum_of_distances(self.embedding[:, low:high]) for low, high in pairwise(edges)])
        return sums / (sums.sum() or 1.0)

    @property
    def max_scale_reason(self) -> str:
        """Why the largest scale is the largest."""
        calibration = self.calibration
        return (
            self.model.max_scale_reason_
            if calibration is None
            else f"it fits the {counted(len(calibration.pairs), 'exact pair')} best"
        )

    def nearest(self, k: int = 10) -> tuple[Float64, Int64]:
        """Return the k nearest samples of each sample.

        Parameters
        ----------
        k
            How many; at most ``n_samples - 1``, because a sample is not its own neighbor.

        Returns
        -------
        distances : ndarray of shape (n_samples, k)
            Ascending in each row.
        indices : ndarray of shape (n_samples, k)
            Into ``names``. Of equal distances the smaller index comes first.
        """
        k = self._check_count("k", k)
        candidates = self.distances.copy()
        np.fill_diagonal(candidates, np.inf)
        # The first of the nearest needs no sorting, which of thousands of samples takes long.
        order = candidates.argmin(axis=1)[:, None] if k == 1 else np.argsort(candidates, axis=1, kind="stable")
        indices = order[:, :k]
        return np.take_along_axis(candidates, indices, axis=1), indices

    def coordinates(self, n: int = 2) -> Float64:
        """Return a map of the samples: classical multidimensional scaling of the distances.

        The axes are centered at zero and ordered by how much of the variation they show; of the two possible
        directions of an axis, the one in which its largest coordinate is positive.

        Parameters
        ----------
        n
            Number of axes; at most ``n_samples - 1``.

        Returns
        -------
        ndarray of shape (n_samples, n)
            In the unit of the distances; an axis that the distances do not need is zero.
        """
        return classical_scaling(self.distances, self._check_count("n", n))[0]

    def separation(self, groups: Groups) -> Separation:
        """Return how well a grouping of the samples explains the distances.

        It describes, it does not test: with few samples a difference may well be chance.

        Parameters
        ----------
        groups
            ``(n_samples,)``: the group of each sample in the order of ``names``, or a mapping (or pandas Series)
            from names to groups. There must be two groups, and one of them must have two samples.
        """
        codes, _ = self._check_groups(groups)
        return separate(self.distances, codes)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the distances as CSV, names in the first row and the first column.

        The numbers are written with all digits. A name that a spreadsheet would take for a formula has an apostrophe
        before it, which `heatmover.study.tables.plain_text` takes away. The file appears complete or not at all.

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced.
        """
        rows = ([name, *row.tolist()] for name, row in zip(self.names, self.distances, strict=True))
        write_table(path, ["sample", *self.names], rows)

    def intervals_to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the interval of every distance as CSV: each pair once, with all digits.

        The columns are sample, other, distance, lower, upper, told_apart (true or false). Names as in `to_csv`.

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced.
        """
        intervals = self.intervals
        if intervals is None:
            raise InvalidInputError("intervals", "none", f"compare with {argument('n_bootstrap', 200)}")
        first, second = np.triu_indices(len(self.names), 1)
        columns = [values[first, second].tolist() for values in (self.distances, intervals.lower, intervals.upper)]
        apart = ["true" if told else "false" for told in intervals.told_apart[first, second].tolist()]
        names = ([self.names[i] for i in places] for places in (first.tolist(), second.tolist()))
        header = ["sample", "other", "distance", "lower", "upper", "told_apart"]
        write_table(path, header, zip(*names, *columns, apart, strict=True))

    def plot(self, groups: Groups | None = None, ax: Any = None) -> Any:
        """Draw the map of the samples; needs matplotlib (extra ``cohort``).

        A thin line joins each sample with its nearest one, which the map, being flat, may show too far away.

        Parameters
        ----------
        groups
            Color and shape: the group of each sample, as in `separation`, grey where it is missing; or a number for
            each, shown by a color bar.
        ax
            Matplotlib axes to draw into; default new ones.

        Returns
        -------
        matplotlib.axes.Axes
            With the map.
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
        """Test variables of the samples and write a report: one HTML page that opens offline in any browser.

        It needs plotly and jinja2 (extra ``cohort``).

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced. The new one appears complete or not at all.
        variables
            Values ``(n_samples,)`` by name, in the order of ``names``: a mapping, or a DataFrame (by its index if that
            holds the names). The most important first.
        blocks
            What ties samples together, ``(n_samples,)``: patients with several samples, batches, pairs.
        cells
            Type of each point of the graph, ``(n_points,)``: tell which types differ, see `heatmover.study_comparison`.
        title, extra_sections
            Heading of the page, and further sections, see `heatmover.report.render`.
        n_permutations, random_state
            Permutations of every test and their seed.

        Returns
        -------
        heatmover.study.Study
            What the report tells.
        """
        return handed("report_comparison")(
            self, path, variables, blocks=blocks, cells=cells, title=title, extra_sections=extra_sections,
            n_permutations=n_permutations, random_state=random_state,
        )  # fmt: skip

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        size = f"{low}" if low == high else f"{low} to {high}"
        standing_in = "" if self.landmark_agreement is None else f"; {self.landmark_agreement.describe()}"
        apart = self.distances[np.triu_indices(len(self.names), 1)]
        return (
            f"Comparison({counted(len(self.names), 'sample')} of {size} points; distances {apart.min():.3g} to "
            f"{apart.max():.3g}; scales up to 2^{self.model.max_scale_} steps{standing_in})"
        )

    def _check_count(self, name: str, value: object) -> int:
        count = check_integer(name, value, minimum=1)
        most = len(self.names) - 1
        if count > most:
            raise InvalidInputError(f"{name} of at most {most}", f"{count} with {counted(most + 1, 'sample')}")
        return count

    def _check_groups(self, groups: Groups) -> tuple[Intp, tuple[str, ...]]:
        """Return the group of each sample as an index, ``(n_samples,)``, and the names of the groups, sorted."""
        values = as_array("groups", in_order(groups, self.names, "groups"), dtype=object)
        missing = [name for name, value in zip(self.names, values, strict=True) if is_missing(value)]
        if missing:
            raise InvalidInputError("a group for every sample", f"none for {', '.join(map(repr, missing[:5]))}")
        names, codes = np.unique(LabelNames("groups").add_all(values), return_inverse=True)
        return codes, tuple(names.tolist())


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
    """Compare samples: from points and the sample each belongs to, to the distances between all samples.

    It joins the points to a graph, makes one measure per label, embeds the measures and measures their distances,
    with the defaults of `Graph.from_points` and `DiffusionEMD`.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite; or a `Graph` over the points, if it is to be made in another way.
    labels
        ``(n_points,)``: the sample of each point; or `Measures`, to name, choose or weigh the samples. At least
        two samples.
    n_neighbors
        Neighbors of each point in the graph; a `Graph` that is given stays as it is.
    landmarks
        Let so many centers of k-means stand for the points, see `Landmarks`; None for never. ``"auto"``: 4,000 for more
        than 100,000 points. What that costs is measured and reported in ``landmark_agreement`` of the result.
    model
        Settings other than the defaults: a `DiffusionEMD` without a graph. It is copied and stays unfitted.
    equal_cells
        Draw equally many points from every sample, without replacement: True for as many as the smallest sample has, or
        a number. Draws of equal size have equal noise, which is the exact way to compare samples of unequal sizes, at
        the cost of points. The others take no part at all; a `Graph` that is given keeps them as nodes.
    bias
        ``"raw"``: the distances of the cells at hand; the fewer cells, the further a sample is from all others.
        ``"corrected"``: without that noise, see `heatmover.uncertainty`; all cells of a sample must count alike.
    n_bootstrap
        Replicates for an interval of every distance, in ``intervals`` of the result; 0 for none.
    units
        ``"euclidean"`` or ``"geodesic"``: distances in the unit of the points, by straight lines or by paths along the
        graph. Up to 64 pairs of samples are solved exactly, see `heatmover.calibrate`; needs the extra ``exact`` (POT)
        and points. None: the unit is arbitrary.
    random_state
        Seed of the draw, of the search for neighbors and, unless ``model`` is given, of the choice of scales.
    n_jobs
        Threads; None for those of ``model``, else all cores. The result does not depend on it.
    progress
        Told of the stages "find neighbours", "choose scales", "diffuse measures" and "compare"; with landmarks first
        of "find landmarks" and later of "measure the agreement"; with units of "calibrate units" after the scales, with
        ``bias`` or ``n_bootstrap`` of "assess noise" before "compare".

    Returns
    -------
    Comparison
        Distances, embedding, graph and fitted model; nearest samples, a map, the separation of groups, CSV.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(6, points_per_measure=40)
    >>> result = hm.compare(data.points, data.labels, n_neighbors=10)
    >>> result.names, result.distances.shape
    (('0', '1', '2', '3', '4', '5'), (6, 6))

    Other settings come as a graph and a model:

    >>> graph = hm.Graph.from_points(data.points, n_neighbors=10, kernel="adaptive")
    >>> hm.compare(graph, data.labels, model=hm.DiffusionEMD(max_scale=6)).model.max_scale_
    6
    """
    check_option("bias", bias, BIASES)
    check_integer("n_bootstrap", n_bootstrap, minimum=0)
    wanted = check_equal_cells(equal_cells)
    check_units(units)
    measures = _check_samples(labels)
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
    fitted = fit_samples(
        nodes, masses, copy, n_neighbors=n_neighbors, units=units, random_state=random_state, progress=watcher
    )
    rows, n_threads = fitted.model.node_masses(masses), check_threads(fitted.model.n_jobs)
    embedding = fitted.model.prepared_.embed(rows, n_threads=n_threads, progress=watcher)
    agreement = None
    if placed is not None:
        watcher.stage("measure the agreement", 1)
        agreement = landmark_agreement(
            placed[0], places, measures, graph=fitted.graph, model=copy, random_state=random_state
        )
        watcher.advance()
    sizes = np.diff(measures.masses.indptr).astype(np.int64)
    result = compare_embedded(
        fitted, masses, sizes, embedding, bias=bias, n_bootstrap=n_bootstrap, random_state=random_state,
        progress=watcher,
    )  # fmt: skip
    marks = None if placed is None else placed[0]
    return replace(result, landmarks=marks, landmark_agreement=agreement, drawn=drawn)


class FittedSamples(NamedTuple):
    """A model fitted on samples.

    Attributes
    ----------
    graph
        Over the nodes.
    fitted
        The model with scales and weights of its own.
    model
        The model that embeds: the calibrated one if units were asked for, else ``fitted``.
    calibration
        From the embedding to real units; None without units.
    """

    graph: Graph
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
    """Join nodes to a graph, choose the scales of a model on samples, and calibrate it if units are asked for.

    Parameters
    ----------
    nodes
        ``(n_points, n_dimensions)``: points or landmarks; or a `Graph` over them.
    measures
        The samples, ``(n_samples, n_points)``.
    settings
        Unfitted, from `check_model`; it is fitted here.
    n_neighbors, units, random_state, progress
        As in `compare`; the stages are "find neighbours", "choose scales" and "calibrate units".
    """
    if isinstance(nodes, Graph):
        graph = nodes
    else:
        progress.stage("find neighbours", 1)
        graph = Graph.from_points(nodes, n_neighbors, random_state=random_state, n_jobs=settings.n_jobs)
        progress.advance()
    progress.stage("choose scales", 1)
    fitted = settings.set_params(graph=graph).fit(measures)
    progress.advance()
    if units is None:
        return FittedSamples(graph, fitted, fitted, None)
    calibration = calibrated(fitted, measures, nodes, units, random_state=random_state, progress=progress)
    return FittedSamples(graph, fitted, calibration.model, calibration)


def compare_embedded(
    fitted: FittedSamples,
    measures: Measures,
    sizes: Int64,
    embedding: FloatArray,
    *,
    bias: str,
    n_bootstrap: int,
    random_state: int | None,
    progress: Progress,
) -> Comparison:
    """Return the distances of embedded samples: without their noise if asked for, and in the unit of the calibration.

    Parameters
    ----------
    fitted
        The model that embedded them.
    measures, sizes, embedding
        The samples, the cells of each, and their rows.
    bias, n_bootstrap, random_state, progress
        As in `compare`; the stages are "assess noise" and "compare".
    """
    model, noise, raw = fitted.model, None, None
    if bias == "corrected" or n_bootstrap:
        progress.stage("assess noise", 1)
        if n_bootstrap:  # intervals are about the distances as they are
            raw = _distances(embedding, model)
        noise = assess(
            model, check_cells(model, measures, sizes), raw,
            n_bootstrap=n_bootstrap, random_state=random_state, n_threads=check_threads(model.n_jobs),
        )  # fmt: skip
        if bias == "corrected":
            embedding = noise.correct(embedding)
        progress.advance()
    progress.stage("compare", 1)
    distances = raw if raw is not None and bias == "raw" else _distances(embedding, model)
    progress.advance()
    result = Comparison(
        measures.names, sizes, distances, embedding, fitted.graph, model, measures, bias=bias, uncertainty=noise
    )
    return in_units(result, fitted.calibration)


def _draw_equally(
    places: Any, measures: Measures, equal_cells: bool | int, random_state: int | None
) -> tuple[Any, Measures, EqualDraw]:
    """Return equally many points of every sample: points or graph, measures over them, and which they are."""
    masses, seed = measures.masses, hash_seed(random_state)
    for name, start, stop in zip(measures.names, masses.indptr[:-1], masses.indptr[1:], strict=True):
        own = masses.data[start:stop]
        if own.max() > own.min() * (1 + ALIKE):
            raise InvalidInputError(
                f"samples whose points count alike, to draw {argument('equal_cells')} from them",
                f"weights in {name!r}",
                f"give labels, or leave {argument('equal_cells')} out",
            )
    sizes = np.diff(masses.indptr).astype(np.int64)
    count = equal_count(equal_cells, sizes, measures.names, can_leave_out=False)
    # The nodes of a graph are in an order of their own, whatever that of the points is.
    values = _own_order(places)[:, None] if isinstance(places, Graph) else places
    columns = []
    for name, start, stop in zip(measures.names, masses.indptr[:-1], masses.indptr[1:], strict=True):
        own = masses.indices[start:stop]
        salts = np.full(own.size, sample_salt(name), dtype=np.int32)
        columns.append(own[smallest(cell_hashes(values[own], salts, seed), count)])
    part = sp.csr_array(
        (np.ones(count * len(sizes)), np.concatenate(columns), count * np.arange(len(sizes) + 1)), shape=masses.shape
    )
    rows = np.unique(np.concatenate(columns)).astype(np.int64)
    draw = EqualDraw(count, sizes, rows)
    if isinstance(places, Graph):
        return places, measures_from_weights(part, names=measures.names), draw
    return places[rows], measures_from_weights(part[:, rows], names=measures.names), draw


def _own_order(graph: Graph) -> Float64:
    """Return the number of each point's node, ``(n_points,)``."""
    return np.arange(graph.n_points, dtype=np.float64) if graph.place is None else graph.place.astype(np.float64)


def in_units(comparison: Comparison, calibration: Calibration | None) -> Comparison:
    """Return a comparison whose distances have the unit of its calibration; without one, as it is.

    Parameters
    ----------
    comparison
        Of the calibrated model, with L1 distances.
    calibration
        Its increasing curve takes distances and intervals to real units.
    """
    if calibration is None:
        return comparison
    return replace(comparison, distances=calibration.distances(comparison.distances), calibration=calibration)


def _distances(embedding: FloatArray, model: DiffusionEMD) -> Float64:
    return np.asarray(pairwise_distances(embedding, n_jobs=model.n_jobs), dtype=np.float64)


def _sum_of_distances(block: FloatArray) -> float:
    """Return the sum of the L1 distances between all pairs of rows.

    In a sorted column the i-th of m numbers is added i times and subtracted m - 1 - i times, so that a sort does what
    would otherwise take all pairs.
    """
    signs = 2.0 * np.arange(len(block)) - len(block) + 1
    starts = range(0, block.shape[1], COLUMNS_AT_ONCE)
    return float(sum((signs @ np.sort(block[:, i : i + COLUMNS_AT_ONCE], axis=0)).sum() for i in starts))


def _check_samples(labels: npt.ArrayLike | Measures) -> Measures:
    measures = labels if isinstance(labels, Measures) else measures_from_labels(labels)
    if len(measures) < 2:
        raise InvalidInputError("at least two samples to compare", f"one, {measures.names[0]!r}")
    check_all_pairs(len(measures))
    return measures


def check_all_pairs(n_samples: int, instead: str = NEAREST_INSTEAD) -> None:
    """Raise if the distances of all pairs of so many samples would take too much memory; say what to do instead."""
    if n_samples > MOST_SAMPLES:
        raise InvalidInputError(
            f"at most {MOST_SAMPLES:,} samples for the distances of all pairs",
            f"{n_samples:,}, whose distances would take {8 * n_samples**2 / 1e9:,.0f} GB",
            instead,
        )


def check_model(model: object, *, random_state: int | None, n_jobs: int | None) -> DiffusionEMD:
    """Return an unfitted copy of the model, or the default one, with its parameters checked."""
    check_threads(n_jobs)
    if model is None:
        model = DiffusionEMD(random_state=random_state)
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError("model to be a DiffusionEMD", type(model).__name__)
    if model.graph is not None:
        raise InvalidInputError("model without a graph", repr(model.graph), "pass the graph in place of the points")
    copy: DiffusionEMD = clone(model)
    if n_jobs is not None:
        copy.set_params(n_jobs=n_jobs)
    copy.check_parameters()
    return copy
