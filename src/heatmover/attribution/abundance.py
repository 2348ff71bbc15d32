"""Which types of cells are more or fewer in one group of samples than in another.

Shares of a sample sum to one: a type that grows makes all others shrink. A type counts as changed only if it is so in
two frames of reference, with one sign: in its share of the sample, and in the logarithm of its share relative to types
that are stable. The first is what a person counts and is right on average whatever the number of cells; the second
keeps types that only made room from being called. Stable are the types whose log-ratios to each other changed least:
the largest set that agrees on one common change, each type within its own error. It must hold most of the types whose
change would show; else nothing is known to be stable, and shares alone decide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from heatmover._typing import Bool, Float64, Int64
from heatmover.attribution.permuted import Differences, column_differences, controlled, smallest_p, two_sided, weigh

__all__ = ["Abundance", "compare_abundance"]

# Added to the number of cells before the logarithm: the logarithm is then right on average to the first order
# (Haldane 1956, Anscombe 1956).
PSEUDO_COUNT = 0.5
# A type agrees with the change of another if they are within so many standard errors of their difference.
AGREES = 2.0
# A type says something of what is stable if a change by this factor would be seen in it.
WOULD_SHOW = 4.0
# Common changes that are tried are those of the largest so many types.
CANDIDATES = 64
# From this expected number on the mean logarithm is the logarithm of the mean, to a thousandth.
MANY = 25.0
# Values that are looked at together, for each array.
AT_ONCE = 4_000_000


class Abundance(NamedTuple):
    """What was found of every type.

    Attributes
    ----------
    scores
        ``(n_types,)``: studentised difference, positive where the group has more, the less sure of both frames; zero
        where they disagree.
    log_ratios
        ``(n_types,)``: natural logarithm of how many times as many the group has, relative to the stable types, or of
        the ratio of shares if there are none.
    p_values, q_values
        ``(n_types,)``: by permutation, and corrected for the number of types that could be found.
    stable
        ``(n_types,)``: types that are the reference; none if nothing is known to be stable.
    """

    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64
    stable: Bool


def compare_abundance(shares: Float64, cells: Float64, members: Bool, blocks: Int64) -> Abundance:
    """Test every type by its shares, and relative to the types that are stable.

    Parameters
    ----------
    shares
        Of the cells of each unit, ``(n_units, n_types)``.
    cells
        Of how many cells each unit consists, ``(n_units,)``.
    members
        Which units are in the group, ``(n_orders, n_units)``, the observed order first.
    blocks
        Block of each unit, ``(n_units,)``.
    """
    weighed = weigh(members, blocks)
    plain = column_differences(standardized(shares, cells, blocks), weighed)
    statistics = plain.values / plain.errors
    # Words are about mean shares, and a test that says the opposite is no finding.
    same = statistics[0] * column_differences(shares, weighed).values[0] > 0
    scores, smallest = np.where(same, statistics[0], 0.0), smallest_p(statistics)
    plain_p = np.where(same, two_sided(statistics), 1.0)
    logs = log_counts(shares, cells)
    differences = _at_least_counted(column_differences(logs, weighed), shares, cells, members)
    weights, stable = _reference(differences, shares.mean(axis=0) / (1 / cells).mean())
    if not stable.any():
        return Abundance(scores, differences.values[0], plain_p, controlled(plain_p, smallest), stable)
    relative, relative_p, changes = _relative(logs, weights, members, blocks)
    agree = scores * relative > 0
    p_values = np.where(agree, np.maximum(plain_p, relative_p), 1.0)
    less_sure = np.where(agree, np.sign(scores) * np.minimum(np.abs(scores), np.abs(relative)), 0.0)
    return Abundance(less_sure, changes, p_values, controlled(p_values, smallest), stable)


def standardized(shares: Float64, cells: Float64, blocks: Int64) -> Float64:
    """Return how far shares are from the mean of their block, in standard deviations of their own unit.

    A share of few cells varies more than one of many, and for a rare type in jumps that only small samples make: where
    those are all of one group, permutations of plain shares call such a type too often (5 % are 12 % at 0.5 % of 60 and
    of 400 cells).

    Parameters
    ----------
    shares, cells, blocks
        As in `compare_abundance`.
    """
    mean = shares.mean(axis=0)
    counting = np.outer(1 / cells, mean * (1 - mean))
    beyond = np.maximum(shares.var(axis=0, ddof=1) - counting.mean(axis=0), 0)
    variance = counting + beyond
    weights = np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
    inside = (np.unique(blocks)[:, None] == blocks).astype(np.float64)
    total = inside @ weights
    centres = np.divide(inside @ (weights * shares), total, out=np.zeros_like(total), where=total > 0)
    return np.asarray((shares - inside.T @ centres) * np.sqrt(weights))


def log_counts(shares: Float64, cells: Float64) -> Float64:
    """Return logarithms of numbers of cells, less what they are on average where nothing changes.

    The mean logarithm of a few cells is not the logarithm of their mean, and where groups have unequal numbers of cells
    rare types would seem to change together.

    Parameters
    ----------
    shares
        Of the cells of each unit, ``(n_units, n_types)``.
    cells
        Of each unit, ``(n_units,)``.
    """
    expected = cells[:, None] * shares.mean(axis=0)
    few = np.minimum(expected, MANY)
    counts = np.arange(int(4 * MANY))
    logs = np.log(counts + PSEUDO_COUNT)
    chances = np.exp(counts * np.log(np.maximum(few, 1e-300))[..., None] - few[..., None] - gammaln(counts + 1))
    mean = np.where(expected < MANY, chances @ logs, np.log(np.maximum(expected, MANY)))
    return np.asarray(np.log(cells[:, None] * shares + PSEUDO_COUNT) - mean)


def _at_least_counted(found: Differences, shares: Float64, cells: Float64, members: Bool) -> Differences:
    """Return differences of logarithms with errors not below those of counting cells: few samples may agree by luck."""
    counts = shares.mean(axis=0) / (1 / cells).mean() + PSEUDO_COUNT
    size = members[0].sum()
    counted = (1 / size + 1 / (members.shape[1] - size)) / counts
    return Differences(found.values, np.sqrt(np.maximum(found.errors**2, counted)))


def _reference(found: Differences, counts: Float64) -> tuple[Float64, Bool]:
    """Return how much each type counts in the reference of every order, and which are stable in the observed one.

    Parameters
    ----------
    found
        Differences of log-shares.
    counts
        Cells of each type in a typical unit, ``(n_types,)``.
    """
    candidates = np.argsort(-counts, kind="stable")[:CANDIDATES]
    n_orders, n_types = found.values.shape
    agreeing = np.empty(found.values.shape, dtype=bool)
    step = max(1, AT_ONCE // (n_types * candidates.size))
    for start in range(0, n_orders, step):
        part = slice(start, start + step)
        values, errors = found.values[part], found.errors[part]
        # A type with a large error agrees with everything and so decides nothing.
        together = np.sqrt(errors[:, None, :] ** 2 + errors[:, candidates, None] ** 2)
        distances = (values[:, None, :] - values[:, candidates, None]) / together
        best = np.exp(-(distances**2) / 2).sum(axis=2).argmax(axis=1)
        agreeing[part] = np.abs(distances[np.arange(len(best)), best]) <= AGREES
    # The log-share of a type with most of the cells hardly varies; it is no better a reference for that, and would be
    # all of it.
    typical = np.nanmedian(np.where(agreeing, found.errors, np.nan), axis=1, keepdims=True)
    precision = np.where(agreeing, 1 / np.maximum(found.errors, typical) ** 2, 0.0)
    telling = AGREES * found.errors[0] <= np.log(WOULD_SHOW)
    stable = agreeing[0] & telling
    if stable.sum() < 2 or 2 * stable.sum() <= telling.sum():
        stable = np.zeros(n_types, dtype=bool)
    return precision / precision.sum(axis=1, keepdims=True), stable


def _relative(logs: Float64, weights: Float64, members: Bool, blocks: Int64) -> tuple[Float64, Float64, Float64]:
    """Return observed statistics of log-ratios to the reference, their p-values, and the log-ratios.

    A type that is part of the reference is compared with the rest of it: ``(l - r) / (1 - w)`` is that log-ratio, and
    studentising removes the factor.
    """
    weighed = weigh(members, blocks)
    centred = weighed.centre @ logs
    reference = weights @ centred.T
    difference = weighed.coefficients @ centred
    shift = (weighed.coefficients * reference).sum(axis=1, keepdims=True)
    values = difference - shift
    errors, crossed = weighed.errors, weighed.errors * weighed.contrasts
    squares = errors @ centred**2 - 2 * (errors * reference) @ centred
    squares += (errors * reference**2).sum(axis=1, keepdims=True)
    products = crossed @ centred - (crossed * reference).sum(axis=1, keepdims=True)
    ends = (crossed * weighed.contrasts).sum(axis=1, keepdims=True)
    variance = squares - 2 * values * products + values**2 * ends
    least = 1e-10 * (centred**2).mean(axis=0) + np.finfo(float).tiny
    statistics = values / np.sqrt(np.maximum(variance, least))
    alone = np.maximum(1 - weights[0], 1e-9)
    return statistics[0], two_sided(statistics), np.where(weights[0] < 1, values[0] / alone, 0.0)
