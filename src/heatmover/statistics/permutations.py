"""Restricted permutations of a variable: those that are as likely as the observed order, and tests by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import in_threads, one_blas_thread
from heatmover._base.types import Float64, Int64
from heatmover._base.validation import RandomState, check_integer, check_random_state, check_threads
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.statistics.samples import check_labels

__all__ = [
    "Permutations",
    "Restriction",
    "TestResult",
    "by_blocks",
    "null_distribution",
    "p_value",
    "permute",
    "probability",
    "restrict",
]

# What is permuted: codes of groups or numbers, one per sample.
Values: TypeAlias = npt.NDArray[Any]

# Statistics that differ by less than this share of the largest are equal up to rounding, which stays some orders of
# magnitude below in sums over 1,000 samples.
ROUNDING = 1e-9

# What a test calls unlikely.
LEVEL = 0.05

# Permutations that are looked at together: as many as have so many numbers (half a megabyte, which stays near a core),
# but enough columns for a product to be worth its reading of the matrix, and not so many that one core has them all.
# They never depend on the number of threads, nor do the bits of a result.
NUMBERS, LEAST_COLUMNS, MOST = 1 << 16, 64, 1_000


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
        Share of permutations at least as extreme, the observed order among them: (b + 1) / (B + 1) if b of B
        permutations are; equal ones count.
    null
        ``(n_permutations,)``: the statistic of every permutation.
    complete
        Whether these are all permutations there are, so that the p-value is exact.
    groups
        Names of the groups, sorted; empty for a numeric variable.
    smallest_p
        The smallest p-value that any order could have reached. With two groups of equal size the mirror image of the
        most extreme order is as extreme, and counts too: five pairs cannot go below 2 / 32.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics import permanova
    >>> positions = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2])
    >>> result = permanova(abs(positions[:, None] - positions), list("aaabbb"))
    >>> result
    TestResult(permanova: statistic 3.75e+03, effect 1.00, p = 0.1, all 19 permutations)
    >>> result.smallest_p, result.undecided
    (0.1, True)
    """

    __test__ = False  # not a test case, whatever its name begins with

    test: str
    statistic: float
    effect: float
    p_value: float
    null: Float64
    complete: bool
    groups: tuple[str, ...] = ()
    smallest_p: float = 0.0

    @property
    def undecided(self) -> bool:
        """Whether even the smallest p-value that there can be is above 5 %, so that the test cannot decide."""
        return not within_reach(self.smallest_p)

    def __repr__(self) -> str:
        how = f"{'all ' if self.complete else ''}{counted(len(self.null), 'permutation')}"
        return (
            f"TestResult({self.test}: statistic {self.statistic:.3g}, effect {self.effect:.2f}, "
            f"p = {self.p_value:.2g}, {how})"
        )


@final
@dataclass(frozen=True, eq=False)
class Permutations:
    """Permutations of a variable over samples.

    Attributes
    ----------
    shuffled
        ``(n_permutations, n_samples)``: the values permuted.
    complete
        Whether these are all there are but the observed order; else they are drawn at random, each as likely as any
        other.
    """

    shuffled: Values
    complete: bool


@final
@dataclass(frozen=True, eq=False)
class Restriction:
    """What blocks allow a variable: which samples keep its value in common, and where values may change places.

    Attributes
    ----------
    how
        ``"whole"`` if blocks change places as wholes, ``"within"`` if values change places within blocks, ``"whole
        within"`` if blocks of one variable do so within those of another; empty without blocks.
    units
        ``(n_samples,)``: samples with the same code keep one value; None if every sample is on its own.
    within
        ``(n_samples,)``: values change places only among samples with the same code; None if everywhere.
    """

    how: Literal["", "whole", "within", "whole within"] = ""
    units: Int64 | None = None
    within: Int64 | None = None


def restrict(values: Values, blocks: Any | None) -> Restriction:
    """Return what blocks allow a variable.

    A variable that is the same in all samples of every block is a property of the blocks, which change places as
    wholes. Any other variable changes places within the blocks only.

    Parameters
    ----------
    values
        ``(n_samples,)``, without NaN.
    blocks
        What ties samples together (patients, batches, pairs): labels ``(n_samples,)``; several such variables by name
        in a mapping or a DataFrame, each of which counts in its own way; or None.

    Examples
    --------
    >>> patient, batch = list("aabbccdd"), [1, 1, 1, 1, 2, 2, 2, 2]
    >>> condition = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    >>> restrict(condition, patient).how, restrict(condition, batch).how
    ('whole', 'within')
    >>> restrict(condition, {"patient": patient, "batch": batch}).how
    'whole within'
    """
    if blocks is None:
        return Restriction()
    whole: list[Int64] = []
    within: list[Int64] = []
    for name, labels in _named(blocks).items():
        codes, _ = check_labels(name, labels, len(values))
        first = np.unique(codes, return_index=True)[1]
        (whole if bool((values == values[first][codes]).all()) else within).append(codes)
    how: Any = " ".join(word for word, there in (("whole", whole), ("within", within)) if there)
    return Restriction(how, _joined(whole), _crossed(within))


def _named(blocks: Any) -> dict[str, Any]:
    """Return every variable of blocks by its name."""
    if hasattr(blocks, "columns") or isinstance(blocks, Mapping):
        named = {f"blocks {str(name)!r}": blocks[name] for name in blocks}
        if not named:
            raise InvalidInputError("blocks: at least one variable", "none", "leave blocks out")
        return named
    return {"blocks": blocks}


def _joined(several: list[Int64]) -> Int64 | None:
    """Return codes that are equal where a chain of blocks, each of any of several variables, joins two samples."""
    if len(several) < 2:
        return several[0] if several else None
    n_samples = len(several[0])
    offsets = np.cumsum([0, *(int(codes.max()) + 1 for codes in several)])
    samples = np.tile(np.arange(n_samples), len(several))
    nodes = n_samples + np.concatenate([codes + start for codes, start in zip(several, offsets, strict=False)])
    size = n_samples + int(offsets[-1])
    ties = sp.coo_array((np.ones(samples.size), (samples, nodes)), shape=(size, size))
    component = connected_components(ties, directed=False)[1][:n_samples]
    return np.unique(component, return_inverse=True)[1].astype(np.int64)


def _crossed(several: list[Int64]) -> Int64 | None:
    """Return codes that are equal only where samples are in the same block of each of several."""
    if len(several) < 2:
        return several[0] if several else None
    return np.unique(np.column_stack(several), axis=0, return_inverse=True)[1].astype(np.int64).ravel()


def within_reach(smallest_p: Any) -> Any:
    """Return whether the smallest possible p-value reaches 5 %: the one condition for calling anything significant.

    Parameters
    ----------
    smallest_p
        A number, or an array of them.
    """
    return smallest_p <= LEVEL


def p_value(observed: float, null: Float64, *, smaller: bool = False) -> float:
    """Return the share of permutations, the observed order among them, that are at least as extreme.

    Statistics must be finite and of one magnitude: values that differ by rounding count as ties, and ties as extreme.

    Parameters
    ----------
    observed
        The statistic of the observed order.
    null
        Those of the permutations, ``(n_permutations,)``.
    smaller
        Small statistics are extreme, not large ones.
    """
    slack = ROUNDING * max(abs(observed), float(np.abs(null).max(initial=0.0)))
    extreme = null <= observed + slack if smaller else null >= observed - slack
    return (int(extreme.sum()) + 1) / (len(null) + 1)


def probability(observed: float, null: Float64, complete: bool, *, smaller: bool = False) -> tuple[float, float]:
    """Return the p-value, as `p_value` does, and the smallest that any order could have reached.

    Of all permutations that is the share of those as extreme as the most extreme one; of permutations drawn at random
    the observed order alone.

    Parameters
    ----------
    observed, null, smaller
        As in `p_value`.
    complete
        Whether these are all permutations.

    Examples
    --------
    >>> probability(2.0, np.array([3.0, 1.0, 3.0]), True)
    (0.75, 0.5)
    """
    p = p_value(observed, null, smaller=smaller)
    if not complete:
        return p, 1 / (len(null) + 1)
    every = np.append(null, observed)
    extreme = int(every.argmin() if smaller else every.argmax())
    return p, p_value(float(every[extreme]), np.delete(every, extreme), smaller=smaller)


def permute(
    values: Values, restriction: Restriction, *, n_permutations: int, random_state: RandomState
) -> Permutations:
    """Permute a variable over samples as its blocks allow.

    Parameters
    ----------
    values
        ``(n_samples,)``, without NaN.
    restriction
        From `restrict`.
    n_permutations
        How many; all there are if there are no more.
    random_state
        Seed or generator.
    """
    count = check_integer("n_permutations", n_permutations, minimum=1)
    rng = check_random_state(random_state)
    unit_of = np.arange(len(values)) if restriction.units is None else restriction.units
    first = np.unique(unit_of, return_index=True)[1]
    of_unit = values[first]
    # A block whose values are all the same stays as it is.
    blocks = [
        block for block in _places(restriction, unit_of, first) if (of_unit[block] != of_unit[block[0]]).any()
    ]  # fmt: skip
    if not blocks:
        constant = bool((values == values[0]).all())
        raise InvalidInputError(
            "a variable that can be permuted",
            "one that is the same for all samples" if constant else "one that is constant within every block",
            "" if constant else "with such blocks it cannot be tested; give coarser blocks or none",
        )
    possible = math.prod(_n_orders(of_unit[block]) for block in blocks)
    complete = possible - 1 <= count
    shuffled = _all_others(of_unit, blocks, possible) if complete else _drawn(of_unit, blocks, count, rng)
    return Permutations(shuffled[:, unit_of], complete)


def null_distribution(
    statistic: Callable[[Values], Float64],
    values: Values,
    restriction: Restriction,
    n_permutations: int,
    random_state: RandomState,
) -> tuple[Float64, bool]:
    """Return the statistic of every permutation, ``(n_permutations,)``, and whether these are all."""
    drawn = permute(values, restriction, n_permutations=n_permutations, random_state=random_state)
    return by_blocks(lambda part: statistic(drawn.shuffled[part]), *drawn.shuffled.shape), drawn.complete


def by_blocks(work: Callable[[slice], Float64], n_permutations: int, n_samples: int, *, columns: int = 1) -> Float64:
    """Return what ``work`` finds of every permutation, ``(n_permutations,)``: blocks of them in threads of our own.

    Threads of the products themselves wait for each other at every product: beside one busy core small ones took forty
    times as long as alone.

    Parameters
    ----------
    work
        Given a slice of the permutations, returns a number for each of these.
    n_permutations, n_samples
        How many there are, and of how many samples each is an order.
    columns
        Columns of a product, each of ``n_samples`` numbers, that a permutation needs.
    """
    least = -(-LEAST_COLUMNS // columns)
    step = min(max(NUMBERS // (n_samples * columns), least), MOST)
    parts = [slice(start, start + step) for start in range(0, n_permutations, step)]
    with one_blas_thread():
        return np.concatenate(in_threads(work, parts, check_threads(None)))


def _places(restriction: Restriction, unit_of: Int64, first: Int64) -> list[Int64]:
    """Return the units of each block."""
    block_of = restriction.within
    if block_of is None:
        return [np.arange(len(first))]
    varying = np.unique(unit_of[block_of != block_of[first][unit_of]])
    if varying.size:
        raise InvalidInputError(
            "blocks that lie within each other",
            f"{varying.size} of {counted(len(first), 'block')} that reach across others",
            "name fewer of them: a variable that is constant within a block can only be permuted in larger blocks that "
            "contain this one as a whole",
        )
    order = np.argsort(block_of[first], kind="stable")
    return np.split(order, np.cumsum(np.bincount(block_of[first]))[:-1])


def _n_orders(values: Values) -> int:
    """Return how many different orders some values have."""
    counts = np.unique(values, return_counts=True)[1].tolist()
    return math.factorial(len(values)) // math.prod(map(math.factorial, counts))


def _drawn(values: Values, blocks: list[Int64], count: int, rng: np.random.Generator) -> Values:
    """Return random permutations within blocks, ``(count, n_units)``."""
    shuffled = np.tile(values, (count, 1))
    for block in blocks:
        shuffled[:, block] = rng.permuted(shuffled[:, block], axis=1)
    return shuffled


def _all_others(values: Values, blocks: list[Int64], possible: int) -> Values:
    """Return every permutation within blocks but the observed order, ``(possible - 1, n_units)``."""
    ranked = [np.unique(values[block], return_inverse=True) for block in blocks]
    orders = [distinct[np.array(list(_orders(sorted(ranks.tolist()))))] for distinct, ranks in ranked]
    shuffled = np.tile(values, (possible, 1))
    choices = np.unravel_index(np.arange(possible), [len(each) for each in orders])
    for block, each, choice in zip(blocks, orders, choices, strict=True):
        shuffled[:, block] = each[choice]
    others: Values = shuffled[(shuffled != values).any(axis=1)]
    return others


def _orders(ranks: list[int]) -> Iterator[list[int]]:
    """Yield the different orders of some sorted numbers, in lexicographic order."""
    current = ranks
    while True:
        yield list(current)
        # A falling tail has no next order: the number before it is exchanged for the next larger one of the tail.
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
