"""Kernels are compiled once and kept on disk, or compiled in memory by every process where no disk takes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import CompileResultCacheImpl

import heatmover as hm
from heatmover._base.compiled import jit
from heatmover._base.compiled.jit import kernel


def test_every_kernel_is_made_by_one_function():
    """Else it would not go on without a folder for compiled code."""
    folder = Path(jit.__file__).parent
    assert [path.name for path in folder.glob("*.py") if "njit" in path.read_text(encoding="utf-8")] == ["jit.py"]


def test_without_a_folder_kernels_are_compiled_in_memory(monkeypatch):
    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    jit._warn_without_cache.cache_clear()
    with pytest.warns(RuntimeWarning, match="set the environment variable NUMBA_CACHE_DIR") as said:
        doubled, halved = kernel()(lambda values: 2 * values), kernel(["contract"])(lambda values: values / 2)
    assert len(said) == 1
    assert doubled(np.ones(2)).tolist() == [2, 2]
    assert halved(np.ones(2)).tolist() == [0.5, 0.5]


def test_another_error_of_the_cache_is_not_hidden(monkeypatch):
    def broken(*_):
        raise RuntimeError("defect")

    monkeypatch.setattr(CompileResultCacheImpl, "__init__", broken)
    with pytest.raises(RuntimeError, match="defect"):
        kernel()(lambda: 1)


def test_a_read_only_install_without_a_home(tmp_path):
    """Files stand where numba would make its folders, which stops also root, whom no permission stops."""
    site, home = tmp_path / "site", tmp_path / "home"
    shutil.copytree(Path(hm.__file__).parent, site / "heatmover", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "heatmover" / "_base" / "compiled" / "__pycache__").touch()
    home.touch()
    without = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    without |= {"PYTHONPATH": str(site), "HOME": str(home), "MPLCONFIGDIR": str(tmp_path)}
    order = [sys.executable, "-m", "heatmover", "demo", "--samples", "4", "--cells", "20", "--out", "out", "--force"]
    done = subprocess.run(order, env=without, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.endswith(" ...")] == [
        "Warning: numba found no writable folder for compiled code, so each process compiles the code again; set the "
        "environment variable NUMBA_CACHE_DIR to a writable folder."
    ]
    assert (tmp_path / "out" / "report.html").exists()
    kept = {**without, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    done = subprocess.run(order, env=kept, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr
    assert list(tmp_path.glob("kernels/*/*.nbi"))
