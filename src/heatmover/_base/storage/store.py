"""Write and read folders of zarr arrays with checksums, lock folders, explain write errors; any package may call it.

The zarr package writes and reads the arrays, each as one uncompressed chunk. New parts are added to the folder, and
then a new manifest replaces the old one in one step. So a reader sees a complete change or no change, and a killed
process loses only the parts that it was writing.
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
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt

from heatmover._base.files import check_place, lock_file, replacing, sync, try_lock
from heatmover._base.version import __version__
from heatmover._base.words import counted, quoted, quoted_path
from heatmover.errors import InvalidInputError, argument

MANIFEST, LOCK = "manifest.json", ".lock"
# File that an index adds to its store, with a checksum of its own. The index computes this file again if it is missing
# or damaged.
CACHE = "search.npz"
# Format and layout version in every manifest. Layouts before version 4 stored a kind for every variable.
FORMAT, LAYOUT = "heatmover", 4
DAMAGED = "it is damaged: restore it from a copy, or create it again"
# Folder of a part. A folder that the manifest does not list was left by a killed writer.
FOLDER = re.compile(r"part[0-9]{6,12}")
# Files that operating systems leave in folders, such as .DS_Store and .nfs0001, and files of a killed zarr process.
LEFT_BEHIND = re.compile(r"\.|(Thumbs\.db|desktop\.ini|.+\.[0-9a-f]{32}\.partial)$")
# Path of an array in a part; names from users never occur in a path.
PATH = re.compile(r"[a-z][a-z0-9_]{0,62}(/[a-z][a-z0-9_]{0,62}){0,8}")


class Part(NamedTuple):
    """Content that is written together: plain values for the manifest, and arrays by path."""

    values: Mapping[str, Any]
    arrays: Mapping[str, npt.NDArray[Any]]


@final
@dataclass(frozen=True)
class Manifest:
    """The content of a store at one generation.

    Attributes
    ----------
    kind, version
        Kind of the content, such as ``"heatmover-model"``, and version of this kind.
    values
        Values common to all parts, such as the names of sample metadata.
    parts
        Folder, values and array paths of each part.
    files
        Size in bytes and SHA-256 of each file, by its path in the store.
    generation
        Number of times that the store was written.
    writer
        Version of heatmover that wrote the store last.
    """

    kind: str
    version: int
    values: dict[str, Any] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, list[Any]] = field(default_factory=dict)
    generation: int = 0
    writer: str = __version__

    def check(self) -> Self:
        """Return the manifest, or raise ValueError if it is invalid; a checksum alone does not prove who wrote it."""
        plain = (self.kind, str), (self.version, int), (self.values, dict), (self.parts, list), (self.files, dict)
        if not all(isinstance(value, kind) for value, kind in (*plain, (self.generation, int), (self.writer, str))):
            raise ValueError("an entry has the wrong type")
        for part in self.parts:
            if set(part) != {"folder", "values", "arrays"} or not FOLDER.fullmatch(part["folder"]):
                raise ValueError("a part has unexpected entries")
            if not all(PATH.fullmatch(path) for path in part["arrays"]):
                raise ValueError("an array has an invalid path")
        for path, (size, checksum) in self.files.items():
            if ".." in path or path.startswith("/") or type(size) is not int or not isinstance(checksum, str):
                raise ValueError("a file has an invalid path, size or checksum")
        return self


@final
@dataclass(frozen=True, eq=False)
class Store:
    """A folder of arrays at one generation, returned by `create` or `open`; `append` returns a later generation.

    Attributes
    ----------
    folder
        Path of the store.
    manifest
        Description of the content.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "numbers.store"
    >>> first = Store.create(place, "lengths", 1, [Part({"unit": "mm"}, {"lengths": np.arange(3.0)})])
    >>> second = first.append([Part({"unit": "m"}, {"lengths": np.ones(2)})])
    >>> [(part["values"]["unit"], second.array(n, "lengths").size) for n, part in enumerate(second.manifest.parts)]
    [('mm', 3), ('m', 2)]
    """

    folder: Path
    manifest: Manifest
    # Files already compared with their checksums, in this generation or an earlier generation.
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
        """Write a store, completely or not at all.

        Parameters
        ----------
        path
            Path of the new folder.
        kind, version
            Kind and version of the content, which `open` checks.
        parts
            Content of the store.
        values
            Values common to all parts.
        overwrite
            If True, an existing store is replaced. A file or folder that is not a store is never replaced.
        """
        place = check_place(path, "a store")
        if not place.name:
            raise InvalidInputError("the path of a store", repr(os.fspath(path)))
        manifest = Manifest(kind, version, dict(values or {}))
        with explained(place):
            if os.path.lexists(place):
                where = quoted_path(str(place))
                if not overwrite:
                    advice = f"{argument('overwrite', True)} replaces it"
                    raise InvalidInputError(f"an unused path, {where}", "an existing file or folder", advice)
                if place.is_symlink() or not _is_store(place):
                    raise InvalidInputError(
                        f"a heatmover store to overwrite at {where}", "something else", "choose another path"
                    )
                with writing(place):
                    return cls.open(place)._write(manifest, parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            # Use the same folder, because a rename is a single step only within one file system.
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
        """Open the latest generation of a store; this reads only the manifest.

        Parameters
        ----------
        path
            Path of the folder.
        kinds
            Kinds of content that the caller can read, and the newest readable version of each; None for any kind.
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
        """Return the store at its latest generation, which may be this generation."""
        latest, mine = _read_manifest(self.folder), self.manifest
        if latest == mine:
            return self
        if (latest.kind, latest.values, latest.parts[: len(mine.parts)]) != (mine.kind, mine.values, mine.parts):
            raise InvalidInputError(
                f"a later generation of the store at {quoted_path(str(self.folder))}",
                "a different store",
                "open it as a new store",
            )
        return Store(self.folder, latest, self.checked)

    def append(self, parts: Iterable[Part]) -> Store:
        """Write further parts and return the next generation, or raise an error if another writer changed the store.

        The caller must hold the lock of `writing`.
        """
        with explained(self.folder):
            # Without file locks, another writer may have appended.
            if _read_manifest(self.folder).generation != self.manifest.generation:
                raise InvalidInputError(
                    "one writer at a time", "that another process has appended to the store", "try again"
                )
            return self._write(self.manifest, parts)

    def _write(self, before: Manifest, parts: Iterable[Part]) -> Store:
        """Write new parts to the folder, then a manifest that adds them to the parts of ``before``."""
        self._clear()
        taken = [int(part["folder"].removeprefix("part")) for part in self.manifest.parts]
        described, files = [*before.parts], dict(before.files)
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
        """Remove folders that the manifest does not list: leftovers of a killed writer or of a replaced store."""
        known = {part["folder"] for part in self.manifest.parts}
        for entry in self.folder.iterdir():
            if FOLDER.fullmatch(entry.name) and entry.name not in known and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)

    def array(self, number: int, path: str, *, mapped: bool = False) -> npt.NDArray[Any]:
        """Return an array of a part, or its memory map; the files are checked before zarr opens them."""
        import zarr

        place = f"{self.manifest.parts[number]['folder']}/{path}"
        sizes = self.check(f"{place}/")
        try:
            array = zarr.open_array(self.folder / place, mode="r", zarr_format=3)
            # A forged size must not make zarr allocate more memory than the size of the file.
            if sum(sizes.values()) - sizes.get(f"{place}/zarr.json", 0) != array.nbytes or array.compressors:
                raise ValueError("it is not a single uncompressed chunk of the expected size")
            if mapped:
                chunk = self.folder / place / "c" / "/".join("0" * array.ndim)
                return np.memmap(chunk, array.dtype, "r", shape=array.shape)
            return np.array(array)
        # Files that have the right checksums but are not arrays were written by another program.
        except (ValueError, TypeError, LookupError, RuntimeError, OSError, MemoryError) as error:
            raise self.damage(place, str(error).splitlines()[0][:100] if str(error) else "no array") from error

    def check(self, below: str = "") -> dict[str, int]:
        """Compare the files below a path with their checksums; return their sizes in bytes, or raise an error."""
        sizes = {}
        for name, (size, checksum) in self.manifest.files.items():
            if not name.startswith(below):
                continue
            sizes[name] = size
            if name in self.checked:
                continue
            try:
                about = (self.folder / name).lstat()
                if not stat.S_ISREG(about.st_mode):
                    raise self.damage(name, "it is not a regular file")
                if about.st_size != size:
                    raise self.damage(name, f"{about.st_size:,} bytes instead of {size:,}")
                if _digest(self.folder / name) != checksum:
                    raise self.damage(name, "its SHA-256 differs from the manifest")
            except OSError as error:
                raise self.damage(name, error.strerror or str(error)) from error
            self.checked.add(name)
        inside = [(self.folder / part["folder"]).rglob("*") for part in self.manifest.parts]
        for path in sorted(chain(self.folder.iterdir(), *inside)) if not below else ():
            name = path.relative_to(self.folder).as_posix()
            if not (path.is_dir() or name in sizes or name in (MANIFEST, CACHE) or LEFT_BEHIND.match(path.name)):
                raise self.damage(name, "the manifest does not name it")
        return sizes

    def verify(self) -> dict[str, int]:
        """Compare every file with its checksum again; return the sizes in bytes, or raise an error."""
        self.checked.clear()
        return self.check()

    def damage(self, name: str, reason: str) -> InvalidInputError:
        """Return the error that names the damaged file and the reason."""
        damaged = f"that {quoted(name)} cannot be used ({reason})"
        return InvalidInputError(f"the store {quoted_path(str(self.folder))} as it was written", damaged, DAMAGED)


def _is_store(place: Path) -> bool:
    try:
        return bool(_read_manifest(place))
    except InvalidInputError:
        return False


# Files.


def _write_part(folder: Path, name: str, part: Part) -> dict[str, list[Any]]:
    """Write the arrays of a part, sync them, and return size and checksum of each file."""
    import zarr

    root = zarr.open_group(folder, mode="a", zarr_format=3)
    group = root.create_group(name)
    for path, array in part.arrays.items():
        if not PATH.fullmatch(path) or array.dtype.kind not in "biuf" or array.ndim == 0:
            raise InvalidInputError(
                "arrays of booleans or numbers, with names of lower-case letters, digits and underscores",
                f"{quoted(path)}: {array.dtype}, {counted(array.ndim, 'dimension')}",
            )
        group.create_array(
            path,
            data=np.asarray(array, dtype=array.dtype.newbyteorder("<")),
            chunks=tuple(max(side, 1) for side in array.shape),
            compressors=None,
            config={"write_empty_chunks": True},
        )
    files = {}
    for place in [*sorted((folder / name).rglob("*")), folder / name, folder / "zarr.json", folder]:
        sync(place)
        if place.is_file():
            files[place.relative_to(folder).as_posix()] = [place.stat().st_size, _digest(place)]
    return files


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The manifest.


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a document in canonical JSON with the checksum of its content."""
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError("values that JSON can hold", str(error)) from error
    return b'{"content":' + text + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the content of a document that `sealed` made, or raise ValueError if it has changed."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    content = document.get("content") if isinstance(document, dict) else None
    if not isinstance(content, dict) or sealed(content) != data:
        raise ValueError("its SHA-256 does not match its content")
    return content


def _read_manifest(folder: Path) -> Manifest:
    path, where = folder / MANIFEST, quoted_path(str(folder))
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        older = (folder / "zarr.json").is_file()
        there = "nothing there" if not folder.exists() else "a file" if folder.is_file() else f"no {MANIFEST} in it"
        advice = "a store from an older heatmover must be created again" if older else "give the folder that was saved"
        raise InvalidInputError(f"a heatmover store, which is a folder, at {where}", there, advice) from None
    except OSError as error:
        raise InvalidInputError(f"a store that can be read at {where}", error.strerror or str(error)) from error
    try:
        content = unsealed(data)
        if content.pop("format", None) != FORMAT:
            raise ValueError("another program wrote it")
        if (layout := content.pop("layout", None)) == LAYOUT:
            return Manifest(**content).check()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        reason = str(error).splitlines()[0][:100] if str(error) else "not JSON"
        raise InvalidInputError(
            f"a heatmover manifest at {where}", f"one that cannot be used ({reason})", DAMAGED
        ) from error
    raise InvalidInputError(
        f"a store of layout {LAYOUT} at {where}",
        f"layout {layout}, written by another version of heatmover",
        f"save or build the store again with heatmover {__version__}",
    )


# One writer at a time.


@contextmanager
def writing(folder: Path, expected: str = "one writer at a time") -> Iterator[None]:
    """Hold the lock of a folder, or raise an error at once if another process is writing to it.

    ``expected`` is the first half of the error message.

    The system releases the lock when the process that holds it ends, so a killed writer blocks no one. On file systems
    without locks, writers detect each other by the generation of the manifest.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with writing(folder), writing(folder):
    ...     pass
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected one writer at a time, found that another process is writing to ...
    """
    with explained(folder):
        descriptor = lock_file(folder / LOCK)
    try:
        if try_lock(descriptor) is False:
            raise InvalidInputError(
                expected,
                f"that another process is writing to {quoted_path(str(folder))}",
                "wait until it has finished, and try again",
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def explained(path: Path, again: str = "try again: everything written before is kept") -> Iterator[None]:
    """Convert an OSError to an error that explains in one sentence why a path could not be written."""
    try:
        yield
    except OSError as error:
        place, reason = quoted_path(str(path)), error.strerror or str(error)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise InvalidInputError(
                f"disk space to write to {place}", reason, f"free some space and {again}"
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            advice = "choose another folder, or ask for permission"
            raise InvalidInputError(f"permission to write to {place}", reason, advice) from error
        raise InvalidInputError(f"to write to {place}", reason, "choose another path") from error
