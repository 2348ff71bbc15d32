"""Cells that nodes share: a cell at a node is wholly there, and weights are those of the formula."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import heatmover as hm
from heatmover.atlas import placing
from heatmover.errors import InvalidInputError


@cache
def atlas() -> hm.Atlas:
    rng = np.random.default_rng(0)
    labels = np.repeat([f"s{i}" for i in range(6)], 30)
    return hm.build_atlas(rng.normal(size=(180, 2)), labels, n_neighbors=8, model=hm.DiffusionEMD(max_scale=3))


def test_cells_of_the_reference_are_at_their_own_nodes_to_the_bit():
    points = np.random.default_rng(0).normal(size=(180, 2))
    order = np.random.default_rng(1).permutation(180)
    labels = np.repeat([f"s{i}" for i in range(6)], 30)
    again = atlas().map(points[order], labels[order], placement="kernel")
    np.testing.assert_array_equal(again.measures.toarray(), atlas().measures.toarray())
    np.testing.assert_array_equal(again.embedding, atlas().embedding)


def test_weights_by_hand():
    points = np.random.default_rng(2).normal(size=(7, 2))
    mapped = atlas().map(points, "new", placement="kernel")
    centers, affinity = atlas().nodes.centers, atlas().model.graph_.affinity.toarray()
    truth = np.zeros(len(centers))
    for point in points:
        squares = ((centers - point) ** 2).sum(axis=1)
        nearest = squares.argmin()
        joined = (affinity[nearest] > 0) | (np.arange(len(centers)) == nearest)
        weights = np.where(joined, np.exp(-squares / squares[nearest]), 0)
        truth += weights / weights.sum() / len(points)
    np.testing.assert_allclose(mapped.measures.toarray()[0], truth, atol=1e-11)
    assert mapped.sizes.tolist() == [7]
    np.testing.assert_allclose(mapped.embedding, atlas().model.transform(truth[None]), atol=1e-6)


def test_a_cell_that_comes_to_a_node_comes_to_it_smoothly():
    center = atlas().nodes.centers[17]
    at = atlas().map(center[None], "at").measures.toarray()[0]
    apart = [
        np.abs(atlas().map(center[None] + step, "near", placement="kernel").measures.toarray()[0] - at).sum()
        for step in (1e-2, 1e-4, 1e-8)
    ]
    assert apart[0] >= apart[1] >= apart[2]
    assert apart[2] == 0


def test_neither_blocks_nor_order_nor_threads_change_a_bit(monkeypatch):
    points = np.random.default_rng(3).normal(size=(200, 2))
    one = atlas().map(points, "new", placement="kernel", n_jobs=1)
    monkeypatch.setattr(placing, "PAIRS", 50)
    two = atlas().map(points[::-1], "new", placement="kernel", n_jobs=3)
    np.testing.assert_array_equal(one.measures.toarray(), two.measures.toarray())
    np.testing.assert_array_equal(one.embedding, two.embedding)


def test_shared_cells_are_neither_added_nor_drawn_again():
    mapped = atlas().map(np.random.default_rng(4).normal(size=(20, 2)), "new", placement="kernel")
    with pytest.raises(
        InvalidInputError, match=r"found samples mapped with placement='kernel'; map them with placement"
    ):
        atlas().add(mapped)
    with pytest.raises(InvalidInputError, match="for intervals"):
        mapped.intervals()
    with pytest.raises(InvalidInputError, match="placement to be"):
        atlas().map(np.zeros((1, 2)), "new", placement="far")
