"""What an AnnData file holds is checked before it is used: lengths, sparse matrices, chunks that are not there.

A pointer or an index of a sparse matrix that is out of range makes compiled code read and write foreign memory, and a
length that contradicts another shifts values to other cells. Both are cheap to see while the blocks are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._typing import Int64, IntArray
from heatmover._words import counted, quoted, quoted_path
from heatmover.cohort.formats.hdf5 import check_text
from heatmover.cohort.reader import Block, as_float, spans, without_copies
from heatmover.errors import InvalidInputError

__all__ = [
    "check_length",
    "check_stored",
    "complete",
    "missing_chunks",
    "read_columns",
    "read_rows",
    "text_of",
    "told",
]

# Values of a sparse matrix read at once: 24 MB with their indices.
STORED_VALUES = 2_000_000
EXTENTS_SHOWN = 3
# Up to so many chunks each is looked for; a store that claims more has had its shape damaged, or they are counted.
MOST_CHUNKS = 1_000_000
Ints = IntArray


def check_length(element: Any, length: int, name: str, of: str) -> None:
    """Raise unless a column or matrix has a row for each cell (or whatever ``of`` says)."""
    shape = tuple(element.shape)
    if not shape or int(shape[0]) != length:
        found = f"{shape[0]:,}" if shape else "a single value"
        raise InvalidInputError(
            f"{counted(length, 'row')} in {name}, as many as {of}", found, "the file contradicts itself; write it again"
        )


# --- sparse matrices ---


def check_stored(group: Any, name: str) -> tuple[int, int]:
    """Return the shape of a sparse matrix in a file, after what can be checked without reading all of it."""
    by_rows = text_of(group.attrs["encoding-type"]) == "csr_matrix"
    shape = tuple(int(side) for side in np.asarray(group.attrs["shape"]).ravel())
    data, indices, pointers = (group[part] for part in ("data", "indices", "indptr"))
    if len(shape) != 2 or min(shape) < 0:
        raise _contradiction(name, "a shape of two sides", f"{shape}")
    for part, element, kinds in (("data", data, "fiub"), ("indices", indices, "iu"), ("indptr", pointers, "iu")):
        if len(element.shape) != 1 or element.dtype.kind not in kinds:
            raise _contradiction(name, f"{part} to be a list of numbers", f"{element.dtype} of shape {element.shape}")
    n_lines = shape[0] if by_rows else shape[1]
    if pointers.shape[0] != n_lines + 1:
        lines = "rows" if by_rows else "columns"
        raise _contradiction(
            name, f"{n_lines + 1:,} pointers for {n_lines:,} {lines}", f"{pointers.shape[0]:,} in indptr"
        )
    if data.shape[0] != indices.shape[0]:
        raise _contradiction(name, "as many indices as values", f"{indices.shape[0]:,} and {data.shape[0]:,}")
    first, last = int(pointers[0]), int(pointers[n_lines])
    if (first, last) != (0, data.shape[0]):
        raise _contradiction(
            name, f"pointers from 0 to {data.shape[0]:,}, the number of values", f"{first:,} to {last:,}"
        )
    return shape[0], shape[1]


def read_rows(group: Any, name: str, start: int, stop: int) -> Iterator[sp.csr_array]:
    """Yield the rows of a matrix stored by rows, a few million values at a time, each checked before it is used."""
    n_columns = int(np.asarray(group.attrs["shape"]).ravel()[1])
    for first, last in spans(start, stop, STORED_VALUES):
        pointers = _pointers(group, name, first, last, n_columns)
        done = 0
        while done < last - first:
            fits = int(np.searchsorted(pointers, pointers[done] + STORED_VALUES, side="right")) - 1
            end = min(max(fits, done + 1), last - first)
            data, indices = _values(group, name, int(pointers[done]), int(pointers[end]), n_columns)
            places = _narrow(indices, pointers[done : end + 1] - pointers[done], n_columns)
            yield without_copies(sp.csr_array((data, *places), shape=(end - done, n_columns)))
            done = end


def read_columns(group: Any, name: str) -> sp.csr_array:
    """Return a matrix stored by columns, by rows; it must be read as a whole."""
    n_rows, n_columns = check_stored(group, name)
    pointers = _pointers(group, name, 0, n_columns, n_rows)
    data, indices = _values(group, name, 0, int(pointers[-1]), n_rows)
    places = _narrow(indices, pointers, max(n_rows, n_columns))
    return without_copies(sp.csc_array((data, *places), shape=(n_rows, n_columns)).tocsr())


def _narrow(indices: Ints, pointers: Int64, most: int) -> tuple[Ints, Ints]:
    """Return indices below ``most`` and pointers, all checked, in one type of integers, which SciPy takes as they are.

    Of two types it takes the wider one and copies: of 40 million values that were 400 MB more.
    """
    width = np.int32 if max(most, int(pointers[-1])) <= np.iinfo(np.int32).max else np.int64
    return indices.astype(width, copy=False), pointers.astype(width, copy=False)


def _pointers(group: Any, name: str, start: int, stop: int, most: int) -> Int64:
    """Return the pointers of some rows (or columns), in which at most ``most`` values each may be stored."""
    pointers: Int64 = np.asarray(group["indptr"][start : stop + 1]).astype(np.int64)
    n_values = int(group["data"].shape[0])
    lengths = np.diff(pointers)
    if pointers.size != stop - start + 1 or pointers[0] < 0 or pointers[-1] > n_values or (lengths < 0).any():
        raise _contradiction(
            name, f"pointers that rise from 0 to {n_values:,}, the number of values", "others in indptr"
        )
    if lengths.size and int(lengths.max()) > most:
        place = int(lengths.argmax())
        raise _contradiction(
            name,
            f"at most {counted(most, 'value')}, one for each place, between two pointers",
            f"{int(lengths[place]):,} after pointer {start + place}",
        )
    return pointers


def _values(group: Any, name: str, first: int, last: int, most: int) -> tuple[Block, Ints]:
    data, indices = as_float(group["data"][first:last]), np.asarray(group["indices"][first:last])
    if data.size != last - first or indices.size != last - first:
        raise _contradiction(name, counted(last - first, "value"), f"{data.size:,} and {indices.size:,} indices")
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= most):
        wrong = int(np.argmax((indices < 0) | (indices >= most)))
        raise _contradiction(name, f"indices below {most:,}", f"{int(indices[wrong]):,} at place {first + wrong:,}")
    return data, indices


def _contradiction(name: str, expected: str, found: str) -> InvalidInputError:
    return InvalidInputError(f"{name} with {expected}", found, "the sparse matrix is damaged; write the file again")


# --- chunks that are not there ---


def complete(array: Any, name: str) -> Any:
    """Return a list of distinct names that is to be read as a whole, or raise if a part of it is not stored.

    Distinct names cannot all be the one value that stands for a part which was never written. A damaged length would
    otherwise ask for any amount of memory.
    """
    if len(array.shape) != 1:
        raise InvalidInputError(f"{name} to be a list", f"an array of shape {tuple(array.shape)}")
    grid, absent = _grid(array), _absent(array)
    if absent and not (grid == (1,) and array.shape[0] == 1):
        raise InvalidInputError(
            f"all of {name}", f"{_counted(array, absent)} not stored", "the file is incomplete; write it again"
        )
    return array


def missing_chunks(array: Any, name: str) -> tuple[str, ...]:
    """Return which chunks of an array are not stored, if any; they read as a value that stands for empty ones."""
    absent = _absent(array)
    if not absent:
        return ()
    places = " and ".join(_extent(array, place) for place in absent[:EXTENTS_SHOWN])
    more = " and more" if len(absent) > EXTENTS_SHOWN else ""
    fill = text_of(array.fillvalue if hasattr(array, "fillvalue") else array.fill_value)
    return (f"{name}, {places}{more} ({_counted(array, absent)}, as {fill or quoted(fill)})",)


def told(missing: Sequence[str]) -> tuple[str, ...]:
    """Return one sentence about all chunks that are not stored."""
    if not missing:
        return ()
    shown = "; ".join(missing[:EXTENTS_SHOWN])
    more = f"; and of {counted(len(missing) - EXTENTS_SHOWN, 'more array')}" if len(missing) > EXTENTS_SHOWN else ""
    return (
        f"Chunks that are not stored were read as empty: {shown}{more}. "
        "That is right only if nothing else was in them when the file was written.",
    )


def _counted(array: Any, absent: Sequence[tuple[int, ...]]) -> str:
    total = math.prod(_grid(array))
    return f"{len(absent):,}{' or more' if total > MOST_CHUNKS else ''} of {total:,} chunks"


def _grid(array: Any) -> tuple[int, ...]:
    """Return the number of chunks along each side."""
    return tuple(-(-side // step) for side, step in zip(array.shape, _steps(array), strict=True))


def _steps(array: Any) -> tuple[int, ...]:
    """Return the sides of what is stored as one piece."""
    steps = getattr(array, "shards", None) or array.chunks or array.shape
    return tuple(max(int(step), 1) for step in steps)


def _absent(array: Any) -> list[tuple[int, ...]]:
    """Return the chunks that are not stored, by their place in the grid; of very many, the first."""
    if not math.prod(array.shape):
        return []
    if not hasattr(array, "store_path"):
        check_text(array)
    grid = _grid(array)
    places: Iterator[tuple[int, ...]] = np.ndindex(*grid)
    if hasattr(array, "store_path"):
        absent = _zarr_absent(array, places)
    else:
        present = _hdf5_chunks(array)
        absent = (place for place in places if place not in present)
    few = math.prod(grid) <= MOST_CHUNKS
    return list(absent if few else islice(absent, EXTENTS_SHOWN + 1))


def _zarr_absent(array: Any, places: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    folder = Path(array.store_path.store.root) / array.store_path.path
    stored, blosc = _files(folder), _is_blosc(array.metadata)
    for place in places:
        key = array.metadata.encode_chunk_key(place)
        if key not in stored:
            yield place
        elif blosc:
            _check_blosc(folder / key)


def _is_blosc(metadata: Any) -> bool:
    """Tell whether files of chunks are as Blosc wrote them."""
    last = metadata.codecs[-1] if hasattr(metadata, "codecs") else metadata.compressor
    return "blosc" in type(last).__name__.lower()


def _check_blosc(file: Path) -> None:
    """Raise unless a chunk is as long as it says: numcodecs believes it and reads behind the end of a short one."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header = stream.read(16)
    if len(header) < 16 or int.from_bytes(header[12:], "little") != size:
        raise InvalidInputError(
            f"a complete chunk in {quoted_path(str(file))}", f"another length than it states, {size:,} bytes",
            "the store is damaged; write it again",
        )  # fmt: skip


def _files(folder: Path) -> set[str]:
    """Return the names of the files in a folder and those below it, relative to it."""
    names: set[str] = set()
    for place, _, files in os.walk(folder):
        above = Path(place).relative_to(folder).as_posix()
        names.update(name if above == "." else f"{above}/{name}" for name in files)
    return names


def _hdf5_chunks(array: Any) -> set[tuple[int, ...]]:
    if array.chunks is None:
        # A damaged length claims more than there is.
        needed = array.size * array.id.get_type().get_size()
        written = array.external or array.id.get_storage_size() >= needed
        return {(0,) * len(array.shape)} if written else set()
    steps = _steps(array)
    present: set[tuple[int, ...]] = set()

    def note(chunk: Any) -> None:
        present.add(tuple(int(start) // step for start, step in zip(chunk.chunk_offset, steps, strict=True)))

    if hasattr(array.id, "chunk_iter"):  # since HDF5 1.12.3
        array.id.chunk_iter(note)
    else:
        for number in range(array.id.get_num_chunks()):
            note(array.id.get_chunk_info(number))
    return present


def _extent(array: Any, place: tuple[int, ...]) -> str:
    words = ("rows", "columns")
    sides = [
        f"{word} {i * step:,} to {min((i + 1) * step, side) - 1:,}"
        for word, i, step, side in zip(words, place, _steps(array), array.shape, strict=False)
    ]
    return ", ".join(sides)


def text_of(value: Any) -> str:
    """Return text, whether it was stored as text or as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
