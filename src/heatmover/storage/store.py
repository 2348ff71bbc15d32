"""Stores: a record as a folder in zarr's format, version 3, checked to the last bit when it is read.

Everything is written plainly: one chunk per array, no compression, one canonical spelling of every file of metadata. So
the reader knows each byte before it looks, except the numbers themselves and the document at the root, which carry
their SHA-256. Nothing of a store is interpreted before it has been checked, no codec runs, and nothing in it can ask
for more memory than its files take. Any library that reads zarr reads these stores.
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
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._files import check_place, exchange, is_stray, sync
from heatmover._version import __version__
from heatmover._words import counted, quoted, quoted_path
from heatmover.errors import InvalidInputError, argument
from heatmover.storage.record import Record

__all__ = ["Stored", "peek_store", "read_store", "verify_store", "write_store"]

METADATA = "zarr.json"
# Of the attributes of the root.
KEY = "heatmover"
# Names of arrays and parts; what users call things is never part of a path.
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
DEPTH = 8
TYPES = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
)
DAMAGED = "the store is damaged: take it from a copy, or make it anew"
# The document has a line per array and what a model says in words: 10 kB. A root of more bytes is none of ours.
LONGEST_ROOT = 2**28
# Bytes that are read and hashed at a time where an array is not kept.
AT_ONCE = 2**24


@final
@dataclass(frozen=True, eq=False)
class Stored:
    """What was read from a store.

    Attributes
    ----------
    schema, version
        What the record is, and the version of its schema.
    record
        The values.
    writer
        The version of heatmover that wrote it.
    digest
        SHA-256 of the document, which holds those of all arrays: two stores with the same content have the same.
    """

    schema: str
    version: int
    record: Record
    writer: str
    digest: str


def write_store(
    path: str | os.PathLike[str],
    record: Record,
    *,
    schema: str,
    version: int,
    overwrite: bool = False,
    fill: Callable[[Path], None] | None = None,
) -> str:
    """Write a record; the store appears complete or not at all.

    Parameters
    ----------
    path
        Of the folder that is to be made.
    record
        What to write.
    schema, version
        What it is; `read_store` asks for both.
    overwrite
        Replace a store that is there; nothing else is ever replaced.
    fill
        Is given the folder before it takes its place, and writes there what is to lie beside the record: see ``beside``
        in `read_store`.

    Returns
    -------
    str
        SHA-256 of the document.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "numbers.store"
    >>> _ = write_store(path, Record({"unit": "mm"}, {"lengths": np.arange(3.0)}), schema="lengths", version=1)
    >>> stored = read_store(path, {"lengths": 1})
    >>> stored.record.text("unit"), stored.record.array("lengths", np.float64, (3,))
    ('mm', array([0., 1., 2.]))
    """
    place = _check_path(path)
    arrays = dict(_arrays_of(record))
    with _told(place):
        _check_target(place, overwrite)
        # In the same folder: only there is a rename one indivisible step.
        aside = place.with_name(f".heatmover-{uuid.uuid4().hex}.tmp")
        try:
            aside.mkdir()
            digest = _write(aside, _document_of(record), arrays, schema, version)
            if fill is not None:
                fill(aside)
                sync(aside)
            _put(aside, place, overwrite)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return digest


def read_store(path: str | os.PathLike[str], schemas: Mapping[str, int], *, beside: Collection[str] = ()) -> Stored:
    """Read a store of which every bit has been checked, or raise.

    Parameters
    ----------
    path
        Of the store.
    schemas
        The schemas that can be read, and the newest version of each.
    beside
        Names of files and folders at the root that belong to others.

    Returns
    -------
    Stored
        Arrays are the caller's own.
    """
    place = _check_path(path)
    with _told(place, reading=True):
        head = _read_head(place)
        _check_schema(place, head, schemas)
        _check_tree(place, head, beside)
        arrays = {name: _read_array(place, name, about) for name, about in head["arrays"].items()}
    record = _record_of(head["document"], arrays)
    return Stored(head["schema"], head["version"], record, head["writer"], head["sha256"])


def peek_store(path: str | os.PathLike[str], schemas: Mapping[str, int] | None = None) -> Stored:
    """Read the document of a store and none of its arrays.

    Parameters
    ----------
    path
        Of the store.
    schemas
        As in `read_store`. None: whatever its schema is.
    """
    place = _check_path(path)
    with _told(place, reading=True):
        head = _read_head(place)
        if schemas is not None:
            _check_schema(place, head, schemas)
    return Stored(head["schema"], head["version"], _record_of(head["document"], {}), head["writer"], head["sha256"])


def verify_store(path: str | os.PathLike[str], *, beside: Collection[str] = ()) -> Iterator[tuple[str, int]]:
    """Check every bit of a store in little memory, or raise; yields name and bytes of each array that is right.

    Parameters
    ----------
    path, beside
        As in `read_store`.
    """
    place = _check_path(path)
    with _told(place, reading=True):
        head = _read_head(place)
        _check_tree(place, head, beside)
        for name, about in head["arrays"].items():
            yield name, _check_chunk(place, name, about)


def _check_path(path: str | os.PathLike[str]) -> Path:
    place = check_place(path, "a store")
    if not place.name:
        raise InvalidInputError("the path of a store", repr(os.fspath(path)))
    return place


@contextmanager
def _told(place: Path, *, reading: bool = False) -> Iterator[None]:
    """Say in one sentence why a store cannot be read or written."""
    try:
        yield
    except OSError as error:
        where = quoted_path(str(place))
        reason = error.strerror or str(error)
        if reading:
            raise InvalidInputError(f"a store that can be read at {where}", reason) from error
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = "free some space; nothing of it was left behind" if full else "choose another path"
        raise InvalidInputError(f"a store to be written at {where}", reason, advice) from error


# Writing.


def _arrays_of(record: Record, before: str = "", depth: int = 1) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    if depth > DEPTH:
        raise InvalidInputError(f"records at most {DEPTH} deep", f"one more in {quoted(before)}")
    taken = [*record.values, *record.arrays, *record.parts]
    for name in [*record.arrays, *record.parts]:
        if not NAME.fullmatch(name):
            raise InvalidInputError("names of lower-case letters, digits and underscores in a store", quoted(name))
        if taken.count(name) > 1:
            raise InvalidInputError("each name once in a record", f"{quoted(name)} twice")
    for name, array in record.arrays.items():
        if array.dtype.name not in TYPES or array.ndim == 0:
            raise InvalidInputError(
                f"arrays of truths or numbers in a store ({quoted(before + name)})",
                f"{array.dtype} with {counted(array.ndim, 'dimension')}",
            )
        yield before + name, array
    for name, part in record.parts.items():
        yield from _arrays_of(part, f"{before}{name}/", depth + 1)


def _document_of(record: Record) -> dict[str, Any]:
    return {"values": dict(record.values), "parts": {name: _document_of(part) for name, part in record.parts.items()}}


def _write(
    aside: Path, document: dict[str, Any], arrays: Mapping[str, npt.NDArray[Any]], schema: str, version: int
) -> str:
    about = {}
    for folder in _folders(arrays, document):
        (aside / folder).mkdir()
        _write_file(aside / folder / METADATA, _group(None))
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        about[name] = {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": _digest(plain)}
        (aside / name).mkdir()
        _write_file(aside / name / METADATA, _array_metadata(about[name]))
        if array.size:
            chunk = aside / _chunk(name, array.ndim)
            chunk.parent.mkdir(parents=True)
            _write_file(chunk, plain.reshape(-1).view(np.uint8).data)
    head = {"arrays": about, "document": document, "schema": schema, "version": version, "writer": __version__}
    head["sha256"] = hashlib.sha256(_canonical(head)).hexdigest()
    _write_file(aside / METADATA, _group(head))
    for folder, _, _ in os.walk(aside, topdown=False):
        sync(Path(folder))
    return str(head["sha256"])


def _write_file(path: Path, content: bytes | memoryview) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _check_target(place: Path, overwrite: bool) -> None:
    _recover(place)
    if not os.path.lexists(place):
        return
    where = quoted_path(str(place))
    if not overwrite:
        raise InvalidInputError(
            f"a path where nothing is, {where}", "that something is there", f"{argument('overwrite', True)} replaces it"
        )
    try:
        ours = not place.is_symlink() and place.is_dir() and bool(_read_head(place))
    except InvalidInputError:
        ours = False
    if not ours:
        raise InvalidInputError(
            f"a store of heatmover to overwrite at {where}", "something else", "choose another path"
        )


def _put(aside: Path, place: Path, overwrite: bool) -> None:
    if not overwrite or not os.path.lexists(place):
        # Onto a folder that is not empty, which another process may have put there, no system renames.
        aside.rename(place)
        sync(place.absolute().parent)
        return
    if not exchange(aside, place):
        _put_in_two_steps(aside, place)
    sync(place.absolute().parent)
    # In exchange the old store is aside now, and goes with it.


def _put_in_two_steps(aside: Path, place: Path) -> None:
    """Replace a store where the system cannot exchange names: a death in between is mended by the next reader."""
    old = _kept(place)
    shutil.rmtree(old, ignore_errors=True)
    place.rename(old)
    try:
        aside.rename(place)
    except BaseException:
        with suppress(OSError):
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _kept(place: Path) -> Path:
    """Return where the store at a place is, between two steps; it fits into any file system, unlike a longer name."""
    return place.with_name(f".heatmover-{hashlib.sha256(os.fsencode(place.name)).hexdigest()[:32]}.old")


def _recover(place: Path) -> None:
    """Bring a store back that a writer had moved aside when it died."""
    old = _kept(place)
    if not os.path.lexists(place) and old.is_dir() and not old.is_symlink():
        # If the writer lives still, one of the two puts it there.
        with suppress(OSError):
            old.rename(place)


# Reading.


def _read_head(place: Path) -> dict[str, Any]:
    """Return what the root says of a store, or raise unless it is, byte for byte, what heatmover would have written."""
    where = quoted_path(str(place))
    _recover(place)
    if not place.is_dir():
        found = "a file" if place.exists() else "nothing there"
        raise InvalidInputError(f"a store of heatmover, which is a folder, at {where}", found)
    try:
        text = _read_file(place / METADATA, None)
    except FileNotFoundError:
        raise InvalidInputError(
            f"a store of heatmover at {where}", f"a folder without {METADATA}", "name the folder that was saved"
        ) from None
    try:
        root = json.loads(text)
        head = root["attributes"][KEY]
        stated = head["sha256"]
        rest = {name: value for name, value in head.items() if name != "sha256"}
        right = stated == hashlib.sha256(_canonical(rest)).hexdigest() and text == _group(head)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        right = None
    if right is None and b'"heatmover"' not in text:
        raise InvalidInputError(f"a store of heatmover at {where}", f"a {METADATA} of something else")
    if not right:
        raise InvalidInputError(f"a document that fits its SHA-256 in {where}", f"another {METADATA}", DAMAGED)
    _check_head(where, head)
    return dict(head)


def _check_head(where: str, head: Mapping[str, Any]) -> None:
    """Raise unless the names and shapes are such as a store may have: the checksum does not tell who made it."""
    fits = (
        isinstance(head.get("schema"), str)
        and type(head.get("version")) is int
        and isinstance(head.get("writer"), str)
        and isinstance(head.get("document"), dict)
        and isinstance(head.get("arrays"), dict)
    )
    if not fits:
        raise InvalidInputError(f"schema, version, writer, document and arrays in {where}", "other entries")
    for name, about in head["arrays"].items():
        parts = name.split("/")
        if len(parts) > DEPTH or not all(NAME.fullmatch(part) for part in parts):
            raise InvalidInputError(f"names of arrays in {where} that a store may have", quoted(name))
        shape = about.get("shape") if isinstance(about, dict) else None
        numbers = isinstance(shape, list) and shape and all(type(side) is int and 0 <= side < 2**48 for side in shape)
        if not numbers or about.get("dtype") not in TYPES or not isinstance(about.get("sha256"), str):
            raise InvalidInputError(f"type, shape and SHA-256 of the array {quoted(name)} in {where}", "other entries")


def _check_schema(place: Path, head: Mapping[str, Any], schemas: Mapping[str, int]) -> None:
    schema, version, where = head["schema"], head["version"], quoted_path(str(place))
    if schema not in schemas:
        raise InvalidInputError(f"a store of kind {' or '.join(sorted(schemas))} at {where}", quoted(schema))
    if version > schemas[schema]:
        raise InvalidInputError(
            f"{schema} in version {schemas[schema]} or older at {where}",
            f"version {version}, written by heatmover {quoted(head['writer'])}",
            f"install a newer heatmover than {__version__}",
        )
    if version < 1:
        raise InvalidInputError(f"a version of {schema} at {where}", f"{version}")


def _check_tree(place: Path, head: Mapping[str, Any], beside: Collection[str]) -> None:
    """Raise unless the files are those that the document tells of, none more, none less, and no links."""
    expected = {METADATA}
    folders = set(_folders(head["arrays"], head["document"]))
    for name, about in head["arrays"].items():
        expected.add(f"{name}/{METADATA}")
        if 0 not in about["shape"]:
            expected.add(_chunk(name, len(about["shape"])))
    expected |= {f"{folder}/{METADATA}" for folder in folders}
    found = set(_walk(place, beside))
    where = quoted_path(str(place))
    for names, what in ((expected - found, "is missing"), (found - expected, "does not belong there")):
        if names:
            raise InvalidInputError(
                f"the {counted(len(expected), 'file')} of the store {where}",
                f"that {quoted(min(names))} {what}",
                DAMAGED,
            )
    for folder in folders:
        _check_same(place, f"{folder}/{METADATA}", _group(None))
    for name, about in head["arrays"].items():
        _check_same(place, f"{name}/{METADATA}", _array_metadata(about))


def _walk(place: Path, beside: Collection[str]) -> Iterator[str]:
    """Yield the paths of all files, folders without any included."""
    for folder, folders, files in os.walk(place, onerror=_raise):
        if Path(folder) == place:
            folders[:] = [name for name in folders if name not in beside]
            files = [name for name in files if name not in beside]
        files = [name for name in files if not is_stray(name)]
        inside = Path(folder).relative_to(place)
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*files, *linked]:
            yield (inside / name).as_posix()
        if not files and not folders and Path(folder) != place:
            yield inside.as_posix()


def _raise(error: OSError) -> None:
    raise error


def _check_same(place: Path, name: str, content: bytes) -> None:
    if _read_file(place / name, len(content)) != content:
        raise InvalidInputError(f"{quoted(name)} in {quoted_path(str(place))} as it was written", "another", DAMAGED)


def _read_array(place: Path, name: str, about: Mapping[str, Any]) -> npt.NDArray[Any]:
    shape, dtype = tuple(about["shape"]), np.dtype(about["dtype"])
    chunk = place / _chunk(name, len(shape))
    # Only as much memory as there are bytes in the file.
    _check_size(place, chunk, name, _bytes(about))
    array = np.empty(shape, dtype=dtype.newbyteorder("<"))
    if array.size:
        with _opened(chunk) as file:
            read = file.readinto(array.reshape(-1).view(np.uint8).data)
        if read != array.nbytes:
            raise _cut(place, name, array.nbytes, read)
    if _digest(array) != about["sha256"]:
        raise _changed(place, name)
    if dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
        raise InvalidInputError(f"truths in the array {quoted(name)} of {quoted_path(str(place))}", "other numbers")
    return array.astype(dtype, copy=False)


def _check_chunk(place: Path, name: str, about: Mapping[str, Any]) -> int:
    """Check the numbers of an array without keeping them; return their bytes."""
    total, size = hashlib.sha256(), _bytes(about)
    chunk = place / _chunk(name, len(about["shape"]))
    _check_size(place, chunk, name, size)
    if size:
        with _opened(chunk) as file:
            while part := file.read(AT_ONCE):
                total.update(part)
    if total.hexdigest() != about["sha256"]:
        raise _changed(place, name)
    return size


def _bytes(about: Mapping[str, Any]) -> int:
    size = np.dtype(about["dtype"]).itemsize
    for side in about["shape"]:
        size *= side
    return int(size)


def _check_size(place: Path, chunk: Path, name: str, size: int) -> None:
    if size and chunk.lstat().st_size != size:
        raise _cut(place, name, size, chunk.lstat().st_size)


def _cut(place: Path, name: str, size: int, found: int) -> InvalidInputError:
    where = quoted_path(str(place))
    return InvalidInputError(f"{size:,} bytes of the array {quoted(name)} in {where}", f"{found:,}", DAMAGED)


def _changed(place: Path, name: str) -> InvalidInputError:
    where = quoted_path(str(place))
    return InvalidInputError(f"numbers that fit the SHA-256 of the array {quoted(name)} in {where}", "others", DAMAGED)


def _read_file(path: Path, size: int | None) -> bytes:
    """Read a small file; at most one byte more than it should have."""
    with _opened(path) as file:
        content: bytes = file.read(LONGEST_ROOT if size is None else size + 1)
        return content


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a plain file, and neither a link nor a pipe."""
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, os.O_RDONLY | careful)
    with os.fdopen(descriptor, "rb", buffering=0) as raw:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a plain file", str(path))
        yield _Whole(raw)


class _Whole:
    """Reads as much as was asked for; the system itself gives at most 2 GiB at a time."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def read(self, size: int) -> bytes:
        parts, left = [], size
        while left and (part := self._raw.read(min(left, AT_ONCE))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def readinto(self, memory: memoryview) -> int:
        done = 0
        while done < len(memory) and (read := self._raw.readinto(memory[done : done + AT_ONCE])):
            done += read
        return done


def _record_of(document: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Record:
    """Put documents and arrays together again."""
    if not isinstance(document, dict) or set(document) != {"parts", "values"}:
        raise InvalidInputError("values and parts in the document of a store", "other entries")
    values, parts = document["values"], document["parts"]
    if not isinstance(values, dict) or not isinstance(parts, dict):
        raise InvalidInputError("values and parts by name in the document of a store", "others")
    own = {name: array for name, array in arrays.items() if "/" not in name}
    inner = {
        name: _record_of(
            part,
            {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")},
        )
        for name, part in parts.items()
    }
    return Record(values, own, inner)


# The format.


def _canonical(value: Any) -> bytes:
    """Return the one spelling of a value as JSON: sorted, without spaces, ASCII, no NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError("values that JSON can hold", str(error)) from error


def _group(head: Mapping[str, Any] | None) -> bytes:
    attributes = {} if head is None else {KEY: head}
    return _canonical({"attributes": attributes, "node_type": "group", "zarr_format": 3})


def _array_metadata(about: Mapping[str, Any]) -> bytes:
    dtype = about["dtype"]
    return _canonical(
        {
            "attributes": {},
            # zarr has no chunks of length zero.
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(s, 1) for s in about["shape"]]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "data_type": dtype,
            "fill_value": False if dtype == "bool" else 0,
            "node_type": "array",
            "shape": about["shape"],
            "zarr_format": 3,
        }
    )


def _chunk(name: str, n_dimensions: int) -> str:
    return "/".join([name, "c", *["0"] * n_dimensions])


def _folders(arrays: Collection[str], document: Any) -> list[str]:
    """Return the groups between the root and the arrays, and those of parts without arrays, outer ones first."""
    found = {name[:end] for name in arrays for end in range(len(name)) if name[end] == "/"}
    found |= set(_parts(document))
    return sorted(found)


def _parts(document: Any, before: str = "") -> Iterator[str]:
    parts = document.get("parts") if isinstance(document, dict) else None
    for name, part in (parts if isinstance(parts, dict) else {}).items():
        if not NAME.fullmatch(name) or before.count("/") >= DEPTH:
            raise InvalidInputError("names of parts that a store may have", quoted(before + name))
        yield before + name
        yield from _parts(part, f"{before}{name}/")


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data if array.size else b"").hexdigest()
