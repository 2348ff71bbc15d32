"""Damage in an HDF5 file that its library does not survive, looked for in the bytes before the library sees them.

Text of variable length lies in heaps, and what holds it has references there: a length, the address of the heap and a
number in it. Neither has a checksum in files of the usual layout. In version 2.0 the library stays forever at an object
of a heap whose length is zero, and takes gigabytes for a text whose length in the reference is wrong; no signal stops
it. Other damage it reports as an error.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from heatmover._validation import import_extra
from heatmover._words import quoted_path
from heatmover.errors import InvalidInputError

__all__ = ["check_heaps", "check_object", "check_text"]

# Files up to this size are searched for heaps, which takes a second for a few gigabytes that are in the cache.
SEARCHED_BYTES = 8_000_000_000
# How a heap of version 1 begins, and an object in it: its number and its length.
HEAP, HEAP_OBJECT = b"GCOL\x01\0\0\0", struct.Struct("<H6xQ")
# A reference to text.
REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("number", "<u4")])
READ_BYTES = 1 << 24
# Messages of the header of an object, and the class of types of variable length.
ATTRIBUTE, CONTINUATION, VARIABLE_LENGTH = 0x0C, 0x10, 9
MOST_BLOCKS = 1_000


def check_heaps(path: str) -> None:
    """Raise if the objects of a heap do not follow each other up to its end."""
    with Path(path).open("rb") as stream:
        if not 0 < os.fstat(stream.fileno()).st_size <= SEARCHED_BYTES:
            return
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.find(HEAP)
            while start >= 0:
                _check_heap(content, start, path)
                start = content.find(HEAP, start + len(HEAP))


def _check_heap(content: mmap.mmap, start: int, path: str) -> None:
    length = min(int.from_bytes(content[start + 8 : start + 16], "little"), len(content) - start)
    heap, place, header = content[start : start + length], 16, HEAP_OBJECT.size
    while place + header <= length:
        number, size = HEAP_OBJECT.unpack_from(heap, place)
        # The free space behind the last object counts its own header; objects are filled up to eight bytes.
        step = header + ((size + 7) & ~7) if number else size
        if step < header or step > length - place:
            raise _damaged(path, f"a heap of text at byte {start:,} whose parts do not fit together")
        place += step


def check_text(array: Any) -> None:
    """Raise if a text of a dataset claims to be longer than the file."""
    h5py = import_extra("h5py", package="h5py", extra="cohort")
    kind = array.id.get_type()
    if not isinstance(kind, h5py.h5t.TypeVlenID) and not (
        isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()
    ):
        return
    # Compressed chunks have a checksum, or are nothing that could be followed here.
    if array.id.get_create_plist().get_nfilters() or array.file.userblock_size:
        return
    with Path(array.file.filename).open("rb") as stream:
        for start, length in _extents(array):
            stream.seek(start)
            for _ in range(0, length, READ_BYTES):
                references = stream.read(min(READ_BYTES, start + length - stream.tell()))
                _check_lengths(references, array.file.filename, array.name)


def _extents(array: Any) -> Iterator[tuple[int, int]]:
    """Yield where in the file the values of a dataset are: first byte and number of bytes."""
    if array.chunks is None:
        offset = array.id.get_offset()
        if offset is not None:
            yield offset, array.id.get_storage_size()
        return
    for number in range(array.id.get_num_chunks()):
        chunk = array.id.get_chunk_info(number)
        yield chunk.byte_offset, chunk.size


def check_object(element: Any) -> None:
    """Raise if a text among the attributes of a group or dataset claims to be longer than the file.

    Headers of the newer layout have a checksum; those of the older one are followed here.
    """
    h5py = import_extra("h5py", package="h5py", extra="cohort")
    if element.file.userblock_size:
        return
    with Path(element.file.filename).open("rb") as stream:
        stream.seek(h5py.h5o.get_info(element.id).addr)
        header = stream.read(16)
        if header[:1] != b"\x01":
            return
        blocks = [(stream.tell(), int.from_bytes(header[8:12], "little"))]
        for _ in range(MOST_BLOCKS):
            if not blocks:
                return
            start, length = blocks.pop()
            stream.seek(start)
            for kind, message in _messages(stream.read(min(length, READ_BYTES))):
                if kind == CONTINUATION and len(message) >= 16:
                    blocks.append((int.from_bytes(message[:8], "little"), int.from_bytes(message[8:16], "little")))
                elif kind == ATTRIBUTE:
                    _check_lengths(_references(message), element.file.filename, element.name)
        raise _damaged(element.file.filename, f"a header of {element.name!r} that has no end")


def _messages(block: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 8 <= len(block):
        kind, length = struct.unpack_from("<HH", block, place)
        yield kind, block[place + 8 : place + 8 + length]
        place += 8 + length


def _references(message: bytes) -> bytes:
    """Return the values of an attribute that are references to text; nothing if it has others."""
    if len(message) < 9:
        return b""
    version, _, *lengths = struct.unpack_from("<BBHHH", message)
    # Version 1 fills its parts up to eight bytes; version 3 has the alphabet of the name before it.
    name, kind, space = (-(-length // 8) * 8 if version == 1 else length for length in lengths)
    start = 9 if version == 3 else 8
    if message[start + name : start + name + 1] and message[start + name] & 0x0F == VARIABLE_LENGTH:
        return message[start + name + kind + space :]
    return b""


def _check_lengths(references: bytes, path: str, name: str) -> None:
    count = len(references) // REFERENCE.itemsize
    lengths = np.frombuffer(references, dtype=REFERENCE, count=count)["length"]
    if count and int(lengths.max()) > Path(path).stat().st_size:
        raise _damaged(path, f"a text in {name!r} that claims to be longer than the file")


def _damaged(path: str, found: str) -> InvalidInputError:
    return InvalidInputError(
        f"a complete h5ad file in {quoted_path(path)}", found, "copy it again from where it came, or write it again"
    )
