"""Coverage: whether a reference knows the cells of a new sample.

Each cell of the reference is compared with the cells of all OTHER samples: how far it is from the nearest, in units of
what is usual around there. Held out like this it stands where a new sample's cell stands, so that the rank of a new
cell among them is a p-value (conformal), whatever the distribution. A cell is far if its p-value is at most 1 %.

A sample's evidence is the truncated product of its cells' p-values (Zaykin et al. 2002): the mean over its cells of
log(5 % / p), of those cells whose p is below 5 %. It counts cells as the share of far ones does, and a cell the more
the further it is.

Samples vary, in the reference too, by more than chance. A gamma law says how much evidence a sample of so many cells
may have: its mean and the variance between samples are those of the reference's own samples, each left out in turn,
and the variance from the cells falls with their number. Beside it the chance by this law must rank among the lowest
of the reference's own, which holds false alarms at 5 % for any law, or at 1 in n + 1 with n < 19 samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, FloatArray, Int64, IntArray, Intp
from heatmover._validation import check_threads
from heatmover.analysis.landmarking import quota
from heatmover.cohort.hashes import cell_hashes
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.distinct import distinct_points
from heatmover.graphs.search.assign import CenterSearch
from heatmover.storage import Record

__all__ = ["RANKED", "SUPPORT", "CellDraw", "Coverage", "Support", "find_support", "hold_out", "support_bytes"]

# Cells of the reference that are kept to compare with: 20,000 of 50 dimensions are 8 MB.
SUPPORT = 20_000
# Cells around a cell that tell what distance is usual there.
AROUND = 30
# Of the graph over the support while it is made, for each neighbour that was asked for.
EDGE_BYTES = 120
# A cell is far at this p-value. Simulated populations that are absent from the reference (benchmarks/covered.py): 2 %
# tells samples apart about as well, 5 % worse, because what is far by chance hides them.
FAR = 0.01
# Cells with larger p-values are no evidence. All of them: samples that are strange in every cell by a little, as those
# of other patients are, hide a tenth that is strange by more. At 10 % the AUROC on melanoma samples is lower by 0.01;
# that of the plain share of far cells is lower by 0.02 and, for populations near the reference, by 0.01.
TRUNCATED = 0.05
# A sample is not covered if so much evidence, or more, has at most this chance, and that ranks within the lowest RANKED
# of the reference's own.
LEVEL, RANKED = 0.01, 0.05
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
    """

    cells: Float64
    widths: Float64
    scores: Float64
    n_cells: Int64
    n_far: Int64
    evidence: Float64
    spread: float

    def judge(self, points: FloatArray, n_jobs: int | None = None) -> Float64:
        """Return a p-value for each point ``(n_points, n_dimensions)``: small where the reference has no such cells."""
        return self.judge_nearest(*self._search.nearest(points, check_threads(n_jobs)))

    def judge_nearest(self, places: Int64, squares: Float64) -> Float64:
        """Return what `judge` does of points whose nearest cells, and squared distances from them, are known."""
        return self._p_values(_scores(np.sqrt(squares), self.widths[places]))

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

    def verdict(self, cell_p_values: Float64, codes: Any, n_samples: int) -> Coverage:
        """Return what the p-values of cells say of the samples that ``codes`` puts them in."""
        n_cells = np.bincount(codes, minlength=n_samples).astype(np.int64)
        n_far = np.bincount(codes[cell_p_values <= FAR], minlength=n_samples).astype(np.int64)
        evidence = _evidence(cell_p_values, codes, n_cells)
        chances = self.chances(n_cells, evidence)
        level = max(RANKED, 1 / (self.n_cells.size + 1))
        covered: tuple[bool | None, ...] = tuple(
            bool(chance > LEVEL or rank > level) for chance, rank in zip(chances, self.ranks(chances), strict=True)
        )
        if self.n_cells.size < FEWEST:
            covered = (None,) * n_samples
        return Coverage(n_cells, n_far, chances, covered, cell_p_values, self.expected, evidence, level)

    @property
    def expected(self) -> float:
        """The share of far cells in all reference samples, each left out in turn."""
        return float(self.n_far.sum() / self.n_cells.sum())

    def chances(self, n_cells: Int64, evidence: Float64) -> Float64:
        """Return the chance of at least so much evidence in samples of so many cells, ``(n_samples,)``."""
        from scipy.special import gammaincc

        mean, between = self._law
        variance = self.spread / np.maximum(n_cells, 1) + between
        # A gamma law of this mean and variance: shape mean^2 / variance, scale variance / mean.
        return np.asarray(gammaincc(mean**2 / variance, evidence * mean / variance), dtype=np.float64)

    def ranks(self, chances: Float64) -> Float64:
        """Return the share of the reference's samples, itself included, with chances as low.

        Chances, not evidence: a sample of few cells has much or little of it by chance.
        """
        own = np.sort(self.chances(self.n_cells, self.evidence))
        return np.asarray((1 + np.searchsorted(own, chances, side="right")) / (1 + own.size))

    @cached_property
    def _law(self) -> tuple[float, float]:
        """The mean evidence of a sample, and its variance between samples beyond that from their cells."""
        count = self.n_cells.size
        weights = self.n_cells / self.n_cells.sum()
        # At least what one cell of all, at the threshold of far cells, would be: nothing at all forbids nothing.
        mean = max(float(weights @ self.evidence), float(np.log(TRUNCATED / FAR)) / float(self.n_cells.sum()))
        beyond = float(np.mean((self.evidence - mean) ** 2 * count / max(count - 1, 1) - self.spread / self.n_cells))
        # A new sample varies around a mean that was itself estimated.
        return mean, max(beyond, 0.0) * (1 + 1 / count) + self.spread / float(self.n_cells.sum())

    def _p_values(self, scores: Float64) -> Float64:
        above = self.scores.size - np.searchsorted(self.scores, scores, side="left")
        return np.asarray((1 + above) / (1 + self.scores.size))

    def to_record(self, nodes: Float64) -> Record:
        """Return the support as a record that a store can hold, without its cells if they are the nodes themselves."""
        names = ("widths", "scores", "n_cells", "n_far", "evidence")
        arrays = {name: getattr(self, name) for name in names}
        return Record({"spread": self.spread}, arrays if nodes is self.cells else {"cells": self.cells, **arrays})

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
        return cls(cells, record.floats("widths", (len(cells),)), scores, n_cells, n_far, evidence, spread)


@final
class CellDraw:
    """Cells of all samples, of each at most as many as its share of the support, from blocks of any size.

    They are drawn by hashes of their values, so that neither blocks nor the order of cells decide which.

    Parameters
    ----------
    sizes
        ``(n_samples,)``: cells of each sample.
    seed
        Of the hashes.

    Examples
    --------
    >>> draw = CellDraw(np.array([3, 1]), seed=0)
    >>> for block, codes in [([[1.0], [2.0]], [0, 1]), ([[3.0], [4.0]], [0, 0])]:
    ...     draw.add(np.array(block), np.array(codes))
    >>> cells, own = draw.cells()
    >>> cells.ravel().tolist(), own.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 1, 0, 0])
    """

    def __init__(self, sizes: Int64, seed: int) -> None:
        self.n_samples, self.most = sizes.size, quota(sizes, SUPPORT)
        self._seed, self._all = seed, bool(sizes.max() <= self.most)
        self._points: list[Float64] = []
        self._codes, self._hashes = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
        # The largest hash that a sample still has room for.
        self._limits = np.full(sizes.size, 2**64 - 1, dtype=np.uint64)

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
        if not self._all and self._codes.size > 2 * max(SUPPORT, self.n_samples):
            self._prune()

    def cells(self) -> tuple[Float64, Int64]:
        """Return the cells drawn, ``(n_drawn, n_dimensions)``, in the order in which they came, and their samples."""
        if not self._all:
            self._prune()
        return np.concatenate(self._points), self._codes

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

    Four copies of the cells drawn, twice as many while they are drawn, and the graph around each.
    """
    drawn = min(n_cells, SUPPORT)
    return drawn * (8 * 8 * n_dimensions + AROUND * EDGE_BYTES)


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
    draw = CellDraw(np.bincount(codes, minlength=n_samples), int(rng.integers(2**62)))
    draw.add(points, codes)
    return hold_out(*draw.cells(), n_samples, n_jobs)


def hold_out(cells: Float64, own: IntArray, n_samples: int, n_jobs: int | None = None) -> Support | None:
    """Hold each sample out in turn, of the cells of a `CellDraw`; None if there is only one sample."""
    if n_samples < 2:
        return None
    nearest, distances = _from_others(cells, own, n_samples, check_threads(n_jobs))
    graph = Graph.from_points(cells, min(AROUND, len(cells) - 1), kernel="box", n_jobs=n_jobs)
    widths = graph.spread(_usual(graph, graph.node_affinity, distances, np.ones(len(cells))))
    scores = _scores(distances, _without_own(graph, distances, own, nearest, n_samples))
    chances = _left_out(scores, own, n_samples)
    ordered = np.sort(scores)
    n_cells, n_far = (np.bincount(part, minlength=n_samples).astype(np.int64) for part in (own, own[chances <= FAR]))
    evidence = _evidence(chances, own, n_cells)
    return Support(cells, widths, ordered, n_cells, n_far, evidence, _spread(chances, own, n_cells, evidence))


def _from_others(cells: Float64, own: IntArray, n_samples: int, n_threads: int) -> tuple[Intp, Float64]:
    """Return the nearest cell of another sample and the distance to it, ``(n_cells,)`` each."""
    nearest, distances = np.empty(len(cells), dtype=np.intp), np.empty(len(cells))
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        others = np.flatnonzero(own != sample)
        places, squares = CenterSearch(cells[others]).nearest(cells[inside], n_threads)
        nearest[inside], distances[inside] = others[places], np.sqrt(squares)
    return nearest, distances


def _usual(graph: Graph, rows: sp.csr_array, distances: Float64, kept: Float64) -> Float64:
    """Return the mean distance of the cells around some nodes, themselves included, of those cells that are kept.

    Parameters
    ----------
    graph
        Of all cells.
    rows
        Affinities of the nodes to all nodes.
    distances, kept
        ``(n_cells,)``; ``kept`` is 1 or 0.
    """
    around = rows @ graph.gather(np.vstack([distances * kept, kept])).T
    return np.asarray(around[:, 0] / around[:, 1])


def _without_own(graph: Graph, distances: Float64, own: IntArray, nearest: Intp, n_samples: int) -> Float64:
    """Return the distance that is usual around the nearest cell of each cell, as if its sample were not there.

    A strange sample would else widen what is usual around its own cells, which a new sample cannot. With
    that and with ranks among its own cells 5.6 % of fresh melanoma samples were called not covered; without, 1.7 %.
    """
    widths, node = np.empty(len(own)), graph.spread(np.arange(graph.n_nodes))
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        nodes, place = np.unique(node[nearest[inside]], return_inverse=True)
        kept = (own != sample).astype(np.float64)
        widths[inside] = _usual(graph, graph.node_affinity[nodes], distances, kept)[place]
    return widths


def _left_out(scores: Float64, own: IntArray, n_samples: int) -> Float64:
    """Return the p-value of each cell among the cells of all other samples, as a new cell is ranked."""
    ordered = np.sort(scores)
    above = ordered.size - np.searchsorted(ordered, scores, side="left")
    others = np.empty(scores.size)
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        mine = np.sort(scores[inside])
        above[inside] -= mine.size - np.searchsorted(mine, scores[inside], side="left")
        others[inside] = ordered.size - mine.size
    return np.asarray((1 + above) / (1 + others))


def _scores(distances: Float64, widths: Float64) -> Float64:
    """Return distances over what is usual; where nothing but copies is usual, any distance at all is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances > 0, distances / widths, 0.0)


def _evidence(cell_p_values: Float64, codes: IntArray, n_cells: Int64) -> Float64:
    """Return the truncated product of the p-values of each sample's cells, ``(n_samples,)``; see `Coverage`."""
    sums = np.bincount(codes, weights=_beyond(cell_p_values), minlength=n_cells.size)
    return np.asarray(sums / np.maximum(n_cells, 1))


def _spread(cell_p_values: Float64, codes: IntArray, n_cells: Int64, evidence: Float64) -> float:
    """Return the variance of a cell's evidence within samples.

    At least what p-values that are even between 0 and 1 have: with few cells none may be below the threshold.
    """
    squares = float(np.sum((_beyond(cell_p_values) - evidence[codes]) ** 2))
    return max(squares / max(int(n_cells.sum()) - n_cells.size, 1), TRUNCATED * (2 - TRUNCATED))


def _beyond(cell_p_values: Float64) -> Float64:
    return np.asarray(np.maximum(np.log(TRUNCATED / cell_p_values), 0.0))
