"""Measures: rows of non-negative masses over the points of a graph, each row summing to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._typing import Bool, Float64, Int64
from heatmover._validation import LabelNames, as_array, check_finite, check_matrix, check_real, check_sparse
from heatmover.errors import InvalidInputError

__all__ = ["Measures", "distinct_labels", "is_missing", "measures_from_labels", "measures_from_weights"]

# Rounding of a float32 sum over a million points stays below this; a forgotten normalisation does not.
MASS_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Measures:
    """Named probability measures over the points of one graph.

    Build it with `measures_from_labels` or `measures_from_weights`; every function of heatmover that takes
    measures also takes a plain array, a SciPy sparse matrix or a DataFrame of the same shape.

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
    """

    masses: sp.csr_array
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """``(n_measures, n_points)``."""
        rows, columns = self.masses.shape
        return int(rows), int(columns)

    def toarray(self) -> Float64:
        """Return the masses as a dense array ``(n_measures, n_points)``."""
        return np.asarray(self.masses.toarray())

    def __len__(self) -> int:
        return self.shape[0]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _frozen(self.masses)  # a pickle forgets that its arrays were read-only

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")
        return f"Measures({self.shape[0]} measures on {self.shape[1]} points: {shown})"


def measures_from_labels(labels: npt.ArrayLike, *, names: Sequence[object] | None = None) -> Measures:
    """Make one uniform measure per distinct label: each point belongs to the measure its label names.

    Parameters
    ----------
    labels
        One label per point, ``(n_points,)``: strings, integers or categories.
    names
        The measures wanted, in this order. Default: the distinct labels, sorted. Points with another label
        belong to no measure; a name that no point carries is an error.

    Returns
    -------
    Measures
        ``(n_measures, n_points)``, rows sum to one.

    Examples
    --------
    >>> measures_from_labels(["p1", "p1", "p2"], names=["p2", "p1"]).toarray()
    array([[0. , 0. , 1. ],
           [0.5, 0.5, 0. ]])
    """
    found, inverse = distinct_labels(labels)
    if names is not None:
        found, inverse = _select(found, inverse, names)
    kept = np.flatnonzero(inverse >= 0)
    rows = inverse[kept]
    counts = np.bincount(rows, minlength=len(found))
    masses = sp.csr_array((1.0 / counts[rows], (rows, kept)), shape=(len(found), inverse.size))
    return Measures(_frozen(masses), tuple(LabelNames("labels").add_all(found)))


def measures_from_weights(weights: Any, *, names: Sequence[object] | None = None, normalize: bool = True) -> Measures:
    """Make measures from rows of non-negative weights, such as cell counts per cluster.

    Parameters
    ----------
    weights
        ``(n_measures, n_points)``, dense, SciPy sparse or DataFrame (whose index gives the names).
    names
        One name per row. Default: the DataFrame's index, else ``"0"``, ``"1"``, ...
    normalize
        Divide each row by its sum. With False a row that does not sum to one is an error.

    Returns
    -------
    Measures
        ``(n_measures, n_points)``, rows sum to one.

    Examples
    --------
    >>> measures_from_weights([[2, 2, 0], [0, 1, 3]], names=["x", "y"]).toarray()
    array([[0.5 , 0.5 , 0.  ],
           [0.  , 0.25, 0.75]])
    """
    masses = sp.csr_array(check_measures(weights, normalize=normalize), copy=True)
    masses.eliminate_zeros()
    if names is None:
        names = names_of(weights, masses.shape[0])
    if len(names) != masses.shape[0]:
        raise InvalidInputError(f"one name per row ({masses.shape[0]})", f"{len(names)} names")
    # A copy: the rows still share their structure with the caller's matrix, which is not ours to freeze.
    return Measures(_frozen(sp.csr_array(masses, copy=True)), tuple(LabelNames("names").add_all(names)))


def check_measures(measures: Any, *, n_points: int | None = None, normalize: bool = False) -> Float64 | sp.csr_array:
    """Return measures as float64 rows that sum to one, dense or CSR as they came, or raise.

    Parameters
    ----------
    measures
        `Measures`, array, sparse matrix or DataFrame ``(n_measures, n_points)``.
    n_points
        Number of points of the graph the measures live on, if known.
    normalize
        Divide rows by their sums instead of refusing rows that do not sum to one.
    """
    masses = _as_rows(measures)
    if n_points is not None and masses.shape[1] != n_points:
        raise InvalidInputError(
            f"measures over the graph's {n_points} points",
            f"rows of width {masses.shape[1]}",
            "rows are measures, columns are points: pass the transpose if it is the other way round",
        )
    values = masses.data if sp.issparse(masses) else masses
    check_finite("measures", masses)
    if values.size and values.min() < 0:
        raise InvalidInputError(
            "non-negative measures",
            f"a smallest value of {values.min():g}",
            "Negative values in data are not masses: shift or clip them first if that is what you mean",
        )
    totals = _check_totals(masses)
    off = np.abs(totals - 1) > MASS_TOLERANCE
    if off.any() and not normalize:
        first = int(np.flatnonzero(off)[0])
        raise InvalidInputError(
            "measures that sum to one",
            f"{int(off.sum())} rows that do not (first: row {first}, sum {totals[first]:g})",
            "use measures_from_weights or DiffusionEMD(normalize=True) to divide each row by its sum",
        )
    return _divide_rows(masses, totals)


def names_of(measures: Any, n_measures: int) -> tuple[str, ...]:
    """Return the names that ``measures`` carry, else running numbers."""
    if isinstance(measures, Measures):
        return measures.names
    index = getattr(measures, "index", None)
    if index is not None and not callable(index):
        return tuple(LabelNames("the index").add_all(index))
    return tuple(str(row) for row in range(n_measures))


def _as_rows(measures: Any) -> Any:
    """Bring whatever holds measures into a float64 array or a canonical CSR array, values unchecked."""
    if isinstance(measures, Measures):
        measures = measures.masses
    if not sp.issparse(measures):
        return check_matrix("measures (n_measures, n_points)", measures, dtype=np.float64, finite=False)
    check_sparse("measures", measures)
    if measures.ndim != 2 or min(measures.shape) == 0:
        raise InvalidInputError("measures of shape (n_measures, n_points)", f"shape {measures.shape}")
    rows = sp.csr_array(measures, dtype=check_real("measures", measures.dtype))
    if not rows.has_canonical_format:
        rows = rows.copy()  # sum_duplicates works in place and the caller's matrix is not ours
        rows.sum_duplicates()
    return rows


def _check_totals(masses: Any) -> Float64:
    """Return the sum of every row, or raise if one is zero or too large for a float."""
    with np.errstate(over="ignore"):
        totals = np.asarray(masses.sum(axis=1), dtype=np.float64).ravel()
    if (totals == 0).any():
        empty = np.flatnonzero(totals == 0)
        raise InvalidInputError(
            "every measure to have mass",
            f"{empty.size} rows that sum to zero (first: row {empty[0]})",
            "drop them",
        )
    if not np.isfinite(totals).all():
        endless = np.flatnonzero(~np.isfinite(totals))
        raise InvalidInputError("weights with a finite sum", f"an overflow in row {endless[0]}", "rescale them")
    return totals


def _divide_rows(masses: Any, totals: Float64) -> Any:
    if not sp.issparse(masses):
        return masses / totals[:, None]
    scaled = masses.data / np.repeat(totals, np.diff(masses.indptr))
    return sp.csr_array((scaled, masses.indices, masses.indptr), shape=masses.shape)


def _check_labels(labels: npt.ArrayLike) -> npt.NDArray[Any]:
    array = as_array("labels", labels)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInputError("one label per point, shape (n_points,)", f"an array of shape {array.shape}")
    # In a list of strings NumPy has already spelt NaN as "nan" and 1 as "1": look at the list itself.
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
    return array.astype(str) if array.dtype.kind == "M" else array  # a date's name is the date, not its nanoseconds


def _missing(array: npt.NDArray[Any]) -> Bool:
    if array.dtype.kind == "f":
        return np.asarray(np.isnan(array))
    if array.dtype.kind in "mM":
        return np.asarray(np.isnat(array))
    if array.dtype.kind in "OT":
        return np.fromiter(map(is_missing, array), dtype=bool, count=array.size)
    return np.zeros(array.shape, dtype=bool)


def is_missing(label: object) -> bool:
    """Recognise None, a masked value, NaN of any float type, and pandas' NA and NaT, which differ from themselves."""
    return (
        label is None
        or type(label).__name__ in ("NAType", "NaTType", "MaskedConstant")
        or (isinstance(label, float | np.floating) and bool(np.isnan(label)))
    )


def distinct_labels(labels: npt.ArrayLike) -> tuple[list[Any], Int64]:
    """Return the sorted distinct labels and each point's position among them, or raise if a point has none."""
    array = _check_labels(labels)
    try:
        values, inverse = np.unique(array, return_inverse=True)
    except TypeError:  # labels of several types have no order but that of their names
        values, inverse = np.unique([str(label) for label in array], return_inverse=True)
    return values.tolist(), np.asarray(inverse, dtype=np.int64)


def _select(found: list[Any], inverse: Int64, names: Iterable[object]) -> tuple[list[Any], Int64]:
    """Keep the measures called ``names``, in that order; other points get position -1."""
    wanted = list(names)
    if not wanted:
        raise InvalidInputError("at least one name", "none", "leave names out to get every label")
    place = {name: position for position, name in enumerate(LabelNames("names").add_all(wanted))}
    if len(place) != len(wanted):
        raise InvalidInputError("distinct names", f"{len(wanted) - len(place)} repeated")
    absent = [name for name in place if name not in {str(label) for label in found}]
    if absent:
        raise InvalidInputError(
            "every name to have at least one point", f"no point labelled {', '.join(map(repr, absent[:5]))}"
        )
    mapping = np.array([place.get(str(label), -1) for label in found], dtype=np.int64)
    return wanted, mapping[inverse]


def _frozen(masses: sp.csr_array) -> sp.csr_array:
    masses.sort_indices()
    for array in (masses.data, masses.indices, masses.indptr):
        array.flags.writeable = False
    return masses
