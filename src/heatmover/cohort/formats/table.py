"""Which columns of a table are features and which are annotations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from heatmover._words import counted, distinct, find, find_all, listed, quoted
from heatmover.errors import InvalidInputError, argument

__all__ = ["NAMED", "ROWS", "TEXT", "Division", "check_memory_for", "divide"]

# Row numbers that pandas writes into tables unasked; as a feature they would drown the others.
ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index")
# Why a column is no feature.
ROWS, TEXT, NAMED = "numbers of rows", "text", "named as an annotation"
# Bytes of a column of numbers while it is read, whatever its length, and half of those of a column of text. Arrow's
# parser of text takes 10,000, its reader of Parquet 14,000; the rest is for blocks of 200 rows and their copies.
COLUMN_BYTES = 24_000


@final
@dataclass(frozen=True)
class Division:
    """Columns of a table by what they are for.

    Attributes
    ----------
    features
        Those of the cells' values.
    annotations
        Those that may describe samples or cells.
    undecided
        Whether a feature may still turn out to be an annotation.
    unused
        The others, and why.
    """

    features: tuple[str, ...]
    annotations: tuple[str, ...]
    undecided: bool
    unused: Mapping[str, str]


def divide(
    columns: Sequence[str],
    numeric: Collection[str],
    *,
    sample_key: str,
    representation: Sequence[str] | None,
    annotations: Sequence[str] | None,
    no_features: Collection[str] = (),
    memory: int | None = None,
) -> Division:
    """Divide the columns of a table, or raise if those that are read need more than so many bytes of memory.

    Without a list of features these are the numeric columns that are neither the sample nor an annotation; of them
    the reader later takes those that vary within samples, for an age is no property of a cell.
    """
    find(sample_key, columns, f"{argument('sample_key')} to be a column of the table")
    no_features = frozenset(no_features)
    named = find_all(annotations or (), columns, "every annotation to be a column of the table")
    row_numbers = {name for name in columns if ROW_NUMBERS.fullmatch(name)} - {*named, *no_features}
    if representation is None:
        candidates = frozenset(numeric) - {sample_key, *named, *no_features} - row_numbers
        features = [name for name in columns if name in candidates]
        if not features:
            raise InvalidInputError(
                "at least one column of numbers besides the sample and the annotations",
                f"none among {listed(columns)}",
            )
    else:
        features = _chosen(columns, frozenset(numeric), representation)
    taken = {sample_key, *features}
    rest = [name for name in columns if name not in taken and name not in row_numbers]
    wanted = rest if annotations is None else [name for name in named if name not in taken]
    n_read = len(features) + len(wanted)
    check_memory_for(counted(n_read, "column"), (n_read + len(wanted)) * COLUMN_BYTES, memory)
    unused = dict.fromkeys((name for name in columns if name in row_numbers and name not in taken), ROWS)
    if representation is None:
        read = frozenset(wanted)
        unused |= {name: NAMED if name in no_features else TEXT for name in rest if name not in read}
    return Division(tuple(features), tuple(wanted), representation is None, unused)


def check_memory_for(what: str, needed: int, memory: int | None) -> None:
    """Raise if something needs more bytes than the memory allowed."""
    if memory is not None and needed > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {-(-needed // 1_000_000):,} MB for {what}",
            f"{memory / 1e6:,.0f} MB",
            "allow more, or store the cells as .h5ad",
        )


def _chosen(columns: Sequence[str], numeric: Collection[str], representation: Sequence[str]) -> list[str]:
    if isinstance(representation, str):
        raise InvalidInputError(
            f"{argument('representation')} to be a list of columns of the table",
            quoted(representation),
            f"write [{quoted(representation)}] if you mean that column",
        )
    if not representation:
        raise InvalidInputError(f"at least one column in {argument('representation')}", "none")
    distinct(representation, f"columns in {argument('representation')}")
    found = find_all(representation, columns, f"every name in {argument('representation')} to be a column of the table")
    texts = [name for name in found if name not in numeric]
    if texts:
        raise InvalidInputError(
            f"columns of numbers in {argument('representation')}", f"{listed(texts)} without numbers"
        )
    return list(found)
