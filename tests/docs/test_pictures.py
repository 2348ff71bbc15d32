"""The pictures of the pages show the runs beside them, and the tables of files name every file.

A picture carries what it was made from. Where a test here fails, ``python docs/make_pictures.py`` draws it anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heatmover.cli import app
from heatmover.report.folder import EVERY

pytest.importorskip("PIL")

DOCS = Path(__file__).resolve().parents[2] / "docs"
STATIC = DOCS / "_static"


@pytest.fixture(scope="module")
def pages(docs_module):
    return docs_module("pages")


@pytest.fixture(scope="module")
def make_pictures(docs_module):
    return docs_module("make_pictures")


def test_thumbnails_show_what_the_examples_draw(pages):
    found = {page.name: pages.facts_of(DOCS / "gallery/thumbnails" / f"{page.stem}.png") for page in pages.examples()}
    assert found == {page.name: {"code": pages.fingerprint(page)} for page in pages.examples()}


def test_the_picture_of_the_tutorial_is_of_its_own_run(pages, make_pictures):
    assert pages.facts_of(STATIC / "tutorial-report.png")["code"] == pages.fingerprint(make_pictures.TUTORIAL)
    assert "_static/tutorial-report.png" in make_pictures.TUTORIAL.read_text(encoding="utf-8")


def test_the_map_shows_these_distances(pages, make_pictures):
    result, _ = make_pictures.map_of_blood_cells()
    assert pages.facts_of(STATIC / "blood-cells.png") == {"distances": make_pictures.checksum(result.distances)}


def test_the_pictures_of_the_report_are_of_the_demo_as_it_is_now(pages, make_pictures, tmp_path):
    facts = [pages.facts_of(STATIC / name) for name in ("report.png", "report-top.png", "report-top-dark.png")]
    assert facts[0] == facts[1] == facts[2]
    command = facts[0]["command"].split()[1:]
    done = CliRunner().invoke(app, [*command, "--quiet", "--out", str(tmp_path / "demo")])
    assert done.exit_code == 0, done.output
    assert facts[0]["headline"] == make_pictures.headline(tmp_path / "demo")


def test_a_page_that_shows_the_report_names_its_command(pages):
    command = pages.facts_of(STATIC / "report.png")["command"]
    shown = [page for page in DOCS.rglob("*.md") if "_static/report.png" in page.read_text(encoding="utf-8")]
    assert shown
    assert [page.name for page in shown if command not in page.read_text(encoding="utf-8")] == []


def test_comments_of_a_page_do_not_count(pages, tmp_path):
    texts = ("x = 1  # one\n\n# more\ny = 2", "x = 1\ny = 2", "x = 1\ny = 3")
    found = []
    for text in texts:
        (tmp_path / "page.md").write_text(f"```python\n{text}\n```\n", encoding="utf-8")
        found.append(pages.fingerprint(tmp_path / "page.md"))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("page", ["howto/command-line.md", "howto/report.md"])
def test_the_table_of_files_has_every_file(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    table = re.search(r"^\| file \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert sorted(re.findall(r"^\| `([^`]+)`", table[1], flags=re.MULTILINE)) == sorted(EVERY)


def test_the_command_line_page_has_every_command():
    text = (DOCS / "howto/command-line.md").read_text(encoding="utf-8")
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    assert len(commands) + len(groups) == 4
    named = [f"heatmover {name}" for name in (*commands, *groups)]
    for group, inner in groups.items():
        named += [f"heatmover {group} {one.name or one.callback.__name__}" for one in inner.registered_commands]
    assert [name for name in named if f"`{name}`" not in text] == []
