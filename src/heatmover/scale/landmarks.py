"""Landmarks of cells on disk: cells drawn, centres found, every cell counted at its nearest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._typing import Float64, FloatArray, Int32, Int64, Intp
from heatmover.analysis.cell_types import Annotation, CellMasses
from heatmover.analysis.landmarking import LEAST_PER_SAMPLE, quota
from heatmover.cohort import Cohort
from heatmover.graphs import Landmarks
from heatmover.graphs.distinct import distinct_points
from heatmover.graphs.search.assign import CenterSearch
from heatmover.graphs.search.kmeans import ITERATIONS, k_means
from heatmover.graphs.search.lloyd import means_or_same
from heatmover.scale.checkpoint import Arrays
from heatmover.scale.chunks import (
    AGREEMENT_POINTS,
    FixedPoint,
    Piece,
    Plan,
    Wanted,
    count_cells,
    draw_cells,
    sum_cells,
)
from heatmover.scale.execute import Stages

__all__ = ["DRAWING", "Draw", "Drawn", "Histogrammed", "Tally", "count", "draw", "find_centers", "gather"]

# Name of the stage that draws, also in the checkpoint.
DRAWING = "draw cells"

# Independent streams of one seed, so that a stage's draw does not depend on whether another was resumed.
FOR_LANDMARKS, FOR_AGREEMENT, FOR_CENTERS = range(3)
STREAMS = {"landmarks": FOR_LANDMARKS, "agreement": FOR_AGREEMENT}
# Cells of the draw that tell how far they are from their landmarks; the mean is then known to some 1 %.
PROBE = 20_000
# A cell may be this much farther out than those drawn before its share in sums is cut.
BEYOND = 4.0


@final
class Tally:
    """Adds sparse counts; holds each pair of sample and landmark at most about twice.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add(np.array([0, 5]), np.array([1, 2]))
    >>> tally.add(np.array([5]), np.array([3]))
    >>> tally.matrix(2, 3).toarray()
    array([[1, 0, 0],
           [0, 0, 5]])
    """

    def __init__(self) -> None:
        self._keys, self._counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Int64, Int64]] = []
        self._n_waiting = 0

    def add(self, keys: Int64, counts: Int64) -> None:
        """Add counts ``(n,)`` of keys, each sample * n_landmarks + landmark."""
        self._waiting.append((keys, counts))
        self._n_waiting += keys.size
        # Merged when as many have come as there are: each is then sorted a few times, not once per piece.
        if self._n_waiting >= self._keys.size:
            self._merge()

    def matrix(self, n_samples: int, n_landmarks: int) -> sp.csr_array:
        """Return the counts, int64 ``(n_samples, n_landmarks)``."""
        self._merge()
        rows, columns = np.divmod(self._keys, n_landmarks)
        offsets = np.searchsorted(rows, np.arange(n_samples + 1))
        return sp.csr_array((self._counts, columns, offsets), shape=(n_samples, n_landmarks))

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        self._keys, back = np.unique(keys, return_inverse=True)
        self._counts = np.zeros(self._keys.size, dtype=np.int64)
        np.add.at(self._counts, back, counts)
        self._waiting, self._n_waiting = [], 0


@final
@dataclass(frozen=True, eq=False)
class Drawn:
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


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """Cells drawn for k-means, and as many of every sample for the agreement."""

    landmarks: Drawn
    agreement: Drawn


@final
@dataclass(frozen=True, eq=False)
class Histogrammed:
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


def draw(cohort: Cohort, plan: Plan, stages: Stages, seed: int) -> dict[int, Arrays]:
    """Draw cells by hashes of their values and samples, so that their order does not matter, in one pass.

    It looks at every value of every cell.

    Parameters
    ----------
    cohort, plan, stages
        What, how and where.
    seed
        Of the draw.

    Returns
    -------
    dict
        The cells drawn from each piece; `gather` puts them together.
    """
    everyone = np.full(len(cohort.names), plan.n_drawn / plan.n_cells)
    streams = {name: int(np.random.default_rng([seed, stream]).integers(2**62)) for name, stream in STREAMS.items()}
    wanted = {
        "landmarks": Wanted(streams["landmarks"], everyone),
        "agreement": Wanted(
            streams["agreement"], shares_by_sample(cohort, np.random.default_rng([seed, FOR_AGREEMENT]))
        ),
    }
    found: dict[int, Arrays] = {}

    def task(start: int, stop: int) -> Callable[[Any], Arrays]:
        piece = Piece.of(cohort, start, stop, plan.block_rows)
        return partial(draw_cells, piece=piece, codes=cohort.codes[start:stop], wanted=wanted)

    tasks = {number: task(*span) for number, span in enumerate(plan.pieces)}
    stages.each(DRAWING, tasks, _cells(plan), found.__setitem__)
    return found


def gather(found: dict[int, Arrays], n_samples: int) -> Draw:
    """Return the cells drawn from all pieces, of which nothing is left."""
    return Draw(*(_put_together(name, found, n_samples) for name in ("landmarks", "agreement")))


def _put_together(name: str, found: dict[int, Arrays], n_samples: int) -> Drawn:
    """Return the different cells that the pieces found, whatever their order."""
    points, counts, codes = (
        np.concatenate([result.pop(f"{name} {part}") for result in found.values()])
        for part in ("points", "counts", "codes")
    )
    nodes, place = distinct_points(points)
    matrix = sp.coo_array((counts, (codes, place)), shape=(n_samples, len(nodes)))
    return Drawn(nodes, sp.csr_array(matrix))


def shares_by_sample(cohort: Cohort, rng: np.random.Generator) -> Float64:
    """Return the share of each sample to draw for the agreement, as `landmark_agreement` does: as many of each."""
    samples = np.arange(len(cohort.names))
    most = max(AGREEMENT_POINTS // LEAST_PER_SAMPLE, 3)
    if samples.size > most:
        samples = np.sort(rng.choice(samples, most, replace=False))
    most = quota(cohort.sizes[samples], AGREEMENT_POINTS)
    shares = np.zeros(len(cohort.names))
    shares[samples] = np.minimum(1.0, most / cohort.sizes[samples])
    return shares


def find_centers(
    drawn: Drawn, cohort: Cohort, plan: Plan, stages: Stages, *, passes: int, seed: int, n_threads: int
) -> Float64:
    """Return the centres of k-means on the cells drawn, moved ``passes`` times more by all cells."""

    def make() -> Arrays:
        rng = np.random.default_rng([seed, FOR_CENTERS])
        return {"centers": k_means(drawn.points, drawn.copies, plan.n_landmarks, ITERATIONS, rng, n_threads)[0]}

    centers = stages.once("find landmarks", make)["centers"]
    fixed = FixedPoint(BEYOND * _extent(drawn.points), plan.n_cells)
    for number in range(1, passes + 1):
        centers = _move(centers, cohort, plan, stages, fixed, f"move landmarks {number}")
    return centers


def _move(centers: Float64, cohort: Cohort, plan: Plan, stages: Stages, fixed: FixedPoint, name: str) -> Float64:
    """Return the mean of all cells nearest to each centre; one without cells stays."""
    sizes, sums = np.zeros(len(centers), dtype=np.int64), np.zeros(centers.shape, dtype=np.int64)

    def fold(_: int, result: Arrays) -> None:
        np.add(sizes, result["sizes"], out=sizes)
        np.add(sums, result["sums"], out=sums)

    tasks = {
        number: partial(sum_cells, piece=Piece.of(cohort, *span, plan.block_rows), fixed=fixed)
        for number, span in enumerate(plan.pieces)
    }
    stages.each(name, tasks, _cells(plan), fold, partial(CenterSearch.for_many, centers, plan.n_cells))
    return means_or_same(fixed.decode(sums), sizes, centers)


def count(
    centers: Float64,
    drawn: Drawn,
    cohort: Cohort,
    plan: Plan,
    stages: Stages,
    n_threads: int,
    types: Int32 | None = None,
) -> Histogrammed:
    """Give every cell to its nearest landmark and count by sample; landmarks without cells are left out.

    Parameters
    ----------
    centers
        ``(n_landmarks, n_dimensions)``.
    drawn
        Cells that tell how far cells are from landmarks.
    cohort, plan, stages, n_threads
        What, how and where.
    types
        ``(n_cells,)``: the type of each cell, if types are to be counted apart in the same pass.
    """
    tally, squares = Tally(), [0]
    fixed = FixedPoint(plan.n_dimensions * (2 * BEYOND * _extent(drawn.points)) ** 2, plan.n_cells)

    def fold(_: int, result: Arrays) -> None:
        tally.add(result["keys"], result["counts"])
        squares[0] += int(result["squares"][0])

    def task(start: int, stop: int) -> Callable[[Any], Arrays]:
        piece = Piece.of(cohort, start, stop, plan.block_rows)
        codes = cohort.codes[start:stop]
        if types is not None:
            codes = codes.astype(np.int64) * plan.n_types + types[start:stop]
        return partial(count_cells, piece=piece, codes=codes, fixed=fixed)

    tasks = {number: task(*span) for number, span in enumerate(plan.pieces)}
    stages.each("count cells", tasks, _cells(plan), fold, partial(CenterSearch.for_many, centers, plan.n_cells))
    typed = tally.matrix(plan.n_samples * plan.n_types, len(centers))
    counts = typed if types is None else _over_types(typed, plan.n_types)
    per_landmark = np.asarray(counts.sum(axis=0)).ravel()
    kept = np.flatnonzero(per_landmark)
    probe = drawn.points[:: max(1, len(drawn.points) // PROBE)]
    how = {
        "n_points": plan.n_cells,
        "n_looked_at": int(drawn.copies.sum()),
        "n_iterations": ITERATIONS,
        "n_dropped": len(centers) - kept.size,
        "distortion_of_drawn": float(CenterSearch(centers).nearest(probe, n_threads)[1].mean()),
    }
    distortion = float(fixed.decode(squares[0])) / plan.n_cells
    found = Landmarks(centers[kept], per_landmark[kept], distortion, how)
    return Histogrammed(found, counts[:, kept], None if types is None else typed[:, kept])


def _over_types(typed: sp.csr_array, n_types: int) -> sp.csr_array:
    """Return counts by sample, ``(n_samples, n_landmarks)``, with columns in order as if types had not been told."""
    rows = np.arange(typed.shape[0])
    ones = np.ones(rows.size, dtype=np.int64)
    counts = sp.csr_array(
        sp.csr_array((ones, (rows // n_types, rows)), shape=(rows.size // n_types, rows.size)) @ typed
    )
    counts.sort_indices()
    return counts


def _extent(points: FloatArray) -> float:
    return max(float(points.max()), -float(points.min()))


def _cells(plan: Plan) -> dict[int, int]:
    return {number: stop - start for number, (start, stop) in enumerate(plan.pieces)}
