"""Runs that write a result folder, each a process of its own, which may be killed before any of its operations.

As a script it forks them when asked to, a line of JSON for the runs that begin together. It is small: a fork of the
process that runs the tests would copy the page tables of gigabytes, some hundred times.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import heatmover
from heatmover.errors import InvalidInputError

if __name__ == "__main__":
    # What only the content of results needs stays out: with pandas and scikit-learn a fork takes twice as long.
    sys.modules["heatmover.report"] = ModuleType("heatmover.report")
    sys.modules["heatmover.report"].__path__ = [f"{folder}/report" for folder in heatmover.__path__]
    for unused in ("analysis.cell_types", "analysis.study", "report.page", "tables"):
        sys.modules[f"heatmover.{unused}"] = ModuleType(f"heatmover.{unused}")
        sys.modules[f"heatmover.{unused}"].__getattr__ = lambda name: None

from heatmover.report.folder import result_folder

# What changes a file system, or orders its changes.
OPERATIONS = ("open", "close", "write", "fsync", "mkdir", "rename", "replace", "symlink", "link", "unlink", "rmdir")


@dataclass(frozen=True)
class Run:
    """What to write, and the number of the operation before which the process is killed; 0 for never."""

    out: str
    text: str
    names: list[str] = field(default_factory=list)
    force: bool = True
    killed_at: int = 0


def deliver(out, text, names, *, force=True):
    with result_folder(Path(out), force=force) as folder:
        for name in names:
            (folder / name).write_text(text)


@contextmanager
def at_operation(number, act, operations=OPERATIONS):
    """Act before one operation on the file system, counted from 1."""
    real, count = {name: getattr(os, name) for name in operations}, iter(range(1, 10_000))

    def counted(name):
        def operation(*arguments, **options):
            if next(count) == number:
                act()
            return real[name](*arguments, **options)

        return operation

    try:
        for name in operations:
            setattr(os, name, counted(name))
        yield count
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def without_sync():
    """Synchronising takes most of the time and changes nothing for a process that is killed."""
    os.fsync = lambda file: None


def begin(run):
    """Start a run in a child and return its process."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with at_operation(run.killed_at, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            deliver(run.out, run.text, run.names, force=run.force)
        code = 0
    except InvalidInputError:
        code = 2
    finally:
        os._exit(code)


def end(child):
    """Return minus the signal that ended a child, or its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    without_sync()
    gc.freeze()  # a child that looks for garbage would copy all that it looks at
    for line in sys.stdin:
        children = [begin(Run(**run)) for run in json.loads(line)]
        sys.stdout.write(json.dumps([end(child) for child in children]) + "\n")
        sys.stdout.flush()
