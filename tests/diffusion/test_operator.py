"""The operator against dense formulas."""

import numpy as np
import pytest

import heatmover.diffusion.operator as operator_module
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator
from heatmover.graphs import Graph


def test_no_eigenvalue_lies_below_the_bound_and_the_bound_is_tight(graph):
    operator = DiffusionOperator.from_graph(graph)
    values = np.clip(np.linalg.eigvalsh(operator.symmetric.toarray()), -1, 1)  # rounding leaves the interval
    assert -1 <= operator.lowest <= min(values[0], 0)
    # Up to 60 points it is computed; beyond, the margin of the Lanczos estimate.
    assert operator.lowest >= min(values[0], 0) - (1e-9 if len(values) <= 60 else 0.15)
    assert values[-1] == pytest.approx(1)


@pytest.mark.parametrize("n_points", [100, 700])
def test_the_lanczos_bound_holds_and_helps(n_points):
    points = np.random.default_rng(n_points).normal(size=(n_points, 2))
    operator = DiffusionOperator.from_graph(Graph.from_points(points, n_neighbors=20))
    lowest = np.linalg.eigvalsh(operator.symmetric.toarray())[0]
    assert lowest - 0.15 < operator.lowest <= lowest


@pytest.mark.parametrize("anisotropy", [0.0, 0.5, 1.0])
def test_anisotropic_normalization(affinity, graph, anisotropy):
    loops = affinity + np.diag(affinity.sum(axis=1) == 0)
    q = loops.sum(axis=1)
    normed = loops * (q[:, None] * q[None, :]) ** -anisotropy
    d = normed.sum(axis=1)
    operator = DiffusionOperator.from_graph(graph, anisotropy=anisotropy)
    expected = (normed / np.sqrt(np.outer(d, d)))[operator.order][:, operator.order]
    np.testing.assert_allclose(operator.symmetric.toarray(), expected, rtol=1e-10)
    # Each component has a unit of its own.
    totals, found = (np.bincount(operator.component, weights=each) for each in (d[operator.order], operator.degree))
    law, own = d[operator.order] / totals[operator.component], operator.degree / found[operator.component]
    np.testing.assert_allclose(own, law, rtol=1e-10)


def test_top_vectors_are_eigenvectors_to_one(graph):
    operator = DiffusionOperator.from_graph(graph)
    np.testing.assert_allclose(operator.symmetric @ operator.top, operator.top, atol=1e-12)
    assert operator.stationary.sum() == pytest.approx(operator.n_components)


def test_a_reordered_operator_gives_the_same_densities(monkeypatch):
    points = np.random.default_rng(1).normal(size=(300, 2))
    graph = Graph.from_points(points, n_neighbors=10)
    masses = np.eye(300)[:, [0, 17, 299]]
    plain = DiffusionOperator.from_graph(graph)
    monkeypatch.setattr(operator_module, "REORDER_ABOVE", 10)
    moved = DiffusionOperator.from_graph(graph)
    assert not np.array_equal(moved.order, np.arange(300))
    assert sorted(moved.order) == list(range(300))
    np.testing.assert_allclose(moved.stationary, plain.stationary)
    np.testing.assert_allclose(moved.component_masses(masses.T), plain.component_masses(masses.T))
    scales = range(8)
    for here, there in zip(
        ChebyshevDiffuser(plain, adjoint=True, tol=1e-10).diffuse(masses, scales),
        ChebyshevDiffuser(moved, adjoint=True, tol=1e-10).diffuse(masses, scales),
        strict=True,
    ):
        np.testing.assert_allclose(here, there, atol=1e-10)


def test_component_masses_of_sparse_and_dense_rows(graph, measures):
    import scipy.sparse as sp

    operator = DiffusionOperator.from_graph(graph)
    dense = operator.component_masses(measures)
    np.testing.assert_allclose(dense.sum(axis=1), 1)
    np.testing.assert_allclose(operator.component_masses(sp.csr_array(measures)), dense)


def test_evenness_is_judged_within_components():
    """One isolated point must not make a large even graph look uneven."""
    import scipy.sparse as sp

    grid = Graph.from_grid((400,))
    beside = Graph.from_affinity(sp.block_diag([grid.affinity, np.ones((1, 1))]))
    evenness = DiffusionOperator.from_graph(grid).evenness
    assert 0.3 < evenness < 1
    assert DiffusionOperator.from_graph(beside).evenness == pytest.approx(evenness)


def scattered(n_points=90, n_edges=110, seed=0):
    """A sparse symmetric matrix with several components and isolated points."""
    import scipy.sparse as sp

    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, n_points, (2, n_edges))
    half = sp.coo_array((rng.random(n_edges), (rows, columns)), shape=(n_points, n_points))
    matrix = sp.csr_array(half + half.T + sp.eye_array(n_points))
    matrix.sort_indices()
    return matrix


@pytest.mark.parametrize("seed", range(5))
def test_a_permuted_affinity_is_that_of_the_same_nodes(seed):
    matrix = scattered(seed=seed)
    order = np.random.default_rng(seed).permutation(matrix.shape[0])
    moved = operator_module._permuted(matrix, order)
    np.testing.assert_array_equal(moved.toarray(), matrix.toarray()[np.ix_(order, order)])
    assert moved.has_canonical_format


@pytest.mark.parametrize("seed", range(5))
def test_components_are_those_of_scipy_numbered_by_their_first_node(seed):
    from scipy.sparse.csgraph import connected_components

    matrix = scattered(seed=seed)
    count, component = operator_module._components(matrix)
    expected_count, expected = connected_components(matrix, directed=False)
    assert count == expected_count > 5
    np.testing.assert_array_equal(component, expected)
