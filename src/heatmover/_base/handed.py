"""Let `atlas` and `study` call `report`, which imports them: `heatmover/__init__.py` registers the functions here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LOADERS: dict[str, Callable[[], Any]] = {}


def hand_in(name: str, load: Callable[[], Any]) -> None:
    """Register the loader of a function under a name; the loader imports and returns the function."""
    _LOADERS[name] = load


def handed(name: str) -> Any:
    """Load and return the function registered under a name."""
    return _LOADERS[name]()
