"""Near-cuts against brute force over the linkage of dense affinities, planted threads, and data without any."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import block_diag
from scipy.sparse.csgraph import connected_components

import heatmover as hm
from heatmover.graphs import Graph
from heatmover.graphs.diagnosis import PASSES, THIN, THREAD, by_sweep, find_near_cuts
from heatmover.graphs.spectrum import normalize


def blobs(thread, sizes=(60, 90), seed=0, n_edges=1):
    """Blobs of random affinities in a chain, joined by edges of a given weight."""
    rng = np.random.default_rng(seed)
    affinity = block_diag(*(rng.uniform(0.5, 1, size=(n, n)) for n in sizes))
    affinity = np.triu(affinity) + np.triu(affinity, 1).T
    for end in np.cumsum(sizes)[:-1]:
        for i in range(n_edges):
            affinity[end - 1 - i, end + i] = affinity[end + i, end - 1 - i] = thread
    return affinity


def found(affinity, steps=None, **more):
    symmetric, degree = normalize(sp.csr_array(affinity), 1.0)
    cuts = find_near_cuts(symmetric, degree, steps, **more)
    if cuts is None:
        return None
    return cuts, dict(cuts.describe(sp.csr_array(affinity), symmetric, degree))


def true_conductance(affinity, inside):
    q = affinity.sum(axis=1)
    normed = affinity / np.outer(q, q)
    return normed[np.ix_(inside, ~inside)].sum() / normed[inside].sum()


@pytest.mark.parametrize("order", [None, 1, 2])
@pytest.mark.parametrize("thread", [1e-3, 1e-9, 1e-200])
def test_a_planted_thread_is_found_with_its_figures(thread, order):
    affinity, small = blobs(thread), np.arange(150) < 60
    if order is not None:
        places = np.random.default_rng(order).permutation(150)
        affinity, small = affinity[np.ix_(places, places)], small[places]
    cuts, parts = found(affinity)
    assert len(parts) == 1
    part, figures = next(iter(parts.items()))
    np.testing.assert_array_equal(cuts.part == part, small)
    assert figures.n_points == 60
    assert figures.affinity == pytest.approx(thread)
    assert figures.conductance == pytest.approx(true_conductance(affinity, small))
    masses = np.where(small, 3.0, 1.0)
    assert cuts.shares(masses)[part] == pytest.approx(180 / 270)


def test_every_thread_of_a_chain_is_found():
    cuts, parts = found(blobs(1e-4, (20, 30, 40, 50)))
    assert sorted(part.n_points for part in parts.values()) == [20, 30, 40]
    assert cuts.is_main.sum() == 1


def test_the_longest_diffusion_decides_over_a_thicker_thread():
    affinity = blobs(0.01, n_edges=20)
    small = np.arange(150) < 60
    conductance = true_conductance(affinity, small)
    assert THREAD < conductance * 60 < THIN
    assert found(affinity, int(0.9 * PASSES / conductance)) is not None
    assert found(affinity, int(1.1 * PASSES / conductance)) is None


def test_a_thick_joint_is_no_thread_however_short_the_diffusion():
    assert found(blobs(0.2, n_edges=60), 1) is None


def test_components_are_looked_at_one_by_one():
    whole = block_diag(blobs(1e-6), blobs(0.9, (40, 40)), [[1.0]])
    whole[200, 201] = whole[201, 200] = 0.9
    cuts, parts = found(whole)
    assert [part.n_points for part in parts.values()] == [60]
    assert cuts.is_main.sum() == connected_components(whole)[0] == 3


def test_small_parts_may_be_passed_over():
    affinity = blobs(1e-6, (3, 400))
    assert found(affinity) is not None
    # No two sets with a hundredth of the masses are ever joined, as the first point has nearly all.
    assert found(affinity, masses=np.where(np.arange(403) == 9, 1e6, 1.0)) is None
    assert found(affinity, masses=np.where(np.arange(403) < 3, 10.0, 1.0)) is not None


def brute(affinity, steps):
    """The components at every threshold of S whose conductance is within the limit, as sets."""
    symmetric = normalize(sp.csr_array(affinity), 1.0)[0].toarray()
    total, whole = affinity.sum(), set()
    q = affinity.sum(axis=1)
    normed = affinity / np.outer(q, q)
    total = normed.sum()
    for level in np.unique(symmetric[symmetric > 0]):
        _, label = connected_components(symmetric * (symmetric >= level))
        for each in range(label.max() + 1):
            inside = label == each
            volume = normed[inside].sum()
            smaller = inside if volume <= total / 2 else ~inside
            if not smaller.any():
                continue
            size = smaller.sum()
            limit = max(THREAD / size, min(THIN / size, PASSES / steps))
            if normed[np.ix_(smaller, ~smaller)].sum() <= limit * normed[smaller].sum():
                whole.add(frozenset(np.flatnonzero(inside).tolist()))
    return whole


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_are_those_of_all_thresholds(seed):
    rng = np.random.default_rng(seed)
    # Weights in whole powers of ten: no two different ones share a class.
    affinity = 10.0 ** -rng.integers(0, 9, size=(25, 25)) * (rng.random((25, 25)) < 0.15)
    affinity = np.maximum(affinity, affinity.T) + np.eye(25)
    label = connected_components(affinity)[1]
    affinity = affinity[np.ix_(label == label[0], label == label[0])]
    expected, result = brute(affinity, 64), found(affinity, 64)
    if result is None:
        assert not expected
        return
    # Two points are in one part if they are in the same sets.
    together = [tuple(i in one for one in sorted(map(sorted, expected))) for i in range(len(affinity))]
    _, codes = np.unique([hash(each) for each in together], return_inverse=True)
    np.testing.assert_array_equal(codes[:, None] == codes, result[0].part[:, None] == result[0].part)


def test_a_sweep_finds_a_thread_between_loose_parts():
    """Inside both parts is an edge as light as the thread, beside others that hold the part together."""
    n = 40
    ring = np.zeros((n, n))
    for i in range(n):
        ring[i, (i + 1) % n] = ring[(i + 1) % n, i] = 1.0
    affinity = block_diag(ring, ring) + np.eye(2 * n)
    affinity[0, n] = affinity[n, 0] = 1e-5
    symmetric, degree = normalize(sp.csr_array(affinity), 1.0)
    mode = np.linalg.eigh(symmetric.toarray())[1][:, -2] / np.sqrt(degree)
    cuts = by_sweep(symmetric, degree, mode)
    np.testing.assert_array_equal(cuts.part == cuts.part[0], np.arange(2 * n) < n)
    whole, degree = normalize(sp.csr_array(ring + np.eye(n)), 1.0)
    assert by_sweep(whole, degree, np.linalg.eigh(whole.toarray())[1][:, -2] / np.sqrt(degree)) is None


@pytest.mark.parametrize("shape", ["ring", "swiss_roll", "s_curve", "sphere", "torus", "gaussians", "star", "line"])
def test_no_shape_is_said_to_hang_by_a_thread(shape):
    points = getattr(hm.datasets, shape)(20).points
    assert not any("thread" in line for line in Graph.from_points(points).diagnose(steps=256).advice)
