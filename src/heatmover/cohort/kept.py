"""Cells without those that lack a value: a reader that leaves some rows of another out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._typing import Int64
from heatmover.cohort.reader import Block, Columns, Numbers, Reader

__all__ = ["KeptReader"]


@final
@dataclass(frozen=True, eq=False)
class KeptReader:
    """The cells of another reader but for a few, counted as if these were not there.

    Attributes
    ----------
    inner
        Reads all cells.
    dropped
        ``(n_dropped,)``: ascending rows of ``inner`` to leave out.
    notes
        What the user should know about this file.
    """

    inner: Reader
    dropped: Int64
    notes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return self.inner.kind

    @property
    def features(self) -> tuple[str, ...]:
        """Name of each column of the values."""
        return self.inner.features

    @property
    def undecided(self) -> bool:
        """Whether a feature may turn out to be a variable of the samples."""
        return self.inner.undecided

    @property
    def decimal(self) -> str:
        """Mark of decimals if the file has no types; or empty."""
        return self.inner.decimal

    @property
    def unused(self) -> Mapping[str, str]:
        """Columns that are neither features nor annotations, and why."""
        return self.inner.unused

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the labels of all cells, also of those left out; `read_cohort` has done with them before."""
        return self.inner.label_blocks()

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of the cells that are kept."""
        if start >= stop:
            return
        done = self._row(start)
        for block in self.inner.blocks(done, self._row(stop - 1) + 1, size):
            first, last = np.searchsorted(self.dropped, [done, done + block.shape[0]])
            kept = np.ones(block.shape[0], dtype=bool)
            kept[self.dropped[first:last] - done] = False
            done += block.shape[0]
            if kept.any():
                yield block if first == last else block[kept]

    def choose(self, features: tuple[str, ...]) -> KeptReader:
        """Return a reader of these features only."""
        return KeptReader(self.inner.choose(features), self.dropped, self.notes)

    def _row(self, kept: int) -> int:
        """Return the row of the cell that is at place ``kept`` among those kept."""
        before = self.dropped - np.arange(self.dropped.size)
        return kept + int(np.searchsorted(before, kept, side="right"))
