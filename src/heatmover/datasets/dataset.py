"""Define the dataset with ground truth that every generator returns, for users and tests; touch no files."""

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

GroundDistance: TypeAlias = Callable[[Float64, Float64], Float64]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Points in space, the measure to which each point belongs, and the true distances between points.

    All arrays are read-only copies.

    Attributes
    ----------
    name
        Name of the shape.
    points
        float64 (n_points, n_dimensions): positions of the points in space, the input of a method.
    labels
        (n_points,): measure of each point, as an int64 index or as a name.
    coordinates
        float64 (n_points, n_coordinates): position of each point on the manifold.
    annotations
        Ground truth for each measure: arrays (n_measures, ...), in the order of the sorted labels, as in
        ``measures().names``.
    ground_distance
        True distance as a function of coordinates: (n_a, n_coordinates), (n_b, n_coordinates) -> (n_a, n_b).

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
        labels = as_array("labels", self.labels)
        if labels.ndim != 1 or labels.dtype.kind not in "iuU":
            raise InvalidInputError(
                "labels (n_points,) of whole numbers or strings", f"shape {labels.shape} of {labels.dtype}"
            )
        if labels.dtype.kind != "U":
            labels = labels.astype(np.int64)
        if not len(points) == len(coordinates) == len(labels):
            raise InvalidInputError(
                "as many points as coordinates and labels",
                f"{counted(len(points), 'point')}, {len(coordinates):,} coordinates and {len(labels):,} labels",
            )
        n_measures = np.unique(labels).size
        annotations = {name: _frozen(as_array(name, values)) for name, values in self.annotations.items()}
        for name, values in annotations.items():
            if values.shape[:1] != (n_measures,):
                raise InvalidInputError(
                    f"the annotation {name!r} to have one value per measure ({n_measures})", f"shape {values.shape}"
                )
        for field, value in (("points", points), ("labels", labels), ("coordinates", coordinates)):
            object.__setattr__(self, field, _frozen(value))
        object.__setattr__(self, "annotations", MappingProxyType(annotations))

    def measures(self) -> Measures:
        """Return the measures, (n_measures, n_points); each measure is uniform over the points with its label."""
        return measures_from_labels(self.labels)

    def geodesic(self, rows: npt.ArrayLike, columns: npt.ArrayLike) -> Float64:
        """Return the true distances between selected points.

        Parameters
        ----------
        rows, columns
            Indices of points, (n_rows,) and (n_columns,).

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Distances along the manifold, without the ``noise`` of the ambient space.
        """
        a = self.coordinates[check_indices("rows", rows, len(self.points))]
        b = self.coordinates[check_indices("columns", columns, len(self.points))]
        return self.ground_distance(a, b)

    def exact_emd(self, *, n_jobs: int | None = None) -> Float64:
        """Return the exact Earth Mover's Distances for the true ground distance; needs the extra ``exact``.

        The time grows with the square of the number of measures, and faster than the square of the number of points per
        measure. 100 measures of 100 points take a few seconds.

        Parameters
        ----------
        n_jobs
            Number of threads; None or -1 for all available cores. The result is bit-identical for any number of
            threads.

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
        # Default pickling fails on the read-only mapping, and default unpickling would make arrays writable.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["annotations"] = dict(self.annotations)
        return Dataset, tuple(values.values())


def _frozen(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def check_indices(name: str, indices: npt.ArrayLike, n_points: int) -> Int64:
    """Return indices of points as int64, (n_indices,), or raise an error if they are not below ``n_points``."""
    array = as_array(name, indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidInputError(
            f"{name} to be a list of point indices", f"an array of shape {array.shape} of {array.dtype}"
        )
    if array.size and (array.min() < 0 or array.max() >= n_points):
        raise InvalidInputError(
            f"indices from 0 to {n_points - 1} in {name}", f"indices from {array.min()} to {array.max()}"
        )
    return array.astype(np.int64)
