"""`uncertainty`: how much of a distance is luck of the draw, what is left without it, and how sure that is.

A sample is a draw of cells, so that its embedding x is the true one plus noise, whose variance is that of one cell
divided by the number of cells. `heatmover.statistics.correction` estimates it for all samples, all scales and all
replicates from one diffusion of random probes, and removes it.

An interval holds every true distance that would not make the observed one rare. In the L2 norm that probes see, two
samples lie ``|d + z|^2`` apart, with the true difference d and the noise z. That less the noise of both samples
estimates ``|d|^2`` without bias, and its law is that of a quadratic form: for a supposed ``y = |d|^2`` its mean is y,
its variance ``u + 4 y s`` with u that of ``|z|^2`` and s the variance of z along d, and its skewness follows from the
spectrum of the noise. Three moments give the quantiles (Pearson III, with the cube root of Wilson and Hilferty), and
the interval holds every y whose quantiles enclose the estimate.
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
from sklearn.utils.validation import check_is_fitted

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import by_one_blas_thread
from heatmover._base.types import Bool, Float64, FloatArray, Int64
from heatmover._base.validation import (
    RandomState,
    as_array,
    check_integer,
    check_number,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, argument
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

__all__ = ["Uncertainty", "assess", "check_cells", "uncertainty"]

# Intervals are those of an L2 norm, in units of the L1 distance of the same pair. The ratio of the two varies with the
# noise in the pair: its standard deviation was 0.11 to 0.16 of it where nearly all is noise, 0.01 where hardly any is.
UNLIKE = 0.15
# Cells of a sample are dealt into two halves of at least two parts: below, it borrows all of its spread.
OWN_SPREAD = 4
# A law of more skewness than this hardly has a lower tail, and the cube root no longer follows it.
MOST_SKEWED = 2.8
# Where some directions have far more noise than others the lower tail is longer than that of a law of three moments.
# With this share of the skewness the truth was held in 0.946 to 0.974 (six spectra, the truth in three ways to lie in
# them, at 0.5 to 40 standard deviations), with all of it in 0.907 to 0.969.
LOWER_TAIL = 0.87
# Two samples may be nearer by luck than noise allows for. An estimate that is smaller than so many would be at a true
# distance of zero counts as that quantile: an interval from 0 to 0 would look sure of what it cannot know.
LUCK = 0.05
# Where tails are tabulated, in standard deviations of the noise; beyond, both are equal.
FARTHEST = 4.0
HALVINGS = 24
# In place of a variance of zero; its powers are numbers still.
NOTHING = 1e-100


def intervals(
    sketch: Sketch, distances: Float64, n_bootstrap: int, confidence: float, rng: np.random.Generator
) -> tuple[Float64, Float64]:
    """Return lower and upper limits for all pairs, twice ``(n_samples, n_samples)``.

    Parameters
    ----------
    sketch
        Of the samples.
    distances
        Their L1 distances, ``(n_samples, n_samples)``.
    n_bootstrap
        Replicates of the bootstrap over cells.
    confidence
        Of the intervals.
    rng
        Generator.
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
    scale = _scale(distances, apart)
    limits = []
    for values in law.limits(observed - noise[pairs]):
        limit = np.zeros_like(apart)
        limit[pairs] = scale[pairs] * np.sqrt(values)
        limits.append(limit + limit.T)
    return limits[0], limits[1]


@final
@dataclass(frozen=True)
class DistanceLaw:
    """DistanceLaw of the estimated squared distance of each of several pairs, for any supposed true one.

    Attributes
    ----------
    spread
        ``(n_pairs,)``: variance of the estimate if the true distance is zero.
    along
        ``(n_pairs,)``: variance of the noise along the true difference.
    skewness
        Of the estimate if the true distance is zero.
    noise
        ``(n_pairs,)``: mean square of the noise.
    level
        How often a true value may be left out.
    """

    spread: Float64
    along: Float64
    skewness: float
    noise: Float64
    level: float

    def quantile(self, supposed: Float64, normal: Float64) -> Float64:
        """Return where the estimate lies, for a supposed squared distance, as rarely as a normal variable here."""
        total = np.maximum(supposed + self.noise, NOTHING)
        unlike = (2 * UNLIKE * supposed) ** 2 * self.noise / total
        variance = np.maximum(self.spread + 4 * supposed * self.along + unlike, NOTHING)
        third = self.skewness * self.spread**1.5 + 24 * supposed * self.along**2
        bent = np.clip(third / variance**1.5, 1e-6, MOST_SKEWED) * np.where(normal < 0, LOWER_TAIL, 1.0)
        cube = np.maximum(1 + bent * normal / 6 - bent**2 / 36, 0) ** 3
        return np.asarray(supposed + np.sqrt(variance) * (2 / bent) * (cube - 1))

    def tails(self) -> tuple[Float64, Float64, Float64]:
        """Return supposed squared distances in units of their standard deviation at zero, and normal quantiles there.

        A distance of zero is left out if the estimate is too large, never because it is too small; a large one as often
        for either reason. In between the lower tail grows from nothing to half of the level, and the upper one is the
        rest, so that every true value is left out as rarely. Were both tails halves everywhere, zero would be left out
        half as often, and the interval of an estimate far below zero would be empty.
        """
        units = np.linspace(0, FARTHEST, 129)
        below = self.level / 2 * -np.expm1(-(units**2))
        return units, ndtri(np.maximum(below, 1e-12)), -ndtri(self.level - below)

    def limits(self, estimate: Float64) -> tuple[Float64, Float64]:
        """Return the smallest and the largest squared distance that agree with the estimate, each ``(n_pairs,)``."""
        units, below, above = self.tails()
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
        told = self.quantile(zero, np.full_like(zero, above[0])) < estimate
        lowest = self.quantile(zero, np.full_like(zero, ndtri(LUCK)))
        return np.where(told, limit(estimate, above), 0.0), limit(np.maximum(estimate, lowest), below)


def _scale(distances: Float64, apart: Float64) -> Float64:
    """Return the L1 distance of each pair over its L2 distance; of pairs without any, the median of the others."""
    known = (apart > 0) & (distances > 0)
    ratio = distances / np.sqrt(np.where(known, apart, 1))
    return np.where(known, ratio, np.median(ratio[known]) if known.any() else 0.0)


def _replicates(sketch: Sketch, means: Float64, n_bootstrap: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
    """Return what bootstrap samples show of the noise z of every pair, twice ``(n_samples, n_samples)``.

    The variance of ``|z|^2``, and the mean square of z along the difference, times its length. The first is twice the
    mean square of the product of two independent z, one from either half of the cells. A single z, of few parts,
    varies in few directions, and its own square too much: 1.1 to 1.7 times on three kinds of data.
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
    """Return the noise of a bootstrap sample of each sample, from either half of its parts, ``(n_samples, n_probes)``.

    Both have the variance of the noise of the whole sample.
    """
    starts, sizes = sketch.starts, sketch.sizes
    n_parts = np.diff(starts)
    # Where no sample has halves, both are all of it: intervals are too wide then.
    fewest, apart = (OWN_SPREAD, 2) if n_parts.max() >= OWN_SPREAD else (2, 1)
    # Of one cell each, in units of its standard deviation.
    units = np.zeros((2, len(sizes), sketch.parts.shape[1]))
    for count in np.unique(n_parts[n_parts >= fewest]):
        rows = np.flatnonzero(n_parts == count)
        for half, unit in enumerate(units):
            inside = np.arange(half * (apart - 1), count, apart)
            number = len(inside)
            weights = rng.multinomial(number, np.full(number, 1 / number), size=rows.size) - 1.0
            chosen = sketch.parts[starts[rows][:, None] + inside].astype(np.float64)
            # A part has sizes / count cells, and a bootstrap of few parts varies too little.
            cells = sizes[rows] / count
            unit[rows] = np.einsum("ip,ipr->ir", weights, chosen) * np.sqrt(cells / (number - 1.0))[:, None]
    freedom = np.where(n_parts >= fewest, sizes - 1.0, 0)
    lender = rng.choice(len(sizes), size=len(sizes), p=freedom / freedom.sum())
    signs = rng.choice([-1.0, 1.0], size=len(sizes))
    own = np.where(freedom > 0, own_share(sizes), 0.0)
    mixed = np.sqrt(own)[:, None] * units + (np.sqrt(1 - own) * signs)[:, None] * units[:, lender]
    # Without products of a cell with itself n (n - 1) are left of n^2.
    one, other = mixed / np.sqrt(sizes * (1 - 1 / np.maximum(sizes, 2)) ** 0.5)[:, None]
    return one, other


def _skewness(sketch: Sketch) -> float:
    """Return the skewness of ``|z|^2`` for the noise z that all samples have together."""
    starts, n_parts = sketch.starts[:-1], np.diff(sketch.starts)
    parts = sketch.parts.astype(np.float64)
    centers = np.add.reduceat(parts, starts, axis=0) / n_parts[:, None]
    alone = (parts - np.repeat(centers, n_parts, axis=0)) * np.sqrt(np.repeat(sketch.sizes / n_parts, n_parts))[:, None]
    spectrum = np.linalg.eigvalsh(alone.T @ alone)
    if spectrum.max() <= np.finfo(float).tiny:  # cells without any spread
        return 0.0
    spectrum = np.maximum(spectrum, 0) / spectrum.max()
    return float(np.sqrt(8) * (spectrum**3).sum() / (spectrum**2).sum() ** 1.5)


# Above this p-value the test of all samples together gives no evidence that they differ.
LEVEL = 0.05


@final
@dataclass(frozen=True, eq=False, repr=False)
class Uncertainty(ReadOnlyArrays):
    """Noise of samples and what it does to their distances; `uncertainty` makes one, ``print`` it.

    Attributes
    ----------
    sizes
        ``(n_samples,)``: cells of each sample.
    noise
        ``(n_samples, n_scales)``: variance of a sample's embedding by the luck of the draw, finest scale first. Few
        cells say little of their spread: a sample of ten has half of it from the spread of all samples.
    correction
        Where samples go without their noise.
    distances
        ``(n_samples, n_samples)``: as they are, with their noise; None if nobody needed them, for no intervals were
        asked for.
    test_distances
        ``(n_samples, n_samples)``: for permutation tests, of samples that all vary alike, in the L2 norm of the
        operator. The L1 norm tells the spikes of few cells from the many smaller ones of more cells even if both have
        the same variance, which a permutation test takes for a difference.
    lower, upper
        ``(n_samples, n_samples)``: interval of the distance that infinitely many cells would show, for every pair by
        itself; None without a bootstrap.
    confidence
        Of the intervals.
    n_bootstrap
        Replicates.
    retrieval
        Share of random halves of samples that are nearest to their own other half, among the other halves of all
        samples of at least four cells; None if there are fewer than two such samples.
    floors
        ``(n_scales, 2)``: of the noise of single cells, variance and ratio of L1 norm to standard deviation.
    weights
        ``(n_scales,)``: the largest L1 norm of a density in each block of the embedding.
    edges
        ``(n_scales + 1,)``: where the blocks of the embedding begin and end.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=50, effect=4.0)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points))
    >>> measures = hm.measures_from_labels(data.labels)
    >>> found = hm.uncertainty(model.fit(measures), measures)
    >>> found.told_apart.shape, found.noise.shape == (12, model.n_scales_)
    ((12, 12), True)
    >>> found.noise_floor(50) > found.noise_floor(500)
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
        """``(n_scales,)``: variance between samples beyond the noise, in the unit of ``noise``; never negative."""
        return self.correction.between

    @property
    def p_value(self) -> float:
        """Of the test that all samples are draws from one distribution (total variance between samples)."""
        return self.correction.p_value

    @property
    def heterogeneity(self) -> str:
        """The result of that test, if it is not significant at 5%, as a sentence; else nothing."""
        if self.p_value <= LEVEL:
            return ""
        return (
            "No evidence that the samples as a whole differ beyond sampling noise "
            f"(test of the total variance between samples, p = {self.p_value:.2g}); tests of groups have more power."
        )

    @property
    def excess(self) -> Float64:
        """The same without a limit at zero: its expectation is zero if all samples come from one distribution."""
        return self.correction.excess

    @property
    def told_apart(self) -> Bool:
        """``(n_samples, n_samples)``: whether a pair differs by more than noise, False on the diagonal."""
        if self.lower is None:
            raise InvalidInputError("intervals", "n_bootstrap=0", "ask for replicates, such as n_bootstrap=200")
        return np.asarray(self.lower > 0)

    @property
    def standard_error(self) -> Float64:
        """``(n_samples, n_samples)``: half the width of the interval over the normal quantile of its confidence."""
        if self.lower is None or self.upper is None:
            raise InvalidInputError("intervals", "n_bootstrap=0", "ask for replicates, such as n_bootstrap=200")
        return np.asarray((self.upper - self.lower) / (2 * _quantile(self.confidence)))

    @property
    def by_luck(self) -> str:
        """How many pairs differ by chance, as the end of a sentence, where the samples do not; else nothing."""
        if self.lower is None or self.p_value <= LEVEL or not self.told_apart.any():
            return ""
        return f", where chance alone gives about {100 * (1 - self.confidence):.2g}%"

    def noise_floor(self, n_cells: float, other: float | None = None) -> float:
        """Return the expected distance between two samples of one distribution, that of a typical cell here.

        Parameters
        ----------
        n_cells, other
            Cells of the two samples; as many in both if only one number is given.
        """
        count = check_number("n_cells", n_cells, above=0)
        rate = 1 / count + 1 / (count if other is None else check_number("other", other, above=0))
        variance, ratio = self.floors.T
        relative = rate * variance / np.maximum(self.weights, np.finfo(float).tiny) ** 2
        return float(np.sum(self.weights * ratio * np.sqrt(np.pi / 2) * mean_deviation(relative)))

    @by_one_blas_thread
    def correct(self, embedding: FloatArray) -> FloatArray:
        """Return the embedding of the same samples without their noise, as far as it can be told.

        At every scale a sample's distance from the center shrinks by the square root of the share of the variance
        that is not noise, along every direction in which samples clearly differ and, together, in all others. The
        center is nearest to the samples with many cells, and deviations from it are not quite exchangeable; the
        smallest rotation among samples that takes the weights of the center to equal ones makes them so, to second
        order.

        Parameters
        ----------
        embedding
            ``(n_samples, n_features)``, of the samples in the order of ``sizes``.

        Returns
        -------
        ndarray
            ``(n_samples, n_features)``: without evidence of differences, samples nearly coincide.
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
        """Return what was found in plain sentences.

        Parameters
        ----------
        floor
            What to tell in place of `noise_floor`, such as the same in another unit.
        """
        told, low, high = floor or self.noise_floor, int(self.sizes.min()), int(self.sizes.max())
        parts = []
        if self.retrieval is not None:
            parts.append(f"A half of a sample finds its other half: {100 * self.retrieval:.0f} %.")
        words = f"Two samples of {counted(low, 'cell')} from one distribution would be {told(low):.2g} apart"
        parts.append(words + (f", of {counted(high, 'cell')} {told(high):.2g}." if high > low else "."))
        if self.heterogeneity:
            parts.append(self.heterogeneity)
        if self.lower is not None:
            pairs = self.told_apart[np.triu_indices(len(self.sizes), 1)]
            parts.append(f"{int(pairs.sum()):,} of {counted(pairs.size, 'pair')} can be told apart{self.by_luck}.")
        return " ".join(parts)

    def plain(self, floor: Callable[[float], float] | None = None) -> dict[str, Any]:
        """Return what describes the whole as plain values for JSON.

        Parameters
        ----------
        floor
            As in `describe`.
        """
        pairs = None if self.lower is None else self.told_apart[np.triu_indices(len(self.sizes), 1)]
        told = floor or self.noise_floor
        return {
            "retrieval": self.retrieval,
            "noise_floor": {str(n): told(n) for n in self.typical_sizes},
            "between": self.between.tolist(),
            "excess": self.excess.tolist(),
            "p_value": self.p_value,
            "n_bootstrap": self.n_bootstrap,
            "confidence": self.confidence,
            "pairs": None if pairs is None else int(pairs.size),
            "pairs_told_apart": None if pairs is None else int(pairs.sum()),
        }

    @property
    def typical_sizes(self) -> list[int]:
        """Cells of the smallest, the median and the largest sample; fewer if numbers are equal."""
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
    """Tell how much of the distances between samples is noise, with an interval for every pair.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        The samples ``(n_samples, n_points)``: every cell of a sample has the same mass.
    sizes
        Cells of each sample, ``(n_samples,)``. Default: as many as the sample has points, if these have equal masses.
    embedding
        ``model.transform(measures)``, if it is known.
    n_bootstrap
        Replicates of the bootstrap over cells; 0 for no intervals.
    confidence
        Of the intervals.
    random_state
        Seed or generator.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    Uncertainty
        Noise, corrected embedding, intervals.

    Examples
    --------
    >>> import numpy as np
    >>> import heatmover as hm
    >>> rng = np.random.default_rng(0)
    >>> points, labels = rng.normal(size=(660, 2)), np.repeat(["a", "b", "c"], [20, 40, 600])
    >>> measures = hm.measures_from_labels(labels)  # all from one distribution
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=15)).fit(measures)
    >>> found = hm.uncertainty(model, measures)
    >>> bool(found.told_apart.any())
    False
    """
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError("model to be a DiffusionEMD", type(model).__name__)
    check_is_fitted(model)
    check_integer("n_bootstrap", n_bootstrap, minimum=0)
    if not 0 < check_number("confidence", confidence, above=0) < 1:
        raise InvalidInputError("confidence in (0, 1)", f"{confidence!r}")
    counts = check_cells(model, measures, sizes)
    if embedding is None:
        embedding = model.transform(measures)
    distances = np.asarray(pairwise_distances(embedding, n_jobs=n_jobs), dtype=np.float64)
    return assess(
        model, counts, distances, n_bootstrap=n_bootstrap, confidence=confidence, random_state=random_state,
        n_threads=check_threads(n_jobs),
    )  # fmt: skip


@by_one_blas_thread
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
    """Return what `uncertainty` does, of samples that were counted and compared already.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    counts
        Cells of each sample at each node, ``(n_samples, n_nodes)``, from `check_cells`.
    distances
        Between the samples, ``(n_samples, n_samples)``; only a bootstrap needs them.
    n_bootstrap, confidence, random_state
        As in `uncertainty`.
    n_threads
        Threads to use.
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


def check_cells(model: DiffusionEMD, measures: Any, sizes: npt.ArrayLike | None) -> sp.csr_array:
    """Return the number of cells of each sample at each node, ``(n_samples, n_nodes)``, or raise if cells have weights.

    Parameters
    ----------
    model, measures, sizes
        As in `uncertainty`.
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
    nodes = sp.csr_array(model.node_masses(measures))
    counts = sp.csr_array(sp.diags_array(cells.astype(np.float64)) @ nodes)
    whole = np.rint(counts.data)
    if not np.allclose(counts.data, whole, rtol=1e-6, atol=1e-6) or (cells < 1).any():
        raise InvalidInputError(
            "samples whose cells count alike, for the noise of a sample comes from its number of cells",
            "weights" if sizes is None else "weights, or masses that are no whole numbers of cells",
            f"leave weights out, or compare with {argument('bias', 'raw')}; hm.uncertainty takes the numbers of cells",
        )
    counts.data = whole
    if len(cells) < 2 or cells.max() < 2:
        raise InvalidInputError(
            "at least two samples, one of them of at least two cells, to tell noise from difference",
            f"{len(cells)} of at most {counted(int(cells.max()), 'cell')}",
            f"compare with {argument('bias', 'raw')}",
        )
    return counts


def _quantile(confidence: float) -> float:
    return float(ndtri((1 + confidence) / 2))
