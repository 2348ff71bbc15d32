"""Regress columns on one contrast of samples, in every permutation; for `attribution` and `statistics`; no files.

If samples have blocks or unequal weights, a difference is the coefficient of the group in a weighted regression on
blocks and group. Samples are thus compared within their block. The difference is divided by a standard error that
allows every sample its own variance (White 1980, with the leverages of MacKinnon and White 1985). Without blocks and
weights the quotient is Welch's statistic. A permutation test of a studentized statistic keeps its significance level
even if samples have unequal variances, for instance because their numbers of cells differ (Janssen 1997).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatmover._base.types import Bool, Float64, Int64
from heatmover.statistics.permutations import false_discovery, within_reach

# Statistics that differ by less than this share are treated as ties.
TIE = 1e-6
# Variances below this share of the mean square are rounding errors.
LEAST_VARIANCE = 1e-10


class BlockRegression(NamedTuple):
    """Weighted regression on blocks and group, in every permutation.

    Attributes
    ----------
    coefficients
        ``(n_orders, n_units)``: coefficients of the units' values in the difference between the groups.
    contrasts
        ``(n_orders, n_units)``: membership minus its mean in the block.
    errors
        ``(n_orders, n_units)``: coefficients of the squared residuals in the variance of the difference.
    center
        ``(n_units, n_units)``: matrix that subtracts the mean of its block from every unit.
    informative
        ``(n_units,)``: True for units that contribute to the observed difference.
    """

    coefficients: Float64
    contrasts: Float64
    errors: Float64
    center: Float64
    informative: Bool


class Differences(NamedTuple):
    """Differences of columns between the groups, and their standard errors, ``(n_orders, n_columns)`` each."""

    values: Float64
    errors: Float64


def weigh(members: Bool, blocks: Int64, weights: Float64 | None = None) -> BlockRegression:
    """Return the regression of units on blocks and group.

    Parameters
    ----------
    members
        True for units in the group, ``(n_orders, n_units)``; the observed order is the first row.
    blocks
        Block of each unit, ``(n_units,)``.
    weights
        Non-negative weight of each unit, ``(n_units,)``; equal weights by default.
    """
    n_units = members.shape[1]
    weight = np.ones(n_units) if weights is None else weights
    inside = (np.unique(blocks)[:, None] == blocks).astype(np.float64)
    of_block = inside @ weight
    average = inside * weight / np.where(of_block > 0, of_block, 1)[:, None]
    of_unit = of_block @ inside
    contrasts = members - (members @ average.T) @ inside
    weighted = contrasts * weight
    total = (weighted * contrasts).sum(axis=1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    coefficients = weighted / safe
    leverages = weight / np.where(of_unit > 0, of_unit, 1) + weighted * contrasts / safe
    # A unit alone in its group has a residual of zero, so the divisor does not matter.
    errors = coefficients**2 / np.maximum(1 - leverages, 1e-9)
    informative = np.abs(weighted[0]) > 1e-9 * np.maximum(np.abs(weighted[0]).max(), np.finfo(float).tiny)
    return BlockRegression(coefficients, contrasts, errors, np.eye(n_units) - inside.T @ average, informative)


def column_differences(columns: Float64, regression: BlockRegression) -> Differences:
    """Return the difference of every column ``(n_units, n_columns)`` between the groups, and its standard error."""
    centered = regression.center @ columns
    values = regression.coefficients @ centered
    crossed = regression.errors * regression.contrasts
    variance = (
        regression.errors @ centered**2
        - 2 * values * (crossed @ centered)
        + values**2 * (crossed * regression.contrasts).sum(axis=1, keepdims=True)
    )
    least = LEAST_VARIANCE * (centered**2).mean(axis=0) + np.finfo(float).tiny
    return Differences(values, np.sqrt(np.maximum(variance, least)))


def gram_statistics(gram: Float64, regression: BlockRegression) -> Float64:
    """Return squared distances between the means of the groups, divided by their variances, ``(n_orders,)``.

    Parameters
    ----------
    gram
        Inner products of the positions of the units, ``(n_units, n_units)``.
    regression
        Result of `weigh`. If a group has no weight in a permutation, the statistic of this permutation is infinite.
    """
    products = regression.center @ gram @ regression.center.T
    squares = np.diag(products)
    shadows = regression.coefficients @ products
    apart = (shadows * regression.coefficients).sum(axis=1)
    residuals = squares - 2 * regression.contrasts * shadows + regression.contrasts**2 * apart[:, None]
    variance = (regression.errors * np.maximum(residuals, 0)).sum(axis=1)
    least = LEAST_VARIANCE * float(squares.mean()) + np.finfo(float).tiny
    statistics = np.maximum(apart, 0) / np.maximum(variance, least)
    return np.asarray(np.where(regression.coefficients.any(axis=1), statistics, np.inf))


def two_sided(statistics: Float64) -> Float64:
    """Return the share of orders whose absolute statistic is at least as large as in the observed order (the first)."""
    sizes = np.abs(statistics)
    extreme = sizes[1:] >= sizes[0] * (1 - TIE)
    return np.asarray((extreme.sum(axis=0) + 1) / len(sizes))


def smallest_p(statistics: Float64) -> Float64:
    """Return the smallest p-value that any order could have reached."""
    sizes = np.abs(statistics)
    return np.asarray((sizes >= sizes.max(axis=0) * (1 - TIE)).mean(axis=0))


def controlled(p_values: Float64, smallest: Float64) -> Float64:
    """Return q-values of tests whose p-values can reach 0.05 in some order; 1 for all other tests.

    The smallest possible p-value does not depend on the observed groups. A cell type that is present in only three of
    eight pairs can never be significant. Including its test in the correction would only reduce the power of the other
    tests (Tarone 1990, Gilbert 2005).

    Parameters
    ----------
    p_values
        P-values of the tests, ``(n_types,)``.
    smallest
        Smallest possible p-values from `smallest_p`, ``(n_types,)``.
    """
    q_values = np.ones_like(p_values)
    able = within_reach(smallest)
    if able.any():
        q_values[able] = false_discovery(p_values[able])
    return q_values
