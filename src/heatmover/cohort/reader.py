"""What every format gives: labels and annotations in blocks, and the values of any range of cells.

And a reader of some cells of another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._typing import Bool, Float64, FloatArray
from heatmover._validation import as_array

__all__ = [
    "LABEL_ROWS",
    "Block",
    "Columns",
    "NotFeatures",
    "Numbers",
    "Reader",
    "SubsetReader",
    "WrappedReader",
    "as_float",
    "place_of",
    "spans",
    "without_copies",
]

# A dense float array or a SciPy CSR array, one row per cell.
Block = Any
# Annotation columns of some cells: NumPy arrays, pandas Categoricals or Series, all of one length.
Columns = Mapping[str, Any]
# The undecided features of the same cells, ``(n_rows, n_features)`` with NaN where one is missing; None without them.
Numbers = Float64 | None

# Rows of labels and annotations read at once: 20 columns of strings in so many rows take about 100 MB.
LABEL_ROWS = 65_536
# Rows of which one counts at a time how many are kept; as bytes they take 1 MB.
COUNTED_ROWS = 1 << 20


class NotFeatures(Exception):
    """Columns that were taken for features turn out to be annotations; no error, the labels are read again."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        super().__init__(*self.columns)


class Reader(Protocol):
    """One file, or folder, of cells. It holds paths and names, never an open file, so that it can be pickled."""

    @property
    def kind(self) -> str:
        """What the file is, in words."""

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each column of the values."""

    @property
    def undecided(self) -> bool:
        """Whether a feature may turn out to be a variable of the samples; then `label_blocks` yields them."""

    @property
    def decimal(self) -> str:
        """Mark of decimals if the file has no types, so that numbers among the annotations are still text; or empty."""

    @property
    def unused(self) -> Mapping[str, str]:
        """Columns that are neither features nor annotations, and why."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about this file."""

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels, the annotation columns and the undecided features of consecutive cells."""

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of the cells ``start`` to ``stop`` in order, at most ``size`` rows at a time."""

    def choose(self, features: tuple[str, ...]) -> Reader:
        """Return a reader of these features only."""


@dataclass(frozen=True, eq=False)
class WrappedReader(ABC):
    """A reader that changes the cells of another and otherwise says the same of the file.

    Attributes
    ----------
    inner
        Reads all cells.
    """

    inner: Reader

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return self.inner.kind

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each column of the values."""
        return self.inner.features

    @property
    def undecided(self) -> bool:
        """Whether a feature may turn out to be a variable of the samples."""
        return self.inner.undecided

    @property
    def decimal(self) -> str:
        """Mark of decimals if the file has no types; or empty."""
        return self.inner.decimal

    @property
    def unused(self) -> Mapping[str, str]:
        """Columns that are neither features nor annotations, and why."""
        return self.inner.unused

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about this file."""
        return self.inner.notes

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the labels of all cells, also of those that are left out."""
        return self.inner.label_blocks()

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells."""

    def choose(self, features: tuple[str, ...]) -> Self:
        """Return a reader of these features only."""
        return replace(self, inner=self.inner.choose(features))


@final
@dataclass(frozen=True, eq=False)
class SubsetReader(WrappedReader):
    """Some cells of another reader, counted as if the others were not there; `of` makes one.

    Attributes
    ----------
    bits
        One for each row of ``inner`` from ``first`` on, as `numpy.packbits` makes them: whether it is kept. A list of
        rows would take 64 times as much, for every task on a cluster.
    n_rows
        How many rows the bits are about.
    first, before
        The first of these rows, and how many rows before it are kept.
    more
        What the user should know beside the notes of ``inner``.
    """

    bits: npt.NDArray[np.uint8]
    n_rows: int
    first: int = 0
    before: int = 0
    more: tuple[str, ...] = ()

    @classmethod
    def of(cls, inner: Reader, kept: Bool, more: tuple[str, ...] = ()) -> SubsetReader:
        """Return a reader of the rows that are kept, ``(n_rows,)``."""
        return cls(inner, np.packbits(kept), kept.size, more=more)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about this file."""
        return (*self.inner.notes, *self.more)

    @property
    def kept(self) -> Bool:
        """``(n_rows,)``: whether each is kept."""
        return self._unpacked(0, self.n_rows)

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of the cells kept."""
        if start >= stop:
            return
        done = self.row_below(start)
        for block in self.inner.blocks(done, self.row_below(stop - 1) + 1, size):
            kept = self._unpacked(done - self.first, done - self.first + block.shape[0])
            done += block.shape[0]
            if kept.any():
                yield block if kept.all() else block[kept]

    def within(self, start: int, stop: int) -> SubsetReader:
        """Return a reader that knows of one range of the cells kept only, which is all that a task has to be sent."""
        first = (self.row_below(start) - self.first) // 8 * 8
        n_rows = self.row_below(stop - 1) + 1 - self.first - first
        bits = self.bits[first // 8 : (first + n_rows + 7) // 8].copy()
        before = self.before + sum(self._counts(first))
        return replace(self, bits=bits, n_rows=n_rows, first=self.first + first, before=before)

    def row_below(self, kept: int) -> int:
        """Return the row of the cell that is at place ``kept`` among those kept."""
        left = kept - self.before
        for number, count in enumerate(self._counts(self.n_rows)):
            if left < count:
                start = number * COUNTED_ROWS
                return self.first + start + int(np.flatnonzero(self._unpacked(start, start + COUNTED_ROWS))[left])
            left -= count
        raise IndexError(f"cell {kept} is not kept")

    def _counts(self, stop: int) -> Iterator[int]:
        """Yield how many of the rows before ``stop`` are kept, a number of rows at a time."""
        for start in range(0, stop, COUNTED_ROWS):
            yield int(np.count_nonzero(self._unpacked(start, min(start + COUNTED_ROWS, stop))))

    def _unpacked(self, start: int, stop: int) -> Bool:
        """Return whether some of the rows are kept, counted from ``first``."""
        stop, whole = min(stop, self.n_rows), start // 8
        bits = np.unpackbits(self.bits[whole : (stop + 7) // 8], count=stop - 8 * whole)
        return bits[start - 8 * whole :].astype(bool)


def place_of(reader: Any, row: int) -> str:
    """Return where a cell of a reader is: by its row, counted from 0, or as its file counts."""
    while hasattr(reader, "inner"):  # below those that leave cells out
        row, reader = reader.row_below(row) if hasattr(reader, "row_below") else row, reader.inner
    return str(reader.place(row)) if hasattr(reader, "place") else f"row {row}"


def spans(start: int, stop: int, size: int, step: int = 1) -> Iterator[tuple[int, int]]:
    """Yield the borders of consecutive pieces of at most ``size`` rows, at multiples of ``step`` rows if that allows.

    A piece that ends within a chunk of a file makes it be read twice.

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
    """Return values as float32 if that holds them as stored, else as float64."""
    array = as_array("values of the cells", values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"values of type {array.dtype.name} are not numbers")
    single = array.dtype in (np.dtype(np.float32), np.dtype(np.float16))
    return np.ascontiguousarray(array, dtype=np.float32 if single else np.float64)


def without_copies(block: sp.csr_array) -> sp.csr_array:
    """Return a matrix in which no place is stored twice: values of one place are added, as SciPy means it."""
    if block.has_canonical_format:
        return block
    result = block.copy()
    result.sum_duplicates()
    return result
