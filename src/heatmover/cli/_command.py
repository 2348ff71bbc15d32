"""A command: options that load when they are needed, and errors as one sentence with exit code 2."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from heatmover._base.words import nearest_name, quoted
from heatmover.cli._terminal import fail
from heatmover.errors import HeatmoverError

__all__ = ["Described", "Sentences", "plain_errors"]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what the user can mend into one sentence and exit code 2; a defect of ours keeps its traceback."""
    try:
        yield
    except HeatmoverError as error:
        from heatmover.cli._settings import in_options

        fail(in_options(error.sentence))
    except OSError as error:
        if error.errno is None:  # not from the system: some libraries derive errors of their own from it
            raise
        place = f": {error.filename}" if error.filename is not None else ""
        fail(f"Could not write the results{place} ({error.strerror or error}).")
    except MemoryError as error:
        fail(f"Expected enough memory, found too little{f' ({error})' if str(error) else ''}; try --landmarks 4000.")


# The error of words that a command does not take; typer exports only this kind of it.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Sentences(TyperGroup):
    """Commands that answer words they do not take with one sentence and exit code 2."""

    def make_context(self, *words: Any, **further: Any) -> Any:
        """Read the words before the name of a command."""
        with _plain_usage():
            return super().make_context(*words, **further)

    def invoke(self, ctx: Any) -> Any:
        """Read the words after the name of a command, and run the command."""
        with _plain_usage():
            return super().invoke(ctx)


class Described(TyperCommand):
    """A command whose options are those that `_settings` describes, which loads the numerical libraries.

    Its function takes the context, whose ``params`` are what was typed. The list of commands, and the version, do not
    wait for any of this.
    """

    def __init__(self, *words: Any, **further: Any) -> None:
        super().__init__(*words, **further)
        self.callback = inspect.unwrap(self.callback)  # type: ignore[arg-type]
        vars(self).pop("params")  # those of the function, which are none

    @cached_property
    def params(self) -> list[Any]:  # type: ignore[override]
        """The options, made when they are first needed."""
        from heatmover.cli._settings import options_of

        return options_of(str(self.name))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say what a bare --equal-cells means, which click cannot tell from one that lacks its value."""
        from heatmover.cli._settings import spelled_out

        return super().parse_args(ctx, list(spelled_out(args)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return ctx.invoke(self.callback, ctx)


@contextmanager
def _plain_usage() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        fail(_usage(error))


def _usage(error: Any) -> str:
    """Return what is wrong with the words of a command, and what to do."""
    help_ = "" if error.ctx is None else f"see {error.ctx.command_path} --help"
    if type(error).__name__ != "NoSuchOption":
        advice = "put names with spaces into quotes" if "unexpected extra" in error.message else help_
        return f"{error.format_message().rstrip('.')}{advice and f'; {advice}'}."
    options = [option for parameter in error.ctx.command.params for option in parameter.opts if option[:2] == "--"]
    near = nearest_name(error.option_name.strip("-"), [option.strip("-") for option in options])
    advice = f"{help_.capitalize()}." if near is None else f"Did you mean '--{near}'?"
    return f"Unknown option {quoted(error.option_name)}. {advice}"
