"""Draw clouds of points on shapes with known geodesic distances, for users, tests, `simulated_cohort`; touch no files.

There is one function per shape. All shapes share the following parameters. Each function documents the unit of its
``spread`` and the number of dimensions that its shape needs.

n_measures
    Number of measures: clouds of points, each around its own center on the shape.
points_per_measure
    Number of points of each measure. Labels are 0 to ``n_measures - 1``, and the points of a measure are contiguous.
spread
    Standard deviation of the points of a measure around its center; with 0 all points coincide with the center.
n_dimensions
    Number of dimensions of the ambient space, at least as many as the shape needs. In more dimensions the shape is
    rotated at random, which does not change distances.
noise
    Standard deviation of Gaussian noise added to ``points`` in every direction of the ambient space. The ground truth
    (``coordinates`` and distances) is free of noise.
random_state
    Seed or generator; the same seed gives bit-identical data.

Every function returns a `Dataset` with the annotation ``center``, (n_measures, n_coordinates): the coordinates of the
centers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import RandomState, check_integer, check_random_state
from heatmover.datasets.dataset import Dataset, GroundDistance
from heatmover.errors import InvalidInputError


@final
@dataclass(frozen=True, eq=False)
class Clouds:
    """Checked parameters and random generator of the clouds of one dataset; ``labels`` has the shape (n_points,)."""

    labels: Int64
    spread: float
    n_dimensions: int
    noise: float
    rng: np.random.Generator

    def scatter(self, centers: Float64) -> Float64:
        """Draw Gaussian coordinates (n_points, n_coordinates) around centers (n_measures, n_coordinates)."""
        shape = (self.labels.size, centers.shape[1])
        return centers[self.labels] + self.spread * self.rng.standard_normal(shape)

    def embed(self, points: Float64) -> Float64:
        """Rotate points of the shape's own space into the ambient space, (n_points, n_dimensions), and add noise."""
        own = points.shape[1]
        if self.n_dimensions > own:
            square = self.rng.standard_normal((self.n_dimensions, self.n_dimensions))
            points = points @ np.linalg.qr(square).Q[:own]
        if self.noise > 0:
            points = points + self.noise * self.rng.standard_normal(points.shape)
        return points

    def dataset(
        self, name: str, points: Float64, coordinates: Float64, centers: Float64, distance: GroundDistance
    ) -> Dataset:
        """Return the dataset for points in the shape's own space and their coordinates."""
        return Dataset(name, self.embed(points), self.labels, coordinates, {"center": centers}, distance)


def make_clouds(
    n_measures: int,
    points_per_measure: int,
    spread: float,
    n_dimensions: int,
    noise: float,
    random_state: RandomState,
    *,
    needs: int,
) -> Clouds:
    """Check the parameters that all shapes share; ``needs`` is the number of dimensions that the shape needs."""
    n_measures = check_integer("n_measures", n_measures, minimum=1)
    points_per_measure = check_integer("points_per_measure", points_per_measure, minimum=1)
    return Clouds(
        labels=np.repeat(np.arange(n_measures), points_per_measure),
        spread=check_non_negative("spread", spread),
        n_dimensions=check_integer("n_dimensions", n_dimensions, minimum=needs),
        noise=check_non_negative("noise", noise),
        rng=check_random_state(random_state),
    )


def check_non_negative(name: str, value: object) -> float:
    """Return ``value`` as a float; raise an error if it is not a finite number of at least zero."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise InvalidInputError(f"{name} to be a finite number of at least 0", repr(value))
    return float(value)  # type: ignore[arg-type]


def line(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.05,
    n_dimensions: int = 1,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw Gaussian clouds along a line, with centers distributed uniformly in [0, 1].

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation of each cloud.
    n_dimensions
        Number of dimensions of the ambient space, at least 1. With more than 1, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain one column, the position on the line. The true
        distance is the difference of positions.

    Examples
    --------
    >>> from heatmover.datasets import line
    >>> data = line(3, points_per_measure=50, n_dimensions=5)
    >>> data
    Dataset('line', 3 measures, 150 points in 5 dimensions)
    """
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=1)
    centers = clouds.rng.uniform(0, 1, (n_measures, 1))
    positions = clouds.scatter(centers)
    return clouds.dataset("line", positions, positions, centers, euclidean_distance)


def ring(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.4,
    n_dimensions: int = 2,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the unit circle: the angles are Gaussian around uniformly distributed centers.

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation of the angle within each cloud, in radians.
    n_dimensions
        Number of dimensions of the ambient space, at least 2. With more than 2, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain one column, the angle. The true distance is the
        length of the shorter arc between two points.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import ring
    >>> data = ring(3, points_per_measure=50)
    >>> data.ground_distance(np.array([[0.1]]), np.array([[2 * np.pi - 0.1]])).round(3)
    array([[0.2]])
    """
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=2)
    centers = clouds.rng.uniform(0, 2 * np.pi, (n_measures, 1))
    angles = clouds.scatter(centers) % (2 * np.pi)
    return clouds.dataset("ring", np.hstack([np.cos(angles), np.sin(angles)]), angles, centers, circle_distance)


def swiss_roll(
    n_measures: int = 100,
    *,
    points_per_measure: int = 100,
    spread: float = 1.0,
    height_spread: float | None = None,
    n_dimensions: int = 10,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the swiss roll, the sheet (t cos t, y, t sin t).

    Centers are uniform in the angle t between 1.5 pi and 4.5 pi and in the height y between 0 and 21.

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation of the angle t within each cloud, and of the height y unless ``height_spread`` is given.
        Points beyond the axis of the roll are reflected, because otherwise the sheet would cross itself. With the
        default spread hardly any point is reflected.
    height_spread
        Standard deviation of the height, if it differs from the standard deviation of the angle. None: equal to
        ``spread``. With a spread of 3 and a height spread of 7, all clouds overlap.
    n_dimensions
        Number of dimensions of the ambient space, at least 3. With more than 3, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain the arc length from the axis and the height. The
        true distance is the Euclidean distance on the unrolled sheet.

    Examples
    --------
    >>> from heatmover.datasets import swiss_roll
    >>> swiss_roll(5, points_per_measure=50)
    Dataset('swiss_roll', 5 measures, 250 points in 10 dimensions)
    """
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=3)
    angle_centers = 1.5 * np.pi * (1 + 2 * clouds.rng.random((n_measures, 1)))
    t = np.abs(clouds.scatter(angle_centers))
    height_centers = 21 * clouds.rng.random((n_measures, 1))
    tall = (
        clouds if height_spread is None else replace(clouds, spread=check_non_negative("height_spread", height_spread))
    )
    y = tall.scatter(height_centers)
    return clouds.dataset(
        "swiss_roll",
        np.hstack([t * np.cos(t), y, t * np.sin(t)]),
        np.hstack([_arc_length(t), y]),
        np.hstack([_arc_length(angle_centers), height_centers]),
        euclidean_distance,
    )


def _arc_length(t: Float64) -> Float64:
    """Return the length of the spiral with radius t from the angle 0 to t: the integral of sqrt(1 + t^2)."""
    return (t * np.sqrt(1 + t**2) + np.arcsinh(t)) / 2


def s_curve(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.3,
    n_dimensions: int = 3,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on an S-shaped sheet of height 2: two three-quarter circles of radius 1.

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation along the curve and along the height. Points beyond a full circle are reflected, because
        otherwise the sheet would cross itself. With the default spread no point is reflected.
    n_dimensions
        Number of dimensions of the ambient space, at least 3. With more than 3, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain the arc length from the middle and the height.
        The true distance is the Euclidean distance on the unrolled sheet.

    Examples
    --------
    >>> from heatmover.datasets import s_curve
    >>> data = s_curve(3, points_per_measure=50)
    >>> data.coordinates.shape, data.points.shape
    ((150, 2), (150, 3))
    """
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=3)
    arc_centers = clouds.rng.uniform(-1.5 * np.pi, 1.5 * np.pi, (n_measures, 1))
    arcs = _reflect(clouds.scatter(arc_centers), 2 * np.pi)
    height_centers = clouds.rng.uniform(0, 2, (n_measures, 1))
    heights = clouds.scatter(height_centers)
    return clouds.dataset(
        "s_curve",
        np.hstack([np.sin(arcs), heights, np.sign(arcs) * (np.cos(arcs) - 1)]),
        np.hstack([arcs, heights]),
        np.hstack([arc_centers, height_centers]),
        euclidean_distance,
    )


def _reflect(values: Float64, limit: float) -> Float64:
    """Reflect values at both limits, so that all lie in [-limit, limit]."""
    steps = (values + limit) % (4 * limit)
    return np.where(np.abs(values) <= limit, values, np.minimum(steps, 4 * limit - steps) - limit)


def sphere(
    n_measures: int = 60,
    *,
    points_per_measure: int = 100,
    spread: float = 0.3,
    n_dimensions: int = 3,
    noise: float = 0.0,
    random_state: RandomState = 0,
) -> Dataset:
    """Draw clouds on the unit sphere: Gaussian in space around uniform centers, then projected to the sphere.

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation of each cloud in space, before it is projected to the sphere.
    n_dimensions
        Number of dimensions of the ambient space, at least 3. With more than 3, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain unit vectors. The true distance is the angle
        between two vectors, 0 to pi.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import sphere
    >>> data = sphere(3, points_per_measure=50)
    >>> north, south = np.array([[0.0, 0.0, 1.0]]), np.array([[0.0, 0.0, -1.0]])
    >>> data.ground_distance(north, south).round(3)
    array([[3.142]])
    """
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=3)
    centers = _unit(clouds.rng.standard_normal((n_measures, 3)))
    directions = _unit(clouds.scatter(centers))
    return clouds.dataset("sphere", directions, directions, centers, great_circle)


def _unit(vectors: Float64) -> Float64:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


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
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation of both angles within each cloud, in radians.
    n_dimensions
        Number of dimensions of the ambient space, at least 4. With more than 4, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain the two angles. The true distance is the square
        root of the sum of the squared lengths of the shorter arcs on both circles.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import torus
    >>> data = torus(3, points_per_measure=50)
    >>> data.ground_distance(np.array([[0.1, 3.0]]), np.array([[2 * np.pi - 0.2, 3.4]])).round(3)
    array([[0.5]])
    """
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=4)
    centers = clouds.rng.uniform(0, 2 * np.pi, (n_measures, 2))
    angles = clouds.scatter(centers) % (2 * np.pi)
    first, second = angles.T
    return clouds.dataset(
        "torus",
        np.column_stack([np.cos(first), np.sin(first), np.cos(second), np.sin(second)]),
        angles,
        centers,
        circle_distance,
    )


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
    """Draw Gaussian clouds in flat space, with means from the standard normal distribution.

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation of each cloud, in every coordinate.
    n_coordinates
        Number of dimensions in which the clouds vary.
    n_dimensions
        Number of dimensions of the ambient space, at least ``n_coordinates``. None: ``n_coordinates``. With more than
        ``n_coordinates``, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain positions in ``n_coordinates`` dimensions. The
        true distance is the Euclidean distance.

    Examples
    --------
    >>> from heatmover.datasets import gaussians
    >>> gaussians(3, points_per_measure=50, n_coordinates=2, n_dimensions=10)
    Dataset('gaussians', 3 measures, 150 points in 10 dimensions)
    """
    n_coordinates = check_integer("n_coordinates", n_coordinates, minimum=1)
    clouds = make_clouds(
        n_measures,
        points_per_measure,
        spread,
        n_coordinates if n_dimensions is None else n_dimensions,
        noise,
        random_state,
        needs=n_coordinates,
    )
    centers = clouds.rng.standard_normal((n_measures, n_coordinates))
    positions = clouds.scatter(centers)
    return clouds.dataset("gaussians", positions, positions, centers, euclidean_distance)


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
    """Draw clouds on the straight arms of a star in the plane, with centers distributed uniformly up to radius 1.

    Parameters
    ----------
    n_measures, points_per_measure, noise, random_state
        Parameters that all shapes share, explained in `heatmover.datasets.shapes`.
    spread
        Standard deviation along the arm. A point that passes the center of the star continues along another arm, drawn
        at random.
    n_arms
        Number of arms, at equal angles.
    n_dimensions
        Number of dimensions of the ambient space, at least 2. With more than 2, the shape is rotated at random.

    Returns
    -------
    Dataset
        Dataset whose ``coordinates`` and annotation ``center`` contain the index of the arm and the radius. The true
        distance is the length of the path along the arms, which leads through the center from one arm to another.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.datasets import star
    >>> data = star(3, points_per_measure=50)
    >>> data.ground_distance(np.array([[0, 0.5]]), np.array([[0, 0.75], [1, 0.75]]))
    array([[0.25, 1.25]])
    """
    n_arms = check_integer("n_arms", n_arms, minimum=2)
    clouds = make_clouds(n_measures, points_per_measure, spread, n_dimensions, noise, random_state, needs=2)
    arm_centers = clouds.rng.integers(0, n_arms, n_measures)
    radius_centers = clouds.rng.uniform(0, 1, (n_measures, 1))
    radii = clouds.scatter(radius_centers)[:, 0]
    arms = arm_centers[clouds.labels]
    others = (arms + clouds.rng.integers(1, n_arms, arms.size)) % n_arms
    arms, radii = np.where(radii < 0, others, arms), np.abs(radii)
    angles = 2 * np.pi * arms / n_arms
    return clouds.dataset(
        "star",
        np.column_stack([radii * np.cos(angles), radii * np.sin(angles)]),
        np.column_stack([arms, radii]),
        np.column_stack([arm_centers, radius_centers]),
        _star_distance,
    )


def _star_distance(a: Float64, b: Float64) -> Float64:
    arm_a, radius_a = a[:, None].transpose(2, 0, 1)
    arm_b, radius_b = b[None, :].transpose(2, 0, 1)
    return np.asarray(np.where(arm_a == arm_b, np.abs(radius_a - radius_b), radius_a + radius_b))


def euclidean_distance(a: Float64, b: Float64) -> Float64:
    """Return Euclidean distances (n_a, n_b); they are geodesic distances if the coordinates unroll the manifold."""
    # Imported here because scipy.spatial takes a while to import and generating data does not need it.
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(a, b))


def circle_distance(a: Float64, b: Float64) -> Float64:
    """Return the distances (n_a, n_b) between points with angles (n_a, n_angles) and (n_b, n_angles) on circles."""
    gap = np.abs(a[:, None] - b[None, :]) % (2 * np.pi)
    return np.asarray(np.hypot.reduce(np.minimum(gap, 2 * np.pi - gap), axis=2))


def great_circle(a: Float64, b: Float64) -> Float64:
    """Return the angles (n_a, n_b) between unit vectors (n_a, 3) and (n_b, 3)."""
    # The arc cosine of the scalar product loses half of the digits near 0 and pi; this formula loses none.
    return 2 * np.arctan2(euclidean_distance(a, b), euclidean_distance(a, -b))
