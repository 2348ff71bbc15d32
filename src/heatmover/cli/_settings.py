"""What `compare` and `doctor` are asked for: options as typed, made into the values that the package takes."""

from __future__ import annotations

import csv
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

from heatmover._progress import Progress
from heatmover._validation import check_integer, check_option
from heatmover._words import quoted_path
from heatmover.analysis import Comparer, InMemory, StudyParameters
from heatmover.cli._options import OPTIONS, SMALLEST, number
from heatmover.cohort import Cohort, read_cohort
from heatmover.cohort.formats.choose import format_of
from heatmover.cohort.read import check_measurement
from heatmover.errors import InvalidInputError, argument
from heatmover.report.folder import EVERY
from heatmover.scale import InPieces, connected
from heatmover.scale import read_cohort as read_in_pieces

__all__ = [
    "Reading",
    "Settings",
    "check_named",
    "check_outside",
    "check_places",
    "comparer_of",
    "parse_names",
    "pieces_of",
    "settings_of",
]

# Words that stand for a value of their option.
WORDS: dict[str, dict[str, Any]] = {
    "landmarks": {"auto": "auto", "none": None},
    "components": {"all": "all"},
    "equal_cells": {SMALLEST: True},
}
# Options of a study that are numbers: what is none goes to the value that refuses it, with its own sentence.
NUMBERS = (
    "clusters",
    "permutations",
    "bootstrap",
    "equal_cells",
    "min_cells",
    "neighbors",
    "landmarks",
    "seed",
    "threads",
)
DEFAULT_MEMORY = "4 GB"
# Files by which a zarr store is known, and what else is one.
STORE = (".zgroup", ".zmetadata", "zarr.json")
ANY_STORE = "every atlas, index, saved model, checkpoint and zarr store"


def check_named(**options: str | None) -> None:
    """Raise if an option names no place: to the system an empty name is the current folder, and NUL ends a name."""
    for name, text in options.items():
        if text is not None and (not text or "\0" in text):
            option = name.upper() if name in ("file", "atlas") else f"--{name.replace('_', '-')}"
            advice = "'.' is the current folder" if name == "out" and not text else ""
            raise InvalidInputError(f"{option} to be a path", quoted_path(text) if text else "an empty one", advice)


def check_places(
    out: str, file: str, sample_sheet: str | None, checkpoint: str | None = None, names: Sequence[str] = EVERY
) -> Path:
    """Return the place of the results, or raise if one place would spoil what is at another.

    Results must not replace an input, nor lie in a store of which each file means something; nor must a checkpoint.

    Parameters
    ----------
    out
        Folder for the results, or a file.
    file, sample_sheet
        What is read.
    checkpoint
        The store that a run in pieces keeps.
    names
        Of the files in the folder; an empty name is ``out`` itself.
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


@final
@dataclass(frozen=True)
class Reading:
    """What to read and how: arguments of `heatmover.read_cohort` by their names."""

    path: str
    sample_key: str | None = None
    representation: tuple[str, ...] = ()
    no_features: tuple[str, ...] = ()
    sample_sheet: str | None = None
    standardize: bool = False
    # As typed; checked when it is made.
    n_components: Any = None
    cofactor: Any = None
    transform: Any = None
    compensate: bool | None = None
    on_missing: Literal["refuse", "drop"] = "refuse"
    skip_unlisted: bool = False

    def __post_init__(self) -> None:
        check_option("on_missing", self.on_missing, ("refuse", "drop"))
        if self.n_components is not None and self.n_components != "all":
            if isinstance(self.n_components, str):
                raise InvalidInputError(
                    f"{argument('n_components')} to be a whole number of at least 1, or 'all'", repr(self.n_components)
                )
            check_integer("n_components", self.n_components, minimum=1)
        check_measurement(self.cofactor, self.transform, self.compensate)

    def read(self, required: Sequence[str], seed: int, progress: Progress, comparer: Comparer | None = None) -> Cohort:
        """Read the cohort; variables that are required are looked for before any value is."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        named |= {"no_features": list(self.no_features), "representation": self._representation()}
        # What compares in pieces looks at every value itself.
        read = read_cohort
        if isinstance(comparer, InPieces):
            read = partial(read_in_pieces, client=comparer.client, memory=comparer.memory)
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
    for field in fields(value):
        given = getattr(value, field.name)
        if field.name == "path" or given == field.default:
            continue
        option = OPTIONS[field.name]
        if isinstance(given, bool):
            yield option if given else option.replace("--", "--no-", 1)
        elif isinstance(given, tuple):
            for item in given:
                yield from (option, f'"{item}"' if field.name == "representation" and "," in item else item)
        else:
            # A name is as it was typed; None, of landmarks, is the word "none".
            text = given if isinstance(given, str) else str(given).lower()
            yield from (option, Path(text).name if field.name == "sample_sheet" else text)


def settings_of(asked: Mapping[str, Any]) -> Settings:
    """Return the settings of options as they were typed."""
    typed = dict(asked) | {name: number(asked[name], WORDS.get(name, {})) for name in NUMBERS}
    study = StudyParameters(
        variables=typed["color"] or None,
        block=typed["block"] or None,
        adjust=typed["adjust"] or (),
        formula=typed["formula"],
        align_batch=typed["align_batch"],
        anchors=typed["anchors"],
        cells=typed["cells"],
        clusters=typed["clusters"],
        reference=typed["reference"],
        numeric=typed["numeric"] or (),
        categorical=typed["categorical"] or (),
        min_cells=typed["min_cells"],
        allow_components=typed["allow_components"],
        n_neighbors=typed["neighbors"],
        landmarks=typed["landmarks"],
        equal_cells=False if typed["equal_cells"] is None else typed["equal_cells"],
        bias=typed["bias"],
        n_bootstrap=typed["bootstrap"],
        units=typed["units"],
        n_permutations=typed["permutations"],
        random_state=typed["seed"],
    )
    return Settings(reading_of(asked), study, typed["threads"])


def reading_of(asked: Mapping[str, Any]) -> Reading:
    """Return what is asked of a file by options as they were typed."""
    return Reading(
        asked["file"],
        sample_key=asked["sample_key"],
        representation=parse_names("--rep", asked["rep"] or ()),
        no_features=tuple(asked["annotation"] or ()),
        sample_sheet=asked["sample_sheet"],
        standardize=asked["standardize"],
        n_components=number(asked["components"], WORDS["components"]),
        cofactor=number(asked["cofactor"]),
        transform=asked["transform"],
        compensate=asked["compensate"],
        on_missing=asked["missing"],
        skip_unlisted=asked["skip_unlisted"],
    )


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
def comparer_of(
    settings: Settings, memory: str | None, scheduler: str | None, checkpoint: str | None, resume: bool
) -> Iterator[Comparer]:
    """Give what compares: all cells in memory, or in pieces if an option of these asks for it.

    Everything that can be refused is refused here, before a cell is read.
    """
    with pieces_of(settings.n_jobs, memory, scheduler, checkpoint, resume, settings.study) as pieces:
        if pieces is None:
            in_memory = InMemory(settings.n_jobs)
            in_memory.check(settings.study)
            yield in_memory
        else:
            yield pieces


@contextmanager
def pieces_of(
    n_jobs: int | None,
    memory: str | None,
    scheduler: str | None,
    checkpoint: str | None,
    resume: bool,
    study: StudyParameters,
) -> Iterator[InPieces | None]:
    """Give what reads cells in pieces, if an option of these asks for it, or None; ``study`` says for what."""
    if not resume and memory is scheduler is checkpoint is None:
        yield None
        return
    pieces = InPieces(
        memory=DEFAULT_MEMORY if memory is None else memory, checkpoint=checkpoint, resume=resume, n_jobs=n_jobs
    )
    pieces.check(study)
    with connected(scheduler) as client:
        yield replace(pieces, client=client)
