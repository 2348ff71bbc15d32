"""The table of features against the embedding it stands for."""

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import block_diag

from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.lowrank import LowRankDiffuser, spectral_factors
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator
from heatmover.embedding.definition import NORMS, FeatureTable, Layout, combination, embed, nested_regions
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph

SCALES = range(1, 6)
# Blocks that begin and end inside of a group of 64 features, and one of exactly 64.
COUNTS = [150, 100, 64, 30, 1]


def exact(operator, adjoint):
    return ExactDiffuser(operator, adjoint=adjoint)


def chebyshev(operator, adjoint):
    return ChebyshevDiffuser(operator, adjoint=adjoint, tol=1e-9)


def spectral(operator, adjoint):
    factors = spectral_factors(operator, 3, 60, tol=1e-9, rng=np.random.default_rng(0), last=SCALES[-1])
    return LowRankDiffuser(chebyshev(operator, adjoint), factors)


def single(operator, adjoint):
    return ChebyshevDiffuser(operator, adjoint=adjoint, tol=1e-3, dtype=np.float32)


@pytest.fixture(scope="module")
def operator():
    points = np.random.default_rng(0).normal(size=(150, 2))
    return DiffusionOperator.from_graph(Graph.from_points(points, n_neighbors=8))


@pytest.fixture(scope="module")
def rows():
    """Sparse measures: a point, two, three, ... of them, and one on all points."""
    rng = np.random.default_rng(1)
    dense = np.zeros((40, 150))
    for i, row in enumerate(dense):
        row[rng.choice(150, i + 1, replace=False)] = rng.random(i + 1) + 0.1
    dense[-1] = 1
    return dense / dense.sum(axis=1, keepdims=True)


def layout_of(operator, norm="levels", counts=COUNTS, scales=SCALES):
    regions = tuple(nested_regions(operator, counts, np.random.default_rng(2)))
    return Layout(scales, combination(scales, alpha=0.5, norm=norm), operator.n_points, regions)


def table_of(diffuser, layout, dtype=np.float64, n_threads=1):
    return FeatureTable(diffuser, layout, dtype=dtype, n_threads=n_threads)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("adjoint", [True, False], ids=["adjoint", "function"])
@pytest.mark.parametrize("make", [exact, chebyshev, spectral])
def test_rows_are_those_of_the_embedding(operator, rows, norm, adjoint, make):
    layout = layout_of(operator, norm)
    expected = embed(make(operator, adjoint), rows, layout, dtype=np.float64, n_threads=1)
    table = table_of(make(operator, not adjoint), layout)
    assert table.n_features == sum(COUNTS)
    for form in (np.asarray, sp.csr_array):
        found = table.rows(form(rows), n_threads=1)
        # Both are certified to 1e-9.
        np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("adjoint", [True, False], ids=["adjoint", "function"])
def test_single_precision(operator, rows, adjoint):
    layout = layout_of(operator)
    expected = embed(exact(operator, adjoint), rows, layout, dtype=np.float64, n_threads=1)
    table = table_of(single(operator, not adjoint), layout, np.float32)
    found = table.rows(rows, n_threads=1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_features_are_masses_of_cells_written_out(operator, rows):
    """For levels: the weighted mass that each region holds."""
    layout = layout_of(operator)
    found = table_of(exact(operator, False), layout).rows(rows, n_threads=1)
    blocks = np.split(found, layout.edges[1:-1], axis=1)
    densities = exact(operator, True).diffuse(rows.T, SCALES)
    for scale, regions, block, density in zip(SCALES, layout.regions, blocks, densities, strict=True):
        for region in range(regions.count):
            expected = 2.0 ** (-(SCALES[-1] - scale) / 2) * density[regions.labels == region].sum(axis=0)
            np.testing.assert_allclose(block[:, region], expected, atol=1e-12)


def test_a_single_scale_and_a_single_cell(operator, rows):
    layout = layout_of(operator, counts=[1], scales=range(3, 4))
    found = table_of(exact(operator, False), layout).rows(rows, n_threads=1)
    np.testing.assert_allclose(found, np.ones((len(rows), 1)), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_of_a_row_do_not_depend_on_the_others_or_on_threads(operator, rows, dtype):
    table = table_of(chebyshev(operator, False), layout_of(operator), dtype)
    # More than one round of 1,024 measures.
    many = np.tile(rows, (60, 1))
    together = table.rows(many, n_threads=1)
    np.testing.assert_array_equal(together, np.tile(together[: len(rows)], (60, 1)))
    for n_threads in (2, 5):
        np.testing.assert_array_equal(table.rows(many, n_threads=n_threads), together)
    for i in range(len(rows)):
        np.testing.assert_array_equal(table.rows(rows[i : i + 1], n_threads=1)[0], together[i])
        np.testing.assert_array_equal(table.rows(sp.csr_array(rows[i : i + 1]), n_threads=2)[0], together[i])


@pytest.mark.usefixtures("eager_threads")
def test_the_table_does_not_depend_on_the_threads_that_made_it(operator, rows):
    one, other = (table_of(chebyshev(operator, False), layout_of(operator, "increments"), n_threads=n) for n in (1, 4))
    np.testing.assert_array_equal(one.rows(rows, n_threads=1), other.rows(rows, n_threads=1))


@pytest.fixture(scope="module")
def line():
    """A line so long that a few steps reach little of it."""
    return DiffusionOperator.from_graph(Graph.from_grid((400,)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("adjoint", [True, False], ids=["adjoint", "function"])
def test_features_that_few_points_reach_are_kept_by_what_differs(line, adjoint, dtype):
    layout = layout_of(line, counts=[300, 200, 5], scales=range(3))
    diffusers = [ChebyshevDiffuser(line, adjoint=which, tol=1e-3, dtype=dtype) for which in (adjoint, not adjoint)]
    table = table_of(diffusers[1], layout, dtype)
    whole = 400 * 505 * np.dtype(dtype).itemsize
    # Functions that diffuse are constant far away; masses are not, but for a graph with equal degrees.
    assert table.nbytes < whole / 5 if adjoint else table.nbytes <= 1.1 * whole
    rng = np.random.default_rng(3)
    rows = sp.random_array((30, 400), density=0.1, rng=rng, format="csr")
    expected = embed(diffusers[0], rows, layout, dtype=np.float64, n_threads=1)
    found = table.rows(rows, n_threads=1)
    # Equal but for rounding: nothing was cut off.
    np.testing.assert_allclose(found, expected, atol=40 * np.finfo(dtype).eps * rows.sum(axis=1).max())
    features = rng.normal(size=(4, 505)).astype(dtype)
    np.testing.assert_allclose(
        table.transposed(features) @ rows.T, features @ found.T, rtol=0, atol=1e4 * np.finfo(dtype).eps
    )


def test_points_apart_from_all_others_have_values_of_their_own():
    """On two components the background of a feature is that of the larger one."""
    blocks = [np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1) for n in (60, 20)]
    operator = DiffusionOperator.from_graph(Graph.from_affinity(block_diag(*blocks), lazy=False))
    layout = layout_of(operator, counts=[70, 40], scales=range(2))
    rows = np.random.default_rng(0).dirichlet(np.ones(80), size=5)
    expected = embed(exact(operator, True), rows, layout, dtype=np.float64, n_threads=1)
    found = table_of(chebyshev(operator, False), layout).rows(rows, n_threads=1)
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_no_measures_give_no_rows(operator):
    table = table_of(chebyshev(operator, False), layout_of(operator))
    assert table.rows(sp.csr_array((0, 150)), n_threads=2).shape == (0, sum(COUNTS))


def test_a_measure_without_mass_is_zero(operator):
    table = table_of(chebyshev(operator, False), layout_of(operator))
    assert not table.rows(np.zeros((2, 150)), n_threads=1).any()


def test_measures_within_a_limit_of_memory(operator):
    table = table_of(chebyshev(operator, False), layout_of(operator))
    row = 8 * 2 * sum(COUNTS)  # a block and the one before it
    assert table.measures_within(row) == 1
    assert table.measures_within(2 * row - 1) == 1
    assert table.measures_within(1000 * row) == 1000
    with pytest.raises(InvalidInputError, match=f"memory of at least {row:,} bytes, which one measure needs, found"):
        table.measures_within(row - 1)


def test_progress_counts_every_measure(operator, rows):
    class Counter:
        steps = 0

        def stage(self, name, total):
            pass

        def advance(self, steps=1):
            self.steps += steps

    using = Counter()
    table = FeatureTable(chebyshev(operator, False), layout_of(operator), dtype=np.float64, n_threads=1)
    table.rows(rows, n_threads=1, progress=using)
    assert using.steps == len(rows)
