"""Approximate millions of points by a few thousand landmarks; for users, studies, atlases; it touches no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.files import plain
from heatmover._base.storage.record import Record
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import (
    LabelNames,
    RandomState,
    as_array,
    check_integer,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.graphs.centers import ITERATIONS, CenterSearch, k_means
from heatmover.graphs.distinct import distinct_points, gather_masses
from heatmover.graphs.graph import Graph, check_points
from heatmover.graphs.kernels import Bandwidth, KernelName
from heatmover.measures import Measures, distinct_labels, measures_from_weights


@final
@dataclass(frozen=True, eq=False, repr=False)
class Landmarks:
    """K-means centers, called landmarks, that approximate many points; build them with `Landmarks.from_points`.

    Landmarks become the nodes of the graph, and every sample becomes a histogram: the share of its points that are
    nearest to each landmark. The cost of all later steps depends on the number of landmarks, not on the number of
    points.

    Attributes
    ----------
    centers
        ``(n_landmarks, n_dimensions)``, float64, read-only.
    counts
        Number of points nearest to each landmark, at least one, ``(n_landmarks,)``.
    distortion
        Mean squared distance of the points from their landmarks.
    how
        Description of the search: number of points, number of points used by k-means, iterations, ...

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(10, cells_per_sample=400)
    >>> landmarks = hm.Landmarks.from_points(data.points, 200)
    >>> landmarks
    Landmarks(200 for 4,000 points; root mean square distance ...)
    >>> measures = landmarks.measures(data.labels, landmarks.assign(data.points))
    >>> hm.compare(landmarks.graph(), measures).distances.shape
    (10, 10)
    """

    centers: Float64
    counts: Int64
    distortion: float
    how: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "how", MappingProxyType(dict(self.how)))
        for array in (self.centers, self.counts):
            array.flags.writeable = False

    def __getstate__(self) -> dict[str, Any]:
        kept = {"centers": self.centers, "counts": self.counts, "distortion": self.distortion}
        return {**kept, "how": dict(self.how)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    @classmethod
    def from_points(
        cls,
        points: npt.ArrayLike,
        n_landmarks: int = 2000,
        *,
        n_iterations: int = ITERATIONS,
        random_state: RandomState = 0,
        n_jobs: int | None = None,
    ) -> Landmarks:
        """Find landmarks by k-means, starting from points drawn at random.

        k-means uses 50 points per landmark, drawn at random. Then all points are counted at their nearest landmarks.
        For data larger than memory, pass a random sample here, and then all points, chunk by chunk, to `histograms`.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``, finite, in any order. Equal points count separately.
        n_landmarks
            Number of landmarks, at most the number of distinct points. Landmarks that are nearest to no point are
            dropped, so the result may have slightly fewer landmarks.
        n_iterations
            Number of k-means iterations; 0 uses points drawn at random as landmarks.
        random_state
            Seed of the random draw.
        n_jobs
            Number of threads; None for all cores. The result does not depend on this number.

        Examples
        --------
        >>> import heatmover as hm
        >>> sorted(hm.Landmarks.from_points([[0.0], [0.2], [5.0], [5.2]], 2).centers.ravel().round(1).tolist())
        [0.1, 5.1]
        """
        return find_landmarks(points, n_landmarks, n_iterations=n_iterations, random_state=random_state, n_jobs=n_jobs)[
            0
        ]

    def to_record(self) -> Record:
        """Return the landmarks as a record that can be saved to disk."""
        values = {"distortion": float(self.distortion), "how": plain(self.how)}
        return Record(values, {"centers": self.centers, "counts": self.counts})

    @classmethod
    def from_record(cls, record: Record) -> Landmarks:
        """Return the landmarks that a record holds, or raise an error if it holds none."""
        centers = record.floats("centers", (None, None))
        counts = record.array("counts", np.int64, (len(centers),))
        if centers.dtype != np.float64 or centers.size == 0 or counts.min() < 1:
            raise InvalidInputError(
                "stored landmarks in float64 with at least one point each", "landmarks without points or another type"
            )
        return cls(centers, counts, record.number("distortion"), record.mapping("how"))

    @property
    def n_landmarks(self) -> int:
        """Number of landmarks."""
        return len(self.centers)

    def assign(self, points: npt.ArrayLike, *, n_jobs: int | None = None) -> Int64:
        """Return the nearest landmark of each point, the first one in a tie.

        Parameters
        ----------
        points
            Any points in the space of the landmarks, ``(n_points, n_dimensions)``, finite.
        n_jobs
            Number of threads; None for all cores.

        Returns
        -------
        ndarray of shape (n_points,)
            Index of the nearest landmark of each point: exact, and the same for any division of the points into chunks.
            The search needs about 50 MB per thread in addition to the points and the result.
        """
        return self.nearest(points, n_jobs=n_jobs)[0]

    def nearest(self, points: npt.ArrayLike, *, n_jobs: int | None = None) -> tuple[Int64, Float64]:
        """Return the nearest landmark of each point, as `assign` does, and the squared distance to it.

        Parameters
        ----------
        points, n_jobs
            As in `assign`.

        Returns
        -------
        landmarks : ndarray of shape (n_points,)
            Index of the nearest landmark, int64.
        squares : ndarray of shape (n_points,)
            Squared distance to this landmark, float64.

        Examples
        --------
        >>> import heatmover as hm
        >>> landmarks = hm.Landmarks.from_points([[0.0], [0.2], [5.0], [5.2]], 2)
        >>> landmarks.nearest([[3.0]])[1].round(2)
        array([4.41])
        """
        return self._search.nearest(self.check_points(points), check_threads(n_jobs))

    def check_points(self, points: npt.ArrayLike) -> FloatArray:
        """Return points ``(n_points, n_dimensions)`` as a float array in their own precision, or raise an error."""
        array = check_points(points)
        if array.shape[1] != self.centers.shape[1]:
            raise InvalidInputError(
                f"points in the {counted(self.centers.shape[1], 'dimension')} of the landmarks",
                counted(array.shape[1], "dimension"),
            )
        return array

    def measures(self, labels: npt.ArrayLike | Measures, assignment: npt.ArrayLike) -> Measures:
        """Return each sample's histogram over the landmarks.

        Parameters
        ----------
        labels
            Sample of each point, ``(n_points,)``; or `Measures` over the points, whose masses are moved to the
            landmarks.
        assignment
            Landmark of each point, from `assign`, ``(n_points,)``.

        Returns
        -------
        Measures
            Measures ``(n_samples, n_landmarks)`` whose rows sum to one; samples in the order of `measures_from_labels`.

        Examples
        --------
        >>> import heatmover as hm
        >>> landmarks = hm.Landmarks.from_points([[0.0], [0.2], [5.0], [5.2]], 2)
        >>> landmarks.measures(["a", "b", "b", "b"], [0, 0, 1, 1]).toarray().round(2)
        array([[1.  , 0.  ],
               [0.33, 0.67]])
        """
        places = self._check_assignment(assignment)
        if not isinstance(labels, Measures):
            return self.histograms().add_assigned(places, labels).measures()
        if labels.shape[1] != places.size:
            raise InvalidInputError(
                f"measures over the {counted(places.size, 'assigned point')}", counted(labels.shape[1], "point")
            )
        return measures_from_weights(gather_masses(labels.masses, places, self.n_landmarks), names=labels.names)

    def histograms(self) -> Histograms:
        """Return an empty `Histograms`, to which points are added chunk by chunk."""
        return Histograms(self)

    def graph(
        self,
        n_neighbors: int = 30,
        *,
        kernel: KernelName = "gaussian",
        bandwidth: Bandwidth = "auto",
        random_state: RandomState = 0,
        n_jobs: int | None = None,
    ) -> Graph:
        """Build the graph over the landmarks, with `Graph.from_points`.

        All landmarks have equal weight, however many points they approximate. Diffusion removes the effect of the
        density of the nodes. With edges weighted by the counts, distances were no closer to the distances on the graph
        over all points (`benchmarks/landmarks.py`, column "weighed").

        Parameters
        ----------
        n_neighbors, kernel, bandwidth, random_state, n_jobs
            As in `Graph.from_points`.
        """
        return Graph.from_points(
            self.centers, n_neighbors, kernel=kernel, bandwidth=bandwidth, random_state=random_state, n_jobs=n_jobs
        )

    def __repr__(self) -> str:
        return (
            f"Landmarks({self.n_landmarks} for {counted(int(self.counts.sum()), 'point')}; "
            f"root mean square distance {np.sqrt(self.distortion):.3g})"
        )

    @cached_property
    def _search(self) -> CenterSearch:
        return CenterSearch(self.centers)

    def _check_assignment(self, assignment: npt.ArrayLike) -> Int64:
        places = as_array("assignment", assignment)
        if places.ndim != 1 or places.size == 0 or places.dtype.kind not in "iu":
            raise InvalidInputError(
                "the landmark of each point, whole numbers (n_points,)",
                f"shape {places.shape} of type {places.dtype}",
                "take it from landmarks.assign(points)",
            )
        if places.min() < 0 or places.max() >= self.n_landmarks:
            raise InvalidInputError(
                f"landmarks from 0 to {self.n_landmarks - 1}", f"numbers from {places.min()} to {places.max()}"
            )
        return places.astype(np.int64)


@final
class Histograms:
    """Counts of each sample's points per landmark, added in chunks of any size; created by `Landmarks.histograms`.

    Attributes
    ----------
    n_points
        Number of points added so far.
    distortion
        Mean squared distance between each point passed to `add` and its landmark.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(10, cells_per_sample=400)
    >>> landmarks = hm.Landmarks.from_points(data.points[::4], 100)  # a sample of the points is enough
    >>> histograms = landmarks.histograms()
    >>> for start in range(0, 4000, 1000):  # for instance from files
    ...     chunk = slice(start, start + 1000)
    ...     _ = histograms.add(data.points[chunk], data.labels[chunk])
    >>> histograms.measures()
    Measures(10 measures on 100 points: case-..., ...)
    """

    def __init__(self, landmarks: Landmarks) -> None:
        self._landmarks = landmarks
        self._samples: dict[str, tuple[int, Any]] = {}
        self._names = LabelNames("labels")
        # Only positive counts are stored, by sorted keys (sample * n_landmarks + landmark), because most samples have
        # points at few landmarks.
        self._keys, self._counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self.n_points = 0
        self._measured, self._squares = 0, 0.0

    @property
    def distortion(self) -> float:
        """Mean squared distance between each point passed to `add` and its landmark; NaN before the first chunk."""
        return self._squares / self._measured if self._measured else float("nan")

    def add(self, points: npt.ArrayLike, labels: npt.ArrayLike, *, n_jobs: int | None = None) -> Histograms:
        """Count a chunk of points.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``.
        labels
            Sample of each point, ``(n_points,)``.
        n_jobs
            Number of threads; None for all cores.

        Returns
        -------
        Histograms
            This object. A chunk that raises an error changes nothing.
        """
        array, threads = self._landmarks.check_points(points), check_threads(n_jobs)
        _check_same_length(len(array), labels)
        places, squares = self._landmarks._search.nearest(array, threads)
        self.add_assigned(places, labels)
        self._measured += places.size
        self._squares += float(squares.sum())
        return self

    def add_assigned(self, assignment: npt.ArrayLike, labels: npt.ArrayLike) -> Histograms:
        """Count a chunk of points whose landmarks ``assignment`` gives, ``(n_points,)``, and return this object."""
        places = self._landmarks._check_assignment(assignment)
        _check_same_length(places.size, labels)
        distinct, inverse = distinct_labels(labels)
        known = self._names.copy()
        names = known.add_all(distinct)
        self._names = known
        for name, label in zip(names, distinct, strict=True):
            self._samples.setdefault(name, (len(self._samples), label))
        rows = np.array([self._samples[name][0] for name in names])[inverse]
        keys, counts = np.unique(rows * self._landmarks.n_landmarks + places, return_counts=True)
        merged, back = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        totals = np.zeros(merged.size, dtype=np.int64)
        np.add.at(totals, back, np.concatenate([self._counts, counts]))
        self._keys, self._counts = merged, totals
        self.n_points += places.size
        return self

    def measures(self) -> Measures:
        """Return the current histograms as measures ``(n_samples, n_landmarks)``, samples in sorted order."""
        if not self._samples:
            raise InvalidInputError("at least one chunk of points", "none added")
        width = self._landmarks.n_landmarks
        rows, columns = np.divmod(self._keys, width)
        order = _sorted_samples(list(self._samples.values()))
        weights = sp.csr_array((self._counts.astype(np.float64), (rows, columns)), shape=(len(order), width))
        names = [label for _, label in sorted(self._samples.values(), key=lambda sample: sample[0])]
        return measures_from_weights(weights[order], names=[names[row] for row in order])


def find_landmarks(
    points: npt.ArrayLike, n_landmarks: int, *, n_iterations: int, random_state: RandomState, n_jobs: int | None
) -> tuple[Landmarks, Int64]:
    """Find landmarks as `Landmarks.from_points` does; return them and the nearest landmark of each point."""
    array = check_points(points)
    count = check_integer("n_landmarks", n_landmarks, minimum=1)
    moves = check_integer("n_iterations", n_iterations, minimum=0)
    rng, n_threads = check_random_state(random_state), check_threads(n_jobs)
    nodes, place = distinct_points(array)
    copies = np.bincount(place)
    centers, n_looked_at = k_means(nodes, copies, count, moves, rng, n_threads)
    assignment, squares = CenterSearch(centers).nearest(nodes, n_threads)
    counts = np.zeros(count, dtype=np.int64)
    np.add.at(counts, assignment, copies)
    kept = np.flatnonzero(counts)
    how = {"n_points": len(array), "n_looked_at": n_looked_at, "n_iterations": moves, "n_dropped": count - kept.size}
    places = np.cumsum(counts > 0) - 1
    distortion = float(squares @ copies) / len(array)
    return Landmarks(centers[kept], counts[kept], distortion, how), places[assignment][place]


def _check_same_length(n_points: int, labels: npt.ArrayLike) -> None:
    shape = np.shape(labels)
    if len(shape) == 1 and shape[0] != n_points:
        raise InvalidInputError(f"one label for each of the {counted(n_points, 'point')}", counted(shape[0], "label"))


def _sorted_samples(samples: Sequence[tuple[int, Any]]) -> list[int]:
    """Return the positions of the samples, sorted by label, or by the label's text if labels cannot be compared."""
    try:
        return [place for place, _ in sorted(samples, key=lambda sample: sample[1])]
    except TypeError:
        return [place for place, _ in sorted(samples, key=lambda sample: str(sample[1]))]
