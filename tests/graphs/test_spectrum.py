from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from heatmover.graphs import Graph, spectrum
from heatmover.graphs.spectrum import lanczos, normalize


def dense_normalization(affinity, anisotropy):
    """S and d of the definition, with q^-a K q^-a written as matrices."""
    q = affinity.sum(axis=1)
    normed = np.diag(q**-anisotropy) @ affinity @ np.diag(q**-anisotropy)
    degree = normed.sum(axis=1)
    return np.diag(degree**-0.5) @ normed @ np.diag(degree**-0.5), degree


def with_loops_where_empty(affinity):
    """As the operator does before it normalizes."""
    return affinity + np.diag(affinity.sum(axis=1) == 0)


@pytest.mark.parametrize("anisotropy", [0.0, 0.5, 1.0])
def test_normalization_is_the_definition(affinity, anisotropy):
    affinity = with_loops_where_empty(affinity)
    symmetric, degree = normalize(sp.csr_array(affinity), anisotropy)
    expected, expected_degree = dense_normalization(affinity, anisotropy)
    np.testing.assert_allclose(symmetric.toarray(), expected, rtol=1e-11)
    # A common factor of d cancels everywhere.
    np.testing.assert_allclose(degree / degree.sum(), expected_degree / expected_degree.sum(), rtol=1e-11)
    np.testing.assert_allclose(symmetric.toarray(), symmetric.toarray().T, rtol=1e-14)


def test_spectrum_ends_at_one(affinity):
    affinity = with_loops_where_empty(affinity)
    symmetric, degree = normalize(sp.csr_array(affinity), 1.0)
    values = np.linalg.eigvalsh(symmetric.toarray())
    assert values[-1] == pytest.approx(1, abs=1e-12)
    assert values[0] >= -1 - 1e-12
    np.testing.assert_allclose(symmetric @ np.sqrt(degree), np.sqrt(degree), rtol=1e-10)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(0, 1000), st.sampled_from([12, 100, 250, 300]), st.sampled_from([0.0, 0.5, 1.0]))
def test_weights_of_any_magnitude_make_no_nan(n_points, seed, orders, anisotropy):
    upper = np.triu(10.0 ** np.random.default_rng(seed).uniform(-orders, 0, size=(n_points, n_points)))
    symmetric, degree = normalize(sp.csr_array(upper + np.triu(upper, 1).T), anisotropy)
    assert np.isfinite(symmetric.data).all()
    assert (degree > 0).all()
    assert np.isfinite(degree).all()
    values = np.linalg.eigvalsh(symmetric.toarray())
    assert values[-1] == pytest.approx(1, abs=1e-9)
    assert values[0] >= -1 - 1e-9


def test_faintest_point_beside_the_strongest():
    affinity = np.array([[1e290, 1e-300, 0], [1e-300, 0, 1e-305], [0, 1e-305, 0]])
    symmetric, degree = normalize(sp.csr_array(affinity), 1.0)
    assert np.isfinite(symmetric.toarray()).all()
    assert (degree > 0).all()


def test_a_common_factor_changes_nothing():
    affinity = Graph.from_points(np.random.default_rng(0).normal(size=(50, 2)), 8).affinity
    base, _ = normalize(affinity, 1.0)
    for factor in (1e-150, 1e150):
        np.testing.assert_allclose(normalize(affinity * factor, 1.0)[0].toarray(), base.toarray(), rtol=1e-12)


def test_affinity_is_not_changed():
    affinity = sp.csr_array(np.array([[1.0, 2.0], [2.0, 0.0]]))
    normalize(affinity, 1.0)
    np.testing.assert_array_equal(affinity.toarray(), [[1, 2], [2, 0]])


@pytest.fixture(scope="module")
def ring():
    return normalize(Graph.from_grid((60,), periodic=True).affinity, 1.0)[0]


@pytest.fixture(scope="module")
def cloud():
    return normalize(Graph.from_points(np.random.default_rng(0).normal(size=(150, 2)), 10).affinity, 1.0)[0]


def test_lanczos_with_all_steps_finds_every_eigenvalue(cloud):
    small = sp.csr_array(cloud[:40][:, :40])
    values, residuals = lanczos(small, 40)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(small.toarray()), atol=1e-10)
    assert (np.abs(residuals) < 1e-7).all()


def test_lanczos_of_eigenvalues_in_pairs(ring):
    exact = np.linalg.eigvalsh(ring.toarray())
    values, _ = lanczos(ring, 60)
    for value in values:
        assert np.abs(exact - value).min() < 1e-9
    assert values[0] == pytest.approx(exact[0], abs=1e-9)
    assert values[-1] == pytest.approx(1, abs=1e-9)


def test_lanczos_stops_when_there_is_no_more_to_find():
    """A complete graph has the eigenvalues 1 and 0 only."""
    values, residuals = lanczos(sp.csr_array(np.full((20, 20), 0.05)), 20)
    np.testing.assert_allclose(values, [0, 1], atol=1e-12)
    assert residuals.tolist() == [0, 0]


def test_lanczos_converges_from_inside_and_its_residuals_hold(cloud):
    exact = np.linalg.eigvalsh(cloud.toarray())
    previous = -np.inf
    for steps in (5, 10, 20, 40, 80):
        values, residuals = lanczos(cloud, steps)
        assert values.size == steps
        assert values[-1] <= exact[-1] + 1e-12
        assert values[0] >= exact[0] - 1e-12
        assert values[-1] >= previous - 1e-12
        previous = values[-1]
        for value, residual in zip(values, residuals, strict=True):
            assert np.abs(exact - value).min() <= residual + 1e-10
    assert values[-1] == pytest.approx(1, abs=1e-3)


def test_lanczos_without_the_top(cloud):
    values, vectors = np.linalg.eigh(cloud.toarray())
    found, residuals = lanczos(cloud, 140, deflate=vectors[:, -1:])
    assert found[-1] == pytest.approx(values[-2], abs=1e-8)
    assert residuals[-1] < 1e-6


def test_lanczos_with_nothing_left():
    values, residuals = lanczos(sp.csr_array(np.ones((1, 1))), 1, deflate=np.ones((1, 1)))
    assert values.tolist() == residuals.tolist() == [0]


def test_lanczos_depends_on_no_seed(cloud):
    np.random.seed(1)  # noqa: NPY002
    one = lanczos(cloud, 30)[0]
    np.random.seed(2)  # noqa: NPY002
    np.testing.assert_array_equal(one, lanczos(cloud, 30)[0])


def test_lanczos_on_a_large_graph_finds_the_same_ends(cloud, monkeypatch):
    """Above a size only the last two vectors are kept."""
    full, _ = lanczos(cloud, 80)
    top = np.linalg.eigh(cloud.toarray())[1][:, -1:]
    full_gap, _ = lanczos(cloud, 80, deflate=top)
    monkeypatch.setattr(spectrum, "MOST_REMEMBERED", 0)
    short, _ = lanczos(cloud, 80)
    short_gap, residuals = lanczos(cloud, 80, deflate=top)
    assert short[0] == pytest.approx(full[0], abs=1e-9)
    assert short[-1] == pytest.approx(full[-1], abs=1e-9)
    assert short_gap[-1] == pytest.approx(full_gap[-1], abs=1e-6)
    assert residuals[-1] < 1e-2


@pytest.mark.parametrize("exponent", [-900, -301, -1, 1, 40, 301, 900])
def test_a_power_of_two_changes_no_bit_of_any_component(exponent):
    cloud = Graph.from_points(np.random.default_rng(0).normal(size=(50, 2)), 8).affinity.toarray()
    parts = [cloud, np.ones((3, 3))]
    component = np.repeat([0, 1], [50, 3]).astype(np.int32)
    base, degree = normalize(sp.csr_array(block_diag(*parts)), 1.0, component)
    for factors in ((2.0**exponent, 1.0), (1.0, 2.0**exponent), (2.0**exponent, 2.0**-exponent)):
        scaled = sp.csr_array(block_diag(*(part * factor for part, factor in zip(parts, factors, strict=True))))
        found, other = normalize(scaled, 1.0, component)
        np.testing.assert_array_equal(found.toarray(), base.toarray())
        np.testing.assert_array_equal(other, degree)


@pytest.mark.parametrize("weights", [(1e290, 1e-300), (1.0, 1e-300), (1e-300, 1e290)])
def test_a_point_tied_to_a_far_stronger_one_alone(weights):
    """The hub's own loop and one faint tie: what the formula gives in rational numbers."""
    loop, tie = weights
    symmetric, _ = normalize(sp.csr_array(np.array([[loop, tie], [tie, 0.0]])), 1.0)
    # q = (loop + tie, tie), K_n = [[loop / q0^2, 1 / q0], [1 / q0, 0]].
    share = loop / (loop + tie)
    to_hub = 1 / np.sqrt(1 + share)
    np.testing.assert_allclose(symmetric.toarray(), [[share / (1 + share), to_hub], [to_hub, 0]], rtol=1e-14)
