"""Define `Reader`, the interface to labels and values in a file of cells; for `cohort`, `study.scale`; opens no file.

The file formats implement `Reader`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, FloatArray, IntArray
from heatmover._base.validation import as_array
from heatmover.errors import InvalidInputError, argument

# A dense float array or a SciPy CSR array, one row per cell.
Block = Any
# Labels of consecutive cells: sample labels; annotation columns, as NumPy arrays, pandas Categoricals or Series; and
# features that may be sample metadata, ``(n_rows, n_features)`` with NaN for missing values, or None if there are no
# such features.
LabelBlock = tuple[Any, Mapping[str, Any], Float64 | None]

# Number of rows of labels and annotations to read at a time; these rows take about 100 MB with 20 columns of strings.
LABEL_ROWS = 65_536


class NotFeatures(Exception):
    """Raised if the columns in ``args`` are annotations, not features; the caller then reads the labels again."""


class Selection(NamedTuple):
    """Columns of a file to read, and memory limit for reading.

    Attributes
    ----------
    sample_key
        Column with the sample of each cell.
    representation
        Features to read; None for the default of the format.
    annotations
        Columns that may contain sample metadata; None for every column that is not a feature.
    no_features
        Columns of a table that must not become features.
    memory
        Memory limit in bytes; None for no limit.
    """

    sample_key: str
    representation: str | Sequence[str] | None = None
    annotations: Sequence[str] | None = None
    no_features: Collection[str] = ()
    memory: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Reader(ABC):
    """Reader of one file or folder of cells. It stores paths and names but no open file, so it can be pickled.

    Attributes
    ----------
    kind
        Description of the file in words, such as "Parquet file".
    features
        Names of the features, one for each column of the values.
    annotations
        Columns of the file that may describe samples or cells; None for formats without annotations.
    undecided
        Whether some features may be sample metadata; if so, `label_blocks` also yields the features.
    decimal
        Decimal mark if the file stores numbers as text; empty if columns have types.
    suspects
        Text columns that contain numbers and are neither features nor annotations. `label_blocks` yields them, to check
        whether they should be features.
    unused
        Columns that are neither features nor annotations, each with the reason.
    notes
        Notes for the user about this file, in sentences.
    inner
        Reader whose cells this reader selects or shifts; None if this reader reads a file itself.
    """

    kind: str
    features: tuple[str, ...]
    annotations: tuple[str, ...] | None = None
    undecided: bool = False
    decimal: str = ""
    suspects: tuple[str, ...] = ()
    unused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    inner: Any = None

    @property
    def base(self) -> Any:
        """The reader of the file itself."""
        return self if self.inner is None else self.inner.base

    def label_blocks(self) -> Iterator[LabelBlock]:
        """Yield sample labels, annotation columns and, if ``undecided``, the features of consecutive cells."""
        raise NotImplementedError(f"a {self.kind} holds values only")

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of the cells from ``start`` up to ``stop``, in order, in blocks of at most ``size`` rows."""

    @property
    def embeddings(self) -> tuple[str, ...]:
        """Names of the two-dimensional embeddings of the cells in the file."""
        return () if self.inner is None else tuple(self.inner.embeddings)

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the matrices in the file whose columns have names, such as genes."""
        return () if self.inner is None else tuple(self.inner.matrices)

    def of_matrix(self, name: str) -> Reader:
        """Return a reader that yields the values of the same cells in an embedding or a matrix of the file.

        An empty name means the measurements in the file, without any shift or projection.
        """
        if self.inner is None and not name:
            return self
        inner: Reader = self.inner.of_matrix(name)
        return inner

    def place(self, row: int) -> str:
        """Return the location of a cell in words: the row, counted from 0, or in some formats the line or event."""
        return f"row {row}" if self.inner is None else str(self.inner.place(row))

    def within(self, start: int, stop: int) -> Self:  # noqa: ARG002
        """Return a reader that may be limited to this range of cells, so that less data is sent to workers."""
        return self


def check_memory_for(what: str, needed: int, memory: int | None) -> None:
    """Raise if ``what`` needs more bytes than the memory limit."""
    if memory is not None and needed > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {-(-needed // 1_000_000):,} MB for {what}",
            f"{memory / 1e6:,.0f} MB",
            "raise the limit, or store the cells as .h5ad",
        )


def described(inner: Reader, **changes: Any) -> dict[str, Any]:
    """Return the attributes of ``inner``, with changes, for a reader that selects or shifts the cells of ``inner``."""
    return {each.name: getattr(inner, each.name) for each in fields(Reader)} | {"inner": inner} | changes


@final
@dataclass(frozen=True, eq=False)
class SubsetReader(Reader):
    """Reader of some cells of another reader, renumbered from 0; `of` creates one.

    Attributes
    ----------
    rows
        Rows of the kept cells in ``inner``, ascending.
    first
        Number of kept cells that precede ``rows`` and are not part of this reader.
    """

    rows: IntArray
    first: int = 0

    @classmethod
    def of(cls, inner: Reader, kept: Bool, more: tuple[str, ...] = ()) -> SubsetReader:
        """Return a reader of the rows where ``kept``, ``(n_rows,)``, is true; ``more`` contains additional notes."""
        rows: IntArray = np.flatnonzero(kept).astype(np.int32 if kept.size < 2**31 else np.int64)
        return cls(rows, **described(inner, notes=(*inner.notes, *more)))

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of the kept cells."""
        rows = self.rows[start - self.first : stop - self.first]
        if len(rows) < stop - start:
            raise IndexError(f"cell {stop - 1} is not kept")
        if not rows.size:
            return
        done, used = int(rows[0]), 0
        for block in self.inner.blocks(done, int(rows[-1]) + 1, size):
            end = int(np.searchsorted(rows, done + block.shape[0]))
            kept = rows[used:end] - done
            done, used = done + block.shape[0], end
            if kept.size:
                yield block if kept.size == block.shape[0] else block[kept]

    def of_matrix(self, name: str) -> Reader:
        """Return a reader that yields the values of the kept cells in an embedding or a matrix of the file."""
        inner = self.inner.of_matrix(name)
        return replace(self, inner=inner, features=inner.features)

    def place(self, row: int) -> str:
        """Return the location of a kept cell in the file."""
        return str(self.inner.place(int(self.rows[row - self.first])))

    def within(self, start: int, stop: int) -> Self:
        """Return a reader limited to one range of the kept cells."""
        return replace(self, rows=self.rows[start - self.first : stop - self.first].copy(), first=start)


def spans(start: int, stop: int, size: int, step: int = 1) -> Iterator[tuple[int, int]]:
    """Yield start and stop of consecutive blocks of at most ``size`` rows, ending at multiples of ``step`` if possible.

    If a block ends within a chunk of a file, the chunk is read twice.

    Examples
    --------
    >>> list(spans(0, 10, 4)), list(spans(1, 10, 5, step=3)), list(spans(0, 5, 2, step=3))
    ([(0, 4), (4, 8), (8, 10)], [(1, 6), (6, 10)], [(0, 2), (2, 3), (3, 5)])
    """
    while start < stop:
        end = min(start + size, stop)
        whole = end // step * step
        end = whole if start < whole and end < stop else end
        yield start, end
        start = end


def as_float(values: npt.ArrayLike) -> FloatArray:
    """Return values as float32 if they are stored as float16 or float32, otherwise as float64."""
    array = as_array("values of the cells", values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"values of type {array.dtype.name} are not numbers")
    single = array.dtype in (np.dtype(np.float32), np.dtype(np.float16))
    return np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)


def without_copies(block: sp.csr_array) -> sp.csr_array:
    """Return a matrix in which every entry is stored once; repeated entries are summed, as in SciPy."""
    if block.has_canonical_format:
        return block
    result = block.copy()
    result.sum_duplicates()
    return result
