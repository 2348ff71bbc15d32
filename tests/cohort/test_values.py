"""Moments and principal components in blocks, against NumPy on everything at once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from heatmover.cohort import values as _values
from heatmover.cohort.values import Moments, Projection, principal_components

FORMS = {"dense": np.asarray, "sparse": sp.csr_array}


def pieces(values, size, form):
    return [FORMS[form](values[i : i + size]) for i in range(0, len(values), size)]


@pytest.mark.parametrize("form", FORMS)
@given(size=st.integers(1, 40), seed=st.integers(0, 10**6), center=st.sampled_from([0.0, 1.0, 1e6]))
def test_moments_do_not_depend_on_the_blocks(form, size, seed, center):
    rng = np.random.default_rng(seed)
    values = center + rng.normal(size=(37, 3)) * (rng.random((37, 3)) < 0.5)
    moments = Moments(3)
    for block in pieces(values, size, form):
        moments.add(block)
    np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.deviation, values.std(axis=0), rtol=1e-7, atol=1e-9)


def test_a_small_spread_around_a_large_mean_is_kept():
    values = 1e9 + np.random.default_rng(0).normal(size=(10_000, 1))
    moments = Moments(1)
    for block in pieces(values, 100, "dense"):
        moments.add(block)
    np.testing.assert_allclose(moments.deviation, values.std(axis=0), rtol=1e-6)
    # What sums of squares would have made of it.
    assert abs(np.sqrt(abs((values**2).mean() - values.mean() ** 2)) - values.std()) > 0.1


@pytest.mark.parametrize("form", FORMS)
def test_moments_are_right_to_the_last_bit_in_any_order(form):
    """Against whole-number fractions, which round nothing."""
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(300, 3)) * [1, 1e-3, 10] + [0, 1e4, -3]) * (rng.random((300, 3)) < 0.8)
    exact = []
    for column in values.T:
        fractions = [Fraction(value) for value in column]
        mean = sum(fractions) / 300
        exact.append((float(mean), float(sum((value - mean) ** 2 for value in fractions))))
    for seed in range(20):
        moments = Moments(3)
        for block in pieces(values[np.random.default_rng(seed).permutation(300)], 1 + 7 * seed, form):
            moments.add(block)
        np.testing.assert_array_equal(np.column_stack([moments.mean, moments.squares]), exact)


def test_a_column_without_spread_is_constant():
    moments = Moments(2)
    for block in pieces(np.column_stack([np.full(90, 0.1), np.arange(90)]), 7, "dense"):
        moments.add(block)
    assert moments.constant.tolist() == [True, False]


def spectrum(n_rows, n_columns, seed=0):
    """Points whose variances fall like 1/j^2 along random directions."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(n_columns, n_columns)))[0]
    return 3 + rng.normal(size=(n_rows, n_columns)) / np.arange(1, n_columns + 1) @ directions


def components(values, count, form, scale=None):
    mean = values.mean(axis=0)
    scale = np.ones(values.shape[1]) if scale is None else scale
    return principal_components(lambda: iter(pieces(values, 64, form)), mean, scale, count, np.random.default_rng(0))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("most", [500, 20], ids=["exact", "iterated"])
@pytest.mark.parametrize("standard", [False, True])
def test_components_span_what_the_singular_vectors_span(form, most, standard, monkeypatch):
    monkeypatch.setattr(_values, "MOST_EXACT_COLUMNS", most)
    values = spectrum(300, 60)
    scale = values.std(axis=0) if standard else np.ones(60)
    found = components(values, 5, form, scale)
    centerd = (values - values.mean(axis=0)) / scale
    _, singular, vectors = np.linalg.svd(centerd, full_matrices=False)
    tolerance = 1e-9 if most > 60 else 1e-3
    np.testing.assert_allclose(found.explained, singular[:5] ** 2 / 300, rtol=tolerance)
    overlap = np.abs(np.sum(found.components * vectors[:5].T, axis=0))
    np.testing.assert_allclose(overlap, 1, atol=tolerance)
    np.testing.assert_allclose(found.apply(FORMS[form](values)), centerd @ found.components, atol=1e-8)


def test_components_point_where_their_largest_entry_is_positive():
    found = components(spectrum(100, 12), 12, "dense")
    largest = np.abs(found.components).argmax(axis=0)
    assert (found.components[largest, np.arange(12)] > 0).all()
    np.testing.assert_allclose(found.components.T @ found.components, np.eye(12), atol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", FORMS)
def test_the_floating_type_is_kept(dtype, form):
    values = FORMS[form](np.eye(4, dtype=dtype))
    identity = np.eye(4)
    for projection in (Projection(), Projection(np.ones(4), np.ones(4)), Projection(np.ones(4), np.ones(4), identity)):
        assert projection.apply(values).dtype == dtype
        assert isinstance(projection.apply(values), np.ndarray)
