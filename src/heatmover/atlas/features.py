"""The features of a reference: their names, how their values become points, and which values it has seen."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import Record
from heatmover._base.storage.record import texts_record
from heatmover._base.types import Float64, FloatArray, Int32
from heatmover._base.validation import check_matrix
from heatmover._base.words import counted, distinct, find_all, listed, quoted, readable
from heatmover.atlas.coverage import CellDraw
from heatmover.cohort import Cohort, read_cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.cohort.values import Moments, Projection, block_rows
from heatmover.errors import InvalidInputError, argument, in_python
from heatmover.measures import measures_from_labels

__all__ = ["Features", "Ranges", "check_names", "check_unmoved"]

# Values that reach further beyond the reference's than its own range is wide have another unit, or another meaning: of
# 763 samples of five cohorts (single cells, cytometry, glomeruli, simulated) none reaches further beyond all others
# than 0.37 of their range.
BEYOND = 1.0
# Spreads below this share of the reference's in most features: values were divided by something, or logarithms taken.
# One feature alone may well be quiet in one sample: in those cohorts up to a quarter of the features are.
NARROW, MOST = 0.2, 0.5
# A spread below this share in one feature alone, but not zero, as that of a gene that a sample does not use: divided by
# a hundred or a thousand. Of 531 samples of those cohorts none has less than 0.13 of the spread of the others.
NARROWEST = 0.02
# Cells that tell a spread.
ENOUGH = 20
# Features that are told one by one.
TOLD = 10


@final
class Ranges:
    """Smallest and largest value and spread of each column, block by block.

    Parameters
    ----------
    n_columns
        Number of columns.
    """

    def __init__(self, n_columns: int) -> None:
        self.moments = Moments(n_columns)
        self.lower, self.upper = np.full(n_columns, np.inf), np.full(n_columns, -np.inf)

    def add(self, block: Any) -> None:
        """Take in rows, dense or CSR."""
        if not block.shape[0]:
            return
        self.moments.add(block)
        low, high = block.min(axis=0), block.max(axis=0)
        if sp.issparse(block):
            low, high = low.toarray(), high.toarray()
        np.minimum(self.lower, np.ravel(low), out=self.lower)
        np.maximum(self.upper, np.ravel(high), out=self.upper)


@final
@dataclass(frozen=True, eq=False)
class Features(ReadOnlyArrays):
    """What the reference's cells were measured by, and what became of the values.

    Attributes
    ----------
    names
        Of the columns, before any projection.
    projection
        From values to points.
    lower, upper, spread
        ``(n_columns,)``: smallest and largest value, and standard deviation, among the reference's cells.
    representation
        The key of ``obsm`` that the columns are from; None if they are found by their names.
    measured
        How values of FCS files became features; empty for other sources.
    sample_key
        The column that told the sample of each cell; empty for points in memory.
    named
        Whether the names are the user's; else columns are known by their order only.
    """

    names: tuple[str, ...]
    projection: Projection
    lower: Float64
    upper: Float64
    spread: Float64
    representation: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    sample_key: str = ""
    named: bool = True

    @classmethod
    def of_cohort(cls, cohort: Cohort, draw: CellDraw | None = None) -> Features:
        """Look once at all values of a cohort, and draw cells from it meanwhile."""
        key = getattr(cohort.reader.base, "representation", None)
        ranges = Ranges(len(cohort.reader.features))
        for block, codes in raw_blocks(cohort):
            ranges.add(block)
            if draw is not None:
                draw.add(block, codes, cohort.projection.apply)
        return cls(
            tuple(cohort.reader.features),
            cohort.projection,
            ranges.lower,
            ranges.upper,
            ranges.moments.deviation,
            key if isinstance(key, str) and key != "X" else None,
            dict(cohort.measured),
            str(cohort.samples.index.name or ""),
        )

    @classmethod
    def of_points(cls, points: FloatArray, names: Sequence[str] | None) -> Features:
        """Look once at points ``(n_cells, n_features)``, of features with these names, if they have names."""
        ranges = Ranges(points.shape[1])
        ranges.add(points)
        known = check_names(points.shape[1], names)
        spread = ranges.moments.deviation
        return cls(tuple(known), Projection(), ranges.lower, ranges.upper, spread, named=names is not None)

    def open(
        self,
        source: Any,
        sample_key: str | None,
        sample_sheet: Any = None,
        on_missing: Literal["refuse", "drop"] = "refuse",
        skip_unlisted: bool = False,
    ) -> Cohort:
        """Read a file, folder or AnnData so that its cells become points as the reference's did, features by name."""
        if isinstance(source, Cohort):
            raise InvalidInputError(
                "a file, a folder, an AnnData, or points and labels", "a Cohort",
                "give what it was read from: its values must be scaled as the reference's were",
            )  # fmt: skip
        if not self.named:
            raise InvalidInputError(
                "points and labels for an atlas whose features have no names", type(source).__name__,
                f"{in_python('build the atlas with features, or ')}build it from a file",
            )  # fmt: skip
        names: str | list[str] = list(self.names) if self.representation is None else self.representation
        options: dict[str, Any] = {key: value for key, value in self.measured.items() if value is not None}
        with _about_the_atlas():
            cohort = read_cohort(
                source, sample_key=sample_key or self.sample_key or None, representation=names, n_components="all",
                sample_sheet=sample_sheet, on_missing=on_missing, skip_unlisted=skip_unlisted, **options,
            )  # fmt: skip
        if tuple(cohort.reader.features) != self.names:
            there = listed(cohort.reader.features, most=3)
            raise InvalidInputError(
                f"the {counted(len(self.names), 'feature')} of the atlas ({listed(self.names, most=3)})",
                f"{len(cohort.reader.features)} ({there})",
            )
        return replace(cohort, projection=self.projection)

    def values_of(self, points: Any) -> FloatArray:
        """Return points of an array or a DataFrame with the columns in the reference's order, or raise."""
        columns = getattr(points, "columns", None)
        if columns is not None and self.named:
            there = [str(name) for name in columns]
            distinct(there, "columns")
            places = find_all(self.names, there, "every feature of the atlas to be a column of the points")
            points = points.iloc[:, [places[name] for name in self.names]].to_numpy()
        values = check_matrix("points", points)
        if values.shape[1] != len(self.names):
            raise InvalidInputError(
                f"points with the {counted(len(self.names), 'feature')} of the atlas", f"{values.shape[1]}",
                "a DataFrame is matched by the names of its columns" if self.named else "",
            )  # fmt: skip
        return values

    def remarks(self, ranges: Ranges) -> Iterator[str]:
        """Yield what is odd about values, in sentences: units that are not the reference's."""
        yield from self._outside(ranges)
        yield from self._narrow(ranges)
        if self.representation is not None:
            yield (
                f"The features are those of {self.representation!r}: nothing in the file says whether they were made "
                "as the reference's were."
            )

    def _outside(self, ranges: Ranges) -> Iterator[str]:
        """Yield a sentence for each feature whose values are far beyond the reference's."""
        width = self.upper - self.lower
        outside = (ranges.upper > self.upper + BEYOND * width) | (ranges.lower < self.lower - BEYOND * width)
        for i in np.flatnonzero(outside)[:TOLD]:
            yield (
                f"Values of {quoted(self.names[i])} from {ranges.lower[i]:.3g} to {ranges.upper[i]:.3g}, in the "
                f"reference from {self.lower[i]:.3g} to {self.upper[i]:.3g}: check the units."
            )
        more = int(np.count_nonzero(outside)) - TOLD
        if more > 0:
            yield f"Values of {counted(more, 'further feature')} are far beyond the reference's too."

    def _narrow(self, ranges: Ranges) -> Iterator[str]:
        """Yield a sentence about features whose values differ far less than the reference's."""
        if ranges.moments.count < ENOUGH:
            return
        deviation, varied = ranges.moments.deviation, self.spread > 0
        narrow = varied & (deviation < NARROW * self.spread)
        if varied.any() and np.count_nonzero(narrow) > MOST * np.count_nonzero(varied):
            yield (
                f"Values spread less than {NARROW:.0%} as much as the reference's in {np.count_nonzero(narrow)} of "
                f"{counted(int(varied.sum()), 'feature')}: check the units, and whether logarithms were taken."
            )
            return
        least = np.flatnonzero(varied & (deviation > 0) & (deviation < NARROWEST * self.spread))
        if least.size:
            yield (
                f"Values spread less than {NARROWEST:.0%} as much as the reference's in "
                f"{listed([self.names[i] for i in least], most=3)}: check the units."
            )

    def to_record(self) -> Record:
        """Return the features as a record that a store can hold."""
        values = {
            "representation": self.representation,
            "measured": dict(self.measured),
            "sample_key": self.sample_key,
            "named": self.named,
        }
        arrays = {"lower": self.lower, "upper": self.upper, "spread": self.spread}
        return Record(values, arrays, {"names": texts_record(self.names), "projection": self.projection.to_record()})

    @classmethod
    def from_record(cls, record: Record) -> Features:
        """Return the features of a record, or raise if they are none."""
        names = record.texts("names")
        lower, upper, spread = (record.floats(name, (len(names),)) for name in ("lower", "upper", "spread"))
        return cls(
            names,
            Projection.from_record(record.part("projection"), len(names)),
            lower,
            upper,
            spread,
            record.optional_text("representation"),
            record.mapping("measured"),
            record.text("sample_key"),
            record.truth("named"),
        )


@contextmanager
def _about_the_atlas() -> Iterator[None]:
    """Say of features that are not there that the atlas asks for them, not an argument."""

    def spell(name: str, value: str | None) -> str:
        if name == "representation":
            return "the features of the atlas"
        return argument(name) if value is None else argument(name, literal_eval(value))

    try:
        yield
    except InvalidInputError as error:
        expected, found, advice = (part.spelled(spell) for part in (error.expected, error.found, error.advice))
        raise InvalidInputError(expected, found, advice) from None


def check_names(n_features: int, names: Sequence[str] | None) -> list[str]:
    """Return a name for each feature, or raise if they are not that many or not distinct."""
    known = [f"feature {i}" for i in range(1, n_features + 1)] if names is None else list(map(str, names))
    if len(known) != n_features:
        raise InvalidInputError(f"a name for each of the {counted(n_features, 'feature')}", counted(len(known), "name"))
    distinct(known, "names of features")
    return known


def check_unmoved(cohort: Cohort) -> None:
    """Raise if batches of a cohort were moved."""
    reader: Any = cohort.reader
    while reader is not None:
        if isinstance(reader, ShiftedReader):
            raise InvalidInputError(
                "a cohort as it was read", "one whose batches were moved", "no new sample could be moved as they were"
            )
        reader = reader.inner


def raw_blocks(cohort: Cohort) -> Iterator[tuple[Any, Int32]]:
    """Yield the values of all cells before any projection, and the sample of each cell."""
    done, size = 0, block_rows(len(cohort.reader.features))
    with readable(cohort.source.path, cohort.reader.kind):
        for block in cohort.reader.blocks(0, cohort.n_cells, size):
            yield block, cohort.codes[done : done + block.shape[0]]
            done += block.shape[0]
    if done != cohort.n_cells:
        raise InvalidInputError(counted(cohort.n_cells, "cell"), f"{done}", "the file has changed since it was read")


def code_labels(labels: npt.ArrayLike, n_points: int) -> tuple[tuple[str, ...], Int32]:
    """Return the names of the different labels in their order, and the place of each point's label among them."""
    if isinstance(labels, str):
        return (labels,), np.zeros(n_points, dtype=np.int32)
    measures = measures_from_labels(labels)
    codes = np.empty(measures.shape[1], dtype=np.int32)
    rows = np.repeat(np.arange(len(measures), dtype=np.int32), np.diff(measures.masses.indptr))
    codes[measures.masses.indices] = rows
    if codes.size != n_points:
        raise InvalidInputError(f"one label for each of the {counted(n_points, 'point')}", counted(codes.size, "label"))
    return measures.names, codes
