"""Gaussian clouds that fill their space: no manifold to find, only distances."""

from __future__ import annotations

from heatmover._validation import check_integer
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import RandomState, euclidean_distance, make_plan

__all__ = ["gaussians"]


def gaussians(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.7,
    n_coordinates: int = 5,
    n_dimensions: int | None = None,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw Gaussian clouds in flat space, with their means from the standard normal law.

    Parameters
    ----------
    n_measures
        Number of measures.
    points_per_measure
        Points drawn from each.
    spread
        Standard deviation of each cloud, in every coordinate.
    n_coordinates
        Dimensions that the clouds fill.
    n_dimensions
        Dimensions of the ambient space, at least ``n_coordinates``, which is the default. In more the clouds
        are rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Coordinates and the annotation ``center``: positions in the ``n_coordinates`` dimensions. True distance:
        Euclidean.

    Examples
    --------
    >>> from heatmover.datasets import gaussians
    >>> gaussians(3, points_per_measure=50, n_coordinates=2, n_dimensions=10)
    Dataset('gaussians', 3 measures, 150 points in 10 dimensions)
    """
    n_coordinates = check_integer("n_coordinates", n_coordinates, minimum=1)
    plan = make_plan(
        n_measures,
        points_per_measure,
        spread=spread,
        n_dimensions=n_coordinates if n_dimensions is None else n_dimensions,
        own_dimensions=n_coordinates,
        noise=noise,
        random_state=random_state,
    )
    centers = plan.rng.standard_normal((n_measures, n_coordinates))
    positions = plan.scatter(centers)
    return Dataset(
        name="gaussians",
        points=plan.embed(positions),
        labels=plan.labels,
        coordinates=positions,
        annotations={"center": centers},
        ground_distance=euclidean_distance,
    )
