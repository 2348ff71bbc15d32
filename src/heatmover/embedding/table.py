"""The embedding as one table: the features of every point, looked up instead of diffused.

The embedding is linear, so a measure's row is the mean of its points' rows. A feature of all points at once is one
diffusion of the region's indicator with the transposed operator: as many diffusions as there are features, however many
measures follow. A sparse measure then costs its number of points times the number of features, and nothing else.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._progress import SILENT, Progress
from heatmover._threads import in_threads
from heatmover._typing import Intp
from heatmover.diffusion.base import Block, Diffuser
from heatmover.diffusion.recurrence import WIDEST_BLOCK
from heatmover.diffusion.regions import Regions
from heatmover.embedding.definition import Layout
from heatmover.errors import InvalidInputError

__all__ = ["FeatureTable"]

# Features of a group: 64 of 3,000 points are 0.8 MB of float32, which stay in a second-level cache while the measures
# pass by.
GROUP = 64
# Measures that pass by one group before the next: their rows of the result are written in whole cache lines.
MEASURES = 1024


@final
class FeatureTable:
    """The features of every point of a graph.

    Parameters
    ----------
    transposed
        Diffuses with the other density: functions where the embedding diffuses mass, and the other way round.
    layout
        Of the embedding; it must have regions.
    dtype, n_threads, progress
        Of the table; to use; to report to (one step per feature).
    """

    def __init__(
        self,
        transposed: Diffuser,
        layout: Layout,
        *,
        dtype: npt.DTypeLike,
        n_threads: int,
        progress: Progress = SILENT,
    ) -> None:
        assert layout.regions is not None
        self.n_features = layout.n_features
        shape = (-(-self.n_features // GROUP), layout.n_points, GROUP)
        self._groups: Block = np.zeros(shape, dtype=dtype)

        def fill(job: tuple[int, int, int]) -> None:
            position, start, stop = job
            assert layout.regions is not None
            columns = _diffused_indicators(transposed, layout.regions[position], layout, position, start, stop)
            self._store(layout.edges[position] + start, columns)
            progress.advance(stop - start)

        jobs = [
            (position, start, stop)
            for position, regions in enumerate(layout.regions)
            for start, stop in pairwise([*range(0, regions.count, WIDEST_BLOCK), regions.count])
        ]
        in_threads(fill, jobs, n_threads)

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._groups.nbytes

    def measures_within(self, memory: int) -> int:
        """Return how many measures can be looked up at a time within ``memory`` bytes, or raise if not even one can."""
        # A block and the one before it, which a loop still holds.
        row = (2 * self.n_features + GROUP) * self._groups.itemsize
        if row > memory:
            raise InvalidInputError(
                f"memory of at least {row:,} bytes, which one measure needs", f"{memory:,}", "allow more"
            )
        return memory // row

    def rows(self, measures: Any, *, n_threads: int, progress: Progress = SILENT) -> Block:
        """Embed measures ``(n_measures, n_points)``, dense or CSR -> ``(n_measures, n_features)``.

        A row's bits depend on its own measure only.
        """
        from heatmover._compiled.features import add_table_rows

        matrix = sp.csr_array(measures)
        data = matrix.data.astype(self._groups.dtype)
        n_measures = matrix.shape[0]
        result = np.empty((n_measures, self.n_features), dtype=self._groups.dtype)

        def fill(start: int) -> None:
            stop = min(start + MEASURES, n_measures)
            indptr = matrix.indptr[start : stop + 1]
            for number, group in enumerate(self._groups):
                part = np.empty((stop - start, GROUP), dtype=group.dtype)
                add_table_rows(indptr, matrix.indices, data, group, part)
                begin = number * GROUP
                result[start:stop, begin : begin + GROUP] = part[:, : self.n_features - begin]
            progress.advance(stop - start)

        in_threads(fill, range(0, n_measures, MEASURES), n_threads)
        return result

    def transposed(self, features: Block) -> Block:
        """Apply the transpose of `rows`: ``(n_rows, n_features)`` -> ``(n_rows, n_points)``."""
        result = np.zeros((len(features), self._groups.shape[1]), dtype=self._groups.dtype)
        for number, group in enumerate(self._groups):
            part = features[:, number * GROUP : (number + 1) * GROUP]
            result += part @ group[:, : part.shape[1]].T
        return result

    def _store(self, first: int, columns: Block) -> None:
        """Write features ``first``, ``first + 1``, ... of all points; they may lie in several groups."""
        last = first + columns.shape[1]
        for group in range(first // GROUP, -(-last // GROUP)):
            start, stop = max(first, group * GROUP), min(last, (group + 1) * GROUP)
            self._groups[group, :, start - group * GROUP : stop - group * GROUP] = columns[
                :, start - first : stop - first
            ]


def _diffused_indicators(
    transposed: Diffuser, regions: Regions, layout: Layout, position: int, start: int, stop: int
) -> Block:
    """Return features ``start`` to ``stop`` of one block for every point, ``(n_points, stop - start)``."""
    indicators = (regions.labels[:, None] == np.arange(start, stop)).astype(np.float64)
    shares = layout.matrix[position]
    result: Block = np.zeros_like(indicators)
    for part in _runs(np.flatnonzero(shares)):
        scales = range(layout.scales[part[0]], layout.scales[part[-1]] + 1)
        for index, density in zip(part, transposed.diffuse(indicators, scales), strict=True):
            result += shares[index] * density
    return result


def _runs(indices: Intp) -> list[Intp]:
    """Split ascending indices into runs of neighbours, which one recurrence serves."""
    return np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
