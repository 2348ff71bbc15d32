"""Which columns of a table are features and which are annotations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from heatmover.cohort._words import distinct, find, listed, quoted
from heatmover.errors import InvalidInputError

__all__ = ["divide"]

# Row numbers that pandas writes into tables unasked; as a feature they would drown the others.
ROW_NUMBERS = re.compile(r"|Unnamed: \d+|__index_level_\d+__|index")


def divide(
    columns: Sequence[str],
    numeric: Sequence[str],
    *,
    sample_key: str,
    representation: Sequence[str] | None,
    annotations: Sequence[str] | None,
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the features, the annotations, and whether a feature may still turn out to be an annotation.

    Without a list of features these are the numeric columns that are neither the sample nor an annotation; of them
    the reader later takes those that vary within samples, for an age is no property of a cell.
    """
    named = [name for name in columns if not ROW_NUMBERS.fullmatch(name)]
    find(sample_key, list(columns), "sample_key to be a column of the table")
    listed_annotations = list(annotations or ())
    for name in listed_annotations:
        find(name, list(columns), "every annotation to be a column of the table")
    if representation is None:
        features = [name for name in named if name in set(numeric) - {sample_key, *listed_annotations}]
        if not features:
            raise InvalidInputError(
                "at least one column of numbers besides the sample and the annotations",
                f"none among {listed(columns)}",
            )
    else:
        features = _chosen(columns, numeric, representation)
    taken = {sample_key, *features}
    rest = [name for name in named if name not in taken] if annotations is None else listed_annotations
    return tuple(features), tuple(rest), representation is None


def _chosen(columns: Sequence[str], numeric: Sequence[str], representation: Sequence[str]) -> list[str]:
    if isinstance(representation, str):
        raise InvalidInputError(
            "representation to be a list of columns of the table",
            quoted(representation),
            f"write [{quoted(representation)}] if you mean that column",
        )
    if not representation:
        raise InvalidInputError("at least one column in representation", "none")
    distinct(representation, "columns in representation")
    for name in representation:
        find(name, list(columns), "every name in representation to be a column of the table")
    texts = [name for name in representation if name not in set(numeric)]
    if texts:
        raise InvalidInputError("columns of numbers in representation", f"{listed(texts)} without numbers")
    return list(representation)
