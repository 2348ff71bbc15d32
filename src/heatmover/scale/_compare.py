"""`compare_cohort`: what `compare` does, for cells that stay on disk, in bounded memory, on threads or a cluster."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from heatmover import __version__
from heatmover._progress import SILENT, Progress
from heatmover._validation import check_integer, check_memory, check_threads
from heatmover.cohort import Cohort
from heatmover.comparison import MOST_SAMPLES, Comparison, _check_model
from heatmover.distances import pairwise_distances
from heatmover.errors import InvalidInputError
from heatmover.estimator import DiffusionEMD
from heatmover.graphs import Graph
from heatmover.landmarking import LANDMARKS, LandmarkLoss, landmark_loss
from heatmover.measures import Measures, measures_from_labels, measures_from_weights
from heatmover.preparation import Preparation
from heatmover.scale._checkpoint import open_checkpoint
from heatmover.scale._execute import executor
from heatmover.scale._input import describe_input, plain
from heatmover.scale._landmarks import Draw, Histogrammed, count, draw, find_centers
from heatmover.scale._plan import LOSS_POINTS, Plan, make_plan
from heatmover.scale._spool import seekable
from heatmover.scale._stages import Stages
from heatmover.scale._tasks import Arrays

__all__ = ["compare_cohort"]

# Samples that a task embeds: the width of a block in which diffusion is fast. It does not depend on the memory, so
# that a resumed run finds the same pieces.
SAMPLES_AT_ONCE = 16
# Fewer cells per landmark than this leave nothing to save.
CELLS_PER_LANDMARK = 10


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
    _check_cohort(cohort, check_integer("min_cells", min_cells, minimum=1))
    n_landmarks = _check_landmarks(landmarks, cohort.n_cells, check_integer("n_neighbors", n_neighbors, minimum=1))
    passes = check_integer("passes", passes, minimum=0)
    seed = check_integer("random_state", random_state, minimum=0)
    settings = _check_model(model, random_state=seed, n_jobs=n_jobs)
    n_threads, budget = check_threads(settings.n_jobs), check_memory(memory)
    watcher = SILENT if progress is None else progress
    with executor(client, n_threads) as where:
        plan = make_plan(cohort, n_landmarks, n_neighbors, memory=budget, n_workers=where.n_workers)
        chosen = {"landmarks": n_landmarks, "passes": passes, "min_cells": min_cells, "n_neighbors": n_neighbors}
        manifest = {} if checkpoint is None else _manifest(cohort, settings, chosen | {"random_state": seed})
        with open_checkpoint(checkpoint, manifest, resume=resume, need=plan.checkpoint_bytes) as store:
            stages = Stages(where, store, watcher)
            with seekable(cohort, store.folder, watcher, block_rows=plan.block_rows) as cells:
                drawn = draw(cells, plan, stages, seed)
                centers = find_centers(
                    drawn.points, cells, plan, stages, passes=passes, seed=seed, n_threads=n_threads
                )  # fmt: skip
                found = count(centers, drawn.points, cells, plan, stages, n_threads)
            return _compare(cohort, found, drawn, settings, stages, (min_cells, n_neighbors, seed))


def _compare(
    cohort: Cohort,
    found: Histogrammed,
    drawn: Draw,
    settings: DiffusionEMD,
    stages: Stages,
    chosen: tuple[int, int, int],
) -> Comparison:
    """Go from histograms to distances."""
    min_cells, n_neighbors, seed = chosen
    kept = np.flatnonzero(cohort.sizes >= min_cells)
    names = [cohort.names[i] for i in kept]
    measures = measures_from_weights(found.counts[kept].astype(np.float64), names=names)
    stages.progress.stage("find neighbours", 1)
    graph = found.landmarks.graph(n_neighbors, random_state=seed, n_jobs=settings.n_jobs)
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


def _embed(fitted: DiffusionEMD, measures: Measures, stages: Stages) -> npt.NDArray[np.floating[Any]]:
    """Embed the samples, a few per task."""
    rows = fitted._check_rows(measures, reset=False)
    starts = range(0, rows.shape[0], SAMPLES_AT_ONCE)
    result: list[npt.NDArray[np.floating[Any]]] = []

    def fold(number: int, part: Arrays) -> None:
        block = part["embedding"]
        if not result:
            result.append(np.empty((rows.shape[0], block.shape[1]), dtype=block.dtype))
        result[0][starts[number] : starts[number] + len(block)] = block

    tasks = {
        number: partial(_embed_rows, rows=rows[start : start + SAMPLES_AT_ONCE]) for number, start in enumerate(starts)
    }
    weights = {number: min(SAMPLES_AT_ONCE, rows.shape[0] - start) for number, start in enumerate(starts)}
    stages.each("diffuse measures", tasks, weights, fold, partial(_same, fitted._prepared))
    return result[0]


def _same(prepared: Preparation) -> Preparation:
    return prepared


def _embed_rows(prepared: Preparation, rows: Any) -> Arrays:
    return {"embedding": prepared.embed(rows, n_threads=1, progress=SILENT)}


def _loss(
    found: Histogrammed, drawn: Draw, graph: Graph, fitted: DiffusionEMD, stages: Stages, seed: int
) -> LandmarkLoss:
    def make() -> Arrays:
        loss = landmark_loss(
            found.landmarks, drawn.loss_points, measures_from_labels(drawn.loss_codes), n_points=LOSS_POINTS,
            graph=graph, model=fitted, random_state=seed,
        )  # fmt: skip
        figures = [loss.spearman, loss.unexplained, loss.n_points, loss.n_samples, loss.n_landmarks]
        return {"figures": np.array(figures, dtype=np.float64)}

    spearman, unexplained, *numbers = stages.once("measure the loss", make)["figures"].tolist()
    return LandmarkLoss(spearman, unexplained, *(int(number) for number in numbers))


def _check_cohort(cohort: object, min_cells: int) -> None:
    if not isinstance(cohort, Cohort):
        raise InvalidInputError(
            "a Cohort", type(cohort).__name__, "heatmover.cohort.read_cohort makes one from a file, without loading it"
        )
    kept = int((cohort.sizes >= min_cells).sum())
    if kept < 2:
        raise InvalidInputError("at least two samples to compare", f"{kept} of at least {min_cells} cells")
    if kept > MOST_SAMPLES:
        raise InvalidInputError(
            f"at most {MOST_SAMPLES:,} samples for the distances of all pairs",
            f"{kept:,}, whose distances would take {8 * kept**2 / 1e9:,.0f} GB",
            "heatmover.scale.nearest finds the nearest of each in an embedding on disk",
        )


def _check_landmarks(landmarks: object, n_cells: int, n_neighbors: int) -> int:
    if not isinstance(landmarks, str):
        count = check_integer("landmarks", landmarks, minimum=1)
    elif landmarks == "auto":
        count = max(1, min(LANDMARKS, n_cells // CELLS_PER_LANDMARK))
    else:
        raise InvalidInputError("landmarks to be a whole number or 'auto'", repr(landmarks))
    if count <= n_neighbors:
        raise InvalidInputError(
            f"more landmarks than n_neighbors={n_neighbors}", f"{count} for {n_cells} cells",
            "use fewer neighbours, or hm.compare, which needs no landmarks for few cells",
        )  # fmt: skip
    return count


def _manifest(cohort: Cohort, settings: DiffusionEMD, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return what the result depends on; the number of threads and the budget are not among it."""
    model = {key: value for key, value in settings.get_params(deep=False).items() if key not in {"graph", "n_jobs"}}
    return {
        "heatmover": {"version": __version__},
        "input": describe_input(cohort),
        "settings": plain(chosen | {f"model {key}": value for key, value in model.items()}),
    }


def describe_plan(plan: Plan) -> str:
    """Return the bound of every stage in words."""
    stages = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in plan.bounds.items())
    return f"{len(plan.pieces)} pieces of {plan.piece_rows:,} cells, {plan.block_rows:,} at a time; {stages}"
