"""Landmarks of cells on disk: draw cells, find centers, count every cell at its nearest, within a memory budget."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.progress import Progress
from heatmover._base.storage import explained
from heatmover._base.types import Float64, FloatArray, Int32, Int64, Intp
from heatmover._base.words import counted, quoted_path, readable
from heatmover.cohort import Cohort
from heatmover.cohort.draw import cell_hashes
from heatmover.cohort.formats.tables import DelimitedReader
from heatmover.cohort.reader import Block, Reader, spans
from heatmover.cohort.values import Projection
from heatmover.embedding.preparation import LARGEST_EMBEDDING
from heatmover.errors import InvalidInputError, argument, in_python
from heatmover.graphs import Landmarks
from heatmover.graphs.centers import ITERATIONS, PER_LANDMARK, CenterSearch, k_means
from heatmover.graphs.distinct import distinct_points
from heatmover.study.cell_types import Annotation, CellMasses
from heatmover.study.landmarking import samples_to_draw
from heatmover.study.scale.stages import UNFINISHED, Arrays, Stages, Task

__all__ = ["CellCounts", "CellsDrawn", "count_cells", "draw_cells", "find_centers", "make_budget", "seekable"]

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
# Scales kept by the default settings, at most; of a landmark's neighbors both directions are stored, and kernels,
# normalization and the recurrence hold copies.
SCALES, EDGE_BYTES = 16, 60
# Independent streams of one seed, so that the draw of a stage does not depend on whether another was resumed.
FOR_LANDMARKS, FOR_AGREEMENT, FOR_CENTERS = range(3)
# Cells of the draw that tell how far they are from their landmarks; the mean is then known to some 1%.
PROBE = 20_000


# --- the memory budget ---


@final
@dataclass(frozen=True)
class Budget:
    """Pieces of work and the memory that they take.

    Attributes
    ----------
    n_landmarks, n_drawn, n_types
        Centers to find, cells that k-means looks at, and cell types that are counted apart.
    pieces
        Borders of the pieces of work, in cells.
    block_rows
        Cells of a piece in memory at a time.
    need
        Bytes that the stages take at most.
    """

    n_landmarks: int
    n_drawn: int
    n_types: int
    pieces: list[tuple[int, int]]
    block_rows: int
    need: int

    @property
    def weights(self) -> dict[int, int]:
        """Cells of each piece, by its number."""
        return {number: stop - start for number, (start, stop) in enumerate(self.pieces)}


def make_budget(
    cohort: Cohort, n_landmarks: int, n_neighbors: int, *, memory: int, n_workers: int, n_types: int = 1
) -> Budget:
    """Return how many cells to hold at a time, or raise if the memory cannot hold the problem.

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
    n_cells, n_samples = cohort.n_cells, len(cohort.names)
    if n_landmarks > n_cells:
        raise InvalidInputError(
            f"at least as many cells as {argument('landmarks', n_landmarks)}",
            f"{n_cells}",
            f"use fewer landmarks{in_python(', or hm.compare without')}",
        )
    n_drawn = min(n_cells, PER_LANDMARK * n_landmarks)
    # A cell in the making: its columns as read, its point in several copies, and sorting by landmark.
    row_bytes = n_workers * (16 * len(cohort.reader.features) + 8 * cohort.n_dimensions * BLOCK_COPIES + 64)
    held = 4 * n_cells * (1 if n_types == 1 else 2)  # the sample of each cell and its type
    drawn = (n_drawn + AGREEMENT_POINTS) * 8 * cohort.n_dimensions
    searching = n_workers * SEARCH_BYTES
    entries = min(n_cells, n_samples * n_landmarks * n_types)  # of the histograms
    edges = n_landmarks * n_neighbors * 2 * EDGE_BYTES
    embedding = min(n_samples * n_landmarks * SCALES * 4, LARGEST_EMBEDDING)
    reading = {
        # Counting and finding the cells of each sample takes nine bytes a cell for a moment.
        "draw cells": held + drawn + 9 * n_cells,
        "count cells": held + searching + 40 * entries,
    }
    others = {
        # The points, those that k-means looks at, the columns on their way into sums, and nearest with squares.
        "find landmarks": held + 3 * drawn + 48 * n_drawn + searching,
        "compare samples": held + edges + 2 * embedding + 16 * n_samples**2 + 24 * entries,
    }
    least = {stage: need + LEAST_ROWS * row_bytes for stage, need in reading.items()} | others
    stage = max(least, key=least.__getitem__)
    if least[stage] > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {least[stage] / 1e6:,.0f} MB for {counted(n_cells, 'cell')} of "
            f"{counted(n_samples, 'sample')} and {counted(n_landmarks, 'landmark')} ({stage!r})",
            f"{memory / 1e6:,.0f} MB",
            "allow more, or use fewer landmarks or fewer threads",
        )
    block_rows = min(MOST_ROWS, (memory - max(reading.values())) // row_bytes)
    need = max(max(reading.values()) + block_rows * row_bytes, *others.values())
    piece_rows = min(MOST_CELLS, max(LEAST_CELLS, -(-n_cells // PIECES)))
    return Budget(n_landmarks, n_drawn, n_types, list(spans(0, n_cells, piece_rows)), block_rows, need)


# --- reading pieces ---


@final
@dataclass(frozen=True)
class CopyReader(Reader):
    """Points of cells in a file of plain numbers, row after row."""

    path: str

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the points of a range of cells."""
        width = len(self.features)
        with Path(self.path).open("rb") as stream:
            stream.seek(start * width * 8)
            for first, last in spans(start, stop, size):
                yield np.fromfile(stream, count=(last - first) * width).reshape(-1, width)


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
    if not isinstance(cohort.reader.base, DelimitedReader):
        yield cohort
        return
    progress.stage("copy the table", cohort.n_cells)
    prefix, suffix = UNFINISHED.split("*")
    with tempfile.TemporaryDirectory(suffix, prefix, folder, ignore_cleanup_errors=True) as temporary:
        path = Path(temporary) / "cells"
        with explained(path), path.open("wb") as stream:
            for points, _ in cohort.chunks(block_rows):
                stream.write(np.ascontiguousarray(points, dtype=np.float64).data)
                progress.advance(len(points))
        yield replace(
            cohort,
            reader=CopyReader(str(path), kind="copy of a table of text", features=cohort.features),
            projection=Projection(),
        )


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """A range of cells without the sample of each, which at four bytes a cell is too long to be sent for all.

    Attributes
    ----------
    reader, projection, path
        Of the cohort; the reader finds its file from any folder, such as a worker's.
    start, stop
        The range.
    block_rows
        Cells in memory at a time.
    """

    reader: Reader
    projection: Projection
    path: str
    start: int
    stop: int
    block_rows: int

    @classmethod
    def of(cls, cohort: Cohort, start: int, stop: int, block_rows: int) -> Piece:
        """Return a range of a cohort's cells; of a draw, it carries what concerns the range only."""
        reader = _absolute(cohort.reader).within(start, stop)
        return cls(reader, cohort.projection, cohort.source.path, start, stop, block_rows)

    def blocks(self) -> Iterator[tuple[slice, Block, FloatArray]]:
        """Yield where, counted from the start of the piece, and the values and the points there."""
        done = 0
        with readable(self.path, self.reader.kind):
            for block in self.reader.blocks(self.start, self.stop, self.block_rows):
                points = self.projection.apply(block)
                self._check(points, done)
                yield slice(done, done + len(points)), block, points
                done += len(points)
        if done != self.stop - self.start:
            raise InvalidInputError(
                f"{counted(self.stop - self.start, 'cell')} from row {self.start} on of {quoted_path(self.path)}",
                f"{done}",
                "the file has changed since it was read",
            )

    def _check(self, points: FloatArray, done: int) -> None:
        bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if bad.size:
            raise InvalidInputError(
                "cells without NaN or infinity",
                f"{bad.size} with (first: {self.reader.place(self.start + done + int(bad[0]))} of "
                f"{quoted_path(self.path)})",
                "the file has changed since it was read",
            )


def _absolute(reader: Any) -> Any:
    """Return a reader that finds its file from any folder."""
    if reader.inner is not None:
        return replace(reader, inner=_absolute(reader.inner))
    name = "folder" if hasattr(reader, "folder") else "path"
    place = getattr(reader, name)
    return replace(reader, **{name: os.path.abspath(place)}) if place else reader  # noqa: PTH100 - keeps links


# --- drawing ---


@final
@dataclass(frozen=True, eq=False)
class CellsDrawn:
    """Different cells that were drawn, sorted, and how many of each.

    Attributes
    ----------
    points
        ``(n_drawn, n_dimensions)``.
    counts
        CSR ``(n_samples, n_drawn)``: how many each sample has.
    """

    points: FloatArray
    counts: sp.csr_array

    @property
    def copies(self) -> Int64:
        """``(n_drawn,)``: how many there are of each in all samples."""
        return np.asarray(self.counts.sum(axis=0), dtype=np.int64).ravel()


def draw_cells(cohort: Cohort, budget: Budget, stages: Stages, seed: int) -> tuple[CellsDrawn, CellsDrawn]:
    """Draw cells by hashes of their values and samples, so that their order does not matter, in one pass.

    It looks at every value of every cell.

    Parameters
    ----------
    cohort, budget, stages
        What, how and where.
    seed
        Of the draw.

    Returns
    -------
    for_landmarks, for_agreement : CellsDrawn
        Cells for k-means, and as many of every sample for the agreement.
    """
    shares = (
        np.full(len(cohort.names), budget.n_drawn / cohort.n_cells),
        shares_by_sample(cohort, np.random.default_rng([seed, FOR_AGREEMENT])),
    )
    seeds = [int(np.random.default_rng([seed, stream]).integers(2**62)) for stream in (FOR_LANDMARKS, FOR_AGREEMENT)]
    drawn: dict[int, Arrays] = {}

    def task(start: int, stop: int) -> Task[None]:
        piece, codes = Piece.of(cohort, start, stop, budget.block_rows), cohort.codes[start:stop]
        return partial(draw_from_piece, piece=piece, codes=codes, wanted=list(zip(seeds, shares, strict=True)))

    tasks = {number: task(*span) for number, span in enumerate(budget.pieces)}
    stages.each("draw cells", tasks, budget.weights, drawn.__setitem__, None)

    def gathered(purpose: int) -> CellsDrawn:
        points, counts, codes = (
            np.concatenate([result.pop(f"{part} {purpose}") for result in drawn.values()])
            for part in ("points", "counts", "codes")
        )
        nodes, place = distinct_points(points)
        matrix = sp.coo_array((counts, (codes, place)), shape=(len(cohort.names), len(nodes)))
        return CellsDrawn(nodes, sp.csr_array(matrix))

    return gathered(0), gathered(1)


def draw_from_piece(_: None, piece: Piece, codes: Int32, wanted: list[tuple[int, Float64]]) -> Arrays:
    """Return the cells that are drawn for each purpose: their points, how many there are of each, and their samples.

    Parameters
    ----------
    piece
        The cells.
    codes
        ``(n_cells,)``: the sample of each.
    wanted
        For each purpose the seed of the hashes, and the share of the cells of each sample to draw, ``(n_samples,)``.

    Returns
    -------
    Arrays
        ``points P`` ``(n_drawn, n_dimensions)``, ``counts P`` and ``codes P`` ``(n_drawn,)`` for purpose P.
    """
    drawn: dict[str, list[npt.NDArray[Any]]] = {}
    for where, block, points in piece.blocks():
        for purpose, (seed, shares) in enumerate(wanted):
            rows, counts = drawn_rows(block, codes[where], seed, shares)
            for part, values in (("points", points[rows]), ("counts", counts), ("codes", codes[where][rows])):
                drawn.setdefault(f"{part} {purpose}", []).append(values)
    return {name: np.concatenate(parts) for name, parts in drawn.items()}


def drawn_rows(block: Block, codes: Int32, seed: int, shares: Float64) -> tuple[Intp, Int64]:
    """Return rows of different cells that are drawn, and how many equal ones of their sample there are of each.

    A cell is drawn if its hash, as a share of the largest, is below the share of its sample; 1 for all.
    """
    hashes, own = cell_hashes(block, codes, seed), shares[codes]
    drawn = np.flatnonzero((hashes < own * 2.0**64) | (own >= 1))
    _, first, counts = np.unique(hashes[drawn], return_index=True, return_counts=True)
    return drawn[first], counts


def shares_by_sample(cohort: Cohort, rng: np.random.Generator) -> Float64:
    """Return the share of each sample to draw for the agreement, as `landmark_agreement` does: as many of each."""
    samples, most = samples_to_draw(cohort.sizes, AGREEMENT_POINTS, rng)
    shares = np.zeros(len(cohort.names))
    shares[samples] = np.minimum(1.0, most / cohort.sizes[samples])
    return shares


def find_centers(drawn: CellsDrawn, budget: Budget, stages: Stages, *, seed: int, n_threads: int) -> Float64:
    """Return the centers of k-means on the cells drawn, ``(n_landmarks, n_dimensions)``."""

    def make() -> Arrays:
        rng = np.random.default_rng([seed, FOR_CENTERS])
        return {"centers": k_means(drawn.points, drawn.copies, budget.n_landmarks, ITERATIONS, rng, n_threads)[0]}

    return stages.once("find landmarks", make)["centers"]


# --- counting ---


@final
@dataclass(frozen=True, eq=False)
class CellCounts:
    """Landmarks that have cells, and how many cells of each sample each has.

    Attributes
    ----------
    landmarks
        That have cells.
    counts
        ``(n_samples, n_landmarks)``.
    typed
        ``(n_samples * n_types, n_landmarks)``: the same by cell type, those of a sample one below the other; None if
        types are not counted apart.
    """

    landmarks: Landmarks
    counts: sp.csr_array
    typed: sp.csr_array | None = None

    def by_type(self, annotation: Annotation, kept: Intp) -> tuple[Annotation, CellMasses]:
        """Return all cells of one type at one landmark as a group of cells, for the samples that are kept."""
        assert self.typed is not None
        n_types = len(annotation.types)
        entries = sp.coo_array(self.typed)
        samples, types = np.divmod(entries.row.astype(np.int64), n_types)
        place = np.full(self.counts.shape[0], -1)
        place[kept] = np.arange(len(kept))
        inside = place[samples] >= 0
        samples, types, counts = place[samples[inside]], types[inside], entries.data[inside]
        keys, group = np.unique(entries.col[inside].astype(np.int64) * n_types + types, return_inverse=True)
        masses = sp.csr_array((counts / self.counts.sum(axis=1)[kept][samples], (samples, group)))
        totals = np.bincount(group, weights=counts).astype(np.int64)
        nodes, codes = np.divmod(keys, n_types)
        return annotation._replace(codes=codes.astype(np.int32)), CellMasses(masses, nodes, totals)


def count_cells(
    centers: Float64,
    drawn: CellsDrawn,
    cohort: Cohort,
    budget: Budget,
    stages: Stages,
    n_threads: int,
    types: Int32 | None = None,
) -> CellCounts:
    """Give every cell to its nearest landmark and count by sample; landmarks without cells are left out.

    Parameters
    ----------
    centers
        ``(n_landmarks, n_dimensions)``.
    drawn
        Cells that tell how far cells are from landmarks.
    cohort, budget, stages, n_threads
        What, how and where.
    types
        ``(n_cells,)``: the type of each cell, if types are to be counted apart in the same pass.
    """
    shape = (len(cohort.names) * budget.n_types, len(centers))
    typed, squares = sp.csr_array(shape, dtype=np.int64), {}

    def fold(number: int, result: Arrays) -> None:
        nonlocal typed
        rows, columns = np.divmod(result["keys"], len(centers))
        offsets = np.searchsorted(rows, np.arange(shape[0] + 1))
        typed = typed + sp.csr_array((result["counts"], columns, offsets), shape=shape)
        squares[number] = float(result["squares"][0])

    def task(start: int, stop: int) -> Callable[[CenterSearch], Arrays]:
        codes = cohort.codes[start:stop]
        if types is not None:
            codes = codes.astype(np.int64) * budget.n_types + types[start:stop]
        return partial(count_piece, piece=Piece.of(cohort, start, stop, budget.block_rows), codes=codes)

    tasks = {number: task(*span) for number, span in enumerate(budget.pieces)}
    stages.each("count cells", tasks, budget.weights, fold, CenterSearch.for_many(centers, cohort.n_cells))
    counts = typed if types is None else _over_types(typed, budget.n_types)
    per_landmark = np.asarray(counts.sum(axis=0)).ravel()
    kept = np.flatnonzero(per_landmark)
    probe = drawn.points[:: max(1, len(drawn.points) // PROBE)]
    how = {
        "n_points": cohort.n_cells,
        "n_looked_at": int(drawn.copies.sum()),
        "n_iterations": ITERATIONS,
        "n_dropped": len(centers) - kept.size,
        "distortion_of_drawn": float(CenterSearch(centers).nearest(probe, n_threads)[1].mean()),
    }
    # A sum that does not depend on the order in which pieces come.
    distortion = math.fsum(squares.values()) / cohort.n_cells
    landmarks = Landmarks(centers[kept], per_landmark[kept], distortion, how)
    return CellCounts(landmarks, counts[:, kept], None if types is None else typed[:, kept])


def count_piece(search: CenterSearch, piece: Piece, codes: Int64 | Int32) -> Arrays:
    """Return how many cells of each sample are nearest to each landmark, and the sum of their squared distances.

    Parameters
    ----------
    search
        Finds the nearest landmark.
    piece
        The cells.
    codes
        ``(n_cells,)``: the sample of each.

    Returns
    -------
    Arrays
        ``keys``, ascending, each sample * n_landmarks + landmark; ``counts`` of each; ``squares``, one number.
    """
    # Of the whole piece, so that neither depends on the blocks, which the memory decides.
    pairs, squares = np.empty(codes.size, dtype=np.int64), np.empty(codes.size)
    for where, _, points in piece.blocks():
        places, squares[where] = search.nearest(points, 1)
        np.multiply(codes[where], len(search.centers), out=pairs[where], dtype=np.int64)
        pairs[where] += places
    keys, counts = np.unique(pairs, return_counts=True)
    return {"keys": keys, "counts": counts, "squares": squares.sum(keepdims=True)}


def _over_types(typed: sp.csr_array, n_types: int) -> sp.csr_array:
    """Return counts by sample, ``(n_samples, n_landmarks)``, with columns in order as if types had not been told."""
    ones = np.ones((1, n_types), dtype=np.int64)
    same = sp.kron(sp.eye_array(typed.shape[0] // n_types, dtype=np.int64), ones, format="csr")
    counts = sp.csr_array(same @ typed)
    counts.sort_indices()
    return counts
