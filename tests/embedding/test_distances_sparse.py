"""L1 between sparse rows; the oracle is the same sum over dense ones."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover import pairwise_distances
from heatmover.errors import InvalidInputError


def random_rows(n_rows, n_features, seed=0, density=0.15, signed=True):
    rng = np.random.default_rng(seed)
    rows = sp.csr_array(rng.random((n_rows, n_features)) * (rng.random((n_rows, n_features)) < density))
    rows.data -= 0.5 * signed
    return rows


def plain(rows, others):
    return np.abs(rows.toarray()[:, None] - others.toarray()[None]).sum(axis=2)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("n_rows", [1, 2, 31, 32, 33, 100])
def test_all_pairs_agree_with_the_definition(n_rows, signed):
    rows = random_rows(n_rows, 60, signed=signed)
    distances = pairwise_distances(rows)
    np.testing.assert_allclose(distances, plain(rows, rows), rtol=1e-12, atol=1e-13)
    assert np.array_equal(distances, distances.T)
    assert (distances.diagonal() == 0).all()


@pytest.mark.parametrize(("n_rows", "n_others"), [(1, 1), (1, 70), (70, 1), (40, 33)])
def test_cross_distances_agree_with_the_definition(n_rows, n_others):
    rows, others = random_rows(n_rows, 50), random_rows(n_others, 50, seed=1, density=0.5)
    expected = plain(rows, others)
    for a, b in ((rows, others), (rows.toarray(), others), (rows, others.toarray())):
        np.testing.assert_allclose(pairwise_distances(a, b), expected, rtol=1e-12, atol=1e-13)


@given(seed=st.integers(0, 10_000), density=st.floats(0.0, 1.0), n_rows=st.integers(2, 12))
@settings(deadline=None, max_examples=40)
def test_copies_are_exactly_zero_apart_and_nothing_is_negative(seed, density, n_rows):
    rows = random_rows(n_rows, 40, seed=seed, density=density)
    distances = pairwise_distances(sp.vstack([rows, rows], format="csr"))
    assert (distances.diagonal(n_rows) == 0).all()
    assert distances.min() >= 0


@pytest.mark.parametrize("other", [None, random_rows(37, 80, seed=1)], ids=["all pairs", "cross"])
def test_the_number_of_threads_changes_no_bit(other):
    rows = random_rows(101, 80)
    one = pairwise_distances(rows, other, n_jobs=1)
    assert np.array_equal(one, pairwise_distances(rows, other, n_jobs=3))


def test_a_distance_depends_on_its_two_rows_only():
    rows = random_rows(50, 80)
    assert np.array_equal(pairwise_distances(rows)[10:40, 10:40], pairwise_distances(rows[10:40]))


@pytest.mark.parametrize("form", [sp.coo_array, sp.csc_matrix, sp.csr_matrix, sp.bsr_array, sp.lil_array])
def test_every_form_is_accepted_and_left_alone(form):
    rows = form(random_rows(9, 12))
    before = rows.toarray().copy()
    np.testing.assert_allclose(pairwise_distances(rows), plain(rows, rows), rtol=1e-12, atol=1e-14)
    assert np.array_equal(rows.toarray(), before)


def test_repeated_entries_are_added_up():
    rows = sp.csr_array(([1.0, 2.0, 4.0], [1, 1, 0], [0, 2, 3]), shape=(2, 3))
    assert pairwise_distances(rows)[0, 1] == 7.0
    assert rows.nnz == 3


def test_out_receives_the_result():
    rows, out = random_rows(40, 30), np.full((40, 40), np.nan)
    assert pairwise_distances(rows, out=out) is out
    assert np.array_equal(out, pairwise_distances(rows))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["embedding", "other"])
def test_nan_and_infinity_are_refused(bad, side):
    rows, broken = random_rows(5, 10), random_rows(5, 10, density=0.6)
    broken.data[3] = bad
    pair = (broken, rows) if side == "embedding" else (rows, broken)
    with pytest.raises(InvalidInputError, match=f"Expected {side} without NaN or infinity, found 1 such"):
        pairwise_distances(*pair)


@pytest.mark.parametrize(
    ("rows", "other", "message"),
    [
        (sp.csr_array((0, 3)), None, "at least one row"),
        (sp.csr_array((2, 3)), sp.csr_array((2, 4)), "as many columns as embedding, 3, found 4"),
        (sp.csr_array([[1e308, 1e308], [1e308, 0.0]]), None, "rows that are farther apart"),
        (sp.csr_array([[1j, 0]]), None, "real numbers"),
    ],
)
def test_unfit_rows_are_refused(rows, other, message):
    with pytest.raises(InvalidInputError, match=message):
        pairwise_distances(rows, other)
