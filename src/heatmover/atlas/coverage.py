"""Compute p-values of new cells and samples, small without similar reference cells; only `atlas` calls it; no files.

Every reference point is compared with the points of all OTHER samples, as if its own sample were new. The rank of a new
point among the reference points is therefore a conformal p-value, which is valid for any distribution.

The evidence of a sample is based on the truncated product of its p-values (Zaykin et al. 2002): it is the mean of
log(5% / p) over all points of the sample, where points with p above 5% contribute 0. The evidence grows with the share
of far points and with their distance.

The evidence of samples with n points is described by a gamma distribution. Reference samples differ by more than
sampling noise. The variance of the distribution is therefore the sum of the variance between samples and the variance
due to sampling of points, which decreases with n. The mean and the variance between samples are estimated by leaving
out each reference sample in turn.

The p-value of a cell compares its distance from the reference with the distances of the reference cells. A cell is far
if its p-value is at most 1%. The gamma distribution of the reference samples gives a p-value for the evidence of a
sample's cells. A local mean is the mean of a cell and its nearest cells. If a sample has enough cells, the evidence of
its local means gives a second p-value, because averaging reveals a new population that is hidden by noise. The p-value
of the sample is then twice the smaller p-value (Bonferroni). A sample is called not covered if this p-value is at most
2% and is also among the lowest 5% of the p-values of the reference samples. The false-positive rate is therefore at
most 5% for any distribution, or 1 in n + 1 with n < 19 reference samples.
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
from heatmover._base.types import Bool, Float64, FloatArray, Int64, IntArray
from heatmover._base.validation import check_threads
from heatmover.cohort.subsample import cell_hashes
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.centers import CenterSearch
from heatmover.study.comparison import quota

# --- p-values of points ---

# Number of nearest points whose distances from other samples are averaged; the mean is the usual distance around a
# point.
AROUND = 30
# Larger p-values contribute no evidence. If all p-values contributed, small deviations of all cells, as between
# patients, would mask large deviations in a tenth of the cells. With a limit of 10% instead of 5%, the AUROC on
# melanoma samples is 0.01 lower. With the share of far cells instead of the evidence, the AUROC is 0.02 lower on these
# samples, and 0.01 lower for populations near the reference.
TRUNCATED = 0.05
# A point is far if its p-value is at most this value. For simulated populations that are absent from the reference
# (benchmarks/covered.py), a value of 2% separates samples about as well as 1%. A value of 5% is worse, because more
# points are far by chance.
FAR = 0.01
# Variance of the evidence of one p-value that is uniform on [0, 1].
LEAST_SPREAD = TRUNCATED * (2 - TRUNCATED)


def hold_out_points(
    points: Float64, own: IntArray, kept: Bool, n_samples: int, n_threads: int
) -> tuple[Float64, Float64]:
    """Compute the distance of each point from the nearest of the ``kept`` points of all other samples.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    own
        ``(n_points,)``: sample of each point.
    kept
        ``(n_points,)``, boolean: true for points with which the points of other samples are compared.
    n_samples, n_threads
        Number of samples, and number of threads.

    Returns
    -------
    widths : ndarray of shape (n_kept,)
        Usual distance around each kept point: how far its nearest kept points are, on average, from the samples other
        than their own.
    scores : ndarray of shape (n_points,)
        Distance of each point from the other samples, divided by the usual distance around the nearest kept point. The
        usual distance is computed without the sample of the point.
    """
    cells, of_cell = points[kept], own[kept]
    members = [np.flatnonzero(own == sample) for sample in range(n_samples)]
    nearest, distances = np.empty(len(points), dtype=np.intp), np.empty(len(points))
    for sample, inside in enumerate(members):
        if inside.size:
            others = np.flatnonzero(of_cell != sample)
            places, squares = CenterSearch(cells[others]).nearest(points[inside], n_threads)
            nearest[inside], distances[inside] = others[places], np.sqrt(squares)
    graph = Graph.from_points(cells, min(AROUND, len(cells) - 1), kernel="box", n_jobs=n_threads)

    def usual(rows: sp.csr_array, counted: Float64) -> Float64:
        """Return the mean distance over the neighbors of nodes (affinity rows), weighted by ``counted``."""
        around = rows @ graph.gather(np.vstack([distances[kept] * counted, counted])).T
        return np.asarray(around[:, 0] / around[:, 1])

    widths = graph.spread(usual(graph.node_affinity, np.ones(len(cells))))
    # Leave out the sample of each point, because a new sample has no cells in the reference that could raise the usual
    # distance. If usual distances and ranks included the sample of the point, 5.6% instead of 1.7% of new melanoma
    # samples would be called not covered.
    without, node = np.empty(len(own)), graph.spread(np.arange(graph.n_nodes))
    for sample, inside in enumerate(members):
        nodes, place = np.unique(node[nearest[inside]], return_inverse=True)
        without[inside] = usual(graph.node_affinity[nodes], (of_cell != sample).astype(np.float64))[place]
    return widths, scores_of(distances, without)


def scores_of(distances: Float64, widths: Float64) -> Float64:
    """Divide distances by usual distances; where the usual distance is 0, positive distances become infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distances > 0, distances / widths, 0.0)


def p_values(known: Float64, scores: Float64) -> Float64:
    """Return the p-values of new scores relative to ``known``, the scores of the reference, ascending."""
    above = known.size - np.searchsorted(known, scores, side="left")
    return np.asarray((1 + above) / (1 + known.size))


def left_out(scores: Float64, own: IntArray, n_samples: int) -> Float64:
    """Return the p-value of each score relative to the scores of all other samples, as for a new sample."""
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
    """Return the evidence of p-values: log(0.05 / p), or 0 where p is above 0.05."""
    return np.asarray(np.maximum(np.log(TRUNCATED / chances), 0.0))


@final
@dataclass(frozen=True, eq=False)
class Law(ReadOnlyArrays):
    """Gamma distribution of the evidence of a sample, fitted by leaving out each reference sample in turn.

    Attributes
    ----------
    counts, evidence
        ``(n_samples,)``: number of points (at least 1) and evidence of each reference sample.
    spread
        Variance of the evidence due to sampling of points, multiplied by the number of points.
    """

    counts: Int64
    evidence: Float64
    spread: float

    def chances(self, counts: Int64, evidence: Float64) -> Float64:
        """Return the p-values of samples from their numbers of points and their evidence, ``(n_samples,)``."""
        from scipy.special import gammaincc

        mean, between = self._moments
        variance = self.spread / np.maximum(counts, 1) + between
        # The gamma distribution with this mean and variance has shape mean^2 / variance and scale variance / mean.
        return np.asarray(gammaincc(mean**2 / variance, evidence * mean / variance), dtype=np.float64)

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """Mean evidence of a sample, and variance between samples beyond the variance due to sampling of points."""
        n_samples, total = self.counts.size, float(self.counts.sum())
        # Limit the mean from below by the evidence of one far point in the reference. With a mean of 0, any evidence
        # would have a p-value of 0.
        mean = max(float(self.counts @ self.evidence) / total, float(np.log(TRUNCATED / FAR)) / total)
        squares = (self.evidence - mean) ** 2 * n_samples / max(n_samples - 1, 1)
        between = float(np.mean(squares - self.spread / self.counts))
        # Add the error of the estimated mean to the variance.
        return mean, max(between, 0.0) * (1 + 1 / n_samples) + self.spread / total


# Number of cells per local mean, and smallest number of cells of a sample for which local means are computed. In a
# smaller sample, even the nearest cells are far apart.
GATHERED, FEWEST_CELLS = 6, 12
# Largest number of cells that are used from a sample. The number is limited, because all pairs of cells are compared.
MOST_CELLS = 500
# Samples are thinned (reduced to random subsets of given sizes), so that samples of equal size can be compared.
# PER_HALVING is the number of sizes per factor of 2. With 2 sizes, thinning to the next smaller size drops less than
# 30% of the cells.
PER_HALVING = 2
# Number of local means of the reference per size that suffices to rank new means, and smallest number of samples that
# contribute these local means. Every sample is thinned to its largest possible size to compute its evidence. Only a
# selection of samples is also thinned to smaller sizes.
ENOUGH, ENOUGH_SAMPLES = 2000, 20


def sizes_of(n_cells: IntArray) -> Int64:
    """Return the numbers of cells to which reference samples are thinned, ascending; empty if most samples are small.

    Examples
    --------
    >>> sizes_of(np.array([5, 100, 130])).tolist()
    [12, 18, 25, 35, 50, 71, 100]
    """
    largest = min(int(np.sort(n_cells)[(n_cells.size - 1) // 2]), MOST_CELLS)
    count = int(PER_HALVING * np.log2(max(largest / FEWEST_CELLS, 0.5)) + 1)
    return np.array([round(largest * 2 ** (-step / PER_HALVING)) for step in reversed(range(count))], dtype=np.int64)


def thinned(cells: FloatArray) -> Float64:
    """Return the cells of a sample in random order, ``(n_cells, n_dimensions)``: the first k cells are a random subset.

    The random order depends only on the values of the cells, not on their original order.
    """
    points = np.asarray(cells, dtype=np.float64)
    hashes = cell_hashes(points, np.zeros(len(points), dtype=np.int32), 0)
    return points[np.argsort(hashes, kind="stable")]


def local_means(cells: Float64) -> tuple[Float64, Int64]:
    """Return the mean of each cell and its nearest cells, ``(n_cells, n_dimensions)``, and the indices of these cells.

    Examples
    --------
    >>> means, near = local_means(np.r_[np.zeros(6), np.arange(6) + 10.0][:, None])
    >>> means.ravel().tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 12.5, 12.5, 12.5, 12.5, 12.5, 12.5]
    """
    near = np.sort(np.argpartition(cdist(cells, cells), GATHERED - 1, axis=1)[:, :GATHERED], axis=1)
    # Sum offsets from the first cell. Equal sets of cells then have bit-identical means, and the mean of identical
    # cells is exactly their position.
    first = cells[near[:, 0]]
    return first + ((cells[near] - first[:, None]) / GATHERED).sum(axis=1), near


@final
@dataclass(frozen=True, eq=False)
class LocalMeans(ReadOnlyArrays):
    """Local means of the reference, and distances of the local means of thinned samples from other samples.

    Attributes
    ----------
    cells
        ``(n_means, n_dimensions)``: local means of all samples, each thinned to its largest possible size.
    widths
        ``(n_means,)``: usual distance around each local mean: how far its nearest local means are, on average, from the
        samples other than their own.
    sizes
        ``(n_sizes,)``: sizes to which samples are thinned, ascending.
    scores
        Distances of local means from other samples, divided by the usual distance: one block per size, ascending within
        each block.
    ends
        ``(n_sizes,)``: end of the block of each size in ``scores``.
    n_means
        ``(n_samples,)``: largest size to which each reference sample can be thinned; 0 if the sample is too small.
    evidence
        ``(n_samples,)``: evidence of the local means of each reference sample; 0 without local means.
    spread
        Variance of the evidence of a sample, multiplied by its number of local means.
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
        """Gamma distribution of the evidence, fitted to the reference samples that have local means."""
        some = self.n_means > 0
        return Law(self.n_means[some], self.evidence[some], self.spread)

    @property
    def most(self) -> int:
        """Largest number of cells that are used from each sample."""
        return int(self.sizes[-1])

    def judge(self, samples: Sequence[FloatArray], n_threads: int) -> tuple[Int64, Float64]:
        """Return the number of local means of each sample (0 for small samples), and the evidence of the local means.

        Parameters
        ----------
        samples
            Cells of each sample, ``(n_cells, n_dimensions)``: all cells, or ``most`` cells drawn at random.
        n_threads
            Number of threads.
        """
        counts = _largest(self.sizes, np.array([len(cells) for cells in samples]))
        evidence = np.zeros(len(samples))
        enough = np.flatnonzero(counts)
        if not enough.size:
            return counts, evidence
        means = [local_means(thinned(samples[i])[: counts[i]])[0] for i in enough.tolist()]
        places, squares = self._search.nearest(np.concatenate(means), n_threads)
        scores = scores_of(np.sqrt(squares), self.widths[places])
        for i, block in zip(enough, np.split(scores, np.cumsum(counts[enough])[:-1]), strict=True):
            known = np.split(self.scores, self.ends[:-1])[np.searchsorted(self.sizes, counts[i])]
            evidence[i] = beyond(p_values(known, block)).mean()
        return counts, evidence

    @cached_property
    def _search(self) -> CenterSearch:
        return CenterSearch(self.cells)

    def to_record(self) -> Record:
        """Return the local means as a record."""
        names = ("cells", "widths", "sizes", "scores", "ends", "n_means", "evidence")
        return Record({"spread": self.spread}, {name: getattr(self, name) for name in names})

    @classmethod
    def from_record(cls, record: Record, n_samples: int, n_dimensions: int) -> LocalMeans:
        """Return the local means in a record of ``n_samples`` reference samples, or raise if the record is damaged."""
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
                "stored local means with ascending sizes, ascending scores of each size, evidence of at least 0 and a "
                "positive spread", "other values",
            )  # fmt: skip
        widths = record.floats("widths", (len(cells),))
        return cls(cells, widths, sizes, scores, ends, n_means, evidence, spread)


def hold_out_means(cells: Float64, own: IntArray, n_samples: int, n_threads: int) -> LocalMeans | None:
    """Compare the local means of each thinned sample with all other samples; return None if most samples are too small.

    Parameters
    ----------
    cells
        ``(n_cells, n_dimensions)``.
    own
        ``(n_cells,)``: sample of each cell.
    n_samples, n_threads
        Number of samples, and number of threads.
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
    """Return the largest size to which each sample can be thinned; 0 for samples with too few cells."""
    return np.asarray(np.r_[0, sizes][np.searchsorted(sizes, n_cells, side="right")], dtype=np.int64)


def _means_of(cells: Float64, own: IntArray, sizes: Int64) -> Iterator[tuple[int, int, Float64, Int64]]:
    """Thin samples; yield sample, size, local means and the indices of the cells of each mean."""
    n_cells = np.bincount(own)
    largest = _largest(sizes, n_cells)
    some = {}
    for size in sizes.tolist():
        # Thin an evenly spaced selection of the samples that are larger than this size.
        larger = np.flatnonzero(largest > size)
        count = min(larger.size, max(ENOUGH_SAMPLES, -(-ENOUGH // size)))
        some[size] = set(larger[np.linspace(0, larger.size - 1, count).round().astype(np.intp)].tolist())
    for sample, inside in enumerate(np.split(np.argsort(own, kind="stable"), np.cumsum(n_cells)[:-1])):
        ordered = thinned(cells[inside])
        for size in sizes.tolist():
            if size == largest[sample] or sample in some[size]:
                yield sample, size, *local_means(ordered[:size])


def _means_spread(residuals: Sequence[Float64], near: Sequence[Int64], n_means: Int64) -> float:
    """Return one number for all samples: the variance of a sample's evidence, times its number of local means.

    Local means that share cells have correlated evidence, so each pair of means is weighted by the share of common
    cells. The result is at least the variance for uniform p-values, because with few means all p-values may be above
    the threshold.
    """
    squares = 0.0
    for rest, cells in zip(residuals, near, strict=True):
        shared = np.bincount(cells.ravel(), weights=np.repeat(rest, GATHERED), minlength=len(rest))
        squares += float(shared @ shared) / GATHERED
    return max(squares / max(int(np.maximum(n_means - 1, 0).sum()), 1), LEAST_SPREAD)


# --- verdicts on samples ---

# Number of reference cells with which new cells are compared: 20,000 cells of 50 dimensions take 8 MB.
SUPPORT = 20_000
# Bytes per cell and neighbor while the graph of these cells is built.
EDGE_BYTES = 120
# A sample is called not covered if its p-value is at most LEVEL (1% for each of the two tests) and is also among the
# lowest RANKED of the p-values of the reference samples.
LEVEL, RANKED = 0.02, 0.05
# Smallest number of reference samples from which the variation between samples can be estimated.
FEWEST = 5


@final
@dataclass(frozen=True, eq=False)
class Coverage(ReadOnlyArrays):
    """Coverage of new samples: whether the reference contains cells like the cells of each sample.

    Attributes
    ----------
    n_cells, n_far
        ``(n_samples,)``: number of cells, and number of far cells. A far cell is farther from the reference than 99% of
        the reference cells are from the other reference samples.
    p_values
        ``(n_samples,)``: probability that a sample like the reference samples has at least this evidence.
    covered
        Whether each sample is covered; None if the reference has too few samples for a decision.
    cell_p_values
        ``(n_cells,)``: p-value of each cell, in the order in which the cells were read.
    expected
        Expected share of far cells, computed by leaving out each reference sample in turn.
    evidence
        ``(n_samples,)``: mean of log(0.05 / p) over all cells, where cells with a p-value above 0.05 contribute 0.
    n_means, means_evidence
        ``(n_samples,)``: number of local means (0 for samples with too few cells), and evidence of the local means.
    level
        Upper limit of the false-positive rate, which is the share of samples that are called not covered although they
        are like the reference samples. The limit is 0.05, or 1 in n + 1 if the reference has n < 19 samples.
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
        """Share of far cells of each sample, ``(n_samples,)``."""
        return np.asarray(self.n_far / self.n_cells)


@final
@dataclass(frozen=True, eq=False)
class Support(ReadOnlyArrays):
    """Cells drawn from the reference, and the distance of each cell from other reference samples.

    Attributes
    ----------
    cells
        ``(n_support, n_dimensions)``, float64: drawn cells, about the same number from each sample.
    widths
        ``(n_support,)``: usual distance around each cell: how far its nearest cells are, on average, from the samples
        other than their own.
    scores
        ``(n_support,)``, ascending: distance of each cell from other samples, divided by the usual distance.
    n_cells, n_far
        ``(n_samples,)``: number of cells drawn from each reference sample, and number of far cells among them.
    evidence
        ``(n_samples,)``: evidence of each reference sample, the mean of log(0.05 / p) as in `Coverage`.
    spread
        Variance of the evidence of single cells within a sample.
    means
        Local means of the reference samples; None if most samples have too few cells.
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
        """Return a p-value for each point ``(n_points, n_dimensions)``: small if the reference has no similar cells."""
        places, squares = self._search.nearest(points, check_threads(n_jobs))
        return p_values(self.scores, scores_of(np.sqrt(squares), self.widths[places]))

    @cached_property
    def _search(self) -> CenterSearch:
        return CenterSearch(self.cells)

    def draw(self, n_samples: int) -> CellDraw | None:
        """Return a `CellDraw` that collects cells for the local means in `verdict`; None if the reference has none."""
        return None if self.means is None else CellDraw(n_samples, self.means.most, 0)

    def verdict(
        self,
        cell_p_values: Float64,
        codes: IntArray,
        n_samples: int,
        draw: CellDraw | None = None,
        n_jobs: int | None = None,
    ) -> Coverage:
        """Return the coverage of samples from the p-values of their cells.

        Parameters
        ----------
        cell_p_values, codes
            ``(n_cells,)``: p-value and sample of each cell.
        n_samples
            Number of samples.
        draw
            Result of the method `draw`, to which all cells were added. None: do not use local means.
        n_jobs
            Number of threads; None for all cores.
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
        """Expected share of far cells, computed by leaving out each reference sample in turn."""
        return float(self.n_far.sum() / self.n_cells.sum())

    def chances(self, n_cells: Int64, evidence: Float64, n_means: Int64, means_evidence: Float64) -> Float64:
        """Return the p-values of samples, ``(n_samples,)``, from the evidence of their cells and of their local means.

        ``n_means`` is 0 for samples without local means.
        """
        of_cells = Law(self.n_cells, self.evidence, self.spread).chances(n_cells, evidence)
        if self.means is None:
            return of_cells
        smaller = np.minimum(of_cells, self.means.law.chances(n_means, means_evidence))
        return np.where(n_means > 0, np.minimum(2 * smaller, 1.0), of_cells)

    def ranks(self, chances: Float64) -> Float64:
        """Return the rank of each new p-value among the p-values of the reference samples, as a share.

        The new sample itself is counted. Samples are ranked by p-value and not by evidence, because the evidence of
        small samples varies more by chance.
        """
        return np.asarray((1 + np.searchsorted(self._own, chances, side="right")) / (1 + self._own.size))

    @cached_property
    def _own(self) -> Float64:
        """The p-values of the reference samples, ascending."""
        none = np.zeros_like(self.n_cells)
        of_means = (none, none) if self.means is None else (self.means.n_means, self.means.evidence)
        return np.sort(self.chances(self.n_cells, self.evidence, *of_means))

    def to_record(self) -> Record:
        """Return the cells of the reference and their distances as a record."""
        names = ("cells", "widths", "scores", "n_cells", "n_far", "evidence")
        parts = {} if self.means is None else {"means": self.means.to_record()}
        return Record({"spread": self.spread}, {name: getattr(self, name) for name in names}, parts)

    @classmethod
    def from_record(cls, record: Record, n_dimensions: int) -> Support:
        """Return the `Support` that a record contains, or raise if the record is damaged."""
        cells = record.floats("cells", (None, n_dimensions))
        scores = record.array("scores", np.float64, (None,))
        n_cells = record.array("n_cells", np.int64, (None,))
        n_far = record.array("n_far", np.int64, (n_cells.size,))
        fits = n_cells.size and n_cells.min() > 0 and n_far.min() >= 0 and np.all(n_far <= n_cells)
        evidence, spread = record.floats("evidence", (n_cells.size,)), record.number("spread")
        fits = fits and evidence.min() >= 0 and 0 < spread < np.inf
        if not fits or np.isnan(scores).any() or np.any(np.diff(scores) < 0):
            raise InvalidInputError(
                "stored reference cells with ascending scores, at most as many far cells as cells, evidence of at "
                "least 0 and a positive spread", "other values",
            )  # fmt: skip
        means = None
        if "means" in record.parts:
            means = LocalMeans.from_record(record.part("means"), n_cells.size, n_dimensions)
        return cls(cells, record.floats("widths", (len(cells),)), scores, n_cells, n_far, evidence, spread, means)


@final
class CellDraw:
    """Draw at most a given number of cells from every sample; cells are added in blocks of any size.

    Cells are drawn by hashes of their values, so neither the blocks nor the order of the cells matters.

    Parameters
    ----------
    n_samples
        Number of samples.
    most
        Largest number of cells per sample.
    seed
        Seed of the hashes.

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
        # Largest accepted hash of each sample.
        self._limits = np.full(n_samples, 2**64 - 1, dtype=np.uint64)

    @classmethod
    def for_support(cls, sizes: Int64, seed: int) -> CellDraw:
        """Return a `CellDraw` for a `Support`: the same number of cells from every sample, or all cells if fewer."""
        return cls(sizes.size, quota(sizes, SUPPORT), seed)

    def add(self, values: Any, codes: IntArray, project: Callable[[Any], FloatArray] = np.asarray) -> None:
        """Add a block of cells.

        Parameters
        ----------
        values
            ``(n_rows, n_columns)``, dense or CSR: values as they were read.
        codes
            ``(n_rows,)``: sample of each row.
        project
            Function that converts the values of the drawn cells to points.
        """
        hashes = cell_hashes(values, np.asarray(codes, dtype=np.int32), self._seed)
        rows = np.flatnonzero(hashes <= self._limits[codes])
        if not rows.size:
            return
        self._points.append(np.asarray(project(values[rows]), dtype=np.float64))
        self._codes, self._hashes = np.r_[self._codes, codes[rows]], np.r_[self._hashes, hashes[rows]]
        # Prune rarely, so that each cell is sorted only a few times instead of once per block.
        if self._codes.size > 2 * max(SUPPORT, self.most * self.n_samples):
            self._prune()

    def cells(self) -> tuple[Float64, Int64]:
        """Return the drawn cells, ``(n_drawn, n_dimensions)``, in the order of addition, and their samples."""
        self._prune()
        return np.concatenate(self._points), self._codes

    def by_sample(self) -> list[Float64]:
        """Return the drawn cells of each sample, ``(n_drawn, n_dimensions)`` each."""
        cells, codes = self.cells()
        ends = np.cumsum(np.bincount(codes, minlength=self.n_samples))
        return np.split(cells[np.argsort(codes, kind="stable")], ends[:-1])

    def _prune(self) -> None:
        """Keep the cells with the smallest hashes in each sample; of cells with equal hashes, keep the first."""
        order = np.lexsort((self._hashes, self._codes))
        starts = np.searchsorted(self._codes[order], np.arange(self.n_samples))
        rank = np.arange(order.size) - starts[self._codes[order]]
        last = order[rank == self.most - 1]
        self._limits[self._codes[last]] = self._hashes[last]
        kept = np.sort(order[rank < self.most])
        self._points = [np.concatenate(self._points)[kept]]
        self._codes, self._hashes = self._codes[kept], self._hashes[kept]


def support_bytes(n_cells: int, n_dimensions: int) -> int:
    """Return the approximate number of bytes that are needed to compute a `Support`.

    Memory is needed for four copies of the drawn cells (eight while cells are drawn), the graph of the cells, and the
    local means of all sizes. There are three to four times as many local means as cells, and their concatenation makes
    a second copy of them.
    """
    drawn = min(n_cells, SUPPORT)
    return drawn * (2 * 8 * 8 * n_dimensions + AROUND * EDGE_BYTES)


def hold_out(cells: Float64, own: IntArray, n_samples: int, n_jobs: int | None = None) -> Support:
    """Compute the `Support` of a reference from drawn cells, leaving out each of its (at least two) samples in turn."""
    threads = check_threads(n_jobs)
    widths, scores = hold_out_points(cells, own, np.ones(len(cells), dtype=bool), n_samples, threads)
    chances = left_out(scores, own, n_samples)
    n_cells, n_far = (np.bincount(part, minlength=n_samples).astype(np.int64) for part in (own, own[chances <= FAR]))
    evidence = _evidence(chances, own, n_cells)
    # Variance of the evidence of a cell within samples. It is at least the variance for uniform p-values, because with
    # few cells all p-values may be above the threshold.
    squares = float(np.sum((beyond(chances) - evidence[own]) ** 2))
    spread = max(squares / max(int(n_cells.sum()) - n_cells.size, 1), LEAST_SPREAD)
    means = hold_out_means(cells, own, n_samples, threads)
    return Support(cells, widths, np.sort(scores), n_cells, n_far, evidence, spread, means)


def _evidence(cell_p_values: Float64, codes: IntArray, n_cells: Int64) -> Float64:
    """Return the evidence of each sample, ``(n_samples,)``, from the p-values of its cells; see `Coverage`."""
    sums = np.bincount(codes, weights=beyond(cell_p_values), minlength=n_cells.size)
    return np.asarray(sums / np.maximum(n_cells, 1))
