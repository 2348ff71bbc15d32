"""The distance between means, known to biologists as pseudobulk: the plainest comparison there is."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._typing import Float64
from heatmover.baselines._ground import Ground, check_masses, points_of
from heatmover.baselines._method import Declaration, pair_method

__all__ = ["mean_distance"]


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
    >>> from heatmover.baselines import mean_distance
    >>> mean_distance([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])
    """
    from scipy.spatial.distance import pdist, squareform

    points = points_of(ground)
    means = check_masses(points, measures) @ points
    return np.asarray(squareform(pdist(means)))
