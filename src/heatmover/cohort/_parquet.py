"""Tables in Parquet, one row per cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from heatmover._validation import import_extra
from heatmover.cohort._reader import LABEL_ROWS, Block, Columns, as_float
from heatmover.cohort._table import divide
from heatmover.cohort._words import distinct

__all__ = ["ParquetReader", "open_parquet"]


@final
@dataclass(frozen=True)
class ParquetReader:
    """Cells of a Parquet file."""

    path: str
    sample_key: str
    features: tuple[str, ...]
    annotations: tuple[str, ...]
    undecided: bool
    notes: tuple[str, ...] = ()
    textual: bool = False

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return "Parquet file"

    def label_blocks(self) -> Iterator[tuple[Any, Columns]]:
        """Yield the sample labels and the annotation columns of consecutive cells."""
        names = [*self.annotations, *(self.features if self.undecided else ())]
        with _opened(self.path) as file:
            for batch in file.iter_batches(LABEL_ROWS, columns=list(dict.fromkeys([self.sample_key, *names]))):
                columns = {name: _values(batch.column(name)) for name in (self.sample_key, *names)}
                yield columns[self.sample_key], {name: columns[name] for name in names}

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
        return replace(self, features=features, undecided=False)

    def _block(self, batch: Any) -> Block:
        # A missing value becomes NaN, which the check for NaN then counts.
        columns = [as_float(batch.column(name).to_numpy(zero_copy_only=False)) for name in self.features]
        return np.column_stack(columns)


def open_parquet(
    path: str, *, sample_key: str, representation: Sequence[str] | None, annotations: Sequence[str] | None
) -> ParquetReader:
    """Return a reader after checking every name against the schema."""
    arrow = import_extra("pyarrow", package="pyarrow", extra="cohort")
    with _opened(path) as file:
        schema = file.schema_arrow
    distinct(list(schema.names), "column names", "rename one of them")
    numeric = [field.name for field in schema if arrow.types.is_floating(field.type) or _whole(arrow, field.type)]
    features, wanted, undecided = divide(
        list(schema.names),
        numeric,
        sample_key=sample_key,
        representation=representation,
        annotations=annotations,
    )
    return ParquetReader(path, sample_key, features, wanted, undecided)


def _whole(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_integer(kind))


def _opened(path: str) -> Any:
    parquet = import_extra("pyarrow.parquet", package="pyarrow", extra="cohort")
    # By default Arrow reads all row groups ahead: 300 MB for a file of 224 MB, against 60 MB so.
    return parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


def _values(column: Any) -> Any:
    """Return a column in a form that pandas can factorize; whole numbers with gaps stay whole numbers."""
    if column.null_count and _is_whole(column):
        return np.asarray(column.to_pylist(), dtype=object)
    return column.to_pandas()


def _is_whole(column: Any) -> bool:
    arrow = import_extra("pyarrow", package="pyarrow", extra="cohort")
    return _whole(arrow, column.type)
