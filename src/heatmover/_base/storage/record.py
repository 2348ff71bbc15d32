"""`Record`: part of a model as values, arrays and nested records; written to a store, checked when read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.storage.store import Part, Store
from heatmover._base.words import quoted
from heatmover.errors import InvalidInputError

__all__ = ["Record", "matrix_record", "texts_record"]


@final
@dataclass(frozen=True, eq=False)
class Record:
    """Plain values, arrays and further records, each by name; whoever reads one says what it expects.

    A checksum proves that a file is what was written, not who wrote it: every value is checked again when it is read,
    so that no forged store leads compiled code out of its arrays.

    Attributes
    ----------
    values
        What JSON knows: None, truths, whole numbers, finite numbers, text, lists and mappings of them.
    arrays
        Of truths or numbers, with at least one dimension.
    parts
        Records.

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
        """Return a whole number of at least ``minimum``, or raise."""
        value = self.values.get(name)
        if type(value) is not int or value < minimum:
            raise self._unlike(f"whole number {quoted(name)}", name)
        return value

    def number(self, name: str) -> float:
        """Return a finite number, or raise."""
        value = self.values.get(name)
        if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
            raise self._unlike(f"number {quoted(name)}", name)
        return float(value)  # type: ignore[arg-type]

    def optional_number(self, name: str) -> float | None:
        """Return a finite number or None, or raise."""
        return None if name in self.values and self.values[name] is None else self.number(name)

    def truth(self, name: str) -> bool:
        """Return True or False, or raise."""
        value = self.values.get(name)
        if type(value) is not bool:
            raise self._unlike(f"truth {quoted(name)}", name)
        return value

    def text(self, name: str, allowed: Iterable[str] | None = None) -> str:
        """Return text, one of the ``allowed`` words if they are given, or raise."""
        value = self.values.get(name)
        words = None if allowed is None else list(allowed)
        if type(value) is not str or (words is not None and value not in words):
            one_of = "" if words is None else f" among {', '.join(words)}"
            raise self._unlike(f"text {quoted(name)}{one_of}", name)
        return value

    def optional_text(self, name: str) -> str | None:
        """Return text or None, or raise."""
        return None if name in self.values and self.values[name] is None else self.text(name)

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a mapping, or raise."""
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise self._unlike(f"mapping {quoted(name)}", name)
        return dict(value)

    def array(self, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        """Return an array of this type and shape, None standing for any length, or raise."""
        wanted = np.dtype(dtype)
        array = self.arrays.get(name)
        dimensions = ", ".join("any" if side is None else str(side) for side in shape)
        expected = f"a stored array {quoted(name)} of {wanted} ({dimensions})"
        if array is None:
            raise InvalidInputError(expected, "none")
        fits = array.ndim == len(shape) and all(
            side is None or side == there for side, there in zip(shape, array.shape, strict=True)
        )
        if array.dtype != wanted or not fits:
            raise InvalidInputError(expected, f"{array.dtype} {array.shape}")
        return array

    def floats(self, name: str, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
        """Return an array of finite numbers in single or double precision, or raise."""
        single = name in self.arrays and self.arrays[name].dtype == np.float32
        array = self.array(name, np.float32 if single else np.float64, shape)
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(array.sum(dtype=np.float64)) and not np.isfinite(array).all():
                raise InvalidInputError(f"a stored array {quoted(name)} of finite numbers", "NaN or infinity")
        return array

    def places(
        self, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...], below: int, *, least: int = 0
    ) -> npt.NDArray[Any]:
        """Return an array of whole numbers from ``least`` to ``below - 1``, or raise."""
        array = self.array(name, dtype, shape)
        if array.size and not (least <= int(array.min()) and int(array.max()) < below):
            raise InvalidInputError(
                f"a stored array {quoted(name)} of numbers from {least} to {below - 1}",
                f"{array.min()} to {array.max()}",
            )
        return array

    def permutation(self, name: str, size: int) -> npt.NDArray[np.intp]:
        """Return an order of ``size`` things, or raise."""
        order = self.places(name, np.int64, (size,), size)
        if np.bincount(order, minlength=size).max(initial=1) > 1:
            raise InvalidInputError(f"a stored array {quoted(name)} with each place once", "one twice")
        return order.astype(np.intp, copy=False)

    def part(self, name: str) -> Record:
        """Return a record, or raise."""
        if name not in self.parts:
            raise InvalidInputError(f"a stored part {quoted(name)}", "none")
        return self.parts[name]

    def matrix(self, name: str, shape: tuple[int, int] | None = None) -> sp.csr_array:
        """Return a sparse matrix that `matrix_record` made a part of, or raise if it does not fit together."""
        part = self.part(name)
        sides = (part.integer("rows"), part.integer("columns"))
        if shape is not None and sides != shape:
            raise InvalidInputError(f"a stored matrix {quoted(name)} of shape {shape}", f"{sides}")
        wide = part.text("places", ("int32", "int64"))
        data = part.floats("data", (None,))
        indices = part.places("indices", wide, (data.size,), max(sides[1], 1))
        starts = part.array("indptr", wide, (sides[0] + 1,))
        if starts[0] != 0 or starts[-1] != data.size or np.any(np.diff(starts) < 0):
            raise InvalidInputError(f"a stored matrix {quoted(name)} whose rows follow each other", "others")
        return sp.csr_array((data, indices, starts), shape=sides)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return texts that `texts_record` made a part of, or raise."""
        texts = self.part(name).values.get("texts")
        if not isinstance(texts, list) or not all(type(text) is str for text in texts):
            raise InvalidInputError(f"stored texts {quoted(name)}", "others")
        return tuple(texts)

    def part_of_store(self) -> Part:
        """Return it as a part of a store: its values, and its arrays by their path."""
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
    def from_store(cls, store: Store, *, arrays: bool = True) -> Record:
        """Return the record of a store, all of it checked; without its arrays it is in the manifest alone."""
        try:
            document = store.manifest.parts[0]["values"]["record"]
            if arrays:
                store.check()
            return _record(document, store.arrays(0) if arrays else None)
        except (LookupError, TypeError, AttributeError) as error:
            raise store.damage("manifest.json", "it tells of no record") from error

    def _unlike(self, expected: str, name: str) -> InvalidInputError:
        return InvalidInputError(
            f"a stored {expected}", quoted(repr(self.values[name])) if name in self.values else "nothing"
        )


def matrix_record(matrix: sp.csr_array) -> Record:
    """Return a sparse matrix as a record: data, indices and row starts as they are.

    Examples
    --------
    >>> record = Record(parts={"S": matrix_record(sp.csr_array(np.eye(2)))})
    >>> record.matrix("S").toarray()
    array([[1., 0.],
           [0., 1.]])
    """
    rows, columns = matrix.shape
    # SciPy keeps both kinds of places in one type.
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


def _record(document: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]] | None, before: str = "") -> Record:
    """Put values and arrays together again."""
    own = {} if arrays is None else {name: arrays[before + name] for name in document["arrays"]}
    parts = {name: _record(part, arrays, f"{before}{name}/") for name, part in document["parts"].items()}
    return Record(dict(document["values"]), own, parts)
