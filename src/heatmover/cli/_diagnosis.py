"""What `heatmover doctor` shows of a file, and why `compare` would refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
from rich.console import Console
from rich.text import Text

from heatmover._words import listed, unused
from heatmover.analysis.examination import kind_of
from heatmover.analysis.study import SMALL_SAMPLE, choose_variables
from heatmover.cli._checkup import Checkup, check_up
from heatmover.cli._estimate import Estimate, estimate
from heatmover.cli._options import in_options
from heatmover.cli._settings import Settings
from heatmover.cli._summary import columns_of, hanging, short
from heatmover.cli._terminal import clean, fail, output, watched
from heatmover.cohort import Cohort
from heatmover.cohort.candidates import candidates
from heatmover.cohort.formats.choose import format_of

__all__ = ["diagnose_file"]

VARIABLES_SHOWN = 20
GROUPS_SHOWN = 4


def diagnose_file(settings: Settings, quiet: bool) -> list[str]:
    """Show what is in a file, and return why `compare` would refuse it, in sentences."""
    reading, asked = settings.reading, settings.study
    if reading.sample_key is None and format_of(Path(reading.path)) != "fcs":
        _show_candidates(reading.path, quiet)
    with watched(quiet) as progress:
        # Without the variables asked for: they are looked at later, and all of them.
        named = [*(asked.variables or ()), *(name for name in (asked.block, asked.cells) if name is not None)]
        apart = replace(reading, no_features=(*reading.no_features, *named))
        cohort = apart.read([], asked.random_state, progress)
        checkup = check_up(cohort, settings, progress)
        tested = len(asked.variables or choose_variables(cohort, cohort.samples, None, None))
        cost = estimate(cohort, settings, checkup.points, checkup.codes, n_variables=tested, progress=progress)
    if not quiet:
        _show(output(), cohort, checkup, cost)
    return [in_options(sentence) for sentence in checkup.refusals]


def _show_candidates(file: str, quiet: bool) -> NoReturn:
    """List the columns that could name the samples, and end."""
    found = candidates(file)
    if not found:
        fail("Expected --sample-key to name the column of the samples, found no column that could be it.")
    if not quiet:
        console = output()
        console.print(Text("Columns that could tell the sample of each cell:\n"))
        table = columns_of("column", "values", "cells per value")
        for candidate in found[:VARIABLES_SHOWN]:
            sizes = f"{candidate.fewest:,} or more, median {candidate.median:,.0f}"
            table.add_row(Text(short(candidate.column)), f"{candidate.n_values:,}", sizes)
        console.print(table)
    likely = clean(found[0].column)
    fail(f"Expected --sample-key to name one of these columns, found none; perhaps --sample-key {likely}.")


def _show(console: Console, cohort: Cohort, checkup: Checkup, cost: Estimate | None) -> None:
    console.print()
    for name, text in (*_facts(cohort, checkup), *_costs(cost)):
        console.print(hanging(name, clean(text), width=9))
    console.print()
    _show_variables(console, cohort)
    advice = [*checkup.advice, *cohort.warnings, *(checkup.diagnosis.advice if checkup.diagnosis else ())]
    if advice:
        console.print()
    for sentence in advice:
        console.print(hanging("-", clean(in_options(sentence)), width=1))
    console.print()
    if not checkup.refusals:
        console.print(Text("heatmover compare would go.", style="bold"))


def _facts(cohort: Cohort, checkup: Checkup) -> Iterator[tuple[str, str]]:
    sizes = cohort.sizes
    yield "file", f"{Path(cohort.source.path).name} ({cohort.source.format})"
    few, single = int((sizes < SMALL_SAMPLE).sum()), int((sizes == 1).sum())
    yield "samples", f"{len(sizes):,}: {listed(cohort.names, most=3)}"
    yield (
        "cells",
        f"{cohort.n_cells:,}; per sample {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}; "
        f"{few} samples below {SMALL_SAMPLE}, {single} of a single cell",
    )
    yield "features", f"{cohort.n_dimensions:,}: {listed(cohort.features, most=4)}; no missing values"
    if cohort.unused:
        yield "", unused(cohort.unused)
    drawn = "" if len(checkup.points) == cohort.n_cells else f" among {len(checkup.points):,} cells drawn"
    yield "", f"{len(checkup.constant)} constant, {checkup.n_copies:,} copies of another cell{drawn}"
    if checkup.diagnosis is not None:
        lines = [line for line in str(checkup.diagnosis).splitlines() if not line.startswith(("- ", "All is"))]
        yield "graph", " ".join(lines) + (f" (Over {len(checkup.points):,} of the cells.)" if drawn else "")


def _costs(cost: Estimate | None) -> Iterator[tuple[str, str]]:
    if cost is not None:
        seconds = cost.seconds
        spell = f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"
        yield "compare", f"about {spell} and {cost.memory / 1e9:.1f} GB of memory here"


def _show_variables(console: Console, cohort: Cohort) -> None:
    table = columns_of("variable", "kind", "values", "missing")
    for name in list(cohort.samples.columns)[:VARIABLES_SHOWN]:
        column = cohort.samples[name]
        known = column.dropna()
        kind = kind_of(known.tolist())
        missing = len(column) - len(known)
        if kind == "number":
            values = f"{known.min():.4g} to {known.max():.4g}"
        else:
            counts = known.astype(str).value_counts()
            shown = ", ".join(f"{short(value)} {count}" for value, count in counts.items())
            values = shown if len(counts) <= GROUPS_SHOWN else f"{len(counts)} different"
        table.add_row(Text(short(name)), kind, Text(values), str(missing or ""))
    for name, count in list(cohort.varying.items())[:VARIABLES_SHOWN]:
        row = (short(name), "of cells", f"varies within {count} samples", "")
        table.add_row(*(Text(cell, style="dim") for cell in row))
    if table.row_count:
        console.print(table)
    else:
        console.print(Text("No variables of samples: nothing to test. A --sample-sheet can bring some."))
    left = max(len(cohort.samples.columns) - VARIABLES_SHOWN, 0) + max(len(cohort.varying) - VARIABLES_SHOWN, 0)
    if left:
        console.print(Text(f"and {left} more", style="dim"))
