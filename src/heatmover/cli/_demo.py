"""`heatmover demo`: the whole path on a simulated cohort."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from heatmover._progress import Progress
from heatmover._validation import check_integer, check_number, check_seed
from heatmover._words import counted
from heatmover.cli import _options as options
from heatmover.cli._late import swift_imports
from heatmover.cli._terminal import output, plain_errors, watched, written
from heatmover.errors import GraphWarning, InvalidInputError

if TYPE_CHECKING:
    from heatmover.analysis.comparison import Comparison
    from heatmover.analysis.study import Study

__all__ = ["EXAMPLES", "DemoOptions", "demo"]

EXAMPLES = """
**Examples**

- `heatmover demo`
- `heatmover demo --out results --seed 7`
- `heatmover demo --samples 60 --cells 500 --effect 0.5 --force`
"""
# The embedding has about 4 * 10 * samples^2 * cells bytes: this is 3 GB, which most machines have.
LARGEST_DEMO = 80_000_000


@final
@dataclass(frozen=True)
class DemoOptions:
    """What a demo simulates, checked."""

    samples: int
    cells: int
    effect: float
    seed: int

    def __post_init__(self) -> None:
        # Two samples of each condition; more points than a graph has neighbours.
        check_integer("--samples", self.samples, minimum=4)
        check_integer("--cells", self.cells, minimum=10)
        check_number("--effect", self.effect, above=-1, at_most=1000)
        check_seed(self.seed)
        if self.samples**2 * self.cells > LARGEST_DEMO:
            raise InvalidInputError(
                f"a demo that fits the memory (samples^2 * cells of at most {LARGEST_DEMO:,})",
                f"{counted(self.samples, 'sample')} of {counted(self.cells, 'cell')}",
                "use fewer --samples or --cells",
            )


def demo(
    out: options.Out = "heatmover-demo",
    samples: Annotated[str, typer.Option(metavar="N", help="Samples, half of them cases; at least 4.")] = "30",
    cells: Annotated[str, typer.Option(metavar="N", help="Cells per sample; at least 10.")] = "200",
    effect: Annotated[
        str, typer.Option(metavar="NUMBER", help="Growth of the odds of one branch in cases; 0 for no difference.")
    ] = "2.0",
    seed: options.Seed = "0",
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    force: options.Force = False,
) -> None:
    """Simulate a cohort of cases and controls, compare its samples and report what was found.

    The cells of each sample lie on a branching tree; cases have more cells in one branch. The demo finds the distances
    between all samples and the branches that differ, and writes distances.csv, samples.h5ad, report.html,
    cell-types.csv, a picture of the sample map, run.json, which says how they were made, and index.txt, which says
    what each holds.
    """
    # Here, not above: help and version must not wait for the numerical libraries.
    with swift_imports():
        from heatmover.cli._settings import check_named, check_outside
        from heatmover.cli._summary import show_results
        from heatmover.report import check_extras, result_folder, write_results

    with plain_errors():
        check_named(out=out)
        check_outside("--out", out, {})
        target = Path(out)
        asked, n_jobs = DemoOptions(*map(options.number, (samples, cells, effect, seed))), options.number(threads)
        if n_jobs is not None:
            check_integer("n_jobs", n_jobs, minimum=1)
        with result_folder(target, force=force) as folder, watched(quiet) as progress:
            # After the folder, which may be refused: these packages take more than a second to import.
            check_extras(picture=True, extra="demo")
            found = _study(asked, n_jobs, progress).reworded(options.in_options)
            command = {"name": "demo", "options": asdict(asked)}
            title = f"A simulated cohort of {counted(asked.samples, 'sample')}"
            write_results(found, folder, command=command, title=title, picture="condition", progress=progress)
    if not quiet:
        with written(target):
            show_results(output(), found, target)


def _study(asked: DemoOptions, n_jobs: int | None, progress: Progress) -> Study:
    from heatmover.analysis import compare, study_comparison
    from heatmover.datasets import cohort

    progress.stage("simulate cohort", 1)
    data = cohort(asked.samples, cells_per_sample=asked.cells, effect=asked.effect, random_state=asked.seed)
    progress.advance()
    with warnings.catch_warnings():
        # The diagnosis says the same, at its place.
        warnings.simplefilter("ignore", GraphWarning)
        comparison = compare(
            data.points, data.labels, bias="corrected", random_state=asked.seed, n_jobs=n_jobs, progress=progress
        )
    progress.stage("diagnose graph", 1)
    _ = comparison.diagnosis
    progress.advance()
    variables = {"condition": data.annotations["condition"]}
    branch = {"branch": [f"branch {number:.0f}" for number in data.coordinates[:, 0]]}
    return study_comparison(
        comparison, variables, cells=branch, source=_source(comparison, data.points.shape[1]),
        random_state=asked.seed, progress=progress,
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
