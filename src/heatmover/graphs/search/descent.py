"""Approximate nearest neighbours by descent: neighbours of neighbours are likely neighbours (Dong et al. 2011).

A short search by cells gives every point a first list of neighbours. Then each point looks at the lists of its
neighbours, and at the lists of the points that have it as a neighbour, until little changes. Cost grows linearly with
the number of points and with the dimension of the space, not exponentially with the dimension of the data.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64, Int32
from heatmover._validation import check_threads
from heatmover.graphs.search.cells import Cells, Found, Plan, Probe

__all__ = ["descend"]


# First lists hold so much of the true ones, the most that comes with MOST_AT_FIRST coordinates per point, which take
# some 90 microseconds (from the cost of fewer); a round takes 10 (8 dimensions) to 35 (30). Measured on 50,000 points
# with 30 neighbours, microseconds per point and recall after two rounds: clustered in 50 dimensions from 0.6 57 and
# 0.974, from 0.8 59 and 0.986, from 0.9 69 and 0.992; a Gaussian in 30 from 0.4 94 and 0.942, from 0.6 105 and 0.961,
# from 0.8 123 and 0.980.
FIRST_RECALLS = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
MOST_AT_FIRST = 800_000.0
# Points with their true neighbours that tell which: rounds mend what a plan misses.
FIRST_PROBES = 200
# So many points that have a point as a neighbour are looked at too: without them lists stay within their first cells.
REVERSE = 15
MOST_ROUNDS = 12
# Descent ends when a round changes less than this share of all entries; the next would change a tenth of that. A
# Gaussian in 30 dimensions (50,000 points): 36 % in the first round, then 4.2 and 0.5 %, recall 0.921, 0.961 and 0.967.
SETTLED = 0.005
# Pieces of work: a fixed number, so that lists do not depend on the number of threads.
PIECES = 64
# Coordinates are cut off at so many times their median size: squares of larger ones leave the range of a float32.
FARTHEST = 1e15


def descend(
    points: Float64,
    k: int,
    rng: np.random.Generator,
    *,
    n_threads: int | None = None,
    cells: Cells | None = None,
    probe: Probe | None = None,
) -> Found:
    """Find about the k nearest neighbours of every point, itself excluded.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``, finite, more than ``k``.
    k
        Number of neighbours.
    rng
        Chooses the points that the cells begin with.
    n_threads
        Threads; None for all cores. Lists do not depend on them.
    cells, probe
        Of the points, if they are known already.

    Returns
    -------
    Found
        Nearest first.
    """
    n_threads = check_threads(n_threads)
    cells = cells or Cells.from_points(points, k, rng, strict=False, n_threads=n_threads)
    plan = _first_plan(probe or cells.probe(k, n_threads, FIRST_PROBES), points.shape[1])
    found = cells.k_nearest(k, plan, n_threads)
    _improve(cells, found, n_threads)
    return found


def _first_plan(probe: Probe, n_dimensions: int) -> Plan:
    plans = [probe.plan(recall) for recall in FIRST_RECALLS]
    return next((plan for plan in plans if plan.n_candidates * n_dimensions <= MOST_AT_FIRST), plans[-1])


def _improve(cells: Cells, found: Found, n_threads: int) -> None:
    """Let lists descend, in place, until little changes; lists that are not full stay as they are."""
    from heatmover._compiled.descent import improve, refine, with_reverse

    points, order = _single_precision(cells.points), cells.order
    n_points, k = found.indices.shape
    place = np.empty(n_points + 1, dtype=np.int32)
    place[order], place[-1] = np.arange(n_points, dtype=np.int32), -1
    lists = place[found.indices[order]]
    squares = np.empty((n_points, k), dtype=np.float32)
    nearby = np.empty((n_points, k + REVERSE), dtype=np.int32)
    edges = np.linspace(0, n_points, PIECES + 1).astype(int)
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(lambda piece: refine(points, *piece, lists, squares), pairwise(edges)))
        for _ in range(MOST_ROUNDS):
            with_reverse(lists, nearby)
            changes = pool.map(lambda piece: improve(points, nearby, *piece, squares, lists), pairwise(edges))
            if sum(changes) < SETTLED * lists.size:
                break
        list(pool.map(lambda piece: _in_full(cells, lists, piece, found), pairwise(edges)))


def _single_precision(points: Float64) -> npt.NDArray[np.float32]:
    """Centre and scale, so that neither the offset nor the unit of the data, nor a far point, costs digits."""
    centred = points - np.median(points, axis=0)
    unit = float(np.median(np.abs(centred).max(axis=1))) or float(np.abs(centred).max()) or 1.0
    centred /= unit
    return np.asarray(np.clip(centred, -FARTHEST, FARTHEST, out=centred), dtype=np.float32)


def _in_full(cells: Cells, lists: Int32, piece: tuple[int, int], found: Found) -> None:
    """Write the lists of some points with their distances in float64; ties go to the smaller index."""
    from heatmover._compiled.cells import write_lists

    to = cells.order[slice(*piece)]
    distances, indices = np.empty((to.size, lists.shape[1])), np.empty((to.size, lists.shape[1]), np.int32)
    write_lists(cells.points, cells.order, lists, *piece, distances, indices)
    found.distances[to], found.indices[to] = distances, indices
