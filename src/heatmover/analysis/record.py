"""How a result was made, as plain values for JSON: input, settings, versions, figures and seconds."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, final

import numpy as np

from heatmover._progress import Progress
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.examination import Finding
from heatmover.cohort import Cohort

__all__ = ["Clock", "finding_record", "how_made", "input_record"]

PACKAGES = ("heatmover", "numpy", "scipy", "scikit-learn", "numba", "pandas", "anndata", "plotly")


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
    }


def how_made(comparison: Comparison) -> dict[str, Any]:
    """Return the settings of a comparison, what was chosen by itself and why, and the versions of packages."""
    model = comparison.model
    settings = {name: value for name, value in model.get_params(deep=False).items() if name not in {"graph", "n_jobs"}}
    return {
        "samples": len(comparison.names),
        "cells": int(comparison.sizes.sum()),
        "graph": dict(comparison.graph.construction),
        "model": settings | {"method_": model.method_, "method_reason_": model.method_reason_},
        "max_scale": {"value": int(model.max_scale_), "reason": model.max_scale_reason_},
        "landmarks": None if comparison.landmark_loss is None else asdict(comparison.landmark_loss),
        "diagnosis": asdict(comparison.diagnosis),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # an extra that this result did not need
            continue
    return found


def finding_record(finding: Finding) -> dict[str, Any]:
    """Return the figures of a finding; JSON knows no infinity, which becomes text."""
    return {
        "variable": finding.variable,
        "kind": finding.kind,
        "samples": finding.n_samples,
        "missing": finding.n_missing,
        "groups": dict(finding.groups),
        "blocks": finding.blocks,
        "q_value": finding.q_value,
        "tests": {
            name: {
                "statistic": test.statistic if np.isfinite(test.statistic) else str(test.statistic),
                "effect": test.effect if np.isfinite(test.effect) else str(test.effect),
                "p_value": test.p_value,
                "permutations": len(test.null),
                "complete": test.complete,
            }
            for name, test in finding.tests.items()
        },
        "note": finding.note,
    }


@final
class Clock:
    """Progress that passes everything on and notes how long each stage took."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner
        self._begun = 0.0
        self._name = ""
        self.seconds: dict[str, float] = {}

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
            self.seconds[self._name] = time.perf_counter() - self._begun
            self._name = ""
