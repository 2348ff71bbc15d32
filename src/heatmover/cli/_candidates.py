"""Which columns of a file could tell the sample of each cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from heatmover.cohort._anndata import _obs_columns, _opened
from heatmover.cohort._delimited import read_head
from heatmover.cohort._open import KINDS, format_of, open_reader
from heatmover.cohort._parquet import _opened as _opened_parquet
from heatmover.cohort._samples import _factorize
from heatmover.cohort._words import readable

__all__ = ["Candidate", "candidates"]

LIKELY = re.compile(r"sample|patient|donor|subject|specimen|individual|library|orig\.?ident|replicate|batch|_id$|^id$")


@final
@dataclass(frozen=True)
class Candidate:
    """A column with its number of different values and, per value, the fewest and the median number of cells."""

    column: str
    n_values: int
    fewest: int
    median: float


def candidates(file: str) -> list[Candidate]:
    """Return the columns that could name the samples, the likeliest first.

    A column of text or whole numbers with at least two values, which has two cells or more for each value on average.
    """
    columns = _columns(file)
    found = []
    for column in columns:
        candidate = _candidate(column, _labels(file, column))
        if candidate is not None:
            found.append(candidate)
    return sorted(found, key=lambda found: (not LIKELY.search(found.column.lower()), columns.index(found.column)))


def _columns(file: str) -> list[str]:
    format = format_of(Path(file))
    with readable(file, KINDS[format]):
        if format == "csv":
            return [name for name in read_head(file)[1] if name]
        if format == "parquet":
            with _opened_parquet(file) as table:
                return [str(name) for name in table.schema_arrow.names]
        with _opened(file, format, None) as root:
            return _obs_columns(root)


def _labels(file: str, column: str) -> list[Any]:
    """Return the sample labels in blocks if this column were the sample's."""
    opened = open_reader(file, sample_key=column, representation=None, annotations=[], cofactor=None, sample_sheet=None)
    with readable(file, opened.reader.kind):
        return [labels for labels, _ in opened.reader.label_blocks()]


def _candidate(column: str, blocks: Sequence[Any]) -> Candidate | None:
    counts: dict[Any, int] = {}
    for block in blocks:
        codes, values = _factorize(block)
        if any(isinstance(value, float) and value != int(value) for value in values[:1000]):
            return None  # measurements
        for code in codes[codes >= 0].tolist():
            counts[values[code]] = counts.get(values[code], 0) + 1
    sizes = sorted(counts.values())
    if len(sizes) < 2 or sum(sizes) < 2 * len(sizes):
        return None
    return Candidate(column, len(sizes), sizes[0], float(sizes[len(sizes) // 2]))
