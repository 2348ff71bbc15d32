"""The nearest center: exactly that of a plain loop in double precision, for whatever numbers, blocks and threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover.graphs import centers as module
from heatmover.graphs.centers import CenterSearch, Leaves


def brute_force(points, centers):
    """The first of the nearest centers."""
    with np.errstate(over="ignore"):
        return np.array([np.square(point - centers).sum(axis=1).argmin() for point in points])


def cases():
    rng = np.random.default_rng(1)

    def pair(n_dimensions=5, n_centers=700):
        return rng.normal(size=(200, n_dimensions)), rng.normal(size=(n_centers, n_dimensions))

    points, centers = pair()
    yield "plain", points, centers
    yield "few centers", points, centers[:40]
    yield "one center", points, centers[:1]
    yield "one point", points[:1], centers
    yield "as many centers as points", points, points.copy()
    lattice = rng.integers(0, 5, size=(800, 4)).astype(float)  # ties everywhere
    yield "lattice", lattice[:200], np.unique(lattice, axis=0) + 0.5
    yield "every center four times", points, np.repeat(centers[:150], 4, axis=0)
    yield "all centers equal", points, np.ones((300, 5))
    yield "far from zero", 1e7 + points, 1e7 + centers
    remote = np.r_[centers, 1e9 * rng.normal(size=(3, 5))]
    yield "remote points and centers", np.r_[points, 1e9 * rng.normal(size=(3, 5))], remote
    for exponent in (-300, -160, -140, -30, 30, 140, 300):
        yield f"times 1e{exponent}", 10.0**exponent * points, 10.0**exponent * centers
    yield "points outside", 1e60 * points, centers
    yield "points a little outside", np.r_[1e4 * points, 1e8 * points], centers
    yield "tight clusters far apart", *(np.repeat(1e3 * points[:10], 20, axis=0) + 1e-3 * points, remote)
    tight = np.repeat(1e3 * points[:10], 20, axis=0)
    yield "centers in tight clusters", tight + 1e-3 * points, tight + 1e-3 * rng.normal(size=tight.shape)
    flat = np.c_[points[:, :1], np.zeros((200, 4))]
    yield "along a line", flat, np.c_[centers[:, :1], np.zeros((700, 4))]
    yield "one column", points[:, :1], centers[:, :1]
    yield "columns of other sizes", points * [1e-9, 1, 1e9, 1e3, 0], centers * [1e-9, 1, 1e9, 1e3, 0]
    yield "seventy dimensions", *pair(70, 300)
    yield "half precision", points.astype(np.float16), centers
    yield "single precision", points.astype(np.float32), centers
    yield "whole numbers", np.rint(10 * points).astype(np.int16), np.rint(10 * centers)
    yield "columns in memory", np.asfortranarray(points), centers


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("points", "centers"), [pytest.param(*rest, id=name) for name, *rest in cases()])
def test_the_nearest_center_is_that_of_a_plain_loop(points, centers):
    indices, squares = CenterSearch(np.asarray(centers, dtype=float)).nearest(points, 1)
    np.testing.assert_array_equal(indices, brute_force(points, centers))
    with np.errstate(over="ignore"):
        expected = np.square(points - centers[indices]).sum(axis=1)
    np.testing.assert_array_equal(squares, expected)


@given(
    seed=st.integers(0, 2**32), n_centers=st.integers(1, 400), n_dimensions=st.integers(1, 20),
    digits=st.integers(0, 3), spread=st.floats(-8, 8), offset=st.sampled_from([0.0, 1.0, 1e5]),
)  # fmt: skip
@example(seed=47565, n_centers=300, n_dimensions=16, digits=1, spread=-4.625, offset=0.0)  # equal but for rounding
@settings(max_examples=60, deadline=None)
def test_any_points_and_centers(seed, n_centers, n_dimensions, digits, spread, offset):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(min(spread, 0), max(spread, 0), size=(n_centers, 1))  # from crowds to outliers
    centers = (scale * rng.normal(size=(n_centers, n_dimensions))).round(digits) + offset
    points = centers[rng.integers(n_centers, size=50)] + rng.normal(size=(50, n_dimensions)).round(digits)
    expected = brute_force(points, centers)
    found, squares = CenterSearch(centers).nearest(points, 1)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(squares, cdist(points, centers, "sqeuclidean").min(axis=1), rtol=1e-9, atol=1e-9)


def test_blocks_and_threads_change_no_bit(monkeypatch):
    rng = np.random.default_rng(0)
    points, centers = rng.normal(size=(700, 4)), rng.normal(size=(300, 4))
    whole = CenterSearch(centers).nearest(points, 1)
    monkeypatch.setattr(module, "BLOCK", 70)
    monkeypatch.setattr(module, "SQUARED", 30)
    monkeypatch.setattr(module, "PAIR_VALUES", 1)
    for n_threads in (1, 3):
        for a, b in zip(whole, CenterSearch(centers).nearest(points, n_threads), strict=True):
            np.testing.assert_array_equal(a, b)


def test_more_ties_than_fit_at_once_are_all_compared(monkeypatch):
    monkeypatch.setattr(module, "PAIR_VALUES", 1)
    centers = np.repeat([[0.0, 0.0], [1.0, 1.0]], 200, axis=0)
    points = np.array([[0.9, 0.9], [0.1, 0.0], [0.5, 0.5], [7.0, 7.0]])
    assert CenterSearch(centers).nearest(points, 1)[0].tolist() == [200, 0, 0, 200]


def test_remote_centers_cast_doubt_on_few_points():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(2000, 5))
    centers[:20] *= 1e5
    points = rng.normal(size=(3000, 5))
    found = Leaves.from_centers(centers).nearest(points)
    assert found.unsure.size < 0.01 * len(points)


def test_every_center_is_in_one_leaf_and_its_box():
    centers = np.random.default_rng(0).normal(size=(1000, 3))
    leaves = Leaves.from_centers(centers)
    tiles, boxes, radii = leaves.parts
    assert sorted(leaves.order[leaves.order >= 0]) == list(range(1000))
    width = leaves.order.size // leaves.n_leaves
    rotated = (centers - leaves.origin) / leaves.unit @ leaves.rotation[:3]
    for leaf in range(leaves.n_leaves):
        members = leaves.order.reshape(-1, width)[leaf]
        own = rotated[members[members >= 0]]
        low, high, middle = boxes[leaf]
        assert (low < own).all()
        assert (own < high).all()
        assert (np.linalg.norm(own - middle, axis=1) <= radii[leaf] * (1 + 1e-6)).all()
        *columns, halves = tiles[leaf].reshape(4, width)[:, : len(own)]
        np.testing.assert_allclose(middle[:3] - np.transpose(columns), own[:, :3], atol=1e-6)
        np.testing.assert_allclose(2 * halves, np.square(columns).sum(axis=0), rtol=1e-5)
