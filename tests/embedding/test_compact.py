"""`DiffusionEMD` where embeddings are compact, measures are many, and scales come from a basis."""

import pickle
import tracemalloc
import warnings
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import heatmover as hm
from heatmover.embedding import preparation
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError

METHODS = ["chebyshev", "spectral", "interpolative", "exact"]
N_POINTS = 500


@pytest.fixture(scope="module")
def cloud():
    return hm.Graph.from_points(np.random.default_rng(7).normal(size=(N_POINTS, 2)), n_neighbors=10)


@pytest.fixture(scope="module")
def rows():
    return sparse_rows(14, N_POINTS)


def sparse_rows(count, n_points, seed=8):
    """Measures on 1, 2, 3, ... points."""
    rng = np.random.default_rng(seed)
    rows = np.zeros((count, n_points))
    for i, row in enumerate(rows):
        size = i % 40 + 1
        row[rng.choice(n_points, size, replace=False)] = rng.random(size) + 0.1
    return rows / rows.sum(axis=1, keepdims=True)


def manhattan(embedding):
    wide = embedding.astype(float)
    return np.array([np.abs(wide - row).sum(axis=1) for row in wide])


def relative_errors(distances, expected):
    pairs = ~np.eye(len(expected), dtype=bool)
    return np.abs(distances - expected)[pairs] / expected[pairs]


# --- compact embeddings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", ["adjoint", "function"])
def test_compact_distances_are_never_above_the_full_ones(cloud, rows, method, density):
    options = {"method": method, "max_scale": 9, "density": density, "dtype": "float64"}
    full = manhattan(hm.DiffusionEMD(cloud, compress=False, **options).fit_transform(rows))
    for delta in (0.9, 1e-1, 1e-3):
        model = hm.DiffusionEMD(cloud, compress=delta, **options)
        compact = manhattan(model.fit_transform(rows))
        assert model.compress_ == delta
        assert model.method_ == method
        assert (compact <= full * (1 + 1e-6) + 1e-12).all()
        assert np.median(relative_errors(compact, full)) < 0.05


@pytest.mark.parametrize("norm", ["levels", "increments", "coarsest"])
def test_no_norm_is_ever_above_the_full_one(cloud, rows, norm):
    options = {"method": "chebyshev", "max_scale": 8, "norm": norm}
    full = manhattan(hm.DiffusionEMD(cloud, compress=False, **options).fit_transform(rows))
    compact = manhattan(hm.DiffusionEMD(cloud, compress=0.1, **options).fit_transform(rows))
    assert (compact <= full * (1 + 1e-6) + 1e-6).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_points", [40, 256])
def test_where_every_point_is_a_cell_nothing_is_lost(method, n_points):
    graph = hm.Graph.from_points(np.random.default_rng(3).normal(size=(n_points, 2)), n_neighbors=8)
    rows = sparse_rows(9, n_points)
    options = {"method": method, "max_scale": 9}
    full = hm.DiffusionEMD(graph, compress=False, **options).fit_transform(rows)
    model = hm.DiffusionEMD(graph, compress=0.5, **options)
    compact = model.fit_transform(rows)
    assert (model.n_regions_ == n_points).all()
    np.testing.assert_allclose(manhattan(compact), manhattan(full), rtol=1e-5, atol=1e-7)
    # The same numbers in another order of columns, which the names tell.
    place = {name: i for i, name in enumerate(hm.DiffusionEMD(graph, **options).fit(rows).get_feature_names_out())}
    order = [place[name.replace("around_", "")] for name in model.get_feature_names_out()]
    np.testing.assert_allclose(compact, full[:, order], atol=1e-7)


def test_errors_fall_with_the_threshold():
    data = hm.datasets.swiss_roll(20, points_per_measure=150)
    graph, rows = hm.Graph.from_points(data.points), data.measures()
    options = {"method": "chebyshev", "max_scale": 9}
    full = manhattan(hm.DiffusionEMD(graph, compress=False, **options).fit_transform(rows))
    errors, sizes = [], []
    for delta in (0.5, 1e-1, 1e-2, 1e-4):
        model = hm.DiffusionEMD(graph, compress=delta, **options)
        errors.append(relative_errors(manhattan(model.fit_transform(rows)), full).mean())
        sizes.append(model.n_regions_.sum())
    assert (np.diff(errors) < 0).all()
    assert (np.diff(sizes) > 0).all()
    assert errors[0] < 0.02
    assert sizes[0] < 3000


@cache
def fitted(norm, method):
    points = np.random.default_rng(7).normal(size=(N_POINTS, 2))
    model = hm.DiffusionEMD(
        hm.Graph.from_points(points, n_neighbors=10), norm=norm, method=method, compress=0.1, max_scale=8
    )
    return model.fit()


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    norm=st.sampled_from(["levels", "increments", "coarsest"]),
    method=st.sampled_from(["chebyshev", "spectral", "interpolative"]),
)
def test_it_is_a_metric(seed, norm, method):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(N_POINTS, rng.choice([0.02, 0.5])), size=4)
    distances = manhattan(fitted(norm, method).transform(rows))
    assert (distances[~np.eye(4, dtype=bool)] > 0).all()
    assert (np.diag(distances) == 0).all()
    np.testing.assert_allclose(distances, distances.T)
    assert (distances[:, :, None] <= distances[:, None, :] + distances.T[None, :, :] + 1e-6).all()


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1))
def test_distances_are_those_of_a_norm(seed, share):
    """Mixing both measures with a third shrinks their distance by exactly its share."""
    first, second, third = np.random.default_rng(seed).dirichlet(np.ones(N_POINTS), size=3)
    rows = np.array([first, second, (1 - share) * first + share * third, (1 - share) * second + share * third])
    distances = manhattan(fitted("levels", "spectral").transform(rows))
    assert distances[2, 3] == pytest.approx((1 - share) * distances[0, 1], abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_mass_is_kept_at_every_scale(cloud, rows, method):
    model = hm.DiffusionEMD(cloud, method=method, compress=0.1, max_scale=9, dtype="float64").fit(rows)
    blocks = np.split(model.transform(rows), np.cumsum(model.n_regions_)[:-1], axis=1)
    for scale, block in zip(model.scales_, blocks, strict=True):
        np.testing.assert_allclose(block.sum(axis=1), 2.0 ** (-(9 - scale) / 2), rtol=1e-9)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_bits_whatever_the_threads(cloud, rows, method):
    options = {"method": method, "compress": 0.1, "max_scale": 9}
    runs = [
        hm.DiffusionEMD(cloud, n_jobs=n_jobs, random_state=4, **options).fit_transform(np.tile(rows, (5, 1)))
        for n_jobs in (1, 1, 2, 5)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


def test_another_seed_gives_other_cells_and_nearly_the_same_distances(cloud, rows):
    one, other = (hm.DiffusionEMD(cloud, compress=0.1, max_scale=8, random_state=seed).fit(rows) for seed in (0, 1))
    assert not np.array_equal(one.get_feature_names_out(), other.get_feature_names_out())
    distances = [manhattan(model.transform(rows)) for model in (one, other)]
    assert np.median(relative_errors(*distances)) < 0.02


def test_names_of_features_are_those_of_the_centers(cloud, rows):
    import pandas as pd

    frame = pd.DataFrame(rows, columns=[f"cell{i}" for i in range(N_POINTS)])
    model = hm.DiffusionEMD(cloud, compress=0.1, max_scale=7, n_scales=2).set_output(transform="pandas").fit(frame)
    names = model.get_feature_names_out()
    assert len(names) == len(set(names)) == model.n_regions_.sum()
    assert names[0].startswith("scale6_around_cell")
    assert names[-1].startswith("scale7_around_cell")
    assert list(model.transform(frame).columns) == list(names)


def test_a_fitted_model_can_be_stored(cloud, rows):
    for compress, fit_on in ((0.1, rows), (0.1, None), (False, rows)):
        model = hm.DiffusionEMD(cloud, compress=compress, method="spectral", max_scale=9).fit(fit_on)
        twin = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(twin.transform(rows), model.transform(rows))


# --- whether it is compact ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 0.0, 1, 1.0, -0.1, 1.5, True, np.True_, np.nan, np.inf, "x", "0.1", [0.1], {}])
def test_a_threshold_outside_of_0_to_1_is_refused(cloud, rows, bad):
    message = r"^Expected compress to be a threshold in \(0, 1\), None or False, found .*; use 0\.1 if unsure"
    with pytest.raises(InvalidInputError, match=message):
        hm.DiffusionEMD(cloud, compress=bad).fit(rows)


@pytest.mark.parametrize("compress", [None, False])
def test_small_embeddings_stay_full(cloud, rows, compress):
    model = hm.DiffusionEMD(cloud, compress=compress, max_scale=4).fit(rows)
    assert model.compress_ is None
    assert (model.n_regions_ == N_POINTS).all()
    assert model.transform(rows).shape == (len(rows), 5 * N_POINTS)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_a_large_embedding_becomes_compact_by_itself_and_says_so(cloud, rows, monkeypatch, method):
    monkeypatch.setattr(preparation, "LARGEST_EMBEDDING", 1000)
    model = hm.DiffusionEMD(cloud, method=method, max_scale=9)
    with pytest.warns(
        EmbeddingWarning, match=r"compressed to [\d,]+ features \(compress=0.1\). In Python, set compress"
    ):
        embedding = model.fit_transform(rows)
    assert model.compress_ == preparation.DEFAULT_DELTA
    assert "would take" in model.compress_reason_
    assert embedding.shape == (len(rows), model.n_regions_.sum())
    assert embedding.shape[1] < 10 * N_POINTS
    asked = hm.DiffusionEMD(cloud, method=method, max_scale=9, compress=0.1).fit_transform(rows)
    np.testing.assert_array_equal(embedding, asked)


@pytest.mark.parametrize("compress", [False, 0.5])
def test_what_was_asked_for_is_done_without_a_warning(cloud, rows, monkeypatch, compress):
    monkeypatch.setattr(preparation, "LARGEST_EMBEDDING", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = hm.DiffusionEMD(cloud, max_scale=3, compress=compress).fit(rows)
    assert (model.compress_ is None) == (compress is False)
    assert model.compress_reason_ == "as requested"


# --- hostile graphs and measures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("compress", [False, 0.1])
def test_a_rank_of_one(method, compress):
    """On a complete graph all heat is even after one step: no two measures are apart, to the tolerance."""
    graph = hm.Graph.from_affinity(np.ones((300, 300)))
    model = hm.DiffusionEMD(graph, method=method, compress=compress, max_scale=8, tol=1e-7)
    np.testing.assert_allclose(manhattan(model.fit_transform(np.eye(300)[:5])), 0, atol=1e-5)


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("compress", [False, 0.1])
def test_a_rank_of_n(method, compress):
    """Lone points never meet: every distance is the largest there is."""
    graph = hm.Graph.from_affinity(np.eye(300))
    model = hm.DiffusionEMD(graph, method=method, compress=compress, max_scale=5)
    with pytest.warns(GraphWarning, match="300 components"):
        embedding = model.fit_transform(np.eye(300)[:5])
    expected = 2 * sum(2.0 ** (-(5 - scale) / 2) for scale in model.scales_) * (1 - np.eye(5))
    np.testing.assert_allclose(manhattan(embedding), expected, rtol=1e-6)
    assert (model.n_regions_ == 300).all()


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_a_single_point_is_a_graph(method):
    graph = hm.Graph.from_affinity(np.ones((1, 1)))
    for compress in (None, 0.1):
        model = hm.DiffusionEMD(graph, method=method, max_scale=6, compress=compress)
        assert model.fit_transform(np.ones((3, 1))).shape == (3, 7)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_measures_with_a_single_point(cloud, method):
    """As many measures as points, one of them alone, and one again."""
    model = hm.DiffusionEMD(cloud, method=method, compress=0.1, max_scale=7).fit()
    embedding = model.transform(sp.csr_array(np.eye(N_POINTS)))
    assert np.isfinite(embedding).all()
    np.testing.assert_array_equal(model.transform(np.eye(N_POINTS)[[17, 3, 17]]), embedding[[17, 3, 17]])
    # Linear: any measure is the mean of its points.
    rows = sparse_rows(6, N_POINTS)
    np.testing.assert_allclose(model.transform(rows), rows @ embedding.astype(float), atol=2e-3)


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_no_measures_are_refused(cloud, rows, form):
    nothing = form(np.empty((0, N_POINTS)))
    model = hm.DiffusionEMD(cloud, max_scale=2).fit(rows)
    for call in (hm.DiffusionEMD(cloud).fit, model.transform, lambda x: list(model.transform_blocks(x))):
        with pytest.raises(InvalidInputError, match=r"Expected at least one measure, found none \(shape \(0, 500\)\)"):
            call(nothing)


@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "interpolative"])
def test_thousands_of_tiny_components(method):
    graph = hm.Graph.from_affinity(sp.kron(sp.eye(1500), np.array([[1.0, 0.5], [0.5, 1.0]])))
    rows = sparse_rows(6, 3000)
    distances = []
    for compress in (False, 0.1):
        model = hm.DiffusionEMD(graph, method=method, compress=compress, max_scale="auto" if method == "auto" else 7)
        with pytest.warns(GraphWarning, match="1,500 components"):
            distances.append(manhattan(model.fit_transform(rows)))
        assert model.method_ == ("chebyshev" if method == "auto" else method)
        assert (model.n_regions_ >= 1500).all()
    full, compact = distances
    assert np.isfinite(full).all()
    assert (compact <= full * (1 + 1e-6)).all()


# --- without measures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_without_measures_serves_any(cloud, rows, method):
    options = {"method": method, "max_scale": 9}
    expected = hm.DiffusionEMD(cloud, **options).fit(rows).transform(rows)
    model = hm.DiffusionEMD(cloud, **options).fit()
    assert model.n_features_in_ == N_POINTS
    # More measures may be worth another basis, which is as certified.
    np.testing.assert_allclose(model.transform(rows), expected, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("density", ["adjoint", "function"])
def test_features_looked_up_are_those_diffused(cloud, rows, monkeypatch, method, density):
    """Without measures the features of all points are in a table, unless it would be too large."""
    options = {"method": method, "max_scale": 7, "compress": 0.1, "density": density, "norm": "increments"}
    looked_up = hm.DiffusionEMD(cloud, **options).fit()
    assert "looked up in a table" in repr(looked_up)
    monkeypatch.setattr(preparation, "LARGEST_EMBEDDING", 1000)
    diffused = hm.DiffusionEMD(cloud, **options).fit()
    assert "table" not in repr(diffused)
    np.testing.assert_array_equal(looked_up.get_feature_names_out(), diffused.get_feature_names_out())
    np.testing.assert_allclose(looked_up.transform(rows), diffused.transform(rows), atol=1e-5)


def test_more_measures_than_features_are_looked_up(cloud, monkeypatch):
    monkeypatch.setattr(preparation, "FEWEST_REGIONS", 8)
    rows = sparse_rows(200, N_POINTS)
    model = hm.DiffusionEMD(cloud, max_scale=9, n_scales=2, compress=0.5)
    assert "looked up in a table" in repr(model.fit(rows))
    assert "table" not in repr(model.fit(rows[:10]))


def test_neither_graph_nor_measures_is_refused():
    with pytest.raises(InvalidInputError, match="a graph or measures to fit, found neither"):
        hm.DiffusionEMD().fit()


def test_names_of_an_earlier_fit_are_forgotten(cloud, rows):
    import pandas as pd

    model = hm.DiffusionEMD(cloud, max_scale=1).fit(pd.DataFrame(rows, columns=[f"c{i}" for i in range(N_POINTS)]))
    model.fit()
    assert model.get_feature_names_out()[0] == f"scale0_x{cloud.first[0]}"
    assert model.transform(rows).shape == (len(rows), 2 * N_POINTS)


# --- block after block --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    return sp.csr_array(sparse_rows(150, N_POINTS))


@pytest.fixture(scope="module", params=METHODS)
def stream(request, cloud):
    """Full, compact, and looked up."""
    options = {"method": request.param, "max_scale": 8, "n_jobs": 2}
    few = np.eye(N_POINTS)[:3]
    return [
        hm.DiffusionEMD(cloud, compress=False, **options).fit(few),
        hm.DiffusionEMD(cloud, compress=0.1, **options).fit(few),
        hm.DiffusionEMD(cloud, compress=0.1, **options).fit(),
    ]


def test_blocks_are_the_whole_to_the_bit(stream, many):
    for model in stream:
        whole = model.transform(many)
        sizes = []
        for memory in ("1 MB", "3 MiB", 20e6, 10**12):
            blocks = list(model.transform_blocks(many, memory=memory))
            sizes.append(len(blocks))
            np.testing.assert_array_equal(np.vstack(blocks), whole)
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1] == 1


def test_one_row_at_a_time_and_several_matrices(stream, many):
    for model in stream:
        whole = model.transform(many)
        one_by_one = model.transform_blocks(many[i : i + 1] for i in range(20))
        np.testing.assert_array_equal(np.vstack(list(one_by_one)), whole[:20])
        parts = [many[:70], many[70:71], many[71:].toarray(), hm.measures_from_weights(many[:9])]
        found = np.vstack(list(model.transform_blocks(parts, memory="2 MB")))
        np.testing.assert_array_equal(found[:71], whole[:71])
        named = list(model.transform_blocks(hm.measures_from_weights(many[:9])))
        np.testing.assert_array_equal(np.vstack(named), found[-9:])
        # The sums that dense rows are divided by are rounded in another way.
        np.testing.assert_allclose(found[71:], np.vstack([whole[71:], whole[:9]]), rtol=1e-5, atol=1e-8)


def test_matrices_are_read_when_they_are_needed(stream, many):
    read = []

    def reader():
        for start in range(0, 150, 50):
            read.append(start)
            yield many[start : start + 50]

    blocks = stream[0].transform_blocks(reader(), memory="1 GB")
    assert read == []
    next(blocks)
    assert read == [0]
    next(blocks)
    assert read == [0, 50]


def test_blocks_keep_to_the_limit_of_memory(stream, many):
    wanted = 4_000_000
    # The checked copy of the input, and what Python itself needs for threads.
    room = 3 * (many.data.nbytes + many.indices.nbytes + many.indptr.nbytes) + 100_000
    for model in stream:
        tracemalloc.start()
        for block in model.transform_blocks(many, memory=wanted):
            del block
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert wanted / 4 < peak <= wanted + room


def test_memory_too_small_for_one_measure_is_told_before_any_work(stream, many):
    def reader():
        raise AssertionError("was read")
        yield many

    for model in stream:
        for memory in (1, 1000, "1 kB"):
            with pytest.raises(InvalidInputError, match=r"memory of at least [\d,]+ bytes, which one measure needs"):
                model.transform_blocks(reader(), memory=memory)


def test_the_least_memory_told_is_enough(stream, many):
    for model in stream:
        with pytest.raises(InvalidInputError) as caught:
            model.transform_blocks(many, memory=1)
        least = int(caught.value.expected.split()[4].replace(",", ""))
        blocks = list(model.transform_blocks(many[:3], memory=least))
        np.testing.assert_array_equal(np.vstack(blocks), model.transform(many[:3]))
        with pytest.raises(InvalidInputError):
            model.transform_blocks(many, memory=least - 1)


@pytest.mark.parametrize("memory", ["", "much", -1, None, True])
def test_bad_memory_is_told_before_any_work(stream, many, memory):
    with pytest.raises(InvalidInputError, match="Expected memory to be a number of bytes"):
        stream[0].transform_blocks(many, memory=memory)


@pytest.mark.parametrize("wrong", [None, 5])
def test_blocks_of_what_holds_no_measures(stream, wrong):
    with pytest.raises(InvalidInputError, match="Expected measures of shape"):
        stream[0].transform_blocks(wrong)


def test_no_matrices_give_no_blocks(stream):
    assert list(stream[0].transform_blocks([])) == []


def test_blocks_before_fit(cloud, many):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        hm.DiffusionEMD(cloud).transform_blocks(many)


# --- what it tells ------------------------------------------------------------------------------------------------


def test_the_text_of_a_fitted_model_tells_what_was_chosen_and_why(cloud, rows):
    model = hm.DiffusionEMD(cloud, compress=0.1)
    assert "\n" not in repr(model)
    text = repr(model.fit(rows))
    lines = text.splitlines()
    assert lines[0].startswith("DiffusionEMD(")
    assert lines[-3:] == [
        f"  method: {model.method_} ({model.method_reason_})",
        f"  max_scale: {model.max_scale_} ({model.max_scale_reason_})",
        f"  embedding: compact, {model.n_regions_.sum():,} features (as requested)",
    ]
    full = repr(hm.DiffusionEMD(cloud, method="exact", max_scale=3).fit(rows))
    assert "method: exact (as requested)" in full
    assert "max_scale: 3 (as requested)" in full
    assert "embedding: full, 2,000 features (the full embedding of 14 measures takes" in full


def test_auto_chooses_a_basis_for_many_measures_and_large_scales(cloud):
    model = hm.DiffusionEMD(cloud, max_scale=16).fit()
    assert model.method_ == "spectral"
    assert "eigenvectors, at " in model.method_reason_
    assert (model.error_bound_ <= model.tol).all()
    assert hm.DiffusionEMD(cloud, max_scale=4).fit().method_ == "chebyshev"


def test_auto_finds_the_scale_of_slow_graphs_with_a_basis():
    """A row of 600 bins mixes after 2^16 steps: the search passes to a basis, which stays."""
    graph = hm.Graph.from_grid((600,))
    model = hm.DiffusionEMD(graph).fit()
    assert model.max_scale_ > 11
    assert model.method_ == "spectral"
    assert f"to 2^{model.max_scale_} steps are computed from" in model.method_reason_
    plain = hm.DiffusionEMD(graph, method="chebyshev").fit()
    assert plain.max_scale_ == model.max_scale_
    np.testing.assert_allclose(model.decay_, plain.decay_, atol=0.01)


# --- agreement ----------------------------------------------------------------------------------------------------


def grid_of_hills():
    places = np.stack(np.meshgrid(np.arange(32), np.arange(32), indexing="ij"), axis=-1).reshape(-1, 2)
    rng = np.random.default_rng(0)
    centers, width = rng.uniform(4, 28, size=(16, 1, 2)), rng.uniform(2, 20, size=(16, 1))
    hills = np.exp(-((places - centers) ** 2).sum(axis=-1) / width)
    return hm.Graph.from_grid((32, 32)), hills / hills.sum(axis=1, keepdims=True)


def points_and_measures(data):
    return hm.Graph.from_points(data.points), data.measures()


DATA = {
    "swiss roll": lambda: points_and_measures(hm.datasets.swiss_roll(16, points_per_measure=75)),
    "sphere": lambda: points_and_measures(hm.datasets.sphere(16, points_per_measure=75)),
    "grid": grid_of_hills,
    "cohort": lambda: points_and_measures(hm.datasets.cohort(16, cells_per_sample=75)),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("max_scale", [8, 13])
def test_ways_agree_full_and_compact(name, max_scale):
    graph, rows = DATA[name]()

    def distances(method, compress):
        model = hm.DiffusionEMD(graph, method=method, compress=compress, max_scale=max_scale)
        result = manhattan(model.fit_transform(rows))
        assert model.method_ == method
        assert (model.error_bound_ <= 1e-3).all()
        return result

    certified = distances("chebyshev", False)
    for method in ("spectral", "interpolative"):
        for compress in (False, 1e-4):
            errors = relative_errors(distances(method, compress), certified)
            assert np.median(errors) <= 0.02
            assert errors.max() <= 0.05
