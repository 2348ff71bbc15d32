"""Find components, near-cuts, the spectral gap of a graph, give advice; for `Graph`, `DiffusionEMD`; arrays only.

A near-cut is a part of a graph that is nearly disconnected from the rest, so that heat hardly ever enters or leaves it.
The conductance of a part is the affinity between the part and the rest, divided by the total affinity of its points. If
heat is distributed over a part as in equilibrium, the conductance is the share of this heat that leaves in one step,
and at most t times this share leaves in t steps. So for all diffusions up to time t, a part whose conductance is far
below 1 / t is practically disconnected.

Candidates come from the single-linkage tree: edges are added class by class, from the heaviest to the lightest weights,
and after each class every connected set is a candidate. Sums along the tree give the outgoing affinity of every
candidate, so all candidates together cost about as much as sorting the edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.readonly import frozen_view
from heatmover._base.types import Bool, Float64, Int32, Int64
from heatmover._base.words import counted, part_of, verb
from heatmover.errors import Sentence, in_python
from heatmover.graphs.spectrum import SlowMode, normalize, slowest_mode

# A part is nearly disconnected if its total outgoing affinity is less than THIN times the mean affinity of its points,
# and if less than the share PASSES of its heat leaves in the longest diffusion. Then a measure inside and a measure
# outside the part always differ by at least 95% of the largest distance. Without THIN, a part would seem cut off merely
# because the longest diffusion has few steps. If the outgoing affinity is less than THREAD times the mean affinity of
# its points, the number of steps does not matter: such a part can raise the chosen scales to its own mixing time, which
# hides all other differences. With these limits and the default graph, no nearly disconnected part with 1% of the
# points or more was found on eight shapes of 3,000 points, one simulated cohort and five real cohorts (2,000 to 30,000
# cells). The swiss roll with 15 neighbors had two such parts (10% of the points each), whose outgoing affinities were
# 1e-5 and 2e-4 of the affinity of a point.
THREAD, THIN, PASSES = 1e-4, 0.01, 0.05
# Number of steps of the longest diffusion if the caller gives none. Shapes and cohorts needed between 2^2 and 2^14
# steps.
STEPS = 2**13
# Share of the points, or of the masses, below which a part is not reported.
NOTICEABLE = 0.01
# Smallest number of points of a part that is reported. Smaller parts are outliers, even if they hold a noticeable share
# of the points: in a graph of 30 points, a pair holds 7%.
FEWEST = 5


@final
@dataclass(frozen=True)
class NearCut:
    """A nearly disconnected part of a graph.

    Attributes
    ----------
    n_points
        Number of points in the part.
    conductance
        Share of the part's heat, in equilibrium, that leaves the part in one step.
    affinity
        Total affinity between the part and the rest.
    """

    n_points: int
    conductance: float
    affinity: float


@final
@dataclass(frozen=True, eq=False)
class NearCuts:
    """A division of a graph into nearly disconnected parts.

    Attributes
    ----------
    part
        Part of each point, numbered from 0, ``(n_points,)``.
    is_main
        Whether each part is the largest part of its component, ``(n_parts,)``.
    """

    part: Int64
    is_main: Bool

    def shares(self, masses: Float64) -> Float64:
        """Return each part's share of the masses ``(n_points,)``, as an array ``(n_parts,)``; 0 for main parts."""
        return np.where(self.is_main, 0.0, np.bincount(self.part, masses) / masses.sum())

    def describe(
        self, affinity: sp.csr_array, symmetric: sp.csr_array, degree: Float64
    ) -> Iterator[tuple[int, NearCut]]:
        """Yield the number and the description of every part that is not a main part.

        Parameters
        ----------
        affinity
            Affinity of the graph, CSR ``(n_points, n_points)``.
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
    """Return the parts of a graph that are nearly disconnected from the rest of their component.

    Parameters
    ----------
    symmetric
        Normalized operator S of `normalize`, CSR ``(n_points, n_points)``.
    degree
        Degrees d of `normalize`, ``(n_points,)``, positive.
    steps
        Number of steps of the longest diffusion that is used for a distance; None for 2^13.
    masses
        Masses of the points, ``(n_points,)``. If given, parts that hold less than a `NOTICEABLE` share of the masses
        may be omitted; if no larger part exists, the search takes half the time.

    Returns
    -------
    NearCuts or None
        None if no part is nearly disconnected.
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
    # The order of edges within a class is arbitrary, so only sets that exist after a whole class are candidates.
    marked &= tree.level > tree.level[tree.up]
    if not marked.any():
        return None
    return _parts(_lowest_marked(tree.up, marked)[: degree.size], component[: degree.size], degree)


def by_sweep(symmetric: sp.csr_array, degree: Float64, mode: Float64, steps: int | None = None) -> NearCuts | None:
    """Return the two sides of the best cut between small and large values of a slow mode, or None if it is no near-cut.

    A sweep finds cuts that single linkage cannot find: cuts through a few edges that are as heavy as the edges within
    the parts.

    Parameters
    ----------
    symmetric, degree, steps
        As in `find_near_cuts`, for a connected graph.
    mode
        Function on the points that changes slowly along edges, ``(n_points,)``.
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
    """The single-linkage tree: each node's parent, edge class, volume, inner weight and size; the points come first."""

    up: Int64
    level: Int64
    volume: Float64
    inside: Float64
    size: Float64


class _Edges(NamedTuple):
    """Rows and positions of the entries of S above the diagonal, heaviest class first; columns, values, classes."""

    rows: Int32
    places: Int64
    columns: npt.NDArray[Any]
    data: Float64
    classes: npt.NDArray[np.uint16]


def _sorted_edges(symmetric: sp.csr_array) -> _Edges:
    # Edges are weighted by S, because the random walk depends on affinities relative to the degrees of both ends.
    data = np.ascontiguousarray(symmetric.data, dtype=np.float64)
    rows = np.repeat(np.arange(symmetric.shape[0], dtype=np.int32), np.diff(symmetric.indptr))
    places = np.flatnonzero(symmetric.indices > rows)
    # The 16 leading bits of a float are its exponent and 4 bits of its fraction; NumPy sorts 16-bit integers by radix.
    classes = (data.view(np.uint64) >> np.uint64(48)).astype(np.uint16)
    places = places[np.argsort(~classes[places], kind="stable")]
    return _Edges(rows[places], places, frozen_view(symmetric.indices), data, classes)


def _noticeable_sets_merge(edges: _Edges, masses: Float64) -> bool:
    """Return whether any edge joins two sets that both have a `NOTICEABLE` share of the masses."""
    from heatmover._base.compiled.linkage import large_sets_merge

    least, parent = NOTICEABLE * float(masses.sum()), np.arange(masses.size, dtype=np.int64)
    return bool(large_sets_merge(edges.rows, edges.places, edges.columns, masses.copy(), least, parent))


def _lowest_marked(up: Int64, marked: Bool) -> Int64:
    """Return the lowest marked node at or above each node, or its root if none is marked."""
    from heatmover._base.compiled.linkage import lowest_marked

    top = np.arange(up.size, dtype=np.int64)
    lowest_marked(up, marked, top)
    return top


def _linkage(symmetric: sp.csr_array, degree: Float64, edges: _Edges) -> _Linkage:
    from heatmover._base.compiled.linkage import merge_edges, sum_upwards

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
    """Return degrees divided by the largest degree, because all degrees may be extremely small or large."""
    return np.asarray(degree / degree.max())


def _limit(size: npt.NDArray[Any], steps: int | None) -> Float64:
    """Return the largest conductance at which a part of ``size`` points counts as nearly disconnected."""
    per_point = 1 / np.maximum(size, 1)
    return np.asarray(np.maximum(THREAD * per_point, np.minimum(THIN * per_point, PASSES / (steps or STEPS))))


def _parts(label: Int64, component: npt.NDArray[Any], degree: Float64) -> NearCuts:
    _, first, part = np.unique(label, return_index=True, return_inverse=True)
    volume, size, whole = np.bincount(part, weights=degree), np.bincount(part), component[first]
    # The largest part of each component comes first.
    order = np.lexsort((first, -volume, -size, whole))
    is_main = np.zeros(first.size, dtype=bool)
    is_main[order[np.unique(whole[order], return_index=True)[1]]] = True
    return NearCuts(part.astype(np.int64), is_main)


def _leaving(matrix: sp.csr_array, part: Int64, factor: Float64) -> Float64:
    """Return each part's sum of entries to other parts, each entry multiplied by the factors of its row and column."""
    rows = np.repeat(np.arange(part.size), np.diff(matrix.indptr))
    across = np.flatnonzero(part[rows] != part[matrix.indices])
    rows, columns = rows[across], matrix.indices[across]
    weights = matrix.data[across] * factor[rows] * factor[columns]
    return np.asarray(np.bincount(part[rows], weights, int(part.max()) + 1), dtype=np.float64)


# A point whose affinities to neighbors sum to less than this share of its self-loop keeps its mass for more than 2^13
# steps, so it is practically isolated.
WEAK = 1e-4
# A spectral gap with at most this relative error is reported as a value, any other as an upper bound.
CONVERGED = 0.1
# Maximal number of parts whose indicators start the search for the slowest mode.
MOST_GUESSES = 8
# If the spectral gap is larger than this, heat mixes within two steps, and the graph shows no geometry. Pure noise in
# 2,000 dimensions had a gap of 0.59.
STRUCTURELESS = 0.5


@dataclass(frozen=True)
class Diagnosis:
    """Properties of a graph, its problems, and advice; ``print`` shows a summary.

    Attributes
    ----------
    n_points, n_edges
        Number of distinct points, and of edges between them.
    n_components
        Number of connected components; mass never moves from one to another.
    largest_component
        Share of the points in the largest component.
    n_isolated
        Number of points without any neighbor.
    n_weak
        Number of nearly disconnected points, whose affinities to neighbors are so small that mass hardly ever leaves.
    neighbors
        Smallest, median and largest number of neighbors of a point.
    degree
        Smallest, median and largest sum of affinities of a point.
    near_cuts
        Groups of at least two points that are nearly disconnected from the rest of their component, largest first, with
        their number of points, conductance (share of their heat that leaves per step) and total affinity to the rest.
        Advice mentions groups with at least five points and 1% of all points.
    spectral_gap
        Upper bound of 1 minus the second largest eigenvalue of the diffusion operator on the largest component. The
        inverse is a lower bound of the number of steps in which heat mixes.
    spectral_gap_error
        Bound on the distance between the computed eigenvalue and the nearest true eigenvalue. If this error is small
        compared with the gap, the gap is accurate and not only a bound.
    lowest_eigenvalue
        Approximate smallest eigenvalue of the diffusion operator on the largest component; at -1 heat alternates
        between two halves and never settles.
    advice
        Recommended actions, most important first; empty if there is no problem.
    n_copies
        Number of points that equal an earlier point and share its node.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> print(Graph.from_grid((8, 8)).diagnose())
    64 points, ... edges, one component.
    Neighbors per point: 8 to 24, median 17.
    Spectral gap about ...: heat mixes in about ... steps.
    No problems found.
    """

    n_points: int
    n_edges: int
    n_components: int
    largest_component: float
    n_isolated: int
    n_weak: int
    neighbors: tuple[int, float, int]
    degree: tuple[float, float, float]
    near_cuts: tuple[NearCut, ...]
    spectral_gap: float
    spectral_gap_error: float
    lowest_eigenvalue: float
    advice: tuple[str, ...]
    n_copies: int = 0

    @property
    def converged(self) -> bool:
        """Whether the spectral gap is accurate to 10%; otherwise it is an upper bound."""
        return self.spectral_gap_error <= CONVERGED * self.spectral_gap

    @property
    def mixing_steps(self) -> float | None:
        """Number of steps until heat mixes, at least 1; a lower bound unless `converged`; None if heat never mixes."""
        # Mixing depends on the eigenvalue with the largest absolute value, which may be at either end of the spectrum.
        gap = min(self.spectral_gap, 1 + self.lowest_eigenvalue)
        return max(1 / gap, 1.0) if gap > 1e-12 else None

    def __str__(self) -> str:
        low, median, high = self.neighbors
        parts = "one component" if self.n_components == 1 else counted(self.n_components, "component")
        copies = f" different points of {self.n_points + self.n_copies:,}"
        points = f"{self.n_points:,}{copies if self.n_copies else ' points'}"
        lines = [
            f"{points}, {counted(self.n_edges, 'edge')}, {parts}.",
            f"Neighbors per point: {low:,} to {high:,}, median {median:g}.",
        ]
        if self.mixing_steps is not None:
            where = "" if self.n_components == 1 else " in the largest component"
            many = self.mixing_steps >= 1e6
            steps = f"{self.mixing_steps:.1e} steps" if many else counted(round(self.mixing_steps), "step")
            if self.converged:
                lines.append(f"Spectral gap about {1 / self.mixing_steps:.2g}: heat mixes{where} in about {steps}.")
            else:
                lines.append(f"Spectral gap at most {1 / self.mixing_steps:.2g}: heat mixes{where} in {steps} or more.")
        return "\n".join(
            [*lines, *(f"- {line}" for line in self.advice)] if self.advice else [*lines, "No problems found."]
        )


def diagnose(affinity: sp.csr_array, *, recall: float = 1.0, steps: int | None = None) -> Diagnosis:
    """Diagnose a symmetric affinity, CSR ``(n_points, n_points)``; see `Diagnosis` and `Graph.diagnose`."""
    n_points = affinity.shape[0]
    loops = affinity.diagonal()
    neighbors = np.diff(affinity.indptr) - (loops != 0)
    degree = np.asarray(affinity.sum(axis=1)).ravel()
    n_components, component = connected_components(affinity, directed=False)
    sizes = np.bincount(component)
    isolated = neighbors == 0
    weak = ~isolated & (degree - loops < WEAK * loops)
    cuts, slow = _examine_parts(affinity, ~isolated, component, steps)
    figures = {
        "n_points": n_points,
        "n_components": int(n_components),
        "largest_component": float(sizes.max() / n_points),
        "n_isolated": int(isolated.sum()),
        "n_weak": int(weak.sum()),
    }
    return Diagnosis(
        n_edges=int(neighbors.sum() // 2),
        neighbors=(int(neighbors.min()), float(np.median(neighbors)), int(neighbors.max())),
        degree=(float(degree.min()), float(np.median(degree)), float(degree.max())),
        near_cuts=cuts,
        spectral_gap=slow.gap,
        spectral_gap_error=slow.error,
        lowest_eigenvalue=slow.lowest,
        advice=tuple(
            Sentence(line)
            for line in (
                *_advice(**figures, recall=recall),
                *_advice_on_cuts(cuts, n_points),
                *_spectral_advice(n_points, slow.gap, slow.lowest),
            )
        ),
        **figures,
    )


def _advice(
    n_points: int, n_components: int, largest_component: float, n_isolated: int, n_weak: int, recall: float
) -> list[str]:
    lines = []
    others = n_components - n_isolated
    if n_isolated:
        many = "their mass never moves. Remove them if they are outliers"
        lines.append(
            f"{counted(n_isolated, 'point')} {verb(n_isolated, 'has', 'have')} no neighbor: "
            f"{verb(n_isolated, 'its mass never moves. Remove it if it is an outlier', many)}, "
            f"or use more neighbors{in_python(' or a larger radius')}."
        )
    if others > 1:
        lines.append(
            f"{counted(others, 'component')} contain several points. The largest contains "
            f"{part_of(round(largest_component * n_points), n_points, 'point')}. "
            "The exact distance between measures in different components is infinite; heatmover returns the largest "
            "possible distance. Use more neighbors to join the components, or ignore this if the groups are real."
        )
    if n_weak:
        weak = "their mass hardly moves. Remove them if they are outliers"
        lines.append(
            f"{part_of(n_weak, n_points, 'point')} {verb(n_weak, 'is', 'are')} nearly disconnected: "
            f"{verb(n_weak, 'its mass hardly moves. Remove it if it is an outlier', weak)}"
            + in_python(", or make the graph with Graph.from_points(points, kernel='adaptive')")
            + "."
        )
    if recall < 0.9:
        lines.append(
            f"The approximate search found {recall:.0%} of the true neighbors. Reduce the points to a few dozen "
            "principal components first"
            + in_python(", or make the graph with Graph.from_points(points, neighbors='exact')")
            + "."
        )
    return lines


def _spectral_advice(n_points: int, gap: float, lowest: float) -> list[str]:
    lines = []
    if lowest < -1 + 1e-6:
        lines.append(
            "Heat alternates between two halves of the graph without end, because no point has a self-loop and "
            "every cycle is even. Make the graph with Graph.from_affinity(affinity, lazy=True)."
        )
    if gap > STRUCTURELESS and n_points > 30:
        lines.append(
            f"Heat mixes in about {counted(round(max(1 / gap, 1)), 'step')}, so the graph has hardly any structure. "
            "Use fewer neighbors, or reduce the points to a few dozen principal components first."
        )
    return lines


def _advice_on_cuts(cuts: tuple[NearCut, ...], n_points: int) -> list[str]:
    cuts = tuple(cut for cut in cuts if cut.n_points >= max(FEWEST, NOTICEABLE * n_points))
    if not cuts:
        return []
    many, largest = len(cuts), cuts[0]
    which = "It has" if many == 1 else "The largest has"
    return [
        f"{counted(many, 'group')} of points {verb(many, 'is', 'are')} nearly disconnected from the rest. {which} "
        f"{part_of(largest.n_points, n_points, 'point')}. A total affinity of {largest.affinity:.1e} joins it to the "
        f"rest, and a share of {largest.conductance:.1e} of its heat leaves in each step. Measures on different sides "
        "look about as far apart as measures in different components. Use more neighbors"
        + in_python(", kernel='adaptive' or a larger bandwidth")
        + ", or ignore this if the groups are real."
    ]


def _examine_parts(
    affinity: sp.csr_array, joined: Bool, component: Int32, steps: int | None
) -> tuple[tuple[NearCut, ...], SlowMode]:
    """Return the near-cuts among all points with neighbors, and the slowest mode of the largest component."""
    if not joined.any():
        return (), SlowMode(0.0, 0.0, 0.0, np.zeros(1))
    part = affinity if joined.all() else sp.csr_array(affinity[joined][:, joined])
    symmetric, degree = normalize(part, 1.0)
    cuts = find_near_cuts(symmetric, degree, steps)
    where = component[joined]
    largest = where == np.argmax(np.bincount(where))
    within = (symmetric, degree) if largest.all() else normalize(sp.csr_array(part[largest][:, largest]), 1.0)
    slow = slowest_mode(*within, None if cuts is None else _indicators(cuts, largest))
    several = _several(cuts, part, symmetric, degree)
    if not several:
        inside = part if largest.all() else sp.csr_array(part[largest][:, largest])
        several = _several(by_sweep(*within, slow.vector / np.sqrt(within[1]), steps), inside, *within)
    return several, slow


def _several(
    cuts: NearCuts | None, affinity: sp.csr_array, symmetric: sp.csr_array, degree: Float64
) -> tuple[NearCut, ...]:
    """Return the parts with at least two points, the largest first."""
    if cuts is None:
        return ()
    parts = [part for _, part in cuts.describe(affinity, symmetric, degree) if part.n_points > 1]
    return tuple(sorted(parts, key=lambda part: (-part.n_points, part.conductance, part.affinity)))


def _indicators(cuts: NearCuts, inside: Bool) -> Float64 | None:
    """Return indicators of the largest parts of one component, without its main part; None if no such parts exist."""
    here = cuts.part[inside]
    counts = np.bincount(here[~cuts.is_main[here]], minlength=cuts.is_main.size)
    chosen = np.argsort(-counts, kind="stable")[:MOST_GUESSES]
    chosen = chosen[counts[chosen] > 0]
    return np.asarray(here[:, None] == chosen, dtype=np.float64) if chosen.size else None
