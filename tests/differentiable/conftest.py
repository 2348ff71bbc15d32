"""A small cloud, its graph, and measures on it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from heatmover.graphs import Graph

with suppress(ImportError):  # without torch, every file here is skipped
    import torch

    # Threads of torch that wait for each other take longer than these small sums.
    torch.set_num_threads(1)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def points(rng):
    return rng.normal(size=(40, 3))


@pytest.fixture
def graph(points):
    return Graph.from_points(points, n_neighbors=7)


@pytest.fixture
def pairs(rng):
    """Three pairs of dense measures (3, 40) each, as leaves that want gradients."""
    rows = rng.random((2, 3, 40)) + 0.05
    rows /= rows.sum(axis=-1, keepdims=True)
    return tuple(torch.tensor(part, requires_grad=True) for part in rows)


@pytest.fixture
def graph_of_table(affinity, measures):
    """A graph of the table of hostile ones, and measures on it."""
    return Graph.from_affinity(affinity), measures
