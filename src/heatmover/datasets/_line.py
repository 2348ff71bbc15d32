"""Clouds along a line."""

from __future__ import annotations

from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, euclidean_distance, make_plan

__all__ = ["line"]


def line(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.05,
    n_dimensions: int = 1,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw Gaussian clouds along a line, with their centres uniform in [0, 1].

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation of each cloud.
    n_dimensions
        Dimensions of the ambient space, at least 1. In more than 1 the line is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: the position on the line, one column. True distance: that
        of positions.

    Examples
    --------
    >>> from heatmover.datasets import line
    >>> data = line(3, points_per_measure=50, n_dimensions=5)
    >>> data
    Dataset('line', 3 measures, 150 points in 5 dimensions)
    """
    plan = make_plan(
        n_measures,
        points_per_measure,
        spread=spread,
        n_dimensions=n_dimensions,
        own_dimensions=1,
        noise=noise,
        random_state=random_state,
    )
    centers = plan.rng.uniform(0, 1, (n_measures, 1))
    positions = plan.scatter(centers)
    return Dataset(
        name="line",
        points=plan.embed(positions),
        labels=plan.labels,
        coordinates=positions,
        annotations={"center": centers},
        ground_distance=euclidean_distance,
    )
