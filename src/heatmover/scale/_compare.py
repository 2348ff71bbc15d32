"""`compare_cohort`: what `compare` does, for cells that stay on disk, in bounded memory, on threads or a cluster."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Literal

import numpy as np

from heatmover._progress import Progress
from heatmover._typing import FloatArray
from heatmover.analysis.comparison import MOST_SAMPLES, Comparison, _check_model
from heatmover.analysis.landmarking import LandmarkLoss, landmark_loss
from heatmover.cohort import Cohort
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph
from heatmover.measures import Measures, measures_from_weights
from heatmover.scale._embed import SAMPLES_AT_ONCE, embedding_tasks, same
from heatmover.scale._landmarks import Draw, Histogrammed
from heatmover.scale._pipeline import Request, counted
from heatmover.scale._plan import LOSS_POINTS
from heatmover.scale._stages import Stages
from heatmover.scale._tasks import Arrays

__all__ = ["compare_cohort"]


def compare_cohort(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
    passes: int = 0,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    min_cells: int = 1,
    n_neighbors: int = 30,
    model: DiffusionEMD | None = None,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    r"""Compare samples whose cells do not fit into memory: landmarks stand for the cells, which are read in pieces.

    The distances are the same to the bit for any budget of memory, any number of threads or workers, and whether the
    run was interrupted or not.

    Parameters
    ----------
    cohort
        From `heatmover.cohort.read_cohort`. On a cluster every worker must see its files under the same path.
    landmarks
        How many; ``"auto"``: 4,000, or a tenth of the cells if these are few.
    passes
        Further moves of the landmarks, each over all cells. k-means looks at 50 cells per landmark; the rest
        moves the landmarks hardly at all, and each pass takes as long as counting the cells does.
    memory
        What this process may take beside the interpreter and its libraries, in bytes or as ``"4 GB"``; on a cluster
        also each worker. Blocks are cut to fit; a budget that cannot hold the problem is refused at once.
    client
        None: dask's threads in this process. A `distributed.Client` or the address of a scheduler: that cluster.
    checkpoint
        Path of a zarr store that keeps everything finished; None keeps nothing.
    resume
        Go on with a checkpoint that is there; another input or setting is refused. If it is not there, begin it.
    min_cells
        Leave out samples with fewer cells from the comparison.
    n_neighbors, model
        As in `heatmover.compare`.
    random_state
        Seed of all draws.
    n_jobs
        Threads of this process; None for all cores.
    progress
        Told of the stages, those over cells with the number of cells.

    Returns
    -------
    Comparison
        As `heatmover.compare` returns it, with landmarks and their loss as measured on 10,000 cells.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from heatmover.cohort import read_cohort
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(6, cells_per_sample=300)
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = [",".join([label, *map(str, point)]) for label, point in zip(data.labels, data.points)]
    >>> header = "sample," + ",".join(f"x{i}" for i in range(10))
    >>> _ = (folder / "cells.csv").write_text("\n".join([header, *rows]))
    >>> result = compare_cohort(read_cohort(folder / "cells.csv", sample_key="sample"), landmarks=100, memory="1 GB")
    >>> result.distances.shape, result.landmarks
    ((6, 6), Landmarks(100 for 1800 points; root mean square distance ...))
    """
    settings = _check_model(model, random_state=random_state, n_jobs=n_jobs)
    request = Request(
        cohort, landmarks, passes, memory, client, checkpoint, resume, n_neighbors, random_state, settings.n_jobs,
        progress, min_cells, settings,
    )  # fmt: skip
    _check_pairs(cohort, min_cells)
    with counted(request) as (stages, drawn, found):
        return _compare(request, settings, stages, drawn, found)


def _compare(
    request: Request, settings: DiffusionEMD, stages: Stages, drawn: Draw, found: Histogrammed
) -> Comparison:  # fmt: skip
    """Go from histograms to distances."""
    cohort, seed = request.cohort, request.random_state
    kept = np.flatnonzero(cohort.sizes >= request.min_cells)
    names = [cohort.names[i] for i in kept]
    measures = measures_from_weights(found.counts[kept].astype(np.float64), names=names)
    stages.progress.stage("find neighbours", 1)
    graph = found.landmarks.graph(request.n_neighbors, random_state=seed, n_jobs=settings.n_jobs)
    stages.progress.advance()
    stages.progress.stage("choose scales", 1)
    fitted = settings.set_params(graph=graph).fit(measures)
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
    prepared = fitted._prepared
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


def _check_pairs(cohort: Cohort, min_cells: int) -> None:
    kept = int((cohort.sizes >= min_cells).sum())
    if kept < 2:
        raise InvalidInputError("at least two samples to compare", f"{kept} of at least {min_cells} cells")
    if kept > MOST_SAMPLES:
        raise InvalidInputError(
            f"at most {MOST_SAMPLES:,} samples for the distances of all pairs",
            f"{kept:,}, whose distances would take {8 * kept**2 / 1e9:,.0f} GB",
            "histograms, embed and nearest of heatmover.scale find the nearest of each",
        )
