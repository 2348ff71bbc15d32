"""Near-cuts: parts of a graph that hang on the rest by so little that heat hardly ever passes.

The conductance of a part is the affinity that leaves it over all that its points have. Of heat that is spread over a
part as after infinite time, this share leaves in a step, and in t steps at most t times as much. So a part whose
conductance is far below 1 / t is, for all diffusions up to t, as good as cut off.

Parts are looked for in the tree of single linkage: edges are added from the heaviest to the lightest, and every set
that holds together until a lighter class of edges comes is a candidate. The affinity that leaves each follows from
sums up the tree, so that all candidates together cost about as much as sorting the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.readonly import frozen_view
from heatmover._base.types import Bool, Float64, Int32, Int64

__all__ = ["FEWEST", "NOTICEABLE", "PASSES", "NearCut", "NearCuts", "by_sweep", "find_near_cuts"]


# A part hangs by a thread if all that joins it weighs less than THIN against one of its points, and less than PASSES of
# its heat leaves in the longest diffusion compared: measures on different sides are then within a twentieth of the
# largest distance, wherever they lie on their side. Without THIN, heat that is compared after a few steps only, and has
# got nowhere, would seem to be held up by a cut. Below THREAD the time does not matter: such a part can push the chosen
# scales up to the time in which it mixes, and then nothing else is seen.
# With these limits no part of 1 % of the points or more was found on eight shapes of 3,000 points, a simulated cohort
# and five real ones (2,000 to 30,000 cells), all with the default graph; on the swiss roll with 15 neighbours there
# were two (10 % each, on 1e-5 and 2e-4 of a point).
THREAD, THIN, PASSES = 1e-4, 0.01, 0.05
# The longest diffusion if none is given; shapes and cohorts had 2^2 to 2^14.
STEPS = 2**13
# Share of the points, or of the masses, below which a part is not worth a word.
NOTICEABLE = 0.01
# Fewer points are outliers, not a part of the data; in graphs of 30 points a pair has 7 % of them.
FEWEST = 5


@final
@dataclass(frozen=True)
class NearCut:
    """A part of a graph that is nearly cut off.

    Attributes
    ----------
    n_points
        Its points.
    conductance
        Share of its heat, spread as after infinite time, that leaves it in a step.
    affinity
        Sum of the affinities that join it to the rest.
    """

    n_points: int
    conductance: float
    affinity: float


@final
@dataclass(frozen=True, eq=False)
class NearCuts:
    """A graph in parts that are nearly cut from each other.

    Attributes
    ----------
    part
        Part of each point, ``(n_points,)``, from 0 on.
    is_main
        Whether a part is the largest of its component, ``(n_parts,)``.
    """

    part: Int64
    is_main: Bool

    def shares(self, masses: Float64) -> Float64:
        """Return the share that each part has of masses ``(n_points,)``, ``(n_parts,)``; 0 for the main ones."""
        return np.where(self.is_main, 0.0, np.bincount(self.part, masses) / masses.sum())

    def describe(
        self, affinity: sp.csr_array, symmetric: sp.csr_array, degree: Float64
    ) -> Iterator[tuple[int, NearCut]]:
        """Yield every part but the main ones, and what it is like.

        Parameters
        ----------
        affinity
            Of the graph, CSR ``(n_points, n_points)``.
        symmetric, degree
            As in `find_near_cuts`.
        """
        degree = _in_range(degree)
        sizes, volume = np.bincount(self.part), np.bincount(self.part, weights=degree)
        leaving = _leaving(symmetric, self.part, np.sqrt(degree))
        joining = _leaving(affinity, self.part, np.ones_like(degree))
        for part in np.flatnonzero(~self.is_main):
            conductance = float(leaving[part] / volume[part])
            yield int(part), NearCut(int(sizes[part]), conductance, float(joining[part]))


def find_near_cuts(
    symmetric: sp.csr_array, degree: Float64, steps: int | None = None, masses: Float64 | None = None
) -> NearCuts | None:
    """Return the parts of a graph that hang on the rest of their component by a thread.

    Parameters
    ----------
    symmetric
        S of `normalise`, CSR ``(n_points, n_points)``.
    degree
        Its degree, ``(n_points,)``, positive.
    steps
        The longest diffusion compared; None for 2^13.
    masses
        Of the points, ``(n_points,)``. If given, nothing may be found where no part has a `NOTICEABLE` share of them,
        in half of the time.

    Returns
    -------
    NearCuts or None
        None if there are none.
    """
    degree, edges = _in_range(degree), _sorted_edges(symmetric)
    if masses is not None and not _noticeable_sets_merge(edges, masses):
        return None
    tree = _linkage(symmetric, degree, edges)
    component = _lowest_marked(tree.up, np.zeros(tree.up.size, dtype=bool))
    other_volume = tree.volume[component] - tree.volume
    is_smaller = tree.volume <= other_volume
    size = np.where(is_smaller, tree.size, tree.size[component] - tree.size)
    limit = np.where(is_smaller, tree.volume, other_volume) * _limit(size, steps)
    marked = (tree.up >= 0) & (tree.volume - tree.inside <= limit)
    # Within a class of edges their order is arbitrary: only what is whole before the next class is a set of its own.
    marked &= tree.level > tree.level[tree.up]
    if not marked.any():
        return None
    return _parts(_lowest_marked(tree.up, marked)[: degree.size], component[: degree.size], degree)


def by_sweep(symmetric: sp.csr_array, degree: Float64, mode: Float64, steps: int | None = None) -> NearCuts | None:
    """Return the two sides of the best cut between small and large values of a slow mode, or None if it is not near.

    Finds threads of edges that are not lighter than some within the parts, which no order by weight shows.

    Parameters
    ----------
    symmetric, degree, steps
        As in `find_near_cuts`, of a connected graph.
    mode
        A function on the points that changes slowly along edges, ``(n_points,)``.
    """
    degree, order = _in_range(degree), np.argsort(mode, kind="stable")
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size)
    edges = sp.coo_array(sp.triu(symmetric, 1))
    rows, columns = edges.coords
    weights = edges.data * np.sqrt(degree)[rows] * np.sqrt(degree)[columns]
    first, last = np.minimum(place[rows], place[columns]), np.maximum(place[rows], place[columns])
    cut = np.cumsum(np.bincount(first, weights, order.size) - np.bincount(last, weights, order.size))[:-1]
    volume, size = np.cumsum(degree[order])[:-1], np.arange(1, order.size)
    other = degree.sum() - volume
    limit = _limit(np.where(volume <= other, size, order.size - size), steps)
    conductance = cut / np.minimum(volume, other)
    best = int(np.argmin(conductance / limit))
    if conductance[best] > limit[best]:
        return None
    return _parts((place > best).astype(np.int64), np.zeros(order.size, dtype=np.int64), degree)


@dataclass(frozen=True, eq=False)
class _Linkage:
    """The tree, points first: for each node that above it, its class, its volume, the weight inside, its points."""

    up: Int64
    level: Int64
    volume: Float64
    inside: Float64
    size: Float64


class _Edges(NamedTuple):
    """Entries of S above the diagonal, from the largest class to the smallest: rows, places; columns and bits of S."""

    rows: Int32
    places: Int64
    columns: npt.NDArray[Any]
    data: Float64
    bits: npt.NDArray[np.uint64]


def _sorted_edges(symmetric: sp.csr_array) -> _Edges:
    from heatmover._base.compiled.traversals import sort_edges

    # S is an edge as the walk sees it, relative to what its ends have.
    data = np.ascontiguousarray(symmetric.data, dtype=np.float64)
    bits = data.view(np.uint64)
    starts, columns = frozen_view(symmetric.indptr), frozen_view(symmetric.indices)
    rows, places = sort_edges(starts, columns, bits)
    return _Edges(rows, places, columns, data, bits)


def _noticeable_sets_merge(edges: _Edges, masses: Float64) -> bool:
    """Return whether an edge ever joins two sets that both have a `NOTICEABLE` share of the masses."""
    from heatmover._base.compiled.traversals import large_sets_merge

    least, parent = NOTICEABLE * float(masses.sum()), np.arange(masses.size, dtype=np.int64)
    return bool(large_sets_merge(edges.rows, edges.places, edges.columns, masses.copy(), least, parent))


def _lowest_marked(up: Int64, marked: Bool) -> Int64:
    """Return the lowest marked node at or above each node, or the highest one if none is."""
    from heatmover._base.compiled.traversals import lowest_marked

    top = np.arange(up.size, dtype=np.int64)
    lowest_marked(up, marked, top)
    return top


def _linkage(symmetric: sp.csr_array, degree: Float64, edges: _Edges) -> _Linkage:
    from heatmover._base.compiled.traversals import merge_edges, sum_upwards

    n_points = degree.size
    up = np.full(2 * n_points - 1, -1, dtype=np.int64)
    level = np.full(up.size, np.iinfo(np.int64).max)
    inside = np.zeros(up.size)
    inside[:n_points] = symmetric.diagonal() * degree
    own = np.arange(n_points, dtype=np.int64)
    sets = np.stack([own, np.ones_like(own), own, np.full_like(own, up.size)])
    count = merge_edges(*edges, np.sqrt(degree), up, level, inside, sets)
    values = np.zeros((count, 3))
    values[:n_points, 0], values[:, 1], values[:n_points, 2] = degree, inside[:count], 1
    sum_upwards(up[:count], values)
    return _Linkage(up[:count], level[:count], *np.ascontiguousarray(values.T))


def _in_range(degree: Float64) -> Float64:
    """Return degrees up to 1; their unit, which may be as small as a float can be, does not matter."""
    return np.asarray(degree / degree.max())


def _limit(size: npt.NDArray[Any], steps: int | None) -> Float64:
    """Return the largest conductance of a part of so many points that hangs by a thread."""
    per_point = 1 / np.maximum(size, 1)
    return np.asarray(np.maximum(THREAD * per_point, np.minimum(THIN * per_point, PASSES / (steps or STEPS))))


def _parts(label: Int64, component: npt.NDArray[Any], degree: Float64) -> NearCuts:
    _, first, part = np.unique(label, return_index=True, return_inverse=True)
    volume, size, whole = np.bincount(part, weights=degree), np.bincount(part), component[first]
    # The largest of each component comes first.
    order = np.lexsort((first, -volume, -size, whole))
    is_main = np.zeros(first.size, dtype=bool)
    is_main[order[np.unique(whole[order], return_index=True)[1]]] = True
    return NearCuts(part.astype(np.int64), is_main)


def _leaving(matrix: sp.csr_array, part: Int64, factor: Float64) -> Float64:
    """Return the sum of entries, times a factor at both ends, between each part and all others."""
    rows = np.repeat(np.arange(part.size), np.diff(matrix.indptr))
    across = np.flatnonzero(part[rows] != part[matrix.indices])
    rows, columns = rows[across], matrix.indices[across]
    weights = matrix.data[across] * factor[rows] * factor[columns]
    return np.asarray(np.bincount(part[rows], weights, int(part.max()) + 1), dtype=np.float64)
