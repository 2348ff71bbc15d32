"""Create and check measures, rows of masses over points that sum to one; for users and all modules; touch no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import (
    LabelNames,
    as_array,
    check_finite,
    check_matrix,
    check_real,
    check_sparse,
    is_missing,
)
from heatmover._base.words import counted, distinct, find_all, listed, quoted, verb
from heatmover.errors import InvalidInputError

__all__ = ["Measures", "distinct_labels", "is_missing", "measures_from_labels", "measures_from_weights"]

# Largest accepted difference between the sum of a measure and one. The rounding error of a float32 sum over a million
# points is below this limit, and the error of a forgotten normalization is above it.
MASS_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Measures(ReadOnlyArrays):
    """Named probability measures over the points of one graph.

    Create measures with `measures_from_labels` or `measures_from_weights`. Every function of heatmover that takes
    measures also takes a plain array, a SciPy sparse matrix or a DataFrame ``(n_measures, n_points)``.

    `Measures` behave like an array ``(n_measures, n_points)``, so scikit-learn can split them for cross-validation and
    parameter searches. A slice, a mask, a list of indices or a list of names selects measures and returns `Measures`.
    One index or one name returns the masses of one measure as a dense array ``(n_points,)``. Iteration yields one dense
    array per measure. `numpy.asarray` returns a dense copy of all masses.

    Attributes
    ----------
    masses
        Sparse array ``(n_measures, n_points)`` in CSR form, float64; every row sums to one.
    names
        One name per measure.

    Examples
    --------
    >>> mu = measures_from_labels(["b", "a", "b"])
    >>> mu.names, mu.shape
    (('a', 'b'), (2, 3))
    >>> mu.toarray()
    array([[0. , 1. , 0. ],
           [0.5, 0. , 0.5]])
    >>> mu["b"], mu[0]
    (array([0.5, 0. , 0.5]), array([0., 1., 0.]))
    >>> mu[["b", "a"]].names, mu[[False, True]].names, mu[:1].names
    (('b', 'a'), ('b',), ('a',))
    >>> len(mu), [float(masses.max()) for masses in mu], np.asarray(mu).shape
    (2, [1.0, 0.5], (2, 3))
    """

    masses: sp.csr_array
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of measures and points, ``(n_measures, n_points)``."""
        rows, columns = self.masses.shape
        return int(rows), int(columns)

    @property
    def ndim(self) -> int:
        """Number of axes: two, measures and points."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the masses, float64."""
        return np.dtype(np.float64)

    def toarray(self) -> Float64:
        """Return the masses as a dense array ``(n_measures, n_points)``."""
        return np.asarray(self.masses.toarray())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:  # NumPy requires a ValueError here
            raise ValueError("Measures are sparse, so a dense array must be a copy; use copy=None or copy=True.")
        dense = self.toarray()
        return dense if dtype is None else dense.astype(dtype, copy=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Float64]:
        return (self[row] for row in range(len(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, key: Any) -> Any:
        rows = self._rows(key)
        if rows.ndim == 0:
            return np.asarray(self.masses[[int(rows)]].toarray()[0])
        return Measures(sp.csr_array(self.masses[rows]), tuple(self.names[row] for row in rows))

    def _rows(self, key: Any) -> Int64:
        """Return the rows that an index selects, ``(n_rows,)``; one number or one name selects a single row, ``()``."""
        parts = key if isinstance(key, tuple) else (key,)  # scikit-learn uses measures[rows, ...]
        everything = [part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts[1:]]
        if not parts or parts[0] is None or not all(everything):
            raise IndexOfMeasuresError(
                "an index over measures only",
                f"{quoted(key)}",
                "to select points, index measures.masses or np.asarray(measures)",
            )
        count = len(self)
        if parts[0] is Ellipsis or isinstance(parts[0], slice):
            return np.arange(count)[parts[0]]
        index = np.asarray(parts[0])
        if index.ndim < 2 and index.dtype.kind in "iu":
            beyond = (index < -count) | (index >= count)
            if beyond.any():
                raise IndexOfMeasuresError(f"indices of {counted(count, 'measure')}", f"{index[beyond][0]}")
            return np.asarray(index.astype(np.int64) % count)
        if index.ndim == 1 and index.dtype.kind == "b":
            if index.size != count:
                raise IndexOfMeasuresError(
                    f"a mask for {counted(count, 'measure')}", f"a mask of {counted(index.size, 'value')}"
                )
            return np.flatnonzero(index)
        names = index.ravel().tolist()
        if index.ndim < 2 and all(isinstance(name, str) for name in names):
            return np.array(self._places(names), dtype=np.int64).reshape(index.shape)
        raise IndexOfMeasuresError(
            "indices, names, a mask or a slice of measures", f"an array of shape {index.shape} of {index.dtype}"
        )

    def _places(self, names: list[str]) -> list[int]:
        try:
            places = find_all(names, self.names, "the name of a measure")
        except InvalidInputError as error:
            raise IndexOfMeasuresError(error.expected, error.found, error.advice) from None
        counts = Counter(self.names)
        several = [name for name in places if counts[name] > 1]
        if several:
            raise IndexOfMeasuresError(
                "a name that only one measure has", f"{listed(several)} more than once", "use indices"
            )
        return [places[name] for name in names]

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")
        return f"Measures({counted(self.shape[0], 'measure')} on {counted(self.shape[1], 'point')}: {shown})"


class IndexOfMeasuresError(InvalidInputError, IndexError):
    """An index that selects no measure; also an `IndexError`, as Python and NumPy expect."""


def measures_from_labels(labels: npt.ArrayLike, *, names: Sequence[object] | None = None) -> Measures:
    """Create one uniform measure per label, over the points with that label.

    Parameters
    ----------
    labels
        One label per point, ``(n_points,)``: strings, integers or categories.
    names
        Labels to use, in this order. Default: the distinct labels, sorted. Points with other labels belong to no
        measure. A name without any point raises an error.

    Returns
    -------
    Measures
        Measures ``(n_measures, n_points)``; rows sum to one.

    Examples
    --------
    >>> measures_from_labels(["p1", "p1", "p2"], names=["p2", "p1"]).toarray()
    array([[0. , 0. , 1. ],
           [0.5, 0.5, 0. ]])
    """
    different, inverse = distinct_labels(labels)
    if names is not None:
        different, inverse = _select(different, inverse, names)
    kept = np.flatnonzero(inverse >= 0)
    rows = inverse[kept]
    counts = np.bincount(rows, minlength=len(different))
    masses = sp.csr_array((1.0 / counts[rows], (rows, kept)), shape=(len(different), inverse.size))
    return Measures(masses, tuple(LabelNames("labels").add_all(different)))


def measures_from_weights(weights: Any, *, names: Sequence[object] | None = None, normalize: bool = True) -> Measures:
    """Create measures from rows of non-negative weights, such as cell counts per cluster.

    Parameters
    ----------
    weights
        Weights ``(n_measures, n_points)``: a dense array, a SciPy sparse matrix or a DataFrame.
    names
        One name per row. Default: the index of a DataFrame, else ``"0"``, ``"1"``, ...
    normalize
        Divide each row by its sum. False: a row that does not sum to one raises an error.

    Returns
    -------
    Measures
        Measures ``(n_measures, n_points)``; rows sum to one.

    Examples
    --------
    >>> measures_from_weights([[2, 2, 0], [0, 1, 3]], names=["x", "y"]).toarray()
    array([[0.5 , 0.5 , 0.  ],
           [0.  , 0.25, 0.75]])
    """
    # Copy, because the rows may share arrays with the caller's matrix, which must stay writable.
    masses = sp.csr_array(check_measures(weights, normalize=normalize), copy=True)
    masses.eliminate_zeros()
    if names is None:
        names = names_of(weights, masses.shape[0])
    if len(names) != masses.shape[0]:
        raise InvalidInputError(f"one name per row ({masses.shape[0]})", counted(len(names), "name"))
    texts = LabelNames("names").add_all(names)
    distinct(texts, "names of measures", "give every measure a name of its own")
    return Measures(masses, tuple(texts))


def check_measures(measures: Any, *, n_points: int | None = None, normalize: bool = False) -> Float64 | sp.csr_array:
    """Return measures as float64 rows that sum to one, dense or CSR like the input, or raise an error.

    Parameters
    ----------
    measures
        `Measures`, array, sparse matrix or DataFrame ``(n_measures, n_points)``.
    n_points
        Number of points of the graph on which the measures are defined; None if there is no graph yet.
    normalize
        Divide rows by their sums instead of rejecting rows that do not sum to one.
    """
    masses = _as_rows(measures)
    if n_points is not None and masses.shape[1] != n_points:
        raise InvalidInputError(
            f"measures over the graph's {counted(n_points, 'point')}",
            f"rows of width {masses.shape[1]}",
            "rows are measures and columns are points: transpose the matrix if its rows are points",
        )
    values = masses.data if sp.issparse(masses) else masses
    check_finite("measures", masses)
    if values.size and values.min() < 0:
        raise InvalidInputError(
            "non-negative measures",
            f"a smallest value of {values.min():g}",
            "Negative values in data are not masses: shift or clip them first if that is appropriate",
        )
    with np.errstate(over="ignore"):
        totals = np.asarray(masses.sum(axis=1), dtype=np.float64).ravel()
    if (totals == 0).any():
        empty = np.flatnonzero(totals == 0)
        raise InvalidInputError(
            "every measure to have mass",
            f"{counted(empty.size, 'row')} that {verb(empty.size, 'sums', 'sum')} to zero (first: row {empty[0]})",
            "drop them",
        )
    if not np.isfinite(totals).all():
        endless = np.flatnonzero(~np.isfinite(totals))
        raise InvalidInputError("weights with a finite sum", f"an overflow in row {endless[0]}", "rescale them")
    off = np.abs(totals - 1) > MASS_TOLERANCE
    if off.any() and not normalize:
        first = int(np.flatnonzero(off)[0])
        raise InvalidInputError(
            "measures that sum to one",
            f"{counted(int(off.sum()), 'row')} that {verb(int(off.sum()), 'does', 'do')} not (first: row {first}, "
            f"sum {totals[first]:g})",
            "use measures_from_weights or DiffusionEMD(normalize=True) to divide each row by its sum",
        )
    if not sp.issparse(masses):
        return np.asarray(masses / totals[:, None])
    shares = masses.data / np.repeat(totals, np.diff(masses.indptr))
    return sp.csr_array((shares, masses.indices, masses.indptr), shape=masses.shape)


def names_of(measures: Any, n_measures: int) -> tuple[str, ...]:
    """Return the names of ``measures``, or consecutive numbers if they have none."""
    if isinstance(measures, Measures):
        return measures.names
    index = getattr(measures, "index", None)
    if index is not None and not callable(index):
        return tuple(LabelNames("the index").add_all(index))
    return tuple(str(row) for row in range(n_measures))


def _as_rows(measures: Any) -> Any:
    """Convert measures of any type to a float64 array or a canonical CSR array, without checking values."""
    if isinstance(measures, Measures):
        measures = measures.masses
    if not sp.issparse(measures):
        return check_matrix("measures (n_measures, n_points)", measures, dtype=np.float64, finite=False)
    if measures.ndim != 2 or min(measures.shape) == 0:
        raise InvalidInputError("measures of shape (n_measures, n_points)", f"shape {measures.shape}")
    return canonical_rows("measures", measures)


def canonical_rows(name: str, matrix: Any) -> sp.csr_array:
    """Return a matrix as float64 CSR, with unique and ascending columns in each row, or raise an error."""
    check_sparse(name, matrix)
    rows = sp.csr_array(matrix, dtype=check_real(name, matrix.dtype))
    if not rows.has_canonical_format:
        rows = rows.copy()  # sum_duplicates works in place and must not change the caller's matrix
        rows.sum_duplicates()
    return rows


def _check_labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        array = as_array("labels", labels)
    except InvalidInputError:
        raise
    except ValueError:  # some labels are tuples or lists
        raise InvalidInputError("one label per point, text or a number", "labels of different lengths") from None
    if array.ndim != 1 or array.size == 0:
        raise InvalidInputError("one label per point, shape (n_points,)", f"an array of shape {array.shape}")
    # Check the list itself, because NumPy converts NaN to "nan" and 1 to "1" in a list that contains strings.
    originals = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else array
    missing = _missing(originals)
    if missing.any():
        raise InvalidInputError(
            "a label for every point",
            f"{int(missing.sum())} missing (first: point {int(np.flatnonzero(missing)[0])})",
            "drop those points, or give them a label of their own",
        )
    if originals.dtype.kind == "O":
        LabelNames("labels").add_all(originals)
    return array.astype(str) if array.dtype.kind == "M" else array  # name a date by its day, not in nanoseconds


def _missing(array: npt.NDArray[Any]) -> Bool:
    if array.dtype.kind == "f":
        return np.asarray(np.isnan(array))
    if array.dtype.kind in "mM":
        return np.asarray(np.isnat(array))
    if array.dtype.kind in "OT":
        return np.fromiter(map(is_missing, array), dtype=bool, count=array.size)
    return np.zeros(array.shape, dtype=bool)


def distinct_labels(labels: npt.ArrayLike) -> tuple[list[Any], Int64]:
    """Return the sorted distinct labels and the index of each point's label; raise an error if a label is missing."""
    array = _check_labels(labels)
    try:
        values, inverse = np.unique(array, return_inverse=True)
    except TypeError:  # labels of mixed types can only be sorted by name
        values, inverse = np.unique([str(label) for label in array], return_inverse=True)
    return values.tolist(), np.asarray(inverse, dtype=np.int64)


def _select(different: list[Any], inverse: Int64, names: Iterable[object]) -> tuple[list[Any], Int64]:
    """Keep the labels in ``names``, in this order; points with other labels get the index -1."""
    wanted = list(names)
    if not wanted:
        raise InvalidInputError("at least one name", "none", "omit names to get every label")
    place = {name: position for position, name in enumerate(LabelNames("names").add_all(wanted))}
    if len(place) != len(wanted):
        raise InvalidInputError("distinct names", f"{len(wanted) - len(place)} repeated")
    absent = [name for name in place if name not in {str(label) for label in different}]
    if absent:
        raise InvalidInputError(
            "every name to have at least one point", f"no point labeled {', '.join(map(repr, absent[:5]))}"
        )
    mapping = np.array([place.get(str(label), -1) for label in different], dtype=np.int64)
    return wanted, mapping[inverse]
