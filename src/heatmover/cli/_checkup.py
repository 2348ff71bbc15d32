"""What `doctor` looks at: a draw of the cells, the graph over it, and everything for which `compare` would refuse."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import Progress
from heatmover._typing import Float64, Int32, Intp
from heatmover._words import quoted
from heatmover.analysis.cell_types import annotate
from heatmover.analysis.study import SMALL_SAMPLE, check_block, check_components, choose_variables, enough_cells
from heatmover.cli._settings import Settings
from heatmover.cohort import Cohort
from heatmover.cohort.hashes import cell_hashes
from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs import Diagnosis, Graph

__all__ = ["Checkup", "check_up"]

# Enough to see parts, copies and scales of features; the graph over them takes seconds.
MOST_CELLS = 20_000
# A raw measurement with more than this share of the variance decides the neighbours nearly alone: the area of
# glomeruli in pixels has 57 % of that of 14 features, of which most have less than a millionth.
DOMINANT = 0.5


@final
@dataclass(frozen=True, eq=False)
class Checkup:
    """What was found.

    Attributes
    ----------
    points, codes
        The cells drawn, ``(n_drawn, n_dimensions)``, and their samples.
    n_copies
        How many of them are copies of another.
    constant, dominant
        Features without spread; the one with most of the variance and its share, if that calls for advice.
    diagnosis
        Of the graph over the cells drawn; None if there is none.
    refusals
        Why `compare` would refuse, in sentences; empty if it would go.
    advice
        What to do, in sentences.
    """

    points: npt.NDArray[Any]
    codes: Int32
    n_copies: int
    constant: tuple[str, ...]
    dominant: tuple[str, float] | None
    diagnosis: Diagnosis | None
    refusals: tuple[str, ...]
    advice: tuple[str, ...]


def check_up(cohort: Cohort, settings: Settings, progress: Progress) -> Checkup:
    """Look at a cohort without changing anything."""
    refusals = list(_refusals(cohort, settings))
    progress.stage("draw cells", 1)
    points, codes = draw(cohort, MOST_CELLS, settings.study.random_state)
    progress.advance()
    copies = len(points) - len(np.unique(points, axis=0))
    spread = np.var(points.astype(np.float64), axis=0)
    constant = tuple(name for name, value in zip(cohort.features, spread, strict=True) if value == 0)
    dominant = _dominant(cohort, settings, spread)
    diagnosis = None
    if len(points) > 2:
        progress.stage("diagnose graph", 1)
        graph = _graph(points, settings)
        diagnosis = graph.diagnose()
        if not settings.study.allow_components:
            refusals += _tried(check_components, graph.node_affinity, graph.gather(np.ones((1, len(points))))[0])
        progress.advance()
    advice = tuple(_advice(cohort, settings, dominant, copies / len(points)))
    return Checkup(points, codes, copies, constant, dominant, diagnosis, tuple(refusals), advice)


def draw(cohort: Cohort, most: int, seed: int) -> tuple[npt.NDArray[Any], Int32]:
    """Return at most so many cells, drawn from every sample in proportion and at least one of each.

    They are drawn by hashes of their values, in whatever order they come.
    """
    if cohort.n_cells <= most:
        return cohort.points(), cohort.codes
    hashes, codes = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int32)
    points: npt.NDArray[Any] = np.empty((0, cohort.n_dimensions))
    for block, block_codes in cohort.chunks():
        hashes = np.concatenate([hashes, cell_hashes(block, block_codes, seed)])
        points, codes = np.concatenate([points, block]), np.concatenate([codes, block_codes])
        # Enough for every sample to replace its first later on.
        kept = _first_and_next(hashes, codes, most + len(cohort.names))
        hashes, points, codes = hashes[kept], points[kept], codes[kept]
    chosen = _first_and_next(hashes, codes, most)
    return points[chosen], codes[chosen]


def _first_and_next(hashes: npt.NDArray[np.uint64], codes: Int32, most: int) -> Intp:
    """Return the place of the smallest hash of each sample, then those of the smallest of all."""
    order = np.argsort(hashes, kind="stable")
    is_first = np.zeros(order.size, dtype=bool)
    is_first[np.unique(codes[order], return_index=True)[1]] = True
    return np.concatenate([order[is_first], order[~is_first]])[:most]


def _refusals(cohort: Cohort, settings: Settings) -> Iterator[str]:
    """Yield every reason why `compare` would refuse before it makes a graph, not the first only."""
    asked, kept = settings.study, np.arange(len(cohort.names))
    try:
        kept = enough_cells(cohort, asked.min_cells)
    except InvalidInputError as error:
        yield error.sentence
    table, block, cells = cohort.samples.iloc[kept], asked.block, asked.cells
    for name in asked.variables or ():
        yield from _tried(choose_variables, cohort, table, [name], block)
    if cells is not None:
        yield from _tried(lambda: annotate(cells, cohort.annotation(cells), cohort.n_cells))
    if block is not None:
        try:
            check_block(cohort.variable(block).iloc[kept], block)
        except InvalidInputError as error:
            yield error.sentence


def _tried(check: Callable[..., object], *arguments: Any) -> list[str]:
    try:
        check(*arguments)
    except InvalidInputError as error:
        return [error.sentence]
    return []


def _graph(points: npt.NDArray[Any], settings: Settings) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        count = min(settings.study.n_neighbors, len(points) - 1)
        seed, n_jobs = settings.study.random_state, settings.n_jobs
        return Graph.from_points(points, n_neighbors=count, random_state=seed, n_jobs=n_jobs)


def _dominant(cohort: Cohort, settings: Settings, spread: Float64) -> tuple[str, float] | None:
    """Return the raw feature that decides the neighbours alone, if there is one."""
    ordered = getattr(cohort.reader, "representation", "X") != "X" or settings.reading.n_components is not None
    # Principal components and the like are ordered by their variance: the first has most of it by design.
    if ordered or settings.reading.standardize or len(spread) < 2 or not spread.sum():
        return None
    largest = int(np.argmax(spread))
    share = float(spread[largest] / spread.sum())
    return (cohort.features[largest], share) if share > max(DOMINANT, 2 / len(spread)) else None


def _advice(cohort: Cohort, settings: Settings, dominant: tuple[str, float] | None, copied: float) -> Iterator[str]:
    if dominant is not None:
        name, share = dominant
        yield f"{quoted(name)} has {share:.0%} of the variance and decides nearly alone who is near: use --standardize."
    timed = [name for name in cohort.features if name.lower() == "time"]
    if timed:
        yield f"{quoted(timed[0])} tells when a cell was measured, not what it is: name the other features in --rep."
    small = int((cohort.sizes < SMALL_SAMPLE).sum())
    if small and settings.study.min_cells is None:
        yield (
            f"{small} samples have fewer than {SMALL_SAMPLE} cells and will look far from all others by chance: "
            f"--min-cells {SMALL_SAMPLE} leaves them out."
        )
    if copied > 0.05:
        yield f"{copied:.0%} of the cells are copies of another and share its node. Were rows or files read twice?"
    if cohort.n_dimensions > 60:
        yield f"{cohort.n_dimensions} dimensions are mostly noise to a neighbour search: --components 50 reduces them."
