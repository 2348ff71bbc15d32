"""Define commands that create their options only when needed, with grouped help and short errors; for `cli` only."""

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


@contextmanager
def plain_errors() -> Iterator[None]:
    """Report a user error in one sentence with exit code 2; an internal error keeps its traceback."""
    try:
        yield
    except HeatmoverError as error:
        from heatmover.cli._settings import in_options

        fail(in_options(error.sentence))
    except OSError as error:
        if error.errno is None:  # not a system error: some libraries derive their own errors from OSError
            raise
        place = f": {error.filename}" if error.filename is not None else ""
        fail(f"Could not write the results{place} ({error.strerror or error}).")
    except MemoryError as error:
        fail(f"Expected enough memory, found too little{f' ({error})' if str(error) else ''}; try --landmarks 4000.")


# Base class of all usage errors; typer exports only its subclass BadParameter.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Sentences(TyperGroup):
    """Group of commands that reports usage errors in one sentence with exit code 2."""

    def make_context(self, *words: Any, **further: Any) -> Any:
        """Parse the words before the name of a command."""
        with _plain_usage():
            return super().make_context(*words, **further)

    def invoke(self, ctx: Any) -> Any:
        """Parse the words after the name of a command, and run the command."""
        with _plain_usage():
            return super().invoke(ctx)


class OptionsCommand(TyperCommand):
    """Command with the options that `_settings` describes.

    `_settings` loads the numerical libraries, so it is imported only when the options are needed. The list of commands
    and the version are shown without this import. The function of the command takes the context, whose ``params`` hold
    the values as the user typed them.
    """

    def __init__(self, *words: Any, **further: Any) -> None:
        super().__init__(*words, **further)
        self.callback = inspect.unwrap(self.callback)  # type: ignore[arg-type]
        vars(self).pop("params")  # the empty list of the function's parameters

    @cached_property
    def params(self) -> list[Any]:  # type: ignore[override]
        """The options, created at the first use."""
        from heatmover.cli._settings import options_of

        return options_of(str(self.name))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the value of a bare --equal-cells, which click would reject as an option without its value."""
        from heatmover.cli._settings import spelled_out

        return super().parse_args(ctx, list(spelled_out(args)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return ctx.invoke(self.callback, ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options under their headings, in the order of `_settings`."""
        groups: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                groups.setdefault("Arguments", []).append((parameter.metavar, getattr(parameter, "help", "")))
            else:
                heading = getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(heading, []).append(parameter.get_help_record(ctx))
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=28)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click defines the arguments
        """Write the examples, one per line, so that they can be copied."""
        if self.epilog:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.epilog.strip().splitlines()))


@contextmanager
def _plain_usage() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        fail(_usage(error))


def _usage(error: Any) -> str:
    """Return a sentence that explains a usage error, with advice."""
    help_ = "" if error.ctx is None else f"see {error.ctx.command_path} --help"
    if type(error).__name__ != "NoSuchOption":
        advice = "put names with spaces into quotes" if "unexpected extra" in error.message else help_
        return f"{error.format_message().rstrip('.')}{advice and f'; {advice}'}."
    options = [option for parameter in error.ctx.command.params for option in parameter.opts if option[:2] == "--"]
    near = nearest_name(error.option_name.strip("-"), [option.strip("-") for option in options])
    advice = f"{help_.capitalize()}." if near is None else f"Did you mean '--{near}'?"
    return f"Unknown option {quoted(error.option_name)}. {advice}"
