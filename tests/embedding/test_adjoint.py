"""The transpose of the embedding, against the dense matrix of the embedding and by its defining property."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heatmover as hm
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator, Recurrence

METHODS = ["exact", "chebyshev", "spectral", "interpolative"]
NORMS = ["levels", "increments", "coarsest"]
DENSITIES = ["adjoint", "function"]
N_POINTS = 150


def ring_graph(n_points=N_POINTS, seed=0):
    angles = np.sort(np.random.default_rng(seed).uniform(0, 2 * np.pi, n_points))
    return hm.Graph.from_points(np.column_stack([np.cos(angles), np.sin(angles)]), n_neighbors=8)


def random_measures(n_measures, n_points=N_POINTS, seed=1):
    return np.random.default_rng(seed).dirichlet(np.full(n_points, 0.3), n_measures)


def fitted(graph, n_measures=20, **options):
    options = {"max_scale": 7, "dtype": "float64", "n_jobs": 2, **options}
    return hm.DiffusionEMD(graph, **options).fit(random_measures(n_measures, graph.n_points))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("compress", [False, 0.3])
def test_it_is_the_transpose_of_the_dense_matrix(method, norm, density, compress):
    model = fitted(ring_graph(), method=method, norm=norm, density=density, compress=compress)
    assert model.method_ == method
    assert model.prepared_.table is None
    dense = model.transform(np.eye(N_POINTS))
    features = np.random.default_rng(2).normal(size=(5, dense.shape[1]))
    pulled = model.apply_transpose(features)
    assert pulled.shape == (5, N_POINTS)
    assert pulled.dtype == np.float64
    np.testing.assert_allclose(pulled, features @ dense.T, rtol=0, atol=1e-11 * np.abs(pulled).max())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_agree_to_the_rounding_of_the_model(method, density, dtype):
    model = fitted(ring_graph(), method=method, density=density, dtype=dtype)
    measures = random_measures(30, seed=3)
    features = np.random.default_rng(4).choice([-1.0, 0.0, 1.0], size=(7, model.transform(measures).shape[1]))
    forward = model.transform(measures).astype(np.float64) @ features.T
    backward = measures @ model.apply_transpose(features).astype(np.float64).T
    rounding = 2e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(backward, forward, rtol=0, atol=rounding * np.abs(forward).max())


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("norm", NORMS)
def test_a_table_of_features_is_transposed_too(density, norm):
    model = hm.DiffusionEMD(ring_graph(), max_scale=7, dtype="float64", compress=0.3, density=density, norm=norm).fit()
    assert model.prepared_.table is not None
    dense = model.transform(np.eye(N_POINTS))
    features = np.random.default_rng(2).normal(size=(3, dense.shape[1]))
    np.testing.assert_allclose(
        model.apply_transpose(features), features @ dense.T, rtol=0, atol=1e-11 * np.abs(dense).max()
    )


@pytest.mark.parametrize("method", METHODS)
def test_several_components_and_isolated_points(method):
    affinity = np.zeros((60, 60))
    affinity[:30, :30] = ring_graph(30).affinity.toarray()
    affinity[30:59, 30:59] = ring_graph(29, seed=5).affinity.toarray()
    with pytest.warns(hm.GraphWarning):
        model = fitted(hm.Graph.from_affinity(affinity), method=method)
    dense = model.transform(np.eye(60))
    features = np.random.default_rng(6).normal(size=(2, dense.shape[1]))
    np.testing.assert_allclose(model.apply_transpose(features), features @ dense.T, rtol=0, atol=1e-11)


@pytest.mark.parametrize("method", ["chebyshev", "spectral"])
def test_a_graph_stored_in_another_order(monkeypatch, method):
    monkeypatch.setattr("heatmover.diffusion.operator.REORDER_ABOVE", 100)
    graph = ring_graph()
    shuffled = np.random.default_rng(0).permutation(N_POINTS)
    model = fitted(hm.Graph.from_affinity(graph.affinity[shuffled][:, shuffled]), method=method)
    assert not np.array_equal(model.prepared_.diffuser.operator.order, np.arange(N_POINTS))
    dense = model.transform(np.eye(N_POINTS))
    features = np.random.default_rng(7).normal(size=(2, dense.shape[1]))
    np.testing.assert_allclose(model.apply_transpose(features), features @ dense.T, rtol=0, atol=1e-11)


@pytest.mark.parametrize("max_scale", [0, 1, 2, 5])
def test_few_scales(max_scale):
    model = fitted(ring_graph(), method="chebyshev", max_scale=max_scale)
    dense = model.transform(np.eye(N_POINTS))
    features = np.random.default_rng(8).normal(size=(1, dense.shape[1]))
    np.testing.assert_allclose(model.apply_transpose(features), features @ dense.T, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("eager_threads")
def test_bits_do_not_depend_on_threads_or_other_rows():
    graph = ring_graph(400)
    one, two = (fitted(graph, n_measures=3, method="chebyshev", dtype="float32", n_jobs=n) for n in (1, 2))
    features = np.random.default_rng(9).normal(size=(90, 400 * one.n_scales_))
    pulled = one.apply_transpose(features)
    np.testing.assert_array_equal(pulled, two.apply_transpose(features))
    np.testing.assert_array_equal(pulled[17:20], one.apply_transpose(features[17:20]))


@pytest.mark.usefixtures("eager_threads")
def test_threads_may_share_a_recurrence_by_rows():
    operator = DiffusionOperator.from_graph(ring_graph())
    inputs = np.random.default_rng(0).normal(size=(3, N_POINTS, 8))
    alone, shared = (
        ChebyshevDiffuser(operator, adjoint=True, tol=1e-6, n_threads=n).transposed(inputs, range(3)) for n in (1, 3)
    )
    np.testing.assert_array_equal(alone, shared)


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=9), min_size=1, max_size=4), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_clenshaw_sums_any_polynomials(coefficients, seed):
    coefficients = sorted((np.array(part) for part in coefficients), key=len)
    operator = DiffusionOperator.from_graph(ring_graph(30))
    inputs = np.random.default_rng(seed).normal(size=(len(coefficients), 30, 8))
    found = Recurrence(operator, np.float64).transposed(inputs, coefficients)
    values, vectors = np.linalg.eigh(operator.symmetric.toarray())
    mapped = (2 * values - 1 - operator.lowest) / (1 - operator.lowest)
    expected = sum(
        vectors @ (np.polynomial.chebyshev.chebval(mapped, part)[:, None] * (vectors.T @ block))
        for part, block in zip(coefficients, inputs, strict=True)
    )
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_features_of_another_width_are_refused():
    model = fitted(ring_graph())
    with pytest.raises(hm.InvalidInputError, match="rows of width 7"):
        model.apply_transpose(np.zeros((2, 7)))
