"""Options that several commands share, with their help."""

from __future__ import annotations

from typing import Annotated

import typer

from heatmover._validation import check_integer
from heatmover.errors import InvalidInputError

__all__ = [
    "DECISIVE",
    "AllowParts",
    "AnnotationColumn",
    "Block",
    "Cells",
    "Cofactor",
    "Color",
    "Components",
    "File",
    "Force",
    "Landmarks",
    "MinCells",
    "Neighbors",
    "Out",
    "Permutations",
    "Quiet",
    "Rep",
    "SampleKey",
    "SampleSheet",
    "Seed",
    "Standardize",
    "Threads",
    "Title",
    "check_seed",
]  # fmt: skip

# The names of the options that decide the numbers, those of `Settings`.
DECISIVE = (
    "file", "sample_key", "rep", "annotation", "sample_sheet", "standardize", "components", "cofactor", "color",
    "block", "cells", "min_cells", "allow_parts", "neighbors", "landmarks", "missing", "permutations", "seed",
    "threads",
)  # fmt: skip
INPUT, TESTS, METHOD, RUN = "Input", "Variables of samples", "Method", "Output and run"
LARGE = "Cells that do not fit into memory"

File = Annotated[
    str,
    typer.Argument(
        help="AnnData (.h5ad, .zarr), table of cells (.csv, .tsv, .csv.gz, .parquet), or folder of .fcs files.",
        metavar="FILE",
        show_default=False,
    ),
]
SampleKey = Annotated[
    str | None,
    typer.Option(
        "--sample-key", "-s", metavar="COLUMN", rich_help_panel=INPUT,
        help="Column that tells the sample of each cell; of FCS files, that of the sample sheet with their names.",
    ),
]  # fmt: skip
Rep = Annotated[
    list[str] | None,
    typer.Option(
        "--rep", "-r", metavar="NAMES", rich_help_panel=INPUT,
        help="Where cells are near: a key of obsm or X; or columns, channels or genes, with commas between them.",
    ),
]  # fmt: skip
AnnotationColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--annotation", metavar="COLUMN", rich_help_panel=INPUT, show_default=False,
        help="Column of a table that is no feature, whatever it holds; again for more.",
    ),
]  # fmt: skip
SampleSheet = Annotated[
    str | None,
    typer.Option(metavar="FILE", rich_help_panel=INPUT, help="A .csv or .tsv with one row of variables per sample."),
]
Standardize = Annotated[
    bool,
    typer.Option("--standardize", rich_help_panel=INPUT, help="Give every feature mean 0 and variance 1."),
]
Components = Annotated[
    str | None,
    typer.Option(
        metavar="N|all", rich_help_panel=INPUT,
        help="Reduce to N principal components; needed above 100 features, which 'all' keeps.",
    ),
]  # fmt: skip
Cofactor = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER", rich_help_panel=INPUT,
        help="FCS: arcsinh(value / NUMBER); 5 is usual for mass, 150 for flow cytometry.",
    ),
]  # fmt: skip
Color = Annotated[
    list[str] | None,
    typer.Option(
        "--color", "-c", metavar="COLUMN", rich_help_panel=TESTS, show_default="all that can be tested",
        help="Variable of samples to test and to colour by; again for more, the most important first.",
    ),
]  # fmt: skip
Block = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=TESTS,
        help="Variable that ties samples together, such as the patient or the batch.",
    ),
]  # fmt: skip
Cells = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=TESTS,
        help="Annotation of cells, such as their type: tell which differ between the groups of the first --color.",
    ),
]  # fmt: skip
Permutations = Annotated[int, typer.Option(metavar="N", rich_help_panel=TESTS, help="Rearrangements of every test.")]
MinCells = Annotated[
    int | None,
    typer.Option(
        metavar="N", rich_help_panel=METHOD, show_default="refuse samples of one cell",
        help="Leave out samples with fewer cells.",
    ),
]  # fmt: skip
AllowParts = Annotated[
    bool,
    typer.Option(
        "--allow-parts", rich_help_panel=METHOD,
        help="Go on if more than 5 % of the cells are apart from the largest part of the graph.",
    ),
]  # fmt: skip
Neighbors = Annotated[int, typer.Option(metavar="N", rich_help_panel=METHOD, help="Neighbours of a cell in the graph.")]
Landmarks = Annotated[
    str,
    typer.Option(
        metavar="N|auto|none", rich_help_panel=METHOD,
        help="Let N centres stand for the cells; auto: 4,000 above 100,000 cells.",
    ),
]  # fmt: skip
Missing = Annotated[
    str,
    typer.Option(
        metavar="refuse|drop", rich_help_panel=INPUT,
        help="Cells in which a feature is NaN or infinite: refuse the file, or leave the cells out.",
    ),
]  # fmt: skip
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", rich_help_panel=LARGE, show_default="all cells at once; 4GB with an option below",
        help="Read the cells in pieces, within SIZE, such as 4GB or 800MB.",
    ),
]  # fmt: skip
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", rich_help_panel=LARGE, show_default="threads of this process",
        help="Work on the Dask cluster whose scheduler is at ADDRESS, such as tcp://10.0.0.5:8786.",
    ),
]  # fmt: skip
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="PATH", rich_help_panel=LARGE, help="Keep all that is finished in a zarr store at PATH."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", rich_help_panel=LARGE,
        help="Go on with the checkpoint if it is there; the result is the same to the bit.",
    ),
]  # fmt: skip
Seed = Annotated[int, typer.Option(metavar="N", rich_help_panel=RUN, help="The same seed gives the same numbers.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=RUN, help="Threads to use.", show_default="all cores")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=RUN, help="Print nothing but errors.")]
Force = Annotated[
    bool, typer.Option("--force", "-f", rich_help_panel=RUN, help="Replace the results of an earlier run.")
]
Title = Annotated[str | None, typer.Option(metavar="TEXT", rich_help_panel=RUN, help="Title of the report.")]
# Text, not a path: an empty one would be the current folder.
Out = Annotated[str, typer.Option("--out", "-o", metavar="DIR", rich_help_panel=RUN, help="Folder for the results.")]


def check_seed(seed: int) -> None:
    """Raise unless a seed is a number that files can hold."""
    if check_integer("--seed", seed, minimum=0) >= 2**63:
        raise InvalidInputError("--seed of at most 18 digits", str(seed))
