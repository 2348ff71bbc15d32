from __future__ import annotations

import os
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import heatmover as hm
from heatmover._base.validation import (
    check_extra,
    check_finite,
    check_integer,
    check_matrix,
    check_memory,
    check_number,
    check_option,
    check_real,
    check_threads,
    import_extra,
    in_order,
)
from heatmover.errors import InvalidInputError, MissingExtraError
from heatmover.statistics.permutations import check_labels


def test_option_is_one_of_the_words():
    check_option("kernel", "box", ["gaussian", "box"])
    for bad in ["bx", "Box", "", None, 1, ["box"]]:
        with pytest.raises(InvalidInputError, match=r"Expected kernel to be one of 'gaussian', 'box', found"):
            check_option("kernel", bad, ["gaussian", "box"])


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3)])
def test_integer_of_any_type_becomes_an_int(value):
    result = check_integer("k", value, minimum=3)
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("bad", [2, -3, 3.0, np.float64(3), True, np.True_, "3", None, [3]])
def test_integer_refuses(bad):
    with pytest.raises(InvalidInputError, match="Expected k to be a whole number of at least 3, found"):
        check_integer("k", bad, minimum=3)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), Fraction(1, 2), np.float64(0.5)])
def test_number_of_any_type_becomes_a_float(value):
    result = check_number("tol", value, above=0, at_most=0.5)
    assert result == 0.5
    assert type(result) is float


@pytest.mark.parametrize(
    "bad", [0, -1, 0.6, np.nan, np.inf, True, "0.5", None, 0.5j, np.complex128(0.5), Decimal("0.5")]
)
def test_number_refuses(bad):
    with pytest.raises(InvalidInputError, match=r"Expected tol to be a number in \(0, 0.5\], found"):
        check_number("tol", bad, above=0, at_most=0.5)


def test_number_without_upper_end_is_still_finite():
    assert check_number("radius", 1e300, above=0) == 1e300
    with pytest.raises(InvalidInputError, match="radius to be finite, found inf"):
        check_number("radius", np.inf, above=0)
    with pytest.raises(InvalidInputError, match=r"number in \(0, infinity\), found nan"):
        check_number("radius", np.nan, above=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrix_keeps_floating_types(dtype):
    assert check_matrix("x", np.ones((2, 3), dtype)).dtype == dtype


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], dtype=np.uint8),
        np.array([[1, 2], [3, 4]], dtype=object),
        pd.DataFrame({"a": [1, 3], "b": [2.0, 4.0]}),
        np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]])[:, ::2],
    ],
    ids=["list", "uint8", "object", "DataFrame", "Fortran order", "view"],
)
def test_matrix_is_ordered_float64(values):
    result = check_matrix("x", values)
    assert result.dtype == np.float64
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, [[1, 2], [3, 4]])


def test_booleans_are_zeros_and_ones():
    np.testing.assert_array_equal(check_matrix("x", [[True, False]]), [[1, 0]])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, 2.0], r"2-d array, found an array of shape \(2,\)"),
        (1.0, r"2-d array, found an array of shape \(\)"),
        (np.ones((2, 2, 2)), r"2-d array, found an array of shape \(2, 2, 2\)"),
        (np.ones((0, 3)), r"at least one row and one column, found shape \(0, 3\)"),
        (np.ones((3, 0)), r"at least one row and one column, found shape \(3, 0\)"),
        ([[1, 2], [3]], "2-d array of numbers, found list"),
        ([["a", "b"]], "real numbers, found values of type str"),
        ([["1", "2"]], "real numbers, found values of type str"),
        ([[1 + 1j]], "real numbers, found values of type complex128"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), "real numbers, found values of type datetime64"),
        (pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), "2-d array of numbers, found DataFrame"),
        (
            pd.DataFrame({"a": pd.array([1, None], dtype="Int64")}).astype(object),
            "2-d array of numbers, found DataFrame",
        ),
        ({"a": 1}, "2-d array of numbers, found dict"),
        (None, "2-d array, found an array of shape"),
        (sp.csr_array(np.eye(2)), r"dense, found a sparse csr_array; pass its .toarray\(\)"),
        ([[1, np.nan]], r"without NaN or infinity, found 1 such value in 1 row \(first: row 0\)"),
        ([[1, None]], "without NaN or infinity"),
    ],
)
def test_matrix_refuses(values, words):
    with pytest.raises(InvalidInputError, match=f"Expected x .*{words}"):
        check_matrix("x", values)


def test_matrix_lets_nan_pass_if_asked():
    assert np.isnan(check_matrix("x", [[np.nan]], finite=False)).all()


def test_matrix_in_the_type_wanted():
    assert check_matrix("x", [[1]], dtype=np.float32).dtype == np.float32


def test_real_numbers_only():
    for dtype in [bool, np.int8, np.uint64, np.float16, np.float32, np.float64]:
        assert check_real("x", np.dtype(dtype)) == np.float64
    for dtype in [complex, "U3", "S3", "M8[s]", "m8[s]", object]:
        with pytest.raises(InvalidInputError, match="Expected x to be real numbers, found values of type"):
            check_real("x", np.dtype(dtype))


BAD = np.array([[0.0, 1.0, 2.0], [np.nan, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, np.inf, -np.inf]])


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_finite_counts_and_locates(form):
    with pytest.raises(InvalidInputError, match=r"found 3 such values in 2 rows \(first: row 1\); remove these rows"):
        check_finite("x", form(BAD))


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_finite_values_whose_sum_overflows_are_finite(form):
    check_finite("x", form(np.full((2, 2), 1e308)))


def test_threads():
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert check_threads(None) == check_threads(-1) == available
    assert check_threads(3) == 3
    for bad in [0, -2, 1.5, "2", True]:
        with pytest.raises(InvalidInputError, match="n_jobs to be a whole number of at least 1"):
            check_threads(bad)


def test_threads_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert check_threads(None) == 1


def test_extra():
    assert import_extra("math", package="math", extra="none").sqrt(4) == 2
    with pytest.raises(MissingExtraError, match=r"run 'pip install .*heatmover\[exact\]"):
        import_extra("no_such_module_anywhere", package="POT", extra="exact")


def test_an_extra_that_greets_is_not_heard(tmp_path, monkeypatch, capsys):
    (tmp_path / "greets_on_import.py").write_text("print('hello')\nanswer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert import_extra("greets_on_import", package="none", extra="none").answer == 42
    sys.stdout.write("heard\n")
    assert capsys.readouterr().out == "heard\n"
    sys.modules.pop("greets_on_import")


@pytest.mark.parametrize("module", ["no_such_module_anywhere", "no_such_module_anywhere.inside", "json.no_such_module"])
def test_an_extra_is_looked_for_without_its_import(module):
    with pytest.raises(MissingExtraError, match=r"run 'pip install .*heatmover\[exact\]"):
        check_extra(module, package="POT", extra="exact")
    before = set(sys.modules)
    check_extra("antigravity", package="antigravity", extra="none")
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        (1, 1),
        (10**15, 10**15),
        (2.5e9, 2_500_000_000),
        (1.9, 1),
        (np.int64(7), 7),
        (np.float32(512), 512),
        (Fraction(9, 2), 4),
        ("1", 1),
        ("100", 100),
        ("100 B", 100),
        ("2 GB", 2 * 10**9),
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        ("2G", 2 * 10**9),
        ("2 GiB", 2 * 2**30),
        ("2Gi", 2 * 2**30),
        ("512MiB", 512 * 2**20),
        ("1.5 MB", 1_500_000),
        ("3 kB", 3000),
        ("3 KiB", 3072),
        ("1 TB", 10**12),
        (" 64 MB ", 64 * 10**6),
    ],
)
def test_memory_in_bytes(memory, size):
    result = check_memory(memory)
    assert result == size
    assert type(result) is int


@pytest.mark.parametrize(
    "bad",
    [
        *[0, -1, 0.5, np.nan, np.inf, -np.inf, 10**400, "9" * 400],
        *["0 GB", "-1 GB", "", "GB", "lots", "2 XB", "2 GBB", "1e9", "2,5 GB", "1 2"],
        *[True, False, np.True_, None, [1], {"GB": 2}, 1j, np.complex128(5), b"2 GB", np.array([1, 2])],
    ],
    ids=lambda bad: repr(bad)[:20],
)
def test_memory_refuses(bad):
    with pytest.raises(InvalidInputError, match="Expected memory to be a number of bytes or text such as '2 GB'"):
        check_memory(bad)


# --- masked values and names, at every door -----------------------------------------------------------------------


def hiding(values, first=True):
    """The values, one of them masked."""
    array = np.asarray(values)
    mask = np.zeros(array.shape, dtype=bool)
    mask[(0,) * array.ndim if first else (-1,) * array.ndim] = True
    return np.ma.masked_array(array, mask=mask)


def some_points(n=12):
    return np.random.default_rng(0).normal(size=(n, 2))


def some_distances(n=12):
    return np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float)


def fitted():
    return hm.DiffusionEMD(hm.Graph.from_grid((12,)), max_scale=3).fit()


EVEN = np.full((3, 12), 1 / 12)
GROUPS = np.repeat(["a", "b"], 6)

DOORS = {
    "Graph.from_points": lambda: hm.Graph.from_points(hiding(some_points()), n_neighbors=3),
    "Graph.from_points, rows": lambda: hm.Graph.from_points(list(hiding(some_points())), n_neighbors=3),
    "Graph.from_affinity": lambda: hm.Graph.from_affinity(hiding(np.ones((3, 3)))),
    "measures_from_labels": lambda: hm.measures_from_labels(hiding(GROUPS)),
    "measures_from_labels, whole numbers": lambda: hm.measures_from_labels(hiding(np.arange(12))),
    "measures_from_labels, list": lambda: hm.measures_from_labels(["a", "b", np.ma.masked]),
    "measures_from_weights": lambda: hm.measures_from_weights(hiding(EVEN)),
    "fit": lambda: hm.DiffusionEMD(hm.Graph.from_grid((12,))).fit(hiding(EVEN)),
    "transform": lambda: fitted().transform(hiding(EVEN)),
    "transform, rows": lambda: fitted().transform(list(hiding(EVEN))),
    "transform_blocks": lambda: list(fitted().transform_blocks([hiding(EVEN)])),
    "pairwise_distances": lambda: hm.pairwise_distances(hiding(EVEN)),
    "pairwise_distances, other": lambda: hm.pairwise_distances(EVEN, hiding(EVEN)),
    "nearest": lambda: hm.nearest(hiding(EVEN), 1),
    "compare, points": lambda: hm.compare(hiding(some_points()), GROUPS, n_neighbors=3),
    "compare, labels": lambda: hm.compare(some_points(), hiding(GROUPS), n_neighbors=3),
    "Landmarks": lambda: hm.Landmarks.from_points(hiding(some_points()), 3),
    "Landmarks.measures": lambda: hm.Landmarks.from_points(some_points(), 3).measures(GROUPS, hiding([0] * 12)),
    "barycenter, weights": lambda: hm.barycenter(fitted(), EVEN, hiding([1.0, 1.0, 1.0])),
    "explain": lambda: hm.attribution.explain(fitted(), hiding(EVEN[0]), EVEN[1]),
    "precision_at_k": lambda: hm.metrics.precision_at_k(some_distances(), hiding(some_distances()), 2),
    "laplacian_smoothness": lambda: hm.metrics.laplacian_smoothness(some_distances(), hiding(np.arange(12.0)), 2),
    "permanova, distances": lambda: hm.statistics.permanova(hiding(some_distances()), GROUPS),
    "permanova, groups": lambda: hm.statistics.permanova(some_distances(), hiding(GROUPS)),
    "distance_correlation": lambda: hm.statistics.distance_correlation(some_distances(), hiding(np.arange(12.0))),
    "smoothness": lambda: hm.manifold.smoothness(some_distances(), hiding(np.arange(12.0)), k=2),
    "classical_scaling": lambda: hm.manifold.classical_scaling(hiding(some_distances())),
}


@pytest.mark.parametrize("call", DOORS.values(), ids=DOORS)
def test_no_door_lays_masked_values_open(call):
    with pytest.raises(
        InvalidInputError, match=r"^Expected [\w (),]+ without masked values, found \d+ masked; fill or drop|missing"
    ):
        call()


def test_a_mask_that_hides_nothing_is_as_good_as_none():
    points = some_points()
    plain, masked = (hm.Graph.from_points(each, n_neighbors=3) for each in (points, np.ma.masked_array(points)))
    np.testing.assert_array_equal(plain.affinity.toarray(), masked.affinity.toarray())
    assert hm.measures_from_labels(np.ma.masked_array(GROUPS)).names == ("a", "b")


SAME_NAME = [[1, "1"], [True, "True"], [1, 1.0], ["a", "a\0"]]

NAMERS = {
    "groups": lambda pair: hm.statistics.permanova(some_distances(), pair * 6),
    "blocks": lambda pair: hm.statistics.permanova(some_distances(), list(GROUPS), blocks=pair * 6),
    "signal": lambda pair: hm.manifold.smoothness(some_distances(), [*pair * 5, "c", "d"], k=2),
    "mapping": lambda pair: in_order(dict(zip([*pair, "c"], "xyz", strict=True)), ("1", "c"), "x"),
    "index": lambda pair: in_order(pd.Series(list("xyz"), index=pd.Index([*pair, "c"], dtype=object)), ("1", "c"), "x"),
    "annotation": lambda pair: check_labels("annotation", pair, 2, of="point"),
}


@pytest.mark.parametrize("pair", SAME_NAME, ids=str)
@pytest.mark.parametrize("call", NAMERS.values(), ids=NAMERS)
def test_labels_that_would_be_one_by_name_are_refused_everywhere(call, pair):
    if len(dict.fromkeys(pair)) == 1 and call is NAMERS["mapping"]:
        pytest.skip("one key to Python itself")
    with pytest.raises(InvalidInputError, match=r"distinct names, found .* with the same name|without NUL"):
        call(pair)


def test_chunks_of_histograms_name_their_samples_alike():
    landmarks = hm.Landmarks.from_points(some_points(), 3)
    histograms = landmarks.histograms().add(some_points(), [1] * 12)
    with pytest.raises(InvalidInputError, match="distinct names, found 1 and '1' with the same name"):
        histograms.add(some_points(), ["1"] * 12)
    with pytest.raises(InvalidInputError, match="distinct names"):
        histograms.add(some_points(), [1.0] * 12)
    assert histograms.n_points == 12
    assert histograms.add(some_points(), np.ones(12, dtype=int)).measures().names == ("1",)


def test_a_sample_twice_in_an_index_is_refused():
    with pytest.raises(InvalidInputError, match="x for each of the 2 samples, found more than one for 'b'"):
        in_order(pd.Series([1, 2, 3], index=["a", "b", "b"]), ("a", "b"), "x")


@pytest.mark.parametrize("place", ["indptr", "indices"])
@pytest.mark.parametrize("use", [hm.Graph.from_affinity, hm.measures_from_weights, hm.pairwise_distances])
def test_a_sparse_matrix_that_contradicts_itself_reaches_no_compiled_code(use, place):
    matrix = sp.csr_array(np.eye(6) + 1.0)
    getattr(matrix, place)[3] = 10**6
    with pytest.raises(InvalidInputError, match="a consistent sparse matrix"):
        use(matrix)
