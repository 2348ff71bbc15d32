"""`Cohort`: cells of many samples, on disk until they are asked for, their source, and shifts of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Float64, FloatArray, Int32, Int64
from heatmover._base.validation import check_integer
from heatmover._base.words import counted, quoted, readable
from heatmover.cohort.formats.fcs import fcs_files
from heatmover.cohort.reader import Block, Reader, described
from heatmover.cohort.samples import check_annotation, check_variable, read_annotation
from heatmover.cohort.values import Projection, all_finite, block_rows, look_through, refusal
from heatmover.errors import InvalidInputError

__all__ = ["Cohort", "ShiftedReader", "Source", "shifted_cohort"]


@final
@dataclass(frozen=True)
class Source:
    """The file or folder that a cohort was read from.

    Attributes
    ----------
    path
        As it was given; empty for an AnnData object in memory.
    format
        ``"h5ad"``, ``"zarr"``, ``"csv"``, ``"parquet"``, ``"fcs"`` or ``"AnnData"``.
    sample_sheet
        Path of the sample sheet; empty without one.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_bytes(b"sample,x,y")
    >>> Source(str(path), "csv").checksum
    'sha256:924c...'
    """

    path: str
    format: str
    sample_sheet: str = ""

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the bytes, read in blocks at the first request.

        Of one file it is what ``sha256sum`` prints; of a folder, or a file with a sample sheet, that of the names
        and checksums of all files.
        """
        if not self.path:
            return ""
        files = list(self._files())
        if files == [("", Path(self.path))]:
            return f"sha256:{_digest(files[0][1])}"
        lines = "".join(f"{_digest(path)}  {name}\n" for name, path in files)
        return f"sha256:{hashlib.sha256(lines.encode('utf-8', 'surrogateescape')).hexdigest()}"

    def _files(self) -> Iterator[tuple[str, Path]]:
        top = Path(self.path)
        if not top.is_dir():
            yield "", top
        elif self.format == "fcs":
            # Other files in the folder, such as notes, are no part of the input.
            yield from ((path.name, path) for path in fcs_files(top))
        else:
            yield from sorted((path.relative_to(top).as_posix(), path) for path in top.rglob("*") if path.is_file())
        if self.sample_sheet:
            yield "sample sheet", Path(self.sample_sheet)


def _digest(path: Path) -> str:
    with readable(str(path), "file"), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@final
@dataclass(frozen=True, eq=False, repr=False)
class Cohort:
    r"""Cells of many samples and the variables of the samples; `read_cohort` makes one.

    The values of the cells stay on disk: `chunks` reads them piece by piece, `points` all at once. A cohort holds
    no open file and can be sent to another process.

    Attributes
    ----------
    names
        Name of each sample, in natural order: s2 before s10.
    codes
        ``(n_cells,)``, int32: the sample of each cell, as a position in ``names``. Read-only.
    features
        Name of each dimension.
    samples
        DataFrame with one row per sample, in the order of ``names``: every annotation that is constant within
        samples.
    varying
        The other annotations, with the number of samples within which each varies.
    warnings
        What the user should know, in sentences.
    source
        Where it was read from.
    reader, projection
        How the values of the cells are read, and how they become points.
    unused
        Columns of a table, or channels, that are no features though nobody chose the features, and why.
    unchecked
        Whether nobody has looked at every value yet: whatever reads them does, and raises what `checked` raises.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from heatmover.cohort import read_cohort
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("sample,age,x,y\nb,60,1.5,0.5\na,50,0.5,2.5\nb,60,3.5,1.5\na,50,4.5,5.5\n")
    >>> cohort = read_cohort(path, sample_key="sample")
    >>> cohort
    Cohort(2 samples, 4 cells, 2 dimensions, from 'cells.csv')
    >>> cohort.names, cohort.features, cohort.sizes
    (('a', 'b'), ('x', 'y'), array([2, 2]))
    >>> cohort.samples
            age
    sample
    a        50
    b        60
    >>> [points.shape for points, codes in cohort.chunks(3)]
    [(3, 2), (1, 2)]
    """

    names: tuple[str, ...]
    codes: Int32
    features: tuple[str, ...]
    samples: Any
    varying: Mapping[str, int]
    warnings: tuple[str, ...]
    source: Source
    reader: Reader
    projection: Projection = field(default_factory=Projection)
    unused: Mapping[str, str] = field(default_factory=dict)
    unchecked: bool = False

    def __post_init__(self) -> None:
        self.codes.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.codes.flags.writeable = False  # a pickle forgets it

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self.codes.size)

    @property
    def n_dimensions(self) -> int:
        """Number of columns of the points."""
        return len(self.features)

    @cached_property
    def sizes(self) -> Int64:
        """``(n_samples,)``: number of cells of each sample."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    @property
    def explained_variance(self) -> Float64:
        """``(n_dimensions,)``: share of the variance in each principal component; empty without PCA."""
        return self.projection.explained

    @property
    def measured(self) -> dict[str, Any]:
        """How values of FCS files became features: cofactor, transform, compensate; empty for other files."""
        base = self.reader.base
        return dict(base.measured._asdict()) if hasattr(base, "measured") else {}

    def chunks(
        self, size: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[FloatArray, Int32]]:
        """Read the cells in order, a few at a time.

        Parameters
        ----------
        size
            Largest number of cells of a chunk; a chunk may be smaller, for instance at the end of an FCS file.
            Default: as many as take 16 MB.
        start, stop
            The range of cells wanted; default all. To reach a range in a CSV file everything before it is read too.

        Yields
        ------
        points : ndarray of shape (n_rows, n_dimensions)
            float32 if the file holds that, else float64.
        codes : ndarray of shape (n_rows,)
            Sample of each cell, as a position in ``names``.
        """
        size = self._default_size() if size is None else check_integer("size", size, minimum=1)
        start = check_integer("start", start, minimum=0)
        stop = self.n_cells if stop is None else check_integer("stop", stop, minimum=start)
        if stop > self.n_cells:
            raise InvalidInputError(f"stop to be at most {self.n_cells}, the number of cells", str(stop))
        return self._chunks(size, start, stop)

    def points(self) -> FloatArray:
        """Return all points, ``(n_cells, n_dimensions)``, in memory."""
        result: FloatArray | None = None
        done = 0
        for block, _ in self.chunks():
            if result is None:
                result = np.empty((self.n_cells, self.n_dimensions), dtype=block.dtype)
            result[done : done + len(block)] = block
            done += len(block)
        assert result is not None
        return result

    def checked(self, progress: Progress = SILENT) -> Cohort:
        """Return the cohort after a look at every value, or raise as `read_cohort` does if one is NaN or infinite.

        Parameters
        ----------
        progress
            Told how many cells were looked at.
        """
        if not self.unchecked:
            return self
        with readable(self.source.path, self.reader.kind):
            looked = look_through(self.reader, self.n_cells, progress)
        if looked.rows.size:
            raise refusal(looked, self.reader, self.names, self.codes)
        return replace(self, unchecked=False)

    def labels(self) -> npt.NDArray[np.object_]:
        """Return the name of each cell's sample, ``(n_cells,)``."""
        # Not a NumPy string array: one long name would make every cell's label as long.
        return np.array(self.names, dtype=object)[self.codes]

    def variable(self, name: str) -> Any:
        """Return one variable of the samples as a Series, or say why there is none of this name."""
        return self.samples[check_variable(name, list(self.samples.columns), self.varying, len(self.names))]

    def annotation(self, name: str) -> tuple[Int32, tuple[str, ...]]:
        """Read an annotation of the cells, such as their types, from the file.

        Parameters
        ----------
        name
            One of ``varying``.

        Returns
        -------
        codes : ndarray of shape (n_cells,)
            The value of each cell as a position in ``names``; -1 where it is missing.
        names : tuple of str
            The values, in natural order.
        """
        check_annotation(name, self.reader, self.varying, self.samples.columns)
        with readable(self.source.path, self.reader.kind):
            codes, names = read_annotation(self.reader, name)
        if codes.size != self.n_cells:
            raise _changed(counted(self.n_cells, "cell"), f"{codes.size}")
        return codes, names

    def _chunks(self, size: int, start: int, stop: int) -> Iterator[tuple[FloatArray, Int32]]:
        done = start
        with readable(self.source.path, self.reader.kind):
            for block in self.reader.blocks(start, stop, size):
                rows = block.shape[0]
                if self.unchecked and not all_finite(block):
                    self.checked()  # which tells of all values, not of this block's
                    raise _changed("finite values", "others")
                yield self.projection.apply(block), self.codes[done : done + rows]
                done += rows
        if done != stop:
            self.checked()
            raise _changed(counted(stop - start, "cell"), f"{done - start}")

    def _default_size(self) -> int:
        return block_rows(len(self.reader.features))

    def __repr__(self) -> str:
        place = f"from {quoted(Path(self.source.path).name)}" if self.source.path else "in memory"
        return (
            f"Cohort({counted(len(self.names), 'sample')}, {counted(self.n_cells, 'cell')}, "
            f"{counted(self.n_dimensions, 'dimension')}, {place})"
        )


def _changed(expected: str, found: str) -> InvalidInputError:
    return InvalidInputError(expected, found, "the file has changed since it was read")


@final
@dataclass(frozen=True, eq=False)
class ShiftedReader(Reader):
    """The points of another reader, each moved by the shift of its batch.

    Attributes
    ----------
    projection
        Makes points of the values.
    batches
        ``(n_rows,)``: batch of each row from ``first`` on; -1 stays where it is.
    shifts
        ``(n_batches, n_dimensions)``: taken off the points of each batch.
    first
        Row of the first batch.
    """

    projection: Projection
    batches: npt.NDArray[np.int16]
    shifts: Float64
    first: int = 0

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

    def place(self, row: int) -> str:
        """Return where a cell is in the file."""
        return str(self.inner.place(row))

    def within(self, start: int, stop: int) -> Self:
        """Return a reader that knows the batches of a range of cells only."""
        return replace(self, batches=self.batches[start - self.first : stop - self.first], first=start)


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
    known = described(cohort.reader, features=cohort.features)
    reader = ShiftedReader(cohort.projection, batches[cohort.codes], shifts, **known)
    return replace(cohort, reader=reader, projection=Projection(explained=cohort.projection.explained))
