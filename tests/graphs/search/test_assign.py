"""The nearest centre: exactly that of a plain loop in double precision, for whatever numbers, blocks and threads."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover.graphs.search import assign
from heatmover.graphs.search.assign import CenterSearch
from heatmover.graphs.search.every import EveryCenter
from heatmover.graphs.search.leaves import Leaves


def brute_force(points, centers):
    """The first of the nearest centres."""
    with np.errstate(over="ignore"):
        return np.array([np.square(point - centers).sum(axis=1).argmin() for point in points])


def cases():
    rng = np.random.default_rng(1)

    def pair(n_dimensions=5, n_centers=700):
        return rng.normal(size=(200, n_dimensions)), rng.normal(size=(n_centers, n_dimensions))

    points, centers = pair()
    yield "plain", points, centers
    yield "few centres", points, centers[:40]
    yield "one centre", points, centers[:1]
    yield "one point", points[:1], centers
    yield "as many centres as points", points, points.copy()
    lattice = rng.integers(0, 5, size=(800, 4)).astype(float)  # ties everywhere
    yield "lattice", lattice[:200], np.unique(lattice, axis=0) + 0.5
    yield "every centre four times", points, np.repeat(centers[:150], 4, axis=0)
    yield "all centres equal", points, np.ones((300, 5))
    yield "far from zero", 1e7 + points, 1e7 + centers
    remote = np.r_[centers, 1e9 * rng.normal(size=(3, 5))]
    yield "remote points and centres", np.r_[points, 1e9 * rng.normal(size=(3, 5))], remote
    for exponent in (-300, -160, -140, -30, 30, 140, 300):
        yield f"times 1e{exponent}", 10.0**exponent * points, 10.0**exponent * centers
    yield "points outside", 1e60 * points, centers
    yield "points a little outside", np.r_[1e4 * points, 1e8 * points], centers
    yield "tight clusters far apart", *(np.repeat(1e3 * points[:10], 20, axis=0) + 1e-3 * points, remote)
    tight = np.repeat(1e3 * points[:10], 20, axis=0)
    yield "centres in tight clusters", tight + 1e-3 * points, tight + 1e-3 * rng.normal(size=tight.shape)
    flat = np.c_[points[:, :1], np.zeros((200, 4))]
    yield "along a line", flat, np.c_[centers[:, :1], np.zeros((700, 4))]
    yield "one column", points[:, :1], centers[:, :1]
    yield "columns of other sizes", points * [1e-9, 1, 1e9, 1e3, 0], centers * [1e-9, 1, 1e9, 1e3, 0]
    yield "seventy dimensions", *pair(70, 300)
    yield "half precision", points.astype(np.float16), centers
    yield "single precision", points.astype(np.float32), centers
    yield "whole numbers", np.rint(10 * points).astype(np.int16), np.rint(10 * centers)
    yield "columns in memory", np.asfortranarray(points), centers


def taking(way):
    """Take one of the ways, whatever there is to do."""
    few = mock.patch.object(assign, "FEW_PAIRS", np.inf if way == "products" else 0)
    every = mock.patch.object(CenterSearch, "_every_pays", return_value=way == "every")
    stack = ExitStack()
    stack.enter_context(few)
    stack.enter_context(every)
    return stack


WAYS = ["leaves", "every", "products"]


@pytest.fixture(params=WAYS)
def way(request):
    with taking(request.param):
        yield request.param


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("points", "centers"), [pytest.param(*rest, id=name) for name, *rest in cases()])
@pytest.mark.usefixtures("way")
def test_the_nearest_centre_is_that_of_a_plain_loop(points, centers):
    indices, squares = CenterSearch(np.asarray(centers, dtype=float)).nearest(points, 1)
    np.testing.assert_array_equal(indices, brute_force(points, centers))
    with np.errstate(over="ignore"):
        expected = np.square(points - centers[indices]).sum(axis=1)
    np.testing.assert_array_equal(squares, expected)


@given(
    seed=st.integers(0, 2**32), n_centers=st.integers(1, 400), n_dimensions=st.integers(1, 20),
    digits=st.integers(0, 3), spread=st.floats(-8, 8), offset=st.sampled_from([0.0, 1.0, 1e5]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_points_and_centres(seed, n_centers, n_dimensions, digits, spread, offset):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(min(spread, 0), max(spread, 0), size=(n_centers, 1))  # from crowds to outliers
    centers = (scale * rng.normal(size=(n_centers, n_dimensions))).round(digits) + offset
    points = centers[rng.integers(n_centers, size=50)] + rng.normal(size=(50, n_dimensions)).round(digits)
    expected = brute_force(points, centers)
    for way in WAYS:
        with taking(way):
            found, squares = CenterSearch(centers).nearest(points, 1)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(squares, cdist(points, centers, "sqeuclidean").min(axis=1), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("way")
def test_blocks_and_threads_change_no_bit(monkeypatch):
    rng = np.random.default_rng(0)
    points, centers = rng.normal(size=(700, 4)), rng.normal(size=(300, 4))
    whole = CenterSearch(centers).nearest(points, 1)
    monkeypatch.setattr(assign, "BLOCK", 70)
    monkeypatch.setattr(assign, "SQUARED", 30)
    monkeypatch.setattr(assign, "PAIR_VALUES", 1)
    monkeypatch.setattr(assign, "MOST_SCORES", 350)
    for n_threads in (1, 3):
        for a, b in zip(whole, CenterSearch(centers).nearest(points, n_threads), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("way")
def test_more_ties_than_fit_at_once_are_all_compared(monkeypatch):
    monkeypatch.setattr(assign, "PAIR_VALUES", 1)
    centers = np.repeat([[0.0, 0.0], [1.0, 1.0]], 200, axis=0)
    points = np.array([[0.9, 0.9], [0.1, 0.0], [0.5, 0.5], [7.0, 7.0]])
    assert CenterSearch(centers).nearest(points, 1)[0].tolist() == [200, 0, 0, 200]


def test_leaves_once_made_serve_the_few_points_that_come_later(monkeypatch):
    points = np.random.default_rng(0).normal(size=(20, 3))
    search = CenterSearch(points)
    monkeypatch.setattr(assign, "FEW_PAIRS", 100)
    for count, made in ((4, False), (20, True), (4, True)):
        assert search.nearest(points[:count], 1)[0].tolist() == list(range(count))
        assert ("_leaves" in search.__dict__) == made
    assert "_leaves" in CenterSearch.for_many(points, 6).__dict__
    assert "_leaves" not in CenterSearch.for_many(points, 5).__dict__


def test_most_leaves_are_left_out_where_centres_follow_a_curve():
    rng = np.random.default_rng(0)
    places = rng.uniform(0, 100, size=(4000, 1)) * rng.normal(size=5) + 0.2 * rng.normal(size=(4000, 5))
    leaves = Leaves.from_centers(places)
    found = leaves.nearest(places)
    assert leaves.n_leaves == 32
    assert found.n_looked_at < 3 * len(places)
    assert found.unsure.size < 0.02 * len(places)
    everywhere = rng.normal(size=(800, 40))
    leaves = Leaves.from_centers(everywhere[:700])
    assert leaves.nearest(everywhere[700:]).n_looked_at == 100 * leaves.n_leaves


def test_remote_centres_cast_doubt_on_few_points():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(2000, 5))
    centers[:20] *= 1e5
    points = rng.normal(size=(3000, 5))
    found = Leaves.from_centers(centers).nearest(points)
    assert found.unsure.size < 0.01 * len(points)


def test_every_centre_is_in_one_leaf_and_its_box():
    centers = np.random.default_rng(0).normal(size=(1000, 3))
    leaves = Leaves.from_centers(centers)
    tiles, boxes, radii = leaves.parts
    assert sorted(leaves.order[leaves.order >= 0]) == list(range(1000))
    width = leaves.order.size // leaves.n_leaves
    rotated = (centers - leaves.frame.origin) / leaves.frame.unit @ leaves.rotation[:3]
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


@pytest.mark.parametrize(("n_dimensions", "share"), [(1, 0.3), (3, 0.9), (8, 0.98), (14, 0.98), (17, 0.98)])
def test_what_is_called_sure_is_the_nearest_and_most_of_a_gaussian_is_sure(n_dimensions, share):
    rng = np.random.default_rng(n_dimensions)
    points, centers = (rng.normal(size=(count, n_dimensions)) for count in (500, 300))
    nearest, sure = EveryCenter.from_centers(centers).nearest(points)
    expected = brute_force(points, centers)
    np.testing.assert_array_equal(nearest[sure], expected[sure])
    assert sure.mean() > share


def test_ties_are_not_called_sure():
    """Also those of centres 8 places apart, which share a column, and those in other leaves."""
    rng = np.random.default_rng(0)
    for apart in (1, 8, 120, 128, 136):
        centers = rng.normal(size=(300, 4))
        centers[apart] = centers[0]
        nearest, sure = EveryCenter.from_centers(centers).nearest(centers)
        assert not sure[[0, apart]].any()
        assert sure.sum() == 298
        np.testing.assert_array_equal(nearest[sure], np.flatnonzero(sure))


@pytest.mark.filterwarnings("ignore:overflow")
def test_points_beyond_single_precision_are_not_called_sure():
    centers = np.random.default_rng(0).normal(size=(300, 3))
    points = np.array([[1e16, 0, 0], [1e39, 0, 0], [-1e300, 1e300, 0], [0.1, 0, 0]])
    assert EveryCenter.from_centers(centers).nearest(points)[1].tolist()[:3] == [False, False, False]
    assert not EveryCenter.from_centers(1e200 * centers).nearest(1e200 * centers)[1].any()


@pytest.mark.parametrize(
    ("noise", "every"), [pytest.param(1.0, True, id="a Gaussian"), pytest.param(1e-3, False, id="along a line")]
)
def test_every_centre_is_compared_where_no_leaf_can_be_left_out(monkeypatch, noise, every):
    monkeypatch.setattr(assign, "FEW_PAIRS", 0)
    monkeypatch.setattr(assign, "LEAST_PROBED", 400)
    rng = np.random.default_rng(0)
    cells = rng.normal(size=(1400, 14)) * [1.0, *[noise] * 13]
    search = CenterSearch(cells[:1000])
    np.testing.assert_array_equal(search.nearest(cells[1000:], 2)[0], brute_force(cells[1000:], cells[:1000]))
    assert ("_every" in search.__dict__) == every
    assert "_every" not in CenterSearch(cells[:1000]).__dict__


def test_one_origin_is_not_taken_for_tight_clusters_far_apart(monkeypatch):
    monkeypatch.setattr(assign, "MOST_LEAVES", 0.0)
    monkeypatch.setattr(assign, "LEAST_PROBED", 400)
    rng = np.random.default_rng(0)
    places = np.repeat(1e3 * rng.normal(size=(10, 14)), 60, axis=0)
    assert not CenterSearch(places + 1e-3 * rng.normal(size=places.shape))._every_pays(places)
    assert CenterSearch(places + 1e3 * rng.normal(size=places.shape))._every_pays(places)
