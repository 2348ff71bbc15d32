"""What a worker does with a range of cells: pick some, or count them by sample and nearest landmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover.cohort import Cohort
from heatmover.cohort._kept import KeptReader
from heatmover.cohort._projection import Projection
from heatmover.cohort._reader import Reader
from heatmover.cohort._words import quoted_path, readable
from heatmover.errors import InvalidInputError
from heatmover.graphs.assignment import CenterSearch
from heatmover.scale._fixed import FixedPoint

__all__ = ["Arrays", "Cells", "Piece", "count_cells", "pick_rows", "sum_cells"]

# What every task returns, and what a checkpoint keeps.
Arrays = dict[str, npt.NDArray[Any]]
Points = npt.NDArray[np.floating[Any]]


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """The values of a cohort's cells without the sample of each, which at four bytes a cell is too long to be sent."""

    reader: Reader
    projection: Projection
    path: str

    @classmethod
    def of(cls, cohort: Cohort) -> Cells:
        """Return the cells of a cohort, by a path that means the same to a worker in another folder."""
        return cls(_absolute(cohort._reader), cohort._projection, cohort.source.path)


def _absolute(reader: Any) -> Any:
    if isinstance(reader, KeptReader):
        return replace(reader, inner=_absolute(reader.inner))
    name = "folder" if hasattr(reader, "folder") else "path"
    place = getattr(reader, name)
    return replace(reader, **{name: os.path.abspath(place)}) if place else reader  # noqa: PTH100 - keeps links


@final
@dataclass(frozen=True, eq=False)
class Piece:
    """A range of cells and how many of them are in memory at a time."""

    cells: Cells
    start: int
    stop: int
    block_rows: int

    def blocks(self) -> Iterator[tuple[slice, Points]]:
        """Yield where, counted from the start of the piece, and the points there."""
        done = 0
        with readable(self.cells.path, self.cells.reader.kind):
            for block in self.cells.reader.blocks(self.start, self.stop, self.block_rows):
                points = self.cells.projection.apply(block)
                self._check(points, done)
                yield slice(done, done + len(points)), points
                done += len(points)
        if done != self.stop - self.start:
            raise InvalidInputError(
                f"{self.stop - self.start} cells from row {self.start} on of {quoted_path(self.cells.path)}",
                f"{done}",
                "the file has changed since it was read",
            )

    def _check(self, points: Points, done: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(points.sum(dtype=np.float64)):
                return
        bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if bad.size:
            raise InvalidInputError(
                "cells without NaN or infinity",
                f"{bad.size} with (first: row {self.start + done + int(bad[0])} of {quoted_path(self.cells.path)})",
                "the file has changed since it was read",
            )


def pick_rows(_: None, piece: Piece, positions: npt.NDArray[np.int64]) -> Arrays:
    """Return the points at some ascending positions, counted over the whole cohort, ``(n_positions, n_dimensions)``."""
    places = positions - piece.start
    found = []
    for where, points in piece.blocks():
        first, last = np.searchsorted(places, [where.start, where.stop])
        found.append(points[places[first:last] - where.start])
    return {"rows": np.concatenate(found)}


def count_cells(search: CenterSearch, piece: Piece, codes: npt.NDArray[np.int32], fixed: FixedPoint) -> Arrays:
    """Return how many cells of each sample are nearest to each landmark, and their squared distances.

    Parameters
    ----------
    search
        Finds the nearest landmark.
    piece
        The cells.
    codes
        ``(n_cells,)``: the sample of each.
    fixed
        Turns squares into whole numbers, whose sum does not depend on the order.

    Returns
    -------
    Arrays
        ``keys``, ascending, each sample * n_landmarks + landmark; ``counts`` of each; ``squares``, one number.
    """
    keys, counts, total = [], [], 0
    for where, points in piece.blocks():
        places, squares = search.nearest(points, 1)
        found = codes[where].astype(np.int64) * len(search.centers) + places
        here = np.unique(found, return_counts=True)
        keys.append(here[0])
        counts.append(here[1])
        total += fixed.sum(squares)
    merged, back = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.zeros(merged.size, dtype=np.int64)
    np.add.at(sums, back, np.concatenate(counts))
    return {"keys": merged, "counts": sums, "squares": np.array([total], dtype=np.int64)}


def sum_cells(search: CenterSearch, piece: Piece, fixed: FixedPoint) -> Arrays:
    """Return the number of cells nearest to each landmark, ``sizes``, and the sums of their points, ``sums``."""
    sizes = np.zeros(len(search.centers), dtype=np.int64)
    sums = np.zeros(search.centers.shape, dtype=np.int64)
    for _, points in piece.blocks():
        places, _squares = search.nearest(points, 1)
        sizes += np.bincount(places, minlength=sizes.size)
        for dimension, column in enumerate(fixed.encode(points).T):
            np.add.at(sums[:, dimension], places, column)
    return {"sizes": sizes, "sums": sums}
