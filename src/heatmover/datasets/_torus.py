"""Clouds on the flat torus."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, circle_distance, make_plan

__all__ = ["torus"]


def torus(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.5,
    n_dimensions: int = 4,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the flat torus in four dimensions, the product of two unit circles.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation of both angles within each cloud, in radians.
    n_dimensions
        Dimensions of the ambient space, at least 4. In more than 4 the torus is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: the two angles. True distance: Euclidean in the two
        shorter ways around.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import torus
    >>> data = torus(3, points_per_measure=50)
    >>> data.ground_distance(np.array([[0.1, 3.0]]), np.array([[2 * np.pi - 0.2, 3.4]])).round(3)
    array([[0.5]])
    """
    plan = make_plan(
        n_measures,
        points_per_measure,
        spread=spread,
        n_dimensions=n_dimensions,
        own_dimensions=4,
        noise=noise,
        random_state=random_state,
    )
    centers = plan.rng.uniform(0, 2 * np.pi, (n_measures, 2))
    angles = plan.scatter(centers) % (2 * np.pi)
    first, second = angles.T
    return Dataset(
        name="torus",
        points=plan.embed(np.column_stack([np.cos(first), np.sin(first), np.cos(second), np.sin(second)])),
        labels=plan.labels,
        coordinates=angles,
        annotations={"center": centers},
        ground_distance=_distance,
    )


def _distance(a: Float64, b: Float64) -> Float64:
    return np.hypot(circle_distance(a[:, 0], b[:, 0]), circle_distance(a[:, 1], b[:, 1]))
