"""Ranks from the density of states, against all eigenvalues."""

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.diffusion.operator import DiffusionOperator, threshold
from heatmover.diffusion.ranks import density_of_states
from heatmover.graphs import Graph

DELTA = 1e-3


def roll():
    rng = np.random.default_rng(0)
    angle, height = 3 * np.pi * np.sqrt(rng.uniform(0.2, 1, 800)), rng.uniform(0, 10, 800)
    return Graph.from_points(np.c_[angle * np.cos(angle), height, angle * np.sin(angle)], n_neighbors=12)


GRAPHS = {
    "roll": roll,
    "grid": lambda: Graph.from_grid((25, 30)),
    "row": lambda: Graph.from_grid((600,)),
    "cloud": lambda: Graph.from_points(np.random.default_rng(1).normal(size=(500, 5)), n_neighbors=15),
    "pairs": lambda: Graph.from_affinity(sp.kron(sp.eye(300), np.array([[1.0, 0.5], [0.5, 1.0]]))),
    "lone points": lambda: Graph.from_affinity(sp.eye(500)),
}


def true_rank(values, eigenvalue):
    return int((np.abs(values) >= eigenvalue).sum())


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_within_the_stated_accuracy(name, seed):
    operator = DiffusionOperator.from_graph(GRAPHS[name]())
    values = np.linalg.eigvalsh(operator.symmetric.toarray())
    states = density_of_states(operator, np.random.default_rng(seed), coarsest=10, delta=DELTA)
    for scale in range(19):
        # What the smoothing may confuse: eigenvalues within a few widths of the threshold.
        angle, width = states.angle(threshold(scale, DELTA)), 2.5 * states.resolution
        above, below = (
            (1 + operator.lowest) / 2 + (1 - operator.lowest) / 2 * np.cos(np.clip(angle + sign * width, 0, np.pi))
            for sign in (-1, 1)
        )
        noise = 4 * states.standard_error(scale, DELTA) + 1
        rank = states.rank(scale, DELTA)
        fewest = max(true_rank(values, above + 1e-12), operator.n_components) if above < 1 else operator.n_components
        assert fewest - noise <= rank <= true_rank(values, max(below, 0)) + noise


@pytest.mark.parametrize("name", ["roll", "grid"])
def test_ranks_are_close_where_there_are_many_eigenvalues(name):
    operator = DiffusionOperator.from_graph(GRAPHS[name]())
    values = np.linalg.eigvalsh(operator.symmetric.toarray())
    states = density_of_states(operator, np.random.default_rng(0), coarsest=8, delta=DELTA)
    for scale in range(2, 7):
        expected = true_rank(values, threshold(scale, DELTA))
        room = 0.1 * expected + 2 * states.standard_error(scale, DELTA)
        assert abs(states.rank(scale, DELTA) - expected) <= room


def test_components_are_counted_exactly(graph):
    operator = DiffusionOperator.from_graph(graph)
    states = density_of_states(operator, np.random.default_rng(0), coarsest=6, delta=0.5)
    assert all(operator.n_components <= states.rank(scale, 0.5) <= graph.n_points for scale in range(31))
    if graph.n_points == operator.n_components:
        assert states.rank(0, 0.5) == graph.n_points


def test_the_rank_falls_with_the_scale_and_rises_as_delta_falls():
    operator = DiffusionOperator.from_graph(roll())
    states = density_of_states(operator, np.random.default_rng(0), coarsest=12, delta=1e-4)
    ranks = [[states.rank(scale, delta) for scale in range(13)] for delta in (0.5, 0.1, 1e-2, 1e-4)]
    # A positive kernel makes the smoothed count monotone, but for the noise of the moments (which is common to all).
    assert (np.diff(ranks, axis=1) <= 0).all()
    assert (np.diff(ranks, axis=0) >= 0).all()


@pytest.mark.usefixtures("eager_threads")
def test_the_seed_decides_and_the_threads_do_not():
    operator = DiffusionOperator.from_graph(roll())
    one, same, other = (
        density_of_states(operator, np.random.default_rng(seed), coarsest=8, delta=DELTA, n_threads=threads).moments
        for seed, threads in ((0, 1), (0, 3), (1, 1))
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
