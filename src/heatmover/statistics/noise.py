"""Estimate the sampling noise and confidence intervals of distances; for users, studies, atlases; touch no files.

The module reads the diffusion of a fitted model and works on plain arrays.

The cells of a sample are drawn at random, so the embedding of the sample is the true embedding plus noise. The variance
of the noise is the variance of one cell divided by the number of cells. `heatmover.statistics.correction` estimates
this variance for all samples, scales and replicates from one diffusion of random probes, and removes the noise.

The interval contains every true distance consistent with the observed one. In the L2 norm, which the probes estimate,
the squared distance between two samples is ``|d + z|^2``, with the true difference d and the noise z. Subtracting the
noise variance of both samples gives an unbiased estimate of ``|d|^2``. The estimate has the distribution of a quadratic
form. If the true squared distance is ``y = |d|^2``, the estimate has the mean y and the variance ``u + 4 y s``, where u
is the variance of ``|z|^2`` and s the variance of z along d. The skewness of the estimate follows from the spectrum of
the noise. These three moments give the quantiles of the distribution (Pearson III, with the cube-root approximation of
Wilson and Hilferty). The interval contains every y for which the estimate lies between the quantiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import ndtri

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import one_blas_thread
from heatmover._base.types import Bool, Float64, FloatArray, Int64
from heatmover._base.validation import (
    RandomState,
    as_array,
    check_integer,
    check_number,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted, verb
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD, check_fitted
from heatmover.errors import InvalidInputError, argument, in_python
from heatmover.measures import Measures
from heatmover.statistics.correction import (
    PARTS,
    Correction,
    Sketch,
    correction_of,
    deal,
    even_distances,
    mean_deviation,
    own_share,
    pooled,
    sketch_samples,
)
from heatmover.statistics.permutations import LEVEL

# Intervals are computed in the L2 norm and scaled to the L1 distance of the pair. The ratio of L1 to L2 distance varies
# with the noise in the pair. The relative standard deviation of the ratio was 0.11 to 0.16 for pairs whose distance is
# nearly all noise, and 0.01 for pairs with hardly any noise.
UNLIKE = 0.15
# In the bootstrap, a sample with fewer than four parts (two for each half of its cells) takes its noise entirely from
# other samples.
OWN_SPREAD = 4
# A distribution with a larger skewness has hardly any lower tail, and the cube-root approximation no longer holds.
MOST_SKEWED = 2.8
# If some directions have far more noise than others, three moments give too short a lower tail. The lower tail is
# therefore computed with this fraction of the skewness. Simulations covered six noise spectra, three directions of the
# true difference, and differences of 0.5 to 40 standard deviations. With this fraction, 94.6% to 97.4% of the intervals
# contained the true distance. With the full skewness, 90.7% to 96.9% did.
LOWER_TAIL = 0.87
# By chance, two samples can be closer than their noise suggests. The estimate is therefore raised to at least this
# quantile of its distribution at a true distance of zero. Otherwise an interval could be 0 to 0 and claim a certainty
# that the data do not support.
BY_CHANCE = 0.05
# The lower tail is tabulated up to this true distance, in standard deviations of the noise. For larger distances both
# tails are equal.
FARTHEST = 4.0
HALVINGS = 24
# Replaces a variance of zero; all powers of this number that are computed are still positive.
NOTHING = 1e-100


def intervals(
    sketch: Sketch, distances: Float64, n_bootstrap: int, confidence: float, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Return lower and upper confidence limits of the distances of all pairs, each ``(n_samples, n_samples)``.

    Parameters
    ----------
    sketch
        Probe values of the samples.
    distances
        L1 distances between the samples, ``(n_samples, n_samples)``.
    n_bootstrap
        Number of bootstrap replicates over cells.
    confidence
        Confidence level of the intervals.
    rng
        Generator of the replicates.
    """
    means = sketch.means[-1].astype(np.float64)
    squares = (means**2).mean(axis=1)
    apart = np.maximum(squares[:, None] + squares - 2 * means @ means.T / means.shape[1], 0)
    alone = sketch.noise_alone()[-1]
    noise = alone[:, None] + alone
    spread, along = _replicates(sketch, means, n_bootstrap, rng)
    pairs = np.triu_indices(len(means), 1)
    observed = apart[pairs]
    law = DistanceLaw(
        spread[pairs],
        along[pairs] / np.where(observed > 0, observed, 1),
        _skewness(sketch),
        noise[pairs],
        1 - confidence,
    )
    # Ratio of L1 to L2 distance; a pair at distance zero gets the median ratio of the other pairs.
    known = (apart > 0) & (distances > 0)
    scale = distances / np.sqrt(np.where(known, apart, 1))
    scale = np.where(known, scale, np.median(scale[known]) if known.any() else 0.0)
    limits = []
    for values in law.limits(observed - noise[pairs]):
        limit = np.zeros_like(apart)
        limit[pairs] = scale[pairs] * np.sqrt(values)
        limits.append(limit + limit.T)
    return limits[0], limits[1]


@final
@dataclass(frozen=True)
class DistanceLaw:
    """Distribution of the estimated squared distance of each pair, as a function of the true squared distance.

    Attributes
    ----------
    spread
        ``(n_pairs,)``: variance of the estimate if the true distance is zero.
    along
        ``(n_pairs,)``: variance of the noise along the true difference.
    skewness
        Skewness of the estimate if the true distance is zero.
    noise
        ``(n_pairs,)``: mean square of the noise.
    level
        Largest share of intervals that may miss the true value.
    """

    spread: Float64
    along: Float64
    skewness: float
    noise: Float64
    level: float

    def quantile(self, supposed: Float64, normal: Float64) -> Float64:
        """Return the quantile of the estimate for a supposed true squared distance.

        Parameters
        ----------
        supposed
            Supposed true squared distance of each pair, ``(n_pairs,)``.
        normal
            Standard normal quantile of the probability, ``(n_pairs,)``.
        """
        total = np.maximum(supposed + self.noise, NOTHING)
        unlike = (2 * UNLIKE * supposed) ** 2 * self.noise / total
        variance = np.maximum(self.spread + 4 * supposed * self.along + unlike, NOTHING)
        third = self.skewness * self.spread**1.5 + 24 * supposed * self.along**2
        bent = np.clip(third / variance**1.5, 1e-6, MOST_SKEWED) * np.where(normal < 0, LOWER_TAIL, 1.0)
        cube = np.maximum(1 + bent * normal / 6 - bent**2 / 36, 0) ** 3
        return np.asarray(supposed + np.sqrt(variance) * (2 / bent) * (cube - 1))

    def limits(self, estimate: Float64) -> tuple[Float64, Float64]:
        """Return the smallest and the largest squared distance consistent with the estimate, each ``(n_pairs,)``."""
        # The level is the share of intervals that may miss the true distance. A true distance of zero is missed only by
        # estimates that are too large, so its upper tail has the whole level. For a large true distance, both tails
        # have half of the level. In between, the lower tail grows from zero to half of the level, and the upper tail is
        # the remainder. Every true distance is therefore missed equally often. With equal tails everywhere, a distance
        # of zero would be missed half as often, and an estimate far below zero would have an empty interval.
        units = np.linspace(0, FARTHEST, 129)
        lower_tail = self.level / 2 * -np.expm1(-(units**2))
        below, above = ndtri(np.maximum(lower_tail, 1e-12)), -ndtri(self.level - lower_tail)
        unit = np.sqrt(np.maximum(self.spread, NOTHING))
        far = 2 * FARTHEST
        highest = np.maximum(estimate, 0) + far * unit + 4 * far**2 * self.along
        highest = highest + 9 * np.maximum(estimate, 0)

        def limit(estimate: Float64, normal: Float64) -> Float64:
            low, high = np.zeros_like(estimate), highest.copy()
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                under = self.quantile(middle, np.interp(middle / unit, units, normal)) < estimate
                low, high = np.where(under, middle, low), np.where(under, high, middle)
            return np.asarray((low + high) / 2)

        zero = np.zeros_like(estimate)
        excludes_zero = self.quantile(zero, np.full_like(zero, above[0])) < estimate
        lowest = self.quantile(zero, np.full_like(zero, ndtri(BY_CHANCE)))
        return np.where(excludes_zero, limit(estimate, above), 0.0), limit(np.maximum(estimate, lowest), below)


def _replicates(sketch: Sketch, means: Float64, n_bootstrap: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """Return two bootstrap moments of the noise z of every pair, each ``(n_samples, n_samples)``.

    The first moment is the variance of ``|z|^2``: twice the mean square of the inner product of two independent z, one
    from each half of the cells. The squares of single z would give too large a variance (by a factor of 1.1 to 1.7 on
    three kinds of data), because few parts vary in few directions. The second moment is the mean square of the inner
    product of z and the difference of the two samples.
    """
    n_samples, n_probes = means.shape
    spread, along = np.zeros((n_samples, n_samples)), np.zeros((n_samples, n_samples))
    for _ in range(n_bootstrap):
        one, other = _noise_replicates(sketch, rng)
        product = one @ (other.T / n_probes)
        own = product.diagonal()
        product = product + product.T
        product -= own[:, None] + own
        spread += np.square(product, out=product)
        whole = (one + other) / np.sqrt(2)
        inner = (means * whole).mean(axis=1)
        cross = means @ (whole.T / n_probes)
        cross = cross + cross.T
        cross -= inner[:, None] + inner
        along += np.square(cross, out=cross)
    return 2 * spread / n_bootstrap, along / n_bootstrap


def _noise_replicates(sketch: Sketch, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """Return the noise in two bootstrap replicates per sample, one from each half of its parts.

    Both arrays have the shape ``(n_samples, n_probes)`` and the noise variance of the whole sample.
    """
    starts, sizes = sketch.starts, sketch.sizes
    n_parts = np.diff(starts)
    # If no sample has enough parts for halves, both halves are the whole sample, and intervals are too wide.
    fewest, apart = (OWN_SPREAD, 2) if n_parts.max() >= OWN_SPREAD else (2, 1)
    # Noise of each sample, scaled to a single cell.
    units = np.zeros((2, len(sizes), sketch.parts.shape[1]))
    for count in np.unique(n_parts[n_parts >= fewest]):
        rows = np.flatnonzero(n_parts == count)
        for half, unit in enumerate(units):
            inside = np.arange(half * (apart - 1), count, apart)
            number = len(inside)
            weights = rng.multinomial(number, np.full(number, 1 / number), size=rows.size) - 1.0
            chosen = sketch.parts[starts[rows][:, None] + inside].astype(np.float64)
            # A part has sizes / count cells; scale its noise to one cell. The divisor is number - 1, because few
            # resampled parts vary too little.
            cells = sizes[rows] / count
            unit[rows] = np.einsum("ip,ipr->ir", weights, chosen) * np.sqrt(cells / (number - 1.0))[:, None]
    freedom = np.where(n_parts >= fewest, sizes - 1.0, 0)
    lender = rng.choice(len(sizes), size=len(sizes), p=freedom / freedom.sum())
    signs = rng.choice([-1.0, 1.0], size=len(sizes))
    own = np.where(freedom > 0, own_share(sizes), 0.0)
    mixed = np.sqrt(own)[:, None] * units + (np.sqrt(1 - own) * signs)[:, None] * units[:, lender]
    # Products of a cell with itself are left out, so n (n - 1) of n^2 products remain.
    one, other = mixed / np.sqrt(sizes * (1 - 1 / np.maximum(sizes, 2)) ** 0.5)[:, None]
    return one, other


def _skewness(sketch: Sketch) -> float:
    """Return the skewness of ``|z|^2`` for the noise z pooled over all samples."""
    starts, n_parts = sketch.starts[:-1], np.diff(sketch.starts)
    parts = sketch.parts.astype(np.float64)
    centers = np.add.reduceat(parts, starts, axis=0) / n_parts[:, None]
    alone = (parts - np.repeat(centers, n_parts, axis=0)) * np.sqrt(np.repeat(sketch.sizes / n_parts, n_parts))[:, None]
    spectrum = np.linalg.eigvalsh(alone.T @ alone)
    if spectrum.max() <= np.finfo(float).tiny:  # cells without any spread
        return 0.0
    spectrum = np.maximum(spectrum, 0) / spectrum.max()
    return float(np.sqrt(8) * (spectrum**3).sum() / (spectrum**2).sum() ** 1.5)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Uncertainty(ReadOnlyArrays):
    """Result of `uncertainty`: the sampling noise of samples, and confidence intervals of their distances.

    Attributes
    ----------
    sizes
        ``(n_samples,)``: number of cells of each sample.
    noise
        ``(n_samples, n_scales)``: sampling variance of a sample's embedding, finest scale first. For a sample of ten
        cells, half of the estimate comes from the variance pooled over all samples.
    correction
        Correction of the embedding for small-sample bias.
    distances
        ``(n_samples, n_samples)``: distances before the correction; None if neither intervals nor distances were
        requested.
    test_distances
        ``(n_samples, n_samples)``: distances for permutation tests, in the L2 norm of the operator, between samples
        scaled to equal variance. L1 distances are not used: even at equal variance, they depend on the number of cells
        of a sample, and a permutation test would mistake this dependence for an effect.
    lower, upper
        ``(n_samples, n_samples)``: limits of the pointwise confidence interval of the true distance of each pair; None
        without a bootstrap.
    confidence
        Confidence level of the intervals.
    n_bootstrap
        Number of bootstrap replicates.
    retrieval
        Split-half retrieval. Each sample of at least four cells is split at random into a first and a second half. For
        each first half, the nearest of all second halves is determined, and vice versa. The retrieval is the share of
        halves whose nearest half is from the same sample. None with fewer than two samples of at least four cells.
    floors
        ``(n_scales, 2)``: variance of the noise of a single cell, and ratio of the L1 norm of the noise to its standard
        deviation.
    weights
        ``(n_scales,)``: largest L1 norm of a density in each block of the embedding.
    edges
        ``(n_scales + 1,)``: columns at which the blocks of the embedding begin and end.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=50, effect=4.0)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points))
    >>> measures = hm.measures_from_labels(data.labels)
    >>> result = hm.uncertainty(model.fit(measures), measures)
    >>> result.distinguishable.shape, result.noise.shape == (12, model.n_scales_)
    ((12, 12), True)
    >>> result.noise_floor(50) > result.noise_floor(500)
    True
    """

    sizes: Int64
    noise: Float64
    correction: Correction
    distances: Float64 | None
    test_distances: Float64
    lower: Float64 | None
    upper: Float64 | None
    confidence: float
    n_bootstrap: int
    retrieval: float | None
    floors: Float64
    weights: Float64
    edges: Int64

    @property
    def between(self) -> Float64:
        """``(n_scales,)``: variance between samples beyond the noise, in the unit of ``noise``; at least zero."""
        return self.correction.between

    @property
    def p_value(self) -> float:
        """P-value of the test that all samples come from one distribution (total variance between samples)."""
        return self.correction.p_value

    @property
    def heterogeneity(self) -> str:
        """Sentence stating that the test of heterogeneity is not significant at 5%; empty if it is significant."""
        if self.p_value <= LEVEL:
            return ""
        return (
            "No evidence that the samples as a whole differ beyond sampling noise "
            f"(test of the total variance between samples, p = {self.p_value:.2g}). Tests of groups have more power."
        )

    @property
    def excess(self) -> Float64:
        """``(n_scales,)``: `between` without its lower limit; the expectation is zero if samples do not differ."""
        return self.correction.excess

    @property
    def distinguishable(self) -> Bool:
        """``(n_samples, n_samples)``: whether the interval of a pair excludes zero; False on the diagonal."""
        if self.lower is None:
            raise InvalidInputError(
                "intervals", "n_bootstrap=0", "request bootstrap replicates, such as n_bootstrap=200"
            )
        return np.asarray(self.lower > 0)

    @property
    def standard_error(self) -> Float64:
        """``(n_samples, n_samples)``: half the width of the interval, divided by the normal quantile of its level."""
        if self.lower is None or self.upper is None:
            raise InvalidInputError(
                "intervals", "n_bootstrap=0", "request bootstrap replicates, such as n_bootstrap=200"
            )
        return np.asarray((self.upper - self.lower) / (2 * ndtri((1 + self.confidence) / 2)))

    @property
    def expected_by_chance(self) -> str:
        """Remark on intervals that exclude zero by chance, in parentheses; empty if samples differ significantly."""
        if self.lower is None or self.p_value <= LEVEL or not self.distinguishable.any():
            return ""
        return f" (by chance alone, about {100 * (1 - self.confidence):.2g}% of the intervals exclude zero)"

    def noise_floor(self, n_cells: float, other: float | None = None) -> float:
        """Return the distance that sampling noise alone would put between two samples of one distribution.

        Parameters
        ----------
        n_cells, other
            Numbers of cells of the two samples; ``other`` defaults to ``n_cells``.
        """
        count = check_number("n_cells", n_cells, above=0)
        rate = 1 / count + 1 / (count if other is None else check_number("other", other, above=0))
        variance, ratio = self.floors.T
        relative = rate * variance / np.maximum(self.weights, np.finfo(float).tiny) ** 2
        return float(np.sum(self.weights * ratio * np.sqrt(np.pi / 2) * mean_deviation(relative)))

    @one_blas_thread()
    def correct(self, embedding: FloatArray) -> FloatArray:
        """Return the embedding of the samples, corrected for small-sample bias.

        At every scale a sample is shrunk toward the center by the square root of the share of its variance that is not
        noise. Each direction in which samples clearly differ has its own factor. All other directions share one factor.
        The center is closest to samples with many cells, so deviations from the center are not quite exchangeable. The
        deviations are therefore mixed by a rotation, the smallest one that gives all samples the same weight in the
        center. The rotated deviations are exchangeable to second order.

        Parameters
        ----------
        embedding
            Embedding of the samples in the order of ``sizes``, ``(n_samples, n_features)``.

        Returns
        -------
        ndarray
            Corrected embedding, ``(n_samples, n_features)``. Without evidence of differences, the rows nearly coincide.
        """
        n_samples = len(self.sizes)
        if embedding.shape != (n_samples, self.edges[-1]):
            expected = f"an embedding of shape ({n_samples}, {self.edges[-1]})"
            raise InvalidInputError(expected, f"shape {embedding.shape}")
        result = np.empty_like(embedding)
        for scale, (start, stop) in enumerate(pairwise(self.edges)):
            result[:, start:stop] = self.correction.apply(embedding[:, start:stop], scale, self.weights[scale])
        return result

    def describe(self, floor: Callable[[float], float] | None = None) -> str:
        """Return the result in plain sentences.

        Parameters
        ----------
        floor
            Function that replaces `noise_floor`, for instance to return distances in a real unit.
        """
        noise_floor, low, high = floor or self.noise_floor, int(self.sizes.min()), int(self.sizes.max())
        parts = []
        if self.retrieval is not None:
            parts.append(f"Split-half retrieval: {100 * self.retrieval:.0f}%.")
        cells, distance = counted(low, "cell"), noise_floor(low)
        words = f"Sampling noise alone would put two identical samples of {cells} {distance:.2g} apart"
        parts.append(words + (f" ({counted(high, 'cell')}: {noise_floor(high):.2g})." if high > low else "."))
        if self.heterogeneity:
            parts.append(self.heterogeneity)
        if self.lower is not None:
            pairs = self.distinguishable[np.triu_indices(len(self.sizes), 1)]
            count = int(pairs.sum())
            are = verb(count, "is", "are")
            parts.append(f"{count:,} of {counted(pairs.size, 'pair')} {are} distinguishable{self.expected_by_chance}.")
        return " ".join(parts)

    def plain(self, floor: Callable[[float], float] | None = None) -> dict[str, Any]:
        """Return the summary as plain values for JSON.

        Parameters
        ----------
        floor
            As in `describe`.
        """
        pairs = None if self.lower is None else self.distinguishable[np.triu_indices(len(self.sizes), 1)]
        noise_floor = floor or self.noise_floor
        return {
            "retrieval": self.retrieval,
            "noise_floor": {str(n): noise_floor(n) for n in self.typical_sizes},
            "between": self.between.tolist(),
            "excess": self.excess.tolist(),
            "p_value": self.p_value,
            "n_bootstrap": self.n_bootstrap,
            "confidence": self.confidence,
            "pairs": None if pairs is None else int(pairs.size),
            "pairs_distinguishable": None if pairs is None else int(pairs.sum()),
        }

    @property
    def typical_sizes(self) -> list[int]:
        """Numbers of cells in the smallest, the median and the largest sample, without duplicates."""
        return sorted({int(n) for n in np.quantile(self.sizes, [0, 0.5, 1], method="nearest")})

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Uncertainty({self.describe()})"


def uncertainty(
    model: DiffusionEMD,
    measures: Measures | npt.ArrayLike,
    sizes: npt.ArrayLike | None = None,
    *,
    embedding: FloatArray | None = None,
    n_bootstrap: int = 200,
    confidence: float = 0.95,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Uncertainty:
    """Estimate how much of the distances between samples is sampling noise, with confidence intervals.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        The samples ``(n_samples, n_points)``; all cells of one sample must have the same mass.
    sizes
        Number of cells of each sample, ``(n_samples,)``. Default: the number of points on which the sample has mass;
        these points must have equal masses.
    embedding
        ``model.transform(measures)``, if already computed.
    n_bootstrap
        Number of bootstrap replicates over cells; 0 for no intervals.
    confidence
        Confidence level of the intervals.
    random_state
        Seed or generator.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    Uncertainty
        Noise, correction and intervals.

    Examples
    --------
    >>> import numpy as np
    >>> import heatmover as hm
    >>> rng = np.random.default_rng(0)
    >>> points, labels = rng.normal(size=(660, 2)), np.repeat(["a", "b", "c"], [20, 40, 600])
    >>> measures = hm.measures_from_labels(labels)  # all from one distribution
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=15)).fit(measures)
    >>> result = hm.uncertainty(model, measures)
    >>> bool(result.distinguishable.any())
    False
    """
    check_fitted(model)
    check_integer("n_bootstrap", n_bootstrap, minimum=0)
    if not 0 < check_number("confidence", confidence, above=0) < 1:
        raise InvalidInputError("confidence in (0, 1)", f"{confidence!r}")
    counts = check_cells(measures, model.node_masses(measures), sizes)
    if embedding is None:
        embedding = model.transform(measures)
    distances = np.asarray(pairwise_distances(embedding, n_jobs=n_jobs), dtype=np.float64)
    return assess(
        model, counts, distances, n_bootstrap=n_bootstrap, confidence=confidence, random_state=random_state,
        n_threads=check_threads(n_jobs),
    )  # fmt: skip


@one_blas_thread()
def assess(
    model: DiffusionEMD,
    counts: sp.csr_array,
    distances: Float64 | None,
    *,
    n_bootstrap: int,
    confidence: float = 0.95,
    random_state: RandomState = 0,
    n_threads: int = 1,
) -> Uncertainty:
    """Return the result of `uncertainty` from numbers of cells and distances that the caller has computed.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    counts
        Number of cells of each sample at each node, ``(n_samples, n_nodes)``, from `check_cells`.
    distances
        Distances between the samples, ``(n_samples, n_samples)``; only a bootstrap needs them.
    n_bootstrap, confidence, random_state
        As in `uncertainty`.
    n_threads
        Number of threads.
    """
    rng, prepared = check_random_state(random_state), model.prepared_
    dealt = deal(counts, rng, PARTS if n_bootstrap else 2)
    sketch = sketch_samples(prepared, counts, dealt, rng, n_threads)
    sizes, noise = sketch.sizes, sketch.noise()
    bounds: tuple[Float64 | None, Float64 | None] = (None, None)
    correction, even = correction_of(sketch, noise[:-1]), even_distances(sketch, noise[:-1])
    if n_bootstrap:
        assert distances is not None
        bounds = intervals(sketch, distances, n_bootstrap, confidence, rng)
    return Uncertainty(
        sizes, np.ascontiguousarray(noise[:-1].T), correction, distances,
        even, *bounds, float(confidence), int(n_bootstrap),
        sketch.retrieval(), np.stack([pooled(noise, sizes)[:-1], sketch.ratios], axis=1),
        np.abs(prepared.layout.matrix).max(axis=1), np.asarray(prepared.layout.edges, dtype=np.int64),
    )  # fmt: skip


def check_cells(measures: Any, rows: Any, sizes: npt.ArrayLike | None) -> sp.csr_array:
    """Return the number of cells of each sample at each node, ``(n_samples, n_nodes)``; reject weighted cells.

    Parameters
    ----------
    measures, sizes
        As in `uncertainty`.
    rows
        Masses of the samples on the nodes, from the model's ``node_masses``.
    """
    masses = sp.csr_array(measures.masses if isinstance(measures, Measures) else measures)
    if sizes is None:
        cells = np.diff(masses.indptr)
    else:
        cells = as_array("sizes", sizes)
        if cells.shape != (masses.shape[0],) or cells.dtype.kind not in "iuf":
            raise InvalidInputError(
                f"{argument('sizes')}: the number of cells of each of the {counted(masses.shape[0], 'sample')}",
                f"shape {cells.shape} of {cells.dtype}",
            )
    counts = sp.csr_array(sp.diags_array(cells.astype(np.float64)) @ sp.csr_array(rows))
    whole = np.rint(counts.data)
    if not np.allclose(counts.data, whole, rtol=1e-6, atol=1e-6) or (cells < 1).any():
        raise InvalidInputError(
            "samples without weights on cells, because sampling noise is estimated from numbers of cells",
            "weights" if sizes is None else "weights, or masses that are not whole numbers of cells",
            f"leave weights out or use {argument('bias', 'raw')}"
            f"{in_python(', or pass the numbers of cells to hm.uncertainty')}",
        )
    counts.data = whole
    if len(cells) < 2 or cells.max() < 2:
        raise InvalidInputError(
            "at least two samples, one of them with at least two cells, to estimate sampling noise",
            f"{counted(len(cells), 'sample')} with at most {counted(int(cells.max()), 'cell')}",
            f"use {argument('bias', 'raw')}",
        )
    return counts
