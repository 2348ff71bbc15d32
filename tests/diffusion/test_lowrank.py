"""Coarse scales from factors, fine ones from polynomials: each against what it is made of."""

from functools import cache

import numpy as np
import pytest

import heatmover.diffusion.operator as operator_module
from heatmover._base.compiled.lowrank import combine, coordinates
from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.interpolative import interpolative_factors
from heatmover.diffusion.lowrank import Factor, LowRankDiffuser, deflated_power, spectral_factors
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator, rounding
from heatmover.graphs import Graph

SCALES = range(11)
FIRST = 4


def islands():
    """Two clouds and a lone point: three components."""
    points = np.random.default_rng(3).normal(size=(221, 2))
    points[100:] += 30
    points[220] += 300
    affinity = Graph.from_points(points, n_neighbors=9).affinity.tolil()
    affinity[220, :220] = affinity[:220, 220] = 0
    return Graph.from_affinity(affinity.tocsr())


GRAPHS = {
    "cloud": lambda: Graph.from_points(np.random.default_rng(2).normal(size=(500, 2)), n_neighbors=10),
    "islands": islands,
}
BUILDERS = {"spectral": spectral_factors, "interpolative": interpolative_factors}


@pytest.fixture(scope="module", params=GRAPHS)
def operator(request):
    return DiffusionOperator.from_graph(GRAPHS[request.param]())


@cache
def factors_of(operator, name):
    return BUILDERS[name](operator, FIRST, 90, tol=1e-4, rng=np.random.default_rng(0), last=SCALES[-1])


@pytest.fixture(params=BUILDERS)
def factors(request, operator):
    return factors_of(operator, request.param)


@pytest.fixture(params=[np.float64, np.float32], ids=["float64", "float32"])
def fine(request, operator):
    return ChebyshevDiffuser(operator, adjoint=True, tol=1e-4, dtype=request.param)


def masses_of(operator, width=11, seed=5):
    rows = np.random.default_rng(seed).random((operator.n_points, width)) ** 10
    rows[:, 0] = np.eye(operator.n_points)[0]
    return rows / rows.sum(axis=0)


# --- densities ----------------------------------------------------------------------------------------------------


def test_coarse_scales_together_are_those_one_by_one_to_the_bit(operator, factors, fine):
    """Bases that are parts of each other share their coordinates."""
    masses, diffuser = masses_of(operator), LowRankDiffuser(fine, factors)
    for scale, found in zip(SCALES[FIRST:], diffuser.diffuse(masses, SCALES[FIRST:]), strict=True):
        np.testing.assert_array_equal(found, next(diffuser.diffuse(masses, range(scale, scale + 1))))


def test_fine_scales_are_those_of_the_polynomials_to_the_bit(operator, factors, fine):
    masses = masses_of(operator)
    diffuser = LowRankDiffuser(fine, factors)
    assert diffuser.first == FIRST
    both = zip(range(FIRST), diffuser.diffuse(masses, SCALES), fine.diffuse(masses, SCALES), strict=False)
    for _, found, expected in both:
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(diffuser.diffuse(masses, range(3)), fine.diffuse(masses, range(3)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("adjoint", [True, False])
def test_coarse_scales_are_the_factor_and_the_known_parts(operator, factors, adjoint):
    masses = masses_of(operator)
    diffuser = LowRankDiffuser(ChebyshevDiffuser(operator, adjoint=adjoint, tol=1e-4), factors)
    conjugate = operator.top if adjoint else 1 / operator.top
    start = masses[operator.order] / conjugate[:, None]
    known = np.zeros((operator.n_points, operator.n_components))
    known[np.arange(operator.n_points), operator.component] = operator.top
    scales = range(FIRST, SCALES[-1] + 1)
    for factor, density in zip(factors, diffuser.diffuse(masses, scales), strict=True):
        product = factor.basis @ (factor.core @ (factor.basis.T @ start))
        expected = conjugate[:, None] * (product + known @ (known.T @ (start - product)))
        np.testing.assert_allclose(density[operator.order], expected, atol=1e-12 * np.abs(expected).max())


def test_all_scales_agree_with_dense_powers(operator, factors, fine):
    masses = masses_of(operator)
    law = operator.stationary[:, None]
    norm = np.sqrt((masses**2 / law).sum(axis=0))
    diffuser = LowRankDiffuser(fine, factors)
    bounds = diffuser.error_bound(SCALES)
    assert (bounds <= 1e-4 + 8 * rounding(8, fine.dtype)).all()
    exact = ExactDiffuser(operator, adjoint=True).diffuse(masses, SCALES)
    for bound, found, expected in zip(bounds, diffuser.diffuse(masses, SCALES), exact, strict=True):
        assert found.dtype == fine.dtype
        error = np.sqrt(((found - expected) ** 2 / law).sum(axis=0))
        assert (error <= (bound + 1e-6 * (fine.dtype == np.float32) + 1e-10) * norm).all()


def test_bounds_are_the_polynomials_and_the_factors(operator, factors, fine):
    bounds = LowRankDiffuser(fine, factors).error_bound(SCALES)
    np.testing.assert_array_equal(bounds[:FIRST], fine.error_bound(range(FIRST)))
    for factor, bound in zip(factors, bounds[FIRST:], strict=True):
        # Rounding does not grow with the scale.
        assert factor.bound < bound <= factor.bound + 16 * np.finfo(fine.dtype).eps


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 24, 65])
def test_bits_of_a_column_do_not_depend_on_the_others(operator, factors, fine, width):
    masses = masses_of(operator, 65)
    diffuser = LowRankDiffuser(fine, factors)
    together = diffuser.diffuse(masses, range(3, 8))
    for whole, some in zip(together, diffuser.diffuse(masses[:, -width:], range(3, 8)), strict=True):
        np.testing.assert_array_equal(whole[:, -width:], some)


def test_densities_do_not_depend_on_the_scales_asked_for(operator, factors, fine):
    masses = masses_of(operator)
    diffuser = LowRankDiffuser(fine, factors)
    everything = list(diffuser.diffuse(masses, SCALES))
    for scales in (range(7, 8), range(FIRST, 9), range(10, 11)):
        for scale, density in zip(scales, diffuser.diffuse(masses, scales), strict=True):
            np.testing.assert_array_equal(density, everything[scale])


def test_progressive_densities_are_the_direct_ones(operator, factors, fine):
    masses = masses_of(operator)
    diffuser = LowRankDiffuser(fine, factors)
    progressive = diffuser.diffuse_progressively(masses)
    for scale, direct in zip(SCALES, diffuser.diffuse(masses, SCALES), strict=True):
        found = next(progressive)
        if scale >= FIRST:
            np.testing.assert_array_equal(found, direct)
        else:
            np.testing.assert_allclose(found, direct, atol=1e-3 * np.abs(direct).max())
    # The last factor ends it.
    assert next(progressive, None) is None


def test_a_reordered_operator_gives_the_same_densities(monkeypatch):
    graph = GRAPHS["cloud"]()
    plain = DiffusionOperator.from_graph(graph)
    monkeypatch.setattr(operator_module, "REORDER_ABOVE", 10)
    moved = DiffusionOperator.from_graph(graph)
    masses = masses_of(plain)
    here, there = (
        LowRankDiffuser(
            ChebyshevDiffuser(one, adjoint=True, tol=1e-8),
            spectral_factors(one, FIRST, 250, tol=1e-8, rng=np.random.default_rng(0), last=10),
        ).diffuse(masses, SCALES)
        for one in (plain, moved)
    )
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


def test_the_masses_are_left_alone(operator, factors, fine):
    masses = masses_of(operator)
    before = masses.copy()
    list(LowRankDiffuser(fine, factors).diffuse(masses, SCALES))
    np.testing.assert_array_equal(masses, before)


def test_a_basis_without_vectors_gives_the_stationary_law(operator, fine):
    nothing = Factor(2, np.empty((operator.n_points, 0)), np.empty((0, 0)), 0.0)
    diffuser = LowRankDiffuser(fine, [nothing])
    assert diffuser.rank == 0
    masses = masses_of(operator)
    (density,) = diffuser.diffuse(masses, range(2, 3))
    parts = operator.component_masses(masses.T)
    component = np.empty_like(operator.component)
    component[operator.order] = operator.component
    np.testing.assert_allclose(density, operator.stationary[:, None] * parts.T[component], atol=1e-6)


# --- powers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0, 1, 5, 10])
def test_a_deflated_power_is_the_dense_one(graph, scale):
    operator = DiffusionOperator.from_graph(graph)
    known = np.zeros((operator.n_points, operator.n_components))
    known[np.arange(operator.n_points), operator.component] = operator.top
    values, vectors = np.linalg.eigh(operator.symmetric.toarray() - known @ known.T)
    power = (vectors * values ** float(2**scale)) @ vectors.T
    block = np.random.default_rng(0).standard_normal((operator.n_points, 5))
    before = block.copy()
    for tol in (1e-2, 1e-9):
        found = deflated_power(operator, block, scale, tol)
        error = np.linalg.norm(found - power @ block, axis=0)
        assert (error <= (tol + 1e-10) * np.linalg.norm(block, axis=0)).all()
        np.testing.assert_allclose(known.T @ found, 0, atol=1e-12)
    np.testing.assert_array_equal(block, before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_do_not_change_a_bit_of_a_power():
    operator = DiffusionOperator.from_graph(Graph.from_grid((20, 20)))
    block = np.random.default_rng(0).standard_normal((400, 37))
    alone = deflated_power(operator, block, 6, 1e-6)
    for n_threads in (2, 5):
        np.testing.assert_array_equal(deflated_power(operator, block, 6, 1e-6, n_threads=n_threads), alone)


# --- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("n_points", [1, 3, 255, 256, 259, 700])
def test_products_with_a_basis(dtype, rank, n_points):
    """Passes of four rows and of 256 rows, and what is left over."""
    rng = np.random.default_rng(rank + n_points)
    basis, block = (rng.standard_normal((n_points, width)).astype(dtype) for width in (rank, 6))
    inner = np.full((rank, 6), np.nan)
    coordinates(basis, block, inner)
    room = 20 * n_points * np.finfo(dtype).eps
    np.testing.assert_allclose(inner, basis.T.astype(float) @ block.astype(float), atol=room)
    outer = np.full((n_points, 6), np.nan, dtype)
    combine(basis, inner.astype(dtype), outer)
    np.testing.assert_allclose(outer, basis.astype(float) @ inner, atol=room * (1 + np.abs(inner).max(initial=0)))
