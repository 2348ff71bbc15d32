"""Distances given as affinities are recognized, and no affinity is taken for distances."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import shortest_path
from scipy.spatial.distance import pdist, squareform

from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs import Graph
from heatmover.graphs.precomputed import looks_like_distances


def points(n_points=90, n_dimensions=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n_points, n_dimensions))


def euclidean(places):
    return squareform(pdist(places))


def neighbor_distances(places, count=8):
    """Distances to the nearest neighbors, as a sparse matrix that is not symmetric."""
    distances = euclidean(places)
    nearest = np.argsort(distances, axis=1)[:, 1 : count + 1]
    rows = np.repeat(np.arange(len(places)), count)
    return sp.csr_array((distances[rows, nearest.ravel()], (rows, nearest.ravel())), shape=distances.shape)


def both_ways(matrix):
    return sp.csr_array(matrix.maximum(matrix.T))


def hollow(matrix):
    """The matrix without its diagonal."""
    dense = matrix.toarray() if sp.issparse(matrix) else np.array(matrix)
    np.fill_diagonal(dense, 0)
    return dense


def random_symmetric(values):
    return hollow(np.maximum(values, values.T))


def walked(places, steps=4):
    affinity = hollow(Graph.from_points(places, 8).affinity)
    walk = np.linalg.matrix_power(affinity / affinity.sum(axis=1, keepdims=True), steps)
    return hollow((walk + walk.T) / 2)


def divided_by_roots_of_sums(affinity):
    sums = affinity.sum(axis=1)
    return affinity / np.sqrt(np.outer(sums, sums))


DISTANCES = {
    "line": euclidean(points(30, 1)),
    "plane": euclidean(points(30, 2)),
    "twelve points": euclidean(points(12, 2)),
    "space, float32": euclidean(points()).astype(np.float32),
    "space, printed": np.round(euclidean(points()), 2),
    "20 dimensions": euclidean(points(120, 20)),
    "squares": euclidean(points()) ** 2,
    "sums of absolute differences": squareform(pdist(points(), "cityblock")),
    "cosine": squareform(pdist(points(), "cosine")),
    "correlation": squareform(pdist(points(90, 10), "correlation")),
    "equal points": euclidean(np.repeat(points(30), 2, axis=0)),
    "in metres": 1e6 * euclidean(points()),
    "shortest paths": shortest_path(both_ways(neighbor_distances(points())), directed=False),
    "hops": shortest_path(both_ways(neighbor_distances(points())), directed=False, unweighted=True),
    "neighbors": both_ways(neighbor_distances(points())),
    "neighbors of 40": both_ways(neighbor_distances(points(40, 2), 6)),
    "within a radius": sp.csr_array(np.where(euclidean(points()) < 1.2, euclidean(points()), 0)),
}

AFFINITIES = {
    "complete": hollow(np.ones((20, 20))),
    "0/1": (both_ways(neighbor_distances(points())) > 0).astype(float),
    "grid without loops": hollow(Graph.from_grid((8, 8)).affinity),
    "gaussian": hollow(np.exp(-(euclidean(points()) ** 2))),
    "wide gaussian": hollow(np.exp(-((euclidean(points()) / 20) ** 2))),
    "inverse": hollow(1 / (1 + euclidean(points()))),
    "largest distance minus distance": hollow(euclidean(points()).max() - euclidean(points())),
    "correlation": hollow((1 + np.corrcoef(points(60, 30))) / 2),
    "neighbors, gaussian": hollow(Graph.from_points(points(), 8).affinity),
    "neighbors, adaptive": hollow(Graph.from_points(points(90, 20), 8, kernel="adaptive").affinity),
    "divided by roots of sums": divided_by_roots_of_sums(hollow(Graph.from_points(points(120, 50), 8).affinity)),
    "four steps": walked(points(120, 50)),
    "shared neighbors": hollow(
        (both_ways(neighbor_distances(points())) > 0).astype(float)
        @ (both_ways(neighbor_distances(points())) > 0).astype(float)
    ),
    "random": random_symmetric(np.random.default_rng(0).random((60, 60))),
    "counts": random_symmetric(np.random.default_rng(0).poisson(3.0, size=(60, 60)).astype(float)),
    "products": hollow(np.outer(*2 * [np.random.default_rng(0).gamma(2, size=60)])),
    "with a diagonal": euclidean(points()) + np.eye(90),
    "too few points": euclidean(points(5)),
    "empty": np.zeros((20, 20)),
}


@pytest.mark.parametrize("matrix", DISTANCES.values(), ids=DISTANCES)
def test_distances_are_recognized(matrix):
    matrix = sp.csr_array(matrix, dtype=np.float64)
    matrix.eliminate_zeros()
    assert looks_like_distances(matrix) == "certainly"
    with pytest.raises(InvalidInputError, match=r"affinities, which are large .*distances.*Graph\.from_distances"):
        Graph.from_affinity(matrix)


@pytest.mark.parametrize("matrix", AFFINITIES.values(), ids=AFFINITIES)
def test_affinities_are_not(matrix):
    matrix = sp.csr_array(matrix, dtype=np.float64)
    matrix.eliminate_zeros()
    assert looks_like_distances(matrix) == "no"
    Graph.from_affinity(matrix)


def test_one_way_distances_are_not_advised_to_be_symmetrized():
    with pytest.raises(InvalidInputError) as caught:
        Graph.from_affinity(neighbor_distances(points()))
    assert "A.T" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"symmetric affinity.*\(A \+ A\.T\) / 2"):
        Graph.from_affinity(sp.csr_array(np.triu(np.exp(-euclidean(points())), 1)))


def test_probable_distances_are_warned_of():
    """In 50 dimensions all neighbors are about as far: any order of the values keeps the triangle inequality."""
    matrix = both_ways(neighbor_distances(points(200, 50), 10))
    assert looks_like_distances(matrix) == "probably"
    with pytest.warns(GraphWarning, match=r"as distances are; if the values are distances, use Graph\.from_distances"):
        Graph.from_affinity(matrix)


def test_what_the_advice_makes_of_distances_is_an_affinity():
    distances = euclidean(points())
    assert Graph.from_affinity(np.exp(-((distances / np.median(distances)) ** 2))).n_points == 90
    sparse = both_ways(neighbor_distances(points()))
    sparse.data = np.exp(-((sparse.data / np.median(sparse.data)) ** 2))
    assert Graph.from_affinity(sparse).n_points == 90
