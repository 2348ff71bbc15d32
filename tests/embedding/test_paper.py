"""The preset is the paper: against dense code written from its LaTeX, which shares nothing with the package."""

import pickle
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import heatmover as hm
from heatmover.errors import InvalidInputError

ALPHA = 0.49
DELTA = 1e-6


# --- the paper, written plainly -----------------------------------------------------------------------------------


def gaussian_kernel(points, epsilon):
    """Eq. 4: (K_eps)_ij = exp(-||x_i - x_j||^2 / eps)."""
    return np.exp(-np.square(points[:, None] - points[None]).sum(axis=2) / epsilon)


def diffusion_operator(kernel):
    """Q_ii = sum_j K_ij, M = Q^-1 K Q^-1, D_ii = sum_j M_ij, P = D^-1 M (Eq. 5)."""
    Q = kernel.sum(axis=1)
    M = kernel / Q[:, None] / Q[None, :]
    return M / M.sum(axis=1)[:, None]


def dyadic_densities(P, mu, K):
    """Eq. 6: mu^(2^k) = P^(2^k) mu for k = 0, ..., K; mu is n x m, and so is each density."""
    densities, power = [], P
    for _ in range(K + 1):
        densities.append(power @ mu)
        power = power @ power
    return densities


def T(densities, alpha, k):
    """Eq. 8."""
    K = len(densities) - 1
    if k == K:
        return densities[K]
    return 2.0 ** (-(K - k - 1) * alpha) * (densities[k + 1] - densities[k])


def top_six(K):
    return range(max(K - 5, 0), K + 1)


def stationary_law(kernel):
    """P is reversible: pi is proportional to D."""
    Q = kernel.sum(axis=1)
    D = (kernel / Q[:, None] / Q[None, :]).sum(axis=1)
    return D / D.sum()


def mixing_scale(kernel, epsilon, limit=18):
    """Lemma 1: the first k with Delta_i(k) = 1/2 sum_j |P^(2^k)_ij - pi_j| < epsilon for all i."""
    pi, power = stationary_law(kernel), diffusion_operator(kernel)
    for k in range(limit + 1):
        if (np.abs(power - pi).sum(axis=1) / 2 < epsilon).all():
            return k
        power = power @ power
    return None


def cloud(n_points, seed, dimensions=2):
    return np.random.default_rng(seed).normal(size=(n_points, dimensions))


def dirichlet(n_measures, n_points, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(n_points, 0.3), size=n_measures)


def example(n_points=60, seed=0, epsilon=0.5):
    kernel = gaussian_kernel(cloud(n_points, seed), epsilon)
    return hm.Graph.from_affinity(kernel), diffusion_operator(kernel)


def long_strip(n_points=600, seed=3):
    """A strip on which heat takes long to mix, so that ranks fall below a tenth of the points well before K."""
    points = cloud(n_points, seed) * 0.05
    points[:, 0] = 8 * np.random.default_rng(seed + 1).random(n_points)
    kernel = gaussian_kernel(points, 0.05)
    return hm.Graph.from_affinity(kernel), diffusion_operator(kernel)


# --- Algorithm 1 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", range(11))
def test_algorithm_1_is_equation_8_to_nine_digits(K):
    graph, P = example()
    mu = dirichlet(5, 60)
    model = hm.DiffusionEMD.from_paper(graph, max_scale=K, alpha=ALPHA)
    embedding = model.fit_transform(mu)
    densities = dyadic_densities(P, mu.T, K)
    expected = np.hstack([T(densities, ALPHA, k).T for k in top_six(K)])
    assert embedding.shape == expected.shape
    assert np.abs(embedding - expected).max() < 1e-9
    W = sum(np.abs(T(densities, ALPHA, k)[:, 0] - T(densities, ALPHA, k)[:, 1]).sum() for k in top_six(K))
    assert abs(hm.pairwise_distances(embedding)[0, 1] - W) < 1e-9


@pytest.mark.parametrize("K", [0, 3, 10])
def test_the_adjoint_of_the_supplement(K):
    """The dual norms of the supplement: P_k^* acts on measures, with the weights of Eq. 8."""
    graph, P = example()
    mu = dirichlet(5, 60)
    densities = dyadic_densities(P.T, mu.T, K)
    expected = np.hstack([T(densities, ALPHA, k).T for k in top_six(K)])
    embedding = hm.DiffusionEMD.from_paper(graph, max_scale=K, alpha=ALPHA, density="adjoint").fit_transform(mu)
    assert np.abs(embedding - expected).max() < 1e-9


@pytest.mark.parametrize("K", [0, 3, 10])
def test_all_terms_of_equation_7(K):
    """n_scales=None keeps all K + 1 terms, also those whose weight is small."""
    graph, P = example()
    mu = dirichlet(5, 60)
    embedding = hm.DiffusionEMD.from_paper(graph, max_scale=K, n_scales=None).fit_transform(mu)
    densities = dyadic_densities(P, mu.T, K)
    expected = np.hstack([T(densities, ALPHA, k).T for k in range(K + 1)])
    assert embedding.shape == expected.shape
    assert np.abs(embedding - expected).max() < 1e-9


def test_the_scale_is_chosen_as_by_the_defaults(strip, strip_measures):
    """Without an argument, K is the first scale at which the heat of two points overlaps by half on average."""
    model = hm.DiffusionEMD.from_paper(strip[0]).fit(strip_measures)
    assert model.max_scale_ == hm.DiffusionEMD(strip[0]).fit(strip_measures).max_scale_
    _, P = strip
    means = [np.abs(power[:, None] - power[None]).sum(axis=2).mean() / 2 for power in powers_of(P, model.max_scale_)]
    n = len(P)
    means = [mean * n / (n - 1) for mean in means]
    assert means[-1] < 0.53
    assert all(mean > 0.47 for mean in means[:-1])


def powers_of(P, K):
    """Rows of P^(2^k) for k = 0, ..., K, every third of them."""
    power = P
    for _ in range(K + 1):
        yield power[::3]
        power = power @ power


@pytest.mark.filterwarnings("ignore::heatmover.errors.GraphWarning")  # a random graph may be nearly disconnected
@settings(deadline=None, max_examples=25)
@given(
    n_points=st.integers(2, 40),
    seed=st.integers(0, 10_000),
    K=st.integers(0, 10),
    alpha=st.floats(0.01, 0.4999),
    epsilon=st.floats(0.3, 4.0),
)
def test_algorithm_1_on_random_graphs(n_points, seed, K, alpha, epsilon):
    graph, P = example(n_points, seed, epsilon)
    mu = dirichlet(3, n_points, seed)
    model = hm.DiffusionEMD.from_paper(graph, max_scale=K, alpha=alpha)
    # All scales, as the algorithm prints them.
    embedding = model.set_params(n_scales=K + 1).fit_transform(mu)
    densities = dyadic_densities(P, mu.T, K)
    expected = np.hstack([T(densities, alpha, k).T for k in range(K + 1)])
    assert np.abs(embedding - expected).max() < 1e-9


def test_points_have_the_kernel_of_equation_4():
    points, bandwidth = cloud(50, 4), 0.7
    graph = hm.Graph.from_points(points, radius=100.0, bandwidth=bandwidth)
    P = diffusion_operator(gaussian_kernel(points, bandwidth**2))
    mu = dirichlet(4, 50)
    model = hm.DiffusionEMD.from_paper(graph, max_scale=5)
    densities = dyadic_densities(P, mu.T, 5)
    names = list(model.fit(mu).get_feature_names_out())
    expected = {f"scale{k}_x{i}": T(densities, ALPHA, k)[i] for k in range(6) for i in range(50)}
    assert np.abs(model.transform(mu) - np.array([expected[name] for name in names]).T).max() < 1e-9


# --- the largest scale --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    n_points=st.integers(2, 60), seed=st.integers(0, 10_000), width=st.floats(0.5, 4.0), epsilon=st.floats(0.01, 0.9)
)
def test_the_largest_scale_is_that_of_lemma_1(n_points, seed, width, epsilon):
    graph, _ = example(n_points, seed, width)
    K = mixing_scale(graph.affinity.toarray(), epsilon)
    if K is None:
        with pytest.raises(InvalidInputError, match="a random walk that mixes"):
            hm.DiffusionEMD.from_paper(graph, max_scale=epsilon).fit()
        return
    model = hm.DiffusionEMD.from_paper(graph, max_scale=epsilon).fit()
    assert model.max_scale_ == K
    assert f"within {epsilon:g}" in model.max_scale_reason_
    assert "Lemma 1" in model.max_scale_reason_


# --- centers ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strip():
    return long_strip()


@pytest.fixture(scope="module")
def strip_measures():
    return dirichlet(6, 600)


@pytest.fixture(scope="module")
def strip_densities(strip, strip_measures):
    """Return a function that gives the densities on the strip up to a scale; those of a lower one are its first."""
    densities = dyadic_densities(strip[1], strip_measures.T, 12)

    def up_to(K):
        assert len(densities) > K
        return densities[: K + 1]

    return up_to


@pytest.fixture(scope="module")
def strip_eigenvalues(strip):
    """Absolute eigenvalues of P."""
    return np.abs(np.linalg.eigvals(strip[1]))


@pytest.fixture(scope="module")
def fitted(strip, strip_measures):
    """Return a function that gives a preset on the strip by its options; each is fitted once."""

    @cache
    def fit(**options):
        return hm.DiffusionEMD.from_paper(strip[0], **{"max_scale": 0.25} | options).fit(strip_measures)

    return fit


def centers_of(model):
    return [regions.centers for regions in model.prepared_.layout.regions]


def expected_at_centers(densities, model):
    """b_k at the centers of its coarser level, by dense powers."""
    blocks = [T(densities, model.alpha, k) for k in model.scales_]
    return np.hstack([block[centers].T for block, centers in zip(blocks, centers_of(model), strict=True)])


@pytest.mark.parametrize("delta", [1e-3, DELTA, 1e-8])
def test_algorithm_4_is_equation_8_at_its_centers(strip, strip_measures, strip_densities, fitted, delta):
    graph, _ = strip
    model = fitted(algorithm="interpolative", compress=delta)
    assert model.method_ == "interpolative"
    embedding = model.transform(strip_measures)
    expected = expected_at_centers(strip_densities(model.max_scale_), model)
    assert embedding.shape == expected.shape
    assert embedding.shape[1] < 600
    assert (model.error_bound_ <= 10 * delta).all()
    # A difference has the errors of two densities. The bound is in the norm of the stationary law pi.
    pi = stationary_law(graph.affinity.toarray())
    room = 2 * model.error_bound_.max() * np.sqrt((strip_measures**2 @ pi) / pi.min())
    assert (np.abs(embedding - expected).max(axis=1) <= room).all()


def test_the_skeletons_are_nested_and_have_the_rank_of_the_powers(fitted, strip_eigenvalues):
    model = fitted(algorithm="interpolative")
    centers = [set(part.tolist()) for part in centers_of(model)]
    assert all(coarse <= fine for fine, coarse in pairwise(centers))
    # The difference and the density at the top are both at the centers of K.
    assert centers[-1] == centers[-2]
    for level, part in zip([*model.scales_[1:], model.max_scale_], centers, strict=True):
        rank = np.count_nonzero(strip_eigenvalues**2.0**level >= DELTA)
        assert abs(len(part) - rank) <= max(2, 0.25 * rank)


def test_a_scale_of_high_rank_is_compared_at_all_points(strip_measures, strip_densities, fitted, strip_eigenvalues):
    model = fitted(algorithm="interpolative", max_scale=5)
    ranks = np.array([np.count_nonzero(strip_eigenvalues**2.0**k >= DELTA) for k in (1, 2, 3, 4, 5, 5)])
    assert ranks[0] > 80
    assert ranks[-1] < 50
    assert (model.n_regions_[ranks > 80] == 600).all()
    assert (model.n_regions_[ranks < 50] < 60).all()
    expected = expected_at_centers(strip_densities(model.max_scale_), model)
    assert np.abs(model.transform(strip_measures) - expected).max() < 1e-4


def test_algorithm_1_is_sampled_at_the_centers_of_algorithm_4(strip_measures, strip_densities, fitted):
    sampled, nested = fitted(compress=DELTA), fitted(algorithm="interpolative")
    assert sampled.method_ == "chebyshev"
    for one, other in zip(centers_of(sampled), centers_of(nested), strict=True):
        assert one.tolist() == other.tolist()
    expected = expected_at_centers(strip_densities(sampled.max_scale_), sampled)
    assert np.abs(sampled.transform(strip_measures) - expected).max() < 1e-9


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000), algorithm=st.sampled_from(["chebyshev", "interpolative"]))
def test_centers_on_random_graphs(seed, algorithm):
    graph, P = example(150, seed, 2.0)
    mu = dirichlet(3, 150, seed)
    model = hm.DiffusionEMD.from_paper(graph, algorithm=algorithm, compress=DELTA, max_scale=8).fit(mu)
    densities = dyadic_densities(P, mu.T, model.max_scale_)
    assert np.abs(model.transform(mu) - expected_at_centers(densities, model)).max() < 2e-4


def test_several_components_have_centers_each(strip_measures):
    kernel = np.kron(np.eye(3), gaussian_kernel(cloud(200, 5), 1.0))
    graph, P = hm.Graph.from_affinity(kernel), diffusion_operator(kernel)
    with pytest.warns(hm.errors.GraphWarning, match="3 components"):
        model = hm.DiffusionEMD.from_paper(graph, algorithm="interpolative", max_scale=0.25).fit(strip_measures)
    assert model.method_ == "interpolative"
    for centers in centers_of(model):
        assert set(centers // 200) == {0, 1, 2}
    densities = dyadic_densities(P, strip_measures.T, model.max_scale_)
    assert np.abs(model.transform(strip_measures) - expected_at_centers(densities, model)).max() < 1e-4


# --- through the whole house --------------------------------------------------------------------------------------

PRESETS = {
    "algorithm 1": {},
    "algorithm 1 at centers": {"compress": DELTA},
    "algorithm 4": {"algorithm": "interpolative"},
}


@pytest.fixture(scope="module", params=PRESETS, ids=str)
def preset(request, fitted):
    return fitted(**PRESETS[request.param])


@pytest.fixture(scope="module")
def embedded(preset, strip_measures):
    return preset.transform(strip_measures)


def test_blocks_are_the_whole(preset, strip_measures):
    blocks = list(preset.transform_blocks(np.vstack([strip_measures] * 3), memory="600 kB"))
    assert np.array_equal(np.vstack(blocks), preset.transform(np.vstack([strip_measures] * 3)))


def test_the_transpose_is_the_transpose(preset, strip_measures, embedded):
    features = np.random.default_rng(0).normal(size=(2, embedded.shape[1]))
    assert np.allclose(preset.apply_transpose(features) @ strip_measures.T, features @ embedded.T, atol=1e-10)


def test_a_table_gives_the_same(strip, strip_measures, fitted):
    many = hm.DiffusionEMD.from_paper(strip[0], algorithm="interpolative", max_scale=0.25).fit()
    assert many.prepared_.table is not None
    few = fitted(algorithm="interpolative")
    assert few.prepared_.table is None
    assert np.allclose(many.transform(strip_measures), few.transform(strip_measures), atol=1e-12)


def test_explanations_sum_to_the_distance(preset, strip_measures, embedded):
    distance = hm.pairwise_distances(embedded)[0, 1]
    explanation = hm.explain(preset, strip_measures[0], strip_measures[1])
    assert explanation.contributions.sum() == pytest.approx(distance, rel=1e-9)
    # What differs per scale is what the embedding holds, at the points where it holds it.
    assert np.abs(explanation.differences).sum() == pytest.approx(distance, rel=1e-6)


def test_columns_have_the_names_of_points(preset):
    names = preset.get_feature_names_out()
    assert names.size == preset.n_regions_.sum()
    assert len(set(names)) == names.size
    regions = preset.prepared_.layout.regions
    if regions is not None:
        assert names[0] == f"scale{preset.scales_[0]}_x{regions[0].centers[0]}"


def test_clone_and_pickle_keep_the_preset(preset, strip_measures, embedded):
    copied = clone(preset)
    assert copied.get_params() == preset.get_params()
    assert np.array_equal(copied.fit_transform(strip_measures), embedded)
    loaded = pickle.loads(pickle.dumps(preset))
    assert np.array_equal(loaded.transform(strip_measures), embedded)


@pytest.mark.parametrize("options", PRESETS.values(), ids=PRESETS)
def test_barycenters_take_the_preset(options):
    model = hm.DiffusionEMD.from_paper(long_strip(150)[0], **options)
    embedding = model.fit_transform(dirichlet(2, 150))
    result = hm.barycenter(model, dirichlet(2, 150), tol=0.1)
    assert result.masses.sum() == pytest.approx(1)
    # Nothing is nearer to two measures on average than half of their distance, and they themselves are as near.
    half = hm.pairwise_distances(embedding)[0, 1] / 2
    assert result.lower_bound <= half * (1 + 1e-9)
    assert half * (1 - 1e-9) <= result.objective <= half * 1.1


# --- contradictions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.5}, r"alpha in \(0, 1/2\)"),
        ({"alpha": 0.7}, r"alpha in \(0, 1/2\)"),
        ({"alpha": 0}, "alpha"),
        ({"algorithm": "exact"}, "algorithm"),
        ({"algorithm": "interpolative", "compress": False}, "Algorithm 4 compares densities only at centers"),
        ({"compress": 2.0}, "compress to be a threshold"),
        ({"max_scale": "largest"}, "max_scale"),
        ({"n_scales": 0}, "n_scales"),
        ({"density": "operator"}, "density"),
        ({"max_scale": 1.5}, "max_scale"),
    ],
)
def test_what_contradicts_the_paper_is_rejected(options, message):
    with pytest.raises(InvalidInputError, match=message):
        hm.DiffusionEMD.from_paper(example()[0], **options)


@pytest.mark.parametrize("name", ["norm", "method", "tol", "dtype", "compress_by", "weights"])
def test_what_the_paper_sets_is_no_option(name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        hm.DiffusionEMD.from_paper(example()[0], **{name: None})


def test_centers_serve_the_other_norms_too(strip, strip_measures, strip_densities):
    graph, _ = strip
    model = hm.DiffusionEMD(
        graph, compress=DELTA, compress_by="centers", density="function", tol=1e-8, dtype="float64", max_scale=8
    )
    embedding = model.fit_transform(strip_measures)
    densities = strip_densities(8)
    expected = [
        2 ** (-0.5 * (8 - k)) * densities[k][centers].T
        for k, centers in zip(model.scales_, centers_of(model), strict=True)
    ]
    assert np.abs(embedding - np.hstack(expected)).max() < 1e-6
