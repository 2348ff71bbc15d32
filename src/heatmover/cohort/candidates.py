"""Suggest columns of a file that could identify the sample of each cell, reading the file; for `cli._settings` only.

This module reads columns that may hold labels, but no features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._base.files import readable
from heatmover.cohort.formats.anndata import columns_of_cells, open_anndata
from heatmover.cohort.formats.tables import DelimitedReader, ParquetReader, read_head, unmeasured_columns
from heatmover.cohort.read import KINDS, format_of
from heatmover.cohort.reader import Selection
from heatmover.cohort.samples import factorize, number_pattern, unlikely_samples

# A column with fewer cells per value probably contains names of cells, not of samples.
FEW_CELLS = 10
# Largest number of columns to return, and largest number of columns to count in one pass over the file.
MOST, TOGETHER = 20, 50
# Key under which values that cannot be names are counted.
NO_NAME = object()


@final
@dataclass(frozen=True)
class Candidate:
    """A column, the number of its distinct values, and the smallest and median number of cells per value."""

    column: str
    n_values: int
    fewest: int
    median: float


def candidates(file: str) -> list[Candidate]:
    """Return at most 20 columns that could identify the samples, the likeliest first.

    A candidate contains text or whole numbers. It has at least two distinct values, with at least two cells per value
    on average. Columns that are named after samples or donors come first, sorted by decreasing number of values: a file
    may have a column of 16 samples and a column of 8 patients. Columns that are named after cell types or clusters come
    last.
    """
    format = format_of(Path(file))
    with readable(file, KINDS[format]):
        reader = _label_reader(file, format)
        counts: dict[str, Counter[Any]] = {}
        for labels, others, _ in () if reader is None else reader.label_blocks():
            for column, values in {reader.sample_key: labels, **others}.items():
                counts.setdefault(column, Counter()).update(_sizes(values))
    columns = [
        Candidate(column, len(sizes), min(sizes.values()), float(sorted(sizes.values())[len(sizes) // 2]))
        for column, sizes in counts.items()
        if len(sizes) >= 2 and sizes.total() >= 2 * len(sizes) and NO_NAME not in sizes
    ]
    columns.sort(key=lambda each: (_rank(each), -each.n_values if _rank(each) == 0 else 0))
    return columns[:MOST]


def _label_reader(file: str, format: str) -> Any:
    """Return a reader of the likeliest columns, without features; None if all columns contain measurements."""
    if format == "csv":
        layout, head = read_head(file)
        names = [name for name, texts in head.items() if name and not _measured(texts, layout.decimal)]
    else:
        names = unmeasured_columns(file) if format == "parquet" else columns_of_cells(file, format)
    if not names:
        return None
    first, *others = sorted(names, key=unlikely_samples)[:TOGETHER]
    about: dict[str, Any] = {"kind": KINDS[format], "features": (), "annotations": tuple(others)}
    if format == "csv":
        return DelimitedReader(file, layout, first, **about)
    if format == "parquet":
        return ParquetReader(file, first, **about)
    return open_anndata(file, format, None, Selection(first, annotations=others))


def _rank(candidate: Candidate) -> int:
    return max(unlikely_samples(candidate.column), candidate.median < FEW_CELLS)


def _measured(texts: Sequence[str], decimal: str) -> bool:
    pattern = number_pattern(decimal)
    return any(decimal in text and pattern.fullmatch(text.strip()) for text in texts)


def _sizes(block: Any) -> dict[Any, int]:
    """Count the cells of each value; lists and measurements, which cannot be names, are counted as `NO_NAME`."""
    try:
        codes, values = factorize(block)
    except TypeError:
        return {NO_NAME: 1}
    if any(isinstance(value, float) and not value.is_integer() for value in values[:1000]):
        return {NO_NAME: 1}
    sizes = np.bincount(codes[codes >= 0], minlength=len(values)).tolist()
    return {value: size for value, size in zip(values, sizes, strict=True) if size}
