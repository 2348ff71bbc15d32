"""Different points, masses gathered at them, draws by mass and the order of nodes, against plain code."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.graphs.centers import draw_by_mass
from heatmover.graphs.distinct import distinct_points, gather_masses, order_of_nodes


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_distinct_points_are_those_of_numpy(n_points, n_dimensions, n_values, seed):
    points = np.random.default_rng(seed).integers(0, n_values, size=(n_points, n_dimensions)) / 3
    nodes, place = distinct_points(points)
    np.testing.assert_array_equal(nodes, np.unique(points, axis=0))
    np.testing.assert_array_equal(nodes[place], points)


def test_zeros_of_either_sign_are_equal():
    nodes, place = distinct_points(np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, -1.0]]))
    assert (len(nodes), place.tolist()) == (2, [1, 1, 0])


def test_single_precision_stays():
    nodes, _ = distinct_points(np.array([[1.0], [0.5]], dtype=np.float32))
    assert nodes.dtype == np.float32


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(1, 30), st.integers(1, 10), st.booleans(), st.integers(0, 2**32 - 1))
def test_masses_are_summed_whatever_their_order(n_measures, n_points, n_nodes, sparse, seed):
    rng = np.random.default_rng(seed)
    place = rng.integers(0, n_nodes, n_points)
    rows = rng.random((n_measures, n_points)) * (rng.random((n_measures, n_points)) < 0.7)
    order = rng.permutation(n_points)
    gathered = [
        gather_masses(sp.csr_array(x) if sparse else x, p, n_nodes)
        for x, p in ((rows, place), (rows[:, order], place[order]))
    ]
    one, two = (x.toarray() if sparse else x for x in gathered)
    assert sp.issparse(gathered[0]) == sparse
    np.testing.assert_array_equal(one, two)
    expected = np.zeros((n_measures, n_nodes))
    np.add.at(expected.T, place, rows.T)
    np.testing.assert_allclose(one, expected, rtol=1e-14)


@pytest.mark.parametrize("n_nodes", [12, 40], ids=["shared", "alone"])
def test_measures_are_put_in_order(n_nodes):
    rng = np.random.default_rng(0)
    place = rng.permutation(40) % n_nodes
    rows = sp.random_array((200, 40), density=0.2, rng=rng, format="csr")
    found = gather_masses(rows, place, n_nodes)
    assert found.has_canonical_format
    np.testing.assert_allclose(found.toarray(), rows.toarray() @ np.eye(n_nodes)[place], rtol=1e-14)


def test_nothing_to_gather():
    assert not gather_masses(np.zeros((2, 4)), np.array([0, 0, 1, 1]), 3).any()


def test_copies_multiply_exactly():
    """Three thirds of 1/300 are 1/100 however often the cells were copied, to one rounding."""
    for copies in (3, 7, 10):
        rows = np.full((1, 100 * copies), 1 / (100 * copies))
        found = gather_masses(rows, np.repeat(np.arange(100), copies), 100)
        np.testing.assert_allclose(found, 0.01, rtol=2.3e-16)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_every_place_is_drawn_by_its_share_to_within_one(n_places, count, seed):
    rng = np.random.default_rng(seed)
    masses = rng.integers(1, 9, n_places)
    drawn = draw_by_mass(masses, count, np.random.default_rng(seed))
    if n_places <= count:
        np.testing.assert_array_equal(drawn, masses)
        return
    assert drawn.sum() == count
    assert (np.abs(drawn - count * masses / masses.sum()) < 1 + 1e-9).all()
    np.testing.assert_array_equal(drawn, draw_by_mass(3 * masses, count, np.random.default_rng(seed)))


def test_no_place_is_favored():
    drawn = sum(draw_by_mass(np.ones(20), 5, np.random.default_rng(seed)) for seed in range(2_000))
    assert np.abs(drawn - 500).max() < 5 * np.sqrt(2_000 * 0.25 * 0.75)


def path_of(weights):
    return sp.csr_array(sp.diags_array([weights, weights], offsets=[1, -1]))


@pytest.mark.parametrize(
    "affinity", [path_of([1.0, 2.0, 3.0]), path_of([1.0, 1.0, 2.0, 1.0]), sp.csr_array(np.diag([1.0, 2.0, 3.0, 3.5]))]
)
def test_nodes_that_differ_have_one_order(affinity):
    """In the second only the neighbors' neighbors tell the first node from the second."""
    ordered = set()
    for permutation in permutations(range(affinity.shape[0])):
        which = np.array(permutation)
        order = order_of_nodes(sp.csr_array(affinity[which][:, which]))
        ordered.add(tuple(which[order].tolist()))
    assert len(ordered) == 1


def test_the_matrix_is_the_same_where_some_nodes_cannot_be_distinguishable():
    star = np.zeros((5, 5))
    star[0, 1:] = star[1:, 0] = 1.0
    found = set()
    for permutation in permutations(range(5)):
        which = np.array(permutation)
        shuffled = sp.csr_array(star[which][:, which])
        order = order_of_nodes(shuffled)
        found.add(shuffled.toarray()[np.ix_(order, order)].tobytes())
    assert len(found) == 1


@pytest.mark.parametrize("factor", [3.0, 0.1, 1e-50, 2.0**-300])
def test_a_common_factor_leaves_the_order_of_nodes(factor):
    """Each affinity is rounded anew, but not by so much that float32 would tell."""
    upper = np.triu(np.random.default_rng(0).random((60, 60)))
    affinity = upper + np.triu(upper, 1).T

    def order(matrix):
        return order_of_nodes(sp.csr_array(matrix / matrix.max()))

    np.testing.assert_array_equal(order(affinity * factor), order(affinity))


def test_nodes_that_differ_in_their_last_digits_are_distinguishable():
    affinity = np.ones((12, 12)) - 1e-12 * np.diag(np.arange(12.0))
    shuffle = np.random.default_rng(1).permutation(12)
    first, second = (order_of_nodes(sp.csr_array(each)) for each in (affinity, affinity[shuffle][:, shuffle]))
    np.testing.assert_array_equal(first, shuffle[second])
