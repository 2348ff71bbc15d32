"""Coverage: p-values per cell and per sample for cells that the reference does not contain.

Each point of the reference is compared with those of all OTHER samples. Held out like this it stands where a point of a
new sample stands, so that the rank of a new one among them is a p-value (conformal), whatever the distribution.

A sample's evidence is the truncated product of its p-values (Zaykin et al. 2002): the mean of log(5 % / p), of those
that are below 5 %. It counts points as the share of far ones does, and a point the more the further it is.

Samples vary, in the reference too, by more than chance. A gamma law says how much evidence a sample of so many points
may have: its mean and the variance between samples are those of the reference's own samples, each left out in turn,
and the variance from the points falls with their number.

Each cell has a p-value: its rank, by the distance from the reference, among the reference's own cells. A cell is far if
its p-value is at most 1 %. The evidence in a sample's cells has a chance, by the law of the reference's own samples. So
has the evidence in its local means, if it has enough cells for them: a new population that hides in noise shows there.
A sample's chance is twice the smaller of the two, for either could be small (Bonferroni). It must also rank among the
lowest of the reference's own, which holds false alarms at 5 % for any law, or at 1 in n + 1 with n < 19 samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import scipy.sparse as sp
from scipy.spatial.distance import cdist

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import Record
from heatmover._base.types import Bool, Float64, FloatArray, Int64, IntArray, Intp
from heatmover._base.validation import check_threads
from heatmover.cohort.draw import cell_hashes
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.centers import CenterSearch
from heatmover.study.landmarking import quota

__all__ = ["RANKED", "SUPPORT", "CellDraw", "Coverage", "Support", "hold_out", "support_bytes"]

# --- how strange points are ---

# Points around a point that tell what distance is usual there.
AROUND = 30
# Larger p-values are no evidence. All of them: samples that are strange in every cell by a little, as those
# of other patients are, hide a tenth that is strange by more. At 10 % the AUROC on melanoma samples is lower by 0.01;
# that of the plain share of far cells is lower by 0.02 and, for populations near the reference, by 0.01.
TRUNCATED = 0.05
# A point is far at this p-value. Simulated populations that are absent from the reference (benchmarks/covered.py): 2 %
# tells samples apart about as well, 5 % worse, because what is far by chance hides them.
FAR = 0.01
# The variance of the evidence in one p-value that is even between 0 and 1.
LEAST_SPREAD = TRUNCATED * (2 - TRUNCATED)


def hold_out_points(
    points: Float64, own: IntArray, kept: Bool, n_samples: int, n_threads: int
) -> tuple[Float64, Float64]:
    """Compare the points of each sample with those points of all others that are kept.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    own
        ``(n_points,)``: the sample of each.
    kept
        ``(n_points,)``: whether others are compared with it.
    n_samples, n_threads
        Their numbers.

    Returns
    -------
    widths : ndarray of shape (n_kept,)
        The distance that is usual around each point that is kept.
    scores : ndarray of shape (n_points,)
        Distance of each point from the other samples, over what is usual there without its own.
    """
    cells, of_cell = points[kept], own[kept]
    nearest, distances = _from_others(points, own, cells, of_cell, n_samples, n_threads)
    graph = Graph.from_points(cells, min(AROUND, len(cells) - 1), kernel="box", n_jobs=n_threads)
    widths = graph.spread(_usual(graph, graph.node_affinity, distances[kept], np.ones(len(cells))))
    without = _without_own(graph, distances[kept], of_cell, nearest, own, n_samples)
    return widths, scores_of(distances, without)


def _from_others(
    points: Float64, own: IntArray, cells: Float64, of_cell: IntArray, n_samples: int, n_threads: int
) -> tuple[Intp, Float64]:
    """Return the nearest cell of another sample and the distance to it, ``(n_points,)`` each."""
    nearest, distances = np.empty(len(points), dtype=np.intp), np.empty(len(points))
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        if not inside.size:
            continue
        others = np.flatnonzero(of_cell != sample)
        places, squares = CenterSearch(cells[others]).nearest(points[inside], n_threads)
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


def _without_own(
    graph: Graph, distances: Float64, of_cell: IntArray, nearest: Intp, own: IntArray, n_samples: int
) -> Float64:
    """Return the distance that is usual around the nearest cell of each point, as if its sample were not there.

    A strange sample would else widen what is usual around its own cells, which a new sample cannot. With
    that and with ranks among its own cells 5.6 % of fresh melanoma samples were called not covered; without, 1.7 %.
    """
    widths, node = np.empty(len(own)), graph.spread(np.arange(graph.n_nodes))
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        nodes, place = np.unique(node[nearest[inside]], return_inverse=True)
        kept = (of_cell != sample).astype(np.float64)
        widths[inside] = _usual(graph, graph.node_affinity[nodes], distances, kept)[place]
    return widths


def scores_of(distances: Float64, widths: Float64) -> Float64:
    """Return distances over what is usual; where nothing but copies is usual, any distance at all is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances > 0, distances / widths, 0.0)


def p_values(known: Float64, scores: Float64) -> Float64:
    """Return the p-value of new scores among known ones, which ascend."""
    above = known.size - np.searchsorted(known, scores, side="left")
    return np.asarray((1 + above) / (1 + known.size))


def left_out(scores: Float64, own: IntArray, n_samples: int) -> Float64:
    """Return the p-value of each score among those of all other samples, as a new one is ranked."""
    ordered = np.sort(scores)
    above = ordered.size - np.searchsorted(ordered, scores, side="left")
    others = np.empty(scores.size)
    for sample in range(n_samples):
        inside = np.flatnonzero(own == sample)
        mine = np.sort(scores[inside])
        above[inside] -= mine.size - np.searchsorted(mine, scores[inside], side="left")
        others[inside] = ordered.size - mine.size
    return np.asarray((1 + above) / (1 + others))


def beyond(chances: Float64) -> Float64:
    """Return the evidence in p-values: log(0.05 / p), or 0 where p is larger."""
    return np.asarray(np.maximum(np.log(TRUNCATED / chances), 0.0))


@final
@dataclass(frozen=True, eq=False)
class Law(ReadOnlyArrays):
    """How much evidence a sample may have: a gamma law, fitted to reference samples that were each left out in turn.

    Attributes
    ----------
    counts, evidence
        ``(n_samples,)``: points and evidence of each; each has a point.
    spread
        The variance of the evidence in a sample of n points that the points bring, times n.
    """

    counts: Int64
    evidence: Float64
    spread: float

    def chances(self, counts: Int64, evidence: Float64) -> Float64:
        """Return the chance of at least so much evidence in samples of so many points, ``(n_samples,)``."""
        from scipy.special import gammaincc

        mean, between = self._moments
        variance = self.spread / np.maximum(counts, 1) + between
        # A gamma law of this mean and variance: shape mean^2 / variance, scale variance / mean.
        return np.asarray(gammaincc(mean**2 / variance, evidence * mean / variance), dtype=np.float64)

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """The mean evidence of a sample, and its variance between samples beyond that from their points."""
        n_samples, total = self.counts.size, float(self.counts.sum())
        # At least what one point of all, at the threshold of far ones, would be: nothing at all forbids nothing.
        mean = max(float(self.counts @ self.evidence) / total, float(np.log(TRUNCATED / FAR)) / total)
        squares = (self.evidence - mean) ** 2 * n_samples / max(n_samples - 1, 1)
        between = float(np.mean(squares - self.spread / self.counts))
        # A new sample varies around a mean that was itself estimated.
        return mean, max(between, 0.0) * (1 + 1 / n_samples) + self.spread / total


# Cells in a mean, and the fewest cells of a sample whose means are taken: of fewer, neighbours are no neighbours.
GATHERED, FEWEST_CELLS = 6, 12
# The most cells of a sample that are taken: all pairs of them are compared.
MOST_CELLS = 500
# Sizes that samples are thinned to, per halving: a new sample leaves out less than three cells in ten.
PER_HALVING = 2
# Means that are enough to rank others among them, and the fewest samples that they are of. Every sample is thinned to
# the largest size that it has, which tells its evidence; to smaller ones only as many samples as this takes.
ENOUGH, ENOUGH_SAMPLES = 2000, 20


def sizes_of(n_cells: IntArray) -> Int64:
    """Return the sizes to which reference samples of so many cells are thinned, ascending; none if most are small.

    Examples
    --------
    >>> sizes_of(np.array([5, 100, 130])).tolist()
    [12, 18, 25, 35, 50, 71, 100]
    """
    largest = min(int(np.sort(n_cells)[(n_cells.size - 1) // 2]), MOST_CELLS)
    count = int(PER_HALVING * np.log2(max(largest / FEWEST_CELLS, 0.5)) + 1)
    return np.array([round(largest * 2 ** (-step / PER_HALVING)) for step in reversed(range(count))], dtype=np.int64)


def thinned(cells: FloatArray) -> Float64:
    """Return the cells of a sample, ``(n_cells, n_dimensions)``, in an order of which the first few are a fair draw.

    Their values decide, whatever the order in which they come.
    """
    points = np.asarray(cells, dtype=np.float64)
    hashes = cell_hashes(points, np.zeros(len(points), dtype=np.int32), 0)
    return points[np.argsort(hashes, kind="stable")]


def local_means(cells: Float64) -> tuple[Float64, Int64]:
    """Return the mean of each cell and its nearest, ``(n_cells, n_dimensions)``, and which these are, a row for each.

    Examples
    --------
    >>> means, near = local_means(np.r_[np.zeros(6), np.arange(6) + 10.0][:, None])
    >>> means.ravel().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 12.5, 12.5, 12.5, 12.5, 12.5, 12.5]
    """
    near = np.sort(np.argpartition(cdist(cells, cells), GATHERED - 1, axis=1)[:, :GATHERED], axis=1)
    # Of the same cells the mean is the same to the bit, and of copies it is their place: from the first of them on.
    first = cells[near[:, 0]]
    return first + ((cells[near] - first[:, None]) / GATHERED).sum(axis=1), near


@final
@dataclass(frozen=True, eq=False)
class LocalMeans(ReadOnlyArrays):
    """Local means of the reference, and how far those of thinned samples are from those of others.

    Attributes
    ----------
    cells
        ``(n_means, n_dimensions)``: of each sample at the largest of the sizes that it has.
    widths
        ``(n_means,)``: the distance that is usual around each.
    sizes
        ``(n_sizes,)``, ascending.
    scores
        Ascending for each size: distance from other samples over the usual one. ``ends`` tells where each size ends.
    ends
        ``(n_sizes,)``.
    n_means
        ``(n_samples,)``: the largest size of each reference sample; 0 if it is too small.
    evidence
        ``(n_samples,)``: the truncated product of these means, and 0 where there are none.
    spread
        The variance of the evidence of a sample of n means, times n.
    """

    cells: Float64
    widths: Float64
    sizes: Int64
    scores: Float64
    ends: Int64
    n_means: Int64
    evidence: Float64
    spread: float

    @cached_property
    def law(self) -> Law:
        """Of the evidence, fitted to those reference samples that have means."""
        some = self.n_means > 0
        return Law(self.n_means[some], self.evidence[some], self.spread)

    @property
    def most(self) -> int:
        """The number of cells of a sample that are looked at, at most."""
        return int(self.sizes[-1])

    def judge(self, samples: Sequence[FloatArray], n_threads: int) -> tuple[Int64, Float64]:
        """Return of some samples how many means they have, 0 if they are too small, and the evidence in them.

        Parameters
        ----------
        samples
            Of each the cells, ``(n_cells, n_dimensions)``: all, or ``most`` of them.
        n_threads
            Their number.
        """
        counts = _largest(self.sizes, np.array([len(cells) for cells in samples]))
        evidence = np.zeros(len(samples))
        asked = np.flatnonzero(counts)
        if not asked.size:
            return counts, evidence
        means = [local_means(thinned(samples[i])[: counts[i]])[0] for i in asked.tolist()]
        places, squares = self._search.nearest(np.concatenate(means), n_threads)
        scores = scores_of(np.sqrt(squares), self.widths[places])
        for i, part in zip(asked, np.split(scores, np.cumsum(counts[asked])[:-1]), strict=True):
            evidence[i] = beyond(p_values(self._scores_at(int(counts[i])), part)).mean()
        return counts, evidence

    def _scores_at(self, size: int) -> Float64:
        place = int(np.searchsorted(self.sizes, size))
        return self.scores[(self.ends[place - 1] if place else 0) : self.ends[place]]

    @cached_property
    def _search(self) -> CenterSearch:
        return CenterSearch(self.cells)

    def to_record(self) -> Record:
        """Return them as a record that a store can hold."""
        names = ("cells", "widths", "sizes", "scores", "ends", "n_means", "evidence")
        return Record({"spread": self.spread}, {name: getattr(self, name) for name in names})

    @classmethod
    def from_record(cls, record: Record, n_samples: int, n_dimensions: int) -> LocalMeans:
        """Return the means of a record for so many reference samples, or raise if it holds none."""
        cells = record.floats("cells", (None, n_dimensions))
        sizes, scores = record.array("sizes", np.int64, (None,)), record.array("scores", np.float64, (None,))
        ends, n_means = record.array("ends", np.int64, (sizes.size,)), record.array("n_means", np.int64, (n_samples,))
        evidence, spread = record.floats("evidence", (n_samples,)), record.number("spread")
        fits = len(cells) and sizes.size and sizes[0] >= GATHERED and np.all(np.diff(sizes) > 0)
        fits = fits and ends[0] > 0 and np.all(np.diff(ends) > 0) and ends[-1] == scores.size
        fits = fits and np.isin(n_means, np.r_[0, sizes]).all() and n_means.any()
        fits = fits and evidence.min() >= 0 and spread > 0
        if not fits or np.isnan(scores).any() or any(np.any(np.diff(part) < 0) for part in np.split(scores, ends[:-1])):
            raise InvalidInputError(
                "stored local means: ascending sizes and, for each, ascending scores; evidence of at least 0 and a "
                "spread above it", "others",
            )  # fmt: skip
        widths = record.floats("widths", (len(cells),))
        return cls(cells, widths, sizes, scores, ends, n_means, evidence, spread)


def hold_out_means(cells: Float64, own: IntArray, n_samples: int, n_threads: int) -> LocalMeans | None:
    """Hold each sample out in turn, at each of the sizes that it has; None if most samples have too few cells.

    Parameters
    ----------
    cells
        ``(n_cells, n_dimensions)``.
    own
        ``(n_cells,)``: the sample of each.
    n_samples, n_threads
        Their numbers.
    """
    n_cells = np.bincount(own, minlength=n_samples)
    sizes = sizes_of(n_cells)
    if not sizes.size:
        return None
    n_means = _largest(sizes, n_cells)
    made = list(_means_of(cells, own, sizes))
    means, near = (np.concatenate([one[i] for one in made]) for i in (2, 3))
    counts = np.array([size for _, size, *_ in made])
    of_mean, size_of = (np.repeat(values, counts) for values in ([sample for sample, *_ in made], counts))
    kept = size_of == n_means[of_mean]
    widths, scores = hold_out_points(means, of_mean, kept, n_samples, n_threads)
    evidence = np.zeros(len(means))
    for size in sizes:
        inside = np.flatnonzero(size_of == size)
        evidence[inside] = beyond(left_out(scores[inside], of_mean[inside], n_samples))
    by_sample = np.bincount(of_mean[kept], weights=evidence[kept], minlength=n_samples) / np.maximum(n_means, 1)
    residuals = np.where(kept, evidence - by_sample[of_mean], 0.0)
    spread = _means_spread(np.split(residuals, np.cumsum(counts)[:-1]), np.split(near, np.cumsum(counts)[:-1]), n_means)
    order = np.lexsort((scores, size_of))
    ends = np.searchsorted(size_of[order], sizes, side="right").astype(np.int64)
    return LocalMeans(means[kept], widths, sizes, scores[order], ends, n_means, by_sample, spread)


def _largest(sizes: Int64, n_cells: IntArray) -> Int64:
    """Return the largest of the sizes that samples of so many cells have, or 0."""
    return np.asarray(np.r_[0, sizes][np.searchsorted(sizes, n_cells, side="right")], dtype=np.int64)


def _means_of(cells: Float64, own: IntArray, sizes: Int64) -> Iterator[tuple[int, int, Float64, Int64]]:
    """Yield sample, size, local means and which cells these are of, for the sizes to which each sample is thinned."""
    n_cells = np.bincount(own)
    largest = _largest(sizes, n_cells)
    some = {int(size): _some(np.flatnonzero(largest > size), int(size)) for size in sizes}
    for sample, inside in enumerate(np.split(np.argsort(own, kind="stable"), np.cumsum(n_cells)[:-1])):
        ordered = thinned(cells[inside])
        for size in sizes.tolist():
            if size == largest[sample] or sample in some[size]:
                yield sample, size, *local_means(ordered[:size])


def _some(samples: Intp, size: int) -> set[int]:
    """Return as many of the samples, evenly among them, as are enough to be thinned to a size."""
    count = min(samples.size, max(ENOUGH_SAMPLES, -(-ENOUGH // size)))
    return set(samples[np.linspace(0, samples.size - 1, count).round().astype(np.intp)].tolist()) if count else set()


def _means_spread(residuals: Sequence[Float64], near: Sequence[Int64], n_means: Int64) -> float:
    """Return the variance of a sample's evidence, times its number of means.

    Means share cells, so their evidence varies together: two of them count by the share of cells that they have in
    common. At least what p-values that are even between 0 and 1 have: with few means none may be below the threshold.
    """
    squares = 0.0
    for rest, cells in zip(residuals, near, strict=True):
        shared = np.bincount(cells.ravel(), weights=np.repeat(rest, GATHERED), minlength=len(rest))
        squares += float(shared @ shared) / GATHERED
    return max(squares / max(int(np.maximum(n_means - 1, 0).sum()), 1), LEAST_SPREAD)


# --- what that says of samples ---

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
        places, squares = self._search.nearest(points, check_threads(n_jobs))
        return p_values(self.scores, scores_of(np.sqrt(squares), self.widths[places]))

    @cached_property
    def _search(self) -> CenterSearch:
        return CenterSearch(self.cells)

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

    def to_record(self) -> Record:
        """Return the support as a record that a store can hold."""
        names = ("cells", "widths", "scores", "n_cells", "n_far", "evidence")
        parts = {} if self.means is None else {"means": self.means.to_record()}
        return Record({"spread": self.spread}, {name: getattr(self, name) for name in names}, parts)

    @classmethod
    def from_record(cls, record: Record, n_dimensions: int) -> Support:
        """Return the support of a record, or raise if it is none."""
        cells = record.floats("cells", (None, n_dimensions))
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
            means = LocalMeans.from_record(record.part("means"), n_cells.size, n_dimensions)
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

    Examples
    --------
    >>> draw = CellDraw.for_support(np.array([3, 1]), seed=0)
    >>> for block, codes in [([[1.0], [2.0]], [0, 1]), ([[3.0], [4.0]], [0, 0])]:
    ...     draw.add(np.array(block), np.array(codes))
    >>> cells, own = draw.cells()
    >>> cells.ravel().tolist(), own.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0, 1, 0, 0])
    """

    def __init__(self, n_samples: int, most: int, seed: int) -> None:
        self.n_samples, self.most = n_samples, most
        self._seed = seed
        self._points: list[Float64] = []
        self._codes, self._hashes = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
        # The largest hash that a sample still has room for.
        self._limits = np.full(n_samples, 2**64 - 1, dtype=np.uint64)

    @classmethod
    def for_support(cls, sizes: Int64, seed: int) -> CellDraw:
        """Draw from samples of these sizes, of each at most its share of the support."""
        return cls(sizes.size, quota(sizes, SUPPORT), seed)

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
        hashes = cell_hashes(values, np.asarray(codes, dtype=np.int32), self._seed)
        rows = np.flatnonzero(hashes <= self._limits[codes])
        if not rows.size:
            return
        self._points.append(np.asarray(project(values[rows]), dtype=np.float64))
        self._codes, self._hashes = np.r_[self._codes, codes[rows]], np.r_[self._hashes, hashes[rows]]
        # Rarely, so that each cell is sorted a few times and not once per block.
        if self._codes.size > 2 * max(SUPPORT, self.most * self.n_samples):
            self._prune()

    def cells(self) -> tuple[Float64, Int64]:
        """Return the cells drawn, ``(n_drawn, n_dimensions)``, in the order in which they came, and their samples."""
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


def hold_out(cells: Float64, own: IntArray, n_samples: int, n_jobs: int | None = None) -> Support | None:
    """Hold each sample out in turn, of the cells of a `CellDraw`; None if there is only one sample."""
    if n_samples < 2:
        return None
    threads = check_threads(n_jobs)
    widths, scores = hold_out_points(cells, own, np.ones(len(cells), dtype=bool), n_samples, threads)
    chances = left_out(scores, own, n_samples)
    n_cells, n_far = (np.bincount(part, minlength=n_samples).astype(np.int64) for part in (own, own[chances <= FAR]))
    evidence = _evidence(chances, own, n_cells)
    spread = _spread(chances, own, n_cells, evidence)
    means = hold_out_means(cells, own, n_samples, threads)
    return Support(cells, widths, np.sort(scores), n_cells, n_far, evidence, spread, means)


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
