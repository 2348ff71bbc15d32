"""Interpolative decompositions, and norms from test vectors, against the error measured on the dense matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.diffusion.interpolative import cut_skeleton
from heatmover.diffusion.lowrank import spectral_norm, spectral_norm_from_sketch
from heatmover.diffusion.operator import DiffusionOperator
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
    # The factor breaks the ties of the pivots in favor of the given order.
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


@pytest.mark.parametrize("rank", [1, 5, 20])
def test_the_error_obeys_the_bound_of_a_strong_rank_revealing_factorization(matrix, rank):
    scale = np.abs(matrix).max()
    values = np.append(np.linalg.svd(matrix / scale, compute_uv=False) * scale, 0)
    skeleton = cut_skeleton(matrix, rank)
    assert_interpolates(skeleton, matrix.shape[1])
    rank, error = skeleton.rank, measured_error(matrix, skeleton)
    worst = np.sqrt(1 + rank * (matrix.shape[1] - rank)) * values[rank]
    assert values[rank] - rounding(matrix) <= error <= worst + rounding(matrix)


def test_skeletons_of_growing_rank_are_nested(matrix):
    largest = cut_skeleton(matrix, 12)
    for rank in range(12):
        np.testing.assert_array_equal(cut_skeleton(matrix, rank).indices, largest.indices[:rank])


def test_all_columns_that_count_leave_nothing(matrix):
    assert measured_error(matrix, cut_skeleton(matrix)) <= 100 * rounding(matrix)


@pytest.mark.parametrize("rank", [None, 1, 6])
def test_a_matrix_of_rank_one_needs_one_column(rank):
    matrix = np.outer(np.linspace(1, 2, 300), [1.0, -4.0, 0.0, 2.0, 3.0, 1.0])
    skeleton = cut_skeleton(matrix, rank)
    # More columns than the matrix has rank would only interpolate rounding.
    assert skeleton.indices[0] == 1
    np.testing.assert_allclose(matrix[:, skeleton.indices] @ skeleton.interpolation, matrix, atol=1e-12)


@pytest.mark.parametrize("rank", [None, 0, 3])
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (200, 5)])
def test_there_is_nothing_to_choose_in_zeros(shape, rank):
    skeleton = cut_skeleton(np.zeros(shape), rank)
    assert skeleton.rank == 0
    assert skeleton.interpolation.shape == (0, shape[1])


def test_one_row():
    skeleton = cut_skeleton(np.array([[1.0, -2.0, 0.5]]))
    np.testing.assert_array_equal(skeleton.indices, [1])
    np.testing.assert_allclose(skeleton.interpolation, [[-0.5, 1, -0.25]])


def test_the_input_is_left_alone_and_a_skeleton_cannot_be_changed():
    matrix = heat()
    before = matrix.copy()
    skeleton = cut_skeleton(matrix, 4)
    np.testing.assert_array_equal(matrix, before)
    for array in (skeleton.indices, skeleton.interpolation):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 25), st.integers(1, 25)),
    rank=st.integers(0, 25),
    exponent=st.integers(-100, 100),
    seed=st.integers(0, 2**31),
)
def test_any_matrix_is_interpolated_within_the_bound(shape, rank, exponent, seed):
    rng = np.random.default_rng(seed)
    inner = rng.integers(1, 26)
    matrix = 2.0**exponent * rng.integers(-3, 4, size=(shape[0], inner)) @ rng.integers(-3, 4, size=(inner, shape[1]))
    skeleton = cut_skeleton(matrix, rank)
    assert skeleton.rank <= min(*shape, inner, rank)
    assert_interpolates(skeleton, shape[1])
    exact = cut_skeleton(matrix)
    tolerance = 1e-9 * max(spectral_norm(matrix), 1e-300)
    assert np.linalg.norm(matrix - matrix[:, exact.indices] @ exact.interpolation, 2) <= tolerance


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
