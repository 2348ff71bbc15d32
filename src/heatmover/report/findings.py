"""The findings as rows of a table, and what to keep in mind before one believes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heatmover._words import counted, percent, verb
from heatmover.analysis.examination import LEVEL, Finding
from heatmover.analysis.study import Study
from heatmover.report.markup import shortened
from heatmover.statistics import DesignResult, TestResult
from heatmover.tables import table_text

__all__ = ["BEFORE", "cautions", "findings_table", "row", "term_rows", "terms_table"]

# Above what to keep in mind, in the page and in the terminal.
BEFORE = "Before you believe it"

NAMES = {"permanova": "PERMANOVA", "distance correlation": "distance correlation"}
BLOCKS = {
    "whole": "Samples of one block change places together: the evidence is the number of blocks.",
    "within": "Values change places only within a block: differences between blocks do not count.",
    "whole within": "Blocks change places as wholes, and only within larger blocks: the evidence is their number.",
}
# Fewer samples in a group: one unusual sample can make or hide a difference.
FEW_IN_GROUP = 5
# With fewer permutations p is coarse: of 19, the best possible is 0.05.
FEW_PERMUTATIONS = 99
FEW_SAMPLES = 10


def row(finding: Finding) -> dict[str, Any]:
    """Return what the table of findings shows of a variable, in words."""
    answer = finding.answer
    return {
        "variable": finding.variable,
        "kind": _kind(finding),
        "samples": finding.n_samples,
        "missing": finding.n_missing,
        "verdict": _verdict(finding),
        "test": "" if answer is None else NAMES[answer.test],
        "effect": "" if answer is None else _effect(finding, answer),
        "p": None if answer is None else answer.p_value,
        "q": finding.q_value,
        "floor": f"smallest possible: {finding.limit[1]:.3g}" if finding.undecided else "",
        "adjusted": finding.beside.removeprefix(", "),
        "pairs": _within_pairs(finding),
        "nearest": _nearest(finding),
        "spread": _spread(finding),
        "smooth": _smooth(finding),
        "words": " ".join(part for part in (finding.describe(), BLOCKS.get(finding.blocks, "")) if part),
    }


def _within_pairs(finding: Finding) -> str:
    pairs = finding.pairs
    return "" if pairs is None else f"{pairs.share} of what varies within the {counted(pairs.n_blocks, pairs.noun)}"


def term_rows(found: DesignResult | None) -> list[dict[str, Any]]:
    """Return what the table of terms shows of a design; the last row is the residual."""
    if found is None:
        return []
    terms = [
        {
            "term": term.term,
            "freedom": term.degrees_of_freedom,
            "share": percent(min(max(term.r_squared, 0.0), 1.0)),
            "left": percent(min(max(term.partial_r_squared, 0.0), 1.0)),
            # Whole blocks of which each is a group of its own can only change names.
            "p": term.p_value if term.smallest_p < 1 else None,
        }
        for term in found.terms
    ]
    total = found.total_sum_of_squares
    share = percent(max(found.residual_sum_of_squares / total, 0.0)) if total > 0 else ""
    rest = {"term": "residual", "freedom": found.residual_degrees_of_freedom, "share": share, "left": "", "p": None}
    return [*terms, rest]


def findings_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of `row` as CSV."""
    columns = ["variable", "kind", "samples", "missing", "verdict", "test", "adjusted", "effect", "pairs", "p", "floor"]
    columns += ["q", "nearest", "spread", "smooth"]
    named = [dict(one) | {"verdict": one["verdict"]["text"]} for one in rows]
    return table_text(columns, [[one[name] for name in columns] for one in named])


def terms_table(found: DesignResult) -> str:
    """Return what each term of a design explains as CSV, with all digits."""
    columns = ["degrees_of_freedom", "r_squared", "partial_r_squared", "p_value", "smallest_p"]
    return table_text(
        ["term", *columns], [[term.term, *(getattr(term, name) for name in columns)] for term in found.terms]
    )


def cautions(study: Study) -> tuple[str, ...]:
    """Return what the reader should know before believing the result."""
    return (*study.notes, *_graph(study), *_few(study))


def _graph(study: Study) -> Iterator[str]:
    advice = study.comparison.diagnosis.advice
    if advice:
        yield f"The graph that carries the distances is not perfect ({counted(len(advice), 'remark')} below)."


def _few(study: Study) -> Iterator[str]:
    for finding in study.findings:
        if finding.answer is not None:
            yield from (f"{shortened(finding.variable)!r}: {caution}" for caution in _doubts(finding, finding.answer))
    if study.findings and len(study.comparison.names) < FEW_SAMPLES:
        yield f"{counted(len(study.comparison.names), 'sample')} are few: only a large difference can show."


def _doubts(finding: Finding, answer: TestResult) -> Iterator[str]:
    small = sum(size < FEW_IN_GROUP for size in finding.groups.values())
    if small:
        yield (
            f"{small} of {counted(len(finding.groups), 'group')} {verb(small, 'has', 'have')} fewer than "
            f"{FEW_IN_GROUP} samples; one unusual sample can make or hide a difference."
        )
    possible = len(answer.null)
    if possible < FEW_PERMUTATIONS:
        yield (
            f"only {counted(possible, 'permutation')} could be tried, so that p cannot fall below "
            f"{answer.smallest_p:.2g}."
        )
    spread = finding.tests.get("dispersion")
    if finding.sure and spread is not None and spread.p_value <= LEVEL:
        yield "its groups are unequally spread, and part of their difference may be this."


def _kind(finding: Finding) -> str:
    return counted(len(finding.groups), "group") if finding.kind == "groups" else "number"


def _verdict(finding: Finding) -> dict[str, str]:
    if finding.answer is None:
        return {"mark": "untested", "text": "not tested"}
    if finding.undecided:
        return {"mark": "maybe", "text": "too few to decide"}
    if finding.sure:
        return {"mark": "yes", "text": "goes with the distances"}
    if finding.answer.p_value <= LEVEL:
        return {"mark": "maybe", "text": "may go with them"}
    return {"mark": "no", "text": "no sign of it"}


def _effect(finding: Finding, answer: TestResult) -> str:
    if finding.kind == "groups":
        return f"explains {percent(finding.explained)} of the variation{' left' if finding.adjusted else ''}"
    return f"correlation {answer.statistic:.2f} ({answer.statistic - answer.effect:.2f} by chance)"


def _nearest(finding: Finding) -> str:
    test = finding.tests.get("neighbor enrichment")
    if test is None:
        return ""
    times = f", {test.effect:.2g} times chance" if np.isfinite(test.effect) else ""
    return f"{100 * test.statistic:.0f} % of the same group{times} (p = {test.p_value:.2g})"


def _spread(finding: Finding) -> str:
    test = finding.tests.get("dispersion")
    if test is None:
        return ""
    if test.p_value > LEVEL:
        return f"about equal (p = {test.p_value:.2g})"
    wider = f"widest {test.effect:.2g} times the narrowest" if np.isfinite(test.effect) else "one has none"
    return f"unequal: {wider} (p = {test.p_value:.2g})"


def _smooth(finding: Finding) -> str:
    test = finding.tests.get("smoothness")
    if test is None or not np.isfinite(test.statistic):
        return ""
    return f"{test.statistic:.2f} of what chance gives (p = {test.p_value:.2g})"
