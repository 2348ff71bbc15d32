"""The pages that say where every item of the paper is name nothing that is not there, and leave nothing out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "results").glob("coverage*.md"))
# All that the paper and its supplement number.
NUMBERED = (
    *(f"Eq. {n}" for n in range(1, 19)), "Definition 1", "Definition 2", "Lemma 1",
    *(f"Theorem {n}" for n in range(1, 5)), "Corollary 2.1", "Corollary 3.1", *(f"Alg. {n}" for n in range(1, 5)),
    *(f"Fig. {n}" for n in range(1, 7)), "Table 1", "Table 2",
)  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    if not PAGES:
        pytest.skip("the documentation is not here")
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if "| paper |" not in line]


def named(rows: list[list[str]]) -> list[str]:
    return [word for row in rows for cell in row for word in re.findall(r"`([^`]+)`", cell) if "/" in word]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_no_cell_is_empty(rows):
    assert len(rows) >= 160
    assert [row for row in rows if len(row) != 4 or not all(row)] == []


def test_every_numbered_item_has_a_row(rows):
    firsts = " ; ".join(row[0] for row in rows)
    assert [item for item in NUMBERED if not re.search(rf"{re.escape(item)}(?![\d.]*\d)", firsts)] == []


def test_every_row_names_a_file_and_what_shows_it(rows):
    assert [row[0] for row in rows if not named([row[2:3]])] == []
    assert [row[0] for row in rows if not named([row[1:2]]) and not row[1].startswith("see ")] == []


def shows(name: str) -> bool:
    """Whether a name is something to run, or a table that ends with the command that wrote it."""
    path, _, function = name.partition("::")
    if path.startswith("tests/"):
        return function.startswith("test_")
    if path.startswith("docs/results/numbers/"):
        last = (ROOT / path).read_text(encoding="utf-8").rstrip().splitlines()[-1]
        return re.match(r"\*`python benchmarks/\S+\.py", last) is not None
    return path.startswith("benchmarks/") and path.endswith(".py")


def test_every_row_names_a_command_or_a_test(rows):
    assert [row[0] for row in rows if not any(map(shows, named([row[2:3]])))] == []


def test_no_item_is_listed_twice(rows):
    firsts = [row[0] for row in rows]
    assert [first for first in set(firsts) if firsts.count(first) > 1] == []


def test_every_file_and_test_named_exists(rows):
    missing = []
    for name in named(rows):
        path, _, function = name.partition("::")
        if not (ROOT / path).exists() or (function and function not in functions(ROOT / path)):
            missing.append(name)
    assert missing == []
