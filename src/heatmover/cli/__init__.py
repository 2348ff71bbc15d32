"""The command line: reads options, calls the package, writes all files at once, then shows what it found."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from heatmover.cli import _atlas
from heatmover.cli._commands import add_commands
from heatmover.cli._terminal import Sentences, whole_output

__all__ = ["app", "whole_output"]

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


add_commands(app)
app.add_typer(_atlas.app, name="atlas")
