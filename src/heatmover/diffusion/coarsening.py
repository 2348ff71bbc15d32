"""Approximate eigenvectors from coarser and coarser graphs: where the search for a basis of the coarse scales begins.

Neighbours become one node. With A the map from the groups to their nodes, which gives every node its share of the top
eigenvector on the group and has orthonormal columns, A' S A is again a diffusion operator: symmetric, without negative
entries, with the same eigenvalue 1 for the top eigenvector and all others between those of S. Slow eigenvectors hardly
vary within a group, so that those of the coarse operator, times A, are nearly those of S; a few steps on each graph on
the way back correct them. A node from which mass hardly leaves is an eigenvector of its own and stays alone.

Nothing here is exact, or needs to be: what comes out is only where `spectral` begins, and that measures its error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from heatmover._typing import Float64, Int64
from heatmover.diffusion.base import Block
from heatmover.diffusion.operator import DiffusionOperator

__all__ = ["DENSE", "STIFFER", "Coarsened", "coarsen", "hierarchy", "may_coarsen"]

# Nodes of a group. Eight in a sheet or a cloud halve its length in two or three directions.
GROUP = 8
# See `aggregate`. Without it a far outlier joins its only neighbour, and the eigenvector that is the outlier is lost.
STRONG = 0.2
# A node stays alone if its mass leaves at less than so many times the rate of an eigenvector at the threshold.
RESERVE = 4.0
# Functions that are constant on groups vary more between them: rates are so much larger on the next coarser graph. On
# swiss rolls of 20,000 and 100,000 points 1.5 to 1.9.
STIFFER = 1.6
# Coarser graphs need some nodes for every eigenvector.
NODES_PER_VECTOR = 1.5
# A level that leaves more than this share of the nodes is not worth its price.
STALLED = 0.5
# Up to so many nodes all eigenvectors are computed: 0.1 s for 800 on one core, but 0.6 s for 1,250. Found from random
# vectors, 280 of them on 551 nodes were so much worse that the graph of 100,000 points needed a second pass.
DENSE = 800


class Coarsened(NamedTuple):
    """A coarser operator, and of each node of the finer one its group and its share in it, ``(n_points,)`` each."""

    operator: DiffusionOperator
    labels: Int64
    shares: Float64

    def prolong(self, vectors: Block) -> Block:
        """Return functions on groups ``(n_groups, width)`` as functions on the nodes of the finer graph; same type."""
        result = vectors[self.labels]
        result *= self.shares[:, None].astype(vectors.dtype)
        return result


def coarsen(operator: DiffusionOperator, theta: float) -> Coarsened:
    """Join neighbours, for eigenvectors to eigenvalues above ``theta``.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((40, 40)))
    >>> coarse = coarsen(operator, 0.99).operator
    >>> coarse.n_points < 400, bool(np.allclose(coarse.symmetric @ coarse.top, coarse.top))
    (True, True)
    """
    from heatmover._compiled.aggregates import aggregate

    matrix, labels = operator.symmetric, np.empty(operator.n_points, dtype=np.int64)
    slow = 1 - RESERVE * (1 - theta)
    count = aggregate(*operator.structure, matrix.data, GROUP, STRONG, slow, labels)
    degree: Float64 = np.bincount(labels, weights=operator.degree, minlength=count).astype(np.float64)
    shares = np.sqrt(operator.degree / degree[labels])
    rows = np.repeat(np.arange(operator.n_points), np.diff(matrix.indptr))
    data = matrix.data * shares[rows] * shares[matrix.indices]
    coarse = sp.csr_array(sp.coo_array((data, (labels[rows], labels[matrix.indices])), shape=(count, count)))
    component = np.empty(count, dtype=operator.component.dtype)
    component[labels] = operator.component
    order = np.arange(count)
    joined = DiffusionOperator(coarse, order, degree, component, operator.n_components, operator.lowest, order)
    return Coarsened(joined, labels, shares)


def may_coarsen(n_points: int, width: float) -> bool:
    """Return whether a graph of so many points is likely to have a `hierarchy` for ``width`` eigenvectors.

    Examples
    --------
    >>> may_coarsen(100_000, 200), may_coarsen(500, 20)
    (True, False)
    """
    return n_points > DENSE and n_points >= GROUP * NODES_PER_VECTOR * width


def hierarchy(operator: DiffusionOperator, width: int, theta: float) -> list[Coarsened]:
    """Return coarser and coarser graphs for ``width`` eigenvectors above ``theta``.

    Empty if none has a few nodes for each vector and half as many as the finer one at most.
    """
    levels: list[Coarsened] = []
    finest = operator
    while finest.n_points > DENSE:
        level = coarsen(finest, theta)
        count = level.operator.n_points
        if count < NODES_PER_VECTOR * width:
            break
        if count > STALLED * finest.n_points:
            return []
        levels.append(level)
        finest = level.operator
    return levels
