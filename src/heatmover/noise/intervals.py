"""Intervals of distances by a bootstrap over cells."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from heatmover._typing import Float64, Int64
from heatmover.noise.sketch import Sketch, own_share

__all__ = ["intervals"]

# Intervals are those of an L2 norm, in units of the L1 distance of the same pair. The ratio of the two varies with the
# noise in the pair: its standard deviation was 0.11 to 0.16 of it where nearly all is noise, 0.01 where hardly any is.
UNLIKE = 0.15


def intervals(
    sketch: Sketch,
    noise: Float64,
    distances: Float64,
    n_bootstrap: int,
    confidence: float,
    rng: np.random.Generator,
) -> tuple[Float64, Float64]:
    """Return intervals for all pairs by a bootstrap over cells, on the squared distance, whose estimate has no bias.

    With the difference d of two samples and the noise z of it in a bootstrap sample, the variance of the estimate is
    ``4 y s + u`` for a squared distance y, where s is the variance of z along d and u that of ``|z|^2``. The interval
    holds every y that the estimate is not too far from, as Wilson's does for shares; ``|z|^2`` is skewed, and the
    quantiles follow its skewness (Cornish and Fisher).
    """
    means = sketch.means[-1].astype(np.float64)
    squares = (means**2).mean(axis=1)
    apart = np.maximum(squares[:, None] + squares - 2 * means @ means.T / means.shape[1], 0)
    square = apart - noise[:, None] - noise
    along, spread, skewness = _replicates(sketch, means, noise, n_bootstrap, rng)
    directed = along / np.where(apart > 0, apart, 1)
    scale = _scale(distances, apart)
    reach = _student(confidence, noise, sketch.sizes)

    # Two samples may be nearer by luck than noise allows for. No upper limit is below that of a pair whose estimate is
    # zero: an interval from 0 to 0 would look sure of what it cannot know.
    estimate = np.maximum(square, 0)

    def limit(sign: int, far: Float64) -> Float64:
        root = np.sqrt(np.maximum(4 * directed * (estimate + far**2 * directed) + spread, 0))
        return np.asarray(np.maximum(estimate + 2 * far**2 * directed + sign * far * root, 0))

    bounds = []
    for sign in (-1, 1):
        # The skewness is that at the limit itself, where a larger part of the variance may be symmetric.
        total = spread + 4 * directed * limit(sign, reach)
        bent = np.clip(skewness, 0, 3) * (spread / np.where(total > 0, total, 1)) ** 1.5
        far = reach - sign * bent * (reach**2 - 1) / 6
        # A law with that skewness ends 2 / skewness standard deviations below its mean (Pearson III).
        far = np.maximum(far, np.minimum(reach, 2 / np.maximum(bent, np.finfo(float).tiny)) if sign > 0 else 0)
        bounds.append(scale * np.sqrt(limit(sign, far)))
        np.fill_diagonal(bounds[-1], 0)
    # The estimate lies beyond its noise, or the interval begins at zero.
    bounds[0][square <= reach * np.sqrt(spread)] = 0
    middle = scale * np.sqrt(estimate)
    blur = reach * UNLIKE * np.sqrt(np.clip(1 - square / np.where(apart > 0, apart, 1), 0, 1)) * middle
    lower = np.maximum(middle - np.hypot(np.maximum(middle - bounds[0], 0), blur), 0)
    return np.where(bounds[0] > 0, lower, 0.0), middle + np.hypot(np.maximum(bounds[1] - middle, 0), blur)


def _scale(distances: Float64, apart: Float64) -> Float64:
    """Return the L1 distance of each pair over its L2 distance; of pairs without any, the median of the others."""
    known = (apart > 0) & (distances > 0)
    ratio = distances / np.sqrt(np.where(known, apart, 1))
    return np.where(known, ratio, np.median(ratio[known]) if known.any() else 0.0)


def _replicates(
    sketch: Sketch, means: Float64, noise: Float64, n_bootstrap: int, rng: np.random.Generator
) -> tuple[Float64, Float64, Float64]:
    """Return what bootstrap samples show of the noise z of every pair, three times ``(n_samples, n_samples)``.

    Mean square of z along the difference, times its length; variance and skewness of ``|z|^2``.
    """
    n_samples, n_probes = means.shape
    along, first, second, third = (np.zeros((n_samples, n_samples)) for _ in range(4))
    for _ in range(n_bootstrap):
        z = _noise_replicate(sketch, rng)
        inner = (means * z).mean(axis=1)
        cross = means @ (z.T / n_probes)
        cross = cross + cross.T
        cross -= inner[:, None] + inner
        along += np.square(cross, out=cross)
        # Less its expectation, so that powers keep their digits.
        own = (z**2).mean(axis=1) - noise
        length = z @ (z.T * (-2 / n_probes))
        length += own[:, None] + own
        first += length
        power = length * length
        second += power
        third += np.multiply(power, length, out=power)
    for total in (along, first, second, third):
        total /= n_bootstrap
    spread = np.maximum(second - first**2, 0)
    skewness = (third - 3 * first * second + 2 * first * first * first) / np.where(spread > 0, spread, 1) ** 1.5
    return along, spread, skewness


def _noise_replicate(sketch: Sketch, rng: np.random.Generator) -> Float64:
    """Return the noise of one bootstrap sample of each sample, ``(n_samples, n_probes)``."""
    starts, sizes = sketch.starts, sketch.sizes
    n_parts = np.diff(starts)
    # Of one cell each, in units of its standard deviation.
    unit = np.zeros((len(sizes), sketch.parts.shape[1]))
    for count in np.unique(n_parts[n_parts > 1]):
        rows = np.flatnonzero(n_parts == count)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=rows.size) - 1.0
        chosen = sketch.parts[starts[rows][:, None] + np.arange(count)].astype(np.float64)
        # A bootstrap of few parts varies too little.
        unit[rows] = np.einsum("ip,ipr->ir", weights, chosen) * np.sqrt(sizes[rows] / (count * (count - 1.0)))[:, None]
    freedom = np.where(sizes > 1, sizes - 1.0, 0)
    lender = rng.choice(len(sizes), size=len(sizes), p=freedom / freedom.sum())
    signs = rng.choice([-1.0, 1.0], size=len(sizes))
    own = own_share(sizes)
    mixed = np.sqrt(own)[:, None] * unit + (np.sqrt(1 - own) * signs)[:, None] * unit[lender]
    return np.asarray(mixed / np.sqrt(sizes)[:, None])


def _student(confidence: float, noise: Float64, sizes: Int64) -> Float64:
    """Return the quantile for the noise of every pair, ``(n_samples, n_samples)``: few cells tell it roughly."""
    freedom = np.maximum(sizes - 1, 1)
    own = noise**2 / freedom
    total = noise[:, None] + noise
    joint = total**2 / np.maximum(own[:, None] + own, np.finfo(float).tiny)
    return np.asarray(stdtrit(np.clip(joint, 1, None), (1 + confidence) / 2))
