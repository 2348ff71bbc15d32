"""Read all values of the cells: reject NaN and infinity, compute moments, standardize, fit and apply the PCA."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._base.progress import Progress
from heatmover._base.readonly import ReadOnlyArrays, frozen_view
from heatmover._base.storage import Record
from heatmover._base.threads import while_reading
from heatmover._base.types import Bool, Float64, FloatArray, Int32, Int64, Intp
from heatmover._base.validation import check_threads
from heatmover._base.words import counted, quoted
from heatmover.cohort.reader import Block, Reader
from heatmover.errors import InvalidInputError, argument

__all__ = [
    "Looked",
    "Moments",
    "Projection",
    "all_finite",
    "block_rows",
    "listed_counts",
    "look_through",
    "principal_components",
    "refusal",
]

Blocks = Callable[[], Iterator[Block]]
# Up to so many columns the covariance is made in one pass and solved exactly; with 3,000 that took 38 s for 8,000
# cells, where the iteration takes 2 s for 5,000 columns.
MOST_EXACT_COLUMNS = 500
# Beyond: passes of subspace iteration, and directions carried along. On 8,000 cells of 5,000 columns whose variances
# fall like 1/j, 50 components then explain 3e-4 less than the exact ones, and the worst of them 8e-3 less.
POWER_PASSES, EXTRA_DIRECTIONS = 5, 20


@final
class Moments:
    """Number, mean and sum of squared deviations of each column, merged block by block.

    Sums of values and of squares have twice the precision of a float, and mean and deviations are whole-number
    fractions of them: neither blocks nor the order of cells change these, unless a mean is some million deviations.

    Parameters
    ----------
    n_features
        Number of columns.
    """

    def __init__(self, n_features: int) -> None:
        self.count = 0
        # The second row holds what the first cannot, as `heatmover._base.compiled.rows` explains.
        self._sums, self._products = np.zeros((2, n_features)), np.zeros((2, n_features))
        self._exact: Float64 | None = None

    @classmethod
    def of(cls, block: Block) -> Moments:
        """Return those of some rows."""
        from heatmover._base.compiled.rows import add_entries, add_rows

        moments = cls(block.shape[1])
        moments.count = block.shape[0]
        if sp.issparse(block):
            matrix = sp.csr_array(block)
            add_entries(matrix.data, matrix.indices, moments._sums, moments._products)
        else:
            add_rows(frozen_view(np.ascontiguousarray(block)), moments._sums, moments._products)
        return moments

    def add(self, block: Block) -> None:
        """Take in more rows."""
        self.merge(Moments.of(block))

    def merge(self, other: Moments) -> None:
        """Take in the rows of others."""
        from heatmover._base.compiled.rows import add_pairs

        add_pairs(self._sums, other._sums)
        add_pairs(self._products, other._products)
        self.count += other.count
        self._exact = None

    def _finished(self) -> Float64:
        """Return mean and sum of squared deviations of each column, ``(2, n_columns)``."""
        if self._exact is None:
            columns = zip(*self._sums.tolist(), *self._products.tolist(), strict=True)
            finished = [_finished(max(self.count, 1), *column) for column in columns]
            self._exact = np.array(finished).reshape(-1, 2).T
        return self._exact

    @property
    def mean(self) -> Float64:
        """Mean of each column."""
        return np.asarray(self._finished()[0])

    @property
    def squares(self) -> Float64:
        """Sum of squared deviations of each column."""
        return np.asarray(self._finished()[1])

    @property
    def deviation(self) -> Float64:
        """Standard deviation of each column, over all cells."""
        return np.asarray(np.sqrt(self.squares / max(self.count, 1)))

    @property
    def constant(self) -> Bool:
        """Columns whose spread is no more than the rounding of their mean."""
        return np.asarray(self.deviation <= 1e-12 * np.abs(self.mean))


def _finished(count: int, total: float, total_rest: float, squares: float, squares_rest: float) -> tuple[float, float]:
    """Return the mean and the sum of squared deviations from sums in pairs; what overflows counts as no deviation."""
    if not math.isfinite(total + total_rest + squares + squares_rest):
        return total / count, 0.0
    whole = Fraction(total) + Fraction(total_rest)
    deviations = Fraction(squares) + Fraction(squares_rest) - whole * whole / count
    return float(whole / count), max(float(deviations), 0.0)


@final
@dataclass(frozen=True, eq=False)
class Projection(ReadOnlyArrays):
    """What is done to the values of a file: ``(values - mean) / scale``, then onto the components.

    Attributes
    ----------
    mean, scale
        ``(n_columns,)``; None leaves the values as they are.
    components
        ``(n_columns, n_components)``; None keeps the columns.
    """

    mean: Float64 | None = None
    scale: Float64 | None = None
    components: Float64 | None = None
    # Share of the variance that each component explains.
    explained: Float64 = field(default_factory=lambda: np.empty(0))

    def to_record(self) -> Record:
        """Return the projection as a record that a store can hold."""
        parts = {"mean": self.mean, "scale": self.scale, "components": self.components, "explained": self.explained}
        return Record(arrays={name: array for name, array in parts.items() if array is not None})

    @classmethod
    def from_record(cls, record: Record, n_columns: int) -> Projection:
        """Return the projection of values in ``n_columns`` columns of a record, or raise if it is none."""
        explained = record.floats("explained", (None,))
        if "mean" not in record.arrays:
            return cls(explained=explained)
        mean, scale = record.floats("mean", (n_columns,)), record.floats("scale", (n_columns,))
        if not np.all(scale > 0):
            raise InvalidInputError("stored scales above zero", "others")
        components = record.floats("components", (n_columns, None)) if "components" in record.arrays else None
        return cls(mean, scale, components, explained)

    def apply(self, block: Block) -> FloatArray:
        """Return the points ``(n_rows, n_dimensions)`` of a block, in the floating type of the block."""
        dtype = block.dtype
        if self.components is not None:
            return np.ascontiguousarray(self._row_by_row(block, self.components), dtype=dtype)
        dense = block.toarray() if sp.issparse(block) else block
        if self.mean is None or self.scale is None:
            return np.ascontiguousarray(dense)
        return np.ascontiguousarray((dense - self.mean) / self.scale, dtype=dtype)

    def _row_by_row(self, block: Block, right: Float64) -> Float64:
        """Return the same as `_standard_times`, where equal rows have equal results wherever they are."""
        from heatmover._base.compiled.rows import rows_times

        assert self.mean is not None
        assert self.scale is not None
        if sp.issparse(block):
            return self._standard_times(sp.csr_array(block), right)  # SciPy goes row by row
        result = np.empty((block.shape[0], right.shape[1]))
        rows_times(np.ascontiguousarray(block - self.mean), np.ascontiguousarray(right / self.scale[:, None]), result)
        return result

    def _standard_times(self, block: Block, right: Float64) -> Float64:
        """Multiply the standardised block by ``right``; a sparse block stays sparse."""
        assert self.mean is not None
        assert self.scale is not None
        scaled = right / self.scale[:, None]
        if sp.issparse(block):
            return np.asarray(block @ scaled - self.mean @ scaled)
        return np.asarray((block - self.mean) @ scaled)

    def _standard_gram(self, block: Block, right: Float64) -> Float64:
        """Return ``Z.T @ (Z @ right)`` for the standardised block Z."""
        assert self.mean is not None
        assert self.scale is not None
        image = self._standard_times(block, right)
        if sp.issparse(block):
            product = block.T @ image - np.outer(self.mean, image.sum(axis=0))
        else:
            product = (block - self.mean).T @ image
        return np.asarray(product / self.scale[:, None])


def principal_components(
    blocks: Blocks, mean: Float64, scale: Float64, n_components: int, random_state: np.random.Generator
) -> Projection:
    """Return the projection onto the first principal components of the standardised columns.

    Parameters
    ----------
    blocks
        Called once per pass; yields the rows.
    mean, scale
        ``(n_columns,)``: the centre, and what each column is divided by (ones for a PCA of the covariance).
    n_components
        At most the number of rows and of columns.
    random_state
        Start of the iteration; used above 500 columns only.
    """
    standard, n_columns = Projection(mean, scale), mean.size
    width = n_columns if n_columns <= MOST_EXACT_COLUMNS else min(n_columns, n_components + EXTRA_DIRECTIONS)
    if width == n_columns:
        basis = np.eye(n_columns)
    else:
        basis = np.linalg.qr(random_state.normal(size=(n_columns, width)))[0]
        for _ in range(POWER_PASSES):
            basis = np.linalg.qr(_covariance_times(standard, blocks, basis))[0]
    small = basis.T @ _covariance_times(standard, blocks, basis)
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    order = np.argsort(values)[::-1][:n_components]
    components = basis @ vectors[:, order]
    # Of a component and its opposite take the one whose largest entry is positive, as scikit-learn does.
    largest = np.abs(components).argmax(axis=0)
    components *= np.where(components[largest, np.arange(order.size)] < 0, -1.0, 1.0)
    return Projection(mean, scale, components, np.maximum(values[order], 0.0))


def _covariance_times(standard: Projection, blocks: Blocks, right: Float64) -> Float64:
    total, count = np.zeros_like(right), 0
    for block in blocks():
        total += standard._standard_gram(block, right)
        count += block.shape[0]
    return total / count


# Bytes of one block read within the package: large enough that opening costs nothing, small beside a laptop's memory.
BLOCK_BYTES = 16_000_000


@final
@dataclass(frozen=True, eq=False)
class Looked:
    """What a look at some consecutive cells found.

    Attributes
    ----------
    n_rows
        How many cells.
    n_bad, rows
        Values that are NaN or infinite, and the rows that hold them, counted from the first of these cells.
    moments
        Of all other rows.
    """

    n_rows: int
    n_bad: int
    rows: Int64
    moments: Moments


def look_through(reader: Reader, n_cells: int, progress: Progress) -> Looked:
    """Look at all cells, in threads of this process while it reads; raise if there are not so many."""
    progress.stage("look at every value", n_cells)
    blocks = reader.blocks(0, n_cells, block_rows(len(reader.features)))
    moments, done = Moments(len(reader.features)), 0
    bad, n_bad = [np.empty(0, dtype=np.int64)], 0
    for part in while_reading(_look_at, blocks, check_threads(None)):
        n_bad += part.n_bad
        bad.append(done + part.rows)
        moments.merge(part.moments)
        done += part.n_rows
        progress.advance(part.n_rows)
    if done != n_cells:
        raise InvalidInputError(f"values of {counted(n_cells, 'cell')}", f"those of {done}", "the file may be damaged")
    return Looked(done, n_bad, np.concatenate(bad), moments)


def refusal(looked: Looked, reader: Reader, names: Sequence[str], codes: Int32) -> InvalidInputError:
    """Return the error for values that are NaN or infinite, with the first cell and how many each sample has."""
    lost = np.bincount(codes[looked.rows], minlength=len(names))
    first = int(looked.rows[0])
    where = f"; {listed_counts(names, lost)}" if np.count_nonzero(lost) > 1 else ""
    return InvalidInputError(
        "features without NaN or infinity",
        f"{counted(looked.n_bad, 'such value')} in {counted(looked.rows.size, 'cell')} (first: "
        f"{reader.place(first)}, sample {quoted(names[int(codes[first])])}{where})",
        f"remove those cells, impute the values, or {argument('on_missing', 'drop')}",
    )


def listed_counts(names: Sequence[str], counts: Int64, *, most: int = 5) -> str:
    """Return how many there are of the names that have most, and how many others have some."""
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    shown = ", ".join(f"{counts[i]} of {quoted(names[i])}" for i in order[:most])
    return shown if len(order) <= most else f"{shown} and some of {counted(len(order) - most, 'more sample')}"


def all_finite(block: Block) -> bool:
    """Tell whether no value of a block is NaN or infinite."""
    return _not_finite(block)[0] == 0


def block_rows(n_columns: int) -> int:
    """Return how many rows of so many columns make a block."""
    return max(1, BLOCK_BYTES // (8 * max(n_columns, 1)))


def _look_at(block: Block) -> Looked:
    count, rows = _not_finite(block)
    finite = block if not rows.size else block[np.setdiff1d(np.arange(block.shape[0]), rows)]
    return Looked(block.shape[0], count, rows.astype(np.int64), Moments.of(finite))


def _not_finite(block: Block) -> tuple[int, Intp]:
    """Return the number of NaN and infinities and the rows that hold them."""
    values = block.data if sp.issparse(block) else block
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # a fifth of the time that a look at each takes
            return 0, np.empty(0, dtype=np.intp)
    places = np.nonzero(~np.isfinite(values))[0]
    rows = np.searchsorted(block.indptr, places, side="right") - 1 if sp.issparse(block) else places
    return places.size, np.unique(rows)
