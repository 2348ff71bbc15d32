"""Where a cohort came from, so that a result can be traced to its input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import final

from heatmover._words import readable

__all__ = ["Source"]

BLOCK_BYTES = 1 << 20


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
            found = sorted((path.relative_to(top).as_posix(), path) for path in top.rglob("*") if path.is_file())
            yield from found
        if self.sample_sheet:
            yield "sample sheet", Path(self.sample_sheet)


def fcs_files(folder: Path) -> list[Path]:
    """Return the FCS files of a folder by name; hidden files are leftovers of other systems."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() == ".fcs" and not path.name.startswith(".") and path.is_file()
    )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with readable(str(path), "file"), path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
