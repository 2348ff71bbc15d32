"""k-means on a sample of many points; it has the same bits for any number of threads."""

from __future__ import annotations

import numpy as np

from heatmover._typing import Float64, FloatArray, Int64
from heatmover._words import counted
from heatmover.errors import InvalidInputError, in_python
from heatmover.graphs.distinct import draw_by_mass
from heatmover.graphs.search.assign import CenterSearch
from heatmover.graphs.search.lloyd import move_centers

__all__ = ["ITERATIONS", "PER_LANDMARK", "k_means"]

# Points per landmark that k-means looks at. Flow cytometry, 2,000 landmarks, three seeds: with 10, 25, 50 and 75 the
# mean squared distance falls (13,500, 12,500, 11,800, 11,400), and Spearman hardly moves (.978, .978, .979, .979).
PER_LANDMARK = 50
# Moves of k-means from points drawn at random. Spearman with the distances on the graph over all points, 2,000
# landmarks, fixed scale, two seeds, after 0, 1, 3 and 10 moves: melanoma .994 .996 .996 .995, kidney .977 .983 .984
# .985, flow cytometry .986 .985 .985 .981, whose outliers attract more landmarks with every move. A start by
# k-means++ sends landmarks there at once and is worse everywhere: after 3 moves .993, .981 and .957.
ITERATIONS = 3


def k_means(
    nodes: FloatArray, counts: Int64, n_centers: int, n_iterations: int, rng: np.random.Generator, n_threads: int
) -> tuple[Float64, int]:
    """Return centres and how many points were looked at to find them.

    Parameters
    ----------
    nodes, counts
        ``(n_nodes, n_dimensions)`` and ``(n_nodes,)``: the different points, sorted, and how many there are of each;
        at least ``n_centers``, or an error says so.
    n_centers, n_iterations
        How many centres, and how often they move.
    rng, n_threads
        Draws the points; to use.

    Returns
    -------
    centers
        ``(n_centers, n_dimensions)``. There may be some to which no point is nearest.
    n_looked_at
        Points drawn.
    """
    if n_centers > len(nodes):
        raise InvalidInputError(
            f"a different point for each of {n_centers:,} landmarks",
            counted(int(counts.sum()), "point") + (f" of which {len(nodes)} differ" if counts.max() > 1 else ""),
            f"use at most {counted(len(nodes), 'landmark')}"
            + in_python(", or join all points without any: Graph.from_points(points)"),
        )
    # A race in which each runs as fast as there are copies of it: the first are drawn in proportion, without repeats.
    first = np.argsort(rng.exponential(size=len(nodes)) / counts, kind="stable")[:n_centers]
    centers = np.asarray(nodes[first], dtype=np.float64)
    looked_at = draw_by_mass(counts, PER_LANDMARK * n_centers, rng)
    chosen = np.flatnonzero(looked_at)
    sample, weights = nodes[chosen], looked_at[chosen].astype(np.float64)
    for _ in range(n_iterations):
        centers = _move(sample, weights, centers, n_threads)
    return centers, int(looked_at.sum())


def _move(sample: FloatArray, weights: Float64, centers: Float64, n_threads: int) -> Float64:
    """Return the mean of the points nearest to each centre; one without points goes to a point far from its own."""
    nearest, squares = CenterSearch(centers).nearest(sample, n_threads)
    moved = move_centers(sample, nearest, centers, weights)
    empty = np.flatnonzero(np.bincount(nearest, minlength=len(centers)) == 0)
    if empty.size:
        farthest = np.argsort(-squares, kind="stable")[: empty.size]
        farthest = farthest[squares[farthest] > 0]
        moved[empty[: farthest.size]] = sample[farthest]
    return moved
