"""Check values that a `Reader` reads from files, compute moments, fit and apply a PCA; for `cohort`, `study`, `atlas`.

This module reads files only through a `Reader`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from heatmover._base.words import counted, listed, quoted, verb
from heatmover.cohort.reader import Block, Reader, SubsetReader
from heatmover.errors import InvalidInputError, argument

Blocks = Callable[[], Iterator[Block]]
# Largest size in bytes of the data that the PCA keeps in memory between its passes.
HELD_BYTES = 1 << 28
# Largest number of columns for which the covariance is computed in one pass and decomposed exactly. For 8,000 cells,
# the exact decomposition took 38 s with 3,000 columns. The subspace iteration takes 2 s with 5,000 columns.
MOST_EXACT_COLUMNS = 500
# Number of passes of the subspace iteration, and number of additional directions. For 8,000 cells and 5,000 columns
# with variances proportional to 1/j, the variance that 50 components explain is below the exact value by 3e-4 in total,
# and by 8e-3 for the worst component.
POWER_PASSES, EXTRA_DIRECTIONS = 5, 20


@final
class Moments:
    """Number of rows, and mean and sum of squared deviations of each column, computed block by block.

    Sums of values and of squares are accumulated in twice the precision of a float. Means and deviations are computed
    from these sums in exact fractions. The results depend neither on the blocks nor on the order of cells, unless the
    mean of a column is about a million times its standard deviation.

    Parameters
    ----------
    n_features
        Number of columns.
    """

    def __init__(self, n_features: int) -> None:
        self.count = 0
        # The second row contains the rounding errors of the first row, as `heatmover._base.compiled.rows` explains.
        self._sums, self._products = np.zeros((2, n_features)), np.zeros((2, n_features))
        self._exact: Float64 | None = None

    @classmethod
    def of(cls, block: Block) -> Moments:
        """Return the moments of a block of rows."""
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
        """Add a block of rows."""
        self.merge(Moments.of(block))

    def merge(self, other: Moments) -> None:
        """Add the rows of other moments."""
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
        """Columns whose standard deviation is within the rounding error of their mean."""
        return np.asarray(self.deviation <= 1e-12 * np.abs(self.mean))


def _finished(count: int, total: float, total_rest: float, squares: float, squares_rest: float) -> tuple[float, float]:
    """Return mean and sum of squared deviations, given sums and their rounding errors; on overflow, the second is 0."""
    if not math.isfinite(total + total_rest + squares + squares_rest):
        return total / count, 0.0
    whole = Fraction(total) + Fraction(total_rest)
    deviations = Fraction(squares) + Fraction(squares_rest) - whole * whole / count
    return float(whole / count), max(float(deviations), 0.0)


@final
@dataclass(frozen=True, eq=False)
class Projection(ReadOnlyArrays):
    """Map from the values of a file to points: ``(values - mean) / scale``, then projection onto the components.

    Attributes
    ----------
    mean, scale
        ``(n_columns,)``: mean and divisor of each column; None: values are not changed.
    components
        ``(n_columns, n_components)``: directions of the components; None: no projection.
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
        """Return the stored projection of values with ``n_columns`` columns, or raise if the record is damaged."""
        explained = record.floats("explained", (None,))
        if "mean" not in record.arrays:
            return cls(explained=explained)
        mean, scale = record.floats("mean", (n_columns,)), record.floats("scale", (n_columns,))
        if not np.all(scale > 0):
            raise InvalidInputError("stored scales above zero", "other values")
        components = record.floats("components", (n_columns, None)) if "components" in record.arrays else None
        return cls(mean, scale, components, explained)

    def apply(self, block: Block) -> FloatArray:
        """Return the points ``(n_rows, n_dimensions)`` of a block, in the float type of the block."""
        from heatmover._base.compiled.rows import rows_times

        if self.mean is None or self.scale is None:
            return np.ascontiguousarray(block.toarray() if sp.issparse(block) else block)
        if self.components is None:
            dense = block.toarray() if sp.issparse(block) else block
            return np.ascontiguousarray((dense - self.mean) / self.scale, dtype=block.dtype)
        # Multiply row by row, as SciPy does, so that equal rows have equal points at any position in a block.
        scaled = np.ascontiguousarray(self.components / self.scale[:, None])
        if sp.issparse(block):
            points = np.asarray(sp.csr_array(block) @ scaled - self.mean @ scaled)
        else:
            points = np.empty((block.shape[0], scaled.shape[1]))
            rows_times(np.ascontiguousarray(block - self.mean), scaled, points)
        return np.ascontiguousarray(points, dtype=block.dtype)


def principal_components(
    blocks: Blocks, mean: Float64, scale: Float64, n_components: int, random_state: np.random.Generator
) -> Projection:
    """Return the projection onto the first principal components of the standardized columns.

    Parameters
    ----------
    blocks
        Function that yields the rows; it is called once per pass.
    mean, scale
        ``(n_columns,)``: center and divisor of each column (divisor 1 for a PCA of the covariance).
    n_components
        Number of components, at most the number of rows and of columns.
    random_state
        Generator of the initial directions; used only for more than 500 columns.
    """
    n_columns = mean.size
    width = n_columns if n_columns <= MOST_EXACT_COLUMNS else min(n_columns, n_components + EXTRA_DIRECTIONS)
    if width == n_columns:
        basis = np.eye(n_columns)
    else:
        basis = np.linalg.qr(random_state.normal(size=(n_columns, width)))[0]
        for _ in range(POWER_PASSES):
            basis = np.linalg.qr(_covariance_times(blocks, mean, scale, basis))[0]
    small = basis.T @ _covariance_times(blocks, mean, scale, basis)
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    order = np.argsort(values)[::-1][:n_components]
    components = basis @ vectors[:, order]
    # Choose the sign of each component so that its entry of largest magnitude is positive, as scikit-learn does.
    largest = np.abs(components).argmax(axis=0)
    components *= np.where(components[largest, np.arange(order.size)] < 0, -1.0, 1.0)
    return Projection(mean, scale, components, np.maximum(values[order], 0.0))


def fit_projection(
    reader: Reader,
    moments: Moments,
    n_components: int | None,
    random_state: np.random.Generator,
    progress: Progress,
    *,
    standardize: bool,
    memory: int | None,
) -> Projection:
    """Return the projection that standardizes the values of a reader, or reduces them to principal components.

    Parameters
    ----------
    reader, moments
        Reader of the values, which must be finite, and moments of these values.
    n_components
        Number of components; None for no PCA.
    random_state, progress
        Generator of the initial directions, used only for more than 500 columns; and object that receives the stage
        "principal components".
    standardize
        Whether to divide each column by its standard deviation.
    memory
        Memory limit for reading, in bytes; None for no limit.
    """
    # Divide constant columns by 1, so that they become zero instead of NaN.
    spread = np.where(moments.constant, 1.0, moments.deviation)
    scale = spread if standardize else np.ones_like(spread)
    if n_components is None:
        return Projection(moments.mean, scale)
    most = min(moments.count, moments.mean.size)
    if n_components > most:
        raise InvalidInputError(
            f"{argument('n_components')} to be at most {most}, the number of cells or features", str(n_components)
        )
    progress.stage("principal components", 1)

    def blocks() -> Iterator[Block]:
        return reader.blocks(0, moments.count, block_rows(len(reader.features)))

    # The PCA makes several passes, and wide tables are slow to read, so keep small data in memory.
    limit = HELD_BYTES if memory is None else min(HELD_BYTES, memory // 4)
    held = list(blocks()) if 8 * moments.count * moments.mean.size <= limit else None
    passes = blocks if held is None else held.__iter__
    projection = principal_components(passes, moments.mean, scale, n_components, random_state)
    total = float((moments.squares / scale**2).sum()) / moments.count
    return replace(projection, explained=projection.explained / total if total else projection.explained)


def _covariance_times(blocks: Blocks, mean: Float64, scale: Float64, right: Float64) -> Float64:
    """Return ``Z.T @ (Z @ right) / n_rows`` for the standardized rows Z; a sparse block stays sparse."""
    scaled, total, count = right / scale[:, None], np.zeros_like(right), 0
    for block in blocks():
        if sp.issparse(block):
            image = np.asarray(block @ scaled - mean @ scaled)
            product = block.T @ image - np.outer(mean, image.sum(axis=0))
        else:
            centered = block - mean
            product = centered.T @ (centered @ scaled)
        total += product / scale[:, None]
        count += block.shape[0]
    return total / count


# Size of one block in bytes: large enough that opening a file takes little of the time, and small compared with the
# memory of a laptop.
BLOCK_BYTES = 16_000_000


@final
@dataclass(frozen=True, eq=False)
class ValueCheck:
    """Result of checking the values of consecutive cells.

    Attributes
    ----------
    n_rows
        Number of cells.
    n_bad, rows
        Number of values that are NaN or infinite, and the rows with these values, counted from the first checked cell.
    moments
        Moments of all rows without NaN or infinity.
    """

    n_rows: int
    n_bad: int
    rows: Int64
    moments: Moments


def look_through(reader: Reader, n_cells: int, progress: Progress) -> ValueCheck:
    """Check all values for NaN and infinity in threads, while the main thread reads; raise if cells are missing."""
    progress.stage("check values", n_cells)
    blocks = reader.blocks(0, n_cells, block_rows(len(reader.features)))
    moments, done = Moments(len(reader.features)), 0
    bad, n_bad = [np.empty(0, dtype=np.int64)], 0
    for block in while_reading(_check_block, blocks, check_threads(None)):
        n_bad += block.n_bad
        bad.append(done + block.rows)
        moments.merge(block.moments)
        done += block.n_rows
        progress.advance(block.n_rows)
    if done != n_cells:
        raise InvalidInputError(
            f"values of {counted(n_cells, 'cell')}", f"values of {counted(done, 'cell')}", "the file may be damaged"
        )
    return ValueCheck(done, n_bad, np.concatenate(bad), moments)


def not_finite_error(check: ValueCheck, reader: Reader, names: Sequence[str], codes: Int32) -> InvalidInputError:
    """Return the error for NaN or infinite values, with the first affected cell and the number of cells per sample."""
    lost = np.bincount(codes[check.rows], minlength=len(names))
    first = int(check.rows[0])
    where = f"; {_listed_counts(names, lost)}" if np.count_nonzero(lost) > 1 else ""
    return InvalidInputError(
        "features without NaN or infinity",
        f"{counted(check.n_bad, 'such value')} in {counted(check.rows.size, 'cell')} (first: "
        f"{reader.place(first)}, sample {quoted(names[int(codes[first])])}{where})",
        f"remove those cells, impute the values, or use {argument('on_missing', 'drop')}",
    )


def drop_rows(check: ValueCheck, reader: Reader, names: Sequence[str], codes: Int32) -> tuple[Reader, Int32]:
    """Return a reader without the cells that have NaN or infinite values, and the sample of each remaining cell."""
    lost = np.bincount(codes[check.rows], minlength=len(names))
    left = np.bincount(codes, minlength=len(names)) - lost
    empty = [name for name, size in zip(names, left, strict=True) if not size]
    if empty:
        raise InvalidInputError("a cell without NaN or infinity in every sample", f"none in {listed(empty)}")
    where = _listed_counts(names, lost)
    were = verb(check.rows.size, "was", "were")
    note = f"{check.rows.size:,} of {counted(codes.size, 'cell')} {were} left out because of NaN or infinity: {where}."
    kept = np.ones(codes.size, dtype=bool)
    kept[check.rows] = False
    return SubsetReader.of(reader, kept, (note,)), codes[kept]


def _listed_counts(names: Sequence[str], counts: Int64, *, most: int = 5) -> str:
    """Return text with the largest counts and their names, and the number of further names with a count above 0."""
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    shown = ", ".join(f"{counts[i]} of {quoted(names[i])}" for i in order[:most])
    return shown if len(order) <= most else f"{shown} and some of {counted(len(order) - most, 'more sample')}"


def block_rows(n_columns: int) -> int:
    """Return the number of rows in a block with this number of columns."""
    return max(1, BLOCK_BYTES // (8 * max(n_columns, 1)))


def _check_block(block: Block) -> ValueCheck:
    count, rows = not_finite(block)
    finite = block if not rows.size else block[np.setdiff1d(np.arange(block.shape[0]), rows)]
    return ValueCheck(block.shape[0], count, rows.astype(np.int64), Moments.of(finite))


def not_finite(block: Block) -> tuple[int, Intp]:
    """Return the number of NaN and infinite values, and the rows that contain them."""
    values = block.data if sp.issparse(block) else block
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # five times as fast as a check of each value
            return 0, np.empty(0, dtype=np.intp)
    places = np.nonzero(~np.isfinite(values))[0]
    rows = np.searchsorted(block.indptr, places, side="right") - 1 if sp.issparse(block) else places
    return places.size, np.unique(rows)
