"""Check labels and distances, permute within blocks, compute p-values; `statistics`, `attribution`, `study` call it.

The tests of `heatmover.statistics`, `heatmover.attribution` and `heatmover.study` call this module. The module works on
plain arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import in_threads, one_blas_thread
from heatmover._base.types import Float64, Int64
from heatmover._base.validation import (
    ALL_DISTANCES,
    LabelNames,
    RandomState,
    as_array,
    check_integer,
    check_matrix,
    check_random_state,
    check_threads,
)
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing

# Largest accepted asymmetry of a distance matrix, and largest accepted value on its diagonal, relative to the largest
# distance. Rounding in float32 causes about 1e-7.
ASYMMETRY = 1e-5

# The variable that is permuted: codes of groups, or numbers, one per sample.
Values: TypeAlias = npt.NDArray[Any]

# Statistics that differ by less than this share of the largest statistic are treated as equal. Rounding errors in sums
# over 1,000 samples are some orders of magnitude smaller.
ROUNDING = 1e-9

# Significance level.
LEVEL = 0.05

# Size of a block of permutations. NUMBERS entries (half a megabyte) fit into the cache of one core. A product with
# fewer than LEAST_COLUMNS columns would mostly wait for the matrix to be read. With more than MOST permutations per
# block, a single core would compute all permutations. Blocks do not depend on the number of threads, so results are
# bit-identical.
NUMBERS, LEAST_COLUMNS, MOST = 1 << 16, 64, 1_000


@final
@dataclass(frozen=True, eq=False, repr=False)
class TestResult(ReadOnlyArrays):
    """Result of a permutation test.

    Attributes
    ----------
    test
        Name of the test.
    statistic
        Observed statistic.
    effect
        Effect size, as the test defines it.
    p_value
        Share of orders, including the observed order, that are at least as extreme as the observed order: (b + 1) / (B
        + 1) if b of B permutations are at least as extreme.
    null
        ``(n_permutations,)``: the statistic of every permutation.
    complete
        Whether the permutations are exhaustive; the p-value is then exact.
    groups
        Names of the groups, sorted; empty for a numeric variable.
    smallest_p
        Smallest p-value that any order could have reached. With two groups of equal size, exchanging the groups gives
        an equally extreme order, which counts too. With five pairs the smallest possible p-value is therefore 2 / 32.

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

    __test__ = False  # pytest would collect a class whose name begins with Test

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
        """Whether the smallest possible p-value is above 5%, so that the test cannot reach significance."""
        return not within_reach(self.smallest_p)

    def __repr__(self) -> str:
        how = f"{'all ' if self.complete else ''}{counted(len(self.null), 'permutation')}"
        return (
            f"TestResult({self.test}: statistic {self.statistic:.3g}, effect {self.effect:.2f}, "
            f"p = {self.p_value:.2g}, {how})"
        )


class Permutations(NamedTuple):
    """Permutations of a variable over samples.

    Attributes
    ----------
    shuffled
        ``(n_permutations, n_samples)``: the permuted values.
    complete
        Whether ``shuffled`` contains all permutations except the observed order. Otherwise the permutations are drawn
        uniformly at random.
    """

    shuffled: Values
    complete: bool


class Restriction(NamedTuple):
    """Restriction that blocks impose on permutations: which samples share a value, and where values may move.

    Attributes
    ----------
    how
        ``"whole"`` if whole blocks are permuted, ``"within"`` if values are permuted within blocks, ``"whole within"``
        if whole blocks of one variable are permuted within blocks of another; empty without blocks.
    units
        ``(n_samples,)``: samples with equal codes share one value; None if every sample has its own value.
    within
        ``(n_samples,)``: values are permuted only among samples with equal codes; None for no restriction.
    """

    how: Literal["", "whole", "within", "whole within"] = ""
    units: Int64 | None = None
    within: Int64 | None = None


def restrict(values: Values, blocks: Any | None) -> Restriction:
    """Return the restriction that blocks impose on the permutations of a variable.

    A variable that is constant within every block is a property of the blocks, so whole blocks are permuted. Any other
    variable is permuted within the blocks only.

    Parameters
    ----------
    values
        Values of the variable without NaN, ``(n_samples,)``.
    blocks
        Block of each sample (its patient, batch or pair), ``(n_samples,)``; or several block variables by name in a
        mapping or a DataFrame, each treated separately; or None.

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
    for name, labels in named_blocks(blocks).items():
        codes, _ = check_labels(name, labels, len(values))
        first = np.unique(codes, return_index=True)[1]
        (whole if bool((values == values[first][codes]).all()) else within).append(codes)
    how: Any = " ".join(word for word, there in (("whole", whole), ("within", within)) if there)
    crossed = None
    if within:  # two samples have equal codes only if they share a block in every variable
        crossed = np.unique(np.column_stack(within), axis=0, return_inverse=True)[1].astype(np.int64).ravel()
    return Restriction(how, _joined(whole), crossed)


def named_blocks(blocks: Any) -> dict[str, Any]:
    """Return the block variables by name."""
    if hasattr(blocks, "columns") or isinstance(blocks, Mapping):
        named = {f"blocks {str(name)!r}": blocks[name] for name in blocks}
        if not named:
            raise InvalidInputError("blocks: at least one variable", "none", "leave blocks out")
        return named
    return {"blocks": blocks}


def _joined(several: list[Int64]) -> Int64 | None:
    """Return one code per sample; samples that a chain of blocks connects, of any of the variables, share a code."""
    if len(several) < 2:
        return several[0] if several else None
    n_samples = len(several[0])
    samples = np.tile(np.arange(n_samples), len(several))
    # Every sample is connected to the first sample of its block.
    firsts = np.concatenate([np.unique(codes, return_index=True)[1][codes] for codes in several])
    ties = sp.coo_array((np.ones(samples.size), (samples, firsts)), shape=(n_samples, n_samples))
    return np.asarray(connected_components(ties, directed=False)[1], dtype=np.int64)


def within_reach(smallest_p: Any) -> Any:
    """Return whether the smallest possible p-value is at most 5%, so that the test can reach significance.

    Parameters
    ----------
    smallest_p
        Smallest possible p-value of one test, or an array of the smallest possible p-values of many tests.
    """
    return smallest_p <= LEVEL


def out_of_reach(limit: str, smallest_p: float, test: str = "the test") -> str:
    """Return a sentence, without its full stop, saying that a test cannot reach significance.

    Examples
    --------
    >>> out_of_reach("5 pairs", 2 / 32)
    'With 5 pairs the smallest possible p-value is 0.0625, so the test cannot reach 0.05'
    """
    return f"With {limit} the smallest possible p-value is {smallest_p:.3g}, so {test} cannot reach {LEVEL:g}"


def false_discovery(p_values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> Float64:
    """Return q-values of many tests: false-discovery rates (Benjamini and Hochberg 1995).

    The q-value of a test is the expected share of false discoveries among all tests with the same or a smaller p-value.

    Parameters
    ----------
    p_values
        ``(n_tests,)``, from 0 to 1.
    weights
        Non-negative weight of each test, ``(n_tests,)``, such as the number of cells for which the test stands. Shares
        are then shares of the weight (Benjamini and Hochberg 1997). Default: equal weights.

    Returns
    -------
    ndarray of shape (n_tests,)
        Q-values in the order of the p-values.

    Examples
    --------
    >>> from heatmover.statistics import false_discovery
    >>> false_discovery([0.01, 0.04, 0.03, 0.5]).round(3).tolist()
    [0.04, 0.053, 0.053, 0.5]
    >>> false_discovery([0.01, 0.5], weights=[3, 1]).round(3).tolist()
    [0.013, 0.5]
    """
    array = check_numbers("p_values", p_values, np.size(p_values))
    if ((array < 0) | (array > 1)).any():
        raise InvalidInputError("p-values from 0 to 1", f"{array.min():g} to {array.max():g}")
    # Plain NumPy, because scipy.stats takes a third of a second to import.
    order, q_values = np.argsort(array), np.empty(array.size)
    counted_up = np.cumsum(np.ones(array.size) if weights is None else np.asarray(weights, dtype=np.float64)[order])
    scaled = np.divide(array[order] * counted_up[-1:], counted_up, out=np.ones(array.size), where=counted_up > 0)
    q_values[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(q_values, 1.0)


def p_value(observed: float, null: Float64, *, smaller: bool = False) -> float:
    """Return the share of orders, including the observed order, whose statistic is at least as extreme as ``observed``.

    Statistics must be finite and of similar magnitude. Statistics that differ from the observed statistic only by
    rounding are treated as equally extreme.

    Parameters
    ----------
    observed
        Statistic of the observed order.
    null
        Statistics of the permutations, ``(n_permutations,)``.
    smaller
        If True, small statistics are extreme; otherwise large statistics are.
    """
    slack = ROUNDING * max(abs(observed), float(np.abs(null).max(initial=0.0)))
    extreme = null <= observed + slack if smaller else null >= observed - slack
    return (int(extreme.sum()) + 1) / (len(null) + 1)


def probability(observed: float, null: Float64, complete: bool, *, smaller: bool = False) -> tuple[float, float]:
    """Return the p-value, as `p_value` does, and the smallest p-value that any order could have reached.

    If the permutations are exhaustive, the smallest p-value is the share of orders as extreme as the most extreme
    order. Otherwise the smallest p-value is ``1 / (n_permutations + 1)``.

    Parameters
    ----------
    observed, null, smaller
        As in `p_value`.
    complete
        True if the permutations are exhaustive.

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
    """Permute a variable over samples within the restriction of its blocks.

    Parameters
    ----------
    values
        Values of the variable without NaN, ``(n_samples,)``.
    restriction
        Result of `restrict`.
    n_permutations
        Number of random permutations. If fewer permutations exist, all are used.
    random_state
        Seed or generator.
    """
    count = check_integer("n_permutations", n_permutations, minimum=1)
    rng = check_random_state(random_state)
    unit_of = np.arange(len(values)) if restriction.units is None else restriction.units
    first = np.unique(unit_of, return_index=True)[1]
    of_unit = values[first]
    # Leave out blocks whose values are all equal.
    blocks = [
        block for block in _places(restriction, unit_of, first) if (of_unit[block] != of_unit[block[0]]).any()
    ]  # fmt: skip
    if not blocks:
        constant = bool((values == values[0]).all())
        raise InvalidInputError(
            "a variable that can be permuted",
            "one with the same value in all samples" if constant else "one that is constant within every block",
            "" if constant else "use coarser blocks or none",
        )
    possible = math.prod(_n_orders(of_unit[block]) for block in blocks)
    complete = possible - 1 <= count
    shuffled = np.tile(of_unit, (possible if complete else count, 1))
    if complete:
        orders = [_all_orders(np.sort(of_unit[block])) for block in blocks]
        choices = np.unravel_index(np.arange(possible), [len(each) for each in orders])
        for block, each, choice in zip(blocks, orders, choices, strict=True):
            shuffled[:, block] = each[choice]
        shuffled = shuffled[(shuffled != of_unit).any(axis=1)]
    else:
        for block in blocks:
            shuffled[:, block] = rng.permuted(shuffled[:, block], axis=1)
    return Permutations(shuffled[:, unit_of], complete)


def null_distribution(
    statistic: Callable[[Values], Float64],
    values: Values,
    restriction: Restriction,
    n_permutations: int,
    random_state: RandomState,
) -> tuple[float, Float64, bool]:
    """Return the observed statistic, the statistic of every permutation, and whether permutations are exhaustive."""
    drawn = permute(values, restriction, n_permutations=n_permutations, random_state=random_state)
    null = by_blocks(lambda part: statistic(drawn.shuffled[part]), *drawn.shuffled.shape)
    return float(statistic(values[None])[0]), null, drawn.complete


def by_blocks(work: Callable[[slice], Float64], n_permutations: int, n_samples: int, *, columns: int = 1) -> Float64:
    """Return the result of ``work`` for every permutation, ``(n_permutations,)``, computed in several threads.

    BLAS is limited to one thread, because BLAS threads wait for each other at every product. While another program kept
    one core busy, small products took forty times as long.

    Parameters
    ----------
    work
        Function that receives a slice of the permutations and returns one number for each permutation.
    n_permutations, n_samples
        Number of permutations and number of samples.
    columns
        Number of matrix columns, each with ``n_samples`` entries, that a permutation needs.
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
            "nested blocks",
            f"{varying.size} of {counted(len(first), 'block')} that overlap several larger blocks",
            "name fewer block variables: blocks that are permuted as a whole must lie completely within larger blocks",
        )
    order = np.argsort(block_of[first], kind="stable")
    return np.split(order, np.cumsum(np.bincount(block_of[first]))[:-1])


def _n_orders(values: Values) -> int:
    """Return the number of distinct orders of the values."""
    counts = np.unique(values, return_counts=True)[1].tolist()
    return math.factorial(len(values)) // math.prod(map(math.factorial, counts))


def _all_orders(ascending: Values) -> Values:
    """Return all distinct orders of sorted values, ``(n_orders, n_values)``."""
    smallest = ascending == ascending[0]
    if smallest.all():
        return ascending[None]
    rest, places = _all_orders(ascending[~smallest]), np.arange(len(ascending))
    orders = []
    for chosen in combinations(places.tolist(), int(smallest.sum())):
        order = np.full((len(rest), len(places)), ascending[0], dtype=ascending.dtype)
        order[:, np.delete(places, chosen)] = rest
        orders.append(order)
    return np.concatenate(orders)


@final
@dataclass(frozen=True, eq=False)
class CheckedDistances:
    """Distances that `check_distances` has returned; tests that receive them skip the check."""

    matrix: Float64

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.matrix, dtype=dtype, copy=copy)


def check_distances(distances: npt.ArrayLike) -> Float64:
    """Return the distances in float64, exactly symmetric and zero on the diagonal, ``(n_samples, n_samples)``."""
    if isinstance(distances, CheckedDistances):
        return distances.matrix.copy()
    matrix = np.asarray(check_matrix("distances", distances, sparse=ALL_DISTANCES), dtype=np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidInputError("distances between all samples, (n_samples, n_samples)", f"shape {matrix.shape}")
    slack = ASYMMETRY * float(max(matrix.max(), -matrix.min()))
    if matrix.min() < -slack:
        raise InvalidInputError("distances of at least zero", f"{matrix.min():g}", "similarities are not distances")
    if np.abs(matrix.diagonal()).max() > slack:
        largest = float(np.abs(matrix.diagonal()).max())
        raise InvalidInputError("a distance of zero from a sample to itself", f"{largest:g} on the diagonal")
    difference = float(np.abs(matrix - matrix.T).max())
    if difference > slack:
        raise InvalidInputError(
            "the same distance in both directions",
            f"differences of up to {difference:g}",
            "average both directions: (distances + distances.T) / 2",
        )
    result = np.maximum((matrix + matrix.T) / 2, 0.0)
    np.fill_diagonal(result, 0.0)
    return result


def check_labels(name: str, labels: Any, n_samples: int, *, of: str = "sample") -> tuple[Int64, tuple[str, ...]]:
    """Return labels as integer codes from 0 on, ``(n_samples,)``, and the sorted names of the labels.

    The word ``of`` names the labeled objects in error messages.
    """
    listed = _listed(name, labels, n_samples, of)
    missing = [i for i, label in enumerate(listed) if is_missing(label)]
    if missing:
        raise InvalidInputError(
            f"{name}: a label for every {of}",
            f"{len(missing)} missing (first: {of} {missing[0]})",
            f"drop those {of}s, or give them a separate label",
        )
    # 1 and "1" may be one group or two, so LabelNames raises an error.
    texts = LabelNames(name).add_all(listed)
    names = sorted(set(texts))
    place = {text: code for code, text in enumerate(names)}
    return np.array([place[text] for text in texts], dtype=np.int64), tuple(names)


def check_numbers(name: str, values: npt.ArrayLike, n_samples: int) -> Float64:
    """Return the numbers in float64, ``(n_samples,)``, or raise an error if one is not finite."""
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{name}: a number for every sample", f"values of type {array.dtype}")
    if array.shape != (n_samples,):
        raise InvalidInputError(f"{name} of shape ({n_samples},), one for each sample", f"shape {array.shape}")
    numbers = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise InvalidInputError(
            f"{name}: a number for every sample",
            f"{bad.size} NaN or infinite (first: sample {bad[0]})",
            "drop those samples first",
        )
    return numbers


def _listed(name: str, labels: Any, n_samples: int, of: str) -> list[Any]:
    """Return the labels as a list of plain Python objects, one for each labeled object."""
    expected = f"{name} of shape ({n_samples},), one label for each {of}"
    try:
        array = as_array(name, labels)
        # NumPy would turn a list of mixed types into text or numbers, and a missing label into the text "nan".
        listed = isinstance(labels, list | tuple) and array.dtype.kind not in "mM"
        array = np.asarray(labels, dtype=object) if listed or array.dtype.kind in "OU" else array
    except InvalidInputError:
        raise
    except ValueError as error:  # lists of different lengths
        raise InvalidInputError(expected, f"{type(labels).__name__}: {error}") from error
    if array.shape != (n_samples,):
        raise InvalidInputError(expected, f"shape {array.shape}")
    if array.dtype.kind in "mM":
        # Write a date as a date, not as its number of nanoseconds.
        return [None if gap else text for gap, text in zip(np.isnat(array), array.astype(str), strict=True)]
    return list(array.tolist())
