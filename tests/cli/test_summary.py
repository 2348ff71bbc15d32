"""What the terminal shows after a run: a box of cautions where there is a terminal, a list where there is none."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import heatmover as hm
from heatmover.cli._summary import show_results
from heatmover.report.findings import BEFORE, cautions
from heatmover.study.study import study_comparison


@pytest.fixture(scope="module")
def study():
    data = hm.datasets.cohort(8, cells_per_sample=30, effect=4.0)
    comparison = hm.compare(data.points, data.labels, n_neighbors=10)
    found = study_comparison(comparison, {"condition": data.annotations["condition"]}, n_permutations=19)
    return replace(found, notes=("A first note.", "\x1b[2J[bold]a name[/bold] that \u202e commands\nthe terminal."))


def shown(study, folder, **options):
    stream = io.StringIO()
    show_results(Console(file=stream, width=70, highlight=False, emoji=False, markup=False, **options), study, folder)
    return stream.getvalue()


def test_what_the_page_warns_of_the_terminal_does_too(study, tmp_path):
    text = " ".join(shown(study, tmp_path).split())
    assert f"{BEFORE}: - A first note. - " in text
    # What the report adds to the notes of a study: groups and samples that are few.
    assert len(cautions(study)) > len(study.notes) + 1
    assert text.count(" - ") == len(cautions(study))
    assert "With 8 samples, only a large difference can be significant." in text


def test_a_terminal_shows_a_box(study, tmp_path):
    lines = shown(study, tmp_path, force_terminal=True, color_system=None).splitlines()
    top = next(i for i, line in enumerate(lines) if BEFORE in line)
    bottom = next(i for i, line in enumerate(lines) if line.startswith("\u2570"))
    assert lines[top].startswith("\u256d\u2500 Cautions ")
    assert {len(line) for line in lines[top : bottom + 1]} == {70}
    assert all(line.startswith("\u2502 ") and line.endswith(" \u2502") for line in lines[top + 1 : bottom])
    plain = shown(study, tmp_path)
    assert "\u2502" not in plain
    assert "\u256d" not in plain


@pytest.mark.parametrize("terminal", [False, True])
def test_names_in_the_box_cannot_command_the_terminal(study, tmp_path, terminal):
    text = shown(study, tmp_path, force_terminal=terminal, color_system=None)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[2J[bold]a name[/bold] that \\u202e" in text


def test_without_cautions_there_is_no_box(tmp_path):
    data = hm.datasets.cohort(12, cells_per_sample=30)
    comparison = hm.compare(data.points, data.labels, n_neighbors=10)
    found = study_comparison(comparison, {"score": np.arange(12.0)}, n_permutations=99)
    quiet = replace(found, notes=())
    assert cautions(quiet) == ()
    assert BEFORE not in shown(quiet, tmp_path)


@pytest.mark.parametrize(("width", "shown"), [(130, 3), (100, 2), (70, 1), (40, 1)])
def test_distances_are_whole_at_any_width(tmp_path, width, shown):
    data = hm.datasets.cohort(8, cells_per_sample=30, effect=4.0)
    comparison = hm.compare(data.points, [f"a-long-name-{label}" for label in data.labels], n_neighbors=10)
    found = study_comparison(comparison, {"condition": data.annotations["condition"]}, n_permutations=19)
    stream = io.StringIO()
    show_results(Console(file=stream, width=width, highlight=False, emoji=False, markup=False), found, tmp_path)
    rows = [line for line in stream.getvalue().splitlines() if line.startswith("a-")]
    distances, _ = comparison.nearest(shown)
    assert len(rows) == 8
    for row in rows:
        numbers = re.findall(r"\b\d\.\d{3}\b", row)
        assert len(numbers) == shown
        assert len(row.rstrip()) <= width
    assert f"{distances[0, 0]:.3f}" in rows[0]
