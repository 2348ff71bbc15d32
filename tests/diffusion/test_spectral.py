"""Leading eigenpairs and the factors built from them, against all eigenpairs of the dense matrix."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from heatmover.diffusion import lowrank
from heatmover.diffusion.lowrank import leading_eigenpairs, spectral_factors
from heatmover.diffusion.operator import DiffusionOperator, threshold
from heatmover.graphs import Graph

LAST = 18


def ring(n=400):
    angles = 2 * np.pi * np.sort(np.random.default_rng(0).random(n))
    return Graph.from_points(np.c_[np.cos(angles), np.sin(angles)], n_neighbors=10)


def swiss_roll(n=1010):
    rng = np.random.default_rng(1)
    angle, height = 1.5 * np.pi * (1 + 2 * rng.random(n)), 20 * rng.random(n)
    return Graph.from_points(np.c_[angle * np.cos(angle), angle * np.sin(angle), height], n_neighbors=12)


def weakly_chained_pairs(count=2000):
    """As many eigenvalues within 1e-6 of 1 as there are pairs, in one component."""
    pairs = sp.kron(sp.eye(count), np.ones((2, 2)))
    links = sp.diags_array(np.tile([0.0, 1e-6], count)[:-1], offsets=1)
    return Graph.from_affinity(sp.csr_array(pairs + links + links.T))


# Some below and some above the thousand points up to which all eigenpairs may be computed.
MANIFOLDS = {
    "ring of 400": ring,
    "ring of 1,010": lambda: ring(1010),
    "grid of 500": lambda: Graph.from_grid((20, 25)),
    "grid of 1,014": lambda: Graph.from_grid((26, 39)),
    "swiss roll of 1,010": swiss_roll,
}


@pytest.fixture(scope="module", params=MANIFOLDS, ids=str)
def manifold(request):
    """An operator with all of its eigenpairs, top eigenvectors left out."""
    operator = DiffusionOperator.from_graph(MANIFOLDS[request.param]())
    return operator, *np.linalg.eigh(deflated(operator))


@pytest.fixture
def widths(monkeypatch):
    """Numbers of columns of every block that was filtered."""
    counts = []
    plain = lowrank.leading_eigenpairs

    def counted(operator, start, *args, **options):
        counts.append(start.shape[1])
        return plain(operator, start, *args, **options)

    monkeypatch.setattr(lowrank, "leading_eigenpairs", counted)
    return counts


def deflated(operator):
    """S without its part on the top eigenvectors, dense."""
    top = np.zeros((operator.n_points, operator.n_components))
    top[np.arange(operator.n_points), operator.component] = operator.top
    return operator.symmetric.toarray() - top @ top.T


def factorize(operator, first, rank, *, tol=1e-3, last=LAST, seed=0, **options):
    return spectral_factors(operator, first, rank, tol=tol, rng=np.random.default_rng(seed), last=last, **options)


def gaussian(operator, width, seed=0):
    return np.random.default_rng(seed).standard_normal((operator.n_points, width))


def error_norm(eigenpairs, factor):
    """Spectral norm of the true power less the factor, found in the space that both of them span."""
    values, vectors = eigenpairs
    powers = values ** float(2**factor.scale)
    # Powers below 1e-12 add as much to the error at most.
    kept = np.abs(powers) > 1e-12
    known = vectors[:, kept]
    inside = known.T @ factor.basis
    outside = np.linalg.qr(factor.basis - known @ inside, mode="r")
    coordinates = np.vstack([inside, outside])
    difference = block_diag(np.diag(powers[kept]), np.zeros((len(outside), len(outside))))
    difference -= coordinates @ factor.core @ coordinates.T
    np.testing.assert_array_equal(factor.core, factor.core.T)
    return np.abs(np.linalg.eigvalsh(difference)).max() + 1e-12 if difference.size else 0.0


def assert_within_bounds(eigenpairs, factors, tol, first, last=LAST):
    assert [factor.scale for factor in factors] == list(range(first, last + 1))
    for factor in factors:
        # The oracle rounds as well.
        assert error_norm(eigenpairs, factor) <= factor.bound + 2**factor.scale * np.finfo(float).eps + 2e-12
        assert factor.bound <= tol


# --- eigenpairs ---------------------------------------------------------------------------------------------------


def test_leading_eigenpairs_are_those_of_the_dense_matrix(manifold):
    operator, values, vectors = manifold
    theta = float(values[-25])
    block = gaussian(operator, 64)
    for _ in range(4):
        ritz = leading_eigenpairs(operator, block, theta, growth=11)
        block = ritz.vectors
    np.testing.assert_allclose(ritz.values[:12], values[::-1][:12], atol=1e-10)
    # Eigenvalues of a ring come in pairs: compare what the vectors span, at a gap.
    gap = int(np.argmax(-np.diff(values[::-1][5:13]))) + 6
    overlap = np.linalg.svd(ritz.vectors[:, :gap].T @ vectors[:, ::-1][:, :gap], compute_uv=False)
    np.testing.assert_allclose(overlap, 1, atol=1e-8)


def test_ritz_vectors_are_orthonormal_and_beside_the_top(manifold):
    operator, values, _ = manifold
    ritz = leading_eigenpairs(operator, gaussian(operator, 40).astype(np.float32), float(values[-30]))
    np.testing.assert_allclose(ritz.vectors.T @ ritz.vectors, np.eye(ritz.values.size), atol=1e-11)
    np.testing.assert_allclose(operator.top @ ritz.vectors, 0, atol=1e-11)
    assert (np.diff(np.abs(ritz.values)) <= 0).all()


def test_ritz_values_never_exceed_the_eigenvalues(manifold):
    operator, values, _ = manifold
    ritz = leading_eigenpairs(operator, gaussian(operator, 24), float(values[-20]))
    ordered = np.sort(ritz.values)[::-1]
    assert (ordered <= values[::-1][: ordered.size] + 1e-12).all()


# --- factors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "tol"), [(6, 1e-2), (4, 1e-3), (7, 1e-4), (5, 1e-5), (6, 1e-6)])
def test_every_power_is_within_its_bound_and_the_bound_within_tol(manifold, first, tol):
    operator, values, vectors = manifold
    rank = int((np.abs(values) > threshold(first, tol / 30)).sum())
    factors = factorize(operator, first, rank, tol=tol)
    assert_within_bounds((values, vectors), factors, tol, first)
    # The basis is not much larger than needed.
    assert factors[0].rank <= np.count_nonzero(np.abs(values) > threshold(first, tol / 100))


@pytest.mark.parametrize(("first", "tol"), [(0, 1e-3), (1, 1e-1), (3, 1e-6), (5, 1e-2)])
def test_every_power_of_a_hostile_graph_is_within_its_bound(graph, first, tol):
    operator = DiffusionOperator.from_graph(graph)
    factors = factorize(operator, first, operator.n_points, tol=tol)
    assert_within_bounds(np.linalg.eigh(deflated(operator)), factors, tol, first)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**31),
    first=st.integers(0, 8),
    rank=st.integers(0, 60),
    tol=st.sampled_from([0.3, 1e-2, 1e-4, 1e-6]),
)
def test_no_draw_and_no_guess_of_the_rank_breaks_the_bound(seed, first, rank, tol):
    rng = np.random.default_rng(seed)
    affinity = np.exp(-rng.exponential(rng.uniform(1, 30), size=(25, 25)))
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity + affinity.T))
    factors = factorize(operator, first, rank, tol=tol, seed=seed)
    if factors is not None:
        assert_within_bounds(np.linalg.eigh(deflated(operator)), factors, tol, first)


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**31),
    repeats=st.sampled_from([1, 2, 3, 4, 8, 64, 1024]),
    tilt=st.sampled_from([0, 1e-8, 1e-4, 1e-2, 0.1]),
    shift=st.sampled_from([0, 1e-8, 1e-3]),
)
def test_the_bound_on_powers_holds_for_any_vectors(seed, repeats, tilt, shift):
    """B^N - V L^N V' with the four norms known exactly, for tilted vectors and wrong values."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random(12) ** rng.choice([0.05, 1, 8]))[::-1]
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    power = (turn * values) @ turn.T
    count = int(rng.integers(1, 11))
    vectors = np.linalg.qr(turn[:, :count] + tilt * rng.standard_normal((12, count)))[0]
    kept = np.clip(np.diag(vectors.T @ power @ vectors) + shift * rng.standard_normal(count), 0, 1)
    error = power - (vectors * kept) @ vectors.T
    image = error @ (vectors * kept)
    inside = vectors.T @ image
    parts = error, image - vectors @ inside, inside, kept[:, None] * inside
    errors = lowrank.Errors(*(float(np.linalg.norm(part, 2)) for part in parts))
    largest = max(values[0], kept.max())
    exact = np.linalg.matrix_power(power, repeats) - (vectors * kept**repeats) @ vectors.T
    bound = lowrank._bound(errors, float(largest), float(repeats))
    assert np.linalg.norm(exact, 2) <= bound * (1 + 1e-9) + 1e-12


def test_a_guess_that_is_too_small_grows(manifold, widths):
    operator, values, vectors = manifold
    factors = factorize(operator, 4, 3, tol=1e-4)
    assert_within_bounds((values, vectors), factors, 1e-4, 4)
    assert widths[0] < 20
    assert widths[-1] >= factors[0].rank
    assert len(widths) <= 12


def test_a_guess_that_is_nearly_right_is_enough():
    """On this ring the filter has a low degree, and float32 does not reach 1e-5 at the coarsest scales."""
    operator = DiffusionOperator.from_graph(ring(1500))
    eigenpairs = np.linalg.eigh(deflated(operator))
    for tol in (1e-3, 1e-5, 1e-6):
        rank = int((np.abs(eigenpairs[0]) > threshold(4, tol / 30)).sum())
        for guess in (int(0.85 * rank), int(1.1 * rank)):
            assert_within_bounds(eigenpairs, factorize(operator, 4, guess, tol=tol), tol, 4)


def test_the_rank_falls_with_the_scale(manifold):
    ranks = [factor.rank for factor in factorize(manifold[0], 4, 200)]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] > 5 * ranks[-1]


# --- limits -------------------------------------------------------------------------------------------------------


def test_a_rank_beyond_the_limit_is_told_before_any_product(widths):
    operator = DiffusionOperator.from_graph(Graph.from_grid((36, 36)))
    assert factorize(operator, 2, 600, most=100, tol=1e-2) is None
    assert widths == []


def test_a_limit_that_is_too_small_is_told_after_a_few_blocks(widths):
    operator = DiffusionOperator.from_graph(Graph.from_grid((36, 36)))
    assert factorize(operator, 4, 3, most=60) is None
    assert max(widths) <= 60
    assert len(widths) <= 4


def test_thousands_of_eigenvalues_near_one_do_not_hang_it(widths):
    operator = DiffusionOperator.from_graph(weakly_chained_pairs())
    assert operator.n_components == 1
    assert factorize(operator, 12, 10, most=300) is None
    assert sum(widths) <= 600


def test_thousands_of_tiny_components_cost_no_rank(widths):
    affinity = sp.kron(sp.eye(2000), np.array([[1.0, 0.5], [0.5, 1.0]]))
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
    factors = factorize(operator, 6, 0)
    assert [factor.rank for factor in factors] == [0] * (LAST - 5)
    assert sum(widths) <= 32


@pytest.mark.parametrize("n_points", [1, 40, 1200])
def test_nothing_but_top_eigenvectors_is_rank_zero(n_points):
    for affinity in (sp.eye(n_points), np.ones((n_points, n_points))):
        operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
        for factor in factorize(operator, 2, 0):
            assert factor.rank == 0
            assert factor.basis.shape == (n_points, 0)
            assert factor.core.shape == (0, 0)
            assert factor.bound <= 1e-3


def test_an_eigenvalue_of_minus_one_is_kept_on_small_graphs():
    """The cycle without loops is bipartite: its walk never forgets the side it started on."""
    cycle = np.roll(np.eye(300), 1, axis=1) + np.roll(np.eye(300), -1, axis=1)
    operator = DiffusionOperator.from_graph(Graph.from_affinity(cycle, lazy=False))
    eigenpairs = np.linalg.eigh(deflated(operator))
    for guess in (0, 30, 150):
        factors = factorize(operator, 6, guess)
        assert_within_bounds(eigenpairs, factors, 1e-3, 6)
        assert np.abs(factors[-1].core).max() == pytest.approx(1)


def test_an_eigenvalue_of_minus_one_is_told_on_large_graphs(widths):
    n_points = 1500
    ones = np.ones(n_points)
    steps = sp.diags_array([ones[:-1], ones[:-1], [1.0], [1.0]], offsets=[-1, 1, n_points - 1, 1 - n_points])
    operator = DiffusionOperator.from_graph(Graph.from_affinity(sp.csr_array(steps), lazy=False))
    assert operator.lowest == -1
    assert factorize(operator, 6, 100) is None
    assert widths == []


def test_a_tolerance_below_rounding_is_told():
    for n_points in (300, 1200):
        assert factorize(DiffusionOperator.from_graph(ring(n_points)), 6, 60, tol=1e-14, last=24) is None


def test_passes_are_counted(monkeypatch, widths):
    monkeypatch.setattr(lowrank, "PASSES", 3)
    assert factorize(DiffusionOperator.from_graph(ring(1200)), 4, 3) is None
    assert len(widths) == 3


def test_an_error_of_one_bounds_nothing_further():
    large = lowrank.Errors(1.5, 0.1, 0.1, 0.1)
    assert lowrank._bound(large, 1.0, 1.0) == 1.5
    assert lowrank._bound(large, 1.0, 2.0) > 1


# --- randomness ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_same_seed_same_bits_whatever_the_threads(tol):
    operator = DiffusionOperator.from_graph(Graph.from_grid((30, 37)))
    first, *others = (factorize(operator, 5, 40, tol=tol, n_threads=threads) for threads in (1, 1, 2, 5))
    for other in others:
        for one, two in zip(first, other, strict=True):
            np.testing.assert_array_equal(one.basis, two.basis)
            np.testing.assert_array_equal(one.core, two.core)
            assert one.bound == two.bound


def test_other_seed_other_block_same_power():
    operator = DiffusionOperator.from_graph(Graph.from_grid((30, 37)))
    first, second = (factorize(operator, 5, 90, seed=seed)[0] for seed in (0, 1))
    assert not np.array_equal(first.basis, second.basis)
    difference = first.basis @ first.core @ first.basis.T - second.basis @ second.core @ second.basis.T
    assert np.linalg.norm(difference, 2) <= first.bound + second.bound
