"""Means (pseudobulk), slices along random directions, and Diffusion EMD, called as the other alternatives are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64
from heatmover._base.validation import RandomState, check_integer, check_random_state, check_threads
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.transport.baselines.ground import Ground, check_masses, graph_of, points_of
from heatmover.transport.baselines.method import Declaration, Features, embedding_method, pair_method

__all__ = ["diffusion_emd", "mean_distance", "sliced_wasserstein"]

Slice = Callable[[Float64], Float64]


@pair_method(Declaration("points", "distance between means (pseudobulk)"))
def mean_distance(ground: Ground, measures: Any) -> Float64:
    """Return the Euclidean distances between the means of the measures, a lower bound of their EMD.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal.

    Examples
    --------
    >>> from heatmover.transport.baselines import mean_distance
    >>> mean_distance([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])
    """
    from scipy.spatial.distance import pdist, squareform

    points = points_of(ground)
    means = check_masses(points, measures) @ points
    return np.asarray(squareform(pdist(means)))


@embedding_method(
    Declaration(
        "points",
        "Kolouri et al. 2016, Sliced Wasserstein Kernels for Probability Distributions",
    )
)
def sliced_wasserstein(
    ground: Ground,
    measures: Any,
    *,
    n_directions: int = 50,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Iterator[Features]:
    """Return sliced Wasserstein distances: the mean over random directions of the EMD of the projected measures.

    A lower bound of the EMD, below it by a factor that grows with the square root of the number of dimensions.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``. In one dimension there is one direction, and the result is the
        exact EMD.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_directions
        How many directions. Each is exact; the error of the mean falls with the square root of their number.
    random_state
        Seed or generator of the directions.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal.

    Examples
    --------
    >>> from heatmover.transport.baselines import sliced_wasserstein
    >>> sliced_wasserstein([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])

    In the plane 2 / pi of the distance of two points remains: the mean of abs(cos) over all directions.

    >>> distances = sliced_wasserstein([[0.0, 0.0], [3.0, 4.0]], [[1, 0], [0, 1]], n_directions=2000)
    >>> round(float(distances[0, 1]), 2)  # all directions: 5 * 2 / pi = 3.18
    3.12
    """
    points = points_of(ground)
    masses = check_masses(points, measures)
    directions = _directions(points.shape[1], n_directions, random_state)
    # Points without mass would only cut gaps in two.
    used, columns = np.unique(masses.indices, return_inverse=True)
    masses = sp.csr_array((masses.data, columns, masses.indptr), shape=(masses.shape[0], used.size))
    # Far from the origin projections would lose digits.
    points = points[used] - points[used[0]]
    embed = _quantiles(masses) or _cumulative(masses)
    # One after the other: threads here did not help (50 directions of 100 x 10,000 on two shared cores: 0.12 s alone,
    # 0.21 s in two). n_jobs serves the distances.
    check_threads(n_jobs)
    # In float64: float32 would be off by 1e-3 where measures are alike (30 that differ by 0.1 % in every mass).
    yield from (embed(points @ direction / len(directions)) for direction in directions)


def _directions(n_dimensions: int, n_directions: int, random_state: RandomState) -> Float64:
    """Return unit vectors ``(n_directions, n_dimensions)``, uniform on the sphere; the axis in one dimension."""
    count, generator = check_integer("n_directions", n_directions, minimum=1), check_random_state(random_state)
    if n_dimensions == 1:
        return np.ones((1, 1))
    directions = generator.standard_normal((count, n_dimensions))
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))


def _cumulative(masses: sp.csr_array) -> Slice:
    """Embed by distribution functions: one feature per gap between neighbouring projections."""
    # Here, because numba takes most of a second to import.
    from heatmover._base.compiled.baselines import weighted_cumulative

    starts = masses.indptr.astype(np.int64)

    def embed(projections: Float64) -> Float64:
        places, inverse = np.unique(projections, return_inverse=True)
        # One place has no gap, but features there must be.
        gaps = np.diff(places) if places.size > 1 else np.zeros(1)
        features = np.empty((masses.shape[0], gaps.size))
        weighted_cumulative(starts, inverse[masses.indices], masses.data, gaps, features)
        return features

    return embed


def _quantiles(masses: sp.csr_array) -> Slice | None:
    """Embed by quantile functions, the inverses of distribution functions, if that takes fewer features.

    The area between two distribution functions is also that between their inverses. Of c points of equal mass the
    quantile function has steps at 1/c, 2/c, ... whatever the direction; 100 measures of 100 points each then have
    100 features instead of 10,000. None if masses are unequal, or if the steps of all measures together are more
    than the points.
    """
    counts = np.diff(masses.indptr)
    rows = np.repeat(np.arange(counts.size), counts)
    if not np.array_equal(masses.data, masses.data[masses.indptr[:-1]][rows]):
        return None
    steps = np.unique(np.concatenate([np.arange(1, count + 1) / count for count in np.unique(counts)]))
    if steps.size >= masses.shape[1]:
        return None
    widths = np.diff(steps, prepend=0.0)
    places = masses.indptr[:-1, None] + ((steps - widths / 2) * counts[:, None]).astype(np.int64)

    def embed(projections: Float64) -> Float64:
        values = projections[masses.indices]
        return np.asarray(values[np.lexsort((values, rows))][places] * widths)

    return embed


@embedding_method(
    Declaration(
        "either",
        "Tong et al. 2021, Diffusion Earth Mover's Distance and Distribution Embeddings",
    )
)
def diffusion_emd(ground: Ground, measures: Any, *, n_jobs: int | None = None, **settings: Any) -> Iterator[Features]:
    """Return Diffusion EMDs: `DiffusionEMD` in the calling convention of the baselines.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, of which ``Graph.from_points`` makes a graph, or a `Graph`.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_jobs
        Threads; None for all cores.
    **settings
        Of `DiffusionEMD`.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(8, points_per_measure=25)
    >>> hm.baselines.diffusion_emd(data.points, data.measures(), max_scale=6).shape
    (8, 8)
    """
    masses = check_masses(ground, measures)
    yield DiffusionEMD(graph_of(ground, n_jobs=n_jobs), n_jobs=n_jobs, **settings).fit_transform(masses)
