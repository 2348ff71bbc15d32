"""Registry for calls upwards (reports of comparisons and of mapped samples); the package face fills it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["hand_in", "handed"]

_LOADERS: dict[str, Callable[[], Any]] = {}


def hand_in(name: str, load: Callable[[], Any]) -> None:
    """Say how something is loaded when it is first needed."""
    _LOADERS[name] = load


def handed(name: str) -> Any:
    """Return what was handed in under a name."""
    return _LOADERS[name]()
