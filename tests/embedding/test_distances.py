from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import heatmover as hm
from heatmover.embedding.distances import for_each_tile, pairwise_distances
from heatmover.errors import EmbeddingWarning, InvalidInputError

# Relative to float64: what float32 rows may lose, and what a different order of float64 additions may.
TOLERANCE = {np.float32: 1e-6, np.float64: 1e-13}


@pytest.fixture(autouse=True, scope="module")
def threads_for_any_work():
    """Use the threads asked for, however small the input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heatmover.embedding.distances.FEATURE_PAIRS_PER_THREAD", 1)
        yield


def brute_force(rows, others):
    """The definition, in float64 throughout: slow and obviously right."""
    a, b = np.asarray(rows, np.float64), np.asarray(others, np.float64)
    return np.array([[np.abs(x - y).sum() for y in b] for x in a])


def random_rows(n_rows, n_features, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, n_features)).astype(dtype)


# Widths around the vector length and the chunk of features, heights around the register group and the tile.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [1, 7, 8, 100, 1023, 1024, 1025, 2500])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 50, 101])
def test_all_pairs_agree_with_the_definition(n_rows, n_features, dtype):
    rows = random_rows(n_rows, n_features, dtype)
    distances = pairwise_distances(rows)
    assert distances.dtype == np.float64
    np.testing.assert_allclose(distances, brute_force(rows, rows), rtol=TOLERANCE[dtype])
    assert (distances == distances.T).all()
    assert (distances.diagonal() == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n_rows", "n_others"), [(1, 1), (1, 200), (200, 1), (7, 50), (101, 52)])
def test_cross_distances_agree_with_the_definition(n_rows, n_others, dtype):
    rows, others = random_rows(n_rows, 1100, dtype), random_rows(n_others, 1100, dtype, seed=1)
    distances = pairwise_distances(rows, others)
    np.testing.assert_allclose(distances, brute_force(rows, others), rtol=TOLERANCE[dtype])


@given(data=st.data(), dtype=st.sampled_from([np.float32, np.float64]))
@settings(deadline=None, max_examples=60)
def test_metric_axioms(data, dtype):
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=20))
    values = st.floats(-1e3, 1e3, width=32)
    rows = data.draw(hnp.arrays(dtype, shape, elements=values))
    distances = pairwise_distances(rows)
    rounding = 1e-6 * np.abs(rows).sum()
    np.testing.assert_allclose(distances, brute_force(rows, rows), rtol=1e-6, atol=1e-30)
    assert (distances >= 0).all()
    assert (distances == distances.T).all()
    assert (distances.diagonal() == 0).all()
    # d(i, k) <= d(i, j) + d(j, k) for all three at once.
    assert (distances[:, None, :] <= distances[:, :, None] + distances[None, :, :] + rounding).all()


@pytest.mark.parametrize(
    "row",
    [np.full(40_000, 0.1), np.concatenate([np.full(8, 1.0), np.full(39_992, 5e-8)]), np.geomspace(1e-6, 1e6, 40_000)],
    ids=["constant", "large terms first", "twelve decades"],
)
def test_float32_sums_stay_accurate_where_rounding_is_systematic(row):
    rows = np.stack([row, np.zeros_like(row)]).astype(np.float32)
    np.testing.assert_allclose(pairwise_distances(rows), brute_force(rows, rows), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [5, 3000])
def test_a_distance_depends_on_its_two_rows_only(n_features, dtype):
    rows = random_rows(110, n_features, dtype)
    whole = pairwise_distances(rows)
    order = np.random.default_rng(1).permutation(110)
    assert (pairwise_distances(rows[order]) == whole[np.ix_(order, order)]).all()
    assert (pairwise_distances(rows, rows) == whole).all()
    assert (pairwise_distances(rows[5:6], rows[3:50]) == whole[5:6, 3:50]).all()
    assert pairwise_distances(rows[[8, 77]])[0, 1] == whole[8, 77]


@pytest.mark.parametrize("other", [None, random_rows(37, 2100, seed=1)], ids=["all pairs", "cross"])
def test_the_number_of_threads_changes_no_bit(other):
    rows = random_rows(150, 2100)
    expected = pairwise_distances(rows, other, n_jobs=1)
    for n_jobs in (None, -1, 2, 3, 8):
        assert (pairwise_distances(rows, other, n_jobs=n_jobs) == expected).all()


def test_threads_work_at_the_same_time():
    meeting, met = threading.Barrier(2, timeout=60), set()

    def consume(i, j, tile):
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            meeting.wait()  # fails unless a second thread comes

    for_each_tile(random_rows(100, 20), None, consume, n_threads=2, limit=np.inf)
    assert len(met) == 2


def test_little_work_starts_no_threads(monkeypatch):
    monkeypatch.setattr("heatmover.embedding.distances.FEATURE_PAIRS_PER_THREAD", 10_001)
    callers = set()
    for_each_tile(
        random_rows(100, 1), None, lambda i, j, tile: callers.add(threading.get_ident()), n_threads=2, limit=np.inf
    )
    assert callers == {threading.get_ident()}


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_reaches_the_caller(n_threads):
    def fail(i, j, tile):
        raise KeyError("from a thread")

    with pytest.raises(KeyError, match="from a thread"):
        for_each_tile(random_rows(1000, 20), None, fail, n_threads=n_threads, limit=np.inf)


def test_concurrent_calls_do_not_disturb_each_other():
    inputs = [random_rows(60, 500, seed=seed) for seed in range(8)]
    expected = [pairwise_distances(rows, n_jobs=1) for rows in inputs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda rows: pairwise_distances(rows, n_jobs=2), inputs))
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def unaligned(rows):
    memory = np.zeros(rows.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(rows.tobytes(), np.uint8)
    return memory[1:].view(rows.dtype).reshape(rows.shape)


@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
        lambda rows: rows.astype(">f8"),
        lambda rows: rows.astype(">f4"),
        lambda rows: rows.astype(np.float16),
        lambda rows: rows.astype(np.longdouble),
        lambda rows: rows.astype(np.int8),
        lambda rows: rows > 0,
        unaligned,
        np.ndarray.tolist,
    ],
    ids=["F", "strided", "big f8", "big f4", "f2", "long", "int", "bool", "unaligned", "list"],
)
def test_every_form_of_numbers_is_accepted(form):
    rows = form(np.round(random_rows(10, 30)))
    plain = np.asarray(rows, np.float64)
    np.testing.assert_allclose(pairwise_distances(rows), brute_force(plain, plain), rtol=1e-12)


def test_data_frames_give_plain_arrays():
    pandas = pytest.importorskip("pandas")
    rows = random_rows(5, 4, np.float32)
    distances = pairwise_distances(pandas.DataFrame(rows), pandas.DataFrame(rows))
    assert type(distances) is np.ndarray
    assert (distances == pairwise_distances(rows)).all()


def test_mixed_precision_is_computed_in_float64():
    single, double = random_rows(4, 50, np.float32), random_rows(6, 50, seed=1)
    np.testing.assert_allclose(pairwise_distances(single, double), brute_force(single, double), rtol=1e-13)


def test_input_is_neither_changed_nor_locked():
    rows = random_rows(6, 6)
    before = rows.copy()
    pairwise_distances(rows)
    assert rows.flags.writeable
    assert (rows == before).all()


def test_read_only_and_writable_input_share_one_compilation():
    from heatmover._base.compiled.l1 import l1_tile

    rows = random_rows(100, 20)
    pairwise_distances(rows)
    compiled = len(l1_tile.signatures)
    rows.flags.writeable = False
    pairwise_distances(rows)
    pairwise_distances(rows[:1], rows[:, :20])
    assert len(l1_tile.signatures) == compiled


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_out_receives_the_result(dtype):
    rows, others = random_rows(70, 30), random_rows(60, 30, seed=1)
    for other in (None, others):
        expected = pairwise_distances(rows, other).astype(dtype)
        backing = np.zeros((expected.shape[0], 2 * expected.shape[1]), dtype)
        out = backing[:, ::2]
        assert pairwise_distances(rows, other, out=out) is out
        assert (out == expected).all()
        assert (backing[:, 1::2] == 0).all()


def test_out_can_be_a_memory_map(tmp_path):
    rows = random_rows(70, 30)
    out = np.memmap(tmp_path / "distances", np.float64, "w+", shape=(70, 70))
    pairwise_distances(rows, out=out)
    out.flush()
    stored = np.fromfile(tmp_path / "distances").reshape(70, 70)
    assert (stored == pairwise_distances(rows)).all()


def read_only(shape):
    array = np.zeros(shape)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.zeros((3, 4)), r"the argument out to be an array of shape \(3, 3\) .* found shape \(3, 4\)"),
        (np.zeros((3, 3), np.int64), "type float64 or float32, found .* int64"),
        (np.zeros((3, 3), ">f8"), "type float64 or float32, found .* >f8"),
        (read_only((3, 3)), "a writable array, found a read-only array"),
        ([[0.0] * 3] * 3, "out to be a numpy array, found list"),
    ],
)
def test_unfit_out_is_refused(out, message):
    with pytest.raises(InvalidInputError, match=message):
        pairwise_distances(random_rows(3, 5), out=out)


def test_out_must_not_be_the_input():
    rows = random_rows(4, 4)
    with pytest.raises(InvalidInputError, match="does not overlap the input"):
        pairwise_distances(rows, out=rows)
    with pytest.raises(InvalidInputError, match="does not overlap the input"):
        pairwise_distances(random_rows(4, 4, seed=1), rows, out=rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_rows", [1, 2, 60, 150])
def test_nan_and_infinity_are_refused_wherever_they_are(n_rows, bad, dtype):
    fine = random_rows(n_rows, 40, dtype, seed=1)
    for place in [(0, 0), (n_rows - 1, 39), (n_rows // 2, 17)]:
        rows = random_rows(n_rows, 40, dtype)
        rows[place] = bad
        match = rf"embedding without NaN or infinity, found 1 such value in 1 row \(first: row {place[0]}\)"
        with pytest.raises(InvalidInputError, match=match):
            pairwise_distances(rows)
        with pytest.raises(InvalidInputError, match=match):
            pairwise_distances(rows, fine)
        with pytest.raises(InvalidInputError, match="other without NaN"):
            pairwise_distances(fine, rows)


def test_two_infinite_rows_do_not_hide_each_other():
    with pytest.raises(InvalidInputError, match="2 such values in 2 rows"):
        pairwise_distances([[np.inf, 0.0], [np.inf, 1.0]])


@pytest.mark.parametrize(
    ("rows", "out"),
    [
        (np.array([[3e38], [-3e38]], np.float32), None),
        (np.array([[1e308], [-1e308]]), None),
        (np.array([[1e308] * 3, [0.0] * 3]), None),
        (np.array([[1e39], [0.0]]), np.zeros((2, 2), np.float32)),
    ],
    ids=["float32", "float64", "sum", "out"],
)
def test_distances_beyond_the_type_are_refused(rows, out):
    with pytest.raises(InvalidInputError, match=r"distances below .* scale them down"):
        pairwise_distances(rows, out=out)


@pytest.mark.parametrize(
    ("rows", "other", "message"),
    [
        ([1.0, 2.0], None, r"embedding to be a 2-d array, found an array of shape \(2,\)"),
        ([[1.0]], [1.0], "other to be a 2-d array"),
        (np.zeros((0, 3)), None, "at least one row"),
        (np.zeros((3, 0)), None, "at least one row and one column"),
        ([[1.0]], np.zeros((0, 1)), "other to have at least one row"),
        ([[1.0, 2.0]], [[1.0]], "as many columns as embedding, 2, found 1"),
        ([["a"]], None, "embedding to be .* numbers"),
    ],
)
def test_unfit_rows_are_refused(rows, other, message):
    with pytest.raises(InvalidInputError, match=message):
        pairwise_distances(rows, other)


@pytest.mark.parametrize("n_jobs", [0, -2, 1.5, "all"])
def test_unfit_n_jobs_is_refused(n_jobs):
    with pytest.raises(InvalidInputError, match="n_jobs"):
        pairwise_distances([[1.0]], n_jobs=n_jobs)


def peak_of(call):
    call()  # compiles
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_working_memory_is_small_tiles_only(dtype):
    wide, narrow = random_rows(200, 10_000, dtype), random_rows(1000, 10, dtype)
    for rows in (wide, narrow):
        for other in (None, rows):
            out = np.empty((len(rows), len(rows)))
            # A tile has at most 192 x 192 float64 (0.3 MB); the data are 8 to 16 MB, or the result is 8 MB.
            assert peak_of(partial(pairwise_distances, rows, other, out=out, n_jobs=2)) < 1_000_000


def test_importing_costs_no_numba():
    code = "import sys, heatmover.embedding.distances, heatmover.embedding.neighbors; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0


MEASURES = hm.measures_from_labels(["a", "b", "a", "c"])


@pytest.mark.parametrize(
    "call",
    [
        lambda: pairwise_distances(MEASURES),
        lambda: pairwise_distances(np.eye(4), MEASURES),
        lambda: hm.nearest(MEASURES, 1),
        lambda: hm.nearest(MEASURES.masses, 1),
        lambda: hm.nearest(np.eye(4), 1, MEASURES.masses),
    ],
)
def test_measures_are_sent_to_be_embedded(call):
    """Their own distances would be total variations, which .toarray() would have given."""
    with pytest.raises(InvalidInputError, match=r"measures first: DiffusionEMD\(graph\)\.fit_transform") as caught:
        call()
    assert "toarray" not in str(caught.value)


def test_sparse_measures_are_not_taken_for_an_embedding_without_a_word():
    with pytest.warns(EmbeddingWarning, match="sum to one and are probably measures.*total variation"):
        pairwise_distances(MEASURES.masses)
    pairwise_distances(2 * MEASURES.masses)
    with pytest.raises(InvalidInputError, match=r"to be dense, found a sparse csr_array; pass its \.toarray"):
        hm.nearest(2 * MEASURES.masses, 1)
