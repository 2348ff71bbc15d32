"""Coarser graphs against their definition on dense matrices, and the search for eigenvectors that begins on them."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.diffusion import coarsening, spectral
from heatmover.diffusion.coarsening import coarsen, hierarchy, may_coarsen
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.rank import threshold
from heatmover.graphs import Graph

THETA = 0.97


def sheet(n=1010, seed=1):
    rng = np.random.default_rng(seed)
    return Graph.from_points(rng.random((n, 2)) * (2, 1), n_neighbors=12)


def two_sheets():
    matrix = sheet(500).node_affinity
    return Graph.from_affinity(sp.block_diag([matrix, matrix]))


def with_outliers():
    """A sheet with points that hang on it by a thread: each is an eigenvector of its own."""
    matrix = sheet(1010).node_affinity
    links = sp.csr_array((np.full(5, 1e-7), (np.arange(5), 200 * np.arange(5))), shape=(5, matrix.shape[0]))
    return Graph.from_affinity(sp.block_array([[sp.eye_array(5), links], [links.T, matrix]]))


GRAPHS = {
    "sheet": sheet,
    "two sheets": two_sheets,
    "outliers": with_outliers,
    "grid": lambda: Graph.from_grid((26, 39)),
}


@pytest.fixture(scope="module", params=GRAPHS, ids=str)
def operator(request):
    return DiffusionOperator.from_graph(GRAPHS[request.param]())


def test_a_coarse_operator_is_the_fine_one_between_maps_with_orthonormal_columns(operator):
    coarse, labels, shares = coarsen(operator, THETA)
    assert 2 * coarse.n_points < operator.n_points
    joined = np.zeros((operator.n_points, coarse.n_points))
    joined[np.arange(operator.n_points), labels] = shares
    np.testing.assert_allclose(joined.T @ joined, np.eye(coarse.n_points), atol=1e-12)
    dense = joined.T @ operator.symmetric.toarray() @ joined
    np.testing.assert_allclose(coarse.symmetric.toarray(), dense, atol=1e-12)
    np.testing.assert_allclose(joined.T @ operator.top, coarse.top, atol=1e-12)
    np.testing.assert_allclose(coarse.symmetric @ coarse.top, coarse.top, atol=1e-12)
    vectors = np.random.default_rng(0).standard_normal((coarse.n_points, 3))
    np.testing.assert_allclose(coarsen(operator, THETA).prolong(vectors), joined @ vectors, atol=1e-12)


def test_its_eigenvalues_lie_between_those_of_the_fine_one(operator):
    coarse = coarsen(operator, THETA).operator
    fine, found = (np.linalg.eigvalsh(each.symmetric.toarray())[::-1] for each in (operator, coarse))
    assert (found <= fine[: found.size] + 1e-12).all()
    assert found[-1] >= fine[-1] - 1e-12
    assert found[-1] >= coarse.lowest


def test_no_group_reaches_over_components_or_is_too_large(operator):
    coarse, labels, _ = coarsen(operator, THETA)
    np.testing.assert_array_equal(coarse.component[labels], operator.component)
    sizes = np.bincount(labels)
    # What is left over joins a group that is complete.
    assert sizes.min() >= 1
    assert np.median(sizes) >= coarsening.GROUP / 2
    assert sizes.max() <= 3 * coarsening.GROUP


def test_points_from_which_mass_hardly_leaves_stay_alone():
    operator = DiffusionOperator.from_graph(with_outliers())
    labels = coarsen(operator, THETA).labels
    own = operator.symmetric.diagonal()
    alone = np.flatnonzero(own > 1 - 4 * (1 - THETA))
    assert alone.size >= 5
    assert (np.bincount(labels)[labels[alone]] == 1).all()


def test_levels_shrink_and_keep_some_nodes_for_every_vector(operator, monkeypatch):
    monkeypatch.setattr(coarsening, "DENSE", 50)
    sizes = [operator.n_points, *(level.operator.n_points for level in hierarchy(operator, 20, THETA))]
    assert len(sizes) > 1
    assert all(2 * after <= before for before, after in pairwise(sizes))
    assert sizes[-1] >= coarsening.NODES_PER_VECTOR * 20
    assert hierarchy(operator, operator.n_points // 4, THETA) == []
    assert may_coarsen(operator.n_points, 20)
    assert not may_coarsen(operator.n_points, operator.n_points // 4)


def test_a_graph_that_cannot_be_coarsened_has_no_levels(monkeypatch):
    monkeypatch.setattr(coarsening, "DENSE", 50)
    loops = Graph.from_affinity(sp.eye_array(300) + 1e-9 * sp.diags_array(np.ones(299), offsets=1)
                                + 1e-9 * sp.diags_array(np.ones(299), offsets=-1))  # fmt: skip
    assert hierarchy(DiffusionOperator.from_graph(loops), 10, THETA) == []


@pytest.fixture(scope="module")
def eigenpairs(operator):
    """All eigenpairs, top eigenvectors left out."""
    top = np.zeros((operator.n_points, operator.n_components))
    top[np.arange(operator.n_points), operator.component] = operator.top
    return np.linalg.eigh(operator.symmetric.toarray() - top @ top.T)


@pytest.mark.parametrize("dense", [30, 700])
@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_factors_that_begin_on_coarser_graphs_keep_their_bounds(operator, eigenpairs, tol, dense, monkeypatch):
    values, vectors = eigenpairs
    starts, plain = [], spectral._coarse_start
    for name, value in (
        ("heatmover.diffusion.coarsening.DENSE", dense),
        ("heatmover.diffusion.spectral.DENSE", dense),
        ("heatmover.diffusion.spectral.SMALL", 100),
        ("heatmover.diffusion.spectral._coarse_start", lambda *each: starts.append(plain(*each)) or starts[-1]),
    ):
        monkeypatch.setattr(name, value)
    rank = int((values > threshold(9, tol / spectral.BELOW)).sum())
    factors = spectral.spectral_factors(operator, 9, rank, tol=tol, rng=np.random.default_rng(0), last=14)
    assert factors is not None
    assert len(starts) == 1
    assert starts[0] is not None
    for factor in (factors[0], factors[-1]):
        error = (vectors * values ** float(2**factor.scale)) @ vectors.T - factor.basis @ factor.core @ factor.basis.T
        assert np.abs(np.linalg.eigvalsh(error)).max() <= factor.bound + 1e-12 <= tol + 1e-12


def test_starts_are_the_same_for_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(coarsening, "DENSE", 100)
    monkeypatch.setattr(spectral, "ROWS_AT_ONCE", 64)
    operator = DiffusionOperator.from_graph(sheet())
    one, three = (spectral._coarse_start(operator, 24, 0.98, np.random.default_rng(0), threads) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)
