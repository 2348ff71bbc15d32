"""From labels and annotations of cells to a table of samples, in one pass over blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, final

import numpy as np

from heatmover._base.types import Float64, Int32, Intp
from heatmover._base.validation import LabelNames, import_extra
from heatmover._base.words import counted, find, natural_order, naturally, quoted
from heatmover.cohort.reader import Columns, Numbers, Reader, SubsetReader
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import is_missing

__all__ = [
    "Mixture",
    "SampleTable",
    "check_annotation",
    "check_variable",
    "column_of",
    "encode",
    "from_text",
    "number_pattern",
    "read_annotation",
    "table_of",
]

# Numbers as text. A leading zero makes a name of it: patient 007 is not patient 7.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
# Digits of the largest whole number that is a float.
LONGEST_WHOLE = 308
BOOLEANS = {"True": True, "False": False, "TRUE": True, "FALSE": False, "true": True, "false": False}


@final
@dataclass
class Mixture:
    """How many values of a column of text are numbers, and the first that is none."""

    numbers: int = 0
    texts: int = 0
    # Digits after a leading zero, or too many for a number: names, among which numbers are names too.
    padded: int = 0
    row: int = -1
    value: str = ""

    @property
    def mostly_numbers(self) -> bool:
        """Whether more values are numbers than text, so that the text is likelier a slip than a name."""
        return self.numbers > self.texts and self.texts > self.padded

    def add(self, codes: Intp, uniques: Sequence[object], decimal: str, row: int) -> None:
        """Take in values, given as positions among the different ones; the first of them is in ``row``."""
        pattern = number_pattern(decimal)
        counts = np.bincount(codes[codes >= 0], minlength=len(uniques))
        kinds = np.array([_kind(str(value).strip(), pattern) for value in uniques], dtype=np.int8)
        numbers, texts, padded = (int(counts[kinds == kind].sum()) for kind in (NUMERIC, VERBAL, PADDED))
        self.numbers += numbers
        self.texts += texts + padded
        self.padded += padded
        if texts and self.row < 0:
            place = int(np.argmax((codes >= 0) & np.append(kinds == VERBAL, False)[codes]))
            self.row, self.value = row + place, str(uniques[int(codes[place])])


NUMERIC, VERBAL, PADDED = range(3)


def _kind(text: str, pattern: re.Pattern[str]) -> int:
    if text[:1].isalpha() and text[:1] not in "iI":  # no number begins so; there may be as many names as cells
        return VERBAL
    if pattern.fullmatch(text) and not long_name(text):
        return NUMERIC
    return PADDED if text.isascii() and text.isdigit() and len(text) <= LONGEST_WHOLE else VERBAL


@final
class Variation:
    """Which columns vary within samples: all of them at once, block by block."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = np.array(names, dtype=object)
        # Which hold more than whole numbers, and which vary within a sample.
        self.fractional = np.zeros(len(names), dtype=bool)
        self.varies = np.zeros(len(names), dtype=bool)
        # A column that varies and has fractions is a feature: nothing else about it is of interest.
        self._open = np.arange(len(names))
        self._first = np.empty((0, len(names)))
        self._varying = np.empty((0, len(names)), dtype=bool)

    def add(self, codes: Int32, n_samples: int, numbers: Float64) -> None:
        """Take in the values ``(n_rows, n_columns)`` of the next cells, NaN where one is missing."""
        order = np.argsort(codes, kind="stable")
        order = order[np.searchsorted(codes[order], 0) :]
        if not order.size or not self._open.size:
            return
        values, owners = numbers[np.ix_(order, self._open)], codes[order]
        starts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
        present = owners[starts]
        known = len(self._first)
        self._first = np.concatenate([self._first, np.full((n_samples - known, self._open.size), np.nan)])
        self._varying = np.concatenate([self._varying, np.zeros((n_samples - known, self._open.size), dtype=bool)])
        fresh = present >= known
        self._first[present[fresh]] = values[starts[fresh]]
        anchors = self._first[owners]
        differ = (values != anchors) & ~(np.isnan(values) & np.isnan(anchors))
        self._varying[present] |= np.logical_or.reduceat(differ, starts, axis=0)
        self.varies[self._open] = self._varying.any(axis=0)
        self.fractional[self._open] |= (np.isfinite(values) & (values != np.floor(values))).any(axis=0)
        keep = ~(self.varies & self.fractional)[self._open]
        self._open, self._first, self._varying = self._open[keep], self._first[:, keep], self._varying[:, keep]

    @property
    def counts(self) -> dict[str, int]:
        """Columns that vary within samples, with the number of samples where they do, as far as it is known."""
        counts = self.varies.astype(np.int64)
        counts[self._open] = self._varying.sum(axis=0)
        places = np.flatnonzero(self.varies)
        return dict(zip(self.names[places].tolist(), counts[places].tolist(), strict=True))

    def constant(self, order: Sequence[int]) -> dict[str, list[Any]]:
        """Return one value per sample, None where it is missing, of every column that is constant within samples."""
        places = np.flatnonzero(~self.varies[self._open])
        columns = self._first[np.ix_(np.array(order, dtype=np.intp), places)].T.tolist()
        return {
            str(name): [None if value != value else value for value in column]
            for name, column in zip(self.names[self._open[places]], columns, strict=True)
        }


@final
class SampleTable:
    """Collects, block by block, the sample of each cell and the value of each variable in each sample.

    Parameters
    ----------
    sample_key
        Column of the labels.
    undecided, whole
        Columns of numbers that may be features, and those of them whose type is that of whole numbers.
    decimal
        Mark of decimals if columns have no types, so that numbers are text; or empty.
    """

    def __init__(
        self, sample_key: str, undecided: Sequence[str] = (), *, whole: Collection[str] = (), decimal: str = ""
    ) -> None:
        self.sample_key = sample_key
        self.decimal = decimal
        self.undecided = list(undecided)
        # How much of a column of text is numbers; and columns of values that cannot be compared, such as lists.
        self.mixtures: dict[str, Mixture] = {}
        self.odd: set[str] = set()
        self.n_cells = 0
        self._whole = frozenset(whole)
        self._codes: list[Int32] = []
        self._labels = LabelNames(f"samples in {quoted(sample_key)}")
        self._places: dict[str, int] = {}
        self._variation: Variation | None = None
        # Per annotation, the first value that each sample has, and its number.
        self._values: dict[str, dict[object, int]] = {}
        self._missing, self._first_missing = 0, -1

    def add(self, labels: Any, columns: Columns, numbers: Numbers = None) -> None:
        """Take in the labels, annotations and undecided numbers of the next cells."""
        codes = self._encode(labels)
        self._codes.append(codes)
        fresh = np.unique(codes, return_index=True)[1]
        annotations = [self._numbered(name, column, fresh[codes[fresh] >= 0]) for name, column in columns.items()]
        if self._variation is None:
            self._variation = Variation([*columns, *self.undecided])
        parts = [column[:, None] for column in annotations] + ([] if numbers is None else [numbers])
        if parts:
            self._variation.add(codes, len(self._places), np.hstack(parts))
        self.n_cells += codes.size

    def finish(self, place: Callable[[int], str] = "row {}".format) -> tuple[tuple[str, ...], Int32]:
        """Return the names in natural order and each cell's position among them, or raise if a cell has no label.

        Parameters
        ----------
        place
            Says where a cell is by its row.
        """
        if self._missing:
            raise InvalidInputError(
                f"a sample label for every cell in {quoted(self.sample_key)}",
                f"{self._missing} of {self.n_cells} missing (first: {place(self._first_missing)})",
                "remove those cells or label them",
            )
        if self.n_cells == 0:
            raise InvalidInputError("at least one cell", "none")
        spelt = list(self._places)
        order = natural_order(spelt)
        position = np.empty(len(spelt), dtype=np.int32)
        position[order] = np.arange(len(spelt), dtype=np.int32)
        self._order = order
        return tuple(spelt[i] for i in order), position[np.concatenate(self._codes)]

    @property
    def fractional(self) -> frozenset[str]:
        """Those of the undecided columns that hold more than whole numbers."""
        assert self._variation is not None
        return frozenset(self._variation.names[self._variation.fractional].tolist())

    @property
    def varying(self) -> dict[str, int]:
        """Columns that vary within samples, with the number of samples where they do."""
        assert self._variation is not None
        return {name: count for name, count in self._variation.counts.items() if name not in self.odd}

    def variables(self) -> dict[str, list[object]]:
        """Return, after `finish`, one value per sample of every column that is constant within samples."""
        assert self._variation is not None
        columns: dict[str, list[object]] = {}
        for name, numbers in self._variation.constant(self._order).items():
            if name in self.odd:
                continue
            values = list(self._values.get(name, ()))
            given = [None if number is None else values[int(number)] if values else number for number in numbers]
            columns[name] = _whole(given) if name in self._whole else given
        return {name: from_text(each, self.decimal) for name, each in columns.items()} if self.decimal else columns

    def _encode(self, labels: Any) -> Int32:
        codes, uniques = factorize(labels)
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
        label = native(original)
        if not str(label).strip():
            return -1
        return self._places.setdefault(self._labels.add(label), len(self._places))

    def _numbered(self, name: str, column: Any, first: Intp) -> Float64:
        """Return a number for each value of an annotation: NaN if it is missing, -1 if no sample begins with it.

        ``first`` are the cells with which samples begin in this block.
        """
        numbers = self._values.setdefault(name, {})
        try:
            values, uniques = factorize(column)
        except TypeError:  # lists and the like, of which nobody asks whether they are equal
            self.odd.add(name)
            return np.full(len(column), np.nan)
        if self.decimal:
            self.mixtures.setdefault(name, Mixture()).add(values, uniques, self.decimal, self.n_cells)
        uniques = [native(value) for value in uniques]
        for value in values[first].tolist():
            if value >= 0:
                numbers.setdefault(uniques[value], len(numbers))
        return np.array([*(numbers.get(value, -1) for value in uniques), np.nan])[values]


def factorize(values: Any) -> tuple[Intp, list[Any]]:
    """Return each value's position among the distinct values, -1 for a missing one, and the distinct values."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    kind = values.dtype
    if isinstance(kind, pandas.StringDtype) or (isinstance(kind, np.dtype) and kind.kind in "USTO"):
        # Not by pandas, to which text ends at a NUL, so that "a" and "a\0b" are one.
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(value, len(places)) for value in values.tolist()], dtype=np.intp)
        known = np.array([not is_missing(value) for value in places], dtype=bool)
        distinct = [value for value, keep in zip(places, known, strict=True) if keep]
        return np.where(known, np.cumsum(known) - 1, -1)[codes], distinct
    codes, uniques = pandas.factorize(values)
    return np.asarray(codes), list(uniques)


def _whole(values: list[object]) -> list[object]:
    return [None if value is None else int(value) for value in values]  # type: ignore[call-overload]


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
    if isinstance(value, Decimal):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


def number_pattern(decimal: str) -> re.Pattern[str]:
    """Return what numbers look like that have this mark of decimals."""
    return NUMBER if decimal == "." else re.compile(NUMBER.pattern.replace(r"\.", re.escape(decimal)), re.IGNORECASE)


def long_name(text: str) -> bool:
    """Tell whether digits are more than a float holds: those of a name, of which two could become one number."""
    digits = text.lstrip("+-")
    if len(digits) <= 15 or not (digits.isascii() and digits.isdigit()):
        return False
    return len(digits) > LONGEST_WHOLE or int(float(digits)) != int(digits)


def from_text(values: list[object], decimal: str = ".") -> list[object]:
    """Read numbers and truth values from text, if every known value is one."""
    known, pattern = [value for value in values if value is not None], number_pattern(decimal)
    if known and all(isinstance(value, float) or pattern.fullmatch(str(value)) for value in known):
        numbers = [None if value is None else float(str(value).replace(decimal, ".")) for value in values]
        if any(number is not None and long_name(str(value)) for number, value in zip(numbers, values, strict=True)):
            return values
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
            f"that it varies within {varying[name]} of {counted(n_samples, 'sample')}",
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


def check_annotation(name: str, reader: Reader, varying: Mapping[str, int], constant: Iterable[str]) -> str:
    """Return the name of a column that differs between the cells of a sample, or say why there is none."""
    if reader.annotations is None:
        raise InvalidInputError(
            f"{argument('cells')} to be a column of the cells",
            f"{quoted(name)} and a {reader.kind}, which has none",
            f"{argument('cells', 'auto')} makes clusters of the cells",
        )
    if name in set(constant):
        raise InvalidInputError(
            f"{argument('cells')} to be a column that differs between cells of a sample",
            f"{quoted(name)}, which is the same in all cells of every sample",
            "choose an annotation of cells, such as their types",
        )
    return find(name, list(varying), f"{argument('cells')} to be a column that differs between cells of a sample")


def read_annotation(reader: Reader, name: str) -> tuple[Int32, tuple[str, ...]]:
    """Return the value of each cell in a column, as `encode` does."""
    if reader.inner is not None:
        codes, names = read_annotation(reader.inner, name)
        return codes[reader.rows] if isinstance(reader, SubsetReader) else codes, names
    # Only this column is read, not all annotations that the file has.
    narrow = replace(reader, annotations=(name,))
    return encode(columns[name] for _, columns, _ in narrow.label_blocks())


def encode(blocks: Iterable[Any]) -> tuple[Int32, tuple[str, ...]]:
    """Return values as positions among their names, -1 where one is missing, and the names in natural order.

    Parameters
    ----------
    blocks
        Consecutive values in forms that pandas can factorize: arrays, Categoricals, Series.
    """
    places: dict[str, int] = {}
    parts = [np.empty(0, dtype=np.int32)]
    for block in blocks:
        codes, uniques = factorize(block)
        # Categories without cells are not among the values, and must not become names.
        seen = np.unique(codes[codes >= 0]).tolist()
        place = np.full(len(uniques) + 1, -1, dtype=np.int32)
        for code in seen:
            text = spell(uniques[code])
            place[code] = places.setdefault(text, len(places)) if text.strip() else -1
        parts.append(place[codes])
    names = tuple(naturally(places))
    order = np.full(len(names) + 1, -1, dtype=np.int32)  # the last is for missing values, coded -1
    order[[places[name] for name in names]] = np.arange(len(names), dtype=np.int32)
    return order[np.concatenate(parts)], names
