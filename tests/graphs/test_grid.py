from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph


def plain_grid(shape, spacing, bandwidth, reach, periodic):
    """The affinity of a grid, one pair of cells at a time."""
    cells = list(product(*map(range, shape)))
    affinity = np.zeros((len(cells), len(cells)))
    for i, here in enumerate(cells):
        for j, there in enumerate(cells):
            steps = [abs(a - b) for a, b in zip(here, there, strict=True)]
            if periodic:
                steps = [min(step, size - step) for step, size in zip(steps, shape, strict=True)]
            if max(steps) <= reach:
                squares = sum((step * s) ** 2 for step, s in zip(steps, spacing, strict=True))
                affinity[i, j] = np.exp(-squares / (bandwidth * min(spacing)) ** 2)
    return affinity


SHAPES = [(1,), (7,), (4, 5), (1, 6), (3, 2, 4), (2, 3, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_grid_equals_distances_between_coordinates(shape):
    graph = Graph.from_grid(shape)
    reach = 2 if len(shape) <= 2 else 1
    expected = plain_grid(shape, [1.0] * len(shape), 1.5, reach, periodic=False)
    np.testing.assert_allclose(graph.affinity.toarray(), expected, rtol=1e-12)
    assert graph.n_points == np.prod(shape)
    assert graph.construction["shape"] == shape


@pytest.mark.parametrize("shape", [(5,), (7,), (5, 6), (3, 4, 5), (3, 3, 4, 3)], ids=str)
def test_periodic_grid_wraps_around(shape):
    reach = 2 if len(shape) <= 2 else 1
    expected = plain_grid(shape, [1.0] * len(shape), 1.5, reach, periodic=True)
    graph = Graph.from_grid(shape, periodic=True)
    np.testing.assert_allclose(graph.affinity.toarray(), expected, rtol=1e-12)
    # No cell of a periodic grid differs from another.
    np.testing.assert_allclose(graph.affinity.sum(axis=1), graph.affinity.sum(axis=1)[0], rtol=1e-14)


@pytest.mark.parametrize(("reach", "bandwidth"), [(1, 0.8), (3, 2.5)])
@pytest.mark.parametrize("spacing", [(1.0, 1.0), (0.5, 2.0), (1e-6, 3e-6)])
@pytest.mark.parametrize("periodic", [False, True])
def test_spacing_reach_and_width(spacing, reach, bandwidth, periodic):
    graph = Graph.from_grid((7, 8), spacing=spacing, periodic=periodic, bandwidth=bandwidth, reach=reach)
    expected = plain_grid((7, 8), spacing, bandwidth, reach, periodic)
    np.testing.assert_allclose(graph.affinity.toarray(), expected, rtol=1e-9)
    assert graph.construction["bandwidth"] == pytest.approx(bandwidth * min(spacing))
    assert graph.construction["reach"] == reach
    assert graph.construction["periodic"] is periodic


def test_one_spacing_for_all_axes_changes_nothing_but_the_unit():
    a, b = Graph.from_grid((4, 4)), Graph.from_grid((4, 4), spacing=1e-200)
    np.testing.assert_allclose(a.affinity.toarray(), b.affinity.toarray(), rtol=1e-12)
    c = Graph.from_grid((4, 4), spacing=np.array([3.0, 3.0]))
    np.testing.assert_allclose(a.affinity.toarray(), c.affinity.toarray(), rtol=1e-12)


def test_points_are_numbered_as_ravel_numbers_them():
    image = np.zeros((5, 6))
    image[2, 3] = 1
    near = Graph.from_grid((5, 6), reach=1).affinity @ image.ravel() > 0
    rows, columns = np.nonzero(near.reshape(5, 6))
    assert set(rows) == {1, 2, 3}
    assert set(columns) == {2, 3, 4}


def test_grid_is_symmetric_to_the_bit_with_ones_on_the_diagonal():
    affinity = Graph.from_grid((5, 4, 3), spacing=(0.3, 0.7, 1.1)).affinity
    assert (affinity - affinity.T).nnz == 0
    assert (affinity.diagonal() == 1).all()
    assert affinity.has_sorted_indices


def test_a_kernel_too_narrow_joins_nothing():
    """Weights that underflow are no edges: the diagnosis must see isolated cells, not neighbors."""
    graph = Graph.from_grid((5,), bandwidth=0.01)
    np.testing.assert_array_equal(graph.affinity.toarray(), np.eye(5))
    assert graph.affinity.nnz == 5
    assert graph.n_edges == 0
    assert graph.diagnose().n_isolated == 5


@pytest.mark.parametrize("shape", [9, np.int64(9), (9,), [9], np.array([9])])
def test_one_axis_in_any_form(shape):
    assert Graph.from_grid(shape).construction["shape"] == (9,)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((), {}, "at least one axis"),
        ((0, 3), {}, "every axis of shape to be a whole number of at least 1, found 0"),
        ((-2,), {}, "found -2"),
        ((3.0, 3), {}, "found 3.0"),
        (5.0, {}, "found 5.0"),
        (True, {}, "found True"),
        (None, {}, "found None"),
        ("ab", {}, "found 'a'"),
        ((5, 5), {"spacing": 0}, r"spacing to be a number in \(0, infinity\), found 0"),
        ((5, 5), {"spacing": (1, -1)}, "found -1"),
        ((5, 5), {"spacing": (1, np.nan)}, "found"),
        ((5, 5), {"spacing": (1, 2, 3)}, r"one spacing or one per axis \(2\), found \(1, 2, 3\)"),
        ((5, 5), {"spacing": "x"}, "found 'x'"),
        ((5, 5), {"spacing": [[1, 2]]}, "spacing"),
        ((5, 5), {"bandwidth": 0}, "bandwidth to be a number"),
        ((5, 5), {"bandwidth": "auto"}, "bandwidth to be a number"),
        ((5, 5), {"reach": 0}, "reach to be a whole number of at least 1"),
        ((5, 5), {"reach": 1.5}, "reach to be a whole number of at least 1"),
        ((5, 5), {"periodic": "no"}, "periodic to be True or False, found 'no'"),
        ((5, 5), {"periodic": 1}, "periodic to be True or False, found 1"),
        ((5, 4), {"periodic": True}, r"periodic axes longer than 4 nodes, found shape \(5, 4\); use a smaller reach"),
    ],
)
def test_bad_grids(shape, options, words):
    with pytest.raises(InvalidInputError, match=words):
        Graph.from_grid(shape, **options)


def test_mistyped_options_are_not_swallowed():
    with pytest.raises(TypeError, match="perodic"):
        Graph.from_grid((5, 5), perodic=True)
