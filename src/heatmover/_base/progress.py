"""Report the progress of long computations through one protocol; any package may call it, and front ends display it."""

from __future__ import annotations

from typing import Protocol, final


class Progress(Protocol):
    """Receiver of the stages of a computation, which a front end displays."""

    def stage(self, name: str, total: int) -> None:
        """End the previous stage and begin a stage of ``total`` steps."""

    def advance(self, steps: int = 1) -> None:
        """Report finished steps of the current stage; several threads may call this at once."""


@final
class Silent:
    """Receiver that ignores all progress."""

    def stage(self, name: str, total: int) -> None:
        """Ignore the stage."""

    def advance(self, steps: int = 1) -> None:
        """Ignore the steps."""

    def __repr__(self) -> str:  # in signatures
        return "SILENT"


SILENT = Silent()
