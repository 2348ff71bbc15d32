"""From histograms over landmarks to distances between samples."""

from __future__ import annotations

from functools import partial

import numpy as np

from heatmover._typing import FloatArray, Intp
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.landmarking import LandmarkLoss, landmark_loss
from heatmover.cohort import Cohort
from heatmover.embedding import DiffusionEMD, pairwise_distances
from heatmover.graphs import Graph
from heatmover.measures import Measures, measures_from_weights
from heatmover.scale._embed import SAMPLES_AT_ONCE, embedding_tasks, same
from heatmover.scale._landmarks import Draw, Histogrammed
from heatmover.scale._plan import LOSS_POINTS
from heatmover.scale._stages import Stages
from heatmover.scale._tasks import Arrays

__all__ = ["compare_samples"]


def compare_samples(
    cohort: Cohort,
    kept: Intp,
    found: Histogrammed,
    drawn: Draw,
    stages: Stages,
    model: DiffusionEMD,
    n_neighbors: int,
    seed: int,
) -> Comparison:
    """Compare samples by their histograms.

    Parameters
    ----------
    cohort, kept
        The cells, and which samples to compare.
    found, drawn
        Histograms over landmarks; cells that tell how well the landmarks stand for all of them.
    stages
        Runs what is left to do.
    model, n_neighbors, seed
        An unfitted model without a graph; of the graph; of all draws.
    """
    measures = measures_from_weights(found.counts[kept].astype(np.float64), names=[cohort.names[i] for i in kept])
    stages.progress.stage("find neighbours", 1)
    graph = found.landmarks.graph(n_neighbors, random_state=seed, n_jobs=model.n_jobs)
    stages.progress.advance()
    stages.progress.stage("choose scales", 1)
    fitted = model.set_params(graph=graph).fit(measures)
    stages.progress.advance()
    embedding = _embed(fitted, measures, stages)

    def distances() -> Arrays:
        return {"distances": np.asarray(pairwise_distances(embedding, n_jobs=fitted.n_jobs), dtype=np.float64)}

    apart = stages.once("compare", distances)["distances"]
    loss = _loss(found, drawn, graph, fitted, stages, seed)
    return Comparison(
        measures.names, cohort.sizes[kept], apart, embedding, graph, fitted, measures, found.landmarks, loss
    )


def _embed(fitted: DiffusionEMD, measures: Measures, stages: Stages) -> FloatArray:
    """Embed the samples, a few per task."""
    prepared = fitted.prepared_
    result = np.empty((len(measures), prepared.layout.n_features), dtype=prepared.precision)

    def fold(number: int, part: Arrays) -> None:
        start = number * SAMPLES_AT_ONCE
        result[start : start + len(part["embedding"])] = part["embedding"]

    tasks, weights = embedding_tasks(fitted, measures)
    stages.each("diffuse measures", tasks, weights, fold, partial(same, prepared))
    return result


def _loss(
    found: Histogrammed, drawn: Draw, graph: Graph, fitted: DiffusionEMD, stages: Stages, seed: int
) -> LandmarkLoss:
    def make() -> Arrays:
        samples = np.flatnonzero(np.diff(drawn.loss.counts.indptr))
        loss = landmark_loss(
            found.landmarks, drawn.loss.points, measures_from_weights(drawn.loss.counts[samples]),
            n_points=LOSS_POINTS, graph=graph, model=fitted, random_state=seed,
        )  # fmt: skip
        figures = [loss.spearman, loss.unexplained, loss.n_points, loss.n_samples, loss.n_landmarks]
        return {"figures": np.array(figures, dtype=np.float64)}

    spearman, unexplained, *numbers = stages.once("measure the loss", make)["figures"].tolist()
    return LandmarkLoss(spearman, unexplained, *(int(number) for number in numbers))
