"""Does a variable explain the distances? Permutation tests on distances between samples."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from heatmover._permutations import TestResult, null_distribution, p_value
from heatmover._samples import check_at_most, check_distances, check_labels, check_numbers
from heatmover._validation import RandomState
from heatmover.errors import InvalidInputError

__all__ = ["TestResult", "dispersion", "distance_correlation", "false_discovery", "neighbor_enrichment", "permanova"]

Float64: TypeAlias = npt.NDArray[np.float64]
Int64: TypeAlias = npt.NDArray[np.int64]


def permanova(
    distances: npt.ArrayLike,
    groups: Any,
    *,
    within: Any | None = None,
    units: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether groups lie in different places (PERMANOVA, Anderson 2001).

    A small p-value can also come from groups that are unequally spread; `dispersion` tells.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    groups
        Label of each sample, ``(n_samples,)``.
    within
        Blocks such as batches or pairs, ``(n_samples,)``: labels change places only within a block.
    units
        Patients with several samples, ``(n_samples,)``: all samples of a unit share a label and change it together.
        A unit lies in one block.
    n_permutations
        Rearrangements to compare with; all of them if there are no more.
    random_state
        Seed or generator.

    Returns
    -------
    TestResult
        ``statistic``: pseudo-F. ``effect``: R squared, the share of the sum of squares that lies between groups.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import permanova
    >>> positions = np.random.default_rng(0).normal(size=40) + np.repeat([0, 2], 20)
    >>> result = permanova(abs(positions[:, None] - positions), np.repeat(["control", "case"], 20))
    >>> result.p_value, round(result.effect, 1)
    (0.001, 0.7)

    The same samples measured twice are no new evidence; with ``units`` they count once:

    >>> twice = np.tile(positions[15:25], 2)
    >>> labels = np.tile(np.repeat(["control", "case"], 5), 2)
    >>> apart = abs(twice[:, None] - twice)
    >>> alone, together = permanova(apart, labels), permanova(apart, labels, units=np.tile(np.arange(10), 2))
    >>> alone.p_value < together.p_value, together.complete
    (True, True)
    """
    squared, codes, names = _check_groups(distances, groups, units)
    total = squared.sum() / (2 * len(codes))

    def explained(groupings: Int64) -> Float64:
        inside = (_sums_inside(squared, groupings, len(names)) / (2 * _sizes(groupings, len(names)))).sum(axis=1)
        return np.asarray(1 - inside / total) if total > 0 else np.zeros(len(groupings))

    null, complete = null_distribution(explained, codes, within, units, n_permutations, random_state)
    share = float(explained(codes[None])[0])
    f = _f_statistic(np.append(share, null), len(codes), len(names))
    return TestResult("permanova", float(f[0]), share, p_value(share, null), f[1:], complete, names)


def dispersion(
    distances: npt.ArrayLike,
    groups: Any,
    *,
    within: Any | None = None,
    units: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether groups are unequally spread around their centres (PERMDISP, Anderson 2006).

    Rearranged are the places of samples relative to the centre of their group, and new centres found: the groups then
    differ no more in place, and centres are as uncertain as the observed ones. Distances to the centre of a group of n
    samples are multiplied by ``sqrt(n / (n - 1))``, for a small group pulls its centre towards its members and would
    seem tighter than it is (Stier et al. 2013). With units n counts units.

    Parameters
    ----------
    distances, groups, within, units, n_permutations, random_state
        As in `permanova`; every group has at least two samples, and two units if there are units.

    Returns
    -------
    TestResult
        ``statistic``: F of the distances to the own group's centre. ``effect``: largest over smallest mean distance
        to the centre among groups, infinite if a group has no spread at all.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import dispersion
    >>> positions = np.random.default_rng(0).normal(size=60) * np.repeat([1, 4], 30)
    >>> dispersion(abs(positions[:, None] - positions), np.repeat(["a", "b"], 30)).p_value
    0.001
    """
    squared, codes, names = _check_groups(distances, groups, units)
    n_units = _units_per_group(codes, names, units, at_least=2)
    correction = np.sqrt(n_units / (n_units - 1))
    residuals = _around_centers(squared, codes)
    # Residuals of small groups are too small by their correction, wherever they are put.
    scaled = residuals * np.outer(correction[codes], correction[codes])

    def explained(groupings: Int64) -> Float64:
        return _explained(_to_centers(scaled, groupings, correction), groupings, len(names))

    null, complete = null_distribution(explained, codes, within, units, n_permutations, random_state)
    spread = _to_centers(residuals, codes[None], correction)
    share = float(_explained(spread, codes[None], len(names))[0])
    f = _f_statistic(np.append(share, null), len(codes), len(names))
    means = np.bincount(codes, spread[0]) / np.bincount(codes)
    effect = _ratio(float(means.max()), float(means.min()))
    return TestResult("dispersion", float(f[0]), effect, p_value(share, null), f[1:], complete, names)


def neighbor_enrichment(
    distances: npt.ArrayLike,
    groups: Any,
    *,
    k: int = 5,
    within: Any | None = None,
    units: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether the nearest samples carry the same label more often than by chance.

    Parameters
    ----------
    distances, groups, within, n_permutations, random_state
        As in `permanova`.
    k
        Number of neighbours looked at; of samples equally far as the k-th each counts in part.
    units
        As in `permanova`; samples of the same unit are no neighbours of one another here, as they are alike anyway.

    Returns
    -------
    TestResult
        ``statistic``: share of neighbours with the same label, first averaged within each group, then over groups.
        ``effect``: how many times the mean share after rearrangement.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import neighbor_enrichment
    >>> positions = np.random.default_rng(0).normal(size=40) + np.repeat([0, 3], 20)
    >>> result = neighbor_enrichment(abs(positions[:, None] - positions), np.repeat(["a", "b"], 20))
    >>> result.p_value, round(result.statistic, 1)
    (0.001, 1.0)
    """
    squared, codes, names = _check_groups(distances, groups, units)
    near = _near(squared, units, k)

    def share(groupings: Int64) -> Float64:
        sums = _sums_inside(near, groupings, len(names))
        return np.asarray((sums / _sizes(groupings, len(names))).mean(axis=1))

    null, complete = null_distribution(share, codes, within, units, n_permutations, random_state)
    observed = float(share(codes[None])[0])
    effect = _ratio(observed, float(null.mean()))
    return TestResult("neighbor enrichment", observed, effect, p_value(observed, null), null, complete, names)


def distance_correlation(
    distances: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    within: Any | None = None,
    units: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether a number, such as age, goes with the distances in any way (Szekely, Rizzo and Bakirov 2007).

    Parameters
    ----------
    distances, within, units, n_permutations, random_state
        As in `permanova`.
    values
        A number for each sample, ``(n_samples,)``.

    Returns
    -------
    TestResult
        ``statistic``: the distance correlation, from 0 to 1; few samples have some by chance. ``effect``: by how much
        it exceeds the mean after rearrangement.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import distance_correlation
    >>> positions = np.random.default_rng(0).normal(size=40)
    >>> result = distance_correlation(abs(positions[:, None] - positions), positions**2)
    >>> result.p_value, round(result.statistic, 1)
    (0.001, 0.6)
    """
    matrix = check_distances(distances)
    numbers = check_numbers("values", values, len(matrix))
    # Neither unit matters; near 1 no square overflows or vanishes.
    numbers = numbers / (np.abs(numbers).max() or 1.0)
    centered = _double_centered(matrix / (matrix.max() or 1.0))
    norm = float(np.sqrt((centered**2).sum()))

    def squares(rows: Float64) -> Float64:
        return np.array([_squared_correlation(centered, norm, row) for row in rows])

    null, complete = null_distribution(squares, numbers, within, units, n_permutations, random_state)
    observed = float(squares(numbers[None])[0])
    # Of distances that no Euclidean space holds a square can be negative.
    roots = np.sqrt(np.maximum(np.append(observed, null), 0.0))
    found, p = float(roots[0]), p_value(observed, null)
    return TestResult("distance correlation", found, found - float(roots[1:].mean()), p, roots[1:], complete)


def false_discovery(p_values: npt.ArrayLike) -> Float64:
    """Return q-values: the expected share of false discoveries if everything at most as large is called one.

    Benjamini and Hochberg (1995), for many variables tested at once.

    Parameters
    ----------
    p_values
        ``(n_tests,)``, from 0 to 1.

    Returns
    -------
    ndarray of shape (n_tests,)
        In the order of the p-values.

    Examples
    --------
    >>> from heatmover.statistics import false_discovery
    >>> false_discovery([0.01, 0.04, 0.03, 0.5]).round(3).tolist()
    [0.04, 0.053, 0.053, 0.5]
    """
    array = check_numbers("p_values", p_values, np.size(p_values))
    if ((array < 0) | (array > 1)).any():
        raise InvalidInputError("p-values from 0 to 1", f"{array.min():g} to {array.max():g}")
    order = np.argsort(array)[::-1]
    scaled = array[order] * len(array) / np.arange(len(array), 0, -1)
    result = np.empty_like(array)
    # The largest is multiplied by 1, so that the smallest so far never exceeds 1.
    result[order] = np.minimum.accumulate(scaled)
    return result


def _sizes(groupings: Int64, n_groups: int) -> Int64:
    """Return the number of samples of each group in each grouping, ``(n_groupings, n_groups)``."""
    return np.stack([(groupings == g).sum(axis=1) for g in range(n_groups)], axis=1)


def _sums_inside(matrix: Float64, groupings: Int64, n_groups: int) -> Float64:
    """Return the sum of a matrix over all pairs inside each group, ``(n_groupings, n_groups)``."""
    sums = np.empty((len(groupings), n_groups))
    for group in range(n_groups):
        members = (groupings == group).astype(np.float64)
        sums[:, group] = np.einsum("pi,pi->p", members @ matrix, members)
    return sums


def _f_statistic(explained: Float64, n_samples: int, n_groups: int) -> Float64:
    """Return F from the share of the sum of squares that lies between groups; infinite if all of it does."""
    rest = np.maximum(1 - explained, 0.0) / (n_samples - n_groups)
    return np.divide(explained / (n_groups - 1), rest, out=np.full_like(explained, np.inf), where=rest > 0)


def _around_centers(squared: Float64, codes: Int64) -> Float64:
    """Return inner products of places relative to the centres of the groups, ``(n_samples, n_samples)``."""
    means = (codes[:, None] == codes) / np.bincount(codes)[codes]
    centered = squared - means @ squared
    return np.asarray((centered - centered @ means) / -2)


def _to_centers(products: Float64, groupings: Int64, correction: Float64) -> Float64:
    """Return the corrected distance of each sample to the centre of its group, ``(n_groupings, n_samples)``."""
    squares = np.zeros(groupings.shape)
    for group, factor in enumerate(correction):
        members = (groupings == group).astype(np.float64)
        to_center = members @ products / members.sum(axis=1, keepdims=True)
        of_center = (to_center * members).sum(axis=1, keepdims=True) / members.sum(axis=1, keepdims=True)
        squares += members * factor**2 * (products.diagonal() - 2 * to_center + of_center)
    # Of distances that no Euclidean space holds a square can be negative; its size is what counts (Anderson 2006). What
    # rounding leaves of zero, as the largest distance is 1, would seem a spread of 1e-8.
    return np.sqrt(np.where(np.abs(squares) > 1e-14, np.abs(squares), 0.0))


def _explained(values: Float64, groupings: Int64, n_groups: int) -> Float64:
    """Return the share of the variance of values ``(n_groupings, n_samples)`` that lies between groups."""
    means = values.mean(axis=1, keepdims=True)
    centered = values - means
    total = (centered**2).sum(axis=1)
    sums = np.stack([np.where(groupings == g, centered, 0).sum(axis=1) for g in range(n_groups)], axis=1)
    between = (sums**2 / _sizes(groupings, n_groups)).sum(axis=1)
    # Values that are all equal but for rounding leave nothing to explain.
    varies = total > (1e-12 * means[:, 0]) ** 2 * values.shape[1]
    return np.asarray(np.divide(between, total, out=np.zeros(len(values)), where=varies))


def _near(squared: Float64, units: Any | None, k: object) -> Float64:
    """Return how much each sample counts among the k nearest of other units: rows that sum to 1."""
    others = squared.copy()
    unit_of = np.arange(len(others)) if units is None else check_labels("units", units, len(others))[0]
    others[unit_of[:, None] == unit_of] = np.inf
    fewest = int(np.isfinite(others).sum(axis=1).min())
    count = check_at_most("k", k, fewest, "a sample has no more neighbours" + ("" if units is None else " elsewhere"))
    farthest = np.sort(others, axis=1)[:, count - 1 : count]
    # Distances computed in float32 that differ by less are equal; squares differ by twice as much.
    nearer, tied = others < farthest * (1 - 2e-6), np.abs(others - farthest) <= farthest * 2e-6
    left = count - nearer.sum(axis=1, keepdims=True)
    return np.asarray((nearer + tied * left / tied.sum(axis=1, keepdims=True)) / count)


def _double_centered(matrix: Float64) -> Float64:
    means = matrix.mean(axis=0)
    return np.asarray(matrix - means - means[:, None] + means.mean())


def _squared_correlation(centered: Float64, norm: float, numbers: Float64) -> float:
    """Return the squared distance correlation of double-centred distances with numbers."""
    apart = np.subtract.outer(numbers, numbers)
    np.abs(apart, out=apart)
    # The product with centred distances is the same before centring, and the norm after it follows from sums.
    sums = apart.sum(axis=1)
    squares = np.vdot(apart, apart) - 2 * (sums @ sums) / len(sums) + (sums.sum() / len(sums)) ** 2
    scale = norm * np.sqrt(max(float(squares), 0.0))
    return float(np.vdot(centered, apart) / scale) if scale > 0 else 0.0


def _ratio(large: float, small: float) -> float:
    if small > 0:
        return large / small
    return 1.0 if large == 0 else float("inf")


def _check_groups(distances: npt.ArrayLike, groups: Any, units: Any | None) -> tuple[Float64, Int64, tuple[str, ...]]:
    """Return squared distances in a unit that keeps them finite, codes of the groups and their names."""
    matrix = check_distances(distances)
    codes, names = check_labels("groups", groups, len(matrix))
    if len(names) < 2:
        raise InvalidInputError("at least two groups", f"one, {names[0]!r}", "a single group differs from nothing")
    if _units_per_group(codes, names, units, at_least=1).max() < 2:
        what = "samples" if units is None else "units"
        raise InvalidInputError(f"a group with at least two {what}", f"{len(names)} {what} in as many groups")
    return (matrix / (matrix.max() or 1.0)) ** 2, codes, names


def _units_per_group(codes: Int64, names: tuple[str, ...], units: Any | None, *, at_least: int) -> Int64:
    """Return how many units, or samples if there are none, each group has, ``(n_groups,)``."""
    if units is not None:
        unit_of, _ = check_labels("units", units, len(codes))
        codes = np.unique(np.column_stack([codes, unit_of]), axis=0)[:, 0]
    counts = np.bincount(codes, minlength=len(names))
    if counts.min() < at_least:
        what = "samples" if units is None else "units"
        found = f"{counts.min()} in {names[counts.argmin()]!r}"
        raise InvalidInputError(f"at least {at_least} {what} in every group", found, "leave small groups out")
    return counts
