"""Regress columns on a contrast of samples, in every permutation; for `attribution` and `statistics`; no files.

A contrast is one regressor: the membership in a group, or a number such as a dose. Blocks and covariates are nuisance
columns, so samples are compared within their block and at equal covariates. The coefficient of the regressor in a
weighted regression is divided by a standard error that allows every sample its own variance (HC3 of MacKinnon and White
1985). For two groups without nuisance columns and weights the quotient is Welch's statistic with ``n - 1`` in place of
``n``. With five cases that vary three times as much as eleven controls, tests of states had 5.9% false positives; with
Welch's statistic itself (HC2), 9.5%. A permutation test of a studentized statistic keeps its significance level even if
samples have unequal variances, for instance because their numbers of cells differ (Janssen 1997).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, Int64
from heatmover.statistics.permutations import false_discovery, within_reach

# Statistics that differ by less than this share are treated as ties.
TIE = 1e-6
# Variances below this share of the mean square are rounding errors.
LEAST_VARIANCE = 1e-10
# Singular values below this share of the largest one belong to columns that are combinations of other columns.
DEPENDENT = 1e-8


class Regression(NamedTuple):
    """Weighted regression on nuisance columns and one regressor, in every permutation of the regressor.

    Attributes
    ----------
    coefficients
        ``(n_orders, n_units)``: coefficients of the units' values in the coefficient of the regressor.
    contrasts
        ``(n_orders, n_units)``: regressor minus its fit on the nuisance columns.
    errors
        ``(n_orders, n_units)``: coefficients of the squared residuals in the variance of the coefficient.
    center
        ``(n_units, n_units)``: matrix that subtracts the fit on the nuisance columns.
    informative
        ``(n_units,)``: True for units that contribute to the observed coefficient.
    regressors, nuisance
        ``(n_orders, n_units)`` and ``(n_units, n_nuisance)``: the regressor and the nuisance columns.
    """

    coefficients: Float64
    contrasts: Float64
    errors: Float64
    center: Float64
    informative: Bool
    regressors: Float64
    nuisance: Float64

    @property
    def least_side(self) -> int:
        """Smaller of the numbers of informative units with a positive and with a negative observed contrast."""
        sides = self.contrasts[0][self.informative] > 0
        return int(min(sides.sum(), (~sides).sum()))

    @property
    def unit(self) -> float:
        """Coefficient of columns whose weighted means differ by 1 between the two sides; 1 for two plain groups."""
        return float(np.maximum(self.coefficients[0], 0).sum()) or 1.0

    def part(self, orders: slice) -> Regression:
        """Return the regression in some of the orders."""
        coefficients, contrasts, errors = self.coefficients[orders], self.contrasts[orders], self.errors[orders]
        return self._replace(coefficients=coefficients, contrasts=contrasts, errors=errors)


class Differences(NamedTuple):
    """Coefficients of columns on the regressor, and their standard errors, ``(n_orders, n_columns)`` each."""

    values: Float64
    errors: Float64


def block_columns(blocks: Int64) -> Float64:
    """Return one column of 0 and 1 for each block, ``(n_units, n_blocks)``, from the block of each unit."""
    return np.asarray(blocks[:, None] == np.unique(blocks), dtype=np.float64)


def nuisance_basis(nuisance: Float64, weights: Float64) -> Float64:
    """Return an orthonormal basis of the nuisance columns times the roots of the weights, ``(n_units, rank)``.

    Parameters
    ----------
    nuisance
        Nuisance columns, ``(n_units, n_nuisance)``; the mean is among their combinations.
    weights
        Non-negative weights of the units, ``(n_units,)``.
    """
    vectors, sizes, _ = np.linalg.svd(np.sqrt(weights)[:, None] * nuisance, full_matrices=False)
    return np.asarray(vectors[:, sizes > DEPENDENT * max(float(sizes.max(initial=0.0)), np.finfo(float).tiny)])


def weigh(regressors: Float64 | Bool, nuisance: Float64, weights: Float64 | None = None) -> Regression:
    """Return the regression of units on nuisance columns and a regressor.

    Parameters
    ----------
    regressors
        Regressor in every permutation, ``(n_orders, n_units)``; the observed order is the first row.
    nuisance
        Nuisance columns, ``(n_units, n_nuisance)``, such as `block_columns` and covariates.
    weights
        Non-negative weight of each unit, ``(n_units,)``; equal weights by default.
    """
    weight = np.ones(regressors.shape[1]) if weights is None else weights
    basis, roots = nuisance_basis(nuisance, weight), np.sqrt(weight)
    inverse = np.divide(1, roots, out=np.zeros_like(roots), where=roots > 0)
    center = np.eye(len(roots)) - (inverse[:, None] * basis) @ (basis.T * roots)
    leverages = (basis**2).sum(axis=1)
    contrasts = regressors @ center.T
    weighted = contrasts * weight
    # Rounding errors of a regressor that the nuisance columns determine are not a contrast.
    total = (weighted * contrasts).sum(axis=1, keepdims=True)
    total[total <= DEPENDENT**2 * (weight * np.square(regressors)).sum(axis=1, keepdims=True)] = 0
    safe = np.where(total > 0, total, 1)
    weighted = np.where(total > 0, weighted, 0)
    coefficients = weighted / safe
    # A unit alone in its group has a residual of zero, so the divisor does not matter.
    errors = coefficients**2 / np.maximum(1 - leverages - weighted * contrasts / safe, 1e-6) ** 2
    informative = np.abs(weighted[0]) > 1e-9 * np.maximum(np.abs(weighted[0]).max(), np.finfo(float).tiny)
    return Regression(
        coefficients, contrasts, errors, center, informative, np.asarray(regressors, dtype=np.float64), nuisance
    )


def column_differences(columns: Float64, regression: Regression) -> Differences:
    """Return the difference of every column ``(n_units, n_columns)`` between the groups, and its standard error."""
    centered = regression.center @ columns
    values = regression.coefficients @ centered
    squares, crossed = centered**2, regression.errors * regression.contrasts
    # errors @ squares - 2 * values * (crossed @ centered) + values**2 * total; new arrays would double the time.
    variance = (crossed * regression.contrasts).sum(axis=1, keepdims=True) * values
    variance -= 2 * crossed @ centered
    variance *= values
    variance += regression.errors @ squares
    least = LEAST_VARIANCE * squares.mean(axis=0) + np.finfo(float).tiny
    np.maximum(variance, least, out=variance)
    return Differences(values, np.sqrt(variance, out=variance))


def gram_statistics(gram: Float64, regression: Regression) -> Float64:
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


class Residuals(NamedTuple):
    """Residuals of samples, represented by their inner products, and the units that are permuted.

    Attributes
    ----------
    left
        Inner products of the residuals that the fixed columns leave, ``(n_samples, n_samples)``.
    onto
        Sums over the samples of each unit, ``(n_units, n_samples)``.
    sizes, squared_means
        Number of samples and squared length of the mean residual of each unit, ``(n_units,)``.
    known
        Leverage of each unit in fixed columns that no permutation changes, ``(n_units,)``.
    degrees_of_freedom
        Degrees of freedom of the residual sum of squares.
    """

    left: Float64
    onto: sp.csr_array
    sizes: Float64
    squared_means: Float64
    known: Float64
    degrees_of_freedom: int

    @classmethod
    def of(cls, left: Float64, unit_of: Int64, known: Float64, degrees_of_freedom: int) -> Residuals:
        """Return residuals from their inner products and the unit of each sample.

        Parameters
        ----------
        left, degrees_of_freedom
            Attributes of the result.
        unit_of
            Unit of each sample as a code from 0 on, ``(n_samples,)``.
        known
            Orthonormal basis of the fixed columns that no permutation changes, ``(n_samples, rank)``.
        """
        left = (left + left.T) / 2
        sizes = np.bincount(unit_of).astype(np.float64)
        onto = sp.csr_array((np.ones(len(left)), (unit_of, np.arange(len(left)))))
        squared_means = np.asarray(onto.multiply(onto @ left).sum(axis=1)).ravel() / sizes**2
        return cls(left, onto, sizes, squared_means, ((onto @ known) ** 2).sum(axis=1) / sizes, degrees_of_freedom)

    def welch_shares(
        self, moved: Float64, n_tested: int, orders: Int64 | None = None, sums: Float64 | None = None
    ) -> Float64:
        """Return Welch's statistic as a share from 0 to 1, averaged over the regressors, ``(n_orders,)``.

        The statistic of a regressor is its squared coefficient divided by the variance of the coefficient, in which
        every unit has its own variance (White 1980, with the leverages of MacKinnon and White 1985). For two groups
        without covariates this is the square of Welch's t. A statistic t becomes the share ``t / (t + f)`` with the
        residual degrees of freedom f. The share is bounded, so one group without dispersion does not dominate the mean.

        Parameters
        ----------
        moved
            Columns of length 1 in every order, ``(n_orders, n_samples, n_columns)``. The first ``n_tested`` are the
            regressors, each orthogonal to all fixed columns. The others are orthogonal fixed columns.
        n_tested
            Number of regressors.
        orders
            Unit to whose place each unit moves, ``(n_orders, n_units)``; None if no unit moves.
        sums
            Sums of the columns over the units at these places, ``(n_orders, n_units, n_columns)``; None if no unit
            moves.
        """
        n_samples, n_orders, n_units = len(self.left), len(moved), len(self.sizes)
        flat = np.ascontiguousarray(moved.transpose(1, 0, 2)).reshape(n_samples, -1)
        along = self.left @ flat
        if sums is None:
            sums = (self.onto @ flat).reshape(n_units, n_orders, -1).transpose(1, 0, 2)
        sizes, known = (each[None] if orders is None else each[orders] for each in (self.sizes, self.known))
        # Inner products of the mean residual of each unit with the coefficients, and of the coefficients.
        means = (self.onto @ along / self.sizes[:, None]).reshape(n_units, n_orders, -1).transpose(1, 0, 2)
        products = moved.transpose(0, 2, 1) @ along.reshape(n_samples, n_orders, -1).transpose(1, 0, 2)
        at, leverages = sums / sizes[..., None], sums**2 / sizes[..., None]
        fixed, own, held = at[..., n_tested:], at[..., :n_tested], products[:, n_tested:]
        squares = self.squared_means + (
            (fixed @ held[..., n_tested:] - 2 * means[..., n_tested:]) * fixed
        ).sum(axis=2)  # fmt: skip
        explained = products.diagonal(axis1=1, axis2=2)[:, :n_tested]
        crossed = means[..., :n_tested] - fixed @ held[..., :n_tested]
        residuals = squares[..., None] - 2 * own * crossed + own**2 * explained[:, None]
        # A unit with a leverage of 1 has a residual of zero, so the divisor does not matter.
        others = known[..., None] + leverages[..., n_tested:].sum(axis=2, keepdims=True)
        unexplained = np.maximum(1 - others - leverages[..., :n_tested], 1e-9)
        variances = (sums[..., :n_tested] ** 2 * np.maximum(residuals, 0) / unexplained).sum(axis=1)
        least = LEAST_VARIANCE * float(np.trace(self.left)) / n_samples
        both = np.abs(explained) + self.degrees_of_freedom * np.maximum(variances, least)
        return np.asarray(np.divide(explained, both, out=np.zeros_like(both), where=both > 0).mean(axis=1))


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
