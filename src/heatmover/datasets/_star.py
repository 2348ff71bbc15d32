"""Clouds on arms that meet in one point."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64
from heatmover._validation import check_integer
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, make_plan

__all__ = ["star"]


def star(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.18,
    n_arms: int = 5,
    n_dimensions: int = 2,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the straight arms of a star in the plane, with their centres uniform up to radius 1.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation along the arm. A point that passes the centre of the star goes on along another arm,
        drawn at random.
    n_arms
        Number of arms, at equal angles.
    n_dimensions
        Dimensions of the ambient space, at least 2. In more than 2 the star is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: the index of the arm and the radius. True distance: along
        the arms, through the centre from one arm to another.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import star
    >>> data = star(3, points_per_measure=50)
    >>> data.ground_distance(np.array([[0, 0.5]]), np.array([[0, 0.75], [1, 0.75]]))
    array([[0.25, 1.25]])
    """
    n_arms = check_integer("n_arms", n_arms, minimum=2)
    plan = make_plan(
        n_measures,
        points_per_measure,
        spread=spread,
        n_dimensions=n_dimensions,
        own_dimensions=2,
        noise=noise,
        random_state=random_state,
    )
    arm_centers = plan.rng.integers(0, n_arms, n_measures)
    radius_centers = plan.rng.uniform(0, 1, (n_measures, 1))
    radii = plan.scatter(radius_centers)[:, 0]
    arms = arm_centers[plan.labels]
    others = (arms + plan.rng.integers(1, n_arms, arms.size)) % n_arms
    arms, radii = np.where(radii < 0, others, arms), np.abs(radii)
    angles = 2 * np.pi * arms / n_arms
    return Dataset(
        name="star",
        points=plan.embed(np.column_stack([radii * np.cos(angles), radii * np.sin(angles)])),
        labels=plan.labels,
        coordinates=np.column_stack([arms, radii]),
        annotations={"center": np.column_stack([arm_centers, radius_centers])},
        ground_distance=_distance,
    )


def _distance(a: Float64, b: Float64) -> Float64:
    arm_a, radius_a = a[:, None].transpose(2, 0, 1)
    arm_b, radius_b = b[None, :].transpose(2, 0, 1)
    return np.asarray(np.where(arm_a == arm_b, np.abs(radius_a - radius_b), radius_a + radius_b))
