from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from heatmover.errors import InvalidInputError
from heatmover.measures import Measures, check_measures, measures_from_labels, measures_from_weights

SPARSE = [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.lil_array]
# NumPy 1 has no type of its own for strings.
StringDType = getattr(np.dtypes, "StringDType", lambda **_: object)
FORMS = [np.asarray, *SPARSE, pd.DataFrame]


def parts(matrix):
    """Return the arrays that a dense, CSR, CSC or COO matrix or a DataFrame consists of."""
    names = [name for name in ("data", "indices", "indptr", "coords") if sp.issparse(matrix) and hasattr(matrix, name)]
    return [np.asarray(getattr(matrix, name)) for name in names] or [np.asarray(matrix)]


# --- from labels


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b", "c"],
        ("b", "a", "b", "c"),
        np.array(["b", "a", "b", "c"]),
        np.array(["b", "a", "b", "c"], dtype=object),
        np.array(["b", "a", "b", "c"], dtype=StringDType()),
        pd.Series(["b", "a", "b", "c"]),
        pd.Series(["b", "a", "b", "c"], dtype=object),
        pd.Series(["b", "a", "b", "c"], dtype="string"),
        pd.Series(["b", "a", "b", "c"], index=[7, 7, 1, 0]),
        pd.Categorical(["b", "a", "b", "c"]),
        pd.Categorical(["b", "a", "b", "c"], categories=["z", "c", "b", "a"]),
        pd.Series(["b", "a", "b", "c"], dtype="category"),
        pd.Index(["b", "a", "b", "c"]),
    ],
    ids=lambda labels: f"{type(labels).__name__}-{getattr(labels, 'dtype', '')}",
)
def test_one_uniform_measure_per_label(labels):
    measures = measures_from_labels(labels)
    assert measures.names == ("a", "b", "c")
    assert measures.shape == (3, 4)
    assert len(measures) == 3
    np.testing.assert_array_equal(measures.toarray(), [[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 10, 100], ("9", "10", "100")),
        (np.array([10, 9, 10, 100], dtype=np.uint8), ("9", "10", "100")),
        (np.array([10, 9, 10, 100], dtype=object), ("9", "10", "100")),
        (pd.array([10, 9, 10, 100], dtype="Int64"), ("9", "10", "100")),
        (pd.Categorical([10, 9, 10, 100]), ("9", "10", "100")),
        ([10.0, 9.5, 10.0, 100.0], ("9.5", "10.0", "100.0")),
        ([True, False, True, False], ("False", "True")),
    ],
    ids=["list", "uint8", "object", "Int64", "Categorical", "float", "bool"],
)
def test_labels_are_sorted_by_value(labels, names):
    measures = measures_from_labels(labels)
    assert measures.names == names
    assert measures.toarray()[1].tolist() == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize("unit", ["D", "s", "ns"])
def test_dates_are_named_by_date(unit):
    labels = np.array(["2021-10-01", "2021-09-01", "2021-10-01"], dtype=f"M8[{unit}]")
    for dates in (labels, pd.Series(labels)):
        measures = measures_from_labels(dates)
        assert [name[:10] for name in measures.names] == ["2021-09-01", "2021-10-01"]
        np.testing.assert_array_equal(measures.toarray(), [[0, 1, 0], [0.5, 0, 0.5]])


def test_labels_of_several_types_are_distinguishable_by_name():
    measures = measures_from_labels(np.array(["a", 1, "2", "a"], dtype=object))
    assert measures.names == ("1", "2", "a")
    np.testing.assert_array_equal(measures.toarray(), [[0, 1, 0, 0], [0, 0, 1, 0], [0.5, 0, 0, 0.5]])


SAME_NAME = {
    "number and text": [1, "1", "a"],
    "truth and text": [True, "True"],
    "whole number and fraction": [1, 1.0, "a"],
    "truth and number": [1, True, "a"],
    "NumPy's number and text": [np.int64(1), np.str_("1")],
    "NUL at the end": ["a", "a\0"],
    "NUL inside": ["a\0b", "b"],
}


@pytest.mark.parametrize("labels", SAME_NAME.values(), ids=SAME_NAME)
def test_labels_that_would_be_one_by_name_are_refused(labels):
    with pytest.raises(InvalidInputError, match=r"distinct names, found .* with the same name|without NUL"):
        measures_from_labels(labels)
    with pytest.raises(InvalidInputError, match=r"distinct names, found .* with the same name|without NUL"):
        measures_from_labels(np.array(labels, dtype=object))
    with pytest.raises(InvalidInputError, match=r"distinct names, found .* with the same name|without NUL"):
        measures_from_weights(np.eye(len(labels)), names=labels)
    with pytest.raises(InvalidInputError, match=r"distinct names, found .* with the same name|without NUL"):
        measures_from_weights(pd.DataFrame(np.eye(len(labels)), index=pd.Index(labels, dtype=object)))


def test_one_label_of_two_types_is_one_label():
    assert measures_from_labels(["a", np.str_("a")]).names == ("a",)
    assert measures_from_labels(np.array([1, np.int32(1)], dtype=object)).names == ("1",)


@pytest.mark.parametrize(
    "labels",
    [
        ["a", None, "b"],
        ["a", float("nan"), "b"],
        ("a", np.nan, "b"),
        [1, None, 2],
        [1.0, np.nan, 2.0],
        ["a", pd.NA, "b"],
        np.array(["a", np.float32("nan"), "b"], dtype=object),
        np.array(["a", None, "b"], dtype=StringDType(na_object=None)),
        np.array(["2021-01-01", "NaT", "2021-01-02"], dtype="M8[D]"),
        pd.Series(["a", None, "b"]),
        pd.Series(["a", np.nan, "b"], dtype=object),
        pd.Series(["a", None, "b"], dtype="string"),
        pd.Series(["a", None, "b"], dtype="category"),
        pd.Categorical([1, None, 2]),
        pd.array([1, None, 2], dtype="Int64"),
        pd.to_datetime(["2021-01-01", None, "2021-01-02"]),
        np.array([pd.Timestamp("2021-01-01"), pd.NaT, None], dtype=object)[[0, 1, 0]],
    ],
    ids=lambda labels: f"{type(labels).__name__}-{getattr(labels, 'dtype', '')}",
)
def test_missing_labels_are_refused(labels):
    with pytest.raises(InvalidInputError, match=r"a label for every point, found 1 missing \(first: point 1\); drop"):
        measures_from_labels(labels)


@pytest.mark.parametrize(
    "labels",
    [[], "abc", 3, None, [["a"], ["b"]], pd.DataFrame({"sample": ["a", "b"]}), {"a", "b"}],
    ids=lambda labels: type(labels).__name__,
)
def test_labels_of_another_shape_are_refused(labels):
    with pytest.raises(InvalidInputError, match=r"one label per point, shape \(n_points,\)"):
        measures_from_labels(labels)


def test_names_choose_and_order():
    labels = ["a", "b", "c", "b"]
    measures = measures_from_labels(labels, names=["c", "b"])
    assert measures.names == ("c", "b")
    np.testing.assert_array_equal(measures.toarray(), [[0, 0, 1, 0], [0, 0.5, 0, 0.5]])


@pytest.mark.parametrize("names", [[2, 10], ["2", "10"], np.array([2, 10]), (name for name in (2, 10))])
def test_names_match_labels_of_another_type(names):
    measures = measures_from_labels([10, 2, 2], names=names)
    assert measures.names == ("2", "10")
    np.testing.assert_array_equal(measures.toarray(), [[0, 0.5, 0.5], [1, 0, 0]])


def test_every_point_in_one_measure():
    np.testing.assert_array_equal(measures_from_labels(["only"] * 4).toarray(), [[0.25] * 4])


def test_as_many_measures_as_points():
    np.testing.assert_array_equal(measures_from_labels(range(5)).toarray(), np.eye(5))


def test_bad_names():
    with pytest.raises(InvalidInputError, match="every name to have at least one point, found no point labeled 'z'"):
        measures_from_labels(["a", "b"], names=["a", "z"])
    with pytest.raises(InvalidInputError, match="distinct names, found 1 repeated"):
        measures_from_labels(["a", "b"], names=["a", "b", "a"])
    with pytest.raises(InvalidInputError, match="at least one name, found none"):
        measures_from_labels(["a", "b"], names=[])


def test_an_unused_category_is_no_measure_unless_asked_for():
    labels = pd.Categorical(["a", "b"], categories=["a", "b", "empty"])
    assert measures_from_labels(labels).names == ("a", "b")
    with pytest.raises(InvalidInputError, match="no point labeled 'empty'"):
        measures_from_labels(labels, names=labels.categories)


# --- from weights

WEIGHTS = np.array([[2.0, 2.0, 0.0, 0.0], [0.0, 1.0, 3.0, 0.0]])
MASSES = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0]])
WEIGHTS.flags.writeable = MASSES.flags.writeable = False


@pytest.mark.parametrize("form", [*FORMS, np.ndarray.tolist], ids=lambda form: form.__name__)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_weights_in_any_form(form, dtype):
    measures = measures_from_weights(form(WEIGHTS.astype(dtype)))
    np.testing.assert_array_equal(measures.toarray(), MASSES)
    assert measures.names == ("0", "1")
    assert measures.masses.format == "csr"
    assert measures.masses.dtype == np.float64


def test_boolean_weights_are_memberships():
    expected = [[0.5, 0.5, 0.0]]
    np.testing.assert_array_equal(measures_from_weights([[True, True, False]]).toarray(), expected)
    np.testing.assert_array_equal(measures_from_weights(sp.csr_array([[True, True, False]])).toarray(), expected)


def test_duplicate_entries_add_up():
    weights = sp.coo_array(([1.0, 1.0, 2.0], ([0, 0, 0], [1, 1, 0])), shape=(1, 3))
    np.testing.assert_array_equal(measures_from_weights(weights).toarray(), [[0.5, 0.5, 0]])


def test_names_of_weights():
    frame = pd.DataFrame(WEIGHTS, index=["p1", 2])
    assert measures_from_weights(frame).names == ("p1", "2")
    assert measures_from_weights(frame, names=["x", "y"]).names == ("x", "y")
    assert measures_from_weights(WEIGHTS, names=[7, 8]).names == ("7", "8")
    assert measures_from_weights(measures_from_weights(frame)).names == ("p1", "2")
    with pytest.raises(InvalidInputError, match=r"one name per row \(2\), found 3 names"):
        measures_from_weights(WEIGHTS, names=["x", "y", "z"])


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1e300])
def test_weights_of_any_magnitude(scale):
    np.testing.assert_allclose(measures_from_weights(WEIGHTS * scale).toarray(), MASSES, rtol=1e-15)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csc_array, pd.DataFrame], ids=lambda form: form.__name__)
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0.5, -0.5, 1.0], "non-negative measures, found a smallest value of -0.5"),
        ([0.5, np.nan, 0.5], r"without NaN or infinity, found 1 such value in 1 row \(first: row 1\)"),
        ([0.5, np.inf, 0.5], r"without NaN or infinity, found 1 such value in 1 row \(first: row 1\)"),
        ([0.0, 0.0, 0.0], r"every measure to have mass, found 1 row that sums to zero \(first: row 1\); drop"),
        ([1e308, 1e308, 0.0], "weights with a finite sum, found an overflow in row 1"),
    ],
    ids=["negative", "NaN", "infinite", "zero", "overflow"],
)
def test_values_that_are_no_weights(form, row, words):
    with pytest.raises(InvalidInputError, match=words):
        measures_from_weights(form(np.array([[0.2, 0.3, 0.5], row])))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, 2.0], "2-d array"),
        (np.ones((0, 3)), "at least one row"),
        (np.ones((3, 0)), "at least one row and one column"),
        (sp.csr_array((0, 3)), r"\(n_measures, n_points\), found shape \(0, 3\)"),
        (sp.csr_array((3, 0)), r"\(n_measures, n_points\), found shape \(3, 0\)"),
        (sp.coo_array(np.ones(3)), r"\(n_measures, n_points\), found shape \(3,\)"),
        ([["a", "b"]], "real numbers"),
        ([["1", "2"]], "real numbers"),
        ([[1j, 1]], "real numbers, found values of type complex128"),
        (sp.csr_array([[1j, 1]]), "real numbers, found values of type complex128"),
        (pd.DataFrame({"sample": ["a"], "b cells": [3]}), "2-d array of numbers"),
        ("weights.csv", "real numbers"),
        (None, "2-d array"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_things_that_are_no_weights(weights, words):
    with pytest.raises(InvalidInputError, match=words):
        measures_from_weights(weights)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=lambda form: form.__name__)
def test_unnormalized_rows_are_refused_unless_asked_to_normalize(form):
    rows = form(np.array([[0.5, 0.5], [0.5, 0.75]]))
    words = r"sum to one, found 1 row that does not \(first: row 1, sum 1.25\); use measures_from_weights"
    with pytest.raises(InvalidInputError, match=words):
        measures_from_weights(rows, normalize=False)
    with pytest.raises(InvalidInputError, match=words):
        check_measures(rows)
    assert measures_from_weights(rows).toarray()[1].tolist() == [0.4, 0.6]


def test_rounding_of_single_precision_is_forgiven():
    rows = np.random.default_rng(0).random((3, 100_000), dtype=np.float32)
    rows /= rows.sum(axis=1, keepdims=True)
    assert np.abs(rows.sum(axis=1, dtype=np.float64) - 1).max() > 1e-12
    np.testing.assert_allclose(check_measures(rows).sum(axis=1), 1, atol=1e-12)


# --- at the door of everything that takes measures


def test_width_is_that_of_the_graph():
    assert check_measures(MASSES, n_points=4).shape == (2, 4)
    with pytest.raises(InvalidInputError, match="the graph's 5 points, found rows of width 4; rows are measures"):
        check_measures(MASSES, n_points=5)
    with pytest.raises(InvalidInputError, match="transpose the matrix"):
        check_measures(sp.csr_array(MASSES.T), n_points=4)


def test_dense_stays_dense_and_sparse_stays_sparse():
    assert isinstance(check_measures(MASSES), np.ndarray)
    assert isinstance(check_measures(pd.DataFrame(MASSES)), np.ndarray)
    for form in SPARSE:
        assert check_measures(form(MASSES)).format == "csr"
    assert check_measures(measures_from_weights(MASSES)).format == "csr"


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("form", [np.array, sp.csr_array, sp.csc_array, sp.coo_array, pd.DataFrame])
def test_input_is_never_changed(form, normalize):
    matrix = form(MASSES)
    before = [part.copy() for part in parts(matrix)]
    writable = [part.flags.writeable for part in parts(matrix)]
    rows = check_measures(matrix, normalize=normalize)
    measures_from_weights(matrix, normalize=normalize)
    for part, old in zip(parts(matrix), before, strict=True):
        np.testing.assert_array_equal(part, old)
    assert [part.flags.writeable for part in parts(matrix)] == writable
    assert not np.shares_memory(parts(rows)[0], parts(matrix)[0])


def test_unsorted_and_repeated_entries_stay_as_they_are():
    weights = sp.csr_array((np.array([1.0, 2.0, 1.0]), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 4))
    result = check_measures(weights, normalize=True)
    np.testing.assert_array_equal(result.toarray(), [[0.5, 0, 0.5, 0]])
    assert weights.indices.tolist() == [2, 0, 2]
    assert weights.data.tolist() == [1, 2, 1]


def test_measures_do_not_share_memory_with_the_matrix_they_came_from():
    weights = sp.csr_array(WEIGHTS, copy=True)
    measures = measures_from_weights(weights)
    weights.data[:] = 7
    weights.indices[:] = 0
    weights.indptr[1] = 0
    np.testing.assert_array_equal(measures.toarray(), MASSES)


# --- the value itself


@pytest.mark.parametrize("make", [lambda m: m, copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_measures_are_immutable(make):
    measures = make(measures_from_labels(["a", "b", "a"]))
    np.testing.assert_array_equal(measures.toarray(), [[0.5, 0, 0.5], [0, 1, 0]])
    assert measures.names == ("a", "b")
    for part in (measures.masses.data, measures.masses.indices, measures.masses.indptr):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 1
    with pytest.raises(FrozenInstanceError):
        measures.names = ("x", "y")


def test_a_dense_copy_may_be_written_to():
    measures = measures_from_labels(["a", "b"])
    measures.toarray()[0, 0] = 5
    np.testing.assert_array_equal(measures.toarray(), np.eye(2))


def test_repr_is_short():
    assert repr(measures_from_labels(["a", "b"])) == "Measures(2 measures on 2 points: a, b)"
    assert repr(measures_from_labels(range(9))) == "Measures(9 measures on 9 points: 0, 1, 2, ...)"


def test_hand_made_measures_are_checked_when_used():
    assert check_measures(Measures(sp.coo_array(MASSES), ("a", "b"))).format == "csr"
    with pytest.raises(InvalidInputError, match="sum to one"):
        check_measures(Measures(sp.csr_array(WEIGHTS), ("a", "b")))


# --- invariants

weights_tables = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.one_of(st.just(0.0), st.floats(1e-100, 1e100)),
).filter(lambda table: (table.sum(axis=1) > 0).all())


@settings(deadline=None, max_examples=60)
@given(weights_tables, st.randoms(use_true_random=False))
def test_invariants_of_weights(table, random):
    rows = check_measures(table, normalize=True)
    np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-14)
    assert (rows >= 0).all()
    assert ((rows > 0) <= (table > 0)).all()
    np.testing.assert_allclose(check_measures(sp.csr_array(table), normalize=True).toarray(), rows, rtol=1e-14)
    np.testing.assert_allclose(measures_from_weights(table).toarray(), rows, rtol=1e-14)
    order = random.sample(range(table.shape[1]), table.shape[1])
    np.testing.assert_allclose(check_measures(table[:, order], normalize=True), rows[:, order], rtol=1e-14)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(-5, 5) | st.sampled_from(["x", "y", ""]), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_invariants_of_labels(labels, random):
    measures = measures_from_labels(labels)
    dense = measures.toarray()
    np.testing.assert_allclose(dense.sum(axis=1), 1, rtol=1e-14)
    assert ((dense > 0).sum(axis=0) == 1).all()
    assert [measures.names[row] for row in dense.argmax(axis=0)] == [str(label) for label in labels]
    order = random.sample(range(len(labels)), len(labels))
    shuffled = measures_from_labels([labels[i] for i in order])
    assert shuffled.names == measures.names
    np.testing.assert_array_equal(shuffled.toarray(), dense[:, order])


def some_measures():
    return measures_from_weights([[2, 2, 0], [0, 1, 3], [1, 0, 0], [0, 0, 5]], names=["x", "y", "z", "w"])


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, -1), [3, 2, 1, 0]),
        (slice(9, 12), []),
        ([], []),
        ([2, 0, -1, 2], [2, 0, 3, 2]),
        (np.array([1, 3], dtype=np.uint8), [1, 3]),
        ([True, False, False, True], [0, 3]),
        (np.array([False, True, False, False]), [1]),
        (["w", "x"], [3, 0]),
        (np.array(["y"], dtype=object), [1]),
        (([0, 2], ...), [0, 2]),
        ((slice(1, 2), slice(None)), [1]),
        (..., [0, 1, 2, 3]),
    ],
)
def test_measures_are_chosen_as_rows_of_an_array_are(key, rows):
    measures = some_measures()
    chosen = measures[key]
    assert isinstance(chosen, Measures)
    assert chosen.names == tuple(measures.names[row] for row in rows)
    assert np.array_equal(chosen.toarray(), measures.toarray()[rows])
    assert not chosen.masses.data.flags.writeable


def test_one_number_or_one_name_is_the_masses_of_one_measure():
    measures = some_measures()
    whole = measures.toarray()
    for one in (measures[1], measures[np.int64(1)], measures[-3], measures["y"], measures[np.str_("y")]):
        assert type(one) is np.ndarray
        assert np.array_equal(one, whole[1])
    assert np.array_equal(np.stack(list(measures)), whole)
    assert "y" in measures
    assert "v" not in measures
    assert len(measures) == 4
    assert measures.ndim == 2
    assert measures.dtype == np.float64


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (4, "Expected indices of 4 measures, found 4"),
        ([0, -5], "found -5"),
        ([True, False], "Expected a mask for 4 measures, found a mask of 2 values"),
        ("X", "did you mean 'x'"),
        ("nowhere", "there are 'x', 'y'"),
        (1.0, "Expected indices, names, a mask or a slice"),
        (True, "Expected indices, names, a mask or a slice"),
        ([[0, 1]], r"shape \(1, 2\)"),
        ((0, 1), "to select points, index measures.masses"),
        ((slice(None), [0]), "to select points, index measures.masses"),
        (None, "to select points, index measures.masses"),
    ],
)
def test_an_index_that_means_nothing_is_refused(key, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        some_measures()[key]
    assert isinstance(caught.value, IndexError)


def test_a_name_of_two_measures_is_refused_but_their_numbers_are_not():
    twice = some_measures()[[0, 0, 1]]
    with pytest.raises(InvalidInputError, match="'x' more than once"):
        twice["x"]
    assert twice["y"].tolist() == [0, 0.25, 0.75]
    assert twice[:2].names == ("x", "x")


def test_numpy_makes_a_dense_copy_and_none_without_a_copy():
    measures = some_measures()
    one, two = np.asarray(measures), np.array(measures, dtype=np.float32)
    assert np.array_equal(one, measures.toarray())
    assert two.dtype == np.float32
    one[0, 0] = 7  # a copy of its own
    assert measures[0][0] == 0.5
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="copy"):
            np.array(measures, copy=False)


def test_scikit_learn_splits_measures_and_their_names():
    from sklearn.model_selection import train_test_split
    from sklearn.utils import resample

    measures = some_measures()
    one, two = train_test_split(measures, test_size=0.5, random_state=0)
    assert sorted(one.names + two.names) == sorted(measures.names)
    assert len(resample(measures, random_state=0)) == 4


def test_a_name_twice_is_refused():
    with pytest.raises(InvalidInputError, match="distinct names of measures, found 'a' more than once"):
        measures_from_weights(np.eye(2), names=["a", "a"])
