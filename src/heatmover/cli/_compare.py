"""`heatmover compare`: from a file of cells to distances, tests and a report."""

from __future__ import annotations

from heatmover.cli import _options as options
from heatmover.cli._late import swift_imports
from heatmover.cli._options import in_options
from heatmover.cli._terminal import output, plain_errors, watched, written

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = """
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


def compare(
    file: options.File,
    *,
    sample_key: options.SampleKey = None,
    rep: options.Rep = None,
    annotation: options.AnnotationColumn = None,
    sample_sheet: options.SampleSheet = None,
    skip_unlisted: options.SkipUnlisted = False,
    standardize: options.Standardize = False,
    components: options.Components = None,
    cofactor: options.Cofactor = None,
    transform: options.Transform = None,
    compensate: options.Compensate = None,
    color: options.Color = None,
    block: options.Block = None,
    adjust: options.Adjust = None,
    formula: options.Formula = None,
    align_batch: options.AlignBatch = None,
    anchors: options.Anchors = None,
    cells: options.Cells = None,
    clusters: options.Clusters = None,
    reference: options.Reference = None,
    numeric: options.Numeric = None,
    categorical: options.Categorical = None,
    permutations: options.Permutations = "999",
    min_cells: options.MinCells = None,
    allow_components: options.AllowComponents = False,
    allow_parts: options.AllowParts = False,
    neighbors: options.Neighbors = "30",
    landmarks: options.Landmarks = "auto",
    equal_cells: options.EqualCells = None,
    bias: options.Bias = "corrected",
    bootstrap: options.Bootstrap = "0",
    units: options.Units = None,
    missing: options.Missing = "refuse",
    memory: options.Memory = None,
    scheduler: options.Scheduler = None,
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    out: options.Out,
    title: options.Title = None,
    seed: options.Seed = "0",
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    force: options.Force = False,
) -> None:
    """Compare the samples of a file: the distances between all of them, what goes with these, and a report.

    Writes distances.csv, samples.h5ad (an AnnData of the samples), report.html, run.json (how it was made) and
    index.txt (what each file holds), with --cells also cell-types.csv and drivers.csv, with --bootstrap intervals.csv,
    all of them or none. Ask `heatmover doctor` first if the file is large.
    """
    asked = locals() | {"allow_components": allow_components or allow_parts}
    # Here, not above: help and version must not wait for the numerical libraries.
    with swift_imports():
        from heatmover.analysis import study_cohort
        from heatmover.cli._candidates import check_sample_key
        from heatmover.cli._settings import check_places, comparer_of, settings_of
        from heatmover.cli._summary import show_results
        from heatmover.report import check_extras, result_folder, write_results

    with plain_errors():
        target = check_places(out, file, sample_sheet, checkpoint)
        settings = settings_of(asked)
        check_extras()
        check_sample_key(file, sample_key)
        with (
            result_folder(target, force=force) as folder,
            watched(quiet) as progress,
            comparer_of(settings, memory, scheduler, checkpoint, resume) as comparer,
        ):
            with swift_imports():  # what the first block of cells needs, which is looked at by a thread
                import heatmover._compiled.moments  # noqa: F401
            cohort = settings.read(progress, comparer)
            found = study_cohort(cohort, settings.study, comparer=comparer, progress=progress).reworded(in_options)
            budget = comparer.record().get("memory")
            command = settings.command("compare", [] if budget is None else ["--memory", str(budget)])
            write_results(found, folder, command=command, title=title, progress=progress)
    if not quiet:
        with written(target):
            show_results(output(), found, target)
