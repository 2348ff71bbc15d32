"""Tables as text: .csv, .tsv and their gzipped forms, one row per cell."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast, final

import numpy as np

from heatmover._validation import import_extra
from heatmover.cohort._reader import Block, Columns, spans
from heatmover.cohort._samples import NUMBER
from heatmover.cohort._table import divide
from heatmover.cohort._words import distinct, quoted, quoted_path
from heatmover.errors import InvalidInputError

__all__ = ["DelimitedReader", "open_delimited", "read_sheet"]

# "None" is not among them: it is also the name of a treatment.
MISSING = ["", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL"]
DELIMITERS = ",\t;"
# Rows that decide which columns are numbers; a column that breaks its promise later is an error that names it.
HEAD_ROWS = 1_000
# Bytes of text parsed at once; a line must fit.
BLOCK_BYTES = 1 << 23


@final
@dataclass(frozen=True)
class DelimitedReader:
    """Cells of a delimited text file."""

    path: str
    delimiter: str
    sample_key: str
    features: tuple[str, ...]
    annotations: tuple[str, ...]
    undecided: bool
    notes: tuple[str, ...] = ()
    textual: bool = True

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return "table of text"

    def label_blocks(self) -> Iterator[tuple[Any, Columns]]:
        """Yield the sample labels and the annotation columns of consecutive cells."""
        numbers = self.features if self.undecided else ()
        for batch in self._batches((self.sample_key, *self.annotations), numbers):
            columns = {name: batch.column(name).to_pandas() for name in batch.schema.names}
            yield columns[self.sample_key], {name: columns[name] for name in (*self.annotations, *numbers)}

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells; what lies before it is read too."""
        done = 0
        for batch in self._batches((), self.features):
            first, last = max(start - done, 0), min(stop - done, len(batch))
            done += len(batch)
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in self.features]
            for a, b in spans(first, last, size):
                yield np.column_stack([column[a:b] for column in columns])
            if done >= stop:
                return

    def choose(self, features: tuple[str, ...]) -> DelimitedReader:
        """Return a reader of these features only."""
        return replace(self, features=features, undecided=False)

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
        )
        parse = tool.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        # One thread: batches in order, line numbers in messages, and no core taken unasked.
        read = tool.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
        with binary(self.path) as stream:
            try:
                yield from tool.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
            except arrow.ArrowInvalid as error:
                found = self._not_a_number(numbers) if "conversion error to double" in str(error) else None
                if found is None:
                    raise
                raise found from error

    def _not_a_number(self, numbers: Sequence[str]) -> InvalidInputError | None:
        """Find the text in a column of numbers, which the parser names by its position only."""
        row = 0
        for batch in self._batches(numbers, ()):
            for name in numbers:
                for place, text in enumerate(batch.column(name).to_pylist()):
                    if text is not None and not NUMBER.fullmatch(text.strip()):
                        return InvalidInputError(
                            f"numbers in the column {quoted(name)}",
                            f"{quoted(text)} in row {row + place}",
                            "name it in annotations, or name the columns wanted in representation",
                        )
            row += len(batch)
        return None


def binary(path: str) -> IO[bytes]:
    """Open a file, gzipped or not; its first bytes tell."""
    with Path(path).open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", gzip.open(path, "rb")) if zipped else Path(path).open("rb")


def open_delimited(
    path: str, *, sample_key: str, representation: Sequence[str] | None, annotations: Sequence[str] | None
) -> DelimitedReader:
    """Return a reader after checking every name against the header."""
    delimiter, header, head = read_head(path)
    numeric = [name for name in header if _numeric(head[name])]
    features, wanted, undecided = divide(
        header, numeric, sample_key=sample_key, representation=representation, annotations=annotations
    )
    return DelimitedReader(path, delimiter, sample_key, features, wanted, undecided)


def read_head(path: str, rows: int | None = HEAD_ROWS) -> tuple[str, list[str], dict[str, list[str]]]:
    """Return the delimiter, the header, and the first rows of each column as text."""
    with io.TextIOWrapper(binary(path), encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        delimiter = max(DELIMITERS, key=first.count)
        stream.seek(0)
        lines = csv.reader(stream, delimiter=delimiter)
        csv.field_size_limit(1 << 27)
        header = next(lines, [])
        if not any(name.strip() for name in header):
            raise InvalidInputError("a table with a header", f"that {quoted_path(path)} is empty")
        distinct([name for name in header if name], "column names", "rename one of them")
        kept = [line for _, line in zip(range(rows if rows is not None else 1 << 62), lines, strict=False) if line]
    for number, line in enumerate(kept, start=2):
        if len(line) != len(header):
            found = f"{len(line)} in line {number} of {quoted_path(path)}"
            raise InvalidInputError(f"{len(header)} fields in every line, as in the header", found)
    if not kept:
        raise InvalidInputError("at least one row below the header", f"none in {quoted_path(path)}")
    columns = {name: [line[i] if i < len(line) else "" for line in kept] for i, name in enumerate(header)}
    return delimiter, header, columns


def _numeric(texts: list[str]) -> bool:
    known = [text.strip() for text in texts if text.strip() not in MISSING]
    return bool(known) and all(NUMBER.fullmatch(text) for text in known)


def read_sheet(path: str) -> dict[str, list[str | None]]:
    """Return the columns of a sample sheet as text, None where a value is missing."""
    _, _, columns = read_head(path, rows=None)
    return {
        name: [None if text.strip() in MISSING else text for text in texts] for name, texts in columns.items() if name
    }
