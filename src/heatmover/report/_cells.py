"""The section on which kinds of cells differ between groups of samples."""

from __future__ import annotations

from typing import Any

from heatmover.analysis.cell_types import LEVEL, CellContrast, CellKind
from heatmover.analysis.study import Study
from heatmover.report._section import Section
from heatmover.report._templates import fill, shortened

__all__ = ["cell_sections"]

# A table that a reader still reads; the others are added up in one line, and all are in cell-types.csv.
MOST_KINDS = 30
# Colour, sign and word say the same, for those who cannot see one of them.
MARKS = {"more": "\u25b2", "less": "\u25bc", "": "\u2013"}


def cell_sections(study: Study) -> list[Section]:
    """Return the section on kinds of cells, or nothing if the study has no contrast."""
    contrast = study.contrast
    if contrast is None:
        return []
    shown, rest = contrast.kinds[:MOST_KINDS], contrast.kinds[MOST_KINDS:]
    largest = max((kind.share for kind in shown), default=0.0)
    html = fill(
        "cells.html",
        contrast=contrast,
        rows=[_row(kind, contrast, largest) for kind in shown],
        rest={"count": len(rest), "share": _percent(sum(kind.share for kind in rest))} if rest else None,
        level=f"{100 * LEVEL:.0f} %",
        group=shortened(contrast.group, 40),
        reference=shortened(contrast.reference, 40),
        n_different=len(contrast.different),
    )
    return [Section("cells", "Which cells differ", html)]


def _row(kind: CellKind, contrast: CellContrast, largest: float) -> dict[str, Any]:
    """Return what the table shows of a kind, in words."""
    return {
        "name": kind.name,
        "cells": kind.cells,
        "share": _percent(kind.share),
        # Bars cannot be shorter than nothing; the number beside says that it is below zero.
        "width": f"{100 * max(kind.share, 0.0) / largest:.1f}" if largest > 0 else "0",
        "direction": kind.direction or "same",
        "mark": MARKS[kind.direction],
        "words": _words(kind, contrast),
        "in_group": _percent(kind.in_group),
        "in_reference": _percent(kind.in_reference),
        "ratio": f"{kind.ratio:.2g}",
        "q": kind.q_value,
    }


def _words(kind: CellKind, contrast: CellContrast) -> str:
    if not kind.direction:
        return "no sign of it"
    return f"{kind.direction} in {shortened(contrast.group, 40)}"


def _percent(share: float) -> str:
    """Return a share in per cent, with a minus that is one; a digit after the point where it matters."""
    value = 100 * share
    text = f"{value:.1f}" if 0 < abs(value) < 9.95 else f"{value:.0f}"
    return ("0" if float(text) == 0 else text.replace("-", "\u2212")) + " %"
