"""Tables as text: .csv, .tsv and their gzipped forms, one row per cell."""

from __future__ import annotations

import csv
import gzip
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO, final

import numpy as np

from heatmover._validation import import_extra
from heatmover.cohort._reader import LABEL_ROWS, Block, Columns
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
        # Every column is parsed, or pandas would let lines with too many fields pass.
        for frame in self._frames([self.sample_key, *self.annotations], numbers, LABEL_ROWS, every=True):
            names = [*self.annotations, *numbers]
            yield frame[self.sample_key].to_numpy(object), {name: frame[name].to_numpy() for name in names}

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells."""
        done = 0
        for frame in self._frames((), self.features, size):
            block = frame[list(self.features)].to_numpy(np.float64)[max(start - done, 0) : stop - done]
            done += len(frame)
            if len(block):
                yield np.ascontiguousarray(block)
            if done >= stop:
                return

    def choose(self, features: tuple[str, ...]) -> DelimitedReader:
        """Return a reader of these features only."""
        return replace(self, features=features, undecided=False)

    def _frames(self, texts: Sequence[str], numbers: Sequence[str], rows: int, *, every: bool = False) -> Iterator[Any]:
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        types: dict[str, Any] = defaultdict(lambda: object, dict.fromkeys(texts, object))
        types |= dict.fromkeys(numbers, np.float64)
        with opened(self.path) as stream:
            frames = pandas.read_csv(
                stream,
                sep=self.delimiter,
                usecols=None if every else list(types),
                dtype=types,
                chunksize=rows,
                keep_default_na=False,
                na_values=MISSING,
                float_precision="round_trip",  # the same number as in every other format
            )
            try:
                yield from frames
            except ValueError as error:
                if "convert string to float" not in str(error):
                    raise
                raise self._not_a_number(numbers) from error

    def _not_a_number(self, numbers: Sequence[str]) -> InvalidInputError:
        """Find the text in a column of numbers, which the parser's message does not name."""
        row = 0
        for frame in self._frames(numbers, (), LABEL_ROWS):
            for name in numbers:
                for place, text in enumerate(frame[name].tolist()):
                    if isinstance(text, str) and not _is_number(text.strip()):
                        advice = "name it in annotations or name the columns wanted in representation"
                        return InvalidInputError(
                            f"numbers in the column {quoted(name)}", f"{quoted(text)} in row {row + place}", advice
                        )
            row += len(frame)
        return InvalidInputError("numbers in every feature", "text", "name the columns wanted in representation")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def opened(path: str) -> TextIO:
    """Open a text file, gzipped or not; its first bytes tell."""
    with open(path, "rb") as stream:  # noqa: PTH123 - the path is text here
        zipped = stream.read(2) == b"\x1f\x8b"
    raw = gzip.open(path, "rb") if zipped else open(path, "rb")  # noqa: PTH123, SIM115 - closed by the wrapper
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


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
    with opened(path) as stream:
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
