"""A signal ends a command with one word and its usual exit code, and leaves nothing behind, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")

# Sends a signal to the process itself when a module is imported for the first time.
AT_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
sys.argv = ["heatmover", "demo", "--samples", "4", "--cells", "20", "--out", "out"]
from heatmover.__main__ import main
main()
"""


# A shell has its background jobs ignore the first, and nohup the second.
HEARD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize(
    "module", ["heatmover._base.validation", "numpy", "typer", "heatmover.cli", "scipy.sparse", "numba", "jinja2"]
)
def test_while_modules_load(module, number, tmp_path):
    code = f"{HEARD}\n{AT_IMPORT.format(module=module, number=int(number))}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number
    assert [line for line in done.stderr.splitlines() if not line.endswith(" ...")] == ["Interrupted."]
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("sign", [".heatmover-run-*", ".heatmover-run-*/new/*"], ids=["begins", "writes"])
def test_while_results_are_made(sign, number, cells, cli, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with (tmp_path / "stdout").open("wb") as stdout, (tmp_path / "stderr").open("wb") as stderr:
        child = cli.fork(
            "compare", cells, "-s", "sample", "-o", place / "out", stdout=stdout.fileno(), stderr=stderr.fileno(),
            before=lambda: exec(HEARD),
        )  # fmt: skip
    while not list(place.glob(sign)):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), (tmp_path / "stderr").read_text()
        time.sleep(0.001)
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + number
    assert (tmp_path / "stderr").read_text().splitlines()[-1] == "Interrupted."
    assert list(place.iterdir()) == []


def test_what_is_ignored_stays_ignored(tmp_path):
    """As nohup wants it."""
    code = AT_IMPORT.format(module="typer", number=int(signal.SIGHUP))
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "run.json").exists()


def test_handlers_are_put_back(monkeypatch):
    from heatmover.__main__ import main

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["heatmover", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert signal.getsignal(signal.SIGTERM) == before
