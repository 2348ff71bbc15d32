"""Print to the terminal: progress, errors in one line, tables, names without control codes; report lost output."""

from __future__ import annotations

import errno
import io
import os
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, final

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from heatmover._base.progress import SILENT, Progress

__all__ = [
    "LONGEST_NAME",
    "clean",
    "columns_of",
    "fail",
    "hanging",
    "output",
    "short",
    "tell",
    "watched",
    "whole_output",
    "written",
]

# Columns of words, which may take several lines.
WORDY = ("effect", "values")
LONGEST_NAME = 24
# Stages of fewer steps are over before a rate is known.
LONG = 10_000


def output(*, stderr: bool = False) -> Console:
    """Return the console that everything is printed on."""
    stream = sys.stderr if stderr else sys.stdout
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        # A name that the terminal's alphabet lacks must not end an hour's work.
        reconfigure(errors="backslashreplace")
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False)


def clean(text: object) -> str:
    r"""Return text on one line whose every character shows itself.

    Names come from files: an escape sequence in one could hide or repaint what the terminal shows.

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


class LostOutputError(Exception):
    """What was printed did not arrive: the disk behind it is full, or nobody reads on."""

    def __init__(self, error: OSError) -> None:
        self.error, self.comfort = error, ""
        super().__init__(str(error))


@final
class _Guarded:
    """A stream that hands its failures to a function, apart from those of the files that a command writes."""

    def __init__(self, stream: Any, failed: Callable[[OSError], None]) -> None:
        self._stream, self._failed = stream, failed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, if that goes."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        """Bring text on its way, if that goes."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)


def _lose(error: OSError) -> NoReturn:
    raise LostOutputError(error) from error


def _forgive(_: OSError) -> None:
    """Do nothing: progress that cannot be shown must not end an hour's work."""


@contextmanager
def whole_output() -> Iterator[None]:
    """Run a command; if its output does not arrive, say so and exit with code 2, or with 1 if nobody reads on."""
    before = sys.stdout, sys.stderr
    # A stream that was closed before we began is None.
    streams = [io.StringIO() if stream is None else stream for stream in before]
    sys.stdout, sys.stderr = _Guarded(streams[0], _lose), _Guarded(streams[1], _forgive)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except LostOutputError as lost:
        if lost.error.errno == errno.EPIPE:
            raise SystemExit(1) from None
        sys.stderr.write(f"Error: Could not print what was found ({lost.error.strerror}){lost.comfort}.\n")
        raise SystemExit(2) from None
    finally:
        for stream in streams:
            _finish(stream)
        sys.stdout, sys.stderr = before


def _finish(stream: Any) -> None:
    """Flush a stream; if that fails let the rest go nowhere, or Python would complain when it ends."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def written(out: Path) -> Iterator[None]:
    """Say, should the output be lost, that the results are not."""
    try:
        yield
    except LostOutputError as lost:
        lost.comfort = f"; the results are in {clean(out)}"
        raise


def hanging(name: str, text: str, *, width: int = 6) -> Table:
    """Return text that hangs beside its name."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True, width=width)
    grid.add_column(overflow="fold")
    grid.add_row(name, Text(text))
    return grid


def columns_of(*headers: str) -> Table:
    """Return an empty table without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header in headers:
        table.add_column(header, no_wrap=header not in WORDY, overflow="ellipsis" if header not in WORDY else "fold")
    return table


def short(name: object, longest: int = LONGEST_NAME) -> str:
    """Return a name that fits into a column."""
    text = clean(name)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def tell(sentence: str) -> None:
    """Print an error, on one line."""
    output(stderr=True).print(Text.assemble(("Error: ", "bold red"), clean(sentence)), soft_wrap=True)


def fail(sentence: str) -> NoReturn:
    """Print an error and exit with code 2."""
    tell(sentence)
    raise typer.Exit(2)


@contextmanager
def watched(quiet: bool) -> Iterator[Progress]:
    """Give a progress that draws bars in a terminal, writes a line per stage elsewhere, or says nothing."""
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
            watcher = _Stages(bars)
            yield watcher
            watcher.end()


@final
class _Pace(ProgressColumn):
    """Rate and time left of a stage that counts many things, such as cells."""

    def render(self, task: Task) -> Text:
        if not task.total or task.total < LONG or task.finished or not task.speed or task.time_remaining is None:
            return Text("")
        minutes, seconds = divmod(round(task.time_remaining), 60)
        return Text(f"{task.speed:,.0f}/s, {minutes}:{seconds:02d} left", style="dim")


@final
class _Lines:
    """Progress where nothing can be redrawn: the name of each stage as it begins."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, name: str, total: int) -> None:  # noqa: ARG002
        self._console.print(f"{name} ...")

    def advance(self, steps: int = 1) -> None:
        """Write nothing."""


@final
class _Stages:
    """Progress as bars, one below the other; a stage of a single step pulses until it has ended."""

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
