"""Check arguments or raise InvalidInputError, align metadata of samples by name, import optional packages."""

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
from heatmover.errors import InvalidInputError, MissingExtraError, argument, counted

RandomState = int | np.random.Generator | None
# Distances that are not stored would become zero.
ALL_DISTANCES = "give the distance of every pair: pairwise_distances(DiffusionEMD(graph).fit_transform(measures))"


def check_option(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless ``value`` is one of the ``allowed`` words."""
    words = list(allowed)
    if not (isinstance(value, str) and value in words):
        raise InvalidInputError(f"{argument(name)} to be one of {', '.join(map(repr, words))}", repr(value))


def check_integer(name: str, value: object, *, minimum: int, maximum: int = 2**63 - 1) -> int:
    """Return ``value`` as an int, or raise if it is no whole number from ``minimum`` to ``maximum``."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < minimum:  # type: ignore[operator]
        raise InvalidInputError(f"{argument(name)} to be a whole number of at least {minimum}", repr(value))
    if value > maximum:  # type: ignore[operator]
        raise InvalidInputError(f"{argument(name)} to be at most {maximum}", repr(value))
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_seed(value: object) -> int:
    """Return ``random_state`` as a seed that files can hold in 64 bits, or raise."""
    return check_integer("random_state", value, minimum=0, maximum=2**63 - 1)


def check_truth(name: str, value: object) -> bool:
    """Return ``value``, or raise unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(f"{argument(name)} to be True or False", repr(value))
    return bool(value)


def check_word(name: str, value: object) -> str:
    """Return ``value``, or raise unless it is text."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{argument(name)} to be a name", repr(value))
    return value


def check_number(name: str, value: object, *, above: float, at_most: float = math.inf) -> float:
    """Return ``value`` as a float, or raise unless it lies in ``(above, at_most]``."""
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
    """Return ``values`` as a C-ordered 2-d float array without NaN or infinity, or raise.

    Single and double precision are kept unless ``dtype`` is given; everything else becomes float64. ``finite=False``
    lets NaN and infinity pass, for callers who see them in their result: a pass over the data can cost as much.
    ``sparse`` is the advice for a sparse matrix: a distance that is not stored is not zero.
    """
    if hasattr(values, "toarray"):
        raise InvalidInputError(f"{argument(name)} to be dense", _kind(values), sparse)
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
    # Compiled code knows single and double precision, in the byte order of the machine.
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


def _kind(values: Any) -> str:
    kind = type(values).__name__
    return kind if kind == "Measures" else f"a sparse {kind}"


def as_array(name: str, values: Any, *, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return ``values`` as a plain array, or raise if some are masked, which NumPy itself would lay open.

    Examples
    --------
    >>> as_array("points", np.ma.masked_array([1.0, -999.0], mask=[False, True]))
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected points without masked values, found 1 masked; fill or drop them first.
    """
    # A list of masked rows becomes a plain array without a word; other containers show what they are as an array.
    raw = values if isinstance(values, list | tuple) else np.asanyarray(values)
    parts = raw if isinstance(raw, list | tuple) else [raw]
    hidden = sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))
    if hidden:
        raise InvalidInputError(
            f"{argument(name)} without masked values", f"{hidden} masked", "fill or drop them first"
        )
    return np.asarray(raw, dtype=dtype)


class LabelNames:
    """Names of labels as they come: different labels have different names, or an error says which do not.

    Parameters
    ----------
    what
        What is labelled, for messages.

    Examples
    --------
    >>> names = LabelNames("labels")
    >>> names.add(1), names.add("b")
    ('1', 'b')
    >>> names.add("1")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected labels: different labels to read differently, found such ...
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._label_of: dict[str, Any] = {}
        self._name_of: dict[Any, str] = {}

    def add(self, label: Any) -> str:
        """Return the name of a label, seen before or new."""
        if isinstance(label, bytes):  # whose name would be that of Python's notation
            raise InvalidInputError(f"{self.what}: words or numbers", f"bytes, {label!r}", "decode them: astype(str)")
        name = str(label)
        if "\0" in name:
            # NumPy's text drops them at the end: "a" and "a\0" would be one.
            raise InvalidInputError(f"{self.what}: names without NUL characters", repr(name), "replace them")
        other = self._label_of.setdefault(name, label)
        if other != label:
            self._refuse(other, label)
        # 1, 1.0 and True are one and the same to Python, but have three names.
        first = self._name_of.setdefault(label, name)
        if first != name:
            self._refuse(self._label_of[first], label)
        return name

    def copy(self) -> LabelNames:
        """Return the same names, to which others can be added."""
        other = LabelNames(self.what)
        other._label_of, other._name_of = dict(self._label_of), dict(self._name_of)
        return other

    def add_all(self, labels: Iterable[Any]) -> list[str]:
        """Return the names of labels; many of the same cost little."""
        given = list(labels)
        try:
            known = {key: self.add(key[1]) for key in dict.fromkeys(zip(map(type, given), given, strict=True))}
        except TypeError:
            strange = next((type(label).__name__ for label in given if type(label).__hash__ is None), "a missing one")
            raise InvalidInputError(f"{self.what}: words or numbers", strange) from None
        return [known[key] for key in zip(map(type, given), given, strict=True)]

    def _refuse(self, one: Any, other: Any) -> None:
        raise InvalidInputError(
            f"{self.what}: different labels to read differently",
            f"such as {one!r} and {other!r}",
            "make them all text or all numbers",
        )


def in_order(values: Any, names: Sequence[str], what: str) -> list[Any]:
    """Return one value per sample in the order of ``names``: whatever has an index or keys is aligned by them.

    Values without an index, or with one that merely counts from 0 and shares no name with the samples, are taken in
    order.

    Parameters
    ----------
    values
        Series, mapping from names, list or array; one value per sample.
    names
        Of the samples.
    what
        The name of the values, for messages.

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
    if labels is None or _merely_counts(labels, names):
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
            shown = ", ".join(map(repr, those[:3])) + (f" and {len(those) - 3} more" if len(those) > 3 else "")
            raise InvalidInputError(
                f"{what} for each of the {counted(len(names), 'sample')}",
                f"{problem} {shown}",
                "give one value for each sample, None where it is missing",
            )
    return [place[name] for name in names]


def _merely_counts(labels: Sequence[str], names: Sequence[str]) -> bool:
    return labels == [str(place) for place in range(len(labels))] and not set(labels).intersection(names)


def sample_columns(variables: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return sample metadata by name, each with one value per sample, see `in_order`.

    Parameters
    ----------
    variables
        DataFrame with one row per sample, or mapping from names of variables to values.
    names
        Of the samples.

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
    """Return float64, or raise if values of type ``dtype`` would change their meaning in it."""
    # NumPy would parse strings, count the days of a date and drop imaginary parts.
    if dtype.kind not in "fiub":
        raise InvalidInputError(f"{argument(name)} to be real numbers", f"values of type {dtype.name}")
    return np.dtype(np.float64)


def check_finite(name: str, array: Any) -> None:
    """Raise if a 2-d array, dense or CSR, holds NaN or infinity, with a count and the first such row."""
    sparse = hasattr(array, "indptr")
    values = array.data if sparse else array
    # One pass without a temporary of the array's size; a sum may overflow, so look closer only then.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum(dtype=np.float64)):
            return
    bad = np.nonzero(~np.isfinite(values))[0]
    if bad.size:
        # A stored value of a CSR array lies in the row whose part of the values begins last before it.
        rows = np.unique(np.searchsorted(array.indptr, bad, side="right") - 1 if sparse else bad)
        raise InvalidInputError(
            f"{argument(name)} without NaN or infinity",
            f"{counted(bad.size, 'such value')} in {counted(rows.size, 'row')} (first: row {rows[0]})",
            "remove or impute those rows first",
        )


def check_random_state(random_state: RandomState) -> np.random.Generator:
    """Return a generator: the given one, or a new one from a seed."""
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{argument('random_state')} to be a non-negative integer, a numpy Generator or None", repr(random_state)
        ) from error


def check_threads(n_jobs: int | None) -> int:
    """Return the number of threads to use: every core this process may use for None or -1, else ``n_jobs``."""
    if n_jobs is None or n_jobs == -1:
        # Containers and batch systems grant fewer cores than the machine has.
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
        # Some greet on the standard output, which is for results: POT imports KeOps, which does, where it is installed.
        with redirect_stdout(io.StringIO()):
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra) from error


def check_extra(module: str, *, package: str, extra: str) -> None:
    """Raise an error that names the extra to install if an optional module is not there, without importing it."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # not even its package
        spec = None
    if spec is None:
        raise MissingExtraError(package, extra)


def check_sparse(name: str, matrix: Any) -> None:
    """Raise if pointers or indices of a SciPy sparse matrix are out of range: compiled code would follow them."""
    if not hasattr(matrix, "check_format"):
        return
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise InvalidInputError(
            f"{argument(name)} to be a sparse matrix that fits together",
            str(error),
            "make it anew from its rows and columns",
        ) from error
