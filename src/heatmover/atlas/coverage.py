"""Coverage: whether a reference knows the cells of a new sample.

Each cell of the reference is compared with the cells of all OTHER samples: how far it is from the nearest, in units of
what is usual around there. Held out like this it stands where a new sample's cell stands, so that the rank of a new
cell among them is a p-value (conformal), whatever the distribution. A cell is far if its p-value is at most 1 %.

Samples vary, in the reference too: the share of far cells is more uneven than coins would have it. A beta-binomial law
fitted to the reference's own shares says how many far cells a sample of so many cells may have. Beside it the share
must rank among the highest of the reference's own, which holds false alarms at 5 % for any law.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, FloatArray, Int64, IntArray, Intp
from heatmover._validation import check_threads
from heatmover.analysis.landmarking import quota
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.distinct import distinct_points
from heatmover.graphs.search.assign import CenterSearch
from heatmover.storage import Record

__all__ = ["SUPPORT", "Coverage", "Support", "find_support"]

# Cells of the reference that are kept to compare with: 20,000 of 50 dimensions are 8 MB.
SUPPORT = 20_000
# Cells around a cell that tell what distance is usual there.
AROUND = 30
# A cell is far at this p-value. Simulated populations that are absent from the reference (benchmarks/covered.py): 2 %
# tells samples apart about as well, 5 % worse, because what is far by chance hides them.
FAR = 0.01
# A sample is not covered if so many far cells, or more, have at most this chance, and its share of them ranks within
# the highest RANKED of the reference's own.
LEVEL, RANKED = 0.01, 0.05
# Fewer samples do not tell how much samples vary.
FEWEST = 5
# The largest overdispersion that a fit may have: shares that are anything between nothing and all.
MOST_UNEVEN = 0.5
# Below this the law is the binomial one; at 1e-9 the logarithms of SciPy's beta-binomial lose three digits.
LEAST_UNEVEN = 1e-6


class Coverage(NamedTuple):
    """What a reference says of the cells of some samples.

    Attributes
    ----------
    n_cells, n_far
        ``(n_samples,)``: cells, and those that are further from the reference than 99 % of its own.
    p_values
        ``(n_samples,)``: the chance of so many far cells or more in a sample like those of the reference.
    covered
        One verdict for each sample; None where the reference has too few samples to tell.
    cell_p_values
        ``(n_cells,)``: of each cell, in the order in which they came.
    expected
        The share of far cells in the reference's own samples, each left out in turn.
    """

    n_cells: Int64
    n_far: Int64
    p_values: Float64
    covered: tuple[bool | None, ...]
    cell_p_values: Float64
    expected: float

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
    """

    cells: Float64
    widths: Float64
    scores: Float64
    n_cells: Int64
    n_far: Int64

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
        chances = self.chances(n_cells, n_far)
        ranks = self.ranks(n_far / np.maximum(n_cells, 1))
        least = max(RANKED, 1 / (self.n_cells.size + 1))
        covered: tuple[bool | None, ...] = tuple(
            bool(chance > LEVEL or rank > least) for chance, rank in zip(chances, ranks, strict=True)
        )
        if self.n_cells.size < FEWEST:
            covered = (None,) * n_samples
        return Coverage(n_cells, n_far, chances, covered, cell_p_values, self.expected)

    @property
    def expected(self) -> float:
        """The share of far cells in all reference samples, each left out in turn."""
        return float(self.n_far.sum() / self.n_cells.sum())

    def chances(self, n_cells: Int64, n_far: Int64) -> Float64:
        """Return the chance of at least so many far cells in samples of so many cells, ``(n_samples,)``."""
        from scipy.stats import betabinom, binom

        total = int(self.n_cells.sum())
        # Half a far cell where there is none: a share of zero would forbid any.
        mean = float(np.clip(self.expected, 0.5 / total, 1 - 0.5 / total))
        uneven = _overdispersion(self.n_cells, self.n_far, mean)
        if uneven < LEAST_UNEVEN:
            return np.asarray(binom.sf(n_far - 1, n_cells, mean), dtype=np.float64)
        size = (1 - uneven) / uneven
        return np.asarray(betabinom.sf(n_far - 1, n_cells, mean * size, (1 - mean) * size), dtype=np.float64)

    def ranks(self, shares: Float64) -> Float64:
        """Return the share of the reference's samples, itself included, with at least such shares of far cells."""
        own = np.sort(self.n_far / self.n_cells)
        above = own.size - np.searchsorted(own, shares, side="left")
        return np.asarray((1 + above) / (1 + own.size))

    def _p_values(self, scores: Float64) -> Float64:
        above = self.scores.size - np.searchsorted(self.scores, scores, side="left")
        return np.asarray((1 + above) / (1 + self.scores.size))

    def to_record(self, nodes: Float64) -> Record:
        """Return the support as a record that a store can hold, without its cells if they are the nodes themselves."""
        arrays = {"widths": self.widths, "scores": self.scores, "n_cells": self.n_cells, "n_far": self.n_far}
        return Record(arrays=arrays if nodes is self.cells else {"cells": self.cells, **arrays})

    @classmethod
    def from_record(cls, record: Record, nodes: Float64) -> Support:
        """Return the support of a record beside these nodes, or raise if it is none."""
        cells = record.floats("cells", (None, nodes.shape[1])) if "cells" in record.arrays else nodes
        scores = record.array("scores", np.float64, (None,))
        n_cells = record.array("n_cells", np.int64, (None,))
        n_far = record.array("n_far", np.int64, (n_cells.size,))
        fits = n_cells.size and n_cells.min() > 0 and n_far.min() >= 0 and np.all(n_far <= n_cells)
        if not fits or np.isnan(scores).any() or np.any(np.diff(scores) < 0):
            raise InvalidInputError(
                "a stored support: ascending scores, and at most as many far cells as cells", "another"
            )
        return cls(cells, record.floats("widths", (len(cells),)), scores, n_cells, n_far)


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
    if n_samples < 2:
        return None
    rows = _drawn(codes, n_samples, rng)
    cells, own = np.asarray(points[rows], dtype=np.float64), codes[rows]
    nearest, distances = _from_others(cells, own, n_samples, check_threads(n_jobs))
    widths = _usual(cells, distances, n_jobs)
    scores = _scores(distances, widths[nearest])
    ordered = np.sort(scores)
    above = ordered.size - np.searchsorted(ordered, scores, side="left")
    # As a new cell is ranked; its own score is one of those at least as large, the new cell's is the 1.
    far = (1 + above) / (1 + ordered.size) <= FAR
    counts = [np.bincount(part, minlength=n_samples).astype(np.int64) for part in (own, own[far])]
    return Support(cells, widths, ordered, counts[0], counts[1])


def _drawn(codes: IntArray, n_samples: int, rng: np.random.Generator) -> Intp:
    """Return the rows of cells drawn, ascending: of every sample all, or as many as its share of the support."""
    sizes = np.bincount(codes, minlength=n_samples)
    most = quota(sizes, SUPPORT)
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.cumsum(sizes)[:-1])
    return np.sort(
        np.concatenate([part if part.size <= most else rng.choice(part, most, replace=False) for part in parts])
    )


def _from_others(cells: Float64, own: IntArray, n_samples: int, n_threads: int) -> tuple[Intp, Float64]:
    """Return the nearest cell of another sample and the distance to it, ``(n_cells,)`` each."""
    nearest, distances = np.empty(len(cells), dtype=np.intp), np.empty(len(cells))
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        others = np.flatnonzero(own != sample)
        places, squares = CenterSearch(cells[others]).nearest(cells[inside], n_threads)
        nearest[inside], distances[inside] = others[places], np.sqrt(squares)
    return nearest, distances


def _usual(cells: Float64, distances: Float64, n_jobs: int | None) -> Float64:
    """Return the mean distance of the cells around each cell, itself included."""
    graph = Graph.from_points(cells, min(AROUND, len(cells) - 1), kernel="box", n_jobs=n_jobs)
    sums = graph.gather(np.vstack([distances, np.ones(len(cells))]))
    around = graph.node_affinity @ sums.T
    return np.asarray(graph.spread(around[:, 0] / around[:, 1]))


def _scores(distances: Float64, widths: Float64) -> Float64:
    """Return distances over what is usual; where nothing but copies is usual, any distance at all is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances > 0, distances / widths, 0.0)


def _overdispersion(n_cells: Int64, n_far: Int64, mean: float) -> float:
    """Return how much shares vary beyond chance, 0 for coins and 1 for all or nothing, by the method of moments."""
    squares = float(np.sum((n_far - n_cells * mean) ** 2 / (n_cells * mean * (1 - mean))))
    count = n_cells.size
    beyond = (squares - (count - 1)) / max((count - 1) / count * float(np.sum(n_cells - 1)), 1.0)
    # A new sample varies around a mean that was itself estimated.
    return float(np.clip(beyond * (1 + 1 / count), 0.0, MOST_UNEVEN))
