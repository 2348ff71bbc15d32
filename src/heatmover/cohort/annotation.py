"""Annotations of cells, such as their types: one column of the file, read in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from heatmover._typing import Int32
from heatmover._words import find, naturally, quoted
from heatmover.cohort.reader import Reader, SubsetReader, WrappedReader
from heatmover.cohort.samples import factorize, spell
from heatmover.errors import InvalidInputError, argument

__all__ = ["check_annotation", "encode", "read_annotation"]


def check_annotation(name: str, reader: Reader, varying: Mapping[str, int], constant: Iterable[str]) -> str:
    """Return the name of a column that differs between the cells of a sample, or say why there is none."""
    inner: Any = reader
    while hasattr(inner, "inner"):  # below those that leave cells out
        inner = inner.inner
    if not hasattr(inner, "annotations"):
        raise InvalidInputError(
            f"{argument('cells')} to be a column of the cells",
            f"{quoted(name)} and a {reader.kind}, which has none",
            f"{argument('cells', 'auto')} makes clusters of the cells",
        )
    if name in set(constant):
        raise InvalidInputError(
            f"{argument('cells')} to be a column that differs between cells of a sample",
            f"{quoted(name)}, which is the same in all cells of every sample",
            "choose an annotation of cells, such as their types",
        )
    return find(name, list(varying), f"{argument('cells')} to be a column that differs between cells of a sample")


def read_annotation(reader: Reader, name: str) -> tuple[Int32, tuple[str, ...]]:
    """Return the value of each cell in a column, as `encode` does."""
    if isinstance(reader, WrappedReader):
        codes, names = read_annotation(reader.inner, name)
        return codes[reader.kept] if isinstance(reader, SubsetReader) else codes, names
    return encode(_blocks(reader, name))


def _blocks(reader: Any, name: str) -> Iterator[Any]:
    # Only this column is read, not all annotations that the file has.
    narrow = replace(reader, annotations=(name,))
    yield from (columns[name] for _, columns, _ in narrow.label_blocks())


def encode(blocks: Iterable[Any]) -> tuple[Int32, tuple[str, ...]]:
    """Return values as positions among their names, -1 where one is missing, and the names in natural order.

    Parameters
    ----------
    blocks
        Consecutive values in forms that pandas can factorize: arrays, Categoricals, Series.
    """
    places: dict[str, int] = {}
    parts = [np.empty(0, dtype=np.int32)]
    for block in blocks:
        codes, uniques = factorize(block)
        # Categories without cells are not among the values, and must not become names.
        seen = np.unique(codes[codes >= 0]).tolist()
        place = np.full(len(uniques) + 1, -1, dtype=np.int32)
        for code in seen:
            text = spell(uniques[code])
            place[code] = places.setdefault(text, len(places)) if text.strip() else -1
        parts.append(place[codes])
    names = tuple(naturally(places))
    order = np.full(len(names) + 1, -1, dtype=np.int32)  # the last is for missing values, coded -1
    order[[places[name] for name in names]] = np.arange(len(names), dtype=np.int32)
    return order[np.concatenate(parts)], names
