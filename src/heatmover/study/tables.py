"""Write CSV tables, atomically and without text that a spreadsheet would run as a formula; for all modules and users.

A spreadsheet that opens a CSV file evaluates every text that begins like a formula. A sample named
``=HYPERLINK("http://...")``, for example, would become a link. An apostrophe is written before such a text, so that a
spreadsheet shows it as text; `plain_text` removes the apostrophe. Any other text is written unchanged.
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

# Match texts that a spreadsheet would read as a formula, possibly after characters that it ignores. East Asian
# spreadsheets also accept full-width signs. Leading apostrophes are matched too, so that `plain_text` can remove an
# added apostrophe.
FORMULA = re.compile(r"['\s\x00-\x1f\ufeff\u200b]*[=+\-@\uff1d\uff0b\uff0d\uff20]|'*[\t\r\n]")
# A text such as -5 is a harmless number, not a formula.
NUMBER = re.compile(r"'*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

# Types of most table cells. Cells of these types skip an isinstance test, which took 90% of the time for a million
# distances.
PLAIN = frozenset({float, int})


def inert_text(text: str) -> str:
    """Return a text that is safe in a CSV file: add an apostrophe in front if the text begins like a formula.

    Parameters
    ----------
    text
        Any text; `plain_text` restores it.

    Examples
    --------
    >>> inert_text("=1+1"), inert_text("'=1+1"), inert_text("patient 7"), inert_text("-5")
    ("'=1+1", "''=1+1", 'patient 7', '-5')
    """
    return f"'{text}" if _begins_like_a_formula(text) else text


def plain_text(text: str) -> str:
    """Restore a text that `inert_text` changed: remove its first apostrophe if a formula follows.

    Parameters
    ----------
    text
        Text of a cell in a CSV file that heatmover wrote.

    Examples
    --------
    >>> plain_text("'=1+1"), plain_text("''=1+1"), plain_text("'quoted'")
    ('=1+1', "'=1+1", "'quoted'")
    """
    return text[1:] if text.startswith("'") and _begins_like_a_formula(text) else text


def _begins_like_a_formula(text: str) -> bool:
    # An added apostrophe does not change the result, so that `inert_text` is reversible.
    return FORMULA.match(text) is not None and NUMBER.fullmatch(text) is None


def write_table(path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV, completely or not at all.

    Parameters
    ----------
    path
        Path of the file; an existing file is replaced.
    header
        Names of the columns.
    rows
        Rows of the table. Numbers are written with all digits, other values as returned by `inert_text`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "table.csv"
    >>> write_table(path, ["sample", "shift"], [["=1+1", -0.25]])
    >>> path.read_text(encoding="utf-8").splitlines()
    ['sample,shift', "'=1+1,-0.25"]
    """
    # Badly decoded names contain lone surrogates, which cannot be written as UTF-8.
    with replacing(path, newline="", encoding="utf-8", errors="backslashreplace") as file:
        _write(file, header, rows)


def table_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return the text of a table in the format of `write_table`.

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
