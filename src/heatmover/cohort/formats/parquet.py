"""Tables in Parquet, one row per cell."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64
from heatmover._validation import import_extra
from heatmover._words import distinct, quoted
from heatmover.cohort.formats.table import check_memory_for, divide
from heatmover.cohort.reader import LABEL_ROWS, Block, Columns, NotFeatures, Numbers, as_float
from heatmover.errors import InvalidInputError

__all__ = ["ParquetReader", "open_parquet", "unmeasured_columns"]


# Bytes of undecided features in memory at once.
LABEL_BYTES = 1 << 26
# Whole numbers beyond are not all floats: names, of which two could become one.
LARGEST_EXACT = 2**53
NESTED = "lists or records"
# Values looked at to tell measurements from names.
HEAD_VALUES = 200_000
# What Arrow takes for each byte at the end of a file that describes columns and row groups: 753 MB for 38 MB.
FOOTER_TIMES = 20


@final
@dataclass(frozen=True)
class ParquetReader:
    """Cells of a Parquet file; ``whole`` are the features whose type is that of whole numbers."""

    path: str
    sample_key: str
    features: tuple[str, ...]
    annotations: tuple[str, ...]
    undecided: bool
    whole: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    decimal: str = ""
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return "Parquet file"

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels, the annotation columns and the undecided features of consecutive cells."""
        numbers = self.features if self.undecided else ()
        names = list(dict.fromkeys([self.sample_key, *self.annotations]))
        rows = max(1, min(LABEL_ROWS, LABEL_BYTES // (8 * (len(numbers) + 1))))
        with _opened(self.path) as file:
            for batch in file.iter_batches(rows, columns=[*names, *numbers]):
                place = {name: i for i, name in enumerate(batch.schema.names)}
                columns = {name: _values(batch.column(place[name])) for name in names}
                rest = {name: columns[name] for name in self.annotations}
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

    def choose(self, features: tuple[str, ...]) -> ParquetReader:
        """Return a reader of these features only."""
        # Without what is not needed to read: the reader is sent to workers.
        return replace(self, features=features, undecided=False, unused={})

    def demote(self, columns: Collection[str]) -> ParquetReader:
        """Return a reader for which these features are annotations."""
        return replace(
            self,
            features=tuple(name for name in self.features if name not in columns),
            annotations=(*self.annotations, *(name for name in self.features if name in columns)),
        )

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
    with Path(path).open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - 8, 0))
        footer = min(int.from_bytes(stream.read(4), "little"), size)
    description = f"the {footer / 1e6:,.0f} MB in which the file describes its columns"
    check_memory_for(description, FOOTER_TIMES * footer, memory)
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
    return ParquetReader(
        path, sample_key, division.features, division.annotations, division.undecided, whole, unused=unused
    )


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
