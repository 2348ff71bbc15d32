"""Tables as CSV: complete or not at all, numbers with all digits, and names that no spreadsheet takes for a formula.

A spreadsheet that opens a CSV file computes every text that begins like a formula, whoever wrote it: the sample
``=HYPERLINK("http://...")`` would ask for a click. Such a text is written with an apostrophe before it, which
spreadsheets show as text; `plain_text` takes it away again. All other texts are written as they are.
"""

from __future__ import annotations

import csv
import io
import numbers
import os
import re
from collections.abc import Iterable, Sequence
from typing import IO

from heatmover._base.files import replacing

__all__ = ["inert_text", "plain_text", "table_text", "write_table"]

# What a spreadsheet takes for the beginning of a formula, or removes before it looks for one. The wide forms count in
# East Asian versions. Apostrophes are part of the beginning, so that one more can be told from those of the name.
FORMULA = re.compile(r"['\s\x00-\x1f\ufeff\u200b]*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n]")
# A name such as -5 is a number to a spreadsheet too, and does no harm.
NUMBER = re.compile(r"'*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

# Types of most cells, which need no look at their ancestors: that took nine tenths of writing a million distances.
PLAIN = frozenset({float, int})


def inert_text(text: str) -> str:
    """Return a text as it may stand in a CSV file: with an apostrophe before it if it begins like a formula.

    Parameters
    ----------
    text
        Any; `plain_text` gives it back.

    Examples
    --------
    >>> inert_text("=1+1"), inert_text("'=1+1"), inert_text("patient 7"), inert_text("-5")
    ("'=1+1", "''=1+1", 'patient 7', '-5')
    """
    return f"'{text}" if _begins_like_a_formula(text) else text


def plain_text(text: str) -> str:
    """Return what a text was before `inert_text`: without its first apostrophe if a formula begins behind it.

    Parameters
    ----------
    text
        From a cell of a CSV file that heatmover wrote.

    Examples
    --------
    >>> plain_text("'=1+1"), plain_text("''=1+1"), plain_text("'quoted'")
    ('=1+1', "'=1+1", "'quoted'")
    """
    return text[1:] if text.startswith("'") and _begins_like_a_formula(text) else text


def _begins_like_a_formula(text: str) -> bool:
    # True of a text if and only if it is true of the text with one more apostrophe: that makes it reversible.
    return FORMULA.match(text) is not None and NUMBER.fullmatch(text) is None


def write_table(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, complete or not at all.

    Parameters
    ----------
    path
        Where to; a file that is there already is replaced.
    header
        Names of the columns.
    rows
        Cells; numbers are written with all digits, all else as `inert_text`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "table.csv"
    >>> write_table(path, ["sample", "shift"], [["=1+1", -0.25]])
    >>> path.read_text(encoding="utf-8").splitlines()
    ['sample,shift', "'=1+1,-0.25"]
    """
    # A lone surrogate, as a badly decoded name has it, cannot be written as UTF-8.
    with replacing(path, newline="", encoding="utf-8", errors="backslashreplace") as file:
        _write(file, header, rows)


def table_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table as `write_table` writes it.

    Parameters
    ----------
    header, rows
        As in `write_table`.

    Examples
    --------
    >>> table_text(["sample", "shift"], [["=1+1", -0.25]])
    "sample,shift\n'=1+1,-0.25\n"
    """
    file = io.StringIO(newline="")
    _write(file, header, rows)
    return file.getvalue()


def _write(file: IO[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_cell(name) for name in header])
    writer.writerows([value if type(value) in PLAIN else _cell(value) for value in row] for row in rows)


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, numbers.Number) else inert_text(str(value))
