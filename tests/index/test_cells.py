"""Cells: the nearest rows of sums in the cells that are looked into."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.index import cells
from heatmover.index.cells import Arranged, cells_of, learn_centers

SUMS = np.random.default_rng(0).normal(size=(700, 7)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(60, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def arranged() -> Arranged:
    centers = learn_centers(SUMS, 1)
    return Arranged.make(centers, np.arange(700), cells_of(SUMS, centers, 1), SUMS)


def test_every_row_lies_in_the_cell_of_its_nearest_centre(arranged):
    assert len(arranged.centers) == round(2 * np.sqrt(700))
    right = np.argmin(np.abs(SUMS[:, None] - arranged.centers).sum(axis=2), axis=1)
    own = np.repeat(np.arange(len(arranged.centers)), np.diff(arranged.starts))
    assert np.array_equal(right[arranged.rows], own)
    assert np.array_equal(SUMS[arranged.rows], arranged.sums)
    assert np.array_equal(learn_centers(SUMS, 3), arranged.centers)


@pytest.mark.parametrize(("count", "n_probes"), [(1, 1), (5, 3), (32, 10), (700, 53)])
def test_candidates_are_the_nearest_in_the_cells_that_are_looked_into(arranged, count, n_probes):
    rows, distances = arranged.candidates(QUERIES, count, n_probes, 0.0)
    every = hm.pairwise_distances(QUERIES, SUMS)
    to_centers = hm.pairwise_distances(QUERIES, arranged.centers)
    cell = cells_of(SUMS, arranged.centers, 1)
    for query in range(len(QUERIES)):
        looked_into = np.argsort(to_centers[query], kind="stable")[:n_probes]
        inside = np.flatnonzero(np.isin(cell, looked_into))
        right = inside[np.argsort(every[query, inside], kind="stable")][:count]
        assert rows[query, : right.size].tolist() == right.tolist()
        np.testing.assert_allclose(distances[query, : right.size], every[query, right], rtol=1e-6)
        assert (rows[query, right.size :] == -1).all()
        assert np.isinf(distances[query, right.size :]).all()


def test_equal_rows_are_in_the_order_of_their_numbers():
    same = np.zeros((40, 3), dtype=np.float32)
    found = Arranged.make(same[:1], np.arange(40)[::-1], np.zeros(40, dtype=np.int32), same)
    assert found.candidates(same[:2], 6, 1, 0.0)[0].tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("n_cells", [1, 7, 53])
def test_the_nearest_cells_come_in_order_and_equal_ones_by_number(arranged, monkeypatch, n_cells):
    monkeypatch.setattr(cells, "RANKED_QUERIES", 30)  # several parts
    away, near = arranged.nearest_cells(SUMS[:100], n_cells)
    right = np.abs(SUMS[:100, None].astype(float) - arranged.centers).sum(axis=2)
    order = np.argsort(right, axis=1)[:, :n_cells]
    assert np.array_equal(near, order)
    np.testing.assert_allclose(away, np.take_along_axis(right, order, axis=1), rtol=1e-5)
    twice = Arranged.make(np.zeros((9, 7), dtype=np.float32), np.arange(700), np.zeros(700, dtype=np.int32), SUMS)
    assert twice.nearest_cells(SUMS[:3], 9)[1].tolist() == [list(range(9))] * 3
