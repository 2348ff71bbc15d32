"""Restricted permutations: rearrangements of a variable that are as likely as the one observed, and what they say."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, Int64
from heatmover._validation import RandomState, check_integer, check_random_state
from heatmover.errors import InvalidInputError
from heatmover.statistics.samples import check_labels

__all__ = ["Arrangements", "TestResult", "arrangements", "null_distribution", "p_value"]

# What is permuted: codes of groups or numbers, one per sample.
Values: TypeAlias = npt.NDArray[Any]

# Statistics that differ by less than this share of the largest are equal but for rounding, which stays some orders of
# magnitude below in sums over 1,000 samples.
ROUNDING = 1e-9

# Rearrangements that are looked at together: at 634 samples each array of them takes 5 MB.
AT_ONCE = 1_000


@final
@dataclass(frozen=True, eq=False, repr=False)
class TestResult(ReadOnlyArrays):
    """What a permutation test found.

    Attributes
    ----------
    test
        Its name.
    statistic
        Observed.
    effect
        Size of the effect: see the test.
    p_value
        Share of arrangements at least as extreme, the observed one among them: (b + 1) / (B + 1) if b of B
        rearrangements are; equal ones count.
    null
        ``(n_permutations,)``: the statistic of every rearrangement.
    complete
        Whether these are all rearrangements there are, so that the p-value is exact.
    groups
        Names of the groups, sorted; empty for a numeric variable.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import permanova
    >>> positions = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2])
    >>> permanova(abs(positions[:, None] - positions), list("aaabbb"))
    TestResult(permanova: statistic 3.75e+03, effect 1.00, p = 0.1, all 19 rearrangements)
    """

    __test__ = False  # not a test case, whatever its name begins with

    test: str
    statistic: float
    effect: float
    p_value: float
    null: Float64
    complete: bool
    groups: tuple[str, ...] = ()

    def __repr__(self) -> str:
        how = f"{'all ' if self.complete else ''}{len(self.null)} rearrangements"
        return (
            f"TestResult({self.test}: statistic {self.statistic:.3g}, effect {self.effect:.2f}, "
            f"p = {self.p_value:.2g}, {how})"
        )


@final
@dataclass(frozen=True, eq=False)
class Arrangements:
    """Rearrangements of a variable over samples.

    Attributes
    ----------
    shuffled
        ``(n_permutations, n_samples)``: the values rearranged.
    complete
        Whether these are all arrangements there are but the observed one; else they are drawn at random, each as likely
        as any other.
    """

    shuffled: Values
    complete: bool


def p_value(observed: float, null: Float64, *, smaller: bool = False) -> float:
    """Return the share of arrangements, the observed one among them, that are at least as extreme.

    Statistics must be finite and of one magnitude: values that differ by rounding count as ties, and ties as extreme.

    Parameters
    ----------
    observed
        The statistic of the observed arrangement.
    null
        Those of the others, ``(n_permutations,)``.
    smaller
        Small statistics are extreme, not large ones.
    """
    slack = ROUNDING * max(abs(observed), float(np.abs(null).max(initial=0.0)))
    extreme = null <= observed + slack if smaller else null >= observed - slack
    return (int(extreme.sum()) + 1) / (len(null) + 1)


def arrangements(
    values: Values,
    *,
    within: Any | None,
    units: Any | None,
    n_permutations: int,
    random_state: RandomState,
) -> Arrangements:
    """Rearrange a variable over samples: within blocks, and by whole units.

    Parameters
    ----------
    values
        ``(n_samples,)``, without NaN.
    within
        Labels ``(n_samples,)`` of blocks (batches, pairs): values change places only within their block. None: one.
    units
        Labels ``(n_samples,)`` of units (patients with several samples) whose samples share one value and keep
        sharing one. None: every sample is a unit.
    n_permutations
        Number of rearrangements; all there are if there are no more.
    random_state
        Seed or generator.
    """
    count = check_integer("n_permutations", n_permutations, minimum=1)
    rng = check_random_state(random_state)
    unit_of, first = _units(values, units)
    of_unit = values[first]
    blocks = _blocks(within, unit_of, first, units)
    # A block whose values are all the same stays as it is.
    blocks = [block for block in blocks if (of_unit[block] != of_unit[block[0]]).any()]
    if not blocks:
        constant = bool((values == values[0]).all())
        raise InvalidInputError(
            "a variable that can be rearranged",
            "one that is the same for all samples" if constant else "one that is constant within every block",
            "" if constant else "within= such blocks it cannot be tested; give coarser blocks or none",
        )
    possible = math.prod(_n_orders(of_unit[block]) for block in blocks)
    complete = possible - 1 <= count
    shuffled = _all_others(of_unit, blocks, possible) if complete else _drawn(of_unit, blocks, count, rng)
    return Arrangements(shuffled[:, unit_of], complete)


def null_distribution(
    statistic: Callable[[Values], Float64],
    values: Values,
    within: Any | None,
    units: Any | None,
    n_permutations: int,
    random_state: RandomState,
) -> tuple[Float64, bool]:
    """Return the statistic of every rearrangement, ``(n_permutations,)``, and whether these are all."""
    drawn = arrangements(values, within=within, units=units, n_permutations=n_permutations, random_state=random_state)
    starts = range(0, len(drawn.shuffled), AT_ONCE)
    return np.concatenate([statistic(drawn.shuffled[i : i + AT_ONCE]) for i in starts]), drawn.complete


def _units(values: Values, units: Any | None) -> tuple[Int64, Int64]:
    """Return the unit of each sample, and the first sample of each unit."""
    if units is None:
        return np.arange(len(values)), np.arange(len(values))
    unit_of, names = check_labels("units", units, len(values))
    first = np.unique(unit_of, return_index=True)[1]
    varying = np.unique(unit_of[values != values[first][unit_of]])
    if varying.size:
        raise InvalidInputError(
            "one value of the variable in all samples of a unit",
            f"several in {varying.size} units (first: {names[varying[0]]!r})",
            "a variable that changes within units, such as before and after, is tested with within= and no units",
        )
    return unit_of, first


def _blocks(within: Any | None, unit_of: Int64, first: Int64, units: Any | None) -> list[Int64]:
    """Return the units of each block."""
    if within is None:
        return [np.arange(len(first))]
    block_of, _ = check_labels("within", within, len(unit_of))
    varying = np.unique(unit_of[block_of != block_of[first][unit_of]])
    if varying.size:
        names = check_labels("units", units, len(unit_of))[1]
        raise InvalidInputError(
            "every unit in one block", f"{varying.size} units in several (first: {names[varying[0]]!r})"
        )
    order = np.argsort(block_of[first], kind="stable")
    return np.split(order, np.cumsum(np.bincount(block_of[first]))[:-1])


def _n_orders(values: Values) -> int:
    """Return how many different orders some values have."""
    counts = np.unique(values, return_counts=True)[1].tolist()
    return math.factorial(len(values)) // math.prod(map(math.factorial, counts))


def _drawn(values: Values, blocks: list[Int64], count: int, rng: np.random.Generator) -> Values:
    """Return random arrangements within blocks, ``(count, n_units)``."""
    shuffled = np.tile(values, (count, 1))
    for block in blocks:
        shuffled[:, block] = rng.permuted(shuffled[:, block], axis=1)
    return shuffled


def _all_others(values: Values, blocks: list[Int64], possible: int) -> Values:
    """Return every arrangement within blocks but the observed one, ``(possible - 1, n_units)``."""
    ranked = [np.unique(values[block], return_inverse=True) for block in blocks]
    orders = [distinct[np.array(list(_orders(sorted(ranks.tolist()))))] for distinct, ranks in ranked]
    shuffled = np.tile(values, (possible, 1))
    choices = np.unravel_index(np.arange(possible), [len(each) for each in orders])
    for block, each, choice in zip(blocks, orders, choices, strict=True):
        shuffled[:, block] = each[choice]
    others: Values = shuffled[(shuffled != values).any(axis=1)]
    return others


def _orders(ranks: list[int]) -> Iterator[list[int]]:
    """Yield the different orders of some sorted numbers, in the order of a dictionary."""
    current = ranks
    while True:
        yield list(current)
        # The tail that falls cannot grow; the number before it takes the next larger one of the tail.
        turn = len(current) - 2
        while turn >= 0 and current[turn] >= current[turn + 1]:
            turn -= 1
        if turn < 0:
            return
        next_larger = len(current) - 1
        while current[next_larger] <= current[turn]:
            next_larger -= 1
        current[turn], current[next_larger] = current[next_larger], current[turn]
        current[turn + 1 :] = current[:turn:-1]
