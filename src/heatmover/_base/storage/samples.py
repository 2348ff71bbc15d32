"""Store features, names, metadata and cell counts of samples on disk, and append samples; for atlases and indexes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.storage.store import Part, Store, writing
from heatmover._base.types import FloatArray, Int64
from heatmover._base.validation import check_finite, is_missing, sample_columns
from heatmover._base.words import counted, distinct, listed, quoted
from heatmover.errors import InvalidInputError

TYPES = ("float32", "float64")
# Largest number of cells at a node, because float64 cannot represent every larger whole number.
MOST_CELLS = 2**53
# Longest sample name. A name as long as a page is a mistake, and every message would repeat it.
LONGEST_NAME = 1000
# Largest size of a part in bytes. A part is in memory while it is written and while its rows are searched. Smaller
# parts would slow down searches, because a search spends about 20 ms per part on choosing groups of columns.
PART_BYTES = 2**26


@final
@dataclass(frozen=True)
class Schema:
    """Description of the content that all parts of a store of samples have in common.

    Attributes
    ----------
    n_features
        Width of the rows.
    dtype
        Type of the rows, ``"float32"`` or ``"float64"``.
    variables
        Names of the sample metadata, in order.
    model
        Fingerprint of the model that computed the rows, or None.
    n_nodes
        Number of nodes if the store keeps the number of cells of each sample at each node, else None.
    """

    n_features: int
    dtype: Literal["float32", "float64"]
    variables: tuple[str, ...] = ()
    model: str | None = None
    n_nodes: int | None = None

    def values(self) -> dict[str, Any]:
        """Return the schema as values for a manifest."""
        return {"samples": asdict(self)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Schema:
        """Build the schema from the values of a manifest, or raise ValueError."""
        schema = cls(**{**values, "variables": tuple(values["variables"])})
        counts = schema.n_features, 1 if schema.n_nodes is None else schema.n_nodes
        whole = all(type(count) is int and count >= 1 for count in counts)
        if not whole or schema.dtype not in TYPES or not all(type(name) is str for name in schema.variables):
            raise ValueError("the description of the samples is not valid")
        return schema


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Samples in memory: rows, names, sample metadata and cell counts.

    Attributes
    ----------
    rows
        Features ``(n_rows, n_features)``; a memory map if the features do not fit into memory.
    names
        Distinct names of the samples, one per row.
    variables
        Sample metadata by variable, with one value per row: a boolean, a whole or finite number, text or None.
    counts
        Number of cells of each sample at each node, CSR ``(n_rows, n_nodes)``; None if counts are not kept.
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
        """Build a table after checking rows, names and variables; values keep their types, and dates become text.

        Parameters
        ----------
        rows, names, variables, counts
            Attributes of the table; the values of a variable may be any sequence, such as a list or an array.
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
        check_finite("rows", rows)
        return cls(rows, texts, columns, None if counts is None else _check_counts(counts, len(texts)))

    def schema(self, model: str | None = None) -> Schema:
        """Return the schema for a store of these samples."""
        dtype: Literal["float32", "float64"] = "float32" if self.rows.dtype == np.float32 else "float64"
        n_nodes = None if self.counts is None else self.counts.shape[1]
        return Schema(self.rows.shape[1], dtype, tuple(self.variables), model, n_nodes)

    def check_fits(self, schema: Schema) -> None:
        """Raise an error if the width, the nodes or the metadata of these samples differ from the schema of a store."""
        if self.rows.shape[1] != schema.n_features:
            raise InvalidInputError(
                f"rows of {counted(schema.n_features, 'feature')}",
                f"rows of {self.rows.shape[1]:,}",
                "use the same model",
            )
        n_nodes = None if self.counts is None else self.counts.shape[1]
        if n_nodes != schema.n_nodes:
            actual = "samples without cell counts" if n_nodes is None else f"cell counts at {counted(n_nodes, 'node')}"
            kept = "samples without cell counts"
            if schema.n_nodes is not None:
                kept = f"samples with cell counts at {counted(schema.n_nodes, 'node')}"
            advice = "use the methods of the atlas" if n_nodes is None else ""
            raise InvalidInputError(f"{kept}, as in the store", actual, advice)
        if set(self.variables) != set(schema.variables):
            raise InvalidInputError(
                f"the sample metadata of the store ({listed(schema.variables) or 'none'})",
                listed(self.variables) or "none",
                "give the same columns, with None for missing values",
            )

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return len(self.names)

    def append(self, other: Table) -> Table:
        """Return these samples followed by other samples of the same schema."""
        other.check_fits(self.schema())
        _check_new(other.names, self.names)
        counts = None if self.counts is None else sp.csr_array(sp.vstack([self.counts, other.counts], format="csr"))
        columns = {name: values + other.variables[name] for name, values in self.variables.items()}
        return Table(np.concatenate([self.rows, other.rows]), (*self.names, *other.names), columns, counts)

    def parts(self, schema: Schema) -> Iterator[Part]:
        """Yield these samples as parts of a store, each of at most `PART_BYTES`."""
        size = max(1, PART_BYTES // (np.dtype(schema.dtype).itemsize * schema.n_features))
        for part in (slice(first, first + size) for first in range(0, len(self.names), size)):
            columns = [self.variables[name][part] for name in schema.variables]
            text = json.dumps({"names": self.names[part], "variables": columns}).encode()
            rows = np.ascontiguousarray(self.rows[part], dtype=schema.dtype)
            arrays: dict[str, Any] = {"rows": rows, "table": np.frombuffer(text, dtype=np.uint8)}
            if self.counts is not None:
                counts = self.counts[part]
                arrays["count_ends"] = counts.indptr[1:].astype(np.int64)
                arrays["count_nodes"] = counts.indices.astype(np.int64)
                arrays["count_cells"] = counts.data.astype(np.int64)
            yield Part({"n_rows": len(rows)}, arrays)


def _check_new(names: Sequence[str], stored: Sequence[str]) -> None:
    there = set(stored)
    taken = [name for name in names if name in there]
    if taken:
        raise InvalidInputError(
            "new sample names", f"{listed(taken)}, already in the store", "give every sample a new name"
        )


def _check_name(name: object, what: str = "a sample") -> str:
    text = str(name)
    if is_missing(name) or not text.strip():
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
    """Return a value that JSON can hold, or raise an error; a missing value becomes None."""
    if is_missing(value):
        return None
    if hasattr(value, "isoformat") or isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    plain = value.item() if isinstance(value, np.generic) else value
    if not _is_plain(plain):
        raise InvalidInputError(
            f"booleans, finite numbers, text or dates as values of {quoted(name)}",
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
        raise InvalidInputError(f"{what} as text", ascii(text[:60]), "remove the unpaired surrogates") from None


def _check_counts(counts: sp.csr_array, n_rows: int) -> sp.csr_array:
    """Return counts with sorted nodes; raise an error if a count is not a positive whole number or is missing."""
    ordered = sp.csr_array(counts)
    ordered.sort_indices()
    whole = np.all((ordered.data >= 1) & (ordered.data < MOST_CELLS) & (ordered.data == np.floor(ordered.data)))
    if ordered.shape[0] != n_rows or not whole or np.any(np.diff(ordered.indptr) == 0):
        raise InvalidInputError(
            f"whole numbers of cells at the nodes for each of the {counted(n_rows, 'sample')}", "other values"
        )
    return ordered


@final
class Samples:
    """Samples of a store at one generation.

    This object never changes: `append` and `refresh` return the samples of a later generation.

    Attributes
    ----------
    store
        Store on disk.
    schema
        Description of the content that all parts of the store have in common.
    n_rows
        Number of samples.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "samples"
    >>> rows = np.array([[0.0, 1.0], [2.0, 3.0]], dtype=np.float32)
    >>> table = Table.checked(rows, ["a", "b"])
    >>> schema = table.schema()
    >>> first = Samples(Store.create(place, "rows", 1, table.parts(schema), values=schema.values()))
    >>> second = first.append(Table.checked(rows[:1] + 9, ["c"]))
    >>> first.n_rows, second.n_rows, second.names
    (2, 3, ('a', 'b', 'c'))
    >>> second.rows().tolist()
    [[0.0, 1.0], [2.0, 3.0], [9.0, 10.0]]
    """

    def __init__(self, store: Store, tables: Sequence[dict[str, Any]] = ()) -> None:
        self.store = store
        # Names and metadata of the first parts, if an object of an earlier generation has already read them.
        self._read = tables
        described = enumerate(store.manifest.parts)
        self._parts = [number for number, part in described if "n_rows" in part["values"]]
        try:
            self.schema = Schema.from_values(store.manifest.values["samples"])
            counts = [int(store.manifest.parts[number]["values"]["n_rows"]) for number in self._parts]
        except (KeyError, TypeError, ValueError) as error:
            raise store.damage("manifest.json", "it does not describe samples") from error
        self._starts = [0, *accumulate(counts)]

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return self._starts[-1]

    def refresh(self) -> Samples:
        """Return the samples of the latest generation, which may be this generation."""
        latest = self.store.refresh()
        return self if latest is self.store else Samples(latest)

    def append(self, table: Table) -> Samples:
        """Append samples to the latest generation and return the next one.

        Parameters
        ----------
        table
            Samples with the width and the metadata of the schema, and new names.

        Raises
        ------
        InvalidInputError
            If another process is writing, the table does not match the schema, or writing to the disk fails. The store
            is then unchanged.
        """
        with writing(self.store.folder):
            latest = self.refresh()
            table.check_fits(latest.schema)
            _check_new(table.names, latest.names)
            return Samples(latest.store.append(table.parts(latest.schema)), latest._tables)

    @cached_property
    def _tables(self) -> list[dict[str, Any]]:
        return [*self._read, *map(self._table, range(len(self._read), len(self._parts)))]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all samples, in order."""
        names = tuple(name for table in self._tables for name in table["names"])
        if len(set(names)) != len(names):
            raise self._damage(len(self._parts) - 1, "table", "it contains a name twice")
        return names

    @cached_property
    def variables(self) -> dict[str, tuple[Any, ...]]:
        """Sample metadata, with one value per sample in every column."""
        return {
            name: tuple(value for table in self._tables for value in table["variables"][column])
            for column, name in enumerate(self.schema.variables)
        }

    def _table(self, place: int) -> dict[str, Any]:
        """Return names and variables of a part, or raise an error if they are invalid despite a correct checksum."""
        n_rows, n_columns = self._starts[place + 1] - self._starts[place], len(self.schema.variables)
        try:
            table: dict[str, Any] = json.loads(self.store.array(self._parts[place], "table").tobytes())
            names, columns = table["names"], table["variables"]
            fits = len(columns) == n_columns and all(len(column) == n_rows for column in (names, *columns))
            fits = fits and all(type(name) is str for name in names)
            if fits and all(_is_plain(value) for column in columns for value in column):
                return table
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self._damage(place, "table", "it contains something other than names and sample metadata")

    def table(self) -> Table:
        """Read all samples into memory, with counts of cells if the store keeps them."""
        every = None
        if self.schema.n_nodes is not None:
            counts = [self._counts(place) for place in range(len(self._parts))]
            every = sp.csr_array(sp.vstack(counts, format="csr"))
        return Table(self.rows(), self.names, self.variables, every)

    def _counts(self, place: int) -> sp.csr_array:
        """Return the number of cells of each sample of a part at each node, or raise an error if they are invalid."""
        n_rows, names = self._starts[place + 1] - self._starts[place], ("ends", "nodes", "cells")
        ends, nodes, cells = (self.store.array(self._parts[place], f"count_{name}") for name in names)
        try:
            starts = np.r_[0, ends]
            counts = sp.csr_array((cells.astype(np.float64), nodes, starts), shape=(n_rows, self.schema.n_nodes))
            counts.check_format(full_check=True)
            if starts[-1] == nodes.size and counts.has_canonical_format:
                return _check_counts(counts, n_rows)
        except (LookupError, ValueError, TypeError):
            pass
        raise self._damage(place, "count_nodes", "it does not contain cell counts")

    def _damage(self, place: int, array: str, reason: str) -> InvalidInputError:
        return self.store.damage(f"{self.store.manifest.parts[self._parts[place]]['folder']}/{array}", reason)

    def _mapped(self, place: int) -> Any:
        """Return the rows of a part as a memory map."""
        rows = self.store.array(self._parts[place], "rows", mapped=True)
        shape = self._starts[place + 1] - self._starts[place], self.schema.n_features
        if rows.shape != shape or rows.dtype != np.dtype(self.schema.dtype):
            raise self._damage(place, "rows", "its type or shape is wrong")
        return rows

    def blocks(self, start: int = 0) -> Iterator[tuple[int, FloatArray]]:
        """Yield the rows from ``start`` on, part by part.

        Each part is a pair: the index of its first row, and its rows ``(n_rows, n_features)``.
        """
        for place, first in enumerate(self._starts[:-1]):
            if self._starts[place + 1] > start:
                rows, skipped = self._mapped(place), max(start - first, 0)
                # Rows are read instead of mapped, because the pages of a mapped file count as memory of the process.
                yield first + skipped, np.fromfile(rows.filename, rows.dtype).reshape(rows.shape)[skipped:]

    def rows(self) -> FloatArray:
        """Return all rows, ``(n_rows, n_features)``."""
        every = np.empty((self.n_rows, self.schema.n_features), dtype=self.schema.dtype)
        for first, block in self.blocks():
            every[first : first + len(block)] = block
        check_finite("the stored rows", every)
        return every

    def take(self, rows: Int64) -> FloatArray:
        """Return the rows at these indices, in this order, ``(n_taken, n_features)``."""
        result = np.empty((rows.size, self.schema.n_features), dtype=self.schema.dtype)
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        for place in np.unique(part_of).tolist():
            here = part_of == place
            result[here] = self._mapped(place)[rows[here] - self._starts[place]]
        return result

    def lineage(self, n_rows: int) -> str:
        """Return a fingerprint of all parts that hold the first ``n_rows`` rows; new samples do not change it."""
        first = [part for start, part in zip(self._starts, self._parts, strict=False) if start < n_rows]
        folders = tuple(f"{self.store.manifest.parts[part]['folder']}/rows/" for part in first)
        files = sorted(file for file in self.store.manifest.files.items() if file[0].startswith(folders))
        return hashlib.sha256(json.dumps([self.schema.n_features, self.schema.dtype, files]).encode()).hexdigest()
