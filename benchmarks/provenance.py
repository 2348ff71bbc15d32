"""Where figures come from, and where they go.

A benchmark prints its table; with --record it also writes docs/results/numbers/<name>.md, which the documentation
includes. Every such file ends with the command, the commit, the day, the threads and the versions that made it.

    arguments = argparse.ArgumentParser(description=__doc__)
    add_record(arguments)
    args = arguments.parse_args()
    write_table("l1", heads, rows, note="...", packages=("numpy", "scipy"), folder=args.record)
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ROOT / "docs" / "results" / "numbers"
# What every figure here depends on; a benchmark with rivals names theirs as well.
PACKAGES = ("numpy", "scipy", "scikit-learn", "numba")
# Only these can change a figure. Tables recorded earlier in the same session must not make later ones look unclean.
DECISIVE = ("src", "benchmarks", "pyproject.toml", "constraints.txt")


def provenance(
    command: Sequence[str] | None = None, packages: Sequence[str] = PACKAGES, *, threads: int | None = None
) -> str:
    """Return one line of Markdown: command, commit, day, threads and versions.

    Parameters
    ----------
    command
        The script and its arguments; None for those of this process. Paths outside the repository lose their folders,
        which mean nothing elsewhere.
    packages
        Names of distributions as pip knows them. One that is not installed is named as such.
    threads
        How many were used; None for the cores that this process may use, which is what heatmover takes.
    """
    used = threads or usable_cores()
    parts = [
        f"`python {words(sys.argv if command is None else command)}`",
        COMMIT,
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        f"{used} thread{'' if used == 1 else 's'}",
    ]
    versions = [f"Python {sys.version.split()[0]}", *map(version, packages)]
    return f"*{', '.join(parts)}; {', '.join(versions)}*"


def write_table(
    name: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Any]],
    note: str = "",
    *,
    folder: Path | None = None,
    packages: Sequence[str] = PACKAGES,
    threads: int | None = None,
) -> None:
    """Print a table with its note and provenance; given a folder, also write them there as ``<name>.md``."""
    cells = [[str(cell) for cell in row] for row in rows]
    line = provenance(packages=packages, threads=threads)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.md").write_text(markdown(heads, cells, note, line), encoding="utf-8")
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for first, *others in [list(heads), *cells]:
        shown = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        print(first.ljust(widths[0]), *shown, sep="  ")
    print(*filter(None, [note, line.strip("*")]), sep="\n")
    if folder is not None:
        print(f"wrote {folder / name}.md")


def markdown(heads: Sequence[str], rows: Sequence[Sequence[Any]], note: str, line: str) -> str:
    """Return a table, its note and the line of its provenance, as the text of a file."""
    table = [
        "| " + " | ".join(heads) + " |",
        "|" + "|".join("---" if i == 0 else "--:" for i in range(len(heads))) + "|",
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
    ]
    return "\n\n".join(filter(None, ["\n".join(table), note, line])) + "\n"


def add_record(arguments: argparse.ArgumentParser) -> None:
    """Add ``--record``; what is parsed is the folder to write to, or None."""
    arguments.add_argument(
        "--record", action="store_const", const=NUMBERS, help="write the table to docs/results/numbers as well"
    )


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} not installed"


def words(command: Sequence[str]) -> str:
    """Return a command as typed at the root of the repository."""
    script, *others = command
    return shlex.join(
        re.sub(r"(?<![^=])(/|\.\./).*", _without_folders, word) for word in (str(Path(script).resolve()), *others)
    )


def _without_folders(match: re.Match[str]) -> str:
    path = Path(match[0]).resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) and path != ROOT else path.name


def commit(root: Path = ROOT) -> str:
    """Return what git says of the code: a commit, whether it was changed since, or that there is none."""

    def git(*order: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *order], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # An unpacked release may lie inside another repository, whose commits say nothing about it.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return "no commit known"
        found = f"commit {git('rev-parse', '--short=7', 'HEAD')}"
        return f"{found} with changes" if git("status", "--porcelain", "--", *DECISIVE) else found
    except (OSError, subprocess.CalledProcessError):
        return "no commit known"


# When the benchmark starts: a long run may end on another commit than it was made from.
COMMIT = commit()
