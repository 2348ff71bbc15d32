"""The definition, written out pair by pair and compared with the embedding."""

from functools import cache

import numpy as np
import pytest

from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.embedding.definition import Layout, combination, embed


def one(x):
    return np.abs(x).sum()


def levels(f, alpha, scales):
    """f[k] is the difference of two densities at 2^k."""
    top = scales[-1]
    return sum(2.0 ** (-(top - k) * alpha) * one(f[k]) for k in scales)


def increments(f, alpha, scales):
    """The paper's Eq. 7 and 8."""
    top = scales[-1]
    return sum(2.0 ** (-(top - k - 1) * alpha) * one(f[k + 1] - f[k]) for k in scales[:-1]) + one(f[top])


def coarsest(f, alpha, scales):
    """The supplement's second dual norm: differences from the coarsest scale."""
    top = scales[-1]
    return sum(2.0 ** (-(top - k) * alpha) * one(f[k] - f[top]) for k in scales[:-1]) + one(f[top])


DEFINITIONS = {"levels": levels, "increments": increments, "coarsest": coarsest}


@cache
def exact_diffuser(graph, adjoint):
    """It finds its eigenpairs once for all norms, weights and scales."""
    return ExactDiffuser(DiffusionOperator.from_graph(graph), adjoint=adjoint)


@pytest.mark.parametrize("norm", DEFINITIONS)
@pytest.mark.parametrize("alpha", [0.25, 0.5])
@pytest.mark.parametrize("scales", [range(0, 6), range(3, 6), range(5, 6), range(0, 1)])
@pytest.mark.parametrize("adjoint", [True, False])
def test_the_l1_distance_between_rows_is_the_definition(graph, measures, norm, alpha, scales, adjoint):
    diffuser = exact_diffuser(graph, adjoint)
    matrix = combination(scales, alpha=alpha, norm=norm)
    embedding = embed(diffuser, measures, Layout(scales, matrix, graph.n_points), dtype=np.float64, n_threads=1)
    assert embedding.shape == (len(measures), len(scales) * graph.n_points)
    densities = dict(zip(scales, diffuser.diffuse(measures.T, scales), strict=True))
    for i, j in [(0, 1), (2, 5), (3, 3)]:
        difference = {k: d[:, i] - d[:, j] for k, d in densities.items()}
        expected = DEFINITIONS[norm](difference, alpha, scales)
        assert one(embedding[i] - embedding[j]) == pytest.approx(expected, abs=1e-10)


def test_equal_indicators_far_apart_reach_the_largest_distance():
    """Two measures that never meet are at distance 2 at every level."""
    from heatmover.graphs import Graph

    diffuser = ExactDiffuser(DiffusionOperator.from_graph(Graph.from_affinity(np.eye(2))), adjoint=True)
    matrix = combination(range(4), alpha=0.5, norm="levels")
    a, b = embed(diffuser, np.eye(2), Layout(range(4), matrix, 2), dtype=np.float64, n_threads=1)
    assert one(a - b) == pytest.approx(2 * sum(2.0 ** (-k / 2) for k in range(4)))


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_do_not_change_a_bit(graph, measures, n_threads):
    from heatmover.diffusion.operator import ChebyshevDiffuser

    diffuser = ChebyshevDiffuser(DiffusionOperator.from_graph(graph), adjoint=True, tol=1e-3, dtype=np.float32)
    rows = np.tile(measures, (6, 1))
    matrix = combination(range(7), alpha=0.5, norm="levels")
    alone = embed(diffuser, rows, Layout(range(7), matrix, graph.n_points), dtype=np.float32, n_threads=1)
    many = embed(diffuser, rows, Layout(range(7), matrix, graph.n_points), dtype=np.float32, n_threads=n_threads)
    np.testing.assert_array_equal(alone, many)


def test_progress_counts_every_measure(graph, measures):
    class Counter:
        steps = 0

        def stage(self, name, total):
            pass

        def advance(self, steps=1):
            self.steps += steps

    counter = Counter()
    diffuser = ExactDiffuser(DiffusionOperator.from_graph(graph), adjoint=True)
    matrix = combination(range(2), alpha=0.5, norm="levels")
    layout = Layout(range(2), matrix, graph.n_points)
    embed(diffuser, measures, layout, dtype=np.float64, n_threads=1, progress=counter)
    assert counter.steps == len(measures)
