from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from heatmover.graphs import neighbors
from heatmover.graphs.neighbors import Partition, k_nearest, least_recall


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """A few hundred points are many parts, and many pieces of work."""
    monkeypatch.setattr(neighbors, "PART", 16)
    monkeypatch.setattr(neighbors, "LARGEST", 64)
    monkeypatch.setattr(neighbors, "PIECE", 100)
    monkeypatch.setattr(neighbors, "PARTS_AT_ONCE", 3)


def make(points, k=3, *, strict=True, seed=0, n_threads=2):
    return Partition.from_points(points, k, np.random.default_rng(seed), strict=strict, n_threads=n_threads)


def gaussian(n_points, n_dimensions, seed=0):
    return np.random.default_rng(seed).normal(size=(n_points, n_dimensions))


def clusters(n_points=900, n_dimensions=6):
    """Twelve groups of very different sizes and densities."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 12, n_points) % rng.integers(1, 13, n_points)
    return 4 * gaussian(12, n_dimensions, 1)[group] + 3.0 ** -group[:, None] * gaussian(n_points, n_dimensions, 2)


def with_far_points(points):
    points = points.copy()
    points[::97] *= 1e30
    return points


def thin(points):
    """Columns that say nothing."""
    return np.column_stack([np.full(len(points), 7.0), points, np.zeros((len(points), 3))])


def shells(n_points=300, step=1e-7):
    """Points around the first one whose distances from it differ by less than a float32 can tell."""
    directions = gaussian(n_points, 5)
    lengths = 1 + step * np.random.default_rng(1).permutation(n_points)
    points = directions / np.linalg.norm(directions, axis=1)[:, None] * lengths[:, None]
    points[0] = 0
    return points


SHAPES = {
    "line": gaussian(700, 1),
    "plane": gaussian(700, 2),
    "clusters": clusters(),
    "noise": gaussian(500, 30),
    "far from the origin": clusters() + 1e7,
    "tiny": clusters() * 1e-140,
    "huge": clusters() * 1e140,
    "far points": with_far_points(clusters()),
    "constant columns": thin(clusters()),
    "shells": shells(),
    "lattice": np.indices((6, 6, 6, 3)).reshape(4, -1).T.astype(float),
}


def brute_force(points, k):
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    return np.sort(distances, axis=1)[:, :k]


def recall(points, distances):
    return float((distances <= brute_force(points, distances.shape[1])[:, -1:] * (1 + 1e-9)).mean())


def assert_valid(points, support, k):
    n_points = len(points)
    distances, indices = support.distances.data.reshape(n_points, k), support.distances.indices.reshape(n_points, k)
    assert (indices != np.arange(n_points)[:, None]).all()
    assert all(len(set(row)) == k for row in indices.tolist())
    np.testing.assert_allclose(distances, np.linalg.norm(points[indices] - points[:, None], axis=2), rtol=1e-12)
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize("points", SHAPES.values(), ids=SHAPES.keys())
def test_every_point_is_in_one_part_with_its_nearest_middle(points):
    parts = make(points)
    np.testing.assert_array_equal(np.sort(parts.order), np.arange(len(points)))
    np.testing.assert_array_equal(parts.points, points[parts.order])
    assert parts.n_parts > 8
    to_middles = cdist(parts.points, parts.middles)
    own = to_middles[np.arange(len(points)), parts.member]
    np.testing.assert_allclose(own, to_middles.min(axis=1), rtol=1e-9)
    assert (own <= parts.radii[parts.member] * (1 + 1e-9)).all()


@pytest.mark.parametrize("points", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("k", [1, 7])
def test_parts_are_exact(points, k):
    """The k nearest and all tied with the last, unless these are more than 4 k."""
    support = k_nearest(points, k, algorithm="exact", rng=np.random.default_rng(0))
    truth = brute_force(points, len(points) - 1)
    n_tied = (truth <= truth[:, k - 1 : k] * (1 + 1e-9)).sum(axis=1)
    np.testing.assert_array_equal(np.diff(support.distances.indptr), np.where(n_tied > 4 * k, k, n_tied))
    starts = support.distances.indptr[:-1]
    for rank in range(k):
        np.testing.assert_allclose(support.distances.data[starts + rank], truth[:, rank], rtol=1e-9)


def test_no_part_in_reach_is_left_out():
    """What a search for all looked at holds every true neighbor, before anything is mended in float64."""
    points = clusters()
    parts = make(points, 8)
    found = parts.k_nearest(8, parts.everything(), 2)
    np.testing.assert_allclose(found.distances, brute_force(points, 8), rtol=1e-9)
    assert found.seen[:, 0].mean() < 0.6 * len(points)
    assert (found.seen[:, 1] >= found.distances[:, -1]).mean() > 0.99


def test_a_plan_finds_what_it_promises_and_more_costs_more():
    points = clusters(3000)
    parts = make(points, 10, strict=False)
    probe, truth = parts.probe(10, 2), brute_force(points, 10)[:, -1:]
    before = 0.0
    for wanted in (0.5, 0.9, 0.99):
        plan = probe.plan(wanted)
        found = parts.k_nearest(10, plan, 2)
        assert (found.distances <= truth * (1 + 1e-9)).mean() > wanted - 0.02
        assert found.seen[:, 0].mean() > before
        assert found.seen[:, 0].mean() == pytest.approx(plan.n_candidates, rel=0.5)
        before = found.seen[:, 0].mean()
    assert before < 0.5 * len(points)


@pytest.mark.parametrize("points", SHAPES.values(), ids=SHAPES.keys())
def test_a_sure_plan_finds_what_it_promises_of_all(points):
    """Every point is a probe here, so that nothing is left to chance."""
    support = k_nearest(points, 7, algorithm="approximate", rng=np.random.default_rng(0))
    true_recall = recall(points, support.distances.data.reshape(-1, 7))
    assert true_recall >= 0.99
    assert support.search.recall == pytest.approx(true_recall, abs=0.002)  # points too far for a float32 are no probes


def test_a_sure_plan_of_a_sample_is_wider(monkeypatch):
    monkeypatch.setattr(neighbors, "PROBES", 400)
    points = clusters(3000)
    parts = make(points, 10, strict=False)
    probe = parts.probe(10, 1, 400)
    mean, confident = probe.plan(0.97), probe.plan(0.97, confident=True)
    assert confident.share > mean.share
    assert confident.n_candidates > mean.n_candidates
    assert recall(points, parts.k_nearest(10, confident, 2).distances) >= 0.97


def test_a_plan_without_confidence_looks_everywhere():
    """Twenty points cannot tell that 99% are found."""
    points = clusters(3000)
    parts = make(points, 10, strict=False)
    plan = parts.probe(10, 1, 20).plan(0.99, confident=True)
    assert plan.n_candidates == 3000
    found = parts.k_nearest(10, plan, 2)
    np.testing.assert_allclose(found.distances, brute_force(points, 10), rtol=1e-9)


@pytest.mark.parametrize("share", [0.01, 0.04, 0.2])
def test_a_bound_of_the_recall_is_rarely_wrong(share):
    """Some points miss a part of their neighbors, of any size, and the others none: the bound is below the truth."""
    rng = np.random.default_rng(0)
    everyone = np.where(rng.random(50_000) < share, rng.random(50_000), 1.0)
    draws = [least_recall(rng.choice(everyone, 1000, replace=False), everyone.size) for _ in range(400)]
    assert np.mean(np.array(draws) > everyone.mean()) < 0.03
    assert np.mean(draws) > everyone.mean() - 0.025


def test_of_all_points_there_is_no_doubt():
    found = np.random.default_rng(0).random(300)
    assert least_recall(found, 300) == pytest.approx(found.mean())
    assert least_recall(np.ones(300), 300) == 1
    assert 0.98 < least_recall(np.ones(300), 100_000) < 0.99


@pytest.mark.parametrize("n_dimensions", [1, 3, 8, 13])
def test_squares_of_a_tile(n_dimensions):
    """Four points against a part of 32 places, the last five of them empty."""
    from heatmover._base.compiled.neighbors import tile_squares

    points, part = gaussian(4, n_dimensions).astype(np.float32), gaussian(32, n_dimensions, 1).astype(np.float32)
    part[27:] = np.inf
    truth = cdist(points, part[:27], "sqeuclidean")
    limits = truth.min(axis=1).astype(np.float32) * np.array([1.001, 0.999, 1.001, 0.999], np.float32)
    block, out = np.r_[np.zeros(5), part.T.ravel()].astype(np.float32), np.zeros(4 * 40, np.float32)
    bits = tile_squares(points.ravel(), block, 5, (n_dimensions, 32, 40), limits, out)
    squares = out.reshape(4, 40)
    np.testing.assert_allclose(squares[:, :27], truth, rtol=1e-5)
    assert np.isposinf(squares[:, 27:32]).all()
    assert (squares[:, 32:] == 0).all()
    assert bits == 0b0101


@pytest.mark.parametrize("points", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("algorithm", ["approximate"])
def test_approximate_searches_on_anything(points, algorithm):
    support = k_nearest(points, 7, algorithm=algorithm, rng=np.random.default_rng(0))
    assert_valid(points, support, 7)
    assert recall(points, support.distances.data.reshape(-1, 7)) > 0.95


@pytest.mark.parametrize("algorithm", ["exact", "approximate"])
def test_as_many_neighbors_as_others(algorithm):
    for n_points in (2, 3, 40, 200):
        points = gaussian(n_points, 3)
        support = k_nearest(points, n_points - 1, algorithm=algorithm, rng=np.random.default_rng(0))
        np.testing.assert_allclose(
            support.distances.data.reshape(n_points, -1), brute_force(points, n_points - 1), rtol=1e-9
        )


@pytest.mark.parametrize("algorithm", ["exact", "approximate"])
def test_nearly_all_points_in_one_place(algorithm):
    """More than a part may hold; their own distances are a hundred millionth of those of the others."""
    points = clusters(800)
    points[50:] = points[0] + 1e-8 * gaussian(750, 6)
    support = k_nearest(points, 5, algorithm=algorithm, rng=np.random.default_rng(0))
    assert_valid(points, support, 5)
    assert recall(points, support.distances.data.reshape(-1, 5)) > 0.99


def test_large_parts_are_cut():
    points = np.vstack([np.zeros((500, 3)), gaussian(300, 3)])
    assert np.diff(make(points).starts).max() <= 64


@pytest.mark.parametrize("strict", [True, False])
def test_threads_change_nothing(strict):
    points = clusters()
    one, two = (make(points, strict=strict, n_threads=n_threads) for n_threads in (1, 3))
    np.testing.assert_array_equal(one.order, two.order)
    np.testing.assert_array_equal(one.blocks, two.blocks)
    plan = one.probe(6, 1).plan(0.9)
    assert plan == two.probe(6, 3).plan(0.9)
    for first, second in zip(one.k_nearest(6, plan, 1), two.k_nearest(6, plan, 3), strict=True):
        np.testing.assert_array_equal(first, second)


def test_points_too_far_for_single_precision_are_searched_again(monkeypatch):
    """Their lists cannot be filled in float32; nobody else is looked at twice."""
    asked = []
    by_tree = neighbors._by_tree
    monkeypatch.setattr(
        neighbors, "_by_tree", lambda points, rows, *rest: asked.append(rows) or by_tree(points, rows, *rest)
    )
    points = clusters()
    points[3], points[400] = 1e30, -1e35
    support = k_nearest(points, 7, algorithm="approximate", rng=np.random.default_rng(0))
    assert_valid(points, support, 7)
    assert asked[0].tolist() == [3, 400]
