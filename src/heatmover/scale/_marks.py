"""Which pieces of an array on disk are finished, told by a checksum of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = ["Marks"]

FOLDER = ".heatmover-pieces"


@final
class Marks:
    """A mark for each finished piece of an array: a checksum of its values, its number and what the array is about.

    A file of the array that is damaged, or has changed places with another, does not fit its mark, and its piece is
    not finished.

    Parameters
    ----------
    place
        Folder of the array.
    about
        What the values depend on, as plain values.
    """

    def __init__(self, place: Path, about: Mapping[str, Any]) -> None:
        self._folder = place / FOLDER
        self._seal = json.dumps(about, sort_keys=True)

    def fits(self, number: int, read: Callable[[], list[npt.NDArray[Any]]]) -> bool:
        """Return whether the values that are read are those of the finished piece of this number."""
        try:
            mark = (self._folder / str(number)).read_text(encoding="ascii")
            return mark == self._checksum(number, read())
        # There is no mark, or what a library says of damaged files, which is of every kind.
        except Exception:
            return False

    def set(self, number: int, values: list[npt.NDArray[Any]]) -> None:
        """Mark a piece that was written; a mark that is torn fits nothing."""
        self._folder.mkdir(exist_ok=True)
        (self._folder / str(number)).write_text(self._checksum(number, values), encoding="ascii")

    def _checksum(self, number: int, values: list[npt.NDArray[Any]]) -> str:
        digest = hashlib.sha256(f"{self._seal} {number}".encode())
        for array in values:
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
