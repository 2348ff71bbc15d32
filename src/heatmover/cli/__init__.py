"""The command line: reads options, calls the package, writes all files at once, then shows what it found."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from heatmover.cli import _atlas, _compare, _demo, _doctor
from heatmover.cli._options import OptionalNumbers
from heatmover.cli._terminal import whole_output

__all__ = ["app", "whole_output"]

app = typer.Typer(
    name="heatmover",
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


# Words that are no options come through to the commands, which refuse them as Python would.
ANY = {"ignore_unknown_options": True, "allow_extra_args": True}
app.command(cls=OptionalNumbers, epilog=_compare.EXAMPLES, context_settings=ANY)(_compare.compare)
app.command(cls=OptionalNumbers, epilog=_doctor.EXAMPLES, context_settings=ANY)(_doctor.doctor)
app.command(epilog=_demo.EXAMPLES)(_demo.demo)
app.add_typer(_atlas.app, name="atlas")
