"""Differences between two groups of samples under permutations, where samples may weigh differently and have blocks.

A difference is the coefficient of the group in a weighted regression on blocks and group, so that samples are compared
within their block, and it is divided by a standard error that allows every sample a variance of its own (White 1980,
with the leverages of MacKinnon and White 1985). Without blocks and weights that is Welch's statistic. A statistic
studentised like this keeps its level under permutations even if samples vary unequally, such as those of few cells and
those of many (Janssen 1997).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatmover._typing import Bool, Float64, Int64
from heatmover.statistics import false_discovery
from heatmover.statistics.permutations import within_reach

__all__ = [
    "Differences",
    "Weighed",
    "column_differences",
    "controlled",
    "gram_statistics",
    "smallest_p",
    "two_sided",
    "weigh",
]

# Statistics that differ by less than this share count as ties.
TIE = 1e-6
# Variances below this share of the mean square are rounding.
LEAST_VARIANCE = 1e-10


class Weighed(NamedTuple):
    """A weighted regression on blocks and group, in every permutation.

    Attributes
    ----------
    coefficients
        ``(n_orders, n_units)``: what makes the difference of the groups from the values of the units.
    contrasts
        ``(n_orders, n_units)``: membership less its mean in the block.
    errors
        ``(n_orders, n_units)``: what makes the variance of that difference from the squares of the residuals.
    centre
        ``(n_units, n_units)``: takes the mean of its block from every unit.
    informative
        ``(n_units,)``: units that take part in the observed difference.
    """

    coefficients: Float64
    contrasts: Float64
    errors: Float64
    centre: Float64
    informative: Bool


class Differences(NamedTuple):
    """Differences of columns between the groups, and their standard errors, ``(n_orders, n_columns)`` each."""

    values: Float64
    errors: Float64


def weigh(members: Bool, blocks: Int64, weights: Float64 | None = None) -> Weighed:
    """Return the regression of units on blocks and group.

    Parameters
    ----------
    members
        Which units are in the group, ``(n_orders, n_units)``, the observed order first.
    blocks
        Block of each unit, ``(n_units,)``.
    weights
        Of each unit, ``(n_units,)``, not negative; default all alike.
    """
    n_units = members.shape[1]
    weight = np.ones(n_units) if weights is None else weights
    inside = (np.unique(blocks)[:, None] == blocks).astype(np.float64)
    of_block = inside @ weight
    average = inside * weight / np.where(of_block > 0, of_block, 1)[:, None]
    of_unit = of_block @ inside
    contrasts = members - (members @ average.T) @ inside
    weighed = contrasts * weight
    total = (weighed * contrasts).sum(axis=1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    coefficients = weighed / safe
    leverages = weight / np.where(of_unit > 0, of_unit, 1) + weighed * contrasts / safe
    # A unit alone in its group has no residual, whatever it is divided by.
    errors = coefficients**2 / np.maximum(1 - leverages, 1e-9)
    informative = np.abs(weighed[0]) > 1e-9 * np.maximum(np.abs(weighed[0]).max(), np.finfo(float).tiny)
    return Weighed(coefficients, contrasts, errors, np.eye(n_units) - inside.T @ average, informative)


def column_differences(columns: Float64, weighed: Weighed) -> Differences:
    """Return the difference of every column ``(n_units, n_columns)`` between the groups, and its standard error."""
    centred = weighed.centre @ columns
    values = weighed.coefficients @ centred
    crossed = weighed.errors * weighed.contrasts
    variance = (
        weighed.errors @ centred**2
        - 2 * values * (crossed @ centred)
        + values**2 * (crossed * weighed.contrasts).sum(axis=1, keepdims=True)
    )
    least = LEAST_VARIANCE * (centred**2).mean(axis=0) + np.finfo(float).tiny
    return Differences(values, np.sqrt(np.maximum(variance, least)))


def gram_statistics(gram: Float64, weighed: Weighed) -> Float64:
    """Return squared distances between the groups' means over their variances, ``(n_orders,)``.

    Parameters
    ----------
    gram
        Inner products of the places of the units, ``(n_units, n_units)``.
    weighed
        From `weigh`. An order in which a group has no weight gets an infinite statistic.
    """
    products = weighed.centre @ gram @ weighed.centre.T
    squares = np.diag(products)
    shadows = weighed.coefficients @ products
    apart = (shadows * weighed.coefficients).sum(axis=1)
    residuals = squares - 2 * weighed.contrasts * shadows + weighed.contrasts**2 * apart[:, None]
    variance = (weighed.errors * np.maximum(residuals, 0)).sum(axis=1)
    least = LEAST_VARIANCE * float(squares.mean()) + np.finfo(float).tiny
    found = np.maximum(apart, 0) / np.maximum(variance, least)
    return np.asarray(np.where(weighed.coefficients.any(axis=1), found, np.inf))


def two_sided(statistics: Float64) -> Float64:
    """Return the share of orders whose statistic is at least as large as the first one's, whatever the signs."""
    sizes = np.abs(statistics)
    extreme = sizes[1:] >= sizes[0] * (1 - TIE)
    return np.asarray((extreme.sum(axis=0) + 1) / len(sizes))


def smallest_p(statistics: Float64) -> Float64:
    """Return the smallest p-value that any of the orders would have had as the observed one."""
    sizes = np.abs(statistics)
    return np.asarray((sizes >= sizes.max(axis=0) * (1 - TIE)).mean(axis=0))


def controlled(p_values: Float64, smallest: Float64) -> Float64:
    """Return q-values of those whose p-values can reach 0.05 in any order; 1 for the others.

    What a type could reach is known before the groups are: a cell type that three of eight pairs have can never be
    sure, and counting it would only make the others less so (Tarone 1990, Gilbert 2005).

    Parameters
    ----------
    p_values
        ``(n_types,)``.
    smallest
        From `smallest_p`, ``(n_types,)``.
    """
    found = np.ones_like(p_values)
    able = within_reach(smallest)
    if able.any():
        found[able] = false_discovery(p_values[able])
    return found
