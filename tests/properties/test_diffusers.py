"""Every way to diffuse x every property, on every graph of the table; a new way is one row in DIFFUSERS.

The oracle is written plainly here: P from its formula, and its powers by repeated squaring of a dense matrix.
"""

from functools import cache

import numpy as np
import pytest

from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.interpolative import interpolative_factors, nested_skeletons
from heatmover.diffusion.lowrank import LowRankDiffuser, spectral_factors
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator
from heatmover.diffusion.operator import rounding as power_rounding

SCALES = range(19)


def exact(operator, adjoint, tol):
    return all_eigenpairs(operator, adjoint)


@cache
def all_eigenpairs(operator, adjoint):
    """No tolerance changes it, and it finds its eigenpairs once."""
    return ExactDiffuser(operator, adjoint=adjoint)


def chebyshev(operator, adjoint, tol):
    return ChebyshevDiffuser(operator, adjoint=adjoint, tol=tol, dtype=np.float64)


def chebyshev_single(operator, adjoint, tol):
    return ChebyshevDiffuser(operator, adjoint=adjoint, tol=tol, dtype=np.float32)


def low_rank(build, dtype):
    """Coarse scales from 2^3 on by factors; where these graphs allow none, polynomials do it all."""

    def make(operator, adjoint, tol):
        fine = ChebyshevDiffuser(operator, adjoint=adjoint, tol=tol, dtype=dtype)
        factors = factors_of(build, operator, tol)
        return fine if factors is None else LowRankDiffuser(fine, factors)

    return make


@cache
def factors_of(build, operator, tol):
    """They serve both densities and both precisions, so they are found once."""
    return build(operator, 3, operator.n_points, tol=tol, rng=np.random.default_rng(0), last=SCALES[-1])


def skeletons_of_a_third(operator, first, n_points, *, tol, rng, last):
    """The paper's Algorithm 4 with a third of the points as centers."""
    ranks = dict.fromkeys(range(first, last + 1), max(n_points // 3, operator.n_components))
    factors = nested_skeletons(operator, ranks, tol=tol, rng=rng)
    return factors if all(factor.bound <= tol for factor in factors) else None


# way to diffuse, and the rounding of a few sums (relative, in the norm of `relative_error`)
DIFFUSERS = {
    "exact": (exact, 1e-9),
    "chebyshev": (chebyshev, 1e-9),
    "chebyshev float32": (chebyshev_single, 2e-6),
    "spectral": (low_rank(spectral_factors, np.float64), 1e-9),
    "spectral float32": (low_rank(spectral_factors, np.float32), 2e-6),
    "interpolative": (low_rank(interpolative_factors, np.float64), 1e-9),
    "interpolative float32": (low_rank(interpolative_factors, np.float32), 2e-6),
    "paper's skeletons": (low_rank(skeletons_of_a_third, np.float64), 1e-9),
}


@cache
def operator_of(graph):
    return DiffusionOperator.from_graph(graph)


@pytest.fixture
def operator(graph):
    return operator_of(graph)


@pytest.fixture(params=DIFFUSERS)
def way(request):
    return DIFFUSERS[request.param]


@pytest.fixture(params=[True, False], ids=["adjoint", "function"])
def adjoint(request):
    return request.param


def random_walk(affinity):
    """P and the degree d from the definition, one line each; a point without affinity keeps its mass."""
    affinity = affinity + np.diag(affinity.sum(axis=1) == 0)
    q = affinity.sum(axis=1)
    normed = affinity / q[:, None] / q[None, :]
    degree = normed.sum(axis=1)
    return normed / degree[:, None], degree


def dense_densities(affinity, rows, adjoint):
    """mu^(2^k) for all scales by squaring, ``(n_scales, n_points, n_measures)``."""
    power = random_walk(affinity)[0]
    densities = []
    for _ in SCALES:
        densities.append((power.T if adjoint else power) @ rows.T)
        power = power @ power
    return np.array(densities)


@pytest.fixture(scope="module")
def found():
    return {}


@pytest.fixture
def oracle(found, affinity_name, affinity, measures):
    """Return a function that gives the dense densities of the graph, which are found once for all ways to diffuse."""

    def densities(adjoint):
        key = affinity_name, adjoint
        if key not in found:
            found[key] = dense_densities(affinity, measures, adjoint)
            found[key].flags.writeable = False
        return found[key]

    return densities


def relative_error(densities, expected, rows, affinity, adjoint):
    """Error of each density in the operator's own norm, relative to its measure: what `error_bound` bounds."""
    degree = random_walk(affinity)[1]
    weight = (1 / degree if adjoint else degree)[:, None]
    error = np.sqrt(((densities - expected) ** 2 * weight).sum(axis=-2))
    return error / np.sqrt((rows.T**2 * weight).sum(axis=0))


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-3, 1e-5, 1e-8])
def test_densities_are_within_tol_of_the_dense_oracle(way, affinity, operator, measures, oracle, adjoint, tol):
    make, rounding = way
    diffuser = make(operator, adjoint, tol)
    densities = np.array(list(diffuser.diffuse(measures.T, SCALES)))
    bound = diffuser.error_bound(SCALES)
    room = [power_rounding(2**scale, densities.dtype) for scale in SCALES]
    assert (bound <= np.maximum(tol, np.add(tol / 2, room))).all()
    error = relative_error(densities, oracle(adjoint), measures, affinity, adjoint)
    assert (error <= bound[:, None] + rounding).all()


def test_mass_is_exact_in_every_component(way, graph, operator, measures):
    make, _ = way
    diffuser = make(operator, True, 1e-1)
    expected = operator.component_masses(measures)
    for density in diffuser.diffuse(measures.T, SCALES):
        unit = np.finfo(density.dtype).eps * graph.n_points
        np.testing.assert_allclose(density.sum(axis=0, dtype=np.float64), 1, atol=10 * unit)
        parts = operator.component_masses(density.T.astype(np.float64))
        np.testing.assert_allclose(parts, expected, atol=10 * unit)


def test_the_stationary_law_stays(way, operator):
    make, rounding = way
    law = operator.stationary[:, None] / operator.n_components
    for density in make(operator, True, 1e-2).diffuse(law, SCALES):
        np.testing.assert_allclose(density, law, atol=10 * rounding)


def test_constants_stay_as_functions(way, operator):
    make, rounding = way
    constant = np.ones((operator.n_points, 1))
    densities = make(operator, False, 1e-2).diffuse(constant, SCALES)
    for scale, density in zip(SCALES, densities, strict=True):
        # The polynomial alone would miss by 1e-2: the part of the constant is put right.
        room = power_rounding(2**scale, density.dtype) + rounding
        np.testing.assert_allclose(density, 1, rtol=0, atol=room)


def test_diffusion_is_linear(way, operator, measures, adjoint):
    make, rounding = way
    diffuser = make(operator, adjoint, 1e-4)
    mixture = measures[:3].mean(axis=0)[:, None]
    pairs = zip(diffuser.diffuse(mixture, SCALES), diffuser.diffuse(measures[:3].T, SCALES), strict=True)
    for scale, (mixed, part) in enumerate(pairs):
        room = (rounding + 2 * power_rounding(2**scale, part.dtype)) * operator.n_points * np.abs(part).max()
        np.testing.assert_allclose(mixed[:, 0], part.mean(axis=1), atol=room)


def test_bits_of_a_column_do_not_depend_on_its_block(operator, measures, adjoint):
    for make, _ in DIFFUSERS.values():
        diffuser = make(operator, adjoint, 1e-3)
        together = list(diffuser.diffuse(measures.T, SCALES))
        for column in range(len(measures)):
            alone = diffuser.diffuse(measures[column : column + 1].T, SCALES)
            for one, all_ in zip(alone, together, strict=True):
                np.testing.assert_array_equal(one[:, 0], all_[:, column])


def test_progressive_densities_agree_with_direct_ones(way, affinity, operator, measures, oracle):
    make, rounding = way
    diffuser = make(operator, True, 1e-6)
    expected = oracle(True)
    progressive = diffuser.diffuse_progressively(measures.T)
    for scale in SCALES:
        error = relative_error(next(progressive), expected[scale], measures, affinity, True)
        # Every step adds its own error.
        room = power_rounding(2**scale, np.float32 if rounding > 1e-8 else np.float64)
        assert (error <= (scale + 1) * (1e-6 + rounding) + room).all()


def test_a_permutation_of_the_points_permutes_the_densities(way, affinity, operator, measures):
    from heatmover.graphs import Graph

    make, rounding = way
    order = np.random.default_rng(2).permutation(len(affinity))
    plain = make(operator, True, 1e-8)
    mixed = make(DiffusionOperator.from_graph(Graph.from_affinity(affinity[order][:, order], lazy=False)), True, 1e-8)
    pairs = zip(plain.diffuse(measures.T, SCALES), mixed.diffuse(measures[:, order].T, SCALES), strict=True)
    for scale, (here, there) in enumerate(pairs):
        error = relative_error(there, here[order], measures[:, order], affinity[order][:, order], True)
        bounds = plain.error_bound(SCALES)[scale], mixed.error_bound(SCALES)[scale]
        assert error.max() <= sum(bounds) + 2 * rounding
