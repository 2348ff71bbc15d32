"""Draw cells by hashes of their values, in proportion or equally many per sample; for `study`, `atlas`, `cli`.

This module reads files only through a `Cohort`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Bool, Int32, Int64, IntArray, Intp
from heatmover._base.validation import check_integer
from heatmover._base.words import counted, listed, verb
from heatmover.cohort.cohort import Cohort
from heatmover.cohort.reader import Block, SubsetReader, without_copies
from heatmover.errors import InvalidInputError, argument


def cell_hashes(block: Block, codes: Int32, seed: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each cell, ``(n_rows,)``, uniformly distributed.

    Cells of one sample with equal values have equal hashes. A hash depends neither on the position of the cell in the
    file nor on how values are stored (float32, sparse matrix).

    Parameters
    ----------
    block
        Values ``(n_rows, n_columns)``, dense or CSR.
    codes
        ``(n_rows,)``: sample of each row.
    seed
        Seed of the hashes.

    Examples
    --------
    >>> block = np.array([[0.5, 0.0], [0.5, 0.0], [0.0, 0.5]], dtype=np.float32)
    >>> dense = cell_hashes(block, np.zeros(3, dtype=np.int32), 0)
    >>> bool(dense[0] == dense[1]), bool(dense[0] == dense[2])
    (True, False)
    >>> np.array_equal(dense, cell_hashes(sp.csr_array(block), np.zeros(3, dtype=np.int32), 0))
    True
    """
    from heatmover._base.compiled.rows import hash_dense, hash_sparse, salt_hashes

    generator = np.random.default_rng(seed)
    salt = generator.integers(2**64, dtype=np.uint64)
    columns = generator.integers(2**64, size=block.shape[1], dtype=np.uint64)
    hashes = np.empty(block.shape[0], dtype=np.uint64)
    if sp.issparse(block):
        matrix = without_copies(sp.csr_array(block))
        values = np.ascontiguousarray(matrix.data, dtype=np.float64)
        hash_sparse(values, values.view(np.uint64), matrix.indices, matrix.indptr, columns, hashes)
    else:
        values = np.ascontiguousarray(block, dtype=np.float64)
        hash_dense(values, values.view(np.uint64), columns, hashes)
    salt_hashes(hashes, np.ascontiguousarray(codes), salt)
    return hashes


class DrawnCells(NamedTuple):
    """Drawn cells: ``points`` ``(n_drawn, n_dimensions)``, and the sample and row of each cell, ``(n_drawn,)``."""

    points: npt.NDArray[Any]
    codes: Int32
    rows: Intp


def draw_cells(cohort: Cohort, most: int, seed: int, kept: Intp | None = None, among: Intp | None = None) -> DrawnCells:
    """Draw at most ``most`` cells from the samples ``kept``, in proportion to their sizes, at least one per sample.

    Cells are drawn by hashes of their values, so the order of cells does not matter. Only cells in the rows ``among``
    are drawn; None for all rows.
    """
    samples = np.arange(len(cohort.names))
    inside = np.isin(samples, samples if kept is None else kept)[cohort.codes]
    if among is not None:
        inside &= np.isin(np.arange(cohort.n_cells), among)
    if inside.all() and cohort.n_cells <= most:
        return DrawnCells(cohort.points(), cohort.codes, np.arange(cohort.n_cells))
    return draw_from(cohort.chunks(), len(samples), most, seed, inside)


def draw_from(
    blocks: Iterable[tuple[npt.NDArray[Any], Int32]], n_samples: int, most: int, seed: int, inside: Bool | None = None
) -> DrawnCells:
    """Draw as in `draw_cells`, but from blocks (points, samples); only cells where ``inside`` is true are drawn."""
    hashes, codes, rows = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.intp)
    points: npt.NDArray[Any] | None = None
    done = 0
    for block, block_codes in blocks:
        own = np.arange(len(block)) if inside is None else np.flatnonzero(inside[done : done + len(block)])
        part = block if own.size == len(block) else block[own]
        hashes = np.concatenate([hashes, cell_hashes(part, block_codes[own], seed)])
        points = part if points is None else np.concatenate([points, part])
        codes, rows = np.concatenate([codes, block_codes[own]]), np.concatenate([rows, done + own])
        done += len(block)
        # Keep ``n_samples`` additional cells, because later blocks may replace the first cell of every sample.
        best = _first_and_next(hashes, codes, most + n_samples)
        hashes, points, codes, rows = hashes[best], points[best], codes[best], rows[best]
    assert points is not None
    chosen = _first_and_next(hashes, codes, most)
    return DrawnCells(points[chosen], codes[chosen], rows[chosen])


def _first_and_next(hashes: npt.NDArray[np.uint64], codes: Int32, most: int) -> Intp:
    """Return the indices of ``most`` hashes: the smallest hash of each sample, then the smallest other hashes."""
    order = np.argsort(hashes, kind="stable")
    is_first = np.zeros(order.size, dtype=bool)
    is_first[np.unique(codes[order], return_index=True)[1]] = True
    return np.concatenate([order[is_first], order[~is_first]])[:most]


# Number of the random stream for drawing equally many cells per sample. Streams 0 to 2 of the same seed are used for
# landmarks.
STREAM = 3
# Bytes per cell while cells are drawn (hash, position by sample, boolean, row), and bytes for each cell of the largest
# sample while its hashes are sorted. For two million cells in 50 samples of equal size, 66 MB were measured, including
# a block of cells.
BYTES_PER_CELL, BYTES_PER_SORTED = 40, 80

UInt64 = npt.NDArray[np.uint64]


@final
@dataclass(frozen=True, eq=False)
class EqualDraw(ReadOnlyArrays):
    """Result of drawing the same number of cells from every sample.

    Attributes
    ----------
    n_cells
        Number of cells drawn from each sample.
    sizes
        ``(n_samples,)``: number of cells of each sample before cells were drawn.
    rows
        ``(n_drawn,)``: row numbers of the drawn cells, ascending; None if the cells stay on disk.

    Examples
    --------
    >>> print(EqualDraw(20, np.array([20, 300]), np.arange(40)))
    20 cells were drawn from every sample, 40 of 320 cells in total (samples have 20 to 300 cells)
    """

    n_cells: int
    sizes: Int64
    rows: Int64 | None

    def plain(self) -> dict[str, int]:
        """Return the numbers of cells as plain values for JSON."""
        return {
            "n_cells": self.n_cells,
            "fewest": int(self.sizes.min()),
            "most": int(self.sizes.max()),
            "drawn": self.n_cells * len(self.sizes),
            "of": int(self.sizes.sum()),
        }

    def __str__(self) -> str:
        numbers = self.plain()
        return (
            f"{counted(self.n_cells, 'cell')} {verb(self.n_cells, 'was', 'were')} drawn from every sample, "
            f"{numbers['drawn']:,} of {counted(numbers['of'], 'cell')} in total (samples have {numbers['fewest']:,} to "
            f"{numbers['most']:,} cells)"
        )


def check_equal_cells(value: object) -> bool | int:
    """Check the argument ``equal_cells``: False, True (the size of the smallest sample), or a number of at least 2.

    Examples
    --------
    >>> check_equal_cells(True), check_equal_cells(50)
    (True, 50)
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str):
        raise InvalidInputError(
            f"{argument('equal_cells')} to be a whole number of at least 2",
            repr(value),
            f"{argument('equal_cells', True)}, without a number, draws as many cells as the smallest sample has",
        )
    return check_integer("equal_cells", value, minimum=2)


def equal_count(equal_cells: bool | int, sizes: IntArray, names: Sequence[str], *, can_leave_out: bool = True) -> int:
    """Return the number of cells to draw from every sample (0: use all cells); raise if a sample is too small.

    Parameters
    ----------
    equal_cells
        Value returned by `check_equal_cells`.
    sizes, names
        ``(n_samples,)``: number of cells and name of each sample.
    can_leave_out
        Whether the caller has an argument that leaves small samples out, so that the error suggests this argument.

    Examples
    --------
    >>> equal_count(True, np.array([40, 25]), ["a", "b"])
    25
    """
    if equal_cells is False:
        return 0
    count = int(np.min(sizes)) if equal_cells is True else int(equal_cells)
    least = max(count, 2)
    few = [name for name, size in zip(names, sizes, strict=True) if size < least]
    if few:
        advice = "leave smaller samples out" + (f" with {argument('min_cells', least)}" if can_leave_out else "")
        if equal_cells is not True and np.min(sizes) > 1:
            advice += f", or draw at most {int(np.min(sizes))}"
        raise InvalidInputError(
            f"at least {counted(least, 'cell')} in every sample, to draw equally many cells",
            f"fewer in {len(few)} of {counted(len(names), 'sample')} ({listed(few)})",
            advice,
        )
    return count


def hash_seed(random_state: int | None) -> int:
    """Return the seed of the hashes that determine which cells are drawn."""
    own = np.random.default_rng() if random_state is None else np.random.default_rng([random_state, STREAM])
    return int(own.integers(2**62))


def sample_salt(name: str) -> int:
    """Return a number computed from a sample's name; which cells of the sample are drawn depends on no other sample."""
    return crc32(name.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def smallest(hashes: UInt64, count: int) -> Intp:
    """Draw ``count`` cells of one sample by their hashes, and return their indices, ascending.

    Parameters
    ----------
    hashes
        ``(n_cells,)``: hashes of the cells. Cells with equal values have equal hashes. Such cells are numbered, and the
        number is mixed into the hash. The order of cells therefore does not matter, and cells with equal values are
        drawn independently.
    count
        Number of cells to draw.

    Examples
    --------
    >>> smallest(np.array([7, 7, 7, 9], dtype=np.uint64), 2).size
    2
    """
    order = np.argsort(hashes, kind="stable")
    ascending = hashes[order]
    places = np.arange(hashes.size)
    starts = np.maximum.accumulate(np.where(np.r_[True, ascending[1:] != ascending[:-1]], places, 0))
    keys = _mixed(ascending + (places - starts).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.sort(order[np.argsort(keys, kind="stable")[:count]])


def _mixed(words: UInt64) -> UInt64:
    """Return 64-bit words in which every bit depends on all bits of the input (the finalizer of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def draw_bytes(cohort: Cohort) -> int:
    """Return the largest number of bytes that `drawn_cohort` needs in addition to the block of cells being read."""
    return BYTES_PER_CELL * cohort.n_cells + BYTES_PER_SORTED * int(cohort.sizes.max())


def drawn_cohort(
    cohort: Cohort, kept: Intp, count: int, *, random_state: int | None, progress: Progress = SILENT
) -> tuple[Cohort, EqualDraw]:
    """Draw equally many cells from the samples ``kept``, without replacement, in one pass over all cells.

    Cells are drawn by hashes of their values, so neither the order of cells nor the size of blocks matters.

    Parameters
    ----------
    cohort, kept
        The cohort, and the indices of the samples to keep, ascending.
    count
        Number of cells per sample, at most the size of the smallest kept sample.
    random_state
        Seed of the hashes.
    progress
        Receives the stage "draw equally many".

    Returns
    -------
    cohort : Cohort
        Cohort of the kept samples and the drawn cells, which are still read from the original files.
    drawn : EqualDraw
        Rows of the drawn cells in the original cohort.
    """
    hashes, seed = np.empty(cohort.n_cells, dtype=np.uint64), hash_seed(random_state)
    salts = np.array([sample_salt(name) for name in cohort.names], dtype=np.int32)
    progress.stage("draw equally many", cohort.n_cells)
    done = 0
    for points, codes in cohort.chunks():
        hashes[done : done + len(points)] = cell_hashes(points, salts[codes], seed)
        done += len(points)
        progress.advance(len(points))
    drawn = np.zeros(cohort.n_cells, dtype=bool)
    order = np.argsort(cohort.codes, kind="stable")
    ends = np.cumsum(cohort.sizes)
    for sample in kept.tolist():
        own = order[ends[sample] - cohort.sizes[sample] : ends[sample]]
        drawn[own[smallest(hashes[own], count)]] = True
    place = np.full(len(cohort.names), -1, dtype=np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)
    smaller = replace(
        cohort,
        names=tuple(cohort.names[i] for i in kept),
        codes=place[cohort.codes[drawn]],
        samples=cohort.samples.iloc[kept],
        reader=SubsetReader.of(cohort.reader, drawn),
        unchecked=False,  # all cells have been read and checked
    )
    return smaller, EqualDraw(count, cohort.sizes[kept], np.flatnonzero(drawn))
