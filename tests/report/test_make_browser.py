"""`make browser`, which `make test` needs: it says in one line what it did and never fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKE = shutil.which("make")


@pytest.fixture
def run(tmp_path):
    """Return a function that runs `make browser` where only a few programs exist, apt-get with the status given."""
    if MAKE is None:
        pytest.skip("make is not installed")
    for name in ("sh", "id", "env", "true", "echo"):
        (tmp_path / name).symlink_to(shutil.which(name))
    # The installer must be tried whoever runs this test.
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')

    def make(status=None, **environment):
        if status is not None:
            (tmp_path / "apt-get").write_text(f'#!/bin/sh\necho "$*" >> "{tmp_path}/asked"\nexit {status}\n')
        for program in ("sudo", "apt-get"):
            if (tmp_path / program).exists():
                (tmp_path / program).chmod(0o755)
        done = subprocess.run(
            [MAKE, "--no-print-directory", "-f", ROOT / "Makefile", "browser"],
            env={"PATH": str(tmp_path)} | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert len(done.stdout.splitlines()) == 1
        return done.stdout

    make.asked = tmp_path / "asked"
    make.folder = tmp_path
    return make


def test_a_browser_that_is_there_is_used(run):
    (run.folder / "chromium").symlink_to(shutil.which("true"))
    assert str(run.folder / "chromium") in run(0)
    assert not run.asked.exists()


def test_a_browser_named_in_the_environment_is_used(run):
    assert "mine" in run(0, HEATMOVER_CHROMIUM="mine")
    assert not run.asked.exists()


def test_debians_chromium_is_installed(run):
    assert "installed Debian's chromium" in run(0)
    update, install = run.asked.read_text().splitlines()
    assert update.endswith(" update")
    assert " install -y --no-install-recommends chromium" in install


@pytest.mark.parametrize("status", [100, None])
def test_where_nothing_can_be_installed_it_says_so(run, status):
    assert "none could be installed" in run(status)


def test_continuous_integration_requires_the_browser():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "export HEATMOVER_REQUIRE_BROWSER=1" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
