"""`cluster_cells`: types for cells that nobody annotated, such as those of FCS files."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._progress import SILENT, Progress
from heatmover._typing import Float64, Int64
from heatmover._validation import check_integer, check_threads
from heatmover._words import counted
from heatmover.analysis.cell_types import Annotation, annotate
from heatmover.analysis.parameters import StudyParameters
from heatmover.cohort import Cohort
from heatmover.cohort.draw import draw_cells
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs.centers import CenterSearch, move_centers

__all__ = ["cluster_cells", "cluster_note", "clusters_wanted"]

# How many clusters "auto" makes: enough to part the main types of a panel, few enough to read.
CLUSTERS = 10
# Cells that k-means looks at: seconds for any cohort, and 2,000 for each of ten clusters.
CELLS_LOOKED_AT = 20_000
STARTS, MOST_MOVES = 5, 100
# A cluster is named by the features in which its centre is this many standard deviations from the mean of all cells.
DISTINCT, MOST_NAMED, LONGEST = 0.5, 3, 24


def clusters_wanted(cohort: Cohort, parameters: StudyParameters) -> int | None:
    """Return how many clusters stand for cell types, or None if there are to be none."""
    if parameters.clusters is not None:
        return parameters.clusters
    # A column may have this name.
    return CLUSTERS if parameters.cells == "auto" and "auto" not in cohort.varying else None


def cluster_cells(
    cohort: Cohort,
    n_clusters: int = CLUSTERS,
    *,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Annotation:
    r"""Put the cells of a cohort into clusters, by k-means on the features that the distances use.

    The centres are the best of five runs from k-means++ on up to 20,000 cells, drawn from all samples; then every cell
    goes to its nearest, in blocks. Nothing of the samples' variables is looked at, so that tests of the clusters keep
    their level. The result does not depend on blocks or threads.

    Parameters
    ----------
    cohort
        From `heatmover.read_cohort`.
    n_clusters
        How many; at least two.
    random_state
        Seed of the cells drawn and of the starts.
    n_jobs
        Threads; None for all cores.
    progress
        Told of the stage "cluster cells".

    Returns
    -------
    Annotation
        Named ``"cluster"``; the largest cluster is ``cluster 1``. A name goes on with up to three features of which the
        cluster has more (+) or less (-) than all cells, the most distinct first; not if the features are components.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from heatmover.cohort import read_cohort
    >>> rows = [f"s{i % 2},{9 * (i % 3 > 0) + i / 50},{i / 50}" for i in range(30)]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,CD4,CD8", *rows]))
    >>> cluster_cells(read_cohort(path, sample_key="sample"), 2).types
    ('cluster 1: CD4+', 'cluster 2: CD4-')
    """
    n_clusters = check_integer("clusters", n_clusters, minimum=2)
    threads = check_threads(n_jobs)
    progress.stage("cluster cells", cohort.n_cells)
    drawn = np.asarray(draw_cells(cohort, CELLS_LOOKED_AT, random_state)[0], dtype=np.float64)
    different = len(np.unique(drawn, axis=0))
    if different < n_clusters:
        raise InvalidInputError(
            f"{argument('clusters')} of at most {different}, the number of different cells", str(n_clusters)
        )
    centers = _centers(drawn, n_clusters, random_state, threads)
    search, codes = CenterSearch.for_many(centers, cohort.n_cells), np.empty(cohort.n_cells, dtype=np.int32)
    done = 0
    for block, _ in cohort.chunks():
        codes[done : done + len(block)] = search.nearest(block, threads)[0]
        done += len(block)
        progress.advance(len(block))
    sizes = np.bincount(codes, minlength=n_clusters)
    order = np.lexsort((*centers.T[::-1], -sizes))
    place = np.empty(n_clusters, dtype=np.int32)
    place[order] = np.arange(n_clusters, dtype=np.int32)
    names = _names(cohort, centers[order], drawn)
    return annotate("cluster", (place[codes], names), cohort.n_cells)


def _centers(points: Float64, n_clusters: int, seed: int, threads: int) -> Float64:
    """Return the centres of the best of several runs of k-means, each until no cell changes its cluster."""
    best, least = points[:n_clusters], np.inf
    for run in range(STARTS):
        centers = _start(points, n_clusters, np.random.default_rng([seed, run]))
        before = np.full(len(points), -1)
        for _ in range(MOST_MOVES):
            nearest, squares = CenterSearch(centers).nearest(points, threads)
            if np.array_equal(nearest, before):
                break
            centers, before = _moved(points, nearest, squares, centers), nearest
        total = float(squares.sum())
        if total < least:
            best, least = centers, total
    return best


def _moved(points: Float64, nearest: Int64, squares: Float64, centers: Float64) -> Float64:
    """Return the mean of each cluster; one that lost all its cells begins anew at the cell farthest from its centre."""
    moved = move_centers(points, nearest, centers)
    empty = np.flatnonzero(np.bincount(nearest, minlength=len(centers)) == 0)
    moved[empty] = points[np.argsort(-squares, kind="stable")[: empty.size]]
    return moved


def _start(points: Float64, n_clusters: int, rng: np.random.Generator) -> Float64:
    """Return cells drawn by k-means++ (Arthur and Vassilvitskii 2007): each far from those before, with luck."""
    chosen = [int(rng.integers(len(points)))]
    squares = np.square(points - points[chosen[0]]).sum(axis=1)
    for _ in range(n_clusters - 1):
        heights = np.cumsum(squares)
        # Below the last height, and at a cell that is none of those chosen: their own steps have no height.
        place = int(np.searchsorted(heights, rng.random() * heights[-1], side="right"))
        chosen.append(min(place, len(points) - 1))
        squares = np.minimum(squares, np.square(points - points[chosen[-1]]).sum(axis=1))
    return points[chosen]


def _names(cohort: Cohort, centers: Float64, drawn: Float64) -> tuple[str, ...]:
    numbers = [f"cluster {number}" for number in range(1, len(centers) + 1)]
    if not _measured(cohort):
        return tuple(numbers)
    spread = drawn.std(axis=0)
    scores = (centers - drawn.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return tuple(f"{number}{_distinct(cohort.features, row)}" for number, row in zip(numbers, scores, strict=True))


def _measured(cohort: Cohort) -> bool:
    """Tell whether features are measurements with names, not components without a meaning of their own."""
    reader: Any = cohort.reader
    while hasattr(reader, "inner"):
        reader = reader.inner
    return cohort.projection.components is None and getattr(reader, "representation", "X") == "X"


def _distinct(features: tuple[str, ...], scores: Float64) -> str:
    order = [int(i) for i in np.argsort(-np.abs(scores), kind="stable")[:MOST_NAMED] if abs(scores[i]) >= DISTINCT]
    signs = [f"{features[i][:LONGEST]}{'+' if scores[i] > 0 else '-'}" for i in order]
    return f": {' '.join(signs)}" if signs else ""


def cluster_note(annotation: Annotation) -> str:
    """Return what a reader should know of clusters that stand for cell types."""
    return (
        f"Nobody annotated the cells: k-means put them into {counted(len(annotation.types), 'cluster')}, whose names "
        "tell in which features they have more (+) or less (-) than all cells."
    )
