"""Represent a value as a record of plain values and arrays, for any package; a `Store` writes and reads its files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.storage.store import Part, Store
from heatmover._base.words import quoted
from heatmover.errors import InvalidInputError


@final
@dataclass(frozen=True, eq=False)
class Record:
    """Plain values, arrays and nested records by name; the method that reads a value checks its type.

    A checksum proves that a file is unchanged, but not who wrote the file. Every value is therefore checked again when
    it is read, so that a forged store cannot make compiled code read outside of arrays.

    Attributes
    ----------
    values
        Values that JSON can hold: None, booleans, whole numbers, finite numbers, text, and lists and mappings of these.
    arrays
        Arrays of booleans or numbers with at least one dimension.
    parts
        Nested records.

    Examples
    --------
    >>> record = Record({"alpha": 0.5}, {"degree": np.ones(3)})
    >>> record.number("alpha"), record.array("degree", np.float64, (3,))
    (0.5, array([1., 1., 1.]))
    >>> record.integer("n_points")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected a stored whole number 'n_points', found nothing.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    parts: Mapping[str, Record] = field(default_factory=dict)

    def integer(self, name: str, *, minimum: int = 0) -> int:
        """Return a whole number of at least ``minimum``, or raise an error."""
        value: int = self._value(name, "whole number", int)
        if value < minimum:
            raise self._unlike(name, "whole number")
        return value

    def number(self, name: str) -> float:
        """Return a finite number, or raise an error."""
        value = self._value(name, "number", int, float)
        if not math.isfinite(value):
            raise self._unlike(name, "number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a finite number or None, or raise an error."""
        return None if name in self.values and self.values[name] is None else self.number(name)

    def truth(self, name: str) -> bool:
        """Return True or False, or raise an error."""
        return bool(self._value(name, "boolean", bool))

    def text(self, name: str, allowed: Collection[str] | None = None) -> str:
        """Return text, or raise an error; if ``allowed`` is given, the text must be one of its members."""
        value: str = self._value(name, "text", str)
        if allowed is not None and value not in allowed:
            raise self._unlike(name, "text", f" among {', '.join(allowed)}")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return text or None, or raise an error."""
        return None if name in self.values and self.values[name] is None else self.text(name)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a mapping, or raise an error."""
        return dict(self._value(name, "mapping", dict))

    def _value(self, name: str, what: str, *kinds: type) -> Any:
        value = self.values.get(name)
        if type(value) not in kinds:
            raise self._unlike(name, what)
        return value

    def _unlike(self, name: str, what: str, rest: str = "") -> InvalidInputError:
        there = quoted(repr(self.values[name])) if name in self.values else "nothing"
        return InvalidInputError(f"a stored {what} {quoted(name)}{rest}", there)

    def array(self, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        """Return an array of this type and shape (None: any length), or raise an error."""
        requested = np.dtype(dtype)
        array = self.arrays.get(name)
        dimensions = ", ".join("any" if side is None else str(side) for side in shape)
        expected = f"a stored array {quoted(name)} of {requested} ({dimensions})"
        if array is None:
            raise InvalidInputError(expected, "none")
        fits = array.ndim == len(shape) and all(
            side is None or side == there for side, there in zip(shape, array.shape, strict=True)
        )
        if array.dtype != requested or not fits:
            raise InvalidInputError(expected, f"{array.dtype} {array.shape}")
        return array

    def floats(self, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        """Return an array of finite numbers in single or double precision, or raise an error."""
        single = name in self.arrays and self.arrays[name].dtype == np.float32
        array = self.array(name, np.float32 if single else np.float64, shape)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(array.sum(dtype=np.float64)) and not np.isfinite(array).all():
                raise InvalidInputError(f"a stored array {quoted(name)} of finite numbers", "NaN or infinity")
        return array

    def places(
        self, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...], below: int, *, least: int = 0
    ) -> npt.NDArray[Any]:
        """Return an array of whole numbers from ``least`` to ``below - 1``, or raise an error."""
        array = self.array(name, dtype, shape)
        if array.size and not (least <= int(array.min()) and int(array.max()) < below):
            raise InvalidInputError(
                f"a stored array {quoted(name)} of numbers from {least} to {below - 1}",
                f"{array.min()} to {array.max()}",
            )
        return array

    def permutation(self, name: str, size: int) -> npt.NDArray[np.intp]:
        """Return a permutation of ``size`` items, or raise an error."""
        order = self.places(name, np.int64, (size,), size)
        if np.bincount(order, minlength=size).max(initial=1) > 1:
            raise InvalidInputError(f"a stored array {quoted(name)} without duplicate indices", "duplicates")
        return order.astype(np.intp, copy=False)

    def part(self, name: str) -> Record:
        """Return a nested record, or raise an error."""
        if name not in self.parts:
            raise InvalidInputError(f"a stored part {quoted(name)}", "none")
        return self.parts[name]

    def matrix(self, name: str, shape: tuple[int, int] | None = None) -> sp.csr_array:
        """Return a sparse matrix that `matrix_record` stored, or raise an error if its arrays are inconsistent."""
        part = self.part(name)
        sides = (part.integer("rows"), part.integer("columns"))
        if shape is not None and sides != shape:
            raise InvalidInputError(f"a stored matrix {quoted(name)} of shape {shape}", f"{sides}")
        wide = part.text("places", ("int32", "int64"))
        data = part.floats("data", (None,))
        indices = part.places("indices", wide, (data.size,), max(sides[1], 1))
        starts = part.array("indptr", wide, (sides[0] + 1,))
        if starts[0] != 0 or starts[-1] != data.size or np.any(np.diff(starts) < 0):
            raise InvalidInputError(f"a stored matrix {quoted(name)} with valid row pointers", "invalid ones")
        return sp.csr_array((data, indices, starts), shape=sides)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return texts that `texts_record` stored, or raise an error."""
        texts = self.part(name).values.get("texts")
        if not isinstance(texts, list) or not all(type(text) is str for text in texts):
            raise InvalidInputError(f"stored texts {quoted(name)}", "other values")
        return tuple(texts)

    def part_of_store(self) -> Part:
        """Return the record as a part of a store: its values as one document, and its arrays by their paths."""
        return Part({"record": self._document()}, dict(self._flat()))

    def _document(self) -> dict[str, Any]:
        inner = {name: part._document() for name, part in self.parts.items()}
        return {"values": dict(self.values), "arrays": sorted(self.arrays), "parts": inner}

    def _flat(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        yield from self.arrays.items()
        for name, part in self.parts.items():
            for path, array in part._flat():
                yield f"{name}/{path}", array

    @classmethod
    def from_store(cls, store: Store) -> Record:
        """Check every file of a store and return the record that the store holds."""
        store.check()
        try:
            part = store.manifest.parts[0]
            arrays = {path: store.array(0, path) for path in part["arrays"]}
            return _record(part["values"]["record"], arrays)
        except (LookupError, TypeError, AttributeError) as error:
            raise store.damage("manifest.json", "it does not describe a record") from error


def matrix_record(matrix: sp.csr_array) -> Record:
    """Return a sparse matrix as a record of its data, indices and row pointers.

    Examples
    --------
    >>> record = Record(parts={"S": matrix_record(sp.csr_array(np.eye(2)))})
    >>> record.matrix("S").toarray()
    array([[1., 0.],
           [0., 1.]])
    """
    rows, columns = matrix.shape
    # SciPy keeps indices and row pointers in the same type.
    values = {"rows": int(rows), "columns": int(columns), "places": matrix.indices.dtype.name}
    return Record(values, {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr})


def texts_record(texts: Sequence[str]) -> Record:
    """Return texts as a record.

    Examples
    --------
    >>> Record(parts={"names": texts_record(["a", "", "µ"])}).texts("names")
    ('a', '', 'µ')
    """
    return Record({"texts": list(texts)})


def _record(document: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], before: str = "") -> Record:
    """Build the record described by a document, using the stored arrays."""
    own = {name: arrays[before + name] for name in document["arrays"]}
    parts = {name: _record(part, arrays, f"{before}{name}/") for name, part in document["parts"].items()}
    return Record(dict(document["values"]), own, parts)
