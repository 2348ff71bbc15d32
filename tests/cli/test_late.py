"""Modules that load late: at their first use, once, and nothing else is changed."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from heatmover.cli._late import swift_imports

CODE = """
import sys
from heatmover.cli._late import load_late
before = list(sys.meta_path)
load_late("wave"); load_late("wave")
assert len(sys.meta_path) == len(before) + 1
import wave
assert sys.meta_path == before
assert wave.open is sys.modules["wave"].open
assert "open" in object.__getattribute__(wave, "__dict__")
load_late("wave")
assert sys.meta_path == before
"""


def test_a_module_loads_at_its_first_use():
    subprocess.run([sys.executable, "-c", CODE], check=True)


def test_a_comparison_loads_nothing_that_it_does_not_need(tmp_path):
    rows = [f"s{i % 4},{'ab'[i % 2]},{i % 7},{i % 5 / 3}" for i in range(80)]
    (tmp_path / "cells.csv").write_text("\n".join(["sample,group,x,y", *rows]))
    code = """
import sys
from heatmover.cli import app
app(["compare", sys.argv[1], "-s", "sample", "-o", sys.argv[2], "-q"], standalone_mode=False)
heavy = (
    "scipy.stats._stats_py", "scipy.spatial.transform._rotation", "numpy.f2py.f2py2e", "numpy.testing._private.utils",
    "matplotlib", "torch",
)
print([name for name in heavy if name in sys.modules])
"""
    order = [sys.executable, "-c", code, str(tmp_path / "cells.csv"), str(tmp_path / "out")]
    done = subprocess.run(order, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_waits_for_imports_and_is_then_as_before(enabled):
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with swift_imports():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
