"""Cells of some samples moved: each by the shift of its batch, as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64
from heatmover.cohort.cohort import Cohort
from heatmover.cohort.projection import Projection
from heatmover.cohort.reader import Block, WrappedReader

__all__ = ["ShiftedReader", "shifted_cohort"]


@final
@dataclass(frozen=True, eq=False)
class ShiftedReader(WrappedReader):
    """The points of another reader, each moved by the shift of its batch.

    Attributes
    ----------
    projection
        Makes points of the values.
    names
        Name of each dimension of the points.
    batches
        ``(n_rows,)``: batch of each row from ``first`` on; -1 stays where it is.
    shifts
        ``(n_batches, n_dimensions)``: taken off the points of each batch.
    first
        Row of the first batch.
    """

    projection: Projection
    names: tuple[str, ...]
    batches: npt.NDArray[np.int16]
    shifts: Float64
    first: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each column of the points."""
        return self.names

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the moved points of a range of cells."""
        # The last row of the table is for cells that stay.
        table = np.vstack([self.shifts, np.zeros((1, self.shifts.shape[1]))])
        done = start - self.first
        for block in self.inner.blocks(start, stop, size):
            points = self.projection.apply(block)
            rows = self.batches[done : done + len(points)]
            yield np.ascontiguousarray(points - table[rows], dtype=points.dtype)
            done += len(points)

    def choose(self, features: tuple[str, ...]) -> Self:
        """Return itself: the features are chosen before anything is moved."""
        assert features == self.names
        return self

    def within(self, start: int, stop: int) -> ShiftedReader:
        """Return a reader that knows the batches of a range of cells only, as a task on a cluster needs it."""
        part = self.batches[start - self.first : stop - self.first]
        return replace(self, batches=part, first=start)


def shifted_cohort(cohort: Cohort, batches: npt.NDArray[np.int16], shifts: Float64) -> Cohort:
    """Return a cohort whose points are moved by the shift of their sample's batch.

    Parameters
    ----------
    cohort
        As it was read.
    batches
        ``(n_samples,)``: batch of each sample; -1 stays where it is.
    shifts
        ``(n_batches, n_dimensions)``: taken off.
    """
    reader = ShiftedReader(cohort.reader, cohort.projection, cohort.features, batches[cohort.codes], shifts)
    return replace(cohort, reader=reader, projection=Projection(explained=cohort.projection.explained))
