"""A dataset with known truth: points, labels, and the ground distance the points really have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import as_array, check_matrix, check_threads
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures, measures_from_labels
from heatmover.transport.exact import exact_distances

__all__ = ["Dataset", "GroundDistance", "check_indices"]

GroundDistance: TypeAlias = Callable[[Float64, Float64], Float64]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Points in space, the measure each belongs to, and the true distances between them.

    Everything is copied on the way in and read-only afterwards.

    Attributes
    ----------
    name
        What the points lie on.
    points
        float64 (n_points, n_dimensions): what a method gets to see.
    labels
        (n_points,): the measure each point belongs to, as an int64 index or as a name.
    coordinates
        float64 (n_points, n_coordinates): where on the manifold each point lies.
    annotations
        What is known of each measure: arrays (n_measures, ...), in the order of ``measures().names``, which is
        that of the sorted labels.
    ground_distance
        The true distance, as a function of coordinates: (n_a, n_coordinates), (n_b, n_coordinates) ->
        (n_a, n_b).

    Examples
    --------
    >>> from heatmover.datasets import ring
    >>> data = ring(4, points_per_measure=25)
    >>> data
    Dataset('ring', 4 measures, 100 points in 2 dimensions)
    >>> data.measures().shape
    (4, 100)
    >>> data.geodesic([0, 1], [0, 1, 2]).shape
    (2, 3)
    >>> data.annotations["center"].shape
    (4, 1)
    """

    name: str
    points: Float64
    labels: npt.NDArray[Any]
    coordinates: Float64
    annotations: Mapping[str, npt.NDArray[Any]]
    ground_distance: GroundDistance

    def __post_init__(self) -> None:
        points = check_matrix("points", self.points, dtype=np.float64)
        coordinates = check_matrix("coordinates", self.coordinates, dtype=np.float64)
        labels = _check_labels(self.labels)
        if not len(points) == len(coordinates) == len(labels):
            raise InvalidInputError(
                "as many points as coordinates and labels",
                f"{len(points)}, {len(coordinates)} and {len(labels)}",
            )
        annotations = _check_annotations(self.annotations, np.unique(labels).size)
        for field, value in (("points", points), ("labels", labels), ("coordinates", coordinates)):
            object.__setattr__(self, field, _frozen(value))
        object.__setattr__(self, "annotations", MappingProxyType(annotations))

    def measures(self) -> Measures:
        """Return the measures, (n_measures, n_points): each is uniform over the points with its label."""
        return measures_from_labels(self.labels)

    def geodesic(self, rows: npt.ArrayLike, columns: npt.ArrayLike) -> Float64:
        """Return the true distances between some points and others.

        Parameters
        ----------
        rows, columns
            Indices of points, (n_rows,) and (n_columns,).

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Distances along the manifold; ``noise`` in the ambient space is not part of them.
        """
        a, b = (
            self.coordinates[check_indices(name, indices, len(self.points))]
            for name, indices in (("rows", rows), ("columns", columns))
        )
        return self.ground_distance(a, b)

    def exact_emd(self, *, n_jobs: int | None = None) -> Float64:
        """Return the exact Earth Mover's Distances for the true ground distance; needs the extra ``exact``.

        The cost grows with the square of the number of measures and faster than the square of the number of
        points in each: 100 measures of 100 points take a few seconds.

        Parameters
        ----------
        n_jobs
            Threads to use; every available core for None or -1. The result has the same bits for any number.

        Returns
        -------
        ndarray of shape (n_measures, n_measures)
            Symmetric, with zeros on the diagonal, in the order of ``measures().names``.
        """
        return exact_distances(self.measures().masses, self.geodesic, n_threads=check_threads(n_jobs))

    def __repr__(self) -> str:
        n_points, n_dimensions = self.points.shape
        n_measures = np.unique(self.labels).size
        return (
            f"Dataset({self.name!r}, {counted(n_measures, 'measure')}, {counted(n_points, 'point')} in "
            f"{counted(n_dimensions, 'dimension')})"
        )

    def __reduce__(self) -> tuple[type[Dataset], tuple[Any, ...]]:
        # A read-only mapping cannot be pickled, and unpickled arrays would be writeable.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["annotations"] = dict(self.annotations)
        return Dataset, tuple(values.values())


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def _check_labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    array = as_array("labels", labels)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise InvalidInputError(
            "labels (n_points,) of whole numbers or strings", f"shape {array.shape} of {array.dtype}"
        )
    return array if array.dtype.kind == "U" else array.astype(np.int64)


def _check_annotations(annotations: Mapping[str, npt.ArrayLike], n_measures: int) -> dict[str, npt.NDArray[Any]]:
    checked = {name: _frozen(as_array(name, values)) for name, values in annotations.items()}
    for name, values in checked.items():
        if values.shape[:1] != (n_measures,):
            raise InvalidInputError(
                f"the annotation {name!r} to have one value per measure ({n_measures})",
                f"shape {values.shape}",
            )
    return checked


def check_indices(name: str, indices: npt.ArrayLike, n_points: int) -> Int64:
    """Return indices (n_indices,) of ``n_points`` things as int64, or raise."""
    array = as_array(name, indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"{name} to be a list of point indices", f"an array of shape {array.shape} of {array.dtype}"
        )
    if array.size and (array.min() < 0 or array.max() >= n_points):
        raise InvalidInputError(f"{name} in 0..{n_points - 1}", f"indices {array.min()}..{array.max()}")
    return array.astype(np.int64)
