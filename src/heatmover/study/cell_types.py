"""Annotate or cluster cells, compute the composition of samples; for studies, `pl`, `tl`, users; reads cohorts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from heatmover._base.progress import SILENT, Progress
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64, Int32, Int64
from heatmover._base.validation import as_array, check_integer, check_threads
from heatmover._base.words import counted, quoted
from heatmover.cohort import Cohort
from heatmover.cohort.samples import encode
from heatmover.cohort.subsample import draw_cells
from heatmover.errors import InvalidInputError, the_argument
from heatmover.graphs.centers import CenterSearch
from heatmover.study.parameters import StudyParameters

# A column with more than this number of distinct values contains names of cells or measurements, not cell types.
MOST_TYPES = 1_000
UNKNOWN = "not annotated"


class Annotation(NamedTuple):
    """The type of each cell: ``name`` of the column, and ``codes`` ``(n_cells,)`` as indices into ``types``."""

    name: str
    codes: Int32
    types: tuple[str, ...]


class CellMasses(NamedTuple):
    """Masses of the samples on cells, and the graph point that approximates each cell.

    Attributes
    ----------
    masses
        ``(n_samples, n_cells)``: mass of each cell in each sample. A column may also combine all cells of one type at
        one point of the graph.
    nodes
        ``(n_cells,)``: index of the graph point that approximates the cells of each column.
    counts
        ``(n_cells,)``: number of cells in each column; None if each column is one cell.
    """

    masses: sp.csr_array
    nodes: Int64
    counts: Int64 | None = None


def annotate(name: str, values: Any, n_cells: int) -> Annotation:
    """Make an annotation from the type of each cell; cells without a type get the type ``"not annotated"``.

    Parameters
    ----------
    name
        Name of the annotation.
    values
        ``(n_cells,)``: words, numbers or categories. Or a tuple (codes, names) as returned by `Cohort.annotation`,
        where the code -1 means missing.
    n_cells
        Expected number of cells.

    Examples
    --------
    >>> annotate("type", ["B", "T", None], 3).types
    ('B', 'T', 'not annotated')
    """
    if isinstance(values, tuple):
        codes, types = values
    else:
        column = values if hasattr(values, "dtype") else np.asarray(list(values), dtype=object)
        if isinstance(column, np.ma.MaskedArray):
            column = as_array("cells", column)
        if np.ndim(column) != 1:
            raise InvalidInputError("one cell type for each cell", f"an array of shape {np.shape(column)}")
        codes, types = encode([column])
    if codes.size != n_cells:
        raise InvalidInputError(
            f"one cell type for each of the {counted(n_cells, 'point')} of the graph",
            f"{codes.size}",
            "with landmarks, the points are the landmarks; comparison.landmarks.assign(points) returns the landmark of "
            "each cell",
        )
    if (codes < 0).any():
        unknown = UNKNOWN if UNKNOWN not in types else f"{UNKNOWN} (missing)"
        codes, types = np.where(codes < 0, len(types), codes).astype(np.int32), (*types, unknown)
    if not 2 <= len(types) <= MOST_TYPES:
        number = f"{len(types):,} in {quoted(name)}" + (f", only {quoted(types[0])}" if len(types) == 1 else "")
        raise InvalidInputError(f"2 to {MOST_TYPES:,} cell types", number, "choose an annotation such as a cell type")
    return Annotation(name, codes, types)


# Number of clusters for "auto": enough to separate the main cell types of a marker panel, and few enough for a readable
# table.
CLUSTERS = 10
# Number of cells for k-means, which then takes seconds for any cohort. Ten clusters have 2,000 cells each on average.
KMEANS_CELLS = 20_000
STARTS, MOST_MOVES = 5, 100
# A cluster is named by the features in which its center deviates most from the mean of all cells. The values are the
# smallest deviation (in standard deviations), the largest number of features, and the largest length of a feature name.
DISTINCT, MOST_NAMED, LONGEST = 0.5, 3, 24


def clusters_wanted(cohort: Cohort, parameters: StudyParameters) -> int | None:
    """Return the number of clusters to use as cell types; None if no clusters are requested."""
    if parameters.clusters is not None:
        return parameters.clusters
    # A column named "auto" takes precedence.
    return CLUSTERS if parameters.cells == "auto" and "auto" not in cohort.varying else None


def cluster_cells(
    cohort: Cohort,
    n_clusters: int = CLUSTERS,
    *,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Annotation:
    r"""Cluster the cells of a cohort by k-means on the features that the distances use.

    The centers are the best of five runs of k-means++ on up to 20,000 cells, drawn from all samples. Every cell is
    then assigned to its nearest center, in blocks. Sample metadata are not used, so tests of the clusters have the
    correct false-positive rate. The result does not depend on blocks or threads.

    Parameters
    ----------
    cohort
        Cohort from `heatmover.read_cohort`.
    n_clusters
        Number of clusters, at least two.
    random_state
        Seed of the draw of cells and of k-means++.
    n_jobs
        Number of threads; None for all cores.
    progress
        Receives the stage "cluster cells".

    Returns
    -------
    Annotation
        Annotation named ``"cluster"``; the largest cluster is ``cluster 1``. Unless the features are components, the
        name of a cluster lists up to three features that are higher (+) or lower (-) in the cluster than in all cells,
        the largest difference first.

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
    drawn = np.asarray(draw_cells(cohort, KMEANS_CELLS, random_state).points, dtype=np.float64)
    different = len(np.unique(drawn, axis=0))
    if different < n_clusters:
        raise InvalidInputError(
            f"at most {counted(different, 'cluster')}, one for each distinct cell",
            str(n_clusters),
            f"lower {the_argument('clusters')}",
        )
    # Imported here, because the import takes a while.
    from sklearn.cluster import KMeans

    random = np.random.RandomState(np.random.PCG64(random_state))
    with threadpool_limits(1):  # more threads would change the order of sums
        clusters = KMeans(n_clusters, n_init=STARTS, max_iter=MOST_MOVES, tol=0, random_state=random).fit(drawn)
    centers = np.asarray(clusters.cluster_centers_)
    search, codes = CenterSearch(centers), np.empty(cohort.n_cells, dtype=np.int32)
    done = 0
    for block, _ in cohort.chunks():
        codes[done : done + len(block)] = search.nearest(block, threads)[0]
        done += len(block)
        progress.advance(len(block))
    sizes = np.bincount(codes, minlength=n_clusters)
    order = np.lexsort((*centers.T[::-1], -sizes))
    place = np.empty(n_clusters, dtype=np.int32)
    place[order] = np.arange(n_clusters, dtype=np.int32)
    names = _cluster_names(cohort, centers[order], drawn)
    return annotate("cluster", (place[codes], names), cohort.n_cells)


def _cluster_names(cohort: Cohort, centers: Float64, drawn: Float64) -> tuple[str, ...]:
    """Return names of the clusters: their numbers and, if features are measurements, their most distinct features."""
    numbers = tuple(f"cluster {number}" for number in range(1, len(centers) + 1))
    if cohort.projection.components is not None or getattr(cohort.reader.base, "representation", "X") != "X":
        return numbers  # names of components would not describe a cluster
    spread = drawn.std(axis=0)
    scores = (centers - drawn.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    names = []
    for number, row in zip(numbers, scores, strict=True):
        order = [i for i in np.argsort(-np.abs(row), kind="stable")[:MOST_NAMED].tolist() if abs(row[i]) >= DISTINCT]
        signs = [f"{cohort.features[i][:LONGEST]}{'+' if row[i] > 0 else '-'}" for i in order]
        names.append(f"{number}: {' '.join(signs)}" if signs else number)
    return tuple(names)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SampleComposition(ReadOnlyArrays):
    """Shares of cell types in samples; part of a `Study` with ``cells``.

    Attributes
    ----------
    annotation
        Name of the annotation of cells.
    types
        Names of the cell types, sorted by decreasing mean share over samples, then by name.
    shares
        ``(n_samples, n_types)``: share of each type in each sample; every row sums to 1.

    Examples
    --------
    >>> import numpy as np
    >>> shares = SampleComposition("type", ("T", "B", "NK"), np.array([[0.6, 0.3, 0.1], [0.7, 0.1, 0.2]]))
    >>> shares.largest(1).types
    ('T', 'other (2 types)')
    >>> shares.largest(1).shares
    array([[0.6, 0.4],
           [0.7, 0.3]])
    """

    annotation: str
    types: tuple[str, ...]
    shares: Float64

    def largest(self, most: int = 10) -> SampleComposition:
        """Return the composition by the most common types, with all other types combined into one.

        Parameters
        ----------
        most
            Number of types to keep. If only one further type exists, it is kept too.
        """
        count = check_integer("the argument most", most, minimum=1)
        if len(self.types) <= count + 1:
            return self
        rest = f"other ({counted(len(self.types) - count, 'type')})"
        shares = np.column_stack([self.shares[:, :count], self.shares[:, count:].sum(axis=1)])
        return SampleComposition(self.annotation, (*self.types[:count], rest), shares)

    def __repr__(self) -> str:
        return (
            f"SampleComposition({counted(len(self.shares), 'sample')}, {counted(len(self.types), 'type')} "
            f"of {self.annotation})"
        )


def shares_of(annotation: Annotation, masses: sp.csr_array) -> SampleComposition:
    """Return the cell-type composition of samples.

    Parameters
    ----------
    annotation
        Type of each cell, or point, from `heatmover.study.annotate`.
    masses
        ``(n_samples, n_cells)``: mass of each cell in each sample.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.study import annotate
    >>> masses = sp.csr_array(np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
    >>> shares_of(annotate("type", ["B", "T", "T", "T"], 4), masses).shares
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    codes, n_types = annotation.codes, len(annotation.types)
    membership = sp.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, n_types))
    sums = np.asarray((masses @ membership).toarray(), dtype=np.float64)
    shares = sums / sums.sum(axis=1, keepdims=True)
    # Round the means, so that the order of equally common types does not depend on the order of cells in the file.
    mean = shares.mean(axis=0).round(12)
    order = sorted(range(n_types), key=lambda code: (-mean[code], annotation.types[code]))
    return SampleComposition(annotation.name, tuple(annotation.types[code] for code in order), shares[:, order])
