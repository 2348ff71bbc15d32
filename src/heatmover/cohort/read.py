"""`read_cohort`: detect the format, read labels, choose features and metadata, drop cells, fit the PCA."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Int32
from heatmover._base.validation import (
    RandomState,
    check_integer,
    check_memory,
    check_number,
    check_option,
    check_random_state,
    check_truth,
)
from heatmover._base.words import article, counted, find, listed, quoted, quoted_path, readable, verb
from heatmover.cohort.cohort import Cohort, Source
from heatmover.cohort.formats.anndata import open_anndata
from heatmover.cohort.formats.fcs import SKIP_THEM, Measurement, fcs_files, left_out_notes, open_fcs
from heatmover.cohort.formats.tables import (
    NAMED,
    NESTED,
    TEXT,
    DelimitedReader,
    demoted,
    not_a_number,
    open_delimited,
    open_parquet,
    read_sheet,
)
from heatmover.cohort.reader import Block, NotFeatures, Reader, SubsetReader
from heatmover.cohort.samples import Mixture, SampleTable, check_variable, factorize, from_text, table_of
from heatmover.cohort.values import (
    Looked,
    Moments,
    Projection,
    block_rows,
    listed_counts,
    look_through,
    principal_components,
    refusal,
)
from heatmover.errors import InvalidInputError, Sentence, argument

__all__ = ["Opened", "check_measurement", "open_reader", "read_cohort"]

Names = str | Sequence[str] | None

SUFFIXES = {
    ".h5ad": "h5ad",
    ".h5": "h5ad",
    ".hdf5": "h5ad",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
BEGINNINGS = {"h5ad": b"\x89HDF\r\n\x1a\n", "parquet": b"PAR1"}
KINDS = {"h5ad": "h5ad file", "zarr": "zarr store", "csv": "table of text", "parquet": "Parquet file", "fcs": "folder"}


@final
@dataclass(frozen=True)
class Opened:
    """A reader, and what is known about the samples before any cell is read.

    ``sheet`` holds the columns of the sample sheet, if there is one; ``sheet_names`` the sample of each of its rows
    if that is known already, else it is in the column ``sample_key``.
    """

    reader: Reader
    source: Source
    sample_key: str
    sheet: Mapping[str, Sequence[str | None]] | None
    sheet_names: tuple[str, ...] | None


def open_reader(
    path: str | os.PathLike[str] | Any,
    *,
    sample_key: str | None,
    representation: Names,
    annotations: Sequence[str] | None,
    measured: Measurement,
    sample_sheet: str | None,
    no_features: Collection[str] = (),
    memory: int | None = None,
    skip_unlisted: bool = False,
) -> Opened:
    """Return the reader of a path or of an AnnData object."""
    held = hasattr(path, "obs") and hasattr(path, "obsm")
    place, format = ("", "AnnData") if held else (os.fspath(path), format_of(Path(path)))
    if isinstance(annotations, str):
        raise InvalidInputError("annotations to be a list of columns", repr(annotations))
    source = Source(place, format, sample_sheet or "")
    sheet = None
    if sample_sheet is not None:
        _exists(Path(sample_sheet))
        with readable(sample_sheet, "sample sheet"):
            sheet = read_sheet(sample_sheet)
    if format == "fcs":
        with readable(place, KINDS[format]):
            cells, columns = open_fcs(
                place,
                sample_key=sample_key,
                representation=representation,
                measured=measured,
                sheet=sheet,
                memory=memory,
                skip_unlisted=skip_unlisted,
            )
        return Opened(cells, source, sample_key or "sample", columns if sheet is not None else None, cells.names)
    if sample_key is None:
        raise InvalidInputError(
            f"{argument('sample_key')} to name the column that tells the sample of each cell", "none"
        )
    for name, value in measured._asdict().items():
        if value is not None:
            raise InvalidInputError(
                f"{argument(name)} for FCS files only",
                f"{argument(name, value)} and {article(KINDS.get(format, format))}",
            )
    with readable(place, KINDS.get(format, format)):
        named: dict[str, Any] = {
            "sample_key": sample_key,
            "representation": representation,
            "annotations": annotations,
        }
        reader: Reader
        if format in ("csv", "parquet"):
            opener = open_delimited if format == "csv" else open_parquet
            reader = opener(place, no_features=no_features, memory=memory, **named)
        else:
            reader = open_anndata(place, format, path if format == "AnnData" else None, **named)
        return Opened(reader, source, sample_key, sheet, None)


def format_of(path: Path) -> str:
    """Return the name of a path's format, or raise if it is none that can be read."""
    _exists(path)
    with readable(str(path), "file or folder"):
        return _folder_format(path) if path.is_dir() else _file_format(path)


def _exists(path: Path) -> None:
    with readable(str(path), "file"):
        if path.exists():
            return
        folder = path.parent
        beside = sorted(other.name for other in folder.iterdir()) if folder.is_dir() else []
    # Half of a name may be its suffix.
    find(path.name, beside, f"a file that exists in {quoted_path(str(folder))}", close=0.5)


def _folder_format(path: Path) -> str:
    if any((path / name).exists() for name in (".zgroup", ".zmetadata", "zarr.json")):
        return "zarr"
    if fcs_files(path):
        return "fcs"
    raise InvalidInputError("a folder of .fcs files or a zarr store", f"neither in {quoted_path(str(path))}")


def _file_format(path: Path) -> str:
    with path.open("rb") as stream:
        beginning = stream.read(8)
    if not beginning:
        raise InvalidInputError("a file with cells", f"that {quoted_path(str(path))} is empty")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else (suffixes or [""])[-1]
    format = SUFFIXES.get(suffix)
    seen = next((name for name, first in BEGINNINGS.items() if beginning.startswith(first)), None)
    if beginning.startswith(b"FCS"):
        raise InvalidInputError("a folder of .fcs files", "a single one", "pass the folder that holds it")
    if format in BEGINNINGS and seen != format:
        content = article(KINDS[seen]) if seen else "something else"
        raise InvalidInputError(article(KINDS[format]), f"that {quoted_path(str(path))} is {content}")
    if seen or format:
        return seen or str(format)
    raise InvalidInputError(
        "a file ending in .h5ad, .zarr, .csv, .csv.gz, .tsv or .parquet, or a folder of .fcs files",
        quoted_path(str(path)),
    )


# Values that may be in memory for the passes of principal components.
HELD_BYTES = 1 << 28
# Why a column of numbers is no feature.
WHOLE, CONSTANT = "whole numbers", "the same in all cells of each sample"
# Names of labels of cells, which as features would be distances between numbers of clusters.
LABELS = re.compile(
    r"(^|[ _.-])(cluster|leiden|louvain|metacluster|population|label|gate|batch|barcode|sample|patient|donor|file)s?"
    r"([ _.-]?(id|no|nr|number|code|label|\d+))?$",
    re.IGNORECASE,
)
# Distances in more dimensions than this are mostly noise, and the neighbour search slows down.
MOST_COLUMNS = 100


def read_cohort(
    path: str | os.PathLike[str] | Any,
    *,
    sample_key: str | None = None,
    representation: str | Sequence[str] | None = None,
    annotations: Sequence[str] | None = None,
    required: Sequence[str] = (),
    no_features: Sequence[str] = (),
    sample_sheet: str | os.PathLike[str] | None = None,
    standardize: bool = False,
    n_components: int | Literal["all"] | None = None,
    cofactor: float | None = None,
    transform: Literal["arcsinh", "logicle"] | None = None,
    compensate: bool | None = None,
    on_missing: Literal["refuse", "drop"] = "refuse",
    skip_unlisted: bool = False,
    memory: int | float | str | None = None,
    random_state: RandomState = 0,
    progress: Progress = SILENT,
    look_later: bool = False,
) -> Cohort:
    r"""Read the cells of many samples from a file or folder, without loading them.

    Every value is looked at once, in blocks, so that a missing label or a NaN is found before long work begins.
    `heatmover.scale.read_cohort` leaves that to the first pass over the cells, for cells that are compared in pieces.

    Parameters
    ----------
    path
        An AnnData file (.h5ad or .zarr); a table with one row per cell (.csv, .tsv, also .gz, or .parquet); a folder
        of .fcs files, of which each is a sample; or an AnnData object.
    sample_key
        The column that tells the sample of each cell. For FCS files: the column of the sample sheet that names the
        samples; default the files' names.
    representation
        AnnData: a key of ``obsm``, ``"X"``, or a list of variables; default ``"X_pca"`` if there is one, else
        ``"X"``. Tables: a list of columns; default every column of numbers that varies within samples, without
        those of whole numbers if there are others. FCS files: a list of channels; default all but Time.
    annotations
        Columns that may describe samples; default every column that is not a feature.
    required
        Variables of samples that must be there, in the file or the sample sheet; checked before any value is read.
    no_features
        Columns of a table that are no features, whatever they hold. Those in ``annotations`` and ``required`` are none
        anyway. Text in any other column that is mostly numbers is an error, which tells where it is.
    sample_sheet
        A .csv or .tsv file with one row per sample and its variables: by the column ``sample_key``, or for FCS
        files by a column of file names. Where it and the annotations share a name, the sheet counts.
    standardize
        Give every feature mean 0 and variance 1.
    n_components
        Reduce to this many principal components, after standardisation. A matrix X or a table with more than 100
        features needs it; ``"all"`` keeps all of them nevertheless.
    cofactor
        For FCS files: values become ``arcsinh(value / cofactor)``; 5 is usual for mass, 150 for flow cytometry.
        Default: as they are in the file.
    transform
        For FCS files: ``"arcsinh"``, which needs ``cofactor``, or ``"logicle"``, of every channel but scatter and time,
        which stay linear. None with a cofactor takes arcsinh of all channels.
    compensate
        For FCS files: undo the spillover between detectors by the matrix that each file carries. Default: if the files
        have one.
    on_missing
        What to do with cells in which a feature is NaN or infinite: ``"refuse"`` the file, or ``"drop"`` them, with a
        warning in the cohort that counts them by sample.
    skip_unlisted
        Leave out FCS files or samples that the sample sheet does not list; a warning names them. By default they raise
        an error.
    memory
        Memory that reading may take, in bytes or as ``"4 GB"``. A table with too many columns or an FCS file with too
        many cells raises an error that tells how much memory it needs. Default: no limit.
    random_state
        Seed of the principal components above 500 features.
    progress
        Told how many cells were looked at.
    look_later
        Look at every value now only if that cannot wait, because all values decide what becomes of each
        (``standardize``, ``n_components``, ``on_missing="drop"``), or the file is a table of text. Else the first pass
        over the cells looks at them, and raises what would be raised here, as `heatmover.scale.read_cohort` does.

    Returns
    -------
    Cohort
        Its ``warnings`` say what was legal but odd, such as samples of one cell.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.tsv"
    >>> _ = path.write_text("sample\tcd4\tcd8\ns1\t1\t2\ns1\t3\t4\ns2\t5\t9\n")
    >>> cohort = read_cohort(path, sample_key="sample", standardize=True)
    >>> cohort.points().mean(axis=0).round(6) + 0.0
    array([0., 0.])
    >>> cohort.warnings
    ("1 sample has a single cell: 's2'.",)
    >>> read_cohort(path, sample_key="Sampel")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected sample_key ..., found 'Sampel' (did you mean 'sample'?).
    """
    measured = check_measurement(cofactor, transform, compensate)
    check_option("on_missing", on_missing, ("refuse", "drop"))
    if n_components not in (None, "all"):
        n_components = check_integer("n_components", n_components, minimum=1)
    generator = check_random_state(random_state)
    check_truth("skip_unlisted", skip_unlisted)
    budget = None if memory is None else check_memory(memory)
    opened = open_reader(
        path, sample_key=sample_key, representation=representation, annotations=annotations, measured=measured,
        sample_sheet=None if sample_sheet is None else os.fspath(sample_sheet), no_features={*required, *no_features},
        memory=budget, skip_unlisted=skip_unlisted,
    )  # fmt: skip
    with readable(opened.source.path, opened.reader.kind):
        undecided, table, names, codes = _label(opened)
        named = {*(annotations or ()), *required, *no_features, *(opened.sheet or ())}
        reader, variables, varying = _decide(undecided, table, named)
        if opened.sheet is not None:
            if skip_unlisted:
                reader, names, codes, variables = _listed_only(reader, names, codes, variables, opened)
            sheet = _by_name(names, opened)
            variables |= sheet
            varying = {name: count for name, count in varying.items() if name not in sheet}
        for name in required:
            check_variable(name, list(variables), varying, len(names))
        wide = n_components is None and len(reader.features) > MOST_COLUMNS and _whole_matrix(reader, representation)
        if wide:
            raise InvalidInputError(
                f"at most {MOST_COLUMNS} features, or {argument('n_components')}",
                counted(len(reader.features), "feature"),
                f"{argument('n_components', 50)} reduces them by PCA, {argument('n_components', 'all')} keeps them",
            )
        kept = None if n_components is None or n_components == "all" else int(n_components)
        needs_all = standardize or kept is not None or on_missing == "drop" or isinstance(reader.base, DelimitedReader)
        looked = look_through(reader, codes.size, progress) if needs_all or not look_later else None
        if looked is not None and looked.rows.size:
            if on_missing == "refuse":
                raise refusal(looked, reader, names, codes)
            reader, codes = _without(looked, reader, names, codes)
        projection = Projection()
        odd: tuple[str, ...] = ()
        if looked is not None and (standardize or kept is not None):
            held = HELD_BYTES if budget is None else min(HELD_BYTES, budget // 4)
            projection = _project(reader, looked.moments, standardize, kept, generator, held, progress)
            odd = tuple(_constant(reader, looked.moments)) if standardize else ()
    features = reader.features
    if projection.components is not None:
        features = tuple(f"PC{number}" for number in range(1, projection.components.shape[1] + 1))
    unused = _unused(undecided, reader, table, {*required, *no_features, *(annotations or ())})
    left = [name for name, why in unused.items() if why == WHOLE]
    whole = [name for name in reader.features if name not in table.fractional]
    warnings = (
        *_remarks(names, codes), *odd, *_left_out(left),
        *(_labels(whole) if representation is None and opened.source.format in ("csv", "parquet", "fcs") else ()),
        *_nearly_numbers(variables, names, reader, opened.sheet or ()), *reader.notes,
    )  # fmt: skip
    samples = table_of(names, sample_key or "sample", variables)
    return Cohort(
        names, codes, features, samples, varying, warnings, opened.source, reader, projection, unused,
        unchecked=looked is None,
    )  # fmt: skip


def check_measurement(cofactor: Any, transform: Any, compensate: Any) -> Measurement:
    """Return how values of FCS files become features, or raise if what is asked for does not go together."""
    if compensate is not None:
        check_truth("compensate", compensate)
    number = None if cofactor is None else check_number("cofactor", cofactor, above=0)
    if transform is None:
        return Measurement(number, None, compensate)
    check_option("transform", transform, ("arcsinh", "logicle"))
    if transform == "arcsinh" and number is None:
        raise InvalidInputError(
            f"{argument('cofactor')} beside {argument('transform', 'arcsinh')}", "none",
            "5 is usual for mass, 150 for flow cytometry",
        )  # fmt: skip
    if transform == "logicle" and number is not None:
        raise InvalidInputError(
            f"no {argument('cofactor')} beside {argument('transform', 'logicle')}", f"{number:g}", "leave it out"
        )
    return Measurement(number, transform, compensate)


def _label(opened: Opened) -> tuple[Reader, SampleTable, tuple[str, ...], Int32]:
    """Read the labels; return also the reader, for which some features may have turned out to be annotations."""
    reader = opened.reader
    while True:
        table = SampleTable(
            opened.sample_key, reader.features if reader.undecided else (),
            whole=getattr(reader, "whole", ()), decimal=reader.decimal,
        )  # fmt: skip
        try:
            for labels, columns, numbers in reader.label_blocks():
                table.add(labels, columns, numbers)
        except NotFeatures as texts:
            reader = demoted(reader, frozenset(texts.columns))
            continue
        return reader, table, *table.finish(reader.place)


def _decide(
    reader: Reader, table: SampleTable, named: Collection[str]
) -> tuple[Reader, dict[str, list[object]], dict[str, int]]:
    """Divide the columns into features and variables of samples, now that it is known what varies."""
    variables, varying = table.variables(), table.varying
    if not reader.undecided:
        return reader, variables, varying
    for name, mixture in table.mixtures.items():
        if mixture.mostly_numbers and name in varying and name not in named:
            raise not_a_number(reader, name, mixture)
    suspects = frozenset(getattr(reader, "suspects", ()))
    variables = {name: values for name, values in variables.items() if name not in suspects}
    varying = {name: count for name, count in varying.items() if name not in suspects}
    features = tuple(name for name in reader.features if name in varying)
    # Among measurements a column of whole numbers is a label or an identifier, such as a cluster's number.
    fractional = table.fractional
    measured = tuple(name for name in features if name in fractional)
    features = measured or features
    if not features:
        raise InvalidInputError(
            "a column of numbers that varies within samples",
            f"none among {listed(reader.features)}",
            f"name the features in {argument('representation')}",
        )
    taken = frozenset(features)
    return reader.choose(features), variables, {name: count for name, count in varying.items() if name not in taken}


def _unused(undecided: Reader, reader: Reader, table: SampleTable, named: Collection[str]) -> dict[str, str]:
    """Return the columns that are no features, and why, if the features were not named by the user."""
    if not undecided.undecided:
        return dict(undecided.unused)
    features, varying = frozenset(reader.features), table.varying
    reasons = dict(undecided.unused)
    for name in undecided.annotations or ():
        reasons[name] = NAMED if name in named else NESTED if name in table.odd else TEXT
    for name in undecided.features:
        if name not in features:
            reasons[name] = WHOLE if name in varying else CONSTANT
    return reasons


def _nearly_numbers(
    variables: Mapping[str, Sequence[object]], names: Sequence[str], reader: Reader, sheet: Collection[str]
) -> Iterator[str]:
    """Yield the variables of samples that were read from text and are text because of a few values."""
    for name, values in variables.items():
        if name not in sheet and not reader.decimal:
            continue
        mixture = Mixture()
        codes, uniques = factorize(np.array([*values, None], dtype=object)[:-1])
        mixture.add(codes, uniques, "." if name in sheet else reader.decimal, 0)
        if mixture.mostly_numbers:
            yield (
                f"{quoted(name)} is read as text because of {quoted(mixture.value)} (sample "
                f"{quoted(names[mixture.row])}); write NA where a value is missing."
            )


def _listed_only(
    reader: Reader, names: tuple[str, ...], codes: Int32, variables: dict[str, list[object]], opened: Opened
) -> tuple[Reader, tuple[str, ...], Int32, dict[str, list[object]]]:
    """Leave out the cells of samples that the sample sheet does not list."""
    rows = {str(name) for name in opened.sheet_names or (opened.sheet or {}).get(opened.sample_key, names)}
    kept = [place for place, name in enumerate(names) if name in rows]
    if len(kept) == len(names) or not kept:
        return reader, names, codes, variables
    position = np.full(len(names), -1, dtype=np.int32)
    position[kept] = np.arange(len(kept), dtype=np.int32)
    moved = position[codes]
    return (
        SubsetReader.of(reader, moved >= 0, tuple(left_out_notes([name for name in names if name not in rows]))),
        tuple(names[place] for place in kept),
        moved[moved >= 0],
        {name: [values[place] for place in kept] for name, values in variables.items()},
    )


def _by_name(names: Sequence[str], opened: Opened) -> dict[str, list[object]]:
    """Return the variables of the sample sheet in the order of the samples."""
    assert opened.sheet is not None
    sheet = dict(opened.sheet)
    if opened.sheet_names is None:
        key = find(opened.sample_key, list(sheet), f"{argument('sample_key')} to be a column of the sample sheet too")
        labels = sheet.pop(key)
        if None in labels:
            raise InvalidInputError(
                f"a name in every row of {quoted(key)} in the sample sheet", f"{labels.count(None)} missing",
                "name the samples or remove the rows",
            )  # fmt: skip
        rows = [str(name) for name in labels]
    else:
        rows = list(opened.sheet_names)
    place = {name: row for row, name in enumerate(rows)}
    if len(place) < len(rows):
        raise InvalidInputError("one row per sample in the sample sheet", f"{len(rows) - len(place)} repeated")
    absent = [name for name in names if name not in place]
    if absent:
        raise InvalidInputError("every sample to be in the sample sheet", f"{listed(absent)} not in it", SKIP_THEM)
    known = set(names)
    empty = [name for name in rows if name not in known]
    if empty:
        raise InvalidInputError("cells of every sample in the sample sheet", f"0 cells of {listed(empty)}")
    return {column: from_text([values[place[name]] for name in names]) for column, values in sheet.items()}


def _whole_matrix(reader: Reader, representation: object) -> bool:
    """Tell whether the features are simply all there are, not a choice of the user."""
    return representation == "X" or (representation is None and getattr(reader, "representation", "X") == "X")


def _without(looked: Looked, reader: Reader, names: Sequence[str], codes: Int32) -> tuple[Reader, Int32]:
    """Leave the cells out in which a value is missing."""
    lost = np.bincount(codes[looked.rows], minlength=len(names))
    left = np.bincount(codes, minlength=len(names)) - lost
    empty = [name for name, size in zip(names, left, strict=True) if not size]
    if empty:
        raise InvalidInputError("a cell without NaN or infinity in every sample", f"none in {listed(empty)}")
    where = listed_counts(names, lost)
    note = f"{looked.rows.size} of {counted(codes.size, 'cell')} left out, which have NaN or infinity: {where}."
    kept = np.ones(codes.size, dtype=bool)
    kept[looked.rows] = False
    return SubsetReader.of(reader, kept, (note,)), codes[kept]


def _blocks(reader: Reader, n_cells: int) -> Iterator[Block]:
    return reader.blocks(0, n_cells, block_rows(len(reader.features)))


def _project(
    reader: Reader,
    moments: Moments,
    standardize: bool,
    n_components: int | None,
    generator: np.random.Generator,
    held_bytes: int,
    progress: Progress,
) -> Projection:
    # A column without spread stays at zero instead of becoming NaN.
    spread = np.where(moments.constant, 1.0, moments.deviation)
    scale = spread if standardize else np.ones_like(spread)
    if n_components is None:
        return Projection(moments.mean, scale)
    most = min(moments.count, moments.mean.size)
    if n_components > most:
        raise InvalidInputError(
            f"{argument('n_components')} to be at most {most}, the cells or features", str(n_components)
        )
    progress.stage("principal components", 1)
    # Several passes: what is small is read once, for a wide table is slow to read.
    small = 8 * moments.count * moments.mean.size <= held_bytes
    held = list(_blocks(reader, moments.count)) if small else None
    projection = principal_components(
        lambda: _blocks(reader, moments.count) if held is None else iter(held), moments.mean, scale, n_components,
        generator,
    )  # fmt: skip
    total = float((moments.squares / scale**2).sum()) / moments.count
    return replace(projection, explained=projection.explained / total if total else projection.explained)


def _labels(features: Sequence[str]) -> Iterator[str]:
    """Yield which features are labels by their names; of FCS files no more is known before values are read."""
    labels = [name for name in features if LABELS.search(name)]
    if labels:
        yield Sentence(
            f"Used as features, but named like labels of cells: {listed(labels)}; name the features wanted in "
            f"{argument('representation')}."
        )


def _left_out(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield Sentence(
            f"Whole numbers only, so no feature unless named in {argument('representation')}: {listed(names)}."
        )


def _remarks(names: Sequence[str], codes: Int32) -> Iterator[str]:
    """Yield what is legal but odd."""
    single = np.flatnonzero(np.bincount(codes, minlength=len(names)) == 1)
    if single.size:
        subject = f"{counted(single.size, 'sample')} {verb(single.size, 'has', 'have')}"
        yield f"{subject} a single cell: {listed(names[i] for i in single.tolist())}."
    if len(names) == 1:
        yield f"There is only one sample: {quoted(names[0])}."


def _constant(reader: Reader, moments: Moments) -> Iterator[str]:
    constant = np.flatnonzero(moments.constant)
    if constant.size:
        yield f"The same value in every cell: {listed(reader.features[i] for i in constant)}."
