"""What every format gives: labels and annotations in blocks, and the values of any range of cells.

And a reader of some cells of another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, FloatArray, IntArray
from heatmover._base.validation import as_array

__all__ = [
    "LABEL_ROWS",
    "Block",
    "Columns",
    "NotFeatures",
    "Numbers",
    "Reader",
    "SubsetReader",
    "as_float",
    "described",
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


class NotFeatures(Exception):
    """Columns that were taken for features turn out to be annotations; no error, the labels are read again."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        super().__init__(*self.columns)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reader(ABC):
    """One file, or folder, of cells. It holds paths and names, never an open file, so that it can be pickled.

    Attributes
    ----------
    kind
        What the file is, in words.
    features
        Name of each column of the values.
    annotations
        Columns of the file that may describe samples or cells; None in a format that has none.
    undecided
        Whether a feature may turn out to be a variable of the samples; then `label_blocks` yields the features.
    decimal
        Decimal mark if the file has no types, so that numbers among the annotations are still text; or empty.
    unused
        Columns that are neither features nor annotations, and why.
    notes
        What the user should know about this file.
    inner
        The reader whose cells this one selects or moves; None for the reader of a file.
    """

    kind: str
    features: tuple[str, ...]
    annotations: tuple[str, ...] | None = None
    undecided: bool = False
    decimal: str = ""
    unused: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    inner: Any = None

    @property
    def base(self) -> Any:
        """The reader of the file itself."""
        return self if self.inner is None else self.inner.base

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels, the annotation columns and the undecided features of consecutive cells."""
        raise NotImplementedError(f"a {self.kind} holds values only")

    @abstractmethod
    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of the cells ``start`` to ``stop`` in order, at most ``size`` rows at a time."""

    def place(self, row: int) -> str:
        """Return where a cell is: by its row, counted from 0, or as its file counts."""
        return f"row {row}"

    def choose(self, features: tuple[str, ...]) -> Self:
        """Return a reader of these features only, without what is not needed to read: it is sent to workers."""
        return replace(self, features=features, undecided=False, unused={})

    def within(self, start: int, stop: int) -> Self:  # noqa: ARG002
        """Return a reader that knows of this range of cells only, which is all that a task has to be sent."""
        return self


def described(inner: Reader, **changes: Any) -> dict[str, Any]:
    """Return what a reader that selects or moves the cells of another says of the file: the same but for changes."""
    return {each.name: getattr(inner, each.name) for each in fields(Reader)} | {"inner": inner} | changes


@final
@dataclass(frozen=True, eq=False)
class SubsetReader(Reader):
    """Some cells of another reader, counted as if the others were not there; `of` makes one.

    Attributes
    ----------
    rows
        Ascending rows of ``inner`` that are kept, from the one at place ``first`` among them on.
    first
        How many kept rows come before ``rows``.
    """

    rows: IntArray
    first: int = 0

    @classmethod
    def of(cls, inner: Reader, kept: Bool, more: tuple[str, ...] = ()) -> SubsetReader:
        """Return a reader of the rows that are kept, ``(n_rows,)``; ``more`` is what the user should know of it."""
        rows: IntArray = np.flatnonzero(kept).astype(np.int32 if kept.size < 2**31 else np.int64)
        return cls(rows, **described(inner, notes=(*inner.notes, *more)))

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of the cells kept."""
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

    def place(self, row: int) -> str:
        """Return where a cell that is kept is in the file."""
        return str(self.inner.place(int(self.rows[row - self.first])))

    def choose(self, features: tuple[str, ...]) -> Self:
        """Return a reader of these features only."""
        return replace(self, features=features, inner=self.inner.choose(features))

    def within(self, start: int, stop: int) -> Self:
        """Return a reader that knows of one range of the cells kept only."""
        return replace(self, rows=self.rows[start - self.first : stop - self.first].copy(), first=start)


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
