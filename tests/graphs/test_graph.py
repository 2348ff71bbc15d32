from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.linalg import block_diag

from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs import Graph

SPARSE = [sp.csr_array, sp.csc_array, sp.coo_array, sp.lil_array, sp.dok_array, sp.csr_matrix, sp.coo_matrix]


def random_points(n_points=80, n_dimensions=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n_points, n_dimensions))


def assert_same_graph(one, other, rtol=0.0):
    np.testing.assert_array_equal(one.affinity.indptr, other.affinity.indptr)
    np.testing.assert_array_equal(one.affinity.indices, other.affinity.indices)
    np.testing.assert_allclose(one.affinity.data, other.affinity.data, rtol=rtol)


# --- from points


@pytest.mark.parametrize(
    "form",
    [np.asfortranarray, np.ndarray.tolist, pd.DataFrame, lambda x: x.astype(object), lambda x: x.astype(np.longdouble)],
    ids=["Fortran order", "list", "DataFrame", "object", "long double"],
)
def test_points_in_any_form(form):
    points = random_points()
    assert_same_graph(Graph.from_points(form(points), 7), Graph.from_points(points, 7))


@pytest.mark.parametrize("neighbors", ["tree", "exact", "approximate"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16, np.uint8, bool])
def test_points_of_any_type_are_computed_in_full(dtype, neighbors):
    """Squares of differences of 200 overflow in float16, int16 and uint8."""
    points = np.abs(np.round(random_points() * 100)).astype(dtype)
    graph = Graph.from_points(points, 7, neighbors=neighbors)
    assert graph.affinity.dtype == np.float64
    exact = Graph.from_points(points.astype(np.float64), 7, neighbors=neighbors)
    assert_same_graph(graph, exact)


def test_points_are_not_changed():
    points = random_points()
    before = points.copy()
    Graph.from_points(points, 7)
    np.testing.assert_array_equal(points, before)
    assert points.flags.writeable


def test_construction_says_how():
    graph = Graph.from_points(random_points(), 7)
    assert graph.construction == {
        "source": "points",
        "kernel": "gaussian",
        "bandwidth": graph.construction["bandwidth"],
        "metric": "euclidean",
        "n_neighbors": 7,
        "neighbors": "tree",
        "recall": 1.0,
        "reason": "80 points: an exact tree is fast",
        "n_copies": 0,
    }
    assert graph.construction["bandwidth"] > 0
    box = Graph.from_points(random_points(), 7, "box", neighbors="exact").construction
    assert (box["kernel"], box["bandwidth"], box["neighbors"], box["reason"]) == ("box", None, "exact", "as requested")
    radius = Graph.from_points(random_points(), radius=0.5).construction
    assert (radius["n_neighbors"], radius["neighbors"], radius["reason"]) == (None, "radius", "all pairs within 0.5")


def test_same_seed_same_bits():
    points = random_points(600, 20)
    one, again, other = (Graph.from_points(points, 7, random_state=s, neighbors="approximate") for s in (3, 3, 4))
    assert_same_graph(one, again)
    assert one.construction == again.construction
    generator = Graph.from_points(points, 7, random_state=np.random.default_rng(3), neighbors="approximate")
    assert_same_graph(one, generator)
    assert other.construction["recall"] > 0.9


def test_two_points():
    graph = Graph.from_points([[0.0], [2.0]], 1)
    assert graph.construction["bandwidth"] == 3.0
    np.testing.assert_allclose(graph.affinity.toarray(), [[1, np.exp(-4 / 9)], [np.exp(-4 / 9), 1]])


def test_equal_points_are_one_node():
    points = random_points(30)
    graph, alone = Graph.from_points(np.repeat(points, 3, axis=0), 8), Graph.from_points(points, 8)
    assert (graph.n_points, graph.n_nodes, graph.construction["n_copies"]) == (90, 30, 60)
    np.testing.assert_array_equal(graph.nodes, np.repeat(np.arange(30), 3))
    np.testing.assert_array_equal(graph.affinity.toarray(), alone.affinity.toarray())
    assert repr(graph).startswith("Graph(90 points on 30 nodes, ")


def test_affinity_is_in_the_order_of_the_points():
    points = random_points(40)
    graph = Graph.from_points(points, 8)
    b = graph.construction["bandwidth"]
    affinity = graph.affinity.toarray()
    expected = np.exp(-(((points[:, None] - points) ** 2).sum(axis=2)) / b**2)
    np.testing.assert_allclose(affinity[affinity > 0], expected[affinity > 0], rtol=1e-12)
    assert not graph.affinity.data.flags.writeable
    order = np.argsort(graph.place)
    np.testing.assert_array_equal(affinity[np.ix_(order, order)], graph.node_affinity.toarray())
    np.testing.assert_array_equal(graph.first, order)


def test_gather_spread_and_share():
    graph = Graph.from_points([[3.0], [1.0], [3.0], [2.0]], 2)
    rows = np.array([[0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 1.0, 0.0]])
    expected = [[0.2, 0.4, 0.4], [0.0, 0.0, 1.0]]
    np.testing.assert_allclose(graph.gather(rows), expected, rtol=1e-15)
    np.testing.assert_allclose(graph.gather(sp.csr_array(rows)).toarray(), expected, rtol=1e-15)
    np.testing.assert_array_equal(graph.spread(np.array([7.0, 8.0, 9.0])), [9, 7, 9, 8])
    np.testing.assert_array_equal(graph.share(np.array([7.0, 8.0, 9.0])), [4.5, 7, 4.5, 8])
    grid = Graph.from_grid((4,))
    assert grid.gather(rows) is rows


def test_fewer_different_points_than_neighbors_are_all_joined():
    points = np.repeat(np.arange(5.0)[:, None], 20, axis=0)
    graph = Graph.from_points(points, 30)
    assert (graph.n_nodes, graph.n_edges) == (5, 10)
    one = Graph.from_points(np.zeros((40, 2)), 30)
    assert (one.n_points, one.n_nodes, one.n_edges) == (40, 1, 0)
    assert one.node_affinity.toarray().tolist() == [[1.0]]


def test_radius_with_isolated_points_and_with_none_at_all():
    points = np.array([[0.0], [0.5], [9.0]])
    graph = Graph.from_points(points, radius=1.0, kernel="box")
    np.testing.assert_array_equal(graph.affinity.toarray(), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    for kernel in ("gaussian", "adaptive", "box"):
        empty = Graph.from_points(points, radius=0.1, kernel=kernel)
        np.testing.assert_array_equal(empty.affinity.toarray(), np.eye(3))
        assert empty.diagnose().n_isolated == 3
    assert Graph.from_points([[1.0, 2.0]], radius=1.0).n_points == 1


BAD_POINT = random_points()
BAD_POINT[4, 1] = np.nan
INFINITE_POINT = random_points()
INFINITE_POINT[4, 1] = -np.inf


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (BAD_POINT, r"points without NaN or infinity, found 1 such value in 1 row \(first: row 4\); remove these rows"),
        (INFINITE_POINT, "points without NaN or infinity"),
        (pd.DataFrame(BAD_POINT), "points without NaN or infinity"),
        (np.arange(50.0), r"points to be a 2-d array, found an array of shape \(50,\)"),
        (np.ones((4, 4, 4)), "points to be a 2-d array"),
        (np.ones((0, 3)), "at least one row and one column"),
        (np.ones((50, 0)), "at least one row and one column"),
        (sp.csr_array(np.eye(50)), "points to be dense, found a sparse csr_array"),
        ([["a", "b"]] * 50, "points to be real numbers"),
        (pd.DataFrame({"x": [1.0] * 50, "sample": ["a"] * 50}), "points to be a 2-d array of numbers"),
        (random_points() + 1j, "points to be real numbers"),
        (random_points() * 1e200, "coordinates between 1e-150 and 1e150, found a largest value of .*e.200; rescale"),
        (random_points() * 1e-200, "coordinates between 1e-150 and 1e150"),
        (None, "points"),
    ],
)
def test_bad_points(points, words):
    for options in ({"n_neighbors": 7}, {"radius": 0.5}):
        with pytest.raises(InvalidInputError, match=words):
            Graph.from_points(points, **options)


@pytest.mark.parametrize(
    ("n_points", "n_neighbors", "words"),
    [
        (30, 30, "more points than n_neighbors=30, found 30 points; use n_neighbors of at most 29"),
        (3, 30, "found 3 points; use n_neighbors of at most 2"),
        (1, 1, "found 1 point; give at least two points"),
    ],
)
def test_fewer_points_than_neighbors(n_points, n_neighbors, words):
    with pytest.raises(InvalidInputError, match=words):
        Graph.from_points(random_points(n_points), n_neighbors)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_neighbors": 0}, "n_neighbors to be a whole number of at least 1, found 0"),
        ({"n_neighbors": -3}, "found -3"),
        ({"n_neighbors": 7.0}, "found 7.0"),
        ({"n_neighbors": True}, "found True"),
        ({"n_neighbors": "7"}, "found '7'"),
        ({"n_neighbors": None}, "found None"),
        ({"kernel": "gausian"}, "kernel to be one of 'gaussian', 'adaptive', 'box', found 'gausian'"),
        ({"bandwidth": 0}, "bandwidth to be a number"),
        ({"bandwidth": -1}, "bandwidth to be a number"),
        ({"bandwidth": np.nan}, "bandwidth to be a number"),
        ({"bandwidth": "x"}, "bandwidth to be one of 'auto', found 'x'"),
        ({"bandwidth": 0, "kernel": "box"}, "bandwidth to be a number"),
        ({"radius": 0}, r"radius to be a number in \(0, infinity\), found 0"),
        ({"radius": -1.0}, "radius to be a number"),
        ({"radius": np.nan}, "radius to be a number"),
        ({"radius": np.inf}, "radius to be finite"),
        ({"radius": "x"}, "radius to be a number"),
        ({"radius": True}, "radius to be a number"),
        ({"neighbors": "descent"}, "neighbors to be one of 'auto', 'tree', 'exact', 'approximate'"),
        ({"neighbors": "cells", "radius": 1.0}, "neighbors to be one of"),
        ({"kernel": "gausian", "radius": 1.0}, "kernel to be one of"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(InvalidInputError, match=words):
        Graph.from_points(random_points(), **options)


def test_options_are_checked_before_any_work(monkeypatch):
    monkeypatch.setattr("heatmover.graphs.graph.k_nearest", lambda *_, **__: pytest.fail("searched before checking"))
    for options in ({"kernel": "x"}, {"bandwidth": 0}, {"neighbors": "x"}, {"n_neighbors": 0}):
        with pytest.raises(InvalidInputError):
            Graph.from_points(random_points(), **options)


def test_mistyped_options_are_not_swallowed():
    with pytest.raises(TypeError, match="n_neighbours"):
        Graph.from_points(random_points(), n_neighbours=5)
    with pytest.raises(TypeError, match="knn"):
        Graph.from_affinity(np.eye(2), knn=5)


# --- from an affinity

AFFINITY = np.array([[2.0, 1.0, 0.0], [1.0, 0.0, 0.5], [0.0, 0.5, 1.0]])
AFFINITY.flags.writeable = False


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, pd.DataFrame, *SPARSE], ids=lambda form: form.__name__)
def test_affinity_is_taken_as_it_is(form):
    graph = Graph.from_affinity(form(AFFINITY))
    np.testing.assert_array_equal(graph.affinity.toarray(), AFFINITY)
    assert graph.affinity.format == "csr"
    assert graph.affinity.dtype == np.float64
    assert graph.affinity.has_sorted_indices
    assert (graph.n_points, graph.n_edges, graph.affinity.nnz) == (3, 2, 6)
    assert dict(graph.construction) == {"source": "affinity"}


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.coo_array], ids=lambda form: form.__name__)
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float32])
def test_affinity_of_any_type(form, dtype):
    whole = (AFFINITY * 2).astype(dtype)
    graph = Graph.from_affinity(form(whole))
    assert graph.affinity.dtype == np.float64
    np.testing.assert_array_equal(graph.affinity.toarray(), whole.astype(float))


def test_explicit_zeros_are_no_edges():
    entries = ([1.0, 1.0, 0.0, 0.0, 1.0], ([0, 1, 0, 2, 2], [1, 0, 2, 0, 2]))
    graph = Graph.from_affinity(sp.coo_array(entries, shape=(3, 3)), lazy=False)
    assert (graph.n_edges, graph.affinity.nnz) == (1, 3)
    assert graph.diagnose().n_components == 2


def test_a_zero_without_its_mirror_image_is_symmetric():
    graph = Graph.from_affinity(sp.coo_array(([1.0, 1.0, 0.0], ([0, 1, 0], [1, 0, 2])), shape=(3, 3)), lazy=False)
    assert graph.affinity.nnz == 2


def test_repeated_entries_add_up():
    entries = ([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0]))
    graph = Graph.from_affinity(sp.coo_array(entries, shape=(2, 2)), lazy=False)
    np.testing.assert_array_equal(graph.affinity.toarray(), [[0, 3], [3, 0]])


# A path of weights 1 and 3, a triangle, and a point without neighbors.
MIXED = block_diag([[0, 1, 0], [1, 0, 3], [0, 3, 0]], np.ones((3, 3)) - np.eye(3), [[0.0]])


@pytest.mark.parametrize(
    ("lazy", "loops", "text"),
    [
        (None, [8 / 3] * 3 + [0] * 4, "given affinity, 3 points lazy"),
        (True, [8 / 3] * 3 + [2] * 3 + [0], "given affinity, lazy"),
        (False, [0] * 7, "given affinity"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*1 bipartite component:heatmover.GraphWarning")
def test_loops_have_the_mean_degree_of_their_component(lazy, loops, text):
    graph = Graph.from_affinity(MIXED, lazy=lazy)
    np.testing.assert_allclose(graph.affinity.toarray(), MIXED + np.diag(loops))
    assert repr(graph) == f"Graph(7 points, 5 edges; {text})"


def test_bipartite_components_are_warned_of_by_number():
    two = np.kron(np.eye(2), [[0, 1], [1, 0]])
    with pytest.warns(GraphWarning, match=r"2 bipartite components \(4 of 4 points\)"):
        Graph.from_affinity(two)


def test_lazy_is_a_boolean():
    with pytest.raises(InvalidInputError, match="lazy"):
        Graph.from_affinity(MIXED, lazy="yes")


@pytest.mark.parametrize("form", [np.array, sp.csr_array, sp.csc_array, sp.coo_array, pd.DataFrame])
def test_the_callers_affinity_is_never_changed(form):
    """Neither its values nor its order nor that it may be written to."""
    matrix = form(AFFINITY)
    names = [name for name in ("data", "indices", "indptr", "coords") if sp.issparse(matrix) and hasattr(matrix, name)]
    arrays = [np.asarray(getattr(matrix, name)) for name in names] or [np.asarray(matrix)]
    before = [array.copy() for array in arrays]
    writable = [array.flags.writeable for array in arrays]
    graph = Graph.from_affinity(matrix)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)
        for own in (graph.affinity.data, graph.affinity.indices, graph.affinity.indptr):
            assert not np.shares_memory(array, own)
    assert [array.flags.writeable for array in arrays] == writable


def test_unsorted_entries_stay_as_they_are():
    matrix = sp.csr_array((np.array([1.0, 5.0, 1.0]), np.array([1, 0, 0]), np.array([0, 2, 3])), shape=(2, 2))
    graph = Graph.from_affinity(matrix)
    np.testing.assert_array_equal(graph.affinity.toarray(), [[5, 1], [1, 0]])
    assert matrix.indices.tolist() == [1, 0, 0]


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1.0, 1e200])
def test_asymmetry_within_rounding_is_averaged(scale):
    matrix = AFFINITY * scale
    matrix[0, 1] *= 1 + 1e-13
    graph = Graph.from_affinity(matrix)
    assert (graph.affinity - graph.affinity.T).nnz == 0
    np.testing.assert_allclose(graph.affinity.toarray(), AFFINITY * scale, rtol=1e-12)
    matrix[0, 1] *= 1 + 1e-7
    with pytest.raises(InvalidInputError, match="a symmetric affinity, found entries that differ"):
        Graph.from_affinity(matrix)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_rounding_is_that_of_the_type(form):
    matrix = AFFINITY.astype(np.float32)
    matrix[0, 1] = np.nextafter(np.float32(1), np.float32(2))
    assert Graph.from_affinity(form(matrix)).affinity[0, 1] == pytest.approx(1, rel=1e-7)
    with pytest.raises(InvalidInputError, match="symmetric"):
        Graph.from_affinity(form(matrix.astype(np.float64)))


def test_asymmetry_in_a_faint_corner_is_not_rounding():
    """Weights of 1e-11 beside weights of 1 are still all that two points have."""
    matrix = np.eye(4)
    matrix[2:, 2:] = [[0, 1e-11], [2e-11, 0]]
    with pytest.raises(InvalidInputError, match=r"differ from their mirror image by up to 1e-11; use \(A \+ A.T\) / 2"):
        Graph.from_affinity(matrix)


def replaced(row, column, value, mirror=True):
    matrix = np.array(AFFINITY)
    matrix[row, column] = value
    if mirror:
        matrix[column, row] = value
    return matrix


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.coo_array], ids=lambda form: form.__name__)
@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (replaced(0, 1, 3.0, mirror=False), "a symmetric affinity, found entries that differ .* by up to 2; use"),
        (replaced(0, 2, 3.0, mirror=False), "a symmetric affinity, found entries that differ .* by up to 3; use"),
        (replaced(1, 2, -0.25), "a non-negative affinity, found a smallest value of -0.25"),
        (replaced(1, 2, np.nan), r"affinity without NaN or infinity, found 2 such values in 2 rows \(first: row 1\)"),
        (replaced(1, 2, np.inf), "affinity without NaN or infinity"),
        (replaced(2, 2, 1e305), "an affinity with finite sums, found values up to 1e.305; rescale"),
        (np.ones((2, 3)), r"a square affinity \(n_points, n_points\), found shape \(2, 3\)"),
        (AFFINITY + 1j, "affinity to be real numbers, found values of type complex128"),
    ],
    ids=["asymmetric", "one-sided", "negative", "NaN", "infinite", "huge", "not square", "complex"],
)
def test_bad_affinity(form, matrix, words):
    with pytest.raises(InvalidInputError, match=words):
        Graph.from_affinity(form(matrix))


@pytest.mark.parametrize(
    ("affinity", "words"),
    [
        (np.ones((0, 0)), "at least one row and one column"),
        (sp.csr_array((0, 0)), "an affinity of at least one point"),
        (np.ones(4), "affinity to be a 2-d array"),
        (sp.coo_array(np.ones(4)), r"a square affinity \(n_points, n_points\), found shape \(4,\)"),
        ([["a", "b"], ["b", "a"]], "affinity to be real numbers"),
        ("affinity.npz", "affinity to be real numbers"),
        (None, "affinity to be a 2-d array"),
        (pd.DataFrame({"a": [1.0, 0.5], "b": ["x", "y"]}), "affinity to be a 2-d array of numbers"),
        (Graph.from_affinity(AFFINITY), "affinity to be a 2-d array of numbers, found Graph"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_things_that_are_no_affinity(affinity, words):
    with pytest.raises(InvalidInputError, match=words):
        Graph.from_affinity(affinity)


def test_no_warning_on_the_way_to_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInputError):
            Graph.from_affinity(sp.csr_array(AFFINITY + 1j))


# --- the value itself


GRAPHS = {
    "points": lambda: Graph.from_points(random_points(), 7),
    "affinity": lambda: Graph.from_affinity(AFFINITY),
    "grid": lambda: Graph.from_grid((4, 5)),
}


@pytest.fixture(params=GRAPHS)
def example(request):
    return GRAPHS[request.param]()


@pytest.mark.parametrize("make", [lambda g: g, lambda g: pickle.loads(pickle.dumps(g))], ids=["new", "unpickled"])
def test_a_graph_is_immutable(example, make):
    graph = make(example)
    for array in (graph.affinity.data, graph.affinity.indices, graph.affinity.indptr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    with pytest.raises(FrozenInstanceError):
        graph.affinity = None
    with pytest.raises(TypeError, match="does not support item assignment"):
        graph.construction["source"] = "elsewhere"


def test_copies_are_the_graph_itself(example):
    assert copy.copy(example) is example
    assert copy.deepcopy(example) is example
    assert copy.deepcopy({"graph": [example]})["graph"][0] is example


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_keep_everything(example, protocol):
    back = pickle.loads(pickle.dumps(example, protocol))
    assert_same_graph(back, example)
    assert dict(back.construction) == dict(example.construction)
    assert repr(back) == repr(example)


def test_construction_is_a_copy_of_what_was_given():
    how = {"source": "affinity"}
    graph = Graph(Graph.from_affinity(AFFINITY).affinity, how)
    how["source"] = "changed"
    assert graph.construction["source"] == "affinity"


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (Graph.from_affinity(AFFINITY), "Graph(3 points, 2 edges; given affinity)"),
        (Graph.from_grid((4, 5), reach=1), "Graph(20 points, 55 edges; grid 4x5)"),
        (
            Graph.from_points([[0.0], [2.0]], 1),
            "Graph(2 points, 1 edge; gaussian kernel, bandwidth 3, 1 neighbor by tree)",
        ),
        (Graph.from_points([[0.0], [2.0]], 1, "box"), "Graph(2 points, 1 edge; box kernel, 1 neighbor by tree)"),
        (
            Graph.from_points([[0.0], [2.0]], kernel="box", radius=2.0),
            "Graph(2 points, 1 edge; box kernel, neighbors by radius)",
        ),
    ],
    ids=["affinity", "grid", "points", "box", "radius"],
)
def test_repr(graph, text):
    assert repr(graph) == text


@pytest.mark.parametrize("algorithm", ["tree", "exact", "approximate"])
def test_threads_do_not_change_the_graph(algorithm):
    points = np.random.default_rng(4).normal(size=(1500, 4))
    one, three = (Graph.from_points(points, 12, neighbors=algorithm, n_jobs=n).affinity for n in (1, 3))
    np.testing.assert_array_equal(one.indices, three.indices)
    np.testing.assert_array_equal(one.data, three.data)


@pytest.mark.parametrize("seed", ["abc", -1, 1.5])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(InvalidInputError, match="random_state"):
        Graph.from_points(random_points(), 7, random_state=seed)
