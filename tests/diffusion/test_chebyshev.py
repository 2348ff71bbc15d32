"""The expansion of powers, against its closed forms and against dense eigenvalues."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev
from scipy.special import binom

from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator, power_coefficients
from heatmover.graphs import Graph

TOLERANCES = [1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8]


@pytest.mark.parametrize("scale", range(7))
def test_coefficients_on_the_whole_interval_are_binomial(scale):
    power = 2**scale
    coefficients, bound = power_coefficients(2**scale, -1.0, 1e-15)
    expected = np.zeros(power + 1)
    for j in range(power % 2, power + 1, 2):
        expected[j] = 2.0 ** (1 - power) * binom(power, (power - j) // 2) / (2 if j == 0 else 1)
    np.testing.assert_allclose(coefficients, expected[: len(coefficients)], atol=1e-15)
    assert bound <= 1e-15


@pytest.mark.parametrize("scale", range(1, 6))
def test_coefficients_of_a_positive_operator_are_the_shifted_binomials(scale):
    power = 2**scale
    coefficients, _ = power_coefficients(2**scale, 0.0, 1e-15)
    j = np.arange(len(coefficients))
    expected = 4.0**-power * binom(2 * power, power - j) * np.where(j == 0, 1, 2)
    np.testing.assert_allclose(coefficients, expected, atol=1e-15)


@settings(deadline=None, max_examples=60)
@given(scale=st.integers(0, 16), lowest=st.floats(-1, 0), tol=st.sampled_from(TOLERANCES))
def test_the_bound_is_the_error_and_is_attained_at_one(scale, lowest, tol):
    coefficients, bound = power_coefficients(2**scale, lowest, tol)
    assert (coefficients >= 0).all()
    assert bound <= tol
    # Where x^(2^k) lives: close to 1, close to the lower end, and everywhere between.
    values = np.r_[1.0, 1 - np.geomspace(1e-9, 1, 400), np.linspace(lowest, 1, 400)]
    values = values[values >= lowest]
    mapped = np.clip((2 * values - 1 - lowest) / (1 - lowest), -1, 1)
    error = np.abs(values ** float(2**scale) - chebyshev.chebval(mapped, coefficients))
    # A power of 2^k multiplies the rounding of its base by 2^k.
    rounding = 1e-12 + 2**scale * np.finfo(float).eps
    assert error.max() <= bound + rounding
    assert error[0] == pytest.approx(bound, abs=rounding)


def test_the_degree_grows_like_the_root_of_the_time():
    degrees = [len(power_coefficients(2**scale, -1.0, 1e-3)[0]) for scale in range(8, 18)]
    ratios = np.divide(degrees[1:], degrees[:-1])
    np.testing.assert_allclose(ratios, np.sqrt(2), atol=0.05)
    assert degrees[-1] <= np.sqrt(2 * 2**17 * np.log(2 / 1e-3)) + 1


def test_knowing_the_spectrum_to_be_positive_saves_three_tenths_of_the_degree():
    whole = len(power_coefficients(2**14, -1.0, 1e-4)[0])
    positive = len(power_coefficients(2**14, 0.0, 1e-4)[0])
    assert positive == pytest.approx(whole / np.sqrt(2), rel=0.02)


def test_single_precision_rounding_stays_below_its_limit():
    """The estimator uses float32 for tol >= 1e-5 because of this figure."""
    points = np.random.default_rng(0).normal(size=(400, 2))
    operator = DiffusionOperator.from_graph(Graph.from_points(points, n_neighbors=20))
    masses = np.eye(400)[:, :16]
    pi = operator.stationary[:, None]
    norm = np.sqrt((masses**2 / pi).sum(axis=0))
    for scale in (0, 7, 13):
        single, double = (
            next(ChebyshevDiffuser(operator, adjoint=True, tol=1e-9, dtype=t).diffuse(masses, range(scale, scale + 1)))
            for t in (np.float32, np.float64)
        )
        error = np.sqrt(((single - double) ** 2 / pi).sum(axis=0)) / norm
        assert 0 < error.max() < 2e-6


def test_degree_reports_the_number_of_products():
    operator = DiffusionOperator.from_graph(Graph.from_grid((50,)))
    diffuser = ChebyshevDiffuser(operator, adjoint=True, tol=1e-3)
    assert diffuser.degree(0) == 1
    assert diffuser.degree(10) > diffuser.degree(8) > diffuser.degree(4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("adjoint", [True, False])
def test_a_column_alone_has_the_bits_that_it_has_among_others(dtype, adjoint):
    # More points than are added to the sums together, and rows of unequal length.
    points = np.random.default_rng(5).gamma(1.0, size=(1300, 2))
    operator = DiffusionOperator.from_graph(Graph.from_points(points, n_neighbors=7))
    diffuser = ChebyshevDiffuser(operator, adjoint=adjoint, tol=1e-3, dtype=dtype)
    masses = np.random.default_rng(6).dirichlet(np.full(1300, 0.1), size=11).T
    together = list(diffuser.diffuse(masses, range(6)))
    for column in (0, 7, 10):
        alone = diffuser.diffuse(masses[:, [column]], range(6))
        for density, whole in zip(alone, together, strict=True):
            assert density.shape == (1300, 1)
            np.testing.assert_array_equal(density[:, 0], whole[:, column])
