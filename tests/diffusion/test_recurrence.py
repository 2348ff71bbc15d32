"""Polynomials of the operator against the same polynomials of a dense matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import TypingError
from numpy.polynomial import chebyshev

import heatmover._base.compiled.recurrence as compiled
from heatmover.diffusion.operator import DiffusionOperator, Recurrence, aligned_zeros, in_columns
from heatmover.graphs import Graph


def dense_polynomial(operator, coefficients, highest=1.0):
    """The polynomial of every eigenvalue, mapped from [lowest, highest] to [-1, 1]."""
    values, vectors = np.linalg.eigh(operator.symmetric.toarray())
    mapped = (2 * values - operator.lowest - highest) / (highest - operator.lowest)
    return (vectors * chebyshev.chebval(mapped, coefficients)) @ vectors.T


def block_of(operator, width=3, seed=0):
    return np.random.default_rng(seed).standard_normal((operator.n_points, width))


@pytest.fixture(scope="module")
def cloud():
    points = np.random.default_rng(4).normal(size=(150, 2))
    return DiffusionOperator.from_graph(Graph.from_points(points, n_neighbors=9))


@pytest.fixture
def products(monkeypatch):
    """One entry per product with the operator."""
    calls = []
    plain = compiled.advance

    def counted(*arguments):
        calls.append(arguments[5])
        return plain(*arguments)

    monkeypatch.setattr(compiled, "advance", counted)
    return calls


@pytest.mark.parametrize("highest", [1.0, 0.7])
def test_terms_are_chebyshev_polynomials(graph, highest):
    operator = DiffusionOperator.from_graph(graph)
    block = block_of(operator)
    terms = Recurrence(operator, np.float64, highest=highest).terms(block)
    for degree, term in zip(range(1, 9), terms, strict=False):
        dense = dense_polynomial(operator, [0.0] * degree + [1.0], highest)
        # Above `highest` they grow without bound, and so does their rounding.
        np.testing.assert_allclose(term, dense @ block, atol=1e-11 * max(1.0, np.linalg.norm(dense, 2)))


@pytest.mark.parametrize(("dtype", "rounding"), [(np.float64, 1e-12), (np.float32, 3e-5)])
def test_polynomials_of_all_lengths_come_in_order(graph, dtype, rounding):
    operator = DiffusionOperator.from_graph(graph)
    rng = np.random.default_rng(1)
    coefficients = [rng.standard_normal(length) for length in (1, 1, 2, 3, 3, 4, 9, 10, 23)]
    block = block_of(operator).astype(dtype)
    found = list(Recurrence(operator, dtype).polynomials(block.copy(), coefficients))
    assert len(found) == len(coefficients)
    for part, result in zip(coefficients, found, strict=True):
        assert result.dtype == dtype
        expected = dense_polynomial(operator, part) @ block
        np.testing.assert_allclose(result, expected, atol=rounding * np.abs(part).sum() * np.abs(block).max())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_any_polynomials(cloud, seed, lengths):
    rng = np.random.default_rng(seed)
    coefficients = [rng.standard_normal(length) for length in sorted(lengths)]
    block = block_of(cloud, 1, seed)
    found = Recurrence(cloud, np.float64).polynomials(block.copy(), coefficients)
    for part, result in zip(coefficients, found, strict=True):
        np.testing.assert_allclose(result, dense_polynomial(cloud, part) @ block, atol=1e-10)


def test_each_polynomial_is_yielded_as_soon_as_it_is_complete(cloud, products):
    lengths = [1, 1, 2, 3, 4, 12, 13, 40]
    found = Recurrence(cloud, np.float64).polynomials(block_of(cloud), [np.ones(length) for length in lengths])
    spent = []
    for _ in lengths:
        next(found)
        spent.append(len(products))
    # Terms are added four at a time: a degree waits until its group is full, but the last has only what it needs.
    assert spent == [0, 0, 4, 4, 4, 12, 12, 39]
    assert list(found) == []
    assert len(products) == 39


def test_what_was_yielded_does_not_change_later(cloud):
    coefficients = [np.ones(length) for length in (1, 2, 5, 6, 30)]
    found = Recurrence(cloud, np.float64).polynomials(block_of(cloud), coefficients)
    results, copies = [], []
    for result in found:
        results.append(result)
        copies.append(result.copy())
    for result, copy in zip(results, copies, strict=True):
        np.testing.assert_array_equal(result, copy)


def test_a_term_is_valid_until_two_more_were_taken(cloud):
    terms = Recurrence(cloud, np.float64).terms(block_of(cloud))
    first = next(terms)
    copy = first.copy()
    next(terms)
    np.testing.assert_array_equal(first, copy)


def test_terms_leave_the_start_alone(cloud):
    block = block_of(cloud)
    before = block.copy()
    for _ in zip(range(5), Recurrence(cloud, np.float64).terms(block), strict=False):
        pass
    np.testing.assert_array_equal(block, before)


def test_the_first_polynomial_is_not_the_start_itself(cloud):
    """T_0 alone: the start is used up, and the caller may change what it got."""
    block = block_of(cloud)
    before = block.copy()
    found = Recurrence(cloud, np.float64).polynomials(block, [np.ones(1), np.ones(30)])
    first = next(found)
    assert not np.shares_memory(first, block)
    next(found)
    np.testing.assert_array_equal(first, before)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_threads", [2, 3, 7, 400])
def test_threads_that_share_the_rows_change_no_bit(cloud, dtype, n_threads):
    """Also with more threads than rows."""
    block = block_of(cloud, 5).astype(dtype)
    coefficients = [np.linspace(1, 2, length) for length in (1, 2, 9, 24)]
    alone, shared = (
        list(Recurrence(cloud, dtype, n_threads=threads).polynomials(block.copy(), coefficients))
        for threads in (1, n_threads)
    )
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one, other)
    terms = (Recurrence(cloud, dtype, highest=0.9, n_threads=threads).terms(block) for threads in (1, n_threads))
    for _, one, other in zip(range(6), *terms, strict=False):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 64, 83])
def test_columns_in_threads_are_the_whole_to_the_bit(cloud, dtype, width):
    recurrence = Recurrence(cloud, dtype)
    coefficients = np.random.default_rng(0).random(20)

    def function(part):
        return next(recurrence.polynomials(part.copy(), [coefficients]))

    block = block_of(cloud, width).astype(dtype)
    whole = function(block)
    for n_threads in (1, 2, 3, 11):
        for widest in (8, 64):
            found = in_columns(function, block, n_threads=n_threads, widest=widest)
            np.testing.assert_array_equal(found, whole)


def test_short_steps_are_not_shared(cloud, products):
    """One call per product: no thread takes a part of it."""
    list(Recurrence(cloud, np.float64, n_threads=5).polynomials(block_of(cloud), [np.ones(9)]))
    assert len(products) == 8


@pytest.mark.parametrize(("width", "n_threads", "widest"), [(100, 1, 64), (100, 3, 64), (17, 4, 64), (640, 2, 16)])
def test_groups_of_columns_are_whole_registers_and_keep_the_threads_busy(width, n_threads, widest):
    groups = []

    def function(part):
        assert part.flags.c_contiguous
        groups.append(part.shape[1])
        return part

    block = np.arange(2.0 * width).reshape(2, width)
    np.testing.assert_array_equal(in_columns(function, block, n_threads=n_threads, widest=widest), block)
    assert sum(groups) == width
    assert max(groups) <= widest
    assert sum(group % 8 != 0 for group in groups) <= 1
    assert len(groups) >= min(n_threads, -(-width // 8))


def test_a_block_without_columns(cloud):
    recurrence = Recurrence(cloud, np.float64)
    empty = np.empty((cloud.n_points, 0))
    assert in_columns(lambda part: next(recurrence.terms(part)), empty, n_threads=2).shape == empty.shape


def test_results_of_other_heights_are_put_side_by_side():
    block = np.arange(40.0).reshape(2, 20)
    found = in_columns(lambda part: part.sum(axis=0, keepdims=True), block, n_threads=2)
    np.testing.assert_array_equal(found, block.sum(axis=0, keepdims=True))


# --- weighted sums of rows ------------------------------------------------------------------------------------------


@njit
def summed(first, last, weights, indices, block, result):
    compiled._weighted_sum(first, last, weights, indices, block, result)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 7, 8, 9, 24, 31, 32, 40, 56, 64, 72, 104, 131])
def test_sums_of_rows_are_those_of_the_definition(width, dtype):
    rng = np.random.default_rng(width)
    block = rng.standard_normal((50, width)).astype(dtype)
    weights, indices = rng.random(90).astype(dtype), rng.integers(0, 50, 90).astype(np.int32)
    for first, last in ((0, 90), (3, 4), (5, 5), (11, 37)):
        result = np.full(width, np.nan, dtype=dtype)
        summed(first, last, weights, indices, block, result)
        expected = weights[first:last].astype(np.float64) @ block[indices[first:last]].astype(np.float64)
        np.testing.assert_allclose(result, expected, rtol=0, atol=100 * np.finfo(dtype).eps)


def test_a_column_has_the_same_bits_in_any_block():
    rng = np.random.default_rng(0)
    block = rng.standard_normal((50, 131)).astype(np.float32)
    weights, indices = rng.random(90).astype(np.float32), rng.integers(0, 50, 90).astype(np.int32)
    whole = np.empty(131, dtype=np.float32)
    summed(0, 90, weights, indices, block, whole)
    for start, stop in ((0, 8), (3, 100), (64, 131), (17, 18), (40, 96)):
        part = np.empty(stop - start, dtype=np.float32)
        summed(0, 90, weights, indices, np.ascontiguousarray(block[:, start:stop]), part)
        np.testing.assert_array_equal(part, whole[start:stop])


def test_rows_that_are_not_contiguous_are_refused():
    block = np.ones((4, 16), dtype=np.float32)[:, ::2]
    arguments = (0, 1, np.ones(1, dtype=np.float32), np.zeros(1, dtype=np.int32), block, np.ones(8, dtype=np.float32))
    with pytest.raises(TypingError, match="contiguous"):
        summed(*arguments)
    with pytest.raises(TypingError, match="one type"):
        summed(*arguments[:4], np.ones((4, 8)), arguments[5])


@pytest.mark.parametrize("shape", [(0, 8), (3, 8), (1001, 56)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_aligned_zeros(shape, dtype):
    block = aligned_zeros(shape, dtype)
    assert block.shape == shape
    assert block.dtype == dtype
    assert block.flags.c_contiguous
    assert block.flags.writeable
    assert not block.any()
    assert block.size == 0 or block.ctypes.data % 64 == 0
