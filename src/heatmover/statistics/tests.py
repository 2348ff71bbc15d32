"""Does a variable explain the distances? Permutation tests on distances between samples, and their separation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import by_one_blas_thread
from heatmover._base.types import Float64, Int64
from heatmover._base.validation import RandomState
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.statistics.designs import (
    DEPENDENT,
    Design,
    as_design,
    beside,
    f_ratio,
    gower,
    orthonormal,
    residual_test,
    within_blocks,
)
from heatmover.statistics.permutations import Restriction, TestResult, null_distribution, probability, restrict
from heatmover.statistics.samples import check_at_most, check_distances, check_labels, check_numbers
from heatmover.statistics.spread import score_distances

__all__ = [
    "Separation",
    "TestResult",
    "dispersion",
    "distance_correlation",
    "explained_variation",
    "false_discovery",
    "neighbor_enrichment",
    "permanova",
    "separate",
]

# Rows of distances that are looked at together where all would take several times their memory.
ROWS_AT_ONCE = 1_024


@by_one_blas_thread
def permanova(
    distances: npt.ArrayLike,
    groups: Any,
    *,
    blocks: Any | None = None,
    adjust: Any | None = None,
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
    blocks
        What ties samples together, such as patients, batches or pairs, ``(n_samples,)``; several by name in a
        mapping or a DataFrame. Groups that are the same throughout every block change places by whole blocks, which
        then count once however many samples they have; any others change places only within blocks.
    adjust
        Covariates to hold fixed, such as the batch or the age: values ``(n_samples,)`` by name in a mapping or a
        DataFrame, or a `Design`. The groups are then tested by permutations of what the covariates do not explain; see
        `permanova_design`, which also tests the covariates.
    n_permutations
        Permutations to compare with; all of them if there are no more.
    random_state
        Seed or generator.

    Returns
    -------
    TestResult
        ``statistic``: pseudo-F. ``effect``: R squared, the share of the sum of squares that lies between groups; with
        covariates the share of what they, and blocks within which groups change places, leave: the partial R squared.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import permanova
    >>> positions = np.random.default_rng(0).normal(size=40) + np.repeat([0, 2], 20)
    >>> result = permanova(abs(positions[:, None] - positions), np.repeat(["control", "case"], 20))
    >>> result.p_value, round(result.effect, 1)
    (0.001, 0.7)

    The same samples measured twice are no new evidence; with ``blocks`` they count once:

    >>> twice = np.tile(positions[15:25], 2)
    >>> labels = np.tile(np.repeat(["control", "case"], 5), 2)
    >>> apart = abs(twice[:, None] - twice)
    >>> alone, together = permanova(apart, labels), permanova(apart, labels, blocks=np.tile(np.arange(10), 2))
    >>> alone.p_value < together.p_value, together.complete
    (True, True)
    """
    matrix, codes, names, restriction = _check_groups(distances, groups, blocks)
    if adjust is not None:
        spaces = beside(np.eye(len(names))[codes], as_design(adjust, len(codes)), "groups")
        spaces = within_blocks(spaces, restriction, "groups")
        test = residual_test(gower(matrix), spaces, restriction, n_permutations, random_state)
        share, null, complete = test.share, test.null, test.complete
        f = f_ratio(np.append(share, null), spaces.tested.shape[1], spaces.residual_degrees_of_freedom)
    else:
        squared = matrix**2

        def explained(groupings: Int64) -> Float64:
            return _shares_between(squared, groupings, len(names))

        null, complete = null_distribution(explained, codes, restriction, n_permutations, random_state)
        share = float(explained(codes[None])[0])
        f = f_ratio(np.append(share, null), len(names) - 1, len(codes) - len(names))
    p, smallest = probability(share, null, complete)
    return TestResult("permanova", float(f[0]), share, p, f[1:], complete, names, smallest)


@by_one_blas_thread
def explained_variation(distances: npt.ArrayLike, groups: Any, *, adjust: Any | None = None) -> float:
    """Return the share of the sum of squared distances that lies between groups: the R squared of `permanova`.

    Parameters
    ----------
    distances, groups, adjust
        As in `permanova`.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import explained_variation
    >>> positions = np.array([0.0, 1.0, 4.0, 5.0])
    >>> round(explained_variation(abs(positions[:, None] - positions), list("aabb")), 2)
    0.94
    """
    matrix, codes, names, _ = _check_groups(distances, groups, None)
    if adjust is None:
        return float(_shares_between(matrix**2, codes[None], len(names))[0])
    spaces, gram = beside(np.eye(len(names))[codes], as_design(adjust, len(codes)), "groups"), gower(matrix)
    explained, fixed = (float(np.einsum("ij,ij->", part, gram @ part)) for part in (spaces.tested, spaces.fixed))
    left = float(np.trace(gram)) - fixed
    return explained / left if left > 0 else 0.0


def _shares_between(squared: Float64, groupings: Int64, n_groups: int) -> Float64:
    """Return the share of a sum of squared distances that lies between groups, for each grouping."""
    total = squared.sum() / (2 * len(squared))
    inside = (_sums_inside(squared, groupings, n_groups) / (2 * _sizes(groupings, n_groups))).sum(axis=1)
    return np.asarray(1 - inside / total) if total > 0 else np.zeros(len(groupings))


@by_one_blas_thread
def dispersion(
    distances: npt.ArrayLike,
    groups: Any,
    *,
    blocks: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether groups are unequally spread: a robust test of homogeneous dispersions (after Anderson 2006).

    The spread of a group is the mean score ``d / (d + unit)`` of the distances d between its samples, the unit being
    the median distance within groups: one remote sample counts as far, however remote it is. Groups may lie in
    different places. For the permutations they are moved onto each other by their spatial medians, so that only
    spread can differ. See decision record 18.

    Parameters
    ----------
    distances, groups, blocks, n_permutations, random_state
        As in `permanova`; every group has at least two samples, and two blocks if these change places as wholes.

    Returns
    -------
    TestResult
        ``statistic``: F between groups of what each sample contributes to the spread of its group, twice its own mean
        score less that of the group. ``effect``: largest over smallest typical distance between two samples of a group,
        the distance whose score is the mean score; infinite if a group has no spread at all.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import dispersion
    >>> positions = np.random.default_rng(0).normal(size=60) * np.repeat([1, 4], 30)
    >>> dispersion(abs(positions[:, None] - positions), np.repeat(["a", "b"], 30)).p_value
    0.001
    """
    matrix, codes, names, restriction = _check_groups(distances, groups, blocks)
    n_units = _units_per_group(codes, names, restriction.units, at_least=2)
    unit_of = np.arange(len(codes)) if restriction.units is None else restriction.units
    scores, first = score_distances(matrix, codes, unit_of, restriction.within)

    def explained(groupings: Int64) -> Float64:
        return _explained(*_spreads(scores, groupings[:, first], len(names)))

    null, complete = null_distribution(explained, codes, restriction, n_permutations, random_state)
    share = float(explained(codes[None])[0])
    f = f_ratio(np.append(share, null), len(names) - 1, int(n_units.sum()) - len(names))
    spreads = _spreads(scores, codes[None, first], len(names))[0][0]
    typical = spreads / (1 - spreads)
    effect = _ratio(float(typical.max()), float(typical.min()))
    p, smallest = probability(share, null, complete)
    return TestResult("dispersion", float(f[0]), effect, p, f[1:], complete, names, smallest)


@by_one_blas_thread
def neighbor_enrichment(
    distances: npt.ArrayLike,
    groups: Any,
    *,
    k: int = 5,
    blocks: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether the nearest samples carry the same label more often than by chance.

    Parameters
    ----------
    distances, groups, n_permutations, random_state
        As in `permanova`.
    k
        Number of neighbours looked at; of samples equally far as the k-th each counts in part.
    blocks
        As in `permanova`; where blocks change places as wholes, samples of one block are not neighbours of each other,
        since they are alike anyway.

    Returns
    -------
    TestResult
        ``statistic``: share of neighbours with the same label, first averaged within each group, then over groups.
        ``effect``: how many times the mean share over permutations.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import neighbor_enrichment
    >>> positions = np.random.default_rng(0).normal(size=40) + np.repeat([0, 3], 20)
    >>> result = neighbor_enrichment(abs(positions[:, None] - positions), np.repeat(["a", "b"], 20))
    >>> result.p_value, round(result.statistic, 1)
    (0.001, 1.0)
    """
    matrix, codes, names, restriction = _check_groups(distances, groups, blocks)
    near = _near(matrix, restriction.units, k)

    def share(groupings: Int64) -> Float64:
        sums = _sums_inside(near, groupings, len(names))
        return np.asarray((sums / _sizes(groupings, len(names))).mean(axis=1))

    null, complete = null_distribution(share, codes, restriction, n_permutations, random_state)
    observed = float(share(codes[None])[0])
    effect = _ratio(observed, float(null.mean()))
    p, smallest = probability(observed, null, complete)
    return TestResult("neighbor enrichment", observed, effect, p, null, complete, names, smallest)


@by_one_blas_thread
def distance_correlation(
    distances: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    blocks: Any | None = None,
    adjust: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether a number, such as age, goes with the distances in any way (Szekely, Rizzo and Bakirov 2007).

    Parameters
    ----------
    distances, blocks, n_permutations, random_state
        As in `permanova`.
    values
        A number for each sample, ``(n_samples,)``.
    adjust
        Covariates to hold fixed, as in `permanova`. What a linear model of them leaves of the number is compared with
        what they leave of the distances, and permuted. This keeps its level however the distances depend on the
        covariates, if the number depends on them linearly; see decision record 30.

    Returns
    -------
    TestResult
        ``statistic``: the distance correlation, from 0 to 1; few samples have some by chance. ``effect``: by how much
        it exceeds the mean over permutations.

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
    matrix /= matrix.max() or 1.0
    _center_doubly(matrix)
    restriction = restrict(numbers, blocks)
    left = None
    if adjust is not None:
        left = _Unexplained(numbers, as_design(adjust, len(matrix)), restriction)
        numbers, matrix = left.of_numbers(numbers[None])[0], left.of_distances(matrix)
    norm = float(np.sqrt((matrix**2).sum()))
    weights = matrix + matrix.T
    del matrix

    def squares(rows: Float64) -> Float64:
        # Permuted residuals go with the covariates again by chance: without that, as the observed ones are.
        return _squared_correlations(weights, norm, rows if left is None else left.of_numbers(rows))

    null, complete = null_distribution(squares, numbers, restriction, n_permutations, random_state)
    observed = float(squares(numbers[None])[0])
    # For distances that do not come from a Euclidean space a square can be negative.
    roots = np.sqrt(np.maximum(np.append(observed, null), 0.0))
    root, (p, smallest) = float(roots[0]), probability(observed, null, complete)
    effect = root - float(roots[1:].mean())
    return TestResult("distance correlation", root, effect, p, roots[1:], complete, (), smallest)


class _Unexplained:
    """What a linear model of covariates leaves of numbers and of double-centered distances.

    Of blocks that change places as wholes each has one number, which the mean covariates of the block explain.
    """

    def __init__(self, numbers: Float64, design: Design, restriction: Restriction) -> None:
        self.fixed = within_blocks(beside(numbers[:, None], design, "a number"), restriction, "a number").fixed
        self.units = np.arange(len(numbers)) if restriction.units is None else restriction.units
        self.first = np.unique(self.units, return_index=True)[1]
        sizes = np.bincount(self.units)
        means = np.stack([np.bincount(self.units, weights=column) / sizes for column in self.fixed.T], axis=1)
        mean = np.full((len(sizes), 1), 1 / np.sqrt(len(sizes)))
        self.basis = np.hstack([mean, orthonormal(means, mean)])
        if np.abs(self.of_numbers(numbers[None])).max() <= DEPENDENT * np.abs(numbers).max():
            raise InvalidInputError(
                "a number that differs between blocks in other ways than the covariates",
                f"none left in {counted(len(sizes), 'block')}",
                "adjust for fewer",
            )

    def of_numbers(self, rows: Float64) -> Float64:
        """Return what is left of numbers, ``(n_rows, n_samples)``."""
        of_units = rows[:, self.first]
        return np.asarray((of_units - (of_units @ self.basis) @ self.basis.T)[:, self.units])

    def of_distances(self, centered: Float64) -> Float64:
        """Return what is left of double-centered distances, ``(n_samples, n_samples)``."""
        left = centered - self.fixed @ (self.fixed.T @ centered)
        return np.asarray(left - (left @ self.fixed) @ self.fixed.T)


def false_discovery(p_values: npt.ArrayLike) -> Float64:
    """Return q-values: the expected share of false discoveries among all tests with at most that p-value.

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
    # By hand: scipy.stats takes half a second to import.
    order = np.argsort(array)
    # The k-th smallest of n is that of about k n p_k / k false ones; a larger p-value never has a smaller q-value.
    shares = array[order] * (array.size / np.arange(1, array.size + 1))
    q_values = np.empty_like(array)
    q_values[order] = np.minimum.accumulate(shares[::-1])[::-1]
    return np.clip(q_values, 0, 1)


@final
@dataclass(frozen=True)
class Separation:
    """How well a grouping of the samples explains the distances between them; ``print`` it.

    Attributes
    ----------
    within, between
        Mean distance between two samples of the same group and of different groups, over all such pairs.
    agreement
        Share of the samples whose nearest other sample is of the same group; of samples that are equally near
        each counts in part.
    chance
        What that share would be on average if the groups were dealt out at random.
    n_samples
        Number of samples.

    Examples
    --------
    >>> print(Separation(within=1.0, between=1.5, agreement=0.9, chance=0.4, n_samples=20))
    Samples of different groups are 50 % further apart than samples of one group (mean distance 1.50 against 1.00).
    The nearest sample is of the same group for 18 of 20 samples (8.0 expected by chance).
    """

    within: float
    between: float
    agreement: float
    chance: float
    n_samples: int

    def describe(self, kind: str = "group") -> str:
        """Return the figures in two plain sentences, with ``kind`` for what the groups are."""
        # Rounded first, so that the words never contradict the number they come with.
        excess = round(100 * (self.between / self.within - 1)) if self.within else 0
        words = f"{abs(excess)} % {'further apart' if excess > 0 else 'nearer'} than" if excess else "as far apart as"
        if self.within == 0 < self.between:
            words = "further apart than"
        return (
            f"Samples of different {kind}s are {words} samples of one {kind} "
            f"(mean distance {self.between:.2f} against {self.within:.2f}).\n"
            f"The nearest sample is of the same {kind} for {self.agreement * self.n_samples:.3g} of "
            f"{counted(self.n_samples, 'sample')} ({self.chance * self.n_samples:.1f} expected by chance)."
        )

    def __str__(self) -> str:
        return self.describe()


def separate(distances: Float64, codes: npt.NDArray[np.integer]) -> Separation:
    """Return how well groups explain distances.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    codes
        Group of each sample as a number from 0 on, ``(n_samples,)``; at least two groups, one of them of two samples.

    Examples
    --------
    >>> positions = np.array([0.0, 1.0, 8.0, 9.0])
    >>> separate(abs(positions[:, None] - positions), np.array([0, 0, 1, 1])).agreement
    1.0
    """
    n_samples = len(codes)
    same = codes[:, None] == codes
    pairs = np.triu(np.ones_like(same), 1)
    if not (same & pairs).any() or same.all():
        raise InvalidInputError(
            "at least two groups, one of them with at least two samples",
            f"{counted(codes.max() + 1, 'group')} of {counted(n_samples, 'sample')}",
        )
    candidates = distances.copy()
    np.fill_diagonal(candidates, np.inf)
    # Distances of a float32 embedding that differ by less are equal: rounding must not decide who is nearest.
    tied = candidates <= candidates.min(axis=1, keepdims=True) * (1 + 1e-5)
    counts = np.bincount(codes)
    return Separation(
        within=float(distances[same & pairs].mean()),
        between=float(distances[~same & pairs].mean()),
        agreement=float(((tied & same).sum(axis=1) / tied.sum(axis=1)).mean()),
        chance=float((counts * (counts - 1)).sum() / (n_samples * (n_samples - 1))),
        n_samples=n_samples,
    )


def _sizes(groupings: Int64, n_groups: int) -> Int64:
    """Return the number of samples of each group in each grouping, ``(n_groupings, n_groups)``."""
    return np.stack([(groupings == g).sum(axis=1) for g in range(n_groups)], axis=1)


def _sums_inside(matrix: Float64 | sp.csr_array, groupings: Int64, n_groups: int) -> Float64:
    """Return the sum of a matrix over all pairs inside each group, ``(n_groupings, n_groups)``."""
    sums = np.empty((len(groupings), n_groups))
    for group in range(n_groups):
        members = (groupings == group).astype(np.float64)
        sums[:, group] = np.einsum("pi,pi->p", members @ matrix, members)
    return sums


def _spreads(scores: Float64, groupings: Int64, n_groups: int) -> tuple[Float64, Float64, Int64]:
    """Return the mean score within each group, the sum of squares of its members' contributions, and its size.

    All ``(n_groupings, n_groups)``. A mean over pairs varies, to first order, as a mean of contributions does: twice a
    member's own mean score less that of the group (Hoeffding 1948).
    """
    sizes = _sizes(groupings, n_groups)
    means, squares = np.empty(sizes.shape), np.empty(sizes.shape)
    for group in range(n_groups):
        members = (groupings == group).astype(np.float64)
        own = members @ scores / (sizes[:, group, None] - 1)
        means[:, group] = (own * members).sum(axis=1) / sizes[:, group]
        squares[:, group] = 4 * (members * (own - means[:, group, None]) ** 2).sum(axis=1)
    return means, squares, sizes


def _explained(means: Float64, squares: Float64, sizes: Int64) -> Float64:
    """Return the share of the sum of squares that lies between groups, ``(n_groupings,)``."""
    middle = (means * sizes).sum(axis=1, keepdims=True) / sizes.sum(axis=1, keepdims=True)
    between = (sizes * (means - middle) ** 2).sum(axis=1)
    total = between + squares.sum(axis=1)
    # Scores that are all equal up to rounding leave nothing to explain.
    varies = total > (1e-12 * middle[:, 0]) ** 2 * sizes[0].sum()
    return np.asarray(np.divide(between, total, out=np.zeros(len(means)), where=varies))


def _near(distances: Float64, units: Int64 | None, k: object) -> sp.csr_array:
    """Return how much each sample counts among the k nearest of other blocks: rows that sum to 1, mostly zeros."""
    unit_of = np.arange(len(distances)) if units is None else units
    fewest = len(distances) - int(np.bincount(unit_of).max())
    count = check_at_most("k", k, fewest, "a sample has no more neighbours" + ("" if units is None else " elsewhere"))
    parts = []
    for start in range(0, len(distances), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        others = np.where(unit_of[rows, None] == unit_of, np.inf, distances[rows])
        farthest = np.partition(others, count - 1, axis=1)[:, count - 1 : count]
        # Distances computed in float32 that differ by less are equal.
        nearer, tied = others < farthest * (1 - 1e-6), np.abs(others - farthest) <= farthest * 1e-6
        left = count - nearer.sum(axis=1, keepdims=True)
        parts.append(sp.csr_array((nearer + tied * left / tied.sum(axis=1, keepdims=True)) / count))
    return sp.csr_array(sp.vstack(parts))


def _center_doubly(matrix: Float64) -> None:
    """Take the means of rows and columns off, in place: 10,000 samples have 800 MB of distances."""
    means = matrix.mean(axis=0)
    matrix -= means
    matrix -= means[:, None]
    matrix += means.mean()


def _squared_correlations(weights: Float64, norm: float, rows: Float64) -> Float64:
    """Return the squared distance correlation of distances with each row of numbers, ``(n_rows,)``.

    ``weights`` are the double-centered distances of both directions added, ``(n_samples, n_samples)``. Their product
    with the differences of numbers is the same before these are centered.
    """
    # Here, because numba takes a while to import.
    from heatmover._base.compiled.l1 import NUMBER_ROWS, add_weighed_differences

    padded = np.empty((-(-len(rows) // NUMBER_ROWS) * NUMBER_ROWS, rows.shape[1]))  # one layout, which compiles once
    padded[: len(rows)], padded[len(rows) :] = rows, rows[-1]
    products = np.zeros(len(padded))
    add_weighed_differences(weights, padded, products)
    scales = norm * np.sqrt(np.maximum(_squared_norms(rows), 0.0))
    return np.divide(products[: len(rows)], scales, out=np.zeros(len(rows)), where=scales > 0)


def _squared_norms(rows: Float64) -> Float64:
    """Return the sum of squares of the double-centered differences between the numbers of each row, ``(n_rows,)``.

    It follows from sums of differences, and these from sums of the numbers in ascending order.
    """
    n_samples = rows.shape[1]
    ascending = np.sort(rows, axis=1)
    ascending -= ascending.mean(axis=1, keepdims=True)  # differences stay as they are, and squares lose no digits
    up_to = np.cumsum(ascending, axis=1)
    total = up_to[:, -1]
    sums = (2 * np.arange(n_samples) + 2 - n_samples) * ascending + total[:, None] - 2 * up_to
    squares = 2 * (n_samples * (ascending**2).sum(axis=1) - total**2)
    return np.asarray(squares - 2 * (sums**2).sum(axis=1) / n_samples + (sums.sum(axis=1) / n_samples) ** 2)


def _ratio(large: float, small: float) -> float:
    if small > 0:
        return large / small
    return 1.0 if large == 0 else float("inf")


def _check_groups(
    distances: npt.ArrayLike, groups: Any, blocks: Any | None
) -> tuple[Float64, Int64, tuple[str, ...], Restriction]:
    """Return distances in a unit that keeps their squares finite, codes and names of groups, and what blocks allow."""
    matrix = check_distances(distances)
    codes, names = check_labels("groups", groups, len(matrix))
    if len(names) < 2:
        raise InvalidInputError("at least two groups", f"one, {names[0]!r}", "a single group differs from nothing")
    restriction = restrict(codes, blocks)
    if _units_per_group(codes, names, restriction.units, at_least=1).max() < 2:
        what = "samples" if restriction.units is None else "blocks"
        raise InvalidInputError(f"a group with at least two {what}", f"{len(names)} {what} in as many groups")
    return matrix / (matrix.max() or 1.0), codes, names, restriction


def _units_per_group(codes: Int64, names: tuple[str, ...], units: Int64 | None, *, at_least: int) -> Int64:
    """Return how many samples, or blocks that change places as wholes, each group has, ``(n_groups,)``."""
    if units is not None:
        codes = np.unique(np.column_stack([codes, units]), axis=0)[:, 0]
    counts = np.bincount(codes, minlength=len(names))
    if counts.min() < at_least:
        what = "samples" if units is None else "blocks"
        smallest = f"{counts.min()} in {names[counts.argmin()]!r}"
        raise InvalidInputError(f"at least {at_least} {what} in every group", smallest, "leave small groups out")
    return counts
