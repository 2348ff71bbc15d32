"""What a command is asked for: options derived from descriptions of parameters, and values made of what was typed."""

from __future__ import annotations

import csv
import inspect
import os
import shlex
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final, get_args, get_origin, get_type_hints

import typer

from heatmover._base.progress import Progress
from heatmover._base.validation import check_integer, check_number
from heatmover._base.words import counted, quoted_path
from heatmover.cli._terminal import short
from heatmover.cohort import Cohort, read_cohort
from heatmover.cohort.candidates import Candidate, candidates
from heatmover.cohort.read import check_measurement, format_of
from heatmover.errors import InvalidInputError, Sentence, argument
from heatmover.study import Comparer, InMemory, StudyParameters
from heatmover.study.parameters import (
    METHOD,
    RUN,
    TESTS,
    Parameter,
    check_described,
    check_one_of,
    check_whole,
    described,
    descriptions,
)
from heatmover.study.scale.pieces import InPieces
from heatmover.study.scale.pieces import read_cohort as read_in_pieces
from heatmover.study.scale.stages import connected

__all__ = [
    "OPTIONS",
    "BuildOptions",
    "DemoOptions",
    "MapOptions",
    "Reading",
    "Running",
    "Settings",
    "candidate_columns",
    "check_named",
    "check_outside",
    "check_places",
    "check_sample_key",
    "comparer_of",
    "in_options",
    "made",
    "options_of",
    "parse_names",
    "pieces_of",
    "settings_of",
    "spelled_out",
]

INPUT, LARGE = "Input", "Cells that do not fit into memory"
HEADINGS = (None, INPUT, TESTS, METHOD, LARGE, RUN)
DEFAULT_MEMORY = "4 GB"
# The embedding of a demo has about 4 * 10 * samples^2 * cells bytes: this is 3 GB, which most machines have.
LARGEST_DEMO = 80_000_000
# Candidates for the column of samples that an error lists.
CANDIDATES = 6
# Files by which a zarr store is known, and what else is one.
STORE = (".zgroup", ".zmetadata", "zarr.json")
ANY_STORE = "every atlas, index, saved model, checkpoint and zarr store"

Made = TypeVar("Made")


def check_named(**options: str | None) -> None:
    """Raise if an option names no place: to the system an empty name is the current folder, and NUL ends a name."""
    for name, text in options.items():
        if text is not None and (not text or "\0" in text):
            option = name.upper() if name in ("file", "atlas") else f"--{name.replace('_', '-')}"
            advice = "'.' is the current folder" if name == "out" and not text else ""
            raise InvalidInputError(f"{option} to be a path", quoted_path(text) if text else "an empty one", advice)


def check_places(
    out: str, names: Sequence[str], file: str, sample_sheet: str | None, checkpoint: str | None = None
) -> Path:
    """Return the place of the results, or raise if one place would spoil what is at another.

    Results must not replace an input, nor lie in a store of which each file means something; nor must a checkpoint.

    Parameters
    ----------
    out
        Folder for the results, or a file.
    names
        Files in the folder; an empty name is ``out`` itself.
    file, sample_sheet
        What is read.
    checkpoint
        The store that a run in pieces keeps.
    """
    check_named(file=file, sample_sheet=sample_sheet, checkpoint=checkpoint, out=out)
    for path in (file, sample_sheet):
        if path and any(_same(Path(path), Path(out) / name) for name in names):
            raise InvalidInputError(
                "--out that leaves the input alone",
                f"{quoted_path(path)}, which has the place of a result",
                "choose another --out",
            )
    if checkpoint:
        check_outside("--checkpoint", checkpoint, {"the input": file}, itself=False)
    check_outside("--out", out, {"the input": file, "--checkpoint": checkpoint})
    return Path(out)


def check_outside(option: str, place: str, others: Mapping[str, str | None], *, itself: bool = True) -> None:
    """Raise if a place that is written to is, or lies in, a store or one of some other places, by what they are.

    Parameters
    ----------
    option
        Names the place.
    place
        That is written to.
    others
        Further places, and what the user calls them. A folder of FCS files may hold results.
    itself
        Whether the place must not be a store itself: one that is replaced, or resumed, may.
    """
    known = {Path(os.path.realpath(path)): what for what, path in others.items() if path}
    real = Path(os.path.realpath(place))
    for folder in (real, *real.parents):
        is_store = any(os.path.lexists(folder / name) for name in STORE)
        what = known.get(folder, ANY_STORE if is_store and (itself or folder != real) else "")
        if what and (is_store or what != "the input"):
            where = "" if folder == real else f" in {quoted_path(str(folder))}"
            raise InvalidInputError(
                f"{option} outside of {what}", f"{quoted_path(place)}{where}", f"choose another {option}"
            )


def _same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one of them is not there
        return False


def check_sample_key(file: str, sample_key: str | None) -> None:
    """Raise, with the likely columns, if a file needs a column that names the samples and none was named."""
    if sample_key is not None or format_of(Path(file)) == "fcs":
        return
    columns = candidate_columns(file)
    likely = [f"{short(each.column)} ({counted(each.n_values, 'value')})" for each in columns[:CANDIDATES]]
    more = f" and {len(columns) - CANDIDATES} more" if len(columns) > CANDIDATES else ""
    raise InvalidInputError(
        "--sample-key to name the column that tells the sample of each cell",
        f"none; it could be {', '.join(likely)}{more}, perhaps --sample-key {columns[0].column}",
        f"heatmover doctor {file} tells more",
    )


def candidate_columns(file: str) -> list[Candidate]:
    """Return the columns that could name the samples of a file, the likeliest first; raise if there are none."""
    columns = candidates(file)
    if not columns:
        raise InvalidInputError("--sample-key to name the column of the samples", "no column that could be it")
    return columns


def _components(name: str, count: object) -> object:
    if isinstance(count, str) and count != "all":
        raise InvalidInputError(f"{argument(name)} to be a whole number of at least 1, or 'all'", repr(count))
    return count if count == "all" else check_integer(name, count, minimum=1)


@final
@dataclass(frozen=True)
class Reading:
    """What to read and how: arguments of `heatmover.read_cohort` by their names."""

    # fmt: off
    path: str = described(
        None, "FILE", "FILE", None, required=True,
        help="AnnData (.h5ad, .zarr), table of cells (.csv, .tsv, .csv.gz, .parquet), or folder of .fcs files.")
    sample_key: str | None = described(
        None, "--sample-key -s", "COLUMN", INPUT,
        help="Column with the sample of each cell; for FCS files, the column of the sample sheet that names them.")
    representation: tuple[str, ...] = described(
        (), "--rep -r", "NAMES", INPUT,
        help="What tells how near cells are: a key of obsm, X, or columns, channels or genes with commas between them.")
    no_features: tuple[str, ...] = described(
        (), "--annotation", "COLUMN", INPUT,
        help="Column of a table that is no feature, whatever it holds; may be given again.")
    sample_sheet: str | None = described(
        None, "--sample-sheet", "FILE", INPUT, help="A .csv or .tsv with one row of variables per sample.")
    skip_unlisted: bool = described(
        False, "--skip-unlisted", None, INPUT,
        help=f"Leave out files or samples that {argument('sample_sheet')} does not list.")
    standardize: bool = described(
        False, "--standardize", None, INPUT, help="Give every feature mean 0 and variance 1.")
    n_components: int | Literal["all"] | None = described(
        None, "--components", "N|all", INPUT, words={"all": "all"}, check=_components,
        help="Reduce to N principal components; needed above 100 features, which 'all' keeps.")
    cofactor: float | None = described(
        None, "--cofactor", "NUMBER", INPUT,
        help="FCS: arcsinh(value / NUMBER); 5 is usual for mass, 150 for flow cytometry.")
    transform: str | None = described(
        None, "--transform", "arcsinh|logicle", INPUT, shown="as in the file",
        help=f"FCS: transform every channel but scatter and time; arcsinh needs {argument('cofactor')}.")
    compensate: bool | None = described(
        None, "--compensate/--no-compensate", None, INPUT, shown="if the files have a spillover matrix",
        help="FCS: undo the spillover between detectors by the matrix in each file.")
    on_missing: Literal["refuse", "drop"] = described(
        "refuse", "--missing", "refuse|drop", INPUT,
        check=check_one_of("refuse", "drop"),
        help="Cells in which a feature is NaN or infinite: refuse the file, or leave the cells out.")
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)
        check_measurement(self.cofactor, self.transform, self.compensate)

    def read(self, required: Sequence[str], seed: int, progress: Progress, comparer: Comparer | None = None) -> Cohort:
        """Read the cohort; variables that are required are looked for before any value is."""
        named = {name: getattr(self, name) for name in descriptions(Reading)}
        named |= {"no_features": list(self.no_features), "representation": self._representation()}
        # What compares in pieces looks at every value itself.
        read = read_cohort
        if isinstance(comparer, InPieces):
            read = partial(read_in_pieces, memory=comparer.memory)
        return read(named.pop("path"), **named, required=list(required), random_state=seed, progress=progress)

    def _representation(self) -> str | tuple[str, ...] | None:
        if not self.representation:
            return None
        # One name is a matrix of an AnnData file; of a table, or of FCS files, it is the one column wanted.
        matrix = len(self.representation) == 1 and format_of(Path(self.path)) in ("h5ad", "zarr")
        return self.representation[0] if matrix else self.representation


@final
@dataclass(frozen=True)
class Settings:
    """What decides the numbers: what to read, and what to ask of it; and on how many threads."""

    reading: Reading
    study: StudyParameters
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        if self.n_jobs is not None:
            check_integer("n_jobs", self.n_jobs, minimum=1)

    def read(self, progress: Progress, comparer: Comparer | None = None) -> Cohort:
        """Read the cohort for a comparer; the variables asked for are looked for before any value is."""
        cells, required = self.study.cells, self.study.required
        kept_apart = (*self.reading.no_features, *([] if cells is None else [cells]))
        reading = replace(self.reading, no_features=kept_apart)
        return reading.read(required, self.study.random_state, progress, comparer)

    def command(self, name: str, further: Sequence[str] = ()) -> dict[str, Any]:
        """Return the command as it can be given again, with the names of files but not their folders."""
        words = [word for value in (self.reading, self.study) for word in _words(value)]
        return {"name": name, "line": shlex.join(["heatmover", name, Path(self.reading.path).name, *words, *further])}


def _words(value: Reading | StudyParameters) -> Iterator[str]:
    """Yield options and what was given for them, where that is not the default."""
    for name, told in descriptions(type(value)).items():
        given = getattr(value, name)
        if name == "path" or given == told.default:
            continue
        option = OPTIONS[name]
        if isinstance(given, bool):
            yield option if given else option.replace("--", "--no-", 1)
        elif isinstance(given, tuple):
            for item in given:
                yield from (option, f'"{item}"' if name == "representation" and "," in item else item)
        else:
            # A name is as it was typed; None, of landmarks, is the word "none".
            text = given if isinstance(given, str) else str(given).lower()
            yield from (option, Path(text).name if name == "sample_sheet" else text)


def settings_of(typed: Mapping[str, Any]) -> Settings:
    """Return the settings of options as they were typed."""
    return Settings(made(Reading, typed), made(StudyParameters, typed), made(Running, typed).n_jobs)


def parse_names(option: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the names of an option that may be given several times or once with commas, as in a line of CSV.

    Examples
    --------
    >>> parse_names("--rep", ["CD4,CD8", '"a, b"'])
    ('CD4', 'CD8', 'a, b')
    """
    try:
        names = [name.strip() for line in csv.reader(list(values), skipinitialspace=True, strict=True) for name in line]
    except csv.Error as error:
        raise InvalidInputError(
            f"{option} to be names with commas between them", f"{list(values)!r} ({error})"
        ) from None
    if any(not name for name in names):
        raise InvalidInputError(f"{option} to be names with commas between them", f"{', '.join(values)!r}")
    return tuple(names)


@contextmanager
def comparer_of(settings: Settings, running: Running) -> Iterator[Comparer]:
    """Give what compares: all cells in memory, or in pieces if an option asks for it.

    Everything that can be refused is refused here, before a cell is read.
    """
    with pieces_of(running, settings.study) as pieces:
        if pieces is None:
            in_memory = InMemory(settings.n_jobs)
            in_memory.check(settings.study)
            yield in_memory
        else:
            yield pieces


@contextmanager
def pieces_of(running: Running, study: StudyParameters) -> Iterator[InPieces | None]:
    """Give what reads cells in pieces, if an option asks for it, or None; ``study`` says for what."""
    if not running.resume and running.memory is running.scheduler is running.checkpoint is None:
        yield None
        return
    pieces = InPieces(
        memory=running.memory or DEFAULT_MEMORY, checkpoint=running.checkpoint, resume=running.resume,
        n_jobs=running.n_jobs,
    )  # fmt: skip
    pieces.check(study)
    with connected(running.scheduler) as client:
        yield replace(pieces, client=client)


@final
@dataclass(frozen=True)
class Running:
    """How a command runs, and where its results go."""

    # fmt: off
    memory: str | None = described(
        None, "--memory", "SIZE", LARGE, shown="all cells at once; 4GB with an option below",
        help="Read the cells in pieces, within SIZE, such as 4GB or 800MB.")
    scheduler: str | None = described(
        None, "--scheduler", "ADDRESS", LARGE, shown="threads of this process",
        help="Work on the Dask cluster whose scheduler is at ADDRESS, such as tcp://10.0.0.5:8786.")
    checkpoint: str | None = described(
        None, "--checkpoint", "PATH", LARGE, help="Keep all that is finished in a zarr store at PATH.")
    resume: bool = described(
        False, "--resume", None, LARGE,
        help="Go on with the checkpoint if it is there; the result is the same to the bit.")
    out: str = described("", "--out -o", "DIR", RUN, required=True, help="Folder for the results.")
    title: str | None = described(None, "--title", "TEXT", RUN, help="Title of the report.")
    n_jobs: int | None = described(
        None, "--threads", "N", RUN, shown="all cores", check=check_whole(1), help="Threads to use.")
    quiet: bool = described(False, "--quiet -q", None, RUN, help="Print nothing but errors.")
    force: bool = described(False, "--force -f", None, RUN, help="Replace the results of an earlier run.")
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)


@final
@dataclass(frozen=True)
class DemoOptions:
    """What a demo simulates, checked."""

    # fmt: off
    out: str = described("heatmover-demo", "--out -o", "DIR", RUN, help="Folder for the results.")
    # Two samples of each condition; more points than a graph has neighbours.
    samples: int = described(
        30, "--samples", "N", None, check=check_whole(4), help="Samples, half of them cases; at least 4.")
    cells: int = described(200, "--cells", "N", None, check=check_whole(10), help="Cells per sample; at least 10.")
    effect: float = described(
        2.0, "--effect", "NUMBER", None, check=lambda name, given: check_number(name, given, above=-1, at_most=1000),
        help="Growth of the odds of one branch in cases; 0 for no difference.")
    random_state: int = field(default=0, metadata={"parameter": descriptions(StudyParameters)["random_state"]})
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)
        if self.samples**2 * self.cells > LARGEST_DEMO:
            raise InvalidInputError(
                f"a demo that fits the memory (samples^2 * cells of at most {LARGEST_DEMO:,})",
                f"{counted(self.samples, 'sample')} of {counted(self.cells, 'cell')}",
                "use fewer --samples or --cells",
            )


@final
@dataclass(frozen=True)
class BuildOptions:
    """Where an atlas is built."""

    out: str = described("", "--out -o", "DIR", None, required=True, help="Folder to make, such as kidney.atlas.")


@final
@dataclass(frozen=True)
class MapOptions:
    """Which atlas a command reads, and what it tells of samples that are mapped onto it."""

    # fmt: off
    atlas: str = described("", "ATLAS", "ATLAS", None, required=True, help="Folder of an atlas.")
    nearest: int | None = described(
        None, "--nearest -k", "N", None, shown="10, if there are",
        help="Nearest reference samples that are written, and vote.")
    predict: tuple[str, ...] = described(
        (), "--predict", "VARIABLE", None, help="Variable of the reference to predict; may be given again.")
    placement: Literal["nearest", "kernel"] = described(
        "nearest", "--placement", "WAY", None,
        help="Where cells go: the nearest node (nearest), or shared with the nodes around it (kernel).")
    out: str | None = described(
        None, "--out -o", "DIR", None,
        help="Folder for the report and the table; a name that ends in .csv is the table alone.")
    # fmt: on


# The option for each argument of the package that has one.
OPTIONS: Mapping[str, str] = {
    name: told.option.split()[0].split("/")[0]
    for parameters in (DemoOptions, MapOptions, Reading, Running, StudyParameters)
    for name, told in descriptions(parameters).items()
    if told.option.startswith("-")
} | {"client": "--scheduler", "pieces": "--memory"}

# What each command takes: all parameters of a class, or those that are named.
_READ_AGAIN = ("path", "sample_key", "sample_sheet", "skip_unlisted", "on_missing")
_ANY: tuple[str, ...] = ()
TAKES: Mapping[str, Mapping[type, tuple[str, ...]]] = {
    "compare": {Reading: _ANY, Running: _ANY, StudyParameters: _ANY},
    "doctor": {Reading: _ANY, Running: ("n_jobs", "quiet"), StudyParameters: _ANY},
    "demo": {DemoOptions: _ANY, Running: ("n_jobs", "quiet", "force")},
    "build": {
        Reading: _ANY,
        BuildOptions: _ANY,
        Running: ("memory", "scheduler", "checkpoint", "resume", "n_jobs", "quiet", "force"),
        StudyParameters: ("n_neighbors", "landmarks", "units", "random_state"),
    },
    "map": {MapOptions: _ANY, Reading: _READ_AGAIN, Running: ("title", "force", "n_jobs", "quiet")},
    "add": {MapOptions: ("atlas",), Reading: _READ_AGAIN, Running: ("n_jobs", "quiet")},
    "info": {MapOptions: ("atlas",)},
    "check": {MapOptions: ("atlas",)},
}


def options_of(command: str) -> list[Any]:
    """Return the options and arguments of a command, as typer makes them of the signature of a function."""
    taken = [
        (name, told, get_type_hints(parameters)[name])
        for parameters, named in TAKES[command].items()
        for name, told in descriptions(parameters).items()
        if not named or name in named
    ]
    taken.sort(key=lambda each: HEADINGS.index(each[1].heading))

    def function() -> None:
        """Stand for a command."""

    signature = [_typed(*each) for each in taken]
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in signature}
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)


def _typed(name: str, told: Parameter, hint: Any) -> inspect.Parameter:
    """Return a parameter as a command takes it: as text, which is made into values, and refused, by `made`."""
    many = any(get_origin(each) in (tuple, Sequence) for each in (hint, *get_args(hint)))
    kind: Any = list[str] if many else bool if told.metavar is None else str
    default = (
        told.default if kind is bool else None if many or told.shown or told.default is None else str(told.default)
    )
    named: dict[str, Any] = {"help": in_options(Sentence(told.help)), "metavar": told.metavar}
    if told.required:
        default, named["show_default"] = inspect.Parameter.empty, False
    else:
        kind = kind | None if default is None else kind
        named["show_default"] = in_options(Sentence(told.shown)) or True
    if told.option.startswith("-"):
        given: Any = typer.Option(*told.option.split(), rich_help_panel=told.heading, **named)
    else:
        given = typer.Argument(**named)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, given])


def made(kind: type[Made], typed: Mapping[str, Any]) -> Made:
    """Return the value that options ask for as they were typed; what was not given, or not asked, has its default."""
    hints, values = get_type_hints(kind), {}
    for name, told in descriptions(kind).items():
        given = typed.get(name)
        if given is None or (isinstance(given, list | tuple) and not given):
            continue
        is_number = isinstance(given, str) and {int, float} & {hints[name], *get_args(hints[name])}
        values[name] = number(given, told.words) if is_number else tuple(given) if isinstance(given, list) else given
    if "representation" in values:
        values["representation"] = parse_names("--rep", values["representation"])
    return kind(**values)


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


def number(text: str, words: Mapping[str, Any]) -> Any:
    """Return the number that was typed, or what a word means; other text as it is: whoever takes it refuses it.

    Examples
    --------
    >>> number("30", {}), number("2.5", {}), number("AUTO", {"auto": "auto"}), number("many", {})
    (30, 2.5, 'auto', 'many')
    """
    if text.lower() in words:
        return words[text.lower()]
    try:
        # A whole number beyond every float is infinite, which whoever takes it refuses.
        return int(text) if isfinite(float(text)) else float(text)
    except ValueError:
        with suppress(ValueError):
            return float(text)
    return text


def spelled_out(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command, with what an option means, such as --equal-cells, where no number follows it."""
    bare = {
        OPTIONS[name]: next(iter(told.words))
        for name, told in descriptions(StudyParameters).items()
        if (told.metavar or "").startswith("[")
    }
    for word, following in zip(words, [*words[1:], ""], strict=False):
        yield word
        if word in bare and following != bare[word] and isinstance(number(following, {}), str):
            yield bare[word]
