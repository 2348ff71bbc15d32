"""Whether a table still stands is decided by what the package computes, not by how its code is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

NUMBERS = Path(__file__).resolve().parents[2] / "docs/results/numbers"
PART = {"a": [1.0, -2.0], "b": [0.0]}


@pytest.fixture
def panel(script, tmp_path, monkeypatch):
    found = script("panel")
    monkeypatch.setattr(found, "KEPT", tmp_path / "panel.json")
    found.kept.cache_clear()
    yield found
    found.kept.cache_clear()


def test_rounding_is_no_change_and_anything_larger_is(panel):
    assert panel.same(PART, {"a": [1.0 + 1e-7, -2.0], "b": [0.0]})
    assert not panel.same(PART, {"a": [1.001, -2.0], "b": [0.0]})
    assert not panel.same(PART, {"a": [1.0, -2.0]})
    assert not panel.same(PART, {"a": [1.0], "b": [0.0]})


def test_parts_that_did_not_change_are_kept_once(panel):
    panel.keep("aaaaaaa", {"distances": PART, "noise": PART})
    panel.keep("bbbbbbb", {"distances": PART, "noise": {"a": [3.0], "b": [0.0]}})
    book = json.loads(panel.KEPT.read_text(encoding="utf-8"))
    assert len(book["parts"]["distances"]) == 1
    assert len(book["parts"]["noise"]) == 2
    now = {"distances": PART, "noise": {"a": [3.0], "b": [0.0]}}
    assert panel.differs("aaaaaaa", ("distances", "noise"), now) == ["noise"]
    assert panel.differs("bbbbbbb", ("distances", "noise"), now) == []
    assert panel.differs("bbbbbbb", ("gradients",), now) == ["gradients"]


def test_a_commit_that_is_not_kept_differs_in_everything(panel):
    assert panel.differs("ccccccc", ("distances", "noise"), {"distances": PART}) == ["distances", "noise"]


def test_comments_and_docstrings_mean_nothing(panel):
    assert panel.meaning('"""One."""\ndef f(x):\n    """Two."""\n    return x + 1  # why\n') == panel.meaning(
        "def f(x):\n    return (x\n        + 1)\n"
    )
    assert panel.meaning("x = 1") != panel.meaning("x = 2")


def test_a_part_of_a_script_is_what_its_function_needs(panel):
    text = (
        "import os\nA, B = 1, 2\nC = 3\n"
        "def one():\n    return helper() + A\n"
        "def helper():\n    return os.sep\n"
        "def two():\n    return C\n"
    )

    def same(part, old, new):
        assert old in text
        return panel.meaning(text, part) == panel.meaning(text.replace(old, new), part)

    assert same("one", "C = 3", "C = 4")
    assert same("two", "os.sep", "os.linesep")
    assert not same("two", "C = 3", "C = 4")
    assert not same("one", "os.sep", "os.linesep")
    assert not same("one", "A, B = 1, 2", "A, B = 2, 2")
    assert not same("one", "import os", "import os.path as os")
    # The name of no function, or none at all, is the whole script.
    assert not same("three", "C = 3", "C = 4")
    assert not same(None, "C = 3", "C = 4")


def test_every_table_of_record_can_be_looked_up(script):
    commits = script("panel").kept()["commits"]
    missing = {}
    for path in NUMBERS.glob("*.md"):
        found = re.search(r", commit ([0-9a-f]{7,})", path.read_text(encoding="utf-8").rstrip().splitlines()[-1])
        assert found is not None, path.name
        if found[1] not in commits:
            missing[path.name] = found[1]
    assert missing == {}, "python benchmarks/panel.py COMMIT keeps what a commit computes"
