"""Run the command ``heatmover``, also as ``python -m heatmover``; a signal ends it without half-written files."""

from __future__ import annotations

import gc
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["main"]

# Signals that a terminal, a scheduler or `kill` sends to end a command; Windows has no SIGHUP.
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


class _Interruption(SystemExit):
    """Exit because of a signal; unfinished files are removed on the way out, as after any other exit."""


def main() -> None:
    """Run the command line; after a signal, remove unfinished files and exit with code 128 plus the signal's number."""
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    # A signal that is ignored, as under nohup, stays ignored.
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, _end)
        _run()
    except _Interruption:
        sys.stderr.write("Interrupted.\n")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> NoReturn:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)  # a second signal ends the process at once
    raise _Interruption(128 + number)


class _Later(PathFinder):
    """Loads scipy.stats on first use: scikit-learn imports it for a function that no command calls, in 0.3 s."""

    @classmethod
    def find_spec(cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Return how to load scipy.stats on first use, and None for all other modules."""
        if fullname != "scipy.stats":
            return None
        sys.meta_path.remove(cls)
        spec = super().find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def _run() -> None:
    # Import here, after the signal handlers are set, because imports take most of the first second.
    gc.disable()  # objects that modules create when they load are not garbage
    if "scipy.stats" not in sys.modules:
        sys.meta_path.insert(0, _Later)
    try:
        from heatmover._base.validation import import_extra
        from heatmover.errors import MissingExtraError

        try:
            for package in ("typer", "rich"):
                import_extra(package, package=package, extra="demo")
        except MissingExtraError as error:
            every = MissingExtraError(" ".join(missing_packages(error.extra)) or error.package, error.extra)
            sys.stderr.write(f"{every}\n")
            raise SystemExit(2) from None
        from heatmover.cli import app, whole_output
    finally:
        gc.enable()
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    with whole_output():
        app()


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed, so that one installation is enough."""
    requirements = metadata.requires("heatmover") or []
    names = [re.split(r"[^\w.-]", line)[0] for line in requirements if f'extra == "{extra}"' in line.replace("'", '"')]
    return [name for name in names if not _installed(name)]


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
