"""Define the command line, `heatmover compare`, `doctor`, `demo`, `atlas`, for `__main__`; it writes result folders."""

from __future__ import annotations

import warnings
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heatmover._base.progress import Progress
from heatmover._base.words import counted
from heatmover.cli import _atlas
from heatmover.cli._command import OptionsCommand, Sentences, plain_errors
from heatmover.cli._terminal import fail, printed, tell, watched, whole_output, written
from heatmover.errors import GraphWarning

if TYPE_CHECKING:
    from heatmover._base.types import Float64
    from heatmover.cli._settings import DemoOptions
    from heatmover.study.comparison import Comparison
    from heatmover.study.study import Study

__all__ = ["app", "whole_output"]

COMPARE_EXAMPLES = """
heatmover compare cells.h5ad -s sample -o results
heatmover compare cells.h5ad -s sample -c response --cells cell_type -o out
heatmover compare cells.h5ad -s sample -c response --block patient -o out
heatmover compare cells.h5ad -s sample -c response --adjust batch -o out
heatmover compare cells.h5ad -s sample --rep X_scVI --bootstrap 200 -o out
heatmover compare cells.csv -s donor --rep CD3,CD4 --standardize -o out
heatmover compare fcs-folder --sample-sheet sheet.csv --cofactor 5 -o out
heatmover compare cells.zarr -s sample --memory 4GB -o out
"""
DOCTOR_EXAMPLES = """
heatmover doctor cells.h5ad  # lists the columns that may name the samples
heatmover doctor cells.h5ad -s sample
heatmover doctor cells.h5ad -s sample -c response --block patient
"""
DEMO_EXAMPLES = """
heatmover demo
heatmover demo --out results --seed 7
heatmover demo --samples 60 --cells 500 --effect 0.5 --force
"""


app = typer.Typer(
    name="heatmover",
    cls=Sentences,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxed tables take three times as many lines as plain text, and cannot be searched
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heatmover {version('heatmover')}")
        raise typer.Exit


@app.callback()
def heatmover(
    show_version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Earth Mover's Distances between many distributions on one data graph."""


@app.command(cls=OptionsCommand, epilog=COMPARE_EXAMPLES)
def compare(ctx: typer.Context) -> None:
    """Compare the samples of a file and write a report.

    Computes the distance between every two samples, tests which sample metadata are associated with the distances, and
    writes a folder with report.html, distances.csv, samples.h5ad (an AnnData of the samples), run.json (how the results
    were made) and index.txt (what each file holds). --cells adds cell-types.csv, drivers.csv and composition.csv, and
    --bootstrap adds intervals.csv. Run heatmover doctor first if the file is large.
    """
    # Import here, so that help and version do not wait for the numerical libraries.
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
    from heatmover.study.record import Clock

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
            progress = Clock(progress)  # before reading, so that run.json records the duration of reading
            progress.stage("read file", 1)
            cohort = settings.read(progress, comparer)
            study = study_cohort(cohort, settings.study, comparer=comparer, progress=progress).reworded(in_options)
            budget = comparer.record().get("memory")
            command = settings.command("compare", [] if budget is None else ["--memory", str(budget)])
            write_results(study, folder, command=command, title=running.title, progress=progress)
    if not running.quiet:
        with written(target), printed() as console:
            show_results(console, study, target)


@app.command(cls=OptionsCommand, epilog=DOCTOR_EXAMPLES)
def doctor(ctx: typer.Context) -> None:
    """Check a file before a long run; write nothing.

    Accepts the options of heatmover compare. Exit code 0 means that compare would run. Exit code 2 means that compare
    would not run, and doctor prints every reason. Without --sample-key, doctor lists the columns that could name the
    samples.
    """
    from heatmover.cli._doctor import diagnose_file
    from heatmover.cli._settings import check_named, settings_of

    with plain_errors():
        check_named(file=ctx.params["path"], sample_sheet=ctx.params["sample_sheet"])
        errors = diagnose_file(settings_of(ctx.params), ctx.params["quiet"])
    if errors:
        for sentence in errors[:-1]:
            tell(sentence)
        fail(errors[-1])


@app.command(cls=OptionsCommand, epilog=DEMO_EXAMPLES)
def demo(ctx: typer.Context) -> None:
    """Compare a simulated cohort of cases and controls.

    The cells of each sample lie on a branching tree, and cases have more cells in one branch. The demo computes the
    distances between all samples, finds the branch that differs, and writes a folder with report.html, distances.csv,
    samples.h5ad, cell-types.csv, a picture of the sample map, run.json (how the results were made) and index.txt (what
    each file holds).
    """
    from heatmover.cli._settings import DemoOptions, Running, check_named, check_outside, in_options, made
    from heatmover.cli._summary import show_results
    from heatmover.report import check_extras, result_folder, write_results
    from heatmover.study.record import Clock

    with plain_errors():
        check_named(out=ctx.params["out"])
        check_outside("--out", ctx.params["out"], {})
        target, asked, running = Path(ctx.params["out"]), made(DemoOptions, ctx.params), made(Running, ctx.params)
        with result_folder(target, force=running.force) as folder, watched(running.quiet) as progress:
            # Check the folder before the packages, because importing the packages takes more than a second.
            check_extras(picture=True, extra="demo")
            progress = Clock(progress)
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
        with written(target), printed() as console:
            show_results(console, study, target)


def _simulated(asked: DemoOptions, n_jobs: int | None, progress: Progress) -> Study:
    from heatmover.datasets import cohort
    from heatmover.study import compare, study_comparison

    progress.stage("simulate cohort", 1)
    data = cohort(asked.samples, cells_per_sample=asked.cells, effect=asked.effect, random_state=asked.random_state)
    progress.advance()
    with warnings.catch_warnings():
        # The diagnosis of the graph repeats these warnings.
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
        comparison, variables, cells=branch, source=_source(comparison, data.points),
        random_state=asked.random_state, progress=progress,
    )  # fmt: skip


def _source(comparison: Comparison, points: Float64) -> dict[str, Any]:
    """Return the description of the simulated input for `run.json`, with the same keys as for an input file."""
    return {
        "name": "simulated cohort",
        "format": "simulation",
        "checksum": f"sha256:{sha256(points.tobytes()).hexdigest()}",
        "sample_sheet": "",
        "samples": len(comparison.names),
        "cells": int(comparison.sizes.sum()),
        "dimensions": [f"dimension {number}" for number in range(1, points.shape[1] + 1)],
        "varying": {},
    }


app.add_typer(_atlas.app, name="atlas")
