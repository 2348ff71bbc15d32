"""What `heatmover doctor` tells of noise: how far samples lie apart by the luck of the draw, before a long run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._typing import Int32, Int64, Intp
from heatmover._words import counted
from heatmover.analysis.comparison import Comparison, compare
from heatmover.analysis.noise import NOISY, UNRELIABLE, confounded_sentence, goes_with_size
from heatmover.analysis.study import choose_variables, wanted_variables
from heatmover.cli._settings import Settings
from heatmover.cohort import Cohort
from heatmover.cohort.equal import equal_count
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, Sentence, argument
from heatmover.graphs import Graph
from heatmover.measures import measures_from_labels

__all__ = ["Noise", "assess_noise", "noise_advice", "noise_facts"]

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
    retrieval
        Share of samples of which a random half has the other half as its nearest.
    complete
        Whether all cells of the samples took part; with more of them halves find each other more often.
    """

    floors: dict[int, float]
    typical: float
    retrieval: float | None
    complete: bool


def assess_noise(cohort: Cohort, kept: Intp, graph: Graph, codes: Int32, settings: Settings) -> Noise | None:
    """Compare samples on a graph over cells drawn, and return how far noise goes; None where that cannot be told.

    Parameters
    ----------
    cohort, kept
        The cells that `compare` would compare, and which samples it would keep.
    graph, codes
        Over the cells drawn; the sample of each.
    settings
        What `compare` is asked for.
    """
    chosen = kept[np.argsort(cohort.sizes[kept], kind="stable")]
    if len(chosen) > MOST_SAMPLES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_SAMPLES).round().astype(np.int64)]
    try:
        sizes, complete = _sizes(cohort, kept, settings), len(codes) == cohort.n_cells
        found = _compare(graph, codes, np.sort(chosen), settings)
    except InvalidInputError:  # too few samples, or single cells: `compare` says so itself
        return None
    noise = found.uncertainty
    assert noise is not None
    typical = sorted({int(n) for n in np.quantile(sizes, [0, 0.5, 1], method="nearest")})
    return Noise(
        {n: noise.noise_floor(n) for n in typical},
        float(np.median(found.distances[np.triu_indices(len(found.names), 1)])),
        noise.retrieval,
        complete,
    )


def _compare(graph: Graph, codes: Int32, chosen: Intp, settings: Settings) -> Comparison:
    with warnings.catch_warnings():
        for kind in (GraphWarning, EmbeddingWarning):
            warnings.simplefilter("ignore", kind)
        return compare(
            graph, measures_from_labels(codes, names=chosen.tolist()), bias="corrected",
            random_state=settings.study.random_state, n_jobs=settings.n_jobs,
        )  # fmt: skip


def _sizes(cohort: Cohort, kept: Intp, settings: Settings) -> Int64:
    """Return how many cells of each sample would be compared."""
    sizes = cohort.sizes[kept]
    count = equal_count(settings.study.equal_cells, sizes, [cohort.names[i] for i in kept])
    return np.full(len(kept), count, dtype=np.int64) if count else sizes


def noise_facts(noise: Noise) -> str:
    """Return what was found in plain words."""
    names = {1: ["every sample"], 2: ["smallest sample", "largest"], 3: ["smallest sample", "median", "largest"]}
    floors = "; ".join(
        f"{distance:.2g} with {counted(cells, 'cell')} ({name})"
        for name, (cells, distance) in zip(names[len(noise.floors)], noise.floors.items(), strict=True)
    )
    part = "" if noise.complete else " (of the cells drawn; with all of them it is more)"
    told = (
        f"by luck alone two samples of one distribution would lie this far apart: {floors}. Beyond luck the median "
        f"distance is {noise.typical:.2g}"
    )
    if noise.retrieval is None:
        return told
    return f"{told}. A half of a sample finds its other half: {100 * noise.retrieval:.0f} %{part}"


def noise_advice(cohort: Cohort, kept: Intp, noise: Noise | None, settings: Settings) -> Iterator[str]:
    """Yield what to do about noise, in sentences."""
    asked = settings.study
    remedy = f"{argument('bias', 'corrected')} removes that"
    if asked.equal_cells is False:
        remedy += f", {argument('equal_cells', True)} draws equally many"
    if noise is not None:
        least, floor = next(iter(noise.floors.items()))
        if floor > noise.typical and asked.bias == "raw":
            yield Sentence(
                f"Samples of {counted(least, 'cell')} lie further apart by luck alone ({floor:.2g}) than samples do "
                f"beyond it "
                f"({noise.typical:.2g}): {remedy}, {argument('min_cells')} leaves small samples out."
            )
        if noise.complete and noise.retrieval is not None and noise.retrieval < UNRELIABLE:
            yield NOISY
    yield from _confounded(cohort, kept, settings, "" if asked.bias == "corrected" else remedy)


def _confounded(cohort: Cohort, kept: Intp, settings: Settings, remedy: str) -> Iterator[str]:
    asked, table = settings.study, cohort.samples.iloc[kept]
    try:
        names = choose_variables(cohort, table, wanted_variables(asked), (*asked.blocks, *asked.design))
        blocks = {name: cohort.variable(name).iloc[kept].tolist() for name in asked.blocks} or None
        sizes = _sizes(cohort, kept, settings)
        columns = {name: table[name].tolist() for name in names}
        tests = {"n_permutations": asked.n_permutations, "random_state": asked.random_state}
        found = list(goes_with_size(sizes, columns, blocks=blocks, **tests))
    except InvalidInputError:  # among the refusals already
        return
    for variable, p_value in found:
        yield confounded_sentence(variable, p_value, remedy)
