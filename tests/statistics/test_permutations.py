"""Restricted permutations against brute force over all permutations."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.errors import InvalidInputError
from heatmover.statistics.permutations import Restriction, check_labels, p_value, permute, restrict


def permuted(values, *, within=None, units=None, n_permutations=999, random_state=0):
    codes = [None if labels is None else check_labels("blocks", labels, len(values))[0] for labels in (units, within)]
    restriction = Restriction("", *codes)
    return permute(np.asarray(values), restriction, n_permutations=n_permutations, random_state=random_state)


def as_set(rows):
    return {tuple(row) for row in np.asarray(rows).tolist()}


def brute_force(values, within=None, units=None):
    """All permutations there are, found by trying every permutation of the samples' values."""
    n = len(values)
    block = [0] * n if within is None else within
    unit = list(range(n)) if units is None else units
    found = set()
    distinct = sorted(set(unit))
    first = [unit.index(u) for u in distinct]
    for order in permutations(range(len(distinct))):
        if all(block[first[i]] == block[first[order[i]]] for i in range(len(distinct))):
            found.add(tuple(values[first[order[distinct.index(u)]]] for u in unit))
    return found


DESIGNS = {
    "free": (list("aabbc"), None, None),
    "numbers with ties": ([1.5, 2.0, 1.5, 7.0, 0.0], None, None),
    "pairs": (list("abbaab"), list("xxyyzz"), None),
    "blocks of many sizes": (list("abaabbc"), list("xyxyyzx"), None),
    "a block that cannot change": (list("aabab"), list("xxyyy"), None),
    "units": (list("aabbba"), None, list("ppqrrs")),
    "units of many sizes": (list("aaaabcc"), None, list("ppppqrr")),
    "units in blocks": (list("aabbaabb"), list("xxxxyyyy"), list("ppqqrrss")),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_few_permutations_are_all_listed_once(name):
    values, within, units = DESIGNS[name]
    drawn = permuted(values, within=within, units=units)
    assert drawn.complete
    assert len(as_set(drawn.shuffled)) == len(drawn.shuffled)
    assert as_set(drawn.shuffled) == brute_force(values, within, units) - {tuple(values)}


@pytest.mark.parametrize("name", DESIGNS)
def test_random_permutations_are_legal_and_equally_likely(name):
    values, within, units = DESIGNS[name]
    legal = sorted(brute_force(values, within, units))
    # One short of all: the smallest number that is not complete, drawn many times.
    seeds = range(4_000 // len(legal))
    n = len(legal) - 2
    if n < 1:
        pytest.skip("two permutations are always listed")
    drawn = [permuted(values, within=within, units=units, n_permutations=n, random_state=s) for s in seeds]
    assert not any(each.complete for each in drawn)
    rows = [tuple(row) for each in drawn for row in each.shuffled.tolist()]
    counts = np.array([rows.count(each) for each in legal])
    assert counts.sum() == len(rows)
    expected = len(rows) / len(legal)
    # Fixed seeds; five standard deviations of a binomial count.
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_many_samples_are_counted_but_not_listed():
    drawn = permuted(np.arange(634.0), n_permutations=99)
    assert drawn.shuffled.shape == (99, 634)
    assert not drawn.complete
    assert (np.sort(drawn.shuffled, axis=1) == np.arange(634)).all()


def test_one_odd_sample_among_very_many_is_listed_without_recursion():
    values = np.zeros(3_000)
    values[7] = 1
    drawn = permuted(values, n_permutations=2_999)
    assert drawn.complete
    assert np.array_equal(np.sort(drawn.shuffled.argmax(axis=1)), np.delete(np.arange(3_000), 7))


def test_very_many_pairs_of_which_few_can_change():
    values = np.zeros(2_000)
    values[[0, 10, 21]] = 1
    drawn = permuted(values, within=np.arange(2_000) // 2)
    assert drawn.complete
    assert len(drawn.shuffled) == 2**3 - 1


def test_the_number_that_exists_is_complete_and_one_less_is_not():
    assert permuted(list("aabb"), n_permutations=5).complete
    assert not permuted(list("aabb"), n_permutations=4).complete


def test_the_same_seed_gives_the_same_permutations():
    values = np.arange(20)
    assert np.array_equal(permuted(values, random_state=3).shuffled, permuted(values, random_state=3).shuffled)
    assert not np.array_equal(permuted(values, random_state=3).shuffled, permuted(values, random_state=4).shuffled)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ("aaaa", {}, "same value in all samples"),
        ("aabb", {"within": [1, 1, 2, 2]}, "constant within every block"),
        (
            "aabb",
            {"units": ["p", "p", "q", "q"], "within": [1, 2, 1, 1]},
            "1 of 2 blocks that overlap several larger blocks",
        ),
        ("aabb", {"within": [1, 2, 3]}, r"shape (3,)"),
        ("aabb", {"units": [1, None, 2, 3]}, "first: sample 1"),
        ("aabb", {"n_permutations": 0}, "n_permutations"),
        ("aabb", {"random_state": "x"}, "random_state"),
    ],
)
def test_what_cannot_be_permuted_is_refused(values, options, message):
    with pytest.raises(InvalidInputError) as error:
        permuted(list(values), **options)
    assert message in str(error.value)


def test_p_value_counts_ties_and_the_observed_order():
    assert p_value(2.0, np.array([1.0, 2.0, 3.0])) == 3 / 4
    assert p_value(2.0, np.array([1.0, 2.0, 3.0]), smaller=True) == 3 / 4
    assert p_value(4.0, np.array([1.0, 2.0, 3.0])) == 1 / 4
    assert p_value(0.0, np.zeros(9)) == 1.0


def test_p_value_takes_rounding_for_a_tie():
    tied = 0.1 + 0.2
    assert tied > 0.3
    assert p_value(tied, np.array([0.3])) == 1.0
    assert p_value(0.3, np.array([tied]), smaller=True) == 1.0
    assert p_value(0.3, np.array([0.3 - 1e-6])) == 0.5


@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_design_has_the_permutations_of_brute_force(values, n_blocks):
    within = [i % n_blocks for i in range(len(values))]
    legal = brute_force(values, within)
    if len(legal) == 1:
        with pytest.raises(InvalidInputError):
            permuted(values, within=within)
    else:
        assert as_set(permuted(values, within=within).shuffled) == legal - {tuple(values)}


BLOCKS = {
    "none": (list("aabb"), None, ("", None, None)),
    "patients with several samples": (list("aabb"), list("ppqq"), ("whole", [0, 0, 1, 1], None)),
    "pairs": (list("abab"), list("ppqq"), ("within", None, [0, 0, 1, 1])),
    "one block that varies": (list("aabb"), list("ppqp"), ("within", None, [0, 0, 1, 0])),
    "patients in batches": (
        list("aabbaabb"),
        {"patient": list("ppqqrrss"), "batch": [1, 1, 1, 1, 2, 2, 2, 2]},
        ("whole within", [0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]),
    ),
    "two that are constant are joined": (
        list("aaabbb"),
        {"patient": list("ppqrrs"), "family": list("xyyzzz")},
        ("whole", [0, 0, 0, 1, 1, 1], None),
    ),
    "two that vary are crossed": (
        list("abababab"),
        {"batch": list("xxxxyyyy"), "day": [1, 1, 2, 2, 1, 1, 2, 2]},
        ("within", None, [0, 0, 1, 1, 2, 2, 3, 3]),
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_how_blocks_count(name):
    values, blocks, (how, units, within) = BLOCKS[name]
    found = restrict(np.asarray(values), blocks)
    assert found.how == how
    for codes, expected in ((found.units, units), (found.within, within)):
        assert (codes is None) == (expected is None)
        assert codes is None or codes.tolist() == expected


def test_blocks_in_a_table_count_as_those_in_a_mapping():
    values, blocks, _ = BLOCKS["patients in batches"]
    one, other = restrict(np.asarray(values), blocks), restrict(np.asarray(values), pd.DataFrame(blocks))
    assert one.how == other.how
    assert np.array_equal(one.units, other.units)
    assert np.array_equal(one.within, other.within)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([1, 2, 3], "shape (3,)"),
        ([1, None, 2, 3], "first: sample 1"),
        ({}, "blocks: at least one variable"),
        ({"batch": [1, 2]}, "blocks 'batch' of shape (4,)"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(blocks, message):
    with pytest.raises(InvalidInputError) as error:
        restrict(np.array(list("aabb")), blocks)
    assert message in str(error.value)
