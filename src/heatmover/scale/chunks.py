"""Pieces of a cohort: how many cells at a time fit, and reading them from anywhere in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import Progress
from heatmover._typing import Float64, FloatArray, Int32, Int64, Intp
from heatmover._words import counted, quoted_path, readable
from heatmover.cohort import Cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.cohort.draw import cell_hashes
from heatmover.cohort.formats.tables import from_the_top
from heatmover.cohort.reader import Block, Columns, Numbers, Reader, SubsetReader, place_of, spans
from heatmover.cohort.values import Projection
from heatmover.embedding.preparation import LARGEST_EMBEDDING
from heatmover.errors import InvalidInputError, argument, in_python
from heatmover.graphs.search.assign import CenterSearch
from heatmover.graphs.search.kmeans import PER_LANDMARK
from heatmover.scale.checkpoint import UNFINISHED, Arrays, explain_full_disk

__all__ = [
    "AGREEMENT_POINTS",
    "Cells",
    "FixedPoint",
    "Piece",
    "Plan",
    "Wanted",
    "absolute",
    "count_cells",
    "draw_cells",
    "make_plan",
    "seekable",
    "sum_cells",
    "tally_keys",
]

# A sum must stay below 2^63; one bit is kept back.
BITS = 62
# Cells of a piece, which is what a task does, a checkpoint keeps and a dead worker loses: 5 to 10 s of work with
# 27,000 landmarks. It does not depend on memory or workers, so that these may change before a run is resumed.
MOST_CELLS, LEAST_CELLS, PIECES = 2**18, 2**13, 64
# Rows in memory at a time: fewer are read and searched more slowly, more bring nothing.
MOST_ROWS, LEAST_ROWS = 2**16, 2**11
# What the search for the nearest landmark takes beside the points, per thread: 50 MB measured.
SEARCH_BYTES = 64_000_000
# Copies of a block at once: as read, as points, in float64, and the difference from the landmarks.
BLOCK_COPIES = 5
# Cells that tell what landmarks cost, as in `landmark_agreement`.
AGREEMENT_POINTS = 10_000
# Places per key up to which keys are counted by their places.
SPREAD = 8
# Scales kept by the default settings, at most; of a landmark's neighbours both directions are stored, and kernels,
# normalisation and the recurrence hold copies.
SCALES, EDGE_BYTES = 16, 60


@final
@dataclass(frozen=True)
class FixedPoint:
    """Whole numbers for values up to a limit, so fine that a given number of them can be added in 64 bits.

    A sum of floats depends on the order in which chunks come back; a sum of whole numbers does not.

    Attributes
    ----------
    limit
        Larger values count as this one. It must come from what does not depend on chunks.
    n_terms
        Values that may be added.

    Examples
    --------
    >>> fixed = FixedPoint(limit=8.0, n_terms=1000)
    >>> fixed.decode(fixed.sum(np.array([0.5, 2.25, 100.0])))
    10.75
    """

    limit: float
    n_terms: int

    @property
    def unit(self) -> float:
        """The smallest difference told: a power of two, so that nothing is rounded twice."""
        largest = 2.0 ** (BITS - self.n_terms.bit_length())
        return float(2.0 ** np.ceil(np.log2((self.limit or 1.0) / largest)))

    def encode(self, values: FloatArray) -> Int64:
        """Return the values as multiples of the unit."""
        clipped = np.clip(values.astype(np.float64), -self.limit, self.limit)
        return np.rint(clipped / self.unit).astype(np.int64)

    def sum(self, values: FloatArray) -> int:
        """Return the sum as a multiple of the unit."""
        return int(self.encode(values).sum())

    def decode(self, total: Any) -> Any:
        """Return a sum, or an array of sums, as floats."""
        return total * self.unit


@final
@dataclass(frozen=True)
class Plan:
    """Pieces of work and the memory that every stage takes.

    Attributes
    ----------
    n_cells, n_samples, n_dimensions, n_landmarks
        Sizes of the problem.
    n_drawn
        Cells that k-means looks at.
    piece_rows, block_rows
        Cells of a task; of them in memory at a time.
    n_workers
        Tasks at a time in the memory of one process.
    n_types
        Cell types that are counted apart.
    """

    n_cells: int
    n_samples: int
    n_dimensions: int
    n_landmarks: int
    n_drawn: int
    n_neighbors: int
    n_columns: int
    piece_rows: int
    block_rows: int
    n_workers: int
    n_types: int = 1

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Borders of the pieces of work, in cells."""
        starts = range(0, self.n_cells, self.piece_rows)
        return [(start, min(start + self.piece_rows, self.n_cells)) for start in starts]

    @property
    def held(self) -> int:
        """Bytes that are there throughout: the sample of each cell and its type."""
        return 4 * self.n_cells * (1 if self.n_types == 1 else 2)

    @property
    def bounds(self) -> dict[str, int]:
        """Bytes that each stage takes at most beside ``held``, by name."""
        width = 8 * self.n_dimensions
        drawn = (self.n_drawn + AGREEMENT_POINTS) * width
        working = self.n_workers * self.block_rows * _row_bytes(self.n_columns, self.n_dimensions)
        searching = self.n_workers * SEARCH_BYTES
        edges = self.n_landmarks * self.n_neighbors * 2 * EDGE_BYTES
        embedding = min(self.n_samples * self.n_landmarks * SCALES * 4, LARGEST_EMBEDDING)
        return {
            # Counting and finding the cells of each sample takes nine bytes a cell for a moment.
            "draw cells": drawn + working + 9 * self.n_cells,
            # The points, those that k-means looks at, the columns on their way into sums, and nearest with squares.
            "find landmarks": 3 * drawn + 48 * self.n_drawn + searching,
            "count cells": working + searching + 40 * self.histogram_entries,
            "compare samples": edges + 2 * embedding + 16 * self.n_samples**2 + 24 * self.histogram_entries,
        }

    @property
    def histogram_entries(self) -> int:
        """Pairs of a sample and a landmark, and types there, that may have cells."""
        return min(self.n_cells, self.n_samples * self.n_landmarks * self.n_types)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes that a checkpoint may take: rows drawn, counts per piece, the embedding."""
        counts = 16 * min(self.n_cells, len(self.pieces) * self.histogram_entries)
        embedding = min(self.n_samples * self.n_landmarks * SCALES * 4, LARGEST_EMBEDDING)
        return (self.n_drawn + AGREEMENT_POINTS) * 8 * self.n_dimensions + counts + embedding


def _row_bytes(n_columns: int, n_dimensions: int) -> int:
    """Bytes of a cell in the making: its columns as read, its point in several copies, and sorting by landmark."""
    return 8 * n_columns * 2 + 8 * n_dimensions * BLOCK_COPIES + 64


def make_plan(
    cohort: Cohort, n_landmarks: int, n_neighbors: int, *, memory: int, n_workers: int, n_types: int = 1
) -> Plan:
    """Return the plan, or raise if the budget cannot hold it.

    Parameters
    ----------
    cohort
        The cells.
    n_landmarks, n_neighbors
        Of the graph.
    memory
        Bytes.
    n_workers
        Tasks at a time in the memory of one process.
    n_types
        Cell types that are counted apart.
    """
    if n_landmarks > cohort.n_cells:
        raise InvalidInputError(
            f"at least as many cells as {argument('landmarks', n_landmarks)}",
            f"{cohort.n_cells}",
            f"use fewer landmarks{in_python(', or hm.compare without')}",
        )
    n_columns = len(cohort.reader.features)
    row = n_workers * _row_bytes(n_columns, cohort.n_dimensions)

    def plan(block_rows: int) -> Plan:
        return Plan(
            cohort.n_cells, len(cohort.names), cohort.n_dimensions, n_landmarks,
            min(cohort.n_cells, PER_LANDMARK * n_landmarks), n_neighbors, n_columns,
            min(MOST_CELLS, max(LEAST_CELLS, -(-cohort.n_cells // PIECES))), block_rows, n_workers, n_types,
        )  # fmt: skip

    least = plan(LEAST_ROWS)
    stage, need = max(least.bounds.items(), key=lambda item: item[1])
    if least.held + need > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {(least.held + need) / 1e6:,.0f} MB for "
            f"{counted(cohort.n_cells, 'cell')} of "
            f"{counted(len(cohort.names), 'sample')} and {counted(n_landmarks, 'landmark')} ({stage!r})",
            f"{memory / 1e6:,.0f} MB",
            "allow more, or use fewer landmarks or fewer threads",
        )
    # The stages that read cells have what the budget leaves beside their other needs.
    spare = memory - least.held - max(least.bounds["draw cells"], least.bounds["count cells"])
    return plan(min(MOST_ROWS, LEAST_ROWS + spare // row))


@final
@dataclass(frozen=True)
class CopyReader:
    """Points of cells in a file of plain numbers, row after row."""

    path: str
    features: tuple[str, ...]
    dtype: str
    notes: tuple[str, ...] = ()
    undecided: bool = False
    decimal: str = ""
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return "copy of a table of text"

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield nothing: the labels are known."""
        return iter(())

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the points of a range of cells."""
        width, kind = len(self.features), np.dtype(self.dtype)
        with Path(self.path).open("rb") as stream:
            stream.seek(start * width * kind.itemsize)
            for first, last in spans(start, stop, size):
                block: npt.NDArray[Any] = np.fromfile(stream, dtype=kind, count=(last - first) * width)
                yield block.reshape(-1, width)

    def choose(self, features: tuple[str, ...]) -> CopyReader:
        """Return itself; all features were wanted when the copy was made."""
        assert features == self.features
        return self


@contextmanager
def seekable(cohort: Cohort, folder: Path | None, progress: Progress, *, block_rows: int) -> Iterator[Cohort]:
    """Give a cohort of which any range is read as fast as any other: itself, or for a table of text a copy.

    Parameters
    ----------
    cohort
        The cells.
    folder
        Where a copy may be, such as the checkpoint, which all workers see; None for the system's temporary folder.
    progress, block_rows
        Told of the copying; cells in memory at a time.
    """
    if not from_the_top(cohort.reader):
        yield cohort
        return
    progress.stage("copy the table", cohort.n_cells)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder, ignore_cleanup_errors=True) as temporary:
        path, dtype = Path(temporary) / "cells", "<f8"
        with explain_full_disk(path), path.open("wb") as stream:
            for points, _ in cohort.chunks(block_rows):
                stream.write(np.ascontiguousarray(points, dtype=dtype).data)
                progress.advance(len(points))
        yield replace(cohort, reader=CopyReader(str(path), cohort.features, dtype), projection=Projection())


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """The values of a cohort's cells without the sample of each, which at four bytes a cell is too long to be sent."""

    reader: Reader
    projection: Projection
    path: str

    @classmethod
    def of(cls, cohort: Cohort) -> Cells:
        """Return the cells of a cohort, by a path that means the same to a worker in another folder."""
        return cls(absolute(cohort.reader), cohort.projection, cohort.source.path)


def absolute(reader: Any) -> Any:
    """Return a reader that finds its file from any folder, such as a worker's."""
    if hasattr(reader, "inner"):
        return replace(reader, inner=absolute(reader.inner))
    name = "folder" if hasattr(reader, "folder") else "path"
    place = getattr(reader, name)
    return replace(reader, **{name: os.path.abspath(place)}) if place else reader  # noqa: PTH100 - keeps links


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """A range of cells and how many of them are in memory at a time."""

    cells: Cells
    start: int
    stop: int
    block_rows: int

    @classmethod
    def of(cls, cohort: Cohort, start: int, stop: int, block_rows: int) -> Piece:
        """Return a range of a cohort's cells; of a draw, it carries what concerns the range only."""
        cells = Cells.of(cohort)
        if isinstance(cells.reader, SubsetReader | ShiftedReader):
            cells = replace(cells, reader=cells.reader.within(start, stop))
        return cls(cells, start, stop, block_rows)

    def blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield where, counted from the start of the piece, and the points there."""
        for where, _, points in self.read():
            yield where, points

    def read(self) -> Iterator[tuple[slice, Block, FloatArray]]:
        """Yield where, counted from the start of the piece, and the values and the points there."""
        done = 0
        with readable(self.cells.path, self.cells.reader.kind):
            for block in self.cells.reader.blocks(self.start, self.stop, self.block_rows):
                points = self.cells.projection.apply(block)
                self._check(points, done)
                yield slice(done, done + len(points)), block, points
                done += len(points)
        if done != self.stop - self.start:
            raise InvalidInputError(
                f"{counted(self.stop - self.start, 'cell')} from row {self.start} on of {quoted_path(self.cells.path)}",
                f"{done}",
                "the file has changed since it was read",
            )

    def _check(self, points: FloatArray, done: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(points.sum()):
                return
        bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if bad.size:
            raise InvalidInputError(
                "cells without NaN or infinity",
                f"{bad.size} with (first: {place_of(self.cells.reader, self.start + done + int(bad[0]))} of "
                f"{quoted_path(self.cells.path)})",
                "the file has changed since it was read",
            )


@final
@dataclass(frozen=True, eq=False)
class Wanted:
    """Which cells to draw: those whose hash, as a share of the largest, is below a share of their sample's cells.

    Attributes
    ----------
    seed
        Of the hashes.
    shares
        ``(n_samples,)``: what share of the cells of each sample to draw; 1 for all.
    """

    seed: int
    shares: Float64

    def among(self, block: Block, codes: Int32) -> tuple[Intp, Int64]:
        """Return rows of different cells that are drawn, and how many equal ones of their sample there are of each."""
        hashes = cell_hashes(block, codes, self.seed)
        shares = self.shares[codes]
        drawn = np.flatnonzero((hashes < shares * 2.0**64) | (shares >= 1))
        _, first, counts = np.unique(hashes[drawn], return_index=True, return_counts=True)
        return drawn[first], counts


def draw_cells(_: None, piece: Piece, codes: Int32, wanted: dict[str, Wanted]) -> Arrays:
    """Return the cells that are drawn for each purpose: their points, how many there are of each, and their samples.

    Parameters
    ----------
    piece
        The cells.
    codes
        ``(n_cells,)``: the sample of each.
    wanted
        By the name of the purpose.

    Returns
    -------
    Arrays
        ``NAME points`` ``(n_drawn, n_dimensions)``, ``NAME counts`` and ``NAME codes`` ``(n_drawn,)``.
    """
    found: dict[str, list[npt.NDArray[Any]]] = {}
    for where, block, points in piece.read():
        for name, which in wanted.items():
            rows, counts = which.among(block, codes[where])
            found.setdefault(f"{name} points", []).append(points[rows])
            found.setdefault(f"{name} counts", []).append(counts)
            found.setdefault(f"{name} codes", []).append(codes[where][rows])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def count_cells(search: CenterSearch, piece: Piece, codes: Int32, fixed: FixedPoint) -> Arrays:
    """Return how many cells of each sample are nearest to each landmark, and their squared distances.

    Parameters
    ----------
    search
        Finds the nearest landmark.
    piece
        The cells.
    codes
        ``(n_cells,)``: the sample of each.
    fixed
        Turns squares into whole numbers, whose sum does not depend on the order.

    Returns
    -------
    Arrays
        ``keys``, ascending, each sample * n_landmarks + landmark; ``counts`` of each; ``squares``, one number.
    """
    found, total = np.empty(codes.size, dtype=np.int64), 0
    for where, points in piece.blocks():
        places, squares = search.nearest(points, 1)
        np.multiply(codes[where], len(search.centers), out=found[where], dtype=np.int64)
        found[where] += places
        total += fixed.sum(squares)
    keys, counts = tally_keys(found)
    return {"keys": keys, "counts": counts, "squares": np.array([total], dtype=np.int64)}


def tally_keys(found: Int64) -> tuple[Int64, Int64]:
    """Return the different keys, ascending, and how often each was found, as `numpy.unique` does.

    Cells of a piece are of few samples as a rule. Their keys are then so near to each other that counting them by their
    places takes a tenth of the time of sorting them.

    Examples
    --------
    >>> tally_keys(np.array([7, 5, 7]))
    (array([5, 7]), array([1, 2]))
    """
    least = int(found.min())
    if int(found.max()) - least >= SPREAD * found.size:
        keys, counts = np.unique(found, return_counts=True)
        return keys, counts
    counts = np.bincount(found - least)
    places = np.flatnonzero(counts)
    return least + places, counts[places]


def sum_cells(search: CenterSearch, piece: Piece, fixed: FixedPoint) -> Arrays:
    """Return the number of cells nearest to each landmark, ``sizes``, and the sums of their points, ``sums``."""
    sizes = np.zeros(len(search.centers), dtype=np.int64)
    sums = np.zeros(search.centers.shape, dtype=np.int64)
    for _, points in piece.blocks():
        places, _squares = search.nearest(points, 1)
        sizes += np.bincount(places, minlength=sizes.size)
        for dimension, column in enumerate(fixed.encode(points).T):
            np.add.at(sums[:, dimension], places, column)
    return {"sizes": sizes, "sums": sums}
