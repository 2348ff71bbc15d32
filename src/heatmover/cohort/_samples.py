"""From labels and annotations of cells to a table of samples, in one pass over blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._validation import import_extra
from heatmover.cohort._reader import Columns
from heatmover.cohort._words import find, quoted
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing

__all__ = ["NUMBER", "SampleTable", "check_variable", "column_of"]

# Numbers as text. A leading zero makes a name of it: patient 007 is not patient 7.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
BOOLEANS = {"True": True, "False": False, "TRUE": True, "FALSE": False, "true": True, "false": False}


@final
class SampleTable:
    """Collects, block by block, the sample of each cell and the value of each variable in each sample."""

    def __init__(self, sample_key: str, undecided: Sequence[str] = ()) -> None:
        self.sample_key = sample_key
        self.undecided = frozenset(undecided)
        # Those of the undecided columns that hold more than whole numbers.
        self.fractional: set[str] = set()
        self.n_cells = 0
        self._codes: list[npt.NDArray[np.int32]] = []
        self._originals: dict[str, object] = {}
        self._places: dict[str, int] = {}
        self._first: dict[str, dict[int, object]] = {}
        self._varying: dict[str, set[int]] = {}
        self._missing, self._first_missing = 0, -1

    def add(self, labels: Any, columns: Columns) -> None:
        """Take in the labels and annotations of the next cells."""
        codes = self._encode(labels)
        known = codes >= 0
        self._codes.append(codes)
        self.n_cells += codes.size
        if known.any():
            present, first = np.unique(codes, return_index=True)
            keep = present >= 0
            for name, column in columns.items():
                self._compare(name, column, codes, (present[keep], first[keep]))

    def finish(self) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
        """Return the sorted names and each cell's position among them, or raise if a cell has no label."""
        if self._missing:
            raise InvalidInputError(
                f"a sample label for every cell in {quoted(self.sample_key)}",
                f"{self._missing} of {self.n_cells} missing (first: row {self._first_missing})",
                "remove those cells or label them",
            )
        if self.n_cells == 0:
            raise InvalidInputError("at least one cell", "none")
        spelt = list(self._places)
        order = sorted(range(len(spelt)), key=spelt.__getitem__)
        place = np.empty(len(spelt), dtype=np.int32)
        place[order] = np.arange(len(spelt), dtype=np.int32)
        self._order = order
        return tuple(spelt[i] for i in order), place[np.concatenate(self._codes)]

    @property
    def varying(self) -> dict[str, int]:
        """Columns that vary within samples, with the number of samples where they do."""
        return {name: len(samples) for name, samples in self._varying.items() if samples}

    def variables(self, *, textual: bool) -> dict[str, list[object]]:
        """Return, after `finish`, one value per sample of every column that is constant within samples."""
        found = {
            name: [values[code] for code in self._order]
            for name, values in self._first.items()
            if not self._varying[name]
        }
        return {name: from_text(values) if textual else values for name, values in found.items()}

    def _encode(self, labels: Any) -> npt.NDArray[np.int32]:
        codes, uniques = _factorize(labels)
        places = np.full(len(uniques) + 1, -1, dtype=np.int32)  # the last is for missing labels, coded -1
        for position, original in enumerate(uniques):
            places[position] = self._place(original)
        result = places[codes]
        missing = np.flatnonzero(result < 0)
        if missing.size and not self._missing:
            self._first_missing = self.n_cells + int(missing[0])
        self._missing += missing.size
        return result

    def _place(self, original: object) -> int:
        name = spell(original)
        if not name.strip():
            return -1
        if "\0" in name:
            raise InvalidInputError(
                f"names without NUL characters in {quoted(self.sample_key)}", repr(name), "replace them"
            )
        other = self._originals.setdefault(name, original)
        if other != original:
            raise InvalidInputError(
                f"one spelling of each sample in {quoted(self.sample_key)}",
                f"both {_typed(other)} and {_typed(original)}, which have the same name",
                "make the labels all text or all numbers",
            )
        return self._places.setdefault(name, len(self._places))

    def _compare(
        self,
        name: str,
        column: Any,
        codes: npt.NDArray[np.int32],
        anchors: tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]],
    ) -> None:
        first, varying = self._first.setdefault(name, {}), self._varying.setdefault(name, set())
        if name in self.undecided and name not in self.fractional and _has_fraction(column):
            self.fractional.add(name)
        if varying and name in self.fractional:
            return  # a feature; in how many samples it varies is of no interest
        values, uniques = _factorize(column)
        present, positions = anchors
        anchor = np.zeros(len(self._places), dtype=values.dtype)
        anchor[present] = values[positions]
        varying.update(np.unique(codes[(values != anchor[codes]) & (codes >= 0)]).tolist())
        for sample, value in zip(present.tolist(), values[positions].tolist(), strict=True):
            found = native(uniques[value]) if value >= 0 else None
            if first.setdefault(sample, found) != found:
                varying.add(sample)


def _factorize(values: Any) -> tuple[npt.NDArray[np.intp], list[Any]]:
    """Return each value's position among the distinct values, -1 for a missing one, and the distinct values."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    if isinstance(values, np.ndarray) and values.dtype.kind in "USTO":
        # Equal numbers of different types, such as 1 and True, are one value to pandas; text is never equal to them.
        values = np.asarray([None if is_missing(value) else value for value in values.tolist()], dtype=object)
    codes, uniques = pandas.factorize(values)
    return np.asarray(codes), list(uniques)


def _has_fraction(column: Any) -> bool:
    values = np.asarray(column, dtype=np.float64)
    return bool(np.any(np.isfinite(values) & (values != np.floor(values))))


def spell(label: object) -> str:
    """Return the name of a sample as text."""
    if isinstance(label, bytes):
        return label.decode("utf-8", "replace")
    return str(native(label))


def native(value: Any) -> object:
    """Return a plain Python value for a NumPy scalar; bytes become text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value
    return value.item() if isinstance(value, np.generic) else value


def _typed(label: object) -> str:
    text = isinstance(label, str | bytes)
    return f"the {'text' if text else 'number'} {quoted(label) if text else label}"


def from_text(values: list[object]) -> list[object]:
    """Read numbers and truth values from text, if every known value is one."""
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, float) or NUMBER.fullmatch(str(value)) for value in known):
        numbers = [None if value is None else float(value) for value in values]  # type: ignore[arg-type]
        whole = all(number is None or number.is_integer() for number in numbers)
        return [None if number is None else int(number) if whole else number for number in numbers]
    if known and all(value in BOOLEANS for value in known):
        return [None if value is None else BOOLEANS[str(value)] for value in values]
    return values


def check_variable(name: str, known: Sequence[str], varying: Mapping[str, int], n_samples: int) -> str:
    """Return the name of a variable of the samples, or say why there is none of this name."""
    if name in varying and name not in known:
        raise InvalidInputError(
            f"{quoted(name)} to be constant within each sample",
            f"that it varies within {varying[name]} of {n_samples} samples",
            "choose a variable of samples, not of cells",
        )
    return find(name, known, "the name of a variable of the samples")


def column_of(values: Sequence[object]) -> Any:
    """Return one variable of the samples as a pandas Series of the narrowest of number, truth value, date, object."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    series = pandas.Series(list(values), dtype=object)
    kinds = {type(value) for value in series.dropna()}
    if kinds and kinds <= {int, float}:
        return pandas.to_numeric(series)
    return series if str in kinds else series.infer_objects()


def table_of(names: Sequence[str], sample_key: str, variables: Mapping[str, Sequence[object]]) -> Any:
    """Return the table of samples, one row per name, one column per variable."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    index = pandas.Index(list(names), dtype=object, name=sample_key)
    columns = {name: column_of(values).set_axis(index) for name, values in variables.items()}
    return pandas.DataFrame(columns, index=index)
