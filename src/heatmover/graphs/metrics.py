"""Define the metrics that have an exact neighbor search, for `Graph` and `transport`; it computes on arrays only.

Cosine, correlation and great-circle distances increase with the Euclidean distance between points on a sphere, so a
Euclidean search finds the nearest neighbors under these metrics. A k-d tree supports L1 and maximum distances directly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._base.types import Bool, Float64
from heatmover._base.validation import check_option
from heatmover._base.words import counted, verb
from heatmover.errors import InvalidInputError, argument

Map = Callable[[Float64], Float64]


def _same(values: Float64) -> Float64:
    return values


@final
@dataclass(frozen=True)
class Metric:
    """A metric, as a monotone function of a norm between transformed points.

    Attributes
    ----------
    place
        Function that transforms points to ``(n_points, n_coordinates)``.
    length
        Non-decreasing function from the norm between two transformed points to their distance.
    radius
        Inverse of ``length``.
    order
        Order of the norm: 2, 1 or infinity.
    """

    place: Map = _same
    length: Map = _same
    radius: Map = _same
    order: float = 2.0

    def between(self, one: Float64, other: Float64) -> Float64:
        """Return all distances between two sets of points transformed by ``place``, ``(n_one, n_other)``."""
        from scipy.spatial.distance import cdist

        apart = cdist(one, other, "chebyshev") if np.isinf(self.order) else cdist(one, other, "minkowski", p=self.order)
        return self.length(np.asarray(apart))


def _directions(points: Float64) -> Float64:
    """Scale points to length one."""
    largest = np.abs(points).max(axis=1, keepdims=True)
    _reject(largest[:, 0] == 0, "cosine", "nonzero points", "zero")
    scaled = points / largest  # keeps squares within the range of a float
    return np.asarray(scaled / np.sqrt((scaled**2).sum(axis=1, keepdims=True)))


def _centered_directions(points: Float64) -> Float64:
    constant = points.max(axis=1) == points.min(axis=1)
    _reject(constant, "correlation", "non-constant points", "constant")
    return _directions(points - points.mean(axis=1, keepdims=True))


def _on_globe(points: Float64) -> Float64:
    """Convert latitude and longitude in radians to points on the unit sphere."""
    if points.shape[1] != 2:
        raise InvalidInputError(
            f"latitude and longitude with {argument('metric', 'haversine')}", f"{counted(points.shape[1], 'column')}"
        )
    latitude, longitude = points.T
    if np.abs(latitude).max() > np.pi / 2 * (1 + 1e-9) or np.abs(longitude).max() > 2 * np.pi * (1 + 1e-9):
        raise InvalidInputError(
            "latitude and longitude in radians",
            f"values up to {np.abs(latitude).max():g} and {np.abs(longitude).max():g}",
            "use np.radians(degrees)",
        )
    ring = np.cos(latitude)
    return np.stack([ring * np.cos(longitude), ring * np.sin(longitude), np.sin(latitude)], axis=1)


def _reject(bad: Bool, metric: str, expected: str, actual: str) -> None:
    if bad.any():
        raise InvalidInputError(
            f"{expected} with {argument('metric', metric)}",
            f"{counted(int(bad.sum()), 'row')} that {verb(int(bad.sum()), 'is', 'are')} {actual} (first: row "
            f"{int(np.argmax(bad))})",
            "drop them",
        )


def _half_square(chord: Float64) -> Float64:
    return np.asarray(chord**2 / 2)


def _root_of_double(distance: Float64) -> Float64:
    return np.sqrt(2 * distance)


def _arc(chord: Float64) -> Float64:
    return np.asarray(2 * np.arcsin(np.minimum(chord / 2, 1.0)))


def _chord(arc: Float64) -> Float64:
    return np.asarray(2 * np.sin(np.minimum(arc, np.pi) / 2))


# Metrics under the names that scikit-learn and SciPy use.
METRICS: dict[str, Metric] = {
    "euclidean": Metric(),
    "cosine": Metric(_directions, _half_square, _root_of_double),
    "correlation": Metric(_centered_directions, _half_square, _root_of_double),
    "haversine": Metric(_on_globe, _arc, _chord),
    "manhattan": Metric(order=1.0),
    "chebyshev": Metric(order=np.inf),
}
ALIASES = {"l2": "euclidean", "l1": "manhattan", "cityblock": "manhattan"}


def find_metric(name: str) -> tuple[str, Metric]:
    """Return the canonical name of a metric and the metric, or raise an error if it has no exact neighbor search.

    Examples
    --------
    >>> find_metric("cityblock")[0]
    'manhattan'
    >>> find_metric("jaccard")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected metric to be one of 'euclidean', ..., found 'jaccard'; for other ...
    """
    known = ALIASES.get(name, name) if isinstance(name, str) else name
    try:
        check_option("metric", known, METRICS)
    except InvalidInputError as error:
        advice = "for other metrics use Graph.from_distances(distances), e.g. from sklearn.neighbors.kneighbors_graph"
        raise InvalidInputError(error.expected, repr(name), advice) from None
    return known, METRICS[known]
