"""Intervals of distances: every true distance that would not make the one found a rare one.

In the L2 norm that probes see, two samples lie ``|d + z|^2`` apart, with the true difference d and the noise z. That
less the noise of both samples estimates ``|d|^2`` without bias, and its law is that of a quadratic form: for a supposed
``y = |d|^2`` its mean is y, its variance ``u + 4 y s`` with u that of ``|z|^2`` and s the variance of z along d, and
its skewness follows from the spectrum of the noise. Three moments give the quantiles (Pearson III, with the cube root
of Wilson and Hilferty), and the interval holds every y whose quantiles enclose the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtri

from heatmover._typing import Float64
from heatmover.noise.sketch import Sketch, own_share

__all__ = ["Law", "intervals"]

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
    found = apart[pairs]
    law = Law(
        spread[pairs], along[pairs] / np.where(found > 0, found, 1), _skewness(sketch), noise[pairs], 1 - confidence
    )
    scale = _scale(distances, apart)
    limits = []
    for values in law.limits(found - noise[pairs]):
        limit = np.zeros_like(apart)
        limit[pairs] = scale[pairs] * np.sqrt(values)
        limits.append(limit + limit.T)
    return limits[0], limits[1]


@final
@dataclass(frozen=True)
class Law:
    """Law of the estimated squared distance of each of several pairs, for any supposed true one.

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
    centres = np.add.reduceat(parts, starts, axis=0) / n_parts[:, None]
    alone = (parts - np.repeat(centres, n_parts, axis=0)) * np.sqrt(np.repeat(sketch.sizes / n_parts, n_parts))[:, None]
    spectrum = np.linalg.eigvalsh(alone.T @ alone)
    if spectrum.max() <= np.finfo(float).tiny:  # cells without any spread
        return 0.0
    spectrum = np.maximum(spectrum, 0) / spectrum.max()
    return float(np.sqrt(8) * (spectrum**3).sum() / (spectrum**2).sum() ** 1.5)
