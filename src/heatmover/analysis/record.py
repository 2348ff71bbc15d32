"""How a study was made, as plain values for JSON: input, parameters, versions and seconds."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

from heatmover._progress import Progress
from heatmover.cohort import Cohort

__all__ = ["Clock", "StudyRecord", "input_record", "versions"]

PACKAGES = ("heatmover", "numpy", "scipy", "scikit-learn", "numba", "pandas", "anndata", "plotly")


@final
@dataclass(frozen=True)
class StudyRecord:
    """How a study was made.

    Attributes
    ----------
    input
        What was read: name, format, checksum, numbers of samples and cells, names of dimensions; None if nothing was.
    parameters
        What was asked for: `StudyParameters` by name.
    compared
        How the samples were compared: in memory, or in pieces.
    seconds
        That each stage took, by its name.
    versions
        Of Python and of packages, by name.

    Examples
    --------
    >>> StudyRecord(None, {"random_state": 0}, {"how": "before"}, {}, versions()).parameters["random_state"]
    0
    """

    input: Mapping[str, Any] | None
    parameters: Mapping[str, Any]
    compared: Mapping[str, Any]
    seconds: Mapping[str, float]
    versions: Mapping[str, str]


def input_record(cohort: Cohort) -> dict[str, Any]:
    """Return what the input was; its name without the folder, which is nobody else's business."""
    source = cohort.source
    return {
        "name": Path(source.path).name,
        "format": source.format,
        "checksum": source.checksum,
        "sample_sheet": Path(source.sample_sheet).name,
        "samples": len(cohort.names),
        "cells": cohort.n_cells,
        "dimensions": list(cohort.features),
        "varying": dict(cohort.varying),
        "unused": dict(cohort.unused),
        **({"measured": cohort.measured} if cohort.measured else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that numbers depend on."""
    known = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            known[package] = version(package)
        except PackageNotFoundError:  # an extra that this result did not need
            continue
    return known


@final
class Clock:
    """Progress that passes everything on and notes how long each stage took."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner
        self._begun = 0.0
        self._name = ""
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """What each stage took that has ended, to the millisecond."""
        return {name: round(value, 3) for name, value in self._seconds.items()}

    def stage(self, name: str, total: int) -> None:
        """Begin a stage."""
        self.end()
        self._name, self._begun = name, time.perf_counter()
        self._inner.stage(name, total)

    def advance(self, steps: int = 1) -> None:
        """Pass it on."""
        self._inner.advance(steps)

    def end(self) -> None:
        """End the stage that runs."""
        if self._name:
            self._seconds[self._name] = time.perf_counter() - self._begun
            self._name = ""
