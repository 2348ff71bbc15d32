"""A folder of results: written beside its place, moved there when complete, never half."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heatmover._base.files import lock_file, plain, sync, try_lock
from heatmover._base.progress import SILENT, Progress
from heatmover._base.validation import check_extra, import_extra
from heatmover._base.words import quoted_path
from heatmover.errors import InvalidInputError, argument
from heatmover.report.page import cell_type_table, composition_table, driver_rows, write_report
from heatmover.study.study import Study
from heatmover.study.tables import write_table

__all__ = [
    "CELL_TYPES",
    "COMPOSITION",
    "DRIVERS",
    "EVERY",
    "FILES",
    "HOLDS",
    "INDEX",
    "INTERVALS",
    "PICTURE",
    "RECORD",
    "check_extras",
    "listing",
    "result_folder",
    "write_results",
]

RECORD = "run.json"
# In the hidden folder of a run: the file that is locked, the new files, and the old ones.
LOCK, NEW, OLD = "lock", "new", "old"
PICTURE = "sample-map.png"
CELL_TYPES = "cell-types.csv"
COMPOSITION = "composition.csv"
DRIVERS = "drivers.csv"
INTERVALS = "intervals.csv"
INDEX = "index.txt"
FILES = ("distances.csv", "samples.h5ad", "report.html", RECORD, INDEX)
# All names that a run has ever written: with --force none of an earlier run stays beside those of a later one.
EVERY = (*FILES, PICTURE, CELL_TYPES, INTERVALS, COMPOSITION, DRIVERS)
# What a person finds in each, in the order in which one would look.
HOLDS = {
    "report.html": "the report: open it in a browser, it needs no network",
    PICTURE: "the map of the samples as a picture",
    "distances.csv": "the distance between every two samples",
    INTERVALS: "how sure each distance is: the interval it lies in",
    CELL_TYPES: "which cell types differ between the groups, in numbers",
    DRIVERS: "which features differ within each cell type",
    COMPOSITION: "the share of every cell type in every sample",
    "samples.h5ad": "the samples as an AnnData: variables, distances, maps",
    RECORD: "how it was made: input, settings, versions, checksums",
    INDEX: "this list",
}
NEEDS = {
    "samples.h5ad": ("pandas", "anndata"),
    "report.html": ("plotly", "jinja2"),
    PICTURE: ("matplotlib",),
}


def check_extras(*, picture: bool = False, extra: str = "cohort") -> None:
    """Raise if a package is missing that writing will need, before the work and not after it.

    Parameters
    ----------
    picture
        Whether a map of the samples is to be drawn too.
    extra
        Which to install, for the error.

    Examples
    --------
    >>> check_extras(picture=True)
    """
    for name, packages in NEEDS.items():
        for package in packages if picture or name != PICTURE else ():
            check_extra("matplotlib.figure" if name == PICTURE else package, package=package, extra=extra)


@contextmanager
def result_folder(out: Path, *, force: bool = False, names: Sequence[str] = EVERY) -> Iterator[Path]:
    """Give a temporary folder; if all goes well its files appear in ``out`` at once, else nothing is left of it.

    Files of an earlier run are moved away before the first new one comes, so that the folder never holds a mixture, and
    `run.json` comes last. What a killed run leaves behind the next one removes.

    Parameters
    ----------
    out
        Where the results are to be; folders above it are made.
    force
        Replace the results of an earlier run, all of them together. Other files in the folder stay.
    names
        All files that a run may write there: of an earlier run none stays beside those of a later one.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "results"
    >>> with result_folder(out) as folder:
    ...     _ = (folder / "run.json").write_text("{}")
    ...     out.exists()
    False
    >>> [path.name for path in out.iterdir()]
    ['run.json']
    """
    standing = _standing(out)
    _check_free(out, force, names)
    # In a folder that stands already, so that nothing has to be undone and a rename stays on one disk.
    aside = standing / f".heatmover-run-{hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()[:32]}"
    with ExitStack() as ends:
        with _told(out):
            _begin(aside, out, ends)
        yield aside / NEW
        with _told(out):
            _check_free(out, force, names)
            _deliver(aside, out, names)


def _begin(aside: Path, out: Path, ends: ExitStack) -> None:
    """Make the folder of a run, or raise if another run is at work; the system frees the lock of a dead one."""
    before = out.absolute().parent / aside.name  # where a run began when the folder was not there yet
    for folder in (before, aside) if before.is_dir() and before != aside else (aside,):
        ends.callback(_remove, folder)
        folder.mkdir(exist_ok=True)
        lock = lock_file(folder / LOCK)
        ends.callback(os.close, lock)
        if try_lock(lock) is False:
            raise InvalidInputError(
                f"no other run that writes to {quoted_path(str(out))}",
                "one at work",
                f"wait for it, or choose another {argument('out')}",
            )
    for name in (NEW, OLD):
        shutil.rmtree(aside / name, ignore_errors=True)
        (aside / name).mkdir(parents=True)  # a run that ended meanwhile may have removed the folder


def _remove(folder: Path) -> None:
    """Remove the folder of a run, wherever the run was interrupted, unless another run is at work there."""
    with suppress(OSError):
        lock = lock_file(folder / LOCK)
        try:
            if try_lock(lock) is not False:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _deliver(aside: Path, out: Path, names: Sequence[str]) -> None:
    """Put the new files in their place, the record last; if that fails the old ones come back."""
    new = sorted((path.name for path in (aside / NEW).iterdir()), key=lambda name: (name == RECORD, name))
    for path in (*(aside / NEW / name for name in new), aside / NEW):
        sync(path)
    if not out.is_dir():
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        (aside / NEW).rename(out)
        sync(out.absolute().parent)
        return
    try:
        for name in names:
            if os.path.lexists(out / name):
                (out / name).replace(aside / OLD / name)
        for name in new:
            (aside / NEW / name).replace(out / name)
        sync(out)
    except BaseException:
        for name in new:
            if not (aside / NEW / name).exists():
                (out / name).unlink(missing_ok=True)
        for path in (aside / OLD).iterdir():
            path.replace(out / path.name)
        raise


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """Say in one sentence why a folder cannot be written to."""
    try:
        yield
    except OSError as error:
        # Not the file at which it was noticed, which may be a hidden one.
        raise _unwritable(out, error) from error


def _unwritable(place: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"{argument('out')} where one can write",
        f"{quoted_path(str(place))}: {error.strerror or error}",
        f"choose another {argument('out')}",
    )


def _standing(out: Path) -> Path:
    """Return the nearest folder that stands already, or raise if something else is in its way."""
    try:
        standing = next(folder for folder in (out, *out.absolute().parents) if _mode(folder))
        is_folder, leads = standing.is_dir(), standing.exists()
    except OSError as error:  # a name too long, a folder that may not be entered
        raise _unwritable(out, error) from error
    if not is_folder:
        raise InvalidInputError(
            f"{argument('out')} to name a folder",
            f"the {'file' if leads else 'broken link'} {quoted_path(str(standing))} in its way",
            f"choose another {argument('out')}",
        )
    return standing


def _check_free(out: Path, force: bool, names: Sequence[str]) -> None:
    """Raise if results are in a folder and must not, or cannot, be replaced."""
    modes = {name: mode for name in names if (mode := _mode(out / name))}
    if modes and not force:
        raise InvalidInputError(
            f"no results in {quoted_path(str(out))} yet",
            ", ".join(modes),
            f"use {argument('force', True)} to replace them, or another {argument('out')}",
        )
    others = [name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))]
    if others:
        raise InvalidInputError(
            f"files in {quoted_path(str(out))}",
            f"folders called {', '.join(others)}",
            f"choose another {argument('out')}",
        )


def _mode(path: Path) -> int:
    """Return what is at a path, be it a link that leads nowhere, as the system tells it; 0 for nothing."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def write_results(
    study: Study,
    folder: Path,
    *,
    command: Mapping[str, Any],
    title: str | None = None,
    picture: str = "",
    progress: Progress = SILENT,
) -> None:
    """Write the files of a study into a folder, the record of all others last.

    Parameters
    ----------
    study
        From `heatmover.study.study.study_cohort`.
    folder
        That of `result_folder`.
    command
        What was asked for, for the record.
    title
        Of the report; default its own.
    picture
        Draw also a map of the samples, coloured by this variable; empty for none.
    progress
        Told of the stage "write results".

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=40)
    >>> study = hm.study_comparison(hm.compare(data.points, data.labels))
    >>> out = pathlib.Path(tempfile.mkdtemp()) / "results"
    >>> with result_folder(out) as folder:
    ...     write_results(study, folder, command={"name": "example"})
    >>> sorted(path.name for path in out.iterdir())
    ['distances.csv', 'index.txt', 'report.html', 'run.json', 'samples.h5ad']
    """
    comparison, contrast, composition = study.comparison, study.contrast, study.composition
    jobs: list[Callable[[], None]] = [lambda: comparison.to_csv(folder / "distances.csv")]
    if comparison.intervals is not None:
        jobs.append(lambda: comparison.intervals_to_csv(folder / INTERVALS))
    jobs.append(lambda: _write_samples(study, folder / "samples.h5ad"))
    jobs.append(lambda: write_report(study, folder / "report.html", title=title))
    if picture:
        jobs.append(lambda: _draw(study, picture, folder / PICTURE))
    if contrast is not None:
        jobs.append(lambda: write_table(folder / CELL_TYPES, *cell_type_table(contrast)))
    if contrast is not None and contrast.drivers is not None:
        rows = driver_rows(contrast)
        jobs.append(lambda: write_table(folder / DRIVERS, list(rows[0]), [list(row.values()) for row in rows]))
    if composition is not None:
        jobs.append(lambda: write_table(folder / COMPOSITION, *composition_table(comparison.names, composition)))
    jobs.append(lambda: _write_index(study, folder))
    progress.stage("write results", len(jobs) + 1)
    for write in jobs:
        write()
        progress.advance()
    written = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    record = {
        "command": dict(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **study.plain(),
        "files": written,
    }
    text = json.dumps(plain(record), indent=2, allow_nan=False) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")
    progress.advance()


def listing(names: Collection[str]) -> list[tuple[str, str]]:
    """Return the files of a result folder with what each holds, the one to open first at the top.

    Parameters
    ----------
    names
        Of what is there; names that no run writes are left out.

    Examples
    --------
    >>> listing(["run.json", "report.html", "thesis.tex"])[0]
    ('report.html', 'the report: open it in a browser, it needs no network')
    """
    return [(name, holds) for name, holds in HOLDS.items() if name in names]


def _write_index(study: Study, folder: Path) -> None:
    """Write what is in the folder, in words, for whoever opens it a year later."""
    # The record comes last, because it holds the checksums of all others.
    rows = listing([*(path.name for path in folder.iterdir()), INDEX, RECORD])
    width = max(len(name) for name, _ in rows)
    lines = [study.headline(), "", *(f"{name:<{width}}  {holds}" for name, holds in rows)]
    lines += ["", f"Written by heatmover {study.record.versions['heatmover']}."]
    (folder / INDEX).write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace")


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"sha256": digest.hexdigest(), "bytes": path.stat().st_size}


def _draw(study: Study, variable: str, path: Path) -> None:
    from heatmover.study.drawing.style import save

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is drawn as a box
        save(lambda axes: study.comparison.plot(list(study.variables[variable]), axes), path)


def _write_samples(study: Study, path: Path) -> None:
    """Write an AnnData of the samples, as `heatmover.tl.samples` makes it."""
    from heatmover.tl.layout import assemble, pack

    h5py = import_extra("h5py", package="anndata", extra="cohort")
    write_elem = import_extra("anndata.io", package="anndata", extra="cohort").write_elem
    table = storable(study.variables)
    table["n_cells"] = study.comparison.sizes
    varying = [_storable_text(name) for name in (study.record.input or {}).get("varying", ())]
    asked = {
        name: _storable_text(value) if isinstance(value, str) else value
        for name, value in study.record.parameters.items()
        if name != "variables"
    }
    with warnings.catch_warnings():
        # Storing texts as categories is what is wanted; other sayings of a writer help no user.
        warnings.simplefilter("ignore")
        samples = assemble(pack(study.comparison, asked), table, varying)
        # In memory first: on a full disk the HDF5 library complains at length and may crash when Python ends.
        image = io.BytesIO()
        with h5py.File(image, "w") as file:
            write_elem(file, "/", samples)
    with path.open("wb") as stream:
        stream.write(image.getbuffer())


def storable(table: Any) -> Any:
    """Return a table of samples whose names and values an h5ad file can hold."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    result = pandas.DataFrame(index=[_storable_text(name) for name in table.index])
    for name in table.columns:
        column = table[name]
        # A slash in the name of a column would be a folder within the file.
        key = _storable_text(name).replace("/", "|") or "unnamed"
        while key in (*result.columns, "_index", "n_cells"):
            key += "_"
        result[key] = column.to_numpy() if column.dtype.kind in "iufb" else _categories(column)
    return result


def _categories(column: Any) -> Any:
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    missing = column.isna()
    return pandas.Categorical(
        [None if gap else _storable_text(value) for value, gap in zip(column, missing, strict=True)]
    )


def _storable_text(value: object) -> str:
    """Return text without what HDF5 cannot hold: NUL and halves of characters."""
    return str(value).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
