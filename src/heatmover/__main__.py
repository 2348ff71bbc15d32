"""The command ``heatmover``, also as ``python -m heatmover``."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from typing import NoReturn

__all__ = ["main"]

# What a terminal, a scheduler or `kill` sends to end a command; Windows has no SIGHUP.
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


class _Ended(SystemExit):
    """A signal ended the command. What began is undone on the way out, as after any other exit."""


def main() -> None:
    """Run the command line; a signal ends it with one word, the usual exit code, and nothing half-written."""
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    # A signal that is ignored, as under nohup, stays ignored.
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, _end)
        _run()
    except _Ended:
        sys.stderr.write("Interrupted.\n")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, _frame: object) -> NoReturn:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)  # whoever cannot wait sends it again
    raise _Ended(128 + number)


def _run() -> None:
    # Imports are here, where a signal finds the handler: they take most of the first second.
    gc.disable()  # what modules make when they load is no garbage
    try:
        from heatmover._base.validation import import_extra
        from heatmover.errors import MissingExtraError

        try:
            for package in ("typer", "rich"):
                import_extra(package, package=package, extra="demo")
        except MissingExtraError as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(2) from None
        from heatmover.cli import app, whole_output
    finally:
        gc.enable()
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    with whole_output():
        app()


if __name__ == "__main__":
    main()
