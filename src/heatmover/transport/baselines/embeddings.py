"""Compare measures by means (pseudobulk), by random slices and by Diffusion EMD, as baselines for users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64
from heatmover._base.validation import RandomState, check_integer, check_random_state, check_threads
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.transport.baselines.ground import Ground, check_masses, graph_of, points_of
from heatmover.transport.baselines.method import Features, embedding_method, pair_method

Slice = Callable[[Float64], Float64]


@pair_method("points", "distance between means (pseudobulk)")
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
        Symmetric distances, zero on the diagonal.

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


@embedding_method("points", "Kolouri et al. 2016, Sliced Wasserstein Kernels for Probability Distributions")
def sliced_wasserstein(
    ground: Ground, measures: Any, *, n_directions: int = 50, random_state: RandomState = 0, n_jobs: int | None = None
) -> Iterator[Features]:
    """Return sliced Wasserstein distances: the mean over random directions of the EMD of the projected measures.

    The result is a lower bound of the EMD. The ratio of the EMD to this bound grows with the square root of the number
    of dimensions.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``. In one dimension there is one direction, and the result is the
        exact EMD.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_directions
        Number of directions. The EMD along a direction is exact. The error of the mean is inversely proportional to the
        square root of the number of directions.
    random_state
        Seed or generator of the directions.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal.

    Examples
    --------
    >>> from heatmover.transport.baselines import sliced_wasserstein
    >>> sliced_wasserstein([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])

    In the plane, the distance between two points shrinks by the factor 2 / pi, the mean of abs(cos) over all
    directions:

    >>> distances = sliced_wasserstein([[0.0, 0.0], [3.0, 4.0]], [[1, 0], [0, 1]], n_directions=2000)
    >>> round(float(distances[0, 1]), 2)  # all directions: 5 * 2 / pi = 3.18
    3.12
    """
    points = points_of(ground)
    masses = check_masses(points, measures)
    count, rng = check_integer("n_directions", n_directions, minimum=1), check_random_state(random_state)
    directions = np.ones((1, 1))  # the only direction in one dimension
    if points.shape[1] > 1:
        directions = rng.standard_normal((count, points.shape[1]))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Drop points without mass, because they would only add features.
    used, columns = np.unique(masses.indices, return_inverse=True)
    masses = sp.csr_array((masses.data, columns, masses.indptr), shape=(masses.shape[0], used.size))
    # Move the points to the origin; far away, projections would lose precision.
    points = points[used] - points[used[0]]
    embed = _quantiles(masses) or _cumulative(masses)
    # Directions are computed one after another, because threads did not help: on two shared cores, 50 directions of 100
    # measures on 10,000 points took 0.12 s with one thread and 0.21 s with two. n_jobs is used for the distances.
    check_threads(n_jobs)
    # Use float64, because the error of float32 would be 1e-3 for similar measures (30 measures whose masses differ by
    # 0.1%).
    yield from (embed(points @ direction / len(directions)) for direction in directions)


def _cumulative(masses: sp.csr_array) -> Slice:
    """Return a function that embeds measures by distribution functions, with one feature per gap of projections."""

    def embed(projections: Float64) -> Float64:
        places, inverse = np.unique(projections, return_inverse=True)
        # A single position has no gap, but at least one feature is needed.
        gaps = np.diff(places) if places.size > 1 else np.zeros(1)
        shape = (masses.shape[0], places.size)
        moved = sp.csr_array((masses.data, inverse[masses.indices], masses.indptr), shape=shape)
        return np.asarray(np.cumsum(moved.toarray(), axis=1)[:, : gaps.size] * gaps)

    return embed


def _quantiles(masses: sp.csr_array) -> Slice | None:
    """Return a function that embeds measures by their quantile functions, or None if this would not save features.

    Quantile functions are the inverses of distribution functions, so the area between two quantile functions equals the
    area between the two distribution functions. The quantile function of c points of equal mass has steps at 1/c, 2/c,
    ... for every direction. 100 measures of 100 points each then have 100 features instead of 10,000. The result is
    None if the masses of a measure are unequal, or if there are at least as many steps as points.
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


@embedding_method("either", "Tong et al. 2021, Diffusion Earth Mover's Distance and Distribution Embeddings")
def diffusion_emd(ground: Ground, measures: Any, *, n_jobs: int | None = None, **settings: Any) -> Iterator[Features]:
    """Return Diffusion EMDs: `DiffusionEMD` in the calling convention of the baselines.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, converted by ``Graph.from_points``, or a `Graph`.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_jobs
        Number of threads; None for all cores.
    **settings
        Parameters of `DiffusionEMD`.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(8, points_per_measure=25)
    >>> hm.baselines.diffusion_emd(data.points, data.measures(), max_scale=6).shape
    (8, 8)
    """
    masses = check_masses(ground, measures)
    yield DiffusionEMD(graph_of(ground, n_jobs=n_jobs), n_jobs=n_jobs, **settings).fit_transform(masses)
