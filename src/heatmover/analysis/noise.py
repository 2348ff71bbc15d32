"""What the noise of samples means for their distances, in words and in the unit of the distances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._typing import IntArray
from heatmover._words import quoted
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.examination import answers
from heatmover.errors import Sentence

__all__ = [
    "NOISY",
    "UNRELIABLE",
    "confounded_sentence",
    "describe_noise",
    "goes_with_size",
    "named_floors",
    "noise_floors",
    "noise_sentences",
    "pair_counts",
    "plain_noise",
    "unreliable",
]

# Halves that find each other less often than this say that single distances are mostly noise.
UNRELIABLE = 0.8
# Numbers of cells that differ by less than this factor, as a logarithm, make no difference; above, a variable that goes
# with them at this level is named.
UNEQUAL, CONFOUNDED = float(np.log(1.5)), 0.01
NOISY = (
    "Many halves of samples do not find their other half: which sample is the nearest is uncertain here, while groups "
    "of samples may differ surely. More cells help, and so may standardising if features have different units."
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
    assert comparison.uncertainty is not None
    return {n: comparison.noise_floor(n) for n in comparison.uncertainty.typical_sizes}


def describe_noise(comparison: Comparison) -> str:
    """Return what was found of the noise in plain sentences."""
    assert comparison.uncertainty is not None
    return comparison.uncertainty.describe(comparison.noise_floor)


def named_floors(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the noise floors with what their numbers of cells are: the smallest, median and largest sample."""
    floors = noise_floors(comparison)
    names = {1: ["every sample"], 2: ["smallest sample", "largest sample"]}
    names[3] = ["smallest sample", "median sample", "largest sample"]
    return [
        {"name": name, "cells": cells, "distance": f"{distance:.2g}"}
        for name, (cells, distance) in zip(names[len(floors)], floors.items(), strict=True)
    ]


def pair_counts(comparison: Comparison) -> dict[str, Any] | None:
    """Return how many pairs can be told apart, how many cannot, of how many; None without intervals."""
    found = comparison.intervals
    if found is None:
        return None
    pairs = found.told_apart[np.triu_indices(len(comparison.names), 1)]
    told = int(pairs.sum())
    return {"told": told, "alike": pairs.size - told, "all": pairs.size, "confidence": f"{100 * found.confidence:g}"}


def noise_sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return how sure the distances are, in plain sentences with advice; nothing if noise was not assessed."""
    found = comparison.uncertainty
    if found is None:
        return ()
    floors = named_floors(comparison)
    listed = "; ".join(f"{floor['cells']:,} cells ({floor['name']}): {floor['distance']}" for floor in floors)
    median = float(np.median(comparison.distances[np.triu_indices(len(comparison.names), 1)]))
    kind = "corrected" if comparison.bias == "corrected" else "raw"
    sentences = [
        f"By noise alone two samples of one distribution would lie so far apart: {listed}. The median {kind} distance "
        f"here is {median:.2g}.",
    ]
    if found.retrieval is not None:
        sentences.append(
            f"Every sample was cut into two random halves: {100 * found.retrieval:.0f} % of the halves are nearest to "
            "their own other half, among those of all samples."
        )
    if found.heterogeneity:
        sentences.append(found.heterogeneity)
    pairs = pair_counts(comparison)
    if pairs is not None:
        sentences.append(
            f"{pairs['told']:,} of {pairs['all']:,} pairs can be told apart: the {pairs['confidence']} % interval of "
            f"their distance, each for itself, begins above zero{found.by_luck}."
        )
    if found.retrieval is not None:
        sentences.append(NOISY if unreliable(comparison) else "Most samples find themselves again: nothing to mend.")
    return tuple(sentences)


def plain_noise(comparison: Comparison) -> dict[str, Any] | None:
    """Return what describes the noise as plain values for JSON, floors in the unit of the distances."""
    if comparison.uncertainty is None:
        return None
    return comparison.uncertainty.plain(comparison.noise_floor)


def unreliable(comparison: Comparison) -> bool:
    """Return whether halves of samples find each other too rarely."""
    found = comparison.uncertainty
    return found is not None and found.retrieval is not None and found.retrieval < UNRELIABLE


def confounded_sentence(variable: str, p_value: float, remedy: str = "") -> Sentence:
    """Return that the number of cells goes with a variable, and what to do; without a remedy, noise was removed."""
    end = f"few cells alone make distances large; {remedy}" if remedy else "the correction of distances allows for it"
    return Sentence(f"The number of cells goes with {quoted(variable)} (p = {p_value:.2g}): {end}.")


def goes_with_size(
    sizes: IntArray, columns: Mapping[str, Sequence[Any]], *, blocks: Any | None, **tests: Any
) -> Iterator[tuple[str, float]]:
    """Yield the variables that the number of cells goes with, and the p-value of each.

    Few cells alone make a sample look far from all others, so that a difference may be one of numbers.

    Parameters
    ----------
    sizes
        Cells of each sample, ``(n_samples,)``.
    columns
        Values ``(n_samples,)`` by the names of variables.
    blocks, **tests
        As in `heatmover.examine`: ``numeric``, ``n_permutations`` and ``random_state``.
    """
    logarithms = np.log(sizes.astype(np.float64))
    if logarithms.max() - logarithms.min() < UNEQUAL:
        return
    apart = np.abs(np.subtract.outer(logarithms, logarithms))
    for variable, p_value in answers(apart, columns, blocks=blocks, **tests).items():
        if p_value <= CONFOUNDED:
            yield variable, p_value
