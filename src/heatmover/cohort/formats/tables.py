"""Read tables of cells and sample sheets (Parquet, .csv, .tsv), choose features; for `cohort` and `study.scale` only.

The module reads files with Arrow, and writes nothing.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast, final

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Float64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted, distinct, find, find_all, listed, quoted, quoted_path
from heatmover.cohort.reader import (
    LABEL_ROWS,
    Block,
    LabelBlock,
    NotFeatures,
    Reader,
    Selection,
    as_float,
    check_memory_for,
    spans,
)
from heatmover.cohort.samples import Mixture
from heatmover.errors import InvalidInputError, argument

# Column names of the row numbers that pandas writes into tables by default. As a feature, row numbers would dominate
# all other features.
ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index")
# Reasons why a column is not a feature.
ROWS, TEXT, NAMED = "row numbers", "text", "named as an annotation"
# Bytes per numeric column while a table of any length is read; a text column takes twice as many bytes. Arrow needs
# 10,000 bytes per column to parse text and 14,000 bytes per column to read Parquet. Blocks of 200 rows and their copies
# take the rest.
COLUMN_BYTES = 24_000


def divide(columns: Sequence[str], numeric: Collection[str], wanted: Selection) -> dict[str, Any]:
    """Divide the columns into features, annotations and unused columns, as attributes of a `Reader`.

    By default, the features are the numeric columns other than the sample column and the annotations. `read_cohort`
    later keeps only features that vary within samples: the age of a donor, for example, does not describe a cell. An
    error is raised if the columns to read need more memory than allowed.
    """
    sample_key, representation, annotations, _, memory = wanted
    find(sample_key, columns, f"{argument('sample_key')} to be a column of the table")
    no_features = frozenset(wanted.no_features)
    named = find_all(annotations or (), columns, "every annotation to be a column of the table")
    row_numbers = {name for name in columns if ROW_NUMBERS.fullmatch(name)} - {*named, *no_features}
    if representation is None:
        candidates = frozenset(numeric) - {sample_key, *named, *no_features} - row_numbers
        features = [name for name in columns if name in candidates]
        if not features:
            raise InvalidInputError(
                "at least one column of numbers other than the sample and the annotations",
                f"none among {listed(columns)}",
            )
    else:
        features = _chosen(columns, frozenset(numeric), representation)
    taken = {sample_key, *features}
    rest = [name for name in columns if name not in taken and name not in row_numbers]
    descriptive = rest if annotations is None else [name for name in named if name not in taken]
    n_read = len(features) + len(descriptive)
    check_memory_for(counted(n_read, "column"), (n_read + len(descriptive)) * COLUMN_BYTES, memory)
    unused = dict.fromkeys((name for name in columns if name in row_numbers and name not in taken), ROWS)
    if representation is None:
        read = frozenset(descriptive)
        unused |= {name: NAMED if name in no_features else TEXT for name in rest if name not in read}
    return {
        "features": tuple(features),
        "annotations": tuple(descriptive),
        "undecided": representation is None,
        "unused": unused,
    }


def _chosen(columns: Sequence[str], numeric: Collection[str], representation: Sequence[str]) -> list[str]:
    if isinstance(representation, str):
        raise InvalidInputError(
            f"{argument('representation')} to be a list of columns of the table",
            quoted(representation),
            f"write [{quoted(representation)}] if you mean that column",
        )
    if not representation:
        raise InvalidInputError(f"at least one column in {argument('representation')}", "none")
    distinct(representation, f"columns in {argument('representation')}")
    chosen = find_all(
        representation, columns, f"every name in {argument('representation')} to be a column of the table"
    )
    texts = [name for name in chosen if name not in numeric]
    if texts:
        raise InvalidInputError(f"columns of numbers in {argument('representation')}", f"text in {listed(texts)}")
    return list(chosen)


# --- Parquet ---

# Largest size in bytes of the features that are in memory at a time while labels are read.
LABEL_BYTES = 1 << 26
# Above this number, floats cannot represent every whole number, and two different identifiers could become equal.
LARGEST_EXACT = 2**53
NESTED = "lists or records"


@final
@dataclass(frozen=True)
class ParquetReader(Reader):
    """Reader of a Parquet file; ``whole`` contains the features with an integer type."""

    path: str
    sample_key: str
    whole: frozenset[str] = frozenset()

    def label_blocks(self) -> Iterator[LabelBlock]:
        """Yield sample labels, annotation columns and, if ``undecided``, the features of consecutive cells."""
        numbers = self.features if self.undecided else ()
        names = list(dict.fromkeys([self.sample_key, *(self.annotations or ())]))
        rows = max(1, min(LABEL_ROWS, LABEL_BYTES // (8 * (len(numbers) + 1))))
        with _opened(self.path) as file:
            for batch in file.iter_batches(rows, columns=[*names, *numbers]):
                columns = {name: _values(batch.column(name)) for name in names}
                rest = {name: columns[name] for name in self.annotations or ()}
                yield columns[self.sample_key], rest, self._numbers(batch) if numbers else None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells; only row groups that overlap the range are read."""
        with _opened(self.path) as file:
            lengths = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            ends = np.cumsum(lengths)
            groups = [i for i, end in enumerate(ends) if end > start and end - lengths[i] < stop]
            done = int(ends[groups[0]] - lengths[groups[0]]) if groups else 0
            for batch in file.iter_batches(size, row_groups=groups, columns=list(self.features)):
                first, last = max(start - done, 0), min(stop - done, len(batch))
                done += len(batch)
                if first < last:
                    rows = batch.slice(first, last - first)
                    # Missing values become NaN, which the check of all values reports later.
                    yield np.column_stack([as_float(_number(rows.column(name))) for name in self.features])

    def _numbers(self, batch: Any) -> Float64:
        values = _matrix(batch, self.features)
        columns = zip(self.features, values.T, strict=True)
        long = [name for name, each in columns if name in self.whole and (np.abs(each) > LARGEST_EXACT).any()]
        if long:
            raise NotFeatures(*long)
        return values


def open_parquet(path: str, wanted: Selection) -> ParquetReader:
    """Check all names against the schema, and the number of columns against the memory limit; return a reader."""
    types = _column_types(path)
    nested = {name for name, kind in types.items() if _types().is_nested(kind)}
    wrong = [name for name in (wanted.sample_key, *(wanted.annotations or ()), *wanted.no_features) if name in nested]
    if wrong:
        raise InvalidInputError(
            f"one value in each row of the column {quoted(wrong[0])}", f"{types[wrong[0]]}", "choose another column"
        )
    chosen = wanted.representation or ()
    readable_columns = [name for name in types if name not in nested or name in chosen]
    columns = divide(readable_columns, [name for name, kind in types.items() if _is_number(kind)], wanted)
    whole = frozenset(name for name in columns["features"] if _types().is_integer(types[name]))
    if columns["undecided"]:
        columns["unused"] |= dict.fromkeys(nested, NESTED)
    return ParquetReader(path, wanted.sample_key, whole, kind="Parquet file", **columns)


def unmeasured_columns(path: str) -> list[str]:
    """Return the columns that may contain names: all types except lists, records and fractional numbers."""
    kinds = _types()
    return [
        name
        for name, kind in _column_types(path).items()
        if not kinds.is_nested(kind) and (kinds.is_integer(kind) or not _is_number(kind))
    ]


def _column_types(path: str) -> dict[str, Any]:
    """Return the type of each column, or raise if two columns have the same name."""
    with _opened(path) as file:
        schema = file.schema_arrow
    distinct(list(schema.names), "column names", "rename one of them")
    return dict(zip(schema.names, schema.types, strict=True))


def _types() -> Any:
    return import_extra("pyarrow", package="pyarrow", extra="cohort").types


def _is_number(kind: Any) -> bool:
    return bool(_types().is_floating(kind) or _types().is_integer(kind) or _types().is_decimal(kind))


def _opened(path: str) -> Any:
    parquet = import_extra("pyarrow.parquet", package="pyarrow", extra="cohort")
    # Disable Arrow's default of reading all row groups ahead: a file of 224 MB then takes 60 MB of memory, not 300 MB.
    return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)


def _number(column: Any) -> npt.NDArray[Any]:
    """Return a numeric column as an array; values of Arrow's decimal type become floats."""
    floats = column.cast("float64") if _types().is_decimal(column.type) else column
    return np.asarray(floats.to_numpy(zero_copy_only=False))


def _values(column: Any) -> Any:
    """Return a column in a type that pandas can factorize; whole numbers stay whole even if values are missing."""
    if column.null_count and _types().is_integer(column.type):
        return np.asarray(column.to_pylist(), dtype=object)
    return column.to_pandas()


# --- text ---

# Text of missing values. "None" is not included, because it is also the name of a treatment.
MISSING = ["", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL"]
DELIMITERS = ",\t;"
# Number of first rows that determine which columns are numeric. Text in later rows of a numeric column raises an error.
HEAD_ROWS = 1_000
# Largest number of fields in the first rows: 1,000 lines of 100,000 fields would take minutes to read, and 6 GB as
# Python strings.
HEAD_FIELDS = 200_000
# Bytes of text to parse at a time; a line must fit. For wide tables: number of lines to parse at a time, and largest
# number of bytes.
BLOCK_BYTES = 1 << 23
BLOCK_ROWS, WIDE_BLOCK_BYTES = 256, 1 << 26
# Patterns of numbers with a decimal comma, of numbers with a decimal point, and of numbers whose comma may separate
# thousands.
COMMA_NUMBER = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*")
POINT_NUMBER = re.compile(r"\s*[+-]?\d*\.\d+(?:[eE][+-]?\d+)?\s*")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@final
@dataclass(frozen=True)
class DelimitedReader(Reader):
    """Reader of a delimited text file."""

    path: str
    layout: TextLayout
    sample_key: str

    def place(self, row: int) -> str:
        """Return the line of a cell in words, counted as in an editor: from 1, including the header."""
        with _text(self.path) as stream:
            lines = _lines(stream, self.path, self.layout.delimiter)
            return f"line {next(islice(lines, row + 1, None))[0]}"

    def label_blocks(self) -> Iterator[LabelBlock]:
        """Yield sample labels, annotation columns and, if ``undecided``, the features of consecutive cells."""
        texts = tuple(dict.fromkeys((self.sample_key, *(self.annotations or ()), *self.suspects)))
        numbers = self.features if self.undecided else ()
        for batch in self._batches(texts, numbers):
            columns = {name: batch.column(name).to_pandas() for name in texts}
            rest = {name: columns[name] for name in (*(self.annotations or ()), *self.suspects)}
            yield columns[self.sample_key], rest, _matrix(batch, numbers) if numbers else None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells; all lines before the range are also read."""
        done = 0
        for batch in self._batches((), self.features):
            first, last = max(start - done, 0), min(stop - done, len(batch))
            if first < last:
                values = _matrix(batch, self.features)
                yield from (np.ascontiguousarray(values[a:b]) for a, b in spans(first, last, size))
            done += len(batch)
            if done >= stop:
                return

    def _batches(self, texts: Sequence[str], numbers: Sequence[str]) -> Iterator[Any]:
        """Yield record batches of consecutive rows, with the columns ``texts`` as text and ``numbers`` as numbers.

        Every line must have as many fields as the header. Arrow rounds every number correctly; pandas with exact
        parsing takes nine times as long (10.4 s compared with 1.2 s for 14 million numbers).
        """
        arrow = import_extra("pyarrow", package="pyarrow", extra="cohort")
        tool = import_extra("pyarrow.csv", package="pyarrow", extra="cohort")
        types = dict.fromkeys(texts, arrow.string()) | dict.fromkeys(numbers, arrow.float64())
        convert = tool.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=MISSING,
            strings_can_be_null=True,
            decimal_point=self.layout.decimal,
        )
        parse = tool.ParseOptions(delimiter=self.layout.delimiter, newlines_in_values=True)
        # Use one thread, so that batches are in order, messages contain line numbers, and other cores stay free.
        read = tool.ReadOptions(block_size=self.layout.block_bytes, use_threads=False)
        with binary(self.path) as stream:
            try:
                yield from tool.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
            except arrow.ArrowInvalid as error:
                better = self._not_numbers(numbers) if "conversion error to double" in str(error) else None
                if better is not None:
                    raise better from error
                with _text(self.path) as lines:  # raises an error with the line number that an editor shows
                    for _ in _lines(lines, self.path, self.layout.delimiter):
                        pass
                raise

    def _not_numbers(self, numbers: Sequence[str]) -> Exception | None:
        """Return an error that quotes text in a numeric column; the parser's error contains only the column number.

        If the column is mostly text and the user did not name the column, the error is `NotFeatures`, so that the
        caller treats the column as an annotation.
        """
        mixtures, row = {name: Mixture() for name in numbers}, 0
        for batch in self._batches(numbers, ()):
            for name, mixture in mixtures.items():
                encoded = batch.column(name).dictionary_encode()
                codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
                mixture.add(codes, encoded.dictionary.to_pylist(), self.decimal, row)
            row += len(batch)
        texts = [name for name, mixture in mixtures.items() if mixture.texts and not mixture.mostly_numbers]
        wrong = {name: mixture for name, mixture in mixtures.items() if mixture.row >= 0}
        if self.undecided and texts:
            return NotFeatures(*texts)
        return not_a_number(self, *next(iter(wrong.items()))) if wrong else None


def demoted(reader: Reader, columns: Collection[str]) -> Reader:
    """Return a reader that treats the features ``columns`` as annotations."""
    features = tuple(name for name in reader.features if name not in columns)
    annotations = (*(reader.annotations or ()), *(name for name in reader.features if name in columns))
    return replace(reader, features=features, annotations=annotations)


def not_a_number(reader: Reader, name: str, mixture: Mixture) -> InvalidInputError:
    """Return the error for text in a column of numbers."""
    return InvalidInputError(
        f"numbers in the column {quoted(name)}",
        f"{quoted(mixture.value)} in {reader.place(mixture.row)}",
        f"write NA for missing values, name the column in {argument('no_features')}, or name the features in "
        f"{argument('representation')}",
    )


def _matrix(batch: Any, columns: Sequence[str]) -> Float64:
    """Return numeric columns as an array ``(n_rows, n_columns)``."""
    values = np.empty((len(columns), len(batch)))
    for place, column in enumerate(batch.select(list(columns)).columns):
        values[place] = _number(column)
    return values.T


def binary(path: str) -> IO[bytes]:
    """Open a file, and decompress it if it begins with the signature of gzip."""
    with Path(path).open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path, "rb")) if zipped else Path(path).open("rb")


def _text(path: str) -> IO[str]:
    return io.TextIOWrapper(binary(path), encoding="utf-8-sig", newline="")


def open_delimited(path: str, wanted: Selection) -> DelimitedReader:
    """Check all names against the header, and the table against the memory limit; return a reader."""
    layout, head = read_head(path)
    mixtures = {name: Mixture.of(map(_text_or_none, texts), layout.decimal) for name, texts in head.items()}
    # If the user named a feature, text in its column is reported later, with the line. A column without values in the
    # first rows may contain anything.
    named = wanted.representation is not None
    numeric = [name for name, mixture in mixtures.items() if not mixture.texts or (mixture.numbers and named)]
    columns = divide(list(head), numeric, wanted)
    suspects = tuple(name for name, why in columns["unused"].items() if why == TEXT and mixtures[name].numbers)
    notes = (
        ()
        if layout.decimal == "."
        else (f"Numbers were read with decimal commas, for example {quoted(layout.example)}.",)
    )
    return DelimitedReader(
        path, layout, wanted.sample_key,
        kind="table of text", decimal=layout.decimal, suspects=suspects, notes=notes, **columns,
    )  # fmt: skip


def _text_or_none(text: str) -> str | None:
    return None if text.strip() in MISSING else text


@final
@dataclass(frozen=True)
class TextLayout:
    """Layout of a table of text.

    Attributes
    ----------
    delimiter, decimal
        Delimiter between fields, and decimal mark of numbers.
    example
        Example of a number with a decimal comma from the file; empty if there is none.
    block_bytes
        Bytes to parse at a time, enough for several hundred lines, because each column of a block takes some
        microseconds.
    """

    delimiter: str
    decimal: str = "."
    example: str = ""
    block_bytes: int = BLOCK_BYTES


def read_head(path: str, rows: int | None = HEAD_ROWS) -> tuple[TextLayout, dict[str, list[str]]]:
    """Return the layout of a table, and the first ``rows`` rows (None: all rows) of each column as text."""
    with _text(path) as stream:
        first = next((line for line in stream if line.strip()), "")
        delimiter = max(DELIMITERS, key=first.count)
        stream.seek(0)
        lines = _lines(stream, path, delimiter)
        _, header = next(lines, (0, []))
        if not any(name.strip() for name in header):
            raise InvalidInputError("a table with a header", f"that {quoted_path(path)} is empty")
        distinct([name for name in header if name], "column names", "rename one of them")
        most = None if rows is None else max(1, min(rows, HEAD_FIELDS // len(header)))
        kept = [line for _, line in islice(lines, most)]
    if not kept:
        raise InvalidInputError("at least one row below the header", f"none in {quoted_path(path)}")
    head = dict(zip(header, map(list, zip(*kept, strict=True)), strict=True))
    decimal, example = _decimal(head, path)
    longest = max(sum(map(len, line)) + len(line) for line in (header, *kept))
    block = min(max(BLOCK_BYTES, BLOCK_ROWS * longest), max(WIDE_BLOCK_BYTES, 4 * longest))
    return TextLayout(delimiter, decimal, example, block), head


def _lines(stream: IO[str], path: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line that is not blank, starting with the header.

    A line with fewer or more fields than the header raises an error. A line break in quotes does not end a row, but
    counts for line numbers. The csv module limits the length of fields, so a missing closing quotation mark raises an
    error.
    """
    reader, number, width = csv.reader(stream, delimiter=delimiter), 1, 0
    try:
        for fields in reader:
            width = width or len(fields)
            if fields and len(fields) != width:
                there = f"{len(fields)} in line {number} of {quoted_path(path)}"
                raise InvalidInputError(f"{width} fields in every line, as in the header", there)
            if fields:
                yield number, fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInputError(
            f"a line whose fields have at most {csv.field_size_limit():,} characters",
            f"line {number} of {quoted_path(path)} ({error})",
            "close the open quotation mark, or shorten the longest field of the line",
        ) from error


def _decimal(columns: Mapping[str, Sequence[str]], path: str) -> tuple[str, str]:
    """Return the decimal mark, and an example of a decimal comma; raise if commas may also separate thousands."""
    fields = [text for texts in columns.values() for text in texts if "," in text or "." in text]
    commas = [text.strip() for text in fields if COMMA_NUMBER.fullmatch(text)]
    # If numbers with a comma are not the majority, they count as text in a numeric column, and an error later reports
    # their line.
    if len(commas) <= sum(1 for text in fields if POINT_NUMBER.fullmatch(text)):
        return ".", ""
    if all(THOUSANDS.fullmatch(text) for text in commas):
        raise InvalidInputError(
            "numbers with a point before decimals and nothing between thousands",
            f"{quoted(commas[0])} in {quoted_path(path)}, where the comma may mark decimals or thousands",
            "write the table with decimal points",
        )
    return ",", next(text for text in commas if not THOUSANDS.fullmatch(text))


def read_sheet(path: str) -> dict[str, list[str | None]]:
    """Return the columns of a sample sheet as text, with None for missing values."""
    layout, columns = read_head(path, None)
    if layout.decimal == ",":
        for name, texts in columns.items():
            columns[name] = [text.replace(",", ".") if COMMA_NUMBER.fullmatch(text) else text for text in texts]
    return {name: list(map(_text_or_none, texts)) for name, texts in columns.items() if name}
