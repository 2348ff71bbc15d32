"""Measures: rows of non-negative masses over the points of a graph, each row summing to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import LabelNames, as_array, check_finite, check_matrix, check_real, check_sparse
from heatmover._base.words import counted, distinct, find_all, listed, quoted, verb
from heatmover.errors import InvalidInputError

__all__ = ["Measures", "distinct_labels", "is_missing", "measures_from_labels", "measures_from_weights"]

# Rounding of a float32 sum over a million points stays below this; a forgotten normalisation does not.
MASS_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Measures:
    """Named probability measures over the points of one graph.

    Build it with `measures_from_labels` or `measures_from_weights`; every function of heatmover that takes
    measures also takes a plain array, a SciPy sparse matrix or a DataFrame of the same shape.

    It behaves as the array that it stands for. A slice, a mask, a list of numbers or a list of names gives the
    `Measures` that are asked for; one number or one name gives the masses of that measure, a dense array
    ``(n_points,)``, and so does iteration. `numpy.asarray` gives a dense copy of all. scikit-learn can therefore split
    measures, for cross-validation and for searches over parameters.

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
        """``(n_measures, n_points)``."""
        rows, columns = self.masses.shape
        return int(rows), int(columns)

    @property
    def ndim(self) -> int:
        """Two: measures and points."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64."""
        return np.dtype(np.float64)

    def toarray(self) -> Float64:
        """Return the masses as a dense array ``(n_measures, n_points)``."""
        return np.asarray(self.masses.toarray())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:  # NumPy's own word for it
            raise ValueError("Measures are sparse, so that a dense array of them is a copy; use copy=None or True.")
        dense = self.toarray()
        return dense if dtype is None else dense.astype(dtype, copy=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Float64]:
        return (self[row] for row in range(len(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, key: Any) -> Any:
        wanted = _first_axis(key)
        if isinstance(wanted, slice):
            rows = np.arange(len(self))[wanted]
        elif isinstance(wanted, str):
            return self._row(int(self._places([wanted])[0]))
        else:
            array = np.asarray(wanted)
            if array.ndim == 0 and array.dtype.kind in "iu":
                return self._row(int(_in_range(array[None], len(self))[0]))
            rows = self._chosen(array)
        return Measures(_frozen(sp.csr_array(self.masses[rows])), tuple(self.names[row] for row in rows))

    def _row(self, row: int) -> Float64:
        return np.asarray(self.masses[[row]].toarray()[0])

    def _chosen(self, wanted: npt.NDArray[Any]) -> Int64:
        """Return the rows that a list of numbers, names or truth values asks for."""
        if wanted.ndim == 1 and wanted.size == 0:
            return np.empty(0, dtype=np.int64)
        if wanted.ndim == 1 and wanted.dtype.kind in "iu":
            return _in_range(wanted, len(self))
        if wanted.ndim == 1 and wanted.dtype.kind == "b":
            if wanted.size != len(self):
                raise IndexOfMeasuresError(
                    f"a mask of {counted(len(self), 'measure')}", f"one of {counted(wanted.size, 'value')}"
                )
            return np.flatnonzero(wanted)
        if wanted.ndim == 1 and all(isinstance(name, str) for name in wanted.tolist()):
            return self._places(wanted.tolist())
        raise IndexOfMeasuresError(
            "numbers, names, a mask or a slice of measures", f"an array of shape {wanted.shape} of {wanted.dtype}"
        )

    def _places(self, names: list[str]) -> Int64:
        try:
            places = find_all(names, self.names, "the name of a measure")
        except InvalidInputError as error:
            raise IndexOfMeasuresError(error.expected, error.found, error.advice) from None
        counts = Counter(self.names)
        several = [name for name in places if counts[name] > 1]
        if several:
            raise IndexOfMeasuresError("a name that one measure has", f"{listed(several)} of several", "use numbers")
        return np.array([places[name] for name in names], dtype=np.int64)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _frozen(self.masses)  # a pickle forgets that its arrays were read-only

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")
        return f"Measures({counted(self.shape[0], 'measure')} on {counted(self.shape[1], 'point')}: {shown})"


class IndexOfMeasuresError(InvalidInputError, IndexError):
    """There is no such measure; an `IndexError` too, as Python and NumPy expect of an index."""


def _first_axis(key: Any) -> Any:
    """Return what is asked of the measures; scikit-learn asks for ``measures[rows, ...]``."""
    if not isinstance(key, tuple):
        if key is None or key is Ellipsis:
            return _first_axis((key,))
        return key
    rest = [part for part in key[1:] if part is not Ellipsis and not (isinstance(part, slice) and part == slice(None))]
    if not key or key[0] is None or rest or len(key) > 2:
        raise IndexOfMeasuresError(
            "an index of measures alone",
            f"{quoted(key)}",
            "masses at some points are not measures any more: take them from measures.masses or np.asarray(measures)",
        )
    return slice(None) if key[0] is Ellipsis else key[0]


def _in_range(rows: npt.NDArray[Any], count: int) -> Int64:
    bad = [int(row) for row in rows if not -count <= int(row) < count]
    if bad:
        raise IndexOfMeasuresError(f"numbers of {counted(count, 'measure')}", f"{bad[0]}")
    return np.asarray(rows, dtype=np.int64) % count


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
    different, inverse = distinct_labels(labels)
    if names is not None:
        different, inverse = _select(different, inverse, names)
    kept = np.flatnonzero(inverse >= 0)
    rows = inverse[kept]
    counts = np.bincount(rows, minlength=len(different))
    masses = sp.csr_array((1.0 / counts[rows], (rows, kept)), shape=(len(different), inverse.size))
    return Measures(_frozen(masses), tuple(LabelNames("labels").add_all(different)))


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
        raise InvalidInputError(f"one name per row ({masses.shape[0]})", counted(len(names), "name"))
    # A copy: the rows still share their structure with the caller's matrix, which is not ours to freeze.
    texts = LabelNames("names").add_all(names)
    distinct(texts, "names of measures", "give every measure a name of its own")
    return Measures(_frozen(sp.csr_array(masses, copy=True)), tuple(texts))


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
            f"measures over the graph's {counted(n_points, 'point')}",
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
            f"{counted(int(off.sum()), 'row')} that {verb(int(off.sum()), 'does', 'do')} not (first: row {first}, "
            f"sum {totals[first]:g})",
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
            f"{counted(empty.size, 'row')} that {verb(empty.size, 'sums', 'sum')} to zero (first: row {empty[0]})",
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
    try:
        array = as_array("labels", labels)
    except InvalidInputError:
        raise
    except ValueError:  # some labels are tuples or lists
        raise InvalidInputError("one label per point, text or a number", "labels of several lengths") from None
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


def _select(different: list[Any], inverse: Int64, names: Iterable[object]) -> tuple[list[Any], Int64]:
    """Keep the measures called ``names``, in that order; other points get position -1."""
    wanted = list(names)
    if not wanted:
        raise InvalidInputError("at least one name", "none", "leave names out to get every label")
    place = {name: position for position, name in enumerate(LabelNames("names").add_all(wanted))}
    if len(place) != len(wanted):
        raise InvalidInputError("distinct names", f"{len(wanted) - len(place)} repeated")
    absent = [name for name in place if name not in {str(label) for label in different}]
    if absent:
        raise InvalidInputError(
            "every name to have at least one point", f"no point labelled {', '.join(map(repr, absent[:5]))}"
        )
    mapping = np.array([place.get(str(label), -1) for label in different], dtype=np.int64)
    return wanted, mapping[inverse]


def _frozen(masses: sp.csr_array) -> sp.csr_array:
    masses.sort_indices()
    for array in (masses.data, masses.indices, masses.indptr):
        array.flags.writeable = False
    return masses
