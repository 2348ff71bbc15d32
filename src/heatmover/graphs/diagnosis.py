"""What a graph looks like to the heat: components, degrees, spectral gap, and advice in plain words.

Near-cuts are parts of a graph that hang on the rest by so little that heat hardly ever passes. The conductance of a
part is the affinity that leaves it over all that its points have. Of heat that is spread over a part as after infinite
time, this share leaves in a step, and in t steps at most t times as much. So a part whose conductance is far below 1 /
t is, for all diffusions up to t, as good as cut off.

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
from scipy.sparse.csgraph import connected_components

from heatmover._base.readonly import frozen_view
from heatmover._base.types import Bool, Float64, Int32, Int64
from heatmover._base.words import counted, part_of, verb
from heatmover.errors import Sentence, in_python
from heatmover.graphs.spectrum import SlowMode, normalise, slowest_mode

__all__ = [
    "FEWEST",
    "NOTICEABLE",
    "PASSES",
    "Diagnosis",
    "NearCut",
    "NearCuts",
    "by_sweep",
    "diagnose",
    "find_near_cuts",
]

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


# A point whose neighbours together weigh less than this against its own loop keeps its mass for more than
# 2^13 steps: it is isolated for all practical purposes.
WEAK = 1e-4
# A gap known to this share is given as it is, any other as an upper bound.
CONVERGED = 0.1
# Indicators of parts that start the search for the slowest mode.
MOST_GUESSES = 8
# Heat that mixes within two steps has no geometry to tell; pure noise in 2,000 dimensions had a gap of 0.59.
STRUCTURELESS = 0.5


@dataclass(frozen=True)
class Diagnosis:
    """Figures of a graph and what to do about them; ``print`` it.

    Attributes
    ----------
    n_points, n_edges
        Size: different points, and edges between them.
    n_components
        Connected components; mass never passes from one to another.
    largest_component
        Share of the points in the largest one.
    n_isolated
        Points without any neighbour.
    n_weak
        Points with neighbours so weak that their mass hardly ever leaves them.
    neighbors
        Smallest, median and largest number of neighbours of a point.
    degree
        Smallest, median and largest sum of affinities of a point.
    near_cuts
        Parts of several points that hang on the rest of their component by a thread, the largest first: how many
        points, which share of their heat leaves in a step (conductance), the affinity that joins them. Advice
        mentions those with five points and a hundredth of all or more.
    spectral_gap
        An upper bound of 1 minus the second largest eigenvalue of the diffusion operator, of the largest component; its
        inverse is the least number of steps in which everything mixes.
    spectral_gap_error
        An eigenvalue lies within this distance of the one found. If this is small against the gap, the gap is more than
        a bound: it is right.
    lowest_eigenvalue
        About the smallest eigenvalue of the same operator; at -1 heat swings between two halves and never settles.
    advice
        What to do, most important first; empty if all is well.
    n_copies
        Points that are equal to another and share its node.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> print(Graph.from_grid((8, 8)).diagnose())
    64 points, ... edges, one component.
    Neighbours per point: 8 to 24, median 17.
    Spectral gap about ...: everything mixes in about ... steps.
    All is well.
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
        """Whether the spectral gap is known to a tenth; if not it is an upper bound."""
        return self.spectral_gap_error <= CONVERGED * self.spectral_gap

    @property
    def mixing_steps(self) -> float | None:
        """Steps in which everything mixes, at least 1, or if not `converged` a lower bound; None if it never does."""
        # Whichever end of the spectrum is nearer to 1 in size decides.
        gap = min(self.spectral_gap, 1 + self.lowest_eigenvalue)
        return max(1 / gap, 1.0) if gap > 1e-12 else None

    def __str__(self) -> str:
        low, median, high = self.neighbors
        parts = "one component" if self.n_components == 1 else counted(self.n_components, "component")
        copies = f" different points of {self.n_points + self.n_copies:,}"
        points = f"{self.n_points:,}{copies if self.n_copies else ' points'}"
        lines = [
            f"{points}, {counted(self.n_edges, 'edge')}, {parts}.",
            f"Neighbours per point: {low:,} to {high:,}, median {median:g}.",
        ]
        if self.mixing_steps is not None:
            what = "everything" if self.n_components == 1 else "the largest component"
            many = self.mixing_steps >= 1e6
            steps = f"{self.mixing_steps:.1e} steps" if many else counted(round(self.mixing_steps), "step")
            if self.converged:
                lines.append(f"Spectral gap about {1 / self.mixing_steps:.2g}: {what} mixes in about {steps}.")
            else:
                lines.append(f"Spectral gap at most {1 / self.mixing_steps:.2g}: {what} mixes in {steps} or more.")
        return "\n".join([*lines, *(f"- {line}" for line in self.advice)] if self.advice else [*lines, "All is well."])


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
    cuts, slow = _look_at_parts(affinity, ~isolated, component, steps)
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
            f"{counted(n_isolated, 'point')} {verb(n_isolated, 'has', 'have')} no neighbour: "
            f"{verb(n_isolated, 'its mass never moves. Remove it if it is an outlier', many)}, "
            f"or use more neighbours{in_python(' or a larger radius')}."
        )
    if others > 1:
        lines.append(
            f"{counted(others, 'component')} have several points (the largest holds "
            f"{part_of(round(largest_component * n_points), n_points, 'point')}): "
            "measures in different components are infinitely far apart in truth and at the largest possible distance "
            "here. Use more neighbours to join them, or leave it if the groups are real."
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
            f"The approximate search found {recall:.0%} of the true neighbours. Reduce the points to a few dozen "
            "principal components first"
            + in_python(", or make the graph with Graph.from_points(points, neighbors='exact')")
            + "."
        )
    return lines


def _spectral_advice(n_points: int, gap: float, lowest: float) -> list[str]:
    lines = []
    if lowest < -1 + 1e-6:
        lines.append(
            "Heat swings between two halves of the graph and never settles, because no point has a loop and every "
            "cycle is even. Make the graph with Graph.from_affinity(affinity, lazy=True)."
        )
    if gap > STRUCTURELESS and n_points > 30:
        lines.append(
            f"Everything mixes in about {counted(round(max(1 / gap, 1)), 'step')}: there is hardly any structure. "
            "Use fewer neighbours, or reduce the points to a few dozen principal components first."
        )
    return lines


def _advice_on_cuts(cuts: tuple[NearCut, ...], n_points: int) -> list[str]:
    cuts = tuple(cut for cut in cuts if cut.n_points >= max(FEWEST, NOTICEABLE * n_points))
    if not cuts:
        return []
    many, largest = len(cuts), cuts[0]
    parts = "A part hangs" if many == 1 else f"{many} parts hang"
    which = "it has" if many == 1 else "the largest has"
    return [
        f"{parts} on the rest by a thread ({which} {part_of(largest.n_points, n_points, 'point')}, "
        f"joined by affinities of {largest.affinity:.1e} in sum; {largest.conductance:.1e} of its heat leaves in "
        "a step): measures on different sides look about as far apart as if nothing joined them. Use more neighbours"
        + in_python(", kernel='adaptive' or a larger bandwidth")
        + ", or leave it if the groups are real."
    ]


def _look_at_parts(
    affinity: sp.csr_array, joined: Bool, component: Int32, steps: int | None
) -> tuple[tuple[NearCut, ...], SlowMode]:
    """Return the near-cuts of all points with neighbours, and the slowest mode of the largest component."""
    if not joined.any():
        return (), SlowMode(0.0, 0.0, 0.0, np.zeros(1))
    part = affinity if joined.all() else sp.csr_array(affinity[joined][:, joined])
    symmetric, degree = normalise(part, 1.0)
    cuts = find_near_cuts(symmetric, degree, steps)
    where = component[joined]
    largest = where == np.argmax(np.bincount(where))
    within = (symmetric, degree) if largest.all() else normalise(sp.csr_array(part[largest][:, largest]), 1.0)
    slow = slowest_mode(*within, None if cuts is None else _indicators(cuts, largest))
    several = _several(cuts, part, symmetric, degree)
    if not several:
        inside = part if largest.all() else sp.csr_array(part[largest][:, largest])
        several = _several(by_sweep(*within, slow.vector / np.sqrt(within[1]), steps), inside, *within)
    return several, slow


def _several(
    cuts: NearCuts | None, affinity: sp.csr_array, symmetric: sp.csr_array, degree: Float64
) -> tuple[NearCut, ...]:
    """Return the parts of several points, the largest first."""
    if cuts is None:
        return ()
    parts = [part for _, part in cuts.describe(affinity, symmetric, degree) if part.n_points > 1]
    return tuple(sorted(parts, key=lambda part: (-part.n_points, part.conductance, part.affinity)))


def _indicators(cuts: NearCuts, inside: Bool) -> Float64 | None:
    """Return the indicators of the largest parts within one component, without its main one."""
    here = cuts.part[inside]
    counts = np.bincount(here[~cuts.is_main[here]], minlength=cuts.is_main.size)
    chosen = np.argsort(-counts, kind="stable")[:MOST_GUESSES]
    chosen = chosen[counts[chosen] > 0]
    return np.asarray(here[:, None] == chosen, dtype=np.float64) if chosen.size else None
