"""What a graph looks like to the heat: components, degrees, spectral gap, and advice in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.types import Bool, Float64, Int32
from heatmover._base.words import counted, part_of, verb
from heatmover.errors import Sentence, in_python
from heatmover.graphs.cuts import FEWEST, NOTICEABLE, NearCut, NearCuts, by_sweep, find_near_cuts
from heatmover.graphs.spectrum import SlowMode, normalise, slowest_mode

__all__ = ["Diagnosis", "diagnose"]

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
