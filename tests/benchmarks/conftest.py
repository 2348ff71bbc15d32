from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """A benchmark as a module, by its name; forgotten afterwards."""
    if not FOLDER.exists():
        pytest.skip("the benchmarks are not here")
    before = set(sys.modules)
    for folder in (FOLDER / "paper", FOLDER):
        monkeypatch.syspath_prepend(folder)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[name]
