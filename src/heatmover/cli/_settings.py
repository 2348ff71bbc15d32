"""What `compare` and `doctor` are asked for: read from options, checked, and handed to the package."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, final

from heatmover._progress import Progress
from heatmover._validation import check_integer, check_number, check_option
from heatmover.analysis.study import Study, study_cohort
from heatmover.cli._options import check_seed
from heatmover.cli._words import in_options
from heatmover.cohort import Cohort, read_cohort
from heatmover.cohort.formats.choose import format_of
from heatmover.errors import InvalidInputError

__all__ = ["Settings", "parse_count", "parse_names", "settings_of"]

LANDMARK_WORDS: dict[str, Any] = {"auto": "auto", "none": None}
COMPONENT_WORDS: dict[str, Any] = {"all": "all"}


@final
@dataclass(frozen=True)
class Settings:
    """The options that decide the numbers, checked; the names are those of the options."""

    file: str
    sample_key: str | None = None
    rep: tuple[str, ...] = ()
    annotation: tuple[str, ...] = ()
    sample_sheet: str | None = None
    standardize: bool = False
    components: int | Literal["all"] | None = None
    cofactor: float | None = None
    color: tuple[str, ...] = ()
    block: str | None = None
    cells: str | None = None
    min_cells: int | None = None
    allow_parts: bool = False
    neighbors: int = 30
    landmarks: int | Literal["auto"] | None = "auto"
    missing: str = "refuse"
    permutations: int = 999
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        at_least = {"min_cells": 1, "neighbors": 1, "permutations": 1, "threads": 1}
        for name, minimum in at_least.items():
            if getattr(self, name) is not None:
                check_integer(_option(name), getattr(self, name), minimum=minimum)
        check_option("--missing", self.missing, ("refuse", "drop"))
        check_seed(self.seed)
        if self.cofactor is not None:
            check_number("--cofactor", self.cofactor, above=0)

    def read(self, progress: Progress) -> Cohort:
        """Read the cohort; the variables asked for are looked for before any value is."""
        return read_cohort(
            self.file,
            sample_key=self.sample_key,
            representation=self._representation(),
            required=[*self.color, *([] if self.block is None else [self.block])],
            no_features=[*self.annotation, *([] if self.cells is None else [self.cells])],
            sample_sheet=self.sample_sheet,
            standardize=self.standardize,
            n_components=self.components,
            cofactor=self.cofactor,
            on_missing="drop" if self.missing == "drop" else "refuse",
            random_state=self.seed,
            progress=progress,
        )

    def study(self, cohort: Cohort, progress: Progress) -> Study:
        """Compare the samples and test their variables; notes speak of options, not of arguments."""
        found = study_cohort(
            cohort,
            variables=list(self.color) or None,
            block=self.block,
            cells=self.cells,
            min_cells=self.min_cells,
            allow_parts=self.allow_parts,
            n_neighbors=self.neighbors,
            landmarks=self.landmarks,
            n_permutations=self.permutations,
            random_state=self.seed,
            n_jobs=self.threads,
            progress=progress,
        )
        notes = tuple(in_options(note) for note in found.notes)
        return replace(found, notes=notes, record={**found.record, "notes": list(notes)})

    def command(self, name: str) -> dict[str, Any]:
        """Return the command as it can be given again, with the names of files but not their folders."""
        return {"name": name, "line": shlex.join(["heatmover", name, *self._arguments()])}

    def _arguments(self) -> list[str]:
        words = [Path(self.file).name]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value == field.default or field.name == "threads":  # which changes no number
                continue
            option = _option(field.name)
            if value is True:
                words.append(option)
            elif isinstance(value, tuple):
                words += [word for item in value for word in (option, _written(item) if option == "--rep" else item)]
            else:
                # A name is as it was typed; None, of landmarks, is the word "none".
                text = value if isinstance(value, str) else str(value).lower()
                words += [option, Path(text).name if field.name == "sample_sheet" else text]
        return words

    def _representation(self) -> str | tuple[str, ...] | None:
        if not self.rep:
            return None
        # One name is a matrix of an AnnData file; of a table, or of FCS files, it is the one column wanted.
        matrix = len(self.rep) == 1 and format_of(Path(self.file)) in ("h5ad", "zarr")
        return self.rep[0] if matrix else self.rep


def settings_of(asked: Mapping[str, Any]) -> Settings:
    """Return the settings of options as they were typed."""
    return Settings(
        **{
            **asked,
            "rep": parse_names("--rep", asked["rep"] or ()),
            "annotation": tuple(asked["annotation"] or ()),
            "color": tuple(asked["color"] or ()),
            "components": parse_count("--components", asked["components"], COMPONENT_WORDS),
            "landmarks": parse_count("--landmarks", asked["landmarks"], LANDMARK_WORDS),
        }
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


def parse_count(option: str, value: str | None, words: dict[str, Any]) -> Any:
    """Return the whole number, of at least 1, or the meaning of a word that an option was given."""
    if value is None:
        return None
    if value.lower() in words:
        return words[value.lower()]
    try:
        return check_integer(option, int(value), minimum=1)
    except ValueError:
        named = " or ".join(f"'{word}'" for word in words)
        raise InvalidInputError(f"{option} to be a whole number of at least 1, or {named}", repr(value)) from None


def _written(name: str) -> str:
    return f'"{name}"' if "," in name else name


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
