"""Draw cells by hashes of their values: some of all samples, or equally many of every sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Int32, Int64, IntArray, Intp
from heatmover._base.validation import check_integer
from heatmover._base.words import counted, listed, verb
from heatmover.cohort.cohort import Cohort
from heatmover.cohort.reader import Block, SubsetReader, without_copies
from heatmover.errors import InvalidInputError, argument

__all__ = [
    "EqualDraw",
    "cell_hashes",
    "check_equal_cells",
    "draw_bytes",
    "draw_cells",
    "draw_from",
    "drawn_cohort",
    "equal_count",
    "hash_seed",
    "sample_salt",
    "smallest",
]


def cell_hashes(block: Block, codes: Int32, seed: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each cell, ``(n_rows,)``, as good as drawn at random from all numbers of 64 bits.

    Cells of one sample with equal values have the same; neither the place of a cell in the file matters nor whether
    its values are stored as float32 or sparse.

    Parameters
    ----------
    block
        Values ``(n_rows, n_columns)``, dense or CSR.
    codes
        ``(n_rows,)``: the sample of each.
    seed
        Another seed gives other hashes.

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


def draw_cells(cohort: Cohort, most: int, seed: int, kept: Intp | None = None) -> tuple[npt.NDArray[Any], Int32]:
    """Return at most so many cells of the samples kept, drawn in proportion and at least one of each sample.

    They are drawn by hashes of their values, in whatever order they come.
    """
    inside = np.ones(len(cohort.names), dtype=bool)
    if kept is not None:
        inside = np.isin(np.arange(len(cohort.names)), kept)
    if inside.all() and cohort.n_cells <= most:
        return cohort.points(), cohort.codes
    blocks = cohort.chunks()
    return draw_from(((block[inside[codes]], codes[inside[codes]]) for block, codes in blocks), len(inside), most, seed)


def draw_from(
    blocks: Iterable[tuple[npt.NDArray[Any], Int32]], n_samples: int, most: int, seed: int
) -> tuple[npt.NDArray[Any], Int32]:
    """Return what `draw_cells` does, of cells and their samples in blocks."""
    hashes, codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32)
    points: npt.NDArray[Any] | None = None
    for block, block_codes in blocks:
        hashes = np.concatenate([hashes, cell_hashes(block, block_codes, seed)])
        points = block if points is None else np.concatenate([points, block])
        codes = np.concatenate([codes, block_codes])
        # Enough for every sample to replace its first later on.
        rows = _first_and_next(hashes, codes, most + n_samples)
        hashes, points, codes = hashes[rows], points[rows], codes[rows]
    assert points is not None
    chosen = _first_and_next(hashes, codes, most)
    return points[chosen], codes[chosen]


def _first_and_next(hashes: npt.NDArray[np.uint64], codes: Int32, most: int) -> Intp:
    """Return the place of the smallest hash of each sample, then those of the smallest of all."""
    order = np.argsort(hashes, kind="stable")
    is_first = np.zeros(order.size, dtype=bool)
    is_first[np.unique(codes[order], return_index=True)[1]] = True
    return np.concatenate([order[is_first], order[~is_first]])[:most]


# Of the streams of a seed, this one is for the draw: those that draw cells for landmarks are 0 to 2.
STREAM = 3
# While they are drawn, per cell: a hash, its place by sample, whether it is drawn, its row; and per cell of the largest
# sample, what sorting takes. Two million cells of 50 equal samples took 66 MB, with a block of cells.
BYTES_PER_CELL, BYTES_PER_SORTED = 40, 80

UInt64 = npt.NDArray[np.uint64]


@final
@dataclass(frozen=True, eq=False)
class EqualDraw(ReadOnlyArrays):
    """Which cells were drawn, equally many of every sample.

    Attributes
    ----------
    n_cells
        How many of each sample.
    sizes
        ``(n_samples,)``: how many each sample has.
    rows
        ``(n_drawn,)``: the cells that were drawn, ascending rows of the points that were given; None if the cells stay
        on disk.

    Examples
    --------
    >>> print(EqualDraw(20, np.array([20, 300]), np.arange(40)))
    20 cells were drawn from every sample, which have 20 to 300: 40 of 320 cells
    """

    n_cells: int
    sizes: Int64
    rows: Int64 | None

    def plain(self) -> dict[str, int]:
        """Return what describes it as plain values for JSON."""
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
            f"{counted(self.n_cells, 'cell')} {verb(self.n_cells, 'was', 'were')} drawn from every sample, which "
            f"have {numbers['fewest']:,} to "
            f"{numbers['most']:,}: {numbers['drawn']:,} of {counted(numbers['of'], 'cell')}"
        )


def check_equal_cells(value: object) -> bool | int:
    """Return what was asked for: False, True for as many as the smallest sample has, or a number of at least 2.

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
    """Return how many cells to draw from every sample; 0 for all, or raise if a sample has too few.

    Parameters
    ----------
    equal_cells
        As `check_equal_cells` returns it.
    sizes, names
        Of the samples, ``(n_samples,)``.
    can_leave_out
        Whether there is an argument that leaves small samples out, which the error then names.

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
            f"at least {counted(least, 'cell')} in every sample, to draw equally many",
            f"fewer in {len(few)} of {len(names)} ({listed(few)})",
            advice,
        )
    return count


def hash_seed(random_state: int | None) -> int:
    """Return the seed of the hashes by which cells are drawn."""
    own = np.random.default_rng() if random_state is None else np.random.default_rng([random_state, STREAM])
    return int(own.integers(2**62))


def sample_salt(name: str) -> int:
    """Return a number for a sample's name: its draw does not depend on which other samples there are."""
    return crc32(name.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def smallest(hashes: UInt64, count: int) -> Intp:
    """Return the places of ``count`` cells of one sample, ascending; of equal cells each is drawn by itself.

    Parameters
    ----------
    hashes
        ``(n_cells,)``, equal for equal cells: a cell is known by its hash and its number among its copies, so that
        neither the order of cells matters nor are all copies drawn together.
    count
        How many.

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
    """Return words whose every bit depends on all of the given ones' (the finaliser of splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def draw_bytes(cohort: Cohort) -> int:
    """Return the bytes that a draw takes at most beside the cells that are read."""
    return BYTES_PER_CELL * cohort.n_cells + BYTES_PER_SORTED * int(cohort.sizes.max())


def drawn_cohort(
    cohort: Cohort, kept: Intp, count: int, *, random_state: int | None, progress: Progress = SILENT
) -> tuple[Cohort, EqualDraw]:
    """Draw equally many cells from some samples, without replacement, in one pass over all cells.

    Cells are drawn by hashes of their values: neither their order in the file matters nor how many are read at a time.

    Parameters
    ----------
    cohort, kept
        The cells, and which samples are wanted, ascending.
    count
        Cells of each, at most as many as the smallest of them has.
    random_state
        Seed.
    progress
        Told of the stage "draw equally many".

    Returns
    -------
    cohort : Cohort
        The samples that are wanted, with the cells drawn; it reads them from where they are.
    drawn : EqualDraw
        Which cells of the given cohort these are.
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
    part = replace(
        cohort,
        names=tuple(cohort.names[i] for i in kept),
        codes=place[cohort.codes[drawn]],
        samples=cohort.samples.iloc[kept],
        reader=SubsetReader.of(cohort.reader, drawn),
        unchecked=False,  # all cells were read
    )
    return part, EqualDraw(count, cohort.sizes[kept], np.flatnonzero(drawn))
