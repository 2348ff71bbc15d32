"""Record how a study was made: input, parameters, versions, time per stage; for `study`, `cli`, `report`; no files."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

from heatmover._base.progress import Progress
from heatmover.cohort import Cohort

# Packages whose versions are recorded.
PACKAGES = ("heatmover", "numpy", "scipy", "scikit-learn", "numba", "pandas", "anndata", "plotly")


@final
@dataclass(frozen=True)
class StudyRecord:
    """Provenance of a study: input, parameters, method, duration and versions.

    Attributes
    ----------
    input
        Description of the input: name, format, checksum, numbers of samples and cells, names of the dimensions; None if
        no file was read.
    parameters
        Parameters of the study, by name.
    compared
        Method of the comparison: in memory, or out of core.
    seconds
        Duration of each stage in seconds, by name of the stage.
    versions
        Versions of Python and of packages, by name.

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
    """Return the description of the input for the record; leave out the folder, whose name may be private."""
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
    """Return the versions of Python and of the packages that influence results."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:  # the package belongs to an extra that is not installed
            continue
    return installed


@final
class Clock:
    """Progress that forwards all calls and records the duration of each stage.

    Attributes
    ----------
    seconds
        Duration of each finished stage in seconds, rounded to milliseconds, by name of the stage.
    """

    def __init__(self, inner: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = inner
        self._begun = 0.0
        self._name = ""

    @classmethod
    def of(cls, progress: Progress) -> Clock:
        """Return a clock that forwards to ``progress``, or ``progress`` itself if it already is a clock."""
        return progress if isinstance(progress, cls) else cls(progress)

    def stage(self, name: str, total: int) -> None:
        """Begin a stage."""
        self.end()
        self._name, self._begun = name, time.perf_counter()
        self._inner.stage(name, total)

    def advance(self, steps: int = 1) -> None:
        """Report finished steps to the wrapped progress."""
        self._inner.advance(steps)

    def end(self) -> None:
        """End the current stage."""
        if self._name:
            passed = time.perf_counter() - self._begun
            self.seconds[self._name] = round(self.seconds.get(self._name, 0.0) + passed, 3)
            self._name = ""
