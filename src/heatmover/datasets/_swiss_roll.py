"""Clouds on a rolled-up sheet."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, euclidean_distance, make_plan

__all__ = ["swiss_roll"]


def swiss_roll(
    n_measures: int = 100,
    *,
    points_per_measure: int = 100,
    spread: float = 1.0,
    n_dimensions: int = 10,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the swiss roll, the sheet (t cos t, y, t sin t).

    Centres are uniform in the angle t between 1.5 pi and 4.5 pi and in the height y between 0 and 21.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation of both the angle t and the height y within each cloud. A point that would pass the
        axis is reflected there, or the sheet would cross itself; at the default spread this hardly happens.
    n_dimensions
        Dimensions of the ambient space, at least 3. In more than 3 the roll is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: the arc length from the axis and the height. True distance:
        Euclidean on the unrolled sheet.

    Examples
    --------
    >>> from heatmover.datasets import swiss_roll
    >>> swiss_roll(5, points_per_measure=50)
    Dataset('swiss_roll', 5 measures, 250 points in 10 dimensions)
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
    angle_centers = 1.5 * np.pi * (1 + 2 * plan.rng.random((n_measures, 1)))
    t = np.abs(plan.scatter(angle_centers))
    height_centers = 21 * plan.rng.random((n_measures, 1))
    y = plan.scatter(height_centers)
    return Dataset(
        name="swiss_roll",
        points=plan.embed(np.hstack([t * np.cos(t), y, t * np.sin(t)])),
        labels=plan.labels,
        coordinates=np.hstack([_arc_length(t), y]),
        annotations={"center": np.hstack([_arc_length(angle_centers), height_centers])},
        ground_distance=euclidean_distance,
    )


def _arc_length(t: Float64) -> Float64:
    """Return the length of the spiral with radius t from the angle 0 to t: the integral of sqrt(1 + t^2)."""
    return (t * np.sqrt(1 + t**2) + np.arcsinh(t)) / 2
