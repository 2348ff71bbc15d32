"""Print the results of a run to the terminal, the main result first; for `cli` only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from heatmover._base.words import counted, listed, naturally, unused
from heatmover.cli._terminal import LONGEST_NAME, clean, columns_of, hanging, short
from heatmover.measures import is_missing
from heatmover.report.findings import BEFORE, cautions, term_rows
from heatmover.report.folder import EVERY, listing
from heatmover.statistics import DesignResult
from heatmover.statistics.permutations import out_of_reach
from heatmover.study.examination import label
from heatmover.study.study import Study

NEIGHBORS_SHOWN = 3
SAMPLES_SHOWN = 8
FINDINGS_SHOWN = 12
LEAST_NAME = 6
# Marks a distance that is not significantly above zero.
ALIKE = "~"
# Colors of groups, from the 256 colors of terminals; the first two match the demo's picture.
COLORS = ("color(33)", "color(208)", "color(35)", "color(170)", "color(179)", "color(38)")


def show_results(console: Console, study: Study, out: Path) -> None:
    """Print the results, and the files that hold them."""
    console.print()
    console.print(Text(clean(study.headline()), style="bold"))
    if study.findings:
        console.print()
        _show_findings(console, study)
    if study.contrast is not None:
        console.print()
        console.print(hanging("cells", clean(study.contrast.describe())))
        for line in (*(one.describe() for one in study.omnibus), *(one.brief() for one in study.contrasts[1:])):
            console.print(hanging("", clean(line)))
        if study.contrast.drivers is not None:
            console.print(hanging("drivers", clean(study.contrast.drivers.summary())))
    if study.cell_calls is not None:
        console.print()
        console.print(hanging("density", clean(study.cell_calls.describe())))
    _show_cautions(console, [clean(caution) for caution in cautions(study)])
    console.print()
    console.print(_nearest_table(study, console.width))
    intervals = study.comparison.intervals
    if intervals is not None:
        level = f"{100 * intervals.confidence:g}%"
        console.print(Text(f"{ALIKE} not distinguishable: the {level} confidence interval includes zero", style="dim"))
    left = len(study.comparison.names) - SAMPLES_SHOWN
    if left > 0:
        console.print(Text(f"and {counted(left, 'more sample')} in distances.csv", style="dim"))
    console.print()
    for name, text in _facts(study):
        console.print(hanging(name, text))
    console.print()
    console.print(Text(f"Wrote into {clean(out)}:"), soft_wrap=True)
    console.print(_file_table(out))
    console.print(Text(f"Open in a browser: {clean((out / 'report.html').absolute())}"), soft_wrap=True)


def _show_findings(console: Console, study: Study) -> None:
    tested = [finding for finding in study.findings if finding.answer is not None]
    table = columns_of("variable", "effect", "p", "q")
    for finding in tested[:FINDINGS_SHOWN]:
        answer = finding.answer
        assert answer is not None
        style = "bold" if finding.sure else ""
        table.add_row(
            Text(short(finding.variable), style=style),
            Text(clean(f"{finding.size}{finding.adjustment}")),
            f"{answer.p_value:.2g}",
            Text(f"{finding.q_value:.2g}", style=style),
        )
    if tested:
        console.print(table)
    if len(tested) > 1:
        console.print(Text("q: false discovery rate among all variables tested", style="dim"))
    for finding in tested[:FINDINGS_SHOWN]:
        if finding.undecided:
            console.print(Text(f"{short(finding.variable)}: {out_of_reach(*finding.limit)}.", style="dim"))
    if study.design is not None:
        console.print()
        console.print(_term_table(study.design))
    near = next((finding for finding in tested if finding.closeness()), None)
    if near is not None:
        console.print()
        console.print(Text(clean(f"{near.variable}: {near.closeness()}")))
    if len(tested) > FINDINGS_SHOWN:
        console.print(Text(f"and {counted(len(tested) - FINDINGS_SHOWN, 'more variable')} in report.html", style="dim"))
    for finding in study.findings:
        if finding.answer is None:
            console.print(Text(clean(finding.note), style="dim"))


def _term_table(design: DesignResult) -> Table:
    """Return the table of the terms of a design."""
    held = "all others" if design.by == "margin" else "terms above"
    table = columns_of("term", "R2", f"partial R2 ({held} held fixed)", "p")
    for row in term_rows(design):
        p = "" if row["p"] is None else f"{row['p']:.2g}"
        table.add_row(Text(short(row["term"])), row["share"], row["left"], p)
    return table


def _show_cautions(console: Console, sentences: Sequence[str]) -> None:
    """Print the cautions: in a box on a terminal, as a plain list elsewhere."""
    if not sentences:
        return
    console.print()
    if not console.is_terminal:
        console.print(Text(f"{BEFORE}:"))
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for sentence in sentences:
        grid.add_row("-", Text(sentence))
    console.print(Panel(grid, title=BEFORE, title_align="left", border_style="yellow") if console.is_terminal else grid)


def _file_table(out: Path) -> Table:
    """Return a table of the written files with their contents."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", style="dim")
    for name, holds in listing([name for name in EVERY if (out / name).exists()]):
        grid.add_row(f"  {name}", holds)
    return grid


def _nearest_table(study: Study, width: int) -> Table:
    """Return a table of samples with as many nearest samples as fit on a line; distances are never truncated."""
    comparison = study.comparison
    distances, indices = comparison.nearest(min(NEIGHBORS_SHOWN, len(comparison.names) - 1))
    variable, groups, styles = _groups(study)
    shown = _some_of_each(groups)
    count, longest = _room([comparison.names[i] for i in {*shown, *indices[shown].ravel().tolist()}],
                           [short(variable), *(short(groups[i]) for i in shown)] if variable else [],
                           len(f"  {distances[shown].max():.3f}"), indices.shape[1], width)  # fmt: skip

    def named(sample: int) -> Text:
        return Text(short(comparison.names[sample], longest), style=styles.get(groups[sample], ""))

    intervals = comparison.intervals

    def far(sample: int, other: int, distance: float) -> str:
        alike = intervals is not None and not intervals.distinguishable[sample, other]
        # The mark replaces a space, because the columns already fill the width of the terminal.
        return f" {ALIKE if alike else ' '}{distance:.3f}"

    table = columns_of("sample", *([short(variable)] if variable else []), *("nearest", "second", "third")[:count])
    for sample in shown:
        own = [Text(short(groups[sample]), style=styles[groups[sample]])] if variable else []
        near = zip(indices[sample, :count].tolist(), distances[sample, :count].tolist(), strict=True)
        table.add_row(named(sample), *own, *(Text.assemble(named(i), (far(sample, i, d), "dim")) for i, d in near))
    return table


def _room(names: list[str], groups: list[str], distance: int, most: int, width: int) -> tuple[int, int]:
    """Return how many nearest samples fit on a line, and the largest length of names; longer names are truncated."""
    name = max(cell_len(short(each)) for each in names)
    taken = max(map(cell_len, groups)) + 2 if groups else 0
    for count in range(most, 0, -1):
        if name + taken + count * (2 + name + distance) <= width:
            return count, LONGEST_NAME
    return 1, max((width - taken - 2 - distance) // 2, LEAST_NAME)


def _groups(study: Study) -> tuple[str, list[str], dict[str, str]]:
    """Return the name of the first tested variable with groups, the group of each sample, and a color per group."""
    n_samples = len(study.comparison.names)
    first = next(
        (finding for finding in study.findings if finding.kind == "groups" and finding.answer is not None), None
    )
    if first is None or len(first.groups) > len(COLORS):
        return "", [""] * n_samples, {}
    values = ["" if is_missing(value) else label(value) for value in study.variables[first.variable].tolist()]
    return first.variable, values, {"": "", **dict(zip(first.groups, COLORS, strict=False))}


def _some_of_each(groups: list[str]) -> list[int]:
    """Return the samples to show, in order: all samples if they are few, otherwise about equally many of each group."""
    order = {name: place for place, name in enumerate(naturally(set(groups)))}
    members = [[i for i, group in enumerate(groups) if group == name] for name in order]
    turns = [i for turn in zip_longest(*members) for i in turn if i is not None]
    return sorted(turns[:SAMPLES_SHOWN], key=lambda i: (order[groups[i]], i))


def _facts(study: Study) -> Iterator[tuple[str, str]]:
    diagnosis, model = study.comparison.diagnosis, study.comparison.model
    source = study.record.input
    if source:
        left = f"; {unused(source['unused'])}" if source.get("unused") else ""
        yield "features", clean(f"{listed(source['dimensions'], most=4)}{left}.")
    yield "outliers", clean(study.outliers()["sentence"])
    advice = " ".join(diagnosis.advice) or "No problems found."
    yield "graph", f"{str(diagnosis).splitlines()[0]} {advice}"
    yield "scales", f"The coarsest scale is {model.max_scale_}: {study.comparison.max_scale_reason}."
