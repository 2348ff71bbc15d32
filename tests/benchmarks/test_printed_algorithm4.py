"""The printed algorithms of the supplement against dense algebra, and what the exhibit of complexities rests on."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")

ALL = {"shape", "weights", "roles", "gram", "square"}


@pytest.fixture
def printed(script):
    return script("printed_algorithm4")


def with_values(n_rows, n_columns, values, seed=0):
    """A matrix with these singular values."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(n_rows, len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(n_columns, len(values))))[0]
    return (left * values) @ right.T


MATRICES = {
    "wide": lambda: with_values(40, 90, 0.7 ** np.arange(40)),
    "tall": lambda: with_values(90, 40, 0.7 ** np.arange(40)),
    "slow": lambda: with_values(60, 60, 0.97 ** np.arange(60)),
    "uneven columns": lambda: with_values(50, 50, 0.8 ** np.arange(50)) * 10.0 ** -np.arange(0, 10, 0.2),
}


@pytest.fixture(params=MATRICES, ids=str)
def matrix(request):
    return MATRICES[request.param]()


def printed_bound(matrix, k):
    """sqrt(4 k (n - k) + 1) sigma_{k+1}."""
    return np.sqrt(4 * k * (matrix.shape[1] - k) + 1) * np.linalg.svd(matrix, compute_uv=False)[k]


@pytest.mark.parametrize("k", [1, 5, 20])
def test_algorithm_2_obeys_its_bound(printed, matrix, k):
    found = printed.interpolative_decomposition(matrix, k)
    assert sorted(found.order) == list(range(matrix.shape[1]))
    np.testing.assert_allclose(found.B, matrix[:, found.order[:k]], atol=1e-13)
    np.testing.assert_array_equal(found.C[:, :k], np.eye(k))
    error = np.linalg.norm(matrix[:, found.order] - found.B @ found.C, 2)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert values[k] * (1 - 1e-9) <= error <= printed_bound(matrix, k)
    # In the order of the columns the error is equal.
    assert np.linalg.norm(matrix - found.B @ found.in_order, 2) == pytest.approx(error)


def test_algorithm_2_chooses_the_pivots_of_lapack(printed):
    from scipy.linalg import qr

    matrix = MATRICES["wide"]()
    pivots = qr(matrix, mode="r", pivoting=True)[1]
    assert printed.interpolative_decomposition(matrix, 12).order[:12].tolist() == pivots[:12].tolist()


def test_a_rank_that_is_too_large_is_an_error(printed):
    with pytest.raises(ValueError, match="rank 2"):
        printed.interpolative_decomposition(np.outer([1.0, 2.0], [1.0, 0.0, 0.0]), 2)


@pytest.mark.parametrize("k", [6, 20])
@pytest.mark.parametrize("seed", range(5))
def test_algorithm_3_obeys_its_bound_and_finds_columns(printed, matrix, k, seed):
    found = printed.rand_id(matrix, k + 8, k, 5, np.random.default_rng(seed))
    assert len(set(found.indices)) == k
    # The printed search among five rows finds the pivots.
    assert found.indices.tolist() == found.pivots.tolist()
    np.testing.assert_array_equal(found.B, matrix[:, found.indices])
    np.testing.assert_allclose(found.C[:, found.indices], np.eye(k), atol=1e-12)
    assert np.linalg.norm(matrix - found.B @ found.C, 2) <= printed_bound(matrix, k)


def test_the_search_finds_each_column_and_the_nearest_of_others(printed):
    many = np.random.default_rng(0).normal(size=(5, 200))
    wanted = np.random.default_rng(1).permutation(200)[:30]
    nearly = many[:, wanted] * (1 + 1e-9)
    assert printed.search_columns(nearly, many).tolist() == wanted.tolist()


def strip(n_points=240):
    points = np.random.default_rng(3).normal(size=(n_points, 2)) * 0.05
    points[:, 0] = 3 * np.random.default_rng(4).random(n_points)
    kernel = np.exp(-np.square(points[:, None] - points[None]).sum(axis=2) / 0.05)
    mu = np.random.default_rng(5).dirichlet(np.full(n_points, 0.3), size=4).T
    return kernel, mu


def dense_powers(kernel, mu, K):
    """Eq. 5 and Eq. 6."""
    Q = kernel.sum(axis=1)
    norm = kernel / Q[:, None] / Q
    P = norm / norm.sum(axis=1)[:, None]
    return [np.linalg.matrix_power(P, 2**k) @ mu for k in range(K + 1)]


def result_of(printed, corrections, delta=1e-6, K=7, **options):
    kernel, mu = strip()
    M, D = printed.normalized(kernel)
    ranks = printed.ranks_of(M, K, delta)
    return printed.algorithm_4(M, D, mu, ranks, np.random.default_rng(0), corrections, **options), ranks


def worst(result, densities):
    pairs = zip(result.densities, result.centers, densities, strict=True)
    return max(np.abs(found - dense[part]).max() / np.abs(dense).max() for found, part, dense in pairs)


def test_only_all_corrections_compute_powers(printed):
    densities = dense_powers(*strip(), 7)
    errors = {}
    for corrections in ({"shape"}, ALL - {"gram", "square"}, ALL - {"square"}, ALL):
        result, ranks = result_of(printed, corrections)
        errors[len(corrections)] = worst(result, densities)
        assert [len(part) for part in result.centers] == [rank if rank < 24 else 240 for rank in [999, *ranks[1:]]]
    assert errors[1] > 10
    assert errors[3] > 10
    # The skeleton of M^(2^(k-1)) with the rank of its square leaves an error of the order of sqrt(delta).
    assert 1e-5 < errors[4] < 0.1
    assert errors[5] < 1e-4


def test_without_skeletons_every_version_is_exact(printed):
    densities = dense_powers(*strip(), 7)
    for corrections in ({"shape"}, ALL):
        result, _ = result_of(printed, corrections, gamma=0.0)
        assert worst(result, densities) < 1e-12


def test_the_embedding_is_equation_8_at_the_centers(printed):
    result, _ = result_of(printed, ALL, gamma=0.0)
    densities, K, alpha = dense_powers(*strip(), 7), 7, 0.49
    terms = [2.0 ** (-(K - k - 1) * alpha) * (densities[k + 1] - densities[k]) for k in range(2, K)]
    expected = np.vstack([*terms, densities[K]]).T
    assert np.abs(result.embedding(printed.weight_of_equation_8, alpha) - expected).max() < 1e-12
    literal = [2.0 ** ((K - k - 1) * alpha) * (densities[k] - densities[k - 1]) for k in range(3, K + 1)]
    expected = np.vstack([*literal, densities[K]]).T
    assert np.abs(result.embedding(printed.printed_weight, alpha) - expected).max() < 1e-12


def test_exponents_are_slopes(script):
    complexity = script("complexity")
    sizes = [10, 20, 80, 100]
    assert complexity.exponent(sizes, [3 * size**1.7 for size in sizes]) == pytest.approx(1.7)
    assert complexity.last_exponent(sizes, [1, 1, 80**2, 100**2]) == pytest.approx(2)


def test_gamma_decides_where_skeletons_begin(script):
    complexity = script("complexity")
    graph = complexity.roll(400, 0)
    before = complexity.skeleton_ranks(graph, 0)
    with complexity.gamma(0.5):
        more = complexity.skeleton_ranks(graph, 0)
    assert min(more) < min(before)
    assert max(before.values()) < 40 <= max(more.values()) < 200
    assert complexity.skeleton_ranks(graph, 0) == before
