"""What the noise of samples means for their distances, in words and in the unit of the distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover.analysis.comparison import Comparison
from heatmover.errors import Sentence, argument

__all__ = ["NOISY", "UNRELIABLE", "describe_noise", "noise_floors", "plain_noise"]

# Halves that find each other less often than this say that single distances are mostly noise.
UNRELIABLE = 0.8
NOISY = Sentence(
    "Many halves of samples do not find their other half: distances between single samples mean little here. More "
    f"cells help, comparing groups of samples does, and so may {argument('standardize', True)} if features have "
    "different units."
)


def noise_floors(comparison: Comparison) -> dict[int, float]:
    """Return how far samples of one distribution would lie apart, of as many cells as the smallest, median and largest.

    Parameters
    ----------
    comparison
        Whose noise was assessed.

    Returns
    -------
    dict of int to float
        Distance by number of cells, in the unit of the distances; fewer than three if numbers are equal.
    """
    typical = np.quantile(comparison.sizes, [0, 0.5, 1], method="nearest")
    return {n: comparison.noise_floor(n) for n in sorted({int(n) for n in typical})}


def describe_noise(comparison: Comparison) -> str:
    """Return what was found of the noise in plain sentences."""
    found = comparison.uncertainty
    assert found is not None
    floors = noise_floors(comparison)
    (low, least), (high, most) = min(floors.items()), max(floors.items())
    parts = [f"A half of a sample finds its other half: {100 * found.retrieval:.0f} %."]
    floor = f"Two samples of {low:,} cells from one distribution would be {least:.2g} apart"
    parts.append(floor + (f", of {high:,} cells {most:.2g}." if high > low else "."))
    if not found.between.any():
        parts.append("Nothing but the luck of the draw sets the samples apart.")
    intervals = comparison.intervals
    if intervals is not None:
        pairs = intervals.told_apart[np.triu_indices(len(comparison.names), 1)]
        parts.append(f"{int(pairs.sum()):,} of {pairs.size:,} pairs can be told apart.")
    return " ".join(parts)


def plain_noise(comparison: Comparison) -> dict[str, Any] | None:
    """Return what describes the noise as plain values for JSON, floors in the unit of the distances."""
    if comparison.uncertainty is None:
        return None
    floors = {str(n): value for n, value in noise_floors(comparison).items()}
    return comparison.uncertainty.plain() | {"noise_floor": floors}
