"""How long `compare` will take and how much memory, about: a small comparison is timed and scaled up."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import SILENT, Progress
from heatmover._typing import Int32, Int64
from heatmover.analysis.comparison import compare
from heatmover.analysis.landmarking import LANDMARKS, LANDMARKS_ABOVE
from heatmover.analysis.record import Clock
from heatmover.cli._settings import Settings
from heatmover.cohort import Cohort
from heatmover.embedding.preparation import LARGEST_EMBEDDING
from heatmover.errors import EmbeddingWarning, GraphWarning

__all__ = ["Estimate", "estimate"]

TRIAL_CELLS, TRIAL_SAMPLES = 4_000, 100
# Importing, compiled code, report: what a comparison of ten cells takes.
START_SECONDS, START_BYTES = 6.0, 350_000_000
# Seconds of one permutation of one variable, per pair of samples (634 samples, 999 permutations: 1.5 s).
SECONDS_PER_PERMUTATION = 4e-9


@final
@dataclass(frozen=True)
class Estimate:
    """Seconds and bytes, about."""

    seconds: float
    memory: int


def estimate(
    cohort: Cohort,
    settings: Settings,
    points: npt.NDArray[Any],
    codes: Int32,
    *,
    n_variables: int,
    progress: Progress,
) -> Estimate | None:
    """Time a comparison of some of the cells drawn, and scale each of its stages by what it grows with."""
    chosen = _trial(codes)
    if chosen is None:
        return None
    progress.stage("time a trial", 1)
    _compare(points, codes, chosen[:200] if len(np.unique(codes[chosen[:200]])) > 1 else chosen, settings)  # warms up
    seconds, trial = _compare(points, codes, chosen, settings)
    progress.advance()
    n_cells, n_samples = cohort.n_cells, len(cohort.names)
    nodes = _nodes(settings, n_cells)
    cells = n_cells / len(chosen)
    grown, samples = nodes / len(chosen), n_samples / len(trial.names)
    growth = {"diffuse measures": grown * samples, "compare": grown * samples**2}
    total = sum(value * growth.get(name, grown) for name, value in seconds.items())
    if nodes < n_cells:  # k-means visits every cell, then the loss is measured on 10,000 cells
        total += seconds["find neighbours"] * cells + sum(seconds.values()) * 10_000 / len(chosen)
    tests = SECONDS_PER_PERMUTATION * n_samples**2 * settings.study.n_permutations * n_variables
    return Estimate(START_SECONDS + total + tests, _memory(cohort, settings, nodes, trial))


def _nodes(settings: Settings, n_cells: int) -> int:
    landmarks = settings.study.landmarks
    if landmarks is None:
        return n_cells
    if landmarks == "auto":
        return LANDMARKS if n_cells > LANDMARKS_ABOVE else n_cells
    return min(landmarks, n_cells)


def _memory(cohort: Cohort, settings: Settings, nodes: int, trial: Any) -> int:
    per_node = trial.embedding.shape[1] / trial.graph.n_nodes
    embedding = min(4 * per_node * nodes * len(cohort.names), LARGEST_EMBEDDING)
    graph = 3 * 12 * 2 * settings.study.n_neighbors * nodes
    matrices = 5 * 8 * len(cohort.names) ** 2
    return int(START_BYTES + 3 * 8 * cohort.n_cells * cohort.n_dimensions + 1.3 * embedding + graph + matrices)


def _trial(codes: Int32) -> Int64 | None:
    """Return some cells of some samples, or None if they are too few to time anything."""
    order = np.random.default_rng(0).permutation(len(codes))
    samples = np.unique(codes[order[:TRIAL_CELLS]])
    samples = samples[:: max(1, len(samples) // TRIAL_SAMPLES)]
    chosen = order[np.isin(codes[order], samples)][:TRIAL_CELLS]
    return chosen if len(np.unique(codes[chosen])) > 1 and len(chosen) > 50 else None


def _compare(points: npt.NDArray[Any], codes: Int32, chosen: Int64, settings: Settings) -> tuple[dict[str, float], Any]:
    watch = Clock(SILENT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        warnings.simplefilter("ignore", EmbeddingWarning)
        found = compare(
            points[chosen], codes[chosen], n_neighbors=min(settings.study.n_neighbors, len(chosen) - 1), landmarks=None,
            random_state=settings.study.random_state, n_jobs=settings.n_jobs, progress=watch,
        )  # fmt: skip
    watch.stage("diagnose graph", 1)
    _ = found.diagnosis
    watch.end()
    return watch.seconds, found
