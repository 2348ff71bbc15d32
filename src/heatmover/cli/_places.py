"""Where a command reads and writes: places that would overwrite or spoil each other are refused before the work."""

from __future__ import annotations

from pathlib import Path

from heatmover._words import quoted_path
from heatmover.cohort.formats.choose import format_of
from heatmover.errors import InvalidInputError
from heatmover.report.folder import EVERY

__all__ = ["check_named", "check_places"]


def check_named(**options: str | None) -> None:
    """Raise if an option names no place: to the system an empty name is the current folder."""
    for name, text in options.items():
        if text is not None and not text:
            option = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
            advice = "'.' is the current folder" if name == "out" else ""
            raise InvalidInputError(f"{option} to be a path", "an empty one", advice)


def check_places(out: str, file: str, sample_sheet: str | None, checkpoint: str | None) -> Path:
    """Return the folder for the results, or raise if one place would spoil what is at another.

    Results must not replace an input, nor lie in a store of which each file means something; nor must a checkpoint.

    Parameters
    ----------
    out
        Folder for the results.
    file, sample_sheet
        What is read.
    checkpoint
        The store that a run in pieces keeps.
    """
    check_named(file=file, sample_sheet=sample_sheet, checkpoint=checkpoint, out=out)
    _check_apart(Path(out), file, sample_sheet, checkpoint)
    return Path(out)


def _check_apart(out: Path, file: str, sample_sheet: str | None, checkpoint: str | None) -> None:
    for path in (file, sample_sheet):
        if path and any(_same(Path(path), out / name) for name in EVERY):
            raise InvalidInputError(
                "--out that leaves the input alone",
                f"{quoted_path(path)}, which has the place of a result",
                "choose another --out",
            )
    stores = {"the input": file} if _is_store(file) else {}
    if checkpoint:
        _check_outside("--checkpoint", Path(checkpoint), {"the input": file})
        stores["--checkpoint"] = checkpoint
    _check_outside("--out", out, stores)


def _is_store(file: str) -> bool:
    """Return whether a file is a folder of which each file means something, unlike a folder of FCS files."""
    return Path(file).is_dir() and format_of(Path(file)) == "zarr"


def _check_outside(option: str, place: Path, stores: dict[str, str]) -> None:
    for what, store in stores.items():
        top, real = Path(store).resolve(), place.resolve()
        if real == top or (top in real.parents and (what != "the input" or _is_store(store))):
            raise InvalidInputError(
                f"{option} outside of {what}",
                f"{quoted_path(str(place))} in {quoted_path(store)}",
                f"choose another {option}",
            )


def _same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one of them is not there
        return False
