"""Clouds on a sheet that is bent like an S."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, euclidean_distance, make_plan

__all__ = ["s_curve"]


def s_curve(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.3,
    n_dimensions: int = 3,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on a sheet of height 2, bent like an S: two three-quarter circles of radius 1.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation along the curve and along the height. A point that would go beyond a full circle is
        reflected there, or the sheet would cross itself; at the default spread this does not happen.
    n_dimensions
        Dimensions of the ambient space, at least 3. In more than 3 the sheet is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: the arc length from the middle and the height. True distance:
        Euclidean on the unrolled sheet.

    Examples
    --------
    >>> from heatmover.datasets import s_curve
    >>> data = s_curve(3, points_per_measure=50)
    >>> data.coordinates.shape, data.points.shape
    ((150, 2), (150, 3))
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
    arc_centers = plan.rng.uniform(-1.5 * np.pi, 1.5 * np.pi, (n_measures, 1))
    arcs = _reflect(plan.scatter(arc_centers), 2 * np.pi)
    height_centers = plan.rng.uniform(0, 2, (n_measures, 1))
    heights = plan.scatter(height_centers)
    return Dataset(
        name="s_curve",
        points=plan.embed(np.hstack([np.sin(arcs), heights, np.sign(arcs) * (np.cos(arcs) - 1)])),
        labels=plan.labels,
        coordinates=np.hstack([arcs, heights]),
        annotations={"center": np.hstack([arc_centers, height_centers])},
        ground_distance=euclidean_distance,
    )


def _reflect(values: Float64, limit: float) -> Float64:
    """Fold the line into [-limit, limit]."""
    steps = (values + limit) % (4 * limit)
    return np.where(np.abs(values) <= limit, values, np.minimum(steps, 4 * limit - steps) - limit)
