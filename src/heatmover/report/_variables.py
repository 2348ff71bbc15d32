"""The variables of the samples as colours: groups of few names, numbers, and what is missing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from heatmover.analysis.examination import kind_of, label
from heatmover.analysis.study import Study
from heatmover.measures import is_missing
from heatmover.report._templates import rounded

__all__ = ["colorings", "first_coloring"]

# With more no eye tells the colours apart; the smallest groups become one.
MOST_GROUPS = 30
OTHER = "other"


def colorings(study: Study) -> list[dict[str, Any]]:
    """Return what the samples can be coloured by: every variable that varies, and the number of cells.

    Groups come as names, counts and one code for each sample (-1 for missing), numbers as values (None for missing).
    """
    found = [_coloring(str(name), study.variables[name].tolist()) for name in study.variables.columns]
    sizes = {"name": "number of cells", "kind": "number", "values": study.comparison.sizes.tolist()}
    return [*(coloring for coloring in found if coloring is not None), sizes]


def first_coloring(study: Study, choices: list[dict[str, Any]]) -> int:
    """Return the place of the first variable examined among the choices; the number of cells if there is none."""
    place = {choice["name"]: i for i, choice in reversed(list(enumerate(choices)))}
    tested = [finding.variable for finding in study.findings if finding.answer is not None]
    return next((place[name] for name in tested if name in place), len(choices) - 1 if not tested else 0)


def _coloring(name: str, values: list[Any]) -> dict[str, Any] | None:
    known = [value for value in values if not is_missing(value)]
    if len({str(value) for value in known}) < 2:
        return None
    # An infinite value has no colour; in the page it is missing.
    if kind_of([value for value in known if value not in (np.inf, -np.inf)]) == "number":
        numbers = [np.nan if is_missing(value) else float(value) for value in values]
        return {"name": name, "kind": "number", "values": rounded(numbers)}
    texts = ["" if is_missing(value) else label(value) for value in values]
    counts = Counter(text for text, value in zip(texts, values, strict=True) if not is_missing(value))
    if len(counts) > MOST_GROUPS and max(counts.values()) == 1:
        return None  # a name for every sample
    kept, other = _largest(counts)
    codes = {group: code for code, group in enumerate(kept)}
    return {
        "name": name,
        "kind": "groups",
        "groups": [*kept, *([f"{OTHER} ({len(other)} groups)"] if other else [])],
        "counts": [*(counts[group] for group in kept), *([sum(counts[group] for group in other)] if other else [])],
        "codes": [
            -1 if is_missing(value) else codes.get(text, len(kept)) for text, value in zip(texts, values, strict=True)
        ],
    }


def _largest(counts: Counter[str]) -> tuple[list[str], list[str]]:
    """Return the groups to show, sorted, and those to put together."""
    if len(counts) <= MOST_GROUPS:
        return sorted(counts), []
    by_size = sorted(counts, key=lambda group: (-counts[group], group))
    return sorted(by_size[: MOST_GROUPS - 1]), by_size[MOST_GROUPS - 1 :]
