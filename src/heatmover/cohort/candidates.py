"""Which columns of a file could tell the sample of each cell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._base.words import readable
from heatmover.cohort.formats.anndata import columns_of_cells, open_anndata
from heatmover.cohort.formats.tables import DelimitedReader, ParquetReader, read_head, unmeasured_columns
from heatmover.cohort.read import KINDS, format_of
from heatmover.cohort.reader import Reader
from heatmover.cohort.samples import factorize, number_pattern

__all__ = ["Candidate", "candidates"]

# Names of what is measured at once, and of whom it is from; then of what may be either.
LIKELY = re.compile(
    r"sample|specimen|biopsy|library|orig\.?ident|replicate|aliquot|"
    r"patient|donor|subject|individual|participant|mouse|animal"
)
PERHAPS = re.compile(r"batch|_id$|^id$|sample|patient|donor|subject")
# Of samples, but no names of them: sample_type, patient_group, donor_age.
OF_SAMPLES = re.compile(r"type|group|class|status|condition|site|tissue|source|sex|age$|stage|treat|disease|date|time")
# Samples have cells; what has fewer per value is rather a name of cells.
FEW_CELLS = 10
# Columns to return, and the likeliest ones, which are counted in one pass over the file.
MOST, TOGETHER = 20, 50


@final
@dataclass(frozen=True)
class Candidate:
    """A column with its number of different values and, per value, the fewest and the median number of cells."""

    column: str
    n_values: int
    fewest: int
    median: float


def candidates(file: str, *, most: int = MOST) -> list[Candidate]:
    """Return the columns that could name the samples, the likeliest first, at most so many.

    A column of text or whole numbers with at least two values, which has two cells or more for each value on average.
    Of columns whose names are those of samples or of people the finest comes first: the patients of 16 samples are
    not the samples.
    """
    columns = sorted(_columns(file), key=_unlikely)[:TOGETHER]
    columns_of_samples = _counted(file, columns) if columns else []
    columns_of_samples.sort(key=lambda each: (_rank(each), -each.n_values if _rank(each) == 0 else 0))
    return columns_of_samples[:most]


def _unlikely(column: str) -> int:
    """Return 0 for the name of samples or of people, 1 for what may be one, 2 for any other."""
    name = column.lower()
    if LIKELY.search(name) and not OF_SAMPLES.search(name):
        return 0
    return 1 if PERHAPS.search(name) else 2


def _rank(candidate: Candidate) -> int:
    return max(_unlikely(candidate.column), candidate.median < FEW_CELLS)


def _columns(file: str) -> list[str]:
    """Return the columns of a file but for those that begin with measurements."""
    format = format_of(Path(file))
    with readable(file, KINDS[format]):
        if format == "csv":
            layout, head = read_head(file)
            return [name for name, texts in head.items() if name and not _measured(texts, layout.decimal)]
        return unmeasured_columns(file) if format == "parquet" else columns_of_cells(file, format)


def _measured(texts: Sequence[str], decimal: str) -> bool:
    pattern = number_pattern(decimal)
    return any(decimal in text and pattern.fullmatch(text.strip()) for text in texts)


def _counted(file: str, columns: Sequence[str]) -> list[Candidate]:
    """Count the values of columns in one pass over the file, and return those that could name the samples."""
    # What the features would be is of no interest yet: labels only.
    format, counts = format_of(Path(file)), {column: Counter[Any]() for column in columns}
    with readable(file, KINDS[format]):
        reader: Reader
        about: dict[str, Any] = {"kind": KINDS[format], "features": (), "annotations": tuple(columns[1:])}
        if format == "csv":
            reader = DelimitedReader(file, read_head(file)[0], columns[0], **about)
        elif format == "parquet":
            reader = ParquetReader(file, columns[0], **about)
        else:
            reader = open_anndata(
                file, format, None, sample_key=columns[0], representation=None, annotations=columns[1:]
            )
        for labels, others, _ in reader.label_blocks():
            for column in list(counts):
                sizes = _sizes(labels if column == columns[0] else others[column])
                if sizes is None:
                    del counts[column]
                else:
                    counts[column].update(sizes)
    return [
        Candidate(column, len(sizes), min(sizes.values()), float(sorted(sizes.values())[len(sizes) // 2]))
        for column, sizes in counts.items()
        if len(sizes) >= 2 and sizes.total() >= 2 * len(sizes)
    ]


def _sizes(block: Any) -> dict[Any, int] | None:
    """Return how many cells have each value, or None for lists and measurements, which name nothing."""
    try:
        codes, values = factorize(block)
    except TypeError:
        return None
    if any(isinstance(value, float) and value != int(value) for value in values[:1000]):
        return None
    sizes = np.bincount(codes[codes >= 0], minlength=len(values)).tolist()
    return {value: size for value, size in zip(values, sizes, strict=True) if size}
