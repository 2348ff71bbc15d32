"""From cells on disk to landmarks and histograms over them, in passes over pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover.cohort import Cohort
from heatmover.graphs import Landmarks
from heatmover.graphs.assignment import CenterSearch
from heatmover.graphs.kmeans import ITERATIONS, k_means
from heatmover.landmarking import LEAST_PER_SAMPLE, _quota
from heatmover.scale._fixed import FixedPoint
from heatmover.scale._plan import LOSS_POINTS, Plan
from heatmover.scale._stages import Stages
from heatmover.scale._tally import Tally
from heatmover.scale._tasks import Arrays, Cells, Piece, count_cells, pick_rows, sum_cells

__all__ = ["Draw", "Histogrammed", "count", "draw", "find_centers"]

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Points = npt.NDArray[np.floating[Any]]

# Independent streams of one seed, so that a stage's draw does not depend on whether another was resumed.
FOR_LANDMARKS, FOR_LOSS, FOR_CENTERS = range(3)
# Cells of the draw that tell how far they are from their landmarks; the mean is then known to some 1 %.
PROBE = 20_000
# A cell may be this much farther out than those drawn before its share in sums is cut.
BEYOND = 4.0


@final
@dataclass(frozen=True, eq=False)
class Draw:
    """Cells drawn for k-means, ``(n_drawn, n_dimensions)``, and for the loss, with the sample of each of the latter."""

    points: Points
    loss_points: Points
    loss_codes: npt.NDArray[np.int32]


@final
@dataclass(frozen=True, eq=False)
class Histogrammed:
    """Landmarks that have cells, and how many cells of each sample each has, ``(n_samples, n_landmarks)``."""

    landmarks: Landmarks
    counts: sp.csr_array


def draw(cohort: Cohort, plan: Plan, stages: Stages, seed: int) -> Draw:
    """Draw cells by their positions, which depend on the seed alone, and read them in one pass.

    Parameters
    ----------
    cohort, plan, stages
        What, how and where.
    seed
        Of the draw.
    """
    positions = draw_positions(plan.n_cells, plan.n_drawn, np.random.default_rng([seed, FOR_LANDMARKS]))
    judged = draw_by_sample(cohort, np.random.default_rng([seed, FOR_LOSS]))
    wanted = np.union1d(positions, judged)
    rows: list[Points] = []

    def task(start: int, stop: int) -> Callable[[Any], Arrays]:
        first, last = np.searchsorted(wanted, [start, stop])
        piece = Piece(Cells.of(cohort), start, stop, plan.block_rows)
        return partial(pick_rows, piece=piece, positions=wanted[first:last])

    def fold(number: int, result: Arrays) -> None:
        found = result["rows"]
        if not rows:
            rows.append(np.empty((wanted.size, plan.n_dimensions), dtype=found.dtype))
        first = int(np.searchsorted(wanted, plan.pieces[number][0]))
        rows[0][first : first + len(found)] = found

    holding = np.unique(np.searchsorted([stop for _, stop in plan.pieces], wanted, side="right")).tolist()
    tasks = {number: task(*plan.pieces[number]) for number in holding}
    stages.each("draw cells", tasks, _cells(plan), fold)
    place = np.searchsorted(wanted, judged)
    chosen = rows[0] if positions.size == wanted.size else rows[0][np.searchsorted(wanted, positions)]
    return Draw(chosen, rows[0][place], cohort.codes[judged])


def draw_positions(n_cells: int, count: int, rng: np.random.Generator) -> Int64:
    """Return distinct positions, ascending, in memory of their number and not of the number of cells."""
    if 2 * count >= n_cells:
        return np.sort(rng.permutation(n_cells)[:count])
    found = np.empty(0, dtype=np.int64)
    while found.size < count:
        found = np.union1d(found, rng.integers(0, n_cells, size=count - found.size))
    return found


def draw_by_sample(cohort: Cohort, rng: np.random.Generator) -> Int64:
    """Return positions of as many cells of every sample, ascending; of too many samples some, as `landmark_loss`."""
    samples = np.arange(len(cohort.names))
    most = max(LOSS_POINTS // LEAST_PER_SAMPLE, 3)
    if samples.size > most:
        samples = np.sort(rng.choice(samples, most, replace=False))
    quota = _quota(cohort.sizes[samples], LOSS_POINTS)
    chosen = []
    for sample in samples:
        ranks = draw_positions(int(cohort.sizes[sample]), min(quota, int(cohort.sizes[sample])), rng)
        chosen.append(np.flatnonzero(cohort.codes == sample)[ranks])
    return np.sort(np.concatenate(chosen))


def find_centers(
    drawn: Points, cohort: Cohort, plan: Plan, stages: Stages, *, passes: int, seed: int, n_threads: int
) -> Float64:
    """Return the centres of k-means on the cells drawn, moved ``passes`` times more by all cells."""

    def make() -> Arrays:
        rng = np.random.default_rng([seed, FOR_CENTERS])
        return {"centers": k_means(drawn, plan.n_landmarks, ITERATIONS, rng, n_threads)[0]}

    centers = stages.once("find landmarks", make)["centers"]
    fixed = FixedPoint(BEYOND * _extent(drawn), plan.n_cells)
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
        number: partial(sum_cells, piece=Piece(Cells.of(cohort), *span, plan.block_rows), fixed=fixed)
        for number, span in enumerate(plan.pieces)
    }
    stages.each(name, tasks, _cells(plan), fold, partial(CenterSearch, centers))
    means = fixed.decode(sums) / np.maximum(sizes, 1)[:, None]
    return np.where(sizes[:, None] > 0, means, centers)


def count(centers: Float64, drawn: Points, cohort: Cohort, plan: Plan, stages: Stages, n_threads: int) -> Histogrammed:
    """Give every cell to its nearest landmark and count by sample; landmarks without cells are left out."""
    tally, squares = Tally(), [0]
    fixed = FixedPoint(plan.n_dimensions * (2 * BEYOND * _extent(drawn)) ** 2, plan.n_cells)

    def fold(_: int, result: Arrays) -> None:
        tally.add(result["keys"], result["counts"])
        squares[0] += int(result["squares"][0])

    def task(start: int, stop: int) -> Callable[[Any], Arrays]:
        piece = Piece(Cells.of(cohort), start, stop, plan.block_rows)
        return partial(count_cells, piece=piece, codes=cohort.codes[start:stop], fixed=fixed)

    tasks = {number: task(*span) for number, span in enumerate(plan.pieces)}
    stages.each("count cells", tasks, _cells(plan), fold, partial(CenterSearch, centers))
    counts = tally.matrix(plan.n_samples, len(centers))
    per_landmark = np.asarray(counts.sum(axis=0)).ravel()
    kept = np.flatnonzero(per_landmark)
    probe = drawn[:: max(1, len(drawn) // PROBE)]
    how = {
        "n_points": plan.n_cells,
        "n_looked_at": len(drawn),
        "n_iterations": ITERATIONS,
        "n_dropped": len(centers) - kept.size,
        "distortion_of_drawn": float(CenterSearch(centers).nearest(probe, n_threads)[1].mean()),
    }
    distortion = float(fixed.decode(squares[0])) / plan.n_cells
    return Histogrammed(Landmarks(centers[kept], per_landmark[kept], distortion, how), counts[:, kept])


def _extent(points: Points) -> float:
    return max(float(points.max()), -float(points.min()))


def _cells(plan: Plan) -> dict[int, int]:
    return {number: stop - start for number, (start, stop) in enumerate(plan.pieces)}
