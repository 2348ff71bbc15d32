"""Rows in room that grows."""

from __future__ import annotations

import numpy as np

from heatmover.index.rows import Rows, grown


def test_rows_grow_and_stay_what_they_were():
    rows = np.arange(6.0).reshape(3, 2)[:]
    first = rows
    for step in range(20):
        before = rows.copy()
        rows = grown(rows, np.full((2, 2), step))
        np.testing.assert_array_equal(rows[:-2], before)
        np.testing.assert_array_equal(rows[-2:], step)
    np.testing.assert_array_equal(first, np.arange(6.0).reshape(3, 2))


def test_small_additions_do_not_copy_everything():
    rows = grown(np.zeros((100, 2)), np.ones((1, 2)))
    more = grown(rows, np.ones((1, 2)))
    assert np.shares_memory(rows, more)


def test_blocks_from_a_row_on():
    rows = np.arange(10.0)[:, None]
    kept = Rows(10, rows, None)
    np.testing.assert_array_equal(np.vstack([block for _, block in kept.blocks(7)]), rows[7:])
