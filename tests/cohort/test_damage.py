"""A small part of benchmarks/soak_damage.py: damaged files are refused in a sentence, or read as what they hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_damage.py"


@pytest.fixture(scope="module")
def soak():
    if not SCRIPT.exists():
        pytest.skip("the benchmarks are not here")
    spec = importlib.util.spec_from_file_location("soak_damage", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_sixty_damages(soak, monkeypatch):
    # A process that is started anew finds the module by its name.
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setitem(__import__("sys").modules, "soak_damage", soak)
    formats = [name for name in soak.WRITERS if name != "checkpoint"]  # which has tests of its own
    with soak.soak() as run:
        verdicts = [run.judge(case) for case in soak.cases(30, 30, formats, seed=7)]
    bad = [
        f"{verdict.case} {verdict.word}: {verdict.detail}" for verdict in verdicts if verdict.word not in soak.ACCEPTED
    ]
    assert not bad, "\n".join(bad)
    assert {found.word for found in verdicts} >= {"refused", "same", "as it says"}
