"""`heatmover doctor`: look at a file before a long run."""

from __future__ import annotations

from heatmover.cli import _options as options
from heatmover.cli._late import swift_imports
from heatmover.cli._terminal import fail, plain_errors, tell

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = """
**Examples**

- `heatmover doctor cells.h5ad` (which column names the samples?)
- `heatmover doctor cells.h5ad -s sample`
- `heatmover doctor cells.h5ad -s sample --rep X_scVI --color response --block patient`
"""


def doctor(
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
    seed: options.Seed = "0",
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Look at samples, variables and graph before a long run; nothing is written.

    Takes the options of `heatmover compare` and ends with exit code 0 if that would run, with 2 and the reasons if it
    would refuse. Without --sample-key it lists the columns that could be it.
    """
    asked = locals() | {"allow_components": allow_components or allow_parts}
    # Here, not above: help and version must not wait for the numerical libraries.
    with swift_imports():
        from heatmover.cli._diagnosis import diagnose_file
        from heatmover.cli._settings import check_named, settings_of

    with plain_errors():
        check_named(file=file, sample_sheet=sample_sheet)
        refusals = diagnose_file(settings_of(asked), quiet)
    if refusals:
        for sentence in refusals[:-1]:
            tell(sentence)
        fail(refusals[-1])
