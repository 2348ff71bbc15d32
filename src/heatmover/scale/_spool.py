"""Tables of text cannot be read from the middle: their cells are copied once, as numbers, to where they can."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import Progress
from heatmover.cohort import Cohort
from heatmover.cohort.formats.text import DelimitedReader
from heatmover.cohort.projection import Projection
from heatmover.cohort.reader import Block, Columns, Numbers, spans
from heatmover.scale._checkpoint import UNFINISHED, explain_full_disk

__all__ = ["seekable"]


@final
@dataclass(frozen=True)
class CopyReader:
    """Points of cells in a file of plain numbers, row after row."""

    path: str
    features: tuple[str, ...]
    dtype: str
    notes: tuple[str, ...] = ()
    undecided: bool = False
    decimal: str = ""
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return "copy of a table of text"

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield nothing: the labels are known."""
        return iter(())

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the points of a range of cells."""
        width, kind = len(self.features), np.dtype(self.dtype)
        with Path(self.path).open("rb") as stream:
            stream.seek(start * width * kind.itemsize)
            for first, last in spans(start, stop, size):
                block: npt.NDArray[Any] = np.fromfile(stream, dtype=kind, count=(last - first) * width)
                yield block.reshape(-1, width)

    def choose(self, features: tuple[str, ...]) -> CopyReader:
        """Return itself; all features were wanted when the copy was made."""
        assert features == self.features
        return self


@contextmanager
def seekable(cohort: Cohort, folder: Path | None, progress: Progress, *, block_rows: int) -> Iterator[Cohort]:
    """Give a cohort of which any range is read as fast as any other: itself, or for a table of text a copy.

    Parameters
    ----------
    cohort
        The cells.
    folder
        Where a copy may be, such as the checkpoint, which all workers see; None for the system's temporary folder.
    progress, block_rows
        Told of the copying; cells in memory at a time.
    """
    reader = getattr(cohort.reader, "inner", cohort.reader)  # below the one that leaves cells out
    if not isinstance(reader, DelimitedReader):
        yield cohort
        return
    progress.stage("copy the table", cohort.n_cells)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder, ignore_cleanup_errors=True) as temporary:
        path, dtype = Path(temporary) / "cells", "<f8"
        with explain_full_disk(path), path.open("wb") as stream:
            for points, _ in cohort.chunks(block_rows):
                stream.write(np.ascontiguousarray(points, dtype=dtype).data)
                progress.advance(len(points))
        yield replace(cohort, reader=CopyReader(str(path), cohort.features, dtype), projection=Projection())
