"""Which format a path holds, by its name and by its first bytes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from heatmover._words import article, find, quoted_path, readable
from heatmover.cohort.formats.anndata import open_anndata
from heatmover.cohort.formats.fcs import Measurement, open_fcs
from heatmover.cohort.formats.parquet import open_parquet
from heatmover.cohort.formats.text import open_delimited, read_sheet
from heatmover.cohort.reader import Reader
from heatmover.cohort.source import Source, fcs_files
from heatmover.errors import InvalidInputError, argument

__all__ = ["Opened", "open_reader"]

Names = str | Sequence[str] | None

SUFFIXES = {
    ".h5ad": "h5ad",
    ".h5": "h5ad",
    ".hdf5": "h5ad",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
BEGINNINGS = {"h5ad": b"\x89HDF\r\n\x1a\n", "parquet": b"PAR1"}
KINDS = {"h5ad": "h5ad file", "zarr": "zarr store", "csv": "table of text", "parquet": "Parquet file", "fcs": "folder"}


@final
@dataclass(frozen=True)
class Opened:
    """A reader, and what is known about the samples before any cell is read.

    ``sheet`` holds the columns of the sample sheet, if there is one; ``sheet_names`` the sample of each of its rows
    if that is known already, else it is in the column ``sample_key``.
    """

    reader: Reader
    source: Source
    sample_key: str
    sheet: Mapping[str, Sequence[str | None]] | None
    sheet_names: tuple[str, ...] | None


def open_reader(
    path: str | os.PathLike[str] | Any,
    *,
    sample_key: str | None,
    representation: Names,
    annotations: Sequence[str] | None,
    measured: Measurement,
    sample_sheet: str | None,
    no_features: Collection[str] = (),
    memory: int | None = None,
    skip_unlisted: bool = False,
) -> Opened:
    """Return the reader of a path or of an AnnData object."""
    held = hasattr(path, "obs") and hasattr(path, "obsm")
    place, format = ("", "AnnData") if held else (os.fspath(path), format_of(Path(path)))
    if isinstance(annotations, str):
        raise InvalidInputError("annotations to be a list of columns", repr(annotations))
    source = Source(place, format, sample_sheet or "")
    sheet = None
    if sample_sheet is not None:
        _exists(Path(sample_sheet))
        with readable(sample_sheet, "sample sheet"):
            sheet = read_sheet(sample_sheet, memory)
    if format == "fcs":
        with readable(place, KINDS[format]):
            cells, columns = open_fcs(
                place,
                sample_key=sample_key,
                representation=representation,
                measured=measured,
                sheet=sheet,
                memory=memory,
                skip_unlisted=skip_unlisted,
            )
        return Opened(cells, source, sample_key or "sample", columns if sheet is not None else None, cells.names)
    if sample_key is None:
        raise InvalidInputError(
            f"{argument('sample_key')} to name the column that tells the sample of each cell", "none"
        )
    for name, value in measured._asdict().items():
        if value is not None:
            raise InvalidInputError(
                f"{argument(name)} for FCS files only",
                f"{argument(name, value)} and {article(KINDS.get(format, format))}",
            )
    with readable(place, KINDS.get(format, format)):
        named: dict[str, Any] = {
            "sample_key": sample_key,
            "representation": representation,
            "annotations": annotations,
        }
        reader: Reader
        if format in ("csv", "parquet"):
            opener = open_delimited if format == "csv" else open_parquet
            reader = opener(place, no_features=no_features, memory=memory, **named)
        else:
            reader = open_anndata(place, format, path if format == "AnnData" else None, **named)
        return Opened(reader, source, sample_key, sheet, None)


def format_of(path: Path) -> str:
    """Return the name of a path's format, or raise if it is none that can be read."""
    _exists(path)
    with readable(str(path), "file or folder"):
        return _folder_format(path) if path.is_dir() else _file_format(path)


def _exists(path: Path) -> None:
    with readable(str(path), "file"):
        if path.exists():
            return
        folder = path.parent
        beside = sorted(other.name for other in folder.iterdir()) if folder.is_dir() else []
    # Half of a name may be its suffix.
    find(path.name, beside, f"a file that exists in {quoted_path(str(folder))}", close=0.5)


def _folder_format(path: Path) -> str:
    if any((path / name).exists() for name in (".zgroup", ".zmetadata", "zarr.json")):
        return "zarr"
    if fcs_files(path):
        return "fcs"
    raise InvalidInputError("a folder of .fcs files or a zarr store", f"neither in {quoted_path(str(path))}")


def _file_format(path: Path) -> str:
    with path.open("rb") as stream:
        beginning = stream.read(8)
    if not beginning:
        raise InvalidInputError("a file with cells", f"that {quoted_path(str(path))} is empty")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else (suffixes or [""])[-1]
    format = SUFFIXES.get(suffix)
    seen = next((name for name, first in BEGINNINGS.items() if beginning.startswith(first)), None)
    if beginning.startswith(b"FCS"):
        raise InvalidInputError("a folder of .fcs files", "a single one", "pass the folder that holds it")
    if format in BEGINNINGS and seen != format:
        found = f"that {quoted_path(str(path))} is " + (article(KINDS[seen]) if seen else "something else")
        raise InvalidInputError(article(KINDS[format]), found)
    if seen or format:
        return seen or str(format)
    raise InvalidInputError(
        "a file ending in .h5ad, .zarr, .csv, .csv.gz, .tsv or .parquet, or a folder of .fcs files",
        quoted_path(str(path)),
    )
