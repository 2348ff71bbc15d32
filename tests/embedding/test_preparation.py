"""When an embedding is made compact, and how many regions each scale gets."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.ranks import density_of_states
from heatmover.embedding import preparation
from heatmover.embedding.preparation import (
    DEFAULT_DELTA,
    LARGEST_EMBEDDING,
    choose_compression,
    fewest_regions,
    regions_of_scales,
)
from heatmover.graphs import Graph

# 128 MiB of float32, and 16 times the limit.
SMALL, LARGE = (1024, 8, 4096), (1024 * 256, 8, 4096)


def states_of(operator, coarsest=8):
    return density_of_states(operator, np.random.default_rng(0), coarsest=coarsest, delta=1e-4)


def counts(operator, scales, delta, states=None):
    rng = np.random.default_rng(0)
    return [regions.count for regions in regions_of_scales(operator, states or states_of(operator), scales, delta, rng)]


# --- whether ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_what_was_asked_for_counts(shape):
    never = choose_compression(False, shape, 4)
    assert (never.delta, never.reason, never.by_itself) == (None, "as requested", False)
    wanted = choose_compression(1e-3, shape, 4)
    assert (wanted.delta, wanted.reason, wanted.by_itself) == (1e-3, "as requested", False)


def test_a_small_embedding_stays_full():
    choice = choose_compression(None, SMALL, 4)
    assert choice.delta is None
    assert not choice.by_itself
    assert choice.reason == "the full embedding of 1,024 measures takes 0.13 GB, within the limit of 2.1 GB"


def test_a_large_embedding_becomes_compact_by_itself():
    choice = choose_compression(None, LARGE, 4)
    assert choice.delta == DEFAULT_DELTA
    assert choice.by_itself
    assert choice.reason == "the full embedding of 262,144 measures would take 34 GB, above the limit of 2.1 GB"


def test_the_limit_itself_is_still_full():
    measures = LARGEST_EMBEDDING // 4 // 1024
    assert choose_compression(None, (measures, 1, 1024), 4).delta is None
    assert choose_compression(None, (measures + 1, 1, 1024), 4).delta == DEFAULT_DELTA
    # Twice as large in double precision.
    assert choose_compression(None, (measures, 1, 1024), 8).delta == DEFAULT_DELTA


def test_sizes_beyond_whole_numbers_of_64_bits_do_not_overflow():
    choice = choose_compression(None, (2**31, 30, 2**31), 8)
    assert choice.by_itself


@pytest.mark.parametrize("delta", [np.float32(0.25), 0.25])
def test_the_threshold_is_a_plain_float(delta):
    assert type(choose_compression(delta, SMALL, 4).delta) is float


# --- how many -----------------------------------------------------------------------------------------------------


def test_as_many_cells_as_the_rank_and_at_least_256():
    operator = DiffusionOperator.from_graph(Graph.from_grid((40, 40)))
    states = states_of(operator)
    ranks = [states.rank(scale, 1e-3) for scale in range(9)]
    assert ranks[1] > 256 > ranks[8]
    assert counts(operator, range(9), 1e-3, states) == [max(rank, fewest_regions(1e-3)) for rank in ranks]


def test_a_smaller_threshold_keeps_more_regions():
    operator = DiffusionOperator.from_graph(Graph.from_grid((40, 40)))
    states = states_of(operator)
    coarse, fine = (counts(operator, range(6), delta, states) for delta in (0.5, 1e-3))
    assert all(one <= other for one, other in zip(coarse, fine, strict=True))
    assert sum(coarse) < sum(fine)


@pytest.mark.parametrize("n_points", [1, 5, 200, 256])
def test_small_graphs_have_one_cell_per_point(n_points):
    operator = DiffusionOperator.from_graph(Graph.from_grid((n_points,)))
    assert counts(operator, range(4), 0.5) == [n_points] * 4


def test_a_rank_of_n_keeps_all_points():
    """Lone points never mix: every power has full rank."""
    operator = DiffusionOperator.from_graph(Graph.from_affinity(sp.eye(700)))
    assert counts(operator, range(3, 6), 0.9) == [700] * 3


def test_a_rank_of_one_keeps_256_regions():
    operator = DiffusionOperator.from_graph(Graph.from_affinity(np.ones((400, 400))))
    assert counts(operator, range(3, 6), 0.1) == [256] * 3


def test_every_component_has_a_cell():
    pairs = Graph.from_affinity(sp.kron(sp.eye(1500), np.ones((2, 2))))
    operator = DiffusionOperator.from_graph(pairs)
    assert counts(operator, range(4, 6), 0.1) == [1500] * 2


def test_the_fewest_cells_are_one_number(monkeypatch):
    monkeypatch.setattr(preparation, "FEWEST_REGIONS", 40)
    operator = DiffusionOperator.from_graph(Graph.from_affinity(np.ones((400, 400))))
    assert counts(operator, range(3, 5), 0.1) == [40] * 2


def test_cells_of_coarser_scales_are_around_centers_of_finer_ones():
    operator = DiffusionOperator.from_graph(Graph.from_grid((40, 40)))
    regions = regions_of_scales(operator, states_of(operator), range(1, 9), 1e-3, np.random.default_rng(0))
    for fine, coarse in pairwise(regions):
        np.testing.assert_array_equal(coarse.centers, fine.centers[: coarse.count])
