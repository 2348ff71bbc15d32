"""Tables of one row per cell: which columns are features, Parquet files, and text (.csv, .tsv, also gzipped)."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast, final

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Float64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted, distinct, find, find_all, listed, quoted, quoted_path
from heatmover.cohort.reader import LABEL_ROWS, Block, Columns, NotFeatures, Numbers, Reader, as_float, spans
from heatmover.cohort.samples import Mixture
from heatmover.errors import InvalidInputError, argument

__all__ = [
    "NAMED",
    "ROWS",
    "TEXT",
    "DelimitedReader",
    "Division",
    "ParquetReader",
    "check_memory_for",
    "demoted",
    "divide",
    "not_a_number",
    "open_delimited",
    "open_parquet",
    "read_head",
    "read_sheet",
    "unmeasured_columns",
]

# Row numbers that pandas writes into tables unasked; as a feature they would drown the others.
ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index")
# Why a column is no feature.
ROWS, TEXT, NAMED = "numbers of rows", "text", "named as an annotation"
# Bytes of a column of numbers while it is read, whatever its length, and half of those of a column of text. Arrow's
# parser of text takes 10,000, its reader of Parquet 14,000; the rest is for blocks of 200 rows and their copies.
COLUMN_BYTES = 24_000


@final
@dataclass(frozen=True)
class Division:
    """Columns of a table by what they are for.

    Attributes
    ----------
    features
        Those of the cells' values.
    annotations
        Those that may describe samples or cells.
    undecided
        Whether a feature may still turn out to be an annotation.
    unused
        The others, and why.
    """

    features: tuple[str, ...]
    annotations: tuple[str, ...]
    undecided: bool
    unused: Mapping[str, str]


def divide(
    columns: Sequence[str],
    numeric: Collection[str],
    *,
    sample_key: str,
    representation: Sequence[str] | None,
    annotations: Sequence[str] | None,
    no_features: Collection[str] = (),
    memory: int | None = None,
) -> Division:
    """Divide the columns of a table, or raise if those that are read need more than so many bytes of memory.

    Without a list of features these are the numeric columns that are neither the sample nor an annotation; of them
    the reader later takes those that vary within samples, for an age is no property of a cell.
    """
    find(sample_key, columns, f"{argument('sample_key')} to be a column of the table")
    no_features = frozenset(no_features)
    named = find_all(annotations or (), columns, "every annotation to be a column of the table")
    row_numbers = {name for name in columns if ROW_NUMBERS.fullmatch(name)} - {*named, *no_features}
    if representation is None:
        candidates = frozenset(numeric) - {sample_key, *named, *no_features} - row_numbers
        features = [name for name in columns if name in candidates]
        if not features:
            raise InvalidInputError(
                "at least one column of numbers besides the sample and the annotations",
                f"none among {listed(columns)}",
            )
    else:
        features = _chosen(columns, frozenset(numeric), representation)
    taken = {sample_key, *features}
    rest = [name for name in columns if name not in taken and name not in row_numbers]
    wanted = rest if annotations is None else [name for name in named if name not in taken]
    n_read = len(features) + len(wanted)
    check_memory_for(counted(n_read, "column"), (n_read + len(wanted)) * COLUMN_BYTES, memory)
    unused = dict.fromkeys((name for name in columns if name in row_numbers and name not in taken), ROWS)
    if representation is None:
        read = frozenset(wanted)
        unused |= {name: NAMED if name in no_features else TEXT for name in rest if name not in read}
    return Division(tuple(features), tuple(wanted), representation is None, unused)


def check_memory_for(what: str, needed: int, memory: int | None) -> None:
    """Raise if something needs more bytes than the memory allowed."""
    if memory is not None and needed > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {-(-needed // 1_000_000):,} MB for {what}",
            f"{memory / 1e6:,.0f} MB",
            "allow more, or store the cells as .h5ad",
        )


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
        raise InvalidInputError(
            f"columns of numbers in {argument('representation')}", f"{listed(texts)} without numbers"
        )
    return list(chosen)


# --- Parquet ---

# Bytes of undecided features in memory at once.
LABEL_BYTES = 1 << 26
# Whole numbers beyond are not all floats: names, of which two could become one.
LARGEST_EXACT = 2**53
NESTED = "lists or records"
# Values looked at to tell measurements from names.
HEAD_VALUES = 200_000


@final
@dataclass(frozen=True)
class ParquetReader(Reader):
    """Cells of a Parquet file; ``whole`` are the features whose type is that of whole numbers."""

    path: str
    sample_key: str
    whole: frozenset[str] = frozenset()

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels, the annotation columns and the undecided features of consecutive cells."""
        numbers = self.features if self.undecided else ()
        names = list(dict.fromkeys([self.sample_key, *(self.annotations or ())]))
        rows = max(1, min(LABEL_ROWS, LABEL_BYTES // (8 * (len(numbers) + 1))))
        with _opened(self.path) as file:
            for batch in file.iter_batches(rows, columns=[*names, *numbers]):
                place = {name: i for i, name in enumerate(batch.schema.names)}
                columns = {name: _values(batch.column(place[name])) for name in names}
                rest = {name: columns[name] for name in self.annotations or ()}
                yield columns[self.sample_key], rest, self._numbers(batch, place) if numbers else None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells; only the row groups that hold some of them are read."""
        with _opened(self.path) as file:
            lengths = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            ends = np.cumsum(lengths)
            groups = [i for i, end in enumerate(ends) if end > start and end - lengths[i] < stop]
            done = int(ends[groups[0]] - lengths[groups[0]]) if groups else 0
            for batch in file.iter_batches(size, row_groups=groups, columns=list(self.features)):
                rows = batch.slice(max(start - done, 0), max(min(stop - done, len(batch)) - max(start - done, 0), 0))
                done += len(batch)
                if len(rows):
                    yield self._block(rows)

    def _block(self, batch: Any) -> Block:
        place = {name: i for i, name in enumerate(batch.schema.names)}
        # A missing value becomes NaN, which the check for NaN then counts.
        return np.column_stack([as_float(_number(batch.column(place[name]))) for name in self.features])

    def _numbers(self, batch: Any, place: Mapping[str, int]) -> Float64:
        values = np.empty((len(self.features), len(batch)))
        for i, name in enumerate(self.features):
            values[i] = _number(batch.column(place[name]))
        long = [name for i, name in enumerate(self.features) if name in self.whole and _long(values[i])]
        if long:
            raise NotFeatures(long)
        return values.T


def open_parquet(
    path: str,
    *,
    sample_key: str,
    representation: Sequence[str] | None,
    annotations: Sequence[str] | None,
    no_features: Collection[str] = (),
    memory: int | None = None,
) -> ParquetReader:
    """Return a reader after checking every name against the schema, and the columns against the memory allowed."""
    with _opened(path) as file:
        schema = file.schema_arrow
    types = dict(zip(schema.names, schema.types, strict=True))
    distinct(list(schema.names), "column names", "rename one of them")
    nested = {name for name, kind in types.items() if _is_nested(kind)}
    asked = [name for name in (sample_key, *(annotations or ()), *no_features) if name in nested]
    if asked:
        raise InvalidInputError(
            f"one value in each row of the column {quoted(asked[0])}", f"{types[asked[0]]}", "choose another column"
        )
    division = divide(
        [name for name in schema.names if name not in nested or name in (representation or ())],
        [name for name, kind in types.items() if _is_number(kind)],
        sample_key=sample_key,
        representation=representation,
        annotations=annotations,
        no_features=no_features,
        memory=memory,
    )
    whole = frozenset(name for name in division.features if _is_whole(types[name]))
    unused = {**division.unused, **(dict.fromkeys(nested, NESTED) if division.undecided else {})}
    columns = {**vars(division), "unused": unused}
    return ParquetReader(path, sample_key, whole, kind="Parquet file", **columns)


def unmeasured_columns(path: str) -> list[str]:
    """Return the columns that are not nested and do not begin with fractions."""
    with _opened(path) as table:
        types = dict(zip(table.schema_arrow.names, table.schema_arrow.types, strict=True))
        flat = [name for name, kind in types.items() if not _is_nested(kind)]
        head = next(table.iter_batches(max(1, HEAD_VALUES // max(len(flat), 1)), columns=flat), None)
        if head is None:
            return flat
        columns = dict(zip(head.schema.names, head.columns, strict=True))
    floats = {name for name in flat if _is_number(types[name]) and not _is_whole(types[name])}
    return [name for name in flat if name not in floats or not _fractional(_number(columns[name]))]


def _fractional(values: Any) -> bool:
    return bool((np.isfinite(values) & (values != np.floor(values))).any())


@cache
def _types() -> Any:
    return import_extra("pyarrow", package="pyarrow", extra="cohort").types


def _is_number(kind: Any) -> bool:
    return bool(_types().is_floating(kind) or _types().is_integer(kind) or _types().is_decimal(kind))


def _is_whole(kind: Any) -> bool:
    return bool(_types().is_integer(kind))


def _is_nested(kind: Any) -> bool:
    return bool(_types().is_nested(kind))


def _long(values: Float64) -> bool:
    return bool((np.abs(values) > LARGEST_EXACT).any())


def _opened(path: str) -> Any:
    parquet = import_extra("pyarrow.parquet", package="pyarrow", extra="cohort")
    # By default Arrow reads all row groups ahead: 300 MB for a file of 224 MB, against 60 MB so.
    return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True)


def _number(column: Any) -> npt.NDArray[Any]:
    """Return a column of numbers; decimals become floats."""
    floats = column.cast("float64") if _types().is_decimal(column.type) else column
    return np.asarray(floats.to_numpy(zero_copy_only=False))


def _values(column: Any) -> Any:
    """Return a column in a form that pandas can factorize; whole numbers with gaps stay whole numbers."""
    if column.null_count and _is_whole(column.type):
        return np.asarray(column.to_pylist(), dtype=object)
    return column.to_pandas()


# --- text ---

# "None" is not among them: it is also the name of a treatment.
MISSING = ["", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL"]
DELIMITERS = ",\t;"
# Rows that decide which columns are numbers; a column that breaks its promise later is an error that names it.
HEAD_ROWS = 1_000
# Of a wide table so many fields: 1,000 lines of 100,000 would take 6 GB as Python's text, and minutes.
HEAD_FIELDS = 200_000
# Characters of the longest line, the rows looked at first, and a whole sample sheet: more is an open quotation mark.
LONGEST_LINE = 1 << 25
# Bytes of text parsed at once; a line must fit. Of a wide table so many lines, up to so many bytes.
BLOCK_BYTES = 1 << 23
BLOCK_ROWS, WIDE_BLOCK_BYTES = 256, 1 << 26
# Numbers with a decimal comma, with a decimal point, and those in which a comma may stand between thousands.
COMMA_NUMBER = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*")
POINT_NUMBER = re.compile(r"\s*[+-]?\d*\.\d+(?:[eE][+-]?\d+)?\s*")
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@final
@dataclass(frozen=True)
class DelimitedReader(Reader):
    """Cells of a delimited text file.

    ``suspects`` are columns of text that are neither features nor annotations, but have numbers in them: they are read
    with the labels to see whether they should have been features.
    """

    path: str
    layout: TextLayout
    sample_key: str
    suspects: tuple[str, ...] = ()

    def place(self, row: int) -> str:
        """Return where a cell is in the file, as an editor counts lines: from 1, with the header."""
        with _text(self.path) as stream:
            return f"line {next(islice(self._lines(stream), row + 1, None))[0]}"

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels, the annotation columns and the undecided features of consecutive cells."""
        texts = tuple(dict.fromkeys((self.sample_key, *(self.annotations or ()), *self.suspects)))
        numbers = self.features if self.undecided else ()
        for batch in self._batches(texts, numbers):
            columns = {name: batch.column(i).to_pandas() for i, name in enumerate(texts)}
            rest = {name: columns[name] for name in (*(self.annotations or ()), *self.suspects)}
            yield columns[self.sample_key], rest, _matrix(batch, len(texts)) if numbers else None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells; what lies before it is read too."""
        done = 0
        for batch in self._batches((), self.features):
            first, last = max(start - done, 0), min(stop - done, len(batch))
            if first < last:
                values = _matrix(batch, 0)
                yield from (np.ascontiguousarray(values[a:b]) for a, b in spans(first, last, size))
            done += len(batch)
            if done >= stop:
                return

    def choose(self, features: tuple[str, ...]) -> DelimitedReader:
        """Return a reader of these features only."""
        return replace(self, features=features, undecided=False, unused={}, suspects=())

    def _batches(self, texts: Sequence[str], numbers: Sequence[str]) -> Iterator[Any]:
        """Yield batches of these columns as text and as numbers; lines of another length than the header's are errors.

        Arrow reads a number to the last bit, as it is in every other format; pandas, told to, takes nine times as
        long (10.4 against 1.2 s for 14 million numbers).
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
        # One thread: batches in order, line numbers in messages, and no core taken unasked.
        read = tool.ReadOptions(block_size=self.layout.block_bytes, use_threads=False)
        with binary(self.path) as stream:
            try:
                yield from tool.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
            except arrow.ArrowInvalid as error:
                text = self._not_numbers(numbers) if "conversion error to double" in str(error) else None
                if text is not None:
                    raise text from error
                with _text(self.path) as lines:  # raises the same error with the line of an editor
                    for _ in self._lines(lines):
                        pass
                raise

    def _lines(self, stream: IO[str]) -> Iterator[tuple[int, list[str]]]:
        return _lines(stream, self.path, self.layout.delimiter, self.layout.block_bytes)

    def _not_numbers(self, numbers: Sequence[str]) -> Exception | None:
        """Say which text is in a column of numbers; the parser names only the position of the column.

        Columns that nobody named and that are text for the most part are no error, whatever they begin with.
        """
        mixtures, row = {name: Mixture() for name in numbers}, 0
        for batch in self._batches(numbers, ()):
            for i, mixture in enumerate(mixtures.values()):
                encoded = batch.column(i).dictionary_encode()
                codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
                mixture.add(codes, encoded.dictionary.to_pylist(), self.decimal, row)
            row += len(batch)
        texts = [name for name, mixture in mixtures.items() if mixture.texts and not mixture.mostly_numbers]
        wrong = {name: mixture for name, mixture in mixtures.items() if mixture.row >= 0}
        if self.undecided and texts:
            return NotFeatures(texts)
        return not_a_number(self, *next(iter(wrong.items()))) if wrong else None


def demoted(reader: Reader, columns: Collection[str]) -> Reader:
    """Return a reader of a table for which these features are annotations."""
    features = tuple(name for name in reader.features if name not in columns)
    annotations = (*(reader.annotations or ()), *(name for name in reader.features if name in columns))
    return replace(reader, features=features, annotations=annotations)


def not_a_number(reader: Reader, name: str, mixture: Mixture) -> InvalidInputError:
    """Return the error for text among numbers."""
    return InvalidInputError(
        f"numbers in the column {quoted(name)}",
        f"{quoted(mixture.value)} in {reader.place(mixture.row)}",
        f"write NA where a value is missing, name it in {argument('no_features')}, or name the columns wanted in "
        f"{argument('representation')}",
    )


def _matrix(batch: Any, first: int) -> Float64:
    """Return the columns of numbers, those from ``first`` on, as ``(n_rows, n_columns)``."""
    values = np.empty((batch.num_columns - first, len(batch)))
    for i, column in enumerate(batch.columns[first:]):
        values[i] = column.to_numpy(zero_copy_only=False)
    return values.T


def binary(path: str) -> IO[bytes]:
    """Open a file, gzipped or not; its first bytes tell."""
    with Path(path).open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path, "rb")) if zipped else Path(path).open("rb")


def _text(path: str) -> IO[str]:
    return io.TextIOWrapper(binary(path), encoding="utf-8-sig", newline="")


def open_delimited(
    path: str,
    *,
    sample_key: str,
    representation: Sequence[str] | None,
    annotations: Sequence[str] | None,
    no_features: Collection[str] = (),
    memory: int | None = None,
) -> DelimitedReader:
    """Return a reader after checking every name against the header, and the table against the memory it may take."""
    layout, head = read_head(path)
    mixtures = {name: _mixture(texts, layout.decimal) for name, texts in head.items()}
    # What is named as a feature has its text found and placed later; without a known value anything is possible.
    named = representation is not None
    numeric = [name for name, mixture in mixtures.items() if not mixture.texts or (mixture.numbers and named)]
    division = divide(
        list(head),
        numeric,
        sample_key=sample_key,
        representation=representation,
        annotations=annotations,
        no_features=no_features,
        memory=memory,
    )
    suspects = tuple(name for name, why in division.unused.items() if why == TEXT and mixtures[name].numbers)
    notes = () if layout.decimal == "." else (f"Numbers have decimal commas: {quoted(layout.example)}, for instance.",)
    return DelimitedReader(
        path, layout, sample_key, suspects, kind="table of text", decimal=layout.decimal, notes=notes, **vars(division)
    )


def _mixture(texts: Sequence[str], decimal: str) -> Mixture:
    codes: dict[str, int] = {}
    places = [-1 if text.strip() in MISSING else codes.setdefault(text, len(codes)) for text in texts]
    mixture = Mixture()
    mixture.add(np.array(places, dtype=np.intp), list(codes), decimal, 0)
    return mixture


@final
@dataclass(frozen=True)
class TextLayout:
    """How a table of text is written.

    Attributes
    ----------
    delimiter, decimal
        Between fields; in numbers.
    example
        A number with that mark, as it is in the file; empty without one.
    block_bytes
        To parse at once: some hundred lines, for each column of each block costs some microseconds.
    """

    delimiter: str
    decimal: str = "."
    example: str = ""
    block_bytes: int = BLOCK_BYTES


def read_head(path: str, rows: int | None = HEAD_ROWS) -> tuple[TextLayout, dict[str, list[str]]]:
    """Return the layout of a table, and the first rows of each column as text; all rows if ``rows`` is None."""
    with _text(path) as stream:
        first = next((line for line in iter(lambda: stream.readline(LONGEST_LINE), "") if line.strip()), "")
        delimiter = max(DELIMITERS, key=first.count)
        stream.seek(0)
        lines = _lines(stream, path, delimiter, LONGEST_LINE)
        _, header = next(lines, (0, []))
        if not any(name.strip() for name in header):
            raise InvalidInputError("a table with a header", f"that {quoted_path(path)} is empty")
        distinct([name for name in header if name], "column names", "rename one of them")
        longest, size, kept = _length(header), 0, []
        for _, line in islice(lines, rows if rows is None else max(1, min(rows, HEAD_FIELDS // len(header)))):
            kept.append(line)
            longest, size = max(longest, _length(line)), size + _length(line)
            if size > LONGEST_LINE and rows is not None:
                break
            if size > LONGEST_LINE:
                raise _too_long("a sample sheet", LONGEST_LINE, size, quoted_path(path))
    if not kept:
        raise InvalidInputError("at least one row below the header", f"none in {quoted_path(path)}")
    head = dict(zip(header, map(list, zip(*kept, strict=True)), strict=True))
    decimal, example = _decimal(head, path)
    block = min(max(BLOCK_BYTES, BLOCK_ROWS * longest), max(WIDE_BLOCK_BYTES, 4 * longest))
    return TextLayout(delimiter, decimal, example, block), head


def _length(line: Sequence[str]) -> int:
    return sum(map(len, line)) + len(line)


def _lines(stream: IO[str], path: str, delimiter: str, most: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each line that is not blank, with its number, the header's first.

    A line that has other than the header's number of fields, or more than ``most`` characters, is an error. A line
    break in quotes ends no line here, but counts as one.
    """
    taken = 0

    def pieces() -> Iterator[str]:
        nonlocal taken
        while piece := stream.readline(most - taken + 1):
            taken += len(piece)
            if taken > most:
                while not piece.endswith(("\n", "\r")) and (piece := stream.readline(1 << 16)):
                    taken += len(piece)
                raise _too_long("a line", most, taken, f"line {number} of {quoted_path(path)}")
            yield piece

    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    reader, number, width = csv.reader(pieces(), delimiter=delimiter), 1, 0
    for fields in reader:
        width = width or len(fields)
        if fields and len(fields) != width:
            there = f"{len(fields)} in line {number} of {quoted_path(path)}"
            raise InvalidInputError(f"{width} fields in every line, as in the header", there)
        if fields:
            yield number, fields
        number, taken = reader.line_num + 1, 0


def _too_long(what: str, most: int, length: int, where: str) -> InvalidInputError:
    return InvalidInputError(
        f"{what} of at most {most:,} characters",
        f"{length:,} in {where}",
        "close its quotation marks if one is open, or shorten its longest field",
    )


def _decimal(columns: Mapping[str, Sequence[str]], path: str) -> tuple[str, str]:
    """Return the mark of decimals, and a number that has it, or raise if commas may mean thousands as well."""
    fields = [text for texts in columns.values() for text in texts if "," in text or "." in text]
    commas = [text.strip() for text in fields if COMMA_NUMBER.fullmatch(text)]
    # The few among the many are text in a column of numbers, which is found and placed.
    if len(commas) <= sum(1 for text in fields if POINT_NUMBER.fullmatch(text)):
        return ".", ""
    if all(THOUSANDS.fullmatch(text) for text in commas):
        raise InvalidInputError(
            "numbers with a point before decimals and nothing between thousands",
            f"{quoted(commas[0])} in {quoted_path(path)}, which may be either",
            "write the table with decimal points",
        )
    return ",", next(text for text in commas if not THOUSANDS.fullmatch(text))


def read_sheet(path: str) -> dict[str, list[str | None]]:
    """Return the columns of a sample sheet as text, None where a value is missing."""
    layout, columns = read_head(path, None)
    comma = COMMA_NUMBER if layout.decimal == "," else None
    return {
        name: [
            None if text.strip() in MISSING else text.replace(",", ".") if comma and comma.fullmatch(text) else text
            for text in texts
        ]
        for name, texts in columns.items()
        if name
    }
