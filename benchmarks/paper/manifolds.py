"""Closed manifolds with points on them, and graphs whose walk approaches heat as the points become many.

One rule for all numbers of points n, in the terms of the paper's theorem: one step of the walk is a diffusion time
epsilon, which must fall with n, and the times compared are epsilon 2^0, ..., epsilon 2^K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import heatmover as hm
from heatmover.embedding.definition import combination

Floats = npt.NDArray[np.float64]

# A step about as long as the spacing. With 4 neighbors the Fibonacci sphere is less even (largest over smallest ratio
# of W to the truth at alpha 0.45, n = 8,000: 5.6, with 8 it is 4.6); longer steps hide the nearest pairs (alpha 0.1 on
# the ring: 4.4 with 4 neighbors, 6.9 with 8).
NEIGHBORS = 8
# K is the first scale with epsilon 2^K of at least this. Of the slowest wave on a ring of radius 1 e^-8 is left, and
# the last term is below 1e-3. The paper's epsilon 2^K = 1 ends before heat has mixed (ring, alpha 0.45, n = 8,000: 5.9
# instead of 5.3); beyond 8 nothing changes.
MIXED = 8.0
# Random points leave gaps, so that a ball needs some log n of them: 8 log2 n. With half of it the ring at alpha 0.45
# and n = 2,000 went from 4.4 to 6.3. By radius, not by count: lists of nearest neighbors differ even between two
# points that nearly coincide, and took the ring at alpha 0.45 to 29.
RANDOM_NEIGHBORS = 8

GEODESICS = {name: getattr(hm.datasets, name)(1).ground_distance for name in ("ring", "sphere", "torus")}


@dataclass(frozen=True)
class Manifold:
    """A closed manifold: how points lie on it, evenly or at random, and in space; ``balls`` unit balls fill it."""

    name: str
    dimension: int
    balls: float
    even: Callable[[int], Floats]
    random: Callable[[int, np.random.Generator], Floats]
    place: Callable[[Floats], Floats]

    def geodesic(self, a: Floats, b: Floats) -> Floats:
        return GEODESICS[self.name](a, b)


def even_angles(dimension: int, n: int) -> Floats:
    side = round(n ** (1 / dimension))
    return 2 * np.pi * np.indices((side,) * dimension).reshape(dimension, -1).T / side


def random_angles(dimension: int, n: int, rng: np.random.Generator) -> Floats:
    return rng.uniform(0, 2 * np.pi, (n, dimension))


def on_circles(angles: Floats) -> Floats:
    return np.hstack([np.cos(angles), np.sin(angles)])


def fibonacci_sphere(n: int) -> Floats:
    height = 1 - (2 * np.arange(n) + 1) / n
    angle, around = np.pi * (1 + np.sqrt(5)) * np.arange(n), np.sqrt(1 - height**2)
    return np.column_stack([around * np.cos(angle), around * np.sin(angle), height])


def random_sphere(n: int, rng: np.random.Generator) -> Floats:
    vectors = rng.standard_normal((n, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


MANIFOLDS = (
    Manifold("ring", 1, np.pi, partial(even_angles, 1), partial(random_angles, 1), on_circles),
    Manifold("sphere", 2, 4.0, fibonacci_sphere, random_sphere, np.asarray),
    Manifold("torus", 2, 4 * np.pi, partial(even_angles, 2), partial(random_angles, 2), on_circles),
)


@dataclass(frozen=True)
class Case:
    """Results on a manifold with their graph, the length of one step of the walk, and the largest scale."""

    manifold: Manifold
    coordinates: Floats
    graph: hm.Graph
    step: float
    max_scale: int

    @classmethod
    def make(cls, manifold: Manifold, coordinates: Floats, **options: Any) -> Case:
        points = manifold.place(coordinates)
        graph = hm.Graph.from_points(points, **options)
        square = mean_square_step(points, graph)
        epsilon = square / (2 * manifold.dimension)
        return cls(manifold, coordinates, graph, np.sqrt(square), int(np.ceil(np.log2(MIXED / epsilon))))

    @classmethod
    def even(cls, manifold: Manifold, n: int) -> Case:
        return cls.make(manifold, manifold.even(n), n_neighbors=NEIGHBORS)

    @classmethod
    def random(cls, manifold: Manifold, n: int, rng: np.random.Generator) -> Case:
        radius = (manifold.balls * RANDOM_NEIGHBORS * np.log2(n) / n) ** (1 / manifold.dimension)
        return cls.make(manifold, manifold.random(n, rng), radius=radius, bandwidth=radius / 2)

    def weights(self, alpha: float, norm: str) -> Floats:
        """Return the factor of every block of the embedding, (n_scales,)."""
        return np.abs(np.diag(combination(range(self.max_scale + 1), alpha=alpha, norm=norm)))


def mean_square_step(points: Floats, graph: hm.Graph) -> float:
    """Return the mean squared length of a step of the walk in its stationary state."""
    # Rows of the affinity are in the order of the points; those of the operator are not.
    density = np.asarray(graph.affinity.sum(axis=1)).ravel()
    entries = graph.affinity.tocoo()
    i, j = entries.coords
    weights = entries.data / (density[i] * density[j])
    return float(weights @ ((points[i] - points[j]) ** 2).sum(axis=1) / weights.sum())
