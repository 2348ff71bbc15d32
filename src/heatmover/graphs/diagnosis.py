"""What a graph looks like to the heat: components, degrees, spectral gap, and advice in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

__all__ = ["Diagnosis", "diagnose"]

# A point whose neighbours together weigh less than this against its own loop keeps its mass for more than
# 2^13 steps: it is isolated for all practical purposes.
WEAK = 1e-4
# Heat that mixes within two steps has no geometry to tell; pure noise in 2,000 dimensions had a gap of 0.59.
STRUCTURELESS = 0.5


@dataclass(frozen=True)
class Diagnosis:
    """Figures of a graph and what to do about them; ``print`` it.

    Attributes
    ----------
    n_points, n_edges
        Size.
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
    spectral_gap
        About 1 minus the second largest eigenvalue of the diffusion operator, of the largest component; its
        inverse is the number of steps in which everything mixes.
    spectral_gap_error
        An eigenvalue lies within this distance of the one found.
    lowest_eigenvalue
        About the smallest eigenvalue of the same operator; at -1 heat swings between two halves and never settles.
    advice
        What to do, most important first; empty if all is well.

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
    spectral_gap: float
    spectral_gap_error: float
    lowest_eigenvalue: float
    advice: tuple[str, ...]

    def __str__(self) -> str:
        low, median, high = self.neighbors
        parts = "one component" if self.n_components == 1 else f"{self.n_components} components"
        lines = [
            f"{self.n_points} points, {self.n_edges} edges, {parts}.",
            f"Neighbours per point: {low} to {high}, median {median:g}.",
        ]
        # Whichever end of the spectrum is nearer to 1 in size decides.
        gap = min(self.spectral_gap, 1 + self.lowest_eigenvalue)
        if gap > 1e-9:
            what = "everything" if self.n_components == 1 else "the largest part"
            lines.append(f"Spectral gap about {gap:.2g}: {what} mixes in about {max(1 / gap, 1):.0f} steps.")
        return "\n".join([*lines, *(f"- {line}" for line in self.advice)] if self.advice else [*lines, "All is well."])


def diagnose(affinity: sp.csr_array, *, recall: float = 1.0) -> Diagnosis:
    """Diagnose a symmetric affinity, CSR ``(n_points, n_points)``; see `Diagnosis`."""
    n_points = affinity.shape[0]
    loops = affinity.diagonal()
    neighbors = np.diff(affinity.indptr) - (loops != 0)
    degree = np.asarray(affinity.sum(axis=1)).ravel()
    n_components, component = connected_components(affinity, directed=False)
    sizes = np.bincount(component)
    isolated = neighbors == 0
    weak = ~isolated & (degree - loops < WEAK * loops)
    gap, error, lowest = _spectrum(affinity, component == np.argmax(sizes))
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
        spectral_gap=gap,
        spectral_gap_error=error,
        lowest_eigenvalue=lowest,
        advice=(*_advice(**figures, recall=recall), *_spectral_advice(n_points, gap, lowest)),
        **figures,
    )


def _advice(
    n_points: int, n_components: int, largest_component: float, n_isolated: int, n_weak: int, recall: float
) -> list[str]:
    lines = []
    others = n_components - n_isolated
    if n_isolated:
        lines.append(
            f"{n_isolated} points have no neighbour: their mass never moves. Remove them if they are outliers, "
            "or use more neighbours or a larger radius."
        )
    if others > 1:
        lines.append(
            f"{others} parts are not joined (the largest holds {largest_component:.1%} of the points): measures in "
            "different parts are infinitely far apart in truth and at the largest possible distance here. Use more "
            "neighbours to join them, or leave it if the groups are real."
        )
    if n_weak:
        lines.append(
            f"{n_weak} points ({n_weak / n_points:.1%}) are so far from their neighbours that their mass hardly moves. "
            "Use kernel='adaptive' or a larger bandwidth if they are not outliers."
        )
    if recall < 0.9:
        lines.append(f"The approximate search found {recall:.0%} of the true neighbours: use neighbors='blocked'.")
    return lines


def _spectral_advice(n_points: int, gap: float, lowest: float) -> list[str]:
    lines = []
    if lowest < -1 + 1e-6:
        lines.append(
            "Heat swings between two halves of the graph and never settles, because no point has a loop and every "
            "cycle is even. Add a diagonal to the affinity."
        )
    if gap > STRUCTURELESS and n_points > 30:
        lines.append(
            f"Everything mixes in about {max(1 / gap, 1):.0f} steps: there is hardly any structure. "
            "Use fewer neighbours, or reduce the points to a few dozen principal components first."
        )
    return lines


def _spectrum(affinity: sp.csr_array, inside: npt.NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return one component's spectral gap, how near an eigenvalue is to the one found, and the lowest eigenvalue."""
    from heatmover.graphs.spectrum import lanczos, normalise

    if inside.sum() < 2:
        return 0.0, 0.0, 0.0
    part = affinity if inside.all() else sp.csr_array(affinity[inside][:, inside])
    symmetric, degree = normalise(part, 1.0)
    top = np.sqrt(degree / degree.sum())[:, None]
    values, residuals = lanczos(symmetric, min(120, part.shape[0] - 1), deflate=top)
    return float(1 - values[-1]), float(residuals[-1]), float(values[0])
