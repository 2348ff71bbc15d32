"""The embedding as one table: the features of every point, looked up instead of diffused.

The embedding is linear, so a measure's row is the mean of its points' rows. A feature of all points at once is one
diffusion of the region's indicator with the transposed operator: as many diffusions as there are features, however many
measures follow. A sparse measure then costs its number of points times the number of features that these reach.

Few features are far-reaching. Within one step heat reaches a region from the points next to it only, and every other
point has the same value, nearly zero, the region's background. Such features, most of them, are kept as their
backgrounds and the few values that differ: of 8,849 features of 25,088 points on a sphere, 7,296 are, by 85 values a
point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.progress import SILENT, Progress
from heatmover._base.storage.record import Record, matrix_record
from heatmover._base.threads import in_threads
from heatmover._base.types import Intp
from heatmover.diffusion.chebyshev import WIDEST_BLOCK
from heatmover.diffusion.operator import Block, Diffuser
from heatmover.embedding.definition import Layout, Regions
from heatmover.errors import InvalidInputError

__all__ = ["FeatureTable"]

# Features of a group, which are diffused together: 64 of 3,000 points are 0.8 MB of float32, which stay in a
# second-level cache while the measures pass by.
GROUP = min(64, WIDEST_BLOCK)
# Measures that pass by one group before the next.
MEASURES = 1024
# A group is kept by its backgrounds where at most this share of its values differs from them: such a value takes some
# ten times as long as one of a whole group, 1.5 ns and 0.1.
SPARSE = 0.1
# Points whose median is taken for a feature's background. Were it another value, more values would differ from it, and
# nothing else would change.
SAMPLE = 63
# Values are equal that rounding alone tells apart: three operations make a background of what is the same everywhere.
ROUNDINGS = 4


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
        self._dtype = np.dtype(dtype)

        def fill(job: tuple[int, int, int]) -> _Group:
            position, start, stop = job
            assert layout.regions is not None
            columns = _diffused_indicators(transposed, layout.regions[position], layout, position, start, stop)
            progress.advance(stop - start)
            return _Group.of(layout.edges[position] + start, np.ascontiguousarray(columns, dtype=self._dtype))

        jobs = [
            (position, start, stop)
            for position, regions in enumerate(layout.regions)
            for start, stop in pairwise([*range(0, regions.count, GROUP), regions.count])
        ]
        groups = in_threads(fill, jobs, n_threads)
        self._background: Block = np.concatenate([group.background for group in groups])
        self._whole = [(group.first, group.values) for group in groups if isinstance(group.values, np.ndarray)]
        self._scattered = _side_by_side(groups, layout.n_points)

    def to_record(self) -> Record:
        """Return the table as a record that a store can hold."""
        none: list[Block] = [np.empty(0, dtype=self._dtype)]
        arrays = {
            "background": self._background,
            "firsts": np.array([first for first, _ in self._whole], dtype=np.int64),
            "widths": np.array([values.shape[1] for _, values in self._whole], dtype=np.int64),
            # One array: a file for each of some hundred groups takes longer than their numbers.
            "whole": np.concatenate(none + [values.ravel() for _, values in self._whole]),
        }
        return Record({"dtype": self._dtype.name}, arrays, {"scattered": matrix_record(self._scattered)})

    @classmethod
    def from_record(cls, record: Record, layout: Layout) -> FeatureTable:
        """Return the table of a record for this layout, or raise if it is none."""
        table = cls.__new__(cls)  # the constructor would diffuse all regions again
        table.n_features = layout.n_features
        table._dtype = np.dtype(record.text("dtype", ("float32", "float64")))
        table._background = record.array("background", table._dtype, (layout.n_features,))
        table._scattered = record.matrix("scattered", (layout.n_points, layout.n_features))
        firsts = record.places("firsts", np.int64, (None,), layout.n_features).tolist()
        widths = record.places("widths", np.int64, (len(firsts),), layout.n_features + 1, least=1).tolist()
        whole = record.array("whole", table._dtype, (layout.n_points * sum(widths),))
        if any(first + width > layout.n_features for first, width in zip(firsts, widths, strict=True)):
            raise InvalidInputError(f"stored features up to {layout.n_features}", "features beyond")
        parts = np.split(whole, np.cumsum(np.array(widths, dtype=np.int64) * layout.n_points)[:-1]) if widths else []
        table._whole = [
            (first, part.reshape(layout.n_points, width))
            for first, width, part in zip(firsts, widths, parts, strict=True)
        ]
        return table

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        sparse = self._scattered
        arrays = [self._background, sparse.data, sparse.indices, sparse.indptr, *(values for _, values in self._whole)]
        return sum(array.nbytes for array in arrays)

    def measures_within(self, memory: int) -> int:
        """Return how many measures can be looked up at a time within ``memory`` bytes, or raise if not even one can."""
        # A block and the one before it, which a loop still holds.
        row = 2 * self.n_features * self._dtype.itemsize
        if row > memory:
            raise InvalidInputError(
                f"memory of at least {row:,} bytes, which one measure needs", f"{memory:,}", "allow more"
            )
        return memory // row

    def values_met(self, measures: sp.csr_array) -> int:
        """Return how many values of the table `rows` adds up for these measures: what it has to do."""
        whole = sum(values.shape[1] for _, values in self._whole)
        return int((np.diff(self._scattered.indptr) + whole)[measures.indices].sum(dtype=np.int64))

    def rows(self, measures: Any, *, n_threads: int, progress: Progress = SILENT) -> Block:
        """Embed measures ``(n_measures, n_points)``, dense or CSR -> ``(n_measures, n_features)``.

        A row's bits depend on its own measure only.
        """
        from heatmover._base.compiled.features import add_scattered_rows, add_table_rows

        matrix = sp.csr_array(measures)
        data = matrix.data.astype(self._dtype)
        n_measures = matrix.shape[0]
        result = np.empty((n_measures, self.n_features), dtype=self._dtype)
        # Columns without a sign spare the kernel a look at each: 1.4 ns a value in place of 1.8.
        scattered = self._scattered.indptr, self._scattered.indices.astype(np.uint32), self._scattered.data

        def fill(start: int) -> None:
            part = slice(start, min(start + MEASURES, n_measures))
            some = matrix.indptr[part.start : part.stop + 1], matrix.indices, data
            add_scattered_rows(*some, *scattered, self._background, result[part])
            for first, values in self._whole:
                add_table_rows(*some, values, first, result[part])
            progress.advance(part.stop - part.start)

        in_threads(fill, range(0, n_measures, MEASURES), n_threads)
        return result

    def transposed(self, features: Block) -> Block:
        """Apply the transpose of `rows`: ``(n_rows, n_features)`` -> ``(n_rows, n_points)``."""
        everywhere = (features @ self._background)[:, None]
        result = np.ascontiguousarray((self._scattered @ features.T).T, dtype=self._dtype) + everywhere
        for first, values in self._whole:
            result += features[:, first : first + values.shape[1]] @ values.T
        return result


@final
@dataclass(frozen=True, eq=False)
class _Group:
    """Features ``first``, ``first + 1``, ... of every point.

    Attributes
    ----------
    first
        Number of the first.
    background
        What most points have of each, ``(n_features,)``; zero where ``values`` are whole.
    values
        ``(n_points, n_features)``: what to add, whole or, where little differs from the background, sparse.
    """

    first: int
    background: Block
    values: Block | sp.csr_array

    @classmethod
    def of(cls, first: int, columns: Block) -> _Group:
        """Keep columns ``(n_points, n_features)`` in the form that is cheaper to add."""
        sample = columns[:: -(-len(columns) // SAMPLE)]
        background = np.median(sample, axis=0)
        beyond = ROUNDINGS * np.finfo(columns.dtype).eps * np.abs(background)
        # A look at a few points spares most far-reaching features the look at all.
        if np.count_nonzero(np.abs(sample - background) > beyond) > 3 * SPARSE * sample.size:
            return cls(first, np.zeros_like(background), columns)
        differs = np.abs(columns - background) > beyond
        if np.count_nonzero(differs) > SPARSE * differs.size:
            return cls(first, np.zeros_like(background), columns)
        return cls(first, background, sp.csr_array(np.where(differs, columns - background, 0)))


def _side_by_side(groups: Sequence[_Group], n_points: int) -> sp.csr_array:
    """Return the sparse values of all groups, ``(n_points, n_features)``; whole ones leave their columns empty."""
    blocks = [
        sp.csr_array((n_points, group.background.size), dtype=group.background.dtype)
        if isinstance(group.values, np.ndarray)
        else group.values
        for group in groups
    ]
    joined = sp.csr_array(sp.hstack(blocks, format="csr"))
    joined.sort_indices()
    return joined


def _diffused_indicators(
    transposed: Diffuser, regions: Regions, layout: Layout, position: int, start: int, stop: int
) -> Block:
    """Return features ``start`` to ``stop`` of one block for every point, ``(n_points, stop - start)``."""
    # Zeros and ones are exact in single precision, which is half to move; what is made of them is not.
    indicators = (regions.labels[:, None] == np.arange(start, stop)).astype(np.float32)
    shares = layout.matrix[position]
    result: Block = np.zeros(indicators.shape)
    for part in _runs(np.flatnonzero(shares)):
        scales = range(layout.scales[part[0]], layout.scales[part[-1]] + 1)
        for index, density in zip(part, transposed.diffuse(indicators, scales), strict=True):
            result += shares[index] * density
    return result


def _runs(indices: Intp) -> list[Intp]:
    """Split ascending indices into runs of neighbours, which one recurrence serves."""
    return np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
