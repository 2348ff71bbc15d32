"""Numbers in words: a reader is told how many of how many, never a share that was rounded to nothing.

And names in the order in which people put them.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatmover._base.words import LONGEST_NAME, counted, listed, naturally, part_of, percent, quoted, verb


@pytest.mark.parametrize(
    ("number", "total", "words"),
    [
        (2, 6000, "2 of 6,000 points"),
        (59, 6000, "59 of 6,000 points"),
        (60, 6000, "60 of 6,000 points (1%)"),
        (1, 3, "1 of 3 points (33%)"),
        (5999, 6000, "5,999 of 6,000 points"),
        (1, 1, "1 of 1 point"),
    ],
)
def test_a_part_is_so_many_of_so_many(number, total, words):
    assert part_of(number, total, "point") == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0%"),
        (3e-7, "less than 0.01%"),
        (0.0001, "0.01%"),
        (0.0344, "3.4%"),
        (-0.02, "-2%"),
        (0.996, "100%"),
        (1.0, "100%"),
    ],
)
def test_a_share_in_per_cent(share, words):
    assert percent(share) == words


ORDERED = {
    "numbers in names": ["s1", "s2", "s10", "s10b", "t1"],
    "whole numbers": ["1", "2", "10", "100"],
    "decimals and signs": ["-2", "-1.5", "0.25", "0.5", "10"],
    "several numbers": ["p1_d2", "p1_d10", "p2_d1", "p10_d1"],
    "leading zeros": ["a1", "a02", "a3"],
    "numbers before words": ["1", "2a", "10", "b"],
    "no numbers": ["A", "a", "b", "ba"],
    "more digits than Python converts": ["x" + "9" * 5000, "x1" + "0" * 5000],
    "nothing": ["", "1"],
}


@pytest.mark.parametrize("case", ORDERED)
def test_the_order_people_expect(case):
    names = ORDERED[case]
    for shuffled in itertools.islice(itertools.permutations(names), 24):
        assert naturally(shuffled) == names


@given(st.lists(st.text(alphabet="ab019.-", max_size=6), unique=True))
def test_every_order_of_the_same_names_gives_one(names):
    assert naturally(names) == naturally(names[::-1])
    assert sorted(naturally(names)) == sorted(names)


@given(st.lists(st.integers(0, 10**30), unique=True))
def test_numbers_go_by_their_size(numbers):
    assert naturally(map(str, numbers)) == [str(number) for number in sorted(numbers)]
    assert naturally(f"s{number}" for number in numbers) == [f"s{number}" for number in sorted(numbers)]


def test_counts_and_verbs_agree():
    assert [counted(n, "step") for n in (0, 1, 2, 1200)] == ["0 steps", "1 step", "2 steps", "1,200 steps"]
    assert [counted(2, noun) for noun in ("copy", "batch", "day", "axis", "box")] == [
        "2 copies", "2 batches", "2 days", "2 axes", "2 boxes",
    ]  # fmt: skip
    assert [verb(n, "has", "have") for n in (0, 1, 2)] == ["have", "has", "have"]


# A number in a text and a noun after it, which is spelled for many. Powers of two are times, and what stands in
# capitals is a constant.
COUNTED = re.compile(
    r"(?<![\^\d])\{(?![A-Z_]+[:}])([^{}:!\"]+)(?::,)?\} (?:different |distinct |exact |isolated |more |such |cell )?"
    r"(?:steps|points|samples|cells|neighbors|nodes|rows|measures|scales|components|columns|values|edges|features|"
    r"pairs|groups|permutations|names|blocks|files|landmarks|batches|labels|copies|models|dimensions|iterations)\b"
)
# Texts, whose noun is not counted, and numbers that are always many.
NO_NUMBERS = {
    "argument('k', k)", "argument('n_pairs', n_pairs)", "argument('numeric')", "cohort.n_dimensions", "kind", "name",
    "n_centers", "pairs['all']", "scales", "side", "size", "told", "told[0]", "words", "floor['cells']", "max(BINS)",
    "len(covered)", "' x '.join(map(str, how['shape']))", "len(parts)", "count", "least",
}  # fmt: skip


def test_whatever_is_counted_is_counted_by_one_function():
    """One step, not one steps, in every message, table and report."""
    source = Path(__file__).parents[1] / "src" / "heatmover"
    found = {
        (path.name, match[1].strip())
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        for match in COUNTED.finditer(line)
        if match[1].strip() not in NO_NUMBERS and "counted(" not in match[1]
    }
    assert found == set()
    assert COUNTED.search('f"{n_rows} rows are left"')


def test_long_names_keep_the_end_in_which_they_differ():
    names = [f"{'patient_of_the_university_hospital_' * 3}{number}" for number in range(3)]
    assert [word[-2] for word in listed(names).split(", ")] == ["0", "1", "2"]
    assert all(len(quoted(name)) == LONGEST_NAME + 2 for name in names)
