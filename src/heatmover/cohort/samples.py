"""Build the table of samples from labels and annotations of cells, in blocks; for `cohort`, `study` and `tl`.

This module reads files only through a `Reader`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, final

import numpy as np

from heatmover._base.types import Float64, Int32, Intp
from heatmover._base.validation import LabelNames, import_extra
from heatmover._base.words import counted, find, natural_order, quoted
from heatmover.cohort.reader import Reader, SubsetReader
from heatmover.errors import InvalidInputError, argument, the_argument
from heatmover.measures import is_missing

# Nouns for samples and donors in column names.
IDENTITIES = (
    r"sample|specimen|biopsy|library|orig\.?ident|replicate|aliquot|"
    r"patient|donor|subject|individual|participant|mouse|animal"
)
LIKELY = re.compile(IDENTITIES)
# Names that end with one of these nouns, optionally followed by "id" or similar: donor_id, but not donor_ethnicity.
IDENTIFIES = re.compile(rf"({IDENTITIES})s?[ _.-]?(id|no|nr|num|number|name|code|label|\d+)?$")
PERHAPS = re.compile(r"batch|channel|lane|(^|[ _.-])(run|well|plate)|hash|_id$|^id$|sample|patient|donor|subject")
# Properties of samples that do not identify them: sample_type, patient_group, donor_age.
OF_SAMPLES = re.compile(r"type|group|class|status|condition|site|tissue|source|sex|age$|stage|treat|disease|date|time")
# Annotations of cells: cell_type, bulk_labels, leiden_0.5, seurat_clusters, phase, predicted.celltype.l2.
OF_CELLS = re.compile(
    r"cell[ _.-]?(type|class|state|subset|ontology|label|cycle)|(^|bulk_)labels?$|louvain|leiden|cluster|phenograph|"
    r"flowsom|annotation|^phase$|^ident$|subset|lineage|compartment|population|predicted|doublet"
)
# Largest number of (label, value) pairs to keep in memory per column; a column with more pairs identifies cells, not
# samples or donors.
MOST_PAIRS = 100_000

# Pattern of numbers stored as text. Digits with a leading zero are a name: patient 007 is not patient 7.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)
# Largest number of digits of a whole number that a float can store.
LONGEST_WHOLE = 308
BOOLEANS = {"True": True, "False": False, "TRUE": True, "FALSE": False, "true": True, "false": False}


@final
@dataclass
class Mixture:
    """Counts of numeric and text values in a text column, and the first value that is not a number."""

    numbers: int = 0
    texts: int = 0
    # Number of values with a leading zero, or with more digits than a float can store. These values are names, so all
    # numbers in their column are read as names.
    padded: int = 0
    row: int = -1
    value: str = ""

    @classmethod
    def of(cls, values: Iterable[object], decimal: str) -> Mixture:
        """Count values; None means a missing value."""
        mixture, places = cls(), dict[object, int]()
        codes = [-1 if value is None else places.setdefault(value, len(places)) for value in values]
        mixture.add(np.array(codes, dtype=np.intp), list(places), decimal, 0)
        return mixture

    @property
    def mostly_numbers(self) -> bool:
        """Whether numbers outnumber text, so that the text is probably an error, not a name."""
        return self.numbers > self.texts and self.texts > self.padded

    def add(self, codes: Intp, uniques: Sequence[object], decimal: str, row: int) -> None:
        """Add values, given as indices into the distinct values ``uniques``; ``row`` is the row of the first value."""
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
    if text[:1].isalpha() and text[:1] not in "iI":  # skip most names quickly, because there may be one name per cell
        return VERBAL
    if pattern.fullmatch(text) and not long_name(text):
        return NUMERIC
    return PADDED if text.isascii() and text.isdigit() and len(text) <= LONGEST_WHOLE else VERBAL


def unlikely_samples(column: str) -> int:
    """Rank a column name: 0 for samples or donors, 1 for batches or channels, 2 for other names, 3 for cell types.

    Examples
    --------
    >>> [unlikely_samples(name) for name in ("donor_id", "channel", "response", "bulk_labels")]
    [0, 1, 2, 3]
    """
    name = column.lower()
    if OF_CELLS.search(name):
        return 3
    if LIKELY.search(name) and not OF_SAMPLES.search(name):
        return 0
    return 1 if PERHAPS.search(name) else 2


def _identifies(column: str) -> bool:
    return unlikely_samples(column) == 0 and IDENTIFIES.search(column.lower()) is not None


@final
class SampleTable:
    """Table of samples, built block by block: the sample of each cell, and the value of each variable per sample.

    Parameters
    ----------
    sample_key
        Column that contains the sample of each cell.
    annotations, undecided
        Columns that may describe samples or cells, and numeric columns that may be features.
    whole
        Columns in ``undecided`` with an integer type.
    decimal
        Decimal mark if columns have no types and store numbers as text; otherwise empty.
    """

    def __init__(
        self,
        sample_key: str,
        annotations: Sequence[str],
        undecided: Sequence[str] = (),
        *,
        whole: Collection[str] = (),
        decimal: str = "",
    ) -> None:
        self.sample_key = sample_key
        self.decimal = decimal
        self.columns = np.array([*annotations, *undecided], dtype=object)
        # Counts of numeric and text values in each text column; and columns whose values cannot be compared, such as
        # lists.
        self.mixtures: dict[str, Mixture] = {}
        self.odd: set[str] = set()
        self.n_cells = 0
        self._whole = frozenset(whole)
        self._codes: list[Int32] = []
        self._labels = LabelNames(f"samples in {quoted(sample_key)}")
        self._places: dict[str, int] = {}
        # For each annotation: the values that occur in the first cell of a sample, each with a number.
        self._values: dict[str, dict[object, int]] = {name: {} for name in annotations}
        # (n_samples, n_columns): the first number of each sample, and whether the sample also has other numbers.
        self._first = np.empty((0, self.columns.size))
        self._varying = np.empty((0, self.columns.size), dtype=bool)
        self._fractional = np.zeros(self.columns.size, dtype=bool)
        self._missing, self._first_missing = 0, -1
        # For each column that identifies donors or samples: the pairs of label and value that occur together.
        self._pairs: dict[str, set[tuple[int, object]]] = {
            name: set() for name in self.columns.tolist() if _identifies(name)
        }

    def add(self, labels: Any, columns: Mapping[str, Any], numbers: Float64 | None = None) -> None:
        """Add the labels and annotations of the next cells, and the ``numbers`` in their undecided columns."""
        codes = _positions(labels, self._place)
        missing = np.flatnonzero(codes < 0)
        if missing.size and not self._missing:
            self._first_missing = self.n_cells + int(missing[0])
        self._missing += missing.size
        fresh = np.unique(codes, return_index=True)[1]
        annotations = [self._numbered(name, column, fresh[codes[fresh] >= 0]) for name, column in columns.items()]
        columns_of_numbers = [column[:, None] for column in annotations] + ([] if numbers is None else [numbers])
        if columns_of_numbers:
            self._compare(codes, np.hstack(columns_of_numbers))
        for name in tuple(self._pairs):
            place = self.columns.tolist().index(name) - len(self._values)
            if place < 0:
                self._pair(name, codes, columns[name])
            elif numbers is not None:
                self._pair(name, codes, numbers[:, place])
        self._codes.append(codes)
        self.n_cells += codes.size

    def _compare(self, codes: Int32, numbers: Float64) -> None:
        """Compare numbers ``(n_rows, n_columns)``, NaN for missing values, with the first number of each sample."""
        before = len(self._first)
        more = len(self._places) - before
        self._first = np.concatenate([self._first, np.full((more, self.columns.size), np.nan)])
        self._varying = np.concatenate([self._varying, np.zeros((more, self.columns.size), dtype=bool)])
        order = np.argsort(codes, kind="stable")
        order = order[np.searchsorted(codes[order], 0) :]  # drop cells without a label
        if not order.size:
            return
        values, owners = numbers[order], codes[order]
        samples, starts = np.unique(owners, return_index=True)
        fresh = samples >= before
        self._first[samples[fresh]] = values[starts[fresh]]
        anchors = self._first[owners]
        differ = (values != anchors) & ~(np.isnan(values) & np.isnan(anchors))
        self._varying[samples] |= np.logical_or.reduceat(differ, starts, axis=0)
        self._fractional |= (np.isfinite(values) & (values != np.floor(values))).any(axis=0)

    def _pair(self, name: str, codes: Int32, column: Any) -> None:
        """Store the pairs of labels and values of a column that occur in the same cell."""
        try:
            values, uniques = factorize(column)
        except TypeError:  # lists and the like
            del self._pairs[name]
            return
        present = (codes >= 0) & (values >= 0)
        together = np.unique(codes[present].astype(np.int64) * len(uniques) + values[present])
        if together.size <= MOST_PAIRS:
            pairs = self._pairs[name]
            pairs.update((pair // len(uniques), native(uniques[pair % len(uniques)])) for pair in together.tolist())
        if max(together.size, len(self._pairs[name])) > MOST_PAIRS:
            del self._pairs[name]

    def shared(self) -> tuple[str, int] | None:
        """Return a column of donors or samples, and the number of labels that occur with all of its values.

        Labels that occur in all donors or samples probably describe cells. A column qualifies if most labels occur with
        all of its values. If the name of the sample key says that its labels are samples, a column must also have more
        values than there are labels: `donor` is believed if every donor gave tumor and blood, `sample` is not if it
        contains only tumor and blood. If several columns qualify, return the column with the most values; if none,
        return None.
        """
        candidates = []
        fewest = 2 if unlikely_samples(self.sample_key) else len(self._places) + 1
        for name, pairs in self._pairs.items():
            n_values = len({value for _, value in pairs})
            everywhere = sum(count == n_values for count in Counter(label for label, _ in pairs).values())
            if n_values >= fewest and 2 * everywhere > len(self._places):
                candidates.append((n_values, name, everywhere))
        return max(candidates)[1:] if candidates else None

    def finish(self, place: Callable[[int], str] = "row {}".format) -> tuple[tuple[str, ...], Int32]:
        """Return the sample names in natural order, and the index of each cell's sample; raise if a label is missing.

        Parameters
        ----------
        place
            Function that returns the location of a cell in words, given its row.
        """
        if self._missing:
            raise InvalidInputError(
                f"a sample label for every cell in {quoted(self.sample_key)}",
                f"{self._missing} of {self.n_cells} missing (first: {place(self._first_missing)})",
                "remove those cells or label them",
            )
        if self.n_cells == 0:
            raise InvalidInputError("at least one cell", "none")
        self._order, names, codes = _in_natural_order(self._places, self._codes)
        return names, codes

    @property
    def fractional(self) -> frozenset[str]:
        """Columns with at least one value that is not a whole number."""
        return frozenset(self.columns[self._fractional].tolist())

    @property
    def varying(self) -> dict[str, int]:
        """Number of samples within which a column varies, by name; columns that vary in no sample are left out."""
        counts = zip(self.columns.tolist(), self._varying.sum(axis=0).tolist(), strict=True)
        return {name: count for name, count in counts if count and name not in self.odd}

    def variables(self) -> dict[str, list[object]]:
        """Return one value per sample for every column that is constant within samples; call `finish` first."""
        variables: dict[str, list[object]] = {}
        for place in np.flatnonzero(~self._varying.any(axis=0)).tolist():
            name = str(self.columns[place])
            if name in self.odd:
                continue
            values = list(self._values.get(name, ()))
            column: list[object] = []
            for number in self._first[self._order, place].tolist():
                if number != number:
                    column.append(None)
                elif values:
                    column.append(values[int(number)])
                else:
                    column.append(int(number) if name in self._whole else number)
            variables[name] = from_text(column, self.decimal) if self.decimal else column
        return variables

    def _place(self, original: object) -> int:
        label = native(original)
        if not str(label).strip():
            return -1
        return self._places.setdefault(self._labels.add(label), len(self._places))

    def _numbered(self, name: str, column: Any, first: Intp) -> Float64:
        """Return a number for each cell's annotation: NaN if missing, -1 if no sample has the value in its first cell.

        ``first`` contains the row of the first cell of each sample in this block.
        """
        numbers = self._values[name]
        try:
            values, uniques = factorize(column)
        except TypeError:  # lists and other values that cannot be compared
            self.odd.add(name)
            return np.full(len(column), np.nan)
        if self.decimal:
            self.mixtures.setdefault(name, Mixture()).add(values, uniques, self.decimal, self.n_cells)
        uniques = [native(value) for value in uniques]
        for value in values[first].tolist():
            if value >= 0:
                numbers.setdefault(uniques[value], len(numbers))
        return np.array([*(numbers.get(value, -1) for value in uniques), np.nan])[values]


def _positions(block: Any, place: Callable[[object], int]) -> Int32:
    """Return the index that ``place`` assigns to each value, ``(n_rows,)``; -1 for missing values."""
    codes, uniques = factorize(block)
    places = np.full(len(uniques) + 1, -1, dtype=np.int32)  # code -1 (missing) selects the last entry
    # Skip categories without cells, which must not become names.
    for code in np.unique(codes[codes >= 0]).tolist():
        places[code] = place(uniques[code])
    return places[codes]


def _in_natural_order(places: Mapping[str, int], codes: Iterable[Int32]) -> tuple[list[int], tuple[str, ...], Int32]:
    """Return the natural order of names, the sorted names, and the index of each value's name; -1 stays -1."""
    names = list(places)
    order = natural_order(names)
    position = np.full(len(names) + 1, -1, dtype=np.int32)
    position[order] = np.arange(len(names), dtype=np.int32)
    return order, tuple(names[place] for place in order), position[np.concatenate([np.empty(0, np.int32), *codes])]


def factorize(values: Any) -> tuple[Intp, list[Any]]:
    """Return each value as an index into the distinct values (-1 for missing values), and the distinct values."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    kind = values.dtype
    if isinstance(kind, pandas.StringDtype) or (isinstance(kind, np.dtype) and kind.kind in "USTO"):
        # Do not use pandas here: it ends text at a NUL, and would treat "a" and "a\0b" as equal.
        places: dict[Any, int] = {}
        codes = np.array([places.setdefault(value, len(places)) for value in values.tolist()], dtype=np.intp)
        present = np.array([not is_missing(value) for value in places], dtype=bool)
        distinct = [value for value, keep in zip(places, present, strict=True) if keep]
        return np.where(present, np.cumsum(present) - 1, -1)[codes], distinct
    codes, uniques = pandas.factorize(values)
    return np.asarray(codes), list(uniques)


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
    """Return the pattern of numbers with this decimal mark."""
    return NUMBER if decimal == "." else re.compile(NUMBER.pattern.replace(r"\.", re.escape(decimal)), re.IGNORECASE)


def long_name(text: str) -> bool:
    """Return whether a whole number has too many digits for a float; as numbers, two such names could be equal."""
    digits = text.lstrip("+-")
    if len(digits) <= 15 or not (digits.isascii() and digits.isdigit()):
        return False
    return len(digits) > LONGEST_WHOLE or int(float(digits)) != int(digits)


def from_text(values: list[object], decimal: str = ".") -> list[object]:
    """Convert text to numbers or to booleans if all values except missing values can be converted."""
    present, pattern = [value for value in values if value is not None], number_pattern(decimal)
    if present and all(isinstance(value, float) or pattern.fullmatch(str(value)) for value in present):
        numbers = [None if value is None else float(str(value).replace(decimal, ".")) for value in values]
        if any(number is not None and long_name(str(value)) for number, value in zip(numbers, values, strict=True)):
            return values
        whole = all(number is None or number.is_integer() for number in numbers)
        return [None if number is None else int(number) if whole else number for number in numbers]
    if present and all(value in BOOLEANS for value in present):
        return [None if value is None else BOOLEANS[str(value)] for value in values]
    return values


def check_variable(name: str, known: Sequence[str], varying: Mapping[str, int], n_samples: int) -> str:
    """Return the checked name of a column of sample metadata; if there is no such column, the error explains why."""
    if name in varying and name not in known:
        raise InvalidInputError(
            f"{quoted(name)} to be constant within each sample",
            f"that it varies within {varying[name]} of {counted(n_samples, 'sample')}",
            "choose sample metadata, not an annotation of cells",
        )
    return find(name, known, "the name of a column of sample metadata")


def table_of(names: Sequence[str], sample_key: str, variables: Mapping[str, Sequence[object]]) -> Any:
    """Return the table of samples, one row per name, one column per variable.

    Each column has the narrowest suitable type: number, boolean, date or object.
    """
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    index = pandas.Index(list(names), dtype=object, name=sample_key)
    columns = {name: pandas.Series(list(values), index, dtype=object) for name, values in variables.items()}
    for name, series in columns.items():
        kinds = {type(value) for value in series.dropna()}
        if kinds and kinds <= {int, float}:
            columns[name] = pandas.to_numeric(series)
        elif str not in kinds:
            columns[name] = series.infer_objects()
    return pandas.DataFrame(columns, index=index)


def check_annotation(name: str, reader: Reader, varying: Mapping[str, int], constant: Iterable[str]) -> str:
    """Return ``name`` if this column of the file differs between the cells of a sample; otherwise raise an error."""
    if reader.annotations is None:
        raise InvalidInputError(
            f"a file with annotations of cells, for {argument('cells', name)}",
            f"a {reader.kind}, which has no annotations of cells",
            f"{argument('cells', 'auto')} clusters the cells",
        )
    named = f"{the_argument('cells')} to be the name of a column"
    expected = f"{named} that differs between cells of a sample"
    if name in set(constant):
        raise InvalidInputError(
            expected,
            f"{quoted(name)}, which is the same in all cells of every sample",
            "choose an annotation of cells, such as their types",
        )
    return find(name, list(varying), expected)


def read_annotation(reader: Reader, name: str) -> tuple[Int32, tuple[str, ...]]:
    """Read an annotation of all cells, in the encoding of `encode`."""
    if reader.inner is not None:
        codes, names = read_annotation(reader.inner, name)
        return codes[reader.rows] if isinstance(reader, SubsetReader) else codes, names
    # Read only this column, not all annotations of the file.
    narrow = replace(reader, annotations=(name,))
    return encode(columns[name] for _, columns, _ in narrow.label_blocks())


def encode(blocks: Iterable[Any]) -> tuple[Int32, tuple[str, ...]]:
    """Return each value as an index into the names (-1 for missing values), and the names in natural order.

    Parameters
    ----------
    blocks
        Blocks of consecutive values that pandas can factorize: arrays, Categoricals or Series.
    """
    places: dict[str, int] = {}

    def place(value: object) -> int:
        text = str(native(value))
        return places.setdefault(text, len(places)) if text.strip() else -1

    codes = [_positions(block, place) for block in blocks]
    _, names, positions = _in_natural_order(places, codes)
    return positions, names
