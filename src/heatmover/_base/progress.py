"""How long work tells the outside how far it is: one small protocol, silent by default."""

from __future__ import annotations

from typing import Protocol, final

__all__ = ["SILENT", "Progress", "Silent"]


class Progress(Protocol):
    """Receives the stages of a computation; a front end draws them."""

    def stage(self, name: str, total: int) -> None:
        """Begin a stage of ``total`` steps; the stage before it has ended."""

    def advance(self, steps: int = 1) -> None:
        """Report finished steps of the current stage; may be called from several threads."""


@final
class Silent:
    """Progress that nobody watches."""

    def stage(self, name: str, total: int) -> None:
        """Ignore the stage."""

    def advance(self, steps: int = 1) -> None:
        """Ignore the steps."""

    def __repr__(self) -> str:  # in signatures
        return "SILENT"


SILENT = Silent()
