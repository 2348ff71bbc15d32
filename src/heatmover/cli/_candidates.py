"""What is said if nobody says which column names the samples."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from rich.text import Text

from heatmover._words import counted
from heatmover.cli._summary import columns_of, short
from heatmover.cli._terminal import clean, fail, output
from heatmover.cohort.candidates import Candidate, candidates
from heatmover.cohort.formats.choose import format_of

__all__ = ["check_sample_key", "show_candidates"]

CANDIDATES_SHOWN = 20
CANDIDATES_TOLD = 6


def check_sample_key(file: str, sample_key: str | None) -> None:
    """End, with the columns that could be it, if a file needs a column that names the samples and none was named."""
    if sample_key is not None or format_of(Path(file)) == "fcs":
        return
    found = _found(file)
    told = ", ".join(
        f"{clean(short(each.column))} ({counted(each.n_values, 'value')})" for each in found[:CANDIDATES_TOLD]
    )
    more = f" and {len(found) - CANDIDATES_TOLD} more" if len(found) > CANDIDATES_TOLD else ""
    fail(
        f"Expected --sample-key to name the column that tells the sample of each cell, found none; it could be {told}"
        f"{more}, perhaps --sample-key {clean(found[0].column)}; heatmover doctor {clean(file)} tells more."
    )


def show_candidates(file: str, quiet: bool) -> NoReturn:
    """List the columns that could name the samples, and end."""
    found = _found(file)
    if not quiet:
        console = output()
        console.print(Text("Columns that could tell the sample of each cell:\n"))
        table = columns_of("column", "values", "cells per value")
        for candidate in found[:CANDIDATES_SHOWN]:
            sizes = f"{candidate.fewest:,} or more, median {candidate.median:,.0f}"
            table.add_row(Text(short(candidate.column)), f"{candidate.n_values:,}", sizes)
        console.print(table)
    likely = clean(found[0].column)
    fail(f"Expected --sample-key to name one of these columns, found none; perhaps --sample-key {likely}.")


def _found(file: str) -> list[Candidate]:
    found = candidates(file)
    if not found:
        fail("Expected --sample-key to name the column of the samples, found no column that could be it.")
    return found
