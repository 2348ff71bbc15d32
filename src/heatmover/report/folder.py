"""Write the folder of results, completely or not at all; the command line and users call it."""

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
from importlib import metadata
from pathlib import Path
from typing import Any

from heatmover._base.files import plain, sync
from heatmover._base.progress import SILENT, Progress
from heatmover._base.storage import writing
from heatmover._base.validation import check_extra, import_extra
from heatmover._base.words import quoted_path
from heatmover.errors import InvalidInputError, argument, in_python, the_argument
from heatmover.report.findings import recorded
from heatmover.report.page import cell_type_table, composition_table, driver_rows, write_report
from heatmover.study.record import Clock
from heatmover.study.study import Study
from heatmover.study.tables import write_table

RECORD = "run.json"
# Advice for an output folder that cannot be used.
ANOTHER = f"another {in_python('folder for the argument ')}{argument('out')}"
# Folders within the hidden folder of a run: one for the new files, one for the replaced files.
NEW, OLD = "new", "old"
PICTURE = "sample-map.png"
CELL_TYPES = "cell-types.csv"
COMPOSITION = "composition.csv"
DRIVERS = "drivers.csv"
INTERVALS = "intervals.csv"
INDEX = "index.txt"
FILES = ("distances.csv", "samples.h5ad", "report.html", RECORD, INDEX)
# Names of all files that a run may write. With --force, all of them are replaced together.
EVERY = (*FILES, PICTURE, CELL_TYPES, INTERVALS, COMPOSITION, DRIVERS)
# Content of each file, most important first.
HOLDS = {
    "report.html": "the report; open it in a browser, offline",
    PICTURE: "the map of the samples as a picture",
    "distances.csv": "the distance between every two samples",
    INTERVALS: "confidence interval of every distance",
    CELL_TYPES: "which cell types differ between the groups",
    DRIVERS: "which genes or features differ within each cell type",
    COMPOSITION: "the share of every cell type in every sample",
    "samples.h5ad": "the samples as AnnData: metadata, distances, maps",
    RECORD: "provenance: input, settings, versions, checksums",
    INDEX: "this list",
}
NEEDS = {
    "samples.h5ad": ("pandas", "anndata"),
    "report.html": ("plotly", "jinja2"),
    PICTURE: ("matplotlib",),
    RECORD: ("session_info2",),
}


def check_extras(*, picture: bool = False, extra: str = "cohort") -> None:
    """Raise an error if a package that writing needs is missing; call this function before the computation.

    Parameters
    ----------
    picture
        Whether a map of the samples will be drawn as an extra file.
    extra
        Extra that the error tells the user to install.

    Examples
    --------
    >>> check_extras(picture=True)
    """
    for name, packages in NEEDS.items():
        for package in packages if picture or name != PICTURE else ():
            check_extra("matplotlib.figure" if name == PICTURE else package, package=package, extra=extra)


@contextmanager
def result_folder(out: Path, *, force: bool = False, names: Sequence[str] = EVERY) -> Iterator[Path]:
    """Yield a temporary folder; on success, move all its files to ``out`` together, otherwise remove it.

    Files of an earlier run are moved away before the first new file arrives, so that ``out`` never contains files of
    two runs. `run.json` arrives last. If a run is killed, the next run removes its temporary files.

    Parameters
    ----------
    out
        Path of the folder for the results; missing parent folders are created.
    force
        Replace all results of an earlier run. Other files in the folder are not changed.
    names
        Names of all files that a run may write; they are replaced together.

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
    existing = _existing_folder(out)
    _check_free(out, force, names)
    # Create the hidden folder in an existing folder, so that no parent folders must be removed after an error, and
    # all renames stay on one disk. Also lock a hidden folder next to ``out``, which another run may have created before
    # ``out`` existed.
    hidden = f".heatmover-run-{hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()[:32]}"
    aside, before = existing / hidden, out.absolute().parent / hidden
    with ExitStack() as held:
        with _write_errors(out):
            for folder in (before, aside) if before.is_dir() and before != aside else (aside,):
                held.enter_context(_locked(folder, out))
            for name in (NEW, OLD):
                (aside / name).mkdir(parents=True)  # a run that ended meanwhile may have removed the folder
        yield aside / NEW
        with _write_errors(out):
            _check_free(out, force, names)
            _deliver(aside, out, names)


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Create and lock the hidden folder of a run, remove files of a killed run, and remove the folder at the end.

    The operating system releases the lock of a killed run.
    """
    try:
        folder.mkdir(exist_ok=True)
        with writing(folder, f"no other run that writes to {quoted_path(str(out))}"):
            for name in (NEW, OLD):
                shutil.rmtree(folder / name, ignore_errors=True)
            yield
    finally:
        # A signal may come before this run holds the lock; a folder that another run has locked stays.
        with suppress(InvalidInputError), writing(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _deliver(aside: Path, out: Path, names: Sequence[str]) -> None:
    """Move the new files to ``out``, `run.json` last; if this fails, move the old files back."""
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
def _write_errors(out: Path) -> Iterator[None]:
    """Convert system errors to an error that explains in one sentence why the folder cannot be written."""
    try:
        yield
    except OSError as error:
        # Name the folder instead of the file that failed, because the file may be hidden.
        raise _unwritable(out, error) from error


def _unwritable(place: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(
        f"{the_argument('out')} to be a writable folder",
        f"{quoted_path(str(place))}: {error.strerror or error}",
        f"choose {ANOTHER}",
    )


def _existing_folder(out: Path) -> Path:
    """Return ``out`` or its nearest existing parent, or raise an error if a file or broken link is in the way."""
    try:
        existing = next(folder for folder in (out, *out.absolute().parents) if _mode(folder))
        is_folder, leads = existing.is_dir(), existing.exists()
    except OSError as error:  # the name is too long, or a folder must not be entered
        raise _unwritable(out, error) from error
    if not is_folder:
        raise InvalidInputError(
            f"{the_argument('out')} to name a folder",
            f"that {quoted_path(str(existing))} is a {'file' if leads else 'broken link'}",
            f"choose {ANOTHER}",
        )
    return existing


def _check_free(out: Path, force: bool, names: Sequence[str]) -> None:
    """Raise an error if a folder holds results that must not, or cannot, be replaced."""
    modes = {name: mode for name in names if (mode := _mode(out / name))}
    if modes and not force:
        raise InvalidInputError(
            f"no results in {quoted_path(str(out))} yet",
            ", ".join(modes),
            f"use {argument('force', True)} to replace them, or {ANOTHER}",
        )
    others = [name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))]
    if others:
        raise InvalidInputError(
            f"files in {quoted_path(str(out))}", f"folders called {', '.join(others)}", f"choose {ANOTHER}"
        )


def _mode(path: Path) -> int:
    """Return the file mode at a path, without following links; 0 if nothing is there."""
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
    """Write the files of a study into a folder; `run.json`, the record of all other files, is written last.

    Parameters
    ----------
    study
        Study from `heatmover.study.study.study_cohort`.
    folder
        Folder from `result_folder`.
    command
        Command or call that produced the study, for `run.json`.
    title
        Title of the report; default: the name of the input.
    picture
        Name of the variable that colors a map of the samples, drawn as an extra file; empty for no map.
    progress
        Receives the stage "write results".

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
    comparison, composition = study.comparison, study.composition
    jobs: list[Callable[[], None]] = [lambda: comparison.to_csv(folder / "distances.csv")]
    if comparison.intervals is not None:
        jobs.append(lambda: comparison.intervals_to_csv(folder / INTERVALS))
    jobs.append(lambda: _write_samples(study, folder / "samples.h5ad"))
    jobs.append(lambda: write_report(study, folder / "report.html", title=title))
    if picture:
        jobs.append(lambda: _draw(study, picture, folder / PICTURE))
    if study.contrasts:
        jobs.append(lambda: write_table(folder / CELL_TYPES, *cell_type_table(study.contrasts)))
    rows = driver_rows(study.contrasts)
    if rows:
        jobs.append(lambda: write_table(folder / DRIVERS, list(rows[0]), [list(row.values()) for row in rows]))
    if composition is not None:
        jobs.append(lambda: write_table(folder / COMPOSITION, *composition_table(comparison.names, composition)))
    jobs.append(lambda: _write_index(study, folder))
    progress.stage("write results", len(jobs) + 1)
    for write in jobs:
        write()
        progress.advance()
    Clock.of(progress).end()  # so that the record includes the duration of this stage
    written = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    record = {
        "command": dict(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **recorded(study),
        "session": _session(),
        "files": written,
    }
    text = json.dumps(plain(record), indent=2, allow_nan=False) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")
    progress.advance()


def _session() -> Any:
    """Return the versions of all loaded packages, and the system, as recorded by session-info2."""
    session = import_extra("session_info2", package="session-info2", extra="demo")
    # `session_info` looks for editable packages too, and checks that every file of every package exists: 0.6 s.
    packages = {"heatmover": ["heatmover"], **metadata.packages_distributions()}
    return json.loads(session.SessionInfo(packages, {}, dependencies=True).format("json"))


def listing(names: Collection[str]) -> list[tuple[str, str]]:
    """Return the files of a result folder with the content of each, the most important file first.

    Parameters
    ----------
    names
        Names of the files in the folder; other files are ignored.

    Examples
    --------
    >>> listing(["run.json", "report.html", "thesis.tex"])[0]
    ('report.html', 'the report; open it in a browser, offline')
    """
    return [(name, holds) for name, holds in HOLDS.items() if name in names]


def _write_index(study: Study, folder: Path) -> None:
    """Write a description of all files in the folder, for readers who open it a year later."""
    # List `run.json` too. It is written later, because it holds the checksums of all other files.
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
        warnings.filterwarnings("ignore", message="Glyph")  # letters missing from the font are drawn as boxes
        save(lambda axes: study.comparison.plot(list(study.variables[variable]), axes), path)


def _write_samples(study: Study, path: Path) -> None:
    """Write an AnnData of the samples, with the layout of `heatmover.tl.samples`."""
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
        # Texts are stored as categories on purpose, so ignore the warning about it; no other warning here helps users.
        warnings.simplefilter("ignore")
        samples = assemble(pack(study.comparison, asked), table, varying)
        # Write to memory first: on a full disk, the HDF5 library prints long errors and may crash when Python ends.
        image = io.BytesIO()
        with h5py.File(image, "w") as file:
            write_elem(file, "/", samples)
    with path.open("wb") as stream:
        stream.write(image.getbuffer())


def storable(table: Any) -> Any:
    """Return the table of samples with names and values that an h5ad file can hold."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    result = pandas.DataFrame(index=[_storable_text(name) for name in table.index])
    for name in table.columns:
        column = table[name]
        # A slash in a column name would create a group within the file.
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
    """Return text without characters that HDF5 cannot hold: NUL and lone surrogates."""
    return str(value).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
