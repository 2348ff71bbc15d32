"""Coverage: whether a reference knows the cells of a new sample.

Each cell has a p-value: its rank, by the distance from the reference, among the reference's own cells, each compared
with other samples (`heatmover.atlas.strangeness`). A cell is far if its p-value is at most 1 %.

The evidence in a sample's cells has a chance, by the law of the reference's own samples. So has the evidence in its
local means (`heatmover.atlas.strangeness`), if it has enough cells for them: a new population that hides in noise shows
there. A sample's chance is twice the smaller of the two, for either could be small (Bonferroni). It must also rank
among the lowest of the reference's own, which holds false alarms at 5 % for any law, or at 1 in n + 1 with n < 19
samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, FloatArray, Int64, IntArray
from heatmover._validation import check_threads
from heatmover.analysis.landmarking import quota
from heatmover.atlas.strangeness import (
    AROUND,
    FAR,
    LEAST_SPREAD,
    Law,
    LocalMeans,
    beyond,
    hold_out_means,
    hold_out_points,
    left_out,
    p_values,
    scores_of,
)
from heatmover.cohort.draw import cell_hashes
from heatmover.errors import InvalidInputError
from heatmover.graphs.centers import CenterSearch
from heatmover.graphs.distinct import distinct_points
from heatmover.storage import Record

__all__ = ["LEVEL", "RANKED", "SUPPORT", "CellDraw", "Coverage", "Support", "find_support", "hold_out", "support_bytes"]

# Cells of the reference that are kept to compare with: 20,000 of 50 dimensions are 8 MB.
SUPPORT = 20_000
# Of the graph over the support while it is made, for each neighbour that was asked for.
EDGE_BYTES = 120
# A sample is not covered if its chance is at most this, 1 % for either of the two tests, and ranks within the lowest
# RANKED of the reference's own.
LEVEL, RANKED = 0.02, 0.05
# Fewer samples do not tell how much samples vary.
FEWEST = 5


@final
@dataclass(frozen=True, eq=False)
class Coverage(ReadOnlyArrays):
    """What a reference says of the cells of some samples.

    Attributes
    ----------
    n_cells, n_far
        ``(n_samples,)``: cells, and those that are further from the reference than 99 % of its own.
    p_values
        ``(n_samples,)``: the chance of so much evidence or more in a sample like those of the reference.
    covered
        One verdict for each sample; None where the reference has too few samples to tell.
    cell_p_values
        ``(n_cells,)``: of each cell, in the order in which they came.
    expected
        The share of far cells in the reference's own samples, each left out in turn.
    evidence
        ``(n_samples,)``: the mean over all cells of log(0.05 / p), of those cells whose p-value is below 0.05.
    n_means, means_evidence
        ``(n_samples,)``: local means that were looked at, 0 for samples of too few cells, and the evidence in them.
    level
        The share of samples like those of the reference that the verdict calls not covered, at most: 0.05, or one in
        n + 1 where the reference has n < 19 samples.
    """

    n_cells: Int64
    n_far: Int64
    p_values: Float64
    covered: tuple[bool | None, ...]
    cell_p_values: Float64
    expected: float
    evidence: Float64
    n_means: Int64
    means_evidence: Float64
    level: float

    @property
    def shares(self) -> Float64:
        """``(n_samples,)``: share of far cells."""
        return np.asarray(self.n_far / self.n_cells)


@final
@dataclass(frozen=True, eq=False)
class Support(ReadOnlyArrays):
    """Cells of the reference, and how far each is from the nearest of another sample.

    Attributes
    ----------
    cells
        ``(n_support, n_dimensions)``, float64: drawn equally from all samples.
    widths
        ``(n_support,)``: the distance that is usual around each.
    scores
        Ascending: distance from other samples over the usual one, of every cell that was drawn.
    n_cells, n_far
        ``(n_samples,)``: cells of each reference sample that were drawn, and how many of them are far.
    evidence
        ``(n_samples,)``: of each reference sample.
    spread
        The variance of a cell's evidence among the cells of one sample.
    means
        The same for local means of cells; None if most samples have too few.
    """

    cells: Float64
    widths: Float64
    scores: Float64
    n_cells: Int64
    n_far: Int64
    evidence: Float64
    spread: float
    means: LocalMeans | None = None

    def judge(self, points: FloatArray, n_jobs: int | None = None) -> Float64:
        """Return a p-value for each point ``(n_points, n_dimensions)``: small where the reference has no such cells."""
        return self.judge_nearest(*self._search.nearest(points, check_threads(n_jobs)))

    def judge_nearest(self, places: Int64, squares: Float64) -> Float64:
        """Return what `judge` does of points whose nearest cells, and squared distances from them, are known."""
        return p_values(self.scores, scores_of(np.sqrt(squares), self.widths[places]))

    @cached_property
    def _search(self) -> CenterSearch:
        return CenterSearch(self.cells)

    def at(self, nodes: Float64) -> Support:
        """Return the same support with its cells in the order of ``nodes``, or itself if those are not its cells.

        Where every cell is a node, one search serves both.
        """
        places, squares = self._search.nearest(nodes, 1)
        if squares.any() or len(distinct_points(self.cells)[0]) != len(nodes):
            return self
        # Equal cells have the same surroundings.
        return replace(self, cells=nodes, widths=self.widths[places])

    def draw(self, n_samples: int) -> CellDraw | None:
        """Return what draws those cells of new samples whose local means `verdict` looks at; None if it needs none."""
        return None if self.means is None else CellDraw(n_samples, self.means.most, 0)

    def verdict(
        self,
        cell_p_values: Float64,
        codes: IntArray,
        n_samples: int,
        draw: CellDraw | None = None,
        n_jobs: int | None = None,
    ) -> Coverage:
        """Return what the p-values of cells say of the samples that ``codes`` puts them in.

        Parameters
        ----------
        cell_p_values, codes
            ``(n_cells,)``.
        n_samples
            Their number.
        draw
            From `draw`, with all cells added to it; without it local means are not looked at.
        n_jobs
            Threads.
        """
        n_cells = np.bincount(codes, minlength=n_samples).astype(np.int64)
        n_far = np.bincount(codes[cell_p_values <= FAR], minlength=n_samples).astype(np.int64)
        evidence = _evidence(cell_p_values, codes, n_cells)
        n_means, of_means = np.zeros(n_samples, dtype=np.int64), np.zeros(n_samples)
        if self.means is not None and draw is not None:
            n_means, of_means = self.means.judge(draw.by_sample(), check_threads(n_jobs))
        chances = self.chances(n_cells, evidence, n_means, of_means)
        level = max(RANKED, 1 / (self.n_cells.size + 1))
        covered: tuple[bool | None, ...] = tuple(
            bool(chance > LEVEL or rank > level) for chance, rank in zip(chances, self.ranks(chances), strict=True)
        )
        if self.n_cells.size < FEWEST:
            covered = (None,) * n_samples
        return Coverage(
            n_cells, n_far, chances, covered, cell_p_values, self.expected, evidence, n_means, of_means, level
        )

    @property
    def expected(self) -> float:
        """The share of far cells in all reference samples, each left out in turn."""
        return float(self.n_far.sum() / self.n_cells.sum())

    def chances(self, n_cells: Int64, evidence: Float64, n_means: Int64, means_evidence: Float64) -> Float64:
        """Return the chance of at least so much evidence in samples of so many cells and local means, ``(n_samples,)``.

        ``n_means`` is 0 where there are none.
        """
        of_cells = Law(self.n_cells, self.evidence, self.spread).chances(n_cells, evidence)
        if self.means is None:
            return of_cells
        smaller = np.minimum(of_cells, self.means.law.chances(n_means, means_evidence))
        return np.where(n_means > 0, np.minimum(2 * smaller, 1.0), of_cells)

    def ranks(self, chances: Float64) -> Float64:
        """Return the share of the reference's samples, itself included, with chances as low.

        Chances, not evidence: a sample of few cells has much or little of it by chance.
        """
        return np.asarray((1 + np.searchsorted(self._own, chances, side="right")) / (1 + self._own.size))

    @cached_property
    def _own(self) -> Float64:
        """The chances of the reference's own samples, ascending."""
        none = np.zeros_like(self.n_cells)
        of_means = (none, none) if self.means is None else (self.means.n_means, self.means.evidence)
        return np.sort(self.chances(self.n_cells, self.evidence, *of_means))

    def to_record(self, nodes: Float64) -> Record:
        """Return the support as a record that a store can hold, without its cells if they are the nodes themselves."""
        names = ("widths", "scores", "n_cells", "n_far", "evidence")
        arrays = {name: getattr(self, name) for name in names}
        parts = {} if self.means is None else {"means": self.means.to_record()}
        return Record(
            {"spread": self.spread}, arrays if nodes is self.cells else {"cells": self.cells, **arrays}, parts
        )

    @classmethod
    def from_record(cls, record: Record, nodes: Float64) -> Support:
        """Return the support of a record beside these nodes, or raise if it is none."""
        cells = record.floats("cells", (None, nodes.shape[1])) if "cells" in record.arrays else nodes
        scores = record.array("scores", np.float64, (None,))
        n_cells = record.array("n_cells", np.int64, (None,))
        n_far = record.array("n_far", np.int64, (n_cells.size,))
        fits = n_cells.size and n_cells.min() > 0 and n_far.min() >= 0 and np.all(n_far <= n_cells)
        evidence, spread = record.floats("evidence", (n_cells.size,)), record.number("spread")
        fits = fits and evidence.min() >= 0 and 0 < spread < np.inf
        if not fits or np.isnan(scores).any() or np.any(np.diff(scores) < 0):
            raise InvalidInputError(
                "a stored support: ascending scores, at most as many far cells as cells, evidence of at least 0 and a "
                "spread above it", "another",
            )  # fmt: skip
        means = None
        if "means" in record.parts:
            means = LocalMeans.from_record(record.part("means"), n_cells.size, nodes.shape[1])
        return cls(cells, record.floats("widths", (len(cells),)), scores, n_cells, n_far, evidence, spread, means)


@final
class CellDraw:
    """Cells of all samples, of each at most so many, from blocks of any size.

    They are drawn by hashes of their values, so that neither blocks nor the order of cells decide which.

    Parameters
    ----------
    n_samples
        Their number.
    most
        Cells of each, at most.
    seed
        Of the hashes.
    every
        Whether no sample has more, so that nothing is drawn.

    Examples
    --------
    >>> draw = CellDraw.for_support(np.array([3, 1]), seed=0)
    >>> for block, codes in [([[1.0], [2.0]], [0, 1]), ([[3.0], [4.0]], [0, 0])]:
    ...     draw.add(np.array(block), np.array(codes))
    >>> cells, own = draw.cells()
    >>> cells.ravel().tolist(), own.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 1, 0, 0])
    """

    def __init__(self, n_samples: int, most: int, seed: int, *, every: bool = False) -> None:
        self.n_samples, self.most = n_samples, most
        self._seed, self._all = seed, every
        self._points: list[Float64] = []
        self._codes, self._hashes = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
        # The largest hash that a sample still has room for.
        self._limits = np.full(n_samples, 2**64 - 1, dtype=np.uint64)

    @classmethod
    def for_support(cls, sizes: Int64, seed: int) -> CellDraw:
        """Draw from samples of these sizes, of each at most its share of the support."""
        most = quota(sizes, SUPPORT)
        return cls(sizes.size, most, seed, every=bool(sizes.max() <= most))

    def add(self, values: Any, codes: IntArray, project: Callable[[Any], FloatArray] = np.asarray) -> None:
        """Take in a block of cells.

        Parameters
        ----------
        values
            ``(n_rows, n_columns)``, dense or CSR: as they were read.
        codes
            ``(n_rows,)``: the sample of each.
        project
            Makes points of the values of the cells that are drawn.
        """
        if self._all:
            hashes, rows = np.zeros(codes.size, dtype=np.uint64), np.arange(codes.size)
        else:
            hashes = cell_hashes(values, np.asarray(codes, dtype=np.int32), self._seed)
            rows = np.flatnonzero(hashes <= self._limits[codes])
        if not rows.size:
            return
        self._points.append(np.asarray(project(values[rows]), dtype=np.float64))
        self._codes, self._hashes = np.r_[self._codes, codes[rows]], np.r_[self._hashes, hashes[rows]]
        # Rarely, so that each cell is sorted a few times and not once per block.
        if not self._all and self._codes.size > 2 * max(SUPPORT, self.most * self.n_samples):
            self._prune()

    def cells(self) -> tuple[Float64, Int64]:
        """Return the cells drawn, ``(n_drawn, n_dimensions)``, in the order in which they came, and their samples."""
        if not self._all:
            self._prune()
        return np.concatenate(self._points), self._codes

    def by_sample(self) -> list[Float64]:
        """Return the cells drawn of each sample, ``(n_drawn, n_dimensions)`` each."""
        cells, codes = self.cells()
        ends = np.cumsum(np.bincount(codes, minlength=self.n_samples))
        return np.split(cells[np.argsort(codes, kind="stable")], ends[:-1])

    def _prune(self) -> None:
        """Keep of each sample the cells with the smallest hashes; of equal ones, which are copies, the first."""
        order = np.lexsort((self._hashes, self._codes))
        starts = np.searchsorted(self._codes[order], np.arange(self.n_samples))
        rank = np.arange(order.size) - starts[self._codes[order]]
        last = order[rank == self.most - 1]
        self._limits[self._codes[last]] = self._hashes[last]
        kept = np.sort(order[rank < self.most])
        self._points = [np.concatenate(self._points)[kept]]
        self._codes, self._hashes = self._codes[kept], self._hashes[kept]


def support_bytes(n_cells: int, n_dimensions: int) -> int:
    """Return about how much memory it takes to find the support of so many cells.

    Four copies of the cells drawn, twice as many while they are drawn, and the graph around each; beside the cells
    their local means at all sizes, three to four times as many, twice while they are put together.
    """
    drawn = min(n_cells, SUPPORT)
    return drawn * (2 * 8 * 8 * n_dimensions + AROUND * EDGE_BYTES)


def find_support(
    points: FloatArray, codes: IntArray, n_samples: int, rng: np.random.Generator, n_jobs: int | None = None
) -> Support | None:
    """Draw cells from all samples and hold each sample out in turn; None if there is only one sample.

    Parameters
    ----------
    points
        ``(n_cells, n_dimensions)``.
    codes
        ``(n_cells,)``: the sample of each.
    n_samples
        Their number; each has a cell.
    rng
        Draws the cells.
    n_jobs
        Threads.
    """
    draw = CellDraw.for_support(np.bincount(codes, minlength=n_samples), int(rng.integers(2**62)))
    draw.add(points, codes)
    return hold_out(*draw.cells(), n_samples, n_jobs)


def hold_out(cells: Float64, own: IntArray, n_samples: int, n_jobs: int | None = None) -> Support | None:
    """Hold each sample out in turn, of the cells of a `CellDraw`; None if there is only one sample."""
    if n_samples < 2:
        return None
    threads = check_threads(n_jobs)
    held = hold_out_points(cells, own, np.ones(len(cells), dtype=bool), n_samples, threads)
    chances = left_out(held.scores, own, n_samples)
    n_cells, n_far = (np.bincount(part, minlength=n_samples).astype(np.int64) for part in (own, own[chances <= FAR]))
    evidence = _evidence(chances, own, n_cells)
    spread = _spread(chances, own, n_cells, evidence)
    means = hold_out_means(cells, own, n_samples, threads)
    return Support(cells, held.widths, np.sort(held.scores), n_cells, n_far, evidence, spread, means)


def _evidence(cell_p_values: Float64, codes: IntArray, n_cells: Int64) -> Float64:
    """Return the truncated product of the p-values of each sample's cells, ``(n_samples,)``; see `Coverage`."""
    sums = np.bincount(codes, weights=beyond(cell_p_values), minlength=n_cells.size)
    return np.asarray(sums / np.maximum(n_cells, 1))


def _spread(cell_p_values: Float64, codes: IntArray, n_cells: Int64, evidence: Float64) -> float:
    """Return the variance of a cell's evidence within samples.

    At least what p-values that are even between 0 and 1 have: with few cells none may be below the threshold.
    """
    squares = float(np.sum((beyond(cell_p_values) - evidence[codes]) ** 2))
    return max(squares / max(int(n_cells.sum()) - n_cells.size, 1), LEAST_SPREAD)
