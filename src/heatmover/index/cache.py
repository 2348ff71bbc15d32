"""The graph of an index beside its samples: a cache, checked before it is read, and made again if it is not whole."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._files import replacing, sync
from heatmover.errors import InvalidInputError
from heatmover.index.shortlist import Shortlist
from heatmover.storage import Samples, sealed, unsealed, writing

__all__ = ["read_cache", "write_cache"]

FOLDER, POINTER = "search", "search.json"
FORMAT, VERSION = "heatmover search", 3
PLACE = re.compile(r"[0-9a-f]{32}")


def read_cache(samples: Samples) -> Shortlist | None:
    """Return the graph that lies beside the samples, without rows that came later; None if it is missing or unsound.

    Nothing is given to faiss before its SHA-256 has been compared: it trusts what it reads.
    """
    try:
        about = unsealed((samples.store.folder / POINTER).read_bytes())
        if about["format"] != FORMAT or about["version"] != VERSION or not PLACE.fullmatch(about["place"]):
            return None
        if about["n_rows"] > samples.n_rows or about["lineage"] != samples.lineage(about["n_rows"]):
            return None
        place = samples.store.folder / FOLDER / about["place"]
        arrays = {name: _read(place / f"{name}.npy", checksum) for name, checksum in about["sha256"].items()}
        return Shortlist.restored(arrays)
    # No cache, a damaged one, or one of another version: each is made again.
    except Exception:
        return None


def _read(path: Path, checksum: str) -> npt.NDArray[Any]:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != checksum:
        raise ValueError(f"{path.name} has another checksum")
    array: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def write_cache(samples: Samples, made: Shortlist) -> bool:
    """Write a graph beside the samples, and return whether that went; without room or permission, nothing changes."""
    with suppress(InvalidInputError, OSError), writing(samples.store.folder):
        top = samples.store.folder / FOLDER
        place = top / uuid.uuid4().hex
        try:
            place.mkdir(parents=True)
            checksums = {name: _write(place / f"{name}.npy", array) for name, array in made.arrays().items()}
            sync(place)
            about = {
                "format": FORMAT,
                "version": VERSION,
                "place": place.name,
                "n_rows": made.n_rows,
                "lineage": samples.lineage(made.n_rows),
                "sha256": checksums,
            }
            with replacing(samples.store.folder / POINTER, "wb") as file:
                file.write(sealed(about))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        for other in top.iterdir():
            if other.name != place.name and PLACE.fullmatch(other.name):
                shutil.rmtree(other, ignore_errors=True)
        return True
    return False


def _write(path: Path, array: npt.NDArray[Any]) -> str:
    room = io.BytesIO()
    np.save(room, array, allow_pickle=False)
    data = room.getbuffer()
    with path.open("xb") as file:
        file.write(data)
    sync(path)
    return hashlib.sha256(data).hexdigest()
