"""Rows of an embedding, in memory or on disk, and the tiles into which all pairs of them are cut."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._typing import FloatArray
from heatmover._validation import check_matrix, import_extra
from heatmover._words import quoted_path, readable
from heatmover.cohort.formats.stored import missing_chunks, told
from heatmover.errors import InvalidInputError, argument

__all__ = ["Rows", "Span", "check_new", "cut", "open_array", "tile_rows"]

Part = Callable[[], FloatArray]
Span = tuple[int, int]

# Rows on each side of a tile, at most: wide enough that reading them is nothing beside comparing them.
TILE_ROWS, LEAST_TILE_ROWS = 2048, 16


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of an embedding in a zarr array on disk, or in memory; what is sent to a worker reads or holds its own."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    path: str
    array: Any

    @classmethod
    def of(cls, embedding: Any) -> Rows:
        """Return the rows of an array, a zarr array, or the zarr array at a path."""
        path = ""
        if isinstance(embedding, str | os.PathLike):
            path = os.fspath(embedding)
            embedding = open_array(path)
        elif hasattr(embedding, "store_path"):
            path = _local_path(embedding)
        else:
            embedding = check_matrix("embedding", embedding)
        if path:
            with readable(path, "zarr array"):
                for sentence in told(missing_chunks(embedding, "the embedding")):
                    warnings.warn(sentence, UserWarning, stacklevel=4)
        if embedding.ndim != 2 or embedding.dtype.kind != "f" or min(embedding.shape) == 0:
            raise InvalidInputError(
                "an embedding (n_samples, n_features) of floats", f"shape {embedding.shape} of type {embedding.dtype}"
            )
        return cls(tuple(embedding.shape), np.dtype(embedding.dtype), path, None if path else embedding)

    def part(self, span: Span) -> Part:
        """Return what reads the rows of a span."""
        if self.path:
            return partial(_read, self.path, span)
        return partial(np.asarray, self.array[slice(*span)])

    def checksum(self, spans: list[Span]) -> str:
        """Return a checksum of all rows; it does not depend on the spans."""
        digest = hashlib.sha256(f"{self.dtype.str} {self.shape}".encode())
        for span in spans:
            digest.update(np.ascontiguousarray(self.part(span)()).data)
        return f"sha256:{digest.hexdigest()}"


def open_array(path: str) -> Any:
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        return zarr.open_array(path, mode="r")
    except Exception as error:  # whatever zarr says of a description that is none
        raise InvalidInputError("the path of a zarr array", f"none at {quoted_path(path)}") from error


def check_new(place: Path, *, resume: bool) -> bool:
    """Return whether an array is to be made at a place, or raise if one is there that is not to be gone on with."""
    if str(place) == ".":  # also what an empty path becomes
        raise InvalidInputError("the path of an array", "the current folder")
    if not os.path.lexists(place):
        return True
    if not resume:
        raise InvalidInputError(
            "an array that is not there yet", quoted_path(str(place)), f"{argument('resume', True)} goes on with it"
        )
    return False


def _local_path(array: Any) -> str:
    """Return the folder of a zarr array, which workers can open by themselves, or nothing if it has none."""
    root = getattr(array.store_path.store, "root", None)
    return "" if root is None else str(Path(root) / array.store_path.path)


def _read(path: str, span: Span) -> FloatArray:
    with readable(path, "zarr array"):
        return np.asarray(open_array(path)[slice(*span)])


def tile_rows(rows: Rows, memory: int, n_workers: int) -> int:
    """Return how many rows a tile may have on each side."""

    def need(size: int) -> int:
        return n_workers * (3 * size * rows.shape[1] * rows.dtype.itemsize + 4 * 8 * size**2)

    size = TILE_ROWS
    while size > LEAST_TILE_ROWS and need(size) > memory:
        size //= 2
    if need(size) > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {need(size) / 1e6:,.0f} MB for tiles of {size} rows",
            f"{memory / 1e6:,.0f} MB",
        )
    return size


def cut(n_rows: int, size: int) -> list[Span]:
    """Return the borders of tiles."""
    return [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
