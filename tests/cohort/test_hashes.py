"""Hashes of cells: the same for equal cells of a sample, in any form, and as good as random otherwise."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from heatmover.cohort.hashes import cell_hashes


def test_hashes_depend_on_values_and_sample_alone():
    rng = np.random.default_rng(0)
    block = rng.poisson(1.0, size=(500, 4)).astype(np.float32)
    codes = rng.integers(0, 3, 500).astype(np.int32)
    hashes = cell_hashes(block, codes, 1)
    rows = np.column_stack([block, codes])
    same = (rows[:, None] == rows).all(axis=2)
    np.testing.assert_array_equal(hashes[:, None] == hashes, same)
    order = rng.permutation(500)
    np.testing.assert_array_equal(cell_hashes(block[order], codes[order], 1), hashes[order])
    np.testing.assert_array_equal(cell_hashes(block.astype(np.float64), codes, 1), hashes)
    np.testing.assert_array_equal(cell_hashes(sp.csr_array(block), codes, 1), hashes)
    np.testing.assert_array_equal(cell_hashes(np.where(block == 0, -0.0, block), codes, 1), hashes)
    assert (cell_hashes(block, codes, 2) != hashes).all()


def test_columns_are_told_apart():
    block = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 0.0]])
    assert np.unique(cell_hashes(block, np.zeros(3, dtype=np.int32), 0)).size == 3


def test_hashes_are_spread_evenly():
    """A chi-squared statistic with 255 degrees of freedom, for values that differ in their last bits only."""
    block = 1 + np.arange(50_000)[:, None] * 2.0**-50
    top = cell_hashes(block, np.zeros(50_000, dtype=np.int32), 0) >> np.uint64(56)
    counts = np.bincount(top.astype(int), minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 350


def test_entries_that_are_stored_twice_are_added():
    doubled = sp.csr_array((np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    plain = np.array([[0.0, 3.0, 0.0]])
    codes = np.zeros(1, dtype=np.int32)
    np.testing.assert_array_equal(cell_hashes(doubled, codes, 0), cell_hashes(plain, codes, 0))
