"""What `heatmover doctor` tells of noise: how far samples lie apart by the luck of the draw, before a long run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._typing import Int32, Intp
from heatmover._words import counted
from heatmover.analysis.comparison import Comparison, compare
from heatmover.analysis.noise import NOISY, unreliable
from heatmover.analysis.parameters import StudyParameters
from heatmover.cli._settings import Settings
from heatmover.cohort import Cohort
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError
from heatmover.graphs import Graph
from heatmover.measures import measures_from_labels

__all__ = ["Noise", "assess_noise", "noise_cautions", "noise_facts"]

# Samples compared, of all sizes: their embedding takes 80 MB on 20,000 nodes, and more change the floors little.
MOST_SAMPLES = 100


@final
@dataclass(frozen=True)
class Noise:
    """How far noise goes.

    Attributes
    ----------
    floors
        Expected distance of two samples of one distribution, by their number of cells: the smallest, the median and the
        largest that `compare` would see.
    typical
        Median distance between samples without noise.
    found
        The comparison.
    whole
        Whether `compare` would compare the same cells of the same samples. If not, its share of halves that find each
        other is another one: 4 % with 20,000 of 400,000 cells, 97 % with all of them.
    """

    floors: dict[int, float]
    typical: float
    found: Comparison
    whole: bool


def assess_noise(
    cohort: Cohort, kept: Intp, graph: Graph, codes: Int32, settings: Settings, *, whole: bool
) -> Noise | None:
    """Compare samples on a graph over cells drawn, and return how far noise goes; None where that cannot be told.

    Parameters
    ----------
    cohort, kept
        The cells that `compare` would compare, and which samples it would keep.
    graph, codes
        Over the cells drawn; the sample of each.
    settings
        What `compare` is asked for.
    whole
        Whether `compare` would make this graph.
    """
    chosen = kept[np.argsort(cohort.sizes[kept], kind="stable")]
    if len(chosen) > MOST_SAMPLES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_SAMPLES).round().astype(np.int64)]
    try:
        found = _compare(graph, codes, np.sort(chosen), settings)
    except InvalidInputError:  # too few samples, or single cells: `compare` says so itself
        return None
    noise = found.uncertainty
    assert noise is not None
    typical = sorted({int(n) for n in np.quantile(cohort.sizes[kept], [0, 0.5, 1], method="nearest")})
    return Noise(
        {n: noise.noise_floor(n) for n in typical},
        float(np.median(found.distances[np.triu_indices(len(found.names), 1)])),
        found,
        whole and len(chosen) == len(kept),
    )


def _compare(graph: Graph, codes: Int32, chosen: Intp, settings: Settings) -> Comparison:
    with warnings.catch_warnings():
        for kind in (GraphWarning, EmbeddingWarning):
            warnings.simplefilter("ignore", kind)
        return compare(
            graph, measures_from_labels(codes, names=chosen.tolist()), bias="corrected",
            random_state=settings.study.random_state, n_jobs=settings.n_jobs,
        )  # fmt: skip


def noise_facts(noise: Noise) -> str:
    """Return what was found in plain words."""
    names = {1: ["every sample"], 2: ["smallest sample", "largest"], 3: ["smallest sample", "median", "largest"]}
    floors = "; ".join(
        f"{distance:.2g} with {counted(cells, 'cell')} ({name})"
        for name, (cells, distance) in zip(names[len(noise.floors)], noise.floors.items(), strict=True)
    )
    told = (
        f"by luck alone two samples of one distribution would lie this far apart: {floors}. Beyond luck the median "
        f"distance is {noise.typical:.2g}"
    )
    if not noise.whole:
        cells = counted(noise.found.graph.n_points, "cell")
        return f"{told}. These are estimates from {cells}; heatmover compare also cuts samples into halves"
    assert noise.found.uncertainty is not None
    share = noise.found.uncertainty.retrieval
    return told if share is None else f"{told}. A half of a sample finds its other half: {100 * share:.0f} %"


def noise_cautions(noise: Noise | None, asked: StudyParameters) -> Iterator[str]:
    """Yield what `compare` would say of the noise, where that is known before it runs."""
    assessed = asked.bias == "corrected" or asked.n_bootstrap > 0
    if noise is not None and noise.whole and assessed and unreliable(noise.found):
        yield NOISY
