"""Turn descriptions of parameters into command-line options, typed text into settings, open cohorts; for `cli` only."""

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
from heatmover.study.scale.out_of_core import InPieces
from heatmover.study.scale.out_of_core import read_cohort as read_out_of_core
from heatmover.study.scale.stages import connected, is_checkpoint

INPUT, LARGE = "Input", "Out of core"
# Heading and order of the options that most users need.
MAIN = "Main options"
FIRST = (
    "sample_key", "out", "variables", "block", "adjust", "cells", "representation", "sample_sheet", "standardize",
    "force",
)  # fmt: skip
# Order of the headings in the help; options without a heading belong to one command only.
HEADINGS = (MAIN, None, INPUT, TESTS, METHOD, LARGE, RUN)
DEFAULT_MEMORY = "4 GB"
# Largest product samples^2 * cells of a demo. The embedding takes about 4 * 10 * samples^2 * cells bytes, which is 3 GB
# at this limit.
LARGEST_DEMO = 80_000_000
# Number of candidates for the sample column that an error lists.
CANDIDATES = 6
# Files that mark a zarr store, such as an atlas, an index or a model.
STORE = (".zgroup", ".zmetadata", "zarr.json")
ANY_STORE = "all atlases, indexes, saved models, checkpoints and zarr stores"

Made = TypeVar("Made")


def check_named(**options: str | None) -> None:
    """Raise an error if a path is empty or contains NUL.

    An empty path would mean the current folder, and no path can contain NUL.
    """
    for name, text in options.items():
        if text is not None and (not text or "\0" in text):
            option = name.upper() if name in ("file", "atlas") else f"--{name.replace('_', '-')}"
            advice = "'.' is the current folder" if name == "out" and not text else ""
            raise InvalidInputError(f"{option} to be a path", quoted_path(text) if text else "an empty path", advice)


def check_places(
    out: str, names: Sequence[str], file: str, sample_sheet: str | None, checkpoint: str | None = None
) -> Path:
    """Return the path of the results, or raise an error if writing would damage the input or a store.

    Results and checkpoint must not replace an input. They must not lie inside a store, because every file in a store
    belongs to the store.

    Parameters
    ----------
    out
        Folder for the results, or a file.
    names
        Names of the files in the folder; an empty name means ``out`` itself.
    file, sample_sheet
        Paths of the input.
    checkpoint
        Folder of the checkpoint of an out-of-core run.
    """
    check_named(file=file, sample_sheet=sample_sheet, checkpoint=checkpoint, out=out)
    for path in (file, sample_sheet):
        if path and any(_same(Path(path), Path(out) / name) for name in names):
            raise InvalidInputError(
                "an --out that does not overwrite the input",
                f"that a result would overwrite {quoted_path(path)}",
                "choose another --out",
            )
    if checkpoint:
        check_outside("--checkpoint", checkpoint, {"the input": file}, itself=False)
    check_outside("--out", out, {"the input": file, "--checkpoint": checkpoint})
    return Path(out)


def check_outside(option: str, place: str, others: Mapping[str, str | None], *, itself: bool = True) -> None:
    """Raise an error if an output path is, or lies inside, a store or one of the other paths.

    Parameters
    ----------
    option
        Option that names the output path.
    place
        Output path.
    others
        Other paths; the keys are their names in messages. Results may lie inside a folder of FCS files.
    itself
        Whether an output path that is itself a store raises an error. False for stores that are replaced or resumed.
    """
    known = {Path(os.path.realpath(path)): what for what, path in others.items() if path}
    real = Path(os.path.realpath(place))
    for folder in (real, *real.parents):
        is_store = any(os.path.lexists(folder / name) for name in STORE) or is_checkpoint(folder)
        what = known.get(folder, ANY_STORE if is_store and (itself or folder != real) else "")
        if what and (is_store or what != "the input"):
            where = "" if folder == real else f" in {quoted_path(str(folder))}"
            raise InvalidInputError(
                f"{option} outside of {what}", f"{quoted_path(place)}{where}", f"choose another {option}"
            )


def _same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one of the paths does not exist
        return False


def check_sample_key(file: str, sample_key: str | None) -> None:
    """If a file needs a sample column and the user did not name one, raise an error that lists likely columns."""
    if sample_key is not None or format_of(Path(file)) == "fcs":
        return
    columns = candidate_columns(file)
    likely = [f"{short(each.column)} ({counted(each.n_values, 'value')})" for each in columns[:CANDIDATES]]
    more = f" and {len(columns) - CANDIDATES} more" if len(columns) > CANDIDATES else ""
    raise InvalidInputError(
        "--sample-key to name the column with the sample of each cell",
        f"none; candidates: {', '.join(likely)}{more}, perhaps --sample-key {columns[0].column}",
        f"heatmover doctor {file} shows more",
    )


def candidate_columns(file: str) -> list[Candidate]:
    """Return the columns that could name the samples, the likeliest first; raise an error if there are none."""
    columns = candidates(file)
    if not columns:
        raise InvalidInputError("--sample-key to name the column of the samples", "no suitable column")
    return columns


def _components(name: str, count: object) -> object:
    if isinstance(count, str) and count != "all":
        raise InvalidInputError(f"{argument(name)} to be a whole number of at least 1, or 'all'", repr(count))
    return count if count == "all" else check_integer(name, count, minimum=1)


@final
@dataclass(frozen=True)
class Reading:
    """Arguments of `heatmover.read_cohort`, by name."""

    # fmt: off
    path: str = described(
        None, "FILE", "FILE", None, required=True,
        help="AnnData (.h5ad, .zarr), table of cells (.csv, .tsv, .csv.gz, .parquet), or folder of .fcs files.")
    sample_key: str | None = described(
        None, "--sample-key -s", "COLUMN", INPUT,
        help="Column with the sample of each cell; for FCS files, the sample sheet's column of sample names.")
    representation: tuple[str, ...] = described(
        (), "--rep -r", "NAMES", INPUT,
        help="Representation for cell-cell distances: an obsm key, X, or comma-separated columns.")
    no_features: tuple[str, ...] = described(
        (), "--annotation", "COLUMN", INPUT,
        help="Treat this column as metadata, not as a feature; repeatable.")
    sample_sheet: str | None = described(
        None, "--sample-sheet", "FILE", INPUT, help="A .csv or .tsv with one row of metadata per sample.")
    skip_unlisted: bool = described(
        False, "--skip-unlisted", None, INPUT,
        help=f"Leave out files or samples that {argument('sample_sheet')} does not list.")
    standardize: bool = described(
        False, "--standardize", None, INPUT, help="Give every feature mean 0 and variance 1.")
    n_components: int | Literal["all"] | None = described(
        None, "--components", "N|all", INPUT, words={"all": "all"}, check=_components,
        help="Reduce the features to N principal components, or keep all; required for more than 100 features.")
    cofactor: float | None = described(
        None, "--cofactor", "NUMBER", INPUT,
        help="FCS: transform by arcsinh(value / NUMBER); 5 is usual for mass cytometry, 150 for flow cytometry.")
    transform: str | None = described(
        None, "--transform", "arcsinh|logicle", INPUT, shown="as in the file",
        help=f"FCS: transform all channels except scatter and time; arcsinh needs {argument('cofactor')}.")
    compensate: bool | None = described(
        None, "--compensate/--no-compensate", None, INPUT, shown="if the files have a spillover matrix",
        help="FCS: compensate spillover between detectors by the matrix in each file.")
    on_missing: Literal["refuse", "drop"] = described(
        "refuse", "--missing", "refuse|drop", INPUT,
        check=check_one_of("refuse", "drop"),
        help="If a feature of a cell is NaN or infinite, refuse raises an error, and drop leaves out the cell.")
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)
        check_measurement(self.cofactor, self.transform, self.compensate)

    def read(self, required: Sequence[str], seed: int, progress: Progress, comparer: Comparer | None = None) -> Cohort:
        """Read the cohort; required variables are checked before any value is read."""
        named = {name: getattr(self, name) for name in descriptions(Reading)}
        named |= {"no_features": list(self.no_features), "representation": self._representation()}
        # An out-of-core run checks values while it draws cells, so it needs no separate pass for the check.
        read = read_cohort
        if isinstance(comparer, InPieces):
            read = partial(read_out_of_core, memory=comparer.memory)
        return read(named.pop("path"), **named, required=list(required), random_state=seed, progress=progress)

    def _representation(self) -> str | tuple[str, ...] | None:
        if not self.representation:
            return None
        # A single name is a matrix if the file is an AnnData, and a column if it is a table or an FCS folder.
        matrix = len(self.representation) == 1 and format_of(Path(self.path)) in ("h5ad", "zarr")
        return self.representation[0] if matrix else self.representation


@final
@dataclass(frozen=True)
class Settings:
    """Settings that determine the results: input, study parameters and number of threads."""

    reading: Reading
    study: StudyParameters
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        if self.n_jobs is not None:
            check_integer("n_jobs", self.n_jobs, minimum=1)

    def read(self, progress: Progress, comparer: Comparer | None = None) -> Cohort:
        """Read the cohort for a comparer; requested variables are checked before any value is read."""
        cells, required = self.study.cells, self.study.required
        kept_apart = (*self.reading.no_features, *([] if cells is None else [cells]))
        reading = replace(self.reading, no_features=kept_apart)
        return reading.read(required, self.study.random_state, progress, comparer)

    def command(self, name: str, further: Sequence[str] = ()) -> dict[str, Any]:
        """Return the command line, so that users can repeat the run; paths are reduced to file names."""
        words = [word for value in (self.reading, self.study) for word in _words(value)]
        return {"name": name, "line": shlex.join(["heatmover", name, Path(self.reading.path).name, *words, *further])}


def _words(value: Reading | StudyParameters) -> Iterator[str]:
    """Yield the words of all options whose value is not the default."""
    for name, parameter in descriptions(type(value)).items():
        given = getattr(value, name)
        if name == "path" or given == parameter.default:
            continue
        option = OPTIONS[name]
        if isinstance(given, bool):
            yield option if given else option.replace("--", "--no-", 1)
        elif isinstance(given, tuple):
            for item in given:
                yield from (option, f'"{item}"' if name == "representation" and "," in item else item)
        else:
            # Text keeps its case; None (for example no landmarks) becomes the word "none".
            text = given if isinstance(given, str) else str(given).lower()
            yield from (option, Path(text).name if name == "sample_sheet" else text)


def settings_of(typed: Mapping[str, Any]) -> Settings:
    """Return the settings from options as typed."""
    return Settings(made(Reading, typed), made(StudyParameters, typed), made(Running, typed).n_jobs)


def parse_names(option: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the names in the values of a repeatable option; a value may hold several names, separated as in CSV.

    Examples
    --------
    >>> parse_names("--rep", ["CD4,CD8", '"a, b"'])
    ('CD4', 'CD8', 'a, b')
    """
    try:
        names = [name.strip() for line in csv.reader(list(values), skipinitialspace=True, strict=True) for name in line]
    except csv.Error as error:
        raise InvalidInputError(f"{option} to be names separated by commas", f"{list(values)!r} ({error})") from None
    if any(not name for name in names):
        raise InvalidInputError(f"{option} to be names separated by commas", f"{', '.join(values)!r}")
    return tuple(names)


@contextmanager
def comparer_of(settings: Settings, running: Running) -> Iterator[Comparer]:
    """Yield the comparer: in memory, or out of core if any out-of-core option is set.

    Settings are checked before any cell is read.
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
    """Yield an InPieces if any out-of-core option is set, else None; raise an error if ``study`` does not allow it."""
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
    """Options for running a command and for its output."""

    # fmt: off
    memory: str | None = described(
        None, "--memory", "SIZE", LARGE, shown="all cells in memory; 4GB if another out-of-core option is set",
        help="Process the cells out of core, in at most SIZE of memory, such as 4GB or 800MB.")
    scheduler: str | None = described(
        None, "--scheduler", "ADDRESS", LARGE, shown="threads of this process",
        help="Run on the Dask cluster at ADDRESS, such as tcp://10.0.0.5:8786.")
    checkpoint: str | None = described(
        None, "--checkpoint", "PATH", LARGE, help="Save intermediate results in the folder PATH.")
    resume: bool = described(
        False, "--resume", None, LARGE,
        help="Resume from the checkpoint if it exists; the result is bit-identical to an uninterrupted run.")
    out: str = described("", "--out -o", "DIR", RUN, required=True, help="Folder for the results.")
    title: str | None = described(None, "--title", "TEXT", RUN, help="Title of the report.")
    n_jobs: int | None = described(
        None, "--threads", "N", RUN, shown="all cores", check=check_whole(1), help="Number of threads.")
    quiet: bool = described(False, "--quiet -q", None, RUN, help="Print errors only.")
    force: bool = described(False, "--force -f", None, RUN, help="Replace the results of an earlier run.")
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)


@final
@dataclass(frozen=True)
class DemoOptions:
    """Options of `heatmover demo`, checked on creation."""

    # fmt: off
    out: str = described("heatmover-demo", "--out -o", "DIR", RUN, help="Folder for the results.")
    # These minimums ensure two samples of each condition, and more points than neighbors in the graph.
    samples: int = described(
        30, "--samples", "N", None, check=check_whole(4), help="Number of samples, half of them cases; at least 4.")
    cells: int = described(
        200, "--cells", "N", None, check=check_whole(10), help="Number of cells per sample; at least 10.")
    effect: float = described(
        2.0, "--effect", "NUMBER", None, check=lambda name, given: check_number(name, given, above=-1, at_most=1000),
        help="In cases, the expected odds of one branch are multiplied by 1 + NUMBER; 0 for no difference.")
    random_state: int = field(default=0, metadata={"parameter": descriptions(StudyParameters)["random_state"]})
    # fmt: on

    def __post_init__(self) -> None:
        check_described(self)
        if self.samples**2 * self.cells > LARGEST_DEMO:
            raise InvalidInputError(
                f"a demo that fits into memory (samples^2 * cells of at most {LARGEST_DEMO:,})",
                f"{counted(self.samples, 'sample')} of {counted(self.cells, 'cell')}",
                "use fewer --samples or --cells",
            )


@final
@dataclass(frozen=True)
class BuildOptions:
    """Options of `heatmover atlas build` only."""

    out: str = described("", "--out -o", "DIR", RUN, required=True, help="Folder to create, such as kidney.atlas.")


@final
@dataclass(frozen=True)
class MapOptions:
    """Atlas to read, and options for the report on mapped samples."""

    # fmt: off
    atlas: str = described("", "ATLAS", "ATLAS", None, required=True, help="Folder of an atlas.")
    nearest: int | None = described(
        None, "--nearest -k", "N", None, shown="10, if available",
        help="Number of nearest reference samples to report and to use for votes.")
    predict: tuple[str, ...] = described(
        (), "--predict", "VARIABLE", None, help="Reference metadata to predict; repeatable.")
    out: str | None = described(
        None, "--out -o", "DIR", RUN,
        help="Folder for the report and the table, or a name ending in .csv for the table only.")
    # fmt: on


# Command-line option of each Python argument that has one.
OPTIONS: Mapping[str, str] = {
    name: parameter.option.split()[0].split("/")[0]
    for parameters in (DemoOptions, MapOptions, Reading, Running, StudyParameters)
    for name, parameter in descriptions(parameters).items()
    if parameter.option.startswith("-")
} | {"client": "--scheduler", "pieces": "--memory"}

# Parameters of each command: all parameters of a class, or only the listed ones.
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
    """Return the options and arguments of a command, which typer creates from the signature of a function."""
    taken = [
        (name, parameter, get_type_hints(parameters)[name])
        for parameters, named in TAKES[command].items()
        for name, parameter in descriptions(parameters).items()
        if not named or name in named
    ]
    taken = [
        (
            name,
            replace(parameter, heading=MAIN if name in FIRST and parameter.heading is not None else parameter.heading),
            hint,
        )
        for name, parameter, hint in taken
    ]
    taken.sort(
        key=lambda each: (
            _is_option(each[1]),  # arguments come before options
            HEADINGS.index(each[1].heading),
            each[1].heading == MAIN and FIRST.index(each[0]),
        )
    )

    def function() -> None:
        """Carry the signature of a command."""

    signature = [_typed(*each) for each in taken]
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in signature}
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return list(typer.main.get_command(app).params)


def _is_option(parameter: Parameter) -> bool:
    """Return whether a parameter is an option, not an argument."""
    return parameter.option.startswith("-")


def _typed(name: str, parameter: Parameter, hint: Any) -> inspect.Parameter:
    """Return a parameter of a command; values are accepted as text, which `made` later converts and checks."""
    many = any(get_origin(each) in (tuple, Sequence) for each in (hint, *get_args(hint)))
    kind: Any = list[str] if many else bool if parameter.metavar is None else str
    default = (
        parameter.default
        if kind is bool
        else None
        if many or parameter.shown or parameter.default is None
        else str(parameter.default)
    )
    named: dict[str, Any] = {"help": in_options(Sentence(parameter.help)), "metavar": parameter.metavar}
    if parameter.required:
        default, named["show_default"] = inspect.Parameter.empty, False
    else:
        kind = kind | None if default is None else kind
        named["show_default"] = not parameter.shown
        if parameter.shown:  # typer would write it in parentheses
            named["help"] += f"  [default: {in_options(Sentence(parameter.shown))}]"
    if _is_option(parameter):
        given: Any = typer.Option(*parameter.option.split(), rich_help_panel=parameter.heading, **named)
    else:
        given = typer.Argument(**named)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, given])


def made(kind: type[Made], typed: Mapping[str, Any]) -> Made:
    """Return an object of class ``kind`` from the typed options; options that were not typed get their defaults."""
    hints, values = get_type_hints(kind), {}
    for name, parameter in descriptions(kind).items():
        given = typed.get(name)
        if given is None or (isinstance(given, list | tuple) and not given):
            continue
        is_number = isinstance(given, str) and {int, float} & {hints[name], *get_args(hints[name])}
        values[name] = (
            number(given, parameter.words) if is_number else tuple(given) if isinstance(given, list) else given
        )
    if "representation" in values:
        values["representation"] = parse_names("--rep", values["representation"])
    return kind(**values)


def in_options(sentence: str) -> str:
    """Return a sentence in which arguments are replaced by options of the command line.

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
        if not name:  # words that only Python users need
            return ""
        return name if value is None else f"{name}={value}"
    given = None if value is None else literal_eval(value)
    # A flag has no value; the Python value None is the word "none" on the command line.
    if value is None or given is True:
        return OPTIONS[name]
    if given is False:
        return OPTIONS[name].replace("--", "--no-", 1)
    every = given if isinstance(given, list) else ["none" if given is None else given]
    return " ".join(f"{OPTIONS[name]} {shlex.quote(str(each))}" for each in every)


def number(text: str, words: Mapping[str, Any]) -> Any:
    """Return the number that was typed, or the value of a word; other text is returned unchanged and rejected later.

    Examples
    --------
    >>> number("30", {}), number("2.5", {}), number("AUTO", {"auto": "auto"}), number("many", {})
    (30, 2.5, 'auto', 'many')
    """
    if text.lower() in words:
        return words[text.lower()]
    try:
        # A whole number that is too large for a float becomes infinity, which the caller rejects.
        return int(text) if isfinite(float(text)) else float(text)
    except ValueError:
        with suppress(ValueError):
            return float(text)
    return text


def spelled_out(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command, and insert the default of options such as --equal-cells if no number follows."""
    bare = {
        OPTIONS[name]: next(iter(parameter.words))
        for name, parameter in descriptions(StudyParameters).items()
        if (parameter.metavar or "").startswith("[")
    }
    for word, following in zip(words, [*words[1:], ""], strict=False):
        yield word
        if word in bare and following != bare[word] and isinstance(number(following, {}), str):
            yield bare[word]
