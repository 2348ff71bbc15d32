"""The command ``heatmover``, also as ``python -m heatmover``."""

from __future__ import annotations

import gc
import sys

from heatmover._validation import import_extra
from heatmover.errors import MissingExtraError

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say which extra to install for it."""
    gc.disable()  # what modules make when they load is no garbage
    try:
        for package in ("typer", "rich"):
            import_extra(package, package=package, extra="demo")
        from heatmover.cli import app, whole_output
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    finally:
        gc.enable()
    with whole_output():
        app()


if __name__ == "__main__":
    main()
