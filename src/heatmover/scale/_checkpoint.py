"""Checkpoints: finished pieces of work in a zarr store that is consistent at any moment."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._validation import import_extra
from heatmover.cohort._words import quoted_path
from heatmover.errors import InvalidInputError
from heatmover.scale._tasks import Arrays

__all__ = ["LAYOUT", "Checkpoint", "NoCheckpoint", "check_place", "explain_full_disk", "open_checkpoint"]

# Of the store; another layout is refused, not guessed at.
LAYOUT = 1
MANIFEST = "heatmover"
UNFINISHED = ".unfinished-"
FULL = {errno.ENOSPC, errno.EDQUOT}


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
    the process dies, a piece is there as a whole or it is not there. Its checksum also tells a piece that a power
    failure tore.
    """

    def __init__(self, path: Path) -> None:
        self.path = self.folder = path

    def load(self, name: str) -> Arrays | None:
        """Return the arrays of a finished piece; one that is damaged is as good as none."""
        place = self.path / name
        if not place.is_dir():
            return None
        zarr = import_extra("zarr", package="zarr", extra="cohort")
        try:
            group = zarr.open_group(place, mode="r")
            arrays: Arrays = {key: np.asarray(array[...]) for key, array in sorted(group.arrays())}
            intact = group.attrs["checksum"] == _checksum(arrays)
        except (OSError, ValueError, KeyError, RuntimeError, TypeError):
            intact = False
        if not intact:
            shutil.rmtree(place)
            return None
        return arrays

    def save(self, name: str, arrays: Arrays) -> None:
        """Write a piece beside its place, then move it there."""
        place = self.path / name
        unfinished = self.path / f"{UNFINISHED}{uuid.uuid4().hex}"
        try:
            with explain_full_disk(self.path):
                write_group(unfinished, arrays, {"checksum": _checksum(arrays)})
                place.parent.mkdir(exist_ok=True)
                unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


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
            "free some and run again with resume=True: what was finished before is kept",
        ) from error


def write_group(place: Path, arrays: Arrays, attributes: Mapping[str, Any]) -> None:
    """Write arrays and attributes as a zarr group."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    group = zarr.open_group(place, mode="w-", attributes=dict(attributes))
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=tuple(max(side, 1) for side in array.shape))


def _checksum(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


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
    if place.exists():
        _check_manifest(place, manifest)
    else:
        _check_space(place, need)
        _create(place, manifest)
    with _locked(place):
        for leftover in place.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield StoredCheckpoint(place)


def check_place(path: str | os.PathLike[str] | None, *, resume: bool) -> Path | None:
    """Return where the checkpoint is to be, or raise if there is one and it is not to be resumed."""
    if path is None:
        if resume:
            raise InvalidInputError("a checkpoint to resume", "none", "name the store of the earlier run")
        return None
    place = Path(path)
    if place.exists() and not resume:
        raise InvalidInputError(
            "a checkpoint that is not there yet", f"{quoted_path(str(place))}", "resume=True goes on with it"
        )
    return place


def _create(place: Path, manifest: Mapping[str, Any]) -> None:
    unfinished = place.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
    try:
        write_group(unfinished, {}, {MANIFEST: {"layout": LAYOUT, **manifest}})
        unfinished.rename(place)
    except OSError as error:
        raise InvalidInputError(
            f"a checkpoint to be made at {quoted_path(str(place))}", f"{error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_space(place: Path, need: int) -> None:
    parent = place.absolute().parent
    if not parent.is_dir():
        raise InvalidInputError("a folder for the checkpoint", f"that {quoted_path(str(parent))} is not there")
    free = shutil.disk_usage(parent).free
    if free < need:
        raise InvalidInputError(
            f"{need / 1e9:.2g} GB for the checkpoint", f"{free / 1e9:.2g} GB free at {quoted_path(str(parent))}"
        )


def _check_manifest(place: Path, manifest: Mapping[str, Any]) -> None:
    """Raise unless a store was begun by this version for the same input and settings."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        stored = zarr.open_group(place, mode="r").attrs[MANIFEST]
        layout = stored["layout"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(
            "a checkpoint of heatmover", f"something else at {quoted_path(str(place))}", "choose another place"
        ) from error
    if layout != LAYOUT:
        raise InvalidInputError(
            f"a checkpoint of layout {LAYOUT}", f"layout {layout} at {quoted_path(str(place))}",
            "it is from another version of heatmover: finish it there, or begin anew elsewhere",
        )  # fmt: skip
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


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the store; the system lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (place / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInputError(
                "a checkpoint that no other process uses", f"that one is at work on {quoted_path(str(place))}"
            ) from error
        yield
