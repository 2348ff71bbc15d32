"""Checkpoints: what a run has finished, for which input and settings, so that it can go on."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._files import lock_file, try_lock
from heatmover._validation import import_extra
from heatmover._words import quoted_path, readable
from heatmover.cohort import Cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.errors import InvalidInputError, argument

__all__ = [
    "LAYOUT",
    "Arrays",
    "Checkpoint",
    "Marks",
    "NoCheckpoint",
    "check_place",
    "describe_input",
    "digest",
    "explain_full_disk",
    "is_begun",
    "open_checkpoint",
]

# Up to so many bytes the whole input is read for its checksum, some seconds. Beyond, sizes and times of change tell
# whether it is the same: a copy of a larger file then counts as another one.
CHECKSUM_UP_TO = 8_000_000_000
FOLDER = ".heatmover-pieces"
# Of the store; another layout is refused, not guessed at.
LAYOUT = 2
MANIFEST, METADATA, LOCK = "heatmover", "zarr.json", ".lock"
UNFINISHED = ".unfinished-"
FULL = {errno.ENOSPC, errno.EDQUOT}


# What every task returns, and what a checkpoint keeps.
Arrays = dict[str, npt.NDArray[Any]]


def describe_input(cohort: Cohort) -> dict[str, Any]:
    """Return what identifies the cells of a cohort, their samples and what is done to them, as plain values."""
    return {
        "cells": cohort.n_cells,
        "features": list(cohort.features),
        "samples": digest("\n".join(cohort.names).encode()),
        "labels": digest(np.ascontiguousarray(cohort.codes).data),
        "projection": _projection(cohort),
        "content": _content(cohort),
        **({"measured": cohort.measured} if cohort.measured else {}),
    }


def digest(data: Any) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def _projection(cohort: Cohort) -> str:
    projection = cohort.projection
    total = hashlib.sha256()
    for part in (projection.mean, projection.scale, projection.components):
        total.update(b"none" if part is None else np.ascontiguousarray(part).data)
    reader: Any = cohort.reader
    while reader is not None:
        if isinstance(reader, ShiftedReader):
            # What was moved is made of other values: those of the file, and how these became points.
            total.update(_projection(replace(cohort, reader=reader.inner, projection=reader.projection)).encode())
            for moved in (reader.batches, reader.shifts):
                total.update(np.ascontiguousarray(moved).data)
            break
        reader = getattr(reader, "inner", None)
    return total.hexdigest()


def _content(cohort: Cohort) -> str:
    source = cohort.source
    if not source.path:  # an object in memory
        total = hashlib.sha256()
        for points, _ in cohort.chunks():
            total.update(np.ascontiguousarray(points).data)
        return f"sha256:{total.hexdigest()}"
    with readable(source.path, cohort.reader.kind):
        files = list(_files(cohort))
        if sum(size for _, size, _ in files) <= CHECKSUM_UP_TO:
            return source.checksum
    lines = "\n".join(f"{name} {size} {changed}" for name, size, changed in files)
    return f"sizes and times, sha256:{digest(lines.encode('utf-8', 'surrogateescape'))}"


def _files(cohort: Cohort) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of change of each file of the input."""
    top = Path(cohort.source.path)
    for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
        if path.is_file():
            status = path.stat()
            yield path.relative_to(top).as_posix(), status.st_size, status.st_mtime_ns


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


class Checkpoint(ABC):
    """Keeps what is finished, by name."""

    # Where further files of the run may be, which are removed when it ends or is resumed; None for nowhere.
    folder: Path | None = None

    @abstractmethod
    def load(self, name: str) -> Arrays | None:
        """Return what was kept under this name, or None."""

    @abstractmethod
    def save(self, name: str, arrays: Arrays) -> None:
        """Keep arrays under a name: all of them or, if anything happens, none."""


@final
class NoCheckpoint(Checkpoint):
    """Keeps nothing."""

    def load(self, name: str) -> Arrays | None:  # noqa: ARG002
        """Return None."""
        return None

    def save(self, name: str, arrays: Arrays) -> None:
        """Forget it."""


@final
class StoredCheckpoint(Checkpoint):
    """A zarr store on disk with one group per finished piece.

    A piece is written under another name and then renamed, which a file system does at once or not at all: whenever
    the process dies, a piece is there as a whole or it is not there. Its checksum is of its arrays, its name, the store
    and all that the result depends on: a piece that was torn, or moved here from another place, counts as not there.

    Parameters
    ----------
    path
        Of the store.
    seal
        What tells this store from all others.
    """

    def __init__(self, path: Path, seal: str) -> None:
        self.path = self.folder = path
        self._seal = seal

    def load(self, name: str) -> Arrays | None:
        """Return the arrays of a finished piece; one that is damaged, or that belongs elsewhere, is as good as none."""
        place = self.path / name
        arrays = self._read(name) if _is_folder(place) and _is_folder(place.parent) else None
        if arrays is None:
            _clear(place)
        return arrays

    def _read(self, name: str) -> Arrays | None:
        zarr = import_extra("zarr", package="zarr", extra="cohort")
        try:
            group = zarr.open_group(self.path / name, mode="r")
            found = dict(sorted(group.arrays()))
            # Before any value: a damaged shape could ask for all memory.
            if _shapes(found) != group.attrs["arrays"]:
                return None
            arrays: Arrays = {key: np.asarray(array[...]) for key, array in found.items()}
            return arrays if group.attrs["checksum"] == self._checksum(name, arrays) else None
        # What a library says of damaged files is of every kind.
        except Exception:
            return None

    def save(self, name: str, arrays: Arrays) -> None:
        """Write a piece beside its place, then move it there."""
        place = self.path / name
        unfinished = self.path / f"{UNFINISHED}{uuid.uuid4().hex}"
        attributes = {"checksum": self._checksum(name, arrays), "arrays": _shapes(arrays)}
        try:
            with explain_full_disk(self.path):
                write_group(unfinished, arrays, attributes)
                _clear(place)
                place.parent.mkdir(exist_ok=True)
                unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _checksum(self, name: str, arrays: Arrays) -> str:
        digest = hashlib.sha256(json.dumps([self._seal, name, _shapes(arrays)]).encode())
        for _, array in sorted(arrays.items()):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _shapes(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {key: [np.dtype(array.dtype).str, *array.shape] for key, array in sorted(arrays.items())}


def _is_folder(path: Path) -> bool:
    """Return whether a folder is at a path, and not a link to one: what is elsewhere is not ours."""
    return path.is_dir() and not path.is_symlink()


def _clear(place: Path) -> None:
    """Remove what is in the place of a piece, or of its stage; of a link the link, not what it leads to."""
    for path in (place.parent, place):
        if path.is_symlink() or path.is_file():
            path.unlink()
    if place.exists():
        shutil.rmtree(place)


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Say what to do if no space is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InvalidInputError(
            f"space to write to {quoted_path(str(path))}",
            "no space left on the device",
            f"free some and run again with {argument('resume', True)}: what was finished before is kept",
        ) from error


def write_group(place: Path, arrays: Arrays, attributes: Mapping[str, Any]) -> None:
    """Write arrays and attributes as a zarr group."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    group = zarr.open_group(place, mode="w-", attributes=dict(attributes))
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=tuple(max(side, 1) for side in array.shape))


@contextmanager
def open_checkpoint(
    path: str | os.PathLike[str] | None, manifest: Mapping[str, Any], *, resume: bool, need: int
) -> Iterator[Checkpoint]:
    """Give a checkpoint, new or to be resumed, that no other process uses; refuse one that does not fit.

    Parameters
    ----------
    path
        Where; None for none.
    manifest
        What the result depends on, as plain values.
    resume
        Go on with a store that is there already.
    need
        Bytes that the store may come to take.
    """
    place = check_place(path, resume=resume)
    if place is None:
        yield NoCheckpoint()
        return
    if not place.exists():
        _check_space(place, need)
        _make_folder(place)
    elif not _is_bare(place):
        _check_manifest(place, manifest)  # before anything is made in a folder that may be another's
    with _locked(place):
        for leftover in place.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if _is_bare(place):
            _write_manifest(place, manifest)
        yield StoredCheckpoint(place, _check_manifest(place, manifest))


def is_begun(path: str | os.PathLike[str] | None, *, resume: bool, need: int) -> bool:
    """Return whether there is a store to go on with; if there is none, raise unless there is room for one.

    Parameters
    ----------
    path, resume, need
        As in `open_checkpoint`.
    """
    place = check_place(path, resume=resume)
    if place is None or place.exists():
        return place is not None and not _is_bare(place)
    _check_space(place, need)
    return False


def check_place(path: str | os.PathLike[str] | None, *, resume: bool) -> Path | None:
    """Return where the checkpoint is to be, or raise if there is one and it is not to be resumed."""
    if path is None:
        if resume:
            raise InvalidInputError("a checkpoint to resume", "none", "name the store of the earlier run")
        return None
    if not os.fspath(path):
        raise InvalidInputError(
            f"{argument('checkpoint')} to be a path", "an empty one", "name a store that is to be made"
        )
    place = Path(path)
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return place
    except OSError as error:  # a name too long, a folder that may not be entered
        raise _cannot_make(place, error) from error
    if not place.exists():
        raise InvalidInputError(f"{argument('checkpoint')} to be a path", f"the broken link {quoted_path(str(place))}")
    if not resume:
        raise InvalidInputError(
            "a checkpoint that is not there yet",
            f"{quoted_path(str(place))}",
            f"{argument('resume', True)} goes on with it",
        )
    return place


def _cannot_make(place: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(f"a checkpoint to be made at {quoted_path(str(place))}", f"{error.strerror or error}")


def _is_bare(place: Path) -> bool:
    """Return whether a store is one of which nothing but the folder was made before its process was killed."""
    return place.is_dir() and all(path.name == LOCK or path.name.startswith(UNFINISHED) for path in place.iterdir())


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise _cannot_make(place, error) from error


def _write_manifest(place: Path, manifest: Mapping[str, Any]) -> None:
    unfinished = place / f"{UNFINISHED}{uuid.uuid4().hex}"
    whole = {"layout": LAYOUT, "store": uuid.uuid4().hex, **manifest}
    try:
        write_group(unfinished, {}, {MANIFEST: whole, "checksum": _seal(whole)})
        (unfinished / METADATA).rename(place / METADATA)
    except OSError as error:
        raise _cannot_make(place, error) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _check_space(place: Path, need: int) -> None:
    parent = place.absolute().parent
    if not parent.is_dir():
        raise InvalidInputError("a folder for the checkpoint", f"that {quoted_path(str(parent))} is not there")
    free = shutil.disk_usage(parent).free
    if free < need:
        raise InvalidInputError(
            f"{need / 1e9:.2g} GB for the checkpoint", f"{free / 1e9:.2g} GB free at {quoted_path(str(parent))}"
        )


def _check_manifest(place: Path, manifest: Mapping[str, Any]) -> str:
    """Return the seal of a store, or raise unless this version began it for the same input and settings."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        attributes = dict(zarr.open_group(place, mode="r").attrs)
        stored = attributes[MANIFEST]
        layout = stored["layout"]
    # What a library says of files that are something else is of every kind.
    except Exception as error:
        raise InvalidInputError(
            "a checkpoint of heatmover", f"something else at {quoted_path(str(place))}", "choose another place"
        ) from error
    if layout != LAYOUT:
        raise InvalidInputError(
            f"a checkpoint of layout {LAYOUT}", f"layout {layout} at {quoted_path(str(place))}",
            "it is from another version of heatmover: finish it there, or begin anew elsewhere",
        )  # fmt: skip
    if attributes.get("checksum") != _seal(stored):
        raise InvalidInputError(
            "a checkpoint as it was written",
            f"that the record of input and settings in {quoted_path(str(place))} was changed or damaged",
            "begin anew with another checkpoint",
        )
    changes = [
        f"{kind} {key}: {_short(stored.get(kind, {}).get(key))} then, {_short(value)} now"
        for kind, values in manifest.items()
        for key, value in values.items()
        if stored.get(kind, {}).get(key) != value
    ]
    if changes:
        raise InvalidInputError(
            "the input and settings with which the checkpoint was begun", "; ".join(changes[:5]),
            "change them back, or begin anew with another checkpoint",
        )  # fmt: skip
    return _seal(stored)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the store; the system lets go of it when the process ends, however it ends."""
    try:
        descriptor = lock_file(place / LOCK)
    except OSError as error:
        raise InvalidInputError(
            f"a checkpoint that one can lock, by a file {LOCK!r} in it", f"{quoted_path(str(place))}: {error.strerror}"
        ) from error
    try:
        if try_lock(descriptor) is False:
            raise InvalidInputError(
                "a checkpoint that no other process uses", f"that one is at work on {quoted_path(str(place))}"
            )
        yield
    finally:
        os.close(descriptor)
