"""Print to the terminal: progress, errors in one line, tables, names without control codes; for `cli` only."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, final

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from heatmover._base.progress import SILENT, Progress
from heatmover._base.words import shortened

# Headers of columns whose text may be wrapped.
WORDY = ("effect", "values")
LONGEST_NAME = 24
# Width for output to a pipe or a file, so that no line is wrapped.
UNWRAPPED = 10_000
# Smallest number of steps of a stage for which a rate is shown. Shorter stages end before the rate can be estimated.
LONG = 10_000


def output(*, stderr: bool = False) -> Console:
    """Return a console for standard output, or for standard error."""
    stream = sys.stderr if stderr else sys.stdout
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        # A character that the terminal cannot encode must not cause an error at the end of a long run.
        reconfigure(errors="backslashreplace")
    console = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNWRAPPED
    return console


@contextmanager
def printed() -> Iterator[Console]:
    """Yield a console for results; lines in a pipe or a file have no trailing spaces."""
    console = output()
    if console.is_terminal:
        yield console
        return
    with console.capture() as capture:
        yield console
    console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def clean(text: object) -> str:
    r"""Return text on one line, with control characters as visible escapes.

    Names come from files, and an escape sequence in a name could change what the terminal shows.

    Examples
    --------
    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    return "".join(_shown(character) for character in str(text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    return character.encode("unicode_escape").decode("ascii")


@contextmanager
def whole_output() -> Iterator[None]:
    """Run a command, and exit if its output cannot be printed.

    The exit code is 1 if the pipe was closed. Otherwise it is 2, with an error message.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # None if it was closed before the command began
                sys.stdout.flush()
    except OSError as error:
        if error.errno is None:  # not a system error: some libraries derive their own errors from OSError
            raise
        if error.errno != errno.EPIPE:
            where = "".join(getattr(error, "__notes__", ()))
            sys.stderr.write(f"Error: Could not print the results ({error.strerror}){where}.\n")
        with suppress(OSError):  # discard the remaining output; otherwise Python reports an error at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1 if error.errno == errno.EPIPE else 2) from None


@contextmanager
def written(out: Path) -> Iterator[None]:
    """If output cannot be printed, add the folder of the results to the error message."""
    try:
        yield
    except OSError as error:
        error.add_note(f"; the results are in {clean(out)}")
        raise


def hanging(name: str, text: str, *, width: int = 8) -> Table:
    """Return a name followed by text with a hanging indent."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True, width=width)
    grid.add_column(overflow="fold")
    grid.add_row(name, Text(text))
    return grid


def columns_of(*headers: str) -> Table:
    """Return an empty table without borders."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header, no_wrap=header not in WORDY, overflow="ellipsis" if header not in WORDY else "fold")
    return table


def short(name: object, longest: int = LONGEST_NAME) -> str:
    """Return a name that fits into a column."""
    return shortened(clean(name), longest)


def tell(sentence: str) -> None:
    """Print an error, on one line."""
    output(stderr=True).print(Text.assemble(("Error: ", "bold red"), clean(sentence)), soft_wrap=True)


def fail(sentence: str) -> NoReturn:
    """Print an error and exit with code 2."""
    tell(sentence)
    raise typer.Exit(2)


@contextmanager
def watched(quiet: bool) -> Iterator[Progress]:
    """Yield a progress receiver: bars in a terminal, one line per stage elsewhere, and no output if ``quiet``."""
    console = output(stderr=True)
    if quiet:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield SILENT
    elif not console.is_terminal:
        yield _Lines(console)
    else:
        plain = console.options.ascii_only
        columns = (
            SpinnerColumn("line" if plain else "dots", finished_text="+" if plain else "[green]✓[/green]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30, complete_style="cyan", finished_style="cyan", pulse_style="cyan"),
            TextColumn("{task.elapsed:.1f} s", style="dim", justify="right"),
            _Pace(),
        )
        with Bars(*columns, console=console) as bars:
            watcher = _ProgressBars(bars)
            yield watcher
            watcher.end()


@final
class _Pace(ProgressColumn):
    """Column with rate and remaining time of stages with many steps (for example, one step per cell)."""

    def render(self, task: Task) -> Text:
        if not task.total or task.total < LONG or task.finished or not task.speed or task.time_remaining is None:
            return Text("")
        minutes, seconds = divmod(round(task.time_remaining), 60)
        return Text(f"{task.speed:,.0f}/s, {minutes}:{seconds:02d} left", style="dim")


@final
class _Lines:
    """Progress for output that cannot be redrawn: prints the name of each stage when it begins."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, name: str, total: int) -> None:  # noqa: ARG002
        with suppress(OSError):  # an error while showing progress must not end a long run
            self._console.print(f"{name} ...")

    def advance(self, steps: int = 1) -> None:
        """Write nothing."""


@final
class _ProgressBars:
    """Progress as one bar per stage; the bar of a stage with a single step pulses until the stage ends."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def stage(self, name: str, total: int) -> None:
        self.end()
        self._task = self._bars.add_task(name, total=None if total == 1 else total)

    def advance(self, steps: int = 1) -> None:
        if self._task is not None:
            self._bars.advance(self._task, steps)

    def end(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)
            self._bars.stop_task(self._task)
