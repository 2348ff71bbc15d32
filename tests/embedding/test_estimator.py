"""`DiffusionEMD` as its users meet it: options, bad input, pipelines, and the defects of its peers."""

import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from scipy.sparse.csgraph import shortest_path
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import heatmover as hm
from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs.diagnosis import find_near_cuts
from heatmover.graphs.spectrum import normalize


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(7).normal(size=(120, 2))


@pytest.fixture(scope="module")
def grid(points):
    return hm.Graph.from_points(points, n_neighbors=10)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(8).dirichlet(np.full(120, 0.1), size=9)


def manhattan(embedding):
    return np.abs(embedding[:, None].astype(float) - embedding[None].astype(float)).sum(axis=2)


# --- what it learns ---------------------------------------------------------------------------------------------


def test_fitted_attributes_explain_the_choices(grid, rows):
    model = hm.DiffusionEMD(grid).fit(rows)
    assert model.method_ == "chebyshev"
    assert model.method_reason_
    assert len(model.decay_) == model.max_scale_ + 1
    assert f"2^{model.max_scale_}" in model.max_scale_reason_
    assert model.scales_[-1] == model.max_scale_
    assert model.n_scales_ == len(model.scales_) == len(model.error_bound_)
    assert (model.error_bound_ <= model.tol).all()
    assert model.n_features_in_ == 120


@pytest.mark.parametrize("norm", ["levels", "increments", "coarsest"])
@pytest.mark.parametrize("density", ["adjoint", "function"])
def test_chebyshev_distances_agree_with_exact_ones(grid, rows, norm, density):
    options = {"max_scale": 8, "norm": norm, "density": density}
    exact = manhattan(hm.DiffusionEMD(grid, method="exact", **options).fit_transform(rows))
    for tol in (1e-2, 1e-4, 1e-8):
        close = manhattan(hm.DiffusionEMD(grid, tol=tol, **options).fit_transform(rows))
        # The certificate is in a weighted 2-norm; on these measures its L1 counterpart is within a factor of 20.
        np.testing.assert_allclose(close, exact, atol=20 * tol * exact.max() + 1e-7)


def test_n_scales_keeps_the_coarsest(grid, rows):
    everything = hm.DiffusionEMD(grid, max_scale=6, n_scales=7).fit_transform(rows)
    some = hm.DiffusionEMD(grid, max_scale=6, n_scales=3).fit(rows)
    assert some.scales_.tolist() == [4, 5, 6]
    np.testing.assert_array_equal(some.transform(rows), everything[:, 4 * 120 :])
    assert hm.DiffusionEMD(grid, max_scale=2, n_scales=10).fit(rows).n_scales_ == 3


def test_without_a_graph_columns_are_bins_in_a_row():
    """Distances from the first bin grow with the bin."""
    model = hm.DiffusionEMD()
    distances = manhattan(model.fit_transform(np.eye(30)))[0]
    assert (np.diff(distances) > 0).all()
    assert model.graph_.construction["source"] == "grid"


def test_all_scales_that_carry_weight_are_kept(grid, rows):
    model = hm.DiffusionEMD(grid, max_scale=16).fit(rows)
    dropped = sum(2.0 ** (-(16 - k) / 2) for k in range(model.scales_[0]))
    assert 0 < dropped <= 0.01 * sum(2.0 ** (-(16 - k) / 2) for k in range(17))
    assert hm.DiffusionEMD(grid, max_scale=6).fit(rows).scales_[0] == 0


@pytest.mark.parametrize("shape", ["ring", "star", "s_curve"])
def test_default_distances_order_measures_like_the_exact_emd(shape):
    """The figures of record are in benchmarks/shapes.py; this is a small one that fails if the definition breaks."""
    pytest.importorskip("ot")
    data = getattr(hm.datasets, shape)(24, points_per_measure=60)
    embedding = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit_transform(data.measures())
    assert hm.metrics.spearman(data.exact_emd(), hm.pairwise_distances(embedding)) > 0.96


def test_transform_from_several_threads(grid, rows):
    from concurrent.futures import ThreadPoolExecutor

    model = hm.DiffusionEMD(grid).fit(rows)
    expected = model.transform(rows)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(model.transform, [rows] * 8):
            np.testing.assert_array_equal(found, expected)


def test_what_was_fitted_counts_not_what_was_set_since(grid, rows):
    model = hm.DiffusionEMD(grid, max_scale=4).fit(rows)
    expected = model.transform(rows)
    model.set_params(norm="bogus", graph=hm.Graph.from_grid((7,)), alpha=0.1, dtype="float64")
    np.testing.assert_array_equal(model.transform(rows), expected)


@pytest.mark.parametrize("weights", [(1, 1e-80), (1e200, 1e-200), (1e200, 1e50)])
def test_blocks_of_any_magnitude_give_no_nan(weights):
    affinity = block_diag(*(np.full((5, 5), weight) for weight in weights))
    with pytest.warns(GraphWarning):
        embedding = hm.DiffusionEMD(hm.Graph.from_affinity(affinity)).fit_transform(np.eye(10))
    assert np.isfinite(embedding).all()


@pytest.mark.filterwarnings("ignore:Expected a graph that holds together:heatmover.GraphWarning")
@pytest.mark.parametrize("ratio", [1e-3, 1e-6, 1e-10])
def test_a_path_whose_weights_fall_keeps_its_mass(ratio):
    weights = ratio ** np.arange(11.0)
    affinity = np.diag(weights, 1) + np.diag(weights, -1) + np.diag(np.append(weights, weights[-1]))
    model = hm.DiffusionEMD(hm.Graph.from_affinity(affinity), max_scale=5).fit(np.eye(12))
    blocks = model.transform(np.eye(12)).reshape(12, model.n_scales_, 12).sum(axis=2)
    np.testing.assert_allclose(blocks, np.broadcast_to(2.0 ** (-(5 - model.scales_) / 2), blocks.shape), rtol=1e-6)


def test_single_precision_is_refused_where_it_cannot_hold_the_graph():
    affinity = np.diag(1e-40 ** np.arange(3.0)) + np.diag([1e-30, 1e-60], 1) + np.diag([1e-30, 1e-60], -1)
    with pytest.raises(InvalidInputError, match="float32 is accurate enough"):
        hm.DiffusionEMD(hm.Graph.from_affinity(affinity), max_scale=2, dtype="float32").fit(np.eye(3))


def test_precision_follows_the_tolerance_and_the_scale(grid, rows):
    assert hm.DiffusionEMD(grid, max_scale=13).fit_transform(rows).dtype == np.float32
    assert hm.DiffusionEMD(grid, method="chebyshev", max_scale=14).fit_transform(rows).dtype == np.float64
    # Coarse scales from a basis do not multiply the rounding of the operator.
    assert hm.DiffusionEMD(grid, method="spectral", max_scale=14).fit_transform(rows).dtype == np.float32
    assert hm.DiffusionEMD(grid, max_scale=3).fit_transform(rows).dtype == np.float32
    assert hm.DiffusionEMD(grid, max_scale=3, tol=1e-6).fit_transform(rows).dtype == np.float64
    assert hm.DiffusionEMD(grid, max_scale=3, dtype="float64").fit_transform(rows).dtype == np.float64
    assert hm.DiffusionEMD(grid, max_scale=3, tol=1e-6, dtype="float32").fit_transform(rows).dtype == np.float32


# --- affinities of any magnitude --------------------------------------------------------------------------------


def cloud_and_an_isolated_point():
    affinity = hm.Graph.from_points(np.random.default_rng(0).normal(size=(60, 2)), 8).affinity.toarray()
    return np.pad(affinity, ((0, 1), (0, 1)))


@pytest.fixture(scope="module")
def cloud_rows():
    rows = np.random.default_rng(1).random((4, 61))
    return rows / rows.sum(axis=1, keepdims=True)


@pytest.mark.filterwarnings("ignore::heatmover.errors.GraphWarning")
@pytest.mark.parametrize("method", ["exact", "chebyshev", "spectral", "interpolative"])
def test_a_common_factor_of_the_affinities_changes_nothing(method, cloud_rows):
    affinity = cloud_and_an_isolated_point()

    def embedded(factor):
        graph = hm.Graph.from_affinity(affinity * factor)
        return hm.DiffusionEMD(graph, method=method, max_scale=6, tol=1e-6).fit_transform(cloud_rows)

    expected = embedded(1.0)
    for factor in (2.0**-900, 2.0**-53, 2.0, 2.0**900):
        np.testing.assert_array_equal(embedded(factor), expected)
    for factor in (1e-290, 1e-200, 1e-50, 3.0, 1e290):
        np.testing.assert_allclose(embedded(factor), expected, atol=1e-14)


@pytest.mark.filterwarnings("ignore::heatmover.errors.GraphWarning")
def test_components_of_any_magnitude_are_as_if_each_were_alone():
    parts = [np.exp(-(np.subtract.outer(np.arange(n), np.arange(n)) ** 2) / 2.0) for n in (9, 7)]
    embeddings = []
    for factors in ((1.0, 1.0), (2.0**-700, 1.0), (2.0**500, 2.0**-500)):
        affinity = block_diag(*(part * factor for part, factor in zip(parts, factors, strict=True)))
        for method in ("exact", "chebyshev"):
            model = hm.DiffusionEMD(hm.Graph.from_affinity(affinity), method=method, max_scale=4, dtype="float64")
            embeddings.append(model.fit_transform(np.eye(16)))
    for embedding in embeddings[2:]:
        assert any(np.array_equal(embedding, other) for other in embeddings[:2])


def test_affinities_without_their_digits_are_refused():
    with pytest.raises(InvalidInputError, match=r"precision, found 3 points .*2\.2e-308 .*first: point 0.*multiply"):
        hm.Graph.from_affinity(np.full((3, 3), 1e-310))
    # Beside larger ones of the same points they need none: a Gaussian far out.
    assert hm.Graph.from_affinity(np.eye(3) + 1e-310).n_edges == 3


@pytest.mark.filterwarnings("ignore::heatmover.errors.GraphWarning")
@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "interpolative", "exact"])
@pytest.mark.parametrize("ratio", [0.3, 0.1, 1e-2, 1e-6, 1e-10])
def test_uneven_affinities_give_the_right_densities_or_a_refusal(ratio, method):
    weights = ratio ** np.arange(9.0)
    affinity = np.diag(weights, 1) + np.diag(weights, -1) + np.diag(np.append(weights, weights[-1]))
    # Rows of the walk, each entry a quotient of sums: no digit is lost before the powers.
    sums = affinity.sum(axis=1)
    walk = affinity / sums[:, None] / sums
    walk = walk / walk.sum(axis=1, keepdims=True)
    model = hm.DiffusionEMD(hm.Graph.from_affinity(affinity), method=method, max_scale=5, n_scales=6)
    if ratio < 0.1 and method != "auto":
        with pytest.raises(InvalidInputError, match=r"vary less, for method=.*varies by .*method='auto'"):
            model.fit(np.eye(10))
        return
    blocks = model.fit_transform(np.eye(10)).reshape(10, 6, 10)
    for scale in range(6):
        expected = np.linalg.matrix_power(walk, 2**scale)
        error = np.abs(blocks[:, scale] * 2 ** ((5 - scale) / 2) - expected).sum(axis=1).max()
        assert error < 0.02, (scale, error)


@pytest.mark.filterwarnings("ignore::heatmover.errors.GraphWarning")
def test_an_uneven_graph_is_not_walked_for_ever():
    weights = 1e-8 ** np.arange(5.0)
    graph = hm.Graph.from_affinity(np.diag(weights, 1) + np.diag(weights, -1), lazy=False)
    with pytest.raises(InvalidInputError, match=r"max_scale of at most 18, .*found 19; lower max_scale"):
        hm.DiffusionEMD(graph, max_scale=19).fit()
    assert hm.DiffusionEMD(graph).fit().method_ == "walk"


def test_a_stationary_law_beyond_all_floats_is_refused():
    weights = np.array([1e290, 1e90, 1e-110, 1e-300])
    with pytest.raises(InvalidInputError, match="stationary distribution float64 can represent in every component"):
        hm.DiffusionEMD(hm.Graph.from_affinity(np.diag(weights, 1) + np.diag(weights, -1), lazy=False)).fit()


@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "interpolative", "exact"])
@pytest.mark.parametrize("dtype", ["auto", "float32", "float64"])
def test_a_tolerance_below_rounding_is_refused(method, dtype, grid):
    with pytest.raises(InvalidInputError, match=r"tol of at least \d.*found 1e-20; raise tol"):
        hm.DiffusionEMD(grid, method=method, dtype=dtype, tol=1e-20).fit()


@pytest.mark.parametrize("method", ["chebyshev", "exact"])
def test_the_smallest_tolerance_named_is_kept(method, grid):
    with pytest.raises(InvalidInputError, match="raise tol or lower max_scale") as caught:
        hm.DiffusionEMD(grid, method=method, tol=1e-11, max_scale=20).fit()
    least = float(re.search(r"tol of at least ([0-9.e-]+),", str(caught.value))[1])
    model = hm.DiffusionEMD(grid, method=method, tol=least, max_scale=20).fit()
    assert model.error_bound_.max() <= least


@pytest.mark.parametrize("method", ["auto", "chebyshev", "spectral", "interpolative", "exact"])
@pytest.mark.parametrize("tol", [1e-2, 1e-3, 1e-5, 1e-8])
def test_the_bound_is_within_tol(method, tol, grid):
    for max_scale in (2, 8, 14):
        model = hm.DiffusionEMD(grid, method=method, tol=tol, max_scale=max_scale).fit()
        assert (model.error_bound_ <= tol).all(), model.method_


@pytest.mark.parametrize("lightest", [1.0, 1e-150])
@pytest.mark.parametrize("method", ["auto", "chebyshev"])
def test_no_nan_leaves_whatever_is_forced(method, lightest):
    """float32 at 2^30 steps and a tolerance far below its rounding: right or refused, never NaN."""
    weights = np.geomspace(1, lightest, 20)
    graph = hm.Graph.from_affinity(np.diag(weights, 1) + np.diag(weights, -1) + np.eye(21))
    model = hm.DiffusionEMD(graph, method=method, dtype="float32", max_scale=30, tol=1e-10)
    try:
        embedding = model.fit_transform(np.eye(21))
    except InvalidInputError as error:
        assert "float32 is accurate enough" in str(error) or "tol of at least" in str(error)  # noqa: PT017
    else:
        assert np.isfinite(embedding).all()
        assert model.error_bound_.max() < 0.5


# --- scikit-learn -----------------------------------------------------------------------------------------------


def test_pipeline_with_a_manhattan_classifier():
    data = hm.datasets.ring(60, points_per_measure=20)
    side = (data.annotations["center"].ravel() % (2 * np.pi) > np.pi).astype(int)
    graph = hm.Graph.from_points(data.points, n_neighbors=10)
    chain = make_pipeline(hm.DiffusionEMD(graph), KNeighborsClassifier(3, metric="manhattan"))
    rows = data.measures().masses
    chain.fit(rows[::2], side[::2])
    assert chain.score(rows[1::2], side[1::2]) > 0.8


def test_clone_shares_the_graph_and_gives_the_same_bits(grid, rows):
    model = hm.DiffusionEMD(grid, alpha=0.4)
    twin = clone(model)
    assert twin.graph is grid
    np.testing.assert_array_equal(model.fit_transform(rows), twin.fit_transform(rows))


def test_set_output_pandas_carries_names(grid, rows):
    """Columns are nodes in their own order, named by their points."""
    frame = hm.DiffusionEMD(grid, max_scale=2).set_output(transform="pandas").fit_transform(rows)
    assert list(frame.columns[:2]) == [f"scale0_x{point}" for point in grid.first[:2]]
    assert frame.columns[-1] == f"scale2_x{grid.first[-1]}"
    line = hm.DiffusionEMD(max_scale=2).set_output(transform="pandas").fit_transform(rows)
    assert list(line.columns[[0, 1, -1]]) == ["scale0_x0", "scale0_x1", "scale2_x119"]


def test_feature_names_follow_a_data_frame(grid, rows):
    import pandas as pd

    frame = pd.DataFrame(rows, columns=[f"cell{i}" for i in range(120)])
    model = hm.DiffusionEMD(grid, max_scale=1).fit(frame)
    assert model.get_feature_names_out()[0] == f"scale0_cell{grid.first[0]}"
    with pytest.raises(ValueError, match="feature_names_in_"):
        model.get_feature_names_out([f"other{i}" for i in range(120)])
    with pytest.raises(ValueError, match="120"):
        hm.DiffusionEMD(grid, max_scale=1).fit(rows).get_feature_names_out(["a"])


def test_mistyped_keywords_are_refused(grid):
    with pytest.raises(TypeError, match="max_scales"):
        hm.DiffusionEMD(grid, max_scales=3)


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            {"method": "magic"},
            "method to be one of 'auto', 'chebyshev', 'spectral', 'interpolative', 'exact', found 'magic'",
        ),
        ({"norm": "l2"}, "norm to be one of"),
        ({"density": "left"}, "density to be one of"),
        ({"dtype": "float16"}, "dtype to be one of"),
        ({"alpha": 0}, "alpha to be a number in"),
        ({"alpha": 1.5}, "alpha to be a number in"),
        ({"alpha": float("nan")}, "alpha to be a number in"),
        ({"tol": 0}, "tol to be a number in"),
        ({"tol": 0.9}, "tol to be a number in"),
        ({"max_scale": -1}, "max_scale to be a whole number"),
        ({"max_scale": 3.5}, "max_scale to be a whole number"),
        ({"max_scale": 31}, "max_scale of at most 30"),
        ({"max_scale": "biggest"}, "max_scale to be a whole number, a number in"),
        ({"n_scales": 0}, "n_scales to be a whole number"),
        ({"n_jobs": 0}, "n_jobs to be a whole number"),
        ({"normalize": "no"}, "normalize to be True or False"),
        ({"random_state": "abc"}, "random_state to be"),
        ({"graph": np.eye(3)}, "graph to be a heatmover.Graph, found ndarray; use Graph.from_points"),
    ],
)
def test_bad_options_are_named(grid, rows, option, message):
    with pytest.raises(InvalidInputError, match=message):
        hm.DiffusionEMD(**{"graph": grid, **option}).fit_transform(rows)


def test_transform_before_fit(grid, rows):
    with pytest.raises(NotFittedError):
        hm.DiffusionEMD(grid).transform(rows)


def test_measures_of_another_width_than_the_graph(grid, rows):
    with pytest.raises(InvalidInputError, match="graph's 120 points, found rows of width 119"):
        hm.DiffusionEMD(grid).fit(rows[:, :-1])
    model = hm.DiffusionEMD(grid, max_scale=2).fit(rows)
    with pytest.raises(ValueError, match="119 features"):
        model.transform(rows[:, :-1])


@pytest.mark.parametrize("form", [np.asarray, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: np.where(x == x.max(), np.nan, x), "NaN"),
        (lambda x: np.where(x == x.max(), np.inf, x), "infinity"),
        (lambda x: x - 0.001, "non-negative"),
        (lambda x: x * 2, "sum to one"),
        (lambda x: x * (np.arange(len(x)) > 0)[:, None], "sums to zero"),
    ],
    ids=["nan", "infinity", "negative", "unnormalized", "zero mass"],
)
def test_bad_measures_are_refused(grid, rows, form, spoil, message):
    with pytest.raises(InvalidInputError, match=message):
        hm.DiffusionEMD(grid).fit(form(spoil(rows)))


@pytest.mark.parametrize("wrong", [np.ones(120) / 120, np.ones((1, 2, 3)), None, ["a", "b"]])
def test_other_shapes_than_rows_are_refused(grid, wrong):
    with pytest.raises(InvalidInputError, match=r"Expected measures.*found"):
        hm.DiffusionEMD(grid).fit().transform(wrong)


def test_normalize_divides_rows_by_their_sums(grid, rows):
    scale = np.arange(1, len(rows) + 1)[:, None]
    expected = hm.DiffusionEMD(grid).fit_transform(rows)
    np.testing.assert_allclose(hm.DiffusionEMD(grid, normalize=True).fit_transform(rows * scale), expected, atol=1e-7)


# --- the defects of peers, each a test ----------------------------------------------------------------------------


def test_an_isolated_point_gives_finite_distances_and_a_warning():
    affinity = np.pad(np.ones((6, 6)), (0, 1))
    graph = hm.Graph.from_affinity(affinity)
    with pytest.warns(GraphWarning, match=r"2 components \(1 isolated point\) with 14.3% of the measures' mass"):
        embedding = hm.DiffusionEMD(graph).fit_transform(np.eye(7))
    distances = manhattan(embedding)
    assert np.isfinite(distances).all()
    assert distances[6, :6].min() > distances[:6, :6].max()


def test_sparse_dense_named_and_framed_input_agree(grid, rows):
    import pandas as pd

    model = hm.DiffusionEMD(grid)
    expected = model.fit_transform(rows)
    named = hm.measures_from_weights(rows)
    for form in (sp.csr_array(rows), sp.csr_matrix(rows), sp.csc_array(rows), sp.coo_array(rows), named):
        np.testing.assert_allclose(hm.DiffusionEMD(grid).fit_transform(form), expected, rtol=1e-6, atol=1e-9)
    framed = hm.DiffusionEMD(grid).fit_transform(pd.DataFrame(rows, columns=[str(i) for i in range(120)]))
    np.testing.assert_array_equal(framed, expected)


@pytest.mark.parametrize("n_measures", [1, 2, 3, 5, 200])
def test_shape_never_depends_on_coincidences(grid, n_measures):
    """One measure, as many measures as scales, more measures than points."""
    rows = np.random.default_rng(0).dirichlet(np.ones(120), size=n_measures)
    model = hm.DiffusionEMD(grid, max_scale=4, n_scales=3)
    assert model.fit_transform(rows).shape == (n_measures, 3 * 120)
    auto = hm.DiffusionEMD(grid)
    assert auto.fit_transform(rows).shape == (n_measures, auto.n_scales_ * 120)


@pytest.mark.usefixtures("eager_threads")
def test_same_seed_same_bits_whatever_the_threads(grid):
    rows = np.random.default_rng(1).dirichlet(np.ones(120), size=90)
    runs = [hm.DiffusionEMD(grid, n_jobs=n, random_state=3).fit_transform(rows) for n in (1, 2, 4, None)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


def test_mass_is_kept_at_every_scale(grid, rows):
    model = hm.DiffusionEMD(grid, tol=1e-1, dtype="float64").fit(rows)
    blocks = model.transform(rows).reshape(len(rows), model.n_scales_, 120).sum(axis=2)
    np.testing.assert_allclose(blocks, np.broadcast_to(2.0 ** (-(model.max_scale_ - model.scales_) / 2), blocks.shape))


def test_the_input_is_left_alone(grid, rows):
    before = rows.copy()
    hm.DiffusionEMD(grid, normalize=True).fit_transform(rows)
    np.testing.assert_array_equal(rows, before)


def test_no_warning_on_a_connected_graph(grid, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hm.DiffusionEMD(grid).fit_transform(rows)


# --- invariants ---------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), norm=st.sampled_from(["levels", "increments", "coarsest"]))
def test_it_is_a_metric(grid, seed, norm):
    rng = np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(120, rng.choice([0.02, 0.5])), size=4)
    distances = manhattan(hm.DiffusionEMD(grid, max_scale=6, norm=norm).fit_transform(rows))
    assert (distances[~np.eye(4, dtype=bool)] > 0).all()
    np.testing.assert_allclose(distances, distances.T)
    assert (distances[:, :, None] <= distances[:, None, :] + distances.T[None, :, :] + 1e-6).all()


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 1))
def test_distances_are_those_of_a_norm(grid, seed, share):
    """Mixing both measures with a third shrinks their distance by exactly its share."""
    first, second, third = np.random.default_rng(seed).dirichlet(np.ones(120), size=3)
    rows = np.array([first, second, (1 - share) * first + share * third, (1 - share) * second + share * third])
    distances = manhattan(hm.DiffusionEMD(grid, max_scale=6, tol=1e-6).fit_transform(rows))
    assert distances[2, 3] == pytest.approx((1 - share) * distances[0, 1], abs=1e-9)


def test_levels_never_exceed_the_transport_of_their_own_ground_distance():
    """|| . || of 'levels' is at most the exact EMD whose ground distance it is between points; see definition.md."""
    ot = pytest.importorskip("ot")
    rng = np.random.default_rng(5)
    graph = hm.Graph.from_points(rng.normal(size=(60, 2)), n_neighbors=8)
    model = hm.DiffusionEMD(graph, method="exact", max_scale=6, dtype="float64")
    ground = manhattan(model.fit_transform(np.eye(60)))
    rows = rng.dirichlet(np.full(60, 0.1), size=8)
    ours = manhattan(model.fit_transform(rows))
    exact = np.array([[ot.emd2(a, b, ground) for b in rows] for a in rows])
    assert (ours <= exact + 1e-9).all()
    assert (ours >= 0.3 * exact).all()


def nearly_cut_roll():
    data = hm.datasets.swiss_roll(10, points_per_measure=200, n_dimensions=3)
    return data, hm.Graph.from_points(data.points, n_neighbors=15)


def test_a_nearly_cut_graph_is_warned_of_with_numbers():
    data, graph = nearly_cut_roll()
    with pytest.warns(
        GraphWarning, match=r"2 nearly disconnected groups of points \(401 points, 20.1% of the measures' mass\)"
    ):
        model = hm.DiffusionEMD(graph).fit(data.measures())
    with pytest.warns(GraphWarning, match=r"has 201 points\. .* 5.0e-06 joins .*, and a share of at most 2.8e-04"):
        model.fit(data.measures())
    # Measures that leave these parts alone do not care.
    off = np.flatnonzero(~np.isin(np.arange(10), model_parts(graph, data)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hm.DiffusionEMD(graph).fit(data.measures().masses[off])


def test_what_a_thread_means_depends_on_the_time_that_heat_has():
    """Scales that a thread has pushed up: heat does pass, but nothing else is seen any more."""
    affinity = np.kron(np.eye(2), np.ones((20, 20)))
    affinity[19, 20] = affinity[20, 19] = 1e-4
    graph = hm.Graph.from_affinity(affinity)
    rows = np.kron(np.eye(2), np.full((1, 20), 1 / 20))
    with pytest.warns(GraphWarning, match=r"only in about 2\^20 steps"):
        hm.DiffusionEMD(graph, max_scale=20).fit(rows)
    with pytest.warns(GraphWarning, match=r"at most .*e-0\d of its heat leaves in 2\^8 steps"):
        hm.DiffusionEMD(graph, max_scale=8).fit(rows)


def path_without_loops(n):
    return np.eye(n, k=1) + np.eye(n, k=-1)


def random_tree(n, seed=0):
    rng, tree = np.random.default_rng(seed), np.zeros((n, n))
    for node in range(1, n):
        parent = rng.integers(node)
        tree[node, parent] = tree[parent, node] = 1
    return tree


def points_apart(graph):
    return hm.pairwise_distances(hm.DiffusionEMD(graph).fit_transform(np.eye(graph.n_points)))


def test_a_path_without_loops_has_its_distances_in_order():
    with pytest.warns(GraphWarning, match=r"1 bipartite component \(5 of 5 points\).*lazy=True"):
        graph = hm.Graph.from_affinity(path_without_loops(5))
    assert (np.diff(points_apart(graph)[0]) > 0).all()


def test_neighbors_on_a_tree_without_loops():
    """The Earth Mover's Distance between single points is the length of the path between them."""
    tree = random_tree(300)
    truth = shortest_path(tree, unweighted=True)
    assert hm.metrics.precision_at_k(truth, points_apart(hm.Graph.from_affinity(tree, lazy=True)), 10) > 0.6
    with pytest.warns(GraphWarning, match="bipartite"):
        given = points_apart(hm.Graph.from_affinity(tree, lazy=False))
    assert hm.metrics.precision_at_k(truth, given, 10) < 0.4


def nearly_bipartite():
    lattice = np.kron(np.eye(18), path_without_loops(18)) + np.kron(path_without_loops(18), np.eye(18))
    lattice[0, 19] = lattice[19, 0] = 1
    return lattice


@pytest.mark.parametrize("affinity", [path_without_loops(40), nearly_bipartite()], ids=["bipartite", "nearly"])
def test_heat_that_alternates_is_warned_of_with_the_remedy(affinity):
    graph = hm.Graph.from_affinity(affinity, lazy=False)
    with pytest.warns(GraphWarning, match=r"100.0% of the measures' mass.*from_affinity\(graph.affinity, lazy=True\)"):
        hm.DiffusionEMD(graph).fit(np.eye(graph.n_points))
    hm.DiffusionEMD(hm.Graph.from_affinity(graph.affinity, lazy=True)).fit(np.eye(graph.n_points))


@pytest.mark.parametrize("n_neighbors", [3, 10])
@pytest.mark.parametrize("kernel", ["gaussian", "box"])
def test_neighbor_graphs_without_loops_do_not_alternate(points, n_neighbors, kernel):
    affinity = hm.Graph.from_points(points, n_neighbors, kernel).affinity.toarray()
    np.fill_diagonal(affinity, 0)
    graph = hm.Graph.from_affinity(affinity)
    np.testing.assert_array_equal(graph.affinity.toarray(), affinity)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hm.DiffusionEMD(graph).fit(np.eye(120))
    assert not [one for one in said if "bipartite" in str(one.message)]


def test_alternation_where_no_mass_lies_is_not_warned_of():
    affinity = np.zeros((62, 62))
    affinity[:60, :60], affinity[60, 61], affinity[61, 60] = 1, 1, 1
    with pytest.warns(GraphWarning) as said:
        hm.DiffusionEMD(hm.Graph.from_affinity(affinity, lazy=False)).fit(np.eye(62)[:3])
    assert not [one for one in said if "bipartite" in str(one.message)]


def model_parts(graph, data):
    """The measures that have mass in the two parts."""
    symmetric, degree = normalize(graph.affinity, 1.0)
    cuts = find_near_cuts(symmetric, degree, 2**12)
    large = np.flatnonzero(~cuts.is_main & (np.bincount(cuts.part) > 100))
    return np.flatnonzero(data.measures().masses @ np.isin(cuts.part, large))


def plain_distance(graph, mu, nu, max_scale):
    """The definition with dense powers of the walk's adjoint, norm "levels", alpha 1/2, all scales."""
    affinity = graph.affinity.toarray()
    degree = affinity.sum(axis=1)
    affinity = affinity / np.outer(degree, degree)
    walk = affinity / affinity.sum(axis=1, keepdims=True)
    difference, total = mu - nu, 0.0
    for scale in range(max_scale + 1):
        diffused = np.linalg.matrix_power(walk.T, 2**scale) @ difference
        total += 2 ** (-(max_scale - scale) / 2) * np.abs(diffused).sum()
    return total


def one_pair():
    points = np.random.default_rng(0).normal(size=(60, 2))
    graph = hm.Graph.from_points(points, 20)
    weights = np.random.default_rng(1).dirichlet(np.ones(60), size=2)
    return graph, hm.measures_from_weights(weights, names=["a", "b"])


def test_the_distance_of_one_pair_is_that_of_the_definition():
    graph, measures = one_pair()
    model = hm.DiffusionEMD(graph, max_scale=5, n_scales=6, tol=1e-9).fit(measures)
    truth = plain_distance(graph, measures["a"], measures["b"], 5)
    assert model.distance(measures["a"], measures["b"]) == pytest.approx(truth, rel=1e-8)
    assert model.distance(measures["a"], measures["a"]) == 0


def test_one_pair_in_any_form_has_the_distance_of_the_matrix():
    graph, measures = one_pair()
    for parameters in ({}, {"compress": 0.1}, {"dtype": "float64"}, {"normalize": True}):
        model = hm.DiffusionEMD(graph, max_scale=5, **parameters).fit(measures)
        expected = hm.pairwise_distances(model.transform(measures))[0, 1]
        forms = [
            lambda one: one,
            lambda one: one.tolist(),
            lambda one: one[None],
            lambda one: sp.csr_array(one[None]),
            lambda one: sp.coo_array(one),
            lambda one: hm.measures_from_weights(one[None]),
        ]
        for form in forms:
            found = model.distance(form(measures["a"]), form(measures["b"]))
            assert type(found) is float
            assert found == pytest.approx(expected, rel=1e-7)  # sums of dense and of sparse rows round differently
        assert model.distance(measures[:1], measures[1:]) == expected


def test_a_distance_needs_one_measure_on_each_side():
    graph, measures = one_pair()
    with pytest.raises(NotFittedError):
        hm.DiffusionEMD(graph).distance(measures[0], measures[1])
    model = hm.DiffusionEMD(graph, max_scale=3).fit(measures)
    for bad, message in [
        (measures, "one measure on each side"),
        (np.ones((1, 1, 60)), "one measure on each side"),
        (0.5, "one measure on each side"),
        (np.ones(60), "sum to one"),
        (measures[0][:5], "60 (points|features)"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.distance(measures[0], bad)


def test_data_frames_have_the_names_of_the_measures():
    graph, measures = one_pair()
    model = hm.DiffusionEMD(graph, max_scale=3).set_output(transform="pandas")
    for frame in (model.fit_transform(measures), model.transform(measures)):
        assert list(frame.index) == ["a", "b"]
        assert list(frame.columns) == list(model.get_feature_names_out())
    assert list(model.transform(measures.toarray()).index) == [0, 1]
    assert list(model.transform(measures[::-1]).index) == ["b", "a"]
    pipeline = make_pipeline(hm.DiffusionEMD(graph, max_scale=3), StandardScaler()).set_output(transform="pandas")
    assert list(pipeline.fit_transform(measures).index) == ["a", "b"]
    assert isinstance(hm.DiffusionEMD(graph, max_scale=3).fit_transform(measures), np.ndarray)


@pytest.mark.parametrize("form", [lambda rows: rows, np.asarray, lambda rows: rows.masses])
def test_scikit_learn_validates_and_searches_over_measures(form):
    data = hm.datasets.ring(16, points_per_measure=20, random_state=0)
    measures = data.measures()
    sides = measures.masses @ data.points[:, 0] > 0
    pipeline = make_pipeline(
        hm.DiffusionEMD(hm.Graph.from_points(data.points)), KNeighborsClassifier(3, metric="manhattan")
    )
    assert cross_val_score(pipeline, form(measures), sides, cv=4).mean() > 0.8
    grid = {"diffusionemd__alpha": [0.3, 0.5], "diffusionemd__n_scales": [2, None], "diffusionemd__norm": ["levels"]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(form(measures), sides)
    assert search.best_score_ > 0.8
    assert search.predict(form(measures[:3])).shape == (3,)


def test_a_whole_scale_may_be_a_float():
    graph = hm.Graph.from_grid((30,))
    model = hm.DiffusionEMD(graph, max_scale=5.0).fit()
    assert model.max_scale_ == 5
    assert isinstance(model.max_scale_, int)
    np.testing.assert_array_equal(
        model.transform(np.eye(30)), hm.DiffusionEMD(graph, max_scale=5).fit_transform(np.eye(30))
    )
    with pytest.raises(InvalidInputError, match=r"whole number of at least 0, found 5\.5"):
        hm.DiffusionEMD(graph, max_scale=5.5).fit()
