"""Every method x every property, on every ground of the table; a new method is one row in OPTIONS."""

import inspect
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.transport.baselines import EmbeddingMethod, IterativeMethod, exact_emd

PAPER = Path(__file__).resolve().parents[2] / "benchmarks" / "paper"
if not PAPER.exists():
    pytest.skip("the benchmarks are not here", allow_module_level=True)
sys.path.append(str(PAPER))
from alternatives import METHODS  # noqa: E402

# Options that make a method quick and, where it iterates, accurate; what rounding and unfinished iterations may leave.
OPTIONS = {
    "exact_emd": ({}, 1e-9),
    "sinkhorn": ({"regularization": 0.1, "max_iterations": 5000, "tol": 1e-6}, 1e-4),
    "convolutional_sinkhorn": ({"max_iterations": 2000, "tol": 1e-7}, 1e-3),
    "grid_emd": ({"n_shifts": 20}, 1e-9),
    "wavelet_emd": ({}, 1e-9),
    "quad_tree": ({"depth": 6, "n_trees": 20}, 1e-9),
    "cluster_tree": ({"n_clusters": 2, "depth": 6, "n_trees": 20}, 1e-9),
    "sliced_wasserstein": ({"n_directions": 20}, 1e-9),
    "mean_distance": ({}, 1e-9),
    "diffusion_emd": ({"dtype": "float64"}, 1e-9),
}
NEEDS_LOW_DIMENSION = {"wavelet_emd"}
CELLS_OF_ONE = {"grid_emd", "quad_tree"}
TAKES_SEED = {"grid_emd", "quad_tree", "cluster_tree", "sliced_wasserstein"}
# A smoothed plan also moves mass that could have stayed: between copies its cost is above zero.
SMOOTHS_COPIES = {"sinkhorn"}
# Distances that are no norm of a difference: a square root of a divergence, and a smoothed cost.
NO_TRIANGLE = {"convolutional_sinkhorn", "sinkhorn"}


def clouds(n_dimensions, n_measures=6, per_measure=12, seed=0):
    """Clouds on a line through space, the nearest in number the nearest in place."""
    rng = np.random.default_rng(seed)
    centers = np.arange(n_measures)[:, None] * np.ones(n_dimensions) / np.sqrt(n_dimensions)
    noise = rng.normal(size=(n_measures * per_measure, n_dimensions))
    points = np.repeat(centers, per_measure, axis=0) + 0.4 * noise / np.sqrt(n_dimensions)
    return points, hm.measures_from_labels(np.repeat(np.arange(n_measures), per_measure)).toarray()


GROUNDS = {"1-D": clouds(1), "2-D": clouds(2), "3-D": clouds(3), "50-D": clouds(50)}


@pytest.fixture(params=METHODS)
def name(request):
    return request.param


@pytest.fixture(params=GROUNDS)
def case(request, name):
    if request.param == "50-D" and name in NEEDS_LOW_DIMENSION:
        pytest.skip("this method is for up to three dimensions")
    return GROUNDS[request.param]


def run(name, ground, masses, **more):
    return METHODS[name](ground, masses, **(OPTIONS[name][0] | more))


def close(name, a, b, factor=1.0):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=factor * OPTIONS[name][1] * max(np.max(b), 1e-300))


def test_every_method_has_a_row():
    assert set(OPTIONS) == set(METHODS)


def test_every_method_says_what_it_is(name):
    method = METHODS[name]
    assert method.name == name
    assert method.reference
    assert name in repr(method)
    signature = inspect.signature(method)
    assert signature.return_annotation is np.ndarray
    assert list(signature.parameters)[:2] == ["ground", "measures"]


def test_distances_are_symmetric_finite_and_zero_on_the_diagonal(name, case):
    distances = run(name, *case)
    assert distances.shape == (6, 6)
    assert distances.dtype == np.float64
    assert np.isfinite(distances).all()
    assert np.array_equal(distances, distances.T)
    assert (distances.diagonal() == 0).all()
    assert (distances[~np.eye(6, dtype=bool)] > 0).all()


def test_order_agrees_with_exact_emd(name, case):
    many = case[0].shape[1] == 50
    if many and name in CELLS_OF_ONE:
        pytest.skip("in fifty dimensions every point is alone in its cell, and all distances are the same")
    upper = np.triu_indices(6, 1)
    found, truth = run(name, *case)[upper], exact_emd(*case)[upper]
    assert spearmanr(found, truth).statistic > (0.7 if many else 0.85)


def test_copies_of_a_measure_are_not_apart(name, case):
    points, masses = case
    if name in SMOOTHS_COPIES:
        pytest.skip("a smoothed plan between copies costs something")
    twice = run(name, points, np.vstack([masses, masses[:2]]))
    close(name, np.diag(twice[:2, 6:]), np.zeros(2) + 1e-300, factor=twice.max() * 1e300)
    close(name, twice[6:, 2:6], twice[:2, 2:6])


def test_triangle_inequality(name, case):
    if name in NO_TRIANGLE:
        pytest.skip("not a metric")
    d = run(name, *case)
    assert (d[:, None] <= d[:, :, None] + d[None] + 1e-9 * d.max()).all()


def test_dense_sparse_named_and_framed_measures_agree(name):
    points, masses = GROUNDS["2-D"]
    pandas = pytest.importorskip("pandas")
    expected = run(name, points, masses)
    for form in (
        sp.csr_array(masses),
        sp.coo_matrix(masses),
        hm.measures_from_weights(masses),
        pandas.DataFrame(masses),
    ):
        close(name, run(name, points, form), expected)


def test_order_of_measures_is_kept(name):
    points, masses = GROUNDS["2-D"]
    order = np.random.default_rng(0).permutation(6)
    close(name, run(name, points, masses[order]), run(name, points, masses)[np.ix_(order, order)])


def test_one_measure_and_two(name):
    points, masses = GROUNDS["2-D"]
    assert np.array_equal(run(name, points, masses[:1]), [[0.0]])
    assert run(name, points, masses[:2]).shape == (2, 2)


def test_threads_change_nothing(name):
    if name == "mean_distance":
        pytest.skip("nothing to share")
    points, masses = GROUNDS["3-D"]
    assert np.array_equal(run(name, points, masses, n_jobs=1), run(name, points, masses, n_jobs=3))


def test_seeds_decide(name):
    points, masses = GROUNDS["3-D"]
    if name not in TAKES_SEED:
        assert np.array_equal(run(name, points, masses), run(name, points, masses))
        return
    first = run(name, points, masses, random_state=1)
    assert np.array_equal(first, run(name, points, masses, random_state=1))
    assert not np.array_equal(first, run(name, points, masses, random_state=2))
    assert np.array_equal(first, run(name, points, masses, random_state=np.random.default_rng(1)))


@pytest.mark.parametrize("scale", [1e-3, 1e6])
def test_another_unit_changes_all_distances_alike(name, scale):
    points, masses = GROUNDS["2-D"]
    expected = run(name, points, masses)
    # Diffusion EMD has no unit: it counts in steps of the walk.
    close(name, run(name, points * scale, masses), expected * (1 if name == "diffusion_emd" else scale))


def test_the_origin_does_not_matter(name):
    points, masses = GROUNDS["2-D"]
    np.testing.assert_allclose(
        run(name, points + 37.5, masses), run(name, points, masses), rtol=1e-3 if name in NO_TRIANGLE else 1e-6
    )


def test_points_without_mass_are_no_trouble(name):
    points, masses = GROUNDS["2-D"]
    far = np.vstack([points, np.random.default_rng(1).normal(loc=2, size=(40, 2))])
    distances = run(name, far, np.hstack([masses, np.zeros((6, 40))]))
    upper = np.triu_indices(6, 1)
    assert np.isfinite(distances).all()
    assert spearmanr(distances[upper], exact_emd(points, masses)[upper]).statistic > 0.85


def test_copies_of_points_are_no_trouble(name):
    rng = np.random.default_rng(2)
    points = np.repeat(rng.integers(0, 4, size=(30, 2)).astype(float), 3, axis=0)
    masses = rng.dirichlet(np.full(90, 0.05), size=4)
    masses = np.maximum(masses, 1e-6)
    distances = run(name, points, masses / masses.sum(axis=1, keepdims=True))
    assert np.isfinite(distances).all()
    assert (distances >= 0).all()


@given(seed=st.integers(0, 2**31), n_dimensions=st.integers(1, 3))
@settings(deadline=None, max_examples=8)
def test_any_measures_have_finite_symmetric_distances(seed, n_dimensions):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(40, n_dimensions)) * rng.choice([1, 1e3])
    masses = rng.dirichlet(np.full(40, 0.5), size=3) + 1e-12
    masses /= masses.sum(axis=1, keepdims=True)
    for name in METHODS:
        distances = run(name, points, masses)
        assert np.isfinite(distances).all(), name
        assert (distances >= 0).all(), name
        assert np.array_equal(distances, distances.T), name


def test_embeddings_give_the_distances(name):
    method = METHODS[name]
    if not isinstance(method, EmbeddingMethod):
        assert not hasattr(method, "embed")
        return
    points, masses = GROUNDS["2-D"]
    features = method.embed(points, masses, **OPTIONS[name][0])
    assert features.shape[0] == 6
    np.testing.assert_allclose(hm.pairwise_distances(features), run(name, points, masses), rtol=1e-9)
    dense = features.toarray() if sp.issparse(features) else features
    np.testing.assert_allclose(
        np.abs(dense[:, None] - dense).sum(axis=2), run(name, points, masses), rtol=1e-7, atol=1e-12
    )


def test_iterative_methods_report(name):
    method = METHODS[name]
    if not isinstance(method, IterativeMethod):
        assert not hasattr(method, "solve")
        return
    points, masses = GROUNDS["2-D"]
    solution = method.solve(points, masses, **OPTIONS[name][0])
    assert solution.converged.all()
    assert np.array_equal(solution.distances, run(name, points, masses))
    options = OPTIONS[name][0] | {"max_iterations": 1, "tol": 1e-12}
    assert not method.solve(points, masses, **options).converged.all()
    with pytest.warns(hm.ConvergenceWarning, match=f"{name}: .* pairs did not converge"):
        method(points, masses, **options)


def test_a_graph_is_taken_where_it_can_be(name):
    points, masses = GROUNDS["2-D"]
    graph = hm.Graph.from_points(points)
    if METHODS[name].ground == "points":
        with pytest.raises(InvalidInputError, match="found a Graph; this method needs coordinates"):
            run(name, graph, masses)
    else:
        distances = run(name, graph, masses)
        upper = np.triu_indices(6, 1)
        assert spearmanr(distances[upper], exact_emd(points, masses)[upper]).statistic > 0.85


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, m: (p, m[:, :-1]), "measures over the graph's 72 points, found rows of width 71"),
        (lambda p, m: (p, -m), "non-negative measures"),
        (lambda p, m: (p, 2 * m), "measures that sum to one"),
        (lambda p, m: (p, np.where(m > 0, np.nan, m)), "measures without NaN"),
        (lambda p, m: (p, m * [[1], [0], [1], [1], [1], [1]]), "every measure to have mass"),
        (lambda p, m: (np.where(p > 2, np.inf, p), m), "points without NaN or infinity"),
        (lambda p, m: (p[:, 0], m), "points to be a 2-d array"),
        (lambda p, m: (sp.csr_array(p), m), "points to be dense"),
        (lambda p, m: (p.astype(str), m), "points to be real numbers"),
    ],
)
def test_unfit_input_is_refused(name, change, message):
    points, masses = GROUNDS["2-D"]
    with pytest.raises(InvalidInputError, match=message):
        run(name, *change(points, masses))
