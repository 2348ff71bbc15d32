"""A second process that compiles kernels while a first command goes on; nothing of it lasts longer than the command."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["compiled_ahead"]

# Set to 0, nothing is compiled beside a command.
SWITCH = "HEATMOVER_COMPILE_AHEAD"
# What pytest sets: tests share one folder of kernels, and are run by as many processes as there are cores.
IN_TEST = "PYTEST_CURRENT_TEST"
# Seconds for the process to end by itself, which it does as soon as no file is being written.
PATIENCE = 5


@contextmanager
def compiled_ahead() -> Iterator[None]:
    """Compile beside a command what it will need, if nothing is on disk yet and there is a second core.

    Compiling holds the interpreter's lock, so that threads do not help. Should the process fail, the command compiles
    for itself what it needs, as it would have done.
    """
    beside = _start() if _is_of_use() else None
    try:
        yield
    finally:
        if beside is not None:
            _end(beside)


def _is_of_use() -> bool:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get(SWITCH, "1") != "0" and IN_TEST not in os.environ
    return wanted and os.name == "posix" and cores > 1 and not _has_compiled(_folders())


def _folders() -> list[Path]:
    """Return where numba may keep what it has compiled of this package."""
    source = Path(__file__).absolute().parents[1] / "_compiled"
    own = f"{source.name}_{hashlib.sha1(str(source).encode(), usedforsecurity=False).hexdigest()}"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen) / own]
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [source / "__pycache__", users / "numba" / own]


def _has_compiled(folders: list[Path]) -> bool:
    """Return whether there is the index of a compiled kernel, be it an old one: then most are still of use."""
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    return any(True for folder in folders for _ in folder.glob(f"*.{tag}*.nbi"))


def _start() -> subprocess.Popen[bytes] | None:
    """Start the process; it reads a pipe that nobody writes to, and ends when that is closed."""
    # Neither the current folder nor what is printed is of any concern to it.
    order = [sys.executable, "-P", "-m", "heatmover._compiled.ahead"]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        return subprocess.Popen(order, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere)
    return None


def _end(beside: subprocess.Popen[bytes]) -> None:
    assert beside.stdin is not None
    with suppress(OSError):
        beside.stdin.close()
    try:
        beside.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        beside.kill()
        beside.wait()
