"""Interpolative decompositions, against the error measured on the dense matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.skeleton import (
    FIRST_SKETCH,
    cut_skeleton,
    interpolative_decomposition,
    randomised_interpolative_decomposition,
    spectral_norm,
    spectral_norm_from_sketch,
)
from heatmover.graphs import Graph


def decaying(n_rows, n_columns, decay, seed=0):
    """A matrix with singular values 1, decay, decay^2, ..."""
    rng = np.random.default_rng(seed)
    count = min(n_rows, n_columns)
    left = np.linalg.qr(rng.normal(size=(n_rows, count)))[0]
    right = np.linalg.qr(rng.normal(size=(n_columns, count)))[0]
    return (left * decay ** np.arange(count)) @ right.T


def kahan(n=60, angle=1.2):
    """The classical matrix on which pivoting picks poor columns."""
    upper = np.eye(n) - np.cos(angle) * np.triu(np.ones((n, n)), 1)
    # The factor breaks the ties of the pivots in favour of the given order.
    return np.sin(angle) ** np.arange(n)[:, None] * upper * (1 - 1e-9 * np.arange(n))


def heat(scale=5):
    """A power of a diffusion operator: symmetric and positive semi-definite."""
    points = np.random.default_rng(2).normal(size=(150, 2))
    operator = DiffusionOperator.from_graph(Graph.from_points(points, n_neighbors=12))
    return np.linalg.matrix_power(operator.symmetric.toarray(), 2**scale)


MATRICES = {
    "wide": lambda: decaying(40, 90, 0.7),
    "tall": lambda: decaying(90, 40, 0.7),
    "square, slow decay": lambda: decaying(60, 60, 0.97),
    "kahan": kahan,
    "heat": heat,
    "huge": lambda: 1e200 * decaying(30, 30, 0.5),
    "tiny": lambda: 1e-200 * decaying(30, 30, 0.5),
    "columns of very different size": lambda: decaying(50, 50, 0.8) * 10.0 ** -np.arange(50),
    "repeated columns": lambda: np.tile(decaying(30, 12, 0.6), 3),
}


@pytest.fixture(params=MATRICES, ids=str)
def matrix(request):
    return MATRICES[request.param]()


def measured_error(matrix, skeleton):
    left = matrix - matrix[:, skeleton.indices] @ skeleton.interpolation
    scale = np.abs(matrix).max()
    return scale * np.linalg.norm(left / scale, 2)


def assert_interpolates(skeleton, n_columns):
    rank = skeleton.rank
    assert skeleton.interpolation.shape == (rank, n_columns)
    assert np.unique(skeleton.indices).size == rank
    np.testing.assert_array_equal(skeleton.interpolation[:, skeleton.indices], np.eye(rank))
    assert np.isfinite(skeleton.interpolation).all()


def rounding(matrix):
    """Enough for the differences of a decomposition and of the oracle, relative to the norm."""
    return 50 * np.finfo(matrix.dtype).eps * spectral_norm(matrix)


@pytest.mark.parametrize("delta", [0.5, 1e-2, 1e-5, 1e-9])
def test_the_reported_error_is_the_measured_one_and_as_small_as_asked(matrix, delta):
    skeleton = interpolative_decomposition(matrix, delta=delta)
    assert_interpolates(skeleton, matrix.shape[1])
    assert measured_error(matrix, skeleton) == pytest.approx(skeleton.bound, abs=rounding(matrix))
    assert skeleton.bound <= delta * np.linalg.norm(matrix / np.abs(matrix).max(), 2) * np.abs(matrix).max()


def test_no_smaller_rank_would_do(matrix):
    skeleton = interpolative_decomposition(matrix, delta=1e-3)
    smaller = interpolative_decomposition(matrix, rank=skeleton.rank - 1)
    assert smaller.bound > 1e-3 * spectral_norm(matrix) >= skeleton.bound


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_the_error_obeys_the_bound_of_a_strong_rank_revealing_factorisation(matrix, rank):
    scale = np.abs(matrix).max()
    values = np.append(np.linalg.svd(matrix / scale, compute_uv=False) * scale, 0)
    skeleton = interpolative_decomposition(matrix, rank=rank)
    rank = skeleton.rank
    worst = np.sqrt(1 + rank * (matrix.shape[1] - rank)) * values[rank]
    assert values[rank] - rounding(matrix) <= skeleton.bound <= worst + rounding(matrix)


def test_skeletons_of_growing_rank_are_nested(matrix):
    largest = interpolative_decomposition(matrix, rank=12)
    for rank in range(12):
        np.testing.assert_array_equal(interpolative_decomposition(matrix, rank=rank).indices, largest.indices[:rank])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("delta", [1e-1, 1e-4, 1e-8])
def test_the_randomised_bound_holds(matrix, delta, seed):
    tall = np.vstack([matrix] * 4)
    skeleton = randomised_interpolative_decomposition(tall, np.random.default_rng(seed), delta=delta)
    assert_interpolates(skeleton, tall.shape[1])
    error = measured_error(tall, skeleton)
    assert error <= skeleton.bound + rounding(tall)
    # The sketch sees columns to within a factor, so that the error is near to what was asked of the sketch.
    assert error <= 20 * delta * spectral_norm(tall)
    assert skeleton.bound <= 10 * error + rounding(tall)


def test_a_randomised_rank_is_nearly_as_good_as_a_deterministic_one():
    matrix = decaying(400, 300, 0.8)
    best = interpolative_decomposition(matrix, rank=20).bound
    for seed in range(10):
        skeleton = randomised_interpolative_decomposition(matrix, np.random.default_rng(seed), rank=20)
        assert skeleton.rank == 20
        assert measured_error(matrix, skeleton) <= 5 * best


def test_the_sketch_grows_until_it_holds_the_rank():
    matrix = decaying(1000, 200, 0.97)
    skeleton = randomised_interpolative_decomposition(matrix, np.random.default_rng(0), delta=1e-2)
    needed = int(np.ceil(np.log(1e-2) / np.log(0.97)))
    assert needed > 4 * FIRST_SKETCH
    assert 0.9 * needed <= skeleton.rank <= 1.3 * needed
    assert measured_error(matrix, skeleton) <= 0.2


def test_same_seed_same_bits():
    first, second = (
        randomised_interpolative_decomposition(decaying(300, 80, 0.8), np.random.default_rng(7), delta=1e-4)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.indices, second.indices)
    np.testing.assert_array_equal(first.interpolation, second.interpolation)
    assert first.bound == second.bound


def randomised(matrix, **options):
    return randomised_interpolative_decomposition(matrix, np.random.default_rng(0), **options)


WAYS = pytest.mark.parametrize("decompose", [interpolative_decomposition, randomised])


@WAYS
@pytest.mark.parametrize("options", [{"delta": 1e-3}, {"rank": 3}, {"rank": 0}], ids=str)
def test_a_zero_matrix_has_rank_zero(decompose, options):
    skeleton = decompose(np.zeros((200, 5)), **options)
    assert skeleton.rank == 0
    assert skeleton.interpolation.shape == (0, 5)
    assert skeleton.bound == 0


@WAYS
def test_rank_zero_leaves_everything(decompose):
    matrix = decaying(200, 30, 0.5)
    skeleton = decompose(matrix, rank=0)
    assert skeleton.rank == 0
    assert 1 - 1e-12 <= skeleton.bound <= 10


@WAYS
@pytest.mark.parametrize("options", [{"delta": 1e-8}, {"rank": 1}, {"rank": 6}], ids=str)
def test_a_matrix_of_rank_one_needs_one_column(decompose, options):
    matrix = np.outer(np.linspace(1, 2, 300), [1.0, -4.0, 0.0, 2.0, 3.0, 1.0])
    skeleton = decompose(matrix, **options)
    # More columns than the matrix has rank would only interpolate rounding.
    assert skeleton.indices[0] == 1
    assert skeleton.bound <= 1e-12
    np.testing.assert_allclose(matrix[:, skeleton.indices] @ skeleton.interpolation, matrix, atol=1e-12)
    if options != {"rank": 6}:
        np.testing.assert_allclose(skeleton.interpolation, [[-0.25, 1, 0, -0.5, -0.75, -0.25]], atol=1e-14)


@WAYS
def test_full_rank_is_a_permutation_without_error(decompose):
    matrix = np.random.default_rng(3).normal(size=(200, 12))
    skeleton = decompose(matrix, rank=12)
    np.testing.assert_array_equal(np.sort(skeleton.indices), np.arange(12))
    np.testing.assert_array_equal(skeleton.interpolation[:, skeleton.indices], np.eye(12))
    assert skeleton.bound <= 1e-12


@WAYS
def test_one_column(decompose):
    skeleton = decompose(np.arange(100.0)[:, None], delta=0.1)
    np.testing.assert_array_equal(skeleton.indices, [0])
    np.testing.assert_array_equal(skeleton.interpolation, [[1]])
    assert skeleton.bound <= 1e-12


def test_one_row():
    skeleton = interpolative_decomposition([[1.0, -2.0, 0.5]], rank=3)
    np.testing.assert_array_equal(skeleton.indices, [1])
    np.testing.assert_allclose(skeleton.interpolation, [[-0.5, 1, -0.25]])


@WAYS
def test_single_precision_stays_single(decompose):
    matrix = decaying(300, 60, 0.7).astype(np.float32)
    skeleton = decompose(matrix, delta=1e-3)
    assert skeleton.interpolation.dtype == np.float32
    assert measured_error(matrix.astype(float), skeleton) <= skeleton.bound + 1e-5
    # A tolerance below what float32 can see ends at its rounding, with finite weights.
    finest = decompose(matrix, delta=1e-12)
    assert_interpolates(finest, 60)
    assert measured_error(matrix.astype(float), finest) <= 1e-5


def test_a_skeleton_cannot_be_changed():
    skeleton = interpolative_decomposition(heat(), rank=4)
    with pytest.raises(AttributeError):
        skeleton.bound = 0.0
    for array in (skeleton.indices, skeleton.interpolation):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_input_is_left_alone():
    matrix = heat()
    before = matrix.copy()
    interpolative_decomposition(matrix, delta=1e-3)
    np.testing.assert_array_equal(matrix, before)


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    rank=st.integers(0, 25),
    exponent=st.integers(-100, 100),
    seed=st.integers(0, 2**31),
)
def test_any_matrix_is_interpolated_to_the_reported_error(shape, rank, exponent, seed):
    rng = np.random.default_rng(seed)
    inner = rng.integers(1, 26)
    matrix = 2.0**exponent * rng.integers(-3, 4, size=(shape[0], inner)) @ rng.integers(-3, 4, size=(inner, shape[1]))
    skeleton = interpolative_decomposition(matrix, rank=min(rank, shape[1]))
    assert skeleton.rank <= min(*shape, inner, rank)
    assert_interpolates(skeleton, shape[1])
    tolerance = 1e-12 * max(spectral_norm(matrix), 1e-300)
    assert np.linalg.norm(matrix - matrix[:, skeleton.indices] @ skeleton.interpolation, 2) == pytest.approx(
        skeleton.bound, abs=tolerance
    )


def test_the_cut_is_absolute():
    matrix = np.diag([8.0, 4.0, 2.0, 1.0])
    assert [cut_skeleton(matrix, t).rank for t in (9, 8, 7.9, 2, 0.5)] == [0, 0, 1, 2, 4]
    assert cut_skeleton(matrix, 0.5, rank=3).bound == pytest.approx(1)


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
def test_there_is_nothing_to_cut_in_an_empty_matrix(shape):
    skeleton = cut_skeleton(np.zeros(shape), 0.0)
    assert skeleton.rank == skeleton.bound == 0
    assert skeleton.interpolation.shape == (0, shape[1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (200, 3), (40, 40)])
def test_the_norm_is_the_largest_singular_value(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    assert spectral_norm(matrix) == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-13)
    assert spectral_norm(np.zeros((0, 4))) == 0


@pytest.mark.parametrize("decay", [0.1, 0.9, 1.0])
def test_a_sketch_bounds_the_norm_as_often_as_stated(decay):
    """At a failure of one in ten, 400 draws fail about 40 times if one direction dominates, and less often else."""
    matrix = np.diag(decay ** np.arange(30.0))
    rng = np.random.default_rng(0)
    bounds = [spectral_norm_from_sketch(rng.standard_normal((8, 30)) @ matrix, failure=0.1) for _ in range(400)]
    failures = np.mean(np.array(bounds) < 1)
    assert failures <= 0.14
    if decay == 0.1:
        assert failures >= 0.05


@WAYS
@pytest.mark.parametrize(
    "options",
    [{}, {"delta": 0}, {"delta": 1}, {"delta": -1e-3}, {"rank": -1}, {"rank": 6}, {"rank": 1.5}],
    ids=str,
)
def test_bad_options_are_refused(decompose, options):
    with pytest.raises(ValueError, match="Expected"):
        decompose(np.ones((4, 5)), **options)


@WAYS
@pytest.mark.parametrize("matrix", [np.ones(3), np.full((3, 3), np.nan), np.ones((0, 3)), [["a"]]], ids=str)
def test_bad_matrices_are_refused(decompose, matrix):
    with pytest.raises(ValueError, match="Expected"):
        decompose(matrix, rank=1)


def test_a_sketch_needs_rows_to_spare():
    with pytest.raises(ValueError, match="Expected oversampling"):
        randomised_interpolative_decomposition(np.ones((9, 2)), np.random.default_rng(0), rank=1, oversampling=0)
