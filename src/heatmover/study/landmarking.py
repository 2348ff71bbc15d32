"""When landmarks stand for the points, and what that costs: distances beside those on a graph over the points."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import clone

from heatmover._base.progress import Progress
from heatmover._base.types import Float64, Int64
from heatmover._base.validation import check_integer, check_random_state
from heatmover._base.words import counted
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, argument
from heatmover.graphs import Graph, Landmarks
from heatmover.graphs.centers import ITERATIONS, draw_by_mass
from heatmover.graphs.distinct import distinct_points, gather_masses
from heatmover.graphs.landmarks import find_landmarks
from heatmover.measures import Measures, measures_from_labels, measures_from_weights
from heatmover.statistics.metrics import spearman

__all__ = [
    "LANDMARKS",
    "LANDMARKS_ABOVE",
    "LandmarkAgreement",
    "landmark_agreement",
    "place_landmarks",
    "quota",
    "samples_to_draw",
]


# Flow cytometry, 15 samples, 2 shared cores: the graph over 50,000 points and all that follows took 9 s, over 150,000
# points 60 s and 0.9 GB; through 4,000 landmarks 5 s, and the agreement, which tells whether that was wise, 2 s.
LANDMARKS_ABOVE = 100_000
LANDMARKS = 4_000
# Fewer points per sample leave distances that are mostly chance, on which both graphs agree all too easily.
LEAST_PER_SAMPLE = 50


@final
@dataclass(frozen=True)
class LandmarkAgreement:
    """How far distances through landmarks are from those on a graph over the points themselves; ``print`` it.

    Attributes
    ----------
    spearman
        Rank correlation of the two, per sample, averaged over samples (`metrics.spearman`); NaN for two samples,
        whose one distance has no rank.
    unexplained
        Mean squared distance of a point from its landmark, as a share of the variance of the points.
    n_points, n_samples
        How many points and samples were compared.
    n_landmarks
        Through how many landmarks.

    Examples
    --------
    >>> print(LandmarkAgreement(spearman=0.987, unexplained=0.04, n_points=10000, n_samples=48, n_landmarks=2000))
    Spearman 0.987 between distances of 48 samples through 2,000 landmarks and on a graph over 10,000 of their points
    """

    spearman: float
    unexplained: float
    n_points: int
    n_samples: int
    n_landmarks: int

    def describe(self) -> str:
        """Return the figures in a few words."""
        agreement = f"Spearman {self.spearman:.3f} with a graph over {counted(self.n_points, 'point')}"
        return f"through {counted(self.n_landmarks, 'landmark')}, {agreement}"

    def __str__(self) -> str:
        return (
            f"Spearman {self.spearman:.3f} between distances of {counted(self.n_samples, 'sample')} through "
            f"{counted(self.n_landmarks, 'landmark')} and on a graph over {self.n_points:,} of their points"
        )


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
    """Measure how well distances through landmarks agree with those on a graph over the points themselves.

    Every sample gives the same number of points, or all it has: at least 50 each where sizes allow. If there are too
    many samples for that, some of them are drawn. The same points are then compared twice, on a graph of their own
    and through their landmarks, so that the difference is what landmarks do and not the luck of the draw.

    It tells what landmarks lose against the points drawn. Where there are many more points than that, the graph over
    all of them would be finer still, and nobody has seen it.

    Parameters
    ----------
    landmarks
        The landmarks.
    points
        ``(n_points, n_dimensions)``.
    labels
        ``(n_points,)``: the sample of each point; or `Measures` over the points.
    n_points
        Points to draw, about.
    graph
        The graph over the landmarks; default ``landmarks.graph()``. The points drawn are joined with as many
        neighbors and the same kernel.
    model
        Settings other than the defaults, a `DiffusionEMD` without a graph.
    random_state
        Seed of the draw.

    Returns
    -------
    LandmarkAgreement
        Print it.

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
    drawn, masses = _draw(masses, check_integer("n_points", n_points, minimum=2), rng)
    settings = DiffusionEMD(random_state=random_state) if model is None else model
    nodes = landmarks.graph(n_jobs=settings.n_jobs) if graph is None else graph
    here = np.asarray(nodes_here[drawn], dtype=np.float64)
    places, squares = landmarks.nearest(here, n_jobs=settings.n_jobs)
    part = measures_from_weights(masses)
    own = _distances(_graph_like(nodes, here, settings.n_jobs), part, settings)
    through = _distances(nodes, landmarks.measures(part, places), settings)
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
    """Return landmarks and the measures over them, or None where points or a given graph serve as they are.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, checked, or a `Graph`.
    measures
        Over the points.
    landmarks
        How many, None for none, or ``"auto"``.
    random_state, n_jobs, progress
        As in `compare`.
    """
    automatic = isinstance(landmarks, str) and landmarks == "auto"
    if landmarks is None or (automatic and (isinstance(points, Graph) or len(points) <= LANDMARKS_ABOVE)):
        return None
    count = LANDMARKS if automatic else _check_landmarks(landmarks, points)
    progress.stage("find landmarks", 1)
    try:
        centers, assignment = find_landmarks(
            points, count, n_iterations=ITERATIONS, random_state=random_state, n_jobs=n_jobs
        )
    except InvalidInputError:
        if automatic:  # fewer different points than landmarks: hardly anything would be saved
            return None
        raise
    progress.advance()
    return centers, centers.measures(measures, assignment)


def _check_landmarks(landmarks: object, points: Any) -> int:
    if isinstance(landmarks, str):
        raise InvalidInputError(f"{argument('landmarks')} to be a whole number, 'auto' or none", repr(landmarks))
    count = check_integer("landmarks", landmarks, minimum=1)
    if isinstance(points, Graph):
        raise InvalidInputError(
            "points, because landmarks are found among them",
            "a Graph",
            f"give the points, or leave {argument('landmarks')} out",
        )
    return count


def _draw(masses: sp.csr_array, n_points: int, rng: np.random.Generator) -> tuple[Int64, sp.csr_array]:
    """Return the points drawn, ascending, and the masses of the samples drawn on them."""
    rows, per_sample = samples_to_draw(np.diff(masses.indptr), n_points, rng)
    entries, weights = [], []
    for row in rows:
        own = masses.data[masses.indptr[row] : masses.indptr[row + 1]]
        drawn_here = own if own.size <= per_sample else draw_by_mass(own, per_sample, rng).astype(np.float64)
        entries.append(masses.indptr[row] + np.flatnonzero(drawn_here))
        weights.append(drawn_here[drawn_here > 0])
    offsets = np.r_[0, np.cumsum([entry.size for entry in entries])]
    drawn, columns = np.unique(masses.indices[np.concatenate(entries)], return_inverse=True)
    part = sp.csr_array((np.concatenate(weights), columns, offsets), shape=(rows.size, drawn.size))
    return drawn.astype(np.int64), part


def samples_to_draw(
    sizes: npt.NDArray[np.integer], n_points: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.integer], int]:
    """Return samples of which about ``n_points`` are drawn, ascending, and how many of each at most.

    Parameters
    ----------
    sizes
        ``(n_samples,)``: points of each.
    n_points
        To draw; if there are too many samples for `LEAST_PER_SAMPLE` of each, some samples are drawn.
    rng
        Draws the samples.
    """
    rows, most = np.arange(sizes.size), max(n_points // LEAST_PER_SAMPLE, 3)
    if rows.size > most:
        rows = np.sort(rng.choice(rows, most, replace=False))
    return rows, quota(sizes[rows], n_points)


def quota(sizes: npt.NDArray[np.integer], n_points: int) -> int:
    """Return the largest number, at least 1, of which each sample may give that many and all give ``n_points``."""
    low, high = 1, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        if np.minimum(sizes, middle).sum() <= n_points:
            low = middle
        else:
            high = middle - 1
    return low


def _graph_like(nodes: Graph, points: Float64, n_jobs: int | None) -> Graph:
    how = nodes.construction
    count = min(how.get("n_neighbors") or 30, len(points) - 1)
    metric = how.get("metric") or "euclidean"
    return Graph.from_points(points, count, kernel=how.get("kernel") or "gaussian", n_jobs=n_jobs, metric=metric)


def _distances(graph: Graph, measures: Measures, settings: DiffusionEMD) -> Float64:
    with warnings.catch_warnings():  # of a graph that nobody asked for
        warnings.simplefilter("ignore", GraphWarning)
        warnings.simplefilter("ignore", EmbeddingWarning)
        embedding = clone(settings).set_params(graph=graph).fit_transform(measures)
    return np.asarray(pairwise_distances(embedding, n_jobs=settings.n_jobs), dtype=np.float64)
