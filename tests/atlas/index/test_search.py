"""Search: near rows with exact distances, the same whatever the threads and the place of the rows."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.atlas.index import search as module
from heatmover.atlas.index.search import CandidateGraph, Rows, recall
from heatmover.errors import InvalidInputError

faiss = pytest.importorskip("faiss")


def curved(n_rows: int, n_features: int = 80, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Rows on a surface of three dimensions that winds through all features."""
    waves = np.random.default_rng(7).normal(size=(3, n_features))
    inner = np.random.default_rng(seed).uniform(-1, 1, size=(n_rows, 3))
    return np.cos(inner @ waves).astype(dtype)


ROWS = curved(3000)
QUERIES = curved(50, seed=1)


@pytest.fixture(scope="module")
def built() -> CandidateGraph:
    return CandidateGraph.build(in_memory(ROWS), 2)


def in_memory(rows: np.ndarray) -> Rows:
    return Rows(rows)


def test_blocks_from_a_row_on():
    rows = np.arange(10.0)[:, None]
    np.testing.assert_array_equal(np.vstack([block for _, block in in_memory(rows).blocks(7)]), rows[7:])


def test_most_of_the_nearest_are_found_with_the_bits_of_the_exact_search(built):
    distances, rows = hm.nearest(QUERIES, 10, other=ROWS)
    near, found = built.nearest(in_memory(ROWS), QUERIES, 10, None, 2)
    assert recall(found, rows) >= 0.97
    same = found == rows
    assert same.mean() > 0.8
    np.testing.assert_array_equal(near[same], distances[same])
    assert (np.diff(near, axis=1) >= 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [1, 7, 33, 1024, 1500])
def test_every_distance_has_the_bits_of_pairwise_distances(n_features, dtype):
    rng = np.random.default_rng(0)
    rows, queries = rng.normal(size=(40, n_features)).astype(dtype), rng.normal(size=(4, n_features)).astype(dtype)
    made = CandidateGraph.build(in_memory(rows), 1)
    distances, found = made.nearest(in_memory(rows), queries, 5, None, 1)
    np.testing.assert_array_equal(distances, np.take_along_axis(hm.pairwise_distances(queries, rows), found, axis=1))


def test_it_asks_for_more_than_it_promises_and_tells_what_it_measured(built):
    assert built.recall >= module.TARGET_RECALL > module.RECALL
    assert np.array_equal(np.sort(built.rows), np.arange(3000))


def links(made: CandidateGraph) -> bytes:
    return faiss.serialize_index(made.graph).tobytes()


def test_threads_do_not_change_it(built):
    one = CandidateGraph.build(in_memory(ROWS), 1)
    assert links(one) == links(built)
    for left, right in zip(
        one.nearest(in_memory(ROWS), QUERIES, 7, None, 1),
        built.nearest(in_memory(ROWS), QUERIES, 7, None, 3),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)


def test_added_rows_are_found():
    more = curved(1500, seed=2)
    every = np.vstack([ROWS, more])
    made = CandidateGraph.build(in_memory(ROWS), 1)
    saved = CandidateGraph.restored(made.arrays())
    made.extend(in_memory(every), 2)
    for stop in (3001, 3500, 4500):
        saved.extend(in_memory(every[:stop]), 1)
    queries, own = more[:40], np.arange(3000, 3040)
    truth = in_memory(every).nearest(queries, 5, own, 1)[1]
    for each in (made, saved):
        found = each.nearest(in_memory(every), queries, 5, own, 1)[1]
        assert not (found == own[:, None]).any()
        assert recall(found, truth) > 0.95


def test_stored_samples_are_not_their_own_neighbors(built):
    own = np.array([5, 17, 1234, 2999])
    found = built.nearest(in_memory(ROWS), ROWS[own], 4, own, 1)[1]
    assert not (found == own[:, None]).any()
    assert recall(found, in_memory(ROWS).nearest(ROWS[own], 4, own, 1)[1]) > 0.9


def test_more_neighbors_than_the_graph_leads_to(built):
    found = built.nearest(in_memory(ROWS), QUERIES[:2], 3000, None, 1)[1]
    np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(3000), (2, 1)))


@pytest.mark.parametrize("n_rows", [2, 3, 12, 1300])
def test_few_rows(n_rows):
    rows = ROWS[:n_rows]
    made = CandidateGraph.build(in_memory(rows), 1)
    k = min(n_rows, 3)
    found = made.nearest(in_memory(rows), QUERIES, k, None, 1)[1]
    assert recall(found, hm.nearest(QUERIES, k, other=rows)[1]) > 0.95


def test_hard_rows_are_told():
    """Noise in every direction has no short sums: what was measured says so, or the search is long enough."""
    rng = np.random.default_rng(0)
    rows, queries = (rng.normal(size=(n, 200)).astype(np.float32) for n in (1500, 60))
    made = CandidateGraph.build(in_memory(rows), 1)
    truth = hm.nearest(queries, 10, other=rows)[1]
    assert recall(made.nearest(in_memory(rows), queries, 10, None, 1)[1], truth) >= made.recall - 0.03


def test_rows_that_are_all_equal():
    rows = np.ones((200, 40), dtype=np.float32)
    made = CandidateGraph.build(in_memory(rows), 1)
    assert (made.nearest(in_memory(rows), rows[:3], 5, None, 1)[0] == 0).all()


def test_rows_of_any_magnitude():
    for scale in (1e-30, 1e30):
        rows = (ROWS[:400] * np.float32(scale)).astype(np.float32)
        made = CandidateGraph.build(in_memory(rows), 1)
        queries = (QUERIES * np.float32(scale)).astype(np.float32)
        truth = hm.nearest(queries, 5, other=rows)[1]
        assert recall(made.nearest(in_memory(rows), queries, 5, None, 1)[1], truth) > 0.95


def test_distances_of_sums_are_at_most_those_of_rows():
    wide = curved(600, n_features=1200)
    made = CandidateGraph.build(in_memory(wide), 1)
    assert made.center.size == module.N_SUMS
    short = made.unit * hm.pairwise_distances(made._sums(wide[:50], 1), made._sums(wide, 2))
    assert (short <= hm.pairwise_distances(wide[:50], wide) * (1 + 1e-5)).all()


def test_another_thread_setting_of_faiss_comes_back():
    before = faiss.omp_get_max_threads()
    CandidateGraph.build(in_memory(ROWS[:50]), 1)
    assert faiss.omp_get_max_threads() == before


def test_the_index_builds_extends_and_measures(tmp_path):
    for path, memory in ((None, "1 GB"), (tmp_path / "a", "1 GB"), (tmp_path / "b", 1)):
        index = hm.MeasureIndex.from_embedding(ROWS[:2000], path=path, memory=memory)
        assert index.build() >= module.TARGET_RECALL
        index.add(ROWS[2000:])
        found = index.nearest(QUERIES, 10, method="approximate")
        assert not found.exact
        assert recall(found.rows, hm.nearest(QUERIES, 10, other=ROWS)[1]) > 0.95
        assert index.recall(5, sample=20) > 0.9
        assert index.recall(10, query=QUERIES) == recall(found.rows, hm.nearest(QUERIES, 10, other=ROWS)[1])
        with pytest.raises(InvalidInputError, match="k of at most"):
            index.recall(3000)
