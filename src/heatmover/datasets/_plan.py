"""What all generators share: checks, labels, scattering around centres, and the way into the ambient space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np

from heatmover._typing import Float64, Int64
from heatmover._validation import RandomState, check_integer, check_random_state
from heatmover.errors import InvalidInputError

__all__ = ["Plan", "RandomState", "check_non_negative", "circle_distance", "euclidean_distance", "make_plan"]

Floats: TypeAlias = Float64


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """The checked options of one dataset and its source of randomness; ``labels`` is (n_points,)."""

    labels: Int64
    spread: float
    n_dimensions: int
    noise: float
    rng: np.random.Generator

    def scatter(self, centers: Floats) -> Floats:
        """Return Gaussian coordinates (n_points, n_coordinates) around centres (n_measures, n_coordinates)."""
        shape = (self.labels.size, centers.shape[1])
        return centers[self.labels] + self.spread * self.rng.standard_normal(shape)

    def embed(self, points: Floats) -> Floats:
        """Turn points of the manifold's own space into (n_points, n_dimensions), by a rotation, plus noise."""
        own = points.shape[1]
        if self.n_dimensions > own:
            square = self.rng.standard_normal((self.n_dimensions, self.n_dimensions))
            points = points @ np.linalg.qr(square).Q[:own]
        if self.noise > 0:
            points = points + self.noise * self.rng.standard_normal(points.shape)
        return points


def make_plan(
    n_measures: int,
    points_per_measure: int,
    *,
    n_dimensions: int,
    own_dimensions: int,
    noise: float,
    random_state: RandomState,
    spread: float = 0.0,
) -> Plan:
    """Check the options that all generators share; the manifold itself needs ``own_dimensions``."""
    n_measures = check_integer("n_measures", n_measures, minimum=1)
    points_per_measure = check_integer("points_per_measure", points_per_measure, minimum=1)
    return Plan(
        labels=np.repeat(np.arange(n_measures), points_per_measure),
        spread=check_non_negative("spread", spread),
        n_dimensions=check_integer("n_dimensions", n_dimensions, minimum=own_dimensions),
        noise=check_non_negative("noise", noise),
        rng=check_random_state(random_state),
    )


def check_non_negative(name: str, value: object) -> float:
    """Return ``value`` as a float, or raise unless it is a finite number of at least zero."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise InvalidInputError(f"{name} to be a finite number of at least 0", repr(value))
    return float(value)  # type: ignore[arg-type]


def euclidean_distance(a: Floats, b: Floats) -> Floats:
    """Return straight-line distances (n_a, n_b): the truth wherever the coordinates unroll the manifold."""
    # Here, because scipy.spatial takes a while to import and is not needed to generate.
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(a, b))


def circle_distance(a: Floats, b: Floats) -> Floats:
    """Return the shorter way around the circle, (n_a, n_b), between angles (n_a,) and (n_b,)."""
    gap = np.abs(a[:, None] - b[None, :]) % (2 * np.pi)
    return np.minimum(gap, 2 * np.pi - gap)
