"""Test columns with few samples by moderated t-statistics; for `attribution`; no files.

With four samples against four, the smallest p-value of a permutation test is 0.03, which cannot stay significant among
thousands of genes. The moderated t-test (Smyth 2004) assumes normal residuals instead. The variance of each gene is
shrunk toward a prior variance, which all genes determine together, so its degrees of freedom increase. The prior
variance is a smooth function of the mean expression, as in limma-trend (Law et al. 2014), because genes with few counts
have other variances than genes with many.
"""

from __future__ import annotations

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
# From this number of columns on, the prior degrees of freedom depend on the level too, but never exceed those of limma.
# Highly expressed genes vary more between donors than the prior expects. With constant degrees of freedom, 7 of 12
# random splits of eight stimulated donors had significant genes, such as RPS26; with this rule, 2 of 12
# (benchmarks/genes.py).
FOR_DEGREES = 500
# Largest number of prior degrees of freedom; a t distribution with more is normal.
MOST_DEGREES = 1e5


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


def residuals(columns: Float64, regression: Regression, weights: Float64, degrees: int) -> tuple[Float64, Float64]:
    """Return the coefficients of columns on the observed regressor, and the variances of residuals of weight 1.

    Parameters
    ----------
    columns
        Values of the units, ``(n_units, n_columns)``.
    regression, weights
        Result of `heatmover.statistics.regression.weigh`, and its weights, ``(n_units,)``.
    degrees
        Residual degrees of freedom, at least 1, from `degrees_left`.
    """
    centered = regression.center @ columns
    coefficients = regression.coefficients[0] @ centered
    left = weights @ (centered - np.outer(regression.contrasts[0], coefficients)) ** 2
    # Residuals of columns without variance are rounding errors.
    least = LEAST_VARIANCE * (weights @ columns**2) / weights.sum()
    return coefficients, np.maximum(left / degrees, least)


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
        slope = observed.contrasts[0]
        coefficients, variances = residuals(columns, observed, found, degrees)
        leverages = (nuisance_basis(regression.nuisance, found) ** 2).sum(axis=1)
        leverages += found * slope**2 / float(found @ slope**2)
        left = observed.center @ columns - np.outer(slope, coefficients)
        # Mean over columns of the squared residual of each unit, relative to its expectation with equal variances.
        relative = weights * np.mean(left**2 / variances, axis=1) / np.maximum(1 - leverages, 1e-6) ** 2
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


def moderated_t(
    coefficients: Float64, variances: Float64, levels: Float64, factor: float, degrees: int
) -> tuple[Float64, Float64]:
    """Return moderated t-statistics and two-sided p-values, ``(n_columns,)`` each.

    Parameters
    ----------
    coefficients, variances
        As returned by `residuals`.
    levels
        Mean of each column, ``(n_columns,)``, on which the prior variance depends.
    factor
        Variance of a coefficient, divided by the variance of a residual of weight 1.
    degrees
        Residual degrees of freedom.
    """
    prior, prior_degrees = variance_prior(variances, levels, degrees)
    share = prior_degrees / (prior_degrees + degrees)
    errors = np.sqrt(factor * np.maximum(share * prior + (1 - share) * variances, np.finfo(float).tiny))
    statistics = coefficients / errors
    # All columns together have this many degrees of freedom, so the prior cannot have more.
    total = np.minimum(prior_degrees + degrees, degrees * variances.size)
    return statistics, np.asarray(2 * student.sf(np.abs(statistics), total))


def variance_prior(variances: Float64, levels: Float64, degrees: int) -> tuple[Float64, Float64]:
    """Return the prior variance and the prior degrees of freedom (0 without a prior) of every column.

    The logarithm of a residual variance has a known distribution around the logarithm of the prior variance. Its excess
    variance determines the prior degrees of freedom (Smyth 2004, section 6.2). With many columns, they are smaller at
    levels where the excess variance is larger.

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
    >>> bool((abs(prior_degrees - 10) < 1).all()), prior[:1].round(1)
    (True, array([0.5]))
    """
    median = float(np.median(variances)) if variances.size else 0.0
    if variances.size < FOR_PRIOR or median <= 0:
        return variances, np.zeros_like(variances)
    logs = np.log(np.maximum(variances, LEAST_SHARE * median)) - digamma(degrees / 2) + np.log(degrees / 2)
    basis = smooth_basis(levels)
    fitted = basis @ np.linalg.lstsq(basis, logs)[0]
    squares = (logs - fitted) ** 2 * logs.size / (logs.size - np.linalg.matrix_rank(basis))
    spread = np.full_like(logs, squares.mean())
    if logs.size >= FOR_DEGREES:
        spread = np.maximum(spread, basis @ np.linalg.lstsq(basis, squares)[0])
    halves = trigamma_inverse(np.maximum(spread - polygamma(1, degrees / 2), 1 / MOST_DEGREES))
    return np.exp(fitted + digamma(halves) - np.log(halves)), 2 * halves


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


def trigamma_inverse(values: Float64) -> Float64:
    """Return the arguments at which the trigamma function has positive values (Smyth 2004, appendix).

    Examples
    --------
    >>> trigamma_inverse(polygamma(1, np.array([0.2, 3.5, 1000]))).round(6)
    array([2.0e-01, 3.5e+00, 1.0e+03])
    """
    guess = 0.5 + 1 / values
    for _ in range(50):  # Newton's method for the reciprocal, which is nearly linear; ten steps are typical
        here = polygamma(1, guess)
        step = here * (1 - here / values) / polygamma(2, guess)
        guess = guess + step
        if (np.abs(step) <= 1e-8 * guess).all():
            break
    return np.asarray(guess)
