"""The command line: `heatmover compare`, `doctor`, `demo` and `atlas`; results are written first, then shown."""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heatmover._base.progress import Progress
from heatmover._base.words import counted
from heatmover.cli import _atlas
from heatmover.cli._command import Described, Sentences, plain_errors
from heatmover.cli._terminal import fail, output, tell, watched, whole_output, written
from heatmover.errors import GraphWarning

if TYPE_CHECKING:
    from heatmover.cli._settings import DemoOptions
    from heatmover.study.comparison import Comparison
    from heatmover.study.study import Study

__all__ = ["app", "whole_output"]

COMPARE_EXAMPLES = """
**Examples**

- `heatmover compare cells.h5ad -s sample -o results`
- `heatmover compare cells.h5ad -s sample --rep X_scVI --color response --block patient -o results`
- `heatmover compare cells.h5ad -s sample --color response --adjust batch --adjust age -o results`
- `heatmover compare cells.h5ad -s sample --color response --cells cell_type -o results`
- `heatmover compare cells.h5ad -s sample --bootstrap 200 -o results`
- `heatmover compare cells.h5ad -s sample --equal-cells --units euclidean -o results`
- `heatmover compare cells.csv -s donor --rep CD3,CD4,CD8 --standardize -o results`
- `heatmover compare fcs-folder --sample-sheet samples.csv --cofactor 5 --color response --clusters 12 -o results`
- `heatmover compare cells.zarr -s sample --landmarks 27000 --memory 4GB --checkpoint run.zarr --resume -o results`
"""
DOCTOR_EXAMPLES = """
**Examples**

- `heatmover doctor cells.h5ad` (which column names the samples?)
- `heatmover doctor cells.h5ad -s sample`
- `heatmover doctor cells.h5ad -s sample --rep X_scVI --color response --block patient`
"""
DEMO_EXAMPLES = """
**Examples**

- `heatmover demo`
- `heatmover demo --out results --seed 7`
- `heatmover demo --samples 60 --cells 500 --effect 0.5 --force`
"""


app = typer.Typer(
    name="heatmover",
    cls=Sentences,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heatmover {version('heatmover')}")
        raise typer.Exit


@app.callback()
def heatmover(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Earth Mover's Distances between many distributions on one data graph."""


@app.command(cls=Described, epilog=COMPARE_EXAMPLES)
def compare(ctx: typer.Context) -> None:
    """Compare the samples of a file: the distances between all of them, what goes with these, and a report.

    Writes distances.csv, samples.h5ad (an AnnData of the samples), report.html, run.json (how it was made) and
    index.txt (what each file holds), with --cells also cell-types.csv and drivers.csv, with --bootstrap intervals.csv,
    all of them or none. Ask `heatmover doctor` first if the file is large.
    """
    # Here, not above: help and version must not wait for the numerical libraries.
    from heatmover.cli._settings import (
        Running,
        check_places,
        check_sample_key,
        comparer_of,
        in_options,
        made,
        settings_of,
    )
    from heatmover.cli._summary import show_results
    from heatmover.report.folder import EVERY, check_extras, result_folder, write_results
    from heatmover.study import study_cohort

    with plain_errors():
        file, typed = ctx.params["path"], ctx.params
        target = check_places(typed["out"], EVERY, file, typed["sample_sheet"], typed["checkpoint"])
        settings, running = settings_of(typed), made(Running, typed)
        check_extras()
        check_sample_key(file, settings.reading.sample_key)
        with (
            result_folder(target, force=running.force) as folder,
            watched(running.quiet) as progress,
            comparer_of(settings, running) as comparer,
        ):
            cohort = settings.read(progress, comparer)
            study = study_cohort(cohort, settings.study, comparer=comparer, progress=progress).reworded(in_options)
            budget = comparer.record().get("memory")
            command = settings.command("compare", [] if budget is None else ["--memory", str(budget)])
            write_results(study, folder, command=command, title=running.title, progress=progress)
    if not running.quiet:
        with written(target):
            show_results(output(), study, target)


@app.command(cls=Described, epilog=DOCTOR_EXAMPLES)
def doctor(ctx: typer.Context) -> None:
    """Look at samples, variables and graph before a long run; nothing is written.

    Takes the options of `heatmover compare` and ends with exit code 0 if that would run, with 2 and the reasons if it
    would refuse. Without --sample-key it lists the columns that could be it.
    """
    from heatmover.cli._doctor import diagnose_file
    from heatmover.cli._settings import check_named, settings_of

    with plain_errors():
        check_named(file=ctx.params["path"], sample_sheet=ctx.params["sample_sheet"])
        refusals = diagnose_file(settings_of(ctx.params), ctx.params["quiet"])
    if refusals:
        for sentence in refusals[:-1]:
            tell(sentence)
        fail(refusals[-1])


@app.command(cls=Described, epilog=DEMO_EXAMPLES)
def demo(ctx: typer.Context) -> None:
    """Simulate a cohort of cases and controls, compare its samples and report what was found.

    The cells of each sample lie on a branching tree; cases have more cells in one branch. The demo finds the distances
    between all samples and the branches that differ, and writes distances.csv, samples.h5ad, report.html,
    cell-types.csv, a picture of the sample map, run.json, which says how they were made, and index.txt, which says
    what each holds.
    """
    from heatmover.cli._settings import DemoOptions, Running, check_named, check_outside, in_options, made
    from heatmover.cli._summary import show_results
    from heatmover.report import check_extras, result_folder, write_results

    with plain_errors():
        check_named(out=ctx.params["out"])
        check_outside("--out", ctx.params["out"], {})
        target, asked, running = Path(ctx.params["out"]), made(DemoOptions, ctx.params), made(Running, ctx.params)
        with result_folder(target, force=running.force) as folder, watched(running.quiet) as progress:
            # After the folder, which may be refused: these packages take more than a second to import.
            check_extras(picture=True, extra="demo")
            study = _simulated(asked, running.n_jobs, progress).reworded(in_options)
            options = {
                "samples": asked.samples,
                "cells": asked.cells,
                "effect": asked.effect,
                "seed": asked.random_state,
            }
            command = {"name": "demo", "options": options}
            title = f"A simulated cohort of {counted(asked.samples, 'sample')}"
            write_results(study, folder, command=command, title=title, picture="condition", progress=progress)
    if not running.quiet:
        with written(target):
            show_results(output(), study, target)


def _simulated(asked: DemoOptions, n_jobs: int | None, progress: Progress) -> Study:
    from heatmover.datasets import cohort
    from heatmover.study import compare, study_comparison

    progress.stage("simulate cohort", 1)
    data = cohort(asked.samples, cells_per_sample=asked.cells, effect=asked.effect, random_state=asked.random_state)
    progress.advance()
    with warnings.catch_warnings():
        # The diagnosis says the same, at its place.
        warnings.simplefilter("ignore", GraphWarning)
        comparison = compare(
            data.points,
            data.labels,
            bias="corrected",
            random_state=asked.random_state,
            n_jobs=n_jobs,
            progress=progress,
        )
    progress.stage("diagnose graph", 1)
    _ = comparison.diagnosis
    progress.advance()
    variables = {"condition": data.annotations["condition"]}
    branch = {"branch": [f"branch {number:.0f}" for number in data.coordinates[:, 0]]}
    return study_comparison(
        comparison, variables, cells=branch, source=_source(comparison, data.points.shape[1]),
        random_state=asked.random_state, progress=progress,
    )  # fmt: skip


def _source(comparison: Comparison, n_dimensions: int) -> dict[str, Any]:
    """Return what the record of a file would say."""
    return {
        "name": "simulated cohort",
        "format": "simulation",
        "checksum": "",
        "sample_sheet": "",
        "samples": len(comparison.names),
        "cells": int(comparison.sizes.sum()),
        "dimensions": [f"dimension {number}" for number in range(1, n_dimensions + 1)],
        "varying": {},
    }


app.add_typer(_atlas.app, name="atlas")
