"""A folder of results: written beside its place, moved there when complete, never half."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from heatmover._progress import SILENT, Progress
from heatmover._validation import import_extra
from heatmover.cells import CellContrast
from heatmover.cohort._words import quoted_path
from heatmover.errors import InvalidInputError
from heatmover.study import Study

__all__ = ["CELL_TYPES", "EVERY", "FILES", "PICTURE", "RECORD", "check_extras", "result_folder", "write_results"]

RECORD = "run.json"
PICTURE = "sample-map.png"
CELL_TYPES = "cell-types.csv"
FILES = ("distances.csv", "samples.h5ad", "report.html", RECORD)
# All names that a run has ever written: with --force none of an earlier run stays beside those of a later one.
EVERY = (*FILES, PICTURE, CELL_TYPES)
NEEDS = {
    "samples.h5ad": ("pandas", "anndata"),
    "report.html": ("plotly", "jinja2"),
    PICTURE: ("matplotlib",),
}


def check_extras(*, picture: bool = False, extra: str = "cohort") -> None:
    """Raise if a package is missing that writing will need, before the work and not after it."""
    for name, packages in NEEDS.items():
        for package in packages if picture or name != PICTURE else ():
            import_extra("matplotlib.figure" if name == PICTURE else package, package=package, extra=extra)


@contextmanager
def result_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """Give a temporary folder; if all goes well its files appear in ``out``, else nothing is left of it.

    Parameters
    ----------
    out
        Where the results are to be; folders above it are made.
    force
        Replace the results of an earlier run, all of them together. Other files in the folder stay.

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
    standing = _check_place(out, force)
    # In a folder that stands already, so that nothing has to be undone and a rename stays on one disk.
    temporary = standing / f".heatmover-{uuid.uuid4().hex}"
    try:
        temporary.mkdir()
    except OSError as error:
        raise InvalidInputError(
            "--out where one can write", f"{quoted_path(str(standing))}: {error.strerror}", "choose another --out"
        ) from error
    try:
        yield temporary
        if out.exists():
            _exchange(temporary, out)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_place(out: Path, force: bool) -> Path:
    """Return the nearest folder that stands already, or raise if the results cannot be put there."""
    try:
        standing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
        present = [name for name in EVERY if (out / name).exists()] if standing.is_dir() else []
        folders = [name for name in present if (out / name).is_dir()]
    except OSError as error:  # a name too long, a folder that may not be entered
        raise InvalidInputError(
            "--out where one can write", f"{quoted_path(str(out))}: {error.strerror}", "choose another --out"
        ) from error
    if not standing.is_dir():
        raise InvalidInputError(
            "--out to name a folder", f"the file {quoted_path(str(standing))} in its way", "choose another --out"
        )
    if present and not force:
        raise InvalidInputError(
            f"no results in {quoted_path(str(out))} yet",
            ", ".join(present),
            "use --force to replace them, or another --out",
        )
    if folders:
        raise InvalidInputError(
            f"files in {quoted_path(str(out))}", f"folders called {', '.join(folders)}", "choose another --out"
        )
    return standing


def _exchange(temporary: Path, out: Path) -> None:
    """Put the new files in the place of the old ones; if that fails half-way the old ones come back."""
    # First all old ones go, then the new ones come: whoever looks in between sees too little, never a mixture.
    earlier = temporary / "earlier"
    new = sorted(path.name for path in temporary.iterdir())
    earlier.mkdir()
    moved, placed = [], []
    try:
        for name in EVERY:
            if (out / name).exists():
                (out / name).replace(earlier / name)
                moved.append(name)
        for name in new:
            (temporary / name).replace(out / name)
            placed.append(name)
    except BaseException:
        for name in placed:
            (out / name).unlink(missing_ok=True)
        for name in moved:
            (earlier / name).replace(out / name)
        raise


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
        From `heatmover.study.study_cohort`.
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
    """
    from heatmover.report import write_report

    progress.stage("write results", len(FILES) + bool(picture) + (study.contrast is not None))
    study.comparison.to_csv(folder / "distances.csv")
    progress.advance()
    _write_samples(study, folder / "samples.h5ad")
    progress.advance()
    write_report(study, folder / "report.html", title=title)
    progress.advance()
    if picture:
        _draw(study, picture, folder / PICTURE)
        progress.advance()
    if study.contrast is not None:
        _write_kinds(study.contrast, folder / CELL_TYPES)
        progress.advance()
    written = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    record = {
        "command": dict(command),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **study.record,
        "files": written,
    }
    text = json.dumps(plain(record), indent=2, allow_nan=False) + "\n"
    (folder / RECORD).write_text(text, encoding="utf-8")
    progress.advance()


def plain(value: Any) -> Any:
    """Return a value as JSON knows it: NaN becomes null, infinity text, what is unknown its name."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | int) else str(value)


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"sha256": digest.hexdigest(), "bytes": path.stat().st_size}


def _draw(study: Study, variable: str, path: Path) -> None:
    from heatmover._picture import save

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is drawn as a box
        save(lambda axes: study.comparison.plot(list(study.variables[variable]), axes), path)


def _write_kinds(contrast: CellContrast, path: Path) -> None:
    """Write the numbers of every kind of cell as CSV, with all digits."""
    rows = [
        {"kind": kind.name, "group": contrast.group, "reference": contrast.reference} | row | {"ratio": kind.ratio}
        for kind, row in zip(contrast.kinds, contrast.rows(), strict=True)
    ]
    # A lone surrogate, as a badly decoded name has it, cannot be written as UTF-8.
    with path.open("x", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_samples(study: Study, path: Path) -> None:
    """Write an AnnData of the samples, as `heatmover.tl.samples` makes it."""
    from heatmover.tl._results import pack
    from heatmover.tl._samples import assemble

    h5py = import_extra("h5py", package="anndata", extra="cohort")
    write_elem = import_extra("anndata.io", package="anndata", extra="cohort").write_elem
    table = storable(study.variables)
    table["n_cells"] = study.comparison.sizes
    varying = [_storable_text(name) for name in (study.record.get("input") or {}).get("varying", ())]
    asked = {
        name: _storable_text(value) if isinstance(value, str) else value
        for name, value in (study.record.get("parameters") or {}).items()
        if name != "variables"
    }
    with warnings.catch_warnings():
        # Storing texts as categories is what is wanted; other sayings of a writer help no user.
        warnings.simplefilter("ignore")
        made = assemble(pack(study.comparison, asked), table, varying)
        # In memory first: on a full disk the HDF5 library complains at length and may crash when Python ends.
        image = io.BytesIO()
        with h5py.File(image, "w") as file:
            write_elem(file, "/", made)
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
