"""Store names, projection and ranges of the reference features, read new files accordingly; only `atlas` calls it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.files import readable
from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.storage import Record
from heatmover._base.storage.record import texts_record
from heatmover._base.types import Float64, FloatArray, Int32
from heatmover._base.validation import check_matrix
from heatmover._base.words import counted, distinct, find_all, listed, quoted
from heatmover.atlas.coverage import CellDraw
from heatmover.cohort import Cohort, read_cohort
from heatmover.cohort.cohort import ShiftedReader
from heatmover.cohort.values import Moments, Projection, block_rows
from heatmover.errors import InvalidInputError, argument, in_python
from heatmover.measures import measures_from_labels

# Warn if values lie outside the range of the reference by more than this multiple of the width of the range, because
# their unit or meaning probably differs. Among 763 samples of five cohorts (single cells, cytometry, glomeruli,
# simulated), no sample exceeds the range of all other samples by more than 0.37 of the width.
BEYOND = 1.0
# Warn if most features have a standard deviation below 0.2 of the standard deviation in the reference: values were
# probably divided or log-transformed. A low standard deviation in some features is normal: in these cohorts, it occurs
# in up to a quarter of the features of a sample.
NARROW, MOST = 0.2, 0.5
# Warn if any feature has a standard deviation below this share of the standard deviation in the reference, as after
# division by 100 or 1,000. A standard deviation of zero causes no warning, because a sample may not express a gene. The
# lowest share among 531 samples of these cohorts is 0.13.
NARROWEST = 0.02
# Smallest number of cells from which a standard deviation is estimated.
ENOUGH = 20
# Largest number of features that are reported one by one.
REPORTED = 10


@final
class Ranges:
    """Accumulate minimum, maximum and standard deviation of each column, block by block.

    Parameters
    ----------
    n_columns
        Number of columns.
    """

    def __init__(self, n_columns: int) -> None:
        self.moments = Moments(n_columns)
        self.lower, self.upper = np.full(n_columns, np.inf), np.full(n_columns, -np.inf)

    def add(self, block: Any) -> None:
        """Add a block of rows, dense or CSR."""
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
    """Names, projection and ranges of the features of the reference.

    Attributes
    ----------
    names
        Names of the columns before any projection.
    projection
        Projection of values to points.
    lower, upper, spread
        ``(n_columns,)``: smallest value, largest value and standard deviation among the cells of the reference.
    representation
        Key of ``obsm`` from which the columns come; None if columns are matched by name.
    measured
        Options by which FCS files were read, such as the transform; empty for other sources.
    sample_key
        Column with the sample of each cell; empty for points in memory.
    named
        Whether features have names. If not, columns of new samples are matched by their order.
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
    def of_cohort(cls, cohort: Cohort, draw: CellDraw) -> Features:
        """Return the features of a cohort from one pass over all values; the pass also adds cells to ``draw``."""
        key = getattr(cohort.reader.base, "representation", None)
        ranges = Ranges(len(cohort.reader.features))
        for block, codes in raw_blocks(cohort):
            ranges.add(block)
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
        """Return the features of points ``(n_cells, n_features)``; names are optional."""
        ranges = Ranges(points.shape[1])
        ranges.add(points)
        checked = check_names(points.shape[1], names)
        spread = ranges.moments.deviation
        return cls(tuple(checked), Projection(), ranges.lower, ranges.upper, spread, named=names is not None)

    def open(
        self,
        source: Any,
        sample_key: str | None,
        sample_sheet: Any = None,
        on_missing: Literal["refuse", "drop"] = "refuse",
        skip_unlisted: bool = False,
    ) -> Cohort:
        """Read a file, folder or AnnData: select the features of the reference by name, and apply its projection."""
        if isinstance(source, Cohort):
            raise InvalidInputError(
                "a file, a folder, an AnnData, or points and labels", "a Cohort",
                "pass the file or object from which the Cohort was read, because new values must be scaled like the "
                "reference",
            )  # fmt: skip
        if not self.named:
            raise InvalidInputError(
                "points and labels for an atlas whose features have no names", type(source).__name__,
                f"{in_python('build the atlas with features, or ')}build it from a file",
            )  # fmt: skip
        names: str | list[str] = list(self.names) if self.representation is None else self.representation
        options: dict[str, Any] = {key: value for key, value in self.measured.items() if value is not None}
        with _about_the_atlas(self.representation):
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
        """Return the points of an array or a DataFrame with columns in the order of the reference, or raise."""
        columns = getattr(points, "columns", None)
        if columns is not None and self.named:
            there = [str(name) for name in columns]
            distinct(there, "columns")
            places = find_all(self.names, there, "every feature of the atlas to be a column of the points")
            points = points.iloc[:, [places[name] for name in self.names]].to_numpy()
        values = check_matrix("points", points)
        if values.shape[1] != len(self.names):
            raise InvalidInputError(
                f"points with the {counted(len(self.names), 'feature')} of the atlas",
                counted(values.shape[1], "column"),
                "a DataFrame is matched by its column names" if self.named else "",
            )  # fmt: skip
        return values

    def remarks(self, ranges: Ranges) -> Iterator[str]:
        """Yield a sentence for each feature, or group of features, whose unit seems to differ from the reference."""
        width = self.upper - self.lower
        outside = (ranges.upper > self.upper + BEYOND * width) | (ranges.lower < self.lower - BEYOND * width)
        for i in np.flatnonzero(outside)[:REPORTED]:
            yield (
                f"Values of {quoted(self.names[i])} range from {ranges.lower[i]:.3g} to {ranges.upper[i]:.3g}, but "
                f"from {self.lower[i]:.3g} to {self.upper[i]:.3g} in the reference: check the units."
            )
        more = int(np.count_nonzero(outside)) - REPORTED
        if more > 0:
            yield f"Values of {counted(more, 'further feature')} are also far outside the range of the reference."
        if ranges.moments.count >= ENOUGH:
            deviation, varied = ranges.moments.deviation, self.spread > 0
            narrow = varied & (deviation < NARROW * self.spread)
            least = np.flatnonzero(varied & (deviation > 0) & (deviation < NARROWEST * self.spread))
            if varied.any() and np.count_nonzero(narrow) > MOST * np.count_nonzero(varied):
                yield (
                    f"{np.count_nonzero(narrow)} of {counted(int(varied.sum()), 'feature')} have a standard deviation "
                    f"below {NARROW:.0%} of the standard deviation in the reference: check the units and the log "
                    "transformation."
                )
            elif least.size:
                yield (
                    f"The standard deviation of {listed([self.names[i] for i in least], most=3)} is below "
                    f"{NARROWEST:.0%} of the standard deviation in the reference: check the units."
                )
        if self.representation is not None:
            yield (
                f"The features come from {self.representation!r}. The file does not record whether they were computed "
                "as in the reference."
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
        """Return the features of a record, or raise if the record is damaged."""
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
def _about_the_atlas(representation: str | None) -> Iterator[None]:
    """Reword errors about missing features, to say that the atlas requires them."""
    asked = argument("representation")
    try:
        yield
    except InvalidInputError as error:
        expected, found, advice = error.expected.marked, error.found.marked, error.advice.marked
        if asked not in expected and asked not in advice:
            raise
        if asked not in expected:
            advice = "correct the file"
        elif representation is not None:
            expected = f"the representation of the atlas, {quoted(representation)}, in this file"
            there = advice.removeprefix("there are ")
            found = f"only {there}" if there != advice else f"no {found}"
            advice = "compute it, or map a file that contains it"
        elif expected.startswith(f"every name in {asked}"):
            expected = expected.replace(f"every name in {asked}", "every feature of the atlas")
            found = f"no {found}"
        else:
            expected = expected.replace(f"in {asked}", "for all features of the atlas")
        raise InvalidInputError(expected, found, advice) from None


def check_names(n_features: int, names: Sequence[str] | None) -> list[str]:
    """Return a name for each feature, or raise if the number of names is wrong or names repeat."""
    given = [f"feature {i}" for i in range(1, n_features + 1)] if names is None else list(map(str, names))
    if len(given) != n_features:
        raise InvalidInputError(f"a name for each of the {counted(n_features, 'feature')}", counted(len(given), "name"))
    distinct(given, "names of features")
    return given


def check_unmoved(cohort: Cohort) -> None:
    """Raise if the batches of a cohort were aligned."""
    reader: Any = cohort.reader
    while reader is not None:
        if isinstance(reader, ShiftedReader):
            raise InvalidInputError(
                "a Cohort without batch alignment",
                "one with aligned batches",
                "new samples could not be aligned in the same way",
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
    """Return the names of the samples, and the sample of each point as an index into these names."""
    if isinstance(labels, str):
        return (labels,), np.zeros(n_points, dtype=np.int32)
    measures = measures_from_labels(labels)
    codes = np.empty(measures.shape[1], dtype=np.int32)
    rows = np.repeat(np.arange(len(measures), dtype=np.int32), np.diff(measures.masses.indptr))
    codes[measures.masses.indices] = rows
    if codes.size != n_points:
        raise InvalidInputError(f"one label for each of the {counted(n_points, 'point')}", counted(codes.size, "label"))
    return measures.names, codes
