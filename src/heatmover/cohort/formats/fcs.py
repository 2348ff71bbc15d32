"""Read flow and mass cytometry (a folder of .fcs files), for `cohort`; define `Logicle`, the logicle scale, for users.

The module reads files with flowio, and writes nothing.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import numpy as np
from scipy.special import lambertw

from heatmover._base.files import readable
from heatmover._base.types import Float64
from heatmover._base.validation import check_number, import_extra
from heatmover._base.words import counted, distinct, find, find_all, listed, quoted, verb
from heatmover.cohort.reader import LABEL_ROWS, Block, LabelBlock, Reader, Selection, check_memory_for, spans
from heatmover.errors import InvalidInputError, Sentence, argument

# Largest number of steps of Newton's method. The method approaches the root from one side, and each step near the root
# doubles the number of correct digits. For 200,000 values from -T to 10 T, and widths from 0 to the largest allowed
# width, six steps were enough.
MOST_STEPS = 60
CLOSE = 1e-14


@final
@dataclass(frozen=True)
class Logicle:
    """The logicle scale of Parks, Roederer and Moore (2006), with the parameters of Moore and Parks (2012).

    A value y is displayed at the position x that solves ``a exp(b x) - c exp(-d x) - f = y``. The constants are chosen
    so that ``top`` is at x = 1, and the scale is as linear as possible around zero.

    Attributes
    ----------
    top
        T: the value at the end of the scale.
    width
        W: number of nearly linear decades on the positive side.
    decades
        M: number of decades of the whole scale.
    negative
        A: number of additional decades for negative values.

    Examples
    --------
    >>> scale = Logicle(262144.0)
    >>> np.round(scale.apply(np.array([-100.0, 0.0, 1000.0, 262144.0])), 4)
    array([0.0069, 0.1111, 0.4543, 1.    ])
    >>> np.round(scale.inverse(scale.apply(np.array([-100.0, 0.0, 1000.0]))), 6) + 0.0
    array([-100.,    0., 1000.])
    """

    top: float
    width: float = 0.5
    decades: float = 4.5
    negative: float = 0.0

    def __post_init__(self) -> None:
        check_number("top", self.top, above=0)
        check_number("decades", self.decades, above=0)
        if not 0 <= self.width <= self.decades / 2:
            raise InvalidInputError(
                "width from 0 to half of the decades", f"{self.width:g} for {self.decades:g} decades"
            )
        if not -self.width <= self.negative <= self.decades - 2 * self.width:
            raise InvalidInputError("-width <= negative <= decades - 2 width", f"{self.negative:g}")

    @cached_property
    def constants(self) -> tuple[float, float, float, float, float, float]:
        """Constants a, b, c, d and f of the scale, and position of the value zero."""
        whole = self.decades + self.negative
        w, x2 = self.width / whole, self.negative / whole
        x1, x0 = x2 + w, x2 + 2 * w
        b = whole * np.log(10.0)
        # d solves 2 (ln d - ln b) + w (d + b) = 0, which is u exp(u) = v exp(-v) with u = w d / 2 and v = w b / 2.
        v = w * b / 2
        d = b if w == 0 else 2 * float(lambertw(v * np.exp(-v)).real) / w
        # Choose c and f for a = 1 at the position of the value zero: c makes the second derivative zero there, and f
        # makes the value zero.
        c = np.exp((b + d) * x0)
        f = np.exp(b * x1) - c * np.exp(-d * x1)
        a = self.top / (np.exp(b) - c * np.exp(-d) - f)
        return float(a), float(b), float(a * c), float(d), float(a * f), float(x1)

    def inverse(self, places: Float64) -> Float64:
        """Return the values at positions on the scale, of any shape."""
        a, b, c, d, f, _ = self.constants
        return np.asarray(a * np.exp(b * places) - c * np.exp(-d * places) - f)

    def apply(self, values: Float64) -> Float64:
        """Return the positions of values on the scale, of any shape; NaN and infinity are not changed."""
        a, b, c, d, _, zero = self.constants
        y = np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            # Start from the inverse of one exponential, so that Newton's steps never pass the root. Above zero, the
            # curve is convex and lies above the first exponential; below zero, it is concave and lies below the second
            # exponential.
            start = np.where(
                y >= 0,
                np.log(np.maximum(y, 0) / a + np.exp(b * zero)) / b,
                -np.log(np.exp(-d * zero) - np.minimum(y, 0) / c) / d,
            )
            x = np.where(np.isfinite(y), start, 0.0)
            target = np.where(np.isfinite(y), y, 0.0)
            for _ in range(MOST_STEPS):
                step = (self.inverse(x) - target) / (a * b * np.exp(b * x) + c * d * np.exp(-d * x))
                x = x - step
                if not np.any(np.abs(step) > CLOSE):
                    break
        return np.where(np.isfinite(y), x, y)


Transform = Literal["arcsinh", "logicle"]

# Channels that are not features: the time of measurement does not describe the cell.
NO_FEATURES = {"time"}
# Byte orders that the parser reads correctly; the parser treats any other order as the order of this machine.
BYTE_ORDERS = ("1,2,3,4", "4,3,2,1", "1,2", "2,1") + (("1,2,3,4,5,6,7,8",) if sys.byteorder == "little" else ())
TIME = "when a cell was measured"
# Scatter, time and the event parameters of mass cytometers, which are not fluorescence and usually stay linear.
LINEAR = re.compile(
    r"^(fsc|ssc|bsc|fs|ss|fals)([ _-]|\d|$)|scatter|^time$|^event[ _-]?(length|number|#|count)|"
    r"^(width|center|offset|residual)$",
    re.IGNORECASE,
)
# Keywords of the spillover matrix; the first of these keywords that a file contains is used. The standard defines
# $SPILLOVER; BD writes SPILL.
SPILLOVER = ("spillover", "spill")
# Largest condition number of a spillover matrix. With a larger number, compensation loses more than six of sixteen
# digits to rounding.
WORST_CONDITION = 1e6
SKIP_THEM = f"add these names to the sheet, or leave them out with {argument('skip_unlisted', True)}"
AS_THEY_ARE = f"{argument('compensate', False)} reads the values without compensation"


# Bytes per value while a file is read (stored value, double, compensated and transformed value); 37 to 43 bytes were
# measured.
VALUE_BYTES = 40


class Measurement(NamedTuple):
    """Options by which FCS files are converted to features.

    Attributes
    ----------
    cofactor
        Cofactor of arcsinh, or None.
    transform
        ``"arcsinh"`` or ``"logicle"``, applied to all channels except scatter and time. None with a cofactor: arcsinh
        of all channels.
    compensate
        Whether to compensate spillover between detectors; None: compensate if the files contain a matrix.
    """

    cofactor: float | None = None
    transform: Transform | None = None
    compensate: bool | None = None


@final
@dataclass(frozen=True)
class FcsReader(Reader):
    """Reader of the FCS files in a folder, in the order of the file names."""

    folder: str
    files: tuple[str, ...]
    names: tuple[str, ...]
    counts: tuple[int, ...]
    measured: Measurement
    # Features that are not transformed; and, for logicle, the largest value of the scale of each feature.
    linear: frozenset[str] = frozenset()
    tops: Mapping[str, float] = field(default_factory=dict)

    def place(self, row: int) -> str:
        """Return the location of a cell in words: the number of its event, counted from 1, and its file."""
        ends = np.cumsum(self.counts)
        file = int(np.searchsorted(ends, row, side="right"))
        return f"event {row + 1 - int(ends[file]) + self.counts[file]} of {quoted(self.files[file])}"

    def label_blocks(self) -> Iterator[LabelBlock]:
        """Yield the sample labels, file by file, without annotations: sample metadata come from the sample sheet."""
        for name, count in zip(self.names, self.counts, strict=True):
            for start, stop in spans(0, count, LABEL_ROWS):
                yield np.full(stop - start, name, dtype=object), {}, None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells; only one file at a time is in memory."""
        ends = np.cumsum(self.counts)
        for file, count, end in zip(self.files, self.counts, ends.tolist(), strict=True):
            first, last = max(start - (end - count), 0), min(stop - (end - count), count)
            if first < last:
                values = self._values(file, count)
                yield from (values[a:b] for a, b in spans(first, last, size))

    def _values(self, file: str, count: int) -> Block:
        path = str(Path(self.folder) / file)
        data = _parsed(path, only_text=False)
        with readable(path, "FCS file"):
            values = np.asarray(data.as_array(), dtype=np.float64)
            channels = channel_names(data, file)
            if values.shape != (count, len(channels)):
                raise ValueError(f"{counted(values.shape[0], 'cell')} where the header says {count}")
            if self.measured.compensate:
                places, matrix = spillover(data, file)
                values[:, places] = np.linalg.solve(matrix.T, values[:, places].T).T
            values = values[:, list(find_all(self.features, channels, f"the channels of {quoted(file)}").values())]
        # Use single precision, as cytometers do; the doubles of the parser would only take twice the memory.
        return np.ascontiguousarray(self._transformed(values), dtype=np.float32)

    def _transformed(self, values: Any) -> Any:
        cofactor, transform, _ = self.measured
        if transform is None:
            return values if cofactor is None else np.arcsinh(values / cofactor)
        for place, name in enumerate(self.features):
            if name not in self.linear:
                column = values[:, place]
                scale = None if cofactor is not None else Logicle(self.tops[name])
                values[:, place] = np.arcsinh(column / cofactor) if scale is None else scale.apply(column)
        return values


def fcs_files(folder: Path) -> list[Path]:
    """Return the FCS files of a folder, sorted by name; skip hidden files, which some systems create."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() == ".fcs" and not path.name.startswith(".") and path.is_file()
    )


def open_fcs(
    folder: str,
    wanted: Selection,
    measured: Measurement,
    sheet: Mapping[str, Sequence[str | None]] | None,
    *,
    skip_unlisted: bool,
) -> tuple[FcsReader, dict[str, list[str | None]]]:
    """Check the header of every file; return a reader, and the columns of the sheet in the order of the files."""
    representation = wanted.representation
    files = [path.name for path in fcs_files(Path(folder))]
    variables: dict[str, list[str | None]] = {}
    skipped: list[str] = []
    if sheet is not None:
        variables, skipped = match_sheet(files, sheet, skip_unlisted=skip_unlisted)
        files = [file for file in files if file not in frozenset(skipped)]
    headers = [_parsed(str(Path(folder) / file), only_text=True) for file in files]
    channels = [channel_names(header, file) for header, file in zip(headers, files, strict=True)]
    for file, header, own in zip(files, headers, channels, strict=True):
        if header.event_count < 1:
            raise InvalidInputError(
                "at least one cell in every FCS file", f"0 cells in {quoted(file)}", "remove the file"
            )
        what = f"{counted(header.event_count, 'cell')} of {counted(len(own), 'channel')} in {quoted(file)}"
        check_memory_for(what, VALUE_BYTES * header.event_count * len(own), wanted.memory)
    features = _common_channels(files, channels, representation)
    # Replace bytes of file names that are not valid text, because results could not store them.
    names = [os.fsencode(Path(file).stem).decode("utf-8", "replace") for file in files]
    if sheet is not None:
        names = _sample_names(names, variables, wanted.sample_key)
    distinct(names, "sample names", "one file is one sample")
    measured, notes = _compensation(measured, files, headers)
    linear = frozenset(name for name in features if _is_linear(name, channels[0], headers[0]))
    tops = _tops(features, channels, headers) if measured.transform == "logicle" else {}
    notes = (*left_out_notes(skipped), *notes, *_transform_notes(measured, features, linear))
    unused = {} if representation is not None else {name: TIME for name in channels[0] if name.lower() in NO_FEATURES}
    reader = FcsReader(
        folder, tuple(files), tuple(names), tuple(header.event_count for header in headers), measured, linear, tops,
        kind="folder of FCS files", features=features, notes=notes, unused=unused,
    )  # fmt: skip
    return reader, variables


def _compensation(
    measured: Measurement, files: Sequence[str], headers: Sequence[Any]
) -> tuple[Measurement, tuple[str, ...]]:
    """Check the matrix of every file and decide whether to compensate; return the decision and notes for the user."""
    have = [any(key in header.text for key in SPILLOVER) for header in headers]
    if measured.compensate is False or not any(have):
        if measured.compensate:
            raise InvalidInputError(
                f"a spillover matrix in the FCS files, for {argument('compensate', True)}", "none", AS_THEY_ARE
            )
        notes = ("As requested, the spillover matrix in the FCS files was not applied.",) if any(have) else ()
        return measured._replace(compensate=False), notes
    if not all(have):
        raise InvalidInputError(
            "a spillover matrix in every FCS file or in none",
            f"none in {listed(file for file, there in zip(files, have, strict=True) if not there)}, but one in "
            f"{quoted(files[have.index(True)])}",
            AS_THEY_ARE,
        )
    matrices = [spillover(header, file) for header, file in zip(headers, files, strict=True)]
    if all(np.array_equal(matrix, np.eye(len(matrix))) for _, matrix in matrices):
        notes = ("The spillover matrices of the FCS files contain no spillover: nothing was compensated.",)
        return measured._replace(compensate=False), notes
    sizes = sorted({len(matrix) for _, matrix in matrices})
    detectors = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    note = Sentence(
        f"Spillover between {detectors} detectors was compensated by the matrix in each FCS file; {AS_THEY_ARE}."
    )
    return measured._replace(compensate=True), (note,)


def spillover(data: Any, file: str) -> tuple[list[int], Any]:
    """Return the channel indices of the detectors in a file's spillover matrix, and the matrix.

    Row i of the matrix contains the share of the light of dye i that each detector measures.
    """
    text = next(data.text[key] for key in SPILLOVER if key in data.text)
    words = [word.strip() for word in text.split(",")]
    start = f"in {quoted(file)}"
    try:
        count = int(words[0])
        numbers = [float(word) for word in words[count + 1 :]]
    except ValueError:
        raise InvalidInputError(f"a spillover matrix of numbers {start}", quoted(text), AS_THEY_ARE) from None
    if count < 1 or len(numbers) != count * count or not np.isfinite(numbers).all():
        raise InvalidInputError(
            f"a spillover matrix of {count} x {count} finite numbers {start}", f"{len(numbers)}", AS_THEY_ARE
        )
    detectors = [label.strip() for label in data.pnn_labels]
    named = words[1 : count + 1]
    if not set(named) <= set(detectors) and all(word.isdigit() and 1 <= int(word) <= len(detectors) for word in named):
        named = [detectors[int(word) - 1] for word in named]  # some writers number the channels
    absent = [name for name in named if name not in detectors]
    if absent or len(set(named)) < count:
        are_not = verb(len(absent), "is not a channel", "are not channels")
        wrong = f"{listed(absent)}, which {are_not}" if absent else f"{listed(named)}, some of them twice"
        raise InvalidInputError(f"the detectors of the spillover matrix {start} to be channels", wrong, AS_THEY_ARE)
    matrix = np.array(numbers).reshape(count, count)
    if (matrix.diagonal() == 100).all():  # some writers use percent
        matrix = matrix / 100
    own = matrix.diagonal()
    if not (np.abs(own - 1) <= 0.01).all():
        raise InvalidInputError(
            f"1 (or 100, in percent) on the diagonal of the spillover matrix {start}",
            f"{own[np.argmax(np.abs(own - 1))]:g}",
            AS_THEY_ARE,
        )
    condition = np.linalg.cond(matrix)
    if not condition <= WORST_CONDITION:
        raise InvalidInputError(
            f"an invertible spillover matrix {start}",
            "a singular matrix" if not np.isfinite(condition) else f"a condition number of {condition:.1e}",
            AS_THEY_ARE,
        )
    return [detectors.index(name) for name in named], matrix


def _is_linear(name: str, channels: Sequence[str], header: Any) -> bool:
    detector = header.pnn_labels[channels.index(name)].strip() if name in channels else name
    return bool(LINEAR.search(name) or LINEAR.search(detector))


def _tops(features: Sequence[str], channels: Sequence[Sequence[str]], headers: Sequence[Any]) -> dict[str, float]:
    """Return the top of the scale of each feature: the largest range ($PnR) of the feature in any file."""
    tops = {
        name: float(np.max([header.pnr_values[own.index(name)] for header, own in zip(headers, channels, strict=True)]))
        for name in features
    }
    unknown = [name for name, top in tops.items() if not 0 < top < np.inf]
    if unknown:
        raise InvalidInputError(
            f"a range ($PnR) of every channel, for {argument('transform', 'logicle')}",
            f"none for {listed(unknown)}",
            f"use {argument('transform', 'arcsinh')}",
        )
    return tops


def _transform_notes(measured: Measurement, features: Sequence[str], linear: frozenset[str]) -> Iterator[str]:
    left = [name for name in features if name in linear]
    if measured.transform is not None and len(left) == len(features):
        raise InvalidInputError(
            f"a channel to transform, for {argument('transform', measured.transform)}",
            f"only {listed(left)}, which {verb(len(left), 'stays', 'stay')} linear",
            f"name other channels in {argument('representation')}",
        )
    if measured.transform is not None and left:
        yield Sentence(
            f"{listed(left)} stayed linear while other channels were transformed. {argument('standardize', True)} "
            f"gives all channels the same variance, and {argument('representation')} selects channels."
        )
    elif measured.transform is None and measured.cofactor is not None and left:
        yield Sentence(
            f"arcsinh was also applied to {listed(left)}; {argument('transform', 'arcsinh')} keeps scatter linear."
        )


def _parsed(path: str, *, only_text: bool) -> Any:
    flowio = import_extra("flowio", package="flowio", extra="cohort")
    with readable(path, "FCS file"), Path(path).open("rb") as stream:
        if stream.read(3) != b"FCS":
            raise ValueError("it does not begin with 'FCS'")
        with warnings.catch_warnings():
            # Hide warnings of flowio, for example about unknown byte orders, for which `_check_text` raises errors.
            warnings.simplefilter("ignore", UserWarning)
            data = flowio.FlowData(stream, only_text=only_text)
        _check_text(data)
        return data


def _check_text(data: Any) -> None:
    """Raise if the keywords of a file contradict each other, or if the parser would misread their values."""
    # A damaged channel number would shift the names of all later channels.
    if sorted(data.channels) != list(range(1, data.channel_count + 1)):
        raise ValueError(f"it describes the channels {listed(sorted(data.channels))} of {data.channel_count}")
    for key, known in (("mode", "l"), ("datatype", "ifd"), ("byteord", BYTE_ORDERS)):
        value = data.text[key].strip().lower()
        if value not in known:
            raise ValueError(f"its ${key.upper()} is {quoted(value)}, not one of {', '.join(known)}")
    # Each value takes at least one byte, so a number of values above the file size is wrong, and no memory may be
    # allocated for it.
    if not 0 <= data.event_count * data.channel_count <= data.file_size:
        raise ValueError(f"{counted(data.event_count, 'cell')} in a file of {data.file_size} bytes")


def channel_names(header: Any, file: str) -> list[str]:
    """Return the name of each channel: the marker if the file names it, otherwise the detector."""
    detectors, markers = header.pnn_labels, header.pns_labels
    names = [(marker.strip() or detector.strip()) for detector, marker in zip(detectors, markers, strict=True)]
    distinct(names, f"channels in {quoted(file)}", "rename the markers ($PnS) in the file")
    return names


def _common_channels(
    files: Sequence[str], channels: Sequence[Sequence[str]], representation: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the features, or raise if a feature is not a channel of every file; channels may be in any order."""
    if isinstance(representation, str):
        raise InvalidInputError(f"{argument('representation')} to be a list of channels", quoted(representation))
    if representation is not None:
        distinct(representation, f"channels in {argument('representation')}")
        what = f"every name in {argument('representation')} to be a channel of {quoted(files[0])}"
        find_all(representation, channels[0], what)
    wanted = [name for name in channels[0] if name.lower() not in NO_FEATURES]
    features = tuple(wanted if representation is None else representation)
    if not features:
        raise InvalidInputError("at least one channel other than Time", f"none in {quoted(files[0])}")
    for file, names in zip(files, channels, strict=True):
        own = set(names)
        absent = [name for name in features if name not in own]
        if absent:
            raise InvalidInputError(
                "the same channels in every FCS file",
                f"{listed(absent)} in {quoted(files[0])} but not in {quoted(file)}",
                f"name the common channels in {argument('representation')}",
            )
    return features


def left_out_notes(names: Sequence[str]) -> Iterator[str]:
    """Yield a note on files or samples that were left out."""
    if names:
        yield f"These names were left out, because the sample sheet does not list them: {listed(names)}."


def match_sheet(
    files: Sequence[str], sheet: Mapping[str, Sequence[str | None]], *, skip_unlisted: bool = False
) -> tuple[dict[str, list[str | None]], list[str]]:
    """Return the columns of a sample sheet in the order of the files, without the column of file names.

    Also return the files that the sheet does not list; without ``skip_unlisted``, such files raise an error.
    """
    known = {form: place for place, file in enumerate(files) for form in (file, Path(file).stem)}
    key = max(sheet, key=lambda name: sum(value in known for value in sheet[name]))
    named = [str(value) for value in sheet[key]]
    if not any(name in known for name in named):
        raise InvalidInputError("a column of file names in the sample sheet", f"none among {listed(sheet)}")
    unknown = [name for name in named if name not in known]
    if unknown:
        raise InvalidInputError(
            f"every file in the column {quoted(key)} of the sample sheet to be in the folder",
            f"no {listed(unknown)} in the folder",
        )
    rows = [known[name] for name in named]
    distinct([files[row] for row in rows], "files in the sample sheet")
    listed_rows = set(rows)
    absent = [file for place, file in enumerate(files) if place not in listed_rows]
    if absent and not skip_unlisted:
        raise InvalidInputError("every FCS file to be in the sample sheet", f"no {listed(absent)} in it", SKIP_THEM)
    order = np.argsort(rows)
    return {name: [column[i] for i in order] for name, column in sheet.items() if name != key}, absent


def _sample_names(stems: list[str], variables: dict[str, list[str | None]], sample_key: str) -> list[str]:
    """Return the sample names: the file stems, or the sheet's column ``sample_key``, removed from ``variables``."""
    if not sample_key:
        return stems
    names = variables.pop(
        find(sample_key, list(variables), f"{argument('sample_key')} to be a column of the sample sheet")
    )
    if None in names:
        raise InvalidInputError(f"a name in every row of {quoted(sample_key)}", f"{names.count(None)} missing")
    return [str(name) for name in names]
