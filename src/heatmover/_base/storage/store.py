"""Stores: a model, an atlas or an index as a folder in zarr's format, with the SHA-256 of every file in a manifest.

The zarr package writes and reads the arrays, each one uncompressed chunk. What is new is written beside what is there;
then a new manifest takes the place of the old one, in one step. So a reader sees all of a change or nothing of it, and
a process that is killed loses what it was about to write, at most.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt

from heatmover._base.files import check_place, lock_file, replacing, sync, try_lock
from heatmover._base.version import __version__
from heatmover._base.words import counted, quoted, quoted_path
from heatmover.errors import InvalidInputError, argument

__all__ = ["DAMAGED", "Part", "Store", "explained", "sealed", "unsealed", "writing"]

MANIFEST, LOCK = "manifest.json", ".lock"
# What a manifest says first. Layouts before 4 had kinds of variables.
FORMAT, LAYOUT = "heatmover", 4
DAMAGED = "it is damaged: take it from a copy, or make it anew"
# The folder of a part; one that the manifest does not name was left by a writer that died.
FOLDER = re.compile(r"part[0-9]{6,12}")
# Of an array in a part; what users call things is never part of a path.
PATH = re.compile(r"[a-z][a-z0-9_]{0,62}(/[a-z][a-z0-9_]{0,62}){0,8}")


class Part(NamedTuple):
    """What is written at once: plain values, which go into the manifest, and arrays by their path."""

    values: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]


@final
@dataclass(frozen=True)
class Manifest:
    """What a store holds at one generation.

    Attributes
    ----------
    kind, version
        What is stored, such as ``"heatmover-model"``, and the version of that.
    values
        What holds for all parts, such as the variables of samples.
    parts
        Folder, values and paths of the arrays of each part.
    files
        Bytes and SHA-256 of each file, by its path in the store.
    generation
        How many times the store was written.
    writer
        The version of heatmover that wrote it last.
    """

    kind: str
    version: int
    values: dict[str, Any] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, list[Any]] = field(default_factory=dict)
    generation: int = 0
    writer: str = __version__

    def check(self) -> Self:
        """Return it, or raise ValueError: a checksum does not tell who made it."""
        plain = (self.kind, str), (self.version, int), (self.values, dict), (self.parts, list), (self.files, dict)
        if not all(isinstance(value, kind) for value, kind in (*plain, (self.generation, int), (self.writer, str))):
            raise ValueError("an entry is of another type")
        for part in self.parts:
            if set(part) != {"folder", "values", "arrays"} or not FOLDER.fullmatch(part["folder"]):
                raise ValueError("a part has other entries")
            if not all(PATH.fullmatch(path) for path in part["arrays"]):
                raise ValueError("an array has a path that none has")
        for path, (size, checksum) in self.files.items():
            if ".." in path or path.startswith("/") or type(size) is not int or not isinstance(checksum, str):
                raise ValueError("a file has a path, a size or a checksum that none has")
        return self


@final
@dataclass(frozen=True, eq=False)
class Store:
    """A folder at one generation; `create` or `open` makes one. What is written later is in another one.

    Attributes
    ----------
    folder
        Where it is.
    manifest
        What it holds.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "numbers.store"
    >>> first = Store.create(place, "lengths", 1, [Part({"unit": "mm"}, {"lengths": np.arange(3.0)})])
    >>> second = first.append([Part({"unit": "m"}, {"lengths": np.ones(2)})])
    >>> [(part["values"]["unit"], second.arrays(n)["lengths"].size) for n, part in enumerate(second.manifest.parts)]
    [('mm', 3), ('m', 2)]
    """

    folder: Path
    manifest: Manifest
    # Files that were compared with their checksum, by this generation or an earlier one.
    checked: set[str] = field(default_factory=set)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        kind: str,
        version: int,
        parts: Iterable[Part],
        *,
        values: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Store:
        """Write a store; it is there completely or not at all.

        Parameters
        ----------
        path
            Of the folder that is to be made.
        kind, version
            What is stored; `open` asks for both.
        parts
            What to write.
        values
            What holds for all parts.
        overwrite
            Replace a store that is there; nothing else is ever replaced.
        """
        place = check_place(path, "a store")
        if not place.name:
            raise InvalidInputError("the path of a store", repr(os.fspath(path)))
        manifest = Manifest(kind, version, dict(values or {}))
        with explained(place):
            if os.path.lexists(place):
                _check_replaceable(place, overwrite)
                with writing(place):
                    return cls.open(place)._write(manifest, parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            # In the same folder: only there is a rename one indivisible step.
            aside = place.with_name(f".heatmover-{uuid.uuid4().hex}.tmp")
            try:
                aside.mkdir()
                cls(aside, manifest)._write(manifest, parts)
                aside.rename(place)
                sync(place.absolute().parent)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        return cls.open(place)

    @classmethod
    def open(cls, path: str | os.PathLike[str], kinds: Mapping[str, int] | None = None) -> Store:
        """Open the latest generation, of which the manifest alone is read.

        Parameters
        ----------
        path
            Of the folder.
        kinds
            What can be read, and the newest version of each. None: whatever it is.
        """
        place = check_place(path, "a store")
        manifest = _read_manifest(place)
        where, kind, version = quoted_path(str(place)), manifest.kind, manifest.version
        if kinds is not None and kind not in kinds:
            raise InvalidInputError(f"a store of kind {' or '.join(sorted(kinds))} at {where}", quoted(kind))
        if kinds is not None and not 1 <= version <= kinds[kind]:
            raise InvalidInputError(
                f"{kind} in version {kinds[kind]} or older at {where}",
                f"version {version}, written by heatmover {quoted(manifest.writer)}",
                f"install a newer heatmover than {__version__}",
            )
        return cls(place, manifest)

    def refresh(self) -> Store:
        """Return the latest generation, or itself if that is it."""
        latest, mine = _read_manifest(self.folder), self.manifest
        if latest == mine:
            return self
        if (latest.kind, latest.values, latest.parts[: len(mine.parts)]) != (mine.kind, mine.values, mine.parts):
            raise InvalidInputError(
                f"what was appended to {quoted_path(str(self.folder))}",
                "another store in its place",
                "open that one by its path",
            )
        return Store(self.folder, latest, self.checked)

    def append(self, parts: Iterable[Part]) -> Store:
        """Write further parts, and return the generation that has them; one that changed since is an error.

        Whoever calls it holds the store by `writing`.
        """
        with explained(self.folder):
            # Where there are no locks, another writer may have been here.
            if _read_manifest(self.folder).generation != self.manifest.generation:
                raise InvalidInputError("one writer at a time", "that another has appended meanwhile", "try again")
            return self._write(self.manifest, parts)

    def _write(self, before: Manifest, parts: Iterable[Part]) -> Store:
        """Write parts beside those that are there, then the manifest of ``before`` with them."""
        self._clear()
        taken = [int(part["folder"].removeprefix("part")) for part in self.manifest.parts]
        described, files = [*before.parts], {**before.files, **_write_root(self.folder)}
        try:
            for number, part in enumerate(parts, start=max(taken, default=0) + 1):
                name = f"part{number:06d}"
                files |= _write_part(self.folder, name, part)
                described.append({"folder": name, "values": dict(part.values), "arrays": sorted(part.arrays)})
            generation = self.manifest.generation + 1
            manifest = replace(before, parts=described, files=files, generation=generation, writer=__version__)
            with replacing(self.folder / MANIFEST, "wb") as file:
                file.write(sealed({"format": FORMAT, "layout": LAYOUT, **asdict(manifest)}))
        except BaseException:
            self._clear()
            raise
        store = Store(self.folder, manifest, self.checked)
        store._clear()
        return store

    def _clear(self) -> None:
        """Remove what is no part: of a writer that did not finish, or of a store that was replaced."""
        known = {part["folder"] for part in self.manifest.parts}
        for entry in self.folder.iterdir():
            if FOLDER.fullmatch(entry.name) and entry.name not in known and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)

    def arrays(self, number: int, *, but: str | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of a part by their path, all compared with their checksums, all but one if asked."""
        part = self.manifest.parts[number]
        paths = [path for path in part["arrays"] if path != but]
        try:
            return {path: np.array(self._array(f"{part['folder']}/{path}")) for path in paths}
        # Files with the right checksums that are no arrays were made by somebody else.
        except (ValueError, TypeError, LookupError, RuntimeError, OSError, MemoryError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise self.damage(part["folder"], str(error).splitlines()[0][:100] if str(error) else "no array") from error

    def mapped(self, number: int, path: str) -> npt.NDArray[Any]:
        """Return an array that stays on the disk, compared with its checksum when it is first asked for."""
        place = f"{self.manifest.parts[number]['folder']}/{path}"
        array = self._array(place)
        chunk = self.folder / place / "c" / "/".join("0" * array.ndim)
        mapped: npt.NDArray[Any] = np.memmap(chunk, array.dtype, "r", shape=array.shape)
        return mapped

    def _array(self, place: str) -> Any:
        """Return an array of zarr whose files were checked: one plain chunk, which asks for no more than it has."""
        import zarr

        sizes = self.check(f"{place}/")
        array = zarr.open_array(self.folder / place, mode="r", zarr_format=3)
        if sum(sizes.values()) - sizes.get(f"{place}/zarr.json", 0) != array.nbytes or array.compressors:
            raise self.damage(place, "it is not one plain chunk of its size")
        return array

    def check(self, below: str = "") -> dict[str, int]:
        """Compare files with their checksums, those whose paths begin so, and return their bytes, or raise."""
        sizes = {}
        for name, (size, checksum) in self.manifest.files.items():
            if name.startswith(below):
                sizes[name] = size
                if name not in self.checked:
                    self._check_file(name, size, checksum)
                    self.checked.add(name)
        return sizes

    def verify(self) -> dict[str, int]:
        """Compare every file with its checksum, whatever was compared before, and return their bytes, or raise."""
        self.checked.clear()
        return self.check()

    def _check_file(self, name: str, size: int, checksum: str) -> None:
        path = self.folder / name
        try:
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode):
                raise self.damage(name, "it is no plain file")
            if about.st_size != size:
                raise self.damage(name, f"{about.st_size:,} bytes where {size:,} were written")
            if _digest(path) != checksum:
                raise self.damage(name, "its SHA-256 is another than the manifest's")
        except OSError as error:
            raise self.damage(name, error.strerror or str(error)) from error

    def damage(self, name: str, reason: str) -> InvalidInputError:
        """Return the error that says what of the store cannot be used, and why."""
        damaged = f"that {quoted(name)} cannot be used ({reason})"
        return InvalidInputError(f"the store {quoted_path(str(self.folder))} as it was written", damaged, DAMAGED)


def _check_replaceable(place: Path, overwrite: bool) -> None:
    where = quoted_path(str(place))
    if not overwrite:
        raise InvalidInputError(
            f"a path where nothing is, {where}", "that something is there", f"{argument('overwrite', True)} replaces it"
        )
    try:
        ours = not place.is_symlink() and bool(_read_manifest(place))
    except InvalidInputError:
        ours = False
    if not ours:
        raise InvalidInputError(
            f"a store of heatmover to overwrite at {where}", "something else", "choose another path"
        )


# Files.


def _write_root(folder: Path) -> dict[str, list[Any]]:
    """Make the folder a group of zarr, if it is none, and return bytes and checksum of what says so."""
    import zarr

    zarr.open_group(folder, mode="a", zarr_format=3)
    return _inventory(folder, [folder / "zarr.json"])


def _write_part(folder: Path, name: str, part: Part) -> dict[str, list[Any]]:
    """Write the arrays of a part onto the disk, and return bytes and checksum of each file."""
    import zarr

    group = zarr.open_group(folder / name, mode="w-", zarr_format=3)
    for path, array in part.arrays.items():
        if not PATH.fullmatch(path) or array.dtype.kind not in "biuf" or array.ndim == 0:
            raise InvalidInputError(
                "arrays of truths or numbers, with names of lower-case letters, digits and underscores",
                f"{quoted(path)}: {array.dtype}, {counted(array.ndim, 'dimension')}",
            )
        group.create_array(
            path,
            data=np.asarray(array, dtype=array.dtype.newbyteorder("<")),
            chunks=tuple(max(side, 1) for side in array.shape),
            compressors=None,
            config={"write_empty_chunks": True},
        )
    for place, _, _ in os.walk(folder / name, topdown=False):
        sync(Path(place))
    sync(folder)
    return _inventory(folder, sorted(path for path in (folder / name).rglob("*") if path.is_file()))


def _inventory(folder: Path, paths: Iterable[Path]) -> dict[str, list[Any]]:
    """Bring files onto the disk, and return bytes and checksum of each."""
    files = {}
    for path in paths:
        sync(path)
        files[path.relative_to(folder).as_posix()] = [path.stat().st_size, _digest(path)]
    return files


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The manifest.


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a document with its own checksum: that of the canonical JSON of its content."""
    text = _canonical(content)
    return b'{"content":' + text + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the content of a sealed document; ValueError if it is not as it was written."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    content = document.get("content") if isinstance(document, dict) else None
    if not isinstance(content, dict) or sealed(content) != data:
        raise ValueError("its SHA-256 does not fit its content")
    return content


def _canonical(content: object) -> bytes:
    """Return the one spelling of a value as JSON: sorted, without spaces, ASCII, no NaN."""
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError("values that JSON can hold", str(error)) from error


def _read_manifest(folder: Path) -> Manifest:
    path, where = folder / MANIFEST, quoted_path(str(folder))
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(errno.EINVAL, "it is no plain file")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        older = (folder / "zarr.json").is_file()
        there = "nothing there" if not folder.exists() else "a file" if folder.is_file() else f"no {MANIFEST} in it"
        advice = "one that an older heatmover wrote is made anew" if older else "give the folder that was saved"
        raise InvalidInputError(f"a store of heatmover, which is a folder, at {where}", there, advice) from None
    except OSError as error:
        raise InvalidInputError(f"a store that can be read at {where}", error.strerror or str(error)) from error
    try:
        content = unsealed(data)
        if content.pop("format", None) != FORMAT:
            raise ValueError("it is of another program, or of an older heatmover")
        if content.pop("layout", None) != LAYOUT:
            raise ValueError(f"it has another layout than {LAYOUT}, of another heatmover")
        return Manifest(**content).check()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else "not JSON"
        raise InvalidInputError(
            f"a manifest of heatmover at {where}", f"one that cannot be used ({reason})", DAMAGED
        ) from error


# One writer at a time.


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only writer of a folder, or raise at once if there is another.

    The system lets go of the lock when its process ends, however it ends: a killed writer stops nobody. On file systems
    that know no locks nothing is held; writers there notice each other by the generation of the manifest.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with writing(folder), writing(folder):
    ...     pass
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected one writer at a time, found that another is writing to ...
    """
    with explained(folder):
        descriptor = lock_file(folder / LOCK)
    try:
        if try_lock(descriptor) is False:
            raise InvalidInputError(
                "one writer at a time",
                f"that another is writing to {quoted_path(str(folder))}",
                "wait until it has finished, and try again",
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path, again: str = "try again: what was written before is kept") -> Iterator[None]:
    """Say in one sentence why something could not be written: no space, no permission, no such folder."""
    try:
        yield
    except OSError as error:
        place, reason = quoted_path(str(path)), error.strerror or str(error)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise InvalidInputError(f"space to write to {place}", reason, f"free some and {again}") from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            advice = "choose a folder of your own, or ask for permission"
            raise InvalidInputError(f"{place} to be a folder that can be written", reason, advice) from error
        raise InvalidInputError(f"to write to {place}", reason, "choose another path") from error
