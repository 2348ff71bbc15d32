"""Options that several commands share, with their help."""

from __future__ import annotations

import shlex
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from heatmover.errors import Sentence

__all__ = [
    "OPTIONS",
    "SMALLEST",
    "Adjust",
    "AlignBatch",
    "AllowComponents",
    "AllowParts",
    "Anchors",
    "AnnotationColumn",
    "Bias",
    "Block",
    "Bootstrap",
    "Categorical",
    "Cells",
    "Clusters",
    "Cofactor",
    "Color",
    "Compensate",
    "Components",
    "EqualCells",
    "File",
    "Force",
    "Formula",
    "Landmarks",
    "MinCells",
    "Neighbors",
    "Numeric",
    "OptionalNumbers",
    "Out",
    "Permutations",
    "Quiet",
    "Rep",
    "SampleKey",
    "SampleSheet",
    "Seed",
    "SkipUnlisted",
    "Standardize",
    "Threads",
    "Title",
    "Transform",
    "Units",
    "in_options",
    "number",
]  # fmt: skip

# The option for each argument of the package that has one.
OPTIONS: Mapping[str, str] = {
    "adjust": "--adjust",
    "align_batch": "--align-batch",
    "anchors": "--anchors",
    "allow_components": "--allow-components",
    "bias": "--bias",
    "block": "--block",
    "categorical": "--categorical",
    "cells": "--cells",
    "checkpoint": "--checkpoint",
    "client": "--scheduler",
    "clusters": "--clusters",
    "cofactor": "--cofactor",
    "compensate": "--compensate",
    "equal_cells": "--equal-cells",
    "force": "--force",
    "formula": "--formula",
    "landmarks": "--landmarks",
    "memory": "--memory",
    "min_cells": "--min-cells",
    "n_bootstrap": "--bootstrap",
    "n_components": "--components",
    "n_jobs": "--threads",
    "n_neighbors": "--neighbors",
    "n_permutations": "--permutations",
    "no_features": "--annotation",
    "numeric": "--numeric",
    "on_missing": "--missing",
    "out": "--out",
    "pieces": "--memory",
    "placement": "--placement",
    "random_state": "--seed",
    "reference": "--reference",
    "representation": "--rep",
    "resume": "--resume",
    "sample_key": "--sample-key",
    "sample_sheet": "--sample-sheet",
    "skip_unlisted": "--skip-unlisted",
    "standardize": "--standardize",
    "transform": "--transform",
    "units": "--units",
    "variables": "--color",
}
# What --equal-cells means without a number.
SMALLEST = "smallest"
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
        help="Column with the sample of each cell; for FCS files, the column of the sample sheet that names them.",
    ),
]  # fmt: skip
Rep = Annotated[
    list[str] | None,
    typer.Option(
        "--rep", "-r", metavar="NAMES", rich_help_panel=INPUT,
        help="What tells how near cells are: a key of obsm, X, or columns, channels or genes with commas between them.",
    ),
]  # fmt: skip
AnnotationColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--annotation", metavar="COLUMN", rich_help_panel=INPUT, show_default=False,
        help="Column of a table that is no feature, whatever it holds; may be given again.",
    ),
]  # fmt: skip
SampleSheet = Annotated[
    str | None,
    typer.Option(metavar="FILE", rich_help_panel=INPUT, help="A .csv or .tsv with one row of variables per sample."),
]
SkipUnlisted = Annotated[
    bool,
    typer.Option(
        "--skip-unlisted", rich_help_panel=INPUT, help="Leave out files or samples that --sample-sheet does not list."
    ),
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
    str | None,
    typer.Option(
        metavar="NUMBER", rich_help_panel=INPUT,
        help="FCS: arcsinh(value / NUMBER); 5 is usual for mass, 150 for flow cytometry.",
    ),
]  # fmt: skip
Transform = Annotated[
    str | None,
    typer.Option(
        metavar="arcsinh|logicle", rich_help_panel=INPUT, show_default="as in the file",
        help="FCS: transform every channel but scatter and time; arcsinh needs --cofactor.",
    ),
]  # fmt: skip
Compensate = Annotated[
    bool | None,
    typer.Option(
        "--compensate/--no-compensate", rich_help_panel=INPUT, show_default="if the files have a spillover matrix",
        help="FCS: undo the spillover between detectors by the matrix in each file.",
    ),
]  # fmt: skip
Color = Annotated[
    list[str] | None,
    typer.Option(
        "--color", "-c", metavar="COLUMN", rich_help_panel=TESTS, show_default="all that can be tested",
        help="Variable of samples to test and to colour by; may be given again, the most important first.",
    ),
]  # fmt: skip
Block = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=TESTS, show_default=False,
        help="Variable that ties samples together, such as the patient or the batch; may be given again.",
    ),
]  # fmt: skip
Adjust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=TESTS, show_default=False,
        help="Variable to hold fixed while others are tested, such as the batch or the age; may be given again.",
    ),
]  # fmt: skip
AlignBatch = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=METHOD, show_default=False,
        help="Variable of batches whose cells are moved onto each other first; differences of --color are kept.",
    ),
]  # fmt: skip
Anchors = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", rich_help_panel=METHOD, show_default=False,
        help="Variable that names the material of samples that are the same in every batch, empty for others: "
        "--align-batch learns from these alone.",
    ),
]  # fmt: skip
Formula = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", rich_help_panel=TESTS, show_default=False,
        help="In place of --color and --adjust: columns with +, : or * between them, each tested beside the others.",
    ),
]  # fmt: skip
Numeric = Annotated[
    list[str] | None,
    typer.Option(
        "--numeric", metavar="COLUMN", rich_help_panel=TESTS, show_default="six or more different numbers",
        help="Variable of samples that is a number, however few values it has; may be given again.",
    ),
]  # fmt: skip
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        "--categorical", metavar="COLUMN", rich_help_panel=TESTS, show_default="text, fewer than six different numbers",
        help="Variable of samples whose values are groups, however many numbers they are; may be given again.",
    ),
]  # fmt: skip
Clusters = Annotated[
    str | None,
    typer.Option(
        metavar="N", rich_help_panel=TESTS, show_default="10 with --cells auto",
        help="Put the cells into N clusters, which stand for cell types where the file has none.",
    ),
]  # fmt: skip
Cells = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN|auto", rich_help_panel=TESTS,
        help="Annotation of cells, such as the cell type, or auto for clusters: which differ between the groups of the "
        "first --color?",
    ),
]  # fmt: skip
Reference = Annotated[
    str | None,
    typer.Option(
        metavar="GROUP", rich_help_panel=TESTS, show_default="control, healthy ..., or the first of an order",
        help="Group with which --cells compares the others.",
    ),
]  # fmt: skip
# Numbers come as text: the value that takes them says what it expected, as it does to Python.
Permutations = Annotated[str, typer.Option(metavar="N", rich_help_panel=TESTS, help="Permutations of every test.")]
MinCells = Annotated[
    str | None,
    typer.Option(
        metavar="N", rich_help_panel=METHOD, show_default="refuse samples of one cell",
        help="Leave out samples with fewer cells.",
    ),
]  # fmt: skip
EqualCells = Annotated[
    str | None,
    typer.Option(
        metavar="[N]", rich_help_panel=METHOD, show_default="all cells",
        help="Draw equally many cells from every sample: N, or without a number as many as the smallest has.",
    ),
]  # fmt: skip
AllowComponents = Annotated[
    bool,
    typer.Option(
        "--allow-components", rich_help_panel=METHOD,
        help="Go on if more than 5 % of the cells are outside the largest component of the graph.",
    ),
]  # fmt: skip
# The earlier name.
AllowParts = Annotated[bool, typer.Option("--allow-parts", hidden=True)]
Neighbors = Annotated[str, typer.Option(metavar="N", rich_help_panel=METHOD, help="Neighbours of a cell in the graph.")]
Landmarks = Annotated[
    str,
    typer.Option(
        metavar="N|auto|none", rich_help_panel=METHOD,
        help="Let N centres stand for the cells; auto: 4,000 above 100,000 cells.",
    ),
]  # fmt: skip
Bias = Annotated[
    str,
    typer.Option(
        metavar="raw|corrected", rich_help_panel=METHOD,
        help="corrected: without the noise of few cells, by which small samples look far from all others; raw: with.",
    ),
]  # fmt: skip
Bootstrap = Annotated[
    str,
    typer.Option(
        metavar="N", rich_help_panel=METHOD, help="Replicates for an interval of every distance; at least 10."
    ),
]
Units = Annotated[
    str | None,
    typer.Option(
        metavar="euclidean|geodesic", rich_help_panel=METHOD, show_default="arbitrary",
        help="Distances in the unit of the features, by up to 64 exact pairs: straight lines or paths on the graph.",
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
Seed = Annotated[str, typer.Option(metavar="N", rich_help_panel=RUN, help="The same seed gives the same numbers.")]
Threads = Annotated[
    str | None, typer.Option(metavar="N", rich_help_panel=RUN, help="Threads to use.", show_default="all cores")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", rich_help_panel=RUN, help="Print nothing but errors.")]
Force = Annotated[
    bool, typer.Option("--force", "-f", rich_help_panel=RUN, help="Replace the results of an earlier run.")
]
Title = Annotated[str | None, typer.Option(metavar="TEXT", rich_help_panel=RUN, help="Title of the report.")]
# Text, not a path: an empty one would be the current folder.
Out = Annotated[str, typer.Option("--out", "-o", metavar="DIR", rich_help_panel=RUN, help="Folder for the results.")]


def in_options(sentence: str) -> str:
    """Return a sentence in the words of the command line: its arguments by their options.

    Examples
    --------
    >>> from heatmover.errors import argument
    >>> in_options(Sentence(f"{argument('n_components', 50)} reduces, {argument('n_components', 'all')} keeps them"))
    '--components 50 reduces, --components all keeps them'
    >>> in_options(Sentence(f"raise {argument('n_neighbors')}, or {argument('allow_components', True)}"))
    'raise --neighbors, or --allow-components'
    """
    return sentence.spelled(_option) if isinstance(sentence, Sentence) else sentence


def _option(name: str, value: str | None) -> str:
    if name not in OPTIONS:
        if not name:  # words for Python alone
            return ""
        return name if value is None else f"{name}={value}"
    given = None if value is None else literal_eval(value)
    # A flag has no value; what is None in Python is the word none.
    if value is None or given is True:
        return OPTIONS[name]
    if given is False:
        return OPTIONS[name].replace("--", "--no-", 1)
    every = given if isinstance(given, list) else ["none" if given is None else given]
    return " ".join(f"{OPTIONS[name]} {shlex.quote(str(each))}" for each in every)


def number(text: str | None, words: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return the number that was typed, or what a word means; other text as it is: whoever takes it refuses it.

    Examples
    --------
    >>> number("30"), number("2.5"), number("AUTO", {"auto": "auto"}), number("many")
    (30, 2.5, 'auto', 'many')
    """
    if text is None or text.lower() in words:
        return None if text is None else words[text.lower()]
    try:
        # A whole number beyond every float is infinite, which whoever takes it refuses.
        return int(text) if isfinite(float(text)) else float(text)
    except ValueError:
        with suppress(ValueError):
            return float(text)
    return text


class OptionalNumbers(TyperCommand):
    """A command whose option --equal-cells may stand without a number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say what a bare option means, which click cannot tell from one that lacks its value."""
        return super().parse_args(ctx, list(_spelled_out(args)))


def _spelled_out(words: list[str]) -> Iterator[str]:
    for word, following in zip(words, [*words[1:], ""], strict=False):
        yield word
        if word == OPTIONS["equal_cells"] and following != SMALLEST and isinstance(number(following), str):
            yield SMALLEST
