"""Clouds on the sphere."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, euclidean_distance, make_plan

__all__ = ["great_circle", "sphere"]


def sphere(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.3,
    n_dimensions: int = 3,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the unit sphere: Gaussian in space around uniform centres, then pulled to the sphere.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation of each cloud in space, before it is pulled to the sphere.
    n_dimensions
        Dimensions of the ambient space, at least 3. In more than 3 the sphere is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: unit vectors. True distance: the angle between them, 0 to pi.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import sphere
    >>> data = sphere(3, points_per_measure=50)
    >>> north, south = np.array([[0.0, 0.0, 1.0]]), np.array([[0.0, 0.0, -1.0]])
    >>> data.ground_distance(north, south).round(3)
    array([[3.142]])
    """
    plan = make_plan(
        n_measures,
        points_per_measure,
        spread=spread,
        n_dimensions=n_dimensions,
        own_dimensions=3,
        noise=noise,
        random_state=random_state,
    )
    centers = _unit(plan.rng.standard_normal((n_measures, 3)))
    directions = _unit(plan.scatter(centers))
    return Dataset(
        name="sphere",
        points=plan.embed(directions),
        labels=plan.labels,
        coordinates=directions,
        annotations={"center": centers},
        ground_distance=great_circle,
    )


def _unit(vectors: Float64) -> Float64:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def great_circle(a: Float64, b: Float64) -> Float64:
    """Return the angles (n_a, n_b) between unit vectors (n_a, 3) and (n_b, 3)."""
    # The arc cosine of the scalar product loses half of the digits near 0 and near pi; this form loses none.
    return 2 * np.arctan2(euclidean_distance(a, b), euclidean_distance(a, -b))
