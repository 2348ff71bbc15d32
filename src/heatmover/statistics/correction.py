"""Estimate the sampling noise of samples with random probes and remove it at every scale, for `statistics.noise` only.

The module reads the diffusion of a fitted model and works on plain arrays.

A probe is white noise g. The diffused value of the probe at a cell c is psi(c) = <g, e(c)>, where e(c) is the embedding
of the cell. For two cells, the product of their values, averaged over probes, is the inner product of their embeddings,
in the operator's own norm ``sum(f**2 / pi)`` (pi is the stationary distribution). Diffusing the probes once gives the
mean, the sampling noise and the difference of two halves for every sample at every scale.

Let v_i be the noise variance of sample i, and t the variance between samples beyond the noise (Paule and Mandel 1982).
Sample x_i is shrunk toward the center by the factor ``sqrt(t / (t + v_i))``. The corrected samples then vary as much as
the true samples, whatever their numbers of cells. The corrected samples are constrained empirical Bayes estimates
(Louis 1984, Ghosh 1992).

Noise varies in many directions, but true differences often vary in few directions. If samples vary far more along a
direction than the halves of one sample do, this direction is shrunk by its own factor. All other directions share one
factor, which is small if little true variation remains in these directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq
from scipy.special import gammaln, ndtr

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import in_threads
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover.embedding.preparation import Preparation

# Number of probes, and number of probes that are diffused at once. A norm estimated from 128 probes has an error of
# about one eighth at most scales. All samples use the same probes.
PROBES, TOGETHER = 128, 32
# Largest number of parts into which the cells of a sample are divided for the bootstrap. With 32 parts a 95% interval
# is 4% too narrow.
PARTS = 32
# If all samples together would have more than MOST_PARTS parts, each sample gets fewer parts, but at least four. With
# three parts, one half would be a single part, which has no variance.
MOST_PARTS, FEWEST_PARTS = 20_000, 4
# A single cell has no variance, and a few cells may miss a cell type altogether. A sample's variance estimate is
# therefore averaged with the variance pooled over all samples, which has the weight of 10 cells. In samples of 12
# cells, this average changed the share of intervals that contain the true distance by less than the uncertainty of this
# share.
BORROWED = 10


class Dealt(NamedTuple):
    """Cells of every sample, divided at random into parts, and again into halves.

    Attributes
    ----------
    parts
        ``(n_parts, n_nodes)``: measures of random parts of nearly equal size, sample after sample.
    starts
        ``(n_samples + 1,)``: where the parts of each sample begin and end.
    halves
        ``(n_samples, n_nodes)``: one half of the cells minus the other half, scaled so that the variance of the
        difference is the noise variance of the sample. Zero for a sample of one cell.
    """

    parts: sp.csr_array
    starts: Int64
    halves: sp.csr_array


def deal(counts: sp.csr_array, rng: np.random.Generator, most: int) -> Dealt:
    """Divide the cells of every sample at random into at most ``most`` parts, and into halves.

    Parameters
    ----------
    counts
        Number of cells of each sample at each node, ``(n_samples, n_nodes)``.
    rng
        Generator of the random order of the cells.
    most
        Largest number of parts of a sample.
    """
    n_samples = counts.shape[0]
    most = min(most, max(FEWEST_PARTS, MOST_PARTS // n_samples))
    part_of, nodes, signs, starts, edges = [], [], [], [0], [0]
    for row in range(n_samples):
        inside = slice(*counts.indptr[row : row + 2])
        cells = rng.permutation(np.repeat(counts.indices[inside], counts.data[inside].astype(np.int64)))
        n_parts = min(most, cells.size)
        part_of.append(starts[-1] + np.arange(cells.size) % n_parts)
        nodes.append(cells)
        signs.append(_half_signs(cells.size))
        starts.append(starts[-1] + n_parts)
        edges.append(edges[-1] + cells.size)
    shape = (starts[-1], counts.shape[1])
    places = (np.concatenate(part_of), np.concatenate(nodes))
    matrix = sp.csr_array((np.ones(places[0].size), places), shape=shape)
    halves = sp.csr_array((np.concatenate(signs), places[1], np.array(edges)), shape=counts.shape)
    parts = sp.csr_array(sp.diags_array(1 / matrix.sum(axis=1)) @ matrix)
    return Dealt(parts, np.array(starts, dtype=np.int64), halves)


def _half_signs(n_cells: int) -> Float64:
    """Return weights of cells with alternating signs; their sum of squares is ``1 / n_cells``, as for a mean."""
    other = n_cells // 2
    one = n_cells - other
    if not other:
        return np.zeros(n_cells)
    signs = np.where(np.arange(n_cells) % 2, -1 / other, 1 / one)
    return np.asarray(signs * np.sqrt(one * other) / n_cells)


class Sketch(NamedTuple):
    """Probe values of the samples at every scale; the last of ``n_scales + 1`` entries is for the sum of all scales.

    Attributes
    ----------
    sizes
        ``(n_samples,)``: number of cells of each sample.
    means
        ``(n_scales + 1, n_samples, n_probes)``: probe values of the samples, minus the mean over all samples.
    squares
        ``(n_scales + 1, n_samples)``: mean squared probe value over the cells of each sample and over the probes.
    halves
        ``(n_scales, n_samples, n_probes)``: differences of the halves of each sample. The differences contain only
        noise, with the variance of the noise in ``means``.
    parts
        ``(n_parts, n_probes)``: probe values of the parts, for the sum of all scales.
    starts
        ``(n_samples + 1,)``: where the parts of each sample begin and end.
    ratios
        ``(n_scales,)``: L1 norm of the noise divided by its standard deviation.
    """

    sizes: Int64
    means: FloatArray
    squares: Float64
    halves: FloatArray
    parts: FloatArray
    starts: Int64
    ratios: Float64

    def noise(self) -> Float64:
        """Return the sampling variance of each sample's embedding, ``(n_scales + 1, n_samples)``.

        Few cells give a poor estimate and a single cell gives none, so every estimate is averaged with the variance
        pooled over all samples.
        """
        sizes, alone = self.sizes, self.noise_alone()
        own = own_share(sizes)
        return np.asarray(own * alone + (1 - own) * pooled(alone, sizes)[:, None] / sizes)

    def noise_alone(self) -> Float64:
        """Return each sample's sampling variance from its own cells only; a single cell gets the pooled variance."""
        spread = np.maximum(self.squares - (self.means.astype(np.float64) ** 2).mean(axis=2), 0)
        alone = spread / np.maximum(self.sizes - 1, 1)
        return np.where(self.sizes > 1, alone, pooled(alone, self.sizes)[:, None])

    def retrieval(self) -> float | None:
        """Return the split-half retrieval; None with fewer than two samples of at least four cells."""
        many = np.flatnonzero(self.sizes >= 4)
        if many.size < 2:
            return None
        one, other = (
            np.stack([self.parts[self.starts[i] + half : self.starts[i + 1] : 2].mean(axis=0) for i in many])
            for half in (0, 1)
        )
        one, other = one.astype(np.float64), other.astype(np.float64)
        apart = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
        hits = (apart.argmin(axis=1) == np.arange(many.size), apart.argmin(axis=0) == np.arange(many.size))
        return float(np.mean(hits))


def pooled(noise: Float64, sizes: Int64) -> Float64:
    """Return the variance of one cell, pooled over samples of at least two cells, ``(n_scales + 1,)``."""
    freedom = np.where(sizes > 1, sizes - 1, 0)
    return np.asarray((noise * sizes) @ freedom / freedom.sum())


def own_share(sizes: Int64) -> Float64:
    """Return the weight of a sample's own variance estimate; the pooled estimate has the remaining weight."""
    return np.where(sizes > 1, sizes / (sizes + BORROWED), 0.0)


def sketch_samples(
    prepared: Preparation, counts: sp.csr_array, dealt: Dealt, rng: np.random.Generator, n_threads: int
) -> Sketch:
    """Diffuse random probes and average their values over the cells of each sample.

    Parameters
    ----------
    prepared
        Preparation of the fitted model.
    counts
        Number of cells of each sample at each node, ``(n_samples, n_nodes)``.
    dealt
        Result of `deal`.
    rng
        Generator of the probes.
    n_threads
        Number of threads; the result does not depend on this number.
    """
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # The squared norm is sum(f^2 / pi) for masses and sum(f^2 pi) for functions.
    metric = law if prepared.adjoint else 1 / law
    sizes = np.asarray(counts.sum(axis=1)).ravel().astype(np.int64)
    rows = sp.csr_array(sp.diags_array(1 / sizes) @ counts)
    n_scales, n_samples = len(layout.scales), rows.shape[0]
    starts = range(0, PROBES, TOGETHER)
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    signs[operator.nodes] = rng.choice(np.array([-1, 1], dtype=np.int8), size=signs.shape)
    means = np.empty((n_scales + 1, n_samples, PROBES), dtype=dtype)
    halves = np.empty((n_scales, n_samples, PROBES), dtype=dtype)
    squares = np.empty((len(starts), n_scales + 1, n_samples))
    norms = np.empty((len(starts), n_scales, 2))
    seen = np.empty((dealt.parts.shape[0], PROBES), dtype=dtype)
    masses, parts, differences = rows.astype(dtype), dealt.parts.astype(dtype), dealt.halves.astype(dtype)
    everything = np.asarray(rows.mean(axis=0), dtype=dtype).ravel()

    def look(number: int) -> None:
        columns = slice(starts[number], starts[number] + TOGETHER)
        total: FloatArray = np.zeros((operator.n_points, TOGETHER), dtype=dtype)

        def read(scale: int, values: FloatArray) -> None:
            values -= everything @ values
            means[scale, :, columns] = masses @ values
            if scale < n_scales:
                halves[scale, :, columns] = differences @ values
            np.square(values, out=values)
            squares[number, scale] = np.sum(masses @ values, axis=1, dtype=np.float64)

        probes = signs[:, columns] * np.sqrt(metric)[:, None]
        densities = list(prepared.diffuser.diffuse(probes.astype(dtype), layout.scales))
        for scale, shares in enumerate(layout.matrix):
            values: FloatArray = sum(
                (dtype.type(share) * density for share, density in zip(shares, densities, strict=True) if share),
                np.zeros_like(total),
            ) / metric[:, None].astype(dtype)
            total += values
            centered = values - everything @ values
            norms[number, scale] = (metric @ np.abs(centered)).sum(), (metric @ centered**2).sum()
            read(scale, values)
        seen[:, columns] = parts @ (total - everything @ total)
        read(n_scales, total)

    in_threads(look, range(len(starts)), n_threads)
    absolute, square = norms.sum(axis=0).T / PROBES
    ratios = absolute / np.sqrt(np.maximum(square, np.finfo(float).tiny))
    return Sketch(sizes, means, squares.sum(axis=0) / PROBES, halves, seen, dealt.starts, ratios)


# Sampling noise is concentrated on a few cells, so its L1 norm is smaller than the L1 norm of a smooth density of equal
# variance. The correction multiplies the deviation of a sample from the center by this power of the ratio of the two
# norms. With the power 1, small samples have the right mean distance, but their nearest distance is too large, because
# no other sample has mass on the same few cells. With too small a power, the nearest distance of small samples is too
# small. On the kidney cohort (634 samples of 2 to 415 items), the Spearman correlation of sample size and nearest
# distance was 0.41, 0.30, 0.16, 0.00, -0.18 and -0.47 for the powers 0.4, 0.5, 0.6, 0.7, 0.8 and 1. Nearest neighbors
# are most accurate with 0.6. Distances of simulated samples of at least 10 cells hardly depend on the power.
SPIKINESS = 0.6
# A direction has its own factor if the variance of the samples along it is more than this many times the largest
# variance of the noise along any direction. With 1.0, noise was mistaken for true differences: for 40 samples of 10 to
# 1,000 cells that hardly differ, the Spearman correlation with true distances was 0.39 instead of 0.44. With 1.5, noise
# was still mistaken for differences occasionally.
STANDS_OUT = 2.0
# Largest number of directions with their own factor, and smallest number of samples per direction. With more
# directions, each would be estimated from too few samples.
MOST_DIRECTIONS, SAMPLES_PER_DIRECTION = 16, 3
# The variance between samples is at least this share of its standard error. With a variance of zero, all corrected
# samples would coincide, even in groups that a permutation test distinguishes (decision record 29). With this limit,
# samples of one distribution have a mean distance of 0.05 to 0.2, compared with 0.7 to 1.0 before the correction. If
# samples differ, the limit has no effect.
LEAST_BETWEEN = 0.1
# Poisson distributions with a larger mean are treated as normal.
NORMAL = 200.0
# Values below this share of the largest value are rounding errors.
ROUNDING = 1e-9


@final
@dataclass(frozen=True, eq=False)
class Correction(ReadOnlyArrays):
    """Correction of the samples for small-sample bias.

    Attributes
    ----------
    between
        ``(n_scales,)``: variance between samples beyond the noise, at least a tenth of its standard error.
    excess
        ``(n_scales,)``: ``between`` without the lower limit; its expectation is zero if all samples come from one
        distribution.
    p_value
        P-value of the test that all samples come from one distribution; see `heterogeneity`.
    variance
        ``(n_scales, n_samples)``: total variance of a sample, the sum of its noise and ``between``.
    directions
        ``(n_scales, n_samples, n_directions)``: orthonormal combinations of samples; each combination is a direction
        with its own factor. A scale with fewer directions is filled up with zeros.
    factors
        ``(n_scales, n_samples, n_directions + 1)``: factors that shrink a sample toward the center along each
        direction and, last, along all other directions.
    """

    between: Float64
    excess: Float64
    p_value: float
    variance: Float64
    directions: Float64
    factors: Float64

    def apply(self, block: FloatArray, scale: int, largest: float) -> FloatArray:
        """Return the samples of one scale, corrected for small-sample bias.

        Parameters
        ----------
        block
            ``(n_samples, n_features)``: embedding of the samples at this scale.
        scale
            Index of the scale.
        largest
            Largest L1 norm of a density at this scale.
        """
        variance, dtype = self.variance[scale], block.dtype
        center, deviations = exchangeable(block, variance)
        along, rest = self.factors[scale, :, :-1], self.factors[scale, :, -1:]
        used = np.flatnonzero(self.directions[scale].any(axis=0))
        combined = self.directions[scale][:, used]
        moved = rest.astype(dtype) * deviations
        if used.size:
            moved += ((along[:, used] - rest) * combined).astype(dtype) @ (combined.T.astype(dtype) @ deviations)
        length = np.sqrt(variance)
        if largest > 0:  # a calibration may give a scale zero weight
            relative = variance / largest**2
            # L1 norm of a smooth density divided by the L1 norm of a sample of few cells with equal variance.
            smaller = np.sqrt(2 * relative / np.pi) / np.maximum(mean_deviation(relative), np.finfo(float).tiny)
            length = length * smaller**SPIKINESS
        return np.asarray(center + length[:, None].astype(dtype) * moved)


def correction_of(sketch: Sketch, noise: Float64) -> Correction:
    """Return the correction of the samples for small-sample bias.

    Parameters
    ----------
    sketch
        Probe values of the samples, from `sketch_samples`.
    noise
        ``(n_scales, n_samples)``: sampling variance of each sample.
    """
    n_scales, n_samples = noise.shape
    means = [sketch.means[scale].astype(np.float64) for scale in range(n_scales)]
    halves = sketch.halves.astype(np.float64)
    between, excess = np.array([variance_between(values, v) for values, v in zip(means, noise, strict=True)]).T
    errors = [standard_error(values, v) for values, v in zip(halves, noise, strict=True)]
    between = np.maximum(between, LEAST_BETWEEN * np.array(errors))
    most = min(MOST_DIRECTIONS, n_samples // SAMPLES_PER_DIRECTION)
    directions = np.zeros((n_scales, n_samples, most))
    factors = np.zeros((n_scales, n_samples, most + 1))
    for scale in np.flatnonzero(between):
        combined, along, rest = _factors(means[scale], halves[scale], noise[scale], between[scale], most)
        directions[scale, :, : combined.shape[1]] = combined
        factors[scale, :, : combined.shape[1]], factors[scale, :, -1] = along, rest
    return Correction(between, excess, heterogeneity(sketch, noise), between[:, None] + noise, directions, factors)


def heterogeneity(sketch: Sketch, noise: Float64) -> float:
    """Return the p-value of the test that all samples come from one distribution, for all scales together.

    If all n samples come from one distribution, the sum of their squared deviations, divided by the noise variance, is
    n - 1 on average. The sum follows a scaled chi-square distribution with (n - 1) f degrees of freedom, where f is the
    number of directions in which the noise varies.

    Parameters
    ----------
    sketch, noise
        As in `correction_of`.
    """
    joint, total, halves = _joint(sketch, noise)
    per_direction = _per_direction(halves, total)
    if not total.min() > 0 or per_direction is None:  # without noise every difference is real
        return float(not joint.any())
    rate = per_direction / (len(total) - 1)
    weights = 1 / total
    center = weights @ joint
    squares = weights @ (joint**2).mean(axis=1) - center @ center / joint.shape[1] / weights.sum()
    # Wilson and Hilferty: the cube root of a chi-square variable over its degrees of freedom is nearly normal.
    root = np.cbrt(max(squares, 0) / (len(total) - 1))
    return float(ndtr((1 - 2 * rate / 9 - root) / np.sqrt(2 * rate / 9)))


def standard_error(halves: Float64, noise: Float64) -> float:
    """Return the standard error of the variance between samples at one scale, assuming that samples do not differ.

    Parameters
    ----------
    halves
        ``(n_samples, n_probes)``: differences of the halves of each sample, which contain only noise.
    noise
        ``(n_samples,)``: sampling variance of each sample.
    """
    per_direction = _per_direction(halves, noise)
    if not noise.min() > 0 or per_direction is None:
        return 0.0
    weights = 1 / noise
    return float(np.sqrt(2 * (len(noise) - 1) * per_direction) / (weights.sum() - (weights**2).sum() / weights.sum()))


def _per_direction(halves: Float64, noise: Float64) -> float | None:
    """Return the inverse of the number of directions in which noise varies, from the halves of different samples."""
    known = (np.einsum("ip,ip->i", halves, halves) > 0) & (noise > 0)
    if known.sum() < 2:
        return None
    alone = halves[known] / np.sqrt(noise[known])[:, None]
    products = (alone @ alone.T / alone.shape[1]) ** 2
    return float(products.sum() - np.trace(products)) / (len(alone) * (len(alone) - 1))


def _joint(sketch: Sketch, noise: Float64) -> tuple[Float64, Float64, Float64]:
    """Return positions, noise variances and differences of halves of the samples, over all scales with equal weights.

    The shapes are ``(n_samples, n_scales * n_probes)``, ``(n_samples,)`` and ``(n_samples, n_scales * n_probes)``. A
    squared norm is a mean over probes and scales.
    """
    n_scales = len(noise)
    means, halves = sketch.means[:n_scales].astype(np.float64), sketch.halves.astype(np.float64)
    size = (means**2).mean(axis=(1, 2))
    unit = 1 / np.where(size > 0, size, 1)
    places, alone = (np.concatenate(list(x * np.sqrt(n_scales * unit)[:, None, None]), axis=1) for x in (means, halves))
    return places, unit @ noise, alone


def _factors(
    means: Float64, halves: Float64, noise: Float64, between: float, most: int
) -> tuple[Float64, Float64, Float64]:
    """Return the directions with their own shrinkage factor at one scale, their factors, and the common factors.

    Parameters
    ----------
    means, halves
        ``(n_samples, n_probes)``: positions of the samples, and differences of their halves.
    noise
        ``(n_samples,)``: sampling variance of each sample.
    between
        Variance between samples, positive.
    most
        Largest number of directions.

    Returns
    -------
    combined : ndarray of shape (n_samples, n_directions)
        Combinations of samples, one for each direction with its own factor.
    along : ndarray of shape (n_samples, n_directions)
        Factors along the directions.
    rest : ndarray of shape (n_samples,)
        Factors along all other directions.
    """
    variance = between + noise
    # Divide positions and halves by the standard deviation of each sample.
    places = exchangeable(means, variance)[1]
    alone = halves / np.sqrt(variance)[:, None]
    left, sizes, _ = np.linalg.svd(places, full_matrices=False)
    count = min(int((sizes**2 > STANDS_OUT * np.linalg.norm(alone, 2) ** 2).sum()), most)
    combined = left[:, :count]
    if not count:
        return combined, combined, np.sqrt(between / variance)

    def factor(shown: Float64, share: float) -> Float64:
        """Return the factors for the components ``shown`` of the positions, which contain ``share`` of the noise."""
        own = variance_between(shown * np.sqrt(variance)[:, None], share * noise)[0]
        return np.sqrt(own / np.maximum(own + share * noise, np.finfo(float).tiny))

    n_samples, n_probes = places.shape
    scores = combined.T @ places
    lengths = np.linalg.norm(scores, axis=1)
    # The noise along a direction is estimated from the halves, because they were not used to find the direction.
    known = np.einsum("ip,ip->i", alone, alone) > 0
    total = max((noise / variance)[known].sum() * n_probes, np.finfo(float).tiny)
    shares = ((alone @ (scores / lengths[:, None]).T) ** 2).sum(axis=0) / total
    along = [factor(combined[:, [i]] * lengths[i] / np.sqrt(n_probes), share) for i, share in enumerate(shares)]
    # Every direction removed from the deviations costs one degree of freedom.
    fewer = np.sqrt(1 - count / max(n_samples - 1, count + 1))
    rest = factor((places - combined @ scores) / fewer, max(1 - float(shares.sum()), ROUNDING))
    return combined, np.column_stack(along), rest


def even_distances(sketch: Sketch, noise: Float64) -> Float64:
    """Return L2 distances between samples scaled to equal variance, ``(n_samples, n_samples)``.

    All scales have equal weight, and one variance between samples is estimated for all scales together. With one
    variance per scale, a variance that is positive by chance would make samples of few cells vary more than other
    samples.

    Parameters
    ----------
    sketch, noise
        As in `correction_of`.
    """
    joint, total, _ = _joint(sketch, noise)
    places = exchangeable(joint, variance_between(joint, total)[0] + total)[1]
    own = (places**2).mean(axis=1)
    both = own[:, None] + own
    squares = both - 2 * places @ places.T / places.shape[1]
    # Because of rounding, the squared distance between equal samples is not zero but a small number, whose square
    # root is not small.
    squares[squares <= places.shape[1] * np.finfo(float).eps * both] = 0
    np.fill_diagonal(squares, 0)
    return np.asarray(np.sqrt((squares + squares.T) / 2))


def variance_between(places: Float64, noise: Float64) -> tuple[float, float]:
    """Return two estimates of the variance between samples beyond their noise: truncated at zero, and unbiased.

    The first estimate solves ``sum(|x_i - c|^2 / (t + v_i)) = n - 1`` for t, where c is the mean of the samples with
    the weights ``1 / (t + v_i)``. The second is the moment estimate at t = 0.

    Parameters
    ----------
    places
        ``(n_samples, n_probes)``: positions of the samples; a squared norm is a mean over probes.
    noise
        ``(n_samples,)``: sampling variance of each sample.
    """
    n_samples, n_probes = places.shape
    squares = (places**2).mean(axis=1)
    largest = max(float(squares.max()), float(noise.max()))
    if largest <= 0:  # equal samples without noise
        return 0.0, 0.0
    variance = np.maximum(noise, ROUNDING * largest)

    def beyond(t: float) -> float:
        weights = 1 / (t + variance)
        center = weights @ places
        return float(weights @ squares - center @ center / n_probes / weights.sum() - (n_samples - 1))

    weights = 1 / variance
    excess = beyond(0.0) / float(weights.sum() - (weights**2).sum() / weights.sum())
    if excess <= 0:
        return 0.0, excess
    high = 2 * float(squares.max()) + excess
    return float(brentq(beyond, 0.0, high, xtol=1e-15 * high)), excess


def exchangeable(block: FloatArray, variance: Float64) -> tuple[FloatArray, FloatArray]:
    """Return the weighted center of the samples, and their standardized deviations, rotated to be exchangeable.

    The standardized deviations y are orthogonal to the weights u, which are proportional to 1 / sqrt(variance). The
    rotation is ``y - (u + e)(e'y) / (1 + u'e)``, where all entries of e are equal. The rotated deviations have the
    covariance of deviations from an unweighted mean.
    """
    if not variance.any():  # equal samples without noise
        return block[:1], np.zeros_like(block)
    safe = np.maximum(variance, ROUNDING * variance.max())
    root = 1 / np.sqrt(safe / safe.max())
    weights = root / np.linalg.norm(root)
    equal = np.full(len(root), 1 / np.sqrt(len(root)))
    center = ((weights**2).astype(block.dtype) @ block)[None]
    deviations = (block - center) * (1 / np.sqrt(safe))[:, None].astype(block.dtype)
    mean = equal.astype(block.dtype) @ deviations
    deviations -= np.outer(((weights + equal) / (1 + weights @ equal)).astype(block.dtype), mean)
    return center, deviations


def mean_deviation(variance: Float64) -> Float64:
    """Return the mean absolute deviation of a Poisson variable with mean 1 / variance, divided by the mean."""
    mean = 1 / np.maximum(variance, np.finfo(float).tiny)
    few = np.minimum(mean, NORMAL)
    floor = np.floor(few)
    exact = 2 * np.exp((floor + 1) * np.log(few) - few - gammaln(floor + 1)) / few
    return np.asarray(np.where(mean > NORMAL, np.sqrt(2 * variance / np.pi), exact))
