"""Test columns with few samples by moderated t-statistics; for `attribution`; no files.

With four samples against four, the smallest p-value of a permutation test is 0.03, which cannot stay significant among
thousands of genes. The moderated t-test (Smyth 2004) assumes normal residuals instead. The variance of each gene is
shrunk toward a prior variance, which all genes determine together, so its degrees of freedom increase. The prior
variance is a smooth function of the mean expression, as in limma-trend (Law et al. 2014), because genes with few counts
have other variances than genes with many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import digamma, polygamma
from scipy.stats import t as student

from heatmover._base.types import Float64
from heatmover.statistics.regression import LEAST_VARIANCE, Regression, nuisance_basis, weigh

# Variances below this share of the median variance are raised to it before logarithms are taken, as in limma.
LEAST_SHARE = 1e-5
# With fewer columns, the prior is too uncertain, and variances are not shrunk. The prior is a constant from here on, a
# line from the next number on, and a natural cubic spline with four coefficients from the last number on.
FOR_PRIOR, FOR_LINE, FOR_SPLINE = 10, 20, 30
# Number of times that the ratio of the variances of two sides is estimated; it changes little after the second time.
STEPS = 3


class Residuals(NamedTuple):
    """Coefficients of columns on the observed regressor, and the variances of their residuals.

    Attributes
    ----------
    coefficients, variances
        ``(n_columns,)``: coefficient on the regressor, and residual variance of a unit of weight 1.
    factor
        Variance of a coefficient, divided by the residual variance.
    degrees
        Residual degrees of freedom.
    """

    coefficients: Float64
    variances: Float64
    factor: float
    degrees: int


class Moderated(NamedTuple):
    """Moderated t-statistics and two-sided p-values, ``(n_columns,)`` each, and the prior degrees of freedom."""

    statistics: Float64
    p_values: Float64
    prior_degrees: float


def degrees_left(nuisance: Float64, weights: Float64) -> int:
    """Return the residual degrees of freedom of a regression on nuisance columns and one regressor.

    Parameters
    ----------
    nuisance
        Nuisance columns, ``(n_units, n_nuisance)``.
    weights
        Weights of the units, ``(n_units,)``; units with weight 0 do not count.
    """
    return int(np.count_nonzero(weights) - nuisance_basis(nuisance, weights).shape[1] - 1)


def residuals(columns: Float64, regression: Regression, weights: Float64, degrees: int) -> Residuals:
    """Return the coefficients and residual variances of columns ``(n_units, n_columns)`` in the observed order.

    Parameters
    ----------
    columns
        Values of the units.
    regression, weights
        Result of `heatmover.statistics.regression.weigh`, and its weights, ``(n_units,)``.
    degrees
        Residual degrees of freedom, at least 1, from `degrees_left`.
    """
    centered = regression.center @ columns
    coefficients = regression.coefficients[0] @ centered
    size = float(weights @ regression.contrasts[0] ** 2)
    left = weights @ (centered - np.outer(regression.contrasts[0], coefficients)) ** 2
    # Residuals of columns without variance are rounding errors.
    least = LEAST_VARIANCE * (weights @ columns**2) / weights.sum()
    return Residuals(coefficients, np.maximum(left / degrees, least), 1 / size, degrees)


def allow_for_sides(columns: Float64, regression: Regression, weights: Float64, degrees: int) -> Float64:
    """Return the weights of the units, divided by the relative variance of the units on their side of the contrast.

    A t-test with one variance is significant too often if the smaller group varies more. All columns together show how
    much more one side varies, as in limma's ``arrayWeights``. The logarithm of the ratio of variances is shrunk toward
    zero by the share of its square that the variation between units explains (James and Stein).

    Parameters
    ----------
    columns, regression, weights, degrees
        As in `residuals`.
    """
    contrast, found, observed = regression.contrasts[0], weights, regression
    side = np.where(contrast > 0, 0.5, -0.5)
    for _ in range(STEPS):
        fit = residuals(columns, observed, found, degrees)
        leverages = (nuisance_basis(regression.nuisance, found) ** 2).sum(axis=1)
        leverages += found * observed.contrasts[0] ** 2 * fit.factor
        left = observed.center @ columns - np.outer(observed.contrasts[0], fit.coefficients)
        # Mean over columns of the squared residual of each unit, relative to its expectation with equal variances.
        relative = weights * np.mean(left**2 / fit.variances, axis=1) / np.maximum(1 - leverages, 1e-9)
        free = (leverages < 1 - 1e-6) & (weights > 0)
        own = [relative[free & (side > 0)], relative[free & (side < 0)]]
        if min(map(len, own)) < 2:
            return weights
        ratio = float(np.log(own[0].mean() / own[1].mean()))
        noise = sum(float(each.var(ddof=1)) / len(each) / float(each.mean()) ** 2 for each in own)
        ratio *= max(0.0, 1 - noise / max(ratio**2, np.finfo(float).tiny))
        found = weights * np.exp(-ratio * side)
        observed = weigh(regression.regressors[:1], regression.nuisance, found)
    return found


def moderated_t(fit: Residuals, levels: Float64) -> Moderated:
    """Return the moderated t-test of every column.

    Parameters
    ----------
    fit
        Coefficients and residual variances of the columns.
    levels
        Mean of each column, ``(n_columns,)``, on which the prior variance depends.
    """
    prior, prior_degrees = variance_prior(fit.variances, levels, fit.degrees)
    if np.isinf(prior_degrees):
        variances = prior
    else:
        variances = (prior_degrees * prior + fit.degrees * fit.variances) / (prior_degrees + fit.degrees)
    errors = np.sqrt(fit.factor * np.maximum(variances, np.finfo(float).tiny))
    statistics = fit.coefficients / errors
    # All columns together have this many degrees of freedom, so the prior cannot have more.
    degrees = min(prior_degrees + fit.degrees, fit.degrees * fit.variances.size)
    return Moderated(statistics, np.asarray(2 * student.sf(np.abs(statistics), degrees)), prior_degrees)


def variance_prior(variances: Float64, levels: Float64, degrees: int) -> tuple[Float64, float]:
    """Return the prior variance of every column, and the prior degrees of freedom (0 without a prior).

    The logarithm of a residual variance has a known distribution around the logarithm of the prior variance. Its excess
    variance determines the prior degrees of freedom (Smyth 2004, section 6.2).

    Parameters
    ----------
    variances
        Residual variances of the columns, ``(n_columns,)``.
    levels
        Mean of each column, ``(n_columns,)``.
    degrees
        Residual degrees of freedom.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> true = 0.5 / rng.chisquare(10, size=20_000) * 10
    >>> prior, prior_degrees = variance_prior(true * rng.chisquare(4, size=true.size) / 4, np.zeros(true.size), 4)
    >>> bool(abs(prior_degrees - 10) < 1), prior[:1].round(1)
    (True, array([0.5]))
    """
    median = float(np.median(variances)) if variances.size else 0.0
    if variances.size < FOR_PRIOR or median <= 0:
        return variances, 0.0
    logs = np.log(np.maximum(variances, LEAST_SHARE * median)) - digamma(degrees / 2) + np.log(degrees / 2)
    basis = smooth_basis(levels)
    fitted = basis @ np.linalg.lstsq(basis, logs)[0]
    free = logs.size - np.linalg.matrix_rank(basis)
    excess = float(((logs - fitted) ** 2).sum() / free - polygamma(1, degrees / 2))
    if excess <= 0:
        return np.exp(fitted), np.inf
    prior_degrees = 2 * trigamma_inverse(excess)
    return np.exp(fitted + digamma(prior_degrees / 2) - np.log(prior_degrees / 2)), prior_degrees


def smooth_basis(levels: Float64) -> Float64:
    """Return columns of a natural cubic spline of the levels, or of fewer columns, ``(n_columns, n_basis)``.

    The knots are the smallest and the largest level and the two terciles.
    """
    one = np.ones_like(levels)
    low, high = levels.min(), levels.max()
    if levels.size < FOR_LINE or high <= low:
        return one[:, None]
    place = (levels - low) / (high - low)
    knots = np.unique(np.quantile(place, [0, 1 / 3, 2 / 3, 1]))
    if levels.size < FOR_SPLINE or knots.size < 4:
        return np.stack([one, place], axis=1)
    cubes = (np.maximum(place[:, None] - knots, 0)) ** 3
    slopes = (cubes[:, :-1] - cubes[:, -1:]) / (knots[-1] - knots[:-1])
    return np.column_stack([one, place, slopes[:, :-1] - slopes[:, -1:]])


def trigamma_inverse(value: float) -> float:
    """Return the argument at which the trigamma function has a value, by Newton's method (Smyth 2004, appendix).

    Examples
    --------
    >>> round(trigamma_inverse(float(polygamma(1, 3.5))), 6)
    3.5
    """
    if value > 1e7:
        return float(1 / np.sqrt(value))
    if value < 1e-6:
        return 1 / value
    guess = 0.5 + 1 / value
    for _ in range(50):
        here = float(polygamma(1, guess))
        step = here * (1 - here / value) / float(polygamma(2, guess))
        guess += step
        if -step / guess < 1e-8:
            break
    return guess
