"""The memory budget: blocks shrink with it, pieces do not."""

from __future__ import annotations

import pytest

from heatmover.errors import InvalidInputError
from heatmover.study.scale.landmarks import make_budget

MB = 1_000_000


def test_pieces_cover_all_cells_once(cohort, small_pieces):
    small_pieces(333)
    budget = make_budget(cohort, 60, 30, memory=4000 * MB, n_workers=2)
    edges = [edge for piece in budget.pieces for edge in piece]
    assert edges[0] == 0
    assert edges[-1] == cohort.n_cells
    assert edges[1:-1:2] == edges[2::2]


def test_blocks_shrink_with_the_budget_and_pieces_do_not(cohort):
    budgets = [make_budget(cohort, 60, 30, memory=size * MB, n_workers=1) for size in (72, 75, 80, 4000)]
    rows = [budget.block_rows for budget in budgets]
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]
    assert all(budget.pieces == budgets[0].pieces for budget in budgets)
    for budget, size in zip(budgets, (72, 75, 80, 4000), strict=True):
        assert budget.need <= size * MB


def test_more_workers_need_more_memory(cohort):
    make_budget(cohort, 60, 30, memory=100 * MB, n_workers=1)
    with pytest.raises(InvalidInputError, match=r"memory of at least 1\d\d MB .*, found 100 MB"):
        make_budget(cohort, 60, 30, memory=100 * MB, n_workers=2)
