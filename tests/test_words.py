"""Numbers in words: a reader is told how many of how many, never a share that was rounded to nothing."""

from __future__ import annotations

import pytest

from heatmover._words import part_of, percent


@pytest.mark.parametrize(
    ("number", "total", "words"),
    [
        (2, 6000, "2 of 6,000 points"),
        (59, 6000, "59 of 6,000 points"),
        (60, 6000, "60 of 6,000 points (1 %)"),
        (1, 3, "1 of 3 points (33 %)"),
        (5999, 6000, "5,999 of 6,000 points"),
        (1, 1, "1 of 1 point"),
    ],
)
def test_a_part_is_so_many_of_so_many(number, total, words):
    assert part_of(number, total, "point") == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (3e-7, "less than 0.01 %"),
        (0.0001, "0.01 %"),
        (0.0344, "3.4 %"),
        (-0.02, "-2 %"),
        (0.996, "100 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_in_per_cent(share, words):
    assert percent(share) == words
