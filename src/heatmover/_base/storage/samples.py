"""Samples in a store: rows of features with names, variables and counts of cells, to which more can be appended."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.storage.store import Part, Store, writing
from heatmover._base.types import FloatArray, Int64
from heatmover._base.validation import check_finite, sample_columns
from heatmover._base.words import counted, distinct, find, listed, quoted
from heatmover.errors import InvalidInputError, argument

__all__ = ["Samples", "Schema", "Table", "parts_of"]

TYPES = ("float32", "float64")
# Cells at a node: above, float64 does not tell whole numbers apart.
MOST_CELLS = 2**53
# Samples have names that people read. A page of text in its place is a mistake that every message would repeat.
LONGEST_NAME = 1000
# Rows of a part: so much is in memory while it is written, and so much is read to check one.
PART_BYTES = 2**28
# Rows that are read at a time.
AT_ONCE = 2**24


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
        Names of the sample metadata, in order.
    model
        Fingerprint of the model that made the rows, or None.
    n_nodes
        Number of nodes, if the cells of each sample at each node are kept too, else None.
    """

    n_features: int
    dtype: Literal["float32", "float64"]
    variables: tuple[str, ...] = ()
    model: str | None = None
    n_nodes: int | None = None

    def values(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Schema:
        """Return the schema that a manifest tells, or raise ValueError."""
        schema = cls(**{**values, "variables": tuple(values["variables"])})
        counts = schema.n_features, 1 if schema.n_nodes is None else schema.n_nodes
        whole = all(type(count) is int and count >= 1 for count in counts)
        if not whole or schema.dtype not in TYPES or not all(type(name) is str for name in schema.variables):
            raise ValueError("what the samples are is not said as it was written")
        return schema


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
        Per variable one value per row, each of its own type: boolean, whole number, finite number, text, or None.
    counts
        ``(n_rows, n_nodes)``, CSR: cells of each sample at each node, if they are to be kept.
    """

    rows: FloatArray
    names: tuple[str, ...]
    variables: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    counts: sp.csr_array | None = None

    @classmethod
    def checked(
        cls,
        rows: FloatArray,
        names: Sequence[object],
        variables: Mapping[str, Any] | None = None,
        *,
        counts: sp.csr_array | None = None,
    ) -> Table:
        """Check the names and variables of rows; values keep their types, and dates become text.

        Parameters
        ----------
        rows, names, variables, counts
            As the attributes; variables as any sequences.
        """
        texts = tuple(_check_name(name) for name in names)
        if len(texts) != len(rows):
            raise InvalidInputError(f"one name per row ({len(rows):,})", counted(len(texts), "name"))
        distinct(texts, "names of samples", "give every sample a name of its own")
        given = {} if variables is None else sample_columns(variables, texts)
        columns = {
            _check_name(name, "a variable"): tuple(_plain(name, value) for value in values)
            for name, values in given.items()
        }
        return cls(rows, texts, columns, None if counts is None else _check_counts(counts, len(texts)))

    def fitted(self, schema: Schema) -> Table:
        """Return the same samples for a store, or raise if they have another width or other variables."""
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
        if set(self.variables) != set(schema.variables):
            raise InvalidInputError(
                f"the variables that are stored ({listed(schema.variables) or 'none'})",
                listed(self.variables) or "none",
                "give the same ones; values that are missing are None",
            )
        return self

    def part(self, rows: slice) -> Table:
        """Return some of the samples."""
        columns = {name: values[rows] for name, values in self.variables.items()}
        return Table(self.rows[rows], self.names[rows], columns, None if self.counts is None else self.counts[rows])


def _check_name(name: object, what: str = "a sample") -> str:
    text = str(name)
    if _is_missing(name) or not text.strip():
        raise InvalidInputError(f"a name for {what}", "an empty or missing one", f"give {what} a name")
    if len(text) > LONGEST_NAME:
        raise InvalidInputError(
            f"the name of {what} to have at most {LONGEST_NAME:,} characters", f"{len(text):,}", "give a shorter name"
        )
    if "\0" in text:
        raise InvalidInputError(f"the name of {what} without NUL characters", quoted(text), "replace them")
    _check_encodes(f"the name of {what}", text)
    return text


def _plain(name: str, value: Any) -> Any:
    """Return a value as JSON keeps it, or raise; whatever is missing is None."""
    if _is_missing(value):
        return None
    if hasattr(value, "isoformat") or isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    plain = value.item() if isinstance(value, np.generic) else value
    if not _is_plain(plain):
        raise InvalidInputError(
            f"truths, finite numbers, text or dates as values of {quoted(name)}",
            quoted(repr(value)),
            "give them as text",
        )
    if isinstance(plain, str):
        _check_encodes(f"values of {quoted(name)}", plain)
    return plain


def _is_plain(value: object) -> bool:
    return value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _check_encodes(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} as text", ascii(text[:60]), "half characters") from None


def _check_counts(counts: sp.csr_array, n_rows: int) -> sp.csr_array:
    """Return counts with their nodes in order, or raise unless every sample has cells, in whole numbers."""
    ordered = sp.csr_array(counts)
    ordered.sort_indices()
    whole = np.all((ordered.data >= 1) & (ordered.data < MOST_CELLS) & (ordered.data == np.floor(ordered.data)))
    if ordered.shape[0] != n_rows or not whole or np.any(np.diff(ordered.indptr) == 0):
        raise InvalidInputError(
            f"cells of each of the {counted(n_rows, 'sample')} at nodes, in whole numbers", "others"
        )
    return ordered


def _is_missing(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType", "MaskedConstant")
        or (isinstance(value, float | np.floating) and math.isnan(value))
    )


@final
class Samples:
    """The samples of a store at one generation; `create` or `open` makes them.

    They are a value: what is appended later, by whomever, is in another one, which `append` and `refresh` return.

    Attributes
    ----------
    store
        Where they are.
    schema
        What their rows are.
    n_rows
        How many they are.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "samples"
    >>> rows = np.array([[0.0, 1.0], [2.0, 3.0]], dtype=np.float32)
    >>> table, schema = Table.checked(rows, ["a", "b"]), Schema(2, "float32")
    >>> first = Samples(Store.create(place, "rows", 1, parts_of(table, schema), values={"samples": schema.values()}))
    >>> second = first.append(Table.checked(rows[:1] + 9, ["c"]))
    >>> first.n_rows, second.n_rows, second.row("c")
    (2, 3, 2)
    >>> np.vstack([block for _, block in second.blocks()]).tolist()
    [[0.0, 1.0], [2.0, 3.0], [9.0, 10.0]]
    """

    def __init__(self, store: Store, names: list[str] | None = None) -> None:
        self.store = store
        self._names = names
        described = enumerate(store.manifest.parts)
        self._parts = [number for number, part in described if "n_rows" in part["values"]]
        try:
            self.schema = Schema.from_values(store.manifest.values["samples"])
            counts = [int(store.manifest.parts[number]["values"]["n_rows"]) for number in self._parts]
        except (KeyError, TypeError, ValueError) as error:
            raise store.damage("manifest.json", "it tells of no samples") from error
        self._starts = [0, *accumulate(counts)]

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return self._starts[-1]

    def refresh(self) -> Samples:
        """Return the latest generation, or itself if that is it."""
        latest = self.store.refresh()
        return self if latest is self.store else Samples(latest)

    def append(self, table: Table) -> Samples:
        """Append samples to the latest generation and return the next one.

        Parameters
        ----------
        table
            With the width and the variables of the schema, and names that are not taken.

        Raises
        ------
        InvalidInputError
            If another process is writing, the table does not fit, or nothing can be written; nothing has changed then.
        """
        with writing(self.store.folder):
            latest = self.refresh()
            table = table.fitted(latest.schema)
            taken = [name for name in table.names if name in latest._row_of]
            if taken:
                raise InvalidInputError(
                    "names that are not taken", f"{listed(taken)} in the store already", "give every sample a new name"
                )
            return Samples(latest.store.append(parts_of(table, latest.schema)), [*latest.names, *table.names])

    @property
    def names(self) -> list[str]:
        """The name of every sample, in order."""
        if self._names is None:
            names = [name for place in range(len(self._parts)) for name in self._table(place)["names"]]
            if len(set(names)) != len(names):
                raise self._damage(len(self._parts) - 1, "table", "it holds a name twice")
            self._names = names
        return self._names

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def row(self, name: str) -> int:
        """Return the row of the sample with a name, or raise with the nearest name."""
        return self._row_of[name if name in self._row_of else find(name, self.names, "the name of a stored sample")]

    def variables(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of every variable, one per sample."""
        tables = [self._table(place)["variables"] for place in range(len(self._parts))]
        return {
            name: tuple(value for table in tables for value in table[column])
            for column, name in enumerate(self.schema.variables)
        }

    def _table(self, place: int) -> dict[str, Any]:
        """Return names and variables of a part; its checksum holds, but whoever made it may have meant harm."""
        n_rows, n_columns = self._starts[place + 1] - self._starts[place], len(self.schema.variables)
        try:
            table: dict[str, Any] = json.loads(self._arrays(place)["table"].tobytes())
            names, columns = table["names"], table["variables"]
            fits = len(columns) == n_columns and all(len(column) == n_rows for column in (names, *columns))
            fits = fits and all(type(name) is str for name in names)
            if fits and all(_is_plain(value) for column in columns for value in column):
                return table
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self._damage(place, "table", "it holds something else than names and variables")

    def counts(self) -> sp.csr_array:
        """Return the cells of each sample at each node, ``(n_rows, n_nodes)``, CSR of float64."""
        assert self.schema.n_nodes is not None
        return sp.csr_array(sp.vstack([self._counts(place) for place in range(len(self._parts))], format="csr"))

    def _counts(self, place: int) -> sp.csr_array:
        """Return the cells of each sample of a part at each node, or raise if they are no counts."""
        arrays, n_rows = self._arrays(place), self._starts[place + 1] - self._starts[place]
        try:
            ends, nodes, cells = (arrays[f"count_{name}"] for name in ("ends", "nodes", "cells"))
            starts = np.r_[0, ends]
            counts = sp.csr_array((cells.astype(np.float64), nodes, starts), shape=(n_rows, self.schema.n_nodes))
            counts.check_format(full_check=True)
            if starts[-1] == nodes.size and counts.has_canonical_format:
                return _check_counts(counts, n_rows)
        except (LookupError, ValueError, TypeError):
            pass
        raise self._damage(place, "count_nodes", "it holds no counts of cells")

    def _arrays(self, place: int) -> dict[str, npt.NDArray[Any]]:
        return self.store.arrays(self._parts[place], but="rows")

    def _damage(self, place: int, array: str, reason: str) -> InvalidInputError:
        return self.store.damage(f"{self.store.manifest.parts[self._parts[place]]['folder']}/{array}", reason)

    def _rows(self, place: int) -> Any:
        """Return the rows of a part, which stay on the disk."""
        rows = self.store.mapped(self._parts[place], "rows")
        shape = self._starts[place + 1] - self._starts[place], self.schema.n_features
        if rows.shape != shape or rows.dtype != np.dtype(self.schema.dtype):
            raise self._damage(place, "rows", "its type or shape is another")
        return rows

    def blocks(self, memory: int = AT_ONCE, start: int = 0) -> Iterator[tuple[int, FloatArray]]:
        """Yield the rows from ``start`` on: number of the first, and ``(n_rows, n_features)``, of so many bytes."""
        size = max(1, memory // (np.dtype(self.schema.dtype).itemsize * self.schema.n_features))
        for place, (first, last) in enumerate(pairwise(self._starts)):
            if last > start:
                rows = self._rows(place)
                for begin in range(max(start - first, 0), last - first, size):
                    # Read, not mapped: pages of a mapped file count as memory of the process.
                    shape = min(size, last - first - begin), self.schema.n_features
                    offset = begin * rows.itemsize * shape[1]
                    block = np.fromfile(rows.filename, rows.dtype, count=shape[0] * shape[1], offset=offset)
                    yield first + begin, block.reshape(shape)

    def take(self, rows: Int64) -> FloatArray:
        """Return some rows, in the order asked for, ``(n_taken, n_features)``."""
        result = np.empty((rows.size, self.schema.n_features), dtype=self.schema.dtype)
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        for place in np.unique(part_of).tolist():
            here = part_of == place
            result[here] = self._rows(place)[rows[here] - self._starts[place]]
        return result

    def lineage(self, n_rows: int) -> str:
        """Return a fingerprint of the first rows: of all parts that hold them, whatever was appended since."""
        total = hashlib.sha256(json.dumps([self.schema.n_features, self.schema.dtype]).encode())
        for first, number in zip(self._starts, self._parts, strict=False):
            if first < n_rows:
                rows = f"{self.store.manifest.parts[number]['folder']}/rows/"
                files = sorted(file for file in self.store.manifest.files.items() if file[0].startswith(rows))
                total.update(json.dumps(files).encode())
        return total.hexdigest()


def parts_of(table: Table, schema: Schema) -> Iterator[Part]:
    """Yield the parts of a store that hold a table, each of a size that fits into memory."""
    table = table.fitted(schema)
    size = max(1, PART_BYTES // (np.dtype(schema.dtype).itemsize * schema.n_features))
    for first in range(0, len(table.names), size):
        part = table.part(slice(first, first + size))
        rows = np.ascontiguousarray(part.rows, dtype=schema.dtype)
        check_finite(argument("rows") if first == 0 else f"rows from {first:,} on", rows)
        columns = [part.variables[name] for name in schema.variables]
        text = json.dumps({"names": part.names, "variables": columns}).encode()
        arrays: dict[str, Any] = {"rows": rows, "table": np.frombuffer(text, dtype=np.uint8)}
        if part.counts is not None:
            arrays["count_ends"] = part.counts.indptr[1:].astype(np.int64)
            arrays["count_nodes"] = part.counts.indices.astype(np.int64)
            arrays["count_cells"] = part.counts.data.astype(np.int64)
        yield Part({"n_rows": len(part.names)}, arrays)
