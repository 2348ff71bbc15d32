"""Sliced Wasserstein distance: the mean of the exact one-dimensional distances along random directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._validation import IntArray, RandomState, check_integer, check_random_state, check_threads
from heatmover.baselines._ground import Ground, check_masses, points_of
from heatmover.baselines._method import Declaration, Features, Traits, embedding_method

__all__ = ["sliced_wasserstein"]

Float64 = npt.NDArray[np.float64]
Slice = Callable[[Float64], Float64]


@embedding_method(
    Declaration(
        "points",
        "Kolouri et al. 2016, Sliced Wasserstein Kernels for Probability Distributions",
        traits=Traits("one per point", "1", centers_from_data=True, smooth_bins=False, geodesic=False),
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

    Each direction is exact; the mean over directions is a lower bound of the EMD, up to the choice of directions,
    and below it by a factor that grows with the square root of the number of dimensions.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``. In one dimension there is one direction, and the result is the
        exact EMD.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    n_directions
        How many directions.
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
    >>> from heatmover.baselines.sliced import sliced_wasserstein
    >>> sliced_wasserstein([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])

    In the plane the mean of \\|cos\\| over all directions, 2 / pi, is what remains of the distance of two points.

    >>> distances = sliced_wasserstein([[0.0, 0.0], [3.0, 4.0]], [[1, 0], [0, 1]], n_directions=2000)
    >>> round(float(distances[0, 1]), 1)  # 5 * 2 / pi = 3.18
    3.2
    """
    points, masses = points_of(ground), check_masses(ground, measures)
    directions = _directions(points.shape[1], n_directions, random_state)
    # Points without mass would only split gaps in two.
    used, columns = np.unique(masses.indices, return_inverse=True)
    masses = sp.csr_array((masses.data, columns, masses.indptr), shape=(masses.shape[0], used.size))
    # Far from the origin the projections would lose digits.
    points = points[used] - points[used[:1]]
    features = _quantiles(masses) or _cumulative(masses)
    for block in _in_threads(features, points, directions, check_threads(n_jobs)):
        block /= len(directions)
        yield block


def _directions(n_dimensions: int, n_directions: int, random_state: RandomState) -> Float64:
    """Return unit vectors ``(n_directions, n_dimensions)``, uniform on the sphere; the axis in one dimension."""
    count, generator = check_integer("n_directions", n_directions, minimum=1), check_random_state(random_state)
    if n_dimensions == 1:
        return np.ones((1, 1))
    directions = generator.standard_normal((count, n_dimensions))
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))


def _in_threads(features: Slice, points: Float64, directions: Float64, n_threads: int) -> Iterator[Float64]:
    """Yield the features of one direction after the other; as many are held as there are threads."""
    if n_threads == 1:
        yield from (features(points @ direction) for direction in directions)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for start in range(0, len(directions), n_threads):
            yield from pool.map(lambda direction: features(points @ direction), directions[start : start + n_threads])


def _cumulative(masses: sp.csr_array) -> Slice:
    """Return the function from projections ``(n_points,)`` to distribution functions times gaps."""
    rows = np.repeat(np.arange(masses.shape[0]), np.diff(masses.indptr))

    def features(projections: Float64) -> Float64:
        places, inverse = np.unique(projections, return_inverse=True)
        gaps = np.diff(places, append=places[-1])  # nothing follows the last place, where all have reached one
        block = np.zeros((masses.shape[0], places.size))
        np.add.at(block, (rows, inverse[masses.indices]), masses.data)
        np.cumsum(block, axis=1, out=block)
        block *= gaps
        return block

    return features


def _quantiles(masses: sp.csr_array) -> Slice | None:
    return None
