"""Shards: rows of features with names and variables in a folder to which more can be appended, and nothing else.

An append writes new shards beside the old ones, brings them onto the disk, and then puts a new manifest in the place of
the old one, in one step. So a reader sees all of an append or nothing, and a process that is killed loses what it was
about to append, at most. The manifest carries its own SHA-256 and those of all arrays, and nothing is used before it
has been checked. Every array is one uncompressed chunk in zarr's format, version 3: any library that reads zarr
reads it, and no codec runs here. No path is made of anything that a user or the manifest says.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._files import replacing, sync
from heatmover._typing import FloatArray, Int64
from heatmover._validation import check_finite
from heatmover._words import counted, distinct, find, listed, quoted, quoted_path
from heatmover.errors import InvalidInputError, argument
from heatmover.storage.lock import explained, writing

__all__ = ["Schema", "Shards", "Table", "Variable", "sealed", "unsealed"]

FORMAT, VERSION = "heatmover shards", 1
MANIFEST, METADATA, FOLDER, UNFINISHED = "manifest.json", "zarr.json", "shards", ".unfinished-"
TYPES = ("float32", "float64")
KINDS = ("number", "text", "value")
# What may lie in the folder beside the manifest: the lock, the cache of the search, and what `replacing` leaves behind
# when its process is killed.
BESIDE = re.compile(r"\.lock|search|search\.json|\.heatmover-[0-9a-f]{32}\.tmp")
# What a killed writer may have left among the shards; the next one removes it.
LEFT = re.compile(r"\.unfinished-[0-9a-f]{32}|s[0-9]{8}")
# Cells at a node: above, float64 does not tell whole numbers apart.
MOST_CELLS = 2**53
DAMAGED = "it is damaged or incomplete: take it from a copy, or make it anew"
HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
# A record of a shard takes some 500 bytes of the manifest.
LONGEST_MANIFEST = 2**30
# Samples have names that people read. A page of text in its place is a mistake that every message would repeat.
LONGEST_NAME = 1000
# Rows of a shard: so much is lost to a damaged byte, and so much is read to check one.
SHARD_BYTES = 2**28
# Read and hashed at a time.
AT_ONCE = 2**24


@final
@dataclass(frozen=True)
class Variable:
    """A variable of the samples: its name, and whether it holds numbers (NaN where missing), text (None), or values.

    Values are each of their own type, as they were given: truths, whole numbers, numbers, text, None.
    """

    name: str
    kind: Literal["number", "text", "value"]


@final
@dataclass(frozen=True)
class Schema:
    """What every shard of a store holds.

    Attributes
    ----------
    n_features
        Width of the rows.
    dtype
        ``"float32"`` or ``"float64"``.
    variables
        Of the samples, in order.
    model
        Fingerprint of the model that made the rows, or None.
    n_nodes
        Number of nodes, if the cells of each sample at each node are kept too, else None.
    """

    n_features: int
    dtype: Literal["float32", "float64"]
    variables: tuple[Variable, ...] = ()
    model: str | None = None
    n_nodes: int | None = None

    @property
    def arrays(self) -> dict[str, str]:
        """The arrays of a shard and their types, as zarr calls them."""
        found = {"rows": self.dtype, "names": "uint8", "name_ends": "int64"}
        for number, variable in enumerate(self.variables):
            if variable.kind == "number":
                found[f"variable{number}"] = "float64"
            else:
                found |= {f"variable{number}": "uint8", f"variable{number}_ends": "int64"}
                found[f"variable{number}_known"] = "uint8"
        if self.n_nodes is not None:
            found |= dict.fromkeys(("count_ends", "count_nodes", "count_cells"), "int64")
        return found

    def shape(self, array: str, n_rows: int, n_bytes: int) -> tuple[int, ...]:
        """Return the shape of an array of a shard; that of text and of counts depends on its length."""
        if array == "rows":
            return n_rows, self.n_features
        if array in ("count_nodes", "count_cells"):
            return (n_bytes // 8,)
        is_text = self.arrays[array] == "uint8" and not array.endswith("_known")
        return (n_bytes if is_text else n_rows,)


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Samples to store: checked names and variables, rows that are checked when they are written.

    Attributes
    ----------
    rows
        ``(n_rows, n_features)``; a memory map serves for more than fits into memory.
    names
        One per row, distinct.
    variables
        Per variable one value per row: float64 array, list of text and None, or tuple of values of any plain type.
    counts
        ``(n_rows, n_nodes)``, CSR: cells of each sample at each node, if they are to be kept.
    """

    rows: FloatArray
    names: tuple[str, ...]
    variables: Mapping[str, Any] = field(default_factory=dict)
    counts: sp.csr_array | None = None

    @classmethod
    def checked(
        cls,
        rows: FloatArray,
        names: Sequence[object],
        variables: Mapping[str, Any] | None = None,
        *,
        counts: sp.csr_array | None = None,
        as_given: bool = False,
    ) -> Table:
        """Check the names and variables of rows, and bring them into the types that are stored.

        Parameters
        ----------
        rows, names, variables, counts
            As the attributes; variables as any sequences.
        as_given
            Keep every value as it is, a truth a truth and a whole number whole; else a variable of numbers becomes
            float64, and any other one text.
        """
        texts = tuple(_check_name(name) for name in names)
        if len(texts) != len(rows):
            raise InvalidInputError(f"one name per row ({len(rows):,})", counted(len(texts), "name"))
        distinct(texts, "names of samples", "give every sample a name of its own")
        column = _values if as_given else _column
        columns = {
            _check_name(name, "a variable"): column(str(name), values, len(texts))
            for name, values in (variables or {}).items()
        }
        return cls(rows, texts, columns, None if counts is None else _check_counts(counts, len(texts)))

    @property
    def kinds(self) -> tuple[Variable, ...]:
        """The variables and their kinds."""
        return tuple(
            Variable(name, "number" if isinstance(values, np.ndarray) else "value" if type(values) is tuple else "text")
            for name, values in self.variables.items()
        )

    def fitted(self, schema: Schema) -> Table:
        """Return the same samples for a store, or raise if they have another width or other variables.

        A variable of which all values are missing is of the kind that the store has.
        """
        if self.rows.shape[1] != schema.n_features:
            raise InvalidInputError(
                counted(schema.n_features, "feature"), f"rows of {self.rows.shape[1]:,}", "use the same model"
            )
        n_nodes = None if self.counts is None else self.counts.shape[1]
        if n_nodes != schema.n_nodes:
            told = ("no cells", "an atlas adds samples itself") if n_nodes is None else (counted(n_nodes, "node"), "")
            kept = (
                "samples alone"
                if schema.n_nodes is None
                else f"samples with their cells at {counted(schema.n_nodes, 'node')}"
            )
            raise InvalidInputError(f"{kept}, as the store keeps them", *told)
        numbers = {each.name for each in schema.variables if each.kind == "number"}
        columns = {
            name: np.full(len(values), math.nan) if name in numbers and not any(_known(values)) else values
            for name, values in self.variables.items()
        }
        table = replace(self, variables=columns)
        if set(table.kinds) != set(schema.variables):
            raise InvalidInputError(
                f"the variables that are stored ({_told(schema.variables)})",
                _told(table.kinds),
                "give the same ones; values that are missing are None",
            )
        return table

    def part(self, rows: slice) -> Table:
        """Return some of the samples."""
        columns = {name: values[rows] for name, values in self.variables.items()}
        return Table(self.rows[rows], self.names[rows], columns, None if self.counts is None else self.counts[rows])


def _check_name(name: object, what: str = "a sample") -> str:
    text = str(name)
    if not text or len(text) > LONGEST_NAME:
        raise InvalidInputError(
            f"the name of {what} to have 1 to {LONGEST_NAME:,} characters",
            f"{len(text):,}",
            "give a shorter name" if text else "give a name",
        )
    if "\0" in text:
        raise InvalidInputError(f"the name of {what} without NUL characters", quoted(text), "replace them")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"the name of {what} as text", ascii(text[:60]), "half characters") from None
    return text


def _column(name: str, values: Any, n_rows: int) -> Any:
    """Return a variable as float64 if all values are numbers or missing, else as text and None."""
    listed_values = list(values)
    if len(listed_values) != n_rows:
        raise InvalidInputError(
            f"one value of {quoted(name)} per sample ({n_rows:,})", counted(len(listed_values), "value")
        )
    missing = [not known for known in _known(listed_values)]
    known = [value for value, none in zip(listed_values, missing, strict=True) if not none]
    if known and all(_is_number(value) for value in known):
        column = np.array([math.nan if none else float(v) for v, none in zip(listed_values, missing, strict=True)])
        # A whole number that float64 cannot hold would come back as another one.
        changed = [v for v in known if isinstance(v, int | np.integer) and int(float(v)) != int(v)]
        if not changed:
            return column
    return [None if none else _check_text(name, value) for value, none in zip(listed_values, missing, strict=True)]


def _values(name: str, values: Any, n_rows: int) -> tuple[Any, ...]:
    """Return a variable with every value as it is."""
    found = tuple(None if _is_missing(value) else value for value in values)
    if len(found) != n_rows:
        raise InvalidInputError(f"one value of {quoted(name)} per sample ({n_rows:,})", counted(len(found), "value"))
    for value in found:
        if not _is_plain(value):
            raise InvalidInputError(
                f"truths, finite numbers and text as values of {quoted(name)}", quoted(repr(value)), "give them as text"
            )
        if isinstance(value, str):
            _check_text(name, value)
    return found


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _check_counts(counts: sp.csr_array, n_rows: int) -> sp.csr_array:
    """Return counts with their nodes in order, or raise unless every sample has cells, in whole numbers."""
    found = sp.csr_array(counts)
    found.sort_indices()
    whole = np.all((found.data >= 1) & (found.data < MOST_CELLS) & (found.data == np.floor(found.data)))
    if found.shape[0] != n_rows or not whole or np.any(np.diff(found.indptr) == 0):
        raise InvalidInputError(
            f"cells of each of the {counted(n_rows, 'sample')} at nodes, in whole numbers", "others"
        )
    return found


def _known(values: Any) -> list[bool]:
    return [not _is_missing(value) for value in values]


def _is_missing(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")
        or (isinstance(value, float | np.floating) and math.isnan(value))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _check_text(name: str, value: object) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"values of {quoted(name)} as text", ascii(text[:60]), "half characters") from None
    return text


@final
@dataclass(frozen=True)
class _Shard:
    """Record of a shard in the manifest: its rows, and bytes and SHA-256 of each of its arrays."""

    n_rows: int
    bytes: Mapping[str, int]
    sha256: Mapping[str, str]


@final
@dataclass(frozen=True)
class _Manifest:
    """What a store holds at one generation."""

    schema: Schema
    generation: int
    shards: tuple[_Shard, ...]

    def content(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        schema = self.schema
        return {
            "format": FORMAT,
            "version": VERSION,
            "generation": self.generation,
            "n_features": schema.n_features,
            "dtype": schema.dtype,
            "model": schema.model,
            "n_nodes": schema.n_nodes,
            "variables": [{"name": each.name, "kind": each.kind} for each in schema.variables],
            "shards": [
                {"n_rows": each.n_rows, "bytes": dict(each.bytes), "sha256": dict(each.sha256)} for each in self.shards
            ],
        }


class _Names:
    """Names of the samples as far as they have been read; generations of one store share them, for they only grow."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.n_shards = 0
        # Shards whose rows have been compared with their checksum.
        self.checked: set[int] = set()

    def add(self, names: Sequence[str], path: Path) -> None:
        first = len(self.names)
        self.names.extend(names)
        self.row_of.update(zip(names, range(first, first + len(names)), strict=True))
        if len(self.row_of) != len(self.names):
            raise InvalidInputError("every name once", f"that {quoted_path(str(path))} holds one twice", DAMAGED)
        self.n_shards += 1


@final
class Shards:
    """A store of rows at one generation; `create` or `open` makes one.

    It is a value: what is appended later, by whomever, is in another one, which `append` and `refresh` return.

    Attributes
    ----------
    folder
        Where it is.
    schema
        What its rows are.
    generation
        How many appends it is made of.
    n_rows
        Number of samples.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "samples"
    >>> rows = np.array([[0.0, 1.0], [2.0, 3.0]], dtype=np.float32)
    >>> first = Shards.create(place, Schema(2, "float32"), Table.checked(rows, ["a", "b"]))
    >>> second = first.append(Table.checked(rows[:1] + 9, ["c"]))
    >>> first.n_rows, second.n_rows, second.row("c")
    (2, 3, 2)
    >>> np.vstack([block for _, block in Shards.open(place).blocks()]).tolist()
    [[0.0, 1.0], [2.0, 3.0], [9.0, 10.0]]
    """

    def __init__(self, folder: Path, manifest: _Manifest, names: _Names) -> None:
        self.folder = folder
        self._manifest = manifest
        self._names = names
        self._starts = [0, *accumulate(shard.n_rows for shard in manifest.shards)]

    @property
    def schema(self) -> Schema:
        """What its rows are."""
        return self._manifest.schema

    @property
    def generation(self) -> int:
        """How many appends it is made of."""
        return self._manifest.generation

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return self._starts[-1]

    @classmethod
    def create(cls, folder: Path, schema: Schema, table: Table) -> Shards:
        """Make a new store of some samples; it appears complete or not at all."""
        with explained(folder):
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InvalidInputError(
                    "a new or empty folder",
                    f"something at {quoted_path(str(folder))}",
                    "append to it, or choose another place",
                )
            folder.parent.mkdir(parents=True, exist_ok=True)
            aside = folder.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
            try:
                cls.write(aside, schema, table)
                aside.replace(folder)
                sync(folder.parent)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def write(cls, folder: Path, schema: Schema, table: Table) -> None:
        """Write a new store into a folder that somebody else then puts into its place; an OSError comes as it is."""
        (folder / FOLDER).mkdir(parents=True)
        for place in (folder, folder / FOLDER):
            _write_file(place / METADATA, _group())
        empty = cls(folder, _Manifest(schema, 0, ()), _Names())
        empty._commit(empty._write_shards(table.fitted(schema)), known=0)

    @classmethod
    def open(cls, folder: Path) -> Shards:
        """Open the latest generation of a store."""
        return cls(folder, _read_manifest(folder), _Names())

    def refresh(self) -> Shards:
        """Return the latest generation, or itself if that is it."""
        latest = _read_manifest(self.folder)
        mine = self._manifest
        if latest.generation == mine.generation and latest == mine:
            return self
        if latest.schema != mine.schema or latest.shards[: len(mine.shards)] != mine.shards:
            raise InvalidInputError(
                f"what was appended to {quoted_path(str(self.folder))}",
                "another store in its place",
                "open that one by its path",
            )
        return Shards(self.folder, latest, self._names)

    def append(self, table: Table) -> Shards:
        """Append samples to the latest generation and return the next one.

        Parameters
        ----------
        table
            With the width, the variables and the kinds of the schema, and names that are not taken.

        Raises
        ------
        InvalidInputError
            If another process is writing, the table does not fit, or nothing can be written; nothing has changed then.
        """
        with writing(self.folder):
            latest = self.refresh()
            table = table.fitted(latest.schema)
            latest._check_names(table.names)
            latest._clear()
            with explained(self.folder):
                shards = latest._write_shards(table)
                try:
                    return latest._commit(shards, known=latest.generation)
                except BaseException:
                    latest._clear()
                    raise

    def _check_names(self, names: Sequence[str]) -> None:
        self._read_names()
        taken = [name for name in names if name in self._names.row_of]
        if taken:
            raise InvalidInputError(
                "names that are not taken", f"{listed(taken)} in the store already", "give every sample a new name"
            )

    def _clear(self) -> None:
        """Remove what writers that did not finish have left; only a writer may do that."""
        known = {_shard_name(number) for number in range(len(self._manifest.shards))}
        for entry in (self.folder / FOLDER).iterdir():
            if entry.is_dir() and not entry.is_symlink() and entry.name not in known:
                shutil.rmtree(entry, ignore_errors=True)

    def _write_shards(self, table: Table) -> list[_Shard]:
        """Write a table as shards after those that are there, and bring them onto the disk."""
        width = np.dtype(self.schema.dtype).itemsize * self.schema.n_features
        size = max(1, SHARD_BYTES // width)
        edges = [*range(0, len(table.names), size), len(table.names)]
        first = len(self._manifest.shards)
        written: list[_Shard] = []
        try:
            for first_row, last_row in pairwise(edges):
                part = table.part(slice(first_row, last_row))
                written.append(_write_shard(self._place(first + len(written)), self.schema, part, first_row))
        except BaseException:
            for number in range(len(written)):
                shutil.rmtree(self._place(first + number), ignore_errors=True)
            raise
        sync(self.folder / FOLDER)
        return written

    def _place(self, number: int) -> Path:
        return self.folder / FOLDER / _shard_name(number)

    def _commit(self, shards: list[_Shard], *, known: int) -> Shards:
        """Make the shards part of the store."""
        manifest = replace(
            self._manifest, generation=self._manifest.generation + 1, shards=(*self._manifest.shards, *shards)
        )
        # Where there are no locks, another writer may have been here.
        if known and _read_manifest(self.folder).generation != known:
            raise InvalidInputError("one writer at a time", "that another has appended meanwhile", "try again")
        with replacing(self.folder / MANIFEST, "wb") as file:
            file.write(sealed(manifest.content()))
        return Shards(self.folder, manifest, self._names)

    @property
    def names(self) -> Sequence[str]:
        """The name of every sample, in order."""
        self._read_names()
        return self._names.names if len(self._names.names) == self.n_rows else self._names.names[: self.n_rows]

    def row(self, name: str) -> int:
        """Return the row of the sample with a name, or raise with the nearest name."""
        self._read_names()
        row = self._names.row_of.get(name, self.n_rows)
        if row >= self.n_rows:
            find(name, self.names, "the name of a stored sample")
        return row

    def _read_names(self) -> None:
        with self._names.lock:
            for number in range(self._names.n_shards, len(self._manifest.shards)):
                texts = self._text(number, "names", "name_ends")
                self._names.add(texts, self._place(number))

    def variables(self) -> dict[str, Any]:
        """Return every variable: float64 array ``(n_rows,)``, list of text and None, or list of values."""
        columns: dict[str, Any] = {}
        for place, variable in enumerate(self.schema.variables):
            parts = [self._variable(number, place, variable.kind) for number in range(len(self._manifest.shards))]
            columns[variable.name] = (
                np.concatenate(parts) if variable.kind == "number" else [value for part in parts for value in part]
            )
        return columns

    def _variable(self, number: int, place: int, kind: str) -> Any:
        array = f"variable{place}"
        if kind == "number":
            return self._small(number, array)
        known = self._small(number, f"{array}_known")
        texts = self._text(number, array, f"{array}_ends")
        read = self._value if kind == "value" else _same
        return [read(text, number, array) if there else None for text, there in zip(texts, known, strict=True)]

    def _value(self, text: str, number: int, array: str) -> Any:
        """Return a value that was written as JSON, which may hold anything: its checksum does not tell who wrote it."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = [text]
        if value is None or not _is_plain(value):
            raise self._broken(number, array, "it holds something else than plain values")
        return value

    def counts(self) -> sp.csr_array:
        """Return the cells of each sample at each node, ``(n_rows, n_nodes)``, CSR of float64."""
        assert self.schema.n_nodes is not None
        parts = [self._counts(number) for number in range(len(self._manifest.shards))]
        lengths, nodes, cells = (np.concatenate(each) for each in zip(*parts, strict=True))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return sp.csr_array((cells.astype(np.float64), nodes, starts), shape=(self.n_rows, self.schema.n_nodes))

    def _counts(self, number: int) -> tuple[Int64, Int64, Int64]:
        """Return how many nodes each sample of a shard has, which, and the cells there, all in their ranges."""
        ends, nodes, cells = (self._small(number, f"count_{name}") for name in ("ends", "nodes", "cells"))
        # The ends lie within the array before differences are taken, which could overflow else.
        inside = nodes.size == cells.size > 0 and ends.min() > 0 and ends[-1] == ends.max() == nodes.size
        lengths: Int64 = np.diff(ends, prepend=0) if inside else np.zeros(1, dtype=np.int64)
        if lengths.min() < 1:
            raise self._broken(number, "count_ends", "its rows do not follow each other")
        assert self.schema.n_nodes is not None
        rising = np.diff(nodes) > 0
        rising[ends[:-1] - 1] = True
        if nodes.min() < 0 or nodes.max() >= self.schema.n_nodes or not rising.all():
            raise self._broken(number, "count_nodes", "its nodes are out of range or order")
        if cells.min() < 1 or cells.max() >= MOST_CELLS:
            raise self._broken(number, "count_cells", "it holds numbers that no cells have")
        return lengths, nodes, cells

    def _text(self, number: int, array: str, ends: str) -> list[str]:
        """Return the texts of an array; its checksum holds, but whoever made it may have meant harm."""
        data, stops = self._small(number, array).tobytes(), self._small(number, ends)
        places = np.concatenate([[0], stops])
        if (np.diff(places) < 0).any() or places[-1] != len(data):
            raise self._broken(number, array, "the ends of its texts do not fit")
        try:
            return [data[start:stop].decode() for start, stop in pairwise(places.tolist())]
        except UnicodeDecodeError:
            raise self._broken(number, array, "it is not UTF-8") from None

    def _small(self, number: int, array: str) -> npt.NDArray[Any]:
        """Return an array of a shard, checked."""
        shard = self._manifest.shards[number]
        dtype = np.dtype(self.schema.arrays[array]).newbyteorder("<")
        if shard.bytes[array] == 0:
            return np.empty(0, dtype=dtype)
        values = np.empty(shard.bytes[array] // dtype.itemsize, dtype=dtype)
        with self._opened(number, array) as file:
            self._fill(number, file, values)
        self._compare(number, array, hashlib.sha256(values.data).hexdigest())
        return values.astype(dtype.newbyteorder("="), copy=False)

    @contextmanager
    def _opened(self, number: int, array: str) -> Iterator[BinaryIO]:
        """Open the file of an array if it is a plain file of the right size."""
        path = self._file(number, array)
        expected = self._manifest.shards[number].bytes[array]
        try:
            file = _opened_plainly(path)
        except OSError as error:
            raise self._broken(number, array, error.strerror or str(error)) from error
        with file:
            size = os.fstat(file.fileno()).st_size
            if size != expected:
                raise self._broken(number, array, f"{size:,} bytes where {expected:,} were written")
            yield file

    def _file(self, number: int, array: str) -> Path:
        chunk = "c/0/0" if array == "rows" else "c/0"
        return self._place(number) / array / chunk

    def _compare(self, number: int, array: str, checksum: str) -> None:
        if checksum != self._manifest.shards[number].sha256[array]:
            raise self._broken(number, array, "its SHA-256 is another than the manifest's")

    def _broken(self, number: int, array: str, reason: str) -> InvalidInputError:
        return InvalidInputError(
            f"a complete shard of samples ({array})",
            f"that {quoted_path(str(self._place(number)))} cannot be used ({reason})",
            DAMAGED,
        )

    def blocks(self, memory: int = AT_ONCE, start: int = 0) -> Iterator[tuple[int, FloatArray]]:
        """Yield the rows in order: number of the first, and ``(n_rows, n_features)``, in about ``memory`` bytes.

        Shards that end before the row ``start`` are left out. One that was not checked yet is checked on the way: an
        error may come after some of its rows.
        """
        for number, (first, last) in enumerate(pairwise(self._starts)):
            if last <= start:
                continue
            digest = None if number in self._names.checked else hashlib.sha256()
            with self._opened(number, "rows") as file:
                for place, block in self._pieces(number, file, last - first, memory):
                    if digest is not None:
                        digest.update(block.data)
                    yield first + place, block
            if digest is not None:
                self._compare(number, "rows", digest.hexdigest())
                self._names.checked.add(number)

    def _pieces(self, number: int, file: BinaryIO, n_rows: int, memory: int) -> Iterator[tuple[int, FloatArray]]:
        dtype = np.dtype(self.schema.dtype).newbyteorder("<")
        size = max(1, memory // (dtype.itemsize * self.schema.n_features))
        for start in range(0, n_rows, size):
            block = np.empty((min(size, n_rows - start), self.schema.n_features), dtype=dtype)
            self._fill(number, file, block)
            yield start, block

    def _fill(self, number: int, file: BinaryIO, block: npt.NDArray[Any]) -> None:
        """Read an array; ``block`` is in C order."""
        view = memoryview(block.data).cast("B")
        done = 0
        while done < len(view):
            count = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise self._broken(number, "rows", "it became shorter while it was read")
            done += count

    def take(self, rows: Int64) -> FloatArray:
        """Return some rows, in the order asked for, ``(n_taken, n_features)``; their shards are checked first."""
        dtype = np.dtype(self.schema.dtype).newbyteorder("<")
        result = np.empty((rows.size, self.schema.n_features), dtype=dtype)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        width = dtype.itemsize * self.schema.n_features
        for number in np.unique(shard_of).tolist():
            self._check_rows(number)
            with self._opened(number, "rows") as file:
                for place in np.flatnonzero(shard_of == number).tolist():
                    file.seek(width * (int(rows[place]) - self._starts[number]))
                    self._fill(number, file, result[place])
        return result

    def _check_rows(self, number: int) -> None:
        if number not in self._names.checked:
            with self._opened(number, "rows") as file:
                self._compare(number, "rows", _digest(file))
            self._names.checked.add(number)

    def verify(self) -> dict[str, int]:
        """Compare every file of the store with its checksum, or raise for the first that differs.

        Returns
        -------
        dict
            Bytes of each array by its place in the folder.
        """
        self.check_form()
        sizes = {}
        for number, shard in enumerate(self._manifest.shards):
            for array in self.schema.arrays:
                if shard.bytes[array]:
                    with self._opened(number, array) as file:
                        self._compare(number, array, _digest(file))
                sizes[f"{FOLDER}/{_shard_name(number)}/{array}"] = shard.bytes[array]
        return sizes

    def check_form(self) -> None:
        """Raise unless every file but the arrays is as it was written, none is missing, and none is there besides.

        What a killed writer left is no damage. Who reads all arrays after this has compared every bit.
        """
        for place in (self.folder, self.folder / FOLDER):
            _compare_metadata(place / METADATA, _group())
        known = {METADATA, *(_shard_name(number) for number in range(len(self._manifest.shards)))}
        for place, usual, allowed in (
            (self.folder, {MANIFEST, METADATA, FOLDER}, BESIDE),
            (self.folder / FOLDER, known, LEFT),
        ):
            for entry in _entries(place):
                if entry.is_symlink() or not (entry.name in usual or allowed.fullmatch(entry.name)):
                    raise _bad_manifest(Path(entry.path), "it does not belong there")
        for number in range(len(self._manifest.shards)):
            self._check_shard(number)

    def _check_shard(self, number: int) -> None:
        """Raise unless the folder of a shard holds its files and nothing else."""
        shard, place = self._manifest.shards[number], self._place(number)
        expected = {METADATA: _group()}
        for array, dtype in self.schema.arrays.items():
            shape = self.schema.shape(array, shard.n_rows, shard.bytes[array])
            expected[f"{array}/{METADATA}"] = _array(shape, dtype)
        for name, content in expected.items():
            _compare_metadata(place / name, content)
        chunks = {self._file(number, array) for array in self.schema.arrays if shard.bytes[array]}
        for array in self.schema.arrays:
            if shard.bytes[array]:
                with self._opened(number, array):  # raises if its size is another: who reads it asks for so much memory
                    pass
        further = sorted(set(_below(place)) - {place / name for name in expected} - chunks)
        if further:
            raise _bad_manifest(further[0], "it does not belong there")

    def lineage(self, n_rows: int) -> str:
        """Return a fingerprint of the first rows: of all shards that hold them, whatever was appended since."""
        total = hashlib.sha256(json.dumps([self.schema.n_features, self.schema.dtype]).encode())
        for first, shard in zip(self._starts, self._manifest.shards, strict=False):
            if first >= n_rows:
                break
            total.update(f"{shard.n_rows} {shard.sha256['rows']}\n".encode())
        return total.hexdigest()


def _same(text: str, *_: object) -> str:
    return text


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, by name."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise _bad_manifest(folder, error.strerror or str(error)) from error


def _below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, and links, which are not followed."""
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _below(Path(entry.path))
        else:
            yield Path(entry.path)


def _told(variables: Sequence[Variable]) -> str:
    return ", ".join(f"{quoted(each.name)}: {each.kind}" for each in variables) or "none"


def _shard_name(number: int) -> str:
    return f"s{number:08d}"


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return a document with its own checksum: that of the canonical JSON of its content."""
    text = _canonical(content)
    return b'{"content":' + text + b',"sha256":"' + hashlib.sha256(text).hexdigest().encode() + b'"}\n'


def _canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the content of a sealed document; ValueError if it is not as it was written."""
    try:
        document = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict) or set(document) != {"content", "sha256"}:
        raise ValueError("it holds neither content nor checksum")
    content = document["content"]
    if not isinstance(content, dict):
        raise ValueError("its content is no object")
    if hashlib.sha256(_canonical(content)).hexdigest() != document["sha256"] or sealed(content) != data:
        raise ValueError("its SHA-256 does not fit its content")
    return content


def _read_manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    try:
        with _opened_plainly(path) as file:
            if os.fstat(file.fileno()).st_size > LONGEST_MANIFEST:
                raise _bad_manifest(path, "it is too long for one")
            data = file.read()
    except FileNotFoundError as error:
        raise InvalidInputError(
            "a folder of samples",
            f"no {MANIFEST} in {quoted_path(str(folder))}",
            "give the folder that the samples were saved to",
        ) from error
    except OSError as error:
        raise _bad_manifest(path, error.strerror or str(error)) from error
    try:
        _refuse_newer(data, path)
        return _manifest(unsealed(data))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise _bad_manifest(path, str(error).splitlines()[0][:100] if str(error) else "not JSON") from error


def _refuse_newer(data: bytes, path: Path) -> None:
    """Raise if a later heatmover wrote the manifest; its checksum may be made in another way."""
    document = json.loads(data)
    content = document.get("content") if isinstance(document, dict) else None
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise InvalidInputError(
            f"shards of version {VERSION} or earlier",
            f"version {version} in {quoted_path(str(path))}",
            "update heatmover to read it",
        )


def _bad_manifest(path: Path, reason: str) -> InvalidInputError:
    return InvalidInputError(
        "a complete manifest of samples", f"that {quoted_path(str(path))} cannot be used ({reason})", DAMAGED
    )


def _manifest(content: dict[str, Any]) -> _Manifest:
    """Return a manifest from JSON whose checksum holds; ValueError for anything that is not as we write it."""
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ValueError(f"it is not of the format {FORMAT!r}, version {VERSION}")
    variables = tuple(
        Variable(_checked(each["name"], str), _one_of(each["kind"], KINDS)) for each in _objects(content, "variables")
    )
    model = content.get("model")
    schema = Schema(
        _count(content.get("n_features"), 1),
        _one_of(content.get("dtype"), TYPES),
        variables,
        None if model is None else _checked(model, str),
        None if content.get("n_nodes") is None else _count(content["n_nodes"], 1),
    )
    if len({each.name for each in variables}) != len(variables):
        raise ValueError("two variables have one name")
    shards = tuple(_shard(each, schema) for each in _objects(content, "shards"))
    return _Manifest(schema, _count(content.get("generation"), 1), shards)


def _shard(record: dict[str, Any], schema: Schema) -> _Shard:
    n_rows = _count(record.get("n_rows"), 1)
    sizes, checksums = _checked(record.get("bytes"), dict), _checked(record.get("sha256"), dict)
    if not set(sizes) == set(checksums) == set(schema.arrays):
        raise ValueError("a shard has other arrays than the schema")
    for array, dtype in schema.arrays.items():
        size = _count(sizes[array], 0)
        if not HEXADECIMAL.fullmatch(_checked(checksums[array], str)):
            raise ValueError("a checksum is none")
        if math.prod(schema.shape(array, n_rows, size)) * np.dtype(dtype).itemsize != size:
            raise ValueError(f"{array} of a shard has a size that does not fit its rows")
    return _Shard(n_rows, sizes, checksums)


def _objects(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = content.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{key} is no list of objects")
    if key == "variables" and any(set(each) != {"name", "kind"} for each in found):
        raise ValueError("a variable has other fields than name and kind")
    return found


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a field holds {type(value).__name__} where {kind.__name__} was written")
    return value


def _one_of(value: Any, allowed: Sequence[str]) -> Any:
    if value not in allowed:
        raise ValueError(f"a field is none of {', '.join(allowed)}")
    return value


def _count(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**48:
        raise ValueError(f"a number is no whole number of at least {least}")
    return value


def _opened_plainly(path: Path) -> BinaryIO:
    """Open a plain file: neither a link out of the store nor a pipe that would wait for a writer."""
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | careful)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file")
    # Without a buffer: rows are read in large pieces, or one by one from anywhere.
    return os.fdopen(descriptor, "rb", buffering=0)


def _digest(file: BinaryIO) -> str:
    total = hashlib.sha256()
    while data := file.read(AT_ONCE):
        total.update(data)
    return total.hexdigest()


def _write_shard(place: Path, schema: Schema, table: Table, first_row: int) -> _Shard:
    """Write a shard aside, bring it onto the disk and give it its name."""
    aside = place.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")
    sizes, checksums = {}, {}
    try:
        aside.mkdir()
        _write_file(aside / METADATA, _group())
        for array, values in _arrays(schema, table, first_row):
            sizes[array], checksums[array] = values.nbytes, _write_array(aside / array, values)
        sync(aside)
        aside.replace(place)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return _Shard(len(table.names), sizes, checksums)


def _arrays(schema: Schema, table: Table, first_row: int) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield the arrays of a shard, one after the other."""
    rows = np.ascontiguousarray(table.rows, dtype=np.dtype(schema.dtype).newbyteorder("<"))
    check_finite(argument("rows") if first_row == 0 else f"rows from {first_row:,} on", rows)
    yield "rows", rows
    yield from zip(("names", "name_ends"), _joined([name.encode() for name in table.names]), strict=True)
    for number, variable in enumerate(schema.variables):
        values, array = table.variables[variable.name], f"variable{number}"
        if variable.kind == "number":
            yield array, np.asarray(values, dtype="<f8")
            continue
        spelled = _canonical if variable.kind == "value" else str.encode
        encoded = [b"" if value is None else spelled(value) for value in values]
        yield from zip((array, f"{array}_ends"), _joined(encoded), strict=True)
        yield f"{array}_known", np.array([value is not None for value in values], dtype=np.uint8)
    if table.counts is not None:
        yield "count_ends", table.counts.indptr[1:].astype("<i8")
        yield "count_nodes", table.counts.indices.astype("<i8")
        yield "count_cells", table.counts.data.astype("<i8")


def _joined(encoded: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], Int64]:
    """Return texts one after the other, and where each ends."""
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends.astype("<i8")


def _write_array(folder: Path, values: npt.NDArray[Any]) -> str:
    """Write an array as one chunk and return its checksum."""
    chunk = folder / ("c/0/0" if values.ndim == 2 else "c/0")
    chunk.parent.mkdir(parents=True)
    _write_file(folder / METADATA, _array(values.shape, values.dtype.name))
    digest = hashlib.sha256()

    def pieces() -> Iterator[memoryview]:
        flat = values.reshape(-1).view(np.uint8).data
        for start in range(0, len(flat), AT_ONCE):
            digest.update(flat[start : start + AT_ONCE])
            yield flat[start : start + AT_ONCE]

    if values.size:
        _write_file(chunk, pieces)
    for place in (chunk.parent, *([folder / "c"] if values.ndim == 2 else []), folder):
        sync(place)
    return digest.hexdigest()


def _write_file(path: Path, content: bytes | Callable[[], Iterator[memoryview]]) -> None:
    """Write a new file and bring it onto the disk."""
    with path.open("xb") as file:
        for piece in [content] if isinstance(content, bytes) else content():
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _group() -> bytes:
    return _canonical({"zarr_format": 3, "node_type": "group", "attributes": {}})


def _array(shape: tuple[int, ...], dtype: str) -> bytes:
    """Return the metadata of an array in one chunk, as zarr's specification writes it."""
    codec: dict[str, Any] = {"name": "bytes"}
    if np.dtype(dtype).itemsize > 1:
        codec["configuration"] = {"endian": "little"}
    return _canonical(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": dtype,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [max(side, 1) for side in shape]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [codec],
            "attributes": {},
        }
    )


def _compare_metadata(path: Path, expected: bytes) -> None:
    try:
        with _opened_plainly(path) as file:
            found = file.read(len(expected) + 1)
    except OSError as error:
        raise _bad_manifest(path, error.strerror or str(error)) from error
    if found != expected:
        raise _bad_manifest(path, "it differs from what was written")
