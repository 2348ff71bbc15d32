"""Sampling noise of samples, seen through random probes, and samples without it, scale by scale.

With white noise g, a diffused probe has at every cell the value psi(c) = <g, e(c)>, where e(c) is the cell's embedding.
Means over probes of products of psi are inner products of embeddings, in the norm ``sum(f**2 / pi)`` that the operator
has by itself (pi is the stationary law). One diffusion gives means, noise and halves of all samples at every scale.

With v_i the noise of sample i and t the variance between samples that is not noise (Paule and Mandel 1982), x_i is
moved towards the center by ``sqrt(t / (t + v_i))``: the samples then vary as the true ones do, whatever their numbers
of cells. These are constrained empirical Bayes estimates (Louis 1984, Ghosh 1992).

Noise has many directions, and true differences often few. A direction in which samples vary far more than halves of
one sample do gets a factor of its own, and what is left another one, which is small where true differences are few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaln, ndtr

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import in_threads
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover.embedding.preparation import Preparation

__all__ = [
    "PARTS",
    "Correction",
    "Sketch",
    "correction_of",
    "deal",
    "even_distances",
    "mean_deviation",
    "own_share",
    "pooled",
    "sketch_samples",
]

# Probes, and how many are diffused together. A norm seen by 128 of them is off by an eighth at most scales, and what is
# compared is seen by the same ones.
PROBES, TOGETHER = 128, 32
# Cells of a sample are dealt into at most so many parts for the bootstrap: with 32 a 95 % interval is 4 % too narrow.
PARTS = 32
# Fewer if samples are very many; never so few that halves of them have no spread.
MOST_PARTS, FEWEST_PARTS = 20_000, 4
# A single cell has no spread, and few cells may lack a kind of cells altogether: a sample borrows as much of its spread
# as so many cells say from those of all samples. For 12 cells it changed the coverage of intervals by less than its
# error.
BORROWED = 10


@final
@dataclass(frozen=True)
class Dealt:
    """The cells of every sample dealt at random.

    Attributes
    ----------
    parts
        ``(n_parts, n_nodes)``: measures of parts of equal sizes, sample after sample.
    starts
        ``(n_samples + 1,)``: where the parts of each sample begin and end.
    halves
        ``(n_samples, n_nodes)``: one half less the other, so that its variance is the noise of the sample; empty for a
        sample of one cell.
    """

    parts: sp.csr_array
    starts: Int64
    halves: sp.csr_array


def deal(counts: sp.csr_array, rng: np.random.Generator, most: int) -> Dealt:
    """Deal the cells of every sample into at most ``most`` parts, and into halves.

    Parameters
    ----------
    counts
        Cells of each sample at each node, ``(n_samples, n_nodes)``.
    rng
        Generator.
    most
        Parts of a sample.
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
    """Return weights of cells, plus and minus in turn, whose sum of squares is that of a mean: ``1 / n_cells``."""
    other = n_cells // 2
    one = n_cells - other
    if not other:
        return np.zeros(n_cells)
    signs = np.where(np.arange(n_cells) % 2, -1 / other, 1 / one)
    return np.asarray(signs * np.sqrt(one * other) / n_cells)


@final
@dataclass(frozen=True)
class Sketch:
    """Samples seen through probes, at every scale and, last, all blocks of a node added up.

    Attributes
    ----------
    sizes
        ``(n_samples,)``: cells of each sample.
    means
        ``(n_scales + 1, n_samples, n_probes)``: of the samples, less that of all.
    squares
        ``(n_scales + 1, n_samples)``: mean square of the cells of each sample, over the probes.
    halves
        ``(n_scales, n_samples, n_probes)``: nothing but noise, with the variance of that in ``means``.
    parts
        ``(n_parts, n_probes)``: of the parts, all blocks added up.
    starts
        Where the parts of each sample begin and end.
    ratios
        ``(n_scales,)``: L1 norm of noise over its standard deviation.
    """

    sizes: Int64
    means: FloatArray
    squares: Float64
    halves: FloatArray
    parts: FloatArray
    starts: Int64
    ratios: Float64

    def noise(self) -> Float64:
        """Return the variance of each sample's embedding, ``(n_scales + 1, n_samples)``.

        Few cells say little of their spread, a single one nothing: a sample borrows from those of all samples.
        """
        sizes, alone = self.sizes, self.noise_alone()
        own = own_share(sizes)
        return np.asarray(own * alone + (1 - own) * pooled(alone, sizes)[:, None] / sizes)

    def noise_alone(self) -> Float64:
        """Return the same as each sample tells it by itself, without bias; a single cell has that of all samples."""
        spread = np.maximum(self.squares - (self.means.astype(np.float64) ** 2).mean(axis=2), 0)
        alone = spread / np.maximum(self.sizes - 1, 1)
        return np.where(self.sizes > 1, alone, pooled(alone, self.sizes)[:, None])

    def retrieval(self) -> float | None:
        """Return the share of halves that are nearest to their own other half; None if samples are too small."""
        many = np.flatnonzero(self.sizes >= 4)
        if many.size < 2:
            return None
        halves = np.stack(
            [
                [self.parts[self.starts[i] + first : self.starts[i + 1] : 2].mean(axis=0) for i in many]
                for first in (0, 1)
            ]
        ).astype(np.float64)
        one, other = halves
        apart = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
        hits = (apart.argmin(axis=1) == np.arange(many.size), apart.argmin(axis=0) == np.arange(many.size))
        return float(np.mean(hits))


def pooled(noise: Float64, sizes: Int64) -> Float64:
    """Return the variance of one cell at every scale, over all samples of two cells and more, ``(n_scales + 1,)``."""
    freedom = np.where(sizes > 1, sizes - 1, 0)
    return np.asarray((noise * sizes) @ freedom / freedom.sum())


def own_share(sizes: Int64) -> Float64:
    """Return how much of its spread a sample tells itself; of few cells some kinds are missing."""
    return np.where(sizes > 1, sizes / (sizes + BORROWED), 0.0)


def sketch_samples(
    prepared: Preparation, counts: sp.csr_array, dealt: Dealt, rng: np.random.Generator, n_threads: int
) -> Sketch:
    """Diffuse random probes and read them at the cells of the samples.

    Parameters
    ----------
    prepared
        Of the model.
    counts
        Cells of each sample at each node, ``(n_samples, n_nodes)``.
    dealt
        From `deal`.
    rng
        Generator.
    n_threads
        Threads to use; the result does not depend on them.
    """
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # Mass diffuses in the norm sum(f^2 / pi), functions in sum(f^2 pi).
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


# Noise of few cells is spiky and has a smaller L1 norm than its variance says. Making up for all of it evens the mean
# distance of small samples, but leaves their nearest one too far, for a spike has no neighbour; for too little of it,
# too near. Spearman of size and nearest distance on 634 kidneys of 2 to 415 items with the powers 0.4 to 0.8 and 1:
# 0.41, 0.30, 0.16, 0.00, -0.18, -0.47; most accurate are the nearest with 0.6. Simulated samples of 10 cells and more
# hardly depend on it.
SPIKINESS = 0.6
# A direction stands out if samples vary in it so many times as noise alone does in its own largest direction. With 1.0
# noise was taken for truth (40 samples of 10 to 1,000 cells that hardly differ: Spearman with the truth 0.39 instead of
# 0.44), with 1.5 now and then.
STANDS_OUT = 2.0
# At most so many directions, and one for each so many samples: more are found on too little.
MOST_DIRECTIONS, SAMPLES_PER_DIRECTION = 16, 3
# The variance between samples is never taken to be less than this share of its standard error. An estimate of zero
# would put all samples in one place, also groups that a permutation test tells apart (decision 29). Identical
# distributions then keep 0.05 to 0.2 of a mean distance of 0.7 to 1.0; where samples differ it changes nothing.
LEAST_BETWEEN = 0.1
# Beyond this many cells for each degree of freedom a Poisson law is a normal one.
NORMAL = 200.0
# Shares of the noise, of the largest norm, that are rounding.
ROUNDING = 1e-9


@final
@dataclass(frozen=True, eq=False)
class Correction(ReadOnlyArrays):
    """Where samples go without their noise.

    Attributes
    ----------
    between
        ``(n_scales,)``: variance between samples beyond the noise, at least a tenth of its standard error.
    excess
        The same without a limit: its expectation is zero if all samples come from one distribution.
    p_value
        Of the test that all samples come from one distribution, see `heterogeneity`.
    variance
        ``(n_scales, n_samples)``: of a sample's place, noise and between together.
    directions
        ``(n_scales, n_samples, n_directions)``: orthonormal combinations of samples whose directions stand out, zero
        where a scale has fewer.
    factors
        ``(n_scales, n_samples, n_directions + 1)``: by which a sample moves towards the center along each direction
        and, last, in all others.
    """

    between: Float64
    excess: Float64
    p_value: float
    variance: Float64
    directions: Float64
    factors: Float64

    def apply(self, block: FloatArray, scale: int, largest: float) -> FloatArray:
        """Return the samples without their noise.

        Parameters
        ----------
        block
            ``(n_samples, n_features)``: their embedding at this scale.
        scale
            Its place.
        largest
            The largest L1 norm of a density there.
        """
        variance, dtype = self.variance[scale], block.dtype
        center, deviations = exchangeable(block, variance)
        along, rest = self.factors[scale, :, :-1], self.factors[scale, :, -1:]
        used = np.flatnonzero(self.directions[scale].any(axis=0))
        combined = self.directions[scale][:, used]
        moved = rest.astype(dtype) * deviations
        if used.size:
            moved += ((along[:, used] - rest) * combined).astype(dtype) @ (combined.T.astype(dtype) @ deviations)
        # A scale may weigh nothing, by a calibration.
        length = np.sqrt(variance) * (_spikiness(variance / largest**2) ** SPIKINESS if largest > 0 else 1.0)
        return np.asarray(center + length[:, None].astype(dtype) * moved)


def correction_of(sketch: Sketch, noise: Float64) -> Correction:
    """Return the correction of samples seen through probes.

    Parameters
    ----------
    sketch
        Of the samples.
    noise
        ``(n_scales, n_samples)``: variance of each sample by the luck of the draw.
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
        samples = _Scale(means[scale], halves[scale], noise[scale], between[scale])
        combined = samples.directions(most)
        directions[scale, :, : combined.shape[1]] = combined
        along, rest = samples.factors(combined)
        factors[scale, :, : combined.shape[1]], factors[scale, :, -1] = along, rest
    return Correction(between, excess, heterogeneity(sketch, noise), between[:, None] + noise, directions, factors)


def heterogeneity(sketch: Sketch, noise: Float64) -> float:
    """Return the p-value of the test that all samples come from one distribution, all scales together.

    The sum of squared deviations in units of the noise is n - 1 on average. It follows a chi-square law, scaled, with
    (n - 1) f degrees of freedom, where f is the number of directions of the noise.

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
    """Return the standard error of the variance between samples at one scale, if they do not differ.

    Parameters
    ----------
    halves
        ``(n_samples, n_probes)``: noise alone.
    noise
        ``(n_samples,)``.
    """
    per_direction = _per_direction(halves, noise)
    if not noise.min() > 0 or per_direction is None:
        return 0.0
    weights = 1 / noise
    return float(np.sqrt(2 * (len(noise) - 1) * per_direction) / (weights.sum() - (weights**2).sum() / weights.sum()))


def _per_direction(halves: Float64, noise: Float64) -> float | None:
    """Return one over the number of directions of the noise, from products of halves of different samples."""
    known = (np.einsum("ip,ip->i", halves, halves) > 0) & (noise > 0)
    if known.sum() < 2:
        return None
    alone = halves[known] / np.sqrt(noise[known])[:, None]
    products = (alone @ alone.T / alone.shape[1]) ** 2
    return float(products.sum() - np.trace(products)) / (len(alone) * (len(alone) - 1))


def _joint(sketch: Sketch, noise: Float64) -> tuple[Float64, Float64, Float64]:
    """Return places of samples at all scales, each counting alike, with their noise, and noise alone (halves).

    ``(n_samples, n_scales * n_probes)``, ``(n_samples,)``, and as the first; squares are means over probes and scales.
    """
    n_scales = len(noise)
    means, halves = sketch.means[:n_scales].astype(np.float64), sketch.halves.astype(np.float64)
    size = (means**2).mean(axis=(1, 2))
    unit = 1 / np.where(size > 0, size, 1)
    places, alone = (np.concatenate(list(x * np.sqrt(n_scales * unit)[:, None, None]), axis=1) for x in (means, halves))
    return places, unit @ noise, alone


@final
class _Scale:
    """The samples at one scale, their places in units of their own standard deviations.

    Parameters
    ----------
    means, halves
        ``(n_samples, n_probes)``: places of the samples, and noise alone.
    noise
        ``(n_samples,)``.
    between
        Variance between samples, positive.
    """

    def __init__(self, means: Float64, halves: Float64, noise: Float64, between: float) -> None:
        self._noise, self._between = noise, between
        self._variance = between + noise
        self._places = exchangeable(means, self._variance)[1]
        self._halves = halves / np.sqrt(self._variance)[:, None]

    def directions(self, most: int) -> Float64:
        """Return combinations of samples whose directions stand out, ``(n_samples, n_directions)``."""
        left, sizes, _ = np.linalg.svd(self._places, full_matrices=False)
        by_noise = np.linalg.norm(self._halves, 2)
        count = int((sizes**2 > STANDS_OUT * by_noise**2).sum())
        return np.asarray(left[:, : min(count, most)])

    def factors(self, combined: Float64) -> tuple[Float64, Float64]:
        """Return the factors along the directions, ``(n_samples, n_directions)``, and in all others, ``(n_samples,)``.

        The noise along a direction is that of the halves, which had no part in finding it.
        """
        if not combined.shape[1]:
            return combined, np.sqrt(self._between / self._variance)
        scores = combined.T @ self._places
        lengths = np.linalg.norm(scores, axis=1)
        known = np.einsum("ip,ip->i", self._halves, self._halves) > 0
        alone = (self._noise / self._variance)[known].sum() * self._places.shape[1]
        shares = ((self._halves @ (scores / lengths[:, None]).T) ** 2).sum(axis=0) / max(alone, np.finfo(float).tiny)
        along = [
            self._factor((combined[:, [i]] * lengths[i]) / np.sqrt(self._places.shape[1]), share)
            for i, share in enumerate(shares)
        ]
        # What the directions took from the deviations counts as so many samples less.
        n_samples = len(combined)
        fewer = np.sqrt(1 - combined.shape[1] / max(n_samples - 1, combined.shape[1] + 1))
        rest = self._factor((self._places - combined @ scores) / fewer, max(1 - float(shares.sum()), ROUNDING))
        return np.column_stack(along), rest

    def _factor(self, places: Float64, share: float) -> Float64:
        """Return the factor of places that hold this share of the noise."""
        noise = share * self._noise
        between, _ = variance_between(places * np.sqrt(self._variance)[:, None], noise)
        return np.sqrt(between / np.maximum(between + noise, np.finfo(float).tiny))


def even_distances(sketch: Sketch, noise: Float64) -> Float64:
    """Return L2 distances between samples that are exchangeable, ``(n_samples, n_samples)``: all vary alike.

    Every scale counts alike, and one variance between samples is estimated for all of them together: a variance that
    luck makes positive at some scale would make samples of few cells vary more than others there.

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
    # Equal samples differ by the rounding of these sums, whose root would be no longer small.
    squares[squares <= places.shape[1] * np.finfo(float).eps * both] = 0
    np.fill_diagonal(squares, 0)
    return np.asarray(np.sqrt((squares + squares.T) / 2))


def variance_between(places: Float64, noise: Float64) -> tuple[float, float]:
    """Return the variance between samples beyond their noise, not below zero and as it comes.

    The first solves ``sum(|x_i - c|^2 / (t + v_i)) = n - 1`` for t, with the center c of these weights; the second is
    the moment estimate at t = 0.

    Parameters
    ----------
    places
        ``(n_samples, n_probes)``; squares are means over probes.
    noise
        ``(n_samples,)``.
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
    return _root(beyond, 2 * float(squares.max()) + excess), excess


def _root(falling: Callable[[float], float], high: float) -> float:
    """Return where a falling function is zero, between 0 and ``high``."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def exchangeable(block: FloatArray, variance: Float64) -> tuple[FloatArray, FloatArray]:
    """Return the center of samples with these variances, and their deviations in units of their own, exchangeable.

    With standardised deviations y, which are orthogonal to the weights u ~ 1 / sqrt(variance), the rotation is
    ``y - (u + e)(e'y) / (1 + u'e)``, where e has equal entries; the covariance becomes that of deviations from a mean.
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
    """Return the mean absolute deviation of a Poisson law with mean 1 / variance, over that mean: at most 2."""
    mean = 1 / np.maximum(variance, np.finfo(float).tiny)
    few = np.minimum(mean, NORMAL)
    floor = np.floor(few)
    exact = 2 * np.exp((floor + 1) * np.log(few) - few - gammaln(floor + 1)) / few
    return np.asarray(np.where(mean > NORMAL, np.sqrt(2 * variance / np.pi), exact))


def _spikiness(variance: Float64) -> Float64:
    """Return how many times smaller the L1 norm of few cells is than that of a smooth density of equal variance."""
    return np.sqrt(2 * variance / np.pi) / np.maximum(mean_deviation(variance), np.finfo(float).tiny)
