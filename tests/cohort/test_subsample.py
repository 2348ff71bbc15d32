"""Draws of cells: hashes that depend on values alone, and equally many cells of every sample."""

from __future__ import annotations

import pickle

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from heatmover.cohort import read_cohort
from heatmover.cohort.reader import Reader, SubsetReader
from heatmover.cohort.subsample import (
    EqualDraw,
    cell_hashes,
    check_equal_cells,
    drawn_cohort,
    equal_count,
    hash_seed,
    sample_salt,
    smallest,
)
from heatmover.errors import InvalidInputError


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


def test_columns_are_distinguishable():
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


SIZES = [12, 40, 5, 90, 33]


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"sample": np.repeat([f"s{i}" for i in range(5)], SIZES)})
    table[["x", "y"]] = rng.normal(size=(sum(SIZES), 2))
    table["type"] = rng.choice(["B", "T"], sum(SIZES))
    return table.sample(frac=1, random_state=1).reset_index(drop=True)


def cohort_of(frame, path):
    frame.to_csv(path, index=False)
    return read_cohort(path, sample_key="sample")


def test_every_sample_gives_as_many_and_none_twice(frame, tmp_path):
    cohort = cohort_of(frame, tmp_path / "cells.csv")
    kept = np.array([0, 1, 3, 4])
    part, drawn = drawn_cohort(cohort, kept, 12, random_state=0)
    assert part.names == ("s0", "s1", "s3", "s4")
    assert part.sizes.tolist() == [12] * 4
    assert drawn.sizes.tolist() == [12, 40, 90, 33]
    assert len(np.unique(drawn.rows)) == 48
    np.testing.assert_array_equal(part.points(), cohort.points()[drawn.rows])
    assert [part.names[code] for code in part.codes] == cohort.labels()[drawn.rows].tolist()
    assert list(part.samples.index) == list(part.names)
    # The smallest sample gives all that it has.
    assert (cohort.codes[drawn.rows] == 0).sum() == (cohort.codes == 0).sum()


def test_the_order_of_cells_and_other_samples_do_not_matter(frame, tmp_path):
    def cells(table, name, kept):
        part, _ = drawn_cohort(cohort_of(table, tmp_path / name), kept, 5, random_state=3)
        points = part.points()
        return {sample: points[part.codes == i].tolist() for i, sample in enumerate(part.names)}

    first = cells(frame, "a.csv", np.arange(5))
    shuffled = cells(frame.sample(frac=1, random_state=9), "b.csv", np.arange(5))
    assert {name: sorted(rows) for name, rows in first.items()} == {name: sorted(r) for name, r in shuffled.items()}
    fewer = cells(frame[frame["sample"] != "s0"], "c.csv", np.array([1, 3]))
    assert fewer["s4"] == first["s4"]


def test_another_seed_draws_other_cells(frame, tmp_path):
    cohort = cohort_of(frame, tmp_path / "cells.csv")
    rows = [drawn_cohort(cohort, np.arange(5), 5, random_state=seed)[1].rows.tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_copies_are_drawn_one_by_one():
    """Of 300 equal cells and 100 others, 40 draws: the share of copies is hypergeometric, not all or nothing."""
    values = np.r_[np.zeros(300), np.arange(1.0, 101.0)][:, None]
    shares = []
    for seed in range(300):
        hashes = cell_hashes(values, np.zeros(400, dtype=np.int32), hash_seed(seed))
        shares.append((smallest(hashes, 40) < 300).sum())
    mean, variance = 30.0, 40 * 0.75 * 0.25 * 360 / 399
    assert np.mean(shares) == pytest.approx(mean, abs=4 * np.sqrt(variance / 300))
    assert np.var(shares) == pytest.approx(variance, rel=0.35)


def test_every_cell_is_as_likely_as_any_other():
    values = np.random.default_rng(0).normal(size=(60, 2))
    counts = np.zeros(60)
    for seed in range(600):
        counts[smallest(cell_hashes(values, np.zeros(60, dtype=np.int32), hash_seed(seed)), 15)] += 1
    assert counts.sum() == 9000
    # Chi-square of 59 degrees of freedom, variance of a draw without replacement.
    assert 30 < ((counts - 150) ** 2 / (150 * 0.75)).sum() < 100


def test_a_reader_of_drawn_cells_reads_any_range():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(103, 2))

    class Inner(Reader):
        def blocks(self, start, stop, size):
            for first in range(start, stop, size):
                yield points[first : min(first + size, stop)]

    for share in (0.05, 0.5, 1.0):
        drawn = rng.random(103) < share
        drawn[50] = True
        whole = SubsetReader.of(Inner(kind="file", features=("x", "y")), drawn)
        np.testing.assert_array_equal(whole.rows, np.flatnonzero(drawn))
        expected = points[drawn]
        assert list(whole.blocks(1, 1, 4)) == []
        for start in range(len(expected)):
            for stop in {start + 1, min(start + 7, len(expected)), len(expected)}:
                part = whole.within(start, stop)
                assert len(part.rows) == stop - start
                for each in (whole, part, part.within(start, stop)):
                    found = np.concatenate(list(each.blocks(start, stop, 5)))
                    np.testing.assert_array_equal(found, expected[start:stop])
    with pytest.raises(IndexError, match="is not kept"):
        list(whole.blocks(0, 200, 5))


def test_annotations_and_dropped_cells_go_with_the_draw(frame, tmp_path):
    frame.loc[[3, 50], "x"] = np.nan
    path = tmp_path / "cells.csv"
    frame.to_csv(path, index=False)
    cohort = read_cohort(path, sample_key="sample", on_missing="drop")
    part, drawn = drawn_cohort(cohort, np.arange(5), 4, random_state=0)
    codes, names = cohort.annotation("type")
    own = part.annotation("type")
    assert own[1] == names
    np.testing.assert_array_equal(own[0], codes[drawn.rows])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(part)).points(), cohort.points()[drawn.rows])


def test_objects_in_memory_too(frame):
    obs = frame[["sample"]].set_axis([f"c{i}" for i in range(len(frame))])
    adata = anndata.AnnData(frame[["x", "y"]].to_numpy(), obs=obs)
    part, drawn = drawn_cohort(read_cohort(adata, sample_key="sample"), np.arange(5), 5, random_state=0)
    np.testing.assert_array_equal(part.points(), adata.X[drawn.rows])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "equal_cells to be a whole number of at least 2, found 0"),
        (-4, "at least 2, found -4"),
        (1, "at least 2, found 1"),
        (2.5, "whole number"),
        ("few", "equal_cells to be a whole number of at least 2, found 'few'; equal_cells=True"),
        (None, "whole number"),
    ],
)
def test_what_is_no_number_of_cells_is_told(value, message):
    with pytest.raises(InvalidInputError, match=message):
        check_equal_cells(value)


def test_samples_with_too_few_cells_are_named():
    sizes, names = np.array([40, 25, 90]), ["a", "b", "c"]
    assert [equal_count(value, sizes, names) for value in (False, True, 20, 25)] == [0, 25, 20, 25]
    with pytest.raises(
        InvalidInputError, match=r"found fewer in 1 of 3 samples \('b'\); .* with min_cells=30, or draw at most"
    ):
        equal_count(30, sizes, names)
    with pytest.raises(InvalidInputError, match=r"at least 2 cells .* \('b'\); leave smaller samples out\.$"):
        equal_count(True, np.array([40, 1]), ["a", "b"], can_leave_out=False)


def test_names_make_salts_and_a_draw_reads_well():
    assert sample_salt("a") != sample_salt("b")
    assert 0 <= sample_salt("\ud800") < 2**31
    draw = EqualDraw(20, np.array([20, 300]), None)
    assert draw.plain() == {"n_cells": 20, "fewest": 20, "most": 300, "drawn": 40, "of": 320}
