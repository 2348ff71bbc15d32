"""Define `Cohort`, cells of many samples, read from files when needed, and shift batches; for users, studies, atlases.

`Cohort` is public as `heatmover.Cohort`. This module reads the files of the cohort, and writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.files import readable
from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Float64, FloatArray, Int32, Int64, IntArray
from heatmover._base.validation import check_integer
from heatmover._base.words import counted, find, quoted
from heatmover.cohort.formats.fcs import fcs_files
from heatmover.cohort.reader import Block, Reader, described
from heatmover.cohort.samples import check_annotation, check_variable, read_annotation
from heatmover.cohort.values import Projection, block_rows, look_through, not_finite, not_finite_error
from heatmover.errors import InvalidInputError


@final
@dataclass(frozen=True)
class Source:
    """The file or folder from which a cohort was read.

    Attributes
    ----------
    path
        Path as the user gave it; empty for an AnnData object in memory.
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
        """SHA-256 of the file, computed at the first access.

        For a single file, the value equals the output of ``sha256sum``. For a folder, or a file with a sample sheet,
        the value is the checksum of a list with the names and checksums of all files.
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
            # Other files in the folder, such as notes, are not part of the input.
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
    r"""The cells of many samples with their sample metadata, as returned by `read_cohort`.

    The values of the cells stay on disk: `chunks` reads them block by block, and `points` reads all cells at once. A
    cohort has no open files, so it can be sent to another process.

    Attributes
    ----------
    names
        Name of each sample, in natural order: s2 before s10.
    codes
        ``(n_cells,)``, int32, read-only: sample of each cell, as an index into ``names``.
    features
        Name of each dimension of the points.
    samples
        Sample metadata: a DataFrame with one row per sample, in the order of ``names``, and one column for every
        annotation that is constant within samples.
    varying
        Number of samples within which an annotation varies, by name of the annotation. Annotations that vary in no
        sample are left out.
    warnings
        Warnings for the user, in sentences.
    source
        File or folder from which the cohort was read.
    reader, projection
        Reader of the values of the cells, and projection of these values to points.
    unused
        Columns or channels that are not features, each with the reason; empty if the user named the features.
    unchecked
        Whether some values have not been checked yet. These values are checked when they are read; an invalid value
        raises the same error as in `checked`.

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
        self.codes.flags.writeable = False  # set again, because pickling drops this flag

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
        """Number of cells of each sample, ``(n_samples,)``."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    @property
    def explained_variance(self) -> Float64:
        """Share of the variance in each principal component, ``(n_dimensions,)``; empty without PCA."""
        return self.projection.explained

    @property
    def measured(self) -> dict[str, Any]:
        """Options for converting FCS files to features (cofactor, transform, compensate); empty for other files."""
        base = self.reader.base
        return dict(base.measured._asdict()) if hasattr(base, "measured") else {}

    def chunks(
        self, size: int | None = None, *, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[FloatArray, Int32]]:
        """Yield the cells in order, in blocks.

        Parameters
        ----------
        size
            Largest number of cells in a block; a block may be smaller, for instance at the end of an FCS file. Default:
            the number of cells that take 16 MB.
        start, stop
            Range of cells; default: all. In a CSV file, all lines before the range are also read.

        Yields
        ------
        points : ndarray of shape (n_rows, n_dimensions)
            float32 if the file stores float32, else float64.
        codes : ndarray of shape (n_rows,)
            Sample of each cell, as an index into ``names``.
        """
        size = block_rows(len(self.reader.features)) if size is None else check_integer("size", size, minimum=1)
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
        """Check every value and return the cohort; NaN and infinity raise the same error as in `read_cohort`.

        Parameters
        ----------
        progress
            Receives the number of checked cells.
        """
        if not self.unchecked:
            return self
        with readable(self.source.path, self.reader.kind):
            looked = look_through(self.reader, self.n_cells, progress)
        if looked.rows.size:
            raise not_finite_error(looked, self.reader, self.names, self.codes)
        return replace(self, unchecked=False)

    def labels(self) -> npt.NDArray[np.object_]:
        """Return the sample name of each cell, ``(n_cells,)``."""
        # Use objects, because in a NumPy string array all labels would take as much memory as the longest name.
        return np.array(self.names, dtype=object)[self.codes]

    def variable(self, name: str) -> Any:
        """Return one column of the sample metadata as a Series, or raise an error if there is no such column."""
        return self.samples[check_variable(name, list(self.samples.columns), self.varying, len(self.names))]

    def annotation(self, name: str) -> tuple[Int32, tuple[str, ...]]:
        """Read an annotation of the cells, such as the cell type, from the file.

        Parameters
        ----------
        name
            Name of the annotation, one of ``varying``.

        Returns
        -------
        codes : ndarray of shape (n_cells,)
            Value of each cell, as an index into the returned names; -1 for missing values.
        names : tuple of str
            Distinct values, in natural order.
        """
        check_annotation(name, self.reader, self.varying, self.samples.columns)
        with readable(self.source.path, self.reader.kind):
            codes, names = read_annotation(self.reader, name)
        if codes.size != self.n_cells:
            raise _changed(counted(self.n_cells, "cell"), f"{codes.size}")
        return codes, names

    @property
    def embeddings(self) -> tuple[str, ...]:
        """Names of the two-dimensional embeddings of the cells in the file, such as ``"X_umap"``; UMAP is first."""
        with readable(self.source.path, self.reader.kind):
            return self.reader.embeddings

    def embedding(self, name: str, rows: IntArray) -> Float64:
        """Return the coordinates of the cells in ``rows`` in an embedding of the file, ``(n_rows, 2)``.

        Parameters
        ----------
        name
            Name of the embedding, one of ``embeddings``.
        rows
            ``(n_rows,)``: row numbers of the cells, ascending.
        """
        find(name, self.embeddings, "an embedding of the cells with two columns")
        places, done = np.empty((len(rows), 2)), 0
        with readable(self.source.path, self.reader.kind):
            reader = self.reader.of_matrix(name)
            for block in reader.blocks(0, self.n_cells, block_rows(2)):
                first, last = np.searchsorted(rows, (done, done + block.shape[0]))
                part = block[rows[first:last] - done]
                places[first:last] = part.toarray() if sp.issparse(part) else part
                done += block.shape[0]
        if done != self.n_cells:
            raise _changed(counted(self.n_cells, "cell"), f"{done}")
        return places

    def _chunks(self, size: int, start: int, stop: int) -> Iterator[tuple[FloatArray, Int32]]:
        done = start
        with readable(self.source.path, self.reader.kind):
            for block in self.reader.blocks(start, stop, size):
                rows = block.shape[0]
                if self.unchecked and not_finite(block)[0]:
                    self.checked()  # the error states the number of bad values in all blocks
                    raise _changed("finite values", "NaN or infinity")
                yield self.projection.apply(block), self.codes[done : done + rows]
                done += rows
        if done != stop:
            self.checked()
            raise _changed(counted(stop - start, "cell"), f"{done - start}")

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
    """Reader that subtracts the shift of each batch from the points of another reader.

    Attributes
    ----------
    projection
        Projection of values to points.
    batches
        ``(n_rows,)``: batch of each row, starting with row ``first``; -1 for rows that are not shifted.
    shifts
        ``(n_batches, n_dimensions)``: vector that is subtracted from the points of each batch.
    first
        Row number to which the first entry of ``batches`` belongs.
    """

    projection: Projection
    batches: npt.NDArray[np.int16]
    shifts: Float64
    first: int = 0

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the shifted points of a range of cells."""
        # Batch -1 selects the last row, which is zero, so that these cells are not shifted.
        table = np.vstack([self.shifts, np.zeros((1, self.shifts.shape[1]))])
        done = start - self.first
        for block in self.inner.blocks(start, stop, size):
            points = self.projection.apply(block)
            rows = self.batches[done : done + len(points)]
            yield np.ascontiguousarray(points - table[rows], dtype=points.dtype)
            done += len(points)

    def within(self, start: int, stop: int) -> Self:
        """Return a reader with the batches of a range of cells only, so that less data is sent to workers."""
        return replace(self, batches=self.batches[start - self.first : stop - self.first], first=start)


def shifted_cohort(cohort: Cohort, batches: npt.NDArray[np.int16], shifts: Float64) -> Cohort:
    """Return a cohort that subtracts the shift of each batch from the points.

    Parameters
    ----------
    cohort
        Cohort as it was read.
    batches
        ``(n_samples,)``: batch of each sample; -1 for samples that are not shifted.
    shifts
        ``(n_batches, n_dimensions)``: vector that is subtracted from the points of each batch.
    """
    attributes = described(cohort.reader, features=cohort.features)
    reader = ShiftedReader(cohort.projection, batches[cohort.codes], shifts, **attributes)
    return replace(cohort, reader=reader, projection=Projection(explained=cohort.projection.explained))
