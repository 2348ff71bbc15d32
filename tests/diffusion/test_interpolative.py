"""Factors on nested skeletons, each dyadic power against the dense one."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.diffusion import interpolative
from heatmover.diffusion.interpolative import interpolative_factors
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.graphs import Graph

LAST = 18


def ring(n=300):
    angles = 2 * np.pi * np.sort(np.random.default_rng(0).random(n))
    return Graph.from_points(np.c_[np.cos(angles), np.sin(angles)], n_neighbors=10)


def swiss_roll(n=400):
    rng = np.random.default_rng(1)
    angle, height = 1.5 * np.pi * (1 + 2 * rng.random(n)), 20 * rng.random(n)
    return Graph.from_points(np.c_[angle * np.cos(angle), angle * np.sin(angle), height], n_neighbors=12)


def clusters():
    """Clusters that hang together by threads: eigenvalues so near to 1 that an error of 1e-10 shows at 2^24 steps."""
    points = np.random.default_rng(2).normal(size=(300, 2)) + np.repeat([0, 20, 40], 100)[:, None]
    affinity = Graph.from_points(points, n_neighbors=10).affinity.tolil()
    for one, other in [(0, 100), (100, 200)]:
        affinity[one, other] = affinity[other, one] = 1e-7
    return Graph.from_affinity(affinity.tocsr())


MANIFOLDS = {"ring": ring, "grid": lambda: Graph.from_grid((20, 15)), "swiss roll": swiss_roll, "clusters": clusters}


@pytest.fixture(params=MANIFOLDS, ids=str)
def manifold(request):
    return DiffusionOperator.from_graph(MANIFOLDS[request.param]())


@pytest.fixture
def widths(monkeypatch):
    """Numbers of columns that the operator's powers were applied to."""
    counts = []
    plain = interpolative.deflated_power

    def counted(operator, block, *args, **options):
        counts.append(block.shape[1])
        return plain(operator, block, *args, **options)

    monkeypatch.setattr(interpolative, "deflated_power", counted)
    return counts


def dense_powers(operator, scales):
    """Powers less their part on the top eigenvectors, from all eigenvalues of what is left."""
    top = np.zeros((operator.n_points, operator.n_components))
    top[np.arange(operator.n_points), operator.component] = operator.top
    values, vectors = np.linalg.eigh(operator.symmetric.toarray() - top @ top.T)
    return [(vectors * values ** float(2**scale)) @ vectors.T for scale in scales]


def factorize(operator, first, *, tol=1e-3, last=LAST, rank=10, seed=0, **options):
    return interpolative_factors(operator, first, rank, tol=tol, rng=np.random.default_rng(seed), last=last, **options)


def skeleton(factor):
    """The point of each column: the row of the basis that is its unit vector."""
    unit = np.eye(factor.rank)
    return {int(np.flatnonzero((factor.basis == row).all(axis=1))[0]) for row in unit}


def assert_within_bounds(operator, factors, first, tol, last=LAST):
    scales = range(first, last + 1)
    assert [factor.scale for factor in factors] == list(scales)
    for factor, power in zip(factors, dense_powers(operator, scales), strict=True):
        assert factor.basis.shape == (operator.n_points, factor.rank)
        assert factor.core.shape == (factor.rank, factor.rank)
        np.testing.assert_allclose(factor.core, factor.core.T, atol=1e-13)
        error = np.abs(np.linalg.eigvalsh(power - factor.basis @ factor.core @ factor.basis.T)).max()
        # The oracle rounds as well.
        assert error <= factor.bound + 2**factor.scale * np.finfo(float).eps
        assert factor.bound <= tol


@pytest.mark.parametrize(("first", "tol"), [(0, 1e-3), (1, 1e-1), (3, 1e-6), (5, 1e-2)])
def test_every_power_of_a_hostile_graph_is_within_its_bound(graph, first, tol):
    operator = DiffusionOperator.from_graph(graph)
    assert_within_bounds(operator, factorize(operator, first, tol=tol), first, tol)


@pytest.mark.parametrize(("first", "tol"), [(0, 1e-3), (3, 1e-2), (4, 1e-7), (7, 1e-4)])
def test_every_power_of_a_manifold_is_within_its_bound(manifold, first, tol):
    assert_within_bounds(manifold, factorize(manifold, first, tol=tol), first, tol)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    first=st.integers(0, 8),
    rank=st.integers(0, 60),
    tol=st.sampled_from([0.3, 1e-2, 1e-4, 1e-6]),
)
def test_no_draw_and_no_guess_of_the_rank_breaks_the_bound(seed, first, rank, tol):
    rng = np.random.default_rng(seed)
    affinity = np.exp(-rng.exponential(rng.uniform(1, 30), size=(25, 25)))
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity + affinity.T))
    factors = factorize(operator, first, tol=tol, rank=rank, seed=seed)
    assert_within_bounds(operator, factors, first, tol)


def test_the_rank_is_that_of_the_power(manifold):
    tol = 1e-3
    factors = factorize(manifold, 3, tol=tol)
    for factor, power in zip(factors, dense_powers(manifold, range(3, LAST + 1)), strict=True):
        size = np.abs(np.linalg.eigvalsh(power))
        assert np.count_nonzero(size > tol) <= factor.rank <= np.count_nonzero(size > tol / 3)


def test_skeletons_are_nested_and_the_basis_interpolates_between_them(manifold):
    skeletons = [skeleton(factor) for factor in factorize(manifold, 2)]
    assert len(skeletons[0]) > 30
    for coarser, finer in zip(skeletons[1:], skeletons[:-1], strict=True):
        assert coarser <= finer


def test_the_core_is_the_power_between_the_points_of_the_skeleton(manifold):
    factor = factorize(manifold, 4, last=4)[0]
    points = [int(np.flatnonzero((factor.basis == row).all(axis=1))[0]) for row in np.eye(factor.rank)]
    power = dense_powers(manifold, [4])[0]
    np.testing.assert_allclose(factor.core, power[np.ix_(points, points)], atol=1e-3)
    assert np.abs(factor.core).max() > 1e-2


def test_errors_do_not_double_from_scale_to_scale():
    """Twenty squarings would take six digits if only the whole error were bounded."""
    operator = DiffusionOperator.from_graph(clusters())
    factors = factorize(operator, 4, last=24)
    assert operator.n_components == 1
    assert factors[-1].rank == 2
    assert factors[-1].bound < factors[0].bound
    assert_within_bounds(operator, factors, 4, 1e-3, last=24)


def test_full_rank():
    operator = DiffusionOperator.from_graph(
        Graph.from_affinity(np.exp(-np.abs(np.subtract.outer(*[np.arange(12)] * 2))))
    )
    factor = factorize(operator, 0, tol=1e-8, last=0)[0]
    # All but the top eigenvector.
    assert factor.rank == 11
    assert_within_bounds(operator, [factor], 0, 1e-8, last=0)


def test_rank_one():
    affinity = np.kron(np.eye(2), np.ones((6, 6)))
    affinity[5, 6] = affinity[6, 5] = 1e-3
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
    factors = factorize(operator, 8, rank=1, last=10)
    assert [factor.rank for factor in factors] == [1, 1, 1]
    assert_within_bounds(operator, factors, 8, 1e-3, last=10)


@pytest.mark.parametrize("affinity", [np.ones((1, 1)), np.ones((40, 40)), np.eye(40)], ids=["point", "clique", "dust"])
def test_nothing_but_top_eigenvectors_is_rank_zero(affinity):
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
    for factor in factorize(operator, 1, rank=0):
        assert factor.rank == 0
        assert factor.basis.shape == (len(affinity), 0)
        assert factor.bound <= 1e-6


def test_thousands_of_tiny_components_cost_no_rank(widths):
    """Their eigenvalue 1 is known; a sketch that looked for it would need 3,000 columns."""
    pairs = np.repeat(np.arange(3000), 2)
    rows = np.arange(6000)
    other = rows ^ 1
    weight = 0.5 + 0.4 * np.random.default_rng(0).random(3000)[pairs]
    affinity = sp.csr_array((np.r_[np.ones(6000), weight], (np.r_[rows, rows], np.r_[rows, other])))
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
    assert operator.n_components == 3000
    factors = factorize(operator, 6)
    assert [factor.rank for factor in factors] == [0] * len(factors)
    assert sum(widths) <= 200


def test_a_rank_beyond_the_limit_is_told_and_costs_no_more_than_the_limit(widths):
    operator = DiffusionOperator.from_graph(Graph.from_grid((30, 30)))
    assert factorize(operator, 1, most=100) is None
    assert sum(widths) == 100
    assert factorize(operator, 6, most=100) is not None


def test_a_guess_that_is_too_small_grows():
    operator = DiffusionOperator.from_graph(Graph.from_grid((30, 30)))
    small, good = (factorize(operator, 4, rank=rank) for rank in (1, 150))
    assert [factor.rank for factor in small] == [factor.rank for factor in good]


def test_a_tolerance_below_rounding_is_told():
    operator = DiffusionOperator.from_graph(clusters())
    assert factorize(operator, 4, tol=1e-14, last=24) is None


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_same_seed_same_bits(n_threads):
    operator = DiffusionOperator.from_graph(swiss_roll())
    first, second = factorize(operator, 4), factorize(operator, 4, n_threads=n_threads)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.basis, other.basis)
        np.testing.assert_array_equal(one.core, other.core)
        assert one.bound == other.bound


def test_other_seed_other_sketch_same_power():
    operator = DiffusionOperator.from_graph(swiss_roll())
    first, second = (factorize(operator, 4, seed=seed)[0] for seed in (0, 1))
    assert not np.array_equal(first.core, second.core)
    difference = first.basis @ first.core @ first.basis.T - second.basis @ second.core @ second.basis.T
    assert np.linalg.norm(difference, 2) <= first.bound + second.bound
