"""Define `Comparer`, how a study compares samples, and `InMemory`, which reads all cells; for users, studies, `cli`.

A comparer reads the files of a cohort. `InMemory` writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.progress import Progress
from heatmover._base.types import FloatArray, Int32, Intp
from heatmover._base.validation import check_threads
from heatmover.attribution.pseudobulk import Pseudobulk
from heatmover.cohort import Cohort
from heatmover.cohort.subsample import EqualDraw, draw_from, drawn_cohort, equal_count
from heatmover.cohort.values import block_rows
from heatmover.measures import measures_from_weights
from heatmover.study.cautions import MOST_CELLS, CellLook, look_at
from heatmover.study.cell_types import Annotation, CellMasses
from heatmover.study.comparison import Comparison, check_units, compare
from heatmover.study.genes import average_genes
from heatmover.study.parameters import COMPARED, StudyParameters


class Compared(NamedTuple):
    """Result of a `Comparer`: the comparison of the samples, and the types and features of their cells.

    Attributes
    ----------
    comparison
        Comparison of the samples.
    annotation
        Type of each cell, or of each group of cells that share a type and a landmark; None if types were not requested.
    cells
        Samples as masses of cells (or of groups of cells), with the landmark of each cell; None if the points of the
        graph are the cells.
    features, feature_names
        Means of genes over the cells of each type in each sample. Without genes: feature values of each cell, or of the
        landmark of each group of cells, ``(n_cells, n_features)``, and feature names. None if not available.
    look
        Summary of drawn cells, for cautions; None if not computed.
    rows
        ``(n_points,)``: row number of the cell at each point of the graph; None if landmarks approximate the cells.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.gaussians(4, points_per_measure=30)
    >>> Compared(hm.compare(data.points, data.labels, n_neighbors=8)).annotation is None
    True
    """

    comparison: Comparison
    annotation: Annotation | None = None
    cells: CellMasses | None = None
    features: Pseudobulk | FloatArray | None = None
    feature_names: tuple[str, ...] = ()
    look: CellLook | None = None
    rows: Intp | None = None


class Comparer(Protocol):
    """A method of comparing samples. A study calls `check` before it reads cells, and then `compare` once.

    Examples
    --------
    Any object with these three methods is a comparer. This one limits the number of landmarks:

    >>> class Few:
    ...     def check(self, parameters):
    ...         if parameters.landmarks == "auto" or parameters.landmarks > 1000:
    ...             raise ValueError("at most 1,000 landmarks")
    ...     def compare(self, *given):
    ...         return InMemory().compare(*given)
    ...     def record(self):
    ...         return {"how": "with few landmarks"}
    >>> comparer: Comparer = Few()
    """

    def check(self, parameters: StudyParameters) -> None:
        """Raise if this comparer does not support these parameters."""

    def compare(
        self, cohort: Cohort, kept: Intp, annotation: Annotation | None, parameters: StudyParameters, progress: Progress
    ) -> Compared:
        """Compare the samples of a cohort.

        Parameters
        ----------
        cohort
            Cohort from `heatmover.read_cohort`.
        kept
            Indices of the samples to compare, ascending.
        annotation
            Type of each cell of the cohort, ``(n_cells,)``; None if types are not requested.
        parameters
            Parameters of the study.
        progress
            Receives the progress of every stage.
        """

    def record(self) -> Mapping[str, Any]:
        """Return a description of the method, as plain values for JSON."""


def draw_equally(
    cohort: Cohort, kept: Intp, annotation: Annotation | None, parameters: StudyParameters, progress: Progress
) -> tuple[Cohort, Intp, Annotation | None, EqualDraw | None]:
    """Draw the same number of cells from every sample if ``equal_cells`` is set; otherwise change nothing.

    Parameters
    ----------
    cohort, kept, annotation, parameters, progress
        As in `Comparer.compare`.

    Returns
    -------
    cohort, kept, annotation
        The arguments, limited to the drawn cells.
    drawn : EqualDraw or None
        Rows of the drawn cells; None if all cells are used.
    """
    count = equal_count(parameters.equal_cells, cohort.sizes[kept], [cohort.names[i] for i in kept])
    if not count:
        return cohort, kept, annotation, None
    smaller, drawn = drawn_cohort(cohort, kept, count, random_state=parameters.random_state, progress=progress)
    own = None if annotation is None else annotation._replace(codes=annotation.codes[drawn.rows])
    return smaller, np.arange(len(kept)), own, drawn


def _some(points: FloatArray, codes: Int32, seed: int) -> FloatArray:
    """Draw the same cells as `draw_cells`, but block by block, because hashes of all cells would need much memory."""
    if len(points) <= MOST_CELLS:
        return points
    size = block_rows(points.shape[1])
    blocks = ((points[i : i + size], codes[i : i + size]) for i in range(0, len(points), size))
    return draw_from(blocks, int(codes.max()) + 1, MOST_CELLS, seed).points


@final
@dataclass(frozen=True)
class InMemory:
    """Comparer that reads all cells into memory.

    Attributes
    ----------
    n_jobs
        Number of threads; None for all cores. Results do not depend on this number.

    Examples
    --------
    >>> InMemory(n_jobs=2).record()
    {'how': 'in memory'}
    """

    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_threads(self.n_jobs)

    def check(self, parameters: StudyParameters) -> None:
        """Raise if units are requested but the package for exact distances is not installed."""
        check_units(parameters.units)

    def compare(
        self, cohort: Cohort, kept: Intp, annotation: Annotation | None, parameters: StudyParameters, progress: Progress
    ) -> Compared:
        """Read all cells and compare the samples; see `heatmover.compare`."""
        cohort, kept, annotation, drawn = draw_equally(cohort, kept, annotation, parameters, progress)
        # First, so that bad values of genes raise an error before the distances are computed.
        genes = average_genes(cohort, kept, annotation, parameters.genes, progress)
        place = np.full(len(cohort.names), -1)
        place[kept] = np.arange(len(kept))
        codes = place[cohort.codes]
        inside = codes >= 0
        points = cohort.points() if inside.all() else cohort.points()[inside]
        codes = codes[inside]
        look = look_at(_some(points, cohort.codes[inside], parameters.random_state))
        shape = (len(kept), codes.size)
        weights = sp.csr_array((np.ones(codes.size), (codes, np.arange(codes.size))), shape=shape)
        samples = measures_from_weights(weights, names=[cohort.names[i] for i in kept])
        # The cells were already drawn above, together with their annotation.
        settings = {name: getattr(parameters, name) for name in COMPARED} | {"equal_cells": False}
        comparison = replace(compare(points, samples, n_jobs=self.n_jobs, progress=progress, **settings), drawn=drawn)
        marks = comparison.landmarks
        rows = None if marks is not None else np.flatnonzero(inside) if drawn is None else drawn.rows
        if annotation is None:
            return Compared(comparison, look=look, rows=rows)
        annotation = annotation._replace(codes=annotation.codes[inside])
        nodes = None if marks is None else marks.assign(points, n_jobs=self.n_jobs)
        cells = None if nodes is None else CellMasses(samples.masses, nodes)
        features, names = (points, cohort.features) if genes is None else (genes, genes.features)
        return Compared(comparison, annotation, cells, features, names, look, rows)

    def record(self) -> Mapping[str, Any]:
        """Return a description of the method, as plain values for JSON."""
        return {"how": "in memory"}
