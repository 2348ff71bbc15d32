"""Clouds around a circle."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, circle_distance, make_plan

__all__ = ["ring"]


def ring(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.4,
    n_dimensions: int = 2,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds around the unit circle, Gaussian in the angle, with their centres uniform.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation of the angle within each cloud, in radians.
    n_dimensions
        Dimensions of the ambient space, at least 2. In more than 2 the circle is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: the angle, one column. True distance: the shorter way around.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import ring
    >>> data = ring(3, points_per_measure=50)
    >>> data.ground_distance(np.array([[0.1]]), np.array([[2 * np.pi - 0.1]])).round(3)
    array([[0.2]])
    """
    plan = make_plan(
        n_measures,
        points_per_measure,
        spread=spread,
        n_dimensions=n_dimensions,
        own_dimensions=2,
        noise=noise,
        random_state=random_state,
    )
    centers = plan.rng.uniform(0, 2 * np.pi, (n_measures, 1))
    angles = plan.scatter(centers) % (2 * np.pi)
    return Dataset(
        name="ring",
        points=plan.embed(np.hstack([np.cos(angles), np.sin(angles)])),
        labels=plan.labels,
        coordinates=angles,
        annotations={"center": centers},
        ground_distance=_distance,
    )


def _distance(a: Float64, b: Float64) -> Float64:
    return circle_distance(a[:, 0], b[:, 0])
