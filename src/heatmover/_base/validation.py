"""Check arguments or raise InvalidInputError, align sample metadata by name, import extras; any package may call it."""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import numbers
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from heatmover._base.types import FloatArray
from heatmover._base.words import counted, listed
from heatmover.errors import InvalidInputError, MissingExtraError, argument

RandomState = int | np.random.Generator | None
# Advice to users who pass sparse distances: distances that are not stored would become zero.
ALL_DISTANCES = "give the distances between all pairs: pairwise_distances(DiffusionEMD(graph).fit_transform(measures))"


def check_option(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise an error unless ``value`` is one of the ``allowed`` words."""
    words = list(allowed)
    if not (isinstance(value, str) and value in words):
        raise InvalidInputError(f"{argument(name)} to be one of {', '.join(map(repr, words))}", repr(value))


def check_integer(name: str, value: object, *, minimum: int, maximum: int = 2**63 - 1) -> int:
    """Return ``value`` as an int; raise an error if it is not a whole number from ``minimum`` to ``maximum``."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < minimum:  # type: ignore[operator]
        raise InvalidInputError(f"{argument(name)} to be a whole number of at least {minimum}", repr(value))
    if value > maximum:  # type: ignore[operator]
        raise InvalidInputError(f"{argument(name)} to be at most {maximum}", repr(value))
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_at_most(name: str, value: object, most: int, why: str) -> int:
    """Return an integer from 1 to ``most``, or raise an error that gives the reason for the limit."""
    count = check_integer(name, value, minimum=1)
    if count > most:
        raise InvalidInputError(f"{name} of at most {most}", f"{count}", why)
    return count


def check_seed(value: object) -> int:
    """Return ``random_state`` as a seed of at most 63 bits, which files can store, or raise an error."""
    return check_integer("random_state", value, minimum=0, maximum=2**63 - 1)


def check_truth(name: str, value: object) -> bool:
    """Return ``value`` as a bool; raise an error if it is neither True nor False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(f"{argument(name)} to be True or False", repr(value))
    return bool(value)


def check_word(name: str, value: object) -> str:
    """Return ``value``; raise an error if it is not text."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{argument(name)} to be a name", repr(value))
    return value


def check_number(name: str, value: object, *, above: float, at_most: float = math.inf) -> float:
    """Return ``value`` as a float; raise an error if it is not in ``(above, at_most]``."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not above < float(value) <= at_most:  # type: ignore[arg-type]
        upper = f"{at_most:g}]" if math.isfinite(at_most) else "infinity)"
        raise InvalidInputError(f"{argument(name)} to be a number in ({above:g}, {upper}", repr(value))
    result = float(value)  # type: ignore[arg-type]
    if not math.isfinite(result):
        raise InvalidInputError(f"{argument(name)} to be finite", repr(value))
    return result


def check_matrix(
    name: str,
    values: npt.ArrayLike,
    *,
    dtype: npt.DTypeLike | None = None,
    finite: bool = True,
    sparse: str = "pass its .toarray()",
) -> FloatArray:
    """Return ``values`` as a C-ordered 2-d float array without NaN or infinity, or raise an error.

    Single and double precision are kept unless ``dtype`` is given; everything else becomes float64. ``finite=False``
    allows NaN and infinity. Callers that detect such values in their results pass ``finite=False``, because a check
    would take as long as the computation. ``sparse`` is the advice in the error for a sparse matrix.
    """
    if hasattr(values, "toarray"):
        kind = type(values).__name__
        raise InvalidInputError(
            f"{argument(name)} to be dense", kind if kind == "Measures" else f"a sparse {kind}", sparse
        )
    try:
        array = as_array(name, values)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except InvalidInputError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{argument(name)} to be a 2-d array of numbers", f"{type(values).__name__}: {error}"
        ) from error
    # Compiled code supports single and double precision, in the byte order of the machine.
    if array.dtype not in (np.float32, np.float64) or not array.dtype.isnative:
        with np.errstate(over="ignore"):
            array = array.astype(check_real(name, array.dtype))
    if array.ndim != 2:
        raise InvalidInputError(f"{argument(name)} to be a 2-d array", f"an array of shape {array.shape}")
    if min(array.shape) == 0:
        raise InvalidInputError(f"{argument(name)} to have at least one row and one column", f"shape {array.shape}")
    if finite:
        check_finite(name, array)
    return np.ascontiguousarray(array, dtype=dtype)


def as_array(name: str, values: Any, *, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return ``values`` as a plain array, or raise an error if some are masked, because NumPy would unmask them.

    Examples
    --------
    >>> as_array("points", np.ma.masked_array([1.0, -999.0], mask=[False, True]))
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected points without masked values, found 1 masked; fill or drop them first.
    """
    # NumPy silently converts a list of masked rows to a plain array, so the rows of a list are checked one by one.
    raw = values if isinstance(values, list | tuple) else np.asanyarray(values)
    parts = raw if isinstance(raw, list | tuple) else [raw]
    hidden = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if hidden:
        raise InvalidInputError(
            f"{argument(name)} without masked values", f"{hidden} masked", "fill or drop them first"
        )
    return np.asarray(raw, dtype=dtype)


def is_missing(label: object) -> bool:
    """Return whether a label is missing: None, a masked value, NaN of any float type, or NA or NaT of pandas."""
    return (
        label is None
        or type(label).__name__ in ("NAType", "NaTType", "MaskedConstant")
        or (isinstance(label, float | np.floating) and bool(np.isnan(label)))
    )


class LabelNames:
    """Converter of labels to names, which raises an error if different labels have the same name.

    Parameters
    ----------
    what
        Name of the labels in messages.

    Examples
    --------
    >>> names = LabelNames("labels")
    >>> names.add(1), names.add("b")
    ('1', 'b')
    >>> names.add("1")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected labels: distinct labels to have distinct names, found ...
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._label_of: dict[str, Any] = {}
        self._name_of: dict[Any, str] = {}

    def add(self, label: Any) -> str:
        """Store a label with its name, and return the name."""
        if isinstance(label, bytes):  # str would include the prefix b and quotes
            raise InvalidInputError(f"{self.what}: words or numbers", f"bytes, {label!r}", "decode them: astype(str)")
        name = str(label)
        if "\0" in name:
            # NumPy drops NUL characters at the end of a text: "a" and "a\0" would be one label.
            raise InvalidInputError(f"{self.what}: names without NUL characters", repr(name), "replace them")
        other = self._label_of.setdefault(name, label)
        if other != label:
            self._reject(other, label)
        # 1, 1.0 and True are equal in Python, but have different names.
        first = self._name_of.setdefault(label, name)
        if first != name:
            self._reject(self._label_of[first], label)
        return name

    def copy(self) -> LabelNames:
        """Return a copy, to which names can be added without changing the original."""
        other = LabelNames(self.what)
        other._label_of, other._name_of = dict(self._label_of), dict(self._name_of)
        return other

    def add_all(self, labels: Iterable[Any]) -> list[str]:
        """Return the names of labels, converting each distinct label once."""
        given = list(labels)
        try:
            known = {key: self.add(key[1]) for key in dict.fromkeys(zip(map(type, given), given, strict=True))}
        except TypeError:
            strange = next((type(label).__name__ for label in given if type(label).__hash__ is None), "a missing value")
            raise InvalidInputError(f"{self.what}: words or numbers", strange) from None
        return [known[key] for key in zip(map(type, given), given, strict=True)]

    def _reject(self, one: Any, other: Any) -> None:
        raise InvalidInputError(
            f"{self.what}: distinct labels to have distinct names",
            f"{one!r} and {other!r} with the same name",
            "make them all text or all numbers",
        )


def in_order(values: Any, names: Sequence[str], what: str) -> list[Any]:
    """Return one value per sample in the order of ``names``.

    Values with keys or an index are aligned by name. Values without an index must be in the order of ``names``. An
    index that merely counts from 0 and contains no sample name is ignored.

    Parameters
    ----------
    values
        One value per sample: Series, mapping from names, list or array.
    names
        Names of the samples.
    what
        Name of the values in messages.

    Examples
    --------
    >>> in_order({"b": 2, "a": 1}, ["a", "b"], "age")
    [1, 2]
    >>> in_order({"b": 2}, ["a", "b"], "age")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected age for each of the 2 samples, found none for 'a'; ...
    """
    index = list(values) if isinstance(values, Mapping) else getattr(values, "index", None)
    if not isinstance(values, Mapping) and (
        isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1
    ):
        shape = f"an array of shape {values.shape}" if hasattr(values, "shape") else f"{type(values).__name__}"
        raise InvalidInputError(f"{what}: one value per sample ({len(names)})", shape, "give a list, array or Series")
    column = list(values.values() if isinstance(values, Mapping) else values)
    labels = None if index is None or callable(index) else LabelNames("the index").add_all(index)
    # A default pandas index only counts rows and does not name samples.
    counts = labels == [str(place) for place in range(len(column))] and not set(labels).intersection(names)
    if labels is None or counts:
        if len(column) != len(names):
            advice = "give one value per sample, not one per cell" if len(column) > len(names) else ""
            raise InvalidInputError(
                f"{what}: one value per sample ({len(names)})", counted(len(column), "value"), advice
            )
        return column
    place = dict(zip(labels, column, strict=True))
    wrong = {
        "none for": [name for name in names if name not in place],
        "other samples:": sorted(place.keys() - set(names)),
        "more than one for": [label for label, count in Counter(labels).items() if count > 1],
    }
    for problem, those in wrong.items():
        if those:
            raise InvalidInputError(
                f"{what} for each of the {counted(len(names), 'sample')}",
                f"{problem} {listed(those, most=3)}",
                "give one value for each sample, with None for missing values",
            )
    return [place[name] for name in names]


def sample_columns(variables: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of sample metadata by name, with one value per sample as in `in_order`.

    Parameters
    ----------
    variables
        DataFrame with one row per sample, or mapping from names of variables to values.
    names
        Names of the samples.

    Examples
    --------
    >>> sample_columns({"age": [41, 30]}, ["a", "b"])
    {'age': [41, 30]}
    """
    if hasattr(variables, "columns") and hasattr(variables, "iloc"):
        keys, columns = list(variables.columns), [variables.iloc[:, place] for place in range(variables.shape[1])]
    elif isinstance(variables, Mapping):
        keys, columns = list(variables), list(variables.values())
    else:
        raise InvalidInputError("variables by name: a mapping or a DataFrame", type(cast("object", variables)).__name__)
    texts = LabelNames("names of variables").add_all(keys)
    if any(key is None or key != key or not text.strip() for key, text in zip(keys, texts, strict=True)):
        raise InvalidInputError("a name for every variable", "an empty or missing one", "give it a name")
    if len(set(texts)) < len(texts):
        raise InvalidInputError("every variable once", f"{Counter(texts).most_common(1)[0][0]!r} more than once")
    return {text: in_order(column, names, repr(text)) for text, column in zip(texts, columns, strict=True)}


def check_real(name: str, dtype: np.dtype[Any]) -> np.dtype[np.float64]:
    """Return float64, or raise an error if values of type ``dtype`` are not real numbers."""
    # Without this check, NumPy would parse strings, convert dates to numbers of days and drop imaginary parts.
    if dtype.kind not in "fiub":
        raise InvalidInputError(f"{argument(name)} to be real numbers", f"values of type {dtype.name}")
    return np.dtype(np.float64)


def check_finite(name: str, array: Any) -> None:
    """Raise an error if a 2-d array, dense or CSR, contains NaN or infinity."""
    sparse = hasattr(array, "indptr")
    values = array.data if sparse else array
    # A finite sum proves in one pass and without a temporary array that all values are finite. The sum may overflow, so
    # if it is not finite, every value is checked.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    bad = np.nonzero(~np.isfinite(values))[0]
    if bad.size:
        # A stored value of a CSR array belongs to the last row that starts at or before the position of the value.
        rows = np.unique(np.searchsorted(array.indptr, bad, side="right") - 1 if sparse else bad)
        raise InvalidInputError(
            f"{argument(name)} without NaN or infinity",
            f"{counted(bad.size, 'such value')} in {counted(rows.size, 'row')} (first: row {rows[0]})",
            "remove these rows, or impute the values",
        )


def check_random_state(random_state: RandomState) -> np.random.Generator:
    """Return ``random_state`` if it is a generator, or a new generator with this seed."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{argument('random_state')} to be a non-negative integer, a numpy Generator or None", repr(random_state)
        ) from error


def check_threads(n_jobs: int | None) -> int:
    """Return the number of threads: ``n_jobs``, or for None and -1 the number of cores that this process may use."""
    if n_jobs is None or n_jobs == -1:
        # Containers and batch systems may grant fewer cores than the machine has.
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    return check_integer("n_jobs", n_jobs, minimum=1)


def check_memory(memory: int | float | str) -> int:
    """Return a number of bytes from a number or from text such as ``"2 GB"``, ``"512MiB"``."""
    size, value = math.nan, cast("object", memory)
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", value)
        if match:
            base = 1024.0 if match[3] else 1000.0
            size = float(match[1]) * base ** " KMGT".index(match[2].upper() or " ")
    elif not isinstance(value, bool) and isinstance(value, numbers.Real) and value < 2**60:
        size = float(value)
    if not 1 <= size < math.inf:
        raise InvalidInputError(
            f"{argument('memory')} to be a number of bytes or text such as '2 GB' or '512 MiB'", repr(memory)
        )
    return int(size)


def import_extra(module: str, *, package: str, extra: str) -> ModuleType:
    """Import an optional module, or raise an error that names the extra to install."""
    try:
        if module in sys.modules:
            return importlib.import_module(module)
        # Standard output is for results, but some packages print when imported, for example KeOps, which POT imports.
        with redirect_stdout(io.StringIO()):
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra) from error


def check_extra(module: str, *, package: str, extra: str) -> None:
    """Raise an error that names the extra to install if an optional module is missing; do not import the module."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the parent package is missing too
        spec = None
    if spec is None:
        raise MissingExtraError(package, extra)


def check_sparse(name: str, matrix: Any) -> None:
    """Raise an error if row pointers or indices of a sparse matrix are out of range, before compiled code uses them."""
    if not hasattr(matrix, "check_format"):
        return
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise InvalidInputError(
            f"{argument(name)} to be a consistent sparse matrix", str(error), "build it again from its rows and columns"
        ) from error
