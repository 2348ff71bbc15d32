"""The command line: reads options, calls the package, writes all files at once, then shows what it found."""

from __future__ import annotations

import json
import platform
import shutil
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, final

import typer
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from heatmover._progress import SILENT, Progress
from heatmover._validation import check_integer, check_number, import_extra
from heatmover.errors import GraphWarning, HeatmoverError, InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from heatmover.comparison import Comparison, Separation

__all__ = ["app"]

app = typer.Typer(
    name="heatmover",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

EXAMPLES = """
**Examples**

- `heatmover demo`
- `heatmover demo --out results --seed 7`
- `heatmover demo --samples 60 --cells 500 --effect 0.5 --force`
"""
FILES = ("distances.csv", "sample-map.png", "run.json")
NEIGHBORS_SHOWN = 3
SAMPLES_SHOWN = 12
# The same hues as in the picture (case blue, control orange), from the 256 colours that every terminal knows.
STYLES = {"case": "color(33)", "control": "color(208)"}
# The embedding has about 4 * 10 * samples^2 * cells bytes: this is 3 GB, which most machines have.
LARGEST_DEMO = 80_000_000


@final
@dataclass(frozen=True)
class DemoOptions:
    """What a demo simulates, checked."""

    samples: int
    cells: int
    effect: float
    seed: int

    def __post_init__(self) -> None:
        # Two samples of each condition; more points than a graph has neighbours.
        check_integer("--samples", self.samples, minimum=4)
        check_integer("--cells", self.cells, minimum=10)
        check_number("--effect", self.effect, above=-1, at_most=1000)
        check_integer("--seed", self.seed, minimum=0)
        if self.samples**2 * self.cells > LARGEST_DEMO:
            raise InvalidInputError(
                f"a demo that fits the memory (samples^2 * cells of at most {LARGEST_DEMO:,})",
                f"{self.samples} samples of {self.cells} cells",
                "use fewer --samples or --cells",
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


@app.command(epilog=EXAMPLES)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.", metavar="DIR")] = Path("heatmover-demo"),
    samples: Annotated[int, typer.Option(help="Samples, half of them cases; at least 4.")] = 30,
    cells: Annotated[int, typer.Option(help="Cells per sample; at least 10.")] = 200,
    effect: Annotated[
        float, typer.Option(help="Growth of the odds of one branch in cases; 0 for no difference.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(help="Seed: the same seed gives the same results.")] = 0,
    threads: Annotated[int | None, typer.Option(help="Threads to use.", show_default="all cores")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the results of an earlier run.")] = False,
) -> None:
    """Simulate a cohort of cases and controls, compare its samples and show what was found.

    The cells of each sample lie on a branching tree; cases have more cells in one branch. The demo finds the distances
    between all samples and writes three files: distances.csv, a picture of the sample map, and run.json, which says how
    they were made.
    """
    with _plain_errors():
        options = DemoOptions(samples, cells, effect, seed)
        if threads is not None:
            check_integer("--threads", threads, minimum=1)
        # Before the work, not after it.
        import_extra("matplotlib.figure", package="matplotlib", extra="demo")
        with _results(out, force=force) as folder:
            with _watched(quiet) as progress:
                comparison, conditions, separation = _compare_cohort(options, threads, progress)
                _write(folder, comparison, conditions, progress)
            record = _record(options, comparison, separation)
            (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if not quiet:
        console = Console(highlight=False)
        _show(console, comparison, conditions, separation)
        console.print(Text(f"\nWrote {', '.join(FILES)} into {out}"), soft_wrap=True)


def _compare_cohort(
    options: DemoOptions, threads: int | None, progress: Progress
) -> tuple[Comparison, npt.NDArray[np.str_], Separation]:
    """Return the comparison of a simulated cohort, the condition of each sample and how well it separates them."""
    from heatmover.comparison import compare
    from heatmover.datasets import cohort

    progress.stage("simulate cohort", 1)
    data = cohort(options.samples, cells_per_sample=options.cells, effect=options.effect, random_state=options.seed)
    progress.advance()
    with warnings.catch_warnings():
        # The diagnosis says the same, at its place.
        warnings.simplefilter("ignore", GraphWarning)
        comparison = compare(data.points, data.labels, random_state=options.seed, n_jobs=threads, progress=progress)
    progress.stage("diagnose graph", 1)
    _ = comparison.diagnosis
    progress.advance()
    conditions = data.annotations["condition"]
    return comparison, conditions, comparison.separation(conditions)


def _write(folder: Path, comparison: Comparison, conditions: npt.NDArray[np.str_], progress: Progress) -> None:
    from heatmover._picture import save

    progress.stage("write results", 2)
    comparison.to_csv(folder / "distances.csv")
    progress.advance()
    save(lambda axes: comparison.plot(conditions, axes), folder / "sample-map.png")
    progress.advance()


def _record(options: DemoOptions, comparison: Comparison, separation: Separation) -> dict[str, Any]:
    """Return what one needs to know to make the results again, and the main figures."""
    model = comparison.model
    settings = {name: value for name, value in model.get_params(deep=False).items() if name not in {"graph", "n_jobs"}}
    packages = ("heatmover", "numpy", "scipy", "scikit-learn", "numba", "matplotlib")
    return {
        "command": "demo",
        "parameters": asdict(options),
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
        "graph": dict(comparison.graph.construction),
        "model": settings,
        "max_scale": {"value": model.max_scale_, "reason": model.max_scale_reason_},
        "diagnosis": asdict(comparison.diagnosis),
        "separation": asdict(separation),
    }


def _show(console: Console, comparison: Comparison, conditions: npt.NDArray[np.str_], separation: Separation) -> None:
    shown = _some_of_each(conditions)
    console.print()
    console.print(_nearest_table(comparison, conditions, shown))
    if len(shown) < len(conditions):
        console.print(f"  {len(conditions) - len(shown)} more samples are in distances.csv", style="dim")
    console.print()
    diagnosis = comparison.diagnosis
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_row("condition", separation.describe("condition").replace("\n", " "))
    facts.add_row("graph", f"{str(diagnosis).splitlines()[0]} {' '.join(diagnosis.advice) or 'All is well.'}")
    facts.add_row("scales", f"The coarsest is {comparison.model.max_scale_}: {comparison.model.max_scale_reason_}.")
    console.print(facts)


def _nearest_table(comparison: Comparison, conditions: npt.NDArray[np.str_], shown: list[int]) -> Table:
    distances, indices = comparison.nearest(NEIGHBORS_SHOWN)

    def coloured(sample: int) -> Text:
        return Text(comparison.names[sample], style=STYLES[str(conditions[sample])])

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for header in ("sample", "nearest", "second", "third"):
        table.add_column(header, no_wrap=True)
    for sample in shown:
        near = zip(indices[sample], distances[sample], strict=True)
        table.add_row(coloured(sample), *(Text.assemble(coloured(i), (f"  {d:.3f}", "dim")) for i, d in near))
    return table


def _some_of_each(conditions: npt.NDArray[np.str_]) -> list[int]:
    """Return the samples to show: all if they are few, else as many of each condition."""
    if len(conditions) <= SAMPLES_SHOWN:
        return list(range(len(conditions)))
    chosen = []
    for condition in STYLES:
        members = [i for i, found in enumerate(conditions) if found == condition]
        chosen += members[: SAMPLES_SHOWN // len(STYLES)]
    return chosen


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn what the user can mend into one sentence and exit code 2; a defect of ours keeps its traceback."""
    try:
        yield
    except HeatmoverError as error:
        _fail(str(error))
    except OSError as error:
        place = f": {error.filename}" if error.filename is not None else ""
        _fail(f"Could not write the results{place} ({error.strerror or error}).")


def _fail(sentence: str) -> NoReturn:
    Console(stderr=True).print(Text.assemble(("Error: ", "bold red"), sentence), soft_wrap=True)
    raise typer.Exit(2)


@contextmanager
def _results(out: Path, *, force: bool) -> Iterator[Path]:
    """Give a temporary folder; if all goes well its files appear in ``out``, else nothing is left of it."""
    standing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not standing.is_dir():
        raise InvalidInputError("--out to name a folder", f"the file {standing} in its way", "choose another --out")
    present = [name for name in FILES if (out / name).exists()]
    if present and not force:
        raise InvalidInputError(
            f"no results in {out} yet", ", ".join(present), "use --force to replace them, or another --out"
        )
    folders = [name for name in present if (out / name).is_dir()]
    if folders:
        raise InvalidInputError(f"files in {out}", f"folders called {', '.join(folders)}", "choose another --out")
    # In a folder that stands already, so that nothing has to be undone and a rename stays on one disk.
    temporary = standing / f".heatmover-{uuid.uuid4().hex}"
    try:
        temporary.mkdir()
    except OSError as error:
        raise InvalidInputError(
            "--out where one can write", f"{standing}: {error.strerror}", "choose another --out"
        ) from error
    try:
        yield temporary
        if out.exists():
            for name in FILES:
                (temporary / name).replace(out / name)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _watched(quiet: bool) -> Iterator[Progress]:
    """Give a progress that draws bars in a terminal, writes a line per stage elsewhere, or says nothing."""
    console = Console(stderr=True, highlight=False)
    if quiet:
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
        )
        with Bars(*columns, console=console) as bars:
            watcher = _Stages(bars)
            yield watcher
            watcher.end()


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
