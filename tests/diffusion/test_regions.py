"""Regions around centers placed farthest first, against shortest paths from every point."""

from heapq import heappop, heappush

import numpy as np
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

import heatmover.diffusion.operator as operator_module
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.embedding.definition import nested_regions
from heatmover.graphs import Graph


def distances_from(lengths, source):
    """Dijkstra, plainly; ``lengths`` is a dense matrix with infinity where there is no edge."""
    distance = np.full(len(lengths), np.inf)
    distance[source] = 0.0
    queue = [(0.0, source)]
    while queue:
        reached, point = heappop(queue)
        if reached > distance[point]:
            continue
        for other in np.flatnonzero(np.isfinite(lengths[point])):
            if reached + lengths[point, other] < distance[other]:
                distance[other] = reached + lengths[point, other]
                heappush(queue, (distance[other], other))
    return distance


def edge_lengths(operator):
    """sqrt(-log S), with the floor at the smallest float32; in the operator's order."""
    matrix = operator.symmetric.tocoo()
    lengths = np.full(matrix.shape, np.inf)
    lengths[matrix.row, matrix.col] = np.sqrt(-np.log(np.clip(matrix.data, np.finfo(np.float32).tiny, 1)))
    return lengths


def farthest_first(operator, first, count):
    """Labels and centers by brute force, in the graph's order: the next center is the first of the farthest rows."""
    lengths = edge_lengths(operator)
    centers, distances = [first], [distances_from(lengths, first)]
    while len(centers) < count:
        remaining = np.min(distances, axis=0)
        remaining[centers] = -1
        centers.append(int(np.argmax(remaining)))
        distances.append(distances_from(lengths, centers[-1]))
    # The earliest of equally near centers; but a center is its own, even at distance zero from another.
    labels = np.argmin(distances, axis=0)
    labels[centers] = np.arange(count)
    placed = np.empty_like(labels)
    placed[operator.order] = labels
    return placed, operator.order[centers]


def regions_of(graph, counts, seed=0):
    return nested_regions(DiffusionOperator.from_graph(graph), counts, np.random.default_rng(seed))


def assert_a_partition_within_components(operator, regions):
    assert regions.labels.shape == (operator.n_points,)
    assert sorted(set(regions.labels)) == list(range(regions.count))
    np.testing.assert_array_equal(regions.labels[regions.centers], np.arange(regions.count))
    component = np.empty_like(operator.component)
    component[operator.order] = operator.component
    np.testing.assert_array_equal(component, component[regions.centers][regions.labels])


def cloud(n=120):
    return Graph.from_points(np.random.default_rng(6).normal(size=(n, 2)), n_neighbors=7)


def test_cells_are_those_of_brute_force(graph):
    """Hostile graphs, with many ties between equal weights."""
    operator = DiffusionOperator.from_graph(graph)
    counts = [count for count in (1, 2, 3, 5, 8, 13, 21, operator.n_points) if count >= operator.n_components]
    for seed in range(3):
        first = int(np.random.default_rng(seed).integers(operator.n_points))
        for count, regions in zip(counts, regions_of(graph, counts, seed), strict=True):
            labels, centers = farthest_first(operator, first, min(count, operator.n_points))
            np.testing.assert_array_equal(regions.centers, centers)
            np.testing.assert_array_equal(regions.labels, labels)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**31), levels=st.integers(1, 4), share=st.floats(0.02, 0.6))
def test_cells_of_random_weights_are_those_of_brute_force(seed, levels, share):
    """Few different weights make many ties, few edges many components."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.integers(1, levels + 1, size=(30, 30)) * (rng.random((30, 30)) < share))
    graph = Graph.from_affinity(upper + np.triu(upper, 1).T, lazy=False)
    operator = DiffusionOperator.from_graph(graph)
    count = int(rng.integers(operator.n_components, 31))
    (regions,) = regions_of(graph, [count], seed)
    first = int(np.random.default_rng(seed).integers(30))
    labels, centers = farthest_first(operator, first, count)
    np.testing.assert_array_equal(regions.centers, centers)
    np.testing.assert_array_equal(regions.labels, labels)


def test_every_cell_holds_its_center_and_keeps_to_one_component(graph):
    operator = DiffusionOperator.from_graph(graph)
    for regions in nested_regions(operator, [1, 3, 10, 10**6], np.random.default_rng(0)):
        assert_a_partition_within_components(operator, regions)


def test_fewer_centers_are_among_more():
    counts = [40, 5, 17, 120, 1]
    partitions = regions_of(cloud(), counts)
    assert [regions.count for regions in partitions] == counts
    most = partitions[3]
    for regions in partitions:
        np.testing.assert_array_equal(regions.centers, most.centers[: regions.count])


def test_the_same_count_twice_is_the_same_partition():
    one, other = regions_of(cloud(), [9, 9])
    np.testing.assert_array_equal(one.labels, other.labels)


def test_counts_are_clipped_to_components_and_points():
    graph = Graph.from_affinity(block_diag(*[np.ones((5, 5))] * 4))
    assert [regions.count for regions in regions_of(graph, [0, 1, 4, 7, 20, 21, 999])] == [4, 4, 4, 7, 20, 20, 20]


def test_as_many_cells_as_points_is_every_point_its_own(graph):
    (regions,) = regions_of(graph, [graph.n_points])
    assert sorted(regions.labels) == list(range(graph.n_points))
    np.testing.assert_array_equal(regions.centers[regions.labels], np.arange(graph.n_points))


def test_centers_spread_evenly():
    """On a row of 1,000 points no region of 50 is much larger than its share."""
    (regions,) = regions_of(Graph.from_grid((1000,)), [50])
    assert np.bincount(regions.labels).max() <= 4 * 1000 / 50


def test_thousands_of_tiny_components():
    """As many centers as components at least, and the infinite distance between components is no trouble."""
    graph = Graph.from_affinity(sp.kron(sp.eye(4000), np.array([[1.0, 0.5], [0.5, 1.0]])))
    operator = DiffusionOperator.from_graph(graph)
    coarse, fine = nested_regions(operator, [1, 6000], np.random.default_rng(0))
    assert (coarse.count, fine.count) == (4000, 6000)
    assert (np.bincount(coarse.labels) == 2).all()
    assert_a_partition_within_components(operator, fine)


def test_the_seed_decides():
    one, same = (regions_of(cloud(), [20], seed=3)[0] for _ in range(2))
    np.testing.assert_array_equal(one.labels, same.labels)
    np.testing.assert_array_equal(one.centers, same.centers)
    others = [regions_of(cloud(), [20], seed=seed)[0] for seed in range(4, 8)]
    assert any(not np.array_equal(one.centers, other.centers) for other in others)


def test_cells_are_in_the_graphs_order_of_points(monkeypatch):
    """A reordered operator breaks ties otherwise, but here no two distances are equal."""
    plain = DiffusionOperator.from_graph(cloud())
    monkeypatch.setattr(operator_module, "REORDER_ABOVE", 10)
    moved = DiffusionOperator.from_graph(cloud())
    assert not np.array_equal(moved.order, plain.order)

    class First:
        """Draws the same point, wherever it is stored."""

        def __init__(self, operator):
            self.place = int(np.flatnonzero(operator.order == 17)[0])

        def integers(self, high):
            return self.place

    (here,), (there,) = (nested_regions(operator, [25], First(operator)) for operator in (plain, moved))
    np.testing.assert_array_equal(here.centers, there.centers)
    np.testing.assert_array_equal(here.labels, there.labels)
    assert here.centers[0] == 17


def test_affinities_that_vanish_in_single_precision_are_still_edges():
    """The floor under S keeps the distance finite, so that the component has one center at first."""
    affinity = np.eye(4)
    affinity[[0, 1, 2], [1, 2, 3]] = affinity[[1, 2, 3], [0, 1, 2]] = [0.5, 1e-60, 0.5]
    graph = Graph.from_affinity(affinity)
    operator = DiffusionOperator.from_graph(graph)
    one, two = nested_regions(operator, [1, 2], np.random.default_rng(0))
    assert (one.count, two.count) == (operator.n_components, 2)
    assert len(set(two.labels[:2])) == len(set(two.labels[2:])) == 1
