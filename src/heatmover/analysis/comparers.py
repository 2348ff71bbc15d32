"""What compares the samples of a cohort for a study: all cells in memory here, in pieces in `heatmover.scale`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import scipy.sparse as sp

from heatmover._progress import Progress
from heatmover._typing import FloatArray, Int32, Intp
from heatmover._validation import check_threads
from heatmover.analysis.cautions import MOST_CELLS, CellLook, look_at
from heatmover.analysis.cell_types import Annotation, CellMasses
from heatmover.analysis.comparison import Comparison, compare
from heatmover.analysis.parameters import StudyParameters
from heatmover.analysis.units import check_units
from heatmover.cohort import Cohort
from heatmover.cohort.draw import EqualDraw, draw_from, drawn_cohort, equal_count
from heatmover.cohort.values import block_rows
from heatmover.measures import measures_from_weights

__all__ = ["Compared", "Comparer", "InMemory", "draw_equally"]


class Compared(NamedTuple):
    """Samples compared, and their cells by type.

    Attributes
    ----------
    comparison
        Of the samples.
    annotation
        The type of each cell, or of each group of equal cells; None if none was asked for.
    cells
        The cells, or groups of cells, for which the points of the graph stand; None if they are the points.
    features, feature_names
        Values of the cells, or of the landmarks of groups of cells, ``(n_cells, n_features)``, and their names; None if
        they are not known.
    look
        Figures of some of the cells, for cautions; None if nobody looked.

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
    features: FloatArray | None = None
    feature_names: tuple[str, ...] = ()
    look: CellLook | None = None


class Comparer(Protocol):
    """Compares samples; a study calls `check` before anything is read and `compare` once.

    Examples
    --------
    Whatever has the three methods is a comparer. This one allows few landmarks only:

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
        """Raise if this comparer cannot do what is asked for."""

    def compare(
        self,
        cohort: Cohort,
        kept: Intp,
        annotation: Annotation | None,
        parameters: StudyParameters,
        progress: Progress,
    ) -> Compared:
        """Compare the samples of a cohort.

        Parameters
        ----------
        cohort
            From `heatmover.read_cohort`.
        kept
            Which of its samples, ascending.
        annotation
            The type of each cell of the cohort, ``(n_cells,)``; None if nobody asks for types.
        parameters
            Of the study.
        progress
            Told of all stages.
        """

    def record(self) -> Mapping[str, Any]:
        """Return how it compares, as plain values for JSON."""


def draw_equally(
    cohort: Cohort,
    kept: Intp,
    annotation: Annotation | None,
    equal_cells: bool | int,
    *,
    random_state: int,
    progress: Progress,
) -> tuple[Cohort, Intp, Annotation | None, EqualDraw | None]:
    """Return the cells to compare: all, or equally many of every sample if that is asked for.

    Parameters
    ----------
    cohort, kept, annotation, progress
        As in `Comparer.compare`.
    equal_cells, random_state
        As in `StudyParameters`.

    Returns
    -------
    cohort, kept, annotation
        Of the cells drawn.
    drawn : EqualDraw or None
        Which they are; None for all.
    """
    count = equal_count(equal_cells, cohort.sizes[kept], [cohort.names[i] for i in kept])
    if not count:
        return cohort, kept, annotation, None
    part, drawn = drawn_cohort(cohort, kept, count, random_state=random_state, progress=progress)
    own = None if annotation is None else annotation._replace(codes=annotation.codes[drawn.rows])
    return part, np.arange(len(kept)), own, drawn


def _some(points: FloatArray, codes: Int32, seed: int) -> FloatArray:
    """Return the cells that tell of all, those that `draw_cells` draws; in blocks, as hashes take memory."""
    if len(points) <= MOST_CELLS:
        return points
    size = block_rows(points.shape[1])
    blocks = ((points[i : i + size], codes[i : i + size]) for i in range(0, len(points), size))
    return draw_from(blocks, int(codes.max()) + 1, MOST_CELLS, seed)[0]


@final
@dataclass(frozen=True)
class InMemory:
    """Compares samples whose cells are all in memory at once.

    Attributes
    ----------
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Examples
    --------
    >>> InMemory(n_jobs=2).record()
    {'how': 'in memory'}
    """

    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_threads(self.n_jobs)

    def check(self, parameters: StudyParameters) -> None:
        """Raise if units are asked for and the package that solves pairs exactly is missing."""
        check_units(parameters.units)

    def compare(
        self,
        cohort: Cohort,
        kept: Intp,
        annotation: Annotation | None,
        parameters: StudyParameters,
        progress: Progress,
    ) -> Compared:
        """Read all cells and compare the samples, see `heatmover.compare`."""
        cohort, kept, annotation, drawn = draw_equally(
            cohort, kept, annotation, parameters.equal_cells, random_state=parameters.random_state, progress=progress
        )
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
        comparison = compare(
            points, samples, n_neighbors=parameters.n_neighbors, landmarks=parameters.landmarks,
            bias=parameters.bias, n_bootstrap=parameters.n_bootstrap, units=parameters.units,
            random_state=parameters.random_state, n_jobs=self.n_jobs, progress=progress,
        )  # fmt: skip
        comparison = replace(comparison, drawn=drawn)
        if annotation is None:
            return Compared(comparison, look=look)
        annotation = annotation._replace(codes=annotation.codes[inside])
        marks = comparison.landmarks
        nodes = None if marks is None else marks.assign(points, n_jobs=self.n_jobs)
        cells = None if nodes is None else CellMasses(samples.masses, nodes)
        return Compared(comparison, annotation, cells, points, cohort.features, look)

    def record(self) -> Mapping[str, Any]:
        """Return how it compares, as plain values for JSON."""
        return {"how": "in memory"}
