"""Read a cohort from files: format, samples, features, metadata, PCA; for users, `study`, `atlas`, `tl`, `cli`.

`read_cohort` is public as `heatmover.read_cohort`. This module reads the file or folder of cells and the sample sheet,
and writes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heatmover._base.files import readable
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
from heatmover._base.words import article, counted, find, listed, quoted, quoted_path, verb
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
from heatmover.cohort.reader import NotFeatures, Reader, Selection, SubsetReader
from heatmover.cohort.samples import Mixture, SampleTable, check_variable, from_text, table_of
from heatmover.cohort.values import Projection, drop_rows, fit_projection, look_through, not_finite_error
from heatmover.errors import InvalidInputError, Sentence, argument

SUFFIXES = {".h5ad": "h5ad", ".csv": "csv", ".tsv": "csv", ".txt": "csv", ".parquet": "parquet"}
BEGINNINGS = {"h5ad": b"\x89HDF\r\n\x1a\n", "parquet": b"PAR1"}
KINDS = {"h5ad": "h5ad file", "zarr": "zarr store", "csv": "table of text", "parquet": "Parquet file", "fcs": "folder"}


# A sample sheet: the sample of each row, and the other columns by name.
Sheet = tuple[Sequence[str], Mapping[str, Sequence[str | None]]]


def _open(
    path: str | os.PathLike[str] | Any,
    wanted: Selection,
    measured: Measurement,
    sample_sheet: str | None,
    skip_unlisted: bool,
) -> tuple[Reader, Source, Sheet | None]:
    """Return a reader of a path or an AnnData object, the source of its cells, and the sample sheet, if any."""
    sample_key = wanted.sample_key
    held = hasattr(path, "obs") and hasattr(path, "obsm")
    place, format = ("", "AnnData") if held else (os.fspath(path), format_of(Path(path)))
    if isinstance(wanted.annotations, str):
        raise InvalidInputError("the argument annotations to be a list of columns", repr(wanted.annotations))
    # Use an absolute path, because workers may run in another folder.
    file = os.path.abspath(place) if place else ""  # noqa: PTH100 - keeps links
    source = Source(place, format, sample_sheet or "")
    sheet = None
    if sample_sheet is not None:
        _exists(Path(sample_sheet))
        with readable(sample_sheet, "sample sheet"):
            sheet = read_sheet(sample_sheet)
    if format == "fcs":
        with readable(place, KINDS[format]):
            cells, columns = open_fcs(file, wanted, measured, sheet, skip_unlisted=skip_unlisted)
        return cells, source, None if sheet is None else (cells.names, columns)
    if not sample_key:
        raise InvalidInputError(f"{argument('sample_key')} to name the column with the sample of each cell", "none")
    for name, value in measured._asdict().items():
        if value is not None:
            raise InvalidInputError(
                f"FCS files for {argument(name, value)}",
                article(KINDS.get(format, format)),
                f"leave out {argument(name, value)}",
            )
    with readable(place, KINDS.get(format, format)):
        reader: Reader
        if format == "csv":
            reader = open_delimited(file, wanted)
        elif format == "parquet":
            reader = open_parquet(file, wanted)
        else:
            reader = open_anndata(file, format, path if held else None, wanted)
    if sheet is None:
        return reader, source, None
    key = find(sample_key, list(sheet), f"{argument('sample_key')} to be a column of the sample sheet too")
    labels = sheet.pop(key)
    if None in labels:
        raise InvalidInputError(
            f"a name in every row of {quoted(key)} in the sample sheet", f"{labels.count(None)} missing",
            "name the samples or remove the rows",
        )  # fmt: skip
    return reader, source, ([str(label) for label in labels], sheet)


def format_of(path: Path) -> str:
    """Return the name of the format of a file or folder, or raise if the format is not supported."""
    _exists(path)
    with readable(str(path), "file or folder"):
        return _folder_format(path) if path.is_dir() else _file_format(path)


def _exists(path: Path) -> None:
    with readable(str(path), "file"):
        if path.exists():
            return
        folder = path.parent
        others = sorted(other.name for other in folder.iterdir()) if folder.is_dir() else []
    # Suggest less similar names than usual, because half of a file name may be its suffix.
    find(path.name, others, f"a file that exists in {quoted_path(str(folder))}", close=0.5)


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
        raise InvalidInputError("a folder of .fcs files", "a single file", "pass the folder that contains the file")
    if format in BEGINNINGS and seen != format:
        content = article(KINDS[seen]) if seen else "something else"
        raise InvalidInputError(article(KINDS[format]), f"that {quoted_path(str(path))} is {content}")
    if seen or format:
        return seen or str(format)
    raise InvalidInputError(
        "a file ending in .h5ad, .zarr, .csv, .csv.gz, .tsv or .parquet, or a folder of .fcs files",
        quoted_path(str(path)),
    )


# Reasons why a column of numbers is not a feature.
WHOLE, CONSTANT = "whole numbers", "the same in all cells of each sample"
# Names of columns with labels of cells. If these columns were features, distances would compare cluster numbers.
LABELS = re.compile(
    r"(^|[ _.-])(cluster|leiden|louvain|metacluster|population|label|gate|batch|barcode|sample|patient|donor|file)s?"
    r"([ _.-]?(id|no|nr|number|code|label|\d+))?$",
    re.IGNORECASE,
)
# Largest number of features without a PCA. In more dimensions, distances are mostly noise, and the neighbor search is
# slow.
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

    Every value is checked once, in blocks, so that a missing label or a NaN is reported before a long computation
    begins. For out-of-core comparisons, `heatmover.scale.read_cohort` delays this check until the first pass over the
    cells.

    Parameters
    ----------
    path
        An AnnData file (.h5ad or .zarr), a table with one row per cell (.parquet, or .csv and .tsv, which may be
        gzipped), a folder of .fcs files, one per sample, or an AnnData object.
    sample_key
        Column with the sample of each cell. For FCS files, the column of the sample sheet with the names of the
        samples; by default, the file names are the names of the samples.
    representation
        Features of the cells. For AnnData, a key of ``obsm``, ``"X"``, or a list of variables. The default is
        ``"X_pca"`` if it exists, else ``"X"``. For tables, a list of columns. The default is every numeric column that
        varies within samples; columns of whole numbers are left out if some of these columns contain fractions. For FCS
        files, a list of channels. The default is all channels except Time.
    annotations
        Columns that may contain sample metadata; default: every column that is not a feature.
    required
        Names of sample metadata that the file or the sample sheet must contain; they are checked before any value is
        read.
    no_features
        Columns of a table to treat as metadata, not as features. Columns in ``annotations`` and ``required`` are never
        features either. If any other column consists mostly of numbers but contains text, an error names the line of
        the text.
    sample_sheet
        Path of a .csv or .tsv file of sample metadata with one row per sample, matched by the column ``sample_key``, or
        for FCS files by a column of file names. Columns of the sheet take precedence over annotations of the same name.
    standardize
        Give every feature mean 0 and variance 1.
    n_components
        Number of principal components to keep, computed after standardization. Required for a matrix X or a table with
        more than 100 features; ``"all"`` keeps all features without a PCA.
    cofactor
        For FCS files: replace values by ``arcsinh(value / cofactor)``. Usual cofactors are 5 for mass cytometry and 150
        for flow cytometry. Default: values are not transformed, unless ``transform`` is given.
    transform
        For FCS files: ``"arcsinh"``, which needs ``cofactor``, or ``"logicle"``. Scatter and time channels stay linear.
        With None and a cofactor, arcsinh is applied to all channels.
    compensate
        For FCS files: compensate spillover between detectors by the matrix in each file. Default: compensate if the
        files contain a matrix.
    on_missing
        How to treat cells with a NaN or infinite feature: ``"refuse"`` raises an error, ``"drop"`` leaves the cells out
        and adds a warning with their number in each sample.
    skip_unlisted
        Leave out FCS files or samples that the sample sheet does not list; a warning names them. By default, unlisted
        files or samples raise an error.
    memory
        Memory limit for reading, in bytes or as text such as ``"4 GB"``. If a table has too many columns, or an FCS
        file has too many cells, an error states how much memory is needed. Default: no limit.
    random_state
        Seed of the randomized PCA, used above 500 features.
    progress
        Receives the number of cells checked.
    look_later
        Check values for NaN and infinity during the first pass over the cells instead of during this call, as in
        `heatmover.scale.read_cohort`; the errors are the same. Values are nevertheless checked during this call if the
        result depends on all values (``standardize``, ``n_components``, ``on_missing="drop"``), or if the file is a
        table of text.

    Returns
    -------
    Cohort
        The cohort. Its ``warnings`` describe valid but unusual input, such as samples of a single cell.

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
    kept = None if n_components in (None, "all") else check_integer("n_components", n_components, minimum=1)
    generator = check_random_state(random_state)
    check_truth("skip_unlisted", skip_unlisted)
    budget = None if memory is None else check_memory(memory)
    wanted = Selection(sample_key or "", representation, annotations, {*required, *no_features}, budget)
    sheet_path = None if sample_sheet is None else os.fspath(sample_sheet)
    opened, source, sheet = _open(path, wanted, measured, sheet_path, skip_unlisted)
    in_sheet = frozenset(() if sheet is None else sheet[1])
    with readable(source.path, opened.kind):
        undecided, table, names, codes = _label(opened, sample_key or "sample")
        reader, variables, varying = _decide(undecided, table, {*(annotations or ()), *wanted.no_features, *in_sheet})
        if sheet is not None:
            if skip_unlisted:
                reader, names, codes, variables = _listed_only(reader, names, codes, variables, sheet[0])
            variables |= _by_name(names, *sheet)
            varying = {name: count for name, count in varying.items() if name not in in_sheet}
        for name in required:
            check_variable(name, list(variables), varying, len(names))
        # If the user did not choose features, X or all numeric columns are used.
        default = "X" if representation is None else representation
        all_features = default == "X" and getattr(reader, "representation", "X") == "X"
        if n_components is None and len(reader.features) > MOST_COLUMNS and all_features:
            raise InvalidInputError(
                f"at most {MOST_COLUMNS} features, or {argument('n_components')}",
                counted(len(reader.features), "feature"),
                f"{argument('n_components', 50)} reduces them by PCA, and {argument('n_components', 'all')} keeps them",
            )
        needs_all = standardize or kept is not None or on_missing == "drop" or isinstance(reader.base, DelimitedReader)
        looked = look_through(reader, codes.size, progress) if needs_all or not look_later else None
        if looked is not None and looked.rows.size:
            if on_missing == "refuse":
                raise not_finite_error(looked, reader, names, codes)
            reader, codes = drop_rows(looked, reader, names, codes)
        projection = Projection()
        constant: list[str] = []
        if looked is not None and (standardize or kept is not None):
            projection = fit_projection(
                reader, looked.moments, kept, generator, progress, standardize=standardize, memory=budget
            )
            if standardize:
                constant = [reader.features[place] for place in np.flatnonzero(looked.moments.constant)]
    features = reader.features
    if projection.components is not None:
        features = tuple(f"PC{number}" for number in range(1, projection.components.shape[1] + 1))
    unused = _unused(undecided, reader, table, {*wanted.no_features, *(annotations or ())})
    left = [name for name, why in unused.items() if why == WHOLE]
    labels: list[str] = []
    if representation is None and source.format in ("csv", "parquet", "fcs"):
        # For FCS files, which have no column types, `fractional` is empty, so only the names are checked.
        labels = [name for name in reader.features if name not in table.fractional and LABELS.search(name)]
    warnings = (
        *_annotates_cells(table, names), *_remarks(names, codes, constant, left, labels),
        *_nearly_numbers(variables, names, reader, in_sheet), *reader.notes,
    )  # fmt: skip
    samples = table_of(names, sample_key or "sample", variables)
    return Cohort(
        names, codes, features, samples, varying, warnings, source, reader, projection, unused,
        unchecked=looked is None,
    )  # fmt: skip


def check_measurement(cofactor: Any, transform: Any, compensate: Any) -> Measurement:
    """Return the options by which FCS files are converted to features, or raise an error if the options conflict."""
    if compensate is not None:
        check_truth("compensate", compensate)
    number = None if cofactor is None else check_number("cofactor", cofactor, above=0)
    if transform is None:
        return Measurement(number, None, compensate)
    check_option("transform", transform, ("arcsinh", "logicle"))
    if transform == "arcsinh" and number is None:
        raise InvalidInputError(
            f"{argument('cofactor')} with {argument('transform', 'arcsinh')}", "none",
            "5 is usual for mass cytometry, and 150 for flow cytometry",
        )  # fmt: skip
    if transform == "logicle" and number is not None:
        raise InvalidInputError(
            f"no {argument('cofactor')} with {argument('transform', 'logicle')}", f"{number:g}", "leave it out"
        )
    return Measurement(number, transform, compensate)


def _label(reader: Reader, sample_key: str) -> tuple[Reader, SampleTable, tuple[str, ...], Int32]:
    """Read the labels of all cells; also return the reader, some of whose features may have become annotations."""
    while True:
        table = SampleTable(
            sample_key, (*(reader.annotations or ()), *reader.suspects),
            reader.features if reader.undecided else (),
            whole=getattr(reader, "whole", ()), decimal=reader.decimal,
        )  # fmt: skip
        try:
            for labels, columns, numbers in reader.label_blocks():
                table.add(labels, columns, numbers)
        except NotFeatures as texts:
            reader = demoted(reader, frozenset(texts.args))
            continue
        return reader, table, *table.finish(reader.place)


def _decide(
    reader: Reader, table: SampleTable, named: Collection[str]
) -> tuple[Reader, dict[str, list[object]], dict[str, int]]:
    """Divide the columns into features, which vary within samples, and sample metadata."""
    variables, varying = table.variables(), table.varying
    if not reader.undecided:
        return reader, variables, varying
    for name, mixture in table.mixtures.items():
        if mixture.mostly_numbers and name in varying and name not in named:
            raise not_a_number(reader, name, mixture)
    variables = {name: values for name, values in variables.items() if name not in reader.suspects}
    varying = {name: count for name, count in varying.items() if name not in reader.suspects}
    features = tuple(name for name in reader.features if name in varying)
    # Among measurements, a column of whole numbers is probably a label or an identifier, such as a cluster number.
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
    # Drop fields that are no longer needed, because the reader is sent to workers.
    reader = replace(reader, features=features, undecided=False, unused={}, suspects=())
    return reader, variables, {name: count for name, count in varying.items() if name not in taken}


def _unused(undecided: Reader, reader: Reader, table: SampleTable, named: Collection[str]) -> dict[str, str]:
    """Return the columns that are not features, each with the reason, including columns excluded by default."""
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
    """Yield a warning for each column of sample metadata that is text only because of a few values."""
    for name, values in variables.items():
        if name not in sheet and not reader.decimal:
            continue
        mixture = Mixture.of(values, "." if name in sheet else reader.decimal)
        if mixture.mostly_numbers:
            yield (
                f"{quoted(name)} is read as text because of {quoted(mixture.value)} (sample "
                f"{quoted(names[mixture.row])}); write NA for missing values."
            )


def _listed_only(
    reader: Reader, names: tuple[str, ...], codes: Int32, variables: dict[str, list[object]], rows: Sequence[str]
) -> tuple[Reader, tuple[str, ...], Int32, dict[str, list[object]]]:
    """Leave out the cells of samples that the sample sheet does not list."""
    in_sheet = frozenset(rows)
    kept = [place for place, name in enumerate(names) if name in in_sheet]
    if len(kept) == len(names) or not kept:
        return reader, names, codes, variables
    position = np.full(len(names), -1, dtype=np.int32)
    position[kept] = np.arange(len(kept), dtype=np.int32)
    moved = position[codes]
    return (
        SubsetReader.of(reader, moved >= 0, tuple(left_out_notes([name for name in names if name not in in_sheet]))),
        tuple(names[place] for place in kept),
        moved[moved >= 0],
        {name: [values[place] for place in kept] for name, values in variables.items()},
    )


def _by_name(
    names: Sequence[str], rows: Sequence[str], columns: Mapping[str, Sequence[str | None]]
) -> dict[str, list[object]]:
    """Return the columns of the sample sheet, with values in the order of ``names``."""
    place = {name: row for row, name in enumerate(rows)}
    if len(place) < len(rows):
        raise InvalidInputError(
            "one row per sample in the sample sheet", counted(len(rows) - len(place), "repeated name")
        )
    absent = [name for name in names if name not in place]
    if absent:
        raise InvalidInputError("every sample to be in the sample sheet", f"no {listed(absent)} in it", SKIP_THEM)
    present = set(names)
    empty = [name for name in rows if name not in present]
    if empty:
        raise InvalidInputError("cells of every sample in the sample sheet", f"no cells of {listed(empty)}")
    return {column: from_text([values[place[name]] for name in names]) for column, values in columns.items()}


def _annotates_cells(table: SampleTable, names: Sequence[str]) -> Iterator[str]:
    """Yield a warning that suggests another column if the sample column looks like an annotation of cells."""
    shared = table.shared()
    if shared is not None:
        (column, everywhere), key = shared, quoted(table.sample_key)
        yield Sentence(
            f"{everywhere:,} of {counted(len(names), 'value')} of {key} {verb(everywhere, 'occurs', 'occur')} in every "
            f"{quoted(column)}, so {key} looks like an annotation of cells; perhaps use "
            f"{argument('sample_key', column)}."
        )


def _remarks(
    names: Sequence[str], codes: Int32, constant: Sequence[str], left: Sequence[str], labels: Sequence[str]
) -> Iterator[str]:
    """Yield warnings about valid but unusual samples and features."""
    single = np.flatnonzero(np.bincount(codes, minlength=len(names)) == 1)
    if single.size:
        subject = f"{counted(single.size, 'sample')} {verb(single.size, 'has', 'have')}"
        yield f"{subject} a single cell: {listed(names[i] for i in single.tolist())}."
    if len(names) == 1:
        yield f"There is only one sample: {quoted(names[0])}."
    if constant:
        yield f"These features have the same value in every cell: {listed(constant)}."
    if left:
        yield Sentence(
            f"These columns are not used as features, because they contain only whole numbers: {listed(left)}. To use "
            f"them, list them in {argument('representation')}."
        )
    if labels:
        yield Sentence(
            f"These columns are used as features, although their names look like cell labels: {listed(labels)}. To "
            f"choose the features yourself, list them in {argument('representation')}."
        )
