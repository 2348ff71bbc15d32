"""What a worker does with a range of cells: draw some, or count them by sample and nearest landmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Float64, FloatArray, Int32, Int64, Intp
from heatmover._words import quoted_path, readable
from heatmover.cohort import Cohort
from heatmover.cohort.hashes import cell_hashes
from heatmover.cohort.projection import Projection
from heatmover.cohort.reader import Block, KeptReader, Reader
from heatmover.errors import InvalidInputError
from heatmover.graphs.search.assignment import CenterSearch
from heatmover.scale._fixed import FixedPoint

__all__ = ["Arrays", "Cells", "Piece", "Wanted", "count_cells", "draw_cells", "sum_cells"]

# What every task returns, and what a checkpoint keeps.
Arrays = dict[str, npt.NDArray[Any]]


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
        return cls(_absolute(cohort.reader), cohort.projection, cohort.source.path)


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

    def blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield where, counted from the start of the piece, and the points there."""
        for where, _, points in self.read():
            yield where, points

    def read(self) -> Iterator[tuple[slice, Block, FloatArray]]:
        """Yield where, counted from the start of the piece, and the values and the points there."""
        done = 0
        with readable(self.cells.path, self.cells.reader.kind):
            for block in self.cells.reader.blocks(self.start, self.stop, self.block_rows):
                points = self.cells.projection.apply(block)
                self._check(points, done)
                yield slice(done, done + len(points)), block, points
                done += len(points)
        if done != self.stop - self.start:
            raise InvalidInputError(
                f"{self.stop - self.start} cells from row {self.start} on of {quoted_path(self.cells.path)}",
                f"{done}",
                "the file has changed since it was read",
            )

    def _check(self, points: FloatArray, done: int) -> None:
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


@final
@dataclass(frozen=True, eq=False)
class Wanted:
    """Which cells to draw: those whose hash, as a share of the largest, is below a share of their sample's cells.

    Attributes
    ----------
    seed
        Of the hashes.
    shares
        ``(n_samples,)``: what share of the cells of each sample to draw; 1 for all.
    """

    seed: int
    shares: Float64

    def among(self, block: Block, codes: Int32) -> tuple[Intp, Int64]:
        """Return rows of different cells that are drawn, and how many equal ones of their sample there are of each."""
        hashes = cell_hashes(block, codes, self.seed)
        shares = self.shares[codes]
        drawn = np.flatnonzero((hashes < shares * 2.0**64) | (shares >= 1))
        _, first, counts = np.unique(hashes[drawn], return_index=True, return_counts=True)
        return drawn[first], counts


def draw_cells(_: None, piece: Piece, codes: Int32, wanted: dict[str, Wanted]) -> Arrays:
    """Return the cells that are drawn for each purpose: their points, how many there are of each, and their samples.

    Parameters
    ----------
    piece
        The cells.
    codes
        ``(n_cells,)``: the sample of each.
    wanted
        By the name of the purpose.

    Returns
    -------
    Arrays
        ``NAME points`` ``(n_drawn, n_dimensions)``, ``NAME counts`` and ``NAME codes`` ``(n_drawn,)``.
    """
    found: dict[str, list[npt.NDArray[Any]]] = {}
    for where, block, points in piece.read():
        for name, which in wanted.items():
            rows, counts = which.among(block, codes[where])
            found.setdefault(f"{name} points", []).append(points[rows])
            found.setdefault(f"{name} counts", []).append(counts)
            found.setdefault(f"{name} codes", []).append(codes[where][rows])
    return {name: np.concatenate(parts) for name, parts in found.items()}


def count_cells(search: CenterSearch, piece: Piece, codes: Int32, fixed: FixedPoint) -> Arrays:
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
