"""The parts: plans, fixed-point sums, tallies."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatmover.errors import InvalidInputError
from heatmover.scale.chunks import FixedPoint, make_plan, tally_keys
from heatmover.scale.landmarks import Tally

MB = 1_000_000


@given(
    st.lists(st.floats(-100, 100), min_size=1, max_size=40),
    st.integers(1, 7),
    st.floats(1e-3, 200),
)
def test_fixed_sums_do_not_depend_on_order_or_parts_and_are_near_the_truth(values, size, limit):
    fixed = FixedPoint(limit, len(values))
    array = np.array(values)
    total = fixed.sum(array)
    parts = [fixed.sum(array[::-1][start : start + size]) for start in range(0, array.size, size)]
    assert sum(parts) == total
    exact = sum(Fraction(min(max(value, -limit), limit)) for value in values)
    assert abs(total * Fraction(fixed.unit) - exact) <= Fraction(fixed.unit) * len(values)
    assert fixed.unit <= limit * 2.0**-50


@given(st.lists(st.integers(0, 10**12) | st.integers(10**9, 10**9 + 20), min_size=1, max_size=30))
def test_keys_are_counted_alike_whether_they_are_near_or_far_apart(keys):
    found, counts = tally_keys(np.array(keys))
    assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == Counter(keys)
    assert found.tolist() == sorted(set(keys))


def test_a_billion_values_at_the_limit_do_not_overflow():
    fixed = FixedPoint(3.7, 10**9)
    assert int(fixed.encode(np.array([100.0]))[0]) * 10**9 < 2**63
    assert fixed.decode(int(fixed.encode(np.array([3.7]))[0])) == pytest.approx(3.7, rel=1e-8)


@given(st.lists(st.lists(st.integers(0, 11), max_size=6), max_size=8))
def test_a_tally_adds_as_a_dense_matrix_does(pieces):
    tally, dense = Tally(), np.zeros(12, dtype=np.int64)
    for piece in pieces:
        keys, counts = np.unique(np.array(piece, dtype=np.int64), return_counts=True)
        tally.add(keys, counts)
        np.add.at(dense, piece, 1)
    np.testing.assert_array_equal(tally.matrix(3, 4).toarray(), dense.reshape(3, 4))


def test_pieces_cover_all_cells_once(cohort, small_pieces):
    small_pieces(333)
    plan = make_plan(cohort, 60, 30, memory=4000 * MB, n_workers=2)
    edges = [edge for piece in plan.pieces for edge in piece]
    assert edges[0] == 0
    assert edges[-1] == cohort.n_cells
    assert edges[1:-1:2] == edges[2::2]


def test_blocks_shrink_with_the_budget_and_pieces_do_not(cohort):
    plans = [make_plan(cohort, 60, 30, memory=size * MB, n_workers=1) for size in (72, 75, 80, 4000)]
    rows = [plan.block_rows for plan in plans]
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]
    assert len({plan.piece_rows for plan in plans}) == 1
    for plan, size in zip(plans, (72, 75, 80, 4000), strict=True):
        assert plan.held + max(plan.bounds.values()) <= size * MB


def test_more_workers_need_more_memory(cohort):
    make_plan(cohort, 60, 30, memory=100 * MB, n_workers=1)
    with pytest.raises(InvalidInputError, match=r"memory of at least 1\d\d MB .*, found 100 MB"):
        make_plan(cohort, 60, 30, memory=100 * MB, n_workers=2)
