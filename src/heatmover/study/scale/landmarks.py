"""Approximate cells on disk by landmarks, copy text tables; only `study.scale.out_of_core` calls it.

A table of text is copied to a binary file, in which any range of cells can be read directly.
"""

from __future__ import annotations

import math
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

from heatmover._base.files import Arrays, readable
from heatmover._base.progress import Progress
from heatmover._base.storage import explained
from heatmover._base.types import Float64, FloatArray, Int32, Int64, Intp
from heatmover._base.words import counted, quoted_path
from heatmover.cohort import Cohort
from heatmover.cohort.formats.tables import DelimitedReader
from heatmover.cohort.reader import Block, Reader, spans
from heatmover.cohort.subsample import cell_hashes
from heatmover.cohort.values import Projection
from heatmover.embedding.preparation import LARGEST_EMBEDDING
from heatmover.errors import InvalidInputError, argument, in_python
from heatmover.graphs import Landmarks
from heatmover.graphs.centers import ITERATIONS, PER_LANDMARK, CenterSearch, k_means
from heatmover.graphs.distinct import distinct_points
from heatmover.study.cell_types import Annotation, CellMasses
from heatmover.study.comparison import samples_to_draw
from heatmover.study.scale.stages import UNFINISHED, Stages, Task

# Largest and smallest number of cells per task, and desired number of tasks. Each task writes one file of the
# checkpoint. If a worker dies, one task is lost: 5 to 10 s of computation with 27,000 landmarks. The size of tasks does
# not depend on memory or workers, so both may change before a run is resumed.
MOST_CELLS, LEAST_CELLS, PIECES = 2**18, 2**13, 64
# Largest and smallest number of rows in memory at a time: fewer rows are slower to read and search; more rows are not
# faster.
MOST_ROWS, LEAST_ROWS = 2**16, 2**11
# Bytes that each thread needs to search for nearest landmarks, without the points; 50 MB were measured.
SEARCH_BYTES = 64_000_000
# Number of simultaneous copies of a block in memory: values as read, points, points in float64, and differences from
# the landmarks.
BLOCK_COPIES = 5
# Number of cells on which the agreement of landmarks is measured, as in `landmark_agreement`.
AGREEMENT_POINTS = 10_000
# Largest number of scales with default settings; and bytes per edge of the graph: each edge is stored in both
# directions, and copied for the kernel, for normalization and for the recurrence.
SCALES, EDGE_BYTES = 16, 60
# Independent random streams from one seed, so that a random draw does not depend on whether another stage was resumed.
FOR_LANDMARKS, FOR_AGREEMENT, FOR_CENTERS = range(3)
# Number of drawn cells from which the mean distance to landmarks is estimated, with an error of about 1%.
PROBE = 20_000


# --- the memory budget ---


@final
@dataclass(frozen=True)
class Budget:
    """Division of a run into tasks, and the memory that the run needs.

    Attributes
    ----------
    n_landmarks, n_drawn, n_types
        Number of centers, number of cells for k-means, and number of cell types that are counted separately.
    pieces
        Range of rows that each task reads.
    block_rows
        Number of cells that a task holds in memory at a time.
    need
        Number of bytes that the most demanding stage takes.
    """

    n_landmarks: int
    n_drawn: int
    n_types: int
    pieces: list[tuple[int, int]]
    block_rows: int
    need: int

    @property
    def weights(self) -> dict[int, int]:
        """Number of cells of each task, by task number."""
        return {number: stop - start for number, (start, stop) in enumerate(self.pieces)}


def make_budget(
    cohort: Cohort, n_landmarks: int, n_neighbors: int, *, memory: int, n_workers: int, n_types: int = 1
) -> Budget:
    """Return the division of the work that fits into memory, or raise if the memory is too small.

    Parameters
    ----------
    cohort
        The cells.
    n_landmarks, n_neighbors
        Number of landmarks, and number of neighbors of each landmark in the graph.
    memory
        Memory budget in bytes.
    n_workers
        Number of tasks that one process runs at a time.
    n_types
        Number of cell types that are counted separately.
    """
    n_cells, n_samples = cohort.n_cells, len(cohort.names)
    if n_landmarks > n_cells:
        raise InvalidInputError(
            f"at least as many cells as {argument('landmarks', n_landmarks)}",
            counted(n_cells, "cell"),
            f"use fewer landmarks{in_python(', or call hm.compare without landmarks')}",
        )
    n_drawn = min(n_cells, PER_LANDMARK * n_landmarks)
    # Bytes per cell that is being processed: columns as read, copies of the point, and arrays for sorting by landmark.
    row_bytes = n_workers * (16 * len(cohort.reader.features) + 8 * cohort.n_dimensions * BLOCK_COPIES + 64)
    held = 4 * n_cells * (1 if n_types == 1 else 2)  # sample and type of each cell
    drawn = (n_drawn + AGREEMENT_POINTS) * 8 * cohort.n_dimensions
    searching = n_workers * SEARCH_BYTES
    entries = min(n_cells, n_samples * n_landmarks * n_types)  # number of nonzero entries of the histograms
    edges = n_landmarks * n_neighbors * 2 * EDGE_BYTES
    embedding = min(n_samples * n_landmarks * SCALES * 4, LARGEST_EMBEDDING)
    reading = {
        # Counting the cells of each sample and finding their rows temporarily takes nine bytes per cell.
        "draw cells": held + drawn + 9 * n_cells,
        "count cells": held + searching + 40 * entries,
    }
    others = {
        # All drawn points, the points for k-means, a copy of their columns for sums, and nearest centers with squared
        # distances.
        "find landmarks": held + 3 * drawn + 48 * n_drawn + searching,
        "compare samples": held + edges + 2 * embedding + 16 * n_samples**2 + 24 * entries,
    }
    least = {stage: need + LEAST_ROWS * row_bytes for stage, need in reading.items()} | others
    stage = max(least, key=least.__getitem__)
    if least[stage] > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {least[stage] / 1e6:,.0f} MB for {counted(n_cells, 'cell')} of "
            f"{counted(n_samples, 'sample')} and {counted(n_landmarks, 'landmark')} (stage {stage!r})",
            f"{memory / 1e6:,.0f} MB",
            "allow more, or use fewer landmarks or fewer threads",
        )
    block_rows = min(MOST_ROWS, (memory - max(reading.values())) // row_bytes)
    need = max(max(reading.values()) + block_rows * row_bytes, *others.values())
    piece_rows = min(MOST_CELLS, max(LEAST_CELLS, -(-n_cells // PIECES)))
    return Budget(n_landmarks, n_drawn, n_types, list(spans(0, n_cells, piece_rows)), block_rows, need)


# --- reading ranges of cells ---


@final
@dataclass(frozen=True)
class CopyReader(Reader):
    """Reader of a binary file with the coordinates of points, row after row."""

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
    """Yield ``cohort`` itself, or a binary copy if it is a text table, so that any range of cells can be read directly.

    Parameters
    ----------
    cohort
        The cells.
    folder
        Folder for a copy that all workers can read, such as the checkpoint; None for the temporary folder of the
        system.
    progress, block_rows
        Object that receives the progress of the copy, and number of cells in memory at a time.
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
    """A range of cells that a task reads. The samples of the cells are not included, because sending them takes long.

    Attributes
    ----------
    reader, projection, path
        Reader, projection and source path of the cohort.
    start, stop
        First row of the range, and first row after it.
    block_rows
        Number of cells in memory at a time.
    """

    reader: Reader
    projection: Projection
    path: str
    start: int
    stop: int
    block_rows: int

    @classmethod
    def of(cls, cohort: Cohort, start: int, stop: int, block_rows: int) -> Piece:
        """Return a range of a cohort's cells, with a reader that is limited to this range."""
        return cls(cohort.reader.within(start, stop), cohort.projection, cohort.source.path, start, stop, block_rows)

    def blocks(self) -> Iterator[tuple[slice, Block, FloatArray]]:
        """Yield each block of cells: its rows (counted from the start of the range), its values and its points."""
        done = 0
        with readable(self.path, self.reader.kind):
            for block in self.reader.blocks(self.start, self.stop, self.block_rows):
                points = self.projection.apply(block)
                bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
                if bad.size:
                    first = self.reader.place(self.start + done + int(bad[0]))
                    raise InvalidInputError(
                        "cells without NaN or infinity",
                        f"{counted(bad.size, 'cell')} with such values (first: {first} of {quoted_path(self.path)})",
                        "the file has changed since it was read",
                    )
                yield slice(done, done + len(points)), block, points
                done += len(points)
        if done != self.stop - self.start:
            raise InvalidInputError(
                f"{counted(self.stop - self.start, 'cell')} from row {self.start} of {quoted_path(self.path)}",
                counted(done, "cell"),
                "the file has changed since it was read",
            )


# --- drawing ---


@final
@dataclass(frozen=True, eq=False)
class CellsDrawn:
    """Distinct drawn cells, sorted, with the number of copies of each cell.

    Attributes
    ----------
    points
        ``(n_drawn, n_dimensions)``: coordinates of the distinct cells.
    counts
        CSR ``(n_samples, n_drawn)``: number of copies of each cell in each sample.
    """

    points: FloatArray
    counts: sp.csr_array

    @property
    def copies(self) -> Int64:
        """Number of copies of each cell in all samples, ``(n_drawn,)``."""
        return np.asarray(self.counts.sum(axis=0), dtype=np.int64).ravel()


def draw_cells(cohort: Cohort, budget: Budget, stages: Stages, seed: int) -> tuple[CellsDrawn, CellsDrawn]:
    """Draw cells in one pass, by hashes of their values and samples, so that the order of cells does not matter.

    The pass reads and checks all values of all cells.

    Parameters
    ----------
    cohort, budget, stages
        The cells, the division into tasks, and the stages of the run.
    seed
        Seed of the draw.

    Returns
    -------
    for_landmarks, for_agreement : CellsDrawn
        Cells for k-means, and about the same number of cells from every sample to measure the agreement of landmarks.
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
    """Draw cells from a range, separately for each purpose; return their points, numbers of copies and samples.

    Parameters
    ----------
    piece
        Range of cells.
    codes
        ``(n_cells,)``: sample of each cell.
    wanted
        For each purpose: seed of the hashes, and share of the cells to draw from each sample, ``(n_samples,)``.

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
    """Return the row of each distinct drawn cell, and the number of copies of the cell within its sample.

    Hashes are scaled to [0, 1). A cell is drawn if its scaled hash is below the share for its sample; a share of 1
    draws all cells.
    """
    hashes, own = cell_hashes(block, codes, seed), shares[codes]
    drawn = np.flatnonzero((hashes < own * 2.0**64) | (own >= 1))
    _, first, counts = np.unique(hashes[drawn], return_index=True, return_counts=True)
    return drawn[first], counts


def shares_by_sample(cohort: Cohort, rng: np.random.Generator) -> Float64:
    """Return the share of cells to draw from each sample, so that all samples contribute about equally many cells."""
    samples, most = samples_to_draw(cohort.sizes, AGREEMENT_POINTS, rng)
    shares = np.zeros(len(cohort.names))
    shares[samples] = np.minimum(1.0, most / cohort.sizes[samples])
    return shares


def find_centers(drawn: CellsDrawn, budget: Budget, stages: Stages, *, seed: int, n_threads: int) -> Float64:
    """Return the centers of k-means on the drawn cells, ``(n_landmarks, n_dimensions)``."""
    stages.progress.stage("find landmarks", 1)
    result = stages.store.load("find landmarks", 0)
    if result is None:
        rng = np.random.default_rng([seed, FOR_CENTERS])
        result = {"centers": k_means(drawn.points, drawn.copies, budget.n_landmarks, ITERATIONS, rng, n_threads)[0]}
        stages.store.save("find landmarks", 0, result)
    stages.progress.advance()
    return result["centers"]


# --- counting ---


@final
@dataclass(frozen=True, eq=False)
class CellCounts:
    """Landmarks, and the number of cells of each sample at each landmark.

    Attributes
    ----------
    landmarks
        Landmarks with at least one cell.
    counts
        ``(n_samples, n_landmarks)``: number of cells.
    typed
        ``(n_samples * n_types, n_landmarks)``: number of cells by type. Each sample has one row for each type, and the
        rows are sorted by sample. None if types are not counted separately.
    """

    landmarks: Landmarks
    counts: sp.csr_array
    typed: sp.csr_array | None = None

    def by_type(self, annotation: Annotation, kept: Intp) -> tuple[Annotation, CellMasses]:
        """Combine all cells of one type at one landmark into a group; return the groups of the samples in ``kept``."""
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
    """Assign every cell to its nearest landmark, and count cells by sample; landmarks without cells are left out.

    Parameters
    ----------
    centers
        ``(n_landmarks, n_dimensions)``: centers of k-means.
    drawn
        Drawn cells, used to estimate the mean distance to landmarks.
    cohort, budget, stages, n_threads
        The cells, the division into tasks, the stages of the run, and the number of threads.
    types
        ``(n_cells,)``: type of each cell, to count types separately in the same pass.
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
    stages.each("count cells", tasks, budget.weights, fold, CenterSearch(centers))
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
    # fsum does not depend on the order in which tasks finish.
    distortion = math.fsum(squares.values()) / cohort.n_cells
    landmarks = Landmarks(centers[kept], per_landmark[kept], distortion, how)
    return CellCounts(landmarks, counts[:, kept], None if types is None else typed[:, kept])


def count_piece(search: CenterSearch, piece: Piece, codes: Int64 | Int32) -> Arrays:
    """Count the cells of each sample at their nearest landmark, and sum the squared distances to these landmarks.

    Parameters
    ----------
    search
        Search for the nearest landmark.
    piece
        Range of cells.
    codes
        ``(n_cells,)``: sample of each cell.

    Returns
    -------
    Arrays
        ``keys``: sample * n_landmarks + landmark, ascending. ``counts``: number of cells for each key. ``squares``: sum
        of the squared distances, one number.
    """
    # Collect the whole range first: block sizes depend on the memory, and results must not depend on block sizes.
    pairs, squares = np.empty(codes.size, dtype=np.int64), np.empty(codes.size)
    for where, _, points in piece.blocks():
        places, squares[where] = search.nearest(points, 1)
        np.multiply(codes[where], len(search.centers), out=pairs[where], dtype=np.int64)
        pairs[where] += places
    keys, counts = np.unique(pairs, return_counts=True)
    return {"keys": keys, "counts": counts, "squares": squares.sum(keepdims=True)}


def _over_types(typed: sp.csr_array, n_types: int) -> sp.csr_array:
    """Sum counts over types; return ``(n_samples, n_landmarks)`` with entries in the same order as without types."""
    entries = sp.coo_array(typed)
    shape = (typed.shape[0] // n_types, typed.shape[1])
    return sp.csr_array(sp.coo_array((entries.data, (entries.row // n_types, entries.col)), shape=shape))
